"""The folder of a project is found as git finds it, whatever pytest was told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_gpuperf.collect.checkout import below_workspace, checkout_of, git_folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder without links in its path, in no repository."""
    monkeypatch.delenv("PWD", raising=False)
    return Path(os.path.realpath(tmp_path))


def test_the_nearest_git_counts(folder: Path) -> None:
    """A worktree and a submodule have a file of that name, and are folders of their own."""
    (folder / "repo/.git").mkdir(parents=True)
    (folder / "repo/sub/tests").mkdir(parents=True)
    (folder / "repo/sub/.git").write_text("gitdir: elsewhere\n")
    (folder / "repo/packages/a/tests").mkdir(parents=True)

    assert git_folder(folder / "repo/sub/tests") == folder / "repo/sub"
    assert git_folder(folder / "repo/packages/a/tests") == folder / "repo"
    below = checkout_of(folder / "repo/packages/a", folder / "repo/packages/a/tests")
    assert (below.root, below.rootdir) == (str(folder / "repo"), "packages/a")


def test_tests_of_a_submodule_are_named_from_above_it(folder: Path) -> None:
    """The root folder's repository holds them, so two files of one name stay two."""
    (folder / ".git").mkdir()
    (folder / "sub/tests").mkdir(parents=True)
    (folder / "sub/.git").write_text("gitdir: elsewhere\n")
    checkout = checkout_of(folder, folder, [folder / "sub/tests"])

    assert checkout.root == str(folder)
    assert (
        checkout.relative(str(folder / "sub/tests/test_a.py")) == "sub/tests/test_a.py"
    )


def test_without_git_the_root_folder_counts(folder: Path) -> None:
    """A folder without version control is a checkout, too."""
    checkout = checkout_of(folder, folder / "tests")

    assert (checkout.root, checkout.rootdir) == (str(folder), "")


@pytest.mark.parametrize("has_git", [True, False])
def test_a_configuration_may_lie_elsewhere(folder: Path, has_git: bool) -> None:
    """With -c or --rootdir elsewhere the tests still are those of their repository."""
    (folder / "repo/.git").mkdir(parents=True)
    (folder / "repo/tests").mkdir()
    (folder / "config").mkdir()
    if has_git:
        (folder / "config/.git").mkdir()
    started_in = checkout_of(folder / "config", folder / "repo")
    named = checkout_of(folder / "config", folder, [folder / "repo/tests"])

    for checkout in (started_in, named):
        assert (checkout.root, checkout.rootdir) == (str(folder / "repo"), None)


def test_links_are_spellings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path through a link to the checkout is one of the checkout, also of the shell's."""
    (folder / "real/.git").mkdir(parents=True)
    (folder / "real/tests").mkdir()
    (folder / "link").symlink_to(folder / "real")
    (folder / "shell").symlink_to(folder / "real")
    monkeypatch.setenv("PWD", str(folder / "shell/tests"))
    checkout = checkout_of(folder / "real", folder / "real", [folder / "link/tests"])

    for name in ("real", "link", "shell"):
        assert (
            checkout.relative(str(folder / name / "tests/test_a.py"))
            == "tests/test_a.py"
        )


def test_annotations_are_relative_to_the_workspace(folder: Path) -> None:
    """Of the job on GitHub; elsewhere to the repository, and without one to nothing."""
    (folder / "space/repo/.git").mkdir(parents=True)
    (folder / "link").symlink_to(folder / "space")
    root = str(folder / "space/repo")

    def below(workspace: str | None) -> str | None:
        variables = {} if workspace is None else {"GITHUB_WORKSPACE": workspace}
        return below_workspace(root, variables)

    assert below(str(folder / "space")) == "repo"
    assert below(str(folder / "link")) == "repo"
    assert below(root) == ""
    assert below(str(folder / "elsewhere")) == ""
    assert below(None) == below("") == ""
    assert below_workspace(str(folder / "space"), {}) is None
