"""Hooks that other plugins and conftest files may implement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuperf.model.run import Run
    from pytest_gpuperf.model.scorecard import (
        MeasuredScorecard,
        Recommendation,
        TrainingScorecard,
    )
    from pytest_gpuperf.model.steps import StepProfile

__all__ = ["pytest_gpuperf_recommendations", "pytest_gpuperf_run_finished"]


@pytest.hookspec
def pytest_gpuperf_run_finished(config: pytest.Config, run: Run) -> None:
    """
    Receive a judged run, after its reports were written.

    Called once, in the controller or the only process, never in an xdist worker.

    Args:
        config: The pytest config.

        run: The whole run with its verdicts. Read-only.
    """


@pytest.hookspec
def pytest_gpuperf_recommendations(
    scorecard: TrainingScorecard | MeasuredScorecard, profile: StepProfile
) -> list[Recommendation] | None:
    """
    Return further advice on a training step.

    Called once for each loop whose `steps.scorecard` is read, in the process of the test.
    The returned advice is appended to that of pytest-gpuperf.

    Args:
        scorecard: The scorecard with its advice. Read-only. It is a `MeasuredScorecard`
            if the hardware is unknown.

        profile: The step profile of the scorecard. Read-only.

    Returns:
        Recommendations, each with the id of its rule, or None for no advice.
    """


def __dir__() -> list[str]:
    """Return the hooks. pytest looks at each name of the module."""
    return __all__
