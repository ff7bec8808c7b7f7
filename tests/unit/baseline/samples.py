"""Sessions to store, made short."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.kernel import KernelLaunch, KernelTotal
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import (
    STORE_VERSION,
    AcceptedLevel,
    BoundClass,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.sample import CoreSpeed

TEST = "tests/test_gemm.py::test_gemm[4096]"


def key(test_id: str = TEST, name: str = "") -> RecordKey:
    """Return the key of a measurement."""
    return RecordKey(test_id=test_id, name=name)


def session(number: int, **changed: Any) -> Session:
    """Return the session of a number; a higher one is younger."""
    given: dict[str, Any] = {
        "id": f"s{number:04}",
        "started_unix_s": 1.7e9 + number,
        "host": "0a1b2c",
        "commit": f"{number:07x}",
        "dirty": False,
    }
    return Session(**(given | changed))


def value(metric: str = "time", *runs: float, **changed: Any) -> SessionValue:
    """Return the value of a metric."""
    given: dict[str, Any] = {
        "unit": "s",
        "source": "host",
        "run_values": runs or (1.5,),
        "half_widths": (0.004,),
    }
    return SessionValue(metric=metric, **(given | changed))


def stored(
    number: int = 1,
    *metrics: str,
    test_id: str = TEST,
    soft_facts: Mapping[str, str] | None = None,
    **changed: Any,
) -> StoredRecord:
    """Return what the session of a number stores of a test."""
    given: dict[str, Any] = {
        "key": key(test_id),
        "session": session(number),
        "values": tuple(value(metric, number / 7) for metric in metrics or ("time",)),
        "choice": "c0ffee",
        "facts": {"device-time": {"gpu_name": "NVIDIA H200", "parameters": "4096"}},
        "soft_facts": {"torch": "2.11.0"} if soft_facts is None else soft_facts,
    }
    return StoredRecord(**(given | changed))


_finite = st.floats(allow_nan=False, allow_infinity=False)
_words = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)
_names = st.text(max_size=12)

_cores = st.builds(
    CoreSpeed,
    loop_s=st.floats(min_value=1e-9, max_value=1.0),
    slope=_finite,
    precision=_finite.map(abs),
)


_accepted = st.builds(
    AcceptedLevel,
    value=_finite,
    session_count=st.integers(min_value=1, max_value=9),
    started_unix_s=_finite,
)


# Hypothesis knows the constants of the source: a time is never negative.
_metrics = _names.filter(lambda name: name.partition(".")[0] not in METRICS)


@st.composite
def _values(draw: st.DrawFn) -> SessionValue:
    """Draw the values of a metric; each process has a core, or none has."""
    runs = draw(st.lists(_finite, min_size=1, max_size=3))
    alone = draw(st.lists(_finite, max_size=2))
    known = draw(st.booleans())
    return SessionValue(
        metric=draw(_metrics),
        unit=draw(_names),
        source=draw(_names),
        run_values=tuple(runs),
        half_widths=tuple(draw(st.lists(_finite.map(abs), max_size=3))),
        better=draw(st.none() | st.sampled_from(["lower", "higher", "neither"])),
        quantiles=tuple(draw(st.lists(_finite, max_size=5))),
        cores=tuple(draw(_cores) for _ in runs) if known else (),
        series=draw(st.sampled_from([0, 0, 1])),
        alone_values=tuple(alone),
        alone_cores=tuple(draw(_cores) for _ in alone) if known else (),
        suspected=draw(st.booleans()),
        accepted=draw(st.none() | _accepted),
        interrupted=draw(st.booleans()),
    )


sessions = st.builds(
    Session,
    id=_names,
    started_unix_s=_finite,
    host=_names,
    commit=st.none() | _names,
    dirty=st.none() | st.booleans(),
    parent=st.none() | _names,
    branch=st.none() | _names,
    machine=st.none() | _names,
    boot=st.none() | _names,
    run=st.none() | _names,
    shard=st.none() | _names,
    collected=st.none() | _names,
    collected_count=st.none() | st.integers(0, 10**6),
    ran_count=st.none() | st.integers(0, 10**6),
)

test_ids = st.one_of(
    st.text(max_size=30),
    st.text("/.\\:\n [é]aA_-~", max_size=40),
    st.sampled_from([TEST, "../../x.py::test", "/etc/passwd", "a" * 5000, "con.py"]),
)

_counts = st.integers(min_value=0, max_value=2**31)
_extents = st.tuples(_counts, _counts, _counts)
_launches = st.builds(
    KernelLaunch,
    count=_counts,
    grid=_extents,
    block=_extents,
    registers_count=_counts,
    shared_bytes=_counts,
    stack_bytes=_counts,
)

stored_records = st.builds(
    StoredRecord,
    key=st.builds(RecordKey, test_id=test_ids, name=_names),
    session=sessions,
    values=st.lists(_values(), min_size=1, max_size=3).map(tuple),
    choice=st.none() | _names,
    facts=st.dictionaries(_names, _words, max_size=2),
    soft_facts=_words,
    bound_class=st.sampled_from(BoundClass),
    kernels=st.lists(
        st.builds(
            KernelTotal, name=_names, total_s=_finite, launch=st.none() | _launches
        ),
        max_size=3,
    ).map(tuple),
    parameters_digest=st.none() | _names,
    test_digest=st.none() | _names,
    code_digest=st.none() | _names,
    schema_version=st.sampled_from([2, STORE_VERSION]),
)
