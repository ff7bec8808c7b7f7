"""The command `show` for runs and captures as records."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import GOOD, print_bytes, read_run, say
from pytest_gpuperf.collect.ncu.launches import (
    Capture,
    CapturedLaunch,
    CapturedRange,
    CapturedValue,
    decode_capture,
    read_capture,
)
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.collect.translate.counters import CAPABILITY, vendor_names
from pytest_gpuperf.compute.derive import needed_counters
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.measure.captured import analyses, capture_values, report_counters
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import METRICS, is_counter
from pytest_gpuperf.report.captures import capture_bytes

if TYPE_CHECKING:
    from pytest_gpuperf.model.run import Run
    from pytest_gpuperf.model.sample import Unmeasured

__all__ = [
    "absent_from_run",
    "refuse_catalogue",
    "say_what_lacks",
    "selected",
    "show_capture",
    "show_run",
]

_LIKENESS = 0.6  # difflib's default cutoff
_SHOWN_NAMES = 3  # more suggestions hide the right one

_Read = Callable[[Sequence[str] | None], Capture]


def show_run(file: str, form: str, metrics: tuple[str, ...] | None) -> int:
    """Print a run, and on standard error the metrics that it lacks."""
    # not needed for a capture: a quarter of this module's import time
    from pytest_gpuperf.report.runs import only_metrics, run_bytes

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
        _unknown(name, "run", _alike(name, present))
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
        alike = _alike(name, counters | METRICS.keys())
        return _unknown(name, "capture", alike)
    alike = _alike(name, counters)
    joint = " if not," if alike else ";"
    return f"{_unknown(name, 'capture', alike)}{joint} collect it: ncu --metrics {name}"


def _unknown(name: str, where: str, alike: Sequence[str]) -> str:
    """Return the sentence for a missing name, with suggestions."""
    meant = f"; did you mean {', '.join(alike)}?" if alike else ""
    return f"not in this {where}: {name}{meant}"


def _alike(name: str, names: Iterable[str]) -> list[str]:
    """Return the names closest to a mistyped one."""
    return difflib.get_close_matches(
        name, sorted(names), n=_SHOWN_NAMES, cutoff=_LIKENESS
    )
