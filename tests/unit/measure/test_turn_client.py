"""measure.turns: what a process asks for, and when."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from fakes.clock import FakeClock
from fakes.runner import FakeRunner
from fakes.runtime import FakeRuntime
from pytest_gpuperf.collect.devices import DeviceQuery
from pytest_gpuperf.collect.step_profile import StepRecorder
from pytest_gpuperf.config import Config, Plan
from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.measure.bench import Bench, bench_of, timed_call
from pytest_gpuperf.measure.references import TURN_NAME, References
from pytest_gpuperf.measure.site import ProcessIdentity, Site
from pytest_gpuperf.measure.turns import GO, OVER, Stage, TurnClient, TurnRequest
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.record import RecordKey

MS = 1_000_000
BEGIN, TURN, ENOUGH, ALONE, END, TEST = Stage
KEY = RecordKey(test_id="test_it.py::test_x", name="n")
PLAN = Plan()

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "AF_UNIX"), reason="this system has no Unix sockets"
)


class Server:
    """
    The other end of a client; it has answered before it is asked.

    Attributes:
        client: The client.

        clock: Its clock.

        descriptor: What it was given.
    """

    def __init__(self) -> None:
        self._socket, self._theirs = socket.socketpair()
        self._theirs.set_inheritable(True)
        self.clock = FakeClock()
        self.descriptor = self._theirs.fileno()
        self.client = TurnClient(self.descriptor, self.clock)
        self.client.begin_test(KEY.test_id)

    def answer(self, answers: bytes) -> None:
        self._socket.sendall(answers)

    def close(self) -> None:
        self._socket.close()
        self._theirs.close()

    def requests(self) -> list[TurnRequest]:
        """Return what the client has asked for; that a test runs asks for nothing."""
        return [r for r in self.received() if r.stage is not TEST]

    def received(self) -> list[TurnRequest]:
        """Return all that the client has sent."""
        self._socket.setblocking(False)
        lines = self._socket.recv(1 << 16).splitlines()
        return [codec.from_text(line, TurnRequest) for line in lines]

    def stages(self) -> list[Stage]:
        """Return the stages of what it has asked for."""
        return [request.stage for request in self.requests()]

    def bench(self) -> Bench:
        """Return the bench of a process that takes turns."""
        site = Site(
            Config(root="/"),
            ProcessIdentity(session=Session(id="s", started_unix_s=0.0, host="h")),
            clock=self.clock,
            runner=FakeRunner(),
            runtime=FakeRuntime(self.clock, in_use=False),
            query=lambda: DeviceQuery(devices=(), reason="no driver"),
        )
        return bench_of(site, turn_client=self.client)


@pytest.fixture(name="server")
def server_() -> Iterator[Server]:
    """A server, closed at the end."""
    made = Server()
    yield made
    made.close()
    made.client.close()


def test_a_measurement_is_prepared_sampled_and_finished(server: Server) -> None:
    """It names its test and itself as it begins."""
    server.answer(GO * 4)
    with server.client.measuring("n"):
        assert server.client.take_turn(False)
        server.client.alone()
    first, *rest = server.requests()

    assert first == TurnRequest(stage=BEGIN, test_id=KEY.test_id, name="n")
    assert rest == [TurnRequest(stage=stage) for stage in (TURN, ALONE, END)]


def test_a_test_is_told_before_it_measures(server: Server) -> None:
    """At once, and no answer is waited for: it may hang in its fixtures."""
    server.client.begin_test("test_it.py::test_y")
    server.client.end_tests()

    assert [(r.stage, r.test_id) for r in server.received()] == [
        (TEST, KEY.test_id),
        (TEST, "test_it.py::test_y"),
        (TEST, ""),
    ]


def test_a_turn_lasts_fifteen_milliseconds(server: Server) -> None:
    """Meanwhile nobody is asked; a sample that takes longer is a turn by itself."""
    server.answer(GO * 9)
    with server.client.measuring("n"):
        for elapsed_ns in (5 * MS, 5 * MS, 5 * MS, MS, 400 * MS, 0):
            server.client.take_turn(False)
            server.clock.advance(elapsed_ns)

    assert server.stages() == [BEGIN, TURN, TURN, TURN, END]


def test_who_has_enough_goes_on_until_all_have(server: Server) -> None:
    """And not beyond that."""
    server.answer(GO + GO + GO + OVER + GO)
    taken = []
    with server.client.measuring("n"):
        for enough in (False, True, True):
            taken.append(server.client.take_turn(enough))
            server.clock.advance(15 * MS)

    assert taken == [True, True, False]
    assert server.stages() == [BEGIN, TURN, ENOUGH, ENOUGH, END]


def test_a_measurement_inside_another_is_part_of_it(server: Server) -> None:
    """It waits for nobody, and takes the samples that it needs."""
    server.answer(GO * 2)
    with server.client.measuring("outer"), server.client.measuring("inner"):
        assert server.client.take_turn(False)
        assert not server.client.take_turn(True)
        server.client.alone()

    assert server.stages() == [BEGIN, END]


def test_nothing_is_asked_outside_of_a_measurement(server: Server) -> None:
    """Samples are taken as by a process of its own."""
    assert server.client.take_turn(False)
    assert not server.client.take_turn(True)
    server.client.alone()
    server.answer(GO * 2)
    with server.client.measuring("n"):
        pass

    assert server.stages() == [BEGIN, END]


def test_what_a_test_leaves_open_ends_with_it(server: Server) -> None:
    """The next test measures with the others; what was left may be closed at any time."""
    server.answer(GO * 6)
    left = contextlib.ExitStack()
    left.enter_context(server.client.measuring("outer"))
    left.enter_context(server.client.measuring("inner"))
    server.client.begin_test("test_it.py::test_y")
    with server.client.measuring("n"):
        left.close()
        server.client.take_turn(False)

    assert server.stages() == [BEGIN, END, BEGIN, TURN, END]


def test_a_measurement_that_fails_ends(server: Server) -> None:
    """Others do not wait for it."""
    server.answer(GO * 2)
    with pytest.raises(ZeroDivisionError), server.client.measuring("n"):
        _ = 1 / 0

    assert server.stages() == [BEGIN, END]


def test_who_has_no_server_any_more_says_so(server: Server) -> None:
    """Whether it has ended before it was asked, or does not answer."""
    server.close()
    for _ in range(2):
        with (
            pytest.raises(CollectError, match="shares out turns has ended"),
            server.client.measuring("n"),
        ):
            pass


def test_what_a_test_starts_has_no_part_in_it(server: Server) -> None:
    """Neither a program that it runs, nor a pytest in the same process that ends."""
    TurnClient(server.descriptor, server.clock).close()
    server.answer(GO * 2)
    with server.client.measuring("n"):
        pass

    assert not os.get_inheritable(server.descriptor)
    server.close()
    with pytest.raises(OSError, match="file descriptor"):
        TurnClient(server.descriptor, server.clock)


# ------------------------------------------------------- what a process measures


def test_a_call_is_warmed_up_before_others_and_sampled_between_them(
    server: Server,
) -> None:
    """What is looked at after its samples disturbs nobody's."""
    server.answer(GO * 4 + OVER + GO * 2)
    stages: dict[int, list[Stage]] = {}

    def call() -> None:
        server.clock.advance(4 * MS)
        count = len(stages)
        stages[count] = server.stages() if count in {0, 4} else []

    record, _ = server.bench().measurer.timed(
        KEY, timed_call(PLAN, call, (), {}), plan=PLAN
    )

    assert (stages[0], stages[4]) == ([BEGIN], [TURN])
    assert server.stages() == [TURN, TURN, ENOUGH, ALONE, END]
    assert record.estimates[0].value == pytest.approx(0.004)


def test_a_pair_is_sampled_by_turns_too(server: Server) -> None:
    """Both of a pair in one turn."""
    server.answer(GO * 99)

    def call() -> None:
        server.clock.advance(8 * MS)

    request = timed_call(Plan(iterations=3), call, (), {})
    server.bench().measurer.compared(KEY, (request, request), plan=PLAN)

    assert server.stages() == [BEGIN, TURN, TURN, TURN, ALONE, END]


def test_a_block_of_code_is_one_turn(server: Server) -> None:
    """However long it takes."""
    server.answer(GO * 2)
    with server.bench().measurer.ranged(KEY, plan=PLAN) as ended:
        server.clock.advance(500 * MS)

    assert ended().estimates[0].value == pytest.approx(0.5)
    assert server.stages() == [BEGIN, END]


def test_a_loop_gives_its_turn_away_between_steps(server: Server) -> None:
    """Steps of 10 ms: two in a turn."""
    server.answer(GO * 9)
    bench = server.bench()
    recorder = StepRecorder(bench.site.clock, bench.site.runtime, warmup_count=0)
    end = bench.measurer.stepped(KEY, recorder, plan=PLAN)
    for _ in range(4):
        with recorder.step():
            server.clock.advance(10 * MS)
    end(None)

    assert server.stages() == [BEGIN, TURN, TURN, END]


def test_references_are_one_turn(server: Server) -> None:
    """A set of them; what is left of a budget is known before others wait."""
    server.answer(GO * 2)
    references = References(server.clock, modules={}, turn_client=server.client)
    references.before()
    (begin, end) = server.requests()

    assert (begin.stage, begin.name) == (BEGIN, TURN_NAME)
    assert end.stage is END
    references.before()  # soon after: those still stand
    assert references.taken()
