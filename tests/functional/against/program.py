"""Opens the two sides of a repository as a run of pytest in it does; prints them as JSON.

python program.py '{"revision": "HEAD~1", "test_ids": [...], ...}'
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.launcher import Launcher
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.measure.site import ProcessIdentity
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.options import CHILD_VARIABLE
from pytest_gpuperf.pipeline.command_line import CommandLine
from pytest_gpuperf.pipeline.sides import Sides, SidesRequest, open_sides


def told(sides: Sides) -> dict[str, Any]:
    """Return what a test wants to know of two sides."""
    names = [
        "level",
        "commit",
        "test_ids",
        "changed",
        "only_old",
        "only_new",
        "modules",
        "remarks",
    ]
    return {name: getattr(sides, name) for name in names}


def measured(sides: Sides) -> dict[str, str | None]:
    """Run the tests once on each side; return what the proof says of each process."""
    runner = ProcessRunner()
    proofs: dict[str, str | None] = {}
    for side in Side:
        command = sides.of(side)
        scratch = os.path.join(command.scratch, "process")  # noqa: PTH118 - a string
        os.mkdir(scratch)  # noqa: PTH102 - the same
        finished = runner.run(
            command.argv(scratch),
            timeout_s=120.0,
            cwd=command.folder,
            env=command.environment(scratch, 1),
        )
        gap = sides.proof(side, scratch)
        proofs[side.value] = (gap and gap.code.value) or f"exit {finished.exit_code}"
    return proofs


def main() -> None:
    """Open the sides that the argument describes."""
    wish: dict[str, Any] = json.loads(sys.argv[1])
    command = CommandLine(
        args=tuple(wish.pop("args")),
        paths=tuple(wish.pop("paths")),
        launcher=Launcher(start=(sys.executable, *wish.pop("start")), is_pytest=True),
        folder=str(Path.cwd()),
        variable=CHILD_VARIABLE,
        plugins=frozenset(wish.pop("plugins")),
    )
    measures = wish.pop("measures")
    session = Session(id="s", started_unix_s=0.0, host="h")
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in wish.items()
    }
    identity = ProcessIdentity(session=session)
    request = SidesRequest(identity=identity, **fields)
    try:
        with open_sides(request, command, ProcessRunner(), SystemClock()) as sides:
            proofs = measured(sides) if measures else {}
            written = sides.changed_files()
            answer = {**told(sides), "proofs": proofs, "written": written}
    except GpuPerfError as error:
        answer = {"error": type(error).__name__, "text": str(error)}
    print(json.dumps(answer))  # noqa: T201 - the answer of a program


if __name__ == "__main__":
    main()
