"""pipeline.keeping: what of a run a baseline keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.clock import FakeClock
from pytest_gpuperf.baseline.store import DirectoryStore
from pytest_gpuperf.collect.environment import new_session
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.collect.runtime import find_runtime
from pytest_gpuperf.config import Config, Update
from pytest_gpuperf.measure.site import ProcessIdentity, Site
from pytest_gpuperf.model.codec import SCHEMA_VERSION, decode_run
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import REFERENCES, Kind, Record, RecordKey, Role
from pytest_gpuperf.model.run import Completeness, Header, Measured, Run
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.pipeline.keeping import confirming, store
from pytest_gpuperf.pipeline.repeat import CommandLine
from pytest_gpuperf.pipeline.run import report_so_far
from pytest_gpuperf.pipeline.suite import Suite


def record(choice: str, role: Role = Role.CONFIRM) -> Record:
    """Return what a process measured with a choice of kernels."""
    key = RecordKey(test_id="a")
    return Record(key=key, kind=Kind.MEASURE, estimates=(), choice=choice, role=role)


def test_processes_that_chose_other_kernels_are_no_part_of_a_session() -> None:
    """The kernels that most of them chose, which the verdict is of, are stored."""
    usual = [record("a") for _ in range(4)]
    drawn = [record("c", Role.REPEAT), record("b"), *usual]

    assert confirming(drawn) == usual


def measured(half_width: float, **values: float) -> Measured:
    """Return what a test measured, its time with an interval of a relative half-width."""
    estimates = [
        Estimate(
            metric=metric,
            value=value,
            unit="s",
            source="host",
            low=value * (1 - half_width) if metric == "time" else None,
            high=value * (1 + half_width) if metric == "time" else None,
        )
        for metric, value in values.items()
    ]
    key = RecordKey(test_id="test_a.py::test_a")
    record = Record(key=key, kind=Kind.MEASURE, estimates=tuple(estimates))
    return Measured(test_id=key.test_id, records=(record,))


def stored_by(folder: Path, *tests: Measured) -> tuple[Suite, dict[str, list[str]]]:
    """Return a suite that has stored its tests, and the metrics that the store has."""
    config = Config(root=str(folder), baseline=str(folder / "store"), update=Update.NEW)
    command = CommandLine(args=(), folder=str(folder), variable="GPUPERF_CHILD")
    suite = Suite(Site.in_main(config, spool=None, expected=str(folder)), command)
    for test in tests:
        suite.receive(test, passed=True)
    run = Run(
        schema=SCHEMA_VERSION,
        header=Header(
            session=suite.site.session,
            environment=suite.site.environment,
            completeness=Completeness(expected_count=1, reported_count=1),
        ),
        records=suite.records(),
    )
    store(suite, run)
    kept = DirectoryStore(folder / "store").load("host")
    metrics = {
        str(key): [value.metric for each in records for value in each.values]
        for key, records in kept.items()
    }
    return suite, metrics


@pytest.mark.parametrize(("half_width", "metrics"), [(0.49, 3), (0.51, 1)])
def test_a_value_that_says_too_little_is_not_stored(
    tmp_path: Path, half_width: float, metrics: int
) -> None:
    """Nor are its parts; an interval of ten limits each way would hide any change."""
    test = measured(half_width, **{"time": 1.0, "time.p95": 1.2, "energy": 3.0})
    suite, stored = stored_by(tmp_path, test)

    assert len(stored["test_a.py::test_a"]) == metrics
    told = [text for text in suite.remarks if text.startswith("too noisy")]
    if metrics == 1:
        assert len(told) == 1
        assert "test_a.py::test_a time (±51.0 %, at most ±50.0 %)" in told[0]
    else:
        assert told == []


def test_a_limit_says_how_noisy_a_value_may_be(tmp_path: Path) -> None:
    """Ten of the test's own limits; a limit of 0 allows what no limit allows."""
    wide, strict = (
        replace(measured(0.6, time=1.0), max_regression={"time": limit})
        for limit in (0.1, 0.0)
    )

    assert stored_by(tmp_path / "a", wide)[1] == {"test_a.py::test_a": ["time"]}
    assert stored_by(tmp_path / "b", strict)[1] == {}


def test_reference_workloads_are_stored_with_any_test(tmp_path: Path) -> None:
    """They are no tests: no body of theirs passed, and nothing gates them."""
    key = RecordKey(test_id=REFERENCES, name="loop")
    test = measured(0.01, time=1.0)
    (record,) = test.records
    beside = replace(test, records=(record, replace(record, key=key)))
    suite, stored = stored_by(tmp_path, beside)

    assert stored == {"test_a.py::test_a": ["time"], f"{REFERENCES} loop": ["time"]}
    assert any("stored 1 measurement in" in text for text in suite.remarks)


def test_a_killed_run_keeps_what_it_had_measured(tmp_path: Path) -> None:
    """Every half minute, and not for the tests between; the file says that it ended."""
    path = tmp_path / "run.json"
    config = Config(root=str(tmp_path), json=str(path))
    command = CommandLine(args=(), folder=str(tmp_path), variable="GPUPERF_CHILD")
    clock = FakeClock()
    session = replace(new_session(clock), id="s")
    identity = ProcessIdentity(session=session, expected=str(tmp_path))
    site = Site(
        config, identity, clock=clock, runner=ProcessRunner(), runtime=find_runtime()
    )
    suite = Suite(site, command)
    written = []
    for name in ("a", "b", "c", "d"):
        clock.advance(20 * 10**9)
        test = measured(0.01, time=1.0)
        key = replace(test.records[0].key, test_id=name)
        records = (replace(test.records[0], key=key),)
        suite.receive(replace(test, test_id=name, records=records), passed=True)
        report_so_far(suite)
        kept = decode_run(path.read_bytes(), path="") if path.exists() else None
        written.append([] if kept is None else [r.key.test_id for r in kept.records])
    run = decode_run(path.read_bytes(), path="")

    assert written == [[], ["a", "b"], ["a", "b"], ["a", "b", "c", "d"]]
    assert run.header.completeness.interrupted == "the run ended before its last test"
