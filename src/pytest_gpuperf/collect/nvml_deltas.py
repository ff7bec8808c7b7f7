"""What a GPU's sensors count while a test runs.

Two readings, one before and one after, and what the driver sampled by itself in between:
nothing runs beside the test.

*Unverified on hardware:* how often each counter moves, and that the ring's time is the
wall clock's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pytest_gpuperf.collect.clock import Clock
from pytest_gpuperf.collect.nvml import HZ_PER_MHZ, Board, Neighbours
from pytest_gpuperf.collect.nvml_counters import ECC, THROTTLED, Counters, GpmPair
from pytest_gpuperf.model.deltas import ClockReason, Company, DeviceDeltas

__all__ = ["Deltas"]

# The counter moves every 20 to 100 ms, by board (nvmlDeviceGetTotalEnergyConsumption;
# *unverified on hardware*): below half a second that is more than a tenth of the value.
_ENERGY_S = 0.5
_BYTES_PER_KIB = 1024
_US_PER_S = 1_000_000
_NS_PER_S = 1_000_000_000
_MOST_XIDS = 64  # in one test; a GPU that reports more is broken enough

_TOTAL_POWER, _SM_CLOCK = 0, 5  # nvmlSamplingType_t
_REASONS = {  # nvml.h, nvmlClocksEventReason*; the other bits are settings, no limits
    0x4: ClockReason.SOFTWARE_POWER_CAP,
    0x8: ClockReason.HARDWARE_SLOWDOWN,
    0x10: ClockReason.SYNC_BOOST,
    0x20: ClockReason.SOFTWARE_THERMAL,
    0x40: ClockReason.HARDWARE_THERMAL,
    0x80: ClockReason.POWER_BRAKE,
}


class _Moment(NamedTuple):
    """One reading of all sensors."""

    now_ns: int
    counters: Mapping[str, int]
    energy_joules: float | None
    reasons: int
    used_bytes: int | None
    company: tuple[Company, tuple[int, ...], str | None]


class Deltas:
    """
    Reads a GPU's sensors before and after something.

    Args:
        board: The GPU.

        clock: When.

        neighbours: Tells this process from others; None: as Linux shows them.

        gpm: Whether to take averages of hardware counters, where the GPU has them.
    """

    def __init__(
        self,
        board: Board,
        clock: Clock,
        *,
        neighbours: Neighbours | None = None,
        gpm: bool = True,
    ) -> None:
        self.board = board
        self._clock = clock
        self._neighbours = Neighbours() if neighbours is None else neighbours
        self._counters = Counters(board)
        self._gpm = GpmPair(board, clock) if gpm else None
        self._events = _listen(board)
        self._before: _Moment | None = None
        self._since_us = 0

    def begin(self) -> None:
        """Read all sensors; what comes next is counted."""
        self._xids()  # what came before
        self._before = self._read()
        self._since_us = int(self._clock.unix_s() * _US_PER_S)
        if self._gpm is not None:
            self._gpm.begin()

    def end(self) -> DeviceDeltas:
        """
        Return what was counted since `begin`.

        Raises:
            RuntimeError: It was never begun.
        """
        before, self._before = self._before, None
        if before is None:
            message = "Deltas.end() without begin()"
            raise RuntimeError(message)
        board = self.board
        duration_s = (self._clock.now_ns() - before.now_ns) / _NS_PER_S
        gpm, gpm_reason = ({}, None) if self._gpm is None else self._gpm.end()
        after = self._read()
        company, _, hidden = max(
            before.company, after.company, key=lambda each: _GRAVITY[each[0]]
        )
        energy_joules = _risen(before.energy_joules, after.energy_joules)
        # first what is read, so that what falls silent here is among the silent
        read: dict[str, Any] = {
            "xids": self._xids(),
            "sm_clock_hz": board.sm_clock_hz(),
            "temperature_celsius": _celsius(board),
            **self._rings(),
            **_counted(before.counters, after.counters),
        }
        return DeviceDeltas(
            gpu_uuid=board.uuid,
            gpu_index=board.index,
            duration_s=duration_s,
            energy_joules=energy_joules if duration_s >= _ENERGY_S else None,
            reasons=_named(before.reasons | after.reasons),
            memory_used_bytes=after.used_bytes,
            memory_used_change_bytes=(
                None
                if after.used_bytes is None or before.used_bytes is None
                else after.used_bytes - before.used_bytes
            ),
            gpm=gpm,
            gpm_reason=gpm_reason,
            company=company,
            company_reason=hidden,
            foreign_pids=tuple(sorted({*before.company[1], *after.company[1]})),
            silent=board.silent,
            lost=board.lost,
            **read,
        )

    def close(self) -> None:
        """Give back what NVML holds for it."""
        if self._gpm is not None:
            self._gpm.close()
        if self._events is not None:
            self.board.release("XID events", "nvmlEventSetFree", self._events)
            self._events = None

    def _read(self) -> _Moment:
        """Read all sensors."""
        board = self.board
        now_ns = self._clock.now_ns()
        memory = board.tell("memory", lambda: _memory(board))
        return _Moment(
            now_ns=now_ns,
            counters=self._counters.read(),
            energy_joules=board.energy_joules(),
            reasons=_reasons(board),
            used_bytes=None if memory is None else int(memory.used),
            company=self._neighbours.seen(board),
        )

    def _rings(self) -> dict[str, tuple[float, ...]]:
        """Return what the driver sampled by itself since `begin`."""
        ring, since_us = self.board.ring, self._since_us
        megahertz = ring("ring of the SM clock", _SM_CLOCK, since_us)
        milliwatts = ring("ring of the power", _TOTAL_POWER, since_us)
        return {
            "ring_sm_clocks_hz": tuple(each * HZ_PER_MHZ for each in megahertz),
            "ring_power_watts": tuple(each / 1000 for each in milliwatts),
        }

    def _xids(self) -> tuple[int, ...] | None:
        """Return the XID events that came since this was last asked."""
        if self._events is None or self.board.lost is not None:
            return None
        nvml, found = self.board.nvml, []
        for _ in range(_MOST_XIDS):
            try:
                found.append(int(nvml.nvmlEventSetWait_v2(self._events, 0).eventData))
            except nvml.NVMLError_Timeout:  # no more
                break
            except nvml.NVMLError as error:
                self.board.note("XID events", error)
                break
        return tuple(found)


_GRAVITY = {Company.ALONE: 0, Company.UNKNOWN: 1, Company.FOREIGN: 2}


def _listen(board: Board) -> Any:  # noqa: ANN401 - the library has no types
    """Return a set of events to which XIDs of a GPU come; None: nobody can listen."""
    nvml = board.nvml
    events = board.tell("XID events", nvml.nvmlEventSetCreate)
    if events is None:
        return None
    registered = board.tell(
        "XID events",
        lambda: (
            nvml.nvmlDeviceRegisterEvents(
                board.handle, nvml.nvmlEventTypeXidCriticalError, events
            ),
        ),
    )
    if registered is None:
        board.release("XID events", "nvmlEventSetFree", events)
        return None
    return events


def _memory(board: Board) -> Any:  # noqa: ANN401 - the library has no types
    """Return the memory of what tests use; the second version tells the driver's apart."""
    nvml = board.nvml
    return nvml.nvmlDeviceGetMemoryInfo(board.part, version=nvml.nvmlMemory_v2)


def _reasons(board: Board) -> int:
    """Return why the clock is what it is, a bit each; 0 where nobody says."""
    nvml, handle = board.nvml, board.handle

    def read() -> int:
        try:
            return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        except nvml.NVMLError_FunctionNotFound:  # its name before driver 535
            return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))

    return board.tell("clock reasons", read) or 0


def _celsius(board: Board) -> float | None:
    """Return the die's temperature [°C]."""
    nvml, handle, die = board.nvml, board.handle, board.nvml.NVML_TEMPERATURE_GPU

    def read() -> float:
        try:
            return float(nvml.nvmlDeviceGetTemperatureV(handle, die))
        except (AttributeError, nvml.NVMLError_FunctionNotFound):  # an older one
            return float(nvml.nvmlDeviceGetTemperature(handle, die))

    found: float | None = board.tell("temperature", read)
    return found


def _named(bits: int) -> frozenset[ClockReason]:
    """Return the reasons that bits stand for."""
    return frozenset(reason for bit, reason in _REASONS.items() if bit & bits)


def _counted(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, Any]:
    """Return by how much the counters moved, as the fields of DeviceDeltas."""
    moved = {name: after[name] - before[name] for name in after if name in before}
    return {
        "throttled_s": {
            reason: moved[sensor] / _NS_PER_S
            for reason in THROTTLED
            if moved.get(sensor := f"time under {reason.value}", -1) >= 0
        },
        "ecc_changes": {name: moved[name] for name in ECC if name in moved},
        "pcie_tx_bytes": _forward(moved, "PCIe bytes sent"),
        "pcie_rx_bytes": _forward(moved, "PCIe bytes received"),
        "pcie_replay_count": _forward(moved, "PCIe replays"),
        "nvlink_tx_bytes": _forward(moved, "NVLink data sent", _BYTES_PER_KIB),
        "nvlink_rx_bytes": _forward(moved, "NVLink data received", _BYTES_PER_KIB),
    }


def _forward(moved: Mapping[str, int], name: str, scale: int = 1) -> int | None:
    """Return by how much a counter rose; None: it was silent, or began anew."""
    risen = moved.get(name, -1)
    return risen * scale if risen >= 0 else None


def _risen(before: float | None, after: float | None) -> float | None:
    """Return by how much a counter rose; None: it was silent, or began anew."""
    if before is None or after is None or after < before:
        return None
    return after - before
