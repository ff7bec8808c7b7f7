"""libcupti in this process: found, loaded and called, and why it does not count.

Every status that a profiling call can answer leaves its counters *unmeasured*: the error
says why, and its remedy what would change it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pytest_gpuperf.collect.cupti.structs import (
    CALLS,
    CAUSES,
    DISABLED,
    HOST,
    LEAST_VERSION,
    LIMITED,
    RANGE,
    RANGE_API,
    UNSUPPORTED,
    size_bytes,
)
from pytest_gpuperf.collect.runtime import LoadedLibrary, driver_library, raise_failure
from pytest_gpuperf.errors import (
    CollectError,
    CollectorUnavailableError,
    ConfigError,
    CounterPermissionError,
    CountersBusyError,
    GpuPerfError,
)
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Note

__all__ = [
    "INVALID_METRIC_NAME",
    "INVALID_PARAMETER",
    "LIMITS",
    "NO_FUNCTION",
    "OF_CALLS",
    "OUT_OF_MEMORY",
    "STATUSES",
    "SUPPORT",
    "Context",
    "Libcupti",
    "Status",
    "failure",
    "find_libraries",
    "first_usable",
    "limited",
    "load",
    "refusal_of",
    "unsupported",
]

NO_FUNCTION = -1  # ours: this libcupti has no function of that name
INVALID_PARAMETER, OUT_OF_MEMORY, INVALID_METRIC_NAME = 1, 8, 17  # cupti_result.h


class Status(NamedTuple):
    """
    What one status means.

    Attributes:
        name: NVIDIA's name of it, without what all of them begin with.

        reason: One sentence without its full stop.

        remedy: One imperative sentence without its full stop.

        error: What is raised for it.
    """

    name: str
    reason: str
    remedy: str
    error: type[GpuPerfError] = CollectorUnavailableError


_DOCTOR = "run gpuperf doctor, and see that driver and libcupti fit together"
_BARE = "run on a machine, or a virtual one with the whole GPU, where counters are free"
_ONE_AT_A_TIME = "end the other one first: a GPU counts for one at a time"

# cupti_result.h, CUDA 13.5: those that profiling calls answer
STATUSES: Mapping[int, Status] = MappingProxyType(
    {
        NO_FUNCTION: Status(
            "NOT_FOUND",
            "this libcupti lacks the function: it is too old, or a part of it",
            "install nvidia-cuda-cupti 12.8 or later",
        ),
        INVALID_PARAMETER: Status(
            "INVALID_PARAMETER",
            "libcupti does not take what it was given",
            _DOCTOR,
            CollectError,
        ),
        2: Status(
            "INVALID_DEVICE",
            "there is no CUDA device of that number",
            "see which devices CUDA_VISIBLE_DEVICES leaves",
        ),
        3: Status(
            "INVALID_CONTEXT",
            "the CUDA context is gone, or is not one of this process",
            "use the GPU in the thread that counts, and keep it in use until it has",
            CollectError,
        ),
        7: Status(
            "INVALID_OPERATION",
            "libcupti is not in a state for it: something else profiles here",
            _ONE_AT_A_TIME,
            CollectError,
        ),
        OUT_OF_MEMORY: Status(
            "OUT_OF_MEMORY",
            "there is no memory left for it: kernel replay keeps a copy of what each "
            "kernel writes",
            "free memory of the GPU, count fewer ranges, or repeat the body instead of "
            "its kernels",
            CollectError,
        ),
        9: Status(
            "HARDWARE",
            "the hardware that counts reports an error",
            "run it again; where it stays, reset the GPU",
            CollectError,
        ),
        10: Status(
            "PARAMETER_SIZE_NOT_SUFFICIENT",
            "what was counted does not fit into what was set aside for it",
            "count fewer ranges or metrics at a time",
            CollectError,
        ),
        11: Status(
            "API_NOT_IMPLEMENTED",
            "this libcupti has the function by name only",
            _DOCTOR,
        ),
        12: Status(
            "MAX_LIMIT_REACHED",
            "more ranges ran than were announced",
            "announce more ranges, or count a smaller body",
            CollectError,
        ),
        13: Status(
            "NOT_READY",
            "the device has not finished what is to be read",
            "wait for the device at the end of the body",
            CollectError,
        ),
        14: Status(
            "NOT_COMPATIBLE",
            "libcupti is in a state that does not allow it",
            _ONE_AT_A_TIME,
            CollectError,
        ),
        15: Status(
            "NOT_INITIALIZED",
            "libcupti reaches neither the driver, which is older than it, nor "
            "libnvperf_host.so and libnvperf_target.so, which belong beside it",
            _DOCTOR,
        ),
        INVALID_METRIC_NAME: Status(
            "INVALID_METRIC_NAME",
            "the chip has no such metric",
            "look it up: gpuperf metrics search WORD",
            CollectError,
        ),
        23: Status(
            "DISABLED",
            "another profiler has disabled CUPTI",
            "start pytest without the other profiler",
        ),
        26: Status(
            "HARDWARE_BUSY",
            "another program holds the GPU's counters: DCGM, ncu, or nsys with GPU "
            "metrics",
            "pause DCGM (dcgmi profile --pause, and --resume afterwards) or wait for the "
            "other profiler",
            CountersBusyError,
        ),
        27: Status(
            "NOT_SUPPORTED",
            "this GPU or system cannot count it in this way",
            "ask for other metrics (gpuperf metrics describe NAME), or count with ncu",
        ),
        33: Status(
            "VIRTUALIZED_DEVICE_NOT_SUPPORTED",
            "this kind of virtual GPU has no counters",
            _BARE,
        ),
        35: Status(
            "INSUFFICIENT_PRIVILEGES",
            "the driver lets only administrators read the GPU's counters",
            "run as root, give the container CAP_SYS_ADMIN (CAP_PERFMON from driver 565 "
            "on), or load the driver's module with "
            "NVreg_RestrictProfilingToAdminUsers=0 and reboot",
            CounterPermissionError,
        ),
        36: Status(
            "OLD_PROFILER_API_INITIALIZED",
            "something in this process counts by CUPTI's former calls",
            "start pytest without it",
        ),
        38: Status(
            "LEGACY_PROFILER_NOT_SUPPORTED",
            "this GPU has no counters for CUPTI's former calls",
            "install nvidia-cuda-cupti of the driver's CUDA version",
        ),
        39: Status(
            "MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
            "another tool uses CUPTI in this process: nsys, ncu, compute-sanitizer, "
            "cuda-gdb or a profiler of torch or Triton",
            "start pytest without it (gpuperf doctor names it)",
            CountersBusyError,
        ),
        40: Status(
            "VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES",
            "the hypervisor keeps this virtual GPU's counters for itself",
            "have enable_profiling=1 set for the virtual machine",
            CounterPermissionError,
        ),
        41: Status(
            "CONFIDENTIAL_COMPUTING_NOT_SUPPORTED",
            "confidential computing is on, which hides the counters",
            "count on a machine where it is off",
        ),
        42: Status(
            "CMP_DEVICE_NOT_SUPPORTED",
            "a crypto mining processor has no counters",
            "count on another GPU",
        ),
        43: Status(
            "MIG_DEVICE_NOT_SUPPORTED",
            "a compute instance that shares its GPU instance has no counters",
            "count on a GPU instance of its own, or with MIG off",
        ),
        44: Status(
            "SLI_DEVICE_NOT_SUPPORTED",
            "GPUs that are joined by SLI have no counters",
            "switch SLI off",
        ),
        45: Status(
            "WSL_DEVICE_NOT_SUPPORTED",
            "this WSL gives no counters",
            "use WSL2 with driver 525 or later",
        ),
        46: Status(
            "INVALID_CHIP_NAME",
            "the GPU is newer than libcupti, or older than all that it knows",
            "install the nvidia-cuda-cupti that knows it: gpuperf metrics chips",
        ),
        47: Status(
            "HES_TRACE_NOT_SUPPORTED_ON_MPS",
            "the hardware does not trace events while MPS is on",
            "switch MPS off: echo quit | nvidia-cuda-mps-control",
        ),
        999: Status(
            "UNKNOWN",
            "libcupti gives no reason, as it does where there is no driver or a sandbox "
            "hides one",
            _DOCTOR,
        ),
    }
)

# what a status means in one call, where that is more than it means by itself
OF_CALLS: Mapping[tuple[str, int], Status] = MappingProxyType(
    {
        (f"{HOST}ConfigAddMetrics", INVALID_PARAMETER): Status(
            "INVALID_PARAMETER",
            "a metric lacks its ending",
            "write each with its ending, as dram__bytes.sum: gpuperf metrics describe "
            "NAME lists them",
            ConfigError,
        ),
        (f"{HOST}ConfigAddMetrics", 27): Status(
            "NOT_SUPPORTED",
            "one of these metrics cannot be had in this way",
            "count others, or leave it out",
        ),
        (f"{RANGE}PushRange", 7): Status(
            "INVALID_OPERATION",
            "a range was begun where none is counted",
            "begin ranges inside of the body alone",
            CollectError,
        ),
    }
)

# cause: what UNSUPPORTED of it means, as the statuses say it where they are late
SUPPORT: Mapping[str, Status] = MappingProxyType(
    {
        "architecture": Status(
            "architecture",
            "the GPU is older than CUPTI counts on (compute capability 7.5)",
            "count on a newer GPU",
        ),
        "sli": STATUSES[44],
        "vGpu": STATUSES[33],
        "confidentialCompute": STATUSES[41],
        "cmp": STATUSES[42],
        "wsl": STATUSES[45],
        "sku": Status(
            "sku",
            "NVIDIA has switched counters off in this model of GPU",
            "count on another model",
        ),
    }
)
LIMITS = "the GPU gives a limited set of metrics here ({}): others stay absent"
_UNNAMED = Status(
    "isSupported", "libcupti says that it cannot, and names no cause", _DOCTOR
)


def refusal_of(function: str, status: int) -> Status:
    """Return what a status means in a call; a newer one than these is unknown."""
    known = OF_CALLS.get((function, status)) or STATUSES.get(status)
    return known or Status("not of these headers", "it has no known meaning", _DOCTOR)


def failure(function: str, status: int) -> GpuPerfError:
    """
    Return the error for the status of a call.

    Args:
        function: Its name.

        status: Not 0.
    """
    meant = refusal_of(function, status)
    message = f"{meant.reason} ({function}: {status} {meant.name})"
    return meant.error(message, remedy=meant.remedy)


def unsupported(levels: Mapping[str, int]) -> CollectorUnavailableError | None:
    """
    Return every cause for which a device cannot count; None: there is none.

    Args:
        levels: The verdicts of cuptiProfilerDeviceSupported: `isSupported`, and one on
            each of CAUSES.
    """
    if levels["isSupported"] not in {UNSUPPORTED, DISABLED}:  # what is unknown is tried
        return None
    found = [
        STATUSES[40] if (cause, levels[cause]) == ("vGpu", DISABLED) else SUPPORT[cause]
        for cause in CAUSES
        if levels[cause] in {UNSUPPORTED, DISABLED}
    ] or [_UNNAMED]
    message = "; ".join(each.reason for each in found)
    remedy = "; ".join(dict.fromkeys(each.remedy for each in found))
    errors = {each.error for each in found}
    if errors == {CounterPermissionError}:
        return CounterPermissionError(message, remedy=remedy)
    return CollectorUnavailableError(message, remedy=remedy)


def limited(levels: Mapping[str, int]) -> str | None:
    """Return that a device gives some metrics only; None: it gives all."""
    found = [name for name, level in levels.items() if level == LIMITED]
    causes = [name for name in found if name in CAUSES] or found
    return LIMITS.format(", ".join(causes)) if found else None


_NAMES = ("libcupti.so.13", "libcupti.so.12")  # as a loader knows them, newest first
_WINDOWS_NAME = "cupti64.dll"  # the real ones bear a date: on Windows none is found
_REMEDY = "pip install 'pytest-gpuperf[cupti]', which brings it"
_OF_CUDA = (
    10_000  # from 13.0 on a version is major, minor, update; before it was counted
)

_CLOCK_STATUS = "cuptiClockControlGetStatus"
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
    """Yield where a libcupti lies, the best first: wheels come before toolkits."""
    with contextlib.suppress(ValueError):  # a package that was made in this process
        spec = importlib.util.find_spec("nvidia")
        for folder in (spec and spec.submodule_search_locations) or ():
            for package in ("cu13", "cuda_cupti"):
                for name in _NAMES:
                    yield from Path(folder).glob(f"{package}/lib/{name}")
    for toolkit in sorted(Path("/usr/local").glob("cuda*"), reverse=True):
        for name in _NAMES:
            yield from toolkit.glob(f"extras/CUPTI/lib64/{name}")
            yield from toolkit.glob(f"lib64/{name}")


@functools.cache
def load() -> Libcupti:
    """
    Return the libcupti of this process.

    One that is loaded already is taken, as torch has it: a second one would know only
    half of what is done.

    Raises:
        CollectorUnavailableError: There is none, or none that loads and is known.
    """
    for name in _NAMES:
        there = LoadedLibrary(name, windows_name=_WINDOWS_NAME)()
        if there is not None:
            return Libcupti(there, path=name)
    return first_usable(find_libraries())


def first_usable(paths: Iterable[Path]) -> Libcupti:
    """
    Return the first libcupti that loads, says its version, and is known.

    Raises:
        CollectorUnavailableError: There is none; what is wrong with each is said.
    """
    reasons = []
    for path in paths:
        try:
            return Libcupti(ctypes.CDLL(str(path)), path=str(path))
        except (OSError, CollectorUnavailableError) as error:
            reasons.append(f"{path}: {getattr(error, 'message', error)}")
    message = "; ".join(reasons) or "libcupti is not installed: nothing can be counted"
    raise CollectorUnavailableError(message, remedy=_REMEDY)


class Libcupti:
    """
    A loaded libcupti.

    Clocks are never locked from here: what others have done to them is asked for.

    *Unverified on hardware.*

    Args:
        library: Its functions, as ctypes has them.

        path: What was loaded, for messages.

        driver: Returns the CUDA driver library if it is loaded, None while it is not.

    Attributes:
        path: As it was given.

        version: Its API version, as 130400, or 26 of CUDA 12.8.

    Raises:
        CollectorUnavailableError: Its structures are older than those that are known, or
            it says nothing, as from 13.3 on without a driver.
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
        if status:  # from 13.3 on it answers nothing without a driver
            raise failure("cuptiGetVersion", status)
        self.version = version.value
        if self.version < LEAST_VERSION:
            message = f"{path} is of API version {self.version}, before CUDA 12.8"
            raise CollectorUnavailableError(message, remedy=_REMEDY)

    @property
    def name(self) -> str:
        """Tool and version, as facts of counters have it: "cupti 13.4"."""
        major, rest = divmod(self.version, _OF_CUDA)
        return f"cupti {major}.{rest // 100}" if major else f"cupti API {self.version}"

    def ask(self, function: str, **given: Any) -> tuple[int, Any]:  # noqa: ANN401 - a structure's fields are of any type
        """
        Call a function of structs.CALLS.

        Args:
            function: Its name.

            **given: Fields of its parameters, by the headers' names.

        Returns:
            Its status and its parameters, filled.
        """
        size = size_bytes(function, self.version)
        parameters = CALLS[function](size, None, **given)
        called = getattr(self._library, function, None)
        if called is None:
            return NO_FUNCTION, parameters
        return int(called(ctypes.byref(parameters))), parameters

    def call(self, function: str, **given: Any) -> Any:  # noqa: ANN401 - see `ask`
        """
        Call a function that must not fail; the arguments are those of `ask`.

        Raises:
            CollectError: It did, for a reason that the error tells with a remedy.
        """
        status, parameters = self.ask(function, **given)
        if status:
            raise failure(function, status)
        return parameters

    def has_driver(self) -> bool:
        """Return whether somebody has loaded the CUDA driver."""
        return self._driver() is not None

    def context(self) -> Context:
        """
        Return the CUDA context of this thread.

        Raises:
            CollectorUnavailableError: It has none: nobody has used the GPU here.
        """
        driver = self._driver()
        handle, device = ctypes.c_void_p(), ctypes.c_int()
        if driver is not None:
            for function, found in (
                ("cuCtxGetCurrent", handle),
                ("cuCtxGetDevice", device),
            ):
                status = int(getattr(driver, function)(ctypes.byref(found)))
                if status:
                    raise_failure(driver, function, status)
                if handle.value is None:
                    break
        if handle.value is None:
            message = "this thread has no CUDA context, and counters are those of one"
            remedy = "use the GPU once before counting, in the same thread"
            raise CollectorUnavailableError(message, remedy=remedy)
        return Context(handle=handle.value, device=device.value)

    def chip(self, device: int) -> str:
        """Return the chip of a device, as `GH100`; the profiler is started first."""
        self.call("cuptiProfilerInitialize")
        said = self.call("cuptiDeviceGetChipName", deviceIndex=device)
        name: str = (said.pChipName or b"").decode()
        return name

    def require_support(self, device: int) -> tuple[Note, ...]:
        """
        See that a device can count.

        Whether this user may is not asked: that shows only when counting begins.

        Args:
            device: Its ordinal.

        Returns:
            A note where it gives a limited set of metrics.

        Raises:
            CollectorUnavailableError: It cannot; every cause is named.
        """
        self.call("cuptiProfilerInitialize")
        said = self.call("cuptiProfilerDeviceSupported", cuDevice=device, api=RANGE_API)
        # a cause that an older version does not know stays 0, which is UNKNOWN
        levels = {name: getattr(said, name) for name in ("isSupported", *CAUSES)}
        refused = unsupported(levels)
        if refused is not None:
            raise refused
        text = limited(levels)
        return () if text is None else (Note(code="limited-counters", text=text),)

    def clock_state(self, context: Context) -> str | None:
        """
        Return what was done to the clock of a context's device, as `locked`.

        Returns:
            None: this version or this system does not say.
        """
        asked = getattr(self._library, _CLOCK_STATUS, None)
        state = ctypes.c_int()
        if asked is None:
            return None
        asked(ctypes.c_void_p(context.handle), ctypes.byref(state))
        return _CLOCK_STATES.get(state.value)  # where it fails, the state stays 0
