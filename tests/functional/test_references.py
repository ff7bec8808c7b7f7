"""Reference workloads: timed beside tests in every process, and no test of the run."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from fakes.project import XDIST, Project, command, lines

TIMED = """
    def test_it(gpuperf):
        gpuperf(sum, range(100))
"""
LOOK = """
    import sys

    def pytest_unconfigure(config):
        print("loaded:", "pytest_gpuperf.measure.references" in sys.modules)
"""


def test_every_process_that_measures_times_them(project: Project) -> None:
    """One record for each workload and process, in a list of their own."""
    project.write(TIMED)
    ended = project.run("--gpuperf-json=run.json", "--gpuperf-runs=3")
    run = project.report()
    processes = Counter(
        (record["role"], record["process_index"])
        for record in run["references"]
        if record["key"]["name"] != "numpy"  # whoever runs these tests may have it
    )

    assert processes == {("main", 0): 4, ("repeat", 1): 4, ("repeat", 2): 4}
    assert {record["kind"] for record in run["references"]} == {"reference"}
    assert {record["key"]["test_id"] for record in run["references"]} == {
        "gpuperf::references"
    }
    assert {record["key"]["test_id"] for record in run["records"]} == {
        "test_it.py::test_it"
    }
    assert run["header"]["completeness"]["expected_count"] == 1
    assert lines(ended, "references") == []
    assert lines(ended, "judged 0 of 1")


def test_the_workers_of_a_run_are_one_process(project: Project) -> None:
    """What they timed side by side is one value of each workload."""
    project.write(TIMED.replace("test_it", "test_a") + TIMED.replace("it(", "b("))
    project.run(*XDIST, "-n2", "--gpuperf-json=run.json")
    references = project.report()["references"]
    python = [record for record in references if record["key"]["name"] == "python"]

    assert [record["process_index"] for record in python] == [0]
    assert python[0]["soft_facts"]["xdist_workers"] == "2"


def test_workers_time_them_for_a_store_that_they_do_not_see(
    project: Project,
) -> None:
    """A variable names the store of the controller alone."""
    project.write(TIMED)
    project.write(
        """
        import sys

        def pytest_unconfigure(config):
            loaded = "pytest_gpuperf.measure.references" in sys.modules
            if hasattr(config, "workerinput"):
                (config.rootpath / "loaded.txt").write_text(str(loaded))
        """,
        "conftest.py",
    )
    project.spawn("--gpuperf-baseline=perf", "--gpuperf-update=all")
    project.environment.setenv("GPUPERF_BASELINE", str(project.path / "perf"))

    ended = project.spawn(*XDIST, "-n1")

    assert ended.returncode in {0, 1}, ended.stdout
    assert (project.path / "loaded.txt").read_text("utf-8") == "True"


@pytest.mark.parametrize(
    ("text", "arguments", "loaded"),
    [
        (TIMED, ("--gpuperf-json=run.json",), True),
        (TIMED, ("--gpuperf-update=new",), True),
        (TIMED, ("--gpuperf-record=recording",), True),
        # A limit is judged without them.
        (TIMED, (), False),
        (TIMED, ("--gpuperf-markdown=page.md",), False),
        (TIMED, ("--collect-only",), False),
        (TIMED, ("--gpuperf-disable",), False),
        ("def test_it():\n    pass\n", (), False),
    ],
)
def test_a_run_without_a_use_for_them_times_none(
    project: Project, text: str, arguments: tuple[str, ...], *, loaded: bool
) -> None:
    """They are compared, stored and written; other runs do not even import them."""
    project.write(LOOK, "conftest.py")
    project.write(text)

    ended = project.spawn("-s", *arguments)

    assert f"loaded: {loaded}" in ended.stdout


def test_they_are_stored_beside_the_tests(project: Project) -> None:
    """In a file of their own, with each session that stores a test."""
    project.write(TIMED)
    ended = [project.run("--gpuperf-update=all") for _ in range(3)]
    # On a busy machine a session may store nothing.
    count = sum(bool(lines(each, "stored 1 measurement")) for each in ended)
    if not count:
        pytest.skip("the machine was too busy to store the test")
    (stored,) = project.path.glob(".gpuperf/*/gpuperf~*.json")

    assert stored.read_text("utf-8").count('"started_unix_s"') == count
    assert list(stored.parent.glob("test_it.json"))


def test_a_single_test_has_them_as_controls(project: Project) -> None:
    """What the machine did while a suspect ran again is known without other tests."""
    project.write(
        """
        import os

        def test_it(gpuperf):
            gpuperf(sum, range(int(os.environ.get("COUNT", "20000"))))
        """
    )
    stored = [project.run("--gpuperf-update=all") for _ in range(3)]
    if not all(lines(ended, "stored 1 measurement") for ended in stored):
        pytest.skip("the machine was too busy to store the test in each session")
    _steady_and_faster(project, 4)
    project.environment.setenv("COUNT", "2000000")
    project.run(
        "--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=2", "--gpuperf-json=run.json"
    )
    run = project.report()
    if not _calm(run):
        pytest.skip("the machine was too busy to time three workloads")
    (shift,), (verdict,) = run["shifts"], run["verdicts"]

    assert {record["process_index"] for record in run["references"]} == {0, 1, 2}
    assert shift["bound_class"] == "host"
    assert shift["control_count"] >= 3
    assert shift["effect"] > 1  # the stored workloads were four times as fast
    assert verdict["outcome"] == "regressed"
    assert verdict["change"]["machine_shift"] > 0.5  # 0.7 of it, on a log scale


def _calm(run: dict[str, Any]) -> bool:
    """Return whether three workloads took about as long in each process of a run."""
    times: dict[str, list[float]] = {}
    for record in run["references"]:
        for estimate in record["estimates"]:
            if estimate["metric"] == "time":
                times.setdefault(record["key"]["name"], []).append(estimate["value"])
    process_count = len({record["process_index"] for record in run["references"]})
    return (
        sum(
            len(series) == process_count and max(series) <= 1.5 * min(series)
            for series in times.values()
        )
        >= 3
    )


def _steady_and_faster(project: Project, ratio: float) -> None:
    """Let the stored sessions be of a machine that always took less for its workloads."""
    (stored,) = project.path.glob(".gpuperf/*/gpuperf~*.json")
    times: dict[str, float] = {}  # of the first session, by workload
    cores: dict[str, str] = {}  # the same: what they were faster by, no loop tells

    def steady(row: re.Match[str]) -> str:
        time_s = times.setdefault(row["name"], float(row["time"]) / ratio)
        speed = re.compile(r"\[\[.*?\]\]")
        told = speed.search(row["after"])
        core = cores.setdefault(row["name"], "[]" if told is None else told[0])
        return f"{row['before']}{time_s!r}{speed.sub(core, row['after'])}"

    text = stored.read_text("utf-8")
    row = (
        r'(?P<before>"time","s","host",\[)(?P<time>[^],]+)'
        r'(?P<after>.*"name":"(?P<name>\w+)")'
    )
    text, edited_count = re.subn(row, steady, text)
    if edited_count < 9:
        pytest.skip("the machine was too busy to time three workloads in each session")
    stored.write_text(text, "utf-8")
    accepted = command(
        "baseline", "accept", ".gpuperf", "--edited", folder=project.path
    )
    assert accepted.returncode == 0, accepted.stderr


def test_what_waits_does_not_move_with_what_computes(project: Project) -> None:
    """A sleep takes as long on a busy machine: no reference workload speaks for it."""
    project.write(
        """
        import os
        import time

        import pytest

        @pytest.mark.gpuperf(iterations=20)
        def test_it(gpuperf):
            gpuperf(time.sleep, float(os.environ.get("SLEEP_S", "0.002")))
        """
    )
    for _ in range(3):
        project.run("--gpuperf-update=all")
    project.environment.setenv("SLEEP_S", "0.04")
    project.run(
        "--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=2", "--gpuperf-json=run.json"
    )
    run = project.report()
    (verdict,) = run["verdicts"]

    assert {record["bound_class"] for record in run["records"]} == {"wait"}
    assert run["shifts"] == []
    assert verdict["change"].get("machine_shift") is None
    assert verdict["outcome"] == "regressed"


def test_tests_that_wait_for_a_disk_have_witnesses_of_their_own(
    project: Project,
) -> None:
    """Three workloads in each process that runs such a test, and in no other."""
    project.write(
        """
        import os

        def test_disk(gpuperf, tmp_path):
            def save():
                with open(tmp_path / "file", "wb") as file:
                    file.write(b"x" * 4096)
                    file.flush()
                    os.fsync(file.fileno())

            gpuperf(save)
        """
    )
    project.run("--gpuperf-json=run.json", "--gpuperf-runs=2")
    run = project.report()
    if {record["bound_class"] for record in run["records"]} != {"disk"}:
        pytest.skip("the temporary folder is in memory, or the system counts no blocks")
    timed = [
        (record["process_index"], record["key"]["name"])
        for record in run["references"]
        if record["bound_class"] == "disk" and record["series"][0]["values"]
    ]
    names = ["disk-append", "disk-overwrite", "disk-write"]

    assert sorted(timed) == [(process, name) for process in (0, 1) for name in names]


def test_a_sleep_is_not_held_against_a_disk(project: Project) -> None:
    """It takes as long, whoever writes."""
    project.write(
        """
        import time

        def test_it(gpuperf):
            gpuperf(time.sleep, 0.001)
        """
    )
    project.run("--gpuperf-json=run.json")
    run = project.report()

    held_against = {record["bound_class"] for record in run["references"]}
    assert {record["bound_class"] for record in run["records"]} == {"wait"}
    # A busy machine may leave out that of the caches.
    assert "host" in held_against
    assert held_against <= {"host", "cache"}
