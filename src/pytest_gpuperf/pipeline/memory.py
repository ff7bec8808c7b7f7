"""The baseline of a run, read as needed."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.baseline.history import joined
from pytest_gpuperf.baseline.store import (
    Store,
    folder_name,
    missing,
    names_database,
    open_store,
)
from pytest_gpuperf.errors import (
    BaselineCorruptError,
    BaselineError,
    BaselineMissingError,
)
from pytest_gpuperf.judge.look import baseline_spreads
from pytest_gpuperf.model.environment import slug
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import (
    REFERENCES,
    Kind,
    Record,
    RecordKey,
    StoredRecord,
    module_of,
)
from pytest_gpuperf.model.url import sqlite_file
from pytest_gpuperf.report.display import date
from pytest_gpuperf.report.escape import escape, quoted

if TYPE_CHECKING:
    from pytest_gpuperf.baseline.text import Damage, NamedBy
    from pytest_gpuperf.compute.spread import UsualSpread
    from pytest_gpuperf.config import Config
    from pytest_gpuperf.model.environment import Environment, Session

# The store created if none was named.
_DEFAULT_PLACE = ".gpuperf"
# The metric that is gated by default, and the count that explains changes of others.
_ALWAYS_READ = frozenset({"time", "launches.count"})
# A run of fewer tests takes the usual spread from this number of tests of its machine.
_SPREAD_TESTS = 500
# The format in which a session was first written.
_VERSION = attrgetter("schema_version")
_Sessions = tuple[StoredRecord, ...]
_Series = dict[RecordKey, _Sessions]
# Damaged lines or files shown by a run. The rest are only counted.
_SHOWN_LINES = 3


def _named(error: BaselineCorruptError) -> BaselineCorruptError:
    """Return an error that names the tool of a foreign file, or the same error."""
    # Imported here, because most runs read no file of another tool.
    from pytest_gpuperf.collect.translate import FOREIGN_BYTES, foreign

    with contextlib.suppress(OSError), Path(error.path).open("rb") as file:
        known = foreign(file.read(FOREIGN_BYTES))
        if known is not None:
            remedy = "name a store that --gpuperf-update has written"
            return BaselineCorruptError(known.message, remedy=remedy, path=error.path)
    return error


class _Read:
    """The metrics whose stored values are read: those asked for, and a project's own."""

    def __init__(self) -> None:
        self.wanted = _ALWAYS_READ

    def __contains__(self, metric: object) -> bool:
        return metric in self.wanted or metric not in METRICS


class Memory:
    """
    The stored sessions of a run's tests.

    Args:
        config: The settings, with the place of the store.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._store: Store | None = None
        # The error for which another store stands in.
        self._away: BaselineError | None = None
        # The error that made the store unusable.
        self.lost: BaselineError | None = None
        # Keys by test id, for tests whose id is not the key.
        self.learned: dict[str, str] = {}
        # Ids and keys of the tests of the run, as far as known.
        self._tests: dict[str, None] = {}
        self._usual: dict[str, Mapping[str, UsualSpread]] = {}
        # All sessions of a machine.
        self.loaded: dict[str, Mapping[RecordKey, _Sessions]] = {}
        # Those that store compare whole sessions.
        self._metrics = None if config.update is not None else _Read()
        # The sessions of some tests of a machine, and these tests.
        self._parts: dict[str, _Series | ChainMap[RecordKey, _Sessions]] = {}
        self._read: dict[str, set[str]] = {}
        self._modules: dict[str, tuple[str, ...]] = {}
        # The measurements of a machine, by module.
        self._names: dict[str, dict[str, dict[RecordKey, NamedBy]]] = {}

    def store(self) -> Store | None:
        """
        Return the store, or None if the run has none.

        Raises:
            BaselineMissingError: The named store does not exist and must not be
                created.
        """
        if self._store is None and self.lost is None:
            updating = self.config.update is not None
            place = self.config.baseline
            if place is None and updating:
                place = _DEFAULT_PLACE
            if place is not None:
                self._store = self._opened(place)
        return self._store

    def _opened(self, place: str) -> Store:
        """Open the store, or the fallback store while the server is away."""
        updating = self.config.update is not None
        try:
            return open_store(
                place,
                self.config.root,
                create=updating,
                # A store found by default must not stop tests that have nothing stored
                # in it.
                lenient=not (self.config.baseline_named or updating),
            )
        except BaselineMissingError:
            if not names_database(place):  # The name of a database is complete.
                path = Path(self.config.root) / Path(place).expanduser()
                raise missing(self.place(), path) from None
            raise
        except BaselineError as error:
            fallback = self.config.baseline_fallback
            is_server = names_database(place) and sqlite_file(place) is None
            if fallback is None or updating or not is_server:
                raise
            self._away = error
            return open_store(fallback, self.config.root)

    def lose(self, error: BaselineError) -> None:
        """Use only the sessions that were already read."""
        self._store, self.lost = None, error

    def place(self) -> str:
        """Return the name of the store in the user's spelling."""
        # Most runs name no store.
        from pytest_gpuperf.report.explanation import store_name

        return store_name(self.config.option_texts)

    def check(self) -> None:
        """
        Look at the files of a store, or open a database, to report errors before any
        test runs.

        Raises:
            BaselineError: The named store does not exist, or a file in it is
                unreadable. In a store that was found by default, an unreadable file is
                left out, unless the run stores.
        """
        try:
            store = self.store()
            if store is not None:
                store.check()
        except BaselineCorruptError as error:
            raise self._explained(_named(error)) from None
        except BaselineError as error:
            raise self._explained(error) from None

    def _explained(self, error: BaselineError) -> BaselineError:
        """Say in the remedy of an error why no other store stands in, and what names it."""
        if self.config.baseline_variable is not None:
            error.remedy += f"; {self.config.baseline_variable} names the store"
        place = self.config.option_texts.get("gpuperf_baseline_fallback")
        if place is not None and self._away is None and self.config.update is None:
            error.remedy += (
                f"; or compare with {place} (--gpuperf-baseline), because "
                "--gpuperf-baseline-fallback is used only if a server cannot be reached"
            )
        return error

    def learn(self, test_id: str, key: str) -> None:
        """Note a test of the run and its key, or "" if the id is the key."""
        self._tests[test_id] = None
        if key:
            self._tests[key] = None
            self.learned[test_id] = key

    def key_of(self, test_id: str) -> str:
        """Return the key under which the values of a test are stored."""
        return self.learned.get(test_id, test_id)

    def require(self, metrics: Collection[str]) -> None:
        """Read the values of some metrics. What was read without them is read again."""
        held = self._metrics
        if held is None or held.wanted.issuperset(metrics):
            return
        held.wanted |= frozenset(metrics)
        self._parts, self._read, self._usual = {}, {}, {}

    def sessions(
        self, record: Record, metrics: Collection[str] = ()
    ) -> tuple[StoredRecord, ...]:
        """
        Return the stored sessions of a measurement, oldest first, under the current key.

        Args:
            record: The measurement.

            metrics: The metrics whose values are needed. The sessions may lack others.
        """
        if self._metrics is not None and not self._metrics.wanted.issuperset(metrics):
            self.require(metrics)
        folder, test_id = slug_of(record), record.key.test_id
        known = self._read.get(folder, ())
        if test_id not in known or self.learned.get(test_id, test_id) not in known:
            self.learn(test_id, self.learned.get(test_id, ""))
            self.read([folder])
        # As `_stored_key`, without its call.
        stored = self.loaded.get(folder) or self._parts.get(folder, {})
        if record.key.test_id not in self.learned:
            return stored.get(record.key, ())
        key = self.stored_key(record.key)
        if key == record.key:
            return stored.get(key, ())
        found = [r for r in stored.get(record.key, ()) if r.has_node_id]
        found += [r for r in stored.get(key, ()) if not r.has_node_id]
        return joined([replace(r, key=record.key) for r in found])

    def stored_key(self, key: RecordKey) -> RecordKey:
        """Return the key under which a measurement is stored."""
        test_id = self.learned.get(key.test_id)
        return key if test_id is None else replace(key, test_id=test_id)

    def read(self, slugs: Iterable[str]) -> None:
        """
        Read the sessions of the run's tests on some GPUs, chips and hosts, unless
        already read.

        Raises:
            BaselineError: As for `check`.
        """
        store = self.store()
        if store is None:
            return
        for slug_name in slugs:
            if slug_name not in self.loaded:
                self._read_tests(store, slug_name, self._tests)

    def _read_tests(self, store: Store, folder: str, tests: Iterable[str]) -> None:
        known = self._read.setdefault(folder, set())
        missing = [test for test in tests if test not in known]
        if missing:
            loaded = store.load(
                folder,
                missing,
                metrics=self._metrics,
                # A report has the stored sessions that were compared.
                quantiles=bool(self.config.reports),
            )
            held = self._parts.setdefault(folder, {})
            if isinstance(loaded, dict):
                held.update(loaded)
            else:  # The tests of a large database are decoded one at a time.
                self._parts[folder] = ChainMap(held, loaded)  # type: ignore[arg-type] # never changed
            known.update(missing)

    def read_whole(self, store: Store, slugs: Iterable[str]) -> None:
        """Read all sessions of some machines."""
        for slug_name in slugs:
            if slug_name not in self.loaded:
                self.loaded[slug_name] = store.load(slug_name)

    def measurements(
        self, store: Store, folder: str, modules: Collection[str]
    ) -> Iterator[tuple[RecordKey, NamedBy]]:
        """Yield the stored measurements of some modules."""
        held = self._names.setdefault(folder, {})
        missing = [module for module in modules if module not in held]
        if missing:
            held |= {module: {} for module in missing}
            for key, named in store.names(folder, missing).items():
                held[module_of(key.test_id)][key] = named
        for module in modules:
            yield from held[module].items()

    def modules_of(self, store: Store, folder: str) -> tuple[str, ...]:
        """Return the modules that have sessions in a folder of the store."""
        if folder not in self._modules:
            self._modules[folder] = store.modules(folder)
        return self._modules[folder]

    def modules(self, slugs: Collection[str] | None = None) -> frozenset[str]:
        """
        Return the modules of the tests that have stored sessions, as in keys of tests.

        Args:
            slugs: The GPUs, chips and hosts of the sessions, or None for any.
        """
        store = self.store()
        if store is None:
            return frozenset()
        modules: set[str] = set()
        for folder in self._folders(store, slugs):
            stored = self.modules_of(store, folder)
            if not self.config.checkout.rootdir:  # Ids and keys have equal modules.
                modules.update(stored)
                continue
            for key, named in self.measurements(store, folder, stored):
                modules.update(map(module_of, self.tests_of(key, named)))
        return frozenset(modules - {module_of(REFERENCES)})

    def keys(
        self,
        test_ids: Collection[str],
        slugs: Collection[str] | None = None,
        *,
        modules: Collection[str],
    ) -> tuple[str, ...]:
        """
        Return the keys of the tests that have stored sessions and are not in a run.

        Args:
            test_ids: The ids of the tests in the run.

            slugs: The GPUs, chips and hosts of the sessions, or None for any.

            modules: The modules of the tests.
        """
        store = self.store()
        if store is None or not modules:
            return ()
        ids, keys = set(test_ids), {self.learned.get(t, t) for t in test_ids}
        wanted = set(modules)
        absent: dict[str, None] = {}
        for folder in self._folders(store, slugs):
            stored = self.modules_of(store, folder)
            key_of = self.config.checkout.key_of
            here = [m for m in stored if not wanted.isdisjoint({m, key_of(m)})]
            for key, named in self.measurements(store, folder, here):
                if key.test_id == REFERENCES:
                    continue
                if named.any_id and key.test_id not in ids:
                    absent[self.config.checkout.key_of(key.test_id)] = None
                if not named.all_ids:
                    absent[key.test_id] = None
        return tuple(k for k in absent if k not in keys and module_of(k) in wanted)

    def stored(self, test_ids: Iterable[str], slugs: Collection[str]) -> list[str]:
        """Return the ids of tests with stored sessions of some machines."""
        store = self.store()
        if store is None:
            return []
        names = {test_id: self._names_of(test_id) for test_id in test_ids}
        modules = {module_of(name) for several in names.values() for name in several}
        held = {
            key.test_id
            for folder in self._folders(store, slugs)
            for key, _ in self.measurements(store, folder, modules)
        } - {REFERENCES}
        return [t for t, several in names.items() if not held.isdisjoint(several)]

    def newest_like(
        self, session: Session, measured: Collection[str], slugs: Collection[str]
    ) -> tuple[set[str], bool]:
        """
        Return the tests measured by the newest session with the same selection as a run.

        The session must share a measured test with the run, because a plugin may select
        a part of the tests by an unknown variable.

        Args:
            session: The session of the run.

            measured: Ids of the tests measured by the run.

            slugs: The GPUs, chips and hosts that the run measures on.

        Returns:
            The ids, and False if the selection of that session is unknown, as in
            sessions stored by earlier versions.
        """
        names = {name for test_id in measured for name in self._names_of(test_id)}
        tests: dict[str, set[str]] = {}
        sessions: dict[str, tuple[int, Session]] = {}
        for _, key, record in self._sessions_of(slugs):
            of_it = record.session
            if key.test_id == REFERENCES:
                # The session may have stored its files alone.
                continue
            alike = of_it.selection in {session.selection, None}
            if alike and of_it.shard == session.shard:
                sessions[of_it.id] = (record.arrival, of_it)
                tests.setdefault(of_it.id, set()).add(key.test_id)
        shared = [s for s in tests if not names or not names.isdisjoint(tests[s])]
        if not shared:
            return set(), False
        newest = max(shared, key=lambda name: sessions[name][0])
        checkout = self.config.checkout
        ids = {checkout.id_of(test_id) for test_id in tests[newest]}
        return ids | tests[newest], sessions[newest][1].selection is not None

    def file_lists(self, key: RecordKey, slugs: Collection[str]) -> list[StoredRecord]:
        """Return the records of a key that have files, newest first."""
        store = self.store()
        if store is None:
            return []
        found = [
            record
            for folder in self._folders(store, slugs)
            for record in store.load(folder, [key.test_id]).get(key, ())
            if record.files is not None
        ]
        return sorted(found, key=lambda record: -record.arrival)

    @staticmethod
    def _folders(store: Store, slugs: Collection[str] | None) -> list[str]:
        """Return the stored machines among some, sorted, or all for None."""
        if slugs is None:
            return sorted(store.slugs())
        names = {folder_name(name) for name in slugs} | set(slugs)
        return sorted(names.intersection(store.slugs()))

    def _names_of(self, test_id: str) -> set[str]:
        return {test_id, self.key_of(test_id), self.config.checkout.key_of(test_id)}

    def _sessions_of(
        self, slugs: Collection[str]
    ) -> Iterator[tuple[str, RecordKey, StoredRecord]]:
        store = self.store()
        if store is None:
            return
        here = self._folders(store, slugs)
        self.read_whole(store, here)
        yield from (each for each in self.records() if each[0] in here)

    def tests_of(self, key: RecordKey, named: NamedBy) -> Iterator[str]:
        """Yield the keys of the tests that a stored measurement may belong to."""
        if key.test_id != REFERENCES:
            if named.any_id:
                yield self.config.checkout.key_of(key.test_id)
            if not named.all_ids:
                yield key.test_id

    def records(self) -> Iterator[tuple[str, RecordKey, StoredRecord]]:
        """Yield the sessions that were read as a whole, with their folders."""
        for folder, series in self.loaded.items():
            for key, records in series.items():
                if key.test_id != REFERENCES:
                    yield from ((folder, key, record) for record in records)

    def key_of_stored(self, record: StoredRecord) -> str:
        """Return the key of the test of a stored session."""
        test_id = record.key.test_id
        return self.config.checkout.key_of(test_id) if record.has_node_id else test_id

    def usual_spreads(self, record: Record) -> Mapping[str, UsualSpread]:
        """Return the usual differences between sessions on the machine of a record."""
        folder = slug_of(record)
        if folder not in self._usual:
            store = self.store()
            if store is not None and folder not in self.loaded:
                fill = max(_SPREAD_TESTS - len(self._tests), 0)
                # A module has a test at least.
                modules = self.modules_of(store, folder)[:fill]
                names = dict.fromkeys(
                    key.test_id for key, _ in self.measurements(store, folder, modules)
                )
                others = [n for n in names if n not in self._tests and n != REFERENCES]
                self._read_tests(store, folder, (*self._tests, *others[:fill]))
            series = (self.loaded.get(folder) or self._parts.get(folder, {})).items()
            self._usual[folder] = baseline_spreads(
                session
                for key, sessions in series
                if key.test_id != REFERENCES
                for session in sessions
            )
        return self._usual[folder]

    def elsewhere(
        self, records: Sequence[Record]
    ) -> Mapping[RecordKey, tuple[str, ...]]:
        """Return the other GPUs, chips or hosts with stored sessions of some measurements."""
        store = self.store()
        if store is None:
            return {}
        slugs: dict[RecordKey, tuple[str, ...]] = {}
        folders: dict[str, list[RecordKey]] = {}
        for record in records:
            folders.setdefault(slug_of(record), []).append(record.key)
        for folder, keys in folders.items():
            stored_keys = {self.stored_key(key): key for key in keys}
            others = store.other_slugs(folder, stored_keys)
            slugs |= {stored_keys[key]: names for key, names in others.items()}
        return slugs

    def remarks(self) -> Iterator[str]:
        """Yield sentences about the store. Call once per run."""
        if self._store is None:
            return
        if self._away is not None:
            newest = max(
                (
                    record.session.started_unix_s
                    for series in (*self._parts.values(), *self.loaded.values())
                    for records in series.values()
                    for record in records
                ),
                default=None,
            )
            age = "has no session of these tests"
            if newest is not None:
                age = f"has sessions up to {date(newest)}"
            place = self.config.option_texts["gpuperf_baseline_fallback"]
            yield f"compared with {place}, which {age}, because {self._away}"
        unread = self._store.unread
        for error in unread[:_SHOWN_LINES]:
            text = str(error).replace(f"{self.config.root}{os.sep}", "")
            yield f"left out of the baseline: {text}"
        if len(unread) > _SHOWN_LINES:
            yield f"left out of the baseline: {len(unread) - _SHOWN_LINES} more files"
        damage = self._store.damage
        for line in damage[:_SHOWN_LINES]:
            path = Path(line.path)
            with contextlib.suppress(ValueError):  # The path is not below the root.
                path = path.relative_to(self.config.root)
            test = f", of {escape(_test_of(line))}" if line.test_id else ""
            yield f"left out of the baseline: {replace(line, path=str(path))}{test}"
        if damage:
            more = len(damage) - _SHOWN_LINES
            lines = f"{more} more; " if more > 0 else ""
            yield f"{lines}{damage_remedy(self.place())}"
        if self._store.of_earlier_schema:
            yield (
                f"{self.place()} has the format of an earlier version: the parameters, "
                "the test and the process of its sessions are not stored, so they are not "
                "compared; its sessions count, and the next stored session rewrites it"
            )

    def damaged(self, test_ids: Collection[str], slugs: Collection[str]) -> list[str]:
        """
        Return the tests of a run with damaged lines, or modules for lines that name no test.

        A line that names a test unknown to all other lines may have lost the correct
        name.

        Args:
            test_ids: The ids of the tests of the run.

            slugs: The GPUs, chips and hosts that the run measures on.
        """
        if self._store is None or not self._store.damage:
            return []
        keys = {self.learned.get(t, t) for t in test_ids}
        modules = set(map(module_of, keys))
        places = {folder_name(name) for name in slugs} | set(slugs)
        of_lines = {module_of(_test_of(line)) for line in self._store.damage}
        known = {
            key.test_id
            for folder in self._folders(self._store, slugs)
            for key, _ in self.measurements(self._store, folder, of_lines)
        }
        found: dict[str, None] = {}
        for line in self._store.damage:
            if places.isdisjoint({line.section, Path(line.path).parent.name}):
                continue
            test = _test_of(line)
            if test in keys or test in test_ids:
                found[self.config.checkout.id_of(test)] = None
            elif test in known:
                continue
            elif line.section in modules or line.section in places:
                found[self.config.checkout.id_of(line.section)] = None
        return [*found]

    def forget(self) -> None:
        """Forget all sessions, so that they are read again."""
        self.loaded = {}
        self._parts = {}
        self._read = {}
        self._names = {}
        self._modules = {}
        self._usual = {}


def _test_of(line: Damage) -> str:
    # The section of such a line is its module.
    within = line.test_id.startswith("::")
    return f"{line.section}{line.test_id}" if within else line.test_id


def damage_remedy(place: str) -> str:
    """
    Return the remedy for damaged lines of a store.

    Args:
        place: The store, as the user would write it.
    """
    return (
        "restore these lines from version control, or accept them: "
        f"gpuperf baseline accept {quoted(place)} --edited"
    )


def slug_of(record: Record) -> str:
    """Return the name of the GPU, chip or host that a record was measured on."""
    if record.kind is Kind.BINARY:
        return slug("-".join(sorted({kernel.target for kernel in record.kernels})))
    # Merged from all families.
    facts: dict[str, str] = {}
    for of_family in record.facts.values():
        facts |= of_family
    return slug_of_facts(facts)


def slug_of_facts(facts: Mapping[str, str]) -> str:
    """Return the name of the GPU or host from its facts."""
    gpu = facts.get("gpu_name")
    if gpu is not None:
        return slug(gpu)
    return _host_slug(facts.get("cpu_model"), facts.get("core_count"))


def slugs_of_machine(environment: Environment, gpu_name: str | None) -> frozenset[str]:
    """
    Return the names of the host and the GPU that a machine measures on.

    Args:
        environment: The machine.

        gpu_name: The GPU used by the tests, or None without a GPU.
    """
    host = _host_slug(environment.cpu_model, environment.core_count)
    return frozenset({host} if gpu_name is None else {host, slug(gpu_name)})


# A run has few hosts, and asks for its own with each test.
@functools.lru_cache(maxsize=64)
def _host_slug(cpu_model: str | None, core_count: object) -> str:
    return slug(f"{cpu_model or 'host'} {core_count or ''}".strip())
