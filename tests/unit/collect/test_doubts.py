"""Rules of doubts: a call that does less than the first one is told, an honest one is not.

Each mistake has an honest twin. Work is time of a clock that only these functions move.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import concurrent.futures
import csv
import functools
import gc
import io
import itertools
import multiprocessing
import re
import sqlite3
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from fakes.clock import FakeClock
from pytest_gpuperf.collect.base import TimedCall, Timing
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.runtime import NoDevice
from pytest_gpuperf.collect.timing import sampling
from pytest_gpuperf.collect.timing.differences import (
    are_one_set,
    differ,
    tolerance_for,
)
from pytest_gpuperf.collect.timing.host import HostCollector
from pytest_gpuperf.collect.timing.sampling import CallSampler
from pytest_gpuperf.collect.timing.unread import unread
from pytest_gpuperf.model.record import WORK_DOUBTS

SHUFFLED = [5, 3, 4, 1, 2]
# One for all tests: Python warns of a connection that nobody closes.
DATABASE = sqlite3.connect(":memory:")
# A namespace of the standard library, so that no doubt looks for the clock in it.
AT = SimpleNamespace(clock=FakeClock())


def work(microseconds: int) -> None:
    AT.clock.advance(1000 * microseconds)


def sort(items: Any) -> None:
    """Sort a list in place, in no time if it is sorted already."""
    work(50 if list(items) == sorted(items) else 1000)
    items[:] = (
        type(items)(items.typecode, sorted(items))
        if isinstance(items, array)
        else sorted(items)
    )


def take_all(items: Any) -> int:
    """Empty a container, in a time that grows with its items."""
    count = len(items)
    work(50 + 400 * count)
    items.clear()
    return count


@dataclass
class Box:
    """An object of the project."""

    items: list[int] = field(default_factory=SHUFFLED.copy)
    kept: Any = None
    count: int = 0

    @functools.cached_property
    def ordered(self) -> list[int]:
        work(1000)
        return sorted(self.items)

    def read(self) -> list[int]:
        work(50)
        return self.ordered

    def sort(self) -> None:
        sort(self.items)

    def remember(self) -> Any:
        work(50)
        if self.kept is None:
            work(1000)
            self.kept = sorted(self.items)
        return self.kept

    def __call__(self) -> None:
        self.sort()

    def counts(self) -> int:
        work(500)
        self.count += 1
        return self.count


class Table:
    """A class that all its objects keep results in."""

    results: ClassVar[dict[str, int]] = {}

    def get(self) -> int:
        work(50)
        if "x" not in self.results:
            work(1000)
            self.results["x"] = 7
        return self.results["x"]


def of_global(kind: Callable[[Sequence[int]], Any]) -> Callable[[], Callable[[], None]]:
    """Return a maker of a function that sorts what its closure holds."""

    def make() -> Callable[[], None]:
        held = kind(SHUFFLED)

        def call() -> None:
            sort(held)

        return call

    return make


def emptying(kind: Callable[[Sequence[int]], Any]) -> Callable[[], Callable[[], int]]:
    def make() -> Callable[[], int]:
        held = kind(SHUFFLED)
        return lambda: take_all(held)

    return make


def by_default() -> Callable[[], None]:
    def call(held: list[int] = SHUFFLED.copy()) -> None:  # noqa: B008 - the mistake
        sort(held)

    return call


def by_keyword_default() -> Callable[[], None]:
    def call(*, held: list[int] = SHUFFLED.copy()) -> None:  # noqa: B008 - the mistake
        sort(held)

    return call


def by_helper() -> Callable[[], None]:
    held = SHUFFLED.copy()

    def helper() -> None:
        sort(held)

    def call() -> None:
        work(10)
        helper()

    return call


def by_inner_code() -> Callable[[], list[int]]:
    held = SHUFFLED.copy()
    return lambda: [take_all(each) for each in (held, held.copy())]


def cached_in(store: Any) -> Callable[[], Callable[[], int]]:
    def make() -> Callable[[], int]:
        held = store()

        def call() -> int:
            work(50)
            if "x" not in held:
                work(1000)
                held["x"] = 7
            return int(held["x"])

        return call

    return make


def cached_in_function() -> Callable[[], int]:
    def call() -> int:
        work(50)
        if not hasattr(call, "kept"):
            work(1000)
            call.kept = 7  # type: ignore[attr-defined] # a common place for a result
        return 7

    return call


def cached_helper() -> Callable[[], int]:
    @functools.lru_cache
    def helper(number: int) -> int:
        work(1000)
        return number

    def call() -> int:
        work(50)
        return helper(7)

    return call


def cached_itself() -> Callable[[], int]:
    @functools.cache
    def call() -> int:
        work(1000)
        return 7

    def called() -> int:
        work(50)
        return call()

    return called


def cached_by_class() -> Callable[[], int]:
    Table.results.clear()
    return Table().get


REBOUND = None


def rebound() -> Callable[[], object]:
    global REBOUND  # noqa: PLW0603 - the mistake
    REBOUND = None

    def call() -> object:
        global REBOUND  # noqa: PLW0603 - the mistake
        work(50)
        if REBOUND is None:
            work(1000)
            REBOUND = sorted(SHUFFLED)
        return REBOUND

    return call


def rebound_cell() -> Callable[[], object]:
    kept = None

    def call() -> object:
        nonlocal kept
        work(50)
        if kept is None:
            work(1000)
            kept = tuple(SHUFFLED)
        return kept

    return call


class Rebinding:
    """A class that keeps a result in an attribute of its own."""

    kept: ClassVar[object] = None

    @classmethod
    def get(cls) -> object:
        work(50)
        if cls.kept is None:
            work(1000)
            cls.kept = sorted(SHUFFLED)
        return cls.kept


def rebound_of_class() -> Callable[[], object]:
    Rebinding.kept = None
    return Rebinding.get


THIS: Any = sys.modules[__name__]


def rebound_of_module() -> Callable[[], object]:
    THIS.shelf = None

    def call() -> object:
        work(50)
        if THIS.shelf is None:
            work(1000)
            THIS.shelf = sorted(SHUFFLED)
        return THIS.shelf

    return call


LESS_WORK: dict[str, Callable[[], Callable[..., object]]] = {
    "a list of a closure": of_global(list),
    "an array": of_global(functools.partial(array, "l")),
    "an array of numpy": of_global(np.array),
    "a bytearray": of_global(bytearray),
    "a deque": emptying(collections.deque),
    "a set": emptying(set),
    "a default": by_default,
    "a keyword's default": by_keyword_default,
    "a helper's list": by_helper,
    "a comprehension's list": by_inner_code,
    "a list of an object": lambda: Box().sort,
    "a callable object": Box,
    "a partial's object": lambda: functools.partial(Box.sort, Box()),
    "a cached property": lambda: Box().read,
    "a remembered result": lambda: Box().remember,
    "a dict": cached_in(dict),
    "an ordered dict": cached_in(collections.OrderedDict),
    "a defaultdict": cached_in(lambda: collections.defaultdict(int)),
    "an attribute of a function": cached_in_function,
    "a cache of a helper": cached_helper,
    "a cache of a function": cached_itself,
    "a dict of a class": cached_by_class,
    "a rebound global": rebound,
    "a rebound variable of a closure": rebound_cell,
    "a rebound attribute of a class": rebound_of_class,
    "a rebound attribute of a module": rebound_of_module,
}


class Inner:
    """An object that another one has."""

    kept: Any = None


@dataclass
class Outer:
    """An object whose object keeps a result."""

    inner: Inner = field(default_factory=Inner)


class Growing(list[int]):
    """A list of a class of its own."""


def kept_by(take: Callable[[], Any], keep: Callable[[Any], Any]) -> Callable[[], Any]:
    def call() -> Any:
        work(50)
        if take() is None:
            work(1000)
            keep(sorted(SHUFFLED))
        return take()

    return call


def kept_far_away() -> Callable[[], Any]:
    outer = Outer()
    return kept_by(
        lambda: outer.inner.kept, lambda made: setattr(outer.inner, "kept", made)
    )


def kept_in_a_nested_list() -> Callable[[], Any]:
    rows = [[None]]

    def keep(made: Any) -> None:
        rows[0][0] = made

    return kept_by(lambda: rows[0][0], keep)


def kept_by_a_module_of_python() -> Callable[[], Any]:
    vars(io).pop("kept_by_a_test", None)
    return kept_by(
        lambda: vars(io).get("kept_by_a_test"),
        lambda made: vars(io).update(kept_by_a_test=made),
    )


def kept_in_a_generator() -> Callable[[], Any]:
    def rows() -> Iterator[list[int]]:
        work(1000)
        made = sorted(SHUFFLED)
        while True:
            yield made

    made = rows()

    def call() -> list[int]:
        work(50)
        return next(made)

    return call


def kept_in_a_list_of_its_own_class() -> Callable[[], Any]:
    kept = Growing()

    def call() -> Any:
        work(50)
        if not kept:
            work(1000)
            kept.extend(sorted(SHUFFLED))
        return kept

    return call


def kept_array() -> Callable[[], Any]:
    outer = Outer()
    return kept_by(
        lambda: outer.inner.kept,
        lambda made: setattr(outer.inner, "kept", np.array(made)),
    )


LESS_WORK |= {
    "an object of an object": kept_far_away,
    "a nested list": kept_in_a_nested_list,
    "a module of Python": kept_by_a_module_of_python,
    "a generator that goes on": kept_in_a_generator,
    "a list of its own class": kept_in_a_list_of_its_own_class,
    "an array of an object": kept_array,
}


# An older sign tells of these.
EMPTIED = {"a deque", "a set", "a comprehension's list"}


def spending(call: Callable[[], object]) -> Callable[[], object]:
    """Return a function that takes half a millisecond and returns the result of a call."""

    def spend() -> object:
        work(500)
        return call()

    return spend


@dataclass
class Holding:
    """A result with an iterator in an attribute."""

    rows: Iterator[int]


class Lazy(list[int]):
    """A list that is made when it is read."""

    def __init__(self, items: list[int]) -> None:
        super().__init__()
        self.later = items

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.later))


class LazyTable:
    """A table by the protocol of dask."""

    def __dask_graph__(self) -> dict[str, int]:
        return {}


class LazyFrame:
    """A table as polars has it."""

    __module__ = "polars.lazyframe.frame"

    def collect(self) -> None: ...
    def explain(self) -> None: ...


def read(rows: Any) -> object:
    """Return what was read, and what it was read from."""
    return [*rows], rows


def read_in_part(rows: Any) -> object:
    return next(rows), rows


def csv_rows() -> Any:
    return csv.reader(io.StringIO("1,2\n3,4\n"))


ITERATORS: dict[str, Callable[[], Any]] = {
    "a map": lambda: map(abs, SHUFFLED),
    "a zip": lambda: zip(SHUFFLED, SHUFFLED, strict=True),
    "a filter": lambda: filter(None, SHUFFLED),
    "an enumeration": lambda: enumerate(SHUFFLED),
    "a map of a map": lambda: map(abs, map(abs, SHUFFLED)),
    "a map of a generator": lambda: map(abs, (n for n in SHUFFLED)),
    "a generator": lambda: (n for n in SHUFFLED),
    "a chain": lambda: itertools.chain([1], map(abs, SHUFFLED)),
    "a slice": lambda: itertools.islice(map(abs, SHUFFLED), 9),
    "groups": lambda: itertools.groupby(SHUFFLED),
    "matches": lambda: re.finditer("a", "banana"),
    "rows of a text": csv_rows,
    "rows of a table": lambda: DATABASE.execute("select 1 union select 2"),
}


def never_done() -> object:
    return concurrent.futures.Future()


def cursor() -> object:
    return DATABASE.execute("select 1")


LAZY: dict[str, Callable[[], object]] = {
    "a map": lambda: map(abs, SHUFFLED),
    "a zip": lambda: zip(SHUFFLED, SHUFFLED, strict=True),
    "a filter": lambda: filter(None, SHUFFLED),
    "a generator in a tuple": lambda: ((n for n in SHUFFLED), 5),
    "an iterator in a dict": lambda: {"rows": map(abs, SHUFFLED)},
    "an iterator in a list in a dict": lambda: {"rows": [1, map(abs, SHUFFLED)]},
    "an iterator in an object": lambda: Holding(map(abs, SHUFFLED)),
    "a future": never_done,
    "futures": lambda: [never_done() for _ in range(3)],
    "a cursor": cursor,
    "a list that sorts itself": lambda: Lazy(SHUFFLED),
    "a lazy table": LazyTable,
    "a lazy frame": LazyFrame,
    **{
        f"{name}, read in part": functools.partial(lambda m: read_in_part(m()), make)
        for name, make in ITERATORS.items()
    },
}


def fail(kind: type[Exception]) -> None:
    raise kind


def swallowing(
    kind: type[Exception], result: object = None, *, before: int = 50
) -> Callable[[], object]:
    def call() -> object:
        work(before)
        try:
            fail(kind)
        except Exception:  # noqa: BLE001 - the mistake
            return result
        return 1

    return call


SWALLOWED = {kind.__name__: kind for kind in (AttributeError, NameError, TypeError)}


def filling() -> Callable[[], None]:
    out = [0] * 5

    def call() -> None:
        work(500)
        out[:] = SHUFFLED

    return call


def pool() -> Callable[[], int]:
    free = [bytearray(10) for _ in range(10)]

    def call() -> int:
        work(500)
        taken = [free.pop() for _ in range(5)]
        free.extend(taken)
        return len(taken)

    return call


def growing() -> Callable[[], None]:
    log: list[int] = []

    def call() -> None:
        work(500)
        log.append(len(log))

    return call


def warm() -> Callable[[], int]:
    """A cache that was filled before the first call."""
    call = cached_in(dict)()
    call()
    return call


def slow_start() -> Callable[[], int]:
    """A first call that is slow because the machine is."""
    times = AT.clock.taking(5_000_000, then_ns=500_000)
    return spending(times)  # type: ignore[return-value] # it returns the number of the call


def caught() -> Callable[[], int]:
    def call() -> int:
        work(500)
        missing = 0
        for number in SHUFFLED:
            try:
                _ = dict[int, int]()[number]
            except KeyError:
                missing += 1
        return missing

    return call


def optional() -> Callable[[], None]:
    def call() -> None:
        work(500)
        try:
            fail(ImportError)
        except ImportError:
            return

    return call


def done() -> object:
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    future.set_result(1)
    return future


def ended() -> object:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process


class Pair(NamedTuple):
    """A result with names."""

    x: int
    y: int


class Plain(list[int]):
    """A list with a method of its own."""

    def first(self) -> int:
        return self[0]


class Eager:
    """A table of a package that can be lazy, and is not."""

    def __dask_graph__(self) -> None:
        return None

    def collect(self) -> None: ...
    def explain(self) -> None: ...


class OwnIterator(list[int]):
    """A list that has its items, and gives them in its own way."""

    def __iter__(self) -> Iterator[int]:
        return reversed(self)


def inserted() -> object:
    return DATABASE.execute("create table if not exists t(a)")


def asks_for_a_list() -> Callable[[], None]:
    """Try one kind of argument, then another."""

    def call(items: object = 5) -> None:
        try:
            given = iter(items)  # type: ignore[call-overload] # it may be a number
        except TypeError:
            given = iter((items,))
        for _ in given:
            work(500)

    return call


def connects() -> Callable[[], None]:
    """Open a connection once, which later calls use."""
    held: dict[str, object] = {}

    def call() -> None:
        if not held:
            work(20_000)
            held["connection"] = DATABASE
        work(500)

    return call


def counts_and_keeps() -> Callable[[], int]:
    """Note each call in its object, and what was slow in the first one."""
    box = Box()

    def call() -> int:
        work(500 if box.count else 20_000)
        return box.counts()

    return call


HONEST: dict[str, Callable[[], Callable[..., object]]] = {
    "a sorted copy": lambda: spending(lambda: sorted(SHUFFLED)),
    "an output buffer": filling,
    "a pool": pool,
    "a growing log": growing,
    "a counter": lambda: Box().counts,
    "a warm cache": warm,
    "a slow start": slow_start,
    "a cache of another package": lambda: spending(lambda: hash("abc")),
    "caught errors": caught,
    "an optional import": optional,
    "a list of an iterator": lambda: spending(lambda: list(map(abs, SHUFFLED))),
    "a generator": lambda: spending(lambda: sum(n for n in SHUFFLED)),
    "an open file": lambda: spending(lambda: io.BytesIO(b"x")),
    "an endless counter": lambda: spending(itertools.count),
    "a finished future": lambda: spending(done),
    "finished futures": lambda: spending(lambda: [done(), done()]),
    "an ended process": lambda: spending(ended),
    "a namedtuple": lambda: spending(lambda: Pair(1, 2)),
    "a counter of items": lambda: spending(lambda: collections.Counter("abc")),
    "a subclass of a list": lambda: spending(lambda: Plain(SHUFFLED)),
    "an array of numpy": lambda: spending(lambda: np.arange(5)),
    "a function": lambda: spending(lambda: len),
    "a dict": lambda: spending(lambda: {"a": [1]}),
    "None": lambda: spending(lambda: None),
    "a fetched row": lambda: spending(lambda: cursor().fetchone()),  # type: ignore[attr-defined] # a cursor
    "a draw": lambda: spending(np.random.default_rng(1).random),
    "a set": lambda: spending(lambda: {1, 2}),
    "an exception": lambda: spending(lambda: ValueError("x")),
    "a class": lambda: spending(lambda: Box),
    "an object": lambda: spending(Box),
    "an eager table": lambda: spending(Eager),
    "a list with its own iterator": lambda: spending(lambda: OwnIterator(SHUFFLED)),
    "an iterator of a list": lambda: spending(lambda: iter(SHUFFLED)),
    "a changed table": lambda: spending(inserted),
    **{
        f"{name}, read": functools.partial(lambda m: spending(lambda: read(m())), make)
        for name, make in ITERATORS.items()
    },
    "another kind of argument": asks_for_a_list,
    "a connection": connects,
    "a slow first call that is counted": counts_and_keeps,
}


def prepared(
    keep: Callable[[dict[str, Any]], object], result: Callable[[dict[str, Any]], Any]
) -> Callable[[], object]:
    """Return a function whose first call reads a file of 100 kB and keeps something."""
    settings: dict[str, Any] = {}

    def call() -> object:
        work(50)
        if not settings:
            work(2000)
            AT.clock.read += 100_000
            keep(settings)
        return result(settings)

    return call


def sets_two(settings: dict[str, Any]) -> None:
    settings.update(factor=2.5, rows=sorted(SHUFFLED))


def box_of_settings(result: Callable[[Box], Any]) -> Callable[[], object]:
    """Return a function whose first call reads settings into an attribute that was None."""
    box = Box()

    def call() -> object:
        work(50)
        if box.kept is None:
            work(2000)
            AT.clock.read = (AT.clock.read or 0) + 100_000
            box.kept = sorted(SHUFFLED)
        return result(box)

    return call


def cached_words(result: Callable[[list[str]], Any]) -> Callable[[], object]:
    @functools.lru_cache
    def words() -> list[str]:
        work(2000)
        AT.clock.read = (AT.clock.read or 0) + 100_000
        return [f"word {number}" for number in range(5)]

    def call() -> object:
        work(50)
        return result(words())

    return call


PREPARED: dict[str, tuple[Callable[[], object], list[str]]] = {
    "an attribute": (box_of_settings(lambda b: [sum(b.kept), 2.5]), []),
    "an attribute, given": (box_of_settings(lambda b: b.kept), ["less-work"]),
    "cached words": (cached_words(lambda w: [len(w) * 3.5]), []),
    "cached words, given": (cached_words(lambda w: w), ["less-work"]),
    "settings": (prepared(sets_two, lambda s: s["factor"] * 3), []),
    "settings, given": (prepared(sets_two, lambda s: s["rows"]), ["less-work"]),
    "rows, a copy": (
        prepared(lambda s: s.update(rows=[1e9, 2e9]), lambda s: [*s.values()]),
        ["less-work"],
    ),
}


@pytest.mark.parametrize("name", PREPARED)
def test_settings_of_a_file_are_no_work_of_the_call(
    host: HostCollector, name: str
) -> None:
    """The first call takes its time to read them. What it returns is its work."""
    call, codes = PREPARED[name]
    timing = host.measure(TimedCall(fn=call), stop=Enough())

    assert doubts(timing) == codes


def test_some_bytes_explain_no_long_call(host: HostCollector) -> None:
    """It did other work than to read them."""
    kept: dict[str, float] = {}

    def call() -> float:
        work(50)
        if not kept:
            work(900_000)
            AT.clock.read += 100
            kept["sum"] = 2.5
        return kept["sum"] * 3

    timing = host.measure(TimedCall(fn=call), stop=Enough())

    assert doubts(timing) == ["less-work"]


@pytest.mark.parametrize(("imports", "codes"), [(True, []), (False, ["less-work"])])
def test_what_is_kept_beside_an_import_is_no_work(
    host: HostCollector,
    monkeypatch: pytest.MonkeyPatch,
    codes: list[str],
    *,
    imports: bool,
) -> None:
    """The import takes the time, unless the result is what was kept."""
    kept: dict[str, float] = {}

    def call() -> float:
        work(50)
        if not kept:
            work(20_000)
            if imports:
                monkeypatch.setitem(sys.modules, "gpuperf_fake", sys)
            kept["factor"] = 2.5
        return kept["factor"] * 3

    timing = host.measure(TimedCall(fn=call), stop=Enough())

    assert doubts(timing) == codes


def test_a_list_that_was_sorted_beside_an_import_is_doubted(
    host: HostCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later call finds it sorted."""
    held = SHUFFLED.copy()

    def call() -> None:
        monkeypatch.setitem(sys.modules, "gpuperf_fake", sys)
        sort(held)

    timing = host.measure(TimedCall(fn=call), stop=Enough())

    assert doubts(timing) == ["less-work"]


def test_the_count_of_bytes_read_leaves_its_own_out(tmp_path: Path) -> None:
    """Or each call would have read something."""
    if sys.platform != "linux":
        pytest.skip("only Linux counts them")
    clock = SystemClock()
    (tmp_path / "a").write_bytes(bytes(5000))
    counts = [clock.bytes_read(), clock.bytes_read()]
    (tmp_path / "a").read_bytes()
    counts.append(clock.bytes_read())
    if None in counts:
        pytest.skip("this system does not count them")

    assert counts[1] == counts[0]
    assert 5000 <= (counts[2] or 0) - (counts[1] or 0) < 10_000
    with concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("fork")
    ) as forked:
        # The file that is open counts for the process that opened it.
        assert forked.submit(clock.bytes_read).result() is None


def fills(make: Callable[[], Any]) -> Callable[[], object]:
    """Return a function with a slow first call that fills and returns a buffer."""
    out, times = make(), AT.clock.taking(5_000_000, then_ns=50_000)

    def call() -> object:
        times()
        out[:] = SHUFFLED
        return out

    return call


def keeps_the_last() -> Callable[[], object]:
    box, times = Outer(), AT.clock.taking(5_000_000, then_ns=50_000)

    def call() -> object:
        times()
        box.inner.kept = sorted(SHUFFLED)
        return box.inner.kept

    return call


@pytest.mark.parametrize(
    "make",
    [
        lambda: fills(lambda: [0] * 5),
        lambda: fills(lambda: np.zeros(5)),
        keeps_the_last,
    ],
    ids=["a list", "an array", "the last result"],
)
def test_a_buffer_that_was_there_is_no_kept_result(
    host: HostCollector, make: Callable[[], Callable[[], object]]
) -> None:
    """The first call is slow for another reason, as one that compiles."""
    assert doubts(host.measure(TimedCall(fn=make()), stop=Enough())) == []


class SlowlyHashed:
    """A key, of which the first hash after it was made takes longer."""

    def __init__(self) -> None:
        self.times = AT.clock.taking(5_000_000, then_ns=50_000)

    def __hash__(self) -> int:
        self.times()
        return 1


@pytest.mark.parametrize(
    "found",
    [
        lambda key: {key: SHUFFLED}.get,
        lambda key: lambda _, held=[SHUFFLED]: (hash(key), held[0])[1],
    ],
    ids=["a method that is built in", "a list"],
)
def test_what_a_table_held_before_was_not_made(
    host: HostCollector, found: Callable[[object], Callable[..., object]]
) -> None:
    """A busy machine can make the first call slow."""
    key = SlowlyHashed()
    fn = found(key)
    key.times = AT.clock.taking(5_000_000, then_ns=50_000)
    timing = host.measure(TimedCall(fn=fn, args=(key,)), stop=Enough())

    assert (timing.first_call_s or 0) > timing.samples[0]
    assert doubts(timing) == []


def test_what_an_argument_holds_was_not_made(host: HostCollector) -> None:
    """At any depth: a call that changes its arguments is void."""
    times = AT.clock.taking(5_000_000, then_ns=50_000)
    timing = host.measure(
        TimedCall(fn=lambda t: (times(), t["a"]["b"])[1], args=({"a": {"b": [1]}},)),
        stop=Enough(),
    )

    assert (timing.first_call_s or 0) > timing.samples[0]
    assert doubts(timing) == []


class Enough:
    """A stop rule that has enough after ten samples."""

    def enough(self, values: Sequence[float]) -> bool:
        return True


class Forty:
    """A stop rule that wants 40 samples."""

    def enough(self, values: Sequence[float]) -> bool:
        return len(values) >= 40


@pytest.fixture
def host() -> HostCollector:
    """A collector on a new clock that stands still."""
    AT.clock = FakeClock()
    return HostCollector(AT.clock, NoDevice())


def doubts(timing: Timing) -> list[str]:
    return [note.code for note in timing.notes if note.code in WORK_DOUBTS]


@pytest.mark.parametrize("name", LESS_WORK)
def test_later_calls_with_less_to_do_are_doubted(
    host: HostCollector, name: str
) -> None:
    """The note has the time of the first call, which did the work."""
    timing = host.measure(TimedCall(fn=LESS_WORK[name]()), stop=Enough())
    (note,) = [note for note in timing.notes if note.code in WORK_DOUBTS]

    assert note.code == ("used-up" if name in EMPTIED else "less-work")
    assert note.doubt
    assert note.full_s == pytest.approx(timing.first_call_s)
    assert timing.void is None


@pytest.mark.parametrize("name", LAZY)
def test_a_promise_is_doubted(host: HostCollector, name: str) -> None:
    """Its work may be done after the clock, or never."""
    timing = host.measure(TimedCall(fn=spending(LAZY[name])), stop=Enough())

    assert doubts(timing) == ["lazy-result"]


def test_a_running_child_is_a_promise(host: HostCollector) -> None:
    """Its work goes on after the call."""
    argv = [sys.executable, "-c", "input()"]
    started: list[subprocess.Popen[bytes]] = []

    def start() -> object:
        work(500)
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE))
        return started[-1]

    timing = host.measure(TimedCall(fn=start), stop=Enough())
    for process in started:
        process.communicate(b"\n")

    assert doubts(timing) == ["lazy-result"]


@pytest.mark.parametrize("result", [None, (), ""])
@pytest.mark.parametrize("name", SWALLOWED)
def test_a_swallowed_mistake_is_doubted(
    host: HostCollector, name: str, result: object
) -> None:
    """A function that returns nothing after an error of its own may do nothing."""
    if sys.gettrace() is not None or sys.version_info < (3, 11):
        pytest.skip(
            "no second tracer, and no table of caught exceptions in Python 3.10"
        )
    timing = host.measure(
        TimedCall(fn=swallowing(SWALLOWED[name], result)), stop=Enough()
    )
    (note,) = [note for note in timing.notes if note.code in WORK_DOUBTS]

    assert note.code == "swallowed-error"
    assert name in note.text


def test_a_mistake_after_the_work_is_not_doubted(host: HostCollector) -> None:
    """As that of a hook that is optional, at the end of a loop or of a long call."""

    def call() -> None:
        for _ in range(2):
            work(20)
        try:
            fail(AttributeError)
        except AttributeError:
            return

    long = swallowing(AttributeError, before=500)

    assert doubts(host.measure(TimedCall(fn=call), stop=Enough())) == []
    assert doubts(host.measure(TimedCall(fn=long), stop=Enough())) == []


@pytest.mark.parametrize("name", HONEST)
def test_honest_work_is_not_doubted(host: HostCollector, name: str) -> None:
    """Also where it changes what it holds."""
    timing = host.measure(TimedCall(fn=HONEST[name]()), stop=Enough())

    assert doubts(timing) == []
    assert timing.void is None


def test_a_setup_that_returns_the_same_object_is_doubted(host: HostCollector) -> None:
    """Only the first call gets it as it was."""
    held = SHUFFLED.copy()
    request = TimedCall(fn=sort, setup=lambda: (held,))
    timing = host.measure(request, stop=Enough())

    assert doubts(timing) == ["less-work"]


def test_a_setup_that_returns_a_new_object_is_not_doubted(host: HostCollector) -> None:
    """Each call gets it as it was."""
    timing = host.measure(
        TimedCall(fn=sort, setup=lambda: (SHUFFLED.copy(),)), stop=Enough()
    )

    assert doubts(timing) == []


def test_looking_makes_no_call(host: HostCollector) -> None:
    """A call may insert a row, or take a lock that the first one still has."""
    calls = itertools.count()
    kept: set[int] = set()

    def call() -> int:
        number = next(calls)
        if not kept:
            work(1000)
            kept.add(1)
        work(50)
        return number

    timing = host.measure(TimedCall(fn=call), stop=Enough())

    assert doubts(timing) == ["less-work"]
    assert next(calls) == timing.warmup_count + len(timing.samples)
    assert kept == {1}


class Strange:
    """An object that refuses to be looked at."""

    def __eq__(self, other: object) -> bool:
        message = "not comparable"
        raise ValueError(message)

    __hash__ = object.__hash__

    @property
    def __dict__(self) -> dict[str, object]:  # type: ignore[override] # a proxy
        message = "not bound"
        raise RuntimeError(message)


def test_no_object_of_a_test_fails_it(host: HostCollector) -> None:
    """Whatever it does when it is looked at."""
    held = {Strange(), Strange()}
    strange = Strange()
    frozen = np.arange(5.0)

    def call() -> object:
        if frozen.flags.writeable:
            work(5000)
            frozen[:] = frozen[::-1].copy()
            frozen.flags.writeable = False
        work(500)
        return strange if held else None

    timing = host.measure(TimedCall(fn=call), stop=Enough())

    assert timing.void is None
    assert not frozen.flags.writeable


def test_an_array_that_is_looked_at_can_be_resized(host: HostCollector) -> None:
    """No reference to it is kept."""
    box = Box(kept=np.arange(5))

    def call() -> None:
        work(500)
        box.kept.resize(box.kept.size + 1)

    host.measure(TimedCall(fn=call), stop=Enough())

    assert box.kept.size > 5


def test_an_object_stays_as_fast_as_it_was(host: HostCollector) -> None:
    """Python 3.11 and 3.12 read attributes faster until something reads `__dict__`."""
    box = Box()
    before = [type(each) for each in gc.get_referents(box)]

    host.measure(TimedCall(fn=box.counts), stop=Enough())
    host.measure(TimedCall(fn=lambda: box.counts()), stop=Enough())  # noqa: PLW0108 - not a method
    host.measure(TimedCall(fn=Box.counts, args=(box,)), stop=Enough())

    assert [type(each) for each in gc.get_referents(box)] == before


def test_the_collectors_thresholds_of_the_code_stay(host: HostCollector) -> None:
    """An application sets them when it starts."""
    then = gc.get_threshold()

    def call() -> None:
        work(500)
        gc.set_threshold(50_000, 20, 20)

    try:
        host.measure(TimedCall(fn=call), stop=Enough())
        assert gc.get_threshold() == (50_000, 20, 20)
    finally:
        gc.set_threshold(*then)


def test_a_fixed_number_of_calls_gets_no_other(host: HostCollector) -> None:
    """All ranks of a job call equally often."""
    calls: list[None] = []

    def call() -> None:
        work(50 if calls else 1000)
        calls.append(None)

    host.measure(TimedCall(fn=call, iterations=3), stop=Enough())

    assert len(calls) == 4 + 3


def test_a_first_call_that_compiles_is_not_repeated(host: HostCollector) -> None:
    """It took more than a second, and would again."""
    compiled: dict[str, int] = {}

    def call() -> None:
        if not compiled:
            work(1_500_000)
            compiled["x"] = 1
        work(500)

    timing = host.measure(TimedCall(fn=call), stop=Enough())

    assert doubts(timing) == []
    assert AT.clock.now_ns() < 1.6e9


@pytest.mark.parametrize(("period", "codes"), [(4, ["uneven-calls"]), (40, [])])
def test_slow_calls_with_a_period_are_doubted(
    host: HostCollector, period: int, codes: list[str]
) -> None:
    """The median leaves them out, and their work is that of the calls between."""
    numbers = itertools.count(1)

    def call() -> int:
        number = next(numbers)
        work(50 if number % period else 50 * 2 * period)
        return 7

    timing = host.measure(TimedCall(fn=call), stop=Forty())

    assert doubts(timing) == codes


def test_calls_that_follow_a_slow_one_hide_no_period(host: HostCollector) -> None:
    """Their data has left the caches, so that a short call takes several times as long."""
    numbers = itertools.count(1)

    def call() -> int:
        AT.clock.advance([400, 1_500_000, 2_000, 500][next(numbers) % 4])
        return 7

    request = TimedCall(fn=call, setup=lambda: ())
    timing = host.measure(request, stop=Forty())

    assert "uneven-calls" in doubts(timing)


def test_a_period_of_the_inputs_is_not_that_of_the_calls(host: HostCollector) -> None:
    """Each third input may be the large one. The calls are made again with one input."""
    pool = [(50,), (50,), (900,)]

    def call(microseconds: int) -> None:
        work(microseconds)

    assert doubts(host.measure(TimedCall(fn=call, inputs=pool), stop=Forty())) == []


@pytest.mark.parametrize("waits", [False, True])
def test_the_period_of_a_scheduler_is_not_that_of_the_calls(
    host: HostCollector, waits: bool
) -> None:
    """Each third call is at the end of this thread's turn, also where calls wait."""
    due_ns = 0

    def call() -> int:
        nonlocal due_ns
        for _ in range(9 if waits else 10):
            work(100)
            if AT.clock.now_ns() >= due_ns:
                AT.clock.interrupt(27_000_000)
                due_ns = AT.clock.now_ns() + 3_000_000
        if waits:
            AT.clock.wait(100_000)
        return 7

    assert doubts(host.measure(TimedCall(fn=call), stop=Forty())) == []


def test_a_period_in_time_is_not_that_of_the_calls(host: HostCollector) -> None:
    """A neighbour of the core slows what runs beside it, and no clock tells."""

    def call() -> int:
        AT.clock.advance(50_000)
        if AT.clock.now_ns() % 500_000 < 50_000:
            AT.clock.advance(350_000)
        return 7

    assert doubts(host.measure(TimedCall(fn=call), stop=Forty())) == []


def test_slow_calls_without_a_period_are_not_doubted(host: HostCollector) -> None:
    """A busy machine interrupts some, or all of them for a while."""
    quick, slow = 50_000, 450_000
    pairs = [quick] * 5 + [slow, quick, quick] * 2
    burst = [quick] * 9 + [slow] * 12
    for begin in (pairs, burst):
        times = AT.clock.taking(*begin, then_ns=quick)
        assert doubts(host.measure(TimedCall(fn=times), stop=Forty())) == []


def test_any_result_may_be_checked(host: HostCollector) -> None:
    """The first, the last and some between, which the function cannot know."""
    checked: list[Any] = []
    numbers = itertools.count()

    def call() -> int:
        work(500)
        return next(numbers)

    request = TimedCall(fn=call, check=checked.append)
    places: set[tuple[int, ...]] = set()
    for _ in range(5):
        checked.clear()
        timing = host.measure(request, stop=Forty())
        first, *between, last = checked
        assert last - first == len(timing.samples) - 1
        assert 2 <= len(between) <= len(timing.samples)
        places.add(tuple(each - first for each in between))

    assert len(places) > 1


def shuffled(seed: int) -> list[int]:
    return [number * 37 % 101 + seed for number in range(1, 30)]


def sort_copy(items: list[int]) -> list[int]:
    work(50 if items == sorted(items) else 1000)
    return sorted(items)


def unsorted(items: list[int]) -> list[int]:
    work(100)
    return items


def remembered(items: list[int]) -> list[int]:
    """Return the answer for one input, whatever the input is."""
    work(100)
    return sorted(shuffled(1))


@pytest.mark.parametrize(
    ("fn", "args", "codes"),
    [
        (sort_copy, list(range(1, 30)), ["new-content"]),
        (sort_copy, shuffled(7), []),
        (remembered, shuffled(1), ["wrong-result"]),
        (unsorted, list(range(1, 30)), ["wrong-result"]),
    ],
    ids=["sorted by an earlier test", "honest", "knows it", "sorts nothing"],
)
def test_new_arguments_show_what_old_ones_hide(
    host: HostCollector, fn: Callable[..., object], args: list[int], codes: list[str]
) -> None:
    """`make` gives arguments that the function has not seen, `reference` the right result."""
    request = TimedCall(fn=fn, args=(args,), make=shuffled_once, reference=sorted)
    timing = host.measure(request, stop=Enough())

    assert doubts(timing) == codes


def test_an_interruption_is_no_time_of_new_arguments(host: HostCollector) -> None:
    """Only few calls are made with them, and a busy machine may interrupt all of these."""
    usual = shuffled(1)

    def call(items: list[int]) -> None:
        work(100)
        if items is not usual:
            AT.clock.interrupt(900_000)

    request = TimedCall(fn=call, args=(usual,), make=lambda seed: (shuffled(seed),))

    assert doubts(host.measure(request, stop=Enough())) == []


def shuffled_once(seed: int) -> tuple[list[int]]:
    return (shuffled(seed),)


@pytest.mark.parametrize(
    ("reference", "codes"), [(sorted, []), (list, ["wrong-result"])]
)
def test_a_reference_gets_the_arguments_of_the_test(
    host: HostCollector, reference: Callable[..., object], codes: list[str]
) -> None:
    """Without `make` the last timed output is compared."""
    request = TimedCall(fn=sort_copy, args=([3, 1, 2],), reference=reference)

    assert doubts(host.measure(request, stop=Enough())) == codes


def test_a_fixed_number_of_calls_is_not_checked(host: HostCollector) -> None:
    """The note says so, because the marker asks for a check."""
    request = TimedCall(fn=sort_copy, args=([3, 1],), reference=list, iterations=5)
    timing = host.measure(request, stop=Enough())

    assert "not-checked" in [note.code for note in timing.notes]


@pytest.mark.parametrize(
    ("fn", "given", "code"),
    [
        (lambda: work(20), (), "work-elsewhere"),
        (lambda batch: work(20 * len(batch)), ([1],), "background-work"),
    ],
    ids=["takes results", "gets batches"],
)
def test_work_of_other_threads_between_samples_is_doubted(
    host: HostCollector,
    fn: Callable[..., object],
    given: tuple[object, ...],
    code: str,
) -> None:
    """A queue that a thread fills while no sample runs is read in no time."""

    def setup() -> tuple[object, ...]:
        AT.clock.advance(10_000_000)
        AT.clock.others_ns += 9_000_000
        return given

    timing = host.measure(TimedCall(fn=fn, setup=setup), stop=Enough())

    assert [note.code for note in timing.notes if note.doubt] == [code]


def test_the_doubt_of_a_shared_cache_is_told_of_the_side_that_reads_it(
    host: HostCollector,
) -> None:
    """The other function of a comparison does its work."""
    kept: dict[str, int] = {}

    def slow() -> int:
        work(1000)
        kept["x"] = 7
        return 7

    def fast() -> int:
        work(50)
        if "x" not in kept:
            work(1000)
        return 7

    a, b = host.interleave(TimedCall(fn=fast), TimedCall(fn=slow), stop=Enough())

    assert doubts(a) == ["less-work"]
    assert doubts(b) == []


@pytest.mark.parametrize(
    ("rewinds", "codes"), [(True, ["rewinds-input"]), (False, ["used-up"])]
)
def test_a_file_that_each_call_reads_anew_is_not_used_up(
    host: HostCollector, codes: list[str], *, rewinds: bool
) -> None:
    """A call on the file as it was takes as long as the others."""

    def read(file: io.BytesIO) -> int:
        if rewinds:
            file.seek(0)
        content = file.read()
        work(50 + 10 * len(content))
        return len(content)

    request = TimedCall(fn=read, args=(io.BytesIO(b"x" * 100),))
    timing = host.measure(request, stop=Enough())
    known = {"rewinds-input", "used-up"}

    assert [note.code for note in timing.notes if note.code in known] == codes
    assert (timing.void is None) is rewinds


class Finalized:
    """A result that works when nothing refers to it any more."""

    def __del__(self) -> None:
        work(2000)


@pytest.mark.parametrize(
    ("make", "codes"), [(Finalized, ["leaves-garbage"]), (Box, [])]
)
def test_a_finalizer_that_works_is_doubted(
    host: HostCollector, make: Callable[[], object], codes: list[str]
) -> None:
    """Its work is in no sample if each call is timed alone."""
    request = TimedCall(fn=spending(make), setup=lambda: ())

    assert doubts(host.measure(request, stop=Enough())) == codes


def test_threads_that_each_call_leaves_are_doubted(host: HostCollector) -> None:
    """They may wait for their time, as timers do."""
    ended = threading.Event()
    started: list[threading.Thread] = []

    def call() -> None:
        work(500)
        started.append(threading.Thread(target=ended.wait))
        started[-1].start()

    timing = host.measure(TimedCall(fn=call), stop=Enough())
    ended.set()
    for thread in started:
        thread.join()

    assert doubts(timing) == ["work-elsewhere"]


class Busy(FakeClock):
    """A clock of a process whose other threads work while this one sleeps."""

    def sleep(self, duration_s: float) -> None:
        super().sleep(duration_s)
        self.others_ns += round(duration_s * 1e9)


@pytest.mark.parametrize(
    ("clock", "codes"), [(Busy(), ["work-elsewhere"]), (FakeClock(), [])]
)
def test_a_thread_that_works_after_a_block_is_doubted(
    clock: FakeClock, codes: list[str]
) -> None:
    """A thread of a pool rests."""
    with (
        concurrent.futures.ThreadPoolExecutor(1) as pool,
        HostCollector(clock, NoDevice()).measure_range() as timer,
    ):
        pool.submit(int).result()
        clock.advance(1_000_000)

    assert timer.timing is not None
    assert doubts(timer.timing) == codes


def test_work_that_each_call_leaves_to_the_exit_is_doubted(host: HostCollector) -> None:
    """The process does it after the last test."""

    def later() -> None: ...

    def call() -> None:
        work(500)
        atexit.register(later)

    timing = host.measure(TimedCall(fn=call), stop=Enough())
    atexit.unregister(later)

    assert doubts(timing) == ["work-elsewhere"]


def test_tasks_that_each_call_leaves_on_a_loop_are_doubted(host: HostCollector) -> None:
    """Those that a call awaits are no doubt."""
    loop = asyncio.new_event_loop()
    left: list[asyncio.Task[None]] = []

    async def leaves() -> None:
        work(500)
        left.append(asyncio.ensure_future(asyncio.sleep(3600)))

    async def awaits() -> None:
        work(500)
        await asyncio.ensure_future(asyncio.sleep(0))

    for main, codes in ((leaves, ["work-elsewhere"]), (awaits, [])):
        fn = TimedCall(fn=partial(_run, loop, main))
        assert doubts(host.measure(fn, stop=Enough())) == codes
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.close()


def _run(
    loop: asyncio.AbstractEventLoop, main: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    loop.run_until_complete(main())


def rows_of(count: int) -> Iterator[int]:
    yield from range(count)


async def row_of(count: int) -> int:
    return count


def drops_a_generator() -> int:
    work(100)
    rows_of(3)
    return 7


def reads_a_generator() -> int:
    work(100)
    rows = rows_of(3)
    return sum(rows) + sum(rows_of(3))


async def drops_a_coroutine() -> None:
    work(100)
    row_of(3)  # type: ignore[unused-coroutine]  # what is tested


async def awaits_a_coroutine() -> None:
    work(100)
    await row_of(3)


class Reader:
    """Has a coroutine function."""

    async def read(self) -> int:
        return 3

    def drops(self) -> int:
        work(100)
        self.read()  # type: ignore[unused-coroutine]  # what is tested
        return 7


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (drops_a_generator, "rows_of"),
        (reads_a_generator, ""),
        (lambda: drops_a_generator(), "rows_of"),  # noqa: PLW0108 - one function by the other
        (drops_a_coroutine, "row_of"),
        (awaits_a_coroutine, ""),
        (Reader().drops, "self.read"),
        (len, ""),
        (partial(len, ()), ""),
    ],
)
def test_a_generator_or_a_coroutine_that_is_dropped(
    fn: Callable[..., object], name: str
) -> None:
    """A statement that only makes one does no work."""
    assert unread(fn) == name


def test_a_dropped_generator_is_doubted(host: HostCollector) -> None:
    """Nothing else shows that work was forgotten."""
    timing = host.measure(TimedCall(fn=drops_a_generator), stop=Enough())

    assert doubts(timing) == ["lazy-result"]


@pytest.mark.parametrize(
    ("owner", "name", "codes"),
    [
        (sampling, "_timed", ["replaced-code"]),
        (CallSampler, "_reading_of", ["replaced-code"]),
        (SystemClock, "now_ns", ["replaced-code"]),
        (sampling, "_ALIKE_RATIO", []),
    ],
)
def test_replaced_code_of_the_plugin_is_doubted(
    monkeypatch: pytest.MonkeyPatch,
    host: HostCollector,
    owner: object,
    name: str,
    codes: list[str],
) -> None:
    """What takes a sample decides the time."""
    original = getattr(owner, name)
    own = copied(original) if callable(original) else original + 1
    monkeypatch.setattr(owner, name, own)

    timing = host.measure(TimedCall(fn=spending(answer)), stop=Enough())

    assert doubts(timing) == codes


def copied(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function that does the same."""

    def copy(*given: Any, **named: Any) -> object:
        return function(*given, **named)

    return copy


def answer() -> int:
    return 7


@pytest.mark.parametrize(
    ("child_ns", "codes"), [(900_000, ["work-elsewhere"]), (0, [])]
)
def test_the_work_of_a_child_on_the_core_is_doubted(
    host: HostCollector, child_ns: int, codes: list[str]
) -> None:
    """It looks like an interruption, which the time leaves out."""
    AT.clock.children_ns = 0

    calls = itertools.count()

    def call() -> int:
        work(100)
        # The warm-up has a call that nothing interrupts.
        if next(calls) != 2:
            AT.clock.interrupt(900_000)
            AT.clock.children_ns += child_ns
        return 7

    timing = host.measure(TimedCall(fn=call), stop=Enough())

    assert doubts(timing) == codes


class BusyChild(FakeClock):
    """A clock of a process with a child that works whenever this one does not run."""

    def children_cpu_ns(self) -> int | None:
        return self.waited_ns


def test_a_child_that_works_all_the_time_does_no_work_of_the_call() -> None:
    """A server that a session has started works beside the calls and without them."""
    clock = BusyChild()
    calls = itertools.count()

    def call() -> int:
        clock.advance(100_000)
        # The warm-up has a call that nothing interrupts.
        if next(calls) != 2:
            clock.interrupt(900_000)
        return 7

    timing = HostCollector(clock, NoDevice()).measure(TimedCall(fn=call), stop=Enough())

    assert doubts(timing) == []


@pytest.mark.parametrize(
    ("a", "b", "is_different"),
    [
        (1, 2, True),
        (10**9, 10**9 + 1, True),
        (1.0, 1.0 + 1e-9, False),
        (float("nan"), 1.0, False),
        ("a", "b", True),
        ([1, 2], (1, 2), False),
        ([1, 2], [2, 1], True),
        ([1, 2], [1, 2, 3], True),
        ({"a": 1}, {"a": 1}, False),
        ({"a": 1}, {"b": 1}, True),
        ({"a": [1]}, {"a": [2]}, True),
        (None, [1], False),
        (object(), object(), False),
        (np.ones(3), np.ones(3), False),
        (np.ones(3), np.ones(4), True),
        (np.ones(3), np.zeros(3), True),
        (np.ones(3, "f4"), np.ones(3, "f4") + np.float32(1e-5), False),
        (np.ones(3, "f2"), np.ones(3, "f2") + np.float16(1e-2), False),
        (np.array(["a"]), np.array(["b"]), True),
        (np.array([]), np.array([]), False),
        (1, 1.0, False),
        (np.int64(1), 1, False),
        (np.int64(2), 1, True),
        (np.array([1.0, 2.0]), [1.0, 2.0], False),
        (np.zeros(2), [1.0, 2.0], True),
        (np.zeros((2, 2)), [[0, 0], [0, 1]], True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        ({"a": 5, "b": 3, "c": 4}, {"a": 3, "b": 5, "c": 4}, True),
        ({0.1 + 0.2}, {0.3}, False),
        ({0.1}, {0.3}, True),
        ({"a"}, {"b"}, True),
        ('{"a": [1, 2.0]}', '{ "a":[1,2] }', False),
        ('{"a": 1, "b": 2}', '{"b":2,"a":1}', False),
        ('{"a": 1}', '{"a": 2}', True),
        ("[1", "[2", True),
        ("a b", "ab", True),
        ([1e9, 1e-9 + 0j], [1e9 + 0j, 2e-7], False),
        ([1e9, 1.0], [1e9, 2e4], True),
    ],
)
def test_results_differ_by_more_than_rounding(
    a: object, b: object, is_different: bool
) -> None:
    """What cannot be compared is not said to differ."""
    assert differ(a, b) is is_different
    assert differ(b, a) is is_different


@pytest.mark.parametrize(
    ("given", "is_different"),
    [([1e16, 1.0, -1e16, 1.0] * 500, False), ([1.0] * 500, True)],
)
def test_a_sum_that_cancels_may_lose_what_its_parts_cannot_hold(
    given: list[float], *, is_different: bool
) -> None:
    """The first sum of these is 0, and the exact one is 1,000."""
    for value in (given, np.array(given), (given[0], *given[1:])):
        assert differ(0.0, 1000.0, tolerance_for([value, len])) is is_different


@pytest.mark.parametrize(
    ("a", "b", "given", "is_set"),
    [
        ([1, 2, 3], [3, 1, 2], [3, 1, 2, 3], True),
        ([1, 2, 3], [3, 1, 2], [3, 1, 2], False),
        ([1, 2, 3], [3, 1, 4], [], False),
        ([1, 1, 2], [2, 1, 1], [], False),
        ([[1]], [[2]], [], False),
        ([n / 7 for n in range(20)], [n / 7 for n in range(19, -1, -1)], [], False),
    ],
)
def test_the_order_of_a_set_is_no_other_result(
    a: list[Any], b: list[Any], given: list[Any], *, is_set: bool
) -> None:
    """It looks sorted, if the items are small whole numbers."""
    assert are_one_set(a, b, [given, len]) is is_set
    assert are_one_set(b, a, [given, len]) is is_set
