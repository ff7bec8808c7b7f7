"""Observers of a measurement, apart from timing: NVML, CUPTI, memory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pytest_gpuperf.collect.base import DeviceTimer, TimedCall, Timing, calls, settle
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.metric import Kind, gpu_metrics
from pytest_gpuperf.model.record import Void
from pytest_gpuperf.model.sample import CacheMode, Source

if TYPE_CHECKING:
    from pytest_gpuperf.collect.cupti.activity import ActivityCollector
    from pytest_gpuperf.collect.memory import MemoryUse, MemoryWatch
    from pytest_gpuperf.collect.nvml.deltas import Deltas
    from pytest_gpuperf.collect.nvml.library import Board
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.measure.time_lines import TelemetrySpan, TimeLines
    from pytest_gpuperf.model.activity import Trace
    from pytest_gpuperf.model.telemetry import DeviceDeltas, SecondPass


def _nothing() -> None:
    """Do nothing."""


class Observations(msgspec.Struct, kw_only=True):
    """
    Everything observed in a measurement apart from its time. None means not observed.

    Attributes:
        device_used: Whether a device was in use at the end.

        memory: Memory used by a call or by the block.

        trace: The activity of the GPU in a call or in the block.

        void: The reason why the trace must not be judged, or None.

        blind: The reason why GPU activity is not recorded, or None if CUPTI records it.

        deltas: The counts of the sensors over the whole measurement.

        sensors: The reader of the sensors during the measurement.

        second: The cost of calls without a gap between them.

        span: The part of the device's time line covered by the measurement.

        unrepeated: The reason, as a fragment, why there is no second pass, or "" if not
            requested.

        begins: Called right before the body. Device work pending until then does not belong
            to the body.

        returned: Called right after the body, for the same reason.
    """

    device_used: bool = False
    memory: MemoryUse | None = None
    trace: Trace | None = None
    void: Void | None = None
    blind: Gap | None = None
    deltas: DeviceDeltas | None = None
    sensors: Deltas | None = None
    second: SecondPass | None = None
    span: TelemetrySpan | None = None
    unrepeated: str = ""
    begins: Callable[[], None] = _nothing
    returned: Callable[[], None] = _nothing


class MeasuredCall(NamedTuple):
    """
    A timed call, with everything needed to repeat it.

    Attributes:
        request: The function to call.

        timing: The timing of the timed calls.

        observations: Everything observed in the measurement apart from its time.
    """

    request: TimedCall
    timing: Timing
    observations: Observations


_NO_ROOM = Gap(
    code=GapCode.UNSUPPORTED,
    reason="memory had no room for a second result, and the test may still use the first",
    remedy="measure it on less data, or return less",
)
_CUPTI_UNASKED = Gap(
    code=GapCode.NOT_ASKED,
    reason="the cupti collector is not among those asked for",
    remedy="add cupti to --gpuperf-collectors",
)


class Observers:
    """
    The observers of one process.

    Args:
        site: The site of this process. Failing collectors are noted there as lost.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._runtime = site.runtime
        # Blocks, loops and calls being measured.
        self.open_count = 0
        self._timers: tuple[DeviceTimer, ...] | None = None
        self._activity: ActivityCollector | None = None
        self._asks_cupti = self._asked(Source.CUPTI)
        # CUPTI is released until the next measurement.
        self._rests = False
        # torch's profiler was started, or reported as alone.
        self._met_kineto = False
        self._time_lines: TimeLines | None = None
        if site.config.telemetry is not None:
            # Most runs have no time line.
            from pytest_gpuperf.measure.time_lines import TimeLines

            self._time_lines = TimeLines(site, self._board, site.config.telemetry)
        self._open_watches: list[MemoryWatch] = []
        # By the UUID of the device.
        self._opened: dict[str, Board | None] = {}
        # By the UUID of the device, and by the use of GPM averages.
        self._free_deltas: dict[tuple[str, bool], list[Deltas]] = {}

    # Timers of the device.

    @property
    def timers(self) -> tuple[DeviceTimer, ...]:
        """The device timers, the best first. Opened on first use."""
        # Another process may have taken CUPTI.
        _ = self.activity
        if self._timers is None:
            self._timers = tuple(self._find_timers())
        return self._timers

    def _find_timers(self) -> Iterator[DeviceTimer]:
        if self.activity is not None:
            from pytest_gpuperf.collect.cupti.activity import ActivityTimer

            yield ActivityTimer(self.activity)
        site = self._site
        if not self._asked(Source.EVENTS):
            return
        named = Source.EVENTS in site.config.collectors
        if not named and site.device() is None and "torch" not in sys.modules:
            return  # The process may not use a device at all.
        if site.devices.confidential:
            message = "confidential computing is on: CUDA events give wrong times"
            remedy = "measure with cupti, which needs its developer tools, or with host"
            error = CollectorUnavailableError(message, remedy=remedy)
            self._lose(Source.EVENTS, error)
            return
        from pytest_gpuperf.collect.timing.events import EventTimer, find_events

        yield EventTimer(
            find_events(), site.clock.now_ns, cpu_ns=site.clock.thread_cpu_ns
        )

    @property
    def activity(self) -> ActivityCollector | None:
        """The collector of GPU activity, or None if not requested, absent or held elsewhere."""
        if (
            self._activity is None
            and self._asks_cupti
            and Source.CUPTI not in self._site.absent
            and Source.CUPTI not in self._site.lost
        ):
            from pytest_gpuperf.collect.cupti.activity import ActivityCollector

            self._activity = ActivityCollector(
                self._runtime.synchronize, device_pids=self._device_pids
            )
            self._rests = True
        if self._rests and self._activity is not None:
            try:
                self._activity.open()
                if "torch" in sys.modules and not self._met_kineto:
                    self._met_kineto = True
                    self._meet_kineto(self._activity)
            except CollectorUnavailableError as error:
                self._lose(Source.CUPTI, error)
                self._activity = self._timers = None
            self._rests = False
        return self._activity

    @property
    def loaded_code(self) -> tuple[bytes, ...]:
        """The cubins that the driver has loaded while CUPTI was open, as far as known."""
        return () if self._activity is None else self._activity.modules.contents

    def _meet_kineto(self, activity: ActivityCollector) -> None:
        """Let torch's profiler subscribe first, or report that it excludes this plugin."""
        from pytest_gpuperf.collect.cupti import kineto

        use = kineto.kineto_use()
        if use is kineto.KinetoUse.NONE:
            return
        if not activity.calls.shared:
            self._site.remark(Source.CUPTI, kineto.EXCLUDED)
            return
        if kineto.is_profiling():
            return  # Another start would end the profile of the tests.
        # Its first start fails for good while another subscription exists.
        activity.close()
        remark = kineto.start_kineto(self._site.clock.now_ns)
        self._site.remark(Source.CUPTI, remark)
        activity.open()

    def rest(self) -> None:
        """Release CUPTI until the next measurement, so that a test can use a profiler."""
        if self._activity is not None and not self.open_count:
            self._activity.close()
            self._rests = True

    @property
    def sm_clock_hz(self) -> Callable[[], float | None] | None:
        """A function that reads the current SM clock [Hz], or None if unreadable."""
        if self._board() is None:
            return None

        def read() -> float | None:
            board = self._board()
            return None if board is None else board.sm_clock_hz()

        return read

    # Observations apart from time.

    @contextlib.contextmanager
    def sensing(self) -> Iterator[Observations]:
        """
        Read the sensors around a measurement.

        Yields:
            The observations. The readings are available after the block.
        """
        observations = self.begin()
        try:
            yield observations
        finally:
            self.end(observations)

    def begin(self) -> Observations:
        """Start the sensors of the device that a measurement may come to use."""
        observations = Observations()
        if self._site.device() is not None:
            if self.activity is None:
                observations.blind = _CUPTI_UNASKED
                if self._asked(Source.CUPTI):
                    gaps = {**self._site.absent, **self._site.lost}
                    observations.blind = gaps.get(Source.CUPTI)
            if self._time_lines is not None:
                observations.span = self._time_lines.begin()
            observations.sensors = self._deltas()
            if observations.sensors is not None:
                observations.sensors.begin()
        self.open_count += 1
        return observations

    def end(self, observations: Observations) -> None:
        """Read the sensors after a measurement."""
        self.open_count -= 1
        if observations.span is not None:
            observations.span.end()
        observations.device_used = self._runtime.active()
        sensors, observations.sensors = observations.sensors, None
        if sensors is not None:
            counts = sensors.end()
            self._free(sensors)
            observations.deltas = counts if observations.device_used else None

    @contextlib.contextmanager
    def watching(self) -> Iterator[Observations]:
        """Observe a block that is timed. Nothing is called in the block by this method."""
        with self.sensing() as observations, self._looking(observations, calling=False):
            yield observations

    def call(
        self,
        request: TimedCall,
        observations: Observations,
        *,
        result_kept: bool = False,
    ) -> None:
        """
        Observe an additional call that is not timed. Its result is dropped.

        Args:
            request: The function to call.

            observations: Receives the observations, or the reason why there are none.

            result_kept: Whether the result of a timed call is kept during this call.
        """
        if not observations.device_used:
            return
        call = calls(request)()
        # As for the timed calls.
        if request.cache == CacheMode.COLD:
            self._runtime.flush_l2()
        try:
            with self._looking(
                observations, calling=True, result_kept=result_kept
            ) as result:
                observations.begins()
                result.append(call())
                observations.returned()
                settle(result[0])
                # Also releases arguments made by setup.
                del call
        except Exception as error:
            # The error of torch and cupy. The timed calls had enough memory, because
            # nothing was kept.
            if not result_kept or type(error).__name__ != "OutOfMemoryError":
                raise
            from pytest_gpuperf.collect.memory import MemoryUse

            observations.blind = _NO_ROOM
            observations.memory = MemoryUse(
                reason=_NO_ROOM.reason, remedy=_NO_ROOM.remedy
            )

    def second_pass(
        self, request: TimedCall, observations: Observations, metrics: Sequence[str]
    ) -> None:
        """
        Call without gaps, for metrics measured only in that way.

        Nothing is called if the test is not judged by such a metric.

        Args:
            request: The function to call.

            observations: Receives the result.

            metrics: The metrics that the test is judged by.
        """
        judged = observations.device_used and any(
            metric in metrics for metric in gpu_metrics(Source.NVML, Kind.MEASURE)
        )
        if not judged:
            return
        if request.iterations is not None:
            observations.unrepeated = "the test fixes how often it is called"
            return
        # Flushes and waits would dominate GPM's averages. Here they only cover calls,
        # for longer than the 0.1 s that GPM needs.
        deltas = self._deltas(gpm=True)
        if deltas is None:
            return
        from pytest_gpuperf.collect.nvml.deltas import second_pass

        next_call = calls(request)
        observations.second = second_pass(
            lambda: next_call()(),  # noqa: PLW0108 - each call has arguments of its own
            deltas,
            self._site.clock,
            self._runtime.synchronize,
        )
        self._free(deltas, gpm=True)

    @contextlib.contextmanager
    def _looking(
        self, observations: Observations, *, calling: bool, result_kept: bool = False
    ) -> Iterator[list[object]]:
        """
        Observe memory and activity in a block. Exceptions of the block pass through.

        The yielded list takes the result. It is released before memory is read.
        """
        result: list[object] = []
        if self._site.device() is None and not self._runtime.active():
            # Nothing is loaded in this case.
            yield result
            return
        from pytest_gpuperf.collect.memory import MemoryWatch

        for outer in self._open_watches:
            outer.keep()
        watch = MemoryWatch()
        self._open_watches.append(watch)
        watch.begin(calling=calling)
        try:
            with self._window(observations):
                yield result
            self._runtime.synchronize()
            watch.release_result(result, earlier_alive=result_kept)
        except BaseException:
            result.clear()
            watch.cancel()
            raise
        finally:
            self._open_watches.remove(watch)
        if self._runtime.active():
            observations.memory = watch.end()

    @contextlib.contextmanager
    def _window(self, observations: Observations) -> Iterator[None]:
        if self.activity is None:
            yield
            return
        with self.activity.window() as window:
            observations.begins, observations.returned = (
                window.body_begins,
                window.body_returned,
            )
            yield
        observations.void = window.void
        if window.void is None:
            observations.trace = window.trace(self._site.launch_sink)

    def close(self) -> None:
        """Close everything opened to observe the device."""
        self._timers = None
        if self._time_lines is not None:
            self._time_lines.close()
        if self._activity is not None:
            self._activity.close()
            self._activity, self._rests = None, False
        for deltas in chain.from_iterable(self._free_deltas.values()):
            deltas.close()
        for board in self._opened.values():
            if board is not None:
                board.close()
        self._free_deltas.clear()
        self._opened.clear()

    # State and resources.

    def _asked(self, name: str) -> bool:
        collectors = self._site.config.collectors
        return not collectors or name in collectors

    def _usable(self, name: str) -> bool:
        site = self._site
        return self._asked(name) and name not in site.absent and name not in site.lost

    def _lose(self, name: str, error: CollectorUnavailableError) -> None:
        self._site.lost[name] = Gap.of(error)

    def _device_pids(self) -> list[int]:
        """Return the processes known to use the device, or [] if unknown."""
        board = self._board()
        if board is None:
            return []
        processes = board.call("processes", "nvmlDeviceGetComputeRunningProcesses")
        return [int(process.pid) for process in processes or ()]

    def _deltas(self, *, gpm: bool = False) -> Deltas | None:
        board = self._board()
        if board is None:
            return None
        from pytest_gpuperf.collect.nvml.deltas import Deltas

        free = self._free_deltas.get((board.uuid, gpm))
        return free.pop() if free else Deltas(board, self._site.clock, gpm=gpm)

    def _free(self, deltas: Deltas, *, gpm: bool = False) -> None:
        self._free_deltas.setdefault((deltas.board.uuid, gpm), []).append(deltas)

    def _board(self) -> Board | None:
        device = self._site.device()
        if device is None or not self._usable(Source.NVML):
            return None
        uuid = self._runtime.device_uuid() or device.uuid
        if uuid not in self._opened:
            from pytest_gpuperf.collect.nvml.library import open_board

            self._opened[uuid] = None
            try:
                self._opened[uuid] = open_board(uuid)
            except CollectorUnavailableError as error:
                self._lose(Source.NVML, error)
        return self._opened[uuid]
