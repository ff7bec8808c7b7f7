"""Command lines that a real ncu takes: no double knows what a version refuses."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fakes import fake_ncu
from pytest_gpuperf.collect.ncu.command import Command
from pytest_gpuperf.collect.ncu.session import Session
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.model.frozen import replace

NCU = os.environ.get("GPUPERF_NCU") or shutil.which("ncu") or ""
IS_REAL = bool(NCU) and Path(NCU).parent != Path(fake_ncu.__file__).parent
PROGRAM = "/bin/true"  # it profiles nothing: ncu refuses an option before it starts it
# of a command line that ncu took: of where it runs, and of the program
TAKEN = ("ncu finds no CUDA driver", "ncu saw no kernel", "the program ended before it")
LATER = {"app-range", "graph_profiling"}  # than 2022.3

pytestmark = pytest.mark.skipif(
    not IS_REAL, reason="needs a real ncu on PATH, or named by GPUPERF_NCU"
)
MODES = [
    {"replay_mode": replay, "clock_control": clocks, "cache_control": cache}
    for replay, (clocks, cache) in itertools.product(
        ("kernel", "application", "range", "app-range"),
        (("none", "all"), ("base", "none")),
    )
]


def help_text() -> str:
    return subprocess.run(
        [NCU, "--help"], capture_output=True, text=True, check=True
    ).stdout


def said_of(tmp_path: Path, **fields: object) -> str:
    """Return what is said of a command line that profiles nothing."""
    text = help_text()
    for word in LATER.intersection(map(str, (*fields, *fields.values()))):
        if word.replace("_", "-") not in text:
            pytest.skip(f"this ncu has no {word}")
    command = Command(ncu=NCU, executable=PROGRAM, output=tmp_path / "out", **fields)  # type: ignore[arg-type] # each test names fields
    session = Session(command=command, lock_folder=tmp_path / "locks")
    with pytest.raises(GpuPerfError) as caught:
        session.run()
    return caught.value.message


@pytest.mark.parametrize("fields", MODES, ids=lambda fields: "-".join(fields.values()))
def test_the_command_of_a_suite_is_taken(
    tmp_path: Path, fields: dict[str, str]
) -> None:
    """In every replay mode and with both clocks that every version has."""
    said = said_of(
        tmp_path,
        **fields,
        metrics=("dram__bytes.sum", "gpu__time_duration.sum"),
        nvtx_includes=("regex:pytest-gpuperf@.+",),
        opts=("--devices", "0"),
    )

    assert said.startswith(TAKEN)


@pytest.mark.parametrize(
    "fields",
    [
        {"graph_profiling": "graph"},
        {"target_processes": "application-only"},
        {"nvtx_includes": ("a/b",), "nvtx_excludes": ("c/",)},
        {"kernel_name": "regex:gemm", "kernel_name_base": "demangled"},
        {"kernel_id": "::gemm:2", "launch_count": 3},
        {"launch_skip": 1, "launch_count": 3},
        {"opts": ("--set=full", "--import-source=yes")},
    ],
    ids="-".join,
)
def test_every_other_field_is_taken(tmp_path: Path, fields: dict[str, object]) -> None:
    """Each is an option of every version that is supported."""
    said = said_of(tmp_path, **fields)

    assert said.startswith(TAKEN)


def test_what_a_version_lacks_is_told(tmp_path: Path) -> None:
    """By the option's name, and with no word of what the user did not write."""
    if "force-boost" in help_text():
        pytest.skip("this ncu has all words of --clock-control")
    command = Command(
        ncu=NCU, executable=PROGRAM, output=tmp_path / "out", clock_control="boost"
    )
    session = Session(command=command, lock_folder=tmp_path / "locks")

    with pytest.raises(GpuPerfError, match="cannot lock the clocks in that way"):
        session.run()
    with pytest.raises(GpuPerfError, match="no option --no-such-option"):
        replace(session, command=replace(command, opts=("--no-such-option=1",))).run()
