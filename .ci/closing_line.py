"""Say what a run of tox tested, and refuse a run that tested too little.

Reads tox's result files and the JUnit files of the environments. Prints a line
for each environment and ends with `N passed, N failed, N skipped`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from tested import again, unstable

OUTCOMES = ("passed", "failed", "skipped")
WITHOUT_TESTS = ("imports", "lint", "types")


def main() -> int:
    """Return 0 when enough ran and nothing failed, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("junit", type=Path, help="the folder of the JUnit files")
    parser.add_argument(
        "results", type=Path, nargs="+", help="what tox --result-json wrote"
    )
    parser.add_argument("--interpreters", type=int, default=2, help="at least so many")
    args = parser.parse_args()

    environments, errors = _environments(args.results)
    total: Counter[str] = Counter()
    pythons: set[str] = set()
    failed_environments = []
    for name, facts in environments.items():
        steps = facts.get("test", [])
        counts = _counts(args.junit / f"{name}.xml")
        total += counts
        if steps and counts.total():
            pythons.add(_python(facts))
        # a process that ends in the middle of the suite may end with 0
        silent = steps and name not in WITHOUT_TESTS and not counts.total()
        if silent or any(step["retcode"] for step in steps):
            failed_environments.append(name)
        print(_line(name, facts, counts))
        for test in unstable(args.junit / f"{name}.xml"):
            print(f"{name:10} unstable, passed only alone: {test}")

    print(f"tested on {len(pythons)} interpreters: {', '.join(sorted(pythons))}")
    if len(pythons) < args.interpreters:
        errors.append(f"at least {args.interpreters} interpreters must run the suite")
    if failed_environments:
        errors.append(f"failed environments: {', '.join(failed_environments)}")
    for error in errors:
        print(f"error: {error}")
    print(", ".join(f"{total[outcome]} {outcome}" for outcome in OUTCOMES))
    return int(bool(errors))


def _environments(results: list[Path]) -> tuple[dict[str, Any], list[str]]:
    """Return the facts of all environments by name, and what is wrong with the files."""
    environments: dict[str, Any] = {}
    errors = []
    for path in results:
        if path.exists():
            environments |= _chosen(json.loads(path.read_text("utf-8")))
        else:
            errors.append(f"tox was ended before it wrote {path}")
    return environments, errors


def _chosen(result: dict[str, Any]) -> dict[str, Any]:
    """Keep what was to run: neither the builder nor what nobody asked for."""
    return {
        name: facts
        for name, facts in result["testenvs"].items()
        if facts and not name.startswith(".")
    }


def _counts(path: Path) -> Counter[str]:
    """Count outcomes of a file and of its second run, or nothing without the file."""
    if not path.exists():
        return Counter()
    counts = Counter(map(_outcome, ET.parse(path).iter("testcase")))
    if again(path).exists():
        second = Counter(map(_outcome, ET.parse(again(path)).iter("testcase")))
        counts["failed"] -= second["passed"]
        counts["passed"] += second["passed"]
    return counts


def _outcome(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


def _python(facts: dict[str, Any]) -> str:
    return ".".join(map(str, facts["python"]["version_info"][:2]))


def _line(name: str, facts: dict[str, Any], counts: Counter[str]) -> str:
    steps = facts.get("test", [])
    if not steps:
        return f"{name:10} did not run"
    verdict = "failed" if any(step["retcode"] for step in steps) else "ok"
    seconds = sum(step.get("elapsed", 0.0) for step in steps)
    tests = f"{counts['passed']}/{counts.total()} passed" if counts else ""
    return f"{name:10} {verdict:7} {_python(facts):6} {seconds:6.0f} s  {tests}"


if __name__ == "__main__":
    sys.exit(main())
