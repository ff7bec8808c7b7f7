"""What one process finds in files, in binaries and in numbers it is given.

Nothing here is timed. What only some tests read is imported by them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.collect import environment as surroundings
from pytest_gpuperf.collect.devices import same_device
from pytest_gpuperf.collect.runtime import NoDevice
from pytest_gpuperf.errors import (
    CaptureFormatError,
    CollectError,
    CollectorUnavailableError,
    MeasureError,
    RecordError,
)
from pytest_gpuperf.measure.assemble import Maker
from pytest_gpuperf.measure.site import Site
from pytest_gpuperf.model.record import Kind, Note, Record, RecordKey, Void

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.capture import CapturedLaunch
    from pytest_gpuperf.collect.runtime import DeviceRuntime
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.model.environment import Device, Environment
    from pytest_gpuperf.model.roofline import Peaks

__all__ = ["Reader", "judged"]

_DISABLED = Void(code="disabled", text="measuring is switched off (--gpuperf-disable)")
_Notes = tuple[Note, ...]
_Place = tuple[int, "CapturedLaunch"]  # with the number of its range
_STANDARD = ("registers", "waves", "occupancy.theoretical", "occupancy.achieved")


class Reader(Site):
    """Reads for one process of a run, and makes the records of all that it has."""

    _made: tuple[Environment, Maker] | None = None

    def device_in_use(self) -> Device | None:
        """Return the GPU that tests work with now, or else are to run on."""
        every = (*self.devices.devices, *self.devices.slices)
        if len(every) < 2:  # noqa: PLR2004 - there is no other
            return self.device()
        used = None
        with contextlib.suppress(CollectError):  # one that has failed says so itself
            used = self.runtime.device_uuid()
        found = (each for each in every if used and same_device(each.uuid, used))
        return next(found, self.device())

    def misplaced(self) -> Void | None:
        """Return that a test worked with another GPU than was asked for; None: no."""
        asked, used = self.device(), self.device_in_use()
        if self.config.device is None or asked is None or used is None:
            return None
        if same_device(asked.uuid, used.uuid):
            return None
        text = (
            f"it ran on GPU {used.index} ({used.uuid}), and --gpuperf-device="
            f"{self.config.device} asked for GPU {asked.index} ({asked.uuid}); put its"
            " tensors on gpuperf.device"
        )
        return Void(code="other-device", text=text)

    def peaks(self) -> Peaks:
        """Return the roofs of what this process computes with now."""
        return self._peaks_of(self.runtime)

    def host_peaks(self) -> Peaks:
        """Return the roofs of the CPU."""
        return self._peaks_of(NoDevice())

    def _peaks_of(self, runtime: DeviceRuntime) -> Peaks:
        """Return the roofs of what a runtime computes with now."""
        used = runtime.device_uuid()
        if used not in self._peaks:
            from pytest_gpuperf.measure.roofs import peaks_in_use

            declared = self.config.peaks
            self._peaks[used] = peaks_in_use(runtime, self.devices, declared)
        return self._peaks[used]

    @functools.cached_property
    def _peaks(self) -> dict[str | None, Peaks]:
        """The roofs that were looked up, by the device's UUID; None: the CPU's."""
        return {}

    def binary(
        self,
        key: RecordKey,
        source: object,
        *,
        plan: Plan,
        **facts: Any,  # noqa: ANN401 - passed on to read_cubins, which types each
    ) -> tuple[Record, Callable[[str], Record] | None]:
        """Return the record of a compiled binary, and what looks into its code."""
        self.need("binary")
        kept = self._kept(key, Kind.BINARY)
        if kept is not None:
            return kept, None
        from pytest_gpuperf.collect.binary.read import read_cubins, read_mixes
        from pytest_gpuperf.measure.compiled import code_of, is_in_code

        cubins = read_cubins(source, runner=self.runner, **facts)
        kernels = [kernel for cubin in cubins for kernel in cubin.kernels]
        mixes = functools.cache(lambda: read_mixes(cubins, runner=self.runner))
        wanted = [metric for metric in judged(plan) if is_in_code(metric)]
        maker = self._maker()

        def with_one_more(metric: str | None = None) -> Record:
            if metric is not None and is_in_code(metric) and metric not in wanted:
                wanted.append(metric)
            return maker.binary(key, kernels, code_of(wanted, mixes))

        return with_one_more(), with_one_more

    def capture(
        self, key: RecordKey, path: str, *, kernel: str | None, plan: Plan
    ) -> tuple[Record, Callable[[str], Record] | None, Callable[[], _Notes]]:
        """Return a report's record, what looks up another counter, and what advises."""
        self.need("ncu-report")
        kept = self._kept(key, Kind.CAPTURE)
        if kept is not None:
            return kept, None, tuple
        from pytest_gpuperf.measure.captured import with_suggestions

        wanted = list(dict.fromkeys((*_STANDARD, *plan.counters, *judged(plan))))
        maker = self._maker()

        def with_one_more(metric: str) -> Record:
            if metric not in wanted:
                wanted.append(metric)
            launches = [launch for _, launch in self._places(path, kernel, wanted)]
            found = maker.capture(key, launches, wanted, work=plan.work)
            return with_suggestions(found, path, runner=self.runner)

        def advise() -> _Notes:
            from pytest_gpuperf.measure.captured import advice, slowest

            found = slowest(self._places(path, kernel, wanted))
            return advice(path, *found, runner=self.runner)

        return with_one_more(wanted[0]), with_one_more, advise

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

    def _places(
        self, path: str, kernel: str | None, metrics: Sequence[str]
    ) -> list[_Place]:
        """Return launches with their ranges and some metrics: all would take 16 MiB."""
        from pytest_gpuperf.collect.ncu.capture import read_capture
        from pytest_gpuperf.measure.captured import report_counters

        counters = report_counters(metrics)
        capture = read_capture(path, runner=self.runner, metrics=counters)
        places = [
            (index, launch)
            for index, each in enumerate(capture.ranges)
            for launch in each.launches
        ]
        return _matching(path, places, kernel)

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
        machine, device = self.environment, self.device_in_use()
        made = self._made
        if made is not None and made[0] is machine and made[1].device is device:
            return made[1]  # nothing was imported since
        maker = Maker(
            facts=surroundings.known_facts(machine, device),
            soft_facts=surroundings.soft_facts(machine, device),
            device=device,
            role=self.identity.role,
            process_index=self.identity.process_index,
            peaks=self.peaks,
            host_peaks=self.host_peaks,
            grades=self.config.grades,
        )
        self._made = machine, maker
        return maker


def _several(value: float | Sequence[float]) -> Sequence[float]:
    """Return one number, or several, as a sequence."""
    return value if isinstance(value, Sequence) else (value,)


def _matching(path: str, places: Sequence[_Place], kernel: str | None) -> list[_Place]:
    """Return the launches of the kernels that were asked for, all of them measured."""
    chosen = [
        (number, launch)
        for number, launch in places
        if kernel is None
        or fnmatchcase(launch.kernel, kernel)
        or fnmatchcase(launch.demangled, kernel)
    ]
    if not chosen:
        names = ", ".join(list(dict.fromkeys(each.kernel for _, each in places))[:5])
        message = f"no launch of a kernel {kernel!r}"
        raise CaptureFormatError(message, remedy=f"there are: {names}", path=path)
    failed = [launch.index for _, launch in chosen if not launch.measured]
    if failed:
        message = f"{path}: profiling launch {failed[0]} failed"
        raise CollectorUnavailableError(
            message, remedy="profile again, or choose other launches with kernel="
        )
    return chosen


def judged(plan: Plan) -> tuple[str, ...]:
    """Return the metrics that a test is judged by, each once."""
    limited = (limit.metric for limit in plan.limits)
    return tuple(dict.fromkeys((*limited, *plan.max_regression)))
