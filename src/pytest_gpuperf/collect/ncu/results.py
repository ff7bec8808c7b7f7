"""Values of launches in a tree of NVTX ranges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuperf.collect.ncu.metrics import MetricCorrelationData, MetricValue
from pytest_gpuperf.errors import (
    CollectorUnavailableError,
    EntryCountError,
    MeasureError,
    MetricUnavailableError,
    MissingEntryError,
    WrongEntryError,
)
from pytest_gpuperf.model.frozen import Frozen

if TYPE_CHECKING:
    from rich.tree import Tree

    from pytest_gpuperf.collect.ncu.launches import MetricFacts

# Keys of every launch, in addition to metrics.
NAME_KEYS = ("mangled", "demangled")
# Metrics that are valid even if profiling failed.
_DEVICE = "device__attribute_"
# Maximum number of names in a message.
_FEW = 5
_TITLE = "Profiling results"
# Columns of the tree as text. A demangled name alone may have 7,000.
_WIDTH = 200


class Aggregate(dict[str, int | float]):
    """
    Sums over launches, by key.

    Attributes:
        left_out: The reason why each other key has no sum.
    """

    def __init__(
        self, sums: Mapping[str, int | float], left_out: Mapping[str, str]
    ) -> None:
        super().__init__(sums)
        self.left_out = dict(left_out)


@dataclass(frozen=True, slots=True, eq=False)  # A Struct cannot be a Mapping.
class ProfilingMetrics(Mapping[str, MetricValue]):
    """
    The values of one launch by key. Reading an unmeasured value is an error.

    Attributes:
        data: The values as in the report, or None if absent, NaN or infinite.

        facts: The report's facts of each metric, by key. A caller's own values have
            none.

        name: The launch, as `axpy-0`.

        measured: False if profiling this launch failed, so that its metrics are
            meaningless.

        aliases: Keys by their other spelling.
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
            MissingEntryError: The launch has no such key. This is a KeyError.

            MetricUnavailableError: The key has no valid value.
        """
        key = key if key in self.data else self.aliases.get(key, key)
        if key not in self.data:
            message = f"{self._title} has no value {key!r}"
            raise MissingEntryError(message, remedy=_one_of(self.data))
        reason = self.why_not(key)
        if reason:
            remedy = "leave the launch out, or profile again"
            raise MetricUnavailableError(key, f"{self._title}: {reason}", remedy=remedy)
        return self.data[key]

    def __iter__(self) -> Iterator[str]:
        """Yield the keys."""
        return iter(self.data)

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self.data)

    def __eq__(self, other: object) -> bool:
        """Return True if the values are the same, unmeasured values included."""
        if isinstance(other, ProfilingMetrics):
            return self.measured == other.measured and self.data == other.data
        return self.data == other if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment] # as any mapping that compares by value

    def __contains__(self, key: object) -> bool:
        """Return True if the launch has a key, measured or not."""
        return key in self.data or key in self.aliases

    def why_not(self, key: str) -> str:
        """Return the reason why a key has no valid value, or "" if valid."""
        if not self.measured and not (key in NAME_KEYS or key.startswith(_DEVICE)):
            return "profiling it failed"
        if self.data[key] is None:
            return "its value is absent, NaN or infinite"
        return ""

    @property
    def _title(self) -> str:
        return f"launch {self.name}" if self.name else "this launch"


class ProfilingResults(Frozen, frozen=True):
    """
    A tree with NVTX ranges as its nodes and launches as its leaves.

    Attributes:
        data: The entries by name. A node has the name of its range. A launch has its
            kernel's base name and its index in the report's range, as `axpy-0`.
    """

    data: dict[str, ProfilingResults | ProfilingMetrics] = msgspec.field(
        default_factory=dict
    )

    def __len__(self) -> int:
        """Return the number of direct entries."""
        return len(self.data)

    def __str__(self) -> str:
        """Return the tree as text, with lines cut at 200 columns."""
        lines = [_TITLE, *_lines(self, "")]
        return "\n".join(_cut(line) for line in lines)

    def query(
        self, accessors: Iterable[str] = ()
    ) -> ProfilingResults | ProfilingMetrics:
        """
        Return an entry.

        Args:
            accessors: The names on the path to the entry. Without names it is this node
                itself.

        Raises:
            MissingEntryError: There is no such entry. This is a KeyError.

            WrongEntryError: The path leads through a launch. This is a TypeError.
        """
        entry: ProfilingResults | ProfilingMetrics = self
        path = _checked(accessors)
        for depth, name in enumerate(path):
            if isinstance(entry, ProfilingMetrics):
                raise _wrong(path[:depth], "is a launch and has no entries")
            if name not in entry.data:
                message = f"{_shown(path[:depth])} has no entry {name!r}"
                raise MissingEntryError(message, remedy=_one_of(entry.data))
            entry = entry.data[name]
        return entry

    def query_filter(
        self, accessors: Iterable[str], predicate: Callable[[str], bool]
    ) -> ProfilingResults:
        """
        Return the direct entries of a node, filtered by name.

        Args:
            accessors: The names on the path to the node.

            predicate: The test that a name must pass.

        Raises:
            WrongEntryError: The entry is not a node. The errors of `query` are raised
                too.
        """
        entries = self._node(accessors).data.items()
        return ProfilingResults({k: entry for k, entry in entries if predicate(k)})

    def query_metrics(self, accessors: Iterable[str]) -> ProfilingMetrics:
        """
        Return a launch.

        Args:
            accessors: The names on the path to the launch.

        Raises:
            WrongEntryError: The entry is a node. The errors of `query` are raised too.
        """
        path = _checked(accessors)
        return _launch(self.query(path), path)

    def query_single_next(
        self, accessors: Iterable[str] = ()
    ) -> tuple[str, ProfilingResults | ProfilingMetrics]:
        """
        Return the name and the only entry of a node.

        Args:
            accessors: The names on the path to the node.

        Raises:
            EntryCountError: The node has no entry or several. This is a RuntimeError.

            WrongEntryError: The entry is not a node. The errors of `query` are raised
                too.
        """
        path = _checked(accessors)
        node = self._node(path)
        if len(node) != 1:
            message = f"{_shown(path)} has {len(node)} entries instead of one"
            raise EntryCountError(message, remedy=_one_of(node.data))
        return next(iter(node.data.items()))

    def query_single_next_metrics(
        self, accessors: Iterable[str] = ()
    ) -> tuple[str, ProfilingMetrics]:
        """
        Return the name and the only launch of a node without other entries.

        Args:
            accessors: The names on the path to the node.

        Raises:
            WrongEntryError: The entry is a node. The errors of `query_single_next` are
                raised too.
        """
        path = _checked(accessors)
        name, entry = self.query_single_next(path)
        return name, _launch(entry, (*path, name))

    def iter_metrics(
        self, accessors: Iterable[str] = ()
    ) -> Iterator[tuple[str, ProfilingMetrics]]:
        """
        Yield the names and launches directly in a node.

        Args:
            accessors: The names on the path to the node.

        Raises:
            WrongEntryError: An entry is a node. Raised when that entry is reached.
        """
        path = _checked(accessors)
        for name, entry in self._node(path).data.items():
            yield name, _launch(entry, (*path, name))

    def iter_launches(self) -> Iterator[tuple[tuple[str, ...], ProfilingMetrics]]:
        """Yield all paths and launches. A launch in several domains is yielded once."""
        visited: set[int] = set()
        for path, entry in self._walk(()):
            if id(entry) not in visited:
                visited.add(id(entry))
                yield path, entry

    def assign_metrics(
        self, accessors: Iterable[str], data: Mapping[str, MetricValue]
    ) -> None:
        """
        Add a launch to the tree, with the nodes on the path to the launch.

        Args:
            accessors: The names on the path, the launch's last.

            data: The values of the launch by key.

        Raises:
            WrongEntryError: A launch is on the path, or a node at its end.
        """
        path = _checked(accessors)
        if not path:
            message = "a launch needs a name in the tree"
            raise WrongEntryError(message, remedy="give at least one accessor")
        node = self
        for depth, name in enumerate(path[:-1], 1):
            entry = node.data.setdefault(name, ProfilingResults())
            if isinstance(entry, ProfilingMetrics):
                raise _wrong(path[:depth], "is a launch and cannot hold another")
            node = entry
        if isinstance(node.data.get(path[-1]), ProfilingResults):
            raise _wrong(path, "is a node, which a launch would replace")
        leaf = data if isinstance(data, ProfilingMetrics) else ProfilingMetrics(data)
        node.data[path[-1]] = leaf

    def aggregate_metrics(
        self, accessors: Iterable[str] = (), keys: Iterable[str] | None = None
    ) -> Aggregate:
        """
        Return sums over the launches directly in a node.

        Only counters that are summed over their instances are added, and a caller's own
        numbers, which have no facts. Percentages, averages, maxima and launch sizes are
        not additive.

        Args:
            accessors: The names on the path to the node.

            keys: The keys to add, or None for all that can be added.

        Returns:
            The sums. With `keys=None`, their `left_out` has the reason for each other
            key.

        Raises:
            MeasureError: Requested keys have no sum. The message has all of them.

            EntryCountError: The node has no launch.

            WrongEntryError: The node has an entry that is a node.
        """
        path = _checked(accessors)
        leaves = [leaf for _, leaf in self.iter_metrics(path)]
        if not leaves:
            message = f"{_shown(path)} has no launch to add up"
            raise EntryCountError(message, remedy="name a node that holds launches")
        if keys is None:
            names = [key for leaf in leaves for key in leaf if key not in NAME_KEYS]
        else:
            names = [*_checked(keys, "keys")]
        sums: dict[str, int | float] = {}
        left_out: dict[str, str] = {}
        for key in dict.fromkeys(names):
            if why := _why_no_sum(key, leaves):
                left_out[key] = why
                continue
            entries = [leaf[key] for leaf in leaves]
            values = [value for value in entries if isinstance(value, (int, float))]
            whole = [value for value in values if isinstance(value, int)]
            # Exact for integers, else rounded once.
            sums[key] = sum(whole) if len(whole) == len(values) else math.fsum(values)
        if keys is not None and left_out:
            whys = "; ".join(f"{key}: {why}" for key, why in left_out.items())
            message = f"{_shown(path)} has no sum of {whys}"
            remedy = "read it launch by launch with iter_metrics"
            raise MeasureError(message, remedy=remedy)
        return Aggregate(sums, left_out)

    def to_tree(self) -> Tree:
        """
        Return the tree for the package rich.

        Raises:
            CollectorUnavailableError: rich is not installed. `str()` needs no package.
        """
        try:
            from rich.tree import Tree
        except ImportError as error:
            message = "the package rich is not installed"
            remedy = "pip install rich, or print str(results)"
            raise CollectorUnavailableError(message, remedy=remedy) from error
        tree = Tree(_TITLE)
        _grow(tree, self)
        return tree

    def _node(self, accessors: Iterable[str]) -> ProfilingResults:
        path = _checked(accessors)
        entry = self.query(path)
        if isinstance(entry, ProfilingMetrics):
            raise _wrong(path, "is a launch and has no entries")
        return entry

    def _walk(
        self, path: tuple[str, ...]
    ) -> Iterator[tuple[tuple[str, ...], ProfilingMetrics]]:
        for name, entry in self.data.items():
            if isinstance(entry, ProfilingMetrics):
                yield (*path, name), entry
            else:
                yield from entry._walk((*path, name))  # noqa: SLF001 - our own class


def _checked(names: Iterable[str], title: str = "accessors") -> tuple[str, ...]:
    """Return names as a tuple, or raise a WrongEntryError for a single text."""
    if isinstance(names, str):
        message = f"{title}={names!r} is one text and not a list of names"
        raise WrongEntryError(message, remedy=f"write {title}=({names!r},)")
    return tuple(names)


def _launch(
    entry: ProfilingResults | ProfilingMetrics, path: Sequence[str]
) -> ProfilingMetrics:
    if isinstance(entry, ProfilingResults):
        raise _wrong(path, "is a node, not a launch")
    return entry


def _lines(node: ProfilingResults | ProfilingMetrics, before: str) -> Iterator[str]:
    last = len(node.data) - 1
    for place, (name, entry) in enumerate(node.data.items()):
        branch, below = ("└── ", "    ") if place == last else ("├── ", "│   ")
        if isinstance(entry, (ProfilingResults, ProfilingMetrics)):
            yield f"{before}{branch}{name}"
            yield from _lines(entry, before + below)
        else:
            yield f"{before}{branch}{name}: {_value(entry)}"


def _grow(tree: Tree, node: ProfilingResults | ProfilingMetrics) -> None:
    # A kernel's name is not markup.
    from rich.text import Text

    for name, entry in node.data.items():
        if isinstance(entry, (ProfilingResults, ProfilingMetrics)):
            _grow(tree.add(Text(name)), entry)
        else:
            line = _cut(f"{name}: {_value(entry)}")
            tree.add(Text(line, no_wrap=True))


def _value(value: object) -> str:
    if isinstance(value, MetricCorrelationData):
        total = _value(value.value)
        return f"{total} ({len(value.correlated)} correlated)"
    return "not measured" if value is None else str(value)


def _cut(line: str) -> str:
    """Return a line without control characters, cut at the width."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"


def _wrong(path: Sequence[str], what: str) -> WrongEntryError:
    return WrongEntryError(
        f"{_shown(path)} {what}", remedy="print the results to see their tree"
    )


def _shown(path: Sequence[str]) -> str:
    return "/".join(path) if path else "the tree's root"


def _why_no_sum(key: str, leaves: Iterable[ProfilingMetrics]) -> str:
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
            return "it is not a finite number"
    return ""


def _not_additive(facts: MetricFacts) -> str:
    if facts.subtype is not None:
        return f"{facts.subtype} does not add up"
    if facts.type != "counter":
        return "it is not a counter"
    return f"its roll-up is {facts.rollup or 'none'}, not sum"


def _one_of(entries: Iterable[str]) -> str:
    names = list(entries)
    if not names:
        return "it is empty: choose other launches"
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return f"ask for one of {', '.join(names[:_FEW])}{more}"
