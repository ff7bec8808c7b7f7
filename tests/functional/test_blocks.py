"""Blocks of real processes: what they do beside each other, and how they may end."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from fakes.clock import FakeClock
from fakes.processes import ended
from fakes.project import PLUGIN, Project, hears_interrupts
from pytest_gpuperf.collect.clock import NS_PER_S, Clock, SystemClock
from pytest_gpuperf.collect.devices import DeviceQuery
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.collect.runtime import NoDevice
from pytest_gpuperf.config import Config
from pytest_gpuperf.judge.against import Block, SideRun
from pytest_gpuperf.measure.site import ProcessIdentity, Site
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.options import CHILD_VARIABLE
from pytest_gpuperf.pipeline.blocks import BlockRequest, run_block
from pytest_gpuperf.pipeline.turn_server import Patience

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "AF_UNIX"), reason="this system has no Unix sockets"
)

# each process writes down what it did, and from when to when
WITNESS = """
    import atexit
    import json
    import os
    import sys
    import time
    from pathlib import Path

    LOG = []
    ME = str(os.getpid())

    def note(what, begun):
        LOG.append((what, begun, time.monotonic()))

    def write():
        facts = {"seed": os.environ["PYTHONHASHSEED"], "log": LOG}
        Path(os.environ["WITNESS"], ME).write_text(json.dumps(facts))

    atexit.register(write)

    def first_of(side, what):
        # whether this is the first process of a side that comes here
        if Path.cwd().name != side:
            return False
        try:
            Path(os.environ["WITNESS"], what).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
"""
TESTS = """
    import os
    import signal
    import sys
    import time
    import pytest
    from witness import first_of, note

    def work(seconds=0.002):
        begun = time.monotonic()
        while time.monotonic() < begun + seconds:
            pass
        note("sample", begun)

    @pytest.fixture
    def prepared():
        begun = time.monotonic()
        time.sleep(0.05)
        note("fixture", begun)

    def test_call(gpuperf, prepared):
        gpuperf(work)

    @pytest.mark.gpuperf(iterations=40)
    def test_much(gpuperf, prepared):
        gpuperf(work)

    def test_long(gpuperf, prepared):
        gpuperf(work, 0.02)

    @pytest.mark.gpuperf
    def test_range(prepared):
        work(0.01)

    def test_steps(gpuperf, prepared):
        with gpuperf.steps(warmup=2) as steps:
            for _ in range(20):
                with steps.step():
                    work()

    def test_pair(gpuperf, prepared):
        gpuperf.compare(work, lambda: work(0.003))

    @pytest.mark.gpuperf(iterations=40)
    def test_killed(gpuperf):
        count = 0

        def body():
            nonlocal count
            count += 1
            work()
            if count == 20 and first_of("new", "killed"):
                os.kill(os.getpid(), signal.SIGKILL)

        gpuperf(body)

    def test_hangs(gpuperf):
        if first_of("old", "hangs"):
            time.sleep(600)
        gpuperf(work)

    def test_skips(gpuperf):
        if first_of("new", "skips"):
            pytest.skip("not today")
        gpuperf(work)
"""


class Stretch(NamedTuple):
    """What a process did, and from when to when [s]."""

    process: str
    what: str
    begun: float
    ended: float


@dataclass(frozen=True)
class Command:
    """How a process of a side is started."""

    side: Side
    folder: str
    scratch: str

    def argv(self, scratch: str, extra: Sequence[str] = ()) -> tuple[str, ...]:
        base = f"--basetemp={scratch}/base"
        return (sys.executable, "-m", "pytest", *PLUGIN, base, *extra)

    def environment(self, scratch: str, hash_seed: int) -> Mapping[str, str]:
        return {**os.environ, "PYTHONHASHSEED": str(hash_seed)}


@dataclass(frozen=True)
class Sides:
    """Two folders with the same tests."""

    old: Command
    new: Command

    def proof(self, side: Side, scratch: str, *, so_far: bool = False) -> None:
        """Say nothing against a process."""


class Pair:
    """
    Two folders with the same tests in them.

    Attributes:
        path: The folder of both.

        sentences: What a block told.
    """

    def __init__(self, project: Project) -> None:
        self.path = project.path
        self.sentences: list[str] = []
        for side in Side:
            project.write(WITNESS, f"{side.value}/witness.py")
            project.write(TESTS, f"{side.value}/test_it.py")
            project.write("", f"{side.value}/conftest.py")
        self.witness = self.path / "witness"
        self.witness.mkdir()
        project.environment.setenv("WITNESS", str(self.witness))
        project.environment.setenv("GPUPERF_LOCK_DIR", str(self.path / "locks"))

    @property
    def sides(self) -> Sides:
        """How processes of both are started."""
        return Sides(
            *(
                Command(side, str(self.path / side.value), str(self.path))
                for side in (Side.OLD, Side.NEW)
            )
        )

    def run(
        self,
        *names: str,
        timeout_s: float = 60.0,
        index: int = 0,
        clock: Clock | None = None,
    ) -> Block:
        """Run a block of some tests."""
        site = Site(
            Config(root=str(self.path)),
            ProcessIdentity(session=Session(id="s", started_unix_s=0.0, host="h")),
            clock=clock or SystemClock(),
            runner=ProcessRunner(),
            runtime=NoDevice(),
            query=lambda: DeviceQuery(devices=(), reason="no driver"),
        )
        request = BlockRequest(
            variable=CHILD_VARIABLE,
            patience=Patience(timeout_s),
            tell=self.sentences.append,
            # A machine with little free memory runs fewer processes at the same time.
            fits=lambda _: True,
        )
        ran = run_block(
            self.sides,
            [named(name) for name in names],
            index,
            site=site,
            request=request,
        )
        assert isinstance(ran, Block)
        return ran

    def stretches(self) -> list[Stretch]:
        """Return what all processes did, in order of their beginning."""
        found = [
            Stretch(path.name, *entry)
            for path in self.witness.iterdir()
            if path.name.isdecimal()
            for entry in json.loads(path.read_bytes())["log"]
        ]
        return sorted(found, key=lambda stretch: stretch.begun)

    def seeds(self) -> list[str]:
        """Return the hash seeds of all processes."""
        return [
            json.loads(path.read_bytes())["seed"] for path in self.witness.iterdir()
        ]


@pytest.fixture(name="pair")
def pair_(project: Project) -> Pair:
    """Two folders with the same tests."""
    return Pair(project)


def named(name: str) -> str:
    """Return the id of a test."""
    return f"test_it.py::test_{name}"


def names_of(run: SideRun) -> list[tuple[str, str]]:
    """Return the measurements of a process: test and name."""
    return [
        (record.key.test_id.partition("test_it.py::test_")[2], record.key.name)
        for record in run.records
    ]


def disturbed(stretches: Sequence[Stretch]) -> list[tuple[Stretch, Stretch]]:
    """Return what lies beside a sample of another process."""
    return [
        (a, b)
        for a, b in itertools.combinations(stretches, 2)
        if a.process != b.process and "sample" in {a.what, b.what} and b.begun < a.ended
    ]


def turns_of(stretches: Sequence[Stretch]) -> list[tuple[str, float]]:
    """Return who took samples one after another, and for how long [s]."""
    samples = (stretch for stretch in stretches if stretch.what == "sample")
    turns = []
    for process, group in itertools.groupby(samples, key=lambda s: s.process):
        members = list(group)
        turns.append((process, members[-1].ended - members[0].begun))
    return turns


def test_samples_of_one_lie_beside_nothing_of_another(pair: Pair) -> None:
    """Calls, blocks of code, loops and pairs: neither samples nor fixtures overlap."""
    names = ("call", "long", "range", "steps", "pair")
    block = pair.run(*names, index=5)

    expected = [("call", ""), ("long", ""), ("range", ""), ("steps", "")]
    pairs = [("pair", ""), ("pair", "a"), ("pair", "b")]
    assert len(block.runs) == 4
    for run in block.runs:
        assert names_of(run) == [*expected, *pairs]
        assert run.failures == {}
        assert {"python", "array", "copy"} <= {r.key.name for r in run.references}
    assert disturbed(pair.stretches()) == []
    assert pair.seeds() == ["5"] * 4
    assert pair.sentences == []


def test_turns_change_after_some_milliseconds(pair: Pair) -> None:
    """All four take samples of the same stretch of time, again and again."""
    pair.run("much")
    turns = turns_of(pair.stretches())
    changes = {process: 0 for process, _ in turns}
    for process, _ in turns:
        changes[process] += 1

    assert len(changes) == 4
    assert min(changes.values()) >= 3  # its warm-up, and at least two of 15 ms


def test_a_child_that_is_killed_is_left_out(pair: Pair) -> None:
    """What it measured before counts; the others measure on, and it says what became of it."""
    block = pair.run("long", "killed", "call")
    killed = [run for run in block.runs if run.failures]

    assert [run.side for run in killed] == [Side.NEW]
    text = f"the process was ended by SIGKILL in {named('killed')}"
    assert killed[0].failures == dict.fromkeys((named("killed"), named("call")), text)
    assert names_of(killed[0]) == [("long", "")]
    others = [run for run in block.runs if not run.failures]
    names = [("long", ""), ("killed", ""), ("call", "")]
    assert [names_of(run) for run in others] == [names] * 3
    assert disturbed(pair.stretches()) == []


class HastyClock(FakeClock):
    """The machine's clock, on which 20 seconds take 5 once a file exists."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self._since_ns: int | None = None

    def now_ns(self) -> int:
        now_ns = time.perf_counter_ns()
        if self._since_ns is None and self._file.exists():
            self._since_ns = now_ns
        if self._since_ns is None:
            return now_ns
        return now_ns + min(3 * (now_ns - self._since_ns), 15 * NS_PER_S)

    def sleep(self, duration_s: float) -> None:
        time.sleep(duration_s)


def test_a_child_that_hangs_is_ended_by_name(pair: Pair) -> None:
    """After its time, though it waits for nobody; the others measure on."""
    clock = HastyClock(pair.witness / "hangs")
    block = pair.run("call", "hangs", timeout_s=20.0, clock=clock)
    (hung,) = (run for run in block.runs if run.failures)

    assert hung.side is Side.OLD
    assert list(hung.failures) == [named("hangs")]
    assert "sent nothing for 20 s in" in hung.failures[named("hangs")]
    others = [run for run in block.runs if run is not hung]
    assert [names_of(run) for run in others] == [[("call", ""), ("hangs", "")]] * 3


def test_a_child_that_skips_is_there_for_the_next_test(pair: Pair) -> None:
    """It is told that the others had no turns with it."""
    block = pair.run("skips", "call")
    (skipped,) = (run for run in block.runs if run.failures)

    assert skipped.side is Side.NEW
    assert "not today" in skipped.failures[named("skips")]
    assert names_of(skipped) == [("call", "")]
    assert pair.sentences[0].endswith(
        f"did not measure {named('skips')} with the others"
    )
    assert disturbed(pair.stretches()) == []


# runs a block, and is to be killed meanwhile
PARENT = """
import sys
sys.path[:0] = sys.argv[2].split("\\n")
from pathlib import Path
from types import SimpleNamespace
from functional.test_blocks import Command, Pair, Side
pair = object.__new__(Pair)
pair.path, pair.sentences = Path(sys.argv[1]), []
pair.run("call", "hangs", timeout_s=600)
"""


def waiting(folder: Path, name: str) -> None:
    """Wait until a file exists."""
    deadline = time.monotonic() + 60
    while not (folder / name).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (folder / name).exists()


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups here")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_parent_that_dies_leaves_no_child(pair: Pair, number: signal.Signals) -> None:
    """Killed, or interrupted by Ctrl-C: all four end with it."""
    for side in Side:
        conftest = (
            "import os; open(os.environ['WITNESS'] + f'/pid{os.getpid()}', 'w')\n"
        )
        (pair.path / side.value / "conftest.py").write_text(conftest, encoding="utf-8")
    tests = Path(__file__).parents[1]
    argv = [sys.executable, "-c", PARENT, str(pair.path), str(tests)]
    with subprocess.Popen(
        argv,
        start_new_session=True,
        preexec_fn=hears_interrupts,  # noqa: PLW1509 - it sets a signal, no more
    ) as parent:
        waiting(pair.witness, "hangs")
        pids = [int(path.name[3:]) for path in pair.witness.glob("pid*")]
        parent.send_signal(number)

    assert len(pids) == 4
    assert all(map(ended, pids))


# NVML lists all four, each of which works on the GPU
GPU_TESTS = """
    import os
    import gpu
    from pathlib import Path

    def test_launch(gpuperf):
        with Path(os.environ["FAKE_NVML_SCRIPT"]).open("a") as file:
            file.write(f",0,proc.{os.getpid()},1000\\n")
        gpuperf(gpu.launch)
"""


def test_processes_of_a_block_do_not_void_each_other(
    machine: Path, pair: Pair, project: Project
) -> None:
    """On one GPU they are one user; none waits for another's lease."""
    project.environment.setenv("NSYS_PROFILING_SESSION_ID", "1")  # no CUPTI
    project.environment.setenv("PYTHONPATH", str(pair.path), prepend=os.pathsep)
    for side in Side:
        project.write(GPU_TESTS, f"{side.value}/test_it.py")
    block = pair.run("launch")
    records = [record for run in block.runs for record in run.records]

    assert machine.is_dir()
    assert len(records) == 4
    assert [record.void for record in records] == [None] * 4
    assert {record.estimates[0].source for record in records} == {"events"}
