"""Rules of collect.loaded_files: what a process used is known when it has ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_gpuperf.collect.loaded_files import (
    FileKind,
    FileRecording,
    LoadedFile,
    content_digest,
    read,
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and glibc")


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Recorded:
    """A folder with a program `t.py`, and what it used when it was run."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.root.mkdir()
        self.scratch = folder / "recordings"
        self.status = 0

    def run(
        self, text: str, *options: str, env: Mapping[str, str] | None = None
    ) -> tuple[LoadedFile, ...] | None:
        """Run a text as `t.py`; return what it used."""
        write(self.root, {"t.py": text})
        recording = FileRecording(self.scratch, self.root)
        base = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
        done = subprocess.run(
            [sys.executable, *options, "t.py", "1"],
            cwd=self.root,
            env={**base, **recording.variables(base)},
            check=False,
        )
        self.status = done.returncode
        files = recording.files((*options, "t.py", "1"))
        shutil.rmtree(self.scratch)
        return files

    def names(self, text: str, **how: Mapping[str, str]) -> dict[str, FileKind]:
        """Return what a text used below the root, by name."""
        files = self.run(text, **how)
        assert files is not None
        assert self.status == 0
        inside = [f for f in files if f.path.startswith(f"{self.root}{os.sep}")]
        return {Path(f.path).relative_to(self.root).as_posix(): f.kind for f in inside}


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def test_modules_are_recorded_however_deep_and_late(recorded: Recorded) -> None:
    """Imported by another module, in a function, by a name that is put together."""
    write(
        recorded.root,
        {
            "a/__init__.py": "",
            "a/b.py": "import c",
            "c.py": "",
            "late.py": "",
            "plugin_x.py": "",
            "unused.py": "",
        },
    )
    text = """
import importlib
import a.b
def f():
    import late
f()
importlib.import_module("plugin_" + "x")
"""

    found = recorded.names(text)

    modules = ("a/__init__.py", "a/b.py", "c.py", "late.py", "plugin_x.py")
    assert {n for n, kind in found.items() if kind is FileKind.MODULE} == {*modules}


def test_a_module_has_its_name(recorded: Recorded) -> None:
    """The same file may be two modules; whoever compares trees needs to know which."""
    write(recorded.root, {"a/b.py": ""})

    files = recorded.run("import a.b")

    assert files is not None
    assert {f.name for f in files if f.path.endswith("b.py")} >= {"a.b"}


@pytest.mark.parametrize("unloaded", [False, True])
def test_a_module_that_was_unloaded_is_recorded(
    recorded: Recorded, *, unloaded: bool
) -> None:
    """Its source was opened, or its byte code was."""
    write(recorded.root, {"a.py": ""})
    env = {"PYTHONDONTWRITEBYTECODE": ""}
    text = "import sys, a\ndel sys.modules['a']"

    first = recorded.names(text, env=env)
    again = recorded.names(text if unloaded else "import a", env=env)

    assert "a.py" in first
    assert "a.py" in again
    assert not any("__pycache__" in name for name in again)


@pytest.mark.parametrize(
    "call",
    [
        "open('d/x.json').read()",
        "open(b'd/x.json', 'rb').read()",
        "open('d/x.json', 'r+').close()",
        "pathlib.Path('d/x.json').read_text()",
        "os.close(os.open('d/x.json', os.O_RDONLY))",
        "os.chdir('d'); open('x.json').close()",
        "subprocess.run(['true', 'd/x.json'])",
        "subprocess.run('true d/x.json', shell=True)",
        "subprocess.run(['true', 'x.json'], cwd='d')",
    ],
)
def test_what_is_read_below_the_root_is_recorded(recorded: Recorded, call: str) -> None:
    """However it is opened; also by a program that is told its name, as a compiler is."""
    write(recorded.root, {"d/x.json": "{}", "d/other.json": "{}"})

    found = recorded.names(f"import os, pathlib, subprocess\n{call}")

    assert found == {"t.py": FileKind.OPENED, "d/x.json": FileKind.OPENED}


@pytest.mark.parametrize(
    "call",
    [
        "open('out.json', 'w').close(); open('out.json').close()",
        "open('out.json', 'a').close()",
        "open('x', 'w').close(); os.replace('x', 'out.json'); open('out.json')",
        "open('gone', 'r') if os.path.exists('gone') else None",
        "open('/dev/null').close(); os.listdir('.')",
    ],
)
def test_what_the_process_writes_is_not_recorded(recorded: Recorded, call: str) -> None:
    """Nor what is not there, or lies elsewhere."""
    assert recorded.names(f"import os\n{call}") == {"t.py": FileKind.OPENED}


def test_the_program_is_not_disturbed(recorded: Recorded) -> None:
    """Its path and arguments are its own, and a failing open fails as it did."""
    text = """
import sys
assert not any("recordings" in entry for entry in sys.path), sys.path
assert sys.argv == ["t.py", "1"]
for path in ("no", "a\\0b", "", 10**6):
    try:
        open(path)
    except (OSError, ValueError, OverflowError):
        pass
    else:
        raise AssertionError(path)
"""
    assert recorded.names(text) == {"t.py": FileKind.OPENED}


def test_a_sitecustomize_of_the_environment_still_runs(
    recorded: Recorded, tmp_path: Path
) -> None:
    """It would be found behind ours on the path."""
    write(tmp_path / "site", {"sitecustomize.py": "import sys; sys.mine = 1"})
    text = "import sys, sitecustomize; assert sys.mine; assert sitecustomize.__file__"

    assert recorded.run(text, env={"PYTHONPATH": str(tmp_path / "site")}) is not None
    assert recorded.status == 0


def test_processes_of_the_program_are_recorded(recorded: Recorded) -> None:
    """Those that it starts in the same environment and that end by themselves."""
    write(recorded.root, {"helper.py": "open('x.json')", "x.json": ""})
    text = "import subprocess, sys\nsubprocess.run([sys.executable, 'helper.py'])"

    assert recorded.names(text).keys() == {"t.py", "helper.py", "x.json"}


@pytest.mark.parametrize(
    "end",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(os.getpid(), signal.SIGSEGV)",
        "os.abort()",
        "os._exit(0)",
    ],
)
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Unix")
def test_a_process_that_dies_has_said_nothing(recorded: Recorded, end: str) -> None:
    """Whatever processes it had started and forked have ended well."""
    text = f"""
import os, signal, subprocess, sys
subprocess.run([sys.executable, "-c", "1"])
if os.fork() == 0:
    sys.exit()
os.wait()
{end}
"""
    assert recorded.run(text) is None


def test_a_program_that_fails_has_said_what_it_used(recorded: Recorded) -> None:
    """A traceback is an end like any other."""
    assert recorded.run("raise SystemExit(3)") is not None
    assert recorded.status == 3


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_a_python_that_ignores_its_environment_says_nothing(
    recorded: Recorded, option: str
) -> None:
    """That is noticed: no files are not an empty list of them."""
    assert recorded.run("", option) is None
    assert recorded.status == 0


@linux
def test_a_library_that_ctypes_loads_is_recorded(recorded: Recorded) -> None:
    """And one that was unloaded again."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    write(recorded.root, {"own.c": "int own(void) { return 1; }"})
    argv = [compiler, "-shared", "-fPIC", "-o", "libown.so", "own.c"]
    subprocess.run(argv, cwd=recorded.root, check=True)

    found = recorded.names("import ctypes; ctypes.CDLL('./libown.so')")

    assert found["libown.so"] is FileKind.LIBRARY


def test_the_folders_of_installed_packages_are_recorded(recorded: Recorded) -> None:
    """What is installed in them is part of what ran."""
    files = recorded.run("")

    assert files is not None
    folders = {f.path for f in files if f.kind is FileKind.PACKAGES}
    assert os.path.realpath(Path(pytest.__file__).parents[1]) in folders


# ------------------------------------------------------------------ digests


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    """A library of a framework has gigabytes: its size and time count."""
    path = tmp_path / "libtorch_cuda.so"
    with path.open("wb") as stream:
        stream.truncate(64 << 20)
    os.utime(path, (1, 1))
    digest = content_digest(path)
    with path.open("r+b") as stream:
        stream.write(b"x")
    touched = content_digest(path)
    os.utime(path, (1, 1))

    assert content_digest(path) == digest != touched


def test_a_file_below_that_counts_by_its_content(tmp_path: Path) -> None:
    """Its time does not."""
    path = tmp_path / "a.py"
    path.write_text("1")
    digest = content_digest(path)
    os.utime(path, (1, 1))
    assert content_digest(path) == digest
    path.write_text("2")
    os.utime(path, (1, 1))

    assert content_digest(path) not in {digest, None}


def test_what_is_not_there_has_no_digest(tmp_path: Path) -> None:
    """Nor has a name that no file can have."""
    assert content_digest(tmp_path / "no") is None
    assert content_digest(tmp_path / ("x" * 5000)) is None


def test_a_step_comes_before_the_program(tmp_path: Path) -> None:
    """A module of the parent's, loaded by its path, with the arguments it was given."""
    step = tmp_path / "step.py"
    step.write_text("import sys\ndef start(name): sys.path.insert(0, name)\n")
    recording = FileRecording(tmp_path / "r", None, first=[(str(step), ("/first",))])

    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(sys.path)"],
        env={**os.environ, **recording.variables({})},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )

    assert "'/first'" in done.stdout
    assert str(tmp_path / "r") not in done.stdout


def test_without_a_root_only_loaded_files_are_recorded(tmp_path: Path) -> None:
    """No audit hook slows the program down."""
    (tmp_path / "data").write_text("x")
    (tmp_path / "m.py").write_text("open('data').read()")
    recording = FileRecording(tmp_path / "r", None)

    subprocess.run(
        [sys.executable, "-c", "import sys; sys.path.insert(0, ''); import m"],
        cwd=tmp_path,
        env={**os.environ, **recording.variables({})},
        check=True,
    )

    ((_, files),) = read(tmp_path / "r")
    kinds = {file.path: file.kind for file in files}
    assert kinds[str(tmp_path / "m.py")] is FileKind.MODULE
    assert str(tmp_path / "data") not in kinds
