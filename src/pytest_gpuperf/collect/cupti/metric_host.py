"""The metric host of libcupti, which configures counters and computes metric values.

The same copy of libcupti must create the configuration, count, and evaluate. NVIDIA's own
binding loads a copy of its choice, and is not used for this reason.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from ctypes import c_char_p, c_size_t
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuperf.collect.cupti.libcupti import (
    HOST,
    RANGE_PROFILER,
    Libcupti,
    metric_names,
)
from pytest_gpuperf.collect.cupti.statuses import (
    INVALID_METRIC_NAME,
    INVALID_PARAMETER,
    failure,
)
from pytest_gpuperf.errors import (
    CollectorUnavailableError,
    ConfigError,
    GpuPerfError,
    UnknownMetricError,
)
from pytest_gpuperf.model.launch import CapturedValue

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# From 13.2 on, the host needs a driver. 13.2 crashes without a driver, and later versions
# return an error.
_NEEDS_DRIVER = 130200

# Words of libcupti's units in Nsight Compute's spelling.
_WORDS = {
    "percent": "%",
    "nanosecond": "nsecond",
    "instruction": "inst",
    "unitless": "",
}


class CounterValue(CapturedValue, frozen=True, kw_only=True):
    """
    The value of a counter in one range.

    Attributes:
        value: The number, or None if it was not counted or is not finite.

        unit: The unit in Nsight Compute's spelling, as `byte`, `%` or `inst/cycle`, or "".
    """

    value: float | None
    unit: str


def require_driver(library: Libcupti) -> None:
    """
    Check that the metric functions of a libcupti can be called.

    Raises:
        CollectorUnavailableError: This version needs a driver, and there is none.
    """
    if library.version >= _NEEDS_DRIVER and not library.has_driver():
        message = f"{library.path} cannot configure counters without a CUDA driver"
        raise CollectorUnavailableError(
            message,
            remedy="count on a machine with a GPU; gpuperf metrics passes answers "
            "without one",
        )


class MetricHost:
    """
    Configures the counters of metrics on a chip, and computes the metrics of the counts.

    Args:
        library: The libcupti that also counts.

        chip: As `GH100`.

        metrics: Full names, as `dram__bytes.sum`, at least one.

        profiler_type: CUpti_ProfilerType of the profiler that counts.

        set_name: The single-pass set of the metrics, or None.

    Attributes:
        metrics: Full names, without duplicates.

        image: The configuration image that makes a device count the metrics.

        passes_count: The number of passes, >= 1.

    Raises:
        UnknownMetricError: The chip lacks one metric.

        ConfigError: The chip lacks several metrics.

        CollectError: This libcupti cannot configure the metrics.
    """

    def __init__(
        self,
        library: Libcupti,
        chip: str,
        metrics: Sequence[str],
        *,
        profiler_type: int = RANGE_PROFILER,
        set_name: str | None = None,
    ) -> None:
        require_driver(library)
        self.metrics = tuple(dict.fromkeys(metrics))
        self._library = library
        self._chip = chip
        self._names = metric_names(self.metrics)
        self._handle = _initialized(library, chip, profiler_type, set_name)
        try:
            self.image, self.passes_count = self._configured()
        except GpuPerfError:
            self.close()
            raise

    def close(self) -> None:
        """Free the resources of libcupti. May be called repeatedly."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.call(f"{HOST}Deinitialize", pHostObject=handle)

    def units(self) -> dict[str, str]:
        """Return the unit of every metric, in Nsight Compute's spelling."""
        units = {}
        for name in self.metrics:
            properties = self._library.call(
                f"{HOST}GetMetricProperties",
                pHostObject=self._handle,
                pMetricName=name.encode(),
            )
            units[name] = ncu_unit((properties.pDimUnit or b"").decode())
        return units

    def values(
        self, image: ctypes.Array[ctypes.c_char], index: int, units: Mapping[str, str]
    ) -> dict[str, CounterValue]:
        """
        Return the metrics of a range.

        Args:
            image: The decoded counter data.

            index: The range, from 0.

            units: The unit of each metric.
        """
        numbers = (ctypes.c_double * len(self.metrics))()
        self._library.call(
            f"{HOST}EvaluateToGpuValues",
            pHostObject=self._handle,
            pCounterDataImage=ctypes.addressof(image),
            counterDataImageSize=len(image),
            rangeIndex=index,
            ppMetricNames=self._names,
            numMetrics=len(self._names),
            pMetricValues=numbers,
        )
        return {
            name: CounterValue(
                value=number if math.isfinite(number) else None, unit=units[name]
            )
            for name, number in zip(self.metrics, numbers, strict=True)
        }

    def _configured(self) -> tuple[ctypes.Array[ctypes.c_char], int]:
        host = {"pHostObject": self._handle}
        add = f"{HOST}ConfigAddMetrics"
        metrics = {"ppMetricNames": self._names, "numMetrics": len(self._names)}
        status, _ = self._library.ask(add, **host, **metrics)
        if status:
            function = f"{HOST}GetMetricProperties"
            unknown = [
                name
                for name in self.metrics
                if self._library.ask(function, **host, pMetricName=name.encode())[0]
                in {INVALID_METRIC_NAME, INVALID_PARAMETER}
            ]
            remedy = (
                f"look for it: gpuperf metrics search --chip={self._chip} WORD, and give"
                " its ending too, as .sum"
            )
            if len(unknown) == 1:
                raise UnknownMetricError(unknown[0], remedy=remedy)
            if unknown:
                listed = ", ".join(map(repr, unknown))
                message = f"unknown metrics {listed} of {self._chip}"
                raise ConfigError(message, remedy=remedy)
            raise failure(add, status)
        size = self._library.call(f"{HOST}GetConfigImageSize", **host).configImageSize
        image = ctypes.create_string_buffer(size)
        buffer = {"configImageSize": size, "pConfigImage": ctypes.addressof(image)}
        self._library.call(f"{HOST}GetConfigImage", **host, **buffer)
        passes = self._library.call(f"{HOST}GetNumOfPasses", **buffer).numOfPasses
        return image, int(passes)


def ncu_unit(text: str) -> str:
    """
    Convert a unit of libcupti to Nsight Compute's spelling.

    Example:
        >>> ncu_unit("instruction/gpc_cycle")
        'inst/cycle'
    """
    return "/".join(
        # Cycles of all clocks become `cycle`.
        "cycle" if word.endswith("cycle") else _WORDS.get(word, word)
        for word in text.split("/")
    )


_NO_SCOPE = 2  # CUPTI_METRIC_COLLECTION_SCOPE_INVALID
_SCOPE_SINCE = 130100  # The first version that reports the scope.


class _Properties(NamedTuple):
    """The properties of a metric, as named by NVIDIA's module."""

    description: str
    hw_unit: str
    dim_unit: str
    metric_type: int
    metric_collection_scope: int


class LibraryHost:
    """
    A host that answers from libcupti itself, with the methods of NVIDIA's host.

    *With a driver, only a test double has been tried.*

    Args:
        library: The libcupti to ask.

        chip: A chip that the library supports, as `GH100`.

        profiler_type: CUpti_ProfilerType of the profiler that will collect.

        set_name: A name from `single_pass_sets`, or None.

    Raises:
        CollectError: This libcupti does not know the chip, or needs a driver.
    """

    def __init__(
        self,
        library: Libcupti,
        chip: str,
        profiler_type: int,
        set_name: str | None = None,
    ) -> None:
        require_driver(library)
        self._library = library
        self._chip = chip
        self._type = profiler_type
        self._set = set_name
        self._handle = _initialized(library, chip, profiler_type, set_name)

    def deinitialize(self) -> None:
        """Free the resources of libcupti. May be called repeatedly."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.call(f"{HOST}Deinitialize", pHostObject=handle)

    def create_config_image(self, metrics: Sequence[str]) -> NDArray[np.uint8]:
        """Return the configuration image of metrics."""
        # A separate host, because the configured metrics of a host add up.
        try:
            host = MetricHost(
                self._library,
                self._chip,
                metrics,
                profiler_type=self._type,
                set_name=self._set,
            )
        except (UnknownMetricError, ConfigError) as error:
            raise ValueError(str(error)) from error
        host.close()
        return image_array(host.image.raw)

    def place(self) -> str:
        """
        Return the file of the library, in which another process can try counter data.

        Raises:
            CollectorUnavailableError: There is no driver, so that nothing was counted
                here.
        """
        if not self._library.has_driver():
            message = "the values of counter data need CUPTI and a CUDA driver"
            remedy = "use a machine with a GPU"
            raise CollectorUnavailableError(message, remedy=remedy)
        return self._library.file()

    def evaluate_metric_values(
        self, counter_data_image: NDArray[np.uint8], metrics: Sequence[str], index: int
    ) -> NDArray[np.float64]:
        """
        Return the values of metrics in a range or sample of counted data.

        Raises:
            ValueError: The chip lacks a metric, or the data has no such range.
        """
        import numpy as np

        content = bytes(counter_data_image)
        image = ctypes.create_string_buffer(content, len(content))
        numbers = (ctypes.c_double * len(metrics))()
        function = f"{HOST}EvaluateToGpuValues"
        status, _ = self._library.ask(
            function,
            pHostObject=self._handle,
            pCounterDataImage=ctypes.addressof(image),
            counterDataImageSize=len(content),
            rangeIndex=index,
            ppMetricNames=metric_names(metrics),
            numMetrics=len(metrics),
            pMetricValues=numbers,
        )
        if status in {INVALID_METRIC_NAME, INVALID_PARAMETER}:
            # The status does not show if a metric or the range is missing.
            for name in metrics:
                self.get_metric_properties(name)
            message = f"counter_data_image ({len(content)} bytes) has no range {index}"
            raise ValueError(message)
        if status:
            raise failure(function, status)
        return np.array(numbers, dtype=np.float64)

    def get_base_metrics(self, kind: int) -> list[str]:
        """Return the metrics of a kind."""
        answer = self._ask("GetBaseMetrics", str(kind), metricType=kind)
        return _texts(answer.ppMetricNames, answer.numMetrics)

    def get_sub_metrics(self, name: str, kind: int) -> list[str]:
        """Return the endings of a metric's kind."""
        answer = self._ask(
            "GetSubMetrics", name, metricType=kind, pMetricName=name.encode()
        )
        return _texts(answer.ppSubMetrics, answer.numOfSubmetrics)

    def get_metric_properties(self, name: str) -> _Properties:
        """Return the properties of a metric, with the scope if the library reports a scope."""
        answer = self._ask("GetMetricProperties", name, pMetricName=name.encode())
        knows_scope = self._library.version >= _SCOPE_SINCE
        return _Properties(
            (answer.pDescription or b"").decode(),
            (answer.pHwUnit or b"").decode(),
            (answer.pDimUnit or b"").decode(),
            answer.metricType,
            answer.metricCollectionScope if knows_scope else _NO_SCOPE,
        )

    def _ask(self, function: str, what: str, **fields: Any) -> Any:  # noqa: ANN401 - a structure's fields are of any type
        """Call a function of the host. ValueError is raised if `what` is unknown to the host."""
        name = f"{HOST}{function}"
        status, answer = self._library.ask(name, pHostObject=self._handle, **fields)
        if status in {INVALID_METRIC_NAME, INVALID_PARAMETER}:
            message = f"{self._chip} has no metric {what!r} for this"
            raise ValueError(message)
        if status:
            raise failure(name, status)
        return answer


def image_array(content: bytes) -> NDArray[np.uint8]:
    """
    Return a configuration image in the format of NVIDIA's module.

    Raises:
        CollectorUnavailableError: numpy is not installed.
    """
    try:
        import numpy as np
    except ImportError as error:
        message = "a configuration image needs numpy, which is not installed"
        remedy = 'pip install "pytest-gpuperf[cupti]"'
        raise CollectorUnavailableError(message, remedy=remedy) from error
    return np.frombuffer(content, dtype=np.uint8).copy()


def metrics_per_pass(library: Libcupti, chip: str, profiler_type: int) -> int:
    """
    Return the maximum number of hardware metrics per pass of a profiler.

    Raises:
        CollectError: This libcupti does not report the number.
    """
    require_driver(library)
    answer = library.call(
        f"{HOST}GetMaxNumHardwareMetricsPerPass",
        profilerType=profiler_type,
        pChipName=chip.encode(),
    )
    return int(answer.maxMetricsPerPass)


def single_pass_sets(library: Libcupti, chip: str) -> list[str]:
    """
    Return the names of a chip's single-pass sets of metrics.

    Raises:
        CollectError: This libcupti does not report sets, because it is older than 13.2
            or needs a driver.
    """
    require_driver(library)
    function = f"{HOST}GetSinglePassSets"
    count = library.call(function, pChipName=chip.encode()).numOfSinglePassSets
    names = (c_char_p * count)()
    answer = library.call(
        function,
        pChipName=chip.encode(),
        numOfSinglePassSets=count,
        ppSinglePassSets=names,
    )
    return _texts(names, min(count, answer.numOfSinglePassSets))


def metrics_in_set(library: Libcupti, chip: str, set_name: str) -> list[str]:
    """
    Return the metrics of a set from `single_pass_sets`.

    Raises:
        CollectError: This libcupti does not report sets, or the chip has no such set.
    """
    require_driver(library)
    function = f"{HOST}GetMetricsInSinglePassSet"
    asked = {"pChipName": chip.encode(), "pSinglePassSetName": set_name.encode()}
    sizes = library.call(function, **asked)
    count, size = sizes.numOfMetricsInSinglePassSet, sizes.metricsBufferSize
    places, text = (c_size_t * count)(), ctypes.create_string_buffer(size)
    library.call(
        function,
        **asked,
        numOfMetricsInSinglePassSet=count,
        metricsBufferSize=size,
        pMetricsIndicesBuffer=places,
        pMetricsBuffer=ctypes.addressof(text),
    )
    return [text.raw[place:].partition(b"\0")[0].decode() for place in places]


def _initialized(
    library: Libcupti, chip: str, profiler_type: int, set_name: str | None
) -> int | None:
    name = None if set_name is None else set_name.encode()
    handle: int | None = library.call(
        f"{HOST}Initialize",
        profilerType=profiler_type,
        pChipName=chip.encode(),
        pSinglePassMetricSetName=name,
    ).pHostObject
    return handle


def _texts(names: Any, count: int) -> list[str]:  # noqa: ANN401 - a C array has no type
    return [names[place].decode() for place in range(count)]
