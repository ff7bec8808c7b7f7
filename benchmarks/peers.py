"""What each use costs beside the program that people would use instead, as one table.

Builds this checkout and its peers from the package index into fresh environments, runs
each row by turns (see `_pairs`), and prints a Markdown table: ours by theirs, by CPU time
unless the row says otherwise. `--write` puts the table between the two marks in README.md
and benchmarks/README.md.

    python benchmarks/peers.py --report FILE.ncu-rep --write
"""

from __future__ import annotations

import argparse
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from _pairs import (
    CHECKOUT,
    Cost,
    Variant,
    new_environment,
    pip,
    ratio,
    ratios,
    rounds,
    run,
)
from show_speed import LEAST, REFERENCE, THREE
from thousand_tests import (
    GOOD,
    LIMIT,
    OURS,
    PEER,
    PLAIN,
    THEIRS,
    UNDECIDED,
    project,
    start,
    store_ours,
    store_theirs,
)

BEGIN, END = "<!-- peers.py: begin -->", "<!-- peers.py: end -->"
PAGES = ("README.md", "benchmarks/README.md")
ONE = "def test_one():\n    assert True\n"
SLOWER = 2.31  # +131 %
WORK = """def work():
    total = 0
    for number in range({count}):
        total += number & 7
    return total
"""
WORKING_TEST = """import body


def test_work(gpuperf):
    assert gpuperf(body.work) > 0
"""
COUNT = 33_000  # some 1 to 2 ms
GIT = shutil.which("git") or "git"
READERS = ("ncu-report", "reprospect")


@dataclass(frozen=True, kw_only=True)
class Row:
    """
    One use and what it costs.

    Attributes:
        use: What is done.

        beside: The program that does it otherwise.

        ours, theirs: Both ways.

        goal: The largest ratio; None: no goal.

        figure: What the ratio is of: "cpu_s" or "value_s", which is wall time.
    """

    use: str
    beside: str
    ours: Variant
    theirs: Variant
    goal: float | None = None
    figure: str = "cpu_s"


@dataclass(frozen=True, kw_only=True)
class Environments:
    """The Pythons: with ours and all peers, with ours alone, with neither."""

    both: Path
    only: Path
    absent: Path


def main() -> int:
    """Measure all rows; return 0 where all goals were reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--report", type=Path, help="a report of ncu, to be shown")
    parser.add_argument("--only", default="", help="rows whose use contains it")
    parser.add_argument("--write", action="store_true", help="update both README.md")
    options = parser.parse_args()
    lines, reached = [], []
    with tempfile.TemporaryDirectory() as scratch:
        pythons = environments(Path(scratch), options.report)
        for row in rows(Path(scratch), pythons, options.report):
            if options.only in row.use:
                costs = rounds([row.ours, row.theirs], options.rounds)
                lines.append(line(row, costs))
                reached.append(is_reached(row, costs))
                print(lines[-1], flush=True)
        walls = [
            seconds(use, prepare(Path(scratch, name), pythons.both), goal_s)
            for name, use, prepare, goal_s in WALLS
            if options.only in use
        ]
    text = table(lines, walls, options.rounds)
    print(text)
    if options.write:
        for page in PAGES:
            write(CHECKOUT / page, text)
    return 0 if all(reached) else 1


def environments(scratch: Path, report: Path | None) -> Environments:
    """Return fresh environments; what reads reports is large, and only there for one."""
    peers = [PEER, "pytest-html", "pytest-xdist", *(READERS if report else ())]
    both = new_environment(scratch / "both", f"{CHECKOUT}[html,xdist]", *peers)
    absent = new_environment(scratch / "absent", str(CHECKOUT))
    pip(absent, "uninstall", "--yes", "pytest-gpuperf")
    only = new_environment(scratch / "only", str(CHECKOUT))
    return Environments(both=both, only=only, absent=absent)


def rows(scratch: Path, pythons: Environments, report: Path | None) -> Iterator[Row]:
    """Return the rows; each one's stores are made when it is asked for."""
    yield from unused(scratch / "unused", pythons)
    yield from measured(scratch / "measured", pythons.both)
    if report is not None:
        yield from shown(scratch / "shown", report.resolve(), pythons.both)


def unused(folder: Path, pythons: Environments) -> Iterator[Row]:
    """Return what tests pay that use nothing of the plugin."""
    one, many = project(folder / "one", ONE), project(folder / "many", PLAIN)
    beside = "pytest without the plugin"
    collect = ("-m", "pytest", "-q", "--collect-only")
    for use, place, arguments, goal in (
        ("start: one test is collected", one, collect, 1.03),
        ("1,000 tests that measure nothing", many, collect[:-1], 1.02),
    ):
        ours, theirs = (
            Variant(name=name, argv=[str(python), *arguments], folder=place)
            for name, python in (("ours", pythons.only), ("theirs", pythons.absent))
        )
        yield Row(use=use, beside=beside, ours=ours, theirs=theirs, goal=goal)


def measured(folder: Path, python: Path) -> Iterator[Row]:
    """Return what tests pay that measure."""
    one = [text.replace("range(1000)", "range(1)") for text in (OURS, THEIRS)]
    yield Row(
        use="one measured test",
        beside="pytest-benchmark",
        ours=our_run(project(folder / "ours-one", one[0]), python),
        theirs=their_run(project(folder / "theirs-one", one[1]), python),
    )
    for stored in (1, 3, 20):
        ours = project(folder / f"ours-{stored}", OURS)
        theirs = project(folder / f"theirs-{stored}", THEIRS)
        store_ours(ours, python, stored)
        store_theirs(theirs, python, stored)
        if stored == 3:
            yield from compared_one(ours, theirs, python)
        yield Row(
            use=f"1,000 measured tests, {stored} stored",
            beside="pytest-benchmark",
            ours=our_run(ours, python, *gate()),
            theirs=their_run(theirs, python, *their_gate()),
            goal=1.05,
        )
        if stored == 3:
            yield from around(folder, ours, theirs, python)


def compared_one(ours: Path, theirs: Path, python: Path) -> Iterator[Row]:
    """Return what one of 1,000 stored tests pays."""
    yield Row(
        use="one of 1,000 stored tests",
        beside="pytest-benchmark",
        ours=our_run(ours, python, *gate(), "test_it.py::test_sum[7]"),
        theirs=their_run(theirs, python, *their_gate(), "test_it.py::test_sum[7]"),
        goal=1.1,
    )


def around(folder: Path, ours: Path, theirs: Path, python: Path) -> Iterator[Row]:
    """Return what collections, workers, reports and comparisons of 1,000 tests cost."""
    plain = project(folder / "plain", PLAIN)
    neither = ("-p", "no:gpuperf", "-p", "no:benchmark")
    yield Row(
        use="1,000 measured tests, collected",
        beside="the same tests, plain",
        ours=our_run(ours, python, "--collect-only"),
        theirs=Variant(
            name="theirs",
            argv=[str(python), "-m", "pytest", "-q", "--collect-only", *neither],
            folder=plain,
        ),
    )
    yield Row(
        use="1,000 measured tests, `-n 2`",
        beside="ours without `-n`",
        ours=our_run(ours, python, *gate(), "-n2"),
        theirs=replace(our_run(ours, python, *gate()), name="theirs"),
    )
    yield Row(
        use="1,000 measured tests and a JSON report",
        beside="ours without it",
        ours=our_run(ours, python, *gate(), "--gpuperf-json=run.json"),
        theirs=replace(our_run(ours, python, *gate()), name="theirs"),
    )
    yield Row(
        use="1,000 measured tests and a page",
        beside="pytest-benchmark and pytest-html",
        ours=our_run(ours, python, *gate(), "--gpuperf-html=page.html"),
        theirs=their_run(theirs, python, *their_gate(), "--html=page.html"),
    )
    yield from compared_runs(ours, theirs, python)


def compared_runs(ours: Path, theirs: Path, python: Path) -> Iterator[Row]:
    """Return what a comparison of two stored runs costs."""
    for name in ("a.json", "b.json"):
        run(our_run(ours, python, f"--gpuperf-json={name}"))
    stored = sorted(str(file) for file in theirs.glob(".benchmarks/*/*.json"))[:2]
    bin_folder = python.parent
    yield Row(
        use="two runs of 1,000 tests, compared",
        beside="`pytest-benchmark compare`",
        ours=Variant(
            name="ours",
            argv=[str(bin_folder / "gpuperf"), "compare", "a.json", "b.json"],
            folder=ours,
            good=frozenset({0, 1}),  # one of 1,000 may differ
        ),
        theirs=Variant(
            name="theirs",
            argv=[str(bin_folder / "pytest-benchmark"), "compare", *stored],
            folder=theirs,
        ),
        goal=1.0,
    )


def shown(folder: Path, report: Path, python: Path) -> Iterator[Row]:
    """Return what the values of a report cost, as JSON."""
    folder.mkdir()  # What is printed is kept there.
    three = ",".join(THREE)
    for use, metrics, goal in (
        ("all values", "", 0.85),
        ("three metrics", three, 1.15),
    ):
        options = [f"--metrics={metrics}"] if metrics else []
        ours = Variant(
            name="ours",
            argv=[
                str(python.parent / "gpuperf"),
                *("show", str(report), "--format=json", *options),
            ],
            folder=folder,
        )
        for beside, program, largest in (
            ("a loop over NVIDIA's classes", LEAST, goal),
            ("reprospect", REFERENCE, None),
        ):
            tail = [metrics] if metrics else []
            yield Row(
                use=f"a report of ncu: {use} (wall)",
                beside=beside,
                ours=ours,
                theirs=Variant(
                    name="theirs",
                    argv=[str(python), "-c", program, str(report), *tail],
                    folder=folder,
                ),
                goal=largest,
                figure="value_s",
            )


def gate() -> tuple[str, ...]:
    """Return how ours compares with its store."""
    return ("--gpuperf-baseline=.gpuperf", f"--gpuperf-max-regression={LIMIT}")


def their_gate() -> tuple[str, ...]:
    """Return how the peer compares with its store."""
    return ("--benchmark-compare", f"--benchmark-compare-fail=mean:{LIMIT}")


def our_run(folder: Path, python: Path, *arguments: str) -> Variant:
    """Return a run of ours."""
    argv = start(python, "benchmark", *arguments)
    return Variant(name="ours", argv=argv, folder=folder, good=UNDECIDED)


def their_run(folder: Path, python: Path, *arguments: str) -> Variant:
    """Return a run of pytest-benchmark."""
    argv = start(python, "gpuperf", *arguments)
    return Variant(name="theirs", argv=argv, folder=folder, good=GOOD)


def confirmed(folder: Path, python: Path) -> Variant:
    """Return a run that confirms that a call of 1 to 2 ms is 131 % slower."""
    place = working(folder)
    for _ in range(3):
        run(our_run(place, python, "--gpuperf-update=all"))
    slower(place)
    limit = "--gpuperf-max-regression=10%"
    return failing(our_run(place, python, "--gpuperf-baseline=.gpuperf", limit))


def against(folder: Path, python: Path) -> Variant:
    """Return a run that compares the same call with a revision."""
    place = working(folder)
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    (place / ".gitignore").write_text(".*\n__pycache__\n", "utf-8")
    for argv in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "one")):
        subprocess.run([GIT, *argv], cwd=place, check=True)
    slower(place)
    limit = "--gpuperf-max-regression=10%"
    return failing(our_run(place, python, "--gpuperf-against=HEAD", limit))


def working(folder: Path) -> Path:
    """Return a project whose test calls a module."""
    place = project(folder, WORKING_TEST)
    (place / "body.py").write_text(WORK.format(count=COUNT), "utf-8")
    return place


def slower(place: Path) -> None:
    """Make the call slower."""
    text = WORK.format(count=round(COUNT * SLOWER))
    (place / "body.py").write_text(text, "utf-8")


def failing(variant: Variant) -> Variant:
    """Return a run that has to find the slowdown: exit status 1."""
    return replace(variant, good=frozenset({1}))


Prepare = Callable[[Path, Path], Variant]
WALLS: tuple[tuple[str, str, Prepare, float], ...] = (
    ("confirm", "+131 % of a call of 1 to 2 ms, confirmed", confirmed, 3.5),
    ("against", "+131 % of it, against a revision", against, 12.0),
)


def seconds(use: str, variant: Variant, goal_s: float) -> str:
    """Return a line with the wall time of a run, the median of five [s]."""
    costs = [run(variant) for _ in range(5)]
    printed = (variant.folder / ".printed").read_text("utf-8")
    if "REGRESSED" not in printed:
        sys.exit(f"{use}: not found\n{printed}")
    wall_s = statistics.median(cost.value_s for cost in costs)
    cpu_s = statistics.median(cost.cpu_s for cost in costs)
    verdict = "reached" if wall_s <= goal_s else "missed"
    return f"| {use} | {wall_s:.1f} s | {cpu_s:.1f} s | ≤ {goal_s:g} s: {verdict} |"


def is_reached(row: Row, costs: dict[str, list[Cost]]) -> bool:
    """Return whether a row's goal was reached, or it has none."""
    found = ratios(costs["ours"], costs["theirs"], row.figure)
    return row.goal is None or statistics.median(found) <= row.goal


def line(row: Row, costs: dict[str, list[Cost]]) -> str:
    """Return a row of the table."""
    ours, theirs = costs["ours"], costs["theirs"]
    middle = " / ".join(
        f"{statistics.median(getattr(cost, row.figure) for cost in side):.2f} s"
        for side in (ours, theirs)
    )
    peaks = " / ".join(
        f"{statistics.median(cost.peak_bytes for cost in side) / 2**20:.0f} MiB"
        for side in (ours, theirs)
    )
    goal = "" if row.goal is None else f"≤ {row.goal:g}: "
    if goal:
        goal += "reached" if is_reached(row, costs) else "missed"
    found = ratio(ours, theirs, row.figure)
    return f"| {row.use} | {row.beside} | {found} | {middle} | {peaks} | {goal} |"


def table(lines: list[str], walls: list[str], count: int) -> str:
    """Return both tables and how they were made."""
    day = time.strftime("%-d %B %Y")
    python = ".".join(platform.python_version_tuple()[:2])
    made = (
        f"`python benchmarks/peers.py`, {day}, Python {python}, {count} rounds. CPU time of"
        " whole processes, ours by theirs: the median of the ratios within a round, and an"
        " interval that holds it with 95 %."
    )
    heads = "| use | beside | ours ÷ theirs | ours / theirs | peak memory | goal |"
    first = [made, "", heads, "| --- | --- | --- | --- | --- | --- |", *lines]
    second = [
        "| use | wall | CPU | goal (two idle cores) |",
        "| --- | --- | --- | --- |",
    ]
    return "\n".join([*first, "", *second, *walls] if walls else first)


def write(page: Path, text: str) -> None:
    """Replace what is between the marks of a page."""
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        sys.exit(f"{page} has no marks: {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
