"""Rules of pipeline.against: what ends comparisons with revisions."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.runner import Call, FakeRunner
from fakes.runtime import FakeRuntime
from pytest_gpuperf.collect.runner import Finished
from pytest_gpuperf.config import Config, ConfirmBy
from pytest_gpuperf.judge.look import FirstLook, first_look
from pytest_gpuperf.measure.site import ProcessIdentity, Site
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.run import Measured
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.model.verdict import Cause, Outcome
from pytest_gpuperf.pipeline.against import confirm_suspects, interrupted_by_signals
from pytest_gpuperf.pipeline.command_line import CommandLine
from pytest_gpuperf.pipeline.suite import Suite
from unit.judge.building import case


class Interrupted(FakeRunner):
    """A runner whose first command gets a Ctrl-C."""

    def answer(self, call: Call) -> Finished:
        raise KeyboardInterrupt


def suite_of(runner: FakeRunner, folder: Path, confirm_by: ConfirmBy) -> Suite:
    """Return a run that starts its commands by this runner."""
    config = Config(root=str(folder), confirm_by=confirm_by)
    identity = ProcessIdentity(session=Session(id="s", started_unix_s=0.0, host="h"))
    clock = FakeClock()
    runtime = FakeRuntime(clock)
    site = Site(config, identity, clock=clock, runner=runner, runtime=runtime)
    return Suite(site, CommandLine(args=(), folder=str(folder), variable="CHILD"))


def test_no_commit_is_compared_after_ctrl_c(tmp_path: Path) -> None:
    """The run has ended: a second stored commit has no process."""
    runner = Interrupted()
    suite = suite_of(runner, tmp_path, ConfirmBy.AGAINST)
    cases = tuple(
        case(2.0, [1.0, 1.01, 0.99, 1.0, 1.01][:count], key=RecordKey(test_id=test_id))
        for test_id, count in (("a", 5), ("b", 4))
    )
    looks = first_look(cases)
    assert [look.suspect for look in looks] == [True, True]
    confirm_suspects(suite, FirstLook(cases=cases, looks=looks, suspects=("a", "b")))

    assert suite.stopped == "KeyboardInterrupt"
    assert len(runner.calls) == 1


@pytest.mark.parametrize(
    ("fact", "confirm_by", "compares"),
    [
        ("numpy", ConfirmBy.AUTO, False),
        ("numpy", ConfirmBy.AGAINST, True),
        ("gpu_uuid", ConfirmBy.AUTO, True),
    ],
)
def test_what_both_sides_share_is_no_matter_of_a_comparison(
    tmp_path: Path,
    fact: str,
    confirm_by: ConfirmBy,
    compares: bool,
) -> None:
    """A slower package makes both sides slower: fresh processes see it, blocks do not."""
    runner = Interrupted()
    suite = suite_of(runner, tmp_path, confirm_by)
    slow = case(2.0, [1.0, 1.01, 0.99], moved={fact: ("2.1", "2.4")})
    first = FirstLook(
        cases=(slow,), looks=first_look([slow]), suspects=(slow.key.test_id,)
    )
    confirmed = confirm_suspects(suite, first)

    assert bool(runner.calls) == compares
    if not compares:
        assert confirmed.test_ids == frozenset()
        (remark,) = suite.remarks
        assert "numpy 2.1 -> 2.4 since it was stored, and both sides have it" in remark


@pytest.mark.parametrize("confirm_by", [ConfirmBy.AUTO, ConfirmBy.AGAINST])
def test_what_the_budget_has_no_time_for_is_told_and_not_begun(
    tmp_path: Path, confirm_by: ConfirmBy
) -> None:
    """A suspect of 31 s a call takes 33 minutes; the budget is ten."""
    runner = Interrupted()
    suite = suite_of(runner, tmp_path, confirm_by)
    told: list[str] = []
    suite.tell = lambda progress: told.append(progress.text)
    slow = case(31.0, [15.0, 15.1, 14.9])
    key = slow.key
    record = Record(
        key=key,
        kind=Kind.MEASURE,
        estimates=(
            Estimate(
                metric=slow.metric.name,
                value=31.0,
                unit="s",
                source="host",
                sample_count=3,
            ),
        ),
    )
    suite.results[key.test_id] = Measured(test_id=key.test_id, records=(record,))
    first = FirstLook(cases=(slow,), looks=first_look([slow]), suspects=(key.test_id,))
    confirmed = confirm_suspects(suite, first)

    assert runner.calls == []
    (text,) = told
    assert "take 25 min or more, and the budget is 10 min: it is not compared" in text
    spoken = (*suite.remarks, *suite.complaints)
    assert any("--gpuperf-budget=38min" in remark for remark in spoken)
    if confirm_by is ConfirmBy.AGAINST:
        (verdict,) = confirmed.verdicts.values()
        assert verdict.cause is Cause.BEFORE_FIRST_LOOK
        assert verdict.outcome is Outcome.INCONCLUSIVE
    else:  # fresh processes decide
        assert confirmed.test_ids == frozenset()


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Let a cancelled job end this process, as where nobody has changed that."""
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    earlier = {
        getattr(signal, name): signal.signal(getattr(signal, name), signal.SIG_DFL)
        for name in names
    }
    yield
    for number, handler in earlier.items():
        signal.signal(number, handler)


@pytest.mark.skipif(sys.platform == "win32", reason="no signals of this kind")
def test_a_signal_that_comes_twice_interrupts_once(default_signals: None) -> None:
    """What it began must be tidied up, and then it ends a process as ever."""
    tidied = False
    with interrupted_by_signals():
        with pytest.raises(KeyboardInterrupt, match=r"^SIGTERM$"):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        tidied = True

    assert tidied
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


@pytest.mark.skipif(sys.platform == "win32", reason="no signals of this kind")
def test_a_signal_at_once_leaves_no_handler(
    default_signals: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may come between the first handler and the second."""
    install = signal.signal

    def install_and_raise(number: int, handler: object) -> object:
        earlier = install(number, handler)  # type: ignore[arg-type] # of the caller's
        if handler != signal.SIG_DFL:
            signal.raise_signal(number)
        return earlier

    with monkeypatch.context() as patched:
        patched.setattr(signal, "signal", install_and_raise)
        with pytest.raises(KeyboardInterrupt), interrupted_by_signals():
            pytest.fail("the block must not begin")

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
