"""Runs that measure only tests that use a file changed since their stored session."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.project import XDIST, Project
from functional.against.repository import Repository
from pytest_gpuperf import cli

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux reports what is opened"
)
BASELINE = ("--gpuperf-baseline=.gpuperf", "--gpuperf-json=run.json")
CHANGED = ("--gpuperf-changed", *BASELINE)
STORE = (*CHANGED, "--gpuperf-update=all")
RECORDS = """
    import os
    import pathlib
    import subprocess

    import pytest

    import work

    MARK = pytest.mark.gpuperf(max_regression={{"x": "5 %"}})


    def value():
        {value}


    @MARK
    def test_{name}(gpuperf):
        gpuperf.record("x", value(), unit="s", better="lower")
"""
FILES = {
    "test_a.py": RECORDS.format(name="a", value="return work.VALUES['same']"),
    "test_b.py": RECORDS.format(
        name="b", value="return float(pathlib.Path('data.txt').read_text())"
    ),
    # A child program reads the file, and has none of our variables.
    "test_c.py": RECORDS.format(
        name="c",
        value="return float(subprocess.check_output(['/bin/cat', 'more.txt'], env={}))",
    ),
    "test_d.py": """
        import os

        import pytest


        @pytest.mark.gpuperf(max_regression={"x": "5 %"})
        @pytest.mark.parametrize("size", [os.environ.get("SIZE", "1")], ids=["size"])
        def test_d(gpuperf, size):
            gpuperf.record("x", float(size), unit="s", better="lower")
    """,
    "data.txt": "1",
    "more.txt": "1",
    "README.md": "Read me.",
    "conftest.py": "",
    "notes.txt": "",
    "requirements.txt": "numpy==2.4",
}
EVERY = {"a", "b", "c", "d"}
# What a stored session leaves in a folder.
_stored: list[Path] = []


def store(project: Project, *options: str) -> str:
    """Store two sessions, with which exact values are judged; return what is printed."""
    texts = []
    for _ in range(2):
        ended = project.spawn(*(options or STORE))
        assert ended.returncode == 0, ended.stdout
        texts.append(ended.stdout)
    return "".join(texts)


@pytest.fixture
def stored(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Give a committed project with a stored session."""
    repository = Repository(project)
    (project.path / "test_it.py").unlink()
    if _stored:
        shutil.copytree(_stored[0], project.path, dirs_exist_ok=True, symlinks=True)
        return repository
    for name, text in FILES.items():
        project.write(text, name)
    (project.path / "link.txt").symlink_to("data.txt")
    repository.commit("old", same=1.0)
    assert "not stored" not in store(project)
    left = tmp_path_factory.mktemp("stored") / "left"
    shutil.copytree(project.path, left, symlinks=True)
    _stored.append(left)
    return repository


def unmeasured(project: Project, *options: str, code: int = 0) -> tuple[set[str], str]:
    """Return the tests that a run leaves unmeasured, and what it prints."""
    ended = project.spawn(*CHANGED, *options)
    assert ended.returncode == code, ended.stdout + ended.stderr
    report = project.report()
    names = report["header"]["completeness"].get("unchanged", [])
    measured = {r["key"]["test_id"] for r in report["records"]}
    assert measured.isdisjoint(names)
    short = {name.partition("::test_")[2][0] for name in names}
    assert len(short) == len(names)
    assert short | {name.partition("::test_")[2][0] for name in measured} == EVERY
    return short, ended.stdout


@pytest.mark.parametrize("options", [(), (*XDIST, "-n2")], ids=["alone", "xdist"])
def test_nothing_is_measured_where_nothing_changed(
    stored: Repository, options: tuple[str, ...]
) -> None:
    """The tests are named, are no part of what must be judged, and stay in the store."""
    project = stored.project
    before = {p: p.read_bytes() for p in project.path.glob(".gpuperf/**/*.json")}

    names, text = unmeasured(project, "--gpuperf-min-judged=100%", *options)

    assert names == EVERY
    assert (
        "4 tests not measured, using no file of the repository changed since"
        in " ".join(text.split())
    )
    assert "(data elsewhere are not seen)" in " ".join(text.split())
    assert "test_a" in text
    assert "not in this run" not in text
    after = {p: p.read_bytes() for p in project.path.glob(".gpuperf/**/*.json")}
    assert after == before


def _link(folder: Path) -> None:
    (folder / "link.txt").unlink()
    (folder / "link.txt").symlink_to("more.txt")


def _write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def _edit(name: str, old: str, new: str) -> Callable[[Path], object]:
    def edited(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return edited


@pytest.mark.parametrize(
    ("edit", "left"),
    [
        pytest.param(_write("README.md", "Read on."), "abcd", id="prose"),
        pytest.param(_write("notes.txt", "Not read."), "abcd", id="unused"),
        pytest.param(_write("data.txt", "1.01"), "a", id="data"),
        pytest.param(_write("more.txt", "1.01"), "ab", id="of-a-child"),
        pytest.param(_edit("test_b.py", "float(", "1 * float("), "a", id="a-body"),
        pytest.param(_edit("test_b.py", "import os\n", "\n"), "", id="an-import"),
        pytest.param(_edit("work.py", "1.0", "1.01"), "", id="a-module"),
        pytest.param(_write("conftest.py", "X = 1"), "", id="conftest"),
        pytest.param(_write("requirements.txt", "numpy"), "", id="packages"),
        pytest.param(_write("pyproject.toml", "[project]"), "", id="a-build-file"),
        pytest.param(_write("kernel.cu", "// new"), "", id="a-source"),
        pytest.param(_write("sitecustomize_.py", "X = 1"), "abcd", id="added"),
        pytest.param(lambda folder: (folder / "notes.txt").unlink(), "", id="removed"),
        pytest.param(_link, "", id="a-link"),
    ],
)
def test_a_test_is_measured_that_uses_what_changed(
    stored: Repository, edit: Callable[[Path], object], left: str
) -> None:
    """And each test after it in its process; a use that cannot be seen is a change."""
    edit(stored.project.path)

    names, text = unmeasured(stored.project)

    assert names == set(left)
    assert ("every test was measured" in text) == (not left)


@pytest.mark.parametrize("edit", ["new", "gone", "new-in-ignored", "moved"])
def test_a_name_that_git_ignores_counts_in_a_listed_folder(
    project: Project, edit: str
) -> None:
    """No commit shows it, and the test opens the folder only."""
    repository = Repository(project)
    (project.path / "test_it.py").unlink()
    project.write(FILES["test_a.py"], "test_a.py")
    folder = "out" if edit.endswith("ignored") else "gen"
    project.write(
        RECORDS.format(
            name="b",
            value=f"return float(len(list(pathlib.Path('{folder}').glob('*'))))",
        ),
        "test_b.py",
    )
    project.write(
        "__pycache__\n*.json\n.gpuperf\n.pytest_cache\n*.bin\nout\n", ".gitignore"
    )
    for name in ("gen/a.txt", "gen/a.bin", "out/a"):
        (project.path / name).parent.mkdir(exist_ok=True)
        project.write("", name)
    repository.commit("old", same=1.0)
    store(project)
    ended = project.spawn(*CHANGED)
    assert ended.returncode == 0, ended.stdout
    assert len(project.report()["header"]["completeness"]["unchanged"]) == 2

    if edit in {"gone", "moved"}:
        (project.path / "gen/a.bin").rename(project.path / f"{edit}.bin")
    if edit == "moved":
        (project.path / "moved.bin").rename(project.path / "gen/moved.bin")
    if edit.startswith("new"):
        (project.path / f"{folder}/b.bin").touch()
    ended = project.spawn(*CHANGED)

    assert (
        "test_b.py::test_b"
        not in (project.report()["header"]["completeness"]["unchanged"])
    )
    assert ended.returncode == int(edit.startswith("new")), ended.stdout


def test_a_new_ignored_name_counts_for_no_test_that_looks_for_none(
    stored: Repository,
) -> None:
    """Tools leave such files, and pytest itself lists the folders of tests."""
    stored.project.write("", "tool.json")

    assert unmeasured(stored.project)[0] == EVERY


@pytest.mark.parametrize("is_ignored", [True, False])
def test_what_tools_keep_for_themselves_is_no_input(
    project: Project, *, is_ignored: bool
) -> None:
    """Results of benchmarks and caches come and go in folders that a test lists."""
    repository = Repository(project)
    (project.path / "test_it.py").unlink()
    listed = "return float(os.listdir('.').count('x'))"
    project.write(RECORDS.format(name="a", value=listed), "test_a.py")
    folders = (
        ".benchmarks",
        ".hypothesis",
        ".ruff_cache",
        ".triton",
        "torchinductor_me",
    )
    ignored = "\n".join(f"{name}*" for name in (*folders, ".coverage"))
    project.write(
        f"__pycache__\n*.json\n.gpuperf\n.pytest_cache\n{ignored * is_ignored}",
        ".gitignore",
    )
    repository.commit("old", same=1.0)
    store(project)
    for name in folders:
        (project.path / name / "a").mkdir(parents=True)
        project.write("{}", f"{name}/a/0001.txt")
    project.write("", ".coverage")
    assert project.spawn(*CHANGED).returncode == 0
    completeness = project.report()["header"]["completeness"]
    assert completeness["unchanged"] == ["test_a.py::test_a"]

    project.write("", "x")
    # The value is another one, so the test was measured.
    assert project.spawn(*CHANGED).returncode == 1


def test_a_few_changed_files_are_named(stored: Repository) -> None:
    """A file that no test used would not help."""
    stored.project.write("X = 1", "conftest.py")
    stored.project.write("Not read.", "notes.txt")

    text = " ".join(unmeasured(stored.project)[1].split())

    assert "or may use one: conftest.py" in text
    assert "notes.txt" not in text


def test_a_later_commit_counts_like_an_edit(stored: Repository) -> None:
    """The files are compared with the commit of the session, not with the newest one."""
    stored.project.write("1.01", "data.txt")
    stored.commit("new", same=1.0)

    assert unmeasured(stored.project)[0] == {"a"}


def test_other_parameters_are_measured(stored: Repository) -> None:
    """They come from elsewhere, and no file shows them."""
    stored.project.environment.setenv("SIZE", "1.01")

    assert unmeasured(stored.project)[0] == {"a", "b", "c"}


def test_other_parameters_of_each_test_are_the_reason(stored: Repository) -> None:
    """No file is at fault where all tests that are asked for have other values."""
    stored.project.environment.setenv("SIZE", "1")
    arguments = ("test_d.py", *STORE)
    store(stored.project, *arguments)
    stored.project.environment.setenv("SIZE", "1.01")

    ended = stored.project.spawn("test_d.py", *CHANGED)

    # The values of other parameters are not compared.
    assert ended.returncode == 1
    commit = stored.project.report()["header"]["session"]["commit"]
    why = f"each test has other parameters than in the session of {commit[:7]}"
    assert f"every test was measured: {why}" in " ".join(ended.stdout.split())


def test_other_arguments_measure_every_test(stored: Repository) -> None:
    """An option of the project may change what its tests do."""
    stored.project.write(
        "def pytest_addoption(parser):\n    parser.addoption('--big', default='')\n",
        "conftest.py",
    )
    stored.commit("an option", same=1.0)
    store(stored.project)

    names, text = unmeasured(stored.project, "--big=1")

    assert names == set()
    assert "every test was measured: the store has no files" in text


def test_a_store_without_files_measures_every_test(stored: Repository) -> None:
    """It was written without the option."""
    shutil.rmtree(stored.project.path / ".gpuperf")
    store(stored.project, *BASELINE, "--gpuperf-update=all")

    names, text = unmeasured(stored.project)

    assert names == set()
    assert "--gpuperf-changed --gpuperf-update=new" in text


def test_files_that_differ_from_the_commit_are_not_stored(stored: Repository) -> None:
    """The commit would stand for code that was not measured."""
    shutil.rmtree(stored.project.path / ".gpuperf")
    stored.project.write("1.01", "data.txt")

    text = store(stored.project)

    assert "not stored: data.txt differ from the commit; commit first" in text
    assert unmeasured(stored.project)[0] == set()


@pytest.mark.parametrize("ignored", [True, False], ids=["ignored", "untracked"])
def test_a_file_that_git_does_not_have_is_compared_by_content(
    project: Project, *, ignored: bool
) -> None:
    """It may be generated, and no commit has it."""
    repository = Repository(project)
    (project.path / "test_it.py").unlink()
    for name in ("test_a.py", "test_b.py"):
        project.write(FILES[name], name)
    project.write(
        "data.txt\n.gpuperf\n*.json\n" if ignored else "*.json\n.gpuperf\n",
        ".gitignore",
    )
    repository.commit("old", same=1.0)
    project.write("1", "data.txt")
    store(project)

    for text, left in (
        ("1", ["test_a.py::test_a", "test_b.py::test_b"]),
        ("1.01", ["test_a.py::test_a"]),
    ):
        project.write(text, "data.txt")
        ended = project.spawn(*CHANGED)
        assert ended.returncode == 0, ended.stdout
        assert project.report()["header"]["completeness"]["unchanged"] == left


def test_a_revision_counts_as_well(stored: Repository) -> None:
    """A test is left out only if its files differ neither from the session nor from it."""
    stored.project.write("1.01", "data.txt")
    stored.commit("other data", same=1.0)
    store(stored.project)

    names, _ = unmeasured(stored.project, "--gpuperf-against=HEAD~1")

    assert names == {"a"}


def test_a_revision_that_no_test_differs_from_passes(stored: Repository) -> None:
    """Nothing had to be decided."""
    names, text = unmeasured(stored.project, "--gpuperf-against=HEAD")

    assert names == EVERY
    assert "no test was decided" not in text


def test_a_body_that_needs_a_value_is_skipped(project: Project) -> None:
    """There is none; a limit of its marker is not checked."""
    repository = Repository(project)
    project.write(
        """
        import pytest


        def test_value(gpuperf):
            assert gpuperf.measure(sum, [1, 2]).time < 1


        @pytest.mark.gpuperf(limits="time <= 1 s")
        def test_limit(gpuperf):
            assert gpuperf(sum, [1, 2]) == 3
        """
    )
    repository.commit("old")
    store(project)

    ended = project.spawn(*CHANGED, "-rs")

    assert ended.returncode == 0, ended.stdout
    assert "1 passed, 1 skipped" in ended.stdout
    assert "no file that it uses has changed since" in ended.stdout
    assert "drop --gpuperf-changed to measure it" in ended.stdout


def test_another_python_measures_every_test(stored: Repository) -> None:
    """Its settings, and what is installed beside it, are no files of the project."""
    stored.project.environment.setenv("PYTHONUTF8", "1")

    names, text = unmeasured(stored.project)

    assert names == set()
    assert "was measured with another Python, other packages or another GPU" in text


def test_the_files_of_a_submodule_are_compared(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """git names the submodule, and the test has read one of its files."""
    repository = Repository(project)
    (project.path / "test_it.py").unlink()
    inner = tmp_path_factory.mktemp("inner")
    (inner / "data.txt").write_text("1")
    for command in (
        ("-C", str(inner), "init", "-q"),
        ("-C", str(inner), "add", "."),
        ("-C", str(inner), "commit", "-qm", "data"),
        (
            "-c",
            "protocol.file.allow=always",
            "submodule",
            "add",
            "-q",
            str(inner),
            "in",
        ),
    ):
        repository.git(*command)
    project.write(FILES["test_a.py"], "test_a.py")
    project.write(FILES["test_b.py"].replace("data.txt", "in/data.txt"), "test_b.py")
    repository.commit("old", same=1.0)
    store(project)
    ended = project.spawn(*CHANGED)
    assert ended.returncode == 0, ended.stdout
    assert len(project.report()["header"]["completeness"]["unchanged"]) == 2

    project.write("1.01", "in/data.txt")
    ended = project.spawn(*CHANGED)

    assert ended.returncode == 0, ended.stdout
    unchanged = project.report()["header"]["completeness"]["unchanged"]
    assert unchanged == ["test_a.py::test_a"]


def test_commands_know_the_tests_that_were_left_unmeasured(
    stored: Repository,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """They are not gone, and a report names them as the run does."""
    project = stored.project
    unmeasured(project)
    monkeypatch.chdir(project.path)
    capfdbinary.readouterr()
    code = cli.main(["compare", ".gpuperf", "run.json"])
    compared = capfdbinary.readouterr().out.decode()
    named = "4 tests not measured, using no file of the repository changed since"

    assert code == 0
    assert "gone" not in compared
    assert compared.count(named) == 1
    for name in ("r.md", "r.html"):
        cli.main(["report", "run.json", "-o", name])
        assert named in (project.path / name).read_text("utf-8")


@pytest.mark.parametrize("value", ["'base'", "'hook'"])
def test_a_function_that_an_import_calls_counts_from_the_first_test(
    project: Project, value: str
) -> None:
    """Without its name: Python calls one for a subclass, and pytest one to collect."""
    repository = Repository(project)
    (project.path / "test_it.py").unlink()
    project.write(
        RECORDS.format(name="a", value="return float(work.VALUES.get('set', 1))"),
        "test_a.py",
    )
    project.write(
        RECORDS.format(name="z", value="return 1.0")
        + """
    class Base:
        def __init_subclass__(cls):
            work.VALUES['base'] = 1


    class Sub(Base):
        pass


    def pytest_generate_tests(metafunc):
        work.VALUES['hook'] = 1
    """,
        "test_z.py",
    )
    repository.commit("old", same=1.0)
    store(project)
    ended = project.spawn(*CHANGED)
    assert ended.returncode == 0, ended.stdout
    assert len(project.report()["header"]["completeness"]["unchanged"]) == 2

    _edit("test_z.py", value, "'set'")(project.path)
    _edit("test_z.py", "= 1\n", "= 2\n")(project.path)
    ended = project.spawn(*CHANGED)

    assert ended.returncode == 1, ended.stdout
    assert project.report()["header"]["completeness"]["unchanged"] == []


@pytest.mark.parametrize("ignored", ["", "*.db*\n"], ids=["untracked", "ignored"])
def test_a_database_in_the_project_is_no_input(project: Project, ignored: str) -> None:
    """Nor are the files that SQLite writes next to it, a copy, or another store."""
    repository = Repository(project)
    (project.path / "test_it.py").unlink()
    project.write(FILES["test_a.py"], "test_a.py")
    project.write(f"__pycache__\n*.json\n.pytest_cache\n{ignored}", ".gitignore")
    repository.commit("old", same=1.0)
    json = "--gpuperf-json=run.json"
    base = ("--gpuperf-changed", "--gpuperf-baseline=sqlite:///perf.db", json)
    store(project, *base, "--gpuperf-update=all")
    shutil.copy(project.path / "perf.db", project.path / "snapshot.db")
    copied = ("--gpuperf-changed", "--gpuperf-baseline=sqlite:///snapshot.db", json)
    server = "--gpuperf-baseline=postgresql://localhost:1/none"
    away = ("--gpuperf-changed", server, json)
    (project.path / "perf.db-journal").touch()

    for options in (
        (*base, "--gpuperf-baseline-fallback=sqlite:///snapshot.db"),
        (*copied, "--gpuperf-baseline-fallback=sqlite:///perf.db"),
        (*away, "--gpuperf-baseline-fallback=sqlite:///perf.db"),
    ):
        if options[1] == server:
            (project.path / "snapshot.db").unlink()
        ended = project.spawn(*options)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        unchanged = project.report()["header"]["completeness"]["unchanged"]
        assert unchanged == ["test_a.py::test_a"], ended.stdout


def test_a_run_that_needs_no_value_stores_its_files(stored: Repository) -> None:
    """The documented command keeps its use, however many sessions there are."""
    project = stored.project
    new = (*CHANGED, "--gpuperf-update=new", "-ogpuperf_sessions=2")
    project.write("1.001", "data.txt")
    commit = stored.commit("new data", same=1.0)
    assert unmeasured(project, "-ogpuperf_sessions=2")[0] == {"a"}

    ended = project.spawn(*new)

    assert ended.returncode == 0, ended.stdout
    assert "the files of 4 tests are stored, without a value" in ended.stdout
    names, text = unmeasured(project, "-ogpuperf_sessions=2")
    assert names == EVERY
    assert commit[:7] in text


def test_every_test_is_found_after_one_was_added(stored: Repository) -> None:
    """A session that stores values of the new test alone has measured the others, too."""
    project = stored.project
    (project.path / "test_d.py").unlink()
    stored.commit("one less", same=1.0)
    store(project)
    project.write(FILES["test_d.py"], "test_d.py")
    stored.commit("one more", same=1.0)
    ended = project.spawn(*CHANGED, "--gpuperf-update=new", "-ogpuperf_sessions=2")
    assert "stored 1 measurement" in ended.stdout

    assert unmeasured(project, "-ogpuperf_sessions=2")[0] == EVERY


def test_a_test_that_regressed_is_measured_again(stored: Repository) -> None:
    """Its session stores no value of it, and the next run has to fail as well."""
    project = stored.project
    project.write("1.5", "data.txt")
    stored.commit("slower", same=1.0)
    for options, code in (
        (("--gpuperf-update=new", "-ogpuperf_sessions=2"), 1),
        ((), 1),
    ):
        ended = project.spawn(*CHANGED, *options)
        assert ended.returncode == code, ended.stdout
        assert "regressed" in ended.stdout
    unchanged = project.report()["header"]["completeness"]["unchanged"]
    assert "test_b.py::test_b" not in unchanged
    assert "test_a.py::test_a" in unchanged


def test_a_test_is_found_in_an_older_session(stored: Repository) -> None:
    """The newest did not judge it, and each test is looked for by itself."""
    project = stored.project
    project.write("4", "more.txt")
    stored.commit("slower", same=1.0)
    ended = project.spawn(*CHANGED, "--gpuperf-update=new", "-ogpuperf_sessions=2")
    assert ended.returncode == 1, ended.stdout
    project.write("1", "more.txt")
    stored.commit("back", same=1.0)

    names, _ = unmeasured(project, "-ogpuperf_sessions=2")

    assert "c" in names


FINDER = """
    import importlib.machinery
    import importlib.util
    import sys

    MAPPING = {{"n": {place!r}}}


    class Finder:
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name not in MAPPING:
                return None
            place = MAPPING[name] + "/__init__.py"
            return importlib.util.spec_from_file_location(name, place)


    sys.meta_path.append(Finder)
"""
BY_PATH = """
    import importlib.util
    import sys

    spec = importlib.util.spec_from_file_location("n", {place!r})
    sys.modules["n"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["n"])
"""


@pytest.mark.parametrize(
    ("name", "used", "workers"),
    [
        ("lib/n.py", "import n; return n.VALUE", ()),
        ("lib/n.py", "import n; return n.VALUE", (*XDIST, "-n2")),
        ("lib/n/deep/m.py", "import n.deep.m; return n.deep.m.VALUE", ()),
        (
            "lib/n/data.txt",
            "import n; return eval(open(n.__path__[0] + '/data.txt').read()[8:])",
            (),
        ),
        ("editable/src/n/__init__.py", "import n; return n.VALUE", ()),
        ("own/n.py", "import n; return n.VALUE", ()),
    ],
    ids=["module", "module-xdist", "deep", "package-data", "editable", "by-path"],
)
def test_code_outside_of_the_repository_is_compared(
    project: Project,
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    used: str,
    workers: tuple[str, ...],
) -> None:
    """On Python's path, in an editable installation, or loaded by its path."""
    repository = Repository(project)
    (project.path / "test_it.py").unlink()
    outside = tmp_path_factory.mktemp("outside")
    place = outside / name
    place.parent.mkdir(parents=True)
    for folder in place.parents:
        if folder.name in {"deep", "n"}:
            (folder / "__init__.py").touch()
    place.write_text("VALUE = 1.0\n")
    library = outside / "lib"
    library.mkdir(exist_ok=True)
    project.environment.setenv("PYTHONPATH", str(library), prepend=":")
    text = ""
    if name.startswith("editable"):
        project.write(FINDER.format(place=str(place.parent)), "finder_of_n.py")
        (project.path / "finder_of_n.py").rename(library / "finder_of_n.py")
        text = "import finder_of_n\n"
    elif name.startswith("own"):
        text = textwrap.dedent(BY_PATH.format(place=str(place)))
    project.write(text, "conftest.py")
    project.write(RECORDS.format(name="a", value=used), "test_a.py")
    repository.commit("old", same=1.0)
    store(project, *STORE, *workers)
    ended = project.spawn(*CHANGED, *workers)
    assert ended.returncode == 0, ended.stdout
    assert project.report()["header"]["completeness"].get("unchanged"), ended.stdout

    place.write_text("VALUE = 2.0\n")
    ended = project.spawn(*CHANGED, *workers)

    assert ended.returncode == 1, ended.stdout
    assert "test_a" in ended.stdout
    changed = library if name.startswith("lib") else place.parent
    shown = place if name.startswith("own") else changed
    assert f"every test was measured: {shown}, outside" in " ".join(
        ended.stdout.split()
    )


def test_a_new_folder_of_code_measures_every_test(
    stored: Repository, tmp_path: Path
) -> None:
    """A module there may come before another of its name."""
    stored.project.environment.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    names, text = unmeasured(stored.project)

    assert names == set()
    assert "was measured with another Python" in text
