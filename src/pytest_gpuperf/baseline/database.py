"""A store in a database: rows are added, and never changed or removed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.baseline.changes import Drop, StoreChange
from pytest_gpuperf.baseline.engine import id_of_test, kinds_in, known_ids
from pytest_gpuperf.baseline.protocol import Repair
from pytest_gpuperf.baseline.reader import SessionReader
from pytest_gpuperf.baseline.tables import SCHEMA, original, plain
from pytest_gpuperf.baseline.text import Damage, NamedBy
from pytest_gpuperf.baseline.writer import RecordAdder, SessionWriter
from pytest_gpuperf.errors import BaselineError, GpuPerfError
from pytest_gpuperf.model.frozen import collector_paused
from pytest_gpuperf.model.record import RecordKey, StoredRecord, module_of

if TYPE_CHECKING:
    from pytest_gpuperf.baseline.contents import SessionContent
    from pytest_gpuperf.baseline.engine import Engine
    from pytest_gpuperf.model.environment import Session

# Stands in front of the name of a project. No slug of a machine has it.
_OF_PROJECT = "#"
_READ_ONLY = (
    "a database cannot be edited, so there is nothing to accept",
    "name a run: gpuperf baseline accept STORE RUN.json",
)


class DatabaseStore:
    """
    The sessions in a database.

    The database is open only during a call, so that nothing is held while tests are
    timed.

    Args:
        place: The name of the store for messages, without a password.

        find: Opens the database, or returns None if it does not exist.

        create: Opens the database, or creates it.

        project: The project. A database may have several, which do not see each other.
            "" is the project without a name.
    """

    def __init__(
        self,
        place: str,
        *,
        find: Callable[[], Engine | None],
        create: Callable[[], Engine],
        project: str = "",
    ) -> None:
        self._place = place
        self._find = find
        self._create = create
        self._project = project

    @property
    def damage(self) -> tuple[Damage, ...]:
        """No lines: the database checks its rows."""
        return ()

    @property
    def of_earlier_schema(self) -> bool:
        """False: the tables have one version."""
        return False

    @property
    def unread(self) -> tuple[GpuPerfError, ...]:
        """No files."""
        return ()

    def slugs(self) -> tuple[str, ...]:
        """Return the slugs that have sessions, sorted."""
        with self._reading() as engine:
            if engine is None:
                return ()
            return self._slugs(engine)

    def heads(self) -> Collection[Session]:
        """Return the sessions of all slugs, in any order, without values."""
        with self._reading() as engine:
            if engine is None:
                return ()
            reader = SessionReader(engine, self._place)
            kinds = [self._kind(slug) for slug in self._slugs(engine)]
            return {
                head.id: head for kind in kinds for head in reader.heads(kind)
            }.values()

    def contents(
        self, slug: str, test_ids: Collection[str] | None = None
    ) -> Sequence[SessionContent]:
        """Return the sessions that count, in any order, without values."""
        with self._reading() as engine:
            if engine is None:
                return ()
            reader = SessionReader(engine, self._place)
            with collector_paused():
                return reader.contents(self._kind(slug), test_ids)

    def check(self) -> None:
        """Open the database."""
        self.slugs()

    def modules(self, slug: str) -> tuple[str, ...]:
        """Return the modules of the tests that have sessions, sorted."""
        return tuple(sorted({module_of(key.test_id) for key in self.names(slug)}))

    def names(
        self, slug: str, modules: Collection[str] | None = None
    ) -> Mapping[RecordKey, NamedBy]:
        """Return the stored measurements, without sessions."""
        with self._reading() as engine, collector_paused():
            if engine is None:
                return {}
            rows = engine.rows(
                "SELECT id, node, name FROM test WHERE kind = ?",
                plain(self._kind(slug)),
            )
            reader = SessionReader(engine, self._place)
            dropped = reader.dropped({row[0] for row in rows})
        # Plain texts are sorted faster than keys.
        names = sorted(
            (original(node), original(name))
            for test, node, name in rows
            if test not in dropped
        )
        keys = (RecordKey(test_id=test_id, name=name) for test_id, name in names)
        wanted = (
            key for key in keys if modules is None or module_of(key.test_id) in modules
        )
        return dict.fromkeys(wanted, NamedBy())

    def load(
        self,
        slug: str,
        test_ids: Collection[str] | None = None,
        *,
        metrics: Container[str] | None = None,
        quantiles: bool = True,
        past: bool = False,
    ) -> Mapping[RecordKey, tuple[StoredRecord, ...]]:
        """Return the sessions by measurement, in order of arrival."""
        with self._reading() as engine:
            if engine is None:
                return {}
            reader = SessionReader(engine, self._place)
            with collector_paused():
                return reader.load(
                    self._kind(slug),
                    test_ids,
                    metrics=metrics,
                    quantiles=quantiles,
                    newest=not past,
                )

    def of_run(self, slug: str, run: str) -> dict[Session, set[RecordKey]]:
        """
        Return the sessions of a run with measurements, without values.

        Args:
            slug: The kind of machine.

            run: The name of the run.
        """
        with self._reading() as engine:
            if engine is None:
                return {}
            return SessionReader(engine, self._place).of_run(self._kind(slug), run)

    def other_slugs(
        self, slug: str, keys: Collection[RecordKey]
    ) -> Mapping[RecordKey, tuple[str, ...]]:
        """Return the other slugs that hold sessions of the given measurements."""
        with self._reading() as engine:
            if engine is None:
                return {}
            ids = {
                id_of_test(self._kind(other), key): (other, key)
                for other in self._slugs(engine)
                if other != slug
                for key in keys
            }
            known = known_ids(engine, "test", ids)
            held = known - SessionReader(engine, self._place).dropped(known)
        found: dict[RecordKey, tuple[str, ...]] = {}
        for other, key in sorted(ids[one] for one in held):
            found[key] = (*found.get(key, ()), other)
        return found

    def write(self, slug: str, changes: Sequence[StoreChange]) -> None:
        """Apply changes in order, in one transaction."""
        self.write_all({slug: changes})

    def write_all(self, changes: Mapping[str, Sequence[StoreChange]]) -> None:
        """Apply the changes of several slugs, all or none."""
        if not any(changes.values()):
            return
        with self._writing() as engine:
            adder = RecordAdder(engine)
            for slug, of_slug in changes.items():
                SessionWriter(adder, self._kind(slug)).apply(of_slug)
            adder.flush()

    def set_aside(self, slug: str, drops: Sequence[Drop]) -> None:
        """Hide sessions of removed tests, for `put_back`."""
        if drops:
            with self._writing() as engine:
                SessionWriter(RecordAdder(engine), self._kind(slug)).hide(
                    drops, kind="remove"
                )

    def aside(self) -> Mapping[str, Mapping[RecordKey, tuple[StoredRecord, ...]]]:
        """Return the sessions that were set aside, by slug and measurement."""
        with self._reading() as engine:
            if engine is None:
                return {}
            reader = SessionReader(engine, self._place)
            return {
                slug: series
                for slug in self._slugs(engine)
                if (series := reader.removed(self._kind(slug)))
            }

    def put_back(self, slug: str, keys: Collection[RecordKey]) -> None:
        """Put back sessions of some measurements that were set aside."""
        with self._writing() as engine:
            kind = self._kind(slug)
            removed = SessionReader(engine, self._place).removed(kind)
            records = [r for key in keys for r in removed.get(key, ())]
            SessionWriter(RecordAdder(engine), kind).unhide(records)

    def migrate(self) -> bool:
        """Create the tables, and return whether there were none."""
        with self._reading() as engine:
            if engine is not None:
                return False
        with self._writing():
            return True

    def prune(self, newest_count: int, *, dry_run: bool) -> dict[str, int]:
        """
        Remove values and details that no comparison uses any more.

        The owner of the tables may do that. The sessions themselves stay, so that one
        that is sent again is known.

        Args:
            newest_count: Sessions that stay of each series, in addition to the oldest.

            dry_run: Whether to count only.

        Returns:
            The number of values by kind of machine.
        """
        counts: dict[str, int] = {}
        with self._writing() as engine:
            reader = SessionReader(engine, self._place)
            for slug in self._slugs(engine):
                rows = reader.outdated(self._kind(slug), newest_count=newest_count)
                counts[slug] = len(rows)
                if dry_run:
                    continue
                names = ("session", "metric", "test", "setting", "revision")
                engine.delete("value", rows, names)
                records = {(row[0], *row[2:]) for row in rows}
                left = set(reader.records_left({row[0] for row in rows}))
                engine.delete("detail", sorted(records - left), (names[0], *names[2:]))
        return counts

    def accept_edits(self) -> Repair:
        """Refuse: nothing was edited by hand."""
        message, remedy = _READ_ONLY
        raise BaselineError(f"{self._place}: {message}", remedy=remedy)

    def _kind(self, slug: str) -> str:
        return f"{slug}{_OF_PROJECT}{self._project}" if self._project else slug

    def _slugs(self, engine: Engine) -> tuple[str, ...]:
        named = (kind.partition(_OF_PROJECT) for kind in kinds_in(engine))
        return tuple(slug for slug, _, project in named if project == self._project)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Engine | None]:
        """Open the database, or None if it has no tables yet."""
        engine = self._find()
        if engine is None:
            yield None
            return
        with contextlib.closing(engine):
            schema = engine.schema()
            self._check(schema)
            yield None if schema is None else engine

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Engine]:
        """Open the database in a transaction, with its tables."""
        engine = self._create()
        with contextlib.closing(engine), engine.transaction():
            schema = engine.schema()
            self._check(schema)
            if schema is None:
                engine.create()
            yield engine

    def _check(self, schema: int | None) -> None:
        if schema is not None and schema > SCHEMA:
            raise BaselineError(
                f"{self._place} has tables of version {schema}, this version reads {SCHEMA}",
                remedy="update pytest-gpuperf",
            )
