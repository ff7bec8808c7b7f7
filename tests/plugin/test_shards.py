"""A run in shards: which part a process is, and the commands that put them together."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from fakes import split
from fakes.project import VALUES, XDIST, Project, command, lines
from pytest_gpuperf.collect.session import ci_shard

SPLIT = ("-p", "fakes.split")
OTHER = VALUES.replace("test_x", "test_other")
GATE = ("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=1")


@pytest.fixture(name="project")
def project_(project: Project) -> Project:
    """Return a project of six tests in two modules, on a machine without a scheduler."""
    assert ci_shard({}) is None
    for name in ("GITHUB_RUN_ID", "CI_NODE_INDEX", "SLURM_JOB_ID"):
        project.environment.delenv(name, raising=False)
    # Processes import `fakes`, too.
    tests = str(Path(split.__file__).parents[1])
    project.environment.setenv("PYTHONPATH", tests, prepend=os.pathsep)
    project.write(OTHER, "test_other.py")
    project.write(VALUES)
    return project


def shards(
    project: Project, *options: str, count: int = 3, run_id: str = "42"
) -> list[str]:
    """Run every shard; return the files that they write."""
    names = [f"shard-{number}.json" for number in range(1, count + 1)]
    for number, name in enumerate(names, 1):
        arguments = (
            *SPLIT,
            *(f"--splits={count}", f"--group={number}"),
            *(f"--gpuperf-run-id={run_id}", f"--gpuperf-json={name}"),
            *options,
        )
        if XDIST[-1] in options:
            # xdist 3.5 gives its workers the `sys.path` that this process started with.
            code = project.spawn(*arguments).returncode
        else:
            code = project.run(*arguments).ret
        assert code in {0, 5}
    return names


def stores_twice(project: Project) -> None:
    """Store two sessions of the whole suite, which is enough to judge."""
    for _ in range(2):
        assert project.run("-q", "--gpuperf-update=new").ret == 0


def gpuperf(project: Project, *arguments: str) -> tuple[int, str]:
    """Run a command in the project; return its code and all that it prints."""
    done = command(*arguments, folder=project.path)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("workers", [(), (*XDIST, "-n2")], ids=["alone", "xdist"])
def test_shards_become_one_run(project: Project, workers: tuple[str, ...]) -> None:
    """Of the whole suite, which every command takes."""
    stores_twice(project)
    files = shards(project, *GATE, *workers)
    code, said = gpuperf(project, "merge", *files, "-o", "run.json")
    whole = project.report()
    complete = gpuperf(project, "verify", "run.json", "--expect-from=.gpuperf")

    assert (code, said) == (0, "run.json\n  merged 3 of 3 shards: 6 tests\n")
    assert (
        len(whole["records"]) == whole["header"]["completeness"]["expected_count"] == 6
    )
    assert whole["header"]["session"]["run"] == "42"
    assert complete[0] == 0, complete
    assert "complete: 6 tests, among them all 6 of .gpuperf" in complete[1]


def test_a_test_gone_from_all_shards_is_removed(project: Project) -> None:
    """A shard cannot know; the run of all shards does, and prints the commands."""
    stores_twice(project)
    project.write(OTHER.replace('"b", ', ""), "test_other.py")
    files = shards(project, *GATE)
    gpuperf(project, "merge", *files, "-o", "run.json")
    verify = ("verify", "--expect-from=.gpuperf")
    of_shards = [gpuperf(project, *verify, name)[0] for name in files]
    code, said = gpuperf(project, *verify, "run.json")

    assert of_shards == [0, 0, 0]
    assert code == 1
    assert "1 of the 6 tests of .gpuperf are no longer in the code: " in said
    assert "if removed: gpuperf baseline drop .gpuperf all" in said


def test_a_missing_and_a_killed_shard_are_named(project: Project) -> None:
    """The rest is written, and says of itself that it is not the whole."""
    first, second, third = shards(project)
    killed = (project.path / second).read_bytes()
    project.write(OTHER.replace("value =", "os._exit(9); value ="), "test_other.py")
    ended = project.spawn(
        *SPLIT,
        "--splits=3",
        "--group=2",
        "--gpuperf-run-id=42",
        f"--gpuperf-json={second}",
    )
    code, said = gpuperf(project, "merge", first, second, "-o", "run.json")
    verified, why = gpuperf(project, "verify", "run.json")

    assert ended.returncode == 9
    assert (project.path / second).read_bytes() != killed
    assert (code, verified) == (1, 1)
    for text in (said, why):
        assert "shard 3 of 3 never arrived" in text
        assert "shard 2 of 3: the run ended before" in text
    assert Path(project.path, third).exists()


def test_a_shard_without_tests_is_not_missing(project: Project) -> None:
    """It collected the suite and had nothing to measure; pytest ends with 5."""
    files = shards(project, *GATE[1:], count=8)
    code, said = gpuperf(project, "merge", *files, "-o", "run.json")
    stores = ("--gpuperf-update=new", "--gpuperf-json=shard-4.json")
    empty = project.run(*SPLIT, "--splits=8", "--group=4", *stores)

    assert (code, said) == (0, "run.json\n  merged 8 of 8 shards: 6 tests\n")
    assert empty.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert not lines(empty, "stored")


def test_what_does_not_belong_together_is_refused(project: Project) -> None:
    """Another attempt, and one shard measured twice: exit 4, and no file."""
    first, second = shards(project, count=2)
    (project.path / "again.json").write_bytes((project.path / first).read_bytes())
    shards(project, count=2, run_id="42.2")
    code, said = gpuperf(project, "merge", "again.json", second, "-o", "run.json")
    twice = gpuperf(project, "merge", second, second, first, "-o", "twice.json")
    shards(project, count=2, run_id="42.2")
    (project.path / "then.json").write_bytes((project.path / second).read_bytes())
    shards(project, count=2, run_id="42.2")
    both = gpuperf(project, "merge", first, second, "then.json", "-o", "run.json")
    replaced = gpuperf(project, "merge", first, second, "-o", first)

    assert code == 4
    assert "the runs differ: 42 in again.json, 42.2 in shard-2.json" in said
    assert "remedy: give all shards the same --gpuperf-run-id" in said
    assert twice == (0, "twice.json\n  merged 2 of 2 shards: 6 tests\n")
    assert both[0] == 4
    assert "shard-2.json, then.json are all shard 2/2" in both[1]
    assert replaced[0] == 2
    assert not (project.path / "run.json").exists()


def test_commands_take_the_shards_of_a_run(project: Project) -> None:
    """As if they were merged; runs that are apart are not one."""
    files = shards(project)
    before = [(project.path / f"old-{name}") for name in files]
    for old, name in zip(before, files, strict=True):
        old.write_bytes((project.path / name).read_bytes())
    shards(project, run_id="43")
    olds = [old.name for old in before]
    gpuperf(project, "merge", *files, "-o", "run.json")
    whole = gpuperf(project, "export", "run.json", "--to=csv")
    shown = gpuperf(project, "show", *files, "--format=json")

    assert gpuperf(project, "export", *files, "--to=csv") == whole
    assert json.loads(shown[1]) == project.report()
    code, said = gpuperf(project, "report", *files, "-o", "r.md")
    assert (code, said) == (0, "")
    assert (project.path / "r.md").read_text("utf-8").count("test_x[") >= 3
    code, said = gpuperf(project, "compare", *olds, *files)
    assert "test_other" in said
    assert "gone" not in said
    assert code == 0, said
    code, said = gpuperf(project, "show", *files[:2])
    assert "shard 3 of 3 never arrived" in said
    code, said = gpuperf(project, "show", *olds, *files)
    assert (code, "2 runs were named, and one is taken" in said) == (2, True)
    code, said = gpuperf(project, "compare", *files)
    assert (code, "are shards of one run" in said) == (2, True)
    code, said = gpuperf(project, "show", *files, "--top=1", "--list")
    assert (code, "--list, --top takes one" in said) == (2, True)


def test_a_store_says_which_shards_are_missing(project: Project) -> None:
    """By the name of the run."""
    shards(project, "--gpuperf-update=new")
    asked = ("verify", "--run-id=42", "--expect-from=.gpuperf")
    whole = gpuperf(project, *asked)
    sessions = json.loads(
        gpuperf(project, "baseline", "list", ".gpuperf", "--format=json")[1]
    )
    second = next(s["id"] for s in sessions["sessions"] if s["shard"] == "2/3")
    gpuperf(project, "baseline", "drop", ".gpuperf", second)
    code, said = gpuperf(project, *asked)
    other = gpuperf(project, "verify", "--run-id=7", "--expect-from=.gpuperf")

    assert whole[0] == 0
    assert re.fullmatch(
        r"run 42\n  complete: \d tests in 3 sessions of 3 shards\n", whole[1]
    )
    assert code == 1
    assert said.startswith("run 42\n  shard 2 of 3 has stored no session\n")
    assert other[0] == 1
    assert "no session of run 7 is stored in .gpuperf\n" in other[1]
    assert "gpuperf baseline list .gpuperf --format=json" in other[1]
    assert gpuperf(project, "verify", "--run-id=", "--expect-from=.gpuperf")[0] == 2
    assert gpuperf(project, "verify", "--run-id=7")[0] == 2
    assert gpuperf(project, *asked, "shard-1.json")[0] == 2


@pytest.mark.parametrize("place", [".gpuperf", "sqlite:///perf.db"])
def test_a_stored_run_has_each_test_in_one_shard(project: Project, place: str) -> None:
    """A file of shards that overlap is refused, and so is what they have stored."""
    project.write("""
        import pytest

        @pytest.mark.parametrize("n", range(3))
        def test_x(gpuperf, n):
            gpuperf.record("x", n + 1, better="lower")
    """)
    for number, chosen in ((1, "0 or 1"), (2, "1 or 2")):
        project.run(
            *(f"--gpuperf-shard={number}/2", "--gpuperf-run-id=7", "-k", chosen),
            *("--gpuperf-update=all", f"--gpuperf-baseline={place}"),
        )
    code, said = gpuperf(project, "verify", "--run-id=7", f"--expect-from={place}")

    assert (code, "several shards measured test_it.py::test_x[1]\n" in said) == (
        1,
        True,
    )
    # A run that is not divided has each test once, on each of its Pythons.
    for _ in range(2):
        project.run(
            *("--gpuperf-run-id=8", "--gpuperf-update=all"),
            f"--gpuperf-baseline={place}",
        )
    assert gpuperf(project, "verify", "--run-id=8", f"--expect-from={place}") == (
        0,
        "run 8\n  complete: 6 tests in 2 sessions\n",
    )


@pytest.mark.parametrize(
    ("options", "variables", "shown"),
    [
        (["--gpuperf-shard=2/3"], {}, "shard 2/3"),
        (
            ["--gpuperf-shard=2/3"],
            {"CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "2"},
            "shard 2/3",
        ),
        ([*SPLIT, "--splits=3", "--group=2"], {}, "shard 2/3"),
        ([], {"JOB_COMPLETION_INDEX": "1", "GPUPERF_SHARDS": "3"}, "shard 2/3"),
        (["--gpuperf-shard=1/1"], {"CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "2"}, None),
        ([], {}, None),
    ],
)
def test_the_first_lines_name_the_shard(
    project: Project, options: list[str], variables: dict[str, str], shown: str | None
) -> None:
    """By option, pytest-split or variable, in this order; the JSON file has it, too."""
    for name, value in variables.items():
        project.environment.setenv(name, value)
    named = ["--gpuperf-run-id=a b/c", "--gpuperf-json=run.json"]
    ended = project.run(*options, *named)
    session = project.report()["header"]["session"]

    assert [
        line.endswith(f"run a b/c, {shown}") for line in lines(ended, "machine ")
    ] == ([True] if shown else [])
    assert session.get("shard") == (shown and shown.removeprefix("shard "))
    assert session["run"] == "a b/c"


@pytest.mark.parametrize(
    ("options", "variables", "says"),
    [
        (
            [*SPLIT, "--splits=8", "--group=2", "--gpuperf-shard=1/8"],
            {},
            "--gpuperf-shard=1/8: pytest-split runs group 2 of 8; drop --gpuperf-shard",
        ),
        (
            [],
            {"JOB_COMPLETION_INDEX": "4", "GPUPERF_SHARDS": "4"},
            "GPUPERF_SHARDS=4: the job has the index 4, counted from 0; set",
        ),
        (
            [],
            {"JOB_COMPLETION_INDEX": "0", "GPUPERF_SHARDS": "many"},
            "GPUPERF_SHARDS=many",
        ),
    ],
)
def test_two_names_of_a_shard_that_differ_are_an_error(
    project: Project, options: list[str], variables: dict[str, str], says: str
) -> None:
    """One of them is wrong, and the shards would not add up."""
    for name, value in variables.items():
        project.environment.setenv(name, value)
    ended = project.run(*options)

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert lines(ended, "gpuperf: ", says)


def test_a_json_file_of_a_killed_shard_names_it(project: Project) -> None:
    """Also if it was killed before its first test."""
    project.write("import os\nos._exit(9)\n", "test_a.py")
    project.spawn(
        "--gpuperf-shard=2/3", "--gpuperf-run-id=42", "--gpuperf-json=run.json"
    )
    header = project.report()["header"]

    assert (header["session"]["shard"], header["session"]["run"]) == ("2/3", "42")
    assert header["completeness"]["interrupted"]


def test_values_of_two_machines_stay_apart(project: Project) -> None:
    """What is accepted of a merged run is a session of the machine that measured it."""
    stores_twice(project)
    files = ["shard-1.json", "shard-2.json"]
    for number, (name, machine) in enumerate(
        zip(files, ("a-1", "b-2"), strict=True), 1
    ):
        project.environment.setenv("GPUPERF_MACHINE", machine)
        split = (*SPLIT, "--splits=2", f"--group={number}")
        project.run(*split, "--gpuperf-run-id=42", f"--gpuperf-json={name}")
    gpuperf(project, "merge", *files, "-o", "run.json")
    tests = ("--test=test_it.py", "--test=test_other.py")
    code, said = gpuperf(project, "baseline", "accept", ".gpuperf", "run.json", *tests)
    listed = gpuperf(project, "baseline", "list", ".gpuperf", "--format=json")[1]

    assert code == 0, said
    # those of before have only reference workloads left
    sessions = [s for s in json.loads(listed)["sessions"] if s["tests"]]
    assert {s["machine"]: s["tests"] for s in sessions} == {"a-1": 3, "b-2": 3}


def test_a_merged_run_goes_to_standard_output(project: Project) -> None:
    """What there is to say is beside it; as JSON, a program reads it."""
    files = shards(project, count=2)
    done = command("merge", *files, "-o", "-", folder=project.path)
    told = command(
        "merge", files[0], "-o", "run.json", "--format=json", folder=project.path
    )
    alone = json.loads(done.stdout)
    content = json.loads(told.stdout)

    assert (done.returncode, done.stderr) == (
        0,
        "gpuperf: merged 2 of 2 shards: 6 tests\n",
    )
    assert len(alone["records"]) == 6
    assert told.returncode == 1
    assert (content["complete"], content["shards"], content["missing"]) == (
        False,
        [1],
        [2],
    )
    assert content["remarks"] == [
        "merged 1 of 2 shards: 3 tests",
        "shard 2 of 2 never arrived",
        "3 tests of the suite are missing",
    ]


def test_shards_that_name_no_run_are_merged_only_when_asked(project: Project) -> None:
    """They may be of two runs: only their commit and their tests say that they belong."""
    for number in (1, 2):
        split = (*SPLIT, "--splits=2", f"--group={number}")
        project.run(*split, f"--gpuperf-json=shard-{number}.json")
    files = ("shard-1.json", "shard-2.json")
    shown = gpuperf(project, "show", *files)
    merged = gpuperf(project, "merge", *files, "-o", "run.json")

    assert shown[0] == 2
    assert "2 runs were named, and one is taken" in shown[1]
    assert "name it with --gpuperf-run-id" in shown[1]
    assert "gpuperf merge shard-1.json shard-2.json -o merged.json" in shown[1]
    assert merged == (0, "run.json\n  merged 2 of 2 shards: 6 tests\n")
