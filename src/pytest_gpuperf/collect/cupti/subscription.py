"""The subscription to CUPTI: its holder, and the kinds of records that it enables.

The activity API needs no subscription, so that two users could take each other's buffers
unnoticed. Therefore a subscription is always taken first, as a lock. cupti-python does not
set the size of a subscription's parameters, and returns the holder's name even if that
memory was never written. The size is set here, and the name is read only after a refusal.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytest_gpuperf.collect.cupti.calls import (
    ActivityCalls,
    has_subscriber_calls,
    process_calls,
    subscriber_calls,
)
from pytest_gpuperf.collect.cupti.kineto import KinetoUse, kineto_use
from pytest_gpuperf.collect.cupti.modules import LoadedModules
from pytest_gpuperf.collect.cupti.statuses import (
    HELD,
    INVALID_PARAMETER,
    MIXED,
    meaning,
)
from pytest_gpuperf.collect.translate.cupti import (
    DRIVER_LAUNCHES,
    KINDS,
    RUNTIME_LAUNCHES,
)
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import Void, VoidCode

# Undocumented variables that tools set in the processes that they start.
ATTACHED_TOOLS = {
    "NSYS_PROFILING_SESSION_ID": "Nsight Systems",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "Nsight Compute",
    "NV_NSIGHT_INJECTION_TRANSPORT_TYPE": "a tool of Nsight",
    "NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN": "compute-sanitizer",
    "CUDA_INJECTION64_PATH": "a CUDA injection library",
}
# Modules that subscribe when they start.
_PROFILERS = {
    "triton.profiler": "Proton",
    "torch.profiler": "torch.profiler",
}

# CUPTI records NVTX ranges if this variable names libcupti.
_NVTX = "NVTX_INJECTION64_PATH"
_REQUIRED = ("CONCURRENT_KERNEL", "MEMCPY", "MEMCPY2", "MEMSET", "EXTERNAL_CORRELATION")
_OPTIONAL = ("SYNCHRONIZATION", "MEMORY2", "JIT", "OVERHEAD")
_SUBMITTING = re.compile(r"cu(?:da)?Mem(?:cpy|set)(?!.*Node)")
# Members of CUpti_*_api_trace_cbid that are not calls.
_NO_CALLS = frozenset({"INVALID", "SIZE", "FORCE_INT"})
# About 4,000 records. CUPTI requests a buffer inside a launch, which then takes 0.035 ms
# longer. With 8 MiB it would take 0.4 ms, and 4.8 ms for the first buffer (H200,
# cupti-python 13.0.1).
_BUFFER_BYTES = 1 << 20
# CUpti_SubscriberParams_STRUCT_SIZE: until 13.1, and with allowMultipleSubscribers.
_PARAMS_BYTES, _PARAMS_MULTIPLE_BYTES = 32, 40
# The offset of allowMultipleSubscribers, which is read-only in cupti-python 13.4.
_ALLOW_MULTIPLE = 32
# 12.8 works with CUPTI 12.8 and 12.9, and 13.0.1 is the first that works with any CUPTI
# 13. 13.0.0 pins the libcupti of one release.
_OLDEST, _REFUSED = (12, 8), (13, 0, 0)
# The message of a binding of CUDA 13 that finds the driver of CUDA 12.
_OLD_DRIVER = "CUDA 13.0 or later driver"
# The end of "CUPTI for <not provided>", the name of torch.profiler's subscription.
_NOT_NAMED = "<not provided>"
# The message of a cuptiError in an older binding.
_UNNAMED = re.compile(r"(\d+) is not a valid Result")
_PACKAGE = "cupti-python"
INSTALL = 'pip install "pytest-gpuperf[cupti]"'
_INSTALL_OLDER = 'pip install "pytest-gpuperf[cupti-cu12]"'
# cupti-python 12.8 has no wheels for later versions of Python.
_OLDER_PYTHON = (3, 12)

CLOSED = Void(
    code=VoidCode.CUPTI_CLOSED,
    reason="CUPTI is not open in this process: it was closed, or opened before a fork",
    remedy="measure in the process that opens it",
)


def install_older(python: tuple[int, ...] = sys.version_info[:2]) -> str:
    """Return how to get a CUPTI that works with a driver of CUDA 12."""
    if tuple(python[:2]) <= _OLDER_PYTHON:
        return _INSTALL_OLDER
    return f"update the driver to 580, or, with Python 3.12: {_INSTALL_OLDER}"


def attached_tool(environment: Mapping[str, str]) -> Gap | None:
    """Return the gap of the tool that started the process and holds CUPTI, or None."""
    names = [name for name in ATTACHED_TOOLS if environment.get(name)]
    if not names:
        return None
    tools = ", ".join(dict.fromkeys(ATTACHED_TOOLS[name] for name in names))
    return Gap(
        code=GapCode.COUNTERS_BUSY,
        reason=f"{tools} is attached, and CUPTI serves one tool in a process",
        remedy=f"start pytest without it, or: unset {' '.join(names)}",
    )


def _absence_of(error: Exception, holder: str = "") -> Gap:
    """
    Return the gap for a failure of CUPTI.

    Args:
        error: The exception of cupti-python.

        holder: The name under which the holder of CUPTI subscribed, or "" if unknown.
    """
    status = getattr(error, "status", None)
    unnamed = _UNNAMED.match(str(error))
    if unnamed is not None:
        status = int(unnamed[1])
    # libcupti lacks the function, or the driver is too old.
    if status is None:
        is_old = _OLD_DRIVER in str(error)
        return Gap(
            code=GapCode.COLLECTOR_UNAVAILABLE,
            reason=str(error),
            remedy=install_older() if is_old else "see gpuperf doctor",
        )
    row = meaning(status)
    reason = row.reason
    if status in {HELD, MIXED}:
        loaded = [name for module, name in _PROFILERS.items() if module in sys.modules]
        perhaps = f", perhaps {' or '.join(loaded)}," if loaded else ""
        holder = holder or f"an unnamed tool{perhaps}"
        reason = f"{holder} is another user of CUPTI in this process"
        if status == MIXED:
            reason = f"{holder} shares CUPTI in this process with subscribers of its own kind"
    return Gap(code=row.code, reason=f"{reason} (CUPTI {status})", remedy=row.remedy)


def lost(count: int) -> Void:
    """Return the void of a measurement with lost CUPTI records."""
    return Void(
        code=VoidCode.DROPPED_RECORDS,
        reason=f"CUPTI lost {count} records, so that some work is missing",
        remedy="measure a shorter piece, or free memory of the host",
    )


def overfull(most_count: int) -> Void:
    """Return the void of a measurement with more records than memory may hold."""
    return Void(
        code=VoidCode.TOO_MANY_RECORDS,
        reason=f"CUPTI made more than {most_count:,} records (about three a"
        " launch), and no more are held in memory",
        remedy="measure a shorter piece",
    )


def failed(error: Exception) -> Void:
    """Return the void of a measurement in which a CUPTI call failed."""
    gap = _absence_of(error)
    return Void(code=VoidCode.CUPTI_FAILED, reason=gap.reason, remedy=gap.remedy)


def missing() -> Gap | None:
    """Return a gap if cupti-python is missing or too old, or None. Nothing is imported."""
    if importlib.util.find_spec("cupti") is None:
        return Gap(
            code=GapCode.NOT_INSTALLED,
            reason=f"the package {_PACKAGE} is not installed",
            remedy=INSTALL,
        )
    try:
        version = importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None  # The version is unknown. Opening CUPTI shows if it works.
    return unsupported(version)


def unsupported(version: str) -> Gap | None:
    """Return a gap if a version of cupti-python cannot be used, or None."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if numbers >= _OLDEST and numbers != _REFUSED:
        return None
    return Gap(
        code=GapCode.NOT_INSTALLED,
        reason=f"{_PACKAGE} {version} is neither 12.8 nor 13.0.1 or later",
        remedy=f"{INSTALL}, or for a driver before 580: {install_older()}",
    )


def failures_of(cupti: Any) -> tuple[type[Exception], ...]:  # noqa: ANN401 - an optional library
    """
    Return the exceptions of the module.

    RuntimeError means that libcupti lacks a function, or that the driver is missing or
    too old. ValueError means that libcupti is newer, and that the module has no name
    for its code.
    """
    return (cupti.cuptiError, RuntimeError, ValueError)


class Taken(NamedTuple):
    """
    A subscription with all kinds of records enabled.

    Attributes:
        undo: The stack that undoes all steps.

        unrecorded: The reasons for kinds that are not recorded, by name.

        calls: The functions to record with.
    """

    undo: contextlib.ExitStack
    unrecorded: dict[str, str]
    calls: ActivityCalls


def take(
    cupti: Any,  # noqa: ANN401 - an optional library has no types
    completed: Callable[[Sequence[Any]], None],
    *,
    environment: Mapping[str, str],
    whole_graphs: bool,
    modules: LoadedModules | None = None,
) -> Taken:
    """
    Subscribe, and enable every kind of record that is available.

    Args:
        cupti: The module `cupti.cupti`.

        completed: Receives a batch of records, in any thread.

        environment: The environment variables of this process.

        whole_graphs: True to record a graph launch as one piece of work.

        modules: Receives the code of modules that are loaded from now on, or None. It
            stays empty if CUPTI does not show them.

    Raises:
        CollectorUnavailableError: CUPTI refuses. Nothing stays enabled.
    """
    failures = failures_of(cupti)
    with contextlib.ExitStack() as undo:
        try:
            if modules is not None:
                undo.callback(modules.clear)  # After the last event.
            handle, calls = _registered(cupti, completed, modules, undo)
            enable = _Enabling(calls, undo, failures).enable
            for name in (*_REQUIRED, *(("GRAPH_TRACE",) if whole_graphs else ())):
                enable(name)
            unrecorded: dict[str, str] = {}
            optional = list(_OPTIONAL)
            if Path(environment.get(_NVTX, "")).name.startswith("libcupti"):
                optional.append("MARKER")
            else:
                unrecorded["MARKER"] = f"{_NVTX} does not name libcupti"
            for name in optional:
                try:
                    enable(name)
                except failures as error:
                    unrecorded[name] = _absence_of(error).reason
            _enable_calls(cupti, calls, enable)
        except failures as error:
            absence = _absence_of(error)
            raise CollectorUnavailableError(
                absence.reason, remedy=absence.remedy
            ) from error
        if modules is not None:
            with contextlib.suppress(*failures, AttributeError):
                modules.watch(cupti, handle)
        return Taken(undo.pop_all(), unrecorded, calls)


def _registered(
    cupti: Any,  # noqa: ANN401 - an optional library has no types
    completed: Callable[[Sequence[Any]], None],
    callback: Callable[..., object] | None,
    undo: contextlib.ExitStack,
) -> tuple[int, ActivityCalls]:
    """
    Subscribe, and return the handle with functions that the loaded libcupti has.

    The binding may be newer than the libcupti, as with one that torch has loaded.
    """
    handle, shared = subscribe(cupti, callback)
    with contextlib.ExitStack() as ending:
        _later(ending, failures_of(cupti), cupti.unsubscribe, handle)
        calls = subscriber_calls(cupti, handle) if shared else process_calls(cupti)
        try:
            if shared:
                calls.now_ns()  # 13.2 lacks this one.
            calls.register(_requested, completed)
        except RuntimeError:
            if not shared:
                raise
            ending.close()
            handle = _subscribe(cupti, callback, shared=False)
            _later(ending, failures_of(cupti), cupti.unsubscribe, handle)
            calls = process_calls(cupti)
            calls.register(_requested, completed)
        undo.push(ending.pop_all())
    return handle, calls


def subscribe(
    cupti: Any,  # noqa: ANN401 - an optional library has no types
    callback: Callable[..., object] | None = None,
) -> tuple[int, bool]:
    """
    Subscribe to CUPTI as one of several, if possible, and else alone.

    Several are possible from CUPTI 13.3 and driver 610 on. A process with a torch.profiler
    that uses CUPTI alone uses the functions of the process, because CUPTI refuses the other
    ones from then on.

    Args:
        cupti: The module `cupti.cupti`.

        callback: Receives the events that are enabled later, or None.

    Returns:
        The handle of the subscription, and whether it is one of several.

    Raises:
        CollectorUnavailableError: Another tool holds CUPTI. The message names the tool.
    """
    if has_subscriber_calls(cupti) and kineto_use() is not KinetoUse.ALONE:
        try:
            return _subscribe(cupti, callback, shared=True), True
        except cupti.cuptiError as error:
            if error.status not in {HELD, INVALID_PARAMETER}:
                raise
            # A user that is alone, or an older driver or libcupti.
    return _subscribe(cupti, callback, shared=False), False


def _subscribe(
    cupti: Any,  # noqa: ANN401 - an optional library has no types
    callback: Callable[..., object] | None,
    *,
    shared: bool,
) -> int:
    named = hasattr(cupti, "subscribe_v2")
    params = cupti.SubscriberParams() if named else None
    try:
        if params is None:
            # cupti-python 12.8 has no names of subscribers.
            return int(cupti.subscribe(callback or _ignored, None))
        params.subscriber_name = "gpuperf"
        # A libcupti before 13.2 knows the smaller size alone.
        params.struct_size = _PARAMS_MULTIPLE_BYTES if shared else _PARAMS_BYTES
        if shared:
            ctypes.c_uint8.from_address(params.ptr + _ALLOW_MULTIPLE).value = True
        return int(cupti.subscribe_v2(callback, None, params.ptr))
    except cupti.cuptiError as error:
        if error.status != HELD or shared:
            raise
        absence = _absence_of(error, _holder(params))
        raise CollectorUnavailableError(
            absence.reason, remedy=absence.remedy
        ) from error


def _holder(params: Any) -> str:  # noqa: ANN401 - an optional library has no types
    """Return the name of the subscription that CUPTI found, or "" if unknown."""
    try:
        holder = getattr(params, "old_subscriber_name", "") or ""
    except UnicodeDecodeError:  # CUPTI did not write to this memory.
        return ""
    return "" if holder.endswith(_NOT_NAMED) else str(holder).strip()


def _ignored(*_: object) -> None:
    """Do nothing in a callback that is enabled for no call."""


class _Enabling(NamedTuple):
    """Enables kinds of records, and registers the steps that disable them."""

    calls: ActivityCalls
    undo: contextlib.ExitStack
    failures: tuple[type[Exception], ...]

    def enable(self, name: str) -> None:
        self.calls.enable(KINDS[name])
        _later(self.undo, self.failures, self.calls.disable, KINDS[name])


def _enable_calls(
    cupti: Any,  # noqa: ANN401 - an optional library
    calls: ActivityCalls,
    enable: Callable[[str], None],
) -> None:
    """
    Enable only the records of driver and runtime calls that submit work.

    A single call that is enabled without its kind is recorded only if it was enabled
    before the process had a context (libcupti 13.0 on an H200). Therefore each kind is
    enabled with all of its calls, and the other calls are disabled. Enabling a kind
    again would discard that choice.
    """
    for kind, switch, numbers, launches in (
        (
            "DRIVER",
            calls.enable_driver_call,
            cupti.driver_api_trace_cbid,
            DRIVER_LAUNCHES,
        ),
        (
            "RUNTIME",
            calls.enable_runtime_call,
            cupti.runtime_api_trace_cbid,
            RUNTIME_LAUNCHES,
        ),
    ):
        enable(kind)
        for name, number in numbers.__members__.items():
            if int(number) in launches or _SUBMITTING.match(name) or name in _NO_CALLS:
                continue
            try:
                switch(int(number), 0)
            except cupti.cuptiError as error:
                # The call is newer than this libcupti.
                if error.status != INVALID_PARAMETER:
                    raise


def _later(
    undo: contextlib.ExitStack,
    failures: tuple[type[Exception], ...],
    function: Callable[..., object],
    *arguments: int,
) -> None:
    """Register an undo step. A failure of the step does not stop other steps."""

    def quietly() -> None:
        with contextlib.suppress(*failures):
            function(*arguments)

    undo.callback(quietly)


def _requested() -> tuple[int, int]:
    """Return the size of a new buffer [B], and the limit of records, where 0 is unlimited."""
    return _BUFFER_BYTES, 0
