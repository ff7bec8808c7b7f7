"""Two sides that are measured: which tests are compared, and what the proof says after."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.repositories import INI, KINDS, TEST, Repo, need

Open = Callable[..., dict[str, Any]]
RIGHT = {"old": "exit 0", "new": "exit 0"}


@pytest.mark.long
def test_programs_without_variables_run_their_own_side(
    repo: Repo, opened: Open
) -> None:
    """`env={}` and `-I`: an environment of the process's own reaches them."""
    site = next(repo.venv().glob("lib/python*/site-packages"))
    repo.package("src/", ini=INI)
    (site / "__editable__.pth").write_text(f"{repo.root / 'src'}\n")
    text = """

    def test_clean(gpuperf):
        import subprocess, sys

        code = "import pkg.core; print(pkg.core.__file__)"
        root = pathlib.Path(__file__).parents[1]
        for argv in ([sys.executable, "-c", code], [sys.executable, "-I", "-c", code]):
            out = subprocess.check_output(argv, env={}, text=True)
            assert pathlib.Path(out).is_relative_to(root), out
    """
    test = repo.root / "tests" / "test_core.py"
    test.write_text(test.read_text() + textwrap.dedent(text))
    repo.commit()
    ids = ["tests/test_core.py::test_work", "tests/test_core.py::test_clean"]

    answer = opened(
        repo, revision="HEAD~2", test_ids=ids, measures=True, tests_mine=True
    )

    assert answer["level"] == 1, answer
    assert answer["test_ids"] == ids
    assert answer["proofs"] == RIGHT


def test_a_test_is_compared_where_both_sides_have_the_same(
    repo: Repo, opened: Open
) -> None:
    """One whose source differs is named, and so is one that only one side has."""
    repo.package()
    place = "tests/test_core.py"
    common = TEST.format(imports="from pkg import core")
    bodies = "\n\ndef test_{0}(gpuperf):\n    gpuperf(lambda: {1})\n"
    repo.write(place, common + bodies.format("edit", 1) + bodies.format("gone", 1))
    repo.commit()
    repo.write(place, common + bodies.format("edit", 2) + bodies.format("new", 1))
    ids = [f"{place}::test_{name}" for name in ("new", "edit", "work")]

    answer = opened(repo, revision="HEAD", test_ids=ids)

    assert answer["test_ids"] == [f"{place}::test_work"]
    assert answer["changed"] == [f"{place}::test_edit"]
    assert answer["only_new"] == [f"{place}::test_new"]
    assert answer["only_old"] == [f"{place}::test_gone"]


@pytest.mark.long
def test_the_same_code_is_told(repo: Repo, opened: Open) -> None:
    """Nothing differs between HEAD and a clean working tree: no module is named."""
    repo.package()

    answer = opened(repo, revision="HEAD", measures=True)

    assert answer["modules"] == []
    assert answer["proofs"] == RIGHT


LAZY = """
def test_lazy(gpuperf):
    import pathlib
    {body}
    from pkg import lazy
    gpuperf(lazy.work)
"""


@pytest.mark.parametrize(
    ("body", "proofs"),
    [
        pytest.param("pass", RIGHT, marks=pytest.mark.long),
        (
            (
                "for path in ('pkg/core.py', 'tests/data.txt'):"
                " pathlib.Path(path).write_text('N = 3')"
            ),
            {"old": "edited-file", "new": "edited-file"},
        ),
        pytest.param(
            "import os; os._exit(0)",
            {"old": "not-stated", "new": "not-stated"},
            marks=pytest.mark.long,
        ),
    ],
)
def test_each_measuring_process_is_proven(
    repo: Repo, opened: Open, body: str, proofs: dict[str, str]
) -> None:
    """Imports may be lazy, and a test may write to its own tree."""
    repo.write("pkg/lazy.py", "def work(): ...\n")
    repo.write("tests/test_lazy.py", LAZY.format(body=body))
    repo.package()

    answer = opened(repo, test_ids=["tests/test_lazy.py::test_lazy"], measures=True)

    assert answer["proofs"] == proofs
    names = "pkg/core.py, tests/data.txt changed" if "write_text" in body else ""
    assert all(names in sentence for sentence in answer["written"])
    assert len(answer["written"]) == (len(proofs) if names else 0)


def test_a_lazy_import_of_a_shared_file_is_found(repo: Repo, opened: Open) -> None:
    """Collecting did not load it: the proof of the process sees it."""
    site = next(repo.venv().glob("lib/python*/site-packages"))
    repo.write("lib/late.py", "def work(): ...\n")
    body = "from late import work\n    gpuperf(work)\n"
    repo.write("tests/test_late.py", f"def test_late(gpuperf):\n    {body}")
    repo.package()
    (site / "late.py").write_text("def work(): ...\n")

    answer = opened(repo, test_ids=["tests/test_late.py::test_late"], measures=True)

    assert answer["level"] == 0
    assert answer["proofs"] == {"old": "shared-file", "new": "shared-file"}


@pytest.mark.long
def test_todays_tests_can_run_on_both_sides(repo: Repo, opened: Open) -> None:
    """With the helpers and data of their folder; the old side's code stays."""
    repo.package()
    repo.write("tests/helper.py", "X = 1\n")
    repo.write("tests/data.txt", "x")
    imports = """
    import pathlib
    import helper
    from pkg import core
    assert pathlib.Path(__file__).with_name("data.txt").exists()
    """
    repo.write("tests/test_new.py", TEST.format(imports=textwrap.dedent(imports)))
    ids = ["tests/test_new.py::test_work"]
    repo.args = repo.paths = ("tests/test_new.py",)

    answer = opened(repo, test_ids=ids, tests_mine=True)

    assert answer["test_ids"] == ids
    assert answer["told"] == ["2", "1"]


@pytest.mark.parametrize("place", ["tests/test_local.py", "tests/local"])
@pytest.mark.parametrize("tests_mine", [True, False])
def test_a_test_that_git_ignores_is_to_be_carried(
    repo: Repo, opened: Open, place: str, *, tests_mine: bool
) -> None:
    """No option lets today's tests run on both sides where git has them not."""
    repo.package()
    file = place if place.endswith(".py") else f"{place}/test_it.py"
    repo.write(file, TEST.format(imports="from pkg import core"))
    with (repo.root / ".gitignore").open("a") as ignores:
        ignores.write("local\ntest_local.py\n")
    repo.args = repo.paths = (place,)
    ids = [f"{file}::test_work"]

    text = opened(repo, test_ids=ids, tests_mine=tests_mine)["text"]

    assert text == (
        f"the revision has none of the tests that were named: {place}, of which git "
        f"ignores {file}; name the ignored files in the ini option gpuperf_carry"
    )


@pytest.mark.long
def test_two_runs_at_once_are_both_right(repo: Repo, opened: Open) -> None:
    """Worktrees of one repository do not disturb each other."""
    from concurrent.futures import ThreadPoolExecutor

    repo.package()
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: opened(repo), range(2)))

    assert [answer["level"] for answer in answers] == [0, 0]
    assert not list((repo.root / ".git" / "worktrees").glob("*"))


@pytest.mark.long
def test_a_built_side_is_kept_between_runs(repo: Repo, opened: Open) -> None:
    """By what it was built from: a revision is built once, a changed tree again."""
    kind = KINDS["built_by_a_backend"]
    need(kind.needs)
    kind.build(repo)
    builds = Path(repo.env["BUILDS"])

    first = opened(repo)
    again = opened(repo)

    assert first["told"][-2:] == again["told"][-2:] == ["2", "1"]
    assert builds.read_text() == "xx"
    repo.write("csrc/core.cu", "// N = 3\ndef work(): ...\n")
    assert opened(repo)["told"][-2:] == ["3", "1"]
    assert builds.read_text() == "xxx"
