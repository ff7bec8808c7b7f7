"""The files that a process loads and opens, and their digests.

    recording = Recording(folder, root)
    run(argv, env={**os.environ, **recording.variables(os.environ)})
    files = recording.files(argv[1:])

A Python process gets a `sitecustomize` through PYTHONPATH, ahead of every other module, and
so do the Pythons that it starts. Each writes its files at its end; of a process that is
killed there is what its program has stored meanwhile. Of other programs glibc's loader
writes which libraries it loads.

Standard library only, except for the digests, which only the parent makes: this module also
runs in a Python that does not have the package.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

__all__ = [
    "FileKind",
    "FileRecorder",
    "FileRecording",
    "LoadedFile",
    "content_digest",
    "digest_of",
    "read",
    "start",
]

_WRITES = os.O_CREAT | os.O_TRUNC | os.O_WRONLY  # "r+" reads what was there
_OPENERS = frozenset({"ctypes.dlopen", "sqlite3.connect"})  # native code opens the file
_LOADER_LOG = "loader"  # ld.so appends the process id
_LOADED = "calling init: "  # in that log, before the path of a library

_SITECUSTOMIZE = """\
import importlib.util
import sys

own = ({folder!r}, __file__.rpartition("/")[0])  # it may have been copied
sys.path[:] = [entry for entry in sys.path if entry not in own]
for file, arguments in {steps!r}:
    spec = importlib.util.spec_from_file_location("gpuperf_step", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.start(*arguments)
this = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # the environment's own
except ImportError as error:
    if error.name != "sitecustomize":
        raise
sys.modules.setdefault("sitecustomize", this)
"""


class FileKind(str, Enum):
    """How a process used a file."""

    MODULE = "module"  # the file of a Python module
    LIBRARY = "library"  # mapped as code
    OPENED = "opened"  # read, below the root folder
    PACKAGES = "packages"  # a folder on Python's path: what is installed there


class LoadedFile(NamedTuple):
    """
    A file that a process has used.

    Attributes:
        path: Where it is, without links.

        kind: How it was used.

        name: Of a module its name, else "".
    """

    path: str
    kind: FileKind
    name: str = ""


class FileRecorder:
    """
    Records which files this process loads and opens.

    Args:
        root: Files that are only opened count below this folder; None: they are not
            recorded, and the program is not slowed down by an audit hook.
    """

    def __init__(self, root: str | None) -> None:
        self._root = root and os.path.join(os.path.realpath(root), "")  # noqa: PTH118 - keeps the separator at the end
        self._opened: set[str] = set()
        self._written: set[str] = set()
        self._stored: frozenset[str] = frozenset()

    def start(self) -> None:
        """Record from now on; Python cannot take an audit hook back."""
        if self._root:
            sys.addaudithook(self._audit)

    def snapshot(self) -> tuple[LoadedFile, ...]:
        """Return the files used so far, without those that this process has written."""
        written = {os.path.realpath(path) for path in self._written}
        files: dict[str, LoadedFile] = {}
        for file in (*self._read(), *self._mapped(), *_modules(), *_packages()):
            path = os.path.realpath(file.path)
            is_packages = file.kind is FileKind.PACKAGES
            exists = os.path.isdir(path) if is_packages else os.path.isfile(path)  # noqa: PTH112, PTH113 - a Path for each of thousands takes ten times as long
            if exists and path not in written:
                files[path] = file._replace(path=path)
        return tuple(files.values())

    def store(self, file: Path, argv: Sequence[str] = ()) -> None:
        """
        Write the files used so far for `read`; where that fails, there is no such file.

        Args:
            file: The file to write; it is replaced as a whole.

            argv: This process's arguments, where it has come to its end.
        """
        record = {"argv": [*argv], "files": self.snapshot()}
        staged = file.with_suffix(".tmp")
        try:
            staged.write_text(json.dumps(record), encoding="ascii")
            staged.replace(file)
        except OSError:  # the disk is full, or the parent has removed the folder
            with contextlib.suppress(OSError):
                file.unlink()

    def store_code(self, file: Path) -> None:
        """Do so if other code was loaded since the last time: a snapshot takes 50 ms."""
        code = {used.path for used in self._mapped() if used.kind is FileKind.LIBRARY}
        loaded = frozenset(sys.modules) | code
        if loaded != self._stored:
            self.store(file)
            self._stored = loaded

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take an audit event; an exception here would be one of the program's `open`."""
        with contextlib.suppress(OSError, TypeError, ValueError):
            if event == "open":
                path, _, flags = arguments
                writes = (flags or 0) & _WRITES
                self._note(self._written if writes else self._opened, path)
            elif event in _OPENERS:
                self._note(self._opened, arguments[0])
            elif event == "os.rename":
                self._note(self._written, arguments[1])
            elif event == "subprocess.Popen":  # a compiler opens what it is given
                _, argv, folder, _ = arguments
                for text in [argv] if isinstance(argv, (str, bytes)) else argv:
                    for word in (text, *os.fsdecode(text).split()):
                        self._note(self._opened, word, folder)

    @staticmethod
    def _note(paths: set[str], path: object, folder: Any = None) -> None:  # noqa: ANN401 - what the caller of Popen gave
        if isinstance(path, (str, bytes, os.PathLike)):  # not a file descriptor
            base = os.fsdecode(folder or "")
            paths.add(os.path.abspath(os.path.join(base, os.fsdecode(path))))  # noqa: PTH100, PTH118 - as above

    def _read(self) -> Iterator[LoadedFile]:
        """Yield what was opened below the root; for byte code its source."""
        for path in tuple(self._opened):
            folder, name = os.path.split(path)
            if os.path.basename(folder) == "__pycache__":  # noqa: PTH119 - as above
                path = f"{folder[: -len('__pycache__')]}{name.partition('.')[0]}.py"  # noqa: PLW2901 - the same file
            if self._root and os.path.realpath(path).startswith(self._root):
                yield LoadedFile(path, FileKind.OPENED)

    def _mapped(self) -> Iterator[LoadedFile]:
        """Yield mapped libraries, and data mapped from below the root; Linux only."""
        try:
            maps = Path("/proc/self/maps").read_text("utf-8", "surrogateescape")
        except OSError:
            return
        rows = [line.split(None, 5) for line in maps.splitlines()]
        mapped = [(row[5].replace(" (deleted)", ""), row[1]) for row in rows if row[5:]]
        code = {path for path, permissions in mapped if "x" in permissions}
        for path in {path for path, _ in mapped}:
            if path in code:
                yield LoadedFile(path, FileKind.LIBRARY)
            elif self._root and path.startswith(self._root):
                yield LoadedFile(path, FileKind.OPENED)


def _modules() -> Iterator[LoadedFile]:
    """Yield the files of the loaded modules."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType):
            # not getattr: it would load a lazy module
            path = object.__getattribute__(module, "__dict__").get("__file__")
            if isinstance(path, str):
                yield LoadedFile(path, FileKind.MODULE, name)


def _packages() -> Iterator[LoadedFile]:
    """Yield the folders on Python's path."""
    return (LoadedFile(entry or ".", FileKind.PACKAGES) for entry in sys.path)


def start(folder: str, root: str | None) -> None:
    """
    Record this process, and write what it used at its end into a folder.

    Args:
        folder: Of a `FileRecording`.

        root: As for `FileRecorder`.
    """
    recorder, pid = FileRecorder(root), os.getpid()
    recorder.start()

    def write() -> None:
        # a forked child has the same argv and is not the program
        argv = getattr(sys, "orig_argv", [])[1:] if os.getpid() == pid else []
        name = f"{os.getpid()}-{os.urandom(8).hex()}.json"
        recorder.store(Path(folder, name), argv)

    atexit.register(write)


class FileRecording:
    """
    What the processes load and open that are started with its variables.

    Args:
        folder: A folder of its own, which is made.

        root: As for `FileRecorder`.

        first: What each process does before it records: the file of a module, and the
            arguments of that module's `start`.
    """

    def __init__(
        self,
        folder: Path,
        root: Path | None,
        *,
        first: Sequence[tuple[str, tuple[object, ...]]] = (),
    ) -> None:
        self._folder, self._root = folder, root or folder
        folder.mkdir(parents=True)
        record = (__file__, (str(folder), root and str(root)))
        text = _SITECUSTOMIZE.format(folder=str(folder), steps=[*first, record])
        (folder / "sitecustomize.py").write_text(text, encoding="utf-8")

    def variables(
        self, env: Mapping[str, str], *, loader: bool = False
    ) -> dict[str, str]:
        """
        Return the environment variables that switch recording on.

        Args:
            env: The environment they are added to.

            loader: Whether glibc's loader writes the libraries of every process.
        """
        path = (str(self._folder), env.get("PYTHONPATH", ""))
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, path))}
        if loader:  # man ld.so(8)
            log = str(self._folder / _LOADER_LOG)
            variables |= {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": log}
        return variables

    def files(self, *commands: Sequence[str]) -> tuple[LoadedFile, ...] | None:
        """
        Return what all processes used that have ended by themselves.

        Args:
            commands: The arguments, without the interpreter, by which the program is
                recognized, where it is a Python program; none: it is another one.

        Returns:
            None where that program did not come to its end or was not recorded.
        """
        files: set[LoadedFile] = set()
        ended = []
        for argv, used in read(self._folder):
            ended.append(argv)
            files |= used
        if commands and not any(tuple(argv) in ended for argv in commands):
            return None
        return tuple(sorted(files.union(self._libraries())))

    def _libraries(self) -> Iterable[LoadedFile]:
        """Return the libraries in the loader's logs."""
        for log in self._folder.glob(f"{_LOADER_LOG}.*"):
            for line in log.read_text("utf-8", "surrogateescape").splitlines():
                path = line.partition(_LOADED)[2]
                if path:  # as the program has named it
                    library = self._root.joinpath(path).resolve()
                    yield LoadedFile(str(library), FileKind.LIBRARY)


def read(folder: Path) -> list[tuple[tuple[str, ...], frozenset[LoadedFile]]]:
    """
    Return what was written of each process: its arguments and its files.

    A process that has not come to its end by itself has no arguments.

    Args:
        folder: Of a `FileRecording`, also one of another process.
    """
    recording = folder.resolve()
    records = [json.loads(file.read_bytes()) for file in sorted(folder.glob("*.json"))]
    return [
        (
            tuple(record["argv"]),
            frozenset(
                LoadedFile(path, FileKind(kind), name)
                for path, kind, name in record["files"]
                if Path(path).parent != recording
            ),
        )
        for record in records
    ]


_CHUNK_BYTES = 1 << 16  # as fast as larger ones: 3.4 GB/s on one core
_LARGE_BYTES = 64 << 20  # 20 ms; only libraries and data are as large
_DISTRIBUTION = (".dist-info", ".egg-info")
_RECORDS = ("RECORD", "METADATA", "PKG-INFO")  # the first one that exists


def digest_of(content: bytes) -> str:
    """Return the BLAKE3 digest of bytes as 64 hexadecimal digits."""
    from blake3 import blake3

    return blake3(content).hexdigest()


def content_digest(path: Path) -> str | None:
    """
    Return the digest of a file's content, or of the distributions that a folder holds.

    Of a file of 64 MiB or more it is that of its size and time of change.

    Returns:
        None where there is nothing, or nothing that can be read.
    """
    try:
        if path.is_dir():
            return _distributions_digest(path)
        # O_NONBLOCK: a named pipe is not waited for
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with io.FileIO(descriptor) as stream:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                return None
            if state.st_size >= _LARGE_BYTES:
                return digest_of(f"{state.st_size} {state.st_mtime_ns}".encode())
            return _stream_digest(stream)
    except OSError:
        return None


def _stream_digest(stream: io.FileIO) -> str:
    """Return the digest of a file; it is not mapped: one that shrinks would kill us."""
    from blake3 import blake3

    # one thread: a process that forks after more of them hangs in the next digest
    digest = blake3()
    while chunk := stream.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def _distributions_digest(folder: Path) -> str:
    """Return the digest of the lists of files, which hold the files' digests."""
    lines = []
    for name in sorted(os.listdir(folder)):  # noqa: PTH208 - only names are needed
        if name.endswith(_DISTRIBUTION):
            records = (content_digest(folder / name / record) for record in _RECORDS)
            lines.append(f"{name} {next(filter(None, records), None)}")
    return digest_of("\n".join(lines).encode("utf-8", "surrogateescape"))
