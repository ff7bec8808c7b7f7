"""A time line of GPUs' sensors, sampled by one process of the host; PYTEST_DONT_REWRITE.

The process that runs tests only reads the clock before and after one: what holds its
interpreter for long does not hold the sampler. All runs on a host that ask for the same
GPUs share one sampler; whoever came first started it, and it ends with that process. Who
still needs it then starts another; the time between is unobserved, and compute.timeline
says so.

*Unverified on hardware:* how much of a core NVML's own part takes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import mmap
import select
import subprocess  # noqa: TID251 - it runs beside the tests; a Runner waits for its process
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pytest_gpuperf.collect import nvml_child
from pytest_gpuperf.collect.clock import Clock
from pytest_gpuperf.collect.leases import FOLDER_VARIABLE, lease_folder
from pytest_gpuperf.collect.nvml import fault_of, why_unavailable
from pytest_gpuperf.collect.translate.gpm import GPM_METRICS
from pytest_gpuperf.collect.translate.nvml import FIRST_COLUMN, canonical
from pytest_gpuperf.errors import CollectorUnavailableError, MeasureError
from pytest_gpuperf.model.deltas import Silent

if TYPE_CHECKING:
    from filelock import BaseFileLock

    from pytest_gpuperf.model.telemetry import CanonicalRecord

__all__ = ["Sampler"]

_DEFAULT_HZ = 10.0  # a share of 1 s in ten parts, as GPM and the drivers refresh
_HIGHEST_HZ = 100.0  # more often than that, sensors repeat themselves
# records: 54 min of one GPU at 10 Hz; pages that are not used cost nothing
_CAPACITY = 1 << 15
_PATIENCE_S = 10.0  # an interpreter and pynvml take 0.1 s, NVML's start some seconds
_LOOK_S = 0.01  # between two looks for the other process: a tenth of its start
_STALE_PERIODS, _STALE_S = 10, 1.0  # a sampler that wrote nothing for so long has ended
_TIMEOUT, _UNKNOWN = 10, 999  # nvml.h
_NO_ROW = (0.0, -math.inf)
_GPM_S = 0.25  # a GPM average is of 0.1 s and a period


class Sampler:
    """
    Samples GPUs while tests run.

    Args:
        uuids: The GPUs, as NVML names them.

        clock: Of the marks: the one whose monotonic reading the sampler's process shares.

        hz: How often [1/s], > 0 and <= 100. A sampler that is already there keeps its
            own: see `period_s`.

        folder: Where ring and lock are; None: `lease_folder()`.

        environment: Of the process; None: this one's.

        patience_s: How long it may take to start [s], > 0.

    Raises:
        MeasureError: So often, or none at all, makes no sense.
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
        self._folder = lease_folder() if folder is None else folder
        self._environment = environment
        self._patience_s = patience_s
        named = zlib.crc32("\n".join(self._uuids).encode())
        self._path = self._folder / f"sampler-{named:08x}.ring"
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: BaseFileLock | None = None
        self._ring: memoryview[float] | None = None

    @property
    def owned(self) -> bool:
        """Whether this process started the sampler."""
        return self._process is not None

    @property
    def period_s(self) -> float:
        """The period of the sampler that runs [s]."""
        return self._head("period_s")

    @property
    def skipped_count(self) -> int:
        """Whole periods for which it had no time, since it was started."""
        return int(self._head("skipped"))

    @property
    def silent(self) -> tuple[Silent, ...]:
        """Sensors that gave nothing, and why."""
        ring = self._ring
        if ring is None:
            return ()
        at = nvml_child.ERRORS
        codes = zip(
            nvml_child.COLUMNS, ring[at : at + len(nvml_child.COLUMNS)], strict=True
        )
        return tuple(
            Silent(
                sensor=column,
                code=int(code),
                reason=fault_of(int(code)).reason,
                remedy=fault_of(int(code)).remedy,
            )
            for column, code in codes
            if code
        )

    def start(self) -> None:
        """
        Join the sampler of this host, or start it.

        Raises:
            CollectorUnavailableError: There is no NVML, no such GPU, no Linux, or no
                place for the ring.
        """
        if not sys.platform.startswith("linux"):
            raise CollectorUnavailableError(
                "the sampler of the sensors runs on Linux only",
                remedy="ask for nothing that needs a time line here",
            )
        deadline_ns = self._clock.now_ns() + round(self._patience_s * 1e9)
        while not self._joined():
            if self._locked():
                try:
                    self._begin()
                except OSError as error:
                    self.stop()
                    raise self._no_place(error) from error
            elif self._clock.now_ns() > deadline_ns:
                raise CollectorUnavailableError(
                    f"the sampler of another run does not write ({self._path})",
                    remedy="end that run, or remove the file",
                )
            self._clock.sleep(_LOOK_S)

    def stop(self) -> None:
        """End the sampler, if this process started it; leave it otherwise."""
        self._ring = None
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr] # made with a pipe
            try:
                process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:  # hangs in the driver
                process.kill()
                process.wait()
            process.stdout.close()  # type: ignore[union-attr] # made with a pipe
            self._path.unlink(missing_ok=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def mark(self) -> float:
        """Return the time now, by the records' monotonic clock [s]."""
        if self._ring is None or not self._alive(self._ring):
            self.start()  # the process that had started it has ended
        return self._clock.now_ns() / 1e9

    def records(self, start_s: float, end_s: float) -> tuple[CanonicalRecord, ...]:
        """
        Return what was sampled between two marks, with one record before and one after.

        Args:
            start_s: The first mark [s].

            end_s: The second; what describes the time until then is waited for: the next
                sample, and the next GPM average where the GPU gives any. That takes two
                periods and 0.25 s at most.

        Returns:
            Of each GPU in order, as compute.timeline.summarise takes them.
        """
        ring = self._ring
        if ring is None:
            return ()
        # GPM describes the time before it: what comes later fills what came first
        margin_s = 2 * self.period_s + _GPM_S
        patience_ns = self._clock.now_ns() + round(margin_s * 1e9)
        while not _described(ring, end_s) and self._clock.now_ns() < patience_ns:
            self._clock.sleep(min(_LOOK_S, self.period_s))
        near = list(takewhile(lambda row: row[1] >= start_s - margin_s, _newest(ring)))
        at = nvml_child.INDEXES
        indexes = [int(ring[at + gpu]) for gpu in range(len(self._uuids))]
        found = canonical(near[::-1], self._uuids, indexes)
        return tuple(_window(found, start_s, end_s))

    def _head(self, name: str) -> float:
        """Return what the head of the ring says."""
        return 0.0 if self._ring is None else self._ring[nvml_child.HEAD[name]]

    def _locked(self) -> bool:
        """Return whether this process may start the sampler."""
        from filelock import FileLock, Timeout

        lock = FileLock(self._path.with_suffix(".lock"), timeout=0)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            return False
        except (OSError, NotImplementedError) as error:
            raise self._no_place(error) from error
        self._lock = lock
        return True

    def _no_place(self, error: Exception) -> CollectorUnavailableError:
        """Return the error of a system that refuses a file or a process."""
        reason = getattr(error, "strerror", None) or str(error)
        return CollectorUnavailableError(
            f"the sampler cannot start in {self._folder} ({reason})",
            remedy=f"name a folder on a local disk by {FOLDER_VARIABLE}",
        )

    def _begin(self) -> None:
        """Start the sampler into a new ring."""
        length = nvml_child.HEAD_LENGTH + _CAPACITY * nvml_child.record_length(
            len(GPM_METRICS)
        )
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
            file.truncate(length * 8)
        Path(file.name).replace(self._path)
        spec = importlib.util.find_spec("pynvml")
        if spec is None:
            self.stop()
            raise CollectorUnavailableError(
                "the sampler cannot start: pynvml is not installed",
                remedy="pip install nvidia-ml-py",
            )
        asked = {
            "pynvml": spec.origin,
            "ring": str(self._path),
            "uuids": self._uuids,
            "period_s": self._asked_s,
            "capacity": _CAPACITY,
            "gpm": tuple(GPM_METRICS),
        }
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter and a file of ours
            [sys.executable, "-I", "-S", nvml_child.__file__, json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=None if self._environment is None else dict(self._environment),
            start_new_session=True,  # Ctrl-C is for the tests; its end is the pipe's
        )
        code = self._answer(self._process.stdout)  # type: ignore[arg-type] # made with a pipe
        if code:
            self.stop()
            raise why_unavailable("the sampler cannot start", code)

    def _answer(self, told: IO[bytes]) -> int:
        """Return NVML's code with which the process began; 0: well."""
        if not select.select([told], [], [], self._patience_s)[0]:
            return _TIMEOUT
        line = told.readline().strip()
        return int(line) if line.isdigit() else _UNKNOWN

    def _joined(self) -> bool:
        """Return whether there is a ring that somebody writes to."""
        try:
            with self._path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # none, or empty yet
            return False
        ring = memoryview(mapped).cast("d")
        if ring[0] != nvml_child.MAGIC or not self._alive(ring):
            return False
        self._ring = ring
        return True

    def _alive(self, ring: memoryview[float]) -> bool:
        """Return whether a ring was written to lately."""
        newest_s = next(_newest(ring), _NO_ROW)[1]
        period_s = ring[nvml_child.HEAD["period_s"]]
        stale_s = max(_STALE_S, _STALE_PERIODS * period_s)
        return abs(self._clock.now_ns() / 1e9 - newest_s) <= stale_s


def _newest(ring: memoryview[float]) -> Iterator[tuple[float, ...]]:
    """Yield the records of a ring, the newest first; one being written is left out."""
    head = nvml_child.HEAD
    written, capacity = int(ring[head["written"]]), int(ring[head["capacity"]])
    length = int(ring[head["length"]])
    for number in range(written, max(0, written - capacity), -1):
        at = nvml_child.HEAD_LENGTH + (number - 1) % capacity * length
        row = tuple(ring[at : at + length])
        if row[0] == row[-1] == number:
            yield row


def _described(ring: memoryview[float], end_s: float) -> bool:
    """Return whether all that describes the time before an end is there."""
    averages = nvml_child.COLUMNS.index("gpm_since_s")
    silent = bool(ring[nvml_child.ERRORS + averages])
    for row in takewhile(lambda row: row[1] >= end_s, _newest(ring)):
        if silent or not math.isnan(row[FIRST_COLUMN + averages]):
            return True
    return False


def _window(
    records: Sequence[CanonicalRecord], start_s: float, end_s: float
) -> Iterator[CanonicalRecord]:
    """Yield the records of a window, and of each GPU one before and one after it."""
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
