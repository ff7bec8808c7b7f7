"""The cache of Nsight Compute's reports, valid while nothing they depend on changes."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

from pytest_gpuperf.collect.loaded_files import FileRecording, content_digest
from pytest_gpuperf.collect.ncu.store import (
    LIMIT_BYTES,
    MAX_AGE_S,
    PASSED_OVER,
    EntryContent,
    EntryStore,
    FileSets,
    chosen_environment,
    device_fields,
    key_of,
)
from pytest_gpuperf.collect.runner import ProcessRunner, Runner
from pytest_gpuperf.collect.scratch import ScratchFolder
from pytest_gpuperf.disk import write_whole
from pytest_gpuperf.errors import CollectError, CollectorUnavailableError
from pytest_gpuperf.model.frozen import Frozen, replace

if TYPE_CHECKING:
    from pytest_gpuperf.collect.clock import Clock
    from pytest_gpuperf.collect.ncu.command import Command
    from pytest_gpuperf.collect.ncu.session import Session
    from pytest_gpuperf.model.environment import Device

_REPORT, _LOG, _VALUES = "report.ncu-rep", "ncu.log", "values.json"
_COMPRESSED = f"{_REPORT}z"  # as ncu 2026.3 writes it
_VERSION_TIMEOUT_S = 30.0
# Extra wait for another process, beyond the timeout of its ncu.
_GRACE_S = 600.0
# Bytes that Linux reads of a line after "#!" (BINPRM_BUF_SIZE).
_SCRIPT_START = 256


class Entry(Frozen, frozen=True, kw_only=True):
    """
    A report in the cache.

    Attributes:
        cached: Whether it was in the cache before.

        digest: Its key.

        timestamp: Its creation time, in UTC.

        directory: The folder that holds `report.ncu-rep` and `ncu.log`, or
            `values.json`. It may be removed when others need the room.
    """

    cached: bool
    digest: str
    timestamp: datetime
    directory: Path


@final
class Cache:
    """
    Reports, made once for each state of program, options and machine.

    A report cannot be rewritten: it may hold paths, command lines and, with
    `--import-source`, source files. It is readable by its owner only. With
    `reports=False` only its values are kept.

        with Cache() as cache:
            entry = cache.run(command)

    Args:
        directory: The cache folder, or None for $GPUPERF_CACHE_DIR, else the user's
            cache folder.

        reports: Whether to keep the report and the log. False keeps only the values in
            the report, as JSON.

        session: Makes the session of a command, or None for a `Session` with its
            defaults.

        runner: Starts other processes.

        device: The GPU, or None if unknown. Then only the variables that choose a GPU
            are part of the key.

        timeout_s: Timeout of waiting for another process that makes the same report
            [s], or None for the timeout of all its attempts plus ten minutes.

        limit_bytes, max_age_s, clock: As for `EntryStore`.

    Attributes:
        remarks: Problems of the cache and limits of its keys, one sentence each.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        reports: bool = True,
        session: Callable[[Command], Session] | None = None,
        runner: Runner | None = None,
        device: Device | None = None,
        timeout_s: float | None = None,
        limit_bytes: int = LIMIT_BYTES,
        max_age_s: float = MAX_AGE_S,
        clock: Clock | None = None,
    ) -> None:
        self._store = EntryStore(
            None if directory is None else Path(directory),
            limit_bytes=limit_bytes,
            max_age_s=max_age_s,
            clock=clock,
        )
        self._reports = reports
        self._session = session
        self._runner = runner or ProcessRunner()
        self._device = device
        self._timeout_s = timeout_s
        self.remarks = self._store.remarks

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the entries that exceed the cache's limits."""
        if self._store.folder.is_dir():
            self._store.make_room()

    def get(
        self,
        command: Command,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        retries: int = 1,
    ) -> Entry:
        """
        Return the report of a command, and make a missing report in one process at a
        time.

        Args:
            command: The command. The path of its output is not part of the key.

            cwd: As for `Session.run`.

            env: As for `Session.run`.

            retries: As for `Session.run`.

        Raises:
            CollectError: The command failed, as described in `Session.run`, and nothing
                is kept. Or the cache cannot be written, and ncu's report is at the
                output of the command.
        """
        return self._got(command, cwd, env, retries)[0]

    def run(
        self,
        command: Command,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        retries: int = 1,
    ) -> Entry:
        """
        Return the report of a command like `get`, and write the report to the command's
        output.

        Report and log are then at `command.report` and `command.log`. With
        `reports=False` the values are next to them, at the output's name and
        `.values.json`.
        """
        entry, files = self._got(command, cwd, env, retries)
        # Otherwise ncu has just written them there.
        if entry.cached or not self._reports:
            values = Path(f"{os.fspath(command.output)}.values.json")
            compressed = Path(f"{command.report}z")
            places = {_REPORT: command.report, _LOG: command.log, _VALUES: values}
            places[_COMPRESSED] = compressed
            for name, content in files.items():
                path = Path(cwd or "") / places[name]
                other = {_REPORT: _COMPRESSED, _COMPRESSED: _REPORT}.get(name, name)
                try:
                    if other != name:
                        # An older report of the other form would be read.
                        Path(cwd or "", places[other]).unlink(missing_ok=True)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_whole(path, content, sync=False)
                except OSError as error:
                    message = f"{path}: it cannot be written ({error.strerror})"
                    raise CollectError(message, remedy="give another output") from error
        return entry

    def _got(
        self,
        command: Command,
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        retries: int,
    ) -> tuple[Entry, Mapping[str, bytes]]:
        whole = {**(os.environ if env is None else env), **(command.env or {})}
        folder = Path(cwd or "").resolve()
        version = self._runner.run(
            (os.fspath(command.ncu), "--version"),
            timeout_s=_VERSION_TIMEOUT_S,
            cwd=None if cwd is None else os.fspath(cwd),
            env=whole,
        )
        search = whole.get("PATH")
        programs = _programs(command.executable, folder, search)
        fields = {
            "ncu": version.stdout.decode("utf-8", "replace"),
            "ncu_path": shutil.which(os.fspath(command.ncu), path=search),
            "options": [_argument(text, folder) for text in command.opts],
            "executable": os.fspath(command.executable),
            "programs": tuple(content_digest(path) for path in programs),
            "arguments": [_argument(text, folder) for text in _texts(command)],
            "cwd": os.fspath(folder),
            "environment": chosen_environment(whole),
            "own_environment": {
                name: value
                for name, value in (command.env or {}).items()
                if name not in PASSED_OVER
            },
            "device": device_fields(self._device),
            "reports": self._reports,
        }
        is_python = any(path.name.startswith("python") for path in programs)
        job = _Job(command, key_of(fields), folder, whole, programs[0], is_python)
        hit = self._hit(job)
        if hit is not None:
            return hit
        timeout_s = self._timeout_s
        if timeout_s is None:
            timeout_s = command.timeout_s * max(1, retries) + _GRACE_S
        with self._store.lock(job.identity, timeout_s=timeout_s):
            # The process that held the lock may have made the report.
            return self._hit(job) or self._made(job, retries)

    def _hit(self, job: _Job) -> tuple[Entry, Mapping[str, bytes]] | None:
        sets = FileSets(self._store, job.folder, job.env)
        for state in sets.states(job.identity):
            key = job.key(state)
            content = self._store.get("reports", key)
            if content is not None:
                return self._entry(key, content, cached=True)
        return None

    def _made(self, job: _Job, retries: int) -> tuple[Entry, Mapping[str, bytes]]:
        from pytest_gpuperf.collect.ncu.session import Session

        command, since_unix_s = job.command, self._store.now_unix_s()
        with ScratchFolder("loaded") as scratch:
            recording = FileRecording(Path(scratch, "loaded"), job.folder)
            more = recording.variables(job.env, loader=not job.is_python)
            recorded = replace(command, env={**job.env, **more})
            if self._session is None:
                session = Session(command=recorded, runner=self._runner)
            else:
                session = self._session(recorded)
            session.run(cwd=job.folder, env=job.env, retries=retries)
            files = recording.files(*job.argvs)
        report, log = command.written(job.folder), job.folder / command.log
        if self._reports:
            try:
                name = _COMPRESSED if report.suffix == ".ncu-repz" else _REPORT
                contents = {name: report.read_bytes(), _LOG: log.read_bytes()}
            except OSError as error:
                message = f"{error.filename}: it cannot be read ({error.strerror})"
                raise CollectError(message, remedy="profile again") from error
        else:
            from pytest_gpuperf.collect.ncu.text import capture_text

            contents = {_VALUES: capture_text(report, runner=self._runner)}
        if files is None:
            state = None
            self._store.remark(
                f"{job.program.name} did not say which files it loaded (python -I, -E and "
                "-S prevent it): its report is not cached for later runs"
            )
        else:
            sets = FileSets(self._store, job.folder, job.env)
            state = sets.add(job.identity, files, since_unix_s=since_unix_s)
        key = job.key(state or os.urandom(16).hex())
        content = self._store.put("reports", key, contents)
        return self._entry(key, content, cached=False)

    def _entry(
        self, key: str, content: EntryContent, *, cached: bool
    ) -> tuple[Entry, Mapping[str, bytes]]:
        timestamp = datetime.fromtimestamp(content.created_unix_s, tz=timezone.utc)
        place = self._store.place("reports", key)
        entry = Entry(cached=cached, digest=key, timestamp=timestamp, directory=place)
        return entry, content.files


class _Job(NamedTuple):
    """A command with all the inputs of its key, before it runs."""

    command: Command
    identity: str
    folder: Path  # Working folder of the command.
    env: Mapping[str, str]  # The whole environment.
    program: Path
    is_python: bool

    @property
    def argvs(self) -> tuple[tuple[str, ...], ...]:
        """The arguments of a Python program, or () for other programs."""
        args = _texts(self.command)
        names = (os.fspath(self.command.executable), str(self.program))
        return (args, *((name, *args) for name in names)) if self.is_python else ()

    def key(self, state: str) -> str:
        """Return the key of the report in a state of its files."""
        return key_of({"identity": self.identity, "files": state})


def _texts(command: Command) -> tuple[str, ...]:
    return tuple(os.fspath(argument) for argument in command.args or ())


def _programs(
    executable: str | os.PathLike[str], cwd: Path, search: str | None
) -> tuple[Path, ...]:
    """
    Return the file that a command starts, and the programs in its "#!" line.

    The file is given as a path from `cwd`, or as a bare name.
    """
    name = os.fspath(executable)
    is_bare = os.path.dirname(name) == ""  # noqa: PTH120 - Path("./x") would drop the "./"
    # A relative entry of PATH is relative to the working folder.
    folders = (str(cwd / folder) for folder in (search or os.defpath).split(os.pathsep))
    path = shutil.which(name if is_bare else cwd / name, path=os.pathsep.join(folders))
    if path is None:
        message = f"{name} is not a program that can be started"
        remedy = "name an executable file, or put it on PATH"
        raise CollectorUnavailableError(message, remedy=remedy)
    program = Path(path)
    try:
        with program.open("rb") as stream:
            start = stream.read(_SCRIPT_START)
    except OSError:
        return (program,)
    words = start[2:].split(b"\n")[0].split() if start.startswith(b"#!") else []
    paths = (shutil.which(os.fsdecode(word), path=search) for word in words)
    # Options of an interpreter are not found, and so they are left out.
    return (program, *(Path(path) for path in paths if path is not None))


def _argument(text: str, cwd: Path) -> tuple[str, object]:
    """
    Return an argument with the content of a file or folder that it names, or with None.

    The forms are `FILE`, `--option=FILE` and `FILE::test`.
    """
    for name in (text, text.partition("=")[2], text.partition("::")[0]):
        if name and "\0" not in name:
            path = cwd / name
            content = _listing(path) or content_digest(path)
            if content is not None:
                return text, content
    return text, None


def _listing(folder: Path) -> list[tuple[str, int, int]]:
    """
    Return the files of a folder by name, size and time [ns], because it may hold a data
    set.
    """
    files = []
    for place, folders, names in os.walk(folder):
        folders[:] = [
            f for f in folders if f != "__pycache__" and not f.startswith(".")
        ]
        for path in (Path(place, name) for name in names):
            # A file may have been removed since it was listed.
            with contextlib.suppress(OSError):
                state = path.stat()
                files.append((os.fspath(path), state.st_size, state.st_mtime_ns))
    return sorted(files)
