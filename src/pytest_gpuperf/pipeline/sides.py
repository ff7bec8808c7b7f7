"""The two sides of a comparison with a revision, each proven to run its own files.

Three levels are tried, and the first proven level is used on both sides. Level 0 starts in
the folder of each side. Level 1 puts each side's import roots in front. Level 2 builds both
sides into separate folders.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.clock import NS_PER_S
from pytest_gpuperf.collect.loaded_files import FileRecorder
from pytest_gpuperf.collect.opened_files import environments_in
from pytest_gpuperf.collect.redirection import inside
from pytest_gpuperf.collect.signals import largest_file_bytes
from pytest_gpuperf.collect.worktree import Repository, Worktree, worktree
from pytest_gpuperf.errors import RevisionError, SidesRefusedError
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.checkout import Checkout
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap
from pytest_gpuperf.pipeline.levels import Demand, Settled, settle
from pytest_gpuperf.pipeline.proof import (
    FileState,
    Loaded,
    Project,
    edited,
    is_of_tools,
    modules_that_differ,
    unrecorded,
)
from pytest_gpuperf.pipeline.side_process import (
    Builder,
    Collection,
    SideCommand,
    build_in_place,
    cache_folder,
    collect,
    project_folder,
)
from pytest_gpuperf.report.display import some_of

if TYPE_CHECKING:
    from pytest_gpuperf.collect.clock import Clock
    from pytest_gpuperf.collect.runner import Runner
    from pytest_gpuperf.measure.site import ProcessIdentity
    from pytest_gpuperf.pipeline.command_line import CommandLine


# Long enough for a fresh tree, which has no byte code yet.
_LEAST_PATIENCE_S = 20.0
# Large, because the machine may be busier than a moment ago.
_PATIENCE_FACTOR = 10.0
# A build of CUDA sources takes minutes, a collection seconds.
_BUILD_FACTOR = 10.0
# Matches an environment that is written out without the inherited variables, or an option
# that makes Python ignore its variables.
_CLEAN = re.compile(
    r"""env\s*=\s*(?:\{(?![^}]*environ)|dict\(\s*\))|["']-[a-zA-Z]*[IE][a-zA-Z]*["']"""
)
_BYTE_CODE = "__pycache__"  # Every process writes to it.
_TEST_FOLDERS = ("test", "tests", "testing")


class SidesRequest(Frozen, frozen=True, kw_only=True):
    """
    The parameters of a comparison with a revision.

    Attributes:
        revision: The revision as the user wrote it.

        commit: The commit of the revision, or "" to look it up. A name may point to a
            different commit after the tests have run.

        test_ids: The tests to compare, in order.

        keys: The keys that identify these tests on each side, in the same order, or
            empty if the ids are the keys.

        identity: The identity of this process. All processes of a side use its session.

        tests_mine: True to run the tests of the working tree on both sides.

        build_command: A shell command that builds a tree in place, run in its root.
            With None, a side is built only if nothing else separates the two.

        carry: Generated files that git does not track, relative to the repository's
            root, or patterns of such files. They are copied to the tree of the
            revision.

        timeout_s: Time limit of a process that only collects [s]. The limit of a build
            is ten times as long.

        cache_folder: The folder that keeps built sides between runs, or None for the
            user's cache.

        checkout: The working tree, used to display the keys of other tests.

        own_root: The user's repository if the new side is a worktree of it, so that
            files loaded from there by an installed package belong to the same project.
            "" if the new side is the repository itself.
    """

    revision: str
    test_ids: tuple[str, ...]
    identity: ProcessIdentity
    keys: tuple[str, ...] = ()
    commit: str = ""
    tests_mine: bool = False
    build_command: str | None = None
    carry: tuple[str, ...] = ()
    timeout_s: float = 300.0
    cache_folder: str | None = None
    checkout: Checkout = Checkout(root="")
    own_root: str = ""

    @property
    def names(self) -> dict[str, str]:
        """The ids of the tests by key."""
        return dict(zip(self.keys or self.test_ids, self.test_ids, strict=True))


class Sides(Frozen, frozen=True, kw_only=True):
    """
    Two sides that are proven to run their own files.

    Attributes:
        revision: The revision of the old side as the user wrote it.

        commit: The commit of the revision.

        level: 0 if the folder of each side is enough, 1 if its import roots come first,
            2 if it was built into a separate folder.

        old: Starts processes of the revision.

        new: Starts processes of the working tree.

        test_ids: The tests to compare, in order. They exist on both sides and have
            equal source, unless the tests of the working tree run on both.

        keys: The keys of tests by id.

        changed: The tests with different source.

        only_old: The tests missing from the working tree.

        only_new: The tests missing from the revision.

        modules: The differences between the sides: names of loaded modules, and paths
            of other files with code. Empty if both sides have the same code.

        differing: The files that differ, relative to the root.

        remarks: Further sentences for the user.

        project: Decides to which side a file belongs.

        collections: The collected tests of each side.

        states: The states of the files of both sides, by path.

        opened_ns: The time of the proof [ns since the epoch].

        changed_files: Returns a sentence per side about other files changed since then.

        built: Both sides built into separate folders, or the reason why they are not,
            for tests that load shared files only when they run. None if there is
            nothing else to try.
    """

    revision: str
    commit: str
    level: int
    old: SideCommand
    new: SideCommand
    test_ids: tuple[str, ...]
    keys: Mapping[str, str]
    changed: tuple[str, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    modules: tuple[str, ...]
    differing: frozenset[str]
    remarks: tuple[str, ...]
    project: Project
    collections: Mapping[Side, Collection]
    states: Mapping[str, FileState]
    opened_ns: int
    changed_files: Callable[[], tuple[str, ...]]
    built: Sides | Gap | None = None

    def of(self, side: Side) -> SideCommand:
        """Return the command that starts processes of a side."""
        return self.old if side is Side.OLD else self.new

    def proof(self, side: Side, scratch: str, *, so_far: bool = False) -> Gap | None:
        """
        Return the reason for rejecting a process of a side, or None if its files are right.

        Args:
            side: The side of the process.

            scratch: The folder passed to `SideCommand.environment`.

            so_far: As for `SideCommand.loaded`.
        """
        project = self.project
        loaded = self.of(side).loaded(scratch, so_far=so_far)
        # Files loaded during the collection count, too, because a process cannot load a
        # file that is gone by now.
        collected = project.files_of(side, self.collections[side].loaded)
        own_files = sorted({*collected, *project.files_of(side, loaded)})
        change = edited(side, own_files, self.states, since_ns=self.opened_ns)
        if change is not None:
            return change
        if not loaded.modules:
            free_bytes = shutil.disk_usage(scratch).free
            return unrecorded(
                side, scratch, free_bytes=free_bytes, most_bytes=largest_file_bytes()
            )
        return (
            project.foreign(side, loaded)
            or project.shared(side, loaded)
            or project.without_code(side, loaded, self.differing)
        )


@contextlib.contextmanager
def open_sides(
    request: SidesRequest, command: CommandLine, runner: Runner, clock: Clock
) -> Iterator[Sides]:
    """
    Create the two sides, and remove all created files at the end or after an error.

    Args:
        request: The parameters of the comparison.

        command: The command line of this process.

        runner: Starts git, builds, and the processes that only collect.

        clock: Times the collection of the new side, which limits the old side.

    Raises:
        RevisionError: There is no tree of the revision.

        SidesRefusedError: The sides are not proven to run their own files.

        CollectError: A process did not start or did not end.
    """
    command.launcher.check()
    repository = Repository.at(command.folder, runner, revision=request.revision)
    commit = request.commit or repository.commit_of(request.revision)
    with worktree(repository, commit, carry=request.carry) as tree:
        commands = _commands(command, repository.root, tree)
        old = commands[Side.OLD]
        if not Path(old.folder).is_dir():
            folder = os.path.relpath(old.folder, old.tree)
            raise SidesRefusedError(
                f"the revision has no folder {folder}",
                remedy="compare with a revision that has it",
            )
        if request.tests_mine:
            _copy_tests(commands, request.names, repository.listed())
        _check_paths(old, repository, request)
        if _starts_clean_programs(repository, request.names):
            commands = {s: replace(c, has_overlay=True) for s, c in commands.items()}
        differing = repository.differing(commit)
        settled = settle(
            commands,
            Demand(
                test_ids=request.test_ids,
                tracked={
                    side: repository.within(side_command.tree).tracked()
                    for side, side_command in commands.items()
                },
                differing=differing,
                environments=environments_in(repository.root),
                scratch=tree.scratch,
                is_built=request.build_command is None
                and all(project_folder(c.tree, c.folder) for c in commands.values()),
            ),
            collect=_collector(request, runner, clock),
            build=_built(request, repository, tree, commands, runner),
            ignored=repository.ignored,
        )
        trees = {Side.OLD: repository.within(tree.path), Side.NEW: repository}
        states = {side: _file_states(files, commit) for side, files in trees.items()}
        sides_at = partial(
            _sides,
            request=request,
            commit=commit,
            differing=differing,
            remarks=tree.remarks,
            changed_files=partial(_changed_files, trees, commit, states),
        )
        built = settled.built
        if isinstance(built, Settled):
            yield replace(sides_at(settled), built=sides_at(built))
        else:
            yield replace(sides_at(settled), built=built)


def _collector(
    request: SidesRequest, runner: Runner, clock: Clock
) -> Callable[[SideCommand], Collection]:
    """
    Return a function that collects a side.

    The old side may take a few times as long as the new side.
    """
    # The time limit of the old side [s], from the durations of the new side.
    patience_s = 0.0

    def collected(command: SideCommand) -> Collection:
        nonlocal patience_s
        is_new = command.side is Side.NEW
        limit_s = request.timeout_s if is_new else min(patience_s, request.timeout_s)
        begun_ns = clock.now_ns()
        collection = collect(
            command,
            request.identity,
            runner,
            timeout_s=limit_s,
            names=request.names,
        )
        if is_new:
            elapsed_s = (clock.now_ns() - begun_ns) / NS_PER_S
            allowed_s = _LEAST_PATIENCE_S + _PATIENCE_FACTOR * elapsed_s
            patience_s = max(patience_s, allowed_s)
        return collection

    return collected


def _built(
    request: SidesRequest,
    repository: Repository,
    tree: Worktree,
    commands: Mapping[Side, SideCommand],
    runner: Runner,
) -> Callable[[SideCommand], str]:
    """Run the user's build command, if any, and return a function that builds into a folder."""
    timeout_s = request.timeout_s * _BUILD_FACTOR
    if request.build_command is not None:
        for command in commands.values():
            build_in_place(request.build_command, command, runner, timeout_s=timeout_s)
    return Builder(
        repository,
        carry=tree.carried,
        runner=runner,
        timeout_s=timeout_s,
        cache=Path(request.cache_folder or cache_folder()),
    ).build


def _commands(
    command: CommandLine, root: str, tree: Worktree
) -> dict[Side, SideCommand]:
    below = os.path.relpath(os.path.realpath(command.folder), root)
    trees = {Side.OLD: tree.path, Side.NEW: root}
    other_trees = {Side.OLD: root, Side.NEW: tree.path}
    commands = {}
    for side in Side:
        scratch = Path(tree.scratch, f"side-{side.value}")
        scratch.mkdir()
        commands[side] = SideCommand(
            side=side,
            folder=os.path.normpath(Path(trees[side], below)),
            command=command,
            tree=trees[side],
            other_tree=other_trees[side],
            environments=environments_in(root),
            scratch=str(scratch),
        )
    return commands


def _check_paths(
    old: SideCommand, repository: Repository, request: SidesRequest
) -> None:
    paths = old.command.paths
    if not paths or any(map(old.has, paths)):
        return
    message = f"the revision has none of the tests that were named: {some_of(paths)}"
    remedy = "compare with a revision that has them"
    folder = old.command.folder
    places = [os.path.realpath(Path(folder, p.partition("::")[0])) for p in paths]
    ignored = repository.ignored_below([p for p in places if inside(p, old.other_tree)])
    files = _of_tests(ignored, request.names)
    if files:
        message += f", of which git ignores {some_of(files)}"
        remedy = "name the ignored files in the ini option gpuperf_carry"
    elif not request.tests_mine:
        remedy += ", or --gpuperf-against-tests=mine"
    raise SidesRefusedError(message, remedy=remedy)


def _of_tests(files: Iterable[str], keys: Iterable[str]) -> list[str]:
    places = {key.partition("::")[0] for key in keys}
    return [
        path
        for path in files
        if any(f"/{path}".endswith(f"/{place}") for place in places)
    ]


def _copy_tests(
    commands: Mapping[Side, SideCommand], keys: Iterable[str], files: Sequence[str]
) -> None:
    """
    Copy the tests of the working tree over the tests of the revision.

    A folder of tests is copied with helpers and data. From other folders, only test
    files and conftest.py are copied.
    """
    old, new = commands[Side.OLD].tree, commands[Side.NEW].tree
    named = set(_of_tests(files, keys))
    for path in files:
        in_tests = any(part in _TEST_FOLDERS for part in Path(path).parts[:-1])
        is_test = path in named or in_tests or Path(path).name == "conftest.py"
        if is_test and Path(new, path).is_file():
            target = Path(old, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path(new, path), target)


def _starts_clean_programs(repository: Repository, keys: Iterable[str]) -> bool:
    files = [
        Path(repository.root, path) for path in _of_tests(repository.listed(), keys)
    ]
    texts = (file.read_text("utf-8", "replace") for file in files if file.is_file())
    return any(_CLEAN.search(text) for text in texts)


def _sides(
    settled: Settled,
    *,
    request: SidesRequest,
    commit: str,
    differing: frozenset[str],
    remarks: tuple[str, ...],
    changed_files: Callable[[], tuple[str, ...]],
) -> Sides:
    old, new = (settled.collections[side].tests for side in (Side.OLD, Side.NEW))
    common = [test_id for test_id in request.test_ids if test_id in old]
    changed: set[str] = set()
    if not request.tests_mine:
        changed = {
            i for i in common if old[i].source != new[i].source or not old[i].measures
        }
    own_files = [
        file
        for side, collection in settled.collections.items()
        for file in settled.project.files_of(side, collection.loaded)
    ]
    states = {path: FileState.of(path) for _, path in own_files}
    marker = Path(settled.commands[Side.OLD].scratch, "proven")
    marker.touch()
    return Sides(
        revision=request.revision,
        commit=commit,
        level=settled.level,
        old=settled.commands[Side.OLD],
        new=settled.commands[Side.NEW],
        test_ids=tuple(i for i in common if i not in changed),
        keys={test_id: key for key, test_id in request.names.items()},
        changed=tuple(i for i in common if i in changed),
        only_old=tuple(
            # The ids as pytest would show them in the working tree.
            request.checkout.id_of(i)
            for i, test in old.items()
            if test.measures and i not in new
        ),
        only_new=tuple(i for i in request.test_ids if i not in old),
        modules=modules_that_differ(own_files, differing),
        differing=differing,
        remarks=(*remarks, *_other_code(settled, request.own_root)),
        project=settled.project,
        collections=settled.collections,
        states=states,
        opened_ns=marker.stat().st_mtime_ns,
        changed_files=changed_files,
    )


def _other_code(settled: Settled, own_root: str) -> tuple[str, ...]:
    """Return a sentence about code of the user's run that is not compared, or ()."""
    usual = Loaded(modules=settled.usual.modules | loaded_here().modules)
    loaded = settled.collections[Side.NEW].loaded
    modules = settled.project.other_code(usual, loaded)
    if own_root:
        installed = environments_in(own_root)
        modules = tuple(
            (name, path)
            for name, path in modules
            if not inside(path, own_root) or any(inside(path, f) for f in installed)
        )
    if not modules:
        return ()
    name, path = modules[0]
    more = f" (and {len(modules) - 1} more)" if len(modules) > 1 else ""
    sentence = (
        f"this run loads {name} from {path}{more}, which differs from the working tree: "
        "the trees are compared, but all other values were measured with that file"
    )
    return (sentence,)


def loaded_here() -> Loaded:
    """Return the code loaded by this process, which runs the tests unless there are workers."""
    return Loaded.of(FileRecorder(None).snapshot())


def _file_states(tree: Repository, commit: str) -> dict[str, FileState]:
    try:
        paths = tree.differing(commit)
    except RevisionError:
        # A git filter failed, for example because LFS objects are missing.
        return {}
    return {
        path: FileState.of(str(Path(tree.root, path)))
        for path in paths
        if not any(p == _BYTE_CODE or is_of_tools(p) for p in Path(path).parts)
    }


def _changed_files(
    trees: Mapping[Side, Repository],
    commit: str,
    before: Mapping[Side, Mapping[str, FileState]],
) -> tuple[str, ...]:
    sentences = []
    for side, tree in trees.items():
        states = _file_states(tree, commit)
        paths = sorted(p for p, state in states.items() if before[side].get(p) != state)
        if paths:
            sentences.append(
                f"the {side.value} side's {some_of(paths)} changed while it was measured: "
                "tests that write to the tree may measure something else each time"
            )
    return tuple(sentences)
