"""Launches of a `.ncu-rep`, as records."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import msgspec

from pytest_gpuperf.collect.ncu.forms import ALL, COLUMNS
from pytest_gpuperf.collect.ncu.metrics import MetricCorrelationData
from pytest_gpuperf.collect.ncu.nvtx import LaunchFilter
from pytest_gpuperf.collect.ncu.text import capture_text, report_text
from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.errors import CaptureFormatError, RecordError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.launch import (
    Capture,
    CapturedLaunch,
    CapturedValue,
    NvtxDomain,
    ProfiledLaunch,
)


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
    return msgspec.json.decode(text, type=Capture)


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


class ReportedLaunch(ProfiledLaunch, frozen=True, kw_only=True):
    """
    One profiled launch with the requested metrics.

    Attributes:
        mangled: The name in the binary.

        values: Values by the report's name, or None if absent, NaN or infinite. An
            integral floating-point number is an integer.

        facts: The facts of each metric, or None if the launch has no such metric.

        correlated: Values by opcode or address, or None if the metric has none.
    """

    mangled: str
    values: Mapping[str, int | float | str | None]
    facts: Mapping[str, MetricFacts | None]
    correlated: Mapping[str, MetricCorrelationData | None]

    @property
    def key(self) -> str:
        """The name of the launch in a tree, as `axpy-0`."""
        return f"{self.kernel}-{self.index}"

    @property
    def nvtx(self) -> tuple[NvtxDomain, ...]:
        """The open NVTX ranges by domain."""
        return self.domains


_Value = int | float | str | None


class _Correlated(Frozen, frozen=True, kw_only=True):
    value: _Value
    pairs: list[tuple[int | str | None, _Value]] | None = None


class _LaunchText(ProfiledLaunch, frozen=True, kw_only=True):
    """
    A launch as written, without lists that are equal in the launch before.

    The form `COLUMNS` has the units, and `LAUNCHES` the mangled name, facts and pairs.
    """

    nvtx: tuple[NvtxDomain, ...]
    values: list[_Value]
    names: list[str] | None = None
    units: list[str] | None = None
    present: tuple[str, ...] = ()
    mangled: str = ""
    facts: list[MetricFacts | None] | None = None
    correlated: Mapping[str, _Correlated | None] = {}


_ReportText = dict[str, list[dict[str, list[_LaunchText]]]]


class PlacedLaunch(CapturedLaunch, frozen=True, kw_only=True):
    """
    A launch with the facts by which a filter chooses it.

    Attributes:
        range_index: Its range in the report, from 0.
    """

    range_index: int


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
        ranges = groupby(self.launches, key=lambda launch: launch.range_index)
        chosen = [each for _, part in ranges for each in launch_filter.chosen([*part])]
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
    sections = msgspec.json.decode(text, type=_ReportText)["ranges"]
    for range_index, section in enumerate(sections):
        for launch in section["launches"]:
            present.update(launch.present)
            units = units if launch.units is None else launch.units
            if launch.names is not None:
                places = {name: place for place, name in enumerate(launch.names)}
            by_domain: dict[str, tuple[str, ...]] = {}
            for domain in launch.nvtx:
                open_ranges = by_domain.get(domain.name, ())
                by_domain[domain.name] = (*open_ranges, *domain.stack, *domain.started)
            placed = PlacedLaunch(
                index=launch.index,
                kernel=launch.kernel,
                demangled=launch.demangled,
                measured=launch.measured,
                workload=launch.workload,
                domains=launch.nvtx,
                nvtx=by_domain,
                metrics=_CounterRow(places, units, launch.values),
                range_index=range_index,
            )
            launches.append(placed)
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
    for section in msgspec.json.decode(text, type=_ReportText)["ranges"]:
        launches = []
        for launch in section["launches"]:
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
                    measured=launch.measured,
                    workload=launch.workload,
                    domains=launch.nvtx,
                    values=dict(zip(names, launch.values, strict=True)),
                    facts=by_name,
                    correlated={n: _data(m) for n, m in launch.correlated.items()},
                )
            )
        ranges.append(tuple(launches))
    return tuple(ranges)


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
