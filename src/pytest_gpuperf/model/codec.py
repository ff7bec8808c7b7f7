"""Conversion of records to JSON and back.

Versions of the run schema: 2 added comparisons with a revision. 3 added the origin of
values: machine, branch, shard and collection of the session, parameters and source of
the test. All of these fields are optional, so a run of version 2 is a run without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from pytest_gpuperf.errors import RecordError, SchemaVersionError
from pytest_gpuperf.model.frozen import (
    UNREADABLE,
    collector_paused,
    encodable,
    to_builtins,
)
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

_T = TypeVar("_T")


def __getattr__(name: str) -> object:
    """
    Import a function of `reference_json`, because measured runs do not need that
    module.
    """
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from pytest_gpuperf.model import reference_json

    return getattr(reference_json, name)


def from_builtins(value: object, kind: type[_T], *, path: str = "") -> _T:
    """
    Convert builtins from `to_builtins` back to a record.

    Args:
        value: Dicts, lists, strings and numbers. Extra keys are ignored.

        kind: Class of the record.

        path: Name of the value in messages.

    Raises:
        RecordError: A field is missing, has a wrong type, or breaks an invariant.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _named(error, path) from error


def encode_run(run: Run) -> bytes:
    """
    Return a run as sorted JSON text [UTF-8] that ends with a newline.

    Each field has a line, and so has each record of a list. In an indented file of
    samples, half of the text would be spaces.
    """
    encode = msgspec.json.Encoder(order="sorted", enc_hook=encodable).encode
    parts: list[bytes] = []  # Joined once, because copies of a large run are slow.
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


def decode_run(text: bytes, *, path: str = "", remedy: str = _REMEDY) -> Run:
    """
    Parse the JSON text of a run.

    Args:
        text: JSON [UTF-8].

        path: The file, for messages.

        remedy: The remedy for a text that is not a run.

    Raises:
        RecordError: The text is not JSON, or a field is wrong. The error names the
            field.

        SchemaVersionError: The run has another schema version.
    """
    try:
        with collector_paused():
            run = msgspec.json.decode(text, type=Run)
    except UNREADABLE as error:
        # A wrong schema explains the mistake best.
        _check_schema(_schema_of(text, path, remedy), path, remedy)
        raise _named(error, path) from error
    _check_schema(run.schema, path, remedy)
    return run


def _schema_of(text: bytes, path: str, remedy: str) -> object:
    """
    Return the schema of a text. Raises RecordError if it is not JSON or names no
    schema.
    """
    if not text.strip():
        raise RecordError("it is empty", path=path, remedy=remedy)
    try:
        loose = msgspec.json.decode(text)
    except UNREADABLE as error:
        message = f"it is not JSON ({error})"
        raise RecordError(message, path=path, remedy=remedy) from error
    schema = loose.get("schema") if isinstance(loose, dict) else None
    if schema is None:
        raise RecordError(
            "it is not a run: it names no schema", path=path, remedy=remedy
        )
    return schema


def _check_schema(schema: object, path: str, remedy: str) -> None:
    """Raise if the schema has another version, or is not a schema of runs."""
    if isinstance(schema, str) and schema in _READABLE:
        return
    named, path = str(schema), path or "schema"
    if named.startswith(_RUNS):
        raise SchemaVersionError(schema=named, supported=SCHEMA_VERSION, path=path)
    store = named.startswith(_BASELINES)
    kind = "a store of baselines" if store else f"of schema {named!r}"
    if store:
        remedy += "; a store is listed by gpuperf baseline list"
    raise RecordError(f"it is {kind}, not a run", path=path, remedy=remedy)


# Made once, because a run writes each of its tests.
_ENCODER = msgspec.json.Encoder(enc_hook=encodable)


def to_text(value: object) -> str:
    """Return a record as JSON text, for other processes."""
    return _ENCODER.encode(value).decode()


def load_types(kind: type) -> None:
    """Load the modules of all records that a record may hold, as decoding it does."""
    msgspec.json.Decoder(kind)


def from_text(text: str | bytes, kind: type[_T], *, path: str = "") -> _T:
    """
    Convert JSON text from `to_text` back to a record.

    Raises:
        RecordError: The text is not JSON, or a field is wrong. The error names the
            field.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except UNREADABLE as error:  # A ValidationError is a DecodeError.
        raise _named(error, path) from error


def run_schema() -> dict[str, Any]:
    """Generate the JSON Schema of a run from the records."""
    schema = msgspec.json.schema(Run)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$id"] = SCHEMA_VERSION
    return schema


def _named(error: Exception, path: str) -> RecordError:
    message, _, place = str(error).partition(" - at `$")
    field = place.rstrip("`").lstrip(".")
    where = ": ".join(part for part in (path, field) if part)
    broken = error.__cause__
    if isinstance(broken, RecordError):  # A record rejected its own fields.
        return RecordError(broken.message, path=where, remedy=broken.remedy)
    return RecordError(message, path=where)
