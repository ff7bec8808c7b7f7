"""The profiler host of CUPTI, with a driver or without.

Names, enumerations and errors are those of NVIDIA's `cupti.profiler_host`. Where a driver
and that module are there, it answers. Elsewhere libnvperf_host does, in the words and
numbers of CUPTI itself; what only CUPTI knows raises an error that says so.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from enum import IntEnum
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_gpuperf.collect.cupti import nvperf
from pytest_gpuperf.collect.cupti.chips import Evaluator, MetricType, evaluator
from pytest_gpuperf.errors import CollectorUnavailableError, UnknownMetricError
from pytest_gpuperf.model.frozen import Frozen

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "MetricCollectionScope",
    "MetricProperties",
    "MetricType",
    "ProfilerHost",
    "ProfilerType",
    "answered_by",
    "choose",
    "get_max_num_hardware_metrics_per_pass",
    "get_metrics_in_single_pass_set",
    "get_num_of_passes",
    "get_single_pass_sets",
    "get_supported_chips",
]

_IMAGE_MARK = slice(4, 8)  # where a configuration image says that it is one
_IMAGE = b"LOPC"

_E = TypeVar("_E", bound=IntEnum)
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


def choose(
    driver: str = "libcuda.so.1", module: str = "cupti.profiler_host"
) -> tuple[ModuleType | None, str]:
    """
    Return NVIDIA's module where it answers, else why it does not.

    Args:
        driver: The library of the driver.

        module: NVIDIA's module.

    Returns:
        The module and "", or None and a sentence.
    """
    try:
        ctypes.CDLL(driver)
    except OSError:
        return None, f"no NVIDIA driver is here ({driver} does not load)"
    try:
        found = import_module(module)
    except ImportError as error:
        return None, f"{module} is not there ({error}); it comes with cupti-python 13.3"
    try:
        found.get_supported_chips()
    except Exception as error:  # noqa: BLE001 - its errors depend on driver and version
        return None, f"{module} does not answer ({type(error).__name__}: {error})"
    return found, ""


def answered_by() -> str:
    """Return who answers in this process; where it is not CUPTI, why not."""
    found, reason = _chosen()
    if found is not None:
        return f"{found.__name__}"
    return f"{nvperf.load().path}: {reason}"


def get_supported_chips() -> list[str]:
    """Return the chips that can be asked for, as `GH100`."""
    native, _ = _chosen()
    if native is not None:
        return list(native.get_supported_chips())
    return list(nvperf.load().chips())


def get_single_pass_sets(chip_name: str) -> list[str]:
    """
    Return the names of a chip's sets of metrics that fit into one pass.

    Raises:
        ValueError: The chip is unknown.

        CollectorUnavailableError: There is no driver, and only CUPTI knows.
    """
    _known_chip(chip_name)
    return list(_native("the sets of one pass").get_single_pass_sets(chip_name))


def get_metrics_in_single_pass_set(chip_name: str, set_name: str) -> list[str]:
    """
    Return the metrics of a set that fits into one pass.

    Raises:
        ValueError: The chip or the set is unknown.

        CollectorUnavailableError: There is no driver, and only CUPTI knows.
    """
    _known_chip(chip_name)
    if not set_name:
        message = "the set has no name; get_single_pass_sets lists them"
        raise ValueError(message)
    native = _native("the sets of one pass")
    return list(native.get_metrics_in_single_pass_set(chip_name, set_name))


def get_num_of_passes(config_image: NDArray[np.uint8]) -> int:
    """
    Return how many passes the metrics of a configuration image need.

    Args:
        config_image: As `ProfilerHost.create_config_image` returns it; shape (bytes,).

    Raises:
        ValueError: It is empty, or no configuration image.
    """
    content = bytes(config_image)
    if content[_IMAGE_MARK] != _IMAGE:
        message = f"{len(content)} bytes that are not a configuration image"
        raise ValueError(message)
    native, _ = _chosen()
    if native is not None:
        return int(native.get_num_of_passes(config_image))
    return nvperf.load().passes_of(content)


def get_max_num_hardware_metrics_per_pass(
    chip_name: str, profiler_type: ProfilerType
) -> int:
    """
    Return how many metrics of the hardware fit into one pass at most.

    Raises:
        ValueError: The chip or the type is unknown.

        CollectorUnavailableError: There is no driver, and only CUPTI knows.
    """
    _known_chip(chip_name)
    kind = _member(ProfilerType, profiler_type)
    native = _native("the room of one pass")
    return int(native.get_max_num_hardware_metrics_per_pass(chip_name, kind))


class ProfilerHost:
    """
    What prepares the counting of metrics on one chip, and makes values of the counts.

    Methods that ask anything raise RuntimeError before `initialize`.
    """

    def __init__(
        self,
        chip_name: str,
        profiler_type: ProfilerType,
        single_pass_metric_set_name: str | None = None,
    ) -> None:
        """
        Remember what is to be asked; nothing is loaded yet.

        Args:
            chip_name: As `get_supported_chips` spells it.

            profiler_type: What will collect.

            single_pass_metric_set_name: A set of `get_single_pass_sets`, for
                ProfilerType.PM_SAMPLING.

        Raises:
            ValueError: The type is unknown.
        """
        self._chip = chip_name
        self._type = _member(ProfilerType, profiler_type)
        self._set = single_pass_metric_set_name
        self._host: Any = None  # NVIDIA's host, or ours

    def initialize(self) -> None:
        """
        Load what answers; a second call does nothing.

        Raises:
            ValueError: The chip or the set is unknown.

            CollectorUnavailableError: There is no driver, and what was asked for is
                known to CUPTI alone; or there is no library at all.
        """
        if self._host is not None:
            return
        chip = _known_chip(self._chip)
        native, reason = _chosen()
        if native is not None:
            host = native.ProfilerHost(chip, self._type, self._set)
            host.initialize()
            self._host = host
        elif self._type is ProfilerType.RANGE_PROFILER:
            self._host = OfflineHost(chip, evaluator(chip), reason=reason)
        else:
            what = f"what {self._type.name} counts, which is not what a kernel counts"
            raise unavailable(what, reason)

    def deinitialize(self) -> None:
        """Let go of what answers; it may be called again."""
        host, self._host = self._host, None
        if host is not None:
            host.deinitialize()

    def create_config_image(self, metrics: Sequence[str]) -> NDArray[np.uint8]:
        """
        Return what tells a device to count these metrics; shape (bytes,).

        Raises:
            ValueError: The chip lacks one of them.
        """
        image: NDArray[np.uint8] = self._ready().create_config_image(metrics)
        return image

    def evaluate_metric_values(
        self,
        counter_data_image: NDArray[np.uint8],
        metrics: Sequence[str],
        index: int,
    ) -> NDArray[np.float64]:
        """
        Return the values of metrics in a range or sample of counted data.

        Args:
            counter_data_image: What was counted; shape (bytes,).

            metrics: Their names.

            index: Which range or sample, from 0.

        Returns:
            The values; shape (metrics,).

        Raises:
            ValueError: The chip lacks one of them.

            CollectorUnavailableError: There is no driver, and only CUPTI can.
        """
        values: NDArray[np.float64] = self._ready().evaluate_metric_values(
            counter_data_image, metrics, index
        )
        return values

    def get_base_metrics(self, metric_type: MetricType) -> list[str]:
        """Return the metrics of a kind, without endings."""
        host, kind = self._ready(), _member(MetricType, metric_type)
        return list(host.get_base_metrics(kind))

    def get_sub_metrics(self, metric_name: str, metric_type: MetricType) -> list[str]:
        """
        Return the endings of a metric, as `.sum.per_second`.

        Args:
            metric_name: Its name, with an ending or without.

            metric_type: Its kind.

        Raises:
            ValueError: The chip has no such metric, or it is of another kind.
        """
        host, kind = self._ready(), _member(MetricType, metric_type)
        return list(host.get_sub_metrics(metric_name, kind))

    def get_metric_properties(self, metric_name: str) -> MetricProperties:
        """
        Return what is known of a metric, with an ending or without.

        Raises:
            ValueError: The chip has no such metric.
        """
        said = self._ready().get_metric_properties(metric_name)
        return MetricProperties(
            description=said.description,
            hw_unit=said.hw_unit,
            dim_unit=said.dim_unit,
            metric_type=MetricType(said.metric_type),
            metric_collection_scope=MetricCollectionScope(said.metric_collection_scope),
        )

    def _ready(self) -> Any:  # noqa: ANN401 - NVIDIA's host has no types, and ours stands for it
        """Return what answers."""
        if self._host is None:
            message = "the profiler host is not initialized: call initialize() first"
            raise RuntimeError(message)
        return self._host


@functools.cache
def _chosen() -> tuple[ModuleType | None, str]:
    """Return who answers in this process; see `choose`."""
    return choose()


def _native(what: str) -> ModuleType:
    """Return NVIDIA's module, which alone can answer this."""
    native, reason = _chosen()
    if native is None:
        raise unavailable(what, reason)
    return native


def _known_chip(chip_name: str) -> str:
    """Return a chip that can be asked for."""
    known = get_supported_chips()
    if chip_name not in known:
        message = f"{chip_name!r} is not a chip; there are {', '.join(known)}"
        raise ValueError(message)
    return chip_name


def _member(enumeration: type[_E], value: int) -> _E:
    """Return a member of an enumeration, whoever's enumeration the value is of."""
    try:
        return enumeration(value)
    except ValueError:
        message = f"{value!r} is not a {enumeration.__name__}"
        raise ValueError(message) from None


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
        try:
            import numpy as np
        except ImportError as error:
            message = (
                "a configuration image is an array of numpy, which is not installed"
            )
            remedy = 'pip install "pytest-gpuperf[cupti]"'
            raise CollectorUnavailableError(message, remedy=remedy) from error
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
