"""Rules of collect.session."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.runner import FakeRunner, finished
from pytest_gpuperf.collect.session import (
    Revision,
    ci_branch,
    ci_run,
    ci_shard,
    collection_digest,
    new_session,
    read_git,
    this_host,
)
from pytest_gpuperf.errors import CollectorTimeoutError, CollectorUnavailableError
from pytest_gpuperf.model.environment import Host

COMMIT = "3f2a1c9000000000000000000000000000000000"
PARENT = "77b0d12000000000000000000000000000000000"
STATUS = f"# branch.oid {COMMIT}\n# branch.head main\n".encode()
DETACHED = f"# branch.oid {COMMIT}\n# branch.head (detached)\n".encode()
CHANGED = b"1 .M N... 100644 100644 100644 aa bb kernel.py\n"
ONE_ID, ONE_BOOT = "0123456789abcdef0123456789abcdef", "1b4e28ba-2fa1-11d2-883f"


def host(
    root: Path,
    *,
    node: str = "gpu-1",
    variables: Mapping[str, str] | None = None,
    machine_id: str = ONE_ID,
    boot_id: str = ONE_BOOT,
    files: Mapping[str, str] | None = None,
) -> Host:
    """Return the host of a system; `files`: more of its files, by their names."""
    written = {
        "etc/machine-id": machine_id,
        "proc/sys/kernel/random/boot_id": boot_id,
        **(files or {}),
    }
    for name, text in written.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
    return this_host(variables or {}, root=root, node=node)


def test_a_session_has_a_name_that_no_other_has() -> None:
    """Two sessions of one moment differ; the name begins with the time."""
    clock = FakeClock(wall_s=1_700_000_000.0)
    sessions = [new_session(clock) for _ in "ab"]

    assert sessions[0].id != sessions[1].id
    assert all(session.id.startswith("20231114T221320Z-") for session in sessions)
    assert sessions[0].started_unix_s == 1_700_000_000.0
    assert sessions[0].host == sessions[1].host


def test_the_host_is_not_named() -> None:
    """A session keeps a hash; the host's name is not in it."""
    session = new_session(FakeClock())

    assert len(session.host) == 12
    assert platform.node() not in session.host


def test_a_machine_outlives_its_boots(tmp_path: Path) -> None:
    """A boot is another host of the same machine, and neither holds what it is made of."""
    first = host(tmp_path)
    later = host(tmp_path, boot_id="another")

    assert first.machine == later.machine != None  # noqa: E711 - all three
    assert first.boot != later.boot
    assert first.id != later.id
    assert ONE_ID not in repr(first)
    assert ONE_BOOT not in repr(first)
    assert "gpu-1" not in repr(first)


def test_machines_of_one_image_are_told_apart(tmp_path: Path) -> None:
    """A cloned disk has the machine id of its image: the host name differs."""
    assert host(tmp_path).machine != host(tmp_path, node="gpu-2").machine


def test_a_label_is_the_machine(tmp_path: Path) -> None:
    """A label goes before all else, in a container and where there is no id."""
    label = {"GPUPERF_MACHINE": " h100 \n 3 "}
    (tmp_path / ".dockerenv").touch()
    here = host(tmp_path, variables=label, machine_id="")

    assert here.machine == "h100 3"
    assert host(tmp_path, variables={"GPUPERF_MACHINE": " "}).machine is None
    # bytes that are not UTF-8, which no file could hold
    assert host(tmp_path, variables={"GPUPERF_MACHINE": "a\udcff"}).machine == "a?"
    assert here.id != host(tmp_path, variables={"GPUPERF_MACHINE": "h100 4"}).id


@pytest.mark.parametrize(
    ("variables", "files"),
    [
        ({"container": "podman"}, {}),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {}),
        ({"APPTAINER_CONTAINER": "/image.sif"}, {}),
        ({}, {".dockerenv": ""}),
        ({}, {"run/.containerenv": ""}),
        ({}, {"run/systemd/container": "lxc"}),
        ({}, {"proc/1/cgroup": "12:pids:/kubepods/besteffort/pod1"}),
        ({}, {"proc/mounts": "overlay / overlay rw,lowerdir=/a 0 0"}),
    ],
)
def test_a_machine_is_unknown_in_a_container(
    tmp_path: Path, variables: dict[str, str], files: dict[str, str]
) -> None:
    """Its id is the image's, and its name changes with each start; its boot is known."""
    inside = host(tmp_path, variables=variables, files=files)

    assert inside.machine is None
    assert inside.boot is not None


@pytest.mark.parametrize(
    "files",
    [
        {"proc/1/cgroup": "0::/init.scope"},
        {"proc/mounts": "composefs / overlay ro 0 0"},
        {"proc/mounts": "/dev/sda1 / ext4 rw 0 0\noverlay /var/lib/x overlay rw 0 0"},
    ],
)
def test_a_host_with_containers_is_none(tmp_path: Path, files: dict[str, str]) -> None:
    """What its containers mount, and an image-based root, do not make it one."""
    assert host(tmp_path, files=files).machine is not None


@pytest.mark.parametrize("machine_id", ["", "uninitialized"])
def test_without_an_id_a_machine_is_unknown(tmp_path: Path, machine_id: str) -> None:
    """A host name alone is that of many machines."""
    assert host(tmp_path, machine_id=machine_id).machine is None


@pytest.mark.parametrize(
    ("stdout", "found"),
    [
        (STATUS, Revision(commit=COMMIT, dirty=False, branch="main")),
        (STATUS + CHANGED, Revision(commit=COMMIT, dirty=True, branch="main")),
        (DETACHED, Revision(commit=COMMIT, dirty=False)),
        (b"# branch.oid (initial)\n# branch.head main\n", Revision()),
        (b"", Revision()),
    ],
)
def test_git_is_read_in_one_process(stdout: bytes, found: Revision) -> None:
    """Commit, branch and changes come from one status; before the first commit none."""
    runner = FakeRunner([finished(stdout=stdout)])

    assert read_git(runner, Path("/project")) == found
    assert len(runner.calls) == 1
    assert runner.calls[0].cwd == str(Path("/project"))
    assert "--no-optional-locks" in runner.calls[0].argv


@pytest.mark.parametrize(
    ("commit", "parent"),
    [
        (f"tree 1\nparent {PARENT}\nparent 2\nauthor a\n\ntext\n", PARENT),
        ("tree 1\nauthor a\n\nparent of all\n\nparent 12\n", None),
    ],
)
def test_a_commit_names_its_first_parent(commit: str, parent: str | None) -> None:
    """It is in the commit itself, also where a shallow clone ends; a message is not read."""
    runner = FakeRunner([finished(stdout=STATUS), finished(stdout=commit.encode())])

    assert read_git(runner, "/project", with_parent=True).parent == parent
    assert runner.calls[1].argv[-1] == COMMIT


@pytest.mark.parametrize(
    "answer",
    [
        finished(exit_code=128, stderr=b"fatal: not a git repository"),
        CollectorUnavailableError("git cannot be started", remedy="install git"),
        CollectorTimeoutError("git did not end", remedy="wait"),
    ],
)
def test_without_git_nothing_is_known(answer: Exception) -> None:
    """No repository, no git and a git that hangs: the session goes on without."""
    assert read_git(FakeRunner([answer]), ".", with_parent=True) == Revision()


@pytest.mark.parametrize(
    ("variables", "branch"),
    [
        ({"GITHUB_REF_NAME": "main"}, "main"),
        (
            {
                "GITHUB_HEAD_REF": "fix",
                "GITHUB_BASE_REF": "main",
                "GITHUB_REF_NAME": "12/merge",
            },
            "fix",
        ),
        (  # a fork's main is not main
            {
                "GITHUB_HEAD_REF": "main",
                "GITHUB_BASE_REF": "main",
                "GITHUB_REF_NAME": "12/merge",
            },
            "12/merge",
        ),
        ({"GITHUB_REF_NAME": "v1", "GITHUB_REF_TYPE": "tag"}, None),
        ({"CI_COMMIT_REF_NAME": "main"}, "main"),
        ({"CI_COMMIT_REF_NAME": "v1", "CI_COMMIT_TAG": "v1"}, None),
        ({"BUILDKITE_BRANCH": "a\udcff"}, "a?"),
        ({}, None),
    ],
)
def test_ci_names_the_branch_of_a_commit(
    variables: dict[str, str], branch: str | None
) -> None:
    """A tag is no branch, and a pull request is never taken for its target."""
    assert ci_branch(variables) == branch


@pytest.mark.parametrize(
    ("variables", "run"),
    [
        ({"GITHUB_RUN_ID": "77", "GITHUB_RUN_ATTEMPT": "2"}, "77.2"),
        ({"CI_PIPELINE_ID": "5"}, "5"),
        ({"BUILDKITE_BUILD_ID": "b-1"}, "b-1"),
        ({"SLURM_ARRAY_JOB_ID": "9", "SLURM_JOB_ID": "10"}, "9"),
        ({"SLURM_JOB_ID": "10"}, "10"),
        ({}, None),
    ],
)
def test_a_run_is_what_all_its_shards_share(
    variables: dict[str, str], run: str | None
) -> None:
    """The tasks of an array have jobs of their own, and one array."""
    assert ci_run(variables) == run


SLURM = {"SLURM_ARRAY_TASK_ID": "14", "SLURM_ARRAY_TASK_COUNT": "4"}


@pytest.mark.parametrize(
    ("variables", "part"),
    [
        ({"CI_NODE_INDEX": "3", "CI_NODE_TOTAL": "8"}, "3/8"),
        (
            {"BUILDKITE_PARALLEL_JOB": "0", "BUILDKITE_PARALLEL_JOB_COUNT": "8"},
            "1/8",
        ),
        ({"CIRCLE_NODE_INDEX": "7", "CIRCLE_NODE_TOTAL": "8"}, "8/8"),
        ({"CIRCLE_NODE_INDEX": "8", "CIRCLE_NODE_TOTAL": "8"}, None),
        ({"JOB_COMPLETION_INDEX": "0", "GPUPERF_SHARDS": "8"}, "1/8"),
        ({"JOB_COMPLETION_INDEX": "0"}, None),
        ({"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "4"}, "1/4"),
        (
            {**SLURM, "SLURM_ARRAY_TASK_MIN": "10", "SLURM_ARRAY_TASK_STEP": "2"},
            "3/4",
        ),
        (SLURM, None),  # no part has the number 15 of 4
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "8"}, "3/8"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, "1/8"),
        # a batch script is none of the tasks of its job
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}, None),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_JOB_ID": "1"},
            "1/8",
        ),
        # ranks of one program all run the same tests
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "8", "WORLD_SIZE": "8"}, None),
        ({"CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "1"}, None),
        ({"CI_NODE_INDEX": "0", "CI_NODE_TOTAL": "8"}, None),
        ({"CI_NODE_INDEX": "x", "CI_NODE_TOTAL": "-8"}, None),
        ({"CI_NODE_INDEX": "9" * 5000, "CI_NODE_TOTAL": "9" * 5000}, None),
        ({}, None),
    ],
)
def test_a_shard_says_of_how_many_it_is_one(
    variables: dict[str, str], part: str | None
) -> None:
    """From 1; what is not among so many, and one of one, is no shard."""
    found = ci_shard(variables)

    assert (None if found is None else str(found)) == part


def test_a_collection_has_one_digest_in_any_order() -> None:
    """Plugins shuffle tests; another test is another collection."""
    assert collection_digest(["a", "b"]) == collection_digest(["b", "a"])
    assert collection_digest(["a", "b"]) != collection_digest(["a", "b", "b"])
    assert len(collection_digest(["a[\udcff]"])) == 16
