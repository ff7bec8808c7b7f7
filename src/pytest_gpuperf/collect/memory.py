"""Device memory that a call uses, and host memory that is free for processes."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, final

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Note

# torch calls both NVIDIA's and AMD's devices "cuda".
_TORCH_BACKENDS = ("cuda", "xpu")
_READ_ERRORS = (AttributeError, KeyError, TypeError, ValueError, RuntimeError)
_HOOK = "cupy.cuda.memory_hook"


class MemoryUse(Frozen, frozen=True, kw_only=True):
    """
    Device memory that a call or a block used.

    Attributes:
        source: The allocators that were read, such as "torch" or "torch+cupy", or "" if
            none is in use.

        peak_bytes: Peak memory in use, including memory in use before [B]. With several
            devices, the peak of the fullest device. None if not counted.

        leaked_bytes: Growth of memory in use, after a garbage collection [B], >= 0, or
            None if not counted.

        allocations_count: Allocations by the driver, or None if not counted.

        reason: The reason that a value is None, or "".

        remedy: The remedy for the reason, or "" for the usual remedy.

        notes: Notes for the reader.
    """

    source: str = ""
    peak_bytes: int | None = None
    leaked_bytes: int | None = None
    allocations_count: int | None = None
    reason: str = ""
    remedy: str = ""
    notes: tuple[Note, ...] = ()


class Allocator(Protocol):
    """The allocator of a framework. Every number is None if not counted."""

    name: str

    def active(self) -> bool:
        """Return True if the framework has started a device."""

    def begin(self, *, calling: bool) -> None:
        """
        Start counting.

        Args:
            calling: Whether a hook may run at each allocation, because nothing is timed
                now.
        """

    def end(self) -> None:
        """Stop counting."""

    def peak_bytes(self) -> int | None:
        """Return the peak in use since `begin` on the fullest device [B]."""

    def in_use_bytes(self) -> int | None:
        """Return the memory in use now, on all devices [B]."""

    def allocations_count(self) -> int | None:
        """Return the driver's allocations so far. Only differences are meaningful."""

    def release(self) -> None:
        """Return memory that is held but not in use to the device."""


class TorchPool:
    """
    The caching allocator of torch, on every device that torch has started.

    Tested on an H200 with torch 2.11. *Unverified on hardware:* more than one device.

    Args:
        modules: The loaded modules by name, or None for those of this interpreter.
    """

    name = "torch"

    def __init__(self, modules: Mapping[str, ModuleType] | None = None) -> None:
        self._modules = sys.modules if modules is None else modules

    def active(self) -> bool:
        """Return True if torch has started a device."""
        return self._backend() is not None

    def begin(self, *, calling: bool) -> None:  # noqa: ARG002 - of the seam; torch counts
        """Reset the peak on every device."""
        self._per_device(lambda backend, index: backend.reset_peak_memory_stats(index))

    def end(self) -> None:
        """Do nothing, because torch always counts."""

    def peak_bytes(self) -> int | None:
        """Return the peak of the fullest device [B]."""
        peaks = self._per_device(
            lambda torch, index: int(torch.max_memory_allocated(index))
        )
        return None if peaks is None else max(peaks, default=None)

    def in_use_bytes(self) -> int | None:
        """Return the memory of live tensors [B]."""
        used = self._per_device(lambda torch, index: int(torch.memory_allocated(index)))
        return None if used is None else sum(used)

    def allocations_count(self) -> int | None:
        """Return the number of cudaMalloc calls, or of the device's equivalent."""
        counts = self._per_device(
            lambda torch, index: int(torch.memory_stats(index)["num_device_alloc"])
        )
        return None if counts is None else sum(counts)

    def release(self) -> None:
        """Empty the cache of every device."""
        self._per_device(lambda backend, _: backend.empty_cache())

    def _backend(self) -> Any | None:  # noqa: ANN401 - an optional library has no types
        """Return the torch backend that has started a device, or None."""
        torch = self._modules.get("torch")
        for name in _TORCH_BACKENDS:
            backend = getattr(torch, name, None)
            try:
                if backend is not None and backend.is_initialized():
                    return backend
            except _READ_ERRORS:
                continue
        return None

    def _per_device(self, ask: Callable[[Any, int], Any]) -> list[Any] | None:
        """Return a reading of every device, or None if not provided by torch's allocator."""
        backend = self._backend()
        if backend is None:
            return None
        try:
            return [ask(backend, index) for index in range(backend.device_count())]
        except _READ_ERRORS:
            return None


class CupyPool:
    """
    The default memory pool of cupy, on the current device.

    A peak needs a hook that runs at each allocation of this thread. While a call is
    timed, there is no hook, and the peak is not counted.

    Tested on an H200 with cupy 14.2.

    Args:
        modules: The loaded modules by name, or None for those of this interpreter.
    """

    name = "cupy"

    def __init__(self, modules: Mapping[str, ModuleType] | None = None) -> None:
        self._modules = sys.modules if modules is None else modules
        # The hook of the current count, kept after the count has ended.
        self._hook: Any | None = None
        self._entered = False

    def active(self) -> bool:
        """Return True if the pool has ever allocated memory."""
        try:
            return bool(self._pool().total_bytes() > 0)
        except _READ_ERRORS:
            return False

    def begin(self, *, calling: bool) -> None:
        """Start counting, with a hook if one may run."""
        self.end()
        self._hook = None
        base = getattr(self._modules.get(_HOOK), "MemoryHook", None)
        used_bytes = self.in_use_bytes()
        if not calling or base is None or used_bytes is None:
            return
        hook = _counting_hook(base, used_bytes)
        try:
            hook.__enter__()
        except _READ_ERRORS:
            # A hook of this name is already installed.
            return
        self._hook, self._entered = hook, True

    def end(self) -> None:
        """Remove the hook, if still installed."""
        if self._hook is not None and self._entered:
            self._entered = False
            self._hook.__exit__(None, None, None)

    def peak_bytes(self) -> int | None:
        """Return the peak in use while the hook was installed [B]."""
        return None if self._hook is None else int(self._hook.peak_bytes)

    def in_use_bytes(self) -> int | None:
        """Return the memory of live arrays in the pool [B]."""
        try:
            return int(self._pool().used_bytes())
        except _READ_ERRORS:
            return None

    def allocations_count(self) -> int | None:
        """Return the driver's allocations while the hook was installed."""
        return None if self._hook is None else int(self._hook.driver_count)

    def release(self) -> None:
        """Free the blocks of the pool that no array uses."""
        with contextlib.suppress(*_READ_ERRORS):
            self._pool().free_all_blocks()

    def _pool(self) -> Any:  # noqa: ANN401 - an optional library has no types
        cupy: Any = self._modules.get("cupy")
        return cupy.get_default_memory_pool()


def _counting_hook(base: Any, used_bytes: int) -> Any:  # noqa: ANN401 - an optional library has no types

    class Hook(base):  # type: ignore[misc] # cupy's own class, which has no types
        name = "pytest-gpuperf"

        def __init__(self) -> None:
            self.used_bytes = used_bytes
            self.peak_bytes = used_bytes
            self.driver_count = 0

        def alloc_postprocess(self, **_: object) -> None:
            self.driver_count += 1

        def malloc_postprocess(self, *, mem_size: int, **_: object) -> None:
            self.used_bytes += mem_size
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)

        def free_postprocess(self, *, mem_size: int, **_: object) -> None:
            self.used_bytes -= mem_size

    return Hook()


@final
class MemoryWatch:
    """
    Measures the device memory of a call or a block.

    Args:
        allocators: The allocators to read, or None for those of torch and cupy.
    """

    def __init__(self, allocators: tuple[Allocator, ...] | None = None) -> None:
        self._allocators = allocators or (TorchPool(), CupyPool())
        self._before: dict[str, tuple[int | None, int | None]] = {}
        # Peaks saved before another watch reset the counters.
        self._earlier_peaks: dict[str, int] = {}
        # Memory of an earlier result, which is not part of the peak.
        self._other_bytes: dict[str, int] = {}

    def begin(self, *, calling: bool) -> None:
        """
        Start counting, right before the call.

        Args:
            calling: Whether allocators may run hooks, because nothing is timed during
                the call.
        """
        self._before = {}
        self._earlier_peaks = {}
        self._other_bytes = {}
        for allocator in self._allocators:
            allocator.begin(calling=calling)
            if allocator.active():
                self._before[allocator.name] = (
                    allocator.in_use_bytes(),
                    allocator.allocations_count(),
                )

    def keep(self) -> None:
        """Save the peaks so far, before another watch resets the counters."""
        for allocator in self._allocators:
            peak_bytes = allocator.peak_bytes()
            if peak_bytes is not None:
                earlier_bytes = self._earlier_peaks.get(allocator.name, 0)
                self._earlier_peaks[allocator.name] = max(peak_bytes, earlier_bytes)

    def release_result(self, result: list[object], *, earlier_alive: bool) -> None:
        """
        Release the result of the call, on an idle device.

        Args:
            result: The result, as the only item.

            earlier_alive: Whether the result of an earlier call was alive all the time.
                It occupies as much memory as this result releases, which is not part of
                this call's peak.
        """
        in_use_bytes = {
            allocator.name: allocator.in_use_bytes() for allocator in self._allocators
        }
        result.clear()
        for allocator in self._allocators if earlier_alive else ():
            before, now = in_use_bytes[allocator.name], allocator.in_use_bytes()
            if before is not None and now is not None:
                self._other_bytes[allocator.name] = max(0, before - now)

    def end(self) -> MemoryUse:
        """
        Stop counting and return the memory used, on an idle device.

        An allocator that was started during the call had nothing in use before.
        Python's garbage is collected once if memory seems to be leaked.
        """
        for allocator in self._allocators:
            allocator.end()
        active = [allocator for allocator in self._allocators if allocator.active()]
        if not active:
            return MemoryUse(reason="no framework in this process holds device memory")
        # The peaks are read before garbage is collected.
        peaks = [self._peak_bytes(allocator) for allocator in active]
        counts = [
            self._since(allocator, 1, allocator.allocations_count())
            for allocator in active
        ]
        leaked_bytes = self._leaked_bytes(active)
        if leaked_bytes is not None and leaked_bytes > 0:
            gc.collect()
            leaked_bytes = self._leaked_bytes(active)
        names = [allocator.name for allocator in active]
        silent = [
            name
            for name, peak, count in zip(names, peaks, counts, strict=True)
            if peak is None or count is None
        ]
        added = (
            f"memory is the sum of {' and '.join(names)}, "
            "whose peaks may be at different times"
        )
        return MemoryUse(
            source="+".join(names),
            peak_bytes=_total(peaks),
            leaked_bytes=None if leaked_bytes is None else max(0, leaked_bytes),
            allocations_count=_total(counts),
            reason=f"{' and '.join(silent)} does not count it here" if silent else "",
            notes=(Note(code="added-peaks", text=added),) if len(active) > 1 else (),
        )

    def cancel(self) -> None:
        """Stop counting, because the call has raised an exception."""
        for allocator in self._allocators:
            allocator.end()

    def _peak_bytes(self, allocator: Allocator) -> int | None:
        """Return the peak since `begin` [B], or None if not counted."""
        peak_bytes = allocator.peak_bytes()
        if peak_bytes is None:
            return None
        peak_bytes = max(peak_bytes, self._earlier_peaks.get(allocator.name, 0))
        return max(0, peak_bytes - self._other_bytes.get(allocator.name, 0))

    def _leaked_bytes(self, active: list[Allocator]) -> int | None:
        return _total(
            [
                self._since(allocator, 0, allocator.in_use_bytes())
                for allocator in active
            ]
        )

    def _since(self, allocator: Allocator, place: int, now: int | None) -> int | None:
        before = self._before.get(allocator.name, (0, 0))[place]
        return None if now is None or before is None else now - before


def _total(numbers: list[int | None]) -> int | None:
    counted = [number for number in numbers if number is not None]
    return sum(counted) if len(counted) == len(numbers) else None


def release_unused(allocators: tuple[Allocator, ...] | None = None) -> None:
    """
    Return unused memory of frameworks to the device, for later processes.

    Args:
        allocators: The allocators, or None for those of torch and cupy.
    """
    active = [a for a in allocators or (TorchPool(), CupyPool()) if a.active()]
    if active:
        # Arrays of tests that have ended may be part of reference cycles.
        gc.collect()
    for allocator in active:
        allocator.release()


def fits_on_device(
    count: int, *, peak_bytes: int | None, free_bytes: Callable[[], int | None]
) -> bool:
    """
    Return True if a device's memory holds a number of processes at the same time.

    Also true if the peak or the free memory is unknown.

    Args:
        count: The number of processes.

        peak_bytes: The most memory that a test has had in use on the device [B].

        free_bytes: Returns the memory that is free for new processes [B].
    """
    if not peak_bytes:
        return True
    free = free_bytes()
    return free is None or count * (peak_bytes + _CONTEXT_BYTES) <= free


# Our choice. A CUDA context and the code of a framework take some 0.5 GB, and an
# allocator holds more than is in use.
_CONTEXT_BYTES = 1 << 30
_KIB = 1024
_ROOT = Path("/")


def fits_in_memory(count: int) -> bool:
    """
    Return True if host memory holds a number of processes.

    Each process is taken to be as large as the largest of this run. Also true if the
    system does not report the free memory.
    """
    free, largest = free_bytes(), largest_process_bytes()
    return free is None or largest is None or count * largest <= free


def free_bytes(root: Path = _ROOT) -> int | None:
    """
    Return the memory that is free for new processes [B], or None if unknown.

    Args:
        root: The folder of Linux's own file systems. The limit of a container is read
            there, too.
    """
    limits = []
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        # What the kernel can provide without swapping.
        if name == "MemAvailable":
            limits.append(int(value.split()[0]) * _KIB)
    # What is left to the control group of the process.
    path = _text(root / "proc/self/cgroup").partition("0::/")[2].strip()
    group = root / "sys/fs/cgroup" / path
    limit, used = _text(group / "memory.max"), _text(group / "memory.current")
    if limit.strip().isdecimal() and used.strip().isdecimal():
        # Cached file pages count as used, but are released when memory is needed.
        stat = dict(line.split() for line in _text(group / "memory.stat").splitlines())
        limits.append(int(limit) - int(used) + int(stat.get("inactive_file", 0)))
    return min(limits, default=None)


def largest_process_bytes(root: Path = _ROOT) -> int | None:
    """
    Return the peak memory of the process or of any child that has ended [B].

    Args:
        root: The folder of Linux's own file systems.

    Returns:
        The memory, or None on Windows.
    """
    if sys.platform == "win32":
        return None
    # Imported here, because most runs do not need it.
    import resource

    unit = 1 if sys.platform == "darwin" else _KIB
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    for line in _text(root / "proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            own = int(value.split()[0]) * _KIB
            break
    else:
        # This includes the memory of the program that started the process.
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return max(own, children)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
