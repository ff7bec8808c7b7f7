"""What a profiler host answers without CUPTI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

from pytest_gpuperf.collect.cupti.nvperf import Evaluator, MetricType
from pytest_gpuperf.errors import CollectorUnavailableError, UnknownMetricError
from pytest_gpuperf.model.frozen import Frozen

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "MetricCollectionScope",
    "MetricProperties",
    "OfflineHost",
    "ProfilerType",
    "unavailable",
]

_T = TypeVar("_T")


class ProfilerType(IntEnum):
    """What collects: CUpti_ProfilerType of cupti_profiler_host.h."""

    RANGE_PROFILER = 0
    PM_SAMPLING = 1
    PROFILER_INVALID = 2


class MetricCollectionScope(IntEnum):
    """What a metric is counted for: CUpti_MetricCollectionScope of the same header."""

    CONTEXT = 0
    DEVICE = 1
    INVALID = 2


class MetricProperties(Frozen, frozen=True, kw_only=True):
    """
    What is known of a metric.

    Attributes:
        description: A phrase in NVIDIA's words.

        hw_unit: The part of the chip that counts.

        dim_unit: What the number is counted in; "" where it has no unit.

        metric_type: What kind of number it is.

        metric_collection_scope: What it is counted for; INVALID without a driver: then
            nobody says.
    """

    description: str
    hw_unit: str
    dim_unit: str
    metric_type: MetricType
    metric_collection_scope: MetricCollectionScope


class OfflineHost:
    """
    The answers of CUPTI, out of libnvperf_host.

    Args:
        chip: The chip's name.

        evaluator: Who knows its metrics.

        reason: Why CUPTI does not answer itself.
    """

    def __init__(self, chip: str, evaluator: Evaluator, *, reason: str) -> None:
        self._chip = chip
        self._reason = reason
        self._evaluator = evaluator

    def deinitialize(self) -> None:
        """Keep the evaluator: it is made once a process."""

    def create_config_image(self, metrics: Sequence[str]) -> NDArray[np.uint8]:
        """Return the image that the library lays out."""
        import numpy as np

        content = self._asked(lambda: self._evaluator.config_image(list(metrics)))
        return np.frombuffer(content, dtype=np.uint8).copy()

    def evaluate_metric_values(self, *_: object) -> NDArray[np.float64]:
        """Refuse: there is nothing that could have been counted here."""
        raise unavailable("the values in counted data", self._reason)

    def get_base_metrics(self, kind: MetricType) -> tuple[str, ...]:
        """Return the metrics of a kind."""
        return self._evaluator.names(kind)

    def get_sub_metrics(self, name: str, kind: MetricType) -> tuple[str, ...]:
        """Return the endings of a metric's kind."""
        found = self._asked(lambda: self._evaluator.properties(name)).kind
        if found is not kind:
            message = f"{name!r} is a {found.name}, not a {kind.name}"
            raise ValueError(message)
        return self._evaluator.endings(kind)

    def get_metric_properties(self, name: str) -> MetricProperties:
        """Return what the library says; the scope is not among it."""
        said = self._asked(lambda: self._evaluator.properties(name))
        return MetricProperties(
            description=said.description,
            hw_unit=said.hardware_unit,
            dim_unit=said.unit,
            metric_type=said.kind,
            metric_collection_scope=MetricCollectionScope.INVALID,
        )

    def _asked(self, ask: Callable[[], _T]) -> _T:
        """Return an answer; an unknown name is the ValueError that CUPTI's users catch."""
        try:
            return ask()
        except UnknownMetricError as error:
            message = f"{self._chip} has no metric {error.name!r}; {error.remedy}"
            raise ValueError(message) from error


def unavailable(what: str, reason: str) -> CollectorUnavailableError:
    """
    Return the error for what only CUPTI knows.

    Args:
        what: What was asked for, as `the values in counted data`.

        reason: Why CUPTI does not answer.
    """
    message = f"only CUPTI knows {what}, and it needs a driver: {reason}"
    remedy = "ask on a machine with a GPU and cupti-python 13.3 or later"
    return CollectorUnavailableError(message, remedy=remedy)
