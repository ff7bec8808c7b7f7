"""The command `bisect`: find the commit that made a test slower."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import (
    GOOD,
    INTERRUPTED,
    UNDECIDED,
    UNREADABLE,
    WORSE,
    WRONG_USAGE,
    print_bytes,
    say,
)
from pytest_gpuperf.collect.checkout import checkout_of
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.scratch import ScratchFolder
from pytest_gpuperf.collect.session import new_session
from pytest_gpuperf.config import Config
from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.measure.site import ProcessIdentity, Site
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.options import CHILD_VARIABLE
from pytest_gpuperf.pipeline import bisection as search
from pytest_gpuperf.pipeline.command_line import CommandLine
from pytest_gpuperf.pipeline.side_process import root_folder
from pytest_gpuperf.report import display
from pytest_gpuperf.report.lines import document, json_bytes
from pytest_gpuperf.report.notices import comparison_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pytest_gpuperf.collect.runner import Runner
    from pytest_gpuperf.model.change import Progress

_ENDINGS = {
    search.Ending.FOUND: GOOD,
    search.Ending.NO_REGRESSION: WORSE,
    search.Ending.NARROWED: UNDECIDED,
    search.Ending.UNDECIDED: UNDECIDED,
    search.Ending.INTERRUPTED: INTERRUPTED,
}
# Exit codes if the first comparison measured nothing. Any other gap is UNREADABLE.
_UNMEASURED: dict[GapCode | None, int] = {
    GapCode.INCOMPLETE: UNDECIDED,  # Its budget was spent.
    GapCode.UNKNOWN_METRIC: WRONG_USAGE,
    GapCode.UNKNOWN_TEST: WRONG_USAGE,
}
# Timeout of one process that measures one test.
_TIMEOUT_S = 600.0
# Digits of a commit.
_SHOWN = 12


def bisect(arguments: argparse.Namespace) -> int:
    """Print the commit that made a test slower, and return the exit code."""
    config = Config(
        root=str(Path.cwd()),
        budget_s=arguments.budget,
        build_command=arguments.build,
    )
    identity = ProcessIdentity(session=new_session(SystemClock()))
    site = Site.in_process(config, identity)
    test_id, key, command = _located(arguments.test, arguments.options, site.runner)
    request = search.BisectRequest(
        test_id=test_id,
        key=key,
        good=arguments.good,
        bad=arguments.bad,
        metric=arguments.metric,
        limit=arguments.max_regression,
        options=tuple(arguments.options),
        tests_mine=arguments.tests == "mine",
        build_command=arguments.build,
        carry=tuple(arguments.carry),
    )
    progress = _Progress()
    answer = search.bisect(
        request,
        site=site,
        command=command,
        timeout_s=_TIMEOUT_S,
        tell=progress.tried,
        progress=progress.block,
        remark=progress.remark,
        restart=arguments.restart,
    )
    progress.end()
    if arguments.format == "json":
        print_bytes(json_bytes(document("bisect", _facts(answer))))
    else:
        print_bytes("".join(f"{line}\n" for line in _lines(answer, arguments)).encode())
    return exit_code_of(answer)


def exit_code_of(answer: search.SearchResult) -> int:
    """
    Return the exit code of a search. A search that measured nothing does not count as
    undecided.
    """
    trial = answer.trial
    is_open = answer.ending is search.Ending.UNDECIDED and not answer.commits
    if trial is None or not is_open or trial.change is not None:
        return _ENDINGS[answer.ending]
    return _UNMEASURED.get(trial.code, UNREADABLE)


def _located(
    test: str, options: Sequence[str], runner: Runner
) -> tuple[str, str, CommandLine]:
    """
    Return the id and the key of a test, and the command that runs the file of the test.

    A path in the test may be relative to the current folder, as an argument of pytest,
    or to pytest's root folder, as an id. If pytest does not start, the test is returned
    unchanged.
    """
    path, colons, name = test.partition("::")
    plugins = {"cacheprovider"}
    autoload = not os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    if autoload and importlib.util.find_spec("xdist") is not None:
        plugins.add("xdist")
    command = CommandLine(
        args=(*options, path),
        folder=str(Path.cwd()),
        variable=CHILD_VARIABLE,
        paths=(path,),
        plugins=frozenset(plugins),
        fresh_caches=True,
    )
    with ScratchFolder("root") as scratch, contextlib.suppress(CollectError):
        root = root_folder(command, scratch, runner, timeout_s=_TIMEOUT_S)
        if root is not None:
            file = Path(command.folder, path)
            if not file.exists() and Path(root, path).exists():
                file = Path(root, path)
            argument = os.path.relpath(file, command.folder)
            command = replace(
                command, args=(*command.args[:-1], argument), paths=(argument,)
            )
            test = Path(os.path.relpath(file, root)).as_posix() + colons + name
            checkout = checkout_of(root, command.folder, [file])
            below = checkout.relative(os.path.realpath(file))
            key = test if below is None else below + colons + checkout.portable(name)
            return test, key, command
    return test, test, command


class _Progress:
    """Shows the progress of a search on standard error."""

    def __init__(self) -> None:
        self._on_line = False
        self._told: set[str] = set()

    def block(self, progress: Progress) -> None:
        """Show the progress of a comparison on a terminal, over the same line."""
        if sys.stderr is None or not sys.stderr.isatty():
            return
        sys.stderr.write(f"\r\x1b[K{comparison_line(progress)}")
        sys.stderr.flush()
        self._on_line = True

    def tried(self, trial: search.Trial, commit: search.Commit, left: int) -> None:
        """Print the result of comparing a commit."""
        self.end()
        say(
            [
                f"{_named(commit)}: {_finding(trial)}; {display.plural(left, 'commit')} left"
            ]
        )

    def remark(self, text: str) -> None:
        """Print a remark on a comparison. A remark that all comparisons share is printed once."""
        if text not in self._told:
            self._told.add(text)
            self.end()
            say([f"gpuperf: {text}"])

    def end(self) -> None:
        """Erase the progress line."""
        if self._on_line:
            sys.stderr.write("\r\x1b[K")
        self._on_line = False


def _named(commit: search.Commit) -> str:
    return f"{commit.id[:_SHOWN]} {commit.subject}"


def _finding(trial: search.Trial) -> str:
    if trial.outcome is search.TrialOutcome.SKIPPED:
        word = "undecided" if trial.is_undecided else "skipped"
        return f"{word}, {_open(trial)}"
    blocks = display.plural(trial.block_count, "block")
    return f"{trial.outcome.value}, {_change(trial)} after {blocks}"


def _open(trial: search.Trial) -> str:
    if trial.change is None:
        return trial.reason
    return f"{_change(trial)}: {trial.reason}"


def _remedy(trial: search.Trial | None) -> list[str]:
    """Return a line with a remedy for an undecided comparison, or [] if unknown."""
    if trial is None or trial.outcome is not search.TrialOutcome.SKIPPED:
        return []
    if trial.change is None or not trial.block_count:
        return [f"    remedy: {trial.remedy}"] if trial.remedy else []
    quieter = "measure on a quieter machine, or time more work in a call"
    if trial.wanted_count is None or trial.wanted_count > search.MOST_BLOCKS:
        return [f"    {quieter}"]
    wanted_s = trial.elapsed_s / trial.block_count * trial.wanted_count
    budget = f"--budget={math.ceil(wanted_s / 60)}min"
    wanted = f"about {trial.wanted_count} blocks would decide: {budget}"
    return [f"    {wanted}, or {quieter}"]


def _going_on(answer: search.SearchResult) -> list[str]:
    """Return a line on how to continue a search, or [] if a search would begin anew."""
    if not answer.kept_count:
        return []
    kept = display.plural(answer.kept_count, "comparison")
    return [
        f"    the same command goes on from here: {kept} decided; --restart begins anew"
    ]


def _change(trial: search.Trial | None) -> str:
    change = None if trial is None else trial.change
    if change is None or change.effect is None:
        return "no change measured"
    text = display.change(change.effect)
    if change.low is None or change.high is None:
        return text
    return f"{text} ({display.change_interval(change.low, change.high)})"


def _lines(answer: search.SearchResult, arguments: argparse.Namespace) -> list[str]:
    between = f"{arguments.good}..{arguments.bad}"
    measured = f"{arguments.test} {arguments.metric}"
    if answer.ending is search.Ending.INTERRUPTED:
        tried = display.plural(len(answer.trials), "comparison")
        return [f"interrupted after {tried}: the same command goes on from there"]
    if answer.ending is search.Ending.NO_REGRESSION:
        return [f"no regression in {between}: {measured} {_change(answer.trial)}"]
    if answer.ending is search.Ending.FOUND:
        head = f"{answer.commits[0].id} is the first slow commit"
        return [
            head,
            f"    {answer.commits[0].subject}",
            f"    {measured} {_change(answer.trial)}",
        ]
    if answer.ending is search.Ending.NARROWED:
        head = "the first slow commit is one of these; those between were skipped"
        head += " or stayed undecided"
        lines = [head, *(f"    {_named(commit)}" for commit in answer.commits)]
        left = {commit.id for commit in answer.commits}
        remedies = (_remedy(t) for t in answer.trials if t.commit_id in left)
        return [*lines, *next(filter(None, remedies), []), *_going_on(answer)]
    remedy = [*_remedy(answer.trial), *_going_on(answer)]
    if answer.commits:
        named = f"{_named(answer.commits[0])}: held against the commit before it"
        finding = "" if answer.trial is None else f": {_finding(answer.trial)}"
        return [f"undecided: perhaps {named}{finding}", *remedy]
    why = "" if answer.trial is None else f": {_open(answer.trial)}"
    return [f"undecided whether there is a regression in {between}{why}", *remedy]


def _facts(answer: search.SearchResult) -> dict[str, object]:
    change = None if answer.trial is None else answer.trial.change
    return {
        "ending": answer.ending.value,
        "commits": [{"id": c.id, "subject": c.subject} for c in answer.commits],
        "effect": None if change is None else change.effect,
        "interval": None if change is None else [change.low, change.high],
        "trials": [
            {
                "commit": trial.commit_id,
                "outcome": trial.outcome.value,
                "effect": None if trial.change is None else trial.change.effect,
                "blocks": trial.block_count,
                "wanted_blocks": trial.wanted_count,
                "reason": trial.reason,
            }
            for trial in answer.trials
        ],
    }
