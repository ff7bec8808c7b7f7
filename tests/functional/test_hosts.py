"""Workers on another host: what they measured is judged by nothing that ran elsewhere."""

from __future__ import annotations

import shlex
import sys

import pytest

from fakes.project import VALUES, XDIST, Project

# what begins a worker that is, for all it can tell, on another machine
_WORKER = """\
#!/bin/sh
{variables} exec {python} "$@"
"""


def another_host(project: Project, **variables: str) -> str:
    """Return the xdist option of a worker on another host; `variables`: only there."""
    settings = " ".join(f"{k}={shlex.quote(v)}" for k, v in variables.items())
    path = project.path / "python-there"
    text = _WORKER.format(variables=settings, python=shlex.quote(sys.executable))
    path.write_text(text, "utf-8")
    path.chmod(0o755)
    return f"--tx=popen//python={path}"


@pytest.mark.skipif(sys.platform == "win32", reason="the worker starts by a script")
@pytest.mark.parametrize("here", ["0.5", "3"])
def test_another_machine_confirms_nothing(project: Project, here: str) -> None:
    """A slowdown there stays open, however fast the machine is where pytest was started."""
    project.write(VALUES)
    there = another_host(project, GPUPERF_MACHINE="h100-3")
    for _ in range(2):
        ended = project.run(*XDIST, "--dist=load", there, "--gpuperf-update=all")
        assert ended.ret == 0, ended.stdout.str()
    there = another_host(project, GPUPERF_MACHINE="h100-3", VALUE_a="1.5")
    project.set_values(a=float(here))
    ended = project.run(
        *(*XDIST, "--dist=load", there, "--gpuperf-json=run.json"),
        *("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=2"),
    )
    (verdict,) = (
        v for v in project.report()["verdicts"] if v["key"]["test_id"].endswith("[a]")
    )

    assert (verdict["outcome"], verdict["cause"]) == (
        "inconclusive",
        "measured-elsewhere",
    )
    assert "only be confirmed on the machine that measured it" in " ".join(
        line.strip() for line in ended.outlines
    )
    assert ended.ret == 0
    # each session is that of the worker's machine
    stored = [
        p.read_text("utf-8") for p in project.path.glob(".gpuperf/*/test_it.json")
    ]
    assert stored[0].count('"machine":"h100-3"') == 2


def test_each_of_several_workers_is_refused(project: Project) -> None:
    """Both would measure a test, and a run has one value of it; nothing has run by then."""
    project.write(
        """
        from pathlib import Path

        def test_x(gpuperf):
            Path("ran").touch()
            gpuperf.record("x", 1)
        """
    )
    for options in ([], ["--gpuperf-update=all"]):
        ended = project.run(*XDIST, "--dist=each", "--tx=2*popen", *options)

        assert ended.ret == pytest.ExitCode.USAGE_ERROR
        ended.stderr.fnmatch_lines(["*--dist each*2 workers*once for each machine*"])
        assert not (project.path / "ran").exists()
        assert not (project.path / ".gpuperf").exists()


def test_each_is_kept_where_nothing_is_measured(project: Project) -> None:
    """Other tests run on every worker, as those that are switched off, and one worker is one."""
    project.write("def test_plain(): pass", "test_plain.py")
    each = (*XDIST, "--dist=each")
    plain = project.run(*each, "--tx=2*popen", "--gpuperf-update=all")
    project.write("def test_x(gpuperf): gpuperf.record('x', 1)")
    disabled = project.run(*each, "--tx=2*popen", "--gpuperf-disable")
    alone = project.run(*each, "--tx=popen")

    assert plain.parseoutcomes() == {"passed": 2}
    assert disabled.parseoutcomes() == {"passed": 4}
    assert alone.parseoutcomes() == {"passed": 2}
