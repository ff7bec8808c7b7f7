"""The changes of a store at the end of a run: new sessions, and those of removed tests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.baseline.changes import Append, Drop, Move, Restart
from pytest_gpuperf.baseline.files import write_new
from pytest_gpuperf.baseline.history import SESSION_LIMIT, of_project
from pytest_gpuperf.baseline.store import (
    UNSENT,
    SingleFileStore,
    folder_name,
    names_database,
)
from pytest_gpuperf.errors import BaselineError
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import RecordKey, StoredRecord, module_of
from pytest_gpuperf.report.display import plural
from pytest_gpuperf.report.explanation import from_root, typed_command

if TYPE_CHECKING:
    from pytest_gpuperf.baseline.changes import StoreChange
    from pytest_gpuperf.model.environment import Session
    from pytest_gpuperf.model.run import Scope
    from pytest_gpuperf.pipeline.memory import Memory

# Facts of a machine. The facts of compiled code and of captured reports name at most a chip.
_OF_MACHINE = frozenset(
    {"cpu_model", "core_count", "gpu_memory_bytes", "driver_branch"}
)


def write(memory: Memory, changes: Mapping[str, list[StoreChange]]) -> None:
    """
    Store the measured values, by GPU, chip or host.

    Raises:
        BaselineError: A file cannot be read or written. The file is unchanged. If a
            database cannot be written, the session is kept in a file.
    """
    if memory.lost is not None:
        raise _unsent(memory, changes, memory.lost)
    store = memory.store()
    if store is None:
        return
    try:
        whole: dict[str, list[StoreChange]] = {}
        modules = set(map(module_of, memory.learned))
        for folder, of_folder in changes.items():
            keyed: list[StoreChange] = []
            for old, named in store.names(folder, modules).items():
                key = memory.stored_key(old)
                if key != old and named.any_id:
                    keyed.append(Move(key=key, old=old))
            whole[folder] = [
                *keyed,
                *(_under_key(memory, change) for change in of_folder),
            ]
        store.write_all(whole)
    except BaselineError as error:
        if not names_database(memory.config.baseline or ""):
            raise
        raise _unsent(memory, changes, error) from None


def _under_key(memory: Memory, change: StoreChange) -> StoreChange:
    key = memory.stored_key(change.key)
    if key == change.key:  # The usual case.
        return change
    if not isinstance(change, (Append, Restart)):
        return change
    return replace(change, record=replace(change.record, key=key))


def _unsent(
    memory: Memory, changes: Mapping[str, list[StoreChange]], error: BaselineError
) -> BaselineError:
    """Keep a session that a database could not store, and return an error with its file."""
    added: dict[str, list[StoreChange]] = {}
    accepted = 0
    ids = set()
    for folder, of_folder in changes.items():
        for change in of_folder:
            if isinstance(change, Append):
                ids.add(change.record.session.id)
                added.setdefault(folder, []).append(_under_key(memory, change))
            accepted += isinstance(change, Restart)
    if not ids:
        return error
    file = f"{UNSENT}/{min(ids)}.json"
    path = Path(memory.config.root, file)
    name = from_root(file, memory.config.option_texts)
    SingleFileStore(path).write_all(added)
    write_new(path.with_name(".gitignore"), b"*\n")
    without = f" without {plural(accepted, 'accepted measurement')}"
    send = typed_command("gpuperf", "baseline", "send", memory.place(), name)
    return BaselineError(
        f"{error.message}; the session is kept in {name}{without if accepted else ''}",
        remedy=f"{error.remedy}; then send it: {send}",
    )


def removed(
    memory: Memory,
    test_ids: Collection[str],
    slugs: Collection[str],
    *,
    scope: Scope,
    session: Session,
    python_minor: str,
) -> tuple[dict[str, list[Drop]], tuple[str, ...]]:
    """
    Return the stored sessions to drop, because their tests are no longer in the code.

    Sessions measured on other machines are kept, as are sessions of another Python
    version still in use. As several projects may share a store, only sessions
    linked to this project are dropped.

    Args:
        memory: The stored sessions.

        test_ids: The ids of the tests of the run.

        slugs: The GPUs, chips and hosts that the run measures on.

        scope: The scope in which the run looked for tests.

        session: The session of the run.

        python_minor: The Python version of the run.

    Returns:
        The sessions to drop by folder, and the keys of tests that may belong to a
        different project.
    """
    gone = _gone(memory, test_ids, slugs, scope=scope, python_minor=python_minor)
    if not gone:
        return {}, ()
    known = set(test_ids) | {memory.learned.get(t, t) for t in test_ids}
    every = [r for f in memory.loaded.values() for rs in f.values() for r in rs]
    commits = [c for c in (session.commit, session.parent) if c]
    ours = of_project(every, known, commits)
    drops: dict[str, list[Drop]] = {}
    doubted: dict[str, None] = {}
    for (folder, key), records in gone.items():
        linked = frozenset(r.session.id for r in records if r.session.id in ours)
        if linked:
            drops.setdefault(folder, []).append(Drop(key=key, session_ids=linked))
        else:
            doubted[memory.key_of_stored(records[0])] = None
    return drops, tuple(doubted)


def _gone(
    memory: Memory,
    test_ids: Collection[str],
    slugs: Collection[str],
    *,
    scope: Scope,
    python_minor: str,
) -> Mapping[tuple[str, RecordKey], list[StoredRecord]]:
    """
    Return the sessions of removed tests for this machine and Python, by folder and key.
    """
    store = memory.store()
    if store is None:
        return {}
    known = {*test_ids, *map(memory.key_of, test_ids)}
    if not any(
        test not in known and scope.has_removed(test)
        for folder in store.slugs()
        for key, named in memory.measurements(
            store, folder, memory.modules_of(store, folder)
        )
        for test in memory.tests_of(key, named)
    ):
        return {}
    memory.read_whole(store, store.slugs())
    here = {folder_name(name) for name in slugs} | set(slugs)
    ids, keys = set(test_ids), {memory.learned.get(t, t) for t in test_ids}
    stored = [record for _, _, record in memory.records()]
    newest = max((record.arrival for record in stored), default=0)
    # A Python version without a newer session is no longer in use.
    in_use = {_python_of(r) for r in stored if r.arrival > newest - SESSION_LIMIT}
    others = in_use - {None, python_minor}
    gone: dict[tuple[str, RecordKey], list[StoredRecord]] = {}
    for folder, key, record in memory.records():
        test = memory.key_of_stored(record)
        there = key.test_id in ids if record.has_node_id else test in keys
        # A session read from code or a report belongs to no machine.
        facts = record.facts.values()
        is_ours = folder in here or not any(_OF_MACHINE & f.keys() for f in facts)
        if (
            not there
            and scope.has_removed(test)
            and is_ours
            and _python_of(record) not in others
        ):
            gone.setdefault((folder, key), []).append(record)
    return gone


def _python_of(record: StoredRecord) -> str | None:
    facts = record.facts.values()
    return next((f["python_minor"] for f in facts if "python_minor" in f), None)


def drop(memory: Memory, drops: Mapping[str, Sequence[Drop]]) -> None:
    """
    Move sessions out of the store into files next to it.

    Raises:
        BaselineError: A file cannot be read or written.
    """
    store = memory.store()
    if store is not None:
        for folder, of_folder in drops.items():
            store.set_aside(folder, of_folder)
