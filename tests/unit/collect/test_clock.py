"""collect.clock: the machine's clocks, and the double of them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from pytest_gpuperf.collect import processor_time
from pytest_gpuperf.collect.clock import Clock, SystemClock


def test_the_monotonic_clock_counts_nanoseconds() -> None:
    """Between two readings lies the time that has passed, and it never goes back."""
    clock = SystemClock()
    begun = clock.now_ns()
    time.sleep(0.01)
    ended = clock.now_ns()

    assert isinstance(begun, int)
    assert 10_000_000 <= ended - begun < 5_000_000_000


def test_the_wall_clock_counts_seconds_since_the_epoch() -> None:
    """It says what the system says."""
    before, now, after = time.time(), SystemClock().unix_s(), time.time()

    assert before <= now <= after


def test_reading_the_clock_is_the_bare_builtin() -> None:
    """A Python frame around it would be part of every sample."""
    assert SystemClock.now_ns is time.perf_counter_ns
    assert SystemClock().now_ns is time.perf_counter_ns
    assert SystemClock().thread_cpu_ns is time.thread_time_ns
    assert SystemClock().process_cpu_ns is time.process_time_ns


def test_a_thread_that_sleeps_waits_and_does_not_compute() -> None:
    """A sleep takes no processor time, and counts as a wait where waits are counted."""
    clock = SystemClock()
    begun_ns, waits = clock.thread_cpu_ns(), clock.waits_count()
    for _ in range(3):
        clock.sleep(0.02)
    cpu_ns, waited = clock.thread_cpu_ns() - begun_ns, clock.waits_count()

    assert 0 < cpu_ns < 30_000_000
    assert waits is None or (waited is not None and waited - waits >= 3)


def test_the_process_computes_at_least_as_much_as_the_thread() -> None:
    """Its processor time is that of all threads."""
    clock = SystemClock()

    assert clock.thread_cpu_ns() <= clock.process_cpu_ns()


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()], ids=["real", "fake"])
def test_the_double_has_the_shape_of_the_clock(clock: Clock) -> None:
    """Both answer the same questions with the same types."""
    assert type(clock.now_ns()) is int
    assert type(clock.thread_cpu_ns()) is int
    assert type(clock.process_cpu_ns()) is int
    assert type(clock.waits_count()) in {int, type(None)}
    assert type(clock.unix_s()) is float


def test_the_fake_clock_moves_as_scripted() -> None:
    """Both of its readings go on together, and only when told to."""
    clock = FakeClock(wall_s=100.0)
    slow_then_fast = clock.taking(2_000_000_000, then_ns=500_000_000)

    assert (clock.now_ns(), clock.unix_s()) == (0, 100.0)
    assert [slow_then_fast(), slow_then_fast()] == [1, 2]
    assert (clock.now_ns(), clock.unix_s()) == (2_500_000_000, 102.5)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts it")
def test_the_processor_time_of_a_thread_is_its_own() -> None:
    """A thread that waits has none, one that works has some."""
    clock, ended = SystemClock(), threading.Event()

    def spin() -> None:
        while not ended.is_set():
            pass

    threads = [threading.Thread(target=each) for each in (ended.wait, spin)]
    for thread in threads:
        thread.start()
    waiting, working = ([thread.native_id or 0] for thread in threads)
    before = clock.threads_cpu_ns(waiting), clock.threads_cpu_ns(working)
    end_s = clock.unix_s() + 30
    while clock.threads_cpu_ns(working) - before[1] < 5e6 and clock.unix_s() < end_s:
        clock.sleep(0.01)
    after = clock.threads_cpu_ns(waiting), clock.threads_cpu_ns(working)
    ended.set()
    for thread in threads:
        thread.join()

    assert after[1] - before[1] >= 5e6
    assert after[0] - before[0] < 1e6
    # Linux may give the number to another thread at any time, but not this soon.
    assert clock.threads_cpu_ns([2**22 + 1]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts it")
def test_the_processor_time_of_children_is_that_of_running_ones() -> None:
    """A child that has ended counts no more."""
    clock = SystemClock()
    program = "print(sum(range(2_000_000)), flush=True); input()"
    before_ns = clock.children_cpu_ns()
    with subprocess.Popen(
        [sys.executable, "-S", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        worked_ns = clock.children_cpu_ns()
        child.communicate(b"\n")

    assert worked_ns is not None
    assert worked_ns - (before_ns or 0) > 1e6
    assert (clock.children_cpu_ns() or 0) < worked_ns


@pytest.mark.skipif(sys.platform != "linux", reason="Linux lists them")
def test_all_children_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system returns a page at a time, and the id at its end may be cut off."""
    folder = tmp_path / "17"
    folder.mkdir()
    pids = [4_100_000 + number for number in range(2_000)]
    (folder / "children").write_text("".join(f"{pid} " for pid in pids))
    monkeypatch.setattr(processor_time, "_TASKS", str(tmp_path))

    assert processor_time.child_pids() == pids


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts it")
def test_the_delay_of_a_thread_never_falls() -> None:
    """It is the time in which something else ran on the thread's processor."""
    clock = SystemClock()
    first_ns = clock.delay_ns()
    sum(range(100_000))

    assert 0 <= first_ns <= clock.delay_ns()
