"""A suite of tests with hardware counters: how often is a profiler started, what does it take?

Nsight Compute is played by the double of the tests, which runs the program and profiles
nothing: what is measured is the plugin's own part (one fresh pytest under it, ranges,
the report read back, the cache).

    python benchmarks/counting_speed.py
    python benchmarks/counting_speed.py --tests 50 200 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _pairs import CHECKOUT, environment

sys.path.append(str(CHECKOUT / "tests"))
from fakes import fake_ncu_report, fake_nvtx

SUITE = """
import nvtx
import pytest

{marker}
@pytest.mark.parametrize("number", range({count}))
def test_gemm(gpuperf, number):
    perf = gpuperf.measure(lambda: nvtx.launch("gemm"))
    assert {asserted}
"""
MARKED = '@pytest.mark.gpuperf(counters=["dram__bytes.sum"], iterations=3)'
PLAIN = "@pytest.mark.gpuperf(iterations=3)"
VALUES = {"dram__bytes.sum": [64.0, "byte"], "gpu__time_duration.sum": [9.0, "ns"]}


class Bench:
    """A folder with a suite, and a machine that has an ncu of ours."""

    def __init__(self, folder: Path, count: int) -> None:
        site = fake_nvtx.install(folder / "site")
        fake_ncu_report.install(site)
        self.folder = folder
        self.starts = folder / "starts"
        self.cache = folder / "cache"
        self.set_env = {
            "PYTHONPATH": os.pathsep.join((str(CHECKOUT / "src"), str(site))),
            "PATH": f"{CHECKOUT / 'tests' / 'fakes'}{os.pathsep}{os.environ['PATH']}",
            # an installed one would be loaded beside that of this checkout
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "GPUPERF_CACHE_DIR": str(self.cache),
            "GPUPERF_LOCK_DIR": str(folder / "locks"),
            "FAKE_NCU_STARTS": str(self.starts),
            "FAKE_NCU_VALUES": json.dumps(VALUES),
        }
        counted = 'perf["dram__bytes.sum"] == 64'
        for name, marker, asserted in (
            ("test_counted.py", MARKED, counted),
            ("test_plain.py", PLAIN, "perf.time > 0"),
        ):
            text = SUITE.format(marker=marker, count=count, asserted=asserted)
            (folder / name).write_text(text, encoding="utf-8")

    def run(self, name: str) -> tuple[float, int]:
        """Run one file; return how long it took [s] and how often ncu was started."""
        self.starts.unlink(missing_ok=True)
        began_s = time.perf_counter()
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                *("-p", "pytest_gpuperf.plugin", "--gpuperf-collectors=host,ncu", name),
            ],
            cwd=self.folder,
            env=environment(self.set_env),
            capture_output=True,
            text=True,
            check=False,
        )
        took_s = time.perf_counter() - began_s
        if ended.returncode:
            raise SystemExit(ended.stdout + ended.stderr)
        text = self.starts.read_text(encoding="utf-8") if self.starts.exists() else ""
        return took_s, text.count("\n")


def main() -> int:
    """Print a table; return 0 where one start was enough for each suite."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tests", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    good = True
    print("| tests | run | ncu starts | median s | least s |")
    print("|---|---|---|---|---|")
    for count in asked.tests:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder), count)
            found: dict[str, list[tuple[float, int]]] = {}
            for _ in range(asked.rounds):
                shutil.rmtree(bench.cache, ignore_errors=True)
                for name, file in (
                    ("no counters", "test_plain.py"),
                    ("counted", "test_counted.py"),
                    ("found in the cache", "test_counted.py"),
                ):
                    found.setdefault(name, []).append(bench.run(file))
        for name, runs in found.items():
            times = [took_s for took_s, _ in runs]
            starts = {number for _, number in runs}
            good = good and starts == ({1} if name == "counted" else {0})
            middle = statistics.median(times)
            shown = ", ".join(map(str, sorted(starts)))
            print(f"| {count} | {name} | {shown} | {middle:.2f} | {min(times):.2f} |")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
