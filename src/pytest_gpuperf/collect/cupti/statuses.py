"""The meaning of CUPTI's status codes, with reasons and remedies.

The numbers are taken from CUptiResult in cupti_result.h of CUDA 13.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_gpuperf.errors import (
    CollectError,
    CollectorUnavailableError,
    ConfigError,
    CounterPermissionError,
    CountersBusyError,
    GpuPerfError,
)
from pytest_gpuperf.model.gap import Gap, GapCode

# Not a status of CUPTI: this libcupti lacks the function.
NO_FUNCTION = -1
INVALID_PARAMETER, MIXED, INVALID_METRIC_NAME, HELD, _UNKNOWN = 1, 14, 17, 39, 999


class CuptiStatus(Gap, frozen=True, kw_only=True):
    """
    The meaning of a status.

    Attributes:
        name: NVIDIA's name of the status, without the common prefix.
    """

    name: str


# The exception for a code. All other codes raise CollectorUnavailableError.
_ERRORS: Mapping[GapCode, type[GpuPerfError]] = {
    GapCode.CONFIG: ConfigError,
    GapCode.COUNTERS_BUSY: CountersBusyError,
    GapCode.COUNTER_PERMISSION: CounterPermissionError,
    GapCode.FAILED: CollectError,
}


def _status(
    name: str,
    reason: str,
    remedy: str,
    code: GapCode = GapCode.COLLECTOR_UNAVAILABLE,
) -> CuptiStatus:
    return CuptiStatus(name=name, code=code, reason=reason, remedy=remedy)


_DOCTOR = "run gpuperf doctor: it compares the driver with libcupti"
_OTHER_PROFILER = "end the other profiler first: CUPTI serves one at a time"
_WHOLE_GPU = "use a whole GPU, or one that is passed through to the virtual machine"

STATUSES: Mapping[int, CuptiStatus] = MappingProxyType(
    {
        NO_FUNCTION: _status(
            "NOT_FOUND",
            "this libcupti lacks the function: it is too old or incomplete",
            "install nvidia-cuda-cupti 12.8 or later",
        ),
        INVALID_PARAMETER: _status(
            "INVALID_PARAMETER",
            "libcupti rejects an argument of the call",
            _DOCTOR,
            GapCode.FAILED,
        ),
        2: _status(
            "INVALID_DEVICE",
            "there is no CUDA device of that number",
            "check CUDA_VISIBLE_DEVICES",
        ),
        3: _status(
            "INVALID_CONTEXT",
            "the CUDA context was destroyed, or belongs to another process",
            "use the GPU in the thread that counts, until counting has ended",
            GapCode.FAILED,
        ),
        7: _status(
            "INVALID_OPERATION",
            "CUPTI is in a state that forbids the call: another profiler is active in "
            "this process",
            _OTHER_PROFILER,
            GapCode.FAILED,
        ),
        8: _status(
            "OUT_OF_MEMORY",
            "CUPTI is out of memory",
            "free memory of the GPU and of the host; if counting failed, count fewer "
            "ranges, or repeat the body instead of its kernels (kernel replay copies "
            "what each kernel writes)",
            GapCode.FAILED,
        ),
        9: _status(
            "HARDWARE",
            "the GPU's profiling hardware reports an error",
            "run it again; if the error stays, reset the GPU",
            GapCode.FAILED,
        ),
        10: _status(
            "PARAMETER_SIZE_NOT_SUFFICIENT",
            "the counter data do not fit into their buffer",
            "count fewer ranges or metrics at a time",
            GapCode.FAILED,
        ),
        11: _status(
            "API_NOT_IMPLEMENTED",
            "this libcupti has only a stub of the function",
            _DOCTOR,
        ),
        12: _status(
            "MAX_LIMIT_REACHED",
            "more ranges ran than were announced",
            "announce more ranges (max_ranges), or count a smaller body",
            GapCode.FAILED,
        ),
        13: _status(
            "NOT_READY",
            "the device has not finished its work",
            "wait for the device at the end of the body",
            GapCode.FAILED,
        ),
        MIXED: _status(
            "NOT_COMPATIBLE",
            "CUPTI does not allow the call while another profiler is active",
            _OTHER_PROFILER,
            GapCode.FAILED,
        ),
        15: _status(
            "NOT_INITIALIZED",
            "the driver is older than libcupti, or libnvperf_host.so and "
            "libnvperf_target.so are not next to it",
            "install the nvidia-cuda-cupti of the driver's CUDA version (gpuperf doctor "
            "compares them)",
        ),
        INVALID_METRIC_NAME: _status(
            "INVALID_METRIC_NAME",
            "the chip has no such metric",
            "look for it: gpuperf metrics search WORD",
            GapCode.FAILED,
        ),
        21: _status(
            "INVALID_KIND",
            "this CUPTI does not record a kind of activity that is needed",
            "pip install --upgrade nvidia-cuda-cupti",
        ),
        23: _status(
            "DISABLED",
            "another profiler has disabled CUPTI",
            "start pytest without the other profiler",
        ),
        26: _status(
            "HARDWARE_BUSY",
            "another program holds the GPU's counters: DCGM, ncu, or nsys with GPU "
            "metrics",
            "pause DCGM (dcgmi profile --pause, and --resume afterwards) or wait for the "
            "other profiler",
            GapCode.COUNTERS_BUSY,
        ),
        27: _status(
            "NOT_SUPPORTED",
            "this GPU or driver does not support it",
            "update the driver; if counting failed, choose other metrics (gpuperf metrics "
            "describe NAME), or count with ncu",
        ),
        33: _status(
            "VIRTUALIZED_DEVICE_NOT_SUPPORTED",
            "CUPTI does not support this kind of virtual GPU",
            _WHOLE_GPU,
        ),
        35: _status(
            "INSUFFICIENT_PRIVILEGES",
            "the driver lets only administrators profile the GPU",
            "run as root, give the container CAP_SYS_ADMIN (CAP_PERFMON from driver 565 "
            "on), or load the driver's module with "
            "NVreg_RestrictProfilingToAdminUsers=0 and reboot",
            GapCode.COUNTER_PERMISSION,
        ),
        36: _status(
            "OLD_PROFILER_API_INITIALIZED",
            "another profiler in this process uses CUPTI's former interface",
            "start pytest without it",
        ),
        38: _status(
            "LEGACY_PROFILER_NOT_SUPPORTED",
            "this GPU does not support CUPTI's former interface, which a profiler in this "
            "process uses",
            "start pytest without it, or install nvidia-cuda-cupti of the driver's CUDA "
            "version",
        ),
        HELD: _status(
            "MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
            "another tool uses CUPTI in this process: nsys, ncu, compute-sanitizer, "
            "cuda-gdb or a profiler of torch or Triton",
            "start pytest without it (gpuperf doctor names it), or leave cupti out of "
            "--gpuperf-collectors",
            GapCode.COUNTERS_BUSY,
        ),
        40: _status(
            "VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES",
            "the hypervisor does not allow profiling of this virtual GPU",
            "have enable_profiling=1 set for the virtual machine",
            GapCode.COUNTER_PERMISSION,
        ),
        41: _status(
            "CONFIDENTIAL_COMPUTING_NOT_SUPPORTED",
            "the GPU is in confidential-computing mode",
            "boot it in the mode devtools, or without confidential computing",
        ),
        42: _status(
            "CMP_DEVICE_NOT_SUPPORTED",
            "a crypto mining processor cannot be profiled",
            "use another GPU",
        ),
        43: _status(
            "MIG_DEVICE_NOT_SUPPORTED",
            "the MIG compute instance shares its GPU instance with others",
            "use a compute instance that has its GPU instance to itself, or switch MIG "
            "off",
        ),
        44: _status(
            "SLI_DEVICE_NOT_SUPPORTED",
            "GPUs that are joined by SLI cannot be profiled",
            "switch SLI off",
        ),
        45: _status(
            "WSL_DEVICE_NOT_SUPPORTED",
            "this version of WSL cannot be profiled",
            "use WSL2 with driver 525 or later",
        ),
        46: _status(
            "INVALID_CHIP_NAME",
            "libcupti does not know the GPU: it is newer than libcupti, or too old",
            "pip install --upgrade nvidia-cuda-cupti (gpuperf metrics chips lists what "
            "the installed one knows)",
        ),
        47: _status(
            "HES_TRACE_NOT_SUPPORTED_ON_MPS",
            "hardware traces do not work under the Multi-Process Service (MPS)",
            "switch MPS off: echo quit | nvidia-cuda-mps-control",
        ),
        _UNKNOWN: _status(
            "UNKNOWN",
            "CUPTI gives no reason, as it does without a driver or where a sandbox hides "
            "one",
            _DOCTOR,
        ),
    }
)

# Statuses with a more specific meaning in a particular call.
_OF_CALLS: Mapping[tuple[str, int], CuptiStatus] = {
    ("cuptiProfilerHostConfigAddMetrics", INVALID_PARAMETER): _status(
        "INVALID_PARAMETER",
        "a metric lacks its ending",
        "write each with its ending, as dram__bytes.sum: gpuperf metrics describe NAME "
        "lists them",
        GapCode.CONFIG,
    ),
    ("cuptiProfilerHostConfigAddMetrics", 27): _status(
        "NOT_SUPPORTED",
        "one of the metrics is not available in this way",
        "count others, or leave it out",
    ),
    ("cuptiRangeProfilerPushRange", 7): _status(
        "INVALID_OPERATION",
        "a range began where nothing is counted",
        "begin ranges only inside the body",
        GapCode.FAILED,
    ),
}

# Verdicts of cuptiProfilerDeviceSupported: CUpti_Profiler_Support_Level.
_UNSUPPORTED, _DISABLED, _LIMITED = 1, 2, 4
# By the cause of a verdict.
_SUPPORT: Mapping[str, CuptiStatus] = {
    "architecture": _status(
        "architecture",
        "the GPU is older than those that CUPTI profiles (compute capability 7.5)",
        "count on a newer GPU",
    ),
    "sli": STATUSES[44],
    "vGpu": STATUSES[33],
    "confidentialCompute": STATUSES[41],
    "cmp": STATUSES[42],
    "wsl": STATUSES[45],
    "sku": _status(
        "sku",
        "NVIDIA has switched the counters of this GPU model off",
        "count on another model",
    ),
}
_NO_CAUSE = _status(
    "isSupported", "libcupti does not support the device, and names no cause", _DOCTOR
)


def meaning(status: int) -> CuptiStatus:
    """Return the general meaning of a status. Unknown statuses count as 999."""
    return STATUSES.get(status, STATUSES[_UNKNOWN])


def failure(function: str, status: int) -> GpuPerfError:
    """
    Build the exception for a failed call.

    Args:
        function: The name of the function.

        status: The status of the call, not 0.
    """
    row = _OF_CALLS.get((function, status)) or STATUSES.get(status)
    row = row or _status("unknown status", "CUPTI fails for a new reason", _DOCTOR)
    message = f"{row.reason} ({function}: {status} {row.name})"
    error = _ERRORS.get(row.code, CollectorUnavailableError)
    return error(message, remedy=row.remedy)


def unsupported(levels: Mapping[str, int]) -> CollectorUnavailableError | None:
    """
    Return an error with all causes for which a device cannot count, or None.

    Args:
        levels: The verdicts of cuptiProfilerDeviceSupported: `isSupported`, and a
            verdict on each cause.
    """
    refusals = {_UNSUPPORTED, _DISABLED}
    # If the verdict is unknown, counting is tried.
    if levels["isSupported"] not in refusals:
        return None
    rows = [
        STATUSES[40] if (cause, levels[cause]) == ("vGpu", _DISABLED) else row
        for cause, row in _SUPPORT.items()
        if levels[cause] in refusals
    ] or [_NO_CAUSE]
    message = "; ".join(row.reason for row in rows)
    remedy = "; ".join(dict.fromkeys(row.remedy for row in rows))
    if {row.code for row in rows} == {GapCode.COUNTER_PERMISSION}:
        return CounterPermissionError(message, remedy=remedy)
    return CollectorUnavailableError(message, remedy=remedy)


def limited(levels: Mapping[str, int]) -> str | None:
    """Return a sentence about a limited set of metrics, or None if all metrics are available."""
    names = [name for name, level in levels.items() if level == _LIMITED]
    causes = [name for name in names if name in _SUPPORT] or names
    if not causes:
        return None
    return f"this GPU gives a limited set of metrics ({', '.join(causes)})"
