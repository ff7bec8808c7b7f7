"""The command `show` for runs, captures and recordings as records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import GOOD, print_bytes, read_run, say
from pytest_gpuperf.collect.binary.tools import native_demangler
from pytest_gpuperf.collect.ncu.launches import (
    Capture,
    CapturedLaunch,
    CapturedRange,
    CapturedValue,
    decode_capture,
    read_capture,
    read_report,
)
from pytest_gpuperf.collect.ncu.text import capture_text
from pytest_gpuperf.collect.replay import read_recording
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.collect.traces import read_trace
from pytest_gpuperf.collect.translate.counters import CAPABILITY, vendor_names
from pytest_gpuperf.compute.derive import needed_counters
from pytest_gpuperf.errors import CaptureFormatError, ConfigError
from pytest_gpuperf.measure.captured import (
    analyses,
    capture_values,
    close_names,
    report_counters,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import METRICS, is_counter
from pytest_gpuperf.report.captures import capture_bytes
from pytest_gpuperf.report.launches import launch_blocks
from pytest_gpuperf.report.runs import only_metrics, run_bytes

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.nvtx import LaunchFilter
    from pytest_gpuperf.model.activity import Trace
    from pytest_gpuperf.model.record import Record
    from pytest_gpuperf.model.run import Run
    from pytest_gpuperf.model.sample import Unmeasured


__all__ = [
    "absent_from_run",
    "recording_of",
    "refuse_catalogue",
    "say_what_lacks",
    "selected",
    "show_capture",
    "show_chosen",
    "show_launches",
    "show_run",
    "traces_of",
]

_Read = Callable[[Sequence[str] | None], Capture]


def show_run(file: str, form: str, metrics: tuple[str, ...] | None) -> int:
    """Print a run, and on standard error the metrics that it lacks."""
    # not needed for a capture: a quarter of this module's import time

    run = read_run(file)
    if metrics is None:
        return print_bytes(run_bytes(run, form))
    print_bytes(run_bytes(only_metrics(run, metrics), form))
    _remark(absent_from_run(run, metrics))
    return GOOD


def show_capture(
    file: str, form: str, metrics: tuple[str, ...] | None, text: bytes | None
) -> int:
    """Print a capture as text or Markdown; `text` is the whole capture if already read."""
    if text is not None:
        capture = decode_capture(text)
        limits = analyses(capture)
        return print_bytes(capture_bytes(capture, form, metrics=None, analyses=limits))
    capture, remarks = selected(_reader(file), metrics or ())
    return print_bytes(capture_bytes(capture, form, metrics=metrics, remarks=remarks))


def show_chosen(
    file: str,
    form: str,
    metrics: tuple[str, ...] | None,
    launch_filter: LaunchFilter,
) -> int:
    """
    Print some launches of a capture.

    Raises:
        CaptureFormatError: None is chosen.
    """
    report = read_report(file, (), runner=ProcessRunner())
    chosen = report.chosen(launch_filter, file)
    places = {(placed.range_index, placed.index) for placed in chosen}
    if form == "json":
        refuse_catalogue(metrics or ())
        text = capture_text(file, runner=ProcessRunner(), metrics=metrics)
        ranges = json.loads(text)["ranges"]
        for number, section in enumerate(ranges):
            section["launches"] = [
                launch
                for launch in section["launches"]
                if (number, launch["index"]) in places
            ]
        compact = json.dumps({"ranges": ranges}, separators=(",", ":"))
        return print_bytes(f"{compact}\n".encode())
    if metrics is None:
        capture = _only(read_capture(file, runner=ProcessRunner()), places)
        limits = analyses(capture)
        return print_bytes(capture_bytes(capture, form, metrics=None, analyses=limits))
    reader = _reader(file)
    capture, remarks = selected(lambda names: _only(reader(names), places), metrics)
    return print_bytes(capture_bytes(capture, form, metrics=metrics, remarks=remarks))


def _only(capture: Capture, places: set[tuple[int, int]]) -> Capture:
    """Return a capture with some launches, by range and index; a range may be empty."""
    return Capture(
        ranges=tuple(
            CapturedRange(
                launches=tuple(
                    launch
                    for launch in captured.launches
                    if (number, launch.index) in places
                )
            )
            for number, captured in enumerate(capture.ranges)
        )
    )


def say_what_lacks(file: str, metrics: Sequence[str]) -> None:
    """Read a capture again and print the counters that it lacks on standard error."""
    _remark(selected(_reader(file), metrics)[1])


def _remark(sentences: Iterable[str]) -> None:
    say(f"gpuperf: {sentence}" for sentence in sentences)


def _reader(file: str) -> _Read:
    return lambda names: read_capture(file, runner=ProcessRunner(), metrics=names)


def selected(read: _Read, metrics: Sequence[str]) -> tuple[Capture, tuple[str, ...]]:
    """
    Return a report with the metrics that were asked for, and what it lacks.

    Args:
        read: Reads the report with some counters by their own names; None: with all.

        metrics: Names of the catalogue and counters by their own names.

    Returns:
        The report; a metric of the catalogue is a value of each launch, in its unit. A
        sentence for each metric that some launch lacks, and for each counter that none
        has.
    """
    capture = read(report_counters(metrics))
    catalogue = [name for name in metrics if name in METRICS]
    gaps: dict[str, Unmeasured] = {}
    launches = [launch for captured in capture.ranges for launch in captured.launches]
    measured = [launch for launch in launches if launch.measured]
    if measured and catalogue:
        gaps = {gap.metric: gap for gap in capture_values(measured, catalogue, None)[1]}
    ranges = tuple(
        CapturedRange(
            launches=tuple(
                _with(launch, catalogue, gaps) for launch in captured.launches
            )
        )
        for captured in capture.ranges
    )
    remarks = [f"{gap.metric} n/a: {gap.reason}; {gap.remedy}" for gap in gaps.values()]
    present = METRICS.keys() | _counters(capture)
    absent = [name for name in metrics if name not in present]
    if absent:  # the whole report is read only for a mistake
        counters = _counters(read(None))
        remarks += [_uncollected(name, counters) for name in absent]
    return replace(capture, ranges=ranges), tuple(remarks)


def refuse_catalogue(metrics: Iterable[str]) -> None:
    """
    Refuse metrics of the catalogue where a report's own counters are printed.

    Raises:
        ConfigError: Some are of the catalogue; the remedy names their counters.
    """
    catalogue = [name for name in metrics if name in METRICS]
    if not catalogue:
        return
    counters = [
        name
        for name in vendor_names(needed_counters(catalogue))
        if name not in CAPABILITY
    ]
    message = (
        "JSON output has the report's own counters only, and "
        f"{' or '.join(catalogue)} is not a counter"
    )
    named = f"name its counters, --metrics={','.join(counters)}, or "
    raise ConfigError(message, remedy=f"{named if counters else ''}drop --format")


def absent_from_run(run: Run, metrics: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence for each metric that a run lacks."""
    present = {
        estimate.metric for record in run.records for estimate in record.estimates
    }
    present |= {verdict.metric for verdict in run.verdicts}
    return tuple(
        _unknown(name, "run", close_names(name, present))
        for name in metrics
        if name not in present
    )


def _with(
    launch: CapturedLaunch, metrics: Sequence[str], gaps: dict[str, Unmeasured]
) -> CapturedLaunch:
    """Return a launch with metrics of the catalogue; add the missing ones to `gaps`."""
    if not (launch.measured and metrics):
        return launch
    estimates, absent = capture_values([launch], metrics, None)
    for gap in absent:
        gaps.setdefault(gap.metric, gap)
    values = {
        estimate.metric: CapturedValue(value=estimate.value, unit=estimate.unit)
        for estimate in estimates
        if estimate.kernel is None
    }
    return replace(launch, metrics={**launch.metrics, **values})


def _counters(capture: Capture) -> set[str]:
    """Return the counters with a value in any launch."""
    return {
        name
        for captured in capture.ranges
        for launch in captured.launches
        for name, counter in launch.metrics.items()
        if counter.value is not None
    }


def _uncollected(name: str, counters: set[str]) -> str:
    """Return the sentence for a counter that no launch has, with how to collect it."""
    if not is_counter(name):
        alike = close_names(name, counters | METRICS.keys())
        return _unknown(name, "capture", alike)
    alike = close_names(name, counters)
    joint = " if not," if alike else ";"
    return f"{_unknown(name, 'capture', alike)}{joint} collect it: ncu --metrics {name}"


def _unknown(name: str, where: str, alike: Sequence[str]) -> str:
    """Return the sentence for a missing name, with suggestions."""
    meant = f"; did you mean {', '.join(alike)}?" if alike else ""
    return f"not in this {where}: {name}{meant}"


_RECORDINGS = ("gpuperf_record", "gpuperf_replay")  # options that name one


def show_launches(file: str, form: str, *, is_run: bool) -> int:
    """
    Print every launch of a recording, or of the recording that a run names.

    Raises:
        ConfigError: It is neither a recording nor a run.

        CaptureFormatError: The recording is damaged, empty or missing.
    """
    is_folder = Path(file).is_dir()
    if not is_folder and not is_run:
        message = f"--launches: {file} is neither a recording nor a run"
        remedy = "name a folder of --gpuperf-record; of a capture, leave --launches out"
        raise ConfigError(message, remedy=remedy)
    folder = file if is_folder else recording_of(read_run(file), file)
    for block in launch_blocks(traces_of(folder), form, demangle=native_demangler()):
        print_bytes(block)
    return GOOD


def traces_of(folder: str) -> Iterator[tuple[Record, Trace]]:
    """
    Yield the measurements of a recording with their traces; those without one are skipped.

    Raises:
        CaptureFormatError: It is not a recording, is damaged, or has no trace.
    """
    is_empty = True
    for record in read_recording(folder).records.values():
        place = None if record.activity is None else record.activity.kept
        if place is not None:
            is_empty = False
            yield record, read_trace(folder, place)
    if is_empty:
        message = "the recording has no launches: CUPTI did not record them"
        remedy = "record on a machine where CUPTI works; see gpuperf doctor"
        raise CaptureFormatError(message, remedy=remedy, path=folder)


def recording_of(run: Run, path: str) -> str:
    """
    Return the recording that a run wrote, or was judged from.

    Args:
        run: The run.

        path: Its file; the recording's path starts from its folder, or from the current one.

    Raises:
        CaptureFormatError: The run has no recording, or it is missing.
    """
    options = run.header.options
    named = next((options[name] for name in _RECORDINGS if name in options), None)
    if named is None:
        message = "the run has no recording, so its launches were not stored"
        remedy = "measure with --gpuperf-record=DIR, which stores every launch"
        raise CaptureFormatError(message, remedy=remedy, path=path)
    for folder in (Path(named), Path(path).parent / named):
        if folder.is_dir():
            session = read_recording(str(folder)).session
            if session.id == run.header.session.id:
                return str(folder)
    message = f"the recording {named}, which has its launches, does not exist here"
    raise CaptureFormatError(
        message, remedy="name its folder: gpuperf show DIR --launches", path=path
    )
