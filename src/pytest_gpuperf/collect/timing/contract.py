"""The repetition contract: what a call must keep to be timed repeatedly.

A repeated call must do the same work each time: it may not change its inputs, it must be
done when it returns, and its time should have no trend.
"""

from __future__ import annotations

import bisect
import inspect
import math
import statistics
import sys
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from io import IOBase
from itertools import chain
from types import (
    BuiltinMethodType,
    FunctionType,
    MethodType,
    MethodWrapperType,
)
from typing import Any, TypeAlias

from pytest_gpuperf.collect.base import (
    PLAIN_TYPES,
    TimedCall,
    arguments,
    calls_the_test,
)
from pytest_gpuperf.collect.timing.contents import (
    Content,
    attributes,
    contents,
    digest,
    holdings,
    items_left,
    scalar_bytes,
)
from pytest_gpuperf.collect.timing.originals import Originals
from pytest_gpuperf.collect.timing.same_work import (
    Argument,
    SameWork,
    not_compared,
)
from pytest_gpuperf.errors import MeasureError
from pytest_gpuperf.model.record import Note, Void, VoidCode

# The halves differ at two-sided 0.1 %, which gives a note in one of 1,000 tests.
_TREND_Z = 3.29
# A clock that drifts by 2 % voids a sample set (docs/judging.md section 1).
_TREND_RATIO = 1.02
# The fewest samples that are ever taken.
_TREND_LEAST = 10
# Number of evenly spaced elements to compare.
_CONSTANT_PROBES = 4096
_METHODS = (BuiltinMethodType, MethodType, MethodWrapperType)
# A first call often takes 10 times as long (processor caches). If it takes 100 times as
# long, and more than 1 ms, it has compiled something, or done work that later calls do
# not have.
_FIRST_RATIO, _FIRST_S = 100, 1e-3
# With other evidence of used-up work a lower bound is enough. The slowest ordinary
# first call that was measured compiles a regular expression in 40 us.
_USED_UP_RATIO, _USED_UP_S = 10, 1e-4
# Flags of functions with a call that only promises work.
_LAZY = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
_SETUP = "give setup= (of measure or compare) that returns"


class Contract:
    """
    The evidence that one measurement kept the repetition contract.

    Among the arguments, and as the object of a bound method, it inspects arrays (numpy,
    torch, cupy, numba), buffers, and lists, deques, dicts and sets of numbers and
    texts. In other objects it inspects only which attributes were emptied. One-pass
    inputs (iterators, generators, files) are not inputs of a repeated call, unless it
    is known that nothing was consumed. With `setup` the inputs are fresh and are not
    inspected.

    Args:
        request: The call, before it is made for the first time.

        originals: Keeps copies of the arguments, or None to take no copies.
    """

    def __init__(self, request: TimedCall, originals: Originals | None = None) -> None:
        self._request = request
        self._originals = originals
        pool = request.inputs
        # Whether equal inputs must give equal outputs.
        self._is_comparable = request.setup is None and (pool is None or len(pool) == 1)
        self._given: list[_Given] = []
        self._found: list[list[Content]] = []
        self._inputs: list[Content] = []
        self._before: list[bytes | None] = []
        self._owners: list[tuple[object, list[tuple[object, int]]]] = []
        if not _holds_nothing(request):
            self._owners = [(owner, holdings(owner)) for owner in _owners(request)]
            if request.setup is None:
                self._given = _given(request)
                self._found = [
                    [*contents(value, place)] for place, value, _ in self._given
                ]
                self._inputs = [*chain.from_iterable(self._found)]
                self._before = [digest(content) for content in self._inputs]
        if originals is not None and self._inputs:
            originals.keep(self._given)
        self._very_first: bytes | None = None
        self._first: bytes | None = None
        # None until the arguments are inspected.
        self._changed: list[Content] | None = None
        self._change_note: Note | None = None

    def very_first_output(self, output: object, *, on_device: bool = False) -> None:
        """
        Remember the result of the very first call, which is not a sample.

        Skipped on a device, because a device compiles in that call, and the output
        would be fetched.
        """
        if self._is_comparable and not on_device:
            self._very_first = _output_digest(output)

    def first_output(self, output: object) -> None:
        """Check and remember the first timed output."""
        self._check(output, "the first")
        if self._is_comparable:
            self._first = _output_digest(output)

    def some_output(self, output: object) -> None:
        """Check a timed output between the first and the last."""
        self._check(output, "a later")

    def last_output(self, output: object) -> None:
        """Check the last timed output."""
        self._check(output, "the last")

    def void(
        self, compare: Callable[[Sequence[Argument]], SameWork] = not_compared
    ) -> Void | None:
        """
        Return the reason why the measurement is void, or None if valid.

        Args:
            compare: Compares the work of calls that have changed some arguments with
                that of calls on the original content.
        """
        if not self._inputs:  # Nearly all calls.
            return None
        changed = self._found_changed() if self._changed is None else self._changed
        used_up = [content for content in changed if content.once]
        if used_up and self._are_rewound(used_up, changed, compare):
            text = f"{_named(used_up)} is read from its beginning by each call"
            self._change_note = Note(code="rewinds-input", text=text)
            return None
        if used_up:
            return Void(
                code=VoidCode.USES_UP_ITS_INPUTS,
                reason=f"{_named(used_up)} can be read only once, so later calls had less"
                " to do",
                remedy=f"{_SETUP} a fresh one for each call",
            )
        if not changed:
            return None
        named, comparison = _named(changed), compare([*self._arguments(changed)])
        if comparison.same:
            what = "changes in each call" if comparison.goes_on else "is an output"
            text = f"{named} {what}: a call on its original content takes as long"
            self._change_note = Note(code="writes-output", text=text)
            return None
        did = "did"
        if not comparison.called:
            did = "may have done"
            text = f"{named} changed between calls, and {comparison.reason}"
            self._change_note = Note(code="original-not-called", text=text)
        why = f": {comparison.reason}" if comparison.reason else ""
        return Void(
            code=VoidCode.MUTATES_ITS_INPUTS,
            reason=f"{named} changed between calls, so the calls {did} different work{why}",
            remedy=f"{_SETUP} fresh arguments, and the same buffer for an output (out=)",
        )

    def _are_rewound(
        self,
        used_up: Sequence[Content],
        changed: Sequence[Content],
        compare: Callable[[Sequence[Argument]], SameWork],
    ) -> bool:
        """Return True if calls read files as far as the first call, by going back in them."""
        arguments = [*self._arguments(changed)]
        files = all(isinstance(argument.value, IOBase) for argument in arguments)
        return files and len(used_up) == len(changed) and compare(arguments).same

    def look(self) -> None:
        """
        Find the changed arguments now, because a second function may change them until
        `void`.
        """
        self._changed = self._found_changed()

    def _found_changed(self) -> list[Content]:
        return [
            content
            for content, then in zip(self._inputs, self._before, strict=True)
            if digest(content) != then or (content.once and then is None)
        ]

    def _arguments(self, changed: Sequence[Content]) -> Iterator[Argument]:
        then = dict(zip(map(id, self._inputs), self._before, strict=True))
        changed_ids = set(map(id, changed))
        for (_, value, entry), found in zip(self._given, self._found, strict=True):
            if not changed_ids.isdisjoint(map(id, found)):
                yield Argument(
                    value=value,
                    contents=found,
                    before=[then[id(content)] for content in found],
                    original=self._originals.of(value) if self._originals else "",
                    entry=entry,
                )

    def notes(
        self,
        samples: Sequence[float],
        output: object,
        first_call_s: float | None = None,
    ) -> tuple[Note, ...]:
        """
        Return notes on doubtful inputs, outputs and times.

        Notes on changed arguments are known once `void` was called.

        Args:
            samples: All samples [s], in the order they were taken.

            output: The last timed output.

            first_call_s: Time of the very first call [s], or None if it is expected to
                take long.
        """
        notes = [self._change_note, *(self._input_notes() if self._inputs else ())]
        if self._first is not None and _output_digest(output) != self._first:
            text = "the first and the last timed output differ for the same inputs"
            notes.append(Note(code="outputs-differ", text=text))
        notes += (
            _trend_note(samples),
            self._first_call_note(samples, output, first_call_s),
        )
        return tuple(filter(None, notes))

    def _input_notes(self) -> Iterator[Note]:
        unread = [
            content
            for content, before in zip(self._inputs, self._before, strict=True)
            if before is None and not content.once
        ]
        if unread:
            text = f"{_named(unread)} cannot be read: the call may change it unnoticed"
            yield Note(code="unread-inputs", text=text)
        constant = [content for content in self._inputs if _constant(content)]
        if constant:
            text = (
                f"{_named(constant)} holds a single value: varied inputs may draw more"
                " power and take longer"
            )
            yield Note(code="constant-input", text=text)

    def _first_call_note(
        self, samples: Sequence[float], output: object, first_call_s: float | None
    ) -> Note | None:
        if first_call_s is None or first_call_s <= _USED_UP_S or not samples:
            # Nearly all calls end here: no ratio makes a note of so short a time.
            return None
        usual_s = statistics.median(samples)
        longer = (
            f"the first call took {first_call_s / usual_s:,.0f} times the median of the"
            " later calls"
        )
        if first_call_s > max(_USED_UP_S, _USED_UP_RATIO * usual_s):
            evidence, first, usual = self._emptied(), self._very_first, self._first
            if not evidence and None not in {first, usual} and first != usual:
                same = _output_digest(output) == usual
                evidence = "its output differs from all later ones" if same else ""
            if evidence:
                text = f"{longer}, and {evidence}: it may have consumed its input"
                text = f"{text}; {_SETUP} a fresh object"
                return Note(code="used-up", text=text, doubt=True, full_s=first_call_s)
        if first_call_s > max(_FIRST_S, _FIRST_RATIO * usual_s):
            text = f"{longer}: its work may be cached, or its input consumed"
            return Note(code="long-first-call", text=text)
        return None

    def _emptied(self) -> str:
        """Return the attribute of an input that the calls emptied, as a text, or ""."""
        for owner, before in self._owners:
            emptied = [v for v, count in before if count and not items_left(v)]
            if emptied:
                called = getattr(owner, "__name__", type(owner).__name__)
                ids = set(map(id, emptied))
                names = [n for n, v in attributes(owner).items() if id(v) in ids]
                return f"{'.'.join((called, *names[:1]))} is now empty"
        return ""

    @calls_the_test
    def _check(self, output: object, which: str) -> None:
        """Raise an AssertionError if the test's check refuses an output."""
        __tracebackhide__ = True
        if self._request.check is None:
            return
        accepted = self._request.check(output)
        if accepted is not None and not accepted:
            message = f"check refused {which} timed output"
            raise AssertionError(message)


def refuse_function(fn: object) -> None:
    """
    Refuse a function whose call does no work.

    Raises:
        MeasureError: The function is a coroutine function, a generator function, or not
            callable.
    """
    if type(fn) is FunctionType and not (fn.__code__.co_flags & _LAZY or fn.__dict__):
        return  # The usual function. inspect unwraps it again for each question.
    if not callable(fn):
        message = f"{fn!r} cannot be called"
        raise MeasureError(message, remedy="give the function itself, not its result")
    if inspect.iscoroutinefunction(fn):
        raise _awaitable_error(fn)
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise _generator_error(fn)


def refuse_result(fn: object, result: object) -> None:
    """
    Refuse a result that only promises work.

    Raises:
        MeasureError: The result is an awaitable or a generator.
    """
    if type(result) in PLAIN_TYPES:
        return
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise _generator_error(fn)
    if isinstance(result, Awaitable):
        known: Any = getattr(sys.modules.get("asyncio"), "Future", None)
        if known is not None and isinstance(result, known) and result.done():
            return
        if inspect.iscoroutine(result):
            # Otherwise Python warns that it was never awaited.
            result.close()
        raise _awaitable_error(fn)


def _awaitable_error(fn: object) -> MeasureError:
    message = f"{_name(fn)} returns an awaitable, which has done no work yet"
    return MeasureError(
        message,
        remedy="measure a function that awaits it, as lambda: asyncio.run(fn())",
    )


def _generator_error(fn: object) -> MeasureError:
    message = f"{_name(fn)} returns a generator, which has done no work yet"
    return MeasureError(
        message, remedy="measure a function that consumes it, as lambda: list(fn())"
    )


def _name(fn: object) -> str:
    return str(getattr(fn, "__qualname__", None) or repr(fn))


# The place of an argument in words, its value, and the index of its entry in `inputs`,
# or None if every call has the argument.
_Given: TypeAlias = "tuple[str, object, int | None]"


def _holds_nothing(request: TimedCall) -> bool:
    fn = request.fn
    if request.args or request.kwargs or request.inputs or request.setup is not None:
        return False
    return type(fn) is FunctionType and not (fn.__closure__ or fn.__dict__)


def _given(request: TimedCall) -> list[_Given]:
    bound = _bound(request.fn)
    if request.inputs is None:
        return bound + _named_arguments(request.args, request.kwargs)
    pool = (
        _named_arguments(*arguments(request, entry), f"inputs[{index}] ", index)
        for index, entry in enumerate(request.inputs)
    )
    return [*bound, *chain.from_iterable(pool)]


def _owners(request: TimedCall) -> Iterator[object]:
    if request.setup is not None:
        return
    pool = request.inputs or (None,)
    for entry in pool:
        args, kwargs = arguments(request, entry)
        yield from chain(args, kwargs.values())
    fn: object = request.fn
    while isinstance(fn, partial):
        yield from chain(fn.args, fn.keywords.values())
        fn = fn.func
    yield fn.__self__ if isinstance(fn, _METHODS) else fn


def _bound(fn: object) -> list[_Given]:
    if isinstance(fn, partial):
        return _named_arguments(fn.args, fn.keywords, "bound ") + _bound(fn.func)
    if isinstance(fn, _METHODS):
        return [(f"the object of {fn.__name__}", fn.__self__, None)]
    return []


def _named_arguments(
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    prefix: str = "",
    entry: int | None = None,
) -> list[_Given]:
    named: Iterable[tuple[object, object]] = enumerate(args)
    if kwargs:
        named = chain(named, kwargs.items())
    return [(f"{prefix}argument {name}", value, entry) for name, value in named]


def _output_digest(output: object) -> bytes | None:
    """Return a digest of arrays or a plain scalar, or None for other or unreadable values."""
    scalar = scalar_bytes(output)
    if scalar is not None:
        return scalar
    readable = (content for content in contents(output, "output") if not content.once)
    digests = [digest(content) for content in readable]
    complete = [part for part in digests if part is not None]
    return b"".join(complete) if complete and len(complete) == len(digests) else None


def _named(inputs: Sequence[Content]) -> str:
    return ", ".join(f"{content.place} ({content.kind})" for content in inputs)


def _constant(content: Content) -> bool:
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
    if len(samples) < _TREND_LEAST:
        return None
    half = len(samples) // 2
    early, late = sorted(samples[:half]), sorted(samples[-half:])
    ratio = statistics.median(late) / statistics.median(early)
    if 1 / _TREND_RATIO < ratio < _TREND_RATIO:
        return None
    below = sum(
        bisect.bisect_left(early, value) + bisect.bisect_right(early, value)
        for value in late
    )
    # The normal score of the rank sum of two halves of equal size.
    spread = math.sqrt(half * half * (2 * half + 1) / 12)
    if abs((below / 2 - half * half / 2) / spread) < _TREND_Z:
        return None
    text = (
        f"the later half of the samples took {ratio:.3g} times as long as the earlier"
    )
    return Note(code="trend", text=text)
