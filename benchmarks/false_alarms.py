"""How often a suite that did not change fails, and how often a real change is found.

Suites of 200 tests are simulated, with the spreads that GPU machines show: of sessions, of
boards (which move whole classes of tests), of processes, of samples; with drift, outliers
and autotuned kernels. Our rule runs as it is, with its suspects, confirming processes and
controls; beside it stand three rules that others use on the samples of one process: 5 % on
the mean, a rank test (p < 0.05), and the intervals [min, third quartile] of nvbench.

Prints, for each kind of machine, false alarms per 100 runs of an unchanged suite, how many
of these runs have any (goal: <= 1), and the share of real changes that is found.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pytest_gpuperf.judge.case import Case, Confirmation, Stored
from pytest_gpuperf.judge.regression import first_look, settle
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import BoundClass, RecordKey, SessionValue
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.model.verdict import Outcome

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]
Measured = tuple[list[Floats], list[Booleans]]  # samples and choices of each process

TESTS = 200
SAMPLES = 100  # of a process
CONFIRM = 5  # fresh processes: the default of --gpuperf-confirm
CONTROLS = 8  # of each class
LIMIT = 0.05  # the default of --gpuperf-max-regression
EFFECTS = (0.02, 0.05, 0.10, 0.20)
CHANGED = 4  # tests of each effect in a suite with changes
RULES = ("ours", "mean +5 %", "rank test", "nvbench")

_CLASSES = tuple(BoundClass)
_SLOW_SHARE = 0.4  # of the processes of an autotuned test draw the slower kernel
_TUNED_SHARE = 0.3  # of the tests are autotuned, where any is


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """
    What differs when nothing changed; standard deviations are relative to the value.

    Attributes:
        name: What the table calls it.

        session: Between sessions, each test for itself.

        board: Between sessions, whole classes together.

        process: Between processes of a session.

        sample: Between samples of a process.

        unequal: Sigma of the log-normal factor by which tests differ in all of these.

        sessions: Stored ones.

        runs: Processes of each stored session and of the first measurement.

        drift: What a class moves between the suite and its confirming processes.

        outliers: Share of processes that are 5 to 30 % too slow.

        gap: How far two choices of an autotuned test are apart; 0: nothing is tuned.

        frozen: Whether a session draws each choice once, instead of each process.

        redrawn: Whether confirming processes draw anew all the same.

        seen: Whether the choice is recorded.
    """

    name: str
    session: float = 0.0
    board: float = 0.0
    process: float = 0.01
    sample: float = 0.005
    unequal: float = 0.0
    sessions: int = 5
    runs: int = 1
    drift: float = 0.0
    outliers: float = 0.0
    gap: float = 0.0
    frozen: bool = False
    redrawn: bool = True
    seen: bool = True


_BASE = Machine(name="process 1 %")
MACHINES = (
    replace(_BASE, name="process 1 %, 3 sessions", sessions=3),
    _BASE,
    replace(_BASE, name="process 1 %, 10 sessions", sessions=10),
    replace(_BASE, name="process 1 %, tests unequal", unequal=0.5),
    replace(_BASE, name="session 1 %", session=0.01),
    replace(_BASE, name="session 2 %, 3 sessions", session=0.02, sessions=3),
    replace(_BASE, name="session 2 %", session=0.02),
    replace(_BASE, name="session 2 %, 10 sessions", session=0.02, sessions=10),
    replace(_BASE, name="session 2 %, unequal", session=0.02, unequal=0.5),
    replace(_BASE, name="board 2 %", board=0.02),
    replace(_BASE, name="board 2 %, unequal", board=0.02, unequal=0.5),
    replace(_BASE, name="board 4 %, session 1 %", board=0.04, session=0.01),
    replace(_BASE, name="drift 2 % before confirming", drift=0.02),
    replace(_BASE, name="2 % of processes are outliers", outliers=0.02),
    replace(_BASE, name="autotuned 4 %, each process", gap=0.04),
    replace(_BASE, name="autotuned 8 %, each process", gap=0.08),
    replace(_BASE, name="autotuned 8 %, unseen", gap=0.08, seen=False),
    replace(_BASE, name="frozen by session 4 %", gap=0.04, frozen=True),
    replace(_BASE, name="frozen by session 8 %", gap=0.08, frozen=True),
    replace(_BASE, name="frozen 8 %, unseen", gap=0.08, frozen=True, seen=False),
    replace(
        _BASE,
        name="frozen 8 %, never redrawn, unseen",
        gap=0.08,
        frozen=True,
        redrawn=False,
        seen=False,
    ),
)


@dataclass(slots=True)
class Score:
    """Alarms of unchanged suites, suites with any, and real changes found, by rule."""

    alarms: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RULES, 0))
    spoiled: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RULES, 0))
    hits: dict[str, list[int]] = field(
        default_factory=lambda: {rule: [0] * len(EFFECTS) for rule in RULES}
    )


class Suite:
    """One suite on one machine, with its stored sessions and the current one."""

    def __init__(
        self, machine: Machine, draw: np.random.Generator, effects: Floats
    ) -> None:
        self.machine = machine
        self.draw = draw
        self.effects = effects  # of each test [log]
        self.scale = np.exp(draw.normal(0, machine.unequal, TESTS))
        self.base = draw.normal(-9, 1, TESTS)
        self.classes = np.arange(TESTS) % len(_CLASSES)
        self.tuned = (draw.random(TESTS) < _TUNED_SHARE) & (machine.gap > 0)
        self.response = draw.normal(1, 0.2, TESTS)  # boards do not move all tests alike

    def session(self) -> tuple[Floats, Booleans]:
        """Return what one session does to each test, and its frozen choices."""
        machine, draw = self.machine, self.draw
        shift = draw.normal(0, machine.board, len(_CLASSES))[self.classes]
        own = draw.normal(0, machine.session, TESTS) * self.scale
        return shift * self.response + own, draw.random(TESTS) < _SLOW_SHARE

    def process(
        self, level: Floats, choice: Booleans, *, frozen: bool
    ) -> tuple[Floats, Booleans]:
        """Return the log value of each test in one process, and its choices."""
        machine, draw = self.machine, self.draw
        if not frozen:
            choice = draw.random(TESTS) < _SLOW_SHARE
        noise = draw.normal(0, machine.process, TESTS) * self.scale
        spoiled = draw.random(TESTS) < machine.outliers
        outlier = np.where(spoiled, draw.uniform(0.05, 0.3, TESTS), 0.0)
        slower = np.where(self.tuned & choice, np.log1p(machine.gap), 0.0)
        return self.base + level + noise + outlier + slower, choice

    def samples(self, log_values: Floats) -> Floats:
        """Return the samples of one process, a row for each test."""
        spread = self.machine.sample * self.scale
        noise = self.draw.normal(0, 1, (TESTS, SAMPLES)) * spread[:, None]
        return np.exp(log_values[:, None] + noise)


def simulate(suite: Suite) -> dict[str, set[int]]:
    """Return which tests each rule calls slower."""
    machine = suite.machine
    stored = [_measured(suite, *suite.session()) for _ in range(machine.sessions)]
    level, choice = suite.session()
    level = level + suite.effects
    current = _measured(suite, level, choice)
    cases = [_case(suite, test, stored, current) for test in range(TESTS)]
    found = {"ours": _ours(suite, cases, level, choice)}
    return found | _others(stored[-1][0][-1], current[0][-1])


def _measured(suite: Suite, level: Floats, choice: Booleans) -> Measured:
    """Return the samples and the choices of each process of a session."""
    runs = [
        suite.process(level, choice, frozen=suite.machine.frozen)
        for _ in range(suite.machine.runs)
    ]
    return [suite.samples(values) for values, _ in runs], [made for _, made in runs]


def _value(runs: Sequence[Floats]) -> SessionValue:
    """Return one test's values from the samples of each process."""
    rank = 37  # of the 99 % order-statistic interval of 100 samples
    ordered = [np.sort(samples) for samples in runs]
    return SessionValue(
        metric="time",
        unit="s",
        source="cupti",
        run_values=tuple(float(np.median(each)) for each in ordered),
        half_widths=tuple(
            float((each[-rank] - each[rank - 1]) / 2 / np.median(each))
            for each in ordered
        ),
    )


def _name(suite: Suite, test: int, *, slow: np.bool_) -> str | None:
    """Return a choice as it is recorded."""
    if not suite.machine.seen:
        return None
    return "slow" if slow and suite.tuned[test] else "fast"


def _case(
    suite: Suite, test: int, stored: Sequence[Measured], current: Measured
) -> Case:
    """Return one test as our rule gets it."""
    value = _value([samples[test] for samples in current[0]])
    return Case(
        key=RecordKey(test_id=f"{test}"),
        metric=METRICS["time"],
        limit=LIMIT,
        estimate=Estimate(
            metric="time", value=value.run_values[0], unit="s", source="cupti"
        ),
        current=value,
        choice=_name(suite, test, slow=current[1][0][test]),
        stored=tuple(
            Stored(
                value=_value([samples[test] for samples in session[0]]),
                session=Session(id=f"{number}", started_unix_s=number, host="h"),
                choice=_name(suite, test, slow=session[1][0][test]),
            )
            for number, session in enumerate(stored)
        ),
        bound_class=_CLASSES[suite.classes[test]],
    )


def _ours(suite: Suite, cases: list[Case], level: Floats, choice: Booleans) -> set[int]:
    """Return what our rule calls regressed."""
    looks = first_look(cases)
    suspects = {test for test, look in enumerate(looks) if look.worse}
    calm = [t for t, look in enumerate(looks) if not (look.worse or look.better)]
    if not suspects:
        return set()
    classes = {suite.classes[test] for test in suspects}
    controls = {
        test
        for number in classes
        for test in [t for t in calm if suite.classes[t] == number][:CONTROLS]
    }
    machine = suite.machine
    frozen = machine.frozen and not machine.redrawn
    drifted = level + suite.draw.normal(0, machine.drift, len(_CLASSES))[suite.classes]
    runs = [suite.process(drifted, choice, frozen=frozen) for _ in range(CONFIRM)]
    measured = [suite.samples(values) for values, _ in runs]
    confirmations = {}
    for test in suspects | controls:
        value = _value([samples[test] for samples in measured])
        confirmations[cases[test].name] = Confirmation(
            value=value,
            choices=tuple(_name(suite, test, slow=made[test]) for _, made in runs),
            control=test in controls,
        )
    verdicts = settle(cases, confirmations)
    return {t for t, v in enumerate(verdicts) if v.outcome is Outcome.REGRESSED}


def _others(then: Floats, now: Floats) -> dict[str, set[int]]:
    """Return what rules on the samples of one process call slower."""
    means = now.mean(axis=1) > (1 + LIMIT) * then.mean(axis=1)
    ranks = np.concatenate((then, now), axis=1).argsort(axis=1).argsort(axis=1) + 1
    statistic = ranks[:, SAMPLES:].sum(axis=1) - SAMPLES * (SAMPLES + 1) / 2
    deviation = SAMPLES * np.sqrt((2 * SAMPLES + 1) / 12)
    ranked = (statistic - SAMPLES**2 / 2) / deviation > 1.645  # one-sided p < 0.05
    gap = now.min(axis=1) - np.quantile(then, 0.75, axis=1)
    apart = gap / np.quantile(then, 0.75, axis=1) >= 0.005
    return {
        rule: {int(test) for test in np.flatnonzero(slower)}
        for rule, slower in zip(RULES[1:], (means, ranked, apart), strict=True)
    }


def score(machine: Machine, *, suites: int) -> Score:
    """Return how the rules do on one kind of machine."""
    total = Score()
    draw = np.random.default_rng(20_260_801)  # the same for every machine
    nothing = np.zeros(TESTS)
    changed = np.zeros(TESTS)
    for number, effect in enumerate(EFFECTS):
        changed[number * CHANGED : (number + 1) * CHANGED] = np.log1p(effect)
    for _ in range(suites):
        for rule, alarms in simulate(Suite(machine, draw, nothing)).items():
            total.alarms[rule] += len(alarms)
            total.spoiled[rule] += bool(alarms)
        for rule, found in simulate(Suite(machine, draw, changed)).items():
            for number in range(len(EFFECTS)):
                mine = range(number * CHANGED, (number + 1) * CHANGED)
                total.hits[rule][number] += len(found & set(mine))
    return total


def main() -> None:
    """Print the table; fail where our rule misses its goal on a machine it promises."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suites", type=int, default=100, help="of each kind (100)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--only", default="", help="machines whose name has this in it")
    options = parser.parse_args()
    machines = [m for m in MACHINES if options.only in m.name]
    start = time.perf_counter()
    print(f"{options.suites} suites of {TESTS} tests; limit {LIMIT:.0%}")
    heads = " ".join(f"{f'+{effect:.0%}':>5}" for effect in EFFECTS)
    print(f"{'machine':34} {'rule':10} {'alarms':>8} {'runs':>6} {heads}")
    with ProcessPoolExecutor(options.jobs) as pool:
        scores = pool.map(partial(score, suites=options.suites), machines)
        for machine, found in zip(machines, scores, strict=True):
            for rule in RULES:
                alarms = 100 * found.alarms[rule] / options.suites
                spoiled = 100 * found.spoiled[rule] / options.suites
                tried = options.suites * CHANGED
                power = " ".join(f"{hits / tried:5.2f}" for hits in found.hits[rule])
                name = machine.name if rule == RULES[0] else ""
                print(
                    f"{name:34} {rule:10} {alarms:8.1f} {spoiled:6.1f} {power}",
                    flush=True,
                )
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
