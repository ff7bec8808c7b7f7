"""A report of Nsight Compute as a tree of launches.

NVIDIA's reader keeps every launch that it has read and aborts its process at will: it
runs in a process of its own each time, and here are only the answers.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from pytest_gpuperf.collect.ncu.extract import ADVICE, ALL, CORRELATED, LAUNCHES
from pytest_gpuperf.collect.ncu.launches import (
    LaunchAdvice,
    MetricFacts,
    ReportedLaunch,
    decode_advice,
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
from pytest_gpuperf.collect.ncu.nvtx import NvtxFilter
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

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.command import Command

__all__ = ["Report"]

_T = TypeVar("_T")

_SUFFIX = ".ncu-rep"
_MANY = 10  # kernels or ranges are enough for a message


class Demangler(Protocol):
    """A class that turns the name a binary has into the one a reader writes."""

    def demangle(self, name: str) -> str:
        """Return the readable name."""


class Report:
    """
    A `.ncu-rep` file.

    Args:
        path: Its folder, or without `name` the file itself.

        name: Its name in the folder, with or without `.ncu-rep`.

        command: Instead of both: the command that wrote it.

        runner: What starts the reading process.

        python:
            The interpreter to read with; its version must fit the installed ncu-report.

        timeout_s: How long one reading may take [s], > 0.

    Raises:
        ConfigError: Neither a file nor a command is named, or both are.

        CaptureFormatError: There is no such file, or it is no report.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        name: str | None = None,
        command: Command | None = None,
        *,
        runner: Runner | None = None,
        python: str = sys.executable,
        timeout_s: float = 120.0,
    ) -> None:
        self._file = _file(path, name, command)
        check_file(self._file)
        self._runner = ProcessRunner() if runner is None else runner
        self._python = python
        self._timeout_s = timeout_s
        # one reading is kept: choosing other launches of it needs no other
        self._kept: tuple[tuple[str, ...], tuple[tuple[ReportedLaunch, ...], ...]]
        self._kept = ((), ())

    def __repr__(self) -> str:
        """Return what makes the same report again."""
        return f"Report({self._file!r})"

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self._file)

    @property
    def range_count(self) -> int:
        """How many ranges it has, >= 1: contexts in which launches ran."""
        return len(self._kept[1] or self._read(()))

    def launches(
        self, range_idx: int = 0, *, names: Iterable[str] = ()
    ) -> tuple[ReportedLaunch, ...]:
        """
        Return the launches of a range, each with all that it says of itself.

        Args:
            range_idx: The range, from 0.

            names:
                Metrics by the report's names; `*` for all, `correlated:` before a name
                for its values by opcode or address.

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

        A launch lies under the push/pop ranges that were open, once for each domain
        that had any: `ProfilingResults.iter_launches` yields it once. `mangled` and
        `demangled` stand beside its metrics.

        Args:
            metrics: Metrics or names; a group or breakdown stands for its members, as
                the report lists them. None: all that each launch has.

            range_idx: The range, from 0.

            includes: NVTX expressions of which one must match; None: no condition.

            excludes: NVTX expressions of which none may match.

            demangler: Makes the readable name; None: the report's own is taken.

            kernels: Patterns of base or demangled names, with `*`, `?` and `[]`.

            indices: Launches by their place in the range.

            domain: The NVTX domain whose ranges make the tree; None: all of them.

        Raises:
            MissingEntryError: The report has no such range.

            EntryCountError: No launch is chosen.

            MetricUnavailableError: A launch that was measured lacks a metric.

            ConfigError: A metric or an expression is none, or two metrics have one key.

            WrongEntryError: An NVTX range is called like a launch beside it.
        """
        by_nvtx = NvtxFilter(includes, excludes)
        selection = _Selection(metrics)
        every = self.launches(range_idx, names=selection.names)
        if kernels is not None:  # asked for each launch, so what is given once is kept
            kernels = (kernels,) if isinstance(kernels, str) else tuple(kernels)
        places = None if indices is None else frozenset(indices)
        chosen = [
            launch
            for launch in every
            if by_nvtx.chooses(launch.nvtx) and _is_among(launch, kernels, places)
        ]
        if not chosen:
            raise self._nothing_chosen(
                every, by_nvtx=bool(by_nvtx), by_index=places is not None
            )
        self._check_metrics(chosen, selection, range_idx)
        return _tree(chosen, selection, _naming(demangler), domain)

    def advice(self, index: int, range_idx: int = 0) -> LaunchAdvice:
        """
        Return what ncu's rules say of a launch, and where its warps waited most.

        Args:
            index: The launch's place in its range, from 0.

            range_idx: The range, from 0.

        Raises:
            MissingEntryError: The report has no such range or launch.
        """
        launches = self._range(self._kept[1] or self._read(()), range_idx)
        if not _is_place(index, launches):
            message = f"range {range_idx} of {self.path.name} has no launch {index!r}"
            remedy = f"give an index from 0 to {len(launches) - 1}"
            raise MissingEntryError(message, remedy=remedy)
        text = self._text(ADVICE, (str(range_idx), str(index)))
        return decode_advice(text)

    def _read(self, names: tuple[str, ...]) -> tuple[tuple[ReportedLaunch, ...], ...]:
        """Return the launches of all ranges with some metrics."""
        kept, ranges = self._kept
        if not ranges or kept != names:
            text = self._text(LAUNCHES, names)
            ranges = decode_launches(text)
            self._kept = (names, ranges)
        return ranges

    def _text(self, form: str, names: Sequence[str]) -> bytes:
        """Return one form of what the report says, read by another process."""
        return report_text(
            self._file,
            form,
            names,
            runner=self._runner,
            python=self._python,
            timeout_s=self._timeout_s,
        )

    def _range(
        self, ranges: Sequence[tuple[ReportedLaunch, ...]], range_idx: int
    ) -> tuple[ReportedLaunch, ...]:
        """Return one range; a negative number counts from no end."""
        if not _is_place(range_idx, ranges):
            message = f"{self.path.name} has no range {range_idx!r}"
            remedy = f"give range_idx from 0 to {len(ranges) - 1}"
            raise MissingEntryError(message, remedy=remedy)
        return ranges[range_idx]

    def _nothing_chosen(
        self, every: Sequence[ReportedLaunch], *, by_nvtx: bool, by_index: bool
    ) -> EntryCountError:
        """Return the error that says what could have been chosen."""
        domains = [domain for launch in every for domain in launch.nvtx]
        names = {name for each in domains for name in (*each.stack, *each.started)}
        remedy = f"choose from {_few(launch.kernel for launch in every)}"
        if by_nvtx and not domains:
            remedy = "profile with ncu --nvtx: the report holds no NVTX range"
        elif by_nvtx and names:
            remedy += f" and from the NVTX ranges {_few(sorted(names))}"
        if by_index:
            remedy += f"; indices are from 0 to {len(every) - 1}"
        message = f"none of the {len(every)} launches of {self.path.name} is chosen"
        return EntryCountError(message, remedy=remedy)

    def _check_metrics(
        self, chosen: Iterable[ReportedLaunch], selection: _Selection, range_idx: int
    ) -> None:
        """Refuse a metric that a measured launch does not have."""
        for launch in chosen:
            missing = selection.missing(launch) if launch.measured else ()
            if not missing:
                continue
            first, *others = missing
            every = self.launches(range_idx, names=(ALL,))[launch.index].facts
            what = (
                "values of it by opcode or address" if first in every else "such metric"
            )
            reason = f"launch {launch.key} of {self.path.name} has no {what}"
            if others:
                reason += f", nor {_few(others)}"
            raise MetricUnavailableError(first, reason, remedy=_instead(first, every))


class _Selection:
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
        self._facts: tuple[object, Mapping[str, MetricFacts | None]] = (None, {})
        self.keys: dict[str, list[str]] = {}
        self.correlated: dict[str, list[str]] = {}
        if metrics is None:
            self.names: tuple[str, ...] = (ALL,)
            return
        # every text is a metric, too: what is no name is refused alike
        metrics = [metrics] if isinstance(metrics, str) else list(metrics)
        self.aliases = newer_labels(metrics)  # refuses keys that two metrics share, too
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
            message = f"the key {taken[0]!r} would stand for two values"
            remedy = "give the metric another pretty_name"
            raise ConfigError(message, remedy=remedy)
        self.names = (*self.keys, *(f"{CORRELATED}{name}" for name in self.correlated))

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
        facts, by_key = self._facts
        if facts is not launch.facts:  # launches share them as long as they are equal
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
        """Return what belongs to metrics by their keys; members of a list keep their names."""
        return {
            key: item
            for name, item in by_name.items()
            for key in self.keys.get(name, (name,))
        }


def _tree(
    chosen: Iterable[ReportedLaunch],
    selection: _Selection,
    name_of: Callable[[ReportedLaunch], str],
    domain: str | None,
) -> ProfilingResults:
    """Return launches as a tree of the NVTX ranges around them."""
    results = ProfilingResults()
    for launch in chosen:
        data = selection.values(launch)
        data |= {"mangled": launch.mangled, "demangled": name_of(launch)}
        leaf = ProfilingMetrics(
            data,
            facts=selection.facts(launch),
            name=launch.key,
            measured=launch.measured,
            aliases=selection.aliases,
        )
        stacks = [
            each.stack
            for each in launch.nvtx
            if each.stack and domain in {None, each.name}
        ]
        for stack in dict.fromkeys(stacks or [()]):
            try:
                results.assign_metrics((*stack, launch.key), leaf)
            except WrongEntryError as error:
                remedy = "leave it out with excludes=, or rename the NVTX range"
                raise WrongEntryError(
                    f"an NVTX range is called like a launch: {error.message}",
                    remedy=remedy,
                ) from error
    return results


def _file(
    path: str | os.PathLike[str] | None, name: str | None, command: Command | None
) -> str:
    """Return the file that is meant."""
    if command is not None and path is None and name is None:
        return str(command.report)
    if path is None or command is not None:
        message = "a report is named by its path or by its command"
        remedy = (
            "write Report(path=folder, name=stem), Report(file) or Report(command=c)"
        )
        raise ConfigError(message, remedy=remedy)
    if name is None:
        return os.fspath(path)
    # appended and never replaced: ncu calls the report of `-o a.b` a.b.ncu-rep
    file = name if name.endswith(_SUFFIX) else name + _SUFFIX
    return str(Path(path, file))


def _naming(
    demangler: Demangler | Callable[[str], str] | None,
) -> Callable[[ReportedLaunch], str]:
    """Return what names a launch for its reader, asked once for each kernel."""
    if demangler is None:
        return lambda launch: launch.demangled
    # a class may have it as well as one of its objects, and a class can be called
    demangle: Callable[[str], str] = getattr(demangler, "demangle", None) or demangler  # type: ignore[assignment] # what lacks the method is a function
    known: dict[str, str] = {}

    def name_of(launch: ReportedLaunch) -> str:
        if launch.mangled not in known:
            known[launch.mangled] = demangle(launch.mangled)
        return known[launch.mangled]

    return name_of


def _is_place(number: object, every: Sequence[object]) -> bool:
    """Return whether `number` is a valid index, counted from 0."""
    return isinstance(number, int) and 0 <= number < len(every)


def _is_among(
    launch: ReportedLaunch,
    patterns: Iterable[str] | None,
    indices: frozenset[int] | None,
) -> bool:
    """Return whether a launch is chosen by its name and by its place."""
    if indices is not None and launch.index not in indices:
        return False
    return patterns is None or any(
        # a demangled name has brackets and stars of its own
        pattern in {launch.kernel, launch.demangled}
        or fnmatchcase(launch.kernel, pattern)
        or fnmatchcase(launch.demangled, pattern)
        for pattern in patterns
    )


def _instead(name: str, every: Iterable[str]) -> str:
    """Return what to do about a metric that a launch does not have."""
    names = sorted(every)
    of_it = [each for each in names if each.startswith(f"{name}.")]
    close = of_it or difflib.get_close_matches(name, names, n=3)
    other = f"ask for {_few(close)}, or " if close else ""
    return f"{other}profile with ncu --metrics={name}"


def _few(names: Iterable[str]) -> str:
    """Return names for a message, each once."""
    found = list(dict.fromkeys(names))
    more = f" and {len(found) - _MANY} more" if len(found) > _MANY else ""
    return ", ".join(found[:_MANY]) + more
