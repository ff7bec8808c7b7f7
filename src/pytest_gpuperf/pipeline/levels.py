"""The first level at which both sides of a comparison are proven to run their own files.

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

__all__ = ["REDIRECTED", "Demand", "Settled", "settle"]

# what other import roots can mend
REDIRECTED = {GapCode.FOREIGN_FILE, GapCode.SHARED_FILE, GapCode.NO_OWN_CODE}
_CARRY = "name it in the ini option gpuperf_carry if it is generated"
_SAME_IDS = "name a test as `pytest --collect-only -q` does, the same in every process"
_COLLECT = "compare with a revision that can be imported and has these tests"


class Demand(Frozen, frozen=True, kw_only=True):
    """
    What must be proven.

    Attributes:
        test_ids: The tests to compare.

        tracked: What git has of each side, relative to its root.

        differing: The files that differ between the trees, relative to the root.

        environments: Those in the working tree, which are not code of the project.

        scratch: The run's folder, which the old tree lies in.

        is_built: Whether level 2 can be tried: the project can be built, and the user's
            command does not build it in place.
    """

    test_ids: tuple[str, ...]
    tracked: Mapping[Side, frozenset[str]]
    differing: frozenset[str]
    environments: tuple[str, ...]
    scratch: str
    is_built: bool = True


class Settled(Frozen, frozen=True, kw_only=True):
    """
    Two sides at a level at which they are proven.

    Attributes:
        level: That level.

        commands: How a process of each side is started there.

        collections: What each side has collected.

        project: Whose files are whose.

        usual: What the new side loads as the user starts it, at level 0.

        built: The sides at level 2, or why they are not, where tests that run decide
            between the two levels; None: this level is proven, or the last.
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
    Return the sides at the first level that is proven.

    Args:
        commands: How a process of each side is started at level 0.

        demand: What must be proven.

        collect: Lets a side collect.

        build: Builds a side, and returns the folder that holds it.

        ignored: Returns which of some files of the working tree git ignores.

    Raises:
        SidesRefusedError: None is; the first finding of each is named. Or `collect`
            raises it: a side that was ended from outside shows nothing of a level.
    """
    search = _Search(commands, demand, ignored)
    findings: dict[int, Gap] = {}
    without_code: dict[int, Settled] = {}
    level: int | None = 0
    while level is not None:
        try:
            commands = search.commands(level, build)
        except (
            SidesRefusedError
        ) as error:  # level 1 stands where tests import the project
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
    # a build has shown no code either: tests import it, and each process that measures
    # is proven by itself
    return replace(without_code[1], built=without_code.get(2, findings.get(2)))


def _next_level(level: int, code: GapCode, *, is_built: bool) -> int | None:
    """Return the next level that can mend what was found; None: there is none."""
    if code in {GapCode.FAILED, GapCode.UNKNOWN_TEST} or level > 1:
        return None
    if level == 0 and code in REDIRECTED:
        return 1
    return 2 if is_built else None


def _refused(findings: Mapping[int, Gap]) -> SidesRefusedError:
    """Return why no level is proven: what decides first, then the other levels."""
    lines = [f"level {level}: {gap.reason}" for level, gap in findings.items()]
    # a file that git does not have explains whatever else is wrong
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
    The levels, one after another.

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
        self._usual: Settled | None = None  # level 0: what the user's own run does

    def commands(
        self, level: int, build: Callable[[SideCommand], str]
    ) -> dict[Side, SideCommand]:
        """Return how a process of each side is started at a level."""
        fronts: dict[Side, tuple[str, ...]] = dict.fromkeys(self._commands, ())
        for side, command in self._commands.items():
            if level == 1:
                fronts[side] = self._roots(command)
            elif level:
                fronts[side] = (build(command),)
        return {
            side: replace(command, level=level, front=fronts[side])
            for side, command in self._commands.items()
        }

    def at(
        self,
        commands: Mapping[Side, SideCommand],
        collect: Callable[[SideCommand], Collection],
    ) -> Settled:
        """Return what both sides collect when they are started so."""
        level = commands[Side.NEW].level
        # the new side first: how long it takes limits the old one
        collections = {s: collect(commands[s]) for s in (Side.NEW, Side.OLD)}
        settled = Settled(
            level=level,
            commands=commands,
            collections=collections,
            project=self._project(commands, is_built=level > 1),
            usual=self._usual.usual if self._usual else collections[Side.NEW].loaded,
        )
        self._usual = self._usual or settled
        return settled

    def finding(self, settled: Settled) -> Gap | None:
        """Return what shows that a level is not proven; None: it is."""
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

    def _project(
        self, commands: Mapping[Side, SideCommand], *, is_built: bool
    ) -> Project:
        """Return the project: what is built lies in front."""
        demand = self._demand
        old, new = (
            Tree(
                root=commands[side].tree,
                tracked=demand.tracked[side],
                built=commands[side].front[0] if is_built else "",
            )
            for side in (Side.OLD, Side.NEW)
        )
        return Project(
            old, new, environments=demand.environments, scratch=demand.scratch
        )

    def _roots(self, command: SideCommand) -> tuple[str, ...]:
        """Return the import roots that a tree has, of those that the user's run uses."""
        if self._usual is None:
            return ()
        loaded = self._usual.usual
        roots = self._usual.project.import_roots(loaded)
        places = (Path(command.tree, root) for root in roots)
        return tuple(str(place) for place in places if place.is_dir())

    def _ungenerated(self, settled: Settled) -> Gap | None:
        """Return that the old side lacks a file that git ignores; None: it has all."""
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
        """Return that the new side is not what the user's own run is; None: it is."""
        new = settled.collections[Side.NEW]
        missing = [test for test in self._demand.test_ids if test not in new.tests]
        if missing and settled.level == 0:  # nothing was changed for it yet
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
    """Return that a side cannot collect; None: both can."""
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
