"""What looks on while a test is measured: NVML, CUPTI, memory."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from pytest_gpuperf.collect.base import DeviceTimer, TimedCall, Timing, calls, settle
from pytest_gpuperf.collect.clock import NS_PER_S
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.metric import Kind, gpu_metrics
from pytest_gpuperf.model.record import Note, Void
from pytest_gpuperf.model.sample import CacheMode, Source
from pytest_gpuperf.model.telemetry import (
    CanonicalRecord,
    DeviceDeltas,
    SecondPass,
    Sharing,
    TimeLine,
    UtilizationWindow,
)

if TYPE_CHECKING:
    from pytest_gpuperf.collect.cupti.activity import ActivityCollector
    from pytest_gpuperf.collect.memory import MemoryUse, MemoryWatch
    from pytest_gpuperf.collect.nvml.deltas import Deltas
    from pytest_gpuperf.collect.nvml.library import Board
    from pytest_gpuperf.collect.nvml.sampler import Sampler
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.model.activity import Trace

__all__ = ["MeasuredCall", "Observations", "Observers"]


def _nothing() -> None:
    """Do nothing."""


class Observations(msgspec.Struct, kw_only=True):
    """
    What was seen of a measurement besides its time; None: it was not observed.

    Attributes:
        device_used: Whether a device was in use at the end.

        memory: What a call, or the block, took.

        trace: What the GPU did in a call, or in the block.

        void: Why that must not be judged; None: it may.

        blind: Why what the GPU does is not recorded; None: CUPTI does.

        deltas: What its sensors counted over the whole measurement.

        second: What calls without a gap between them cost.

        span: Its part of the device's time line.

        unrepeated: Why there were none, as a fragment; "": they were not asked for.

        begins: Called right before the body: what waited for the device until then was
            not the body.

        returned: Called right after it, likewise.
    """

    device_used: bool = False
    memory: MemoryUse | None = None
    trace: Trace | None = None
    void: Void | None = None
    blind: Gap | None = None
    deltas: DeviceDeltas | None = None
    second: SecondPass | None = None
    span: TelemetrySpan | None = None
    unrepeated: str = ""
    begins: Callable[[], None] = _nothing
    returned: Callable[[], None] = _nothing


class MeasuredCall(NamedTuple):
    """
    A call that was timed, with what it takes to make it once more.

    Attributes:
        request: What to call.

        timing: What its timed calls gave.

        observations: What was seen of it besides.
    """

    request: TimedCall
    timing: Timing
    observations: Observations


_NO_ROOM = Gap(
    code=GapCode.UNSUPPORTED,
    reason="a second result had no room beside the first, which the test may ask for",
    remedy="measure it on less, or return less of it",
)
_CUPTI_UNASKED = Gap(
    code=GapCode.NOT_ASKED,
    reason="the cupti collector is not among those asked for",
    remedy="add cupti to --gpuperf-collectors",
)
_TELEMETRY = "telemetry"  # no collector, but lost by name as they are
_NVML_UNASKED = Gap(
    code=GapCode.COLLECTOR_UNAVAILABLE,
    reason="the nvml collector is not among those asked for",
    remedy="add nvml to --gpuperf-collectors",
)
_LONGEST_PERIODS = 2  # that one sample describes: a sampler that hung is noticed
_SAME = 0.01  # of a rate: a period is kept in whole nanoseconds
_UNSAMPLED = "the activity of SMs, tensor cores and DRAM was not sampled"
_HEALTH = "utilization.unhealthy_fraction"  # which other sensors tell
_AVERAGES = "gpm_since_s"  # the column of the sensor that knows SM, tensor and DRAM
_T = TypeVar("_T")


def _untrusted() -> CollectorUnavailableError:
    """Return why events do not time under confidential computing."""
    message = "confidential computing is on: CUDA events give wrong times"
    remedy = "measure with cupti, which needs its developer tools, or with host"
    return CollectorUnavailableError(message, remedy=remedy)


class Observers:
    """
    The observers of one process.

    Args:
        site: This process; a collector that fails is noted there as lost.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._runtime = site.runtime
        self.open_count = 0  # blocks, loops and calls that are measured right now
        self._timers: tuple[DeviceTimer, ...] | None = None
        self._activity: ActivityCollector | None = None
        self._rests = False  # CUPTI is others' until the next measurement
        self._time_lines = TimeLines(site, self._board)
        self._open_watches: list[MemoryWatch] = []
        self._opened: dict[str, Board | None] = {}  # by the device's UUID
        # likewise, and by whether they take GPM's averages
        self._free_deltas: dict[tuple[str, bool], list[Deltas]] = {}

    # what times the device's side of samples

    @property
    def timers(self) -> tuple[DeviceTimer, ...]:
        """The timers of the device's side, the best first; opened when asked for first."""
        _ = self.activity  # which somebody else may have taken meanwhile
        if self._timers is None:
            self._timers = tuple(self._find_timers())
        return self._timers

    def _find_timers(self) -> Iterator[DeviceTimer]:
        """Yield the timers that are asked for and there."""
        if self.activity is not None:
            from pytest_gpuperf.collect.cupti.activity import ActivityTimer

            yield ActivityTimer(self.activity)
        if self._asked(Source.EVENTS) and self._may_use_device():
            if self._site.devices.confidential:
                self._lose(Source.EVENTS, _untrusted())
                return
            from pytest_gpuperf.collect.timing.events import EventTimer, find_events

            yield EventTimer(find_events(), self._site.clock.now_ns)

    @property
    def activity(self) -> ActivityCollector | None:
        """The one that sees what the GPU does; None: not asked for, absent, or held."""
        if self._activity is None and self._usable(Source.CUPTI):
            from pytest_gpuperf.collect.cupti.activity import ActivityCollector

            self._activity = ActivityCollector(
                self._runtime.synchronize, device_pids=self._device_pids
            )
            self._rests = True
        if self._rests and self._activity is not None:
            try:
                self._activity.open()
            except CollectorUnavailableError as error:
                self._lose(Source.CUPTI, error)
                self._activity = self._timers = None
            self._rests = False
        return self._activity

    def rest(self) -> None:
        """Release CUPTI until the next measurement: a test may use a profiler."""
        if self._activity is not None and not self.open_count:
            self._activity.close()
            self._rests = True

    @property
    def sm_clock_hz(self) -> Callable[[], float | None] | None:
        """What reads the clock of the device in use now [Hz]; None: it cannot be read."""
        if self._board() is None:
            return None

        def read() -> float | None:
            board = self._board()
            return None if board is None else board.sm_clock_hz()

        return read

    # what a measurement costs besides its time

    @contextlib.contextmanager
    def sensing(self) -> Iterator[Observations]:
        """Read the sensors around a measurement; what is yielded has them at its end."""
        observations = Observations(blind=self._blindness())
        span = self._span()
        deltas = self._deltas()
        if deltas is not None:
            deltas.begin()
        self.open_count += 1
        try:
            yield observations
        finally:
            self.open_count -= 1
            if span is not None:
                span.end()
                observations.span = span
            observations.device_used = self._runtime.active()
            if deltas is not None:
                counts = deltas.end()
                self._free(deltas)
                observations.deltas = counts if observations.device_used else None

    @contextlib.contextmanager
    def watching(self) -> Iterator[Observations]:
        """Look at a block that is timed: nothing is called in it."""
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
        Observe one more call, which is not timed and whose result is dropped.

        Args:
            request: What to call.

            observations: Gets what was seen, or why nothing was.

            result_kept: Whether the result of a timed call is kept meanwhile.
        """
        if not observations.device_used:
            return
        call = calls(request)()
        if request.cache == CacheMode.COLD:  # as for the calls that were timed
            self._runtime.flush_l2()
        try:
            with self._looking(
                observations, calling=True, result_kept=result_kept
            ) as result:
                observations.begins()
                result.append(call())
                observations.returned()
                settle(result[0])
                del call  # with arguments that setup has made
        except Exception as error:
            # torch's and cupy's: the timed calls had room, for nothing was kept
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
        Call without a gap for what only that can tell, where it is asked for.

        Args:
            request: What to call.

            observations: Gets what was found.

            metrics: Those that the test is judged by.
        """
        judged = observations.device_used and any(
            metric in metrics for metric in gpu_metrics(Source.NVML, Kind.MEASURE)
        )
        if not judged:
            return
        if request.iterations is not None:
            observations.unrepeated = "the test fixes how often it is called"
            return
        # beside flushes and waits GPM's averages would be mostly of these: here alone
        # they are of the calls, and longer than the 0.1 s that GPM needs
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
        Look at memory and activity in a block; what it raises passes through.

        What is yielded takes the result, which is let go of before memory is read.
        """
        result: list[object] = []
        if self._site.device() is None and not self._runtime.active():
            yield result  # and nothing is loaded to look
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
        """Let CUPTI see a block."""
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
        """Close what was opened to observe the device."""
        self._timers = None
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

    # what there is

    def _may_use_device(self) -> bool:
        """Return whether tests may use a device, NVIDIA's or one of torch's."""
        named = Source.EVENTS in self._site.config.collectors
        return named or self._site.device() is not None or "torch" in sys.modules

    def _blindness(self) -> Gap | None:
        """Return why CUPTI does not see what the GPU does; None: it does."""
        if self._site.device() is None or self.activity is not None:
            return None
        if not self._asked(Source.CUPTI):
            return _CUPTI_UNASKED
        return {**self._site.absent, **self._site.lost}.get(Source.CUPTI)

    def _asked(self, name: str) -> bool:
        """Return whether a collector may be used at all."""
        collectors = self._site.config.collectors
        return not collectors or name in collectors

    def _usable(self, name: str) -> bool:
        """Return whether a collector is asked for, and may be there."""
        site = self._site
        return self._asked(name) and name not in site.absent and name not in site.lost

    def _lose(self, name: str, error: CollectorUnavailableError) -> None:
        """Note why a collector is of no use after all."""
        self._site.lost[name] = Gap.of(error)

    def _device_pids(self) -> list[int]:
        """Return the processes that are known to use the device."""
        board = self._board()
        if board is None:
            return []
        processes = board.call("processes", "nvmlDeviceGetComputeRunningProcesses")
        return [int(process.pid) for process in processes or ()]

    def _deltas(self, *, gpm: bool = False) -> Deltas | None:
        """Return readers of the sensors of the device in use; None: there are none."""
        board = self._board()
        if board is None:
            return None
        from pytest_gpuperf.collect.nvml.deltas import Deltas

        free = self._free_deltas.get((board.uuid, gpm))
        return free.pop() if free else Deltas(board, self._site.clock, gpm=gpm)

    def _free(self, deltas: Deltas, *, gpm: bool = False) -> None:
        """Keep readers for another measurement."""
        self._free_deltas.setdefault((deltas.board.uuid, gpm), []).append(deltas)

    def _span(self) -> TelemetrySpan | None:
        """Return the part of a time line that begins now; None: it is not sampled."""
        if self._site.config.telemetry is None or self._site.device() is None:
            return None  # and nothing is imported
        return self._time_lines.begin()

    def _board(self) -> Board | None:
        """Return the sensors of the device in use; None: there are none."""
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


class TimeLines:
    """
    The time lines of one process, one for each GPU that comes into use.

    Args:
        site: This process; a collector that fails is noted there as lost.

        board: Returns the sensors of the GPU in use; None: there are none.
    """

    def __init__(self, site: Site, board: Callable[[], Board | None]) -> None:
        self._site = site
        self._board = board
        self._samplers: dict[str, Sampler] = {}

    def begin(self) -> TelemetrySpan | None:
        """Return the part of a time line that begins now; None: it is not sampled."""
        lost, hz = self._site.lost, self._site.config.telemetry
        if hz is None or _TELEMETRY in lost:
            return None
        uuid = self.uuid()
        if uuid is None:
            lost[_TELEMETRY] = {**self._site.absent, **lost}.get(
                Source.NVML, _NVML_UNASKED
            )
            return None
        if uuid not in self._samplers:
            # most runs have no time line
            from pytest_gpuperf.collect.nvml.sampler import Sampler

            self._samplers[uuid] = Sampler([uuid], self._site.clock, hz=hz)
        try:
            return TelemetrySpan(self._samplers[uuid], self, uuid=uuid)
        except CollectorUnavailableError as error:
            lost[_TELEMETRY] = Gap.of(error)
            return None

    @property
    def hz(self) -> float:
        """How often each GPU was to be sampled [1/s]."""
        return self._site.config.telemetry or 0.0

    def now_s(self) -> float:
        """Return the time, by the samples' monotonic clock [s]."""
        return self._site.clock.now_ns() / NS_PER_S

    def uuid(self) -> str | None:
        """Return the GPU in use, as NVML names it; None: there is none."""
        board = self._board()
        return None if board is None else board.uuid

    def close(self) -> None:
        """Release the samplers: each ends with the last process that uses it."""
        for sampler in self._samplers.values():
            sampler.stop()
        self._samplers.clear()


class TelemetrySpan:
    """
    The part of a GPU's time line that is one measurement; it begins when it is made.

    Args:
        sampler: What samples the GPU; it is started where none does.

        lines: The time lines that it belongs to.

        uuid: The GPU.

    Raises:
        CollectorUnavailableError: The sampler cannot be started.
    """

    def __init__(self, sampler: Sampler, lines: TimeLines, *, uuid: str) -> None:
        self._sampler = sampler
        self._lines = lines
        self._uuid = self._used = uuid
        self._start_s = self._end_s = sampler.mark()

    def end(self) -> None:
        """Note that the measurement is over; no sample is waited for."""
        self._end_s = self._lines.now_s()
        self._used = self._lines.uuid() or self._uuid

    @functools.cached_property
    def windows(self) -> tuple[UtilizationWindow, ...]:
        """What the GPU did; the sample after the end is waited for. Empty: not known."""
        from pytest_gpuperf.compute.timeline import window_summary

        return self._summary(window_summary)

    @functools.cached_property
    def lines(self) -> tuple[TimeLine, ...]:
        """What its sensors said; empty: not known."""
        from pytest_gpuperf.compute.timeline import time_lines

        return self._summary(time_lines)

    def _summary(self, of: Callable[..., tuple[_T, ...]]) -> tuple[_T, ...]:
        """Return a summary of the readings; empty: the test used another GPU."""
        if self._used != self._uuid:
            return ()
        return of(
            self._records,
            start_s=self._start_s,
            end_s=self._end_s,
            longest_s=_LONGEST_PERIODS * self._sampler.period_s,
        )

    @functools.cached_property
    def _records(self) -> Sequence[CanonicalRecord]:
        """The readings; the sample after the end is waited for."""
        return self._sampler.records(self._start_s, self._end_s)

    def gap(self, metric: str) -> Gap:
        """Return why the windows do not tell a metric."""
        silent = self._sampler.silent.get(_AVERAGES)
        if metric == _HEALTH and not any(w.health_s for w in self.windows):
            return Gap(
                code=GapCode.NOT_STATED,
                reason="the GPU's temperature was not sampled",
                remedy="see what `gpuperf doctor` says of nvml",
            )
        if silent is not None and metric != _HEALTH:
            return replace(silent, reason=f"{_UNSAMPLED}: {silent.reason}")
        return Gap(
            code=GapCode.INCOMPLETE,
            reason="less than half of the measurement was sampled",
            remedy="let it take longer, or sample more often with --gpuperf-telemetry",
        )

    def notes(self, deltas: DeviceDeltas | None) -> Iterator[Note]:
        """
        Yield what a reader of the windows should know.

        Args:
            deltas: What the sensors counted over the same time; None: they were not read.
        """
        if self._used != self._uuid:
            text = (
                f"the test came to use {self._used} while {self._uuid} was"
                " sampled: what it did meanwhile is not known"
            )
            yield Note(code="utilization-elsewhere", text=text)
        elif not self.windows:
            text = "no sample of that time is left: what the GPU did meanwhile is not known"
            yield Note(code="utilization-unread", text=text)
        else:
            yield from self._shared(deltas)
            yield from self._incomplete()
            yield from self._at_another_rate()

    def _shared(self, deltas: DeviceDeltas | None) -> Iterator[Note]:
        """Yield that others computed on the GPU too."""
        if deltas is not None and deltas.sharing is Sharing.FOREIGN:
            pids = ", ".join(map(str, deltas.foreign_pids))
            several = len(deltas.foreign_pids) > 1
            text = (
                "the utilization is of the whole GPU, on which"
                f" process{'es' * several} {pids} computed too: the test's own part of"
                " it is not known"
            )
            yield Note(code="utilization-shared", text=text)

    def _incomplete(self) -> Iterator[Note]:
        """Yield why readings have no class."""
        silent = self._sampler.silent.get(_AVERAGES)
        if silent is not None and any(window.incomplete_s for window in self.windows):
            text = f"{_UNSAMPLED}: {silent.text}"
            yield Note(code="utilization-incomplete", text=text)

    def _at_another_rate(self) -> Iterator[Note]:
        """Yield a note where another process's sampler has another rate."""
        period_s, hz = self._sampler.period_s, self._lines.hz
        if period_s and abs(period_s * hz - 1) > _SAME:
            text = (
                f"the GPU was sampled {1 / period_s:.4g} times a second, not"
                f" {hz:g}: by a sampler that another process had started"
            )
            yield Note(code="telemetry-rate", text=text)
