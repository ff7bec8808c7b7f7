"""What a store has lost after its writers were killed, and after many wrote at once.

Each round starts a process that stores sessions, kills it (SIGKILL) after a random time,
and reads the store: every session must be there as a whole or not at all, and every one
that the process has reported as stored must be there. Then several processes store at
once, and the longest wait of each is printed.

A folder has a file for each machine, and keeps 20 sessions. So each round has a folder of
its own, and a kill between two files leaves a session of one machine, which is no tear.

    python benchmarks/store_kills.py --rounds 300
    python benchmarks/store_kills.py --place .gpuperf --writers 2 --sessions 10
    python benchmarks/store_kills.py --place postgresql://me@/perf?host=/run/postgresql
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time

from pytest_gpuperf.baseline.changes import Append
from pytest_gpuperf.baseline.store import names_database, open_store
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.record import RecordKey, SessionValue, StoredRecord

TESTS = 25
METRICS = ("time", "memory", "energy", "power")
SLUGS = ("gpu", "host")
# A writer is killed within this time after its first session [s].
LONGEST_S = 0.25


def records(session_id: str) -> list[StoredRecord]:
    """Return what a session stores of a machine."""
    head = Session(id=session_id, started_unix_s=time.time(), host="h", ran_count=TESTS)
    return [
        StoredRecord(
            key=RecordKey(test_id=f"t.py::t[{test}]"),
            session=head,
            values=tuple(
                SessionValue(
                    metric=m, unit="s", source="host", run_values=(1.0 + test,)
                )
                for m in METRICS
            ),
        )
        for test in range(TESTS)
    ]


def write(place: str, folder: str, name: str, count: int) -> None:
    """Store sessions, and print the id of each with the time that it took [s]."""
    store = open_store(place, folder, create=True)
    for number in range(count):
        session_id = f"{name}-{number}"
        changes = [Append(record=record) for record in records(session_id)]
        began_s = time.perf_counter()
        store.write_all(dict.fromkeys(SLUGS, changes))
        print(session_id, time.perf_counter() - began_s, flush=True)


def writer(place: str, folder: str, name: str, count: int) -> subprocess.Popen[str]:
    """Start a process that stores sessions."""
    return subprocess.Popen(
        [
            *(sys.executable, __file__, f"--place={place}", f"--folder={folder}"),
            *(f"--write={name}", f"--sessions={count}"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )


def found(place: str, folder: str) -> tuple[set[str], set[str]]:
    """
    Return the sessions that are whole, and those that are torn.

    In a store of files, a session of one machine only is neither.
    """
    store = open_store(place, folder)
    values: dict[str, dict[str, int]] = {}
    for slug in SLUGS:
        for several in store.load(slug, past=True).values():
            for record in several:
                of_slug = values.setdefault(record.session.id, {})
                of_slug[slug] = of_slug.get(slug, 0) + len(record.values)
    assert not store.damage, store.damage
    whole = dict.fromkeys(SLUGS, TESTS * len(METRICS))
    parts = [whole]
    if not names_database(place):
        parts += [{slug: count} for slug, count in whole.items()]
    torn = {name for name, of_slug in values.items() if of_slug not in parts}
    return {name for name, of_slug in values.items() if of_slug == whole}, torn


def kill_rounds(place: str, folder: str, rounds: int, most_s: float) -> None:
    """Kill writers, and print what is lost and torn."""
    began_s, done = time.perf_counter(), 0
    chance = random.Random(41)  # noqa: S311 - a time, and no secret
    said: set[str] = set()
    places: set[str] = set()
    mark = f"{os.getpid()}"
    while done < rounds and time.perf_counter() - began_s < most_s:
        of_round = place if names_database(place) else f"{done}/{place}"
        places.add(of_round)
        process = writer(of_round, folder, f"k{mark}-{done}", 10_000)
        done += 1
        assert process.stdout is not None
        said.add(process.stdout.readline().split()[0])
        time.sleep(chance.uniform(0, LONGEST_S))
        process.kill()
        lines = process.communicate()[0].splitlines(keepends=True)
        # The last line may have been cut.
        said |= {line.split()[0] for line in lines if line.endswith("\n")}
    stored = [found(each, folder) for each in places]
    whole = {name for names, _ in stored for name in names}
    torn = sum(len(names) for _, names in stored)
    print(
        f"{done} kills: {len(said)} sessions reported, {len(said - whole)} of them lost, "
        f"{torn} torn; {len(whole - said)} stored and not yet reported"
    )


def children_cpu_s() -> float:
    """Return the CPU time of ended children, which other programs hardly change [s]."""
    used = os.times()
    return used.children_user + used.children_system


def many_writers(place: str, folder: str, writers: int, sessions: int) -> None:
    """Let processes store at once, and print what is lost and how long they waited."""
    began_s, cpu_s = time.perf_counter(), children_cpu_s()
    processes = [
        writer(place, folder, f"m{os.getpid()}-{n}", sessions) for n in range(writers)
    ]
    lines = [
        line.split()
        for each in processes
        for line in each.communicate()[0].splitlines()
    ]
    took_s, cpu_s = time.perf_counter() - began_s, children_cpu_s() - cpu_s
    whole, torn = found(place, folder)
    waits_s = sorted(float(wait) for _, wait in lines)
    said = {name for name, _ in lines}
    print(
        f"{writers} writers x {sessions}: {len(said)} reported, {len(said - whole)} lost, "
        f"{len(torn)} torn, {len(said) / took_s:.0f}/s, {cpu_s / len(said) * 1e3:.1f} ms of "
        "CPU time each; wait p50 "
        f"{waits_s[len(waits_s) // 2] * 1e3:.0f} ms, p95 "
        f"{waits_s[len(waits_s) * 95 // 100] * 1e3:.0f} ms, longest {waits_s[-1]:.2f} s"
    )


def main() -> int:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--place", default="sqlite:///perf.db")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="no kill after this time"
    )
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--write", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.place, arguments.folder, arguments.write, arguments.sessions)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if arguments.rounds:
            kill_rounds(arguments.place, folder, arguments.rounds, arguments.seconds)
        many_writers(arguments.place, folder, arguments.writers, arguments.sessions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
