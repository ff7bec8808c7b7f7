"""Peaks measured on this machine: measuring them and storing them."""

from __future__ import annotations

import importlib
import json
import math
import os
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from pytest_gpuperf.collect.clock import NS_PER_S, Clock
from pytest_gpuperf.collect.devices import DeviceQuery
from pytest_gpuperf.collect.listed_devices import with_driver_facts
from pytest_gpuperf.collect.peaks import cpu_peaks, find_peaks
from pytest_gpuperf.collect.runtime import DeviceRuntime
from pytest_gpuperf.collect.scratch import user_cache
from pytest_gpuperf.disk import write_whole
from pytest_gpuperf.errors import (
    CaptureFormatError,
    CollectError,
    CollectorUnavailableError,
)
from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.roofline import LEVELS, DeclaredPeaks, Peaks
from pytest_gpuperf.model.work import DTYPE_BYTES

FILE_VARIABLE = "GPUPERF_PEAKS"
_SCHEMA = "pytest-gpuperf/peaks/1"
_FIELDS = frozenset({*LEVELS, *DTYPE_BYTES})


class StoredPeaks(Frozen, frozen=True, kw_only=True):
    """
    The stored peaks of one GPU.

    Attributes:
        values: B/s by level of memory, FLOP/s by data type. Empty if none are stored.

        reason: The reason that stored peaks cannot be used, or "".
    """

    values: Mapping[str, float] = {}
    reason: str = ""


def peaks_file() -> Path:
    """Return the file of measured peaks: $GPUPERF_PEAKS, or a file in the user's cache folder."""
    named = os.environ.get(FILE_VARIABLE)
    return Path(named) if named else user_cache("peaks.json")


def stored_peaks(device: Device, file: Path | None = None) -> StoredPeaks:
    """
    Return the stored peaks of a GPU, measured with the present driver.

    Args:
        device: The GPU.

        file: The file, or None for the user's file.

    Returns:
        The values. They are empty, with the reason, if the file cannot be used or
        another driver was installed at the time.
    """
    file = file or peaks_file()
    try:
        entry = _read(file).get(device.uuid)
    except CollectError as error:
        return StoredPeaks(reason=error.message)
    if entry is None:
        return StoredPeaks()
    if entry["driver"] != device.driver_version:
        reason = (
            f"{file}: peaks of this GPU were measured with driver {entry['driver']}, "
            f"not with {device.driver_version}"
        )
        return StoredPeaks(reason=reason)
    return StoredPeaks(values=entry["values"])


def store_peaks(
    device: Device, values: Mapping[str, float], file: Path | None = None
) -> Path:
    """
    Store the measured peaks of a GPU in place of older peaks, and return the file.

    Args:
        device: The GPU.

        values: B/s by level of memory, FLOP/s by data type.

        file: The file, or None for the user's file.

    Raises:
        CollectError: The file cannot be written, or is not a file of peaks.
    """
    file = file or peaks_file()
    entries = _read(file)
    entries[device.uuid] = {
        "driver": device.driver_version,
        "name": device.name,
        "values": dict(values),
    }
    text = json.dumps({"schema": _SCHEMA, "gpus": entries}, indent=1, sort_keys=True)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, f"{text}\n".encode(), sync=False)
    except OSError as error:
        message = f"{file}: it cannot be written ({error.strerror})"
        raise CollectError(
            message, remedy=f"set {FILE_VARIABLE} to another file"
        ) from error
    return file


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """
    Return the entries of a file by UUID, or {} if there is no file.

    Raises:
        CollectError: The file cannot be read, or is not a file of peaks.
    """
    try:
        # Reading a pipe would block for ever.
        if file.exists() and not file.is_file():
            message = f"{file}: it cannot be read (it is a folder or a device)"
            raise CollectError(message, remedy=f"set {FILE_VARIABLE} to a file")
        text = file.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        message = f"{file}: it cannot be read ({error.strerror})"
        raise CollectError(message, remedy="check its permissions") from error
    remedy = f"remove it, or set {FILE_VARIABLE} to another file"
    try:
        loaded = json.loads(text)
    except ValueError as error:
        # UnicodeDecodeError or JSONDecodeError.
        raise CaptureFormatError(
            "it is not JSON", remedy=remedy, path=str(file)
        ) from error
    if not _is_ours(loaded):
        raise CaptureFormatError(
            "not a file of measured peaks", remedy=remedy, path=str(file)
        )
    entries: dict[str, dict[str, Any]] = loaded["gpus"]
    return entries


def _is_ours(loaded: object) -> bool:
    if not isinstance(loaded, dict) or loaded.get("schema") != _SCHEMA:
        return False
    gpus = loaded.get("gpus")
    if not isinstance(gpus, dict):
        return False
    for entry in gpus.values():
        if not isinstance(entry, dict) or "driver" not in entry:
            return False
        values = entry.get("values")
        if not isinstance(values, dict) or not _FIELDS.issuperset(values):
            return False
        for value in values.values():
            if not isinstance(value, (int, float)) or not 0 < value < math.inf:
                return False
    return True


# Far larger than every L2 (126 MiB on B200). 0.5 ms on an H200.
_COPY_BYTES = 1 << 30
# A quarter is read and a quarter written, together half of the L2.
_L2_PARTS = 4
# Large enough that a product is compute-bound on every GPU since Volta.
_MATRIX = 8192
# No fp64: libraries choose between two units for it and do not report which.
_DTYPES = ("fp32", "tf32", "bf16", "fp16")
# Older tensor cores have no tf32 and bf16.
_AMPERE = (8, 0)
_WARM_UP_COUNT = 3
_SAMPLE_COUNT = 15


class ArrayFramework(Protocol):
    """The measured operations of torch or cupy. Tests replace it with a scripted framework."""

    name: str

    def copier(self, size_bytes: int) -> Callable[[], object]:
        """Return a function that copies a number of bytes within device memory."""

    def multiplier(self, size: int, dtype: str) -> Callable[[], object] | None:
        """
        Return a function that multiplies square matrices, or None if the type is unsupported.
        """

    def synchronize(self) -> None:
        """Wait until the device is idle."""


def measure_peaks(
    framework: ArrayFramework, clock: Clock, *, l2_bytes: int | None = None
) -> dict[str, float]:
    """
    Measure the rates that a device reaches.

    Each rate is the median of 15 synchronized calls after 3 calls of warm-up.

    Args:
        framework: Copies and multiplies.

        clock: Source of the time.

        l2_bytes: Size of the device's L2 [B], or None if unknown, so that L2 is not
            measured.

    Returns:
        B/s of "dram" and "l2", every byte counted once read and once written, and
        FLOP/s by data type that the framework multiplies.

    Raises:
        CollectError: The framework failed, for example because memory is full.
    """
    try:
        copy_s = _time_s(framework.copier(_COPY_BYTES), framework, clock)
        peaks = {"dram": 2 * _COPY_BYTES / copy_s}
        if l2_bytes:
            size_bytes = max(1, l2_bytes // _L2_PARTS)
            count = -(-_COPY_BYTES // size_bytes)
            copy = framework.copier(size_bytes)

            def copies() -> None:
                for _ in range(count):
                    copy()

            peaks["l2"] = 2 * size_bytes * count / _time_s(copies, framework, clock)
        for dtype in _DTYPES:
            multiply = framework.multiplier(_MATRIX, dtype)
            if multiply is not None:
                peaks[dtype] = 2 * _MATRIX**3 / _time_s(multiply, framework, clock)
    except (RuntimeError, MemoryError) as error:
        # The exceptions of torch and cupy.
        message = f"{framework.name} could not measure: {error}"
        raise CollectError(message, remedy="free the GPU's memory first") from error
    return peaks


def find_framework() -> ArrayFramework:
    """
    Return the first of torch and cupy that is installed and has a GPU.

    Raises:
        CollectorUnavailableError: Neither can be used. The message has both reasons.
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
    message = f"no framework can measure peaks: {' and '.join(reasons)}"
    raise CollectorUnavailableError(
        message, remedy="install torch or cupy on a machine with a GPU"
    )


def _time_s(
    work: Callable[[], object], framework: ArrayFramework, clock: Clock
) -> float:
    """Return the median time of a call with synchronization [s]."""
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
        """Return True if the framework can use an NVIDIA GPU."""
        return bool(torch.cuda.is_available()) and torch.version.cuda is not None

    def copier(self, size_bytes: int) -> Callable[[], object]:
        """Return a function that copies a number of bytes."""
        torch = self._torch
        source = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    def multiplier(self, size: int, dtype: str) -> Callable[[], object] | None:
        """Return a function that multiplies two matrices, or None if the GPU lacks the type."""
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
    """Copies and products of cupy, which has neither tf32 nor bf16."""

    name = "cupy"
    _TYPES: Mapping[str, str] = {"fp32": "float32", "fp16": "float16"}

    def __init__(self, cupy: Any) -> None:  # noqa: ANN401 - the library is optional
        self._cupy = cupy

    @staticmethod
    def has_gpu(cupy: Any) -> bool:  # noqa: ANN401 - the library is optional
        """Return True if the framework can use an NVIDIA GPU."""
        return bool(cupy.cuda.is_available()) and not cupy.cuda.runtime.is_hip

    def copier(self, size_bytes: int) -> Callable[[], object]:
        """Return a function that copies a number of bytes."""
        cupy = self._cupy
        source = cupy.zeros(size_bytes, dtype="uint8")
        target = cupy.empty_like(source)
        return lambda: cupy.copyto(target, source)

    def multiplier(self, size: int, dtype: str) -> Callable[[], object] | None:
        """Return a function that multiplies two matrices, or None if the type is unsupported."""
        kind = self._TYPES.get(dtype)
        if kind is None:
            return None
        cupy = self._cupy
        a, b = (cupy.random.rand(size, size).astype(kind) for _ in "ab")
        return lambda: cupy.matmul(a, b)

    def synchronize(self) -> None:
        """Wait for the device."""
        self._cupy.cuda.get_current_stream().synchronize()


# The name of the CPU in declared peaks.
_CPU = "cpu"


def peaks_in_use(
    runtime: DeviceRuntime, query: DeviceQuery, declared: DeclaredPeaks
) -> Peaks:
    """
    Return the peaks of the device that the process uses now.

    This is the GPU of the current context, or the CPU without a context. The GPU of the
    machine does not matter to a function that does not use it. A GPU that only torch
    knows has declared peaks alone.

    Args:
        runtime: Knows the GPU in use.

        query: The GPUs of this machine.

        declared: The peaks declared by the user, by device name.
    """
    own = runtime.own_device()
    if own is not None:
        return _named(
            find_peaks(own, declared=declared.get(own.name)), own.name, declared
        )
    uuid = runtime.device_uuid()
    if uuid is None:
        return _named(cpu_peaks(declared.get(_CPU)), _CPU, declared)
    device = next((device for device in query.devices if device.uuid == uuid), None)
    split = [device for device in query.devices if device.mig]
    if device is None and len(split) == 1:
        device = split[0]  # A slice belongs to the only GPU that is split.
    if device is None:
        why = f"NVML does not list the GPU in use ({query.reason or uuid})"
        return Peaks(device=uuid, flop_per_s={}, bytes_per_s={}, unlisted=why)
    facts = with_driver_facts(device, runtime.facts_of(uuid))
    # Measurements of a whole GPU do not apply to a slice.
    whole = device.uuid == uuid
    measured = stored_peaks(device) if whole else StoredPeaks()
    peaks = find_peaks(
        facts, declared=declared.get(facts.name), measured=measured.values
    )
    if measured.reason:
        peaks = replace(peaks, notes=(*peaks.notes, f"{measured.reason}."))
    return _named(peaks, facts.name, declared)


def _named(peaks: Peaks, name: str, declared: DeclaredPeaks) -> Peaks:
    """Add a note to peaks if declarations exist, but only for other devices."""
    if not declared or name in declared:
        return peaks
    names = ", ".join(declared)
    note = f"gpuperf_peaks declares those of {names}, and this is {name}"
    return replace(peaks, notes=(*peaks.notes, note))
