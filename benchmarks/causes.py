"""How often the cause in the first line of a failure is right: a confusion table.

Suites are simulated as in false_alarms.py and judged by the package's own rule. Into one test
a cause is planted: other code (known by its machine code, or by the commit alone), another
method (the test, a package), another machine (the same commit, or the same machine code on
another driver), or none, which leaves the noise. Counted are the verdicts that a run can
fail by: regressed, and inconclusive where nothing was planted, as with --gpuperf-strict.

Fails if less than 9 of 10 of a row are right, or more than 2 of 100 changes of the code are
called the machine's.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from false_alarms import CONFIG, CONFIRM, MACHINES, Size, cases_of, references_of
from false_alarms import Suite as Simulated

from pytest_gpuperf.judge.case import Case
from pytest_gpuperf.judge.confirmation import Confirmation
from pytest_gpuperf.judge.look import plan_retests
from pytest_gpuperf.judge.origin import Background, with_origin
from pytest_gpuperf.judge.regression import settle
from pytest_gpuperf.model.environment import TEST, Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.identity import Sameness
from pytest_gpuperf.model.record import SessionValue
from pytest_gpuperf.model.verdict import Origin, Outcome, Verdict

RIGHT = 0.9
CODE_AS_MACHINE = 0.02
NAMES = (
    "process 1 %",
    "process 5 %",
    "session 2 %",
    "session 5 %",
    "machine 5 %",
    "outliers 10 %",
    "bursts",
    "heavy tails 2 %",
    "loaded",
)


class Planted(NamedTuple):
    """
    A cause.

    Attributes:
        name: The cause in words.

        origin: The right answer.

        code: What the machine code says, or None if it is unknown.

        moved: The recorded facts that differ.

        is_same_commit: Whether the run has the files of the stored sessions.

        of_all: Whether all tests and the references are slower, too.

        is_slower: Whether the test is slower at all.

        is_of_device: Whether the values are times of a GPU.
    """

    name: str
    origin: Origin
    code: Sameness | None = None
    moved: Mapping[str, tuple[str, str]] = {}
    is_same_commit: bool = False
    of_all: float = 0.0
    is_slower: bool = True
    is_of_device: bool = True


_DRIVER = {"driver": ("580.1", "590.2")}
PLANTED = (
    Planted("code: machine code", Origin.CODE, Sameness.CHANGED),
    Planted("code: data of the kernel", Origin.CODE, Sameness.SAME_CODE),
    Planted("code: commit", Origin.CODE),
    Planted("code: commit, machine 10 % slower", Origin.CODE, of_all=math.log(1.1)),
    Planted("code: machine code, other driver", Origin.CODE, Sameness.CHANGED, _DRIVER),
    Planted("code: commit, other driver", Origin.CODE, moved=_DRIVER),
    Planted(
        "code: of the host, same machine code",
        Origin.CODE,
        Sameness.SAME,
        is_of_device=False,
    ),
    Planted("method: the test", Origin.METHOD, moved={TEST: ("a", "b")}),
    Planted("method: a package", Origin.METHOD, moved={"torch": ("2.9", "2.10")}),
    Planted(
        "method: a package compiles other code",
        Origin.METHOD,
        Sameness.CHANGED,
        {"triton": ("3.4", "3.9")},
    ),
    Planted("machine: same commit", Origin.MACHINE, is_same_commit=True),
    Planted("machine: same code, other driver", Origin.MACHINE, Sameness.SAME, _DRIVER),
    Planted("machine: same code", Origin.MACHINE, Sameness.SAME),
    Planted("noise", Origin.NOISE, is_slower=False),
)


def background_of(planted: Planted) -> Background:
    """Return what a run would know of the code."""
    then = Session(id="0", started_unix_s=0.0, host="h", commit="a", dirty=False)
    commit = "a" if planted.is_same_commit else "b"
    now = Session(id="now", started_unix_s=1.0, host="h", commit=commit, dirty=False)
    return Background(session=now, stored=(then,), code=planted.code)


def _slower(value: SessionValue, log: float) -> SessionValue:
    factor = math.exp(log)
    return replace(value, run_values=tuple(v * factor for v in value.run_values))


def verdicts_of(suite: Simulated, planted: Planted, effect: float) -> list[Verdict]:
    """Return the verdicts on the first test, or on all tests if none is slower."""
    logs = [planted.of_all] * suite.count
    logs[0] += effect if planted.is_slower else 0.0
    cases: list[Case] = []
    for case, log in zip(cases_of(suite), logs, strict=False):
        assert case.current is not None
        assert case.estimate is not None
        value = _slower(case.current, log)
        estimate = replace(case.estimate, value=value.run_values[0])
        cases.append(
            replace(case, current=value, estimate=estimate, moved=planted.moved)
        )
    references = [
        replace(
            reference,
            current=reference.current and _slower(reference.current, planted.of_all),
            fresh=reference.fresh and _slower(reference.fresh, planted.of_all),
        )
        for reference in references_of(suite, CONFIRM)
    ]
    first = plan_retests(cases, CONFIG, references=references)
    confirmed = {}
    for test_ids, control in ((first.controls, True), (first.suspects, False)):
        for test_id in test_ids:
            column = int(test_id)
            again = (suite.fresh[:CONFIRM, column] + logs[column]).tolist()
            value = SessionValue(
                metric="time",
                unit="s",
                source="cupti" if planted.is_of_device else "host",
                run_values=tuple(map(math.exp, again)),
            )
            confirmed[cases[column].name] = Confirmation(value=value, control=control)
    found = settle(cases, confirmed, looks=first.looks, references=references)
    return [found[0]] if planted.is_slower else [*found]


def answers(planted: Planted, suites: int, tests: int, seed: int) -> Counter[str]:
    """Return how often each origin was given for failures by a cause."""
    counts: Counter[str] = Counter()
    background = background_of(planted)
    wanted = {Outcome.REGRESSED}
    if not planted.is_slower:
        wanted = {Outcome.REGRESSED, Outcome.INCONCLUSIVE}
    size = Size(tests=tests, sessions=5, device=planted.is_of_device)
    for place, machine in enumerate(m for m in MACHINES if m.name in NAMES):
        draw = np.random.default_rng([seed, place])
        for _ in range(suites):
            suite = Simulated(machine, size, draw)
            for verdict in verdicts_of(suite, planted, math.log(1.6)):
                change = verdict.change
                if verdict.outcome not in wanted or change is None:
                    continue
                if (change.effect or 0.0) > 0:
                    origin = with_origin(verdict, background).origin
                    counts["unknown" if origin is None else origin.origin.value] += 1
    return counts


def missed(planted: Planted, counts: Counter[str]) -> Sequence[str]:
    """Return what is wrong with a row."""
    total = counts.total()
    if not total:
        return [f"{planted.name}: nothing failed"]
    wrong = []
    if counts[planted.origin.value] < RIGHT * total:
        wrong.append(f"{planted.name}: {counts[planted.origin.value]} of {total} right")
    of_machine = counts[Origin.MACHINE.value]
    if planted.origin is Origin.CODE and of_machine > CODE_AS_MACHINE * total:
        wrong.append(f"{planted.name}: {of_machine} of {total} blamed on the machine")
    return wrong


def main() -> int:
    """Print a row for each planted cause; return 0 if all promises are kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suites", type=int, default=20, help="for each machine")
    parser.add_argument("--tests", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    names = [*(origin.value for origin in Origin), "unknown"]
    print(f"{'planted':40}" + "".join(f"{name:>9}" for name in names))
    wrong: list[str] = []
    for planted in PLANTED:
        counts = answers(planted, given.suites, given.tests, given.seed)
        total = counts.total() or 1
        shares = "".join(f"{counts[name] / total:9.2f}" for name in names)
        print(f"{planted.name:40}{shares}   of {counts.total()}", flush=True)
        wrong += missed(planted, counts)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
