"""What the records of a run are made of.

A frozen, slotted dataclass takes 0.7 ms to define and a run imports more than a hundred
of them; a Struct takes 0.02 ms and is made, compared and written ten times as fast.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import TypeVar

import msgspec

__all__ = ["BulkRecord", "Frozen", "collector_paused", "replace"]


class Frozen(msgspec.Struct, frozen=True):
    """A record that cannot change; `kw_only=True` stands at each class of them."""


class BulkRecord(Frozen, frozen=True, gc=False):
    """
    A record of which a run holds tens of thousands.

    Twenty stored sessions of a thousand tests are 120,000 values: the garbage collector
    does not walk over these again and again. One must never be part of a cycle: nothing
    would find it.
    """


_S = TypeVar("_S", bound=msgspec.Struct)


def replace(record: _S, /, **changes: object) -> _S:
    """Return a record with other values in some of its fields."""
    return msgspec.structs.replace(record, **changes)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Collect no garbage meanwhile; for what makes many records and no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
