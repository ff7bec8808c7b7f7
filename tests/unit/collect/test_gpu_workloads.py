"""collect.gpu_workloads: three kernels on a compiled double of the CUDA driver."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes import fake_cuda
from pytest_gpuperf.collect.base import GPU_WORKLOADS
from pytest_gpuperf.collect.gpu_workloads import _PTX, CudaWorkloads
from pytest_gpuperf.errors import CollectError


@pytest.fixture(name="driver")
def driver_(tmp_path: Path) -> Any:
    """Return a driver, in which no context exists yet."""
    if sys.platform != "linux":
        pytest.skip("the scripted driver is an ELF library")
    return ctypes.CDLL(str(fake_cuda.build(tmp_path)))


def test_without_a_context_nothing_runs(driver: Any) -> None:
    """None is made, and no driver is loaded."""
    for library in (lambda: driver, lambda: None):
        with CudaWorkloads(library).ready() as workloads:
            assert workloads is None
    assert driver.fake_cuda_kernels() == 0


def test_each_kernel_has_its_own_time_and_leaves_nothing(driver: Any) -> None:
    """The launch before the first event keeps the device busy: no launch is in the time."""
    driver.fake_cuda_launch(ctypes.c_int64(1_000), 0)
    with CudaWorkloads(lambda: driver).ready() as workloads:
        assert workloads is not None
        # A busy machine may stop the process between two launches, which a device sees.
        turns = [[*map(workloads.time_s, GPU_WORKLOADS)] for _ in range(5)]
        assert driver.fake_cuda_held() == 3

    times_s = [min(filter(None, times)) for times in zip(*turns, strict=True)]
    assert times_s == pytest.approx([100e-6] * 3, rel=1e-3)
    assert driver.fake_cuda_kernels() == 5 * 2 * len(GPU_WORKLOADS)
    assert driver.fake_cuda_held() == 0


def time_one(driver: Any) -> None:
    with CudaWorkloads(lambda: driver).ready() as workloads:
        assert workloads is not None
        workloads.time_s(GPU_WORKLOADS[0])


@pytest.mark.parametrize("function", ["cuMemAlloc_v2", "cuLaunchKernel"])
def test_a_driver_that_refuses_is_named_and_gets_all_back(
    driver: Any, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was taken until then is given back."""
    driver.fake_cuda_launch(ctypes.c_int64(1_000), 0)
    monkeypatch.setenv("FAKE_CUDA_FAIL", f"{function}:2")
    with pytest.raises(CollectError, match=function):
        time_one(driver)

    # The double counts the buffer that it refused.
    assert driver.fake_cuda_held() == (function == "cuMemAlloc_v2")


@pytest.mark.parametrize("target", ["sm_75", "sm_90", "sm_120"])
def test_nvidias_assembler_accepts_the_kernels(tmp_path: Path, target: str) -> None:
    """Where it is installed; a driver does the same when it loads them."""
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("there is no ptxas")
    source = tmp_path / "kernels.ptx"
    source.write_bytes(_PTX)
    made = [ptxas, f"-arch={target}", str(source), "-o", str(tmp_path / "kernels")]
    ran = subprocess.run(made, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
