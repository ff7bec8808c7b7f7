"""The files that a process loads and opens, and their digests.

    recording = Recording(folder, root)
    run(argv, env={**os.environ, **recording.variables(os.environ)})
    files = recording.files(argv[1:])

A Python process gets a `sitecustomize` through PYTHONPATH, ahead of every other module,
and so do the Pythons that it starts. Each process writes its files when it ends. For a
killed process, there is only what its program has stored before. The libraries of other
programs are written by glibc's loader.

Only the standard library is used, because this module also runs in a Python that does
not have the package. The exception is the digests, which only the parent computes.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

# "r+" reads the existing content.
_WRITES = os.O_CREAT | os.O_TRUNC | os.O_WRONLY
# Events in which native code opens the file.
_OPENERS = frozenset({"ctypes.dlopen", "sqlite3.connect"})
# ld.so appends the process id.
_LOADER_LOG = "loader"
# In that log, the text before the path of a library.
_LOADED = "calling init: "

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
    """The way in which a process used a file."""

    # The file of a Python module.
    MODULE = "module"
    # Mapped as code.
    LIBRARY = "library"
    # Read, below the root folder.
    OPENED = "opened"
    # A folder on Python's path, which stands for the packages installed in it.
    PACKAGES = "packages"


class LoadedFile(NamedTuple):
    """
    A file that a process has used.

    Attributes:
        path: The path, without links.

        kind: The way in which the file was used.

        name: The name of a module, else "".
    """

    path: str
    kind: FileKind
    name: str = ""


class FileRecorder:
    """
    Records the files that this process loads and opens.

    Args:
        root: Files that are only opened count below this folder. With None, they are
            not recorded, and no audit hook slows down the program.
    """

    def __init__(self, root: str | None) -> None:
        self._root = root and os.path.join(os.path.realpath(root), "")  # noqa: PTH118 - keeps the separator at the end
        self._opened: set[str] = set()
        self._written: set[str] = set()
        self._stored: frozenset[str] = frozenset()

    def start(self) -> None:
        """Start recording. Python cannot remove an audit hook."""
        if self._root:
            sys.addaudithook(self._audit)

    def snapshot(self) -> tuple[LoadedFile, ...]:
        """Return the files used so far, without files written by the process."""
        written = {os.path.realpath(path) for path in self._written}
        packages = [LoadedFile(entry or ".", FileKind.PACKAGES) for entry in sys.path]
        files: dict[str, LoadedFile] = {}
        for file in (*self._read(), *self._mapped(), *_modules(), *packages):
            path = os.path.realpath(file.path)
            is_packages = file.kind is FileKind.PACKAGES
            exists = os.path.isdir(path) if is_packages else os.path.isfile(path)  # noqa: PTH112, PTH113 - a Path for each of thousands takes ten times as long
            if exists and path not in written:
                files[path] = file._replace(path=path)
        return tuple(files.values())

    def store(self, file: Path, argv: Sequence[str] = ()) -> None:
        """
        Write the files used so far for `read`. If that fails, the file is removed.

        Args:
            file: The file to write. It is replaced as a whole.

            argv: The arguments of the process, if it has come to its end.
        """
        record = {"argv": [*argv], "files": self.snapshot()}
        staged = file.with_suffix(".tmp")
        try:
            staged.write_text(json.dumps(record), encoding="ascii")
            staged.replace(file)
        except OSError:
            # The disk is full, or the parent has removed the folder.
            with contextlib.suppress(OSError):
                file.unlink()

    def store_code(self, file: Path) -> None:
        """
        Store the files if code was loaded since the last call, because a snapshot takes 50 ms.
        """
        code = {used.path for used in self._mapped() if used.kind is FileKind.LIBRARY}
        loaded = frozenset(sys.modules) | code
        if loaded != self._stored:
            self.store(file)
            self._stored = loaded

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Handle an audit event. An exception here would be raised by the program's `open`."""
        with contextlib.suppress(OSError, TypeError, ValueError):
            if event == "open":
                path, _, flags = arguments
                writes = (flags or 0) & _WRITES
                self._note(self._written if writes else self._opened, path)
            elif event in _OPENERS:
                self._note(self._opened, arguments[0])
            elif event == "os.rename":
                self._note(self._written, arguments[1])
            elif event == "subprocess.Popen":
                # A compiler opens the files on its command line.
                _, argv, folder, _ = arguments
                for text in [argv] if isinstance(argv, (str, bytes)) else argv:
                    for word in (text, *os.fsdecode(text).split()):
                        self._note(self._opened, word, folder)

    @staticmethod
    def _note(paths: set[str], path: object, folder: Any = None) -> None:  # noqa: ANN401 - what the caller of Popen gave
        # The path may also be a file descriptor.
        if isinstance(path, (str, bytes, os.PathLike)):
            base = os.fsdecode(folder or "")
            paths.add(os.path.abspath(os.path.join(base, os.fsdecode(path))))  # noqa: PTH100, PTH118 - as above

    def _read(self) -> Iterator[LoadedFile]:
        """Yield files opened below the root. Byte code is replaced by the source."""
        for path in tuple(self._opened):
            folder, name = os.path.split(path)
            if os.path.basename(folder) == "__pycache__":  # noqa: PTH119 - as above
                path = f"{folder[: -len('__pycache__')]}{name.partition('.')[0]}.py"  # noqa: PLW2901 - the same file
            if self._root and os.path.realpath(path).startswith(self._root):
                yield LoadedFile(path, FileKind.OPENED)

    def _mapped(self) -> Iterator[LoadedFile]:
        """Yield mapped libraries, and data mapped from below the root. Linux only."""
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
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType):
            # Not getattr, which would load a lazy module.
            path = object.__getattribute__(module, "__dict__").get("__file__")
            if isinstance(path, str):
                yield LoadedFile(path, FileKind.MODULE, name)


def start(folder: str, root: str | None) -> None:
    """
    Record the process, and write the files into a folder at exit.

    Args:
        folder: The folder of a `FileRecording`.

        root: As for `FileRecorder`.
    """
    recorder, pid = FileRecorder(root), os.getpid()
    recorder.start()

    def write() -> None:
        # A forked child has the same argv, but is not the program.
        argv = getattr(sys, "orig_argv", [])[1:] if os.getpid() == pid else []
        name = f"{os.getpid()}-{os.urandom(8).hex()}.json"
        recorder.store(Path(folder, name), argv)

    atexit.register(write)


class FileRecording:
    """
    The files that processes load and open if started with the recording's variables.

    Args:
        folder: A new folder, which is created.

        root: As for `FileRecorder`.

        first: Steps that each process takes before it records. A step is the file of a
            module, and the arguments of that module's `start`.
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
            env: The environment that the variables are added to.

            loader: Whether glibc's loader writes the libraries of every process.
        """
        path = (str(self._folder), env.get("PYTHONPATH", ""))
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, path))}
        # See man ld.so(8).
        if loader:
            log = str(self._folder / _LOADER_LOG)
            variables |= {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": log}
        return variables

    def files(self, *commands: Sequence[str]) -> tuple[LoadedFile, ...] | None:
        """
        Return the files used by all processes that ended by themselves.

        Args:
            commands: The arguments, without the interpreter, by which the program is
                recognized if it is a Python program. Leave them out for other programs.

        Returns:
            The files, or None if the program did not come to its end or was not
            recorded.
        """
        files: set[LoadedFile] = set()
        ended = []
        for argv, used in read(self._folder):
            ended.append(argv)
            files |= used
        if commands and not any(tuple(argv) in ended for argv in commands):
            return None
        for log in self._folder.glob(f"{_LOADER_LOG}.*"):
            for line in log.read_text("utf-8", "surrogateescape").splitlines():
                path = line.partition(_LOADED)[2]
                # The path as the program has given it.
                if path:
                    library = self._root.joinpath(path).resolve()
                    files.add(LoadedFile(str(library), FileKind.LIBRARY))
        return tuple(sorted(files))


def read(folder: Path) -> list[tuple[tuple[str, ...], frozenset[LoadedFile]]]:
    """
    Return the arguments and files of all recorded processes.

    A process that has not come to its end by itself has no arguments.

    Args:
        folder: The folder of a `FileRecording`, possibly of another process.
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


# As fast as larger chunks: 3.4 GB/s on one core.
_CHUNK_BYTES = 1 << 16
# 20 ms. Only libraries and data are that large.
_LARGE_BYTES = 64 << 20
_DISTRIBUTION = (".dist-info", ".egg-info")
# The first file that exists is used.
_RECORDS = ("RECORD", "METADATA", "PKG-INFO")


def digest_of(content: bytes) -> str:
    """Return the BLAKE3 digest of bytes as 64 hexadecimal digits."""
    from blake3 import blake3

    return blake3(content).hexdigest()


def content_digest(path: Path) -> str | None:
    """
    Return the digest of a file's content, or of the distributions in a folder.

    For a file of 64 MiB or more, only size and time of change are digested.

    Returns:
        The digest, or None if the path does not exist or cannot be read.
    """
    try:
        if path.is_dir():
            lines = []
            for name in sorted(os.listdir(path)):  # noqa: PTH208 - only names are needed
                if name.endswith(_DISTRIBUTION):
                    records = (content_digest(path / name / r) for r in _RECORDS)
                    lines.append(f"{name} {next(filter(None, records), None)}")
            return digest_of("\n".join(lines).encode("utf-8", "surrogateescape"))
        # O_NONBLOCK, so that a named pipe does not block.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with io.FileIO(descriptor) as stream:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                return None
            if state.st_size >= _LARGE_BYTES:
                return digest_of(f"{state.st_size} {state.st_mtime_ns}".encode())
            from blake3 import blake3

            # The file is not mapped, because shrinking would kill us. There is a single
            # thread, because a process that forks after using several threads hangs in
            # the next digest.
            digest = blake3()
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
            return digest.hexdigest()
    except OSError:
        return None
