"""Samples the sensors of GPUs into a ring.

This module is run as a program. It is started by its path, without site-packages, and
loads only the standard library and pynvml. It creates no CUDA context and holds no device
memory.

Standard input is the ring's file. Every reader of the ring holds a shared lock on that
file, which the kernel releases if the reader dies. The program ends when no process holds
a lock, and removes the file. The process that started it may end earlier, and need not
wait for it: the program forks at its start, and only the forking process is a child of
the starter (unless the starter adopts orphans, as process 1 of a container does).

The ring is a file of doubles. See `HEAD` for its head. A record consists of its number, its
time by the monotonic and by the wall clock [s], the index of the GPU among the requested
GPUs, `COLUMNS`, one value per GPM metric, and its number again. A reader that sees two
different numbers has read a record that is still being written. NaN means that the sensor
gave nothing new.

The arguments and the result buffer of each NVML function are created once, while pynvml's
own functions create them at every call. Other processes use the CPU caches between two
samples, so that any code here takes several times as long as in a loop.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import json
import math
import mmap
import os
import signal
import struct
import sys
import time  # noqa: TID251 - a program of its own, without the package's Clock
from array import array
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

# The first double of a ring. A different layout must use a different number.
MAGIC = 6_071_005.0
HEAD = {
    "magic": 0,
    "capacity": 1,
    "length": 2,
    "written": 3,
    "skipped": 4,
    "period_s": 5,
    "pid": 6,
    "looked_s": 7,
    "narrow": 31,  # One bit per column, set if the counter has 32 bits.
}
# Positions in the head: the last error of each column, and the driver index of each GPU.
ERRORS = 8
INDEXES = 32
HEAD_LENGTH = 96
COLUMNS = (
    "power_milliwatts",
    "energy_millijoules",
    "pcie_tx_bytes",
    "pcie_rx_bytes",
    "nvlink_tx_kib",
    "nvlink_rx_kib",
    "memory_celsius",
    "pcie_replays",
    "remapped_corrected",
    "remapped_uncorrected",
    "remap_failed",
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
    "clock_reasons",
    "gpm_since_s",
)
# The file descriptors of standard input, output and error.
_RING, _ANSWER, _NOWHERE = 0, 1, 2
# Interval of the checks for users. The process outlives its last user by at most this.
_LOOK_S = 0.5
# The process ends itself if the last check is this old [s]. No call to NVML takes as long.
_HUNG_S = 60
# nvml.h, NVML_FI_DEV_*: column -> field, scope.
_FIELDS = {
    "power_milliwatts": (186, 0),
    "energy_millijoules": (83, 0),
    "pcie_tx_bytes": (197, 0),
    "pcie_rx_bytes": (198, 0),
    "nvlink_tx_kib": (138, 0xFFFF_FFFF),
    "nvlink_rx_kib": (139, 0xFFFF_FFFF),
}
# Fields that change slowly.
_SLOW_FIELDS = {
    "memory_celsius": (82, 0),
    "pcie_replays": (94, 0),
    "remapped_corrected": (142, 0),
    "remapped_uncorrected": (143, 0),
    "remap_failed": (145, 0),
}
# The column with the start of the period that GPM's averages cover [s].
AVERAGES = "gpm_since_s"
# NVML codes of lasting errors and of a lost GPU, classified as in collect.nvml.library.
_LASTING = {2, 3, 4, 12, 13, 14, 22, 24, 25, 26, 30}
_LOST = {8, 15, 16, 28}
# Utilization is refreshed every 1/6 s or 1 s, depending on the board (NVML reference).
_SLOW_S = 0.1
# Two GPM samples must be more than 100 ms apart (NVML reference).
GPM_GAP_S = 0.1
# nvml.h, nvmlFieldValue_t: the bytes before the value's type and NVML's code, and the
# format of each value type. A single unpack reads all fields, because attributes are slow.
_HEAD = "24xIi8x"
_HEAD_BYTES, _BYTES = 32, 40
# Indexed by nvmlValueType_t.
_FORMATS = ("d", "I4x", "L", "Q", "q", "i4x", "H6x")
# nvml.h, nvmlValueType_t: a value of 32 bits.
_UNSIGNED_INT = 1
# nvml.h, nvmlGpmMetric_t: NVML's code and the value.
_METRIC = "4xId24x"
_NO_FUNCTION, _UNKNOWN = 13, 999  # nvml.h
# nvml.h: two of nvmlClockType_t, and the only temperature sensor.
_SM_CLOCK, _MEMORY_CLOCK, _DIE = 1, 2, 0


def record_length(gpm_count: int) -> int:
    """Return the length of a record in doubles."""
    return 5 + len(COLUMNS) + gpm_count


class _Fields:
    """
    NVML field values that are read together.

    Args:
        columns: The position of every column in a record, by column name.

        values: The NVML array that names the fields and receives their values.

        narrow: Called with the name of every column whose value has 32 bits.
    """

    def __init__(
        self,
        columns: dict[str, int],
        values: Any,  # noqa: ANN401 - an array of NVML's
        narrow: Callable[[str], None],
    ) -> None:
        self.columns = columns
        self.values = values
        self._narrow = narrow
        self._heads = struct.Struct(_HEAD * len(columns))
        # The heads for which `_places` and `_numbers` are valid.
        self._good: tuple[int, ...] = ()
        self._places: list[int] = []
        self._numbers = struct.Struct("")

    def read(self, record: array[float]) -> dict[str, int]:
        """
        Copy the values into a record.

        Returns:
            NVML's error codes of the refused columns.
        """
        heads = self._heads.unpack_from(self.values)
        refused: dict[str, int] = {}
        # The heads differ only after an error or a change of type, which is rare.
        if heads != self._good:
            self._places, formats = [], ""
            for column, kind, code in zip(
                self.columns, heads[::2], heads[1::2], strict=True
            ):
                if code or kind >= len(_FORMATS):
                    refused[column] = code or _UNKNOWN
                    formats += f"{_BYTES}x"
                else:
                    self._places.append(self.columns[column])
                    formats += f"{_HEAD_BYTES}x{_FORMATS[kind]}"
                    if kind == _UNSIGNED_INT:
                        self._narrow(column)
            self._numbers = struct.Struct(formats)
            self._good = () if refused else heads
        numbers = self._numbers.unpack_from(self.values)
        for place, number in zip(self._places, numbers, strict=True):
            record[place] = number
        return refused


class _Call(NamedTuple):
    """A function of NVML, the arguments, and the columns that the result fills."""

    column: str  # Keeps the error code of a failed call.
    function: Callable[..., int]
    arguments: tuple[Any, ...]
    result: Any
    members: tuple[tuple[int, str], ...]  # Position of a column, member of the result.


class Sensors:
    """
    The sensors of one GPU.

    Args:
        nvml: The binding, initialized.

        uuid: The UUID of the GPU or of its MIG instance.

        columns: The names of the readings, in the order of a record. GPM values follow.

        gpm: Numbers of the GPM metrics to read.

        failed: Called with a column and NVML's error code.

        now_ns: The clock that times the samples.

        narrow: Called with the name of every column whose value has 32 bits.
    """

    def __init__(
        self,
        nvml: ModuleType,
        uuid: str,
        columns: Sequence[str],
        gpm: Sequence[int],
        failed: Callable[[str, int], None],
        now_ns: Callable[[], int] = time.perf_counter_ns,
        narrow: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._narrow = narrow
        self._nvml = nvml
        self._part = self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        self._instance: int | None = None
        if uuid.startswith("MIG-"):
            self._instance = nvml.nvmlDeviceGetGpuInstanceId(self._part)
            self._handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._part)
        self.index: int = nvml.nvmlDeviceGetIndex(self._handle)
        self._places = {column: place for place, column in enumerate(columns)}
        self._failed = failed
        self._now_ns = now_ns
        self._silent: set[str] = set()
        self._nothing = array("d", [math.nan]) * (len(columns) + len(gpm))
        self._values = self._nothing[:]
        self._slow_at_s = -math.inf
        self._read_fields = self._function("nvmlDeviceGetFieldValues")
        self._fields = self._fields_left()
        clock = self._number("nvmlDeviceGetClockInfo", "sm_mhz", _SM_CLOCK)
        self._calls = [
            [call for call in calls if call] for calls in ([clock], self._slow())
        ]
        self._averages_at_s = self._averages_taken_s = -math.inf
        self._samples: tuple[Any, ...] = ()
        if gpm:
            try:
                self._prepare_averages(gpm)
            except nvml.NVMLError as error:
                self._refused(AVERAGES, getattr(error, "value", _UNKNOWN))

    def read(self, now_s: float) -> array[float]:
        """
        Return the current columns and GPM metrics, with NaN for a sensor without news.

        The array is valid until the next call.
        """
        self._values[:] = self._nothing
        self._read(0)
        if now_s - self._slow_at_s >= _SLOW_S:
            self._slow_at_s = now_s
            self._read(1)
        if self._samples and now_s - self._averages_taken_s > GPM_GAP_S:
            self._average(now_s)
        return self._values

    def _read(self, group: int) -> None:
        fields = self._fields[group]
        if fields.columns:
            code = self._read_fields(self._handle, len(fields.columns), fields.values)
            if code:
                refused = dict.fromkeys(fields.columns, code)
            else:
                refused = fields.read(self._values)
            for column in refused:
                self._refused(column, refused[column])
        values, silent = self._values, self._silent
        for column, function, arguments, result, members in self._calls[group]:
            if column in silent:
                continue
            code = function(*arguments)
            if code:
                self._refused(column, code)
            else:
                for place, member in members:
                    values[place] = getattr(result, member)

    def _average(self, now_s: float) -> None:
        if AVERAGES in self._silent:
            return
        older, newer = self._samples
        first = self._averages_at_s == -math.inf
        code = self._take(*self._sample_source, older if first else newer)
        # Read after the call, so that the sample is certainly older than this.
        taken_s = self._now_ns() / 1e9
        if not code and not first:
            self._request.sample1, self._request.sample2 = older, newer
            code = self._derive(self._request_reference)
        if code:
            self._refused(AVERAGES, code)
            return
        if not first:
            self._samples = newer, older
            self._values[self._places[AVERAGES]] = self._averages_at_s
            numbers = iter(self._metrics.unpack_from(self._request, self._metrics_at))
            pairs = zip(numbers, numbers, strict=True)
            for place, (code, value) in enumerate(pairs, len(self._places)):
                if not code:
                    self._values[place] = value
        self._averages_at_s, self._averages_taken_s = now_s, taken_s

    def _refused(self, column: str, code: int) -> None:
        """Store the error code of a column, and stop reading the column if the error is lasting."""
        self._failed(column, code)
        if code in _LOST:
            self._silent.update(self._places)
        elif code in _LASTING:
            self._silent.add(column)
        else:
            return
        self._fields = self._fields_left()

    # ---- Buffers and calls that are created once.

    def _function(self, name: str) -> Callable[..., int]:
        """Return a function of the C library. NVML's error is raised if the function is missing."""
        function: Callable[..., int] = self._nvml._nvmlGetFunctionPointer(name)  # noqa: SLF001 - the binding's own functions make their arguments anew
        return function

    def _fields_left(self) -> list[_Fields]:
        groups = []
        for group in (_FIELDS, _SLOW_FIELDS):
            left = [column for column in group if column not in self._silent]
            values = (self._nvml.c_nvmlFieldValue_t * len(left))()
            for column, value in zip(left, values, strict=True):
                value.fieldId, value.scopeId = group[column]
            columns = {column: self._places[column] for column in left}
            groups.append(_Fields(columns, values, self._narrow))
        return groups

    def _slow(self) -> list[_Call | None]:
        nvml = self._nvml
        memory = nvml.c_nvmlMemory_v2_t()
        memory.version = nvml.nvmlMemory_v2
        held = {f"{name}_bytes": name for name in ("used", "free", "reserved")}
        rates = nvml.c_nvmlUtilization_t()
        busy = {"gpu_percent": "gpu", "memory_percent": "memory"}
        # Drivers before 535 have the old name of the function.
        reasons = "nvmlDeviceGetCurrentClocksEventReasons"
        try:
            self._function(reasons)
        except nvml.NVMLError:
            reasons = "nvmlDeviceGetCurrentClocksThrottleReasons"
        return [
            self._number("nvmlDeviceGetClockInfo", "memory_mhz", _MEMORY_CLOCK),
            self._call("nvmlDeviceGetUtilizationRates", busy, rates),
            self._temperature(),
            self._call("nvmlDeviceGetMemoryInfo_v2", held, memory, handle=self._part),
            self._number("nvmlDeviceGetEnforcedPowerLimit", "limit_milliwatts"),
            self._number(
                "nvmlDeviceGetPowerManagementDefaultLimit", "default_limit_milliwatts"
            ),
            self._call(reasons, {"clock_reasons": "value"}, ctypes.c_ulonglong()),
        ]

    def _temperature(self) -> _Call | None:
        # Older drivers and bindings have only the old function.
        if hasattr(self._nvml, "c_nvmlTemperature_v1_t"):
            request = self._nvml.c_nvmlTemperature_v1_t()
            request.version, request.sensorType = self._nvml.nvmlTemperature_v1, _DIE
            try:
                function = self._function("nvmlDeviceGetTemperatureV")
            except self._nvml.NVMLError:
                code = _NO_FUNCTION
            else:
                code = function(self._handle, ctypes.byref(request))
            if code != _NO_FUNCTION:
                members = {"celsius": "temperature"}
                return self._call("nvmlDeviceGetTemperatureV", members, request)
        return self._number("nvmlDeviceGetTemperature", "celsius", _DIE)

    def _number(self, name: str, column: str, *kind: int) -> _Call | None:
        return self._call(name, {column: "value"}, ctypes.c_uint(), *kind)

    def _call(
        self,
        name: str,
        member_of: dict[str, str],
        result: Any,  # noqa: ANN401 - a structure of NVML's
        *kind: int,
        handle: object = None,
    ) -> _Call | None:
        """Return a call, or None after storing the error code if the function is missing."""
        column, *_ = member_of
        try:
            function = self._function(name)
        except self._nvml.NVMLError as error:
            self._refused(column, getattr(error, "value", _UNKNOWN))
            return None
        arguments = (handle or self._handle, *kind, ctypes.byref(result))
        members = tuple(
            (self._places[name], member) for name, member in member_of.items()
        )
        return _Call(column, function, arguments, result, members)

    def _prepare_averages(self, gpm: Sequence[int]) -> None:
        nvml = self._nvml
        self._derive = self._function("nvmlGpmMetricsGet")
        if self._instance is None:
            self._take = self._function("nvmlGpmSampleGet")
            self._sample_source: tuple[Any, ...] = (self._handle,)
        else:
            self._take = self._function("nvmlGpmMigSampleGet")
            self._sample_source = (self._handle, self._instance)
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(gpm)
        self._request_reference = ctypes.byref(self._request)
        for place, metric in enumerate(gpm):
            self._request.metrics[place].metricId = metric
        self._metrics = struct.Struct(_METRIC * len(gpm))
        self._metrics_at = type(self._request).metrics.offset
        self._samples = (nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc())


class Ring:
    """
    The ring, as used by its only writer.

    Args:
        doubles: The memory of the ring, as doubles.

        capacity: Maximum number of records.

        gpm_count: Number of GPM metrics in a record.

        period_s: Sampling period [s].
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
        self._record = array("d", bytes(8 * self._length))
        self._bytes = memoryview(self._record)
        doubles[HEAD["capacity"]] = capacity
        doubles[HEAD["length"]] = self._length
        doubles[HEAD["period_s"]] = period_s
        doubles[HEAD["pid"]] = os.getpid()
        # Written last, so that a reader that finds the number also finds the rest.
        doubles[HEAD["magic"]] = MAGIC

    def put(
        self, monotonic_s: float, unix_s: float, gpu: int, values: array[float]
    ) -> None:
        """Append a record, overwriting the oldest record of a full ring."""
        start = HEAD_LENGTH + self._written % self._capacity * self._length
        end = start + self._length
        self._written += 1
        doubles, record, number = self._doubles, self._record, float(self._written)
        record[0] = record[-1] = number
        record[1], record[2], record[3] = monotonic_s, unix_s, gpu
        record[4:-1] = values
        # From here until the copy is complete, the two numbers of the record differ.
        doubles[end - 1] = number
        doubles[start:end] = self._bytes
        doubles[HEAD["written"]] = number

    def looked(self, monotonic_s: float) -> None:
        """Store the time of the last check for users, as a sign of life for readers."""
        self._doubles[HEAD["looked_s"]] = monotonic_s

    def place(self, gpu: int, index: int) -> None:
        """Store the driver index of a GPU."""
        self._doubles[INDEXES + gpu] = index

    def skip(self, periods: int) -> None:
        """Add periods that were skipped because a sample took too long."""
        self._doubles[HEAD["skipped"]] += periods

    def failed(self, column: str, code: int) -> None:
        """Store the error code of a column."""
        self._doubles[ERRORS + COLUMNS.index(column)] = code

    def narrow(self, column: str) -> None:
        """Mark a column as a counter of 32 bits."""
        at = HEAD["narrow"]
        self._doubles[at] = int(self._doubles[at]) | 1 << COLUMNS.index(column)


class Users:
    """
    The readers of a ring, all of which hold a shared lock on its file.

    Args:
        ring: A descriptor of the file. It must not be a duplicate of a reader's descriptor,
            because it would then share the reader's lock.

        path: The path of the file. Another file may have taken its place.

        looked: Called with the time of every check [s].
    """

    def __init__(self, ring: int, path: str, looked: Callable[[float], None]) -> None:
        self._ring = ring
        self._path = path
        self._looked = looked
        self._look_s = 0.0

    def wait(self, duration_s: float) -> bool:
        """
        Sleep, and check for users every half second.

        Args:
            duration_s: Time to sleep [s], >= 0.

        Returns:
            True as soon as no user is left, False after the full time.
        """
        now_s = time.perf_counter()
        until_s = now_s + duration_s
        while True:
            if now_s >= self._look_s:
                self._look_s = now_s + _LOOK_S
                self._looked(now_s)
                if self._gone():
                    return True
            if now_s >= until_s:
                return False
            time.sleep(min(until_s, self._look_s) - now_s)
            now_s = time.perf_counter()

    def _gone(self) -> bool:
        """Return True after removing the file if no user is left. The file then stays locked."""
        # Imported here because Windows lacks fcntl, but loads this module for its names.
        import fcntl

        # The alarm starts again. It ends this process unless the next check comes in time.
        signal.alarm(_HUNG_S)
        try:
            fcntl.flock(self._ring, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # The file may already have been removed.
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(self._path), os.fstat(self._ring)):  # noqa: PTH116 - pathlib takes 10 ms to import
                os.unlink(self._path)  # noqa: PTH108 - the same
        return True


def schedule(
    sample: Callable[[], None],
    skipped: Callable[[int], None],
    period_ns: int,
    now_ns: Callable[[], int],
    wait: Callable[[float], bool],
) -> None:
    """
    Sample at absolute deadlines until `wait` returns True.

    Args:
        sample: Takes one sample of every GPU.

        skipped: Called with the number of whole periods for which there was no time.

        period_ns: Time between two deadlines [ns].

        now_ns: The clock.

        wait: Sleeps for a time [s] and returns True to end. It then returns at once.
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


def _answer(code: int) -> None:
    # The starting process may have been killed.
    with contextlib.suppress(OSError):
        os.write(_ANSWER, b"%d\n" % code)
    os.dup2(_NOWHERE, _ANSWER)


def main() -> int:
    """Sample as requested in the first argument, until no process holds the ring."""
    if os.fork():
        os._exit(0)
    # An ignored or blocked signal would be inherited from the starting process.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.alarm(_HUNG_S)
    request = json.loads(sys.argv[1])
    spec = importlib.util.spec_from_file_location("pynvml", request["pynvml"])
    nvml = importlib.util.module_from_spec(spec)  # type: ignore[arg-type] # who started this found it
    sys.modules["pynvml"] = nvml
    spec.loader.exec_module(nvml)  # type: ignore[union-attr] # the same
    capacity, gpm, period_s = request["capacity"], request["gpm"], request["period_s"]
    try:
        nvml.nvmlInit()
        doubles = memoryview(mmap.mmap(_RING, 0)).cast("d")
        ring = Ring(doubles, capacity=capacity, gpm_count=len(gpm), period_s=period_s)
        sources = [
            Sensors(nvml, uuid, COLUMNS, gpm, ring.failed, narrow=ring.narrow)
            for uuid in request["uuids"]
        ]
    except nvml.NVMLError as error:
        _answer(getattr(error, "value", _UNKNOWN))
        return 1
    for gpu, source in enumerate(sources):
        ring.place(gpu, source.index)
    _answer(0)
    gc.freeze()
    # A sample creates no reference cycles, so there is nothing to collect.
    gc.disable()

    def sample() -> None:
        for gpu, source in enumerate(sources):
            now_s, unix_s = time.perf_counter(), time.time()
            ring.put(now_s, unix_s, gpu, source.read(now_s))

    users = Users(_RING, request["ring"], ring.looked)
    period_ns = round(period_s * 1e9)
    schedule(sample, ring.skip, period_ns, time.perf_counter_ns, users.wait)
    nvml.nvmlShutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
