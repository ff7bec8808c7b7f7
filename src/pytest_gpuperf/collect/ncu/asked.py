"""Which metrics a reader asks a report for, and under which keys.

Names alone need no class of `metrics`: the reading process is started before any of the
records is loaded that its answer becomes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.ncu.names import name_mistakes, refusal
from pytest_gpuperf.errors import ConfigError

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.launches import MetricFacts, ReportedLaunch
    from pytest_gpuperf.collect.ncu.metrics import Metric, MetricValue

__all__ = ["EVERY", "NAMES", "Wanted"]

EVERY = ("*",)  # all metrics, as the reading process understands it
NAMES = ("mangled", "demangled")  # keys that every launch has beside its metrics


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
        ConfigError: A text is no name, or two values would have one key.
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
        names = [each for each in asked if isinstance(each, str)]
        if len(names) == len(asked):
            self.keys = {_checked(name): [name] for name in names}
        else:
            self._take(asked)
        plain = [key for keys in self.keys.values() for key in keys]
        correlated = [key for keys in self.correlated.values() for key in keys]
        taken = [key for key in (*plain, *correlated) if key in NAMES]
        taken += [key for key in correlated if key in plain]
        if taken:
            message = f"the key {taken[0]!r} would stand for two values"
            remedy = "give the metric another pretty_name"
            raise ConfigError(message, remedy=remedy)
        self.names = (*self.keys, *(f"correlated:{name}" for name in self.correlated))

    def _take(self, asked: Sequence[Metric | str]) -> None:
        """Take metrics, those given by name included."""
        from pytest_gpuperf.collect.ncu.metrics import (
            MetricCorrelation,
            gather,
            labels,
            newer_labels,
        )

        self.aliases = newer_labels(asked)  # refuses keys that two metrics share, too
        for each in asked:
            found = (
                self.correlated if isinstance(each, MetricCorrelation) else self.keys
            )
            for name, key in zip(gather([each]), labels([each]), strict=True):
                if key not in found.setdefault(name, []):
                    found[name].append(key)

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


def _checked(name: str) -> str:
    """Return a name; refuse a text that is none, as a metric of it would."""
    mistakes = name_mistakes(name)
    if mistakes:
        raise refusal(f"Metric({name!r})", mistakes)
    return name
