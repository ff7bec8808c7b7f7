"""Find the tests that use no file changed since a stored session.

A run that stores sessions with --gpuperf-changed also stores the files that its tests have
opened. Before a later run measures, git shows which of these files have changed.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pytest_gpuperf.baseline.changes import Append, Drop
from pytest_gpuperf.baseline.store import UNSENT, places_of
from pytest_gpuperf.collect.import_code import runs_alike
from pytest_gpuperf.collect.loaded_files import content_digest, digest_of
from pytest_gpuperf.collect.opened_files import (
    OpenedByTest,
    OpenedFile,
    environments_in,
)
from pytest_gpuperf.collect.outside import code_digest, import_places, outside_code
from pytest_gpuperf.collect.redirection import editable_folders, inside
from pytest_gpuperf.collect.worktree import Changes, Repository
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import (
    FILES,
    REFERENCES,
    FileList,
    Record,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.sample import Source
from pytest_gpuperf.pipeline.memory import slug_of, slugs_of_machine
from pytest_gpuperf.pipeline.proof import (
    UsedFiles,
    file_list,
    installs,
    names_changed,
    same_tests,
    used_names,
    without_tools,
)
from pytest_gpuperf.pipeline.sides import loaded_here
from pytest_gpuperf.report.display import commit as short
from pytest_gpuperf.report.display import plural, some_of

if TYPE_CHECKING:
    from pytest_gpuperf.baseline.changes import StoreChange
    from pytest_gpuperf.config import Config
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.model.environment import Session
    from pytest_gpuperf.pipeline.memory import Memory
    from pytest_gpuperf.pipeline.suite import Suite

# A conftest.py belongs to the tests of its folder with any functions.
_CONFTEST = "conftest.py"
_UNKNOWN_FILES = (
    "they are recorded on Linux, if pytest is started in the git repository, and not by "
    "code of the project"
)
_STORE_FIRST = "store a session with --gpuperf-changed --gpuperf-update=new"


class Unchanged(Frozen, frozen=True, kw_only=True):
    """
    The tests that need no measurement.

    Attributes:
        keys: The keys of the tests.

        commit: The commit of the session that measured them, or "".

        why_none: Why every test is measured, or "".
    """

    keys: frozenset[str] = frozenset()
    commit: str = ""
    why_none: str = ""


def unchanged_tests(
    site: Site,
    memory: Memory,
    parameters: Mapping[str, str | None],
    *,
    selection: str | None,
) -> Unchanged:
    """
    Return the tests that use no file changed since the newest session that stored its files.

    With a revision to compare with, none of the files may differ from the revision either.

    Args:
        site: The site of this process, which has collected its tests.

        memory: The stored sessions.

        parameters: By key of a test, the digest of its parameters, "" without parameters,
            or None if their values have no digest.

        selection: The digest of what selects the tests, as in a Session.
    """
    shard = site.shard()
    of_files = _key(selection, None if shard is None else str(shard))
    try:
        device = site.device()
        slugs = slugs_of_machine(
            site.environment, None if device is None else device.name
        )
        left, same = set(parameters), set[str]()
        commit = why_none = ""
        for stored in memory.file_lists(of_files, slugs):
            files = stored.files
            if files is None or stored.session.commit is None:
                continue
            keys = left & files.measured.keys()
            if not keys:
                continue
            left -= keys
            unchanged, why = _same_since(stored.session.commit, files, site)
            found = {k for k in keys & unchanged if files.measured[k] == parameters[k]}
            if found:
                commit = commit or stored.session.commit
                same |= found
            elif keys & unchanged:
                where = f"the session of {short(stored.session.commit)}"
                why = f"each test has other parameters than in {where}"
            why_none = why_none or why
        if same:
            return Unchanged(keys=frozenset(same), commit=commit)
        where = "the store has no files of a run with these arguments on this machine"
        return Unchanged(why_none=why_none or f"{where}; {_STORE_FIRST}")
    except GpuPerfError as error:
        return Unchanged(why_none=str(error))


def _same_since(commit: str, files: FileList, site: Site) -> tuple[frozenset[str], str]:
    """
    Return the keys of the tests that use no file changed since a session, or why none.

    Args:
        commit: The commit of the session.

        files: The files of the session.

        site: The site of this process.
    """
    if files.surroundings != _surroundings(site):
        what = "with another Python, other packages or another GPU or driver"
        where = f"the session of {short(commit)} was measured {what}"
        return frozenset(), f"{where}; {_STORE_FIRST}"
    keys = frozenset(files.ended)
    revisions, changed = [commit], set[str]()
    repository = Repository.at(site.config.root, site.runner, revision=commit)
    if elsewhere := _changed_outside(files.digests, repository.root):
        where = f"{some_of(elsewhere)}, outside of the repository, changed"
        return frozenset(), f"{where} since the session of {short(commit)}"
    if site.config.against is not None:
        revisions.append(repository.commit_of(site.config.against))
    for revision in revisions:
        changes = changes_since(repository, revision, site.config)
        installing = installs(changes.differing)
        if installing:
            why = "so the installed packages or the build may differ"
            where = f"{some_of(installing)} changed since {short(revision)}"
            return frozenset(), f"{where}, {why}"
        opened = OpenedByTest.of_session(files, changes.root)
        modules = {key: key.partition("::")[0] for key in files.ended}
        used = used_files(opened, modules, site.config)
        # A file that the commit does not have is the same if its content is.
        digests, names = files.digests, names_changed(used, changes, files.entries)
        others = used_names(used) - changes.before
        same = frozenset(
            name
            for name in others & digests.keys()
            if content_digest(Path(changes.root, name)) == digests[name]
        )
        changes = replace(
            changes,
            differing=((changes.differing | others) - same) | names,
            listed=changes.listed | others,
            before=changes.before | others,
        )
        _move_bodies(repository, revision, used, changes)
        keys &= same_tests(used, changes)
        changed |= changes.differing & used_names(used) or changes.differing
    why = f"each test uses a file that changed since {short(commit)}, or may use one"
    return keys, f"{why}: {some_of(sorted(changed))}" if changed else why


def store_files(
    suite: Suite, changes: dict[str, list[StoreChange]], good: Sequence[Record]
) -> str:
    """
    Add the files of a run to the changes of its store, also if no value is stored.

    Args:
        suite: The run.

        changes: The changes by machine.

        good: A record of each test that a later run may leave unmeasured.

    Returns:
        What is not stored and why, or that only the files are stored, or "".
    """
    has_values = bool(changes)
    try:
        gap = _store_files(suite, changes, good)
    except GpuPerfError as error:
        gap = str(error)
    if gap:
        return f"the files of the tests are not stored: {gap}"
    if changes and not has_values:
        return f"the files of {plural(len(good), 'test')} are stored, without a value"
    return ""


def _store_files(
    suite: Suite, changes: dict[str, list[StoreChange]], good: Sequence[Record]
) -> str:
    if not good:
        # The lines about values say why.
        return ""
    opened, session = suite.opened, suite.site.session
    if opened is None or not opened.is_known or session.commit is None:
        return _UNKNOWN_FILES
    if any(record.host is not None for record in suite.records()):
        return "some tests ran on another host"
    repository = Repository.at(suite.config.root, suite.site.runner)
    differing = changes_since(repository, session.commit, suite.config)
    if differing.root != opened.root:
        return _UNKNOWN_FILES
    edited = sorted(p for p in differing.differing if p.rstrip("/") in differing.before)
    if edited:
        return f"{some_of(edited)} differ from the commit; commit first"
    keys = {
        node_id: suite.memory.key_of(test_id)
        for node_id in opened.ended
        if (test_id := suite.test_of(node_id)) is not None
    }
    used = used_files(opened, {}, suite.config)
    files = file_list(
        used,
        {key: opened.ended[node_id] for node_id, key in keys.items()},
        _surroundings(suite.site),
        {
            **_digests(used_names(used) - differing.before, differing.root, session),
            **_digests_outside(used, session),
        },
        {suite.memory.key_of(r.key.test_id): r.parameters_digest or "" for r in good},
    )
    record = _record(session, files)
    slugs = sorted(changes) or sorted({slug_of(each) for each in good})
    for slug in slugs:
        older = suite.memory.file_lists(record.key, [slug])
        drop = _superseded(record, files, older)
        changes.setdefault(slug, []).extend([*drop, Append(record=record)])
    return ""


def _superseded(
    new: StoredRecord, files: FileList, older: Sequence[StoredRecord]
) -> list[Drop]:
    """
    Return the change that drops the stored files that no test needs any more.

    Args:
        new: The record with the new files.

        files: The new files.

        older: The stored records, newest first.
    """
    found, dropped = set(files.measured), set()
    for record in older:
        has = set(record.files.measured if record.files else ()) & files.ended.keys()
        if has <= found:
            dropped.add(record.session.id)
        found |= has
    dropped.discard(new.session.id)
    return [Drop(key=new.key, session_ids=frozenset(dropped))] if dropped else []


def used_files(
    opened: OpenedByTest, modules: Mapping[str, str], config: Config
) -> UsedFiles:
    """
    Return the files used by a run, as seen from this process.

    Args:
        opened: The files opened by the end of each test.

        modules: The file of each test, relative to the root, by node id or key.

        config: The configuration of the run.
    """
    return UsedFiles(
        opened=opened,
        modules=modules,
        loaded=loaded_here(),
        python_path=tuple(sys.path),
        editable=editable_folders(),
        environments=environments_in(opened.root),
        outputs=_outputs(config),
    )


def _key(selection: str | None, shard: str | None) -> RecordKey:
    parts = (selection or "", shard or "")
    return RecordKey(test_id=REFERENCES, name=FILES + "-".join(filter(None, parts)))


def _record(session: Session, files: FileList) -> StoredRecord:
    """Return the record of a session's files. A store keeps no record without a value."""
    count = SessionValue(
        metric="files.count",
        unit="count",
        source=Source.HOST.value,
        run_values=(float(len(files.positions)),),
    )
    return StoredRecord(
        key=_key(session.selection, session.shard),
        session=session,
        values=(count,),
        files=files,
    )


def _outputs(config: Config) -> tuple[str, ...]:
    stores = (config.baseline, config.baseline_fallback, ".gpuperf", UNSENT)
    paths = [p for s in stores if s is not None for p in places_of(s, config.root)]
    paths += config.reports.values()
    return tuple(map(os.path.realpath, paths))


def changes_since(repository: Repository, commit: str, config: Config) -> Changes:
    """Return the changes since a commit, without the store and the reports of the run."""
    changes = without_tools(repository.changes(repository.commit_of(commit)))
    outputs = _outputs(config)

    def kept(paths: frozenset[str]) -> frozenset[str]:
        return frozenset(
            p for p in paths if not inside(f"{changes.root}/{p}", *outputs)
        )

    return replace(
        changes,
        differing=kept(changes.differing),
        listed=kept(changes.listed),
        before=kept(changes.before),
    )


def _digests(names: frozenset[str], root: str, session: Session) -> dict[str, str]:
    """Return the digests of files that have not changed since the session began."""
    digests = {}
    for name in names:
        with contextlib.suppress(OSError):
            path = Path(root, name)
            digest = content_digest(path)
            if digest is not None and path.stat().st_mtime < session.started_unix_s:
                digests[name] = digest
    return digests


def _digests_outside(used: UsedFiles, session: Session) -> dict[str, str]:
    root = used.opened.root
    loaded = (path for _, path in used.loaded.files)
    return {
        path: code_digest(path, root, before_unix_s=session.started_unix_s)
        for path in outside_code(root, used.environments, loaded)
    }


def _changed_outside(digests: Mapping[str, str], root: str) -> list[str]:
    """Return code outside of the repository that is new, or has no equal digest."""
    stored = {
        path: digest for path, digest in digests.items() if Path(path).is_absolute()
    }
    new = import_places(root, environments_in(root)) - stored.keys()
    changed = {
        p for p, digest in stored.items() if digest != (code_digest(p, root) or None)
    }
    return sorted(changed | {path for path in new if not inside(path, *stored)})


def _surroundings(site: Site) -> str:
    """Return the digest of everything outside of the repository that files do not show."""
    device, root = site.device(), os.path.realpath(site.config.checkout.root or ".")
    folders = {os.path.realpath(entry or ".") for entry in sys.path}
    packages = {
        content_digest(Path(folder))
        for folder in folders
        if Path(folder).is_dir() and not inside(folder, root)
    }
    gpu = None if device is None else (device.name, device.driver_version)
    # The first of its folders that has a module is used.
    path = [
        os.path.relpath(folder, root) if inside(folder, root) else folder
        for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        for folder in [os.path.realpath(entry or ".")]
    ]
    facts = (
        sys.version,
        tuple(sys.flags),
        sys.platform,
        gpu,
        sorted(map(str, packages)),
        path,
    )
    return digest_of(repr(facts).encode("utf-8", "surrogatepass"))


def _move_bodies(
    repository: Repository, revision: str, used: UsedFiles, changes: Changes
) -> None:
    """
    Let a changed test module count from its first test on, if only functions changed.

    All modules are imported before the first test. A module that runs the same code when
    it is imported has no other effect on the tests before its own.
    """
    opened = used.opened
    first: dict[str, int] = {}
    for key, module in used.modules.items():
        first[module] = min(opened.ended[key], first.get(module, opened.ended[key]))
    names = used_names(used)
    for path in changes.differing & first.keys() & changes.before:
        file = Path(changes.root, path)
        if PurePosixPath(path).name == _CONFTEST or not file.is_file():
            continue
        before = repository.run("show", f"{revision}:{path}")
        if before.exit_code or not runs_alike(before.stdout, file.read_bytes()):
            continue
        # A used Python file that names the module may import it.
        stem = re.escape(PurePosixPath(path).stem.encode())
        named = re.compile(rb"(?<!\w)" + stem + rb"(?!\w)")
        sources = (
            Path(changes.root, name) for name in names - {path} if name.endswith(".py")
        )
        if not any(s.is_file() and named.search(s.read_bytes()) for s in sources):
            place = OpenedFile(os.path.normpath(file))
            opened.positions[place] = max(first[path], opened.positions.get(place, 0))
