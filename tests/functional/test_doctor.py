"""`gpuperf doctor`, as a shell starts it, with a GPU and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GOOD, DEGRADED, BLOCKED = 0, 1, 2


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pytest_gpuperf", "doctor", *arguments],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env={**os.environ, **environment},
        timeout=60,
    )


def test_the_exit_code_says_whether_there_is_a_gpu() -> None:
    """And where there is none, a remark says why."""
    done = doctor("--format=json")
    said = json.loads(done.stdout)

    assert done.stderr == ""
    assert done.returncode == (GOOD if said["devices"] else DEGRADED)
    assert len(said["remarks"]) >= (1 if said["devices"] else 2)
    for each in said["devices"]:
        assert {"dram", "fp32", "bf16"} <= set(each["peaks"])


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_people_are_told_the_same(form: str) -> None:
    """Every remark of the JSON stands in the other forms."""
    said = json.loads(doctor("--format=json").stdout)
    done = doctor(f"--format={form}")

    words = " ".join(done.stdout.split())
    assert all(remark in words for remark in said["remarks"])
    assert all(each["device"] in words for each in said["devices"])


@pytest.mark.parametrize("columns", [60, 100])
def test_text_keeps_to_the_terminal(columns: int) -> None:
    """Sentences are wrapped, with a GPU and without."""
    lines = doctor(COLUMNS=str(columns)).stdout.splitlines()

    assert lines
    assert max(map(len, lines)) <= columns


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    """Without torch and cupy nothing is measured: the sentence says so, and the code."""
    for name in ("torch", "cupy"):
        text = f"raise ImportError({name!r})\n"
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    kept = tmp_path / "peaks.json"
    done = doctor("--measure-peaks", PYTHONPATH=path, GPUPERF_PEAKS=str(kept))

    assert done.returncode == BLOCKED
    assert done.stderr == ""
    said = " ".join(done.stdout.split())  # it is wrapped, and a path may be long
    assert "torch is not installed and cupy is not installed" in said
    assert not kept.exists()
