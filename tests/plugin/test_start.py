"""What the plugin costs where nobody uses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

from fakes.project import HUNG_S, PLUGIN, XDIST, Project
from pytest_gpuperf import hookspecs, plugin, startup

HEAVY = (
    "blake3",
    "cuda",
    "cupti",
    "cupy",
    "filelock",
    "jinja2",
    "msgspec",
    "ncu_report",
    "numpy",
    "plotly",
    "pynvml",
    "pytest_gpuperf.config",
    "pytest_gpuperf.fixture",
    "pytest_gpuperf.hooks",
    "pytest_gpuperf.model",
    "rich",
    "scipy",
    "sqlalchemy",
    "torch",
    "triton",
)

LOOK = f"""
    import json
    import subprocess
    import sys

    HEAVY = {HEAVY!r}
    started = []
    popen = subprocess.Popen.__init__

    def counted(self, *args, **kwargs):
        started.append(str(args))
        return popen(self, *args, **kwargs)

    subprocess.Popen.__init__ = counted

    def pytest_unconfigure(config):
        ours = [
            name
            for name in dir(config.hook)
            if name.startswith("pytest_runtest")
            for each in getattr(config.hook, name).get_hookimpls()
            if "gpuperf" in str(each.plugin)
        ]
        loaded = [name for name in HEAVY if name in sys.modules]
        if not hasattr(config, "workerinput"):
            print(json.dumps({{"hooks": ours, "loaded": loaded, "started": started}}))
"""


def seen(project: Project, *arguments: str) -> dict[str, list[str]]:
    """Return what a process that ran pytest had loaded, registered and started."""
    project.write(LOOK, "conftest.py")
    ended = project.spawn("-q", "-s", *arguments)
    found: dict[str, list[str]] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_unused_it_registers_loads_and_starts_nothing(project: Project) -> None:
    """No hook around tests, no heavy library, no room of ours, no process."""
    project.write("def test_it():\n    pass\n")

    assert seen(project) == {"hooks": [], "loaded": [], "started": []}


def test_an_xdist_controller_waits_for_a_measurement(project: Project) -> None:
    """It must be there before the loop begins, yet it loads no room and starts no tool."""
    project.write("def test_it():\n    pass\n")
    found = seen(project, *XDIST, "-n2")

    assert [text for text in found["started"] if "exec(eval(" not in text] == []
    assert found["loaded"] == ["pytest_gpuperf.hooks"]


def test_an_xdist_controller_that_is_asked_for_something_is_ready_at_once(
    project: Project,
) -> None:
    """A store that cannot be read is told before any test runs, used or not."""
    project.write("def test_it():\n    pass\n")
    ended = project.run(*XDIST, "-n2", "--gpuperf-baseline=missing")

    assert ended.ret == 4


def test_used_it_loads_only_what_it_needs(project: Project) -> None:
    """A test that measures loads no report, chart, database or GPU library."""
    project.write("def test_it(gpuperf):\n    gpuperf.record('x', 1)\n")
    found = seen(project)

    assert found["hooks"]
    assert {"cupy", "jinja2", "plotly", "rich", "sqlalchemy", "torch"}.isdisjoint(
        found["loaded"]
    )


def test_judging_loads_no_arrays(project: Project) -> None:
    """A suite of pure Python that is held against a baseline pays for no numpy."""
    text = """
        import pytest

        @pytest.mark.gpuperf(max_regression={"x": "5 %"})
        @pytest.mark.parametrize("number", range(10))  # so many say how sessions vary
        def test_it(gpuperf, number):
            gpuperf.record("x", 1.0, unit="s")
    """
    project.store(text)
    found = seen(project, "--gpuperf-baseline=.gpuperf", "--gpuperf-json=run.json")

    assert {outcome for _, outcome in project.outcomes()} == {"unchanged"}
    assert "pytest_gpuperf.model" in found["loaded"]
    assert "numpy" not in found["loaded"]


def test_its_modules_are_read_as_python_compiled_them(project: Project) -> None:
    """Pytest's rewriting sees two modules before the finder; those refuse it."""
    project.write("""
        from pytest_gpuperf.compute import roofline

        def test_it(gpuperf):
            gpuperf.record('x', 1)
    """)
    # as pytest does with the packages of installed plugins
    early = "import pytest; pytest.register_assert_rewrite('pytest_gpuperf')"
    project.write(early, "early.py")
    text = """
        import json
        import sys

        from pytest_gpuperf.model import quantity

        def pytest_unconfigure():
            readers = {
                name: (type(module.__loader__).__name__, module.__doc__)
                for name, module in sys.modules.items()
                if name.partition(".")[0] == "pytest_gpuperf"
            }
            print(json.dumps(readers))
    """
    project.write(text, "conftest.py")
    ended = project.plain("-p", "early", *PLUGIN, "-q", "-s")

    readers = json.loads(ended.stdout.splitlines()[-1])
    rewriting = {
        name: docstring
        for name, (reader, docstring) in readers.items()
        if reader != "SourceFileLoader"
    }
    assert set(rewriting) == {
        "pytest_gpuperf",
        "pytest_gpuperf.plugin",
    }
    assert all("PYTEST_DONT_REWRITE" in docstring for docstring in rewriting.values())
    assert {"pytest_gpuperf.compute.roofline", "pytest_gpuperf.hooks"} <= set(readers)


def test_pytest_sees_only_the_hooks_and_the_fixture() -> None:
    """pytest looks at each name that `dir()` has of a plugin, and then at its value."""
    names = {name for module in (hookspecs, plugin, startup) for name in dir(module)}

    assert {name for name in names if not name.startswith("pytest_")} == {"gpuperf"}
    assert {"pytest_addhooks", "pytest_configure", *hookspecs.__all__} <= names


def test_imports_are_left_as_they_were(project: Project) -> None:
    """The finder of our modules is removed at the end of its run, also of a refused one."""
    project.write("def test_it(gpuperf):\n    gpuperf.record('x', 1)\n")
    text = f"""
        import sys
        import pytest

        before = list(sys.meta_path)
        during = []

        class Look:
            def pytest_runtest_call(self):
                during.extend(getattr(each, "__name__", "") for each in sys.meta_path)

        for _ in range(2):
            assert pytest.main(["-q", *{PLUGIN!r}], plugins=[Look()]) == 0
        assert during.count("PackageFinder") == 2, during
        assert sys.meta_path == before
        assert pytest.main(["--gpuperf-unknown", *{PLUGIN!r}]) == 4
        assert sys.meta_path == before
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        cwd=project.path,
        capture_output=True,
        encoding="utf-8",
        timeout=HUNG_S,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_without_a_gpu_nothing_is_locked(project: Project) -> None:
    """No module of locks is loaded, and no folder is made for them."""
    project.environment.setenv("CUDA_VISIBLE_DEVICES", "")  # this machine may have one
    project.environment.setenv("GPUPERF_LOCK_DIR", str(project.path / "locks"))
    project.write("def test_it(gpuperf):\n    gpuperf(int)\n")
    text = "import sys\n\ndef pytest_unconfigure():\n    print(sorted(sys.modules))\n"
    project.write(text, "conftest.py")
    loaded = project.spawn("-q", "-s", "--gpuperf-lock=exclusive").stdout

    assert "'pytest_gpuperf.measure.bench'" in loaded
    for name in (
        "filelock",
        "pytest_gpuperf.collect.leases",
        "pytest_gpuperf.measure.turns",
    ):
        assert f"'{name}'" not in loaded
    assert not (project.path / "locks").exists()


def test_importing_the_package_costs_nothing() -> None:
    """`import pytest_gpuperf` loads no other module of it and nothing heavy."""
    text = (
        "import sys, pytest_gpuperf; "
        f"print([n for n in {HEAVY!r} if n in sys.modules], 'pytest' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        check=True,
        encoding="utf-8",
        timeout=HUNG_S,
    )

    assert ended.stdout == "[] False\n"


def test_it_can_be_blocked_by_name(project: Project) -> None:
    """`-p no:gpuperf` leaves no option, no marker and no fixture."""
    folder = project.path / "installed" / "fake-1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: fake\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(
        "[pytest11]\ngpuperf = pytest_gpuperf.plugin\n"
    )
    project.write("def test_it():\n    pass\n")
    paths = [str(folder.parent), os.environ.get("PYTHONPATH", "")]
    project.environment.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    project.environment.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    found = project.plain("--markers")
    blocked = project.plain("--markers", "-p", "no:gpuperf")

    assert found.returncode == 0
    assert "@pytest.mark.gpuperf(" in found.stdout
    assert blocked.returncode == 0
    assert "gpuperf" not in blocked.stdout


def test_it_is_registered_once(project: Project) -> None:
    """Named with -p where it is installed too, it is still one plugin."""
    project.write("def test_it(gpuperf):\n    gpuperf.record('x', 1)\n")

    assert project.run(*PLUGIN, *PLUGIN).parseoutcomes() == {"passed": 1}
