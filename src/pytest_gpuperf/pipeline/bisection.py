"""Find the commit that made a test slower, by bisection.

Every tried commit is compared with the good commit in a separate worktree. Half of the
whole change separates good from bad commits.
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
from pytest_gpuperf.report.runs import write_output

if TYPE_CHECKING:
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.model.change import Progress
    from pytest_gpuperf.pipeline.against import RevisionComparison
    from pytest_gpuperf.pipeline.command_line import CommandLine

_OTHER_METRIC = "name one that it measures with --metric"
# In git's own folder, like the state of git bisect.
_STATE = "gpuperf-bisect.json"
_SCHEMA = "pytest-gpuperf/bisect/1"
# The largest number of blocks in a comparison.
MOST_BLOCKS = 128
# Only one test is measured, and the first comparison decides if there is a search at all.
# Looks therefore go on until the budget is spent, and use no more error probability than
# the looks of AgainstPolicy: .016 in all.
_LOOK_BLOCKS = (4, 8, 16, 32, 64, MOST_BLOCKS)
_LEVELS = (0.002, 0.003, 0.003, 0.003, 0.0025, 0.0025)


class TrialOutcome(str, Enum):
    """The result of comparing a commit with the good commit."""

    GOOD = "good"
    BAD = "bad"
    SKIPPED = "skipped"  # Without a result.


# Any other verdict gives no result.
_OUTCOMES = {
    Outcome.REGRESSED: TrialOutcome.BAD,
    Outcome.UNCHANGED: TrialOutcome.GOOD,
    Outcome.IMPROVED: TrialOutcome.GOOD,
}


class Ending(str, Enum):
    """The ending of a search."""

    FOUND = "found"
    # Several commits remain, because commits between were skipped or undecided.
    NARROWED = "narrowed"
    NO_REGRESSION = "no-regression"
    UNDECIDED = "undecided"
    INTERRUPTED = "interrupted"


# Endings after which nothing is left to try.
_ANSWERS = frozenset({Ending.FOUND, Ending.NO_REGRESSION})


class Commit(Frozen, frozen=True, kw_only=True):
    """
    A commit of the history.

    Attributes:
        id: The full id.

        subject: The first line of the message.
    """

    id: str
    subject: str


class BisectRequest(Frozen, frozen=True, kw_only=True):
    """
    The parameters of a search.

    Attributes:
        test_id: The test, as pytest names it.

        good: A fast revision.

        bad: A later, slow revision.

        metric: The metric that got worse.

        limit: The smallest change that counts as a regression [fraction].

        key: The key that identifies the test in every commit, or "" to use its id.

        options: Further pytest options.

        tests_mine: True to run the tests of the tried commit on both sides.

        build_command: Builds a side in its folder, or None to use the package's own
            build.

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
    A commit compared with an earlier commit.

    Attributes:
        commit_id: The commit.

        outcome: The result.

        change: The change, or None if nothing was measured.

        block_count: Number of blocks measured.

        reason: The reason for skipping the commit, or "".

        remedy: The remedy for that reason, or "" if unknown.

        code: The code of the gap behind the reason, or None without a gap.

        elapsed_s: Duration of the comparison [s].

        wanted_count: Estimated number of blocks needed to decide, or None if decided or
            unknown.
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
        """True if the commit was measured without a decision."""
        return self.outcome is TrialOutcome.SKIPPED and self.change is not None


class Search(Frozen, frozen=True, kw_only=True):
    """
    The progress of a search, as stored in the state file.

    Attributes:
        schema: The schema of the file.

        request: The parameters of the search, with full commit ids as revisions.

        trials: The tried commits, the bad revision first.
    """

    schema: str
    request: BisectRequest
    trials: tuple[Trial, ...] = ()


class SearchResult(Frozen, frozen=True, kw_only=True):
    """
    The result of a search.

    Attributes:
        ending: The ending of the search.

        commits: The commit to blame, several commits of which one is to blame, or
            empty.

        trial: The deciding comparison: of the blamed commit with the commit before it,
            or of the bad with the good revision.

        trials: All comparisons.

        kept_count: Number of decided comparisons that a continued search reuses.
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
        request: The parameters of the search.

        site: The site of this process.

        command: The command line of pytest in the folder of this process.

        timeout_s: Time limit of a process [s].

        tell: Called with each trial, its commit, and the number of commits left.

        progress: Called with the progress of each comparison.

        remark: Called with further sentences about a comparison for the user.

        restart: True to discard an earlier search with the same parameters.

    Raises:
        RevisionError: A revision does not exist, or the good one is not an ancestor.

        ConfigError: There is no commit between the revisions.
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
            remedy="name a good commit that is an ancestor of the bad one",
            revision=request.good,
        )
    if not commits:
        message = "the good and the bad revision are one commit"
        raise ConfigError(message, remedy="name an earlier good commit")
    return commits


def _search(
    commits: Sequence[Commit],
    state: _SearchState,
    trier: _Trier,
    tell: Callable[[Trial, Commit, int], object],
) -> SearchResult:
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
    # The commit was compared with the good commit, which is not the one before it.
    if low >= 0:
        last = trier.tried(commits[high].id, half, before=commits[low].id)
    found = last.outcome is TrialOutcome.BAD
    ending = Ending.FOUND if found else Ending.UNDECIDED
    return SearchResult(ending=ending, commits=(commits[high],), trial=last)


def search_policy(trial_count: int) -> AgainstPolicy:
    """
    Return the rule for the comparisons of a search.

    Args:
        trial_count: Number of comparisons that share the error probability.
    """
    levels = tuple(level / trial_count for level in _LEVELS)
    return AgainstPolicy(
        look_blocks=_LOOK_BLOCKS,
        levels=levels,
        # A search requested by the user is not given up early.
        hopeless_width=math.inf,
    )


def bounds(outcomes: Sequence[TrialOutcome | None]) -> tuple[int, int]:
    """
    Return the indexes of the last good commit and the first bad commit.

    Args:
        outcomes: The outcome of each commit, oldest first, or None for untried commits.

    Returns:
        Indexes from 0. Index -1 is the commit before the first, which is good.
    """
    bad = [i for i, outcome in enumerate(outcomes) if outcome is TrialOutcome.BAD]
    high = min(bad, default=len(outcomes) - 1)
    known = enumerate(outcomes[:high])
    good = [i for i, outcome in known if outcome is TrialOutcome.GOOD]
    return max(good, default=-1), high


def next_place(outcomes: Sequence[TrialOutcome | None]) -> int | None:
    """
    Return the index of the untried commit closest to the middle, or None.

    Args:
        outcomes: The outcome of each commit, oldest first, or None for untried commits.

    Returns:
        An index from 0, or None if no further commit can narrow the search.
    """
    low, high = bounds(outcomes)
    untried = [i for i in range(low + 1, high) if outcomes[i] is None]
    middle = (low + high) / 2
    return min(untried, key=lambda index: abs(index - middle), default=None)


class _Trier:
    """
    Compare commits with the good commit.

    Args:
        request: The parameters of the search.

        repository: The repository of the commits.

        site: The site of this process.

        command: The command line of pytest in the folder of this process.

        timeout_s: Time limit of a process [s].

        progress: Called with the progress of each comparison.

        remark: Called with further sentences about a comparison for the user.

        trial_count: Number of comparisons that share the error probability.
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
        Compare a commit, and return the trial.

        Args:
            commit_id: The commit.

            limit: The smallest change that makes the commit bad [fraction].

            before: The commit to compare with, or None for the good commit.

        Raises:
            KeyboardInterrupt: Ctrl-C ended the comparison.
        """
        request = self.request
        try:
            with worktree(self._repository, commit_id, carry=request.carry) as tree:
                inside = os.path.relpath(
                    os.path.realpath(self._command.folder), self._repository.root
                )
                folder = os.path.normpath(Path(tree.path, inside))
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
                    command=replace(self._command, folder=folder),
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


def _trial(
    commit_id: str, comparison: RevisionComparison, limit: float, level: float
) -> Trial | None:
    """Create the trial of a commit, or return None if nothing was compared."""
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
    return Trial(
        commit_id=commit_id,
        outcome=TrialOutcome.SKIPPED,
        reason=gap.reason,
        remedy=gap.remedy,
        code=gap.code,
    )


class _SearchState:
    """
    The trials of a search, saved to a file after every trial.

    Args:
        repository: The repository with the state file in its git folder.

        request: The parameters of the search, with full commit ids as revisions.

        restart: True to discard an earlier search.
    """

    def __init__(
        self, repository: Repository, request: BisectRequest, *, restart: bool
    ) -> None:
        place = repository.text("rev-parse", "--git-path", _STATE)
        self._path = Path(repository.root, place)
        self._search = Search(schema=_SCHEMA, request=request)
        if restart:
            return
        try:
            search = codec.from_text(self._path.read_bytes(), Search)
        except (OSError, RecordError):  # Missing, or written by another version.
            return
        # Undecided commits are tried again, with more time or on a quieter machine.
        if search.schema == _SCHEMA and search.request == request:
            trials = (trial for trial in search.trials if not trial.is_undecided)
            self._search = replace(search, trials=tuple(trials))

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials so far."""
        return self._search.trials

    def trial(self, commit_id: str) -> Trial | None:
        """Return the trial of a commit, or None if untried."""
        return next((t for t in self.trials if t.commit_id == commit_id), None)

    def outcomes(self, commits: Sequence[Commit]) -> list[TrialOutcome | None]:
        """Return the outcomes of commits, with None for untried commits."""
        known = {trial.commit_id: trial.outcome for trial in self.trials}
        return [known.get(commit.id) for commit in commits]

    def add(self, trial: Trial) -> None:
        """
        Add a trial and save the file.

        Raises:
            ReportError: The file cannot be written.
        """
        self._search = replace(self._search, trials=(*self.trials, trial))
        self._write()

    def forget(self) -> None:
        """Remove the file after the end of the search."""
        self._search = replace(self._search, trials=())
        with contextlib.suppress(OSError):
            self._path.unlink()

    def keep_decided(self) -> None:
        """
        Keep decided trials only, because the cause of an undecided trial may have been fixed.
        """
        skipped = TrialOutcome.SKIPPED
        decided = tuple(t for t in self.trials if t.outcome is not skipped)
        if not decided:
            self.forget()
            return
        self._search = replace(self._search, trials=decided)
        self._write()

    def _write(self) -> None:
        write_output(str(self._path), codec.to_text(self._search).encode())
