"""The recorder of a loop: steps, phases, layers, operations.

A span is two readings of the clock and a tuple; everything else waits until the loop has
ended. The device is waited for before and after each step, so that its work counts in the
step that asked for it; inside a step it is not, unless the test asks for that, so that
spans are the host's alone. Whether there is a device by now is asked after each step; that
and what we write down lie in no step and in no wait.
"""

from __future__ import annotations

import itertools
import math
import operator
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TypeVar, final

from pytest_gpuperf.collect.base import TakeTurn
from pytest_gpuperf.collect.clock import Clock
from pytest_gpuperf.collect.memory import Allocator, TorchPool
from pytest_gpuperf.collect.runtime import DeviceRuntime
from pytest_gpuperf.collect.spans import (
    EndedSpan,
    EndedStep,
    Mark,
    SpanBlock,
    StepBlock,
    check_loader,
    layer_mark,
    named_mark,
    steps_of,
    units_amount,
)
from pytest_gpuperf.errors import CollectError, MeasureError
from pytest_gpuperf.model.steps import (
    Compiled,
    Loop,
    SpanKind,
    SpanLevel,
    Waiting,
)

__all__ = ["StepRecorder", "TorchCompiler"]

_T = TypeVar("_T")
_OPEN_AT_END = "it was still open when the loop ended"
_NO_PARENT = -1


class _Stack(threading.local):
    """The spans that are open in one thread: number, mark, start [ns]."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.frames: list[tuple[int, Mark, int]] = []


@final
class StepRecorder:
    """
    Records one loop.

    Args:
        clock: Gives the time.

        runtime: Waits for the device, if there is one.

        unit: What a unit of work is called.

        units: Units of a step that does not say its own, > 0.

        warmup_count: Steps at the beginning that do not count, >= 0.

        waiting: When to wait for the device.

        compiler: Counts compilations; None: torch's of this process.

        memory: Counts memory; None: torch's of this process.
    """

    def __init__(
        self,
        clock: Clock,
        runtime: DeviceRuntime,
        *,
        unit: str = "step",
        units: float = 1.0,
        warmup_count: int = 1,
        waiting: Waiting = Waiting.STEP,
        compiler: TorchCompiler | None = None,
        memory: Allocator | None = None,
    ) -> None:
        self._now_ns = clock.now_ns
        self._runtime = runtime
        self._unit = unit
        self._units = units
        self._warmup_count = warmup_count
        self._waiting = waiting
        self._compiler = compiler or TorchCompiler()
        self._memory = memory or TorchPool()
        self._span_waits = waiting is Waiting.SPAN
        self._contexts: dict[object, SpanBlock] = {}
        self._kinds: dict[tuple[SpanLevel, str], SpanKind | None] = {}
        self._stack = _Stack()
        self._numbers = itertools.count()
        self._spans: list[EndedSpan] = []
        self._steps: list[EndedStep] = []
        self._start_ns: int | None = None  # of the open step
        self._running = False
        self._active = False  # whether a device was in use when last asked
        self._used = False

    def begin(self, take_turn: TakeTurn = operator.not_) -> None:
        """
        Wait for the device, then begin the loop.

        Args:
            take_turn: Called after each step, outside of all that is timed: waits until
                the next may begin. By itself a process waits for no other.
        """
        self._thread = threading.get_ident()
        self._take_turn = take_turn
        self._memory.begin(calling=False)
        self._compiled = self._compiler.compiled()
        self._ask_device()
        self._running = True
        self._begin_ns = self._now_ns()

    def end(self, failure: BaseException | None = None) -> Loop:
        """
        End the loop, and return what was recorded.

        Args:
            failure: What ended it early; None: it came to its end.
        """
        if self._start_ns is not None:
            self._keep_step(self._units, _OPEN_AT_END, self._now_ns())
        self._running = False
        self._stack.frames.clear()
        return Loop(
            unit=self._unit,
            units=self._units,
            warmup_count=self._warmup_count,
            steps=steps_of(
                self._steps, self._spans, thread=self._thread, compiled=self._compiled
            ),
            waiting=self._waiting if self._used else None,
            uncompiled_reason=self._compiler.uncompiled_reason(),
            peak_memory_bytes=self._memory.peak_bytes(),
            failure=None if failure is None else type(failure).__name__,
        )

    def step(self, units: float | None = None) -> AbstractContextManager[None]:
        """
        Return the with block of a step.

        Args:
            units: Units of work that it does; None: what the loop says, > 0.
        """
        amount = self._units if units is None else units_amount(units)
        return StepBlock(amount, self._open_step, self._close_step)

    def phase(
        self, name: str, kind: str | SpanKind | None = None
    ) -> AbstractContextManager[None]:
        """
        Return the with block of a phase.

        Args:
            name: Its name; in one step it may come several times.

            kind: What it is spent on; None: what a well-known name says, else other.
        """
        try:
            return self._contexts[SpanLevel.PHASE, name, kind]
        except (KeyError, TypeError):  # new, or nothing that could be a name
            return self._named(SpanLevel.PHASE, name, kind)

    def operation(
        self, name: str, kind: str | SpanKind | None = None
    ) -> AbstractContextManager[None]:
        """
        Return the with block of an operation.

        Args:
            name: Its name; in one step it may come several times.

            kind: What it is spent on; None: what a well-known name says, else what
                the span around it is spent on.
        """
        try:
            return self._contexts[SpanLevel.OPERATION, name, kind]
        except (KeyError, TypeError):  # new, or nothing that could be a name
            return self._named(SpanLevel.OPERATION, name, kind)

    def layer(
        self, index: int, part: str | None = None
    ) -> AbstractContextManager[None]:
        """
        Return the with block of a layer's forward or backward pass.

        Args:
            index: Its number, from 0.

            part: "forward" or "backward"; None: as the span around it, else forward.
        """
        try:
            return self._contexts[SpanLevel.LAYER, index, part]
        except (KeyError, TypeError):  # new, or nothing that could be a number
            mark = layer_mark(index, part)
            return self._context((SpanLevel.LAYER, index, part), mark)

    def data(self, loader: Iterable[_T]) -> Iterator[_T]:
        """
        Return an iterator over a loader that records how long each batch took to come.

        Args:
            loader: Whatever a for loop takes.
        """
        check_loader(loader)
        return self._fetched(loader)

    def _fetched(self, loader: Iterable[_T]) -> Iterator[_T]:
        """Yield the batches of a loader; making its iterator counts as well."""
        waiting = self.phase("data", SpanKind.DATA)
        iterator: Iterator[_T] | None = None
        while True:
            with waiting:
                iterator = iter(loader) if iterator is None else iterator
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
            yield batch

    # spans

    def _named(
        self, level: SpanLevel, name: str, kind: str | SpanKind | None
    ) -> SpanBlock:
        """Return the with block of a phase or an operation, made once."""
        mark = named_mark(level, name, kind)
        before = self._kinds.setdefault((level, mark.name), mark.kind)
        if before is not mark.kind:
            was, now = (kind.value if kind else "unset" for kind in (before, mark.kind))
            message = (
                f"{level.value} {mark.name!r} changed its kind from {was} to {now}"
            )
            raise MeasureError(message, remedy="give it one kind, or two names")
        return self._context((level, name, kind), mark)

    def _context(self, key: object, mark: Mark) -> SpanBlock:
        """Return a with block, and remember it."""
        made = SpanBlock(mark, self._open_span, self._close_span)
        self._contexts[key] = made
        return made

    def _open_span(self, mark: Mark) -> None:
        """Begin a span in this thread."""
        frames = self._stack.frames
        if not frames:
            self._check_place(mark)
        elif mark.level is SpanLevel.LAYER:
            _refuse_inner_layer(mark, frames)
        if self._span_waits and self._active:
            self._runtime.synchronize()
        frames.append((next(self._numbers), mark, self._now_ns()))

    def _close_span(self, mark: Mark, raised: bool) -> None:  # noqa: FBT001 - a finding, not a switch
        """End the innermost span of this thread."""
        if self._span_waits and self._active and not raised:
            self._runtime.synchronize()
        end_ns = self._now_ns()
        stack = self._stack
        frames = stack.frames
        if not frames or frames[-1][1] is not mark:
            if raised:  # what was raised says more
                return
            inner = (
                f"{frames[-1][1].name!r} is still open" if frames else "it has ended"
            )
            message = f"{mark.name!r} cannot end: {inner}"
            raise MeasureError(message, remedy="open and close spans in with blocks")
        number, _, start_ns = frames.pop()
        parent = frames[-1][0] if frames else _NO_PARENT
        place = len(self._steps)
        self._spans.append(
            (number, parent, mark, start_ns, end_ns, stack.thread, place)
        )

    def _check_place(self, mark: Mark) -> None:
        """Refuse an outermost span where there is nothing for it to be part of."""
        self._check_running(f"{mark.level.value} {mark.name!r}")
        inside = self._start_ns is not None
        if inside or mark.kind is SpanKind.DATA or not self._in_own_thread():
            return
        message = f"{mark.level.value} {mark.name!r} is outside of every step"
        remedy = "put it into `with steps.step():`; only data may lie between steps"
        raise MeasureError(message, remedy=remedy)

    # steps

    def _open_step(self) -> None:
        """Begin a step."""
        self._check_running("a step")
        if not self._in_own_thread():
            message = "a step cannot begin in another thread than its loop"
            raise MeasureError(message, remedy="use steps.phase(…) in other threads")
        frames = self._stack.frames
        if self._start_ns is not None or frames:
            inside = f"{frames[-1][1].name!r}" if frames else "another step"
            message = f"a step cannot begin inside {inside}"
            raise MeasureError(message, remedy=f"end {inside} first")
        if self._active:
            self._runtime.synchronize()
        self._start_ns = self._now_ns()

    def _close_step(self, units: float, error: BaseException | None) -> None:
        """End the open step, unless the loop has ended it already."""
        if self._start_ns is None:
            return
        end_ns, frames = self._now_ns(), self._stack.frames
        if error is not None:
            frames.clear()
            void = f"{type(error).__name__} was raised in it"
            self._keep_step(units, void, end_ns)
            return
        if frames:
            message = f"{frames[-1][1].name!r} is still open at the end of its step"
            frames.clear()
            self._keep_step(units, message, end_ns)
            raise MeasureError(message, remedy="open and close spans in with blocks")
        try:
            self._ask_device()
        except CollectError as failed:
            void = f"the device reported an error: {failed.message}"
            self._keep_step(units, void, self._now_ns())
            raise
        self._keep_step(units, None, self._now_ns() if self._active else end_ns)

    def _ask_device(self) -> None:
        """Wait for the device, if one is in use by now."""
        self._active = self._runtime.active()
        if self._active:
            self._used = True
            self._runtime.synchronize()

    def _keep_step(self, units: float, void: str | None, end_ns: int) -> None:
        """Write down the open step; what comes next begins when that is done."""
        start_ns = end_ns if self._start_ns is None else self._start_ns
        self._steps.append(
            EndedStep(
                begin_ns=self._begin_ns,
                start_ns=start_ns,
                end_ns=end_ns,
                units=units,
                void=void,
                compiled=self._compiler.compiled(),
            )
        )
        self._start_ns = None
        self._take_turn(False)  # noqa: FBT003 - a loop has as many steps as its test says
        self._begin_ns = self._now_ns()

    def _check_running(self, what: str) -> None:
        """Refuse what is recorded before the loop has begun, or after its end."""
        if not self._running:
            message = f"{what} is outside of its loop"
            remedy = "put it into `with gpuperf.steps() as steps:`"
            raise MeasureError(message, remedy=remedy)

    def _in_own_thread(self) -> bool:
        """Return whether this is the thread of the loop."""
        return threading.get_ident() == self._thread


def _refuse_inner_layer(mark: Mark, frames: list[tuple[int, Mark, int]]) -> None:
    """Refuse a layer inside a layer: whose operations would it be?"""
    for _, outer, _ in frames:
        if outer.level is SpanLevel.LAYER:
            message = f"layer {mark.name} is inside layer {outer.name}"
            raise MeasureError(message, remedy=f"end layer {outer.name} first")


_NO_COMPILATION = Compiled(count=0, graph_breaks_count=0, time_s=0.0)
# torch's names for the compile time of a whole frame, newest first
_FRAME_TIMES = ("_compile.compile_inner", "_compile.<locals>.compile_inner")
_READ_ERRORS = (AttributeError, KeyError, TypeError, ValueError, RuntimeError)
# what else compiles while it runs, and does not say how often
_OTHER_COMPILERS = (
    *("cupy", "jax", "mlx", "numba", "taichi", "tensorflow", "tinygrad", "triton"),
    *("tvm", "warp"),
)


class TorchCompiler:
    """
    The compiler of torch, if this process has imported torch.

    Nothing is compiled in a process that has no compiler. Compilations as torch 2.13 counts them; a torch with other counters gives a reason, not
    an error. H200, torch 2.11: a step that compiles nothing has 0. *Unverified on hardware:*
    a step that compiles.

    Args:
        modules: The loaded modules by name; None: those of this interpreter.
    """

    def __init__(self, modules: Mapping[str, ModuleType] | None = None) -> None:
        self._modules = sys.modules if modules is None else modules

    def compiled(self) -> Compiled | None:
        """Return the compilations since this process began; None: unknown."""
        dynamo = self._modules.get("torch._dynamo.utils")
        if dynamo is None:  # torch imports it at the first compilation
            return None if self._others() else _NO_COMPILATION
        try:
            return _compilations(dynamo)
        except _READ_ERRORS:
            return None

    def uncompiled_reason(self) -> str:
        """Return why `compiled` returns None; "": it does not."""
        if self.compiled() is not None:
            return ""
        if "torch" in self._modules:
            return "this version of torch has no known counter of compilations"
        others = " and ".join(self._others())
        return f"{others} may compile, and only torch's compilations are counted"

    def _others(self) -> list[str]:
        """Return the compilers of a process that has not imported torch."""
        if "torch" in self._modules:
            return []
        return [name for name in _OTHER_COMPILERS if name in self._modules]


def _compilations(dynamo: ModuleType) -> Compiled:
    """Return the compiler's counters; reading adds no entries to them."""
    counters, times = dynamo.counters, dynamo.compilation_time_metrics
    frames = next((times[name] for name in _FRAME_TIMES if name in times), None)
    count = int(counters.get("stats", {}).get("unique_graphs", 0))
    return Compiled(
        count=count,
        graph_breaks_count=sum(counters.get("graph_break", {}).values()),
        time_s=math.fsum(frames or ()) if frames or not count else None,
    )
