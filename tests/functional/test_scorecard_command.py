"""`gpuperf scorecard`: what a shell sees of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fakes.project import command

EXAMPLES = Path(__file__).parents[2] / "examples" / "profiles"
PROFILE = str(EXAMPLES / "step_profile.json")
BASELINE = str(EXAMPLES / "scorecard.json")
GB10 = ("--throughput=210", "--hardware=gb10")


def scorecard(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return command("scorecard", *arguments)


def written(folder: Path, name: str, obj: object) -> str:
    """Write an object as JSON and return the path."""
    path = folder / name
    path.write_text(json.dumps(obj), encoding="utf-8")
    return str(path)


def test_a_profile_is_scored() -> None:
    """Without a baseline nothing can regress."""
    done = scorecard(PROFILE, *GB10)
    text = done.stdout

    assert (done.returncode, done.stderr) == (0, "")
    assert text.startswith("Training scorecard\n\ngrade               D\n")
    assert "throughput          210 of 1728 tok/s" in text


@pytest.mark.parametrize("policy", ["reference", "measured"])
def test_a_regression_is_exit_1(policy: str) -> None:
    """Under either policy, and the scorecard is printed all the same."""
    done = scorecard(
        PROFILE, *GB10, f"--baseline={BASELINE}", f"--policy={policy}", "--format=json"
    )
    found = json.loads(done.stdout)

    assert done.returncode == 1
    if policy == "reference":
        assert [each["metric"] for each in found["regressions"]] == [
            "throughput_tok_s",
            "step_time_ms",
        ]
    else:
        assert found["policy"] == "measured"
        assert found["decisions"][0]["outcome"] == "regressed"


def test_what_was_printed_can_be_the_baseline(tmp_path: Path) -> None:
    """Each policy reads its own JSON; the same numbers do not regress."""
    for policy in ("reference", "measured"):
        chosen = (f"--policy={policy}", "--format=json")
        path = tmp_path / f"{policy}.json"
        path.write_text(scorecard(PROFILE, *GB10, *chosen).stdout, "utf-8")

        again = scorecard(PROFILE, *GB10, *chosen, f"--baseline={path}")

        assert (again.returncode, again.stderr) == (0, "")


def test_a_quantity_that_got_lost_is_exit_1(tmp_path: Path) -> None:
    """The measured policy does not pass over it; the other one does."""
    bare = written(tmp_path, "bare.json", {"steps": 10})
    lost = (bare, "--throughput=240", "--hardware=gb10", f"--baseline={BASELINE}")

    assert scorecard(*lost).returncode == 0
    done = scorecard(*lost, "--policy=measured", "--format=markdown")
    assert done.returncode == 1
    assert "- `step_time_ms`: UNMEASURED; " in done.stdout


@pytest.mark.parametrize("hardware", ["1,1e7", "RTX_4060 Laptop", "GB10"])
def test_hardware_has_many_spellings(hardware: str) -> None:
    """Two numbers, or a name in any case with any gaps."""
    done = scorecard(PROFILE, "--throughput=50", f"--hardware={hardware}")

    assert done.returncode == 0


def test_hardware_is_read_from_a_file(tmp_path: Path) -> None:
    """The measured policy also takes the arithmetic from it."""
    limits = {
        "peak_bw_gb_s": 1000,
        "bytes_per_token": 1e9,
        "peak_flop_per_s": 1e13,
        "flop_per_token": 2e10,
    }
    path = written(tmp_path, "gpu.json", limits)
    done = scorecard(
        PROFILE, "--throughput=350", f"--hardware={path}", "--policy=measured"
    )

    assert done.returncode == 0
    assert "bottleneck          compute\n" in done.stdout
    assert "arithmetic used     70.0 % (declared)\n" in done.stdout


def test_an_invariant_that_does_not_hold_is_exit_1() -> None:
    """So is one that nobody can check; the reference policy knows none."""
    measured = (PROFILE, *GB10, "--policy=measured")
    good = scorecard(*measured, "--invariant=backward / forward between 1 and 3")
    bad = scorecard(
        *measured, "--invariant=backward / forward <= 1", "--invariant=busy <= 1"
    )

    assert (good.returncode, good.stderr) == (0, "")
    assert "passed; " in good.stdout
    assert bad.returncode == 1
    assert "FAILED; " in bad.stdout
    assert "UNMEASURED; busy: not in the profile" in bad.stdout
    assert scorecard(*measured, "--invariant=what").returncode == 2
    assert scorecard(PROFILE, *GB10, "--invariant=step <= 1").returncode == 2


def test_several_baselines_say_how_much_sessions_differ() -> None:
    """Of the measured policy alone."""
    one = f"--baseline={BASELINE}"
    done = scorecard(PROFILE, *GB10, one, one, one, "--policy=measured")

    assert "spread of sessions 2.0 %" in " ".join(done.stdout.split())
    assert scorecard(PROFILE, *GB10, one, one).returncode == 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((PROFILE, "--hardware=gb10"), 2, "required: --throughput"),
        ((PROFILE, "--throughput=nan", "--hardware=gb10"), 2, "not a finite number"),
        ((PROFILE, "--throughput=x", "--hardware=gb10"), 2, "'x' is not a finite"),
        ((PROFILE, "--throughput=1", "--hardware=tpu"), 2, "rtx-4060-laptop, gb10"),
        ((PROFILE, "--throughput=1", "--hardware=1,inf"), 2, "two finite numbers"),
        ((PROFILE, "--throughput=1", "--hardware=1,2,3"), 2, "two finite numbers"),
        ((PROFILE, "--throughput=-3", "--hardware=gb10"), 2, "'-3' is below 0"),
        ((PROFILE, "--throughput=1", "--hardware=273,-1"), 2, "must be above 0"),
        ((PROFILE, "--throughput=1", "--hardware=0,0"), 2, "must be above 0"),
        (("absent.json", *GB10), 4, "absent.json: it cannot be read"),
        ((PROFILE, "--throughput=1", "--hardware=no.json"), 4, "cannot be read"),
        ((__file__, *GB10), 4, "not JSON"),
        ((BASELINE, *GB10), 4, "pass a scorecard as --baseline"),
        ((BASELINE, *GB10, "--policy=measured"), 4, "it has none of avg_step_ms"),
        ((PROFILE, *GB10, f"--baseline={PROFILE}"), 4, "grade: it is missing"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: tuple[str, ...], code: int, words: str
) -> None:
    """Wrong usage is 2, a file that cannot be read 4; nothing is printed."""
    done = scorecard(*arguments)

    assert done.returncode == code
    assert done.stdout == ""
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_baseline_of_the_other_policy_is_wrong_usage(tmp_path: Path) -> None:
    """The measured policy reads both kinds, the other one its own."""
    measured = tmp_path / "measured.json"
    printed = scorecard(PROFILE, *GB10, "--policy=measured", "--format=json")
    measured.write_text(printed.stdout, "utf-8")

    done = scorecard(PROFILE, *GB10, f"--baseline={measured}")

    assert done.returncode == 2
    assert "add --policy=measured" in done.stderr


def test_what_is_not_a_runtimes_profile_is_said_once() -> None:
    """Not a field at a time: it is another file that was meant."""
    done = command("parity", BASELINE, BASELINE)

    assert done.returncode == 4
    assert "it has none of runtime, kernel_launches_per_step, ops" in done.stderr
    assert "is missing" not in done.stderr
