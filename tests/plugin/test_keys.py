"""A stored value is of one test, whatever pytest calls it."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest

from fakes.project import Project, command, lines

RECORDS = """
    def test_it(gpuperf):
        gpuperf.record("x", 1, unit="s", better="lower")
"""
# ids that hold the folder of the checkout, and a value that a file of it gives
PATHS = """
    from pathlib import Path

    import pytest

    FILES = sorted((Path(__file__).parent / "data").glob("*.txt"))

    @pytest.mark.gpuperf(max_regression={"x": "5 %"})
    @pytest.mark.parametrize("path", FILES, ids=str)
    def test_it(gpuperf, path):
        gpuperf.record("x", float(path.read_text()), unit="s", better="lower")
"""


def stored_ids(folder: Path) -> set[str]:
    """Return the ids of all lines of a store, without the reference workloads."""
    ids = set()
    for file in folder.rglob("*.json"):
        for section in filter(None, json.loads(file.read_bytes())["sections"]):
            rows = filter(None, section["records"])
            ids |= {f"{section['name']}{row['test']}" for row in rows}
    return ids - {"gpuperf::references"}


def two_of_one_name(project: Project) -> tuple[str, ...]:
    """Write two tests that pytest gives one id; return the arguments that do so."""
    for folder in ("reader", "writer"):
        project.write(RECORDS, f"tests/{folder}/test_speed.py")
        project.write("", f"tests/{folder}/__init__.py")
    project.write("[pytest]\n", "config/pytest.ini")
    return "-c", "config/pytest.ini", "tests/reader", "tests/writer"


def test_two_tests_of_one_id_are_refused(project: Project) -> None:
    """The error names both files and what to type, and no test has run."""
    arguments = two_of_one_name(project)
    ended = project.run(*arguments, "--gpuperf-update=new")
    line, *_ = lines(ended, "gpuperf: two tests are called test_speed.py::test_it")
    mended = project.run(*arguments, "--rootdir=.", "--gpuperf-update=new")

    assert ended.ret == pytest.ExitCode.INTERRUPTED
    assert ended.parseoutcomes() == {"errors": 1}
    assert "tests/reader/test_speed.py::test_it and tests/writer/test_speed.py" in line
    assert "start pytest with --rootdir=." in line
    assert not (project.path / "config/.gpuperf").exists()
    assert mended.parseoutcomes() == {"passed": 2}
    assert stored_ids(project.path / ".gpuperf") == {
        "tests/reader/test_speed.py::test_it",
        "tests/writer/test_speed.py::test_it",
    }


def test_each_of_two_such_tests_runs_alone(project: Project) -> None:
    """Stored one after the other they have a baseline each, in one store."""
    *config, reader, writer = two_of_one_name(project)
    for folder in (reader, writer):
        assert project.run(*config, folder, "--gpuperf-update=new").ret == 0

    assert stored_ids(project.path / "config/.gpuperf") == {
        "tests/reader/test_speed.py::test_it",
        "tests/writer/test_speed.py::test_it",
    }


def test_a_plugin_that_calls_tests_alike_is_refused(project: Project) -> None:
    """Ids that were rewritten after the collection are looked at, too."""
    project.write(
        """
        def pytest_collection_modifyitems(items):
            for item in items:
                if hasattr(item, "_id"):  # since pytest 9.2
                    item._id = type(item._id).parse("a title")
                else:
                    item._nodeid = "a title"
        """,
        "conftest.py",
    )
    project.write(RECORDS + RECORDS.replace("test_it", "test_other"))
    ended = project.run()

    assert ended.parseoutcomes() == {"errors": 1}
    assert lines(ended, "two tests are called a title: test_it.py::test_it and ")
    assert lines(ended, "give each of them an id of its own")


def test_tests_that_measure_nothing_may_have_one_id(project: Project) -> None:
    """What others do with their ids is their affair."""
    arguments = two_of_one_name(project)
    for folder in ("reader", "writer"):
        project.write("def test_it(): pass\n", f"tests/{folder}/test_speed.py")

    assert project.run(*arguments).parseoutcomes() == {"passed": 2}


@pytest.mark.parametrize("how", ["conftest", "arguments"])
def test_repeats_of_a_test_are_numbered(project: Project, how: str) -> None:
    """Each of them is measured, stored and judged by itself."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(max_regression={"x": "5 %"})
        @pytest.mark.parametrize("n", ["a"])
        def test_it(gpuperf, n, tmp_path):
            gpuperf.record("x", 1, unit="s", better="lower")
        """
    )
    arguments = ["test_it.py"]
    if how == "arguments":
        arguments += ["test_it.py", "--keep-duplicates"]
    else:
        text = "def pytest_collection_modifyitems(items):\n    items[:] = items * 2\n"
        project.write(text, "conftest.py")
    for _ in range(3):
        ended = project.run(*arguments, "--gpuperf-update=new", "-p", "no:randomly")
        assert ended.parseoutcomes() == {"passed": 2}
    judged = project.run(
        *arguments,
        "--gpuperf-baseline=.gpuperf",
        "--junitxml=j.xml",
        "--gpuperf-json=j",
    )
    report = json.loads((project.path / "j").read_bytes())

    assert lines(judged, "judged 2 of 2: 2 unchanged")
    assert len(project.junit("j.xml")) == 2
    assert stored_ids(project.path / ".gpuperf") == {
        "test_it.py::test_it[a]",
        "test_it.py::test_it[a]#2",
    }
    assert [test["typed"] for test in report["tests"] if test["typed"]] == [
        "test_it.py::test_it[a]"
    ]


def test_a_folder_in_an_id_is_that_of_any_checkout(project: Project) -> None:
    """A store is compared with in another folder; its ids are shown as pytest shows them."""
    here, there = project.path / "one", project.path / "two"
    project.write(PATHS, "one/tests/test_it.py")
    project.write("[pytest]\n", "one/pytest.ini")
    project.write("2.0", "one/tests/data/a.txt")
    (here / ".git").mkdir()
    project.environment.chdir(here)
    for _ in range(3):
        assert project.run("--gpuperf-update=new").ret == 0
    shutil.copytree(here, there)
    (there / "tests/data/a.txt").write_text("3.0")
    project.environment.chdir(there)
    ended = project.run("--gpuperf-baseline=.gpuperf", "--gpuperf-json=run.json")
    report = json.loads((there / "run.json").read_bytes())
    shown = f"tests/test_it.py::test_it[{there}/tests/data/a.txt]"
    table = command("baseline", "show", ".gpuperf", shown, folder=there)
    verified = command("verify", "run.json", "--expect-from=.gpuperf", folder=there)

    assert stored_ids(here / ".gpuperf") == {
        "tests/test_it.py::test_it[{root}/tests/data/a.txt]"
    }
    assert lines(ended, "E   x regressed: 3.00 s, was 2.00 s: +50.0 %")
    assert lines(ended, f'reproduce: pytest "{shown}"')
    assert [test["test_id"] for test in report["tests"]] == [shown]
    assert shown in table.stdout
    assert (verified.returncode, "complete: 1 test" in verified.stdout) == (0, True)


def test_a_package_of_a_repository_is_named_from_its_root(project: Project) -> None:
    """Started in the package or above it, one test has one baseline; ids are pytest's."""
    text = PATHS.replace("Path(__file__).parent", "Path('.')").replace(
        'sorted((Path(\'.\') / "data").glob("*.txt"))', '["a/b"]'
    )
    text = text.replace("float(path.read_text())", "1.0")
    project.write(text, "packages/a/tests/test_it.py")
    project.write("[pytest]\n", "packages/a/pytest.ini")
    project.write("[pytest]\n", "pytest.ini")
    (project.path / ".git").mkdir()
    store = f"--gpuperf-baseline={project.path}/store"
    for folder in (".", "packages/a", "packages/a/tests"):
        project.environment.chdir(project.path / folder)
        assert project.run(store, "--gpuperf-update=new").ret == 0
    ended = project.run(store, "--gpuperf-json=run.json")
    report = json.loads(Path("run.json").read_bytes())

    assert stored_ids(project.path / "store") == {
        "packages/a/tests/test_it.py::test_it[a/b]"
    }
    assert ended.ret == 0
    assert report["verdicts"][0]["outcome"] in {"unchanged", "blind"}  # not new
    assert [test["test_id"] for test in report["tests"]] == [
        "tests/test_it.py::test_it[a/b]"
    ]


def test_kinds_of_tests_have_the_ids_of_pytest(project: Project) -> None:
    """Classes, unittest and doctest: without a path in an id its key is no other text."""
    project.write(
        """
        import unittest

        import pytest

        pytestmark = pytest.mark.gpuperf

        class TestOuter:
            class TestInner:
                @pytest.mark.parametrize("v", ["a::b", "c[d]"])
                def test_it(self, gpuperf, v):
                    gpuperf.record("x", 1)

        class Old(unittest.TestCase):
            def test_old(self):
                sorted([2, 1])
        """
    )
    project.write("[pytest]\n", "pytest.ini")
    (project.path / ".git").mkdir()
    ended = project.run("--gpuperf-json=run.json", "--gpuperf-update=new")
    report = json.loads(Path("run.json").read_bytes())

    assert ended.ret == 0
    assert all(test["key"] == test["typed"] == "" for test in report["tests"])
    assert stored_ids(project.path / ".gpuperf") >= {
        "test_it.py::TestOuter::TestInner::test_it[a::b]",
        "test_it.py::TestOuter::TestInner::test_it[c[d]]",
    }


def test_what_lies_outside_goes_by_its_import_name(project: Project) -> None:
    """Tests of an installed package have one key wherever the environment lies."""
    project.write("", "env/site-packages/lib/__init__.py")
    project.write("", "env/site-packages/lib/tests/__init__.py")
    project.write(RECORDS, "env/site-packages/lib/tests/test_lib.py")
    (project.path / ".git").mkdir()
    project.environment.syspath_prepend(str(project.path / "env/site-packages"))
    ended = project.run("--pyargs", "lib.tests.test_lib", "--gpuperf-update=new")

    assert ended.ret == 0
    assert stored_ids(project.path / ".gpuperf") == {"lib.tests.test_lib::test_it"}


def test_an_id_without_its_file_is_typed_with_it(project: Project) -> None:
    """What reports call the file and the command to type name a file that is there."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["x <= 1"])
        def test_it(gpuperf):
            gpuperf.record("x", 2)
        """,
        "tests/test_sum.py",
    )
    project.write("[pytest]\n", "config/pytest.ini")
    ended = project.run(
        *("-c", "config/pytest.ini", "tests/test_sum.py", "--gpuperf-csv=run.csv"),
        "--gpuperf-annotations",
    )
    (row,) = csv.DictReader(io.StringIO((project.path / "run.csv").read_text()))

    assert lines(ended, "reproduce: pytest tests/test_sum.py::test_it")
    assert row["file"] == "tests/test_sum.py"
    assert lines(ended, "::error file=tests/test_sum.py,")


def test_a_store_of_ids_is_found_and_rewritten(project: Project) -> None:
    """What an earlier version stored is judged, and gets its keys at the next store."""
    gold = Path(__file__).parents[1] / "gold/store-2"
    shutil.copytree(gold, project.path / "packages/a/store")
    project.write("[pytest]\n", "packages/a/pytest.ini")
    project.write(
        """
        def test_recorded(gpuperf):
            gpuperf.record("tokens", 128, better="higher")
        """,
        "packages/a/test_words.py",
    )
    (project.path / ".git").mkdir()
    project.environment.chdir(project.path / "packages/a")
    # The store is of this machine, whatever its processor is called.
    project.run("--gpuperf-baseline=probe", "--gpuperf-update=new")
    (probe,) = (p for p in (project.path / "packages/a/probe").iterdir() if p.is_dir())
    (machine,) = (project.path / "packages/a/store").iterdir()
    machine.rename(machine.with_name(probe.name))
    before = stored_ids(project.path / "packages/a/store")
    options = ("--gpuperf-baseline=store", "--gpuperf-json=run.json")
    project.run(*options)
    absent = json.loads(Path("run.json").read_bytes())["header"]["completeness"]
    # a run of a part drops none of the others
    project.run(*options, "--gpuperf-update=all", "-k", "recorded")
    after = stored_ids(project.path / "packages/a/store")

    assert "test_words.py::test_recorded" in before
    assert "test_words.py::test_recorded" not in absent["absent"]
    assert "test_words.py::test_sorted" in absent["absent"]
    assert "packages/a/test_words.py::test_recorded" in after
    assert "test_words.py::test_sorted" in after


# What finds out of which test, work and process a value is.
OF_FACTS = (
    "hooks/identity.py",
    "hooks/digests.py",
    "collect/parameters.py",
    "collect/syntax.py",
    "collect/environment.py",
)


def fact_calls(project: Project, tests: int) -> int:
    """Return the number of calls in the modules of facts during a run of some tests."""
    project.write(
        f"""
        import pytest

        @pytest.mark.gpuperf(max_regression={{"x": "5 %"}})
        @pytest.mark.parametrize("n", range({tests}), ids=str)
        @pytest.mark.parametrize("sizes", [(1, 2.5)])
        def test_it(gpuperf, n, sizes):
            gpuperf.record("x", 1.0, unit="s", better="lower")
        """
    )
    calls = Counter[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code.co_filename.rpartition("pytest_gpuperf/")[2]] += 1

    sys.setprofile(note)
    try:
        ended = project.run("--gpuperf-update=new")
    finally:
        sys.setprofile(None)
    ended.assert_outcomes(passed=tests)
    return sum(calls[name] for name in OF_FACTS)


def test_facts_and_digests_take_few_calls(project: Project) -> None:
    """A suite of thousands of fast tests does not pay for its identity."""
    few, many = fact_calls(project, 5), fact_calls(project, 25)

    assert 5 < (many - few) / 20 <= 30
