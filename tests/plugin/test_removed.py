"""A stored test that is no longer in the code: dropped, told, taken back, renamed."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess

import pytest

from fakes.project import VALUES, XDIST, Project, command, lines
from fakes.repositories import GIT
from pytest_gpuperf.baseline.changes import Append, Drop, PutBack
from pytest_gpuperf.baseline.history import SESSION_LIMIT
from pytest_gpuperf.baseline.store import DirectoryStore
from pytest_gpuperf.model.frozen import replace

STORE = ".gpuperf"
STORING = "--gpuperf-update=all"
GATE = (f"--gpuperf-baseline={STORE}", "--gpuperf-confirm=1", "--gpuperf-json=run.json")
OTHER = VALUES.replace("test_x", "test_other")


def stored(project: Project) -> set[str]:
    """Return the tests of the store, without their parameters."""
    files = (project.path / STORE).glob("*/*.json")
    sections = [s for file in files for s in json.loads(file.read_bytes())["sections"]]
    return {
        record["test"].lstrip(":")
        for section in filter(None, sections)
        for record in section["records"]
        if record
    } - {"references"}


@pytest.fixture(name="project")
def project_(project: Project) -> Project:
    """Return a project with two sessions of six tests in two modules."""
    project.write(OTHER, "test_other.py")
    project.store(sessions=2)
    return project


def x(*names: str) -> set[str]:
    return {f"test_x[{name}]" for name in names}


OTHERS = {f"test_other[{name}]" for name in "abc"}


@pytest.mark.parametrize(
    ("how", "workers"),
    [("test", ()), ("module", ()), ("file", ()), ("test", (*XDIST, "-n2"))],
)
def test_a_run_that_stores_drops_what_is_gone(
    project: Project, how: str, workers: tuple[str, ...]
) -> None:
    """One test, all tests of a module, a file: each is named, and comes back as printed."""
    if how == "file":
        (project.path / "test_it.py").unlink()
    else:
        project.write(VALUES.replace('"b", ', "") if how == "test" else "")
    gone = x("b") if how == "test" else x(*"abc")
    ended = project.run(STORING, *workers)
    left = stored(project)
    count = f"{len(gone)} test" + "s" * (len(gone) > 1)
    (told,) = lines(ended, f"dropped {count} with 2 sessions, no longer in the code")
    (back,) = lines(ended, "to restore: gpuperf baseline restore .gpuperf")
    restored = command(*shlex.split(back.partition(": ")[2])[1:], folder=project.path)

    assert ended.ret == 0
    assert all(f"test_it.py::{test}" in told for test in gone)
    assert not lines(ended, "in the baseline, but not in this run")
    assert left == OTHERS | (x(*"abc") - gone)
    assert restored.returncode == 0, restored.stderr
    assert stored(project) == OTHERS | x(*"abc")


EMPTY = VALUES.replace('["a", "b", "c"]', "[]")
SKIPPED = "import pytest\npytest.importorskip('not_there')\n"
WITHOUT_B = VALUES.replace('"b", ', "")
BROKEN = f"""{WITHOUT_B}
    class TestBroken:
        @pytest.mark.parametrize("nothing", [1])
        def test_y(self): ...
"""


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (WITHOUT_B, ("-k", "not other")),
        (WITHOUT_B, ("-m", "gpuperf and not slow")),
        (WITHOUT_B, ("--deselect", "test_it.py::test_x[a]")),
        (WITHOUT_B, ("test_it.py::test_x[a]", "test_other.py")),
        (WITHOUT_B, ("--ignore=test_it.py",)),
        (WITHOUT_B, ("test_other.py",)),
        (WITHOUT_B, ("--lf",)),
        (WITHOUT_B, ("--sw",)),
        (WITHOUT_B, ("--gpuperf-disable",)),
        (WITHOUT_B, ("-o", "python_files=test_other.py")),
        (SKIPPED, ()),
        (EMPTY, ()),
        ("import not_there\n", ("--continue-on-collection-errors",)),
        (BROKEN, ("--continue-on-collection-errors",)),
        (None, ("test_other.py",)),
        (None, ("--ignore=test_it.py",)),
        (None, ("-k", "other")),
    ],
)
def test_a_run_that_does_not_see_all_drops_nothing(
    project: Project, text: str | None, options: tuple[str, ...]
) -> None:
    """What was not looked at, or could not be, may still be there."""
    if text is None:
        (project.path / "test_it.py").unlink()
    else:
        project.write(text.replace("\n    ", "\n"))
    cache = () if "--lf" in options or "--sw" in options else ("-p", "no:cacheprovider")
    ended = project.run(STORING, *cache, *options)

    assert not lines(ended, "dropped")
    assert stored(project) == OTHERS | x(*"abc")


@pytest.mark.parametrize("named", ["CI_NODE_INDEX", "--gpuperf-shard=1/2", None])
def test_a_shard_drops_nothing(project: Project, named: str | None) -> None:
    """By the variables of a CI, an option, or a plugin that leaves out tests of a list."""
    project.write(WITHOUT_B)
    option = [named] if named and named.startswith("--") else []
    if named and not option:
        project.environment.setenv(named, "1")
        project.environment.setenv("CI_NODE_TOTAL", "2")
    elif not option:
        text = """
            import pytest

            @pytest.hookimpl(tryfirst=True)
            def pytest_collection_modifyitems(items):
                items[:] = [i for i in items if "x[a]" not in i.name]
        """
        project.write(text, "conftest.py")
    ended = project.run(STORING, *option)

    assert not lines(ended, "dropped")
    assert stored(project) == OTHERS | x(*"abc")


@pytest.mark.parametrize("stops", ["-x", "exit"])
def test_a_run_that_was_stopped_drops_nothing(project: Project, stops: str) -> None:
    """It stores nothing, either."""
    project.write(WITHOUT_B)
    ends = "pytest.exit('enough', 0)" if stops == "exit" else "assert False"
    project.write(f"import pytest\ndef test_ends(): {ends}\n", "test_an_end.py")
    project.run(STORING, *(("-x",) if stops == "-x" else ()))

    assert stored(project) == OTHERS | x(*"abc")


def test_sessions_of_another_machine_stay(project: Project) -> None:
    """A test may be there for one of them alone."""
    project.write(WITHOUT_B)
    (here,) = (p for p in (project.path / STORE).iterdir() if p.is_dir())
    there = here.with_name("other-64")
    shutil.copytree(here, there)
    project.run(STORING)
    texts = [(folder / "test_it.json").read_text("utf-8") for folder in (here, there)]

    assert ["test_x[b]" in text for text in texts] == [False, True]


@pytest.mark.parametrize("in_use", [True, False])
def test_sessions_of_another_python_stay(project: Project, in_use: bool) -> None:
    """Its own run drops them, unless there has been none for long."""
    store = DirectoryStore(project.path / STORE)
    (slug,) = store.slugs()
    gone, other = (
        next(
            item for item in store.load(slug).items() if item[0].test_id.endswith(test)
        )
        for test in ("test_x[b]", "test_other[a]")
    )
    of_another = tuple(
        replace(
            record,
            facts={
                name: {**f, "python_minor": "3.0"} for name, f in record.facts.items()
            },
        )
        for record in gone[1]
    )
    ids = frozenset(record.session.id for record in gone[1])
    changes = (
        Drop(key=gone[0], session_ids=ids),
        PutBack(key=gone[0], records=of_another),
    )
    store.write(slug, changes)
    for number in range(0 if in_use else SESSION_LIMIT):
        session = replace(other[1][0].session, id=f"later-{number}")
        store.write(slug, [Append(record=replace(other[1][0], session=session))])
    project.write(WITHOUT_B)
    ended = project.run(STORING)

    assert bool(lines(ended, "dropped 1 test with 2 sessions")) is not in_use
    assert ("test_x[b]" in stored(project)) is in_use


def test_tests_of_another_project_stay(project: Project) -> None:
    """Two projects may have one store; no session has measured tests of both."""
    (project.path / "test_it.py").unlink()
    (project.path / "test_other.py").unlink()
    project.write(VALUES.replace("test_x", "test_mine"), "test_mine.py")
    first = project.run(STORING)
    second = project.run(STORING)

    assert not lines(first, "dropped 6")
    assert lines(
        second, "not dropped: 6 tests of the baseline may belong to another project"
    )
    assert lines(
        second, "if removed: gpuperf baseline drop .gpuperf all --test=test_it.py"
    )
    assert stored(project) >= OTHERS | x(*"abc")


def git(project: Project, *arguments: str) -> None:
    """Run git in a project."""
    subprocess.run([*GIT, *arguments], cwd=project.path, check=True)


def test_a_commit_tells_that_a_test_was_of_this_project(project: Project) -> None:
    """Where all tests are renamed, the parent of the commit is that of their sessions."""
    git(project, "init", "--quiet")
    project.write(".gpuperf/\n", ".gitignore")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "--message=as it was")
    project.run(STORING)
    git(project, "mv", "test_it.py", "test_new.py")
    git(project, "mv", "test_other.py", "test_newer.py")
    git(project, "commit", "--quiet", "--message=all are renamed")
    ended = project.run(STORING)

    assert lines(ended, "dropped 6 tests with 3 sessions")


def test_verify_names_what_is_gone_and_what_to_type(project: Project) -> None:
    """Both commands work as printed, and a storing run may be left to drop it."""
    project.write(VALUES.replace("test_x", "test_y"))
    gate = project.run(*GATE)
    verify = ("verify", "run.json", f"--expect-from={STORE}")
    refused = command(*verify, folder=project.path)
    allowed = command(*verify, "--allow-removed", folder=project.path)
    (renaming,) = (
        line.strip().removeprefix("if renamed: ")
        for line in refused.stdout.splitlines()
        if "if renamed: " in line
    )
    renamed = command(*shlex.split(renaming)[1:], folder=project.path)
    again = command(*shlex.split(renaming)[1:], folder=project.path)
    complete = command(*verify, folder=project.path)

    assert (gate.ret, refused.returncode, allowed.returncode) == (0, 1, 0)
    assert "3 of the 6 tests of .gpuperf are no longer in the code" in refused.stdout
    assert "if removed: gpuperf baseline drop .gpuperf all --test=test_it.py" in (
        refused.stdout
    )
    assert "add --allow-removed" in refused.stdout
    assert "among them all 3 of .gpuperf; no longer in the code: " in allowed.stdout
    assert renaming == (
        "gpuperf baseline rename .gpuperf test_it.py::test_x test_it.py::test_y"
    )
    assert (renamed.returncode, again.returncode, complete.returncode) == (0, 2, 0)
    assert stored(project) == OTHERS | {f"test_y[{name}]" for name in "abc"}


def test_verify_expects_no_tests_of_other_paths_and_shards(project: Project) -> None:
    """What another job runs is not missing here; what was left out is.

    A shard runs what its options choose, and what it skipped was its own.
    """
    verify = ("verify", "run.json", f"--expect-from={STORE}")
    project.run(*GATE, "test_it.py")
    path = command(*verify, folder=project.path)
    project.write(
        "def pytest_collection_modifyitems(items): del items[2:]", "conftest.py"
    )
    project.run(*GATE)
    left_out = command(*verify, folder=project.path)
    project.environment.setenv("CI_NODE_INDEX", "1")
    project.environment.setenv("CI_NODE_TOTAL", "3")
    project.run(*GATE)
    shard = command(*verify, folder=project.path)
    project.run(*GATE, "-k", "x")
    part = command(*verify, folder=project.path)
    skips = "pytest.skip('no') if name == 'a' else None; value ="
    project.write(VALUES.replace("value =", skips))
    project.run(*GATE)
    skipped = command(*verify, folder=project.path)

    codes = [d.returncode for d in (path, left_out, shard, part, skipped)]
    assert codes == [0, 1, 0, 0, 1]
    assert "1 of the 2 tests of .gpuperf did not run: test_it.py::test_x[a]" in (
        skipped.stdout
    )
    assert (
        "among them all 3 of .gpuperf except 3 of other paths or shards" in path.stdout
    )
    assert "4 of the 6 tests of .gpuperf did not run" in left_out.stdout
    assert "if removed" not in left_out.stdout
    assert (
        "among them all 2 of .gpuperf except 4 of other paths or shards" in shard.stdout
    )
