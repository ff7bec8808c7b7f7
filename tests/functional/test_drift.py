"""A project whose every accepted run is stored: many small slowdowns are told."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest

from fakes.project import VALUES, Project, command, lines
from pytest_gpuperf import cli


def stored(project: Project, factors: Sequence[float], *names: str) -> list[bool]:
    """Store a session for each factor; which of the runs said that a value drifted."""
    project.write(VALUES)
    told = []
    for factor in factors:
        project.set_values(**dict.fromkeys(names, factor))
        ended = project.run("-q", "--gpuperf-update=all", "--gpuperf-confirm=0")
        assert ended.ret == 0, ended.stdout.str()
        told.append("drifted" in ended.stdout.str())
    return told


@pytest.mark.parametrize(
    ("factor", "names"), [(1.02, ("a",)), (1.03, ("a", "b", "c"))], ids=["one", "all"]
)
def test_a_slow_change_is_told_at_the_eighth_session(
    project: Project, factor: float, names: Sequence[str]
) -> None:
    """Also if all tests drift alike, and in each summary: no comparison sees 2 %."""
    told = stored(project, [factor**n for n in range(8)], *names)
    project.set_values(**dict.fromkeys(names, factor**8))
    usual = project.run("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=0")
    strict = project.run(
        "--gpuperf-baseline=.gpuperf",
        "--gpuperf-confirm=0",
        "--gpuperf-strict",
        "--gpuperf-json=run.json",
    )
    drifts = {
        verdict["key"]["test_id"]: verdict["change"]["drift"]
        for verdict in project.report()["verdicts"]
        if verdict["change"].get("drift")
    }

    assert told == [False] * 7 + [True]
    assert usual.ret == 0
    assert f"{len(names)} drifted" in usual.stdout.str()
    assert "since 20" in usual.stdout.str()
    assert strict.ret == 1
    assert len(drifts) == len(names)
    for drift in drifts.values():
        assert drift["session_count"] == 9
        assert drift["effect"] == pytest.approx(factor**6 - 1, rel=1e-6)


def test_the_command_of_a_drift_takes_the_new_level(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is typed as printed, once the run has written its report."""
    stored(project, [1.02**n for n in range(8)], "a")
    gate = ("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=0")
    quiet = project.run(*gate)
    ended = project.run(*gate, "--gpuperf-json=run.json")
    (line,) = lines(ended, "if intended: gpuperf baseline accept ")
    typed = shlex.split(line.partition("if intended: gpuperf ")[2])
    accepted = command(*typed, folder=project.path)
    after = project.run(*gate)

    assert lines(ended, "drifted +12", "gpuperf history shows where")
    assert lines(
        quiet, "to accept a drift, write a report of the run first", "--gpuperf-json"
    )
    assert typed[-1] == "--test=test_it.py::test_x[a]"
    assert accepted.returncode == 0, accepted.stderr
    assert not lines(after, "drifted")


@pytest.mark.parametrize(
    "factors",
    [[1.0] * 4 + [0.5] * 4 + [1.0] * 4, [1.0, 1.2] * 6, [0.97**n for n in range(12)]],
    ids=["improved and back", "two speeds", "better and better"],
)
def test_these_do_not_drift(project: Project, factors: Sequence[float]) -> None:
    """The newest sessions are no slower than the oldest."""
    assert not any(stored(project, factors, "a"))


def test_the_history_tells_of_the_same_drift(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The command reads what the runs have stored."""
    stored(project, [1.02**n for n in range(10)], "a")
    monkeypatch.chdir(project.path)
    capfd.readouterr()

    assert cli.main(["history", "--fail-on=slower"]) == 1
    text = capfd.readouterr().out
    assert "test_it.py::test_x[a] x" in text
    assert "drift" in text
    assert "test_x[b]" not in text
