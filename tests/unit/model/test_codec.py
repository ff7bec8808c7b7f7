"""model.codec: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes import runs
from pytest_gpuperf.errors import RecordError, SchemaVersionError
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.codec import decode_run, encode_run, from_text, to_text
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.record import Kind, Record, RecordKey, Void, VoidCode
from pytest_gpuperf.model.run import Measured, Run
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.work import Work
from unit.model.records import any_record

SCHEMA = json.loads(
    (resources.files("pytest_gpuperf") / "run.schema.json").read_text(encoding="utf-8")
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
LARGE = settings(
    max_examples=min(60, settings().max_examples),  # the profile may ask for fewer
    suppress_health_check=[HealthCheck.too_slow],
    deadline=None,
)
EXAMPLE = runs.gpu_run()


@LARGE
@given(any_record(Run))
def test_a_run_survives_its_json(run: Run) -> None:
    """Decoding what was encoded gives the same run, to the last bit of every number."""
    assert decode_run(encode_run(run)) == run


@LARGE
@given(any_record(Run))
def test_the_json_of_a_run_keeps_its_schema(run: Run) -> None:
    """The schema in the package describes every run that can be written."""
    VALIDATOR.validate(json.loads(encode_run(run)))


@LARGE
@given(any_record(Run))
def test_one_run_has_one_text(run: Run) -> None:
    """The text is sorted, ends with one newline, and writing it again changes nothing."""
    text = encode_run(run)

    assert encode_run(decode_run(text)) == text
    assert text.endswith(b"\n}\n")
    keys = list(json.loads(text))
    assert keys == sorted(keys)


def test_each_record_has_a_line() -> None:
    """So that two runs are told apart by line, and no file is half spaces."""
    text = encode_run(EXAMPLE)
    lines = text.splitlines()

    read = [json.loads(line.removesuffix(b",")) for line in lines if line[:2] == b'{"']

    run = json.loads(text)
    assert read == [*run["records"], *run["verdicts"]]


@LARGE
@given(any_record(Measured))
def test_what_travels_arrives(measured: Measured) -> None:
    """As text and as builtins, a worker's measurements reach the controller unchanged."""
    assert codec.from_text(codec.to_text(measured), Measured) == measured
    assert codec.from_builtins(codec.to_builtins(measured), Measured) == measured


@LARGE
@given(any_record(Measured))
def test_builtins_are_what_xdist_can_carry(measured: Measured) -> None:
    """A value of any other type would end the whole run in the worker."""

    def types(value: object) -> set[type]:
        if isinstance(value, dict):
            return {dict}.union(*(types(k) | types(v) for k, v in value.items()))
        if isinstance(value, list | tuple):
            return {type(value)}.union(*map(types, value))
        return {type(value)}

    builtins = {dict, list, tuple, str, int, float, bool, type(None)}
    assert types(codec.to_builtins(measured)) <= builtins


def test_a_read_only_mapping_is_written_as_an_object() -> None:
    """A record may hold any Mapping."""
    record = Record(
        key=RecordKey(test_id="t"),
        kind=Kind.MEASURE,
        estimates=(),
        soft_facts=MappingProxyType({"torch": "2.11"}),
    )

    assert json.loads(codec.to_text(record))["soft_facts"] == {"torch": "2.11"}
    assert codec.to_builtins(record)["soft_facts"] == {"torch": "2.11"}


def test_what_is_no_record_is_not_written() -> None:
    """An object that has no JSON is refused, and named."""
    with pytest.raises(NotImplementedError, match="a record holds a object"):
        codec.to_text(object())


def _loose() -> dict[str, Any]:
    return dict(json.loads(encode_run(EXAMPLE)))


def _without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda run: run["header"]["session"].pop(name)


def _with(value: object, *path: str | int) -> Callable[[dict[str, Any]], object]:
    def change(run: Any) -> None:
        *outer, last = path
        for step in outer:
            run = run[step]
        run[last] = value

    return change


BROKEN: Mapping[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "missing": (_without("id"), "header.session"),
    "type": (
        _with("fast", "records", 1, "estimates", 0, "value"),
        "records[1].estimates[0].value",
    ),
    "null": (_with(None, "records", 0, "key"), "records[0].key"),
    "enum": (_with("great", "verdicts", 2, "outcome"), "verdicts[2].outcome"),
    "invariant": (_with(9.0, "records", 1, "estimates", 0, "low"), "records[1]"),
    "not a list": (_with(3, "records"), "records"),
}


@pytest.mark.parametrize(("change", "place"), BROKEN.values(), ids=BROKEN)
def test_a_wrong_field_is_named(
    change: Callable[[dict[str, Any]], object], place: str
) -> None:
    """The error says which file, which field and what to do."""
    loose = _loose()
    change(loose)

    with pytest.raises(RecordError) as caught:
        decode_run(json.dumps(loose).encode(), path="run.json")

    assert not isinstance(caught.value, SchemaVersionError)
    assert caught.value.path.startswith(f"run.json: {place}")
    assert caught.value.remedy
    assert str(caught.value).count(caught.value.remedy) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_number_that_is_none_is_refused_at_the_border(bad: float) -> None:
    """NaN has no JSON: it is refused where it comes in, as builtins too."""
    text = json.dumps(codec.to_builtins(Work(bytes=1.0))).replace("1.0", str(bad))

    with pytest.raises(RecordError):
        codec.from_text(text, Work)
    with pytest.raises(RecordError, match=r"x\.json: work\.bytes: \w+ is not a finite"):
        codec.from_builtins({"bytes": bad}, Work, path="x.json")


NO_RUN = {
    "empty": b"",
    "text": b"hello",
    "truncated": encode_run(EXAMPLE)[:-20],
    "bytes": b'{"schema": "\xff"}',
    "deep": b"[" * 100_000,
    "huge": b'{"schema": 1e999}',
    "list": b"[]",
    "object": b"{}",
    "surrogate": b'"\\ud800"',
}


@pytest.mark.parametrize("text", NO_RUN.values(), ids=NO_RUN)
def test_what_is_no_run_is_refused_with_its_file(text: bytes) -> None:
    """Whatever a file holds, its reader learns its name and where runs come from."""
    with pytest.raises(RecordError) as caught:
        decode_run(text, path="other.json")

    assert caught.value.path == "other.json"
    assert caught.value.remedy == "give a file written by --gpuperf-json"


def test_an_empty_file_is_called_empty() -> None:
    """Its reader need not know what a decoder expected there."""
    with pytest.raises(RecordError, match="it is empty"):
        decode_run(b"\n")


@given(st.binary() | st.text().map(str.encode))
def test_no_file_breaks_the_reader(text: bytes) -> None:
    """Any bytes give a RecordError: never another exception, never a run."""
    with pytest.raises(RecordError):
        decode_run(text)


@given(st.text(st.characters(), max_size=20))
def test_no_text_breaks_the_reader(text: str) -> None:
    """Any text that is not a record gives a RecordError, lone surrogates too."""
    with pytest.raises(RecordError):
        codec.from_text(text, Work)


def test_another_version_is_named() -> None:
    """A file of another version says so before any of its fields is looked at."""
    found = "pytest-gpuperf/run/4"
    text = json.dumps({"schema": found, "records": 5}).encode()

    with pytest.raises(SchemaVersionError) as caught:
        decode_run(text, path="run.json")

    assert caught.value.schema == found
    assert caught.value.supported == codec.SCHEMA_VERSION
    assert caught.value.path == "run.json"
    assert "version of pytest-gpuperf" in caught.value.remedy


@pytest.mark.parametrize(
    ("found", "kind", "remedy"),
    [
        ("pytest-gpuperf/baseline/3", "a store of baselines", "gpuperf baseline list"),
        ("pytest-gpuperf/baseline/9", "a store of baselines", "gpuperf baseline list"),
        ("pytest-gpuperf/doctor/1", "pytest-gpuperf/doctor/1", "--gpuperf-json"),
        ("pytest-benchmark", "pytest-benchmark", "--gpuperf-json"),
        (7, "'7'", "--gpuperf-json"),
        ({}, "'{}'", "--gpuperf-json"),
        ([1], "'[1]'", "--gpuperf-json"),
    ],
)
def test_what_is_not_a_run_is_told(found: object, kind: str, remedy: str) -> None:
    """No version of pytest-gpuperf reads it as a run: the remedy names another file."""
    text = json.dumps({"schema": found, "records": 5}).encode()

    with pytest.raises(RecordError) as caught:
        decode_run(text, path="run.json")

    assert not isinstance(caught.value, SchemaVersionError)
    assert kind in caught.value.message
    assert "not a run" in caught.value.message
    assert caught.value.path == "run.json"
    assert remedy in caught.value.remedy
    assert "version" not in caught.value.remedy


def test_a_run_of_the_second_schema_is_read() -> None:
    """A run without what a value is of has unknown machines and tests without digests."""
    loose = _loose()
    loose["schema"] = "pytest-gpuperf/run/2"
    for name in ("machine", "boot", "branch", "parent", "run", "shard", "ran_count"):
        loose["header"]["session"].pop(name)
    for record in loose["records"]:
        for name in ("parameters_digest", "test_digest", "code_digest"):
            record.pop(name)

    read = decode_run(json.dumps(loose).encode())

    assert read == replace(EXAMPLE, schema="pytest-gpuperf/run/2")
    assert read.header.session.machine is None


def test_a_run_of_the_first_schema_is_refused() -> None:
    """The message names the schema, and the version that reads it."""
    loose = {**_loose(), "schema": "pytest-gpuperf/run/1"}

    with pytest.raises(SchemaVersionError, match="run/1"):
        decode_run(json.dumps(loose).encode())


def test_a_later_field_is_let_through() -> None:
    """A file of a newer minor version, with more in it, is still read."""
    loose = _loose()
    loose["extra"] = 1
    loose["header"]["session"]["extra"] = [1]
    loose["records"][0]["estimates"][0]["extra"] = {}

    assert decode_run(json.dumps(loose).encode()) == EXAMPLE
    VALIDATOR.validate(loose)


def test_the_schema_refuses_what_the_reader_refuses() -> None:
    """A validator finds a missing field and a wrong type as the reader does."""
    for change in (_without("id"), _with("fast", "records", 1, "key")):
        loose = _loose()
        change(loose)

        assert list(VALIDATOR.iter_errors(loose))


def test_the_schema_is_one() -> None:
    """It keeps the rules of its own dialect, and says which runs it is for."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)

    assert SCHEMA["$id"] == codec.SCHEMA_VERSION


def test_a_gap_of_an_earlier_version_has_no_code() -> None:
    """A file without codes is read: its gaps say that nobody gave them one."""
    gap = from_text('{"metric":"time","reason":"a; b","remedy":"c"}', Unmeasured)

    assert gap == Unmeasured(
        metric="time", code=GapCode.UNSPECIFIED, reason="a; b", remedy="c"
    )


def test_a_void_of_an_earlier_version_keeps_its_sentence() -> None:
    """It held reason and remedy in one text, which is not cut."""
    void = from_text('{"code":"device-lost","text":"a; b; c"}', Void)

    assert (void.reason, void.remedy) == ("a; b; c", "")
    assert void.text == "a; b; c"


def test_a_void_says_its_reason_and_its_remedy_apart() -> None:
    """A reason with a semicolon loses nothing to the remedy."""
    void = Void(code=VoidCode.DEVICE_LOST, reason="a; b", remedy="c")

    assert to_text(void) == '{"code":"device-lost","text":"a; b","remedy":"c"}'
    assert from_text(to_text(void), Void) == void
    assert void.text == "a; b; c"
