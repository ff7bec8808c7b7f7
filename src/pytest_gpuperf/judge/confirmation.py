"""Confirmations: the values of fresh processes for a case of the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pytest_gpuperf.judge.case import (
    NO_FACTS,
    NO_NOTES,
    Case,
    Facts,
    of_source,
    values_in,
    waits_in,
)
from pytest_gpuperf.model.environment import (
    CONDITIONS,
    MACHINE_FACTS,
    Host,
    differences,
    facts_of,
)
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Record, SessionValue, Void, VoidCode
from pytest_gpuperf.model.sample import Unmeasured


class Confirmation(Frozen, frozen=True, kw_only=True):
    """
    The results of fresh processes for one case.

    Attributes:
        value: Values of the processes that gave a value and are not void, or None.

        choices: The choice of kernels of each of these processes, or empty if none is
            known.

        lost: The last lines of a process in which the test should have given a value and
            did not. None if there is no such process.

        voids: The reasons why processes with a value are left out.

        differences: Facts of these processes that differ from the suite, as name to (suite,
            process).

        lacking: Gaps of the processes, if none gave a value.

        control: Whether the case was measured as a control and not as a suspect.

        notes: Texts of the processes' notes that matter for a verdict, by code.
    """

    value: SessionValue | None = None
    choices: tuple[str | None, ...] = ()
    lost: tuple[str, ...] | None = None
    voids: tuple[Void, ...] = ()
    differences: Facts = NO_FACTS
    lacking: tuple[Unmeasured, ...] = ()
    control: bool = False
    notes: Mapping[str, str] = NO_NOTES

    @property
    def run_values(self) -> tuple[float, ...]:
        """The values of all processes that gave a value."""
        return () if self.value is None else self.value.run_values

    @property
    def made_choices(self) -> tuple[str | None, ...]:
        """The choice of kernels of every process with a value, None if unknown."""
        return self.choices or (None,) * len(self.run_values)


class Retest(Frozen, frozen=True, kw_only=True):
    """
    The results of fresh processes for one test.

    Attributes:
        records: The records of all processes.

        failure: The last lines of a process in which the test failed, or "".

        unmeasured: The gaps of values that the test requested in a process and could not
            get there.
    """

    records: tuple[Record, ...] = ()
    failure: str = ""
    unmeasured: tuple[Unmeasured, ...] = ()

    def lacking(self, metric: str, records: Iterable[Record]) -> tuple[Unmeasured, ...]:
        """Return the gaps of a metric in some records, followed by the gaps of the test."""
        gaps = (u for r in records for u in r.unmeasured if u.metric == metric)
        return tuple(dict.fromkeys((*gaps, *self.unmeasured)))


def confirmation_of(
    case: Case, retest: Retest, *, control: bool = False
) -> Confirmation:
    """
    Return the results of fresh processes for a case.

    Args:
        case: The case that was measured again.

        retest: The results of the fresh processes for the test of the case.

        control: Whether the case is a control.
    """
    records = [record for record in retest.records if record.key == case.key]
    voids = [record.void for record in records if record.void is not None]
    usable = [record for record in records if record.void is None]
    differing = NO_FACTS
    if case.estimate is not None:
        metric, source = case.metric.name, case.estimate.source
        apart = [
            _unlike(record, metric, source, case.facts, case.gpu_uuid, case.across)
            for record in usable
        ]
        differing = next(filter(None, apart), NO_FACTS)
        usable = [r for r, facts in zip(usable, apart, strict=True) if not facts]
    if differing:
        code = VoidCode.OTHER_FACTS
        if not differing.keys().isdisjoint(CONDITIONS):
            code = VoidCode.OTHER_TRACER
        elif not MACHINE_FACTS.isdisjoint(differing):
            code = VoidCode.OTHER_MACHINE
        elif "gpu_uuid" in differing:
            code = VoidCode.OTHER_DEVICE
        voids.append(Void(code=code, reason=""))
    chosen = of_source(values_in(case.metric.name, usable), case.estimate)
    lacking = () if chosen else retest.lacking(case.metric.name, usable)
    silent = not (chosen or voids or lacking)
    lost = tuple(retest.failure.splitlines())
    return Confirmation(
        value=SessionValue.of([e for e, _ in chosen], usable) if chosen else None,
        choices=tuple(choice for _, choice in chosen),
        lost=lost if lost or silent else None,
        voids=tuple(dict.fromkeys(voids)),
        differences=differing,
        lacking=lacking,
        control=control,
        notes=waits_in(usable),
    )


def confirmation_elsewhere(case: Case, here: Host | None) -> Confirmation:
    """
    Return the empty confirmation of a case measured on a host without fresh processes.

    Args:
        case: The case, measured by an xdist worker on another host.

        here: The host of the fresh processes, or None if unknown.
    """
    now, then = ({} if host is None else host.facts for host in (here, case.host))
    return Confirmation(
        voids=(Void(code=VoidCode.OTHER_MACHINE, reason=""),),
        differences=differences(now, then),
    )


def is_measured_alike(
    metric: str,
    fresh: Record,
    suite: Record,
    *,
    source: str,
    across: Collection[str] = (),
) -> bool:
    """
    Return True if a fresh process measured a metric under the facts of the suite.

    Args:
        metric: The metric's name.

        fresh: The record of the fresh process.

        suite: The record of the suite.

        source: The collector that gave both values.

        across: Names of facts that may differ.
    """
    facts = facts_of(suite.facts, metric, source)
    uuid = "" if suite.device is None else suite.device.uuid
    return suite.host == fresh.host and not _unlike(
        fresh, metric, source, facts, uuid, across
    )


def _unlike(
    fresh: Record,
    metric: str,
    source: str,
    facts: Mapping[str, str],
    gpu_uuid: str,
    across: Collection[str],
) -> Facts:
    # A record without such a value has no facts of that family.
    if not any(e.metric == metric and e.source == source for e in fresh.estimates):
        return NO_FACTS
    now = facts_of(fresh.facts, metric, source)
    apart = differences(now, facts, across=across)
    uuid = "" if fresh.device is None else fresh.device.uuid
    if "gpu_name" in facts and gpu_uuid and uuid and uuid != gpu_uuid:
        apart["gpu_uuid"] = (gpu_uuid, uuid)
    return apart or NO_FACTS
