"""A machine with scripted GPUs, for tests that start a whole process.

fake_cuda.c is its CUDA driver, fake_nvml/ its NVML; a project gets a module `gpu` that
gives the device work, as a framework would.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from fakes import compiler, nvml_library
from fakes.project import Project

__all__ = ["OTHER", "UUID", "build", "machine", "use", "with_cupti", "with_torch"]

_SOURCE = Path(__file__).with_name("fake_cuda.c")
LIBRARY = "libcuda.so.1"
UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
OTHER = "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f"  # of a second GPU
_SCRIPT = """\
,*,name,NVIDIA H200
,*,cc,9.0
,*,mem.total,150754820096
,*,mem.reserved,600000000
,*,power.limit_mw,700000
,*,clock.sm_max,1980
,*,clock.mem,3201
,*,ecc.mode,1
,*,mig,0
0,*,mem.used,500000000
0,*,power.mw,350000
0,*,temp.gpu,45
0,*,clock.sm,1980
0,*,clocks.reasons,0x0
"""
# what a framework does: it loads the driver, and makes a context
LAUNCHED = """
    import ctypes
    import os

    try:
        from seen_by_cupti import launched
    except ImportError:
        def launched(ns):
            pass

    _driver = ctypes.CDLL(os.environ["FAKE_CUDA"])
    _driver.fake_cuda_launch.argtypes = [ctypes.c_int64, ctypes.c_int]

    def launch(ns=200_000, stream=0, device=0):
        launched(ns)
        _driver.fake_cuda_set_device(device)
        _driver.fake_cuda_launch(ns + 20_000, stream)  # the records are there by then
        _driver.fake_cuda_set_device(0)

    launch(1_000)
"""
# CUPTI's double in place of the binding, on the clock of the processes
SEEN = """
    import os
    import sys
    import time

    import cupti.cupti as real
    from fakes.cupti import FakeCupti

    class Now(FakeCupti):
        @property
        def now_ns(self):
            return time.time_ns()

        @now_ns.setter
        def now_ns(self, value):
            pass

    double = Now(real)
    double.holder = os.environ.get("FAKE_CUPTI_HOLDER")
    sys.modules["cupti.cupti"] = double

    def launched(ns):
        double.launch(ns=ns)
"""


def build(folder: Path) -> Path:
    """Return the library, put into a folder under the name that loaders know."""
    built = compiler.library(_SOURCE.read_text("utf-8"), folder / LIBRARY)
    if built is None:
        pytest.skip("compiles a CUDA driver: install a C compiler")
    return built


def machine(project: Project, folder: Path, *, gpus: tuple[str, ...] = (UUID,)) -> None:
    """Give a project GPUs, built in a folder, for the processes that it starts.

    NVML lists all of them; CUDA has the first, unless `use` says others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    driver = build(folder)
    nvml_library.compiled(folder)
    script = folder / "nvml.csv"
    uuids = "".join(f",{index},uuid,{uuid}\n" for index, uuid in enumerate(gpus))
    script.write_text(f",0,sys.gpus,{len(gpus)}\n{uuids}{_SCRIPT}", "utf-8")
    environment = project.environment
    environment.setenv("LD_LIBRARY_PATH", str(folder), prepend=os.pathsep)
    environment.setenv("FAKE_CUDA", str(driver))
    use(project, gpus[0])
    environment.setenv("GPUPERF_LOCK_DIR", str(folder / "locks"))
    environment.setenv("FAKE_NVML_SCRIPT", str(script))
    project.write(LAUNCHED, "gpu.py")


def use(project: Project, *uuids: str) -> None:
    """Let a project's CUDA work with other GPUs; the first is the current one."""
    plain = (uuid.removeprefix("GPU-").replace("-", "") for uuid in uuids)
    project.environment.setenv("FAKE_CUDA_UUID", ",".join(plain))


def with_torch(project: Project) -> None:
    """Let a project import a torch whose kernels are work of the scripted driver."""
    folder = Path(__file__).parents[1] / "fake_torch"
    project.environment.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


def with_cupti(project: Project, holder: str = "") -> None:
    """Let CUPTI's double see what a project's GPU does; `holder`: who has it already."""
    if importlib.util.find_spec("cupti") is None:
        pytest.skip("fills the records of cupti-python: pip install cupti-python")
    tests = Path(__file__).parents[2]
    project.environment.setenv("PYTHONPATH", str(tests), prepend=os.pathsep)
    if holder:
        project.environment.setenv("FAKE_CUPTI_HOLDER", holder)
    project.write(SEEN, "seen_by_cupti.py")
