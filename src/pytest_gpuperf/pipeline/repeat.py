"""Run tests again in fresh processes. All modules use this one.

A child gets the command line of the parent, so that plugins, paths and ini values are the
same, and a file that names the tests. It writes one line per test to an answer file.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pytest_gpuperf.collect.launcher import unproven
from pytest_gpuperf.collect.runner import start_remedy
from pytest_gpuperf.collect.scratch import ScratchFolder
from pytest_gpuperf.collect.signals import signal_name
from pytest_gpuperf.errors import (
    CollectError,
    CollectorUnavailableError,
    RecordError,
)
from pytest_gpuperf.measure.site import ProcessIdentity
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import Role
from pytest_gpuperf.model.run import ChildAnswer
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.pipeline.command_line import CommandLine, Launch
from pytest_gpuperf.report.escape import escape

if TYPE_CHECKING:
    from pytest_gpuperf.collect.runner import Finished, Runner

# Starts a child with a command line, a folder that is removed afterwards, and an environment.
Start: TypeAlias = "Callable[[tuple[str, ...], str, Mapping[str, str]], Finished]"

# The code of a child that was started like its parent.
LAUNCHED = "launched"
_DROPPED = ("PYTEST_XDIST", "PYTEST_CURRENT_TEST")
# Cache folders of compilers and autotuners, from their documentation.
_CACHES = (
    "CUDA_CACHE_PATH",
    "CUPY_CACHE_DIR",
    "CUTE_DSL_CACHE_DIR",
    "NUMBA_CACHE_DIR",
    "PYTORCH_KERNEL_CACHE_PATH",
    "TILELANG_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
)
# Setting these variables would switch on caches that are off.
_CACHES_IF_USED = ("JAX_COMPILATION_CACHE_DIR",)
# Lines of output kept of a failed child.
_SHOWN_LINES = 15
# Lines of output shown in a sentence.
_TOLD_LINES = 3


class ChildSpec(Frozen, frozen=True, kw_only=True):
    """
    The task of a child.

    Attributes:
        test_ids: The tests to run, in this order.

        keys: The keys that identify these tests in another checkout, or empty to use
            pytest's ids.

        identity: The identity of the child within the run.

        out: The answer file, which exists as soon as a test begins.

        cache_control: The cache control of the profiler around the child, or None
            without a profiler.

        turns: The file descriptor for requesting turns, or None to measure without
            waiting for other processes.

        loaded: The file for the code loaded so far, written before each test, or None.

        launch: The start the child must find, or else it runs nothing. None to skip
            this check.
    """

    test_ids: tuple[str, ...]
    identity: ProcessIdentity
    out: str
    keys: tuple[str, ...] = ()
    cache_control: str | None = None
    turns: int | None = None
    loaded: str | None = None
    launch: Launch | None = None

    @property
    def names(self) -> dict[str, str]:
        """The ids of the tests by key, or empty without keys."""
        return dict(zip(self.keys, self.test_ids, strict=True)) if self.keys else {}


class ChildRun(Frozen, frozen=True, kw_only=True):
    """
    A child that has ended.

    Attributes:
        answers: The answers by test id.

        failure: The last lines of output, for tests without an answer.

        began: True if the child began any test. Otherwise it has no results.

        refusal: The reason for rejecting a child that was not started like its parent,
            or None.

        unstarted: The reason why the system could not start the child, or None.
    """

    answers: Mapping[str, ChildAnswer] = {}
    failure: str = ""
    began: bool = True
    refusal: Gap | None = None
    unstarted: Gap | None = None

    def failure_of(self, test_id: str) -> str:
        """Return the reason for a missing value of a test, or ""."""
        answer = self.answers.get(test_id)
        if answer is None:
            return self.failure or "the process never reached it"
        return answer.failure


def repeat(
    command: CommandLine,
    test_ids: Sequence[str],
    *,
    identities: Sequence[ProcessIdentity],
    runner: Runner,
    timeout_s: float,
) -> list[ChildRun]:
    """
    Run tests in several fresh processes, one process at a time.

    Args:
        command: The command line of this process.

        test_ids: The tests, in the order to run them.

        identities: The identities of the processes.

        runner: Starts the processes.

        timeout_s: Time limit of a process [s].
    """

    def start(argv: tuple[str, ...], _: str, env: Mapping[str, str]) -> Finished:
        return runner.run(argv, timeout_s=timeout_s, cwd=command.folder, env=env)

    runs: list[ChildRun] = []
    for identity in identities:
        run = run_child(command, test_ids, identity, start=start)
        # The other processes would be started in the same way.
        if run.refusal is not None:
            return [run] * len(identities)
        runs.append(run)
    return runs


def run_child(
    command: CommandLine,
    test_ids: Sequence[str],
    identity: ProcessIdentity,
    *,
    start: Start,
    cache_control: str | None = None,
) -> ChildRun:
    """
    Run some tests in a fresh process.

    Args:
        command: The command line of this process.

        test_ids: The tests, in the order to run them.

        identity: The identity of the fresh process.

        start: Starts the process, possibly under a profiler.

        cache_control: The cache control of that profiler, or None without a profiler.
    """
    try:
        return _child_run(command, test_ids, identity, start, cache_control)
    except OSError as error:  # No file can be opened for the task.
        why = f"no folder can be made for a fresh process ({error.strerror})"
        gap = Gap(code=GapCode.FAILED, reason=why, remedy=start_remedy(error, "python"))
        return ChildRun(failure=gap.text, began=False, unstarted=gap)


def _child_run(
    command: CommandLine,
    test_ids: Sequence[str],
    identity: ProcessIdentity,
    start: Start,
    cache_control: str | None,
) -> ChildRun:
    """
    Run some tests in a fresh process, for `run_child`.

    Raises:
        OSError: No file can be opened for the process.
    """
    unstarted = None
    with ScratchFolder("child") as scratch:
        out = str(Path(scratch) / "answers.jsonl")
        spec = Path(scratch) / "spec.json"
        argv = command.for_child(scratch)
        child_spec = ChildSpec(
            test_ids=tuple(test_ids),
            identity=identity,
            out=out,
            cache_control=cache_control,
            launch=command.launch(argv),
        )
        spec.write_text(codec.to_text(child_spec), encoding="utf-8")
        # A confirming child must not use code compiled by earlier processes.
        draws_anew = command.fresh_caches and identity.role is Role.CONFIRM
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)},
            **(empty_caches(scratch) if draws_anew else {}),
            **own_coverage(command, scratch),
            command.variable: str(spec),
        }
        try:
            finished = start(argv, scratch, environment)
        except CollectError as error:  # The process did not start or did not end.
            failure = str(error)
            if isinstance(error, CollectorUnavailableError):
                unstarted = Gap.of(error)
        else:
            failure = last_lines(finished.log_tail, _SHOWN_LINES)
            # A killed process cannot print a message.
            if finished.exit_code < 0:
                name = signal_name(-finished.exit_code)
                failure = f"{failure}\nthe process was killed by {name}".lstrip()
        refusal = launch_refusal(command, out)
        if refusal is not None:
            return ChildRun(failure=refusal.text, began=False, refusal=refusal)
        return ChildRun(
            answers=answers_in(out),
            failure=failure,
            began=Path(out).exists(),
            unstarted=unstarted,
        )


def launch_file(out: str) -> Path:
    """Return the file in which a child reports its own start, next to the answer file `out`."""
    return Path(out).with_name("launch")


def launch_refusal(command: CommandLine, out: str) -> Gap | None:
    """
    Return the reason for rejecting a child that a launcher was to start, or None.

    A child that never loaded the plugin began no test, and is reported elsewhere.
    """
    file = launch_file(out)
    found = file.read_text("utf-8").split() if file.exists() else []
    wrong = [code for code in found if code != LAUNCHED]
    return unproven(wrong[0], command.launcher) if wrong else None


def not_begun(command: CommandLine, run: ChildRun) -> Unmeasured:
    """
    Return the reason why fresh processes began no test.

    Args:
        command: The command line of the processes.

        run: One of the processes.
    """
    words = shlex.join(("python", *command.launcher.start[1:], *command.args))
    cause = last_lines(run.failure, _TOLD_LINES, in_a_sentence=True)
    remedy = "start pytest so that this command finds the same tests"
    if run.unstarted is not None:
        cause, remedy = run.unstarted.reason, run.unstarted.remedy
    return Unmeasured(
        metric="the test",
        code=GapCode.NOT_REACHED,
        reason=escape(f"a fresh process ({words}) began no test: {cause}"),
        remedy=remedy,
    )


def last_lines(text: str, count: int, *, in_a_sentence: bool = False) -> str:
    """
    Return the last lines of a process's output, without blank lines.

    Args:
        text: The output.

        count: The largest number of lines.

        in_a_sentence: True to join the lines into one line, with a phrase if there are
            none. False to keep the lines as they are.
    """
    lines = [line for line in text.splitlines() if line.strip()][-count:]
    if not in_a_sentence:
        return "\n".join(lines)
    # A line of pytest's progress is as wide as the terminal, and mostly blank.
    return " | ".join(" ".join(line.split()) for line in lines) or "it printed nothing"


def own_coverage(command: CommandLine, scratch: str) -> dict[str, str]:
    """
    Return the environment variable for the coverage data of a traced child, or {}.

    Coverage erases existing data at the start. Without a separate file, that would be
    the data of the parent and of xdist workers.
    """
    if "pytest_cov" not in command.plugins and command.launcher.is_pytest:
        return {}
    return {"COVERAGE_FILE": str(Path(scratch, "coverage"))}


def empty_caches(scratch: str) -> dict[str, str]:
    """Create empty cache folders for all compilers, and return them by environment variable."""
    used = (name for name in _CACHES_IF_USED if name in os.environ)
    folders = {name: Path(scratch, "jit", name) for name in (*_CACHES, *used)}
    for folder in folders.values():
        folder.mkdir(parents=True)
    return {name: str(folder) for name, folder in folders.items()}


def answers_in(out: str) -> dict[str, ChildAnswer]:
    """Return the answers of a child, without a line cut off by a crash."""
    path = Path(out)
    if not path.exists():
        return {}
    answers: dict[str, ChildAnswer] = {}
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            answer = codec.from_text(line, ChildAnswer)
        except RecordError:  # The process was killed while writing the line.
            continue
        earlier = answers.get(answer.test_id)
        if earlier is not None:
            answer = replace(
                answer,
                records=earlier.records + answer.records,
                failure=earlier.failure or answer.failure,
                unmeasured=earlier.unmeasured + answer.unmeasured,
                reached=earlier.reached + answer.reached,
                ended=earlier.ended or answer.ended,
                references=earlier.references + answer.references,
            )
        answers[answer.test_id] = answer
    return answers


def identities_of(
    identity: ProcessIdentity, role: Role, count: int
) -> list[ProcessIdentity]:
    """Return the identities of some fresh processes of a run."""
    return [
        replace(
            identity,
            writer=f"{role.value}-{index}",
            role=role,
            process_index=index,
            expected=None,
        )
        for index in range(1, count + 1)
    ]
