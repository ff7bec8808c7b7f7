"""The interfaces of the room, and the plain records that they exchange."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle, islice, repeat
from types import CodeType
from typing import ParamSpec, Protocol, TypeAlias, TypeVar, runtime_checkable

from pytest_gpuperf.errors import MeasureError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Note, Void
from pytest_gpuperf.model.sample import CacheMode

Arguments = tuple[tuple[object, ...], dict[str, object]]
# Waits until the next sample may be taken. The argument is true if there are enough
# samples, and the result is true if another sample is to be taken.
TakeTurn: TypeAlias = "Callable[[bool], bool]"

_P = ParamSpec("_P")
_R = TypeVar("_R")
_callers: set[CodeType] = set()

# The workloads of a GPU. A class needs three controls (docs/judging.md section 2).
GPU_WORKLOADS = ("gpu-compute", "gpu-copy", "gpu-latency")
# The modes that a test may request.
_CACHE_MODES = (CacheMode.COLD, CacheMode.WARM)
CACHE_REMEDY = 'write "cold" or "warm"'
# Outputs of one dispatch are ready together, and a long list is plain data.
_MEMBERS = 64


class StopRule(Protocol):
    """
    Decides when there are enough samples. Supplied by pipeline, because collectors never decide.
    """

    def enough(self, values: Sequence[float]) -> bool:
        """
        Return True if more samples would not improve the result.

        Args:
            values: All samples so far [s], in the order they were taken, >= 10 of them.
        """


def cache_mistake(value: object) -> str:
    """Return the reason that a value is not a cache mode, as a fragment, or ""."""
    is_mode = isinstance(value, str) and value in _CACHE_MODES
    return "" if is_mode else f"{reprlib.repr(value)} is not a cache mode"


class TimedCall(Frozen, frozen=True, kw_only=True):
    """
    A request to time a callable.

    Attributes:
        fn: The callable.

        args: The positional arguments.

        kwargs: The keyword arguments.

        setup: Returns fresh arguments before every call, outside the timing: a tuple,
            or (tuple, dict), or a single argument, or None for `args` and `kwargs`
            unchanged.

        inputs: A pool of arguments that rotates from sample to sample, with items as
            `setup` would return them, or None for `args` and `kwargs`.

        check: Called with the first, the last and some other timed outputs. An
            exception passes through, and a false value other than None is an
            AssertionError.

        make: Returns arguments as `setup` would, from a seed. After the samples, the
            function is called with some of them, or None for no such call.

        reference: Returns the right result for the same arguments, or None if unknown.

        cache: "cold" to flush the device's L2 before every sample, or "warm".

        cache_asked: Whether the test requested the mode, so that it is not the default.

        iterations: Exact number of calls to time, one per sample, after exactly four
            calls of warm-up, so that all ranks of a job call equally often. None to
            sample until the stop rule is met. If a call takes a second, in a process
            without other ranks, the number includes all calls, and the first call is a
            sample. If the first call uses a device or loads modules, or the call is one
            of two that are compared, the first call is an additional warm-up.

        budget_s: Stop after this time, once there are 10 samples [s], >= 0.

        minimum_s: Continue for at least this time [s], >= 0.
    """

    fn: Callable[..., object]
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = {}
    setup: Callable[[], object] | None = None
    inputs: Sequence[object] | None = None
    check: Callable[[object], object] | None = None
    make: Callable[[int], object] | None = None
    reference: Callable[..., object] | None = None
    cache: str = CacheMode.COLD
    cache_asked: bool = False
    iterations: int | None = None
    budget_s: float = 1.0
    minimum_s: float = 0.0

    def __post_init__(self) -> None:
        # The usual mode needs no call.
        why = "" if self.cache is CacheMode.COLD else cache_mistake(self.cache)
        if why:
            raise MeasureError(f"cache: {why}", remedy=CACHE_REMEDY)
        if self.iterations is not None and self.iterations < 1:
            message = f"iterations={self.iterations!r} is not a number of calls"
            raise MeasureError(message, remedy="give 1 or more, or leave it out")
        if self.setup is not None and self.inputs is not None:
            message = "both setup and inputs would give the arguments"
            raise MeasureError(message, remedy="give one of them")
        if self.inputs is not None and not self.inputs:
            message = "the pool of inputs is empty"
            raise MeasureError(message, remedy="put arguments into it")


class Garbage(Frozen, frozen=True, kw_only=True):
    """
    The garbage of a call that Python's collector found between the samples.

    Attributes:
        objects_count: Objects per call, >= 0.

        time_s: Time of collecting them, per call [s], >= 0.
    """

    objects_count: float
    time_s: float


class Timing(Frozen, frozen=True, kw_only=True):
    """
    A timed callable or block.

    Attributes:
        samples: Time of a call [s], in the order they were taken, >= 1 of them, by the
            best source.

        source: The collector of the samples: "cupti", "events" or "host".

        other_samples: The same samples by every other source that ran, best first, in
            the same number as `samples`. Sources are never compared with each other.

        returned: Time until each call returned [s], before waiting for the device, by
            the host's clock. Empty if nothing was waited for.

        iterations_count: Calls behind each sample, >= 1.

        discarded_count: Samples that were taken and rejected.

        first_call_s: Time of the very first call [s], or None for a block.

        warmup_count: Calls before the first sample, including the first call.

        cache_mode: The treatment of the device's caches before each sample.

        result: The return value of the last timed call, or None for a block.

        core_loops_s: Processor time of a small loop next to each sample [s], which
            shows the speed of the core. Empty if unknown.

        sm_clock_hz: The median of the multiprocessors' clock after each sample [Hz], or
            None if it was not read.

        unused: Whether the device is known to have been idle during the samples, so
            that the time is the host's alone.

        garbage: The garbage of a call, or None for a block, for a call that is compared
            with another, and for a test that has switched the collector off.

        notes: Notes for the reader.

        void: The reason that the timing must not be judged, or None.
    """

    samples: tuple[float, ...]
    source: str
    other_samples: Mapping[str, tuple[float, ...]] = {}
    returned: tuple[float, ...] = ()
    iterations_count: int = 1
    discarded_count: int = 0
    first_call_s: float | None = None
    warmup_count: int = 0
    cache_mode: CacheMode = CacheMode.UNTOUCHED
    result: object = None
    core_loops_s: tuple[float, ...] = ()
    sm_clock_hz: float | None = None
    unused: bool = False
    garbage: Garbage | None = None
    notes: tuple[Note, ...] = ()
    void: Void | None = None


class DeviceTimer(Protocol):
    """
    Times the device's side of calls, from inside their process.

    A *set* consists of the samples of one measurement: pairs of `begin` and `end`, read
    by `taken` now and then. `refusal` is called once at the end of a set, and begins
    the next set.

    Attributes:
        name: The source of the samples: "cupti" or "events".
    """

    name: str

    def begin(self) -> None:
        """
        Start a sample, after the flush, on an idle device, right before the call.

        If the call raises an exception, `end` is not called, and there is no sample.
        """

    def end(self) -> None:
        """End the sample, after the call has returned and before waiting for the device."""

    def taken(self) -> Sequence[float | None]:
        """
        Return the device's times of the samples since the last call of `taken` [s].

        Called while the device is idle.

        Returns:
            A time for each pair of `begin` and `end`, in order, or None for a sample
            that could not be timed.
        """

    def refusal(self) -> Void | None:
        """
        Return the reason that no sample of the set may be used, or None.

        If there is a reason, the next best source replaces the whole set, and a note
        gives the reason.
        """


@runtime_checkable
class Sequenced(Protocol):
    """A device timer that records the launches of a call."""

    def sequence(self) -> object:
        """
        Return the launches of the last sample, in order. The device must be idle.

        Returns:
            Any object that is equal for equal sequences, or None if unknown.
        """


@runtime_checkable
class Holding(Protocol):
    """A device timer that keeps raw data of its samples until `taken` is called."""

    def holds_much(self) -> bool:
        """Return True if `taken` should be called before more data is kept."""


@runtime_checkable
class Witness(Protocol):
    """A device timer that sees all work that this process gives the device."""

    def saw_nothing(self) -> bool:
        """
        Return True if no sample of the set gave the device any work, as far as read.

        False if uncertain. Call this after `taken` and before `refusal`.
        """


@runtime_checkable
class Watching(Protocol):
    """A device timer that may end a sample before the device has finished."""

    def watched(self, synchronize: Callable[[], None]) -> Callable[[], None]:
        """
        Return a function that waits for the device and detects work outliving the sample.

        Use the function instead of `synchronize` after `end`, during warm-up and if
        there is no second sample. This call also waits for the device, to learn how
        long waiting for an idle device takes.
        """


class Collector(Protocol):
    """Times a callable. Every way of timing has this interface."""

    name: str

    def measure(self, request: TimedCall, *, stop: StopRule) -> Timing:
        """
        Call a function until the time of a call is known.

        Raises:
            MeasureError: The request is invalid. The message names a valid one.
        """


def calls_the_test(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """
    Mark a function that calls code of the test, so that errors are the test's own.

    The function itself is returned, so that a timed call gets no wrapper.
    """
    _callers.add(function.__code__)
    return function


def is_call_of_the_test(code: CodeType) -> bool:
    """Return True if code belongs to a function marked by `calls_the_test`."""
    return code in _callers


def arguments(request: TimedCall, item: object) -> Arguments:
    """
    Return the arguments for an item of `inputs`, or for a return value of `setup`.

    Args:
        request: The request. Its keyword arguments are kept unless the item replaces
            them.

        item: A tuple, (tuple, dict), a single argument, or None for the request's
            arguments.

    Raises:
        MeasureError: The request also has positional arguments.
    """
    kwargs = dict(request.kwargs)
    if item is None:
        return request.args, kwargs
    if request.args:
        source = "inputs" if request.setup is None else "setup"
        message = f"both {source} and positional arguments would give the arguments"
        raise MeasureError(message, remedy="give one of them")
    if not isinstance(item, tuple):
        return (item,), kwargs
    if len(item) == 2 and isinstance(item[0], tuple) and isinstance(item[1], dict):  # noqa: PLR2004 - (args, kwargs)
        return item[0], kwargs | item[1]
    return item, kwargs


def calls(request: TimedCall) -> Callable[[], Callable[[], object]]:
    """Return a function that returns the next call, with the arguments bound."""
    fn, setup = request.fn, request.setup
    if setup is not None:

        @calls_the_test
        def next_call() -> Callable[[], object]:
            return _bound(fn, *arguments(request, setup()))

        return next_call
    if request.inputs is not None:
        pool = [_bound(fn, *arguments(request, item)) for item in request.inputs]
        return cycle(pool).__next__
    return repeat(_bound(fn, request.args, dict(request.kwargs))).__next__


# Values of these types hold nothing and have finished. They are the usual results.
PLAIN_TYPES = frozenset({bool, int, float, complex, str, bytes, type(None)})


def members_of(output: object, count: int) -> list[object]:
    """Return the first members of a tuple, list or dict, without running code of its class."""
    if isinstance(output, dict):
        return [*islice(dict.values(output), count)]
    if isinstance(output, tuple):
        return [*islice(tuple.__iter__(output), count)]
    if isinstance(output, list):
        return [*islice(list.__iter__(output), count)]
    return []


def unsettled(output: object) -> list[Callable[[], object]]:
    """
    Return functions that wait for an output that is still being computed, as in jax.

    Checked are the output itself, or the first members of a tuple, list or dict.
    """
    if type(output) in PLAIN_TYPES:
        return []
    members = (output, *members_of(output, _MEMBERS))
    # Of the type, because an object may answer to any name.
    return [
        partial(type(member).block_until_ready, member)  # type: ignore[attr-defined]
        for member in members
        if hasattr(type(member), "block_until_ready")
    ]


@calls_the_test
def settle(output: object) -> None:
    """Wait until an output has been computed."""
    if type(output) in PLAIN_TYPES:
        return
    for wait in unsettled(output):
        wait()


@calls_the_test
def _bound(
    fn: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> Callable[[], object]:
    return partial(fn, *args, **kwargs) if args or kwargs else fn
