"""The seams of the room and the plain records that cross them; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pytest_gpuperf.errors import MeasureError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Note, Void

__all__ = ["CACHE_MODES", "Collector", "StopRule", "TimedCall", "Timing"]

# what a test may ask for; a Timing may also say "none"
CACHE_MODES = ("cold", "warm")


class StopRule(Protocol):
    """Says when samples are enough; pipeline hands it over, collectors never decide."""

    def enough(self, values: Sequence[float]) -> bool:
        """
        Return whether more samples would add nothing.

        Args:
            values: All samples so far [s], in the order they were taken, >= 10 of them.
        """


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

        iterations: Calls to time, exactly, one a sample, after exactly four of warm-up,
            so that all ranks of a job call equally often; None: until it is enough.

        budget_s: Stop after this long, once there are 10 samples [s], >= 0.

        minimum_s: Go on for at least this long [s], >= 0.
    """

    fn: Callable[..., object]
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = {}
    setup: Callable[[], object] | None = None
    inputs: Sequence[object] | None = None
    check: Callable[[object], object] | None = None
    cache: str = "cold"
    iterations: int | None = None
    budget_s: float = 1.0
    minimum_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a request that has no meaning."""
        if self.cache not in CACHE_MODES:
            message = f"cache={self.cache!r} is no cache mode"
            raise MeasureError(message, remedy='give cache="cold" or cache="warm"')
        if self.iterations is not None and self.iterations < 1:
            message = f"iterations={self.iterations!r} is no number of calls"
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
        samples: Time of a call [s], in the order they were taken, >= 1 of them.

        source: The collector.

        iterations_count: Calls behind each sample, >= 1.

        discarded_count: Samples that were taken and refused.

        first_call_s: Time of the very first call [s]; None for a block.

        warmup_count: Calls before the first sample, the first one included.

        cache_mode: "cold" or "warm"; "none": nothing was done about caches, for there
            was no device to flush.

        result: What the last timed call returned; None for a block.

        notes: What the reader should know.

        void: Why it must not be judged; None: it may.
    """

    samples: tuple[float, ...]
    source: str
    iterations_count: int = 1
    discarded_count: int = 0
    first_call_s: float | None = None
    warmup_count: int = 0
    cache_mode: str = "none"
    result: object = None
    notes: tuple[Note, ...] = ()
    void: Void | None = None


class Collector(Protocol):
    """Times a callable; every way of doing so has this shape."""

    name: str

    def measure(self, request: TimedCall, *, stop: StopRule) -> Timing:
        """
        Call until it is known how long a call takes.

        Raises:
            MeasureError: The request has no meaning, and it says what would have.
        """
