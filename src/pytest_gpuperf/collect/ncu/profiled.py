"""The values of one launch, and what their sums mean; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pytest_gpuperf.collect.ncu.launches import MetricFacts, ReportedLaunch
from pytest_gpuperf.collect.ncu.metrics import (
    Metric,
    MetricCorrelation,
    MetricCorrelationData,
    gather,
    labels,
    newer_labels,
)
from pytest_gpuperf.errors import ConfigError, MeasureError, MetricUnavailableError

__all__ = [
    "EVERY",
    "Aggregate",
    "EntryCountError",
    "MetricValue",
    "MissingEntryError",
    "ProfilingMetrics",
    "Wanted",
    "WrongEntryError",
    "added",
    "one_of",
]

MetricValue: TypeAlias = int | float | str | MetricCorrelationData | None

EVERY = ("*",)  # all metrics, as the reading process understands it
# keys of every launch; what one whose profile failed still says truly
_ALWAYS = ("mangled", "demangled")
_DEVICE = "device__attribute_"
_FEW = 5  # names are enough to recognise what is there


class MissingEntryError(MeasureError, KeyError):
    """Results have no entry of that name."""


class WrongEntryError(MeasureError, TypeError):
    """An entry of results is a launch where a node is needed, or the other way round."""


class EntryCountError(MeasureError, RuntimeError):
    """Results have more entries than the one that was asked for, or none."""


class Aggregate(dict[str, int | float]):
    """
    Sums over launches, by key.

    Attributes:
        left_out: Why each other key has no sum.
    """

    def __init__(
        self, sums: Mapping[str, int | float], left_out: Mapping[str, str]
    ) -> None:
        super().__init__(sums)
        self.left_out = dict(left_out)


class Wanted:
    """
    The metrics that were asked for, and their keys.

    Args:
        metrics: Metrics or names; None: all that each launch has.

    Attributes:
        names: What to ask the reading process for.

        keys: The keys of each metric, by the report's name.

        correlated: The same of those with values by opcode or address.

        aliases: The key by another spelling of it.

    Raises:
        ConfigError: Two values would have one key.
    """

    def __init__(self, metrics: Iterable[Metric | str] | None) -> None:
        self.aliases: Mapping[str, str] = {}
        self._facts: dict[int, tuple[object, Mapping[str, MetricFacts | None]]] = {}
        self.keys: dict[str, list[str]] = {}
        self.correlated: dict[str, list[str]] = {}
        if metrics is None:
            self.names: tuple[str, ...] = EVERY
            return
        asked = [metrics] if isinstance(metrics, str) else list(metrics)
        taken = [key for key in labels(asked) if key in _ALWAYS]
        for each in asked:
            found = (
                self.correlated if isinstance(each, MetricCorrelation) else self.keys
            )
            for name, key in zip(gather([each]), labels([each]), strict=True):
                if key not in found.setdefault(name, []):
                    found[name].append(key)
        plain = {key for keys in self.keys.values() for key in keys}
        taken += [k for keys in self.correlated.values() for k in keys if k in plain]
        if taken:
            message = f"the key {taken[0]!r} would stand for two values"
            remedy = "give the metric another pretty_name"
            raise ConfigError(message, remedy=remedy)
        self.aliases = newer_labels(asked)
        self.names = (*self.keys, *(f"correlated:{name}" for name in self.correlated))

    def missing(self, launch: ReportedLaunch) -> list[str]:
        """Return the metrics that a launch does not have."""
        plain = [
            name
            for name in self.keys
            if name in launch.facts and launch.facts[name] is None
        ]
        return plain + [
            name for name in self.correlated if launch.correlated.get(name) is None
        ]

    def facts(self, launch: ReportedLaunch) -> Mapping[str, MetricFacts | None]:
        """Return what each metric of a launch is, by key; one mapping for many."""
        known = self._facts.get(id(launch.facts))
        if known is None or known[0] is not launch.facts:
            by_key = {
                key: found
                for name, found in launch.facts.items()
                for key in self.keys.get(name, (name,))
            }
            known = self._facts[id(launch.facts)] = (launch.facts, by_key)
        return known[1]

    def values(self, launch: ReportedLaunch) -> dict[str, MetricValue]:
        """Return the values of a launch by key."""
        if not self.keys and not self.correlated:
            return dict(launch.values)
        found: dict[str, MetricValue] = {}
        for name, value in launch.values.items():
            for key in self.keys.get(name, (name,)):
                found[key] = value
        for name, keys in self.correlated.items():
            for key in keys:
                found[key] = launch.correlated.get(name)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class ProfilingMetrics(Mapping[str, MetricValue]):
    """
    The values of one launch by key; reading one that was not measured is an error.

    Attributes:
        data: The values as the report has them; None: absent, NaN or infinite.

        facts: What the report says of each metric, by key; none for what a caller made.

        name: The launch, as `axpy-0`.

        measured: False: profiling this launch failed, and its metrics mean nothing.

        aliases: The key by another spelling of it.
    """

    data: Mapping[str, MetricValue]
    facts: Mapping[str, MetricFacts | None] = field(default_factory=dict, kw_only=True)
    name: str = field(default="", kw_only=True)
    measured: bool = field(default=True, kw_only=True)
    aliases: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def __getitem__(self, key: str) -> MetricValue:
        """
        Return a value.

        Raises:
            MissingEntryError: The launch has no such key; it is a KeyError.

            MetricUnavailableError: It has no value that means something.
        """
        key = key if key in self.data else self.aliases.get(key, key)
        if key not in self.data:
            message = f"{self._title} has no value {key!r}"
            raise MissingEntryError(message, remedy=one_of(self.data))
        reason = self.why_not(key)
        if reason:
            remedy = "leave the launch out, or profile again"
            raise MetricUnavailableError(key, f"{self._title}: {reason}", remedy=remedy)
        return self.data[key]

    def __iter__(self) -> Iterator[str]:
        """Yield the keys."""
        return iter(self.data)

    def __len__(self) -> int:
        """Return how many keys there are."""
        return len(self.data)

    def __eq__(self, other: object) -> bool:
        """Return whether the values are the same, unmeasured ones included."""
        if isinstance(other, ProfilingMetrics):
            return self.measured == other.measured and self.data == other.data
        return self.data == other if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment] # as any mapping that compares by value

    def __contains__(self, key: object) -> bool:
        """Return whether the launch has a key, measured or not."""
        return key in self.data or key in self.aliases

    def why_not(self, key: str) -> str:
        """Return why a key has no value that means something; empty: it has one."""
        if not self.measured and not (key in _ALWAYS or key.startswith(_DEVICE)):
            return "profiling it failed"
        if self.data[key] is None:
            return "its value is absent, NaN or infinite"
        return ""

    @property
    def _title(self) -> str:
        return f"launch {self.name}" if self.name else "this launch"


def added(
    leaves: Sequence[ProfilingMetrics], keys: Iterable[str] | None = None
) -> Aggregate:
    """
    Return sums over launches of what is additive.

    Args:
        leaves: The launches.

        keys: What to add; None: all that any launch has, but for its names.
    """
    every = (key for leaf in leaves for key in leaf if key not in _ALWAYS)
    asked = tuple(dict.fromkeys(every if keys is None else keys))
    reasons = {key: _why_no_sum(key, leaves) for key in asked}
    return Aggregate(
        {key: _sum(key, leaves) for key in asked if not reasons[key]},
        {key: reason for key, reason in reasons.items() if reason},
    )


def _why_no_sum(key: str, leaves: Iterable[ProfilingMetrics]) -> str:
    """Return why a key has no sum over launches; empty: it has one."""
    for leaf in leaves:
        if key not in leaf:
            return f"{leaf.name or 'a launch'} has no such value"
        key = leaf.aliases.get(key, key)
        facts, value = leaf.facts.get(key), leaf.data[key]
        if facts is not None and not facts.is_additive:
            return _not_additive(facts)
        reason = leaf.why_not(key)
        if reason:
            return f"{leaf.name or 'a launch'}: {reason}"
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            return "it is no finite number"
    return ""


def _not_additive(facts: MetricFacts) -> str:
    """Return why a metric does not add up."""
    if facts.subtype is not None:
        return f"{facts.subtype} does not add up"
    if facts.type != "counter":
        return "it is no counter"
    return f"its roll-up is {facts.rollup or 'none'}, not sum"


def _sum(key: str, leaves: Iterable[ProfilingMetrics]) -> int | float:
    """Return a sum; of integers exact, of others rounded once."""
    found = [leaf[key] for leaf in leaves]
    values = [value for value in found if isinstance(value, (int, float))]
    whole = [value for value in values if isinstance(value, int)]
    return sum(whole) if len(whole) == len(values) else math.fsum(values)


def one_of(entries: Iterable[str]) -> str:
    """Return what to ask for instead, as the remedy of an error."""
    names = list(entries)
    if not names:
        return "it is empty: choose other launches"
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return f"ask for one of {', '.join(names[:_FEW])}{more}"
