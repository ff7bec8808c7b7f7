"""A baseline is built by runs that store, says how far it is, and recovers from a bad one."""

from __future__ import annotations

import pytest

from fakes.project import VALUES, Project, lines
from pytest_gpuperf.model.codec import decode_run

NEW = "--gpuperf-update=new"
COMMAND = f"store another session: pytest {NEW}"
ALL = "--gpuperf-update=all"
GATE = ("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=1")


def test_new_goes_on_to_five_sessions(project: Project) -> None:
    """Each row says how far it is, and the last line how many are wanted."""
    project.write(VALUES)
    ended = [project.run(NEW) for _ in range(6)]

    for number, run in enumerate(ended[:4], start=1):
        if number < 3:  # then it is judged already
            assert len(lines(run, f"{number} of 5 stored")) == 3
        wanted = f"{5 - number} more recommended"
        assert lines(run, f"the baseline has {number} of 5 sessions", wanted)
        assert run.outlines.count(COMMAND) == 1
    assert not lines(ended[0], ": it detects")  # one session says nothing of its spread
    for run in ended[1:5]:
        assert lines(run, ": it detects slowdowns from ")
    # More sessions are named as long as they detect smaller slowdowns.
    assert lines(ended[1], "with 2 more sessions from ")
    equal = "the baseline has 5 sessions: it detects slowdowns from 5.3 %"
    assert lines(ended[4], "the baseline has 5 sessions") == [equal]
    assert lines(ended[5], "nothing was stored: every baseline has enough sessions")


@pytest.mark.parametrize(
    ("sessions", "new"),
    [(0, ["store new tests: pytest --gpuperf-update=new"]), (2, [])],
)
def test_improved_stores_nothing_where_no_test_improved(
    project: Project, sessions: int, new: list[str]
) -> None:
    """It says so, however few sessions there are, and what stores new tests."""
    if sessions:
        project.store(sessions=sessions)
    project.write(VALUES)
    ended = project.run("--gpuperf-update=improved")

    (told,) = lines(ended, "nothing was stored")
    assert told == "nothing was stored: no test improved"
    assert lines(ended, "store new tests") == new


def test_a_project_says_how_many_sessions_it_wants(project: Project) -> None:
    """As an ini value; a wrong one is told before anything runs."""
    project.write(VALUES)
    project.write("[pytest]\ngpuperf_sessions = 1", "pytest.ini")
    ended = [project.run(NEW) for _ in range(2)]
    wrong = project.run(NEW, "-ogpuperf_sessions=0")

    assert not lines(ended[0], "of 1 stored")
    assert lines(ended[1], "nothing was stored")
    assert lines(wrong, "gpuperf_sessions=0: write a whole number from 1 to 20")


@pytest.mark.parametrize("update", [NEW, ALL])
def test_a_bad_session_does_not_end_a_series(project: Project, update: str) -> None:
    """What is undecided because of it is stored all the same, so that more can outweigh it."""
    project.write(VALUES)
    project.set_values(b=3.0)
    ended = [project.run(update)]
    for factor in (1.0, 1.01, 0.99, 1.0):
        project.set_values(b=factor)
        ended.append(project.run(*GATE, update))

    assert [run.ret for run in ended] == [0] * 5
    assert all(lines(run, "stored 3 measurements in .gpuperf") for run in ended)
    assert lines(ended[-1], "the baseline has 5 sessions", "test_x[b]")


def test_a_second_session_that_looks_worse_is_appended(project: Project) -> None:
    """One session decides nothing, so nothing is accepted in its place."""
    project.write(VALUES)
    project.run(ALL)
    project.set_values(b=3.0)
    second = project.run(*GATE, ALL)
    project.set_values(b=1.0)
    third = project.run(*GATE, ALL)

    assert second.ret == 0
    assert lines(second, "stored 3 measurements in .gpuperf")
    assert not lines(second, "accepted")
    assert lines(third, "the baseline has 3 of 5 sessions")


def test_accepting_says_what_it_dropped_and_what_is_wanted(project: Project) -> None:
    """The new level has one session, and its gate is weak until more are stored."""
    project.store()
    project.set_values(b=1.2)
    accepted = project.run(*GATE, ALL)

    assert accepted.ret == 0
    (told,) = lines(accepted, "accepted ")
    assert told == "accepted test_it.py::test_x[b] x: 3 sessions dropped"
    (wanted,) = lines(accepted, "4 more recommended")
    assert f"{COMMAND} --gpuperf-baseline=.gpuperf" in accepted.outlines
    assert wanted.startswith("the baseline has 1 of 5 sessions")


def test_new_stores_no_regression(project: Project) -> None:
    """The test fails, and its baseline stays what it was; the others are stored."""
    project.store()
    project.set_values(b=1.2)
    ended = project.run(*GATE, NEW)

    assert ended.parseoutcomes() == {"passed": 2, "failed": 1}
    assert lines(
        ended,
        "stored 2 measurements in .gpuperf",
        "not stored: 1 measurement (failed, xfailed, regressed or void)",
    )


def test_an_earlier_format_is_told_once(project: Project) -> None:
    """Its sessions count, and the next stored session rewrites the file."""
    project.store()
    (path,) = project.path.glob(".gpuperf/**/test_it.json")
    text = path.read_text("utf-8").replace("baseline/3", "baseline/2")
    path.write_text(text, "utf-8")
    told = project.run(*GATE)
    project.run(ALL)

    assert len(lines(told, ".gpuperf has the format of an earlier version")) == 1
    assert lines(told, "judged 3 of 3: 3 unchanged")
    assert not lines(project.run(*GATE), "earlier version")


def test_a_report_has_the_sessions_that_it_was_judged_against(project: Project) -> None:
    """With their values, as the store had them before this run changed it."""
    project.store()
    project.set_values(b=1.2)
    project.run(*GATE, ALL, "--gpuperf-json=run.json")
    run = decode_run((project.path / "run.json").read_bytes())

    stored = [session for session in run.stored if "[b]" in session.key.test_id]
    assert len(stored) == 3
    assert {value.metric for session in stored for value in session.values} == {"x"}
    assert all(session.session.id != run.header.session.id for session in stored)


def test_a_report_says_where_its_tests_stand(project: Project) -> None:
    """File and line for a link, and the group of the marker."""
    project.write(VALUES.replace("(max_regression", '(group="x", max_regression'))
    project.run("--gpuperf-json=run.json")
    run = decode_run((project.path / "run.json").read_bytes())

    assert [(test.line, test.group) for test in run.tests] == [(7, "x")] * 3


@pytest.mark.parametrize("update", ["new", "all", "improved"])
def test_a_run_that_measures_nothing_names_no_baseline(
    project: Project, update: str
) -> None:
    """There is no store, and a test that was skipped needs no other command."""
    project.write("import pytest\n\ndef test_it(gpuperf):\n    pytest.skip('why')\n")
    ended = project.run(f"--gpuperf-update={update}")

    assert lines(ended, "nothing was stored: nothing was measured")
    assert not lines(ended, "store new tests")
