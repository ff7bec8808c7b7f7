"""Samples the sensors of GPUs into a ring.

A program of its own: it is started by its path, without site-packages, and loads nothing
but the standard library, pynvml, and nvml_sensors beside it. It makes no CUDA context and
holds no device memory.

Its standard input is the ring's file. Who reads the ring holds a shared lock on that
file, which the kernel takes back from who dies. It ends when nobody holds one, and
removes the file. Who started it may end before it, and need not wait for its end: it
forks at its start, and only the process that forked is a child of theirs (unless they
adopt orphans, as process 1 of a container does).

The ring is a file of doubles. Its head: see `HEAD`. A record: its number, its time by the
monotonic and by the wall clock [s], the GPU's place among those asked for, `COLUMNS`, one
value for each GPM metric, and its number once more: who reads while it is written sees
two numbers. NaN: the sensor gave nothing new.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import mmap
import os
import signal
import sys
import time  # noqa: TID251 - a program of its own, without the package's Clock
from array import array
from collections.abc import Callable
from types import ModuleType

__all__ = ["COLUMNS", "ERRORS", "HEAD", "HEAD_LENGTH", "INDEXES", "MAGIC", "Ring"]
__all__ += ["Users", "record_length", "schedule"]

MAGIC = 6_071_003.0  # the first double of a ring; another layout has another
HEAD = {
    "magic": 0,
    "capacity": 1,
    "length": 2,
    "written": 3,
    "skipped": 4,
    "period_s": 5,
    "pid": 6,
    "looked_s": 7,
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
    "gpm_since_s",
)
_RING, _TOLD, _NOWHERE = 0, 1, 2  # descriptors: standard input, output, error
_LOOK_S = 0.5  # between two looks for users: so long it outlives the last one
_HUNG_S = 60  # it ends itself when it looked so long ago: no call to NVML takes that
_UNKNOWN = 999  # nvml.h


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
        """Keep when users were looked for: who does that is alive."""
        self._doubles[HEAD["looked_s"]] = monotonic_s

    def known(self, gpu: int, index: int) -> None:
        """Keep a GPU's place in the driver's order."""
        self._doubles[INDEXES + gpu] = index

    def skip(self, periods: int) -> None:
        """Count periods for which there was no time."""
        self._doubles[HEAD["skipped"]] += periods

    def failed(self, column: str, code: int) -> None:
        """Keep why a column is empty."""
        self._doubles[ERRORS + COLUMNS.index(column)] = code


class Users:
    """
    Who reads a ring: each holds a shared lock on its file.

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
        Sleep, and look for users now and then; return whether nobody is left.

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
        """Return whether nobody is left; the file is gone then, and stays locked."""
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


def _tell(code: int) -> None:
    """Tell who started this NVML's code, and no more."""
    with contextlib.suppress(OSError):  # it was killed meanwhile
        os.write(_TOLD, b"%d\n" % code)
    os.dup2(_NOWHERE, _TOLD)


def main() -> int:
    """Sample as the first argument says, until nobody holds the ring."""
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # it may be inherited otherwise
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.alarm(_HUNG_S)
    asked = json.loads(sys.argv[1])
    sensors = _loaded("nvml_sensors", asked["sensors"])
    nvml = _loaded("pynvml", asked["pynvml"])
    capacity, gpm, period_s = asked["capacity"], asked["gpm"], asked["period_s"]
    try:
        nvml.nvmlInit()
        doubles = memoryview(mmap.mmap(_RING, 0)).cast("d")
        ring = Ring(doubles, capacity=capacity, gpm_count=len(gpm), period_s=period_s)
        sources = [
            sensors.Source(nvml, uuid, COLUMNS, gpm, ring.failed)
            for uuid in asked["uuids"]
        ]
    except nvml.NVMLError as error:
        _tell(getattr(error, "value", _UNKNOWN))
        return 1
    for gpu, source in enumerate(sources):
        ring.known(gpu, source.index)
    _tell(0)
    gc.freeze()
    gc.disable()  # a sample leaves nothing for it

    def sample() -> None:
        for gpu, source in enumerate(sources):
            now_s, unix_s = time.perf_counter(), time.time()
            ring.put(now_s, unix_s, gpu, source.read(now_s))

    users = Users(_RING, asked["ring"], ring.looked)
    period_ns = round(period_s * 1e9)
    schedule(sample, ring.skip, period_ns, time.perf_counter_ns, users.wait)
    nvml.nvmlShutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
