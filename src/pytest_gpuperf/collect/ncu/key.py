"""What a profile depends on, as one key.

Two profiles with one key give the same values. What is in doubt goes into the key: a
needless run of ncu costs seconds, values of another program are wrong for ever.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Union

from pytest_gpuperf.collect.clock import Clock, SystemClock

if TYPE_CHECKING:
    from typing import TypeAlias

    from pytest_gpuperf.model.environment import Device

__all__ = [
    "CHOSEN",
    "PASSED_OVER",
    "Digests",
    "Field",
    "Gathered",
    "chosen_environment",
    "device_fields",
    "encoded",
    "key_of",
    "telling_options",
]

Field: TypeAlias = Union[  # noqa: UP007 - `|` of a forward reference needs Python 3.14
    bool,
    int,
    float,
    str,
    bytes,
    Sequence["Field"],
    Mapping[str, "Field"],
    AbstractSet[str],
    None,
]

_SCHEMA = "pytest-gpuperf/ncu-key/1"  # raised when other things go into a key

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

# Of those, what says where things are kept and not what they are: a run whose compiled
# kernels lie in a fresh folder must find the values of the run before.
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

_CHUNK_BYTES = 1 << 16  # as fast as larger ones: 3.4 GB/s on one core
_KEPT_BYTES = 8 << 20  # smaller files are read in 3 ms
_MOST_KEPT = 1000  # digests between processes: 150 KB of text
# A file that has just been written may be written again within one tick of its file
# system's clock (2 s on FAT, 1 s on NFS), with the same size: its digest is not kept.
_TICK_S = 2.0
_ATTEMPTS = 3  # at a file that changes while it is read


class Gathered(NamedTuple):
    """
    Something that a key depends on.

    Attributes:
        fields: It.

        remarks: What could not be looked at, a sentence each.
    """

    fields: Field
    remarks: tuple[str, ...] = ()


def key_of(fields: Mapping[str, Field]) -> str:
    """
    Return the key of a profile: 64 hexadecimal digits.

    Args:
        fields: All that it depends on, by name. The order of names does not matter, nor
            does that of a set; that of a sequence does. Types count: 1 is not "1".
    """
    from blake3 import blake3

    return blake3(encoded((_SCHEMA, fields))).hexdigest()


def encoded(field: Field) -> bytes:
    """
    Return a field as bytes that no other field has: its type, its length, its content.

    Raises:
        TypeError: It is of no such type.
    """
    tag, content = _parts(field)
    return b"%b%d:%b" % (tag, len(content), content)


def _parts(field: Field) -> tuple[bytes, bytes]:
    """Return the type of a field as a letter, and its content."""
    if isinstance(field, str):  # a file name may hold what is no text
        return b"s", field.encode("utf-8", "surrogatepass")
    if isinstance(field, bytes):
        return b"y", field
    if isinstance(field, float):
        return b"f", field.hex().encode()
    if field is None or isinstance(field, int):  # a bool is an int, and repr tells
        return b"c", repr(field).encode()
    return _collected(field)


def _collected(field: Field) -> tuple[bytes, bytes]:
    """Return the type of a field of many parts as a letter, and its content."""
    if isinstance(field, Mapping):
        pairs = ((encoded(name), encoded(each)) for name, each in field.items())
        return b"m", b"".join(name + each for name, each in sorted(pairs))
    if isinstance(field, AbstractSet):
        return b"e", b"".join(sorted(map(encoded, field)))
    if isinstance(field, Sequence):
        return b"l", b"".join(map(encoded, field))
    message = f"a key cannot depend on a {type(field).__name__}"
    raise TypeError(message)


class Digests:
    """
    The digests of files, each computed once as long as the file stays the same.

    Whether it did is told by device, inode, size and the times of its last change. Large
    files (a library of a framework has gigabytes) are remembered between processes; no
    path and no content is.

    Args:
        file: Where they are remembered; None: nowhere.

        clock: The wall clock.
    """

    def __init__(self, file: Path | None = None, clock: Clock | None = None) -> None:
        self._file = file
        self._clock = clock or SystemClock()
        self._known: dict[str, str] = _read_digests(file)
        self._new: dict[str, str] = {}

    def of(self, path: Path) -> str | None:
        """Return the digest of a file; None: it is none, or cannot be read."""
        try:
            for _ in range(_ATTEMPTS):
                if (digest := self._of(path)) is not None:
                    return digest
        except OSError:
            return None
        # never the same twice: it changes faster than it can be read
        return f"changing {self._clock.unix_s()!r}"

    def _of(self, path: Path) -> str | None:
        """Return the digest of a file; None: it changed meanwhile."""
        # not to wait for whoever may write into a pipe
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            before = os.fstat(stream.fileno())
            if not stat.S_ISREG(before.st_mode):
                message = "it is no file"
                raise OSError(message)
            identity = _identity(before)
            if identity in self._known:
                return self._known[identity]
            digest = _digest(_chunks(stream))
            if _identity(os.fstat(stream.fileno())) != identity:
                return None
        changed_s = max(before.st_mtime, before.st_ctime)
        if self._clock.unix_s() - changed_s > _TICK_S:
            self._known[identity] = digest
            if before.st_size >= _KEPT_BYTES:
                self._new[identity] = digest
        return digest

    def save(self) -> None:
        """Remember what is new for other processes, where there is a place for it."""
        if self._file is None or not self._new:
            return
        # others may have saved since: theirs are read again, the newest stand last
        kept = {**_read_digests(self._file), **self._new}
        text = json.dumps(dict([*kept.items()][-_MOST_KEPT:]), indent=0)
        staged = self._file.with_name(f"{self._file.name}.{os.getpid()}.tmp")
        try:
            descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as stream:
                stream.write(text)
            staged.replace(self._file)
        except OSError:  # then they are computed again next time, and nothing is wrong
            staged.unlink(missing_ok=True)
        self._new.clear()


def _read_digests(file: Path | None) -> dict[str, str]:
    """Return the digests that were remembered; none where the file is damaged."""
    if file is None:
        return {}
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    good = re.compile(r"[0-9a-f]{64}")
    pairs = found.items() if isinstance(found, dict) else ()
    return {n: d for n, d in pairs if isinstance(d, str) and good.fullmatch(d)}


def _identity(found: os.stat_result) -> str:
    """Return what tells one state of a file from every other."""
    # st_ctime_ns: `cp -p` and `touch -d` set the other one back
    times = f"{found.st_mtime_ns}:{found.st_ctime_ns}"
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{times}"


def _chunks(stream: object) -> Iterator[memoryview]:
    """Yield the content of an unbuffered file; a mapped one that shrinks kills us."""
    buffer = bytearray(_CHUNK_BYTES)
    view = memoryview(buffer)
    while count := stream.readinto(buffer):  # type: ignore[attr-defined]
        yield view[:count]


def _digest(chunks: Iterable[bytes | memoryview]) -> str:
    """Return the digest of bytes."""
    from blake3 import blake3

    # one thread: a process that forks after more of them hangs in the next digest
    digest = blake3()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def chosen_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a key depends on: those of `CHOSEN`, by name."""
    return {
        name: env[name]
        for name in sorted(env)
        if name not in PASSED_OVER and (name in CHOSEN or name.startswith(_PREFIXES))
    }


def device_fields(device: Device | None) -> dict[str, Field]:
    """
    Return what a profile depends on of a GPU and its driver.

    Two boards of a kind share their values, so of the UUID only its class counts (`GPU`
    or `MIG`).
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
    told, value_next = list[str](), False
    for each in takewhile("--".__ne__, args):  # behind it are paths alone
        if each.startswith("--"):
            name = each.partition("=")[0]
            harmless = name in _HARMLESS or name.startswith("--gpuperf-")
            told += [] if harmless else [each]
            value_next = not harmless and "=" not in each
        elif each.startswith("-"):  # of the short ones: an ini value, a plugin, a file
            telling = each[:2] in {"-c", "-o", "-p"}
            told += [each] if telling else []
            value_next = telling and each == each[:2]
        else:
            told += [each] if value_next else []
            value_next = False
    return tuple(told)
