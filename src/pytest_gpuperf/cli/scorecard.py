"""The command `scorecard`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import GOOD, WORSE, print_bytes

if TYPE_CHECKING:
    import argparse

__all__ = ["scorecard"]


def scorecard(arguments: argparse.Namespace) -> int:
    """Print the scorecard of a step profile."""
    from pytest_gpuperf.pipeline.scorecard import is_worse, score_file
    from pytest_gpuperf.report.scorecard import scorecard_bytes

    scored = score_file(
        arguments.profile,
        throughput=arguments.throughput,
        hardware=arguments.hardware,
        baseline=arguments.baseline,
        measured=arguments.policy == "measured",
        invariants=arguments.invariant,
    )
    print_bytes(scorecard_bytes(scored, arguments.format))
    return WORSE if is_worse(scored) else GOOD
