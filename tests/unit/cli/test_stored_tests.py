"""Commands take the ids that pytest shows, and the keys that a store has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_gpuperf.cli.stored_tests import StoredTests, is_of

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


def test_the_beginning_of_a_name_is_not_the_name() -> None:
    """A function selects its parameters and repeats, and no longer name."""
    assert is_of("a.py::test_x[1]", "a.py::test_x")
    assert is_of("a.py::test_x#2", "a.py::test_x")
    assert not is_of("a.py::test_xy", "a.py::test_x")
