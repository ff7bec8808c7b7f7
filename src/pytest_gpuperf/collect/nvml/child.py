"""Samples the sensors of GPUs into a ring.

A program of its own: it is started by its path, without site-packages, and loads nothing
but the standard library and pynvml. It makes no CUDA context and holds no device memory.

Its standard input is the ring's file. Who reads the ring holds a shared lock on that
file, which the kernel takes back from who dies. It ends when nobody holds one, and
removes the file. Who started it may end before it, and need not wait for its end: it
forks at its start, and only the process that forked is a child of theirs (unless they
adopt orphans, as process 1 of a container does).

The ring is a file of doubles. Its head: see `HEAD`. A record: its number, its time by the
monotonic and by the wall clock [s], the GPU's place among those asked for, `COLUMNS`, one
value for each GPM metric, and its number once more: who reads while it is written sees
two numbers. NaN: the sensor gave nothing new.

Each function of NVML is called with arguments and a buffer for its result that are made
once; pynvml's own functions make them anew. Between two samples others use the processor's
caches: whatever runs then takes several times as long as in a loop.
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

__all__ = [
    "COLUMNS",
    "ERRORS",
    "GPM_GAP_S",
    "HEAD",
    "HEAD_LENGTH",
    "INDEXES",
    "MAGIC",
    "Ring",
    "Sensors",
    "Users",
    "record_length",
    "schedule",
]

MAGIC = 6_071_005.0  # the first double of a ring; another layout has another
HEAD = {
    "magic": 0,
    "capacity": 1,
    "length": 2,
    "written": 3,
    "skipped": 4,
    "period_s": 5,
    "pid": 6,
    "looked_s": 7,
    "narrow": 31,  # a bit for each column whose counter has 32 bits
}
ERRORS = 8  # where in the head the last error of each column stands
INDEXES = 32  # and the place of each GPU in the driver's order
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
_RING, _ANSWER, _NOWHERE = 0, 1, 2  # descriptors: standard input, output, error
_LOOK_S = 0.5  # between two looks for users: so long it outlives the last one
_HUNG_S = 60  # it ends itself when it looked so long ago: no call to NVML takes that
_FIELDS = {  # nvml.h, NVML_FI_DEV_*: column -> field, scope
    "power_milliwatts": (186, 0),
    "energy_millijoules": (83, 0),
    "pcie_tx_bytes": (197, 0),
    "pcie_rx_bytes": (198, 0),
    "nvlink_tx_kib": (138, 0xFFFF_FFFF),
    "nvlink_rx_kib": (139, 0xFFFF_FFFF),
}
_SLOW_FIELDS = {  # of what moves slowly
    "memory_celsius": (82, 0),
    "pcie_replays": (94, 0),
    "remapped_corrected": (142, 0),
    "remapped_uncorrected": (143, 0),
    "remap_failed": (145, 0),
}
AVERAGES = "gpm_since_s"  # the column that says since when GPM's averages hold
_LASTING = {2, 3, 4, 12, 13, 14, 22, 24, 25, 26, 30}  # as collect.nvml has them
_LOST = {8, 15, 16, 28}
_SLOW_S = 0.1  # utilization refreshes each 1/6 s or 1 s, by board (NVML reference)
GPM_GAP_S = 0.1  # NVML reference: more than 100 ms between two samples
# nvml.h, nvmlFieldValue_t: what stands before the value's type and NVML's code, and the
# values of each type; one call takes them from all fields, for attributes are slow
_HEAD = "24xIi8x"
_HEAD_BYTES, _BYTES = 32, 40
_FORMATS = ("d", "I4x", "L", "Q", "q", "i4x", "H6x")  # by nvmlValueType_t
_UNSIGNED_INT = 1  # nvml.h, nvmlValueType_t: of 32 bits
_METRIC = "4xId24x"  # nvml.h, nvmlGpmMetric_t: NVML's code and the value
_NO_FUNCTION, _UNKNOWN = 13, 999  # nvml.h
_SM_CLOCK, _MEMORY_CLOCK, _DIE = 1, 2, 0  # nvml.h, nvmlClockType_t; its only sensor


def record_length(gpm_count: int) -> int:
    """Return how many doubles a record has."""
    return 5 + len(COLUMNS) + gpm_count


def _untold(_: str) -> None:
    """Drop the width of a column."""


class _Fields:
    """
    NVML's field values that are read together.

    Args:
        columns: Their names, by place.

        values: The array that names them and into which they are read.

        narrow: Called with each column whose value has 32 bits.
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
        self._good: tuple[int, ...] = ()  # the heads that the next two hold for
        self._places: list[int] = []
        self._numbers = struct.Struct("")

    def read(self, record: array[float]) -> dict[str, int]:
        """Copy the values into a record; return NVML's codes of the refused columns."""
        heads = self._heads.unpack_from(self.values)
        refused = {}
        if heads != self._good:  # a new type, or an error: seldom
            refused = self._learn(heads)
        numbers = self._numbers.unpack_from(self.values)
        for place, number in zip(self._places, numbers, strict=True):
            record[place] = number
        return refused

    def _learn(self, heads: tuple[int, ...]) -> dict[str, int]:
        """Set where the values are; return NVML's codes of the refused columns."""
        refused: dict[str, int] = {}
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
        return refused


class _Call(NamedTuple):
    """A function of NVML, its arguments, and the columns that its result fills."""

    column: str  # that holds the code of a failure
    function: Callable[..., int]
    arguments: tuple[Any, ...]
    result: Any
    members: tuple[tuple[int, str], ...]  # place of a column, member of the result


class Sensors:
    """
    The sensors of one GPU.

    Args:
        nvml: The binding, started.

        uuid: The GPU's name for life, or that of its instance.

        columns: The names of readings, in a record's order; GPM's values follow.

        gpm: Numbers of the GPM metrics to take.

        failed: Called with a column and NVML's code for it.

        now_ns: The clock by which samples are read.

        narrow: Called with each column whose value has 32 bits.
    """

    def __init__(
        self,
        nvml: ModuleType,
        uuid: str,
        columns: Sequence[str],
        gpm: Sequence[int],
        failed: Callable[[str, int], None],
        now_ns: Callable[[], int] = time.perf_counter_ns,
        narrow: Callable[[str], None] = _untold,
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
        clock = self._clock("sm_mhz", _SM_CLOCK)
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
        """Return columns and GPM metrics now; NaN: nothing new. Valid until the next."""
        self._values[:] = self._nothing
        self._read(0)
        if now_s - self._slow_at_s >= _SLOW_S:
            self._slow_at_s = now_s
            self._read(1)
        if self._samples and now_s - self._averages_taken_s > GPM_GAP_S:
            self._average(now_s)
        return self._values

    def _read(self, group: int) -> None:
        """Read a group's fields, and call its functions."""
        fields = self._fields[group]
        if fields.columns:
            self._read_together(fields)
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

    def _read_together(self, fields: _Fields) -> None:
        """Read fields in one call."""
        code = self._read_fields(self._handle, len(fields.columns), fields.values)
        if code:
            refused = dict.fromkeys(fields.columns, code)
        else:
            refused = fields.read(self._values)
        for column in refused:
            self._refused(column, refused[column])

    def _average(self, now_s: float) -> None:
        """Read the GPM averages since they were last taken."""
        if AVERAGES in self._silent:
            return
        older, newer = self._samples
        first = self._averages_at_s == -math.inf
        code = self._take(*self._sample_source, older if first else newer)
        taken_s = self._now_ns() / 1e9  # then it certainly was
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
        """Keep why a column is empty; one with a lasting error is not read again."""
        self._failed(column, code)
        if code in _LOST:
            self._silent.update(self._places)
        elif code in _LASTING:
            self._silent.add(column)
        else:
            return
        self._fields = self._fields_left()

    # ---- what is made once

    def _function(self, name: str) -> Callable[..., int]:
        """Return a function of the library, as it is; raise NVML's error without it."""
        function: Callable[..., int] = self._nvml._nvmlGetFunctionPointer(name)  # noqa: SLF001 - the binding's own functions make their arguments anew
        return function

    def _fields_left(self) -> list[_Fields]:
        """Return the fields of each group that are still read."""
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
        """Return the functions that read what moves slowly."""
        nvml = self._nvml
        memory = nvml.c_nvmlMemory_v2_t()
        memory.version = nvml.nvmlMemory_v2
        held = {f"{name}_bytes": name for name in ("used", "free", "reserved")}
        rates = nvml.c_nvmlUtilization_t()
        busy = {"gpu_percent": "gpu", "memory_percent": "memory"}
        return [
            self._clock("memory_mhz", _MEMORY_CLOCK),
            self._call("nvmlDeviceGetUtilizationRates", busy, rates),
            self._temperature(),
            self._call("nvmlDeviceGetMemoryInfo_v2", held, memory, handle=self._part),
            self._number("nvmlDeviceGetEnforcedPowerLimit", "limit_milliwatts"),
            self._number(
                "nvmlDeviceGetPowerManagementDefaultLimit", "default_limit_milliwatts"
            ),
            self._clock_reasons(),
        ]

    def _clock_reasons(self) -> _Call | None:
        """Return what reads why the clock is low; drivers before 535 have the old name."""
        name = "nvmlDeviceGetCurrentClocksEventReasons"
        try:
            self._function(name)
        except self._nvml.NVMLError:
            name = "nvmlDeviceGetCurrentClocksThrottleReasons"
        return self._call(name, {"clock_reasons": "value"}, ctypes.c_ulonglong())

    def _clock(self, column: str, kind: int) -> _Call | None:
        """Return what reads one of the clocks."""
        return self._number("nvmlDeviceGetClockInfo", column, kind)

    def _temperature(self) -> _Call | None:
        """Return what reads the die's; older drivers and bindings have the old name."""
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
        """Return the call of a function with one number as its result."""
        return self._call(name, {column: "value"}, ctypes.c_uint(), *kind)

    def _call(
        self,
        name: str,
        member_of: dict[str, str],
        result: Any,  # noqa: ANN401 - a structure of NVML's
        *kind: int,
        handle: object = None,
    ) -> _Call | None:
        """Return the call of a function; None: there is none, and its column says so."""
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
        """Make the two samples of a pair, and the request for their metrics."""
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
        self._record = array("d", bytes(8 * self._length))
        self._bytes = memoryview(self._record)
        doubles[HEAD["capacity"]] = capacity
        doubles[HEAD["length"]] = self._length
        doubles[HEAD["period_s"]] = period_s
        doubles[HEAD["pid"]] = os.getpid()
        doubles[HEAD["magic"]] = MAGIC  # last: who finds it finds the rest

    def put(
        self, monotonic_s: float, unix_s: float, gpu: int, values: array[float]
    ) -> None:
        """Append a record over the oldest one."""
        start = HEAD_LENGTH + self._written % self._capacity * self._length
        end = start + self._length
        self._written += 1
        doubles, record, number = self._doubles, self._record, float(self._written)
        record[0] = record[-1] = number
        record[1], record[2], record[3] = monotonic_s, unix_s, gpu
        record[4:-1] = values
        doubles[end - 1] = number  # now the numbers of the record below differ
        doubles[start:end] = self._bytes
        doubles[HEAD["written"]] = number

    def looked(self, monotonic_s: float) -> None:
        """Keep when users were last looked for: the reader's sign of life."""
        self._doubles[HEAD["looked_s"]] = monotonic_s

    def place(self, gpu: int, index: int) -> None:
        """Keep a GPU's place in the driver's order."""
        self._doubles[INDEXES + gpu] = index

    def skip(self, periods: int) -> None:
        """Count periods for which there was no time."""
        self._doubles[HEAD["skipped"]] += periods

    def failed(self, column: str, code: int) -> None:
        """Keep why a column is empty."""
        self._doubles[ERRORS + COLUMNS.index(column)] = code

    def narrow(self, column: str) -> None:
        """Keep that a column's counter has 32 bits."""
        at = HEAD["narrow"]
        self._doubles[at] = int(self._doubles[at]) | 1 << COLUMNS.index(column)


class Users:
    """
    The readers of a ring: each holds a shared lock on its file.

    Args:
        ring: A descriptor of the file, not duplicated from a user's: that would be locked.

        path: Where the file is, unless another has taken its place.

        looked: Called with the time of each look [s].
    """

    def __init__(self, ring: int, path: str, looked: Callable[[float], None]) -> None:
        self._ring = ring
        self._path = path
        self._looked = looked
        self._look_s = 0.0

    def wait(self, duration_s: float) -> bool:
        """
        Sleep, and look for users now and then; return whether none is left.

        Args:
            duration_s: How long [s], >= 0.
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
        """Return whether no user is left; the file is then removed, and stays locked."""
        import fcntl  # not on Windows, where this module is loaded for its names

        signal.alarm(_HUNG_S)  # anew: it ends this process unless the next look comes
        try:
            fcntl.flock(self._ring, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        with contextlib.suppress(OSError):  # somebody else removed it
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


def _loaded(name: str, path: str) -> ModuleType:
    """Return a module, loaded from its file alone."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type] # who started this found it
    sys.modules[name] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr] # the same
    return module


def _answer(code: int) -> None:
    """Write NVML's code to the process that started this one, once."""
    with contextlib.suppress(OSError):  # it was killed meanwhile
        os.write(_ANSWER, b"%d\n" % code)
    os.dup2(_NOWHERE, _ANSWER)


def main() -> int:
    """Sample as the first argument says, until no process holds the ring."""
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # it may be inherited otherwise
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.alarm(_HUNG_S)
    request = json.loads(sys.argv[1])
    nvml = _loaded("pynvml", request["pynvml"])
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
    gc.disable()  # a sample leaves nothing for it

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
