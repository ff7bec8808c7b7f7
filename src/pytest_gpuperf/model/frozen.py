"""What the records of a run are made of.

A frozen, slotted dataclass takes 0.7 ms to define and a run imports more than a hundred
of them; a Struct takes 0.02 ms and is made, compared and written ten times as fast.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

import msgspec

__all__ = [
    "BulkRecord",
    "Frozen",
    "collector_paused",
    "encodable",
    "replace",
    "to_builtins",
]


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


def to_builtins(value: object) -> Any:  # noqa: ANN401 - JSON-like builtins have no type
    """Return a record as dicts, lists, strings and numbers: what may leave a worker."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=encodable)


def encodable(value: object) -> object:
    """
    Return what msgspec can encode instead of a value that it does not know.

    Raises:
        NotImplementedError: It is neither a mapping nor a number.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Real):  # of numpy
        return int(value) if isinstance(value, Integral) else float(value)
    message = f"a record holds a {type(value).__name__}"
    raise NotImplementedError(message)


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
