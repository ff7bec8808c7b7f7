"""Runs against a revision of which some tests, or all, use no file that differs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fakes.project import XDIST, Project
from functional.against.repository import AGAINST, GIT, OLD, Repository

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux reports what is opened"
)
SAME = ("unchanged", "same-files")
# a child program reads the file, and has none of our variables
READS = """
    import subprocess

    import pytest
    import work


    @pytest.mark.gpuperf(max_regression={"x": "5 %"})
    @pytest.mark.parametrize("name", ["one", "two", "three"])
    def test_x(gpuperf, name):
        value = work.VALUES["same"]
        if name == "two":
            argv = ["/bin/cat", "data.txt"]
            value = float(subprocess.run(argv, env={}, capture_output=True).stdout)
        gpuperf.record("x", value, unit="s", better="lower")
"""


def committed(project: Project, **files: str) -> Repository:
    """Return the repository of a project with more files, all in one commit."""
    repository = Repository(project)
    for name, text in files.items():
        project.write(text, name.replace("_", "."))
    repository.commit("old", **OLD)
    return repository


@pytest.mark.parametrize("options", [(), (*XDIST, "-n2")], ids=["alone", "xdist"])
def test_a_run_that_uses_nothing_that_differs_ends_at_once(
    project: Project, options: tuple[str, ...]
) -> None:
    """Its tests are unchanged and judged, and no other process measures anything."""
    repository = committed(project, README_md="old")
    project.write("a longer one", "README.md")
    project.write("new", "docs/page.md")

    ended = project.spawn(*AGAINST, "--gpuperf-min-judged=100%", *options)

    assert ended.returncode == 0, ended.stdout
    assert set(repository.outcomes().values()) == {SAME}
    assert project.report()["against"]["block_count"] == 0
    assert "3 tests used no file that differs" in ended.stdout
    assert "judged 3 of 3: 3 unchanged" in ended.stdout


def test_a_run_of_the_revision_itself_ends_at_once(project: Project) -> None:
    """Nothing differs: neither what git has, nor what it would add."""
    repository = committed(project)

    ended = project.spawn(*AGAINST)

    assert ended.returncode == 0, ended.stdout
    assert set(repository.outcomes().values()) == {SAME}


def test_the_store_of_the_project_is_no_file_of_a_test(project: Project) -> None:
    """What git does with it, too, is said in a file of its own."""
    repository = committed(project)
    project.write("__pycache__\n.pytest_cache\nrun.json\n", ".gitignore")
    repository.commit("keep the store", **OLD)
    stored = project.spawn("--gpuperf-update=new")
    assert (project.path / ".gpuperf" / ".gitattributes").exists(), stored.stdout

    ended = project.spawn(*AGAINST)

    assert ended.returncode == 0, ended.stdout
    assert set(repository.outcomes().values()) == {SAME}
    assert ".gitattributes" not in ended.stdout


def test_a_test_is_compared_whose_program_reads_what_differs(project: Project) -> None:
    """And those after it in its process; the one before it is the same."""
    repository = committed(project, data_txt="1")
    project.write(READS)
    repository.commit("reads", **OLD)
    project.write("1.50", "data.txt")

    ended = project.spawn(*AGAINST)

    assert ended.returncode == 1, ended.stdout
    assert repository.outcomes() == {
        "test_x[one]": SAME,
        "test_x[two]": ("regressed", "slower-than-limit"),
        "test_x[three]": ("unchanged", "equal"),
    }


def test_no_test_leaves_where_other_packages_are_meant(project: Project) -> None:
    """Both sides run with what is installed here, and the run says so."""
    repository = committed(project, requirements_txt="numpy==2.4")
    project.write("numpy==2.5.1", "requirements.txt")

    ended = project.spawn(*AGAINST)

    assert ended.returncode == 0, ended.stdout
    assert set(repository.outcomes().values()) == {("unchanged", "equal")}
    assert (
        "requirements.txt differs; both sides ran with the installed packages"
        in ended.stdout
    )


def test_files_that_git_does_not_look_at_differ(project: Project) -> None:
    """A change that git was told to overlook is one."""
    repository = committed(project)
    repository.git("update-index", "--assume-unchanged", "work.py")
    repository.values(**{**OLD, "slower": 1.5})
    assert subprocess.check_output([GIT, "status", "--short"], cwd=project.path) == b""

    ended = project.spawn(*AGAINST)

    assert ended.returncode == 1, ended.stdout
    assert repository.outcomes()["test_x[slower]"] == ("regressed", "slower-than-limit")
