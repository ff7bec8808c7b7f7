"""Tests run again in fresh processes: the one way to do so.

A child gets the parent's own command line, so that plugins, paths and ini values are the
same, and a file that names the tests; it answers in a file, one line a test.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pytest_gpuperf.collect.launcher import PYTEST, Launcher, unproven
from pytest_gpuperf.collect.runner import start_remedy
from pytest_gpuperf.collect.scratch import ScratchFolder
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
from pytest_gpuperf.report.escape import escape

if TYPE_CHECKING:
    from pytest_gpuperf.collect.runner import Finished, Runner

__all__ = [
    "LAUNCHED",
    "ChildRun",
    "ChildSpec",
    "CommandLine",
    "Launch",
    "Start",
    "answers_in",
    "empty_caches",
    "identities_of",
    "last_lines",
    "launch_file",
    "launch_refusal",
    "not_begun",
    "own_coverage",
    "repeat",
    "run_child",
]

# starts a child: its command line, a folder that is removed after it, its environment
Start: TypeAlias = "Callable[[tuple[str, ...], str, Mapping[str, str]], Finished]"

LAUNCHED = "launched"  # a child was started as its parent was
_DROPPED = ("PYTEST_XDIST", "PYTEST_CURRENT_TEST")
# where compilers keep what they compiled and what they chose, by their own documentation
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
# naming a folder would switch these on where they are off
_CACHES_IF_USED = ("JAX_COMPILATION_CACHE_DIR",)
_SHOWN_LINES = 15  # of what a failed child printed
_TOLD_LINES = 3  # of them, in a sentence


class CommandLine(Frozen, frozen=True, kw_only=True):
    """
    How the parent was started.

    Attributes:
        args: Its arguments, as pytest got them.

        folder: Where it was started.

        variable: The environment variable that names a child's file.

        launcher: What started pytest in it.

        others: Its arguments without this plugin's options.

        paths: Those of its arguments that name tests.

        plugins: Those of xdist, cacheprovider, pytest_cov and randomly that are there to
            be told something.

        own_basetemp: Whether it was given a --basetemp, which a child must not clear.

        fresh_caches: Whether a child that confirms has compilation and autotuning caches
            of its own: else all would repeat one choice, which may be chance.
    """

    args: tuple[str, ...]
    folder: str
    variable: str
    launcher: Launcher = PYTEST
    others: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    plugins: frozenset[str] = frozenset()
    own_basetemp: bool = False
    fresh_caches: bool = False

    def for_child(self, scratch: str) -> tuple[str, ...]:
        """Return a child's command; what it writes goes to `scratch`."""
        extra: list[str] = []
        if "xdist" in self.plugins:
            extra.append("-n0")
        if "cacheprovider" in self.plugins:
            extra += ["-o", f"cache_dir={scratch}/cache"]
        if self.own_basetemp:
            extra.append(f"--basetemp={scratch}/base")
        # the last -n wins; behind "--" pytest would take options for paths
        end = self.args.index("--") if "--" in self.args else len(self.args)
        args = (*self.args[:end], *extra, *self.args[end:])
        return (*self.launcher.command(scratch), *args)

    def launch(self, argv: Sequence[str]) -> Launch | None:
        """Return what a child must find of its own start; None: pytest itself starts it."""
        if self.launcher.is_pytest:
            return None
        words = argv[len(self.launcher.command("")) :]
        return Launch(argv=tuple(argv[1:]), args=(*self.launcher.added, *words))


class Launch(Frozen, frozen=True, kw_only=True):
    """
    How a child was started that pytest itself did not start.

    Attributes:
        argv: Its command, without the interpreter.

        args: What pytest must get of it.
    """

    argv: tuple[str, ...]
    args: tuple[str, ...]


class ChildSpec(Frozen, frozen=True, kw_only=True):
    """
    What a child is told.

    Attributes:
        test_ids: The tests to run, in this order.

        keys: The keys of these tests, by which they are found in another checkout; empty:
            their ids are those of pytest here.

        identity: Which process of the run it is.

        out: The file to answer in, which is there as soon as a test begins.

        cache_control: What the profiler that it runs under does about caches; None: it
            runs under none.

        turns: The file descriptor over which it asks for turns; None: it measures without
            waiting for others.

        loaded: The file to write there, before each test, which code it has loaded so
            far; None: it does not.

        launch: What it must find of its own start, or run nothing; None: it need not look.
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
        """The ids of the tests by their keys; empty: there are no keys."""
        return dict(zip(self.keys, self.test_ids, strict=True)) if self.keys else {}


class ChildRun(Frozen, frozen=True, kw_only=True):
    """
    One child that has ended.

    Attributes:
        answers: By test id.

        failure: The last lines that it printed where it said nothing of a test.

        began: Whether it began any test: else it says nothing of them.

        refusal: Why it does not count: it was not started as its parent; None: it was.

        unstarted: Why the system could not start it; None: it did.
    """

    answers: Mapping[str, ChildAnswer] = {}
    failure: str = ""
    began: bool = True
    refusal: Gap | None = None
    unstarted: Gap | None = None

    def failure_of(self, test_id: str) -> str:
        """Return why a test gave no value; "" where it gave one."""
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
    Run some tests once in each of several fresh processes, one after another.

    Args:
        command: How this process was started.

        test_ids: The tests, in the order to run them.

        identities: One for each process.

        runner: Starts them.

        timeout_s: How long each may take [s].
    """

    def start(argv: tuple[str, ...], _: str, env: Mapping[str, str]) -> Finished:
        return runner.run(argv, timeout_s=timeout_s, cwd=command.folder, env=env)

    runs: list[ChildRun] = []
    for identity in identities:
        run = run_child(command, test_ids, identity, start=start)
        if run.refusal is not None:  # the others would be started in the same way
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
    Run some tests in one fresh process.

    Args:
        command: How this process was started.

        test_ids: The tests, in the order to run them.

        identity: The fresh process's own.

        start: Starts it, maybe under a profiler.

        cache_control: What that profiler does about caches; None: there is none.
    """
    try:
        return _child_run(command, test_ids, identity, start, cache_control)
    except OSError as error:  # no file can be opened, so that it gets no task
        why = f"a fresh process gets no folder ({error.strerror})"
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
    Run some tests in one fresh process; see `run_child`.

    Raises:
        OSError: No file can be opened for it.
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
        environment = {
            **_inherited(),
            **(empty_caches(scratch) if _draws_anew(command, identity) else {}),
            **own_coverage(command, scratch),
            command.variable: str(spec),
        }
        try:
            finished = start(argv, scratch, environment)
        except CollectError as error:  # it did not start, or did not end
            failure = str(error)
            if isinstance(error, CollectorUnavailableError):
                unstarted = Gap.of(error)
        else:
            failure = last_lines(finished.log_tail, _SHOWN_LINES)
            if finished.exit_code < 0:  # what a process that is killed cannot print
                failure = f"{failure}\n{_killed(finished.exit_code)}".lstrip()
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
    """Return the file in which a child says how it was started; `out`: its answers'."""
    return Path(out).with_name("launch")


def launch_refusal(command: CommandLine, out: str) -> Gap | None:
    """
    Return why a child does not count that a launcher was to start; None: it may count.

    A child that never came to the plugin began no test, which is told elsewhere.
    """
    file = launch_file(out)
    found = file.read_text("utf-8").split() if file.exists() else []
    wrong = [code for code in found if code != LAUNCHED]
    return unproven(wrong[0], command.launcher) if wrong else None


def _killed(exit_code: int) -> str:
    """Return which signal ended a process; `exit_code`: minus its number."""
    number = -exit_code
    known = number in {member.value for member in signal.Signals}
    name = signal.Signals(number).name if known else f"signal {number}"
    return f"the process was killed by {name}"


def not_begun(command: CommandLine, run: ChildRun) -> Unmeasured:
    """
    Return why fresh processes that began no test have measured none.

    Args:
        command: How they were started.

        run: One of them.
    """
    words = shlex.join(("python", *command.launcher.start[1:], *command.args))
    told = last_lines(run.failure, _TOLD_LINES, in_a_sentence=True)
    remedy = "start pytest so that this command finds the same tests"
    if run.unstarted is not None:
        told, remedy = run.unstarted.reason, run.unstarted.remedy
    return Unmeasured(
        metric="the test",
        code=GapCode.NOT_REACHED,
        reason=escape(f"a fresh process ({words}) began no test: {told}"),
        remedy=remedy,
    )


def last_lines(text: str, count: int, *, in_a_sentence: bool = False) -> str:
    """
    Return the last lines of what a process printed, those that are blank left out.

    Args:
        text: What it printed.

        count: How many lines, at most.

        in_a_sentence: Whether to have them as one line, which says so where there is
            none, and not as they are.
    """
    lines = [line for line in text.splitlines() if line.strip()][-count:]
    if not in_a_sentence:
        return "\n".join(lines)
    # a line of pytest's progress is as wide as the terminal, and mostly blank
    return " | ".join(" ".join(line.split()) for line in lines) or "it printed nothing"


def _inherited() -> dict[str, str]:
    """Return the parent's environment, without what xdist put there."""
    return {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}


def own_coverage(command: CommandLine, scratch: str) -> dict[str, str]:
    """
    Return where a child that coverage traces, as its parent, keeps what was covered.

    It begins by erasing what is there: the parent's, and that of xdist's workers.
    """
    if "pytest_cov" not in command.plugins and command.launcher.is_pytest:
        return {}
    return {"COVERAGE_FILE": str(Path(scratch, "coverage"))}


def _draws_anew(command: CommandLine, identity: ProcessIdentity) -> bool:
    """Return whether a child must not find what earlier processes compiled."""
    return command.fresh_caches and identity.role is Role.CONFIRM


def empty_caches(scratch: str) -> dict[str, str]:
    """Return an empty cache folder for every compiler, by its variable."""
    used = (name for name in _CACHES_IF_USED if name in os.environ)
    folders = {name: Path(scratch, "jit", name) for name in (*_CACHES, *used)}
    for folder in folders.values():
        folder.mkdir(parents=True)
    return {name: str(folder) for name, folder in folders.items()}


def answers_in(out: str) -> dict[str, ChildAnswer]:
    """Return what a child wrote; the line that a crash cut off is left out."""
    path = Path(out)
    if not path.exists():
        return {}
    answers: dict[str, ChildAnswer] = {}
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            answer = codec.from_text(line, ChildAnswer)
        except RecordError:  # a line half written when the process was killed
            continue
        earlier = answers.get(answer.test_id)
        answers[answer.test_id] = answer if earlier is None else _both(earlier, answer)
    return answers


def _both(earlier: ChildAnswer, later: ChildAnswer) -> ChildAnswer:
    """Return one answer out of two: what was measured, and the failure after it."""
    return replace(
        later,
        records=earlier.records + later.records,
        failure=earlier.failure or later.failure,
        unmeasured=earlier.unmeasured + later.unmeasured,
        reached=earlier.reached + later.reached,
        ended=earlier.ended or later.ended,
        references=earlier.references + later.references,
    )


def identities_of(
    identity: ProcessIdentity, role: Role, count: int
) -> list[ProcessIdentity]:
    """Return the identities of some fresh processes of one run."""
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
