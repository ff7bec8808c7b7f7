"""What a call takes of a device's memory, as the allocators around it count.

Asked are the allocators of frameworks that somebody has imported; nothing is imported. They
count live memory: blocks that a pool keeps for the next time are free, so that no pool is
trimmed to find out what was leaked. Where something is left behind, garbage is collected
before it is called a leak.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Protocol, final

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Note

__all__ = ["Allocator", "CupyPool", "MemoryUse", "MemoryWatch", "TorchPool"]

# of torch: NVIDIA's and AMD's devices are both its "cuda"
_TORCH_BACKENDS = ("cuda", "xpu")
_READING = (AttributeError, KeyError, TypeError, ValueError, RuntimeError)
_HOOK = "cupy.cuda.memory_hook"


class MemoryUse(Frozen, frozen=True, kw_only=True):
    """
    What a call, or a block, took of the device's memory.

    Attributes:
        source: The allocators that were asked, as "torch" or "torch+cupy"; "": none is
            in use.

        peak_bytes: The most that was in use at a time, what was there before included
            [B]; of several devices, the fullest one's; None: not known.

        leaked_bytes: What is in use beyond what was before, after garbage was collected
            [B], >= 0; None: not known.

        allocations_count: Times that memory was asked of the driver; None: not known.

        reason: Why what is None is not known; "": all of it is.

        remedy: What to do about it; "": what is usual.

        notes: What the reader should know.
    """

    source: str = ""
    peak_bytes: int | None = None
    leaked_bytes: int | None = None
    allocations_count: int | None = None
    reason: str = ""
    remedy: str = ""
    notes: tuple[Note, ...] = ()


class Allocator(Protocol):
    """One framework's; every answer may be None: it does not say."""

    name: str

    def active(self) -> bool:
        """Return whether the framework holds a device by now."""

    def begin(self, *, calling: bool) -> None:
        """
        Count anew from here.

        Args:
            calling: Whether it may be called at each allocation: no time is taken.
        """

    def end(self) -> None:
        """Stop counting."""

    def peak_bytes(self) -> int | None:
        """Return the most in use since `begin` on the fullest device [B]."""

    def in_use_bytes(self) -> int | None:
        """Return what is in use now, on all devices [B]."""

    def allocations_count(self) -> int | None:
        """Return how often the driver has been asked for memory; only differences count."""


class TorchPool:
    """
    The caching allocator of torch, on every device that it has started.

    *Unverified on hardware.*

    Args:
        modules: The loaded modules by name; None: those of this interpreter.
    """

    name = "torch"

    def __init__(self, modules: Mapping[str, ModuleType] | None = None) -> None:
        self._modules = sys.modules if modules is None else modules

    def active(self) -> bool:
        """Return whether torch has started a device."""
        return self._backend() is not None

    def begin(self, *, calling: bool) -> None:  # noqa: ARG002 - of the seam; torch counts
        """Begin the peak anew on every device."""
        self._each(lambda backend, index: backend.reset_peak_memory_stats(index))

    def end(self) -> None:
        """Do nothing: it always counts."""

    def peak_bytes(self) -> int | None:
        """Return the peak of the fullest device [B]."""
        peaks = self._each(lambda torch, index: int(torch.max_memory_allocated(index)))
        return None if peaks is None else max(peaks, default=None)

    def in_use_bytes(self) -> int | None:
        """Return what live tensors take [B]."""
        used = self._each(lambda torch, index: int(torch.memory_allocated(index)))
        return None if used is None else sum(used)

    def allocations_count(self) -> int | None:
        """Return how often it called cudaMalloc, or what the device has in its place."""
        counts = self._each(
            lambda torch, index: int(torch.memory_stats(index)["num_device_alloc"])
        )
        return None if counts is None else sum(counts)

    def _backend(self) -> Any | None:  # noqa: ANN401 - an optional library has no types
        """Return the part of torch that has started a device; None: none has."""
        torch = self._modules.get("torch")
        for name in _TORCH_BACKENDS:
            backend = getattr(torch, name, None)
            try:
                if backend is not None and backend.is_initialized():
                    return backend
            except _READING:
                continue
        return None

    def _each(self, ask: Callable[[Any, int], Any]) -> list[Any] | None:
        """Return what every device says; None: torch does not (another allocator)."""
        backend = self._backend()
        if backend is None:
            return None
        try:
            return [ask(backend, index) for index in range(backend.device_count())]
        except _READING:
            return None


class CupyPool:
    """
    The default memory pool of cupy, on the current device.

    It counts no peak: that takes a hook, which is called at each allocation of this
    thread. Where time is taken there is none, and the peak is not known.

    *Unverified on hardware.*

    Args:
        modules: The loaded modules by name; None: those of this interpreter.
    """

    name = "cupy"

    def __init__(self, modules: Mapping[str, ModuleType] | None = None) -> None:
        self._modules = sys.modules if modules is None else modules
        self._hook: Any | None = None  # of this count, also when it has ended
        self._entered = False

    def active(self) -> bool:
        """Return whether anything was ever taken from the pool."""
        try:
            return bool(self._pool().total_bytes() > 0)
        except _READING:
            return False

    def begin(self, *, calling: bool) -> None:
        """Count from here, with a hook where one may be called."""
        self.end()
        self._hook = None
        base = getattr(self._modules.get(_HOOK), "MemoryHook", None)
        used_bytes = self.in_use_bytes()
        if not calling or base is None or used_bytes is None:
            return
        hook = _counting_hook(base, used_bytes)
        try:
            hook.__enter__()
        except _READING:  # one of that name is there already
            return
        self._hook, self._entered = hook, True

    def end(self) -> None:
        """Take the hook out, if it is still there."""
        if self._hook is not None and self._entered:
            self._entered = False
            self._hook.__exit__(None, None, None)

    def peak_bytes(self) -> int | None:
        """Return the most that was in use while the hook was there [B]."""
        return None if self._hook is None else int(self._hook.peak_bytes)

    def in_use_bytes(self) -> int | None:
        """Return what live arrays take of the pool [B]."""
        try:
            return int(self._pool().used_bytes())
        except _READING:
            return None

    def allocations_count(self) -> int | None:
        """Return how often the pool asked the driver while the hook was there."""
        return None if self._hook is None else int(self._hook.driver_count)

    def _pool(self) -> Any:  # noqa: ANN401 - an optional library has no types
        """Return the default pool."""
        cupy: Any = self._modules.get("cupy")
        return cupy.get_default_memory_pool()


def _counting_hook(base: Any, used_bytes: int) -> Any:  # noqa: ANN401 - an optional library has no types
    """Return a hook of cupy's that counts what is in use, from what was."""

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
    Watches what one call, or one block, takes.

    Args:
        allocators: Of the frameworks; None: of those that this process may import.
    """

    def __init__(self, allocators: tuple[Allocator, ...] | None = None) -> None:
        self._allocators = allocators or (TorchPool(), CupyPool())
        self._begun: dict[str, tuple[int | None, int | None]] = {}
        self._kept: dict[str, int] = {}  # peaks until somebody began them anew
        self._beside: dict[str, int] = {}  # what a result takes that is none of it

    def begin(self, *, calling: bool) -> None:
        """
        Begin to count, right before the call.

        Args:
            calling: Whether allocators may call back: no time is taken meanwhile.
        """
        self._begun = {}
        self._kept = {}
        self._beside = {}
        for each in self._allocators:
            each.begin(calling=calling)
            if each.active():
                self._begun[each.name] = each.in_use_bytes(), each.allocations_count()

    def keep(self) -> None:
        """Remember the peaks so far: another watch is about to begin them anew."""
        for each in self._allocators:
            peak_bytes = each.peak_bytes()
            if peak_bytes is not None:
                kept_bytes = self._kept.get(each.name, 0)
                self._kept[each.name] = max(peak_bytes, kept_bytes)

    def let_go(self, result: list[object], *, beside: bool) -> None:
        """
        Let go of the result of the call, on an idle device.

        Args:
            result: It, alone.

            beside: Whether the result of an earlier call was kept all the time. It takes
                as much as this one gives back, which is none of this call's peak.
        """
        held = {each.name: each.in_use_bytes() for each in self._allocators}
        result.clear()
        for each in self._allocators if beside else ():
            before, now = held[each.name], each.in_use_bytes()
            if before is not None and now is not None:
                self._beside[each.name] = max(0, before - now)

    def end(self) -> MemoryUse:
        """
        Return what was taken, on an idle device.

        An allocator that was started only meanwhile had nothing in use before. The
        garbage of Python is collected if something seems to be left behind, once.
        """
        for each in self._allocators:
            each.end()
        active = [each for each in self._allocators if each.active()]
        if not active:
            return MemoryUse(reason="no framework in this process holds device memory")
        peaks = [
            self._peak_bytes(each) for each in active
        ]  # before garbage is looked for
        counts = [self._since(each, 1, each.allocations_count()) for each in active]
        left = self._left_bytes(active)
        if left is not None and left > 0:
            gc.collect()
            left = self._left_bytes(active)
        return MemoryUse(
            source="+".join(each.name for each in active),
            peak_bytes=_total(peaks),
            leaked_bytes=None if left is None else max(0, left),
            allocations_count=_total(counts),
            reason=_unknown(active, peaks, counts),
            notes=_added_note(active) if len(active) > 1 else (),
        )

    def abandon(self) -> None:
        """Stop counting: what was watched has raised."""
        for each in self._allocators:
            each.end()

    def _peak_bytes(self, allocator: Allocator) -> int | None:
        """Return the peak since the beginning [B]; None: not known."""
        peak_bytes = allocator.peak_bytes()
        if peak_bytes is None:
            return None
        peak_bytes = max(peak_bytes, self._kept.get(allocator.name, 0))
        return max(0, peak_bytes - self._beside.get(allocator.name, 0))

    def _left_bytes(self, active: list[Allocator]) -> int | None:
        """Return what is in use beyond what was [B]; None: not known."""
        return _total([self._since(each, 0, each.in_use_bytes()) for each in active])

    def _since(self, allocator: Allocator, place: int, now: int | None) -> int | None:
        """Return by how much a number has grown since the beginning; None: not known."""
        before = self._begun.get(allocator.name, (0, 0))[place]
        return None if now is None or before is None else now - before


def _total(numbers: list[int | None]) -> int | None:
    """Return the sum of numbers that are all known; None: one is not."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _unknown(
    active: list[Allocator], peaks: list[int | None], counts: list[int | None]
) -> str:
    """Return why something is not known; "": all of it is."""
    silent = [
        each.name
        for each, peak, count in zip(active, peaks, counts, strict=True)
        if peak is None or count is None
    ]
    if not silent:
        return ""
    return f"{' and '.join(silent)} does not count it here"


def _added_note(active: list[Allocator]) -> tuple[Note, ...]:
    """Return a note that peaks of several allocators were added."""
    text = (
        f"memory is the sum of {' and '.join(each.name for each in active)}, whose peaks"
        " need not have been at the same time"
    )
    return (Note(code="added-peaks", text=text),)
