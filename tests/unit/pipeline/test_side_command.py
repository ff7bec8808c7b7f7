"""Rules of pipeline.side_command: a side's process is started as the parent was."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pytest_gpuperf.collect.launcher import Launcher
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.pipeline.command_line import CommandLine
from pytest_gpuperf.pipeline.side_process import SideCommand


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """Return the old tree and the working tree, which has one test file more."""
    old, new = tmp_path / "old", tmp_path / "new"
    for tree in (old, new):
        (tree / "tests").mkdir(parents=True)
        (tree / "tests" / "test_a.py").touch()
        (tree / "pytest.ini").touch()
    (new / "tests" / "test_b.py").touch()
    return old, new


def command(
    trees: tuple[Path, Path], side: Side, *args: str, paths: tuple[str, ...] = ()
) -> SideCommand:
    tree, other = trees if side is Side.OLD else trees[::-1]
    scratch = tree.parent / f"side-{side.value}"
    scratch.mkdir(exist_ok=True)
    return SideCommand(
        side=side,
        folder=str(tree),
        command=CommandLine(
            args=args, paths=paths, folder=str(trees[1]), variable="CHILD"
        ),
        tree=str(tree),
        other_tree=str(other),
        environments=(),
        scratch=str(scratch),
    )


def test_arguments_name_the_own_tree(trees: tuple[Path, Path]) -> None:
    """Absolute paths, also behind an equals sign, where the own tree has them."""
    old, new = trees
    args = (
        "-c",
        f"{new}/pytest.ini",
        f"--rootdir={new}",
        f"--x={new}/nowhere",
        "-k",
        "a",
    )

    assert command(trees, Side.OLD, *args).argv("/s") == (
        *(sys.executable, "-m", "pytest", "-c", f"{old}/pytest.ini"),
        *(f"--rootdir={old}", f"--x={new}/nowhere", "-k", "a", "--basetemp=/s/base"),
    )
    assert command(trees, Side.NEW, *args).argv("/s")[3:-1] == args


def test_a_module_is_named_as_it_was(trees: tuple[Path, Path]) -> None:
    """With --pyargs a side's own Python looks for it: it is the path of no file."""
    args = ("--pyargs", "pkg.tests.test_a::test_x")

    for side, tree in zip((Side.OLD, Side.NEW), trees, strict=True):
        started = command(trees, side, *args, paths=args[1:])
        assert started.has(args[1])
        assert started.folder == str(tree)
        assert started.argv("/s")[3:5] == ("--pyargs", "pkg.tests.test_a")


def test_tests_are_named_by_their_files(trees: tuple[Path, Path]) -> None:
    """Which tests run is said by their ids; a file that a side lacks is left out."""
    args = (
        "-q",
        "tests/test_a.py::test_x[1]",
        "tests/test_b.py",
        "--",
        "tests/test_a.py",
    )
    paths = (args[1], args[2], args[4])

    old = command(trees, Side.OLD, *args, paths=paths)

    assert old.argv("/s", ("--extra",))[3:] == (
        *("-q", "tests/test_a.py", "--extra", "--basetemp=/s/base"),
        *("--", "tests/test_a.py"),
    )
    assert not old.has("tests/test_b.py::test_x")
    assert command(trees, Side.NEW, *args, paths=paths).has("tests/test_b.py")


def test_it_is_started_as_the_parent_was(trees: tuple[Path, Path]) -> None:
    """Plugins that spoil times are told so, before any `--`."""
    side = command(trees, Side.NEW, "-q")
    start = ("/env/python", "-X", "dev", "/env/bin/pytest")
    plugins = frozenset({"xdist", "cacheprovider", "pytest_cov", "randomly"})
    launcher = Launcher(start=start, is_pytest=True)
    changed = replace(side.command, launcher=launcher, plugins=plugins)

    assert replace(side, command=changed).argv("/s", ("-x",)) == (
        *(*start, "-q", "--no-cov", "--randomly-seed=1", "-x"),
        *("-n0", "-o", "cache_dir=/s/cache", "--basetemp=/s/base"),
    )


def test_the_environment_is_the_parents_but_for_what_is_its_own(
    trees: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of git's hooks, of xdist or of coverage; caches and hashes of its own."""
    old, new = trees
    for name in ("GIT_DIR", "PYTEST_XDIST_WORKER", "COV_CORE_SOURCE", "PYTHONINSPECT"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-v")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([f"{new}/tests", "/lib", ""]))

    environment = command(trees, Side.OLD).environment(str(tmp_path / "s"), 7)

    boot, *path = environment["PYTHONPATH"].split(os.pathsep)
    assert path == [f"{old}/tests", "/lib", "."]  # an empty entry is the current folder
    assert Path(boot, "sitecustomize.py").is_file()
    assert Path(boot).is_relative_to(tmp_path / "s")
    assert environment["PYTHONHASHSEED"] == "7"
    assert environment["PWD"] == str(old)
    assert environment["PYTEST_ADDOPTS"] == "-v"
    assert environment["PATH"] == os.environ["PATH"]
    assert environment["TRITON_CACHE_DIR"].startswith(str(tmp_path / "s"))
    assert environment["TORCH_EXTENSIONS_DIR"].startswith(str(tmp_path / "side-old"))
    dropped = {"GIT_DIR", "PYTEST_XDIST_WORKER", "COV_CORE_SOURCE", "PYTHONINSPECT"}
    assert not dropped & environment.keys()
