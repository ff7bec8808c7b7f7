"""How often an unchanged suite of many kinds of real bodies fails, on this machine.

Stores some sessions of a suite of 40 tests and runs it again and again, unchanged, in random
order, with each number of busy loops beside it. The bodies are what suites have: parsing,
regular expressions, sorts in place, numpy with the threads of its BLAS, thread pools, garbage,
memoized values, files. Each session and each run is a pytest process of its own, with the
confirming processes that the gate starts itself.

    python benchmarks/clean_runs.py --runs 60 --busy 0 2 4
    python benchmarks/clean_runs.py --runs 60 --edited
    python benchmarks/clean_runs.py --runs 12 --by against --budget 60s --busy 0 2 4
    python benchmarks/clean_runs.py --runs 20 --planted 20 60
    python benchmarks/clean_runs.py --runs 10 --busy 0 --planted 100 --reproduce

Prints a line for each run, and for each load: the runs that failed, why, and how long a run
took. Unchanged runs measure the commit that is stored; with `--edited`, a file differs from it
in a line that does nothing. A planted run slows one test by a share of its work; it counts as
found when that test regressed, and a regression of another test is an alarm there, too. With
`--reproduce`, the printed `reproduce:` line of each found test is run as it stands. `--log`
appends the whole verdicts of each run to a file, a line of JSON each. `--keep` names a folder
that gets the report and the store of each unchanged run that failed.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from _pairs import CHECKOUT, environment, new_environment
from real_gate import GOOD, busy, git, plant, project

# each body is a function of how much work it does; its usual amount stands behind it, and
# of what is plantable there is twice as much
SUITE = r"""
import array
import collections
import configparser
import csv
import datetime
import functools
import gc
import hashlib
import heapq
import io
import itertools
import json
import os
import random
import re
import string
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from planted import SHARE, TEST

DRAW = random.Random(7)
WORDS = ["".join(DRAW.choices(string.ascii_lowercase, k=7)) for _ in range(4000)]
LOG = [
    f"2026-11-{1 + n % 28:02} 12:{n % 60:02}:07 host{n % 9} GET /{WORDS[n]} {n * 7 % 5000} 0.{n % 1000:03}"
    for n in range(2000)
]
ROWS = [{"id": n, "name": WORDS[n], "tags": WORDS[n : n + 3], "x": n / 7} for n in range(900)]
TEXT = " ".join(WORDS)
PATTERN = re.compile(r"(\S+) (\S+) (host\d+) GET /(\w+) (\d+) ([\d.]+)")
FLOATS = np.random.default_rng(5).random(200_000)
MATRIX = np.random.default_rng(6).random((256, 256))
INI = "\n".join(f"[s{n}]\na = {n}\nb = x" for n in range(120))


def loop(n):
    total = 0
    for number in range(n):
        total += number & 7
    return total


def parse_log(n):
    return [line.split(" ") for line in LOG[:n]]


def match_log(n):
    return [PATTERN.match(line) for line in LOG[:n]]


def find_words(n):
    return re.findall(r"\b[a-m]\w+[aeiou]\b", TEXT[: n * 8])


def substitute(n):
    return re.sub(r"[aeiou]{2}", "-", TEXT[: n * 8])


def count_words(n):
    counts = {}
    for word in WORDS[:n]:
        counts[word[0]] = counts.get(word[0], 0) + 1
    return counts


def counter(n):
    return collections.Counter(word[:2] for word in WORDS[:n])


def sort_words(n):
    return sorted(WORDS[:n])


def sort_by_key(n):
    return sorted(WORDS[:n], key=lambda word: word[::-1])


def encode_json(n):
    return json.dumps(ROWS[:n])


def decode_json(n):
    return json.loads(_encoded(n))


@functools.lru_cache
def _encoded(n):
    return json.dumps(ROWS[:n])


def read_csv(n):
    return list(csv.reader(io.StringIO(_csv(n))))


@functools.lru_cache
def _csv(n):
    return "\n".join(f"{row['id']},{row['name']},{row['x']}" for row in ROWS[:n])


def read_ini(n):
    parser = configparser.ConfigParser()
    parser.read_string(INI[: n * 16])
    return parser


def parse_dates(n):
    return [datetime.datetime.strptime(line[:19], "%Y-%m-%d %H:%M:%S") for line in LOG[:n]]


def hash_text(n):
    return hashlib.sha256(TEXT.encode() * n).hexdigest()


def compress(n):
    return zlib.compress(TEXT[: n * 8].encode(), 6)


def heap(n):
    items = []
    for word in WORDS[:n]:
        heapq.heappush(items, word)
    return [heapq.heappop(items) for _ in range(n)]


def graph(n):
    edges = {i: [(i * 7 + 1) % n, (i * 3 + 2) % n] for i in range(n)}
    seen, todo = {0}, [0]
    while todo:
        for other in edges[todo.pop()]:
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return len(seen)


def permutations(n):
    return sum(1 for _ in itertools.islice(itertools.permutations(range(9)), n))


def objects(n):
    return [collections.namedtuple for _ in range(n)] and [Point(i, i) for i in range(n)]


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y


def cycles(n):
    for _ in range(n):
        a, b = [], []
        a.append(b)
        b.append(a)
    return n


def strings(n):
    return "".join(f"{number:08.3f};" for number in range(n))


def bytes_of(n):
    data = bytearray(n)
    for place in range(0, n, 7):
        data[place] = place & 255
    return bytes(data)


def swap(n):
    values = array.array("d", range(n))
    values.byteswap()
    return values


def add(n):
    return FLOATS[:n] + FLOATS[:n] * 1.5


def normalize(n):
    part = FLOATS[:n]
    return (part - part.mean()) / part.std()


def softmax(n):
    e = np.exp(FLOATS[:n] - FLOATS[:n].max())
    return e / e.sum()


def histogram(n):
    return np.histogram(FLOATS[:n], bins=64)


def argsort(n):
    return np.argsort(FLOATS[:n])


def matmul(n):
    return MATRIX[:n] @ MATRIX


def solve(n):
    return np.linalg.solve(MATRIX[:n, :n] + np.eye(n) * n, MATRIX[0, :n])


def einsum(n):
    return np.einsum("ij,jk->ik", MATRIX[:n], MATRIX)


def fft(n):
    return np.fft.rfft(FLOATS[:n])


def threads(n):
    workers = [threading.Thread(target=loop, args=(n,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


POOL = ThreadPoolExecutor(3)


def pool(n):
    return sum(POOL.map(hash_part, range(n)))


def hash_part(number):
    return len(hashlib.sha256(TEXT[:20000].encode() + bytes([number % 256])).digest())


def collect(n):
    keep = [[number] for number in range(n)]
    gc.collect()
    return len(keep)


BODIES = {
    loop: 40_000, parse_log: 1000, match_log: 800, find_words: 1500, substitute: 1500,
    count_words: 2000, counter: 2500, sort_words: 3000, sort_by_key: 2500, encode_json: 450,
    decode_json: 450, read_csv: 700, read_ini: 60, parse_dates: 150, hash_text: 20,
    compress: 1200, heap: 1200, graph: 2500, permutations: 9000, objects: 2500, cycles: 2000,
    strings: 3000, bytes_of: 40_000, swap: 40_000, add: 100_000, normalize: 60_000,
    softmax: 60_000, histogram: 60_000, argsort: 20_000, matmul: 128, solve: 90, einsum: 64,
    fft: 60_000, threads: 8000, pool: 12, collect: 3000,
}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_body(gpuperf, body):
    amount = BODIES[body]
    if body.__name__ == TEST:
        amount = round(amount * (1 + SHARE))
    gpuperf.measure(body, amount)


def test_sort_in_place(gpuperf):
    gpuperf.measure(list.sort, setup=lambda: (list(WORDS[:2000]),))


def test_out(gpuperf):
    out = np.empty(100_000)
    gpuperf.measure(np.multiply, FLOATS[:100_000], 2.0, out=out)


def test_write(gpuperf, tmp_path):
    data = TEXT.encode()

    def write():
        with open(tmp_path / "text", "wb") as file:
            file.write(data)

    gpuperf.measure(write)


def test_sync(gpuperf, tmp_path):
    def sync():
        with open(tmp_path / "text", "wb") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())

    gpuperf.measure(sync)
"""
# their time grows as the amount does
PLANTABLE = (
    *("loop", "parse_log", "match_log", "count_words", "encode_json", "decode_json"),
    *("parse_dates", "hash_text", "strings", "add", "softmax", "histogram", "heap"),
)
# each run has the tests in another order, as pytest-randomly gives it
ORDER = """
import os
import random


def pytest_collection_modifyitems(items):
    random.Random(int(os.environ["ORDER_SEED"])).shuffle(items)
"""


@dataclass(kw_only=True)
class Load:
    """
    What the runs beside one number of busy loops came to.

    Attributes:
        walls_s: How long each run took [s].

        failed: The verdicts that failed unchanged tests, a tuple a run.

        found: For each planted run, whether the planted test regressed.

        again: The outcome of each found test in the run of its `reproduce:` line.

        outcomes: How many verdicts of each outcome unchanged runs had.

        stored_s: How long a storing session took [s].
    """

    walls_s: list[float] = field(default_factory=list)
    failed: list[tuple[str, ...]] = field(default_factory=list)
    found: dict[int, list[bool]] = field(default_factory=dict)
    again: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    stored_s: list[float] = field(default_factory=list)


def main() -> int:
    """Run all loads; return 0 where at most 1 of 180 unchanged runs failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--sessions", type=int, default=5)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 2, 4])
    parser.add_argument("--planted", type=int, nargs="*", default=[], metavar="PERCENT")
    parser.add_argument("--reproduce", action="store_true")
    parser.add_argument("--by", choices=("baseline", "against"), default="baseline")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--edited", action="store_true")
    parser.add_argument("--log", type=Path, metavar="FILE")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    draw = random.Random(3)  # noqa: S311 - an order, not a secret
    failed_count = run_count = 0
    with tempfile.TemporaryDirectory() as scratch:
        python = new_environment(Path(scratch, "python"), str(CHECKOUT), "numpy")
        folder = project(Path(scratch, "project"), SUITE, ORDER)
        if options.by == "baseline" and not options.edited:
            plant(folder, "", 0.0)
            git(folder, "commit", "-qam", "nothing planted")
        stored_s = []
        if options.by == "baseline":
            for _ in range(options.sessions):
                begin = time.perf_counter()
                run(python, folder, draw, ("--gpuperf-update=all",))
                stored_s.append(time.perf_counter() - begin)
            print(
                f"{options.sessions} sessions, {statistics.median(stored_s):.1f} s each"
            )
        gate = gate_of(options)
        for loops in options.busy:
            with busy(loops):
                load = _unchanged(python, folder, draw, gate, options, loops)
                _planted(python, folder, draw, gate, options, load)
            _print(loops, load)
            failed_count += sum(map(bool, load.failed))
            run_count += len(load.failed)
    print(f"{failed_count} of {run_count} unchanged runs failed")
    return 1 if failed_count * 180 > run_count else 0


def gate_of(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the options of pytest that name the gate."""
    if options.by == "against":
        return ("--gpuperf-against=HEAD", f"--gpuperf-budget={options.budget}")
    return ("--gpuperf-baseline=.gpuperf",)


def _unchanged(
    python: Path,
    folder: Path,
    draw: random.Random,
    gate: Sequence[str],
    options: argparse.Namespace,
    loops: int,
) -> Load:
    """Return what the unchanged runs of one load came to."""
    load = Load()
    plant(folder, "", 0.0)
    for number in range(options.runs):
        begin = time.perf_counter()
        verdicts, _ = run(python, folder, draw, gate)
        load.walls_s.append(time.perf_counter() - begin)
        bad = tuple(map(text_of, filter(is_failure, verdicts)))
        load.failed.append(bad)
        load.outcomes.update(str(verdict["outcome"]) for verdict in verdicts)
        wall = f"{load.walls_s[-1]:.1f} s"
        print(f"{loops} loops, run {number + 1}: {wall} {'; '.join(bad)}", flush=True)
        _log(options, {"loops": loops, "run": number, "verdicts": verdicts})
        if bad and options.keep is not None:
            kept = options.keep / f"{loops}-loops-run-{number + 1}"
            shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("__pycache__"))
    return load


def _planted(
    python: Path,
    folder: Path,
    draw: random.Random,
    gate: Sequence[str],
    options: argparse.Namespace,
    load: Load,
) -> None:
    """Run the suite with one test slowed by each share, and note whether it is found."""
    for percent in options.planted:
        for _ in range(options.runs):
            test = draw.choice(PLANTABLE)
            plant(folder, test, percent / 100)
            verdicts, printed = run(python, folder, draw, gate)
            bad = [v for v in verdicts if is_failure(v)]
            found = any(f"[{test}]" in json.dumps(v["key"]) for v in bad)
            others = [
                text_of(v) for v in bad if f"[{test}]" not in json.dumps(v["key"])
            ]
            load.found.setdefault(percent, []).append(found)
            # The output of a run with an alarm says how it was confirmed.
            more = {"printed": printed} if others else {}
            entry = {"planted": test, "percent": percent, "verdicts": verdicts}
            _log(options, {**entry, **more})
            said = "found" if found else "missed"
            if found and options.reproduce:
                outcome = _outcome_again(python, folder, draw, printed, test)
                load.again[outcome] += 1
                said = f"{said}, then {outcome}"
            print(f"+{percent} % {test}: {said} {'; '.join(others)}", flush=True)
    plant(folder, "", 0.0)


def _log(options: argparse.Namespace, entry: dict[str, object]) -> None:
    """Append a run to the file of `--log`, if one was named."""
    if options.log is not None:
        with options.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")


def _outcome_again(
    python: Path, folder: Path, draw: random.Random, printed: str, test: str
) -> str:
    """Return the outcome of a test in the run of its printed `reproduce:` line."""
    lines = re.findall(r"reproduce: pytest (.*)$", printed, re.MULTILINE)
    # A line that names no test repeats the whole run.
    (line, *_) = [each for each in lines if f"[{test}]" in each] or lines
    verdicts, _ = run(python, folder, draw, shlex.split(line))
    for verdict in verdicts:
        if f"[{test}]" in json.dumps(verdict["key"]) and verdict["metric"] == "time":
            return str(verdict["outcome"])
    return "not measured"


def run(
    python: Path, folder: Path, draw: random.Random, options: Sequence[str]
) -> tuple[list[dict[str, object]], str]:
    """Run the suite once in an order of its own; return its verdicts and its output."""
    answer = folder / "run.json"
    argv = [python, "-m", "pytest", "-q", *options, f"--gpuperf-json={answer}"]
    done = subprocess.run(
        argv,
        cwd=folder,
        # Lines are as long as a terminal is wide.
        env=environment({"ORDER_SEED": str(draw.randrange(10**6)), "COLUMNS": "300"}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in GOOD:
        sys.exit(f"exit status {done.returncode}\n{done.stdout[-3000:]}{done.stderr}")
    return json.loads(answer.read_text("utf-8"))["verdicts"], done.stdout


def is_failure(verdict: dict[str, object]) -> bool:
    """Return whether a verdict fails its test."""
    return verdict["outcome"] in {"regressed", "failed"}


def text_of(verdict: dict[str, object]) -> str:
    """Return a verdict in a few words."""
    change = verdict["change"] or {}
    effect = change.get("effect") if isinstance(change, dict) else None
    size = "" if effect is None else f" {effect:+.1%}"
    test = json.dumps(verdict["key"]).rpartition("::")[2].partition('"')[0]
    return f"{test} {verdict['metric']}{size} {verdict['outcome']}"


def _print(loops: int, load: Load) -> None:
    """Print what one load came to."""
    failed = [bad for bad in load.failed if bad]
    print(f"\n{loops} busy loops: {len(failed)} of {len(load.failed)} unchanged failed")
    if load.walls_s:
        print(f"a run took {statistics.median(load.walls_s):.1f} s in the median")
    counts = ", ".join(f"{n} {name}" for name, n in load.outcomes.most_common())
    print(f"verdicts: {counts}")
    for percent, found in load.found.items():
        print(f"+{percent} %: found {sum(found)} of {len(found)}")
    if load.again:
        again = ", ".join(f"{n} {name}" for name, n in load.again.most_common())
        print(f"their `reproduce:` lines, run as printed: {again}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
