"""The session of a measurement as a store keeps it, from the records of a run."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.model.environment import Session, differences, facts_of
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.kernel import KernelTotal
from pytest_gpuperf.model.record import (
    STORE_VERSION,
    Record,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.sample import Estimate

# A test with more kernels would make its lines long, so its kernels are not stored.
_MOST_KERNELS = 64
# Significant digits of what only reports show, and no verdict uses.
_SHOWN_DIGITS = 4


def stored_record(
    records: Sequence[Record], session: Session, version: int = STORE_VERSION
) -> StoredRecord:
    """
    Combine the records of the processes of a session into a stored record.

    Values of single kernels are dropped. Key, choice, facts and kernels come from the
    first record.

    Args:
        records: The record of each process, all with the same key and none void, >= 1
            record.

        session: Time and place of the measurement.

        version: The version of the format in which the records were first written.
    """
    first = records[0]
    series: dict[tuple[str, str, str], list[Estimate]] = {}
    for record in records:
        for estimate in record.estimates:
            if estimate.kernel is None:
                name = (estimate.metric, estimate.unit, estimate.source)
                series.setdefault(name, []).append(estimate)
    kernels: tuple[KernelTotal, ...] = ()
    # An incomplete list cannot show that a kernel is not new.
    if first.activity is not None and first.activity.kernels_count <= _MOST_KERNELS:
        kernels = tuple(
            replace(total, total_s=shown_digits(total.total_s))
            for total in first.activity.totals
        )
    return StoredRecord(
        key=first.key,
        session=session,
        values=tuple(SessionValue.of(each, records) for each in series.values()),
        choice=first.choice,
        facts=first.facts,
        soft_facts=first.soft_facts,
        bound_class=first.bound_class,
        parameters_digest=first.parameters_digest,
        test_digest=first.test_digest,
        code_digest=first.code_digest,
        kernels=kernels,
        schema_version=version,
    )


def shown_digits(number: float) -> float:
    """
    Round a number that only reports show, so that it takes less of a store.

    Example:
        >>> shown_digits(0.000123456)
        0.0001235
    """
    return float(f"{number:.{_SHOWN_DIGITS}g}")


def with_alone(
    session: StoredRecord, records: Sequence[Record], *, suspected: bool = False
) -> StoredRecord:
    """
    Add the values of fresh processes that ran the test alone to a session.

    A value counts if it has the same source, unit, choice of kernels and hard facts as
    the value of the session.

    Args:
        session: The values measured by the suite.

        records: The record of each fresh process, of the same key, in any order.

        suspected: Whether the test ran alone because it was a suspect.
    """
    alike = [
        record
        for record in sorted(records, key=lambda record: record.process_index)
        if record.void is None and record.choice == session.choice
    ]
    values = []
    for value in session.values:
        metric, source = value.metric, value.source
        facts = facts_of(session.facts, metric, source)
        estimates = [
            estimate
            for record in alike
            for estimate in record.estimates
            if (estimate.metric, estimate.unit, estimate.source, estimate.kernel)
            == (metric, value.unit, source, None)
            and not differences(facts_of(record.facts, metric, source), facts)
        ]
        if estimates:
            alone = SessionValue.of(estimates)
            value = replace(  # noqa: PLW2901 - the same value, completed
                value,
                alone_values=alone.run_values,
                alone_cores=alone.cores,
                suspected=suspected,
            )
        values.append(value)
    return replace(session, values=tuple(values))
