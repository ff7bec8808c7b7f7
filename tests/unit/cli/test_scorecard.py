"""cli.scorecard: hardware by name, impossible numbers, and two runtimes compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf import cli
from pytest_gpuperf.model.reference_json import encode_step_profile
from pytest_gpuperf.model.steps import StepProfile

OURS: dict[str, Any] = {
    "runtime": "ours",
    "throughput_tok_s": 90.0,
    "step_time_ms": 11.0,
    "kernel_launches_per_step": 320,
    "ops": {"gemm": 7.0, "norm": 1.0},
}


def written(folder: Path, name: str, content: object) -> str:
    path = folder / name
    path.write_text(json.dumps(content))
    return str(path)


@pytest.fixture
def profile(tmp_path: Path) -> str:
    steps = StepProfile(steps=10, avg_step_ms=5.0, total_ms=50.0)
    return written(tmp_path, "profile.json", encode_step_profile(steps))


def scored(profile: str, hardware: str) -> int:
    """Score a profile of 210 tokens/s."""
    how = ("--throughput=210", f"--hardware={hardware}")
    return cli.main(["scorecard", profile, *how])


def test_a_gpu_is_named_as_the_driver_names_it(
    profile: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Its bandwidth is the datasheet's; the bytes per token are not the GPU's."""
    assert scored(profile, "NVIDIA H200,1e9") == 0
    assert b"210 of 4800 tok/s" in capfdbinary.readouterr().out
    assert scored(profile, "H200") == 2
    assert b'"H200,158e6"' in capfdbinary.readouterr().err
    assert scored(profile, "NVIDIA H2,1e9") == 2
    said = capfdbinary.readouterr().err
    assert b"a known GPU" in said
    assert b"did you mean NVIDIA H200" in said


def test_an_impossible_efficiency_has_no_grade(
    profile: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """More tokens than the bandwidth allows say that a number is wrong."""
    assert scored(profile, "1,1e9") == 0
    out, err = capfdbinary.readouterr()

    assert b"n/a" in out.split(b"\n")[2]
    assert b"impossible" in out
    assert (
        b"210 tokens/s are more than the 1 that the hardware allows (210 times)" in err
    )
    assert scored(profile, "300,1e9") == 0
    assert b"impossible" not in capfdbinary.readouterr().out


@pytest.mark.parametrize("policy", ["reference", "measured"])
def test_two_runtimes_are_compared(
    tmp_path: Path, policy: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """1 where ours is slower, 0 where it is as fast; a name is never markup."""
    ours = written(tmp_path, "ours.json", OURS)
    faster = OURS | {"runtime": "a|b", "ops": {"gemm": 6.0, "norm": 1.0}}
    theirs = written(tmp_path, "theirs.json", faster)

    def compared(reference: str, form: str) -> tuple[int, str]:
        how = (f"--policy={policy}", f"--format={form}")
        code = cli.main(["parity", ours, reference, *how])
        return code, capfdbinary.readouterr().out.decode()

    code, text = compared(theirs, "text")
    assert code == 1
    assert "parity " in text
    assert " no\n" in text
    assert "gemm          7.00          6.00   1.17" in text
    code, markdown = compared(theirs, "markdown")
    assert "a\\|b" in markdown
    assert "| `gemm` | 7.00 | 6.00 | 1.17 |" in markdown
    same = {"reference": "parity_achieved", "measured": "achieved"}[policy]
    code, content = compared(ours, "json")
    assert (code, json.loads(content)[same]) == (0, True)


def test_too_little_in_common_is_undecided(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Good, unless somebody insists on an answer; a broken file is named."""
    ours = written(tmp_path, "ours.json", OURS)
    other = written(tmp_path, "other.json", OURS | {"ops": {"conv": 5.0}})
    broken = written(tmp_path, "broken.json", {"runtime": 7})
    measured = ("parity", ours, other, "--policy=measured")

    assert cli.main([*measured]) == 0
    assert cli.main([*measured, "--strict"]) == 3
    assert b"unknown" in capfdbinary.readouterr().out
    assert cli.main(["parity", ours, broken]) == 4
    assert b"broken.json" in capfdbinary.readouterr().err


def test_a_profile_of_another_kind_is_named(
    tmp_path: Path, profile: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Who gives a step profile to parity is told the command that reads it."""
    ours = written(tmp_path, "ours.json", OURS)

    assert cli.main(["parity", ours, profile]) == 4
    assert b"profile.json: it is a step profile" in capfdbinary.readouterr().err


@pytest.mark.parametrize("policy", ["reference", "measured"])
def test_all_inputs_are_refused_at_once(
    policy: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Conditions, hardware, profile and baseline: whoever mends one has heard of all."""
    broken = written(tmp_path, "broken.json", {"steps": -1, "phases": []})
    inputs = ("--hardware=H2OO", f"--baseline={tmp_path / 'absent.json'}")
    wrong = ("--invariant=warp <= 9", "--invariant=nonsense", *inputs)
    code = cli.main(
        ["scorecard", broken, "--throughput=1", *wrong, f"--policy={policy}"]
    )
    said = capfdbinary.readouterr().err.decode()

    assert code == 4
    for part in ("warp is not", "'nonsense'", "H2OO", "steps: -1", "phases", "absent"):
        assert part in said
    assert ("one baseline and no invariants" in said) == (policy == "reference")
