"""Metrics of Nsight Compute: names, requests and keys in results.

    name    ::= (kind ":")? base ("." rollup ("." submetric)*)?
    base    ::= (unit "__")? (stage "_")? quantity ("_" qualifier)?
    kind    ::= "group" | "breakdown" | "pmsampling" | "regex"
    rollup  ::= sum | avg | min | max       of a counter or a throughput
              | pct | ratio | max_rate      of a ratio

Every metric unpacks to itself: `metrics=(*Sectors.create(), *Requests.create())` and
`metrics=(Sectors.create(), Requests.create())` mean the same.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import ClassVar, NamedTuple, TypeAlias

from msgspec.structs import force_setattr

from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.model.frozen import Frozen


class _Word(str, Enum):
    """A word of a metric's name, which is also a text."""

    def __str__(self) -> str:
        """Return the word instead of the member's name."""
        return str(self.value)


class MetricCounterRollUp(_Word):
    """The reduction of a counter's or throughput's instances to one number."""

    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"


class MetricRatioRollUp(_Word):
    """The form of a ratio."""

    PCT = "pct"
    RATIO = "ratio"
    MAX_RATE = "max_rate"


class MetricCounterRollUpQuantity(_Word):
    """The reference of a rolled-up number."""

    PCT_OF_PEAK_SUSTAINED_ACTIVE = "pct_of_peak_sustained_active"
    PCT_OF_PEAK_SUSTAINED_ELAPSED = "pct_of_peak_sustained_elapsed"


_COUNTER_ROLLUPS = tuple(member.value for member in MetricCounterRollUp)
_RATIO_ROLLUPS = tuple(member.value for member in MetricRatioRollUp)
_ROLL_UPS = _COUNTER_ROLLUPS + _RATIO_ROLLUPS
_BASE = re.compile(
    r"(?:(?P<unit>[A-Za-z][A-Za-z0-9]*)__)?(?P<rest>[A-Za-z]\w*)", re.ASCII
)
_KIND = re.compile(
    r"(?:(?P<kind>group|breakdown|pmsampling|regex):)?(?P<rest>.*)", re.DOTALL
)
_SUBMETRIC = re.compile(  # Nsight Compute's documentation, "Metrics Structure".
    r"(?:per_second|per_cycle_\w+|pct_of_peak_\w+|peak_\w+)", re.ASCII
)
# ncu separates the names by commas.
_UNWRITABLE = re.compile(r"[\s,]|[^\x20-\x7e]")
_QUANTITIES = (
    frozenset(  # Counted quantities in the names of Nsight Compute 2019 to 2026.
        {"bytes", "ctas", "cycles", "inst", "instructions", "ops", "pixels", "queries"}
        | {"requests", "samples", "sectors", "tags", "thread", "threads", "throughput"}
        | {"time", "transactions", "warps", "wavefronts"}
    )
)


class MetricName(NamedTuple):
    """
    The parts of a name.

    Attributes:
        unit: The unit of the chip that counts, as `l1tex`, or None if the name has
            none.

        quantity: The counted quantity, as `sectors`.

        stage: The part or pipeline stage of the unit, as `t_output`, or None for all of
            it.

        qualifier: The counted subset, as `pipe_lsu_mem_global_op_ld`, or None for all.

        rollup: The roll-up, as `sum`, or None if the name has none.

        submetric: The text after the roll-up, as `per_second`, or None.

        kind: `group`, `breakdown`, `pmsampling` or `regex`, or None for a plain metric.
    """

    unit: str | None
    quantity: str
    stage: str | None = None
    qualifier: str | None = None
    rollup: str | None = None
    submetric: str | None = None
    kind: str | None = None

    @property
    def base(self) -> str:
        """The name without kind and roll-up."""
        words = (self.stage, self.quantity, self.qualifier)
        rest = "_".join(word for word in words if word)
        return rest if self.unit is None else f"{self.unit}__{rest}"

    def __str__(self) -> str:
        """Return the name in the spelling of Nsight Compute."""
        parts = (self.base, self.rollup, self.submetric)
        name = ".".join(part for part in parts if part)
        return name if self.kind is None else f"{self.kind}:{name}"


def parse_name(name: str) -> MetricName:
    """
    Return the parts of a name.

    Args:
        name: The name as Nsight Compute spells it. A `regex:` has no parts and is all
            quantity.

    Raises:
        ConfigError: The name does not parse. The message has all of its mistakes.

    Example:
        >>> parse_name("l1tex__t_sectors_pipe_lsu.sum.per_second").quantity
        'sectors'
    """
    mistakes = _name_mistakes(name)
    if mistakes:
        raise _refusal(f"{name!r} is not a metric", mistakes)
    match = _KIND.fullmatch(name)
    kind, rest = (match["kind"], match["rest"]) if match else (None, name)
    if kind == "regex":
        return MetricName(unit=None, quantity=rest, kind=kind)
    base, _, after = rest.partition(".")
    rollup, _, submetric = after.partition(".")
    parts = _BASE.fullmatch(base)
    unit, words = (parts["unit"], parts["rest"]) if parts else (None, base)
    # Without a counted quantity, the words have no parts.
    before, quantity, behind = "", words, ""
    split = words.split("_")
    place = next((i for i, word in enumerate(split) if word in _QUANTITIES), None)
    if place is not None:
        before, quantity = "_".join(split[:place]), split[place]
        behind = "_".join(split[place + 1 :])
    return MetricName(
        unit=unit,
        stage=before or None,
        quantity=quantity,
        qualifier=behind or None,
        rollup=rollup or None,
        submetric=submetric or None,
        kind=kind,
    )


def _name_mistakes(name: object) -> list[str]:
    if not isinstance(name, str):
        return [f"{name!r} is not text"]
    if _UNWRITABLE.search(name):
        return ["a name has no blanks, commas or non-ASCII letters"]
    match = _KIND.fullmatch(name)
    kind, rest = (match["kind"], match["rest"]) if match else (None, name)
    if kind == "regex":
        return [] if rest else ["the pattern after regex: is missing"]
    base, *path = rest.split(".")
    mistakes = [] if _BASE.fullmatch(base) else [f"{base!r} is not a unit__quantity"]
    return mistakes + (_path_mistakes(path, _ROLL_UPS) if path else [])


def _path_mistakes(path: Sequence[str], allowed: Collection[str]) -> list[str]:
    if not path:
        return ["an empty path"]
    rollup, *after = path
    mistakes = []
    if rollup not in allowed:
        close = difflib.get_close_matches(str(rollup), list(allowed), n=1)
        suggestion = (
            f"did you mean {close[0]}" if close else f"write {' or '.join(allowed)}"
        )
        mistakes.append(f"{str(rollup)!r} is not a roll-up of it: {suggestion}")
    if after and rollup in _RATIO_ROLLUPS:
        mistakes.append(f"nothing follows {rollup}")
    mistakes += [
        f"{str(part)!r} is not a submetric: write it as per_second"
        for part in after
        if not _SUBMETRIC.fullmatch(part)
    ]
    return mistakes


def _refusal(
    what: str,
    mistakes: Iterable[str],
    remedy: str = "write it as dram__bytes.sum (`ncu --query-metrics` lists the names)",
) -> ConfigError:
    return ConfigError(f"{what}: {'; '.join(mistakes)}", remedy=remedy)


Sub: TypeAlias = str | tuple[str, ...]  # "sum", or the path ("sum", "per_second").
_OF_PEAK = tuple(member.value for member in MetricCounterRollUpQuantity)


class Metric(Frozen, frozen=True):
    """
    A metric by its name: complete, or a base name with `subs`.

    Attributes:
        name: The name as Nsight Compute spells it. Without `subs` it must be complete,
            as `dram__bytes.sum`: for a base name ncu collects the roll-ups and no
            metric of that name.

        pretty_name: Its key in results, or None for the name.

        subs: Its roll-ups, each a text or a path, as in `("sum", ("sum",
            "per_second"))`, or None if the name is complete.

    Raises:
        ConfigError: The metric does not parse. The message has all of its mistakes.
    """

    name: str
    pretty_name: str | None = None
    subs: tuple[Sub, ...] | None = None

    # The roll-ups of this kind of metric, and the default roll-up, which keys leave
    # out.
    rollups: ClassVar[tuple[str, ...]] = _COUNTER_ROLLUPS + _RATIO_ROLLUPS
    silent: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        """Set the key, make the metric hashable, and check the name and the roll-ups."""
        mistakes = _name_mistakes(self.name)
        given: object = self.subs
        if isinstance(given, str) or not isinstance(given, Iterable | None):
            mistakes.append(f"subs={given!r} is not a tuple: write subs=({given!r},)")
        elif given is not None:
            subs = tuple(sub if isinstance(sub, str) else tuple(sub) for sub in given)
            if not subs:
                mistakes.append("subs is empty: nothing would be requested")
            for sub in subs:
                mistakes += _path_mistakes(_path(sub), self.rollups)
            force_setattr(self, "subs", subs)
        called = f"{type(self).__name__}({self.name!r})"
        if mistakes:
            raise _refusal(called, mistakes)
        if self.subs is not None and parse_name(self.name).rollup is not None:
            mistakes = ["its name has a roll-up already"]
            raise _refusal(called, mistakes, remedy=f'write Metric("{self.name}")')
        if self.pretty_name is None:
            force_setattr(self, "pretty_name", self.name)

    def __iter__(self) -> Iterator[Metric]:
        """Yield the metric itself, so that `*metric` is one metric."""
        yield self

    def gather(self) -> tuple[str, ...]:
        """Return the names to request from ncu."""
        if self.subs is None:
            return (self.name,)
        return tuple(f"{self.name}.{_dotted(sub)}" for sub in self.subs)

    def labels(self) -> tuple[str, ...]:
        """Return the keys of the values in results, in the order of `gather`."""
        label = self.pretty_name or self.name
        if self.subs is None:
            return (label,)
        return tuple(f"{label}.{_dotted(sub)}" for sub in self.subs)

    def newer_labels(self) -> tuple[str, ...]:
        """Return the keys of newer versions, with `silent` left out."""
        if self.subs is None or self.pretty_name == self.name:
            return self.labels()
        return tuple(
            str(self.pretty_name)
            if _dotted(sub) == self.silent
            else f"{self.pretty_name} ({', '.join(_path(sub))})"
            for sub in self.subs
        )


class MetricCounter(Metric, frozen=True):
    """A counter of events."""

    subs: tuple[Sub, ...] | None = (MetricCounterRollUp.SUM,)

    rollups: ClassVar[tuple[str, ...]] = _COUNTER_ROLLUPS
    silent: ClassVar[str | None] = MetricCounterRollUp.SUM.value


class MetricRatio(Metric, frozen=True):
    """A ratio of two counters."""

    subs: tuple[Sub, ...] | None = (MetricRatioRollUp.RATIO,)

    rollups: ClassVar[tuple[str, ...]] = _RATIO_ROLLUPS
    silent: ClassVar[str | None] = MetricRatioRollUp.RATIO.value


class MetricThroughput(Metric, frozen=True):
    """The utilization of a unit: the highest of its parts' shares of their peaks."""

    subs: tuple[Sub, ...] | None = (
        (
            MetricCounterRollUp.AVG,
            MetricCounterRollUpQuantity.PCT_OF_PEAK_SUSTAINED_ELAPSED,
        ),
    )

    rollups: ClassVar[tuple[str, ...]] = _COUNTER_ROLLUPS

    def __post_init__(self) -> None:
        """Also refuse a plain roll-up, because a throughput has only percentages."""
        super().__post_init__()
        mistakes = [
            f"{_dotted(sub)!r} is not a percentage of a peak: write "
            f"{_path(sub)[0]}.{_OF_PEAK[1]}"
            for sub in self.subs or ()
            if _path(sub)[1:] not in {(word,) for word in _OF_PEAK}
        ]
        if mistakes:
            raise _refusal(f"{type(self).__name__}({self.name!r})", mistakes)


class MetricDeviceAttribute(Metric, frozen=True):
    """An attribute of the device, as `display_name`. Every report has all of them."""

    PREFIX: ClassVar[str] = "device__attribute_"

    def __post_init__(self) -> None:
        """Complete the name."""
        # The parent class refuses an invalid name.
        named = not _name_mistakes(self.name)
        if named and not self.name.startswith(self.PREFIX):
            force_setattr(self, "name", f"{self.PREFIX}{self.name}")
        super().__post_init__()

    @property
    def full_name(self) -> str:
        """The name in the spelling of Nsight Compute, equal to `name`."""
        return self.name


class MetricCorrelation(Metric, frozen=True):
    """A metric with one value for each opcode or address, as `sass__inst_executed_per_opcode`."""


class MetricCorrelationData(Frozen, frozen=True, kw_only=True):
    """
    The values of a correlated metric.

    Attributes:
        correlated: Its values, by opcode or by address.

        value: Its total, or None.
    """

    correlated: Mapping[str | int, int | float]
    value: int | float | None = None

    def __post_init__(self) -> None:
        """Replace the mapping with a read-only copy."""
        copy = MappingProxyType(dict(self.correlated))
        force_setattr(self, "correlated", copy)

    def __hash__(self) -> int:
        """Return the hash of all values."""
        return hash((frozenset(self.correlated.items()), self.value))


# A value of a launch, or None if absent, NaN or infinite.
MetricValue: TypeAlias = int | float | str | MetricCorrelationData | None


def gather(metrics: Iterable[Metric | str]) -> tuple[str, ...]:
    """
    Return the names to request from ncu, in order, without duplicates.

    Args:
        metrics: Metrics, or names as ncu spells them.

    Raises:
        ConfigError: A text is not a name.
    """
    names = (name for metric in _all(metrics) for name in metric.gather())
    return tuple(dict.fromkeys(names))


def labels(metrics: Iterable[Metric | str]) -> tuple[str, ...]:
    """
    Return the keys of the values in results, in order.

    Args:
        metrics: Metrics, or names as ncu spells them.

    Raises:
        ConfigError: A text is not a name, or one key would stand for two values.
    """
    return tuple(_named_once(metrics))


def newer_labels(metrics: Iterable[Metric | str]) -> Mapping[str, str]:
    """
    Return the keys of newer versions that differ from ours.

    Args:
        metrics: Metrics, or names as ncu spells them.

    Returns:
        Our key by the newer key. A newer key that two values would share is left out.
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
    # A text would be iterated letter by letter.
    if isinstance(metrics, str):
        return [Metric(metrics)]
    # Any other object is refused like an invalid name.
    return [
        metric if isinstance(metric, Metric) else Metric(metric) for metric in metrics
    ]


def _path(sub: Sub) -> tuple[str, ...]:
    return tuple(_dotted(sub).split(".")) if sub else ()


def _dotted(sub: Sub) -> str:
    return str(sub) if isinstance(sub, str) else ".".join(str(word) for word in sub)
