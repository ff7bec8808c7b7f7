"""What a baseline keeps of one measurement in one session; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import BulkRecord
from pytest_gpuperf.model.record import RecordKey

__all__ = ["StoredRecord", "StoredValue"]


class StoredValue(BulkRecord, array_like=True, frozen=True, kw_only=True):
    """
    One metric of one measurement in one session; in a file, a list.

    Attributes:
        metric: The metric's name.

        unit: The unit of `run_values`.

        source: The collector that gave them.

        run_values: The value of each process of the session [unit], >= 1 of them.

        half_widths: Half-width of each process's interval over its value, >= 0; empty
            where there was no interval.

        better: "lower", "higher" or "neither"; kept for the user's own metrics.
    """

    metric: str
    unit: str
    source: str
    run_values: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]
    half_widths: tuple[Annotated[float, msgspec.Meta(ge=0)], ...] = ()
    better: str | None = None


class StoredRecord(BulkRecord, frozen=True, kw_only=True):
    """
    One measurement in one session: a line of the baseline.

    Attributes:
        key: What it is a measurement of.

        session: When and where.

        values: One for each metric and source.

        choice: Hash of the kernels that ran; None where nobody could see them.

        facts: Hard facts by family: what a comparable record must share.

        soft_facts: Facts that are printed when they moved.
    """

    key: RecordKey
    session: Session
    values: tuple[StoredValue, ...]
    choice: str | None = None
    facts: Mapping[str, Mapping[str, str]] = {}
    soft_facts: Mapping[str, str] = {}
