"""The command `history`: when the tests of a store got slower, and since which commit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from pytest_gpuperf.cli.baseline import of_tests
from pytest_gpuperf.cli.output import (
    GOOD,
    STANDARD_STREAM,
    WORSE,
    print_bytes,
    print_table,
)
from pytest_gpuperf.cli.stored_tests import StoredTests, opened_or_named
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.judge.history import history_of, slow_machines
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import REFERENCES, RecordKey, StoredRecord
from pytest_gpuperf.report import display
from pytest_gpuperf.report import history as words
from pytest_gpuperf.report.html.history import history_html
from pytest_gpuperf.report.runs import write_output

if TYPE_CHECKING:
    import argparse

    from pytest_gpuperf.baseline.protocol import Store
    from pytest_gpuperf.model.environment import Session
    from pytest_gpuperf.model.history import (
        MovedMachine,
        SeriesHistory,
        StoreHistory,
    )

# The main branch, if the store has it. Otherwise, it is the one with most sessions.
_MAIN = ("main", "master")
# Tests of a kind of machine that show whether a machine moved.
_MOST_TESTS = 200
_Series = Mapping[RecordKey, tuple[StoredRecord, ...]]


def history(arguments: argparse.Namespace) -> int:
    """Print the lasting changes of the tests of a store."""
    store = opened_or_named(arguments)
    names = {slug: store.names(slug) for slug in store.slugs()}
    where = f"stored in {arguments.baseline}"
    chosen = of_tests(names, arguments.tests, arguments.baseline, where=where)
    stored = {slug: _past(store, slug, keys) for slug, keys in chosen.items()}
    heads = store.heads()
    others: Sequence[str] = ()
    if not arguments.all_branches:
        others = _other_branches(heads, stored if arguments.tests else {})
    selected = {slug: _without(series, others) for slug, series in stored.items()}
    metrics = arguments.metrics or ("time",)
    machines: Sequence[MovedMachine] = ()
    if len({head.machine for head in heads} - {None}) > 1:
        machines = _slow_machines(store, names, others)
    whole = history_of(selected, metrics, machines=machines)
    series = [_since(one, arguments.since) for one in whole.series]
    if arguments.tests and not series:
        message = f"no metric {', '.join(metrics)} is stored of these tests"
        remedy = "name another one with --metrics"
        if others:
            message += f", without the sessions of {display.listed(others)}"
            remedy += ", or add --all-branches"
        raise ConfigError(message, remedy=remedy)
    slower = any(move.stands for one in series for move in one.moves)
    shown = StoredTests((), arguments.baseline).shown
    listed = series if arguments.tests else [one for one in series if one.moves]
    if arguments.output is not None:
        content = history_html(whole, listed, shown, store=arguments.baseline)
        if arguments.output == STANDARD_STREAM:
            print_bytes(content)
        else:
            write_output(arguments.output, content)
    elif arguments.format == "json":
        facts = {
            "store": arguments.baseline,
            "series_count": len(series),
            "other_branches": [*others],
            **words.content(whole, listed, shown),
        }
        print_table("json", "history", facts, title="")
    else:
        _print(arguments, whole, series, listed, others)
    return WORSE if slower and arguments.fail_on == "slower" else GOOD


def _print(
    arguments: argparse.Namespace,
    whole: StoreHistory,
    series: Sequence[SeriesHistory],
    listed: Sequence[SeriesHistory],
    others: Sequence[str],
) -> None:
    shown = StoredTests((), arguments.baseline).shown
    for one in listed:
        test = shown(one.key.test_id)
        name = str(replace(one.key, test_id=test))
        print_table(
            arguments.format,
            title=words.title(one, name),
            table=words.columns(one),
            remarks=[*words.remarks(one, test)],
        )
    moved = sum(bool(one.moves) for one in series)
    count = display.plural(len(series), "series", "series")
    remarks = [words.machine_text(machine) for machine in whole.machines]
    remarks.append(f"{count}, {moved} with a lasting change")
    if others:
        remarks.append(
            f"left out: the sessions of {display.listed(others)} (--all-branches)"
        )
    title = f"history of {arguments.baseline}"
    print_table(arguments.format, title=title, remarks=remarks)


def _past(store: Store, slug: str, keys: Collection[RecordKey]) -> _Series:
    """Return all sessions of some measurements."""
    tests = {key.test_id for key in keys}
    return store.load(slug, tests, quantiles=False, past=True)


def _slow_machines(
    store: Store,
    names: Mapping[str, Collection[RecordKey]],
    others: Collection[str],
) -> Sequence[MovedMachine]:
    """Return the machines that moved, by reference workloads and some tests of each kind."""
    fleet = {}
    for slug, keys in names.items():
        tests = [key for key in keys if key.test_id != REFERENCES]
        references = [key for key in keys if key.test_id == REFERENCES]
        some = tests[:: math.ceil(len(tests) / _MOST_TESTS) or 1]
        fleet[slug] = _without(_past(store, slug, [*some, *references]), others)
    return slow_machines(fleet)


def _other_branches(
    heads: Iterable[Session], stored: Mapping[str, _Series]
) -> Sequence[str]:
    """
    Return the branches other than the main one, sorted.

    A pull request that stores all values puts its own levels between those of the main
    branch. Sessions without a branch count as the main one's.

    Args:
        heads: All sessions.

        stored: The sessions of some tests, if only their branches are wanted.
    """
    counts = Counter(head.branch for head in heads if head.branch)
    usual = [name for name in _MAIN if name in counts]
    main = usual or [name for name, _ in counts.most_common(1)]
    shown = {
        record.session.branch
        for series in stored.values()
        for records in series.values()
        for record in records
    }
    return sorted(counts.keys() & (shown if stored else counts.keys()) - {*main[:1]})


def _without(series: _Series, branches: Collection[str]) -> _Series:
    if not branches:
        return series
    kept = (
        (key, tuple(r for r in records if r.session.branch not in branches))
        for key, records in series.items()
    )
    return {key: records for key, records in kept if records}


def _since(series: SeriesHistory, since: str | None) -> SeriesHistory:
    """
    Return a series without the changes before a day.

    Raises:
        ConfigError: The day is not written as YYYY-MM-DD.
    """
    if since is None:
        return series
    try:
        day = datetime.strptime(since, "%Y-%m-%d").replace(tzinfo=timezone.utc)
    except ValueError as error:
        message = f"--since={since} is not a day"
        raise ConfigError(message, remedy="write it as 2026-05-31") from error
    moves = tuple(
        move
        for move in series.moves
        if series.points[move.place].started_unix_s >= day.timestamp()
    )
    return replace(series, moves=moves)
