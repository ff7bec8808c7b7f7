"""CUPTI taken and given back: who holds it, what is recorded, what a refusal means.

The activity API asks for no subscription, so that two users could take each other's
buffers without a word: one is always taken first, as a lock. cupti-python does not say
how long the parameters of a subscription are, and leaves the holder's name as it comes
from memory: the one is written here, and the other is read after a refusal alone.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_gpuperf.collect.translate.cupti import (
    DRIVER_LAUNCHES,
    KINDS,
    RUNTIME_LAUNCHES,
)
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import Void, VoidCode

__all__ = [
    "ATTACHED_TOOLS",
    "CLOSED",
    "CUPTI_ERRORS",
    "INSTALL",
    "absence_of",
    "attached_tool",
    "failed",
    "failures_of",
    "lost",
    "missing",
    "overfull",
    "subscribe",
    "take",
]

ATTACHED_TOOLS = {  # variables by which tools start a program; none is documented so
    "NSYS_PROFILING_SESSION_ID": "Nsight Systems",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "Nsight Compute",
    "NV_NSIGHT_INJECTION_TRANSPORT_TYPE": "a tool of Nsight",
    "NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN": "compute-sanitizer",
    "CUDA_INJECTION64_PATH": "a CUDA injection library",
}
_PROFILERS = {  # modules that take a subscription of their own when they start
    "triton.profiler": "Proton",
    "torch.profiler": "torch.profiler",
}
_INVALID_PARAMETER, _HELD = 1, 39  # CUptiResult
CUPTI_ERRORS: Mapping[int, Gap] = {  # by CUptiResult
    7: Gap(
        code=GapCode.COUNTERS_BUSY,
        reason="another profiler has left CUPTI in a state that forbids it",
        remedy="run without the other profiler",
    ),
    8: Gap(
        code=GapCode.COLLECTOR_UNAVAILABLE,
        reason="there is no memory for CUPTI's buffers",
        remedy="free memory of the host",
    ),
    15: Gap(
        code=GapCode.NOT_INSTALLED,
        reason="the driver is older than this CUPTI",
        remedy="pip install an nvidia-cuda-cupti of the driver's CUDA version",
    ),
    21: Gap(
        code=GapCode.NOT_INSTALLED,
        reason="this CUPTI does not know a kind of record that is needed",
        remedy="pip install --upgrade nvidia-cuda-cupti",
    ),
    26: Gap(
        code=GapCode.COUNTERS_BUSY,
        reason="another program holds the GPU's profiling hardware",
        remedy="end the other profiler, or: dcgmi profile --pause",
    ),
    27: Gap(
        code=GapCode.UNSUPPORTED,
        reason="this GPU or driver does not support it",
        remedy="update the driver",
    ),
    33: Gap(
        code=GapCode.UNSUPPORTED,
        reason="the GPU is a virtual one, which CUPTI does not support",
        remedy="use a whole GPU, or one passed through",
    ),
    35: Gap(
        code=GapCode.COUNTER_PERMISSION,
        reason="this user may not profile",
        remedy="set NVreg_RestrictProfilingToAdminUsers=0, or give the container CAP_PERFMON",
    ),
    36: Gap(
        code=GapCode.COUNTERS_BUSY,
        reason="an older profiling interface is in use in this process",
        remedy="run without the other profiler",
    ),
    38: Gap(
        code=GapCode.COUNTERS_BUSY,
        reason="an older profiling interface is in use, which this GPU does not support",
        remedy="run without the other profiler",
    ),
    _HELD: Gap(
        code=GapCode.COUNTERS_BUSY,
        reason="another user of CUPTI is in this process",
        remedy="run without the other profiler, or leave cupti out of --gpuperf-collectors",
    ),
    40: Gap(
        code=GapCode.COUNTER_PERMISSION,
        reason="the hypervisor has not enabled profiling of the virtual GPU",
        remedy="have enable_profiling=1 set for the virtual GPU",
    ),
    41: Gap(
        code=GapCode.UNSUPPORTED,
        reason="the GPU is in confidential-computing mode",
        remedy="boot it with dev tools mode, or without confidential computing",
    ),
    42: Gap(
        code=GapCode.UNSUPPORTED,
        reason="mining boards cannot be profiled",
        remedy="use another GPU",
    ),
    43: Gap(
        code=GapCode.UNSUPPORTED,
        reason="the MIG instance shares its GPU instance with others",
        remedy="use a compute instance that has its GPU instance to itself",
    ),
    44: Gap(
        code=GapCode.UNSUPPORTED,
        reason="GPUs that are bridged by SLI cannot be profiled",
        remedy="switch SLI off",
    ),
    45: Gap(
        code=GapCode.UNSUPPORTED,
        reason="this version of WSL cannot be profiled",
        remedy="use WSL 2 with driver 525 or later",
    ),
    46: Gap(
        code=GapCode.NOT_INSTALLED,
        reason="the GPU is newer than this CUPTI",
        remedy="pip install --upgrade nvidia-cuda-cupti",
    ),
    47: Gap(
        code=GapCode.UNSUPPORTED,
        reason="hardware traces do not work under the Multi-Process Service",
        remedy="stop it: echo quit | nvidia-cuda-mps-control",
    ),
    999: Gap(
        code=GapCode.COLLECTOR_UNAVAILABLE,
        reason="CUPTI says no more than that it failed",
        remedy="see gpuperf doctor",
    ),
}

_NVTX = "NVTX_INJECTION64_PATH"  # CUPTI hears of NVTX ranges if it names libcupti
_NEEDED = ("CONCURRENT_KERNEL", "MEMCPY", "MEMCPY2", "MEMSET", "EXTERNAL_CORRELATION")
_WANTED = ("SYNCHRONIZATION", "MEMORY2", "JIT", "OVERHEAD")
_SUBMITTING = re.compile(r"cu(?:da)?Mem(?:cpy|set)(?!.*Node)")
_BUFFER_BYTES = 8 << 20  # what CUPTI's own samples use; some 30,000 records
# CUpti_SubscriberParams_STRUCT_SIZE: until 13.2, and with allowMultipleSubscribers
_PARAMS_BYTES, _PARAMS_MULTIPLE_BYTES = 32, 40
_OLDEST = (13, 0, 1)  # of cupti-python: the first that lets any CUPTI 13 be installed
_UNNAMED = re.compile(r"(\d+) is not a valid Result")  # cuptiError of an older binding
_PACKAGE = "cupti-python"
INSTALL = 'pip install "pytest-gpuperf[cupti]"'

CLOSED = Void(
    code=VoidCode.CUPTI_CLOSED,
    reason="CUPTI was opened by the process that this one was forked from, or not at all",
    remedy="measure in the process that opens it",
)


def attached_tool(environment: Mapping[str, str]) -> Gap | None:
    """Return which tool has started this process, and so holds CUPTI; None: none."""
    names = [name for name in ATTACHED_TOOLS if environment.get(name)]
    if not names:
        return None
    tools = ", ".join(dict.fromkeys(ATTACHED_TOOLS[name] for name in names))
    return Gap(
        code=GapCode.COUNTERS_BUSY,
        reason=f"{tools} is attached, and a process has one user of CUPTI",
        remedy=f"start pytest without it, or: unset {' '.join(names)}",
    )


def absence_of(error: Exception, holder: str = "") -> Gap:
    """
    Return what a failure of CUPTI means, and what to do about it.

    Args:
        error: What cupti-python raised.

        holder: Who holds CUPTI, as it says itself; "": it does not.
    """
    status = getattr(error, "status", None)
    unnamed = _UNNAMED.match(str(error))
    if unnamed is not None:
        status = int(unnamed[1])
    if status is None:  # a function that libcupti lacks, or a driver that is too old
        return Gap(
            code=GapCode.COLLECTOR_UNAVAILABLE,
            reason=str(error),
            remedy="see gpuperf doctor",
        )
    gap = CUPTI_ERRORS.get(status, CUPTI_ERRORS[999])
    reason = gap.reason
    if status == _HELD:
        reason = (
            f"{holder or _likely_holder()} is another user of CUPTI in this process"
        )
    return replace(gap, reason=f"{reason} (CUPTI {status})")


def lost(count: int) -> Void:
    """Return why what lacks some records must not be judged."""
    return Void(
        code=VoidCode.DROPPED_RECORDS,
        reason=f"CUPTI lost {count} records, so that work is missing",
        remedy="measure a shorter piece, or free memory of the host",
    )


def overfull(most_count: int) -> Void:
    """Return why what has more records than are held must not be judged."""
    return Void(
        code=VoidCode.TOO_MANY_RECORDS,
        reason=f"CUPTI has more than {most_count:,} records of it, and no more are held"
        " in memory (some three a launch)",
        remedy="measure a shorter piece",
    )


def failed(error: Exception) -> Void:
    """Return why that in which CUPTI failed must not be judged."""
    gap = absence_of(error)
    return Void(code=VoidCode.CUPTI_FAILED, reason=gap.reason, remedy=gap.remedy)


def _likely_holder() -> str:
    """Return who may hold CUPTI, by what is loaded."""
    loaded = [name for module, name in _PROFILERS.items() if module in sys.modules]
    return f"something, perhaps {' or '.join(loaded)}," if loaded else "something"


def missing() -> Gap | None:
    """Return why cupti-python cannot be used; it is not imported."""
    if importlib.util.find_spec("cupti") is None:
        return Gap(
            code=GapCode.NOT_INSTALLED,
            reason=f"the package {_PACKAGE} is not installed",
            remedy=INSTALL,
        )
    try:
        version = importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None  # it came in another way: trying tells
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if numbers < _OLDEST:
        return Gap(
            code=GapCode.NOT_INSTALLED,
            reason=f"{_PACKAGE} {version} is older than 13.0.1",
            remedy=INSTALL,
        )
    return None


def failures_of(cupti: Any) -> tuple[type[Exception], ...]:  # noqa: ANN401 - an optional library
    """
    Return what the module raises.

    RuntimeError: libcupti lacks a function, or there is no driver, or it is too old.
    ValueError: libcupti is newer, and the module has no name for its code.
    """
    return (cupti.cuptiError, RuntimeError, ValueError)


def take(
    cupti: Any,  # noqa: ANN401 - an optional library has no types
    completed: Callable[[Sequence[Any]], None],
    *,
    environment: Mapping[str, str],
    whole_graphs: bool,
) -> tuple[contextlib.ExitStack, dict[str, str]]:
    """
    Subscribe, and have everything recorded that can be.

    Args:
        cupti: The module `cupti.cupti`.

        completed: Takes a batch of records, in any thread.

        environment: This process's variables.

        whole_graphs: Record a graph's launch as one piece of work.

    Returns:
        What gives all of it back, and why kinds are not recorded, by name.

    Raises:
        CollectorUnavailableError: CUPTI refuses; nothing is left enabled.
    """
    failures = failures_of(cupti)
    with contextlib.ExitStack() as undo:
        try:
            handle = subscribe(cupti)
            _later(undo, failures, cupti.unsubscribe, handle)
            cupti.activity_register_callbacks(_requested, completed)
            for name in (*_NEEDED, *(("GRAPH_TRACE",) if whole_graphs else ())):
                _enable(cupti, undo, name)
            unrecorded = _enable_wanted(cupti, undo, environment)
            _enable_calls(cupti, undo)
        except failures as error:
            absence = absence_of(error)
            raise CollectorUnavailableError(
                absence.reason, remedy=absence.remedy
            ) from error
        return undo.pop_all(), unrecorded


def subscribe(cupti: Any) -> int:  # noqa: ANN401 - an optional library has no types
    """
    Return our subscription.

    Raises:
        CollectorUnavailableError: Somebody else has one; it says who.
    """
    params = cupti.SubscriberParams()
    params.subscriber_name = "gpuperf"
    params.struct_size = _PARAMS_BYTES
    if hasattr(params, "allow_multiple_subscribers"):
        # it is 0 as made; cupti-python 13.4 lets nobody write it
        params.struct_size = _PARAMS_MULTIPLE_BYTES
    try:
        return int(cupti.subscribe_v2(None, None, params.ptr))
    except cupti.cuptiError as error:
        if error.status != _HELD:
            raise
        try:
            holder = params.old_subscriber_name or ""
        except UnicodeDecodeError:  # memory that CUPTI did not write to
            holder = ""
        absence = absence_of(error, holder.strip())
        raise CollectorUnavailableError(
            absence.reason, remedy=absence.remedy
        ) from error


def _enable(cupti: Any, undo: contextlib.ExitStack, name: str) -> None:  # noqa: ANN401 - an optional library
    """Have one kind recorded."""
    cupti.activity_enable(KINDS[name])
    _later(undo, failures_of(cupti), cupti.activity_disable, KINDS[name])


def _enable_wanted(
    cupti: Any,  # noqa: ANN401 - an optional library has no types
    undo: contextlib.ExitStack,
    environment: Mapping[str, str],
) -> dict[str, str]:
    """Have the kinds recorded that can be missed; return why some are not."""
    unrecorded: dict[str, str] = {}
    wanted = list(_WANTED)
    if Path(environment.get(_NVTX, "")).name.startswith("libcupti"):
        wanted.append("MARKER")
    else:
        unrecorded["MARKER"] = f"{_NVTX} does not name libcupti"
    for name in wanted:
        try:
            _enable(cupti, undo, name)
        except failures_of(cupti) as error:
            unrecorded[name] = absence_of(error).reason
    return unrecorded


def _enable_calls(cupti: Any, undo: contextlib.ExitStack) -> None:  # noqa: ANN401 - an optional library
    """Have those calls of driver and runtime recorded that submit work."""
    for enable, numbers, launches in (
        (
            cupti.activity_enable_driver_api,
            cupti.driver_api_trace_cbid,
            DRIVER_LAUNCHES,
        ),
        (
            cupti.activity_enable_runtime_api,
            cupti.runtime_api_trace_cbid,
            RUNTIME_LAUNCHES,
        ),
    ):
        copies = {
            int(number)
            for name, number in numbers.__members__.items()
            if _SUBMITTING.match(name)
        }
        for number in sorted(launches | copies):
            try:
                enable(number, 1)
            except cupti.cuptiError as error:
                if error.status != _INVALID_PARAMETER:  # newer than this libcupti
                    raise
            else:
                _later(undo, failures_of(cupti), enable, number, 0)


def _later(
    undo: contextlib.ExitStack,
    failures: tuple[type[Exception], ...],
    function: Callable[..., object],
    *arguments: int,
) -> None:
    """Say how a step is taken back; where that fails, the next is all the same."""

    def quietly() -> None:
        with contextlib.suppress(*failures):
            function(*arguments)

    undo.callback(quietly)


def _requested() -> tuple[int, int]:
    """Return the size of a new buffer [B] and the most records in it; 0: what fits."""
    return _BUFFER_BYTES, 0
