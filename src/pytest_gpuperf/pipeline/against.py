"""Compare the working tree with a revision: run blocks and look until all is decided."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.clock import NS_PER_S
from pytest_gpuperf.collect.memory import fits_on_device, release_unused
from pytest_gpuperf.collect.signals import ending_signals, signal_name
from pytest_gpuperf.collect.worktree import Repository
from pytest_gpuperf.config import AgainstTests, ConfirmBy
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.judge.against import (
    AgainstLook,
    AgainstPolicy,
    Block,
    changed_test,
    look_at,
    out_of_time,
    same_files,
)
from pytest_gpuperf.judge.case import POLICY
from pytest_gpuperf.judge.rule import suffices
from pytest_gpuperf.judge.sides import unsteady_parameters
from pytest_gpuperf.model.change import Against, Progress
from pytest_gpuperf.model.environment import BOARD, MACHINE, TEST, WORKERS
from pytest_gpuperf.model.frozen import Frozen, collector_paused, replace, stated
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import RecordKey
from pytest_gpuperf.model.verdict import Outcome
from pytest_gpuperf.pipeline.blocks import BlockRequest, affordable, plan, run_block
from pytest_gpuperf.pipeline.changed import changes_since, used_files
from pytest_gpuperf.pipeline.levels import REDIRECTED
from pytest_gpuperf.pipeline.proof import installs, same_tests
from pytest_gpuperf.pipeline.repeat import launch_refusal
from pytest_gpuperf.pipeline.sides import SidesRequest, open_sides
from pytest_gpuperf.pipeline.turn_server import Patience
from pytest_gpuperf.pipeline.verdicts import Confirmed, gates
from pytest_gpuperf.report.display import about, moved_fact, plural, some_of
from pytest_gpuperf.report.notices import installed_packages
from pytest_gpuperf.report.notices import unsteady_parameters as unsteady_line

if TYPE_CHECKING:
    from pytest_gpuperf.collect.worktree import Changes
    from pytest_gpuperf.judge.case import Case
    from pytest_gpuperf.judge.look import FirstLook
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.model.verdict import Verdict
    from pytest_gpuperf.pipeline.command_line import CommandLine
    from pytest_gpuperf.pipeline.sides import Sides
    from pytest_gpuperf.pipeline.suite import Suite


# The largest accepted change [fraction], by test id and by metric.
Limits = Mapping[str, Mapping[str, "float | None"]]
# Enough digits of a commit to be unique in any repository.
_SHORT = 12
# Codes of a block that could not be run, for example on a full disk. Other codes also
# void the earlier blocks.
_WITHOUT_A_BLOCK = frozenset({GapCode.FAILED, GapCode.NOT_STATED})
# The shortest time limit of a silent process.
_LEAST_PATIENCE_S = 30.0
# In durations of a whole block.
_PATIENCE_FACTOR = 10.0
# A shorter plan is not announced, because the first block soon reports progress.
_TOLD_PLAN_S = 30.0
# A user does not notice a shorter wait.
_TOLD_WAIT_S = 1.0
# Ended processes listed one by one. More of them add no information.
_TOLD_LOST = 3
# Soft facts that do not describe the software shared by both sides of a comparison. A
# changed test is found by comparing the source of both sides.
_OF_MACHINE = frozenset({BOARD, MACHINE, WORKERS, TEST})
_UNKNOWN = Gap(
    code=GapCode.NOT_STATED,
    reason="the newest comparable session does not name a commit, or had edited files",
    remedy="store sessions of committed code, or confirm with --gpuperf-confirm-by=fresh",
)
_TEST_CHANGED = Gap(
    code=GapCode.EDITED_FILE,
    reason="the source of the test is not that of the stored commit",
    remedy="run today's tests on both sides with --gpuperf-against-tests=mine",
)
_ONLY_NEW = Gap(
    code=GapCode.UNKNOWN_TEST,
    reason="the stored commit does not have the test",
    remedy="commit tests before their sessions are stored",
)
_NO_VALUES = Gap(
    code=GapCode.FAILED,
    reason="a side gave no value of it",
    remedy="see the test's own lines, or confirm with --gpuperf-confirm-by=fresh",
)


class RevisionComparison(Frozen, frozen=True, kw_only=True):
    """
    The result of a comparison with a revision.

    Attributes:
        against: The comparison as a whole.

        verdicts: One per test and metric, empty if nothing was compared.

        remarks: Further sentences for the user.

        interrupted: The cause of an early end: "KeyboardInterrupt", the name of a
            signal that ends a job, or "".

        left_out: Reasons for leaving out slow tests, by test id.
    """

    against: Against
    left_out: Mapping[str, Gap] = {}
    verdicts: tuple[Verdict, ...] = ()
    remarks: tuple[str, ...] = ()
    interrupted: str = ""


def usual_policy(site: Site) -> AgainstPolicy:
    """Return the constants of the rule for the tests of a run."""
    return AgainstPolicy(
        across=site.config.compare_across, shard_count=site.shard_count()
    )


def compare(
    request: SidesRequest,
    limits: Limits,
    *,
    site: Site,
    command: CommandLine,
    timeout_s: float,
    tell: Callable[[Progress], object] = lambda _: None,
    policy: AgainstPolicy | None = None,
    peak_bytes: int | None = None,
) -> RevisionComparison:
    """
    Compare tests of a revision with the same tests of the working tree.

    Args:
        request: The two sides and the tests to compare.

        limits: The largest accepted change [fraction], by test id and metric.

        site: The site of the comparing process. Its config has the budget.

        command: The command line of the run.

        timeout_s: Time limit of a process [s].

        tell: Called with the progress of every block and every look.

        policy: The constants of the rule, or None for those of a run.

        peak_bytes: The largest GPU memory use of a test [B], or None if unknown.
    """
    release_unused()  # The processes of the sides need this memory.
    looks = _Looks(
        request.revision,
        limits,
        site=site,
        timeout_s=timeout_s,
        tell=tell,
        policy=policy or usual_policy(site),
        peak_bytes=peak_bytes,
    )
    against = Against(revision=request.revision)
    remarks: tuple[str, ...] = ()
    interrupted = ""
    try:
        tell(looks.progress(text="making the two sides"))
        with (
            interrupted_by_signals(),
            open_sides(request, command, site.runner, site.clock) as sides,
        ):
            remarks = sides.remarks
            against = _of_sides(against, sides)
            interrupted = looks.take(sides, command)
            built = looks.refuted(sides)
            if built is not None:
                against = _of_sides(against, built)
                interrupted = looks.take(built, command)
            remarks += (*looks.waited(), *looks.lost(), *looks.changed_files(sides))
            remarks += looks.unsteady()
    except GpuPerfError as error:
        looks.void(Gap.of(error))
    except KeyboardInterrupt as error:  # Before the first block, or at the end.
        interrupted = _named(error)
    if interrupted:
        looks.gap = looks.gap or _interrupted(interrupted)
    return RevisionComparison(
        against=replace(
            against,
            block_count=len(looks.blocks),
            elapsed_s=looks.elapsed_s(),
            null_fraction=looks.null_fraction(),
            gap=looks.gap,
        ),
        verdicts=(
            *looks.verdicts(),
            *(changed_test(RecordKey(test_id=name)) for name in against.changed),
        ),
        remarks=remarks,
        interrupted=interrupted,
    )


def _of_sides(against: Against, sides: Sides) -> Against:
    return replace(
        against,
        commit=sides.commit,
        level=sides.level,
        modules=sides.modules,
        changed=sides.changed,
        only_old=sides.only_old,
        only_new=sides.only_new,
    )


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """
    Turn signals that end a job into Ctrl-C, so that the worktree is removed.

    Raises:
        KeyboardInterrupt: A signal arrived. The text is the name of the signal.
    """
    received: list[int] = []

    def interrupt(number: int, _: object) -> None:
        received.append(number)
        # A repeated signal must not interrupt the cleanup.
        if len(received) == 1:
            raise KeyboardInterrupt(signal_name(number))

    with ending_signals(interrupt):
        yield


def compare_suite(
    suite: Suite, revision: str, *, complete: bool
) -> tuple[Verdict, ...]:
    """
    Compare the gated tests of a run with a revision.

    Args:
        suite: The run. Its `against` is set to the result.

        revision: The revision as the user named it.

        complete: True if every test reported. Otherwise nothing is compared.

    Returns:
        One verdict per test and metric, empty if nothing was compared.
    """
    limits = {
        test_id: gated
        for test_id, measured in suite.results.items()
        if test_id in suite.passed and (gated := stated(gates(measured, suite.config)))
    }
    if not complete:
        comparison = _not_compared(revision, "the run ended early", "run it again")
    elif not limits and not suite.results and suite.site.all_expected().unchanged:
        against = Against(revision=revision, commit=suite.against_commit)
        comparison = RevisionComparison(against=against)
    elif not limits:
        remedy = "see --gpuperf-max-regression"
        # --gpuperf-max-regression gates only times measured with the fixture.
        if suite.config.max_regression is not None:
            remedy = (
                "measure with the gpuperf fixture, or set the marker's max_regression"
            )
        reason = "no test passed that has a gate"
        comparison = _not_compared(revision, reason, remedy)
    else:
        comparison = _compare_what_differs(suite, revision, limits)
    suite.against = comparison.against
    return comparison.verdicts


def _compare_what_differs(
    suite: Suite, revision: str, limits: Limits
) -> RevisionComparison:
    """
    Compare the tests that used a changed file.

    The other tests ran the same files on both sides and get a verdict without a
    measurement.
    """
    commit, changes = suite.against_commit, None
    with contextlib.suppress(GpuPerfError):  # The comparison reports the error.
        repository = Repository.at(
            suite.command.folder, suite.site.runner, revision=revision
        )
        changes = changes_since(repository, commit, suite.config)
    same = _same_tests(suite, changes)
    verdicts = [v for test_id in same for v in _same_files(suite, test_id, limits)]
    rest = {name: gated for name, gated in limits.items() if name not in same}
    if rest:
        comparison = _compare(suite, revision, rest, commit=commit)
    else:
        against = Against(revision=revision, commit=commit)
        comparison = RevisionComparison(against=against)
    installing = () if changes is None else installs(changes.differing)
    if installing and comparison.against.block_count and not suite.config.build_command:
        suite.remark(installed_packages(installing))
    return replace(comparison, verdicts=(*verdicts, *comparison.verdicts))


def _same_tests(suite: Suite, changes: Changes | None) -> list[str]:
    if changes is None or suite.opened is None:
        return []
    test_ids = {node_id: suite.test_of(node_id) for node_id in suite.opened.ended}
    modules = {
        node_id: suite.memory.key_of(test_id).partition("::")[0]
        for node_id, test_id in test_ids.items()
        if test_id is not None
    }
    used = used_files(suite.opened, modules, suite.config)
    same = {test_ids[node_id] for node_id in same_tests(used, changes)}
    return [test_id for test_id in suite.results if test_id in same]


def _same_files(suite: Suite, test_id: str, limits: Limits) -> Iterator[Verdict]:
    for metric, limit in limits.get(test_id, {}).items():
        for record in suite.results[test_id].records:
            whole = (e for e in record.estimates if e.kernel is None)
            estimate = next((e for e in whole if e.metric == metric), None)
            if estimate is not None:
                yield same_files(record.key, estimate, limit)


def confirm_suspects(suite: Suite, first: FirstLook) -> Confirmed:
    """
    Compare suspects with the commits of the newest comparable sessions.

    Args:
        suite: The run. Suspects that cannot be compared are reported there. After
            Ctrl-C, nothing more is compared.

        first: The first look at the run.
    """
    if suite.config.confirm_by is ConfirmBy.FRESH or suite.config.replay is not None:
        return Confirmed()
    test_ids = frozenset(first.suspects)
    suspects = [
        case
        for case, look in zip(first.cases, first.looks, strict=True)
        if look.suspect and case.key.test_id in test_ids
    ]
    confirm_by = suite.config.confirm_by
    # A gap takes the place of the commit if there is none.
    by_commit: dict[str | Gap, dict[str, dict[str, float | None]]] = {}
    for case in suspects:
        limits = by_commit.setdefault(_held_against(case, confirm_by), {})
        limits.setdefault(case.key.test_id, {})[case.metric.name] = case.limit
    verdicts: dict[tuple[RecordKey, str], Verdict] = {}
    compared: set[str] = set()
    for held, limits in by_commit.items():
        if suite.stopped:
            break
        if isinstance(held, Gap):
            comparison = RevisionComparison(against=Against(revision="", gap=held))
        else:
            comparison = _compare(suite, held[:_SHORT], limits)
            suite.against = comparison.against
        lacking = _without_comparison(comparison, limits)
        _tell_lacking(suite, lacking)
        if confirm_by is ConfirmBy.AGAINST:
            # Nothing else may decide, so fresh processes do not measure these suspects.
            lacking = {}
            verdicts |= {
                case.name: changed_test(case.key, case.metric.name)
                for case in suspects
                if case.key.test_id in comparison.against.changed
            }
        verdicts |= {
            (v.key, v.metric): v
            for v in comparison.verdicts
            if v.key.test_id not in lacking
        }
        compared.update(test_id for test_id in limits if test_id not in lacking)
    # With fewer stored sessions, fresh processes cannot decide.
    decidable = {case.key.test_id for case in suspects if suffices(case, POLICY)}
    undecidable = {case.key.test_id for case in suspects} - decidable
    return Confirmed(verdicts=verdicts, test_ids=frozenset(compared | undecidable))


def _without_comparison(
    comparison: RevisionComparison, limits: Limits
) -> dict[str, Gap]:
    against = comparison.against
    # By test and metric, True if all verdicts have values.
    complete: dict[tuple[str, str], bool] = {}
    for verdict in comparison.verdicts:
        name = (verdict.key.test_id, verdict.metric)
        has_values = verdict.against is not None and verdict.against.block_count > 0
        complete[name] = complete.get(name, True) and has_values
    lacking = {}
    for test_id, metrics in limits.items():
        if all(complete.get((test_id, metric)) for metric in metrics):
            continue
        gap = comparison.left_out.get(test_id) or against.gap or _NO_VALUES
        if test_id in against.changed:
            gap = _TEST_CHANGED
        elif test_id in against.only_new:
            gap = _ONLY_NEW
        lacking[test_id] = gap
    return lacking


def _tell_lacking(suite: Suite, lacking: Mapping[str, Gap]) -> None:
    """
    Report suspects that were not compared.

    The run fails if it confirms by this comparison alone, and otherwise gets a remark.
    """
    by_gap: dict[Gap, list[str]] = {}
    for test_id, gap in lacking.items():
        by_gap.setdefault(gap, []).append(test_id)
    for gap, test_ids in by_gap.items():
        text = (
            f"gpuperf: {some_of(test_ids)} not compared with a revision: {gap.reason}"
        )
        if suite.config.confirm_by is ConfirmBy.AGAINST:
            suite.complain(f"{text}; {gap.remedy}")
        else:
            suite.remark(
                f"{text}; fresh processes decide where two sessions are stored"
            )


def _held_against(case: Case, confirm_by: ConfirmBy) -> str | Gap:
    """Return the commit to compare a suspect with, or a gap that says why there is none."""
    session = case.stored[-1].session
    if session.dirty or session.commit is None:
        return _UNKNOWN
    moved = sorted(case.moved.keys() - _OF_MACHINE)
    if not moved or confirm_by is ConfirmBy.AGAINST:
        return session.commit
    # A fact shared by both sides cannot show up in their comparison.
    was, now = moved_fact(moved[0], *case.moved[moved[0]])
    return Gap(
        code=GapCode.NOT_DEFINED,
        reason=f"{moved[0]} {was} -> {now} since it was stored, and both sides have it",
        remedy="compare the code alone with --gpuperf-confirm-by=against",
    )


def _compare(
    suite: Suite, revision: str, limits: Limits, *, commit: str = ""
) -> RevisionComparison:
    """
    Compare tests of a run with a revision, without the tests that take too long.

    `commit` is the commit of the revision, or "" if unknown.
    """
    config = suite.config
    least_blocks = AgainstPolicy().look_blocks[0]
    tests = {name: suite.results[name] for name in limits if name in suite.results}
    planned = plan(tests, budget_s=config.budget_s, block_count=least_blocks)
    if planned.least_s >= _TOLD_PLAN_S:
        takes = (
            f"{least_blocks} blocks of slow tests take {about(planned.least_s)} or more"
        )
        suite.tell(Progress(revision=revision, text=takes))
    for gap in dict.fromkeys(planned.left_out.values()):
        suite.tell(Progress(revision=revision, text=gap.reason))
        suite.remark(f"gpuperf: {gap.reason}; {gap.remedy}")
    compared = {name: limits[name] for name in limits if name not in planned.left_out}
    if compared:
        comparison = _compare_in_time(suite, revision, compared, commit)
    else:
        gap = next(iter(planned.left_out.values()))
        comparison = RevisionComparison(against=Against(revision=revision, gap=gap))
    too_slow = (
        out_of_time(record.key, metric, limit)
        for test_id in planned.left_out
        for metric, limit in limits[test_id].items()
        for record in suite.results[test_id].records
        if any(estimate.metric == metric for estimate in record.estimates)
    )
    return replace(
        comparison,
        left_out=planned.left_out,
        verdicts=(*comparison.verdicts, *too_slow),
    )


def _compare_in_time(
    suite: Suite, revision: str, limits: Limits, commit: str
) -> RevisionComparison:
    config = suite.config
    request = SidesRequest(
        revision=revision,
        commit=commit,
        test_ids=tuple(limits),
        keys=tuple(map(suite.memory.key_of, limits)),
        checkout=config.checkout,
        identity=suite.site.identity,
        tests_mine=config.against_tests is AgainstTests.MINE,
        build_command=config.build_command,
        carry=config.carry,
        timeout_s=suite.timeout_s(),
    )
    comparison = compare(
        request,
        limits,
        site=suite.site,
        command=suite.command,
        timeout_s=suite.timeout_s(),
        tell=suite.tell,
        peak_bytes=suite.peak_device_bytes(),
    )
    for text in comparison.remarks:
        suite.remark(f"gpuperf: {text}")
    if comparison.interrupted:
        suite.stop(comparison.interrupted)
    return comparison


def _not_compared(revision: str, reason: str, remedy: str) -> RevisionComparison:
    gap = Gap(code=GapCode.NOT_ASKED, reason=reason, remedy=remedy)
    return RevisionComparison(against=Against(revision=revision, gap=gap))


class _Looks:
    """
    The blocks of a comparison, judged as they arrive.

    Attributes:
        blocks: The finished blocks.

        gap: The reason for an early end, or None while running or after a regular end.
    """

    def __init__(
        self,
        revision: str,
        limits: Limits,
        *,
        site: Site,
        timeout_s: float,
        tell: Callable[[Progress], object],
        policy: AgainstPolicy,
        peak_bytes: int | None,
    ) -> None:
        self.blocks: list[Block] = []
        self.gap: Gap | None = None
        self._revision = revision
        self._limits = limits
        self._site = site
        self._timeout_s = timeout_s
        self._tell = tell
        self._policy = policy
        self._peak_bytes = peak_bytes
        self._compared: tuple[str, ...] = ()
        self._look: AgainstLook | None = None
        self._begun_ns = site.clock.now_ns()
        # The reason against the sides that are not built.
        self._refutation: Gap | None = None
        # Start of the first block.
        self._measured_ns: int | None = None
        # Part of that time spent waiting for other runs.
        self._waited_s = 0.0
        self._budget_s = site.config.budget_s
        # Duration of a test in the last block, including the start of its process.
        self._test_s = 0.0
        self._patience = Patience(timeout_s)
        # False if the budget ended the comparison.
        self._is_stopped = True

    def take(self, sides: Sides, command: CommandLine) -> str:
        """Run and judge blocks, and return the name of an interrupt, or ""."""
        self._compared = sides.test_ids
        if not self._compared:
            return ""
        if self._measured_ns is None:
            self._measured_ns = self._site.clock.now_ns()
        request = BlockRequest(
            variable=command.variable,
            launch=command.launch,
            refusal=partial(launch_refusal, command),
            keys=sides.keys,
            patience=self._patience,
            tell=lambda text: self._tell(self.progress(text=text)),
            waited=self._add_wait,
            fits_on_device=partial(
                fits_on_device,
                peak_bytes=self._peak_bytes,
                free_bytes=self._site.free_device_bytes,
            ),
        )
        for block_count in self._policy.look_blocks:
            interrupted = self._measure(sides, request, block_count)
            self._judge(final=self.gap is not None)
            if interrupted or self.gap is not None or not self._open():
                return interrupted
        return ""

    def refuted(self, sides: Sides) -> Sides | None:
        """
        Return the built sides if the first block shows that they are needed, else None.

        If they are needed but cannot be built, the result is None as well and the gap
        has both reasons.
        """
        gap, built = self.gap, sides.built
        if gap is None or self.blocks or gap.code not in REDIRECTED:
            return None
        if isinstance(built, Gap):
            self.gap = _at_both_levels(gap, built)
        if built is None or isinstance(built, Gap):
            return None
        self.gap, self._refutation = None, gap
        self._tell(self.progress(text=f"{gap.reason}: both sides are built instead"))
        return built

    def void(self, gap: Gap) -> None:
        """End without verdicts, because the measured blocks must not count."""
        if self._refutation is not None and gap.code in REDIRECTED:
            gap = _at_both_levels(self._refutation, gap)
        self.gap = gap
        self._compared = ()
        self._look = None

    def verdicts(self) -> tuple[Verdict, ...]:
        """Return the decided and undecided verdicts of the last look."""
        return () if self._look is None else self._look.verdicts

    def null_fraction(self) -> float | None:
        """Return the spread of comparisons of identical code [fraction], or None if unknown."""
        return None if self._look is None else self._look.null_fraction

    def elapsed_s(self) -> float:
        """Return the duration of the whole comparison so far [s]."""
        return (self._site.clock.now_ns() - self._begun_ns) / NS_PER_S

    def waited(self) -> tuple[str, ...]:
        """Return a sentence about the time spent waiting for other runs, or () if below 1 s."""
        if self._waited_s < _TOLD_WAIT_S:
            return ()
        return (f"waited {self._waited_s:.0f} s in all for other runs",)

    def lost(self) -> tuple[str, ...]:
        """
        Return a sentence per ended process, and a count in place of the fourth and later ones.
        """
        lost = [
            f"process {run.index + 1} of the {run.side.value} side in block "
            f"{block.index + 1} does not count{' from there on' if run.ended_in else ''}: "
            f"{run.ended_outside or run.failures.get(run.ended_in, 'it ended')}"
            for block in self.blocks
            for run in block.lost
        ]
        if len(lost) <= _TOLD_LOST:
            return tuple(lost)
        return (*lost[:_TOLD_LOST], f"nor do {len(lost) - _TOLD_LOST} other processes")

    def unsteady(self) -> tuple[str, ...]:
        """
        Return a line with the tests whose parameters differ between processes of a side, or ().
        """
        test_ids = sorted(unsteady_parameters(self.blocks))
        return (unsteady_line(test_ids),) if test_ids else ()

    def changed_files(self, sides: Sides) -> tuple[str, ...]:
        """
        Return a sentence per side with changed files, or () if the gap already names some.
        """
        is_told = self.gap is not None and self.gap.code is GapCode.EDITED_FILE
        return () if is_told else sides.changed_files()

    def progress(self, *, looked: bool = False, text: str = "") -> Progress:
        """Return the progress of the comparison."""
        most_blocks = self._policy.look_blocks[-1]
        left_s, open_count = None, len(self._compared)
        verdicts = self.verdicts()
        if verdicts:
            # Including tests that stay undecided.
            undecided = (v for v in verdicts if v.outcome is Outcome.INCONCLUSIVE)
            open_count = len({verdict.key.test_id for verdict in undecided})
        if self.blocks and self.gap is None:
            block_s = self._block_s(len(self._open()))
            more_s = block_s * (most_blocks - len(self.blocks))
            left_s = min(more_s, max(0.0, self._budget_s - self._spent_s()))
        return Progress(
            revision=self._revision,
            block_count=len(self.blocks),
            most_blocks=most_blocks,
            open_count=open_count,
            test_count=len(self._compared),
            elapsed_s=self.elapsed_s(),
            left_s=left_s,
            looked=looked,
            text=text,
        )

    def _measure(self, sides: Sides, request: BlockRequest, block_count: int) -> str:
        """
        Run blocks up to a total of block_count, and return the name of an interrupt, or "".
        """
        test_ids = self._open()
        while test_ids and len(self.blocks) < block_count and self.gap is None:
            test_ids = affordable(
                test_ids,
                block_count=block_count - len(self.blocks),
                test_s=self._test_s,
                left_s=self._budget_s - self._spent_s(),
            )
            if self._spent_s() + self._block_s(len(test_ids)) > self._budget_s:
                blocks = plural(len(self.blocks), "block")
                self.gap = Gap(
                    code=GapCode.INCOMPLETE,
                    reason=f"the budget of {self._budget_s:g} s was spent after {blocks}",
                    remedy="give it more (--gpuperf-budget), or select fewer tests",
                )
                self._is_stopped = False
                return ""
            self._tell(self.progress())
            self._patience.timeout_s = self._silence_s(len(test_ids))
            begun_s = self._worked_s()
            try:
                block = run_block(
                    sides,
                    tuple(filter(test_ids.__contains__, self._compared)),
                    len(self.blocks),
                    site=self._site,
                    request=request,
                )
            except KeyboardInterrupt as error:
                self.gap = _interrupted(_named(error))
                return _named(error)
            self._test_s = (self._worked_s() - begun_s) / len(test_ids)
            self._take_block(block)
            still_open = self._open()
            test_ids = tuple(filter(still_open.__contains__, test_ids))
        return ""

    def _silence_s(self, test_count: int) -> float:
        """Return how long a process may be silent during a block of test_count tests [s]."""
        left_s = self._budget_s - self._spent_s()
        # A process that took more than half of the remaining budget would leave no time
        # to compare.
        allowed_s = min(self._timeout_s, max(_LEAST_PATIENCE_S, left_s / 2))
        if not self.blocks:
            return allowed_s
        # The earlier blocks show how long a process works.
        expected_s = self._block_s(test_count)
        return min(allowed_s, _LEAST_PATIENCE_S + _PATIENCE_FACTOR * expected_s)

    def _take_block(self, block: Block | Gap) -> None:
        """
        Add a block. The comparison ends if the block was not run, or a side measured no test.

        Earlier blocks count, unless the reason makes them invalid.
        """
        if isinstance(block, Gap):
            gap = block
        elif block.ended_outside is None:
            self.blocks.append(block)
            return
        else:
            # Its processes end before the first or after the last test.
            side, reason = block.ended_outside
            gap = Gap(
                code=GapCode.FAILED,
                reason=f"of the {side.value} side {reason}",
                remedy="look at what its imports, conftest.py and session fixtures do there",
            )
        if self.blocks and gap.code in _WITHOUT_A_BLOCK:
            self.gap = gap
        else:
            self.void(gap)

    def _judge(self, *, final: bool) -> None:
        if not self.blocks or not self._compared:
            return
        with collector_paused():
            self._look = look_at(
                self.blocks,
                {test_id: self._limits[test_id] for test_id in self._compared},
                self._policy,
                pair_count=None if self._look is None else self._look.pair_count,
                final=final,
                stopped=final and self._is_stopped,
            )
        self._tell(self.progress(looked=True))

    def _open(self) -> tuple[str, ...]:
        """
        Return the undecided tests in the order of measurement.

        After a look, the tests most likely to be slower come first. A test in which a
        process ended is not measured again, and neither is one that gives none of the
        compared metrics.
        """
        test_ids = self._compared if self._look is None else self._look.undecided
        closed = frozenset().union(*(block.ended_in for block in self.blocks))
        if self.blocks:
            closed |= self.blocks[0].silent(self._limits)
        return tuple(test_id for test_id in test_ids if test_id not in closed)

    def _spent_s(self) -> float:
        """Return the time spent on blocks, without waiting for other runs [s]."""
        if self._measured_ns is None:
            return 0.0
        now_ns = self._site.clock.now_ns()
        return (now_ns - self._measured_ns) / NS_PER_S - self._waited_s

    def _add_wait(self, duration_s: float) -> None:
        self._waited_s += duration_s
        self._tell(self.progress())

    def _worked_s(self) -> float:
        """Return the time spent on blocks, without hanging processes [s]."""
        return max(0.0, self._spent_s() - self._patience.spent_s)

    def _block_s(self, test_count: int) -> float:
        """Return the expected duration of a block [s], or 0 before the first block."""
        return self._test_s * test_count


def _at_both_levels(gap: Gap, built: Gap) -> Gap:
    return replace(gap, reason=f"{gap.reason}; level 2: {built.reason}")


def _named(error: KeyboardInterrupt) -> str:
    """Return the name of the signal, or "KeyboardInterrupt" for Ctrl-C."""
    return str(error) or type(error).__name__


def _interrupted(name: str) -> Gap:
    is_usual = name == KeyboardInterrupt.__name__
    reason = "it was interrupted" if is_usual else f"{name} ended it"
    return Gap(code=GapCode.INCOMPLETE, reason=reason, remedy="run it again")
