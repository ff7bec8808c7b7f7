"""What a call must keep to be timed again and again.

A repeated call must do the same work each time: it may not change its inputs, it must be
done when it says so, and its time should have no trend.
"""

from __future__ import annotations

import bisect
import inspect
import math
import statistics
from collections.abc import Awaitable, Iterator, Sequence
from functools import partial
from itertools import chain
from types import BuiltinMethodType, MethodType, MethodWrapperType

from pytest_gpuperf.collect.base import TimedCall, arguments
from pytest_gpuperf.collect.timing.contents import (
    Content,
    contents,
    digest,
    holdings,
    scalar_bytes,
)
from pytest_gpuperf.errors import MeasureError
from pytest_gpuperf.model.record import Note, Void, VoidCode

__all__ = ["Contract", "refuse_function", "refuse_result"]

_TREND_Z = 3.29  # the halves differ at two-sided 0.1 %: a note in one of 1,000 tests
_TREND_RATIO = (
    1.02  # docs/judging.md section 1: a clock that drifts by 2 % voids a sample set
)
_TREND_LEAST = 10  # the fewest samples that are ever taken
_CONSTANT_PROBES = 4096  # evenly spaced elements that are looked at
_METHODS = (BuiltinMethodType, MethodType, MethodWrapperType)
# A first call is often 10 times as long (caches of the processor); 100 times of 1 ms and
# more is a compilation, or work that only the first call has.
_FIRST_RATIO, _FIRST_S = 100, 1e-3
# With other evidence that it had: more than a first call of anything takes, of which the
# slowest that was seen compiles a regular expression in 40 us.
_USED_UP_RATIO, _USED_UP_S = 10, 1e-4
_SETUP = "give setup= (of measure or compare) that returns"


class Contract:
    """
    The evidence that one measurement kept the repetition contract.

    What it can see: arrays (numpy, torch, cupy, numba), buffers, and lists, deques, dicts
    and sets of numbers and texts among the arguments, or as the object of a bound method;
    of other objects, which attributes were emptied. What can be gone through only once
    (iterators, generators, files) is no input of a repeated call, unless it is known that
    nothing was taken of it. With `setup` the inputs are fresh and are not looked at.

    Args:
        request: What is about to be called for the first time.
    """

    def __init__(self, request: TimedCall) -> None:
        self._request = request
        self._inputs = _input_contents(request)
        self._before = [digest(content) for content in self._inputs]
        self._owners = [(owner, holdings(owner)) for owner in _owners(request)]
        self._very_first: bytes | None = None
        self._first: bytes | None = None

    def very_first_output(self, output: object, *, on_device: bool = False) -> None:
        """
        Remember what the very first call returned, which is no sample.

        Not of a device: it compiles in that call, and the output would be fetched.
        """
        if self._comparable and not on_device:
            self._very_first = _output_digest(output)

    def first_output(self, output: object) -> None:
        """Check the first timed output, and remember what it was."""
        self._check(output, "first")
        if self._comparable:
            self._first = _output_digest(output)

    def last_output(self, output: object) -> None:
        """Check the last timed output."""
        self._check(output, "last")

    def void(self) -> Void | None:
        """Return why the measurement must not be judged; None: it may."""
        changed = [
            content
            for content, then in zip(self._inputs, self._before, strict=True)
            if digest(content) != then or (content.once and then is None)
        ]
        used_up = [content for content in changed if content.once]
        if used_up:
            return Void(
                code=VoidCode.USES_UP_ITS_INPUTS,
                reason=f"{_named(used_up)} can be gone through only once: what one call"
                " takes of it, the next one lacks",
                remedy=f"{_SETUP} a fresh one for each call",
            )
        if changed:
            return Void(
                code=VoidCode.MUTATES_ITS_INPUTS,
                reason=f"{_named(changed)} changed while the call was repeated: each call"
                " had other work",
                remedy=f"{_SETUP} fresh arguments",
            )
        return None

    def notes(
        self,
        samples: Sequence[float],
        output: object,
        first_call_s: float | None = None,
    ) -> tuple[Note, ...]:
        """
        Return what the reader should know.

        Args:
            samples: All samples [s], in the order they were taken.

            output: The last timed output.

            first_call_s: Time of the very first call [s]; None: it is expected to take
                long.
        """
        found = (
            _unread_note(self._inputs, self._before),
            _constant_note(self._inputs),
            self._differing_note(output),
            _trend_note(samples),
            self._first_call_note(samples, output, first_call_s),
        )
        return tuple(note for note in found if note is not None)

    @property
    def _comparable(self) -> bool:
        """Whether all calls get the same inputs, so that outputs should be equal."""
        request = self._request
        pool = request.inputs
        return request.setup is None and (pool is None or len(pool) == 1)

    def _differing_note(self, output: object) -> Note | None:
        """Return a note if the last output is not the first one."""
        if self._first is None or _output_digest(output) == self._first:
            return None
        text = "the last timed output is not equal to the first, for the same inputs"
        return Note(code="outputs-differ", text=text)

    def _first_call_note(
        self, samples: Sequence[float], output: object, first_call_s: float | None
    ) -> Note | None:
        """Return a note if the first call had far more to do than all others."""
        if first_call_s is None or not samples:
            return None
        usual_s = statistics.median(samples)
        longer = (
            f"the first call took {first_call_s / usual_s:,.0f} times as long as the"
            " others"
        )
        if first_call_s > max(_USED_UP_S, _USED_UP_RATIO * usual_s):
            evidence = self._emptied() or self._returned_once(output)
            if evidence:
                text = f"{longer}, and {evidence}: what it did may have been used up"
                text = f"{text}; {_SETUP} it anew"
                return Note(code="used-up", text=text, doubt=True)
        if first_call_s > max(_FIRST_S, _FIRST_RATIO * usual_s):
            text = f"{longer}: what it did may be kept, or used up"
            return Note(code="long-first-call", text=text)
        return None

    def _emptied(self) -> str:
        """Return which attribute of an input held something before, and nothing now."""
        for owner, before in self._owners:
            now = holdings(owner)
            for name, count in before.items():
                if count and now.get(name) == 0:
                    called = getattr(owner, "__name__", type(owner).__name__)
                    return f"{called}.{name} is empty since"
        return ""

    def _returned_once(self, output: object) -> str:
        """Return that the first call alone returned what it did."""
        first, others = self._very_first, self._first
        if None in {first, others} or first == others:
            return ""
        same = _output_digest(output) == others
        return "returned what no other returned" if same else ""

    def _check(self, output: object, which: str) -> None:
        """Let the test look at an output."""
        __tracebackhide__ = True
        if self._request.check is None:
            return
        accepted = self._request.check(output)
        if accepted is not None and not accepted:
            message = f"check refused the {which} timed output"
            raise AssertionError(message)


def refuse_function(fn: object) -> None:
    """
    Refuse a function whose call does no work.

    Raises:
        MeasureError: It is a coroutine function, a generator function, or no function.
    """
    if not callable(fn):
        message = f"{fn!r} cannot be called"
        raise MeasureError(
            message, remedy="give the function itself, not what it returns"
        )
    if inspect.iscoroutinefunction(fn):
        raise _awaitable_error(fn)
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise _generator_error(fn)


def refuse_result(fn: object, result: object) -> None:
    """
    Refuse a result that only stands for work to be done.

    Raises:
        MeasureError: It is an awaitable or a generator.
    """
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise _generator_error(fn)
    if isinstance(result, Awaitable):
        if inspect.iscoroutine(result):
            result.close()  # or Python warns that nobody awaited it
        raise _awaitable_error(fn)


def _awaitable_error(fn: object) -> MeasureError:
    message = f"{_name(fn)} returns an awaitable, and making one does no work"
    return MeasureError(
        message, remedy="measure a function that runs it to its end (asyncio.run)"
    )


def _generator_error(fn: object) -> MeasureError:
    message = f"{_name(fn)} returns a generator, and making one does no work"
    return MeasureError(
        message, remedy="measure a function that consumes it, as lambda: list(fn())"
    )


def _name(fn: object) -> str:
    return str(getattr(fn, "__qualname__", None) or repr(fn))


def _input_contents(request: TimedCall) -> tuple[Content, ...]:
    """Return what there is to see of the inputs."""
    if request.setup is not None:
        return ()
    bound = _bound_contents(request.fn)
    if request.inputs is None:
        given = _argument_contents(request.args, dict(request.kwargs), "")
        return (*bound, *given)
    pool = (
        _argument_contents(*arguments(request, given), f"inputs[{index}] ")
        for index, given in enumerate(request.inputs)
    )
    return (*bound, *chain.from_iterable(pool))


def _owners(request: TimedCall) -> Iterator[object]:
    """Yield the objects whose attributes a call may empty."""
    if request.setup is not None:
        return
    pool = request.inputs or (None,)
    for given in pool:
        args, kwargs = arguments(request, given)
        yield from chain(args, kwargs.values())
    fn: object = request.fn
    while isinstance(fn, partial):
        yield from chain(fn.args, fn.keywords.values())
        fn = fn.func
    yield fn.__self__ if isinstance(fn, _METHODS) else fn


def _bound_contents(fn: object) -> Iterator[Content]:
    """Yield what there is to see of what a function brings along."""
    if isinstance(fn, partial):
        yield from _argument_contents(fn.args, fn.keywords, "bound ")
        yield from _bound_contents(fn.func)
    elif isinstance(fn, _METHODS):
        yield from contents(fn.__self__, f"the object of {fn.__name__}")


def _argument_contents(
    args: tuple[object, ...], kwargs: dict[str, object], prefix: str
) -> list[Content]:
    """Return what there is to see of the arguments of one call."""
    named = chain(
        ((f"{prefix}argument {index}", value) for index, value in enumerate(args)),
        ((f"{prefix}argument {name}", value) for name, value in kwargs.items()),
    )
    return [content for place, value in named for content in contents(value, place)]


def _output_digest(output: object) -> bytes | None:
    """Return a digest of arrays or a plain scalar; None: it is neither, or unreadable."""
    scalar = scalar_bytes(output)
    if scalar is not None:
        return scalar
    found = (each for each in contents(output, "output") if not each.once)
    digests = [digest(content) for content in found]
    known = [one for one in digests if one is not None]
    return b"".join(known) if known and len(known) == len(digests) else None


def _named(found: Sequence[Content]) -> str:
    """Return where inputs were found, and what they are."""
    return ", ".join(f"{content.place} ({content.kind})" for content in found)


def _unread_note(
    inputs: tuple[Content, ...], digests: Sequence[bytes | None]
) -> Note | None:
    """Return a note if an array could not be looked into."""
    unread = [
        content
        for content, one in zip(inputs, digests, strict=True)
        if one is None and not content.once
    ]
    if not unread:
        return None
    text = f"whether the call changes {_named(unread)} is not known: it cannot be read"
    return Note(code="unread-inputs", text=text)


def _constant_note(inputs: tuple[Content, ...]) -> Note | None:
    """Return a note if an array holds one value only."""
    constant = [content for content in inputs if _constant(content)]
    if not constant:
        return None
    text = (
        f"{_named(constant)} holds one value only: real inputs may draw more power"
        " and take longer"
    )
    return Note(code="constant-input", text=text)


def _constant(content: Content) -> bool:
    """Return whether all elements of an array are equal, as far as probes show."""
    size = content.element_bytes
    data = content.read() if size else None
    if data is None or len(data) < 2 * size:
        return False
    count = len(data) // size
    step = -(-count // _CONSTANT_PROBES)
    first = data[:size]
    return all(
        data[at : at + size] == first for at in range(0, count * size, step * size)
    )


def _trend_note(samples: Sequence[float]) -> Note | None:
    """Return a note if the later half of the samples is not like the earlier."""
    if len(samples) < _TREND_LEAST:
        return None
    half = len(samples) // 2
    early, late = sorted(samples[:half]), sorted(samples[-half:])
    ratio = statistics.median(late) / statistics.median(early)
    if 1 / _TREND_RATIO < ratio < _TREND_RATIO or abs(_rank_z(early, late)) < _TREND_Z:
        return None
    text = (
        f"the later half of the samples takes {ratio:.3g} times as long as the earlier"
    )
    return Note(code="trend", text=text)


def _rank_z(early: Sequence[float], late: Sequence[float]) -> float:
    """Return the normal score of the rank sum of two sorted halves of equal size."""
    count = len(early)
    below = sum(
        bisect.bisect_left(early, value) + bisect.bisect_right(early, value)
        for value in late
    )
    spread = math.sqrt(count * count * (2 * count + 1) / 12)
    return (below / 2 - count * count / 2) / spread
