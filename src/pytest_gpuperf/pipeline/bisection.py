"""Which commit made a test slower: comparisons with the good commit, by halves.

Each commit is held against the good one in a worktree of its own. Half of the whole
change is the line between the two kinds of commits.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.worktree import Repository, worktree
from pytest_gpuperf.compute.blocks import blocks_wanted
from pytest_gpuperf.errors import (
    CollectError,
    ConfigError,
    RecordError,
    RevisionError,
)
from pytest_gpuperf.judge.against import AgainstPolicy
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.verdict import Outcome, Reason
from pytest_gpuperf.pipeline.against import compare, interrupted_by_signals
from pytest_gpuperf.pipeline.sides import SidesRequest
from pytest_gpuperf.report.display import plural
from pytest_gpuperf.report.runs import write_whole

if TYPE_CHECKING:
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.model.change import Progress
    from pytest_gpuperf.pipeline.against import RevisionComparison
    from pytest_gpuperf.pipeline.repeat import CommandLine

__all__ = [
    "MOST_BLOCKS",
    "BisectRequest",
    "Commit",
    "Ending",
    "Search",
    "SearchResult",
    "Trial",
    "TrialOutcome",
    "bisect",
    "bounds",
    "next_place",
    "search_policy",
]

_OTHER_METRIC = "name one that it measures with --metric"
_STATE = "gpuperf-bisect.json"  # in git's own folder, as git's bisect keeps its state
_SCHEMA = "pytest-gpuperf/bisect/1"
MOST_BLOCKS = 128  # of one comparison
# one test is measured, and the first comparison decides whether there is a search: looks go
# on as long as the budget lasts, and spend no more than those of AgainstPolicy: .016 in all
_LOOK_BLOCKS = (4, 8, 16, 32, 64, MOST_BLOCKS)
_LEVELS = (0.002, 0.003, 0.003, 0.003, 0.0025, 0.0025)


class TrialOutcome(str, Enum):
    """What a comparison of a commit with the good one says of it."""

    GOOD = "good"
    BAD = "bad"
    SKIPPED = "skipped"  # it says nothing


_OUTCOMES = {  # any other verdict says nothing
    Outcome.REGRESSED: TrialOutcome.BAD,
    Outcome.UNCHANGED: TrialOutcome.GOOD,
    Outcome.IMPROVED: TrialOutcome.GOOD,
}


class Ending(str, Enum):
    """How a search ended."""

    FOUND = "found"
    NARROWED = "narrowed"  # to several: those between were skipped or undecided
    NO_REGRESSION = "no-regression"
    UNDECIDED = "undecided"
    INTERRUPTED = "interrupted"


_ANSWERS = frozenset({Ending.FOUND, Ending.NO_REGRESSION})  # nothing is left to try


class Commit(Frozen, frozen=True, kw_only=True):
    """
    A commit of the history.

    Attributes:
        id: Its full id.

        subject: The first line of its message.
    """

    id: str
    subject: str


class BisectRequest(Frozen, frozen=True, kw_only=True):
    """
    What is searched.

    Attributes:
        test_id: The test, as pytest names it.

        good: A revision that is fast.

        bad: A later one that is slow.

        metric: What got worse.

        limit: The smallest change that counts as a regression [fraction].

        key: Its key, by which each commit has it; "": its id.

        options: What else pytest is started with.

        tests_mine: Whether each commit's tests run on both sides.

        build_command: Builds a side, in its folder; None: its package's own build.

        carry: Files that git ignores and a side needs.
    """

    test_id: str
    good: str
    bad: str
    key: str = ""
    metric: str = "time"
    limit: float = 0.05
    options: tuple[str, ...] = ()
    tests_mine: bool = False
    build_command: str | None = None
    carry: tuple[str, ...] = ()


class Trial(Frozen, frozen=True, kw_only=True):
    """
    One commit held against an earlier one.

    Attributes:
        commit_id: The commit.

        outcome: What is said of it.

        change: The change; None: nothing was measured.

        block_count: Blocks that it took.

        reason: Why it was skipped; "": it was not.

        remedy: What to do about that; "": not known.

        code: What kind of gap the reason is of; None: of none.

        elapsed_s: How long its comparison took [s].

        wanted_count: About how many blocks would decide; None: it is decided, or nobody
            knows.
    """

    commit_id: str
    outcome: TrialOutcome
    change: Change | None = None
    block_count: int = 0
    reason: str = ""
    remedy: str = ""
    code: GapCode | None = None
    elapsed_s: float = 0.0
    wanted_count: int | None = None

    @property
    def is_undecided(self) -> bool:
        """Whether it was measured, and that was not enough."""
        return self.outcome is TrialOutcome.SKIPPED and self.change is not None


class Search(Frozen, frozen=True, kw_only=True):
    """
    How far a search is, as its state file keeps it.

    Attributes:
        schema: The file's schema.

        request: What is searched, its revisions as full commits.

        trials: The commits that were tried: the bad one first.
    """

    schema: str
    request: BisectRequest
    trials: tuple[Trial, ...] = ()


class SearchResult(Frozen, frozen=True, kw_only=True):
    """
    The result of a search.

    Attributes:
        ending: How it ended.

        commits: The commit that is to blame; several: one of them is; empty: none.

        trial: The comparison behind it: of the commit with the one before it, else of
            the bad one with the good one.

        trials: All comparisons.

        kept_count: Decided comparisons from which the same search goes on.
    """

    ending: Ending
    commits: tuple[Commit, ...] = ()
    trial: Trial | None = None
    trials: tuple[Trial, ...] = ()
    kept_count: int = 0


def bisect(
    request: BisectRequest,
    *,
    site: Site,
    command: CommandLine,
    timeout_s: float,
    tell: Callable[[Trial, Commit, int], object] = lambda *_: None,
    progress: Callable[[Progress], object] = lambda _: None,
    remark: Callable[[str], object] = lambda _: None,
    restart: bool = False,
) -> SearchResult:
    """
    Find the commit that made a test slower.

    Args:
        request: What is searched.

        site: This process.

        command: How pytest is started in the folder of this process.

        timeout_s: How long a process may take [s].

        tell: Told of each trial, its commit, and how many commits are left.

        progress: Told how far each comparison is.

        remark: Told what else the user should know of a comparison, a sentence.

        restart: Whether to forget an earlier search of the same kind.

    Raises:
        RevisionError: A revision is not there, or the good one is not an ancestor.

        ConfigError: There is no commit between them.
    """
    repository = Repository.at(command.folder, site.runner)
    request = replace(
        request,
        good=repository.commit_of(request.good),
        bad=repository.commit_of(request.bad),
    )
    commits = _commits(repository, request)
    state = _SearchState(repository, request, restart=restart)
    trier = _Trier(
        request,
        repository=repository,
        site=site,
        command=command,
        timeout_s=timeout_s,
        progress=progress,
        remark=remark,
        trial_count=math.ceil(math.log2(len(commits))) + 2,
    )
    try:
        with interrupted_by_signals():
            answer = _search(commits, state, trier, tell)
    except KeyboardInterrupt:
        return SearchResult(ending=Ending.INTERRUPTED, trials=state.trials)
    trials = state.trials
    if answer.ending in _ANSWERS:
        state.forget()
    else:
        state.keep_decided()
    return replace(answer, trials=trials, kept_count=len(state.trials))


def _commits(repository: Repository, request: BisectRequest) -> list[Commit]:
    """Return the commits after the good one up to the bad one, oldest first."""
    lines = repository.text(
        *("log", "--reverse", "--first-parent", "--format=%H %s"),
        f"{request.good}..{request.bad}",
    ).splitlines()
    commits = [
        Commit(id=commit_id, subject=subject)
        for commit_id, _, subject in (line.partition(" ") for line in lines)
    ]
    ancestor = repository.run("merge-base", "--is-ancestor", request.good, request.bad)
    if ancestor.exit_code:
        message = f"{request.good[:12]} is not an ancestor of {request.bad[:12]}"
        raise RevisionError(
            message,
            remedy="name a good commit of the bad one's own history",
            revision=request.good,
        )
    if not commits:
        message = "the good and the bad revision are one commit"
        raise ConfigError(message, remedy="name an earlier good one")
    return commits


def _search(
    commits: Sequence[Commit],
    state: _SearchState,
    trier: _Trier,
    tell: Callable[[Trial, Commit, int], object],
) -> SearchResult:
    """Return the answer; try commits until only one is left that can be to blame."""

    def tried(index: int, limit: float) -> Trial:
        trial = state.trial(commits[index].id)
        if trial is None:
            trial = trier.tried(commits[index].id, limit)
            state.add(trial)
        low, high = bounds(state.outcomes(commits))
        tell(trial, commits[index], high - low)
        return trial

    whole = tried(len(commits) - 1, trier.request.limit)
    if whole.outcome is not TrialOutcome.BAD:
        skipped = whole.outcome is TrialOutcome.SKIPPED
        ending = Ending.UNDECIDED if skipped else Ending.NO_REGRESSION
        return SearchResult(ending=ending, trial=whole)
    effect = 0.0 if whole.change is None else whole.change.effect or 0.0
    half = abs(math.sqrt(1 + effect) - 1)
    while (index := next_place(state.outcomes(commits))) is not None:
        tried(index, half)
    low, high = bounds(state.outcomes(commits))
    if high - low > 1:
        between = tuple(commits[low + 1 : high + 1])
        return SearchResult(ending=Ending.NARROWED, commits=between, trial=whole)
    last = whole
    if low >= 0:  # the one before it is not the good one, which it was held against
        last = trier.tried(commits[high].id, half, before=commits[low].id)
    found = last.outcome is TrialOutcome.BAD
    ending = Ending.FOUND if found else Ending.UNDECIDED
    return SearchResult(ending=ending, commits=(commits[high],), trial=last)


def search_policy(trial_count: int) -> AgainstPolicy:
    """
    Return the rule of one comparison of a search.

    Args:
        trial_count: Comparisons that the error is spent over.
    """
    levels = tuple(level / trial_count for level in _LEVELS)
    return AgainstPolicy(
        look_blocks=_LOOK_BLOCKS,
        levels=levels,
        hopeless_width=math.inf,  # what somebody looks for is not given up early
    )


def bounds(outcomes: Sequence[TrialOutcome | None]) -> tuple[int, int]:
    """
    Return the places of the last good commit and of the first bad one.

    Args:
        outcomes: Of each commit, the oldest first; None: it was not tried.

    Returns:
        Places from 0; -1 is the commit before the first, which is good.
    """
    bad = [i for i, outcome in enumerate(outcomes) if outcome is TrialOutcome.BAD]
    high = min(bad, default=len(outcomes) - 1)
    known = enumerate(outcomes[:high])
    good = [i for i, outcome in known if outcome is TrialOutcome.GOOD]
    return max(good, default=-1), high


def next_place(outcomes: Sequence[TrialOutcome | None]) -> int | None:
    """
    Return the commit to try next: the untried one that is nearest to the middle.

    Args:
        outcomes: Of each commit, the oldest first; None: it was not tried.

    Returns:
        Its place from 0; None: no other commit can say more.
    """
    low, high = bounds(outcomes)
    untried = [i for i in range(low + 1, high) if outcomes[i] is None]
    middle = (low + high) / 2
    return min(untried, key=lambda index: abs(index - middle), default=None)


class _Trier:
    """
    Holds commits against the good one.

    Args:
        request: What is searched.

        repository: Whose commits they are.

        site: This process.

        command: How pytest is started in its folder.

        timeout_s: How long a process may take [s].

        progress: Told how far each comparison is.

        remark: Told what else the user should know of a comparison, a sentence.

        trial_count: Comparisons that the error is spent over.
    """

    def __init__(
        self,
        request: BisectRequest,
        *,
        repository: Repository,
        site: Site,
        command: CommandLine,
        timeout_s: float,
        progress: Callable[[Progress], object],
        remark: Callable[[str], object],
        trial_count: int,
    ) -> None:
        self.request = request
        self._repository = repository
        self._site = site
        self._command = command
        self._timeout_s = timeout_s
        self._progress = progress
        self._remark = remark
        self._policy = search_policy(trial_count)

    def tried(self, commit_id: str, limit: float, before: str | None = None) -> Trial:
        """
        Return what a comparison says of a commit.

        Args:
            commit_id: The commit.

            limit: The change from which on it is bad [fraction].

            before: The commit that it is held against; None: the good one.

        Raises:
            KeyboardInterrupt: Ctrl-C ended it.
        """
        request = self.request
        try:
            with worktree(self._repository, commit_id, carry=request.carry) as tree:
                comparison = compare(
                    SidesRequest(
                        revision=before or request.good,
                        test_ids=(request.test_id,),
                        keys=(request.key or request.test_id,),
                        identity=self._site.identity,
                        tests_mine=request.tests_mine,
                        build_command=request.build_command,
                        carry=request.carry,
                        timeout_s=self._timeout_s,
                        own_root=self._repository.root,
                    ),
                    {request.test_id: {request.metric: limit}},
                    site=self._site,
                    command=self._below(tree.path),
                    timeout_s=self._timeout_s,
                    tell=self._progress,
                    policy=self._policy,
                )
        except CollectError as error:
            return _skipped(commit_id, Gap.of(error))
        if comparison.interrupted:
            raise KeyboardInterrupt
        for text in comparison.remarks:
            self._remark(text)
        trial = _trial(commit_id, comparison, limit, self._policy.levels[-1])
        if trial is not None:
            return trial
        reason = f"the test gave no value of {request.metric}"
        unknown = GapCode.UNKNOWN_METRIC
        gap = Gap(code=unknown, reason=reason, remedy=_OTHER_METRIC)
        return _skipped(commit_id, gap)

    def _below(self, root: str) -> CommandLine:
        """Return how pytest is started in the same folder of another tree."""
        inside = os.path.relpath(
            os.path.realpath(self._command.folder), self._repository.root
        )
        folder = os.path.normpath(Path(root, inside))
        return replace(self._command, folder=folder)


def _trial(
    commit_id: str, comparison: RevisionComparison, limit: float, level: float
) -> Trial | None:
    """Return the trial of a commit by its comparison; None: it compared nothing."""
    against = comparison.against
    gap = against.gap
    if not comparison.verdicts:
        return None if gap is None else _skipped(commit_id, gap)
    reason = "" if gap is None else gap.reason
    if against.changed:
        reason = "the test itself differs: see --tests=mine"
    verdict = comparison.verdicts[0]
    if verdict.reason is Reason.NOT_MEASURED:
        absent = None if verdict.evidence is None else verdict.evidence.gap
        return None if absent is None else _skipped(commit_id, absent)
    trial = Trial(
        commit_id=commit_id,
        outcome=_OUTCOMES.get(verdict.outcome, TrialOutcome.SKIPPED),
        change=verdict.change,
        block_count=against.block_count,
        code=None if gap is None else gap.code,
        elapsed_s=against.elapsed_s,
    )
    if trial.outcome is not TrialOutcome.SKIPPED:
        return trial
    short = verdict.reason is Reason.TOO_FEW_BLOCKS
    if verdict.change is None or not (short or verdict.reason is Reason.BLOCKS_DIFFER):
        return replace(
            trial,
            reason=reason or f"{verdict.outcome.value}: {verdict.reason.value}",
        )
    return replace(
        trial,
        reason=reason or f"{plural(against.block_count, 'block')} do not decide it",
        wanted_count=blocks_wanted(verdict.change, against.block_count, limit, level),
    )


def _skipped(commit_id: str, gap: Gap) -> Trial:
    """Return that nothing is said of a commit, and why."""
    return Trial(
        commit_id=commit_id,
        outcome=TrialOutcome.SKIPPED,
        reason=gap.reason,
        remedy=gap.remedy,
        code=gap.code,
    )


class _SearchState:
    """
    The trials of a search, kept in a file after each.

    Args:
        repository: Whose folder has the file.

        request: What is searched, its revisions as full commits.

        restart: Whether to forget an earlier search.
    """

    def __init__(
        self, repository: Repository, request: BisectRequest, *, restart: bool
    ) -> None:
        place = repository.text("rev-parse", "--git-path", _STATE)
        self._path = Path(repository.root, place)
        self._search = Search(schema=_SCHEMA, request=request)
        if not restart:
            self._resume()

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials so far."""
        return self._search.trials

    def trial(self, commit_id: str) -> Trial | None:
        """Return the trial of a commit; None: it was not tried."""
        return next((t for t in self.trials if t.commit_id == commit_id), None)

    def outcomes(self, commits: Sequence[Commit]) -> list[TrialOutcome | None]:
        """Return what was said of each commit; None: it was not tried."""
        known = {trial.commit_id: trial.outcome for trial in self.trials}
        return [known.get(commit.id) for commit in commits]

    def add(self, trial: Trial) -> None:
        """
        Keep a trial.

        Raises:
            ReportError: The file cannot be written.
        """
        self._search = replace(self._search, trials=(*self.trials, trial))
        self._write()

    def forget(self) -> None:
        """Remove the file: the search has come to its end."""
        self._search = replace(self._search, trials=())
        with contextlib.suppress(OSError):
            self._path.unlink()

    def keep_decided(self) -> None:
        """Keep what was decided; what was not is tried anew: its cause may be mended."""
        skipped = TrialOutcome.SKIPPED
        decided = tuple(t for t in self.trials if t.outcome is not skipped)
        if not decided:
            self.forget()
            return
        self._search = replace(self._search, trials=decided)
        self._write()

    def _write(self) -> None:
        """Write the file."""
        write_whole(str(self._path), codec.to_text(self._search).encode())

    def _resume(self) -> None:
        """
        Take the trials of an interrupted search of the same; leave any other's.

        What was undecided is tried anew: with more time, or on a quieter machine.
        """
        try:
            search = codec.from_text(self._path.read_bytes(), Search)
        except (OSError, RecordError):  # none, or of another version
            return
        if search.schema == _SCHEMA and search.request == self._search.request:
            trials = (trial for trial in search.trials if not trial.is_undecided)
            self._search = replace(search, trials=tuple(trials))
