"""A run in the formats of other programs."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from posixpath import normpath
from typing import NamedTuple

import msgspec

from pytest_gpuperf.judge.tally import speaking
from pytest_gpuperf.model.activity import Trace
from pytest_gpuperf.model.metric import METRICS, Better, metric_of
from pytest_gpuperf.model.record import Kind, Record, RecordKey, Role
from pytest_gpuperf.model.run import Run, TestPlace
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.model.verdict import Cause, Reason, Verdict
from pytest_gpuperf.report import display, sentences
from pytest_gpuperf.report.escape import csv_cell, escape
from pytest_gpuperf.report.explanation import first_line, from_root
from pytest_gpuperf.report.lines import json_bytes
from pytest_gpuperf.report.rows import (
    Row,
    judged_value,
    rows,
    short_names,
)

# Bencher accepts names up to this size [bytes of UTF-8].
_LONGEST_BENCHMARK = 1024
_LONGEST_MEASURE = 64
_DIGEST_BYTES = 4  # Of the suffix that keeps shortened names distinct.
# Significant digits of OpenMetrics values. GitLab compares the texts.
_DIGITS = 3
_BROKEN = "the test itself failed: see the output of pytest"
# GitHub shows at most 10 errors of a step.
_MOST_ANNOTATIONS = 10

# Suffixes of OpenMetrics metric names, by SI unit.
_BASE_UNITS = {
    "s": "seconds",
    "bytes": "bytes",
    "bytes/s": "bytes_per_second",
    "FLOP/s": "flops_per_second",
    "fraction": "ratio",
    "ratio": "ratio",
    "J": "joules",
    "W": "watts",
    "Hz": "hertz",
}


class _Value(NamedTuple):
    """A value of a run, taken from fresh processes if these decided."""

    row: Row
    place: TestPlace | None
    first: Estimate  # The value of the suite.
    number: float
    verdict: Verdict | None

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The lower and the upper end, or None and None if fresh processes decided."""
        if self.number != self.first.value:
            return None, None
        return self.first.low, self.first.high

    @property
    def metric(self) -> str:
        """The metric, followed by the kernel for a value of one kernel."""
        first = self.first
        return (
            first.metric if first.kernel is None else f"{first.metric}[{first.kernel}]"
        )

    @property
    def better(self) -> Better:
        """The direction in which the metric improves."""
        own = self.first.better
        return Better(own) if own else metric_of(self.first.metric).better


def csv_bytes(run: Run) -> bytes:
    """Return a CSV table with a row per test and metric [UTF-8]. No cell is a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    session = run.header.session
    moment = _moment(session.started_unix_s)
    for value in _values(run):
        cells = [session.id, moment, session.commit, *_cells(value)]
        cells += [None] * (len(_COLUMNS) - len(cells))
        writer.writerow([csv_cell(c) if isinstance(c, str) else c for c in cells])
    return text.getvalue().encode(errors="backslashreplace")


_COLUMNS = (
    *("session", "started", "commit"),
    *("test", "measurement", "group", "file", "line"),
    *("metric", "kernel", "unit", "value", "low", "high", "first_value"),
    *("sample_count", "source", "label", "void"),
    *("outcome", "reason", "limit", "reference", "change_fraction"),
    *("change_low_fraction", "change_high_fraction", "limit_fraction"),
)


def _cells(value: _Value) -> Iterator[str | float | None]:
    key, place, first = value.row.key, value.place, value.first
    file = key.test_id.partition("::")[0] if place is None else place.file
    yield from (key.test_id, key.name, value.row.group, file)
    yield None if place is None else place.line
    yield from (first.metric, first.kernel, first.unit, value.number, *value.interval)
    yield from (first.value, first.sample_count, first.source, first.label.value)
    void = value.row.record.void if value.row.record is not None else None
    yield None if void is None else void.code.value
    verdict = value.verdict
    if verdict is None:
        return
    limit, change = verdict.limit, verdict.change
    # The outcome of a change without a gate means nothing.
    decided = (verdict.outcome.value, verdict.reason.value)
    yield from decided if verdict.decides else (None, None)
    yield limit.text if limit is not None else None
    if change is None:
        return
    yield from (change.reference, change.effect, change.low, change.high)
    yield verdict.threshold


def bencher_bytes(run: Run) -> bytes:
    """Return a run in Bencher Metric Format: values by test and metric, in SI units."""
    content: dict[str, dict[str, dict[str, float]]] = {}
    for value in _best(run):
        name = _shortened(str(value.row.key), _LONGEST_BENCHMARK)
        measures = content.setdefault(name, {})
        low, high = value.interval
        ends = {"lower_value": low, "upper_value": high}
        measures[_shortened(value.metric, _LONGEST_MEASURE)] = {
            "value": value.number,
            **{end: number for end, number in ends.items() if number is not None},
        }
    return json_bytes(content)


def _shortened(name: str, most_bytes: int) -> str:
    """Return a name that Bencher accepts: short, without spaces at the ends, and still unique."""
    name = escape(name)
    if len(name.encode()) <= most_bytes and name == name.strip():
        return name
    digest = hashlib.blake2s(name.encode(), digest_size=_DIGEST_BYTES).hexdigest()
    kept = name.strip().encode()[: most_bytes - len(digest) - 1]
    return f"{kept.decode(errors='ignore')}-{digest}"


_ALLURE_BETTER = {
    Better.LOWER: "lower",
    Better.HIGHER: "higher",
    Better.NEITHER: "neutral",
}


def allure_bytes(run: Run) -> bytes:
    """Return a run as performance metrics of Allure, which shows 3 decimals."""
    began_ms = round(run.header.session.started_unix_s * 1000)
    metrics = []
    for value in _best(run):
        number, unit = display.in_fine_unit(value.number, value.first.unit)
        metric = {
            "id": escape(str(value.row.key)),
            "key": escape(value.metric),
            "value": number,
            "unit": escape(unit),
            "better": _ALLURE_BETTER[value.better],
            "start": began_ms,
            "stop": began_ms,
        }
        metrics.append(metric)
    return json_bytes(metrics)


def pytorch_bytes(run: Run) -> bytes:
    """
    Return a run as records of PyTorch's benchmark database, one record per metric.

    Its pages show two decimals, and its maps hold texts only.
    """
    environment, session = run.header.environment, run.header.session
    about = {
        "session": session.id,
        "commit": session.commit,
        "python": environment.python_minor,
        "cpu": environment.cpu_model,
        **environment.versions,
    }
    known = {name: text for name, text in about.items() if text is not None}
    content = []
    for value in _best(run):
        record, first, verdict = value.row.record, value.first, value.verdict
        device = "" if record is None else _device(record)
        dtype = record.work.dtype if record is not None and record.work else None
        number, unit = display.in_fine_unit(value.number, first.unit)
        outcome = verdict.outcome.value if verdict and verdict.decides else ""
        benchmark = {
            "name": "pytest-gpuperf",
            "mode": "",
            "dtype": dtype or "",
            "extra_info": {**known, **({"device": device} if device else {})},
        }
        more = {"unit": escape(unit), "source": first.source, "outcome": outcome}
        metric = {
            "name": escape(value.metric),
            "benchmark_values": [number],
            "extra_info": more,
        }
        model = {"name": escape(str(value.row.key))}
        content.append({"benchmark": benchmark, "model": model, "metric": metric})
    return json_bytes(content)


def _device(record: Record) -> str:
    if record.device is not None:
        return record.device.name
    names = (facts.get("gpu_name") for facts in record.facts.values())
    named = next(filter(None, names), "") or ", ".join(
        dict.fromkeys(kernel.target for kernel in record.kernels)
    )
    # A captured report or a binary may come from another machine.
    is_foreign = record.kind in {Kind.CAPTURE, Kind.BINARY}
    return escape(named) if named or is_foreign else "cpu"


def openmetrics_bytes(run: Run, *, digits: int = _DIGITS) -> bytes:
    """
    Return a run as OpenMetrics text, with a gauge per metric and a sample per test.

    Args:
        run: The run.

        digits: Significant digits, >= 1. GitLab reports a value as changed if its text differs.
    """
    families: dict[tuple[str, str], dict[str, str]] = {}
    for value in _best(run):
        labels = {
            "test": value.row.key.test_id,
            "measurement": value.row.key.name,
            "metric": value.first.metric,
            "kernel": value.first.kernel or "",
            "source": value.first.source,
        }
        name = re.sub(r"[^a-zA-Z0-9_]", "_", value.first.metric)
        unit = _BASE_UNITS.get(value.first.unit, "")
        suffix = f"_{unit}" if unit and not name.endswith(f"_{unit}") else ""
        family = families.setdefault((f"gpuperf_{name}{suffix}", unit), {})
        number = value.number
        is_whole = number == int(number)
        text = repr(int(number)) if is_whole else f"{number:.{digits}g}"
        quoted = []
        for label, named in labels.items():
            if named:
                # GitLab cuts a line at a `#`, and refuses the whole file.
                safe = escape(named).replace("#", r"\x23")
                safe = safe.replace("\\", "\\\\").replace('"', '\\"')
                quoted.append(f'{label}="{safe}"')
        family.setdefault(f"{{{','.join(quoted)}}}", text)
    lines = []
    for (name, unit), samples in sorted(families.items()):
        lines.append(f"# TYPE {name} gauge")
        lines += [f"# UNIT {name} {unit}"] if unit else []
        lines += [f"{name}{labels} {number}" for labels, number in samples.items()]
    return "".join(f"{line}\n" for line in (*lines, "# EOF")).encode()


# As platform.system() names them.
_SYSTEMS = {"darwin": "Darwin", "linux": "Linux", "win32": "Windows"}


def pytest_benchmark_bytes(run: Run) -> bytes:
    """
    Return the sampled times of a run in the file format of pytest-benchmark.

    Other metrics are in `extra_info`. A measurement without time samples, such as a binary, is left
    out, because pytest-benchmark has no field for it.
    """
    environment, session = run.header.environment, run.header.session
    benchmarks = [
        _benchmark(row) for row in rows(run) if not _is_void(row) and row.statistics()
    ]
    cpu = {"brand_raw": environment.cpu_model, "count": environment.core_count}
    content = {
        "machine_info": {
            "node": session.host,
            "python_version": environment.python_minor,
            "system": _SYSTEMS.get(environment.platform, environment.platform),
            "cpu": _known(cpu),
        },
        "commit_info": {
            "id": session.commit or "unversioned",
            "branch": "(unknown)",
            **_known({"dirty": session.dirty}),
        },
        "benchmarks": benchmarks,
        "datetime": _moment(session.started_unix_s),
        "version": "5.3.1",  # The tested version of pytest-benchmark.
    }
    return json_bytes(content)


def _known(facts: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in facts.items() if value is not None}


def _benchmark(row: Row) -> dict[str, object]:
    path, _, name = row.key.test_id.partition("::")
    function, bracket, parameter = name.partition("[")  # May contain ::, too.
    short = f"{function.rpartition('::')[2]}{bracket}{parameter}"
    suffix = f" {row.key.name}" if row.key.name else ""
    estimates = row.record.estimates if row.record is not None else ()
    values = {e.metric: e.value for e in reversed(estimates) if not e.kernel}
    return {
        "group": row.group or None,
        "name": escape(f"{short or path}{suffix}"),
        "fullname": escape(f"{row.key.test_id}{suffix}"),
        "params": None,
        "param": escape(parameter.removesuffix("]")) if bracket else None,
        "extra_info": {k: v for k, v in values.items() if k != "time"},
        "options": {},
        "stats": row.statistics(),
    }


def without_times(run: Run) -> list[str]:
    """Return the measurements of the main processes without time samples."""
    return [
        str(row.key)
        for row in rows(run)
        if row.record is not None and not _is_void(row) and not row.statistics()
    ]


def void_measurements(run: Run) -> list[str]:
    """Return the void measurements of the main processes, which no program judges."""
    return [str(row.key) for row in rows(run) if _is_void(row)]


def _is_void(row: Row) -> bool:
    return row.record is not None and row.record.void is not None


def annotations_bytes(run: Run, *, below: str | None = None) -> bytes:
    """Return the failures of a run as commands of a GitHub runner, at most 10."""
    lines = annotation_lines(run, below=below)
    return "".join(f"{line}\n" for line in lines).encode()


def annotation_lines(run: Run, *, below: str | None = None) -> list[str]:
    """
    Return the failures of a run as commands that GitHub's runner reads from a log.

    Args:
        run: The run.

        below: The folder of the checkout, relative to the folder of the repository. None if
            unknown: files are then named relative to the folder in which pytest was started.
    """
    places = {test.test_id: test for test in run.tests}
    loud = [row for row in rows(run) if row.is_loud]
    shown = loud[:_MOST_ANNOTATIONS]
    called = short_names({row.key: str(row.key).partition("::")[2] for row in shown})
    lines = []
    for row in shown:
        place = places.get(row.key.test_id)
        file = from_root(row.key.test_id.partition("::")[0], run.header.options)
        module = ((place and place.key) or row.key.test_id).partition("::")[0]
        # A file outside the checkout is known only by its import name.
        if below is not None and ("/" in module or module.endswith(".py")):
            file = normpath(f"{below or '.'}/{module}")
        elif place is not None and place.typed:
            file = place.file
        properties = {"file": file, "title": called[row.key]}
        if place is not None and place.line is not None:
            properties["line"] = str(place.line)
        text = ",".join(
            f"{name}={_command_text(value, also=':,')}"
            for name, value in properties.items()
        )
        deciding = [v for v in row.verdicts if v.decides]
        own = row.missed or _BROKEN
        message = first_line(speaking(deciding)) if deciding else own
        lines.append(f"::error {text}::{_command_text(message)}")
    if len(loud) > len(shown):
        more = f"{len(loud) - len(shown) + 1} more tests failed"
        lines[-1] = f"::error title=gpuperf::{more}"
    return lines


def _command_text(text: str, *, also: str = "") -> str:
    """Escape a text so that it cannot end its command or property."""
    text = escape(text).replace("%", "%25")
    for letter in also:
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text


def junit_properties(
    records: Iterable[Record], verdicts: Sequence[Verdict]
) -> list[tuple[str, object]]:
    """
    Return the values and verdicts of a test as JUnit properties.

    Args:
        records: The records of the test.

        verdicts: The verdicts of the test.
    """
    values: list[tuple[str, object]] = []
    for record in records:
        about = [v for v in verdicts if v.key == record.key]
        for first in record.estimates:
            if first.kernel is not None:
                continue
            unit = f" [{first.unit}]" if first.unit else ""
            name = f"{_property(record.key, first.metric)}{unit}"
            judged = judged_value(first, about)
            if judged is None or math.isclose(judged, first.value):
                values.append((f"gpuperf.{name}", first.value))
            else:
                values.append((f"gpuperf.{name}", judged))
                values.append((f"gpuperf.first.{name}", first.value))
    for v in verdicts:
        if not v.decides:  # Shown in reports only.
            continue
        kind = "against" if v.of_revision else "verdict"
        name = _property(v.key, v.metric)
        outcome = f"{v.outcome.value}: {v.reason.value}"
        values.append((f"gpuperf.{kind}.{name}", outcome))
        # How the suite and a fresh process differ.
        if text := sentences.in_suite(v):
            note = f"{Reason.SLOWER_IN_SUITE.value}: {text}"
            values.append((f"gpuperf.note.{name}", note))
        elif text := sentences.alone(v):
            note = f"{Cause.OTHER_ALONE.value}: {text}"
            values.append((f"gpuperf.note.{name}", note))
    # pytest escapes only the values, so the names are escaped here.
    return [(escape(name), value) for name, value in values]


def _property(key: RecordKey, metric: str) -> str:
    """Return the metric after the name of the measurement, or alone for a recorded number."""
    if key.name == metric and metric not in METRICS:
        return metric
    return f"{key.name} {metric}".strip()


def _values(run: Run) -> Iterator[_Value]:
    places = {test.test_id: test for test in run.tests}
    for row in rows(run):
        place = places.get(row.key.test_id)
        for first in row.record.estimates if row.record is not None else ():
            judged = judged_value(first, row.verdicts)
            number = first.value if judged is None else judged
            verdict = next(
                (
                    verdict
                    for verdict in row.verdicts
                    if verdict.metric == first.metric
                    and (
                        verdict.estimate is None
                        or verdict.estimate.kernel == first.kernel
                    )
                ),
                None,
            )
            yield _Value(row, place, first, number, verdict)


def _best(run: Run) -> Iterator[_Value]:
    """Yield each metric's value from the best source. Void measurements are left out."""
    written = set()
    for value in _values(run):
        name = value.row.key, value.metric
        if name not in written and not _is_void(value.row):
            written.add(name)
            yield value


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, tz=timezone.utc).isoformat()


# By the names of `gpuperf export --to`. chrome-trace is missing, because it needs a recording.
EXPORTS: Mapping[str, Callable[[Run], bytes]] = {
    "allure": allure_bytes,
    "annotations": annotations_bytes,
    "bencher": bencher_bytes,
    "csv": csv_bytes,
    "openmetrics": openmetrics_bytes,
    "pytest-benchmark": pytest_benchmark_bytes,
    "pytorch": pytorch_bytes,
}


_NS_PER_US = 1000
_NS_PER_S = 1e9
_US_PER_S = 1e6
# The gap between two measurements, as a fraction of the length of the first.
_GAP = 0.02
_MEASUREMENTS = "measurements"
# From cause to effect.
_TRACKS = (
    _MEASUREMENTS,
    "nvtx",
    "graph",
    "kernel",
    "copy",
    "memset",
)


class _Slice(NamedTuple):
    """An interval of time on a track."""

    track: str
    name: str
    category: str
    start_ns: int
    end_ns: int
    details: dict[str, object]


class _Thread(NamedTuple):
    """A row of a trace: one lane of a track."""

    rank: int
    track: str
    lane: int


def chrome_trace_bytes(
    traces: Iterable[tuple[Record, Trace]],
    *,
    demangle: Callable[[str], str | None] = lambda _: None,
) -> bytes:
    """
    Return measurements as trace events [JSON], with a process per test and a thread per stream.

    Kernels, copies, memsets, graphs and NVTX ranges are slices, and the readings of the GPU's
    sensors are counters. Events without a start or an end are left out. Measurements follow one
    another in the order in which they began, with small gaps: the time between two measurements is
    not in the traces, and would make the measurements too small to be seen. A slice per measurement
    has the real start time.

    Args:
        traces: Measurements with their traces.

        demangle: Returns a readable name, or None if it does not know the name.
    """
    ordered = sorted(traces, key=lambda measured: measured[1].begun_ns)
    processes: dict[tuple[str, Role, int], _TraceProcess] = {}
    events: list[dict[str, object]] = []
    start_ns = 0
    for record, trace in ordered:
        made_by = record.key.test_id, record.role, record.process_index
        process = processes.setdefault(made_by, _TraceProcess(len(processes) + 1))
        slices = [
            piece
            for piece in _slices(trace, demangle)
            if piece.start_ns and piece.end_ns
        ]
        begun_ns = min([trace.begun_ns, *(piece.start_ns for piece in slices)])
        length_ns = max(_ended_ns(record, trace, slices) - begun_ns, 1)
        whole = _Slice(
            _MEASUREMENTS,
            escape(record.key.name) or "measurement",
            _MEASUREMENTS,
            begun_ns,
            begun_ns + length_ns,
            {"started_s": (begun_ns - ordered[0][1].begun_ns) / _NS_PER_S},
        )
        shift_ns = start_ns - begun_ns
        events += process.slice_events([whole, *slices], shift_ns)
        since_us = (trace.begun_ns + shift_ns) / _NS_PER_US
        events += _counter_events(process.number, record, since_us)
        start_ns += length_ns + round(length_ns * _GAP)
    for (test_id, role, index), process in processes.items():
        name = f"{test_id} ({role.value} {index})" if index else test_id
        events += process.name_events(escape(name))
    return msgspec.json.encode({"displayTimeUnit": "ns", "traceEvents": events})


def _ended_ns(record: Record, trace: Trace, slices: Iterable[_Slice]) -> int:
    """Return the end of a measurement, slices and sensor readings included [ns]."""
    ends_s = [0.0]
    for line in record.time_lines:
        ends_s += line.since_s
        ends_s += (
            end_s for spans in line.throttled_spans_s.values() for _, end_s in spans
        )
    ended_ns = max([trace.ended_ns, *(piece.end_ns for piece in slices)])
    return max(ended_ns, trace.begun_ns + round(max(ends_s) * _NS_PER_S))


def _slices(trace: Trace, demangle: Callable[[str], str | None]) -> Iterator[_Slice]:
    shapes = trace.launches.shapes
    names = [escape(demangle(shape.name) or shape.name) for shape in shapes]
    arguments: list[dict[str, object]] = [
        {
            "grid": shape.grid,
            "block": shape.block,
            "registers": shape.registers_count,
            "static_shared_bytes": shape.shared_bytes,
            "dynamic_shared_bytes": shape.dynamic_shared_bytes,
        }
        for shape in shapes
    ]
    for piece in trace.launches.pieces():
        for place, start_ns, end_ns, device, stream in zip(
            *(piece.shape, piece.start_ns, piece.end_ns, piece.device, piece.stream),
            strict=True,
        ):
            track, more = f"GPU {device} stream {stream}", arguments[place]
            yield _Slice(track, names[place], "kernel", start_ns, end_ns, more)
    for copy in trace.copies:
        details = {
            "bytes": copy.size_bytes,
            "count": copy.count,
            "source": copy.source,
            "target": copy.target,
        }
        name = escape(copy.direction.replace("_", " "))
        yield _Slice("copies", name, "copy", copy.start_ns, copy.end_ns, details)
    for size_bytes, start_ns, end_ns in trace.fills:
        details = {"bytes": size_bytes}
        yield _Slice("memsets", "memset", "memset", start_ns, end_ns, details)
    for start_ns, end_ns in trace.graphs:
        yield _Slice("graphs", "graph", "graph", start_ns, end_ns, {})
    for named in trace.ranges:
        track = f"NVTX {escape(named.domain)}".rstrip()
        name = escape(named.name)
        yield _Slice(track, name, "nvtx", named.start_ns, named.end_ns, {})


class _TraceProcess:
    """
    The rows of one test in a trace.

    Slices that overlap without nesting are placed on separate rows.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._threads: dict[_Thread, int] = {}

    def slice_events(
        self, slices: Iterable[_Slice], shift_ns: int
    ) -> Iterator[dict[str, object]]:
        """Yield the slices of a measurement, shifted to the measurement's place in the trace."""
        # End times of the open slices of each lane of a track [ns].
        open_ns: dict[str, list[list[int]]] = {}
        for piece in sorted(slices, key=lambda item: (item.start_ns, -item.end_ns)):
            lane = _lane(open_ns.setdefault(piece.track, []), piece)
            thread = _Thread(_TRACKS.index(piece.category), piece.track, lane)
            event: dict[str, object] = {
                "ph": "X",
                "name": piece.name,
                "cat": piece.category,
                "pid": self.number,
                "tid": self._threads.setdefault(thread, len(self._threads) + 1),
                "ts": (piece.start_ns + shift_ns) / _NS_PER_US,
                "dur": (piece.end_ns - piece.start_ns) / _NS_PER_US,
            }
            yield event | ({"args": piece.details} if piece.details else {})

    def name_events(self, name: str) -> Iterator[dict[str, object]]:
        """Yield the names and positions of the process and the threads."""
        named = [(0, "process", name, self.number)]
        for place, thread in enumerate(sorted(self._threads, key=_in_order)):
            text = (
                f"{thread.track} ({thread.lane + 1})" if thread.lane else thread.track
            )
            named.append((self._threads[thread], "thread", text, place))
        for thread_id, what, text, place in named:
            for kind, value in (
                (f"{what}_name", {"name": text}),
                (f"{what}_sort_index", {"sort_index": place}),
            ):
                yield {
                    "ph": "M",
                    "name": kind,
                    "pid": self.number,
                    "tid": thread_id,
                    "args": value,
                }


def _lane(lanes: list[list[int]], piece: _Slice) -> int:
    """
    Put a slice on the first free lane and return the index of the lane.

    Only NVTX ranges may nest on a lane, as their code does.
    """
    for place, ends_ns in enumerate(lanes):
        while ends_ns and ends_ns[-1] <= piece.start_ns:
            ends_ns.pop()
        nests = piece.category == "nvtx" and ends_ns and piece.end_ns <= ends_ns[-1]
        if nests or not ends_ns:
            ends_ns.append(piece.end_ns)
            return place
    lanes.append([piece.end_ns])
    return len(lanes) - 1


def _in_order(thread: _Thread) -> tuple[int, list[tuple[int, str]], int]:
    """Return the sort key of a thread. Numbers sort by value, so stream 7 precedes stream 13."""
    words = re.split(r"(\d+)", thread.track)
    return (
        thread.rank,
        [(int(word), "") if word.isdecimal() else (-1, word) for word in words],
        thread.lane,
    )


def _counter_events(
    number: int, record: Record, since_us: float
) -> Iterator[dict[str, object]]:
    for line in record.time_lines:
        for reading, values in line.readings.items():
            name, unit = display.SENSORS.get(reading, (escape(reading), "value"))
            for since_s, value in zip(line.since_s, values, strict=True):
                if value is not None:
                    yield {
                        "ph": "C",
                        "name": f"GPU {line.gpu_index} {name}",
                        "pid": number,
                        "ts": since_us + since_s * _US_PER_S,
                        "args": {unit: value},
                    }
        for reason, spans in line.throttled_spans_s.items():
            for begin_s, end_s in spans:
                for since_s, value in ((begin_s, 1), (end_s, 0)):
                    yield {
                        "ph": "C",
                        "name": f"GPU {line.gpu_index} {reason.value}",
                        "pid": number,
                        "ts": since_us + since_s * _US_PER_S,
                        "args": {"throttled": value},
                    }
