"""One run, step by step; each step's work is done in another room; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.model.codec import SCHEMA_VERSION
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.model.verdict import Reason
from pytest_gpuperf.pipeline import keeping, verdicts
from pytest_gpuperf.pipeline.again import confirm, measure_again

if TYPE_CHECKING:
    from pytest_gpuperf.model.measured import Measured
    from pytest_gpuperf.pipeline.suite import Suite

__all__ = ["decide", "finish", "holds"]


def holds(suite: Suite, measured: Measured) -> bool:
    """
    Return whether a test's outcome must wait for the end of the run.

    Generous and no verdict: a strict run decides all at the end, --gpuperf-runs changes
    every value, a limit that is straddled is confirmed, and so is what looks worse.
    """
    straddling = suite.config.confirm > 0 and any(
        verdict.reason is Reason.STRADDLES_LIMIT for verdict in measured.verdicts
    )
    several = suite.config.strict or suite.config.runs > 1
    held = several or straddling or verdicts.looks_worse(suite, measured)
    if held:
        suite.hold(measured.test_id)
    return held


def decide(suite: Suite) -> None:
    """Measure again what needs it, and decide every verdict of the run."""
    suite.sort()
    complete = suite.completeness().complete
    if complete:
        measure_again(suite)
    looked = verdicts.look(suite)
    answers = confirm(suite, looked) if complete else {}
    limits = verdicts.limits(suite, answers)
    changes = verdicts.changes(looked, answers, complete=complete)
    suite.verdicts = (*limits, *changes)


def finish(suite: Suite) -> Run:
    """Return the whole run, stored and reported; what goes wrong fails the run."""
    run = Run(
        schema=SCHEMA_VERSION,
        header=suite.header(),
        records=suite.records(),
        verdicts=suite.verdicts,
    )
    suite.run = run
    suite.complain(*verdicts.complaints(suite, run))
    for step in (keeping.store, keeping.write_reports):
        try:
            step(suite, run)
        except GpuPerfError as error:  # one that fails must not keep back the others
            suite.complain_of(error)
    suite.tidy()
    return run
