"""Kernels: a row per kernel of a capture or a binary, and the kernels behind a change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

from pytest_gpuperf.model.activity import (
    InstructionMix,
    KernelResources,
    Occupancy,
    chips_in_doubt,
)
from pytest_gpuperf.model.change import KernelAccount, KernelMove
from pytest_gpuperf.model.counters import Analysis
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.launch import Capture, CapturedLaunch
from pytest_gpuperf.model.verdict import KernelChoice, Verdict
from pytest_gpuperf.report import display
from pytest_gpuperf.report.captures import (
    KERNEL_WIDTH,
    Analyses,
    captured_ranges,
    kernel_name,
    kernel_names,
    limiter_text,
    limits_text,
    short_names,
)
from pytest_gpuperf.report.escape import code, escape, prose
from pytest_gpuperf.report.lines import (
    Column,
    Line,
    Style,
    column,
    line_width,
    markdown_table,
    shorten,
    text_bytes,
    text_table,
    wrapped,
)

_FOOTNOTE = (
    "time is as ncu measured it, each launch alone; --list shows single launches"
)


class KernelLaunches(Frozen, frozen=True, kw_only=True):
    """
    All launches of one kernel.

    Attributes:
        name: The escaped name of the kernel.

        launches_count: Number of launches, >= 1, failed launches included.

        times_s: Times of the launches that were timed [s].

        share_fraction: Share of the time of all kernels, or None if the kernel was not timed.

        limiter: The limiter of most of the time, or "" if unknown.

        longest: Number of the longest launch.
    """

    name: str
    launches_count: int
    times_s: tuple[float, ...]
    share_fraction: float | None
    limiter: str
    longest: int

    @property
    def total_s(self) -> float:
        """The time of all launches [s]."""
        return math.fsum(self.times_s)


SORTS: dict[str, Callable[[KernelLaunches], float | str]] = {
    "total": lambda row: -row.total_s,
    "count": lambda row: -row.launches_count,
    "median": lambda row: -median(row.times_s or (0.0,)),
    "longest": lambda row: -max(row.times_s, default=0.0),
    "name": lambda row: row.name,
}


def kernel_rows(
    launches: Sequence[CapturedLaunch],
    analyses: Sequence[Analysis | None],
    *,
    spelled: Callable[[str], str] = str,
    sort: str = "total",
) -> list[KernelLaunches]:
    """
    Return a row per kernel. Every template instance is a separate kernel.

    Args:
        launches: The launches of one range, >= 1.

        analyses: The analysis of each launch, or None for a launch that was not measured.

        spelled: Formats a name.

        sort: A key of SORTS.
    """
    by_name: dict[str, list[tuple[CapturedLaunch, Analysis | None]]] = {}
    for launch, analysis in zip(launches, analyses, strict=True):
        by_name.setdefault(launch.name, []).append((launch, analysis))
    firsts = [members[0][0] for members in by_name.values()]
    names = kernel_names(firsts, spelled)
    whole_s = math.fsum(_time_s(analysis) or 0.0 for analysis in analyses)
    rows = []
    for name, members in zip(names, by_name.values(), strict=True):
        times = [(_time_s(analysis), launch.index) for launch, analysis in members]
        timed = [(time_s, index) for time_s, index in times if time_s is not None]
        total_s = math.fsum(time_s for time_s, _ in timed)
        row = KernelLaunches(
            name=name,
            launches_count=len(members),
            times_s=tuple(time_s for time_s, _ in timed),
            share_fraction=total_s / whole_s if timed and whole_s > 0 else None,
            limiter=_main_limiter([analysis for _, analysis in members]),
            longest=max(timed)[1] if timed else members[0][0].index,
        )
        rows.append(row)
    return sorted(rows, key=SORTS[sort])


def kernels_bytes(
    capture: Capture,
    form: str,
    *,
    analyses: Analyses,
    sort: str = "total",
    top: int | None = None,
    width: int | None = None,
) -> bytes:
    """
    Return the kernels of a capture as printed output [UTF-8].

    Args:
        capture: The capture.

        form: text or markdown.

        analyses: The analysis of each launch of each range.

        sort: A key of SORTS.

        top: Rows of each range, or None for all rows.

        width: Characters of a line of text, or None for the width of the terminal.
    """
    is_markdown = form == "markdown"
    width = line_width(width)
    lines: list[str | Line] = []
    for number, heading, launches in captured_ranges(capture):
        spelled = code if is_markdown else str
        rows = kernel_rows(launches, analyses[number], spelled=spelled, sort=sort)
        columns = _columns(rows[:top])
        texts = []
        if rest := rows[top:] if top is not None else ():
            kernels = display.plural(len(rest), "more kernel")
            share = math.fsum(row.share_fraction or 0.0 for row in rest)
            shared = (
                f", {display.value(share, 'fraction')} of the time" if share else ""
            )
            texts.append(f"{kernels}{shared}")
        texts.append(_count(launches, rows))
        if is_markdown:
            lines += [f"### {prose(heading)}", ""] if heading else []
            lines += [*markdown_table(columns), ""]
            lines += [line for text in texts for line in (text, "")]
            continue
        lines += [Line(heading, Style.TITLE)] if heading else []
        head, *table = text_table(columns, width=width)
        lines += [Line(head, Style.FAINT), *map(Line, table)]
        for text in (*texts, _FOOTNOTE):
            lines += wrapped(text, width=width)
    return text_bytes(lines)


def _time_s(analysis: Analysis | None) -> float | None:
    return None if analysis is None else analysis.duration_s


def _main_limiter(analyses: Sequence[Analysis | None]) -> str:
    times: dict[str, float] = {}
    counts: dict[str, int] = {}
    for analysis in analyses:
        text = "" if analysis is None else limiter_text(analysis.limiter)
        times[text] = times.get(text, 0.0) + (_time_s(analysis) or 0.0)
        counts[text] = counts.get(text, 0) + 1
    main = max(times, key=lambda text: (times[text], counts[text]))
    if not main or len(counts) == 1:
        return main
    return f"{main} ({counts[main]} of {len(analyses)})"


def _columns(rows: Sequence[KernelLaunches]) -> tuple[Column, ...]:
    def of_rows(
        head: str, text: Callable[[KernelLaunches], str], *, rank: int = 0
    ) -> Column:
        cells = tuple(text(row) for row in rows)
        return column(head, cells, blank="n/a", right=True, rank=rank)

    return (
        Column(
            head="kernel",
            cells=tuple(row.name for row in rows),
            shrinks=True,
            cut=kernel_name,
            wanted=KERNEL_WIDTH,
        ),
        of_rows("launches", lambda row: str(row.launches_count)),
        of_rows("total", lambda row: _amount(row.times_s and row.total_s, "s")),
        of_rows("share", lambda row: _amount(row.share_fraction, "fraction")),
        of_rows(
            "median", lambda row: _amount(row.times_s and median(row.times_s), "s")
        ),
        of_rows(
            "min", lambda row: _amount(row.times_s and min(row.times_s), "s"), rank=3
        ),
        of_rows(
            "max", lambda row: _amount(row.times_s and max(row.times_s), "s"), rank=2
        ),
        of_rows("longest launch", lambda row: str(row.longest), rank=1),
        Column(
            head="limiter",
            cells=tuple(row.limiter for row in rows),
            blank="n/a",
            below=1,
        ),
    )


def _amount(number: float | tuple[float, ...] | None, unit: str) -> str:
    """Return a number as text, or "" for None and for the times of no launch."""
    return display.value(number, unit) if isinstance(number, float) else ""


def _count(launches: Sequence[CapturedLaunch], rows: Sequence[KernelLaunches]) -> str:
    text = (
        f"{display.plural(len(launches), 'launch', 'launches')} of "
        f"{display.plural(len(rows), 'kernel')}"
    )
    total_s = math.fsum(row.total_s for row in rows)
    if total_s:
        text += f", {display.value(total_s, 's')} together"
    failed = sum(not launch.measured for launch in launches)
    return f"{text}, {failed} not measured" if failed else text


# Kernels behind a change.

NAME_WIDTH = 60  # Characters of a kernel name in a list.
# Names shown of the kernels that only one side ran. The rest is counted.
_SHOWN_NAMES = 3
# Kernels shown to explain a change. The rest is counted.
_SHOWN_MOVES = 4
# Share of the largest difference. A kernel with a smaller difference explains nothing.
_TOLD_SHARE = 0.1
# Share of a change of time outside the kernels. Less is the noise of two runs.
_REST_SHARE = 0.2
# Characters of a hash that suffice to distinguish two choices of kernels.
_HASH = 8


def choice_text(most: KernelChoice, others: KernelChoice) -> str:
    """Return the kernels missing in the other choice, with the number of sessions or processes."""
    counted = f"in {most.count} of {most.total_count}"
    if most.choice is None:
        return f"unknown kernels {counted}"
    choice = f"kernels {most.choice[:_HASH]}"
    if not (most.names and others.names):
        return f"{choice} {counted}"
    own = [name for name in most.names if name not in others.names]
    shared = len(most.names) - len(own)
    # Fewer of the same kernels, or the same kernels with another grid, block or count.
    if not own:
        same = "the same names" if shared == len(others.names) else "no other name"
        return f"{choice} ({same}) {counted}"
    texts = [shorten(name, NAME_WIDTH) for name in own[:_SHOWN_NAMES]]
    if len(own) > _SHOWN_NAMES:
        texts.append(f"{len(own) - _SHOWN_NAMES} more")
    both = f", and {display.plural(shared, 'kernel')} of both" if shared else ""
    return f"{', '.join(texts)}{both}, {counted}"


def account_lines(account: KernelAccount, verdict: Verdict) -> Iterator[str]:
    """Yield the contribution of kernels to a change: the total first, then the worst kernels."""
    listed_moves = [move for move in account.moves if _is_listed(move, account)]
    between = _between_kernels(account, verdict)
    if not (listed_moves or between):
        return
    now, then = display.pair(account.now_s, account.then_s, "s")
    change = display.signed(account.difference_s, "s")
    together = f"{now}, was {then} ({change})" if change else f"{now}, as before"
    yield f"kernels together: {together}{between}"
    yield from map(_moved_kernel, listed_moves[:_SHOWN_MOVES])
    if len(listed_moves) > _SHOWN_MOVES:
        yield f"{len(listed_moves) - _SHOWN_MOVES} more kernels differ"


def _is_listed(move: KernelMove, account: KernelAccount) -> bool:
    if move.then is None or move.now is None or move.then.name != move.now.name:
        return True
    largest_s = max(abs(account.moves[0].difference_s), abs(account.difference_s))
    explains = abs(move.difference_s) >= _TOLD_SHARE * largest_s > 0
    return explains or bool(launch_change(move))


def _between_kernels(account: KernelAccount, verdict: Verdict) -> str:
    """Return the change of time between kernels as text, or "" if small or unknown."""
    change = verdict.change
    if change is None or verdict.metric != "time":
        return ""
    # The kernels belong to a loop, or ran side by side.
    if account.then_s > change.reference:
        return ""
    whole_s = change.measured - change.reference
    rest_s = whole_s - account.difference_s
    if abs(rest_s) < _REST_SHARE * abs(whole_s):
        return ""
    return f"; between kernels {display.signed(rest_s, 's')}"


def _moved_kernel(move: KernelMove) -> str:
    difference = display.signed(move.difference_s, "s")
    if move.then is None or move.now is None:
        word, kernel = ("gone", move.then) if move.now is None else ("new", move.now)
        name = "" if kernel is None else shorten(kernel.name, NAME_WIDTH)
        return f"kernel {word}: {name}, {difference}"
    name = shorten(move.now.name, NAME_WIDTH)
    word = "slower" if move.difference_s > 0 else "faster"
    if move.then.name != move.now.name:
        word, name = "replaced", f"{shorten(move.then.name, NAME_WIDTH)} -> {name}"
    now, then = display.pair(move.now.total_s, move.then.total_s, "s")
    times = f"{now}, was {then} ({difference})" if difference else f"{now}, as before"
    launched = launch_change(move)
    if not difference and word != "replaced":
        word = "changed"
    return "; ".join(filter(None, (f"kernel {word}: {name}, {times}", launched)))


def launch_change(move: KernelMove) -> str:
    """Return the changed launch parameters of a kernel as text, or "" if unchanged or unknown."""
    then = None if move.then is None else move.then.launch
    now = None if move.now is None else move.now.launch
    if then is None or now is None:
        return ""
    pairs = {
        "launches": (str(then.count), str(now.count)),
        "registers": (str(then.registers_count), str(now.registers_count)),
        "shared": tuple(display.value(n.shared_bytes, "bytes") for n in (then, now)),
        "stack": tuple(display.value(n.stack_bytes, "bytes") for n in (then, now)),
        "grid": tuple(display.extent(n.grid) for n in (then, now)),
        "block": tuple(display.extent(n.block) for n in (then, now)),
    }
    return ", ".join(
        f"{name} {was} -> {is_now}"
        for name, (was, is_now) in pairs.items()
        if was != is_now
    )


# Kernels of a binary.

_KIB = 1024
# Instruction classes shown in a row, the most frequent first.
_MOST_CLASSES = 2
_ALL = "compiled"  # The class of every instruction.


class CompiledKernel(Frozen, frozen=True, kw_only=True):
    """A kernel compiled for one chip. None is unknown."""

    kernel: KernelResources
    mix: InstructionMix
    occupancy: Occupancy | None

    @property
    def name(self) -> str:
        """The readable name."""
        return self.kernel.demangled or self.kernel.name


def compiled_columns(rows: Sequence[CompiledKernel], form: str) -> tuple[Column, ...]:
    """
    Return the table of some kernels, without columns that have no value.

    Why the code of a whole chip is unknown is not repeated in each row; see `doubt_lines`.
    """
    remarked = _doubts(rows)

    def of_rows(
        head: str, text: Callable[[CompiledKernel], str], *, right: bool = True
    ) -> Column:
        return column(head, map(text, rows), right=right, blank="n/a")

    spelled = code if form == "markdown" else str
    names = tuple(map(spelled, short_names([escape(row.name) for row in rows])))
    columns = (
        # Instances of a template look alike with fewer characters.
        Column(head="kernel", cells=names, shrinks=True, least=KERNEL_WIDTH),
        of_rows("chip", lambda row: row.kernel.target, right=False),
        of_rows("registers", lambda row: str(row.kernel.registers_count)),
        of_rows(
            "accumulation",
            lambda row: _registers(row.kernel.accumulation_registers_count),
        ),
        of_rows("scalar", lambda row: _registers(row.kernel.scalar_registers_count)),
        of_rows("stack", lambda row: _bytes(row.kernel.stack_bytes)),
        of_rows("spills", lambda row: _bytes(row.mix.spills_bytes)),
        of_rows(
            "scalar spills", lambda row: _registers(row.kernel.scalar_spills_count)
        ),
        of_rows("shared", lambda row: _kib(row.kernel.shared_bytes)),
        of_rows("occupancy", _occupancy_text, right=False),
        of_rows("code", lambda row: str(row.mix.classes().get(_ALL, ""))),
        of_rows(
            "most of it",
            lambda row: "" if row.mix.doubt in remarked else _classes_text(row),
            right=False,
        ),
    )
    return tuple(one for one in columns if any(one.cells))


def doubt_lines(rows: Sequence[CompiledKernel]) -> list[str]:
    """Return why the instructions of whole chips are unknown, a sentence for each reason."""
    remedies = {row.mix.doubt: row.mix.remedy for row in rows}
    return [
        f"instructions n/a for {', '.join(chips)}: "
        + "; ".join(filter(None, (doubt, remedies[doubt])))
        for doubt, chips in _doubts(rows).items()
    ]


def unknown_occupancy(chips: Iterable[tuple[str, float | None]]) -> str | None:
    """
    Return a sentence about the chips whose limits are unknown, or None if there are none.

    Args:
        chips: The chip and the occupancy of each kernel.
    """
    known: dict[str, bool] = {}
    for target, fraction in chips:
        known[target] = known.get(target, False) or fraction is not None
    unknown = ", ".join(
        sorted(target for target, is_known in known.items() if not is_known)
    )
    return (
        f"occupancy n/a for {unknown}: its limits are not known here"
        if unknown
        else None
    )


def _doubts(rows: Sequence[CompiledKernel]) -> dict[str, tuple[str, ...]]:
    return chips_in_doubt((row.kernel.target, row.mix) for row in rows)


def _registers(number: int | None) -> str:
    return str(number or "")


def _bytes(number: int | None) -> str:
    return "" if number is None else f"{number} B"


def _kib(number: int) -> str:
    return f"{number // _KIB} KiB" if number and not number % _KIB else f"{number} B"


def _occupancy_text(row: CompiledKernel) -> str:
    if row.occupancy is None:
        return ""
    share = display.value(row.occupancy.fraction, "fraction")
    if row.occupancy.fraction == 1:
        return share
    return f"{share} by {limits_text(row.occupancy.limiters)}"


def _classes_text(row: CompiledKernel) -> str:
    if row.mix.doubt is not None:
        return f"n/a: {row.mix.doubt}"
    classes = [
        f"{name} {count}"
        for name, count in row.mix.classes().items()
        # Widths of accesses are left out, because their class has them already.
        if name != _ALL and not name.rpartition("_")[2].isdecimal()
    ]
    return ", ".join(classes[:_MOST_CLASSES])


def compiled_facts(row: CompiledKernel) -> dict[str, object]:
    """Return a kernel as JSON."""
    kernel, occupancy = row.kernel, row.occupancy
    return {
        "kernel": kernel.name,
        "demangled": kernel.demangled,
        "target": kernel.target,
        "registers_count": kernel.registers_count,
        "scalar_registers_count": kernel.scalar_registers_count,
        "accumulation_registers_count": kernel.accumulation_registers_count,
        "scalar_spills_count": kernel.scalar_spills_count,
        "stack_bytes": kernel.stack_bytes,
        "spills_bytes": row.mix.spills_bytes,
        "shared_bytes": kernel.shared_bytes,
        "constant_bytes": kernel.constant_bytes,
        "occupancy_fraction": None if occupancy is None else occupancy.fraction,
        "occupancy_limiter": None if occupancy is None else occupancy.limiter,
        "instructions": row.mix.counts,
    }
