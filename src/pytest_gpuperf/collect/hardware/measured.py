"""Peaks that were measured here, and how they are measured."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from platformdirs import user_cache_path

from pytest_gpuperf.collect.clock import NS_PER_S, Clock
from pytest_gpuperf.errors import (
    CaptureFormatError,
    CollectError,
    CollectorUnavailableError,
)
from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.roofline import LEVELS
from pytest_gpuperf.model.work import DTYPE_BYTES

__all__ = [
    "FILE_VARIABLE",
    "ArrayFramework",
    "KeptPeaks",
    "find_framework",
    "keep_peaks",
    "kept_peaks",
    "measure_peaks",
    "peaks_file",
]

FILE_VARIABLE = "GPUPERF_PEAKS"
_SCHEMA = "pytest-gpuperf/peaks/1"
_FIELDS = frozenset({*LEVELS, *DTYPE_BYTES})


class KeptPeaks(Frozen, frozen=True, kw_only=True):
    """
    What was measured of one GPU before.

    Attributes:
        values: B/s by level of memory, FLOP/s by data type; empty: nothing.

        reason: Why there is nothing, where something was expected; "" else.
    """

    values: Mapping[str, float] = {}
    reason: str = ""


def peaks_file() -> Path:
    """Return where measured peaks are kept: $GPUPERF_PEAKS, or the user's cache folder."""
    named = os.environ.get(FILE_VARIABLE)
    if named:
        return Path(named)
    return user_cache_path("pytest-gpuperf", appauthor=False) / "peaks.json"


def kept_peaks(device: Device, file: Path | None = None) -> KeptPeaks:
    """
    Return what was measured of a GPU under the driver that it has now.

    Args:
        device: The GPU.

        file: Where to look; None: the user's file.

    Returns:
        The values; none, with the reason, where the file is no such file or another
        driver was measured.
    """
    file = file or peaks_file()
    try:
        entry = _read(file).get(device.uuid)
    except CollectError as error:
        return KeptPeaks(reason=error.message)
    if entry is None:
        return KeptPeaks()
    if entry["driver"] != device.driver_version:
        reason = (
            f"{file}: peaks of this GPU were measured with driver {entry['driver']}, "
            f"it has {device.driver_version} now"
        )
        return KeptPeaks(reason=reason)
    return KeptPeaks(values=entry["values"])


def keep_peaks(
    device: Device, values: Mapping[str, float], file: Path | None = None
) -> Path:
    """
    Keep what was measured of a GPU in place of what was known of it; return the file.

    Args:
        device: The GPU.

        values: B/s by level of memory, FLOP/s by data type.

        file: Where to keep it; None: the user's file.

    Raises:
        CollectError: The file cannot be written, or holds something else.
    """
    file = file or peaks_file()
    entries = _read(file)
    entries[device.uuid] = {
        "driver": device.driver_version,
        "name": device.name,
        "values": dict(values),
    }
    text = json.dumps({"schema": _SCHEMA, "gpus": entries}, indent=1, sort_keys=True)
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(file)  # whole, or not at all
    except OSError as error:
        with contextlib.suppress(OSError):  # what could not be made may not be removed
            temporary.unlink()
        message = f"{file}: it cannot be written ({error.strerror})"
        raise CollectError(
            message, remedy=f"name another by {FILE_VARIABLE}"
        ) from error
    return file


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """
    Return the entries of a file by UUID; nothing where there is no file.

    Raises:
        CollectError: It cannot be read, or is no such file.
    """
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        message = f"{file}: it cannot be read ({error.strerror})"
        raise CollectError(message, remedy="check its permissions") from error
    remedy = f"remove it, or name another by {FILE_VARIABLE}"
    try:
        loaded = json.loads(text)
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are
        raise CaptureFormatError("not JSON", remedy=remedy, path=str(file)) from error
    if not _is_ours(loaded):
        raise CaptureFormatError(
            "no file of measured peaks", remedy=remedy, path=str(file)
        )
    entries: dict[str, dict[str, Any]] = loaded["gpus"]
    return entries


def _is_ours(loaded: object) -> bool:
    """Return whether a file is what `keep_peaks` writes, down to each value."""
    if not isinstance(loaded, dict) or loaded.get("schema") != _SCHEMA:
        return False
    gpus = loaded.get("gpus")
    return isinstance(gpus, dict) and all(map(_is_entry, gpus.values()))


def _is_entry(entry: object) -> bool:
    """Return whether the entry of a GPU is whole."""
    if not isinstance(entry, dict) or "driver" not in entry:
        return False
    values = entry.get("values")
    return isinstance(values, dict) and all(
        name in _FIELDS and isinstance(value, (int, float)) and 0 < value < math.inf
        for name, value in values.items()
    )


_COPY_BYTES = 1 << 30  # far beyond every L2 (126 MiB on B200), 0.5 ms on an H200
_L2_PARTS = 4  # a quarter is read and a quarter written: half of the L2
_MATRIX = 8192  # large enough that a product is compute-bound on every GPU since Volta
# No fp64: libraries choose between two units for it, and do not say which it was.
_DTYPES = ("fp32", "tf32", "bf16", "fp16")
_AMPERE = (8, 0)  # before it tf32 and bf16 are not computed by the tensor cores
_WARM_UP_COUNT = 3
_SAMPLE_COUNT = 15


class ArrayFramework(Protocol):
    """What measuring needs of torch or cupy; tests put a scripted one in its place."""

    name: str

    def copier(self, size_bytes: int) -> Callable[[], object]:
        """Return what copies so many bytes of device memory to other device memory."""

    def multiplier(self, size: int, dtype: str) -> Callable[[], object] | None:
        """Return what multiplies two square matrices; None: not of this type."""

    def synchronize(self) -> None:
        """Wait until the device has done all of it."""


def measure_peaks(
    framework: ArrayFramework, clock: Clock, *, l2_bytes: int | None = None
) -> dict[str, float]:
    """
    Return what the device of a framework reaches.

    The median of 15 calls after 3 of warm-up, each waited for.

    Args:
        framework: Copies and multiplies.

        clock: Gives the time.

        l2_bytes: Size of the device's L2; None: not known, and it is not measured.

    Returns:
        B/s of "dram" and "l2", every byte counted once read and once written; FLOP/s by
        data type that the framework multiplies.

    Raises:
        CollectError: The framework failed, for want of memory among others.
    """
    try:
        copy_s = _time_s(framework.copier(_COPY_BYTES), framework, clock)
        peaks = {"dram": 2 * _COPY_BYTES / copy_s}
        if l2_bytes:
            peaks["l2"] = _l2_bytes_per_s(l2_bytes, framework, clock)
        for dtype in _DTYPES:
            multiply = framework.multiplier(_MATRIX, dtype)
            if multiply is not None:
                peaks[dtype] = 2 * _MATRIX**3 / _time_s(multiply, framework, clock)
    except (RuntimeError, MemoryError) as error:  # what torch and cupy raise
        message = f"{framework.name} could not measure: {error}"
        raise CollectError(message, remedy="free the GPU's memory first") from error
    return peaks


def _l2_bytes_per_s(l2_bytes: int, framework: ArrayFramework, clock: Clock) -> float:
    """
    Return what copies reach that never leave the L2 [B/s].

    Source and target together are half of it, so that neither pushes the other out. One
    such copy takes some microseconds, as long as launching it: many are timed as one.
    """
    size_bytes = max(1, l2_bytes // _L2_PARTS)
    count = -(-_COPY_BYTES // size_bytes)
    copy = framework.copier(size_bytes)

    def copies() -> None:
        for _ in range(count):
            copy()

    return 2 * size_bytes * count / _time_s(copies, framework, clock)


def find_framework() -> ArrayFramework:
    """
    Return torch or cupy, whichever is there and has a GPU.

    Raises:
        CollectorUnavailableError: Neither is; the message says why of each.
    """
    reasons = []
    for name, wrapper in (("torch", _Torch), ("cupy", _Cupy)):
        try:
            module = importlib.import_module(name)
        except ImportError:
            reasons.append(f"{name} is not installed")
            continue
        if wrapper.has_gpu(module):
            return wrapper(module)
        reasons.append(f"{name} finds no NVIDIA GPU")
    message = f"nothing can measure peaks: {' and '.join(reasons)}"
    raise CollectorUnavailableError(
        message, remedy="install torch or cupy, and run it where a GPU is"
    )


def _time_s(
    work: Callable[[], object], framework: ArrayFramework, clock: Clock
) -> float:
    """Return the median time of a call and the wait for it [s]."""
    samples = []
    for _ in range(_WARM_UP_COUNT + _SAMPLE_COUNT):
        framework.synchronize()
        begun_ns = clock.now_ns()
        work()
        framework.synchronize()
        samples.append(clock.now_ns() - begun_ns)
    return statistics.median(samples[_WARM_UP_COUNT:]) / NS_PER_S


class _Torch:
    """Copies and products of torch."""

    name = "torch"
    _TYPES: Mapping[str, str] = {
        "fp32": "float32",
        "tf32": "float32",
        "bf16": "bfloat16",
        "fp16": "float16",
    }

    def __init__(self, torch: Any) -> None:  # noqa: ANN401 - the library is optional
        self._torch = torch

    @staticmethod
    def has_gpu(torch: Any) -> bool:  # noqa: ANN401 - the library is optional
        """Return whether it can use an NVIDIA GPU."""
        return bool(torch.cuda.is_available()) and torch.version.cuda is not None

    def copier(self, size_bytes: int) -> Callable[[], object]:
        """Return what copies so many bytes."""
        torch = self._torch
        source = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    def multiplier(self, size: int, dtype: str) -> Callable[[], object] | None:
        """Return what multiplies two square matrices of a type; None: not this GPU."""
        torch = self._torch
        newer = dtype in {"tf32", "bf16"}
        if newer and torch.cuda.get_device_capability() < _AMPERE:
            return None
        kind = getattr(torch, self._TYPES[dtype])
        a, b = (torch.randn(size, size, device="cuda").to(kind) for _ in "ab")

        def multiply() -> object:
            before = torch.backends.cuda.matmul.allow_tf32
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
            try:
                return torch.matmul(a, b)
            finally:
                torch.backends.cuda.matmul.allow_tf32 = before

        return multiply

    def synchronize(self) -> None:
        """Wait for the device."""
        self._torch.cuda.synchronize()


class _Cupy:
    """Copies and products of cupy, which chooses tf32 and bf16 for nobody."""

    name = "cupy"
    _TYPES: Mapping[str, str] = {"fp32": "float32", "fp16": "float16"}

    def __init__(self, cupy: Any) -> None:  # noqa: ANN401 - the library is optional
        self._cupy = cupy

    @staticmethod
    def has_gpu(cupy: Any) -> bool:  # noqa: ANN401 - the library is optional
        """Return whether it can use an NVIDIA GPU."""
        return bool(cupy.cuda.is_available()) and not cupy.cuda.runtime.is_hip

    def copier(self, size_bytes: int) -> Callable[[], object]:
        """Return what copies so many bytes."""
        cupy = self._cupy
        source = cupy.zeros(size_bytes, dtype="uint8")
        target = cupy.empty_like(source)
        return lambda: cupy.copyto(target, source)

    def multiplier(self, size: int, dtype: str) -> Callable[[], object] | None:
        """Return what multiplies two square matrices of a type; None: it has none such."""
        kind = self._TYPES.get(dtype)
        if kind is None:
            return None
        cupy = self._cupy
        a, b = (cupy.random.rand(size, size).astype(kind) for _ in "ab")
        return lambda: cupy.matmul(a, b)

    def synchronize(self) -> None:
        """Wait for the device."""
        self._cupy.cuda.get_current_stream().synchronize()
