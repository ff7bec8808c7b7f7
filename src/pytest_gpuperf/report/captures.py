"""The launches of a captured report, in every form."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pytest_gpuperf.judge.files import (
    SAME_CLOCK,
    TIME_TOLERANCE,
    TOLERANCE,
    CaptureSide,
    Difference,
    Direction,
    Mismatch,
)
from pytest_gpuperf.model.counters import (
    Analysis,
    Bound,
    CounterGap,
    Limiter,
    LimiterName,
)
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.launch import Capture, CapturedLaunch
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.report import display
from pytest_gpuperf.report.display import listed
from pytest_gpuperf.report.escape import code, escape, prose
from pytest_gpuperf.report.lines import (
    Column,
    Line,
    Style,
    column,
    line_width,
    markdown_table,
    text_bytes,
    text_table,
    wrapped,
)

_BLANK = "n/a"
_ROOFS = {"dram": "DRAM", "l2": "L2", "l1": "L1", "sm": "SM"}
# These two limit a kernel as well, although they are no pipes.
_PIPES = {"sm": "SM", "issue": "issue slots"}


def limiter_text(limiter: Limiter | CounterGap) -> str:
    """Return the display name of a limiter, or "" if unknown."""
    if isinstance(limiter, CounterGap):
        return ""
    if limiter.name is LimiterName.PIPE:
        pipe = limiter.detail or "sm"
        return _PIPES.get(pipe, f"{pipe} pipe")
    if limiter.name is LimiterName.LATENCY:
        return f"latency: {limiter.detail or 'stalls not collected'}"
    return roof_text(limiter.name.value)


def limiter_facts(analysis: Analysis) -> tuple[str, ...]:
    """Return the closest roof and the limiter of a launch, as fragments."""
    facts = []
    if analysis.bound is not None:
        side, closest = _bound(analysis.bound), _fraction(analysis.bound)
        facts.append(f"closest roof {closest} ({side})")
    if not isinstance(analysis.limiter, CounterGap):
        evidence = evidence_text(analysis.limiter)
        facts.append(f"limiter {limiter_text(analysis.limiter)} ({evidence})")
    return tuple(facts)


def _column(
    head: str,
    analyses: Sequence[Analysis | None],
    text: Callable[[Analysis], str],
    *,
    right: bool = False,
    blank: str = "",
    below: int = 0,
) -> Column:
    cells = tuple("" if analysis is None else text(analysis) for analysis in analyses)
    return Column(head=head, cells=cells, right=right, blank=blank, below=below)


def _bound(bound: Bound | None) -> str:
    return "" if bound is None else bound.side.value


def _fraction(bound: Bound | None) -> str:
    if bound is None:
        return ""
    return f"{display.value(bound.fraction, 'fraction')} {roof_text(bound.roof)}"


def evidence_text(limiter: Limiter | CounterGap) -> str:
    """Return the numbers behind a limiter, the deciding number first."""
    if isinstance(limiter, CounterGap):
        return ""
    return ", ".join(
        f"{roof_text(number.name)} {display.value(number.value, number.unit)}"
        for number in limiter.evidence
    )


def roof_text(name: str) -> str:
    """Return the display name of a roof or of an occupancy limit."""
    figure, by, limits = name.partition(_BY)
    if by:
        return f"{figure}{by}{limits_text(limits.split(_AND))}"
    return _ROOFS.get(name, name)


_BY, _AND = " by ", " and "
_LIMITS = {"threads": "warps", "shared": "shared memory"}  # Names used by ncu.


def limits_text(names: Iterable[str]) -> str:
    """Return the display names of the resources that limit the blocks of a multiprocessor."""
    return _AND.join(_LIMITS.get(name, name) for name in names)


# Counters shown by default, with their headings.
_FIRST = {
    "gpu__time_duration.sum": "time",
    "launch__grid_size": "grid",
    "launch__block_size": "block",
    "launch__registers_per_thread": "registers",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy",
    "sm__maximum_warps_per_active_cycle_pct": "theoretical occupancy",
    "dram__bytes.sum": "DRAM",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "DRAM throughput",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM throughput",
}
_UNIT_IN_HEAD = frozenset({"launch__registers_per_thread"})
# Characters of a kernel name in a table. With fewer, two kernels may look alike.
KERNEL_WIDTH = 40
# The whole name of a template fills a screen.
_NAME_WIDTH = 60

Analyses = Sequence[Sequence[Analysis | None]]
_Spelled = Callable[[str], str]


def capture_bytes(
    capture: Capture,
    form: str,
    *,
    metrics: Sequence[str] | None,
    analyses: Analyses | None = None,
    remarks: Sequence[str] = (),
    width: int | None = None,
) -> bytes:
    """
    Return a capture as printed output [UTF-8].

    Args:
        capture: The capture.

        form: text or markdown. JSON is printed in the form of the capture's reader.

        metrics: The requested metrics, or None for the most important metrics.

        analyses: The analysis of each launch of each range, or None if unknown.

        remarks: Sentences about the requested metrics.

        width: Characters of a line of text, or None for the width of the terminal, 100 without a
            terminal.
    """
    if form == "markdown":
        return capture_markdown(
            capture, metrics=metrics, analyses=analyses, remarks=remarks
        ).encode()
    lines = capture_lines(
        capture,
        metrics=metrics,
        analyses=analyses,
        remarks=remarks,
        width=line_width(width),
    )
    return text_bytes(lines)


def capture_lines(
    capture: Capture,
    *,
    metrics: Sequence[str] | None = None,
    analyses: Analyses | None = None,
    remarks: Sequence[str] = (),
    width: int = 100,
) -> Iterator[Line]:
    """
    Yield a capture as terminal text.

    Args:
        capture: The capture.

        metrics: The requested metrics, or None for the most important metrics.

        analyses: The analysis of each launch of each range, shown if no metric was requested. None
            if unknown.

        remarks: Sentences about the requested metrics.

        width: Characters of a line. Columns that do not fit in a row go below it.
    """
    shown = analyses if metrics is None and _is_telling(analyses) else None
    for number, heading, launches in captured_ranges(capture):
        if heading:
            yield Line(heading, Style.TITLE)
        part = None if shown is None else shown[number]
        columns = _columns(launches, metrics, part, str)
        head, *table = text_table(columns, width=width)
        yield Line(head, Style.FAINT)
        yield from map(Line, table)
    gaps = () if metrics is not None else _gap_texts(analyses)
    for text in (*gaps, *map(escape, remarks)):
        yield from wrapped(text, width=width)
    yield from wrapped(_count(capture, metrics), width=width)


def capture_markdown(
    capture: Capture,
    *,
    metrics: Sequence[str] | None = None,
    analyses: Analyses | None = None,
    remarks: Sequence[str] = (),
) -> str:
    """Return a capture as Markdown. The arguments are those of `capture_lines`."""
    shown = analyses if metrics is None and _is_telling(analyses) else None
    lines: list[str] = []
    for number, heading, launches in captured_ranges(capture):
        lines += [f"### {prose(heading)}", ""] if heading else []
        part = None if shown is None else shown[number]
        columns = _columns(launches, metrics, part, code)
        lines += [*markdown_table(columns), ""]
    gaps = () if metrics is not None else _gap_texts(analyses)
    for text in (*gaps, *map(prose, remarks)):
        lines += [text, ""]
    lines.append(_count(capture, metrics))
    return "\n".join(lines) + "\n"


def _is_telling(analyses: Analyses | None) -> bool:
    return any(
        analysis is not None
        and (analysis.bound is not None or isinstance(analysis.limiter, Limiter))
        for part in analyses or ()
        for analysis in part
    )


def _analysed(analyses: Sequence[Analysis | None]) -> tuple[Column, ...]:
    return (
        _column(
            "time",
            analyses,
            lambda a: "" if a.duration_s is None else display.value(a.duration_s, "s"),
            right=True,
            blank=_BLANK,
        ),
        _column("bound", analyses, lambda a: _bound(a.bound), below=1),
        _column(
            "fraction", analyses, lambda a: _fraction(a.bound), right=True, below=1
        ),
        column(
            "limiter",
            (
                "not measured" if a is None else limiter_text(a.limiter)
                for a in analyses
            ),
            blank=_BLANK,
        ),
        _column("evidence", analyses, lambda a: evidence_text(a.limiter), below=2),
    )


def _gap_texts(analyses: Analyses | None) -> tuple[str, ...]:
    limiters = (a.limiter for part in analyses or () for a in part if a is not None)
    texts: dict[str, None] = {}
    for gap in limiters:
        if isinstance(gap, CounterGap):
            text = f"limiter n/a: {gap.reason}"
            if gap.missing:
                text += f"; collect it: ncu --metrics {','.join(gap.missing)}"
            texts[text] = None
    return tuple(texts)


def captured_ranges(
    capture: Capture,
) -> Iterator[tuple[int, str, Sequence[CapturedLaunch]]]:
    """
    Yield the number, the heading and the launches of every range that is not empty.

    The heading is the GPU, preceded by the number of the range if there are several ranges.
    """
    for number, captured in enumerate(capture.ranges):
        # No launch of the range was chosen.
        if not captured.launches:
            continue
        devices = (launch.device for launch in captured.launches)
        device = escape(next(filter(None, devices), ""))
        place = f"range {number}" if len(capture.ranges) > 1 else ""
        yield number, ": ".join(filter(None, (place, device))), captured.launches


def _columns(
    launches: Sequence[CapturedLaunch],
    metrics: Sequence[str] | None,
    analyses: Sequence[Analysis | None] | None,
    spelled: _Spelled,
) -> tuple[Column, ...]:
    named = (
        column("launch", (str(launch.index) for launch in launches), right=True),
        Column(
            head="kernel",
            cells=kernel_names(launches, spelled),
            shrinks=True,
            cut=kernel_name,
            wanted=KERNEL_WIDTH,
        ),
    )
    if analyses is not None:
        return (*named, *_analysed(analyses))
    heads = dict(_FIRST) if metrics is None else {name: name for name in metrics}
    present = {name for launch in launches for name in launch.metrics}
    names = [name for name in heads if metrics is not None or name in present]
    notes = ("" if launch.measured else "not measured" for launch in launches)
    return (
        *named,
        column("note", notes),
        *(
            Column(
                head=escape(heads[name]),
                cells=tuple(_cell(launch, name) for launch in launches),
                blank="n/a",
                right=True,
                rank=place if metrics is None else 0,
                below=0 if metrics is None else 1,
            )
            for place, name in enumerate(names)
        ),
    )


def kernel_names(
    launches: Sequence[CapturedLaunch], spelled: _Spelled
) -> tuple[str, ...]:
    """
    Return the display names of the launched kernels.

    The name is given in full if templates share a base name.
    """
    full: dict[str, set[str]] = {}
    for launch in launches:
        full.setdefault(launch.kernel, set()).add(launch.demangled)
    names = [
        escape(launch.kernel if len(full[launch.kernel]) == 1 else launch.demangled)
        for launch in launches
    ]
    short = told_apart(names)
    return tuple(spelled(short[name]) for name in names)


def told_apart(names: Iterable[str]) -> Mapping[str, str]:
    """
    Return short names of demangled kernels that differ near the beginning.

    Instances of a template differ somewhere in the middle, which is otherwise cut out.
    """
    plain = {name: plain_name(name) for name in names}
    # Overloads differ only in their parameters.
    if len({*plain.values()}) < len(plain):
        plain = {name: name for name in plain}
    alike: dict[str, list[str]] = {}
    for text in plain.values():
        alike.setdefault(_beginning(text), []).append(text)
    short = {
        name: _from_its_own(text, siblings, max) if len(siblings) > 1 else _whole(name)
        for name, text in plain.items()
        for siblings in (alike[_beginning(text)],)
    }
    # The end of a name alone may be that of another instance.
    twins: dict[str, list[str]] = {}
    for name, shown in short.items():
        twins.setdefault(shown, []).append(plain[name])
    return {
        name: shown
        if len(twins[shown]) == 1
        else _from_its_own(plain[name], twins[shown], min)
        for name, shown in short.items()
    }


def short_names(names: Sequence[str]) -> list[str]:
    """Return short names in order. Parameters are left out unless overloads need them."""
    plain = [plain_name(name) for name in names]
    # Overloads differ only in their parameters.
    called = plain if len(set(plain)) == len(set(names)) else names
    short = told_apart(called)
    return [short[name] for name in called]


def _beginning(name: str) -> str:
    cut = kernel_name(name, KERNEL_WIDTH)
    return cut if cut == name else cut.partition(_DOTS)[0]


def _whole(name: str) -> str:
    return kernel_name(name, _NAME_WIDTH)


def _from_its_own(
    name: str, siblings: Sequence[str], choose: Callable[[Iterable[int]], int]
) -> str:
    """
    Return the head of a name, and the part from a difference to its siblings on.

    Args:
        name: The name.

        siblings: Names, among them `name`.

        choose: `max` for the first difference to all siblings, `min` to any.
    """
    others = [other for other in siblings if other != name]
    common = choose(len(os.path.commonprefix((name, o))) for o in others)  # noqa: RUF071 - characters are meant
    start = max(name.rfind(mark, 0, common) + 1 for mark in _MARKS)
    if start <= _HEAD_WIDTH:
        return _whole(name)
    text = f"{name[:_HEAD_WIDTH]}{_DOTS}{name[start:].lstrip()}"
    return text if len(text) <= _NAME_WIDTH else f"{text[: _NAME_WIDTH - 1]}{_DOTS}"


# A part of a name begins after one of these characters.
_MARKS = "<,:"
# Characters shown of the part that instances of a template share.
_HEAD_WIDTH = 15


# All namespaces but the innermost. A name begins with a word, so that a long one is read once.
_OUTER = re.compile(r"\b(?:\w+::)+(?=\w+::)")
_DOTS = "…"


def kernel_name(name: str, width: int) -> str:
    """
    Shorten a demangled kernel name to a width by leaving out the least important parts.

    Return type, parameters and outer namespaces go first, then the end of the template arguments
    except for the last few letters.

    Example:
        >>> kernel_name(
        ...     "void a::b::copy<c::d::Plan<float>>(c::d::Plan<float>::Arg)", 30
        ... )
        'b::copy<d::Plan<float>>'
    """
    if len(name) <= width:
        return name
    short = plain_name(name)
    if len(short) <= width:
        return short
    tail = width // 4
    return f"{short[: width - tail - 1]}{_DOTS}{short[-tail:]}"


def plain_name(name: str) -> str:
    """Return a demangled name without return type, parameters and outer namespaces."""
    plain = name.removeprefix("void ")
    depth = 0
    # The parameters at the end go, up to the matching bracket.
    for place in range(len(plain) - 1, 0, -1):
        if plain[-1] != ")":
            break
        depth += {")": 1, "(": -1}.get(plain[place], 0)
        if depth == 0:
            plain = plain[:place]
            break
    return _OUTER.sub("", plain)


def _cell(launch: CapturedLaunch, name: str) -> str:
    """Return a metric of the plugin as text, or a counter with number and unit unconverted."""
    entry = launch.metrics.get(name)
    if entry is None or entry.value is None:
        return ""
    if isinstance(entry.value, str):
        return escape(entry.value)
    if name in METRICS:
        return display.value(entry.value, entry.unit or "")
    unit = "" if name in _UNIT_IN_HEAD else entry.unit or ""
    return display.verbatim(entry.value, unit)


def _count(capture: Capture, metrics: Sequence[str] | None) -> str:
    text = display.plural(len(capture.launches), "launch", "launches")
    failed = sum(not launch.measured for launch in capture.launches)
    if failed:
        text += f", {failed} not measured"
    if metrics is not None:
        return text
    count = display.plural(len(capture.counters), "metric")
    return f"{text}, {count}: choose them with --metrics=a,b"


def mismatch_gap(
    mismatch: Mismatch, paths: Sequence[str], was: CaptureSide, now: CaptureSide
) -> Gap:
    """Return the reason for not comparing two captures, and the remedy."""
    if mismatch is Mismatch.DEVICE:
        gpus = (" ".join(c.device.values()) or "an unknown GPU" for c in (was, now))
        return Gap(
            code=GapCode.CONFIG,
            reason=f"{paths[0]} and {paths[1]} come from different GPUs: "
            + " and ".join(gpus),
            remedy="profile both on one kind of GPU",
        )
    clocks = (display.value(c.clock_hz or 0.0, "Hz") for c in (was, now))
    return Gap(
        code=GapCode.CONFIG,
        reason=f"their SM clocks differ: {' and '.join(clocks)}",
        remedy="profile both with the same ncu --clock-control, on a GPU at rest",
    )


def difference_columns(
    differences: Iterable[Difference], form: str
) -> tuple[Column, ...]:
    """Return the table of times and differing metrics, as text or markdown by its form."""
    rows = [d for d in differences if d.is_time or d.direction is not Direction.SAME]
    full = [escape(row.kernel) for row in rows]
    short = told_apart(full)
    kernels = tuple(_spelled(short[name], form) for name in full)
    was = tuple("" if r.was is None else display.value(r.was, r.unit) for r in rows)
    now = tuple("" if r.now is None else display.value(r.now, r.unit) for r in rows)
    directions = tuple(row.direction.value if row.direction else "" for row in rows)
    return (
        Column(
            head="kernel",
            cells=kernels,
            shrinks=True,
            cut=kernel_name,
            wanted=KERNEL_WIDTH,
            above=True,
        ),
        column(
            "metric",
            (
                f"{row.metric} per launch" if row.per_launch else row.metric
                for row in rows
            ),
        ),
        column("was", was, right=True, blank="-"),
        column("now", now, right=True, blank="-"),
        column("change", map(_change, rows), right=True),
        column("verdict", directions),
    )


def _spelled(kernel: str, form: str) -> str:
    return code(kernel) if form == "markdown" else kernel


def _change(difference: Difference) -> str:
    was, now = difference.was, difference.now
    if was is None or now is None or was == now:
        return ""
    if difference.unit == "fraction":
        return display.points(now - was)
    return display.change(now / was - 1) if was else ""


def launch_number(index: int, range_index: int | None) -> str:
    """Return "launch 1 of range 2", or "launch 1" if the report has a single range (None)."""
    return f"launch {index}" + (
        "" if range_index is None else f" of range {range_index}"
    )


def launch_failures(capture: Capture) -> list[str]:
    """Return a sentence per launch that was not measured."""
    has_ranges = len(capture.ranges) > 1
    return [
        f"{launch_number(launch.index, number if has_ranges else None)} "
        f"({launch.kernel}) was not measured: ncu failed"
        for number, launch in capture.placed
        if not launch.measured
    ]


def difference_remarks(
    differences: Iterable[Difference],
    clocks: Iterable[float | None],
    form: str,
    *,
    total: bool = False,
) -> Iterator[str]:
    """
    Yield the sentences printed below a comparison.

    Args:
        differences: The metrics of both captures.

        clocks: The SM clocks of both captures [Hz], or None if unknown.

        form: text or markdown, as for `difference_columns`.

        total: Whether totals of different numbers of launches were compared.
    """
    compared = list(differences)
    others = [d for d in compared if not d.is_time]
    same_count = sum(d.direction is Direction.SAME for d in others)
    same = display.plural(same_count, "metric")
    tolerance = display.whole_percent(TOLERANCE)
    yield f"the same: {same}, counts exactly and others within {tolerance}"
    sides = {d.kernel: d.sides for d in compared}
    old_names = {d.was_kernel: d.kernel for d in compared if d.was_kernel is not None}
    short = told_apart([*sides, *old_names])
    for old, new in old_names.items():
        was_name, now_name = (
            _spelled(kernel_name(short[name], KERNEL_WIDTH), form)
            for name in (old, new)
        )
        yield f"other names: {was_name} -> {now_name}, each the only kernel of its report"
    both = [
        (_spelled(kernel_name(short[name], KERNEL_WIDTH), form), was, now)
        for name, (was, now) in sides.items()
        if was is not None and now is not None
    ]
    counts = [
        f"{was.launches_count} and {now.launches_count} launches of {name}"
        for name, was, now in both
        if was.launches_count != now.launches_count
    ]
    if counts:
        yield f"{'in total' if total else 'per launch'}: {listed(counts)}"
    grids = [
        f"{name} {_extremes(was.grids)} -> {_extremes(now.grids)}"
        for name, was, now in both
        if was.grids and now.grids and was.grids != now.grids
    ]
    if grids:
        yield f"other grids, so that launches may do other work: {listed(grids)}"
    times = [d for d in compared if d.is_time and None not in (d.was, d.now)]
    what = "time in total" if counts and total else "time"
    yield from _time_remarks(what, [time.direction for time in times])
    if times:
        known_clocks = [display.value(hertz, "Hz") for hertz in clocks if hertz]
        at = f", at {' and '.join(known_clocks)}" if known_clocks else ""
        yield f"each launch ran alone under ncu{at}"


def _time_remarks(what: str, directions: Sequence[Direction | None]) -> Iterator[str]:
    count = Counter(directions)
    moved = [
        f"{display.plural(count[direction], 'kernel')} {direction.value} at the same clock"
        for direction in (Direction.SLOWER, Direction.FASTER)
        if count[direction]
    ]
    if moved:
        least = display.whole_percent(TIME_TOLERANCE)
        yield f"{what}: {', '.join(moved)}, by more than {least}"
    if count[None]:
        some = f" of {display.plural(count[None], 'kernel')}"
        which = "" if count[None] == len(directions) else some
        apart = display.whole_percent(SAME_CLOCK)
        yield (
            f"{what}{which} is not judged: SM clocks differ by more than {apart}, or are "
            "unknown"
        )


def _extremes(grids: Sequence[int]) -> str:
    first, last = grids[0], grids[-1]
    return f"{first}" if first == last else f"{first} … {last}"
