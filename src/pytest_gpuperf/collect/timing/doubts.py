"""Doubts about the work of repeated calls: less than in the first call, promised, or elsewhere.

The samples do not show whether each call did the work that the test means. The signs are
looked for after the samples, and only where something has changed, so that most
measurements take no extra call.
"""

from __future__ import annotations

import operator
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from pytest_gpuperf.collect.base import TimedCall, arguments, calls_the_test
from pytest_gpuperf.collect.clock import NS_PER_S, Clock
from pytest_gpuperf.collect.timing.hidden import Holder, forgets, holders
from pytest_gpuperf.collect.timing.results import differ, promised, swallowed
from pytest_gpuperf.collect.timing.same_work import Probe
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Note

# A call with the content of the first one may take this many times as long.
_LESS_WORK = 3
# Collecting the garbage of a call takes longer than the call.
_GARBAGE_RATIO = 2
# Each content is timed at least so often, because a busy machine interrupts some calls.
_TURNS = 3
# Less processor time of other threads is that of services, as of a progress bar.
_BACKGROUND_S = 0.05
# Longer calls are not made again.
_MOST_CALL_S = 1.0
# The least number of equal distances between slow calls, and their share of all.
_PERIODS, _PERIODIC = 3, 0.8
# The mean of calls over their median, where the slow ones count.
_UNEVEN = 1.5
# Arguments of `make` are not known before the run.
_SEED_BITS = 31
_NAMED = 3  # places in a note
_ROUND = 100  # a ratio with three figures needs no point


class Doubts:
    """
    The signs that calls of one measurement did other work than meant.

    Args:
        request: The call, before it is made for the first time.

        clock: The clock.

        paired: Whether another function is measured beside it, which may do its work.
    """

    def __init__(self, request: TimedCall, clock: Clock, *, paired: bool) -> None:
        self._request = request
        self._clock = clock
        self._paired = paired
        self._holders = holders(request)
        self._others_ns = 0

    def begin(self) -> None:
        """Note the processor time of other threads before the first sample."""
        if self._request.setup is not None:
            self._others_ns = self._other_threads_ns()

    def notes(
        self,
        output: object,
        samples: Sequence[float],
        *,
        first_call_s: float,
        wall_s: float,
        garbage_s: float,
        calls_count: int,
        probe_of: Callable[[TimedCall], Probe],
    ) -> Iterator[Note]:
        """
        Yield a note for each sign, which all are doubts.

        Args:
            output: The last timed output.

            samples: The samples [s], >= 1 of them.

            first_call_s: Time of the very first call [s].

            wall_s: The median of the samples by the host's clock [s].

            garbage_s: Time of collecting the garbage of a call [s].

            calls_count: Calls behind each sample, >= 1.

            probe_of: Returns what calls a function again.
        """
        request = self._request
        given = chain(request.args, request.kwargs.values())
        what = promised(output, given)
        if what:
            text = (
                f"the call returns {what}, whose work may not be done yet; measure a"
                " function that uses the whole result"
            )
            yield Note(code="lazy-result", text=text, doubt=True)
        usual_s = sorted(samples)[len(samples) // 2]
        if usual_s > _MOST_CALL_S:
            return
        if output is None:
            name = _swallowed(probe_of(request), request.fn)
            if name:
                text = f"the call catches its own {name} and returns None: it may do no work"
                yield Note(code="swallowed-error", text=text, doubt=True)
        yield from self._of_reference(output)
        if request.make is not None:
            yield from self._on_new_content(request.make, probe_of, usual_s)
        if request.setup is not None:
            yield from self._background(calls_count * sum(samples))
        yield from _uneven(samples, usual_s)
        if usual_s + garbage_s > _GARBAGE_RATIO * usual_s:
            text = (
                f"it takes {garbage_s / usual_s:.3g} times as long to collect the garbage"
                " of a call, which is no part of its time"
            )
            full_s = usual_s + garbage_s
            yield Note(code="leaves-garbage", text=text, doubt=True, full_s=full_s)
        is_faster = first_call_s > _LESS_WORK * wall_s
        # A longer first call compiles, and would do so again.
        if (self._paired or is_faster) and first_call_s <= _MOST_CALL_S:
            changed = [holder for holder in self._holders if not holder.is_same]
            if changed:
                yield from _less_work(changed, probe_of(request), usual_s)

    @calls_the_test
    def _of_reference(self, output: object) -> Iterator[Note]:
        """Yield a doubt if the function returns something else than its reference."""
        __tracebackhide__ = True
        request, words = self._request, ""
        if request.reference is None:
            return
        if request.make is not None:
            seed = secrets.randbits(_SEED_BITS)
            args, kwargs = arguments(_new(request), request.make(seed))
            output = request.fn(*args, **kwargs)
            args, kwargs = arguments(_new(request), request.make(seed))
            words = f" for make({seed})"
        elif request.setup is None and request.inputs is None:
            args, kwargs = request.args, dict(request.kwargs)
        else:
            return
        if differ(output, request.reference(*args, **kwargs)):
            text = f"the function does not return what its reference returns{words}"
            yield Note(code="wrong-result", text=text, doubt=True)

    def _on_new_content(
        self,
        make: Callable[[int], object],
        probe_of: Callable[[TimedCall], Probe],
        usual_s: float,
    ) -> Iterator[Note]:
        """Yield a doubt if calls with new arguments take far longer."""
        __tracebackhide__ = True
        new = replace(
            _new(self._request), setup=lambda: make(secrets.randbits(_SEED_BITS))
        )
        probe = probe_of(new)
        new_s = min(probe.time_s(_nothing) for _ in range(_TURNS))
        if _LESS_WORK * usual_s < new_s < float("inf"):
            text = (
                f"a call with new arguments of make= takes {_times(new_s / usual_s)} times"
                " as long"
            )
            yield Note(code="new-content", text=text, doubt=True, full_s=new_s)

    def _other_threads_ns(self) -> int:
        return self._clock.process_cpu_ns() - self._clock.thread_cpu_ns()

    def _background(self, samples_s: float) -> Iterator[Note]:
        """Yield a doubt if other threads worked longer than they can in the samples."""
        others_s = (self._other_threads_ns() - self._others_ns) / NS_PER_S
        most_s = _LESS_WORK * samples_s * (os.cpu_count() or 1)
        if others_s > max(most_s, _BACKGROUND_S):
            text = (
                f"other threads worked for {others_s:.3g} s, the samples took"
                f" {samples_s:.3g} s: the work may be done between them"
            )
            yield Note(code="background-work", text=text, doubt=True)


def _uneven(samples: Sequence[float], usual_s: float) -> Iterator[Note]:
    """Yield a doubt if each n-th call does the work of the calls between."""
    places = [i for i, s in enumerate(samples) if s > _LESS_WORK * usual_s]
    gaps = Counter(map(operator.sub, places[1:], places))
    period, count = gaps.most_common(1)[0] if gaps else (0, 0)
    mean_s = sum(samples) / len(samples)
    # Interruptions have no period.
    if count < max(_PERIODS, _PERIODIC * len(places)) or mean_s < _UNEVEN * usual_s:
        return
    text = (
        f"each {period}th call takes more than {_LESS_WORK} times as long, and the median"
        f" leaves it out: the mean is {mean_s:.3g} s"
    )
    yield Note(code="uneven-calls", text=text, doubt=True, full_s=mean_s)


def _less_work(
    changed: Sequence[Holder], probe: Probe, usual_s: float
) -> Iterator[Note]:
    """Yield a doubt if calls take far longer with the content before the first call."""
    # What a cache has forgotten is found again by the next call.
    written = [holder.now() for holder in changed if not forgets(holder)]

    def put_back() -> None:
        for holder in changed:
            holder.put_back()

    def write_again() -> None:
        for holder in written:
            holder.put_back()

    try:
        full_s = probe.time_s(put_back)
        for _ in range(_TURNS):
            if full_s <= _LESS_WORK * usual_s:
                return
            usual_s = max(usual_s, probe.time_s(write_again))
            full_s = min(full_s, probe.time_s(put_back))
    except GpuPerfError:
        # The device failed.
        raise
    except Exception:  # noqa: BLE001 - the function's, which has been measured
        return
    finally:
        write_again()
    if _LESS_WORK * usual_s < full_s < float("inf"):
        named = ", ".join(holder.place for holder in changed[:_NAMED])
        text = (
            f"with {named} as before the first call, a call takes"
            f" {_times(full_s / usual_s)} times as long: later calls"
            " had less to do; give setup= that starts anew"
        )
        yield Note(code="less-work", text=text, doubt=True, full_s=full_s)


def _swallowed(probe: Probe, fn: object) -> str:
    try:
        return swallowed(probe.call, fn)
    except GpuPerfError:
        raise
    except Exception:  # noqa: BLE001 - the function's, which has been measured
        return ""


def _new(request: TimedCall) -> TimedCall:
    """Return a request whose arguments are given later."""
    return replace(request, args=(), setup=None, inputs=None)


def _times(ratio: float) -> str:
    return f"{ratio:{',.0f' if ratio >= _ROUND else '.3g'}}"


def _nothing() -> None:
    """Prepare nothing."""
