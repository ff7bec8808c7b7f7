"""Metrics of Nsight Compute: what to ask it for, and under which key.

Every metric unpacks to itself: `metrics=(*Sectors.create(), *Requests.create())` and
`metrics=(Sectors.create(), Requests.create())` say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar, TypeAlias

from msgspec.structs import force_setattr

from pytest_gpuperf.collect.ncu.names import (
    COUNTER_ROLLUPS,
    RATIO_ROLLUPS,
    MetricCounterRollUp,
    MetricCounterRollUpQuantity,
    MetricName,
    MetricRatioRollUp,
    name_mistakes,
    parse_name,
    path_mistakes,
    refusal,
)
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.model.frozen import Frozen

__all__ = [
    "Metric",
    "MetricCorrelation",
    "MetricCorrelationData",
    "MetricCounter",
    "MetricCounterRollUp",
    "MetricCounterRollUpQuantity",
    "MetricDeviceAttribute",
    "MetricName",
    "MetricRatio",
    "MetricRatioRollUp",
    "MetricThroughput",
    "MetricValue",
    "Sub",
    "gather",
    "labels",
    "newer_labels",
    "parse_name",
]


Sub: TypeAlias = str | tuple[str, ...]  # "sum", or the path ("sum", "per_second")
_OF_PEAK = tuple(each.value for each in MetricCounterRollUpQuantity)


class Metric(Frozen, frozen=True):
    """
    A metric by its name: complete, or a base name with `subs`.

    Attributes:
        name: As Nsight Compute spells it. Without `subs` it must be complete, as
            `dram__bytes.sum`: asked for a base name ncu collects its roll-ups and no
            metric of that name.

        pretty_name: How results call it; the name where none is given.

        subs: Its roll-ups, each a text or a path: `("sum", ("sum", "per_second"))`;
            None: the name says all.

    Raises:
        ConfigError: Some of it does not parse; all that is wrong is told at once.
    """

    name: str
    pretty_name: str | None = None
    subs: tuple[Sub, ...] | None = None

    # the roll-ups that its kind of metric has, and the one that goes without saying
    rollups: ClassVar[tuple[str, ...]] = COUNTER_ROLLUPS + RATIO_ROLLUPS
    silent: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        """Name it, make it hashable, and refuse what cannot be asked for."""
        mistakes = name_mistakes(self.name)
        if self.subs is not None:
            subs, wrong = _checked(self.subs, self.rollups)
            force_setattr(self, "subs", subs)
            mistakes += wrong
            if not mistakes and parse_name(self.name).rollup is not None:
                mistakes.append("its name has a roll-up already: leave subs out")
        if mistakes:
            raise refusal(f"{type(self).__name__}({self.name!r})", mistakes)
        if self.pretty_name is None:
            force_setattr(self, "pretty_name", self.name)

    def __iter__(self) -> Iterator[Metric]:
        """Yield the metric itself, so that `*metric` is one metric."""
        yield self

    def gather(self) -> tuple[str, ...]:
        """Return the names to ask ncu for."""
        if self.subs is None:
            return (self.name,)
        return tuple(f"{self.name}.{_dotted(sub)}" for sub in self.subs)

    def labels(self) -> tuple[str, ...]:
        """Return the keys of its values in results, in the order of `gather`."""
        called = self.pretty_name or self.name
        if self.subs is None:
            return (called,)
        return tuple(f"{called}.{_dotted(sub)}" for sub in self.subs)

    def newer_labels(self) -> tuple[str, ...]:
        """Return the keys that newer programs use, which leave `silent` unsaid."""
        if self.subs is None or self.pretty_name == self.name:
            return self.labels()
        return tuple(
            str(self.pretty_name)
            if _dotted(sub) == self.silent
            else f"{self.pretty_name} ({', '.join(_path(sub))})"
            for sub in self.subs
        )


class MetricCounter(Metric, frozen=True):
    """A counter: how often something happened."""

    subs: tuple[Sub, ...] | None = (MetricCounterRollUp.SUM,)

    rollups: ClassVar[tuple[str, ...]] = COUNTER_ROLLUPS
    silent: ClassVar[str | None] = MetricCounterRollUp.SUM.value


class MetricRatio(Metric, frozen=True):
    """A ratio of two counters."""

    subs: tuple[Sub, ...] | None = (MetricRatioRollUp.RATIO,)

    rollups: ClassVar[tuple[str, ...]] = RATIO_ROLLUPS
    silent: ClassVar[str | None] = MetricRatioRollUp.RATIO.value


class MetricThroughput(Metric, frozen=True):
    """How close a unit came to its peak: the highest of what it is made of."""

    subs: tuple[Sub, ...] | None = (
        (
            MetricCounterRollUp.AVG,
            MetricCounterRollUpQuantity.PCT_OF_PEAK_SUSTAINED_ELAPSED,
        ),
    )

    rollups: ClassVar[tuple[str, ...]] = COUNTER_ROLLUPS

    def __post_init__(self) -> None:
        """Refuse a roll-up alone too: a throughput has no number but a percentage."""
        super().__post_init__()
        wrong = [
            f"{_dotted(sub)!r} is no percentage of a peak: write "
            f"{_path(sub)[0]}.{_OF_PEAK[1]}"
            for sub in self.subs or ()
            if _path(sub)[1:] not in {(word,) for word in _OF_PEAK}
        ]
        if wrong:
            raise refusal(f"{type(self).__name__}({self.name!r})", wrong)


class MetricDeviceAttribute(Metric, frozen=True):
    """An attribute of the device, as `display_name`; each report holds all of them."""

    PREFIX: ClassVar[str] = "device__attribute_"

    def __post_init__(self) -> None:
        """Complete the name."""
        named = not name_mistakes(self.name)  # what is no name is refused below
        if named and not self.name.startswith(self.PREFIX):
            force_setattr(self, "name", f"{self.PREFIX}{self.name}")
        super().__post_init__()


class MetricCorrelation(Metric, frozen=True):
    """A metric with one value for each opcode or address, as
    `sass__inst_executed_per_opcode`.
    """


class MetricCorrelationData(Frozen, frozen=True, kw_only=True):
    """
    What a correlated metric gave.

    Attributes:
        correlated: Its values, by opcode or by address.

        value: Its value as a whole; None: it has none.
    """

    correlated: Mapping[str | int, int | float]
    value: int | float | None = None

    def __post_init__(self) -> None:
        """Keep a copy that nobody can change."""
        kept = MappingProxyType(dict(self.correlated))
        force_setattr(self, "correlated", kept)

    def __hash__(self) -> int:
        """Return the hash of all its values."""
        return hash((frozenset(self.correlated.items()), self.value))


# a value of a launch; None: absent, NaN or infinite
MetricValue: TypeAlias = int | float | str | MetricCorrelationData | None


def gather(metrics: Iterable[Metric | str]) -> tuple[str, ...]:
    """
    Return the names to ask ncu for, in order, each once.

    Args:
        metrics: Metrics, or names as ncu spells them.

    Raises:
        ConfigError: A text is no name.
    """
    names = (name for metric in _all(metrics) for name in metric.gather())
    return tuple(dict.fromkeys(names))


def labels(metrics: Iterable[Metric | str]) -> tuple[str, ...]:
    """
    Return the keys of the values in results, in order.

    Args:
        metrics: Metrics, or names as ncu spells them.

    Raises:
        ConfigError: A text is no name, or one key would stand for two values.
    """
    return tuple(_named_once(metrics))


def newer_labels(metrics: Iterable[Metric | str]) -> Mapping[str, str]:
    """
    Return the keys that newer programs use, as far as they differ from ours.

    Args:
        metrics: Metrics, or names as ncu spells them.

    Returns:
        Our key by the newer one; a newer one that two values would share is left out.
    """
    pairs: dict[str, str] = {}
    shared: set[str] = set()
    ours = set(_named_once(metrics))
    for metric in _all(metrics):
        for newer, label in zip(metric.newer_labels(), metric.labels(), strict=True):
            if newer != label:
                shared |= {newer} & (pairs.keys() | ours)
                pairs[newer] = label
    return {newer: label for newer, label in pairs.items() if newer not in shared}


def _named_once(metrics: Iterable[Metric | str]) -> dict[str, str]:
    """Return the name to ask for by its key; a metric given twice counts once."""
    named: dict[str, str] = {}
    mistakes = []
    for metric in _all(metrics):
        for label, name in zip(metric.labels(), metric.gather(), strict=True):
            if named.setdefault(label, name) != name:
                mistakes.append(f"{label!r} would be {named[label]} and {name}")
    if mistakes:
        raise ConfigError(
            f"two metrics have one name: {'; '.join(mistakes)}",
            remedy="give each its own pretty_name",
        )
    return named


def _all(metrics: Iterable[Metric | str]) -> list[Metric]:
    """Return metrics, those given by name included."""
    if isinstance(metrics, str):  # would be taken letter by letter
        return [Metric(metrics)]
    # what is neither is refused where any text would be that is no name
    return [each if isinstance(each, Metric) else Metric(each) for each in metrics]


def _checked(
    subs: object, rollups: tuple[str, ...]
) -> tuple[tuple[Sub, ...] | None, list[str]]:
    """Return roll-ups as a tuple, and what is wrong with them."""
    if isinstance(subs, str) or not isinstance(subs, Iterable):
        return None, [f"subs={subs!r} is no tuple: write subs=({subs!r},)"]
    kept = tuple(each if isinstance(each, str) else tuple(each) for each in subs)
    if not kept:
        return None, ["subs is empty: nothing would be asked for"]
    mistakes = [m for each in kept for m in _sub_mistakes(each, rollups)]
    return kept, mistakes


def _sub_mistakes(sub: Sub, rollups: tuple[str, ...]) -> list[str]:
    """Return what is wrong with one roll-up."""
    path = _path(sub)
    return path_mistakes(path, rollups) if path else ["a path of no words"]


def _path(sub: Sub) -> tuple[str, ...]:
    """Return a roll-up as the words between its dots."""
    return tuple(_dotted(sub).split(".")) if sub else ()


def _dotted(sub: Sub) -> str:
    """Return a roll-up as it stands in a name."""
    return str(sub) if isinstance(sub, str) else ".".join(str(each) for each in sub)
