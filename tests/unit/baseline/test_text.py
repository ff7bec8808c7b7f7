"""Rules of baseline.encode and decode: the text of a store's file."""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf.baseline.encoding import encode
from pytest_gpuperf.baseline.history import by_key
from pytest_gpuperf.baseline.layout import (
    numbered_sessions,
    version_in,
    version_of,
)
from pytest_gpuperf.baseline.rows import digest
from pytest_gpuperf.baseline.text import NamedBy, decode_stream
from pytest_gpuperf.baseline.whole_text import decode
from pytest_gpuperf.errors import (
    BaselineCorruptError,
    RecordError,
    SchemaVersionError,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.kernel import KernelTotal
from pytest_gpuperf.model.metric import METRICS, Family
from pytest_gpuperf.model.record import STORE_VERSION, StoredRecord
from unit.baseline.samples import TEST, key, session, stored, stored_records, value

MODULE = "tests/test_gemm.py"


def text_of(*records: StoredRecord) -> bytes:
    """Return the text of a module's file."""
    return encode({MODULE: by_key(records)}, keyed_by="module")


def read(text: bytes, **given: object) -> tuple[StoredRecord, ...]:
    """Return the sessions of TEST in a module's file."""
    sections = decoded(text, keyed_by="module", **given)
    records: tuple[StoredRecord, ...] = sections[MODULE].get(key(), ())
    return records


def decoded(text: bytes, **given: object) -> dict[str, Any]:
    """Return the sections of a file in which nothing is damaged."""
    stored = decode(text, path="x.json", **given)  # type: ignore[arg-type]  # keywords of decode
    assert stored.damage == ()
    return stored.sections


def damage_of(text: bytes) -> list[str]:
    """Return the lines of a module's file that are left out, each with its reason."""
    return [str(each) for each in decode(text, path="x.json", keyed_by="module").damage]


@given(st.lists(stored_records, max_size=6), st.sampled_from(["module", "slug"]))
def test_what_is_written_is_read(records: list[StoredRecord], keyed_by: str) -> None:
    """Any ids, texts and finite numbers come back as they were."""
    sections = {"": by_key(records), "é\n": by_key(records)}
    text = encode(sections, keyed_by=keyed_by)

    found = decoded(text, keyed_by=keyed_by)

    if keyed_by == "slug":
        assert found == sections
    assert found[""] == sections[""]
    assert encode(sections, keyed_by=keyed_by) == text
    if keyed_by == "slug":
        assert encode(found, keyed_by=keyed_by) == text


@given(st.permutations([stored(1), stored(2), stored(3, choice=None), stored(4, "x")]))
def test_order_of_arrival_leaves_no_trace(records: list[StoredRecord]) -> None:
    """Equal sessions give equal bytes."""
    by_age = sorted(records, key=lambda each: each.session.id)

    assert text_of(*records) == text_of(*by_age)


def test_the_text_is_json() -> None:
    """Any JSON tool reads it, in any layout."""
    loose = json.loads(text_of(stored(1)))

    assert loose["schema"] == "pytest-gpuperf/baseline/3"
    assert read(json.dumps(loose, indent=3).encode()) == (stored(1),)


def test_a_session_more_is_a_line_more() -> None:
    """One line for its head and one for each test; no other line changes."""
    ids = [f"{MODULE}::test[{number}]" for number in range(5)]
    before = [stored(n, test_id=each) for n in range(1, 4) for each in ids]
    after = [*before, *(stored(4, test_id=each) for each in ids)]

    changed = [
        line
        for line in difflib.ndiff(
            text_of(*before).decode().splitlines(),
            text_of(*after).decode().splitlines(),
        )
        if line[0] != " "
    ]

    assert len(changed) == 1 + len(ids)
    assert {line[0] for line in changed} == {"+"}


def test_what_repeats_stands_once() -> None:
    """Facts and heads of sessions are kept in tables; a line is short."""
    ids = [f"{MODULE}::test[{number}]" for number in range(9)]
    text = text_of(*(stored(1, test_id=each) for each in ids)).decode()

    assert text.count("NVIDIA H200") == 1
    assert text.count("2.11.0") == 1
    assert text.count("s0001") == 1
    assert max(map(len, text.splitlines())) < 200


def with_kernels(number: int, *names: str, **given: Any) -> StoredRecord:
    """Return a session that ran these kernels, 1 ms each."""
    kernels = tuple(KernelTotal(name=name, total_s=1e-3) for name in names)
    return stored(number, kernels=kernels, **given)


def test_names_of_kernels_stand_once() -> None:
    """A session more is a short line more, however long the names are."""
    records = [with_kernels(n, "gemm" * 99, "norm") for n in range(1, 5)]
    text = text_of(*records)

    assert text.count(b"gemm" * 99) == 1
    assert read(text) == tuple(records)
    assert len(text_of(*records)) - len(text_of(*records[1:])) < 400


def test_a_session_counts_without_the_names_of_its_kernels() -> None:
    """A damaged line of names is named; values and choice are still compared."""
    text = text_of(with_kernels(1, "gemm"))
    broken = text.replace(b'["gemm"]', b'["gamm"]')
    found = decode(broken, path="x.json", keyed_by="module")

    assert found.sections[MODULE][key()] == (stored(1),)
    assert [damage.reason for damage in found.damage] == [
        "it differs from its checksum"
    ]


def test_a_file_without_names_of_kernels_is_read() -> None:
    """Files of earlier versions have no table of them."""
    loose = json.loads(text_of(stored(1)))
    for section in filter(None, loose["sections"]):
        assert section.pop("kernels") == {"": None}

    assert read(json.dumps(loose).encode()) == (stored(1),)


def test_soft_facts_that_differ_stand_in_their_line() -> None:
    """A head keeps only what all its records share."""
    warm = stored(1, soft_facts={"torch": "2.11.0", "temperature": "41"})
    hot = stored(
        1, test_id=f"{MODULE}::b", soft_facts={"torch": "2.11.0", "temperature": "70"}
    )
    text = text_of(warm, hot)

    found = decoded(text, keyed_by="module")[MODULE]

    assert found == by_key([warm, hot])
    assert text.count(b"2.11.0") == 1


def test_whole_numbers_are_written_as_floats() -> None:
    """A register count that came as an int gives the bytes that it gives when read."""
    given = stored(1, values=(value("registers", 64, half_widths=()),))
    text = text_of(given)

    assert text_of(*read(text)) == text


def test_a_family_may_name_the_facts() -> None:
    """The enum's members and their texts are the same keys."""
    given = stored(1, facts={Family.HOST_TIME: {"cpu_model": "x"}})

    assert read(text_of(given)) == (given,)


def test_only_the_wanted_tests_are_read() -> None:
    """A run of one test does not pay for the others."""
    text = text_of(stored(1), stored(1, test_id=f"{MODULE}::other"))

    found = decoded(text, keyed_by="module", test_ids=[TEST])

    assert list(found[MODULE]) == [key()]


def test_only_the_wanted_section_is_read() -> None:
    """A run on one GPU does not pay for the others."""
    text = encode({"a": by_key([stored(1)]), "b": {}}, keyed_by="slug")

    assert list(decoded(text, keyed_by="slug", section="b")) == ["b"]


UNWRITABLE = {
    "lone surrogate": stored(1, test_id="tests/\udcff.py::t"),
    "no run": stored(1, values=(value(run_values=()),)),
    "choice": stored(1, choice=7),
}


@pytest.mark.parametrize("record", UNWRITABLE.values(), ids=UNWRITABLE)
def test_what_could_not_be_read_is_not_written(record: StoredRecord) -> None:
    """A store never gets a line that the next run stumbles over."""
    with pytest.raises(RecordError, match="baseline"):
        text_of(record)


GOOD = text_of(stored(1), stored(2))
BROKEN = {
    "empty": (b"", r"truncated after line 0", "restore"),
    "truncated": (GOOD[:-30], r"truncated after line \d+", "restore"),
    "not JSON": (b"hello\n", r"line 1, column 1: .*invalid", "restore"),
    "deep": (b'{"a":' + b"[" * 100_000, r"not JSON .*recursion", "restore"),
    "list": (b"[1]", r"not a baseline", "--gpuperf-update"),
    "other JSON": (b'{"a": 1}', r"not a baseline", "--gpuperf-update"),
    "a run": (b'{"schema":"pytest-gpuperf/run/1"}', r"not a baseline", "--gpuperf-"),
    "other store": (
        encode({}, keyed_by="slug"),
        r"keyed by slug, not by module",
        "name the whole store",
    ),
}


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_named_with_the_place(case: tuple[bytes, str, str]) -> None:
    """File, position and remedy, whatever is wrong."""
    text, place, remedy = case
    assert text != GOOD

    with pytest.raises(BaselineCorruptError, match=place) as caught:
        read(text)

    assert caught.value.message.startswith("x.json: ")
    assert caught.value.path == "x.json"
    assert remedy in caught.value.remedy


def resummed(text: bytes) -> bytes:
    """Return a module's file whose records have right checksums, whatever they say."""

    def again(match: re.Match[bytes]) -> bytes:
        body = match[1] + b"}"
        return b'%b,"sum":"%b"}' % (
            match[1],
            digest(MODULE.encode() + b"\0" + body).encode(),
        )

    return re.sub(rb'(?m)^(\{"test".*?),"sum":"\w+"\}', again, text)


DAMAGED = {
    "head": (GOOD.replace(b"0a1b2c", b"0a1b2d", 1), 3, "it differs from its checksum"),
    "facts": (GOOD.replace(b"H200", b"H100", 1), 6, "it differs from its checksum"),
    "value": (GOOD.replace(b"[0.14", b"[0.15", 1), 9, "it differs from its checksum"),
    "choice": (
        GOOD.replace(b"c0ffee", b"c0ffef", 1),
        9,
        "it differs from its checksum",
    ),
    "checksum": (
        GOOD.replace(b'"sum":"', b'"sum":"0', 1),
        9,
        "it differs from its checksum",
    ),
    "bad text": (GOOD.replace(b"c0ffee", b"c0ffe\xff", 1), 9, "UTF-8"),
    "no comma": (GOOD.replace(b'"test"', b'"test" 1', 1), 9, "it is not JSON"),
    "no end": (GOOD.replace(b'"},\n{', b'"}\n{', 1), 9, "it is not JSON"),
    "wrong type": (GOOD.replace(b'[["time"', b"[[5", 1), 9, "values[0]"),
    "no run": (resummed(re.sub(rb"\[0\.14\d+\]", b"[]", GOOD, count=1)), 9, ">= 1"),
    "huge": (GOOD.replace(b"[0.14", b"[1e999,0.14", 1), 9, "out of range"),
    "negative": (GOOD.replace(b"[0.004]", b"[-0.004]", 1), 9, ">= 0"),
    "negative time": (
        resummed(GOOD.replace(b"[0.14", b"[-0.14", 1)),
        9,
        "time of '::test_gemm[4096]' is -0.142857 s, but cannot be negative",
    ),
    "no session": (
        resummed(re.sub(rb'"session":"\w+"', b'"session":"x"', GOOD, count=1)),
        9,
        "its session or its facts are left out",
    ),
}


@pytest.mark.parametrize("case", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_is_left_out_and_named(case: tuple[bytes, int, str]) -> None:
    """The others count; a session or facts that are damaged take their records along."""
    text, line, reason = case
    assert text != GOOD
    stored_text = decode(text, path="x.json", keyed_by="module")
    kept = stored_text.sections[MODULE].get(key(), ())

    first = stored_text.damage[0]
    assert (first.path, first.line) == ("x.json", line)
    assert reason.lower() in first.reason.lower()  # msgspec's words have changed
    assert kept == (() if line == 6 else (stored(2),))
    if line < 8:
        assert stored_text.damage[1].reason == "its session or its facts are left out"


def test_a_file_that_was_laid_out_anew_is_read() -> None:
    """A formatter changes no value; one that is changed then has no line of its own."""
    layout = json.dumps(json.loads(GOOD), indent=3).encode()

    assert read(layout) == (stored(1), stored(2))
    assert damage_of(layout.replace(b"0.28", b"0.29")) == [
        "x.json: it differs from its checksum"
    ]


SECOND = GOOD.replace(b"baseline/3", b"baseline/2")


def test_the_second_schema_is_read() -> None:
    """Its sessions say that its version stored them, also after the file is rewritten."""
    old = (stored(1, schema_version=2), stored(2, schema_version=2))
    second = decode(SECOND, path="x.json", keyed_by="module")
    rewritten = text_of(*read(SECOND), stored(3))

    assert second.of_earlier_schema
    assert second.damage == ()
    assert read(SECOND) == old
    assert read(rewritten) == (*old, stored(3))
    assert not decode(rewritten, path="x", keyed_by="module").of_earlier_schema


def test_a_changed_line_of_the_second_schema_is_damaged() -> None:
    """The lines of both schemas have checksums."""
    assert damage_of(SECOND.replace(b"[0.28", b"[0.29")) == [
        "x.json, line 10: it differs from its checksum"
    ]


def test_fields_of_a_later_version_are_kept() -> None:
    """Lines and heads keep their unknown fields when another session is stored."""
    later = session(1, unknown=(("site", '"cern"'),))
    record = stored(1, session=later, unknown=(("é", '{"a":[1,null]}'), ("z", "1.5")))
    text = text_of(record)

    assert b'"site":"cern"' in text
    assert read(text) == (record,)
    assert read(text_of(*read(text), stored(2))) == (record, stored(2))
    assert read(json.dumps(json.loads(text), indent=1).encode()) == (record,)


def test_a_later_field_that_was_edited_is_damage() -> None:
    """The checksum of a line covers what this version does not know."""
    text = text_of(stored(1, unknown=(("z", "1"),)))

    assert damage_of(text.replace(b'"z":1', b'"z":2')) == [
        "x.json, line 8: it differs from its checksum"
    ]


@example(GOOD.index(b'/3"') + 1, 0)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 7))
def test_a_flipped_bit_changes_no_value(place: int, bit: int) -> None:
    """What is read is what was stored; what is damaged is refused, or left out and told."""
    text = bytearray(GOOD)
    text[place] ^= 1 << bit
    try:
        found = decode(bytes(text), path="x.json", keyed_by="module")
    except (BaselineCorruptError, SchemaVersionError):
        return
    # One flip makes a file of schema 3 one of schema 2.
    records = [
        replace(r, schema_version=STORE_VERSION)
        for part in found.sections.values()
        for rs in part.values()
        for r in rs
    ]

    assert all(record in (stored(1), stored(2)) for record in records)
    assert len(records) == 2 or found.damage


def test_a_number_of_the_users_own_may_be_negative() -> None:
    """A difference of two times is not a time."""
    values = (value("drift", -1.5), value("roofline.intensity", -0.0, unit="FLOP/B"))
    record = stored(1, values=values)

    assert read(text_of(record)) == (record,)


@given(st.integers(0, len(GOOD) - 2))
def test_every_cut_is_noticed(length: int) -> None:
    """No beginning of a file is taken for a whole one."""
    with pytest.raises(BaselineCorruptError):
        read(GOOD[:length])


@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=4))
def test_no_damage_is_an_unexpected_error(place: int, damage: bytes) -> None:
    """Whatever happens to a file, it is read or it is refused by name."""
    text = GOOD[:place] + damage + GOOD[place + 1 :]
    with contextlib.suppress(BaselineCorruptError, SchemaVersionError):
        decode(text, path="x.json", keyed_by="module")


@example(0, b"", 0)
@example(GOOD.index(b'"records":[') + 11, b"\n<<<<<<< ours", 0)
@example(len(GOOD) - 1, b"", 1)
@example(len(GOOD), b"null", 0)
@given(
    st.integers(0, len(GOOD)),
    st.sampled_from(
        [b"", b"\n", b",", b"x", b"null,\n", b"null]},\n", b"null]}\n", b'"":null},']
    ),
    st.integers(0, 40),
)
def test_a_stream_is_read_as_its_text(place: int, added: bytes, lost: int) -> None:
    """A file that is read line by line gives what its text gives, or is left to it."""
    text = GOOD[:place] + added + GOOD[place + lost :]
    found = decode_stream(io.BytesIO(text), path="x.json", keyed_by="module")

    assert found is not None or text != GOOD
    if found is not None:
        assert found == decode(text, path="x.json", keyed_by="module")
        assert found.damage == ()


@given(
    st.integers(0, len(GOOD)),
    st.sampled_from([b"", b"\n<<<<<<<", b"\n=======", b"|||||||", b"\n"]),
    st.integers(0, 9),
)
def test_a_version_is_found_part_by_part(place: int, added: bytes, lost: int) -> None:
    """The beginning, the end and the marks of a conflict are looked for in every part."""
    long = b"\n".join([GOOD[:-1], *[b"x" * 997] * 100, b"null]}", b""])
    for text in (
        GOOD[:place] + added + GOOD[place + lost :],
        long[: 100 * place] + added + long[100 * place + lost :],
    ):
        assert version_in(io.BytesIO(text)) == version_of(text)


def test_quantiles_are_read_for_reports_only() -> None:
    """No verdict needs them, and they are a third of a value."""
    record = stored(1, values=(replace(value(), quantiles=(1.0, 2.0, 3.0)),))
    text = text_of(record)
    metrics = {value().metric}

    (whole,) = read(text, metrics=metrics)
    (bare,) = read(text, metrics=metrics, quantiles=False)

    assert whole == record
    assert bare == replace(record, values=(value(),))


NEWER = [
    b'{"schema":"pytest-gpuperf/baseline/4"}',
    b'{"schema":"pytest-gpuperf/baseline/4","sections":{},"more":1}',
    GOOD.replace(b"baseline/3", b"baseline/4"),
]


@pytest.mark.parametrize("text", NEWER, ids=["bare", "other shape", "same shape"])
def test_another_schema_is_named(text: bytes) -> None:
    """A file of a later version is not called corrupt, whatever else it holds."""
    schema = "pytest-gpuperf/baseline/4"
    with pytest.raises(SchemaVersionError, match=rf"x\.json.*{schema}") as caught:
        read(text)

    assert caught.value.schema == schema


def test_a_schema_that_is_gone_is_named() -> None:
    """A file of an earlier version is not called corrupt either."""
    with pytest.raises(SchemaVersionError, match="baseline/1"):
        read(GOOD.replace(b"baseline/3", b"baseline/1"))


def test_a_later_writer_may_add_fields() -> None:
    """Keys that this version does not know are let through, and kept."""
    text = resummed(GOOD.replace(b'c0ffee"', b'c0ffee","more":[1]'))
    more = (("more", "[1]"),)

    assert read(text) == (stored(1, unknown=more), stored(2, unknown=more))
    assert read(text, metrics=METRICS) == read(text)


def merged(folder: Path, *sides: bytes) -> bytes:
    """Return what git makes of ours, base and theirs."""
    names = ["ours", "base", "theirs"]
    for name, text in zip(names, sides, strict=True):
        (folder / name).write_bytes(text)
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    argv = [git, "merge-file", "-p", *names]
    return subprocess.run(argv, cwd=folder, check=False, capture_output=True).stdout


def test_a_merge_conflict_is_named(tmp_path: Path) -> None:
    """The markers that git leaves are called what they are, with their line."""
    text = merged(
        tmp_path, text_of(stored(1), stored(2)), text_of(stored(1)), text_of(stored(3))
    )

    with pytest.raises(
        BaselineCorruptError, match=r"line \d+: unresolved merge conf"
    ) as caught:
        read(text)

    assert "lines of both sides" in caught.value.remedy


def test_both_sides_of_a_merge_are_a_good_file(tmp_path: Path) -> None:
    """The remedy is right: without the markers all sessions are there."""
    base = text_of(stored(1))
    text = merged(
        tmp_path, text_of(stored(1), stored(2)), base, text_of(stored(1), stored(3))
    )
    assert b"<<<<<<<" in text
    resolved = re.sub(rb"(?m)^(<{7}|={7}|>{7}).*\n", b"", text)

    assert read(resolved) == (stored(1), stored(2), stored(3))


def test_a_doubled_section_is_one() -> None:
    """A slug that both sides of a merge have added has the sessions of both."""
    ours = encode({"h200": by_key([stored(1)])}, keyed_by="slug").splitlines()
    theirs = encode({"h200": by_key([stored(2)])}, keyed_by="slug").splitlines()
    both = b"\n".join([*ours[:-1], *theirs[1:]])

    found = decoded(both, keyed_by="slug")

    assert found == {"h200": by_key([stored(1), stored(2)])}


def test_a_doubled_line_counts_once() -> None:
    """A merge that kept a session twice makes no evidence of it."""
    line = next(each for each in GOOD.splitlines(keepends=True) if b'"test"' in each)

    assert read(GOOD.replace(line, line * 2)) == (stored(1), stored(2))


def test_rows_of_other_tests_are_not_decoded() -> None:
    """A test is read without the others, and a row that was edited is still found."""
    records = {
        key(test_id): (stored(1, test_id=test_id),)
        for test_id in (f"{MODULE}::a", f"{MODULE}::b")
    }
    text = encode({MODULE: records}, keyed_by="module")
    row = next(line for line in text.split(b"\n") if b'"::b"' in line)
    odd, edited = (row.replace(b"[0.004]", new) for new in (b'["0.004"]', b"[0.005]"))

    found = [
        decode(changed, path="x", keyed_by="module", test_ids=[f"{MODULE}::a"])
        for changed in (resummed(text.replace(row, odd)), text.replace(row, edited))
    ]

    assert [[*each.sections[MODULE]] for each in found] == [[key(f"{MODULE}::a")]] * 2
    assert [len(each.damage) for each in found] == [0, 1]
    (damage,) = found[1].damage
    assert (damage.test_id, damage.reason) == ("::b", "it differs from its checksum")


def test_only_the_metrics_asked_for_are_decoded() -> None:
    """The values of other metrics stay texts, also if their names begin alike."""
    names = ("time", "a,b", "a,c", 'a"b', "time.p50")
    several = tuple(replace(value(), metric=name) for name in names)
    record = stored(1, values=several)
    text = encode({MODULE: by_key([record])}, keyed_by="module")
    (line,) = (each for each in text.split(b"\n") if b'"test"' in each)
    odd = line.replace(b'["time.p50","s","host",[', b'["time.p50","s","host",["x",')
    text = resummed(text.replace(line, odd))

    found = {
        name: decode(text, path="x", keyed_by="module", metrics={name})
        for name in (*names[:4], "other")
    }

    assert not any(each.damage for each in found.values())
    assert [
        [v.metric for (r,) in each.sections[MODULE].values() for v in r.values]
        for each in found.values()
    ] == [["time"], ["a,b"], ["a,c"], ['a"b'], []]
    assert decode(text, path="x", keyed_by="module").damage


def test_names_are_read_without_values() -> None:
    """The measurements of a file, and whether pytest ids are their keys."""
    records = {
        key(f"{MODULE}::a"): (
            stored(1, test_id=f"{MODULE}::a", schema_version=2),
            stored(2, test_id=f"{MODULE}::a"),
        ),
        key(f"{MODULE}::b", "x"): (replace(stored(1), key=key(f"{MODULE}::b", "x")),),
        key(f"{MODULE}::c"): (stored(1, test_id=f"{MODULE}::c", schema_version=2),),
    }
    text = encode({MODULE: records}, keyed_by="module")
    row = next(line for line in text.split(b"\n") if b'"::b"' in line)
    odd = resummed(text.replace(row, row.replace(b"[0.004]", b'["0.004"]')))

    names = decode(odd, path="x", keyed_by="module", test_ids=()).names
    edited = text.replace(b'"::c"', b'"::d"')

    assert names == {
        MODULE: {
            key(f"{MODULE}::a"): NamedBy(any_id=True, all_ids=False),
            key(f"{MODULE}::b", "x"): NamedBy(),
            key(f"{MODULE}::c"): NamedBy(any_id=True, all_ids=True),
        }
    }
    assert (
        key(f"{MODULE}::d")
        not in decode(edited, path="x", keyed_by="module", test_ids=()).names[MODULE]
    )


def test_heads_are_found_without_the_rows() -> None:
    """The arrival numbers of a file in any layout, and of each of its sections."""
    sections = {
        name: {key(f"{name}::a"): (stored(n, test_id=f"{name}::a", arrival=n),)}
        for n, name in ((3, MODULE), (4, "z.py"))
    }
    text = encode(sections, keyed_by="module")
    # After the heads, nothing is JSON.
    unread = text.replace(b'"values":[[', b'"values":[(')

    assert numbered_sessions(text) == {"s0003": 3, "s0004": 4}
    assert numbered_sessions(unread) == {"s0003": 3, "s0004": 4}
    assert numbered_sessions(json.dumps(json.loads(text), indent=1).encode()) == {
        "s0003": 3,
        "s0004": 4,
    }
    assert numbered_sessions(b"{") == {}
