"""Check that calls that write their arguments do the same work each time.

An output buffer has other content after the first call than before it, and yet each
call does the same work. A list that is sorted in place is different: only the first
call had to sort it. Calls on the original content tell the two cases apart, also where
each call changes the content anew, as a log that grows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol

from pytest_gpuperf.collect.base import calls_the_test
from pytest_gpuperf.collect.clock import NS_PER_S
from pytest_gpuperf.collect.timing.contents import Content, digest
from pytest_gpuperf.collect.timing.originals import Original, copied
from pytest_gpuperf.errors import GpuPerfError

# A call on the original content may take this much longer (docs/judging.md section 5).
_MOST_RATIO = 1.5
# At least three calls are timed on each content, and more while they are short
# (docs/judging.md section 5). On a busy machine three calls of several threads may all
# be interrupted.
_LEAST_TURNS, _MOST_TURNS, _TURNS_S = 3, 20, 0.2
# A call is timed so often where only its shortest time counts.
_SHORTEST_OF = 3
# Time for single short calls. The arguments are put back before each call.
_SINGLE_CALLS_NS = 20_000_000
# Entries compared in a pool of inputs. The same function gets them all.
_MOST_ENTRIES = 3


class Argument(NamedTuple):
    """
    An argument of a call, with its content before the first call.

    Attributes:
        value: The argument.

        contents: The readable contents of the argument, >= 1 of them.

        before: Their digests before the first call, with None for content that could
            not be read.

        original: A copy of the original content, or why there is none.

        entry: Index of its entry in `inputs`, or None if every call has the argument.
    """

    value: object
    contents: Sequence[Content]
    before: Sequence[bytes | None]
    original: Original | str
    entry: int | None


class Probe(Protocol):
    """
    Calls a function with some of its arguments, after the samples.

    Attributes:
        usual_s: The median of the samples that were taken with these arguments [s], or
            0 if it is unknown.
    """

    usual_s: float

    def call(self) -> None:
        """Call the function, and wait for the device."""

    def time_s(self, prepare: Callable[[], None]) -> float:
        """
        Return the time of a call, measured as in the samples [s], > 0, or infinity if
        refused.

        Args:
            prepare: Called before each call, untimed.
        """


class SameWork(NamedTuple):
    """
    The result of calls on the original content.

    Attributes:
        same: Whether all calls do the same work.

        goes_on: Whether each call changes the content anew.

        reason: Why not, as a fragment, or "" if they do or nothing was compared.

        called: Whether a call on the original content was tried.
    """

    same: bool
    reason: str = ""
    called: bool = True
    goes_on: bool = False


_SAME = SameWork(same=True)
_NO_ROOM = SameWork(same=False, reason="there is no room for a second copy")
_NOT_PUT_BACK = SameWork(
    same=False, reason="the original content cannot be put back", called=False
)


def not_compared(_: Sequence[Argument]) -> SameWork:
    """Return that the work is not the same, without calling anything."""
    return SameWork(same=False)


def compare_work(
    arguments: Sequence[Argument], probe_of: Callable[[int], Probe]
) -> SameWork:
    """
    Compare calls on content written by earlier calls with calls on the original
    content.

    Args:
        arguments: The arguments that have changed.

        probe_of: Returns the probe that calls the function with an entry of its pool of
            inputs.
    """
    lacking = [a.original for a in arguments if isinstance(a.original, str)]
    if lacking:
        return SameWork(same=False, reason=lacking[0], called=False)
    entries = {a.entry for a in arguments if a.entry is not None} or {0}
    goes_on = False
    for entry in sorted(entries)[:_MOST_ENTRIES]:
        given = [a for a in arguments if a.entry in {None, entry}]
        try:
            comparison = _compared(_Changed(given), probe_of(entry))
        except GpuPerfError:
            # The device failed.
            raise
        except Exception as error:  # noqa: BLE001 - the function's: it has been measured
            raised = f"one more call raised {type(error).__name__}"
            return SameWork(same=False, reason=raised)
        if not comparison.same:
            return comparison
        goes_on |= comparison.goes_on
    return SameWork(same=True, goes_on=goes_on)


class _Changed:
    """
    The changed arguments of one call.

    Args:
        arguments: The arguments, with their copies.
    """

    def __init__(self, arguments: Sequence[Argument]) -> None:
        self._arguments = arguments
        self._before = [then for a in arguments for then in a.before]
        self._contents = [content for a in arguments for content in a.contents]
        self._originals = [
            a.original for a in arguments if not isinstance(a.original, str)
        ]

    def digests(self) -> list[bytes | None]:
        """Return the digests of the current contents."""
        return [digest(content) for content in self._contents]

    def put_back(self) -> None:
        """Write the original contents."""
        _write(self._originals)

    def can_be_put_back(self) -> bool:
        """Put the original contents back, and return True if the digests are as before."""
        try:
            self.put_back()
        except Exception:  # noqa: BLE001 - each library has its own errors
            return False
        return self.digests() == self._before

    def writer(self) -> Callable[[], None] | None:
        """Return a function that restores the current contents, or None if memory is short."""
        copies = [copied(argument.value) for argument in self._arguments]
        written = [copy for copy in copies if copy is not None]
        return partial(_write, written) if len(written) == len(copies) else None


def _write(contents: Iterable[Original]) -> None:
    for put_back in chain.from_iterable(contents):
        put_back()


def _compared(changed: _Changed, probe: Probe) -> SameWork:
    # Another function of a comparison may have been the last to write the arguments.
    probe.call()
    written = changed.digests()
    probe.call()
    if changed.digests() != written:
        return _compared_anew(changed, probe)
    if not changed.can_be_put_back():
        return _NOT_PUT_BACK
    original_s = probe.time_s(changed.put_back)
    if changed.digests() != written:
        reason = "a call on the original content writes something else"
        return SameWork(same=False, reason=reason)
    if original_s <= _MOST_RATIO * probe.usual_s:
        return _SAME
    rewrite = changed.writer()
    if rewrite is None:
        return _NO_ROOM
    best = _Best(probe, rewrite, changed.put_back, original_s)
    return best.compared(lambda: best.original_s <= _MOST_RATIO * probe.usual_s)


def _compared_anew(changed: _Changed, probe: Probe) -> SameWork:
    """Compare calls that change the content each time. The content is then restored."""
    rewrite = changed.writer()
    if rewrite is None:
        return _NO_ROOM
    if not changed.can_be_put_back():
        return _NOT_PUT_BACK
    best = _Best(probe, rewrite, changed.put_back)
    comparison = best.compared(lambda: best.are_alike)
    rewrite()
    if comparison.same and not best.are_alike:
        return SameWork(same=False, reason="the content and the time go on changing")
    return comparison._replace(goes_on=True)


class _Best:
    """
    Best times of calls that differ only in the content of the arguments.

    Copying an argument evicts others from the processor's caches, a short call is
    slower alone than in a batch, and the machine may be slower than before. So the
    contents that the calls have written are put back in the same way, and both are
    timed in alternating order.

    Args:
        probe: Makes the calls.

        rewrite: Restores the contents that the calls have written.

        put_back: Restores the original contents.

        original_s: Time of a first call on the original content [s].
    """

    def __init__(
        self,
        probe: Probe,
        rewrite: Callable[[], None],
        put_back: Callable[[], None],
        original_s: float = math.inf,
    ) -> None:
        self.original_s = original_s
        self._written_s = math.inf
        self._probe = probe
        self._rewrite, self._put_back = rewrite, put_back

    @property
    def are_alike(self) -> bool:
        """True if neither content takes much longer than the other."""
        shorter_s, longer_s = sorted((self.original_s, self._written_s))
        return longer_s <= _MOST_RATIO * shorter_s and longer_s < math.inf

    def compared(self, is_enough: Callable[[], bool]) -> SameWork:
        """
        Return whether a call on the original content takes as long.

        Args:
            is_enough: Returns True if the times so far show the same work.
        """
        spent_s = 0.0
        for turn in range(_MOST_TURNS):
            written_s = self._probe.time_s(self._rewrite)
            original_s = self._probe.time_s(self._put_back)
            self._written_s = min(self._written_s, written_s)
            self.original_s = min(self.original_s, original_s)
            if is_enough():
                return _SAME
            spent_s += written_s + original_s
            if turn + 1 >= _LEAST_TURNS and spent_s >= _TURNS_S:
                break
        if math.isinf(self.original_s) or math.isinf(self._written_s):
            reason = "no call on the original content could be timed"
            return SameWork(same=False, reason=reason)
        if self.original_s <= _MOST_RATIO * self._written_s:
            return _SAME
        ratio = self.original_s / self._written_s
        reason = f"a call on the original content takes {ratio:.3g} times as long"
        return SameWork(same=False, reason=reason)


class SingleCalls:
    """
    Call a function after its samples (Probe).

    Args:
        single_s: Times a call after a preparation [s] (CallSampler.single_s).

        next_call: Returns the function with its arguments.

        usual_s: The median of the samples [s], or 0 if it is unknown for these
            arguments.

        calls_count: Number of calls that are timed singly, because the clock does not
            resolve a single call, >= 1.

        now_ns: The clock [ns].
    """

    def __init__(
        self,
        single_s: Callable[[Callable[[], object]], float],
        next_call: Callable[[], Callable[[], object]],
        *,
        usual_s: float,
        calls_count: int,
        now_ns: Callable[[], int],
    ) -> None:
        self.usual_s = usual_s
        self._single_s = single_s
        self._next_call = next_call
        self._calls_count = calls_count
        self._now_ns = now_ns

    def call(self) -> None:
        """Call the function, and wait for the device."""
        self._single_s(_nothing)

    def time_s(self, prepare: Callable[[], object]) -> float:
        """Return the time of a call [s], or infinity if refused."""
        if self._calls_count == 1:
            return self._single_s(prepare)
        times_ns: list[int] = []
        end_ns = self._now_ns() + _SINGLE_CALLS_NS
        while len(times_ns) < self._calls_count and self._now_ns() < end_ns:
            prepare()
            times_ns.append(_timed_alone(self._next_call(), self._now_ns))
        # The quarters cut off hold interrupted calls, and steps of a coarse clock.
        quarter = len(times_ns) // 4
        middle_ns = sorted(times_ns)[quarter : len(times_ns) - quarter]
        return max(1.0, statistics.fmean(middle_ns)) / NS_PER_S


def _nothing() -> None:
    """Prepare nothing."""


def shortest_s(probe: Probe, prepare: Callable[[], None] = _nothing) -> float:
    """
    Return the shortest time of some calls [s], because a busy machine interrupts others.

    Args:
        probe: Calls the function.

        prepare: Called before each call, untimed.
    """
    return min(probe.time_s(prepare) for _ in range(_SHORTEST_OF))


@calls_the_test
def _timed_alone(call: Callable[[], object], now_ns: Callable[[], int]) -> int:
    """Return the time of a single call, corrected for the clock's own time [ns]."""
    __tracebackhide__ = True
    first_ns = now_ns()
    start_ns = now_ns()
    call()
    return now_ns() - start_ns - (start_ns - first_ns)
