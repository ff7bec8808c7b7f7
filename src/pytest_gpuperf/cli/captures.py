"""Captures as JSON with what their counters say, and two of them compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuperf.cli.output import (
    CAPTURE_START,
    GOOD,
    UNDECIDED,
    WORSE,
    print_table,
)
from pytest_gpuperf.collect.ncu.launches import (
    Capture,
    CapturedLaunch,
    read_capture,
)
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.collect.translate.counters import captured_facts, standard_counters
from pytest_gpuperf.compute.derive import FORMULAS
from pytest_gpuperf.errors import CaptureFormatError, ConfigError
from pytest_gpuperf.measure.captured import capture_values, details, first_counters
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.metric import METRICS, Better
from pytest_gpuperf.report import display
from pytest_gpuperf.report.captures import plain_name
from pytest_gpuperf.report.lines import Column

if TYPE_CHECKING:
    import argparse

__all__ = ["capture_json", "compare_captures"]

_SCHEMA = "pytest-gpuperf/capture-comparison/1"
_SLACK = 0.02  # two passes over one launch differ by less (compute.limiter)
# ours: boost and base clock of a GPU are a fifth apart and more, and the clocks of two
# captures at one setting differ by less than this, unless all kernels are very short
_SAME_CLOCK = 0.10
_COUNT = "launches.count"
_TIME = "time"
_COMPARED = (_COUNT, *(name for name in FORMULAS if name in METRICS))


class _Difference(Frozen, frozen=True, kw_only=True):
    """
    One metric of one kernel, then and now.

    Attributes:
        kernel: The kernel's whole name.

        metric: A name of the catalogue.

        unit: Of both values.

        was: The value in the first capture [unit]; None: it has none.

        now: The value in the second one [unit].
    """

    kernel: str
    metric: str
    unit: str
    was: float | None
    now: float | None

    @property
    def verdict(self) -> str:
        """`same`, `better`, `worse`, `changed`, `new`, `gone`; "" for what is shown only."""
        if self.was is None or self.now is None:
            return "new" if self.was is None else "gone"
        if self.metric == _TIME:  # one launch under a profiler says little of it
            return ""
        change = self.now - self.was
        if abs(change) <= self._slack:
            return "same"
        better = METRICS[self.metric].better
        if better is Better.NEITHER:
            return "changed"
        return "worse" if (change > 0) is (better is Better.LOWER) else "better"

    @property
    def _slack(self) -> float:
        """How far equal values may lie apart [unit]."""
        if METRICS[self.metric].exact or self.metric == _COUNT:
            return 0.0
        if self.unit == "fraction":
            return _SLACK
        return _SLACK * max(abs(self.was or 0.0), abs(self.now or 0.0))


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
    was, now = (_kernels(path) for path in paths)
    clocks = _common_clock(paths, was, now)
    differences = list(_differences(was, now))
    print_table(
        arguments.format,
        title=" -> ".join(PurePath(path).name for path in paths),
        table=_columns([d for d in differences if d.verdict != "same"]),
        remarks=_remarks(differences, clocks),
        content={
            "schema": _SCHEMA,
            "sm_clocks_hz": clocks,
            "differences": [
                {
                    "kernel": d.kernel,
                    "metric": d.metric,
                    "unit": d.unit,
                    "was": d.was,
                    "now": d.now,
                    "verdict": d.verdict or None,
                }
                for d in differences
            ],
        },
    )
    if any(d.verdict == "worse" for d in differences):
        return WORSE
    decided = any(d.verdict in {"same", "better"} for d in differences)
    return UNDECIDED if arguments.strict and not decided else GOOD


_Kernels = dict[str, list[CapturedLaunch]]


def _kernels(path: str) -> _Kernels:
    """Return the launches of a capture that were measured, by kernel."""
    capture: Capture = read_capture(
        path, runner=ProcessRunner(), metrics=first_counters()
    )
    kernels: _Kernels = {}
    for captured in capture.ranges:
        for launch in captured.launches:
            if launch.measured:
                name = launch.demangled or launch.kernel
                kernels.setdefault(name, []).append(launch)
    if not kernels:
        message = "none of its launches was measured"
        raise CaptureFormatError(message, remedy="profile again", path=path)
    return kernels


def _common_clock(
    paths: Sequence[str], was: _Kernels, now: _Kernels
) -> list[float | None]:
    """
    Return the mean clock of both captures [Hz]; None: not collected.

    Raises:
        ConfigError: They ran on different GPUs, or at different clocks.
    """
    sides = [
        [launch for part in side.values() for launch in part] for side in (was, now)
    ]
    facts = [captured_facts(side[0]) for side in sides]
    if facts[0] != facts[1]:
        named = " and ".join(
            " ".join(fact.values()) or "an unknown GPU" for fact in facts
        )
        message = f"{paths[0]} and {paths[1]} are of different GPUs: {named}"
        raise ConfigError(message, remedy="profile both on one kind of GPU")
    clocks = [_clock_hz(side) for side in sides]
    first, second = clocks
    if first and second and abs(first - second) > _SAME_CLOCK * max(first, second):
        shown = " and ".join(display.value(hertz, "Hz") for hertz in (first, second))
        message = f"their SM clocks differ: {shown}"
        remedy = "profile both with the same ncu --clock-control, on a GPU at rest"
        raise ConfigError(message, remedy=remedy)
    return clocks


def _clock_hz(launches: Iterable[CapturedLaunch]) -> float | None:
    """Return the mean clock of launches, weighed with their times; None: not collected."""
    pairs = []
    for launch in launches:
        values = standard_counters(launch, ("duration_s", "sm_clock_hz")).values
        if values.keys() >= {"duration_s", "sm_clock_hz"}:
            pairs.append((values["duration_s"], values["sm_clock_hz"]))
    whole_s = math.fsum(time_s for time_s, _ in pairs)
    if not whole_s > 0:
        return None
    return math.fsum(time_s * hertz for time_s, hertz in pairs) / whole_s


def _differences(was: _Kernels, now: _Kernels) -> Iterator[_Difference]:
    """
    Yield the metrics of each kernel, then and now; the longest kernel first.

    The kernels of captures of one kernel each are compared whatever they are called: who
    tries a variant gives it another name.
    """
    if len(was) == len(now) == 1:
        was = dict(zip(now, was.values(), strict=True))
    names = dict.fromkeys((*now, *was))
    for name in sorted(names, key=lambda n: -_seconds(now.get(n) or was[n])):
        then_values, values = (_values(side.get(name, ())) for side in (was, now))
        if name not in was or name not in now:
            then_values, values = (
                {_COUNT: side[_COUNT]} if _COUNT in side else {}
                for side in (then_values, values)
            )
        for metric in dict.fromkeys((*values, *then_values)):
            _, unit = values.get(metric) or then_values[metric]
            yield _Difference(
                kernel=name,
                metric=metric,
                unit=unit,
                was=then_values[metric][0] if metric in then_values else None,
                now=values[metric][0] if metric in values else None,
            )


def _seconds(launches: Sequence[CapturedLaunch]) -> float:
    """Return the time of launches together [s]; 0: not timed."""
    values = (standard_counters(launch, ("duration_s",)).values for launch in launches)
    return math.fsum(value.get("duration_s", 0.0) for value in values)


def _values(launches: Sequence[CapturedLaunch]) -> dict[str, tuple[float, str]]:
    """Return the metrics of a kernel's launches, each with its unit."""
    if not launches:
        return {}
    estimates, _ = capture_values(launches, _COMPARED, None)
    values = {e.metric: (e.value, e.unit) for e in estimates if e.kernel is None}
    time_s = _seconds(launches)
    return ({_TIME: (time_s, "s")} if time_s else {}) | values


def _columns(differences: Sequence[_Difference]) -> tuple[Column, ...]:
    """Return a line for each metric that is not the same."""
    kernels = tuple(display.escape(plain_name(d.kernel)) for d in differences)
    return (
        Column(head="kernel", cells=kernels, shrinks=True),
        Column(head="metric", cells=tuple(d.metric for d in differences)),
        Column(
            head="was",
            cells=tuple(_shown(d.was, d.unit) for d in differences),
            right=True,
            blank="-",
        ),
        Column(
            head="now",
            cells=tuple(_shown(d.now, d.unit) for d in differences),
            right=True,
            blank="-",
        ),
        Column(head="change", cells=tuple(map(_change, differences)), right=True),
        Column(head="verdict", cells=tuple(d.verdict for d in differences)),
    )


def _shown(value: float | None, unit: str) -> str:
    """Return a value with its unit; "" where there is none."""
    return "" if value is None else display.value(value, unit)


def _change(difference: _Difference) -> str:
    """Return a change: of shares the difference, of amounts the ratio."""
    was, now = difference.was, difference.now
    if was is None or now is None or was == now:
        return ""
    if difference.unit == "fraction":
        return display.points(now - was)
    return display.change(now / was - 1) if was else ""


def _remarks(
    differences: Sequence[_Difference], clocks: Sequence[float | None]
) -> list[str]:
    """Return what stands below the table, a sentence each."""
    same = sum(d.verdict == "same" for d in differences)
    shown = [display.value(hertz, "Hz") for hertz in clocks if hertz]
    slack = display.whole_percent(_SLACK)
    remarks = [
        f"the same: {display.plural(same, 'metric')}, counts exactly and others within {slack}"
    ]
    if shown:
        remarks.append(
            f"time is not judged: each launch ran alone under ncu, at {' and '.join(shown)}"
        )
    return remarks


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
    said = details(launch)
    added = {
        "analysis": said.analysis,
        "derived": {
            name: {"value": value, "unit": METRICS[name].unit}
            for name, value in said.derived.items()
        },
        "clocks": {
            "sm_hz": said.values.get("sm_clock_hz"),
            "dram_hz": said.values.get("dram_clock_hz"),
            "rated_hz": said.rated_clock_hz,
        },
        "rooflines": said.rooflines,
    }
    return raw[:-1] + b"," + msgspec.json.encode(added)[1:]
