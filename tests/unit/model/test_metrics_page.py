"""docs/metrics.md: the page and the catalogue agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.config import COLLECTORS
from pytest_gpuperf.judge.selection import ways_to
from pytest_gpuperf.model.metric import INSTRUCTION_CLASSES, METRICS, is_compiled
from pytest_gpuperf.model.record import Kind

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.fixture(name="table")
def table_() -> list[list[str]]:
    """Return the rows of the page's table of metrics."""
    return _rows(cells=5)


@pytest.fixture(name="classes")
def classes_() -> list[list[str]]:
    """Return the rows of the page's table of instructions."""
    return _rows(cells=3)


def _rows(*, cells: int) -> list[list[str]]:
    """Return the rows of the page that have so many cells."""
    if not PAGE.is_file():
        pytest.skip("the documents are not beside the tests")
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| `")]
    split = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return [row for row in split if len(row) == cells]


def test_the_page_lists_the_catalogue(table: list[list[str]]) -> None:
    """Every metric with its unit, direction and meaning, in the catalogue's order."""
    assert [row[:4] for row in table] == [
        [f"`{m.name}`", str(m.unit), m.better.value, m.meaning]
        for m in METRICS.values()
        if not is_compiled(m.name)
    ]


def test_the_page_lists_the_classes_of_instructions(classes: list[list[str]]) -> None:
    """Every class with its meaning and what counts in it, in the catalogue's order."""
    assert [row[:2] for row in classes] == [
        [f"`instructions.{name}`", meaning]
        for name, meaning in INSTRUCTION_CLASSES.items()
    ]
    assert all(row[2] for row in classes)


def test_the_page_says_what_measures_a_metric(table: list[list[str]]) -> None:
    """A collector that exists, or that there is none yet."""
    for name, *_, measured_by in table:
        collectors = measured_by.split(", ")
        assert measured_by == "not yet" or set(collectors) <= set(COLLECTORS), name


def test_the_page_and_the_refusals_name_the_same_ways(table: list[list[str]]) -> None:
    """A value that is not there points to what the page says measures it."""
    files = {Kind.BINARY: "binary", Kind.CAPTURE: "ncu-report"}
    for name, *_, measured_by in table:
        collectors = set(measured_by.split(", "))
        ways = ways_to(name.strip("`"))
        of_files = {files[way] for way in ways if way in files}
        assert of_files == collectors & {*files.values()}, name
        live = collectors - {*files.values(), "ncu"}
        assert bool(live) == any(way not in files for way in ways), name
        assert Kind.RECORD not in ways, name
