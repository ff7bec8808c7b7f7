"""
A revision and the working tree, measured by turns on a GPU.

This process makes no context: NVML would name it to the runs as another user of the GPU.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fakes.project import Project
from functional.against.repository import AGAINST, Repository
from gpu.machine import installed

WORK = """
    import torch

    CYCLES, COUNT = {cycles}, {count}
    X = torch.ones(COUNT, device="cuda")
    OUT = torch.empty_like(X)

    def spin():
        torch.cuda._sleep(CYCLES)

    def add():
        torch.add(X, 1, out=OUT)
"""
TESTS = """
    import pytest

    import kernels

    @pytest.mark.gpuperf(max_regression={"time": "5 %"})
    @pytest.mark.parametrize("name", ["spin", "add"])
    def test_kernel(gpuperf, name):
        gpuperf.measure(getattr(kernels, name))
"""
CYCLES, COUNT = 1_000_000, 64 << 20


@pytest.mark.parametrize(
    ("factors", "regressed"),
    [((1.0, 1.0), set()), ((1.1, 1.0), {"spin"}), ((1.0, 1.1), {"add"})],
    ids=["same", "cycles", "bytes"],
)
def test_a_slower_kernel_regresses(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    own: Path,
    factors: tuple[float, float],
    regressed: set[str],
) -> None:
    """+10 % fails its own test and no other; without a change nothing fails."""
    installed("torch")
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    repository = Repository(project)
    project.write(TESTS)
    project.write(WORK.format(cycles=CYCLES, count=COUNT), "kernels.py")
    repository.commit("as it was")
    cycles, count = (
        int(n * factor) for n, factor in zip((CYCLES, COUNT), factors, strict=True)
    )
    project.write(WORK.format(cycles=cycles, count=count), "kernels.py")
    ended = project.spawn(*AGAINST, "--gpuperf-budget=3min", timeout=280)
    outcomes = {name: outcome for name, (outcome, _) in repository.outcomes().items()}

    assert outcomes == {
        f"test_kernel[{name}]": "regressed" if name in regressed else "unchanged"
        for name in ("spin", "add")
    }, ended.stdout
    assert ended.returncode == bool(regressed), ended.stdout
