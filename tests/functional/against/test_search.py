"""Searches for the commit that made a test slower."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fakes.project import PLUGIN, Project
from functional.against.repository import (
    NEW,
    OLD,
    TESTS,
    Repository,
    run_command,
)
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.pipeline.bisection import (
    BisectRequest,
    Search,
    Trial,
    TrialOutcome,
)


def test_a_search_says_once_that_other_code_is_loaded(
    project: Project, tmp_path: Path
) -> None:
    """The user's own test runs another clone, which no commit of the search changes."""
    repository = Repository(project)
    project.write(f"VALUES = {OLD!r}\n", "src/work.py")
    repository.git("add", ".")
    repository.git("commit", "-qm", "old")
    for subject, values in (("slower", NEW), ("later", {**NEW, "faster": 0.6})):
        project.write(f"VALUES = {values!r}\n", "src/work.py")
        repository.git("commit", "-qam", subject)
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "work.py").write_text("VALUES = {}\n", encoding="utf-8")
    search = ("bisect", "test_it.py::test_x[slower]", "--good=HEAD~2", "--metric=x")
    project.environment.setenv("PYTHONPATH", str(project.path / "src"), prepend=":")
    own = repository.command(*search, "--", *PLUGIN)
    project.environment.setenv("PYTHONPATH", str(other), prepend=os.pathsep)
    ended = repository.command(*search, "--", *PLUGIN)

    assert (own.returncode, ended.returncode) == (0, 0), ended.stderr
    assert "this run loads" not in own.stderr
    told = f"gpuperf: this run loads work from {other / 'work.py'}, which differs"
    assert ended.stderr.count(told) == 1


def test_a_regression_is_traced_to_its_commit(repository: Repository) -> None:
    """A commit that cannot be imported is skipped; the answer has the change."""
    good = repository.git("rev-parse", "HEAD")
    repository.commit("harmless", **OLD)
    repository.project.write("raise ZeroDivisionError\n", "work.py")
    repository.git("commit", "-qam", "broken")
    repository.commit("mended", **OLD)
    culprit = repository.commit("a slower way", **NEW)
    repository.commit("later", **NEW)
    ended = repository.command(
        *("bisect", "test_it.py::test_x[slower]", "--good", good, "--bad", "main"),
        *("--metric=x", "--format=json", "--", *PLUGIN),
    )
    answer = json.loads(ended.stdout)

    assert ended.returncode == 0, ended.stderr
    assert answer["ending"] == "found"
    assert answer["commits"] == [{"id": culprit, "subject": "a slower way"}]
    assert answer["effect"] == pytest.approx(0.3)
    assert not (repository.project.path / ".git" / "gpuperf-bisect.json").exists()
    assert repository.is_clean()


def test_what_was_undecided_is_tried_anew(repository: Repository) -> None:
    """A search that goes on keeps what was decided, and what cannot be measured."""
    good = repository.git("rev-parse", "HEAD")
    culprit = repository.commit("a slower way", **NEW)
    broken = repository.commit("said to be broken", **NEW)
    bad = repository.commit("later", **NEW)
    change = Change(
        effect=0.3, current=1.3, reference=1.0, session_count=4, run_count=8
    )
    skipped = TrialOutcome.SKIPPED
    test_id = "test_it.py::test_x[slower]"
    kept = (
        Trial(commit_id=bad, outcome=TrialOutcome.BAD, change=change),
        Trial(commit_id=culprit, outcome=skipped, change=change, reason="undecided"),
        Trial(commit_id=broken, outcome=skipped, reason="not built"),
    )
    state = Search(
        schema="pytest-gpuperf/bisect/1",
        request=BisectRequest(
            test_id=test_id,
            key=test_id,
            good=good,
            bad=bad,
            metric="x",
            options=PLUGIN,
        ),
        trials=kept,
    )
    file = repository.project.path / ".git" / "gpuperf-bisect.json"
    file.write_text(codec.to_text(state), encoding="utf-8")

    ended = repository.command(
        *("bisect", test_id, "--good", good, "--metric=x", "--format=json"),
        *("--", *PLUGIN),
    )
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    trials = {trial["commit"]: trial for trial in answer["trials"]}

    assert answer["schema"] == "pytest-gpuperf/bisection/1"
    assert [commit["id"] for commit in answer["commits"]] == [culprit]
    assert trials[culprit]["outcome"] == "bad"
    assert trials[broken]["reason"] == "not built"
    assert len(answer["trials"]) == len(kept)


def test_commits_that_decide_nothing_leave_several(repository: Repository) -> None:
    """Exit code 3, and why: those between were not measured, or not decided."""
    good = repository.git("rev-parse", "HEAD")
    repository.project.write("raise ZeroDivisionError\n", "work.py")
    repository.git("commit", "-qam", "broken")
    repository.commit("a slower way", **NEW)
    ended = repository.command(
        *("bisect", "test_it.py::test_x[slower]", "--good", good),
        *("--metric=x", "--", *PLUGIN),
    )
    head, *commits, last = ended.stdout.splitlines()

    assert ended.returncode == 3, ended.stderr
    assert head == (
        "the first slow commit is one of these; those between were skipped or stayed "
        "undecided"
    )
    named = [line.split(maxsplit=1)[1] for line in commits]
    assert named[:2] == ["broken", "a slower way"]
    assert "the same command goes on from here: 1 comparison decided" in last


def test_a_search_without_answer_goes_on_from_what_was_decided(
    repository: Repository,
) -> None:
    """What was skipped is tried anew: its cause may be mended; an answer forgets all."""
    good = repository.git("rev-parse", "HEAD")
    text = f"""
        import os
        if "MENDED" not in os.environ:
            raise ZeroDivisionError
        VALUES = {NEW}
    """
    repository.project.write(text, "work.py")
    repository.git("commit", "-qam", "needs a variable")
    repository.commit("later", **NEW)
    search = (
        *("bisect", "test_it.py::test_x[slower]", "--good", good),
        *("--metric=x", "--format=json", "--", *PLUGIN),
    )
    first = json.loads(repository.command(*search).stdout)
    repository.project.environment.setenv("MENDED", "1")
    second = json.loads(repository.command(*search).stdout)

    assert (first["ending"], second["ending"]) == ("narrowed", "found")
    assert [commit["subject"] for commit in second["commits"]] == ["needs a variable"]
    assert first["trials"][0] == second["trials"][0]  # which is not measured again
    assert not (repository.project.path / ".git" / "gpuperf-bisect.json").exists()


@pytest.mark.parametrize(
    ("folder", "place"),
    [("tests/sub", "test_low.py"), ("tests", "tests/sub/test_low.py")],
)
def test_a_search_may_begin_below_the_root_folder(
    repository: Repository, folder: str, place: str
) -> None:
    """A test is named as an argument of pytest there, or by its id."""
    repository.project.write("", "conftest.py")  # puts its folder on Python's path
    repository.project.write(TESTS, "tests/sub/test_low.py")
    repository.git("add", ".")
    repository.git("commit", "-qm", "more tests")
    good = repository.git("rev-parse", "HEAD")
    culprit = repository.commit("a slower way", **NEW)
    ended = run_command(
        repository.project,
        *("bisect", f"{place}::test_x[slower]", "--good", good),
        *("--metric=x", "--", *PLUGIN),
        folder=folder,
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(culprit)


def test_where_nothing_got_slower_nothing_is_searched(repository: Repository) -> None:
    """The first comparison is of both ends, and it is the answer."""
    good = repository.git("rev-parse", "HEAD")
    repository.commit("one", **OLD)
    repository.commit("two", **OLD)
    ended = repository.command(
        *("bisect", "test_it.py::test_x[slower]", "--good", good),
        *("--metric=x", "--", *PLUGIN),
    )

    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.startswith("no regression in ")


@pytest.mark.parametrize(
    ("test", "metric", "told", "remedy"),
    [
        ("nothing", "x", "does not collect test_it.py::nothing", "--collect-only -q"),
        ("test_x[slower]", "time", "gave no value of time", "--metric"),
        ("test_x[slower]", "nope", "gave no value of nope", "--metric"),
    ],
)
def test_a_search_for_what_is_not_there_says_so(
    repository: Repository, test: str, metric: str, told: str, remedy: str
) -> None:
    """Wrong usage, with what is missing and how to name what is there."""
    good = repository.git("rev-parse", "HEAD")
    repository.commit("a slower way", **NEW)
    ended = repository.command(
        *("bisect", f"test_it.py::{test}", "--good", good, f"--metric={metric}"),
        *("--", *PLUGIN),
    )
    head, last = ended.stdout.splitlines()

    assert ended.returncode == 2, ended.stderr
    assert head.endswith(told)
    assert last.startswith("    remedy: ")
    assert remedy in last


def test_an_undecided_search_says_what_would_decide(repository: Repository) -> None:
    """Exit code 3 after the budget, with the change so far, and no commit named."""
    good = repository.git("rev-parse", "HEAD")
    block = "int(os.environ.get('PYTHONHASHSEED', '0')) % 2"  # another change in each
    text = f"import os\n\nVALUES = {{'slower': 0.9 + 0.6 * ({block})}}\n"
    repository.project.write(text, "work.py")
    repository.git("commit", "-qam", "slower in every second block")
    ended = repository.command(
        *("bisect", "test_it.py::test_x[slower]", "--good", good, "--metric=x"),
        *("--budget=12s", "--", *PLUGIN),
    )

    assert ended.returncode == 3, ended.stderr
    assert "undecided whether there is a regression" in ended.stdout
    assert "the budget of 12 s was spent after" in ended.stdout
    assert "measure on a quieter machine, or time more work" in ended.stdout
    assert repository.is_clean()
