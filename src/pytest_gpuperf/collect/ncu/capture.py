"""A `.ncu-rep` as records."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TypedDict

from pytest_gpuperf.collect.ncu.text import capture_text
from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.model.frozen import Frozen

__all__ = [
    "Capture",
    "CapturedLaunch",
    "CapturedRange",
    "CapturedValue",
    "capture_text",
    "decode_capture",
    "metric_names",
    "read_capture",
]

_MOST_BYTES = 64 * 2**20  # of a report that is read only for its metrics' names


class CapturedValue(Frozen, frozen=True, kw_only=True):
    """
    One metric of one launch, as in the report.

    Attributes:
        value: The number or the text; None: absent, NaN or infinite.

        unit: As the report spells it, maybe empty; None: the launch has no such metric.
    """

    value: float | str | None
    unit: str | None


class CapturedLaunch(Frozen, frozen=True, kw_only=True):
    """
    One profiled launch.

    Attributes:
        index: Its place in the range, from 0.

        kernel: The function's base name; templates share it.

        demangled: The whole demangled name, control characters and all.

        nvtx:
            The names of the open NVTX ranges by domain: the push/pop stack, outermost
            first, then the start/end ranges. Empty where ncu ran without `--nvtx`.

        measured: False: profiling this launch failed, and its metrics are meaningless.

        metrics: Values by the report's name; a requested metric that is absent has None.
    """

    index: int
    kernel: str
    demangled: str
    nvtx: Mapping[str, tuple[str, ...]]
    measured: bool
    metrics: Mapping[str, CapturedValue]


class CapturedRange(Frozen, frozen=True, kw_only=True):
    """
    Launches that ran in one context, in the order of the report.

    Attributes:
        launches: At least one.
    """

    launches: tuple[CapturedLaunch, ...]


class Capture(Frozen, frozen=True, kw_only=True):
    """
    A whole report.

    Attributes:
        ranges: At least one.
    """

    ranges: tuple[CapturedRange, ...]


class _ValueObject(TypedDict):
    value: float | str | None
    unit: str | None


class _LaunchObject(TypedDict):
    index: int
    kernel: str
    demangled: str
    nvtx: Mapping[str, Sequence[str]]
    measured: bool
    metrics: Mapping[str, _ValueObject]


def read_capture(
    path: str | os.PathLike[str],
    *,
    runner: Runner,
    metrics: Sequence[str] | None = None,
    python: str = sys.executable,
    timeout_s: float = 120.0,
) -> Capture:
    """
    Read a report; the arguments and errors are those of `capture_text`.

    Returns:
        The launches with the requested metrics.
    """
    text = capture_text(
        path, runner=runner, metrics=metrics, python=python, timeout_s=timeout_s
    )
    return decode_capture(text)


def decode_capture(text: bytes) -> Capture:
    """
    Return a report.

    Args:
        text: What `capture_text` returns.
    """
    return Capture(
        ranges=tuple(
            CapturedRange(launches=tuple(map(_launch, section["launches"])))
            for section in json.loads(text)["ranges"]
        )
    )


def metric_names(
    path: str | os.PathLike[str], *, runner: Runner, python: str = sys.executable
) -> tuple[str, ...]:
    """
    Return the metrics that any launch of a report has; none of a huge report.

    The arguments and errors are those of `capture_text`.
    """
    if os.path.getsize(path) > _MOST_BYTES:  # noqa: PTH202 - as in text
        return ()
    capture = read_capture(path, runner=runner, python=python)
    launches = (launch for section in capture.ranges for launch in section.launches)
    return tuple(dict.fromkeys(name for launch in launches for name in launch.metrics))


def _launch(launch: _LaunchObject) -> CapturedLaunch:
    return CapturedLaunch(
        index=launch["index"],
        kernel=launch["kernel"],
        demangled=launch["demangled"],
        nvtx={name: tuple(ranges) for name, ranges in launch["nvtx"].items()},
        measured=launch["measured"],
        metrics={
            # a report repeats some 300 names and 20 units in every launch
            sys.intern(name): CapturedValue(
                value=metric["value"],
                unit=None if metric["unit"] is None else sys.intern(metric["unit"]),
            )
            for name, metric in launch["metrics"].items()
        },
    )
