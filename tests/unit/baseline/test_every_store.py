"""The rules that every kind of store keeps: folder, file, SQLite and PostgreSQL."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.servers import PLACES, place_of
from pytest_gpuperf.baseline.changes import Append, Drop, Move, Restart, StoreChange
from pytest_gpuperf.baseline.protocol import Store
from pytest_gpuperf.baseline.store import open_store
from pytest_gpuperf.errors import BaselineMissingError
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import (
    FileList,
    RecordKey,
    StoredRecord,
    module_of,
)
from unit.baseline.samples import TEST, key, session, stored, stored_records, value

OTHER = TEST.replace("4096", "64")
GPU, HOST = "nvidia-h200", "amd-epyc-2"


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    """Return the name of a store of each kind that does not exist yet."""
    return place_of(request)


@pytest.fixture
def store(place: str, tmp_path: Path) -> Store:
    """Return an empty store of each kind."""
    return open_store(place, tmp_path, create=True)


Series = Mapping[RecordKey, tuple[StoredRecord, ...]]


def comparable(record: StoredRecord) -> StoredRecord:
    """Return a record without what depends on the store: numbers and the order of values."""
    values = (replace(each, series=0) for each in record.values)
    return replace(
        record,
        arrival=0,
        values=tuple(sorted(values, key=lambda v: (v.metric, v.unit, v.source))),
    )


def numbers(series: Series, test: str = TEST) -> list[str]:
    """Return the ids of the sessions of a test, in order of arrival."""
    return [record.session.id for record in series.get(key(test), ())]


EXAMPLES = itertools.count()


def unlike(records: list[StoredRecord]) -> list[StoredRecord]:
    """Return the records as of one run: each measurement once, and a head for each session."""
    mark = next(EXAMPLES)
    heads: dict[str, Session] = {}
    found = {}
    for record in records:
        name = f"{mark}-{record.session.id}"
        head = heads.setdefault(name, replace(record.session, id=name))
        values = {(v.metric, v.unit, v.source): v for v in record.values}
        found[record.key] = replace(record, session=head, values=tuple(values.values()))
    return [*found.values()]


@settings(
    max_examples=min(25, settings().max_examples),
    # One store for all examples: each has sessions of its own.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(records=st.lists(stored_records, max_size=5), slug=st.text("ab-é/~", min_size=1))
def test_every_field_comes_back(
    store: Store, records: list[StoredRecord], slug: str
) -> None:
    """Whatever is stored of a test is loaded, of all tests and of this one."""
    records = unlike(records)
    slug = f"{slug}{next(EXAMPLES)}"

    store.write(slug, [Append(record=each) for each in records])

    loaded = store.load(slug)
    assert loaded.keys() == {record.key for record in records}
    for each in records:
        assert [comparable(record) for record in loaded[each.key]] == [comparable(each)]
        assert store.load(slug, [each.key.test_id])[each.key] == loaded[each.key]


def test_a_missing_store_is_an_error(place: str, tmp_path: Path) -> None:
    """A store that is named to be read must exist."""
    with pytest.raises(BaselineMissingError, match="there is no baseline"):
        open_store(place, tmp_path).slugs()


def test_an_empty_store_has_nothing(store: Store) -> None:
    """A store that does not exist yet is read without being created."""
    assert store.slugs() == ()
    assert store.load(GPU) == store.load(GPU, past=True) == {}
    store.check()
    assert store.modules(GPU) == ()
    assert not store.names(GPU)
    assert not store.aside()
    assert store.other_slugs(GPU, [key()]) == {}


def test_sessions_have_the_order_of_arrival(store: Store) -> None:
    """A clock that was set back changes no order, and a session has one number everywhere."""
    store.write(GPU, [Append(record=stored(2))])
    store.write_all({GPU: [Append(record=stored(1))], HOST: [Append(record=stored(1))]})

    assert numbers(store.load(GPU)) == ["s0002", "s0001"]
    of_gpu, of_host = store.load(GPU)[key()][-1], store.load(HOST)[key()][-1]
    assert of_gpu.arrival == of_host.arrival > store.load(GPU)[key()][0].arrival
    assert store.slugs() == (HOST, GPU)
    assert store.other_slugs(GPU, [key(), key(OTHER)]) == {key(): (HOST,)}


def test_heads_are_those_of_all_sessions(store: Store) -> None:
    """Of every machine, each once."""
    assert not store.heads()
    heads = [session(n, branch=f"b{n}", machine=f"m{n}") for n in range(3)]
    store.write(GPU, [Append(record=stored(session=head)) for head in heads[:2]])
    store.write(HOST, [Append(record=stored(session=head)) for head in heads[1:]])
    store.write(HOST, [Append(record=stored(session=heads[1], test_id=OTHER))])

    assert sorted(store.heads(), key=lambda head: head.id) == heads


def test_contents_are_what_is_loaded(store: Store) -> None:
    """After a drop, an accept and a rename: the same sessions with the same measurements."""
    facts = {"host-time": {"python_minor": "3.11"}}
    for number in range(1, 6):
        for test in (TEST, OTHER, "t.py::a", "t.py::b"):
            record = stored(number, "time", "memory", test_id=test, facts=facts)
            store.write(GPU, [Append(record=record)])
    store.write(HOST, [Append(record=stored(5))])
    ids = frozenset({"s0001", "s0002"})
    changes: list[StoreChange] = [
        Drop(key=key(OTHER), session_ids=ids),
        Restart(record=stored(6, test_id="t.py::a")),
        Move(key=key("t.py::c"), old=key("t.py::b"), renamed=True),
        Drop(key=key("t.py::c"), session_ids=ids),
    ]
    store.write(GPU, changes)

    for slug in (GPU, HOST):
        loaded = store.load(slug)
        expected = {
            session_id: {
                k for k, rs in loaded.items() for r in rs if r.session.id == session_id
            }
            for session_id in {r.session.id for rs in loaded.values() for r in rs}
        }
        contents = {each.session.id: each for each in store.contents(slug)}
        assert {name: {*each.keys} for name, each in contents.items()} == expected
        arrivals = {r.session.id: r.arrival for rs in loaded.values() for r in rs}
        assert {name: each.arrival for name, each in contents.items()} == arrivals
        of_some = store.contents(slug, ["t.py::a", TEST])
        some = {key("t.py::a"), key()}
        assert {each.session.id: each.keys for each in of_some} == {
            name: keys & some for name, keys in expected.items() if keys & some
        }
    versions = {each.session.id: each.python_minor for each in store.contents(GPU)}
    assert versions["s0003"] == "3.11"
    assert store.contents("other") == []


def test_the_newest_twenty_and_the_oldest_three_count(store: Store) -> None:
    """They are loaded of each choice and size of session."""
    part = [stored(n, session=session(n, ran_count=1)) for n in range(1, 4)]
    whole = [stored(n, session=session(n, ran_count=90)) for n in range(4, 30)]
    other = [stored(30, choice="beef", session=session(30, ran_count=90))]
    for record in (*part, *whole, *other):
        store.write(GPU, [Append(record=record)])

    kept = [f"s{n:04}" for n in (*range(1, 7), *range(10, 31))]
    assert numbers(store.load(GPU)) == kept
    assert numbers(store.load(GPU, [TEST])) == kept


def test_a_session_stored_twice_is_one(store: Store) -> None:
    """Storing again, as after a lost answer, changes nothing; new values replace the old."""
    record = stored(1, "time", "memory")
    store.write(GPU, [Append(record=record)])
    before = store.load(GPU)
    store.write(GPU, [Append(record=record)])
    assert store.load(GPU) == before

    better = replace(record, values=(value("time", 9.0),))
    store.write(GPU, [Append(record=better)])
    assert [r.values[0].run_values for r in store.load(GPU)[key()]] == [(9.0,)]


def test_a_restart_leaves_what_it_does_not_name(store: Store) -> None:
    """An accepted metric starts anew, for every choice; the others go on."""
    for number in (1, 2):
        store.write(GPU, [Append(record=stored(number, "time", "memory"))])
    store.write(GPU, [Append(record=stored(3, "time", choice="beef"))])
    store.write(
        GPU,
        [Restart(record=stored(4, "time", "memory"), metrics=frozenset({"time"}))],
    )
    store.write(GPU, [Append(record=stored(5, "time", "memory"))])

    held = {
        record.session.id: {each.metric for each in record.values}
        for record in store.load(GPU)[key()]
    }
    both = {"time", "memory"}
    assert held == {
        "s0001": {"memory"},
        "s0002": {"memory"},
        "s0004": both,
        "s0005": both,
    }


def test_a_restart_without_metrics_leaves_one_session(store: Store) -> None:
    """All sessions of the measurement are dropped, those of others are not."""
    for number in (1, 2):
        store.write(GPU, [Append(record=stored(number))])
    store.write(GPU, [Append(record=stored(2, test_id=OTHER))])
    store.write(GPU, [Restart(record=stored(3))])

    assert numbers(store.load(GPU)) == ["s0003"]
    assert numbers(store.load(GPU), OTHER) == ["s0002"]


def test_an_older_session_can_be_accepted(store: Store) -> None:
    """The accepted session stays, though sessions that are dropped came after it."""
    for number in (1, 2, 3):
        store.write(GPU, [Append(record=stored(number))])
    store.write(GPU, [Restart(record=stored(2))])
    store.write(GPU, [Append(record=stored(4))])

    assert numbers(store.load(GPU)) == ["s0002", "s0004"]


def test_dropped_sessions_are_gone_until_stored_again(store: Store) -> None:
    """Only the named sessions of the named measurement are dropped."""
    for number in (1, 2):
        store.write(GPU, [Append(record=stored(number))])
        store.write(GPU, [Append(record=stored(number, test_id=OTHER))])
    store.write(GPU, [Drop(key=key(), session_ids=frozenset({"s0001"}))])

    assert numbers(store.load(GPU)) == ["s0002"]
    assert numbers(store.load(GPU), OTHER) == ["s0001", "s0002"]

    store.write(GPU, [Append(record=stored(1))])
    assert set(numbers(store.load(GPU))) == {"s0001", "s0002"}


def test_a_renamed_test_takes_its_sessions(store: Store) -> None:
    """The sessions have the new key, and the old key has none."""
    for number in (1, 2):
        store.write(GPU, [Append(record=stored(number))])
    store.write(GPU, [Move(key=key(OTHER), old=key(), renamed=True)])

    assert numbers(store.load(GPU)) == []
    assert numbers(store.load(GPU), OTHER) == ["s0001", "s0002"]
    assert list(store.names(GPU)) == [key(OTHER)]
    assert store.other_slugs(HOST, [key(), key(OTHER)]) == {key(OTHER): (GPU,)}


def test_what_is_set_aside_comes_back(store: Store) -> None:
    """Sessions of a removed test are kept apart, and newer ones continue them."""
    for number in (1, 2):
        store.write(GPU, [Append(record=stored(number))])
    gone = Drop(key=key(), session_ids=frozenset({"s0001", "s0002"}))
    store.set_aside(GPU, [gone])
    assert numbers(store.load(GPU)) == []
    assert numbers(store.aside()[GPU]) == ["s0001", "s0002"]

    store.write(GPU, [Append(record=stored(3))])
    store.put_back(GPU, [key()])

    assert numbers(store.load(GPU)) == ["s0001", "s0002", "s0003"]
    assert not store.aside().get(GPU)


def test_what_cannot_be_read_is_not_written(store: Store) -> None:
    """A change that fails leaves nothing of the other changes."""
    store.write(GPU, [Append(record=stored(1))])
    before = store.load(GPU)
    broken = stored(3, test_id="test_\ud800.py::test")

    with pytest.raises(Exception, match=r"encode|surrogate"):
        store.write(GPU, [Append(record=stored(2)), Append(record=broken)])

    assert store.load(GPU) == before


def test_some_metrics_and_modules_are_read(store: Store) -> None:
    """A session without any of the metrics is left out, as is a module."""
    other = "tests/test_other.py::test"
    store.write(GPU, [Append(record=stored(1, "time", "memory"))])
    store.write(GPU, [Append(record=stored(2, "memory", test_id=other))])

    found = store.load(GPU, metrics=["time"])

    assert {k: [v.metric for r in rs for v in r.values] for k, rs in found.items()} == {
        key(): ["time"]
    }
    assert store.load(GPU, metrics=["memory", "time"]) == store.load(GPU)
    assert list(store.names(GPU, ["tests/test_other.py"])) == [key(other)]
    assert not store.names(GPU, [])


@pytest.mark.parametrize(
    "test_id", ["a\0b.py::t", "\x1a0::\x1a1", "é" * 10_000, "'; --"]
)
def test_any_name_of_a_test_is_stored(store: Store, test_id: str) -> None:
    """NUL, which PostgreSQL refuses, and long names come back."""
    store.write(GPU, [Append(record=stored(1, test_id=test_id))])

    assert numbers(store.load(GPU, [test_id]), test_id) == ["s0001"]
    assert list(store.names(GPU)) == [key(test_id)]
    assert store.modules(GPU) == (module_of(test_id),)


def test_many_tests_are_read_as_few(store: Store) -> None:
    """Reading whole sessions gives what looking up each test gives."""
    tests = [f"tests/test_m.py::test[{n}]" for n in range(1_100)]
    changes = []
    for number in range(1, 24):
        some = tests if number > 1 else tests[:5]
        of_part = tests[:3] if number == 2 else some
        head = session(number, ran_count=len(of_part))
        changes += [
            Append(record=stored(number, test_id=t, session=head)) for t in of_part
        ]
    store.write(GPU, changes)

    whole = store.load(GPU)

    assert len(whole) == len(tests)
    for name in (tests[0], tests[3], tests[4], tests[-1]):
        assert store.load(GPU, [name])[key(name)] == whole[key(name)]
    assert numbers(whole, tests[0])[:2] == ["s0001", "s0002"]


def test_a_rename_keeps_an_accepted_level(store: Store) -> None:
    """Sessions before it count no more, under the new key as under the old one."""
    for number in (1, 2):
        store.write(GPU, [Append(record=stored(number))])
    store.write(GPU, [Restart(record=stored(3))])
    store.write(GPU, [Append(record=stored(4))])
    store.write(GPU, [Move(key=key(OTHER), old=key(), renamed=True)])

    assert numbers(store.load(GPU)) == []
    assert numbers(store.load(GPU), OTHER) == ["s0003", "s0004"]


def test_the_files_of_a_session_are_kept(
    store: Store, place: str, tmp_path: Path
) -> None:
    """Only in their own record, and the newest replace those before."""
    files = FileList(
        positions={"test_a.py": 0, "data/": 1, '\u00e4 "b".txt': 2},
        listed=(".",),
        ended={"test_a.py::test_a": 0},
        surroundings="0" * 64,
        digests={"/lib/n.py": "1" * 64},
        measured={"test_a.py::test_a": ""},
    )
    of_files = RecordKey(test_id=TEST, name="files.1")
    for number in (1, 2):
        changed = replace(files, ended={"test_a.py::test_a": number})
        record = replace(stored(number), key=of_files, files=changed)
        store.write(GPU, [Append(record=stored(number)), Restart(record=record)])

    loaded = open_store(place, tmp_path).load(GPU)

    (kept,) = loaded[of_files]
    assert kept.files == replace(files, ended={"test_a.py::test_a": 2})
    assert [record.files for record in loaded[key()]] == [None, None]
