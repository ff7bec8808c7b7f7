"""What a GPU's own sensors say of a span of time."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.gap import Gap
from pytest_gpuperf.model.mistakes import finite

__all__ = [
    "ClockReason",
    "Company",
    "DeviceDeltas",
    "SecondPass",
    "UtilizationWindow",
]


class ClockReason(str, Enum):
    """What held a GPU's clock down."""

    SOFTWARE_POWER_CAP = "software power cap"
    HARDWARE_SLOWDOWN = "hardware slowdown"
    SYNC_BOOST = "sync boost"
    SOFTWARE_THERMAL = "software thermal slowdown"
    HARDWARE_THERMAL = "hardware thermal slowdown"
    POWER_BRAKE = "power brake"
    BOARD_LIMIT = "board limit"
    THERMAL = "thermal slowdown"  # of either kind: older drivers do not tell them apart


class Company(str, Enum):
    """Who else computed on a GPU."""

    ALONE = "alone"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"


class DeviceDeltas(Frozen, frozen=True, kw_only=True):
    """
    What the sensors of one GPU counted between two moments; None: they did not say.

    All of it is of the whole GPU, whoever used it.

    Attributes:
        gpu_uuid: The GPU's name for life, or that of its instance.

        gpu_index: Its place in the driver's order.

        duration_s: Time between the two moments [s], >= 0.

        energy_joules: What the board drew [J]; None also where the time was too short
            for the counter.

        throttled_s: Time in which each reason held the clock down [s], >= 0; a reason
            that is not in it has no counter here.

        reasons: Those that held at the first or the last moment.

        pcie_tx_bytes: From the GPU to the host [B].

        pcie_rx_bytes: From the host to the GPU [B].

        pcie_replay_count: PCIe packets sent again.

        nvlink_tx_bytes: Sent over all links [B].

        nvlink_rx_bytes: Received over all links [B].

        ecc_changes: By how much each count of memory errors and replaced rows moved.

        xids: Codes of the XID events, as they came; None: nobody can listen.

        memory_used_bytes: Device memory in use at the last moment, what the driver keeps
            left out [B].

        memory_used_change_bytes: By how much that grew [B].

        sm_clock_hz: Clock of the multiprocessors at the last moment [Hz].

        temperature_celsius: Of the die at the last moment [°C].

        ring_sm_clocks_hz: The driver's own samples of that clock [Hz], in order.

        ring_power_watts: Its samples of the board's power [W], in order.

        gpm: Averages of hardware counters, by the names of a CanonicalRecord.

        gpm_reason: Why there are none, as a fragment; None: there are, or nobody asked.

        company: Who else computed on the GPU.

        company_reason: Why that is not known, as a fragment; None: it is.

        foreign_pids: Processes of others that were seen on it.

        silent: Sensors that say nothing, as "energy", and why.

        lost: Why the GPU is gone; None: it is there.
    """

    gpu_uuid: str
    gpu_index: int
    duration_s: float
    energy_joules: float | None = None
    throttled_s: Mapping[ClockReason, float] = {}
    reasons: frozenset[ClockReason] = frozenset()
    pcie_tx_bytes: int | None = None
    pcie_rx_bytes: int | None = None
    pcie_replay_count: int | None = None
    nvlink_tx_bytes: int | None = None
    nvlink_rx_bytes: int | None = None
    ecc_changes: Mapping[str, int] = {}
    xids: tuple[int, ...] | None = None
    memory_used_bytes: int | None = None
    memory_used_change_bytes: int | None = None
    sm_clock_hz: float | None = None
    temperature_celsius: float | None = None
    ring_sm_clocks_hz: tuple[float, ...] = ()
    ring_power_watts: tuple[float, ...] = ()
    gpm: Mapping[str, float | None] = {}
    gpm_reason: str | None = None
    company: Company = Company.UNKNOWN
    company_reason: str | None = None
    foreign_pids: tuple[int, ...] = ()
    silent: Mapping[str, Gap] = {}
    lost: Gap | None = None


class SecondPass(Frozen, frozen=True, kw_only=True):
    """
    What calls cost that follow each other without a gap, apart from those timed.

    Attributes:
        calls_count: Calls behind `energy_joules`, >= 1; 0 where there is none.

        duration_s: Time that they took [s].

        energy_joules: Energy of a call, with what an idle board draws in that time [J].

        power_watts: The board's mean power meanwhile [W].

        idle_power_watts: What it drew before, doing nothing [W]; nothing is subtracted.

        deltas: What the sensors counted over the whole pass, GPM included.

        missing: Sensors that were asked and gave no value, and why.
    """

    calls_count: int
    duration_s: float
    energy_joules: float | None
    power_watts: float | None
    idle_power_watts: float | None
    deltas: DeviceDeltas
    missing: Mapping[str, Gap] = {}


class UtilizationWindow(Frozen, frozen=True, kw_only=True):
    """
    What one GPU did in a window of time.

    The seconds of the classes, the incomplete and the unobserved ones add up to it.

    Attributes:
        gpu_index: The GPU's place in the driver's order.

        gpu_uuid: Its name for life; may be empty.

        duration_s: The window [s], >= 0.

        reading_count: Readings that describe a part of it.

        class_s: Seconds in each class, by its label; each reading judged by itself.

        incomplete_s: Seconds whose readings lack SM, tensor or DRAM activity [s].

        unobserved_s: Seconds that no reading describes [s].

        real_util: Mean score, weighed with time, 0 to 100; None: no complete reading.

        real_util_p50: Median of the readings' scores.

        real_util_p95: Their 95th percentile.

        average_class: The class of the average reading, by its label; None where it
            lacks SM, tensor or DRAM activity, or there is no reading.
    """

    gpu_index: int
    gpu_uuid: str
    duration_s: float
    reading_count: int
    class_s: Mapping[str, float]
    incomplete_s: float
    unobserved_s: float
    real_util: float | None = None
    real_util_p50: float | None = None
    real_util_p95: float | None = None
    average_class: str | None = None

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("utilization.duration_s", self.duration_s)
        finite("utilization.class_s", *self.class_s.values())
        finite("utilization.incomplete_s", self.incomplete_s)
        finite("utilization.unobserved_s", self.unobserved_s)
        scores = self.real_util, self.real_util_p50, self.real_util_p95
        finite("utilization.real_util", *scores)
