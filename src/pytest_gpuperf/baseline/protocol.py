"""What every kind of store can do."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pytest_gpuperf.baseline.text import Damage, NamedBy
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import RecordKey, StoredRecord

if TYPE_CHECKING:
    from pytest_gpuperf.baseline.changes import Drop, StoreChange
    from pytest_gpuperf.baseline.contents import SessionContent


class Repair(Frozen, frozen=True, kw_only=True):
    """
    The lines of a store that were changed by hand or damaged.

    Attributes:
        accepted: The lines that are valid again.

        removed: The lines that could not be read.
    """

    accepted: tuple[Damage, ...] = ()
    removed: tuple[Damage, ...] = ()


class Store(Protocol):
    """
    Sessions by slug, which names the device that they were measured on.

    Every method may raise BaselineError, BaselineCorruptError or SchemaVersionError.
    """

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The damaged lines that were left out so far."""

    @property
    def of_earlier_schema(self) -> bool:
        """True if a file read so far is in an earlier version of the format."""

    @property
    def unread(self) -> tuple[GpuPerfError, ...]:
        """The errors of the files that a lenient store left out so far."""

    def check(self) -> None:
        """
        Look at every file, or open the database, without reading the sessions.

        Damaged lines are found when the sessions of their file are read.
        """

    def slugs(self) -> tuple[str, ...]:
        """Return the slugs that have sessions, sorted."""

    def heads(self) -> Collection[Session]:
        """Return the sessions of all slugs, in any order, without values."""

    def contents(
        self, slug: str, test_ids: Collection[str] | None = None
    ) -> Sequence[SessionContent]:
        """
        Return the sessions that count, in any order, without values.

        Args:
            slug: The device. An unknown device has no sessions.

            test_ids: The tests to look for, or None for all.
        """

    def load(
        self,
        slug: str,
        test_ids: Collection[str] | None = None,
        *,
        metrics: Container[str] | None = None,
        quantiles: bool = True,
        past: bool = False,
    ) -> Mapping[RecordKey, tuple[StoredRecord, ...]]:
        """
        Return the sessions by measurement, in order of arrival.

        Args:
            slug: The device. An unknown device has no sessions.

            test_ids: The tests to read, or None for all.

            metrics: The metrics to read, or None for all. A session without any of them
                is left out.

            quantiles: Whether to read the quantiles of samples, which only reports show.

            past: Whether to return every session that the store still has. A database
                also has those before a level was accepted, whose values have a lower
                `series`. Files have at most 20 sessions of each series.
        """

    def modules(self, slug: str) -> tuple[str, ...]:
        """Return the modules of the tests that have sessions, sorted."""

    def names(
        self, slug: str, modules: Collection[str] | None = None
    ) -> Mapping[RecordKey, NamedBy]:
        """
        Return the stored measurements, without sessions.

        Args:
            slug: The device. An unknown device has no measurements.

            modules: The modules of the tests, or None for all.
        """

    def other_slugs(
        self, slug: str, keys: Collection[RecordKey]
    ) -> Mapping[RecordKey, tuple[str, ...]]:
        """
        Return the other slugs that hold sessions of the given measurements.

        Args:
            slug: The slug to skip.

            keys: The measurements to look for.

        Returns:
            Slugs by measurement. Measurements without sessions elsewhere are absent.
        """

    def write(self, slug: str, changes: Sequence[StoreChange]) -> None:
        """
        Apply changes in order, under the store's lock.

        Files keep the newest 20 and the oldest 3 sessions of each measurement and choice.
        A session that is new to the store gets the next arrival number.

        Args:
            slug: The device of the sessions.

            changes: The changes.

        Raises:
            RecordError: A session could not be read back. Nothing is written.

            BaselineCorruptError: A file has damaged lines, which would be lost.
        """

    def write_all(self, changes: Mapping[str, Sequence[StoreChange]]) -> None:
        """
        Apply the changes of several slugs. A database applies all or none.

        Args:
            changes: The changes of each slug, in order.

        Raises:
            RecordError: As for `write`.

            BaselineCorruptError: As for `write`.
        """

    def set_aside(self, slug: str, drops: Sequence[Drop]) -> None:
        """
        Move sessions from the store to the file of dropped sessions, for `put_back`.

        Args:
            slug: The device of the sessions.

            drops: The sessions to remove.
        """

    def aside(self) -> Mapping[str, Mapping[RecordKey, tuple[StoredRecord, ...]]]:
        """Return the sessions that were set aside, by slug and measurement."""

    def put_back(self, slug: str, keys: Collection[RecordKey]) -> None:
        """
        Put back sessions of some measurements that were set aside.

        Args:
            slug: The device of the sessions.

            keys: The measurements.
        """

    def accept_edits(self) -> Repair:
        """Give edited lines a new checksum, and remove unreadable lines."""
