"""The command `history`: when the tests of a store got slower, and since which commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
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
from pytest_gpuperf.cli.stored_tests import StoredTests, opened
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.judge.history import history_of, slow_machines
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import RecordKey, StoredRecord
from pytest_gpuperf.model.url import masked
from pytest_gpuperf.report import display
from pytest_gpuperf.report import history as words
from pytest_gpuperf.report.html.history import history_html
from pytest_gpuperf.report.lines import document
from pytest_gpuperf.report.runs import write_output

if TYPE_CHECKING:
    import argparse

    from pytest_gpuperf.model.history import SeriesHistory, StoreHistory

# The main branch, if the store has it. Otherwise, it is the one with most sessions.
_MAIN = ("main", "master")
_Series = Mapping[RecordKey, tuple[StoredRecord, ...]]


def history(arguments: argparse.Namespace) -> int:
    """Print the lasting changes of the tests of a store."""
    store = opened(arguments.baseline)
    arguments.baseline = masked(arguments.baseline)
    every = {slug: store.load(slug, past=True) for slug in store.slugs()}
    others = () if arguments.all_branches else _other_branches(every)
    stored = {slug: _without(series, others) for slug, series in every.items()}
    where = f"stored in {arguments.baseline}"
    selected = of_tests(every, arguments.tests, arguments.baseline, where=where)
    selected = {slug: _without(series, others) for slug, series in selected.items()}
    metrics = arguments.metrics or ("time",)
    whole = history_of(selected, metrics, machines=slow_machines(stored))
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
        facts = document(
            "history",
            {
                "store": arguments.baseline,
                "series_count": len(series),
                "other_branches": [*others],
                **words.content(whole, listed, shown),
            },
        )
        print_table("json", title="", table=(), remarks=(), content=facts)
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
            content={},
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
    print_table(arguments.format, title=title, table=(), remarks=remarks, content={})


def _other_branches(stored: Mapping[str, _Series]) -> Sequence[str]:
    """
    Return the branches other than the main one, sorted.

    A pull request that stores all values puts its own levels between those of the main
    branch. Sessions without a branch count as the main one's.
    """
    sessions = {
        record.session.id: record.session.branch
        for series in stored.values()
        for records in series.values()
        for record in records
    }
    counts = Counter(branch for branch in sessions.values() if branch)
    usual = [name for name in _MAIN if name in counts]
    main = usual or [name for name, _ in counts.most_common(1)]
    return sorted(counts.keys() - {*main[:1]})


def _without(series: _Series, branches: Collection[str]) -> _Series:
    """Return the sessions that are of none of some branches."""
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
