"""Launches of a `.ncu-rep`, as records."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from pytest_gpuperf.collect.ncu.extract import ALL, COLUMNS
from pytest_gpuperf.collect.ncu.metrics import MetricCorrelationData
from pytest_gpuperf.collect.ncu.nvtx import LaunchFilter, NvtxDomain
from pytest_gpuperf.collect.ncu.text import capture_text, report_text
from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.collect.translate.counters import KERNEL
from pytest_gpuperf.errors import CaptureFormatError, RecordError
from pytest_gpuperf.model.counters import LaunchAdvice
from pytest_gpuperf.model.frozen import Frozen

__all__ = [
    "Capture",
    "CapturedLaunch",
    "CapturedRange",
    "CapturedValue",
    "MetricFacts",
    "PlacedLaunch",
    "ReadReport",
    "ReportedLaunch",
    "capture_text",
    "decode_advice",
    "decode_capture",
    "decode_launches",
    "read_capture",
    "read_report",
]


class CapturedValue(Frozen, frozen=True, kw_only=True):
    """
    One metric of one launch, as in the report.

    Attributes:
        value: The number or the text, or None if absent, NaN or infinite.

        unit: The unit as the report spells it, maybe empty, or None if the launch has
            no such metric.
    """

    value: float | str | None
    unit: str | None


class CapturedLaunch(Frozen, frozen=True, kw_only=True):
    """
    One profiled launch.

    Attributes:
        index: Its place in the range, from 0.

        kernel: The function's base name, shared by the instances of a template.

        demangled: The whole demangled name, control characters and all.

        nvtx: The names of the open NVTX ranges by domain: the push/pop stack, outermost
            first, then the start/end ranges. Empty if ncu ran without `--nvtx`.

        measured: False if profiling this launch failed, so that its metrics are
            meaningless.

        metrics: Values by the report's name. A requested metric that is absent has
            None.

        workload: `kernel`, or another profiled workload, as `range` and `graph`.
    """

    index: int
    kernel: str
    demangled: str
    nvtx: Mapping[str, tuple[str, ...]]
    measured: bool
    metrics: Mapping[str, CapturedValue]
    workload: str = KERNEL


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


def read_capture(
    path: str | os.PathLike[str],
    *,
    runner: Runner,
    metrics: Sequence[str] | None = None,
) -> Capture:
    """
    Read a report, with the arguments and errors of `capture_text`.

    Returns:
        The launches with the requested metrics.
    """
    return decode_capture(capture_text(path, runner=runner, metrics=metrics))


def decode_capture(text: bytes) -> Capture:
    """
    Return a report.

    Args:
        text: The text returned by `capture_text`.
    """
    ranges = []
    for section in json.loads(text)["ranges"]:
        launches = []
        for launch in section["launches"]:
            metrics = {}
            for name, metric in launch["metrics"].items():
                value, unit = metric["value"], metric["unit"]
                # A report repeats some 300 names and 20 units in every launch.
                unit = None if unit is None else sys.intern(unit)
                metrics[sys.intern(name)] = CapturedValue(value=value, unit=unit)
            launches.append(
                CapturedLaunch(
                    index=launch["index"],
                    kernel=launch["kernel"],
                    demangled=launch["demangled"],
                    nvtx={
                        name: tuple(opened) for name, opened in launch["nvtx"].items()
                    },
                    measured=launch["measured"],
                    metrics=metrics,
                    # Written only if it is not a kernel.
                    workload=launch.get("workload", KERNEL),
                )
            )
        ranges.append(CapturedRange(launches=tuple(launches)))
    return Capture(ranges=tuple(ranges))


class MetricFacts(Frozen, frozen=True, array_like=True):
    """
    A report's facts of one metric.

    Attributes:
        unit: The unit as the report spells it, maybe empty.

        kind: The stored type, as `double`, or `unknown` if it has no value.

        type: `counter`, `ratio`, `throughput` or `other`.

        subtype: The subtype, as `pct_of_peak_sustained_elapsed`, or None for the plain
            quantity.

        rollup: The reduction of its instances, as `sum`, or None.
    """

    unit: str
    kind: str
    type: str
    subtype: str | None
    rollup: str | None

    @property
    def is_additive(self) -> bool:
        """True if the values of two launches can be added."""
        return (self.type, self.subtype, self.rollup) == ("counter", None, "sum")


class ReportedLaunch(Frozen, frozen=True, kw_only=True):
    """
    One profiled launch with the requested metrics.

    Attributes:
        index: Its place in the range, from 0.

        kernel: The function's base name, shared by the instances of a template.

        demangled: The whole demangled name, control characters and all.

        mangled: The name in the binary.

        workload: `kernel`, or another profiled workload, as `range` and `graph`.

        nvtx: The open NVTX ranges by domain. Empty if ncu ran without `--nvtx`.

        measured: False if profiling this launch failed, so that its metrics are
            meaningless.

        values: Values by the report's name, or None if absent, NaN or infinite. An
            integral floating-point number is an integer.

        facts: The facts of each metric, or None if the launch has no such metric.

        correlated: Values by opcode or address, or None if the metric has none.
    """

    index: int
    kernel: str
    demangled: str
    mangled: str
    workload: str
    nvtx: tuple[NvtxDomain, ...]
    measured: bool
    values: Mapping[str, int | float | str | None]
    facts: Mapping[str, MetricFacts | None]
    correlated: Mapping[str, MetricCorrelationData | None]

    @property
    def key(self) -> str:
        """The name of the launch in a tree, as `axpy-0`."""
        return f"{self.kernel}-{self.index}"


_Value = int | float | str | None


class _Correlated(Frozen, frozen=True, kw_only=True):
    value: _Value
    pairs: list[tuple[int | str | None, _Value]] | None = None


class _LaunchText(Frozen, frozen=True, kw_only=True):
    """A launch as written, without fields that are equal in the launch before."""

    index: int
    kernel: str
    demangled: str
    mangled: str
    workload: str
    nvtx: tuple[NvtxDomain, ...]
    measured: bool
    values: list[_Value]
    names: list[str] | None = None
    facts: list[MetricFacts | None] | None = None
    correlated: dict[str, _Correlated | None] = msgspec.field(default_factory=dict)


class _RangeText(Frozen, frozen=True, kw_only=True):
    launches: list[_LaunchText]


class _Report(Frozen, frozen=True, kw_only=True):
    ranges: list[_RangeText]


class PlacedLaunch(Frozen, frozen=True, kw_only=True):
    """
    A launch with the facts by which a filter chooses it.

    Attributes:
        range_index: Its range in the report, from 0.

        nvtx: The open NVTX ranges by domain. Empty if ncu ran without `--nvtx`.

        launch: The launch, with those of the requested metrics that it has.
    """

    range_index: int
    nvtx: tuple[NvtxDomain, ...]
    launch: CapturedLaunch

    @property
    def index(self) -> int:
        """The place of the launch in the range, from 0."""
        return self.launch.index

    @property
    def kernel(self) -> str:
        """The function's base name."""
        return self.launch.kernel

    @property
    def demangled(self) -> str:
        """The whole demangled name."""
        return self.launch.demangled


class ReadReport(Frozen, frozen=True, kw_only=True):
    """
    A report with some metrics.

    Attributes:
        launches: All launches, in the order of the report, >= 1.

        names: The metrics that any launch has, requested or not.
    """

    launches: tuple[PlacedLaunch, ...]
    names: frozenset[str]

    def chosen(
        self, launch_filter: LaunchFilter, path: str | os.PathLike[str]
    ) -> list[PlacedLaunch]:
        """
        Return the launches that a filter chooses, range by range.

        Args:
            launch_filter: The filter.

            path: The report, for the message.

        Raises:
            CaptureFormatError: The filter chooses no launch. The remedy lists the
                launches.
        """
        count = self.launches[-1].range_index + 1
        ranges = [
            [p for p in self.launches if p.range_index == n] for n in range(count)
        ]
        chosen = [placed for part in ranges for placed in launch_filter.chosen(part)]
        if not chosen:
            message = f"none of its {len(self.launches)} launches is chosen"
            remedy = launch_filter.remedy(self.launches)
            raise CaptureFormatError(message, remedy=remedy, path=os.fspath(path))
        return chosen


class _CounterRow(Mapping[str, CapturedValue]):
    """
    The metrics of one launch. The launches of a report share names and units.

    A value takes 32 bytes of memory, instead of 200 as an object in a dictionary.
    """

    __slots__ = ("_places", "_units", "_values")

    def __init__(
        self,
        places: Mapping[str, int],
        units: Sequence[str],
        values: Sequence[_Value],
    ) -> None:
        self._places = places
        self._units = units
        self._values = values

    def __contains__(self, name: object) -> bool:
        """Return True if the launch has a metric. The inherited method would create its value."""
        return name in self._places

    def __getitem__(self, name: str) -> CapturedValue:
        """Return a metric."""
        place = self._places[name]
        return CapturedValue(value=self._values[place], unit=self._units[place])

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._places)

    def __len__(self) -> int:
        """Return the number of metrics."""
        return len(self._places)


class _ColumnsText(Frozen, frozen=True, kw_only=True):
    """A launch as written, without lists that are equal in the launch before."""

    index: int
    kernel: str
    demangled: str
    nvtx: tuple[NvtxDomain, ...]
    measured: bool
    values: list[_Value]
    names: list[str] | None = None
    units: list[str] | None = None
    present: list[str] | None = None
    workload: str = KERNEL


class _ColumnsRange(Frozen, frozen=True, kw_only=True):
    launches: list[_ColumnsText]


class _ColumnsReport(Frozen, frozen=True, kw_only=True):
    ranges: list[_ColumnsRange]


def read_report(
    path: str | os.PathLike[str],
    metrics: Sequence[str] | None,
    *,
    runner: Runner,
) -> ReadReport:
    """
    Read a report for many queries, with the errors of `report_text`.

    Args:
        path: The `.ncu-rep` file.

        metrics: Names of metrics, or None for all metrics of each launch.

        runner: See `report_text`.
    """
    names = (ALL,) if metrics is None else metrics
    text = report_text(path, COLUMNS, names, runner=runner)
    launches: list[PlacedLaunch] = []
    present: set[str] = set()
    places: Mapping[str, int] = {}
    units: Sequence[str] = ()
    report = msgspec.json.decode(text, type=_ColumnsReport)
    for range_index, section in enumerate(report.ranges):
        for launch in section.launches:
            present.update(launch.present or ())
            units = units if launch.units is None else launch.units
            if launch.names is not None:
                places = {name: place for place, name in enumerate(launch.names)}
            by_domain: dict[str, tuple[str, ...]] = {}
            for domain in launch.nvtx:
                open_ranges = by_domain.get(domain.name, ())
                by_domain[domain.name] = (*open_ranges, *domain.stack, *domain.started)
            captured = CapturedLaunch(
                index=launch.index,
                kernel=launch.kernel,
                demangled=launch.demangled,
                nvtx=by_domain,
                measured=launch.measured,
                metrics=_CounterRow(places, units, launch.values),
                workload=launch.workload,
            )
            launches.append(
                PlacedLaunch(range_index=range_index, nvtx=launch.nvtx, launch=captured)
            )
    return ReadReport(launches=tuple(launches), names=frozenset(present))


def decode_launches(text: bytes) -> tuple[tuple[ReportedLaunch, ...], ...]:
    """
    Return the launches of all ranges.

    Args:
        text: An answer of the form `extract.LAUNCHES`.

    Raises:
        RecordError: A metric has two values for one opcode or address.
    """
    names: list[str] = []
    facts: list[MetricFacts | None] = []
    by_name: Mapping[str, MetricFacts | None] = {}
    ranges = []
    for section in msgspec.json.decode(text, type=_Report).ranges:
        launches = []
        for launch in section.launches:
            if launch.names is not None or launch.facts is not None:
                names = names if launch.names is None else launch.names
                facts = facts if launch.facts is None else launch.facts
                by_name = dict(zip(names, facts, strict=True))
            launches.append(
                ReportedLaunch(
                    index=launch.index,
                    kernel=launch.kernel,
                    demangled=launch.demangled,
                    mangled=launch.mangled,
                    workload=launch.workload,
                    nvtx=launch.nvtx,
                    measured=launch.measured,
                    values=dict(zip(names, launch.values, strict=True)),
                    facts=by_name,
                    correlated={n: _data(m) for n, m in launch.correlated.items()},
                )
            )
        ranges.append(tuple(launches))
    return tuple(ranges)


def decode_advice(text: bytes) -> LaunchAdvice:
    """
    Return a report's advice on one launch.

    Args:
        text: An answer of the form `extract.ADVICE`.
    """
    return msgspec.json.decode(text, type=LaunchAdvice)


def _data(metric: _Correlated | None) -> MetricCorrelationData | None:
    if metric is None or metric.pairs is None:
        return None
    pairs = [(at, value) for at, value in metric.pairs if at is not None]
    if len(dict(pairs)) != len(pairs):
        message = "an opcode or an address is given twice"
        raise RecordError(message, path="correlated")
    correlated = {at: value for at, value in pairs if value is not None}
    # The values of a few metrics are texts: names of parts of the machine.
    return MetricCorrelationData(correlated=correlated, value=metric.value)  # type: ignore[arg-type] # see above
