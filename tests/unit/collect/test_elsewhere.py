"""Rules of collect.timing.elsewhere: threads that work after a call."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from fakes.clock import FakeClock
from pytest_gpuperf.collect.timing.elsewhere import Elsewhere

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


def watched(clock: Backlog, *, worked_ns: int = 6 * MS) -> Elsewhere:
    """Return what has seen threads work during the samples."""
    elsewhere = Elsewhere(clock)
    elsewhere.begin()
    clock.others_ns += worked_ns
    return elsewhere


def test_threads_that_were_there_work_after_the_call(clock: Backlog) -> None:
    """Their time per call belongs to the work, also if earlier calls left some."""
    elsewhere = watched(clock)
    clock.left_ns = 300 * MS

    def call() -> None:
        clock.left_ns += 4 * MS

    (note,) = elsewhere.in_threads(call, 1e-5, queued=False)

    assert note.code == "work-elsewhere"
    assert "0.004 s after a call" in note.text
    assert note.full_s == pytest.approx(0.00401)


def test_a_call_that_waits_for_them_leaves_nothing(clock: Backlog) -> None:
    """They worked during the samples, and rest after a call."""

    def call() -> None:
        clock.others_ns += 4 * MS

    assert watched(clock).in_threads(call, 1e-5, queued=False) == []


def test_a_thread_that_works_all_the_time_has_other_work(clock: Backlog) -> None:
    """Nothing tells it from that of the calls, so there is no doubt."""
    clock.left_ns = 10**15

    assert watched(clock).in_threads(lambda: None, 1e-5, queued=False) == []


def test_a_queue_that_grows_is_work_of_the_calls(clock: Backlog) -> None:
    """It takes too long to wait for its end."""
    elsewhere = watched(clock, worked_ns=0)
    clock.left_ns = 10**15
    (note,) = elsewhere.in_threads(lambda: None, 1e-5, queued=True)

    assert "still do that of earlier calls" in note.text
    clock.left_ns = 0  # nobody reads it
    assert elsewhere.in_threads(lambda: None, 1e-5, queued=True) == []


def test_threads_that_hardly_worked_are_not_waited_for(clock: Backlog) -> None:
    """Services of a runner wake up now and then."""
    elsewhere = watched(clock, worked_ns=MS)
    before_ns = clock.reading_ns

    assert elsewhere.in_threads(lambda: None, 1e-5, queued=False) == []
    assert clock.reading_ns == before_ns
