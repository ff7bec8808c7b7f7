"""A whole run: header, records, verdicts; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_gpuperf.model.border import finite
from pytest_gpuperf.model.environment import Environment, Session
from pytest_gpuperf.model.record import BoundClass, Record
from pytest_gpuperf.model.verdict import Verdict

__all__ = ["Completeness", "Header", "MachineShift", "Run"]


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

        jit_cache: "fresh" where each confirming process compiled and tuned anew, "keep"
            where it found what earlier ones had chosen; None: nobody said.
    """

    session: Session
    environment: Environment
    completeness: Completeness
    options: Mapping[str, str] = field(default_factory=dict)
    collectors: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
    jit_cache: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineShift:
    """
    How far the machine moved a class of tests, up to the confirming processes.

    Attributes:
        bound_class: The class.

        metric: The metric's name.

        effect: Of the class as a whole [fraction].

        control_count: Controls that show it.

        moved: Whether it is more than noise.
    """

    bound_class: BoundClass
    metric: str
    effect: float
    control_count: int
    moved: bool

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("shift.effect", self.effect)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """
    One run of a suite.

    Attributes:
        schema: The schema of its JSON.

        header: What it has to say before its first record.

        records: One for each process, test and measurement.

        verdicts: Limits first, then changes, by test.

        xfailed: Ids of tests that failed and were expected to: what they missed is no
            failure of the run.

        shifts: What the machine did to whole classes of tests, as controls show it.
    """

    schema: str
    header: Header
    records: tuple[Record, ...]
    verdicts: tuple[Verdict, ...] = ()
    xfailed: tuple[str, ...] = ()
    shifts: tuple[MachineShift, ...] = ()
