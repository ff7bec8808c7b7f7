"""Rules of pipeline.levels: the first level that is proven, on both sides alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pytest_gpuperf.errors import SidesRefusedError
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.gap import Gap
from pytest_gpuperf.pipeline.command_line import CommandLine
from pytest_gpuperf.pipeline.levels import Demand, Settled, settle
from pytest_gpuperf.pipeline.proof import Loaded
from pytest_gpuperf.pipeline.side_process import CollectedTest, Collection, SideCommand

TRACKED = frozenset({"src/pkg/__init__.py", "src/pkg/core.py", "tests/test_a.py"})
TEST = "tests/test_a.py::test_a"
COMMAND = CommandLine(args=(), folder="/repo", variable="CHILD")

Answer = Callable[[SideCommand], Collection]


def collection(
    *modules: tuple[str, str],
    failure: str = "",
    is_import_error: bool = True,
    test_ids: tuple[str, ...] = (TEST,),
) -> Collection:
    tests = {i: CollectedTest(test_id=i, source="s", measures=True) for i in test_ids}
    return Collection(
        tests=tests,
        loaded=Loaded(modules=frozenset(modules)),
        failure=failure,
        is_import_error=is_import_error,
    )


def own(command: SideCommand) -> Collection:
    """Answer with the side's own module."""
    return collection(("pkg.core", f"{command.tree}/src/pkg/core.py"))


class Search:
    """A search for the level, with what each side answers."""

    def __init__(self, folder: Path) -> None:
        self.trees = {Side.OLD: folder / "run" / "old", Side.NEW: folder / "repo"}
        for tree in self.trees.values():
            (tree / "src").mkdir(parents=True)
        self.scratch = str(folder / "run")
        self.built: list[Side] = []
        self.asked: list[tuple[Side, int]] = []
        self.ignored: frozenset[str] = frozenset()
        self.build_error: SidesRefusedError | None = None

    def settle(self, answer: Answer, *, is_built: bool = True) -> Settled:
        """Look for the level."""
        commands = {
            side: SideCommand(
                side=side,
                folder=str(tree),
                command=COMMAND,
                tree=str(tree),
                other_tree="",
                environments=(),
                scratch=f"{self.scratch}/side-{side.value}",
            )
            for side, tree in self.trees.items()
        }

        def collect(command: SideCommand) -> Collection:
            self.asked.append((command.side, command.level))
            return answer(command)

        def build(command: SideCommand) -> str:
            if self.build_error is not None:
                raise self.build_error
            self.built.append(command.side)
            return f"{command.scratch}/site"

        demand = Demand(
            test_ids=(TEST,),
            tracked=dict.fromkeys(Side, TRACKED),
            differing=frozenset({"src/pkg/core.py"}),
            environments=(),
            scratch=self.scratch,
            is_built=is_built,
        )
        return settle(
            commands,
            demand,
            collect=collect,
            build=build,
            ignored=lambda paths: self.ignored & frozenset(paths),
        )

    def refused(self, answer: Answer, *, is_built: bool = True) -> SidesRefusedError:
        with pytest.raises(SidesRefusedError) as caught:
            self.settle(answer, is_built=is_built)
        return caught.value


@pytest.fixture
def search(tmp_path: Path) -> Search:
    return Search(tmp_path)


def test_the_folder_alone_may_be_enough(search: Search) -> None:
    """Then nothing is redirected, and nothing is built."""
    settled = search.settle(own)

    assert settled.level == 0
    assert search.asked == [(Side.NEW, 0), (Side.OLD, 0)]
    assert [command.front for command in settled.commands.values()] == [(), ()]


def test_import_roots_come_first_where_it_is_not(search: Search) -> None:
    """On both sides alike, each with its own root."""
    site = ("pkg.core", "/env/site-packages/pkg/core.py")

    settled = search.settle(lambda c: own(c) if c.level else collection(site))

    assert settled.level == 1
    assert {c.level for c in settled.commands.values()} == {1}
    assert [c.front for c in settled.commands.values()] == [
        (str(tree / "src"),) for tree in search.trees.values()
    ]
    assert search.built == []


def test_both_sides_are_built_where_that_is_not_enough(search: Search) -> None:
    """The folder that holds a side is the only one in front, and is its own."""

    def answer(command: SideCommand) -> Collection:
        front = command.front[0] if command.level > 1 else "/env/site-packages"
        return collection(("pkg.core", f"{front}/pkg/core.so"))

    settled = search.settle(answer)

    assert settled.level == 2
    assert search.built == [Side.OLD, Side.NEW]


def test_each_level_is_named_where_none_is_proven(search: Search) -> None:
    """With the first thing that was found at it; what decides is said once, and first."""
    error = search.refused(lambda _: own(search_command(search, Side.NEW)))

    assert [line[:9] for line in error.findings] == [
        "level 0: ",
        "level 1: ",
        "level 2: ",
    ]
    assert error.message.startswith("the old side loaded pkg.core from ")
    assert error.message.count("the old side loaded") == 1
    # what editable installations name is moved at level 1
    assert error.remedy.startswith(
        "let the code that adds its folder to Python's path, such as"
    )


def search_command(search: Search, side: Side) -> SideCommand:
    tree = str(search.trees[side])
    return SideCommand(
        side=side,
        folder=tree,
        command=COMMAND,
        tree=tree,
        other_tree="",
        environments=(),
        scratch=search.scratch,
    )


def test_what_cannot_be_built_is_not_built(search: Search) -> None:
    """Without a build backend, or after the user's own command, level 1 is the last."""
    error = search.refused(
        lambda _: own(search_command(search, Side.NEW)), is_built=False
    )

    assert len(error.findings) == 2
    assert search.built == []


def test_a_build_that_fails_is_the_finding_of_its_level(search: Search) -> None:
    """What the builder says is in the message."""
    search.build_error = SidesRefusedError("no compiler", remedy="install one")

    error = search.refused(lambda _: own(search_command(search, Side.NEW)))

    assert error.findings[2] == "level 2: no compiler"


def test_who_ended_a_side_has_not_shown_that_a_level_is_right(search: Search) -> None:
    """The comparison is refused at any level: run again, it may have another answer."""

    def answer(command: SideCommand) -> Collection:
        if command.level > 1:
            raise SidesRefusedError("SIGKILL ended the new side", remedy="run it again")
        return collection()

    error = search.refused(answer)

    assert error.message == "SIGKILL ended the new side"
    assert error.remedy == "run it again"


def test_an_error_that_is_no_missing_import_ends_the_search(search: Search) -> None:
    """Other import roots, or a build, would not mend the revision's own code."""

    def answer(command: SideCommand) -> Collection:
        failure = "cannot collect it" if command.side is Side.OLD else ""
        return collection(failure=failure, is_import_error=False)

    error = search.refused(answer)

    assert error.message == "the old side cannot collect it"
    assert error.findings == ("level 0: the old side cannot collect it",)
    assert "compare with a revision that can be imported" in error.remedy
    assert search.asked == [(Side.NEW, 0), (Side.OLD, 0)]


def test_a_missing_import_may_be_mended_by_a_build(search: Search) -> None:
    """An extension that is not compiled: other import roots would not help."""

    def answer(command: SideCommand) -> Collection:
        if command.level:
            return collection(("pkg.core", f"{command.front[0]}/pkg/core.so"))
        return collection(failure="ModuleNotFoundError")

    assert search.settle(answer).level == 2
    assert {level for _, level in search.asked} == {0, 2}


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("src/pkg/_version.py", "name it in the ini option gpuperf_carry"),
        ("src/pkg/_fast.so", "build both sides with the ini option"),
    ],
)
def test_a_file_that_git_ignores_must_be_on_both_sides(
    search: Search, path: str, remedy: str
) -> None:
    """Else the old side may run a fallback, and nothing would tell."""
    search.ignored = frozenset({path})

    def answer(command: SideCommand) -> Collection:
        module = ("pkg.core", f"{command.tree}/src/pkg/core.py")
        if command.side is Side.OLD:
            return collection(module)
        return collection(module, ("pkg.extra", f"{command.tree}/{path}"))

    error = search.refused(answer, is_built=False)

    assert f"the old side has no pkg.extra: git does not have {path}" in error.message
    assert error.remedy.startswith(remedy)


def test_a_module_that_only_the_new_side_has_is_no_finding(search: Search) -> None:
    """A new file, tracked or not, is a part of the change."""

    def answer(command: SideCommand) -> Collection:
        module = ("pkg.core", f"{command.tree}/src/pkg/core.py")
        extra = ("pkg.extra", f"{command.tree}/src/pkg/extra.py")
        return collection(module, *([extra] if command.side is Side.NEW else []))

    assert search.settle(answer).level == 0


def test_the_new_side_must_stay_what_the_users_run_is(search: Search) -> None:
    """With `src` in front an installed extension is gone, and a fallback runs."""
    modules: Mapping[int, tuple[str, ...]] = {
        0: ("pkg", "pkg.core", "pkg._fast"),
        1: ("pkg", "pkg.core"),
        2: ("pkg", "pkg.core", "pkg._fast"),
    }

    def answer(command: SideCommand) -> Collection:
        site = "/env/site-packages"
        front = command.front[0] if command.front else site
        files = {"pkg": "pkg/__init__.py", "pkg.core": "pkg/core.py"}
        files["pkg._fast"] = "pkg/_fast.so"
        names = modules[command.level]
        return collection(*((name, f"{front}/{files[name]}") for name in names))

    assert search.settle(answer).level == 2


def test_a_test_that_the_new_side_lacks_is_lost(search: Search) -> None:
    """The run that asks for the comparison has it."""
    error = search.refused(
        lambda c: collection(*own(c).loaded.modules, test_ids=()), is_built=False
    )

    assert error.message == f"the new side does not collect {TEST}"
    assert "pytest --collect-only -q" in error.remedy


def test_tests_may_import_the_project_when_they_run(search: Search) -> None:
    """Until they run: each process that measures is proven by itself, or by the build."""
    settled = search.settle(
        lambda c: collection(("test_a", f"{c.tree}/tests/test_a.py"))
    )

    assert settled.level == 1
    assert search.built == [Side.OLD, Side.NEW]  # a build could have shown some
    assert isinstance(settled.built, Settled)
    assert settled.built.level == 2


def test_code_that_only_a_build_makes_is_built(search: Search) -> None:
    """What is installed of it looks like nobody's, as tests without code do."""

    def answer(command: SideCommand) -> Collection:
        front = command.front[0] if command.level > 1 else "/env/site-packages"
        return collection(("kernels", f"{front}/kernels.so"))

    assert search.settle(answer).level == 2


@pytest.mark.parametrize("can_be_built", [True, False])
def test_tests_that_import_the_project_need_no_build(
    search: Search, *, can_be_built: bool
) -> None:
    """One that fails, or that there is none of, refuses nothing; it is told if need be."""
    search.build_error = SidesRefusedError("no compiler", remedy="install one")
    settled = search.settle(lambda _: collection(), is_built=can_be_built)

    assert settled.level == 1
    reason = settled.built.reason if isinstance(settled.built, Gap) else ""
    assert reason == ("no compiler" if can_be_built else "")
