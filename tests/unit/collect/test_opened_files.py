"""collect.opened_files: what any process opens below a folder, test by test."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_gpuperf.collect.opened_files import OpenedByTest, OpenedFile, OpenedFiles

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has inotify"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with some files."""
    root = Path(os.path.realpath(tmp_path), "project")
    (root / "data").mkdir(parents=True)
    (root / "data" / "in.txt").write_text("1")
    (root / "mod.py").write_text("import sys\n")
    return root


@pytest.fixture
def watch(tree: Path) -> Iterator[OpenedFiles]:
    """A watch of it."""
    opened = OpenedFiles.below(str(tree))
    assert opened is not None
    yield opened
    opened.close()


def by_descriptor(path: Path) -> None:
    os.close(os.open(path, os.O_RDONLY))


def by_mapping(path: Path) -> None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        pass


def by_thread(path: Path) -> None:
    thread = threading.Thread(target=path.read_text)
    thread.start()
    thread.join()


def by_program(path: Path) -> None:
    subprocess.run(["/bin/cat", path], env={}, check=True, capture_output=True)


def by_link(path: Path) -> None:
    link = path.parents[2] / "link"
    link.symlink_to(path)
    link.read_text()


@pytest.mark.parametrize(
    "read", [Path.read_text, by_descriptor, by_mapping, by_thread, by_program, by_link]
)
def test_whoever_opens_a_file_is_seen(
    tree: Path, watch: OpenedFiles, read: Callable[[Path], object]
) -> None:
    """Python, a mapping, a thread, and a program without environment variables."""
    file = tree / "data" / "in.txt"

    read(file)

    assert OpenedFile(str(file)) in watch.take()
    file.read_text()
    assert OpenedFile(str(file)) not in watch.take()  # once is enough


def test_a_listed_folder_is_seen_each_time(tree: Path, watch: OpenedFiles) -> None:
    """What pytest has listed before the tests, a test may list as well."""
    listed = OpenedFile(str(tree / "data"), is_folder=True)
    for _ in range(2):
        list((tree / "data").iterdir())

        assert watch.take() == (listed,)


def test_what_a_process_has_made_is_no_input(tree: Path, watch: OpenedFiles) -> None:
    """A report that is written beside its place and moved there, and read again."""
    (tree / "data" / "new.tmp").write_text("2")
    (tree / "data" / "new.tmp").rename(tree / "data" / "out.txt")
    (tree / "data" / "out.txt").read_text()

    assert watch.take() == ()


def test_another_name_of_an_input_is_an_input(tree: Path, watch: OpenedFiles) -> None:
    """A file that is moved or linked was not made."""
    (tree / "data" / "hard.txt").hardlink_to(tree / "data" / "in.txt")
    (tree / "data" / "hard.txt").read_text()
    (tree / "data" / "in.txt").rename(tree / "data" / "moved.txt")
    (tree / "data" / "moved.txt").read_text()

    names = [Path(file.path).name for file in watch.take()]
    assert names == ["hard.txt", "moved.txt"]


def test_what_the_kernel_has_lost_is_not_known(tree: Path) -> None:
    """Then nothing says which files a test has opened."""
    opened = OpenedByTest(OpenedFiles.below(str(tree)))
    opened.begin()
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(limit // 2 + 1):  # two that alternate are not one event
        by_descriptor(tree / "mod.py")
        by_descriptor(tree / "data" / "in.txt")
        if number > 50_000:
            pytest.skip("the queue of this system is long")
    known = [opened.is_known]

    opened.end("t.py::a")

    assert [*known, opened.is_known] == [True, False]
    opened.close()


def test_a_file_counts_from_the_test_that_opened_it(tree: Path) -> None:
    """Not for tests that had ended before; folders count only where a test opens them."""
    opened = OpenedByTest(OpenedFiles.below(str(tree)))
    (tree / "mod.py").read_text()
    list(tree.iterdir())
    opened.begin()
    opened.end("t.py::a")
    (tree / "data" / "in.txt").read_text()
    opened.begin()
    opened.end("t.py::b")

    assert opened.ended == {"t.py::a": 0, "t.py::b": 1}
    assert opened.listed == {str(tree)}
    assert opened.positions == {
        OpenedFile(str(tree / "mod.py")): 0,
        OpenedFile(str(tree / "data" / "in.txt")): 1,
    }
    opened.close()


def test_environments_and_git_are_left_out(tree: Path) -> None:
    """Both may be large, and are no files of a test."""
    for name in (".git", "venv"):
        (tree / name).mkdir()
        (tree / name / "pyvenv.cfg").write_text("")
    opened = OpenedByTest.of_project(str(tree / "data"), known=[str(tree / "x.ini")])
    for name in (".git", "venv"):
        (tree / name / "pyvenv.cfg").read_text()
    (tree / "mod.py").read_text()
    opened.begin()

    assert [*map(tuple, opened.positions)] == [
        (str(tree / "x.ini"), False),
        (str(tree / "mod.py"), False),
    ]
    opened.close()


def test_a_project_whose_code_ran_before_is_not_known(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a plugin of the project has read at its import was not seen."""
    (tree / ".git").mkdir()
    module = type(sys)("early")
    module.__file__ = str(tree / "mod.py")
    monkeypatch.setitem(sys.modules, "early", module)

    assert not OpenedByTest.of_project(str(tree)).is_known
