"""
pytest under Nsight Compute: the counters of each test, in few starts of ncu.

This process makes no context: NVML would name it to the runs as another user of the GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fakes.project import Project
from gpu.machine import installed

READ = "dram__bytes_read.sum"
TWO_GIB = 2 << 30
JSON = "--gpuperf-json=run.json"

COUNTED = """
    import pytest
    import torch

    TWO_GIB = 2 << 30
    X = None

    @pytest.fixture(scope="module")
    def copy():
        x = torch.ones(TWO_GIB // 4, device="cuda")
        out = torch.empty_like(x)
        return lambda: torch.add(x, 1, out=out)

    @pytest.mark.gpuperf(counters=["dram__bytes_read.sum", "dram__bytes_write.sum"])
    def test_copy(gpuperf, copy):
        perf = gpuperf.measure(copy)
        assert perf["dram__bytes_read.sum"] == pytest.approx(TWO_GIB, rel=0.1)
        assert perf["dram__bytes_write.sum"] == pytest.approx(TWO_GIB, rel=0.1)

    @pytest.mark.gpuperf(counters=["sm__inst_executed_pipe_tensor.sum"])
    @pytest.mark.parametrize("size", [256, 512])
    def test_product(gpuperf, size):
        a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        perf = gpuperf.measure(torch.matmul, a, a, name="product")
        assert perf["sm__inst_executed_pipe_tensor.sum"] > 0

    @pytest.mark.gpuperf(counters=["dram__bytes_read.sum"])
    def test_backward(gpuperf):
        x = torch.randn(4096, 4096, device="cuda", requires_grad=True)
        with gpuperf.range("backward") as perf:  # launched by autograd's own thread
            x.square().sum().backward()
        assert perf["dram__bytes_read.sum"] > 0
"""


@pytest.fixture
def starts(project: Project, own: Path, ncu: str, tmp_path: Path) -> Callable[[], int]:
    """Tells how often ncu was started to profile; it is first on PATH, and goes on."""
    for name in ("torch", "ncu_report", "nvtx"):
        installed(name)
    log, script = tmp_path / "starts", tmp_path / "bin" / "ncu"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\necho "$@" >>{log}\nexec {ncu} "$@"\n')
    script.chmod(0o755)
    project.environment.setenv("PATH", str(script.parent), prepend=os.pathsep)
    project.write(COUNTED)

    def count() -> int:
        lines = log.read_text().splitlines() if log.exists() else []
        return sum("--metrics" in line for line in lines)

    return count


def run(project: Project, *arguments: str) -> Mapping[tuple[str, str, str], float]:
    """Run the tests under ncu; return values by test, metric and source."""
    ended = project.spawn(JSON, *arguments, timeout=400)
    if "ERR_NVGPUCTRPERM" in ended.stdout or "counter-permission" in ended.stdout:
        pytest.skip("ncu: this user may not read counters")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "skipped" not in ended.stdout, ended.stdout
    return {
        (record["key"]["test_id"].partition("::")[2], each["metric"], each["source"]): (
            each["value"]
        )
        for record in project.report()["records"]
        for each in record["estimates"]
    }


def test_pytest_under_ncu_counts_each_test(
    project: Project, starts: Callable[[], int]
) -> None:
    """Counters are ncu's, times are not, and four tests share at most two starts."""
    counted = run(project)
    tensor = "sm__inst_executed_pipe_tensor.sum"
    small, large = (counted[f"test_product[{n}]", tensor, "ncu"] for n in (256, 512))

    assert counted["test_copy", READ, "ncu"] == pytest.approx(TWO_GIB, rel=0.1)
    assert counted["test_backward", READ, "ncu"] > 0
    assert large > small  # by less than eight times: other tiles, larger instructions
    assert not [key for key in counted if key[1] == "time" and key[2] == "ncu"]
    assert 1 <= starts() <= 2


def test_the_second_run_counts_nothing(
    project: Project, starts: Callable[[], int]
) -> None:
    """What was counted is kept: the same run again starts no ncu and has the same."""
    first, second = (
        {
            key: value
            for key, value in run(project, "-k", "product").items()
            if key[2] == "ncu"
        }
        for _ in range(2)
    )

    assert first == second
    assert starts() == 1
