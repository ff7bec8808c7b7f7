"""The modules that a plain gate run loads: each is time at its start, and memory to its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fakes.project import HUNG_S, Project

# Of the package alone. Both may fall, and whoever raises one says why here. A run loads 120
# modules with 37,950 lines. 520 of them explain asserts and missing values, and are loaded
# before any test, because nothing is opened while tests run. On a busy machine its value may
# drift or be too noisy to be judged, and then it also needs what says so: 3 modules with
# 1,060 lines.
MOST_MODULES, MOST_LINES = 123, 39_100
# Whole rooms and libraries that such a run needs nothing of.
NEVER = (
    "jinja2",
    "markupsafe",
    "pytest_gpuperf.baseline.additions",
    "pytest_gpuperf.baseline.changes",
    "pytest_gpuperf.baseline.database",
    "pytest_gpuperf.baseline.encoding",
    "pytest_gpuperf.baseline.engine",
    "pytest_gpuperf.baseline.stored_record",
    "pytest_gpuperf.baseline.whole_text",
    "pytest_gpuperf.cli",
    "pytest_gpuperf.collect.binary.cuobjdump",
    "pytest_gpuperf.collect.binary.demangling",
    "pytest_gpuperf.collect.appended_file",
    "pytest_gpuperf.collect.binary.elf",
    "pytest_gpuperf.collect.chip_limits",
    "pytest_gpuperf.collect.cuda_device",
    "pytest_gpuperf.collect.cupti",
    "pytest_gpuperf.collect.expected",
    "pytest_gpuperf.collect.import_code",
    "pytest_gpuperf.collect.listed_devices",
    "pytest_gpuperf.collect.memory",
    "pytest_gpuperf.collect.ncu",
    "pytest_gpuperf.collect.nvml",
    "pytest_gpuperf.collect.parameters",
    "pytest_gpuperf.collect.replay",
    "pytest_gpuperf.collect.signals",
    "pytest_gpuperf.collect.timing.events",
    "pytest_gpuperf.collect.torch_device",
    "pytest_gpuperf.compute.alone",
    "pytest_gpuperf.compute.derive",
    "pytest_gpuperf.compute.drift",
    "pytest_gpuperf.compute.kernels",
    "pytest_gpuperf.compute.roofline",
    "pytest_gpuperf.compute.suspects",
    "pytest_gpuperf.fixture.analysis",
    "pytest_gpuperf.fixture.placeholders",
    "pytest_gpuperf.hooks.chip_check",
    "pytest_gpuperf.hooks.controller",
    "pytest_gpuperf.hooks.failures",
    "pytest_gpuperf.hooks.keywords",
    "pytest_gpuperf.hooks.limits",
    "pytest_gpuperf.hooks.progress",
    "pytest_gpuperf.judge.against",
    "pytest_gpuperf.judge.confirmation",
    "pytest_gpuperf.judge.drift",
    "pytest_gpuperf.judge.grade",
    "pytest_gpuperf.judge.limit",
    "pytest_gpuperf.judge.origin",
    "pytest_gpuperf.judge.retests",
    "pytest_gpuperf.judge.ruling",
    "pytest_gpuperf.measure.loop_record",
    "pytest_gpuperf.measure.marking",
    "pytest_gpuperf.measure.reading",
    "pytest_gpuperf.measure.time_lines",
    "pytest_gpuperf.model.activity",
    "pytest_gpuperf.model.counters",
    "pytest_gpuperf.model.roofline",
    "pytest_gpuperf.model.steps",
    "pytest_gpuperf.model.telemetry",
    "pytest_gpuperf.model.work",
    "pytest_gpuperf.pipeline.against",
    "pytest_gpuperf.pipeline.keeping",
    "pytest_gpuperf.pipeline.repeat",
    "pytest_gpuperf.pipeline.store_changes",
    "pytest_gpuperf.report.exports",
    "pytest_gpuperf.report.html",
    "pytest_gpuperf.report.notices",
    "pytest_gpuperf.report.origins",
    "pytest_gpuperf.report.runs",
    "sqlite3",
)
# What two files of runs are compared without.
NEEDLESS_FOR_RUNS = {
    "pytest_gpuperf.baseline.store",
    "pytest_gpuperf.collect.ncu.text",
    "pytest_gpuperf.collect.ncu.reading",
    "pytest_gpuperf.collect.runner",
    "pytest_gpuperf.collect.worktree",
}
COMPARES = """
    import sys
    from pytest_gpuperf.cli import main

    main(["compare", "a.json", "b.json"])
    print("loaded:", *sys.modules)
"""
LISTS = """
    import sys

    def pytest_unconfigure():
        files = {name: getattr(m, "__file__", None) for name, m in sys.modules.items()}
        with open("modules.txt", "w") as file:
            file.writelines(f"{name} {files[name]}\\n" for name in sorted(files))
"""


def test_a_plain_gate_run_loads_what_it_needs(project: Project) -> None:
    """A store of few sessions, a call on the host, and nothing that moved."""
    project.write(
        "def test_sum(gpuperf):\n    assert gpuperf(sum, range(50)) == 1225\n"
    )
    gate = ("-q", "--gpuperf-baseline=sessions", "--gpuperf-max-regression=1000000%")
    for _ in range(2):
        project.spawn(*gate, "--gpuperf-update=all")
    project.write(LISTS, "conftest.py")

    ended = project.spawn(*gate)

    assert ended.returncode == 0, ended.stdout
    lines = (project.path / "modules.txt").read_text("utf-8").splitlines()
    loaded = dict(line.split(" ", 1) for line in lines)
    ours = {
        name: file for name, file in loaded.items() if name.startswith("pytest_gpuperf")
    }
    needless = [
        name
        for name in loaded
        if any(name == never or name.startswith(f"{never}.") for never in NEVER)
    ]
    assert needless == []
    lines_count = sum(
        len(Path(file).read_text("utf-8").splitlines()) for file in ours.values()
    )
    assert len(ours) <= MOST_MODULES, sorted(ours)
    assert lines_count <= MOST_LINES, lines_count


def test_two_runs_are_compared_without_stores_git_and_formats_of_other_tools(
    project: Project,
) -> None:
    """A command that people call between two edits starts with what it needs."""
    project.write(
        "def test_sum(gpuperf):\n    assert gpuperf(sum, range(50)) == 1225\n"
    )
    for name in ("a.json", "b.json"):
        project.spawn("-q", f"--gpuperf-json={name}")
    script = project.write(COMPARES, "compares.py")

    ended = subprocess.run(
        [sys.executable, script],
        cwd=project.path,
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=HUNG_S,
    )

    assert "test_sum" in ended.stdout, ended.stderr
    loaded = set(ended.stdout.rpartition("loaded:")[2].split())
    assert "pytest_gpuperf.judge.look" in loaded
    assert loaded & NEEDLESS_FOR_RUNS == set()
