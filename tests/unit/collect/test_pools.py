"""Rules of collect.timing.pools: threads that work after a call."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from fakes.clock import FakeClock
from pytest_gpuperf.collect.base import TimedCall
from pytest_gpuperf.collect.timing.hidden import Place, places
from pytest_gpuperf.collect.timing.pools import Pools
from pytest_gpuperf.model.record import Note

MS = 1_000_000  # [ns]


class Backlog(FakeClock):
    """A clock of a process whose other threads work off what they were given."""

    def __init__(self) -> None:
        super().__init__()
        self.left_ns = 0

    def sleep(self, duration_s: float) -> None:
        super().sleep(duration_s)
        done_ns = min(self.left_ns, round(duration_s * 1e9))
        self.left_ns -= done_ns
        self.others_ns += done_ns


@pytest.fixture
def clock() -> Iterator[Backlog]:
    """The clock, while another thread is there that waits for work."""
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, daemon=True)
    thread.start()
    yield Backlog()
    ended.set()
    thread.join()


@dataclass
class Again:
    """Calls a function as its samples did."""

    request: TimedCall
    usual_s: float = 1e-5

    def call(self) -> None:
        given: Any = () if self.request.setup is None else self.request.setup()
        self.request.fn(*given)

    def time_s(self, prepare: Callable[[], None]) -> float:
        """No time is asked for."""
        raise AssertionError(prepare)


def notes_of(
    pools: Pools,
    call: Callable[..., object],
    reached: Sequence[Place] = (),
    setup: Callable[[], object] | None = None,
) -> list[Note]:
    """Return the doubts about a call of 10 us."""
    return pools.notes(TimedCall(fn=call, setup=setup), Again, 1e-5, reached)


def watched(clock: Backlog, *, worked_ns: int = 6 * MS) -> Pools:
    """Return threads that worked during the samples."""
    pools = Pools(clock, threading.enumerate())
    clock.others_ns += worked_ns
    return pools


def test_threads_that_were_there_work_after_the_call(clock: Backlog) -> None:
    """Their time per call belongs to the work, also if earlier calls left some."""
    pools = watched(clock)
    clock.left_ns = 300 * MS

    def call() -> None:
        clock.left_ns += 4 * MS

    (note,) = notes_of(pools, call)

    assert note.code == "work-elsewhere"
    assert "0.004 s after a call" in note.text
    assert note.full_s == pytest.approx(0.00401)


def test_a_call_that_waits_for_them_leaves_nothing(clock: Backlog) -> None:
    """They worked during the samples, and rest after a call."""

    def call() -> None:
        clock.others_ns += 4 * MS

    assert notes_of(watched(clock), call) == []


def test_a_thread_that_works_all_the_time_has_other_work(clock: Backlog) -> None:
    """Nothing tells it from that of the calls, so there is no doubt."""
    clock.left_ns = 10**15

    assert notes_of(watched(clock), lambda: None) == []


def test_a_queue_that_grows_is_work_of_the_calls(clock: Backlog) -> None:
    """It takes too long to wait for its end."""
    pools = watched(clock, worked_ns=0)
    clock.left_ns = 10**15
    given: queue.Queue[int] = queue.Queue()
    reached = places(TimedCall(fn=given.put, args=(1,)))
    given.put(1)
    (note,) = notes_of(pools, lambda: None, reached)

    assert "still do that of earlier calls" in note.text
    clock.left_ns = 0  # nobody reads it
    assert notes_of(pools, lambda: None, reached) == []


def test_threads_that_hardly_worked_are_not_waited_for(clock: Backlog) -> None:
    """Services of a runner wake up now and then."""
    pools = watched(clock, worked_ns=MS)
    before_ns = clock.reading_ns

    assert notes_of(pools, lambda: None) == []
    assert clock.reading_ns == before_ns


def test_what_setup_gives_to_threads_is_no_work_of_the_call(clock: Backlog) -> None:
    """The thread of a loader fills its queue again when `setup` takes a batch from it."""
    pools = watched(clock)
    batches: queue.Queue[int] = queue.Queue(2)
    reached = places(TimedCall(fn=batches.put, args=(1,)))
    batches.put(1)  # since the first call

    def taken() -> tuple[int]:
        clock.left_ns += 4 * MS
        return (1,)

    assert notes_of(pools, lambda _: None, reached, setup=taken) == []


def test_what_a_call_gives_to_threads_is_its_work_with_setup_too(
    clock: Backlog,
) -> None:
    """Only the share of `setup` is left out."""

    def call(_: int) -> None:
        clock.left_ns += 4 * MS

    (note,) = notes_of(watched(clock), call, setup=lambda: (1,))

    assert "0.004 s after a call" in note.text
