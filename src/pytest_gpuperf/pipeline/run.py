"""One run, step by step; each step's work is done in another room; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.model.codec import SCHEMA_VERSION
from pytest_gpuperf.model.frozen import collector_paused, replace
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.model.verdict import Reason
from pytest_gpuperf.pipeline import keeping, verdicts
from pytest_gpuperf.pipeline.again import confirm, measure_again

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuperf.model.measured import Measured
    from pytest_gpuperf.model.run import MachineShift
    from pytest_gpuperf.pipeline.suite import Suite

__all__ = ["decide", "finish", "held_as"]


def held_as(suite: Suite, measured: Measured) -> str | None:
    """
    Return why a test's outcome must wait for the end of the run; None: it need not.

    Generous and no verdict: a limit that is straddled is confirmed, and so is what looks
    worse (SUSPECT); a strict run decides all at the end, and --gpuperf-runs changes every
    value (PENDING).
    """
    straddling = suite.config.confirm > 0 and any(
        verdict.reason is Reason.STRADDLES_LIMIT for verdict in measured.verdicts
    )
    if straddling or verdicts.looks_worse(suite, measured):
        held = "SUSPECT"
    elif suite.config.strict or suite.config.runs > 1:
        held = "PENDING"
    else:
        return None
    suite.hold(measured.test_id)
    return held


def decide(suite: Suite) -> tuple[MachineShift, ...]:
    """
    Measure again what needs it, and decide every verdict of the run.

    Returns:
        What the machine did meanwhile, by class of tests.
    """
    suite.sort()
    complete = suite.completeness().complete
    if complete:
        measure_again(suite)
    with collector_paused():
        looked = verdicts.look(suite)
    answers = confirm(suite, looked) if complete else {}
    with collector_paused():
        limits = verdicts.limits(suite, answers)
        confirmed = verdicts.confirmations(looked, answers)
        changes = verdicts.changes(looked, confirmed, complete=complete)
    suite.verdicts = (*limits, *changes)
    return verdicts.shifts(looked, confirmed)


def finish(
    suite: Suite,
    *,
    xfailed: Sequence[str] = (),
    shifts: Sequence[MachineShift] = (),
) -> Run:
    """
    Return the whole run, stored and reported; what goes wrong fails the run.

    Args:
        suite: All that the run has gathered.

        xfailed: Ids of the tests that failed, and were expected to.

        shifts: What the machine did, by class of tests.
    """
    run = Run(
        schema=SCHEMA_VERSION,
        header=replace(suite.header(), jit_cache=suite.config.jit_cache.value),
        records=suite.records(),
        verdicts=suite.verdicts,
        xfailed=tuple(xfailed),
        shifts=tuple(shifts),
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
