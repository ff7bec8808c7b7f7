"""Counters measured by ncu, kept on disk under the key of everything they depend on.

Two profiles with one key give the same values. Everything that may matter is part of
the key: a needless run of ncu costs seconds, and values of another program would stay
wrong.

    values/3f/3fa9…/     the counters of a test, and `manifest` with their checksums
    reports/3f/3fa9…/    a whole report
    files/3f/3fa9…/      names of the files that results of one identity depend on
    locks/               the lock files
    staging/             files that are being written

The folders are the index: the key is the path, and the manifest's time is the last use.
The oldest entries are removed first. Any number of threads and processes may use one
store.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuperf.collect.clock import Clock, SystemClock
from pytest_gpuperf.collect.loaded_files import (
    FileKind,
    LoadedFile,
    content_digest,
    digest_of,
)
from pytest_gpuperf.collect.scratch import user_cache
from pytest_gpuperf.errors import CollectError, CollectorTimeoutError, ConfigError

if TYPE_CHECKING:
    from pytest_gpuperf.model.environment import Device

FOLDER_VARIABLE = "GPUPERF_CACHE_DIR"
KINDS = ("values", "reports", "files")
# 400 value sets of 41,000 values, or 300 reports of 3 MB.
LIMIT_BYTES = 1 << 30
# The code has changed too much after a month without use.
MAX_AGE_S = 30 * 86_400.0

_MANIFEST = "manifest"
_KEY = re.compile(r"[0-9a-f]{64}")
# The first two digits name a folder: 256 folders of 40 entries at 10,000 entries.
_FAN = 2
_LOCK_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
# No write takes a day.
_STALE_S = 86_400.0
# Backups leave a folder with this tag out (https://bford.info/cachedir/).
_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# Made by pytest-gpuperf.\n"
_FIRST_FILES = {"CACHEDIR.TAG": _TAG, ".gitignore": b"*\n"}
_OTHER_FOLDER = f"set {FOLDER_VARIABLE} to another folder"
_FOLDER_REMEDY = f"make room, or {_OTHER_FOLDER}"


# Raised when other facts go into a key.
_SCHEMA = "pytest-gpuperf/ncu-key/2"

# Options that choose, order or show tests without changing any. A run of one test finds
# the values counted by a run of all tests.
_HARMLESS = frozenset(
    {
        *("--capture", "--color", "--cov", "--cov-report", "--deselect", "--dist"),
        *("--durations", "--durations-min", "--exitfirst", "--failed-first", "--ff"),
        *("--html", "--ignore", "--ignore-glob", "--junit-prefix", "--junit-xml"),
        *("--junitxml", "--last-failed", "--lf", "--maxfail", "--new-first", "--nf"),
        *("--no-header", "--no-summary", "--numprocesses", "--pdb", "--quiet"),
        *("--report-log", "--setup-show", "--show-capture", "--showlocals"),
        *("--stepwise", "--strict-markers", "--tb", "--timeout", "--tx", "--verbose"),
        "--verbosity",
    }
)

# The variables that can change what a GPU does, each with the reason. A name ending in
# "*" is a prefix. No other variable is considered.
CHOSEN: Mapping[str, str] = {
    "CUBLAS*": "choices of cuBLAS and cuBLASLt: workspaces, algorithms",
    "CUDA_*": "devices, launch modes and the JIT compiler of the CUDA driver",
    "CUDNN_*": "choices of cuDNN",
    "CUPY_*": "choices of CuPy: accelerators, TF32, compiler options",
    "JAX_*": "choices of JAX: precision, devices",
    "LD_LIBRARY_PATH": "which libraries are loaded",
    "LD_PRELOAD": "libraries that are loaded before all others",
    "NCCL_*": "the kernels of collective operations",
    "NUMBA_*": "the compiler of numba",
    "NVIDIA_*": "devices of a container; NVIDIA_TF32_OVERRIDE changes every matrix product",
    "NV_COMPUTE_PROFILER_*": "Nsight Compute's own switches",
    "NVTX_*": "whether ranges reach ncu at all",
    "PYTHONOPTIMIZE": "asserts that run code are left out",
    "PYTHONPATH": "which modules are imported",
    "PYTORCH_*": "the allocator and kernel choices of PyTorch",
    "TF_*": "choices of TensorFlow",
    "TORCH*": "architectures, the inductor and dynamo of PyTorch",
    "TRITON_*": "the compiler and autotuner of Triton",
    "XLA_*": "the compiler of JAX and TensorFlow",
}

# The chosen variables that hold paths of caches, which change no kernel. A run with a
# new cache folder must find the values of the run before.
PASSED_OVER: Mapping[str, str] = {
    "CUDA_CACHE_PATH": "where the driver keeps what its JIT compiler made",
    "CUPY_CACHE_DIR": "where CuPy keeps compiled kernels",
    "JAX_COMPILATION_CACHE_DIR": "where JAX keeps compiled programs",
    "NUMBA_CACHE_DIR": "where numba keeps compiled functions",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "set by ncu itself in what it starts",
    "TORCHINDUCTOR_CACHE_DIR": "where the inductor keeps compiled kernels",
    "TORCH_EXTENSIONS_DIR": "where PyTorch builds extensions from hashed sources",
    "TRITON_CACHE_DIR": "where Triton keeps compiled kernels",
}

_PREFIXES = tuple(name[:-1] for name in CHOSEN if name.endswith("*"))

# The file of an entry.
_SETS = "sets.json"
# Sets per identity, for the branches that a developer switches between.
_MOST_SETS = 4
_COMPILED = frozenset({".c", ".cc", ".cl", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".ptx"})
# Folders without sources of the project.
_AWAY = frozenset({"node_modules", "site-packages"})
# Distributions are identified by their lists of files, and Python by its version.
_INSTALLED = re.compile(r"/(site-packages|dist-packages|lib\d*/python3[\w.]*)/")
# Files made from other loaded files: the default folders of compilers, and the folder
# in which ncu puts its own sections and rules at a user's first start.
_DERIVED = re.compile(
    r"__pycache__|torch_extensions|torchinductor_.*|\.triton|\.nv|\.cupy"
    r"|NVIDIA Nsight Compute"
)


def key_of(fields: Mapping[str, object]) -> str:
    """
    Return the key of a profile: 64 hexadecimal digits.

    Args:
        fields: Everything that the profile depends on, in types of JSON. The order of
            names does not matter. 1 is not "1".
    """
    return digest_of(f"{_SCHEMA} {json.dumps(fields, sort_keys=True)}".encode())


def chosen_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `CHOSEN` that are part of a key, by name."""
    return {
        name: env[name]
        for name in sorted(env)
        if name not in PASSED_OVER and (name in CHOSEN or name.startswith(_PREFIXES))
    }


def device_fields(device: Device | None) -> dict[str, object]:
    """
    Return the facts of a GPU and driver that a profile depends on.

    Two boards of a model share their values, so that only the kind of the UUID counts
    (`GPU` or `MIG`).
    """
    if device is None:
        return {}
    return {
        "name": device.name,
        "kind": device.uuid.partition("-")[0],
        "vendor": device.vendor,
        "compute_capability": device.compute_capability,
        "sm_count": device.sm_count,
        "memory_bytes": device.memory_bytes,
        "l2_bytes": device.l2_bytes,
        "mig": device.mig_profile if device.mig_profile is not None else device.mig,
        "ecc": device.ecc,
        "max_sm_clock_hz": device.max_sm_clock_hz,
        "max_memory_clock_hz": device.max_memory_clock_hz,
        "driver": device.driver_version,
    }


def telling_options(args: Sequence[str]) -> tuple[str, ...]:
    """Return the options of pytest that may change the work of a test, including values."""
    options, value_next = list[str](), False
    # Only paths follow "--".
    for text in takewhile("--".__ne__, args):
        if text.startswith("--"):
            name = text.partition("=")[0]
            harmless = name in _HARMLESS or name.startswith("--gpuperf-")
            options += [] if harmless else [text]
            value_next = not harmless and "=" not in text
        # Only the short options for an ini value, a plugin and a file are kept.
        elif text.startswith("-"):
            # Our own ini options change no test, like our command-line options.
            ours = text.startswith("-ogpuperf_")
            telling = text[:2] in {"-c", "-o", "-p"} and not ours
            options += [text] if telling else []
            value_next = telling and text == text[:2]
        else:
            options += [text] if value_next else []
            value_next = False
    return tuple(options)


def is_own(file: LoadedFile) -> bool:
    """Return True if a file itself is part of a key, instead of the distribution."""
    return file.kind is FileKind.PACKAGES or not _INSTALLED.search(file.path)


class StoreEntry(NamedTuple):
    """An entry of the store. `used_unix_s` is the time of its last use [s since the epoch]."""

    kind: str  # One of KINDS.
    key: str
    path: Path  # Folder of the entry.
    size_bytes: int  # Size of all its files [B].
    used_unix_s: float


class EntryContent(NamedTuple):
    """The content of an entry: its creation time [s since the epoch] and its files by name."""

    created_unix_s: float
    files: Mapping[str, bytes]


def cache_folder() -> Path:
    """Return the cache's folder: $GPUPERF_CACHE_DIR, or a folder in the user's cache folder."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder) if folder else user_cache("ncu")


class EntryStore:
    """
    The entries of the cache, by kind and key.

    Args:
        folder: The folder, made by the first `put`, or None for `cache_folder()`.

        limit_bytes: The limit of all entries together [B], > 0. The least recently used
            entries are removed first.

        max_age_s: How long an unused entry is kept [s], > 0.

        clock: The wall clock.

    Attributes:
        remarks: Problems of the cache, one sentence each. They cost time and do not
            fail a run.

    Raises:
        ConfigError: A limit is not above zero.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        limit_bytes: int = LIMIT_BYTES,
        max_age_s: float = MAX_AGE_S,
        clock: Clock | None = None,
    ) -> None:
        limits = {"limit_bytes": limit_bytes, "max_age_s": max_age_s}
        wrong = [
            f"{name} is {value!r}" for name, value in limits.items() if not value > 0
        ]
        if wrong:
            message = f"the cache: {'; '.join(wrong)}"
            raise ConfigError(message, remedy="give more than zero")
        # Absolute, because a test may change into another folder.
        self.folder = (cache_folder() if folder is None else folder).absolute()
        self.limit_bytes = limit_bytes
        self.remarks: list[str] = []
        self._max_age_s = max_age_s
        self._clock = clock or SystemClock()
        # Bytes that may be added before entries are counted again.
        self._room_bytes = 0

    def now_unix_s(self) -> float:
        """Return the wall-clock time [s since the epoch]."""
        return self._clock.unix_s()

    def place(self, kind: str, key: str) -> Path:
        """
        Return the folder of an entry, existing or not.

        Raises:
            ConfigError: `key` is not a key.
        """
        if not _KEY.fullmatch(key):
            message = f"{key!r} is not a key of the cache"
            raise ConfigError(message, remedy="give what key_of returns")
        return self.folder / kind / key[:_FAN] / key

    def get(self, kind: str, key: str) -> EntryContent | None:
        """Return the content of an entry, or None if missing, damaged or too old."""
        place = self.place(kind, key)
        try:
            used_unix_s = (place / _MANIFEST).stat().st_mtime
            content = _read(place)
        except (FileNotFoundError, NotADirectoryError):
            if not place.is_dir():
                return None
            content, used_unix_s = None, 0.0
        except OSError as error:
            self._remark_unread(kind, error)
            return None
        if content is None:
            self._remove(place)
            self.remark(f"{place}: it was damaged and is removed")
        elif self._is_too_old(used_unix_s):
            self._remove(place)
            content = None
        else:
            self._use(place / _MANIFEST)
        return content

    def put(self, kind: str, key: str, files: Mapping[str, bytes]) -> EntryContent:
        """
        Store files under a key, in place of an older entry.

        Raises:
            CollectError: The cache cannot be written. It is unchanged.
        """
        place, now_unix_s = self.place(kind, key), self.now_unix_s()
        digests = {name: digest_of(content) for name, content in files.items()}
        facts = json.dumps({"created_unix_s": now_unix_s, "files": digests}).encode()
        manifest = _checksum(key, facts) + facts
        staging = self.folder / "staging" / f"{os.getpid()}-{os.urandom(8).hex()}"
        folder = staging / key
        try:
            self._make(staging)
            folder.mkdir(mode=0o700)
            for name, content in files.items():
                _write(folder / name, content)
            _write(folder / _MANIFEST, manifest)
            self._use(folder / _MANIFEST)
            self._make(place.parent)
            # A folder cannot replace another.
            self._remove(place)
            try:
                folder.replace(place)
            except OSError:
                # Otherwise another process has stored the same entry.
                if not place.is_dir():
                    raise
        except OSError as error:
            raise self._unwritable(error) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        self._room_bytes -= sum(map(len, (manifest, *files.values())))
        if self._room_bytes < 0:
            self.make_room(place)
        return EntryContent(now_unix_s, files)

    def entries(self) -> tuple[StoreEntry, ...]:
        """Return all entries, the most recently used first."""
        entries = []
        for kind in KINDS:
            for path in (
                p for fan in self._listed(self.folder / kind) for p in self._listed(fan)
            ):
                name = path.name
                if not _KEY.fullmatch(name) or path.parent.name != name[:_FAN]:
                    continue
                # The entry may have been removed since it was listed.
                with contextlib.suppress(OSError):
                    states = {file.name: file.stat() for file in path.iterdir()}
                    used_unix_s = states.get(_MANIFEST, path.stat()).st_mtime
                    size_bytes = sum(state.st_size for state in states.values())
                    entries.append(
                        StoreEntry(kind, name, path, size_bytes, used_unix_s)
                    )
        return tuple(sorted(entries, key=lambda entry: -entry.used_unix_s))

    def verify(self) -> tuple[StoreEntry, ...]:
        """Remove and return all damaged entries."""
        damaged = []
        for entry in self.entries():
            try:
                is_intact = _read(entry.path) is not None
            except OSError:
                # An entry that was removed during the check is not damaged.
                is_intact = not entry.path.exists()
            if not is_intact:
                damaged.append(entry)
        for entry in damaged:
            self._remove(entry.path)
        return tuple(damaged)

    def clear(self) -> tuple[StoreEntry, ...]:
        """Remove and return all entries. Other files of the folder stay."""
        return tuple(entry for entry in self.entries() if self._remove(entry.path))

    def make_room(self, spared: Path | None = None) -> None:
        """Remove entries that are too old, then the least recently used, down to the limit."""
        entries = self.entries()
        total = sum(entry.size_bytes for entry in entries)
        for entry in reversed(entries):
            too_much = total > self.limit_bytes or self._is_too_old(entry.used_unix_s)
            if entry.path != spared and too_much:
                self._remove(entry.path)
                total -= entry.size_bytes
        self._room_bytes = self.limit_bytes - total
        # Remains of killed processes, and locks that were not used for a day.
        for path in (
            *self._listed(self.folder / "staging"),
            *self._listed(self.folder / "locks"),
        ):
            with contextlib.suppress(OSError):
                if self.now_unix_s() - path.stat().st_mtime > _STALE_S:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _listed(self, folder: Path) -> Sequence[Path]:
        """Return the items of a folder, or () if it is missing or cannot be listed."""
        try:
            return list(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            self._remark_unread("entries", error)
            return ()

    def _remark_unread(self, noun: str, error: OSError) -> None:
        problem = f"{self.folder}: its {noun} cannot be read ({error.strerror})"
        self.remark(f"{problem}; make them readable, or {_OTHER_FOLDER}")

    def remark(self, sentence: str) -> None:
        """Add a remark, unless already present."""
        if sentence not in self.remarks:
            self.remarks.append(sentence)

    @contextlib.contextmanager
    def lock(self, name: str, *, timeout_s: float) -> Iterator[None]:
        """
        Exclude all other processes and threads while the block runs.

        Args:
            name: A key, or any name of letters and digits.

            timeout_s: Timeout of the lock [s], >= 0.

        Raises:
            CollectorTimeoutError: Another process held the lock until the timeout.

            CollectError: The file system has no locks, or cannot be written.
        """
        from filelock import FileLock, Timeout

        if not _LOCK_NAME.fullmatch(name):
            message = f"{name!r} cannot be the name of a lock"
            raise ConfigError(message, remedy="use letters, digits, '-', '_' and '.'")
        file = self.folder / "locks" / f"{name}.lock"
        guard = FileLock(file, timeout=timeout_s, mode=0o600)
        try:
            self._make(file.parent)
            guard.acquire()
        except Timeout as error:
            message = f"another process has held {file} for {timeout_s:g} s"
            remedy = "wait until that process has ended, or raise the timeout"
            raise CollectorTimeoutError(message, remedy=remedy) from error
        except NotImplementedError as error:
            message = f"{file}: this file system has no locks ({error})"
            remedy = f"set {FOLDER_VARIABLE} to a folder on a local disk"
            raise CollectError(message, remedy=remedy) from error
        except OSError as error:
            raise self._unwritable(error) from error
        # A lock with a recent time is not removed as stale.
        self._use(file)
        try:
            yield
        finally:
            guard.release()

    def _is_too_old(self, used_unix_s: float) -> bool:
        return self.now_unix_s() - used_unix_s > self._max_age_s

    def _use(self, file: Path) -> None:
        """Set the time of last use. A read-only cache is left unchanged."""
        now = self.now_unix_s()
        with contextlib.suppress(OSError):
            os.utime(file, (now, now))

    def _remove(self, place: Path) -> bool:
        """
        Remove an entry, and return True unless another process was faster or the
        removal failed.
        """
        # Moved in one step, so that a reader finds the whole entry or nothing.
        aside = self.folder / "staging" / f"removed-{os.urandom(8).hex()}"
        try:
            self._make(aside.parent)
            place.replace(aside)
        # Another process was faster, or the entry cannot be changed.
        except OSError:
            return False
        shutil.rmtree(aside, ignore_errors=True)
        return True

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        is_new, path = not self.folder.is_dir(), self.folder
        path.parent.mkdir(parents=True, exist_ok=True)
        for part in ("", *folder.relative_to(path).parts):
            path /= part
            path.mkdir(mode=0o700, exist_ok=True)
        for name, content in _FIRST_FILES.items() if is_new else ():
            with contextlib.suppress(FileExistsError):
                _write(self.folder / name, content)

    def _unwritable(self, error: OSError) -> CollectError:
        message = f"{self.folder}: the cache cannot be written ({error.strerror})"
        return CollectError(message, remedy=_FOLDER_REMEDY)


class FileSets:
    """
    The sets of files that results depended on, and their present digests.

    One identity (a test module with its options, or a command) has several sets, those
    of its last profiles. A result is valid if all files of one set are unchanged.

    Args:
        store: The store of the sets.

        root: The project's folder. Names below it are relative, so that it can be
            moved.

        env: The environment, whose variables name the folders of compiled kernels.
    """

    def __init__(self, store: EntryStore, root: Path, env: Mapping[str, str]) -> None:
        self._store = store
        self._root = root.resolve()
        caches = (os.path.realpath(env[name]) for name in PASSED_OVER if env.get(name))
        self._caches = tuple(os.path.join(folder, "") for folder in caches)  # noqa: PTH118 - keeps the separator at the end
        self._digests: dict[str, str | None] = {}

    def states(self, identity: str) -> tuple[str, ...]:
        """Return the present digests of the file sets of an identity, the newest set first."""
        return tuple(self._state(names) for names in self._sets(identity))

    def add(
        self, identity: str, files: Iterable[LoadedFile], *, since_unix_s: float
    ) -> str | None:
        """
        Store the set of files of a profile, and return the digest.

        Args:
            identity: A key of `key_of`.

            files: The files that its processes loaded and opened.

            since_unix_s: The start of the first process [s since the epoch].

        Returns:
            The digest, or None, with a remark of the store, if a file has changed since
            then.
        """
        paths = {Path(file.path) for file in files if self._counts(file)}
        if any(path.suffix in _COMPILED for path in paths):
            # A compiler opens headers unseen, so all C-like sources of the project count.
            for folder, folders, found in os.walk(self._root):
                folders[:] = [
                    f for f in folders if not f.startswith(".") and f not in _AWAY
                ]
                paths.update(
                    Path(folder, n) for n in found if Path(n).suffix in _COMPILED
                )
        changed = sorted(path for path in paths if _is_newer(path, since_unix_s))
        if changed:
            change = f"{changed[0]} changed while it was counted"
            self._store.remark(f"{change}: its tests are counted again in the next run")
            return None
        names = sorted(self._name(path) for path in paths)
        state = self._state(names)
        sets = [names, *(older for older in self._sets(identity) if older != names)]
        content = json.dumps(sets[:_MOST_SETS]).encode()
        self._store.put("files", identity, {_SETS: content})
        return state

    def _sets(self, identity: str) -> list[list[str]]:
        content = self._store.get("files", identity)
        sets: list[list[str]] = json.loads(content.files[_SETS]) if content else []
        return sets

    def _state(self, names: Sequence[str]) -> str:
        """Return the common digest of some files. Every file is read only once."""
        for name in names:
            if name not in self._digests:
                self._digests[name] = content_digest(self._root / name)
        return key_of({name: self._digests[name] for name in names})

    def _name(self, path: Path) -> str:
        is_inside = path.is_relative_to(self._root)
        return (path.relative_to(self._root) if is_inside else path).as_posix()

    def _counts(self, file: LoadedFile) -> bool:
        """
        Return True if a file belongs to a set. Installed files, and files compiled
        here, do not.
        """
        if file.kind is FileKind.PACKAGES:
            return True
        if not is_own(file) or file.path.startswith(self._caches):
            return False
        folders = self._name(Path(file.path)).split("/")[:-1]
        if file.kind is FileKind.OPENED and any(f.startswith(".") for f in folders):
            # Files of tools: .git, .pytest_cache, a baseline.
            return False

        return not any(map(_DERIVED.fullmatch, folders))


def _is_newer(path: Path, since_unix_s: float) -> bool:
    """Return True if a file has changed since a time, or is gone. A folder may change."""
    try:
        state = path.stat()
    except OSError:
        return True
    is_folder = stat.S_ISDIR(state.st_mode)
    return not is_folder and max(state.st_mtime, state.st_ctime) > since_unix_s


def _checksum(key: str, manifest: bytes) -> bytes:
    return digest_of(key.encode() + manifest).encode() + b"\n"


def _read(place: Path) -> EntryContent | None:
    """
    Return the content of an entry, or None if damaged.

    Raises:
        OSError: A file of the entry is missing, or cannot be read.
    """
    checksum, end, manifest = (place / _MANIFEST).read_bytes().partition(b"\n")
    if checksum + end != _checksum(place.name, manifest):
        return None
    facts = json.loads(manifest)
    files = {name: (place / name).read_bytes() for name in facts["files"]}
    intact = all(digest_of(files[n]) == digest for n, digest in facts["files"].items())
    return EntryContent(facts["created_unix_s"], files) if intact else None


def _write(path: Path, content: bytes) -> None:
    """Write a private file that does not exist yet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        # The file is not synced, which takes 6 ms. The checksum shows damage by a power
        # cut.
        stream.write(content)
