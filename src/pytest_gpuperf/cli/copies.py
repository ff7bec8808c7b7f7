"""The commands that bring sessions from elsewhere into a store, or prepare a database.

These are `baseline copy`, `send`, `import`, `migrate` and `grants`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.baseline.changes import Append
from pytest_gpuperf.baseline.history import SESSION_LIMIT, newest_of
from pytest_gpuperf.baseline.rows import digest
from pytest_gpuperf.baseline.store import (
    UNSENT,
    names_database,
    open_database,
    open_store,
)
from pytest_gpuperf.baseline.stored_record import shown_digits
from pytest_gpuperf.baseline.tables import SCHEMA
from pytest_gpuperf.cli.output import GOOD, print_table, read_file
from pytest_gpuperf.cli.stored_tests import opened, opened_by
from pytest_gpuperf.collect.checkout import git_folder
from pytest_gpuperf.collect.translate.results import (
    OF_RESULTS,
    ForeignResults,
    ForeignTime,
    foreign_results,
)
from pytest_gpuperf.errors import ConfigError, RecordError
from pytest_gpuperf.model.environment import Session, family_facts, family_of
from pytest_gpuperf.model.record import RecordKey, SessionValue, StoredRecord
from pytest_gpuperf.model.url import masked
from pytest_gpuperf.pipeline.memory import slug_of_facts
from pytest_gpuperf.report import display

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pytest_gpuperf.baseline.changes import StoreChange
    from pytest_gpuperf.baseline.database import DatabaseStore
    from pytest_gpuperf.baseline.protocol import Store

_TIME = "time"
# For the owner of a database, who runs it with psql. A role is a group that users get.
_GRANTS = """\
DO $$ BEGIN CREATE ROLE gpuperf_read; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
DO $$ BEGIN CREATE ROLE gpuperf_write; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
GRANT USAGE ON SCHEMA {schema} TO gpuperf_read, gpuperf_write;
GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO gpuperf_read;
GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA {schema} TO gpuperf_write;
"""


def copy(arguments: argparse.Namespace) -> int:
    """Copy the sessions of a store into another store."""
    store = opened_by(arguments)
    wanted = set(arguments.machines or ())
    slugs = store.slugs()
    unknown = sorted(wanted.difference(slugs))
    if unknown:
        raise ConfigError(
            f"{arguments.store} has no sessions of {', '.join(unknown)}",
            remedy=f"name one of {', '.join(slugs)}"
            if slugs
            else "store a session first",
        )
    target = open_store(arguments.target, ".", create=True)
    before = _held(target)
    chosen = [s for s in slugs if s in (wanted or slugs)]
    by_session = _by_session(store, chosen, arguments.newest)
    for changes in by_session:
        target.write_all(changes)
    found = len(by_session)
    copied = len({session_id for *_, session_id in _held(target) - before})
    shown = masked(arguments.target)
    count = display.plural(copied, "session")
    remarks = [f"copied {count} from {arguments.store} to {shown}"]
    if copied < found:
        remarks.append(f"{display.plural(found - copied, 'session')} added nothing")
    return print_table(
        arguments.format,
        "baseline copy",
        {"store": arguments.store, "target": shown, "sessions": copied},
        title=shown,
        remarks=remarks,
    )


def send(arguments: argparse.Namespace) -> int:
    """Store the sessions that a run could not store, and remove their files."""
    files = arguments.files or _unsent()
    if not files:
        message = f"there is no session to send in {UNSENT}"
        raise ConfigError(message, remedy="name a file that a run has kept")
    # All are read before the first is sent and removed: the same command can be repeated
    # after a damaged file was mended.
    kept = []
    for name in files:
        store = opened(name)
        kept.append((Path(name), _by_session(store, store.slugs(), None)))
    target = open_store(arguments.store, ".")
    shown = masked(arguments.store)
    sent = 0
    for path, by_session in kept:
        for changes in by_session:
            target.write_all(changes)
        sent += len(by_session)
        path.unlink()
    count = display.plural(sent, "session")
    return print_table(
        arguments.format,
        "baseline send",
        {"store": shown, "sessions": sent},
        title=shown,
        remarks=[f"sent {count} to {shown}"],
    )


def _unsent() -> list[str]:
    """
    Return the files that a run has kept, sorted.

    A run keeps them in its root folder, which may be above this one in the repository.
    """
    here = Path.cwd()
    top = git_folder(here) or here
    for folder in (here, *here.parents):
        found = sorted((folder / UNSENT).glob("*.json"))
        if found or folder == top:
            return [os.path.relpath(path) for path in found]
    return []


def prune(arguments: argparse.Namespace) -> int:
    """Remove old sessions of a database, as the owner."""
    least = SESSION_LIMIT
    if arguments.sessions < least:
        message = f"--sessions={arguments.sessions} is less than comparisons use"
        raise ConfigError(message, remedy=f"keep {least} sessions or more")
    store = _database(arguments.store)
    counts = store.prune(arguments.sessions, dry_run=arguments.dry_run)
    shown = masked(arguments.store)
    deed = "would remove" if arguments.dry_run else "removed"
    return print_table(
        arguments.format,
        "baseline prune",
        {"store": shown, "values": counts, "dry_run": arguments.dry_run},
        title=shown,
        remarks=[
            f"{deed} {display.plural(counts[slug], 'value')} of {slug}"
            for slug in counts
        ]
        or [f"{shown} has no sessions"],
    )


def _database(place: str, *, create: bool = False) -> DatabaseStore:
    """
    Open the database of a URL.

    Raises:
        ConfigError: The name is that of another store.
    """
    if not names_database(place):
        raise ConfigError(
            f"{place} is not the URL of a database",
            remedy="name sqlite:///FILE.db or postgresql://HOST/NAME",
        )
    return open_database(place, ".", create=create)


def migrate(arguments: argparse.Namespace) -> int:
    """Create the tables of a database, as the owner."""
    store = _database(arguments.store, create=True)
    created = store.migrate()
    shown = masked(arguments.store)
    deed = "created the tables" if created else "the tables are up to date"
    return print_table(
        arguments.format,
        "baseline migrate",
        {"store": shown, "created": created, "version": SCHEMA},
        title=shown,
        remarks=[f"{deed} (version {SCHEMA})"],
    )


def _held(store: Store) -> set[tuple[str, RecordKey, str]]:
    return {
        (slug, key, record.session.id)
        for slug in store.slugs()
        for key, records in store.load(slug).items()
        for record in records
    }


def _by_session(
    store: Store, slugs: Sequence[str], newest_count: int | None
) -> list[dict[str, list[StoreChange]]]:
    found: dict[tuple[int, str], dict[str, list[StoredRecord]]] = {}
    for slug in slugs:
        for every in store.load(slug).values():
            records = every if newest_count is None else newest_of(every, newest_count)
            for record in records:
                at = (record.arrival, record.session.id)
                found.setdefault(at, {}).setdefault(slug, []).append(record)
    return [
        {
            slug: [Append(record=each) for each in records]
            for slug, records in part.items()
        }
        for _, part in sorted(found.items(), key=lambda entry: entry[0])
    ]


def grants(arguments: argparse.Namespace) -> int:
    """Print the statements that let roles store, or only read."""
    # Always quoted, because a name may be a word of SQL, or have capitals.
    name = arguments.schema.replace('"', '""')
    print(_GRANTS.format(schema=f'"{name}"'), end="")
    return GOOD


def imported(arguments: argparse.Namespace) -> int:
    """Store the times of files of other tools, a session for each file."""
    runs = [(path, *_read(path)) for path in arguments.files]
    target = open_store(arguments.store, ".", create=True)
    held = {session_id for *_, session_id in _held(target)}
    remarks: list[str] = []
    facts = []
    for path, results, session in runs:
        changes = _changes(results, session)
        target.write_all(changes)
        if session.id in held:
            remarks.append(f"{path} was imported before and added nothing")
        else:
            count = display.plural(len(results.times), "time")
            remarks.append(f"imported {count} of {results.tool} from {path}")
        held.add(session.id)
        if results.started_unix_s is None:
            when = display.date(session.started_unix_s)
            remarks.append(
                f"{path} has no date: the session gets that of the file, {when}"
            )
        remarks += [f"left out: {sentence}" for sentence in results.left_out]
        facts.append(
            {
                "file": path,
                "tool": results.tool,
                "session": session.id,
                "machines": sorted(changes),
                "times": len(results.times),
                "left_out": [*results.left_out],
            }
        )
    remarks.append(
        "the method of another tool is a fact, so these values are compared with each "
        "other, and never with those that gpuperf has measured"
    )
    shown = masked(arguments.store)
    print_table(
        arguments.format,
        "baseline import",
        {"store": shown, "imported": facts},
        title=shown,
        remarks=remarks,
    )
    return GOOD


def _read(path: str) -> tuple[ForeignResults, Session]:
    """
    Return the results of a file and a session with a digest of the file as id.

    Raises:
        RecordError: It is not a result of a known tool, or has no time.
    """
    text = read_file(path, remedy=OF_RESULTS)
    results = foreign_results(text, path=path)
    if not results.times:
        raise RecordError("it has no time", path=path, remedy="name another file")
    started_unix_s = results.started_unix_s
    if started_unix_s is None:
        started_unix_s = Path(path).stat().st_mtime
    session = Session(
        id=digest(text, length=16),
        started_unix_s=started_unix_s,
        host="",
        commit=results.commit,
        dirty=results.dirty,
        branch=results.branch,
        ran_count=len({time.test_id for time in results.times}),
    )
    return results, session


def _changes(results: ForeignResults, session: Session) -> dict[str, list[StoreChange]]:
    by_key: dict[tuple[str, RecordKey], list[ForeignTime]] = {}
    for time in results.times:
        place = (
            slug_of_facts(time.facts),
            RecordKey(test_id=time.test_id, name=time.name),
        )
        by_key.setdefault(place, []).append(time)
    changes: dict[str, list[StoreChange]] = {}
    for (slug, key), times in by_key.items():
        facts = {}
        values = []
        for time in times:
            family = family_of(_TIME, time.source)
            facts[family.value] = family_facts(family, time.facts)
            values.append(
                SessionValue(
                    metric=_TIME,
                    unit="s",
                    source=time.source,
                    run_values=(time.value_s,),
                    quantiles=tuple(map(shown_digits, time.quantiles_s)),
                )
            )
        record = StoredRecord(
            key=key, session=session, values=tuple(values), facts=facts
        )
        changes.setdefault(slug, []).append(Append(record=record))
    return changes
