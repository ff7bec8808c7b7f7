"""libnvperf_host: its binary interface, and the copy that this process loads.

Structures and numbers are taken from nvperf_host.h, nvperf_cuda_host.h and
nvperf_target.h, which the wheel nvidia-cuda-cupti ships. The size of a structure is the end
of its last field, without the padding after it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint8, c_uint32, c_void_p
from pathlib import Path
from typing import Any, ClassVar

from pytest_gpuperf.errors import CollectError, CollectorUnavailableError

LIBRARY_VARIABLE = "GPUPERF_NVPERF_HOST"  # The path of the library to load.
_NAME = "libnvperf_host.so"
_REMEDY = "pip install 'pytest-gpuperf[cupti]', which brings it"
# Another version of the library may support the call.
_UNSUPPORTED = frozenset({3, 4, 5, 6, 7})

_FUNCTION_NOT_FOUND = 5  # NVPA_Status, nvperf_common.h
INVALID_ARGUMENT = 8
UNSUPPORTED_GPU = 14
# NVPA_Status, as far as a host library can return it.
_STATUS = {
    1: "ERROR",
    2: "INTERNAL_ERROR",
    3: "NOT_INITIALIZED",
    4: "NOT_LOADED",
    _FUNCTION_NOT_FOUND: "FUNCTION_NOT_FOUND",
    6: "NOT_SUPPORTED",
    7: "NOT_IMPLEMENTED",
    INVALID_ARGUMENT: "INVALID_ARGUMENT",
    10: "DRIVER_NOT_LOADED",
    11: "OUT_OF_MEMORY",
    UNSUPPORTED_GPU: "UNSUPPORTED_GPU",
    15: "INSUFFICIENT_DRIVER_VERSION",
    17: "INSUFFICIENT_PRIVILEGE",
    20: "RESOURCE_UNAVAILABLE",
    22: "INSUFFICIENT_SPACE",
}

ROLLUPS = ("avg", "max", "min", "sum")  # NVPW_RollupOp
SUBMETRICS = (  # NVPW_Submetric
    "",
    "peak_sustained",
    "peak_sustained_active",
    "peak_sustained_active.per_second",
    "peak_sustained_elapsed",
    "peak_sustained_elapsed.per_second",
    "peak_sustained_frame",
    "peak_sustained_frame.per_second",
    "peak_sustained_region",
    "peak_sustained_region.per_second",
    "per_cycle_active",
    "per_cycle_elapsed",
    "per_cycle_in_frame",
    "per_cycle_in_region",
    "per_second",
    "pct_of_peak_sustained_active",
    "pct_of_peak_sustained_elapsed",
    "pct_of_peak_sustained_frame",
    "pct_of_peak_sustained_region",
    "max_rate",
    "pct",
    "ratio",
)
ACTIVITY_PROFILER = 1  # NVPA_ACTIVITY_KIND_PROFILER, nvperf_common.h


class Parameters(ctypes.Structure):
    """The first fields of all parameters: the size of the structure, and a NULL pointer."""

    _fields_: ClassVar = [("structSize", c_size_t), ("pPriv", c_void_p)]


def parameters_of(*fields: tuple[str, Any]) -> type[Parameters]:
    """Return a parameter structure with the given fields."""
    return type("_Call", (Parameters,), {"_fields_": list(fields)})


def struct_size(structure: type[ctypes.Structure]) -> int:
    """Return the size of a structure [B], up to the end of the last field."""
    names = [
        name
        for kind in structure.__mro__
        for name, *_ in vars(kind).get("_fields_", ())
    ]
    fields = (getattr(structure, name) for name in names)
    return max(int(field.offset + field.size) for field in fields)


class EvalRequest(ctypes.Structure):
    """NVPW_MetricEvalRequest."""

    _fields_: ClassVar = [
        ("metricIndex", c_size_t),
        ("metricType", c_uint8),
        ("rollupOp", c_uint8),
        ("submetric", ctypes.c_uint16),
    ]


class DimUnitFactor(ctypes.Structure):
    """NVPW_DimUnitFactor."""

    _fields_: ClassVar = [("dimUnit", c_uint32), ("exponent", ctypes.c_int8)]


class RawMetricRequest(Parameters):
    """NVPA_RawMetricRequest."""

    _fields_: ClassVar = [
        ("pMetricName", c_char_p),
        ("isolated", c_uint8),
        ("keepInstances", c_uint8),
    ]


EVALUATOR = "NVPW_MetricsEvaluator_"
CUDA_EVALUATOR = "NVPW_CUDA_MetricsEvaluator_"
RAW_CONFIG = "NVPW_RawMetricsConfig_"
CREATE_CONFIG = "NVPW_CUDA_RawMetricsConfig_Create_V2"

_EVALUATOR = ("pMetricsEvaluator", c_void_p)
_CONFIG = ("pRawMetricsConfig", c_void_p)
_CHIP = ("pChipName", c_char_p)
_AVAILABLE = ("pCounterAvailabilityImage", c_void_p)
_REQUESTS = ("pMetricEvalRequests", POINTER(EvalRequest))
_INDEX = ("index", c_size_t)
_DESCRIPTION = ("pDescription", c_char_p)
# Function -> the fields of its parameters, in the headers' order.
CALLS = {
    "NVPW_InitializeHost": parameters_of(),
    "NVPW_GetSupportedChipNames": parameters_of(
        ("ppChipNames", POINTER(c_char_p)), ("numChipNames", c_size_t)
    ),
    "NVPW_Config_GetNumPasses_V2": parameters_of(
        ("pConfig", c_void_p), ("numPasses", c_size_t)
    ),
    f"{CUDA_EVALUATOR}CalculateScratchBufferSize": parameters_of(
        _CHIP, _AVAILABLE, ("scratchBufferSize", c_size_t)
    ),
    f"{CUDA_EVALUATOR}Initialize": parameters_of(
        ("pScratchBuffer", c_void_p),
        ("scratchBufferSize", c_size_t),
        _CHIP,
        _AVAILABLE,
        ("pCounterDataImage", c_void_p),
        ("counterDataImageSize", c_size_t),
        _EVALUATOR,
    ),
    f"{EVALUATOR}GetMetricNames": parameters_of(
        _EVALUATOR,
        ("metricType", c_uint8),
        ("pMetricNames", c_void_p),
        ("pMetricNameBeginIndices", POINTER(c_size_t)),
        ("numMetrics", c_size_t),
    ),
    f"{EVALUATOR}GetMetricTypeAndIndex": parameters_of(
        _EVALUATOR,
        ("pMetricName", c_char_p),
        ("metricType", c_uint8),
        ("metricIndex", c_size_t),
    ),
    f"{EVALUATOR}ConvertMetricNameToMetricEvalRequest": parameters_of(
        _EVALUATOR,
        ("pMetricName", c_char_p),
        ("pMetricEvalRequest", POINTER(EvalRequest)),
        ("metricEvalRequestStructSize", c_size_t),
    ),
    f"{EVALUATOR}HwUnitToString": parameters_of(
        _EVALUATOR, ("hwUnit", c_uint32), ("pHwUnitName", c_char_p)
    ),
    f"{EVALUATOR}GetCounterProperties": parameters_of(
        _EVALUATOR, _INDEX, _DESCRIPTION, ("hwUnit", c_uint32)
    ),
    f"{EVALUATOR}GetRatioMetricProperties": parameters_of(
        _EVALUATOR, _INDEX, _DESCRIPTION, ("hwUnit", ctypes.c_uint64)
    ),
    f"{EVALUATOR}GetThroughputMetricProperties": parameters_of(
        _EVALUATOR,
        _INDEX,
        _DESCRIPTION,
        ("hwUnit", c_uint32),
        ("numCounters", c_size_t),
        ("pCounterIndices", POINTER(c_size_t)),
        ("numSubThroughputs", c_size_t),
        ("pSubThroughputIndices", POINTER(c_size_t)),
    ),
    f"{EVALUATOR}GetSupportedSubmetrics": parameters_of(
        _EVALUATOR,
        ("metricType", c_uint8),
        ("pSupportedSubmetrics", POINTER(ctypes.c_uint16)),
        ("numSupportedSubmetrics", c_size_t),
    ),
    f"{EVALUATOR}GetMetricRawDependencies": parameters_of(
        _EVALUATOR,
        _REQUESTS,
        ("numMetricEvalRequests", c_size_t),
        ("metricEvalRequestStructSize", c_size_t),
        ("metricEvalRequestStrideSize", c_size_t),
        ("ppRawDependencies", POINTER(c_char_p)),
        ("numRawDependencies", c_size_t),
        ("ppOptionalRawDependencies", POINTER(c_char_p)),
        ("numOptionalRawDependencies", c_size_t),
    ),
    f"{EVALUATOR}DimUnitToString": parameters_of(
        _EVALUATOR,
        ("dimUnit", c_uint32),
        ("pSingularName", c_char_p),
        ("pPluralName", c_char_p),
    ),
    f"{EVALUATOR}GetMetricDimUnits": parameters_of(
        _EVALUATOR,
        ("pMetricEvalRequest", POINTER(EvalRequest)),
        ("metricEvalRequestStructSize", c_size_t),
        ("pDimUnits", POINTER(DimUnitFactor)),
        ("numDimUnits", c_size_t),
        ("dimUnitFactorStructSize", c_size_t),
    ),
    CREATE_CONFIG: parameters_of(("activityKind", c_int), _CHIP, _AVAILABLE, _CONFIG),
    f"{RAW_CONFIG}Destroy": parameters_of(_CONFIG),
    f"{RAW_CONFIG}BeginPassGroup": parameters_of(_CONFIG, ("maxPassCount", c_size_t)),
    f"{RAW_CONFIG}AddMetrics": parameters_of(
        _CONFIG,
        ("pRawMetricRequests", POINTER(RawMetricRequest)),
        ("numMetricRequests", c_size_t),
    ),
    f"{RAW_CONFIG}EndPassGroup": parameters_of(_CONFIG),
    f"{RAW_CONFIG}GetNumPasses_V2": parameters_of(_CONFIG, ("numPasses", c_size_t)),
    f"{RAW_CONFIG}GenerateConfigImage": parameters_of(
        _CONFIG, ("mergeAllPassGroups", c_uint8)
    ),
    f"{RAW_CONFIG}GetConfigImage": parameters_of(
        _CONFIG,
        ("bytesAllocated", c_size_t),
        ("pBuffer", c_void_p),
        ("bytesCopied", c_size_t),
    ),
}
SIZES = {function: struct_size(parameters) for function, parameters in CALLS.items()}


def find_libraries() -> Iterator[str]:
    """
    Yield the paths of libnvperf_host, preferred first.

    Wheels come before toolkits, because a project pins its wheels.
    """
    for package, pattern in (
        ("nvidia", f"cu*/lib/{_NAME}"),
        ("nvidia", f"cuda_cupti/lib/{_NAME}"),
        ("ncu_report", _NAME),
    ):
        for folder in package_folders(package):
            yield from _newest_first(folder, pattern)
    yield from _newest_first(Path("/usr/local"), f"cuda*/extras/CUPTI/lib64/{_NAME}")
    yield from _newest_first(Path("/opt/nvidia/nsight-compute"), f"*/host/*/{_NAME}")


def package_folders(package: str) -> list[Path]:
    """Return the folders of a package, without an import, or [] if not installed."""
    try:
        spec = importlib.util.find_spec(package)
    # The package was created in this process, and has no folder.
    except ValueError:
        return []
    return [Path(path) for path in (spec and spec.submodule_search_locations) or ()]


def _newest_first(folder: Path, pattern: str) -> list[str]:
    return sorted(map(str, folder.glob(pattern)), reverse=True)


@functools.cache
def load() -> Library:
    """
    Return the library of this process: $GPUPERF_NVPERF_HOST, else the first that loads.

    Raises:
        CollectorUnavailableError: No library loads, or the named one does not.
    """
    path = os.environ.get(LIBRARY_VARIABLE)
    if path:
        try:
            return Library(path)
        except CollectError as error:
            installed = next(find_libraries(), None)
            alternative = f"use {installed}" if installed else _REMEDY
            message = f"{LIBRARY_VARIABLE} is {path}: {error.message}"
            remedy = f"set it to the path of a {_NAME}, or unset it and {alternative}"
            raise CollectorUnavailableError(message, remedy=remedy) from error
    reasons: list[str] = []
    for path in find_libraries():
        try:
            return Library(path)
        except CollectError as error:
            reasons.append(error.message)
    message = "; ".join(reasons) or f"{_NAME} is not installed: it lists the metrics"
    raise CollectorUnavailableError(message, remedy=_REMEDY)


class Library:
    """
    A loaded libnvperf_host.

    Attributes:
        path: The file that was loaded.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            message = f"{_NAME} does not load ({error})"
            raise CollectorUnavailableError(message, remedy=_REMEDY) from error
        self.call("NVPW_InitializeHost")

    def ask(self, function: str, **fields: Any) -> tuple[int, Any]:  # noqa: ANN401 - a structure's fields are of any type
        """
        Call a function of the library.

        Args:
            function: The name of the function.

            **fields: Fields of the parameters, by the headers' names.

        Returns:
            The status, and the parameters as filled in by the library.
        """
        parameters = CALLS[function](SIZES[function], None, **fields)
        try:
            entry_point = getattr(self._library, function)
        except AttributeError:
            return _FUNCTION_NOT_FOUND, parameters
        return entry_point(ctypes.byref(parameters)), parameters

    def call(self, function: str, **fields: Any) -> Any:  # noqa: ANN401 - see above
        """
        Call a function, and raise an exception if the call fails. See `ask` for the
        arguments.

        Raises:
            CollectorUnavailableError: This version of the library does not support the
                call.

            CollectError: The call failed.
        """
        status, parameters = self.ask(function, **fields)
        if status:
            name = _STATUS.get(status, "unknown status")
            message = f"{function} of {self.path} failed: {status} ({name})"
            if status in _UNSUPPORTED:
                raise CollectorUnavailableError(message, remedy=_REMEDY)
            remedy = "count fewer metrics, or try another version of the library"
            raise CollectError(message, remedy=remedy)
        return parameters

    def chips(self) -> tuple[str, ...]:
        """Return the known chips, as `GH100`, oldest first."""
        answer = self.call("NVPW_GetSupportedChipNames")
        return tuple(
            answer.ppChipNames[index].decode() for index in range(answer.numChipNames)
        )

    def passes_of(self, image: bytes) -> int:
        """Return the number of passes of a configuration image, >= 0."""
        buffer = ctypes.create_string_buffer(image, len(image))
        answer = self.call(
            "NVPW_Config_GetNumPasses_V2", pConfig=ctypes.addressof(buffer)
        )
        return int(answer.numPasses)
