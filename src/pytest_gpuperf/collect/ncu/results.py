"""What was measured, launch by launch, in a tree of NVTX ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuperf.collect.ncu.profiled import (
    Aggregate,
    ProfilingMetrics,
    added,
    one_of,
)
from pytest_gpuperf.errors import (
    CollectorUnavailableError,
    EntryCountError,
    MeasureError,
    MissingEntryError,
    WrongEntryError,
)
from pytest_gpuperf.model.frozen import Frozen

if TYPE_CHECKING:
    from rich.tree import Tree

    from pytest_gpuperf.collect.ncu.metrics import MetricValue

__all__ = ["ProfilingMetrics", "ProfilingResults"]

_TITLE = "Profiling results"
_WIDTH = 200  # columns of the tree as text: a demangled name alone may have 7,000


class ProfilingResults(Frozen, frozen=True):
    """
    A tree: NVTX ranges are its nodes, launches its leaves.

    Attributes:
        data: The entries by name: of a node, the name of its range; of a launch, its
            kernel's base name and its index in the report's range, as `axpy-0`.
    """

    data: dict[str, ProfilingResults | ProfilingMetrics] = msgspec.field(
        default_factory=dict
    )

    def __len__(self) -> int:
        """Return how many direct entries there are."""
        return len(self.data)

    def __str__(self) -> str:
        """Return the tree as text, each line cut at 200 columns."""
        lines = [_TITLE, *_lines(self, "")]
        return "\n".join(_cut(line) for line in lines)

    def query(
        self, accessors: Iterable[str] = ()
    ) -> ProfilingResults | ProfilingMetrics:
        """
        Return an entry.

        Args:
            accessors: The names on the way to it; none: this node itself.

        Raises:
            MissingEntryError: There is none; it is a KeyError.

            WrongEntryError: The way leads through a launch; it is a TypeError.
        """
        entry: ProfilingResults | ProfilingMetrics = self
        way = _checked(accessors)
        for depth, name in enumerate(way):
            if isinstance(entry, ProfilingMetrics):
                raise _wrong(way[:depth], "is a launch and has no entries")
            if name not in entry.data:
                message = f"{_shown(way[:depth])} has no entry {name!r}"
                raise MissingEntryError(message, remedy=one_of(entry.data))
            entry = entry.data[name]
        return entry

    def query_filter(
        self, accessors: Iterable[str], predicate: Callable[[str], bool]
    ) -> ProfilingResults:
        """
        Return the direct entries of a node whose name passes a test.

        Args:
            accessors: The names on the way to the node.

            predicate: The test.

        Raises:
            WrongEntryError: It is no node; and the errors of `query`.
        """
        entries = self._node(accessors).data.items()
        return ProfilingResults({k: entry for k, entry in entries if predicate(k)})

    def query_metrics(self, accessors: Iterable[str]) -> ProfilingMetrics:
        """
        Return a launch.

        Args:
            accessors: The names on the way to it.

        Raises:
            WrongEntryError: It is a node; and the errors of `query`.
        """
        way = _checked(accessors)
        return _launch(self.query(way), way)

    def query_single_next(
        self, accessors: Iterable[str] = ()
    ) -> tuple[str, ProfilingResults | ProfilingMetrics]:
        """
        Return the only entry of a node, with its name.

        Args:
            accessors: The names on the way to the node.

        Raises:
            EntryCountError: It has none or several; it is a RuntimeError.

            WrongEntryError: It is no node; and the errors of `query`.
        """
        way = _checked(accessors)
        node = self._node(way)
        if len(node) != 1:
            message = f"one entry is expected in {_shown(way)}, and it has {len(node)}"
            raise EntryCountError(message, remedy=one_of(node.data))
        return next(iter(node.data.items()))

    def query_single_next_metrics(
        self, accessors: Iterable[str] = ()
    ) -> tuple[str, ProfilingMetrics]:
        """
        Return the only entry of a node, which is a launch, with its name.

        Args:
            accessors: The names on the way to the node.

        Raises:
            WrongEntryError: The entry is a node; and as `query_single_next`.
        """
        way = _checked(accessors)
        name, entry = self.query_single_next(way)
        return name, _launch(entry, (*way, name))

    def iter_metrics(
        self, accessors: Iterable[str] = ()
    ) -> Iterator[tuple[str, ProfilingMetrics]]:
        """
        Yield the launches directly in a node, each with its name.

        Args:
            accessors: The names on the way to the node.

        Raises:
            WrongEntryError: When it comes to an entry that is a node.
        """
        way = _checked(accessors)
        for name, entry in self._node(way).data.items():
            yield name, _launch(entry, (*way, name))

    def iter_launches(self) -> Iterator[tuple[tuple[str, ...], ProfilingMetrics]]:
        """Yield all launches with the way to each; one in two domains comes once."""
        seen: set[int] = set()
        for way, entry in self._walk(()):
            if id(entry) not in seen:
                seen.add(id(entry))
                yield way, entry

    def assign_metrics(
        self, accessors: Iterable[str], data: Mapping[str, MetricValue]
    ) -> None:
        """
        Put a launch into the tree, with the nodes on the way to it.

        Args:
            accessors: The names on the way, the launch's last.

            data: Its values by key.

        Raises:
            WrongEntryError: A launch lies on the way, or a node where it ends.
        """
        way = _checked(accessors)
        if not way:
            message = "a launch needs a name in the tree"
            raise WrongEntryError(message, remedy="give at least one accessor")
        node = self
        for depth, name in enumerate(way[:-1], 1):
            entry = node.data.setdefault(name, ProfilingResults())
            if isinstance(entry, ProfilingMetrics):
                raise _wrong(way[:depth], "is a launch and cannot hold another")
            node = entry
        if isinstance(node.data.get(way[-1]), ProfilingResults):
            raise _wrong(way, "is a node, which a launch would replace")
        leaf = data if isinstance(data, ProfilingMetrics) else ProfilingMetrics(data)
        node.data[way[-1]] = leaf

    def aggregate_metrics(
        self, accessors: Iterable[str] = (), keys: Iterable[str] | None = None
    ) -> Aggregate:
        """
        Return sums over the launches directly in a node.

        Only what is additive is added: counters that are summed over their instances
        and related to nothing. Percentages, averages, maxima and launch sizes are not.
        Numbers of which no report says what they are, are the caller's and are added.

        Args:
            accessors: The names on the way to the node.

            keys: What to add; None: all that can be.

        Returns:
            The sums; with `keys=None` its `left_out` says why any other key has none.

        Raises:
            MeasureError: A key that was asked for has no sum, all of them at once.

            EntryCountError: The node has no launch.

            WrongEntryError: It has an entry that is a node.
        """
        way = _checked(accessors)
        leaves = [leaf for _, leaf in self.iter_metrics(way)]
        if not leaves:
            message = f"{_shown(way)} has no launch to add up"
            raise EntryCountError(message, remedy="name a node that holds launches")
        named = None if keys is None else _checked(keys, "keys")
        sums = added(leaves, named)
        if named is not None and sums.left_out:
            told = "; ".join(f"{key}: {why}" for key, why in sums.left_out.items())
            message = f"there is no sum over {_shown(way)} of {told}"
            remedy = "read it launch by launch with iter_metrics"
            raise MeasureError(message, remedy=remedy)
        return sums

    def to_tree(self) -> Tree:
        """
        Return the tree as one of the package rich.

        Raises:
            CollectorUnavailableError: rich is not installed; `str()` needs no package.
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
        """Return a node."""
        way = _checked(accessors)
        entry = self.query(way)
        if isinstance(entry, ProfilingMetrics):
            raise _wrong(way, "is a launch and has no entries")
        return entry

    def _walk(
        self, way: tuple[str, ...]
    ) -> Iterator[tuple[tuple[str, ...], ProfilingMetrics]]:
        """Yield each leaf with the way to it."""
        for name, entry in self.data.items():
            if isinstance(entry, ProfilingMetrics):
                yield (*way, name), entry
            else:
                yield from entry._walk((*way, name))  # noqa: SLF001 - our own class


def _checked(names: Iterable[str], title: str = "accessors") -> tuple[str, ...]:
    """Return names as a tuple; a text would be taken letter by letter."""
    if isinstance(names, str):
        message = f"{title}={names!r} is one text and not a list of names"
        raise WrongEntryError(message, remedy=f"write {title}=({names!r},)")
    return tuple(names)


def _launch(
    entry: ProfilingResults | ProfilingMetrics, way: Sequence[str]
) -> ProfilingMetrics:
    """Return an entry that is a launch."""
    if isinstance(entry, ProfilingResults):
        raise _wrong(way, "is a node and no launch")
    return entry


def _lines(node: ProfilingResults | ProfilingMetrics, before: str) -> Iterator[str]:
    """Yield the lines of the entries of a node or a launch."""
    last = len(node.data) - 1
    for place, (name, entry) in enumerate(node.data.items()):
        branch, below = ("└── ", "    ") if place == last else ("├── ", "│   ")
        if isinstance(entry, (ProfilingResults, ProfilingMetrics)):
            yield f"{before}{branch}{name}"
            yield from _lines(entry, before + below)
        else:
            yield f"{before}{branch}{name}: {_value(entry)}"


def _grow(tree: Tree, node: ProfilingResults | ProfilingMetrics) -> None:
    """Add the entries of a node or a launch to a tree of rich."""
    from rich.text import Text  # a kernel's name is no markup

    for name, entry in node.data.items():
        if isinstance(entry, (ProfilingResults, ProfilingMetrics)):
            _grow(tree.add(Text(name)), entry)
        else:
            line = _cut(f"{name}: {_value(entry)}")
            tree.add(Text(line, no_wrap=True))


def _value(value: object) -> str:
    """Return a value as text."""
    from pytest_gpuperf.collect.ncu.metrics import MetricCorrelationData

    if isinstance(value, MetricCorrelationData):
        total = _value(value.value)
        return f"{total} ({len(value.correlated)} correlated)"
    return "not measured" if value is None else str(value)


def _cut(line: str) -> str:
    """Return a line without control characters that fits the width."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"


def _wrong(way: Sequence[str], what: str) -> WrongEntryError:
    return WrongEntryError(
        f"{_shown(way)} {what}", remedy="print the results to see their tree"
    )


def _shown(way: Sequence[str]) -> str:
    """Return the way to an entry as a message names it."""
    return "/".join(way) if way else "the tree's root"
