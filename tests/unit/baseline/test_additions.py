"""Rules of baseline.additions: a session adds rows, and leaves the others as they are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuperf.baseline.additions import with_sessions
from pytest_gpuperf.baseline.changes import (
    Append,
    Restart,
    StoreChange,
    applied,
    arrived,
)
from pytest_gpuperf.baseline.encoding import encode
from pytest_gpuperf.baseline.rows import digest, summed_prefix
from pytest_gpuperf.baseline.whole_text import decode
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import StoredRecord
from unit.baseline.samples import session, stored, stored_records

MODULE = "tests/test_gemm.py"
TESTS = [f"{MODULE}::test[{number}]" for number in range(3)]


def file_of(*records: StoredRecord) -> bytes:
    """Return the file of the module with some sessions."""
    changes = arrived([Append(record=record) for record in records], {})
    return encode({MODULE: applied({}, changes)}, keyed_by="module")


def added(text: bytes, *records: StoredRecord, arrival: int = 100) -> bytes | None:
    """Return the text with more sessions, if it was not decoded for that."""
    changes = [Append(record=replace(record, arrival=arrival)) for record in records]
    return with_sessions(text, MODULE, changes)


def rewritten(text: bytes, *records: StoredRecord, arrival: int = 100) -> bytes:
    """Return the text with more sessions, after all of it was decoded."""
    sections = decode(text, path="x", keyed_by="module").sections
    changes = [Append(record=replace(record, arrival=arrival)) for record in records]
    return encode({MODULE: applied(sections[MODULE], changes)}, keyed_by="module")


@st.composite
def of_module(draw: st.DrawFn, number: int) -> list[StoredRecord]:
    """Draw what a session stores of the module."""
    records = draw(st.lists(stored_records, min_size=1, max_size=3))
    names = {"id": f"s{number}", "ran_count": draw(st.sampled_from([None, 3, 90]))}
    head = replace(session(number), **names)
    return [
        replace(
            record,
            key=replace(record.key, test_id=draw(st.sampled_from(TESTS))),
            session=head,
            values=tuple(replace(value, series=0) for value in record.values),
        )
        for record in records
    ]


@settings(max_examples=min(25, settings().max_examples))
@given(before=of_module(1), now=of_module(2))
def test_rows_that_are_kept_give_the_bytes_of_decoded_ones(
    before: list[StoredRecord], now: list[StoredRecord]
) -> None:
    """Whether the rows were decoded to add a session, the file is the same."""
    text = file_of(*before)

    assert added(text, *now) == rewritten(text, *now)


def test_the_oldest_sessions_leave() -> None:
    """A session that is one too many goes with its head, and nothing else does."""
    several = [stored(number, test_id=TESTS[0]) for number in range(1, 24)]
    text = file_of(*several, stored(2, test_id=TESTS[1]))

    for number in (24, 25):
        more = stored(number, test_id=TESTS[0])
        expected = rewritten(text, more, arrival=number)
        new = added(text, more, arrival=number)
        assert new == expected
        text = expected

    assert b'"id":"s0004"' not in text
    assert b'"id":"s0002"' in text


def test_other_rows_are_not_decoded() -> None:
    """A row that no version can decode is kept, as long as its checksum is right."""
    text = file_of(stored(1, test_id=TESTS[0]), stored(1, test_id=TESTS[1]))
    row = next(line for line in text.split(b"\n") if b'"::test[1]"' in line)
    odd = row[: row.index(b',"sum"')].replace(b"[0.004]", b'["0.004"]')
    checksum = digest(summed_prefix(MODULE) + odd + b"}")
    odd += b',"sum":"%b"},' % checksum.encode()

    new = added(text.replace(row, odd), stored(2, test_id=TESTS[0]))

    assert new is not None
    assert odd in new.split(b"\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"choice":"c0ffee"', b'"choice":"c0ffed"'),  # a row that was edited
        (b'"host":"0a1b2c"', b'"host":"0a1b2d"'),  # a head that was edited
        (b'"gpu_name":"NVIDIA H200"', b'"gpu_name":"NVIDIA L4"'),
        (b"baseline/3", b"baseline/2"),  # an earlier version
        (MODULE.encode(), b"tests/test_other.py"),
        (b'\n{"name"', b'\n<<<<<<< HEAD\n{"name"'),
        (b"null]}\n", b""),
    ],
)
def test_an_unusual_file_is_decoded(before: bytes, after: bytes) -> None:
    """Damage is found, and anything that the store has not written so."""
    text = file_of(stored(1))
    assert before in text

    assert added(text.replace(before, after), stored(2)) is None


def test_a_session_that_is_there_is_decoded() -> None:
    """A session that comes again replaces its rows, and an older one has its place."""
    text = file_of(stored(1), stored(2))

    assert added(text, stored(2)) is None
    assert added(text, stored(3), arrival=1) is None


def test_a_series_goes_on() -> None:
    """A value continues the series that was accepted last."""
    changes: list[StoreChange] = [Append(record=stored(1))]
    changes.append(Restart(record=stored(2)))
    records = applied({}, arrived(changes, {}))
    text = encode({MODULE: records}, keyed_by="module")

    new = added(text, stored(3))

    assert new == rewritten(text, stored(3))
    ((*_, last),) = decode(new, path="x", keyed_by="module").sections[MODULE].values()
    assert last.values[0].series == 1


def test_a_merge_that_brings_back_old_rows_is_decoded() -> None:
    """Rows of an earlier series do not count, so that they must not be kept."""
    old, new = (
        replace(stored(n), values=(replace(stored(n).values[0], series=series),))
        for n, series in ((1, 0), (2, 1))
    )
    first, second = (
        encode(
            {MODULE: applied({}, arrived([Append(record=r)], {}))}, keyed_by="module"
        )
        for r in (old, new)
    )
    assert second != first
    both = [replace(r, arrival=n) for n, r in enumerate((old, new), 1)]
    text = encode({MODULE: {old.key: tuple(both)}}, keyed_by="module")

    assert added(text, stored(3)) is None


def test_a_session_that_cannot_be_read_back_is_refused() -> None:
    """As when all of the file is encoded."""
    text = file_of(stored(1))

    with pytest.raises(RecordError, match="UTF-8"):
        added(text, stored(2, test_id=f"{MODULE}::\ud800"))
