"""CUPTI's range profiler: counters of kernels and ranges, in this process.

The same copy of libcupti makes the configuration, counts, and evaluates; that is why
NVIDIA's own binding, which loads a copy of its choice, does not stand here.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from pytest_gpuperf.collect.cupti import libcupti, structs
from pytest_gpuperf.collect.cupti.libcupti import Context, Libcupti, load
from pytest_gpuperf.collect.cupti.structs import (
    HOST,
    RANGE,
    RANGE_PROFILER,
    metric_names,
)
from pytest_gpuperf.errors import (
    CollectError,
    CollectorUnavailableError,
    ConfigError,
    GpuPerfError,
    MeasureError,
    UnknownMetricError,
)
from pytest_gpuperf.model.counters import CounterMode
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Note, Void, VoidCode
from pytest_gpuperf.model.sample import Source

__all__ = [
    "Counted",
    "CountedRange",
    "CounterValue",
    "HostHalf",
    "RangeProfiler",
    "RangeSession",
    "Ranged",
    "kernel_replay_refusal",
    "ncu_unit",
]

# From 13.2 on the host half needs a driver: 13.2 crashes without one, later ones refuse.
_NEEDS_DRIVER = 130200

# words of libcupti's units, as Nsight Compute writes them
_WORDS = {
    "percent": "%",
    "nanosecond": "nsecond",
    "instruction": "inst",
    "unitless": "",
}


class CounterValue(Frozen, frozen=True, kw_only=True):
    """
    One counter of one range.

    Attributes:
        value: The number; None: it was not counted, or is not finite.

        unit: Its unit as Nsight Compute writes it: `byte`, `%`, `inst/cycle`; "": none.
    """

    value: float | None
    unit: str


class HostHalf:
    """
    What prepares the counting of metrics on a chip, and makes values of the counts.

    Args:
        library: The libcupti that also counts.

        chip: As `GH100`.

        metrics: Full names, as `dram__bytes.sum`; each once, >= 1 of them.

    Attributes:
        metrics: As they were given.

        image: The configuration that tells a device to count them.

        passes_count: In how many passes it does, >= 1.

    Raises:
        UnknownMetricError: The chip lacks one; ConfigError: it lacks several.

        CollectError: This libcupti cannot prepare it; the error says why.
    """

    def __init__(self, library: Libcupti, chip: str, metrics: Sequence[str]) -> None:
        if library.version >= _NEEDS_DRIVER and not library.has_driver():
            message = f"{library.path} prepares no counters without a CUDA driver"
            raise CollectorUnavailableError(
                message,
                remedy="count on a machine with a GPU; gpuperf metrics passes answers "
                "without one",
            )
        self.metrics = tuple(dict.fromkeys(metrics))
        self._library = library
        self._chip = chip
        self._names = metric_names(self.metrics)
        self._object: int | None = library.call(
            f"{HOST}Initialize",
            profilerType=RANGE_PROFILER,
            pChipName=chip.encode(),
        ).pHostObject
        try:
            self.image, self.passes_count = self._prepared()
        except GpuPerfError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of what libcupti holds; it may be called again."""
        held, self._object = self._object, None
        if held is not None:
            self._library.call(f"{HOST}Deinitialize", pHostObject=held)

    def units(self) -> dict[str, str]:
        """Return the unit of each metric, as Nsight Compute writes it."""
        said = {name: self._call("GetMetricProperties", name) for name in self.metrics}
        return {
            name: ncu_unit((each.pDimUnit or b"").decode())
            for name, each in said.items()
        }

    def values(
        self, counted: ctypes.Array[ctypes.c_char], index: int, units: Mapping[str, str]
    ) -> dict[str, CounterValue]:
        """
        Return what one range counted.

        Args:
            counted: The image into which it was decoded.

            index: Which of them, from 0.

            units: The unit of each metric.
        """
        numbers = (ctypes.c_double * len(self.metrics))()
        self._library.call(
            f"{HOST}EvaluateToGpuValues",
            pHostObject=self._object,
            pCounterDataImage=ctypes.addressof(counted),
            counterDataImageSize=len(counted),
            rangeIndex=index,
            ppMetricNames=self._names,
            numMetrics=len(self._names),
            pMetricValues=numbers,
        )
        return {
            name: CounterValue(
                value=number if math.isfinite(number) else None, unit=units[name]
            )
            for name, number in zip(self.metrics, numbers, strict=True)
        }

    def _prepared(self) -> tuple[ctypes.Array[ctypes.c_char], int]:
        """Return the configuration, and in how many passes it counts."""
        own = {"pHostObject": self._object}
        add = f"{HOST}ConfigAddMetrics"
        named = {"ppMetricNames": self._names, "numMetrics": len(self._names)}
        status, _ = self._library.ask(add, **own, **named)
        if status:
            raise self._unknown() or libcupti.failure(add, status)
        size = self._library.call(f"{HOST}GetConfigImageSize", **own).configImageSize
        image = ctypes.create_string_buffer(size)
        given = {"configImageSize": size, "pConfigImage": ctypes.addressof(image)}
        self._library.call(f"{HOST}GetConfigImage", **own, **given)
        passes = self._library.call(f"{HOST}GetNumOfPasses", **given).numOfPasses
        return image, int(passes)

    def _unknown(self) -> ConfigError | None:
        """Return the error that names every metric the chip lacks; None: it has all."""
        asked = f"{HOST}GetMetricProperties"
        unknown = [
            name
            for name in self.metrics
            if self._library.ask(
                asked, pHostObject=self._object, pMetricName=name.encode()
            )[0]
            in {libcupti.INVALID_METRIC_NAME, libcupti.INVALID_PARAMETER}
        ]
        remedy = (
            f"look for it: gpuperf metrics search --chip={self._chip} WORD, and give its"
            " ending too, as .sum"
        )
        if len(unknown) == 1:
            return UnknownMetricError(unknown[0], remedy=remedy)
        listed = ", ".join(map(repr, unknown))
        message = f"unknown metrics {listed} of {self._chip}"
        return ConfigError(message, remedy=remedy) if unknown else None

    def _call(self, function: str, name: str) -> Any:  # noqa: ANN401 - a structure's fields are of any type
        """Call a function about one metric."""
        return self._library.call(
            f"{HOST}{function}", pHostObject=self._object, pMetricName=name.encode()
        )


def ncu_unit(text: str) -> str:
    """
    Return a unit of libcupti as Nsight Compute writes it.

    Example:
        >>> ncu_unit("instruction/gpc_cycle")
        'inst/cycle'
    """
    return "/".join(_word(part) for part in text.split("/"))


def _word(text: str) -> str:
    """Return one word of a unit; cycles are cycles, whoever's clock counts them."""
    return "cycle" if text.endswith("cycle") else _WORDS.get(text, text)


_OUTERMOST = 1  # the level of ranges that is counted; those inside of others are not
_DELIMITER = b"/"  # between the names of nested ranges


class RangeSession:
    """
    A range profiler object, from its making to its end.

    *Unverified on hardware.*

    Args:
        library: The libcupti.

        host: What is counted.

        context: Whose work is counted.

        max_ranges: Room for so many ranges, >= 1.

        cache: structs.NO_CACHES or ALL_CACHES.

    Attributes:
        clock: What was done to the device's clock before; None: not known.

        image: What was counted, once it is decoded.

        names: Of the ranges of this run of the body, in order.
    """

    def __init__(
        self,
        library: Libcupti,
        host: HostHalf,
        context: Context,
        max_ranges: int,
        cache: int,
    ) -> None:
        self._library = library
        self._host = host
        self._max_ranges = max_ranges
        self.clock = library.clock_state(context)
        new = {"cacheControlMode": cache} if cache else {}  # 0 is what older ones do
        self._object = library.call(
            f"{RANGE}Enable", ctx=context.handle, **new
        ).pRangeProfilerObject
        self.image = ctypes.create_string_buffer(1)
        self.names: list[str] = []
        self._is_inside = False

    def make_room(self) -> None:
        """Set the memory aside into which ranges are decoded."""
        names = metric_names(self._host.metrics)
        size = self._call(
            "GetCounterDataSize",
            pMetricNames=names,
            numMetrics=len(names),
            maxNumOfRanges=self._max_ranges,
            maxNumRangeTreeNodes=self._max_ranges,
        ).counterDataSize
        self.image = ctypes.create_string_buffer(size)
        self._call(
            "CounterDataImageInitialize",
            counterDataSize=size,
            pCounterData=ctypes.addressof(self.image),
        )

    def configure(self, kind: int, replay: int) -> None:
        """Say what is counted; in this process, libcupti itself keeps the passes."""
        self._call(
            "SetConfig",
            configSize=len(self._host.image),
            pConfig=ctypes.addressof(self._host.image),
            counterDataImageSize=len(self.image),
            pCounterDataImage=ctypes.addressof(self.image),
            range=kind,
            replayMode=replay,
            maxRangesPerPass=self._max_ranges,
            numNestingLevels=_OUTERMOST,
            minNestingLevel=_OUTERMOST,
            passIndex=0,
            targetNestingLevel=_OUTERMOST,
        )

    def start(self) -> None:
        """Begin to count a run of the body."""
        self.names = []
        self._call("Start")

    def stop(self) -> bool:
        """End a run of the body; return whether it was the last one needed."""
        return bool(self._call("Stop").isAllPassSubmitted)

    @contextlib.contextmanager
    def ranged(self, name: str) -> Iterator[None]:
        """
        Count what runs inside as one range.

        Raises:
            MeasureError: It lies in another one, or one of this name ran before.
        """
        if self._is_inside or name in self.names:
            raise _ambiguous(name, is_inside=self._is_inside)
        self._call("PushRange", pRangeName=name.encode())
        self.names.append(name)
        self._is_inside = True
        try:
            yield
        except BaseException:  # which is not hidden by what the end of the range says
            with contextlib.suppress(CollectError):
                self._call("PopRange")
            raise
        finally:
            self._is_inside = False
        self._call("PopRange")

    def decode(self) -> int:
        """Fetch what the hardware has counted; return how many ranges were dropped."""
        return int(self._call("DecodeData").numOfRangeDropped)

    def ranges_count(self) -> int:
        """Return how many ranges were counted."""
        return int(self._image_call("GetCounterDataInfo").numTotalRanges)

    def name(self, index: int) -> str:
        """Return the name of a range."""
        said = self._image_call(
            "CounterDataGetRangeInfo", rangeIndex=index, rangeDelimiter=_DELIMITER
        )
        return (said.rangeName or str(index).encode()).decode()

    def disable(self) -> None:
        """End it."""
        self._call("Disable")

    def _call(self, function: str, **given: Any) -> Any:  # noqa: ANN401 - see Libcupti.ask
        """Call a function of this object."""
        return self._library.call(
            f"{RANGE}{function}", pRangeProfilerObject=self._object, **given
        )

    def _image_call(self, function: str, **given: Any) -> Any:  # noqa: ANN401 - see Libcupti.ask
        """Call a function about what was counted."""
        return self._library.call(
            f"{RANGE}{function}",
            pCounterDataImage=ctypes.addressof(self.image),
            counterDataImageSize=len(self.image),
            **given,
        )


def _ambiguous(name: str, *, is_inside: bool) -> MeasureError:
    """Return the error for a range that would not be counted by itself."""
    if is_inside:
        message = f"range {name!r} lies in another one, and only the outer is counted"
        return MeasureError(message, remedy="end the one before the other begins")
    message = f"range {name!r} was begun twice in one run of the body"
    return MeasureError(message, remedy="give each range a name of its own")


Ranged = Callable[[str], AbstractContextManager[None]]

_UNHELD_CLOCKS = frozenset({None, "unlocked"})


class CountedRange(Frozen, frozen=True, kw_only=True):
    """
    What was counted of one kernel, or of one range.

    Attributes:
        name: The range's; of a kernel its place among those that ran, from "0".

        metrics: The counters by CUPTI's own names.
    """

    name: str
    metrics: Mapping[str, CounterValue]


class Counted(Frozen, frozen=True, kw_only=True):
    """
    What was counted of a body.

    Attributes:
        ranges: In the order in which they ran, >= 1 of them.

        mode: How they were counted.

        tool: What counted, with its version: "cupti 13.4".

        passes_count: How often each kernel, or the body, ran.

        source: Always "cupti".

        notes: What the reader should know.

        void: Why it must not be judged; None: it may.
    """

    ranges: tuple[CountedRange, ...]
    mode: CounterMode
    tool: str
    passes_count: int
    source: str = Source.CUPTI
    notes: tuple[Note, ...] = ()
    void: Void | None = None

    def facts(self) -> dict[str, str]:
        """Return what two such results must share to be compared, by fact."""
        said = {
            "tool_version": self.tool,
            "replay_mode": self.mode.replay,
            "cache_control": self.mode.cache,
            "clock_control": self.mode.clock,
        }
        return {name: text for name, text in said.items() if text is not None}


class RangeProfiler:
    """
    Counts metrics of what a body does on the GPU of this thread.

    Clocks are left as they are. Nobody else may profile this GPU meanwhile.

    *Unverified on hardware.*

    Args:
        metrics: Full names, as `dram__bytes.sum`, >= 1 of them.

        synchronize: Waits until the device has done all that it was given.

        max_ranges: Room for so many kernels or ranges, >= 1; more are dropped, and then
            the result is void.

        cache: "all": the L2 is emptied before each pass, which libcupti can from 13.4
            on; "none": it is left as it is.

        library: The libcupti; None: the one of this process.

    Attributes:
        passes_count: How often each kernel, or the body, will run, >= 1.

    Raises:
        CollectError: This GPU or user cannot count; the error says why.

        ConfigError: The chip lacks some of the metrics.
    """

    def __init__(
        self,
        metrics: Sequence[str],
        *,
        synchronize: Callable[[], None],
        max_ranges: int = 256,
        cache: str = "none",
        library: Libcupti | None = None,
    ) -> None:
        _refuse_request(metrics, max_ranges, cache)
        self._library = library or load()
        self._synchronize = synchronize
        self._max_ranges = max_ranges
        self._context = self._library.context()
        device = self._context.device
        self._notes = self._library.require_support(device)
        chip = self._library.chip(device)
        self._host = HostHalf(self._library, chip, metrics)
        self.passes_count = self._host.passes_count
        self._units = self._host.units()
        self._cache = self._cache_mode(cache)

    def close(self) -> None:
        """Let go of what libcupti holds; it may be called again."""
        self._host.close()

    def count_kernels(
        self, body: Callable[[], object], *, launches_graphs: bool = False
    ) -> Counted:
        """
        Count each kernel that a body launches; the body runs once.

        Each kernel is run `passes_count` times, alone, on memory that is put back to what
        it was; so kernels no longer overlap.

        Args:
            body: What launches them, in this thread.

            launches_graphs: Whether it launches CUDA graphs, whose kernels are not told
                apart.

        Raises:
            MeasureError: Its kernels cannot be run again one by one.

            CollectError: It launched none, or libcupti refused.
        """
        refused = kernel_replay_refusal(os.environ, launches_graphs=launches_graphs)
        if refused is not None:
            raise refused
        with self._enabled() as session:
            session.configure(structs.AUTO_RANGE, structs.KERNEL_REPLAY)
            session.start()
            body()
            self._synchronize()
            missing = None if session.stop() else _missing(self.passes_count)
            return self._counted(session, "kernel", self.passes_count, missing)

    def count_ranges(self, body: Callable[[Ranged], object]) -> Counted:
        """
        Count named ranges of a body, which runs again until all is counted.

        Nothing is put back between two passes: the body has to do the same each time.
        Kernels overlap as they do otherwise.

        Args:
            body: Called with what begins and ends a range: `with ranged("forward"): ...`.

        Raises:
            MeasureError: It began other ranges in a later run, one inside of another, or
                one twice.

            CollectError: It began none, libcupti refused, or it asked for more passes
                than it had announced.
        """
        with self._enabled() as session:
            session.configure(structs.USER_RANGE, structs.USER_REPLAY)
            names: list[str] = []
            runs_count, is_done = 0, False
            while not is_done:
                if runs_count == 2 * self.passes_count:  # one level: a pass a run
                    raise _endless(self.passes_count, runs_count)
                session.start()
                body(session.ranged)
                self._synchronize()
                is_done = session.stop()
                runs_count += 1
                names = names if runs_count > 1 else session.names
                if session.names != names:
                    raise _other_ranges(names, session.names, runs_count)
            return self._counted(session, "user", runs_count)

    @contextlib.contextmanager
    def _enabled(self) -> Iterator[RangeSession]:
        """Yield a session; what goes wrong in it is not hidden by what its end says."""
        mode = structs.ALL_CACHES if self._cache == "all" else structs.NO_CACHES
        session = RangeSession(
            self._library, self._host, self._context, self._max_ranges, mode
        )
        try:
            session.make_room()
            yield session
        except BaseException:
            with contextlib.suppress(CollectError):
                session.disable()
            raise
        session.disable()

    def _counted(
        self,
        session: RangeSession,
        replay: str,
        passes_count: int,
        missing: Void | None = None,
    ) -> Counted:
        """Return what a session has counted."""
        dropped_count = session.decode()
        ranges = tuple(
            CountedRange(
                name=session.name(index),
                metrics=self._host.values(session.image, index, self._units),
            )
            for index in range(session.ranges_count())
        )
        if not ranges:
            raise _nothing(replay)
        clock, later = session.clock, self._library.clock_state(self._context)
        return Counted(
            ranges=ranges,
            mode=CounterMode(replay=replay, cache=self._cache, clock="none"),
            tool=self._library.name,
            passes_count=passes_count,
            notes=(*self._notes, *_clock_notes(clock), *_absence_notes(ranges)),
            void=missing
            or _dropped(dropped_count, self._max_ranges)
            or _moved(clock, later),
        )

    def _cache_mode(self, asked: str) -> str:
        """Return how caches are treated; a note says where it is not as asked."""
        able = self._library.version >= structs.GREW[f"{RANGE}Enable"]
        if asked == "none" or able:
            return asked
        text = (
            f"{self._library.name} cannot empty caches before a pass, 13.4 is the first"
            " that can: they are as the pass before left them"
        )
        self._notes = (*self._notes, Note(code="cache-control", text=text))
        return "none"


def kernel_replay_refusal(
    environment: Mapping[str, str], *, launches_graphs: bool
) -> MeasureError | None:
    """
    Return why kernels must not be run again one by one; None: they may.

    Args:
        environment: Variables of this process.

        launches_graphs: Whether CUDA graphs are launched.
    """
    size = environment.get("WORLD_SIZE", "")
    remedy = "count ranges of the body, which is repeated as a whole"
    if size.isdecimal() and int(size) > 1:
        message = (
            "kernel replay would hang in kernels that wait for those of other ranks"
            f" (WORLD_SIZE is {size})"
        )
        return MeasureError(message, remedy=f"{remedy}, or profile one process")
    if launches_graphs:
        message = "kernel replay does not tell the kernels of a CUDA graph apart"
        return MeasureError(message, remedy=f"{remedy}, or launch without graphs")
    return None


def _refuse_request(metrics: Sequence[str], max_ranges: int, cache: str) -> None:
    """Refuse what has no meaning, all of it at once."""
    mistakes = [
        mistake
        for wrong, mistake in (
            (not metrics, "no metric is asked for"),
            (max_ranges < 1, f"there is no room for {max_ranges} ranges"),
            (cache not in {"all", "none"}, f"cache={cache!r} is not a cache mode"),
        )
        if wrong
    ]
    if mistakes:
        remedy = 'give metrics, max_ranges >= 1 and cache="all" or "none"'
        raise MeasureError("; ".join(mistakes), remedy=remedy)


def _nothing(replay: str) -> GpuPerfError:
    """Return the error for a body in which nothing was counted."""
    if replay == "kernel":
        message = "nothing was counted: the body launched no kernel in this context"
        return CollectError(
            message, remedy="launch one in it, on the GPU that is in use"
        )
    message = "nothing was counted: the body began no range"
    return CollectError(message, remedy='put what is to be counted in ranged("name")')


def _endless(passes_count: int, runs_count: int) -> CollectError:
    """Return the error for passes that do not come to an end."""
    message = f"{runs_count} runs of the body were not enough for {passes_count} passes"
    return CollectError(message, remedy="count fewer metrics, or the kernels instead")


def _other_ranges(
    names: Sequence[str], later: Sequence[str], runs_count: int
) -> MeasureError:
    """Return the error for a body that does not do the same each time."""
    said, found = (", ".join(each) or "no range" for each in (names, later))
    message = f"run {runs_count} of the body began {found}, and the first one {said}"
    return MeasureError(
        message, remedy="begin the same ranges in every run of the body"
    )


def _missing(passes_count: int) -> Void:
    """Return why kernels that were not run in every pass are not enough."""
    return Void(
        code=VoidCode.PASSES_MISSING,
        reason=f"libcupti did not run each of {passes_count} passes",
        remedy="count fewer metrics",
    )


def _dropped(dropped_count: int, max_ranges: int) -> Void | None:
    """Return why a part of what ran is not enough; None: nothing is missing."""
    if not dropped_count:
        return None
    several = "ranges were" if dropped_count > 1 else "range was"
    return Void(
        code=VoidCode.DROPPED_RANGES,
        reason=f"{dropped_count} {several} dropped, there was room for {max_ranges}",
        remedy="give more room (max_ranges), or count a smaller body",
    )


def _moved(clock: str | None, later: str | None) -> Void | None:
    """Return why passes are no longer of one experiment; None: they are."""
    if clock == later:
        return None
    return Void(
        code=VoidCode.CLOCK_CONTROL_MOVED,
        reason=f"the clock was {clock or 'not known'} before counting and"
        f" {later or 'not known'} after it",
        remedy="leave it alone meanwhile",
    )


def _clock_notes(clock: str | None) -> tuple[Note, ...]:
    """Return a note on a clock that somebody holds."""
    if clock in _UNHELD_CLOCKS:
        return ()
    text = f"the clock is {clock}, and not by this plugin, which leaves it as it is"
    return (Note(code="clock-held", text=text),)


def _absence_notes(ranges: Sequence[CountedRange]) -> tuple[Note, ...]:
    """Return a note on metrics that no range has a number of."""
    absent = [
        name
        for name in ranges[0].metrics
        if all(each.metrics[name].value is None for each in ranges)
    ]
    if not absent:
        return ()
    text = (
        f"no value of {', '.join(absent)}: nothing was counted for it, or it is 0 / 0"
    )
    return (Note(code="absent-counters", text=text),)
