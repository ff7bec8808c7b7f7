"""Base classes of all records, and checks of their fields.

A frozen, slotted dataclass takes 0.7 ms to define and a run imports more than a hundred
of them; a Struct takes 0.02 ms and is made, compared and written ten times as fast.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

import msgspec

from pytest_gpuperf.errors import RecordError

# The errors of a text that is not in its format, not UTF-8, or nested too deeply.
UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)


class Frozen(msgspec.Struct, frozen=True):
    """An immutable record. Each subclass sets `kw_only=True` itself."""


class BulkRecord(Frozen, frozen=True, gc=False):
    """
    A record class with tens of thousands of instances in a run.

    Twenty stored sessions of a thousand tests are 120,000 values, and the garbage
    collector does not track instances of this class. An instance must never be part of
    a cycle, because the cycle would never be freed.
    """


_S = TypeVar("_S", bound=msgspec.Struct)


def replace(record: _S, /, **changes: object) -> _S:
    """Return a copy of a record with some fields replaced."""
    return msgspec.structs.replace(record, **changes)


# For a field of a record that is not in use yet.
force_setattr = msgspec.structs.force_setattr


def with_checked(records: Iterable[_S], /, **columns: Iterable[object]) -> list[_S]:
    """
    Return copies of records with fields that the caller has checked.

    `replace` runs the checks of the class again, which takes most of its time, and a run
    converts every stored value of every test.

    Args:
        records: The records.

        columns: By field, the value of each record.
    """
    copies: list[_S] = []
    # A loop, because each comprehension of each test is a call.
    for record in records:
        copies.append(record.__copy__())  # type: ignore[attr-defined] # noqa: PERF401 - not in msgspec's stubs
    for name, values in columns.items():
        for copied, value in zip(copies, values, strict=True):
            msgspec.structs.force_setattr(copied, name, value)
    return copies


def to_builtins(value: object) -> Any:  # noqa: ANN401 - JSON-like builtins have no type
    """Convert a record to dicts, lists, strings and numbers, as sent from xdist workers."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=encodable)


def encodable(value: object) -> object:
    """
    Convert a value that msgspec does not know to an encodable value.

    Raises:
        NotImplementedError: The value is neither a mapping nor a number.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Real):  # A number of numpy.
        return int(value) if isinstance(value, Integral) else float(value)
    message = f"a record holds a {type(value).__name__}"
    raise NotImplementedError(message)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause garbage collection, for code that creates many records and no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            # Otherwise the next object may have the collector look at all objects of the
            # process, because this code has made many.
            gc.collect(0)
            gc.enable()


_T = TypeVar("_T")

_LARGEST = 1.7976931348623157e308  # The largest float of IEEE 754 binary64.
_LONGEST = 40  # Characters of a value in a message.


class Mistake(Frozen, frozen=True, kw_only=True):
    """
    A mistake in an input.

    Attributes:
        path: The field, as `phases.h2d.pct`.

        text: The mistake, as a fragment.
    """

    path: str
    text: str

    def __str__(self) -> str:
        """Return the field and the fragment."""
        return f"{self.path}: {self.text}" if self.path else self.text


def shown(value: object) -> str:
    """Return a value for a message, shortened if necessary."""
    if isinstance(value, int) and not abs(value) <= _LARGEST:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def has_lone_surrogate(text: str) -> bool:
    """Return True if a text contains a lone surrogate, which UTF-8 cannot encode."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def no_number(value: object) -> str:
    """
    Return why a value is not a finite number, as a fragment, or "" if the value is
    valid.

    Numbers of numpy are valid. Bools and integers too large for a float are not.

    Example:
        >>> no_number(1.5), no_number("1.5")
        ('', "'1.5' is not a number")
    """
    # Most are floats, and the check for Real is slow.
    if not isinstance(value, (float, Real)) or isinstance(value, bool):
        return f"{shown(value)} is not a number"
    try:
        is_finite = math.isfinite(value)
    except OverflowError:  # An integer too large for a float.
        is_finite = False
    return "" if is_finite else f"{shown(value)} is not a finite number"


def not_finite(path: str, numbers: object) -> Iterator[Mistake]:
    """
    Yield a mistake for every value that is not a finite number.

    Args:
        path: Name of the object with the numbers.

        numbers: Numbers by field. Anything but a mapping is a mistake itself.
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
    """
    Return the values that are not None. None means that the source does not state the
    value.
    """
    return {name: value for name, value in values.items() if value is not None}


def not_made(path: str, value: object, kind: type, decoder: str) -> Iterator[Mistake]:
    """
    Yield a mistake if a value is not the required record.

    Args:
        path: The argument.

        value: The given value.

        kind: The required record class.

        decoder: The function that creates such a record from parsed JSON.
    """
    if not isinstance(value, kind):
        text = f"{shown(value)} is not a {kind.__name__}; {decoder} makes one of JSON"
        yield Mistake(path=path, text=text)


def refuse(mistakes: Sequence[Mistake], *, remedy: str = "") -> None:
    """
    Raise if an input has mistakes.

    Args:
        mistakes: All mistakes, or empty.

        remedy: One imperative sentence, or "" for the default remedy.

    Raises:
        RecordError: There are mistakes. The message lists all of them, and the path is
            that of the first.
    """
    if not mistakes:
        return
    first, *rest = mistakes
    text = "; ".join([first.text, *map(str, rest)])
    raise RecordError(text, path=first.path, remedy=remedy)


def finite(path: str, *values: float | None) -> None:
    """
    Raise for numbers that are not finite, and for values that are not numbers.

    Args:
        path: The field, for the message.

        values: Numbers. None means that the source does not state the value, and
            passes.

    Raises:
        RecordError: A value is not a finite number.
    """
    for value in values:
        if value is None or (type(value) is float and math.isfinite(value)):
            continue  # The common case, and there are many records.
        wrong = no_number(value)
        if wrong:
            raise RecordError(wrong, path=path)


def all_finite(values: Sequence[float]) -> bool:
    """
    Return True if all numbers are certainly finite. Otherwise, call `finite` to be
    sure.
    """
    try:  # A run has millions of samples, and a sum checks all at once.
        return math.isfinite(sum(values))
    except (TypeError, OverflowError):
        # Not numbers, or an integer too large for a float.
        return False


def positive(path: str, *values: float | None) -> None:
    """
    Raise for numbers that are not finite or not above zero.

    Args:
        path: The field, for the message.

        values: Numbers. None passes.

    Raises:
        RecordError: A value is not a finite number above zero.
    """
    finite(path, *values)
    for value in values:
        if value is not None and value <= 0:
            message = f"{value!r} is not above zero"
            raise RecordError(message, path=path)
