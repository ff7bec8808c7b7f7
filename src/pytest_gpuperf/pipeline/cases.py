"""What was measured beside what is stored, as the cases that judge decides; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpuperf.model.record import Record, RecordKey

__all__ = ["cases_of", "grouped", "session_of"]


def grouped(records: Iterable[Record]) -> dict[RecordKey, list[Record]]:
    """Return records by what they are a measurement of, the main process's first."""
    groups: dict[RecordKey, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.process_index):
        groups.setdefault(record.key, []).append(record)
    return groups
