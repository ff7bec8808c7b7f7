"""A libcupti that counts, for tests that start a whole process: FakeCupti behind a library.

The library has the name that loaders know, and hands each call to Python; a project gets a
module `counted_gpu`, whose launches are counted as a framework's would be.
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from typing import Any

import pytest

from fakes import compiler
from fakes.libcupti import FakeCupti
from fakes.project import Project
from pytest_gpuperf.collect.cupti.libcupti import CALLS

__all__ = ["install", "loaded", "told"]

LIBRARY = "libcupti.so.13"
VERSION = 130500
BYTES, HITS, TIME = (
    "dram__bytes.sum",
    "lts__t_sector_hit_rate.pct",
    "gpu__time_duration.sum",
)
UNITS = {BYTES: "byte", HITS: "percent", TIME: "nanosecond"}
# those that count; this double does not describe metrics
_FUNCTIONS = tuple(name for name in CALLS if hasattr(FakeCupti, f"_{name}"))
_SOURCE = """\
typedef int (*answer)(void *);
static answer answers[{count}];
void double_answer(int place, answer by) {{ answers[place] = by; }}
int cuptiGetVersion(unsigned *version) {{ *version = {version}; return 0; }}
int cuptiClockControlGetStatus(void *context, int *state) {{
    (void)context;
    *state = 1;
    return 0;
}}
"""
_CALL = (
    "int {name}(void *p) {{ return answers[{place}] ? answers[{place}](p) : 999; }}\n"
)
_GPU = """
    from fakes import cupti_counting

    double = cupti_counting.loaded()  # before whoever loads the real one

    import ctypes
    import os

    try:
        import seen_by_cupti
    except ImportError:
        seen_by_cupti = None

    _driver = ctypes.CDLL(os.environ["FAKE_CUDA"])
    _driver.fake_cuda_launch.argtypes = [ctypes.c_int64, ctypes.c_int]
    calls = 0

    def launch(size=64.0, name="_Z4axpyPf", ns=1_000, nodes=1):
        global calls
        calls += 1
        if seen_by_cupti is not None:
            seen_by_cupti.double.launch(name, ns=ns, nodes=nodes)
        double.launch({
            cupti_counting.BYTES: size,
            cupti_counting.HITS: 50.0,
            cupti_counting.TIME: 1_000.0,
        })
        _driver.fake_cuda_launch(ns, 0)

    launch()
"""


def install(project: Project, folder: Path, **how: Any) -> None:
    """
    Give a project whose machine has a GPU a libcupti that counts on it.

    Args:
        project: It; `told` changes later what is said here.

        folder: Where the library is put.

        how: Attributes of FakeCupti.
    """
    folder.mkdir(parents=True, exist_ok=True)
    head = _SOURCE.format(count=len(_FUNCTIONS), version=VERSION)
    every = (_CALL.format(name=n, place=p) for p, n in enumerate(_FUNCTIONS))
    built = compiler.library(head + "".join(every), folder / LIBRARY)
    if built is None:
        pytest.skip("compiles a libcupti: install a C compiler")
    tests = Path(__file__).parents[1]
    project.environment.setenv("PYTHONPATH", str(tests), prepend=os.pathsep)
    project.environment.setenv("FAKE_LIBCUPTI", str(built))
    project.write(_GPU, "counted_gpu.py")
    told(project, **how)


def told(project: Project, **how: Any) -> None:
    """Say how the libcupti of the next processes behaves."""
    project.environment.setenv("FAKE_LIBCUPTI_DOES", json.dumps(how))


def loaded() -> FakeCupti:
    """Load the library into this process, as a framework does; return what answers."""
    double = FakeCupti(UNITS, version=VERSION)
    for name, value in json.loads(os.environ["FAKE_LIBCUPTI_DOES"]).items():
        assert hasattr(double, name)
        setattr(double, name, value)
    library = ctypes.CDLL(os.environ["FAKE_LIBCUPTI"])
    for place, function in enumerate(_FUNCTIONS):
        library.double_answer(place, getattr(double, function))
    return double
