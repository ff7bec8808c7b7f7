"""Rules of pipeline.side_process: a side is built once, from its own sources."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from fakes.runner import Call, FakeRunner, finished
from pytest_gpuperf.collect.runner import Finished
from pytest_gpuperf.collect.worktree import Repository
from pytest_gpuperf.errors import CollectorFailedError, SidesRefusedError
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.pipeline.command_line import CommandLine
from pytest_gpuperf.pipeline.side_process import (
    Builder,
    SideCommand,
    build_in_place,
    project_folder,
)


class Pip(FakeRunner):
    """A runner whose git lists the files of a tree, and whose pip installs one."""

    def __init__(self, exit_code: int = 0) -> None:
        super().__init__()
        self._exit_code = exit_code
        self.builds: list[tuple[str, ...]] = []

    def answer(self, call: Call) -> Finished:
        if call.argv[0] == "git":
            names = ["pyproject.toml", "core.c"] if "--cached" in call.argv else []
            return finished(stdout="\0".join(names).encode())
        self.builds.append(call.argv)
        assert call.cwd is not None
        site = Path(call.argv[call.argv.index("--target") + 1])
        site.mkdir()
        (site / "core.so").write_bytes(Path(call.cwd, "core.c").read_bytes())
        return finished(self._exit_code, stderr=b"error: no compiler\n")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("[project]\n")
    (folder / "core.c").write_text("1")
    (folder / "core.so").write_text("stale")
    return folder


def side(tree: Path, run: str) -> SideCommand:
    scratch = tree.parent / run
    scratch.mkdir()
    return SideCommand(
        side=Side.OLD,
        folder=str(tree),
        command=CommandLine(args=(), folder=str(tree), variable="CHILD"),
        tree=str(tree),
        other_tree="",
        environments=(),
        scratch=str(scratch),
    )


def builder(tree: Path, pip: Pip) -> Builder:
    repository = Repository(str(tree), pip)
    cache = tree.parent / "cache"
    return Builder(repository, carry=(), runner=pip, timeout_s=1.0, cache=cache)


def test_a_build_is_of_a_copy_and_is_kept(tree: Path) -> None:
    """What git does not list is not copied; the next run takes it from the cache."""
    pip = Pip()

    first = builder(tree, pip).build(side(tree, "first"))
    again = builder(tree, pip).build(side(tree, "again"))

    assert Path(first, "core.so").read_text() == "1"
    assert Path(again, "core.so").read_text() == "1"
    assert first != again
    (argv,) = pip.builds
    pip_or_uv = argv[: argv.index("install")]
    assert pip_or_uv in {(sys.executable, "-m", "pip"), ("uv", "pip")}
    assert {"--no-deps", "--no-index", "--no-build-isolation"} < set(argv)
    assert not (tree.parent / "first" / "source" / "core.so").exists()


@pytest.mark.parametrize("change", ["source", "setting"])
def test_what_a_build_depends_on_builds_it_again(
    tree: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Its sources, and what compilers read."""
    pip = Pip()
    builder(tree, pip).build(side(tree, "first"))
    if change == "source":
        (tree / "core.c").write_text("2")
    else:
        monkeypatch.setenv("CFLAGS", "-O0")

    builder(tree, pip).build(side(tree, "again"))

    assert len(pip.builds) == 2


def test_the_cache_keeps_the_latest(tree: Path) -> None:
    """Eight of them: a built side may be large."""
    pip = Pip()
    for index in range(11):
        (tree / "core.c").write_text(f"{index}")
        builder(tree, pip).build(side(tree, f"run-{index}"))
    entries = list((tree.parent / "cache").iterdir())

    assert sorted(path.joinpath("core.so").read_text() for path in entries) == sorted(
        map(str, range(3, 11))
    )


def test_a_build_that_fails_is_refused_and_not_kept(tree: Path) -> None:
    """With the side, the tree and what the build has printed."""
    with pytest.raises(SidesRefusedError) as caught:
        builder(tree, Pip(exit_code=1)).build(side(tree, "first"))

    assert f"the old side cannot be built in {tree}: error: no compiler" in str(
        caught.value
    )
    assert "gpuperf_build_command" in caught.value.remedy
    assert not (tree.parent / "cache").exists()


def test_a_command_builds_a_tree_in_place(tree: Path) -> None:
    """In its root, by the shell; one that fails is refused."""
    runner = FakeRunner([finished(), finished(2, stderr=b"it breaks")])
    command = side(tree, "first")

    build_in_place("make all", command, runner, timeout_s=9.0)

    (call,) = runner.calls
    assert (call.argv, call.cwd) == (("/bin/sh", "-c", "make all"), str(tree))
    with pytest.raises(SidesRefusedError, match="it breaks; correct the ini option"):
        build_in_place("make all", command, runner, timeout_s=9.0)


@pytest.mark.parametrize("exit_code", [-9, 128 + 9])
def test_a_build_that_is_ended_from_outside_has_not_failed(
    tree: Path, exit_code: int
) -> None:
    """It shows nothing of the sources: the signal is named, and no command to correct."""
    runner = FakeRunner([finished(exit_code, stderr=b"gcc core.c")])
    told = f"SIGKILL ended the build of the old side in {tree}; find out what ended it"

    with pytest.raises(CollectorFailedError, match=re.escape(told)):
        build_in_place("make all", side(tree, "command"), runner, timeout_s=9.0)
    with pytest.raises(CollectorFailedError, match=re.escape(told)):
        builder(tree, Pip(exit_code=-9)).build(side(tree, "package"))


def test_a_build_that_crashes_names_its_signal(tree: Path) -> None:
    """A compiler that crashes may print nothing."""
    runner = FakeRunner([finished(-11)])

    with pytest.raises(SidesRefusedError, match=r"\(SIGSEGV\): it printed nothing"):
        build_in_place("make all", side(tree, "first"), runner, timeout_s=9.0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [("[project]\n", "sub"), ("[tool.pytest.ini_options]\n", "."), (None, ".")],
)
def test_the_nearest_project_is_built(
    tree: Path, settings: str | None, expected: str
) -> None:
    """A file with settings of pytest alone is not a project."""
    folder = tree / "sub" / "tests"
    folder.mkdir(parents=True)
    if settings is not None:
        (tree / "sub" / "pyproject.toml").write_text(settings)

    assert project_folder(str(tree), str(folder)) == expected
    (tree / "pyproject.toml").unlink()
    if expected == ".":
        assert project_folder(str(tree), str(folder)) is None
        (tree / "setup.py").touch()
        assert project_folder(str(tree), str(folder)) == os.curdir
