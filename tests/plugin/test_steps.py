"""gpuperf.steps in a test: its values, its report, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.project import XDIST, Project, lines

# steps of 2 ms, by a clock that nobody can slow down by less than that
LOOP = """
    import time

    import pytest

    from pytest_gpuperf import Hardware

    HARDWARE = Hardware(peak_bw_gb_s=1e6, bytes_per_token=1e9)  # a million a second: an F


    def run(steps, count=6):
        for _ in steps.data(range(count)):
            with steps.step():
                with steps.phase("forward"), steps.layer(0), steps.operation("gemm"):
                    time.sleep(0.001)
                with steps.phase("backward"):
                    time.sleep(0.001)
"""


@pytest.fixture(name="project")
def project_(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(pytester, monkeypatch)


def body(*statements: str, marker: str = "") -> str:
    """Return a test file with a loop in it."""
    test = "".join(f"        {line}\n" for line in statements)
    return f"{LOOP}\n\n    {marker}\n    def test_it(gpuperf):\n{test}"


def values(project: Project) -> dict[str, Any]:
    """Return the values of the run's only record by metric."""
    (record,) = project.report()["records"]
    return {each["metric"]: each["value"] for each in record["estimates"]}


def test_a_loop_is_measured_step_by_step(project: Project) -> None:
    """Its values are figures like those of any measurement."""
    project.write(
        body(
            'with gpuperf.steps(units=512, unit="token") as steps:',
            "    run(steps)",
            "assert 0 < steps.throughput <= 512 / 0.002",
            "assert steps.time >= 0.002",
            "assert steps.time.p95 >= steps.time.min >= 0.002",
            'assert 0 <= steps["data.wait_fraction"] < 0.9',
            'assert steps["phase.forward"] >= 0.001',
            'assert not steps.has("mfu")',
            'assert "5 of 6 steps counted (1 warm-up), 512 token a step"'
            " in steps.report()",
        )
    )
    ended = project.run("--gpuperf-json=run.json")

    ended.assert_outcomes(passed=1)
    (record,) = project.report()["records"]
    assert record["kind"] == "steps"
    assert record["steps"]["counted_count"] == 5
    assert [phase["name"] for phase in record["steps"]["phases"]][-1] == "data"
    assert len(record["series"]) == 3


def test_the_summary_shows_the_loop(project: Project) -> None:
    """What an ML engineer asks first, below the table."""
    project.write(body("with gpuperf.steps() as steps:", "    run(steps)"))
    ended = project.run()

    assert lines(ended, "test_it: 5 of 6 steps counted")
    for word in ("throughput", "step ", "data wait", "coverage", "forward", "gemm"):
        assert lines(ended, f"    {word}"), word
    assert lines(ended, "not measured: ", "idle share (the host's clock")
    assert lines(ended, "grade (it needs hardware=Hardware(…))")


def test_limits_are_held_against_the_loop(project: Project) -> None:
    """Those of the catalogue, and those of its phases."""
    limits = (
        "throughput >= 1 /s",
        "time.p95 <= 5 s",
        "data.wait_fraction <= 99 %",
        "phase.forward <= 5 s",
    )
    project.write(
        body(
            "with gpuperf.steps() as steps:",
            "    run(steps)",
            marker=f"@pytest.mark.gpuperf(limits={limits!r}, records=['phase.forward'])",
        )
    )
    project.run("--gpuperf-json=run.json").assert_outcomes(passed=1)

    assert project.outcomes() == {("test_it", "passed")}


def test_a_limit_that_is_missed_fails(project: Project) -> None:
    """A throughput that no loop of 2 ms steps can have."""
    project.write(
        body(
            "with gpuperf.steps(units=10) as steps:",
            "    run(steps)",
            marker='@pytest.mark.gpuperf(limits=["throughput >= 100000 /s"])',
        )
    )
    ended = project.run("--gpuperf-confirm=0")

    ended.assert_outcomes(failed=1)
    assert lines(ended, "throughput failed", "limit throughput >= 100000 /s")
    assert lines(ended, "5 of 6 steps counted (1 warm-up), 10 unit a step")


def test_a_loop_has_a_baseline(project: Project) -> None:
    """Stored, and compared like any other measurement."""
    test = body(
        "with gpuperf.steps() as steps:",
        "    run(steps)",
        marker='@pytest.mark.gpuperf(max_regression={"throughput": "300 %"})',
    )
    project.store(test)
    ended = project.run("--gpuperf-baseline=.gpuperf", "--gpuperf-json=run.json")

    ended.assert_outcomes(passed=1)
    assert project.outcomes() == {("test_it", "unchanged")}


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ('assert steps.scorecard.grade >= "B"', "scorecard.grade F >= 'B'"),
        ('assert "B" <= steps.scorecard.grade', "'B' <= scorecard.grade F"),
        ("assert steps.scorecard.efficiency > 0.5", "scorecard.efficiency 0."),
        (
            'assert steps.scorecard.grade == "F" and steps.scorecard.efficiency > 0.5',
            "scorecard.efficiency 0.",
        ),
    ],
)
def test_a_value_of_a_scorecard_is_asserted_as_any_measured_one(
    project: Project, statement: str, said: str
) -> None:
    """The test *failed* by it, and the line says the value; its type has no address."""
    project.write(
        body(
            "with gpuperf.steps(units=2, hardware=HARDWARE) as steps:",
            "    run(steps)",
            statement,
        ),
    )
    ended = project.run("--gpuperf-json=run.json")

    ended.assert_outcomes(failed=1)
    assert lines(ended, "E  ", "assert ", said)
    assert lines(ended, "judged 1 of 1: 1 failed its own assert")
    assert not lines(ended, " object at ")
    assert project.report()["broken"] == []


def test_an_assert_on_any_other_object_asks_for_none_of_its_texts(
    project: Project,
) -> None:
    """Its repr may take long or raise: pytest alone decides whether to show it."""
    project.write(
        body(
            "class Heavy:",
            "    __hash__ = None",
            "    def __eq__(self, other): return False",
            "    def __str__(self): raise SystemExit(9)",
            "    def __repr__(self): return 'heavy'",
            "with gpuperf.steps(units=2, hardware=HARDWARE) as steps:",
            "    run(steps)",
            'assert steps.scorecard.grade <= "D"',
            "assert Heavy() == 1",
        ),
    )

    project.run().assert_outcomes(failed=1)


def test_an_assert_beside_a_scorecard_is_not_of_it(project: Project) -> None:
    """A grade that held has not failed a test."""
    project.write(
        body(
            "with gpuperf.steps(units=2, hardware=HARDWARE) as steps:",
            "    run(steps)",
            'assert steps.scorecard.grade <= "D"',
            "assert [] == [1]",
        ),
    )
    ended = project.run("--gpuperf-json=run.json")

    ended.assert_outcomes(failed=1)
    assert project.report()["broken"] == ["test_it.py::test_it"]


def test_the_grade_of_a_loop_needs_the_hardware(project: Project) -> None:
    """With it a letter that compares; without it unmeasured, and never a pass."""
    project.write(
        body(
            "with gpuperf.steps(units=2, hardware=HARDWARE) as steps:",
            "    run(steps)",
            'assert steps.scorecard.grade == "F"',
            'assert steps.scorecard.bottleneck.value == "memory_bw"',
            'assert steps.profile.phases["forward"].pct > 0',
        ),
        "test_known.py",
    )
    project.write(
        body(
            "with gpuperf.steps() as steps:",
            "    run(steps)",
            "assert steps.scorecard.coverage > 0",
            "try:",
            '    assert steps.scorecard.grade >= "B"',
            "except Exception:",
            "    pass",
        ),
        "test_unknown.py",
    )
    ended = project.run("-rs")

    ended.assert_outcomes(passed=1, skipped=1)
    assert lines(ended, "grade", "F (training scorecard")
    assert lines(ended, "SKIPPED", "unmeasured: scorecard.grade", "hardware=Hardware(")


@pytest.mark.parametrize("name", ["grade", "efficiency"])
def test_a_loop_above_the_roof_has_no_grade(project: Project, name: str) -> None:
    """Faster than the hardware allows: what it allows is wrong, and nothing passes."""
    project.write(
        body(
            "from pytest_gpuperf import Hardware",
            "low = Hardware(peak_bw_gb_s=1.0, bytes_per_token=1e9)",
            "with gpuperf.steps(hardware=low) as steps:",
            "    run(steps)",
            f"assert steps.scorecard.{name}",
        )
    )
    ended = project.run("-rs")

    ended.assert_outcomes(skipped=1)
    assert lines(ended, f"unmeasured: scorecard.{name}", "as fast as its hardware")


@pytest.mark.parametrize(
    ("peak", "grade", "outcome"),
    [(1.0, "A", "inconclusive"), (4000.0, "A", "failed"), (4000.0, "F", "passed")],
)
def test_a_least_grade_is_held_against_the_grade_of_a_loop(
    project: Project, peak: float, grade: str, outcome: str
) -> None:
    """It is a limit on the throughput, by what the hardware allows."""
    hardware = f"Hardware(peak_bw_gb_s={peak}, bytes_per_token=1e9)"
    project.write(
        body(
            f"with gpuperf.steps(hardware={hardware}) as steps:",
            "    run(steps)",
            marker=f'@pytest.mark.gpuperf(min_grade="{grade}")',
        )
    )
    ended = project.run("--gpuperf-json=run.json", "--gpuperf-confirm=0")
    (verdict,) = project.report()["verdicts"]
    (record,) = project.report()["records"]

    assert project.outcomes() == {("test_it", outcome)}
    assert verdict["metric"] == "throughput"
    assert (record["steps"]["grade"] == "A") is (peak == 1.0)
    if outcome == "failed":
        said = f'limit min_grade="{grade}" (0.6 x the bandwidth bound, throughput >= '
        assert lines(ended, "throughput failed", f"{said}2400 /s)")


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (
            ("    run(steps)",),
            "the peak bandwidth or the bytes of a unit of work are not known",
        ),
        (
            ("    run(steps)", "    raise StopIteration"),
            "the loop was ended by StopIteration after 6 steps; let the loop run",
        ),
    ],
)
def test_a_least_grade_of_a_loop_without_one_is_unmeasured(
    project: Project, statements: tuple[str, ...], reason: str
) -> None:
    """With the reason and what to do, and without a word of the roofs of calls."""
    project.write(
        body(
            "import contextlib",
            "with contextlib.suppress(StopIteration), gpuperf.steps() as steps:",
            *statements,
            marker='@pytest.mark.gpuperf(min_grade="B")',
        )
    )
    ended = project.run("-rs", "--gpuperf-json=run.json")

    assert project.outcomes() == {("test_it", "unmeasured")}
    assert lines(ended, "SKIPPED", "unmeasured: scorecard.grade", reason)
    assert not lines(ended, "the roof")


ADVISER = """
    from pytest_gpuperf.model.scorecard import Recommendation


    def pytest_gpuperf_recommendations(scorecard, profile):
        {body}
"""


def test_other_plugins_advise_on_a_loop(project: Project) -> None:
    """What they return stands behind the advice of the scorecard's own, asked for once."""
    text = 'f"{profile.steps} steps, grade {scorecard.grade}"'
    project.write(
        ADVISER.format(body=f'return [Recommendation(rule="mine", text={text})]'),
        "conftest.py",
    )
    project.write(ADVISER.format(body="return None"), "sub/conftest.py")
    project.write(
        body(
            "with gpuperf.steps(hardware=HARDWARE) as steps:",
            "    run(steps)",
            "*own, theirs = steps.scorecard.recommendations",
            'assert (theirs.rule, theirs.text) == ("mine", "5 steps, grade F")',
            'assert "mine" not in [each.rule for each in own]',
            "assert steps.scorecard is steps.scorecard",
        ),
        "sub/test_it.py",
    )

    project.run().assert_outcomes(passed=1)


def test_advice_comes_without_hardware_too(project: Project) -> None:
    """The scorecard is the measured one then."""
    advice = "return [Recommendation(text=type(scorecard).__name__)]"
    project.write(ADVISER.format(body=advice), "conftest.py")
    project.write(
        body(
            "with gpuperf.steps() as steps:",
            "    run(steps)",
            "advice = steps.scorecard.recommendations",
            'assert advice[-1].text == "MeasuredScorecard"',
        )
    )

    project.run().assert_outcomes(passed=1)


def test_advice_that_is_none_is_an_error(project: Project) -> None:
    """It names the hook and all that is wrong, and says what to return."""
    project.write(
        ADVISER.format(body='return ["do more", Recommendation(text=3)]'), "conftest.py"
    )
    project.write(ADVISER.format(body="return 42"), "sub/conftest.py")
    project.write(
        body(
            "with gpuperf.steps() as steps:",
            "    run(steps)",
            "steps.scorecard",
        ),
        "sub/test_it.py",
    )
    ended = project.run()

    ended.assert_outcomes(failed=1)
    assert lines(
        ended, "RecordError: pytest_gpuperf_recommendations: ", "42 is not a list"
    )
    assert lines(ended, "'do more' is not a Recommendation", "3 is not the text of a")
    assert lines(ended, "return a list of Recommendation(text=")


def test_what_was_not_measured_makes_a_test_unmeasured(project: Project) -> None:
    """With the reason and what to do about it."""
    project.write(
        body(
            "with gpuperf.steps() as steps:",
            "    run(steps)",
            "assert steps.mfu > 0.3",
        )
    )
    ended = project.run("-rs")

    ended.assert_outcomes(skipped=1)
    assert lines(ended, "SKIPPED", "mfu: the test declares no FLOP of a step")


# steps that do not count


def test_a_step_that_raised_is_told(project: Project) -> None:
    """The test caught it: the others count, and the note says which does not."""
    project.write(
        body(
            "with gpuperf.steps() as steps:",
            "    run(steps)",
            "    try:",
            "        with steps.step():",
            '            raise ValueError("a bad batch")',
            "    except ValueError:",
            "        pass",
            "assert steps.throughput > 0",
        )
    )
    ended = project.run()

    ended.assert_outcomes(passed=1)
    assert lines(ended, "5 of 7 steps counted (1 warm-up, 1 void)")
    assert lines(
        ended, "1 of the steps did not count (step 6: ValueError was raised in it)"
    )


def test_a_loader_that_raises_fails_the_test_and_keeps_the_steps(
    project: Project,
) -> None:
    """Its own exception; what was measured until then is in the report, void."""
    project.write(
        body(
            "def loader():",
            "    yield from range(4)",
            '    raise OSError("the disk is gone")',
            "with gpuperf.steps() as steps:",
            "    for _ in steps.data(loader()):",
            "        with steps.step():",
            "            time.sleep(0.001)",
        )
    )
    ended = project.run("--gpuperf-json=run.json")

    ended.assert_outcomes(failed=1)
    assert lines(ended, "OSError: the disk is gone")
    (record,) = project.report()["records"]
    assert record["void"]["text"] == "the loop was ended by OSError after 4 steps"
    assert record["steps"]["counted_count"] == 3


def test_a_loop_whose_exception_was_swallowed_is_void(project: Project) -> None:
    """Reading a value of it is not a pass."""
    project.write(
        body(
            "with pytest.raises(OSError):",
            "    with gpuperf.steps() as steps:",
            "        run(steps)",
            "        raise OSError",
            "assert steps.throughput > 0",
        )
    )
    ended = project.run("-rs")

    ended.assert_outcomes(skipped=1)
    assert lines(ended, "SKIPPED", "the loop was ended by OSError")


# misuse


@pytest.mark.parametrize(
    ("statements", "told"),
    [
        (("with gpuperf.steps() as steps:", "    pass"), "recorded no step"),
        (
            ("with gpuperf.steps(warmup=9) as steps:", "    run(steps)"),
            "all 6 steps of the loop are for warming up (warmup=9)",
        ),
        (
            (
                "with gpuperf.steps() as steps:",
                "    with steps.step(), steps.step():",
                "        pass",
            ),
            "a step cannot begin inside another step",
        ),
        (
            (
                "with gpuperf.steps() as steps:",
                '    with steps.phase("forward"):',
                "        pass",
            ),
            "phase 'forward' is outside of every step",
        ),
        (
            (
                "with gpuperf.steps() as steps:",
                "    run(steps)",
                "with steps.step():",
                "    pass",
            ),
            "a step is outside of its loop",
        ),
        (
            (
                "with gpuperf.steps() as steps:",
                "    run(steps)",
                "    steps.throughput",
            ),
            "has not ended; read its values after the with block",
        ),
        (
            (
                "for _ in range(2):",
                '    with gpuperf.steps(name="epoch") as steps:',
                "        run(steps)",
            ),
            "this test already has a measurement called 'epoch'",
        ),
        (
            ("with gpuperf.steps() as steps:", "    run(steps)", "steps.thruput"),
            "unknown metric 'thruput'",
        ),
        (
            (
                "with gpuperf.steps() as steps:",
                "    run(steps)",
                'steps["phase.forwards"]',
            ),
            "the loop recorded no phase.forwards; name one that is there: phase.",
        ),
        (
            ("def inner():", "    with gpuperf.steps(): pass", "gpuperf(inner)"),
            "a measurement cannot run inside another one",
        ),
    ],
)
def test_a_loop_that_has_no_meaning_is_an_error(
    project: Project, statements: tuple[str, ...], told: str
) -> None:
    """The test fails and says what to do: an empty loader is not a fast loop."""
    project.write(body(*statements))
    ended = project.run()

    ended.assert_outcomes(failed=1)
    assert lines(ended, told), ended.stdout.str()


def test_all_wrong_arguments_are_told_at_once(project: Project) -> None:
    """Each with its value, and nothing is measured."""
    project.write(
        body(
            "with gpuperf.steps(units=-1, unit='', warmup=-2, hardware='fast',"
            " synchronize='never'):",
            "    pass",
        )
    )
    (line,) = lines(project.run(), "E ", "MeasureError")

    for told in (
        "units=-1 is not above zero",
        "unit='' is not a word",
        "warmup=-2 is not a number of steps",
        "hardware='fast' is neither Hardware(…) nor one of",
        "synchronize='never' is not one of step, span",
    ):
        assert told in line


@pytest.mark.parametrize(
    "argument",
    [
        'units="8192"',
        "units=True",
        "units=float('nan')",
        "units=[1]",
        "unit=3",
        "unit='\\ud800'",
        "warmup=1.5",
        "warmup=True",
        "hardware=256",
        "synchronize=None",
        "work=1e9",
        "name=7",
    ],
)
def test_an_argument_of_another_type_is_refused(
    project: Project, argument: str
) -> None:
    """By its name."""
    project.write(body(f"with gpuperf.steps({argument}):", "    pass"))
    ended = project.run()

    ended.assert_outcomes(failed=1)
    assert lines(ended, "MeasureError: ", argument.partition("=")[0])


def test_a_loop_that_was_never_entered_measured_nothing(project: Project) -> None:
    """Without its with block there is no loop; the test is unmeasured."""
    project.write(body("gpuperf.steps(units=8)"))
    ended = project.run("-rs")

    ended.assert_outcomes(skipped=1)
    assert lines(ended, "SKIPPED", "the test never measured anything")


def test_several_loops_of_a_test_have_names(project: Project) -> None:
    """Each is a measurement of its own."""
    project.write(
        body(
            'for name in ("train", "evaluate"):',
            "    with gpuperf.steps(name=name, warmup=0) as steps:",
            "        run(steps, 3)",
        )
    )
    ended = project.run()

    ended.assert_outcomes(passed=1)
    assert lines(ended, "test_it train: 3 of 3 steps counted")
    assert lines(ended, "test_it evaluate: 3 of 3 steps counted")


# where nothing is measured, or elsewhere


def test_a_disabled_loop_runs_unmeasured(project: Project) -> None:
    """Its body runs; a value that is asked for skips the test."""
    project.write(
        body(
            "with gpuperf.steps() as steps:",
            "    run(steps)",
            'print("the body ran")',
            "assert steps.throughput > 1e9",
        )
    )
    ended = project.run("--gpuperf-disable", "-rs", "-s")

    ended.assert_outcomes(skipped=1)
    assert lines(ended, "the body ran")
    assert lines(ended, "SKIPPED", "disabled: throughput")


@pytest.mark.parametrize(
    "asked", ['steps["phase.forward"]', "steps.summary", "steps.profile"]
)
def test_what_an_unmeasured_loop_recorded_is_unmeasured(
    project: Project, asked: str
) -> None:
    """It has no phase by any name, so no name is wrong."""
    project.write(
        body(
            "with gpuperf.steps() as steps:",
            "    run(steps)",
            f"assert {asked}",
        )
    )
    ended = project.run("--gpuperf-disable", "-rs")

    ended.assert_outcomes(skipped=1)
    assert lines(ended, "SKIPPED", "disabled")


def test_an_unmeasured_loop_refuses_names_of_no_metric(project: Project) -> None:
    """A mistake in a name is told wherever the test runs."""
    project.write(
        body(
            "with gpuperf.steps() as steps:",
            "    run(steps)",
            'assert steps["part.forward"]',
        )
    )
    ended = project.run("--gpuperf-disable")

    ended.assert_outcomes(failed=1)
    assert lines(ended, "UnknownMetricError", "part.forward")


def test_a_recorded_loop_is_judged_again(project: Project) -> None:
    """With its summary, scorecard and all; this machine's own steps do not matter."""
    test = body(
        "with gpuperf.steps(units=2, hardware=HARDWARE) as steps:",
        "    run(steps, int(__import__('os').environ.get('COUNT', 6)))",
        'assert steps.scorecard.grade >= "F"',
        "assert steps.time.p95 > 0",
    )
    project.write(test)
    project.run("--gpuperf-record=kept", "--gpuperf-json=run.json")
    measured = values(project)
    project.environment.setenv("COUNT", "0")  # no data set on this machine
    again = project.run("--gpuperf-replay=kept", "--gpuperf-json=run.json")

    again.assert_outcomes(passed=1)
    assert values(project) == measured
    assert lines(again, "test_it: 5 of 6 steps counted")


def test_a_loop_travels_from_a_worker(project: Project) -> None:
    """Its summary does; its samples come from the worker's own file."""
    project.write(
        body(
            "with gpuperf.steps(units=2, hardware=HARDWARE) as steps:",
            "    run(steps)",
            "assert steps.throughput > 0",
        )
    )
    ended = project.run(*XDIST, "-n2", "--gpuperf-json=run.json")

    ended.assert_outcomes(passed=1)
    assert lines(ended, "test_it: 5 of 6 steps counted")
    (record,) = project.report()["records"]
    assert record["steps"]["grade"] == "F"
    assert len(record["series"][0]["values"]) == 5


def test_a_run_with_a_loop_is_a_markdown_report(project: Project) -> None:
    """The names of the test's own are code, and break no table."""
    from pytest_gpuperf.model.codec import decode_run
    from pytest_gpuperf.report.runs import run_markdown

    project.write(
        body(
            "with gpuperf.steps() as steps:",
            "    run(steps)",
            '    with steps.step(), steps.phase("a|b\\n`c`"):',
            "        time.sleep(0.001)",
        )
    )
    project.run("--gpuperf-json=run.json")
    run = decode_run((project.path / "run.json").read_bytes())
    text = run_markdown(run)

    assert "#### `test_it`: 6 of 7 steps counted" in text
    table = text[text.index("| phase") :].split("\n\n")[0].splitlines()
    # a cell may hold a bar that is escaped; the row has as many cells as its head
    cells = {line.replace("\\|", "").count("|") for line in table}
    assert len(cells) == 1


def test_a_value_of_the_scorecard_is_named_where_it_is(project: Project) -> None:
    """A loop has a grade, but not as one of its metrics."""
    body = "with gpuperf.steps() as steps:"
    project.write(f"""
        def test_grade(gpuperf):
            {body}
                for _ in range(3):
                    with steps.step():
                        pass
            assert steps.grade >= "A"
    """)

    assert lines(project.run(), "AttributeError: grade belongs to the scorecard: write")


def test_wrong_hardware_alone_is_answered_with_hardware(project: Project) -> None:
    """The way to state other arguments does not help."""
    project.write("""
        def test_it(gpuperf):
            with gpuperf.steps(hardware="H100"):
                pass
    """)

    assert lines(project.run(), "'H100' is neither Hardware", "; pass Hardware(")
