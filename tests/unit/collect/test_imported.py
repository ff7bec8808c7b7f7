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
    "buffer": lambda module: module.buffer.__setitem__(
        slice(None), array("d", range(5))
    ),
    "matrix": lambda module: module.matrix.sort(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_data_sorted_by_another_test_are_doubted(module: Any, name: str) -> None:
    """The call is repeated on the first content. The data keep the content of the test."""
    request = TimedCall(fn=sorted_copy, args=(getattr(module, name),))

    (doubt,) = doubts_of(module, CHANGES[name], request)

    assert doubt.code == "new-content"
    assert doubt.full_s == pytest.approx(0.001)
    assert doubt.text.startswith(f"{name} had other content before the first test")
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


def test_emptied_data_are_doubted(module: Any) -> None:
    """Nothing is left to do."""
    request = TimedCall(fn=sorted_copy, args=(module.rows,))

    (doubt,) = doubts_of(module, lambda module: module.rows.clear(), request)

    assert doubt.code == "new-content"


HONEST: dict[str, Callable[[Any], object]] = {
    "unchanged": lambda module: None,
    "reordered, as much work": lambda module: module.rows.reverse(),
    "another amount": lambda module: module.rows.__delitem__(slice(1, None)),
    "another list": lambda module: module.pairs.sort(),
}


@pytest.mark.parametrize("name", HONEST)
def test_data_with_as_much_work_are_not_doubted(module: Any, name: str) -> None:
    """A fixture may fill, cut or shuffle the data of its module."""
    request = TimedCall(fn=sorted_copy, args=(module.rows,))

    assert doubts_of(module, HONEST[name], request) == []


def test_large_data_and_objects_are_not_copied(module: Any) -> None:
    """A copy of them takes memory, or keeps objects alive that the test has dropped."""
    module.rows = [object(), *SHUFFLED]
    module.matrix = np.arange(1_000_000.0)
    module.frozen = np.arange(5)
    module.frozen.flags.writeable = False
    imported = ImportedData()
    imported.keep([module])

    module.rows.clear()
    module.matrix[:] = 0

    given = (module.rows, module.matrix, module.frozen)
    assert imported.changed(map(id, given)) == []


def test_all_copies_together_have_a_limit(module: Any) -> None:
    """70 arrays of a million bytes are more than 64 MiB."""
    for number in range(70):
        setattr(module, f"bytes_{number}", bytearray(1_000_000))
    imported = ImportedData()
    imported.keep([module])

    large = [value for value in vars(module).values() if type(value) is bytearray]
    for value in large:
        value[0] = 1

    assert len(imported.changed(map(id, large))) == 67
