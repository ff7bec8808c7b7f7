"""What the plugin costs a project that has it installed and does not use it.

Builds this checkout's wheel into a fresh environment and measures there, by turns:

* the import of the plugin on top of pytest's, with and without byte code;
* `pytest --collect-only -q` of one file, also where Python may not write byte code:
  what pytest keeps of plugins between two starts is then made anew in each; with valgrind
  on PATH, its instructions are counted, too;
* 1,000 trivial tests.

"off" is `-p no:gpuperf`, "absent" is the same environment without the package: pytest
also lists the files of every installed plugin, loaded or not.

    python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from _pairs import (
    CHECKOUT,
    Variant,
    environment,
    new_environment,
    pip,
    print_table,
    print_values,
    rounds,
)

COLLECT_GOAL, THOUSAND_GOAL = 1.03, 1.02
IMPORT_GOAL_S, COMPILE_GOAL_S = 0.005, 0.015
IMPORT = """
import time
import pytest
begin = time.perf_counter()
import pytest_gpuperf.plugin
print(time.perf_counter() - begin)
"""
ONE = "def test_one():\n    assert True\n"
THOUSAND = """
import pytest

@pytest.mark.parametrize("number", range(1000))
def test_number(number):
    assert number >= 0
"""


def main() -> int:
    """Measure all; return 0 where every goal was reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with_it = new_environment(folder / "with", str(CHECKOUT))
        without = new_environment(folder / "without", str(CHECKOUT))
        pip(without, "uninstall", "--yes", "pytest-gpuperf")
        reached = [
            importing(folder, with_it, options.rounds),
            started(folder, with_it, without, options.rounds),
            thousand(folder, with_it, without, options.rounds),
        ]
    return 0 if all(reached) else 1


def started(folder: Path, with_it: Path, without: Path, count: int) -> bool:
    """Compare the collection of one test."""
    place = project(folder / "one", ONE)
    arguments = ("--collect-only", "-q")
    title = "pytest --collect-only -q"
    unwritten = sides(
        place, with_it, without, *arguments, set_env={"PYTHONDONTWRITEBYTECODE": "1"}
    )
    costs = rounds(sides(place, with_it, without, *arguments), count)
    reached = print_table(title, costs, "off", goals={"installed": COLLECT_GOAL})
    print_counts(sides(place, with_it, without, *arguments))
    print_table(f"{title}, no byte code written", rounds(unwritten, count), "off")
    return reached


def print_counts(starts: Sequence[Variant]) -> None:
    """
    Print how many instructions each start takes, by valgrind; nothing where it is missing.

    They are the same to a millionth from run to run, where times differ by a tenth.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return
    counts = {start.name: instruction_count(valgrind, start) for start in starts}
    for name, count in counts.items():
        ratio = count / counts["absent"]
        print(f"{name:18}  {count / 1e6:7.1f} M instructions  {ratio:.3f}")


def instruction_count(valgrind: str, start: Variant) -> int:
    """Return how many instructions a process takes, by callgrind."""
    tool = [valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    ended = subprocess.run(
        [*tool, *start.argv],
        cwd=start.folder,
        env=environment({"PYTHONHASHSEED": "0", **start.set_env}),
        check=True,
        capture_output=True,
        text=True,
    )
    return int(re.findall(r"Collected : (\d+)", ended.stderr)[-1])


def thousand(folder: Path, with_it: Path, without: Path, count: int) -> bool:
    """Compare 1,000 tests that do nothing."""
    place = project(folder / "thousand", THOUSAND)
    costs = rounds(sides(place, with_it, without, "-q"), count)
    return print_table(
        "1,000 trivial tests", costs, "off", goals={"installed": THOUSAND_GOAL}
    )


def importing(folder: Path, python: Path, count: int) -> bool:
    """Time the import of the plugin on top of pytest, compiled before and not."""
    place = project(folder / "import", ONE)
    bare = folder / "bare"
    package = installed_package(python)
    shutil.copytree(
        package, bare / package.name, ignore=shutil.ignore_patterns("__pycache__")
    )
    argv = [str(python), "-c", IMPORT]
    uncompiled = {"PYTHONPATH": str(bare), "PYTHONDONTWRITEBYTECODE": "1"}
    costs = rounds(
        [
            Variant(name="compiled", argv=argv, folder=place, value=float),
            Variant(
                name="not", argv=argv, folder=place, value=float, set_env=uncompiled
            ),
        ],
        count,
    )
    title = "import pytest_gpuperf.plugin after pytest"
    return all(
        [
            print_values(f"{title}, compiled", costs["compiled"], IMPORT_GOAL_S),
            print_values(f"{title}, no byte code", costs["not"], COMPILE_GOAL_S),
        ]
    )


def sides(
    place: Path,
    with_it: Path,
    without: Path,
    *arguments: str,
    set_env: Mapping[str, str] | None = None,
) -> list[Variant]:
    """Return the four ways to start the same pytest."""
    plain = ["-m", "pytest", *arguments]
    off = [str(with_it), *plain, "-p", "no:gpuperf"]
    starts = {
        "off": off,
        "control: off again": off,
        "installed": [str(with_it), *plain],
        "absent": [str(without), *plain],
    }
    return [
        Variant(name=name, argv=argv, folder=place, set_env=set_env or {})
        for name, argv in starts.items()
    ]


def project(folder: Path, text: str) -> Path:
    """Return a folder with one test file."""
    folder.mkdir()
    (folder / "test_it.py").write_text(text, "utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    return folder


def installed_package(python: Path) -> Path:
    """Return the folder of the package in an environment."""
    text = "import pytest_gpuperf; print(pytest_gpuperf.__path__[0])"
    argv = [python, "-c", text]
    found = subprocess.run(
        argv, check=True, capture_output=True, text=True, env=environment()
    )
    return Path(found.stdout.strip())


if __name__ == "__main__":
    sys.exit(main())
