"""Run the steps of a session on a GPU, whatever ends it, with what they say in few files.

    python .ci/gpu_steps.py [--check] OUT [PART|STEP]...

With --check it only says whether all names are known.

Each step has a process group and a limit of its own, and all together have GPU_SECONDS: a
limit is cut to what is left, and a step for which too little is left is not begun. What a
step prints goes straight into OUT/log.txt, and the rest into OUT when the step has ended;
so a session that is killed has lost the rest of one step. TERM ends the step that runs.

OUT gets at most eight files: index.md, log.txt, doctor.json, probe.jsonl, tests.xml,
captures.tar.gz, tables.md and examples.tar.gz.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn
from xml.etree import ElementTree as ET

SECONDS = 570.0  # a command of ten minutes, less what it takes to begin and to end
LEAST_S = 10.0  # too little for a step to be worth beginning
GRACE_S = 5.0  # from INT, which pytest says its failures at, to TERM, and to KILL
ENDED_BY_LIMIT = 124
PYTEST = (
    *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly"),
    *("-o", "faulthandler_timeout=40"),  # what hangs says where, before its limit
)
# the order is that of what an answer is worth: times first, what takes long last
TESTS = {
    "activity": 60.0,
    "call_counter": 45.0,
    "events": 45.0,
    "two_devices": 45.0,
    "counters": 60.0,
    "memory": 45.0,
    "nvml": 75.0,
    "ncu": 120.0,
    "ncu_counters": 120.0,
    "doctor": 60.0,
    "frameworks": 150.0,
    "corners": 90.0,
    "turns": 90.0,
    "against": 300.0,  # three comparisons of four processes a block
    "slowdowns": 420.0,  # six runs of pytest in one test
}


@dataclass(frozen=True)
class Step:
    """
    One program of a session.

    Attributes:
        name: What the index calls it.

        argv: Its program and arguments.

        limit_s: How long it may take [s].

        good: The exit statuses that are not failures.

        into: The file of OUT that gets its standard output; None: the log.

        xml: The JUnit file that it writes, joined to tests.xml.

        folder: The folder that it fills, packed as NAME.tar.gz.
    """

    name: str
    argv: tuple[str, ...]
    limit_s: float
    good: frozenset[int] = frozenset({0})
    into: str | None = None
    xml: Path | None = None
    folder: Path | None = None


class Session:
    """
    Runs steps, and writes the index after each.

    Args:
        out: The folder for what is found.

        seconds: How long all steps together may take [s].
    """

    def __init__(self, out: Path, seconds: float) -> None:
        self.out = out
        self._deadline_s = time.monotonic() + seconds
        self._rows: list[str] = []
        self._running: subprocess.Popen[bytes] | None = None
        self._suites = ET.Element("testsuites")
        self.failed = False

    def run(self, steps: Iterable[Step]) -> None:
        """Run the steps in their order; what one does is not the end of the others."""
        for step in steps:
            left_s = self._deadline_s - time.monotonic() - GRACE_S
            if left_s < min(LEAST_S, step.limit_s):
                self._note(step, "not begun: no time is left", 0.0)
                self.failed = True
                continue
            begun_s = time.monotonic()
            limit_s = min(step.limit_s, left_s)
            self._keep(step, self._status(step, limit_s), begun_s, limit_s)

    def end(self, number: int, _: FrameType | None) -> NoReturn:
        """End the step that runs, as the handler of a signal."""
        with contextlib.suppress(ProcessLookupError):
            self._end_group()
        raise SystemExit(128 + number)

    def _status(self, step: Step, limit_s: float) -> int:
        """Run a step; return its exit status."""
        with (self.out / "log.txt").open("ab") as log, self._output(step, log) as file:
            log.write(f"\n=== {step.name} (at most {limit_s:.0f} s)\n".encode())
            log.flush()
            try:
                self._running = subprocess.Popen(
                    step.argv, stdout=file, stderr=log, start_new_session=True
                )
            except OSError as error:
                log.write(f"{error}\n".encode())
                return 127
            try:
                return self._running.wait(limit_s)
            except subprocess.TimeoutExpired:
                return ENDED_BY_LIMIT
            finally:
                # also what it has left behind, which would use the GPU beside the next
                self._end_group()

    @contextlib.contextmanager
    def _output(self, step: Step, log: IO[bytes]) -> Iterator[IO[bytes]]:
        """Yield the file of a step's standard output."""
        if step.into is None:
            yield log
            return
        with (self.out / step.into).open("ab") as file:
            yield file

    def _end_group(self) -> None:
        """End the running step with all that it has started, politely at first."""
        process, self._running = self._running, None
        if process is None:
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
                if not _has_members(process.pid):
                    return

    def _keep(self, step: Step, code: int, begun_s: float, limit_s: float) -> None:
        """Keep what a step has left, and its row."""
        if step.xml is not None and step.xml.exists():
            with contextlib.suppress(ET.ParseError):  # it was ended while it wrote
                self._suites.extend(ET.parse(step.xml).getroot())
                ET.ElementTree(self._suites).write(self.out / "tests.xml")
        if step.folder is not None and step.folder.exists():
            with tarfile.open(self.out / f"{step.name}.tar.gz", "w:gz") as archive:
                archive.add(step.folder, step.name)
        self.failed |= code not in step.good
        said = f"{code}"
        if code == ENDED_BY_LIMIT:
            said += f", the limit of {limit_s:.0f} s"
        self._note(step, said, time.monotonic() - begun_s)

    def _note(self, step: Step, said: str, took_s: float) -> None:
        """Write the index with one more row."""
        row = f"| {step.name} | {said} | {took_s:.0f} s |"
        self._rows.append(row)
        print(row, flush=True)
        head = ["| step | ended with | took |", "| --- | --- | --- |"]
        (self.out / "index.md").write_text("\n".join([*head, *self._rows, ""]), "utf-8")


def _has_members(group: int) -> bool:
    """Return whether a process group has a process."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def smoke(_: Path, __: Path) -> Iterator[Step]:
    """Yield what the rest is understood by, the doctor's record before all."""
    doctor = (sys.executable, "-m", "pytest_gpuperf", "doctor")
    degraded = frozenset({0, 1})  # 1: as on a machine without a GPU
    as_json = (*doctor, "--format=json")
    yield Step("doctor", as_json, 60, degraded, into="doctor.json")
    yield Step("doctor in words", doctor, 60, degraded)
    yield Step("versions", (sys.executable, ".ci/gpu_versions.py"), 230)


def probe(_: Path, out: Path) -> Iterator[Step]:
    """Yield the questions whose answers are raw values."""
    yield Step("probe", (sys.executable, ".ci/gpu_probe.py", f"{out}/probe.jsonl"), 240)


def tests(folder: Path, _: Path) -> Iterator[Step]:
    """Yield the files of tests/gpu: a crash, or a framework that hangs, costs one."""
    for name, limit_s in TESTS.items():
        xml = folder / f"{name}.xml"
        argv = (
            *(*PYTEST, f"tests/gpu/test_{name}.py", "-v", "-rs", "--tb=short"),
            *("--durations=5", f"--basetemp={folder / name}"),
            *("-o", "junit_family=xunit2", f"--junit-xml={xml}"),
        )
        yield Step(f"test_{name}", argv, limit_s, xml=xml)


def captures(folder: Path, _: Path) -> Iterator[Step]:
    """Yield what makes files for tests without a GPU."""
    argv = (sys.executable, ".ci/gpu_captures.py", str(folder))
    yield Step("captures", argv, 400, folder=folder)


def benchmarks(_: Path, __: Path) -> Iterator[Step]:
    """Yield the tables of docs/hardware.md."""
    limits_s = {"gate": 240, "agreement": 120, "cost": 240, "noise": 200}
    for name, limit_s in limits_s.items():
        argv = (sys.executable, f"benchmarks/gpu_{name}.py")
        yield Step(f"gpu_{name}", argv, limit_s, into="tables.md")


def examples(folder: Path, _: Path) -> Iterator[Step]:
    """Yield the examples, their readings kept; the comparison of commits is the CPU's."""
    argv = (
        *(*PYTEST, "examples", "-o", "gpuperf_peaks=cpu: dram 20 GB/s"),
        "--ignore=examples/test_12_against.py",  # a minute, and nothing of the GPU
        *(f"--gpuperf-record={folder}/readings", f"--gpuperf-json={folder}/run.json"),
        f"--basetemp={folder}-tmp",
    )
    yield Step("examples", argv, 180, folder=folder)


PARTS = {
    part.__name__: part
    for part in (smoke, probe, tests, captures, benchmarks, examples)
}


def steps_of(name: str, work: Path, out: Path) -> list[Step]:
    """Return the steps of a part, or the one step of that name; none: it is neither."""
    if name in PARTS:
        return [*PARTS[name](work / name, out)]
    steps = (step for part in PARTS for step in PARTS[part](work / part, out))
    return [step for step in steps if step.name == name]


def main(arguments: Sequence[str]) -> int:
    """Run what is named; return 1 where a step failed or was not begun, 2: no such name."""
    only_names = arguments[0] == "--check"
    out, *names = arguments[only_names:]
    names = names or [*PARTS]
    work = Path(os.environ.get("GPU_HOME", tempfile.gettempdir()), "out")
    unknown = [name for name in names if not steps_of(name, work, Path(out))]
    if unknown:
        print(f"error: no part or step is called {unknown[0]}", file=sys.stderr)
        return 2
    if only_names:
        return 0
    shutil.rmtree(work, ignore_errors=True)
    session = Session(Path(out), float(os.environ.get("GPU_SECONDS", SECONDS)))
    signal.signal(signal.SIGTERM, session.end)
    signal.signal(signal.SIGINT, session.end)
    for part in PARTS:
        (work / part).mkdir(parents=True)
    for name in names:
        session.run(steps_of(name, work, Path(out)))
    return 1 if session.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
