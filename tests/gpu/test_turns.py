"""
Workers of xdist on one GPU take turns.

This process makes no context: NVML would name it to the runs as another user of the GPU.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from fakes.project import XDIST, Project
from gpu.machine import allowed_cupti, installed

# a kernel of one block: two contexts at a time would share the device, and take longer
SPINS = """
    import pytest
    import torch

    @pytest.mark.parametrize("number", range(8))
    def test_spin(gpuperf, number):
        gpuperf.measure(torch.cuda._sleep, 1_000_000)
"""


def times(project: Project, *arguments: str) -> list[float]:
    """Run the tests; return the time of each [s]."""
    ended = project.spawn("--gpuperf-json=run.json", *arguments, timeout=200)
    allowed_cupti(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    records = project.report()["records"]
    assert [each["void"] for each in records] == [None] * len(records), ended.stdout
    estimates = [each["estimates"] for each in records]
    return [
        next(
            one["value"] for one in each if one["metric"] == "time"
        )  # the best source's
        for each in estimates
    ]


@pytest.mark.parametrize("collectors", ["events,host,nvml", "cupti,events,host,nvml"])
def test_two_workers_measure_what_one_process_measures(
    project: Project, own: Path, collectors: str
) -> None:
    """No test is void, none is missing, and the times are those of a run alone."""
    installed("torch")
    if "cupti" in collectors:
        installed("cupti")
    project.write(SPINS)
    chosen = f"--gpuperf-collectors={collectors}"
    alone = times(project, chosen)
    beside = times(project, chosen, *XDIST, "-n2")

    assert len(alone) == len(beside) == 8
    assert median(beside) == pytest.approx(median(alone), rel=0.02, abs=10e-6)
    assert max(beside) < 1.5 * median(alone)
