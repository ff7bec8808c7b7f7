"""The files below a folder that any process opens, as the kernel reports them, by test.

    opened = OpenedByTest(OpenedFiles.below("/project"))
    ...  # tests are collected
    opened.begin()
    ...  # a test runs
    opened.end("test_a.py::test_a")

inotify reports what each program opens: Python, a C extension, a child program that has no
environment variables. Nothing runs in the watched processes. A file is reported by its real
path, whatever links lead to it. Not reported: a file that is only looked at (`stat`), what
lies in folders that were made afterwards, and which process opened it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from pytest_gpuperf.collect.checkout import git_folder
from pytest_gpuperf.collect.redirection import inside

__all__ = ["OpenedByTest", "OpenedFile", "OpenedFiles", "environments_in"]

# <sys/inotify.h>; they are those of <fcntl.h> on every architecture
_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_OPEN, _MOVED_FROM, _MOVED_TO, _CREATE = 0x20, 0x40, 0x80, 0x100
_OVERFLOW, _ONLY_FOLDERS, _FOLDER = 0x4000, 0x1000000, 0x40000000
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_READ_BYTES = 1 << 16
_MOST_FOLDERS = 50_000  # 1 s, and 50 MB of the kernel's memory
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR})  # since the folder was listed


class OpenedFile(NamedTuple):
    """
    A file or folder that was opened.

    Attributes:
        path: Its real path; "": the kernel has lost some of what was opened.

        is_folder: Whether it is a folder, whose names may have been read.
    """

    path: str
    is_folder: bool = False


class OpenedFiles:
    """
    Watches the files below a folder; `below` creates it.

    Args:
        descriptor: Of inotify.

        folders: The watched folders by their watches.
    """

    def __init__(self, descriptor: int, folders: dict[int, str]) -> None:
        self._descriptor = descriptor
        self._folders = folders
        self._made: set[str] = set()  # by a watched process, before it was opened
        self._seen: set[str] = set()  # files, never folders
        self._moved: dict[
            int, str
        ] = {}  # files that were made, by the cookie of a move

    @classmethod
    def below(
        cls, root: str, *, without: Callable[[str], bool] = lambda _: False
    ) -> OpenedFiles | None:
        """
        Watch all files below a folder from now on, or return None.

        Args:
            root: A real path.

            without: Returns whether a folder and all below it are left out.

        Returns:
            None where this system cannot: it is not Linux, or has too few watches left.
        """
        if sys.platform != "linux":
            return None
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            descriptor = libc.inotify_init1(_FLAGS)
        except AttributeError:  # a libc without it
            return None
        if descriptor < 0:
            return None
        watched = _watched(libc, descriptor, _folders_of(root, without))
        if watched is None:
            os.close(descriptor)
            return None
        opened = cls(descriptor, watched)
        while opened._read():  # the walk has opened each folder
            pass
        return opened

    def take(self) -> tuple[OpenedFile, ...]:
        """
        Return what was opened since the last call, in order.

        Left out are files that an earlier call has returned, and those that a watched
        process has made before it opened them.
        """
        opened: dict[OpenedFile, None] = {}
        while content := self._read():
            for file in self._opened(content):
                if file.path not in self._seen and file.path not in self._made:
                    opened[file] = None
                    if not file.is_folder:
                        self._seen.add(file.path)
        return tuple(opened)

    def close(self) -> None:
        """Stop watching; `take` must not be called any more."""
        os.close(self._descriptor)

    def _read(self) -> bytes:
        """Return the next events of the kernel; empty: there are none."""
        try:
            return os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return b""

    def _opened(self, content: bytes) -> Iterator[OpenedFile]:
        """Yield what some events report to be opened, and note what was made."""
        place = 0
        while place < len(content):
            watch, mask, cookie, length = _EVENT.unpack_from(content, place)
            begin = place + _EVENT.size
            name = content[begin : begin + length].rstrip(b"\0")
            place = begin + length
            if mask & _OVERFLOW:
                yield OpenedFile("")
                continue
            folder = self._folders.get(watch)
            if folder is None:
                continue
            path = f"{folder}/{os.fsdecode(name)}" if name else folder
            if mask & _OPEN:
                yield OpenedFile(path, bool(mask & _FOLDER))
            elif not mask & _FOLDER:
                self._note_made(path, mask, cookie)

    def _note_made(self, path: str, mask: int, cookie: int) -> None:
        """Note a file that was made; one that is another file's link was not."""
        if mask & _MOVED_FROM and path in self._made:
            self._moved[cookie] = path
        is_made = mask & _CREATE or (mask & _MOVED_TO and cookie in self._moved)
        if is_made and path not in self._seen and _is_single(path):
            self._made.add(path)


class OpenedByTest:
    """
    What was opened by the end of each test.

    Args:
        files: The watch; None: nothing is known of what tests open.

        root: The folder that it watches, a real path.

    Attributes:
        root: That folder.

        positions: By file or folder, how many tests had ended before it was opened.

        listed: The folders that were opened before the first test began, as pytest opens
            each folder in which it looks for tests.

        ended: How many tests had ended before each test, by its node id.
    """

    def __init__(self, files: OpenedFiles | None, root: str = "") -> None:
        self.root = root
        self._files = files
        self._has_begun = False
        self._ended_count = 0
        self.positions: dict[OpenedFile, int] = {}
        self.listed: set[str] = set()
        self.ended: dict[str, int] = {}

    @classmethod
    def of_project(cls, folder: str, *, known: Iterable[str] = ()) -> OpenedByTest:
        """
        Watch the repository of a folder, if nothing of it was loaded yet.

        Environments of Python in its tree are left out.

        Args:
            folder: A folder of it.

            known: Files that were opened already.
        """
        root = git_folder(folder)
        if root is None or sys.pycache_prefix is not None or _has_loaded(str(root)):
            return cls(None)
        files = OpenedFiles.below(str(root), without=_is_left_out)
        opened = cls(files, str(root))
        paths = map(os.path.realpath, known)
        opened.positions.update(dict.fromkeys(map(OpenedFile, paths), 0))
        return opened

    def begin(self) -> None:
        """Note that a test begins."""
        if not self._has_begun:
            self._has_begun = True
            self._take(before=True)

    def end(self, node_id: str) -> None:
        """Note that a test has ended; one that runs again counts from its last end."""
        self._take(self._ended_count)
        self.ended[node_id] = self._ended_count
        self._ended_count += 1

    def close(self) -> None:
        """Stop watching."""
        if self._files is not None:
            self._files.close()
            self._files = None

    @property
    def is_known(self) -> bool:
        """Whether all that tests open is seen."""
        return self._files is not None and OpenedFile("") not in self.positions

    def _take(self, position: int = 0, *, before: bool = False) -> None:
        """Take what was opened since the last time."""
        for file in () if self._files is None else self._files.take():
            if before and file.is_folder:
                self.listed.add(file.path)
            else:
                self.positions.setdefault(file, position)


def _watched(
    libc: ctypes.CDLL, descriptor: int, folders: Iterable[str]
) -> dict[int, str] | None:
    """Watch some folders and return them by their watches; None: there are too many."""
    watched: dict[int, str] = {}
    mask = _OPEN | _MOVED_FROM | _MOVED_TO | _CREATE | _ONLY_FOLDERS
    for folder in folders:
        watch = libc.inotify_add_watch(descriptor, os.fsencode(folder), mask)
        is_refused = watch < 0 and ctypes.get_errno() not in _GONE
        if is_refused or len(watched) == _MOST_FOLDERS:
            return None
        if watch >= 0:
            watched[watch] = folder
    return watched


def environments_in(root: str) -> tuple[str, ...]:
    """Return the folders of this Python that lie in a tree; a tree may lie in one, too."""
    folders = {os.path.realpath(folder) for folder in (sys.prefix, sys.base_prefix)}
    return tuple(f for f in sorted(folders) if inside(f, root) and f != root)


def _has_loaded(root: str) -> bool:
    """Return whether this process has loaded a module of a tree."""
    environments = environments_in(root)
    paths = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
    real = (os.path.realpath(path) for path in paths if isinstance(path, str))
    return any(inside(path, root) and not inside(path, *environments) for path in real)


def _is_left_out(folder: str) -> bool:
    """Return whether a folder is git's own, or an environment of Python."""
    is_environment = os.path.isfile(f"{folder}/pyvenv.cfg")  # noqa: PTH113 - a Path for each folder costs
    return folder.endswith("/.git") or is_environment


def _is_single(path: str) -> bool:
    """Return whether a file has no other name."""
    try:
        return os.lstat(path).st_nlink == 1
    except OSError:  # removed again
        return True


def _folders_of(root: str, without: Callable[[str], bool]) -> Iterator[str]:
    """Yield a folder with all below it; links are not followed."""
    for folder, names, _ in os.walk(root):
        names[:] = [name for name in names if not without(f"{folder}/{name}")]
        yield folder
