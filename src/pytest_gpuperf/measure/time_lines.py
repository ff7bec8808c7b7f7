"""Time lines of GPUs, and the part of one that a measurement covers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from pytest_gpuperf.collect.clock import NS_PER_S
from pytest_gpuperf.collect.nvml.sampler import Sampler
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import Note
from pytest_gpuperf.model.sample import Source
from pytest_gpuperf.model.telemetry import (
    CanonicalRecord,
    DeviceDeltas,
    Sharing,
    TimeLine,
    UtilizationWindow,
)

if TYPE_CHECKING:
    from pytest_gpuperf.collect.nvml.library import Board
    from pytest_gpuperf.measure.site import Site

# Not a collector, but reported as lost in the same way.
_TELEMETRY = "telemetry"
_NVML_UNASKED = Gap(
    code=GapCode.COLLECTOR_UNAVAILABLE,
    reason="the nvml collector is not among those asked for",
    remedy="add nvml to --gpuperf-collectors",
)
# Periods that one sample may represent, so that a hung sampler is noticed.
_LONGEST_PERIODS = 2
# Tolerance of a rate, because periods are whole nanoseconds.
_SAME = 0.01
_UNSAMPLED = "the activity of SMs, tensor cores and DRAM was not sampled"
# Measured by other sensors.
_HEALTH = "utilization.unhealthy_fraction"
# The column of the sensor for SM, tensor cores and DRAM.
_AVERAGES = "gpm_since_s"
_T = TypeVar("_T")


class TimeLines:
    """
    The time lines of one process, one for each GPU in use.

    Args:
        site: The site of this process. Failing collectors are noted there as lost.

        board: Returns the sensors of the GPU in use, or None.

        hz: Requested sampling rate of a GPU [1/s].
    """

    def __init__(
        self, site: Site, board: Callable[[], Board | None], hz: float
    ) -> None:
        self.hz = hz
        self._site = site
        self._board = board
        self._samplers: dict[str, Sampler] = {}

    def begin(self) -> TelemetrySpan | None:
        """Start a span of the time line, or return None if nothing is sampled."""
        lost = self._site.lost
        if _TELEMETRY in lost:
            return None
        uuid = self.uuid()
        if uuid is None:
            lost[_TELEMETRY] = {**self._site.absent, **lost}.get(
                Source.NVML, _NVML_UNASKED
            )
            return None
        if uuid not in self._samplers:
            self._samplers[uuid] = Sampler([uuid], self._site.clock, hz=self.hz)
        try:
            return TelemetrySpan(self._samplers[uuid], self, uuid=uuid)
        except CollectorUnavailableError as error:
            lost[_TELEMETRY] = Gap.of(error)
            return None

    def now_s(self) -> float:
        """Return the time by the monotonic clock of the samples [s]."""
        return self._site.clock.now_ns() / NS_PER_S

    def uuid(self) -> str | None:
        """Return the NVML UUID of the GPU in use, or None."""
        board = self._board()
        return None if board is None else board.uuid

    def close(self) -> None:
        """Release the samplers. A sampler ends with the last process that uses it."""
        for sampler in self._samplers.values():
            sampler.stop()
        self._samplers.clear()


class TelemetrySpan:
    """
    The part of a GPU's time line covered by one measurement. Begins on creation.

    Args:
        sampler: The sampler of the GPU, started if none is running.

        lines: The time lines of the process.

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
        """End the span, without waiting for a sample."""
        self._end_s = self._lines.now_s()
        self._used = self._lines.uuid() or self._uuid

    @functools.cached_property
    def windows(self) -> tuple[UtilizationWindow, ...]:
        """GPU utilization, or () if unknown. Waits for the sample after the end."""
        from pytest_gpuperf.compute.timeline import window_summary

        return self._summary(window_summary)

    @functools.cached_property
    def lines(self) -> tuple[TimeLine, ...]:
        """The readings of the sensors, or () if unknown."""
        from pytest_gpuperf.compute.timeline import time_lines

        return self._summary(time_lines)

    def _summary(self, of: Callable[..., tuple[_T, ...]]) -> tuple[_T, ...]:
        """Return a summary of the readings, or () if the test used another GPU."""
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
        """The readings. Waits for the sample after the end."""
        return self._sampler.records(self._start_s, self._end_s)

    def gap(self, metric: str) -> Gap:
        """Return the reason why the windows have no value for a metric."""
        silent = self._sampler.silent.get(_AVERAGES)
        if metric == _HEALTH and not any(w.health_s for w in self.windows):
            return Gap(
                code=GapCode.NOT_STATED,
                reason="the GPU's temperature was not sampled",
                remedy="look at nvml in `gpuperf doctor`",
            )
        if silent is not None and metric != _HEALTH:
            return replace(silent, reason=f"{_UNSAMPLED}: {silent.reason}")
        return Gap(
            code=GapCode.INCOMPLETE,
            reason="less than half of the measurement was sampled",
            remedy="measure for longer, or sample more often with --gpuperf-telemetry",
        )

    def notes(self, deltas: DeviceDeltas | None) -> Iterator[Note]:
        """
        Yield notes for readers of the windows.

        Args:
            deltas: The counts of the sensors over the same time, or None if not read.
        """
        if self._used != self._uuid:
            text = (
                f"the test came to use {self._used} while {self._uuid} was"
                " sampled: what it did then is not known"
            )
            yield Note(code="utilization-elsewhere", text=text)
            return
        if not self.windows:
            text = "no sample of that time is left: what the GPU did then is not known"
            yield Note(code="utilization-unread", text=text)
            return
        if deltas is not None and deltas.sharing is Sharing.FOREIGN:
            pids = ", ".join(map(str, deltas.foreign_pids))
            several = len(deltas.foreign_pids) > 1
            text = (
                "the utilization is that of the whole GPU, on which"
                f" process{'es' * several} {pids} computed too: the test's own part of"
                " it is not known"
            )
            yield Note(code="utilization-shared", text=text)
        silent = self._sampler.silent.get(_AVERAGES)
        if silent is not None and any(window.incomplete_s for window in self.windows):
            text = f"{_UNSAMPLED}: {silent.text}"
            yield Note(code="utilization-incomplete", text=text)
        period_s, hz = self._sampler.period_s, self._lines.hz
        if period_s and abs(period_s * hz - 1) > _SAME:
            text = (
                f"the GPU was sampled {1 / period_s:.4g} times a second, not"
                f" {hz:g}: by a sampler that another process had started"
            )
            yield Note(code="telemetry-rate", text=text)
