"""`gpuperf doctor`, as a shell starts it, with a GPU and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.project import HUNG_S

BLOCKED = 2
CODES = {"ready": 0, "degraded": 1, "blocked": BLOCKED}


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pytest_gpuperf", "doctor", *arguments],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env={**os.environ, **environment},
        timeout=HUNG_S,
    )


def test_the_exit_code_says_what_the_json_says() -> None:
    """And where there is no GPU, a finding and a remark say why."""
    done = doctor("--format=json")
    said = json.loads(done.stdout)

    assert done.stderr == ""
    assert done.returncode == CODES[said["state"]]
    assert said["ready"] is (said["state"] == "ready")
    assert said["devices"] or said["state"] != "ready"
    assert len(said["remarks"]) >= (1 if said["devices"] else 2)
    for each in said["devices"]:
        assert {"dram", "fp32", "bf16"} <= set(each["peaks"])


def test_what_the_host_needs_is_asked_for_by_itself() -> None:
    """A machine that shall have no GPU is ready, and nothing of a GPU is printed."""
    done = doctor("--for=host")
    said = json.loads(doctor("--for=host", "--format=json").stdout)
    both = doctor("--for=host", "--measure-peaks")

    assert done.returncode == 0
    assert done.stdout.startswith("ready: calls and loops can be timed by the host")
    assert {"NVML", "GPU", "ncu"}.isdisjoint(done.stdout.split())
    assert (said["state"], said["devices"], said["remarks"]) == ("ready", [], [])
    assert all("host" in each["concerns"] for each in said["findings"])
    assert both.returncode == BLOCKED
    assert "give one of both" in both.stderr


def test_every_finding_is_whole() -> None:
    """Each topic once, on a machine with a GPU and without."""
    found = json.loads(doctor("--format=json").stdout)["findings"]

    assert len({each["id"] for each in found}) == len(found) >= 30
    for each in found:
        assert set(each) == {
            *("id", "status", "concerns", "cause", "evidence", "remedy"),
        }
        assert each["cause"]
        acted = each["status"] in {"stops", "bends"}
        assert not acted or (each["remedy"] and each["evidence"])


def test_a_variable_that_hides_every_gpu_is_found() -> None:
    """The environment of the command is what is looked at; its values are not told."""
    found = json.loads(
        doctor(
            "--format=json",
            CUDA_VISIBLE_DEVICES="-1",
            CUDA_INJECTION64_PATH="/hidden/s3cret.so",
        ).stdout
    )["findings"]
    status = {each["id"]: each["status"] for each in found}

    assert status["visible-devices"] == status["attached-tool"] == "stops"
    assert "s3cret" not in json.dumps(found)


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_people_are_told_the_same(form: str) -> None:
    """Every remark of the JSON stands in the other forms."""
    said = json.loads(doctor("--format=json").stdout)
    done = doctor(f"--format={form}")

    words = " ".join(done.stdout.split())
    assert all(remark in words for remark in said["remarks"])
    assert said["verdict"] in words
    assert all(each["id"] in words for each in said["findings"])
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
