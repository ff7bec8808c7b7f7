"""A whole run: header, records, verdicts; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_gpuperf.model.environment import Environment, Session
from pytest_gpuperf.model.record import Record
from pytest_gpuperf.model.verdict import Verdict

__all__ = ["Completeness", "Header", "Run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """
    Which tests were to report, and which did.

    Attributes:
        expected_count: Tests with a measurement that were selected.

        reported_count: Those that reported.

        missing: Ids of those that never did.

        interrupted: What ended the run early; "" where nothing did.
    """

    expected_count: int
    reported_count: int
    missing: tuple[str, ...] = ()
    interrupted: str = ""

    @property
    def complete(self) -> bool:
        """Whether every test reported and nothing ended the run early."""
        return not self.missing and not self.interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """
    What a run has to say before its first record.

    Attributes:
        session: When and where.

        environment: Machine and software.

        options: The plugin's options that were set, as text; credentials masked.

        collectors: The collectors that were used.

        sentences: Why each of the others was not.

        completeness: Which tests reported.
    """

    session: Session
    environment: Environment
    completeness: Completeness
    options: Mapping[str, str] = field(default_factory=dict)
    collectors: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """
    One run of a suite.

    Attributes:
        schema: The schema of its JSON.

        header: What it has to say before its first record.

        records: One for each process, test and measurement.

        verdicts: Limits first, then changes, by test.
    """

    schema: str
    header: Header
    records: tuple[Record, ...]
    verdicts: tuple[Verdict, ...] = ()
