"""What the baseline remembers, read as it is needed; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_gpuperf.baseline.store import open_store
from pytest_gpuperf.errors import BaselineMissingError
from pytest_gpuperf.model.fingerprint import slug
from pytest_gpuperf.model.record import Kind, Record, RecordKey

if TYPE_CHECKING:
    from pytest_gpuperf.baseline.history import StoreChange
    from pytest_gpuperf.baseline.store import Store
    from pytest_gpuperf.config import Config
    from pytest_gpuperf.model.history import StoredRecord

__all__ = ["Memory", "slug_of"]


class Memory:
    """
    The stored sessions of a run's tests.

    Args:
        config: Names the store.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._store: Store | None = None
        self._loaded: dict[str, Mapping[RecordKey, tuple[StoredRecord, ...]]] = {}

    def store(self) -> Store | None:
        """Return the store; None: this run has none."""
        if self._store is None:
            place = self._config.baseline
            if place is None and self._config.update is not None:
                place = ".gpuperf"  # storing makes the default store
            if place is not None:
                self._store = open_store(place, self._config.root)
        return self._store

    def check(self) -> None:
        """
        Refuse a store that was named and is not there, unless it is to be made.

        Raises:
            BaselineMissingError: There is none.
        """
        store = self.store()
        if store is None or self._config.update is not None:
            return
        if self._config.baseline_named and not store.exists():
            message = f"there is no baseline at {self._config.baseline}"
            raise BaselineMissingError(
                message, remedy="make one with --gpuperf-update=new"
            )

    def sessions(self, record: Record) -> tuple[StoredRecord, ...]:
        """Return the stored sessions of a measurement, oldest first."""
        store = self.store()
        if store is None:
            return ()
        folder = slug_of(record)
        if folder not in self._loaded:
            self._loaded[folder] = store.load(folder)
        return self._loaded[folder].get(record.key, ())

    def elsewhere(self, record: Record) -> tuple[str, ...]:
        """Return the other GPUs, chips or hosts that have sessions of a measurement."""
        store = self.store()
        return () if store is None else store.other_slugs(slug_of(record), record.key)

    def write(self, changes: Mapping[str, list[StoreChange]]) -> None:
        """
        Store what was measured, by GPU, chip or host.

        Raises:
            BaselineError: A file cannot be read or written; it stays as it was.
        """
        store = self.store()
        if store is None:
            return
        for folder, several in changes.items():
            store.write(folder, several)


def slug_of(record: Record) -> str:
    """Return the name of what a record was measured on: a GPU, a chip or a host."""
    facts = {name: text for facts in record.facts.values() for name, text in facts.items()}
    if record.kind is Kind.BINARY:
        return slug("-".join(sorted({kernel.target for kernel in record.kernels})))
    if "gpu_name" in facts:
        return slug(facts["gpu_name"])
    cores = facts.get("core_count")
    return slug(f"{facts.get('cpu_model', 'host')} {cores or ''}".strip())
