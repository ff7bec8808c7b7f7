"""Fresh processes that measure again are started as their parent was."""

from __future__ import annotations

import importlib.util
import json
import shlex

import pytest

from fakes.project import XDIST, Project, lines

# each process writes down how it was started and what it ran, in what order
WITNESS = """
    import json
    import os
    import pathlib
    import sys
    import pytest

    RAN = []
    SEEN = pathlib.Path(__file__).parent / "seen"

    def pytest_runtest_logfinish(nodeid):
        RAN.append(nodeid)

    def pytest_unconfigure(config):
        if hasattr(config, "workerinput"):
            return
        SEEN.mkdir(exist_ok=True)
        (SEEN / f"{os.getpid()}.json").write_text(json.dumps({
            "args": [str(arg) for arg in config.invocation_params.args],
            "ran": RAN,
            "child": config.pluginmanager.has_plugin("gpuperf-child"),
            "xdist": sorted(n for n in os.environ if n.startswith("PYTEST_XDIST")),
            "workers": getattr(config.option, "numprocesses", None),
            "pdb": config.option.usepdb,
            "maxfail": config.option.maxfail,
            "basetemp": str(config.option.basetemp),
            "xml": getattr(config.option, "xmlpath", None),
            "json": config.option.gpuperf_json,
            "html": config.option.gpuperf_html,
        }))
"""
TESTS = """
    import os
    import pytest

    def test_other():
        pass

    @pytest.mark.gpuperf(max_regression={"x": "5 %"})
    @pytest.mark.parametrize("name", ["a", "b", "c", "d"])
    def test_x(gpuperf, name, tmp_path, pytestconfig):
        value = float(os.environ.get(f"VALUE_{name}", "1"))
        gpuperf.record("x", value, unit="s", better="lower")
"""
GATE = ("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=2")


@pytest.fixture
def stored(project: Project) -> Project:
    """A project with a baseline, in which two of four tests got slower."""
    project.store(TESTS)
    project.write(WITNESS, "conftest.py")
    project.set_values(b=1.2, d=1.3)
    return project


def children(project: Project) -> list[dict[str, object]]:
    """Return what each child process saw of itself."""
    found = [json.loads(p.read_bytes()) for p in (project.path / "seen").iterdir()]
    return [each for each in found if each["child"]]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="plain"),
        # One worker: two share the tests, and no session of a part was stored.
        pytest.param((*XDIST, "-n1"), id="workers"),
        pytest.param(
            ("--basetemp=base", "--junitxml=junit.xml", "--gpuperf-json=run.json"),
            id="files",
        ),
        pytest.param(
            ("--gpuperf-html=run.html",),
            id="page",
            marks=pytest.mark.skipif(
                importlib.util.find_spec("jinja2") is None,
                reason="Jinja2 is not installed (extra html)",
            ),
        ),
        pytest.param(("-x", "--pdb"), id="stops"),
        pytest.param(
            (
                *("-p", "no:cacheprovider", "-p", "no:terminal"),
                "-k",
                "x",
                "--",
                "test_it.py",
            ),
            id="selected",
        ),
    ],
)
def test_children_run_the_suspects_and_controls_alone(
    stored: Project, options: tuple[str, ...]
) -> None:
    """Two processes, the suspects first, no xdist, no file of the parent's, no pdb."""
    ended = stored.spawn(*GATE, *options)
    seen = children(stored)

    assert ended.returncode == 1, ended.stdout
    assert len(seen) == 2
    for child in seen:
        assert child["ran"] == [
            f"test_it.py::test_x[{name}]" for name in ("b", "d", "a", "c")
        ]
        assert child["xdist"] == []
        assert child["workers"] in {None, 0}
        assert (child["pdb"], child["maxfail"]) == (False, 0)
        assert (child["xml"], child["json"], child["html"]) == (None, None, None)
    assert "(Pdb)" not in ended.stdout
    if "--junitxml=junit.xml" in options:
        assert len(stored.junit()) == 5
        assert stored.report()["header"]["completeness"]["reported_count"] == 4
        assert len({child["basetemp"] for child in seen} | {"base"}) == 3


def test_a_child_writes_none_of_its_parents_files(project: Project) -> None:
    """Neither the log that an ini option names, nor a report of a plugin that others use."""
    project.store()
    project.write("[pytest]\nlog_file = run.log\nlog_file_level = INFO\n", "pytest.ini")
    project.write(
        """
        import logging
        from pathlib import Path

        WRITERS = {
            "--alluredir": "allure_report_dir",
            "--cov-report": "cov_report",
            "--ctrf": "ctrf",
            "--cucumberjson": "cucumber_json_path",
            "--json-report": "json_report",
            "--nunit-xml": "nunit_xmlpath",
            "--store-durations": "store_durations",
            "--snapshot-update": "update_snapshots",
        }

        def pytest_addoption(parser):
            for option, name in WRITERS.items():
                parser.addoption(option, dest=name)

        def pytest_sessionfinish(session):
            for name in WRITERS.values():
                path = getattr(session.config.option, name)
                if path:
                    with Path(path).open("a") as file:
                        file.write("written\\n")

        def pytest_runtest_setup(item):
            logging.getLogger().info(item.nodeid)
        """,
        "conftest.py",
    )
    project.set_values(b=1.2)
    names = (
        *("alluredir", "cov-report", "ctrf", "cucumberjson", "json-report"),
        *("nunit-xml", "store-durations", "snapshot-update"),
    )
    ended = project.spawn(*GATE, *(f"--{name}={name}.txt" for name in names))

    assert "x regressed" in ended.stdout, ended.stdout + ended.stderr
    for name in names:
        assert (project.path / f"{name}.txt").read_text() == "written\n", name
    assert (project.path / "run.log").read_text().count("test_x") == 3


def test_an_exact_id_is_no_prefix(project: Project) -> None:
    """Of test_x and test_x[a] only the suspect runs again."""
    project.store(
        """
        import os
        import pytest

        class TestA:
            @pytest.mark.gpuperf(max_regression={"x": "5 %"})
            def test_x(self, gpuperf):
                value = float(os.environ.get("VALUE_a", "1"))
                gpuperf.record("x", value, unit="s", better="lower")

            def test_x_too(self, gpuperf):
                gpuperf.record("x", 1)
        """
    )
    project.write(WITNESS, "conftest.py")
    project.set_values(a=1.5)
    project.spawn(*GATE)

    assert [child["ran"] for child in children(project)] == [
        ["test_it.py::TestA::test_x"]
    ] * 2


def test_a_child_runs_in_the_folder_of_its_parent(project: Project) -> None:
    """Started in a subfolder with a relative path, the children find the same tests."""
    project.write("[pytest]\ngpuperf_baseline = .gpuperf\n", "pytest.ini")
    project.write(TESTS, "tests/test_it.py")
    for _ in range(3):
        project.run("--gpuperf-update=new", "-q")
    project.set_values(b=1.2)
    project.environment.chdir(project.path / "tests")
    ended = project.run("test_it.py", "--gpuperf-confirm=2")

    assert ended.parseoutcomes() == {"passed": 4, "failed": 1}
    assert lines(ended, "FAILED", "test_x[b]", "regressed")

    for kind, ret in (
        ("reproduce: pytest ", 1),
        ("accept: ", 0),
    ):  # as they are printed
        (line,) = lines(ended, kind)
        _, _, typed = line.partition("pytest ")
        assert project.run(*shlex.split(typed), "-q").ret == ret
    assert not (project.path / "tests/.gpuperf").exists()
    assert project.run("test_it.py").ret == 0


def test_options_of_the_environment_reach_children(stored: Project) -> None:
    """PYTEST_ADDOPTS is read by every process, and -n in it starts no workers there."""
    stored.environment.setenv("PYTEST_ADDOPTS", "-p xdist.plugin -n1 -x")
    ended = stored.spawn(*GATE)
    seen = children(stored)

    assert ended.returncode == 1, ended.stdout
    assert [child["workers"] for child in seen] == [0, 0]
    assert [len(child["ran"]) for child in seen] == [4, 4]  # type: ignore[arg-type]


def test_a_child_that_does_not_start_confirms_nothing(project: Project) -> None:
    """Its suspects have not failed; the run has, with the last lines as the reason."""
    project.store(TESTS)
    project.set_values(b=1.2)
    project.write(
        """
        import os

        if "PYTEST_GPUPERF_CHILD" in os.environ:
            raise RuntimeError("no device in a fresh process")
        """,
        "conftest.py",
    )
    ended = project.run(*GATE, "--gpuperf-json=run.json")

    assert ended.ret == 1
    assert dict(project.outcomes())["test_x[b]"] == "inconclusive"
    assert lines(ended, "each of 2 fresh processes began no test")
    assert lines(ended, "the test was not measured again: a fresh process (python -m")
    assert lines(ended, "RuntimeError: no device in a fresh process")


@pytest.mark.parametrize(
    ("ending", "told"),
    [("os._exit(7)", ""), ("pytest.skip('not alone')", "not alone")],
    ids=["crashes", "is-skipped"],
)
def test_a_suspect_that_gives_no_value_alone_fails(
    project: Project, ending: str, told: str
) -> None:
    """A fresh process that dies in the test or skips it did not measure it."""
    project.store(TESTS)
    project.set_values(b=1.2)
    project.write(
        TESTS.replace(
            "        value =",
            "        alone = pytestconfig.pluginmanager.has_plugin('gpuperf-child')\n"
            "        if name == 'b' and alone:\n"
            f"            {ending}\n        value =",
        )
    )
    ended = project.run(*GATE, "--gpuperf-json=run.json")

    assert ended.ret == 1
    assert dict(project.outcomes())["test_x[b]"] == "failed"
    assert lines(ended, told)


def test_limits_are_not_held_in_a_child(project: Project) -> None:
    """A fresh process only measures: its values are judged by its parent."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["x <= 1"])
        def test_it(gpuperf, pytestconfig):
            alone = pytestconfig.pluginmanager.has_plugin("gpuperf-child")
            gpuperf.record("x", 5 if alone else 1)
        """
    )
    ended = project.run("--gpuperf-runs=2", "--gpuperf-json=run.json")
    values = [r["estimates"][0]["value"] for r in project.report()["records"]]

    assert sorted(values) == [1, 5]
    assert dict(project.outcomes())["test_it"] != "failed"
    assert ended.ret == 0


def test_a_pytest_that_a_test_starts_is_nobodys_child(project: Project) -> None:
    """A suspect finds in it what it found in the suite, in a process or in its own."""
    project.write("def test_inner(gpuperf):\n    gpuperf.record('y', 1)\n", "inner.py")
    project.store(
        """
        import os
        import subprocess
        import sys
        from pathlib import Path

        import pytest

        @pytest.mark.gpuperf(max_regression={"x": "5 %"})
        def test_x(gpuperf):
            inner = str(Path(__file__).with_name("inner.py"))
            words = ["-p", "pytest_gpuperf.plugin", "-p", "no:cacheprovider", inner]
            argv = [sys.executable, "-m", "pytest", *words]
            ran = subprocess.run(argv, stdout=subprocess.PIPE)
            shown = subprocess.run([*argv, "--collect-only"], stdout=subprocess.PIPE)
            assert (ran.returncode, pytest.main(words)) == (0, 0)
            assert b"1 passed" in ran.stdout
            assert shown.returncode == 0
            assert b"passed" not in shown.stdout
            value = float(os.environ.get("VALUE_x", "1"))
            gpuperf.record("x", value, unit="s", better="lower")
        """,
    )
    project.set_values(x=1.5)
    ended = project.spawn(*GATE, "test_it.py")

    assert "x regressed: 1.50 s" in ended.stdout, ended.stdout


CACHES = """
    import os
    import pathlib
    import pytest

    @pytest.mark.gpuperf(max_regression={"x": "5 %"})
    @pytest.mark.parametrize("name", ["a", "b", "c"])
    def test_x(gpuperf, name):
        value = float(os.environ.get(f"VALUE_{name}", "1"))
        gpuperf.record("x", value, unit="s", better="lower")
        cache = os.environ["TRITON_CACHE_DIR"]
        with pathlib.Path(__file__).with_name("caches").open("a") as file:
            print(cache, file=file)
"""


@pytest.mark.parametrize(("kept", "count"), [("fresh", 3), ("keep", 1)])
def test_who_confirms_has_caches_of_its_own(
    project: Project, kept: str, count: int
) -> None:
    """Two fresh processes have two folders beside their parent's; with keep, its own."""
    project.environment.setenv("TRITON_CACHE_DIR", str(project.path / "triton"))
    project.store(CACHES)
    (project.path / "caches").unlink()
    project.set_values(b=1.2)
    project.run(*GATE, "-o", f"gpuperf_jit_cache={kept}", "--gpuperf-json=run.json")
    used = set((project.path / "caches").read_text().split())

    assert len(used) == count
    assert str(project.path / "triton") in used
    assert project.report()["header"]["jit_cache"] == kept
