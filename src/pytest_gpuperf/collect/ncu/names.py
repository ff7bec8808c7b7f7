"""The grammar of the names of Nsight Compute's metrics.

name    ::= (kind ":")? base ("." rollup ("." submetric)*)?
base    ::= (unit "__")? (stage "_")? quantity ("_" qualifier)?
kind    ::= "group" | "breakdown" | "pmsampling" | "regex"
rollup  ::= sum | avg | min | max       of a counter or a throughput
| pct | ratio | max_rate      of a ratio
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from enum import Enum
from typing import NamedTuple

from pytest_gpuperf.errors import ConfigError

__all__ = [
    "COUNTER_ROLLUPS",
    "RATIO_ROLLUPS",
    "MetricCounterRollUp",
    "MetricCounterRollUpQuantity",
    "MetricName",
    "MetricRatioRollUp",
    "name_mistakes",
    "parse_name",
    "path_mistakes",
    "refusal",
]


class _Word(str, Enum):
    """A word of a metric's name; it is text wherever text is expected."""

    def __str__(self) -> str:
        """Return the word, also where Python would return the member's name."""
        return str(self.value)


class MetricCounterRollUp(_Word):
    """How one number is made of the instances of a counter or a throughput."""

    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"


class MetricRatioRollUp(_Word):
    """In which form a ratio is given."""

    PCT = "pct"
    RATIO = "ratio"
    MAX_RATE = "max_rate"


class MetricCounterRollUpQuantity(_Word):
    """What a rolled-up number is held against."""

    PCT_OF_PEAK_SUSTAINED_ACTIVE = "pct_of_peak_sustained_active"
    PCT_OF_PEAK_SUSTAINED_ELAPSED = "pct_of_peak_sustained_elapsed"


COUNTER_ROLLUPS = tuple(each.value for each in MetricCounterRollUp)
RATIO_ROLLUPS = tuple(each.value for each in MetricRatioRollUp)
_ROLL_UPS = COUNTER_ROLLUPS + RATIO_ROLLUPS
_BASE = re.compile(
    r"(?:(?P<unit>[A-Za-z][A-Za-z0-9]*)__)?(?P<rest>[A-Za-z]\w*)", re.ASCII
)
_KIND = re.compile(
    r"(?:(?P<kind>group|breakdown|pmsampling|regex):)?(?P<rest>.*)", re.DOTALL
)
_SUBMETRIC = re.compile(  # Nsight Compute's documentation, "Metrics Structure"
    r"(?:per_second|per_cycle_\w+|pct_of_peak_\w+|peak_\w+)", re.ASCII
)
_UNWRITABLE = re.compile(r"[\s,]|[^\x20-\x7e]")  # ncu separates the names by commas
_QUANTITIES = frozenset(  # what is counted, in the names of Nsight Compute 2019 to 2026
    {"bytes", "ctas", "cycles", "inst", "instructions", "ops", "pixels", "queries"}
    | {"requests", "samples", "sectors", "tags", "thread", "threads", "throughput"}
    | {"time", "transactions", "warps", "wavefronts"}
)


class MetricName(NamedTuple):  # names are checked before msgspec is loaded
    """
    The parts of a name.

    Attributes:
        unit: Where it is counted, as `l1tex`; None: the name has none.

        quantity: What is counted, as `sectors`.

        stage: The part or pipeline stage of the unit, as `t_output`; None: all of it.

        qualifier: Which of them, as `pipe_lsu_mem_global_op_ld`; None: all.

        rollup: As `sum`; None: the name has none.

        submetric: What follows the roll-up, as `per_second`; None: nothing.

        kind: `group`, `breakdown`, `pmsampling` or `regex`; None: a plain metric.
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
        """The name without its kind and its roll-up."""
        words = (self.stage, self.quantity, self.qualifier)
        rest = "_".join(word for word in words if word)
        return rest if self.unit is None else f"{self.unit}__{rest}"

    def __str__(self) -> str:
        """Return the name as Nsight Compute spells it."""
        parts = (self.base, self.rollup, self.submetric)
        name = ".".join(part for part in parts if part)
        return name if self.kind is None else f"{self.kind}:{name}"


def parse_name(name: str) -> MetricName:
    """
    Return the parts of a name.

    Args:
        name: As Nsight Compute spells it; a `regex:` has no parts and is all quantity.

    Raises:
        ConfigError: It does not parse; all that is wrong is told at once.

    Example:
        >>> parse_name("l1tex__t_sectors_pipe_lsu.sum.per_second").quantity
        'sectors'
    """
    mistakes = name_mistakes(name)
    if mistakes:
        raise refusal(f"{name!r} is no metric", mistakes)
    found = _KIND.fullmatch(name)
    kind, rest = (found["kind"], found["rest"]) if found else (None, name)
    if kind == "regex":
        return MetricName(unit=None, quantity=rest, kind=kind)
    base, _, after = rest.partition(".")
    rollup, _, submetric = after.partition(".")
    parts = _BASE.fullmatch(base)
    unit, words = (parts["unit"], parts["rest"]) if parts else (None, base)
    stage, quantity, qualifier = _stage_quantity_qualifier(words)
    return MetricName(
        unit=unit,
        stage=stage,
        quantity=quantity,
        qualifier=qualifier,
        rollup=rollup or None,
        submetric=submetric or None,
        kind=kind,
    )


def name_mistakes(name: object) -> list[str]:
    """Return what is wrong with a name, as fragments; empty: nothing."""
    if not isinstance(name, str):
        return [f"{name!r} is no text"]
    if _UNWRITABLE.search(name):
        return ["blanks, commas and letters beyond ASCII cannot stand in a name"]
    found = _KIND.fullmatch(name)
    kind, rest = (found["kind"], found["rest"]) if found else (None, name)
    if kind == "regex":
        return [] if rest else ["nothing stands behind regex:"]
    base, *path = rest.split(".")
    mistakes = [] if _BASE.fullmatch(base) else [f"{base!r} is no unit__quantity"]
    return mistakes + (path_mistakes(path, _ROLL_UPS) if path else [])


def path_mistakes(path: Iterable[str], allowed: Collection[str]) -> list[str]:
    """Return what is wrong with a roll-up and what follows it, as fragments."""
    rollup, *after = path
    mistakes = []
    if rollup not in allowed:
        import difflib

        close = difflib.get_close_matches(str(rollup), list(allowed), n=1)
        meant = f"did you mean {close[0]}" if close else f"write {' or '.join(allowed)}"
        mistakes.append(f"{str(rollup)!r} is no roll-up of it: {meant}")
    if after and rollup in RATIO_ROLLUPS:
        mistakes.append(f"nothing follows {rollup}")
    mistakes += [
        f"{str(part)!r} is no submetric: write it as per_second"
        for part in after
        if not _SUBMETRIC.fullmatch(part)
    ]
    return mistakes


def _stage_quantity_qualifier(words: str) -> tuple[str | None, str, str | None]:
    """Return the three, split at the first word that is known to be counted."""
    parts = words.split("_")
    place = next((i for i, part in enumerate(parts) if part in _QUANTITIES), None)
    if place is None:  # nothing says where the quantity begins
        return None, words, None
    stage, qualifier = "_".join(parts[:place]), "_".join(parts[place + 1 :])
    return stage or None, parts[place], qualifier or None


def refusal(what: str, mistakes: Iterable[str]) -> ConfigError:
    """Return the error that tells all mistakes of one metric."""
    return ConfigError(
        f"{what}: {'; '.join(mistakes)}",
        remedy="write it as dram__bytes.sum (`ncu --query-metrics` lists the names)",
    )
