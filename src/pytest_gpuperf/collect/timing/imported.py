"""The content that lists and arrays of test modules had before the first test ran.

An earlier test or a fixture may have sorted a list, so that a measured call finds the work
done. A call on the content that the list had at first shows it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import inf
from types import ModuleType
from typing import Any, NamedTuple

from pytest_gpuperf.collect.timing.contents import marshalled
from pytest_gpuperf.collect.timing.same_work import Probe
from pytest_gpuperf.model.record import Note

# Limits for the copies of one run. They are small beside the numbers in the lists.
_MOST_BYTES = 64 * 1024**2
_MOST_EACH_BYTES = 1024**2
# A call on the first content may take so much longer.
_MOST_RATIO = 3
# Only the shortest time counts, because a busy machine interrupts the others.
_SHORTEST_OF = 3
_NAMED = 3  # lists and arrays in a note
_ALL = slice(None)
# Tests fill dicts and sets on purpose, to look keys up in them.
_COPIED = frozenset({list, bytearray, array})


class Data(NamedTuple):
    """A list or an array of a module, with a copy of its content before the first test."""

    name: str
    value: Any
    copy: Any

    @property
    def is_reordered(self) -> bool:
        """True if the items have changed, and are as many as before or none."""
        value, copy = self.value, self.copy
        if len(value) not in {0, len(copy)}:
            # A fixture that makes the data larger or smaller wants another amount of work.
            return False
        if type(value) in _COPIED:
            return bool(value != copy)
        return bool(value.tobytes() != copy.tobytes())


class ImportedData:
    """The lists and arrays of the modules whose tests measure, within a limit of memory."""

    def __init__(self) -> None:
        # The data are kept as well, so that no other object gets their ids.
        self._kept: dict[int, Data] = {}
        self._left_bytes = _MOST_BYTES

    def keep(self, modules: Iterable[ModuleType]) -> None:
        """Copy the global lists, byte arrays and arrays of modules, before the first test."""
        ndarray = getattr(sys.modules.get("numpy"), "ndarray", None)
        for module in modules:
            for name, value in [*vars(module).items()]:
                size_bytes = _size_bytes(value, ndarray)
                if not 0 < size_bytes <= min(_MOST_EACH_BYTES, self._left_bytes):
                    continue
                # Objects of the test must not live longer because of the copy.
                if type(value) is list and marshalled(value) is None:
                    continue
                self._left_bytes -= size_bytes
                self._kept[id(value)] = Data(name, value, _copy_of(value))

    def changed(self, reached: Iterable[int]) -> list[Data]:
        """
        Return the data that another test or a fixture has changed.

        Args:
            reached: The ids of the objects that a call reaches, before it is made for the
                first time.
        """
        if not self._kept:
            return []
        found = map(self._kept.get, reached)
        return [data for data in found if data is not None and data.is_reordered]


def _size_bytes(value: Any, ndarray: Any) -> int:  # noqa: ANN401 - any object, and a class of numpy or None
    """Return the size of data that can be copied and written again [B], or 0."""
    if type(value) in _COPIED:
        return sys.getsizeof(value) if len(value) else 0
    if type(value) is not ndarray or not value.ndim or value.dtype.hasobject:
        return 0
    return int(value.nbytes) if value.flags.writeable else 0


def notes(changed: Sequence[Data], probe: Probe) -> Iterator[Note]:
    """
    Yield a doubt if a call takes far longer on the content before the first test.

    Args:
        changed: The data that the call reaches and that were changed before it.

        probe: Calls the function again.
    """
    __tracebackhide__ = True
    now = [data._replace(copy=_copy_of(data.value)) for data in changed]
    try:
        # Both are written before each call, because copying evicts the processor's caches.
        now_s = _shortest_s(probe, now)
        first_s = _shortest_s(probe, changed)
    finally:
        _write(now)
    if _MOST_RATIO * now_s < first_s < inf:
        names = ", ".join(data.name for data in changed[:_NAMED])
        text = (
            f"{names} had other content before the first test, with which a call takes"
            f" {first_s / now_s:,.0f} times as long; give the test data of its own"
        )
        yield Note(code="new-content", text=text, doubt=True, full_s=first_s)


def _shortest_s(probe: Probe, contents: Sequence[Data]) -> float:
    return min(probe.time_s(partial(_write, contents)) for _ in range(_SHORTEST_OF))


def _write(contents: Iterable[Data]) -> None:
    for data in contents:
        data.value[_ALL] = data.copy


def _copy_of(value: Any) -> Any:  # noqa: ANN401 - a list, a buffer or an array
    return value[_ALL] if type(value) in _COPIED else value.copy()
