"""The files below a folder that any process opens, as the kernel reports them, by test.

    opened = OpenedByTest(OpenedFiles.below("/project"))
    ...  # tests are collected
    opened.begin()
    ...  # a test runs
    opened.end("test_a.py::test_a")

inotify reports the files that every program opens: Python, a C extension, or a child
process without environment variables. Nothing runs in the watched processes. A file is
reported by its real path, regardless of links. Not reported are files that are only
inspected (`stat`), files in folders that were created after the start, and the process
that opened a file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuperf.collect.checkout import git_folder
from pytest_gpuperf.collect.redirection import inside

if TYPE_CHECKING:
    from pytest_gpuperf.model.record import FileList

# <sys/inotify.h>. The values equal those of <fcntl.h> on every architecture.
_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_OPEN, _MOVED_FROM, _MOVED_TO, _CREATE = 0x20, 0x40, 0x80, 0x100
_OVERFLOW, _ONLY_FOLDERS, _FOLDER = 0x4000, 0x1000000, 0x40000000
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_READ_BYTES = 1 << 16
# Takes 1 s, and 50 MB of the kernel's memory.
_MOST_FOLDERS = 50_000
# The folder was removed after it was listed.
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR})


class OpenedFile(NamedTuple):
    """
    A file or folder that was opened.

    Attributes:
        path: The real path, or "" if the kernel has lost events.

        is_folder: Whether the path is a folder, whose names may have been read.
    """

    path: str
    is_folder: bool = False


class OpenedFiles:
    """
    Watches the files below a folder. Create it with `below`.

    Args:
        descriptor: The descriptor of inotify.

        folders: The watched folders by watch number.

        names: The names in each folder, as one text with a zero byte after each.
    """

    def __init__(
        self, descriptor: int, folders: dict[int, str], names: dict[str, str]
    ) -> None:
        self._descriptor = descriptor
        self._folders = folders
        self._names = names
        # Files that a watched process created before they were opened.
        self._made: set[str] = set()
        # Files that `take` has returned, never folders.
        self._seen: set[str] = set()
        # Created files that are being moved, by the cookie of the move.
        self._moved: dict[int, str] = {}

    @classmethod
    def below(
        cls, root: str, *, without: Callable[[str], bool] = lambda _: False
    ) -> OpenedFiles | None:
        """
        Watch all files below a folder from now on, or return None.

        Args:
            root: A real path.

            without: Returns True for a folder that is left out, with everything below
                it.

        Returns:
            The watch, or None if the system is not Linux or has too few watches left.
        """
        if sys.platform != "linux":
            return None
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            descriptor = libc.inotify_init1(_FLAGS)
        except AttributeError:
            # The libc has no inotify.
            return None
        if descriptor < 0:
            return None
        watched: dict[int, str] = {}
        texts: dict[str, str] = {}
        mask = _OPEN | _MOVED_FROM | _MOVED_TO | _CREATE | _ONLY_FOLDERS
        for folder, names, files in os.walk(root):
            texts[folder] = "\0".join((*names, *files))
            names[:] = [name for name in names if not without(f"{folder}/{name}")]
            watch = libc.inotify_add_watch(descriptor, os.fsencode(folder), mask)
            is_refused = watch < 0 and ctypes.get_errno() not in _GONE
            if is_refused or len(watched) == _MOST_FOLDERS:
                os.close(descriptor)
                return None
            if watch >= 0:
                watched[watch] = folder
        opened = cls(descriptor, watched, texts)
        # The walk has opened each folder.
        while opened._read():
            pass
        return opened

    def take(self) -> tuple[OpenedFile, ...]:
        """
        Return the files and folders opened since the last call, in order.

        Files that an earlier call has returned are left out, and files that a watched
        process created before they were opened.
        """
        opened: dict[OpenedFile, None] = {}
        while content := self._read():
            for file in self._opened(content):
                if file.path not in self._seen and file.path not in self._made:
                    opened[file] = None
                    if not file.is_folder:
                        self._seen.add(file.path)
        return tuple(opened)

    def names_in(self, folder: str) -> frozenset[str]:
        """Return the names that a watched folder had when the watch began."""
        return frozenset(filter(None, self._names.get(folder, "").split("\0")))

    def close(self) -> None:
        """Stop watching. `take` must not be called any more."""
        os.close(self._descriptor)

    def _read(self) -> bytes:
        try:
            return os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return b""

    def _opened(self, content: bytes) -> Iterator[OpenedFile]:
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
                if mask & _MOVED_FROM and path in self._made:
                    self._moved[cookie] = path
                is_made = mask & _CREATE or (mask & _MOVED_TO and cookie in self._moved)
                # A new link to an existing file does not count.
                if is_made and path not in self._seen and _is_single(path):
                    self._made.add(path)


class OpenedByTest:
    """
    The files that were opened by the end of each test.

    Args:
        files: The watch, or None if opened files are unknown.

        root: The watched folder, a real path.

    Attributes:
        root: The watched folder.

        positions: The number of tests that had ended before a file or folder was
            opened.

        listed: The folders that were opened before the first test began, because pytest
            opens each folder in which it looks for tests.

        ended: The number of tests that had ended before each test, by node id.
    """

    def __init__(self, files: OpenedFiles | None, root: str = "") -> None:
        self.root = root
        self._files = files
        self._is_stored = False
        self._has_begun = False
        self._ended_count = 0
        self.positions: dict[OpenedFile, int] = {}
        self.listed: set[str] = set()
        self.ended: dict[str, int] = {}

    @classmethod
    def of_project(cls, folder: str, *, known: Iterable[str] = ()) -> OpenedByTest:
        """
        Watch the repository of a folder, unless a module from there is already loaded.

        Python environments in the tree are left out.

        Args:
            folder: A folder of the repository.

            known: Files that were already opened.
        """
        root = git_folder(folder)
        if root is None or sys.pycache_prefix is not None:
            return cls(None)
        tree = str(root)
        environments = environments_in(tree)
        for module in [*sys.modules.values()]:
            path = getattr(module, "__file__", None)
            real = os.path.realpath(path) if isinstance(path, str) else ""
            if inside(real, tree) and not inside(real, *environments):
                return cls(None)
        files = OpenedFiles.below(
            tree,
            without=lambda folder: (
                folder.endswith("/.git") or os.path.isfile(f"{folder}/pyvenv.cfg")  # noqa: PTH113 - a Path for each folder costs
            ),
        )
        opened = cls(files, tree)
        paths = map(os.path.realpath, known)
        opened.positions.update(dict.fromkeys(map(OpenedFile, paths), 0))
        return opened

    @classmethod
    def of_session(cls, files: FileList, root: str) -> OpenedByTest:
        """
        Return the files that a stored session has opened, with keys for node ids.

        Args:
            files: The files.

            root: The root of the repository now, a real path.
        """
        opened = cls(None, root)
        opened._is_stored = True
        for path, position in files.positions.items():
            file = OpenedFile(_below(root, path), path.endswith("/"))
            opened.positions[file] = position
        opened.listed = {_below(root, path) for path in files.listed}
        opened.ended = dict(files.ended)
        return opened

    def begin(self) -> None:
        """Record that a test begins."""
        if not self._has_begun:
            self._has_begun = True
            self._take(before=True)

    def end(self, node_id: str) -> None:
        """Record that a test has ended. For a test that runs again, the last end counts."""
        self._take(self._ended_count)
        self.ended[node_id] = self._ended_count
        self._ended_count += 1

    def close(self) -> None:
        """Stop watching."""
        if self._files is not None:
            self._files.close()
            self._files = None

    def names_in(self, folder: str) -> frozenset[str]:
        """Return the names that an opened folder had when the watch began."""
        return frozenset() if self._files is None else self._files.names_in(folder)

    @property
    def folders(self) -> frozenset[str]:
        """The opened folders, whose names may have been read."""
        return frozenset({f.path for f in self.positions if f.is_folder} | self.listed)

    @property
    def is_known(self) -> bool:
        """True if all files that tests open are seen."""
        is_watched = self._is_stored or self._files is not None
        return is_watched and OpenedFile("") not in self.positions

    def _take(self, position: int = 0, *, before: bool = False) -> None:
        for file in () if self._files is None else self._files.take():
            if before and file.is_folder:
                self.listed.add(file.path)
            else:
                self.positions.setdefault(file, position)


def _below(root: str, path: str) -> str:
    return os.path.normpath(f"{root}/{path}")


def environments_in(root: str) -> tuple[str, ...]:
    """
    Return the folders of the running Python below a tree, without one around the tree.
    """
    folders = {os.path.realpath(folder) for folder in (sys.prefix, sys.base_prefix)}
    return tuple(f for f in sorted(folders) if inside(f, root) and f != root)


def _is_single(path: str) -> bool:
    try:
        return os.lstat(path).st_nlink == 1
    except OSError:
        # The file was removed again.
        return True
