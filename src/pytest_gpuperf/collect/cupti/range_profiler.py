"""CUPTI's range profiler: counters of kernels and ranges, in this process."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from pytest_gpuperf.collect.cupti.libcupti import (
    ALL_CACHES,
    AUTO_RANGE,
    GREW,
    KERNEL_REPLAY,
    NO_CACHES,
    RANGE,
    USER_RANGE,
    USER_REPLAY,
    Context,
    Libcupti,
    load,
    metric_names,
)
from pytest_gpuperf.collect.cupti.metric_host import CounterValue, MetricHost
from pytest_gpuperf.errors import CollectError, MeasureError
from pytest_gpuperf.model.counters import CounterMode
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Note, Void, VoidCode
from pytest_gpuperf.model.sample import Source

# Only ranges of this nesting level are counted.
_OUTERMOST = 1
# Separates the names of nested ranges.
_DELIMITER = b"/"


class RangeSession:
    """
    A range profiler object of libcupti.

    Seen on an H200 (libcupti 13.0).

    Args:
        library: The libcupti.

        host: The configured metrics.

        context: The context in which work is counted.

        max_ranges: The maximum number of ranges, >= 1.

        cache: NO_CACHES or ALL_CACHES.

    Attributes:
        clock: The state of the device's clock before counting, or None if unknown.

        image: The counter data.

        names: The ranges of the current run of the body, in order.
    """

    def __init__(
        self,
        library: Libcupti,
        host: MetricHost,
        context: Context,
        max_ranges: int,
        cache: int,
    ) -> None:
        self._library = library
        self._host = host
        self._max_ranges = max_ranges
        self.clock = library.clock_state(context)
        # The field does not exist before 13.4.
        fields = {"cacheControlMode": cache} if cache else {}
        self._handle = library.call(
            f"{RANGE}Enable", ctx=context.handle, **fields
        ).pRangeProfilerObject
        self.image = ctypes.create_string_buffer(1)
        self.names: list[str] = []
        self._is_inside = False

    def make_room(self) -> None:
        """Allocate the counter data."""
        names = metric_names(self._host.metrics)
        size = self._call(
            "GetCounterDataSize",
            pMetricNames=names,
            numMetrics=len(names),
            maxNumOfRanges=self._max_ranges,
            maxNumRangeTreeNodes=self._max_ranges,
        ).counterDataSize
        self.image = ctypes.create_string_buffer(size)
        self._call(
            "CounterDataImageInitialize",
            counterDataSize=size,
            pCounterData=ctypes.addressof(self.image),
        )

    def configure(self, kind: int, replay: int) -> None:
        """Set the kind of ranges and the replay mode. libcupti keeps track of the passes."""
        self._call(
            "SetConfig",
            configSize=len(self._host.image),
            pConfig=ctypes.addressof(self._host.image),
            counterDataImageSize=len(self.image),
            pCounterDataImage=ctypes.addressof(self.image),
            range=kind,
            replayMode=replay,
            maxRangesPerPass=self._max_ranges,
            numNestingLevels=_OUTERMOST,
            minNestingLevel=_OUTERMOST,
            passIndex=0,
            targetNestingLevel=_OUTERMOST,
        )

    def start(self) -> None:
        """Start counting a run of the body."""
        self.names = []
        self._call("Start")

    def stop(self) -> bool:
        """End a run of the body, and return True if all passes are complete."""
        return bool(self._call("Stop").isAllPassSubmitted)

    @contextlib.contextmanager
    def ranged(self, name: str) -> Iterator[None]:
        """
        Count the work inside the block as a range.

        Raises:
            MeasureError: The range is nested, or a range of this name ran before.
        """
        if self._is_inside:
            message = (
                f"range {name!r} is inside another range, and only outer ones count"
            )
            remedy = "end a range before the next one begins"
            raise MeasureError(message, remedy=remedy)
        if name in self.names:
            message = f"range {name!r} began twice in one run of the body"
            raise MeasureError(message, remedy="give each range a name of its own")
        self._call("PushRange", pRangeName=name.encode())
        self.names.append(name)
        self._is_inside = True
        try:
            yield
        except BaseException:  # An error of PopRange must not hide this one.
            with contextlib.suppress(CollectError):
                self._call("PopRange")
            raise
        finally:
            self._is_inside = False
        self._call("PopRange")

    def decode(self) -> int:
        """Fetch the counts from the hardware, and return the number of dropped ranges."""
        return int(self._call("DecodeData").numOfRangeDropped)

    def ranges_count(self) -> int:
        """Return the number of counted ranges."""
        return int(self._image_call("GetCounterDataInfo").numTotalRanges)

    def name(self, index: int) -> str:
        """Return the name of a range, or the index as text if the range has no name."""
        answer = self._image_call(
            "CounterDataGetRangeInfo", rangeIndex=index, rangeDelimiter=_DELIMITER
        )
        return (answer.rangeName or str(index).encode()).decode()

    def disable(self) -> None:
        """End the session."""
        self._call("Disable")

    def _call(self, function: str, **fields: Any) -> Any:  # noqa: ANN401 - see Libcupti.ask
        return self._library.call(
            f"{RANGE}{function}", pRangeProfilerObject=self._handle, **fields
        )

    def _image_call(self, function: str, **fields: Any) -> Any:  # noqa: ANN401 - see Libcupti.ask
        return self._library.call(
            f"{RANGE}{function}",
            pCounterDataImage=ctypes.addressof(self.image),
            counterDataImageSize=len(self.image),
            **fields,
        )


Ranged = Callable[[str], AbstractContextManager[None]]

_UNHELD_CLOCKS = frozenset({None, "unlocked"})


class CountedRange(Frozen, frozen=True, kw_only=True):
    """
    The counters of one kernel or range.

    Attributes:
        name: The range's name, or the index of a kernel in the order of execution, from
            "0".

        metrics: The counters by CUPTI's own names.
    """

    name: str
    metrics: Mapping[str, CounterValue]


class Counted(Frozen, frozen=True, kw_only=True):
    """
    The counters of a body.

    Attributes:
        ranges: In the order of execution, at least one.

        mode: The replay mode, cache mode and clock mode.

        tool: The tool with its version: "cupti 13.4".

        passes_count: Number of runs of each kernel, or of the body.

        source: Always "cupti".

        notes: Remarks for the reader.

        void: Why the counters must not be judged, or None if they may.
    """

    ranges: tuple[CountedRange, ...]
    mode: CounterMode
    tool: str
    passes_count: int
    source: str = Source.CUPTI
    notes: tuple[Note, ...] = ()
    void: Void | None = None

    def facts(self) -> dict[str, str]:
        """Return the facts that two comparable results share, by name."""
        facts = {
            "tool_version": self.tool,
            "replay_mode": self.mode.replay,
            "cache_control": self.mode.cache,
            "clock_control": self.mode.clock,
        }
        return {name: text for name, text in facts.items() if text is not None}


class RangeProfiler:
    """
    Counts metrics of the work of a body on this thread's GPU.

    Clocks are not changed. No other tool may profile the GPU at the same time.

    H200, libcupti 13.0: kernels and ranges, with 1 and with 8 passes. *Unverified on
    hardware:* emptied caches, which need libcupti 13.4.

    Args:
        metrics: Full names, as `dram__bytes.sum`, at least one.

        synchronize: Waits until the device is idle.

        max_ranges: The maximum number of kernels or ranges, >= 1. Further ranges are
            dropped, and the result is then void.

        cache: "all" to empty the L2 before each pass, which needs libcupti 13.4, or "none"
            to leave the L2 unchanged.

        library: The libcupti to use, or None for the libcupti of this process.

    Attributes:
        passes_count: Number of runs of each kernel, or of the body, >= 1.

    Raises:
        CollectError: This GPU or this user cannot count.

        ConfigError: The chip lacks some of the metrics.
    """

    def __init__(
        self,
        metrics: Sequence[str],
        *,
        synchronize: Callable[[], None],
        max_ranges: int = 256,
        cache: str = "none",
        library: Libcupti | None = None,
    ) -> None:
        mistakes = [
            mistake
            for is_wrong, mistake in (
                (not metrics, "metrics is empty"),
                (max_ranges < 1, f"max_ranges={max_ranges} is below 1"),
                (cache not in {"all", "none"}, f"cache={cache!r} is not a cache mode"),
            )
            if is_wrong
        ]
        if mistakes:
            remedy = 'give metrics, max_ranges >= 1 and cache="all" or "none"'
            raise MeasureError("; ".join(mistakes), remedy=remedy)
        self._library = library or load()
        self._synchronize = synchronize
        self._max_ranges = max_ranges
        self._context = self._library.context()
        device = self._context.device
        self._notes = self._library.require_support(device)
        chip = self._library.chip(device)
        self._host = MetricHost(self._library, chip, metrics)
        self.passes_count = self._host.passes_count
        self._units = self._host.units()
        self._cache = cache
        if cache == "all" and self._library.version < GREW[f"{RANGE}Enable"]:
            text = (
                f"{self._library.name} does not empty the caches before a pass (13.4 and"
                " later do): each pass starts with those of the pass before"
            )
            self._notes = (*self._notes, Note(code="cache-control", text=text))
            self._cache = "none"

    def close(self) -> None:
        """Free the resources of libcupti. May be called repeatedly."""
        self._host.close()

    def count_kernels(
        self, body: Callable[[], object], *, launches_graphs: bool = False
    ) -> Counted:
        """
        Count all kernels of a body separately. The body runs once.

        Each kernel runs `passes_count` times, alone, with its memory restored in
        between, so that kernels no longer overlap.

        Args:
            body: Launches the kernels, in this thread.

            launches_graphs: True if the body launches CUDA graphs, whose kernels cannot be
                distinguished.

        Raises:
            MeasureError: The kernels cannot be replayed one by one.

            CollectError: The body launched no kernel, or libcupti refused.
        """
        error = kernel_replay_error(os.environ, launches_graphs=launches_graphs)
        if error is not None:
            raise error
        with self._enabled() as session:
            session.configure(AUTO_RANGE, KERNEL_REPLAY)
            session.start()
            body()
            self._synchronize()
            missing = None
            if not session.stop():
                missing = Void(
                    code=VoidCode.PASSES_MISSING,
                    reason="libcupti did not complete all of"
                    f" {self.passes_count} passes",
                    remedy="count fewer metrics",
                )
            return self._counted(session, "kernel", self.passes_count, missing)

    def count_ranges(self, body: Callable[[Ranged], object]) -> Counted:
        """
        Count named ranges of a body, which is repeated until all passes are done.

        Memory is not restored between passes, so that the body must do the same work
        each time. Kernels overlap as usual.

        Args:
            body: Called with the context manager of ranges: `with ranged("forward"): ...`.

        Raises:
            MeasureError: A later run began other ranges, or the body began nested
                ranges or one range twice.

            CollectError: The body began no range, libcupti refused, or libcupti needs
                more passes than it announced.
        """
        with self._enabled() as session:
            session.configure(USER_RANGE, USER_REPLAY)
            names: list[str] = []
            runs_count, is_done = 0, False
            while not is_done:
                # With one nesting level, a run completes one pass.
                if runs_count == 2 * self.passes_count:
                    message = (
                        f"{runs_count} runs of the body did not complete"
                        f" {self.passes_count} passes"
                    )
                    remedy = "count fewer metrics, or the kernels instead"
                    raise CollectError(message, remedy=remedy)
                session.start()
                body(session.ranged)
                self._synchronize()
                is_done = session.stop()
                runs_count += 1
                names = names if runs_count > 1 else session.names
                if session.names != names:
                    first, later = (
                        ", ".join(run) or "no range" for run in (names, session.names)
                    )
                    message = (
                        f"run {runs_count} of the body began {later}, and the first run"
                        f" {first}"
                    )
                    remedy = "begin the same ranges in every run of the body"
                    raise MeasureError(message, remedy=remedy)
            return self._counted(session, "user", runs_count)

    @contextlib.contextmanager
    def _enabled(self) -> Iterator[RangeSession]:
        """Yield a session. An error at its end does not hide an error inside it."""
        mode = ALL_CACHES if self._cache == "all" else NO_CACHES
        session = RangeSession(
            self._library, self._host, self._context, self._max_ranges, mode
        )
        try:
            session.make_room()
            yield session
        except BaseException:
            with contextlib.suppress(CollectError):
                session.disable()
            raise
        session.disable()

    def _counted(
        self,
        session: RangeSession,
        replay: str,
        passes_count: int,
        missing: Void | None = None,
    ) -> Counted:
        dropped_count = session.decode()
        ranges = tuple(
            CountedRange(
                name=session.name(index),
                metrics=self._host.values(session.image, index, self._units),
            )
            for index in range(session.ranges_count())
        )
        if not ranges and replay == "kernel":
            message = "nothing was counted: the body launched no kernel in this context"
            remedy = "launch one in the body, on the GPU of this thread"
            raise CollectError(message, remedy=remedy)
        if not ranges:
            message = "nothing was counted: the body began no range"
            remedy = 'put the counted code into ranged("name")'
            raise CollectError(message, remedy=remedy)
        clock, later = session.clock, self._library.clock_state(self._context)
        return Counted(
            ranges=ranges,
            mode=CounterMode(replay=replay, cache=self._cache, clock="none"),
            tool=self._library.name,
            passes_count=passes_count,
            notes=(*self._notes, *_notes(clock, ranges)),
            void=missing or _void(dropped_count, self._max_ranges, clock, later),
        )


def kernel_replay_error(
    environment: Mapping[str, str], *, launches_graphs: bool
) -> MeasureError | None:
    """
    Return an error if kernels cannot be replayed separately, or None.

    Args:
        environment: The environment variables of this process.

        launches_graphs: True if CUDA graphs are launched.
    """
    size = environment.get("WORLD_SIZE", "")
    remedy = "count ranges of the body, which is repeated as a whole"
    if size.isdecimal() and int(size) > 1:
        message = (
            "kernel replay would hang in kernels that wait for other ranks"
            f" (WORLD_SIZE is {size})"
        )
        return MeasureError(message, remedy=f"{remedy}, or profile one process")
    if launches_graphs:
        message = "kernel replay does not distinguish the kernels of a CUDA graph"
        return MeasureError(message, remedy=f"{remedy}, or launch without graphs")
    return None


def _void(
    dropped_count: int, max_ranges: int, clock: str | None, later: str | None
) -> Void | None:
    if dropped_count:
        subject = "ranges were" if dropped_count > 1 else "range was"
        return Void(
            code=VoidCode.DROPPED_RANGES,
            reason=f"{dropped_count} {subject} dropped: the limit was {max_ranges}",
            remedy="raise max_ranges, or count a smaller body",
        )
    if clock == later:
        return None
    return Void(
        code=VoidCode.CLOCK_CONTROL_MOVED,
        reason=f"the clock was {clock or 'unknown'} before counting and"
        f" {later or 'unknown'} after it",
        remedy="do not change the clock while it counts",
    )


def _notes(clock: str | None, ranges: Sequence[CountedRange]) -> list[Note]:
    notes = []
    if clock not in _UNHELD_CLOCKS:
        text = f"the clock is {clock} by another tool; it is left as it is"
        notes.append(Note(code="clock-held", text=text))
    absent = [
        name
        for name in ranges[0].metrics
        if all(counted.metrics[name].value is None for counted in ranges)
    ]
    if absent:
        text = (
            f"no value of {', '.join(absent)}: the hardware counted nothing, or it is"
            " 0 / 0"
        )
        notes.append(Note(code="absent-counters", text=text))
    return notes
