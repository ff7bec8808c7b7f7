"""A kept run, judged again where nothing can be measured."""

from __future__ import annotations

import json

import pytest

from fakes.project import XDIST, Project, lines

TESTS = """
    import os
    import pytest

    @pytest.mark.gpuperf(limits=["time <= 3600 s"], iterations=5)
    def test_time(gpuperf):
        perf = gpuperf.measure(int)
        assert perf.time > 0
        assert perf.result == 0

    @pytest.mark.gpuperf(limits=["x <= 1"])
    @pytest.mark.parametrize("n", [1, 2])
    def test_number(gpuperf, n):
        gpuperf.record("x", n)

    def test_range(gpuperf):
        with gpuperf.range("block") as perf:
            pass
        assert perf.time >= 0

    @pytest.mark.gpuperf(iterations=5)
    def test_pair(gpuperf):
        assert gpuperf.compare(int, float).speedup > 0
"""


def verdicts(project: Project, name: str) -> list[tuple[str, str, str, float | None]]:
    """Return what a run decided, with the values that it decided on."""
    return sorted(
        (
            verdict["key"]["test_id"],
            verdict["metric"],
            verdict["outcome"],
            (verdict["estimate"] or {}).get("value"),
        )
        for verdict in project.report(name)["verdicts"]
    )


def references(project: Project, name: str) -> list[tuple[str, str]]:
    """Return what a run knows of the reference workloads."""
    records = project.report(name)["references"]
    return sorted((str(r["key"]), str(r["estimates"])) for r in records)


@pytest.mark.parametrize("workers", [(), (*XDIST, "-n2")], ids=["alone", "xdist"])
def test_a_replayed_run_decides_the_same(
    project: Project, workers: tuple[str, ...]
) -> None:
    """Same outcomes, same verdicts and same values, to the last digit."""
    project.write(TESTS)
    first = project.run(*workers, "--gpuperf-record=kept", "--gpuperf-json=1.json")
    second = project.run(*workers, "--gpuperf-replay=kept", "--gpuperf-json=2.json")

    assert first.parseoutcomes() == second.parseoutcomes() == {"passed": 4, "failed": 1}
    assert verdicts(project, "1.json") == verdicts(project, "2.json")
    assert sorted(str(r["estimates"]) for r in project.report("1.json")["records"]) == (
        sorted(str(r["estimates"]) for r in project.report("2.json")["records"])
    )
    assert references(project, "1.json") == references(project, "2.json") != []
    assert (
        project.report("1.json")["header"]["session"]["id"]
        == (project.report("2.json")["header"]["session"]["id"])
    )


def test_a_replayed_run_holds_other_limits(project: Project) -> None:
    """A kept value can be held to a limit that was written afterwards."""
    project.write(TESTS)
    project.run("--gpuperf-record=kept")
    project.write(TESTS.replace("x <= 1", "x <= 2"))

    ended = project.run("--gpuperf-replay=kept")
    assert ended.parseoutcomes() == {"passed": 5}


def test_a_test_that_was_not_recorded_is_unmeasured(project: Project) -> None:
    """Nothing is measured in its place."""
    project.write(TESTS)
    project.run("--gpuperf-record=kept")
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["time <= 3600 s"])
        def test_limit(gpuperf):
            gpuperf(int)

        def test_no_limit(gpuperf):
            gpuperf(int)
        """
    )
    ended = project.run("--gpuperf-replay=kept", "-rs", "--gpuperf-json=run.json")

    assert ended.parseoutcomes() == {"skipped": 2}
    assert project.outcomes() == {
        ("test_limit", "unmeasured"),
        ("test_no_limit", "unmeasured"),
    }
    assert len(lines(ended, "SKIPPED", "the recording has no such measurement")) == 2


def test_a_replay_confirms_from_the_recording(project: Project) -> None:
    """Confirming processes were kept too: the regression is found without a process."""
    project.store()
    project.set_values(b=1.2)
    options = ("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=2")
    first = project.run(*options, "--gpuperf-record=kept", "--gpuperf-json=1.json")
    project.set_values(b=1.0)
    second = project.run(*options, "--gpuperf-replay=kept", "--gpuperf-json=2.json")

    assert first.parseoutcomes() == {"passed": 2, "failed": 1}
    assert second.parseoutcomes() == {"passed": 2, "failed": 1}
    assert project.outcomes("1.json") == project.outcomes("2.json")


def test_a_recording_survives_its_last_line(project: Project) -> None:
    """A line that a kill cut off is left out; what is before it is whole."""
    project.write(TESTS)
    project.run("--gpuperf-record=kept")
    (file,) = (project.path / "kept").glob("readings-*.jsonl")
    file.write_bytes(file.read_bytes() + b'{"key": {"test_')

    assert project.run("--gpuperf-replay=kept").parseoutcomes() == {
        "passed": 4,
        "failed": 1,
    }


@pytest.mark.parametrize("workers", [(), (*XDIST, "-n2")], ids=["alone", "xdist"])
def test_a_broken_recording_is_a_usage_error(
    project: Project, workers: tuple[str, ...]
) -> None:
    """It is told before a test runs, with the file and what to do."""
    project.write(TESTS)
    (project.path / "kept").mkdir()
    empty = project.run("--gpuperf-replay=kept", *workers)
    (project.path / "kept" / "recording.json").write_text(json.dumps({"schema": 1}))
    broken = project.run("--gpuperf-replay=kept", *workers)

    for ended, remedy in (
        (empty, "name a folder of --gpuperf-record"),
        (broken, "record it again with --gpuperf-record"),
    ):
        assert ended.ret == pytest.ExitCode.USAGE_ERROR
        assert lines(ended, "gpuperf: ", "kept", remedy)


def test_a_folder_with_something_else_is_not_recorded_into(project: Project) -> None:
    """A run never deletes what it did not write."""
    project.write(TESTS)
    mine = project.write("mine\n", "kept/mine.txt")
    ended = project.run("--gpuperf-record=kept")

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert lines(ended, "kept holds mine.txt, which is not part of a recording")
    assert mine.read_text() == "mine\n"


def test_a_recording_is_not_replaced(project: Project) -> None:
    """A second run into the same folder is refused before any test runs."""
    project.write(TESTS)
    project.run("--gpuperf-record=kept")
    (file,) = (project.path / "kept").glob("readings-*.jsonl")
    before = file.read_bytes()
    again = project.run("--gpuperf-record=kept", "-k", "time")

    assert "holds the readings of an earlier run" in "\n".join(
        again.outlines + again.errlines
    )
    assert file.read_bytes() == before
