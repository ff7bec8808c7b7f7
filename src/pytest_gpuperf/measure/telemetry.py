"""The time line of the GPU in use, and each measurement's part of it.

Imported when the first test is measured where a time line was asked for, and no sooner.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.nvml.sampler import Sampler
from pytest_gpuperf.compute.timeline import window_summary
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import Note
from pytest_gpuperf.model.sensors import Company, DeviceDeltas

if TYPE_CHECKING:
    from pytest_gpuperf.collect.nvml.library import Board
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.model.sensors import UtilizationWindow

__all__ = ["Span", "TimeLines"]

_NAME = "telemetry"  # no collector, but lost by name as they are
_UNASKED = Gap(
    code=GapCode.NOT_ASKED,
    reason="the nvml collector is not among those asked for",
    remedy="add nvml to --gpuperf-collectors",
)
_NS_PER_S = 1_000_000_000
_LONGEST_PERIODS = 2  # that one sample describes: a sampler that hung is noticed
_SAME = 0.01  # of a rate: a period is kept in whole nanoseconds
_AVERAGES = "gpm_since_s"  # the column of the sensor that knows SM, tensor and DRAM


class TimeLines:
    """
    The time lines of one process, one for each GPU that comes into use.

    Args:
        site: What the process was told, and has; what is lost is noted there.

        board: Returns the sensors of the GPU in use; None: there are none.
    """

    def __init__(self, site: Site, board: Callable[[], Board | None]) -> None:
        self._site = site
        self._board = board
        self._samplers: dict[str, Sampler] = {}

    def begin(self) -> Span | None:
        """Return the part of a time line that begins now; None: nobody samples."""
        lost, hz = self._site.lost, self._site.config.telemetry
        if hz is None or _NAME in lost:
            return None
        uuid = self.uuid()
        if uuid is None:
            lost[_NAME] = {**self._site.absent, **lost}.get("nvml", _UNASKED)
            return None
        if uuid not in self._samplers:
            self._samplers[uuid] = Sampler([uuid], self._site.clock, hz=hz)
        try:
            return Span(self._samplers[uuid], self, uuid=uuid)
        except CollectorUnavailableError as error:
            lost[_NAME] = Gap.of(error)
            return None

    @property
    def hz(self) -> float:
        """How often each GPU was to be sampled [1/s]."""
        return self._site.config.telemetry or 0.0

    def now_s(self) -> float:
        """Return the time, by the samples' monotonic clock [s]."""
        return self._site.clock.now_ns() / _NS_PER_S

    def uuid(self) -> str | None:
        """Return the GPU in use, as NVML names it; None: there is none."""
        board = self._board()
        return None if board is None else board.uuid

    def close(self) -> None:
        """Let go of the samplers: each ends with the last process that uses it."""
        for sampler in self._samplers.values():
            sampler.stop()


class Span:
    """
    The part of a GPU's time line that is one measurement; it begins when it is made.

    Args:
        sampler: What samples the GPU; it is started where nobody does.

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
        if self._used != self._uuid:
            return ()
        start_s, end_s = self._start_s, self._end_s
        return window_summary(
            self._sampler.records(start_s, end_s),
            start_s=start_s,
            end_s=end_s,
            longest_s=_LONGEST_PERIODS * self._sampler.period_s,
        )

    def notes(self, deltas: DeviceDeltas | None) -> Iterator[Note]:
        """
        Yield what a reader of the windows should know.

        Args:
            deltas: What the sensors counted over the same time; None: nobody looked.
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
        if deltas is not None and deltas.company is Company.FOREIGN:
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
        silent = next((s for s in self._sampler.silent if s.sensor == _AVERAGES), None)
        if silent is not None and any(each.incomplete_s for each in self.windows):
            text = (
                "the activity of SMs, tensor cores and DRAM was not sampled:"
                f" {silent.reason}; {silent.remedy}"
            )
            yield Note(code="utilization-incomplete", text=text)

    def _at_another_rate(self) -> Iterator[Note]:
        """Yield that somebody else's sampler keeps a rate of its own."""
        period_s, hz = self._sampler.period_s, self._lines.hz
        if period_s and abs(period_s * hz - 1) > _SAME:
            text = (
                f"the GPU was sampled {1 / period_s:.4g} times a second, not"
                f" {hz:g}: by a sampler that another process had started"
            )
            yield Note(code="telemetry-rate", text=text)
