"""What a person asked to see of a report or a run, and what it lacks."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.ncu.capture import (
    Capture,
    CapturedLaunch,
    CapturedRange,
    CapturedValue,
)
from pytest_gpuperf.collect.translate.counters import CAPABILITY, vendor_names
from pytest_gpuperf.compute.derive import needed_counters
from pytest_gpuperf.errors import CaptureFormatError, ConfigError
from pytest_gpuperf.measure.captured import capture_values, report_counters
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import METRICS, is_counter
from pytest_gpuperf.model.sample import Unmeasured

if TYPE_CHECKING:
    from pytest_gpuperf.model.activity import Trace
    from pytest_gpuperf.model.record import Record
    from pytest_gpuperf.model.run import Run

__all__ = [
    "absent_from_run",
    "kept_traces",
    "recording_of",
    "refuse_catalogue",
    "selected",
]

_LIKENESS = 0.6  # difflib's own bound of what a person may have meant
_SHOWN_NAMES = 3  # more names of one mistake hide the right one

_RECORDINGS = ("gpuperf_record", "gpuperf_replay")  # options that name one

_Read = Callable[[Sequence[str] | None], Capture]


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
    measured = [one for each in capture.ranges for one in each.launches if one.measured]
    if measured and catalogue:
        gaps = {gap.metric: gap for gap in capture_values(measured, catalogue, None)[1]}
    ranges = tuple(
        CapturedRange(
            launches=tuple(_with(one, catalogue, gaps) for one in each.launches)
        )
        for each in capture.ranges
    )
    absent = _absent([name for name in metrics if name not in METRICS], capture)
    held = (
        _counters(read(None)) if absent else set()
    )  # all are read for a mistake alone
    told = [f"{gap.metric} n/a: {gap.reason}; {gap.remedy}" for gap in gaps.values()]
    told += [_uncollected(name, held) for name in absent]
    return replace(capture, ranges=ranges), tuple(told)


def refuse_catalogue(metrics: Iterable[str]) -> None:
    """
    Refuse metrics of the catalogue where a report's own counters are printed.

    Raises:
        ConfigError: Some are; the counters that they are made of are named.
    """
    ours = [name for name in metrics if name in METRICS]
    if not ours:
        return
    counters = [
        name for name in vendor_names(needed_counters(ours)) if name not in CAPABILITY
    ]
    message = (
        "JSON has the report's own counters, and no counter is called "
        f"{' or '.join(ours)}"
    )
    named = f"name what it is made of, --metrics={','.join(counters)}, or "
    raise ConfigError(message, remedy=f"{named if counters else ''}leave --format out")


def absent_from_run(run: Run, metrics: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence for each metric that a run does not have."""
    held = {each.metric for record in run.records for each in record.estimates}
    held |= {verdict.metric for verdict in run.verdicts}
    return tuple(_unknown(name, "run", held) for name in metrics if name not in held)


def kept_traces(folder: str) -> Iterator[tuple[Record, Trace]]:
    """
    Yield the measurements of a recording that have a trace, each with it.

    Raises:
        CaptureFormatError: It is no recording, is damaged, or has no trace.
    """
    from pytest_gpuperf.collect.replay import read_recording
    from pytest_gpuperf.collect.traces import read_trace

    found = False
    for record in read_recording(folder).records.values():
        place = None if record.activity is None else record.activity.kept
        if place is not None:
            found = True
            yield record, read_trace(folder, place)
    if not found:
        message = "it has no launches: nobody saw what the GPU did"
        remedy = "record where the header of a run names cupti; see gpuperf doctor"
        raise CaptureFormatError(message, remedy=remedy, path=folder)


def recording_of(run: Run, path: str) -> str:
    """
    Return the recording that a run made, or was judged from.

    Args:
        run: The run.

        path: Its file: a folder may be told from where that lies, or from here.

    Raises:
        CaptureFormatError: The run kept none, or it is not there any more.
    """
    from pytest_gpuperf.collect.replay import read_recording

    options = run.header.options
    told = next((options[name] for name in _RECORDINGS if name in options), None)
    if told is None:
        message = "its launches were not kept"
        remedy = "measure with --gpuperf-record=DIR: the launches are kept in there"
        raise CaptureFormatError(message, remedy=remedy, path=path)
    for folder in (Path(told), Path(path).parent / told):
        if folder.is_dir():
            session = read_recording(str(folder)).session
            if session.id == run.header.session.id:
                return str(folder)
    message = f"its launches are in the recording {told}, which is not here"
    raise CaptureFormatError(
        message, remedy="name that folder: gpuperf show DIR --launches", path=path
    )


def _with(
    launch: CapturedLaunch, metrics: Sequence[str], gaps: dict[str, Unmeasured]
) -> CapturedLaunch:
    """Return a launch with metrics of the catalogue; `gaps` gets those it lacks."""
    if not (launch.measured and metrics):
        return launch
    estimates, absent = capture_values([launch], metrics, None)
    for gap in absent:
        gaps.setdefault(gap.metric, gap)
    values = {
        each.metric: CapturedValue(value=each.value, unit=each.unit)
        for each in estimates
        if each.kernel is None
    }
    return replace(launch, metrics={**launch.metrics, **values})


def _absent(names: Sequence[str], capture: Capture) -> list[str]:
    """Return the counters that no launch has."""
    held = _counters(capture)
    return [name for name in names if name not in held]


def _counters(capture: Capture) -> set[str]:
    """Return the counters that any launch has."""
    return {
        name
        for each in capture.ranges
        for launch in each.launches
        for name, found in launch.metrics.items()
        if found.value is not None
    }


def _uncollected(name: str, held: set[str]) -> str:
    """Return that no launch has a counter, and how to collect it."""
    if not is_counter(name):
        return _unknown(name, "capture", held | METRICS.keys())
    told = _unknown(name, "capture", held)
    joint = " if not," if told.endswith("?") else ";"
    return f"{told}{joint} collect it: ncu --metrics {name}"


def _unknown(name: str, where: str, held: Iterable[str]) -> str:
    """Return that a name is not there, with what may have been meant."""
    close = difflib.get_close_matches(
        name, sorted(held), n=_SHOWN_NAMES, cutoff=_LIKENESS
    )
    meant = f"; did you mean {', '.join(close)}?" if close else ""
    return f"not in this {where}: {name}{meant}"
