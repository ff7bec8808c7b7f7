"""A value is compared only with values of the same work under its id."""

from __future__ import annotations

import pytest

from fakes.project import VALUES, Project, lines
from pytest_gpuperf.model.codec import decode_run
from pytest_gpuperf.model.run import Run

GATE = ("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=1")
ONE_PARAMETER = """
    import os
    import random

    import pytest


    class Shape:
        def __init__(self, n, tag=None):
            self.n, self.tag = n, tag


    @pytest.mark.gpuperf(max_regression={"x": "5 %"})
    @pytest.mark.parametrize("shape", [Shape(2), Shape(3)])
    def test_x(gpuperf, shape):
        value = shape.n * float(os.environ.get("VALUE_a", "1"))
        gpuperf.record("x", value, unit="s", better="lower")
"""
MOVED = ONE_PARAMETER.replace("[Shape(2)", "[Shape(1), Shape(2)")


def report(project: Project) -> Run:
    """What the JSON report of the last run says."""
    return decode_run((project.path / "run.json").read_bytes())


def test_positional_ids_whose_objects_moved_are_incomparable(project: Project) -> None:
    """They are neither improved nor regressed, and one line says how to name them."""
    project.store(ONE_PARAMETER)
    same = project.run(*GATE)
    project.write(MOVED)
    project.set_values(a=8.0)
    moved = project.run(*GATE)

    assert same.ret == 0
    assert lines(same, "judged 2 of 2: 2 unchanged")
    assert moved.ret == 1
    assert lines(moved, "judged 0 of 3: 2 incomparable (fingerprint differs), 1 new")
    assert len(lines(moved, "parameters: other values under the same id")) == 2
    assert lines(moved, "store sessions with these parameters with")
    for run, text in (
        (same, "2 test ids contain a position (shape0, …), which moves"),
        (moved, "3 test ids contain a position (shape0, …), which moves"),
    ):
        assert len(lines(run, text, "name the parameters with ids=")) == 1


def test_an_option_compares_across_parameters(project: Project) -> None:
    """As with any other fact: what moved is judged all the same."""
    project.store(ONE_PARAMETER)
    project.write(MOVED)
    ended = project.run(*GATE, "--gpuperf-compare-across=parameters")

    assert lines(ended, "judged 2 of 3: 2 improved")


def test_new_sessions_of_moved_parameters_start_a_series(project: Project) -> None:
    """What is stored of the others is kept, and not counted."""
    project.store(ONE_PARAMETER)
    project.write(MOVED)
    *_, ended = (project.run("--gpuperf-update=new") for _ in range(3))
    judged = project.run(*GATE)

    assert lines(ended, "the baseline has 3 of 5 sessions")
    assert lines(judged, "judged 3 of 3: 3 unchanged")


def test_ids_that_name_their_values_are_not_told(project: Project) -> None:
    """Nor is anything where no baseline is kept."""
    named = ONE_PARAMETER.replace("Shape(3)]", "Shape(3)], ids=['small', 'large']")
    project.write(ONE_PARAMETER)
    alone = project.run()
    project.write(named)
    stored = project.run("--gpuperf-update=new")

    assert not lines(stored, "contain a position")
    assert not lines(alone, "contain a position")


@pytest.mark.parametrize("tag", ["random.random()", "os.getpid()"])
def test_parameters_that_no_process_shares_are_not_compared(
    project: Project, tag: str
) -> None:
    """A fresh process that only collects shows it; it is told once, and values count."""
    random = ONE_PARAMETER.replace("Shape(2),", f"Shape(2, {tag}),")
    project.write(random)
    for _ in range(2):
        assert project.spawn("--gpuperf-update=new").returncode == 0
    ended = project.spawn(*GATE, "--gpuperf-json=run.json")

    assert "0 judged, 2 blind" in ended.stdout  # two sessions see little
    told = "parameters differ in each process, so those of this test are not compared"
    assert ended.stdout.count(told) == 1
    digests = {r.key.test_id[-8:]: r.parameters_digest for r in report(project).records}
    assert digests["[shape0]"] is None
    assert digests["[shape1]"] is not None


def test_a_regression_with_unsteady_parameters_fails_its_test(project: Project) -> None:
    """Its outcome waits for the process that shows what its parameters are."""
    random = ONE_PARAMETER.replace("Shape(2),", "Shape(2, random.random()),")
    project.write(random)
    for _ in range(3):
        project.spawn("--gpuperf-update=new")
    project.set_values(a=1.5)
    ended = project.spawn(*GATE)

    assert ended.returncode == 1
    assert "2 failed" in ended.stdout
    assert "another plugin" not in ended.stdout


def test_parameters_are_those_that_the_test_began_with(project: Project) -> None:
    """Its body and its fixtures may change them; the next session begins anew."""
    changing = VALUES.replace('"name", ["a", "b", "c"]', '"name", [["a"], ["b"]]')
    changing = changing.replace("{name}", "{name.pop()}")
    project.write(changing)
    for _ in range(2):
        project.spawn("--gpuperf-update=new")
    ended = project.spawn(*GATE)

    assert "0 judged, 2 blind" in ended.stdout  # two sessions see little


def test_a_repr_that_raises_fails_no_test(project: Project) -> None:
    """Whatever it raises; so does one of a megabyte."""
    hostile = ONE_PARAMETER.replace(
        "    @pytest.mark.gpuperf",
        "    class Raises(Shape):\n"
        "        def __repr__(self):\n"
        "            pytest.skip('no text')\n\n\n"
        "    class Long(Shape):\n"
        "        def __repr__(self):\n"
        "            return 'x' * 1_000_000\n\n\n"
        "    @pytest.mark.gpuperf",
    ).replace("[Shape(2), Shape(3)]", "[Raises(2), Long(3)]")
    project.store(hostile)
    ended = project.run(*GATE)

    assert ended.parseoutcomes() == {"passed": 2}
    assert lines(ended, "judged 2 of 2: 2 unchanged")


def test_a_changed_test_is_told_in_the_block(project: Project) -> None:
    """The regression stays one, and JSON has the soft fact that moved."""
    project.store()
    project.write(VALUES.replace('"1"))', '"1")) * 1'))
    project.set_values(b=1.5)
    ended = project.run(*GATE, "--gpuperf-json=run.json")

    assert ended.parseoutcomes() == {"passed": 2, "failed": 1}
    assert len(lines(ended, "the test itself changed since the stored sessions")) == 1
    assert lines(ended, "x regressed (method): ")
    (regressed,) = (v for v in report(project).verdicts if v.outcome == "regressed")
    assert regressed.baseline is not None
    assert regressed.baseline.moved.keys() == {"test"}


@pytest.mark.parametrize(
    ("update", "stored"), [("improved", False), ("all", True), ("new", False)]
)
def test_an_improvement_of_a_changed_test_is_stored_by_all_alone(
    project: Project, update: str, stored: bool
) -> None:
    """Else a gate could be bought by a test that does less."""
    project.store()
    project.write(VALUES.replace('"1"))', '"1")) * 1'))
    project.set_values(b=0.5)
    ended = project.run(*GATE, f"--gpuperf-update={update}")

    told = "the test itself changed since the stored sessions, so it is stored only by"
    assert bool(lines(ended, told)) is not stored
    assert bool(lines(ended, "accepted test_it.py::test_x[b] x")) is stored
    if update == "improved":
        assert lines(ended, "nothing was stored: no unchanged test improved")


def test_a_case_more_changes_no_test(project: Project) -> None:
    """The list of parameters is no part of the function."""
    project.store()
    project.write(VALUES.replace('["a", "b", "c"]', '["a", "b", "c", "d"]'))
    project.set_values(b=0.5)
    ended = project.run(*GATE, "--gpuperf-update=improved")

    assert not lines(ended, "the test itself changed")
    assert lines(ended, "accepted test_it.py::test_x[b] x")


@pytest.mark.parametrize(
    ("before", "after", "fact", "sentence"),
    [
        ('"lower"', '"higher"', "better: lower -> higher", "in another direction"),
        ('"s"', '"ms"', "unit: s -> ms", "has another unit"),
        ('"s"', '"bytes"', "unit: s -> bytes", "has another unit"),
    ],
)
def test_another_unit_or_direction_is_another_number(
    project: Project, before: str, after: str, fact: str, sentence: str
) -> None:
    """It is incomparable, whatever its value; the run fails where nothing else is judged."""
    project.store()
    project.write(VALUES.replace(before, after))
    ended = project.run(*GATE)

    assert ended.ret == 1
    assert lines(ended, "judged 0 of 3: 3 incomparable (fingerprint differs)")
    assert len(lines(ended, fact)) == 3
    assert lines(ended, sentence)


def test_workers_take_the_same_digests(project: Project) -> None:
    """Of tests that pytest-xdist runs, with ids that count positions."""
    project.store(ONE_PARAMETER)
    ended = project.spawn("-n2", "-p", "xdist.plugin", *GATE)

    assert "judged 2 of 2: 2 unchanged" in ended.stdout
    assert "2 test ids contain a position (shape0, …)" in ended.stdout
