"""What a GPU was busy with during a test, as a record holds it."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.mistakes import finite

__all__ = ["UtilizationWindow"]


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
