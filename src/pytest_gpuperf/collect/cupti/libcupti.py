"""Finding, loading and calling libcupti, with the parameter layout of each version.

Names are taken from cupti_range_profiler.h, cupti_profiler_host.h,
cupti_profiler_target.h and cupti_target.h. New versions of a structure only add fields at
its end. A call passes the size known to the loaded library, without the padding after the
last field.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import (
    Array,
    c_char_p,
    c_void_p,
)
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from pytest_gpuperf.collect.cuda_device import raise_failure
from pytest_gpuperf.collect.cupti.nvperf import (
    Parameters,
    declared,
    package_folders,
    struct_size,
)
from pytest_gpuperf.collect.cupti.statuses import (
    NO_FUNCTION,
    failure,
    limited,
    unsupported,
)
from pytest_gpuperf.collect.runtime import LoadedLibrary, driver_library
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Note

# The layouts were compared with the headers of CUDA 12.8 (26) and 13.0 to 13.5. The headers
# of 12.6 and 12.7, which also have the calls, were not checked.
_LEAST_VERSION = 26

AUTO_RANGE, USER_RANGE = 1, 2  # CUpti_ProfilerRange
KERNEL_REPLAY, USER_REPLAY = 2, 3  # CUpti_ProfilerReplayMode
NO_CACHES, ALL_CACHES = 0, 1  # CUpti_CacheControl_Mode
_RANGE_API = 0  # CUpti_Profiler_API
RANGE_PROFILER = 0  # CUpti_ProfilerType

RANGE = "cuptiRangeProfiler"
HOST = "cuptiProfilerHost"

# The causes for which cuptiProfilerDeviceSupported gives separate verdicts.
_CAUSES = ("architecture", "sli", "vGpu", "confidentialCompute", "cmp", "wsl", "sku")

# The parameters of each function, in the headers' order.
CALLS: Mapping[str, type[Parameters]] = declared(
    """
    cuptiProfilerInitialize()
    cuptiProfilerDeviceSupported(int cuDevice, int isSupported, int architecture, int sli,
        int vGpu, int confidentialCompute, int cmp, int wsl, int api, int sku)
    cuptiDeviceGetChipName(size_t deviceIndex, char* pChipName)
    cuptiProfilerHostInitialize(int profilerType, char* pChipName,
        void* pCounterAvailabilityImage, void* pHostObject, char* pSinglePassMetricSetName)
    cuptiProfilerHostDeinitialize(void* pHostObject)
    cuptiProfilerHostGetBaseMetrics(void* pHostObject, int metricType, char** ppMetricNames,
        size_t numMetrics)
    cuptiProfilerHostGetSubMetrics(void* pHostObject, int metricType, char* pMetricName,
        size_t numOfSubmetrics, char** ppSubMetrics)
    cuptiProfilerHostGetMaxNumHardwareMetricsPerPass(int profilerType, char* pChipName,
        void* pCounterAvailabilityImage, size_t maxMetricsPerPass)
    cuptiProfilerHostGetSinglePassSets(char* pChipName, size_t numOfSinglePassSets,
        char** ppSinglePassSets)
    cuptiProfilerHostGetMetricsInSinglePassSet(char* pChipName, char* pSinglePassSetName,
        size_t numOfMetricsInSinglePassSet, size_t metricsBufferSize,
        size_t* pMetricsIndicesBuffer, void* pMetricsBuffer)
    cuptiProfilerHostGetMetricProperties(void* pHostObject, char* pMetricName,
        char* pDescription, char* pHwUnit, char* pDimUnit, int metricType,
        int metricCollectionScope)
    cuptiProfilerHostConfigAddMetrics(void* pHostObject, char** ppMetricNames,
        size_t numMetrics)
    cuptiProfilerHostGetConfigImageSize(void* pHostObject, size_t configImageSize)
    cuptiProfilerHostGetConfigImage(void* pHostObject, size_t configImageSize,
        void* pConfigImage)
    cuptiProfilerHostGetNumOfPasses(size_t configImageSize, void* pConfigImage,
        size_t numOfPasses)
    cuptiProfilerHostEvaluateToGpuValues(void* pHostObject, void* pCounterDataImage,
        size_t counterDataImageSize, size_t rangeIndex, char** ppMetricNames,
        size_t numMetrics, double* pMetricValues)
    cuptiRangeProfilerEnable(void* ctx, void* pRangeProfilerObject, int cacheControlMode)
    cuptiRangeProfilerDisable(void* pRangeProfilerObject)
    cuptiRangeProfilerGetCounterDataSize(void* pRangeProfilerObject, char** pMetricNames,
        size_t numMetrics, size_t maxNumOfRanges, uint32_t maxNumRangeTreeNodes,
        size_t counterDataSize)
    cuptiRangeProfilerCounterDataImageInitialize(void* pRangeProfilerObject,
        size_t counterDataSize, void* pCounterData)
    cuptiRangeProfilerSetConfig(void* pRangeProfilerObject, size_t configSize,
        void* pConfig, size_t counterDataImageSize, void* pCounterDataImage, int range,
        int replayMode, size_t maxRangesPerPass, uint16_t numNestingLevels,
        uint16_t minNestingLevel, size_t passIndex, uint16_t targetNestingLevel)
    cuptiRangeProfilerStart(void* pRangeProfilerObject)
    cuptiRangeProfilerStop(void* pRangeProfilerObject, size_t passIndex,
        size_t targetNestingLevel, uint8_t isAllPassSubmitted)
    cuptiRangeProfilerPushRange(void* pRangeProfilerObject, char* pRangeName)
    cuptiRangeProfilerPopRange(void* pRangeProfilerObject)
    cuptiRangeProfilerDecodeData(void* pRangeProfilerObject, size_t numOfRangeDropped)
    cuptiRangeProfilerGetCounterDataInfo(void* pCounterDataImage,
        size_t counterDataImageSize, size_t numTotalRanges)
    cuptiRangeProfilerCounterDataGetRangeInfo(void* pCounterDataImage,
        size_t counterDataImageSize, size_t rangeIndex, char* rangeDelimiter,
        char* rangeName)
    """
)

# Function -> the version (CUPTI_API_VERSION) that added the last field.
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
    Return the size of a call's parameters in a version of libcupti [B].

    Args:
        function: The name of the function in CALLS.

        version: The result of cuptiGetVersion, as 130400. 26 to 28 are CUDA 12.

    Example:
        >>> size_bytes("cuptiRangeProfilerEnable", 130001)
        32
    """
    parameters = CALLS[function]
    if version >= GREW.get(function, 0):
        return struct_size(parameters)
    last = vars(parameters)["_fields_"][-1][0]
    # There is no padding in front of these fields.
    return int(getattr(parameters, last).offset)


def metric_names(names: Sequence[str]) -> Array[c_char_p]:
    """Return names as a C array. The array must outlive the call that uses it."""
    return (c_char_p * len(names))(*(name.encode() for name in names))


# Sonames, newest first.
_NAMES = ("libcupti.so.13", "libcupti.so.12")
# Real names contain a date, so that no library is found on Windows.
_WINDOWS_NAME = "cupti64.dll"
_REMEDY = (
    "pip install 'pytest-gpuperf[cupti]', or for a driver before 580 "
    "'pytest-gpuperf[cupti-cu12]', which bring it"
)
# Permissions show when counting begins, which an old libcupti never does.
_TOO_OLD = "; gpuperf doctor says in counter-permission whether this user may count"
_OF_ANOTHER = (
    "use a framework for CUDA 12.8 or later, because the libcupti that it loads is used, "
    "or count with Nsight Compute: put ncu on PATH"
)
# 13.4 is 130400. Until CUDA 12, versions were consecutive numbers.
_MAJOR = 10_000

# CUresult: the driver is loaded, but not initialized.
_NOT_INITIALIZED = 3
_CLOCK_STATES = {  # CUpti_ClockControl_Status
    1: "unlocked",
    2: "locked",
    3: "locked to a floor",
    4: "boost enabled",
    5: "boost disabled",
}


class _Found(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_: ClassVar = [
        ("dli_fname", c_char_p),
        ("dli_fbase", c_void_p),
        ("dli_sname", c_char_p),
        ("dli_saddr", c_void_p),
    ]


class Context(Frozen, frozen=True, kw_only=True):
    """
    A CUDA context that is current in a thread.

    Attributes:
        handle: The address of the context.

        device: The ordinal of the context's device in this process.
    """

    handle: int
    device: int


def find_libraries() -> Iterator[Path]:
    """Yield the paths of libcupti, preferred first. Wheels come before toolkits."""
    for folder in package_folders("nvidia"):
        for package in ("cu13", "cuda_cupti"):
            for name in _NAMES:
                yield from folder.glob(f"{package}/lib/{name}")
    for toolkit in sorted(Path("/usr/local").glob("cuda*"), reverse=True):
        for name in _NAMES:
            yield from toolkit.glob(f"extras/CUPTI/lib64/{name}")
            yield from toolkit.glob(f"lib64/{name}")


def loaded_version() -> int | None:
    """
    Return the API version of the oldest libcupti that the process has loaded.

    None if there is none, or if it does not report its version.
    """
    versions = []
    for name in _NAMES:
        library = LoadedLibrary(name, windows_name=_WINDOWS_NAME)()
        version = ctypes.c_uint32()
        if library is not None and not library.cuptiGetVersion(ctypes.byref(version)):
            versions.append(version.value)
    return min(versions, default=None)


@functools.cache
def load() -> Libcupti:
    """
    Return the libcupti of the process.

    A libcupti that is already loaded, as by torch, is preferred. A second copy would
    miss the calls of the first copy.

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
        CollectorUnavailableError: There is none. The message gives a reason for every path.
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
        library: The functions of the library, as a ctypes library.

        path: The file that was loaded, for messages.

        driver: Returns the CUDA driver library, or None while it is not loaded.

    Attributes:
        path: The file that was loaded.

        version: The API version, as 130400, or 26 for CUDA 12.8.

    Raises:
        CollectorUnavailableError: The library is older than CUDA 12.8, or does not
            report its version, as from 13.3 on without a driver.
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
        # From 13.3 on, the call also fails without a driver.
        if status:
            raise failure("cuptiGetVersion", status)
        self.version = version.value
        if self.version < _LEAST_VERSION:
            message = f"{path} has API version {self.version}, older than CUDA 12.8"
            remedy = _OF_ANOTHER if path in _NAMES else _REMEDY
            raise CollectorUnavailableError(message, remedy=f"{remedy}{_TOO_OLD}")

    @property
    def name(self) -> str:
        """Tool and version, as in the facts of counters: "cupti 13.4"."""
        major, rest = divmod(self.version, _MAJOR)
        return f"cupti {major}.{rest // 100}" if major else f"cupti API {self.version}"

    def file(self) -> str:
        """Return the file, of which `path` is only the name if another library loaded it."""
        address, found = ctypes.cast(self._library.cuptiGetVersion, c_void_p), _Found()
        # Windows has no such function, and finds a loaded library by its name.
        search = getattr(ctypes.pythonapi, "dladdr", None)
        if search is None or not search(address, ctypes.byref(found)):
            return self.path
        return os.fsdecode(found.dli_fname)

    def ask(self, function: str, **fields: Any) -> tuple[int, Any]:  # noqa: ANN401 - a structure's fields are of any type
        """
        Call a function of CALLS.

        Args:
            function: The name of the function.

            **fields: Fields of the parameters, by the headers' names.

        Returns:
            The status, and the parameters as filled in by the library.
        """
        size = size_bytes(function, self.version)
        parameters = CALLS[function](size, None, **fields)
        entry_point = getattr(self._library, function, None)
        if entry_point is None:
            return NO_FUNCTION, parameters
        return int(entry_point(ctypes.byref(parameters))), parameters

    def call(self, function: str, **fields: Any) -> Any:  # noqa: ANN401 - see `ask`
        """
        Call a function, and raise an exception if the call fails. See `ask` for the
        arguments.

        Raises:
            CollectError: The call failed.
        """
        status, parameters = self.ask(function, **fields)
        if status:
            raise failure(function, status)
        return parameters

    def has_driver(self) -> bool:
        """Return True if the process has loaded the CUDA driver."""
        return self._driver() is not None

    def context(self) -> Context:
        """
        Return the CUDA context of the current thread.

        Raises:
            CollectorUnavailableError: There is none, because the thread has not used
                the GPU.
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
        """Return the chip of a device, as `GH100`. Initializes the profiler."""
        self.call("cuptiProfilerInitialize")
        answer = self.call("cuptiDeviceGetChipName", deviceIndex=device)
        name: str = (answer.pChipName or b"").decode()
        return name

    def require_support(self, device: int) -> tuple[Note, ...]:
        """
        Check that a device can count. Missing permissions show only later.

        Args:
            device: The ordinal of the device.

        Returns:
            A note if the device gives a limited set of metrics.

        Raises:
            CollectorUnavailableError: The device cannot count. The message names every
                cause.
        """
        self.call("cuptiProfilerInitialize")
        answer = self.call(
            "cuptiProfilerDeviceSupported", cuDevice=device, api=_RANGE_API
        )
        # A cause that is unknown to an older version stays 0, which is UNKNOWN.
        levels = {name: getattr(answer, name) for name in ("isSupported", *_CAUSES)}
        error = unsupported(levels)
        if error is not None:
            raise error
        text = limited(levels)
        return () if text is None else (Note(code="limited-counters", text=text),)

    def clock_state(self, context: Context) -> str | None:
        """Return the clock state of a context's device, as `locked`, or None if not reported."""
        query = getattr(self._library, "cuptiClockControlGetStatus", None)
        state = ctypes.c_int()
        if query is None:
            return None
        query(ctypes.c_void_p(context.handle), ctypes.byref(state))
        # If the call fails, the state stays 0.
        return _CLOCK_STATES.get(state.value)
