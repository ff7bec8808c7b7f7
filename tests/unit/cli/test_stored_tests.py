"""Commands take the ids that pytest shows, and the keys that a store has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_gpuperf.cli.stored_tests import StoredTests
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.model.checkout import is_of

KEYS = (
    "packages/a/tests/test_a.py::test_x",
    "packages/a/tests/test_a.py::test_y[{root}/data/3.txt]",
    "packages/a/tests/test_a.py::test_y[2]",
    "packages/a/tests/test_a.py::test_y[2]#2",
    "tests/test_a.py::test_x",
    "lib.tests.test_lib::test_x",
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the root of a repository with a package below it, where commands are typed."""
    monkeypatch.delenv("PWD", raising=False)
    root = Path(os.path.realpath(tmp_path))
    (root / ".git").mkdir()
    (root / "packages/a/tests").mkdir(parents=True)
    return root


@pytest.mark.parametrize(
    ("folder", "name", "count"),
    [
        ("packages/a", "tests/test_a.py::test_x", 1),
        ("packages/a/tests", "test_a.py::test_x", 1),
        ("packages/a/tests", "tests/test_a.py::test_x", 1),
        ("packages/a", "tests/test_a.py", 4),
        ("packages/a", "tests/test_a.py::test_y[2]", 2),
        ("packages/a", "packages/a/tests/test_a.py::test_x", 1),
        (".", "packages/a/tests/test_a.py::test_x", 1),
    ],
)
def test_an_id_of_pytest_is_taken_where_pytest_runs(
    root: Path, monkeypatch: pytest.MonkeyPatch, folder: str, name: str, count: int
) -> None:
    """What pytest shows below a package names the tests of this package alone."""
    monkeypatch.chdir(root / folder)
    named = StoredTests(KEYS, ".gpuperf").named(name)

    assert len(named) == count
    assert all(key.startswith("packages/a/") for key in named)


def test_a_folder_in_an_id_is_that_of_the_checkout(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path in an id is typed and shown as pytest shows it here."""
    monkeypatch.chdir(root / "packages/a")
    tests = StoredTests(KEYS, ".gpuperf")
    shown = f"tests/test_a.py::test_y[{root}/data/3.txt]"

    assert tests.named(shown) == {KEYS[1]}
    assert tests.named(KEYS[1]) == {KEYS[1]}
    assert tests.shown(KEYS[1]) == shown


def test_names_at_the_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of the root folder, of a package that is installed, and of no folder."""
    monkeypatch.chdir(root)
    tests = StoredTests(KEYS, ".gpuperf")

    assert tests.named("tests/test_a.py::test_x") == {KEYS[4]}
    assert tests.named(f"{root}/tests/test_a.py::test_x") == {KEYS[4]}
    assert tests.named("lib.tests.test_lib::test_x") == {KEYS[5]}
    assert tests.named("tests/test_b.py") == frozenset()


def test_a_store_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store without its checkout is asked by ids, where one module has that end."""
    monkeypatch.chdir(tmp_path)

    assert StoredTests(KEYS[:4], "s").named("a/tests/test_a.py::test_x") == {KEYS[0]}


@pytest.mark.parametrize(
    ("folder", "old", "new", "renamed"),
    [
        (
            "packages/a",
            "tests/test_a.py::test_y",
            "tests/test_a.py::test_z",
            {
                KEYS[1]: "packages/a/tests/test_a.py::test_z[{root}/data/3.txt]",
                KEYS[2]: "packages/a/tests/test_a.py::test_z[2]",
                KEYS[3]: "packages/a/tests/test_a.py::test_z[2]#2",
            },
        ),
        (
            "packages/a",
            "tests/test_a.py::test_y[2]",
            "tests/test_b.py::test_y[3]",
            {
                KEYS[2]: "packages/a/tests/test_b.py::test_y[3]",
                KEYS[3]: "packages/a/tests/test_b.py::test_y[3]#2",
            },
        ),
        (".", "tests", "bench/fast", {KEYS[4]: "bench/fast/test_a.py::test_x"}),
        (".", "tests/test_a.py", "b.py", {KEYS[4]: "b.py::test_x"}),
        (
            ".",
            "tests/test_a.py",
            "tests/test_a.py::TestX",
            {KEYS[4]: "tests/test_a.py::TestX::test_x"},
        ),
        (".", "lib.tests.test_lib", "lib.b", {KEYS[5]: "lib.b::test_x"}),
        (".", "nowhere", "b", {}),
    ],
)
def test_a_test_is_renamed(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
    old: str,
    new: str,
    renamed: dict[str, str],
) -> None:
    """With its parameters and repeats; a module or a folder with all that is in it."""
    monkeypatch.chdir(root / folder)

    assert StoredTests(KEYS, ".gpuperf").renamed(old, new) == renamed


def test_a_new_name_may_be_absolute(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an editor shows the path of a file."""
    monkeypatch.chdir(root / "packages/a")
    renamed = StoredTests(KEYS, ".gpuperf").renamed(
        "tests/test_a.py::test_x", f"{root}/b.py::test_x"
    )

    assert renamed == {KEYS[0]: "b.py::test_x"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tests/test_a.py::test_x", "tests/test_b.py"),
        ("tests/test_a.py", "tests/b"),
        ("tests", "tests/test_b.py::test_x"),
        ("tests", "tests/test_b.py"),
        ("packages/a/tests/test_a.py::test_y", "tests/test_a.py::test_z[1]"),
        ("tests/test_a.py::test_x", "tests/test_b.py::"),
        ("tests/test_a.py", ""),
    ],
)
def test_a_name_of_another_kind_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    """No session may be stored under what is no test."""
    monkeypatch.chdir(root)

    with pytest.raises(ConfigError, match="cannot be the new name of"):
        StoredTests(KEYS, ".gpuperf").renamed(old, new)


def test_the_beginning_of_a_name_is_not_the_name() -> None:
    """A function selects its parameters and repeats, and no longer name."""
    assert is_of("a.py::test_x[1]", "a.py::test_x")
    assert is_of("a.py::test_x#2", "a.py::test_x")
    assert not is_of("a.py::test_xy", "a.py::test_x")
