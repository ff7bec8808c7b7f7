"""collect.step_profile: what is recorded of a loop, and what is refused."""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.runtime import FakeRuntime
from pytest_gpuperf.collect.memory import TorchPool
from pytest_gpuperf.collect.runtime import NoDevice
from pytest_gpuperf.collect.step_profile import StepRecorder, TorchCompiler
from pytest_gpuperf.errors import CollectError, MeasureError
from pytest_gpuperf.model.steps import Loop, SpanKind, SpanLevel, Waiting

MS = 1_000_000
NO_TORCH = TorchCompiler({})


class Bed:
    """A recorder on a clock that moves only as told."""

    def __init__(self, **how: Any) -> None:
        self.clock = FakeClock()
        runtime = how.pop("runtime", None)
        self.recorder = StepRecorder(
            self.clock,
            NoDevice() if runtime is None else runtime(self.clock),
            compiler=how.pop("compiler", NO_TORCH),
            **{"warmup_count": 0, **how},
        )
        self.recorder.begin()

    def work(self, ms: float) -> None:
        self.clock.advance(int(ms * MS))

    def end(self) -> Loop:
        return self.recorder.end()


def fail(error: BaseException) -> None:
    raise error


def kinds(loop: Loop, index: int = 0) -> list[tuple[str, SpanKind]]:
    return [(span.name, span.kind) for span in loop.steps[index].spans]


def test_a_step_is_what_lies_between_its_ends() -> None:
    """The time before it is waiting, from the loop's beginning or the step before."""
    bed = Bed()
    bed.work(5)
    with bed.recorder.step():
        bed.work(10)
    bed.work(1)
    with bed.recorder.step():
        bed.work(20)
    loop = bed.end()

    assert [step.wait_s for step in loop.steps] == pytest.approx([0.005, 0.001])
    assert [step.duration_s for step in loop.steps] == pytest.approx([0.010, 0.020])
    assert loop.waiting is None


def test_a_step_that_imports_or_waits_has_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its time is not that of its work. Other threads may work for it."""
    bed = Bed()
    with bed.recorder.step():
        bed.work(10)
    with bed.recorder.step():
        bed.work(10)
        monkeypatch.setitem(sys.modules, "gpuperf_fake", sys)
    with bed.recorder.step():
        bed.work(2)
        bed.clock.wait(8 * MS)
    with bed.recorder.step():
        bed.clock.wait(10 * MS)
        bed.clock.others_ns += 10 * MS

    assert [step.prepared for step in bed.end().steps] == [False, True, True, False]


def test_a_turn_is_taken_after_each_step() -> None:
    """The wait for it is in no step, and in no wait."""
    clock = FakeClock()
    asked: list[bool] = []

    def take_turn(enough: bool) -> bool:
        clock.advance(50 * MS)
        asked.append(enough)
        return True

    recorder = StepRecorder(clock, NoDevice(), compiler=NO_TORCH, warmup_count=0)
    recorder.begin(take_turn)
    for _ in range(3):
        clock.advance(2 * MS)
        with recorder.step():
            clock.advance(10 * MS)
    loop = recorder.end()

    assert asked == [False] * 3
    assert [step.wait_s for step in loop.steps] == pytest.approx([0.002] * 3)
    assert [step.duration_s for step in loop.steps] == pytest.approx([0.010] * 3)


def test_spans_nest_and_know_their_parent() -> None:
    """Each in the one around it, in the order in which they began."""
    bed = Bed()
    with bed.recorder.step():
        with bed.recorder.phase("forward"):
            bed.work(1)
            with bed.recorder.layer(3), bed.recorder.operation("qkv"):
                bed.work(2)
        with bed.recorder.phase("optimizer"):
            bed.work(3)
    (step,) = bed.end().steps

    assert [(s.name, s.level, s.parent, s.layer) for s in step.spans] == [
        ("forward", SpanLevel.PHASE, None, None),
        ("3", SpanLevel.LAYER, 0, 3),
        ("qkv", SpanLevel.OPERATION, 1, 3),
        ("optimizer", SpanLevel.PHASE, None, None),
    ]
    assert [s.duration_s for s in step.spans] == pytest.approx(
        [0.003, 0.002, 0.002, 0.003]
    )


def test_a_kind_comes_from_the_test_or_the_name_or_the_span_around() -> None:
    """In this order; a phase that nobody explains is spent on something else."""
    bed = Bed()
    with bed.recorder.step():
        with bed.recorder.phase("backward"):
            with bed.recorder.layer(0), bed.recorder.operation("wgrad"):
                pass
            with bed.recorder.operation("all_reduce"):
                pass
            with bed.recorder.layer(1, "forward"):  # recomputed
                pass
        with bed.recorder.layer(0):
            pass
        with bed.recorder.phase("grad sync", kind="communication"):
            pass
        with bed.recorder.phase("logging"), bed.recorder.operation("print"):
            pass
    loop = bed.end()

    assert kinds(loop) == [
        ("backward", SpanKind.BACKWARD),
        ("0", SpanKind.BACKWARD),
        ("wgrad", SpanKind.BACKWARD),
        ("all_reduce", SpanKind.COMMUNICATION),
        ("1", SpanKind.FORWARD),
        ("0", SpanKind.FORWARD),
        ("grad sync", SpanKind.COMMUNICATION),
        ("logging", SpanKind.OTHER),
        ("print", SpanKind.OTHER),
    ]


def test_the_same_phase_may_come_several_times_and_in_itself() -> None:
    """Gradient accumulation enters `forward` four times a step."""
    bed = Bed()
    forward = bed.recorder.phase("forward")
    with bed.recorder.step():
        for _ in range(4):
            with forward:
                bed.work(1)
        with forward, forward:
            bed.work(1)
    (step,) = bed.end().steps

    assert len(step.spans) == 6
    assert step.spans[5].parent == 4


def test_a_loader_is_timed_batch_by_batch() -> None:
    """Making its iterator counts with the first batch; its end belongs to no step."""
    bed = Bed()

    def loader() -> Iterator[int]:
        bed.work(7)  # workers start
        yield 1
        bed.work(2)
        yield 2
        bed.work(9)  # nobody waits for this one

    seen = []
    for batch in bed.recorder.data(loader()):
        with bed.recorder.step():
            seen.append(batch)
            bed.work(1)
    loop = bed.end()

    assert seen == [1, 2]
    assert [step.spans[0].duration_s for step in loop.steps] == pytest.approx(
        [0.007, 0.002]
    )
    assert kinds(loop) == [("data", SpanKind.DATA)]


def test_a_loader_that_raises_raises() -> None:
    """The exception is the loader's own, and the steps before it stay."""
    bed = Bed()

    def loader() -> Iterator[int]:
        yield 1
        message = "the disk is gone"
        raise OSError(message)

    batches = bed.recorder.data(loader())
    next(batches)
    with bed.recorder.step():
        bed.work(1)
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert len(bed.end().steps) == 1


def test_a_step_that_raises_is_void() -> None:
    """It is kept out with its reason; those around it count."""
    bed = Bed()
    with bed.recorder.step():
        bed.work(1)
    step, phase = bed.recorder.step(), bed.recorder.phase("forward")
    with pytest.raises(ZeroDivisionError), step, phase:
        fail(ZeroDivisionError())
    with bed.recorder.step(), bed.recorder.phase("forward"):
        bed.work(1)
    loop = bed.end()

    assert [step.void for step in loop.steps] == [
        None,
        "ZeroDivisionError was raised in it",
        None,
    ]
    assert len(loop.counted) == 2


def test_an_error_that_a_step_catches_leaves_it_whole() -> None:
    """The phase that raised took its time all the same."""
    bed = Bed()
    with bed.recorder.step():
        with contextlib.suppress(KeyError), bed.recorder.phase("forward"):
            bed.work(4)
            fail(KeyError())
        bed.work(1)
    (step,) = bed.end().steps

    assert step.void is None
    assert step.spans[0].duration_s == pytest.approx(0.004)


def test_a_step_that_is_open_at_the_end_is_void() -> None:
    """It has no end of its own."""
    bed = Bed()
    block = bed.recorder.step()
    block.__enter__()
    bed.work(1)
    loop = bed.end()
    block.__exit__(None, None, None)

    assert loop.steps[0].void == "it was still open when the loop ended"
    assert loop.counted == ()


def test_work_of_the_device_counts_in_the_step_that_asked_for_it() -> None:
    """The device is waited for before and after each step, and not inside it."""
    bed = Bed(runtime=FakeRuntime)
    runtime = bed.recorder._runtime
    assert isinstance(runtime, FakeRuntime)
    with bed.recorder.step(), bed.recorder.phase("forward"):
        runtime.pending_ns += 30 * MS
    runtime.pending_ns += 2 * MS  # asked for between steps
    with bed.recorder.step():
        bed.work(1)
    loop = bed.end()

    assert [step.duration_s for step in loop.steps] == pytest.approx([0.030, 0.001])
    assert loop.steps[1].wait_s == pytest.approx(0.002)
    assert loop.steps[0].spans[0].duration_s == 0.0
    assert loop.waiting is Waiting.STEP


def test_a_device_may_come_into_use_in_a_step() -> None:
    """That step waits for it already, and the next ones too."""
    bed = Bed(runtime=FakeRuntime)
    runtime = bed.recorder._runtime
    assert isinstance(runtime, FakeRuntime)
    runtime.in_use = False
    with bed.recorder.step():
        bed.work(1)
    with bed.recorder.step():
        runtime.in_use = True
        runtime.pending_ns += 4 * MS
    loop = bed.end()

    assert [step.duration_s for step in loop.steps] == pytest.approx([0.001, 0.004])
    assert loop.waiting is Waiting.STEP


def test_looking_for_a_device_takes_time_from_nobody() -> None:
    """Where there is none, asking for it lies in no step and in no wait."""

    class Slow(NoDevice):
        def active(self) -> bool:
            bed.work(50)
            return False

    bed = Bed()
    bed.recorder._runtime = Slow()
    for _ in range(2):
        with bed.recorder.step():
            bed.work(1)
    loop = bed.end()

    assert [step.period_s for step in loop.steps] == pytest.approx([0.001, 0.001])
    assert loop.waiting is None


def test_a_span_can_wait_for_the_device_too() -> None:
    """Then it holds what it asked the device for, and nothing of before."""
    bed = Bed(runtime=FakeRuntime, waiting=Waiting.SPAN)
    runtime = bed.recorder._runtime
    assert isinstance(runtime, FakeRuntime)
    with bed.recorder.step():
        runtime.pending_ns += 5 * MS
        with bed.recorder.phase("forward"):
            runtime.pending_ns += 30 * MS
    loop = bed.end()

    assert loop.steps[0].spans[0].duration_s == pytest.approx(0.030)
    assert loop.waiting is Waiting.SPAN


def test_a_step_that_raised_does_not_wait_for_the_device() -> None:
    """A broken device would only hide what was raised."""
    bed = Bed(runtime=FakeRuntime)
    runtime = bed.recorder._runtime
    assert isinstance(runtime, FakeRuntime)
    with pytest.raises(ValueError, match="mine"), bed.recorder.step():
        fail(ValueError("mine"))

    assert runtime.events == ["synchronize"] * 2  # as the loop and the step began


def test_a_device_that_fails_at_the_end_of_a_step_makes_it_void() -> None:
    """The error passes through, and the step is not a step."""

    class Broken(FakeRuntime):
        def synchronize(self) -> None:
            if self.pending_ns:
                message = "cuCtxSynchronize failed"
                raise CollectError(message, remedy="look for it")

    bed = Bed(runtime=Broken)
    runtime = bed.recorder._runtime
    assert isinstance(runtime, FakeRuntime)
    with pytest.raises(CollectError), bed.recorder.step():
        runtime.pending_ns = 1

    assert "cuCtxSynchronize failed" in (bed.end().steps[0].void or "")


def test_units_are_the_loops_unless_a_step_says_its_own() -> None:
    """Batches may differ in length."""
    bed = Bed(units=8.0)
    for units in (None, 5):
        with bed.recorder.step(units=units):
            bed.work(1)

    assert [step.units for step in bed.end().steps] == [8.0, 5.0]


def test_a_span_of_another_thread_is_cut_at_the_ends_of_steps() -> None:
    """A batch that is prepared beside two steps lies in both."""
    bed = Bed()
    opened, closing = threading.Event(), threading.Event()

    def prepare() -> None:
        with bed.recorder.phase("prefetch", kind="data"):
            opened.set()
            closing.wait(10)

    beside = threading.Thread(target=prepare)
    with bed.recorder.step():
        bed.work(1)
        beside.start()
        opened.wait(10)
        bed.work(2)
    with bed.recorder.step():
        bed.work(3)
        closing.set()
        beside.join()
        bed.work(4)
    loop = bed.end()

    spans = [span for step in loop.steps for span in step.spans]
    assert [(span.name, span.thread) for span in spans] == [("prefetch", 1)] * 2
    assert [span.duration_s for span in spans] == pytest.approx([0.002, 0.003])


def test_what_is_compiled_belongs_to_the_step_in_which_it_was() -> None:
    """From reading to reading of the compiler's own counters."""
    dynamo = types.ModuleType("torch._dynamo.utils")
    dynamo.counters = {"stats": {"unique_graphs": 5}}  # type: ignore[attr-defined]
    dynamo.compilation_time_metrics = {}  # type: ignore[attr-defined]
    bed = Bed(compiler=TorchCompiler({"torch._dynamo.utils": dynamo}))
    for count in (7, 7, 8):
        with bed.recorder.step():
            bed.work(1)
            dynamo.counters["stats"]["unique_graphs"] = count
    loop = bed.end()

    assert [s.compiled.count if s.compiled else None for s in loop.steps] == [2, 0, 1]
    assert loop.uncompiled_reason == ""


class FakeCuda:
    """torch.cuda as far as memory goes."""

    def __init__(self, *peaks: int, ready: bool = True) -> None:
        self.peaks = list(peaks)
        self.ready = ready

    def is_initialized(self) -> bool:
        return self.ready

    def device_count(self) -> int:
        return len(self.peaks)

    def max_memory_allocated(self, index: int) -> int:
        return self.peaks[index]

    def reset_peak_memory_stats(self, index: int) -> None:
        self.peaks[index] = 0


class UncountedCuda(FakeCuda):
    """torch.cuda with an allocator that was plugged in and does not count."""

    def max_memory_allocated(self, index: int) -> int:
        message = "CUDAPluggableAllocator does not yet support getDeviceStats"
        raise RuntimeError(message)

    def reset_peak_memory_stats(self, index: int) -> None:
        self.max_memory_allocated(index)


def memory_of(cuda: FakeCuda) -> TorchPool:
    torch = types.ModuleType("torch")
    torch.cuda = cuda  # type: ignore[attr-defined]
    return TorchPool({"torch": torch})


def test_the_peak_memory_of_a_loop_is_that_of_the_fullest_device() -> None:
    """It begins anew with the loop."""
    cuda = FakeCuda(70, 90, 0)
    bed = Bed(memory=memory_of(cuda))
    cuda.peaks[:2] = 7, 9

    assert bed.end().peak_memory_bytes == 9


@pytest.mark.parametrize(
    "cuda",
    [UncountedCuda(7), FakeCuda(7, ready=False)],
    ids=["not counted", "not in use"],
)
def test_a_peak_that_torch_does_not_count_is_unknown(cuda: FakeCuda) -> None:
    """Neither is an error, and an unused CUDA is not started."""
    bed = Bed(memory=memory_of(cuda))

    assert bed.end().peak_memory_bytes is None
    assert cuda.peaks == [7]


# misuse


def raised(bed: Bed, *blocks: Any) -> str:
    with pytest.raises(MeasureError) as error, contextlib.ExitStack() as stack:
        list(map(stack.enter_context, blocks))
    assert error.value.remedy
    return error.value.message


def test_a_step_inside_a_step_is_refused() -> None:
    """Which of the two would the time belong to?"""
    bed = Bed()

    assert raised(bed, bed.recorder.step(), bed.recorder.step()) == (
        "a step cannot begin inside another step"
    )


@pytest.mark.parametrize("name", ["forward", "evaluation"])
def test_a_phase_in_no_step_is_refused(name: str) -> None:
    """It would be part of nothing."""
    bed = Bed()

    assert (
        raised(bed, bed.recorder.phase(name))
        == f"phase {name!r} is outside of every step"
    )
    assert "is outside of every step" in raised(bed, bed.recorder.layer(0))
    assert "is outside of every step" in raised(bed, bed.recorder.operation("gemm"))


def test_a_step_inside_a_phase_is_refused() -> None:
    """Also where that is allowed between steps."""
    bed = Bed()

    message = raised(bed, bed.recorder.phase("data"), bed.recorder.step())
    assert message == "a step cannot begin inside 'data'"


def test_a_layer_inside_a_layer_is_refused() -> None:
    """Whose operations would they be?"""
    bed = Bed()
    blocks = (bed.recorder.step(), bed.recorder.layer(0), bed.recorder.layer(1))

    assert raised(bed, *blocks) == "layer 1 is inside layer 0"


def test_nothing_is_recorded_after_the_loop() -> None:
    """Nor before it."""
    bed = Bed()
    bed.end()

    assert raised(bed, bed.recorder.step()) == "a step is outside of its loop"
    assert "is outside of its loop" in raised(bed, bed.recorder.phase("forward"))


def test_spans_end_in_the_order_of_with_blocks() -> None:
    """One that ends inside another is told with both names."""
    bed = Bed()
    outer, inner = bed.recorder.phase("forward"), bed.recorder.phase("loss")
    with contextlib.suppress(MeasureError), bed.recorder.step():
        outer.__enter__()
        inner.__enter__()
        with pytest.raises(MeasureError, match="cannot end: 'loss' is still open"):
            outer.__exit__(None, None, None)


def test_a_span_that_outlives_its_step_is_refused() -> None:
    """And the step is void, for nobody knows what it holds."""
    bed = Bed()
    step = bed.recorder.step()
    with pytest.raises(MeasureError, match="'forward' is still open at the end"), step:
        bed.recorder.phase("forward").__enter__()

    assert "still open" in (bed.end().steps[0].void or "")


def test_a_step_in_another_thread_is_refused() -> None:
    """Phases may be there; steps follow each other in one."""
    bed = Bed()
    messages: list[str] = []

    def elsewhere() -> None:
        messages.append(raised(bed, bed.recorder.step()))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert messages == ["a step cannot begin in another thread than its loop"]


def test_a_name_has_one_kind() -> None:
    """A phase that is communication here and computing there is two phases."""
    bed = Bed()
    bed.recorder.phase("sync", kind="communication")

    with pytest.raises(
        MeasureError, match="changed its kind from communication to data"
    ):
        bed.recorder.phase("sync", kind="data")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda r: r.phase(""), "phase: '' is not a name"),
        (lambda r: r.phase(3), "phase: 3 is not a name"),
        (lambda r: r.phase(["forward"]), "is not a name"),
        (lambda r: r.phase("\ud800"), "contains a lone surrogate"),
        (lambda r: r.phase("x", kind="compute"), "kind: 'compute' is not a kind"),
        (lambda r: r.phase("x", kind=[1]), "is not a kind"),
        (lambda r: r.operation(None), "operation: None is not a name"),
        (lambda r: r.layer(-1), "layer: -1 is not a layer index"),
        (lambda r: r.layer("0"), "layer: '0' is not a layer index"),
        (lambda r: r.layer(True), "layer: True is not a layer index"),
        (lambda r: r.layer(0, "sideways"), "part: 'sideways' is not a part"),
        (lambda r: r.step(units=0), "units: 0 is not above zero"),
        (lambda r: r.step(units=-1), "units: -1 is not above zero"),
        (lambda r: r.step(units=float("nan")), "units: nan is not above zero"),
        (lambda r: r.step(units="512"), "units: '512' is not a number"),
        (lambda r: r.step(units=True), "units: True is not a number"),
        (lambda r: r.data(3), "loader: 3 cannot be looped over"),
    ],
)
def test_an_argument_of_another_type_is_refused(call: Any, told: str) -> None:
    """With what was given, and before anything is recorded."""
    bed = Bed()

    with pytest.raises(MeasureError) as error:
        call(bed.recorder)
    assert told in error.value.message
    assert error.value.remedy
