"""pipeline.keeping: what of a run a baseline keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fakes import runs
from fakes.clock import FakeClock
from pytest_gpuperf.baseline.store import DirectoryStore
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.collect.runtime import find_runtime
from pytest_gpuperf.collect.session import new_session
from pytest_gpuperf.config import Config, Update
from pytest_gpuperf.measure.site import ProcessIdentity, Site
from pytest_gpuperf.model.codec import SCHEMA_VERSION, decode_run
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import (
    REFERENCES,
    Kind,
    Record,
    RecordKey,
    Role,
    SessionValue,
)
from pytest_gpuperf.model.run import Completeness, Header, Measured, Run
from pytest_gpuperf.model.sample import Estimate, ReferenceSamples
from pytest_gpuperf.model.verdict import Outcome, Reason, Verdict
from pytest_gpuperf.pipeline.command_line import CommandLine
from pytest_gpuperf.pipeline.keeping import store
from pytest_gpuperf.pipeline.run import report_so_far
from pytest_gpuperf.pipeline.suite import Suite


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


def stored_by(
    folder: Path,
    *tests: Measured,
    update: Update = Update.NEW,
    verdicts: tuple[Verdict, ...] = (),
    before: Callable[[Suite], object] = lambda _: None,
) -> tuple[Suite, dict[str, list[str]]]:
    """Return a suite that has stored its tests, and the metrics that the store has."""
    config = Config(root=str(folder), baseline=str(folder / "store"), update=update)
    command = CommandLine(args=(), folder=str(folder), variable="GPUPERF_CHILD")
    suite = Suite(Site.in_main(config, spool=None, expected=str(folder)), command)
    for test in tests:
        suite.receive(test, passed=True)
    before(suite)
    run = Run(
        schema=SCHEMA_VERSION,
        header=Header(
            session=suite.site.session,
            environment=suite.site.environment,
            completeness=Completeness(expected_count=1, reported_count=1),
        ),
        records=suite.records(),
        references=suite.reference_records(),
        verdicts=verdicts,
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


@pytest.mark.parametrize(
    ("by_events", "gated", "kept", "told_of"),
    [
        (0.01, "time", [("time", "events")], []),
        (0.01, "time.wall", [("time", "events")], ["time.wall"]),
        (0.6, "time", [], ["time"]),
    ],
)
def test_a_devices_time_is_stored_without_the_hosts(
    tmp_path: Path,
    by_events: float,
    gated: str,
    kept: list[tuple[str, str]],
    told_of: list[str],
) -> None:
    """A busy processor disturbs the host's times of a call, and no kernel."""
    host, events = (measured(width, time=1.0) for width in (0.6, by_events))
    (by_host,), (by_device,) = (each.records[0].estimates for each in (host, events))
    wall = replace(by_host, metric="time.wall")
    estimates = (replace(by_device, source="events"), by_host, wall)
    records = (replace(host.records[0], estimates=estimates),)
    test = replace(host, records=records, max_regression={gated: 0.05})
    suite, _ = stored_by(tmp_path, test)
    sessions = DirectoryStore(tmp_path / "store").load("host").values()

    assert [(v.metric, v.source) for (s,) in sessions for v in s.values] == kept
    told = [text for text in suite.remarks if text.startswith("too noisy")]
    assert len(told) == len(told_of)
    for text, metric in zip(told, told_of, strict=True):
        assert f"test_a.py::test_a {metric} (" in text
        assert text.count("test_a.py") == 1


def test_noise_of_many_tests_is_told_once_a_metric(tmp_path: Path) -> None:
    """Twenty tests of a busy machine are not twenty names in a line."""
    tests = []
    for name, half_width in (("a", 0.6), ("b", 1.2), ("c", 0.7)):
        key = RecordKey(test_id=f"test_a.py::test_{name}")
        noisy = measured(half_width, time=1.0)
        records = (replace(noisy.records[0], key=key),)
        tests.append(replace(noisy, test_id=key.test_id, records=records))
    suite, _ = stored_by(tmp_path, *tests)
    (told,) = (text for text in suite.remarks if text.startswith("too noisy"))

    assert told.startswith(
        "too noisy to be stored: time of 3 measurements "
        "(±60.0 % to ±120 %, at most ±50.0 %); "
    )


def test_a_limit_says_how_noisy_a_value_may_be(tmp_path: Path) -> None:
    """Ten of the test's own limits; a limit of 0 allows what no limit allows."""
    wide, strict = (
        replace(measured(0.6, time=1.0), max_regression={"time": limit})
        for limit in (0.1, 0.0)
    )

    assert stored_by(tmp_path / "a", wide)[1] == {"test_a.py::test_a": ["time"]}
    assert stored_by(tmp_path / "b", strict)[1] == {}


def with_kernels(choice: str) -> Measured:
    """Return what a test measured with a choice of kernels."""
    test = measured(0.01, time=1.0)
    return replace(test, records=(replace(test.records[0], choice=choice),))


def kept_choices(folder: Path) -> list[str | None]:
    """Return the choice of kernels of each session that is stored."""
    ((_, records),) = DirectoryStore(folder / "store").load("host").items()
    return [record.choice for record in records]


def test_an_accepted_change_replaces_the_kernels_that_it_came_from(
    tmp_path: Path,
) -> None:
    """The level of the old ones is over: they must not judge what the new ones do."""
    for _ in range(5):
        stored_by(tmp_path, with_kernels("A"))
    better = Verdict(
        key=with_kernels("B").records[0].key,
        metric="time",
        outcome=Outcome.IMPROVED,
        reason=Reason.FASTER_THAN_LIMIT,
    )
    suite, _ = stored_by(
        tmp_path, with_kernels("B"), update=Update.IMPROVED, verdicts=(better,)
    )

    assert kept_choices(tmp_path) == ["B"]
    assert any("5 sessions dropped" in text for text in suite.remarks)


def test_sessions_are_wanted_of_the_kernels_that_run_now(tmp_path: Path) -> None:
    """Those of another choice say nothing of how far these differ."""
    for choice in ("A" * 6) + ("B" * 6):
        stored_by(tmp_path, with_kernels(choice))

    assert kept_choices(tmp_path) == [*"AAAAABBBBB"]


def references(seconds: float) -> tuple[ReferenceSamples, ...]:
    """Return what a process timed of a reference workload."""
    return (ReferenceSamples(workload="loop", samples_s=(seconds,) * 5),)


def kept(folder: Path) -> dict[str, tuple[SessionValue, ...]]:
    """Return the values of the newest session of each measurement."""
    stored = DirectoryStore(folder / "store").load("host")
    return {str(key): records[-1].values for key, records in stored.items()}


def test_reference_workloads_are_stored_with_any_test(tmp_path: Path) -> None:
    """They are no tests: no body of theirs passed, and nothing gates them."""
    test = replace(measured(0.01, time=1.0), references=references(0.1))
    suite, _ = stored_by(tmp_path, test)
    stored = {
        str(key)
        for slug in DirectoryStore(tmp_path / "store").slugs()
        for key in DirectoryStore(tmp_path / "store").load(slug)
    }

    assert stored == {"test_a.py::test_a", f"{REFERENCES} loop"}
    assert any("stored 1 measurement in" in text for text in suite.remarks)


SLOWER = Verdict(
    key=RecordKey(test_id="test_a.py::test_a"),
    metric="time",
    outcome=Outcome.UNCHANGED,
    reason=Reason.WITHIN_NOISE,
    in_suite=runs.change(1.0, 2.0),
)


def test_what_was_slower_in_the_suite_is_not_stored(tmp_path: Path) -> None:
    """Nor are its parts: no value of another state gets into the series."""
    test = measured(0.01, **{"time": 1.0, "time.p95": 1.2, "energy": 3.0})
    suite, stored = stored_by(tmp_path, test, verdicts=(SLOWER,))
    (line,) = (text for text in suite.remarks if text.startswith("stored"))

    assert stored == {"test_a.py::test_a": ["energy"]}
    assert line.endswith(
        "not stored: 1 measurement slower in the suite than alone "
        "(--gpuperf-update=all stores it)"
    )


def test_what_was_slower_in_the_suite_leaves_nothing_to_store(tmp_path: Path) -> None:
    """The line says why."""
    suite, stored = stored_by(tmp_path, measured(0.01, time=1.0), verdicts=(SLOWER,))

    assert stored == {}
    assert suite.remarks[0].startswith(
        "nothing was stored: 1 measurement slower in the suite than alone"
    )


def test_all_stores_the_value_of_the_suite(tmp_path: Path) -> None:
    """It is what the next suite will measure, if nothing is mended."""
    test = measured(0.01, time=2.0)
    suite, _ = stored_by(tmp_path, test, update=Update.ALL, verdicts=(SLOWER,))
    ((value,),) = kept(tmp_path).values()

    assert value.run_values == (2.0,)
    assert not any("slower in the suite" in text for text in suite.remarks)


def confirming(
    *seconds: float, role: Role = Role.CONFIRM, choice: str | None = None
) -> list[Record]:
    """Return what fresh processes measured of the test of `measured`."""
    return [
        replace(
            measured(0.01, time=each).records[0],
            role=role,
            process_index=index,
            choice=choice,
        )
        for index, each in enumerate(seconds, start=1)
    ]


@pytest.mark.parametrize("suspected", [True, False])
def test_what_confirmed_a_test_is_stored_as_its_value_alone(
    tmp_path: Path, *, suspected: bool
) -> None:
    """Of a suspect, and of a control, which is nothing but a test beside it."""
    test = measured(0.01, time=1.0)

    def confirm(suite: Suite) -> None:
        suite.add(confirming(2.0, 3.0))
        suite.suspects = frozenset({test.test_id} if suspected else ())

    stored_by(tmp_path, test, before=confirm)
    ((value,),) = kept(tmp_path).values()

    assert value.run_values == (1.0,)
    assert value.alone_values == (2.0, 3.0)
    assert value.suspected is suspected


def test_a_test_that_failed_in_a_fresh_process_has_no_value_alone(
    tmp_path: Path,
) -> None:
    """What it measured before it failed may be of something else."""
    test = measured(0.01, time=1.0)

    def confirm(suite: Suite) -> None:
        suite.add(confirming(2.0, 3.0))
        suite.failed_fresh.add(test.test_id)

    stored_by(tmp_path, test, before=confirm)
    ((value,),) = kept(tmp_path).values()

    assert value.alone_values == ()


def test_references_have_values_of_the_fresh_processes(tmp_path: Path) -> None:
    """They say what the machine did between the suite and a test alone."""
    test = replace(measured(0.01, time=1.0), references=references(0.1))

    def confirm(suite: Suite) -> None:
        suite.add_references(Role.CONFIRM, 1, references(0.2))
        suite.add_references(Role.ALONE, 1, references(0.3))

    stored_by(tmp_path, test, before=confirm)
    store_ = DirectoryStore(tmp_path / "store")
    (value,) = (
        value
        for slug in store_.slugs()
        for key, records in store_.load(slug).items()
        if key.test_id == REFERENCES
        for value in records[-1].values
    )

    assert value.run_values == (0.1,)
    assert sorted(value.alone_values) == [0.2, 0.3]


def test_sessions_of_another_company_do_not_make_a_baseline_complete(
    tmp_path: Path,
) -> None:
    """Five runs of one test say nothing of how fast it is in a suite of 40."""
    test = measured(0.01, time=1.0)
    for _ in range(6):
        stored_by(tmp_path, test, before=lambda suite: suite.site.note_ran(1))
    suite, _ = stored_by(tmp_path, test, before=lambda suite: suite.site.note_ran(40))
    ((_, records),) = DirectoryStore(tmp_path / "store").load("host").items()

    assert [record.session.ran_count for record in records] == [1] * 5 + [40]
    assert any("has 1 of 5 sessions" in text for text in suite.remarks)
    assert [text for text in suite.remarks if "this run ran" in text] == [
        (
            "gpuperf: this run ran 40 tests, but 5 stored sessions ran 1 test: only "
            "sessions with about as many tests (at least half) are compared"
        )
    ]


class SlowClock(FakeClock):
    """Each look at the time takes a second, as a slow disk would between two of them."""

    def unix_s(self) -> float:
        self.advance(10**9)
        return super().unix_s()


def reporting(
    folder: Path, clock: FakeClock, *, json: str | None = "run.json"
) -> Suite:
    """Return a suite that writes what was measured so far."""
    config = Config(root=str(folder), json=json and str(folder / json))
    command = CommandLine(args=(), folder=str(folder), variable="GPUPERF_CHILD")
    session = replace(new_session(clock), id="s")
    identity = ProcessIdentity(session=session, expected=str(folder))
    site = Site(
        config, identity, clock=clock, runner=ProcessRunner(), runtime=find_runtime()
    )
    return Suite(site, command)


def receive(suite: Suite, name: str, *, passed: bool = True) -> None:
    """Let a suite take what a test measured, and report it."""
    test = measured(0.01, time=1.0)
    key = replace(test.records[0].key, test_id=name)
    records = (replace(test.records[0], key=key),)
    test = replace(test, test_id=name, records=records, body_failed=not passed)
    suite.receive(test, passed=passed)
    report_so_far(suite)


def so_far(folder: Path) -> list[str]:
    """Return the tests of the report as it is now."""
    path = folder / "run.json"
    if not path.exists():
        return []
    return [r.key.test_id for r in decode_run(path.read_bytes(), path="").records]


def test_a_killed_run_keeps_what_it_had_measured(tmp_path: Path) -> None:
    """After the first test, when the run has doubled, and after half a minute at most."""
    clock = FakeClock()
    suite = reporting(tmp_path, clock)
    report_so_far(suite)  # nothing is measured yet
    written = [so_far(tmp_path)]
    for name, pause_s in (("a", 5), ("b", 4), ("c", 1), ("d", 20), ("e", 29), ("f", 1)):
        clock.advance(pause_s * 10**9)
        receive(suite, name, passed=name != "b")
        written.append(so_far(tmp_path))
    run = decode_run((tmp_path / "run.json").read_bytes(), path="")

    assert ["".join(names) for names in written] == [
        *("", "a", "a", "abc", "abcd", "abcd", "abcdef")
    ]
    assert run.header.completeness.interrupted == "the run ended before its last test"
    assert run.broken == ("b",)


def test_a_report_that_takes_long_is_written_rarely(tmp_path: Path) -> None:
    """It takes a fiftieth of the run's time at most: here, one second of 50."""
    clock = SlowClock()
    suite = reporting(tmp_path, clock)
    written = []
    for name, pause_s in (("a", 0), ("b", 40), ("c", 10)):
        clock.advance(pause_s * 10**9)
        receive(suite, name)
        written.append("".join(so_far(tmp_path)))

    assert written == ["a", "a", "abc"]


def test_who_asks_for_no_json_waits_for_none(tmp_path: Path) -> None:
    """Nothing is written, and the clock is not read."""
    clock = SlowClock()
    suite = reporting(tmp_path, clock, json=None)
    receive(suite, "a")
    before_ns = clock.reading_ns
    receive(suite, "b")

    assert so_far(tmp_path) == []
    assert clock.reading_ns == before_ns
