"""pipeline.alone: when a session that stores measures tests alone, and which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.clock import FakeClock
from pytest_gpuperf.baseline.stored_record import stored_record
from pytest_gpuperf.config import Config, Update
from pytest_gpuperf.judge.confirmation import Retest
from pytest_gpuperf.measure.site import Site
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.record import Kind, Record, RecordKey, Role, StoredRecord
from pytest_gpuperf.model.run import Measured
from pytest_gpuperf.model.sample import Estimate, Unmeasured
from pytest_gpuperf.pipeline.alone import measure_alone
from pytest_gpuperf.pipeline.command_line import CommandLine
from pytest_gpuperf.pipeline.suite import Suite


def record(
    test_id: str, metric: str = "time", source: str = "host", **changed: Any
) -> Record:
    """Return what a process measured of a test."""
    return Record(
        key=RecordKey(test_id=test_id),
        kind=Kind.MEASURE,
        estimates=(Estimate(metric=metric, value=1.0, unit="s", source=source),),
        **changed,
    )


class Session:
    """
    A session that is going to be stored.

    Attributes:
        asked: The tests that were measured alone.
    """

    def __init__(self, folder: Path, *records: Record, **options: Any) -> None:
        config = Config(root=str(folder), update=Update.NEW, **options)
        command = CommandLine(args=(), folder=str(folder), variable="GPUPERF_CHILD")
        site = Site.in_main(config, spool=None, expected=str(folder))
        self.suite = Suite(site, command)
        self.asked: list[str] = []
        self._sessions: dict[RecordKey, tuple[StoredRecord, list[StoredRecord]]] = {}
        for each in records:
            test = Measured(test_id=each.key.test_id, records=(each,))
            self.suite.receive(test, passed=True)
            call = SimpleNamespace(when="call", duration=1.0)
            self.suite.took(test.test_id, call)
            session = stored_record([each], site.session)
            self._sessions[each.key] = (session, [])

    def measure(
        self, retests: Mapping[str, Retest] | BaseException | None = None
    ) -> list[str]:
        """Measure tests alone; return which."""

        def start(test_ids: Sequence[str]) -> Mapping[str, Retest]:
            self.asked += test_ids
            if isinstance(retests, BaseException):
                raise retests
            return retests or {}

        measure_alone(self.suite, self._sessions, start)
        return self.asked


TESTS = ("a", "b", "c")


@pytest.mark.parametrize(
    ("options", "tests"),
    [({}, TESTS), ({"alone": 0}, ()), ({"confirm": 0}, ()), ({"alone": 2}, TESTS)],
)
def test_a_session_measures_tests_alone(
    tmp_path: Path, options: dict[str, Any], tests: Sequence[str]
) -> None:
    """Unless it is told not to, or no fresh process may confirm anything either."""
    session = Session(tmp_path, *map(record, TESTS), **options)

    assert session.measure() == [*tests]


def test_what_a_fresh_process_has_measured_is_not_measured_again(
    tmp_path: Path,
) -> None:
    """A suspect and a control have their value; one that failed there fails again."""
    session = Session(tmp_path, *map(record, TESTS))
    session.suite.add([record("a", role=Role.CONFIRM, process_index=1)])
    session.suite.failed_fresh.add("c")

    assert session.measure() == ["b"]


@pytest.mark.parametrize(
    ("metric", "source", "drawn"),
    [
        ("time", "host", True),
        ("x", "user", True),
        ("time", "ncu-report", False),
        ("registers", "binary", False),
        ("launches.count", "cupti", False),
    ],
)
def test_what_is_equal_in_every_process_is_not_measured_alone(
    tmp_path: Path, metric: str, source: str, *, drawn: bool
) -> None:
    """A count, or what a file says, has no state to depend on."""
    session = Session(tmp_path, record("a", metric, source))

    assert session.measure() == (["a"] if drawn else [])


def test_a_replay_takes_what_the_recording_has(tmp_path: Path) -> None:
    """No process is started, so nothing is drawn."""
    session = Session(tmp_path, *map(record, TESTS), alone=0)
    site = session.suite.site
    site.config = session.suite.config = replace(site.config, replay=str(tmp_path))

    assert session.measure() == [*TESTS]


def test_the_cost_is_said_to_who_asks_for_details(tmp_path: Path) -> None:
    """How many tests, in how many processes, and how long it took."""
    session = Session(tmp_path, *map(record, TESTS))
    session.suite.site.clock = FakeClock()
    session.measure()

    assert session.suite.remarks == ()
    assert session.suite.verbose_remarks == (
        "gpuperf: measured 3 tests alone, in 1 fresh process: 0 s",
    )


def test_a_process_that_began_no_test_is_said_to_all(tmp_path: Path) -> None:
    """The session is stored without values that the user may count on."""
    gap = Unmeasured(
        metric="the test", code=GapCode.NOT_REACHED, reason="no", remedy="r"
    )
    session = Session(tmp_path, *map(record, TESTS))
    session.measure(dict.fromkeys(TESTS, Retest(unmeasured=(gap,))))

    (line,) = session.suite.remarks
    assert line.startswith("gpuperf: no test was measured alone for this session: no")


def test_ctrl_c_leaves_what_the_suite_measured(tmp_path: Path) -> None:
    """The run has ended, and its values are valid: they are stored and reported."""
    session = Session(tmp_path, *map(record, TESTS))
    session.measure(KeyboardInterrupt())

    (line,) = session.suite.remarks
    assert line.startswith(
        "gpuperf: Ctrl-C ended the process that measures tests alone"
    )
