"""Rules of collect.redirection: Python finds a project in its own tree."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pytest_gpuperf.collect import redirection
from pytest_gpuperf.collect.redirection import inside, moved


@pytest.fixture
def trees(tmp_path: Path) -> tuple[str, str]:
    """Return two trees; the other one has an environment."""
    for name in ("own", "other/.venv/lib"):
        (tmp_path / name).mkdir(parents=True)
    return str(tmp_path / "own"), str(tmp_path / "other")


@pytest.fixture
def _restored() -> Iterator[None]:
    """Restore how this process finds modules."""
    path, finders = list(sys.path), list(sys.meta_path)
    yield
    sys.path[:], sys.meta_path[:] = path, finders


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/a", True), ("/a/b", True), ("/ab", False), ("/", False), ("a", False)],
)
def test_a_path_is_inside_by_its_parts(path: str, *, expected: bool) -> None:
    """A name that only begins alike is another folder."""
    assert inside(path, "/x", "/a") is expected


def test_a_path_of_the_other_tree_is_moved(trees: tuple[str, str]) -> None:
    """The environment in it, and what lies elsewhere, stay."""
    own, other = trees
    kept = (f"{other}/.venv",)

    assert moved(f"{other}/src", own, other, kept) == f"{own}/src"
    assert moved(other, own, other, kept) == own
    assert moved(f"{other}/.venv/lib", own, other, kept) == f"{other}/.venv/lib"
    assert moved(f"{other}2/src", own, other, kept) == f"{other}2/src"


def test_a_link_into_the_other_tree_is_followed(
    trees: tuple[str, str], tmp_path: Path
) -> None:
    """An environment may reach the tree by another name."""
    own, other = trees
    (tmp_path / "link").symlink_to(other)

    assert moved(f"{tmp_path}/link/src", own, other, ()) == f"{own}/src"


@pytest.mark.usefixtures("_restored")
def test_the_path_is_rewritten_and_the_front_comes_first(
    trees: tuple[str, str],
) -> None:
    """What is not absolute is left alone."""
    own, other = trees
    sys.path[:] = ["", f"{other}/src", "/usr/lib"]

    redirection.start(own, other, (), (f"{own}/lib", "/usr/lib"), 1)

    assert sys.path == [f"{own}/lib", "", f"{own}/src", "/usr/lib"]


class Finder:
    """A finder of an editable install, with a table as `editables` has it."""

    def __init__(self, table: dict[str, object]) -> None:
        self._redirections = table


@pytest.mark.usefixtures("_restored")
def test_the_tables_of_editable_installs_are_rewritten(
    trees: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the finder, and those of its module: paths and lists of paths."""
    own, other = trees
    module = ModuleType("__editable___demo_finder")
    module.MAPPING = {"pkg": f"{other}/lib/pkg", "x": 1}  # type: ignore[attr-defined] # as setuptools does
    module.NAMESPACES = {"space": [f"{other}/src/space"]}  # type: ignore[attr-defined] # the same
    monkeypatch.setitem(sys.modules, module.__name__, module)
    setuptools = type("EditableFinder", (), {"__module__": module.__name__})
    finder = Finder({"core": f"{other}/core.py"})
    sys.meta_path[:0] = [setuptools, finder]  # type: ignore[list-item] # doubles

    redirection.start(own, other, (), (), 1)

    assert vars(module)["MAPPING"] == {"pkg": f"{own}/lib/pkg", "x": 1}
    assert vars(module)["NAMESPACES"] == {"space": [f"{own}/src/space"]}
    assert finder._redirections == {"core": f"{own}/core.py"}


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("name", ["MesonpyMetaFinder", "ScikitBuildRedirectingFinder"])
@pytest.mark.parametrize(("level", "stays"), [(1, True), (2, False)])
def test_a_finder_that_builds_is_taken_out_of_built_sides(
    trees: tuple[str, str], name: str, level: int, *, stays: bool
) -> None:
    """It would build the other tree on import; it is called as its backend calls it."""
    finder = type(name, (), {"__module__": "_demo_editable"})()
    sys.meta_path.insert(0, finder)

    redirection.start(*trees, (), (), level)

    assert (finder in sys.meta_path) is stays
