"""Whole runs that compare with a revision, and the command that starts them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from fakes import fake_cuda
from fakes.project import PLUGIN, XDIST, Project, lines
from functional.against.repository import (
    AGAINST,
    GIT,
    NEW,
    OLD,
    TESTS,
    Repository,
    run_command,
)

LATE = """
    import pytest


    @pytest.mark.gpuperf(max_regression={"x": "5 %"})
    @pytest.mark.parametrize("name", ["slower", "same"])
    def test_x(gpuperf, name):
        from late import core

        gpuperf.record("x", core.VALUES[name], unit="s", better="lower")
"""


BACKEND = """
    import pathlib
    import zipfile


    def build_wheel(folder, config_settings=None, metadata_directory=None):
        FAIL
        sources = pathlib.Path("src", "late").iterdir()
        files = {f"late/{p.stem}.py": p.read_text() for p in sources if p.is_file()}
        info = "late-1.0.dist-info"
        files[f"{info}/METADATA"] = "Metadata-Version: 2.1\\nName: late\\nVersion: 1.0\\n"
        files[f"{info}/WHEEL"] = (
            "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        )
        files[f"{info}/RECORD"] = "".join(f"{file},,\\n" for file in files)
        with zipfile.ZipFile(pathlib.Path(folder, "late-1.0-py3-none-any.whl"), "w") as w:
            for file, text in files.items():
                w.writestr(file, text)
        return "late-1.0-py3-none-any.whl"
"""


SETTINGS = """
    [build-system]
    requires = []
    build-backend = "backend"
    backend-path = ["."]

    [project]
    name = "late"
    version = "1.0"
"""


def installed_late(
    project: Project, elsewhere: Path, suffix: str = ".py", fails: str = "pass"
) -> None:
    """Make a project whose tests import what is installed of it when they run."""
    repository = Repository(project)
    project.write(LATE)
    project.write(SETTINGS, "pyproject.toml")
    project.write(BACKEND.replace("FAIL", fails), "backend.py")
    project.write("", "src/late/__init__.py")
    source = f"src/late/core{suffix}"
    project.write(f"VALUES = {OLD!r}\n", source)
    repository.git("add", ".")
    repository.git("commit", "-q", "-m", "old")
    project.write(f"VALUES = {NEW!r}\n", source)
    site = elsewhere / "site" / "late"
    site.mkdir(parents=True)
    (site / "__init__.py").touch()
    (site / "core.py").write_text(f"VALUES = {NEW!r}\n", encoding="utf-8")
    project.environment.setenv("PYTHONPATH", str(site.parent), prepend=os.pathsep)
    project.environment.setenv("XDG_CACHE_HOME", str(elsewhere / "cache"))


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="pip builds them")
@pytest.mark.parametrize(
    "suffix", [".py", pytest.param(".txt", marks=pytest.mark.long)]
)
def test_what_tests_import_when_they_run_is_built_if_need_be(
    project: Project, tmp_path: Path, suffix: str
) -> None:
    """No collection tells what is installed, or made by a build, from nobody's code."""
    installed_late(project, tmp_path, suffix)
    ended = project.spawn(*AGAINST)
    against = project.report()["against"]

    assert against["level"] == 2, ended.stdout
    assert against["gap"] is None
    outcomes = Repository.outcomes_of(project)
    assert {name: outcome for name, (outcome, _) in outcomes.items()} == {
        "test_x[slower]": "regressed",
        "test_x[same]": "unchanged",
    }
    assert "both sides are built instead" in " ".join(ended.stdout.split())


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="pip builds them")
def test_what_cannot_be_built_either_is_refused_for_both_reasons(
    project: Project, tmp_path: Path
) -> None:
    """What the tests loaded decides; why there is no build is said, too."""
    installed_late(project, tmp_path, fails="raise ZeroDivisionError")
    ended = project.spawn(*AGAINST)
    gap = project.report()["against"]["gap"]

    assert ended.returncode == 1, ended.stdout
    assert re.match(
        r"the \w+ side loaded late(\.core)? from .*, which both sides share; level 2: the old "
        r"side cannot be built in",
        gap["reason"],
    )


COMMITS = f"""
    import subprocess


    def test_commits():
        argv = [{GIT!r}, "-c", "user.name=A", "-c", "user.email=a@localhost"]
        subprocess.run([*argv, "commit", "-qam", "while tests run"], check=True)
"""


def test_a_run_of_other_code_than_is_compared_is_told(
    project: Project, tmp_path: Path
) -> None:
    """As where PYTHONPATH names another clone: the sides run what the repository has."""
    repository = Repository(project)
    project.write(f"VALUES = {OLD!r}\n", "src/work.py")
    repository.git("add", ".")
    repository.git("commit", "-qm", "old")
    project.write(f"VALUES = {NEW!r}\n", "src/work.py")
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "work.py").write_text(f"VALUES = {OLD!r}\n", encoding="utf-8")
    project.environment.setenv("PYTHONPATH", str(other), prepend=os.pathsep)
    ended = project.spawn(*AGAINST)

    assert repository.outcomes()["test_x[slower]"][0] == "regressed"
    told = " ".join(ended.stdout.split())
    assert f"this run loads work from {other / 'work.py'}, which differs" in told


def test_a_revision_is_what_it_was_when_the_run_began(project: Project) -> None:
    """A commit while tests run moves HEAD, and must not compare a tree with itself."""
    repository = Repository(project)
    repository.commit("old", **OLD)
    repository.values(**NEW)
    project.write(COMMITS, "test_commits.py")
    ended = project.spawn(*AGAINST)

    assert ended.returncode == 1
    outcomes = {name: outcome for name, (outcome, _) in repository.outcomes().items()}
    assert outcomes["test_x[slower]"] == "regressed"


def test_an_ini_file_that_was_repaired_since_then_is_no_hindrance(
    project: Project,
) -> None:
    """A name that no option has is refused in the run that was started, not in a side."""
    repository = Repository(project)
    project.write("[pytest]\ngpuperf_baselin = store\n", "pytest.ini")
    repository.commit("misspelt", **OLD)
    project.write("[pytest]\n", "pytest.ini")
    ended = project.spawn(*AGAINST)

    assert ended.returncode == 0, ended.stdout
    assert project.report()["against"]["gap"] is None


def test_each_test_is_held_against_the_revision(repository: Repository) -> None:
    """Slower fails; a changed test is incomparable, a new one named; nothing is left."""
    repository.project.write(
        f"""{TESTS}

    @pytest.mark.gpuperf(max_regression={{"x": "5 %"}})
    def test_changed(gpuperf):
        gpuperf.record("x", 1.0, unit="s", better="lower")
    """
    )
    repository.commit("one more", **OLD)
    path = repository.project.path / "test_it.py"
    text = path.read_text("utf-8").replace("1.0, unit", "2.0, unit")
    path.write_text(text + text[text.index("@pytest") :].replace("test_", "test_new_"))
    repository.values(**NEW)
    before = repository.git("status", "--porcelain")
    ended = repository.project.spawn(*AGAINST)
    run = repository.project.report()

    assert ended.returncode == 1, ended.stdout
    assert repository.outcomes() == {
        "test_x[slower]": ("regressed", "slower-than-limit"),
        "test_x[same]": ("unchanged", "equal"),
        "test_x[faster]": ("improved", "faster-than-limit"),
        "test_changed": ("incomparable", "test-changed"),
    }
    assert "test_new_x[slower]" in str(run["against"]["only_new"])
    assert run["against"]["modules"] == ["work"]
    assert run["against"]["block_count"] == 4
    assert "gpuperf: against HEAD: making the two sides\n" in ended.stdout
    assert "gpuperf: against HEAD: 4 blocks in " in ended.stdout
    assert repository.is_clean()
    assert repository.git("status", "--porcelain") == before


def test_a_quiet_run_under_xdist_prints_its_result_alone(
    repository: Repository,
) -> None:
    """The workers have ended when it begins; its selection is that of pytest."""
    repository.values(**NEW)
    ended = repository.project.spawn(*XDIST, "-n2", "-q", "-k", "same", *AGAINST)

    assert ended.returncode == 0, ended.stdout
    assert repository.outcomes() == {"test_x[same]": ("unchanged", "equal")}
    assert "gpuperf: against" not in ended.stdout


@pytest.mark.parametrize(
    ("revision", "said"),
    [
        ("nowhere", "nowhere is not a commit of"),
        ("HEAD^{tree}", "is a tree of"),
        ("^HEAD", "^HEAD is a range of commits or leaves some out of one"),
        ("-x", "a revision does not begin with a dash"),
    ],
)
def test_a_revision_that_is_none_ends_the_run_before_its_tests(
    repository: Repository, revision: str, said: str
) -> None:
    """A usage error: nothing has run for minutes until somebody is told."""
    ended = repository.project.run(f"--gpuperf-against={revision}")

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert said in str(ended.errlines)


def test_a_folder_without_repository_is_a_usage_error(project: Project) -> None:
    """With what to do."""
    project.write(TESTS)
    project.write(f"VALUES = {OLD}\n", "work.py")
    ended = project.run("--gpuperf-against=HEAD")

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert "is not in a git repository" in str(ended.errlines)


@pytest.mark.parametrize(
    ("asked", "status"), [(AGAINST, 1), ((*AGAINST, "-k", "plain"), 0)]
)
def test_a_revision_that_no_test_is_for_fails_the_run(
    repository: Repository, asked: tuple[str, ...], status: int
) -> None:
    """Where no test measures at all; whoever selects a part knows what it holds."""
    repository.project.write("def test_plain():\n    pass\n")
    ended = repository.project.run(*asked)

    assert ended.ret == status
    assert bool(lines(ended, "no test was compared with the revision")) == bool(status)


def test_a_revision_that_cannot_be_imported_fails_the_run(
    repository: Repository,
) -> None:
    """No verdict, the reason, and exit status 1: the gate was off."""
    repository.project.write("raise ZeroDivisionError('why')\n", "work.py")
    repository.git("commit", "-qam", "broken")
    repository.values(**NEW)
    ended = repository.project.spawn(*AGAINST)

    assert ended.returncode == 1, ended.stdout
    said = " ".join(ended.stdout.split())
    # its error, and not the end of a traceback
    assert (
        "the old side cannot collect test_it.py: ZeroDivisionError: why; compare"
        in said
    )
    assert "judged 0 of 3: 3 not compared with the revision" in ended.stdout
    assert "no test was decided against the revision" in ended.stdout
    assert repository.outcomes() == {}
    assert repository.is_clean()


@pytest.mark.parametrize(
    ("option", "remedy"),
    [("5%", "measure with the gpuperf fixture"), ("off", "--gpuperf-max-regression")],
)
def test_tests_without_a_gate_are_told_how_to_have_one(
    repository: Repository, option: str, remedy: str
) -> None:
    """The option gates no test without the fixture: it is no remedy where it is set."""
    text = "import pytest\n\n@pytest.mark.gpuperf\ndef test_once(): pass\n"
    repository.project.write(text)
    repository.project.spawn(*AGAINST, f"--gpuperf-max-regression={option}")
    gap = repository.project.report()["against"]["gap"]

    assert gap["reason"] == "no test passed that has a gate"
    assert remedy in gap["remedy"]


def test_the_command_is_the_same_as_the_option(repository: Repository) -> None:
    """pytest's options stand behind --; JSON is the run's."""
    repository.values(**NEW)
    ended = repository.command(
        *("compare", "--against", "HEAD", "test_it.py", "--format=json"),
        *("--", *PLUGIN, "-k", "slower"),
    )
    run: dict[str, Any] = json.loads(ended.stdout)

    assert ended.returncode == 1, ended.stderr
    assert [v["outcome"] for v in run["verdicts"]] == ["regressed"]


def test_the_command_has_the_budget_of_the_option(repository: Repository) -> None:
    """It stands before the options of pytest."""
    repository.values(**NEW)
    ended = repository.command(
        *("compare", "--against=HEAD", "--budget=1s", "--format=json", "test_it.py"),
        *("--", *PLUGIN),
    )

    run = json.loads(ended.stdout)

    assert "the budget of 1 s was spent" in run["against"]["gap"]["reason"]
    # undecided, where blocks were taken, and else nothing at all
    assert ended.returncode == (3 if run["verdicts"] else 4)


@pytest.mark.parametrize("revision", ["nowhere", "HEAD^{tree}", "-x", "main"])
@pytest.mark.parametrize("command", ["compare", "bisect"])
def test_a_revision_that_is_none_is_wrong_usage_of_each_command(
    repository: Repository, command: str, revision: str
) -> None:
    """
    Exit code 2, with the command's own remedy: unknown, a tree, an option, ambiguous.

    What is compared with it is not run, and pytest does not say it in its words.
    """
    repository.git("tag", "-m", "x", "main", "HEAD")
    arguments = {
        "compare": ("compare", f"--against={revision}", "test_it.py", "--", *PLUGIN),
        "bisect": ("bisect", "test_it.py::test_x[same]", f"--good={revision}"),
    }
    ended = repository.command(*arguments[command])

    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("gpuperf: error: ")
    assert revision in ended.stderr
    assert "\n    remedy: " in ended.stderr
    assert not ended.stdout
    assert repository.is_clean()


@pytest.mark.parametrize("command", ["compare", "bisect"])
def test_a_folder_without_repository_is_wrong_usage_of_each_command(
    project: Project, command: str
) -> None:
    """Exit code 2, with what to do."""
    project.write(TESTS)
    project.write(f"VALUES = {OLD}\n", "work.py")
    arguments = {
        "compare": ("compare", "--against=HEAD", "test_it.py", "--", *PLUGIN),
        "bisect": ("bisect", "test_it.py::test_x[same]", "--good=HEAD"),
    }
    ended = run_command(project, *arguments[command])

    assert ended.returncode == 2, ended.stderr
    assert "is not in a git repository" in ended.stdout + ended.stderr


def test_tests_that_cannot_be_collected_are_no_interrupt(
    repository: Repository,
) -> None:
    """pytest has one exit status for both; the command has 4 and 130."""
    repository.project.write("raise ZeroDivisionError\n", "work.py")
    ended = repository.command("compare", "--against=HEAD", "test_it.py", "--", *PLUGIN)

    assert ended.returncode == 4, ended.stdout
    assert "ZeroDivisionError" in ended.stdout


# an allocator that counts, and holds what is not in use until it is told to give it back
FRAMEWORK = """
    import pathlib
    import types

    import gpu  # it has a context

    version = types.SimpleNamespace(cuda="13.0")
    cuda = types.SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        current_stream=lambda: types.SimpleNamespace(cuda_stream=0),
        reset_peak_memory_stats=lambda index: None,
        max_memory_allocated=lambda index: 60 << 30,
        memory_allocated=lambda index: 0,
        memory_stats=lambda index: {"num_device_alloc": 0},
        empty_cache=lambda: pathlib.Path(__file__).with_name("emptied").touch(),
    )
"""
ON_A_GPU = """
    import gpu
    import pytest
    import torch

    @pytest.mark.gpuperf(max_regression={"time": "10 %"})
    def test_launch(gpuperf):
        gpuperf.measure(gpu.launch, 500_000)
"""


def test_large_tests_share_a_gpu_as_far_as_its_memory_goes(
    repository: Repository, tmp_path: Path
) -> None:
    """141 GB hold two processes of 60 GiB, and this one gives back what it held."""
    project = repository.project
    fake_cuda.machine(project, tmp_path / "machine")
    project.write(FRAMEWORK, "torch.py")
    project.write(ON_A_GPU)
    project.write("*.json\n.gpuperf\nemptied\n__pycache__\n", ".gitignore")
    repository.commit("on a GPU", **OLD)
    project.write(f"{textwrap.dedent(FRAMEWORK)}\n# another one\n", "torch.py")
    ended = project.spawn(*AGAINST, "--gpuperf-collectors=events,host,nvml")

    assert "the GPU's memory does not hold 4 processes: one process of each side" in (
        ended.stdout
    )
    assert repository.outcomes()["test_launch"][0] == "unchanged", ended.stdout
    assert (project.path / "emptied").exists()
