"""Step profiles, scorecards and parity in the JSON of other tools.

What is read is what the Rust reader of these files takes (serde_json): unknown fields
are ignored, an integer stands for a float, null never stands for a number, and a record
has each field once. The records themselves say which fields there are, of which type.
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

__all__ = [
    "decode_hardware",
    "decode_parity_profile",
    "decode_scorecard",
    "decode_step_profile",
    "encode_parity",
    "encode_scorecard",
    "encode_step_profile",
    "load_json",
]

_REMEDY = "correct the file, or the program that wrote it"
_COUNT_END = 2**64  # counts are unsigned and 64 bits wide

# fields that no file has: they are computed
_COMPUTED = frozenset(
    {"absent", "launch_fraction", "peak_throughput_tok_s", "transfer_fraction"}
)
# fields that only pytest-gpuperf reads; other tools ignore them
_OF_PROFILES = ("step_ms", "device", "counters", "machine")
_OF_PHASES = ("kind", "exclusive_ms")
_OF_HARDWARE = ("peak_flop_per_s", "flop_per_token", "source", "sources")
_OURS = frozenset({*_OF_PROFILES, *_OF_PHASES, *_OF_HARDWARE})

_LABEL = SourceLabel | str
_NUMBERS = ("peak_bw_gb_s", "bytes_per_token", "peak_flop_per_s", "flop_per_token")

_T = TypeVar("_T")
_Fault = Callable[[object], str]  # what is wrong with a value; "": nothing
_Maker = Callable[[Any], object]

_fields_of = cache(msgspec.structs.fields)  # it evaluates the types each time


def load_json(text: bytes | str, *, path: str = "") -> object:
    """
    Return the builtins of a JSON text, for one of the decoders here.

    Args:
        text: JSON [UTF-8].

        path: The file, for messages.

    Returns:
        Builtins. Objects remember duplicate keys: a decoder refuses them in a record and
        takes the last one in a map of names.

    Raises:
        RecordError: It is not JSON; NaN and Infinity are not.
    """
    if not text.strip():
        raise RecordError("it is empty", path=path, remedy="give a JSON file")
    try:
        return json.loads(
            text.decode() if isinstance(text, bytes) else text,
            object_pairs_hook=_Pairs,
            parse_constant=_constant,
            parse_int=_integer,
        )
    except (ValueError, RecursionError) as error:
        message = f"it is not JSON ({error})"
        raise RecordError(message, path=path, remedy="give a JSON file") from error


def decode_step_profile(obj: object, *, ours: bool = False) -> StepProfile:
    """
    Return the step profile of JSON.

    Args:
        obj: The parsed object, or its text; all of its fields may be missing.

        ours: Whether to read also what only pytest-gpuperf knows: `step_ms`, `device`,
            `counters`, `machine`, and of a phase `kind` and `exclusive_ms`. Other tools
            ignore these, and so does this without it.

    Raises:
        RecordError: What other readers refuse too; all mistakes are named.
    """
    loose = _loaded(obj)
    profile = _decoded(loose, StepProfile, ours=ours)
    names = {*StepProfile.__struct_fields__} - _COMPUTED - _OURS
    absent = names.difference(loose if isinstance(loose, Mapping) else ())
    return replace(profile, absent=frozenset(absent))


def decode_hardware(obj: object, *, ours: bool = False) -> Hardware:
    """
    Return the hardware of JSON.

    Args:
        obj: The parsed object, or its text: `peak_bw_gb_s`, `bytes_per_token`.

        ours: Whether to read also what only pytest-gpuperf knows: `peak_flop_per_s`,
            `flop_per_token`, and `source` and `sources`, which label the numbers.

    Raises:
        RecordError: What other readers refuse too; all mistakes are named.
    """
    return _decoded(_loaded(obj), Hardware, ours=ours)


def decode_scorecard(obj: object) -> TrainingScorecard:
    """
    Return the scorecard of JSON.

    Args:
        obj: The parsed object, or its text, with all of its fields; the grade may be
            any text.

    Raises:
        RecordError: What other readers refuse too; all mistakes are named.
    """
    return _decoded(_loaded(obj), TrainingScorecard, complete=True)


def decode_parity_profile(obj: object) -> ParityProfile:
    """
    Return one side of a parity comparison.

    Args:
        obj: The parsed object, or its text, with all of its fields.

    Raises:
        RecordError: What other readers refuse too; all mistakes are named.
    """
    return _decoded(_loaded(obj), ParityProfile, complete=True)


def encode_scorecard(scorecard: TrainingScorecard) -> dict[str, Any]:
    """
    Return a scorecard as builtins, under the names that other tools use.

    Numbers that overflowed stay infinite: JSON has no word for them, so a writer puts
    null, which no reader takes.
    """
    plain = _encoded(scorecard)
    return plain | {
        "recommendations": [advice.text for advice in scorecard.recommendations]
    }


def encode_step_profile(profile: StepProfile) -> dict[str, Any]:
    """
    Return a step profile as builtins, under the names that other tools use.

    What only pytest-gpuperf reads stands beside them where it is known; a field that the
    source did not have is left out again.
    """
    plain = _encoded(profile)
    unknown = {name for name in _OF_PROFILES if not plain[name]}
    return {name: plain[name] for name in plain if name not in profile.absent | unknown}


def encode_parity(comparison: ParityComparison) -> dict[str, Any]:
    """Return a parity comparison as builtins, under the names that other tools use."""
    return _encoded(comparison)


def _encoded(record: Frozen) -> dict[str, Any]:
    """Return the fields of a record that a file has."""
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
    """Return the record of an object, or refuse the object with all of its mistakes."""
    reader = _FieldReader(_COMPUTED if ours else _COMPUTED | _OURS, complete=complete)
    record: _T = reader.read(obj, kind, "")
    refuse(reader.mistakes, remedy=_REMEDY)
    return record


class _FieldReader:
    """
    Parsed JSON as values of the types of records; collects what is wrong with it.

    A wrong value reads as None or empty, so that reading goes on to the next mistake.
    """

    def __init__(self, ignored: frozenset[str], *, complete: bool) -> None:
        self.mistakes: list[Mistake] = []
        self._ignored = ignored
        self._complete = complete  # whether fields with a default are required too

    def read(self, value: object, kind: Any, path: str) -> Any:  # noqa: ANN401 - what `kind` says
        """Return a value of a type."""
        if kind in _LEAVES:
            return self._leaf(value, *_LEAVES[kind], path)
        origin, inner = get_origin(kind), get_args(kind)
        if origin is tuple:
            items = self._items(value, path)
            return tuple(self.read(item, inner[0], at) for item, at in items)
        if origin is Mapping:
            return self._mapping(value, inner[1], path)
        if type(None) in inner:
            return None if value is None else self.read(value, inner[0], path)
        if issubclass(kind, Enum):
            return self._leaf(value, partial(_not_in, kind), kind, path)
        return self._record(value, kind, path)

    def _leaf(self, value: object, fault: _Fault, made_of: _Maker, path: str) -> object:
        """Return what is made of a value that has no fault."""
        wrong = fault(value)
        if wrong:
            self._wrong(path, wrong)
            return None
        return made_of(value)

    def _record(self, value: object, kind: type[Frozen], path: str) -> Frozen | None:
        """Return a record, of an object or, where files have it so, of a list."""
        before = len(self.mistakes)
        is_list = kind.__struct_config__.array_like
        read = self._fields_of_list if is_list else self._fields_of_object
        fields = read(value, kind, path)
        return kind(**fields) if len(self.mistakes) == before else None

    def _fields_of_object(
        self, value: object, kind: type[Frozen], path: str
    ) -> dict[str, object]:
        """Return the fields of a record by name."""
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
        """Return the fields of a record that is a list, by name."""
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

    def _mapping(self, value: object, kind: object, path: str) -> dict[str, object]:
        """Return values of one type by name."""
        pairs = self._pairs(value, path) or {}
        # a file may label numbers that hardware does not have
        names = _NUMBERS if kind == _LABEL else pairs
        return {
            name: self.read(pairs[name], kind, f"{path}.{name}")
            for name in pairs
            if name in names
        }

    def _pairs(self, value: object, path: str) -> Mapping[str, object] | None:
        """Return an object's values by key."""
        if not isinstance(value, Mapping):
            self._wrong(path, f"{_spelled(value)} is not an object")
            return None
        for key in value:
            self.read(key, str, path)
        return value

    def _items(self, value: object, path: str) -> list[tuple[object, str]]:
        """Return a list's values with their paths."""
        if not isinstance(value, list | tuple):
            self._wrong(path, f"{_spelled(value)} is not a list")
            return []
        return [(item, f"{path}[{index}]") for index, item in enumerate(value)]

    def _wrong(self, path: str, text: str) -> None:
        self.mistakes.append(Mistake(path=path, text=text))


class _Pairs(dict[str, object]):
    """An object of a JSON text that remembers its duplicate keys."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        self.repeated: frozenset[str] = frozenset()
        if len(self) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            self.repeated = frozenset(name for name in counts if counts[name] > 1)


def _not_a_number(value: object) -> str:
    """Return why a value is not a finite number; "" where it is one."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return f"{_spelled(value)} is not a number"
    return no_number(value)


def _not_a_count(value: object) -> str:
    """Return why a value is not an integer from 0; "" where it is one."""
    is_bool = isinstance(value, bool)
    if isinstance(value, int) and not is_bool and 0 <= value < _COUNT_END:
        return ""
    return f"{_spelled(value)} is not a whole number from 0"


def _not_a_text(value: object) -> str:
    """Return why a value is not a text that UTF-8 can encode; "" where it is one."""
    if not isinstance(value, str):
        return f"{_spelled(value)} is not a text"
    return f"{value!a} contains a lone surrogate" if has_lone_surrogate(value) else ""


def _not_in(kind: type[Enum], value: object) -> str:
    """Return why a value is not one of an enum's; "" where it is one."""
    values = [member.value for member in kind]
    return _not_a_text(value) or (
        "" if value in values else f"{value!r} is not one of its values"
    )


def _grade(text: str) -> Grade | str:
    """Return a grade, or the text that is not one."""
    return Grade(text) if text in Grade.__members__ else text


def _recommendation(text: str) -> Recommendation:
    """Return an advice, of which a file has the text alone."""
    return Recommendation(text=text)


_LEAVES: Mapping[object, tuple[_Fault, _Maker]] = {
    float: (_not_a_number, float),
    int: (_not_a_count, int),
    str: (_not_a_text, str),
    _LABEL: (partial(_not_in, SourceLabel), SourceLabel),
    Grade | str: (_not_a_text, _grade),
    Recommendation: (_not_a_text, _recommendation),
}


def _spelled(value: object) -> str:
    """Return a value of JSON for a message."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else shown(value)


def _integer(digits: str) -> int | float:
    """Return an integer; minus zero is a float, and so not a count."""
    return -0.0 if digits == "-0" else int(digits)


def _constant(word: str) -> float:
    """Refuse NaN and Infinity, which JSON does not have."""
    message = f"{word} is not JSON"
    raise ValueError(message)
