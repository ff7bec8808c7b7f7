"""Launches: all launches of a recording, a line each, and launches of a capture in detail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple

import msgspec

from pytest_gpuperf.compute.derive import value_of
from pytest_gpuperf.judge.files import is_held_clock
from pytest_gpuperf.model.activity import FailedKernel, KernelShape, Trace
from pytest_gpuperf.model.counters import (
    AdvisedLaunch,
    CounterGap,
    LaunchDetails,
    RuleResult,
    StallLine,
)
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.gap import Gap
from pytest_gpuperf.model.launch import DEFAULT_DOMAIN, CapturedLaunch
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.quantity import KiB
from pytest_gpuperf.model.record import Record, Role
from pytest_gpuperf.report import display
from pytest_gpuperf.report.captures import (
    evidence_text,
    kernel_name,
    launch_number,
    limiter_facts,
    limiter_text,
    limits_text,
    plain_name,
    roof_text,
)
from pytest_gpuperf.report.escape import code, escape, prose
from pytest_gpuperf.report.lines import (
    INDENT,
    SCHEMAS,
    Line,
    Style,
    line_width,
    shorten,
    text_bytes,
    wrapped,
)

_UNKNOWN = "n/a"
_HEADS = ("start us", "duration us", "gap us", "device", "stream", "grid", "block")
# Widths of these columns [characters], fixed because launches are printed while being read.
_WIDTHS = (14, 12, 12, 6, 6, 14, 10)
_BETWEEN = "  "
# Columns that a narrow line drops, the first one first.
_DROPPED = ("device", "stream", "block", "grid")
_NAME = "kernel"
# Characters of a kernel name next to the columns. With less room, the name goes above.
_LEAST_NAME = 30
# Width of a line without a terminal, so that names stay whole.
_WIDEST = 1_000_000


class _TraceRow(NamedTuple):
    """A launch. Unknown times are None."""

    shape: KernelShape
    start_ns: int | None  # Since the start of the window.
    duration_ns: int | None
    gap_ns: int | None
    device: int
    stream: int
    graph: int


def launch_blocks(
    traces: Iterable[tuple[Record, Trace]],
    form: str,
    *,
    demangle: Callable[[str], str | None] = lambda _: None,
    width: int | None = None,
) -> Iterator[bytes]:
    """
    Yield all launches as printed output [UTF-8], in blocks.

    Args:
        traces: Measurements with their traces.

        form: text, markdown, or json (one object, with a launch per line).

        demangle: Returns a readable name, or None if it does not know the name.

        width: Characters of a line of text, or None for the width of the terminal, unlimited
            without a terminal.
    """
    names = _Names(demangle)
    if form == "json":
        yield from _json(traces, names)
        return
    width = line_width(width, elsewhere=_WIDEST)
    for number, (record, trace) in enumerate(traces):
        if number:
            yield b"\n"
        lines = (
            _markdown(record, trace, names)
            if form == "markdown"
            else _text(record, trace, names, width)
        )
        yield from ("".join(block).encode() for block in lines)


class _Names(dict[str, str]):
    """Readable kernel names, by the names in the device code."""

    def __init__(self, demangle: Callable[[str], str | None]) -> None:
        super().__init__()
        self._demangle = demangle

    def __missing__(self, name: str) -> str:
        """Demangle a name once, because a kernel is launched many times."""
        self[name] = self._demangle(name) or name
        return self[name]


def _rows(trace: Trace) -> Iterator[list[_TraceRow]]:
    begun_ns = trace.begun_ns
    shapes = trace.launches.shapes
    ends: dict[tuple[int, int], int] = {}  # End of each stream's last launch [ns].
    for piece in trace.launches.pieces():
        rows = []
        for place, start, end, device, stream, graph in zip(
            *(piece.shape, piece.start_ns, piece.end_ns),
            *(piece.device, piece.stream, piece.graph),
            strict=True,
        ):
            lane = device, stream
            before = ends.get(lane, 0)
            ends[lane] = end
            rows.append(
                _TraceRow(
                    shapes[place],
                    start - begun_ns if start else None,
                    end - start if start and end else None,
                    start - before if start and before else None,
                    device,
                    stream,
                    graph,
                )
            )
        yield rows


def _json(traces: Iterable[tuple[Record, Trace]], names: _Names) -> Iterator[bytes]:
    encode = msgspec.json.encode
    yield b'{"schema":"%b","measurements":[' % SCHEMAS["show FILE --launches"].encode()
    for number, (record, trace) in enumerate(traces):
        head = encode(
            {
                "key": record.key,
                "role": record.role,
                "process_index": record.process_index,
                "begun_ns": trace.begun_ns,
                "ended_ns": trace.ended_ns,
                "launches_count": len(trace.launches),
            }
        )
        yield b'%b\n%b,"launches":[' % (b"," if number else b"", head[:-1])
        separator = b"\n"
        for rows in _rows(trace):
            yield separator + b",\n".join(encode(_plain(row, names)) for row in rows)
            separator = b",\n"
        yield b"]}"
    yield b"\n]}\n"


def _plain(row: _TraceRow, names: _Names) -> dict[str, object]:
    shape = row.shape
    return {
        "kernel": shape.name,
        "demangled": names[shape.name],
        "start_ns": row.start_ns,
        "duration_ns": row.duration_ns,
        "gap_ns": row.gap_ns,
        "device": row.device,
        "stream": row.stream,
        "graph": row.graph or None,
        "grid": shape.grid,
        "block": shape.block,
        "registers_count": shape.registers_count,
        "shared_bytes": shape.shared_bytes,
        "dynamic_shared_bytes": shape.dynamic_shared_bytes,
        "stack_bytes": shape.stack_bytes,
    }


def _text(
    record: Record, trace: Trace, names: _Names, width: int
) -> Iterator[Iterable[str]]:
    places = [*range(len(_HEADS))]
    # The characters of a kernel's name behind its columns, or 0 if it goes above them.
    room = width - sum(_WIDTHS) - len(_BETWEEN) * len(places)
    if room < _LEAST_NAME:
        room = 0
        for head in _DROPPED:
            taken = sum(_WIDTHS[p] for p in places) + len(_BETWEEN) * (len(places) - 1)
            if taken <= width:
                break
            places.remove(_HEADS.index(head))
    title = wrapped(escape(_title(record, trace)), width=width, is_name=True)
    yield (f"{line.text}\n" for line in title)
    yield (f"{_aligned(_HEADS, places)}{_BETWEEN + _NAME if room else ''}\n",)
    called: dict[str, str] = {}  # A kernel is launched many times.
    above = ""
    for rows in _rows(trace):
        lines = []
        for row in rows:
            kernel = row.shape.name
            if kernel not in called:
                called[kernel] = kernel_name(escape(names[kernel]), room or width)
            name, cells = called[kernel], _aligned(_cells(row), places)
            if room:
                lines.append(f"{cells}{_BETWEEN}{name}\n")
                continue
            lines += [f"{name}\n"] if name != above else []
            lines.append(f"{cells}\n")
            above = name
        yield lines


def _aligned(cells: Sequence[str], places: Sequence[int]) -> str:
    return _BETWEEN.join(cells[place].rjust(_WIDTHS[place]) for place in places)


def _markdown(record: Record, trace: Trace, names: _Names) -> Iterator[Iterable[str]]:
    yield (
        f"### {prose(_title(record, trace))}\n\n",
        f"| {' | '.join(_HEADS)} | {_NAME} |\n",
        f"|{' ---: |' * len(_HEADS)} --- |\n",
    )
    for rows in _rows(trace):
        yield [
            f"| {' | '.join(_cells(row))} | {code(names[row.shape.name])} |\n"
            for row in rows
        ]


def _title(record: Record, trace: Trace) -> str:
    count = display.plural(len(trace.launches), "launch", "launches")
    process = f"{record.role.value} process {record.process_index}"
    made_by = "" if record.role is Role.MAIN else f" ({process})"
    return f"{record.key}{made_by}: {count}"


def _cells(row: _TraceRow) -> tuple[str, ...]:
    return (
        _microseconds(row.start_ns),
        _microseconds(row.duration_ns),
        _microseconds(row.gap_ns),
        str(row.device),
        str(row.stream),
        "x".join(map(str, row.shape.grid)),
        "x".join(map(str, row.shape.block)),
    )


def _microseconds(time_ns: int | None) -> str:
    return _UNKNOWN if time_ns is None else f"{time_ns / 1000:.3f}"


# Characters. The name of a lambda of torch has a thousand.
_LONGEST_NAME = 200
_LONGEST_NVTX = 120  # Characters of the ranges of a launch.
_LABEL_WIDTH = 11  # Of the longest label.


class DetailedLaunch(Frozen, frozen=True, kw_only=True):
    """
    A launch of a report in detail.

    Attributes:
        launch: The launch.

        details: The values in the report.

        range_index: The number of the range, or None if the report has only one range.
    """

    launch: CapturedLaunch
    details: LaunchDetails
    range_index: int | None = None


class CapturedReport(Frozen, frozen=True, kw_only=True):
    """
    A report of Nsight Compute, as shown on a page.

    Attributes:
        record: The record of the report, with its kernels.

        launches: Launches in detail, the longest first. Only some launches if there are many.

        launches_count: Number of all launches, unmeasured launches included.

        failures: A sentence per launch that was not measured.
    """

    record: Record
    launches: tuple[DetailedLaunch, ...]
    launches_count: int
    failures: tuple[str, ...] = ()


def details_bytes(
    launches: Sequence[DetailedLaunch],
    form: str,
    *,
    remarks: Sequence[str] = (),
    width: int | None = None,
) -> bytes:
    """
    Return launches in detail as printed output [UTF-8].

    Args:
        launches: The launches, >= 1.

        form: text or markdown.

        remarks: Sentences printed below the launches.

        width: Characters of a line of text, or None for the width of the terminal.
    """
    if form == "markdown":
        lines = [*_details_markdown(launches)]
        lines += [f"\n{prose(remark)}" for remark in remarks]
        return ("\n".join(lines) + "\n").encode()
    return text_bytes(_details_text(launches, remarks, line_width(width)))


def _details_text(
    launches: Sequence[DetailedLaunch], remarks: Sequence[str], width: int
) -> Iterator[Line]:
    device = ""
    for detailed in launches:
        if detailed.launch.device != device:
            device = detailed.launch.device
            yield Line(escape(device), Style.TITLE)
        kernel = kernel_name(escape(plain_name(detailed.launch.name)), _LONGEST_NAME)
        name = f"{kernel} ({escape(launch_place(detailed))})"
        yield from wrapped(name, width=width, style=Style.TITLE, is_name=True)
        for label, text in launch_facts(detailed.details):
            padded = f"{label:{_LABEL_WIDTH}} "
            first, *rest = wrapped(text, width=width - len(INDENT) - len(padded))
            yield Line(f"{INDENT}{padded}{first}")
            for line in rest:
                yield Line(f"{INDENT}{' ' * len(padded)}{line.text.strip()}")
    for remark in remarks:
        yield from wrapped(escape(remark), width=width)


def _details_markdown(launches: Sequence[DetailedLaunch]) -> Iterator[str]:
    device = ""
    for detailed in launches:
        if detailed.launch.device != device:
            device = detailed.launch.device
            yield from (f"### {prose(device)}", "")
        place = prose(launch_place(detailed))
        yield from (f"{code(plain_name(detailed.launch.name))} ({place})", "")
        for label, text in launch_facts(detailed.details):
            yield f"- **{label}** {prose(text)}"
        yield ""


def launch_place(detailed: DetailedLaunch) -> str:
    """Return the text that distinguishes a launch from other launches of the same kernel."""
    place = launch_number(detailed.launch.index, detailed.range_index)
    names = [
        # As in the filter `--nvtx`.
        name if domain == DEFAULT_DOMAIN else f"{domain}@{name}"
        for domain, names in detailed.launch.nvtx.items()
        for name in names
    ]
    if not names:
        return place
    return f"{place}, in NVTX {shorten(', '.join(names), _LONGEST_NVTX)}"


def launch_facts(details: LaunchDetails) -> Iterator[tuple[str, str]]:
    """Yield the known facts of a launch, as label and text."""
    time_s, limiter = details.analysis.duration_s, details.analysis.limiter
    if isinstance(limiter, CounterGap):
        limited = f"n/a: {limiter.reason}"
    else:
        limited = f"{limiter_text(limiter)} ({evidence_text(limiter)})"
    waits = [
        f"{_place(s)} {display.value(s.samples_fraction, 'fraction')} ({s.reason})"
        for s in details.advice.stalls
    ]
    facts = (
        ("time", "" if time_s is None else display.value(time_s, "s")),
        ("clocks", _clocks(details)),
        ("launch", _launch(details)),
        ("occupancy", _occupancy(details)),
        ("throughput", _throughput(details)),
        ("memory", _memory(details)),
        *_rooflines(details),
        ("limiter", limited),
        ("stalls", _numbers((s.name, s.value) for s in details.stalls)),
        ("waiting at", escape(", ".join(waits))),
        *(
            ("ncu's rule", escape(_rule(rule)))
            for rule in details.advice.rules[:_MOST_RULES]
        ),
    )
    return ((label, text) for label, text in facts if text)


def _clocks(details: LaunchDetails) -> str:
    sm_hz, dram_hz = (
        details.values.get(name) for name in ("sm_clock_hz", "dram_clock_hz")
    )
    rated_hz = details.rated_clock_hz
    parts = [
        f"{name} {display.value(hertz, 'Hz')}"
        for name, hertz in (("SM", sm_hz), ("DRAM", dram_hz))
        if hertz
    ]
    if sm_hz is None or rated_hz is None:
        return ", ".join(parts)
    parts[0] += f" of {display.value(rated_hz, 'Hz')} rated"
    text = ", ".join(parts)
    if is_held_clock(sm_hz, rated_hz):
        time_s = details.analysis.duration_s
        is_short = time_s is not None and time_s < _SHORT_S
        text += _SHORT_CLOCK if is_short else _HELD_CLOCK
    return text


_HELD_CLOCK = (
    ": below its boost clock, as where ncu locks the base clock; outside ncu the time "
    "differs"
)
# ncu divides the cycles by a time that begins before the first cycle and ends after the
# last. On a V100, a launch of 13 us showed 612 MHz instead of 1290, and HBM2 416 MHz
# instead of 877.
_SHORT_S = 100e-6
_SHORT_CLOCK = ": cycles over time, which are less than the clock in so short a launch"


def _launch(details: LaunchDetails) -> str:
    if details.whole is not None:
        return f"a whole {details.whole}: ncu counted its kernels as one"
    derived = details.derived
    parts = [
        f"{name} {' x '.join(map(str, extent))}"
        for name, extent in (("grid", details.grid), ("block", details.block))
        if extent is not None
    ]
    if "registers" in derived:
        parts.append(f"{display.value(derived['registers'], 'count')} registers")
    if "shared_bytes" in derived:
        parts.append(f"{display.value(derived['shared_bytes'], 'bytes')} shared memory")
    if "waves" in derived:
        waves = display.value(derived["waves"], "count")
        parts.append(f"{waves} wave{'' if derived['waves'] == 1 else 's'}")
    return ", ".join(parts)


def _occupancy(details: LaunchDetails) -> str:
    derived, occupancy = details.derived, details.occupancy
    parts = [
        f"{word} {display.value(derived[name], 'fraction')}"
        for word, name in (
            ("achieved", "occupancy.achieved"),
            ("theoretical", "occupancy.theoretical"),
        )
        if name in derived
    ]
    text = ", ".join(parts)
    if occupancy is not None and occupancy.fraction < 1:
        blocks = display.plural(occupancy.active_blocks, "block")
        warps = display.plural(occupancy.warps, "warp")
        limits = limits_text(occupancy.limiters)
        text += f" by {limits}: {blocks}, {warps} on an SM"
        others = [
            f"{limits_text([name])} {most}"
            for name, most in occupancy.block_limits.items()
            if name not in occupancy.limiters
        ]
        text += f"; other limits: {', '.join(others)}" if others else ""
    return text


def _throughput(details: LaunchDetails) -> str:
    values, derived = details.values, details.derived
    return _numbers(
        (
            ("compute", values.get("sm_throughput_fraction")),
            ("memory", values.get("memory_throughput_fraction")),
            ("DRAM", derived.get("dram.fraction")),
            ("L2", values.get("l2_throughput_fraction")),
            ("L1", value_of("l1.fraction", values)),
            ("tensor", derived.get("tensor.fraction")),
        )
    )


def _memory(details: LaunchDetails) -> str:
    values, derived = details.values, details.derived
    moved, time_s = derived.get("dram.bytes"), details.analysis.duration_s
    parts = []
    if moved is not None:
        rate = f" at {display.value(moved / time_s, 'bytes/s')}" if time_s else ""
        parts.append(f"{display.value(moved, 'bytes')} of DRAM{rate}")
    shares = (
        ("L1 hits", values.get("l1_hit_fraction")),
        ("L2 hits", derived.get("l2.hit_fraction")),
        ("uncoalesced", derived.get("global.uncoalesced_fraction")),
        ("bank conflicts", derived.get("shared.bank_conflict_fraction")),
    )
    return ", ".join(filter(None, (*parts, _numbers(shares))))


def _rooflines(details: LaunchDetails) -> Iterator[tuple[str, str]]:
    gap = details.analysis.roofline_gap
    if gap is not None and details.rooflines:
        yield "roof", f"n/a: {gap.reason}"
        return
    for dtype, roofline in details.rooflines.items():
        rate = display.value(roofline.achieved_flop_per_s, "FLOP/s")
        roof = display.value(roofline.attainable_flop_per_s, "FLOP/s")
        share = display.value(roofline.fraction, "fraction")
        intensity, ridge = (
            f"{number:.3g}"
            for number in (
                roofline.intensity_flop_per_byte,
                roofline.ridge_flop_per_byte,
            )
        )
        text = f"{rate}, {share} of the {roof} at {intensity} FLOP/B of DRAM "
        yield f"{dtype} roof", f"{text}({roofline.bound} side; ridge at {ridge})"


def _numbers(pairs: Iterable[tuple[str, float | None]]) -> str:
    return ", ".join(
        f"{roof_text(name)} {display.value(share, 'fraction')}"
        for name, share in pairs
        if share is not None
    )


# A report has some twenty rules of ncu, and the first few are worth the rest.
_MOST_RULES = 3
# The failure itself takes lines, too.
_MOST_RULES_OF_FAILURES = 2
# Characters. The message of a rule may be a whole paragraph.
_LONGEST_RULE = 300


def advice_texts(advised: AdvisedLaunch | FailedKernel | Gap) -> Iterator[str]:
    """
    Yield the lines that explain a failed value.

    Args:
        advised: A launch of a report, a kernel of a binary, or a gap that says why the report was
            not read.
    """
    if isinstance(advised, Gap):
        yield f"the advice of the report cannot be read: {advised.text}"
    elif isinstance(advised, FailedKernel):
        text = display.value(advised.value, advised.unit)
        if advised.unit == "bytes":
            is_whole = advised.value and not advised.value % KiB
            kib = f" ({advised.value / KiB:g} KiB)" if is_whole else ""
            text = f"{advised.value:.0f} B{kib}"
        if advised.classes is not None:
            counts = ", ".join(
                f"{name} {count}" for name, count in advised.classes.items()
            )
            text += f"; it has {counts or 'none of any class'}"
        kernel = advised.kernel
        yield f"{kernel.demangled or kernel.name} ({kernel.target}): {advised.metric} {text}"
    else:
        name = f"{advised.kernel} (launch {advised.index})"
        facts = [
            f"{failed.name} {display.value(failed.value, failed.unit)}"
            if failed.name in METRICS
            else f"{failed.name} {failed.value:g} {failed.unit}"
            for failed in advised.failed
        ]
        facts += limiter_facts(advised.analysis)
        if facts:
            yield f"{name}: {'; '.join(facts)}"
        for stall in advised.advice.stalls[:1]:
            share = display.value(stall.samples_fraction, "fraction")
            waiting = f"{share} of the waiting was at {_place(stall)}"
            yield f"{name}: {waiting}, most for {stall.reason}"
        for rule in advised.advice.rules[:_MOST_RULES_OF_FAILURES]:
            yield f"{name}: {_rule(rule)}"


def _place(stall: StallLine) -> str:
    if stall.file is not None and stall.line is not None:
        return f"{PurePath(stall.file).name}:{stall.line}"
    return stall.sass or "an instruction that the report does not name"


def _rule(rule: RuleResult) -> str:
    message = " ".join(rule.text.split())
    if len(message) > _LONGEST_RULE:
        message = f"{message[:_LONGEST_RULE].rsplit(' ', 1)[0]} …"
    gain = ""
    if rule.speedup_fraction:
        share = display.value(rule.speedup_fraction, "fraction")
        scope = "" if rule.speedup_scope == "global" else " of one unit"
        gain = f" (ncu estimates {share}{scope} to gain)"
    title = f"{rule.title}: " if rule.title else ""
    return f"{title}{message}{gain}"
