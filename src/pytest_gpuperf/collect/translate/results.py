"""Results of pytest-benchmark and nvbench, as sessions of a baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

import msgspec

from pytest_gpuperf.collect.translate import MAGIC_BYTES, foreign
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.frozen import UNREADABLE, Frozen

OF_RESULTS = "name a file of --benchmark-json, or of nvbench's --json"
_RENAME = "write the file again with the tool"


class ForeignTime(Frozen, frozen=True, kw_only=True):
    """
    A time that another tool has measured.

    Attributes:
        test_id: The benchmark, as the key of a test.

        name: The kind of time, or "" for the only one.

        value_s: The time of a call [s].

        source: The clock: "host" or "events".

        quantiles_s: The 5, 25, 50, 75 and 95 % quantiles of the samples [s], or empty if
            the file has no samples.

        facts: The facts of machine and method, as far as the file has them.
    """

    test_id: str
    name: str = ""
    value_s: float
    source: str
    quantiles_s: tuple[float, ...] = ()
    facts: Mapping[str, str] = {}


class ForeignResults(Frozen, frozen=True, kw_only=True):
    """
    The results of a run of another tool.

    Attributes:
        tool: The tool.

        times: The times.

        started_unix_s: Start of the run, since the epoch [s], or None if the file does
            not have it.

        commit: The revision, or None if unknown.

        dirty: Whether the working tree differed from it, or None if unknown.

        branch: The branch, or None if unknown.

        left_out: Sentences about benchmarks without a time.
    """

    tool: str
    times: tuple[ForeignTime, ...]
    started_unix_s: float | None = None
    commit: str | None = None
    dirty: bool | None = None
    branch: str | None = None
    left_out: tuple[str, ...] = ()


class _Statistics(Frozen, frozen=True):
    median: float
    data: tuple[float, ...] = ()


class _PytestBenchmark(Frozen, frozen=True):
    fullname: str
    stats: _Statistics


class _Cpu(Frozen, frozen=True):
    brand_raw: str | None = None
    count: int | None = None


class _MachineInfo(Frozen, frozen=True):
    python_version: str = ""
    cpu: _Cpu = _Cpu()


class _CommitInfo(Frozen, frozen=True):
    id: str | None = None
    dirty: bool | None = None
    branch: str | None = None


class _PytestBenchmarkFile(Frozen, frozen=True):
    machine_info: _MachineInfo
    commit_info: _CommitInfo
    benchmarks: tuple[_PytestBenchmark, ...]
    datetime: str = ""
    version: str = ""


class _Datum(Frozen, frozen=True):
    name: str
    value: str | float | bool | None = None


class _Summary(Frozen, frozen=True):
    tag: str = ""
    data: tuple[_Datum, ...] = ()


class _Axis(Frozen, frozen=True):
    name: str
    value: Any = None


class _NvbenchState(Frozen, frozen=True):
    device: int | None = None
    axis_values: tuple[_Axis, ...] | None = ()
    summaries: tuple[_Summary, ...] | None = ()
    is_skipped: bool = False
    skip_reason: str = ""


class _NvbenchBenchmark(Frozen, frozen=True):
    name: str
    states: tuple[_NvbenchState, ...] | None = ()


class _NvbenchDevice(Frozen, frozen=True):
    id: int
    name: str = ""
    global_memory_size: int | None = None
    number_of_sms: int | None = None
    ecc_state: bool | None = None


class _NvbenchFile(Frozen, frozen=True):
    meta: dict[str, Any]
    # Of an empty list, nvbench writes null.
    benchmarks: tuple[_NvbenchBenchmark, ...] | None
    devices: tuple[_NvbenchDevice, ...] | None = ()


# The times of nvbench, with the name of the measurement and the clock. "cold" flushes the
# L2 cache before each call, "batch" repeats calls without pauses.
_NVBENCH_TIMES = {
    "nv/cold/time/gpu/mean": ("", "events", "cold"),
    "nv/batch/time/gpu/mean": ("batch", "events", "warm"),
    "nv/cold/time/cpu/mean": ("", "host", "cold"),
}
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def foreign_results(text: bytes, *, path: str) -> ForeignResults:
    """
    Return the times of a file of pytest-benchmark or nvbench.

    Args:
        text: The file.

        path: Its name, for messages.

    Raises:
        RecordError: It is not such a file, or lacks what such a file has.
    """
    try:
        kind = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        if "machine_info" in kind:
            return _of_pytest_benchmark(
                msgspec.json.decode(text, type=_PytestBenchmarkFile), path
            )
        if "nvbench" in bytes(kind.get("meta", b"")).decode("utf-8", "replace"):
            return _of_nvbench(msgspec.json.decode(text, type=_NvbenchFile))
    except RecordError:
        raise
    # A ValueError is that of a number which is a text.
    except (*UNREADABLE, ValueError) as error:
        if text.lstrip().startswith(b"{"):
            raise RecordError(str(error), path=path, remedy=_RENAME) from error
    packed, known = foreign(text[:MAGIC_BYTES]), foreign(text)
    if packed is not None:
        raise RecordError(packed.message, path=path, remedy=packed.remedy)
    message = "it is not a result of pytest-benchmark or nvbench"
    if known is not None:
        message = known.message
    raise RecordError(message, path=path, remedy=OF_RESULTS)


def _of_pytest_benchmark(file: _PytestBenchmarkFile, path: str) -> ForeignResults:
    machine = file.machine_info
    facts = {
        "cpu_model": machine.cpu.brand_raw,
        "core_count": machine.cpu.count,
        "python_minor": ".".join(machine.python_version.split(".")[:2]) or None,
        "method": f"pytest-benchmark/{file.version.partition('.')[0] or '?'}",
    }
    known = {name: str(fact) for name, fact in facts.items() if fact is not None}
    commit = file.commit_info
    return ForeignResults(
        tool="pytest-benchmark",
        times=tuple(
            ForeignTime(
                test_id=benchmark.fullname,
                value_s=benchmark.stats.median,
                source="host",
                quantiles_s=_quantiles(benchmark.stats.data),
                facts=known,
            )
            for benchmark in file.benchmarks
        ),
        started_unix_s=_moment(file.datetime, path),
        commit=None if commit.id in {None, "unversioned", "unknown"} else commit.id,
        dirty=commit.dirty,
        branch=None if (commit.branch or "(").startswith("(") else commit.branch,
    )


def _moment(text: str, path: str) -> float | None:
    """Return a time of pytest-benchmark, which is UTC without saying so [s]."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise RecordError(f"datetime: {error}", path=path, remedy=_RENAME) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.timestamp()


def _quantiles(samples: tuple[float, ...]) -> tuple[float, ...]:
    if len(samples) < len(_QUANTILES):
        return ()
    ordered = sorted(samples)
    return tuple(ordered[round(share * (len(ordered) - 1))] for share in _QUANTILES)


def _of_nvbench(file: _NvbenchFile) -> ForeignResults:
    devices = {device.id: device for device in file.devices or ()}
    times: list[ForeignTime] = []
    left_out: list[str] = []
    for benchmark in file.benchmarks or ():
        states = benchmark.states or ()
        several = len({state.device for state in states}) > 1
        for state in states:
            axes = [f"Device={state.device}"] if several else []
            axes += (f"{axis.name}={axis.value}" for axis in state.axis_values or ())
            test_id = "::".join(filter(None, (benchmark.name, ",".join(axes))))
            device = None if state.device is None else devices.get(state.device)
            found = [*_times_of(test_id, state, device)]
            times += found
            if not found:
                why = state.skip_reason or "it has no time"
                left_out.append(f"{test_id}: {why}")
    return ForeignResults(tool="nvbench", times=tuple(times), left_out=tuple(left_out))


def _times_of(
    test_id: str, state: _NvbenchState, device: _NvbenchDevice | None
) -> Iterator[ForeignTime]:
    if state.is_skipped:
        return
    facts: dict[str, object] = {"method": "nvbench", "device_method": "nvbench"}
    if device is not None:
        facts |= {
            "gpu_name": device.name,
            "gpu_memory_bytes": device.global_memory_size,
            "sm_count": device.number_of_sms,
            "ecc": device.ecc_state,
        }
    for summary in state.summaries or ():
        value = next((d.value for d in summary.data if d.name == "value"), None)
        if summary.tag in _NVBENCH_TIMES and value is not None:
            name, source, cache = _NVBENCH_TIMES[summary.tag]
            known = {n: str(f) for n, f in facts.items() if f is not None}
            yield ForeignTime(
                test_id=test_id,
                name=name,
                value_s=float(value),
                source=source,
                facts={**known, "cache_mode": cache},
            )
