"""What a recorder of steps wrote down, made into a loop."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from pytest_gpuperf.collect.marks import Mark
from pytest_gpuperf.collect.sampling import NS_PER_S
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.steps import Compiled, Level, Span, SpanKind, Step

__all__ = ["EndedSpan", "EndedStep", "steps_of"]


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
