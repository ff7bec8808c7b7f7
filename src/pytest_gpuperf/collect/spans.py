"""The spans of a loop's steps: how they are marked, opened, closed and ordered."""

from __future__ import annotations

import math
import operator
import reprlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import SupportsFloat, final

from pytest_gpuperf.collect.clock import NS_PER_S
from pytest_gpuperf.errors import MeasureError
from pytest_gpuperf.model.frozen import Frozen, has_lone_surrogate, replace
from pytest_gpuperf.model.steps import (
    Compiled,
    Span,
    SpanKind,
    SpanLevel,
    Step,
    kind_of,
)

_PARTS = {"forward": SpanKind.FORWARD, "backward": SpanKind.BACKWARD}


class Mark(Frozen, frozen=True, kw_only=True):
    """
    The common properties of the spans of one place in a program.

    Attributes:
        name: The name given by the test.

        level: The kind of call that created the span.

        kind: The kind of time, or None for that of the surrounding span.

        layer: The number of the layer, or None for that of the surrounding span, if
            any.
    """

    name: str
    level: SpanLevel
    kind: SpanKind | None = None
    layer: int | None = None


@final
class SpanBlock:
    """The context manager of a span. It may nest, because it holds no state of an entered span."""

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
        self._open(self._mark)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the span, even if the block raised an exception."""
        self._close(self._mark, kind is not None)


@final
class StepBlock:
    """The context manager of a step."""

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
        """Wait for the device, then start the step."""
        self._open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """
        Wait for the device, then end the step. A step that raised an exception does not count.
        """
        self._close(self._units, error)


def named_mark(level: SpanLevel, name: object, kind: object) -> Mark:
    """
    Create the mark of a phase or an operation.

    Args:
        level: Phase or operation.

        name: The name given by the test.

        kind: The kind of time, or None to derive it from a well-known name. Without a
            kind and a well-known name, a phase has the kind other, and an operation has
            the kind of its phase.

    Raises:
        MeasureError: The name is not text, or the kind is unknown.
    """
    remedy = f'write its name in quotes: steps.{level.value}("forward")'
    if not isinstance(name, str) or not name.strip():
        raise _refused(level.value, name, "is not a name", remedy)
    if has_lone_surrogate(name):
        raise _refused(level.value, name, "contains a lone surrogate", remedy)
    try:
        meant = kind_of(name) if kind is None else SpanKind(kind)
    except ValueError as error:
        remedy = f"write one of {', '.join(kind.value for kind in SpanKind)}"
        raise _refused("kind", kind, "is not a kind", remedy) from error
    if level is SpanLevel.PHASE:
        meant = meant or SpanKind.OTHER
    return Mark(name=name, level=level, kind=meant)


def layer_mark(index: object, part: object) -> Mark:
    """
    Create the mark of a layer's forward or backward pass.

    Args:
        index: The number of the layer, from 0.

        part: "forward" or "backward", or None for that of the surrounding span, else
            forward.

    Raises:
        MeasureError: The index or the part is invalid.
    """
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        remedy = "number the layers from 0: steps.layer(0)"
        raise _refused("layer", index, "is not a layer index", remedy)
    if not (part is None or (isinstance(part, str) and part in _PARTS)):
        raise _refused(
            "part", part, "is not a part of a layer", 'write "forward" or "backward"'
        )
    kind = None if part is None else _PARTS[part]
    return Mark(name=str(index), level=SpanLevel.LAYER, kind=kind, layer=int(index))


def check_loader(loader: object) -> None:
    """
    Check that a for loop can use a loader.

    Raises:
        MeasureError: The loader is not iterable.
    """
    if not hasattr(type(loader), "__iter__") and not hasattr(
        type(loader), "__getitem__"
    ):
        remedy = "give an iterable"
        raise _refused("loader", loader, "cannot be looped over", remedy)


def units_amount(units: object) -> float:
    """
    Check and convert the units of work of a step.

    Raises:
        MeasureError: The value is not a number above zero.
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
    return MeasureError(f"{argument}: {reprlib.repr(value)} {why}", remedy=remedy)


# Number, number of the surrounding span, mark, start and end [ns], thread, and index of
# the step. A plain tuple, because a loop may have a million spans.
EndedSpan = tuple[int, int, Mark, int, int, int, int]


class EndedStep(Frozen, frozen=True, kw_only=True):
    """
    A step as recorded.

    Attributes:
        begin_ns: The end of the previous step, or the start of the loop [ns].

        start_ns: The start of the step [ns].

        end_ns: The end of the step [ns].

        units: Units of work done by the step.

        void: The reason that the step does not count, or None.

        compiled: Compilations from the start of the process to the end of the step.

        prepared: As `Step.prepared`.
    """

    begin_ns: int
    start_ns: int
    end_ns: int
    units: float
    void: str | None
    compiled: Compiled | None
    prepared: bool


def steps_of(
    ended: Sequence[EndedStep],
    spans: Iterable[EndedSpan],
    *,
    thread: int,
    compiled: Compiled | None,
) -> tuple[Step, ...]:
    """
    Return steps with their spans, in seconds since the loop began.

    Spans of other threads are cut at the ends of steps. Spans after the last step
    belong to no step.

    Args:
        ended: The steps, in order.

        spans: The spans, in any order.

        thread: The thread of the steps.

        compiled: Compilations from the start of the process to the first step.
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
            prepared=step.prepared,
        )
        for index, (step, before) in enumerate(zip(ended, earlier, strict=False))
    )


def _parts(
    ended: Sequence[EndedStep], spans: Iterable[EndedSpan], thread: int
) -> list[list[EndedSpan]]:
    """Return the spans of each step. The steps' own thread has number 0, and others follow."""
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
    places: dict[int, int] = {}
    made: list[Span] = []
    for number, parent, mark, start_ns, end_ns, thread, _ in sorted(
        part, key=operator.itemgetter(0)
    ):
        place = places.get(parent)
        outer = None if place is None else made[place]
        kind = SpanKind.OTHER if outer is None else outer.kind
        # A layer is a forward pass, unless it lies in a backward pass.
        if mark.level is SpanLevel.LAYER and kind is not SpanKind.BACKWARD:
            kind = SpanKind.FORWARD
        span = Span(
            name=mark.name,
            kind=mark.kind or kind,
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


def _since(before: Compiled | None, now: Compiled | None) -> Compiled | None:
    if before is None or now is None:
        return None
    count = now.count - before.count
    breaks_count = now.graph_breaks_count - before.graph_breaks_count
    # The test has cleared the counters.
    if min(count, breaks_count) < 0:
        return None
    time_s = None
    if now.time_s is not None and before.time_s is not None:
        time_s = max(0.0, now.time_s - before.time_s)
    return replace(now, count=count, graph_breaks_count=breaks_count, time_s=time_s)


def _seconds(elapsed_ns: int) -> float:
    return elapsed_ns / NS_PER_S
