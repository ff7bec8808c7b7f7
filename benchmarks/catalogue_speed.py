"""How fast a name is checked against a chip, and how long the first answer takes.

Each round is a process of its own, so that nothing is loaded yet; the median of the
rounds counts.

    python benchmarks/catalogue_speed.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

ROUNDS = 7
FIRST_GOAL_S = 0.5
CHECK_GOAL_S = 50e-6
ONE_ROUND = """
import json, time
begin = time.perf_counter()
from pytest_gpuperf.collect.ncu.catalogue import Catalogue
catalogue = Catalogue("GH100")
assert catalogue.check("dram__bytes.sum").known
first = time.perf_counter() - begin
names = [f"{each.base}.sum" for each in catalogue.entries() if each.kind == "counter"]

begin = time.perf_counter()
assert all(catalogue.check(name).known for name in names)
check = (time.perf_counter() - begin) / len(names)

begin = time.perf_counter()
assert not catalogue.check("dram__bytes_reed.sum").known
unknown = time.perf_counter() - begin

begin = time.perf_counter()
one = catalogue.cost(["dram__bytes.sum"])
single = time.perf_counter() - begin

wanted = names[:: len(names) // 22][:22]
begin = time.perf_counter()
many = catalogue.cost(wanted)
several = time.perf_counter() - begin
print(json.dumps([first, check, unknown, single, several]))
"""
QUESTIONS = (
    ("the first answer of a process", 1e3, "ms"),
    ("the check of a known name", 1e6, "us"),
    ("an unknown name with suggestions", 1e3, "ms"),
    ("the passes of one metric", 1e3, "ms"),
    ("the passes of 22 metrics, and of each alone", 1e3, "ms"),
)


def main() -> int:
    """Print the medians; return 0 where both goals are reached."""
    rounds = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", ONE_ROUND], check=True, capture_output=True
            ).stdout
        )
        for _ in range(ROUNDS)
    ]
    medians = [statistics.median(values) for values in zip(*rounds, strict=True)]
    for (question, scale, unit), median in zip(QUESTIONS, medians, strict=True):
        print(f"{question:45} {median * scale:8.1f} {unit}")
    print(
        f"goals: {FIRST_GOAL_S * 1e3:.0f} ms first, {CHECK_GOAL_S * 1e6:.0f} us a name"
    )
    return 0 if medians[0] < FIRST_GOAL_S and medians[1] < CHECK_GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main())
