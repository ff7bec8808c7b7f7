"""The metrics of Nsight Compute on each chip, and their passes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from pytest_gpuperf.collect.cupti.chips import (
    CAPABILITIES,
    MetricType,
    chip_named,
    evaluator,
)
from pytest_gpuperf.collect.cupti.nvperf import Library, load
from pytest_gpuperf.errors import CollectError, ConfigError
from pytest_gpuperf.model.counters import (
    MetricEntry,
    NameCheck,
    PassCost,
    ReplayGroup,
)
from pytest_gpuperf.model.metric import METRICS

_HOST_MEMORY = frozenset(  # Thor and Spark: their DRAM is the host's.
    chip for pair in ((11, 0), (12, 1)) for chip in CAPABILITIES[pair]
)
_USUAL = (".sum", ".pct", ".avg.pct_of_peak_sustained_elapsed")  # By MetricType.
_ENDING = re.compile(r"\.(?:avg|max|min|sum|pct|ratio|max_rate)(?:\.[a-z_.]*)?$")
_SUGGESTED = 3
# Below this ratio of difflib two names have little in common.
_CLOSE = 0.7

# Nsight Compute's passes beyond those of its hardware counters, in 232 sets of metrics
# of 536 public reports.
# True for 70 of 92 sets, and within 2 for 89.
_COUNTERS_MORE = 1
# Between 1 and 4 in 101 of 107 sets.
_SOURCE_MORE = 3
_COUNTERS_NOTE = (
    "Nsight Compute usually makes one pass more than its counters need (in 70 of 92 public "
    "reports; at most 2 more in 89)"
)
_SOURCE_NOTE = (
    "counters of source lines need their own passes: 1 to 4 in 101 of 107 public reports; "
    "3 are assumed"
)
_OPEN_NOTE = "only Nsight Compute knows how many passes {} needs"


class _Cost(Enum):
    """The passes added by a metric that Nsight Compute computes itself."""

    NOTHING = "known without counting"
    SOURCE = "counted by source line, in its own passes"
    UNKNOWN = "expanded by Nsight Compute when it runs"


class _Family(NamedTuple):
    """Metrics that Nsight Compute computes itself. No library lists them."""

    pattern: re.Pattern[str]
    cost: _Cost


_WORD = r"[a-z0-9][A-Za-z0-9_]*"
_ROLLUP = r"(\.(avg|max|min|sum))?"
_FAMILIES = tuple(
    _Family(re.compile(pattern), cost)
    for pattern, cost in (
        (rf"(launch|profiler|nvlink|numa|c2clink)__{_WORD}{_ROLLUP}", _Cost.NOTHING),
        (rf"device__attribute_{_WORD}|derived__pct_occupancy_{_WORD}", _Cost.NOTHING),
        (r"derived_tempMetric\d+", _Cost.NOTHING),
        (r"sm(sp)?__maximum_warps_(avg_)?per_active_cycle(_pct)?", _Cost.NOTHING),
        (rf"smsp__pcsamp_{_WORD}|smsp__branch_targets_threads_{_WORD}", _Cost.SOURCE),
        (r"smsp__sass_inst_executed_memdesc_explicit_evict_type", _Cost.SOURCE),
        (rf"(sass|derived)__{_WORD}", _Cost.SOURCE),
        (r"(branch_|thread_)?inst_executed(_[a-z0-9_]+)?", _Cost.SOURCE),
        (r"memory_(access|l1|l2|type)(_[a-z0-9_]+)?", _Cost.SOURCE),
        (rf"(group|regex|pmsampling):.+|breakdown:{_WORD}(\.[a-z_.]+)?", _Cost.UNKNOWN),
    )
)
# Part of the name of a counter that instruments the code.
_SASS = "__sass_"


class Catalogue:
    """
    The metrics of one chip.

    Attributes:
        chip: Its name.
    """

    def __init__(self, chip: str, source: Library | None = None) -> None:
        """
        Load the library's evaluator for a chip.

        Args:
            chip: The chip, as accepted by `chip_named`.

            source: The library, or None for the installed library.

        Raises:
            ConfigError: The chip is unknown.

            CollectorUnavailableError: The library is not installed.
        """
        self._library = source or load()
        self.chip = chip_named(chip, self._library)
        self._evaluator = evaluator(self.chip, self._library)

    def entries(self, kind: MetricType | None = None) -> Iterator[MetricEntry]:
        """
        Yield the metrics of one kind, or of all kinds for None, by name and without
        endings.
        """
        kinds = MetricType if kind is None else (kind,)
        for base in sorted(
            name for kind in kinds for name in self._evaluator.names(kind)
        ):
            properties = self._evaluator.properties(base)
            yield MetricEntry(
                name=base,
                base=base,
                kind=properties.kind.name.lower(),
                description=properties.description,
                hardware_unit=properties.hardware_unit,
                unit=properties.unit,
            )

    def search(self, words: Sequence[str]) -> list[MetricEntry]:
        """Return the metrics with every word in the name or description."""
        folded = [word.casefold() for word in words]
        return [
            entry
            for entry in self.entries()
            if all(
                word in f"{entry.base} {entry.description}".casefold()
                for word in folded
            )
        ]

    def describe(self, name: str) -> MetricEntry:
        """
        Return a metric with all properties and its number of passes.

        Args:
            name: Its name, with or without an ending.

        Raises:
            ConfigError: The chip has no such metric, or Nsight Compute computes it.
        """
        checked = self.check(name)
        if not checked.known:
            raise _unknown_names([checked])
        if checked.kind == "ncu":
            message = f"{name} is made by Nsight Compute: {checked.note}"
            raise ConfigError(message, remedy="see its documentation")
        properties = self._evaluator.properties(name)
        return MetricEntry(
            name=name,
            base=properties.base,
            kind=properties.kind.name.lower(),
            description=properties.description,
            hardware_unit=properties.hardware_unit,
            unit=properties.unit,
            endings=self._evaluator.endings(properties.kind),
            made_of=properties.made_of,
            passes=self._passes(self._counted(checked)),
        )

    def check(self, name: str) -> NameCheck:
        """Check a name against the metrics of the chip, and suggest similar names if unknown."""
        kind = self._evaluator.kind(name)
        if kind is not None and self._evaluator.accepts(name):
            return NameCheck(name=name, known=True, kind=kind.name.lower())
        prefix, _, inner = name.partition(":")
        if prefix == "breakdown" and self._evaluator.kind(inner) is None:
            checked = self.check(inner)
            suggestions = tuple(f"breakdown:{s}" for s in checked.suggestions)
            return NameCheck(
                name=name,
                known=False,
                kind="",
                note=checked.note,
                suggestions=suggestions,
            )
        family = _family(name)
        if family is not None:
            note = family.cost.value
            return NameCheck(name=name, known=True, kind="ncu", note=note)
        if kind is None:
            return self._unknown(name)
        base = self._evaluator.base(name) or name
        if name == base:
            note = f"a value needs an ending, as {base}{_USUAL[kind]}"
            return NameCheck(name=name, known=True, kind="base", note=note)
        candidates = [f"{base}{ending}" for ending in self._evaluator.endings(kind)]
        close = difflib.get_close_matches(name, candidates, n=_SUGGESTED, cutoff=_CLOSE)
        subject = f"{base} of {self.chip} is a {kind.name.lower()}"
        return NameCheck(
            name=name,
            known=False,
            kind="",
            note=f"{subject}, and {name.removeprefix(base)} is not an ending of it",
            suggestions=tuple(close or [f"{base}{_USUAL[kind]}"]),
        )

    def cost(self, names: Sequence[str]) -> PassCost:
        """
        Return the passes that a kernel needs for some metrics together.

        Args:
            names: The metrics. Metrics that Nsight Compute computes are allowed.

        Raises:
            ConfigError: Some metrics are unknown. The message names all of them.
        """
        checks = [self.check(name) for name in dict.fromkeys(names)]
        unknown = [check for check in checks if not check.known]
        if unknown:
            raise _unknown_names(unknown)
        alone: dict[str, int] = {}
        refused: dict[str, str] = {}
        together: list[str] = []
        for check in checks:
            counted = self._counted(check)
            passes = self._passes(counted)
            if passes is None:
                refused[check.name] = f"{self.chip} cannot count it for a kernel"
            elif counted:
                alone[check.name] = passes
                together += counted
        passes = self._evaluator.passes(together)
        families = {check.name: _family(check.name) for check in checks}
        expanded = [
            name
            for name, family in families.items()
            if family
            and family.cost is _Cost.UNKNOWN
            and not name.startswith("breakdown:")
        ]
        replays: int | None = passes + _COUNTERS_MORE
        note = _COUNTERS_NOTE
        if expanded:
            replays, note = None, _OPEN_NOTE.format(", ".join(expanded))
        elif any(
            _SASS in name or (family and family.cost is _Cost.SOURCE)
            for name, family in families.items()
        ):
            replays, note = passes + _SOURCE_MORE, _SOURCE_NOTE
        return PassCost(
            chip=self.chip,
            names=tuple(check.name for check in checks),
            passes=passes,
            replays=replays,
            note=note,
            alone=alone,
            refused=refused,
        )

    def grouped(
        self, metrics_by_test: Mapping[str, Sequence[str]]
    ) -> tuple[ReplayGroup, ...]:
        """
        Return tests in groups. Tests share a group if that adds no pass.

        Nsight Compute starts once per group, and repeats each launch for the longest
        list of metrics in the group.

        Args:
            metrics_by_test: The metrics of each test.
        """
        # The order changes the passes. If several lists have the same names, the first
        # list is used for all of them.
        ordered: dict[frozenset[str], tuple[str, ...]] = {}
        lists: dict[tuple[str, ...], list[str]] = {}
        for test, names in metrics_by_test.items():
            distinct = ordered.setdefault(frozenset(names), tuple(dict.fromkeys(names)))
            lists.setdefault(distinct, []).append(test)
        passes = {names: self._together(names) for names in lists}
        groups: list[tuple[int, dict[str, None], list[str]]] = []
        for names in sorted(
            lists, key=lambda distinct_names: (-passes[distinct_names], distinct_names)
        ):
            for needed, joint, tests in groups:
                added = [name for name in names if name not in joint]
                if not added or self._together([*joint, *added]) == needed:
                    joint.update(dict.fromkeys(added))
                    tests.extend(lists[names])
                    break
            else:
                groups.append((passes[names], dict.fromkeys(names), lists[names]))
        return tuple(
            ReplayGroup(tests=tuple(tests), cost=self.cost([*joint]))
            for _, joint, tests in groups
        )

    def _counted(self, checked: NameCheck) -> list[str]:
        name = checked.name
        if checked.kind == "ncu":
            prefix, _, inner = name.partition(":")
            return self._counted(self.check(inner)) if prefix == "breakdown" else []
        if checked.kind != "base":
            return [name]
        return [f"{name}{_USUAL[self._evaluator.properties(name).kind]}"]

    def _together(self, names: Sequence[str]) -> int:
        counted = [part for name in names for part in self._counted(self.check(name))]
        passes = self._passes(counted)
        if passes is not None:
            return passes
        available = [part for part in counted if self._passes([part]) is not None]
        return self._evaluator.passes(available)

    def _passes(self, names: Sequence[str]) -> int | None:
        """Return the number of passes of metrics, or None if a kernel cannot have them."""
        try:
            return self._evaluator.passes(names)
        except CollectError:
            return None

    def _unknown(self, name: str) -> NameCheck:
        if name in METRICS:
            note = "a metric of gpuperf; limits and markers use this name on any chip"
            return NameCheck(name=name, known=False, kind="gpuperf", note=note)
        ending = _ENDING.search(name)
        base = name[: ending.start()] if ending else name
        unit, separator, _ = base.partition("__")
        all_names = [n for kind in MetricType for n in self._evaluator.names(kind)]
        alike = [metric for metric in all_names if metric.startswith(f"{unit}__")]
        note = f"{self.chip} has no such metric"
        if separator and not alike:
            note = f"{self.chip} has no {unit}__ metrics"
            if unit == "dram" and self.chip in _HOST_MEMORY:
                note += " (its memory is the host's)"
        supported = self._library.chips()
        other_chips = [
            chip
            for chip, *_ in CAPABILITIES.values()
            if chip in supported
            and chip != self.chip
            and evaluator(chip, self._library).kind(base) is not None
        ]
        if other_chips:
            note += f", unlike {', '.join(other_chips)}"
        # Newer chips insert words into names (`dram__bytes_op_read`), so names with all
        # of the words come first, then names of similar spelling. A single word is in
        # too many names.
        words, candidates = set(base.split("_")), alike or all_names
        if len(words) > 1:
            holding = [c for c in candidates if words <= set(c.split("_"))]
        else:
            holding = []
        holding.sort(key=lambda candidate: (len(candidate), candidate))
        close = difflib.get_close_matches(base, candidates, n=_SUGGESTED, cutoff=_CLOSE)
        nearest = [*dict.fromkeys([*holding[:_SUGGESTED], *close])][:_SUGGESTED]
        suggestions = []
        for metric in nearest:
            ended = metric + (ending[0] if ending else "")
            suggestions.append(ended if self._evaluator.accepts(ended) else metric)
        return NameCheck(
            name=name, known=False, kind="", note=note, suggestions=tuple(suggestions)
        )


def _family(name: str) -> _Family | None:
    return next(
        (family for family in _FAMILIES if family.pattern.fullmatch(name)), None
    )


def made_by_ncu(name: str) -> bool:
    """Return True if only Nsight Compute computes a metric."""
    return _family(name) is not None


def _unknown_names(checks: Sequence[NameCheck]) -> ConfigError:
    message = "; ".join(f"{check.name}: {check.explanation}" for check in checks)
    return ConfigError(message, remedy="look for names with gpuperf metrics search")
