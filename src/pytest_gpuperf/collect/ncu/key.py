"""The key of a profile: everything that it depends on.

Two profiles with one key give the same values. What may matter is part of the key: a
needless run of ncu costs seconds, and values of another program would stay wrong.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.loaded_files import (
    FileKind,
    LoadedFile,
    content_digest,
    digest_of,
)

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.store import EntryStore
    from pytest_gpuperf.model.environment import Device

__all__ = [
    "CHOSEN",
    "PASSED_OVER",
    "FileSets",
    "chosen_environment",
    "device_fields",
    "is_own",
    "key_of",
    "telling_options",
]

_SCHEMA = "pytest-gpuperf/ncu-key/2"  # raised when other things go into a key

# options that choose, order or show tests, and change none: a run of one test finds what
# the run of all has counted
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

# The variables that can change what a GPU does, each with why; a name ending in "*" is a
# prefix. No other variable is looked at.
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

# Of those, the paths of caches, which change no kernel: a run with a new cache folder
# must find the values of the run before.
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

_SETS = "sets.json"  # of an entry
_MOST_SETS = 4  # of an identity: the branches that somebody changes between
_COMPILED = frozenset({".c", ".cc", ".cl", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".ptx"})
_AWAY = frozenset({"node_modules", "site-packages"})  # no sources of the project below
# told by their distributions' lists of files, and Python by its version
_INSTALLED = re.compile(r"/(site-packages|dist-packages|lib\d*/python3[\w.]*)/")
# made from what else is loaded: where compilers keep it by default, and where ncu puts
# its own sections and rules when a user starts it first
_DERIVED = re.compile(
    r"__pycache__|torch_extensions|torchinductor_.*|\.triton|\.nv|\.cupy"
    r"|NVIDIA Nsight Compute"
)


def key_of(fields: Mapping[str, object]) -> str:
    """
    Return the key of a profile: 64 hexadecimal digits.

    Args:
        fields: Everything that it depends on, in types of JSON. The order of names does
            not matter; 1 is not "1".
    """
    return digest_of(f"{_SCHEMA} {json.dumps(fields, sort_keys=True)}".encode())


def chosen_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a key depends on: those of `CHOSEN`, by name."""
    return {
        name: env[name]
        for name in sorted(env)
        if name not in PASSED_OVER and (name in CHOSEN or name.startswith(_PREFIXES))
    }


def device_fields(device: Device | None) -> dict[str, object]:
    """
    Return the facts of a GPU and its driver that a profile depends on.

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
    """Return the options of pytest that may change what a test does, with their values."""
    options, value_next = list[str](), False
    for text in takewhile("--".__ne__, args):  # behind it are paths alone
        if text.startswith("--"):
            name = text.partition("=")[0]
            harmless = name in _HARMLESS or name.startswith("--gpuperf-")
            options += [] if harmless else [text]
            value_next = not harmless and "=" not in text
        elif text.startswith("-"):  # of the short ones: an ini value, a plugin, a file
            telling = text[:2] in {"-c", "-o", "-p"}
            options += [text] if telling else []
            value_next = telling and text == text[:2]
        else:
            options += [text] if value_next else []
            value_next = False
    return tuple(options)


def is_own(file: LoadedFile) -> bool:
    """Return whether a file is part of a key itself, not through its distribution."""
    return file.kind is FileKind.PACKAGES or not _INSTALLED.search(file.path)


class FileSets:
    """
    The sets of files that results depended on, and their present digests.

    One identity (a test module with its options, a command) has several: those of its
    last profiles. A result is valid if all files of one set are unchanged.

    Args:
        store: The store of the sets.

        root: The project's folder. Names below it are relative, so that it can be moved.

        env: The environment, whose variables name the folders of compiled kernels.
    """

    def __init__(self, store: EntryStore, root: Path, env: Mapping[str, str]) -> None:
        self._store = store
        self._root = root.resolve()
        caches = (os.path.realpath(env[name]) for name in PASSED_OVER if env.get(name))
        self._caches = tuple(os.path.join(folder, "") for folder in caches)  # noqa: PTH118 - keeps the separator at the end
        self._digests: dict[str, str | None] = {}

    def states(self, identity: str) -> tuple[str, ...]:
        """Return the present digest of each set, the newest set first."""
        return tuple(self._state(names) for names in self._sets(identity))

    def add(
        self, identity: str, files: Iterable[LoadedFile], *, since_unix_s: float
    ) -> str | None:
        """
        Store the set of files of a profile, and return its digest.

        Args:
            identity: A key of `key_of`.

            files: The files that its processes loaded and opened.

            since_unix_s: The start of the first process [s since the epoch].

        Returns:
            None, with a remark of the store, if a file has changed since then.
        """
        paths = {Path(file.path) for file in files if self._counts(file)}
        if any(path.suffix in _COMPILED for path in paths):
            paths.update(self._compiled())
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
        """Return the digest of some files together; each file is read once."""
        for name in names:
            if name not in self._digests:
                self._digests[name] = content_digest(self._root / name)
        return key_of({name: self._digests[name] for name in names})

    def _name(self, path: Path) -> str:
        is_inside = path.is_relative_to(self._root)
        return (path.relative_to(self._root) if is_inside else path).as_posix()

    def _counts(self, file: LoadedFile) -> bool:
        """Return whether a file belongs to a set: not if installed, or compiled here."""
        if file.kind is FileKind.PACKAGES:
            return True
        if not is_own(file) or file.path.startswith(self._caches):
            return False
        folders = self._name(Path(file.path)).split("/")[:-1]
        if file.kind is FileKind.OPENED and any(f.startswith(".") for f in folders):
            return False  # files of tools: .git, .pytest_cache, a baseline

        return not any(map(_DERIVED.fullmatch, folders))

    def _compiled(self) -> Iterator[Path]:
        """Yield all C-like sources of the project: a compiler opens headers unseen."""
        for folder, folders, names in os.walk(self._root):
            folders[:] = [
                f for f in folders if not f.startswith(".") and f not in _AWAY
            ]
            yield from (Path(folder, n) for n in names if Path(n).suffix in _COMPILED)


def _is_newer(path: Path, since_unix_s: float) -> bool:
    """Return whether a file has changed since a time, or is gone; a folder may change."""
    try:
        state = path.stat()
    except OSError:
        return True
    is_folder = stat.S_ISDIR(state.st_mode)
    return not is_folder and max(state.st_mtime, state.st_ctime) > since_unix_s
