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
import re
from collections.abc import Iterator, Mapping
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_int,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from types import MappingProxyType
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
        ("submetric", c_uint16),
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

# The types of members, by their names in C.
_TYPES = {
    "int": c_int,
    "uint8_t": c_uint8,
    "uint16_t": c_uint16,
    "uint32_t": c_uint32,
    "uint64_t": c_uint64,
    "size_t": c_size_t,
    "void*": c_void_p,
    "char*": c_char_p,
    "char**": POINTER(c_char_p),
    "double*": POINTER(c_double),
    "uint16_t*": POINTER(c_uint16),
    "size_t*": POINTER(c_size_t),
    "EvalRequest*": POINTER(EvalRequest),
    "DimUnitFactor*": POINTER(DimUnitFactor),
    "RawMetricRequest*": POINTER(RawMetricRequest),
}


def declared(functions: str) -> Mapping[str, type[Parameters]]:
    """
    Return the parameter structures of functions, by function.

    Args:
        functions: Declarations as in C, as `function(size_t count, char* name)`.
    """
    calls = {}
    for function, members in re.findall(r"(\w+)\(([^)]*)\)", functions):
        pairs = (member.split() for member in members.split(",") if member)
        fields = [(name, _TYPES[kind]) for kind, name in pairs]
        calls[function] = type("_Call", (Parameters,), {"_fields_": fields})
    return MappingProxyType(calls)


# The parameters of each function, in the headers' order.
CALLS = declared(
    """
    NVPW_InitializeHost()
    NVPW_GetSupportedChipNames(char** ppChipNames, size_t numChipNames)
    NVPW_Config_GetNumPasses_V2(void* pConfig, size_t numPasses)
    NVPW_CUDA_MetricsEvaluator_CalculateScratchBufferSize(char* pChipName,
        void* pCounterAvailabilityImage, size_t scratchBufferSize)
    NVPW_CUDA_MetricsEvaluator_Initialize(void* pScratchBuffer, size_t scratchBufferSize,
        char* pChipName, void* pCounterAvailabilityImage, void* pCounterDataImage,
        size_t counterDataImageSize, void* pMetricsEvaluator)
    NVPW_MetricsEvaluator_GetMetricNames(void* pMetricsEvaluator, uint8_t metricType,
        void* pMetricNames, size_t* pMetricNameBeginIndices, size_t numMetrics)
    NVPW_MetricsEvaluator_GetMetricTypeAndIndex(void* pMetricsEvaluator, char* pMetricName,
        uint8_t metricType, size_t metricIndex)
    NVPW_MetricsEvaluator_ConvertMetricNameToMetricEvalRequest(void* pMetricsEvaluator,
        char* pMetricName, EvalRequest* pMetricEvalRequest,
        size_t metricEvalRequestStructSize)
    NVPW_MetricsEvaluator_HwUnitToString(void* pMetricsEvaluator, uint32_t hwUnit,
        char* pHwUnitName)
    NVPW_MetricsEvaluator_GetCounterProperties(void* pMetricsEvaluator, size_t index,
        char* pDescription, uint32_t hwUnit)
    NVPW_MetricsEvaluator_GetRatioMetricProperties(void* pMetricsEvaluator, size_t index,
        char* pDescription, uint64_t hwUnit)
    NVPW_MetricsEvaluator_GetThroughputMetricProperties(void* pMetricsEvaluator,
        size_t index, char* pDescription, uint32_t hwUnit, size_t numCounters,
        size_t* pCounterIndices, size_t numSubThroughputs, size_t* pSubThroughputIndices)
    NVPW_MetricsEvaluator_GetSupportedSubmetrics(void* pMetricsEvaluator,
        uint8_t metricType, uint16_t* pSupportedSubmetrics, size_t numSupportedSubmetrics)
    NVPW_MetricsEvaluator_GetMetricRawDependencies(void* pMetricsEvaluator,
        EvalRequest* pMetricEvalRequests, size_t numMetricEvalRequests,
        size_t metricEvalRequestStructSize, size_t metricEvalRequestStrideSize,
        char** ppRawDependencies, size_t numRawDependencies,
        char** ppOptionalRawDependencies, size_t numOptionalRawDependencies)
    NVPW_MetricsEvaluator_DimUnitToString(void* pMetricsEvaluator, uint32_t dimUnit,
        char* pSingularName, char* pPluralName)
    NVPW_MetricsEvaluator_GetMetricDimUnits(void* pMetricsEvaluator,
        EvalRequest* pMetricEvalRequest, size_t metricEvalRequestStructSize,
        DimUnitFactor* pDimUnits, size_t numDimUnits, size_t dimUnitFactorStructSize)
    NVPW_CUDA_RawMetricsConfig_Create_V2(int activityKind, char* pChipName,
        void* pCounterAvailabilityImage, void* pRawMetricsConfig)
    NVPW_RawMetricsConfig_Destroy(void* pRawMetricsConfig)
    NVPW_RawMetricsConfig_BeginPassGroup(void* pRawMetricsConfig, size_t maxPassCount)
    NVPW_RawMetricsConfig_AddMetrics(void* pRawMetricsConfig,
        RawMetricRequest* pRawMetricRequests, size_t numMetricRequests)
    NVPW_RawMetricsConfig_EndPassGroup(void* pRawMetricsConfig)
    NVPW_RawMetricsConfig_GetNumPasses_V2(void* pRawMetricsConfig, size_t numPasses)
    NVPW_RawMetricsConfig_GenerateConfigImage(void* pRawMetricsConfig,
        uint8_t mergeAllPassGroups)
    NVPW_RawMetricsConfig_GetConfigImage(void* pRawMetricsConfig, size_t bytesAllocated,
        void* pBuffer, size_t bytesCopied)
    """
)
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
