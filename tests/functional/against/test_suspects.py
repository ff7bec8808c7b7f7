"""Suspects of a baseline that a comparison with their stored commit decides."""

from __future__ import annotations

import pytest

from fakes.project import Project
from functional.against.repository import (
    NEW,
    OLD,
    TESTS,
    Repository,
)


@pytest.mark.parametrize(
    "how", [pytest.param("auto", marks=pytest.mark.long), "against"]
)
def test_a_suspect_is_decided_against_its_stored_commit(
    repository: Repository, how: str
) -> None:
    """One verdict, of the baseline: with its sessions, of which one is enough."""
    for selection in ("slower", "test_x"):
        update = ("--gpuperf-update=all", "-k", selection)
        assert repository.project.spawn(*update).returncode == 0
    repository.values(slower=1.3, same=1.3, faster=1.0)
    gate = ("--gpuperf-baseline=.gpuperf", "--gpuperf-json=run.json")
    ended = repository.project.spawn(*gate, f"--gpuperf-confirm-by={how}")
    verdicts = {
        v["key"]["test_id"].partition("[")[2]: v
        for v in repository.project.report()["verdicts"]
    }

    assert ended.returncode == 1, ended.stdout
    assert verdicts["slower]"]["outcome"] == "regressed"
    assert verdicts["slower]"]["against"]["block_count"] == 4
    assert verdicts["slower]"]["baseline"]["session_count"] == 2
    assert verdicts["same]"]["outcome"] == "regressed"
    assert verdicts["same]"]["against"]["block_count"] == 4
    assert verdicts["same]"]["baseline"]["session_count"] == 1
    assert verdicts["faster]"]["reason"] == "too-few-sessions"
    assert verdicts["faster]"].get("against") is None
    assert len(verdicts) == len(OLD)


@pytest.mark.parametrize("how", ["auto", "against"])
def test_a_suspect_whose_test_was_changed_is_not_let_pass(
    repository: Repository, how: str
) -> None:
    """Two sides would do other work: fresh processes decide, or the run fails."""
    for _ in range(2):
        assert repository.project.spawn("--gpuperf-update=all").returncode == 0
    repository.project.write(TESTS.replace("VALUES[name]", "VALUES[str(name)]"))
    repository.values(slower=1.3, same=1.0, faster=1.0)
    gate = ("--gpuperf-baseline=.gpuperf", "--gpuperf-json=run.json")
    ended = repository.project.spawn(
        *gate, "--gpuperf-confirm=2", f"--gpuperf-confirm-by={how}"
    )
    text = " ".join(ended.stdout.split())
    outcome = repository.outcomes()["test_x[slower]"]

    assert ended.returncode == 1, ended.stdout
    assert "the source of the test is not that of the stored commit; " in text
    if how == "auto":
        assert outcome == ("regressed", "slower-than-limit")
    else:
        assert outcome == ("incomparable", "test-changed")
        assert "with --gpuperf-against-tests=mine" in text


TIMED = """
    import work


    def test_loop(gpuperf):
        gpuperf(lambda: sum(range(work.VALUES["count"])))
"""


@pytest.mark.long
def test_a_slower_loop_is_decided_against_its_stored_commit(
    repository: Repository,
) -> None:
    """Real times: one session finds it, and blocks on this machine decide it."""
    repository.project.write(TIMED)
    repository.commit("timed", count=20_000)
    assert repository.project.spawn("--gpuperf-update=all").returncode == 0
    repository.values(count=80_000)
    gate = ("--gpuperf-baseline=.gpuperf", "--gpuperf-json=run.json")
    ended = repository.project.spawn(*gate, "--gpuperf-confirm-by=against")
    (verdict,) = repository.project.report()["verdicts"]

    assert ended.returncode == 1, ended.stdout
    assert verdict["outcome"] == "regressed"
    assert 1 < verdict["change"]["effect"] < 9
    assert verdict["baseline"]["session_count"] == 1
    assert verdict["against"]["block_count"] >= 4
    assert repository.is_clean()


@pytest.mark.parametrize("how", ["auto", "against"])
def test_without_the_stored_commit_fresh_processes_decide_or_the_run_fails(
    project: Project, how: str
) -> None:
    """`auto` says so and goes on; `against` was asked for, and fails the run."""
    project.write(TESTS)
    project.write(f"VALUES = {OLD}\n", "work.py")
    for _ in range(2):
        assert project.spawn("--gpuperf-update=all").returncode == 0
    project.write(f"VALUES = {NEW}\n", "work.py")
    gate = ("--gpuperf-baseline=.gpuperf", "--gpuperf-json=run.json")
    decided = how == "auto"
    count = 2 if decided else 0  # which `against` does not need
    ended = project.spawn(
        *gate, f"--gpuperf-confirm={count}", f"--gpuperf-confirm-by={how}"
    )

    assert ended.returncode == 1, ended.stdout
    text = " ".join(ended.stdout.split())
    assert "test_x[slower] not compared with a revision: " in text
    assert "suspects are compared with the commit of their newest session" in text
    assert ("else measured again by 2 fresh processes" in text) == decided
    assert ("fresh processes decide" in ended.stdout) == decided
    assert (("test_x[slower]", "regressed") in project.outcomes()) == decided
