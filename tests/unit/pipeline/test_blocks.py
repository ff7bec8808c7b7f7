"""pipeline.blocks: processes of both sides measure by turns, whatever one of them does."""

from __future__ import annotations

import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fakes.block_processes import VARIABLE, ThreadProcess, ThreadRunner
from fakes.clock import FakeClock
from fakes.runner import FakeRunner
from pytest_gpuperf.collect.clock import Clock, SystemClock
from pytest_gpuperf.collect.devices import DeviceQuery
from pytest_gpuperf.collect.leases import FOLDER_VARIABLE, exclusive_machine
from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.collect.runtime import NoDevice
from pytest_gpuperf.config import Config, Lock
from pytest_gpuperf.errors import CollectorUnavailableError, DeviceHeldError
from pytest_gpuperf.judge.against import Block, SideRun
from pytest_gpuperf.measure.site import ProcessIdentity, Site
from pytest_gpuperf.measure.turns import Stage, TurnRequest
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import Kind, Record, RecordKey, Role
from pytest_gpuperf.model.run import ChildAnswer
from pytest_gpuperf.model.sample import Estimate, ReferenceSamples, Unmeasured
from pytest_gpuperf.pipeline.blocks import BlockRequest, run_block
from pytest_gpuperf.pipeline.proof import unrecorded
from pytest_gpuperf.pipeline.turn_server import Patience

OLD, NEW = Side.OLD, Side.NEW
TESTS = ("t.py::a", "t.py::b")
WRONG = Gap(code=GapCode.FAILED, reason="it ran other files", remedy="look")
needs_sockets = pytest.mark.skipif(
    not hasattr(socket, "AF_UNIX"), reason="this system has no Unix sockets"
)
pytestmark = needs_sockets


@dataclass(frozen=True)
class Command:
    """How a process of a side is started."""

    side: Side
    folder: str
    scratch: str = "/side"

    def argv(self, scratch: str, extra: Sequence[str] = ()) -> tuple[str, ...]:
        return ("pytest", scratch, *extra)

    def environment(self, scratch: str, hash_seed: int) -> Mapping[str, str]:
        return {"SCRATCH": scratch, "SEED": str(hash_seed), "SIDE": self.side.value}


@dataclass(frozen=True)
class Sides:
    """The two sides."""

    proof: Callable[..., Gap | None]
    old: Command = field(default_factory=lambda: Command(OLD, "/old"))
    new: Command = field(default_factory=lambda: Command(NEW, "/new"))


Body = Callable[[ThreadProcess], int]


def measure(process: ThreadProcess, test_id: str) -> None:
    """Measure a test as a process does, and answer."""
    process.client.begin_test(test_id)
    with process.client.measuring(""):
        process.client.take_turn(False)
        process.client.alone()
    key = RecordKey(test_id=test_id)
    value = Estimate(metric="time", value=1.0, unit="s", source="host")
    process.answer(
        ChildAnswer(
            test_id=test_id,
            records=(Record(key=key, kind=Kind.MEASURE, estimates=(value,)),),
            references=(ReferenceSamples(workload="python", samples_s=(1.0,) * 5),),
        )
    )


def well(process: ThreadProcess) -> int:
    """Measure all tests."""
    for test_id in process.spec.test_ids:
        measure(process, test_id)
    process.client.end_tests()
    return 0


def one_else(body: Body, others: Body = well, *, name: str = "new 1") -> Body:
    """Return what all do but one, which does something else."""

    def either(process: ThreadProcess) -> int:
        writer = process.spec.identity.writer
        return body(process) if writer.startswith(name) else others(process)

    return either


class Bed:
    """
    A process that runs a block.

    Attributes:
        runner: Starts its processes.

        sentences: What it was told.

        waits_s: How long it was told that it has waited [s].

        checked: What was checked: side and scratch folder.

        checked_so_far: The same of processes that did not come to their end.
    """

    def __init__(
        self,
        body: Body = well,
        *,
        runner: Runner | None = None,
        lock: Lock = Lock.EXCLUSIVE,
        check: Gap | None = None,
        timeout_s: float = 0,
        clock: Clock | None = None,
    ) -> None:
        self.runner = ThreadRunner(body)
        self.sentences: list[str] = []
        self.waits_s: list[float] = []
        self.checked: list[tuple[Side, str]] = []
        self.checked_so_far: list[tuple[Side, str]] = []
        self._gap = check
        self.site = Site(
            Config(root="/", lock=lock, lock_timeout_s=timeout_s),
            ProcessIdentity(
                session=Session(id="s", started_unix_s=0.0, host="h"),
                spool="/spool",
                expected="/expected",
            ),
            clock=clock or SystemClock(),
            runner=runner or self.runner,
            runtime=NoDevice(),
            query=lambda: DeviceQuery(devices=(), reason="no driver"),
        )

    def check(self, side: Side, scratch: str, *, so_far: bool = False) -> Gap | None:
        assert Path(scratch).is_dir()
        (self.checked_so_far if so_far else self.checked).append((side, scratch))
        return self._gap

    def run(
        self,
        index: int = 0,
        *,
        timeout_s: float = 60.0,
        at_once: int = 4,
        most_count: int = 4,
        most_on_device: int = 4,
    ) -> Block | Gap:
        self.patience = Patience(timeout_s)
        request = BlockRequest(
            variable=VARIABLE,
            patience=self.patience,
            tell=self.sentences.append,
            waited=self.waits_s.append,
            at_once=at_once,
            fits=lambda count: count <= most_count,
            fits_on_device=lambda count: count <= most_on_device,
        )
        return run_block(
            Sides(self.check), TESTS, index, site=self.site, request=request
        )

    def block(self, index: int = 0, **how: float) -> Block:
        ran = self.run(index, **how)  # type: ignore[arg-type] # names of its parameters
        assert isinstance(ran, Block)
        return ran


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the process a place of its own for locks and scratch folders."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "locks"))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    return tmp_path


def by_process(block: Block) -> dict[tuple[Side, int], SideRun]:
    return {(run.side, run.index): run for run in block.runs}


def measured_by(run: SideRun) -> list[str]:
    return [record.key.test_id for record in run.records]


class LeavingBed(Bed):
    """Its first process of the new side does not say what it has loaded at its end."""

    def check(self, side: Side, scratch: str, *, so_far: bool = False) -> Gap | None:
        leaves = Path(scratch).name == "new-0" and not so_far
        return unrecorded(side, scratch, free_bytes=1 << 30) if leaves else None


def test_two_processes_of_each_side_measure_all_tests(locks: Path) -> None:
    """Each has its values and references; nothing is left of the block."""
    bed = Bed()
    runs = by_process(bed.block(index=2))

    assert set(runs) == {(OLD, 0), (OLD, 1), (NEW, 0), (NEW, 1)}
    for (_, number), run in runs.items():
        assert measured_by(run) == list(TESTS)
        assert run.failures == {}
        (reference,) = run.references
        assert reference.key.name == "python"
        assert (reference.role, reference.process_index) == (Role.CONFIRM, number + 1)
    assert sorted(side.value for side, _ in bed.checked) == ["new", "new", "old", "old"]
    assert len({scratch for _, scratch in bed.checked}) == 4
    assert list((locks / "scratch").iterdir()) == []
    assert bed.sentences == []


def test_sides_differ_in_nothing_but_what_they_must() -> None:
    """One hash seed for the block, one set of caches for a side, a folder for each."""
    bed = Bed()
    bed.block(index=3)
    processes = bed.runner.processes

    assert [p.folder for p in processes] == ["/old", "/new", "/new", "/old"]
    assert {p.env["SEED"] for p in processes} == {"3"}
    assert len({p.env["SCRATCH"] for p in processes}) == 4
    caches = {(p.env["SIDE"], p.env["TRITON_CACHE_DIR"]) for p in processes}
    assert len(caches) == len({folder for _, folder in caches}) == 2
    identities = [p.spec.identity for p in processes]
    assert len({identity.writer for identity in identities}) == 4
    assert {(i.session.id, i.role) for i in identities} == {("s", Role.CONFIRM)}
    assert {(i.spool, i.expected) for i in identities} == {(None, "/side")}


def test_blocks_begin_with_either_side() -> None:
    """B A A B, and the next block A B B A: how long the new side takes limits the old."""
    bed = Bed()
    bed.block(index=0)
    bed.block(index=1)

    folders = [process.folder for process in bed.runner.processes]
    assert folders[:4] == ["/new", "/old", "/old", "/new"]
    assert folders[4:] == ["/old", "/new", "/new", "/old"]


@pytest.mark.parametrize("how", [{"at_once": 2}, {"most_count": 3}, {"most_count": 1}])
def test_two_at_once_need_half_the_memory(how: dict[str, int]) -> None:
    """One of each side, and then the other two; it is told where memory asks for it."""
    alive: list[int] = []

    def counted(process: ThreadProcess) -> int:
        alive.append(sum(p.exit_code is None for p in bed.runner.processes))
        return well(process)

    bed = Bed(counted)
    block = bed.block(**how)

    assert [(run.side, run.index) for run in block.runs] == [
        *[(NEW, 0), (OLD, 0)],
        *[(OLD, 1), (NEW, 1)],
    ]
    assert max(alive) <= 2
    why = "memory does not hold 4 processes: one process of each side runs at a time"
    assert bed.sentences == ([why] if "most_count" in how else [])


@pytest.mark.parametrize(
    ("most_on_device", "alive_count", "said"),
    [
        (4, 4, []),
        (3, 2, ["does not hold 4 processes: one process of each side runs at a time"]),
        (1, 1, ["does not hold 2 processes: one process runs at a time"]),
        (0, 1, ["does not hold 2 processes: one process runs at a time"]),
    ],
)
def test_no_more_are_alive_than_the_gpu_holds(
    most_on_device: int, alive_count: int, said: list[str]
) -> None:
    """Four, one of each side, or one; all of them measure, and it is told."""
    alive: list[int] = []

    def counted(process: ThreadProcess) -> int:
        alive.append(sum(p.exit_code is None for p in bed.runner.processes))
        return well(process)

    bed = Bed(counted)
    runs = by_process(bed.block(most_on_device=most_on_device))

    assert len(runs) == 4
    assert {len(measured_by(run)) for run in runs.values()} == {len(TESTS)}
    assert max(alive) <= alive_count
    assert bed.sentences == [f"the GPU's memory {text}" for text in said]


def crash(process: ThreadProcess) -> int:
    measure(process, TESTS[0])
    process.client.begin_test(TESTS[1])
    with process.client.measuring(""):
        process.exit_code = -11
        process.hang_up()
        return -11


def test_who_crashes_is_told_and_the_others_go_on() -> None:
    """What it measured before counts, as its files were right until then."""
    bed = Bed(one_else(crash))
    runs = by_process(bed.block())
    crashed = runs.pop((NEW, 0))

    assert measured_by(crashed) == [TESTS[0]]
    assert len(crashed.references) == 1
    assert [(s, Path(folder).name) for s, folder in bed.checked_so_far] == [
        (NEW, "new-0")
    ]
    assert crashed.failures == {
        TESTS[1]: f"the process was ended by SIGSEGV in {TESTS[1]}"
    }
    assert all(measured_by(run) == list(TESTS) for run in runs.values())
    assert len(bed.checked) == 3


class UnprovenBed(Bed):
    """Of a process that does not come to its end there is a finding."""

    def __init__(self, body: Body, finding: GapCode) -> None:
        super().__init__(body)
        self._finding = replace(WRONG, code=finding)

    def check(self, side: Side, scratch: str, *, so_far: bool = False) -> Gap | None:
        return self._finding if so_far else super().check(side, scratch)


@pytest.mark.parametrize(
    "code", [GapCode.NOT_STATED, GapCode.FAILED, GapCode.NO_OWN_CODE]
)
def test_who_crashes_counts_for_nothing_unless_its_files_are_known(
    code: GapCode,
) -> None:
    """As where it could not write what it had loaded: its times may be anybody's."""
    runs = by_process(UnprovenBed(one_else(crash), code).block())

    assert runs[NEW, 0].records == runs[NEW, 0].references == ()
    assert measured_by(runs[NEW, 1]) == list(TESTS)


def test_who_crashes_after_it_ran_other_files_ends_the_block() -> None:
    """As one that comes to its end does."""
    gap = UnprovenBed(one_else(crash), GapCode.FOREIGN_FILE).run()

    assert isinstance(gap, Gap)
    assert gap.code is GapCode.FOREIGN_FILE


def test_a_test_that_ends_its_process_as_it_is_torn_down_has_no_value() -> None:
    """It has answered by then, and says why it does not count."""

    def crash_later(process: ThreadProcess) -> int:
        measure(process, TESTS[0])
        return -11

    run = by_process(Bed(one_else(crash_later)).block())[NEW, 0]

    assert run.records == ()
    assert "was ended by SIGSEGV in" in run.failures[TESTS[0]]


def test_a_test_that_leaves_its_process_is_told_and_the_others_go_on() -> None:
    """By os._exit: what it ran before and all else is compared."""

    def leave(process: ThreadProcess) -> int:
        measure(process, TESTS[0])
        process.client.begin_test(TESTS[1])
        return 0

    block = LeavingBed(one_else(leave)).block()
    runs = by_process(block)
    left = runs.pop((NEW, 0))

    assert measured_by(left) == [TESTS[0]]
    assert left.failures == {
        TESTS[1]: f"the process ended in {TESTS[1]} (exit 0, as by os._exit)"
    }
    assert (left.ended_in, left.ended_outside) == (TESTS[1], "")
    assert all(measured_by(run) == list(TESTS) for run in runs.values())


@pytest.mark.parametrize("place", ["before its first test", "after its last test"])
def test_a_process_that_is_left_outside_of_tests_is_not_compared(place: str) -> None:
    """No test is to blame; what it measured cannot be checked, and it says where."""

    def leave(process: ThreadProcess) -> int:
        return well(process) if place.startswith("after") else 0

    gap = LeavingBed(one_else(leave)).run()

    assert isinstance(gap, Gap)
    said = "a process of the new side did not report the files that it loaded: it ended"
    assert gap.reason == f"{said} {place}"
    assert "os._exit" in gap.remedy


@pytest.mark.parametrize(
    "place", ["at first", "in a test", "with a turn", "behind a turn", "at the end"]
)
def test_who_hangs_is_ended_and_told(place: str) -> None:
    """After the time that it had; whoever only waits does not hang."""

    def hang(process: ThreadProcess) -> int:
        if place == "at the end":
            well(process)
        elif place != "at first":
            process.client.begin_test(TESTS[0])
        if place.endswith("a turn"):
            with process.client.measuring("x"):
                process.client.take_turn(False)
                if place == "with a turn":
                    process.hang()
        process.hang()
        return 0

    begun = time.monotonic()
    block = Bed(one_else(hang)).block(timeout_s=1.0)
    runs = by_process(block)
    hung = runs.pop((NEW, 0))

    assert time.monotonic() - begun < 20
    assert hung.records == ()
    outside = place in {"at first", "at the end"}
    ended_in, behind = ("", ()) if outside else (TESTS[0], TESTS[1:])
    assert (hung.ended_in, bool(hung.ended_outside)) == (ended_in, outside)
    assert hung.not_reached == {*behind}
    # the other process of its side was not
    assert (block.ended_in, block.ended_outside) == (frozenset(), None)
    assert all(measured_by(run) == list(TESTS) for run in runs.values())
    where = {
        "at first": " before its first test",
        "in a test": f" in {TESTS[0]}",
        "with a turn": f" in x of {TESTS[0]}",
        "behind a turn": f" in {TESTS[0]}, after x",
    }
    if place == "at the end":
        assert hung.failures == {}
    else:
        told = f"the process sent nothing for 1 s{where[place]}, and was ended"
        assert hung.failures == dict.fromkeys(TESTS, told)


class QuickClock(FakeClock):
    """The machine's clock, on which a second takes a hundredth of one."""

    def now_ns(self) -> int:
        return 100 * time.perf_counter_ns()

    def sleep(self, duration_s: float) -> None:
        time.sleep(duration_s / 100)


@pytest.mark.parametrize("place", ["before a measurement", "in its first call"])
def test_a_side_that_hangs_has_the_time_that_the_other_side_needs(place: str) -> None:
    """Not that of a process of which nobody knows anything; the message says why."""

    def hang(process: ThreadProcess) -> int:
        process.client.begin_test(TESTS[0])
        if place == "in its first call":
            with process.client.measuring("x"):
                process.hang()
        process.hang()
        return 0

    def same(process: ThreadProcess) -> int:
        process.client.begin_test(TESTS[0])
        with process.client.measuring("x"):
            process.client.take_turn(False)
        return well(process)

    def either(process: ThreadProcess) -> int:
        is_old = process.spec.identity.writer.startswith("old")
        return hang(process) if is_old else same(process)

    block = Bed(either, clock=QuickClock()).block(timeout_s=3000.0)
    runs = by_process(block)

    assert block.ended_in == {TESTS[0]}
    waits_s = []
    for index in (0, 1):
        assert runs[OLD, index].records == ()
        text = runs[OLD, index].failures[TESTS[0]]
        found = re.fullmatch(
            r"the process sent nothing for ([\d.]+) s.*, "
            r"where the new side took [\d.e+]+ s, and was ended",
            text,
        )
        assert found, text
        waits_s.append(float(found[1]))
        assert measured_by(runs[NEW, index]) == list(TESTS)
    assert 60 <= max(waits_s) < 1000
    if place == "in its first call":  # one after the other, and not twice as long
        assert min(waits_s) < max(waits_s) - 49  # 50, and both are rounded


@pytest.mark.parametrize("place", ["before its first test", "after its last test"])
@pytest.mark.parametrize("closes", [False, True])
def test_a_side_that_hangs_outside_of_tests_has_the_other_sides_time(
    place: str, closes: bool
) -> None:
    """While it starts, or ends: no test is to blame, and nothing waits the whole time."""

    def hang(process: ThreadProcess) -> int:
        if place.startswith("after"):
            well(process)
        if closes:
            process.hang_up()
        process.hang()
        return 0

    block = Bed(one_else(hang, name="old"), clock=QuickClock()).block(timeout_s=9000.0)
    runs = by_process(block)

    assert block.ended_in == frozenset()
    assert block.ended_outside is not None
    assert block.ended_outside[0] is OLD
    did = "did not end within" if closes else "sent nothing for"
    waits_s = []
    for index in (0, 1):
        reason = runs[OLD, index].ended_outside
        found = re.fullmatch(
            rf"the process {did} ([\d.]+) s {re.escape(place)}, "
            r"where the new side took [\d.e+-]+ s, and was ended",
            reason,
        )
        assert found, reason
        waits_s.append(float(found[1]))
    # Either may be ended first, and the second one does not get the whole time again.
    assert 60 <= max(waits_s) < 1000
    for index in (0, 1):
        assert runs[OLD, index].records == ()
        assert measured_by(runs[NEW, index]) == list(TESTS)


def test_other_tests_take_their_own_time() -> None:
    """A fixture that tests share is made by the first one that is left."""
    patience = Patience(300.0)
    step = TurnRequest(stage=Stage.TEST, test_id=TESTS[1])
    patience.begin(TESTS)
    patience.note(NEW, step, 1.0)
    patience.begin(TESTS)

    assert patience.with_step(OLD, step)[0] == 70.0
    patience.begin(TESTS[1:])
    assert patience.with_step(OLD, step)[0] == 300.0


def test_what_nobody_has_done_yet_has_the_whole_time() -> None:
    """So has what the other side took long for; a side is no bound of its own."""
    patience = Patience(300.0)
    step = TurnRequest(stage=Stage.BEGIN, test_id=TESTS[0])
    patience.note(NEW, step, 2.0)
    patience.note(NEW, step, 1.0)

    assert patience.with_step(OLD, step) == (80.0, ", where the new side took 2 s")
    assert patience.with_step(NEW, step) == (300.0, "")
    other = TurnRequest(stage=Stage.ALONE, test_id=TESTS[0])
    assert patience.with_step(OLD, other) == (300.0, "")
    patience.note(NEW, step, 24.0)
    assert patience.with_step(OLD, step) == (300.0, "")


def test_what_hangs_once_is_not_waited_for_as_long_again() -> None:
    """Two processes of a side have a turn one after the other, and hang at the same place."""
    patience = Patience(300.0)
    step = TurnRequest(stage=Stage.BEGIN, test_id=TESTS[0])
    patience.note_hang(NEW, step, 300.0)

    assert patience.with_step(NEW, step) == (60.0, "")
    assert patience.with_step(OLD, step) == (60.0, "")
    patience.note(OLD, step, 2.0)
    assert patience.with_step(NEW, step) == (30.0, ", where the old side took 2 s")
    other = TurnRequest(stage=Stage.ALONE, test_id=TESTS[0])
    assert patience.with_step(NEW, other) == (300.0, "")
    patience.begin(TESTS[1:])
    assert patience.with_step(NEW, step) == (300.0, "")
    assert patience.spent_s == 300.0


def test_processes_that_hang_at_once_are_waited_for_once() -> None:
    """The time belongs to no later block."""
    bed = Bed(one_else(ThreadProcess.hang_for_good, name="old"), clock=QuickClock())
    begun = time.monotonic()
    bed.block(timeout_s=100.0)

    assert 60 <= bed.patience.spent_s < 100 * (time.monotonic() - begun)


def test_who_skips_a_test_does_not_limit_who_runs_it() -> None:
    """It is soon at the next one, while the other prepares what it has skipped."""

    def either(process: ThreadProcess) -> int:
        process.client.begin_test(TESTS[0])
        if process.spec.identity.writer.startswith("new"):
            measure(process, TESTS[1])
            return 0
        time.sleep(0.9)  # of 90 s; the skipping one's time would allow some 60
        return well(process)

    runs = by_process(Bed(either, clock=QuickClock()).block(timeout_s=3000.0))

    assert measured_by(runs[OLD, 0]) == measured_by(runs[OLD, 1]) == list(TESTS)


def test_who_closes_its_connection_and_stays_is_ended() -> None:
    """
    Its work would lie beside the samples of the others.

    They are heard when it has ended: what they asked for meanwhile is not silence.
    """

    def stay(process: ThreadProcess) -> int:
        process.hang_up()
        process.hang()
        return 0

    def later(process: ThreadProcess) -> int:
        time.sleep(0.3)
        return well(process)

    runs = by_process(Bed(one_else(stay, later)).block(timeout_s=1.0))

    text = "the process did not end within 1 s before its first test, and was ended"
    assert runs.pop((NEW, 0)).failures == dict.fromkeys(TESTS, text)
    assert all(measured_by(run) == list(TESTS) for run in runs.values())


def test_who_writes_nonsense_is_ended() -> None:
    """Nobody knows any more what it waits for."""

    def babble(process: ThreadProcess) -> int:
        process.say(b"what?\n")
        process.hang()
        return 0

    runs = by_process(Bed(one_else(babble)).block())

    assert "sent an invalid request" in runs[NEW, 0].failures[TESTS[0]]
    assert measured_by(runs[NEW, 1]) == list(TESTS)


def test_who_skips_a_test_is_told() -> None:
    """Why, by the test; and that the others measured it without it."""

    def skip(process: ThreadProcess) -> int:
        gap = Unmeasured(
            metric="time", code=GapCode.NO_DEVICE, reason="no GPU", remedy="r"
        )
        process.answer(ChildAnswer(test_id=TESTS[0], unmeasured=(gap,)))
        measure(process, TESTS[1])
        return 0

    bed = Bed(one_else(skip))
    runs = by_process(bed.block())

    assert runs[NEW, 0].failures == {TESTS[0]: "no GPU"}
    assert measured_by(runs[NEW, 0]) == [TESTS[1]]
    assert bed.sentences == [f"new 1 did not measure {TESTS[0]} with the others"]


def test_a_test_that_fails_gives_no_value() -> None:
    """Its failure is told, also where it failed after it had measured."""

    def fail(process: ThreadProcess) -> int:
        measure(process, TESTS[0])
        process.answer(ChildAnswer(test_id=TESTS[0], failure="assert 1 == 2"))
        measure(process, TESTS[1])
        return 1

    runs = by_process(Bed(one_else(fail, name="old 2")).block())

    assert runs[OLD, 1].failures == {TESTS[0]: "assert 1 == 2"}
    assert measured_by(runs[OLD, 1]) == [TESTS[1]]


def test_who_reaches_no_test_shows_what_it_printed() -> None:
    """The last lines of its log."""

    def break_off(process: ThreadProcess) -> int:
        process.print("".join(f"line {n}\n" for n in range(40)))
        return 4

    runs = by_process(Bed(one_else(break_off)).block())
    text = runs[NEW, 0].failures[TESTS[1]]

    assert text.splitlines() == [f"line {n}" for n in range(25, 40)]


def test_other_files_than_its_sides_make_no_block() -> None:
    """What the check says is all that there is."""
    assert Bed(check=WRONG).run() == WRONG


def test_a_program_that_cannot_be_started_leaves_none_running(locks: Path) -> None:
    """The error names it."""

    runner = ThreadRunner(well, most_count=2)
    with pytest.raises(CollectorUnavailableError, match="pytest cannot be started"):
        Bed(runner=runner).run()

    assert [process.exit_code for process in runner.processes] == [-9, -9]
    assert list((locks / "scratch").iterdir()) == []


def test_a_system_without_unix_sockets_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With what to do instead."""
    monkeypatch.delattr(socket, "AF_UNIX")
    ran = Bed(runner=FakeRunner()).run()

    assert isinstance(ran, Gap)
    assert ran.code is GapCode.UNSUPPORTED
    assert "Unix sockets" in ran.reason


def test_a_folder_that_cannot_be_written_is_named(
    locks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a full disk is."""
    monkeypatch.setattr(tempfile, "tempdir", str(locks / "none"))
    ran = Bed().run()

    assert isinstance(ran, Gap)
    assert str(locks / "none") in ran.reason
    assert "TMPDIR" in ran.remedy


def held_elsewhere(until: threading.Event) -> threading.Thread:
    """Let another thread have the machine, as another run would."""
    held = threading.Event()

    def hold() -> None:
        with exclusive_machine(test="an A/B comparison"):
            held.set()
            until.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    return thread


def test_another_run_is_waited_for_and_told() -> None:
    """Two at once would measure each other; one that does not end is named."""
    over = threading.Event()
    thread = held_elsewhere(over)
    bed = Bed()
    with pytest.raises(DeviceHeldError, match="this machine"):
        bed.run()
    over.set()
    thread.join()
    bed.block()

    waited = f"waiting for process {os.getpid()} (an A/B comparison)"
    assert bed.sentences == [waited]
    assert bed.waits_s == []  # nobody had it any more


def test_two_runs_have_the_machine_by_turns() -> None:
    """None of them waits until the other has run all of its blocks."""
    order: list[str] = []
    beds = {name: Bed(timeout_s=60) for name in "ab"}
    over = threading.Event()

    def run(name: str) -> None:
        for index in range(3):
            beds[name].block(index)
            order.append(name)

    threads = [held_elsewhere(over)]
    threads += [threading.Thread(target=run, args=(name,)) for name in beds]
    for thread in threads[1:]:
        thread.start()
    while not all(bed.sentences for bed in beds.values()):  # both wait
        time.sleep(0.01)
    over.set()
    for thread in threads:
        thread.join()

    waits = [len(bed.waits_s) for bed in beds.values()]
    assert all(waits)
    assert waits <= [len(bed.sentences) for bed in beds.values()]
    assert order not in (list("aaabbb"), list("bbbaaa"))


def test_nobody_is_waited_for_where_that_is_switched_off() -> None:
    """--gpuperf-lock=off."""
    over = threading.Event()
    thread = held_elsewhere(over)
    bed = Bed(lock=Lock.OFF)
    bed.block()
    over.set()
    thread.join()

    assert bed.sentences == []


def test_a_machine_that_cannot_be_locked_is_told(
    locks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is measured all the same, as on a GPU that cannot be locked."""
    (locks / "file").touch()
    monkeypatch.setenv(FOLDER_VARIABLE, str(locks / "file" / "locks"))
    bed = Bed()
    bed.block()

    (sentence,) = bed.sentences
    assert sentence.startswith("other runs may disturb this one: ")
