"""The base of all records, and what they refuse.

A frozen, slotted dataclass takes 0.7 ms to define and a run imports more than a hundred
of them; a Struct takes 0.02 ms and is made, compared and written ten times as fast.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

import msgspec

from pytest_gpuperf.errors import RecordError

__all__ = [
    "BulkRecord",
    "Frozen",
    "Mistake",
    "all_finite",
    "collector_paused",
    "encodable",
    "finite",
    "has_lone_surrogate",
    "no_number",
    "not_finite",
    "not_made",
    "positive",
    "refuse",
    "replace",
    "shown",
    "stated",
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


_T = TypeVar("_T")

_LARGEST = 1.7976931348623157e308  # the largest float, IEEE 754 binary64
_LONGEST = 40  # letters of a value that a message shows


class Mistake(Frozen, frozen=True, kw_only=True):
    """
    One thing that is wrong with an input.

    Attributes:
        path: The field, as `phases.h2d.pct`.

        text: What is wrong with it, as a fragment.
    """

    path: str
    text: str

    def __str__(self) -> str:
        """Return the fragment behind its field."""
        return f"{self.path}: {self.text}" if self.path else self.text


def shown(value: object) -> str:
    """Return a value for a message, shortened where it is long."""
    if isinstance(value, int) and not abs(value) <= _LARGEST:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def has_lone_surrogate(text: str) -> bool:
    """Return whether a text contains a lone surrogate, which UTF-8 cannot encode."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def no_number(value: object) -> str:
    """
    Return what keeps a value from being a finite number, as a fragment; "": nothing.

    A number of numpy is one; a bool is none, and neither is an integer that no float
    holds.

    Example:
        >>> no_number(1.5), no_number("1.5")
        ('', "'1.5' is not a number")
    """
    # most are floats, and Real is slow to ask
    if not isinstance(value, (float, Real)) or isinstance(value, bool):
        return f"{shown(value)} is not a number"
    try:
        is_finite = math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        is_finite = False
    return "" if is_finite else f"{shown(value)} is not a finite number"


def not_finite(path: str, numbers: object) -> Iterator[Mistake]:
    """
    Yield a mistake for everything that is not a finite number.

    Args:
        path: What the numbers belong to.

        numbers: Numbers by field; what is not a mapping is a mistake itself.
    """
    if not isinstance(numbers, Mapping):
        text = f"{shown(numbers)} does not give numbers by name"
        yield Mistake(path=path, text=text)
        return
    for field, number in numbers.items():
        wrong = no_number(number)
        if wrong:
            yield Mistake(path=f"{path}.{field}" if path else str(field), text=wrong)


def stated(values: Mapping[str, _T | None]) -> dict[str, _T]:
    """Return the values without those that are None: their source did not say."""
    return {name: value for name, value in values.items() if value is not None}


def not_made(path: str, value: object, kind: type, decoder: str) -> Iterator[Mistake]:
    """
    Yield a mistake where a record stands for which something else was given.

    Args:
        path: The argument.

        value: What was given.

        kind: The record that it must be.

        decoder: The function that makes one of parsed JSON.
    """
    if not isinstance(value, kind):
        text = f"{shown(value)} is not a {kind.__name__}; {decoder} makes one of JSON"
        yield Mistake(path=path, text=text)


def refuse(mistakes: Sequence[Mistake], *, remedy: str = "") -> None:
    """
    Refuse an input that has mistakes; one without any passes.

    Args:
        mistakes: All of them.

        remedy: One imperative sentence; "" for the general one.

    Raises:
        RecordError: There are some; the message names every one, the path is that of
            the first.
    """
    if not mistakes:
        return
    first, *rest = mistakes
    text = "; ".join([first.text, *map(str, rest)])
    raise RecordError(text, path=first.path, remedy=remedy)


def finite(path: str, *values: float | None) -> None:
    """
    Refuse NaN and infinity, and what is not a number at all.

    Args:
        path: The field, for the message.

        values: Numbers; None means that the source did not say, and passes.

    Raises:
        RecordError: One of them is not finite.
    """
    for value in values:
        if value is None or (type(value) is float and math.isfinite(value)):
            continue  # nearly always, and records are many
        wrong = no_number(value)
        if wrong:
            raise RecordError(wrong, path=path)


def all_finite(values: Sequence[float]) -> bool:
    """Return whether numbers are finite; False: ask `finite`, which names the wrong one."""
    try:  # a run has millions of samples: their sum tells of all at once
        return math.isfinite(sum(values))
    except (TypeError, OverflowError):  # no numbers; an integer that no float holds
        return False


def positive(path: str, *values: float | None) -> None:
    """
    Refuse what is zero, below it, or not finite.

    Args:
        path: The field, for the message.

        values: Numbers; None passes.

    Raises:
        RecordError: One of them is not above zero, or not finite.
    """
    finite(path, *values)
    for value in values:
        if value is not None and value <= 0:
            message = f"{value!r} is not above zero"
            raise RecordError(message, path=path)
