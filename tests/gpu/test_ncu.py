"""Nsight Compute, really run by a command of ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gpu.machine import framework, program
from pytest_gpuperf.collect.ncu import Command, Report, Session
from pytest_gpuperf.collect.ncu.launches import read_capture
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.errors import (
    CollectorFailedError,
    CollectorUnavailableError,
    CounterPermissionError,
    NothingProfiledError,
)
from pytest_gpuperf.model.launch import CapturedLaunch

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
TIME = "gpu__time_duration.sum"
TWO_GIB = 2 << 30
LONGEST_S = 120.0


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
