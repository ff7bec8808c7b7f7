"""The command `verify`: check that a run is complete, and has the tests of a store."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.baseline.store import (
    names_database,
    open_database,
    storing_command,
)
from pytest_gpuperf.cli.output import GOOD, WORSE, name_of, print_table, read_run
from pytest_gpuperf.cli.stored_tests import StoredTests, opened
from pytest_gpuperf.errors import BaselineMissingError, ConfigError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import REFERENCES, RecordKey
from pytest_gpuperf.model.url import masked
from pytest_gpuperf.pipeline.merging import check_shards
from pytest_gpuperf.report import display
from pytest_gpuperf.report.display import listed
from pytest_gpuperf.report.escape import quoted
from pytest_gpuperf.report.explanation import removal_lines
from pytest_gpuperf.report.summary import held_tests

if TYPE_CHECKING:
    import argparse

    from pytest_gpuperf.model.environment import Session
    from pytest_gpuperf.model.run import Run


class _Owed(Frozen, frozen=True, kw_only=True):
    """
    The tests of a run and of a store compared, by ids as pytest shows them.

    Attributes:
        present: Stored tests that the run has.

        missing: Stored tests that did not run.

        removed: Stored tests that are no longer in the code.

        elsewhere: Stored tests that the run was not to run: of other paths, or other
            shards.

        new: Tests of the run that are not stored.
    """

    present: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    new: tuple[str, ...] = ()


def verify(arguments: argparse.Namespace) -> int:
    """
    Print the completeness of a run, and the tests of a baseline that are missing.

    Raises:
        ConfigError: Both a file and the id of a run are named, or neither. Or no store
            is named for an id.
    """
    if (arguments.run is None) == (arguments.run_id is None):
        given = "no run is" if arguments.run is None else "two runs are"
        raise ConfigError(
            f"{given} named to verify",
            remedy="gpuperf verify RUN.json, or --run-id=ID --expect-from=STORE",
        )
    if arguments.run_id is not None:
        return _verify_stored(arguments)
    run = read_run(arguments.run)
    completeness = run.header.completeness
    expected = _expected_tests(arguments)
    owed = _owed(expected, run, arguments.expect_from or ".")
    faults = [*_faults(owed, run, arguments)]
    complete = f"complete: {display.plural(len(run.test_ids), 'test')}"
    if arguments.expect_from is not None:
        complete += f", among them all {len(owed.present)} of {arguments.expect_from}"
        if owed.elsewhere:
            complete += f" except {len(owed.elsewhere)} of other paths or shards"
        if owed.removed:
            complete += f"; no longer in the code: {listed(owed.removed)}"
    print_table(
        arguments.format,
        "verify",
        {
            "complete": not faults,
            "interrupted": completeness.interrupted,
            "measured_count": len(run.test_ids),
            "never_reported": [*completeness.missing],
            "expected_count": len(expected) - len(owed.elsewhere),
            "missing": [*owed.missing],
            "removed": [*owed.removed],
            "elsewhere": [*owed.elsewhere],
        },
        title=name_of(arguments.run),
        remarks=faults or [complete],
    )
    return WORSE if faults else GOOD


def _verify_stored(arguments: argparse.Namespace) -> int:
    place, run_id = arguments.expect_from, arguments.run_id
    if place is None:
        message = "--run-id needs the store that has the run"
        raise ConfigError(message, remedy="add --expect-from=STORE")
    runs = f"gpuperf baseline list {quoted(masked(place))} --format=json"
    if not run_id:
        message = "--run-id is empty"
        raise ConfigError(message, remedy=f"name a run, as in: {runs}")
    measured = _of_run(place, arguments.machine, run_id)
    sessions = {session.id: session for of_slug in measured for session in of_slug}
    check = check_shards(sessions.values())
    twice = _of_several_shards(measured)
    faults = [*check.faults]
    if twice and check.numbers:
        shown = listed([StoredTests((), place).shown(test) for test in twice])
        faults.append(f"several shards measured {shown}")
    remarks = [*check.remarks]
    if check.missing:
        remarks.append(_STORED_NOTHING)
    if faults:
        remarks.append(_ALL_AGAIN)
    if not sessions:
        faults = [f"no session of run {run_id} is stored in {masked(place)}"]
        remarks = [f"the runs of its sessions: {runs}"]
    print_table(
        arguments.format,
        "verify --run-id",
        {
            "complete": not faults,
            "run": run_id,
            "sessions": sorted(sessions),
            "shards": [*check.numbers],
            "missing": [*check.missing],
            "faults": faults,
        },
        title=f"run {run_id}",
        remarks=[*(faults or [_complete(measured, check.numbers)]), *remarks],
    )
    return WORSE if faults else GOOD


# The sessions of a run on a kind of machine, with what each measured.
_Measured = Mapping["Session", Collection[RecordKey]]
_STORED_NOTHING = (
    "a shard stores no session if it is killed, or if --gpuperf-update has no value of "
    "it to store"
)
_ALL_AGAIN = (
    "if one was killed or has tests of another: measure all shards again, under another "
    "--gpuperf-run-id"
)


def _of_run(place: str, machines: Sequence[str], run_id: str) -> list[_Measured]:
    """
    Return the sessions of a run on each kind of machine.

    A database is asked for them alone. It may have a thousand times as many others.
    """
    if names_database(place):
        database = open_database(place, ".")
        slugs = _chosen_slugs(database.slugs(), machines)
        return [database.of_run(slug, run_id) for slug in slugs]
    store = opened(place)
    found: list[_Measured] = []
    for slug in _chosen_slugs(store.slugs(), machines):
        of_slug: dict[Session, set[RecordKey]] = {}
        for key, records in store.load(slug, past=True).items():
            for record in records:
                if record.session.run == run_id:
                    of_slug.setdefault(record.session, set()).add(key)
        found.append(of_slug)
    return found


def _tests_in(keys: Collection[RecordKey]) -> set[str]:
    return {key.test_id for key in keys} - {REFERENCES}


def _of_several_shards(measured: Sequence[_Measured]) -> list[str]:
    """Return the tests that shards of different numbers measured on one kind of machine."""
    found: set[str] = set()
    for of_slug in measured:
        shards: dict[str, set[str | None]] = {}
        for session, keys in of_slug.items():
            for test in _tests_in(keys):
                shards.setdefault(test, set()).add(session.shard)
        found.update(test for test, several in shards.items() if len(several) > 1)
    return sorted(found)


def _complete(measured: Sequence[_Measured], shards: Collection[int]) -> str:
    sessions = {session for of_slug in measured for session in of_slug}
    tests = {t for of_slug in measured for k in of_slug.values() for t in _tests_in(k)}
    text = (
        f"complete: {display.plural(len(tests), 'test')} in "
        f"{display.plural(len(sessions), 'session')}"
    )
    return f"{text} of {display.plural(len(shards), 'shard')}" if shards else text


def _chosen_slugs(slugs: Sequence[str], named: Sequence[str]) -> Sequence[str]:
    """
    Return the named machines of a store, or all if none is named.

    Raises:
        ConfigError: Nothing is stored for a named machine.
    """
    unknown = [name for name in named if name not in slugs]
    if unknown:
        message = f"nothing is stored for {', '.join(unknown)}"
        raise ConfigError(message, remedy=f"name one of {', '.join(slugs)}")
    return named or slugs


def _owed(expected: Mapping[str, bool], run: Run, place: str) -> _Owed:
    """
    Compare the tests of a run with the tests of a store.

    Args:
        expected: The keys of the stored tests, and whether they are ids of pytest.

        run: The run.

        place: The store.
    """
    keys = {test.test_id: test.key for test in run.tests if test.key}
    there = {keys.get(test_id, test_id) for test_id in run.test_ids}
    scope, sharded = run.header.completeness.scope, run.header.session.shard is not None
    # These tests were collected, so they are still in the code.
    waiting = frozenset(run.header.completeness.missing)
    unchanged = frozenset(run.header.completeness.unchanged)
    skipped = frozenset(run.header.completeness.skipped)
    shown = StoredTests((), place).shown
    kinds: dict[str, list[str]] = {}
    for key, has_node_id in sorted(expected.items()):
        ran = key in there or (has_node_id and key in run.test_ids)
        if ran or not unchanged.isdisjoint({key, shown(key)}):
            kind = "present"
        elif sharded and not skipped.isdisjoint({key, shown(key)}):
            # The shard had selected the test.
            kind = "missing"
        elif scope is not None and scope.is_elsewhere(key, sharded=sharded):
            kind = "elsewhere"
        elif waiting.isdisjoint({key, shown(key)}) and (
            scope is not None and scope.has_removed(key)
        ):
            kind = "removed"
        else:
            kind = "missing"
        kinds.setdefault(kind, []).append(key)
    new = tuple(sorted(i for i in run.test_ids if keys.get(i, i) not in expected))
    return _Owed(
        new=new, **{kind: tuple(map(shown, several)) for kind, several in kinds.items()}
    )


def _faults(owed: _Owed, run: Run, arguments: argparse.Namespace) -> Iterator[str]:
    completeness = run.header.completeness
    if completeness.interrupted:
        yield f"interrupted: {completeness.interrupted}; {held_tests(run)}"
    if completeness.missing:
        missing = display.plural(len(completeness.missing), "test")
        yield f"{missing} never reported: {listed(completeness.missing)}"
    store = arguments.expect_from
    count = sum(map(len, (owed.present, owed.missing, owed.removed)))
    of = f"of the {display.plural(count, 'test')} of {store}"
    if owed.missing:
        yield f"{len(owed.missing)} {of} did not run: {listed(owed.missing)}"
    removed = () if arguments.allow_removed else owed.removed
    if removed:
        yield f"{len(removed)} {of} are no longer in the code: {listed(removed)}"
    if completeness.scope is None or completeness.scope.paths is None:
        # It is unknown whether a test that did not run is still in the code.
        removed = () if completeness.interrupted else (*removed, *owed.missing)
    if removed:
        kept = (*owed.present, *owed.elsewhere)
        yield from removal_lines(store, removed, kept=kept, new=owed.new)
        if owed.removed:
            yield "if the next run that stores is to drop them: add --allow-removed"


def _expected_tests(arguments: argparse.Namespace) -> Mapping[str, bool]:
    """
    Return the tests that a run must have by a baseline, or {} if no baseline is named.

    Returns:
        For each key, True if the test is stored under an id of pytest.

    Raises:
        BaselineMissingError: Nothing is stored.

        ConfigError: Nothing is stored for a machine.
    """
    if arguments.expect_from is None:
        if arguments.machine:
            message = "--machine says whose tests of a baseline are expected"
            raise ConfigError(message, remedy="add --expect-from=STORE, or drop it")
        return {}
    store = opened(arguments.expect_from)
    arguments.expect_from = masked(arguments.expect_from)
    expected: dict[str, bool] = {}
    for slug in _chosen_slugs(store.slugs(), arguments.machine):
        for key, records in store.load(slug).items():
            has_node_id = any(record.has_node_id for record in records)
            expected[key.test_id] = has_node_id or expected.get(key.test_id, False)
    expected.pop(REFERENCES, None)
    # With an empty store every run would have all tests.
    if not expected:
        message = f"nothing is stored in {arguments.expect_from}"
        command = storing_command(arguments.expect_from)
        remedy = f"restore its files, or store a run: {command}"
        raise BaselineMissingError(message, remedy=remedy)
    return expected
