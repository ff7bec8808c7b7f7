"""Captures as JSON with what their counters say, and two of them compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuperf.cli.output import (
    CAPTURE_START,
    exit_code,
    print_table,
    told_on_terminals,
)
from pytest_gpuperf.collect.ncu.launches import CapturedLaunch, read_capture
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.collect.translate.counters import captured_facts, standard_counters
from pytest_gpuperf.errors import CaptureFormatError, ConfigError
from pytest_gpuperf.judge.files import (
    COMPARED,
    CaptureSide,
    KernelCounters,
    captures_pass,
    differences,
    mismatch,
)
from pytest_gpuperf.measure.captured import capture_values, details, first_counters
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.report.captures import (
    difference_columns,
    difference_remarks,
    mismatch_gap,
)

if TYPE_CHECKING:
    import argparse

__all__ = ["capture_json", "compare_captures"]

_SCHEMA = "pytest-gpuperf/capture-comparison/1"


def compare_captures(paths: Sequence[str], arguments: argparse.Namespace) -> int:
    """
    Show what changed between two captures, kernel by kernel.

    Args:
        paths: The older one and the newer one.

        arguments: Those of `compare`.

    Raises:
        ConfigError: They are not two, or of different GPUs or clocks.
    """
    if len(paths) != 2:  # noqa: PLR2004 - then and now
        message = f"{len(paths)} captures were named, and two are compared"
        raise ConfigError(
            message, remedy="name the older one first, then the newer one"
        )
    was, now = (_capture(path) for path in paths)
    obstacle = mismatch(was, now)
    if obstacle is not None:
        gap = mismatch_gap(obstacle, paths, was, now)
        raise ConfigError(gap.reason, remedy=gap.remedy)
    compared = list(differences(was, now))
    clocks = [was.clock_hz, now.clock_hz]
    print_table(
        arguments.format,
        title=" -> ".join(PurePath(path).name for path in paths),
        table=difference_columns(compared),
        remarks=difference_remarks(compared, clocks),
        content={
            "schema": _SCHEMA,
            "sm_clocks_hz": clocks,
            "differences": [
                {
                    "kernel": difference.kernel,
                    "metric": difference.metric,
                    "unit": difference.unit,
                    "was": difference.was,
                    "now": difference.now,
                    "verdict": difference.direction,
                }
                for difference in compared
            ],
        },
    )
    return exit_code(passes=captures_pass(compared), strict=arguments.strict)


def _capture(path: str) -> CaptureSide:
    """Return the launches of a capture that were measured, by kernel."""
    with told_on_terminals(f"reading {path}"):
        capture = read_capture(path, runner=ProcessRunner(), metrics=first_counters())
    kernels: dict[str, list[CapturedLaunch]] = {}
    for profiled in capture.ranges:
        for launch in profiled.launches:
            if launch.measured:
                name = launch.demangled or launch.kernel
                kernels.setdefault(name, []).append(launch)
    if not kernels:
        message = "none of its launches was measured"
        raise CaptureFormatError(message, remedy="profile again", path=path)
    launches = [launch for group in kernels.values() for launch in group]
    return CaptureSide(
        device=captured_facts(launches[0]),
        clock_hz=_clock_hz(launches),
        kernels={name: _counters(group) for name, group in kernels.items()},
    )


def _clock_hz(launches: Iterable[CapturedLaunch]) -> float | None:
    """Return the mean clock of launches, weighted by time; None: not collected."""
    pairs = []
    for launch in launches:
        values = standard_counters(launch, ("duration_s", "sm_clock_hz")).values
        if values.keys() >= {"duration_s", "sm_clock_hz"}:
            pairs.append((values["duration_s"], values["sm_clock_hz"]))
    whole_s = math.fsum(time_s for time_s, _ in pairs)
    if not whole_s > 0:
        return None
    return math.fsum(time_s * hertz for time_s, hertz in pairs) / whole_s


def _counters(launches: Sequence[CapturedLaunch]) -> KernelCounters:
    """Return time and metrics of a kernel's launches together."""
    counters = (
        standard_counters(launch, ("duration_s",)).values for launch in launches
    )
    estimates, _ = capture_values(launches, COMPARED, None)
    return KernelCounters(
        time_s=math.fsum(values.get("duration_s", 0.0) for values in counters),
        values={e.metric: (e.value, e.unit) for e in estimates if e.kernel is None},
    )


class _Range(msgspec.Struct):
    launches: list[msgspec.Raw]


class _Document(msgspec.Struct):
    """A capture as its reader wrote it, the launches not decoded."""

    ranges: list[_Range]


def capture_json(text: bytes, places: set[tuple[int, int]] | None = None) -> bytes:
    """
    Return a capture with what its counters say.

    Args:
        text: The capture, as its reader wrote it.

        places: The range and index of the launches that are wanted; None: all.
    """
    decoder = msgspec.json.Decoder(CapturedLaunch)
    ranges = []
    for number, section in enumerate(msgspec.json.decode(text, type=_Document).ranges):
        launches = []
        for raw in section.launches:
            launch = decoder.decode(raw)
            if places is None or (number, launch.index) in places:
                launches.append(_explained(bytes(raw), launch))
        ranges.append(b'{"launches":[%b]}' % b",".join(launches))
    return CAPTURE_START + b'"ranges":[%b]}\n' % b",".join(ranges)


def _explained(raw: bytes, launch: CapturedLaunch) -> bytes:
    """Return a launch's object with what its counters say behind them."""
    if not launch.measured:
        return raw[:-1] + b',"analysis":null,"derived":{}}'
    explained = details(launch)
    added = {
        "analysis": explained.analysis,
        "derived": {
            name: {"value": value, "unit": METRICS[name].unit}
            for name, value in explained.derived.items()
        },
        "clocks": {
            "sm_hz": explained.values.get("sm_clock_hz"),
            "dram_hz": explained.values.get("dram_clock_hz"),
            "rated_hz": explained.rated_clock_hz,
        },
        "rooflines": explained.rooflines,
    }
    return raw[:-1] + b"," + msgspec.json.encode(added)[1:]
