"""Hooks that other plugins and conftest files may implement; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuperf.model.run import Run

__all__ = ["pytest_gpuperf_run_finished"]


@pytest.hookspec
def pytest_gpuperf_run_finished(config: pytest.Config, run: Run) -> None:
    """
    Be told of a run once it has been judged, before its reports are written.

    Called once, in the controller or the only process, never in an xdist worker.

    Args:
        config: The pytest config.

        run: The whole run with its verdicts; read-only.
    """
