"""What a baseline keeps of one measurement in one session; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

from pytest_gpuperf.model.border import finite
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.record import RecordKey

__all__ = ["StoredRecord", "StoredValue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredValue:
    """
    One metric of one measurement in one session.

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
    run_values: tuple[float, ...]
    half_widths: tuple[float, ...] = ()
    better: str | None = None

    def __post_init__(self) -> None:
        """Refuse values that are not finite."""
        # twenty sessions of a suite are 60,000 of these: names are made for bad ones alone
        if all(map(isfinite, self.run_values)) and all(map(isfinite, self.half_widths)):
            return
        finite(f"values[{self.metric}].run_values", *self.run_values)
        finite(f"values[{self.metric}].half_widths", *self.half_widths)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
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
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    soft_facts: Mapping[str, str] = field(default_factory=dict)

    def value_of(self, metric: str, source: str) -> StoredValue | None:
        """Return its value of one metric from one source; None: it has none."""
        for value in self.values:
            if value.metric == metric and value.source == source:
                return value
        return None
