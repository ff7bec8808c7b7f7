"""The HTML report of a run, by pytest's option and by the command."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from fakes import runs
from fakes.project import VALUES, Project, lines
from pytest_gpuperf import cli
from pytest_gpuperf.model.codec import encode_run

needs_jinja2 = pytest.mark.skipif(
    importlib.util.find_spec("jinja2") is None,
    reason="Jinja2 is not installed (extra html)",
)


@needs_jinja2
def test_a_run_is_written_as_a_page(project: Project) -> None:
    """With its verdicts, and the sessions that they were judged against."""
    project.store()
    project.set_values(b=1.2)
    ended = project.run(
        "--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=2", "--gpuperf-html=r.html"
    )
    text = (project.path / "r.html").read_text("utf-8")

    assert ended.ret == 1
    assert "1 of 3 tests fails: 1 regressed" in text
    assert text.count('<tr class="k-stored">') == 3
    assert text.count('<tr class="k-fresh">') == 2


@needs_jinja2
def test_a_page_of_an_earlier_run_does_not_stand_for_this_one(
    project: Project,
) -> None:
    """Code under test may end the process: the page says that it was interrupted."""
    project.write("import os\n\ndef test_a(gpuperf):\n    os._exit(0)\n")
    ended = project.spawn("--gpuperf-html=r.html")

    assert ended.returncode == 1
    assert "<h1>Incomplete: the run ended before" in (
        project.path / "r.html"
    ).read_text("utf-8")


def test_a_missing_jinja2_is_told_before_anything_runs(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a wrong option, with what to install."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    project.write(VALUES)
    ended = project.run("--gpuperf-html=r.html")

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert lines(ended, "Jinja2 is not installed; pip install 'pytest-gpuperf[html]'")


@needs_jinja2
def test_the_command_writes_a_page_of_files(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """To a file, or to standard output; a file that is not a run ends with 4."""
    run, older, page = (str(tmp_path / n) for n in ("run.json", "old.json", "r.html"))
    Path(run).write_bytes(encode_run(runs.gpu_run()))
    Path(older).write_bytes(encode_run(runs.run((), session_id="old")))

    assert cli.main(["report", older, run, "-o", page]) == 0
    assert cli.main(["report", run, "-o", "-"]) == 0
    assert capfdbinary.readouterr().out == Path(page).read_bytes()
    assert cli.main(["report", page, "-o", "-"]) == 4


def test_a_run_without_the_option_loads_nothing_for_it(project: Project) -> None:
    """Neither Jinja2 nor the room of the page."""
    project.write("""
        import sys

        def test_a(gpuperf):
            gpuperf.record("x", 1.0, unit="s", better="lower")

        def test_b():
            assert not {"jinja2", "pytest_gpuperf.report.html"} & {*sys.modules}
    """)
    ended = project.spawn("--gpuperf-json=run.json")

    assert ended.returncode == 0, ended.stdout
