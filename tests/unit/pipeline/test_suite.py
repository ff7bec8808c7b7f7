"""pipeline.suite: for which verdicts a test of the run fails."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes import runs
from pytest_gpuperf.baseline.changes import Append
from pytest_gpuperf.baseline.stored_record import stored_record
from pytest_gpuperf.config import Config, Update
from pytest_gpuperf.measure.site import Site
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Record, RecordKey, Role
from pytest_gpuperf.model.run import Measured
from pytest_gpuperf.model.sample import ReferenceSamples
from pytest_gpuperf.model.verdict import Outcome
from pytest_gpuperf.pipeline import store_changes
from pytest_gpuperf.pipeline.command_line import CommandLine
from pytest_gpuperf.pipeline.memory import slug_of
from pytest_gpuperf.pipeline.suite import Suite
from pytest_gpuperf.pipeline.verdicts import references_of

TEST_ID = runs.REGRESSED.key.test_id
REGRESSED = runs.REGRESSED
UNCHANGED = replace(REGRESSED, outcome=Outcome.UNCHANGED)


def judged(folder: Path, **options: Any) -> Suite:
    """Return a run whose test has regressed in one metric, and is unchanged in another."""
    config = Config(root=str(folder), **options)
    command = CommandLine(args=(), folder=str(folder), variable="GPUPERF_CHILD")
    suite = Suite(Site.in_main(config, spool=None, expected=str(folder)), command)
    suite.receive(Measured(test_id=TEST_ID), passed=True)
    suite.verdicts = (UNCHANGED, REGRESSED, runs.FAILED)
    return suite


@pytest.mark.parametrize(
    ("options", "fails"),
    [
        ({"baseline_named": True}, True),
        ({"baseline_named": True, "update": Update.NEW}, True),
        ({"baseline_named": True, "update": Update.ALL}, False),
        ({}, False),
    ],
)
def test_a_test_fails_for_what_the_run_judges(
    tmp_path: Path, options: dict[str, Any], *, fails: bool
) -> None:
    """By its own verdicts alone; an update of all accepts what regressed."""
    suite = judged(tmp_path, **options)

    assert suite.failures_of(TEST_ID) == ((REGRESSED,) if fails else ())
    assert suite.failures_of(runs.FAILED.key.test_id) == (runs.FAILED,)
    assert suite.failures_of("another") == ()


def test_what_tests_took_is_the_sum_of_their_phases(tmp_path: Path) -> None:
    """Logged twice, as a held report is, a phase counts once."""
    suite = judged(tmp_path)
    setup, first, second, other = (
        SimpleNamespace(when=when, duration=duration_s)
        for when, duration_s in (
            ("setup", 1.0),
            ("call", 30.0),
            ("call", 31.0),
            ("call", 7.0),
        )
    )
    suite.took(TEST_ID, setup, first)
    suite.took(TEST_ID, second)
    suite.took("another", other)

    assert suite.took_s([TEST_ID, "unknown"]) == 32.0
    assert suite.took_s([TEST_ID, "another", TEST_ID]) == 39.0


def test_a_test_that_pytest_fails_after_all_is_judged_no_more(tmp_path: Path) -> None:
    """A strict xfail that passed has no verdicts, and stores nothing."""
    suite = judged(tmp_path, baseline_named=True)
    suite.withdraw(TEST_ID)

    assert suite.failures_of(TEST_ID) == ()
    assert suite.passed == set()
    assert suite.results[TEST_ID].body_failed


def test_references_are_gathered_by_process(tmp_path: Path) -> None:
    """What workers timed is one process's; each fresh process has records of its own."""
    suite = judged(tmp_path)
    assert suite.reference_records() == ()
    one, three = (
        (ReferenceSamples(workload="copy", samples_s=(value_s,)),)
        for value_s in (1.0, 3.0)
    )
    suite.receive(Measured(test_id="a", references=one), passed=True)
    suite.receive(Measured(test_id="b", references=three), passed=True)
    suite.add_references(Role.CONFIRM, 2, three)
    found = {
        (record.role, record.process_index): record.estimates[0].value
        for record in suite.reference_records()
    }

    assert found == {(Role.MAIN, 0): 2.0, (Role.CONFIRM, 2): 3.0}
    assert suite.records() == ()

    suite.forget()
    assert suite.reference_records() == ()


def test_references_are_those_of_their_host(tmp_path: Path) -> None:
    """A worker elsewhere times its own machine, and its session is of that one."""
    suite = judged(tmp_path)
    own = suite.site.host
    there = replace(own, id="there", machine="h100-3", core_count=224)
    samples = (ReferenceSamples(workload="copy", samples_s=(1.0,)),)
    for name, host in (("a", None), ("b", there), ("c", own)):
        record = Record(
            key=RecordKey(test_id=name), kind=Kind.MEASURE, estimates=(), host=host
        )
        measured = Measured(test_id=name, records=(record,), references=samples)
        suite.receive(measured, passed=True)
    here, foreign = suite.reference_records()
    session = suite.site.session_of(foreign.host)

    assert (here.host, foreign.host) == (None, there)
    assert suite.results["c"].records[0].host is None
    assert foreign.facts["host-time"]["core_count"] == "224"
    assert here.facts["host-time"]["core_count"] == str(own.core_count)
    assert (session.machine, session.host) == ("h100-3", "there")
    assert session.id != suite.site.session.id
    assert suite.site.session_of(None) == suite.site.session


def test_references_say_nothing_where_a_tracer_came_or_went(tmp_path: Path) -> None:
    """Python's own work takes several times as long under coverage: no machine did it."""
    across = frozenset({"tracer"})  # of the tests: they may be compared all the same
    base = str(tmp_path / "base")
    suite = judged(tmp_path, baseline=base, update=Update.NEW, compare_across=across)
    samples = (ReferenceSamples(workload="python", samples_s=(2.0,)),)
    suite.add_references(Role.MAIN, 0, samples)
    records = [
        replace(record, facts={"host-time": {**facts, "tracer": "debugpy"}})
        for record in suite.reference_records()
        for facts in (record.facts["host-time"],)
    ]
    earlier = replace(suite.site.session, id="earlier")
    change = Append(record=stored_record(records, earlier))
    store_changes.write(suite.memory, {slug_of(records[0]): [change]})
    (reference,) = references_of(suite)

    assert reference.stored == ()


def test_references_are_judged_with_their_stored_sessions(tmp_path: Path) -> None:
    """Today's value, those of stored sessions, and those of the fresh processes."""
    suite = judged(tmp_path, baseline=str(tmp_path / "base"), update=Update.NEW)
    samples = (ReferenceSamples(workload="copy", samples_s=(2.0,)),)
    suite.add_references(Role.MAIN, 0, samples)
    records = list(suite.reference_records())
    earlier = replace(suite.site.session, id="earlier")
    change = Append(record=stored_record(records, earlier))
    store_changes.write(suite.memory, {slug_of(records[0]): [change]})
    (alone,) = references_of(suite)
    suite.add_references(Role.CONFIRM, 1, samples * 2)
    (confirmed,) = references_of(suite)

    assert alone.name == "copy"
    assert alone.current is not None
    assert alone.current.run_values == (2.0,)
    assert [s.value.run_values for s in alone.stored] == [(2.0,)]
    assert alone.fresh is None
    assert confirmed.fresh is not None
    assert confirmed.fresh.run_values == (2.0,)
    assert confirmed.current == alone.current
