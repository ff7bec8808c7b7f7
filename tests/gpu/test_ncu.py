"""Nsight Compute, really run: by a command of ours, and by pytest under it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes.project import Project
from gpu.machine import framework, program
from pytest_gpuperf.collect.ncu import Command, Report, Session
from pytest_gpuperf.collect.ncu.launches import CapturedLaunch, read_capture
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.errors import (
    CollectorFailedError,
    CollectorUnavailableError,
    CounterPermissionError,
    NothingProfiledError,
)

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
TIME = "gpu__time_duration.sum"
TWO_GIB = 2 << 30
LONGEST_S = 120.0
JSON = "--gpuperf-json=run.json"


@pytest.fixture(autouse=True)
def alone(torch: Any, ncu: str, own: Path) -> None:
    """Each test needs them, and caches that no other run fills."""


def profiled(
    folder: Path,
    name: str,
    *,
    metrics: tuple[str, ...] = (READ, WRITTEN, TIME),
    **how: object,
) -> tuple[CapturedLaunch, ...]:
    """Run one of our programs under ncu; return its launches, or skip if nobody may."""
    framework("ncu_report")
    executable, path = program(name)
    command = Command(
        executable=executable,
        args=(path,),
        output=folder / name,
        metrics=metrics,
        timeout_s=LONGEST_S,
        **how,  # type: ignore[arg-type] # passed on to Command, which checks each
    )
    assert "--clock-control=none" in command.cmd
    try:
        Session(command=command).run(retries=3)
    except (CounterPermissionError, CollectorUnavailableError) as error:
        pytest.skip(f"ncu: {error}")
    capture = read_capture(command.report, runner=ProcessRunner(), metrics=metrics)
    return tuple(launch for each in capture.ranges for launch in each.launches)


def value(launch: CapturedLaunch, metric: str) -> float:
    """Return a metric of a launch that was measured."""
    found = launch.metrics[metric].value
    assert launch.measured
    assert isinstance(found, (int, float))
    return float(found)


def test_a_copy_moves_what_it_has_to(tmp_path: Path) -> None:
    """2 GiB are read and 2 GiB written, within 10 %."""
    *_, copy = profiled(tmp_path, "stream_copy")

    assert value(copy, READ) == pytest.approx(TWO_GIB, rel=0.1)
    assert value(copy, WRITTEN) == pytest.approx(TWO_GIB, rel=0.1)
    assert value(copy, TIME) > 0


def test_start_end_ranges_choose_launches(tmp_path: Path) -> None:
    """A range of one domain has its two kernels, one of them of another thread's."""
    framework("nvtx")
    launches = profiled(tmp_path, "ranges", nvtx_includes=("regex:inner@.+",))
    inner = [launch.nvtx["inner"] for launch in launches]

    assert inner == [("forward",), ("forward",), ("backward",)]
    assert [launch.nvtx.get("outer") for launch in launches[:2]] == [
        ("step",),
        ("step", "layer"),
    ]


def test_a_report_is_a_tree_of_its_ranges(tmp_path: Path) -> None:
    """What Report reads of a stack is the same kernels, under the names of the stack."""
    framework("nvtx")
    profiled(tmp_path, "ranges", nvtx_includes=("outer@step/",))
    results = Report(path=tmp_path, name="ranges").extract_results_in_range(
        (READ,), includes=("outer@step/",)
    )

    assert len(results) > 0
    assert "step" in str(results)


def test_a_graph_is_profiled_by_node_or_as_a_whole(tmp_path: Path) -> None:
    """Six kernels of two launches, or two graphs."""
    nodes = profiled(tmp_path / "node", "graph", kernel_name="regex:elementwise")
    whole = profiled(tmp_path / "graph", "graph", graph_profiling="graph")

    assert len(nodes) >= 6
    assert len(whole) < len(nodes)


def test_a_range_is_replayed_as_one(tmp_path: Path) -> None:
    """Under range replay three kernels are one result with one time."""
    framework("nvtx")
    results = profiled(
        tmp_path,
        "one_range",
        replay_mode="range",
        nvtx_includes=("outer@step",),
        cache_control="none",
    )

    assert len(results) == 1
    assert value(results[0], TIME) > 0


def test_a_launch_that_fails_is_not_measured(tmp_path: Path) -> None:
    """A kernel that breaks its context is an error, or has no values: never a number."""
    framework("ncu_report")
    executable, path = program("failing")
    command = Command(
        executable=executable,
        args=(path,),
        output=tmp_path / "failing",
        metrics=(READ,),
    )
    try:
        Session(command=command, program_may_fail=True).run()
    except CollectorFailedError:
        return  # ncu itself failed, and the error says how
    except CollectorUnavailableError as error:
        pytest.skip(f"ncu: {error}")
    capture = read_capture(command.report, runner=ProcessRunner(), metrics=(READ,))
    assert not capture.ranges[-1].launches[-1].measured


def test_a_program_without_kernels_says_so(tmp_path: Path) -> None:
    """Nothing profiled is an error with a remedy."""
    command = Command(
        executable=sys.executable,
        args=("-c", "print(1)"),
        output=tmp_path / "nothing",
        metrics=(READ,),
    )
    with pytest.raises((NothingProfiledError, CollectorFailedError)) as caught:
        Session(command=command).run()

    assert caught.value.remedy


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
def starts(project: Project, ncu: str, tmp_path: Path) -> Callable[[], int]:
    """Tells how often ncu was started to profile; it is first on PATH, and goes on."""
    for name in ("ncu_report", "nvtx"):
        framework(name)
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
    assert large > 2 * small
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
