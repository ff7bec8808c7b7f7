"""Judgement of machine code: the kernels of two builds, and which of them got worse.

Nothing is measured, so nothing is uncertain: a kernel is worse if it needs more of
anything, or lost an instruction that others cannot replace at the same speed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)

from pytest_gpuperf.compute.kernels import family
from pytest_gpuperf.judge.files import FailOn
from pytest_gpuperf.model.inventory import CodeStep, Fate, KernelChange, ListedKernel

# Facts of which less is better, the most telling first.
_NEEDS = ("spills_bytes", "scalar_spills", "stack_bytes", "registers", "shared_bytes")
# Facts that cost nothing by themselves.
_NEUTRAL = ("scalar_registers", "code_bytes")
_WIDTHS = (1, 2, 4, 8, 16, 32)  # Bytes of an access, as in the names of classes.
_BITS_PER_BYTE = 8
# Of a family, whose digits are `#`. Some libraries have a version in a namespace.
_NAMESPACES = re.compile(r"(?:\(anonymous namespace\)::|[\w#]+::)+")
_FAILING = {
    FailOn.WORSE: frozenset({Fate.WORSE}),
    FailOn.ANY: frozenset(Fate) - {Fate.SAME},
    FailOn.NEVER: frozenset[Fate](),
}


def code_changes(
    was: Iterable[ListedKernel],
    now: Iterable[ListedKernel],
    *,
    unread_then: Collection[str] = (),
    unread_now: Collection[str] = (),
) -> list[KernelChange]:
    """
    Compare the kernels of two builds.

    Kernels are paired by name, target and code, then by name, target and number, then by
    code and target, then by name without tile sizes and digests, and at last also without
    namespaces, if only one kernel of each build has such a name.

    Args:
        was: The kernels of the first build.

        now: The kernels of the second build.

        unread_then: The numbers of the chips, as `sm_90`, of which code of the first build
            could not be read. A kernel of the second may have been there. If some of the
            chip's code was read, it is worse if it spills.

        unread_now: Those of the second build. A kernel of the first may still be there.

    Returns:
        A change for each kernel, in order of name and target.
    """
    left, right = [*was], [*now]
    wholly_unread = {*unread_then} - {_number(kernel) for kernel in left}
    # Numbers follow the order of the code, so that another kernel of the name shifts them.
    pairs = _paired(left, right, lambda k: (k.kernel, k.target, k.digest))
    pairs += _paired(left, right, lambda k: k.key)
    pairs += _paired(left, right, lambda k: (k.digest, k.target))
    pairs += _paired(left, right, lambda k: (family(k.kernel), k.target), alone=True)
    pairs += _paired(left, right, lambda k: (_own_name(k.kernel), k.target), alone=True)
    changes = [
        *(_change(before, after) for before, after in pairs),
        *(
            KernelChange(
                was=kernel, now=None, fate=_if_read(Fate.GONE, kernel, unread_now)
            )
            for kernel in left
        ),
        *(
            KernelChange(was=None, now=kernel, fate=Fate.UNREAD)
            if _number(kernel) in wholly_unread
            else _added(kernel, unread_then)
            for kernel in right
        ),
    ]
    return sorted(changes, key=lambda change: change.kernel.key)


def unknown_spills(changes: Iterable[KernelChange]) -> set[str]:
    """Return the digests of new kernels of which it is not known whether they spill."""
    return {
        change.now.digest
        for change in changes
        if change.now is not None
        and change.fate in {Fate.NEW, Fate.UNREAD}
        and change.now.spills_bytes is None
    }


def code_passes(changes: Iterable[KernelChange], fail_on: FailOn) -> bool:
    """Return True if no change has a fate that fails."""
    return not any(change.fate in _FAILING[fail_on] for change in changes)


def _paired(
    old: list[ListedKernel],
    new: list[ListedKernel],
    key: Callable[[ListedKernel], Hashable],
    *,
    alone: bool = False,
) -> list[tuple[ListedKernel, ListedKernel]]:
    partners: dict[Hashable, list[ListedKernel]] = defaultdict(list)
    counts: dict[Hashable, int] = defaultdict(int)
    for kernel in old:
        partners[key(kernel)].append(kernel)
    for kernel in new:
        counts[key(kernel)] += 1
    pairs = []
    for kernel in new:
        of_key = key(kernel)
        alike = partners.get(of_key)
        if alike and not (alone and (len(alike) > 1 or counts[of_key] > 1)):
            pairs.append((alike.pop(0), kernel))
    taken = {kernel.key for pair in pairs for kernel in pair[:1]}
    old[:] = [kernel for kernel in old if kernel.key not in taken]
    taken = {kernel.key for pair in pairs for kernel in pair[1:]}
    new[:] = [kernel for kernel in new if kernel.key not in taken]
    return pairs


def _change(was: ListedKernel, now: ListedKernel) -> KernelChange:
    steps = _steps(was, now)
    if any(step.is_worse for step in steps):
        fate = Fate.WORSE
    elif any(step.is_worse is False for step in steps):
        fate = Fate.BETTER
    elif was.digest != now.digest or steps:
        fate = Fate.MOVED
    else:
        fate = Fate.SAME if was.kernel == now.kernel else Fate.RENAMED
    return KernelChange(was=was, now=now, fate=fate, steps=tuple(steps))


def _if_read(fate: Fate, kernel: ListedKernel, unread: Collection[str]) -> Fate:
    """Return a fate, if the other build's code for the chip was read."""
    return Fate.UNREAD if _number(kernel) in unread else fate


def _number(kernel: ListedKernel) -> str:
    """Return the number of a chip: sm_90a is for sm_90."""
    return kernel.target.rstrip("af")


def _added(kernel: ListedKernel, unread: Collection[str]) -> KernelChange:
    """Return a new kernel, which is worse if it spills: a rename must hide no spill."""
    steps = tuple(
        CodeStep(fact=fact, was=0, now=spilled, is_worse=True)
        for fact in ("spills_bytes", "scalar_spills")
        for spilled in (getattr(kernel, fact) or 0,)
        if spilled
    )
    fate = Fate.WORSE if steps else _if_read(Fate.NEW, kernel, unread)
    return KernelChange(was=None, now=kernel, fate=fate, steps=steps)


def _own_name(name: str) -> str:
    return _NAMESPACES.sub("", family(name))


def _steps(was: ListedKernel, now: ListedKernel) -> list[CodeStep]:
    steps = []
    for fact in _NEEDS:
        before, after = getattr(was, fact), getattr(now, fact)
        if None not in {before, after} and before != after:
            steps.append(
                CodeStep(fact=fact, was=before, now=after, is_worse=after > before)
            )
    if was.stack_bytes is not None and now.stack_bytes is None:
        steps.append(
            CodeStep(
                fact="bound", was=was.stack_bytes, now=was.stack_bytes, is_worse=True
            )
        )
    before, after = was.occupancy, now.occupancy
    if before is not None and after is not None and before != after:
        steps.append(
            CodeStep(fact="occupancy", was=before, now=after, is_worse=after < before)
        )
    if was.classes is not None and now.classes is not None:
        steps += _instruction_steps(was.classes, now.classes)
    for fact in _NEUTRAL:
        before, after = getattr(was, fact), getattr(now, fact)
        if None not in {before, after} and before != after:
            steps.append(CodeStep(fact=fact, was=before, now=after, is_worse=None))
    rank = {True: 0, False: 1, None: 2}
    return sorted(steps, key=lambda step: rank[step.is_worse])


def _instruction_steps(
    was: Mapping[str, int], now: Mapping[str, int]
) -> Sequence[CodeStep]:
    steps = []
    for fact in ("tensor", "async_copy"):
        before, after = was.get(fact, 0), now.get(fact, 0)
        if (before > 0) != (after > 0):
            steps.append(
                CodeStep(fact=fact, was=before, now=after, is_worse=after == 0)
            )
    before, after = _fused(was), _fused(now)
    others = _unfused(was), _unfused(now)
    # One fused instruction becomes a multiplication and an addition.
    if after < before and others[1] >= others[0] + 2 * (before - after):
        steps.append(CodeStep(fact="fma", was=before, now=after, is_worse=True))
    if after > before and others[0] >= others[1] + 2 * (after - before):
        steps.append(CodeStep(fact="fma", was=before, now=after, is_worse=False))
    for fact, kind in (("loads", "global_load"), ("stores", "global_store")):
        step = _width_step(fact, kind, was, now)
        if step is not None:
            steps.append(step)
    return steps


def _fused(classes: Mapping[str, int]) -> int:
    # Two of an instruction for pairs: a compiler may form pairs and fuse less.
    return classes.get("fma", 0) + classes.get("fma_pair", 0)


def _unfused(classes: Mapping[str, int]) -> int:
    kinds = ("fp64", "fp32", "fp32_pair", "fp16")
    return sum(classes.get(name, 0) for name in kinds) - _fused(classes)


def _width_step(
    fact: str, kind: str, was: Mapping[str, int], now: Mapping[str, int]
) -> CodeStep | None:
    """
    Return the change of the width of accesses, or None if there is none.

    A width counts as replaced if it has vanished, or if as many bytes are moved as before.
    Else the code does more or less work, as an unrolled loop.
    """
    counts = [
        (n, was.get(f"{kind}_{n}", 0), now.get(f"{kind}_{n}", 0)) for n in _WIDTHS
    ]
    lost = max((n for n, before, after in counts if after < before), default=0)
    gained = max((n for n, before, after in counts if after > before), default=0)
    if not lost or not gained:
        return None
    of = {n: (before, after) for n, before, after in counts}
    vanished = of[lost][1] == 0 if lost > gained else of[gained][0] == 0
    moves_as_much = sum(n * (after - before) for n, before, after in counts) == 0
    if not (vanished or moves_as_much):
        return None
    return CodeStep(
        fact=fact,
        was=lost * _BITS_PER_BYTE,
        now=gained * _BITS_PER_BYTE,
        is_worse=gained < lost,
    )
