"""Markers: how they add up, and how their mistakes are told."""

from __future__ import annotations

import pytest

from fakes.project import XDIST, Project, lines

WRONG = """
    import pytest

    @pytest.mark.gpuperf(limits=["tme <= 60 us", "time <= 60"])
    def test_limits(gpuperf):
        gpuperf(int)

    @pytest.mark.gpuperf(limit=["time <= 60 us"])
    def test_keyword(gpuperf):
        gpuperf(int)

    @pytest.mark.gpuperf("time <= 60 us")
    def test_position(gpuperf):
        gpuperf(int)

    @pytest.mark.gpuperf(limits=["time <= 60 us"])
    def test_no_fixture():
        pass

    @pytest.mark.gpuperf(max_regression="5 %", min_grade="B")
    def test_gate():
        pass

    @pytest.mark.gpuperf(max_regression={"time": "5 %", "launches.count": "0 %"})
    def test_mapping():
        pass

    @pytest.mark.gpuperf(
        limits=[3], max_regression=0.05, min_grade="E", counters=["dram bytes"],
        work=5, group=3, cache="hot", iterations=0, requires=["tpu"],
    )
    def test_everything(gpuperf):
        gpuperf(int)

    def test_right(gpuperf):
        gpuperf(int)
"""

SAID = (
    "test_it.py::test_limits: limit 'tme <= 60 us': unknown metric 'tme'",
    "test_it.py::test_limits: limit 'time <= 60': time needs a unit",
    "test_it.py::test_keyword: the gpuperf marker has no keyword 'limit'; did you mean limits",
    "test_it.py::test_position: the gpuperf marker takes keywords only: write limits=['time <= 60 us']",
    "test_it.py::test_no_fixture: time <= 60 us: a single call of a test cannot time it",
    "test_it.py::test_gate: max_regression='5 %', min_grade='B': a single call of a test",
    "cannot time it; take the gpuperf fixture and measure the call, as gpuperf.measure(fn)",
    "test_it.py::test_mapping: max_regression={'time': '5 %'}: a single call",
    "test_it.py::test_everything: a limit is text, as 'time <= 60 us': 3",
    "test_it.py::test_everything: max_regression: 0.05 is not text",
    "test_it.py::test_everything: min_grade: 'E' is not a grade",
    "test_it.py::test_everything: counters: 'dram bytes': not a counter name",
    "test_it.py::test_everything: work: 5 is not a Work",
    "test_it.py::test_everything: group: 3 is not text",
    "test_it.py::test_everything: cache: 'hot' is not a cache mode",
    "test_it.py::test_everything: iterations: 0 is not a number of samples",
    "test_it.py::test_everything: requires: 'tpu': not a known requirement",
)


def test_every_mistake_of_a_run_is_told_at_once(project: Project) -> None:
    """A collection error of each module names all that is wrong in it; nothing runs."""
    project.write(WRONG)
    project.write(WRONG, "test_other.py")
    ended = project.run()
    others = [text.replace("test_it.py", "test_other.py") for text in SAID]

    assert ended.ret == pytest.ExitCode.INTERRUPTED
    assert ended.parseoutcomes() == {"errors": 2}
    assert [text for text in (*SAID, *others) if not lines(ended, text)] == []


def test_mistakes_are_told_under_xdist_too(project: Project) -> None:
    """The same errors and no INTERNALERROR with two workers."""
    project.write(WRONG)
    ended = project.run(*XDIST, "-n2")

    assert ended.ret in {pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED}
    assert ended.parseoutcomes()["errors"] >= 1
    assert "passed" not in ended.parseoutcomes()
    assert [text for text in SAID if not lines(ended, text)] == []
    assert lines(ended, "INTERNALERROR") == []


def test_a_mistake_of_many_parameters_is_told_once_each(project: Project) -> None:
    """The text is the function's; a parametrised test says it for each of its ids."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["time <= 60 parsecs"])
        @pytest.mark.parametrize("n", [1, 2])
        def test_it(gpuperf, n):
            gpuperf(int)
        """
    )
    ended = project.run()

    assert ended.parseoutcomes() == {"errors": 1}
    assert len(lines(ended, "test_it.py::test_it[1]: limit")) >= 1


def test_a_mistake_in_a_class_fails_its_collection(project: Project) -> None:
    """Methods are items of their class, whose report carries the mistake."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["nonsense"])
        class TestIt:
            def test_a(self, gpuperf):
                gpuperf(int)
        """
    )
    ended = project.run()

    assert ended.parseoutcomes() == {"errors": 1}
    assert lines(ended, "test_it.py::TestIt::test_a: limit 'nonsense'")


def test_other_modules_run_with_continue_on_collection_errors(project: Project) -> None:
    """A wrong marker costs its own module alone."""
    project.write(WRONG)
    project.write("def test_fine(gpuperf):\n    gpuperf(int)\n", "test_fine.py")
    ended = project.run("--continue-on-collection-errors")

    assert ended.ret == 1
    assert ended.parseoutcomes() == {"passed": 1, "errors": 1}


def test_limits_and_counters_add_up_and_of_the_rest_the_closest_wins(
    project: Project,
) -> None:
    """Module, class and function: the function's own keywords win, lists are joined."""
    project.write(
        """
        import pytest
        from pytest_gpuperf.hooks.marked import MARKED

        pytestmark = pytest.mark.gpuperf(
            limits=["a <= 1"], counters=["dram__bytes.sum"], cache="warm",
            group="module", iterations=3, max_regression="3 %",
        )

        @pytest.mark.gpuperf(limits=["b <= 2"], cache="cold", group="class")
        class TestIt:
            @pytest.mark.gpuperf(
                limits="c <= 3", counters=["lts__t_bytes.sum"], group="function",
                max_regression={"a": "1 %"},
            )
            @pytest.mark.gpuperf(limits=["c <= 3"])
            def test_it(self, request, gpuperf):
                for name in ("a", "b", "c"):
                    gpuperf.record(name, 1)
                plan = request.node.stash[MARKED].plan
                assert sorted(limit.text for limit in plan.limits) == [
                    "a <= 1", "b <= 2", "c <= 3"
                ]
                assert sorted(plan.counters) == ["dram__bytes.sum", "lts__t_bytes.sum"]
                assert (plan.cache, plan.group, plan.iterations) == ("cold", "function", 3)
                assert dict(plan.max_regression) == {"a": 0.01}
        """
    )

    assert project.run().parseoutcomes() == {"passed": 1}


def test_a_cold_cache_that_no_device_has_is_told_without_v(project: Project) -> None:
    """Whether a marker or the call asks for it; who asks for nothing reads nothing."""
    project.write(
        """
        import pytest

        def test_default(gpuperf):
            gpuperf.measure(sum, range(1000))

        def test_call(gpuperf):
            gpuperf.measure(sum, range(1000), cache="cold")

        @pytest.mark.gpuperf(cache="cold")
        def test_marker(gpuperf):
            gpuperf.measure(sum, range(1000))
        """
    )
    text = project.run().stdout.str()

    assert text.count('cache="cold" had no effect') == 2
    assert text.index("test_call") < text.index('cache="cold"')


def test_every_user_of_the_fixture_carries_the_marker(project: Project) -> None:
    """`-m gpuperf` selects who takes the fixture, by whatever way, and who is marked."""
    project.write(
        """
        import pytest

        @pytest.fixture
        def bench(gpuperf):
            return gpuperf

        def test_direct(gpuperf): gpuperf(int)
        def test_through(bench): bench(int)
        @pytest.mark.usefixtures("gpuperf")
        def test_used(): pass
        @pytest.mark.gpuperf
        def test_marked(): pass
        def test_other(): pass
        """
    )
    ended = project.run("-m", "gpuperf", "--collect-only", "-q")

    assert lines(ended, "::") == [
        "test_it.py::test_direct",
        "test_it.py::test_through",
        "test_it.py::test_used",
        "test_it.py::test_marked",
    ]
    assert len(lines(project.run("-m", "not gpuperf", "--co", "-q"), "::")) == 1


def test_the_marker_is_known(project: Project) -> None:
    """--strict-markers and --markers know it."""
    project.write(
        "import pytest\n@pytest.mark.gpuperf(group='g')\ndef test_it(gpuperf): gpuperf(int)\n"
    )

    assert project.run("--strict-markers").ret == 0
    assert lines(project.run("--markers"), "@pytest.mark.gpuperf(limits, ")


def test_a_fixture_asked_for_in_the_body_is_refused(project: Project) -> None:
    """getfixturevalue comes too late to read markers; the error says what to do."""
    project.write(
        """
        def test_it(request):
            request.getfixturevalue("gpuperf")

        def test_other(gpuperf):
            gpuperf(int)
        """
    )
    ended = project.run()

    assert ended.parseoutcomes() == {"passed": 1, "failed": 1}
    assert lines(ended, "requests gpuperf with getfixturevalue")


def test_limits_may_name_what_the_test_records(project: Project) -> None:
    """A name in the test's own code or parameters is a metric."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["n <= 2", "m <= 2", "p <= 2"])
        @pytest.mark.parametrize("name", ["p"])
        def test_names(gpuperf, name):
            for each in ("n", "m"):
                gpuperf.record(each, 1)
            gpuperf.record(name, 1)

        @pytest.mark.gpuperf(limits=["ttft <= 2 s"], max_regression={"ttft": "5 %"})
        def test_it(gpuperf):
            gpuperf.record("ttft", 1500, unit="ms", better="lower")

        @pytest.mark.gpuperf(limits=["ttft <= 1 s"])
        def test_slow(gpuperf):
            gpuperf.record("ttft", 1500, unit="ms", better="lower")
        """
    )
    ended = project.run()

    assert ended.parseoutcomes() == {"passed": 2, "failed": 1}
    assert lines(ended, "FAILED", "test_slow", "1.50 s")


HELPERS = """
    import pytest

    def keep(gpuperf):
        gpuperf.record("latency", 2, unit="s")

    @pytest.mark.gpuperf(limits=["latency <= 1 s"]{records})
    def test_it(gpuperf):
        keep(gpuperf)
"""


def test_a_name_that_a_helper_records_is_declared(project: Project) -> None:
    """What the test's own code does not show is refused, unless `records` names it."""
    project.write(HELPERS.format(records=""))
    refused = project.run()
    project.write(HELPERS.format(records=', records=["latency"]'))
    held = project.run()

    assert refused.parseoutcomes() == {"errors": 1}
    assert lines(refused, "unknown metric 'latency'; did you mean launches.latency")
    assert lines(refused, "records=['latency']")
    assert held.parseoutcomes() == {"failed": 1}
    assert lines(held, "latency failed: 2.00 s, limit latency <= 1 s")


def test_names_that_helpers_record_add_up(project: Project) -> None:
    """A module names what its fixtures record, once for all its tests."""
    project.write(
        """
        import pytest

        pytestmark = pytest.mark.gpuperf(records=["a"], limits=["a <= 1"])

        @pytest.fixture(autouse=True)
        def keeps(gpuperf):
            gpuperf.record("a", 1)
            gpuperf.record("b", 1)

        @pytest.mark.gpuperf(records="b", limits=["b <= 1"], max_regression={"b": "5 %"})
        def test_it(gpuperf):
            pass
        """
    )

    assert project.run().parseoutcomes() == {"passed": 1}


@pytest.mark.parametrize("names", ["[3]", "['']", "['time']"])
def test_a_name_that_nobody_can_record_is_refused(project: Project, names: str) -> None:
    """No text, an empty one, and a metric of the catalogue, which is measured."""
    project.write(
        f"""
        import pytest

        @pytest.mark.gpuperf(records={names})
        def test_it(gpuperf):
            gpuperf(int)
        """
    )

    assert lines(project.run(), "records: ", "not a name that gpuperf.record takes")
