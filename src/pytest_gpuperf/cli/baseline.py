"""The commands `baseline …`: show, move and remove the sessions of a store."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from pytest_gpuperf.baseline.changes import Drop, Move, Restart, StoreChange, dropped_by
from pytest_gpuperf.baseline.contents import SessionContent, contents_of
from pytest_gpuperf.baseline.history import joined
from pytest_gpuperf.baseline.store import names_database, storing_command
from pytest_gpuperf.baseline.stored_record import stored_record, with_alone
from pytest_gpuperf.cli.output import GOOD, print_table, read_run
from pytest_gpuperf.cli.stored_tests import StoredTests, opened_by
from pytest_gpuperf.compute.stats import mean, relative_change
from pytest_gpuperf.config import Config
from pytest_gpuperf.errors import BaselineError, ConfigError
from pytest_gpuperf.judge.case import POLICY
from pytest_gpuperf.judge.history import newest_case, newest_reference
from pytest_gpuperf.judge.look import first_look
from pytest_gpuperf.judge.regression import MORE_SESSIONS, smallest_seen
from pytest_gpuperf.model.checkout import is_of
from pytest_gpuperf.model.environment import session_on
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import (
    FILES,
    REFERENCES,
    Record,
    RecordKey,
    Role,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.verdict import Outcome
from pytest_gpuperf.pipeline.memory import damage_remedy, slug_of
from pytest_gpuperf.pipeline.verdicts import grouped
from pytest_gpuperf.report import display
from pytest_gpuperf.report.display import listed as names_of
from pytest_gpuperf.report.escape import quoted
from pytest_gpuperf.report.explanation import typed_command
from pytest_gpuperf.report.lines import Column, column

if TYPE_CHECKING:
    import argparse

    from pytest_gpuperf.baseline.store import Store
    from pytest_gpuperf.model.run import Run

# Selects all sessions if given in place of their names.
_ALL = "all"
# Tests that are read for the usual spread and the machine drift. A run uses as many.
_MOST_OTHERS = 500
# Characters of a commit, enough for a person.
_COMMIT = 7
# The limit of a run without options.
_LIMIT = Config(root="").max_regression or 0.0
_ACCEPTED = frozenset({Outcome.REGRESSED, Outcome.IMPROVED})

# The sessions of each measurement, by the slug of the machine.
_Content = Mapping[str, Mapping[RecordKey, tuple[StoredRecord, ...]]]


# Many sessions share one large set.
@lru_cache(maxsize=64)
def _tests_of(keys: frozenset[RecordKey]) -> frozenset[str]:
    return frozenset(key.test_id for key in keys) - {REFERENCES}


class _StoredSession(Frozen, frozen=True, kw_only=True):
    """One session of a store, by the slug of the machine."""

    parts: Mapping[str, SessionContent]

    @property
    def first(self) -> SessionContent:
        """The first part. All parts have the same session."""
        return next(iter(self.parts.values()))

    @property
    def tests(self) -> frozenset[str]:
        """The tests, without the reference workloads."""
        first, *rest = (_tests_of(part.keys) for part in self.parts.values())
        return first.union(*rest) if rest else first

    @property
    def content(self) -> str:
        """The number of tests, or what a session without tests has."""
        if tests := self.tests:
            return str(len(tests))
        names = {
            "files" if key.name.startswith(FILES) else "references"
            for part in self.parts.values()
            for key in part.keys
        }
        return f"{' and '.join(sorted(names))} only"

    @property
    def python(self) -> str:
        """The version of Python, or "" if not recorded."""
        versions = (part.python_minor for part in self.parts.values())
        return next(filter(None, versions), "")

    @property
    def commit(self) -> str:
        """The shortened commit, with a plus if the working tree differed."""
        session = self.first.session
        return (session.commit or "")[:_COMMIT] + ("+" if session.dirty else "")


def listed(arguments: argparse.Namespace) -> int:
    """Print the sessions of a store."""
    store = opened_by(arguments)
    tests_of = _named(arguments.store, store, arguments.test)
    sessions = _joined({slug: store.contents(slug, t) for slug, t in tests_of.items()})
    tests = set().union(*{session.tests for session in sessions})
    count = display.plural(len(sessions), "session")
    remarks = [f"{count} of {display.plural(len(tests), 'test')}"]
    remarks += [f"left out: {damage}" for damage in store.damage]
    if store.damage:
        remarks.append(damage_remedy(arguments.store))
    return print_table(
        arguments.format,
        "baseline list",
        {
            "store": arguments.store,
            "sessions": [_session_facts(session) for session in sessions],
            "damage": [str(damage) for damage in store.damage],
        },
        title=arguments.store,
        table=_session_columns(sessions),
        remarks=remarks,
    )


def show(arguments: argparse.Namespace) -> int:
    """Print the series of some tests."""
    store = opened_by(arguments)
    content = _content(arguments.store, store, arguments.test)
    series = _series_of(content, arguments.metrics)
    metrics = {metric for _, _, metric, _ in series}
    outlooks = {
        slug: _outlooks(store, slug, {key.test_id for key in stored}, metrics)
        for slug, stored in content.items()
        if stored
    }
    shown = StoredTests((), arguments.store).shown
    facts = []
    for slug, records, metric, source in series:
        values = [(r, v) for r in records if (v := _value(r, metric, source))]
        outlook = outlooks[slug].get((records[0].key, metric, source), _Outlook())
        key = records[0].key
        title = str(replace(key, test_id=shown(key.test_id)))
        facts.append(
            {"test": shown(key.test_id), **_series_facts(slug, values, outlook)}
        )
        if arguments.format != "json":
            print_table(
                arguments.format,
                title=f"{title} {metric} [{source}] ({slug})",
                table=_value_columns(values, outlook),
                remarks=[*_outlook_remarks(values, outlook, arguments.store)],
            )
    if arguments.format == "json":
        whole = {"store": arguments.store, "series": facts}
        return print_table("json", "baseline show", whole, title="")
    return GOOD


def drop(arguments: argparse.Namespace) -> int:
    """Remove sessions of some or all tests from a store."""
    store = opened_by(arguments)
    content = _content(arguments.store, store, arguments.test)
    present = _joined({slug: contents_of(each) for slug, each in content.items()})
    ids = _chosen(arguments.sessions, present, arguments.store)
    count = 0
    for slug, sessions in content.items():
        changes = [
            Drop(key=key, session_ids=ids)
            for key, records in sessions.items()
            if any(record.session.id in ids for record in records)
        ]
        store.write(slug, changes)
        count += sum(change.key.test_id != REFERENCES for change in changes)
    left = len(_joined({slug: store.contents(slug) for slug in store.slugs()}))
    remark = (
        f"removed {display.plural(len(ids), 'session')} of "
        f"{display.plural(count, 'measurement')}; {display.plural(left, 'session')} left"
    )
    return print_table(
        arguments.format,
        "baseline drop",
        {"removed": sorted(ids), "measurements": count, "sessions": left},
        title=arguments.store,
        remarks=[remark],
    )


def rename(arguments: argparse.Namespace) -> int:
    """Move the sessions of renamed tests to the new ids."""
    store = opened_by(arguments)
    names = {slug: store.names(slug) for slug in store.slugs()}
    ids = sorted({key.test_id for keys in names.values() for key in keys})
    stored = StoredTests([i for i in ids if i != REFERENCES], arguments.store)
    renamed = stored.renamed(arguments.old, arguments.new)
    if not renamed:
        _refuse_unknown(
            {arguments.old: ()},
            [stored.shown(test_id) for test_id in ids],
            where=f"stored in {arguments.store}",
            otherwise=f"store a session first: {storing_command(arguments.store)}",
        )
    if renamed.keys() == {*renamed.values()}:
        raise ConfigError(
            f"the old and the new name are equal: {arguments.old}",
            remedy="give the stored name first, then the present one",
        )
    taken = [new for new in renamed.values() if new in ids]
    if taken:
        shown = stored.shown(taken[0])
        message = f"{arguments.store} has sessions of {shown} already"
        dropping = typed_command(
            *("gpuperf", "baseline", "drop", arguments.store, "all", f"--test={shown}")
        )
        raise ConfigError(message, remedy=f"remove these first: {dropping}")
    sessions: set[str] = set()
    for slug in names:
        series = store.load(slug, renamed, quantiles=False)
        changes = [
            Move(key=replace(key, test_id=renamed[key.test_id]), old=key, renamed=True)
            for key in series
        ]
        store.write(slug, changes)
        sessions.update(r.session.id for several in series.values() for r in several)
    pairs = {stored.shown(old): stored.shown(new) for old, new in renamed.items()}
    remarks = [f"renamed {old} to {new}" for old, new in pairs.items()]
    remarks.append(f"with {display.plural(len(sessions), 'session')}")
    return print_table(
        arguments.format,
        "baseline rename",
        {"renamed": pairs, "sessions": len(sessions)},
        title=arguments.store,
        remarks=remarks,
    )


def restore(arguments: argparse.Namespace) -> int:
    """Put back the sessions of removed tests that a run dropped."""
    store = opened_by(arguments)
    aside = {slug: series for slug, series in store.aside().items() if series}
    if not aside:
        message = f"no run has dropped anything from {arguments.store} recently"
        remedy = "restore the store from version control"
        if names_database(arguments.store):
            remedy = "restore the database from a copy"
        raise ConfigError(message, remedy=remedy)
    content = of_tests(
        aside,
        arguments.test,
        arguments.store,
        where=f"among those that a run dropped from {arguments.store}",
    )
    sessions: set[str] = set()
    for slug, series in content.items():
        store.put_back(slug, series.keys())
        sessions.update(r.session.id for records in series.values() for r in records)
    shown = StoredTests((), arguments.store).shown
    tests = sorted(
        {shown(key.test_id) for series in content.values() for key in series}
    )
    count = display.plural(len(sessions), "session")
    return print_table(
        arguments.format,
        "baseline restore",
        {"restored": tests, "sessions": len(sessions)},
        title=arguments.store,
        remarks=[f"restored {test}" for test in tests] + [f"with {count}"],
    )


def accept(arguments: argparse.Namespace) -> int:
    """Start series anew with the values of a run, or accept lines edited by hand."""
    if arguments.edited == (arguments.run is not None):
        named = "a run and --edited are" if arguments.edited else "nothing is"
        raise ConfigError(
            f"{named} named to accept",
            remedy="name a file of --gpuperf-json, or add --edited alone",
        )
    store = opened_by(arguments)
    if arguments.edited:
        repair = store.accept_edits()
        remarks = []
        if repair.accepted:
            places = [
                f"{damage.path}, line {damage.line}" for damage in repair.accepted
            ]
            count = display.plural(len(places), "line")
            remarks.append(f"accepted {count}: {names_of(places)}")
        remarks += [f"removed: {damage}" for damage in repair.removed]
        remarks = remarks or ["no line was edited"]
        content: dict[str, object] = {
            "accepted": [*map(str, repair.accepted)],
            "removed": [*map(str, repair.removed)],
        }
    else:
        remarks, content = _accept_run(store, arguments)
    return print_table(
        arguments.format,
        "baseline accept",
        content,
        title=arguments.store,
        remarks=remarks,
    )


def _content(place: str, store: Store, tests: Sequence[str]) -> _Content:
    """Return the sessions of the tests that `_named` finds."""
    tests_of = _named(place, store, tests)
    return {slug: store.load(slug, of_slug) for slug, of_slug in tests_of.items()}


def _named(
    place: str, store: Store, tests: Sequence[str]
) -> Mapping[str, frozenset[str] | None]:
    """
    Return the ids of the named tests of each slug, or None for all tests.

    Args:
        place: The name of the store, for messages.

        store: The store.

        tests: Names of tests as pytest takes them, or none for all tests.

    Raises:
        ConfigError: A named test has no session in the store.
    """
    if not tests:
        return dict.fromkeys(store.slugs())
    whole = {slug: store.names(slug) for slug in store.slugs()}
    found = of_tests(whole, tests, place, where=f"stored in {place}")
    return {slug: frozenset(k.test_id for k in keys) for slug, keys in found.items()}


_T = TypeVar("_T")


def of_tests(
    whole: Mapping[str, Mapping[RecordKey, _T]],
    tests: Sequence[str],
    place: str,
    *,
    where: str,
) -> Mapping[str, Mapping[RecordKey, _T]]:
    """
    Return the sessions of some or all tests.

    Args:
        whole: The sessions of all tests, or their names, by the slug of the machine.

        tests: Names of tests as pytest takes them, or none for all tests.

        place: The name of the store.

        where: The place of the existing tests, for the message.

    Raises:
        ConfigError: A named test has no session there.
    """
    if not tests:
        return whole
    ids = sorted({key.test_id for sessions in whole.values() for key in sessions})
    stored = StoredTests(ids, place)
    selected = {name: stored.named(name) for name in tests}
    if not selected.get(place, True):
        message = f"{place} is the store, and tests are named here"
        raise ConfigError(message, remedy="name a test, or leave it out for all tests")
    if not all(selected.values()):
        shown = [stored.shown(test_id) for test_id in ids]
        otherwise = f"store a session first: {storing_command(place)}"
        _refuse_unknown(selected, shown, where=where, otherwise=otherwise)
    wanted = frozenset().union(*selected.values())
    return {
        slug: {key: some for key, some in sessions.items() if key.test_id in wanted}
        for slug, sessions in whole.items()
    }


def _refuse_unknown(
    selected: Mapping[str, Collection[str]],
    ids: Sequence[str],
    *,
    where: str,
    otherwise: str,
) -> None:
    """
    Refuse names that select no test. The remedy has the nearest names.

    Args:
        selected: The tests that each name selects.

        ids: The existing tests.

        where: The place of the existing tests, for the message.

        otherwise: The remedy if there is no test at all.
    """
    unknown = [name for name, test_ids in selected.items() if not test_ids]
    if not unknown:
        return
    ids = [test_id for test_id in ids if test_id != REFERENCES]
    alike = _alike(unknown, ids) or ids[:1]
    remedy = (
        f"name a test as pytest does, as {', '.join(alike)}" if alike else otherwise
    )
    message = f"no test {', '.join(map(repr, unknown))} is {where}"
    raise ConfigError(message, remedy=remedy)


def _series_of(
    content: _Content, metrics: Sequence[str] | None
) -> list[tuple[str, Sequence[StoredRecord], str, str]]:
    """
    Return machine, sessions, metric and source of the series to show. Parts such as
    time.p95 are left out by default.

    Raises:
        ConfigError: A metric is stored of none of the tests.
    """
    found = [
        (
            slug,
            records,
            [*dict.fromkeys((v.metric, v.source) for r in records for v in r.values)],
        )
        for slug, sessions in content.items()
        for records in sessions.values()
    ]
    stored = sorted({metric for _, _, names in found for metric, _ in names})
    unknown = [name for name in dict.fromkeys(metrics or ()) if name not in stored]
    if unknown:
        alike = _alike(unknown, stored) or stored
        message = f"no metric {', '.join(map(repr, unknown))} is stored of these tests"
        raise ConfigError(message, remedy=f"name one of {names_of(alike)}")
    series: list[tuple[str, Sequence[StoredRecord], str, str]] = []
    for slug, records, names in found:
        if metrics is None:
            whole = {metric for metric, _ in names}
            shown = [name for name in names if name[0].rpartition(".")[0] not in whole]
        else:
            shown = [name for name in names if name[0] in metrics]
        series += [(slug, records, metric, source) for metric, source in shown]
    return series


def _alike(names: Sequence[str], known: Sequence[str]) -> list[str]:
    nearest = (difflib.get_close_matches(name, known, n=1) for name in names)
    return list(dict.fromkeys(name for names in nearest for name in names))


def _joined(contents: Mapping[str, Sequence[SessionContent]]) -> list[_StoredSession]:
    """Return the sessions of all slugs, in the order of arrival."""
    parts: dict[str, dict[str, SessionContent]] = {}
    for slug, of_slug in contents.items():
        for part in of_slug:
            parts.setdefault(part.session.id, {})[slug] = part
    return sorted(
        (_StoredSession(parts=several) for several in parts.values()),
        key=lambda session: (
            session.first.arrival,
            session.first.session.started_unix_s,
        ),
    )


def _chosen(
    names: Sequence[str], sessions: Sequence[_StoredSession], store: str
) -> frozenset[str]:
    """
    Return the ids of sessions given by number, by id or by the word *all*.

    Raises:
        ConfigError: A name has no session, or a merge has given several sessions the
            same number.
    """
    named = {
        name: [
            session.first.session.id
            for session in sessions
            if name in {session.first.session.id, str(session.first.arrival), _ALL}
        ]
        for name in names
    }
    absent = [name for name, ids in named.items() if not ids]
    shared = {n: ids for n, ids in named.items() if n != _ALL and len(ids) > 1}
    mistakes = [f"{store} has no session {', '.join(absent)}"] if absent else []
    listing = f"gpuperf baseline list {quoted(store)}"
    remedies = [f"name one of: {listing}"] if absent else []
    for name, ids in shared.items():
        mistakes.append(f"{len(ids)} sessions have the number {name}")
        remedies.append(f"name one by its id: {', '.join(ids)}")
    if mistakes:
        raise ConfigError("; ".join(mistakes), remedy="; ".join(remedies))
    return frozenset(session_id for ids in named.values() for session_id in ids)


def _session_columns(sessions: Sequence[_StoredSession]) -> tuple[Column, ...]:
    firsts = [session.first for session in sessions]
    dates = tuple(display.date(first.session.started_unix_s) for first in firsts)
    return (
        column("session", (str(f.arrival) for f in firsts), right=True),
        column("date", dates),
        column("commit", (s.commit for s in sessions), blank="-"),
        column("branch", (f.session.branch or "" for f in firsts), blank="-", rank=2),
        column("host", (_host(f) for f in firsts), rank=3),
        column("python", (s.python for s in sessions), blank="-", rank=1),
        # Not shortened, because `verify --machine` takes this name.
        column("machine", (", ".join(s.parts) for s in sessions)),
        column("tests", (s.content for s in sessions), right=True),
        column(
            "ran",
            (
                "" if f.session.ran_count is None else str(f.session.ran_count)
                for f in firsts
            ),
            right=True,
            blank="-",
            rank=3,
        ),
        column("id", (f.session.id for f in firsts)),
    )


def _session_facts(session: _StoredSession) -> dict[str, object]:
    head = session.first.session
    return {
        "number": session.first.arrival,
        "id": head.id,
        "started_unix_s": head.started_unix_s,
        "commit": head.commit,
        "dirty": head.dirty,
        "host": head.host,
        "machine": head.machine,
        "boot": head.boot,
        "branch": head.branch,
        "parent": head.parent,
        "run": head.run,
        "shard": head.shard,
        "python": session.python or None,
        "machines": [*session.parts],
        "tests": len(session.tests),
        "ran": head.ran_count,
    }


def _host(record: StoredRecord | SessionContent) -> str:
    return record.session.machine or record.session.host


def _value(record: StoredRecord, metric: str, source: str) -> SessionValue | None:
    named = (v for v in record.values if (v.metric, v.source) == (metric, source))
    return next(named, None)


_Values = Sequence[tuple[StoredRecord, "SessionValue"]]


class _Outlook(Frozen, frozen=True, kw_only=True):
    """
    The judge's view of a stored series.

    Attributes:
        left_out: Id of the session that is left out of judging, or "".

        sees: Smallest detectable change [fraction], or None if nothing gates the metric
            by default, or if too few sessions are stored.

        sees_later: The same with two more sessions.
    """

    left_out: str = ""
    sees: float | None = None
    sees_later: float | None = None


def _outlooks(
    store: Store, slug: str, shown: Collection[str], metrics: Collection[str]
) -> dict[tuple[RecordKey, str, str], _Outlook]:
    """
    Return the judge's view of stored series, as of a run of all tests.

    Args:
        store: The store.

        slug: The device.

        shown: Ids of the tests to show. Of a large store, only a sample of the others is
            read.

        metrics: The metrics to show.
    """
    others = sorted({key.test_id for key in store.names(slug)} - {REFERENCES, *shown})
    some = {*shown, *others[:: math.ceil(len(others) / _MOST_OTHERS) or 1]}
    share = (len(others) + len(shown)) / len(some)
    policy = replace(POLICY, pairs_per_case=share)
    # The reference workloads have the time only.
    wanted = {*metrics, "time"}
    stored = store.load(slug, {REFERENCES, *some}, metrics=wanted, quantiles=False)
    references = [
        newest_reference(records)
        for key, records in stored.items()
        if key.test_id == REFERENCES and not key.name.startswith(FILES)
    ]
    limits = {"time": _LIMIT}
    cases = [
        newest_case(records, metric, limit=limits.get(metric))
        for key, records in stored.items()
        if key.test_id != REFERENCES
        for metric in sorted({v.metric for r in records for v in r.values})
        if metric in metrics
    ]
    looks = first_look(cases, policy, references=references)
    now = smallest_seen(cases, policy, references=references)
    later = smallest_seen(
        cases, policy, references=references, more_sessions=MORE_SESSIONS
    )
    return {
        (case.key, case.metric.name, case.estimate.source): _Outlook(
            left_out=look.change.left_out, sees=sees, sees_later=sees_later
        )
        for case, look, sees, sees_later in zip(cases, looks, now, later, strict=True)
        if case.estimate is not None and look.change is not None
    }


def _outlook_remarks(values: _Values, outlook: _Outlook, place: str) -> Iterator[str]:
    numbers = {record.session.id: record.arrival for record, _ in values}
    if outlook.left_out:
        test_id = values[0][0].key.test_id
        yield (
            f"session {numbers[outlook.left_out]} is left out of judging: it is off by "
            "more than 25 %, and the other sessions exclude it; remove it: gpuperf "
            f"baseline drop {place} {outlook.left_out} --test={test_id}"
        )
    if outlook.sees is not None and outlook.sees_later is not None:
        limit = display.change(_LIMIT, signed=False)
        yield (
            f"it detects slowdowns of {display.least(outlook.sees)} or more at a limit of "
            f"{limit}; with {MORE_SESSIONS} more sessions {display.least(outlook.sees_later)}"
        )
        if not any(value.alone_values for _, value in values):
            yield (
                "no session has measured it alone, so a change of that size is missed more "
                "often; each run that stores measures some tests alone"
            )


def _value_columns(values: _Values, outlook: _Outlook) -> tuple[Column, ...]:
    numbers = [mean(value.run_values) for _, value in values]
    apart = [
        f"{distance}, left out" if record.session.id == outlook.left_out else distance
        for (record, _), distance in zip(values, _against_others(numbers), strict=True)
    ]
    spreads = tuple(
        f"±{display.change(median(v.half_widths), signed=False)}"
        if v.half_widths
        else ""
        for _, v in values
    )
    return (
        column("session", (str(r.arrival) for r, _ in values), right=True),
        column("date", (display.date(r.session.started_unix_s) for r, _ in values)),
        column(
            "commit", ((r.session.commit or "")[:_COMMIT] for r, _ in values), blank="-"
        ),
        column(
            "branch", (r.session.branch or "" for r, _ in values), blank="-", rank=2
        ),
        column("host", (_host(r) for r, _ in values), rank=3),
        column(
            "value",
            (
                display.value(number, value.unit)
                for number, (_, value) in zip(numbers, values, strict=True)
            ),
            right=True,
        ),
        column("spread", spreads, blank="-"),
        column("processes", (str(len(v.run_values)) for _, v in values), right=True),
        column("against the others", apart, right=True),
        column("alone", (_alone(v) for _, v in values), right=True, blank="-", rank=1),
    )


def _alone(value: SessionValue) -> str:
    """Return the median of the fresh processes that ran the test alone, or ""."""
    if not value.alone_values:
        return ""
    text = display.value(median(value.alone_values), value.unit)
    return f"{text} (suspected)" if value.suspected else text


def _against_others(numbers: Sequence[float]) -> tuple[str, ...]:
    """Return the distances of numbers from the median of the rest, or "" for a single number."""
    cells = []
    for index, number in enumerate(numbers):
        rest = [*numbers[:index], *numbers[index + 1 :]]
        middle = median(rest) if rest else 0.0
        cells.append(display.change(relative_change(number, middle)) if middle else "")
    return tuple(cells)


def _series_facts(slug: str, values: _Values, outlook: _Outlook) -> dict[str, object]:
    record, value = values[0]
    return {
        "key": record.key.test_id,
        "name": record.key.name,
        "metric": value.metric,
        "unit": value.unit,
        "source": value.source,
        "machine": slug,
        "left_out": outlook.left_out or None,
        "sees_fraction": outlook.sees,
        "sees_with_two_more_fraction": outlook.sees_later,
        "sessions": [
            {
                "number": r.arrival,
                "id": r.session.id,
                "commit": r.session.commit,
                "branch": r.session.branch,
                "host": r.session.host,
                "machine": r.session.machine,
                "choice": r.choice,
                "run_values": [*v.run_values],
                "half_widths": [*v.half_widths],
                "quantiles": [*v.quantiles],
                "alone_values": [*v.alone_values],
                "suspected": v.suspected,
                "ran": r.session.ran_count,
            }
            for r, v in values
        ],
    }


def _accept_run(
    store: Store, arguments: argparse.Namespace
) -> tuple[list[str], dict[str, object]]:
    run = read_run(arguments.run)
    if not run.header.completeness.complete:
        message = f"{arguments.run} is not complete, so its values are not stored"
        raise BaselineError(message, remedy="run the tests to their end first")
    by_slug: dict[str, list[StoreChange]] = {}
    keys = {test.test_id: test.key for test in run.tests if test.key}
    facts = []
    fresh = grouped(r for r in run.records if not r.role.of_suite)
    for records in _accepted(run, arguments.test, arguments.run):
        old, slug = records[0].key, slug_of(records[0])
        alone = fresh.get(old, ())
        session = with_alone(
            stored_record(
                records, session_on(run.header.session, records[0].host), run.version
            ),
            alone,
            suspected=any(record.role is Role.CONFIRM for record in alone),
        )
        key = replace(old, test_id=keys.get(old.test_id, old.test_id))
        change = Restart(record=replace(session, key=key))
        loaded = store.load(slug, [old.test_id, key.test_id])
        earlier = [r for r in loaded.get(old, ()) if key != old and r.has_node_id]
        if earlier:
            by_slug.setdefault(slug, []).append(Move(key=key, old=old))
        stored = joined([*earlier, *loaded.get(key, ())])
        by_slug.setdefault(slug, []).append(change)
        facts.append({"test": str(old), "dropped": dropped_by(change, stored)})
    for slug, changes in by_slug.items():
        store.write(slug, changes)
    remarks = [
        f"accepted {fact['test']}: {display.plural(int(str(fact['dropped'])), 'session')}"
        " dropped, 1 stored"
        for fact in facts
    ]
    remarks.append(f"store more sessions: {storing_command(arguments.store)}")
    return remarks, {"accepted": facts}


def _accepted(run: Run, tests: Sequence[str], path: str) -> Iterator[list[Record]]:
    """
    Yield the records of the accepted measurements, a list per measurement.

    Raises:
        ConfigError: The run lacks a named test, or no test was named and no metric of
            the run regressed or improved.
    """
    measured = grouped(r for r in run.records if r.role.of_suite and r.void is None)
    ids = sorted({key.test_id for key in measured})
    otherwise = "name a run that measured them"
    keys = {test.test_id: test.key for test in run.tests}
    selected = {
        name: [i for i in ids if is_of(i, name) or is_of(keys.get(i) or i, name)]
        for name in tests
    }
    _refuse_unknown(selected, ids, where=f"measured in {path}", otherwise=otherwise)
    wanted = {test_id for test_ids in selected.values() for test_id in test_ids}
    if not tests:
        moved = {v.key.test_id for v in run.verdicts if v.outcome in _ACCEPTED}
        if not moved:
            message = "nothing of the run regressed or improved, so nothing is accepted"
            raise ConfigError(message, remedy="name tests: --test=ID")
        wanted = moved
    for key, records in measured.items():
        if key.test_id in wanted:
            yield records
