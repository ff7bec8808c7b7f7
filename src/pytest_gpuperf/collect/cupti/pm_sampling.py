"""Hardware counters of a whole device at a fixed interval, as a time line.

Nothing is replayed or put in order, and other processes' work is counted too: which
kernel a sample belongs to is told by its time alone. All metrics have to fit into one
pass; that is checked before the device is touched.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_gpuperf.collect.cupti import refusal, structs
from pytest_gpuperf.collect.cupti.host import HostHalf
from pytest_gpuperf.collect.cupti.libcupti import Libcupti, load
from pytest_gpuperf.collect.cupti.nvperf import ProfilerType
from pytest_gpuperf.collect.cupti.structs import PM
from pytest_gpuperf.errors import CollectError, CollectorUnavailableError, MeasureError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Note, Void

__all__ = ["PmSampler", "Timeline", "one_pass"]

# cupti_pmsampling.h: Turing and GA100 count steps of a clock that moves, not of time
_NO_TIME_STEPS = ("TU", "GA100")
_LEAST_INTERVAL_S = 1e-6  # ours: 10 us is what NVIDIA's own binding begins with
_NS_PER_S = 1_000_000_000
_MIB = 1 << 20
_AT_ONCE = 4096  # samples decoded at a time; between two times the image is emptied


class Timeline(Frozen, frozen=True, kw_only=True):
    """
    Counters of a device over time.

    Attributes:
        origin_ns: When the first sample began, by the GPU's clock [ns].

        starts_s: When each sample began, after `origin_ns` [s], in order, >= 1 of them.

        ends_s: When each ended, likewise [s].

        values: By metric, one a sample; None: not counted, or not finite.

        units: The unit of each metric as Nsight Compute writes it; "": none.

        interval_s: The interval that was asked for [s].

        tool: What counted, with its version: "cupti 13.4".

        source: Always "cupti".

        notes: What the reader should know.

        void: Why it must not be judged; None: it may.
    """

    origin_ns: int
    starts_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    values: Mapping[str, tuple[float | None, ...]]
    units: Mapping[str, str]
    interval_s: float
    tool: str
    source: str = "cupti"
    notes: tuple[Note, ...] = ()
    void: Void | None = None


class PmSampler:
    """
    Samples metrics of one device, which only one can do at a time.

    *Unverified on hardware.*

    Args:
        metrics: Full names, as `sm__cycles_active.avg`, >= 1 of them.

        device: Its ordinal in this process.

        interval_s: Time from sample to sample [s], >= 1e-6.

        buffer_bytes: Room for raw samples on the device [B]; one that is too small
            makes the result void.

        library: The libcupti; None: the one of this process.

    Raises:
        MeasureError: The metrics do not fit into one pass, or the interval is too short.

        CollectError: This GPU or user cannot sample; the error says why.

        ConfigError: The chip lacks some of the metrics.
    """

    def __init__(
        self,
        metrics: Sequence[str],
        *,
        device: int = 0,
        interval_s: float = 100e-6,
        buffer_bytes: int = 64 * _MIB,
        library: Libcupti | None = None,
    ) -> None:
        _refuse_request(metrics, interval_s)
        self._library = library or load()
        self._device = device
        self._interval_s = interval_s
        self._buffer_bytes = buffer_bytes
        self._notes = self._library.require_support(device, structs.PM_API)
        chip = self._library.chip(device)
        if chip.startswith(_NO_TIME_STEPS):
            message = f"{chip} samples in steps of a clock that moves, not of time"
            raise CollectorUnavailableError(
                message, remedy="count kernels or ranges instead, or sample a newer GPU"
            )
        self._host = one_pass(self._library, chip, metrics)
        self._units = self._host.units()
        self._object: int | None = None
        self._image = ctypes.create_string_buffer(1)

    def sample(self, body: Callable[[], object]) -> Timeline:
        """
        Sample while a body runs.

        Args:
            body: It waits for the device before it returns.

        Raises:
            CollectError: libcupti refused, or not one sample was taken.
        """
        self.start()
        try:
            body()
        except BaseException:  # which is not hidden by what the end of sampling says
            with contextlib.suppress(CollectError):
                self._disable()
            raise
        return self.stop()

    def start(self) -> None:
        """Begin to sample."""
        enabled = self._library.call(f"{PM}Enable", deviceIndex=self._device)
        self._object = enabled.pPmSamplingObject
        try:
            self._configure()
            self._call("Start")
        except BaseException:
            with contextlib.suppress(CollectError):
                self._disable()
            raise

    def stop(self) -> Timeline:
        """End it, and return what was sampled since `start`."""
        try:
            self._call("Stop")
            timeline = self._decoded()
        except BaseException:
            with contextlib.suppress(CollectError):
                self._disable()
            raise
        self._disable()
        return timeline

    def close(self) -> None:
        """Let go of what libcupti holds; it may be called again."""
        try:
            self._disable()
        finally:
            self._host.close()

    def _configure(self) -> None:
        """Say what is sampled and how often, and set memory aside for it."""
        self._call(
            "SetConfig",
            configSize=len(self._host.image),
            pConfig=ctypes.addressof(self._host.image),
            hardwareBufferSize=self._buffer_bytes,
            samplingInterval=round(self._interval_s * _NS_PER_S),
            triggerMode=structs.TIME_INTERVAL,
            hwBufferAppendMode=structs.APPEND_KEEP_OLDEST,
        )
        names = structs.metric_names(self._host.metrics)
        size = self._call(
            "GetCounterDataSize",
            pMetricNames=names,
            numMetrics=len(names),
            maxSamples=_AT_ONCE,
        ).counterDataSize
        self._image = ctypes.create_string_buffer(size)

    def _decoded(self) -> Timeline:
        """Return all that is in the device's buffer."""
        times_ns: list[tuple[int, int]] = []
        columns: dict[str, list[float | None]] = {name: [] for name in self._units}
        overflowed, why = False, structs.COUNTER_DATA_FULL
        unfinished_count = 0
        while why == structs.COUNTER_DATA_FULL:
            overflowed, why = self._decode()
            found = self._library.call(
                f"{PM}GetCounterDataInfo", **self._image_fields()
            )
            completed_count = found.numCompletedSamples
            unfinished_count = found.numPopulatedSamples - completed_count
            for index in range(completed_count):
                times_ns.append(self._times_ns(index))
                row = self._host.values(self._image, index, self._units)
                for name, column in columns.items():
                    column.append(row[name].value)
            if overflowed or not completed_count:
                break
        if not times_ns:
            message = "no sample was taken: the body took less time than an interval"
            remedy = "sample a longer body, or at a shorter interval"
            raise CollectError(message, remedy=remedy)
        origin_ns = min(start_ns for start_ns, _ in times_ns)
        return Timeline(
            origin_ns=origin_ns,
            starts_s=tuple((start - origin_ns) / _NS_PER_S for start, _ in times_ns),
            ends_s=tuple((end - origin_ns) / _NS_PER_S for _, end in times_ns),
            values={name: tuple(column) for name, column in columns.items()},
            units=self._units,
            interval_s=self._interval_s,
            tool=self._library.name,
            notes=(*self._notes, *_unfinished(unfinished_count)),
            void=_why_void(why, overflowed=overflowed, mib=self._buffer_bytes // _MIB),
        )

    def _decode(self) -> tuple[bool, int]:
        """Decode once; return whether samples were lost before, and why it stopped."""
        self._call(
            "CounterDataImageInitialize",
            counterDataSize=len(self._image),
            pCounterData=ctypes.addressof(self._image),
        )
        function = f"{PM}DecodeData"
        status, said = self._library.ask(
            function, pPmSamplingObject=self._object, **self._image_fields()
        )
        if status == refusal.OUT_OF_MEMORY:  # its word for an overflow
            return True, structs.COUNTER_DATA_FULL
        if status:
            raise refusal.failure(function, status)
        return bool(said.overflow), int(said.decodeStopReason)

    def _times_ns(self, index: int) -> tuple[int, int]:
        """Return when a sample began and ended, by the GPU's clock [ns]."""
        said = self._call(
            "CounterDataGetSampleInfo", sampleIndex=index, **self._image_fields()
        )
        return int(said.startTimestamp), int(said.endTimestamp)

    def _disable(self) -> None:
        """Give the device back."""
        held, self._object = self._object, None
        if held is not None:
            self._library.call(f"{PM}Disable", pPmSamplingObject=held)

    def _image_fields(self) -> dict[str, int]:
        """Return where samples are decoded to."""
        return {
            "pCounterDataImage": ctypes.addressof(self._image),
            "counterDataImageSize": len(self._image),
        }

    def _call(self, function: str, **given: Any) -> Any:  # noqa: ANN401 - see Libcupti.ask
        """Call a function of the sampling object."""
        if self._object is None:
            message = "the device is not being sampled"
            raise CollectError(message, remedy="call start() before stop()")
        return self._library.call(
            f"{PM}{function}", pPmSamplingObject=self._object, **given
        )


def one_pass(library: Libcupti, chip: str, metrics: Sequence[str]) -> HostHalf:
    """
    Return the configuration of metrics that can be sampled together.

    No device is asked: up to 13.1 libcupti answers without a driver too.

    Args:
        library: The libcupti.

        chip: As `GH100`.

        metrics: Full names, >= 1 of them.

    Raises:
        MeasureError: They need more than one pass; those that do so alone are named.

        ConfigError: The chip lacks some of them.
    """
    host = HostHalf(library, chip, ProfilerType.PM_SAMPLING, metrics)
    if host.passes_count == 1:
        return host
    host.close()
    alone = [name for name in metrics if _passes(library, chip, name) > 1]
    message = (
        f"{len(host.metrics)} metrics take {host.passes_count} passes on {chip}, and"
        " sampling has one"
    )
    if alone:
        remedy = f"leave out {', '.join(alone)}, too much for a pass even alone"
    else:
        remedy = "sample some of them at a time"
    raise MeasureError(message, remedy=remedy)


def _passes(library: Libcupti, chip: str, name: str) -> int:
    """Return how many passes one metric takes by itself."""
    host = HostHalf(library, chip, ProfilerType.PM_SAMPLING, (name,))
    host.close()
    return host.passes_count


def _refuse_request(metrics: Sequence[str], interval_s: float) -> None:
    """Refuse what has no meaning, all of it at once."""
    mistakes = [] if metrics else ["no metric is asked for"]
    if interval_s < _LEAST_INTERVAL_S:
        mistakes.append(f"an interval of {interval_s} s is too short")
    if mistakes:
        remedy = f"give metrics, and an interval of {_LEAST_INTERVAL_S} s or more"
        raise MeasureError("; ".join(mistakes), remedy=remedy)


def _unfinished(count: int) -> tuple[Note, ...]:
    """Return a note on samples that had begun and were not complete."""
    if not count:
        return ()
    several = "samples were" if count > 1 else "sample was"
    text = f"{count} {several} not complete at the end and left out"
    return (Note(code="unfinished-samples", text=text),)


def _why_void(why: int, *, overflowed: bool, mib: int) -> Void | None:
    """Return why what was decoded is not all that happened; None: it is."""
    if overflowed:
        text = (
            f"the device's buffer of {mib} MiB overflowed, and later samples are lost:"
            " give more buffer_bytes, or a longer interval_s"
        )
        return Void(code="samples-lost", text=text)
    if why != structs.END_OF_RECORDS:
        text = "libcupti stopped to decode samples and does not say why: run it again"
        return Void(code="samples-undecoded", text=text)
    return None
