"""Capture what tests without a GPU can read later: reports, recordings, time lines.

Everything goes into one folder, with an index of what was made, by which tools, and why
what is missing is missing. The programs are copied to a folder that names nobody first,
because a report of Nsight Compute holds the paths of what it profiled.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.devices import query_devices
from pytest_gpuperf.collect.ncu import Command, Session
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.model.telemetry import CanonicalRecord

PROGRAMS = Path(__file__).resolve().parent.parent / "tests" / "gpu" / "programs"
METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "launch__registers_per_thread",
)
# name of the report: program, fields of Command
REPORTS: dict[str, tuple[str, dict[str, Any]]] = {
    "two_domains": ("ranges", {"nvtx_includes": ("regex:inner@.+", "outer@step/")}),
    "every_launch": ("ranges", {"opts": ("--nvtx",)}),
    "range_replay": (
        "one_range",
        {
            "replay_mode": "range",
            "nvtx_includes": ("outer@step",),
            "cache_control": "none",
        },
    ),
    "graph_as_a_whole": ("graph", {"graph_profiling": "graph"}),
    "graph_by_node": ("graph", {}),
    "failed_launch": ("failing", {}),
}
LONGEST_S = 90.0
NOBODY = "GPU-00000000-0000-0000-0000-000000000000"  # as long as the name of a GPU
HZ = 20.0
PHASE_S = 2.0
RECORDED = """
import pytest
import torch

from pytest_gpuperf import Work


@pytest.mark.parametrize("size", [1024, 4096])
def test_product(gpuperf, size):
    a = torch.randn(size, size, device=gpuperf.device, dtype=torch.bfloat16)
    work = Work.matmul(size, size, size, "bf16")
    assert gpuperf.measure(torch.matmul, a, a, work=work).time > 0


@pytest.mark.gpuperf(counters=["dram__bytes_read.sum"])
def test_copy(gpuperf):
    x = torch.ones(1 << 26, device=gpuperf.device)
    out = torch.empty_like(x)
    work = Work(bytes=2 * x.nbytes)
    perf = gpuperf.measure(lambda: torch.add(x, 1, out=out), work=work)
    assert perf["dram__bytes_read.sum"] > 0


def test_step(gpuperf):
    model = torch.nn.Linear(2048, 2048, device=gpuperf.device)
    batch = torch.randn(256, 2048, device=gpuperf.device)
    with gpuperf.steps(units=256, unit="row") as steps:
        for _ in range(8):
            with steps.step():
                with steps.phase("forward"):
                    loss = model(batch).sum()
                with steps.phase("backward"):
                    loss.backward()


def test_versions(gpuperf):
    x = torch.randn(1 << 24, device=gpuperf.device)
    pair = gpuperf.compare(lambda: x.sum(), lambda: (x + 0).sum())
    assert pair.speedup > 0
"""


class Index:
    """What was captured, and what was not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: list[dict[str, object]] = []

    @contextmanager
    def entry(self, name: str) -> Iterator[None]:
        """Make one capture; what it raises is its row, and not the end of all."""
        print(f"--- {name}", flush=True)
        before = set(self._folder.rglob("*"))
        why = None
        try:
            yield
        except Exception as error:  # noqa: BLE001 - one capture must not cost the others
            why = f"{type(error).__name__}: {error}"
            traceback.print_exc(limit=4, file=sys.stdout)
        made = sorted(
            p for p in self._folder.rglob("*") if p.is_file() and p not in before
        )
        files = [
            {
                "path": str(path.relative_to(self._folder)),
                "bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
            for path in made
        ]
        self._rows.append({"name": name, "files": files, "failure": why})

    def write(self, head: dict[str, object]) -> int:
        """Write the index; return how many captures failed."""
        failed = sum(row["failure"] is not None for row in self._rows)
        text = json.dumps({**head, "captures": self._rows}, indent=1)
        (self._folder / "index.json").write_text(text + "\n", "utf-8")
        print(f"{len(self._rows) - failed} of {len(self._rows)} captures were made")
        return failed


def main() -> int:
    """Return 0, also where there is no GPU; 1 where a capture failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the captures go")
    parser.add_argument("--without-run", action="store_true", help="record no run")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    query = query_devices()
    if not query.devices:
        print(f"captures: skipped, no GPU: {query.reason}")
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    index = Index(folder)
    with tempfile.TemporaryDirectory(prefix="gpuperf-") as name:
        programs = Path(name, "programs")
        shutil.copytree(PROGRAMS, programs)
        for report, (program, how) in REPORTS.items():
            with index.entry(f"report {report}"):
                profile(folder / "reports" / report, programs / f"{program}.py", how)
        if not arguments.without_run:
            with index.entry("recorded run"):
                try:
                    record(folder / "recorded", Path(name, "project"))
                finally:  # also what a run that failed has left
                    mask(folder / "recorded")
    for title, capture in (
        ("activity", activity),
        ("time lines", time_lines),
        ("counters in process", counters),
    ):
        with index.entry(title):
            capture(folder)
    gpu = query.devices[0]
    said = (
        ProcessRunner().run(("ncu", "--version"), timeout_s=30)
        if shutil.which("ncu")
        else None
    )
    head: dict[str, object] = {
        "gpu": gpu.name,
        "driver": gpu.driver_version,
        "ncu": said.stdout.decode().strip().splitlines()[-1] if said else None,
        "python": sys.version.split()[0],
    }
    return 1 if index.write(head) else 0


def profile(output: Path, program: Path, how: dict[str, Any]) -> None:
    """Make one report of one program."""
    output.parent.mkdir(parents=True, exist_ok=True)
    command = Command(
        executable=sys.executable,
        args=(program,),
        output=output,
        metrics=METRICS,
        timeout_s=LONGEST_S,
        **how,
    )
    Session(command=command, program_may_fail=True).run(cwd=program.parent, retries=3)


def record(folder: Path, project: Path) -> None:
    """Keep the readings of a run of pytest."""
    project.mkdir(parents=True)
    (project / "test_recorded.py").write_text(RECORDED, "utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    finished = ProcessRunner().run(
        (
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider"),
            *("-p", "no:randomly", f"--gpuperf-record={folder / 'readings'}"),
            *(f"--gpuperf-json={folder / 'run.json'}", "--rootdir", str(project)),
            str(project),
        ),
        timeout_s=300,
        cwd=str(project),
    )
    print(finished.log_tail)
    if finished.exit_code:
        message = f"pytest ended with {finished.exit_code}"
        raise RuntimeError(message)


def mask(folder: Path) -> None:
    """Take the names that the GPUs have for life, and the folder's, out of a run's files."""
    names = {device.uuid: NOBODY for device in query_devices().devices}
    names[str(folder)] = folder.name
    for path in folder.rglob("*.json*"):
        text = path.read_text("utf-8")
        for name, instead in names.items():
            text = text.replace(name, instead)
        path.write_text(text, "utf-8")


def activity(folder: Path) -> None:
    """Keep what CUPTI records of a training step, eager and as a graph."""
    import torch

    from pytest_gpuperf.collect.cupti.activity import ActivityCollector
    from pytest_gpuperf.collect.traces import TraceKeeper
    from pytest_gpuperf.model.record import RecordKey

    steps = {"eager": eager_step(torch), "graph": graph_step(torch)}
    target = folder / "activity"
    target.mkdir(parents=True, exist_ok=True)
    for name, step in steps.items():
        collector = ActivityCollector(torch.cuda.synchronize)
        collector.open()
        try:
            step()
            with collector.window() as window:
                step()
            trace = window.trace()
        finally:
            collector.close()
        TraceKeeper(str(target), writer=name).keep(RecordKey(test_id=name), trace)
        print(f"{name}: {len(trace.launches)} kernels, {len(trace.copies)} copies")


def network(torch: ModuleType) -> tuple[Any, Any, Any]:
    """Return a model, its optimizer and a batch."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    return model, optimizer, torch.randn(512, 1024, device="cuda")


def eager_step(torch: ModuleType) -> Callable[[], object]:
    """Return a training step with its copy from and to the host."""
    model, optimizer, _ = network(torch)
    batch = torch.randn(512, 1024).pin_memory()

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = model(batch.to("cuda", non_blocking=True)).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss)

    step()
    return step


def graph_step(torch: ModuleType) -> Callable[[], object]:
    """Return the same step as a CUDA graph."""
    model, optimizer, batch = network(torch)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(batch).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Callable[[], object] = graph.replay
    return replay


def time_lines(folder: Path) -> None:
    """Keep the sensors' time line of known work, a phase of three seconds each."""
    import torch

    from pytest_gpuperf.collect.nvml.sampler import Sampler
    from pytest_gpuperf.collect.runtime import find_runtime

    clock, a = SystemClock(), torch.randn(8192, 8192, device="cuda").bfloat16()
    uuid = find_runtime().device_uuid()
    x = torch.ones(1 << 28, device="cuda")
    host = torch.ones(1 << 28, dtype=torch.uint8).pin_memory()
    there = torch.empty_like(host, device="cuda")
    phases: dict[str, Callable[[], object]] = {
        "idle": lambda: clock.sleep(0.05),
        "product": lambda: a @ a,
        "copy": lambda: torch.add(x, 1, out=x),
        "from the host": lambda: there.copy_(host),
        "one thread": lambda: torch.cuda._sleep(20_000_000),  # noqa: SLF001 - it has no other name
        "idle again": lambda: clock.sleep(0.05),
    }
    with tempfile.TemporaryDirectory(prefix="gpuperf-") as name:
        sampler = Sampler([str(uuid)], clock, hz=HZ, folder=Path(name))
        sampler.start()
        try:
            target = folder / "time-lines.jsonl"
            with target.open("wb") as file:
                for phase, work in phases.items():
                    begun_s = sampler.mark()
                    while sampler.mark() - begun_s < PHASE_S:
                        work()
                        torch.cuda.synchronize()
                    for each in sampler.records(begun_s, sampler.mark()):
                        row = {"phase": phase, "record": masked(each)}
                        file.write(msgspec.json.encode(row) + b"\n")
        finally:
            sampler.stop()


def masked(record: CanonicalRecord) -> dict[str, object]:
    """Return a record without the name that its GPU has for life."""
    return {**msgspec.to_builtins(record), "gpu_uuid": "GPU-0"}


def counters(folder: Path) -> None:
    """Keep what is counted in this process: of kernels and of ranges."""
    import torch

    from pytest_gpuperf.collect.cupti.range_profiler import Ranged, RangeProfiler

    x = torch.ones(1 << 26, device="cuda")

    def body() -> None:
        x.add_(1)
        x.mul_(2)

    def ranged(named: Ranged) -> None:
        with named("both"):
            body()

    profiler = RangeProfiler(METRICS[:4], synchronize=torch.cuda.synchronize)
    try:
        found = {
            "kernels": profiler.count_kernels(body),
            "ranges": profiler.count_ranges(ranged),
        }
    finally:
        profiler.close()
    encoded = msgspec.json.encode(found)
    (folder / "counters.json").write_bytes(encoded)


if __name__ == "__main__":
    sys.exit(main())
