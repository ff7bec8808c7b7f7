"""Counters that this process counts itself, where no ncu may start the tests.

A call is counted when it has been timed, in one more call that nothing else looks at.

*Unverified on hardware.*
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.binary.demangle import base_name, native_demangler
from pytest_gpuperf.collect.cupti.call_counter import Call, CallCounter, CountedCall
from pytest_gpuperf.collect.ncu.capture import CapturedLaunch, CapturedValue
from pytest_gpuperf.collect.ncu.catalogue import made_by_ncu
from pytest_gpuperf.collect.translate.counters import CAPABILITY
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.measure.counters import (
    HERE,
    Refusal,
    made_of,
    wanted_metrics,
    with_counters,
    without_counters,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import Note
from pytest_gpuperf.model.sample import Unmeasured

if TYPE_CHECKING:
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.measure.observers import MeasuredCall, Observers
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.model.record import Record
    from pytest_gpuperf.model.work import Work

__all__ = ["CountsHere"]

_WEIGHT = "gpu__time_duration.sum"  # weighs a rate of one kernel against another's

_BLOCK = Gap(
    code=GapCode.OTHER_WAY,
    reason="a block runs once, and counting in this process takes a call of its own",
    remedy="measure a function with gpuperf.measure",
)
_INSIDE = Gap(
    code=GapCode.OTHER_WAY,
    reason="it lies in what is being timed, whose time would be that of counting",
    remedy="measure it outside of the block or loop",
)
_UNUSED = Gap(
    code=GapCode.NO_KERNEL,
    reason="no kernel was launched in the measurement",
    remedy="see that the call works on the GPU",
)
_NOTHING = Gap(
    code=GapCode.UNSUPPORTED,
    reason="this chip has no counter of it",
    remedy="count it on another chip",
)


class CountsHere:
    """
    Counts in this process what tests ask for.

    Args:
        site: This process.

        observers: Who looks at it besides.

        instead_of: Why ncu does not count.
    """

    def __init__(
        self,
        site: Site,
        observers: Observers,
        *,
        instead_of: Refusal,
    ) -> None:
        self._site = site
        self._counter = CallCounter(site.runtime)
        self._observers = observers
        self._ncu = instead_of

    def joined(
        self,
        record: Record,
        plan: Plan,
        call: MeasuredCall | None = None,
        *,
        work: Work | None,
        facts: Mapping[str, str],
    ) -> Record:
        """
        Return a record with the counters of one more call, or why it has none.

        Args:
            record: What was measured of it.

            plan: What its test asks for.

            call: The call that was measured; None: it was a block.

            work: What one call has to do.

            facts: Hard facts of this process.

        Raises:
            Exception: What the call itself raises passes through.
        """
        metrics = wanted_metrics(plan, self._site.config.collectors)
        if not metrics:
            return record
        foreign = {each.metric: each for each in self._of_ncu_alone(metrics)}
        record = replace(record, unmeasured=(*record.unmeasured, *foreign.values()))
        metrics = tuple(name for name in metrics if name not in foreign)
        if not metrics:
            return record
        counters = made_of(metrics, self._capability, lacks=made_by_ncu)
        found: CountedCall | Gap = _BLOCK if counters else _NOTHING
        if counters and call is not None:
            found = self._counted(call, counters)
        if isinstance(found, Gap):
            return without_counters(record, metrics, self._beside_ncu(found))
        counted = found.counted
        text = f"counters are of {counted.tool} in this process: {self._ncu.reason}"
        self._site.remark(HERE, f"{HERE}: {text}")
        record = with_counters(
            record,
            self._launches(found),
            metrics,
            work=work,
            facts={**facts, **counted.facts()},
            source=HERE,
            by_kernel=bool(found.names),
        )
        note = Note(code="counted-in-process", text=text)
        return replace(record, notes=(*record.notes, note, *counted.notes))

    @property
    def _capability(self) -> tuple[int, int] | None:
        """The compute capability of the GPU that tests run on."""
        device = self._site.device()
        return None if device is None else device.compute_capability

    def _of_ncu_alone(self, metrics: Sequence[str]) -> Iterator[Unmeasured]:
        """Yield why metrics that ncu makes itself are not there, each by its name."""
        for metric in metrics:
            usual = made_of((metric,), self._capability)
            if usual and not made_of((metric,), self._capability, lacks=made_by_ncu):
                named = ", ".join(name for name in usual if made_by_ncu(name))
                reason = f"it needs ncu, which alone makes {named}: {self._ncu.reason}"
                yield Unmeasured(metric=metric, reason=reason, remedy=self._ncu.remedy)

    def _beside_ncu(self, absence: Gap) -> Refusal:
        """Return why neither this process nor ncu counts."""
        remedies = dict.fromkeys((absence.remedy, self._ncu.remedy))
        return Refusal(
            reason=f"{absence.reason}, and ncu does not count it: {self._ncu.reason}",
            remedy=", or ".join(remedies),
        )

    def _counted(
        self, measured: MeasuredCall, counters: Sequence[str]
    ) -> CountedCall | Gap:
        """Return what is counted of a call, or why nothing is."""
        request, timing, observations = measured
        if self._observers.open_count:
            return _INSIDE
        if not observations.device_used:
            return _UNUSED
        call = Call(
            request=request, time_s=median(timing.samples), trace=observations.trace
        )
        with self._alone():
            return self._counter.count(call, tuple(dict.fromkeys((*counters, _WEIGHT))))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """
        Let nothing be recorded meanwhile.

        Nobody promises that libcupti counts while it records, and every replayed kernel
        would be a record.
        """
        recording = self._observers.activity
        if recording is None or not recording.is_open:
            yield
            return
        recording.close()
        try:
            yield
        finally:
            try:
                recording.open()
            except CollectorUnavailableError as error:  # somebody was quicker
                absence = Gap.of(error)
                self._site.lost[HERE] = absence
                # which the run would not say of what has given values before
                text = f"{HERE}: {absence.reason}; {absence.remedy}"
                self._site.remark(HERE, text)

    def _launches(self, found: CountedCall) -> tuple[CapturedLaunch, ...]:
        """Return what was counted in the form in which ncu's reports are read."""
        demangler = native_demangler()
        names = found.names or tuple(each.name for each in found.counted.ranges)
        readable = {name: demangler(name) or name for name in names}
        chip = dict(zip(CAPABILITY, self._capability or (), strict=False))
        known = {name: CapturedValue(value=n, unit="") for name, n in chip.items()}
        return tuple(
            CapturedLaunch(
                index=index,
                kernel=base_name(readable[name]),
                demangled=readable[name],
                nvtx={},
                measured=True,
                metrics=known
                | {
                    counter: CapturedValue(value=each.value, unit=each.unit)
                    for counter, each in counted.metrics.items()
                },
            )
            for index, (name, counted) in enumerate(
                zip(names, found.counted.ranges, strict=True)
            )
        )
