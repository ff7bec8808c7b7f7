"""The values of one launch, and what their sums mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.ncu.asked import NAMES
from pytest_gpuperf.errors import MetricUnavailableError, MissingEntryError

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.launches import MetricFacts
    from pytest_gpuperf.collect.ncu.metrics import MetricValue

__all__ = ["Aggregate", "ProfilingMetrics", "added", "one_of"]

_DEVICE = "device__attribute_"  # what a launch whose profile failed still says truly
_FEW = 5  # names are enough to recognise what is there


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


@dataclass(frozen=True, slots=True, eq=False)  # a Struct cannot be a Mapping
class ProfilingMetrics(Mapping[str, "MetricValue"]):
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
        if not self.measured and not (key in NAMES or key.startswith(_DEVICE)):
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
    every = (key for leaf in leaves for key in leaf if key not in NAMES)
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
