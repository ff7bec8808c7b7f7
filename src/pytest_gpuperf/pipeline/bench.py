"""The measuring equipment of one process; PYTEST_DONT_REWRITE.

It hands the stop rule and the time to the collectors, and makes records of what they give.
What only some measurements need is imported by them: a run of plain calls starts sooner.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.collect import environment as surroundings
from pytest_gpuperf.collect.base import TimedCall, Timing
from pytest_gpuperf.collect.host import HostCollector, RangeTimer
from pytest_gpuperf.collect.runtime import find_runtime
from pytest_gpuperf.compute import stats
from pytest_gpuperf.errors import (
    CaptureFormatError,
    CollectorUnavailableError,
    MeasureError,
    RecordError,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Record, RecordKey, Void
from pytest_gpuperf.pipeline.assemble import Maker
from pytest_gpuperf.pipeline.seat import Site

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.capture import CapturedLaunch
    from pytest_gpuperf.collect.runtime import DeviceRuntime
    from pytest_gpuperf.collect.step_profile import StepRecorder
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.model.environment import Environment
    from pytest_gpuperf.model.roofline import Peaks
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.work import Work

__all__ = ["Bench"]

_HOST_PRECISION = 0.01  # docs/judging.md section 5: half-width of the median's interval
_BUDGET_S = 1.0  # docs/judging.md section 5: for one metric
_DISABLED = Void(code="disabled", text="measuring is switched off (--gpuperf-disable)")
_Ended = tuple[Record, "Hardware | None"]  # of a loop, with what it ran on
_STANDARD = ("registers", "waves", "occupancy.theoretical", "occupancy.achieved")


class _MedianKnown:
    """Enough is when the interval of the median is narrow."""

    def enough(self, values: Sequence[float]) -> bool:
        """Return whether more samples would add nothing."""
        half_width = stats.half_width_fraction(values)
        return half_width is not None and half_width <= _HOST_PRECISION


class Bench(Site):
    """Measures for one process of a run, with what that process has."""

    @functools.cached_property
    def _runtime(self) -> DeviceRuntime:
        """The device that tests may come to use."""
        return find_runtime()

    @functools.cached_property
    def _host(self) -> HostCollector:
        """The collector of host times."""
        return HostCollector(self.clock, self._runtime)

    def peaks(self) -> Peaks:
        """Return the roofs of what this process computes with now."""
        used = self._runtime.device_uuid()
        if used not in self._peaks:
            from pytest_gpuperf.pipeline.roofs import peaks_in_use

            declared = self.config.peaks
            self._peaks[used] = peaks_in_use(self._runtime, self.devices, declared)
        return self._peaks[used]

    @functools.cached_property
    def _peaks(self) -> dict[str | None, Peaks]:
        """The roofs that were looked up, by the device's UUID; None: the CPU's."""
        return {}

    _stop = _MedianKnown()
    _made: tuple[Environment, Maker] | None = None

    def timed(
        self,
        key: RecordKey,
        fn: Callable[..., Any],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        *,
        plan: Plan,
        work: Work | None = None,
        setup: Callable[[], object] | None = None,
        inputs: Sequence[object] | None = None,
        check: Callable[[Any], object] | None = None,
        cache: str | None = None,
    ) -> tuple[Record, Callable[[], object]]:
        """Return the record of a function, and how to get what it returned."""
        self.need("host")
        request = TimedCall(
            fn=fn,
            args=args,
            kwargs=kwargs,
            setup=setup,
            inputs=inputs,
            check=check,
            cache=cache or plan.cache or "cold",
            iterations=plan.iterations,
            budget_s=_BUDGET_S,
        )
        kept = self._kept(key, Kind.MEASURE)
        if kept is not None:
            return kept, functools.cache(lambda: fn(*args, **kwargs))
        timing = self._host.measure(request, stop=self._stop)
        record = self._maker().timed(
            key, timing, kind=Kind.MEASURE, work=work or plan.work
        )
        return record, lambda: timing.result

    @contextlib.contextmanager
    def ranged(self, key: RecordKey, *, plan: Plan) -> Iterator[Callable[[], Record]]:
        """Measure a block; what is yielded returns its record once it has ended."""
        self.need("host")
        kept = self._kept(key, Kind.RANGE)
        if kept is not None:
            yield lambda: kept
            return
        with self._host.measure_range() as timer:
            yield lambda: self._maker().timed(
                key, _timing_of(timer), kind=Kind.RANGE, work=plan.work
            )

    def stepped(
        self,
        key: RecordKey,
        *,
        plan: Plan,
        work: Work | None = None,
        hardware: Hardware | None = None,
        **how: Any,  # noqa: ANN401 - passed on to StepRecorder, which types each
    ) -> tuple[StepRecorder, Callable[[BaseException | None], _Ended]]:
        """Return the recorder of a loop that begins now, and what ends it."""
        from pytest_gpuperf.collect.step_profile import StepRecorder
        from pytest_gpuperf.pipeline.loop_roofs import hardware_of
        from pytest_gpuperf.pipeline.loops import loop_values

        self.need("host")
        kept = self._kept(key, Kind.STEPS)
        recorder = StepRecorder(self.clock, self._runtime, **how)
        declared = work or plan.work

        def ended(failure: BaseException | None) -> _Ended:
            loop = recorder.end(failure)
            # a device that has just failed is not asked: what it says would hide why
            unasked = declared is None or failure is not None
            peaks = None if unasked else self.peaks()
            known = hardware_of(declared, loop.units, peaks, hardware)
            if kept is not None:
                return kept, known
            values = loop_values(loop, work=declared, peaks=peaks, hardware=hardware)
            return self._maker().steps(key, values, work=declared), known

        recorder.begin()
        return recorder, ended

    def compared(
        self,
        key: RecordKey,
        functions: tuple[Callable[..., Any], Callable[..., Any]],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        *,
        plan: Plan,
    ) -> tuple[Record, Record, Record]:
        """Return the records of a comparison and of its two sides."""
        self.need("host")
        sides = [replace(key, name=f"{key.name}.{side}".lstrip(".")) for side in "ab"]
        kept = self._kept(key, Kind.COMPARE)
        if kept is not None:
            a, b = (self._kept(side, Kind.MEASURE) or kept for side in sides)
            return kept, a, b
        first, second = (
            TimedCall(
                fn=fn,
                args=args,
                kwargs=kwargs,
                cache=plan.cache or "cold",
                iterations=plan.iterations,
                budget_s=_BUDGET_S,
            )
            for fn in functions
        )
        timings = self._host.interleave(first, second, stop=self._stop)
        maker = self._maker()
        records = [
            maker.timed(side, timing, kind=Kind.MEASURE, work=plan.work)
            for side, timing in zip(sides, timings, strict=True)
        ]
        return maker.compared(key, *timings), records[0], records[1]

    def binary(
        self,
        key: RecordKey,
        source: object,
        **facts: Any,  # noqa: ANN401 - passed on to read_binary, which types each
    ) -> Record:
        """Return the record of a compiled binary."""
        self.need("binary")
        kept = self._kept(key, Kind.BINARY)
        if kept is not None:
            return kept
        from pytest_gpuperf.collect.binary.read import read_binary

        kernels = read_binary(source, runner=self.runner, **facts)
        return self._maker().binary(key, kernels)

    def capture(
        self, key: RecordKey, path: str, *, kernel: str | None, plan: Plan
    ) -> tuple[Record, Callable[[str], Record] | None]:
        """Return the record of a report, and what looks up another counter in it."""
        self.need("ncu-report")
        kept = self._kept(key, Kind.CAPTURE)
        if kept is not None:
            return kept, None
        judged = (*(limit.metric for limit in plan.limits), *plan.max_regression)
        wanted = list(dict.fromkeys((*_STANDARD, *plan.counters, *judged)))
        maker = self._maker()

        def with_one_more(metric: str) -> Record:
            if metric not in wanted:
                wanted.append(metric)
            launches = self._launches(path, kernel, wanted)
            return maker.capture(key, launches, wanted, work=plan.work)

        return with_one_more(wanted[0]), with_one_more

    def number(
        self,
        key: RecordKey,
        value: float | Sequence[float],
        *,
        unit: str,
        better: str,
        taken: bool,
    ) -> Record:
        """Return the record of a number of the user's own."""
        if better not in {"lower", "higher", "neither"}:
            message = f"better={better!r} is no direction"
            raise MeasureError(message, remedy="write lower, higher or neither")
        if taken or not key.name:
            message = f"{key.name!r} cannot be the name of a number of your own"
            raise MeasureError(message, remedy="choose a name that is not taken")
        kept = self._kept(key, Kind.RECORD)
        if kept is not None and kept.void is None:
            return kept
        values = [float(v) for v in _several(value)]
        if not values:
            raise RecordError("there are no samples", path=key.name, remedy="give one")
        return self._maker().number(key, values, unit=unit, better=better)

    def _launches(
        self, path: str, kernel: str | None, metrics: Sequence[str]
    ) -> list[CapturedLaunch]:
        """Return launches of a report with some metrics: all of them take 16 MiB."""
        from pytest_gpuperf.collect.ncu.capture import read_capture
        from pytest_gpuperf.pipeline.captured import report_counters

        counters = report_counters(metrics)
        capture = read_capture(path, runner=self.runner, metrics=counters)
        launches = [launch for each in capture.ranges for launch in each.launches]
        return _matching(path, launches, kernel)

    def _kept(self, key: RecordKey, kind: Kind) -> Record | None:
        """Return the record that stands for a measurement; None: measure."""
        if self.config.disable:
            return Record(key=key, kind=kind, estimates=(), void=_DISABLED)
        if self.recording is None:
            return None
        kept = self.recording.main(key)
        if kept is not None:
            return kept
        absent = Void(code="not-recorded", text="the recording has no such measurement")
        return Record(key=key, kind=kind, estimates=(), void=absent)

    def _maker(self) -> Maker:
        """Return what makes records of this process now."""
        machine, device = self.environment, self.device()
        if self._made is not None and self._made[0] is machine:
            return self._made[1]  # nothing was imported since
        maker = Maker(
            facts=surroundings.known_facts(machine, device),
            soft_facts=surroundings.soft_facts(machine, device),
            device=device,
            role=self.seat.role,
            process_index=self.seat.process_index,
            peaks=self.peaks,
            grades=self.config.grades,
        )
        self._made = machine, maker
        return maker


def _several(value: float | Sequence[float]) -> Sequence[float]:
    """Return one number, or several, as a sequence."""
    return value if isinstance(value, Sequence) else (value,)


def _timing_of(timer: RangeTimer) -> Timing:
    """Return what a block gave."""
    if timer.timing is None:
        raise MeasureError(
            "the block has not ended", remedy="read its values after the with block"
        )
    return timer.timing


def _matching(
    path: str, launches: Sequence[CapturedLaunch], kernel: str | None
) -> list[CapturedLaunch]:
    """Return the launches of the kernels that were asked for, all of them measured."""
    chosen = [
        launch
        for launch in launches
        if kernel is None
        or fnmatchcase(launch.kernel, kernel)
        or fnmatchcase(launch.demangled, kernel)
    ]
    if not chosen:
        names = ", ".join(list(dict.fromkeys(each.kernel for each in launches))[:5])
        message = f"no launch of a kernel {kernel!r}"
        raise CaptureFormatError(message, remedy=f"there are: {names}", path=path)
    failed = [launch.index for launch in chosen if not launch.measured]
    if failed:
        message = f"{path}: profiling launch {failed[0]} failed"
        raise CollectorUnavailableError(
            message, remedy="profile again, or choose other launches with kernel="
        )
    return chosen
