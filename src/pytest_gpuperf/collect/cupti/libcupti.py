"""libcupti in this process: found, loaded and called, as each version lays its calls out.

Names are those of cupti_range_profiler.h, cupti_profiler_host.h,
cupti_profiler_target.h and cupti_target.h. A structure only ever grew at its end: a call
passes the size that the library in use knows, without the padding behind the last field.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import (
    POINTER,
    Array,
    c_char_p,
    c_double,
    c_int,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_void_p,
)
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_gpuperf.collect.cupti.nvperf import (
    Parameters,
    package_folders,
    parameters_of,
    struct_size,
)
from pytest_gpuperf.collect.cupti.statuses import (
    NO_FUNCTION,
    failure,
    limited,
    unsupported,
)
from pytest_gpuperf.collect.runtime import LoadedLibrary, driver_library, raise_failure
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Note

__all__ = [
    "ALL_CACHES",
    "AUTO_RANGE",
    "CALLS",
    "GREW",
    "HOST",
    "KERNEL_REPLAY",
    "NO_CACHES",
    "RANGE",
    "RANGE_PROFILER",
    "USER_RANGE",
    "USER_REPLAY",
    "Context",
    "Libcupti",
    "find_libraries",
    "first_usable",
    "load",
    "metric_names",
    "size_bytes",
]

# The layouts were compared with the headers of CUDA 12.8 (26), 13.0 to 13.5; those of 12.6
# and 12.7, which have the calls too, were not.
_LEAST_VERSION = 26

AUTO_RANGE, USER_RANGE = 1, 2  # CUpti_ProfilerRange
KERNEL_REPLAY, USER_REPLAY = 2, 3  # CUpti_ProfilerReplayMode
NO_CACHES, ALL_CACHES = 0, 1  # CUpti_CacheControl_Mode
_RANGE_API = 0  # CUpti_Profiler_API
RANGE_PROFILER = 0  # CUpti_ProfilerType

RANGE = "cuptiRangeProfiler"
HOST = "cuptiProfilerHost"


_RANGES = ("pRangeProfilerObject", c_void_p)
_HOST = ("pHostObject", c_void_p)
_IMAGE = (("pCounterDataImage", c_void_p), ("counterDataImageSize", c_size_t))
_NEW_IMAGE = (("counterDataSize", c_size_t), ("pCounterData", c_void_p))
_COUNT = ("numMetrics", c_size_t)

# the verdicts of cuptiProfilerDeviceSupported, each on one cause
_CAUSES = ("architecture", "sli", "vGpu", "confidentialCompute", "cmp", "wsl", "sku")

CALLS: Mapping[str, type[Parameters]] = MappingProxyType(
    {  # function: the fields of its parameters, in the headers' order
        "cuptiProfilerInitialize": parameters_of(),
        "cuptiProfilerDeviceSupported": parameters_of(
            ("cuDevice", c_int),
            ("isSupported", c_int),
            *((cause, c_int) for cause in _CAUSES[:-1]),
            ("api", c_int),
            (_CAUSES[-1], c_int),
        ),
        "cuptiDeviceGetChipName": parameters_of(
            ("deviceIndex", c_size_t), ("pChipName", c_char_p)
        ),
        f"{HOST}Initialize": parameters_of(
            ("profilerType", c_int),
            ("pChipName", c_char_p),
            ("pCounterAvailabilityImage", c_void_p),
            _HOST,
            ("pSinglePassMetricSetName", c_char_p),
        ),
        f"{HOST}Deinitialize": parameters_of(_HOST),
        f"{HOST}GetBaseMetrics": parameters_of(
            _HOST,
            ("metricType", c_int),
            ("ppMetricNames", POINTER(c_char_p)),
            _COUNT,
        ),
        f"{HOST}GetSubMetrics": parameters_of(
            _HOST,
            ("metricType", c_int),
            ("pMetricName", c_char_p),
            ("numOfSubmetrics", c_size_t),
            ("ppSubMetrics", POINTER(c_char_p)),
        ),
        f"{HOST}GetMaxNumHardwareMetricsPerPass": parameters_of(
            ("profilerType", c_int),
            ("pChipName", c_char_p),
            ("pCounterAvailabilityImage", c_void_p),
            ("maxMetricsPerPass", c_size_t),
        ),
        f"{HOST}GetSinglePassSets": parameters_of(
            ("pChipName", c_char_p),
            ("numOfSinglePassSets", c_size_t),
            ("ppSinglePassSets", POINTER(c_char_p)),
        ),
        f"{HOST}GetMetricsInSinglePassSet": parameters_of(
            ("pChipName", c_char_p),
            ("pSinglePassSetName", c_char_p),
            ("numOfMetricsInSinglePassSet", c_size_t),
            ("metricsBufferSize", c_size_t),
            ("pMetricsIndicesBuffer", POINTER(c_size_t)),
            ("pMetricsBuffer", c_void_p),
        ),
        f"{HOST}GetMetricProperties": parameters_of(
            _HOST,
            ("pMetricName", c_char_p),
            ("pDescription", c_char_p),
            ("pHwUnit", c_char_p),
            ("pDimUnit", c_char_p),
            ("metricType", c_int),
            ("metricCollectionScope", c_int),
        ),
        f"{HOST}ConfigAddMetrics": parameters_of(
            _HOST, ("ppMetricNames", POINTER(c_char_p)), _COUNT
        ),
        f"{HOST}GetConfigImageSize": parameters_of(
            _HOST, ("configImageSize", c_size_t)
        ),
        f"{HOST}GetConfigImage": parameters_of(
            _HOST, ("configImageSize", c_size_t), ("pConfigImage", c_void_p)
        ),
        f"{HOST}GetNumOfPasses": parameters_of(
            ("configImageSize", c_size_t),
            ("pConfigImage", c_void_p),
            ("numOfPasses", c_size_t),
        ),
        f"{HOST}EvaluateToGpuValues": parameters_of(
            _HOST,
            *_IMAGE,
            ("rangeIndex", c_size_t),
            ("ppMetricNames", POINTER(c_char_p)),
            _COUNT,
            ("pMetricValues", POINTER(c_double)),
        ),
        f"{RANGE}Enable": parameters_of(
            ("ctx", c_void_p), _RANGES, ("cacheControlMode", c_int)
        ),
        f"{RANGE}Disable": parameters_of(_RANGES),
        f"{RANGE}GetCounterDataSize": parameters_of(
            _RANGES,
            ("pMetricNames", POINTER(c_char_p)),
            _COUNT,
            ("maxNumOfRanges", c_size_t),
            ("maxNumRangeTreeNodes", c_uint32),
            ("counterDataSize", c_size_t),
        ),
        f"{RANGE}CounterDataImageInitialize": parameters_of(_RANGES, *_NEW_IMAGE),
        f"{RANGE}SetConfig": parameters_of(
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
        f"{RANGE}Start": parameters_of(_RANGES),
        f"{RANGE}Stop": parameters_of(
            _RANGES,
            ("passIndex", c_size_t),
            ("targetNestingLevel", c_size_t),
            ("isAllPassSubmitted", c_uint8),
        ),
        f"{RANGE}PushRange": parameters_of(_RANGES, ("pRangeName", c_char_p)),
        f"{RANGE}PopRange": parameters_of(_RANGES),
        f"{RANGE}DecodeData": parameters_of(_RANGES, ("numOfRangeDropped", c_size_t)),
        f"{RANGE}GetCounterDataInfo": parameters_of(
            *_IMAGE, ("numTotalRanges", c_size_t)
        ),
        f"{RANGE}CounterDataGetRangeInfo": parameters_of(
            *_IMAGE,
            ("rangeIndex", c_size_t),
            ("rangeDelimiter", c_char_p),
            ("rangeName", c_char_p),
        ),
    }
)

# by function: the version (CUPTI_API_VERSION) that added its last field
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

        version: The answer of cuptiGetVersion, as 130400; 26 to 28 are CUDA 12.

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
    """Return names as a C array, which must outlive the call that uses it."""
    return (c_char_p * len(names))(*(name.encode() for name in names))


_NAMES = ("libcupti.so.13", "libcupti.so.12")  # as a loader knows them, newest first
_WINDOWS_NAME = "cupti64.dll"  # real names have a date: on Windows none is found
_REMEDY = "pip install 'pytest-gpuperf[cupti]', which brings it"
_MAJOR = 10_000  # 13.4 is 130400; until CUDA 12 versions were consecutive numbers

_NOT_INITIALIZED = 3  # CUresult: the driver is loaded, and nobody has started it
_CLOCK_STATES = {  # CUpti_ClockControl_Status
    1: "unlocked",
    2: "locked",
    3: "locked to a floor",
    4: "boost enabled",
    5: "boost disabled",
}


class Context(Frozen, frozen=True, kw_only=True):
    """
    A CUDA context that is current in a thread.

    Attributes:
        handle: Its address.

        device: The ordinal of its device in this process.
    """

    handle: int
    device: int


def find_libraries() -> Iterator[Path]:
    """Yield the paths of libcupti, the preferred first: wheels come before toolkits."""
    for folder in package_folders("nvidia"):
        for package in ("cu13", "cuda_cupti"):
            for name in _NAMES:
                yield from folder.glob(f"{package}/lib/{name}")
    for toolkit in sorted(Path("/usr/local").glob("cuda*"), reverse=True):
        for name in _NAMES:
            yield from toolkit.glob(f"extras/CUPTI/lib64/{name}")
            yield from toolkit.glob(f"lib64/{name}")


@functools.cache
def load() -> Libcupti:
    """
    Return the libcupti of this process.

    One that is already loaded, as by torch, is preferred: a second copy would miss what
    the first one does.

    Raises:
        CollectorUnavailableError: No supported libcupti loads.
    """
    for name in _NAMES:
        loaded = LoadedLibrary(name, windows_name=_WINDOWS_NAME)()
        if loaded is not None:
            return Libcupti(loaded, path=name)
    return first_usable(find_libraries())


def first_usable(paths: Iterable[Path]) -> Libcupti:
    """
    Return the first libcupti that loads and has a supported version.

    Raises:
        CollectorUnavailableError: There is none; the message has the reason of each.
    """
    reasons = []
    for path in paths:
        try:
            return Libcupti(ctypes.CDLL(str(path)), path=str(path))
        except (OSError, CollectorUnavailableError) as error:
            reasons.append(f"{path}: {getattr(error, 'message', error)}")
    message = "; ".join(reasons) or "libcupti is not installed: it counts on the GPU"
    raise CollectorUnavailableError(message, remedy=_REMEDY)


class Libcupti:
    """
    A loaded libcupti.

    Seen on an H200: 13.0. *Unverified on hardware:* the others.

    Args:
        library: Its functions, as ctypes has them.

        path: The file that was loaded, for messages.

        driver: Returns the CUDA driver library if it is loaded, None while it is not.

    Attributes:
        path: The file that was loaded.

        version: Its API version, as 130400, or 26 of CUDA 12.8.

    Raises:
        CollectorUnavailableError: It is older than CUDA 12.8, or does not report its
            version, as from 13.3 on without a driver.
    """

    def __init__(
        self,
        library: Any,  # noqa: ANN401 - a ctypes library has no type
        *,
        path: str,
        driver: Callable[[], Any | None] | None = None,
    ) -> None:
        self.path = path
        self._library = library
        self._driver = driver_library() if driver is None else driver
        version = ctypes.c_uint32()
        status = int(library.cuptiGetVersion(ctypes.byref(version)))
        if status:  # from 13.3 on also without a driver
            raise failure("cuptiGetVersion", status)
        self.version = version.value
        if self.version < _LEAST_VERSION:
            message = f"{path} has API version {self.version}, older than CUDA 12.8"
            raise CollectorUnavailableError(message, remedy=_REMEDY)

    @property
    def name(self) -> str:
        """Tool and version, as in the facts of counters: "cupti 13.4"."""
        major, rest = divmod(self.version, _MAJOR)
        return f"cupti {major}.{rest // 100}" if major else f"cupti API {self.version}"

    def ask(self, function: str, **fields: Any) -> tuple[int, Any]:  # noqa: ANN401 - a structure's fields are of any type
        """
        Call a function of CALLS.

        Args:
            function: Its name.

            **fields: Fields of its parameters, by the headers' names.

        Returns:
            Its status, and its parameters as the library filled them in.
        """
        size = size_bytes(function, self.version)
        parameters = CALLS[function](size, None, **fields)
        entry_point = getattr(self._library, function, None)
        if entry_point is None:
            return NO_FUNCTION, parameters
        return int(entry_point(ctypes.byref(parameters))), parameters

    def call(self, function: str, **fields: Any) -> Any:  # noqa: ANN401 - see `ask`
        """
        Call a function that must not fail; the arguments are those of `ask`.

        Raises:
            CollectError: It failed.
        """
        status, parameters = self.ask(function, **fields)
        if status:
            raise failure(function, status)
        return parameters

    def has_driver(self) -> bool:
        """Return whether the CUDA driver is loaded in this process."""
        return self._driver() is not None

    def context(self) -> Context:
        """
        Return the CUDA context of this thread.

        Raises:
            CollectorUnavailableError: It has none: the thread has not used the GPU.
        """
        driver = self._driver()
        handle, device = ctypes.c_void_p(), ctypes.c_int()
        if driver is not None:
            for function, output in (
                ("cuCtxGetCurrent", handle),
                ("cuCtxGetDevice", device),
            ):
                status = int(getattr(driver, function)(ctypes.byref(output)))
                if status == _NOT_INITIALIZED:
                    handle.value = None
                    break
                if status:
                    raise_failure(driver, function, status)
                if handle.value is None:
                    break
        if handle.value is None:
            message = "this thread has no CUDA context, which counting needs"
            remedy = "use the GPU once before counting, in the same thread"
            raise CollectorUnavailableError(message, remedy=remedy)
        return Context(handle=handle.value, device=device.value)

    def chip(self, device: int) -> str:
        """Return the chip of a device, as `GH100`; the profiler is started first."""
        self.call("cuptiProfilerInitialize")
        answer = self.call("cuptiDeviceGetChipName", deviceIndex=device)
        name: str = (answer.pChipName or b"").decode()
        return name

    def require_support(self, device: int) -> tuple[Note, ...]:
        """
        Check that a device can count; whether this user may shows only later.

        Args:
            device: Its ordinal.

        Returns:
            A note where it gives a limited set of metrics.

        Raises:
            CollectorUnavailableError: It cannot; every cause is named.
        """
        self.call("cuptiProfilerInitialize")
        answer = self.call(
            "cuptiProfilerDeviceSupported", cuDevice=device, api=_RANGE_API
        )
        # a cause that an older version does not know stays 0, which is UNKNOWN
        levels = {name: getattr(answer, name) for name in ("isSupported", *_CAUSES)}
        error = unsupported(levels)
        if error is not None:
            raise error
        text = limited(levels)
        return () if text is None else (Note(code="limited-counters", text=text),)

    def clock_state(self, context: Context) -> str | None:
        """
        Return the state of the clock of a context's device, as `locked`.

        Returns:
            None: this version or this system does not report it.
        """
        query = getattr(self._library, "cuptiClockControlGetStatus", None)
        state = ctypes.c_int()
        if query is None:
            return None
        query(ctypes.c_void_p(context.handle), ctypes.byref(state))
        return _CLOCK_STATES.get(state.value)  # where it fails, the state stays 0
