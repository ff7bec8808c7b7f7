"""Tricks and mistakes that give a better figure, and honest code: what a strict run makes of them.

The table of docs/threat-model.md is made from these runs.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from fakes.project import Project
from fakes.tricks import HEAD, HELPERS, HONEST, TRICKS
from pytest_gpuperf.model.record import WORK_DOUBTS

PAGE = Path(__file__).parents[2] / "docs" / "threat-model.md"
# Samples of a tenth of the usual time are enough to see what a call does.
QUICK = """
    from pytest_gpuperf.measure import bench

    bench._BUDGET_S = 0.1
"""
# Honest code that keeps results by design, works for several calls in one, has a slow method
# that is not measured, or runs beside threads that work. It is told, and passes.
TOLD = {
    *("batches_of_a_loader", "busy_thread_beside", "compiled_once"),
    *("flushes_each_tenth", "graph_with_a_slow_method", "memo_by_design"),
}
MOST_TRICKS = 116
# Doubts that decide no limit.
SHOWN = {"background-work", "far-limit"}


def run(project: Project, bodies: dict[str, str]) -> dict[str, Result]:
    """Run modules of one test each with `--gpuperf-strict`, and return what each got."""
    for name, text in HELPERS.items():
        project.write(text, name)
    project.write(QUICK, "conftest.py")
    for name, body in bodies.items():
        project.write(textwrap.dedent(HEAD) + textwrap.dedent(body), f"test_{name}.py")
    ended = project.spawn("--gpuperf-strict", "--gpuperf-json=run.json", "-q", "-rA")
    words = re.findall(r"^(PASSED|FAILED) (\S+)", ended.stdout, re.MULTILINE)
    passed = {_name(test_id): word == "PASSED" for word, test_id in words}
    assert passed.keys() == bodies.keys(), ended.stdout
    told: dict[str, set[str]] = {name: set() for name in bodies}
    for record in project.report()["records"]:
        told[_name(record["key"]["test_id"])] |= set(_signs(record))
    return {
        name: Result(passes=passed[name], told=frozenset(told[name])) for name in bodies
    }


class Result(NamedTuple):
    """Whether a test passes strictly, and the doubts and voids that the run has told of it."""

    passes: bool
    told: frozenset[str]


def _name(test_id: str) -> str:
    return test_id.partition("::")[0].removeprefix("test_").removesuffix(".py")


def _signs(record: dict[str, Any]) -> Iterator[str]:
    if record.get("void"):
        yield f"void `{record['void']['code']}`"
    for note in record.get("notes", []):
        code = note["code"]
        if note["doubt"] and code in WORK_DOUBTS:
            yield f"doubt `{code}`"
        elif code in SHOWN:
            yield f"note `{code}`"


def table_of(results: dict[str, Result]) -> list[str]:
    """
    Return the rows of the page, one for all tricks of a kind.

    What is told of fewer than half of them depends on the machine.
    """
    kinds: dict[str, list[Result]] = {}
    for name, (kind, _) in TRICKS.items():
        kinds.setdefault(kind, []).append(results[name])
    rows = []
    for kind, members in kinds.items():
        counts = Counter(sign for member in members for sign in member.told)
        told = sorted(s for s, count in counts.items() if 2 * count >= len(members))
        passes = any(member.passes for member in members)
        plain = "not detected" if passes else "the test fails"
        strict = "passes" if passes else "fails"
        rows.append(f"| {kind} | {', '.join(told) or plain} | {strict} |")
    return rows


def _missed(row: str) -> str:
    """Return a row of a trick that fails strictly, if it missed its limit in any case."""
    kind, _, strict = row.strip("| ").split(" | ")
    return f"| {kind} | the test fails | {strict} |" if strict == "fails" else ""


def test_the_page_has_the_verdict_of_each_trick(project: Project) -> None:
    """The table is what a strict run makes of the corpus. Most tricks do not pass it."""
    results = run(project, {name: body for name, (_, body) in TRICKS.items()})
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = lines.index("| trick or mistake | shown | with `--gpuperf-strict` |") + 2
    table = [*takewhile(lambda line: line.startswith("|"), lines[begin:])]

    assert table == [
        # Where a busy machine keeps a trick from the limit, there is nothing to doubt.
        shown if row == _missed(shown) else row
        for shown, row in zip(table, table_of(results), strict=True)
    ]
    assert sum(not result.passes for result in results.values()) >= MOST_TRICKS


def test_honest_code_passes(project: Project) -> None:
    """Each kind of trick has honest code that looks like it, which meets a strict limit."""
    results = run(project, HONEST)

    assert [name for name, result in results.items() if not result.passes] == []
    doubted = {name for name, result in results.items() if result.told}
    assert doubted <= TOLD
    assert len(HONEST) >= 30
