"""A report of Nsight Compute as a tree of launches.

NVIDIA's reader keeps every launch in memory and may abort its process. Each reading
therefore runs in a separate process, which returns only text.
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from pytest_gpuperf.collect.ncu.forms import ADVICE, ALL, CORRELATED, LAUNCHES
from pytest_gpuperf.collect.ncu.launches import (
    MetricFacts,
    ReportedLaunch,
    decode_launches,
)
from pytest_gpuperf.collect.ncu.metrics import (
    Metric,
    MetricCorrelation,
    MetricValue,
    gather,
    labels,
    newer_labels,
)
from pytest_gpuperf.collect.ncu.nvtx import LaunchFilter, few
from pytest_gpuperf.collect.ncu.results import (
    NAME_KEYS,
    ProfilingMetrics,
    ProfilingResults,
)
from pytest_gpuperf.collect.ncu.text import check_file, report_text
from pytest_gpuperf.collect.runner import ProcessRunner, Runner
from pytest_gpuperf.errors import (
    ConfigError,
    EntryCountError,
    MetricUnavailableError,
    MissingEntryError,
    WrongEntryError,
)
from pytest_gpuperf.model.counters import LaunchAdvice

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.command import Command

_T = TypeVar("_T")

_SUFFIX = ".ncu-rep"


class Demangler(Protocol):
    """Turns a mangled name into the source name."""

    def demangle(self, name: str) -> str:
        """Return the readable name."""


class Report:
    """
    A `.ncu-rep` file.

    Args:
        path: Its folder, or without `name` the file itself.

        name: Its name in the folder, with or without `.ncu-rep`.

        command: The command that wrote the file, instead of `path` and `name`.

        runner: Starts the reading process.

    Raises:
        ConfigError: Neither a file nor a command is named, or both are.

        CaptureFormatError: The file is missing, or is not a report.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        name: str | None = None,
        command: Command | None = None,
        *,
        runner: Runner | None = None,
    ) -> None:
        self._file = _file(path, name, command)
        check_file(self._file)
        self._runner = ProcessRunner() if runner is None else runner
        # The last reading is cached, so that other launches of it need no new process.
        self._cached: tuple[tuple[str, ...], tuple[tuple[ReportedLaunch, ...], ...]]
        self._cached = ((), ())

    def __repr__(self) -> str:
        """Return the expression that creates this report."""
        return f"Report({self._file!r})"

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self._file)

    @property
    def range_count(self) -> int:
        """The number of ranges, >= 1. A range is a context in which launches ran."""
        return len(self._cached[1] or self._read(()))

    def launches(
        self, range_idx: int = 0, *, names: Iterable[str] = ()
    ) -> tuple[ReportedLaunch, ...]:
        """
        Return the launches of a range with the requested metrics.

        Args:
            range_idx: The range, from 0.

            names: Metrics by the report's names, `*` for all, `correlated:` before a
                name for its values by opcode or address.

        Raises:
            MissingEntryError: The report has no such range.
        """
        return self._range(self._read(tuple(names)), range_idx)

    def extract_results_in_range(
        self,
        metrics: Iterable[Metric | str] | None = None,
        range_idx: int = 0,
        includes: Iterable[str] | None = None,
        excludes: Iterable[str] | None = None,
        demangler: Demangler | Callable[[str], str] | None = None,
        *,
        kernels: str | Iterable[str] | None = None,
        indices: Iterable[int] | None = None,
        domain: str | None = None,
    ) -> ProfilingResults:
        """
        Return the values of some launches as a tree of NVTX ranges.

        A launch is under its open push/pop ranges, once for each domain that has any.
        `ProfilingResults.iter_launches` yields it once. `mangled` and `demangled` are
        keys in addition to its metrics.

        Args:
            metrics: Metrics or names, or None for all metrics of each launch. A group
                or breakdown means its members, as the report lists them.

            range_idx: The range, from 0.

            includes: NVTX expressions of which one must match, or None for no
                condition.

            excludes: NVTX expressions of which none may match.

            demangler: Makes the readable name, or None to use the report's name.

            kernels: Patterns of base or demangled names, with `*`, `?` and `[]`.

            indices: Launches by their index in the range.

            domain: The NVTX domain whose ranges make the tree, or None for all domains.

        Raises:
            MissingEntryError: The report has no such range.

            EntryCountError: No launch is chosen.

            MetricUnavailableError: A launch that was measured lacks a metric.

            ConfigError: A metric or an expression is invalid, or two metrics have one
                key.

            WrongEntryError: An NVTX range has the name of a launch next to it.
        """
        launch_filter = LaunchFilter(
            kernels=kernels, includes=includes, excludes=excludes, indices=indices
        )
        selection = _Selection(metrics)
        launches = self.launches(range_idx, names=selection.names)
        chosen = launch_filter.chosen(launches)
        if not chosen:
            message = (
                f"none of the {len(launches)} launches of {self.path.name} is chosen"
            )
            raise EntryCountError(message, remedy=launch_filter.remedy(launches))
        self._check_metrics(chosen, selection, range_idx)
        return _tree(chosen, selection, demangler, domain)

    def advice(self, index: int, range_idx: int = 0) -> LaunchAdvice:
        """
        Return the results of ncu's rules and the hottest source lines of a launch.

        Args:
            index: The launch's index in its range, from 0.

            range_idx: The range, from 0.

        Raises:
            MissingEntryError: The report has no such range or launch.
        """
        launches = self._range(self._cached[1] or self._read(()), range_idx)
        if not _is_index(index, launches):
            message = f"range {range_idx} of {self.path.name} has no launch {index!r}"
            remedy = f"give an index from 0 to {len(launches) - 1}"
            raise MissingEntryError(message, remedy=remedy)
        text = self._text(ADVICE, (str(range_idx), str(index)))
        return msgspec.json.decode(text, type=LaunchAdvice)

    def _read(self, names: tuple[str, ...]) -> tuple[tuple[ReportedLaunch, ...], ...]:
        cached_names, ranges = self._cached
        if not ranges or cached_names != names:
            text = self._text(LAUNCHES, names)
            ranges = decode_launches(text)
            self._cached = (names, ranges)
        return ranges

    def _text(self, form: str, names: Sequence[str]) -> bytes:
        return report_text(self._file, form, names, runner=self._runner)

    def _range(
        self, ranges: Sequence[tuple[ReportedLaunch, ...]], range_idx: int
    ) -> tuple[ReportedLaunch, ...]:
        """Return a range. A negative index is an error."""
        if not _is_index(range_idx, ranges):
            message = f"{self.path.name} has no range {range_idx!r}"
            remedy = f"give range_idx from 0 to {len(ranges) - 1}"
            raise MissingEntryError(message, remedy=remedy)
        return ranges[range_idx]

    def _check_metrics(
        self, chosen: Iterable[ReportedLaunch], selection: _Selection, range_idx: int
    ) -> None:
        """Raise a MetricUnavailableError if a measured launch lacks a metric."""
        for launch in chosen:
            missing = selection.missing(launch) if launch.measured else ()
            if not missing:
                continue
            first, *more = missing
            facts = self.launches(range_idx, names=(ALL,))[launch.index].facts
            what = (
                "values of it by opcode or address" if first in facts else "such metric"
            )
            reason = f"launch {launch.key} of {self.path.name} has no {what}"
            if more:
                reason += f", nor {few(more)}"
            names = sorted(facts)
            complete = [name for name in names if name.startswith(f"{first}.")]
            close = complete or difflib.get_close_matches(first, names, n=3)
            choice = f"ask for {few(close)}, or " if close else ""
            remedy = f"{choice}profile with ncu --metrics={first}"
            raise MetricUnavailableError(first, reason, remedy=remedy)


class _Selection:
    """
    The requested metrics and their keys.

    Args:
        metrics: Metrics or names, or None for all metrics of each launch.

    Attributes:
        names: The names to request from the reading process.

        keys: The keys of each metric, by the report's name.

        correlated: The keys of metrics with values by opcode or address.

        aliases: Keys by their other spelling.

    Raises:
        ConfigError: A text is not a name, or two values would have one key.
    """

    def __init__(self, metrics: Iterable[Metric | str] | None) -> None:
        self.aliases: Mapping[str, str] = {}
        self._facts: tuple[object, Mapping[str, MetricFacts | None]] = (None, {})
        self.keys: dict[str, list[str]] = {}
        self.correlated: dict[str, list[str]] = {}
        if metrics is None:
            self.names: tuple[str, ...] = (ALL,)
            return
        # A single text is one metric.
        metrics = [metrics] if isinstance(metrics, str) else list(metrics)
        # Also refuses keys that two metrics share.
        self.aliases = newer_labels(metrics)
        for metric in metrics:
            is_correlated = isinstance(metric, MetricCorrelation)
            keys = self.correlated if is_correlated else self.keys
            for name, key in zip(gather([metric]), labels([metric]), strict=True):
                if key not in keys.setdefault(name, []):
                    keys[name].append(key)
        plain = [key for keys in self.keys.values() for key in keys]
        correlated = [key for keys in self.correlated.values() for key in keys]
        taken = [key for key in (*plain, *correlated) if key in NAME_KEYS]
        taken += [key for key in correlated if key in plain]
        if taken:
            message = f"the key {taken[0]!r} would have two values"
            remedy = "give the metric another pretty_name"
            raise ConfigError(message, remedy=remedy)
        self.names = (*self.keys, *(f"{CORRELATED}{name}" for name in self.correlated))

    def missing(self, launch: ReportedLaunch) -> list[str]:
        """Return the metrics that a launch lacks."""
        plain = [
            name
            for name in self.keys
            if name in launch.facts and launch.facts[name] is None
        ]
        return plain + [
            name for name in self.correlated if launch.correlated.get(name) is None
        ]

    def facts(self, launch: ReportedLaunch) -> Mapping[str, MetricFacts | None]:
        """Return the facts of a launch's metrics by key. Launches share the mapping."""
        facts, by_key = self._facts
        # Launches share their facts as long as they are equal.
        if facts is not launch.facts:
            by_key = self._by_key(launch.facts)
            self._facts = (launch.facts, by_key)
        return by_key

    def values(self, launch: ReportedLaunch) -> dict[str, MetricValue]:
        """Return the values of a launch by key."""
        if not self.keys and not self.correlated:
            return dict(launch.values)
        values: dict[str, MetricValue] = dict(self._by_key(launch.values))
        for name, keys in self.correlated.items():
            values |= dict.fromkeys(keys, launch.correlated.get(name))
        return values

    def _by_key(self, by_name: Mapping[str, _T]) -> dict[str, _T]:
        return {
            key: item
            for name, item in by_name.items()
            for key in self.keys.get(name, (name,))
        }


def _tree(
    chosen: Iterable[ReportedLaunch],
    selection: _Selection,
    demangler: Demangler | Callable[[str], str] | None,
    domain: str | None,
) -> ProfilingResults:
    # The method may belong to a class or to an object, and a class is callable too.
    demangle: Callable[[str], str] | None = (
        getattr(demangler, "demangle", None) or demangler  # type: ignore[assignment] # what lacks the method is a function
    )
    # Launches of one kernel share the name.
    demangled = None if demangle is None else functools.cache(demangle)
    results = ProfilingResults()
    for launch in chosen:
        name = demangled(launch.mangled) if demangled else launch.demangled
        data = selection.values(launch)
        data |= {"mangled": launch.mangled, "demangled": name}
        leaf = ProfilingMetrics(
            data,
            facts=selection.facts(launch),
            name=launch.key,
            measured=launch.measured,
            aliases=selection.aliases,
        )
        stacks = [
            nvtx_domain.stack
            for nvtx_domain in launch.domains
            if nvtx_domain.stack and domain in {None, nvtx_domain.name}
        ]
        for stack in dict.fromkeys(stacks or [()]):
            try:
                results.assign_metrics((*stack, launch.key), leaf)
            except WrongEntryError as error:
                remedy = "leave it out with excludes=, or rename the NVTX range"
                raise WrongEntryError(
                    f"an NVTX range has the name of a launch: {error.message}",
                    remedy=remedy,
                ) from error
    return results


def _file(
    path: str | os.PathLike[str] | None, name: str | None, command: Command | None
) -> str:
    if command is not None and path is None and name is None:
        return str(command.written())
    if path is None or command is not None:
        message = "a report is named by its path or by its command"
        remedy = (
            "write Report(path=folder, name=stem), Report(file) or Report(command=c)"
        )
        raise ConfigError(message, remedy=remedy)
    if name is None:
        return os.fspath(path)
    # Appended, never replaced: the report of `-o a.b` is a.b.ncu-rep.
    file = name if name.endswith(_SUFFIX) else name + _SUFFIX
    return str(Path(path, file))


def _is_index(index: object, items: Sequence[object]) -> bool:
    return isinstance(index, int) and 0 <= index < len(items)
