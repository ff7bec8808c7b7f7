"""Which kernel of one session stands for which of another, and what each took more.

Neither session says in which order its kernels ran, so they are told apart by name, by
family and by how they were launched.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from pytest_gpuperf.model.activity import KernelTotal
from pytest_gpuperf.model.change import KernelAccount, KernelMove
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Record
from pytest_gpuperf.model.verdict import KernelChoice

__all__ = ["account", "aligned", "family", "named", "totals_of", "usual_choice"]

_SAME_ORDER = 4.0  # times of two kernels that may do the same work differ by less
# of one type, which two releases of PyTorch spell each in its way
_ARRAY = re.compile(r"\bstd::array\b")
_ABI_TAG = re.compile(r"\[abi:\w+\]")
# what Triton adds for the types and alignments of arguments: kernel_0d1d2de3c
_TRITON_SIGNATURE = re.compile(r"_(?:\d+[cde]*)+(?<=[cde])$")
# a digest: eight hexadecimal digits and more, of which one is a number
_DIGEST = re.compile(r"(?<![A-Za-z])(?=[a-f]*\d)[0-9a-f]{8,}(?![A-Za-z])")
_NUMBER = re.compile(r"\d+")  # a tile, an ordinal, a generation, a template's argument


def account(
    then: Sequence[Sequence[KernelTotal]], now: Sequence[Sequence[KernelTotal]]
) -> KernelAccount | None:
    """
    Return which kernels took more or less time; None: they are not known.

    Of several sessions, and of several processes, the one whose kernels took the median
    time together stands for all.

    Args:
        then: The kernels of each stored session that knows them.

        now: Those of each process.

    References:
        docs/judging.md section 6.
    """
    old, new = _middle(then), _middle(now)
    if not old or not new:
        return None
    moves = sorted(aligned(old, new), key=lambda move: -abs(move.difference_s))
    return KernelAccount(
        then_s=math.fsum(kernel.total_s for kernel in old),
        now_s=math.fsum(kernel.total_s for kernel in new),
        moves=tuple(moves),
    )


def aligned(
    then: Sequence[KernelTotal], now: Sequence[KernelTotal]
) -> list[KernelMove]:
    """
    Return each kernel of one session beside the one that it was in another.

    By name and launch, then by name, by family and grid, by family, and by launch alone
    where it is one of each session. What is left of either session has no partner, unless
    one kernel of each is left, of times of one order: then one has replaced the other.

    Args:
        then: The kernels of the earlier session, most time first.

        now: Those of the later one.
    """
    old, new = [*then], [*now]
    moves: list[KernelMove] = []
    for key in (_named_launch, _name, _family_grid, _family):
        moves += _pairs(old, new, key)
    moves += _pairs(old, new, _extents, unique=True)
    if len(old) == len(new) == 1 and _of_one_order(old[0], new[0]):
        moves.append(KernelMove(then=old.pop(), now=new.pop()))
    moves += [KernelMove(then=kernel) for kernel in old]
    moves += [KernelMove(now=kernel) for kernel in new]
    return moves


def family(name: str) -> str:
    """
    Return a kernel's name without the parts that change while the kernel stays.

    Tile sizes, ordinals of Inductor and XLA, numbers of lambdas and of chips, digests, ABI
    tags and Triton's signature are left out.
    """
    text = _ABI_TAG.sub("", name.removeprefix("void "))
    text = _ARRAY.sub("at::detail::Array", text)
    text = _DIGEST.sub("#", _TRITON_SIGNATURE.sub("", text))
    return _NUMBER.sub("#", text)


def usual_choice(choices: Sequence[str | None]) -> KernelChoice:
    """Return the choice that most of some made; not known where there are none."""
    ((choice, count),) = Counter(choices).most_common(1) or [(None, 0)]
    return KernelChoice(choice=choice, count=count, total_count=len(choices))


def totals_of(
    records: Iterable[Record], choice: str | None
) -> list[tuple[KernelTotal, ...]]:
    """Return the kernels of each process that made a choice and saw them."""
    return [
        record.activity.totals
        for record in records
        if record.activity is not None and record.choice == choice
    ]


def named(choice: KernelChoice, known: Sequence[Sequence[KernelTotal]]) -> KernelChoice:
    """Return a choice with its kernels' names, as the last session has them; else none."""
    last = known[-1] if known else ()
    return replace(choice, names=tuple(dict.fromkeys(kernel.name for kernel in last)))


def _middle(sessions: Sequence[Sequence[KernelTotal]]) -> Sequence[KernelTotal]:
    """Return the session whose kernels took the median time; () where none knows them."""
    known = [kernels for kernels in sessions if kernels]
    if not known:
        return ()
    ordered = sorted(known, key=lambda some: math.fsum(k.total_s for k in some))
    return ordered[(len(ordered) - 1) // 2]


_Key = Callable[[KernelTotal], Hashable]  # None: the kernel has no such key


def _name(kernel: KernelTotal) -> Hashable:
    """Return the whole name."""
    return kernel.name


def _named_launch(kernel: KernelTotal) -> Hashable:
    """Return the name and the launch."""
    return None if kernel.launch is None else (kernel.name, kernel.launch)


def _family(kernel: KernelTotal) -> Hashable:
    """Return the family."""
    return family(kernel.name)


def _family_grid(kernel: KernelTotal) -> Hashable:
    """Return the family and the grid."""
    launch = kernel.launch
    return None if launch is None else (family(kernel.name), launch.grid)


def _extents(kernel: KernelTotal) -> Hashable:
    """Return grid, block and how often it ran."""
    launch = kernel.launch
    return None if launch is None else (launch.grid, launch.block, launch.count)


def _pairs(
    old: list[KernelTotal], new: list[KernelTotal], key: _Key, *, unique: bool = False
) -> Iterator[KernelMove]:
    """
    Yield kernels of equal key, and take them out of both lists.

    Args:
        old: What is left of the earlier session, most time first.

        new: What is left of the later one.

        key: By what they are told apart.

        unique: Whether a key that a session has twice says nothing, and times must be of
            one order.
    """
    partners: dict[Hashable, list[KernelTotal]] = {}
    for kernel in old:
        partners.setdefault(key(kernel), []).append(kernel)
    partners.pop(None, None)
    keys = [key(kernel) for kernel in new]
    for kernel, name in zip([*new], keys, strict=True):
        alike = partners.get(name)
        if not alike:
            continue
        alone = len(alike) == keys.count(name) == 1
        if unique and not (alone and _of_one_order(alike[0], kernel)):
            continue
        partner = alike.pop(0)
        _take(old, partner)
        _take(new, kernel)
        yield KernelMove(then=partner, now=kernel)


def _take(kernels: list[KernelTotal], kernel: KernelTotal) -> None:
    """Take this very kernel out of a list, which may hold equal ones."""
    del kernels[next(n for n, other in enumerate(kernels) if other is kernel)]


def _of_one_order(then: KernelTotal, now: KernelTotal) -> bool:
    """Return whether two kernels took times of one order."""
    short, long = sorted((then.total_s, now.total_s))
    return long < _SAME_ORDER * short
