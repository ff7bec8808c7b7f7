"""A time line of GPU sensors, sampled by one process per host.

The process that runs tests only reads the clock before and after a test, so that a test
that blocks the interpreter does not delay the sampler. All runs on a host that request the
same GPUs share one sampler. The first run starts it, and it ends when the last run has
released the ring, or has died. If the sampler dies, the next mark starts a new one. The
time in between is unobserved, and so is the earlier part of an open block. The length of
unobserved time is reported by compute.timeline.

H200: at 20 Hz samples are 50.0 ms apart (49.8 to 50.2). *Unverified on hardware:* higher
rates, and the share of a core that NVML itself takes.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import select
import signal
import subprocess  # noqa: TID251 - it runs during the tests; a Runner waits for its process
import sys
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

from pytest_gpuperf.collect.appended_file import open_unlinked
from pytest_gpuperf.collect.clock import Clock
from pytest_gpuperf.collect.environment import installed
from pytest_gpuperf.collect.leases import (
    FOLDER_VARIABLE,
    file_lock,
    file_mode,
    lease_folder,
    make_lease_folder,
)
from pytest_gpuperf.collect.listed_devices import HZ_PER_MHZ
from pytest_gpuperf.collect.nvml import child as nvml_child
from pytest_gpuperf.collect.nvml.library import (
    GPM_METRICS,
    clock_reasons,
    gap_of,
    gpm_readings,
    why_unavailable,
)
from pytest_gpuperf.errors import CollectorUnavailableError, MeasureError
from pytest_gpuperf.model.gap import Gap
from pytest_gpuperf.model.telemetry import CanonicalRecord

# Ten samples per second, the rate at which GPM and the drivers refresh.
_DEFAULT_HZ = 10.0
# Above this rate, sensors repeat their values.
_HIGHEST_HZ = 100.0
# Records: 54 min of one GPU at 10 Hz. Unused pages cost nothing.
_CAPACITY = 1 << 15
# An interpreter and pynvml start in 0.1 s, and NVML in some seconds.
_PATIENCE_S = 10.0
# Polling interval while the other process starts, a tenth of its start time.
_LOOK_S = 0.01
# A sampler that has not checked for users for this long has ended.
_STALE_S = 2.0
_TIMEOUT, _UNKNOWN = 10, 999  # nvml.h
# A GPM average covers 0.1 s and one period.
_GPM_S = 0.25


class Sampler:
    """
    Samples GPUs while tests run.

    A process that is forked from this process also holds the ring, so that the sampler
    continues until that process has ended.

    Args:
        uuids: The UUIDs of the GPUs, in NVML's spelling.

        clock: The clock of the marks. It must read the monotonic clock of the sampler.

        hz: Sampling rate [1/s], > 0 and <= 100. A sampler that is already running keeps
            its own rate: see `period_s`.

        folder: The folder of ring and lock, or None for `lease_folder()`.

        environment: The environment of the sampler, or None to inherit this process's.

        patience_s: Time limit of the start [s], > 0.

    Raises:
        MeasureError: The rate is outside that range.
    """

    def __init__(
        self,
        uuids: Sequence[str],
        clock: Clock,
        *,
        hz: float = _DEFAULT_HZ,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        if not 0 < hz <= _HIGHEST_HZ:
            message = f"a sampler cannot run at {hz!r} Hz"
            remedy = f"ask for more than 0 and at most {_HIGHEST_HZ:g}"
            raise MeasureError(message, remedy=remedy)
        self._uuids = tuple(uuids)
        self._clock = clock
        self._asked_s = 1.0 / hz
        self._folder = (lease_folder() if folder is None else folder).absolute()
        self._environment = environment
        self._patience_s = patience_s
        named = zlib.crc32("\n".join(self._uuids).encode())
        self._path = self._folder / f"sampler-{named:08x}.ring"
        self._held = contextlib.ExitStack()
        self._ring: memoryview[float] | None = None

    @property
    def pid(self) -> int:
        """The process id of the sampler, which any run may have started, or 0 without a sampler."""
        return int(self._head("pid"))

    @property
    def period_s(self) -> float:
        """The period of the running sampler [s]."""
        return self._head("period_s")

    @property
    def skipped_count(self) -> int:
        """Whole periods for which the sampler had no time, since the start of the sampler."""
        return int(self._head("skipped"))

    @property
    def silent(self) -> Mapping[str, Gap]:
        """The gaps of sensors that gave no value, by column."""
        ring = self._ring
        if ring is None:
            return {}
        codes = zip(nvml_child.COLUMNS, ring[nvml_child.ERRORS :], strict=False)
        return {column: gap_of(int(code)) for column, code in codes if code}

    def start(self) -> None:
        """
        Join the host's sampler, or start a sampler.

        Raises:
            CollectorUnavailableError: There is no NVML, no such GPU, no Linux, or no
                place for the ring.
        """
        if not sys.platform.startswith("linux"):
            raise CollectorUnavailableError(
                "the sampler of the sensors runs on Linux only",
                remedy="measure on Linux, or leave out what needs a time line",
            )
        self.stop()
        deadline_ns = self._clock.now_ns() + round(self._patience_s * 1e9)
        try:
            while not (self._joined() or self._started()):
                if self._clock.now_ns() > deadline_ns:
                    raise CollectorUnavailableError(
                        f"the sampler of another run writes no samples ({self._path})",
                        remedy="end that run, or remove the file",
                    )
                self._clock.sleep(_LOOK_S)
        except (OSError, NotImplementedError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise CollectorUnavailableError(
                f"the sampler cannot start in {self._folder} ({reason})",
                remedy=f"set {FOLDER_VARIABLE} to a folder on a local disk",
            ) from error

    def stop(self) -> None:
        """Release the sampler. It ends when no process holds it."""
        self._ring = None
        self._held.close()

    def mark(self) -> float:
        """
        Return the current time on the monotonic clock of the records [s].

        A sampler that has died or hangs is replaced.
        """
        if self._ring is None or not self._alive(self._ring):
            self.start()
        return self._clock.now_ns() / 1e9

    def records(self, start_s: float, end_s: float) -> tuple[CanonicalRecord, ...]:
        """
        Return the records between two marks, and a record before and after.

        Args:
            start_s: The first mark [s].

            end_s: The second mark [s]. The call waits for the values that describe the
                time until then: the next sample, and the next GPM average if the GPU
                gives any. That takes at most two periods and 0.25 s.

        Returns:
            The records in order for every GPU, as compute.timeline.summarise takes them.
        """
        ring = self._ring
        if ring is None:
            return ()
        # A GPM average describes the time before it, so that a later record completes
        # earlier records.
        margin_s = 2 * self.period_s + _GPM_S
        patience_ns = self._clock.now_ns() + round(margin_s * 1e9)
        while not _described(ring, end_s) and self._clock.now_ns() < patience_ns:
            self._clock.sleep(min(_LOOK_S, self.period_s))
        near = list(takewhile(lambda row: row[1] >= start_s - margin_s, newest(ring)))
        at = nvml_child.INDEXES
        indexes = [int(ring[at + gpu]) for gpu in range(len(self._uuids))]
        bits = int(self._head("narrow"))
        narrow = {c for n, c in enumerate(nvml_child.COLUMNS) if bits >> n & 1}
        records = canonical(near[::-1], self._uuids, indexes, narrow)
        return tuple(_window(records, start_s, end_s))

    def _head(self, name: str) -> float:
        return 0.0 if self._ring is None else self._ring[nvml_child.HEAD[name]]

    def _joined(self) -> bool:
        """Return True if a process writes to the ring. The ring is then held."""
        with contextlib.ExitStack() as held, contextlib.suppress(BlockingIOError):
            ring = self._opened(held)
            if ring is not None and self._alive(ring):
                self._held, self._ring = held.pop_all(), ring
                return True
        return False

    def _opened(self, held: contextlib.ExitStack) -> memoryview[float] | None:
        """
        Open and lock the ring, so that the sampler does not end, or return None.

        Raises:
            BlockingIOError: The sampler is ending.
        """
        import fcntl

        try:
            with os.fdopen(open_unlinked(self._path, os.O_RDONLY), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if not self._is_current(file):
                    raise BlockingIOError
                # The mapping duplicates the descriptor, and thereby keeps the lock.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return held.enter_context(memoryview(held.enter_context(mapped)).cast("d"))
        # There is no ring, or the file has another layout.
        except (FileNotFoundError, TypeError, ValueError):
            return None

    def _is_current(self, file: IO[bytes]) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(file.fileno()))
        except FileNotFoundError:
            return False

    def _started(self) -> bool:
        """Start the sampler. The result is False if another process is starting it."""
        make_lease_folder(self._folder)
        lock = file_lock(self._path.with_suffix(".lock"), timeout_s=0)
        try:
            lock.acquire()
        except TimeoutError:
            return False
        with contextlib.ExitStack() as held:
            held.callback(lock.release)
            try:
                # Held, because a sampler that ends now would remove the new ring.
                ring = self._opened(held)
            except BlockingIOError:
                return False
            if ring is not None and self._alive(ring):
                return self._joined()
            self._begin()
        return True

    def _begin(self) -> None:
        import fcntl

        spec = installed("pynvml")
        if spec is None:
            raise CollectorUnavailableError(
                "the sampler cannot start: pynvml is not installed",
                remedy="pip install nvidia-ml-py",
            )
        length = nvml_child.HEAD_LENGTH + _CAPACITY * nvml_child.record_length(
            len(GPM_METRICS)
        )
        # Only the holder of the lock uses this file. A killed run may have left it.
        path = self._path.with_suffix(".new")
        path.unlink(missing_ok=True)
        with path.open("x+b") as ring:  # Mode "x" never follows a link.
            try:
                os.fchmod(ring.fileno(), file_mode(self._folder))
                # Writing the head fails here if the disk is full.
                ring.write(bytes(8 * nvml_child.HEAD_LENGTH))
                ring.flush()
                ring.truncate(8 * length)
                # A second descriptor, because the sampler's own lock is on `ring`.
                with path.open("rb") as ours:
                    fcntl.flock(ours, fcntl.LOCK_SH)
                    path = path.replace(self._path)
                    self._run(ring, str(spec.origin))
            except BaseException:
                path.unlink(missing_ok=True)
                raise

    def _run(self, ring: IO[bytes], binding: str) -> None:
        request = {
            "pynvml": binding,
            "ring": str(self._path),
            "uuids": self._uuids,
            "period_s": self._asked_s,
            "capacity": _CAPACITY,
            "gpm": GPM_METRICS,
        }
        code = _UNKNOWN
        with subprocess.Popen(  # noqa: S603 - this interpreter and a file of ours
            [sys.executable, "-I", "-S", nvml_child.__file__, json.dumps(request)],
            stdin=ring,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=None if self._environment is None else dict(self._environment),
            start_new_session=True,  # Ctrl-C must not end the sampler.
        ) as process:  # It forks and ends at once. Its child samples.
            try:
                code = self._answer(process.stdout)  # type: ignore[arg-type] # made with a pipe
            finally:
                if code:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
        if code:
            raise why_unavailable("the sampler cannot start", code)

    def _answer(self, output: IO[bytes]) -> int:
        """Return NVML's error code, or 0 once the sampler writes samples."""
        deadline_ns = self._clock.now_ns() + round(self._patience_s * 1e9)
        # A pipe may have a descriptor number that `select` does not accept.
        poll = select.poll()
        poll.register(output, select.POLLIN)
        if not poll.poll(self._patience_s * 1e3):
            return _TIMEOUT
        line = output.readline().strip()
        code = int(line) if line.isdigit() else _UNKNOWN
        while not code and not self._joined():
            if self._clock.now_ns() > deadline_ns:
                return _TIMEOUT
            self._clock.sleep(_LOOK_S)
        return code

    def _alive(self, ring: memoryview[float]) -> bool:
        if ring[nvml_child.HEAD["magic"]] != nvml_child.MAGIC:
            return False
        looked_s = ring[nvml_child.HEAD["looked_s"]]
        return abs(self._clock.now_ns() / 1e9 - looked_s) <= _STALE_S


def newest(ring: memoryview[float]) -> Iterator[tuple[float, ...]]:
    """Yield the records of a ring, newest first, without a record that is being written."""
    head = nvml_child.HEAD
    written, capacity = int(ring[head["written"]]), int(ring[head["capacity"]])
    length = int(ring[head["length"]])
    for number in range(written, max(0, written - capacity), -1):
        at = nvml_child.HEAD_LENGTH + (number - 1) % capacity * length
        row = tuple(ring[at : at + length])
        if row[0] == row[-1] == number:
            yield row


def _described(ring: memoryview[float], end_s: float) -> bool:
    averages = nvml_child.COLUMNS.index(nvml_child.AVERAGES)
    silent = bool(ring[nvml_child.ERRORS + averages])
    for row in takewhile(lambda row: row[1] >= end_s, newest(ring)):
        if silent or not math.isnan(row[_FIRST_COLUMN + averages]):
            return True
    return False


def _window(
    records: Sequence[CanonicalRecord], start_s: float, end_s: float
) -> Iterator[CanonicalRecord]:
    before: dict[int, CanonicalRecord] = {}
    ended: set[int] = set()
    for record in records:
        gpu = record.gpu_index
        if record.monotonic_s < start_s:
            before[gpu] = record
        elif gpu not in ended:
            if gpu in before:
                yield before.pop(gpu)
            yield record
            if record.monotonic_s >= end_s:
                ended.add(gpu)


_BYTES_PER_KIB = 1024
_WRAP = 2**32  # The modulus of a counter of 32 bits.
# A record begins with its number, two times and the GPU. The columns follow.
_FIRST_COLUMN = 4
# Column -> field of a CanonicalRecord, and the factor that converts the value.
_PLAIN = {
    "memory_celsius": ("memory_temperature_celsius", 1.0),
    "power_milliwatts": ("power_watts", 1e-3),
    "energy_millijoules": ("energy_joules", 1e-3),
    "gpu_percent": ("gpu_busy_fraction", 1e-2),
    "memory_percent": ("memory_busy_fraction", 1e-2),
    "sm_mhz": ("sm_clock_hz", float(HZ_PER_MHZ)),
    "memory_mhz": ("memory_clock_hz", float(HZ_PER_MHZ)),
    "celsius": ("temperature_celsius", 1.0),
    "used_bytes": ("memory_used_bytes", 1.0),
    "free_bytes": ("memory_free_bytes", 1.0),
    "reserved_bytes": ("memory_reserved_bytes", 1.0),
    "limit_milliwatts": ("power_limit_watts", 1e-3),
    "default_limit_milliwatts": ("power_limit_default_watts", 1e-3),
}
_COUNTS = {
    "pcie_replays": "pcie_replay_count",
    "remapped_corrected": "correctable_remapped_row_count",
    "remapped_uncorrected": "uncorrectable_remapped_row_count",
}
_RATES = {
    "pcie_tx_bytes_per_s": (("pcie_tx_bytes",), 1),
    "pcie_rx_bytes_per_s": (("pcie_rx_bytes",), 1),
    "nvlink_bytes_per_s": (("nvlink_tx_kib", "nvlink_rx_kib"), _BYTES_PER_KIB),
}


def canonical(
    rows: Sequence[Sequence[float]],
    uuids: Sequence[str],
    indexes: Sequence[int],
    narrow: Collection[str] = (),
) -> list[CanonicalRecord]:
    """
    Convert records of a ring to CanonicalRecords, in the same order.

    A GPM average covers the time since the previous average, and applies to every sample in
    between.

    Args:
        rows: Records of the ring, in order for every GPU.

        uuids: The GPUs in the requested order.

        indexes: The driver index of each GPU, in the same order.

        narrow: Columns whose counters have 32 bits.
    """
    latest: dict[float, tuple[float, dict[str, float | None]]] = {}
    averages: list[dict[str, float | None]] = []
    for row in reversed(rows):
        values = _columns(row)
        if nvml_child.AVERAGES in values:
            metrics = row[_FIRST_COLUMN + len(nvml_child.COLUMNS) : -1]
            average = gpm_readings(dict(zip(GPM_METRICS, metrics, strict=True)))
            latest[row[3]] = values[nvml_child.AVERAGES], average
        since_s, average = latest.get(row[3], (math.inf, {}))
        averages.append(average if row[1] > since_s else {})
    before: dict[float, Sequence[float]] = {}
    records = []
    for row, average in zip(rows, reversed(averages), strict=True):
        gpu = int(row[3])
        readings: dict[str, Any] = {
            **_rates(row, before.get(row[3]), narrow),
            **_plain(row),
            **{name: value for name, value in average.items() if value is not None},
        }
        records.append(
            CanonicalRecord(
                gpu_index=indexes[gpu],
                gpu_uuid=uuids[gpu],
                monotonic_s=row[1],
                unix_s=row[2],
                **readings,
            )
        )
        before[row[3]] = row
    return records


def _columns(row: Sequence[float]) -> dict[str, float]:
    columns = row[_FIRST_COLUMN : _FIRST_COLUMN + len(nvml_child.COLUMNS)]
    named = zip(nvml_child.COLUMNS, columns, strict=True)
    return {column: value for column, value in named if not math.isnan(value)}


def _plain(row: Sequence[float]) -> dict[str, Any]:
    values = _columns(row)
    readings: dict[str, Any] = {
        reading: values[column] * scale
        for column, (reading, scale) in _PLAIN.items()
        if column in values
    }
    readings |= {
        reading: int(values[column])
        for column, reading in _COUNTS.items()
        if column in values
    }
    if "remap_failed" in values:
        readings["row_remap_failed"] = values["remap_failed"] > 0
    if "clock_reasons" in values:
        readings["clock_reasons"] = clock_reasons(int(values["clock_reasons"]))
    return readings


def _rates(
    row: Sequence[float], before: Sequence[float] | None, narrow: Collection[str]
) -> dict[str, float]:
    if before is None:
        return {}
    elapsed_s, new, old = row[1] - before[1], _columns(row), _columns(before)
    rates = {}
    for reading, (columns, scale) in _RATES.items():
        if elapsed_s > 0 and all(name in new and name in old for name in columns):
            rises = [new[name] - old[name] for name in columns]
            # A counter of 32 bits wraps after 4 GiB. If less than 4 GiB move in a period,
            # the counter wraps at most once, and the missing part is known. If more
            # move, the number of wraps is unknown (PCIe 5.0 x16 moves 4 GiB in 68 ms).
            rises = [
                rise + _WRAP if rise < 0 and name in narrow else rise
                for name, rise in zip(columns, rises, strict=True)
            ]
            # A counter that was reset has fallen.
            if min(rises) >= 0:
                rates[reading] = sum(rises) * scale / elapsed_s
    return rates
