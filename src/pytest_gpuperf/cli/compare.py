"""The command `compare`: the last run against the sessions of the older runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import GOOD, UNDECIDED, WORSE, print_bytes, read_runs
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.model.verdict import JUDGED, Outcome
from pytest_gpuperf.pipeline.compare import compare_runs
from pytest_gpuperf.report.runs import run_bytes

if TYPE_CHECKING:
    import argparse

__all__ = ["compare"]


def compare(arguments: argparse.Namespace) -> int:
    """Judge the last run against the sessions of the older runs."""
    if len(arguments.files) < 2:  # noqa: PLR2004 - a comparison needs two runs
        message = "a comparison needs at least two files"
        raise ConfigError(message, remedy="name the older runs first, the newest last")
    runs = read_runs(arguments.files)
    judged = compare_runs(runs, max_regression=arguments.max_regression)
    print_bytes(run_bytes(judged, arguments.format))
    verdicts = judged.verdicts
    worse = {Outcome.FAILED, Outcome.REGRESSED}  # without a threshold: only shown
    if any(
        v.outcome in worse and (v.limit or v.threshold is not None) for v in verdicts
    ):
        return WORSE
    decided = any(verdict.outcome in JUDGED for verdict in verdicts)
    return UNDECIDED if arguments.strict and not decided else GOOD
