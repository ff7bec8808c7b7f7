"""Doubts about the work of repeated calls: less than in the first call, promised, or elsewhere.

The samples do not show whether each call did the work that the test means. The signs are
looked for after the first call and after the samples. Only a marker's `make` and `reference`,
a function that returns nothing and may catch an exception, and one with a cache take extra
calls.
"""

from __future__ import annotations

import operator
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from math import inf
from types import BuiltinFunctionType, CodeType, FunctionType

from pytest_gpuperf.collect.base import (
    PLAIN_TYPES,
    Garbage,
    TimedCall,
)
from pytest_gpuperf.collect.clock import NS_PER_S, Clock
from pytest_gpuperf.collect.timing import periods
from pytest_gpuperf.collect.timing.elsewhere import Elsewhere
from pytest_gpuperf.collect.timing.hidden import (
    CACHED,
    Place,
    changed,
    grown_by,
    ids_in,
    is_kept_data,
    places,
    signs,
)
from pytest_gpuperf.collect.timing.imported import Data, ImportedData
from pytest_gpuperf.collect.timing.imported import notes as imported_notes
from pytest_gpuperf.collect.timing.readings import Reading
from pytest_gpuperf.collect.timing.results import (
    is_nothing,
    promised,
    promises_later,
)
from pytest_gpuperf.collect.timing.same_work import Probe, shortest_s
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import WORK_ELSEWHERE, Note

# A call with other arguments, and some calls among the samples, may take so much longer.
_MOST_RATIO = 3
# A first call takes some times as long as later ones, because caches of the processor are
# cold. The slowest ordinary one that was measured took 40 us.
_FIRST_RATIO, _FIRST_S = 10, 1e-4
# Reading a file and understanding it takes at most this long (YAML, in Python).
_READ_S_PER_BYTE = 5e-5
# Less processor time of other threads is that of services, as of a progress bar.
_BACKGROUND_S = 0.02
# Longer calls are not made again.
_MOST_CALL_S = 1.0
# Two readings of the clock are a part of a shorter time.
_LEAST_DROPPED_S = 1e-6
# Objects of garbage of a call, on average.
_LEAST_GARBAGE = 0.5
# The mean of samples over their median, where slow ones count.
_UNEVEN = 1.5
# Code of a function that only returns something is shorter.
_SHORT_BYTES = 40
_NAMED = 3  # places in a note
_LEVELS = 4  # of containers in an argument, one in the other
# A getter, because each comprehension is a call.
_WALL_S = operator.attrgetter("wall_s")
_ROUND = 100  # a ratio with three figures needs no point


class Doubts:
    """
    The signs that calls of one measurement did other work than meant.

    Args:
        request: The call, before it is made for the first time.

        clock: The clock.

        paired: Whether another function is measured in turn, which may do its work.

        imported: The data of test modules before the first test, or None if unknown.
    """

    def __init__(
        self,
        request: TimedCall,
        clock: Clock,
        *,
        paired: bool,
        imported: ImportedData | None = None,
    ) -> None:
        self._request = request
        self._clock = clock
        self._paired = paired
        self._others_ns = 0
        self._elsewhere = Elsewhere(clock)
        # What the call reaches, and what the first call and another function changed.
        self._places: list[Place] = []
        self._by_first: list[tuple[Place, Place]] = []
        self._by_other: list[tuple[Place, Place]] = []
        # Bytes read before the first call, or None if unknown, and whether it read files or
        # loaded modules for the time that it took.
        self._bytes_read: int | None = None
        self._prepared = False
        # The result of the first call, if something else keeps it, too.
        self._made_by_first: object = None
        # Data that another test or a fixture changed.
        self._changed_before: Sequence[Data] = ()
        # An object of the test may raise when it is looked at, which never fails the test.
        with suppress(Exception):
            self._places = places(request)
            if imported is not None:
                self._changed_before = imported.changed(self._reached())

    def before_first(self) -> None:
        """Note what another function has changed before the first call."""
        if self._places:
            self._bytes_read = self._clock.bytes_read()
        if self._paired:
            with suppress(Exception):
                self._by_other = changed(self._places)
                self._places = [place.now() for place in self._places]

    def after_first(
        self, first_call_s: float, output: object, *, loaded: bool = False
    ) -> None:
        """
        Note what the first call changed, if it took long enough to have done work.

        Args:
            first_call_s: Its time [s].

            output: Its result, if something else refers to it, else None.

            loaded: Whether it loaded a module.
        """
        if first_call_s > _FIRST_S or self._paired:
            with suppress(Exception):
                self._by_first = changed(self._places)
        if first_call_s > _FIRST_S:
            changed_any = bool(self._by_first)
            self._prepared = loaded or (changed_any and self._has_read(first_call_s))
            with suppress(Exception):
                if is_kept_data(output) and not self._is_given(output):
                    self._made_by_first = output

    def _has_read(self, first_call_s: float) -> bool:
        before, now = self._bytes_read, self._clock.bytes_read()
        if before is None or now is None:
            return False
        return now - before > first_call_s / _READ_S_PER_BYTE

    def _is_given(self, output: object) -> bool:
        """Return True if a result is in an argument, or in what the first call left as it was."""
        given = (*self._request.args, *self._request.kwargs.values())
        before = {place.before_id for place in self._places}
        changed_ids = {id(then.find) for then, _ in self._by_first}
        left = (p.find() for p in self._places if id(p.find) not in changed_ids)
        # Of a container that was left as it was, the items are those of before. What is in
        # them may be new. `Contract` looks at the whole content of arguments.
        held = (each for each in left if isinstance(each, (list, dict)))
        before |= ids_in(held, levels_count=1) | ids_in(given, levels_count=_LEVELS)
        return id(output) in before

    def begin(self) -> None:
        """Note the processor time of other threads before the first sample."""
        if self._request.setup is not None:
            self._others_ns = self._other_threads_ns()
        self._elsewhere.begin()

    def left(self, calls_count: int) -> list[Note]:
        """
        Return the doubts about work that goes on after the last sample.

        Args:
            calls_count: Calls since `begin`, >= 1.
        """
        return self._elsewhere.left(calls_count)

    def notes(
        self,
        output: object,
        samples: Sequence[float],
        *,
        first_call_s: float,
        readings: Sequence[Reading],
        again: Callable[[], Reading | None],
        garbage: Garbage | None,
        dropped_s: float,
        calls_count: int,
        interrupted: bool,
        probe_of: Callable[[TimedCall], Probe],
    ) -> Iterator[Note]:
        """
        Yield a note for each sign.

        Args:
            output: The last timed output.

            samples: The samples [s], >= 1 of them.

            first_call_s: Time of the very first call [s].

            readings: All samples, interrupted ones included, in the order they were
                taken.

            again: Takes one more sample, or returns None if it is refused.

            garbage: The garbage of a call, or None if it is not collected.

            dropped_s: Time of finalizing the result of a call [s], 0 without a finalizer.

            calls_count: Calls behind each sample, >= 1.

            interrupted: Whether interrupted samples were left out.

            probe_of: Returns what calls a function again.
        """
        __tracebackhide__ = True
        request = self._request
        usual_s = sorted(samples)[len(samples) // 2]
        wall_s = statistics.median(map(_WALL_S, readings))
        less: list[Note] = []
        with suppress(Exception):
            less = self._signs(output, first_call_s, wall_s)
            if not less and _FIRST_S < first_call_s <= _MOST_CALL_S:
                less = self._uncached(probe_of, usual_s)
        yield from less
        yield from self._unread()
        if sum(map(_WALL_S, readings)) >= _UNEVEN * wall_s * len(readings):
            yield from periods.notes(readings, again, self._clock)
        if garbage is not None and garbage.time_s > usual_s:
            yield from self._garbage_notes(garbage, usual_s)
        if dropped_s > max(usual_s, _LEAST_DROPPED_S):
            yield _finalizer_note(dropped_s, usual_s)
        if request.setup is not None and not self._paired:
            yield from self._background(calls_count * sum(samples))
        if usual_s > _MOST_CALL_S:
            return
        if interrupted and (children_ns := self._clock.children_cpu_ns()) is not None:
            # Imported here, because few tests have children.
            from pytest_gpuperf.collect.timing.pools import children_notes

            call = probe_of(request).call
            yield from children_notes(call, usual_s, self._clock, children_ns)
        pools = self._elsewhere.pools
        if pools is not None:
            yield from pools.notes(request, probe_of, usual_s, self._places)
        yield from self._of_output(output, probe_of, usual_s)
        yield from self._of_other_content(output, probe_of, usual_s)

    def _of_other_content(
        self, output: object, probe_of: Callable[[TimedCall], Probe], usual_s: float
    ) -> Iterator[Note]:
        """Yield a doubt if a call takes longer on new content, or on what was there at first."""
        __tracebackhide__ = True
        request = self._request
        if request.reference is not None or request.make is not None:
            # Imported here, because few markers have either.
            from pytest_gpuperf.collect.timing import made_arguments

            yield from made_arguments.notes(request, output, probe_of, usual_s)
        if self._changed_before:
            yield from imported_notes(self._changed_before, probe_of(request))

    def _reached(self) -> Iterator[int]:
        """Return the ids of the arguments, and of what the call reaches without one."""
        request = self._request
        pool = request.inputs or ()
        within = chain.from_iterable(item for item in pool if isinstance(item, tuple))
        given = chain(request.args, request.kwargs.values(), pool, within)
        return chain(map(id, given), (place.before_id for place in self._places))

    def _of_output(
        self, output: object, probe_of: Callable[[TimedCall], Probe], usual_s: float
    ) -> Iterator[Note]:
        """Yield a note for each sign that a result has needed no work."""
        if is_nothing(output):
            yield from self._swallowed(probe_of(self._request))
        elif type(output) not in PLAIN_TYPES:
            code = getattr(self._request.fn, "__code__", None)
            is_short = code is not None and len(code.co_code) < _SHORT_BYTES
            if is_short or promises_later(output):
                # Imported here, because few results are functions or objects of the project.
                from pytest_gpuperf.collect.timing import deferred

                now_ns = self._clock.now_ns
                yield from deferred.notes(
                    self._request, output, probe_of, usual_s, now_ns
                )

    def _signs(self, output: object, first_call_s: float, wall_s: float) -> list[Note]:
        notes = []
        request = self._request
        given = chain(request.args, request.kwargs.values())
        what = promised(output, given, self._clock.now_ns)
        if what:
            text = (
                f"the call returns {what}, whose work may not be done yet; measure a"
                " function that uses the whole result"
            )
            notes.append(Note(code="lazy-result", text=text, doubt=True))
        # A longer first call compiles.
        if max(_FIRST_S, _FIRST_RATIO * wall_s) < first_call_s <= _MOST_CALL_S:
            # What each call changes anew is no result that later calls find.
            stays = [
                (then, now)
                for then, now in self._by_first
                if now.is_same or self._is_of_pool(then)
            ]
            result = (output,) if self._prepared else ()
            names = ", ".join(signs(stays, *result)[:_NAMED])
            what = f"changed {names}" if names else ""
            if not names and output is self._made_by_first is not None:
                what = "made the object that all of them return"
            if what:
                text = (
                    f"the first call took {_times(first_call_s / wall_s)} times the median"
                    f" of the later calls, and {what}, so that they may find its"
                    " work done; reset that in setup="
                )
                notes.append(
                    Note(code="less-work", text=text, doubt=True, full_s=first_call_s)
                )
        if self._paired:
            # What this function changes itself is no work of the other one.
            own = {id(then.find) for then, _ in self._by_first}
            later = [place for place in self._places if id(place.find) not in own]
            others = [pair for pair in self._by_other if id(pair[0].find) not in own]
            names = ", ".join(signs([*others, *changed(later)])[:_NAMED])
            if names:
                text = (
                    f"the other function changes {names}, where this one may find its work"
                    " done"
                )
                notes.append(Note(code="less-work", text=text, doubt=True))
        return notes

    def _uncached(
        self, probe_of: Callable[[TimedCall], Probe], usual_s: float
    ) -> list[Note]:
        """Return a doubt if a cached function takes far longer without its cache."""
        request = self._request
        if type(request.fn) is not CACHED:
            return []
        probe = probe_of(replace(request, fn=request.fn.__wrapped__))
        full_s = shortest_s(probe)
        if not max(_FIRST_S, _MOST_RATIO * usual_s) < full_s < inf:
            return []
        text = (
            f"the function takes {_times(full_s / usual_s)} times as long without its"
            " cache, which holds the results of earlier calls; measure its __wrapped__"
        )
        return [Note(code="less-work", text=text, doubt=True, full_s=full_s)]

    def _is_of_pool(self, then: Place) -> bool:
        """Return True if a place got an item for each of the inputs, and no more."""
        inputs = self._request.inputs or ()
        return 0 < grown_by(then) <= len(inputs)

    def _swallowed(self, probe: Probe) -> Iterator[Note]:
        """Yield a doubt if a function that returns nothing has caught a mistake of its own."""
        # Imported here, because few functions return nothing.
        from pytest_gpuperf.collect.timing.swallowing import swallowed

        name = ""
        try:
            name = swallowed(probe.call, self._request.fn, self._clock.thread_cpu_ns)
        except (GpuPerfError, KeyboardInterrupt):
            raise
        except BaseException:  # noqa: BLE001 - the function's, which has been measured
            return
        if name:
            text = f"the call catches its own {name} and returns nothing: it may do no work"
            yield Note(code="swallowed-error", text=text, doubt=True)

    def _other_threads_ns(self) -> int:
        return self._clock.process_cpu_ns() - self._clock.thread_cpu_ns()

    def _garbage_notes(self, garbage: Garbage, usual_s: float) -> Iterator[Note]:
        # Less was left by something else than the call.
        if garbage.objects_count < _LEAST_GARBAGE:
            return
        # A sweep between two functions finds the garbage of both.
        count = "" if self._paired else f" ({_times(garbage.objects_count)} objects)"
        text = (
            f"it takes {_times(garbage.time_s / usual_s)} times as long to collect the"
            f" garbage of a call{count}, which is no part of its time"
        )
        full_s = usual_s + garbage.time_s
        yield Note(code="leaves-garbage", text=text, doubt=True, full_s=full_s)

    def _unread(self) -> list[Note]:
        """Return a doubt if a generator or a coroutine is made and dropped."""
        name, fn = "", self._request.fn
        if type(fn) is BuiltinFunctionType:
            return []
        if type(fn) is FunctionType and fn.__closure__ is None:
            code = fn.__code__
            named = (*code.co_consts, *map(fn.__globals__.get, code.co_names))
            if {CodeType, FunctionType}.isdisjoint(map(type, named)):
                return []  # It calls no function that is written in Python.
        # Imported here, because many functions call none of the project.
        from pytest_gpuperf.collect.timing.unread import unread

        # An object of the test may raise when it is looked at.
        with suppress(Exception):
            name = unread(fn)
        if not name:
            return []
        text = (
            f"the call makes {name}(), and neither reads nor awaits it: no work is done"
        )
        return [Note(code="lazy-result", text=text, doubt=True)]

    def _background(self, samples_s: float) -> Iterator[Note]:
        """Yield a doubt if other threads worked longer than they can in the samples."""
        others_s = (self._other_threads_ns() - self._others_ns) / NS_PER_S
        most_s = _MOST_RATIO * samples_s * (os.cpu_count() or 1)
        if others_s > max(most_s, _BACKGROUND_S):
            text = (
                f"other threads worked for {others_s:.3g} s, the samples took"
                f" {samples_s:.3g} s: the work may be done between them"
            )
            # Arguments may be what the threads prepare, as batches of a data loader. A
            # function without any gets results from elsewhere.
            code = getattr(self._request.fn, "__code__", None)
            takes_nothing = code is not None and code.co_argcount == 0
            name = WORK_ELSEWHERE if takes_nothing else "background-work"
            yield Note(code=name, text=text, doubt=True)


def _finalizer_note(dropped_s: float, usual_s: float) -> Note:
    text = (
        f"it takes {_times(dropped_s / usual_s)} times as long to finalize the result of a"
        " call, which is no part of its time"
    )
    full_s = usual_s + dropped_s
    return Note(code="leaves-garbage", text=text, doubt=True, full_s=full_s)


def _times(ratio: float) -> str:
    return f"{ratio:{',.0f' if ratio >= _ROUND else '.3g'}}"
