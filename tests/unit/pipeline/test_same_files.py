"""Rules of pipeline.proof: which tests use no file that differs from the revision."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import pytest

from pytest_gpuperf.collect.opened_files import OpenedByTest, OpenedFile
from pytest_gpuperf.collect.worktree import Changes
from pytest_gpuperf.pipeline.proof import (
    Loaded,
    UsedFiles,
    file_list,
    installs,
    same_tests,
)

LISTED = (
    *("README.md", "conftest.py", "pytest.ini", "data/a.json", "data/b.json"),
    *("src/pkg/__init__.py", "src/pkg/core.py", "tests/test_a.py"),
)


class Watched(OpenedByTest):
    """A watch that is known, of files that a test of these rules names."""

    is_known = True


@dataclass
class Tree:
    """
    A working tree whose two tests, A and B, have run.

    Attributes:
        root: Its root.

        opened: What was opened, and how many tests had ended before.
    """

    root: Path
    opened: Watched = field(default_factory=lambda: Watched(None))

    def write(self, *paths: str, text: str = "x = 1\n") -> None:
        """Write files."""
        for path in paths:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text)

    def use(self, path: str, position: int = 0, *, is_folder: bool = False) -> None:
        """Note that a file was opened."""
        place = os.path.normpath(self.root / path)
        self.opened.positions[OpenedFile(place, is_folder)] = position

    def same(
        self,
        differing: Iterable[str],
        *,
        before: Iterable[str] = LISTED,
        python_path: Iterable[str] = (),
        modules: Mapping[str, str] = MappingProxyType({}),
        editable: tuple[tuple[str, str], ...] = (),
        baseline: str | None = None,
    ) -> str:
        """Return the tests that are the same, by their letters."""
        changed = frozenset(differing)
        present = (path for path in changed if (self.root / path).is_file())
        self.opened.root = str(self.root)
        self.opened.ended = {"A": 0, "B": 1}
        used = UsedFiles(
            opened=self.opened,
            modules=dict.fromkeys("AB", "tests/test_a.py"),
            loaded=Loaded(
                modules=frozenset(
                    (name, os.path.normpath(self.root / path))
                    for name, path in modules.items()
                )
            ),
            python_path=tuple(python_path),
            editable=editable,
            outputs=() if baseline is None else (str(self.root / baseline),),
        )
        changes = Changes(
            root=str(self.root),
            differing=changed,
            listed=frozenset(LISTED).union(present),
            before=frozenset(before),
        )
        return "".join(sorted(same_tests(used, changes)))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A tree of which both tests have used all but data and README.md."""
    made = Tree(Path(os.path.realpath(tmp_path)))
    made.write(*LISTED)
    for path in LISTED:
        if path.endswith((".py", ".ini")):
            made.use(path)
    return made


def test_files_that_no_test_opens_decide_nothing(tree: Tree) -> None:
    """A pull request for people, or of data that no test reads."""
    assert tree.same(["README.md"]) == "AB"
    assert tree.same(["data/a.json"]) == "AB"
    assert tree.same([]) == "AB"


@pytest.mark.parametrize(
    "path", ["conftest.py", "src/pkg/core.py", "tests/test_a.py", "pytest.ini"]
)
def test_what_all_tests_use_differs_for_all(tree: Tree, path: str) -> None:
    """What is loaded before the first test belongs to each."""
    assert tree.same([path]) == ""


def test_a_file_of_a_later_test_leaves_the_earlier_one(tree: Tree) -> None:
    """Its process had not opened the file by then."""
    tree.use("data/a.json", 1)

    assert tree.same(["data/a.json"]) == "A"
    assert tree.same(["data/b.json"]) == "AB"
    assert tree.same(["data/b.json", "data/a.json"]) == "A"


def test_prose_that_a_test_reads_counts(tree: Tree) -> None:
    """It may be the input."""
    tree.use("README.md", 1)

    assert tree.same(["README.md"]) == "A"


def test_byte_code_stands_for_its_source(tree: Tree) -> None:
    """A module that was compiled before opens its byte code alone."""
    tree.write("late.py", "__pycache__/late.cpython-311-pytest-9.0.pyc")
    tree.use("__pycache__/late.cpython-311-pytest-9.0.pyc", 1)
    tree.use("__pycache__/gone.cpython-311.pyc", 0)
    listed = {*LISTED, "late.py"}

    assert tree.same(["late.py"], before=listed) == "A"
    assert tree.same(["data/a.json"], before=listed) == "A"  # git ignores late.py


def test_a_module_that_was_not_seen_counts_for_all(tree: Tree) -> None:
    """Its byte code may lie elsewhere."""
    del tree.opened.positions[OpenedFile(str(tree.root / "src/pkg/core.py"))]

    assert tree.same(["src/pkg/core.py"]) == "AB"
    assert tree.same(["src/pkg/core.py"], modules={"pkg.core": "src/pkg/core.py"}) == ""


def test_a_module_counts_from_the_test_that_imports_it(tree: Tree) -> None:
    """What was opened says when."""
    tree.use("src/pkg/core.py", 1)
    module = {"pkg.core": "src/pkg/core.py"}

    assert tree.same(["src/pkg/core.py"], modules=module) == "A"


@pytest.mark.parametrize(
    "path",
    [
        *("requirements.txt", "requirements/dev.txt", "dev-requirements.in", "uv.lock"),
        *("poetry.lock", "pylock.toml", "pyproject.toml", "sub/setup.py", "setup.cfg"),
        *("CMakeLists.txt", "cmake/x.cmake", "environment.yml", "Dockerfile"),
        *("meson.build", "Makefile", "Cargo.toml", "constraints.txt", ".gitattributes"),
    ],
)
def test_no_test_leaves_where_another_environment_is_meant(
    tree: Tree, path: str
) -> None:
    """What is installed shows in no file of the tree."""
    tree.write(path)

    assert tree.same([path, "README.md"], before={*LISTED, path}) == ""
    assert installs([path, "README.md"]) == (path,)


@pytest.mark.parametrize("path", ["docs/requirements.md", "setup.md", "src/lock.py"])
def test_other_files_install_nothing(path: str) -> None:
    """A word in a name is not enough."""
    assert installs([path]) == ()


@pytest.mark.parametrize("path", ["csrc/gemm.cu", "src/pkg/fast.pyx", "csrc/gemm.h"])
def test_a_source_of_compiled_code_is_never_seen(tree: Tree, path: str) -> None:
    """What was built of it is loaded in its place."""
    tree.write(path)

    assert tree.same([path], before={*LISTED, path}) == ""


def test_what_git_ignores_may_be_generated(tree: Tree) -> None:
    """From anything that differs but prose; caches and metadata are no inputs."""
    tree.use(".pytest_cache/v/cache/lastfailed")
    tree.use(".benchmarks/Linux/0001.json")
    tree.use(".hypothesis/constants/a")
    tree.use(".coverage.host.1")
    tree.use(".triton/cache/a.cubin")
    tree.use("src/pkg.egg-info/PKG-INFO")
    assert tree.same(["data/a.json"]) == "AB"

    tree.use("src/pkg/_version.py")

    assert tree.same(["data/a.json"]) == ""
    assert tree.same(["README.md"]) == "AB"


def test_the_store_of_the_run_is_no_input(tree: Tree) -> None:
    """The run reads it, no test does."""
    tree.use(".gpuperf/linux.jsonl")

    assert tree.same(["data/a.json"], baseline=".gpuperf") == "AB"
    assert tree.same(["data/a.json"]) == ""


@pytest.mark.parametrize("installed", ["pkg/core.py", "pkg/_fast.abi3.so", "pkg.so"])
def test_an_installed_part_is_not_seen(
    tree: Tree, tmp_path_factory: pytest.TempPathFactory, installed: str
) -> None:
    """The tree's own file is then opened by no test, whatever differs but prose."""
    site = Tree(tmp_path_factory.mktemp("site"))
    site.write("other/__init__.py", "pkg-1.0.dist-info/METADATA", "pkg.pth")
    path = [str(site.root), str(tree.root / "src")]
    assert tree.same(["data/a.json"], python_path=path) == "AB"

    site.write(installed)

    assert tree.same(["data/a.json"], python_path=path) == ""
    assert tree.same(["README.md"], python_path=path) == "AB"


def test_an_editable_installation_of_another_clone_is_not_seen(tree: Tree) -> None:
    """It has the same names, and its finder no folder on Python's path."""
    for clone, same in ((".", "AB"), ("../clone", "")):
        place = os.path.normpath(tree.root / clone / "src" / "pkg")
        module = {"pkg": f"{clone}/src/pkg/__init__.py"}

        assert tree.same(["data/a.json"], editable=(("pkg", place),)) == same
        assert tree.same(["data/a.json"], modules=module) == same


def test_a_file_of_the_revision_alone_is_not_seen(tree: Tree) -> None:
    """A test that looks for it in vain opens nothing: a tuned configuration is gone."""
    before = {*LISTED, "data/tuned.json"}

    assert tree.same(["data/tuned.json"], before=before) == ""


def test_a_page_that_was_removed_is_no_input(tree: Tree) -> None:
    """Unless code names it."""
    before = {*LISTED, "docs/old.md"}
    assert tree.same(["docs/old.md"], before=before) == "AB"

    tree.write("conftest.py", text="OLD = Path('docs/old.md').exists()")

    assert tree.same(["docs/old.md"], before=before) == ""


def test_an_added_file_that_no_test_opens_decides_nothing(tree: Tree) -> None:
    """A fragment of a changelog, a page, a new module."""
    added = [".changelog/+new.fixed.md", "docs/deep/page.md", "src/pkg/later.py"]
    tree.write(*added)

    assert tree.same(added) == "AB"


@pytest.mark.parametrize(
    "text",
    ["FAST = Path('use_fast.flag').exists()", "FAST = find('use_fast', suffixes)"],
)
def test_an_added_file_that_code_names_counts(tree: Tree, text: str) -> None:
    """That it exists can be seen without opening it."""
    tree.write("data/use_fast.flag")
    assert tree.same(["data/use_fast.flag"]) == "AB"

    tree.write("tests/test_a.py", text=text)

    assert tree.same(["data/use_fast.flag"]) == ""


def test_an_added_folder_that_code_names_counts(tree: Tree) -> None:
    """Not its parts below: they are there only with it."""
    tree.write("big_data/part/one.bin", "conftest.py", text="BIG = 'big_data'")

    assert tree.same(["big_data/part/one.bin"]) == ""


def test_a_test_that_lists_a_folder_sees_what_was_added(tree: Tree) -> None:
    """The folder counts from the test that opened it."""
    tree.write("data/c.json")
    tree.use("data", 1, is_folder=True)
    tree.use("src", 0, is_folder=True)

    assert tree.same(["data/c.json"]) == "A"
    assert tree.same(["data/a.json"]) == "AB"  # the names are the same


def test_code_that_lists_folders_as_it_is_imported_counts(tree: Tree) -> None:
    """pytest lists folders as well, to find tests: its own names no function of them."""
    tree.write("data/c.json")
    tree.opened.listed.add(str(tree.root / "data"))
    assert tree.same(["data/c.json"]) == "AB"

    tree.write("tests/test_a.py", text="FILES = sorted(Path('data').glob('*'))")

    assert tree.same(["data/c.json"]) == ""


def test_a_link_that_differs_is_not_seen(tree: Tree) -> None:
    """What it leads to is opened, under another name."""
    (tree.root / "data" / "link").symlink_to("a.json")

    assert tree.same(["data/link"], before={*LISTED, "data/link"}) == ""


def test_files_of_a_submodule_that_differs_count(tree: Tree) -> None:
    """git names the submodule, not its files."""
    tree.write("vendor/lib/mod.py")
    before = {*LISTED, "vendor/lib"}
    assert tree.same(["vendor/lib/"], before=before) == "AB"

    tree.use("vendor/lib/mod.py", 1)

    assert tree.same(["vendor/lib/"], before=before) == "A"


def test_a_test_that_opened_nothing_here_is_not_seen(tree: Tree) -> None:
    """It ran on another host, or in a copy of the tree."""
    del tree.opened.positions[OpenedFile(str(tree.root / "tests/test_a.py"))]

    assert tree.same(["README.md"]) == ""


def test_text_in_a_package_may_be_data(tree: Tree) -> None:
    """What is installed has it; in other folders nothing is made of it."""
    tree.use("src/pkg/_version.py")
    tree.write("src/pkg/prompts/system.md", "docs/page.md")
    assert tree.same(["docs/page.md"]) == "AB"

    assert tree.same(["src/pkg/prompts/system.md"]) == ""


def test_nothing_is_the_same_where_files_are_not_seen(tree: Tree) -> None:
    """Only if nothing differs at all."""
    tree.opened = Watched(None)
    tree.opened.is_known = False

    assert tree.same(["README.md"]) == ""
    assert tree.same([]) == "AB"


def test_files_are_stored_as_they_were_used(tree: Tree) -> None:
    """A later process, with the tree at another place, finds the same tests."""
    tree.write("late.py", "__pycache__/late.cpython-311.pyc")
    tree.use("__pycache__/late.cpython-311.pyc", 1)
    tree.use("data", 1, is_folder=True)
    tree.use("data/a.json", 1)
    tree.use(".git/HEAD")
    tree.opened.root = str(tree.root)
    tree.opened.listed.add(str(tree.root))
    loaded = Loaded(modules=frozenset({("pkg.far", str(tree.root / "far.py"))}))
    used = UsedFiles(opened=tree.opened, modules={}, loaded=loaded, python_path=())

    files = file_list(used, {"A": 0, "B": 1}, "surroundings", {}, {})

    assert files.positions["late.py"] == 1
    assert files.positions["data/"] == 1
    # Its source was not opened, so it was loaded by then.
    assert files.positions["far.py"] == 0
    assert ".git/HEAD" not in files.positions
    assert files.listed == (".",)
    again = OpenedByTest.of_session(files, "/other")
    assert again.is_known
    assert again.positions[OpenedFile("/other/data", is_folder=True)] == 1
    assert again.positions[OpenedFile("/other/data/a.json")] == 1
    assert again.listed == {"/other"}
    assert again.ended == {"A": 0, "B": 1}
