"""How much memory a list of 1,000,000 launches takes, and how long it takes to keep.

Run it as a script; it needs no GPU and no CUPTI. Each step runs in a process of its own,
whose peak is compared with one that does nothing. It fails when a target is missed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from pytest_gpuperf.collect.cupti.activity import (
    MOST_RECORDS,
    ActivityCollector,
    ActivityTimer,
)
from pytest_gpuperf.collect.replay import Recorder, start_recording
from pytest_gpuperf.collect.timing.readings import Reading, Timers
from pytest_gpuperf.collect.traces import TraceKeeper, read_trace
from pytest_gpuperf.collect.translate import activity
from pytest_gpuperf.collect.translate.cupti import KINDS
from pytest_gpuperf.compute.activity import summarise
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.activity import (
    PIECE_COUNT,
    KernelShape,
    Launches,
    Trace,
    TracePlace,
)
from pytest_gpuperf.model.environment import Environment, Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Record, RecordKey

LAUNCHES = 1_000_000
MIB = 2**20
KEEPER_MIB = 32  # of writing and of reading alone, however long the list is
KEPT_MICROSECONDS = 3.0  # for a launch, where a quiet core takes 0.5
_BATCH = 30_000  # records of a buffer of 8 MiB
_SAMPLES = 100  # of a measurement of all launches
HELD_MIB = 64  # of them, read between samples
_SHAPES = 50
_KEY = RecordKey(test_id="test_it.py::test_million")


class _Api(NamedTuple):
    """A record of the call that launches a kernel."""

    correlation_id: int
    start: int
    kind: int = KINDS["DRIVER"]
    cbid: int = 307


class _Label(NamedTuple):
    """A record of the label of a call."""

    correlation_id: int
    external_id: int = 1
    external_kind: int = 3
    kind: int = KINDS["EXTERNAL_CORRELATION"]


class _Kernel(NamedTuple):
    """A record of a kernel."""

    correlation_id: int
    start: int
    end: int
    name: str
    kind: int = KINDS["CONCURRENT_KERNEL"]
    device_id: int = 0
    stream_id: int = 7
    graph_id: int = 0
    grid_x: int = 132
    grid_y: int = 1
    grid_z: int = 1
    block_x: int = 128
    block_y: int = 1
    block_z: int = 1
    registers_per_thread: int = 64
    static_shared_memory: int = 0
    dynamic_shared_memory: int = 49_152
    local_memory_per_thread: int = 0


def _batches(
    begin: int = 0, end: int = LAUNCHES, *, label: int = 1, kind: int = 3
) -> Iterator[list[object]]:
    """Yield what CUPTI hands over for some launches."""
    begun_ns = 1_700_000_000_000_000_000
    batch: list[object] = []
    for n in range(begin, end):
        call_ns = begun_ns + 6_000 * n
        name = f"_Z6kernelILi{n % _SHAPES}EEvPf"
        batch += [
            _Label(n, label, kind),
            _Api(n, call_ns),
            _Kernel(n, call_ns + 4_000, call_ns + 9_000, sys.intern(name)),
        ]
        if len(batch) >= _BATCH:
            yield batch
            batch = []
    yield batch


def _piece() -> Launches:
    """Return some launches."""
    shape = KernelShape(
        name="_Z6kernelPf",
        grid=(132, 1, 1),
        block=(128, 1, 1),
        registers_count=64,
        shared_bytes=0,
        dynamic_shared_bytes=49_152,
        stack_bytes=0,
    )
    begun_ns = 1_700_000_000_000_000_000
    starts = range(begun_ns, begun_ns + 6_000 * PIECE_COUNT, 6_000)
    zeros = array("I", bytes(4 * PIECE_COUNT))
    return Launches(
        shapes=(shape,),
        shape=zeros,
        start_ns=array("Q", starts),
        end_ns=array("Q", range(starts.start + 5_000, starts.stop + 5_000, 6_000)),
        call_ns=array("Q", starts),
        device=zeros,
        stream=array("I", [7]) * PIECE_COUNT,
        graph=zeros,
    )


def _nothing(folder: str) -> int:
    """Load what all steps load."""
    return len(folder)


def _write(folder: str) -> int:
    """Keep launches that somebody else holds in pieces."""
    keeper = TraceKeeper(folder, writer="main")
    writer, piece = keeper.stream(), _piece()
    count = 0
    while count < LAUNCHES:
        part = next(piece.pieces(min(PIECE_COUNT, LAUNCHES - count)))
        writer.put(part)
        count += len(part)
    launches = writer.end()
    trace = Trace(begun_ns=0, ended_ns=1, launches=launches)
    place = keeper.keep(_KEY, trace)
    summary = summarise(Trace(begun_ns=0, ended_ns=1, launches=_piece()))
    record = Record(
        key=_KEY,
        kind=Kind.RANGE,
        estimates=(),
        activity=replace(summary, kept=place),
    )
    session = Session(id="s", started_unix_s=0.0, host="h")
    machine = Environment(cpu_model=None, core_count=1, python_minor="3", platform="l")
    inside = Path(folder) / "recording"
    start_recording(str(inside), session, machine)
    Recorder(str(inside), writer="main").keep(record)
    (Path(folder) / place.file).rename(inside / place.file)
    (Path(folder) / "place.json").write_text(codec.to_text(place), "utf-8")
    return count


def _kept(folder: str) -> Trace:
    """Return the trace that was written."""
    text = (Path(folder) / "place.json").read_bytes()
    return read_trace(f"{folder}/recording", codec.from_text(text, TracePlace))


def _read(folder: str) -> int:
    """Read all pieces, one after another."""
    return sum(map(len, _kept(folder).launches.pieces()))


def _summarise(folder: str) -> int:
    """Read and sum up."""
    return summarise(_kept(folder)).launches_count


def _show(folder: str) -> int:
    """Print all, as `gpuperf show --launches --format=json` does."""
    from pytest_gpuperf import cli

    sys.stdout = open("/dev/null", "w")  # noqa: PTH123, SIM115 - until the process ends
    code = cli.main(["show", f"{folder}/recording", "--launches", "--format=json"])
    return LAUNCHES if code == 0 else 0


def _take(folder: str, *, kept: bool) -> int:
    """Read CUPTI's records of all launches, and sum them up."""
    bounds = activity.Bounds(
        label_kind=3, first=1, begun_ns=0, returned_ns=2**62, ended_ns=2**62
    )
    keeper = TraceKeeper(folder, writer=f"taken-{kept}")
    sink = keeper.stream if kept else None
    trace = activity.read_trace(_batches(), bounds, sink=sink)
    count = summarise(trace).launches_count
    if kept:
        keeper.keep(_KEY, trace)
    return count


class _Cupti(SimpleNamespace):
    """What the collector calls of cupti-python: it takes everything and says little."""

    cuptiError = OSError  # noqa: N815 - cupti-python's name
    driver_api_trace_cbid = runtime_api_trace_cbid = SimpleNamespace(__members__={})
    label = 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith(("activity_", "get_", "subscribe", "unsubscribe")):
            raise AttributeError(name)
        return lambda *_: 0

    def subscribe_v2(self, *_: object) -> int:
        return 1

    def activity_register_callbacks(
        self, _: object, completed: Callable[[list[object]], None]
    ) -> None:
        self.completed = completed

    def activity_push_external_correlation_id(self, _: int, label: int) -> None:
        self.label = label


def _collector() -> tuple[ActivityCollector, _Cupti]:
    """Return an open collector, and what hands records over to it."""
    cupti = _Cupti(SubscriberParams=lambda: SimpleNamespace(ptr=0))
    collector = ActivityCollector(lambda: None, cupti=cupti, environment={})
    collector.open()
    return collector, cupti


def _sample(_: str) -> int:
    """Time all launches in samples."""
    collector, cupti = _collector()
    timers = Timers([ActivityTimer(collector)])
    each = LAUNCHES // _SAMPLES
    readings = [Reading(wall_s=1.0) for _ in range(_SAMPLES)]
    for number, reading in enumerate(readings):
        timers.begins[0]()
        first = number * each
        for batch in _batches(first, first + each, label=cupti.label, kind=4):
            cupti.completed(batch)
        timers.ends[0]()
        timers.took(reading)
    timers.collect()
    return each * sum(reading.device_s["cupti"] is not None for reading in readings)


def _window(_: str, *, count: int) -> int:
    """Hold the records of one window, and read them where they are not too many."""
    collector, cupti = _collector()
    with collector.window() as window:
        for batch in _batches(0, count, label=cupti.label):
            cupti.completed(batch)
    return LAUNCHES if window.void else len(window.trace().launches)


_STEPS: dict[str, Callable[[str], int]] = {
    "nothing": _nothing,
    "written in pieces": _write,
    "read in pieces": _read,
    "read and summed up": _summarise,
    "printed as JSON": _show,
    "records taken, held": lambda folder: _take(folder, kept=False),
    "records taken, kept": lambda folder: _take(folder, kept=True),
    "timed in samples": _sample,
    "one window, full": lambda folder: _window(folder, count=MOST_RECORDS // 3),
    "one window, too long": lambda folder: _window(folder, count=2 * LAUNCHES),
}


def _peak_mib() -> float:
    """Return the most memory that this process had [MiB]."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _in_child(step: str, folder: str) -> tuple[float, float]:
    """Return how long a step took for a launch [us], and its peak [MiB]."""
    argv = [sys.executable, __file__, step, folder]
    done = subprocess.run(argv, capture_output=True, check=True, text=True)
    taken, peak = done.stderr.split()
    return float(taken) * 1e6 / LAUNCHES, float(peak)


def main() -> int:
    """Print times and peaks; return 0 where the targets are met."""
    with tempfile.TemporaryDirectory() as folder:
        found = {step: _in_child(step, folder) for step in _STEPS}
        size_bytes = (Path(folder) / "recording/traces-main.1.jsonl").stat().st_size
    print(f"{LAUNCHES:,} launches: {size_bytes / LAUNCHES:.0f} bytes each in the file")
    _, least_mib = found.pop("nothing")
    for step, (taken_us, peak_mib) in found.items():
        print(f"{step:22s} {taken_us:6.2f} us each {peak_mib - least_mib:7.1f} MiB")
    alone = [found["written in pieces"], found["read in pieces"]]
    grows = any(peak_mib - least_mib > KEEPER_MIB for _, peak_mib in alone)
    slow = found["written in pieces"][0] > KEPT_MICROSECONDS
    held = found["timed in samples"][1] - least_mib > HELD_MIB
    return int(grows or slow or held)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        begun_s = time.perf_counter()
        _STEPS[sys.argv[1]](sys.argv[2])
        print(time.perf_counter() - begun_s, _peak_mib(), file=sys.stderr)
    else:
        sys.exit(main())
