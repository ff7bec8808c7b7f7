"""Tests whose ids hold the folder of their checkout, on both sides of a comparison."""

from __future__ import annotations

import pytest

from fakes.project import PLUGIN, lines
from functional.against.repository import NEW, OLD, Repository

TESTS = """
    from pathlib import Path

    import pytest
    import work

    FILES = sorted((Path(__file__).parent / "data").glob("*.txt"))


    @pytest.mark.gpuperf(max_regression={"x": "5 %"})
    @pytest.mark.parametrize("path", FILES, ids=str)
    def test_x(gpuperf, path):
        gpuperf.record("x", work.VALUES[path.stem], unit="s", better="lower")
"""


@pytest.fixture
def paths(repository: Repository) -> Repository:
    """Return a repository with a test for each of two files of its own."""
    repository.project.write(TESTS, "test_it.py")
    for name in ("same", "slower"):
        repository.project.write("", f"data/{name}.txt")
    repository.commit("with files", **OLD)
    return repository


def shown(repository: Repository, name: str) -> str:
    """Return the id of a test as pytest shows it in the working tree."""
    return f"test_x[{repository.project.path}/data/{name}.txt]"


@pytest.mark.parametrize("whose", ["same", "mine"])
def test_both_sides_have_tests_whose_ids_hold_a_folder(
    paths: Repository, whose: str
) -> None:
    """They are matched without it, and shown as pytest shows them in the working tree."""
    paths.project.write("", "data/faster.txt")
    (paths.project.path / "data/same.txt").unlink()
    paths.values(**NEW)
    ended = paths.project.run(
        *("--gpuperf-against=HEAD", f"--gpuperf-against-tests={whose}"),
        "--gpuperf-json=run.json",
    )
    outcomes = paths.outcomes()

    assert outcomes[shown(paths, "slower")][0] == "regressed"
    if whose == "same":
        (alone,) = lines(ended, "in the revision alone: ")
        assert "/data/same.txt]" in alone  # a long one is cut in its middle
        (alone,) = lines(ended, "in the working tree alone: ")
        assert "/data/faster.txt]" in alone


def test_a_search_finds_such_a_test(paths: Repository) -> None:
    """The id of the user's checkout names the test of each commit's worktree."""
    good = paths.git("rev-parse", "HEAD")
    paths.commit("fast still", **OLD)
    culprit = paths.commit("a slower way", **NEW)
    ended = paths.command(
        *("bisect", f"test_it.py::{shown(paths, 'slower')}", "--good", good),
        *("--metric=x", "--", *PLUGIN),
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(culprit)
