"""How fast counters become metrics: 10,000 launches, all that is derived of each.

Run it as a script; it fails when the target is missed. Building the launches is not
counted.
"""

from __future__ import annotations

import random
import sys
import time

from pytest_gpuperf.compute.derive import (
    FORMULAS,
    derived,
    launch_occupancy,
    stall_shares,
)
from pytest_gpuperf.compute.limiter import analyse
from pytest_gpuperf.model.counters import STALLS, STANDARD

LAUNCHES = 10_000
QUANTITIES = 30  # at least so many of each launch
SECONDS = 1.0
_ROUNDS = 3  # the best counts: other programs only ever add time


def launches(count: int) -> list[dict[str, float]]:
    """Return launches that have every counter, no two alike."""
    draw = random.Random(1)  # noqa: S311 - a simulation
    return [
        {
            name: draw.random() if name.endswith("_fraction") else draw.uniform(1, 1e6)
            for name in STANDARD
        }
        for _ in range(count)
    ]


def best_seconds(given: list[dict[str, float]]) -> tuple[float, float]:
    """Return the best times [s] for the quantities and for what limits each launch."""
    quantities, limiters = [], []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        found = [
            (derived(values), stall_shares(values), launch_occupancy(values))
            for values in given
        ]
        quantities.append(time.perf_counter() - start)
        assert all(shares is not None for _, shares, _ in found)
        start = time.perf_counter()
        for values in given:
            analyse(values)
        limiters.append(time.perf_counter() - start)
    return min(quantities), min(limiters)


def main() -> int:
    """Print the times; return 0 where the target is met."""
    count = len(FORMULAS) + len(STALLS)
    derive_s, analyse_s = best_seconds(launches(LAUNCHES))
    print(
        f"{LAUNCHES} launches x {count} quantities: {derive_s:.2f} s; "
        f"what limits each: {analyse_s:.2f} s (goal {SECONDS:.0f} s for the quantities)"
    )
    assert count >= QUANTITIES
    return 0 if derive_s < SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
