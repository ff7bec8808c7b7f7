"""The parameters of libcupti's profiling calls, as each version lays them out.

Names are those of cupti_range_profiler.h, cupti_profiler_host.h,
cupti_profiler_target.h and cupti_target.h. A structure only ever grew at its end: a call
passes the size that the library in use knows, without the padding behind the last field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import (
    POINTER,
    Array,
    Structure,
    c_char_p,
    c_double,
    c_int,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_void_p,
)
from types import MappingProxyType
from typing import Any, ClassVar

from pytest_gpuperf.collect.cupti.nvperf import struct_size

__all__ = [
    "ALL_CACHES",
    "AUTO_RANGE",
    "CALLS",
    "CAUSES",
    "DISABLED",
    "GREW",
    "HOST",
    "KERNEL_REPLAY",
    "LEAST_VERSION",
    "LIMITED",
    "NO_CACHES",
    "RANGE",
    "RANGE_API",
    "RANGE_PROFILER",
    "SUPPORTED",
    "UNSUPPORTED",
    "USER_RANGE",
    "USER_REPLAY",
    "Parameters",
    "metric_names",
    "size_bytes",
]

# The layouts were compared with the headers of CUDA 12.8 (26), 13.0 to 13.5; those of 12.6
# and 12.7, which have the calls too, were not.
LEAST_VERSION = 26

AUTO_RANGE, USER_RANGE = 1, 2  # CUpti_ProfilerRange
KERNEL_REPLAY, USER_REPLAY = 2, 3  # CUpti_ProfilerReplayMode
NO_CACHES, ALL_CACHES = 0, 1  # CUpti_CacheControl_Mode
RANGE_API = 0  # CUpti_Profiler_API
RANGE_PROFILER = 0  # CUpti_ProfilerType
UNSUPPORTED, DISABLED, SUPPORTED, LIMITED = 1, 2, 3, 4  # CUpti_Profiler_Support_Level

RANGE = "cuptiRangeProfiler"
HOST = "cuptiProfilerHost"


class Parameters(Structure):
    """How every call begins: its size, and a pointer that stays NULL."""

    _fields_: ClassVar = [("structSize", c_size_t), ("pPriv", c_void_p)]


def _parameters(*fields: tuple[str, Any]) -> type[Parameters]:
    """Return the parameters of a call."""
    return type("_Call", (Parameters,), {"_fields_": list(fields)})


_RANGES = ("pRangeProfilerObject", c_void_p)
_HOST = ("pHostObject", c_void_p)
_IMAGE = (("pCounterDataImage", c_void_p), ("counterDataImageSize", c_size_t))
_NEW_IMAGE = (("counterDataSize", c_size_t), ("pCounterData", c_void_p))
_NAMED = ("numMetrics", c_size_t)

# the verdicts of cuptiProfilerDeviceSupported, each on one cause
CAUSES = ("architecture", "sli", "vGpu", "confidentialCompute", "cmp", "wsl", "sku")

CALLS: Mapping[str, type[Parameters]] = MappingProxyType(
    {  # function: the fields of its parameters, in the headers' order
        "cuptiProfilerInitialize": _parameters(),
        "cuptiProfilerDeviceSupported": _parameters(
            ("cuDevice", c_int),
            ("isSupported", c_int),
            *((cause, c_int) for cause in CAUSES[:-1]),
            ("api", c_int),
            (CAUSES[-1], c_int),
        ),
        "cuptiDeviceGetChipName": _parameters(
            ("deviceIndex", c_size_t), ("pChipName", c_char_p)
        ),
        f"{HOST}Initialize": _parameters(
            ("profilerType", c_int),
            ("pChipName", c_char_p),
            ("pCounterAvailabilityImage", c_void_p),
            _HOST,
            ("pSinglePassMetricSetName", c_char_p),
        ),
        f"{HOST}Deinitialize": _parameters(_HOST),
        f"{HOST}GetMetricProperties": _parameters(
            _HOST,
            ("pMetricName", c_char_p),
            ("pDescription", c_char_p),
            ("pHwUnit", c_char_p),
            ("pDimUnit", c_char_p),
            ("metricType", c_int),
            ("metricCollectionScope", c_int),
        ),
        f"{HOST}ConfigAddMetrics": _parameters(
            _HOST, ("ppMetricNames", POINTER(c_char_p)), _NAMED
        ),
        f"{HOST}GetConfigImageSize": _parameters(_HOST, ("configImageSize", c_size_t)),
        f"{HOST}GetConfigImage": _parameters(
            _HOST, ("configImageSize", c_size_t), ("pConfigImage", c_void_p)
        ),
        f"{HOST}GetNumOfPasses": _parameters(
            ("configImageSize", c_size_t),
            ("pConfigImage", c_void_p),
            ("numOfPasses", c_size_t),
        ),
        f"{HOST}EvaluateToGpuValues": _parameters(
            _HOST,
            *_IMAGE,
            ("rangeIndex", c_size_t),
            ("ppMetricNames", POINTER(c_char_p)),
            _NAMED,
            ("pMetricValues", POINTER(c_double)),
        ),
        f"{RANGE}Enable": _parameters(
            ("ctx", c_void_p), _RANGES, ("cacheControlMode", c_int)
        ),
        f"{RANGE}Disable": _parameters(_RANGES),
        f"{RANGE}GetCounterDataSize": _parameters(
            _RANGES,
            ("pMetricNames", POINTER(c_char_p)),
            _NAMED,
            ("maxNumOfRanges", c_size_t),
            ("maxNumRangeTreeNodes", c_uint32),
            ("counterDataSize", c_size_t),
        ),
        f"{RANGE}CounterDataImageInitialize": _parameters(_RANGES, *_NEW_IMAGE),
        f"{RANGE}SetConfig": _parameters(
            _RANGES,
            ("configSize", c_size_t),
            ("pConfig", c_void_p),
            ("counterDataImageSize", c_size_t),
            ("pCounterDataImage", c_void_p),
            ("range", c_int),
            ("replayMode", c_int),
            ("maxRangesPerPass", c_size_t),
            ("numNestingLevels", c_uint16),
            ("minNestingLevel", c_uint16),
            ("passIndex", c_size_t),
            ("targetNestingLevel", c_uint16),
        ),
        f"{RANGE}Start": _parameters(_RANGES),
        f"{RANGE}Stop": _parameters(
            _RANGES,
            ("passIndex", c_size_t),
            ("targetNestingLevel", c_size_t),
            ("isAllPassSubmitted", c_uint8),
        ),
        f"{RANGE}PushRange": _parameters(_RANGES, ("pRangeName", c_char_p)),
        f"{RANGE}PopRange": _parameters(_RANGES),
        f"{RANGE}DecodeData": _parameters(_RANGES, ("numOfRangeDropped", c_size_t)),
        f"{RANGE}GetCounterDataInfo": _parameters(
            *_IMAGE, ("numTotalRanges", c_size_t)
        ),
        f"{RANGE}CounterDataGetRangeInfo": _parameters(
            *_IMAGE,
            ("rangeIndex", c_size_t),
            ("rangeDelimiter", c_char_p),
            ("rangeName", c_char_p),
        ),
    }
)

# function: since which version (CUPTI_API_VERSION) it has its last field
GREW: Mapping[str, int] = MappingProxyType(
    {
        f"{HOST}GetMetricProperties": 130100,
        "cuptiProfilerDeviceSupported": 130100,
        f"{HOST}Initialize": 130200,
        f"{RANGE}Enable": 130400,
    }
)


def size_bytes(function: str, version: int) -> int:
    """
    Return the size of a call's parameters in one version of libcupti.

    Args:
        function: Its name, of CALLS.

        version: What cuptiGetVersion says, as 130400; 26 to 28 are those of CUDA 12.

    Example:
        >>> size_bytes("cuptiRangeProfilerEnable", 130001)
        32
    """
    parameters = CALLS[function]
    if version >= GREW.get(function, 0):
        return struct_size(parameters)
    last = vars(parameters)["_fields_"][-1][0]
    return int(getattr(parameters, last).offset)  # nothing is padded before these


def metric_names(names: Sequence[str]) -> Array[c_char_p]:
    """Return names as C has them; it must outlive the call that it is given to."""
    return (c_char_p * len(names))(*(name.encode() for name in names))
