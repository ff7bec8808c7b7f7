"""How often a suite that did not change fails, and how often a real change is found.

Suites are simulated on machines whose processes, sessions and days differ in many ways.
The package's own first look and its own rule judge them, with fresh processes, controls
and reference workloads; nothing of the rule is repeated here.

Prints, for each kind of machine, alarms in 100 runs of an unchanged suite (goal: at most
1), which share of the changes planted into one test is found, how often +60 %
in all tests at once fails the run, and what the baseline was said to see, with the share
of changes of just that size that is found (goal: 0.90). The lowest figures that
docs/judging.md promises stand beside them; one that is missed by more than two standard
errors makes the script fail.

`--offsets` adds that a test alone, where fresh processes measure it, is not as fast as in
the suite, for good. *2 %*: by N(0, 2 %). *mixture*: so are 9 tests of 10, and one is 20 to
120 % slower or faster. *cold*: all are about 10 % slower, and no reference is. *drifting*: a
mixture of which one in five was drawn anew since the sessions were stored. *shifted*: a
mixture, and one test in ten is 10 to 60 % slower in today's suite alone, because other
tests run before it. `--own 1` lets each stored session have timed 8 tests alone, in turn.
`--part` runs a part, whose first values are alone, too. `--shards 8` counts alarms in runs
of eight such suites, each a shard on its own machine. `--device` gives times of a GPU,
`--same-code 0.5` lets the machine code of half of the tests be known to be the same,
`--choices` shows what an autotuner chose, `--better` asks for improvements: the mirror
image. The last two columns are the runs in 100 whose unchanged tests are told as another
alone, and the share of the planted +30 % that is. Not simulated: workers that measure side
by side, whose sessions have about equally many tests each.

`--by against` judges the same machines by blocks of processes of two sides (goal: at most
0.5 alarms), and prints the blocks that were used; `--by confirm` lets such blocks decide
what a stored baseline suspects.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from pytest_gpuperf.config import Config, ConfirmBy, Update
from pytest_gpuperf.judge.against import AgainstPolicy, Block, SideRun, look_at
from pytest_gpuperf.judge.case import Case, Policy, Reference, StoredValue
from pytest_gpuperf.judge.confirmation import Confirmation
from pytest_gpuperf.judge.look import plan_retests
from pytest_gpuperf.judge.regression import settle
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.identity import Sameness
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import (
    REFERENCES as REFERENCES_ID,
)
from pytest_gpuperf.model.record import (
    BoundClass,
    Kind,
    Record,
    RecordKey,
    SessionValue,
)
from pytest_gpuperf.model.sample import CoreSpeed, Estimate
from pytest_gpuperf.model.verdict import Outcome, Verdict

Floats = NDArray[np.float64]
Choices = NDArray[np.bool_]
Cores = Sequence[Sequence[CoreSpeed]]  # of each column, by process; empty: unknown

EFFECTS = (0.10, 0.20, 0.30, 0.60, 1.00)
_TOLD_EFFECT = EFFECTS.index(0.30)  # of the last column
CONFIRM = 5  # fresh processes: the default of --gpuperf-confirm
REFERENCES = 3  # workloads of the plugin's own
LIMIT = 0.05  # the default of --gpuperf-max-regression

_TUNED_SHARE = 0.3  # of the tests are autotuned, where any is
_SLOW_SHARE = 0.4  # of their processes draw the slower kernel
_BURST_SHARE = 0.5  # of the processes of a session with bursts are hit by one
_BURST = (math.log(1.1), math.log(1.6))
_OUTLIER = (0.05, 0.3)

OFFSETS = ("none", "2 %", "mixture", "cold", "drifting", "shifted")
_FAR = (math.log(1.2), math.log(2.2))  # how far a test in ten is off alone, up or down
_FAR_SHARE, _DRAWN_ANEW = 0.1, 0.2
_SHIFT = (math.log(1.1), math.log(1.6))
# How tests follow the speed of their core, and what is known of it: as 35 bodies of
# clean_runs.py did in 25 processes, whose powers scattered more than they said.
_POWER, _MOST_POWER = 0.95, 1.5
_LOOP_S, _LOOP_NOISE = 4e-5, 0.02
_POWER_SHOWN, _POWER_NOISE, _POWER_PRECISION = 0.5, 0.35, 12.0
_TIMED_ALONE = 8  # tests of a storing session
_WHOLE, _PART = 40, 1  # tests that sessions ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """
    What differs when nothing changed; standard deviations are of logarithms.

    Attributes:
        name: What the table calls it.

        process: Between processes, each test for itself.

        session: Between sessions, each test for itself.

        common: Between sessions, all tests together.

        drift: Of all tests, from the suite to the fresh processes.

        outliers: Share of processes that are 5 to 30 % too slow.

        bursts: Share of sessions in which half of the processes are 10 to 60 % too slow,
            all tests of a process together.

        slots: Of a process on whichever part of the machine it got; it only slows.

        heavy_dof: Degrees of freedom of Student's t between sessions; 0: they are normal.

        gap: How far two choices of an autotuned test are apart; 0: nothing is tuned.

        frozen: Whether a session draws a choice once, and the fresh processes once.

        per_side: Whether each side of blocks draws a choice once, and it is seen.

        unequal: By how much tests differ in all of this.

        response: By how much they differ in following what is common.

        follows: How much of what is common tests follow; the references follow all of it.

        waits: Whether tests wait by nature, so that no reference stands for them.

        speed: Of the core, between sessions, all tests together.

        moves: Of the core, between processes, and as much again between their tests.

        powers: By how much tests differ in the power with which they follow the core.

        sample: What the samples of a process leave open.
    """

    name: str
    process: float = 0.01
    session: float = 0.0
    common: float = 0.0
    drift: float = 0.0
    outliers: float = 0.0
    bursts: float = 0.0
    slots: float = 0.0
    heavy_dof: int = 0
    gap: float = 0.0
    frozen: bool = False
    per_side: bool = False
    unequal: float = 0.3
    response: float = 0.2
    follows: float = 1.0
    waits: bool = False
    speed: float = 0.0
    moves: float = 0.0
    powers: float = 0.3
    sample: float = 0.003

    @property
    def has_speeds(self) -> bool:
        """Whether the speed of the core moves, and the core loop is timed."""
        return self.speed > 0 or self.moves > 0


MACHINES = (
    Machine(name="process 0.3 %", process=0.003),
    Machine(name="process 1 %"),
    Machine(name="process 2 %", process=0.02),
    Machine(name="process 5 %", process=0.05),
    Machine(name="session 0.5 %", session=0.005),
    Machine(name="session 1 %", session=0.01),
    Machine(name="session 2 %", session=0.02),
    Machine(name="session 5 %", session=0.05),
    Machine(name="session 10 %", session=0.10),
    Machine(name="machine 2 %", common=0.02),
    Machine(name="machine 5 %", common=0.05),
    Machine(name="machine 10 %, session 2 %", common=0.1, session=0.02, process=0.02),
    Machine(name="drift 2 %", drift=0.02),
    Machine(name="drift 5 %", drift=0.05),
    Machine(name="outliers 2 %", outliers=0.02),
    Machine(name="outliers 10 %", outliers=0.10),
    Machine(name="bursts", bursts=0.2, process=0.02),
    Machine(name="heavy tails 2 %", heavy_dof=3, session=0.02),
    Machine(name="heavy tails 5 %", heavy_dof=3, session=0.05),
    Machine(name="autotuned 8 %", gap=0.08),
    Machine(name="frozen 8 %", gap=0.08, frozen=True),
    Machine(name="unequal x 2.7, session 3 %", session=0.03, unequal=1.0),
    Machine(name="loaded", session=0.05, process=0.05, common=0.10, slots=0.10),
    Machine(name="machine 5 %, asleep", common=0.05, follows=0.0, waits=True),
    Machine(name="machine 5 %, half asleep", common=0.05, follows=0.5, waits=True),
    Machine(name="speed 10 %", process=0.02, session=0.02, speed=0.10, moves=0.05),
    Machine(name="speed 20 %", process=0.03, session=0.03, speed=0.10, moves=0.12),
    Machine(
        name="speed 30 %, unequal",
        process=0.03,
        session=0.03,
        unequal=0.8,
        speed=0.30,
        moves=0.10,
    ),
    Machine(
        name="exact", process=0.0, sample=0.0, unequal=0.0, response=0.0
    ),  # a clock that always gives the same
)
# choices that processes keep, of which a revision has one and the tree another
SIDE_MACHINES = (Machine(name="frozen per side 8 %", gap=0.08, per_side=True),)
ALARMS = 1.0  # in 100 runs, on every machine but these
MORE_ALARMS = {"heavy tails 2 %": 2.0, "heavy tails 5 %": 2.0, "frozen 8 %": 2.0}
# the least that is found with 4 tests and 3 sessions: machine, effect, share
LEAST_FOUND = {
    ("process 1 %", 0.10): 0.62,
    ("session 2 %", 0.30): 0.80,
    ("session 5 %", 0.60): 0.60,
    ("machine 5 %", 0.30): 0.85,
    ("bursts", 0.60): 0.62,
}
SHARED = 0.60  # planted into all tests of a suite at once: some of them must be found
LEAST_SHARED = {"process 1 %": 0.95, "session 2 %": 0.95}
# the same by blocks of two sides, with 4 tests; blocks in the mean where one is changed
AGAINST_ALARMS = 0.5
AGAINST_LEAST = {("process 5 %", 0.10): 0.88, ("loaded", 0.10): 0.70}
AGAINST_MOST_BLOCKS = {"process 5 %": 15.0}
CONFIRM_LEAST = {("session 10 %", 0.30): 0.90}  # of suspects of a stored baseline
LEAST_SEEN = 0.90  # of changes as large as what a baseline is said to see


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """
    How large a suite is and what is known of it.

    Attributes:
        tests: Its tests.

        sessions: Stored ones.

        bad: By how much one stored value of the first test is off; 1: it is not.

        offsets: How tests differ alone from the suite: one of `OFFSETS`.

        own: Processes in which a storing session times some tests alone.

        part: Whether today's run is one of a part.

        device: Whether the times are a GPU's.

        choices: Whether the choice of an autotuner is seen.

        better: Whether improvements are asked for.

        shards: Suites that are the shards of one run.

        same_code: Share of the tests of which the machine code is known to be the same.

        seed: Which suites are drawn: a rule that was changed by some is shown by others.
    """

    tests: int
    sessions: int
    bad: float = 1.0
    offsets: str = "none"
    own: int = 0
    part: bool = False
    device: bool = False
    choices: bool = False
    better: bool = False
    shards: int = 1
    same_code: float = 0.0
    seed: int = 0

    @property
    def sign(self) -> int:
        """The direction of what is planted, and looked for."""
        return -1 if self.better else 1


class Suite:
    """
    One unchanged suite on one machine: stored sessions, this one, its fresh processes.

    The last columns are the reference workloads.
    """

    def __init__(self, machine: Machine, size: Size, draw: np.random.Generator) -> None:
        self.machine, self.draw, self.size = machine, draw, size
        self.count = size.tests + REFERENCES
        self.scale = np.exp(draw.normal(0, machine.unequal, self.count))
        self.follows = draw.normal(1, machine.response, self.count)
        self.follows[: size.tests] *= machine.follows
        self.tuned = (draw.random(self.count) < _TUNED_SHARE) & (machine.gap > 0)
        self.tuned[size.tests :] = False
        then, now = self._offsets(size.offsets)
        self.powers = self._powers()
        timed = 1 + size.own
        sessions = [self._session(timed, then) for _ in range(size.sessions)]
        self.stored = np.stack([runs[0] for runs, _, _ in sessions])
        self.stored_choices = np.stack([made[0] for _, made, _ in sessions])
        self.stored_alone = [runs[1:] for runs, _, _ in sessions]
        self.stored_cores = [cores for _, _, cores in sessions]
        self.stored[0, 0] += math.log(size.bad)
        runs, made, cores = self._session(1 + CONFIRM, now)
        self.first, self.fresh = runs[0], runs[1:]
        self.choice, self.choices = made[0], made[1:]
        self.core, self.fresh_cores = cores[:1], cores[1:]
        if size.part:
            lone, made, self.core = self._session(1, now)
            self.first, self.choice = lone[0] + now, made[0]
        elif size.offsets == "shifted":
            shifted = draw.random(self.count) < _FAR_SHARE
            shifted[size.tests :] = False
            self.first += np.where(shifted, draw.uniform(*_SHIFT, self.count), 0.0)

    def _offsets(self, kind: str) -> tuple[Floats, Floats]:
        """Return what each test is off by alone when it was stored, and now."""
        if kind == "none":
            return np.zeros(self.count), np.zeros(self.count)
        then = self._drawn(kind)
        if kind != "drifting":
            return then, then
        anew = self.draw.random(self.count) < _DRAWN_ANEW
        moved = then + self.draw.normal(0, 0.01, self.count)
        now = np.where(anew, self._drawn(kind), moved)
        now[self.size.tests :] = 0.0
        return then, now

    def _drawn(self, kind: str) -> Floats:
        """Return what each test is off by alone; reference workloads are not."""
        draw, count = self.draw, self.count
        offsets = draw.normal(math.log(1.1) if kind == "cold" else 0.0, 0.02, count)
        if kind not in {"2 %", "cold"}:
            far = draw.random(count) < _FAR_SHARE
            sign = np.where(draw.random(count) < 0.5, 1.0, -1.0)
            offsets = np.where(far, draw.uniform(*_FAR, count) * sign, offsets)
        offsets[self.size.tests :] = 0.0
        return offsets

    def _powers(self) -> Floats:
        """Return the powers of the core's speed that tests follow; the loops follow all."""
        if not self.machine.has_speeds:
            return np.zeros(self.count)
        powers = self.draw.normal(_POWER, self.machine.powers, self.count)
        return np.clip(powers, 0.0, _MOST_POWER)

    def _at_speeds(self, runs: Floats) -> tuple[Floats, Cores]:
        """Return the values of processes at the speeds of their cores, and those speeds."""
        machine, draw, (processes, _) = self.machine, self.draw, runs.shape
        if not machine.has_speeds:
            return runs, [()] * processes
        speeds = draw.normal(0, machine.speed)
        speeds = speeds + draw.normal(0, machine.moves, (processes, 1))
        speeds = speeds + draw.normal(0, machine.moves, runs.shape)
        loops = speeds + draw.normal(0, _LOOP_NOISE, runs.shape)
        # A process in which the core changes its speed shows the power, roughly.
        is_shown = draw.random(runs.shape) < _POWER_SHOWN
        slopes = self.powers + draw.normal(0, _POWER_NOISE, runs.shape)
        cores = [
            tuple(
                CoreSpeed(
                    loop_s=_LOOP_S * math.exp(loop),
                    slope=slope if shown else 0.0,
                    precision=_POWER_PRECISION if shown else 0.0,
                )
                for loop, slope, shown in zip(*of_run, strict=True)
            )
            for of_run in zip(
                loops.tolist(), slopes.tolist(), is_shown.tolist(), strict=True
            )
        ]
        return runs + speeds * self.powers, cores

    def _session(self, processes: int, alone: Floats) -> tuple[Floats, Choices, Cores]:
        """
        Return the logarithms of a session's values, choices and core speeds, by process.

        Args:
            processes: The first is the suite's, all others run each test alone.

            alone: What each test is off by there.
        """
        machine, draw = self.machine, self.draw
        own = (
            draw.standard_t(machine.heavy_dof, self.count) / math.sqrt(3)
            if machine.heavy_dof
            else draw.normal(0, 1, self.count)
        )
        level = own * machine.session * self.scale
        level = level + draw.normal(0, machine.common) * self.follows
        bursting = draw.random() < machine.bursts
        choice = self.chosen(draw.random(self.count) < _SLOW_SHARE)
        runs, made = [self.process(level, choice, bursting=bursting)], [choice]
        level = level + draw.normal(0, machine.drift) * self.follows + alone
        frozen = draw.random(self.count) < _SLOW_SHARE  # with empty caches
        while len(runs) < processes:
            choice = self.chosen(frozen)
            runs.append(self.process(level, choice, bursting=bursting))
            made.append(choice)
        at_speeds, cores = self._at_speeds(np.stack(runs))
        return at_speeds, np.stack(made), cores

    def chosen(self, frozen: Choices) -> Choices:
        """Return which tests run the slower kernel in a process: often drawn anew."""
        if self.machine.frozen or self.machine.per_side:
            return frozen
        return self.draw.random(self.count) < _SLOW_SHARE

    def process(self, level: Floats, choice: Choices, *, bursting: bool) -> Floats:
        """Return the logarithms of one process's values."""
        machine, draw, count = self.machine, self.draw, self.count
        noise = draw.normal(0, machine.process, count) * self.scale
        noise += draw.normal(0, machine.sample, count)
        spoiled = draw.random(count) < machine.outliers
        noise += np.where(spoiled, draw.uniform(*_OUTLIER, count), 0.0)
        common = abs(draw.normal()) * machine.slots
        if bursting and draw.random() < _BURST_SHARE:
            common += draw.uniform(*_BURST)
        slower = np.where(self.tuned & choice, math.log1p(machine.gap), 0.0)
        return level + noise + common * self.follows + slower


def _value(
    suite: Suite,
    logs: Sequence[float],
    alone: Sequence[float] = (),
    *,
    cores: Iterable[CoreSpeed] = (),
    alone_cores: Iterable[CoreSpeed] = (),
) -> SessionValue:
    """Return the values of some processes, and of those that ran the test alone."""
    return SessionValue(
        metric="time",
        unit="s",
        source="cupti" if suite.size.device else "host",
        run_values=tuple(map(math.exp, logs)),
        alone_values=tuple(map(math.exp, alone)),
        cores=tuple(cores),
        alone_cores=tuple(alone_cores),
    )


def _of_column(cores: Cores, column: int) -> Iterator[CoreSpeed]:
    """Yield the core speeds of a column, if its processes have any."""
    return (of_run[column] for of_run in cores if of_run)


def _stored(suite: Suite, column: int) -> tuple[StoredValue, ...]:
    """Return the stored sessions of one column."""
    tests, ran = suite.size.tests, _WHOLE if suite.size.part else None
    values = []
    for number, log in enumerate(suite.stored[:, column].tolist()):
        place = (column - number * _TIMED_ALONE) % tests
        timed = column >= tests or place < _TIMED_ALONE
        alone = suite.stored_alone[number][:, column].tolist() if timed else ()
        cores = suite.stored_cores[number]
        session = Session(
            id=f"{number}", started_unix_s=number, host="h", ran_count=ran
        )
        values.append(
            StoredValue(
                value=_value(
                    suite,
                    [log],
                    alone,
                    cores=_of_column(cores[:1], column),
                    alone_cores=_of_column(cores[1:], column) if timed else (),
                ),
                session=session,
                choice=_choice(suite, suite.stored_choices[number], column),
            )
        )
    return tuple(values)


def _choice(suite: Suite, made: Choices, column: int) -> str | None:
    """Return what an autotuned test chose in a process; None: nobody sees it."""
    if not suite.size.choices:
        return None
    return f"{made[column] and suite.tuned[column]}"


def cases_of(suite: Suite) -> list[Case]:
    """Return the tests of a suite as the rule gets them."""
    return [_case(suite, column, 0.0) for column in range(suite.size.tests)]


def _case(suite: Suite, column: int, planted: float) -> Case:
    """Return one test, slower by so much on the log scale."""
    value = _value(
        suite, [suite.first[column] + planted], cores=_of_column(suite.core, column)
    )
    now = Session(id="now", started_unix_s=1e3, host="h", ran_count=_PART)
    return Case(
        key=RecordKey(test_id=f"{column}"),
        metric=METRICS["time"],
        limit=LIMIT,
        estimate=Estimate(
            metric="time", value=value.run_values[0], unit="s", source=value.source
        ),
        current=value,
        choice=_choice(suite, suite.choice, column),
        stored=_stored(suite, column),
        bound_class=_bound_class(suite),
        session=now if suite.size.part else None,
        # Never of the first test, into which changes are planted.
        code=Sameness.SAME
        if column >= suite.size.tests * (1 - suite.size.same_code)
        else None,
    )


def _bound_class(suite: Suite) -> BoundClass:
    """Return what tests move with."""
    if suite.machine.waits:
        return BoundClass.WAIT
    return BoundClass.MEMORY if suite.size.device else BoundClass.HOST


def references_of(suite: Suite, processes: int) -> list[Reference]:
    """Return the reference workloads, timed in so many fresh processes."""
    return [
        Reference(
            name=f"{column}",
            bound_class=BoundClass.MEMORY if suite.size.device else BoundClass.HOST,
            current=_value(
                suite, [suite.first[column]], cores=_of_column(suite.core, column)
            ),
            stored=_stored(suite, column),
            fresh=_value(
                suite,
                suite.fresh[:processes, column].tolist(),
                cores=_of_column(suite.fresh_cores[:processes], column),
            ),
        )
        for column in range(suite.size.tests, suite.count)
    ]


# a store that is named, and what lets a comparison decide
CONFIG = Config(root=Path(), baseline_named=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """
    What a run says: the tests that moved, those that are others alone, and what it sees.

    Attributes:
        moved: Tests that have regressed, or improved where that is asked for.

        apart: Tests that would have by the fresh processes alone, and have not.

        sees: What the first test is said to see [log]; None: it is not known.
    """

    moved: frozenset[int] = frozenset()
    apart: frozenset[int] = frozenset()
    sees: float | None = None


def judge(
    suite: Suite,
    cases: Sequence[Case],
    planted: Mapping[int, float],
    *,
    ask_first: bool = False,
) -> Judged:
    """
    Return what the rule says of a run.

    Args:
        suite: It, with what its fresh processes would measure.

        cases: Its tests.

        planted: How much slower some of them are [log], by number.

        ask_first: Whether the first one is measured again although it is no suspect, so
            that what it is said to see is that of a decision.
    """
    cases = _slower(suite, cases, planted)
    references = references_of(suite, CONFIRM)
    config = CONFIG
    if suite.size.better:
        config = replace(CONFIG, update=Update.IMPROVED)
    first = plan_retests(
        cases, config, references=references, shard_count=suite.size.shards
    )
    suspects = [int(test_id) for test_id in first.suspects]
    if ask_first and 0 not in suspects:
        suspects.append(0)
    if not suspects:
        return Judged()

    def again(columns: Sequence[int], *, control: bool) -> dict:  # type: ignore[type-arg] # of settle
        return {
            cases[column].name: Confirmation(
                value=_value(
                    suite,
                    [
                        log + planted.get(column, 0.0)
                        for log in suite.fresh[:CONFIRM, column]
                    ],
                    cores=_of_column(suite.fresh_cores[:CONFIRM], column),
                ),
                choices=tuple(
                    _choice(suite, made, column) for made in suite.choices[:CONFIRM]
                ),
                control=control,
            )
            for column in columns
        }

    confirmed = again([*map(int, first.controls)], control=True)
    confirmed |= again(suspects, control=False)
    policy = Policy(shard_count=suite.size.shards)
    verdicts = settle(
        cases, confirmed, policy, looks=first.looks, references=references
    )
    change = verdicts[0].change
    sees = None if change is None else change.detectable_effect
    wanted = Outcome.IMPROVED if suite.size.better else Outcome.REGRESSED
    moved = [v for v in verdicts if v.outcome is wanted and v.cause is None]
    apart = [v for v in verdicts if v.alone is not None]
    return Judged(
        moved=_numbers(moved),
        apart=_numbers(apart),
        sees=None if sees is None else math.log1p(sees),
    )


def _numbers(verdicts: Iterable[Verdict]) -> frozenset[int]:
    """Return the numbers of the tests that verdicts are about."""
    return frozenset(int(verdict.key.test_id) for verdict in verdicts)


def _slower(
    suite: Suite, cases: Sequence[Case], planted: Mapping[int, float]
) -> list[Case]:
    """Return the tests with what is planted into some of them."""
    return [
        _case(suite, column, planted[column]) if column in planted else case
        for column, case in enumerate(cases)
    ]


class Sides:
    """
    The blocks of one unchanged suite: two processes of each side, in turns.

    The processes are those of one session, as blocks are taken on one machine.
    """

    def __init__(self, suite: Suite, draw: np.random.Generator) -> None:
        machine, count = suite.machine, suite.count
        self.names = [f"{column}" for column in range(suite.size.tests)]
        level = draw.normal(0, machine.session, count) * suite.scale
        bursting = draw.random() < machine.bursts
        sides = draw.random((2, count)) < _SLOW_SHARE
        self.choices = np.zeros((2, count), dtype=bool)  # which nobody sees
        if machine.per_side:
            self.choices = sides & suite.tuned
        else:
            sides[1] = sides[0]
        blocks = AgainstPolicy().look_blocks[-1]
        self.logs = np.stack(
            [
                np.stack(
                    [
                        suite.process(
                            level, suite.chosen(sides[side]), bursting=bursting
                        )
                        for side in (0, 0, 1, 1)
                    ]
                )
                for _ in range(blocks)
            ]
        )

    def block(self, number: int, planted: float, tests: Sequence[str]) -> Block:
        """Return one block of some tests, whose first is slower by so much [log]."""
        return Block(
            index=number,
            runs=tuple(self._run(number, place, planted, tests) for place in range(4)),
        )

    def _run(
        self, number: int, place: int, planted: float, tests: Sequence[str]
    ) -> SideRun:
        """Return one process of a block: two of the revision, two of the tree."""
        side, logs = place // 2, self.logs[number, place]
        return SideRun(
            side=(Side.OLD, Side.NEW)[side],
            index=place % 2,
            records=tuple(
                _record(
                    RecordKey(test_id=name),
                    logs[int(name)] + (planted if side and name == "0" else 0.0),
                    f"{self.choices[side, int(name)]}",
                )
                for name in tests
            ),
            references=tuple(
                _record(
                    RecordKey(test_id=REFERENCES_ID, name=f"{column}"), logs[column]
                )
                for column in range(len(self.names), logs.size)
            ),
        )


def _record(key: RecordKey, log: float, choice: str | None = None) -> Record:
    """Return what one process measured of a test or of a reference workload."""
    estimate = Estimate(metric="time", value=math.exp(log), unit="s", source="host")
    return Record(key=key, kind=Kind.MEASURE, estimates=(estimate,), choice=choice)


def judge_against(
    sides: Sides, tests: Sequence[str], planted: float
) -> tuple[set[int], int]:
    """
    Return which of some tests have regressed, and how many blocks that took.

    Args:
        sides: What blocks of the suite would measure.

        tests: Those that enter.

        planted: How much slower the first one is [log].
    """
    gates = {name: {"time": LIMIT} for name in tests}
    blocks: list[Block] = []
    rest, pair_count = tuple(tests), None
    for count in AgainstPolicy().look_blocks:
        numbers = range(len(blocks), count)
        blocks += [sides.block(number, planted, rest) for number in numbers]
        look = look_at(blocks, gates, pair_count=pair_count)
        rest, pair_count = look.undecided, look.pair_count
        if not rest:
            break
    regressed = {
        int(v.key.test_id) for v in look.verdicts if v.outcome is Outcome.REGRESSED
    }
    return regressed, len(blocks)


def suspects(suite: Suite, cases: Sequence[Case], planted: float) -> list[str]:
    """Return the tests that a stored baseline suspects, for blocks to decide."""
    cases = _slower(suite, cases, {0: planted} if planted else {})
    config = replace(CONFIG, confirm_by=ConfirmBy.AGAINST)
    references = references_of(suite, CONFIRM)
    return [*plan_retests(cases, config, references=references).suspects]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstScore:
    """Alarms in 100 runs with their standard error, shares found, and blocks in the mean."""

    alarms: float
    error: float
    found: tuple[float, ...]
    blocks: float
    changed_blocks: tuple[float, ...]
    confirmed: float


def score_against(
    machine: Machine, *, size: Size, suites: int, power: int, confirm: bool
) -> AgainstScore:
    """Return how blocks do on one kind of machine; `confirm`: on suspects alone."""
    draw = np.random.default_rng([20_261_123 + size.seed, size.tests, size.sessions])
    alarms, hits = 0, [0] * len(EFFECTS)
    blocks, confirmed, changed = 0, 0, [0] * len(EFFECTS)
    for number in range(suites):
        suite = Suite(machine, size, draw)
        cases, sides = cases_of(suite) if confirm else [], Sides(suite, draw)

        def judged(planted: float) -> tuple[set[int], int]:
            tests = suspects(suite, cases, planted) if confirm else sides.names  # noqa: B023 - it is called in this round alone
            return judge_against(sides, tests, planted) if tests else (set(), 0)  # noqa: B023 - the same

        regressed, used = judged(0.0)
        alarms += bool(regressed)
        blocks += used
        confirmed += bool(used)
        for place, effect in enumerate(EFFECTS if number < power else ()):
            found, used = judged(math.log1p(effect))
            hits[place] += 0 in found
            changed[place] += used
    share = alarms / suites
    return AgainstScore(
        alarms=100 * share,
        error=100 * math.sqrt(max(share, 1 / suites) * (1 - share) / suites),
        found=tuple(hit / power for hit in hits),
        blocks=blocks / suites,
        changed_blocks=tuple(used / power for used in changed),
        confirmed=confirmed / suites,
    )


def missed_against(
    machine: Machine, size: Size, found: AgainstScore, power: int, *, confirm: bool
) -> list[str]:
    """Return which promises of blocks were missed by more than two standard errors."""
    texts = []
    most = 0.0 if machine.per_side else AGAINST_ALARMS
    if found.alarms > most + 2 * found.error * (not machine.per_side):
        texts.append(f"{found.alarms:.2f} alarms > {most}")
    if size.tests != 4:
        return texts
    for place, effect in enumerate(EFFECTS):
        promised = CONFIRM_LEAST if confirm else AGAINST_LEAST
        least, share = promised.get((machine.name, effect), 0.0), found.found[place]
        if share < least - 2 * math.sqrt(least * (1 - least) / power):
            texts.append(f"+{effect:.0%} found {share:.2f} < {least}")
    most_blocks = AGAINST_MOST_BLOCKS.get(machine.name, math.inf)
    if not confirm and found.changed_blocks[0] > most_blocks:
        texts.append(f"{found.changed_blocks[0]:.1f} blocks > {most_blocks}")
    return texts


def _against_line(machine: Machine, size: Size, found: AgainstScore) -> str:
    """Return one line of the table of blocks."""
    cells = "  ".join(f"{share:.2f}" for share in found.found)
    blocks = "  ".join(f"{used:4.1f}" for used in found.changed_blocks)
    return (
        f"{size.tests:5} {size.sessions:4} {machine.name:28} "
        f"{found.alarms:6.2f} +-{found.error:.2f}  {cells}  "
        f"{found.blocks:5.1f}  {blocks}  {found.confirmed:.2f}"
    )


def print_against(
    machines: Sequence[Machine], size: Size, options: argparse.Namespace
) -> list[str]:
    """Print the table of blocks; return what was missed."""
    confirm, power = options.by == "confirm", min(options.power, options.suites)
    run = partial(
        score_against, size=size, suites=options.suites, power=power, confirm=confirm
    )
    failures = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for machine, found in zip(machines, pool.map(run, machines), strict=True):
            print(_against_line(machine, size, found), flush=True)
            failures += [
                f"{size.tests} tests {machine.name}: {text}"
                for text in missed_against(machine, size, found, power, confirm=confirm)
            ]
    return failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Alarms in 100 runs with their standard error, and shares that are found."""

    alarms: float
    error: float
    found: tuple[float, ...]
    shared: float
    sees: float | None
    sees_found: float | None
    apart: float
    found_apart: float


def score(machine: Machine, *, size: Size, suites: int, power: int) -> Score:
    """Return how the rule does on one kind of machine."""
    draw = np.random.default_rng(
        [20_261_122 + size.seed, size.tests, size.sessions]
        + [OFFSETS.index(size.offsets)] * (size.offsets != "none")
    )
    alarms = apart = 0
    hits, others = [0] * len(EFFECTS), [0] * len(EFFECTS)
    seen: list[float] = []
    seen_hits = shared_hits = 0
    for number in range(suites):
        suite = Suite(machine, size, draw)
        cases = cases_of(suite)
        unchanged = judge(suite, cases, {})
        others_moved = [
            bool(judge(other, cases_of(other), {}).moved)
            for other in (Suite(machine, size, draw) for _ in range(1, size.shards))
        ]
        alarms += bool(unchanged.moved) or any(others_moved)
        apart += bool(unchanged.apart)
        if number >= power:
            continue
        for place, effect in enumerate(EFFECTS):
            changed = judge(suite, cases, {0: size.sign * math.log1p(effect)})
            hits[place] += 0 in changed.moved
            others[place] += 0 in changed.apart
        planted = size.sign * math.log1p(SHARED)
        everywhere = dict.fromkeys(range(size.tests), planted)
        shared_hits += bool(judge(suite, cases, everywhere).moved)
        sees = judge(suite, cases, {}, ask_first=True).sees
        if sees is not None:
            seen.append(sees)
            seen_hits += 0 in judge(suite, cases, {0: size.sign * sees}).moved
    share = alarms / suites
    return Score(
        alarms=100 * share,
        error=100 * math.sqrt(max(share, 1 / suites) * (1 - share) / suites),
        found=tuple(hit / power for hit in hits),
        shared=shared_hits / power,
        sees=math.expm1(median(seen)) if seen else None,
        sees_found=seen_hits / len(seen) if seen else None,
        apart=100 * apart / suites,
        found_apart=others[_TOLD_EFFECT] / power,
    )


def missed(machine: Machine, size: Size, found: Score, power: int) -> list[str]:
    """Return which promises were missed by more than two standard errors."""
    texts = []
    usual = not (size.part or size.device or size.choices or size.better)
    if size.sessions < Policy().least_sessions or size.offsets != "none" or not usual:
        return texts  # promised is what a test finds that is the same alone
    most = MORE_ALARMS.get(machine.name, ALARMS)
    if size.tests == 4 and size.sessions == 3 and found.alarms > most + 2 * found.error:
        texts.append(f"{found.alarms:.2f} alarms > {most}")
    if found.sees_found is not None:
        error = math.sqrt(LEAST_SEEN * (1 - LEAST_SEEN) / power)
        if found.sees_found < LEAST_SEEN - 2 * error:
            texts.append(f"sees found {found.sees_found:.2f} < {LEAST_SEEN}")
    if (size.tests, size.sessions, size.bad) == (4, 3, 1.0):
        texts += _less_found(machine, found, power)
    return texts


def _less_found(machine: Machine, found: Score, power: int) -> list[str]:
    """Return which changes were found less often than is promised."""
    promised = [
        (f"+{effect:.0%}", share, LEAST_FOUND.get((machine.name, effect), 0.0))
        for effect, share in zip(EFFECTS, found.found, strict=True)
    ]
    everywhere = f"+{SHARED:.0%} in all tests"
    promised.append((everywhere, found.shared, LEAST_SHARED.get(machine.name, 0.0)))
    return [
        f"{what} found {share:.2f} < {least}"
        for what, share, least in promised
        if share < least - 2 * math.sqrt(least * (1 - least) / power)
    ]


def _line(machine: Machine, size: Size, found: Score) -> str:
    """Return one line of the table."""
    sees = "      -" if found.sees is None else f"{found.sees:+7.0%}"
    seen = "   -" if found.sees_found is None else f"{found.sees_found:.2f}"
    cells = [f"{share:.2f}" for share in found.found]
    bad = "" if size.bad == 1 else f" one value x {size.bad:g}"
    own = f" own {size.own}" if size.own else ""
    return (
        f"{size.tests:5} {size.sessions:4} {machine.name + bad:38} "
        f"{size.offsets + own:14} "
        f"{found.alarms:6.2f} +-{found.error:.2f}  {'  '.join(cells)}  "
        f"{found.shared:5.2f}  {sees}  {seen}  {found.apart:5.1f}  "
        f"{found.found_apart:.2f}"
    )


def main() -> None:
    """Print the tables; fail where a promise is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tests", default="4", help="tests of a suite (4)")
    parser.add_argument("--sessions", default="3", help="stored sessions (3)")
    parser.add_argument("--suites", type=int, default=300, help="of each kind (300)")
    parser.add_argument("--power", type=int, default=100, help="of them changed (100)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--only", default="", help="machines whose name has this in it")
    parser.add_argument("--bad", type=float, default=1.0, help="a stored value, off by")
    offsets = ", ".join(OFFSETS).replace("%", "%%")
    parser.add_argument("--offsets", default="none", help=f"of {offsets} (none)")
    parser.add_argument(
        "--own", default="0", help="processes that time stored tests alone (0)"
    )
    parser.add_argument("--shards", type=int, default=1, help="of a run (1)")
    parser.add_argument("--seed", type=int, default=0, help="of the suites (0)")
    parser.add_argument("--same-code", type=float, default=0.0, help="see above")
    for name in ("part", "device", "choices", "better"):
        parser.add_argument(f"--{name}", action="store_true", help="see above")
    parser.add_argument(
        "--by", choices=("stored", "against", "confirm"), default="stored"
    )
    options = parser.parse_args()
    stored = options.by == "stored"
    machines = [
        m
        for m in (*MACHINES, *(() if stored else SIDE_MACHINES))
        if options.only in m.name
    ]
    start = time.perf_counter()
    heads = "  ".join(f"{f'+{effect:.0%}':>4}" for effect in EFFECTS)
    if stored:
        print(
            f"tests sess {'machine':38} {'alone':14} {'alarms in 100':14} {heads}"
            "    all     sees  found  apart  +30%"
        )
    else:
        print(
            f"tests sess {'machine':28} {'alarms in 100':14} {heads} blocks  {heads}  runs"
        )
    failures = []
    table = print_stored if stored else print_against
    for size in _sizes(options):
        failures += table(machines, size, options)
    print(f"{time.perf_counter() - start:.0f} s")
    if failures:
        sys.exit("missed:\n" + "\n".join(failures))


def _sizes(options: argparse.Namespace) -> Iterator[Size]:
    """Yield the suites that were asked for."""
    for tests, sessions, offsets, own in product(
        map(int, options.tests.split(",")),
        map(int, options.sessions.split(",")),
        options.offsets.split(","),
        map(int, options.own.split(",")),
    ):
        yield Size(
            tests=tests,
            sessions=sessions,
            bad=options.bad,
            offsets=offsets,
            own=own,
            part=options.part,
            device=options.device,
            choices=options.choices,
            better=options.better,
            shards=options.shards,
            same_code=options.same_code,
            seed=options.seed,
        )


def print_stored(
    machines: Sequence[Machine], size: Size, options: argparse.Namespace
) -> list[str]:
    """Print the table of stored baselines; return what was missed."""
    run = partial(
        score,
        size=size,
        suites=options.suites,
        power=min(options.power, options.suites),
    )
    failures = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for machine, found in zip(machines, pool.map(run, machines), strict=True):
            print(_line(machine, size, found), flush=True)
            failures += [
                f"{size.tests} tests {size.sessions} sessions {machine.name}: {text}"
                for text in missed(machine, size, found, options.power)
            ]
    return failures


if __name__ == "__main__":
    main()
