"""At which session a slow change is said to have drifted.

Histories are simulated, and the package's own rule looks at each of them after each session,
as a run with four gated tests and a limit of 5 % does.

    python benchmarks/drift_sessions.py
"""

from __future__ import annotations

import argparse
import math
import random
from statistics import median

from pytest_gpuperf.compute.drift import drift_level, drift_of

TESTS = 4
LIMIT = 0.05
LEAST = math.log1p(2 * LIMIT)
SPREADS = (0.01, 0.02, 0.05)
SESSIONS = 24


def steps(step: float, count: int) -> list[float]:
    """Return levels that grow by a step in each of some sessions, on a log scale."""
    return [min(place, count) * math.log1p(step) for place in range(SESSIONS)]


LEVELS = {
    "+2 % x 20": steps(0.02, 20),
    "+3 % x 12": steps(0.03, 12),
    "halved for 5 sessions, and back": [
        math.log(0.5) if 8 <= place < 13 else 0.0 for place in range(SESSIONS)
    ],
    "one step of +8 %": [0.08 * (place >= 12) for place in range(SESSIONS)],
    "steady": [0.0] * SESSIONS,
    "bimodal: 1 or 1.3 by chance": [0.0] * SESSIONS,
}


def first_said(draw: random.Random, name: str, spread: float) -> int | None:
    """Return the session, from 1, in which any of the tests has drifted, or None."""
    modes = (0.0, math.log(1.3)) if name.startswith("bimodal") else (0.0,)
    # The last is a change of all tests.
    moved_count = TESTS if name == "+3 % x 12" else 1
    histories: list[list[float]] = [[] for _ in range(TESTS)]
    for place, level in enumerate(LEVELS[name]):
        for number, history in enumerate(histories):
            moved = level if number < moved_count else 0.0
            history.append(moved + draw.choice(modes) + draw.gauss(0, spread))
        drifts = (
            drift_of(history, least=LEAST, level=drift_level(TESTS))
            for history in histories
        )
        if any(drift is not None and drift.log_change > 0 for drift in drifts):
            return place + 1
    return None


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=400)
    count = parser.parse_args().histories
    print(f"{'levels':34} {'spread':>6} {'said':>6}  session: median, 5 to 95 %")
    for name in LEVELS:
        for spread in SPREADS:
            draw = random.Random(1)  # noqa: S311 - a simulation
            every = [first_said(draw, name, spread) for _ in range(count)]
            said = sorted(place for place in every if place is not None)
            ends = ""
            if said:
                low, high = said[len(said) // 20], said[-1 - len(said) // 20]
                ends = f"{median(said):.0f}, {low} to {high}"
            print(f"{name:34} {spread:6.0%} {len(said) / count:6.1%}  {ends}")


if __name__ == "__main__":
    main()
