"""Rules of pipeline.proof: the files of a process say which side it ran."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_gpuperf.collect.loaded_files import FileKind, LoadedFile
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.pipeline.proof import (
    FileState,
    Loaded,
    Project,
    Tree,
    edited,
    is_test_file,
    modules_that_differ,
    unrecorded,
)

SITE = "/env/lib/python3.11/site-packages"
TRACKED = frozenset(
    {
        *("src/pkg/__init__.py", "src/pkg/core.py", "src/pkg/fast.c"),
        *("src/pkg/_vendor/__init__.py", "src/pkg/_vendor/six.py"),
        *("tests/test_core.py", "tests/conftest.py", "tests/tools.py"),
    }
)


def project(*, built: str = "", environments: tuple[str, ...] = ()) -> Project:
    old = Tree(root="/scratch/old", tracked=TRACKED, built=built)
    new = Tree(root="/repo", tracked=TRACKED)
    return Project(old, new, environments=environments, scratch="/scratch")


def loaded(modules: Mapping[str, str], *libraries: str) -> Loaded:
    files = [LoadedFile(p, FileKind.MODULE, name) for name, p in modules.items()]
    files += [LoadedFile(path, FileKind.LIBRARY) for path in libraries]
    return Loaded.of(files)


def code(gap: Gap | None) -> GapCode | None:
    return None if gap is None else gap.code


def test_what_counts_is_loaded_code() -> None:
    """Modules but the main one, and libraries that are not modules; no data."""
    files = [
        LoadedFile("/a.py", FileKind.MODULE, "a"),
        LoadedFile("/m.py", FileKind.MODULE, "__main__"),
        LoadedFile("/a.so", FileKind.MODULE, "b"),
        LoadedFile("/a.so", FileKind.LIBRARY),
        LoadedFile("/c.so", FileKind.LIBRARY),
        LoadedFile("/data", FileKind.OPENED),
    ]

    assert Loaded.of(files).files == [("a", "/a.py"), ("b", "/a.so"), ("c.so", "/c.so")]


@pytest.mark.parametrize(
    ("path", "differing", "expected"),
    [
        ("/repo/tests/test_core.py", "src/pkg/core.py", GapCode.NO_OWN_CODE),
        ("/repo/src/pkg/core.py", "src/pkg/core.py", None),
        ("/repo/tests/test_core.py", "tests/conftest.py", None),
        ("/repo/tests/test_core.py", "tests/conftest.py README.md", None),
        (
            *("/repo/tests/test_core.py", "tests/conftest.py src/pkg/core.py"),
            GapCode.NO_OWN_CODE,
        ),
        ("/repo/tests/test_core.py", "", None),
    ],
)
def test_what_differs_must_be_what_runs(
    path: str, differing: str, expected: GapCode | None
) -> None:
    """Tests that load no code of the project compare nothing, unless they alone differ."""
    files = frozenset(differing.split())

    gap = project().without_code(Side.NEW, loaded({"x": path}), files)

    assert code(gap) == expected


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/repo/src/pkg/core.py", Side.NEW),
        ("/scratch/old/src/pkg/core.py", Side.OLD),
        ("/scratch/side-old/site/pkg/core.py", Side.OLD),
        ("/repo/.venv/lib/x.py", None),
        ("/scratch/side-new/x.so", None),
        (f"{SITE}/pkg/core.py", None),
    ],
)
def test_a_file_belongs_to_the_tree_it_lies_in(path: str, owner: Side | None) -> None:
    """An environment in the tree, and the run's own folder, belong to neither."""
    sides = project(built="/scratch/side-old/site", environments=("/repo/.venv",))

    assert sides.owner(path) is owner


def test_what_the_user_runs_is_held_against_what_is_compared(tmp_path: Path) -> None:
    """Another content of a module that git has; no copy, no test, nothing generated."""
    root, site = tmp_path / "repo", tmp_path / "site"
    names = ("pkg/__init__", "pkg/core", "pkg/made", "tests/tools", "tests/test_core")
    modules: dict[Path, dict[str, str]] = {root / "src": {}, site: {}}
    for folder, paths in modules.items():
        for name in names:
            file = folder / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            is_copy = name == "pkg/__init__"
            file.write_text("" if is_copy else str(folder), encoding="utf-8")
            paths[name.removesuffix("/__init__").replace("/", ".")] = str(file)
    tracked = frozenset(f"src/{name}.py" for name in names) - {"src/pkg/made.py"}
    tree = Tree(root=str(root), tracked=tracked)
    old = Tree(root="/old", tracked=tracked)
    sides = Project(old, tree, environments=(), scratch="/scratch")
    own, other = (loaded(paths) for paths in modules.values())

    names_of = [name for name, _ in sides.other_code(other, own)]
    assert names_of == ["pkg.core", "tests.tools"]
    assert sides.other_code(own, own) == ()
    assert sides.other_code(loaded({}), own) == ()


def test_a_scratch_folder_in_the_tree_is_not_its_code() -> None:
    """Nor is a tree in an environment nobody's: /usr/src/app is one of /usr."""
    old = Tree(root="/repo/.git/scratch/old", tracked=TRACKED)
    new = Tree(root="/repo", tracked=TRACKED)
    sides = Project(old, new, environments=(), scratch="/repo/.git/scratch")

    assert sides.owner("/repo/.git/scratch/x.py") is None
    assert sides.owner("/repo/.git/scratch/old/x.py") is Side.OLD
    assert sides.owner("/repo/x.py") is Side.NEW


def test_a_file_of_the_other_side_is_foreign() -> None:
    """A library, too; the message names the module, its file and both sides."""
    right = loaded({"pkg.core": "/repo/src/pkg/core.py"})
    wrong = loaded({}, "/repo/build/libfast.so")

    assert project().foreign(Side.NEW, right) is None
    gap = project().foreign(Side.OLD, right)
    assert code(gap) is GapCode.FOREIGN_FILE
    assert gap is not None
    assert gap.reason == (
        "the old side loaded pkg.core from /repo/src/pkg/core.py, a file of the new side"
    )
    assert code(project().foreign(Side.OLD, wrong)) is GapCode.FOREIGN_FILE


def test_two_processes_may_find_a_module_in_two_places() -> None:
    """A child that is not redirected is seen although its parent was right."""
    both = Loaded.of(
        [
            LoadedFile("/scratch/old/src/pkg/core.py", FileKind.MODULE, "pkg.core"),
            LoadedFile("/repo/src/pkg/core.py", FileKind.MODULE, "pkg.core"),
        ]
    )

    assert code(project().foreign(Side.OLD, both)) is GapCode.FOREIGN_FILE


@pytest.mark.parametrize(
    "modules",
    [
        {"pkg.core": f"{SITE}/pkg/core.py"},
        {"pkg.fast": f"{SITE}/pkg/fast.cpython-311-x86_64-linux-gnu.so"},
        {"pkg": "/repo/src/pkg/__init__.py", "pkg._C": f"{SITE}/pkg/_C.so"},
        {"pkg": "/other-clone/src/pkg/__init__.py"},
    ],
)
def test_a_module_of_the_project_from_elsewhere_is_shared(
    modules: dict[str, str],
) -> None:
    """By the name of a tracked file, or of a package that the module lies in."""
    gap = project().shared(Side.NEW, loaded(modules))

    assert code(gap) is GapCode.SHARED_FILE


@pytest.mark.parametrize(
    "modules",
    [
        {"pkg.core": "/repo/src/pkg/core.py"},
        {"six": f"{SITE}/six.py"},  # the project vendors one of that name
        {"numpy.core": f"{SITE}/numpy/core/__init__.py"},
        {"core": f"{SITE}/core.py"},  # no import root has it: src/pkg is a package
        {"tools": str(Path(os.__file__).parent / "tools.py")},  # the standard library's
    ],
)
def test_a_module_of_others_is_not(modules: dict[str, str]) -> None:
    """A name that only looks like one of the project's is another's."""
    assert project().shared(Side.NEW, loaded(modules)) is None


def test_a_module_that_one_side_has_is_not_missing_on_the_other() -> None:
    """Today's code may use an installed six where the old one had its own."""
    old = Tree(root="/scratch/old", tracked=TRACKED | {"src/six.py"})
    sides = Project(
        old, Tree(root="/repo", tracked=TRACKED), environments=(), scratch="/scratch"
    )
    six = loaded({"six": f"{SITE}/six.py"})

    assert sides.shared(Side.NEW, six) is None
    assert code(sides.shared(Side.OLD, six)) is GapCode.SHARED_FILE


@pytest.mark.parametrize(
    ("modules", "roots"),
    [
        ({"pkg.core": "/repo/src/pkg/core.py"}, ("src",)),
        ({"pkg": "/repo/src/pkg/__init__.py"}, ("src",)),
        ({"pkg.fast": "/repo/src/pkg/fast.abi3.so"}, ("src",)),
        ({"pkg.core": f"{SITE}/pkg/core.py"}, ("src",)),
        ({"tests.tools": "/repo/tests/tools.py"}, ("",)),
        ({"tools": "/repo/tests/tools.py"}, ("tests",)),
        ({"test_core": "/repo/tests/test_core.py"}, ()),
        ({"conftest": "/repo/tests/conftest.py"}, ()),
        ({"odd": "/repo/src/pkg/core.py"}, ()),
        ({"six": f"{SITE}/six.py"}, ()),
    ],
)
def test_an_import_root_is_a_file_without_its_dotted_name(
    modules: dict[str, str], roots: tuple[str, ...]
) -> None:
    """Of what is installed, where the tree has a file of that name."""
    assert project().import_roots(loaded(modules)) == roots


def test_a_change_while_measuring_is_an_edit(tmp_path: Path) -> None:
    """By content: a file that is only touched is the same."""
    path = tmp_path / "core.py"
    path.write_text("N = 1\n")
    own = [("pkg.core", str(path))]
    states = {str(path): FileState.of(str(path))}

    def judged() -> Gap | None:
        return edited(Side.NEW, own, states, since_ns=0)

    assert judged() is None
    os.utime(path, ns=(1, 1))
    assert judged() is None
    path.write_text("N = 2\n")
    gap = judged()
    assert gap is not None
    assert gap.code is GapCode.EDITED_FILE
    assert gap.reason == (
        f"pkg.core of the new side was edited while it was measured: {path}"
    )
    assert gap.remedy.startswith("leave the working tree as it is")
    old = edited(Side.OLD, own, states, since_ns=0)
    assert old is not None
    assert old.remedy.startswith("let its tests write to another folder")
    path.unlink()
    gone = judged()
    assert gone is not None
    assert gone.code is GapCode.EDITED_FILE
    assert gone.reason == (
        f"pkg.core of the new side was deleted while it was measured: {path}"
    )


@pytest.mark.parametrize(
    ("name", "remedy"), [("core.py", "__file__"), ("fast.so", "gpuperf_build_command")]
)
def test_a_foreign_file_has_the_remedy_of_its_kind(name: str, remedy: str) -> None:
    """No build moves a source that something names by an absolute path."""
    gap = project().foreign(Side.OLD, loaded({"pkg.x": f"/repo/src/pkg/{name}"}))

    assert gap is not None
    assert remedy in gap.remedy


def test_a_full_disk_is_named_where_a_process_recorded_nothing() -> None:
    """Its tests are not to blame then."""
    usual = unrecorded(Side.OLD, "/side", free_bytes=1 << 30)
    full = unrecorded(Side.OLD, "/side", free_bytes=4096)
    held = unrecorded(Side.OLD, "/side", free_bytes=1 << 30, most_bytes=4096)

    assert "os._exit" in usual.remedy
    assert (usual.code, full.code) == (GapCode.NOT_STATED, GapCode.FAILED)
    assert full.reason.endswith("the files that it loaded: /side is full")
    assert "make room there" in full.remedy
    assert held.reason.endswith("it may write no file of more than 4096 bytes")
    assert "ulimit -f" in held.remedy
    large = unrecorded(Side.OLD, "/side", free_bytes=1 << 30, most_bytes=1 << 30)
    assert large == usual


def test_a_file_that_was_not_loaded_before_is_judged_by_its_time(
    tmp_path: Path,
) -> None:
    """A lazy import is no edit; a file that was written since is one."""
    path = tmp_path / "lazy.py"
    path.write_text("")
    changed_ns = path.stat().st_mtime_ns
    own = [("lazy", str(path))]

    assert edited(Side.OLD, own, {}, since_ns=changed_ns) is None
    assert code(edited(Side.OLD, own, {}, since_ns=changed_ns - 1)) is (
        GapCode.EDITED_FILE
    )


def test_what_differs_is_named_as_it_is_imported() -> None:
    """A loaded module by its name; other code by its path; no tests, no documents."""
    own = [
        ("pkg", "/repo/src/pkg/__init__.py"),
        ("pkg.core", "/scratch/side-old/site/pkg/core.py"),
        ("pkg.fast", "/repo/src/pkg/fast.so"),
    ]
    differing = [
        *("src/pkg/core.py", "src/pkg/fast.c", "src/pkg/lazy.py", "csrc/add.cu"),
        *("tests/test_core.py", "README.md", "vendor/", "tests/conftest.py"),
    ]

    assert modules_that_differ(own, differing) == (
        *("csrc/add.cu", "pkg.core", "pkg.fast", "src/pkg/lazy.py"),
        *("tests/conftest.py", "vendor/"),
    )
    assert modules_that_differ(own, ["src/pkg/__init__.py"]) == ("pkg",)
    assert modules_that_differ(own, []) == ()
    assert modules_that_differ(own, [".gpuperf/cpu/core.json", "src/pkg/core.md"]) == ()
    assert (
        modules_that_differ(
            [("test_core", "/repo/tests/test_core.py")], [".gpuperf/cpu/test_core.json"]
        )
        == ()
    )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a/test_x.py", True),
        ("a/x_test.py", True),
        ("conftest.py", True),
        ("a/testing.py", False),
        ("test_data.json", False),
        ("test/x.py", False),
    ],
)
def test_a_test_file_is_one_by_its_name(path: str, *, expected: bool) -> None:
    """As pytest's own settings say."""
    assert is_test_file(path) is expected
