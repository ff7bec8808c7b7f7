"""Find the first level at which both sides of a comparison are proven to run their own files.

0  each side's folder and its arguments
1  the project's import roots in front, the other tree's paths rewritten
2  both sides built into folders of their own
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_gpuperf.errors import SidesRefusedError, UnknownTestError
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.pipeline.proof import BUILD_REMEDY, Loaded, Project, Tree
from pytest_gpuperf.pipeline.side_process import Collection, SideCommand

# Findings that different import roots can fix.
REDIRECTED = {GapCode.FOREIGN_FILE, GapCode.SHARED_FILE, GapCode.NO_OWN_CODE}
_CARRY = "name it in the ini option gpuperf_carry if it is generated"
_SAME_IDS = "name a test as `pytest --collect-only -q` does, the same in every process"
_COLLECT = "compare with a revision that can be imported and has these tests"


class Demand(Frozen, frozen=True, kw_only=True):
    """
    The requirements for the proof.

    Attributes:
        test_ids: The tests to compare.

        tracked: The files tracked by git on each side, relative to the root.

        differing: The files that differ between the trees, relative to the root.

        environments: Environments in the working tree, which are not code of the
            project.

        scratch: The folder of the run, which contains the old tree.

        is_built: True if level 2 can be tried, because the project can be built and the
            user's command does not build it in place.
    """

    test_ids: tuple[str, ...]
    tracked: Mapping[Side, frozenset[str]]
    differing: frozenset[str]
    environments: tuple[str, ...]
    scratch: str
    is_built: bool = True


class Settled(Frozen, frozen=True, kw_only=True):
    """
    Two sides at a proven level.

    Attributes:
        level: The level.

        commands: The commands that start processes of each side at this level.

        collections: The collected tests of each side.

        project: Decides to which side a file belongs.

        usual: The code loaded by the new side at level 0, started like the user's run.

        built: The sides at level 2, or the reason against them, if the running tests
            decide between the two levels. None if this level is proven, or the last.
    """

    level: int
    commands: Mapping[Side, SideCommand]
    collections: Mapping[Side, Collection]
    project: Project
    usual: Loaded
    built: Settled | Gap | None = None


def settle(
    commands: Mapping[Side, SideCommand],
    demand: Demand,
    *,
    collect: Callable[[SideCommand], Collection],
    build: Callable[[SideCommand], str],
    ignored: Callable[[Sequence[str]], frozenset[str]],
) -> Settled:
    """
    Return the sides at the first proven level.

    Args:
        commands: The commands that start processes of each side at level 0.

        demand: The requirements.

        collect: Collects the tests of a side.

        build: Builds a side, and returns the folder of the build.

        ignored: Returns those of some files in the working tree that git ignores.

    Raises:
        SidesRefusedError: No level is proven, and the first finding of each level is
            named. Also raised by `collect` for a side ended by a signal from outside,
            which says nothing about a level.
    """
    search = _Search(commands, demand, ignored)
    findings: dict[int, Gap] = {}
    without_code: dict[int, Settled] = {}
    level: int | None = 0
    while level is not None:
        try:
            commands = search.commands(level, build)
        except SidesRefusedError as error:
            # Level 1 is still used if only running tests import the project.
            findings[level] = Gap.of(error)
            break
        settled = search.at(commands, collect)
        finding = search.finding(settled)
        if finding is None:
            return settled
        if finding.code is GapCode.NO_OWN_CODE and level > 0:
            without_code[level] = settled
        findings[level] = finding
        level = _next_level(level, finding.code, is_built=demand.is_built)
    if 1 not in without_code:
        raise _refused(findings)
    # The collection loaded no code of the project, so only running tests import it. Every
    # measuring process is proven separately.
    return replace(without_code[1], built=without_code.get(2, findings.get(2)))


def _next_level(level: int, code: GapCode, *, is_built: bool) -> int | None:
    """Return the next level that can fix a finding, or None."""
    if code in {GapCode.FAILED, GapCode.UNKNOWN_TEST} or level > 1:
        return None
    if level == 0 and code in REDIRECTED:
        return 1
    return 2 if is_built else None


def _refused(findings: Mapping[int, Gap]) -> SidesRefusedError:
    lines = [f"level {level}: {gap.reason}" for level, gap in findings.items()]
    # A file that git does not track explains all other findings.
    codes = (
        *(GapCode.UNKNOWN_TEST, GapCode.LOST_FILE),
        *(GapCode.FAILED, GapCode.NOT_COLLECTED),
    )
    gaps = list(findings.values())
    decisive = next(
        (gap for code in codes for gap in gaps if gap.code is code), gaps[0]
    )
    others = [line for line, gap in zip(lines, gaps, strict=True) if gap != decisive]
    message, remedy = "; ".join([decisive.reason, *others]), decisive.remedy
    if decisive.code is GapCode.UNKNOWN_TEST:
        return UnknownTestError(message, remedy=remedy, findings=tuple(lines))
    return SidesRefusedError(message, remedy=remedy, findings=tuple(lines))


class _Search:
    """
    The search through the levels.

    Args:
        commands: As for `settle`.

        demand: As for `settle`.

        ignored: As for `settle`.
    """

    def __init__(
        self,
        commands: Mapping[Side, SideCommand],
        demand: Demand,
        ignored: Callable[[Sequence[str]], frozenset[str]],
    ) -> None:
        self._commands = commands
        self._demand = demand
        self._ignored = ignored
        # The sides at level 0, started like the user's own run.
        self._usual: Settled | None = None

    def commands(
        self, level: int, build: Callable[[SideCommand], str]
    ) -> dict[Side, SideCommand]:
        """Return the commands that start processes of the sides at a level."""
        fronts: dict[Side, tuple[str, ...]] = dict.fromkeys(self._commands, ())
        for side, command in self._commands.items():
            if level > 1:
                fronts[side] = (build(command),)
            elif level == 1 and self._usual is not None:
                roots = self._usual.project.import_roots(self._usual.usual)
                places = (Path(command.tree, root) for root in roots)
                fronts[side] = tuple(str(p) for p in places if p.is_dir())
        return {
            side: replace(command, level=level, front=fronts[side])
            for side, command in self._commands.items()
        }

    def at(
        self,
        commands: Mapping[Side, SideCommand],
        collect: Callable[[SideCommand], Collection],
    ) -> Settled:
        """Collect both sides with the given commands."""
        level, demand = commands[Side.NEW].level, self._demand
        # The new side goes first, because its duration limits the old side.
        collections = {s: collect(commands[s]) for s in (Side.NEW, Side.OLD)}
        old, new = (
            Tree(
                root=commands[side].tree,
                tracked=demand.tracked[side],
                built=commands[side].front[0] if level > 1 else "",
            )
            for side in (Side.OLD, Side.NEW)
        )
        settled = Settled(
            level=level,
            commands=commands,
            collections=collections,
            project=Project(
                old, new, environments=demand.environments, scratch=demand.scratch
            ),
            usual=self._usual.usual if self._usual else collections[Side.NEW].loaded,
        )
        self._usual = self._usual or settled
        return settled

    def finding(self, settled: Settled) -> Gap | None:
        """Return the reason against a level, or None if the level is proven."""
        project, collections = settled.project, settled.collections
        for side in Side:
            loaded = collections[side].loaded
            finding = project.foreign(side, loaded) or project.shared(side, loaded)
            if finding is not None:
                return finding
        loaded = collections[Side.OLD].loaded
        return (
            self._ungenerated(settled)
            or _uncollected(settled)
            or self._lost(settled)
            or project.without_code(Side.OLD, loaded, self._demand.differing)
        )

    def _ungenerated(self, settled: Settled) -> Gap | None:
        """Return a gap if the old side lacks a loaded file that git ignores, else None."""
        collections, root = settled.collections, self._commands[Side.NEW].tree
        own_files = settled.project.files_of(Side.NEW, collections[Side.NEW].loaded)
        names = {name for name, _ in collections[Side.OLD].loaded.files}
        missing = {
            str(Path(path).relative_to(root)): name
            for name, path in own_files
            if name not in names and Path(path).is_relative_to(root)
        }
        for path in sorted(self._ignored(sorted(missing))):
            reason = f"the old side has no {missing[path]}: git does not have {path}"
            remedy = _CARRY if path.endswith(".py") else BUILD_REMEDY
            return Gap(code=GapCode.LOST_FILE, reason=reason, remedy=remedy)
        return None

    def _lost(self, settled: Settled) -> Gap | None:
        """Return a gap if the new side differs from the user's own run, else None."""
        new = settled.collections[Side.NEW]
        missing = [test for test in self._demand.test_ids if test not in new.tests]
        # At level 0 the side starts like the user's run, so the ids must be at fault.
        if missing and settled.level == 0:
            reason = f"the new side does not collect {missing[0]}"
            return Gap(code=GapCode.UNKNOWN_TEST, reason=reason, remedy=_SAME_IDS)
        if self._usual is not None:
            usual = self._usual.usual
            before, now = (
                {name for name, _ in settled.project.modules_of(Side.NEW, loaded)}
                for loaded in (usual, new.loaded)
            )
            missing += sorted(before - now)
        if not missing:
            return None
        reason = f"the new side does not have {missing[0]}, which this run has"
        return Gap(code=GapCode.LOST_FILE, reason=reason, remedy=BUILD_REMEDY)


def _uncollected(settled: Settled) -> Gap | None:
    new = settled.collections[Side.NEW]
    if all(c.is_usage_error for c in settled.collections.values()):
        reason = f"the new side {new.failure}"
        return Gap(code=GapCode.UNKNOWN_TEST, reason=reason, remedy=_SAME_IDS)
    for side in Side:
        collection = settled.collections[side]
        if collection.failure:
            is_import = collection.is_import_error
            return Gap(
                code=GapCode.NOT_COLLECTED if is_import else GapCode.FAILED,
                reason=f"the {side.value} side {collection.failure}",
                remedy=_COLLECT if side is Side.OLD else BUILD_REMEDY,
            )
    return None
