"""The pairing of kernels between two sessions, and the time that each took more or less.

The order of kernels is unknown in both sessions, so kernels are distinguished by name, by
family and by launch.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from operator import attrgetter

from pytest_gpuperf.model.change import KernelAccount, KernelMove
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.kernel import KernelTotal
from pytest_gpuperf.model.record import Record
from pytest_gpuperf.model.verdict import KernelChoice

# Kernels whose times differ by a larger factor do not do the same work.
_SAME_ORDER = 4.0
# One type that releases of PyTorch spell as std::array or as at::detail::Array.
_ARRAY = re.compile(r"\bstd::array\b")
_ABI_TAG = re.compile(r"\[abi:\w+\]")
# Triton's suffix for the types and alignments of arguments, as in kernel_0d1d2de3c.
_TRITON_SIGNATURE = re.compile(r"_(?:\d+[cde]*)+(?<=[cde])$")
# A digest has eight or more hexadecimal digits, at least one of them a decimal digit.
_DIGEST = re.compile(r"(?<![A-Za-z])(?=[a-f]*\d)[0-9a-f]{8,}(?![A-Za-z])")
# A tile size, an ordinal, a generation or a template argument.
_NUMBER = re.compile(r"\d+")


def account(
    then: Sequence[Sequence[KernelTotal]], now: Sequence[Sequence[KernelTotal]]
) -> KernelAccount | None:
    """
    Find the kernels that took more or less time, or return None if unknown.

    Several sessions, or several processes, are represented by the session or process with the
    median total kernel time.

    Args:
        then: The kernels of each stored session, as far as known.

        now: The kernels of each process.

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
    Pair the kernels of two sessions.

    Kernels are paired by name and launch, then by name, by family and grid, by family, and by
    launch alone. A launch alone must be unique in each session, and the times must differ by
    less than a factor of 4. The rest has no partner, with one exception: if a single kernel of
    each session is left, with such times, one has replaced the other.

    Args:
        then: The kernels of the earlier session, most time first.

        now: The kernels of the later session.
    """
    old, new = [*then], [*now]
    moves: list[KernelMove] = []
    for key in (_named_launch, attrgetter("name"), _family_grid, _family):
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
    """Return the most frequent choice of kernels, or an unknown choice for an empty sequence."""
    ((choice, count),) = Counter(choices).most_common(1) or [(None, 0)]
    return KernelChoice(choice=choice, count=count, total_count=len(choices))


def totals_of(
    records: Iterable[Record], choice: str | None
) -> list[tuple[KernelTotal, ...]]:
    """Return the kernels of the processes with a given choice and a recorded activity."""
    return [
        record.activity.totals
        for record in records
        if record.activity is not None and record.choice == choice
    ]


def named(choice: KernelChoice, known: Sequence[Sequence[KernelTotal]]) -> KernelChoice:
    """Add the kernel names of the last known session to a choice, or none if unknown."""
    last = known[-1] if known else ()
    return replace(choice, names=tuple(dict.fromkeys(kernel.name for kernel in last)))


def _middle(sessions: Sequence[Sequence[KernelTotal]]) -> Sequence[KernelTotal]:
    """Return the session with the median total kernel time, or () if no kernels are known."""
    known = [kernels for kernels in sessions if kernels]
    if not known:
        return ()
    ordered = sorted(known, key=lambda some: math.fsum(k.total_s for k in some))
    return ordered[(len(ordered) - 1) // 2]


_Key = Callable[[KernelTotal], Hashable]  # Returns None for a kernel without the key.


def _named_launch(kernel: KernelTotal) -> Hashable:
    return None if kernel.launch is None else (kernel.name, kernel.launch)


def _family(kernel: KernelTotal) -> Hashable:
    return family(kernel.name)


def _family_grid(kernel: KernelTotal) -> Hashable:
    launch = kernel.launch
    return None if launch is None else (family(kernel.name), launch.grid)


def _extents(kernel: KernelTotal) -> Hashable:
    launch = kernel.launch
    return None if launch is None else (launch.grid, launch.block, launch.count)


def _pairs(
    old: list[KernelTotal], new: list[KernelTotal], key: _Key, *, unique: bool = False
) -> Iterator[KernelMove]:
    """
    Yield kernels of equal key, and remove the pairs from both lists.

    Args:
        old: The remaining kernels of the earlier session, most time first.

        new: The remaining kernels of the later session.

        key: Key by which kernels are paired.

        unique: Whether a key must be unique in each session, and the times must differ by less
            than a factor of 4.
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
    """Remove a kernel from a list by identity, as the list may hold equal kernels."""
    del kernels[next(n for n, other in enumerate(kernels) if other is kernel)]


def _of_one_order(then: KernelTotal, now: KernelTotal) -> bool:
    short, long = sorted((then.total_s, now.total_s))
    return long < _SAME_ORDER * short
