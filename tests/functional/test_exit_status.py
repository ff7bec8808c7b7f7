"""The exit status and the last line tell one story of a run."""

from __future__ import annotations

import html
import re
import textwrap
from pathlib import Path

import pytest

from fakes.project import VALUES, XDIST, Project, command, lines
from pytest_gpuperf.collect.instrumentation import conditions

GATE = ("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=0")
ALONE = pytest.param((), id="alone")
WORKERS = pytest.param((*XDIST, "-n2"), id="two-workers")

LIMITED = """
    import pytest

    @pytest.mark.gpuperf(limits=["time <= 10 s"])
    def test_limited(gpuperf):
        gpuperf(sorted, [2, 1])

    def test_free(gpuperf):
        gpuperf(sorted, [2, 1])
"""


@pytest.mark.parametrize(
    ("stored", "undecided"),
    [
        ("once", "inconclusive (too few sessions)"),
        ("by another Python", "incomparable"),
        ("by another CPU", "incomparable"),
    ],
)
def test_a_kept_limit_is_no_comparison_with_a_baseline(
    project: Project, stored: str, undecided: str
) -> None:
    """What is stored compares nothing: the run fails, the limit stays passed."""
    project.store(LIMITED, sessions=1 if stored == "once" else 3)
    if stored != "once":
        fact = "python_minor" if stored == "by another Python" else "cpu_model"
        (folder,) = (
            path for path in (project.path / ".gpuperf").iterdir() if path.is_dir()
        )
        then = re.search(
            rf'"{fact}":"[^"]*"', folder.joinpath("test_it.json").read_text("utf-8")
        )
        assert then is not None
        project.edit_store(then[0], f'"{fact}":"other"')
        if fact == "cpu_model":  # a machine's sessions lie in a folder of its own
            folder.rename(folder.with_name("other-64"))
    ended = project.run(*GATE)

    assert ended.ret == 1
    assert ended.parseoutcomes() == {"passed": 2}
    assert lines(ended, "but no test was compared with it")
    assert lines(ended, f"judged 1 of 2: 1 passed; 1 {undecided}")
    assert lines(ended, f"also 1 {undecided}")


ON_A_GPU = LIMITED.replace("gpuperf(sorted, [2, 1])", "gpuperf(gpu.launch)").replace(
    "import pytest", "import gpu\n    import pytest"
)


def test_a_baseline_of_another_gpu_compares_nothing(
    project: Project, machine: Path
) -> None:
    """As with another CPU; what the host's clock timed on this one is no help."""
    project.write(ON_A_GPU)
    for _ in range(2):  # a measurement that was interrupted is void, and not stored
        stored = project.spawn("--gpuperf-update=all")
        assert stored.returncode == 0, stored.stdout
    script = machine / "nvml.csv"
    script.write_text(script.read_text("utf-8").replace("H200", "L4"), "utf-8")
    ended = project.spawn(*GATE)

    assert ended.returncode == 1
    assert "2 passed" in ended.stdout
    assert "but no test was compared with it" in ended.stdout
    (judged,) = (line for line in ended.stdout.splitlines() if "judged 1 of 2" in line)
    assert "1 passed; 1 incomparable" in judged
    assert "also 1 incomparable" in judged


def test_a_traced_run_is_not_compared_with_untraced_sessions(project: Project) -> None:
    """What coverage adds is neither a regression nor the machine's: some work has none."""
    if conditions():
        pytest.skip("is traced itself: the stored sessions would be, too")
    project.store(VALUES)
    project.write(
        """
        import sys

        def pytest_configure(config):
            sys.setprofile(lambda frame, event, argument: None)
        """,
        "conftest.py",
    )
    project.set_values(a=2.0, b=0.5)
    ended = project.spawn(*GATE)
    across = project.spawn(*GATE, "--gpuperf-compare-across=tracer")

    assert (ended.returncode, across.returncode) == (1, 0)
    assert "judged 0 of 3: 3 incomparable (fingerprint differs)" in ended.stdout
    assert "tracer: none -> conftest" in ended.stdout
    assert "store sessions with this tracer" in ended.stdout
    assert "incomparable" not in across.stdout


def test_a_kept_limit_is_not_hidden_by_a_new_value(project: Project) -> None:
    """The row shows both, and the limit counts as judged."""
    project.store(VALUES)
    project.write(LIMITED, "test_other.py")
    ended = project.run(*GATE)

    assert ended.ret == 0
    assert lines(ended, "judged 4 of 5: 3 unchanged, 1 passed; 1 new")
    assert lines(ended, "test_limited", "passed, 1 new")


@pytest.mark.parametrize("workers", [ALONE, WORKERS])
def test_a_test_that_its_module_lost_is_counted_and_named(
    project: Project, workers: tuple[str, ...]
) -> None:
    """It is in the denominator of --gpuperf-min-judged."""
    project.store(VALUES)
    project.write(VALUES.replace('"b", ', ""))
    ended = project.run(*GATE, *workers, "--gpuperf-min-judged=100%")
    lenient = project.run(*GATE, *workers, "--gpuperf-min-judged=60%")

    assert (ended.ret, lenient.ret) == (1, 0)
    assert lines(ended, "in the baseline, but not in this run: test_it.py::test_x[b]")
    assert lines(ended, "judged 2 of 2: 2 unchanged", "1 of the baseline did not run")
    assert lines(ended, "judged 2 of 3 tests; --gpuperf-min-judged=100% requires 3")


@pytest.mark.parametrize(
    "chosen",
    [
        ("-k", "x and not b"),
        ("test_it.py::test_x[a]",),
        ("--deselect", "test_it.py::test_x[b]"),
    ],
)
def test_a_test_that_was_left_out_is_not_lost(
    project: Project, chosen: tuple[str, ...]
) -> None:
    """Whoever chooses tests knows that the others do not run."""
    project.store(VALUES)
    ended = project.run(*GATE, *chosen)

    assert ended.ret == 0
    assert not lines(ended, "did not run")


PLAIN = "def test_plain():\n    pass\n"
LOST = {
    "skipped": f"import pytest\npytest.importorskip('gone')\n{VALUES}",
    "broken": "import gone\n",
    "deleted": None,
    "emptied": PLAIN,
}


def lose(project: Project, how: str) -> None:
    """Keep sessions of three tests, and lose their module; another one stays."""
    project.store(VALUES)
    project.write(PLAIN, "unit/test_plain.py")
    text = LOST[how]
    if text is None:
        (project.path / "test_it.py").unlink()
    else:
        project.write(text.replace("\n    ", "\n") if how == "skipped" else text)


@pytest.mark.parametrize("how", LOST)
def test_a_gate_whose_tests_are_gone_is_not_off(project: Project, how: str) -> None:
    """A named baseline fails a run that collects none of its tests, and names them."""
    lose(project, how)
    goes_on = ("--continue-on-collection-errors",) if how == "broken" else ()
    ended = project.run(*GATE, *goes_on)

    assert ended.ret == 1
    assert lines(ended, "in the baseline, but not in this run: test_it.py::test_x[a]")
    assert lines(ended, "judged 0 of 0: 3 of the baseline did not run")
    assert lines(ended, "a baseline was named, but no test was compared with it")


@pytest.mark.parametrize("workers", [ALONE, WORKERS])
@pytest.mark.parametrize(
    "asked", ["--gpuperf-baseline=.gpuperf", "--gpuperf-min-judged=50%", "ini"]
)
def test_a_gate_is_named_by_an_option_or_the_ini_file(
    project: Project, workers: tuple[str, ...], asked: str
) -> None:
    """A least share is one, too; and an xdist controller knows of them by itself."""
    lose(project, "skipped")
    if asked == "ini":
        project.write("[pytest]\ngpuperf_baseline = .gpuperf\n", "pytest.ini")
    ended = project.run(*workers, *(() if asked == "ini" else (asked,)))

    assert ended.ret == 1
    assert ended.parseoutcomes()["passed"] == 1
    assert lines(ended, "judged 0 of 0: 3 of the baseline did not run")


@pytest.mark.parametrize(
    "chosen",
    [
        (),
        (*GATE, "-k", "plain"),
        (*GATE, "-m", "not slow"),
        (*GATE, "unit"),
        (*GATE, "unit/test_plain.py::test_plain"),
        (*GATE, "--ignore=test_it.py"),
        (*GATE, "--ignore-glob=*_it.py"),
        (*GATE, "--deselect=test_it.py"),
        (*GATE, "--collect-only"),
        (*GATE, "-o", "python_files=*_plain.py"),
        (*GATE, "--gpuperf-update=new"),
        (*GATE, "--gpuperf-disable"),
    ],
)
def test_tests_that_nobody_asked_for_are_not_gone(
    project: Project, chosen: tuple[str, ...]
) -> None:
    """Of a part of the tests, of a run that stores or shows, and of no gate at all."""
    lose(project, "skipped")
    ended = project.run(*chosen)

    assert ended.ret == 0
    assert not lines(ended, "baseline")


def test_a_store_that_the_ini_file_will_have_gates_no_other_tests(
    project: Project,
) -> None:
    """Nothing is gone from it yet; named on the command line it has to be there."""
    project.write("[pytest]\ngpuperf_baseline = .gpuperf\n", "pytest.ini")
    project.write("def test_plain(): pass", "test_plain.py")

    assert project.run().ret == 0
    assert project.run("--gpuperf-baseline=.gpuperf").ret == 4


def test_a_database_of_the_ini_file_gates_if_it_is_there(project: Project) -> None:
    """As a folder that the ini file names."""
    lose(project, "skipped")
    project.write("[pytest]\ngpuperf_baseline = sqlite:///perf.db\n", "pytest.ini")
    before = project.run()
    command("baseline", "copy", ".gpuperf", "sqlite:///perf.db", folder=project.path)
    after = project.run()

    assert (before.ret, after.ret) == (0, 1)
    assert lines(after, "judged 0 of 0: 3 of the baseline did not run")


def test_what_the_ini_file_always_leaves_out_is_no_choice(project: Project) -> None:
    """A gate is on beside `-m` in addopts."""
    lose(project, "skipped")
    project.write("[pytest]\naddopts = -m 'not slow'\n", "pytest.ini")

    assert project.run(*GATE).ret == 1


@pytest.mark.parametrize("workers", [ALONE, WORKERS])
def test_a_module_that_is_gone_counts_beside_those_that_ran(
    project: Project, workers: tuple[str, ...]
) -> None:
    """All of its stored tests are in the denominator of --gpuperf-min-judged."""
    project.write(VALUES, "test_other.py")
    project.store(VALUES)
    project.write("import pytest\npytest.skip(allow_module_level=True)\n")
    ended = project.run(*GATE, *workers, "--gpuperf-min-judged=95%")
    shown = project.run("--gpuperf-min-judged=50%", *workers)

    assert (ended.ret, shown.ret) == (1, 0)
    assert lines(ended, "judged 3 of 3: 3 unchanged", "3 of the baseline did not run")
    assert lines(ended, "judged 3 of 6 tests; --gpuperf-min-judged=95% requires 6")


@pytest.mark.parametrize("workers", [ALONE, WORKERS])
@pytest.mark.parametrize("how", ["deleted", "skipped", "emptied"])
def test_the_plugins_own_marker_leaves_out_nothing_that_measures(
    project: Project, workers: tuple[str, ...], how: str
) -> None:
    """A module that is gone is missed with `-m gpuperf`, too; not with more than that."""
    project.write(VALUES, "test_other.py")
    lose(project, how)
    ended = project.run(*GATE, *workers, "-m", "gpuperf", "--gpuperf-min-judged=95%")
    part = project.run(*GATE, *workers, "-m", "gpuperf and not slow")

    assert (ended.ret, part.ret) == (1, 0)
    assert lines(ended, "judged 3 of 3: 3 unchanged", "3 of the baseline did not run")
    assert not lines(part, "did not run")


def of_another_machine(project: Project) -> None:
    """Let what is stored be the sessions of another machine."""
    store = project.path / ".gpuperf"
    (folder,) = (path for path in store.iterdir() if path.is_dir())
    folder.rename(folder.with_name("other-64"))


def test_tests_of_other_machines_are_not_gone(project: Project) -> None:
    """Parameters may be those of a machine: absent is what this one has stored."""
    project.store(VALUES)
    of_another_machine(project)
    project.store(VALUES.replace('"b", "c"', '"d"'))
    ended = project.run(*GATE, "--gpuperf-min-judged=95%")

    assert ended.ret == 0
    assert lines(ended, "judged 2 of 2: 2 unchanged")
    assert not lines(ended, "did not run")


def test_a_machine_that_measures_nothing_lacks_all_that_is_stored(
    project: Project,
) -> None:
    """Nobody knows where its tests would have been measured, and nothing is compared."""
    lose(project, "skipped")
    of_another_machine(project)

    assert project.run(*GATE).ret == 1


def test_tests_that_a_plugin_leaves_out_are_named(project: Project) -> None:
    """It tells nobody: the run passes, and is a part where a share of all was asked for."""
    project.write(VALUES, "test_other.py")
    project.store(VALUES)
    text = "def pytest_collection_modifyitems(items):\n    del items[:3]\n"
    project.write(text, "conftest.py")
    ended = project.run(*GATE)
    shared = project.run(*GATE, "--gpuperf-min-judged=95%")

    assert ended.ret == 0
    assert lines(ended, "judged 3 of 3: 3 unchanged", "3 of the baseline left out by")
    assert lines(
        ended, "left out by a plugin, and measured in the baseline: test_it.py"
    )
    assert shared.ret == 1
    assert lines(shared, "judged 3 of 6 tests; --gpuperf-min-judged=95% requires 6")


def test_a_named_store_that_is_missing_is_told_where_nothing_measures(
    project: Project,
) -> None:
    """As where something does: a name may be mistyped."""
    project.write(PLAIN)
    ended = project.run("--gpuperf-baseline=missing")

    assert ended.ret == 4
    assert lines(ended, "there is no baseline at")


FORGIVING = """
    import pytest

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        if report.failed:
            report.outcome = "passed"
        return report
"""
LATE = """
    import pytest

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(report):
        if report.failed:
            report.outcome = "passed"
"""


@pytest.mark.parametrize(
    ("plugin", "text", "value"),
    [
        (FORGIVING, LIMITED.replace("10 s", "0 s"), 1.0),
        (LATE, VALUES, 2.0),
        (LATE, LIMITED.replace("10 s", "0 s"), 1.0),
    ],
    ids=["limit", "change", "late-limit"],
)
def test_a_plugin_cannot_turn_a_failed_verdict_into_a_pass(
    project: Project, plugin: str, text: str, value: float
) -> None:
    """The run fails all the same, and says which test and why."""
    project.store(VALUES)
    project.write(plugin, "conftest.py")
    project.write(text)
    project.set_values(b=value)
    ended = project.run(*GATE[:1], "--gpuperf-confirm=1")

    assert ended.ret == 1
    assert "failed" not in ended.parseoutcomes()
    assert lines(ended, "another plugin reported the test as passed; the run fails")


def test_an_expected_failure_is_not_overruled(project: Project) -> None:
    """An xfail mark is the test's own, and pytest reports it as what it is."""
    project.write(
        """
        import pytest

        @pytest.mark.xfail
        @pytest.mark.gpuperf(limits=["time <= 0 s"])
        def test_limited(gpuperf):
            gpuperf(sorted, [2, 1])
        """
    )
    ended = project.run()

    assert (ended.ret, ended.parseoutcomes()) == (0, {"xfailed": 1})


def test_the_last_line_says_what_judged_a_test(project: Project) -> None:
    """A body that failed, and a number that nothing gates."""
    project.store(VALUES)
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["time <= 10 s"])
        def test_broken(gpuperf):
            gpuperf(sorted, [2, 1])
            assert False

        def test_recorded(gpuperf):
            gpuperf.record("rate", 3.0)
        """,
        "test_other.py",
    )
    ended = project.run(*GATE)
    (last,) = lines(ended, "judged 3 of 5: 3 unchanged")

    assert ended.ret == 1
    assert "1 failed before being judged" in last
    assert "1 with no gated metric: give one a limit in max_regression" in last


@pytest.mark.parametrize("workers", [ALONE, WORKERS])
def test_a_test_that_ends_early_as_it_may_has_not_failed(
    project: Project, workers: tuple[str, ...]
) -> None:
    """What pytest skips or expects to fail is counted apart, on the page as well."""
    project.write(
        """
        import pytest

        def test_skipped(gpuperf):
            gpuperf(sorted, [2, 1])
            pytest.skip("not here")

        @pytest.mark.xfail
        def test_expected(gpuperf):
            gpuperf(sorted, [2, 1])
            assert False

        def test_broken(gpuperf):
            gpuperf(sorted, [2, 1])
            assert False
        """
    )
    ended = project.run(*workers, "--gpuperf-html=page.html", "--gpuperf-json=run.json")
    (last,) = lines(ended, "judged 0 of 3")
    page = project.path.joinpath("page.html").read_text("utf-8")

    ended.assert_outcomes(skipped=1, xfailed=1, failed=1)
    assert "1 failed before being judged" in last
    assert "2 skipped or xfailed before being judged" in last
    assert "1 of 3 tests fails: 1 failed before being judged" in page
    assert project.report()["broken"] == ["test_it.py::test_broken"]


@pytest.mark.parametrize("workers", [ALONE, WORKERS])
def test_an_own_assert_that_did_not_hold_is_judged_and_told(
    project: Project, workers: tuple[str, ...]
) -> None:
    """It is a limit of the test's: reports say what was compared, of its measurement."""
    project.write(
        """
        def test_missed(gpuperf):
            gpuperf.measure(sorted, [2, 1], name="a")
            slow = gpuperf.measure(sorted, [2, 1], name="b")
            assert slow.time <= 1e-12, "too slow"

        def test_caught(gpuperf):
            slow = gpuperf.measure(sorted, [2, 1])
            try:
                assert slow.time <= 1e-12
            except AssertionError:
                raise KeyError from None

        def test_held(gpuperf):
            assert gpuperf.measure(sorted, [2, 1]).time <= 1
        """
    )
    ended = project.run(
        *(*workers, "--gpuperf-html=page.html", "--gpuperf-json=run.json"),
        "--gpuperf-markdown=run.md",
    )
    (last,) = lines(ended, "judged 2 of 3")
    page = project.path.joinpath("page.html").read_text("utf-8")
    markdown = project.path.joinpath("run.md").read_text("utf-8")
    (missed,) = project.report()["missed"]

    assert "1 failed its own assert, 1 passed its own assert" in last
    assert "1 failed before being judged" in last
    assert lines(ended, "test_missed b", "FAILED")
    assert lines(ended, "test_held", "passed")
    assert lines(ended, "test_caught", "ERROR")
    assert missed["key"] == {"test_id": "test_it.py::test_missed", "name": "b"}
    assert re.fullmatch(r"time [\d.]+ .s <= 0.001 ns", missed["comparison"])
    assert project.report()["broken"] == ["test_it.py::test_caught"]
    story = f"ts own assert failed: {html.escape(missed['comparison'])}"
    page = page.replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert f">i{story}</span></summary>" in page
    assert f'<p class="verdict">I{story}.</p>' in page
    assert "`test_missed b`: its own assert failed: time " in markdown


@pytest.mark.parametrize(
    ("held", "last"),
    [
        ("perf.time <= 10", "judged 1 of 1: 1 passed its own assert"),
        ("10 >= perf.time", "judged 1 of 1: 1 passed its own assert"),
        ("perf.time > 0 and perf.time != 1", "judged 1 of 1: 1 passed its own assert"),
        ("perf.time", "judged 0 of 1: 1 without a limit or a baseline"),
        ("perf.time < 0", "judged 1 of 1: 1 failed its own assert"),
        ("perf.time > 0 and False", "judged 0 of 1: 1 failed before being judged"),
    ],
)
def test_an_assert_on_a_value_is_counted_as_such(
    project: Project, held: str, last: str
) -> None:
    """A value that is compared was looked at, and one that is only read was not."""
    project.write(
        f"""
        def test_it(gpuperf):
            perf = gpuperf.measure(sorted, [2, 1])
            assert {held}
        """
    )

    assert lines(project.run(), last)


@pytest.mark.parametrize(
    ("used", "is_judged"),
    [
        ("assert 0 < perf.time < 10", True),
        ("assert all(time < 10 for time in (perf.time, perf.time.p95))", True),
        ("is_fast = perf.time < 10; assert is_fast", True),
        ("assert (lambda seconds: seconds < 10)(perf.time)", True),
        ("if perf.time > 10: raise AssertionError", True),
        ("unittest.TestCase().assertLess(perf.time, 10)", True),
        ("perf.time < 10", False),
        ("print(perf.time < 10)", False),
        ("print(perf.time < 10, perf.time < 5, flush=True)", False),
        ("print(f'{perf.time < 10!r:>9}')", False),
        ("sorted([perf.time, perf.time.p95]), max(perf.time, perf.time.p95)", False),
        ("{perf.time: 1}[perf.time.p95 * 0 + perf.time]", False),
    ],
)
def test_a_comparison_that_decides_nothing_is_no_own_assert(
    project: Project, used: str, is_judged: bool
) -> None:
    """A comparison counts unless it is dropped, handed to a call, or made by a function of C."""
    project.write(
        f"""
        import unittest

        def test_it(gpuperf):
            perf = gpuperf.measure(sorted, [2, 1])
            {used}
        """
    )
    judged = "judged 1 of 1: 1 passed its own assert"
    last = judged if is_judged else "judged 0 of 1: 1 without a limit or a baseline"

    assert lines(project.run(), last)


ELSEWHERE = """
    def fails(perf):
        assert perf.time <= 1e-12

    def test_it(gpuperf):
        perf = gpuperf.measure(sorted, [2, 1])
        {body}
"""


@pytest.mark.parametrize(
    ("body", "last"),
    [
        ("fails(perf)", "1 failed its own assert"),
        ("gpuperf.measure(lambda: fails(perf), name='b')", "1 failed its own assert"),
        (
            "assert (\n            perf.time\n            <= 1e-12\n        )",
            "1 failed its own assert",
        ),
        (
            "try: fails(perf)\n        except AssertionError: raise",
            "1 failed its own assert",
        ),
        (
            "try: fails(perf)\n        except AssertionError as e: assert 0, str(e)",
            "1 failed before being judged",
        ),
    ],
)
def test_an_assert_is_known_by_its_place(
    project: Project, body: str, last: str
) -> None:
    """Not by its words, which another failure may repeat, and another plugin may replace."""
    project.write(ELSEWHERE.format(body=body))
    project.write(
        """
        import pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_assertrepr_compare():
            return ["other words"]
        """,
        "conftest.py",
    )

    assert lines(project.run(), last)


@pytest.mark.parametrize("shown", ["--setup-plan", "--fixtures", "--fixtures-per-test"])
@pytest.mark.parametrize("workers", [ALONE, WORKERS])
def test_what_only_shows_judges_nothing(
    project: Project, workers: tuple[str, ...], shown: str
) -> None:
    """A named baseline does not fail it, and it writes no report of a run."""
    project.store(VALUES)
    ended = project.run(*GATE, *workers, shown, "--gpuperf-json=run.json")

    assert ended.ret == 0
    assert not lines(ended, "judged")
    assert not (project.path / "run.json").exists()


EXITS = {
    "exit": (
        "conftest.py",
        """
        import pytest

        def pytest_runtest_setup(item):
            if item.name == "test_x[c]":
                pytest.exit("enough", returncode=0)
        """,
    ),
    "sessionfinish": (
        "conftest.py",
        """
        import pytest

        @pytest.hookimpl(trylast=True)
        def pytest_sessionfinish(session):
            session.exitstatus = 0
        """,
    ),
    "wrapper": (
        "conftest.py",
        """
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_sessionfinish(session):
            yield
            session.exitstatus = 0
        """,
    ),
    "unconfigure": (
        "conftest.py",
        """
        import pytest

        def pytest_sessionfinish(session):
            session.config.ours = session

        def pytest_unconfigure(config):
            config.ours.exitstatus = 0
        """,
    ),
}


@pytest.mark.parametrize("how", EXITS)
def test_nothing_sets_the_exit_status_to_0_over_a_suspect(
    project: Project, how: str
) -> None:
    """Neither what ends the run nor what has the last word in it; a line says so."""
    project.store()
    name, text = EXITS[how]
    project.write(text, name)
    project.set_values(b=1.5)
    # xdist itself ends with 3 where a worker exits
    workers = () if how == "exit" else (*XDIST, "-n1")
    ended = project.run(*GATE[:1], "--gpuperf-confirm=1", *workers)
    told = "a plugin set the exit status to 0, and it is 1: test_it.py::test_x[b]: x"
    if how == "exit":
        told = "ended with exit status 0 before fresh processes had decided test_it.py"

    assert ended.ret == 1
    assert lines(ended, told)


@pytest.mark.parametrize("how", ["exit", "sessionfinish"])
def test_an_exit_status_of_0_stays_where_nothing_failed(
    project: Project, how: str
) -> None:
    """A run without a suspect may be ended as its user likes."""
    project.store()
    name, text = EXITS[how]
    project.write(text, name)

    assert project.run(*GATE[:1], "--gpuperf-confirm=1").ret == 0


LEAVES = """
import os

def test_slow(gpuperf):
    gpuperf.record("x", 1.0)

def test_leaves():
    LEAVE
"""


@pytest.mark.parametrize("capture", ["fd", "no"])
def test_a_test_that_leaves_the_process_with_0_is_not_green(
    project: Project, capture: str
) -> None:
    """What was measured before is not judged then; a line names the test."""
    project.write(LEAVES.replace("LEAVE", "os._exit(0)"))
    ended = project.spawn(f"--capture={capture}")
    told = "gpuperf: test_it.py::test_leaves ended pytest by os._exit(0); nothing was judged"

    assert ended.returncode == 1
    assert any(line.startswith(told) for line in ended.stdout.splitlines())


@pytest.mark.parametrize(
    ("leave", "status"),
    [
        ("os._exit(3)", 3),
        (
            "os.fork() or os._exit(0); assert os.waitstatus_to_exitcode(os.wait()[1]) == 0",
            0,
        ),
    ],
    ids=["another status", "a fork"],
)
def test_other_ways_to_leave_stay_as_they_are(
    project: Project, leave: str, status: int
) -> None:
    """A status of the test's own, and a child that it has forked."""
    project.write(LEAVES.replace("LEAVE", leave))
    ended = project.spawn()

    assert ended.returncode == status
    assert "ended pytest" not in ended.stdout


@pytest.mark.parametrize("place", ["PYTEST_ADDOPTS", "addopts", "ini"])
@pytest.mark.parametrize("gate", [GATE[:1], ()], ids=["typed", "variable"])
def test_a_gate_that_is_disabled_out_of_sight_is_not_green(
    project: Project, place: str, gate: tuple[str, ...]
) -> None:
    """Beside a baseline named for the run only a typed --gpuperf-disable switches it off."""
    project.store()
    if not gate:
        project.environment.setenv("GPUPERF_BASELINE", ".gpuperf")
    if place == "PYTEST_ADDOPTS":
        project.environment.setenv(place, "--gpuperf-disable")
    else:
        option = "addopts = --gpuperf-disable"
        text = "gpuperf_disable = true" if place == "ini" else option
        project.write(f"[pytest]\n{text}\n", "pytest.ini")
    ended = project.run(*gate)
    typed = project.run(*gate, "--gpuperf-disable")

    assert (ended.ret, typed.ret) == (1, 0)
    assert lines(
        ended, "nothing was judged: the command line or GPUPERF_BASELINE names"
    )


def test_a_gate_whose_fresh_processes_begin_no_test_is_not_green(
    project: Project,
) -> None:
    """What looked slower and nobody could confirm is no pass; the line says why."""
    project.store()
    project.write(
        """
        import os

        if "PYTEST_GPUPERF_CHILD" in os.environ:
            os._exit(9)
        """,
        "conftest.py",
    )
    project.set_values(b=1.5)
    ended = project.run(*GATE[:1], "--gpuperf-confirm=2")

    assert ended.ret == 1
    assert lines(ended, "each of 2 fresh processes began no test, so what")


def test_a_suspect_of_a_storing_run_is_held(project: Project) -> None:
    """It fails where its fresh process does: in pytest's count, and in JUnit's."""
    state = """
        STATE = {{}}

        def test_login():
            STATE["token"] = 1

        def test_uses_login(gpuperf):
            assert STATE["token"]
            gpuperf.record("x", {value}, unit="s", better="lower")

        def test_other(gpuperf):
            gpuperf.record("x", 1.0, unit="s", better="lower")
        """
    ini = "[pytest]\naddopts = -p no:randomly\n"
    mark = "import pytest\n\npytestmark = pytest.mark.gpuperf(max_regression={'x': '5 %'}, records=['x'])\n"
    project.store(mark + textwrap.dedent(state.format(value=1.0)))
    project.write(ini, "pytest.ini")
    for value in (2.0, 0.5):
        project.write(mark + textwrap.dedent(state.format(value=value)))
        ended = project.run("--gpuperf-update=all", "--junitxml=junit.xml")

        assert ended.ret == 1
        assert ended.parseoutcomes() == {"passed": 2, "failed": 1}
        assert ("test_uses_login", "failure") in project.junit()
        assert not lines(ended, "another plugin")


def test_a_damaged_line_fails_the_run_that_would_judge_by_it(project: Project) -> None:
    """A line of a test that runs, or of nobody knows whom; not one of another test."""
    project.store()
    (path,) = project.path.glob(".gpuperf/*/test_it.json")
    whole = path.read_text("utf-8").splitlines(keepends=True)
    of_b = next(i for i, line in enumerate(whole) if "test_x[b]" in line)
    told = "damaged lines of the baseline belong to tests of this run: "

    for half, name in (
        (whole[of_b][:60], "test_it.py::test_x[b]"),
        (whole[of_b].replace("[b]", "[b\x01]"), "test_it.py"),
    ):
        lines_of = [*whole[:of_b], half.rstrip("\n") + "\n", *whole[of_b + 1 :]]
        path.write_text("".join(lines_of), "utf-8")
        ended = project.run(*GATE)

        assert ended.ret == 1
        assert lines(ended, f"{told}{name}; restore these lines from version control")

    path.write_text(
        "".join([*whole[:of_b], whole[of_b][:60] + "\n", *whole[of_b + 1 :]])
    )
    other = project.run(*GATE, "-k", "[a]")
    found = project.run()

    assert (other.ret, found.ret) == (0, 0)
    assert lines(other, "left out of the baseline: ", "of test_it.py::test_x[b]")


def test_a_file_of_another_module_does_not_concern_a_run(project: Project) -> None:
    """A file that is damaged as a whole stops a run of its tests before any has run."""
    project.write(VALUES, name="test_other.py")
    project.store()
    (path,) = project.path.glob(".gpuperf/*/test_it.json")
    text = path.read_text("utf-8")
    # The beginning and the end of the file are right.
    path.write_text(text.replace('"":null},"facts":{', '"":null},"facts":['), "utf-8")

    own = project.run(*GATE, "test_it.py")
    other = project.run(*GATE, "test_other.py")
    workers = project.run(*XDIST, *GATE, "-n2", "test_it.py")

    assert (own.ret, other.ret) == (4, 0)
    assert lines(own, "test_it.json")
    assert not lines(own, "test_x[a] x")
    # With workers, the tests are known only as they start.
    assert workers.ret == 1
    assert lines(workers, "test_it.json")


SKIPS = {
    "mark": ('"b", "c"', 'pytest.param("b", marks=pytest.mark.skip), "c"'),
    "condition": (
        '"b", "c"',
        'pytest.param("b", marks=pytest.mark.skipif("True", reason="x")), "c"',
    ),
    "fixture": (
        "@pytest.mark.gpuperf",
        """\
    @pytest.fixture(autouse=True)
    def f(request):
        if "b" in request.node.name: pytest.skip("no")

    @pytest.mark.gpuperf""".lstrip(),
    ),
}


@pytest.mark.parametrize("how", SKIPS)
def test_a_stored_test_that_is_skipped_is_named(project: Project, how: str) -> None:
    """Red with strict, where the newest session of this selection has measured it."""
    project.store()
    project.write(VALUES.replace(*SKIPS[how]))
    ended = project.run(*GATE, "--gpuperf-json=run.json")
    strict = project.run(*GATE, "--gpuperf-strict")
    other = project.run(*GATE, "--gpuperf-strict", "--ignore=elsewhere")

    assert (ended.ret, strict.ret, other.ret) == (0, 1, 0)
    assert lines(ended, "skipped, and measured in the baseline: test_it.py::test_x[b]")
    assert lines(ended, "judged 2 of 3: 2 unchanged; 1 without a measurement")
    assert project.report()["header"]["completeness"]["skipped"] == [
        "test_it.py::test_x[b]"
    ]
    assert lines(
        strict, "1 test of the baseline not measured, which the newest session"
    )
    assert lines(other, "skipped, and measured in the baseline: ")


def test_a_skip_that_the_newest_session_had_too_is_no_failure(project: Project) -> None:
    """Whoever stores it that way has a way out; the run still names the test."""
    project.store()
    project.write(VALUES.replace(*SKIPS["mark"]))
    stored = project.run("-q", "--gpuperf-update=all")
    strict = project.run(*GATE, "--gpuperf-strict")

    assert (stored.ret, strict.ret) == (0, 0)
    assert lines(strict, "skipped, and measured in the baseline: test_it.py::test_x[b]")


@pytest.mark.parametrize("workers", [ALONE, WORKERS])
def test_a_stored_test_that_a_plugin_drops_is_counted(
    project: Project, workers: tuple[str, ...]
) -> None:
    """Nobody deselected it; a shard that a variable makes has a session of its own."""
    drops = """
        def pytest_collection_modifyitems(items):
            items[:] = [item for item in items if "[b]" not in item.name]
        """
    project.store()
    project.write(drops, "conftest.py")
    ended = project.run(*GATE, *workers, "--gpuperf-min-judged=100%")
    strict = project.run(*GATE, *workers, "--gpuperf-strict")
    project.run("-q", "--gpuperf-update=all")
    again = project.run(
        *GATE, *workers, "--gpuperf-strict", "--gpuperf-min-judged=100%"
    )

    assert (ended.ret, strict.ret, again.ret) == (1, 1, 0)
    assert lines(ended, "2 unchanged; 1 of the baseline left out by a plugin")
    assert lines(ended, "left out by a plugin, and measured in the baseline: ", "[b]")
    assert lines(ended, "judged 2 of 3 tests; --gpuperf-min-judged=100% requires 3")
