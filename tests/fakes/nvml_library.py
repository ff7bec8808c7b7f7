"""
Doubles of NVML's own library, below the real binding; both read the same script.

`FakeLibrary` is Python and needs no compiler: pynvml calls it as it calls the library,
and it fills the very structures. `compiled` builds the library of fake_nvml/, for other
processes. fake_nvml/README.md says what a script may hold.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fakes import compiler
from fakes.clock import FakeClock

GOOD, UNSTARTED, INVALID, ABSENT, NOT_FOUND, TOO_SMALL, TIMEOUT = 0, 1, 2, 3, 6, 7, 10
LATEST_VERSION = 25
ALWAYS = float("-inf")
COUNT, RATE, MASK, NOW = "count", "rate", "mask", "now"
FIELDS = {
    3: (COUNT, "ecc.sbe", 1.0, 0),
    4: (COUNT, "ecc.dbe", 1.0, 0),
    94: (COUNT, "pcie.replay", 1.0, 0),
    142: (COUNT, "remap.cor", 1.0, 0),
    143: (COUNT, "remap.unc", 1.0, 0),
    144: (COUNT, "remap.pending", 1.0, 0),
    145: (COUNT, "remap.failed", 1.0, 0),
    83: (NOW, "power.mw", 1.0, 0),  # energy: see _answer
    82: (NOW, "temp.mem", 1.0, 0),
    185: (NOW, "power.mw", 1.0, 0),
    186: (NOW, "power.mw", 1.0, 0),
    197: (RATE, "pcie.tx_kbs", 1024 / 1e6, 0),
    198: (RATE, "pcie.rx_kbs", 1024 / 1e6, 0),
    138: (RATE, "nvlink.tx_kbs", 1 / 1e6, 0),
    139: (RATE, "nvlink.rx_kbs", 1 / 1e6, 0),
    74: (MASK, "clocks.reasons", 1e3, 0x4),
    75: (MASK, "clocks.reasons", 1e3, 0x60),
    76: (MASK, "clocks.reasons", 1e3, 0x10),
    269: (MASK, "clocks.reasons", 1e3, 0x20),
    270: (MASK, "clocks.reasons", 1e3, 0x40),
    271: (MASK, "clocks.reasons", 1e3, 0x80),
}
# of 32 bits, as an H200 answers them; PCIe's bytes begin anew after 4 GiB
NARROW = frozenset({82, 94, 185, 186, 197, 198})
RINGS = {0: "power.mw", 1: "util.gpu", 2: "util.mem", 5: "clock.sm", 6: "clock.mem"}
SENSORS = {
    "nvmlDeviceGetPowerUsage": "power.mw",
    "nvmlDeviceGetEnforcedPowerLimit": "power.limit_mw",
    "nvmlDeviceGetPowerManagementDefaultLimit": "power.limit_mw",
}
# one H200 that works for half a second and is idle before and after
BURST = """
,0,sys.gpus,1
,*,mem.total,150754820096
,*,mem.reserved,600000000
,*,power.limit_mw,700000
,*,clock.mem,3201
,*,mig,0
,*,gpm,1
,*,ecc.sbe,0
,*,ecc.dbe,0
,*,remap.cor,0
,*,remap.unc,0
,*,remap.pending,0
,*,remap.failed,0
,*,pcie.replay,0
,*,temp.mem,40
,*,temp.gpu,35
,*,util.gpu,0
,*,util.mem,0
0,*,clock.sm,345
0,*,mem.used,500000000
0,*,power.mw,75000
0,*,clocks.reasons,0x1
0,*,pcie.tx_kbs,0
0,*,pcie.rx_kbs,0
0,*,gpm.2,0
0,*,gpm.10,0
200,*,clock.sm,1980
200,*,mem.used,40000000000
200,*,power.mw,640000
200,*,clocks.reasons,0x0
200,*,pcie.tx_kbs,1000
200,*,gpm.2,97.5
200,*,gpm.10,61
700,*,clock.sm,345
700,*,mem.used,500000000
700,*,power.mw,75000
700,*,clocks.reasons,0x1
700,*,pcie.tx_kbs,0
700,*,gpm.2,0
700,*,gpm.10,0
"""


class Row(NamedTuple):
    """One line of a script."""

    t_us: float
    value: float
    text: str
    ramp: bool


class Script:
    """Values over time, by GPU and key."""

    def __init__(self, text: str) -> None:
        self.rows: dict[tuple[int, str], list[Row]] = {}
        for line in text.splitlines():
            if not line or line.startswith("#"):
                continue
            t_ms, gpu, key, value, *mode = line.split(",")
            number = 0.0
            if value.startswith("0x"):
                number = float(int(value, 16))
            elif value.lstrip("-").replace(".", "", 1).isdigit():
                number = float(value)
            row = Row(
                float(t_ms) * 1e3 if t_ms else ALWAYS, number, value, mode == ["lin"]
            )
            self.rows.setdefault((-1 if gpu == "*" else int(gpu), key), []).append(row)
        for rows in self.rows.values():
            rows.sort(key=lambda row: row.t_us)

    def series(self, gpu: int, key: str) -> list[Row]:
        own = self.rows.get((gpu, key))
        return self.rows.get((-1, key), []) if own is None else own

    def keys(self, gpu: int, head: str) -> list[str]:
        return [
            key
            for owner, key in self.rows
            if owner in {gpu, -1} and key.startswith(head)
        ]

    def row(self, gpu: int, key: str, t_us: float) -> Row | None:
        past = [row for row in self.series(gpu, key) if row.t_us <= t_us]
        return past[-1] if past else None

    def value(self, gpu: int, key: str, t_us: float) -> float | None:
        rows = self.series(gpu, key)
        i = sum(row.t_us <= t_us for row in rows) - 1
        return None if i < 0 else self._inside(rows, i, t_us)

    def integral(self, gpu: int, key: str, a: float, b: float, mask: int = 0) -> float:
        total = 0.0
        rows = self.series(gpu, key)
        for i, row in enumerate(rows):
            start = max(row.t_us, a)
            end = min(rows[i + 1].t_us if i + 1 < len(rows) else b, b)
            if end > start:
                if mask:
                    mean = float(bool(int(row.value) & mask))
                else:
                    first = self._inside(rows, i, start)
                    mean = (first + self._inside(rows, i, end)) / 2
                total += mean * (end - start)
        return total

    @staticmethod
    def _inside(rows: list[Row], i: int, t_us: float) -> float:
        row = rows[i]
        if i + 1 == len(rows) or not rows[i + 1].ramp:
            return row.value
        after = rows[i + 1]
        share = (t_us - row.t_us) / (after.t_us - row.t_us)
        return row.value + (after.value - row.value) * share


@dataclass
class Gpm:
    """What a GPM sample remembers."""

    gpu: int = 0
    t_us: float = 0.0


@dataclass(eq=False)
class FakeLibrary:
    """
    NVML as a script has it.

    Attributes:
        script: What happens.

        clock: When it is.

        missing: Symbols that this driver does not have.

        late_ns: How long each GPM sample takes, in turn; none after the last [ns].

        calls: Every call, in order.
    """

    script: Script
    clock: FakeClock = field(default_factory=FakeClock)
    missing: frozenset[str] = frozenset()
    late_ns: list[int] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    started: int = 0

    def __post_init__(self) -> None:
        self._epoch_ns = self.clock.reading_ns
        self._epoch_us = self.clock.wall_s * 1e6
        self._kept: dict[int, Any] = {}

    @property
    def now_us(self) -> float:
        return (self.clock.reading_ns - self._epoch_ns) / 1e3

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a symbol of the library, as ctypes gives one."""
        if not name.startswith("nvml") or name in self.missing:
            raise AttributeError(name)
        if name in SENSORS:
            entry: Any = self._sensor(SENSORS[name])
        else:
            entry = getattr(type(self), f"_{name}", None)
        if entry is None:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            plain = [_plain(argument) for argument in arguments]
            return self._refusal(name, plain) or entry(self, *plain)

        return call

    def get(self, gpu: int, key: str) -> float | None:
        return self.script.value(gpu, key, self.now_us)

    def energy_mj(self, gpu: int) -> int:
        t_us = self.now_us
        period_us = self.get(gpu, "period.energy_us") or 0.0
        if period_us > 0:
            t_us = t_us // period_us * period_us
        return int(self.script.integral(gpu, "power.mw", 0.0, t_us) / 1e6)

    def _refusal(self, name: str, arguments: list[Any]) -> int:
        if name in {"nvmlInitWithFlags", "nvmlErrorString"}:
            return 0
        if not self.started:
            return UNSTARTED
        gpu = 0
        if arguments and isinstance(arguments[0], int) and arguments[0] >= 0x1000:
            gpu = arguments[0] - 0x1000
            if name == "nvmlEventSetWait_v2":
                gpu = self._kept[arguments[0]].gpu
        bare = name[:-3] if name[-3:-1] == "_v" else name
        return int(self.get(gpu if gpu < 16 else 0, f"error.{bare}") or 0)

    @staticmethod
    def _sensor(key: str) -> Callable[..., int]:
        def read(self: FakeLibrary, handle: int, out: Any) -> int:
            return self._into(out, handle, key)

        return read

    def _into(self, out: Any, handle: int, key: str) -> int:
        value = self.get(handle - 0x1000, key)
        if value is None:
            return ABSENT
        out.value = int(value)
        return GOOD

    def _keep(self, out: Any, thing: object) -> int:
        address = 0x100000 + len(self._kept)
        self._kept[address] = thing
        _point(out, address)
        return GOOD

    # ---- the system, and which GPU

    def _nvmlInitWithFlags(self, flags: int) -> int:
        code = int(self.get(0, "error.nvmlInit") or 0)
        self.started += not code
        return code

    def _nvmlShutdown(self) -> int:
        self.started -= 1
        return GOOD

    def _nvmlErrorString(self, code: int) -> bytes:
        return b"scripted"

    def _uuid(self, gpu: int) -> str:
        row = self.script.row(gpu, "uuid", self.now_us)
        return f"GPU-00000000-0000-4000-8000-{gpu:012d}" if row is None else row.text

    def _place(self, gpu: int) -> str:
        row = self.script.row(gpu, "pci", self.now_us)
        return f"00000000:{0x18 + gpu:02X}:00.0" if row is None else row.text

    def _search(self, wanted: bytes, out: Any, naming: Callable[[int], str]) -> int:
        for gpu in range(int(self.get(0, "sys.gpus") or 1)):
            if naming(gpu).lower() == wanted.decode().lower():
                _point(out, 0x1000 + gpu)
                return GOOD
        return NOT_FOUND

    def _nvmlDeviceGetHandleByUUID(self, uuid: bytes, out: Any) -> int:
        return self._search(uuid, out, self._uuid)

    def _nvmlDeviceGetHandleByPciBusId_v2(self, place: bytes, out: Any) -> int:
        return self._search(place, out, self._place)

    def _nvmlDeviceGetUUID(self, handle: int, out: Any, size: int) -> int:
        out.value = self._uuid(handle - 0x1000).encode()
        return GOOD

    def _nvmlDeviceGetIndex(self, handle: int, out: Any) -> int:
        out.value = handle - 0x1000
        return GOOD

    def _nvmlDeviceGetMigMode(self, handle: int, now: Any, pending: Any) -> int:
        return self._into(now, handle, "mig") or self._into(pending, handle, "mig")

    def _nvmlDeviceGetVirtualizationMode(self, handle: int, out: Any) -> int:
        out.value = int(self.get(handle - 0x1000, "virtual") or 0)
        return GOOD

    def _nvmlDeviceGetGpuInstanceId(self, handle: int, out: Any) -> int:
        out.value = 1
        return GOOD

    def _nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
        self, handle: int, out: Any
    ) -> int:
        _point(out, handle)
        return GOOD

    # ---- sensors

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle: int, out: Any) -> int:
        if self.get(handle - 0x1000, "power.mw") is None:
            return ABSENT
        out.value = self.energy_mj(handle - 0x1000)
        return GOOD

    def _nvmlDeviceGetUtilizationRates(self, handle: int, out: Any) -> int:
        gpu = self.get(handle - 0x1000, "util.gpu")
        if gpu is None:
            return ABSENT
        out.gpu, out.memory = int(gpu), int(self.get(handle - 0x1000, "util.mem") or 0)
        return GOOD

    def _nvmlDeviceGetMemoryInfo_v2(self, handle: int, out: Any) -> int:
        parts = [self.get(handle - 0x1000, f"mem.{k}") for k in ("total", "used")]
        if parts[0] is None:
            return ABSENT
        if out.version != 0x02000028:
            return LATEST_VERSION
        out.total, out.used = int(parts[0]), int(parts[1] or 0)
        out.reserved = int(self.get(handle - 0x1000, "mem.reserved") or 0)
        out.free = out.total - out.used - out.reserved
        return GOOD

    def _nvmlDeviceGetTemperatureV(self, handle: int, out: Any) -> int:
        celsius = self.get(handle - 0x1000, "temp.gpu")
        if celsius is None:
            return ABSENT
        out.temperature = int(celsius)
        return GOOD

    def _nvmlDeviceGetTemperature(self, handle: int, kind: int, out: Any) -> int:
        return self._into(out, handle, "temp.gpu")

    def _nvmlDeviceGetClockInfo(self, handle: int, kind: int, out: Any) -> int:
        key = {1: "clock.sm", 2: "clock.mem"}.get(kind, "clock.other")
        return self._into(out, handle, key)

    def _nvmlDeviceGetCurrentClocksEventReasons(self, handle: int, out: Any) -> int:
        out.value = int(self.get(handle - 0x1000, "clocks.reasons") or 0)
        return GOOD

    _nvmlDeviceGetCurrentClocksThrottleReasons = _nvmlDeviceGetCurrentClocksEventReasons

    # ---- processes

    def _processes(self, handle: int, count: Any, out: Any, head: str) -> int:
        found = {
            int(key.removeprefix(head)): held
            for key in self.script.keys(handle - 0x1000, head)
            if (held := self.get(handle - 0x1000, key)) is not None and held >= 0
        }
        room = 0 if out is None else count.value
        for i, (pid, held) in enumerate(found.items()):
            if i < room:
                out[i].pid, out[i].usedGpuMemory = pid, int(held)
        count.value = len(found)
        return TOO_SMALL if len(found) > room else GOOD

    def _nvmlDeviceGetComputeRunningProcesses_v3(
        self, handle: int, count: Any, out: Any
    ) -> int:
        return self._processes(handle, count, out, "proc.")

    def _nvmlDeviceGetMPSComputeRunningProcesses_v3(
        self, handle: int, count: Any, out: Any
    ) -> int:
        return self._processes(handle, count, out, "mps.")

    # ---- fields and rings

    def _nvmlDeviceGetFieldValues(self, handle: int, count: int, out: Any) -> int:
        gpu = handle - 0x1000
        for i in range(count):
            out[i].valueType, out[i].value.ullVal = 3, 0
            out[i].nvmlReturn = self._answer(gpu, out[i])
        return GOOD

    def _answer(self, gpu: int, out: Any) -> int:
        code = int(self.get(gpu, f"error.field.{out.fieldId}") or 0)
        kind, key, scale, mask = FIELDS.get(out.fieldId, (COUNT, "", 1.0, 0))
        value = self.get(gpu, key)
        if code or value is None:
            return code or ABSENT
        if out.fieldId == 83:
            number = self.energy_mj(gpu)
        elif kind in {NOW, COUNT}:
            number = int(value)
        else:
            whole = self.script.integral(gpu, key, 0.0, self.now_us, mask)
            number = int(whole * scale)
        if out.fieldId in NARROW:
            out.valueType, out.value.uiVal = 1, number & 0xFFFF_FFFF
        else:
            out.value.ullVal = number
        return GOOD

    def _nvmlDeviceGetSamples(
        self, handle: int, kind: int, since: int, form: Any, count: Any, out: Any
    ) -> int:
        key = RINGS.get(kind)
        if key is None or self.get(handle - 0x1000, key) is None:
            return ABSENT
        form.value = 1
        newest = int(self.now_us // 20000)
        found = [
            (int(self._epoch_us + i * 20000), i * 20000.0)
            for i in range(max(0, newest - 119), newest + 1)
            if int(self._epoch_us + i * 20000) > since
        ]
        for i, (stamp, t_us) in enumerate(found if out is not None else ()):
            value = self.script.value(handle - 0x1000, key, t_us)
            out[i].timeStamp, out[i].sampleValue.uiVal = stamp, int(value or 0)
        count.value = len(found)
        return GOOD if found else NOT_FOUND

    def _nvmlDeviceGetProcessUtilization(
        self, handle: int, out: Any, count: Any, since: int
    ) -> int:
        gpu, newest = handle - 0x1000, int(self.now_us // 20000)
        found: dict[int, tuple[int, int]] = {}
        for key in self.script.keys(gpu, "use."):
            for i in range(max(0, newest - 119), newest + 1):
                stamp = int(self._epoch_us + i * 20000)
                used = self.script.value(gpu, key, i * 20000.0) or 0
                if stamp > since and used > 0:
                    found[int(key.removeprefix("use."))] = stamp, int(used)
        room = 0 if out is None else count.value
        for i, (pid, (stamp, used)) in enumerate(found.items()):
            if i < room:
                out[i].pid, out[i].timeStamp, out[i].smUtil = pid, stamp, used
        count.value = len(found)
        if not found:
            return NOT_FOUND
        return TOO_SMALL if len(found) > room else GOOD

    # ---- events and GPM

    def _nvmlEventSetCreate(self, out: Any) -> int:
        return self._keep(out, Gpm())

    def _nvmlDeviceRegisterEvents(self, handle: int, types: int, events: int) -> int:
        self._kept[events] = Gpm(handle - 0x1000, self.now_us)
        return GOOD

    def _nvmlEventSetWait_v2(self, events: int, out: Any, wait_ms: int) -> int:
        listening = self._kept[events]
        for row in self.script.series(listening.gpu, "xid"):
            if listening.t_us < row.t_us <= self.now_us:
                listening.t_us = row.t_us
                out.eventType, out.eventData = 8, int(row.value)
                return GOOD
        return TIMEOUT

    def _nvmlEventSetFree(self, events: int) -> int:
        del self._kept[events]
        return GOOD

    def _nvmlGpmQueryDeviceSupport(self, handle: int, out: Any) -> int:
        out.isSupportedDevice = int(self.get(handle - 0x1000, "gpm") or 0)
        return GOOD

    def _nvmlGpmSampleAlloc(self, out: Any) -> int:
        return self._keep(out, Gpm())

    def _nvmlGpmSampleFree(self, sample: int) -> int:
        self._kept[sample] = None
        return GOOD

    def _nvmlGpmSampleGet(self, handle: int, sample: int) -> int:
        if not self.get(handle - 0x1000, "gpm"):
            return ABSENT
        if self.late_ns:
            self.clock.advance(self.late_ns.pop(0))
        self._kept[sample] = Gpm(handle - 0x1000, self.now_us)
        return GOOD

    def _nvmlGpmMigSampleGet(self, handle: int, instance: int, sample: int) -> int:
        return self._nvmlGpmSampleGet(handle, sample)

    def _nvmlGpmMetricsGet(self, asked: Any) -> int:
        a, b = (self._kept[_address(each)] for each in (asked.sample1, asked.sample2))
        if b.t_us - a.t_us <= 100_000:
            return INVALID
        for metric in asked.metrics[: asked.numMetrics]:
            key = f"gpm.{metric.metricId}"
            known = self.get(a.gpu, key) is not None
            metric.nvmlReturn = GOOD if known else ABSENT
            whole = self.script.integral(a.gpu, key, a.t_us, b.t_us)
            metric.value = whole / (b.t_us - a.t_us)
        return GOOD

    @property
    def open_samples(self) -> int:
        """GPM samples and sets of events that nobody has given back."""
        return sum(each is not None for each in self._kept.values())


def _plain(argument: Any) -> Any:
    """Return what an argument of a ctypes call stands for."""
    if hasattr(argument, "_obj"):  # byref
        return argument._obj
    if isinstance(argument, ctypes.c_char_p):
        return argument.value
    if isinstance(argument, ctypes.Array):
        return argument
    if isinstance(argument, ctypes._Pointer):
        return _address(argument)
    return getattr(argument, "value", argument)


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def _point(out: Any, address: int) -> None:
    """Set a pointer that the caller made."""
    ctypes.c_void_p.from_buffer(out).value = address


_NAME = "pynvml_on_a_double"


def binding(library: object) -> ModuleType:
    """Return the real pynvml, a copy of its own, on a library that is handed in."""
    module = sys.modules.get(_NAME)
    if module is None:
        found = importlib.util.find_spec("pynvml")
        assert found is not None
        assert found.origin is not None
        spec = importlib.util.spec_from_file_location(_NAME, found.origin)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[_NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    state: Any = module
    state.nvmlLib = library
    state._nvmlGetFunctionPointer_cache.clear()
    return module


@contextmanager
def scripted(text: str, **more: Any) -> Iterator[tuple[ModuleType, FakeLibrary]]:
    """Yield the real binding on a script, and the library below it."""
    library = FakeLibrary(Script(text), **more)
    try:
        yield binding(library), library
    finally:
        binding(None)


def compiled(folder: Path) -> Path | None:
    """Return the folder of a compiled double, put there; None: no compiler."""
    source = Path(__file__).with_name("fake_nvml") / "fake_nvml.c"
    target = folder / "libnvidia-ml.so.1"
    options = ("-fvisibility=hidden", "-lm", "-lpthread")
    built = compiler.library(source.read_text("utf-8"), target, *options)
    return None if built is None else folder
