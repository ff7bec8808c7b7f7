"""What looks on while a test is measured: NVML, CUPTI, memory."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pytest_gpuperf.collect.base import calls, settle
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.gap import Gap, GapCode

if TYPE_CHECKING:
    from pytest_gpuperf.collect.base import DeviceTimer, TimedCall, Timing
    from pytest_gpuperf.collect.cupti.activity import ActivityCollector
    from pytest_gpuperf.collect.memory import MemoryUse, MemoryWatch
    from pytest_gpuperf.collect.nvml.deltas import Deltas
    from pytest_gpuperf.collect.nvml.library import Board
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.measure.telemetry import Span, TimeLines
    from pytest_gpuperf.model.activity import Trace
    from pytest_gpuperf.model.record import Void
    from pytest_gpuperf.model.sensors import DeviceDeltas, SecondPass

__all__ = ["Again", "Observed", "Observers"]


def _nobody() -> None:
    """Tell nobody."""


class Observed(msgspec.Struct, kw_only=True):
    """
    What was seen of a measurement besides its time; None: nobody looked, or could.

    Attributes:
        device_used: Whether a device was in use at the end.

        memory: What a call, or the block, took.

        trace: What the GPU did in a call, or in the block.

        void: Why that must not be judged; None: it may.

        blind: Why nobody sees what the GPU does; None: CUPTI does.

        deltas: What its sensors counted over the whole measurement.

        second: What calls without a gap between them cost.

        span: Its part of the device's time line.

        unrepeated: Why there were none, as a fragment; "": nobody asked.

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
    span: Span | None = None
    unrepeated: str = ""
    begins: Callable[[], None] = _nobody
    returned: Callable[[], None] = _nobody


class Again(NamedTuple):
    """
    What it takes to make a measured call once more.

    Attributes:
        request: What to call.

        timing: What its timed calls gave.

        observed: What was seen of it besides.
    """

    request: TimedCall
    timing: Timing
    observed: Observed


_ENERGY = frozenset({"energy", "power"})
_CUPTI, _NVML = "cupti", "nvml"
_NO_ROOM = Gap(
    code=GapCode.UNSUPPORTED,
    reason="a second result had no room beside the first, which the test may ask for",
    remedy="measure it on less, or return less of it",
)
_UNASKED = Gap(
    code=GapCode.NOT_ASKED,
    reason="the cupti collector is not among those asked for",
    remedy="add cupti to --gpuperf-collectors",
)


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
        self._open_watches: list[MemoryWatch] = []
        self._opened: dict[str, Board | None] = {}  # by the device's UUID
        # likewise, and by whether they take GPM's averages
        self._free_deltas: dict[tuple[str, bool], list[Deltas]] = {}

    # what times the device's side of samples

    @functools.cached_property
    def timers(self) -> tuple[DeviceTimer, ...]:
        """The timers of the device's side, the best first."""
        found: list[DeviceTimer] = []
        if self.activity is not None:
            from pytest_gpuperf.collect.cupti.activity import ActivityTimer

            found.append(ActivityTimer(self.activity))
        if self._asked("events") and self._may_use_device():
            from pytest_gpuperf.collect.timing.events import EventTimer, find_events

            found.append(EventTimer(find_events(), self._site.clock.now_ns))
        return tuple(found)

    @functools.cached_property
    def activity(self) -> ActivityCollector | None:
        """The one that sees what the GPU does; None: not asked for, absent, or held."""
        if not self._usable(_CUPTI):
            return None
        from pytest_gpuperf.collect.cupti.activity import ActivityCollector

        collector = ActivityCollector(
            self._runtime.synchronize, device_pids=self._device_pids
        )
        try:
            collector.open()
        except CollectorUnavailableError as error:
            self._lose(_CUPTI, error)
            return None
        return collector

    @property
    def sm_clock_hz(self) -> Callable[[], float | None] | None:
        """What reads the clock of the device in use now [Hz]; None: nobody can."""
        if self._board() is None:
            return None

        def read() -> float | None:
            board = self._board()
            return None if board is None else board.sm_clock_hz()

        return read

    # what a measurement costs besides its time

    @contextlib.contextmanager
    def sensing(self) -> Iterator[Observed]:
        """Read the sensors around a measurement; what is yielded has them at its end."""
        observed = Observed(blind=self._blindness())
        span = self._span()
        deltas = self._deltas()
        if deltas is not None:
            deltas.begin()
        self.open_count += 1
        try:
            yield observed
        finally:
            self.open_count -= 1
            if span is not None:
                span.end()
                observed.span = span
            observed.device_used = self._runtime.active()
            if deltas is not None:
                found = deltas.end()
                self._free(deltas)
                observed.deltas = found if observed.device_used else None

    @contextlib.contextmanager
    def watching(self) -> Iterator[Observed]:
        """Look at a block that is timed: nothing is called in it."""
        with self.sensing() as observed, self._looking(observed, calling=False):
            yield observed

    def call(
        self, request: TimedCall, observed: Observed, *, beside: bool = False
    ) -> None:
        """
        Look at one more call, which is not timed; nobody gets its result.

        Args:
            request: What to call.

            observed: Gets what was seen, or why nothing was.

            beside: Whether the result of a timed call is kept meanwhile.
        """
        if not observed.device_used:
            return
        call = calls(request)()
        if request.cache == "cold":  # what is seen is of a call like those timed
            self._runtime.flush_l2()
        try:
            with self._looking(observed, calling=True, beside=beside) as result:
                observed.begins()
                result.append(call())
                observed.returned()
                settle(result[0])
                del call  # with arguments that setup has made
        except Exception as error:
            # torch's and cupy's: the timed calls had room, for nothing was kept
            if not beside or type(error).__name__ != "OutOfMemoryError":
                raise
            from pytest_gpuperf.collect.memory import MemoryUse

            observed.blind = _NO_ROOM
            observed.memory = MemoryUse(reason=_NO_ROOM.reason, remedy=_NO_ROOM.remedy)

    def again(
        self, request: TimedCall, observed: Observed, asked: Sequence[str]
    ) -> None:
        """
        Call without a gap for what only that can tell, where it is asked for.

        Args:
            request: What to call.

            observed: Gets what was found.

            asked: Metrics that the test is judged by.
        """
        wanted = observed.device_used and not _ENERGY.isdisjoint(asked)
        if wanted and request.iterations is not None:
            observed.unrepeated = "the test fixes how often it is called"
        if not wanted or request.iterations is not None:
            return
        # beside flushes and waits GPM's averages would be mostly of these: here alone
        # they are of the calls, and longer than the 0.1 s that GPM needs
        deltas = self._deltas(gpm=True)
        if deltas is None:
            return
        from pytest_gpuperf.collect.nvml.second_pass import second_pass

        next_call = calls(request)
        observed.second = second_pass(
            lambda: next_call()(),  # noqa: PLW0108 - each call has arguments of its own
            deltas,
            self._site.clock,
            self._runtime.synchronize,
        )
        self._free(deltas, gpm=True)

    @contextlib.contextmanager
    def _looking(
        self, observed: Observed, *, calling: bool, beside: bool = False
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
            with self._window(observed):
                yield result
            self._runtime.synchronize()
            watch.let_go(result, beside=beside)
        except BaseException:
            result.clear()
            watch.abandon()
            raise
        finally:
            self._open_watches.remove(watch)
        if self._runtime.active():
            observed.memory = watch.end()

    @contextlib.contextmanager
    def _window(self, observed: Observed) -> Iterator[None]:
        """Let CUPTI see a block."""
        if self.activity is None:
            yield
            return
        with self.activity.window() as window:
            observed.begins, observed.returned = (
                window.body_begins,
                window.body_returned,
            )
            yield
        observed.void = window.void
        if window.void is None:
            observed.trace = window.trace(self._site.launch_sink)

    def close(self) -> None:
        """Let others have what was opened."""
        self.__dict__.pop("timers", None)
        time_lines = self.__dict__.pop("_time_lines", None)
        if time_lines is not None:
            time_lines.close()
        activity = self.__dict__.pop("activity", None)
        if activity is not None:
            activity.close()
        for deltas in (each for free in self._free_deltas.values() for each in free):
            deltas.close()
        for board in self._opened.values():
            if board is not None:
                board.close()
        self._free_deltas.clear()
        self._opened.clear()

    # what there is

    def _may_use_device(self) -> bool:
        """Return whether tests may come to use a device, NVIDIA's or one of torch's."""
        named = "events" in self._site.config.collectors
        return named or self._site.device() is not None or "torch" in sys.modules

    def _blindness(self) -> Gap | None:
        """Return why CUPTI does not see what the GPU does; None: it does."""
        if self._site.device() is None or self.activity is not None:
            return None
        if not self._asked(_CUPTI):
            return _UNASKED
        return {**self._site.absent, **self._site.lost}.get(_CUPTI)

    def _asked(self, name: str) -> bool:
        """Return whether a collector may be used at all."""
        asked = self._site.config.collectors
        return not asked or name in asked

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
        found = board.ask("processes", "nvmlDeviceGetComputeRunningProcesses")
        return [int(each.pid) for each in found or ()]

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

    def _span(self) -> Span | None:
        """Return the part of a time line that begins now; None: nobody samples."""
        if self._site.config.telemetry is None or self._site.device() is None:
            return None  # and nothing is imported
        return self._time_lines.begin()

    @functools.cached_property
    def _time_lines(self) -> TimeLines:
        """The time lines of the devices that come into use."""
        from pytest_gpuperf.measure.telemetry import TimeLines

        return TimeLines(self._site, self._board)

    def _board(self) -> Board | None:
        """Return the sensors of the device in use; None: there are none."""
        device = self._site.device()
        if device is None or not self._usable(_NVML):
            return None
        uuid = self._runtime.device_uuid() or device.uuid
        if uuid not in self._opened:
            from pytest_gpuperf.collect.nvml.library import open_board

            self._opened[uuid] = None
            try:
                self._opened[uuid] = open_board(uuid)
            except CollectorUnavailableError as error:
                self._lose(_NVML, error)
        return self._opened[uuid]
