"""Rules of data that another test has changed: a call on their first content shows it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fakes.clock import FakeClock
from pytest_gpuperf.collect.base import TimedCall
from pytest_gpuperf.collect.runtime import NoDevice
from pytest_gpuperf.collect.timing.host import HostCollector
from pytest_gpuperf.collect.timing.imported import ImportedData
from pytest_gpuperf.model.record import Note

SHUFFLED = [5, 3, 4, 1, 2]
clock = FakeClock()
_ALL = slice(None)


class Ten:
    def enough(self, values: Sequence[float]) -> bool:
        return len(values) >= 10


@pytest.fixture
def module() -> Any:
    """A test module, with data that its tests share."""
    made: Any = ModuleType("test_tables")
    made.rows = [*SHUFFLED]
    made.pairs = [(each, str(each)) for each in SHUFFLED]
    made.buffer = array("d", SHUFFLED)
    made.octets = bytearray(SHUFFLED)
    made.matrix = np.array(SHUFFLED)
    made.total = 7
    return made


def sorted_copy(items: Any) -> list[Any]:
    """Return a sorted copy, in far less time if the items are sorted or missing."""
    is_sorted = [*items] == sorted(items)
    clock.advance(50_000 if is_sorted else 1_000_000)
    return sorted(items)


def doubts_of(module: Any, change: Callable[[Any], object], request: Any) -> list[Note]:
    """Return the doubts about a call after another test has changed the module's data."""
    imported = ImportedData()
    imported.keep([module])
    change(module)
    before = repr(vars(module))
    host = HostCollector(clock, NoDevice(), imported=imported)
    timing = host.measure(request, stop=Ten())
    assert repr(vars(module)) == before
    return [note for note in timing.notes if note.doubt]


CHANGES: dict[str, Callable[[Any], object]] = {
    "rows": lambda module: module.rows.sort(),
    "pairs": lambda module: module.pairs.sort(),
    "buffer": lambda module: module.buffer.__setitem__(_ALL, array("d", range(1, 6))),
    "octets": lambda module: module.octets.__setitem__(_ALL, bytes(range(1, 6))),
    "matrix": lambda module: module.matrix.sort(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_data_sorted_by_another_test_are_doubted(module: Any, name: str) -> None:
    """The call is repeated on the first content. The data keep the content of the test."""
    request = TimedCall(fn=sorted_copy, args=(getattr(module, name),))

    (doubt,) = doubts_of(module, CHANGES[name], request)

    assert doubt.code == "new-content"
    assert doubt.full_s == pytest.approx(0.001)
    assert doubt.text.startswith(f"{name} had another order before the first test")
    assert "20 times as long" in doubt.text


def test_data_that_a_call_reaches_without_an_argument_are_doubted(module: Any) -> None:
    """A function may read a list of its closure."""
    rows = module.rows

    def call() -> list[int]:
        return sorted_copy(rows)

    (doubt,) = doubts_of(module, CHANGES["rows"], TimedCall(fn=call))

    assert doubt.code == "new-content"


def test_data_of_a_pool_are_doubted(module: Any) -> None:
    """An entry of `inputs` may be a list of the module, or a tuple with one."""
    request = TimedCall(fn=sorted_copy, inputs=[(module.rows,)])

    (doubt,) = doubts_of(module, CHANGES["rows"], request)

    assert doubt.code == "new-content"


HONEST: dict[str, Callable[[Any], object]] = {
    "unchanged": lambda module: None,
    "reordered, as much work": lambda module: module.rows.reverse(),
    "another amount": lambda module: module.rows.__delitem__(slice(1, None)),
    "another list": lambda module: module.pairs.sort(),
    "emptied": lambda module: module.rows.clear(),
    "another item": lambda module: module.rows.__setitem__(0, 6),
    "another list of the name": lambda module: setattr(module, "rows", [1, 2, 3, 4, 5]),
}


@pytest.mark.parametrize("name", HONEST)
def test_data_with_as_much_work_are_not_doubted(module: Any, name: str) -> None:
    """A fixture may fill, cut or shuffle the data of its module."""
    request = TimedCall(fn=sorted_copy, args=(module.rows,))

    assert doubts_of(module, HONEST[name], request) == []


class Item:
    """An object of the test, which must not be compared."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    __hash__ = None  # type: ignore[assignment] # as mutable objects have it


@pytest.mark.parametrize(
    "value",
    [
        [Item(), Item()],
        [(Item(), 1), (Item(), 2)],
        [np.zeros(5), np.ones(5)],
        [[2], [1]],
        [1, (2,)],
        list(map(float, range(100_000))),
        ["long" * 200_000, "text" * 200_000],
        np.arange(1_000_000.0),
        np.arange(10)[::2],
        np.frombuffer(bytes(16)),
        np.array([Item(), Item()]),
        np.array(7),
        {2: 1, 1: 2},
    ],
    ids=lambda value: type(value).__name__,
)
def test_large_data_and_objects_are_not_copied(value: Any) -> None:
    """A copy takes memory, keeps objects alive, or runs code of the test."""
    module = ModuleType("test_tables")
    module.__dict__["value"] = value
    imported = ImportedData()
    imported.keep([module])

    if isinstance(value, list):
        value.reverse()
    elif isinstance(value, np.ndarray) and value.ndim and value.flags.writeable:
        value[:] = value[::-1].copy()

    assert imported.changed([id(value)]) == []


def test_items_that_came_later_are_not_compared(module: Any) -> None:
    """Comparing them would run code of the test."""
    imported = ImportedData()
    imported.keep([module])
    module.rows[:] = [Item() for _ in SHUFFLED]

    assert imported.changed([id(module.rows)]) == []


def test_an_array_can_be_resized(module: Any) -> None:
    """numpy resizes no array that something else refers to."""
    imported = ImportedData()
    imported.keep([module])

    module.matrix.resize(20)

    assert len(module.matrix) == 20


def test_a_call_that_raises_in_the_first_order_is_no_doubt(module: Any) -> None:
    """The test does not call it so. The data keep the order of the test."""

    def call(rows: list[int]) -> list[int]:
        if rows == SHUFFLED:
            raise ValueError
        return sorted_copy(rows)

    request = TimedCall(fn=call, args=(module.rows,))

    assert doubts_of(module, CHANGES["rows"], request) == []


def test_locked_data_are_left_alone(module: Any) -> None:
    """An array may be sorted and then made read-only."""

    def change(module: Any) -> None:
        module.matrix.sort()
        module.matrix.flags.writeable = False

    request = TimedCall(fn=sorted_copy, args=(module.matrix,))

    assert doubts_of(module, change, request) == []


def test_what_is_no_module_has_no_data() -> None:
    """Items of other plugins name what they like."""
    imported = ImportedData()

    imported.keep(["test_tables", None])

    assert imported.changed([]) == []


def test_all_copies_together_have_a_limit(module: Any) -> None:
    """70 byte arrays of a million are more than 64 MiB."""
    for number in range(70):
        setattr(module, f"bytes_{number}", bytearray(b"\1" + bytes(999_999)))
    imported = ImportedData()
    imported.keep([module])

    large = [value for value in vars(module).values() if type(value) is bytearray]
    for value in large:
        value[0], value[-1] = 0, 1

    assert len(imported.changed(map(id, large))) == 67
