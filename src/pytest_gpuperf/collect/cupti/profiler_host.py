"""The profiler host of CUPTI, with a driver or without.

Names, enumerations and errors are those of NVIDIA's `cupti.profiler_host`. Where that
module works it answers; else libcupti itself, which from 13.2 on needs a driver; else
libnvperf_host with the names and numbers of CUPTI, and what only CUPTI knows is an error.
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
from pytest_gpuperf.collect.cupti.libcupti import Libcupti, load
from pytest_gpuperf.collect.cupti.metric_host import (
    LibraryHost,
    image_array,
    metrics_in_set,
    metrics_per_pass,
    require_driver,
    single_pass_sets,
)
from pytest_gpuperf.errors import (
    CollectError,
    CollectorUnavailableError,
    UnknownMetricError,
)
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
    "choose",
    "get_max_num_hardware_metrics_per_pass",
    "get_metrics_in_single_pass_set",
    "get_num_of_passes",
    "get_single_pass_sets",
    "get_supported_chips",
]

_SETS_SINCE = 130200  # the version of libcupti that has single-pass sets
_MAGIC_PLACE, _MAGIC = slice(4, 8), b"LOPC"  # of a configuration image

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


class MetricProperties(Frozen, frozen=True):
    """
    The properties of a metric; as in NVIDIA's module they can be given by position.

    Attributes:
        description: A phrase in NVIDIA's words.

        hw_unit: The part of the chip that counts.

        dim_unit: The unit of its values; "": none.

        metric_type: The kind of number.

        metric_collection_scope: What it is counted for; INVALID without a driver, where
            it is unknown.
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
    Return NVIDIA's module if it works here, else why it does not.

    Args:
        driver: The library of the driver.

        module: NVIDIA's module.

    Returns:
        The module and "", or None and the reason.
    """
    try:
        ctypes.CDLL(driver)
    except OSError:
        return None, f"there is no NVIDIA driver ({driver} does not load)"
    try:
        native = import_module(module)
    except ImportError as error:
        return None, f"{module} is not installed ({error}); cupti-python 13.3 has it"
    try:
        native.get_supported_chips()
    except Exception as error:  # noqa: BLE001 - its errors depend on driver and version
        return None, f"{module} does not work ({type(error).__name__}: {error})"
    return native, ""


def get_supported_chips() -> list[str]:
    """Return the names of the supported chips, as `GH100`."""
    native, _ = _chosen()
    if native is not None:
        return list(native.get_supported_chips())
    return list(nvperf.load().chips())


def get_single_pass_sets(chip_name: str) -> list[str]:
    """
    Return the names of a chip's sets of metrics that fit into one pass.

    Raises:
        ValueError: The chip is unknown.

        CollectorUnavailableError: There is no driver, which CUPTI needs for this.
    """
    _checked_chip(chip_name)
    native, reason = _chosen()
    if native is not None:
        return list(native.get_single_pass_sets(chip_name))
    return single_pass_sets(_library_of_sets(reason), chip_name)


def get_metrics_in_single_pass_set(chip_name: str, set_name: str) -> list[str]:
    """
    Return the metrics of a set that fits into one pass.

    Raises:
        ValueError: The chip or the set is unknown.

        CollectorUnavailableError: There is no driver, which CUPTI needs for this.
    """
    _checked_chip(chip_name)
    if not set_name:
        message = "set_name is empty; get_single_pass_sets lists the names"
        raise ValueError(message)
    native, reason = _chosen()
    if native is not None:
        return list(native.get_metrics_in_single_pass_set(chip_name, set_name))
    library = _library_of_sets(reason)
    _check_set(library, chip_name, set_name)
    return metrics_in_set(library, chip_name, set_name)


def get_num_of_passes(config_image: NDArray[np.uint8]) -> int:
    """
    Return how many passes the metrics of a configuration image need.

    Args:
        config_image: As `ProfilerHost.create_config_image` returns it; shape (bytes,).

    Raises:
        ValueError: It is empty, or not a configuration image.
    """
    content = bytes(config_image)
    if content[_MAGIC_PLACE] != _MAGIC:
        message = f"config_image ({len(content)} bytes) is not a configuration image"
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

        CollectorUnavailableError: There is no driver, which CUPTI needs for this.
    """
    _checked_chip(chip_name)
    kind = _member(ProfilerType, profiler_type)
    native, reason = _chosen()
    if native is not None:
        return int(native.get_max_num_hardware_metrics_per_pass(chip_name, kind))
    library, why = _library()
    if library is None:
        raise unavailable("the metric limits of a pass", f"{reason}; {why}")
    return metrics_per_pass(library, chip_name, kind)


class ProfilerHost:
    """
    Configures the counters of metrics on one chip, and computes metrics of the counts.

    Before `initialize` all queries raise RuntimeError.
    """

    def __init__(
        self,
        chip_name: str,
        profiler_type: ProfilerType,
        single_pass_metric_set_name: str | None = None,
    ) -> None:
        """
        Store the arguments; nothing is loaded yet.

        Args:
            chip_name: As `get_supported_chips` spells it.

            profiler_type: The profiler that will collect.

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
        Load the library; a second call does nothing.

        Raises:
            ValueError: The chip or the set is unknown.

            CollectorUnavailableError: There is no driver, which the profiler type needs;
                or there is no library at all.
        """
        if self._host is not None:
            return
        chip = _checked_chip(self._chip)
        native, reason = _chosen()
        if native is not None:
            host = native.ProfilerHost(chip, self._type, self._set)
            host.initialize()
            self._host = host
            return
        if self._set is not None:
            self._check_set(chip, reason)
        library, why = _library()
        if library is not None:
            self._host = LibraryHost(library, chip, self._type, self._set)
        elif self._type is ProfilerType.RANGE_PROFILER:
            self._host = OfflineHost(chip, evaluator(chip), reason=reason)
        else:
            raise unavailable(f"the metrics of {self._type.name}", f"{reason}; {why}")

    def _check_set(self, chip: str, reason: str) -> None:
        """Refuse a set of one pass that the chip does not have, or that is not known here."""
        if self._type is ProfilerType.RANGE_PROFILER:
            message = f"{chip} has no single-pass set {self._set!r} for RANGE_PROFILER"
            raise ValueError(message)
        _check_set(_library_of_sets(reason), chip, str(self._set))

    def deinitialize(self) -> None:
        """Free the library's host; it may be called again."""
        host, self._host = self._host, None
        if host is not None:
            host.deinitialize()

    def create_config_image(self, metrics: Sequence[str]) -> NDArray[np.uint8]:
        """
        Return the image that makes a device count these metrics; shape (bytes,).

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
            counter_data_image: The counter data; shape (bytes,).

            metrics: Their names.

            index: The range or sample, from 0.

        Returns:
            The values; shape (metrics,).

        Raises:
            ValueError: The chip lacks one of them.

            CollectorUnavailableError: There is no driver, which CUPTI needs for this.
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
        Return the properties of a metric, with an ending or without.

        Raises:
            ValueError: The chip has no such metric.
        """
        properties = self._ready().get_metric_properties(metric_name)
        scope = MetricCollectionScope(properties.metric_collection_scope)
        return MetricProperties(
            description=properties.description,
            hw_unit=properties.hw_unit,
            dim_unit=properties.dim_unit,
            metric_type=MetricType(properties.metric_type),
            metric_collection_scope=scope,
        )

    def _ready(self) -> Any:  # noqa: ANN401 - NVIDIA's host, which has no types, or ours
        """Return the initialized host."""
        if self._host is None:
            message = "the profiler host is not initialized: call initialize() first"
            raise RuntimeError(message)
        return self._host


@functools.cache
def _chosen() -> tuple[ModuleType | None, str]:
    """Return the choice of this process; see `choose`."""
    return choose()


@functools.cache
def _library() -> tuple[Libcupti | None, str]:
    """Return the libcupti that answers in this process, else why none does."""
    try:
        library = load()
        require_driver(library)
    except CollectError as error:
        return None, error.message
    return library, ""


def _library_of_sets(reason: str) -> Libcupti:
    """Return the libcupti that knows single-pass sets, where NVIDIA's module does not."""
    library, why = _library()
    if library is None:
        raise unavailable("single-pass sets", f"{reason}; {why}")
    if library.version < _SETS_SINCE:
        raise unavailable("single-pass sets", f"{reason}; {library.name} has none")
    return library


def _check_set(library: Libcupti, chip: str, name: str) -> None:
    """Raise ValueError unless a chip has a single-pass set."""
    names = single_pass_sets(library, chip)
    if name not in names:
        message = f"{chip} has no single-pass set {name!r}; it has {', '.join(names)}"
        raise ValueError(message)


def _checked_chip(chip_name: str) -> str:
    """Return a supported chip."""
    chips = get_supported_chips()
    if chip_name not in chips:
        message = f"{chip_name!r} is not a chip; write one of {', '.join(chips)}"
        raise ValueError(message)
    return chip_name


def _member(enumeration: type[_E], value: int) -> _E:
    """Return a member of our enumeration for one of NVIDIA's, or a number."""
    try:
        return enumeration(value)
    except ValueError:
        message = f"{value!r} is not a {enumeration.__name__}"
        raise ValueError(message) from None


class OfflineHost:
    """
    CUPTI's answers without a driver, from libnvperf_host.

    Args:
        chip: The chip's name.

        evaluator: Its metrics.

        reason: Why CUPTI itself is not used.
    """

    def __init__(self, chip: str, evaluator: Evaluator, *, reason: str) -> None:
        self._chip = chip
        self._reason = reason
        self._evaluator = evaluator

    def deinitialize(self) -> None:
        """Do nothing: the evaluator is cached for the process."""

    def create_config_image(self, metrics: Sequence[str]) -> NDArray[np.uint8]:
        """Return the library's configuration image."""
        content = self._answer(lambda: self._evaluator.config_image(list(metrics)))
        return image_array(content)

    def evaluate_metric_values(self, *_: object) -> NDArray[np.float64]:
        """Refuse: counter data need a driver."""
        raise unavailable("the values of counter data", self._reason)

    def get_base_metrics(self, kind: MetricType) -> tuple[str, ...]:
        """Return the metrics of a kind."""
        return self._evaluator.names(kind)

    def get_sub_metrics(self, name: str, kind: MetricType) -> tuple[str, ...]:
        """Return the endings of a metric's kind."""
        actual = self._answer(lambda: self._evaluator.properties(name)).kind
        if actual is not kind:
            message = f"{name!r} is a {actual.name}, not a {kind.name}"
            raise ValueError(message)
        return self._evaluator.endings(kind)

    def get_metric_properties(self, name: str) -> MetricProperties:
        """Return the library's properties, which lack the scope."""
        properties = self._answer(lambda: self._evaluator.properties(name))
        return MetricProperties(
            description=properties.description,
            hw_unit=properties.hardware_unit,
            dim_unit=properties.unit,
            metric_type=properties.kind,
            metric_collection_scope=MetricCollectionScope.INVALID,
        )

    def _answer(self, query: Callable[[], _T]) -> _T:
        """Return an answer; an unknown name is a ValueError, as in CUPTI."""
        try:
            return query()
        except UnknownMetricError as error:
            message = f"{self._chip} has no metric {error.name!r}; {error.remedy}"
            raise ValueError(message) from error


def unavailable(what: str, reason: str) -> CollectorUnavailableError:
    """
    Return the error for what only CUPTI with a driver can answer.

    Args:
        what: What was requested, as `the values of counter data`.

        reason: Why CUPTI is not used.
    """
    message = f"{what} need CUPTI, which does not answer here: {reason}"
    remedy = "use a machine with a GPU and cupti-python 13.3 or later"
    return CollectorUnavailableError(message, remedy=remedy)
