"""Files that a test takes away from its process: measuring opens none meanwhile."""

from __future__ import annotations

import sys

import pytest

from fakes.project import Project

TESTS = """
    import pytest


    def work():
        return sum(range(2000))


    @pytest.mark.gpuperf(limits="time <= 10 s")
    def test_limit(gpuperf):
        gpuperf.measure(work)

    def test_assert(gpuperf):
        assert gpuperf.measure(work).time < 10

    def test_range(gpuperf):
        with gpuperf.range("part"):
            work()

    def test_number(gpuperf):
        gpuperf.record("x", 1.0, unit="s", better="lower")

    @pytest.mark.gpuperf
    def test_marked():
        work()
"""

# tells which files are opened, listed or run between the first test's setup and the last
# test's teardown, by a line of the package
WATCH = """
    import sys

    import pytest

    running = False
    opened = []
    EVENTS = {"open", "os.listdir", "os.scandir", "subprocess.Popen", "import"}


    def watch(event, arguments):
        if not running or event not in EVENTS or isinstance(arguments[0], int):
            return
        frame = sys._getframe(1)
        while frame is not None:
            if "pytest_gpuperf" in frame.f_code.co_filename:
                opened.append((event, str(arguments[0])))
                return
            frame = frame.f_back


    sys.addaudithook(watch)


    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(item):
        global running
        running = True
        try:
            return (yield)
        finally:
            running = False


    def pytest_unconfigure(config):
        with open(f"opened-{getattr(config, 'workerinput', {}).get('workerid')}", "w") as f:
            f.writelines(f"{event} {name}\\n" for event, name in opened)
"""

# Python itself opens no file for it
FIRST_OF_TORCH = """
    import sys
    import types

    def test_a(gpuperf):
        sys.modules["torch"] = types.ModuleType("torch")
        gpuperf.measure(dir)
"""

# what a fake file system does to this process, in as far as no package is needed for it
TAKEN = """
    import builtins
    import io
    import os

    import pytest

    NAMES = ("open", "listdir", "scandir", "mkdir", "rename", "unlink")


    @pytest.fixture(autouse=True, scope={scope!r})
    def taken():
        def refuse(*_, **__):
            raise {error}("a test allows no files")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(builtins, "open", refuse)
            patch.setattr(io, "open", refuse)
            for name in NAMES:
                patch.setattr(os, name, refuse)
            yield
"""


@pytest.mark.parametrize(
    "options",
    [(), ("--gpuperf-update=all",), ("-p", "xdist.plugin", "-n1", "--gpuperf-html=x")],
    ids=["plain", "storing", "worker"],
)
def test_no_file_is_opened_while_tests_run(
    project: Project, options: tuple[str, ...]
) -> None:
    """What measuring needs is opened, read and loaded before the first test."""
    project.write(TESTS)
    project.write(WATCH, "conftest.py")
    ended = project.spawn("-q", *options)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    names = sorted(path.name for path in project.path.glob("opened-*"))
    opened = [(project.path / name).read_text() for name in names]
    assert opened == ([""] if len(names) == 1 else ["", ""])
    assert "5 passed" in ended.stdout


def test_nothing_is_imported_where_a_test_is_the_first_to_load_torch(
    project: Project,
) -> None:
    """What knows its devices is loaded before the first test, if there is a torch to load."""
    project.write("", "torch.py")
    project.write(FIRST_OF_TORCH)
    project.write(WATCH, "conftest.py")
    ended = project.spawn("-q", "-p", "no:cacheprovider")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    # Its version is looked up.
    assert "import" not in (project.path / "opened-None").read_text().split()


REFUSING = """
    import sys


    class Refusing:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name in ("torch", "ncu_report", "nvtx", "pynvml", "triton"):
                raise ImportError(f"{name} is refused")


    sys.meta_path.insert(0, Refusing)
"""


@pytest.mark.parametrize("options", [(), ("-p", "xdist.plugin", "-n1")])
def test_tests_are_measured_where_a_finder_refuses_modules(
    project: Project, options: tuple[str, ...]
) -> None:
    """A refused module is one that is not installed, as for the tests themselves."""
    project.write(TESTS)
    project.write(REFUSING, "conftest.py")
    ended = project.spawn("-q", *options)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "5 passed" in ended.stdout


UNDECIDED = """
    import contextlib

    def fail():
        raise ValueError("no result")

    def test_measures_nothing(gpuperf):
        pass

    def test_catches_the_exception(gpuperf):
        with contextlib.suppress(ValueError):
            gpuperf.measure(fail)

    def test_lacks_a_value(gpuperf):
        gpuperf.measure(dir).energy
"""


@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
@pytest.mark.parametrize("options", [(), ("-p", "xdist.plugin", "-n1")])
def test_no_file_is_opened_to_say_that_a_test_lacks_a_value(
    project: Project, options: tuple[str, ...], *, strict: bool
) -> None:
    """A fixture of the test may still hold all descriptors when its outcome is told."""
    project.write(UNDECIDED)
    project.write(WATCH, "conftest.py")
    several = ("--gpuperf-strict",) if strict else ()
    ended = project.spawn("-q", "-p", "no:cacheprovider", *several, *options)

    assert ("3 failed" if strict else "3 skipped") in ended.stdout, ended.stdout
    names = project.path.glob("opened-*")
    opened = "".join(path.read_text() for path in names).split()
    assert "import" not in opened


@pytest.mark.parametrize("scope", ["function", "module", "session"])
@pytest.mark.parametrize("error", ["FileNotFoundError", "RuntimeError"])
def test_tests_without_files_are_measured_stored_and_compared(
    project: Project, scope: str, error: str
) -> None:
    """The same machine, baseline and samples as of any other run."""
    project.write(TESTS)
    assert project.spawn("-q", "--gpuperf-update=all").returncode == 0
    project.write(TAKEN.format(scope=scope, error=error), "conftest.py")
    ended = project.spawn("-q", "--gpuperf-update=all", "--gpuperf-json=run.json")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = project.report()
    cores = {
        str(facts)
        for record in report["records"]
        if record["kind"] == "measure"
        for facts in record["facts"].values()
    }
    assert len(cores) == 1
    assert all(
        record["series"] for record in report["records"] if record["kind"] == "measure"
    )
    (stored,) = (project.path / ".gpuperf").glob("*/test_it.json")
    assert stored.read_text("utf-8").count('"started_unix_s"') == 2


CLOSED = """
    import os


    def work():
        return sum(range(2000))

    def test_first(gpuperf):
        gpuperf.measure(work)

    def test_closes_everything(gpuperf):
        gpuperf.measure(work)
        os.closerange(3, 64)
        for number in range(20):
            os.open(f"victim-{number}", os.O_WRONLY | os.O_CREAT)

    def test_last(gpuperf):
        gpuperf.measure(work)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pytest itself must survive it")
def test_samples_survive_a_test_that_closes_every_descriptor(project: Project) -> None:
    """They do not get into the files that have the numbers now."""
    project.write(CLOSED)
    # The lock of the run's own folder is closed, too: another run would sweep the folder.
    (project.path / "tmp").mkdir()
    project.environment.setenv("TMPDIR", str(project.path / "tmp"))
    ended = project.spawn("-q", "-s", "--gpuperf-json=run.json")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    records = project.report()["records"]
    assert [bool(record["series"]) for record in records] == [True] * 3
    assert {path.stat().st_size for path in project.path.glob("victim-*")} == {0}


EXHAUSTED = """
    import resource


    def work():
        return sum(range(2000))

    def test_leaks(gpuperf):
        global limits
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        gpuperf.measure(work)

    def test_last(gpuperf):
        gpuperf.measure(work)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no such limit")
def test_tests_are_measured_where_no_descriptor_is_left(project: Project) -> None:
    """What was open before stays so."""
    project.write(EXHAUSTED)
    ended = project.spawn("-q", "-s", "--gpuperf-json=run.json")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    records = project.report()["records"]
    assert [bool(record["series"]) for record in records] == [True] * 2


ASSERTING = """
    import resource


    def work():
        return sum(range(2000))

    def test_asserts(gpuperf):
        perf = gpuperf.measure(work)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            assert perf.time > 10.0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    def test_lacks_a_value(gpuperf):
        perf = gpuperf.measure(work)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            assert perf.energy < 1.0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no such limit")
def test_asserts_and_missing_values_are_explained_without_descriptors(
    project: Project,
) -> None:
    """What explains them is loaded before any test runs."""
    project.write(ASSERTING)
    ended = project.spawn("-q", "--gpuperf-json=run.json")

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "1 failed, 1 skipped" in ended.stdout
    assert "test_asserts - assert time " in ended.stdout
    assert "Too many open files" not in ended.stdout
    (missed,) = project.report()["missed"]
    assert missed["key"]["test_id"].endswith("test_asserts")


LIMITED = """
    import resource

    import pytest


    def work():
        return sum(range(2000))

    @pytest.fixture
    def exhausted():
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        yield
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    @pytest.mark.gpuperf(limits="time <= 1 ns")
    def test_misses(gpuperf, exhausted):
        gpuperf.measure(work)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no such limit")
def test_limits_of_a_recording_are_judged_without_descriptors(project: Project) -> None:
    """What judges them is loaded before any test runs, as where they are measured."""
    project.write(LIMITED)
    for option in ("--gpuperf-record=kept", "--gpuperf-replay=kept"):
        ended = project.spawn("-q", "-s", option)

        assert ended.returncode == 1, ended.stdout + ended.stderr
        assert "judged 1 of 1: 1 failed" in ended.stdout
