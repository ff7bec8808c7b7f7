"""
Slowdowns that were planted are found, and what did not change is not.

This process makes no context: NVML would name it to the runs as another user of the GPU.
"""

from __future__ import annotations

import json
from pathlib import Path

from fakes.project import Project
from gpu.machine import installed

# Cycles of the SM clock, or bytes of memory, by a factor that the environment gives.
PLANTED = """
    import json
    import os

    import pytest
    import torch

    FACTORS = json.loads(os.environ.get("FACTORS", "{}"))
    NAMES = ["same", "five", "ten", "twenty"]

    @pytest.mark.gpuperf(max_regression={"time": "2 %"})
    @pytest.mark.parametrize("name", NAMES)
    def test_cycles(gpuperf, name):
        cycles = int(1_000_000 * FACTORS.get(name, 1.0))
        gpuperf.measure(torch.cuda._sleep, cycles)

    @pytest.mark.gpuperf(max_regression={"time": "2 %"})
    @pytest.mark.parametrize("name", NAMES)
    def test_bytes(gpuperf, name):
        count = int((64 << 20) * FACTORS.get(name, 1.0))
        x = torch.ones(count, device="cuda")
        out = torch.empty_like(x)
        gpuperf.measure(lambda: torch.add(x, 1, out=out))
"""
FACTORS = {"same": 1.0, "five": 1.05, "ten": 1.10, "twenty": 1.20}
SESSIONS = 5
COLLECTORS = "--gpuperf-collectors=events,host"


def test_planted_slowdowns_are_found(project: Project, own: Path) -> None:
    """5, 10 and 20 % fail their tests against five sessions; 0 % never does."""
    installed("torch")
    project.write(PLANTED)
    for _ in range(SESSIONS):
        stored = project.spawn(COLLECTORS, "-q", "--gpuperf-update=all", timeout=180)
        assert stored.returncode == 0, stored.stdout + stored.stderr
    project.environment.setenv("FACTORS", json.dumps(FACTORS))
    ended = project.spawn(
        COLLECTORS,
        "--gpuperf-baseline=.gpuperf",
        "--gpuperf-confirm=3",
        "--gpuperf-json=run.json",
        timeout=400,
    )
    found = {
        (verdict["key"]["test_id"].partition("::")[2]): verdict["outcome"]
        for verdict in project.report()["verdicts"]
        if verdict["metric"] == "time"
    }
    regressed = {name for name, outcome in found.items() if outcome == "regressed"}

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert regressed == {
        f"{test}[{name}]"
        for test in ("test_cycles", "test_bytes")
        for name in ("five", "ten", "twenty")
    }, ended.stdout
