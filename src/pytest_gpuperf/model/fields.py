"""Parsed JSON read field by field, its mistakes collected."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.mistakes import Mistake, shown

__all__ = ["Fields", "load_json"]

_COUNT_END = 2**64  # counts are 64 bits wide and have no sign

_T = TypeVar("_T")


class _Pairs(dict[str, object]):
    """An object of a JSON text that remembers which of its fields came twice."""

    repeated: frozenset[str] = frozenset()


def load_json(text: bytes | str, *, path: str = "") -> object:
    """
    Return the builtins of a JSON text, for one of the decoders here.

    Args:
        text: JSON [UTF-8].

        path: The file, for messages.

    Returns:
        Builtins. Objects remember the fields that came twice: a decoder refuses them in
        a record and takes the last one in a map of names.

    Raises:
        RecordError: It is no JSON: NaN and Infinity are none.
    """
    try:
        return json.loads(
            text.decode() if isinstance(text, bytes) else text,
            object_pairs_hook=_pairs,
            parse_constant=_constant,
            parse_int=_whole,
        )
    except (ValueError, RecursionError) as error:
        message = f"not JSON ({error})"
        raise RecordError(message, path=path, remedy="give a JSON file") from error


class Fields:
    """
    The fields of one object; what is wrong with them is collected.

    A field that is wrong reads as nothing, zero or empty, so that reading goes on to the
    next mistake: what is built of it is thrown away.
    """

    def __init__(self, obj: object, path: str, mistakes: list[Mistake]) -> None:
        self._path = path
        self._mistakes = mistakes
        self._repeated = obj.repeated if isinstance(obj, _Pairs) else frozenset[str]()
        self._is_object = isinstance(obj, Mapping)
        self._fields = self._mapping(obj, path)

    def has(self, name: str) -> bool:
        """Return whether a field is there."""
        return name in self._fields

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number, its default where it is missing."""
        return self._read(name, 0.0, default, self._number)

    def optional_number(self, name: str) -> float | None:
        """Return a number, None where it is null or missing."""
        return None if self._fields.get(name) is None else self.number(name)

    def numbers(self, name: str, *, optional: bool = False) -> dict[str, float]:
        """Return numbers by name."""
        return {
            key: self._number(number, path)
            for key, number, path in self._items(name, optional=optional)
        }

    def number_list(self, name: str) -> tuple[float, ...]:
        """Return numbers in their order; none where the field is missing."""
        return tuple(
            self._number(each, path) for each, path in self._list(name, optional=True)
        )

    def count(self, name: str, default: int | None = None) -> int:
        """Return a whole number that is not below 0, its default where missing."""
        return self._read(name, 0, default, self._count)

    def text(self, name: str) -> str:
        """Return a text."""
        return self._read(name, "", None, self._text)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return texts in their order."""
        return tuple(self._text(each, path) for each, path in self._list(name))

    def optional_text(self, name: str) -> str | None:
        """Return a text, None where it is null or missing."""
        return None if self._fields.get(name) is None else self.text(name)

    def choice(self, name: str, kind: Callable[[str], _T], default: _T) -> _T:
        """Return one of few texts."""
        text = self.text(name)
        try:
            return kind(text)
        except ValueError:
            if isinstance(self._fields.get(name), str):
                self._wrong(self._at(name), f"{text!r} is not one of its values")
            return default

    def texts_by_name(self, name: str) -> dict[str, str]:
        """Return texts by name; none where the field is missing."""
        items = self._items(name, optional=True)
        return {key: self._text(each, path) for key, each, path in items}

    def record(self, name: str) -> Fields:
        """Return an object."""
        return Fields(self._fields.get(name), self._at(name), self._mistakes)

    def objects(self, name: str, *, optional: bool = False) -> list[Fields]:
        """Return objects in their order."""
        listed = self._list(name, optional=optional)
        return [Fields(each, path, self._mistakes) for each, path in listed]

    def objects_by_name(self, name: str) -> dict[str, Fields]:
        """Return objects by name; none where the field is missing."""
        return {
            key: Fields(each, path, self._mistakes)
            for key, each, path in self._items(name, optional=True)
        }

    def entries(self, name: str, length: int) -> list[Fields]:
        """Return lists of one length, each with its places as field names."""
        found = []
        for each, path in self._list(name):
            values = self._listed(each, path)
            if len(values) == length:
                named = {str(place): value for place, value in enumerate(values)}
                found.append(Fields(named, path, self._mistakes))
            elif isinstance(each, list | tuple):
                text = f"{len(values)} values where there must be {length}"
                self._wrong(path, text)
        return found

    def _read(
        self,
        name: str,
        nothing: _T,
        default: _T | None,
        read: Callable[[object, str], _T],
    ) -> _T:
        """Return a field as its reader reads it."""
        path = self._at(name)
        if name in self._repeated:
            self._wrong(path, "it is there twice")
        if name in self._fields:
            return read(self._fields[name], path)
        if default is not None:
            return default
        if self._is_object:  # else that is what is wrong
            self._wrong(path, "it is missing")
        return nothing

    def _items(self, name: str, *, optional: bool) -> list[tuple[str, object, str]]:
        """Return keys, values and paths of a map."""
        nothing: Mapping[str, object] = {}
        default = nothing if optional else None
        found = self._read(name, nothing, default, self._mapping)
        return [(key, each, f"{self._at(name)}.{key}") for key, each in found.items()]

    def _list(self, name: str, *, optional: bool = False) -> list[tuple[object, str]]:
        """Return values and paths of a list."""
        nothing: list[object] = []
        default = nothing if optional else None
        found = self._read(name, nothing, default, self._listed)
        return [(each, f"{self._at(name)}[{at}]") for at, each in enumerate(found)]

    def _mapping(self, value: object, path: str) -> Mapping[str, object]:
        """Return an object's fields."""
        if isinstance(value, Mapping):
            return {self._text(key, path): each for key, each in value.items()}
        self._wrong(path, f"{_named(value)} is not an object")
        return {}

    def _listed(self, value: object, path: str) -> list[object]:
        """Return a list's values."""
        if isinstance(value, list | tuple):
            return list(value)
        self._wrong(path, f"{_named(value)} is not a list")
        return []

    def _number(self, value: object, path: str) -> float:
        """Return a finite number."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            self._wrong(path, f"{_named(value)} is not a number")
            return 0.0
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            self._wrong(path, f"{_named(value)} is not a finite number")
            return 0.0
        return number

    def _count(self, value: object, path: str) -> int:
        """Return a whole number that is not below 0."""
        whole = not isinstance(value, bool)  # True is 1 in Python, not in JSON
        if isinstance(value, int) and whole and 0 <= value < _COUNT_END:
            return value
        self._wrong(path, f"{_named(value)} is not a whole number from 0")
        return 0

    def _text(self, value: object, path: str) -> str:
        """Return a text that can be written as UTF-8."""
        if not isinstance(value, str):
            self._wrong(path, f"{_named(value)} is not a text")
            return ""
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            self._wrong(path, f"{value!a} holds half a character")
        return value

    def _at(self, name: str) -> str:
        """Return the path of a field."""
        return f"{self._path}.{name}" if self._path else name

    def _wrong(self, path: str, text: str) -> None:
        """Keep a mistake."""
        self._mistakes.append(Mistake(path=path, text=text))


def _pairs(pairs: list[tuple[str, object]]) -> _Pairs:
    """Return an object of a JSON text; of a field that came twice the last one."""
    found = _Pairs(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        found.repeated = frozenset(name for name in counts if counts[name] > 1)
    return found


def _whole(digits: str) -> int | float:
    """Return a whole number; minus zero is a float, and so no count."""
    return -0.0 if digits == "-0" else int(digits)


def _constant(word: str) -> float:
    """Refuse NaN and Infinity, which JSON does not have."""
    message = f"{word} is no JSON"
    raise ValueError(message)


def _named(value: object) -> str:
    """Return a value of JSON for a message."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else shown(value)
