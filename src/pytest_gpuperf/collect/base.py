"""The seams of the room, and the plain records that cross them."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import cycle, islice, repeat
from types import CodeType
from typing import ParamSpec, Protocol, TypeAlias, TypeVar, runtime_checkable

from pytest_gpuperf.errors import MeasureError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Note, Void
from pytest_gpuperf.model.sample import CacheMode

__all__ = [
    "CACHE_REMEDY",
    "Arguments",
    "Collector",
    "DeviceTimer",
    "Holding",
    "Sequenced",
    "StopRule",
    "TakeTurn",
    "TimedCall",
    "Timing",
    "Watching",
    "Witness",
    "arguments",
    "cache_mistake",
    "calls",
    "calls_the_test",
    "is_call_of_the_test",
    "settle",
    "unsettled",
]

Arguments = tuple[tuple[object, ...], dict[str, object]]
# waits until the next sample may be taken, told whether there are enough; returns whether
# it is to be taken
TakeTurn: TypeAlias = "Callable[[bool], bool]"

_P = ParamSpec("_P")
_R = TypeVar("_R")
_callers: set[CodeType] = set()

_CACHE_MODES = (CacheMode.COLD, CacheMode.WARM)  # what a test may ask for
CACHE_REMEDY = 'write "cold" or "warm"'
_MEMBERS = 64  # outputs of one dispatch are ready together; a long list is plain data


class StopRule(Protocol):
    """Says when samples are enough; pipeline hands it over, collectors never decide."""

    def enough(self, values: Sequence[float]) -> bool:
        """
        Return whether more samples would add nothing.

        Args:
            values: All samples so far [s], in the order they were taken, >= 10 of them.
        """


def cache_mistake(value: object) -> str:
    """Return why a value is not a cache mode, as a fragment; "": it is one."""
    is_mode = isinstance(value, str) and value in _CACHE_MODES
    return "" if is_mode else f"{reprlib.repr(value)} is not a cache mode"


class TimedCall(Frozen, frozen=True, kw_only=True):
    """
    What a test asks to have timed.

    Attributes:
        fn: The callable.

        args: Its positional arguments.

        kwargs: Its keyword arguments.

        setup: Returns fresh arguments before every call, untimed: a tuple, or (tuple,
            dict), or the one argument, or None for `args` and `kwargs` as they are.

        inputs: A pool of arguments that rotates from sample to sample, each as `setup`
            would return it; None: `args` and `kwargs`.

        check: Called with the first and the last timed output; what it raises passes
            through, and a false value that is not None is an AssertionError.

        cache: "cold": flush the device's L2 before every sample; "warm": do not.

        cache_asked: Whether that was asked for, and is not the default.

        iterations: Calls to time, exactly, one a sample, after exactly four of warm-up,
            so that all ranks of a job call equally often; None: until it is enough. Of a
            call that takes a second, in a process without other ranks, there are as many
            calls in all, and the first is a sample; where it uses a device or loads modules,
            or is one of two that are compared, it is one more that warms up.

        budget_s: Stop after this long, once there are 10 samples [s], >= 0.

        minimum_s: Go on for at least this long [s], >= 0.
    """

    fn: Callable[..., object]
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = {}
    setup: Callable[[], object] | None = None
    inputs: Sequence[object] | None = None
    check: Callable[[object], object] | None = None
    cache: str = CacheMode.COLD
    cache_asked: bool = False
    iterations: int | None = None
    budget_s: float = 1.0
    minimum_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a request that has no meaning."""
        why = cache_mistake(self.cache)
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


class Timing(Frozen, frozen=True, kw_only=True):
    """
    A timed callable or block.

    Attributes:
        samples: Time of a call [s], in the order they were taken, >= 1 of them, by the
            best source.

        source: The collector that gave them: "cupti", "events" or "host".

        other_samples: The same samples by every other source that ran, best first; as many as
            there are in `samples`. Sources are never compared with each other.

        returned: Time until each call returned [s], before anything was waited for, by
            the host's clock; empty: nothing was waited for.

        iterations_count: Calls behind each sample, >= 1.

        discarded_count: Samples that were taken and refused.

        first_call_s: Time of the very first call [s]; None for a block.

        warmup_count: Calls before the first sample, the first one included.

        cache_mode: What was done about the device's caches before each sample.

        result: What the last timed call returned; None for a block.

        core_loops_s: Processor time of a small loop beside each sample [s], which tells
            how fast the core was; empty: not known.

        sm_clock_hz: The median of the multiprocessor's clock after each sample [Hz];
            None: it was not read.

        unused: Whether it is known that the device did nothing in it, so that its time
            is the host's alone.

        notes: What the reader should know.

        void: Why it must not be judged; None: it may.
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
    notes: tuple[Note, ...] = ()
    void: Void | None = None


class DeviceTimer(Protocol):
    """
    Times the device's side of calls, from inside their process.

    A *set* is what one measurement takes: pairs of `begin` and `end`, asked for by
    `taken` now and then, and at its end by `refusal` once, which begins the next set.

    Attributes:
        name: The source of its samples: "cupti" or "events".
    """

    name: str

    def begin(self) -> None:
        """
        Start a sample, after the flush, on an idle device, right before the call.

        A sample that raised had no `end`, and is none.
        """

    def end(self) -> None:
        """End it, right after the call returned, before the device is waited for."""

    def taken(self) -> Sequence[float | None]:
        """
        Return the device's time of each sample since it was last asked [s].

        Asked while the device is idle.

        Returns:
            One for each pair of `begin` and `end`, in their order; None: this one could
            not be timed.
        """

    def refusal(self) -> Void | None:
        """
        Return why no sample of the set may be used; None: they may.

        The next best source stands in for the whole set then, and a note says why.
        """


@runtime_checkable
class Sequenced(Protocol):
    """A device timer that sees what a call launches."""

    def sequence(self) -> object:
        """
        Return what the last sample launched, in order, on a device that is idle now.

        Returns:
            Anything that is equal for equal sequences; None: it is not known.
        """


@runtime_checkable
class Holding(Protocol):
    """A device timer that holds what it was told of its samples until it is asked."""

    def holds_much(self) -> bool:
        """Return whether it should be asked for what it has taken, before it is more."""


@runtime_checkable
class Witness(Protocol):
    """A device timer that sees all that this process gives the device."""

    def saw_nothing(self) -> bool:
        """
        Return whether no sample of this set gave the device anything, as far as asked for.

        False where that is not certain. To be asked after `taken`, before `refusal`.
        """


@runtime_checkable
class Watching(Protocol):
    """A device timer that may end a sample before the device has."""

    def watched(self, synchronize: Callable[[], None]) -> Callable[[], None]:
        """
        Return what waits for the device and sees whether it outlives the sample.

        To be put in the place of `synchronize` after `end`, in warm-up and where there is
        no second sample. The device is waited for here too, to learn how long waiting for
        an idle one takes.
        """


class Collector(Protocol):
    """Times a callable; every way of doing so has this shape."""

    name: str

    def measure(self, request: TimedCall, *, stop: StopRule) -> Timing:
        """
        Call until it is known how long a call takes.

        Raises:
            MeasureError: The request has no meaning, and it says what would have.
        """


def calls_the_test(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """
    Mark a function whose line calls what the test gave: an error of that line is its own.

    The function itself is returned: nothing is put around a call that is timed.
    """
    _callers.add(function.__code__)
    return function


def is_call_of_the_test(code: CodeType) -> bool:
    """Return whether code is of a function that `calls_the_test` marked."""
    return code in _callers


def arguments(request: TimedCall, item: object) -> Arguments:
    """
    Return the arguments that one item of `inputs`, or one return of `setup`, stands for.

    Args:
        request: Whose keyword arguments are kept where the item gives no others.

        item: A tuple, (tuple, dict), the one argument, or None for the request's own.

    Raises:
        MeasureError: The request has positional arguments, too.
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
    """Return what gives the next call, with its arguments bound."""
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


def unsettled(output: object) -> list[Callable[[], object]]:
    """
    Return the waits of an output that is still being computed, as jax returns it.

    Looked at: the output, or the first members of a tuple, list or dict.
    """
    members: Iterable[object] = (output,)
    if isinstance(output, (tuple, list)):
        members = output[:_MEMBERS]
    elif isinstance(output, dict):
        members = islice(output.values(), _MEMBERS)
    waits = (getattr(member, "block_until_ready", None) for member in members)
    return [wait for wait in waits if wait is not None]


@calls_the_test
def settle(output: object) -> None:
    """Wait until an output has been computed."""
    for wait in unsettled(output):
        wait()


@calls_the_test
def _bound(
    fn: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> Callable[[], object]:
    """Return a callable without arguments; one that needs none is not wrapped."""
    return partial(fn, *args, **kwargs) if args or kwargs else fn
