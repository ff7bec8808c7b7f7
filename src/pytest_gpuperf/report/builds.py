"""The comparison of two builds of kernels, and the summary of an inventory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from pytest_gpuperf.model.inventory import CodeStep, Fate, KernelChange, ListedKernel
from pytest_gpuperf.report import display
from pytest_gpuperf.report.captures import kernel_name, plain_name, short_names
from pytest_gpuperf.report.escape import code, escape
from pytest_gpuperf.report.lines import Column, column

_NAME_WIDTH = 60  # Of a kernel's former name, and of one in a sentence.
_MOST_SPILLING = 10  # Kernels that spill and are named below an inventory.

# The order of the rows.
_ROWS = (
    Fate.WORSE,
    Fate.BETTER,
    Fate.MOVED,
    Fate.RENAMED,
    Fate.GONE,
    Fate.NEW,
    Fate.UNREAD,
)
_OF_ONE_BUILD = (Fate.GONE, Fate.NEW, Fate.UNREAD)
_CHIPS = {
    Fate.GONE: "chips that are gone, with all kernels",
    Fate.NEW: "new chips, with all kernels",
    Fate.UNREAD: "chips that are not read, with all kernels",
}
_NAMES = {
    "spills_bytes": ("spills", "bytes"),
    "scalar_spills": ("scalar spills", "count"),
    "stack_bytes": ("stack", "bytes"),
    "registers": ("registers", "count"),
    "scalar_registers": ("scalar registers", "count"),
    "shared_bytes": ("shared memory", "bytes"),
    "occupancy": ("occupancy", "fraction"),
    "code_bytes": ("code", "bytes"),
}
# Shown of a kernel that only one build has.
_STATED = ("registers", "stack_bytes", "shared_bytes", "code_bytes")
WORSE, NEW_AND_WORSE = "WORSE", "WORSE, new"
_SPILLS = {"spills_bytes": "spill", "scalar_spills": "scalar spill"}
# Worse, better.
_INSTRUCTIONS = {
    "tensor": ("tensor instruction gone", "tensor instruction added"),
    "async_copy": ("asynchronous copies gone", "asynchronous copies added"),
    "fma": ("FMA contraction lost", "FMA contraction added"),
}


def step_text(step: CodeStep) -> str:
    """
    Return a difference between two builds in words.

    Example:
        >>> step_text(CodeStep(fact="loads", was=128, now=32, is_worse=True))
        '128-bit loads became 32-bit'
        >>> step_text(CodeStep(fact="spills_bytes", was=0, now=8, is_worse=True))
        'spill added: 8 B'
    """
    if step.fact in {"loads", "stores"}:
        return f"{step.was:.0f}-bit {step.fact} became {step.now:.0f}-bit"
    if step.fact in _INSTRUCTIONS:
        words = _INSTRUCTIONS[step.fact][0 if step.is_worse else 1]
        return f"{words} ({step.was:.0f} -> {step.now:.0f})"
    if step.fact == "bound":
        return "stack has no bound any more"
    name, unit = _NAMES[step.fact]
    was, now = (_value(number, unit) for number in (step.was, step.now))
    if step.fact in _SPILLS and not (step.was and step.now):
        spill = _SPILLS[step.fact]
        return f"{spill} gone: {was}" if step.was else f"{spill} added: {now}"
    return f"{name} {was} -> {now}"


def _value(number: float, unit: str) -> str:
    if unit == "fraction":
        return display.value(number, unit)
    return f"{number:.0f} B" if unit == "bytes" else f"{number:.0f}"


def change_columns(
    changes: Iterable[KernelChange], form: str, *, top: int | None
) -> tuple[tuple[Column, ...], int]:
    """
    Return the table of the kernels that changed, the worse first.

    Chips that only one build has are left out; see `change_notes`.

    Args:
        changes: All kernels.

        form: text or markdown.

        top: The maximum number of rows, or None for all.

    Returns:
        The columns, and the number of rows left out.
    """
    changes = [*changes]
    whole = {chip for chips in _whole_chips(changes).values() for chip in chips}
    every = [
        change
        for change in changes
        if change.fate is not Fate.SAME
        and not (change.fate in _OF_ONE_BUILD and change.kernel.target in whole)
    ]
    every.sort(key=lambda change: _ROWS.index(change.fate))
    rows = every[:top]
    spelled = code if form == "markdown" else str
    full = [escape(_name(change)) for change in rows]
    names = tuple(map(spelled, short_names(full)))
    columns = (
        column("kernel", names),
        column("chip", (escape(c.kernel.target) for c in rows)),
        column("result", (_result(c) for c in rows)),
        Column(head="why", cells=tuple(_why_or_needs(c) for c in rows), below=1),
    )
    return columns, len(every) - len(rows)


def change_notes(changes: Sequence[KernelChange]) -> list[str]:
    """Return sentences about chips that only one build has, and about kernels that moved."""
    notes = [
        f"{_CHIPS[fate]}: " + ", ".join(f"{c} ({n})" for c, n in chips.items())
        for fate, chips in _whole_chips(changes).items()
        if chips
    ]
    new = {c.kernel.target for c in changes if c.was is None}
    if any(c.fate is Fate.GONE and c.kernel.target in new for c in changes):
        notes.append(
            "a kernel with another name and other code is gone and new, and not compared: "
            "--fail-on=any fails for it"
        )
    if any(change.fate is Fate.MOVED and not change.steps for change in changes):
        notes.append(
            "moved without a reason: other code of the same size, or other data"
        )
    return notes


def _whole_chips(changes: Iterable[KernelChange]) -> dict[Fate, dict[str, int]]:
    fates: dict[str, Counter[Fate]] = {}
    for change in changes:
        is_added = change.was is None and change.fate is Fate.WORSE
        fate = Fate.NEW if is_added else change.fate
        fates.setdefault(change.kernel.target, Counter())[fate] += 1
    return {
        fate: {
            chip: counts[fate]
            for chip, counts in sorted(fates.items())
            if set(counts) == {fate}
        }
        for fate in _OF_ONE_BUILD
    }


def _name(change: KernelChange) -> str:
    kernel = change.kernel
    return f"{kernel.kernel} #{kernel.number}" if kernel.number > 1 else kernel.kernel


def _result(change: KernelChange) -> str:
    if change.fate is Fate.WORSE:
        return WORSE if change.was is not None else NEW_AND_WORSE
    text: str = change.fate.value
    return text


def _why(change: KernelChange) -> str:
    reasons = [step_text(step) for step in change.steps]
    was, now = change.was, change.now
    if was is not None and now is not None and was.kernel != now.kernel:
        name, other = (plain_name(escape(k.kernel)) for k in (was, now))
        if name == other:  # Overloads differ only in their parameters.
            name = escape(was.kernel)
        reasons.append(f"was {kernel_name(name, _NAME_WIDTH)}")
    return ", ".join(reasons)


def _why_or_needs(change: KernelChange) -> str:
    reasons = [_why(change)]
    if change.was is None or change.now is None:
        stated = ((_NAMES[f], getattr(change.kernel, f)) for f in _STATED)
        reasons += [f"{name} {_value(n, unit)}" for (name, unit), n in stated if n]
    return ", ".join(filter(None, reasons))


def change_summary(changes: Sequence[KernelChange]) -> str:
    """Return the number of kernels of each result."""
    counts = Counter(change.fate for change in changes)
    order = (*_ROWS, Fate.SAME)
    return ", ".join(f"{counts[fate]} {fate.value}" for fate in order if counts[fate])


def change_sentences(
    changes: Iterable[KernelChange], *, worse: bool
) -> tuple[str, ...]:
    """
    Return a sentence for each kernel that differs.

    Args:
        changes: All kernels.

        worse: Whether the kernels that are worse are meant, or the others.
    """
    return tuple(
        escape(f"{_name(change)} for {change.kernel.target}: ")
        + (_why(change) or change.fate.value)
        for change in changes
        if change.fate is not Fate.SAME and (change.fate is Fate.WORSE) is worse
    )


def change_facts(change: KernelChange) -> dict[str, object]:
    """Return a change as JSON."""
    return {
        "kernel": change.kernel.kernel,
        "target": change.kernel.target,
        "result": change.fate.value,
        "reasons": [step_text(step) for step in change.steps],
        "was": msgspec.to_builtins(change.was),
        "now": msgspec.to_builtins(change.now),
    }


def inventory_columns(kernels: Sequence[ListedKernel]) -> tuple[Column, ...]:
    """Return the summary of some kernels: a row for each chip."""
    targets = sorted({kernel.target for kernel in kernels})
    groups = [[k for k in kernels if k.target == target] for target in targets]

    def counts(head: str, numbers: Iterable[int]) -> Column:
        return column(head, map(str, numbers), right=True)

    return (
        column("chip", map(escape, targets)),
        counts("kernels", map(len, groups)),
        counts("code [B]", (sum(k.code_bytes for k in g) for g in groups)),
        counts("most registers", (max(k.registers for k in g) for g in groups)),
        counts("with stack", (sum(k.stack_bytes != 0 for k in g) for g in groups)),
        column("with spills", map(_spilling, groups), right=True),
        counts("most shared [B]", (max(k.shared_bytes for k in g) for g in groups)),
    )


def _spilling(kernels: Sequence[ListedKernel]) -> str:
    spilling = sum(bool(k.spills_bytes or k.scalar_spills) for k in kernels)
    unknown = sum(k.spills_bytes is None for k in kernels)
    parts = [str(spilling)] if spilling or not unknown else []
    return ", ".join([*parts, *([f"{unknown} n/a"] if unknown else [])])


def spill_lines(kernels: Sequence[ListedKernel]) -> list[str]:
    """Return a sentence for each kernel that spills, the largest spill first."""
    spilling = [k for k in kernels if k.spills_bytes or k.scalar_spills]
    spilling.sort(key=lambda k: (-(k.spills_bytes or 0), -(k.scalar_spills or 0)))
    lines = []
    for k in spilling[:_MOST_SPILLING]:
        spills = [f"{k.spills_bytes} B"] if k.spills_bytes else []
        if k.scalar_spills:
            spills.append(display.plural(k.scalar_spills, "scalar register"))
        name = kernel_name(escape(k.kernel), _NAME_WIDTH)
        lines.append(f"{name} for {k.target} spills {' and '.join(spills)}")
    more = len(spilling) - len(lines)
    if more:
        lines.append(
            f"{display.plural(more, 'more kernel')} with spills; --format=json has all"
        )
    if any(k.spills_bytes is None for k in kernels):
        lines.append(
            "spills n/a: of NVIDIA's kernels with stack, because they are instructions; "
            "gpuperf show counts them"
        )
    return lines
