"""The recorder of a loop: steps, phases, layers, operations.

A span is two readings of the clock and a tuple; everything else waits until the loop has
ended. The device is waited for before and after each step, so that its work counts in the
step that asked for it; inside a step it is not, unless the test asks for that, so that
spans are the host's alone. Whether there is a device by now is asked after each step; that
and what we write down lie in no step and in no wait.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import reprlib
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import ModuleType, TracebackType
from typing import Any, SupportsFloat, TypeVar, final

from pytest_gpuperf.collect.clock import NS_PER_S, Clock
from pytest_gpuperf.collect.runtime import DeviceRuntime
from pytest_gpuperf.errors import CollectError, MeasureError
from pytest_gpuperf.model.frozen import Frozen, has_lone_surrogate, replace
from pytest_gpuperf.model.steps import (
    Compiled,
    Level,
    Loop,
    Span,
    SpanKind,
    Step,
    Waiting,
    kind_of,
)

__all__ = [
    "EndedSpan",
    "EndedStep",
    "Frameworks",
    "Mark",
    "SpanBlock",
    "StepBlock",
    "StepRecorder",
    "check_loader",
    "layer_mark",
    "named_mark",
    "steps_of",
    "units_amount",
]

_PARTS = {"forward": SpanKind.FORWARD, "backward": SpanKind.BACKWARD}


class Mark(Frozen, frozen=True, kw_only=True):
    """
    What the spans of one place in a program have in common.

    Attributes:
        name: What the test calls it.

        level: Which call made it.

        kind: What it is spent on; None: what the span around it is spent on.

        layer: The number of its layer; None: that of the span around it, if it has one.
    """

    name: str
    level: Level
    kind: SpanKind | None = None
    layer: int | None = None


@final
class SpanBlock:
    """The with block of a span; it holds nothing of a single one, so it may nest."""

    __slots__ = ("_close", "_mark", "_open")

    def __init__(
        self,
        mark: Mark,
        open_span: Callable[[Mark], None],
        close_span: Callable[[Mark, bool], None],
    ) -> None:
        self._mark = mark
        self._open = open_span
        self._close = close_span

    def __enter__(self) -> None:
        """Begin a span."""
        self._open(self._mark)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it, whatever the block raised."""
        self._close(self._mark, kind is not None)


@final
class StepBlock:
    """The with block of a step."""

    __slots__ = ("_close", "_open", "_units")

    def __init__(
        self,
        units: float,
        open_step: Callable[[], None],
        close_step: Callable[[float, BaseException | None], None],
    ) -> None:
        self._units = units
        self._open = open_step
        self._close = close_step

    def __enter__(self) -> None:
        """Wait for the device, then start."""
        self._open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for the device, then stop; a step that raised does not count."""
        self._close(self._units, error)


def named_mark(level: Level, name: object, kind: object) -> Mark:
    """
    Return the mark of a phase or an operation.

    Args:
        level: Which of them.

        name: What the test calls it.

        kind: What it is spent on; None: what a well-known name says. A phase without
            either is spent on something else; an operation on what its phase is.

    Raises:
        MeasureError: The name is not text, or the kind is none.
    """
    checked = _name(level, name)
    meant = _kind(kind) or kind_of(checked)
    if level is Level.PHASE:
        meant = meant or SpanKind.OTHER
    return Mark(name=checked, level=level, kind=meant)


def layer_mark(index: object, part: object) -> Mark:
    """
    Return the mark of a layer's forward or backward pass.

    Args:
        index: Its number, from 0.

        part: "forward" or "backward"; None: as the span around it, else forward.

    Raises:
        MeasureError: Either is something else.
    """
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        remedy = "number the layers from 0: steps.layer(0)"
        raise _refused("layer", index, "is not a number of a layer", remedy)
    if not (part is None or (isinstance(part, str) and part in _PARTS)):
        raise _refused("part", part, "is not a part", 'write "forward" or "backward"')
    kind = None if part is None else _PARTS[part]
    return Mark(name=str(index), level=Level.LAYER, kind=kind, layer=int(index))


def check_loader(loader: object) -> None:
    """
    Refuse what a for loop does not take.

    Raises:
        MeasureError: It is of that kind.
    """
    if not hasattr(type(loader), "__iter__") and not hasattr(
        type(loader), "__getitem__"
    ):
        remedy = "give what a for loop takes"
        raise _refused("loader", loader, "cannot be looped over", remedy)


def _name(level: Level, name: object) -> str:
    """Return a name that can be written to a file."""
    remedy = f'write its name in quotes: steps.{level.value}("forward")'
    if not isinstance(name, str) or not name.strip():
        raise _refused(level.value, name, "is not a name", remedy)
    if has_lone_surrogate(name):
        raise _refused(level.value, name, "holds half a character", remedy)
    return name


def _kind(kind: object) -> SpanKind | None:
    """Return a kind that was given by its name; None: none was given."""
    if kind is None:
        return None
    try:
        return SpanKind(kind)
    except ValueError as error:
        known = ", ".join(each.value for each in SpanKind)
        raise _refused(
            "kind", kind, "is not a kind", f"write one of {known}"
        ) from error


def units_amount(units: object) -> float:
    """
    Return the units of work of a step.

    Raises:
        MeasureError: It is not a number above zero.
    """
    remedy = "give the units of this step: steps.step(units=512)"
    if isinstance(units, (bool, str, bytes)) or not isinstance(units, SupportsFloat):
        raise _refused("units", units, "is not a number", remedy)
    try:
        amount = float(units)
    except (TypeError, ValueError, OverflowError) as error:
        raise _refused("units", units, "is not a number", remedy) from error
    if not (math.isfinite(amount) and amount > 0):
        raise _refused("units", units, "is not above zero", remedy)
    return amount


def _refused(argument: str, value: object, why: str, remedy: str) -> MeasureError:
    """Return the error for an argument; the text of its value is kept short."""
    return MeasureError(f"{argument}: {reprlib.repr(value)} {why}", remedy=remedy)


# number, number of the span around it, mark, start and end [ns], thread, place of the
# step: a plain tuple, for a loop may have a million of them
EndedSpan = tuple[int, int, Mark, int, int, int, int]


class EndedStep(Frozen, frozen=True, kw_only=True):
    """
    A step as it was written down.

    Attributes:
        begin_ns: When the step before it ended, or the loop began [ns].

        start_ns: When it started [ns].

        end_ns: When it ended [ns].

        units: Units of work that it did.

        void: Why it does not count; None: it does.

        compiled: What had been compiled by its end, since the process began.
    """

    begin_ns: int
    start_ns: int
    end_ns: int
    units: float
    void: str | None
    compiled: Compiled | None


def steps_of(
    ended: Sequence[EndedStep],
    spans: Iterable[EndedSpan],
    *,
    thread: int,
    compiled: Compiled | None,
) -> tuple[Step, ...]:
    """
    Return steps with their spans, in seconds since the loop began.

    Spans of other threads are cut at the ends of steps; what lies after the last step
    belongs to none.

    Args:
        ended: The steps, in their order.

        spans: The spans, in any order.

        thread: The thread of the steps.

        compiled: What had been compiled before the first step, since the process began.
    """
    if not ended:
        return ()
    origin_ns = ended[0].begin_ns
    parts = _parts(ended, spans, thread)
    earlier = [compiled, *(step.compiled for step in ended)]
    return tuple(
        Step(
            index=index,
            begin_s=_seconds(step.begin_ns - origin_ns),
            start_s=_seconds(step.start_ns - origin_ns),
            end_s=_seconds(step.end_ns - origin_ns),
            units=step.units,
            spans=tuple(_spans(parts[index], origin_ns)),
            void=step.void,
            compiled=_since(before, step.compiled),
        )
        for index, (step, before) in enumerate(zip(ended, earlier, strict=False))
    )


def _parts(
    ended: Sequence[EndedStep], spans: Iterable[EndedSpan], thread: int
) -> list[list[EndedSpan]]:
    """Return the spans of each step; the steps' own thread is number 0, others follow."""
    parts: list[list[EndedSpan]] = [[] for _ in ended]
    ends = [step.end_ns for step in ended]
    numbers = {thread: 0}
    for span in spans:
        numbers.setdefault(span[5], len(numbers))
        number = numbers[span[5]]
        if number == 0:
            if span[6] < len(parts):
                parts[span[6]].append((*span[:5], number, span[6]))
            continue
        for place in range(bisect_right(ends, span[3]), len(ended)):
            start_ns = max(span[3], ended[place].begin_ns)
            end_ns = min(span[4], ends[place])
            if end_ns <= start_ns:
                break
            parts[place].append((*span[:3], start_ns, end_ns, number, place))
    return parts


def _spans(part: list[EndedSpan], origin_ns: int) -> Iterator[Span]:
    """Yield the spans of a step, a parent before its children."""
    places: dict[int, int] = {}
    made: list[Span] = []
    for number, parent, mark, start_ns, end_ns, thread, _ in sorted(
        part, key=operator.itemgetter(0)
    ):
        place = places.get(parent)
        outer = None if place is None else made[place]
        span = Span(
            name=mark.name,
            kind=mark.kind or _inherited(mark, outer),
            level=mark.level,
            start_s=_seconds(start_ns - origin_ns),
            end_s=_seconds(end_ns - origin_ns),
            parent=place,
            layer=mark.layer
            if outer is None or mark.layer is not None
            else outer.layer,
            thread=thread,
        )
        places[number] = len(made)
        made.append(span)
        yield span


def _inherited(mark: Mark, outer: Span | None) -> SpanKind:
    """Return what a span is spent on that does not say it itself."""
    if mark.level is Level.LAYER:
        backward = outer is not None and outer.kind is SpanKind.BACKWARD
        return SpanKind.BACKWARD if backward else SpanKind.FORWARD
    return SpanKind.OTHER if outer is None else outer.kind


def _since(before: Compiled | None, now: Compiled | None) -> Compiled | None:
    """Return what was compiled between two readings; None: nobody can say."""
    if before is None or now is None:
        return None
    count = now.count - before.count
    breaks_count = now.graph_breaks_count - before.graph_breaks_count
    if min(count, breaks_count) < 0:  # the test has cleared the counters
        return None
    time_s = None
    if now.time_s is not None and before.time_s is not None:
        time_s = max(0.0, now.time_s - before.time_s)
    return replace(now, count=count, graph_breaks_count=breaks_count, time_s=time_s)


def _seconds(elapsed_ns: int) -> float:
    """Return nanoseconds as seconds."""
    return elapsed_ns / NS_PER_S


_T = TypeVar("_T")
_OPEN_AT_END = "it was still open when the loop ended"
_NO_PARENT = -1


class _Stack(threading.local):
    """The spans that are open in one thread: number, mark, start [ns]."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.frames: list[tuple[int, Mark, int]] = []


@final
class StepRecorder:
    """
    Records one loop.

    Args:
        clock: Gives the time.

        runtime: Waits for the device, if there is one.

        unit: What a unit of work is called.

        units: Units of a step that does not say its own, > 0.

        warmup_count: Steps at the beginning that do not count, >= 0.

        waiting: When to wait for the device.

        frameworks: Know of compilations and memory; None: those of this process.
    """

    def __init__(
        self,
        clock: Clock,
        runtime: DeviceRuntime,
        *,
        unit: str = "step",
        units: float = 1.0,
        warmup_count: int = 1,
        waiting: Waiting = Waiting.STEP,
        frameworks: Frameworks | None = None,
    ) -> None:
        self._now_ns = clock.now_ns
        self._runtime = runtime
        self._unit = unit
        self._units = units
        self._warmup_count = warmup_count
        self._waiting = waiting
        self._frameworks = frameworks or Frameworks()
        self._span_waits = waiting is Waiting.SPAN
        self._contexts: dict[object, SpanBlock] = {}
        self._kinds: dict[tuple[Level, str], SpanKind | None] = {}
        self._stack = _Stack()
        self._numbers = itertools.count()
        self._spans: list[EndedSpan] = []
        self._steps: list[EndedStep] = []
        self._start_ns: int | None = None  # of the open step
        self._running = False
        self._active = False  # whether a device was in use when last asked
        self._used = False

    def begin(self) -> None:
        """Wait for the device, then begin the loop."""
        self._thread = threading.get_ident()
        self._frameworks.forget_peak()
        self._compiled = self._frameworks.compiled()
        self._ask_device()
        self._running = True
        self._begin_ns = self._now_ns()

    def end(self, failure: BaseException | None = None) -> Loop:
        """
        End the loop, and return what was recorded.

        Args:
            failure: What ended it early; None: it came to its end.
        """
        if self._start_ns is not None:
            self._keep_step(self._units, _OPEN_AT_END, self._now_ns())
        self._running = False
        self._stack.frames.clear()
        return Loop(
            unit=self._unit,
            units=self._units,
            warmup_count=self._warmup_count,
            steps=steps_of(
                self._steps, self._spans, thread=self._thread, compiled=self._compiled
            ),
            waiting=self._waiting if self._used else None,
            uncompiled_reason=self._frameworks.uncompiled_reason(),
            peak_memory_bytes=self._frameworks.peak_bytes(),
            failure=None if failure is None else type(failure).__name__,
        )

    def step(self, units: float | None = None) -> AbstractContextManager[None]:
        """
        Return the with block of a step.

        Args:
            units: Units of work that it does; None: what the loop says, > 0.
        """
        amount = self._units if units is None else units_amount(units)
        return StepBlock(amount, self._open_step, self._close_step)

    def phase(
        self, name: str, kind: str | SpanKind | None = None
    ) -> AbstractContextManager[None]:
        """
        Return the with block of a phase.

        Args:
            name: Its name; in one step it may come several times.

            kind: What it is spent on; None: what a well-known name says, else other.
        """
        try:
            return self._contexts[Level.PHASE, name, kind]
        except (KeyError, TypeError):  # new, or nothing that could be a name
            return self._named(Level.PHASE, name, kind)

    def operation(
        self, name: str, kind: str | SpanKind | None = None
    ) -> AbstractContextManager[None]:
        """
        Return the with block of an operation.

        Args:
            name: Its name; in one step it may come several times.

            kind: What it is spent on; None: what a well-known name says, else what
                the span around it is spent on.
        """
        try:
            return self._contexts[Level.OPERATION, name, kind]
        except (KeyError, TypeError):  # new, or nothing that could be a name
            return self._named(Level.OPERATION, name, kind)

    def layer(
        self, index: int, part: str | None = None
    ) -> AbstractContextManager[None]:
        """
        Return the with block of a layer's forward or backward pass.

        Args:
            index: Its number, from 0.

            part: "forward" or "backward"; None: as the span around it, else forward.
        """
        try:
            return self._contexts[Level.LAYER, index, part]
        except (KeyError, TypeError):  # new, or nothing that could be a number
            return self._layer(index, part)

    def data(self, loader: Iterable[_T]) -> Iterator[_T]:
        """
        Return an iterator over a loader that records how long each batch took to come.

        Args:
            loader: Whatever a for loop takes.
        """
        check_loader(loader)
        return self._fetched(loader)

    def _fetched(self, loader: Iterable[_T]) -> Iterator[_T]:
        """Yield the batches of a loader; making its iterator counts as well."""
        waiting = self.phase("data", SpanKind.DATA)
        iterator: Iterator[_T] | None = None
        while True:
            with waiting:
                iterator = iter(loader) if iterator is None else iterator
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
            yield batch

    # spans

    def _named(self, level: Level, name: str, kind: str | SpanKind | None) -> SpanBlock:
        """Return the with block of a phase or an operation, made once."""
        mark = named_mark(level, name, kind)
        before = self._kinds.setdefault((level, mark.name), mark.kind)
        if before is not mark.kind:
            was, now = (e.value if e else "not said" for e in (before, mark.kind))
            message = f"the kind of {level.value} {mark.name!r} was {was}, and is {now}"
            raise MeasureError(message, remedy="give it one kind, or two names")
        return self._context((level, name, kind), mark)

    def _layer(self, index: int, part: str | None) -> SpanBlock:
        """Return the with block of a layer, made once."""
        return self._context((Level.LAYER, index, part), layer_mark(index, part))

    def _context(self, key: object, mark: Mark) -> SpanBlock:
        """Return a with block, and remember it."""
        made = SpanBlock(mark, self._open_span, self._close_span)
        self._contexts[key] = made
        return made

    def _open_span(self, mark: Mark) -> None:
        """Begin a span in this thread."""
        frames = self._stack.frames
        if not frames:
            self._check_place(mark)
        elif mark.level is Level.LAYER:
            _refuse_inner_layer(mark, frames)
        if self._span_waits and self._active:
            self._runtime.synchronize()
        frames.append((next(self._numbers), mark, self._now_ns()))

    def _close_span(self, mark: Mark, raised: bool) -> None:  # noqa: FBT001 - a finding, not a switch
        """End the innermost span of this thread."""
        if self._span_waits and self._active and not raised:
            self._runtime.synchronize()
        end_ns = self._now_ns()
        stack = self._stack
        frames = stack.frames
        if not frames or frames[-1][1] is not mark:
            if raised:  # what was raised says more
                return
            inner = f"{frames[-1][1].name!r} is still open" if frames else "it is over"
            message = f"{mark.name!r} cannot end: {inner}"
            raise MeasureError(message, remedy="open and close spans in with blocks")
        number, _, start_ns = frames.pop()
        parent = frames[-1][0] if frames else _NO_PARENT
        place = len(self._steps)
        self._spans.append(
            (number, parent, mark, start_ns, end_ns, stack.thread, place)
        )

    def _check_place(self, mark: Mark) -> None:
        """Refuse an outermost span where there is nothing for it to be part of."""
        self._check_running(f"{mark.level.value} {mark.name!r}")
        inside = self._start_ns is not None
        if inside or mark.kind is SpanKind.DATA or not self._in_own_thread():
            return
        message = f"{mark.level.value} {mark.name!r} is in no step"
        remedy = "put it into `with steps.step():`; only data may lie between steps"
        raise MeasureError(message, remedy=remedy)

    # steps

    def _open_step(self) -> None:
        """Begin a step."""
        self._check_running("a step")
        if not self._in_own_thread():
            message = "a step cannot begin in another thread than its loop"
            raise MeasureError(message, remedy="use steps.phase(…) in other threads")
        frames = self._stack.frames
        if self._start_ns is not None or frames:
            inside = f"{frames[-1][1].name!r}" if frames else "another step"
            message = f"a step cannot begin inside {inside}"
            raise MeasureError(message, remedy="end that first")
        if self._active:
            self._runtime.synchronize()
        self._start_ns = self._now_ns()

    def _close_step(self, units: float, error: BaseException | None) -> None:
        """End the open step, unless the loop has ended it already."""
        if self._start_ns is None:
            return
        end_ns, frames = self._now_ns(), self._stack.frames
        if error is not None:
            frames.clear()
            void = f"{type(error).__name__} was raised in it"
            self._keep_step(units, void, end_ns)
            return
        if frames:
            message = f"{frames[-1][1].name!r} is still open at the end of its step"
            frames.clear()
            self._keep_step(units, message, end_ns)
            raise MeasureError(message, remedy="open and close spans in with blocks")
        try:
            self._ask_device()
        except CollectError as failed:
            void = f"the device reported an error: {failed.message}"
            self._keep_step(units, void, self._now_ns())
            raise
        self._keep_step(units, None, self._now_ns() if self._active else end_ns)

    def _ask_device(self) -> None:
        """Wait for the device, if one is in use by now."""
        self._active = self._runtime.active()
        if self._active:
            self._used = True
            self._runtime.synchronize()

    def _keep_step(self, units: float, void: str | None, end_ns: int) -> None:
        """Write down the open step; what comes next begins when that is done."""
        start_ns = end_ns if self._start_ns is None else self._start_ns
        self._steps.append(
            EndedStep(
                begin_ns=self._begin_ns,
                start_ns=start_ns,
                end_ns=end_ns,
                units=units,
                void=void,
                compiled=self._frameworks.compiled(),
            )
        )
        self._start_ns = None
        self._begin_ns = self._now_ns()

    def _check_running(self, what: str) -> None:
        """Refuse what is recorded before the loop has begun, or after its end."""
        if not self._running:
            message = f"{what} is outside of its loop"
            remedy = "put it into `with gpuperf.steps() as steps:`"
            raise MeasureError(message, remedy=remedy)

    def _in_own_thread(self) -> bool:
        """Return whether this is the thread of the loop."""
        return threading.get_ident() == self._thread


def _refuse_inner_layer(mark: Mark, frames: list[tuple[int, Mark, int]]) -> None:
    """Refuse a layer inside a layer: whose operations would it be?"""
    for _, outer, _ in frames:
        if outer.level is Level.LAYER:
            message = f"layer {mark.name} is inside layer {outer.name}"
            raise MeasureError(message, remedy="end the one before the other begins")


_NOTHING = Compiled(count=0, graph_breaks_count=0, time_s=0.0)
# torch's names for the compile time of a whole frame, newest first
_FRAME_TIMES = ("_compile.compile_inner", "_compile.<locals>.compile_inner")
_READ_ERRORS = (AttributeError, KeyError, TypeError, ValueError, RuntimeError)


class Frameworks:
    """
    The frameworks that this process has imported.

    Compilations and peak memory as torch 2.13 counts them, *unverified on hardware*; a
    torch with other counters gives a reason, not an error.

    Args:
        modules: The loaded modules by name; None: those of this interpreter.
    """

    def __init__(self, modules: Mapping[str, ModuleType] | None = None) -> None:
        self._modules = sys.modules if modules is None else modules

    def compiled(self) -> Compiled | None:
        """Return the compilations of torch since this process began; None: unknown."""
        dynamo = self._modules.get("torch._dynamo.utils")
        if dynamo is None:  # torch imports it at the first compilation
            return _NOTHING if "torch" in self._modules else None
        try:
            return _compilations(dynamo)
        except _READ_ERRORS:
            return None

    def uncompiled_reason(self) -> str:
        """Return why `compiled` returns None; "": it does not."""
        if self.compiled() is not None:
            return ""
        if "torch" in self._modules:
            return "this version of torch has no known counter of compilations"
        return "torch is not imported, and only its compilations are counted"

    def forget_peak(self) -> None:
        """Reset torch's peak memory on every device in use."""
        cuda = self._cuda()
        if cuda is None:
            return
        with contextlib.suppress(*_READ_ERRORS):  # then the peak cannot be read either
            for index in range(cuda.device_count()):
                cuda.reset_peak_memory_stats(index)

    def peak_bytes(self) -> int | None:
        """Return torch's peak memory on its fullest device [B]; None: unknown."""
        cuda = self._cuda()
        if cuda is None:
            return None
        try:
            peaks = [
                int(cuda.max_memory_allocated(index))
                for index in range(cuda.device_count())
            ]
        except _READ_ERRORS:  # an allocator that was plugged in does not count
            return None
        return max(peaks, default=None)

    def _cuda(self) -> Any | None:  # noqa: ANN401 - an optional library has no types
        """Return torch.cuda; None: not in use."""
        cuda = getattr(self._modules.get("torch"), "cuda", None)
        try:
            return cuda if cuda is not None and cuda.is_initialized() else None
        except _READ_ERRORS:
            return None


def _compilations(dynamo: ModuleType) -> Compiled:
    """Return the compiler's counters; reading adds no entries to them."""
    counters, times = dynamo.counters, dynamo.compilation_time_metrics
    frames = next((times[name] for name in _FRAME_TIMES if name in times), None)
    count = int(counters.get("stats", {}).get("unique_graphs", 0))
    return Compiled(
        count=count,
        graph_breaks_count=sum(counters.get("graph_break", {}).values()),
        time_s=math.fsum(frames or ()) if frames or not count else None,
    )
