"""Ask CUPTI, NVML and ncu what only a GPU can answer, and keep the raw answers.

    python .ci/gpu_probe.py FILE [QUESTION]

FILE gets one line of JSON for each record and value, as soon as it is there. Each question
has a process and a minute of its own: what hangs or crashes costs one question. They stand
in the order of what a wrong answer would cost.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pytest_gpuperf.collect.devices import query_devices

LONGEST_S = 40.0
BUSY_S = 5.0  # for a counter to grow
SHORT_S = 1.5  # for an average of GPM
LONGER_S = {"ncu": 100.0}  # three starts of it
LABELS = 4  # CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1, of samples
CALLS, KERNEL, OVERHEAD = (4, 5), 10, 17  # CUpti_ActivityKind
FIELDS = (
    *("kind", "cbid", "correlation_id", "external_kind", "external_id", "start", "end"),
    *("name", "bytes", "device_id", "context_id", "stream_id", "graph_node_id"),
    *("overhead_kind", "type", "copy_kind", "src_kind", "dst_kind"),
    *("grid_x", "block_x", "registers_per_thread"),
)
# fields of NVML whose unit or presence decides a verdict; 138 and 139 are per link
NVML_FIELDS = (
    *(3, 4, 74, 75, 76, 77, 82, 83, 94, 138, 139, 142, 143, 144, 145),
    *(186, 197, 198, 269, 270, 271),
)
PER_LINK = {138, 139}
COPY = Path("tests/gpu/programs/stream_copy.py").resolve()
METRICS = ("dram__bytes_read.sum", "gpu__time_duration.sum")
NCU: dict[str, dict[str, Any]] = {
    "kernel": {},
    "no_ranges": {
        "replay_mode": "range",
        "nvtx_includes": ("nobody@nothing",),
        "cache_control": "none",
    },
    "no_graphs": {"graph_profiling": "graph"},
}
# what answers need not tell of the machine; an environment may lie in the folder
PLACES = {sys.prefix: "PREFIX", sys.base_prefix: "BASE", str(Path.cwd()): "."}
Row = Mapping[str, object]


def labels() -> Iterator[Row]:
    """Is an external id of 0 recorded, and do the two calls of a launch share a label?"""
    import torch

    x = torch.ones(1 << 20, device="cuda")

    def body(calls: Any) -> None:
        for label in (0, 1, 7):
            calls.push(LABELS, label)
            x.add_(1)
            calls.pop(LABELS)

    yield from _recorded(body)


def cold_sample() -> Iterator[Row]:
    """Which work has which label where a flush of L2 comes before a sample?"""
    import torch

    from pytest_gpuperf.collect.runtime import find_runtime

    x, runtime = torch.ones(1 << 20, device="cuda"), find_runtime()

    def body(calls: Any) -> None:
        calls.push(LABELS, 1)
        runtime.flush_l2()
        runtime.synchronize()
        calls.push(LABELS, 2)
        x.add_(1)
        calls.pop(LABELS)
        calls.pop(LABELS)

    yield from _recorded(body)


def launch_gaps() -> Iterator[Row]:
    """How long after its call does each of 1,000 empty kernels begin?"""
    import torch

    x = torch.ones(1, device="cuda")

    def body(_: Any) -> None:
        for _ in range(1000):
            x.add_(1)

    rows = [*_recorded(body)]
    starts = {r["correlation_id"]: r["start"] for r in rows if r.get("kind") in CALLS}
    kernels = [r for r in rows if r.get("kind") == KERNEL]
    gaps = [
        int(r["start"]) - int(starts[r["correlation_id"]])  # type: ignore[call-overload] # ns
        for r in kernels
        if r["correlation_id"] in starts
    ]
    yield {"kernels": len(kernels), "gaps_ns": gaps}
    yield from (row for row in rows if "kind" not in row)
    yield from rows[:60]


def counters() -> Iterator[Row]:
    """Do ranges come in launch order, and does CUPTI record after it has counted?"""
    import torch

    from pytest_gpuperf.collect.cupti.range_profiler import RangeProfiler

    x = torch.ones(1 << 28, device="cuda")
    y = torch.empty_like(x)

    def body() -> None:
        y.copy_(x)
        torch.add(x, 1, out=y)
        torch.sum(x)

    yield from _recorded(lambda _: body())
    profiler = RangeProfiler(METRICS, synchronize=torch.cuda.synchronize)
    try:
        yield {"kernels": repr(profiler.count_kernels(body))}
    finally:
        profiler.close()
    yield from _recorded(lambda _: body())


def ncu() -> Iterator[Row]:
    """What does this ncu accept, and say where nothing was profiled?"""
    from pytest_gpuperf.collect.ncu import Command, Session
    from pytest_gpuperf.collect.ncu.launches import read_capture
    from pytest_gpuperf.collect.runner import ProcessRunner
    from pytest_gpuperf.errors import GpuPerfError

    with tempfile.TemporaryDirectory(prefix="gpuperf-") as folder:
        for name, fields in NCU.items():
            command = Command(
                executable=sys.executable,
                args=(str(COPY),),
                output=Path(folder, name),
                metrics=METRICS,
                timeout_s=LONGEST_S,
                **fields,
            )
            answer: object
            try:
                Session(command=command).run()
                capture = read_capture(
                    command.report, runner=ProcessRunner(), metrics=METRICS
                )
                answer = msgspec.to_builtins(capture)
            except GpuPerfError as error:
                answer = str(error)
            log = command.log.read_text("utf-8") if command.log.exists() else None
            yield {"command": name, "argv": command.cmd, "answer": answer, "log": log}


def nvml() -> Iterator[Row]:
    """In which unit do the fields grow in five seconds of work, and what do calls cost?"""
    import pynvml
    import torch

    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    a = torch.randn(8192, 8192, device="cuda").bfloat16()

    def fields() -> dict[int, tuple[int, int, int]]:
        asked = [(f, 0xFFFFFFFF) if f in PER_LINK else f for f in NVML_FIELDS]
        values = pynvml.nvmlDeviceGetFieldValues(gpu, asked)
        return {v.fieldId: (v.valueType, v.nvmlReturn, v.value.ullVal) for v in values}

    def processes() -> list[int]:
        return [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)]

    begun_s = time.perf_counter()
    yield {"fields": fields(), "pids": processes(), "own_pid": os.getpid()}
    yield {"namespace": str(Path("/proc/self/ns/pid").readlink())}
    while time.perf_counter() - begun_s < BUSY_S:
        torch.matmul(a, a)
        torch.cuda.synchronize()
    yield {"seconds": time.perf_counter() - begun_s, "fields": fields()}
    yield {"energy_steps_s": [*_steps(lambda: _energy_mj(pynvml, gpu))]}
    calls = {"fields": fields, "processes": processes}
    for name, call in calls.items():
        yield {"call": name, "ns": [_taken_ns(call) for _ in range(30)]}


def flushes() -> Iterator[Row]:
    """Does a flush hand over what is complete while another stream is busy?"""
    import torch

    from pytest_gpuperf.collect.cupti.activity import ActivityCollector

    collector = ActivityCollector(torch.cuda.synchronize)
    x, side = torch.ones(1 << 20, device="cuda"), torch.cuda.Stream()
    collector.open()
    try:
        sink = collector.listen()
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000_000)  # noqa: SLF001 - it has no other name
        x.add_(1)
        torch.cuda.current_stream().synchronize()
        collector.flush()
        yield {"records_while_busy": len(sink)}
        torch.cuda.synchronize()
        collector.flush()
        yield {"records_when_idle": len(sink)}
    finally:
        collector.close()


def idle_waits() -> Iterator[Row]:
    """How long does waiting for an idle device take, bare and while CUPTI records?"""
    import torch

    from pytest_gpuperf.collect.cupti.activity import ActivityCollector
    from pytest_gpuperf.collect.runtime import find_runtime

    torch.zeros(1, device="cuda")
    runtime = find_runtime()
    yield {"bare_ns": [_taken_ns(runtime.synchronize) for _ in range(200)]}
    collector = ActivityCollector(runtime.synchronize)
    collector.open()
    try:
        yield {"cupti_ns": [_taken_ns(runtime.synchronize) for _ in range(200)]}
    finally:
        collector.close()


def buffers() -> Iterator[Row]:
    """What does the first launch after a flush cost, by buffer size and what came before?"""
    import torch

    from pytest_gpuperf.collect.cupti import subscription
    from pytest_gpuperf.collect.cupti.activity import ActivityCollector

    x, byte = torch.ones(1 << 10, device="cuda"), torch.ones(1, device="cuda")
    before: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "wait": torch.cuda.synchronize,
        "fill": byte.zero_,
    }
    for size in (8 << 20, 1 << 20, 1 << 17):
        subscription._BUFFER_BYTES = size  # noqa: SLF001 - nobody but this script changes it
        collector = ActivityCollector(torch.cuda.synchronize)
        collector.open()
        try:
            for name, prepare in 3 * [*before.items()]:
                torch.cuda.synchronize()
                flush_ns = _taken_ns(collector.flush)
                prepare()
                torch.cuda.synchronize()
                sink = collector.listen()
                begun_ns = collector.calls.now_ns()
                calls_ns = [_taken_ns(lambda: x.add_(1)) for _ in range(3)]
                torch.cuda.synchronize()
                collector.flush()
                records = [row_of(r) for batch in sink.taken() for r in batch]
                collector.leave(sink)
                yield {
                    "buffer_bytes": size,
                    "before": name,
                    "flush_ns": flush_ns,
                    "calls_ns": calls_ns,
                    "begun_ns": begun_ns,
                    "records": [
                        r for r in records if r["kind"] in {KERNEL, OVERHEAD, *CALLS}
                    ],
                }
        finally:
            collector.close()


def openings() -> Iterator[Row]:
    """What do opening, closing, and an empty window of CUPTI cost?"""
    import torch

    from pytest_gpuperf.collect.cupti.activity import ActivityCollector

    x = torch.ones(1 << 10, device="cuda")
    collector = ActivityCollector(torch.cuda.synchronize)

    def window() -> None:
        with collector.window() as found:
            x.add_(1)
        found.trace()

    for _ in range(10):
        opened_ns = _taken_ns(collector.open)
        windows_ns = [_taken_ns(window) for _ in range(5)]
        closed_ns = _taken_ns(collector.close)
        bare_ns = [_taken_ns(lambda: x.add_(1)) for _ in range(5)]
        yield {
            "opened_ns": opened_ns,
            "windows_ns": windows_ns,
            "closed_ns": closed_ns,
            "bare_ns": bare_ns,
        }


def gpm() -> Iterator[Row]:
    """What do GPM and NVML say of known work?"""
    import msgspec
    import torch

    from pytest_gpuperf.collect.clock import SystemClock
    from pytest_gpuperf.collect.nvml.deltas import Deltas
    from pytest_gpuperf.collect.nvml.library import open_board
    from pytest_gpuperf.collect.runtime import find_runtime

    torch.zeros(1, device="cuda")
    clock = SystemClock()
    board = open_board(str(find_runtime().device_uuid()))
    deltas = Deltas(board, clock)
    a = torch.randn(4096, 4096, device="cuda").bfloat16()
    x = torch.ones(1 << 27, device="cuda")
    out = torch.empty_like(x)
    host = torch.ones(1 << 28, dtype=torch.uint8).pin_memory()
    there = torch.empty_like(host, device="cuda")
    works: dict[str, Callable[[], object]] = {
        "idle": lambda: clock.sleep(0.05),
        "product": lambda: [a @ a for _ in range(50)],
        "copy": lambda: [torch.add(x, 1, out=out) for _ in range(20)],
        "from the host": lambda: there.copy_(host),
        "one thread": lambda: torch.cuda._sleep(50_000_000),  # noqa: SLF001 - it has no other name
    }
    for name, work in works.items():
        work()
        torch.cuda.synchronize()
        deltas.begin()
        begun_s = time.perf_counter()
        while time.perf_counter() - begun_s < SHORT_S:
            work()
            torch.cuda.synchronize()
        found = msgspec.to_builtins(deltas.end())
        yield {"work": name, **{k: v for k, v in found.items() if k != "gpu_uuid"}}
    deltas.close()
    board.close()


def event_gaps() -> Iterator[Row]:
    """How much of a sample by events is the host's launch, and how much when queued?"""
    import torch

    from pytest_gpuperf.collect.clock import SystemClock
    from pytest_gpuperf.collect.runtime import find_runtime
    from pytest_gpuperf.collect.timing.events import EventTimer, find_events

    a = torch.randn(4096, 4096, device="cuda").bfloat16()
    out, small = torch.empty_like(a), torch.ones(1 << 20, device="cuda")
    works: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "product": lambda: torch.matmul(a, a, out=out),
        "small": lambda: small.add_(1),
    }
    runtime = find_runtime()
    for name, work in works.items():
        for waits in (True, False):
            timer = EventTimer(find_events(), SystemClock.now_ns)
            for _ in range(30):
                runtime.flush_l2()
                if waits:
                    torch.cuda.synchronize()
                timer.begin()
                work()
                timer.end()
                torch.cuda.synchronize()
            taken_s = [s for s in timer.taken() if s is not None]
            yield {"work": name, "waits": waits, "us": [s * 1e6 for s in taken_s]}


def torch_first() -> Iterator[Row]:
    """What do we get of CUPTI while torch's profiler records, and after it?"""
    import torch

    from pytest_gpuperf.collect.cupti.activity import ActivityCollector
    from pytest_gpuperf.errors import GpuPerfError

    x = torch.ones(4, device="cuda")
    activities = [torch.profiler.ProfilerActivity.CUDA]

    def opened(step: str) -> Row:
        collector = ActivityCollector(torch.cuda.synchronize)
        try:
            collector.open()
        except GpuPerfError as error:
            return {"step": step, "refused": str(error)}
        with collector.window() as window:
            x.add_(1)
        seen = window.void.text if window.void else len(window.trace().launches)
        collector.close()
        return {"step": step, "launches": seen}

    def profiled(step: str) -> Iterator[Row]:
        with torch.profiler.profile(activities=activities) as profile:
            x.add_(1)
            torch.cuda.synchronize()
            if step == "while":
                yield opened("while torch records")
        yield {"step": step, "torch_sees": len(profile.events() or ())}

    yield from profiled("before")
    yield from profiled("while")
    yield opened("after torch")
    yield from profiled("after us")


def rivals() -> Iterator[Row]:
    """What do torch's profiler and we see of each other, whoever comes first?"""
    import torch

    from pytest_gpuperf.collect.cupti import calls, kineto
    from pytest_gpuperf.collect.cupti.activity import ActivityCollector
    from pytest_gpuperf.errors import GpuPerfError

    x = torch.ones(4, device="cuda")
    collector = ActivityCollector(torch.cuda.synchronize)

    def opened() -> str:
        try:
            collector.open()
        except GpuPerfError as error:
            return str(error)
        collector.close()
        return "opened"

    activities = [torch.profiler.ProfilerActivity.CUDA]
    collector.open()
    yield {
        "one_of_several": collector.calls.shared,
        "binding_has_several": calls.has_subscriber_calls(collector.library),
        "torch_is_one_of_several": kineto.kineto_use().value,
    }
    with torch.profiler.profile(activities=activities) as profile:
        x.add_(1)
        torch.cuda.synchronize()
    yield {"torch_sees_while_we_record": len(profile.events() or ())}
    collector.close()
    with torch.profiler.profile(activities=activities):
        x.add_(1)
        yield {"we_open_while_torch_records": opened()}
    yield {"we_open_after_torch": opened()}


def modules() -> Iterator[Row]:
    """Which code does CUPTI show when a module is loaded, and does another thread hang?"""
    import threading

    import torch

    from pytest_gpuperf.collect.binary.identity import code_identities
    from pytest_gpuperf.collect.cupti.activity import ActivityCollector
    from pytest_gpuperf.collect.runner import ProcessRunner

    sys.path.insert(0, str(COPY.parent))
    kernel = importlib.import_module("triton_kernel").add_one_kernel

    x = torch.ones(1 << 12, device="cuda")
    # Code is shown only to a user who asks for it.
    asked = {**os.environ, "GPUPERF_LOADED_CODE": "1"}
    collector = ActivityCollector(torch.cuda.synchronize, environment=asked)
    collector.open()
    compiled = kernel[(4,)](x, x.numel(), block=1024)
    torch.cuda.synchronize()
    shown, own = collector.modules.contents, compiled.asm["cubin"]
    yield {"modules": [len(code) for code in shown], "triton": len(own)}
    yield {"has_the_bytes_of_triton": own in shown}
    runner = ProcessRunner()
    identities = [code_identities(code, runner=runner) for code in (own, *shown)]
    yield {"identities": [{k: str(v) for k, v in each.items()} for each in identities]}

    # Libraries are loaded lazily, at their first call.
    for name, call in (("sort", x.sort), ("fft", lambda: torch.fft.fft(x))):
        before = len(collector.modules.contents)
        took_ns = _taken_ns(call)
        torch.cuda.synchronize()
        count = len(collector.modules.contents) - before
        yield {"library": name, "first_call_ns": took_ns, "new_modules": count}

    # The callback needs the interpreter, and the driver may hold a lock of its own.
    for block in (512, 2048):
        thread = threading.Thread(
            target=lambda n=block: kernel[(2,)](x, x.numel(), block=n)
        )
        thread.start()
        while thread.is_alive():
            x.add_(1)
        thread.join()
    torch.cuda.synchronize()
    yield {"no_hang": len(collector.modules.contents)}
    collector.close()


def workloads() -> Iterator[Row]:
    """Do the reference workloads load, how steady are they, and what does a set cost?"""
    import torch

    from pytest_gpuperf.collect.base import GPU_WORKLOADS
    from pytest_gpuperf.collect.gpu_workloads import CudaWorkloads
    from pytest_gpuperf.collect.runtime import driver_library

    torch.zeros(1, device="cuda")
    gpu = CudaWorkloads(driver_library())
    for _ in range(3):
        begun_ns = time.perf_counter_ns()
        with gpu.ready() as loaded:
            if loaded is None:
                yield {"error": "no context"}
                return
            ready_ns = time.perf_counter_ns() - begun_ns
            for name in GPU_WORKLOADS:
                yield {"name": name, "s": [loaded.time_s(name) for _ in range(20)]}
        yield {"ready_ns": ready_ns, "set_ns": time.perf_counter_ns() - begun_ns}


# In the order of what a wrong answer costs: times, then the profiles of others, then
# what is missing. What may hang or takes long is last.
QUESTIONS: dict[str, Callable[[], Iterator[Row]]] = {
    question.__name__: question
    for question in (
        *(labels, cold_sample, launch_gaps, flushes, idle_waits, event_gaps),
        *(nvml, workloads, rivals, torch_first),
        *(counters, gpm, buffers, openings),
        *(modules, ncu),
    )
}


def _recorded(body: Callable[[Any], object]) -> Iterator[Row]:
    """Yield the raw records of a body's second call, and CUPTI's clock around it."""
    import torch

    from pytest_gpuperf.collect.cupti.activity import ActivityCollector

    collector = ActivityCollector(torch.cuda.synchronize)
    collector.open()
    try:
        calls = collector.calls
        body(calls)  # what is compiled or loaded is not recorded
        torch.cuda.synchronize()
        collector.flush()
        sink = collector.listen()
        stamps = [calls.now_ns()]
        body(calls)
        stamps.append(calls.now_ns())
        torch.cuda.synchronize()
        stamps.append(calls.now_ns())
        collector.flush()
        yield {"begun_returned_ended_ns": stamps, "unrecorded": collector.unrecorded}
        for batch in sink.taken():
            for record in batch:
                yield row_of(record)
        collector.leave(sink)
    finally:
        collector.close()


def row_of(record: Any) -> Row:
    """
    Return the fields of a record.

    Only a kernel is asked for its name: an allocation has none, and cupti-python 13.0
    ends the process where it reads that.
    """
    fields = FIELDS if record.kind == KERNEL else [n for n in FIELDS if n != "name"]
    return {name: _plain(record, name) for name in fields if hasattr(record, name)}


def _plain(record: Any, name: str) -> object:
    """Return a field of a record as JSON takes it."""
    value = getattr(record, name)
    return (
        value if isinstance(value, str) else int(value) if value is not None else None
    )


def _energy_mj(pynvml: Any, gpu: object) -> int:
    """Return the energy that a GPU has used [mJ]."""
    return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu))


def _steps(read: Callable[[], int]) -> Iterator[float]:
    """Yield the times between changes of a counter [s], of at most five seconds."""
    begun_s = changed_s = time.perf_counter()
    last = read()
    while time.perf_counter() - begun_s < BUSY_S:
        value = read()
        if value != last:
            now_s = time.perf_counter()
            yield now_s - changed_s
            last, changed_s = value, now_s


def _taken_ns(call: Callable[[], object]) -> int:
    """Return how long a call takes [ns]."""
    begun_ns = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - begun_ns


def answer(file: Path, name: str) -> int:
    """Write what a question yields; return 1 where it failed."""
    with file.open("a", encoding="utf-8") as lines:

        def write(row: Row) -> None:
            text = json.dumps({"question": name, **row}, default=str)
            for place, instead in PLACES.items():
                text = text.replace(place, instead)
            lines.write(text + "\n")
            lines.flush()

        try:
            for row in QUESTIONS[name]():
                write(row)
        except Exception as error:  # noqa: BLE001 - whatever a library raises is the answer
            write(
                {
                    "failed": f"{type(error).__name__}: {error}",
                    "at": traceback.format_exc(),
                }
            )
            return 1
    return 0


def main() -> int:
    """Ask one question here, or each in a process of its own; return 1 where one failed."""
    file, *names = sys.argv[1:]
    if names:
        return answer(Path(file), names[0])
    query = query_devices()
    if not query.devices:
        print(f"gpu_probe: skipped, no GPU: {query.reason}")
        return 0
    codes = []
    for name in QUESTIONS:
        argv = [sys.executable, __file__, file, name]
        begun_s = time.monotonic()
        try:
            code = subprocess.run(
                argv, timeout=LONGER_S.get(name, LONGEST_S), check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = 124
        print(
            f"{name}: ended with {code} after {time.monotonic() - begun_s:.0f} s",
            flush=True,
        )
        codes.append(code)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
