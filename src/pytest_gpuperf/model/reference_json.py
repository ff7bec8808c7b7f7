"""Step profiles, scorecards and parity in the JSON of other tools.

Files are accepted like in the tools' Rust reader (serde_json): unknown fields are
ignored, an integer may stand for a float, null never stands for a number, and a record
has each field at most once. Fields and types are those of the records.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache, partial
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.frozen import (
    Frozen,
    Mistake,
    has_lone_surrogate,
    no_number,
    refuse,
    replace,
    shown,
    to_builtins,
)
from pytest_gpuperf.model.parity import ParityComparison, ParityProfile
from pytest_gpuperf.model.roofline import Grade
from pytest_gpuperf.model.sample import SourceLabel
from pytest_gpuperf.model.scorecard import Hardware, Recommendation, TrainingScorecard
from pytest_gpuperf.model.steps import StepProfile

_REMEDY = "correct the file, or the program that wrote it"
_COUNT_END = 2**64  # Counts are unsigned and 64 bits wide.

# Computed fields, which no file has.
_COMPUTED = frozenset(
    {"absent", "launch_fraction", "peak_throughput_tok_s", "transfer_fraction"}
)
# Fields that only pytest-gpuperf reads. Other tools ignore them.
_OF_PROFILES = ("step_ms", "device", "counters", "machine")
_OF_PHASES = ("kind", "exclusive_ms")
_OF_HARDWARE = ("peak_flop_per_s", "flop_per_token", "source", "sources")
_OURS = frozenset({*_OF_PROFILES, *_OF_PHASES, *_OF_HARDWARE})

_LABEL = SourceLabel | str
_NUMBERS = ("peak_bw_gb_s", "bytes_per_token", "peak_flop_per_s", "flop_per_token")

_T = TypeVar("_T")
_Fault = Callable[[object], str]  # Returns the mistake of a value, or "".
_Maker = Callable[[Any], object]

# Cached, because it evaluates the types on every call.
_fields_of = cache(msgspec.structs.fields)


def load_json(text: bytes | str, *, path: str = "") -> object:
    """
    Parse a JSON text, for the decoders of this module.

    Args:
        text: JSON [UTF-8].

        path: The file, for messages.

    Returns:
        Builtins. Objects remember duplicate keys. A decoder rejects duplicates in a
        record and uses the last one in a map of names.

    Raises:
        RecordError: The text is not JSON. NaN and Infinity are not JSON.
    """
    if not text.strip():
        raise RecordError("it is empty", path=path, remedy="give a JSON file")
    try:
        return json.loads(
            text.decode() if isinstance(text, bytes) else text,
            object_pairs_hook=_Pairs,
            parse_constant=_constant,
            # Minus zero becomes a float, so that it is not accepted as a count.
            parse_int=lambda digits: -0.0 if digits == "-0" else int(digits),
        )
    except (ValueError, RecursionError) as error:
        message = f"it is not JSON ({error})"
        raise RecordError(message, path=path, remedy="give a JSON file") from error


def decode_step_profile(obj: object, *, ours: bool = False) -> StepProfile:
    """
    Convert JSON to a step profile.

    Args:
        obj: The parsed object, or its text. Any of its fields may be missing.

        ours: Whether to read fields that only pytest-gpuperf knows: `step_ms`,
            `device`, `counters`, `machine`, and `kind` and `exclusive_ms` of phases.
            Otherwise they are ignored, as in other tools.

    Raises:
        RecordError: The JSON has mistakes that other readers reject too. The error
            lists all of them.
    """
    loose = _loaded(obj)
    profile = _decoded(loose, StepProfile, ours=ours)
    names = {*StepProfile.__struct_fields__} - _COMPUTED - _OURS
    absent = names.difference(loose if isinstance(loose, Mapping) else ())
    return replace(profile, absent=frozenset(absent))


def decode_hardware(obj: object, *, ours: bool = False) -> Hardware:
    """
    Convert JSON to hardware.

    Args:
        obj: The parsed object, or its text, with `peak_bw_gb_s` and `bytes_per_token`.

        ours: Whether to read fields that only pytest-gpuperf knows: `peak_flop_per_s`,
            `flop_per_token`, and the labels `source` and `sources`.

    Raises:
        RecordError: The JSON has mistakes that other readers reject too. The error
            lists all of them.
    """
    return _decoded(_loaded(obj), Hardware, ours=ours)


def decode_scorecard(obj: object) -> TrainingScorecard:
    """
    Convert JSON to a scorecard.

    Args:
        obj: The parsed object, or its text, with all of its fields. The grade may be
            any text.

    Raises:
        RecordError: The JSON has mistakes that other readers reject too. The error
            lists all of them.
    """
    return _decoded(_loaded(obj), TrainingScorecard, complete=True)


def decode_parity_profile(obj: object) -> ParityProfile:
    """
    Convert JSON to one side of a parity comparison.

    Args:
        obj: The parsed object, or its text, with all of its fields.

    Raises:
        RecordError: The JSON has mistakes that other readers reject too. The error
            lists all of them.
    """
    return _decoded(_loaded(obj), ParityProfile, complete=True)


def encode_scorecard(scorecard: TrainingScorecard) -> dict[str, Any]:
    """
    Convert a scorecard to builtins with the field names of other tools.

    Numbers that overflowed stay infinite. JSON cannot represent them, so a writer puts
    null, which no reader accepts.
    """
    plain = _encoded(scorecard)
    return plain | {
        "recommendations": [advice.text for advice in scorecard.recommendations]
    }


def encode_step_profile(profile: StepProfile) -> dict[str, Any]:
    """
    Convert a step profile to builtins with the field names of other tools.

    Known fields that only pytest-gpuperf reads are included. Fields that the source did
    not have are left out again.
    """
    plain = _encoded(profile)
    unknown = {name for name in _OF_PROFILES if not plain[name]}
    return {name: plain[name] for name in plain if name not in profile.absent | unknown}


def encode_parity(comparison: ParityComparison) -> dict[str, Any]:
    """Convert a parity comparison to builtins with the field names of other tools."""
    return _encoded(comparison)


def _encoded(record: Frozen) -> dict[str, Any]:
    return {
        name: [*value] if isinstance(value, tuple) else value
        for name, value in to_builtins(record).items()
        if name not in _COMPUTED
    }


def _loaded(obj: object) -> object:
    return load_json(obj) if isinstance(obj, str | bytes) else obj


def _decoded(
    obj: object, kind: type[_T], *, ours: bool = False, complete: bool = False
) -> _T:
    """Convert an object to a record. Raises RecordError with all mistakes of the object."""
    reader = _FieldReader(_COMPUTED if ours else _COMPUTED | _OURS, complete=complete)
    record: _T = reader.read(obj, kind, "")
    refuse(reader.mistakes, remedy=_REMEDY)
    return record


class _FieldReader:
    """
    Converts parsed JSON to the types of record fields, and collects mistakes.

    A wrong value becomes None or empty, so that reading continues to the next mistake.
    """

    def __init__(self, ignored: frozenset[str], *, complete: bool) -> None:
        self.mistakes: list[Mistake] = []
        self._ignored = ignored
        self._complete = complete  # Whether fields with a default are also required.

    def read(self, value: object, kind: Any, path: str) -> Any:  # noqa: ANN401 - what `kind` says
        """Convert a value to a type."""
        if kind in _LEAVES:
            return self._leaf(value, *_LEAVES[kind], path)
        origin, inner = get_origin(kind), get_args(kind)
        if origin is tuple:
            items = self._items(value, path)
            return tuple(self.read(item, inner[0], at) for item, at in items)
        if origin is Mapping:
            pairs = self._pairs(value, path) or {}
            # A file may label numbers that hardware does not have.
            names = _NUMBERS if inner[1] == _LABEL else pairs
            return {
                name: self.read(pairs[name], inner[1], f"{path}.{name}")
                for name in pairs
                if name in names
            }
        if type(None) in inner:
            return None if value is None else self.read(value, inner[0], path)
        if issubclass(kind, Enum):
            return self._leaf(value, partial(_not_in, kind), kind, path)
        before = len(self.mistakes)
        is_list = kind.__struct_config__.array_like
        fields_of = self._fields_of_list if is_list else self._fields_of_object
        fields = fields_of(value, kind, path)
        return kind(**fields) if len(self.mistakes) == before else None

    def _leaf(self, value: object, fault: _Fault, made_of: _Maker, path: str) -> object:
        wrong = fault(value)
        if wrong:
            self._wrong(path, wrong)
            return None
        return made_of(value)

    def _fields_of_object(
        self, value: object, kind: type[Frozen], path: str
    ) -> dict[str, object]:
        read: dict[str, object] = {}
        pairs = self._pairs(value, path)
        for field in _fields_of(kind) if pairs is not None else ():
            if field.name in self._ignored:
                continue
            at = f"{path}.{field.name}" if path else field.name
            if field.name in getattr(pairs, "repeated", ()):
                self._wrong(at, "it is there twice")
            if pairs is not None and field.name in pairs:
                read[field.name] = self.read(pairs[field.name], field.type, at)
            elif field.required or self._complete:
                self._wrong(at, "it is missing")
        return read

    def _fields_of_list(
        self, value: object, kind: type[Frozen], path: str
    ) -> dict[str, object]:
        items, fields = self._items(value, path), _fields_of(kind)
        if len(items) == len(fields):
            return {
                field.name: self.read(item, field.type, at)
                for field, (item, at) in zip(fields, items, strict=True)
            }
        if isinstance(value, list | tuple):
            text = f"{len(items)} values where there must be {len(fields)}"
            self._wrong(path, text)
        return {}

    def _pairs(self, value: object, path: str) -> Mapping[str, object] | None:
        if not isinstance(value, Mapping):
            self._wrong(path, f"{_spelled(value)} is not an object")
            return None
        for key in value:
            self.read(key, str, path)
        return value

    def _items(self, value: object, path: str) -> list[tuple[object, str]]:
        if not isinstance(value, list | tuple):
            self._wrong(path, f"{_spelled(value)} is not a list")
            return []
        return [(item, f"{path}[{index}]") for index, item in enumerate(value)]

    def _wrong(self, path: str, text: str) -> None:
        self.mistakes.append(Mistake(path=path, text=text))


class _Pairs(dict[str, object]):
    """An object of a JSON text that remembers duplicate keys."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        self.repeated: frozenset[str] = frozenset()
        if len(self) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            self.repeated = frozenset(name for name in counts if counts[name] > 1)


def _not_a_number(value: object) -> str:
    """Return why a value is not a finite number, or "" if valid."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return f"{_spelled(value)} is not a number"
    return no_number(value)


def _not_a_count(value: object) -> str:
    """Return why a value is not a 64-bit unsigned integer, or "" if valid."""
    is_bool = isinstance(value, bool)
    if isinstance(value, int) and not is_bool and 0 <= value < _COUNT_END:
        return ""
    return f"{_spelled(value)} is not a whole number from 0"


def _not_a_text(value: object) -> str:
    """Return why a value is not a text that UTF-8 can encode, or "" if valid."""
    if not isinstance(value, str):
        return f"{_spelled(value)} is not a text"
    return f"{value!a} contains a lone surrogate" if has_lone_surrogate(value) else ""


def _not_in(kind: type[Enum], value: object) -> str:
    values = [member.value for member in kind]
    return _not_a_text(value) or (
        "" if value in values else f"{value!r} is not one of its values"
    )


_LEAVES: Mapping[object, tuple[_Fault, _Maker]] = {
    float: (_not_a_number, float),
    int: (_not_a_count, int),
    str: (_not_a_text, str),
    _LABEL: (partial(_not_in, SourceLabel), SourceLabel),
    Grade | str: (
        _not_a_text,
        lambda text: Grade(text) if text in Grade.__members__ else text,
    ),
    Recommendation: (_not_a_text, lambda text: Recommendation(text=text)),
}


def _spelled(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else shown(value)


def _constant(word: str) -> float:
    """Raise ValueError for NaN and Infinity, because JSON does not have them."""
    message = f"{word} is not JSON"
    raise ValueError(message)
