"""Records as JSON and back, the only place that does it.

Schema of a run: 2 — comparisons with a revision. 3 — what a value is of: machine, branch,
shard and collection of its session, parameters and source of its test; all optional, so that
a run of the second is one without any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from pytest_gpuperf.errors import RecordError, SchemaVersionError
from pytest_gpuperf.model.frozen import collector_paused, encodable, to_builtins
from pytest_gpuperf.model.run import Run

if TYPE_CHECKING:
    from pytest_gpuperf.model.reference_json import (
        decode_hardware,
        decode_parity_profile,
        decode_scorecard,
        decode_step_profile,
        encode_parity,
        encode_scorecard,
        encode_step_profile,
    )

__all__ = [
    "SCHEMA_VERSION",
    "decode_hardware",
    "decode_parity_profile",
    "decode_run",
    "decode_scorecard",
    "decode_step_profile",
    "encode_parity",
    "encode_run",
    "encode_scorecard",
    "encode_step_profile",
    "from_builtins",
    "from_text",
    "run_schema",
    "to_builtins",
    "to_text",
]

SCHEMA_VERSION = "pytest-gpuperf/run/3"
_READABLE = frozenset({SCHEMA_VERSION, "pytest-gpuperf/run/2"})
_RUNS, _BASELINES = "pytest-gpuperf/run/", "pytest-gpuperf/baseline/"

_REMEDY = "give a file written by --gpuperf-json"
# what a text that is not JSON, no UTF-8, or a million brackets deep makes the library raise
_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)

_T = TypeVar("_T")


def __getattr__(name: str) -> object:
    """Return a function of `reference_json`, which no measured run needs."""
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from pytest_gpuperf.model import reference_json

    return getattr(reference_json, name)


def from_builtins(value: object, kind: type[_T], *, path: str = "") -> _T:
    """
    Return the record that `to_builtins` was given.

    Args:
        value: Dicts, lists, strings and numbers; extra keys are let through.

        kind: The record's class.

        path: What to call it in a message.

    Raises:
        RecordError: A field is missing, of another type, or breaks an invariant.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _named(error, path) from error


def encode_run(run: Run) -> bytes:
    """
    Return a run as JSON text [UTF-8], sorted, with a last newline.

    Each field has a line, and in a list each record: an indented file of samples is half
    spaces.
    """
    encode = msgspec.json.Encoder(order="sorted", enc_hook=encodable).encode
    parts: list[bytes] = []  # joined once: each copy of a large run takes its time
    for name in sorted(run.__struct_fields__):
        value = getattr(run, name)
        parts += (b",\n" if parts else b"{\n", encode(name), b": ")
        if not (isinstance(value, tuple) and value):
            parts.append(encode(value))
            continue
        start = b"[\n"
        for item in value:
            parts += (start, encode(item))
            start = b",\n"
        parts.append(b"\n]")
    return b"".join((*parts, b"\n}\n"))


def decode_run(text: bytes, *, path: str = "") -> Run:
    """
    Return the run of a JSON text.

    Args:
        text: JSON [UTF-8].

        path: The file, for messages.

    Raises:
        RecordError: It is not JSON, or a field is wrong; the field is named.

        SchemaVersionError: It is a run of another version.
    """
    try:
        with collector_paused():
            run = msgspec.json.decode(text, type=Run)
    except _UNREADABLE as error:
        _check_schema(_schema_of(text, path), path)  # which explains any other mistake
        raise _named(error, path) from error
    _check_schema(run.schema, path)
    return run


def _schema_of(text: bytes, path: str) -> object:
    """Return what a text names as its schema; refuse what is not JSON or names none."""
    if not text.strip():
        raise RecordError("it is empty", path=path, remedy=_REMEDY)
    try:
        loose = msgspec.json.decode(text)
    except _UNREADABLE as error:
        message = f"it is not JSON ({error})"
        raise RecordError(message, path=path, remedy=_REMEDY) from error
    schema = loose.get("schema") if isinstance(loose, dict) else None
    if schema is None:
        raise RecordError(
            "it is not a run: it names no schema", path=path, remedy=_REMEDY
        )
    return schema


def _check_schema(schema: object, path: str) -> None:
    """Refuse the schema of another version, and what is not a run at all."""
    if isinstance(schema, str) and schema in _READABLE:
        return
    named, path = str(schema), path or "schema"
    if named.startswith(_RUNS):
        raise SchemaVersionError(schema=named, supported=SCHEMA_VERSION, path=path)
    store = named.startswith(_BASELINES)
    kind = "a store of baselines" if store else f"of schema {named!r}"
    remedy = f"{_REMEDY}; a store is listed by gpuperf baseline list"
    raise RecordError(
        f"it is {kind}, not a run", path=path, remedy=remedy if store else _REMEDY
    )


def to_text(value: object) -> str:
    """Return any record of the model as JSON text, as it travels between processes."""
    return msgspec.json.encode(value, enc_hook=encodable).decode()


def from_text(text: str | bytes, kind: type[_T], *, path: str = "") -> _T:
    """
    Return the record that `to_text` was given.

    Raises:
        RecordError: It is not JSON, or a field is wrong; the field is named.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except _UNREADABLE as error:  # a ValidationError is a DecodeError
        raise _named(error, path) from error


def run_schema() -> dict[str, Any]:
    """Return the JSON Schema of a run, made from the records themselves."""
    schema = msgspec.json.schema(Run)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$id"] = SCHEMA_VERSION
    return schema


def _named(error: Exception, path: str) -> RecordError:
    """Return an error that names the field as the library found it."""
    message, _, place = str(error).partition(" - at `$")
    field = place.rstrip("`").lstrip(".")
    where = ": ".join(part for part in (path, field) if part)
    broken = error.__cause__
    if isinstance(broken, RecordError):  # a record refused its own fields
        return RecordError(broken.message, path=where, remedy=broken.remedy)
    return RecordError(message, path=where)
