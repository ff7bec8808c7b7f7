"""The session of a run: machine, revision, and part of a larger run."""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path

from blake3 import blake3

from pytest_gpuperf.collect.clock import Clock
from pytest_gpuperf.collect.environment import (
    core_count,
    cpu_model,
    python_minor,
    read_head,
)
from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.model.environment import Host, Session
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.shard import Shard

_GIT_TIMEOUT_S = 10.0
# Of a machine. Among a thousand machines, two have the same digest in one of 10^8
# fleets.
_DIGEST_LENGTH = 12
# Of all test ids.
_COLLECTION_LENGTH = 16
# Of a label or a branch. Longer names are cut.
_MAX_NAME_LENGTH = 200

MACHINE_LABEL = "GPUPERF_MACHINE"
# Traces that a container engine, or the program that starts containers, leaves inside.
_CONTAINER_VARIABLES = (
    "container",
    "KUBERNETES_SERVICE_HOST",
    "APPTAINER_CONTAINER",
    "SINGULARITY_CONTAINER",
)
_CONTAINER_FILES = (
    ".dockerenv",
    "run/.containerenv",
    "run/systemd/container",
    "run/host/container-manager",
)
_CONTAINER_GROUPS = ("docker", "kubepods", "containerd", "libpod", "lxc")

# The run of each CI system or scheduler. Values that exist are joined.
_RUNS = (
    ("GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT"),
    ("CI_PIPELINE_ID",),  # GitLab.
    ("BUILDKITE_BUILD_ID",),
    ("CIRCLE_WORKFLOW_ID",),
    ("SLURM_ARRAY_JOB_ID",),
    ("SLURM_JOB_ID",),
)
# The branch, if git has none because a commit is checked out.
_BRANCHES = (
    "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME",
    "CI_COMMIT_BRANCH",
    "CI_COMMIT_REF_NAME",
    "BUILDKITE_BRANCH",
    "CIRCLE_BRANCH",
)


class Revision(Frozen, frozen=True, kw_only=True):
    """
    The checked-out revision of a project.

    Attributes:
        commit: The commit id, or None outside a repository or before the first commit.

        dirty: Whether tracked files differ from the commit, or None if unknown.

        branch: The branch, or None if unknown or if a commit is checked out.

        parent: The first parent of `commit`, or None if there is none or it was not
            requested.
    """

    commit: str | None = None
    dirty: bool | None = None
    branch: str | None = None
    parent: str | None = None


def new_session(clock: Clock, run_id: str | None = None) -> Session:
    """
    Create a session that begins now, without revision and tests.

    Args:
        clock: The clock.

        run_id: The name of the run, or None for that of the CI system or scheduler.
    """
    started_unix_s = clock.unix_s()
    started = datetime.fromtimestamp(started_unix_s, tz=timezone.utc)
    host = this_host()
    return Session(
        id=f"{started:%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}",
        started_unix_s=started_unix_s,
        host=host.id,
        machine=host.machine,
        boot=host.boot,
        run=ci_run(os.environ) if run_id is None else run_id,
    )


def this_host(
    variables: Mapping[str, str] = os.environ,
    *,
    root: Path = Path("/"),
    node: str | None = None,
) -> Host:
    """
    Return the machine of the process. Host names are not kept.

    Machines that were made from one image have the same machine id, so the host name
    counts, too. In a container, both belong to the image or change with each start, so
    the machine is unknown without a label.

    Args:
        variables: The environment; the label is `GPUPERF_MACHINE`.

        root: The root folder of the system's files.

        node: The host name, or None for that of the system.
    """
    machine_id = read_head(root / "etc/machine-id").strip()
    boot_id = read_head(root / "proc/sys/kernel/random/boot_id").strip()
    node = platform.node() if node is None else node
    label = _cleaned(variables.get(MACHINE_LABEL))
    # Before the end of the first boot, systemd writes a word instead of an id.
    is_known = bool(machine_id and node) and machine_id != "uninitialized"
    machine = label
    if machine is None and is_known and not _is_container(variables, root):
        machine = _digest("machine", machine_id, node)
    return Host(
        id=_digest("host", machine_id, boot_id, node, label or ""),
        machine=machine,
        boot=_digest("boot", boot_id) if boot_id else None,
        cpu_model=cpu_model(),
        core_count=core_count(),
        python_minor=python_minor(),
    )


def _digest(*parts: str) -> str:
    return blake3("\0".join(parts).encode()).hexdigest()[:_DIGEST_LENGTH]


def _cleaned(text: str | None) -> str | None:
    """Return a name without characters that a file cannot hold, or None if there is none."""
    if text is None:
        return None
    # Bytes that are not UTF-8 are lone surrogates in this text.
    plain = text.encode("utf-8", "replace").decode()
    return " ".join(plain.split())[:_MAX_NAME_LENGTH] or None


def _is_container(variables: Mapping[str, str], root: Path) -> bool:
    if any(name in variables for name in _CONTAINER_VARIABLES):
        return True
    if any((root / name).exists() for name in _CONTAINER_FILES):
        return True
    groups = read_head(root / "proc/1/cgroup")
    if any(name in groups for name in _CONTAINER_GROUPS):
        return True
    mounts = (line.split() for line in read_head(root / "proc/mounts").splitlines())
    # Engines use this name for the layers of a root. Image-based systems use another
    # name.
    return any(mount[:3] == ["overlay", "/", "overlay"] for mount in mounts)


def read_git(
    runner: Runner, root: str | os.PathLike[str], *, with_parent: bool = False
) -> Revision:
    """
    Return the revision of a folder.

    Untracked files are ignored, because reports and caches are untracked.

    Args:
        runner: Starts git.

        root: The folder.

        with_parent: Whether to read the parent, which starts git once more.

    Returns:
        The revision. All fields are None if there is no repository, no git, or no
        answer.
    """
    argv = (
        "git",
        # A test run must not block an editor's git.
        "--no-optional-locks",
        # The setting may name a program of the repository.
        *("-c", "core.fsmonitor=false"),
        *("status", "--porcelain=v2", "--branch", "--untracked-files=no"),
    )
    lines = _git_lines(runner, root, argv)
    about = dict(
        line[2:].split(" ", 1) for line in lines if line.startswith("# branch.")
    )
    commit = about.get("branch.oid", "")
    if not commit or commit == "(initial)":
        return Revision()
    parent = None
    if with_parent:
        commit_lines = _git_lines(runner, root, ("git", "cat-file", "commit", commit))
        # The message follows after an empty line.
        header = itertools.takewhile(bool, commit_lines)
        # A commit names its parent, even if a shallow clone does not have the parent.
        parents = (line for line in header if line.startswith("parent "))
        parent = next(parents, "").partition(" ")[2] or None
    head = about.get("branch.head", "")
    return Revision(
        commit=commit,
        dirty=any(not line.startswith("#") for line in lines),
        branch=None if head == "(detached)" else _cleaned(head),
        parent=parent,
    )


def _git_lines(
    runner: Runner, root: str | os.PathLike[str], argv: tuple[str, ...]
) -> list[str]:
    """Return the output of a git command, or [] if the command failed."""
    try:
        finished = runner.run(argv, timeout_s=_GIT_TIMEOUT_S, cwd=os.fspath(root))
    except CollectError:
        # git is missing, or the repository takes too long.
        return []
    if finished.exit_code != 0:
        return []
    return finished.stdout.decode("utf-8", "replace").splitlines()


def ci_branch(variables: Mapping[str, str]) -> str | None:
    """
    Return the CI system's name of the branch, or None if unknown, as for a tag.

    The branch of a pull request from a fork may have the same name as its target. Such
    a pull request is named by its number, as `12/merge`.
    """
    if variables.get("GITHUB_REF_TYPE") == "tag" or variables.get("CI_COMMIT_TAG"):
        return None
    source = variables.get("GITHUB_HEAD_REF")
    if not source or source == variables.get("GITHUB_BASE_REF"):
        source = variables.get("GITHUB_REF_NAME")
    values = (source, *(variables.get(name) for name in _BRANCHES))
    return next(filter(None, map(_cleaned, values)), None)


def ci_run(variables: Mapping[str, str]) -> str | None:
    """Return the run of the CI system or scheduler, or None outside of CI."""
    for names in _RUNS:
        if variables.get(names[0]):
            values = (variables.get(name) for name in names)
            return _cleaned(".".join(filter(None, values)))
    return None


def shard_of_run(named: Shard | None) -> Shard | None:
    """Return the shard that an option or the environment names, or None for a whole run."""
    shard = named or ci_shard(os.environ)
    return None if shard is None or shard.is_whole else shard


def ci_shard(variables: Mapping[str, str]) -> Shard | None:
    """
    Return the part of the run's tests that the process runs, or None if unknown.

    The ranks of one program are not parts of a suite.
    """
    first = _number(variables, "SLURM_ARRAY_TASK_MIN") or 0
    step = _number(variables, "SLURM_ARRAY_TASK_STEP") or 1
    task = _number(variables, "SLURM_ARRAY_TASK_ID")
    rank = _number(variables, "SLURM_PROCID")
    # A batch script has the number 0 in a job with several tasks, but is not one of the
    # tasks.
    in_step = any(name.startswith("SLURM_STEP") for name in variables)
    is_batch = rank == 0 and "SLURM_JOB_ID" in variables and not in_step
    if is_batch or (_number(variables, "WORLD_SIZE") or 1) > 1:
        rank = None
    parts = (
        _counted_from_0(variables, "JOB_COMPLETION_INDEX", "GPUPERF_SHARDS"),
        Shard.of(
            None if task is None else (task - first) // step + 1,
            _number(variables, "SLURM_ARRAY_TASK_COUNT"),
        ),
        Shard.of(
            None if rank is None else rank + 1,
            _number(variables, "SLURM_STEP_NUM_TASKS")
            or _number(variables, "SLURM_NTASKS"),
        ),
        Shard.of(
            _number(variables, "CI_NODE_INDEX"), _number(variables, "CI_NODE_TOTAL")
        ),
        _counted_from_0(
            variables, "BUILDKITE_PARALLEL_JOB", "BUILDKITE_PARALLEL_JOB_COUNT"
        ),
        _counted_from_0(variables, "CIRCLE_NODE_INDEX", "CIRCLE_NODE_TOTAL"),
    )
    return next((part for part in parts if part and not part.is_whole), None)


def _counted_from_0(
    variables: Mapping[str, str], index: str, count: str
) -> Shard | None:
    number = _number(variables, index)
    return Shard.of(None if number is None else number + 1, _number(variables, count))


def _number(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name, "")
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else None  # noqa: PLR2004 - digits of no count of tasks


def collection_digest(test_ids: Iterable[str]) -> str:
    """Return a digest of test ids, regardless of the order."""
    text = "\n".join(sorted(test_ids))
    digest = blake3(text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:_COLLECTION_LENGTH]
