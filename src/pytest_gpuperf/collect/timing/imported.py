"""The order that lists and arrays of test modules had before the first test ran.

An earlier test or a fixture may have sorted a list, so that a measured call finds the work
done. A call on the data in their first order shows it. Nothing else is put back: a fixture
that writes other items means other work.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from math import inf
from operator import is_
from types import ModuleType
from typing import Any, NamedTuple

from pytest_gpuperf.collect.timing.same_work import Probe, shortest_s
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.model.record import Note

# Limits for the copies of one run, and of one list with its items.
_MOST_BYTES = 64 * 1024**2
_MOST_EACH_BYTES = 1024**2
# Items that are no objects of the test. Copies keep nothing else alive, and comparing them
# runs no code of the test.
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_BUFFERS = frozenset({bytearray, array})
# A call on the first content may take so much longer.
_MOST_RATIO = 3
_NAMED = 3  # lists and arrays in a note
_ALL = slice(None)


class Data(NamedTuple):
    """
    A list or an array of a module, with a copy of its content.

    The value is found by its name, because an array that is referred to elsewhere cannot be
    resized.
    """

    module: ModuleType
    name: str
    key: int
    copy: Any

    @property
    def value(self) -> Any:  # noqa: ANN401 - a list, a buffer or an array
        """The list or array, or None if the name stands for another object now."""
        value = vars(self.module).get(self.name)
        return value if id(value) == self.key else None

    @property
    def is_reordered(self) -> bool:
        """True if the same items are in another order."""
        value, copy = self.value, self.copy
        if type(value) is not type(copy) or len(value) != len(copy):
            return False
        # Mostly nothing has changed, which needs no look at the types of the items.
        if type(value) is list and all(map(is_, value, copy)):
            return False
        if not _size_bytes(value):
            return False
        if type(value) is list:
            return bool(value != copy) and Counter(value) == Counter(copy)
        return _is_reordered_buffer(value, copy)


class ImportedData:
    """The lists and arrays of the modules whose tests measure, within a limit of memory."""

    def __init__(self) -> None:
        self._kept: dict[int, Data] = {}
        self._left_bytes = _MOST_BYTES

    def keep(self, modules: Iterable[object]) -> None:
        """Copy the global lists, byte arrays and arrays of modules, before the first test."""
        for module in dict.fromkeys(m for m in modules if isinstance(m, ModuleType)):
            for name, value in [*vars(module).items()]:
                size_bytes = _size_bytes(value)
                if 0 < size_bytes <= min(_MOST_EACH_BYTES, self._left_bytes):
                    self._left_bytes -= size_bytes
                    self._kept[id(value)] = Data(
                        module, name, id(value), _copy_of(value)
                    )

    def changed(self, reached: Iterable[int]) -> list[Data]:
        """
        Return the data that another test or a fixture has brought into another order.

        Args:
            reached: The ids of the objects that a call reaches, before it is made for the
                first time.
        """
        if not self._kept:
            return []
        found = map(self._kept.get, dict.fromkeys(reached))
        return [data for data in found if data is not None and data.is_reordered]


def _size_bytes(value: Any) -> int:  # noqa: ANN401 - any object
    """Return the size of data that can be copied and written again [B], or 0."""
    if type(value) is list:
        return _list_bytes(value)
    if type(value) in _BUFFERS:
        return sys.getsizeof(value) if len(value) else 0
    # An array on the memory of another object would keep that alive.
    ndarray = getattr(sys.modules.get("numpy"), "ndarray", None)
    if type(value) is not ndarray or not value.ndim or value.base is not None:
        return 0
    is_plain = value.flags.writeable and not value.dtype.hasobject
    return int(value.nbytes) if is_plain else 0


def _list_bytes(value: list[Any]) -> int:
    """Return the size of a list of plain items or of tuples of these [B], or 0."""
    size_bytes = sys.getsizeof(value)
    if not value or size_bytes > _MOST_EACH_BYTES:
        return 0
    items: list[Any] = value
    if type(value[0]) is tuple:
        if {*map(type, value)} != {tuple}:
            return 0
        size_bytes += sum(map(sys.getsizeof, value))
        items = [*chain.from_iterable(value)]
    if not _PLAIN.issuperset(map(type, items)):
        return 0
    return size_bytes + sum(map(sys.getsizeof, items))


def _is_reordered_buffer(value: Any, copy: Any) -> bool:  # noqa: ANN401 - a buffer or an array
    if type(value) is bytearray:
        return bool(value != copy) and Counter(value) == Counter(copy)
    now, then, width = value.tobytes(), copy.tobytes(), value.itemsize
    if now == then:
        return False
    starts = range(0, len(now), width)
    return Counter(now[i : i + width] for i in starts) == Counter(
        then[i : i + width] for i in starts
    )


def notes(changed: Sequence[Data], probe: Probe) -> Iterator[Note]:
    """
    Yield a doubt if a call takes far longer on data in the order before the first test.

    There is none if the function raises, because the test does not call it so.

    Args:
        changed: The data that the call reaches and that were brought into another order.

        probe: Calls the function again.

    Raises:
        GpuPerfError: The device failed.
    """
    __tracebackhide__ = True
    now = [data._replace(copy=_copy_of(data.value)) for data in changed]
    now_s = first_s = inf
    try:
        # Both are written before each call, because copying evicts the processor's caches.
        now_s = shortest_s(probe, partial(_write, now))
        first_s = shortest_s(probe, partial(_write, changed))
    except GpuPerfError:
        raise
    except Exception:  # noqa: BLE001, S110 - the function's, or of data that are locked
        pass
    finally:
        with suppress(Exception):
            _write(now)
    if _MOST_RATIO * now_s < first_s < inf:
        names = ", ".join(data.name for data in changed[:_NAMED])
        text = (
            f"{names} had another order before the first test, in which a call takes"
            f" {first_s / now_s:,.0f} times as long; give the test data of its own"
        )
        yield Note(code="new-content", text=text, doubt=True, full_s=first_s)


def _write(contents: Iterable[Data]) -> None:
    for data in contents:
        data.value[_ALL] = data.copy


def _copy_of(value: Any) -> Any:  # noqa: ANN401 - a list, a buffer or an array
    return (
        value[_ALL] if type(value) is list or type(value) in _BUFFERS else value.copy()
    )
