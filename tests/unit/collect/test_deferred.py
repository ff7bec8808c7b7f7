"""Rules of collect.timing.deferred: results that work when they are used."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import pytest

from fakes.clock import FakeClock
from pytest_gpuperf.collect.base import TimedCall
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.runtime import NoDevice
from pytest_gpuperf.collect.timing.deferred import (
    adds_nothing,
    given_before,
    is_written,
    of_project,
    returned_function,
    uses,
)
from pytest_gpuperf.collect.timing.effects import STOPPED_S
from pytest_gpuperf.collect.timing.host import HostCollector

ROWS = [3, 1, 2]
EMPTY: list[int] = []
CLOCK = FakeClock()


class Enough:
    """A stop rule."""

    def enough(self, values: Sequence[float]) -> bool:
        return True


def answer() -> list[int]:
    return sorted(ROWS)


def helper(rows: list[int]) -> list[int]:
    return sorted(rows)


def writes(rows: list[int]) -> None:
    rows.append(0)


class Rows:
    """Holds its argument, and works when it is used."""

    kept: list[int] | None = None

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __getitem__(self, place: int) -> int:
        return int(sorted(self.rows)[place])

    @property
    def ordered(self) -> list[int]:
        return sorted(self.rows)

    def value(self) -> list[int]:
        return sorted(self.rows)

    def in_order(self) -> list[int]:
        self.kept = [row for row in helper(self.rows)]  # noqa: C416 - code of its own
        return self.kept

    def __call__(self) -> float:
        return math.fsum(self.rows)

    def sorts(self) -> None:
        self.rows.sort()

    def calls_what_writes(self) -> None:
        writes(self.rows)

    def sleeps(self) -> None:
        time.sleep(1)

    def waits(self) -> None:
        while self.rows:
            pass

    def opens(self) -> object:
        return open(str(self.rows))  # noqa: PTH123 - never called

    def takes(self, count: int) -> int:
        return count

    def __hash__(self) -> int:
        return hash(tuple(self.rows))


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (lambda: answer, "answer"),
        (lambda: ROWS.sort, "sort"),
        (lambda: Rows(ROWS).value, ""),  # a call has done something
        (lambda rows=ROWS: lambda: sorted(rows), "<lambda>"),
        (lambda: functools.partial(sorted, ROWS), "sorted"),
        (lambda: lambda other: other, ""),  # for others to call
        (lambda: ROWS.append, ""),
        (lambda: functools.partial(sorted), ""),
        (answer, ""),
    ],
)
def test_a_function_that_is_returned_and_not_called(
    fn: Callable[[], object], name: str
) -> None:
    """It needs nothing more, and the code does nothing else. `lambda: f` lacks parentheses."""
    assert returned_function(fn, fn()) == name


def test_data_that_were_there_before() -> None:
    """A function that only names them does no work. An argument and an attribute may."""
    kept = sorted(ROWS)

    assert given_before(lambda: ROWS, ROWS) == "ROWS"
    assert given_before(lambda: kept, kept) == "kept"
    assert given_before(lambda rows: rows, ROWS) == ""
    assert given_before(lambda: Rows(ROWS).ordered, ROWS) == ""
    assert given_before(lambda: CLOCK, CLOCK) == ""
    assert given_before(lambda: EMPTY, EMPTY) == ""
    assert given_before(len, ROWS) == ""
    assert given_before(lambda rows=ROWS: rows, ROWS, has_arguments=False) == "rows"
    assert given_before(lambda rows=ROWS: rows, ROWS) == ""


def test_only_uses_without_an_effect_are_made() -> None:
    """What writes, waits, opens, needs arguments or calls such is left alone."""
    names = {use.name for use in uses(Rows(ROWS))}

    assert names == {
        "__getitem__ of Rows",
        "Rows.ordered",
        "Rows.value()",
        "Rows.in_order()",
        "Rows.__call__()",
    }


def test_an_object_that_holds_more_than_data_is_not_used() -> None:
    """Anything may happen in it, whatever its methods are named after."""
    assert [*uses(Rows(CLOCK))] == []
    assert [*uses(Rows([CLOCK]))] == []
    assert [*uses(Rows({"a": (CLOCK,)}))] == []
    assert [*uses(Rows(10**9))] == []


class Waiting:
    """Has members that wait, write, count or end the process."""

    written: ClassVar[list[int]] = []

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def result(self) -> int:
        return self._wait()

    def _wait(self) -> int:
        event = threading.Event()
        event.wait()
        return 1

    def get(self) -> int:
        self.written.append(1)
        return 1

    def value(self) -> int:
        raise SystemExit

    def compute(self) -> int:
        raise KeyboardInterrupt

    def collect(self) -> int:
        return sum(iter(int, 1))

    def values(self) -> int:
        return self.values()

    def to_list(self) -> list[int]:
        rows = self.rows
        rows += [1]
        return rows

    def items(self) -> object:
        return json.load(cast("Any", self.rows))

    def numpy(self) -> object:
        return np.add(self.rows, 1, out=cast("Any", self.rows))

    def tolist(self) -> int:
        try:
            return sum(self.rows)
        except BaseException:  # noqa: BLE001 - it would hide that it was stopped
            return 0

    def evaluate(self) -> int:
        return Waiting.written.pop()

    def as_list(self) -> object:
        return operator.iadd(self.rows, [1])  # type: ignore[no-untyped-call]

    def as_dict(self) -> object:
        return operator.methodcaller("clear")(self.rows)

    @property
    def rest(self) -> int:
        return self.result()

    def __len__(self) -> int:
        return self.get()

    def __str__(self) -> str:
        return f"{self!r} {self.result()}"

    def __getitem__(self, place: int) -> int:
        return answering(self)


def answering(waiting: Waiting) -> int:
    return waiting.result()


def test_a_member_that_may_wait_or_write_is_not_used() -> None:
    """What it calls counts, not its name, and it has no time limit."""
    assert [*uses(Waiting(ROWS))] == []


def test_no_member_is_used_where_any_name_has_an_answer() -> None:
    """An object that stands for another one may ask a server for each attribute."""
    asked = []

    class Proxy:
        def __init__(self, rows: list[int]) -> None:
            self.rows = rows

        def __getattr__(self, name: str) -> list[int]:
            asked.append(name)
            raise SystemExit

        def value(self) -> object:
            return [*self.row]

    timing = HostCollector(CLOCK, NoDevice()).measure(
        TimedCall(fn=spending(Proxy), args=(ROWS,)), stop=Enough()
    )

    assert asked == []
    assert [n.code for n in timing.notes if n.doubt] == []


def spending(make: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return a function that takes 10 us to make something."""

    def fn(rows: Any) -> object:
        CLOCK.advance(10_000)
        return make(rows)

    return fn


@pytest.mark.parametrize("make", [Waiting, lambda rows: (Waiting(rows), len(rows))])
def test_a_result_that_waits_never_hangs_its_test(
    make: Callable[[Any], object],
) -> None:
    """It is not used at all."""
    timing = HostCollector(CLOCK, NoDevice()).measure(
        TimedCall(fn=spending(make), args=(ROWS,)), stop=Enough()
    )

    assert [n.code for n in timing.notes if n.doubt] == []
    assert Waiting.written == []


LONG = [float(row * 7919 % 100_003) for row in range(100_000)]


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (lambda rows: {"rows": lambda: sorted(rows), "count": 3}, "<lambda>()"),
        (lambda rows: [functools.partial(sorted, rows)], "a function()"),
        (lambda rows: {"clear": lambda: rows.clear()}, ""),  # noqa: PLW0108 - not proven
        (lambda rows: (lambda: len(rows), 1), ""),
        (lambda rows: (lambda key: sorted(rows, key=key), 1), ""),
    ],
)
def test_a_slow_function_in_a_result_is_a_doubt(
    fn: Callable[[list[float]], object], name: str
) -> None:
    """If it needs no arguments and has no effect. Others are for others to call."""
    timing = HostCollector(SystemClock(), NoDevice()).measure(
        TimedCall(fn=fn, args=(LONG,)), stop=Enough()
    )
    texts = [n.text for n in timing.notes if n.code == "lazy-result"]

    assert len(texts) == bool(name)
    assert all(name in text for text in texts)
    assert len(LONG) == 100_000


class Slow(list[int]):
    """A list of its own class, whose code counts when it runs."""

    asked: ClassVar[list[str]] = []

    def __iter__(self) -> Iterator[int]:
        self.asked.append("iter")
        return super().__iter__()

    def __len__(self) -> int:
        self.asked.append("len")
        return super().__len__()

    def __bool__(self) -> bool:
        self.asked.append("bool")
        return True

    def __getitem__(self, place: Any) -> Any:
        self.asked.append("item")
        return super().__getitem__(place)


@pytest.mark.parametrize("items", [[], ROWS])
def test_no_code_of_a_container_runs(items: list[int]) -> None:
    """It might wait, as for the items of a queue."""
    timing = HostCollector(CLOCK, NoDevice()).measure(
        TimedCall(fn=spending(lambda rows: Slow(items)), args=(ROWS,)), stop=Enough()
    )

    assert Slow.asked == []
    assert [n.code for n in timing.notes if n.doubt] == []


class Pairs:
    """Works on all pairs."""

    def __init__(self, rows: list[float]) -> None:
        self.rows = rows

    def closest(self) -> float:
        return min(abs(a - b) for a in self.rows for b in self.rows if a != b)


def test_a_use_that_takes_too_long_is_stopped() -> None:
    """Its code has no effect, so that nothing is left half done."""
    rows = [float(row) for row in range(1_000_000)]
    fn = TimedCall(fn=Pairs, args=(rows,))
    before = sys.gettrace()
    timing = HostCollector(SystemClock(), NoDevice()).measure(fn, stop=Enough())
    (note,) = [n for n in timing.notes if n.code == "lazy-result"]

    assert "Pairs.closest() takes at least" in note.text
    assert note.full_s == STOPPED_S
    assert sys.gettrace() is before


def test_a_result_adds_nothing_to_its_arguments() -> None:
    """Numbers and texts do not count, nor does what the result of another call holds."""
    other = Rows(ROWS)

    assert adds_nothing(Rows(ROWS), other, ())
    assert adds_nothing(Rows([1]), Rows([1]), ()) is False
    mine = [1]
    assert adds_nothing(Rows(mine), Rows([1]), (mine,))
    assert adds_nothing(Rows((mine, 2)), Rows([1]), (mine,))
    assert adds_nothing(Rows({"a": mine}), Rows([1]), (mine,))
    assert adds_nothing(Rows(5), Rows(6), ())


def test_the_object_of_the_project_is_found_in_a_result() -> None:
    """It may stand beside others in a tuple, a list or a dict."""
    rows = Rows(ROWS)

    assert of_project(rows) is rows
    assert of_project((1, rows)) is rows
    assert of_project({"a": 1, "b": rows}) is rows
    assert of_project([1]) is None


def test_writing_a_long_text_is_no_work() -> None:
    """It takes less than a microsecond a character."""
    assert is_written("x" * 10_000, 0.005)
    assert not is_written("1.0", 0.005)
    assert not is_written([1], 0.0)


@pytest.mark.parametrize("taken", [Rows, lambda rows: (Rows(rows), len(rows))])
def test_a_use_that_takes_far_longer_is_a_doubt(taken: Callable[..., object]) -> None:
    """The time of a call whose result is used is said, so that generous limits stay kept."""
    rows = [row * 7919 % 100_003 for row in range(100_000)]
    timing = HostCollector(SystemClock(), NoDevice()).measure(
        TimedCall(fn=taken, args=(rows,)), stop=Enough()
    )
    (note,) = [n for n in timing.notes if n.code == "lazy-result"]

    assert note.doubt
    assert "__getitem__ of Rows takes " in note.text
    assert note.full_s is not None
    assert note.full_s > 1e-4


def test_a_cheap_use_is_no_doubt() -> None:
    """A table of its arguments is what the call makes."""

    @dataclasses.dataclass
    class Table:
        rows: list[int]

        def __len__(self) -> int:
            return len(self.rows)

    assert "__len__ of Table" in {use.name for use in uses(Table(ROWS))}
    timing = HostCollector(SystemClock(), NoDevice()).measure(
        TimedCall(fn=Table, args=(ROWS,)), stop=Enough()
    )

    assert [n.code for n in timing.notes if n.doubt] == []
