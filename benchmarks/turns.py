"""What turns are worth, and what they cost: the same code measured on both sides.

    python benchmarks/turns.py --blocks=16

A block is two processes of each side. By turns, all four are alive and change places every
15 ms; one after another, each has the machine until it has measured everything. Blocks of
both kinds alternate, so that they meet the same machine. Nothing differs between the sides:
the spread of the differences is all noise.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import operator
import os
import statistics
import sys
import tempfile
import textwrap
import time
import timeit
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.devices import DeviceQuery
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.collect.runtime import NoDevice
from pytest_gpuperf.config import Config
from pytest_gpuperf.judge.against import Block
from pytest_gpuperf.measure.site import ProcessIdentity, Site
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.options import CHILD_VARIABLE
from pytest_gpuperf.pipeline.blocks import BlockRequest, run_block
from pytest_gpuperf.pipeline.turn_server import Patience

BODIES = """
    import numpy as np

    SOURCE = np.ones(1 << 19)
    TARGET = np.empty_like(SOURCE)

    def loop():
        total = 0
        for number in range(20_000):
            total += number
        return total

    def words():
        counts = {}
        for number in range(60_000):
            word = str(number % 7_000)
            counts[word] = counts.get(word, 0) + 1
        return len(counts)

    def copy():
        TARGET[:] = SOURCE

    def test_loop(gpuperf):
        gpuperf(loop)

    def test_words(gpuperf):
        gpuperf(words)

    def test_copy(gpuperf):
        gpuperf(copy)
"""
# each call is written down, so that the time between the turns of two processes is known
WITNESS = """
    import atexit
    import json
    import os
    from time import monotonic_ns
    from pathlib import Path

    import pytest

    CALLS = []

    def short():
        begun = monotonic_ns()
        while monotonic_ns() < begun + 1_000_000:
            pass
        CALLS.append((begun, monotonic_ns()))

    @pytest.mark.gpuperf(iterations=300)
    def test_short(gpuperf):
        gpuperf(short)

    @atexit.register
    def write():
        Path(os.environ["WITNESS"], str(os.getpid())).write_text(json.dumps(CALLS))
"""
NOT = {"not_": operator.not_}  # what is called where no turns are taken
KINDS = {"by turns": 4, "one after another": 1}  # processes that are alive at once


@dataclass(frozen=True)
class Command:
    """How a process of a side is started: both run the same folder."""

    side: Side
    folder: str

    @property
    def scratch(self) -> str:
        """A folder of all its processes."""
        return self.folder

    def argv(self, scratch: str, extra: Sequence[str] = ()) -> tuple[str, ...]:
        """Return its command line."""
        base = f"--basetemp={scratch}/base"
        return (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", base, *extra)

    def environment(self, scratch: str, hash_seed: int) -> Mapping[str, str]:
        """Return its environment."""
        return {
            **os.environ,
            "PYTHONHASHSEED": str(hash_seed),
            "WITNESS": self.folder,
            "SCRATCH": scratch,
        }


@dataclass(frozen=True)
class Sides:
    """The same folder twice."""

    old: Command
    new: Command

    def proof(self, side: Side, scratch: str, *, so_far: bool = False) -> None:
        """Say nothing against a process: both sides are the same folder."""


class Bench:
    """Runs blocks of a test file in a folder of its own."""

    def __init__(self, folder: Path, text: str) -> None:
        (folder / "test_it.py").write_text(textwrap.dedent(text), encoding="utf-8")
        self._sides = Sides(*(Command(side, str(folder)) for side in Side))
        self._site = Site(
            Config(root=str(folder)),
            ProcessIdentity(session=Session(id="s", started_unix_s=0.0, host="h")),
            clock=SystemClock(),
            runner=ProcessRunner(),
            runtime=NoDevice(),
            query=lambda: DeviceQuery(devices=(), reason="no driver"),
        )

    def block(self, names: Sequence[str], index: int, at_once: int) -> Block:
        """Run one block."""
        request = BlockRequest(
            variable=CHILD_VARIABLE,
            patience=Patience(300.0),
            tell=print,
            at_once=at_once,
        )
        test_ids = [f"test_it.py::test_{name}" for name in names]
        ran = run_block(self._sides, test_ids, index, site=self._site, request=request)
        assert isinstance(ran, Block), ran
        return ran


def values_of(block: Block, name: str) -> dict[Side, list[float]]:
    """Return the logarithms of the times of a test, by side."""
    values: dict[Side, list[float]] = {side: [] for side in Side}
    for run in block.runs:
        for record in run.records:
            if record.key.test_id.endswith(f"_{name}"):
                values[run.side].append(math.log(record.estimates[0].value))
    return values


def difference(block: Block, name: str) -> float:
    """Return ln NEW - ln OLD of a block."""
    values = values_of(block, name)
    return statistics.mean(values[Side.NEW]) - statistics.mean(values[Side.OLD])


def robust_sd(values: Sequence[float]) -> float:
    """Return the standard deviation that the median of the deviations says."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values)


def spread(folder: Path, count: int) -> None:
    """Print the spread of the differences of blocks of both kinds."""
    names = ("loop", "words", "copy")
    bench = Bench(folder, BODIES)
    blocks: dict[str, list[Block]] = {kind: [] for kind in KINDS}
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for index in range(count):
        kinds = list(KINDS)[:: 1 if index % 2 else -1]
        for kind in kinds:
            begun = time.monotonic()
            blocks[kind].append(bench.block(names, index, KINDS[kind]))
            seconds[kind].append(time.monotonic() - begun)
            found = [f"{difference(blocks[kind][-1], name):+7.2%}" for name in names]
            print(f"  {index:3} {kind:17} {' '.join(found)}", flush=True)
    print(f"{count} blocks of each kind; load {os.getloadavg()[0]:.1f}")
    for kind, ran in blocks.items():
        print(f"{kind}: {statistics.median(seconds[kind]):.1f} s a block")
        for name in names:
            found = [difference(block, name) for block in ran]
            print(
                f"  {name:6} robust sd {robust_sd(found):6.2%}  sd "
                f"{statistics.stdev(found):6.2%}  largest {max(map(abs, found)):6.2%}"
            )


def pauses(folder: Path) -> Iterator[float]:
    """Yield the time between the last call of a turn and the first of the next [s]."""
    calls = sorted(
        (begun, ended, path.name)
        for path in folder.iterdir()
        if path.name.isdecimal()
        for begun, ended in json.loads(path.read_bytes())
    )
    for early, late in itertools.pairwise(calls):
        if early[2] != late[2]:
            yield (late[0] - early[1]) / 1e9


def cost(folder: Path) -> None:
    """Print what a turn costs, and what it costs not to take any."""
    Bench(folder, WITNESS).block(["short"], 0, 4)
    found = sorted(pauses(folder))
    middle, late = found[len(found) // 2], found[len(found) * 9 // 10]
    print(
        f"{len(found)} changes: {middle * 1e6:.0f} us, 9 of 10 below {late * 1e6:.0f} us"
    )
    count = 100_000
    asked_s = min(
        timeit.repeat(
            "take(False)", "take = not_", number=count, repeat=50, globals=NOT
        )
    )
    empty_s = min(timeit.repeat("pass", number=count, repeat=50))
    print(f"no turns: {(asked_s - empty_s) / count * 1e9:.0f} ns a sample")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=16)
    args = parser.parse_args()
    for part in ("cost", "spread"):
        with tempfile.TemporaryDirectory() as folder:
            if part == "cost":
                cost(Path(folder))
            else:
                spread(Path(folder), args.blocks)


if __name__ == "__main__":
    main()
