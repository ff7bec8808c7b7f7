"""What the gate does on this machine: real bodies, nothing planted, and 20, 60, 100 %.

A try stores some sessions of a small suite in a fresh baseline and then runs the suite
against it, once with nothing planted and once with each slowdown planted in one of its
tests. Nothing is simulated: each session and each run is a pytest process of its own, with
the confirming processes that the gate starts itself. `--busy` asks for loops that occupy
the cores meanwhile.

    python benchmarks/real_gate.py --tries 30 --busy 0 1 2
    python benchmarks/real_gate.py --tries 200 --planted 0
    python benchmarks/real_gate.py --tries 30 --by against
    python benchmarks/real_gate.py --tries 10 --recover

With `--by against` nothing is stored: the unplanted suite is a commit, and every run
compares with it (`--gpuperf-against`). With `--by confirm` three sessions are stored, and
their commit decides about suspects (`--gpuperf-confirm-by=against`).

With `--recover` the second of the stored sessions has one test at three times its time.
+60 % is then planted in that test, and sessions are added until a run finds it.

Prints a line for each run, and for each load and slowdown: runs that failed because of the
planted test, runs that failed because of another one (false alarms), inconclusive ones, and
how long a run took. `--log` appends the verdicts of each run to a file, a line of JSON each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from _pairs import CHECKOUT, environment, new_environment

TESTS = ("loop", "multiply", "copy", "encode")
# one test does more work by the planted share; the others are as they were stored
SUITE = """
import json

import numpy as np
from planted import SHARE, TEST


def amount(name, usual):
    return round(usual * (1 + SHARE)) if name == TEST else usual


def test_loop(gpuperf):
    count = amount("loop", 60_000)

    def loop():
        total = 0
        for number in range(count):
            total += number & 7
        return total

    assert gpuperf(loop) > 0


def test_multiply(gpuperf):
    left = np.arange(30_000, dtype=np.float64)
    count = amount("multiply", 100)

    def multiply():
        for _ in range(count):
            result = left * 1.5
        return result

    assert gpuperf(multiply)[2] == 3


def test_copy(gpuperf):
    source = np.ones(amount("copy", 1_000_000), dtype=np.uint32)
    target = np.zeros_like(source)

    def copy():
        np.copyto(target, source)
        return target

    assert gpuperf(copy)[0] == 1


def test_encode(gpuperf):
    rows = [{"name": str(n), "value": n} for n in range(amount("encode", 2_000))]
    assert len(gpuperf(lambda: json.dumps(rows))) > 0
"""
BUSY = "while True: pass"
PLANTED = "TEST = {test!r}\nSHARE = {share!r}\n"  # of a project, beside its suite
IGNORED = ".gpuperf\n.pytest_cache\n__pycache__\nrun.json\n"
# what is stored, and what decides, by the name of --by
STORED = {"baseline": True, "against": False, "confirm": True}
GATES = {
    "baseline": ("--gpuperf-baseline=.gpuperf",),
    "against": ("--gpuperf-against=HEAD",),
    "confirm": ("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm-by=against"),
}
GOOD = frozenset({0, 1})  # a failed gate is an answer; anything else is a mistake
OUTLIER_SHARE = 2.0  # of the bad session of --recover: three times its time
RECOVERED_SHARE = 0.6  # planted where --recover asks whether the gate sees again
MOST_ADDED = 6  # sessions that --recover adds before it gives a try up


@dataclass(kw_only=True)
class Tally:
    """
    What the runs of one load and slowdown came to.

    Attributes:
        found_count: Runs in which the planted test regressed.

        alarm_count: Runs in which a test regressed that was not planted.

        inconclusive_count: Runs in which the planted test was inconclusive.

        walls_s: How long each run took [s].
    """

    found_count: int = 0
    alarm_count: int = 0
    inconclusive_count: int = 0
    walls_s: list[float] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, verdicts: Sequence[dict[str, object]], planted: str) -> None:
        """Count the verdicts of one run; planted: the slowed test, "" for none."""
        outcomes = {test_of(verdict): verdict for verdict in verdicts}
        regressed = {name for name, v in outcomes.items() if is_regressed(v)}
        self.found_count += planted in regressed
        self.alarm_count += bool(regressed - {planted})
        slowed = outcomes.get(planted)
        if slowed is not None and slowed["outcome"] == "inconclusive":
            self.inconclusive_count += 1
            self.reasons[str(slowed["reason"])] += 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """
    The gate that is tried, in its own environment.

    Attributes:
        python: Interpreter that has the package.

        folder: Project that is made anew for each try.

        options: Options of pytest that name the gate.

        log: File that gets the verdicts of each run.

        loops: Busy loops beside it.
    """

    python: Path
    folder: Path
    options: Sequence[str]
    log: Path | None
    loops: int

    def run(self, *options: str) -> list[dict[str, object]]:
        """Run the suite once and return its verdicts on `time`."""
        answer = self.folder / "run.json"
        argv = [self.python, "-m", "pytest", "-q", *options, f"--gpuperf-json={answer}"]
        process = subprocess.run(
            argv,
            cwd=self.folder,
            env=environment({}),
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode not in GOOD:
            sys.exit(f"exit status {process.returncode}\n{process.stdout[-3000:]}")
        verdicts = json.loads(answer.read_text("utf-8"))["verdicts"]
        return [verdict for verdict in verdicts if verdict["metric"] == "time"]


def main() -> int:
    """Run all tries; return 0 where no unchanged run failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=30)
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--busy", type=int, nargs="+", default=[0], metavar="LOOPS")
    parser.add_argument(
        "--planted",
        type=int,
        nargs="+",
        default=[0, 20, 60, 100],
        metavar="PERCENT",
    )
    parser.add_argument("--by", choices=tuple(GATES), default="baseline")
    parser.add_argument("--recover", action="store_true")
    parser.add_argument("--log", type=Path, metavar="FILE")
    options = parser.parse_args()
    stored_count = options.sessions if STORED[options.by] else 0
    shares = [percent / 100 for percent in options.planted]
    alarms = 0
    with tempfile.TemporaryDirectory() as scratch:
        python = new_environment(Path(scratch, "python"), str(CHECKOUT), "numpy")
        for loops in options.busy:
            gate = Gate(
                python=python,
                folder=Path(scratch, "project"),
                options=GATES[options.by],
                log=options.log,
                loops=loops,
            )
            if options.recover:
                with busy(loops):
                    _recoveries(gate, options.tries, options.sessions)
                continue
            with busy(loops):
                tallies = _tries(gate, options.tries, stored_count, shares)
            _print_table(loops, stored_count, options.tries, tallies)
            alarms += sum(tally.alarm_count for tally in tallies.values())
    return 1 if alarms else 0


def _tries(
    gate: Gate, count: int, sessions: int, shares: Sequence[float]
) -> dict[float, Tally]:
    """Return what came of each slowdown; every try has a project of its own."""
    draw = random.Random(1)  # noqa: S311 - an order, not a secret
    tallies = {share: Tally() for share in shares}
    for number in range(count):
        project(gate.folder)
        for _ in range(sessions):
            gate.run("--gpuperf-update=all")
        for share in draw.sample(shares, len(shares)):
            test = draw.choice(TESTS) if share else ""
            plant(gate.folder, test, share)
            begin = time.perf_counter()
            verdicts = gate.run(*gate.options)
            wall_s = time.perf_counter() - begin
            tallies[share].walls_s.append(wall_s)
            tallies[share].add(verdicts, test)
            _say(gate, number, f"{share:+.0%} {test or '-'}, {wall_s:.1f} s", verdicts)
    return tallies


def _recoveries(gate: Gate, count: int, sessions: int) -> None:
    """Print after how many added sessions a test with one bad session is seen again."""
    draw = random.Random(1)  # noqa: S311 - an order, not a secret
    added: Counter[str] = Counter()
    for number in range(count):
        project(gate.folder)
        test = draw.choice(TESTS)
        for session in range(sessions):
            plant(gate.folder, test, OUTLIER_SHARE if session == 1 else 0.0)
            gate.run("--gpuperf-update=all")
        found = "never"
        for more in range(MOST_ADDED + 1):
            plant(gate.folder, test, RECOVERED_SHARE)
            verdicts = gate.run(*gate.options)
            _say(gate, number, f"{test}, {more} sessions added", verdicts)
            if any(is_regressed(v) and test_of(v) == test for v in verdicts):
                found = str(more)
                break
            plant(gate.folder, test, 0.0)
            gate.run("--gpuperf-update=all")
        added[found] += 1
    print(
        f"\n{gate.loops} busy loops, {sessions} sessions, the second bad, {count} tries"
    )
    for more, tries in sorted(added.items()):
        print(f"found again after {more:>5} added sessions: {tries} tries", flush=True)


def _say(
    gate: Gate, number: int, what: str, verdicts: Sequence[dict[str, object]]
) -> None:
    """Print the line of one run, and append its verdicts to the log."""
    outcomes = ", ".join(f"{test_of(v)} {v['outcome']}" for v in verdicts)
    print(f"try {number + 1}: {what}: {outcomes}", flush=True)
    if gate.log is None:
        return
    entry = {"try": number, "loops": gate.loops, "what": what, "verdicts": verdicts}
    with gate.log.open("a", encoding="utf-8") as log:
        log.write(json.dumps(entry) + "\n")


def is_regressed(verdict: dict[str, object]) -> bool:
    """Return whether a verdict says that its test got slower."""
    return verdict["outcome"] == "regressed"


def test_of(verdict: dict[str, object]) -> str:
    """Return the name of a verdict's test, without file and prefix."""
    return json.dumps(verdict["key"]).rpartition("::test_")[2].partition('"')[0]


def project(folder: Path, suite: str = SUITE, conftest: str = "") -> Path:
    """Return a project with a suite, whose one commit has nothing planted."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "test_real.py").write_text(suite, "utf-8")
    (folder / "conftest.py").write_text(conftest, "utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    (folder / ".gitignore").write_text(IGNORED, "utf-8")
    plant(folder, "", 0.0)
    # a tree that does not differ is not compared with its commit
    with (folder / "planted.py").open("a", encoding="utf-8") as planted:
        planted.write("COMMITTED = True\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "as it was")
    return folder


def git(folder: Path, *arguments: str) -> str:
    """Run git in a project; return what it prints."""
    program = shutil.which("git") or sys.exit("git is not installed")
    who = ("-c", "user.name=real_gate", "-c", "user.email=real_gate@localhost")
    argv = [program, *who, *arguments]
    done = subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def plant(folder: Path, test: str, share: float) -> None:
    """Make one test of a project slower than it was committed; "": none."""
    text = PLANTED.format(test=test, share=share)
    (folder / "planted.py").write_text(text, "utf-8")


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep some loops running that do nothing but occupy a core."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _print_table(
    loops: int, sessions: int, tries: int, tallies: dict[float, Tally]
) -> None:
    """Print what one load came to."""
    print(f"\n{loops} busy loops, {sessions} stored sessions, {tries} tries")
    print(f"{'planted':>8}  {'found':>5}  {'alarms':>6}  {'inconclusive':>12}  wall")
    for share, tally in sorted(tallies.items()):
        found = f"{tally.found_count}" if share else "-"
        wall_s = statistics.median(tally.walls_s)
        reasons = ", ".join(f"{n} {name}" for name, n in tally.reasons.most_common())
        print(
            f"{share:>8.0%}  {found:>5}  {tally.alarm_count:>6}  "
            f"{tally.inconclusive_count:>12}  {wall_s:.1f} s  {reasons}"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
