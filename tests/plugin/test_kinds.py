"""Tests of every kind that pytest knows measure and are held alike."""

from __future__ import annotations

import pytest

from fakes.project import XDIST, Project, lines

# a limit that fails while the test runs, and one that can only fail at the end
BOTH = [
    pytest.param(("--gpuperf-confirm=0",), id="logged-at-once"),
    pytest.param(("--gpuperf-strict",), id="held"),
]


@pytest.mark.parametrize("options", BOTH)
def test_methods_parameters_and_unittest_methods(
    project: Project, options: tuple[str, ...]
) -> None:
    """Each of them passes and fails by its own limit."""
    project.write(
        """
        import unittest
        import pytest

        @pytest.mark.gpuperf(limits=["x <= 1"])
        class TestPlain:
            @pytest.mark.parametrize("n", [1, 2])
            def test_it(self, gpuperf, n):
                gpuperf.record("x", n)

        class TestUnit(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def _take(self, gpuperf):
                self.gpuperf = gpuperf

            @pytest.mark.gpuperf(limits=["x <= 1"])
            def test_good(self):
                self.gpuperf.record("x", 1)

            @pytest.mark.gpuperf(limits=["x <= 1"])
            def test_bad(self):
                self.gpuperf.record("x", 2)

            @pytest.mark.gpuperf(limits=["launches.count <= 1"])
            def test_lacks(self):
                self.gpuperf.record("x", 2)
        """
    )
    ended = project.run(*options, "--junitxml=junit.xml")
    strict = "--gpuperf-strict" in options

    assert ended.ret == 1
    assert sorted(project.junit(), key=repr) == [
        ("test_bad", "failure"),
        ("test_good",),
        ("test_it[1]",),
        ("test_it[2]", "failure"),
        ("test_lacks", "failure" if strict else "skipped"),
    ]


def test_an_async_test_is_not_taken_for_a_measurement(project: Project) -> None:
    """Without a plugin that runs it, pytest refuses it, whatever its marker says."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["x <= 1"])
        async def test_it(gpuperf):
            gpuperf.record("x", 1)
        """
    )
    ended = project.run()

    assert "passed" not in ended.parseoutcomes()
    assert lines(ended, "async def functions are not natively supported")


def test_what_can_be_awaited_is_refused(project: Project) -> None:
    """measure() never times the making of a coroutine."""
    project.write(
        """
        import functools
        import pytest

        async def work():
            return 42

        class Worker:
            async def __call__(self):
                return 42

        def lazy():
            return work()

        @pytest.mark.filterwarnings("ignore::RuntimeWarning")
        @pytest.mark.parametrize("fn", [work, Worker(), lazy, functools.partial(work)])
        def test_it(gpuperf, fn):
            gpuperf(fn)
        """
    )
    ended = project.run()

    assert ended.parseoutcomes()["failed"] == 4
    assert len(lines(ended, "FAILED", "MeasureError")) == 4


def test_a_doctest_is_left_alone(project: Project) -> None:
    """A doctest item has no fixture of ours and passes beside tests that measure."""
    project.write(
        '''
        def work():
            """
            >>> work()
            42
            """
            return 42

        def test_it(gpuperf):
            assert gpuperf(work) == 42
        '''
    )
    ended = project.run("--doctest-modules", "--gpuperf-strict")

    assert ended.parseoutcomes() == {"passed": 2}


def test_a_doctest_that_measures_is_measured(project: Project) -> None:
    """A doctest reaches the fixture through getfixture only where it is autouse."""
    project.write(
        """
        import pytest

        @pytest.fixture(autouse=True)
        def _namespace(doctest_namespace, gpuperf):
            doctest_namespace["gpuperf"] = gpuperf
        """,
        "conftest.py",
    )
    project.write(
        '''
        def work():
            """
            >>> gpuperf(lambda: 42)
            42
            """
        ''',
        "module.py",
    )
    ended = project.run("--doctest-modules", "--gpuperf-json=run.json")

    assert ended.parseoutcomes() == {"passed": 1}
    assert project.report()["header"]["completeness"]["reported_count"] == 1


XFAILED = """
    import pytest

    @pytest.mark.xfail(reason="known", strict={strict})
    @pytest.mark.gpuperf(limits=["x <= 1"])
    @pytest.mark.parametrize("n", [1, 2])
    def test_it(gpuperf, n):
        gpuperf.record("x", n)
"""


@pytest.mark.parametrize("options", BOTH)
def test_a_missed_limit_can_be_expected(
    project: Project, options: tuple[str, ...]
) -> None:
    """A limit fails in the test's own call: xfail sees it, and a strict xfail fails."""
    project.write(XFAILED.format(strict=False))
    assert project.run(*options).parseoutcomes() == {"xpassed": 1, "xfailed": 1}

    project.write(XFAILED.format(strict=True))
    assert project.run(*options).parseoutcomes() == {"failed": 1, "xfailed": 1}


@pytest.mark.parametrize("options", BOTH)
def test_who_passes_against_a_strict_mark_is_neither_judged_nor_stored(
    project: Project, options: tuple[str, ...]
) -> None:
    """pytest fails it, so that its value is that of a failed test, held or not."""
    project.write(XFAILED.format(strict=True))
    ended = project.run(*options, "--gpuperf-update=new", "--gpuperf-json=run.json")

    assert ended.parseoutcomes() == {"failed": 1, "xfailed": 1}
    assert "test_it[1]" not in dict(project.outcomes())
    assert lines(ended, "nothing was stored: 2 measurements (failed")


def test_a_missing_value_is_no_expected_failure(project: Project) -> None:
    """xfail does not hide that nothing was measured."""
    project.write(
        """
        import pytest

        @pytest.mark.xfail(reason="known")
        def test_read(gpuperf):
            assert gpuperf.measure(int).energy < 1

        @pytest.mark.xfail(reason="known", strict=True)
        @pytest.mark.gpuperf(limits=["energy <= 1 J"])
        def test_limit(gpuperf):
            gpuperf(int)
        """
    )
    ended = project.run("-rs", "--junitxml=junit.xml")

    assert ended.parseoutcomes() == {"skipped": 2}
    assert len(lines(ended, "SKIPPED", "unmeasured: ")) == 2


def test_a_test_that_calls_xfail_is_xfailed(project: Project) -> None:
    """An imperative xfail is the user's own word."""
    project.write(
        """
        import pytest

        def test_it(gpuperf):
            gpuperf(int)
            pytest.xfail("not yet")
        """
    )

    assert project.run("--gpuperf-strict").parseoutcomes() == {"xfailed": 1}


def test_subtests_of_unittest_do_not_lose_the_test(project: Project) -> None:
    """A unittest with subTest is one test that measures."""
    project.write(
        """
        import unittest
        import pytest

        class TestUnit(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def _take(self, gpuperf):
                self.gpuperf = gpuperf

            def test_it(self):
                for n in range(3):
                    with self.subTest(n=n):
                        self.gpuperf.record(f"x{n}", n)
        """
    )
    ended = project.run("--gpuperf-json=run.json")

    assert ended.ret == 0
    assert len(project.report()["records"]) == 3


ENDS = """
    import unittest

    import pytest

    LIMIT = pytest.mark.gpuperf(limits=["x <= 1 ms"], records=["x"])

    def record(gpuperf):
        gpuperf.record("x", 2e-3, unit="s", better="lower")

    @LIMIT
    def test_skipped(gpuperf):
        record(gpuperf)
        pytest.skip("late")

    @LIMIT
    def test_unittest_skip(gpuperf):
        record(gpuperf)
        raise unittest.SkipTest("late")

    @LIMIT
    def test_called_xfail(gpuperf):
        record(gpuperf)
        pytest.xfail("late")

    @LIMIT
    def test_lacked(gpuperf):
        record(gpuperf)
        assert gpuperf.measure(int).energy > 0

    @LIMIT
    @pytest.mark.xfail(raises=ZeroDivisionError, reason="late")
    def test_other_error_expected(gpuperf):
        record(gpuperf)
        1 / 0

    @pytest.fixture
    def measured(gpuperf):
        record(gpuperf)
        pytest.skip("late")

    @LIMIT
    def test_skipped_in_fixture(measured, gpuperf):
        pass

    @pytest.fixture
    def skips(gpuperf):
        yield
        pytest.skip("late")

    @LIMIT
    def test_skipped_in_teardown(skips, gpuperf):
        record(gpuperf)

    @LIMIT
    class TestCase(unittest.TestCase):
        @pytest.fixture(autouse=True)
        def take(self, gpuperf):
            self.gpuperf = gpuperf

        def test_case(self):
            record(self.gpuperf)
            self.skipTest("late")
"""


@pytest.mark.parametrize("options", [(), ("--gpuperf-strict",), (*XDIST, "-n1")])
def test_nothing_that_ends_a_test_hides_a_failed_limit(
    project: Project, options: tuple[str, ...]
) -> None:
    """What was measured is judged before a skip, an xfail or a missing value counts."""
    project.write(ENDS)
    ended = project.run(*options, "-rA")
    failed = lines(ended, "FAILED test_it.py::")

    assert ended.ret == 1
    assert len(failed) == 8
    assert lines(ended, "judged 8 of 8: 8 failed")
    assert lines(ended, "the test ended early, after this was measured: ", "late")


@pytest.mark.parametrize("options", [(), ("--gpuperf-strict",)])
def test_a_kept_limit_leaves_what_ended_its_test(
    project: Project, options: tuple[str, ...]
) -> None:
    """A skip and an xfail stay what they are where nothing failed, and are judged."""
    project.write(ENDS.replace("2e-3", "1e-4"))
    ended = project.run(*options)
    kept = {"skipped": 6, "xfailed": 2, "passed": 1}
    if options:  # the missing value of test_lacked
        kept = {"skipped": 5, "xfailed": 2, "passed": 1, "failed": 1}

    assert ended.parseoutcomes() == kept
    assert lines(ended, "judged 7 of 8: 7 passed; 1 unmeasured")


def test_a_skip_is_not_told_what_else_it_would_have_measured(project: Project) -> None:
    """Of a test that its user skips, only what it did measure is judged."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["x <= 1 ms", "energy <= 1 J"])
        def test_it(gpuperf):
            gpuperf.record("x", 1e-4, unit="s", better="lower")
            try:
                gpuperf.measure(int).energy
            except Exception:
                pytest.skip("no sensor here")
        """
    )
    ended = project.run("--gpuperf-strict")

    assert (ended.ret, ended.parseoutcomes()) == (0, {"skipped": 1})
    assert lines(ended, "judged 1 of 1: 1 passed")


def test_an_expected_failure_includes_a_missed_limit(project: Project) -> None:
    """A mark without `raises` expects whatever fails, in the body or by a limit."""
    project.write(
        """
        import pytest

        @pytest.mark.xfail(reason="known")
        @pytest.mark.gpuperf(limits=["x <= 1 ms"])
        def test_it(gpuperf):
            gpuperf.record("x", 2e-3, unit="s", better="lower")
            assert False
        """
    )
    ended = project.run()

    assert (ended.ret, ended.parseoutcomes()) == (0, {"xfailed": 1})
    assert lines(ended, "judged 1 of 1: 1 xfailed")
