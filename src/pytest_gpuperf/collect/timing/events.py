"""Device events around a call, in the call's stream.

The time between two events is the device's own: from the moment the stream reached the
first until all work queued before the second was done. Work in other streams is not
part of it, nor is work on other devices. The warm-up checks for such work, and then
events are refused for the whole set.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol

from pytest_gpuperf.collect.clock import NS_PER_S
from pytest_gpuperf.collect.cuda_device import raise_failure
from pytest_gpuperf.collect.runtime import driver_library
from pytest_gpuperf.collect.torch_device import TorchRuntime, torch_failure
from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.model.record import Void, VoidCode
from pytest_gpuperf.model.sample import Source

_SUCCESS = 0
# CUDA_ERROR_DEINITIALIZED: the process is on its way out.
_DEINITIALIZED = 4
# CUDA_ERROR_NOT_READY: an event was not recorded, or not reached.
_NOT_READY = 600
_TIMED = 0  # CU_EVENT_DEFAULT: with a time.
# The default stream, which waits for all but non-blocking streams.
_LEGACY_STREAM = 0
_DEFAULT_STREAMS = (0, 1, 2)  # NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD.
_S_PER_MS = 1e-3
# Waiting for an idle device takes 1.6 us, and 2.2 us while CUPTI records (H200), so a
# wait this much longer was work. The value is our choice: while CUPTI recorded into
# buffers of 8 MiB, three of six measurements with one stream had 11 us, and with
# buffers of 1 MiB none of three.
_OUTLIVED_NS = 10_000
# Fraction of the time between the events. No rule judges less.
_OUTLIVED_SHARE = 0.005
# Beyond this, a quarter of the calls, and two at least, decide: a stream that only some
# calls use outlasts only these. Processor time is compared, because other processes make
# waits of a loaded machine milliseconds longer. CUDA waits by spinning, unless the
# program asks for another way (cudaDeviceScheduleBlockingSync), and is then not seen.
_OFTEN_OUTLIVED_NS = 100_000
_OFTEN = 4
# The shortest of these waits was not interrupted.
_IDLE_WAITS = 3
# Each wait of a warm-up follows work for which the host only spun. On a machine that others
# use, its code has left the caches by then: such a wait for an idle device took 115 us
# instead of 13 (torch double, two cores, load of 8). What looks like work is therefore
# compared with idle waits that follow a spin of the same length, up to this limit.
_COLD_WAITS = 16
_MOST_SPUN_NS = 5_000_000
_LEAST_READING_NS = 30  # No reading of the clock is faster.
_READING = (AttributeError, KeyError, TypeError, ValueError, RuntimeError)


class Events(Protocol):
    """Events of one vendor's runtime. A refused call raises a CollectError."""

    def place(self) -> Hashable | None:
        """Return the context that new events belong to, or None if no device is in use."""

    def stream(self) -> Any:  # noqa: ANN401 - each runtime has streams of its own
        """Return the stream that the body would work in now."""

    def create(self) -> Any:  # noqa: ANN401 - each runtime has events of its own
        """Return a new event of the current context."""

    def record(self, event: Any, stream: Any) -> None:  # noqa: ANN401 - what it made
        """Queue an event in a stream, behind all work there."""

    def wait(self, event: Any) -> None:  # noqa: ANN401 - what it made
        """Wait until the device has reached an event."""

    def elapsed_s(self, start: Any, end: Any) -> float | None:  # noqa: ANN401 - what it made
        """Return the time between two events [s], or None if an event was not reached."""


class CurrentStream:
    """
    The stream that the frameworks of this process would launch into now.

    torch and cupy are queried if they are loaded, and nothing is imported. numba and
    direct users of the driver have no current stream. They use the legacy default
    stream, which waits for every stream but non-blocking ones.

    H200: torch's stream is followed, and cupy's default one too. *Unverified on
    hardware:* other streams of cupy, and numba.

    Args:
        modules: The loaded modules by name, or None for those of this interpreter.
    """

    def __init__(self, modules: Mapping[str, ModuleType] | None = None) -> None:
        self._modules = sys.modules if modules is None else modules

    def __call__(self) -> int:
        """
        Return the handle of the stream, the first that is not a default stream.

        Raises:
            CollectError: A framework does not show its current stream.
        """
        handles: list[int] = []
        for name, find in (("torch", _torch_stream), ("cupy", _cupy_stream)):
            module = self._modules.get(name)
            if module is None:
                continue
            try:
                handle = find(module)
            except _READING as error:
                message = f"{name} does not say its current stream ({error})"
                raise CollectError(
                    message,
                    remedy="install pytest-gpuperf[cupti] to measure its device time",
                ) from error
            if handle is not None:
                handles.append(handle)
        if not handles and "jax" in self._modules:
            raise CollectError(
                "jax has no interface for its current stream",
                remedy="install pytest-gpuperf[cupti] to measure its device time",
            )
        made_by_user = (handle for handle in handles if handle not in _DEFAULT_STREAMS)
        return next(made_by_user, handles[0] if handles else _LEGACY_STREAM)


class CudaEvents:
    """
    Events of the CUDA driver that the tests have loaded.

    It loads no library and creates no context. An event belongs to the current context
    of the thread that made it, and ends with it.

    Seen on an H200 (driver 580). *Unverified on hardware:* more than one device.

    Args:
        library: Returns the driver library, or None while it is not loaded.

        current_stream: Returns the handle of the stream that the body would work in.
    """

    def __init__(
        self, library: Callable[[], Any | None], current_stream: Callable[[], int]
    ) -> None:
        self._find = library
        self._driver: Any | None = None
        self._current_stream = current_stream

    def place(self) -> Hashable | None:
        """Return the current context of the thread, or None."""
        if self._driver is None:
            self._driver = self._find()
        if self._driver is None:
            return None
        handle = ctypes.c_void_p()
        status = self._driver.cuCtxGetCurrent(ctypes.byref(handle))
        return handle.value if status == _SUCCESS else None

    def stream(self) -> ctypes.c_void_p:
        """Return the stream that the body would work in now."""
        return ctypes.c_void_p(self._current_stream())

    def create(self) -> ctypes.c_void_p:
        """Return a new event with timing enabled."""
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(_TIMED))
        return event

    def record(self, event: ctypes.c_void_p, stream: ctypes.c_void_p) -> None:
        """Queue an event in a stream, behind all work there."""
        self._call("cuEventRecord", event, stream)

    def wait(self, event: ctypes.c_void_p) -> None:
        """Wait until the device has reached an event."""
        self._call("cuEventSynchronize", event)

    def elapsed_s(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float | None:
        """Return the time between two events [s], or None if an event was not reached."""
        elapsed_ms = ctypes.c_float()
        status = self._driver.cuEventElapsedTime(  # type: ignore[union-attr] # place found it
            ctypes.byref(elapsed_ms), start, end
        )
        if status in {_NOT_READY, _DEINITIALIZED}:
            return None
        if status != _SUCCESS:
            raise_failure(self._driver, "cuEventElapsedTime", status)
        elapsed_s = elapsed_ms.value * _S_PER_MS
        return elapsed_s if math.isfinite(elapsed_s) and elapsed_s > 0 else None

    def _call(self, name: str, *args: object) -> None:
        status = int(getattr(self._driver, name)(*args))
        if status not in {_SUCCESS, _DEINITIALIZED}:
            raise_failure(self._driver, name, status)


class _Pair:
    """The two events of a sample, with their context and stream."""

    __slots__ = ("end", "events", "place", "start", "stream")

    def __init__(self, events: Events, place: Hashable) -> None:
        self.events = events
        self.place = place
        self.start = events.create()
        self.end = events.create()
        self.stream: Any = None


class _Waits:
    """The waits of a callable after its second events, and its longest time between them."""

    __slots__ = ("longest_ns", "synchronize", "taken")

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self.synchronize = synchronize
        self.longest_ns = 0.0
        # By the clock, 0 if it is allowed, and by processor time.
        self.taken: list[tuple[int, int]] = []


class EventTimer:
    """
    Times samples with a pair of events each (collect.base.DeviceTimer).

    `begin` and `end` record one event each. Pairs are created once and reused. A
    refusal by the runtime refuses the whole set, with the reason, and never fails the
    test.

    H200: samples hold the host's launch, 8 to 27 us above the span that CUPTI sees
    (docs/hardware.md).

    Args:
        events: Events of each runtime that this process may use, the likeliest first.

        now_ns: The clock, to detect work that outlives the second event.

        cpu_ns: The clock of the thread's processor time, to detect work that outlives
            it after some calls, or None to detect none.
    """

    name: str = Source.EVENTS

    def __init__(
        self,
        events: Sequence[Events],
        now_ns: Callable[[], int],
        *,
        cpu_ns: Callable[[], int] | None = None,
    ) -> None:
        self._events = tuple(events)
        self._now_ns = now_ns
        self._cpu_ns = cpu_ns
        self._free: dict[Hashable, list[_Pair]] = {}
        self._open: _Pair | None = None
        self._taken: list[_Pair | None] = []
        # The waits of each watched callable.
        self._watched: list[_Waits] = []
        self._failure: CollectError | None = None

    def begin(self) -> None:
        """Record the first event of a sample, in the stream that is current now."""
        # The sample of the open pair raised.
        if self._open is not None:
            self._release(self._open)
            self._open = None
        if self._failure is not None:
            return
        try:
            for events in self._events:
                place = events.place()
                if place is not None:
                    stream = events.stream()
                    free = self._free.get(place)
                    pair = free.pop() if free else _Pair(events, place)
                    pair.stream = stream
                    events.record(pair.start, stream)
                    self._open = pair
                    break
        except CollectError as error:
            self._failure = error

    def end(self) -> None:
        """Record the second event in the stream of the first event."""
        pair, self._open = self._open, None
        self._taken.append(pair)
        if pair is None:
            return
        try:
            pair.events.record(pair.end, pair.stream)
        except CollectError as error:
            self._failure = error

    def taken(self) -> list[float | None]:
        """Return the times of the samples since the last call [s], None for a failed one."""
        values: list[float | None] = []
        for pair in self._taken:
            value = None
            if pair is not None and self._failure is None:
                try:
                    value = pair.events.elapsed_s(pair.start, pair.end)
                except CollectError as error:
                    self._failure = error
            values.append(value)
        for pair in self._taken:
            if pair is not None:
                self._release(pair)
        self._taken.clear()
        return values

    def refusal(self) -> Void | None:
        """Return why no sample of the set may be used, or None, and begin the next set."""
        failure, self._failure = self._failure, None
        watched, self._watched = self._watched, []
        if failure is not None:
            # The pairs may belong to a context that is gone.
            self._free.clear()
            return Void(code=VoidCode.EVENTS_FAILED, reason=str(failure))
        longest_ns = max(map(self._outlived_ns, watched), default=0)
        if not longest_ns:
            return None
        reason = (
            f"the device worked for {longest_ns / 1000:.0f} us after the call's current"
            " stream had ended: the call uses other streams or devices too"
        )
        return Void(code=VoidCode.OUTLIVES_EVENTS, reason=reason)

    def watched(self, synchronize: Callable[[], None]) -> Callable[[], None]:
        """Return a wait that measures device work after the second event."""
        synchronize()
        idle_ns = min(self._time(synchronize) for _ in range(_IDLE_WAITS))
        waits = _Waits(synchronize)
        self._watched.append(waits)

        def wait() -> None:
            pair = self._taken[-1] if self._taken else None
            if pair is None or self._failure is not None:
                synchronize()
                return
            seen_ns = 0.0
            try:
                pair.events.wait(pair.end)
                seen_s = pair.events.elapsed_s(pair.start, pair.end) or 0.0
                seen_ns = seen_s * NS_PER_S
            except CollectError as error:
                self._failure = error
            allowed_ns = max(_OUTLIVED_NS, _OUTLIVED_SHARE * seen_ns)
            waits.longest_ns = max(waits.longest_ns, seen_ns)
            waited_ns, spun_ns = self._waited(synchronize)
            waited_ns -= idle_ns
            waits.taken.append(
                (waited_ns if waited_ns > allowed_ns else 0, min(waited_ns, spun_ns))
            )

        return wait

    def _outlived_ns(self, waits: _Waits) -> int:
        """Return how long calls outlived their events [ns], or 0 if idle waits are as long."""
        found_ns = _outlived_ns(waits.taken)
        for _ in range(_COLD_WAITS if found_ns else 0):
            # The processor is kept busy, as a wait for the device does. The clock may stand
            # still.
            duration_ns = min(waits.longest_ns, _MOST_SPUN_NS)
            end_ns = self._now_ns() + duration_ns
            for _ in range(int(duration_ns / _LEAST_READING_NS)):
                if self._now_ns() >= end_ns:
                    break
            waited_ns, spun_ns = self._waited(waits.synchronize)
            idle_ns = waited_ns if self._cpu_ns is None else min(waited_ns, spun_ns)
            if idle_ns >= found_ns:
                return 0
        return found_ns

    def _waited(self, wait: Callable[[], None]) -> tuple[int, int]:
        """Return the duration of a wait, and its processor time, or 0 if unknown [ns]."""
        cpu_ns = self._cpu_ns
        spun_ns = 0 if cpu_ns is None else -cpu_ns()
        waited_ns = self._time(wait)
        return waited_ns, spun_ns + (0 if cpu_ns is None else cpu_ns())

    def _time(self, wait: Callable[[], None]) -> int:
        begun_ns = self._now_ns()
        wait()
        return self._now_ns() - begun_ns

    def _release(self, pair: _Pair) -> None:
        self._free.setdefault(pair.place, []).append(pair)


def _outlived_ns(waits: Sequence[tuple[int, int]]) -> int:
    """
    Return how long the calls of one callable outlived their events [ns], or 0.

    The shortest wait counts. Another stream outlasts each call, and a core that is
    shared, or has just been waiting for the device, makes only some waits longer. Waits
    that took far more processor time count if they are frequent.

    Args:
        waits: The time of each wait, 0 if it is allowed, and its processor time [ns].
    """
    often = max(2, len(waits) // _OFTEN)
    if len(waits) < often:
        return min((waited_ns for waited_ns, _ in waits), default=0)
    often_ns = sorted(spun_ns for waited_ns, spun_ns in waits if waited_ns)[-often:]
    is_often = len(often_ns) == often and often_ns[0] > _OFTEN_OUTLIVED_NS
    least_ns = min(waited_ns for waited_ns, _ in waits)
    return max(least_ns, often_ns[0] if is_often else 0)


class TorchEvents:
    """
    Events of torch, on the device's current stream.

    torch before 2.6 has them in its modules for ROCm and Intel alone.

    *Unverified on hardware:* no such device has been seen.

    Args:
        runtime: The torch runtime, which knows the device.

        modules: The loaded modules by name, or None for those of this interpreter.
    """

    def __init__(
        self, runtime: TorchRuntime, modules: Mapping[str, ModuleType] | None = None
    ) -> None:
        self._runtime = runtime
        self._modules = sys.modules if modules is None else modules

    def place(self) -> Hashable | None:
        """Return the device in use, or None if no device is in use."""
        return self._runtime.device()

    def stream(self) -> object:
        """Return the stream that torch would launch into now."""
        accelerator = getattr(self._modules["torch"], "accelerator", None)
        where = self._runtime.kind() if accelerator is None else "accelerator"
        try:
            return (accelerator or self._runtime.backend()).current_stream()
        except AttributeError as error:
            raise self._too_old(error) from error
        except RuntimeError as error:
            raise torch_failure(f"torch.{where}.current_stream", error) from error

    def create(self) -> object:
        """Return a new event."""
        torch: Any = self._modules["torch"]
        try:
            if getattr(torch, "accelerator", None) is None:
                return self._runtime.backend().Event(enable_timing=True)
            return torch.Event(device=self._runtime.device(), enable_timing=True)
        except AttributeError as error:
            raise self._too_old(error) from error
        except (RuntimeError, TypeError) as error:
            raise torch_failure("torch.Event", error) from error

    def record(self, event: Any, stream: object) -> None:  # noqa: ANN401 - an optional library has no types
        """Queue an event in a stream, behind all work there."""
        try:
            event.record(stream)
        except RuntimeError as error:
            raise torch_failure("torch.Event.record", error) from error

    def wait(self, event: Any) -> None:  # noqa: ANN401 - an optional library has no types
        """Wait until the device has reached an event."""
        try:
            event.synchronize()
        except RuntimeError as error:
            raise torch_failure("torch.Event.synchronize", error) from error

    def elapsed_s(self, start: Any, end: Any) -> float | None:  # noqa: ANN401 - an optional library has no types
        """Return the time between two events [s]."""
        try:
            return float(start.elapsed_time(end)) * _S_PER_MS
        except RuntimeError as error:
            raise torch_failure("torch.Event.elapsed_time", error) from error

    def _too_old(self, error: AttributeError) -> CollectError:
        message = f"torch's events need torch 2.6 on {self._runtime.kind()} ({error})"
        return CollectError(message, remedy="install torch 2.6 or newer")


def find_events() -> tuple[Events, ...]:
    """Return the events of all runtimes that the process may use."""
    torch = TorchEvents(TorchRuntime())
    if sys.platform == "darwin":
        return (torch,)
    return CudaEvents(driver_library(), CurrentStream()), torch


def _torch_stream(torch: Any) -> int | None:  # noqa: ANN401 - an optional library has no types
    """Return torch's current stream, or None if torch has not started CUDA."""
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    return _handle(cuda.current_stream(), "cuda_stream")


def _cupy_stream(cupy: Any) -> int | None:  # noqa: ANN401 - an optional library has no types
    return _handle(cupy.cuda.get_current_stream(), "ptr")


def _handle(stream: Any, attribute: str) -> int:  # noqa: ANN401 - any framework's stream
    """
    Return the handle of a stream.

    References:
        The `__cuda_stream__` protocol of cuda.core: a tuple (0, handle).
    """
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is None:
        return int(getattr(stream, attribute))
    version, handle = protocol() if callable(protocol) else protocol
    if version != 0:
        message = f"version {version} of __cuda_stream__ is not supported"
        raise ValueError(message)
    return int(handle)
