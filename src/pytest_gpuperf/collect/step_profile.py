"""The recorder of a loop: steps, phases, layers, operations.

A span is two readings of the clock and a tuple. Everything else waits until the loop
has ended. The recorder waits for the device before and after each step, so that device
work counts in the step that launched the work. Inside a step there is no such wait,
unless the test requests it, so that spans cover the host alone. After each step, the
recorder checks for a device. The check and the bookkeeping count in no step and in no
wait.
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

_T = TypeVar("_T")
_NO_PARENT = -1


class _Stack(threading.local):
    """The open spans of a thread: number, mark, start [ns]."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.frames: list[tuple[int, Mark, int]] = []


# A step with less processor time of the process than this share has waited.
_WORKING = 0.25


@final
class StepRecorder:
    """
    Records a loop.

    Args:
        clock: Gives the time.

        runtime: Waits for the device, if there is one.

        unit: The name of a unit of work.

        units: Default number of units per step, > 0.

        warmup_count: Number of first steps that do not count, >= 0.

        waiting: When to wait for the device.

        compiler: Counts compilations, or None for torch's compiler in this process.

        memory: Counts memory, or None for torch's allocator in this process.
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
        self._process_cpu_ns = clock.process_cpu_ns
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
        # Start of the open step, or None between steps.
        self._start_ns: int | None = None
        # Processor time and loaded modules before it.
        self._cpu_ns = self._modules_count = 0
        self._running = False
        # Whether a device was in use at the last check.
        self._active = False
        self._used = False

    def begin(self, take_turn: TakeTurn = operator.not_) -> None:
        """
        Wait for the device, then begin the loop.

        Args:
            take_turn: Called after each step, outside of everything that is timed. Waits
                until the next step may begin. By default, the process does not wait.
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
        End the loop, and return the record of all steps.

        Args:
            failure: The exception that ended the loop early, or None.
        """
        if self._start_ns is not None:
            void = "it was still open when the loop ended"
            self._keep_step(self._units, void, self._now_ns())
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
        Return a context manager for a step.

        Args:
            units: Units of work of the step, > 0, or None for the loop's default.
        """
        amount = self._units if units is None else units_amount(units)
        return StepBlock(amount, self._open_step, self._close_step)

    def phase(
        self, name: str, kind: str | SpanKind | None = None
    ) -> AbstractContextManager[None]:
        """
        Return a context manager for a phase.

        Args:
            name: The name. It may be used several times in a step.

            kind: The kind of the phase, or None to derive it from a well-known name, else
                other.
        """
        try:
            return self._contexts[SpanLevel.PHASE, name, kind]
        except (KeyError, TypeError):
            # The key is new, or cannot be a name.
            return self._named(SpanLevel.PHASE, name, kind)

    def operation(
        self, name: str, kind: str | SpanKind | None = None
    ) -> AbstractContextManager[None]:
        """
        Return a context manager for an operation.

        Args:
            name: The name. It may be used several times in a step.

            kind: The kind of the operation, or None to derive it from a well-known
                name, else from the surrounding span.
        """
        try:
            return self._contexts[SpanLevel.OPERATION, name, kind]
        except (KeyError, TypeError):
            # The key is new, or cannot be a name.
            return self._named(SpanLevel.OPERATION, name, kind)

    def layer(
        self, index: int, part: str | None = None
    ) -> AbstractContextManager[None]:
        """
        Return a context manager for a layer's forward or backward pass.

        Args:
            index: The number of the layer, from 0.

            part: "forward" or "backward", or None for that of the surrounding span,
                else forward.
        """
        try:
            return self._contexts[SpanLevel.LAYER, index, part]
        except (KeyError, TypeError):
            # The key is new, or cannot be a number.
            mark = layer_mark(index, part)
            return self._context((SpanLevel.LAYER, index, part), mark)

    def data(self, loader: Iterable[_T]) -> Iterator[_T]:
        """
        Return an iterator over a loader that records the waiting time for every batch.

        Args:
            loader: Any iterable.
        """
        check_loader(loader)
        return self._fetched(loader)

    def _fetched(self, loader: Iterable[_T]) -> Iterator[_T]:
        """Yield the batches of a loader. Creating the iterator counts for the first batch."""
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

    # Spans.

    def _named(
        self, level: SpanLevel, name: str, kind: str | SpanKind | None
    ) -> SpanBlock:
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
        made = SpanBlock(mark, self._open_span, self._close_span)
        self._contexts[key] = made
        return made

    def _open_span(self, mark: Mark) -> None:
        frames = self._stack.frames
        if not frames:
            self._check_running(f"{mark.level.value} {mark.name!r}")
            inside = self._start_ns is not None or mark.kind is SpanKind.DATA
            if not inside and self._in_own_thread():
                message = f"{mark.level.value} {mark.name!r} is outside of every step"
                remedy = (
                    "put it into `with steps.step():`; only data may lie between steps"
                )
                raise MeasureError(message, remedy=remedy)
        elif mark.level is SpanLevel.LAYER:
            # The owner of operations in an inner layer would be unclear.
            for _, outer, _ in frames:
                if outer.level is SpanLevel.LAYER:
                    message = f"layer {mark.name} is inside layer {outer.name}"
                    raise MeasureError(message, remedy=f"end layer {outer.name} first")
        if self._span_waits and self._active:
            self._runtime.synchronize()
        frames.append((next(self._numbers), mark, self._now_ns()))

    def _close_span(self, mark: Mark, raised: bool) -> None:  # noqa: FBT001 - a finding, not a switch
        if self._span_waits and self._active and not raised:
            self._runtime.synchronize()
        end_ns = self._now_ns()
        stack = self._stack
        frames = stack.frames
        if not frames or frames[-1][1] is not mark:
            # The exception of the block is more informative.
            if raised:
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

    # Steps.

    def _open_step(self) -> None:
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
        self._modules_count, self._cpu_ns = len(sys.modules), self._process_cpu_ns()
        self._start_ns = self._now_ns()

    def _close_step(self, units: float, error: BaseException | None) -> None:
        """End the open step, unless already ended by the loop."""
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
        self._active = self._runtime.active()
        if self._active:
            self._used = True
            self._runtime.synchronize()

    def _keep_step(self, units: float, void: str | None, end_ns: int) -> None:
        """Record the open step. The time until the next step starts after this bookkeeping."""
        start_ns = end_ns if self._start_ns is None else self._start_ns
        cpu_ns = self._process_cpu_ns() - self._cpu_ns
        waited = not self._active and cpu_ns < _WORKING * (end_ns - start_ns)
        self._steps.append(
            EndedStep(
                begin_ns=self._begin_ns,
                start_ns=start_ns,
                end_ns=end_ns,
                units=units,
                void=void,
                compiled=self._compiler.compiled(),
                prepared=waited or len(sys.modules) > self._modules_count,
            )
        )
        self._start_ns = None
        self._take_turn(False)  # noqa: FBT003 - a loop has as many steps as its test says
        self._begin_ns = self._now_ns()

    def _check_running(self, what: str) -> None:
        if not self._running:
            message = f"{what} is outside of its loop"
            remedy = "put it into `with gpuperf.steps() as steps:`"
            raise MeasureError(message, remedy=remedy)

    def _in_own_thread(self) -> bool:
        return threading.get_ident() == self._thread


_NO_COMPILATION = Compiled(count=0, graph_breaks_count=0, time_s=0.0)
# torch's names for the compile time of a whole frame, newest first.
_FRAME_TIMES = ("_compile.compile_inner", "_compile.<locals>.compile_inner")
_READ_ERRORS = (AttributeError, KeyError, TypeError, ValueError, RuntimeError)
# Other libraries that compile at run time and do not report how often.
_OTHER_COMPILERS = (
    *("cupy", "jax", "mlx", "numba", "taichi", "tensorflow", "tinygrad", "triton"),
    *("tvm", "warp"),
)


class TorchCompiler:
    """
    The compiler of torch, if this process has imported torch.

    A process without a compiler compiles nothing. Compilations are counted as by torch
    2.13. A torch with other counters gives a reason, not an error. H200, torch 2.11: a
    step that compiles nothing has 0. *Unverified on hardware:* a step that compiles.

    Args:
        modules: The loaded modules by name, or None for those of this interpreter.
    """

    def __init__(self, modules: Mapping[str, ModuleType] | None = None) -> None:
        self._modules = sys.modules if modules is None else modules

    def compiled(self) -> Compiled | None:
        """Return the compilations since the process began, or None if unknown."""
        dynamo = self._modules.get("torch._dynamo.utils")
        # torch imports this module at the first compilation.
        if dynamo is None:
            return None if self._others() else _NO_COMPILATION
        try:
            counters, times = dynamo.counters, dynamo.compilation_time_metrics
            frames = next((times[name] for name in _FRAME_TIMES if name in times), None)
            # `get`, because a look-up would add an entry.
            count = int(counters.get("stats", {}).get("unique_graphs", 0))
            return Compiled(
                count=count,
                graph_breaks_count=sum(counters.get("graph_break", {}).values()),
                time_s=math.fsum(frames or ()) if frames or not count else None,
            )
        except _READ_ERRORS:
            return None

    def uncompiled_reason(self) -> str:
        """Return the reason that `compiled` returns None, or ""."""
        if self.compiled() is not None:
            return ""
        if "torch" in self._modules:
            return "this version of torch has no known counter of compilations"
        others = " and ".join(self._others())
        return f"{others} may compile, and only torch's compilations are counted"

    def _others(self) -> list[str]:
        if "torch" in self._modules:
            return []
        return [name for name in _OTHER_COMPILERS if name in self._modules]
