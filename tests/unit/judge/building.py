"""Records, cases and sessions for the tests of judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_gpuperf.compute.spread import Spread
from pytest_gpuperf.judge.against import Block, SideRun
from pytest_gpuperf.judge.case import Case, StoredValue
from pytest_gpuperf.judge.confirmation import Confirmation
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import (
    REFERENCES,
    Kind,
    Record,
    RecordKey,
    SessionValue,
    Void,
    VoidCode,
)
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.model.verdict import Verdict

KEY = RecordKey(test_id="test_a.py::test_a")
HOT = Void(code=VoidCode.HARDWARE_THERMAL, reason="it was hot")


def estimate(value: float, metric: str = "time", **fields: Any) -> Estimate:
    """An estimate of a device time, unless more is said."""
    given = {
        "unit": METRICS[metric].unit if metric in METRICS else "",
        "source": "cupti",
    }
    return Estimate(metric=metric, value=value, **(given | fields))


def record(*estimates: Estimate, **fields: Any) -> Record:
    """A record of some estimates."""
    given: dict[str, Any] = {"key": KEY, "kind": Kind.MEASURE}
    return Record(estimates=estimates, **(given | fields))


def session(number: int) -> Session:
    """A stored session."""
    return Session(
        id=f"s{number}", started_unix_s=float(number), host="h", commit=f"c{number}"
    )


def stored(
    values: Sequence[float | Sequence[float]], *, choice: str | None = "A"
) -> tuple[StoredValue, ...]:
    """Stored sessions, oldest first; a number is a session of one process."""
    return tuple(
        StoredValue(
            value=processes(runs(value)),
            session=session(number),
            choice=choice,
        )
        for number, value in enumerate(values)
    )


def processes(values: Sequence[float], **fields: Any) -> SessionValue:
    """The values of the processes of a session."""
    given = {"metric": "time", "unit": "s", "source": "cupti"} | fields
    return SessionValue(run_values=tuple(values), **given)


def runs(value: float | Sequence[float]) -> tuple[float, ...]:
    """The values of the processes of a session."""
    return (value,) if isinstance(value, (int, float)) else tuple(value)


def case(
    now: float | Sequence[float] | None,
    then: Sequence[float | Sequence[float]],
    metric: str = "time",
    **fields: Any,
) -> Case:
    """A case with the plugin's own limit of 5 %."""
    value = None
    if now is not None:
        value = processes(runs(now))
    given: dict[str, Any] = {
        "key": KEY,
        "metric": METRICS[metric],
        "limit": 0.05,
        "default_limit": "limit" not in fields,
        "estimate": None if value is None else estimate(value.run_values[0], metric),
        "current": value,
        "choice": "A",
        "stored": stored(then),
    }
    return Case(**(given | fields))


def of_sessions(fraction: float, dof: int) -> Spread:
    """A spread that five sessions have shown, with so much freedom."""
    parts = ((1.0, fraction * fraction, dof),)
    return Spread(fraction=fraction, parts=parts, session_count=5)


def gap_of(verdict: Verdict) -> tuple[str, str]:
    """Why a verdict has no value that counts, and what to do."""
    assert verdict.evidence is not None
    gap = verdict.evidence.gap
    assert gap is not None
    return gap.reason, gap.remedy


def confirmation(
    *values: float,
    choices: Sequence[str | None] | None = None,
    widths: tuple[float, ...] = (),
    **fields: Any,
) -> Confirmation:
    """Confirming processes; `choices` has one for each."""
    made = tuple(choices) if choices is not None else ("A",) * len(values)
    value = processes(values, half_widths=widths) if values else None
    return Confirmation(value=value, choices=made, **fields)


Four = Sequence[
    "float | None"
]  # two processes of the revision, two of the working tree
PLACES = ((Side.OLD, 0), (Side.OLD, 1), (Side.NEW, 0), (Side.NEW, 1))


def blocks_of(
    tests: Mapping[str, Sequence[Four]],
    *,
    references: Mapping[str, Sequence[Four]] | None = None,
    choices: Mapping[str, Sequence[Sequence[str | None]]] | None = None,
    failures: Mapping[Side, Mapping[str, str]] | None = None,
    metric: str = "time",
    **fields: Any,
) -> list[Block]:
    """
    Blocks of some tests, by id: in each the values of four processes.

    A value of None is a process in which the test gave none.
    """
    count = max(map(len, tests.values()))
    return [
        Block(
            index=number,
            runs=tuple(
                SideRun(
                    side=side,
                    index=index,
                    records=tuple(
                        record(
                            estimate(value, metric, source="host"),
                            key=RecordKey(test_id=test_id),
                            choice=(choices or {}).get(test_id, CALM)[number][place],
                            **fields,
                        )
                        for test_id, several in tests.items()
                        if number < len(several)
                        and (value := several[number][place]) is not None
                    ),
                    references=tuple(
                        record(
                            estimate(value, source="host"),
                            key=RecordKey(test_id=REFERENCES, name=name),
                        )
                        for name, several in (references or {}).items()
                        if (value := several[number][place]) is not None
                    ),
                    failures=(failures or {}).get(side, {}),
                )
                for place, (side, index) in enumerate(PLACES)
            ),
        )
        for number in range(count)
    ]


CALM = ((None,) * 4,) * 512  # nobody saw which kernels ran
