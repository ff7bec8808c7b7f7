"""What ncu measured before, found again by what it depends on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, final

from pytest_gpuperf.collect.clock import Clock, SystemClock
from pytest_gpuperf.collect.ncu.folder import (
    LIMIT_BYTES,
    MANIFEST,
    MAX_AGE_S,
    Folder,
    cache_folder,
)
from pytest_gpuperf.collect.ncu.values import (
    DIGESTS_NAME,
    LOG_NAME,
    REPORT_NAME,
    VALUES_NAME,
    Seal,
    Values,
    manifest_of,
    sealed,
    seals_of,
)
from pytest_gpuperf.errors import CollectError

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.command import Command
    from pytest_gpuperf.collect.ncu.session import Session
    from pytest_gpuperf.collect.runner import Runner
    from pytest_gpuperf.model.environment import Device

__all__ = ["Cache", "Entry", "Values"]

_VERSION_TIMEOUT_S = 30.0
_ATTEMPTS = 3  # to hand out what others may remove meanwhile
_GRACE_S = 600.0  # to wait for another process beyond what its ncu may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """
    A report in the cache.

    Attributes:
        cached: Whether it was there before.

        digest: Its key.

        timestamp: When it was made, in UTC.

        directory: The folder that holds `report.ncu-rep` and `ncu.log`, or
            `values.json`; it may be removed when others need the room.
    """

    cached: bool
    digest: str
    timestamp: datetime
    directory: Path


@final
class Cache:
    """
    Whole reports, made once for each state of program, options and machine.

    A report cannot be rewritten: it may hold paths, command lines and, with
    `--import-source`, source files. It is readable by its owner only; `Values` keeps
    nothing of the kind, and with `reports=False` neither does this.

        with Cache() as cache:
            entry = cache.run(command)

    Args:
        directory: Where they are; None: as for `Values`.

        reports: Whether to keep the report and the log; False: only the values in it,
            as JSON.

        session: Makes what runs a command; None: a `Session` that has its defaults.

        runner: What starts other processes.

        device: The GPU it runs on; None: not known, so another one is not told apart
            but by the variables that choose it.

        timeout_s: How long to wait for another process that makes the same report [s];
            None: as long as its attempts may take, and ten minutes.

        limit_bytes: As for `Values`.

        max_age_s: As for `Values`.

        clock: The wall clock.

    Attributes:
        remarks: What the keys leave out and what kept the cache from its work.
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
        from pytest_gpuperf.collect.runner import ProcessRunner

        self._folder = Folder(
            cache_folder() if directory is None else Path(directory),
            limit_bytes=limit_bytes,
            max_age_s=max_age_s,
            clock=clock or SystemClock(),
        )
        self._reports = reports
        self._session = session
        self._runner = runner or ProcessRunner()
        self._device = device
        self._timeout_s = timeout_s
        self.remarks: list[str] = []

    def __enter__(self) -> Cache:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the cache as small as it may be."""
        if self._folder.path.is_dir():
            self._folder.make_room()

    def get(
        self,
        command: Command,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        retries: int = 1,
    ) -> Entry:
        """
        Return the report of a command, made if there is none: by one process at a time.

        Args:
            command: The command; where its output goes is no part of the key.

            cwd: As for `Session.run`.

            env: As for `Session.run`.

            retries: As for `Session.run`.

        Raises:
            CollectError: The command failed, as `Session.run` says, and nothing is
                kept; or the cache cannot be written, and ncu's report is where the
                command put it.
        """
        key = self._key(command, cwd, env)
        timeout_s = self._timeout_s
        if timeout_s is None:
            timeout_s = command.timeout_s * max(1, retries) + _GRACE_S
        entry = self._hit(key)
        if entry is not None:
            return entry
        with self._folder.lock(key, timeout_s=timeout_s):
            entry = self._hit(key)  # whoever had the lock may have made it
            if entry is not None:
                return entry
            self._started(command).run(cwd=cwd, env=env, retries=retries)
            return self._kept(key, command, Path(cwd or ""))

    def run(
        self,
        command: Command,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        retries: int = 1,
    ) -> Entry:
        """
        Return the report of a command as `get` does, and put it where the command says.

        Report and log are then at `command.report` and `command.log`; with
        `reports=False` the values are beside them, at the output's name and
        `.values.json`.
        """
        for _ in range(_ATTEMPTS):
            entry = self.get(command, cwd, env, retries)
            if self._handed_out(entry, command, Path(cwd or "")):
                return entry
        message = f"{self._folder.path}: entries go as soon as they are made"
        remedy = "give the cache more room (limit_bytes)"
        raise CollectError(message, remedy=remedy)

    def _key(
        self,
        command: Command,
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
    ) -> str:
        """Return the key of a command."""
        from pytest_gpuperf.collect.ncu.key import Digests, key_of
        from pytest_gpuperf.collect.ncu.program import command_fields

        whole = {**(os.environ if env is None else env), **(command.env or {})}
        folder = None if cwd is None else os.fspath(cwd)
        version = self._runner.run(
            (os.fspath(command.ncu), "--version"),
            timeout_s=_VERSION_TIMEOUT_S,
            cwd=folder,
            env=whole,
        )
        digests = Digests(self._folder.path / DIGESTS_NAME)
        fields, remarks = command_fields(
            command,
            ncu_version=version.stdout.decode("utf-8", "replace"),
            cwd=Path(folder or "").resolve(),
            env=whole,
            digests=digests,
            device=self._device,
        )
        digests.save()
        for each in remarks:
            self._remark(each)
        return key_of({**fields, "kept": "reports" if self._reports else "values"})

    def _hit(self, key: str) -> Entry | None:
        """Return what is there; None: nothing, or nothing whole."""
        place = self._folder.place("reports", key)
        if not place.is_dir():
            return None
        try:
            seals = seals_of(place)
            used_unix_s = (place / MANIFEST).stat().st_mtime
        except OSError:
            seals, used_unix_s = {}, 0.0
        if not seals:
            self._folder.remove(place)
            self._remark(f"{place}: it was damaged and is removed")
            return None
        if self._folder.is_too_old(used_unix_s):
            self._folder.remove(place)
            return None
        self._folder.use(place / MANIFEST)
        return _entry(place, seals, cached=True)

    def _started(self, command: Command) -> Session:
        """Return what runs a command."""
        from pytest_gpuperf.collect.ncu.session import Session

        if self._session is not None:
            return self._session(command)
        return Session(command=command, runner=self._runner)

    def _kept(self, key: str, command: Command, base: Path) -> Entry:
        """Put into the cache what a command has left, and return it."""
        place = self._folder.place("reports", key)
        now_unix_s = self._folder.now_unix_s()
        contents = self._contents(base / command.report, base / command.log)
        seals = {n: sealed(n, c, now_unix_s) for n, c in contents.items()}
        manifest = manifest_of(key, seals.values(), now_unix_s)
        with self._folder.staged() as staging:
            folder = staging / key
            folder.mkdir(mode=0o700)
            for name, content in contents.items():
                self._folder.write(folder / name, content)
            self._folder.write(folder / MANIFEST, manifest)
            size_bytes = len(manifest) + sum(map(len, contents.values()))
            self._folder.keep(folder, place, size_bytes)
        return _entry(place, seals, cached=False)

    def _contents(self, report: Path, log: Path) -> dict[str, bytes]:
        """Return what is to be kept of a report, by name."""
        if not self._reports:
            from pytest_gpuperf.collect.ncu.text import capture_text

            return {VALUES_NAME: capture_text(report, runner=self._runner)}
        try:
            return {REPORT_NAME: report.read_bytes(), LOG_NAME: log.read_bytes()}
        except OSError as error:
            message = f"{error.filename}: it cannot be read ({error.strerror})"
            raise CollectError(message, remedy="profile again") from error

    def _handed_out(self, entry: Entry, command: Command, base: Path) -> bool:
        """Put an entry where its command says; return whether it was still there."""
        if self._reports and not entry.cached:
            return True  # ncu itself has just written it there
        values = Path(f"{os.fspath(command.output)}.values.json")
        places = {
            REPORT_NAME: command.report,
            LOG_NAME: command.log,
            VALUES_NAME: values,
        }
        try:
            seals = seals_of(entry.directory)
            for name in seals:
                _put(base / places[name], (entry.directory / name).read_bytes())
        except OSError:
            return False
        return bool(seals)

    def _remark(self, sentence: str) -> None:
        if sentence not in self.remarks:
            self.remarks.append(sentence)


def _entry(place: Path, seals: Mapping[str, Seal], *, cached: bool) -> Entry:
    """Return an entry as others see it."""
    created_unix_s = min(seal.created_unix_s for seal in seals.values())
    return Entry(
        cached=cached,
        digest=place.name,
        timestamp=datetime.fromtimestamp(created_unix_s, tz=timezone.utc),
        directory=place,
    )


def _put(path: Path, content: bytes) -> None:
    """
    Write a file of a command's, whole or not at all.

    Raises:
        CollectError: It cannot be written.
    """
    staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(content)
        staged.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            staged.unlink()
        message = f"{path}: it cannot be written ({error.strerror})"
        raise CollectError(message, remedy="give another output") from error
