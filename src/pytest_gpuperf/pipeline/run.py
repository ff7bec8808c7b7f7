"""One run, step by step; each step's work is done in another room; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.model.codec import SCHEMA_VERSION
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.pipeline import keeping, verdicts
from pytest_gpuperf.pipeline.again import confirm_suspects, measure_again
from pytest_gpuperf.report import as_json

if TYPE_CHECKING:
    from pytest_gpuperf.model.measured import Measured
    from pytest_gpuperf.model.verdict import Verdict
    from pytest_gpuperf.pipeline.suite import Suite

__all__ = ["conclude", "decide", "looks_worse"]


def decide(suite: Suite) -> tuple[Verdict, ...]:
    """Measure again what needs it, and return every verdict of the run."""
    complete = suite.completeness().complete
    if complete:
        measure_again(suite)
    cases = verdicts.cases(suite)
    answers = confirm_suspects(suite, cases) if complete else {}
    limits = verdicts.limits(suite, answers)
    changes = verdicts.changes(suite, cases, answers, complete=complete)
    return (*limits, *changes)


def conclude(suite: Suite) -> Run:
    """Return the whole run, stored and reported; what goes wrong fails the run."""
    run = Run(
        schema=SCHEMA_VERSION,
        header=suite.header(),
        records=suite.records(),
        verdicts=suite.verdicts,
    )
    suite.complain(*verdicts.complaints(suite, run))
    try:
        keeping.store(suite, run)
    except GpuPerfError as error:
        suite.complain_of(error)
    try:
        if suite.config.json is not None:
            as_json.write_json(keeping.with_samples(suite, run), suite.config.json)
    except GpuPerfError as error:
        suite.complain_of(error)
    return run


def looks_worse(suite: Suite, measured: Measured) -> bool:
    """Return whether a test may turn out to have regressed; generous, no verdict."""
    return suite.config.baseline_named and verdicts.looks_worse(suite, measured)
