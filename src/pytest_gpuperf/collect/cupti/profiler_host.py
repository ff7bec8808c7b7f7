"""The profiler host of CUPTI, with a driver or without.

Names, enumerations and errors are the same as in NVIDIA's `cupti.profiler_host`. Answers
come from that module if it works, else from libcupti itself, which from 13.2 on needs a
driver, else from libnvperf_host with the names and numbers of CUPTI. In the last case,
queries that only CUPTI can answer raise an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_gpuperf.collect.cuda_device import load_driver
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
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.collect.signals import ending
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

_SETS_SINCE = 130200  # The first version of libcupti with single-pass sets.
# The magic number of a configuration image.
_MAGIC_PLACE, _MAGIC = slice(4, 8), b"LOPC"
_DRIVER, _MODULE = "libcuda.so.1", "cupti.profiler_host"
# Imports from the folders of this process alone.
_START = (
    "import os, sys; sys.path[:] = sys.argv[1].split(os.pathsep); "
    "from pytest_gpuperf.collect.cupti import profiler_host; "
    "profiler_host.evaluate_once(*sys.argv[2:])"
)
_TRIAL = ("-I", "-X", "utf8", "-c", _START)
# Our choice for one evaluation, which takes about half a second with the imports.
_TRIAL_TIMEOUT_S = 60.0

_E = TypeVar("_E", bound=IntEnum)
_T = TypeVar("_T")


class ProfilerType(IntEnum):
    """The kind of profiler: CUpti_ProfilerType of cupti_profiler_host.h."""

    RANGE_PROFILER = 0
    PM_SAMPLING = 1
    PROFILER_INVALID = 2


class MetricCollectionScope(IntEnum):
    """The scope of a metric: CUpti_MetricCollectionScope of cupti_profiler_host.h."""

    CONTEXT = 0
    DEVICE = 1
    INVALID = 2


class MetricProperties(Frozen, frozen=True):
    """
    The properties of a metric. As in NVIDIA's module, arguments may be positional.

    Attributes:
        description: A phrase in NVIDIA's words.

        hw_unit: The part of the chip that counts.

        dim_unit: The unit of the values, or "".

        metric_type: The kind of number.

        metric_collection_scope: The scope of the metric, or INVALID without a driver,
            because it is then unknown.
    """

    description: str
    hw_unit: str
    dim_unit: str
    metric_type: MetricType
    metric_collection_scope: MetricCollectionScope


def choose(
    driver: str = _DRIVER, module: str = _MODULE
) -> tuple[ModuleType | None, str]:
    """
    Return NVIDIA's module if usable, else the reason why not.

    Args:
        driver: The library of the driver.

        module: The name of NVIDIA's module.

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
    Return the names of a chip's single-pass sets of metrics.

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
    Return the metrics of a single-pass set.

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
    Return the number of passes for the metrics of a configuration image.

    Args:
        config_image: The result of `ProfilerHost.create_config_image`, of shape (bytes,).

    Raises:
        ValueError: The image is empty, or not a configuration image.
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
    Return the maximum number of hardware metrics per pass.

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

    Before `initialize`, all queries raise RuntimeError.
    """

    def __init__(
        self,
        chip_name: str,
        profiler_type: ProfilerType,
        single_pass_metric_set_name: str | None = None,
    ) -> None:
        """
        Store the arguments, without loading a library.

        Args:
            chip_name: The chip in the spelling of `get_supported_chips`.

            profiler_type: The profiler that will collect.

            single_pass_metric_set_name: A set of `get_single_pass_sets`, for
                ProfilerType.PM_SAMPLING.

        Raises:
            ValueError: The type is unknown.
        """
        self._chip = chip_name
        self._type = _member(ProfilerType, profiler_type)
        self._set = single_pass_metric_set_name
        # NVIDIA's host, a LibraryHost or an OfflineHost.
        self._host: Any = None
        # The counter data that another process has evaluated without a crash.
        self._proven = b""

    def initialize(self) -> None:
        """
        Load the library. A second call does nothing.

        Raises:
            ValueError: The chip or the set is unknown.

            CollectorUnavailableError: There is no driver, which the profiler type
                needs, or there is no library at all.
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
            if self._type is ProfilerType.RANGE_PROFILER:
                message = (
                    f"{chip} has no single-pass set {self._set!r} for RANGE_PROFILER"
                )
                raise ValueError(message)
            _check_set(_library_of_sets(reason), chip, self._set)
        library, why = _library()
        if library is not None:
            self._host = LibraryHost(library, chip, self._type, self._set)
        elif self._type is ProfilerType.RANGE_PROFILER:
            self._host = OfflineHost(chip, evaluator(chip), reason=reason)
        else:
            raise unavailable(f"the metrics of {self._type.name}", f"{reason}; {why}")

    def deinitialize(self) -> None:
        """Free the host of the library. May be called repeatedly."""
        host, self._host = self._host, None
        if host is not None:
            host.deinitialize()

    def create_config_image(self, metrics: Sequence[str]) -> NDArray[np.uint8]:
        """
        Return the image that makes a device count the metrics, of shape (bytes,).

        Raises:
            ValueError: The chip lacks one of the metrics.
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

        CUPTI crashes on most data that are not counter data. So another process
        evaluates each new image first, which takes about half a second.

        Args:
            counter_data_image: The counter data, of shape (bytes,).

            metrics: The names of the metrics.

            index: The range or sample, from 0.

        Returns:
            The values, of shape (metrics,).

        Raises:
            ValueError: The chip lacks one of the metrics, or the data are not counter
                data.

            CollectorUnavailableError: There is no driver, which CUPTI needs for this.

            CollectError: The other process cannot use CUPTI.
        """
        host, content = self._ready(), bytes(counter_data_image)
        if content != self._proven:
            place = host.place() if hasattr(host, "place") else _MODULE
            about = (self._chip, str(int(self._type)), self._set or "", str(index))
            require_counter_data(content, (place, *about, *metrics))
            self._proven = content
        values: NDArray[np.float64] = host.evaluate_metric_values(
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
            metric_name: The name of the metric, with or without an ending.

            metric_type: The kind of the metric.

        Raises:
            ValueError: The chip has no such metric, or the metric has another kind.
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
        """Return the host. RuntimeError is raised before `initialize`."""
        if self._host is None:
            message = "the profiler host is not initialized: call initialize() first"
            raise RuntimeError(message)
        return self._host


def require_counter_data(content: bytes, arguments: Sequence[str]) -> None:
    """
    Check in another process that CUPTI can evaluate counter data.

    Args:
        content: The counter data.

        arguments: The arguments of `evaluate_once`.

    Raises:
        ValueError: CUPTI crashes on the data.

        CollectError: CUPTI cannot be used in the other process.

        CollectorTimeoutError: CUPTI did not answer.
    """
    argv = (sys.executable, *_TRIAL, os.pathsep.join(sys.path), *arguments)
    finished = ProcessRunner().run(argv, timeout_s=_TRIAL_TIMEOUT_S, stdin=content)
    size = f"counter_data_image ({len(content)} bytes)"
    if finished.exit_code < 0:
        message = (
            f"{size} is not counter data of this CUPTI, which crashed on it in another "
            f"process ({ending(finished.exit_code)})"
        )
        raise ValueError(message)
    if finished.exit_code:
        message = f"{size} cannot be tried in another process: {finished.log_tail}"
        remedy = "run gpuperf doctor: it compares the driver with libcupti"
        raise CollectError(message, remedy=remedy)


def evaluate_once(
    place: str, chip: str, kind: str, set_name: str, index: str, *metrics: str
) -> None:
    """
    Evaluate the counter data of standard input, which may end the process.

    What CUPTI answers does not matter, because the caller asks again.

    Args:
        place: The file of libcupti, or the name of NVIDIA's module.

        chip: As for `ProfilerHost`, like the next two.

        kind: The number of the profiler type.

        set_name: The single-pass set, or "".

        index: The range or sample.

        *metrics: The names of the metrics.
    """
    import numpy as np

    image = np.frombuffer(sys.stdin.buffer.read(), dtype=np.uint8)
    profiler, name = ProfilerType(int(kind)), set_name or None
    load_driver()
    host: Any
    if place == _MODULE:
        host = import_module(place).ProfilerHost(chip, profiler, name)
        host.initialize()
    else:
        # The caller knows that there is a driver.
        library = Libcupti(ctypes.CDLL(place), path=place, driver=lambda: place)
        host = LibraryHost(library, chip, profiler, name)
    with contextlib.suppress(ValueError, CollectError, RuntimeError):
        host.evaluate_metric_values(image, metrics, int(index))


@functools.cache
def _chosen() -> tuple[ModuleType | None, str]:
    return choose()


@functools.cache
def _library() -> tuple[Libcupti | None, str]:
    """Return a usable libcupti and "", or None and the reason."""
    try:
        library = load()
        require_driver(library)
    except CollectError as error:
        return None, error.message
    return library, ""


def _library_of_sets(reason: str) -> Libcupti:
    """Return a libcupti that knows single-pass sets, or raise with the reasons."""
    library, why = _library()
    if library is None:
        raise unavailable("single-pass sets", f"{reason}; {why}")
    if library.version < _SETS_SINCE:
        raise unavailable("single-pass sets", f"{reason}; {library.name} has none")
    return library


def _check_set(library: Libcupti, chip: str, name: str) -> None:
    names = single_pass_sets(library, chip)
    if name not in names:
        message = f"{chip} has no single-pass set {name!r}; it has {', '.join(names)}"
        raise ValueError(message)


def _checked_chip(chip_name: str) -> str:
    chips = get_supported_chips()
    if chip_name not in chips:
        message = f"{chip_name!r} is not a chip; write one of {', '.join(chips)}"
        raise ValueError(message)
    return chip_name


def _member(enumeration: type[_E], value: int) -> _E:
    try:
        return enumeration(value)
    except ValueError:
        message = f"{value!r} is not a {enumeration.__name__}"
        raise ValueError(message) from None


class OfflineHost:
    """
    A host that answers without a driver, from libnvperf_host.

    Args:
        chip: The chip's name.

        evaluator: The chip's metrics.

        reason: Why CUPTI itself is not used.
    """

    def __init__(self, chip: str, evaluator: Evaluator, *, reason: str) -> None:
        self._chip = chip
        self._reason = reason
        self._evaluator = evaluator

    def deinitialize(self) -> None:
        """Do nothing, because the evaluator is cached for the process."""

    def create_config_image(self, metrics: Sequence[str]) -> NDArray[np.uint8]:
        """Return the library's configuration image."""
        content = self._answer(lambda: self._evaluator.config_image(list(metrics)))
        return image_array(content)

    def place(self) -> str:
        """Raise an error, because evaluating counter data needs a driver."""
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
        """Return the properties of a metric, without the scope."""
        properties = self._answer(lambda: self._evaluator.properties(name))
        return MetricProperties(
            description=properties.description,
            hw_unit=properties.hardware_unit,
            dim_unit=properties.unit,
            metric_type=properties.kind,
            metric_collection_scope=MetricCollectionScope.INVALID,
        )

    def _answer(self, query: Callable[[], _T]) -> _T:
        """Run a query. As in CUPTI, an unknown name raises ValueError."""
        try:
            return query()
        except UnknownMetricError as error:
            message = f"{self._chip} has no metric {error.name!r}; {error.remedy}"
            raise ValueError(message) from error


def unavailable(what: str, reason: str) -> CollectorUnavailableError:
    """
    Build the exception for a query that only CUPTI with a driver can answer.

    Args:
        what: The requested information, as `the values of counter data`.

        reason: Why CUPTI is not used.
    """
    message = f"{what} need CUPTI, which does not answer here: {reason}"
    remedy = "use a machine with a GPU and cupti-python 13.3 or later"
    return CollectorUnavailableError(message, remedy=remedy)
