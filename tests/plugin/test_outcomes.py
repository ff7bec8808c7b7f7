"""What becomes of a test, by what it measured."""

from __future__ import annotations

import pytest

from fakes.project import XDIST, Project, lines
from pytest_gpuperf.report.lines import text_bytes

STEADY = """
    import pytest

    def work():
        return 42

    @pytest.mark.gpuperf(limits=["time <= 3600 s"], iterations=3)
    def test_passes(gpuperf):
        assert gpuperf(work) == 42

    @pytest.mark.gpuperf(limits=["time <= 0.001 ns"], iterations=3)
    def test_too_slow(gpuperf):
        gpuperf(work)
"""


def test_a_limit_that_is_missed_fails_its_test(project: Project) -> None:
    """One case and one failure, its message the verdict; the other test passes."""
    project.write(STEADY)
    ended = project.run("--junitxml=junit.xml")
    cases = project.junit()

    assert ended.ret == 1
    assert cases == [("test_passes",), ("test_too_slow", "failure")]
    assert cases[1].message.startswith("time failed: ")
    assert ended.parseoutcomes() == {"passed": 1, "failed": 1}
    assert lines(ended, "judged 2 of 2: 1 failed, 1 passed")


def test_what_cannot_be_measured_is_skipped_with_its_reason(project: Project) -> None:
    """No value is never a pass: the skip names the metric, the reason and the remedy."""
    project.write(
        """
        def test_counter(gpuperf):
            perf = gpuperf.measure(int)
            assert perf["dram__bytes.sum"] <= 1
        """
    )
    ended = project.run("-rs", "--junitxml=junit.xml")
    (case,) = project.junit()

    assert ended.ret == 0
    assert case == ("test_counter", "skipped")
    assert "unmeasured: dram__bytes.sum: a counter is read only" in case.message
    assert lines(ended, "SKIPPED [1] test_it.py:2: unmeasured: dram__bytes.sum")


def test_what_cannot_be_measured_fails_a_strict_run(project: Project) -> None:
    """With --gpuperf-strict the same test is a failure with the same words."""
    project.write(
        """
        def test_counter(gpuperf):
            perf = gpuperf.measure(int)
            assert perf["dram__bytes.sum"] <= 1
        """
    )
    ended = project.run("--gpuperf-strict", "--junitxml=junit.xml")
    (case,) = project.junit()

    assert ended.ret == 1
    assert case == ("test_counter", "failure")
    assert case.message.startswith("unmeasured: dram__bytes.sum: a counter is read")


SWALLOWED = """
    import contextlib
    import pytest

    def test_except(gpuperf):
        perf = gpuperf.measure(int)
        try:
            perf.energy
        except Exception:
            pass

    def test_raises(gpuperf):
        perf = gpuperf.measure(int)
        with pytest.raises(Exception):
            perf.energy

    def test_suppressed(gpuperf):
        perf = gpuperf.measure(int)
        with contextlib.suppress(Exception):
            assert not (perf["energy"] > 3)

    def test_in_a_helper(gpuperf):
        def energy(perf):
            try:
                return float(perf.energy)
            except Exception:
                return 0.0
        assert energy(gpuperf.measure(int)) == 0
"""


def test_a_swallowed_refusal_is_remembered(project: Project) -> None:
    """A test that hides that a value was not there is unmeasured, not passed."""
    project.write(SWALLOWED)
    ended = project.run("-rs")

    assert ended.parseoutcomes() == {"skipped": 4}
    assert len(lines(ended, "unmeasured: energy: only nvml measures it")) == 4


def test_asking_first_is_not_held_against_a_test(project: Project) -> None:
    """`perf.has` is how an optional value is read."""
    project.write(
        """
        def test_it(gpuperf):
            perf = gpuperf.measure(int)
            assert not perf.has("energy")
            assert perf.has("time")
        """
    )

    assert project.run().parseoutcomes() == {"passed": 1}


@pytest.mark.parametrize(
    ("arguments", "is_shown"),
    [((), True), (("-rs",), False), (("--gpuperf-strict",), False)],
)
def test_a_run_says_how_to_see_what_an_unmeasured_test_needs(
    project: Project, arguments: tuple[str, ...], is_shown: bool
) -> None:
    """pytest prints why a test was skipped only on request, and why it failed always."""
    project.write("def test_it(gpuperf): pass")
    ended = project.run(*arguments)

    shown = lines(ended, "pytest -rs prints what each unmeasured test needs")
    assert bool(shown) is is_shown


def test_a_test_that_measures_nothing_is_unmeasured(project: Project) -> None:
    """Who takes the fixture and never calls it has nothing to show for it."""
    project.write("def test_it(gpuperf):\n    pass\n")
    ended = project.run("-rs")

    assert ended.parseoutcomes() == {"skipped": 1}
    assert lines(ended, "unmeasured: the test never measured anything")


@pytest.mark.parametrize(
    ("marker", "metric"),
    [
        ('limits=["time <= 1 ms"]', "time: "),
        ('min_grade="B"', 'min_grade="B" is a fraction of the roof: '),
    ],
)
def test_a_limit_of_a_test_that_measures_nothing_says_the_same(
    project: Project, marker: str, metric: str
) -> None:
    """The last line counts the reason that -rs shows, and neither names another one."""
    project.write(
        f"""
        import pytest

        @pytest.mark.gpuperf({marker})
        def test_it(gpuperf): pass
        """
    )
    ended = project.run("-rs")
    why = "the test never measured anything"

    assert lines(ended, "SKIPPED", f"{metric}{why}; call gpuperf.measure(fn, …) in it")
    (judged,) = lines(ended, "judged 0 of 1: 1 unmeasured (")
    assert judged.endswith(f"{why})")
    assert not lines(ended, "gave no value")


@pytest.mark.parametrize(
    ("call", "raised"),
    [
        ("gpuperf.measure(lambda: 1 / 0)", "ZeroDivisionError: division by zero"),
        ("gpuperf(lambda: int('x\\ny'))", "ValueError: invalid literal for int()"),
        ("gpuperf.compare(int, lambda: [][1])", "IndexError: list index out of range"),
        ("gpuperf.measure(3)", "pytest_gpuperf.errors.MeasureError: fn"),
        ("gpuperf.capture('no.ncu-rep')", "no.ncu-rep: it cannot be read"),
        ("with gpuperf.range('a'): raise KeyError(1)", "KeyError: 1"),
    ],
)
def test_a_measurement_that_raised_is_why_nothing_was_measured(
    project: Project, call: str, raised: str
) -> None:
    """A test that catches it did measure, in vain: it is told what came of it."""
    project.write(
        f"""
        import pytest

        @pytest.mark.gpuperf(limits=["time <= 1 ms"])
        def test_it(gpuperf):
            try:
                {call}
            except Exception:
                pass
        """
    )
    ended = project.run("-rs")

    assert ended.parseoutcomes() == {"skipped": 1}
    assert lines(ended, "the test caught the exception of its measurement (", raised)
    assert not lines(ended, "never measured anything")


def test_an_error_of_the_body_stays_what_it_is(project: Project) -> None:
    """Neither a limit nor a missing value takes the place of an exception."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["energy <= 1 J", "time <= 1 ns"])
        def test_it(gpuperf):
            gpuperf(int)
            raise ZeroDivisionError("mine")

        def test_inside(gpuperf):
            def broken():
                raise ZeroDivisionError("inside")
            gpuperf(broken)
        """
    )
    ended = project.run("--gpuperf-strict")

    assert ended.parseoutcomes() == {"failed": 2}
    assert lines(ended, "FAILED", "test_it - ZeroDivisionError: mine")
    assert lines(ended, "FAILED", "test_inside - ZeroDivisionError: inside")


def test_failed_precedes_unmeasured(project: Project) -> None:
    """A test with a missed limit and a missing value fails, strict or not."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["energy <= 1 J", "time <= 0.001 ns"])
        def test_it(gpuperf):
            gpuperf(int)
        """
    )
    ended = project.run("--gpuperf-json=run.json")

    assert ended.parseoutcomes() == {"failed": 1}
    assert lines(ended, "FAILED", "time failed: ")
    assert project.outcomes() == {("test_it", "failed"), ("test_it", "unmeasured")}


def test_unmeasured_precedes_inconclusive_and_passed(project: Project) -> None:
    """A missing value skips a test that has a passed and a straddled limit too."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["energy <= 1 J", "time <= 3600 s"])
        def test_it(gpuperf):
            gpuperf(int)
        """
    )

    assert project.run().parseoutcomes() == {"skipped": 1}


def test_a_skipped_test_stays_skipped_in_its_own_words(project: Project) -> None:
    """A skip of the user's is not a verdict; strict mode does not fail it."""
    project.write(
        """
        import pytest

        @pytest.mark.skip(reason="not today")
        def test_marked(gpuperf):
            gpuperf(int)

        def test_called(gpuperf):
            gpuperf(int)
            pytest.skip("not here")
        """
    )
    ended = project.run("-rs", "--gpuperf-strict")

    assert ended.parseoutcomes() == {"skipped": 2}
    assert lines(ended, "not today")
    assert lines(ended, "not here")


def test_a_requirement_is_checked_before_fixtures_need_it(project: Project) -> None:
    """No GPU: the test is unmeasured and neither its fixtures nor its body run."""
    project.write(
        """
        import pytest

        @pytest.fixture
        def tensor():
            raise RuntimeError("CUDA is not here")

        @pytest.mark.gpuperf(requires=["cupti"])
        def test_it(gpuperf, tensor):
            raise RuntimeError("nor here")
        """
    )
    ended = project.run("-rs", "--junitxml=junit.xml")

    assert project.junit() == [("test_it", "skipped")]
    assert lines(ended, "unmeasured: requires: there is no GPU: ")


@pytest.mark.parametrize(
    "text",
    [
        """
        import pytest

        @pytest.mark.gpuperf(requires=["cupti"])
        def test_it(gpuperf):
            raise RuntimeError("never here")
        """,
        """
        import pytest

        @pytest.fixture
        def tensor(gpuperf):
            return gpuperf.device

        def test_it(gpuperf, tensor):
            raise RuntimeError("never here")
        """,
    ],
    ids=["requires", "fixture"],
)
def test_what_a_setup_lacks_is_a_failed_test_in_a_strict_run(
    project: Project, text: str
) -> None:
    """Unmeasured fails its test: one failure, not an error of its setup."""
    project.write(text)
    ended = project.run("--gpuperf-strict", "--junitxml=junit.xml")
    again = project.run("--lf", "--collect-only", "-q")

    assert ended.parseoutcomes() == {"failed": 1}
    assert project.junit() == [("test_it", "failure")]
    assert lines(ended, "FAILED test_it.py::test_it - unmeasured: ")
    assert lines(again, "::") == ["test_it.py::test_it"]


def test_changed_inputs_make_a_measurement_void(project: Project) -> None:
    """A function that changes its arguments is inconclusive; strict mode fails it."""
    project.write(
        """
        def empty(x):
            while x:
                x.pop()

        def test_it(gpuperf):
            gpuperf(empty, [0] * 1000)
        """
    )
    loose = project.run("--gpuperf-json=run.json")

    assert loose.parseoutcomes() == {"passed": 1}
    assert project.outcomes() == {("test_it", "inconclusive")}
    assert project.run("--gpuperf-strict").parseoutcomes() == {"failed": 1}


def test_an_output_buffer_leaves_a_measurement_valid(project: Project) -> None:
    """The calling convention of numpy and of kernels passes, in strict mode, too."""
    project.write(
        """
        import numpy as np
        import pytest

        @pytest.mark.gpuperf(limits=["time <= 1 s"])
        def test_it(gpuperf):
            x = np.arange(20_000.0)
            gpuperf.measure(np.sin, x, out=np.empty_like(x))
        """
    )
    ended = project.run("--gpuperf-strict", "--gpuperf-json=run.json", "-v")

    assert ended.parseoutcomes() == {"passed": 1}
    assert project.outcomes() == {("test_it", "passed")}
    assert lines(ended, "argument out (ndarray) is an output")


def test_a_list_sorted_in_place_is_named_with_its_time(project: Project) -> None:
    """The block says how much longer the first call had to work, and names out=."""
    project.write(
        """
        import random

        import pytest

        @pytest.mark.gpuperf(limits=["time <= 1 s"])
        def test_it(gpuperf):
            gpuperf.measure(list.sort, random.Random(1).sample(range(9_000), 9_000))
        """
    )
    ended = project.run("--gpuperf-strict")

    assert ended.parseoutcomes() == {"failed": 1}
    text = " ".join(line.strip() for line in ended.outlines)
    assert "a call on the original content takes" in text
    assert "the same buffer for an output (out=)" in text


def test_a_void_value_is_unmeasured_in_its_own_row(project: Project) -> None:
    """Whichever measurement of the test it is; no block calls it by another word."""
    project.write("""
        def empty(x):
            while x:
                x.pop()

        def test_it(gpuperf):
            gpuperf.measure(sorted, [3, 1, 2], name="good")
            assert gpuperf.measure(empty, [0] * 1000, name="bad").time < 1
    """)
    ended = project.run()

    (bad,) = lines(ended, "test_it bad")
    (good,) = lines(ended, "test_it good")
    assert bad.endswith("unmeasured")
    assert not good.endswith("unmeasured")
    assert not lines(ended, "inconclusive")


def test_a_void_value_cannot_be_asserted_on(project: Project) -> None:
    """Reading a void time raises: the assert never gets a number to compare."""
    project.write(
        """
        def empty(x):
            while x:
                x.pop()

        def test_it(gpuperf):
            perf = gpuperf.measure(empty, [0] * 1000)
            assert perf.time < 3600
        """
    )
    ended = project.run("-rs")

    assert ended.parseoutcomes() == {"skipped": 1}
    # one word for it: what was asked for in vain is not inconclusive as well
    assert "unmeasured" in ended.stdout.str()
    assert "inconclusive" not in ended.stdout.str()


def test_two_measurements_need_two_names(project: Project) -> None:
    """The second without a name is an error that says what to do."""
    project.write(
        """
        def test_two(gpuperf):
            gpuperf(int)
            gpuperf.measure(int, name="second")

        def test_twice(gpuperf):
            gpuperf(int)
            gpuperf(int)

        def test_numbers(gpuperf):
            gpuperf.record("ttft", 1)
            gpuperf.record("ttft", 2)

        def test_taken(gpuperf):
            gpuperf.record("time", 1)
        """
    )
    ended = project.run()

    assert ended.parseoutcomes() == {"passed": 1, "failed": 3}
    assert lines(
        ended, "FAILED", "test_twice", "already has a measurement without a name"
    )
    assert lines(ended, 'another name, as gpuperf.measure(fn, …, name="second")')
    assert lines(ended, "FAILED", "test_numbers", "'ttft' is already the name")
    assert lines(ended, "FAILED", "test_taken", "'time' is already the name")


def test_a_number_that_is_not_finite_is_refused(project: Project) -> None:
    """NaN and infinity are errors of the test, with the name of what it recorded."""
    project.write(
        """
        import pytest

        @pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0, -float("inf")]])
        def test_it(gpuperf, value):
            gpuperf.record("ttft", value)
        """
    )
    ended = project.run()

    assert ended.parseoutcomes() == {"failed": 3}
    assert len(lines(ended, "FAILED", "RecordError")) == 3


def test_the_marker_alone_measures_the_call(project: Project) -> None:
    """Without the fixture a limit is for the call of the test as one range."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["launches.count <= 3"])
        def test_it():
            pass
        """
    )
    ended = project.run("-rs")

    assert ended.parseoutcomes() == {"skipped": 1}
    assert lines(ended, "launches.count")


def test_a_limit_that_is_straddled_passes_with_a_note(project: Project) -> None:
    """Undecided passes; it says so; a strict run fails it."""
    project.write(
        """
        import os
        import pytest

        @pytest.mark.gpuperf(limits=["x <= 100"], max_regression="off")
        def test_it(gpuperf):
            gpuperf.record("x", float(os.environ["VALUE_x"]), better="lower")
        """
    )
    for value in (94, 97, 99):
        project.set_values(x=value)
        project.run("--gpuperf-update=new")
    loose = project.run("--gpuperf-confirm=0", "--gpuperf-json=run.json")
    strict = project.run("--gpuperf-confirm=0", "--gpuperf-strict")

    assert loose.parseoutcomes() == {"passed": 1}
    # its change is only shown
    assert project.outcomes() == {("test_it", "inconclusive"), ("test_it", "unchanged")}
    assert lines(loose, "judged 0 of 1: 1 inconclusive")
    assert strict.parseoutcomes() == {"failed": 1}


def test_disabled_runs_bodies_and_judges_nothing(project: Project) -> None:
    """Each test that measures runs its body, then is skipped as disabled."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["time <= 0.001 ns"])
        def test_limit(gpuperf):
            assert gpuperf(lambda: 42) == 42

        def test_assert(gpuperf):
            assert gpuperf.measure(int).time < 0

        def test_broken(gpuperf):
            assert gpuperf(lambda: 42) == 43
        """
    )
    ended = project.run("--gpuperf-disable", "-rs", "--gpuperf-strict")

    assert ended.parseoutcomes() == {"skipped": 2, "failed": 1}
    assert len(lines(ended, "SKIPPED", "disabled:")) == 2
    assert lines(ended, "SKIPPED", "time", "leave out --gpuperf-disable")
    assert lines(ended, "gpuperf:", "disabled")


def test_what_is_switched_off_in_the_ini_file_is_switched_on_there(
    project: Project,
) -> None:
    """The remedy names both places: which of them it was nobody knows."""
    project.write("[pytest]\ngpuperf_disable = true\n", name="pytest.ini")
    project.write("def test_it(gpuperf):\n    pass\n")
    ended = project.run("-rs")

    assert lines(ended, "SKIPPED", "or gpuperf_disable in the ini file")


def test_too_few_judged_fails_the_run(project: Project) -> None:
    """No test fails, and pytest returns 1 with the reason."""
    project.write(STEADY)
    ended = project.run("--gpuperf-min-judged=80%", "-k", "passes")
    assert (ended.ret, ended.parseoutcomes()["passed"]) == (0, 1)

    project.write("def test_it(gpuperf):\n    gpuperf(int)\n")
    ended = project.run("--gpuperf-min-judged=80%")
    assert (ended.ret, ended.parseoutcomes()) == (1, {"passed": 1})
    assert lines(ended, "judged 0 of 1 test; --gpuperf-min-judged=80% requires 1")


def test_a_named_baseline_that_judges_nothing_fails_the_run(project: Project) -> None:
    """A gate is never silently off: `nothing was compared`, unless the run updates."""
    project.write("def test_it(gpuperf):\n    gpuperf.record('x', 1)\n")
    stored = project.run("--gpuperf-baseline=base", "--gpuperf-update=new")
    ended = project.run("--gpuperf-baseline=base")

    assert stored.ret == 0
    assert (ended.ret, ended.parseoutcomes()) == (1, {"passed": 1})
    assert lines(ended, "a baseline was named, but no test was compared with it")


def test_a_failing_plain_assert_is_explained(project: Project) -> None:
    """The value, its unit, its samples and its source stand below the assert."""
    project.write(
        """
        from pytest_gpuperf import us

        def test_it(gpuperf):
            perf = gpuperf.measure(sorted, [3, 2, 1])
            assert perf.time <= 1e-6 * us
        """
    )
    ended = project.run()

    assert ended.parseoutcomes() == {"failed": 1}
    assert lines(ended, "E", "assert", "time")
    assert lines(ended, "E", "samples")
    assert lines(ended, "E", "host")


def test_a_limit_in_another_unit_than_was_recorded_fails_its_test(
    project: Project,
) -> None:
    """The author's own mistake is told with its remedy, and none of our code is shown."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["ttft <= 5 MB"])
        def test_it(gpuperf):
            gpuperf.record("ttft", 0.1, unit="s")
        """
    )
    ended = project.run()

    assert ended.parseoutcomes() == {"failed": 1}
    assert lines(
        ended, "FAILED", "ttft is in s, its limit in bytes; write the limit in s"
    )
    assert lines(ended, "def _hold_limits") == []


def test_an_expected_failure_is_no_failure_of_the_run(project: Project) -> None:
    """A missed limit of an xfail test is judged and counted by pytest's own word."""
    project.write(
        """
        import pytest

        @pytest.mark.xfail(reason="known")
        @pytest.mark.gpuperf(limits=["x <= 1"])
        def test_known(gpuperf):
            gpuperf.record("x", 5)

        @pytest.mark.gpuperf(limits=["x <= 1"])
        def test_kept(gpuperf):
            gpuperf.record("x", 1)
        """
    )
    ended = project.run("--gpuperf-json=run.json", "--gpuperf-min-judged=100%")

    assert (ended.ret, ended.parseoutcomes()) == (0, {"passed": 1, "xfailed": 1})
    assert lines(ended, "judged 2 of 2: 1 passed, 1 xfailed")
    assert lines(ended, "test_known x", "xfailed")
    assert lines(ended, "FAILED") == []
    assert ("test_known", "failed") in project.outcomes()
    assert project.report()["xfailed"] == ["test_it.py::test_known"]


TORN = """
    import os
    import pytest

    @pytest.fixture
    def thing():
        yield
        if "TORN" in os.environ:
            raise RuntimeError("in teardown")

    @pytest.mark.gpuperf(limits=["x <= 1"], max_regression={"x": "5 %"})
    def test_it(gpuperf, thing):
        gpuperf.record("x", float(os.environ.get("VALUE", "1")), better="lower")
"""
PARTED = """
    import os
    import pytest

    @pytest.mark.gpuperf(max_regression={"x": "5 %"})
    def test_it(gpuperf, subtests):
        gpuperf.record("x", 1.0, better="lower")
        for part in range(3):
            with subtests.test(part=part):
                assert part != 1 or "TORN" not in os.environ
"""


def test_a_test_that_fails_in_teardown_is_not_judged(project: Project) -> None:
    """It is an error beside a call that passed: no verdict, and nothing is stored."""
    project.store(TORN)
    (stored,) = project.path.glob(".gpuperf/*/test_it.json")
    sessions = stored.read_bytes()
    project.environment.setenv("TORN", "1")
    project.environment.setenv("VALUE", "0.5")
    ended = project.run("--gpuperf-update=all", "--gpuperf-json=run.json")

    assert ended.parseoutcomes() == {"passed": 1, "errors": 1}
    assert project.outcomes() == set()
    assert project.report()["broken"] == ["test_it.py::test_it"]
    assert lines(ended, "judged 0 of 1: 1 failed before being judged")
    assert stored.read_bytes() == sessions


def test_a_failing_teardown_is_blamed_on_no_plugin(project: Project) -> None:
    """What looked slower is withdrawn, and nobody has reported it as passed."""
    project.store(TORN.replace('limits=["x <= 1"], ', ""))
    project.environment.setenv("TORN", "1")
    project.environment.setenv("VALUE", "2")
    ended = project.run("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=0")

    assert ended.parseoutcomes() == {"passed": 1, "errors": 1}
    assert not lines(ended, "another plugin")
    assert lines(ended, "1 failed before being judged")


def test_a_missed_limit_stays_one_beside_a_failing_teardown(project: Project) -> None:
    """The call has failed by its verdict, whatever else fails."""
    project.write(TORN)
    project.environment.setenv("TORN", "1")
    project.environment.setenv("VALUE", "2")
    ended = project.run("--gpuperf-json=run.json")

    assert ended.parseoutcomes() == {"failed": 1, "errors": 1}
    assert project.outcomes() == {("test_it", "failed")}


@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="pytest 9 has subtests")
@pytest.mark.parametrize(
    "asked", ["--gpuperf-baseline=.gpuperf", "--gpuperf-update=all"]
)
@pytest.mark.parametrize("workers", [(), (*XDIST, "-n1")])
def test_a_test_with_a_failed_subtest_is_not_judged(
    project: Project, asked: str, workers: tuple[str, ...]
) -> None:
    """A part of it has failed: no verdict, and nothing is stored."""
    project.store(PARTED)
    before = project.run("--gpuperf-baseline=.gpuperf")
    (stored,) = project.path.glob(".gpuperf/*/test_it.json")
    sessions = stored.read_bytes()
    project.environment.setenv("TORN", "1")
    ended = project.run(asked, *workers, "--gpuperf-json=run.json")

    assert lines(before, "0 judged, 1 blind")
    assert ended.ret == 1
    assert project.outcomes() == set()
    assert lines(ended, "judged 0 of 1: 1 failed before being judged")
    assert stored.read_bytes() == sessions


@pytest.mark.parametrize("how", ["(int)", ".record('y', 1)", ".measure(int, name='y')"])
def test_a_measurement_in_teardown_is_refused(project: Project, how: str) -> None:
    """Nobody would learn of it: an error that names the test, and what to do."""
    project.write(
        f"""
        import pytest

        @pytest.fixture
        def thing(gpuperf):
            gpuperf.record("before", 1)
            yield
            gpuperf{how}

        def test_it(thing, gpuperf):
            pass
        """
    )
    ended = project.run()

    assert ended.parseoutcomes() == {"passed": 1, "errors": 1}
    assert lines(ended, "MeasureError: test_it.py::test_it measures in its teardown")
    assert lines(ended, "in a fixture before its yield")
    assert lines(ended, "judged 0 of 1: 1 failed before being judged")


def test_what_a_test_measured_is_freed_with_it(project: Project) -> None:
    """Samples and results go as the test ends: the garbage collector is not needed."""
    project.write(
        """
        import gc
        import weakref

        class Result:
            pass

        KEPT = []

        def test_measures(gpuperf):
            gc.disable()
            perf = gpuperf.measure(Result)
            KEPT.append(weakref.ref(perf.result))
            KEPT.append(weakref.ref(gpuperf.ledger))

        def test_after_it():
            found = [kept() for kept in KEPT]
            gc.enable()
            assert found == [None, None]
        """
    )
    assert project.run().parseoutcomes() == {"passed": 2}


def test_names_of_any_letters_leave_the_junit_file_well_formed(
    project: Project,
) -> None:
    """Pytest escapes what a property says, and not what it is called."""
    project.write("""
        def test_it(gpuperf):
            for name in ("a\\x1bb", "c\\x00", "d\\ufffe", "e<&>"):
                gpuperf.record(name, 1.0)
    """)
    project.run("--junitxml=junit.xml", "--gpuperf-junit-properties")
    (case,) = project.junit()

    for seen in (r"a\x1bb", r"c\x00", r"d\ufffe", "e<&>"):
        assert any(seen in name for name in case.properties)


def test_the_fixture_is_shown_by_its_test(project: Project) -> None:
    """A traceback of pytest prints the arguments of every test that fails."""
    project.write("def test_it(gpuperf):\n    assert 0\n")

    assert lines(project.run(), "gpuperf = <GpuPerf of test_it.py::test_it>")


@pytest.mark.parametrize("name", ["::error::x", "##[error]x"])
def test_no_line_is_a_command_of_a_ci_runner(project: Project, name: str) -> None:
    """Whoever names a metric cannot speak to the machine that runs the tests."""
    project.write(f"""
        def test_it(gpuperf):
            gpuperf.record({name!r}, 1.0)
    """)
    ended = project.run("-v", "--gpuperf-json=run.json")
    printed = text_bytes(f"  {line}" for line in (name, "a::b")).decode().splitlines()

    assert any(name[1:] in line for line in ended.outlines)
    for line in (*ended.outlines, *printed):
        assert not line.lstrip().startswith(("::", "##["))
    assert printed[1] == "  a::b"
