"""The cache of ncu's values between processes, and what a run of pytest finds in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from fakes import fake_ncu_report, fake_nvtx
from fakes.project import HUNG_S
from pytest_gpuperf.collect.ncu.store import EntryStore

FAKES = Path(__file__).parents[1] / "fakes"
GIT = shutil.which("git") or "git"
PROCESSES = 8

VALUES = """
import os, sys, time
from pathlib import Path
from pytest_gpuperf.collect.ncu.store import EntryStore

store, key, made = EntryStore(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3])
with store.lock(key, timeout_s=60):
    content = store.get("values", key)
    if content is None:
        with made.open("a") as file:
            file.write("made\\n")
        time.sleep(0.3)
        content = store.put("values", key, {"x": b"x" * 100_000})
assert content.files == {"x": b"x" * 100_000}
"""

REPORTS = """
import sys
from pathlib import Path
from pytest_gpuperf.collect.ncu.cache import Cache
from pytest_gpuperf.collect.ncu.command import Command

folder, output = Path(sys.argv[1]), sys.argv[2]
command = Command(executable=sys.executable, args=("t.py",), output=output)
with Cache(folder / "cache") as cache:
    entry = cache.run(command, cwd=folder)
assert (folder / f"{output}.ncu-rep").stat().st_size > 0
print("hit" if entry.cached else "miss")
"""


def at_once(code: str, arguments: list[list[str]], env: dict[str, str]) -> list[str]:
    """Start a process for each of the arguments; return what they print."""
    path = os.pathsep.join(filter(None, sys.path))
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, *each],
            env={**os.environ, "PYTHONPATH": path, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for each in arguments
    ]
    said = []
    for process in started:
        output, errors = process.communicate(timeout=HUNG_S)
        assert process.returncode == 0, errors
        said.append(output.strip())
    return said


def test_eight_processes_make_values_once(tmp_path: Path) -> None:
    """On a folder that nobody has made yet: one makes them, seven wait and have them."""
    made = tmp_path / "made"

    at_once(VALUES, [[str(tmp_path / "cache"), "a" * 64, str(made)]] * PROCESSES, {})

    assert made.read_text() == "made\n"


def test_eight_processes_profile_once(tmp_path: Path) -> None:
    """Each with an output of its own: one runs ncu, and all have their report."""
    (tmp_path / "t.py").write_text("")
    starts = tmp_path / "starts"
    env = {
        "PATH": f"{FAKES}{os.pathsep}{os.environ['PATH']}",
        "FAKE_NCU_STARTS": str(starts),
        "GPUPERF_LOCK_DIR": str(tmp_path / "leases"),
    }

    said = at_once(REPORTS, [[str(tmp_path), f"r{n}"] for n in range(PROCESSES)], env)

    assert sorted(said) == ["hit"] * (PROCESSES - 1) + ["miss"]
    assert len(starts.read_text().splitlines()) == 1
    reports = {path.read_bytes() for path in tmp_path.glob("*.ncu-rep")}
    assert len(reports) == 1


# ------------------------------------------------------------------ whole runs

SUITE = {
    "pytest.ini": "[pytest]\npythonpath = src\n",
    "src/kernels/__init__.py": "from kernels.deep import launch",
    "src/kernels/deep.py": "import ctypes, nvtx\n"
    "from kernels.constants import BYTES\n"
    "ctypes.CDLL('./libown.so')\n"
    "def launch():\n"
    "    nvtx.launch('gemm', **{'dram__bytes.sum': [BYTES, 'byte']})\n",
    "src/kernels/constants.py": "BYTES = 64.0",
    "src/kernels/k.cu": '#include "k.cuh"',
    "src/kernels/k.cuh": "",
    "own.c": "int own(void) { return 1; }",
    "tests/sizes.json": "[1]",
    "tests/conftest.py": "import json\nSIZES = json.load(open('tests/sizes.json'))",
    "tests/test_a.py": """
import pytest
@pytest.mark.gpuperf(counters=["dram__bytes.sum"])
def test_a(gpuperf):
    from kernels import launch
    open("src/kernels/" + "k.cu").close()
    assert gpuperf.measure(launch)["dram__bytes.sum"] > 0
""",
    "tests/test_b.py": """
import pytest
@pytest.mark.gpuperf(counters=["dram__bytes.sum"])
def test_b(gpuperf):
    from kernels import launch
    assert gpuperf.measure(launch)["dram__bytes.sum"] > 0
""",
    "site/flash-1.dist-info/RECORD": "flash.py,sha256=1,1",
}


class Suite:
    """A project with counters, run by pytest under the double of ncu."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.write(SUITE)
        site = fake_nvtx.install(folder / "doubles")
        fake_ncu_report.install(site)
        self.starts_file = folder / "starts"
        self.store = EntryStore(folder / "cache")
        path = [str(site), str(self.folder / "site"), *filter(None, sys.path)]
        self.env = {
            **os.environ,
            "PATH": f"{FAKES}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(path),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "1",  # two writes in one second share byte code
            "FAKE_NCU_STARTS": str(self.starts_file),
            "FAKE_NCU_VALUES": '{"gpu__time_duration.sum": [1000, "ns"]}',
            "GPUPERF_CACHE_DIR": str(self.store.folder),
            "GPUPERF_LOCK_DIR": str(folder / "locks"),
        }

    def write(self, files: Mapping[str, str]) -> None:
        """Write files by name."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run pytest; return how many processes ncu has started for it, and what it said."""
        before = self.starts
        plugin = ("-p", "pytest_gpuperf.plugin", "-p", "no:cacheprovider")
        options = ("--gpuperf-collectors=host,ncu", *arguments)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *plugin, *options],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "2 passed" in done.stdout or "-k" in arguments, done.stdout
        return self.starts - before, done.stdout

    @property
    def files(self) -> set[str]:
        """The names of all files that values depend on."""
        sets = self.store.folder.glob("files/*/*/sets.json")
        return {
            name
            for path in sets
            for names in json.loads(path.read_bytes())
            for name in names
        }

    @property
    def starts(self) -> int:
        """How often ncu has profiled."""
        exists = self.starts_file.exists()
        return len(self.starts_file.read_text().splitlines()) if exists else 0


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    suite = Suite(tmp_path)
    argv = ["cc", "-shared", "-fPIC", "-o", "libown.so", "own.c"]
    subprocess.run(argv, cwd=suite.folder, check=True)
    return suite


@pytest.mark.skipif(sys.platform != "linux", reason="looks at mapped libraries")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_a_run_counts_again_what_has_changed(suite: Suite) -> None:
    """A run finds what the run before counted, until a file of it is another one.

    That any file of a set counts by its content is proven beside the sets.
    """
    assert suite.run()[0] == 1
    expected = {
        "src/kernels/constants.py",
        "src/kernels/k.cuh",
        "tests/sizes.json",
        "tests/conftest.py",
        "libown.so",
        "site",
    }
    assert suite.files >= expected
    os.utime(suite.folder / "src/kernels/deep.py", (1, 1))
    suite.write({"notes.py": "", "tests/test_c.py": "", "tests/deep/conftest.py": ""})
    assert suite.run()[0] == 0  # none of them is on the way to a test

    for name in ("src/kernels/constants.py", "pytest.ini"):
        with (suite.folder / name).open("ab") as stream:
            stream.write(b"\n")
        assert suite.run()[0] == 1, name
    suite.write({"conftest.py": ""})
    assert suite.run()[0] == 1
    suite.env["FAKE_NCU_VERSION"] = "2026.1.0.0"
    assert suite.run()[0] == 1
    assert suite.run("--gpuperf-ncu-clocks=base")[0] == 1
    suite.env["CUDA_VISIBLE_DEVICES"] = "1"
    assert suite.run()[0] == 1
    assert suite.run()[0] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks at mapped libraries")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_a_changed_test_module_counts_its_own_tests(suite: Suite) -> None:
    """pytest imports all test modules, and a test depends on its own alone."""
    suite.run()
    with (suite.folder / "tests/test_a.py").open("a") as stream:
        stream.write("\n")
    count, output = suite.run()

    assert count == 1
    assert "counting 1 test under ncu" in output

    suite.write({"tests/test_b.py": SUITE["tests/test_b.py"] + "\nimport test_a"})
    assert suite.run()[0] == 1
    with (suite.folder / "tests/test_a.py").open("a") as stream:
        stream.write("\n")
    assert "counting 2 tests under ncu" in suite.run()[1]


@pytest.mark.skipif(sys.platform != "linux", reason="looks at mapped libraries")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_each_side_of_a_comparison_is_counted_once(suite: Suite) -> None:
    """Each of its four processes has the values: a test may assert on them."""
    suite.write({".gitignore": "__pycache__\n"})
    who = ("-c", "user.name=A", "-c", "user.email=a@localhost")
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "old"]):
        subprocess.run([GIT, *command], cwd=suite.folder, check=True)
    suite.write({"src/kernels/constants.py": "BYTES = 96.0"})
    gate = ("--gpuperf-against=HEAD", "--gpuperf-budget=1s")
    count, output = suite.run(*gate)

    assert count == len(("this run", "old side", "new side")), output
    assert "1 block in" in output
    assert "gave no value" not in output


@pytest.mark.skipif(sys.platform != "linux", reason="looks at mapped libraries")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_what_a_process_counted_that_died_is_not_cached(suite: Suite) -> None:
    """Its values are good for this run; what they depend on is not known."""
    suite.write(
        {
            "tests/conftest.py": """
import atexit, os, sys
if "GPUPERF_CHILD" in " ".join(os.environ):
    atexit.register(lambda: os._exit(0))
"""
        }
    )
    for _ in range(2):
        count, output = suite.run()

        assert count == 1
        assert "a process ended early" in " ".join(output.split())
    assert suite.store.entries() == ()
