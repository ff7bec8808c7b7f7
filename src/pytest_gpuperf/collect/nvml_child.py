"""Samples the sensors of GPUs into a ring; PYTEST_DONT_REWRITE.

A program of its own: it is started by its path, without site-packages, and imports
nothing but the standard library and pynvml. It makes no CUDA context and holds no device
memory. It ends at once when its standard input ends, as that does with its parent.

The ring is a file of doubles. Its head: see `HEAD`. A record: its number, its time by the
monotonic and by the wall clock [s], the GPU's place among those asked for, `COLUMNS`, one
value for each GPM metric, and its number once more: who reads while it is written sees
two numbers. NaN: the sensor gave nothing new.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import math
import mmap
import select
import sys
import time  # noqa: TID251 - a program of its own, without the package's Clock
from array import array
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["COLUMNS", "ERRORS", "HEAD", "HEAD_LENGTH", "INDEXES", "MAGIC", "Ring"]
__all__ += ["Source", "record_length", "schedule"]

MAGIC = 6_071_001.0  # the first double of a ring; another layout has another
HEAD = {
    "magic": 0,
    "capacity": 1,
    "length": 2,
    "written": 3,
    "skipped": 4,
    "period_s": 5,
}
ERRORS = 8  # where in the head the last error of each column stands
INDEXES = 32  # and the place of each GPU in the driver's order
HEAD_LENGTH = 96
_FIELDS = {  # nvml.h, NVML_FI_DEV_*: column -> field, scope
    "power_milliwatts": (186, 0),
    "energy_millijoules": (83, 0),
    "pcie_tx_bytes": (197, 0),
    "pcie_rx_bytes": (198, 0),
    "nvlink_tx_kib": (138, 0xFFFF_FFFF),
    "nvlink_rx_kib": (139, 0xFFFF_FFFF),
}
_SLOW_FIELDS = {  # these, and what follows, move slowly
    "memory_celsius": (82, 0),
    "pcie_replays": (94, 0),
    "remapped_corrected": (142, 0),
    "remapped_uncorrected": (143, 0),
    "remap_failed": (145, 0),
}
_READINGS = (
    "sm_mhz",
    "memory_mhz",
    "gpu_percent",
    "memory_percent",
    "celsius",
    "used_bytes",
    "free_bytes",
    "reserved_bytes",
    "limit_milliwatts",
    "default_limit_milliwatts",
)
COLUMNS = (*_FIELDS, *_SLOW_FIELDS, *_READINGS, "gpm_since_s")
_LASTING = {2, 3, 4, 12, 13, 14, 22, 24, 25, 26, 30}  # as collect.nvml has them
_LOST = {8, 15, 16, 28}
_SLOW_S = 0.1  # utilization refreshes each 1/6 s or 1 s, by board (NVML reference)
_GPM_GAP_S = 0.1  # NVML reference: more than 100 ms
_VALUE_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_NO_FUNCTION, _UNKNOWN = 13, 999  # nvml.h


def record_length(gpm_count: int) -> int:
    """Return how many doubles a record has."""
    return 5 + len(COLUMNS) + gpm_count


class Ring:
    """
    The ring as its one writer sees it.

    Args:
        doubles: Its memory, as doubles.

        capacity: Records that fit.

        gpm_count: GPM metrics in each.

        period_s: Of the sampler [s].
    """

    def __init__(
        self,
        doubles: memoryview[float],
        *,
        capacity: int,
        gpm_count: int,
        period_s: float,
    ) -> None:
        self._doubles = doubles
        self._capacity = capacity
        self._length = record_length(gpm_count)
        self._written = 0
        doubles[HEAD["capacity"]] = capacity
        doubles[HEAD["length"]] = self._length
        doubles[HEAD["period_s"]] = period_s
        doubles[HEAD["magic"]] = MAGIC  # last: who finds it finds the rest

    def put(
        self, monotonic_s: float, unix_s: float, gpu: int, values: Sequence[float]
    ) -> None:
        """Append a record over the oldest one."""
        number = float(self._written + 1)
        at = HEAD_LENGTH + self._written % self._capacity * self._length
        record = array("d", (number, monotonic_s, unix_s, gpu, *values, number))
        doubles = self._doubles
        doubles[at + self._length - 1] = number  # now the numbers differ
        doubles[at : at + self._length] = memoryview(record)
        self._written += 1
        doubles[HEAD["written"]] = number

    def known(self, gpu: int, index: int) -> None:
        """Keep a GPU's place in the driver's order."""
        self._doubles[INDEXES + gpu] = index

    def skip(self, periods: int) -> None:
        """Count periods for which there was no time."""
        self._doubles[HEAD["skipped"]] += periods

    def failed(self, column: str, code: int) -> None:
        """Keep why a column is empty."""
        self._doubles[ERRORS + COLUMNS.index(column)] = code


class Source:
    """
    The sensors of one GPU.

    Args:
        nvml: The binding, started.

        uuid: The GPU's name for life, or that of its instance.

        gpm: Numbers of the GPM metrics to take.

        failed: Called with a column and NVML's code for it.

        now_ns: The clock by which samples are read.
    """

    def __init__(
        self,
        nvml: ModuleType,
        uuid: str,
        gpm: Sequence[int],
        failed: Callable[[str, int], None],
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._nvml = nvml
        self._part = self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        self._instance: int | None = None
        if uuid.startswith("MIG-"):
            self._instance = nvml.nvmlDeviceGetGpuInstanceId(self._part)
            self._handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._part)
        self.index: int = nvml.nvmlDeviceGetIndex(self._handle)
        self._failed = failed
        self._silent: set[str] = set()
        self._values = dict.fromkeys(COLUMNS, math.nan)
        self._fields = [self._prepared(each) for each in (_FIELDS, _SLOW_FIELDS)]
        self._read_fields = nvml._nvmlGetFunctionPointer("nvmlDeviceGetFieldValues")  # noqa: SLF001 - past an array that is built in each call
        self._slow_at_s = -math.inf
        self._gpm = tuple(gpm)
        self._now_ns = now_ns
        self._gpm_at_s = self._gpm_taken_s = -math.inf
        get = nvml.nvmlGpmSampleAlloc
        pair = self._ask("gpm_since_s", lambda: (get(), get())) if gpm else None
        self._samples: tuple[Any, ...] = pair or ()

    def read(self, now_s: float) -> list[float]:
        """Return `COLUMNS` and the GPM metrics now; NaN: nothing new."""
        values = self._values
        for column in values:
            values[column] = math.nan
        self._counters(0)
        clock = self._nvml.nvmlDeviceGetClockInfo
        self._put("sm_mhz", clock, self._handle, 1)
        if now_s - self._slow_at_s >= _SLOW_S:
            self._slow_at_s = now_s
            self._slow()
        metrics = self._metrics(now_s)  # sets since when they hold
        return [*values.values(), *metrics]

    def _slow(self) -> None:
        """Read what moves slowly."""
        nvml, handle, values = self._nvml, self._handle, self._values
        self._counters(1)
        self._put("memory_mhz", nvml.nvmlDeviceGetClockInfo, handle, 2)
        rates = self._ask("gpu_percent", nvml.nvmlDeviceGetUtilizationRates, handle)
        if rates is not None:
            values["gpu_percent"], values["memory_percent"] = rates.gpu, rates.memory
        self._put("celsius", self._temperature)
        memory = self._ask(
            "used_bytes", nvml.nvmlDeviceGetMemoryInfo, self._part, nvml.nvmlMemory_v2
        )
        if memory is not None:
            values["used_bytes"] = memory.used
            values["free_bytes"] = memory.free
            values["reserved_bytes"] = memory.reserved
        self._put("limit_milliwatts", nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        default = nvml.nvmlDeviceGetPowerManagementDefaultLimit
        self._put("default_limit_milliwatts", default, handle)

    def _temperature(self) -> int:
        """Return the die's temperature [°C]; older drivers have the old name only."""
        nvml, handle = self._nvml, self._handle
        try:
            return int(nvml.nvmlDeviceGetTemperatureV(handle, 0))
        except (AttributeError, nvml.NVMLError_FunctionNotFound):
            return int(nvml.nvmlDeviceGetTemperature(handle, 0))

    def _put(self, column: str, function: Callable[..., Any], *args: object) -> None:
        """Set a column to what NVML says, if it does."""
        value = self._ask(column, function, *args)
        if value is not None:
            self._values[column] = value

    def _counters(self, group: int) -> None:
        """Read the fields of a group, in one call."""
        found, names = self._fields[group]
        if not names:
            return
        code = self._read_fields(self._handle, ctypes.c_int(len(names)), found)
        for name, value in zip(names, found, strict=True):
            if code or value.nvmlReturn:
                self._refused(name, code or value.nvmlReturn)
            else:
                self._values[name] = getattr(value.value, _VALUE_TYPES[value.valueType])
        left = [name for name in names if name not in self._silent]
        if len(left) < len(names):
            known = _FIELDS | _SLOW_FIELDS
            self._fields[group] = self._prepared({name: known[name] for name in left})

    def _prepared(self, wanted: dict[str, tuple[int, int]]) -> tuple[Any, list[str]]:
        """Return an array that asks for fields, and their columns."""
        asked = (self._nvml.c_nvmlFieldValue_t * len(wanted))()
        for value, (field, scope) in zip(asked, wanted.values(), strict=True):
            value.fieldId, value.scopeId = field, scope
        return asked, list(wanted)

    def _gpm_get(self, sample: object) -> float:
        """Take a sample; return when it certainly was taken [s]."""
        if self._instance is None:
            self._nvml.nvmlGpmSampleGet(self._handle, sample)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._handle, self._instance, sample)
        return self._now_ns() / 1e9

    def _metrics(self, now_s: float) -> list[float]:
        """Return the GPM averages since they were last taken; NaN: too early, or none."""
        nothing = [math.nan] * len(self._gpm)
        if not self._samples or now_s - self._gpm_taken_s <= _GPM_GAP_S:
            return nothing
        if self._gpm_at_s == -math.inf:
            taken_s = self._ask("gpm_since_s", self._gpm_get, self._samples[0])
            if taken_s is not None:
                self._gpm_at_s, self._gpm_taken_s = now_s, taken_s
            return nothing
        found = self._ask("gpm_since_s", self._gpm_pair)
        if found is None:
            return nothing
        self._values["gpm_since_s"], self._gpm_at_s = self._gpm_at_s, now_s
        return found  # type: ignore[no-any-return] # the library has no types

    def _gpm_pair(self) -> list[float]:
        """Take the second sample, and make it the first of the next pair."""
        nvml, samples = self._nvml, self._samples
        taken_s = self._gpm_get(samples[1])
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(self._gpm)
        asked.sample1, asked.sample2 = samples
        for i, metric in enumerate(self._gpm):
            asked.metrics[i].metricId = metric
        nvml.nvmlGpmMetricsGet(asked)
        self._samples, self._gpm_taken_s = samples[::-1], taken_s
        return [
            math.nan if each.nvmlReturn else each.value
            for each in asked.metrics[: len(self._gpm)]
        ]

    def _ask(
        self, column: str, function: Callable[..., Any], *arguments: object
    ) -> Any:  # noqa: ANN401 - the library has no types
        """Return what NVML says; None: nothing, and the column says why."""
        if column in self._silent:
            return None
        try:
            return function(*arguments)
        except self._nvml.NVMLLibraryMismatchError:
            self._refused(column, _NO_FUNCTION)
        except self._nvml.NVMLError as error:
            self._refused(column, getattr(error, "value", _UNKNOWN))
        return None

    def _refused(self, column: str, code: int) -> None:
        """Keep why a column is empty; one that stays so is not asked for again."""
        self._failed(column, code)
        if code in _LOST:
            self._silent.update(COLUMNS)
            self._fields = [self._prepared({})] * 2
        elif code in _LASTING:
            self._silent.add(column)


def schedule(
    sample: Callable[[], None],
    skipped: Callable[[int], None],
    period_ns: int,
    now_ns: Callable[[], int],
    wait: Callable[[float], bool],
) -> None:
    """
    Sample at absolute deadlines until told to end.

    Args:
        sample: Takes one sample of each GPU.

        skipped: Called with the whole periods for which there was no time.

        period_ns: From one deadline to the next [ns].

        now_ns: The clock.

        wait: Waits for so long [s] and returns whether to end; at once if so.
    """
    due_ns = now_ns()
    while True:
        sample()
        due_ns += period_ns
        late_ns = now_ns() - due_ns
        if late_ns >= 0:
            missed = late_ns // period_ns + 1
            due_ns += missed * period_ns
            skipped(missed)
        if wait(max(0, due_ns - now_ns()) / 1e9):
            return


def _binding(path: str) -> ModuleType:
    """Return pynvml, loaded from its file alone."""
    spec = importlib.util.spec_from_file_location("pynvml", path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type] # the parent found it
    sys.modules["pynvml"] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr] # the same
    return module


def main() -> int:
    """Sample as the first argument says, until standard input ends."""
    asked = json.loads(sys.argv[1])
    nvml = _binding(asked["pynvml"])
    try:
        nvml.nvmlInit()
        with open(asked["ring"], "r+b") as file:  # noqa: PTH123 - pathlib takes 10 ms to import
            doubles = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
        capacity, gpm = asked["capacity"], asked["gpm"]
        ring = Ring(
            doubles, capacity=capacity, gpm_count=len(gpm), period_s=asked["period_s"]
        )
        sources = [Source(nvml, uuid, gpm, ring.failed) for uuid in asked["uuids"]]
    except nvml.NVMLError as error:
        sys.stdout.write(f"{getattr(error, 'value', _UNKNOWN)}\n")
        return 1
    for gpu, source in enumerate(sources):
        ring.known(gpu, source.index)
    sys.stdout.write("0\n")
    sys.stdout.flush()

    def sample() -> None:
        for gpu, source in enumerate(sources):
            now_s, unix_s = time.perf_counter_ns() / 1e9, time.time()
            ring.put(now_s, unix_s, gpu, source.read(now_s))

    def wait(duration_s: float) -> bool:
        return bool(select.select([sys.stdin], [], [], duration_s)[0])

    period_ns = round(asked["period_s"] * 1e9)
    schedule(sample, ring.skip, period_ns, time.perf_counter_ns, wait)
    nvml.nvmlShutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
