"""Fresh processes are started as the suite was, or decide nothing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from fakes.project import HUNG_S, PLUGIN, Project
from pytest_gpuperf.collect.instrumentation import conditions

GATE = ("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=2")
# A launcher sets the factor; without it everything is ten times slower.
TESTS = """
    import os
    import sys

    import pytest


    @pytest.mark.gpuperf(max_regression={"x": "5 %"})
    @pytest.mark.parametrize("name", ["a", "b", "c"])
    def test_x(gpuperf, name):
        factor = 1 if hasattr(sys, "prepared") else 10
        value = factor * float(os.environ.get(f"VALUE_{name}", "1"))
        gpuperf.record("x", value, unit="s", better="lower")
"""
LAUNCHER = """
    import sys

    if __name__ == "__main__":
        sys.prepared = True
        import pytest

        code = pytest.main(sys.argv[1:])
        {after}
        sys.exit(code)
"""
TEST = '"test_it.py::test_x[b]"'
NOT_REPLAYED = "and no fresh process can be started as the suite was"


class Ended(NamedTuple):
    """How a process ended, and what it printed, as one line."""

    code: int
    text: str


def started(project: Project, *words: str, **variables: str) -> Ended:
    """Run Python with some words and pytest's arguments in a process of its own."""
    ended = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        check=False,
        cwd=project.path,
        encoding="utf-8",
        env={**os.environ, **variables},
        timeout=HUNG_S,
    )
    printed = f"{ended.stdout} {ended.stderr}".split()
    return Ended(ended.returncode, " ".join(word for word in printed if word != "E"))


def kept(project: Project, launcher: str, *, is_prepared: bool = True) -> None:
    """Store sessions as a launcher would, and make one test 20 % slower."""
    project.environment.setenv("PREPARED", str(is_prepared))  # the key of a kept store
    if is_prepared:
        project.environment.setattr(sys, "prepared", True, raising=False)
    project.store(TESTS)
    project.environment.delattr(sys, "prepared", raising=False)
    project.write(launcher, "prepared.py")
    project.set_values(b=1.2)


def plain(after: str = "") -> str:
    """Return a launcher that hands its arguments to pytest, and does something after it."""
    return LAUNCHER.format(after=after)


def test_a_module_that_starts_pytest_starts_fresh_processes(project: Project) -> None:
    """What it prepares is there for them too, and printed commands begin with it."""
    kept(project, plain())
    ended = started(project, "-m", "prepared", *PLUGIN, *GATE)

    assert ended.code == 1
    assert "x regressed: 1.20 s, was 1.00 s: +20.0 %" in ended.text
    assert "reproduce: python -m prepared " in ended.text
    assert "accept: python -m prepared " in ended.text


@pytest.mark.parametrize("start", [("run.py",), ("-c", "import runpy; runpy.run_path('run.py', run_name='__main__')")], ids=["script", "-c"])  # fmt: skip
def test_a_script_is_not_run_again(project: Project, start: Sequence[str]) -> None:
    """Nothing is decided by children: it may do whatever it likes besides."""
    kept(project, plain("open('ran', 'a').write('x')"))
    (project.path / "prepared.py").rename(project.path / "run.py")
    ended = started(project, *start, *PLUGIN, *GATE)

    assert (project.path / "ran").read_text() == "x"
    assert ended.code == 0, ended.text
    assert "inconclusive test_x[b]" in ended.text
    assert NOT_REPLAYED in ended.text
    assert f"pytest was started by `python {start[0]}" in ended.text
    assert "gpuperf_launcher = replay" in ended.text
    assert "reproduce: pytest " in ended.text
    assert f"pytest was started by: python {start[0]}" in ended.text


def test_a_script_is_run_again_where_the_ini_file_says_so(project: Project) -> None:
    """It hands on its arguments, so a child can be told what it is."""
    project.write("[pytest]\ngpuperf_launcher = replay\n", "pytest.ini")
    kept(project, plain())
    ended = started(project, "prepared.py", *PLUGIN, *GATE)

    assert ended.code == 1
    assert "x regressed: 1.20 s, was 1.00 s: +20.0 %" in ended.text
    assert "reproduce: python prepared.py " in ended.text


@pytest.mark.parametrize(
    ("launcher", "why"),
    [
        (
            plain().replace("sys.argv[1:]", "[*sys.argv[1:], '-v']"),
            "gives pytest other arguments than its own",
        ),
        (
            plain("pytest.main(sys.argv[1:])"),
            "starts pytest more than once",
        ),
        (
            plain().replace(
                "code = pytest", "import os; os.fork()\n        code = pytest"
            ),
            "starts pytest more than once",
        ),
    ],
    ids=["adds-arguments", "two-runs", "forks"],
)
def test_a_launcher_that_starts_something_else_decides_nothing(
    project: Project, launcher: str, why: str
) -> None:
    """A child says how it was started, and runs no test where that was otherwise."""
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    kept(project, plain())
    project.write(launcher, "prepared.py")
    ended = started(project, "-m", "prepared", *PLUGIN, *GATE)

    assert "x regressed" not in ended.text
    assert NOT_REPLAYED in ended.text
    assert why in ended.text


def test_what_a_launcher_writes_is_the_suites(project: Project) -> None:
    """A child leaves the folder when pytest has ended: by then the user's is behind it."""
    after = "open('data.txt', 'a').write('one\\n')"
    kept(project, plain(after))
    ended = started(project, "-m", "prepared", *PLUGIN, *GATE)

    assert ended.code == 1
    assert (project.path / "data.txt").read_text() == "one\n"


@pytest.mark.skipif(not importlib.util.find_spec("coverage"), reason="needs coverage")
@pytest.mark.parametrize("as_module", [True, False])
def test_a_traced_suite_has_traced_children(project: Project, as_module: bool) -> None:
    """Their data is their own: the suite's file has what the suite covered."""
    script = Path(sys.executable).with_name("coverage")
    if not as_module and not script.exists():
        pytest.skip("the command is not beside this interpreter")
    start = ("-m", "coverage") if as_module else (str(script),)
    words = (*start, "run", "-p", "--data-file=covered", "-m", "pytest")
    kept(project, plain(), is_prepared=False)
    ended = started(project, *words, *PLUGIN, *GATE, "--gpuperf-compare-across=tracer")

    assert ended.code == 1, ended.text
    assert "x regressed: 12.0 s, was 10.0 s: +20.0 %" in ended.text
    assert len(list(project.path.glob("covered*"))) == 1
    typed = "python -m coverage" if as_module else "coverage"
    assert f"reproduce: {typed} run -p --data-file=covered -m pytest" in ended.text


@pytest.mark.parametrize(
    ("options", "variables", "fact"),
    [
        (("-O",), {}, "python_mode: none -> -O"),
        ((), {"PYTHONMALLOC": "debug"}, "allocator: none -> PYTHONMALLOC=debug"),
        (("-X", "tracemalloc"), {}, "tracer: none -> tracemalloc"),
    ],
)
def test_sessions_of_other_conditions_are_not_compared(
    project: Project, options: Sequence[str], variables: Mapping[str, str], fact: str
) -> None:
    """A debug allocator slows what allocates, and nothing else."""
    if conditions():
        pytest.skip("is traced itself: so would be the stored sessions")
    start = ("-m", "pytest")
    kept(project, plain(), is_prepared=False)
    ended = started(project, *options, *start, *PLUGIN, *GATE, **variables)
    assert ended.code == 1
    assert "3 incomparable (fingerprint differs)" in ended.text
    assert fact in ended.text


def test_conditions_that_a_conftest_makes_void_the_children(project: Project) -> None:
    """Only processes that start later read them."""
    if sys.platform != "linux":
        pytest.skip("the first environment of a process is known on Linux alone")
    kept(project, plain(), is_prepared=False)
    project.write("import os\nos.environ['PYTHONMALLOC'] = 'debug'\n", "conftest.py")
    ended = started(project, "-m", "pytest", *PLUGIN, *GATE)

    assert ended.code == 0
    assert (
        "fresh processes ran with other tracers or modes than the suite" in ended.text
    )
    assert "allocator: none -> PYTHONMALLOC=debug" in ended.text


def test_a_comparison_with_a_revision_needs_a_launcher_too(project: Project) -> None:
    """Its processes would not be prepared as the suite was."""
    project.write(TESTS)
    project.write(plain(), "run.py")
    project.write("VALUE = 1\n", "conftest.py")
    for words in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"),
    ):
        subprocess.run(["git", *words], cwd=project.path, check=True)  # noqa: S607 - git of the path
    project.write("VALUE = 2\n", "conftest.py")
    ended = started(project, "run.py", *PLUGIN, "--gpuperf-against=HEAD")

    assert ended.code == 1
    assert "`python run.py`, which is not run again" in ended.text
