"""
A whole run of the plugin on each framework: which source gave the time, and is it right.

This process makes no context: NVML would name it to the runs as another user of the GPU.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from fakes.project import Project
from gpu.machine import allowed_cupti, installed

# Each body adds one to 2**26 floats, so that all of them do the same to memory: 512 MiB.
BODIES = {
    "torch": """
        import torch
        x = torch.ones(1 << 26, device="cuda")
        out = torch.empty_like(x)
        def body():
            torch.add(x, 1, out=out)
    """,
    "triton": """
        import torch, triton
        import triton.language as tl
        @triton.jit
        def kernel(x, out, count, block: tl.constexpr):
            at = tl.program_id(0) * block + tl.arange(0, block)
            tl.store(out + at, tl.load(x + at, mask=at < count) + 1, mask=at < count)
        x = torch.ones(1 << 26, device="cuda")
        out = torch.empty_like(x)
        def body():
            kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), block=1024)
    """,
    "cupy": """
        import cupy
        x = cupy.ones(1 << 26, dtype=cupy.float32)
        out = cupy.empty_like(x)
        def body():
            cupy.add(x, 1, out=out)
    """,
    "numba": """
        import numpy as np
        from numba import cuda
        @cuda.jit
        def kernel(x, out):
            at = cuda.grid(1)
            if at < x.size:
                out[at] = x[at] + np.float32(1)
        x = cuda.to_device(np.ones(1 << 26, dtype=np.float32))
        out = cuda.device_array_like(x)
        def body():
            kernel[(1 << 26) // 256, 256](x, out)
    """,
    "jax": """
        import os
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        import jax, jax.numpy as jnp
        x = jnp.ones(1 << 26, dtype=jnp.float32)
        add = jax.jit(lambda x: x + 1)
        def body():
            return add(x)
    """,
}
TEST = """
        def test_it(gpuperf):
            gpuperf.measure(body, name="add")
"""
MOVED_BYTES = 2 * 4 * (1 << 26)
LEAST = 0.25  # of the bandwidth: CuPy's addition reaches 35 % of an H200's


OUTPUT_TEST = """
        def test_it(gpuperf):
            gpuperf.measure(lambda out: body(), out, name="add")
"""


def measured(
    project: Project, name: str, collectors: str, test: str = TEST
) -> dict[str, Any]:
    """Return the estimate of `time` of a framework's body, with its record."""
    installed(name)
    project.write(BODIES[name].rstrip() + test)
    ended = project.spawn(
        f"--gpuperf-collectors={collectors}", "--gpuperf-json=run.json", timeout=240
    )
    allowed_cupti(ended.stdout)
    if "1 passed" not in ended.stdout:
        must_run_alone(project.path, name)
    assert "1 passed" in ended.stdout, ended.stdout + ended.stderr
    (record,) = project.report()["records"]
    assert record["void"] is None
    times = [each for each in record["estimates"] if each["metric"] == "time"]
    best: dict[str, Any] = times[0]
    return {**best, "notes": [note["code"] for note in record["notes"]]}


def must_run_alone(folder: Path, name: str) -> None:
    """Skip where a framework fails without the plugin too, with what it says."""
    script = folder / "alone.py"
    script.write_text(textwrap.dedent(BODIES[name]) + "\nbody()\n", "utf-8")
    ended = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        *_, last = ended.stderr.strip().splitlines() or [f"status {ended.returncode}"]
        pytest.skip(f"{name} does not run here: {last}")


@pytest.mark.parametrize("name", ["torch", "triton", "cupy", "numba"])
def test_events_time_the_device(
    project: Project, own: Path, name: str, bandwidth: float
) -> None:
    """The time is the events', and moves bytes at 25 to 105 % of the bandwidth."""
    found = measured(project, name, "events,host")

    assert found["source"] == "events", found["notes"]
    assert LEAST <= MOVED_BYTES / found["value"] / bandwidth <= 1.05


def test_jax_names_no_stream(project: Project, own: Path) -> None:
    """jax without cupti is timed by the host, and a note says why."""
    found = measured(project, "jax", "events,host")

    assert found["source"] == "host"
    assert {"no-stream", "events-failed"} & set(found["notes"])


@pytest.mark.parametrize("name", list(BODIES))
def test_cupti_times_every_framework(
    project: Project, own: Path, name: str, bandwidth: float
) -> None:
    """The time is CUPTI's, of jax too, and moves bytes at 25 to 105 % of the bandwidth."""
    installed("cupti")
    found = measured(project, name, "cupti,events,host")

    assert found["source"] == "cupti", found["notes"]
    assert LEAST <= MOVED_BYTES / found["value"] / bandwidth <= 1.05


@pytest.mark.parametrize("name", ["torch", "triton", "cupy"])
def test_an_output_that_a_kernel_writes_leaves_the_time_valid(
    project: Project, own: Path, name: str
) -> None:
    """Its copy of 256 MiB lies on the device, and is put back by its own library."""
    found = measured(project, name, "events,host", OUTPUT_TEST)

    assert "writes-output" in found["notes"]


@pytest.fixture(scope="session")
def bandwidth() -> float:
    """What the memory of the first GPU can do [B/s]."""
    from pytest_gpuperf.collect.cuda_device import CudaRuntime, load_driver
    from pytest_gpuperf.collect.devices import query_devices
    from pytest_gpuperf.collect.listed_devices import with_driver_facts
    from pytest_gpuperf.collect.peaks import find_peaks

    device = query_devices().devices[0]
    facts = CudaRuntime(load_driver).facts_of(device.uuid)
    value = find_peaks(with_driver_facts(device, facts)).of_memory("dram").value
    if value is None:
        pytest.skip("the bandwidth of this GPU is not known")
    return value
