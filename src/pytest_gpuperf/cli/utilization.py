"""The command `utilization`: the utilization of GPUs, from readings in a file."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import (
    STANDARD_STREAM,
    is_folder,
    name_of,
    print_bytes,
    print_table,
    read_input,
    run_of,
    say,
)
from pytest_gpuperf.collect.replay import read_recording
from pytest_gpuperf.collect.translate import FOREIGN_BYTES, foreign
from pytest_gpuperf.collect.translate.dcgm import (
    dmon_records,
    exporter_records,
    is_dmon,
    is_exporter,
)
from pytest_gpuperf.collect.translate.smi import (
    MONITOR,
    is_monitor,
    is_smi_table,
    monitor_records,
    smi_records,
)
from pytest_gpuperf.collect.translate.telemetry import Moment, Telemetry, split_stamp
from pytest_gpuperf.compute.timeline import (
    Scoring,
    WindowSummary,
    compute_all,
    summarise_all,
    worst_health,
)
from pytest_gpuperf.compute.utilization import NEEDED, PRESETS, has_class, parse_weights
from pytest_gpuperf.errors import CaptureFormatError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.telemetry import (
    READINGS,
    CanonicalRecord,
    ComputedRecord,
    Health,
)
from pytest_gpuperf.report import display
from pytest_gpuperf.report.escape import csv_cell, escape, prose
from pytest_gpuperf.report.lines import Column, column

if TYPE_CHECKING:
    import argparse

    from pytest_gpuperf.model.record import Record

# The time of readings without a time.
_START = Moment(monotonic_s=0.0, unix_s=0.0)
_READINGS = (
    "name the output of dcgmi dmon, dcgm-exporter, nvidia-smi dmon or nvidia-smi "
    "--format=csv with its header, or a run that was measured with --gpuperf-telemetry"
)
# What recognizes a tool by a line, and what reads its output.
_READERS = (
    (is_exporter, exporter_records),
    (is_dmon, dmon_records),
    (is_monitor, monitor_records),
    (is_smi_table, smi_records),
)
_LABELLED = (
    "give the unchanged output of one machine; if a launcher named the process in each "
    "line, as srun -l does, choose one: sed -n 's/^0: //p' FILE | gpuperf utilization -"
)
_UNKNOWN = "n/a"
_INSTANCE = re.compile(r"(?P<gpu>[^/]*/)?(?P<instance>[GC]I\w+(?:/CI\w+)?)")
_ROW = (
    "monotonic_s",
    "gpu_index",
    "gpu_uuid",
    "real_util",
    "workload_class",
    "bottleneck",
    "health",
    "memory_used_fraction",
)


class _Source(Frozen, frozen=True, kw_only=True):
    """Readings of one span of time, with the title of their measurement."""

    title: str
    telemetry: Telemetry


class _Busy(Frozen, frozen=True, kw_only=True):
    """The utilization of one GPU in one span."""

    title: str
    summary: WindowSummary
    health: Health

    @property
    def average(self) -> ComputedRecord | None:
        """The average reading, or None if no reading describes the span."""
        return self.summary.average

    @property
    def judged(self) -> ComputedRecord | None:
        """The average reading, or None if missing or without the readings for a class."""
        average = self.average
        return average if average is not None and has_class(average) else None


def utilization(arguments: argparse.Namespace) -> int:
    """
    Print the score, class, bottleneck and health of all GPUs.

    Raises:
        CaptureFormatError: The file holds no readings.

        RecordError: Another tool wrote the file, or the file is a damaged run.
    """
    weights = PRESETS.get(arguments.weights) or parse_weights(arguments.weights)
    sources = _sources(arguments.file, arguments.interval)
    if not any(source.telemetry.records for source in sources):
        notes = (note for source in sources for note in source.telemetry.notes)
        message = "; ".join(("it has no reading of a GPU", *notes))
        raise CaptureFormatError(
            message, remedy=_READINGS, path=name_of(arguments.file)
        )
    notes = (note for source in sources for note in source.telemetry.notes)
    say(f"gpuperf: {note}" for note in dict.fromkeys(notes))
    scored = [
        (source, Scoring(weights=weights, model_names=source.telemetry.model_names))
        for source in sources
        if source.telemetry.records
    ]
    if arguments.format == "csv":
        return print_bytes(_csv(scored))
    busy: list[_Busy] = []
    for source, scoring in scored:
        health = worst_health(source.telemetry.records, scoring)
        busy += [
            _Busy(title=source.title, summary=summary, health=health[summary.gpu])
            for summary in summarise_all(source.telemetry.records, scoring)
        ]
    return print_table(
        arguments.format,
        "utilization",
        {"gpus": [_facts(gpu) for gpu in busy]},
        title="utilization",
        table=_columns(busy, prose if arguments.format == "markdown" else escape),
        remarks=_remarks(busy),
    )


_JSON = re.compile(rb'\s*(\{\s*["}]|\[\s*[]\[{"])')


def _sources(file: str, interval_s: float) -> list[_Source]:
    if file != STANDARD_STREAM and is_folder(file):
        return list(_of_records(read_recording(file).records.values()))
    name = name_of(file)
    content = read_input(file, remedy=_READINGS, takes_runs=False, takes_readings=True)
    # A line of text may begin with a time, a prompt or a word in brackets.
    if _JSON.match(content):
        run = run_of(content, name, remedy=_READINGS)
        return list(_of_records(run.records))
    if b"\0" in content[:FOREIGN_BYTES]:
        message = "it is not text: it has NUL bytes"
        raise CaptureFormatError(message, remedy=_READINGS, path=name)
    text = content.decode("utf-8", "replace")
    return [_Source(title="", telemetry=_translated(text, interval_s, name))]


def _translated(text: str, interval_s: float, name: str) -> Telemetry:
    """
    Return the readings of a tool's output, recognized by the first known line.

    Raises:
        CaptureFormatError: Another tool wrote the text, or it is damaged.
    """
    for line in io.StringIO(text, newline=None):  # None: "\r" ends a line, too.
        _, bare = split_stamp(line.strip())
        for is_of_tool, read in _READERS:
            if is_of_tool(bare):
                return read(text, start=_START, interval_s=interval_s, path=name)
    known = foreign(text[:FOREIGN_BYTES].encode())
    if known is not None and known.is_read:
        message = f"{known.message}, and no line begins as that tool prints it"
        raise CaptureFormatError(message, remedy=_LABELLED, path=name)
    if known is not None:
        raise CaptureFormatError(known.message, remedy=known.remedy, path=name)
    is_empty = not text.strip()
    message = "it is not the output of a supported tool"
    raise CaptureFormatError(
        "it is empty" if is_empty else message, remedy=_READINGS, path=name
    )


def _of_records(records: Iterable[Record]) -> Iterator[_Source]:
    for record in records:
        readings = [
            CanonicalRecord(
                gpu_index=line.gpu_index,
                gpu_uuid=line.gpu_uuid,
                monotonic_s=since_s,
                unix_s=since_s,
                **{name: values[place] for name, values in line.readings.items()},  # type: ignore[arg-type] # readings by their names
            )
            for line in record.time_lines
            for place, since_s in enumerate(line.since_s)
        ]
        if readings:
            readings.sort(key=lambda reading: reading.monotonic_s)
            telemetry = Telemetry(records=tuple(readings), model_names={}, notes=())
            yield _Source(title=str(record.key), telemetry=telemetry)


def _remarks(busy: Sequence[_Busy]) -> list[str]:
    missing = [
        name
        for name in NEEDED
        if any(gpu.average is not None and name in gpu.average.missing for gpu in busy)
    ]
    if not missing:
        return []
    names = ", ".join(missing)
    remedy = (
        f"dcgmi dmon -e 1001,1002,1004,1005 has them, or {MONITOR} (Hopper and later)"
    )
    return [f"score, class and bottleneck n/a: no reading of {names}; {remedy}"]


def _columns(
    busy: Sequence[_Busy], escaped: Callable[[str], str]
) -> tuple[Column, ...]:
    averages = [gpu.judged for gpu in busy]
    hosts = [gpu.summary.hostname for gpu in busy]
    return (
        Column(
            head="test",
            cells=tuple(escaped(gpu.title) for gpu in busy),
            shrinks=True,
        ),
        Column(
            head="host",
            cells=tuple(escaped(h) if len({*hosts}) > 1 else "" for h in hosts),
            shrinks=True,
        ),
        column("GPU", map(escaped, _gpus(busy))),
        column(
            "score",
            (f"{a.real_util:.1f}" if a else "" for a in averages),
            right=True,
            blank=_UNKNOWN,
        ),
        column(
            "class",
            (a.workload_class.label if a else "" for a in averages),
            blank=_UNKNOWN,
        ),
        column(
            "bottleneck",
            (a.bottleneck.value if a else "" for a in averages),
            blank=_UNKNOWN,
        ),
        column("health", (gpu.health.value for gpu in busy)),
        column(
            "readings",
            (str(gpu.summary.reading_count) for gpu in busy),
            right=True,
            rank=2,
        ),
        column("time in classes", map(_classes, busy), rank=1),
    )


def _gpus(busy: Sequence[_Busy]) -> Iterator[str]:
    """Yield the names of GPUs, with the ids of GPUs of the same name and host."""
    names = [_number(gpu.summary) for gpu in busy]
    places = [
        (gpu.title, gpu.summary.hostname, name)
        for gpu, name in zip(busy, names, strict=True)
    ]
    counts = Counter(places)
    for gpu, name, place in zip(busy, names, places, strict=True):
        model = gpu.average.model_name if gpu.average is not None else None
        gpu_id = gpu.summary.gpu_uuid if counts[place] > 1 else None
        yield " ".join(filter(None, (name, model, gpu_id)))


def _number(summary: WindowSummary) -> str:
    """Return the index of a GPU and the instance, or the instance of an unknown GPU."""
    match = _INSTANCE.fullmatch(summary.gpu_uuid)
    if match is None:
        return str(summary.gpu_index)
    is_of_gpu = match["gpu"] is not None
    return (
        f"{summary.gpu_index}/{match['instance']}" if is_of_gpu else match["instance"]
    )


def _classes(gpu: _Busy) -> str:
    summary = gpu.summary
    whole_s = summary.end_s - summary.start_s
    seconds = sorted(summary.sample_class_s.items(), key=lambda part: -part[1])
    return ", ".join(
        f"{display.whole_percent(class_s / whole_s)} {workload.label}"
        for workload, class_s in seconds
        if class_s > 0 < whole_s
    )


def _facts(gpu: _Busy) -> dict[str, object]:
    summary, average, judged = gpu.summary, gpu.average, gpu.judged
    return {
        "test": gpu.title or None,
        "hostname": summary.hostname or None,
        "gpu_index": summary.gpu_index,
        "gpu_uuid": summary.gpu_uuid,
        "model_name": None if average is None else average.model_name,
        "real_util": None if judged is None else judged.real_util,
        "workload_class": None if judged is None else judged.workload_class.label,
        "bottleneck": None if judged is None else judged.bottleneck.value,
        "health": gpu.health.value,
        "memory_used_fraction": average and average.memory_used_fraction,
        "missing": [] if average is None else list(average.missing),
        "reading_count": summary.reading_count,
        "duration_s": summary.end_s - summary.start_s,
        "class_s": {c.label: s for c, s in summary.sample_class_s.items()},
        "incomplete_s": summary.incomplete_s,
        "unobserved_s": summary.unobserved_s,
    }


def _csv(scored: Iterable[tuple[_Source, Scoring]]) -> bytes:
    stream = io.StringIO()
    rows = csv.writer(stream, lineterminator="\n")
    plain = [name for name in READINGS if name not in _ROW]
    rows.writerow(("test", *_ROW, *plain, "hostname"))
    for source, scoring in scored:
        for computed in compute_all(source.telemetry.records, scoring):
            record = computed.record
            judged = (
                (
                    f"{computed.real_util:.6g}",
                    computed.workload_class.label,
                    computed.bottleneck.value,
                )
                if has_class(computed)
                else (None, None, None)
            )
            scores = (*judged, computed.health.value, computed.memory_used_fraction)
            names = (record.monotonic_s, record.gpu_index, csv_cell(record.gpu_uuid))
            readings = (getattr(record, name) for name in plain)
            host = csv_cell(record.hostname)
            rows.writerow((csv_cell(source.title), *names, *scores, *readings, host))
    return stream.getvalue().encode()
