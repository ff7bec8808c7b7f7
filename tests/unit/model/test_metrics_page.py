"""docs/metrics.md: the page and the catalogue agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.config import COLLECTORS
from pytest_gpuperf.model.metric import METRICS

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.fixture(name="table")
def table_() -> list[list[str]]:
    """Return the rows of the page's table."""
    if not PAGE.is_file():
        pytest.skip("the documents are not beside the tests")
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| `")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_page_lists_the_catalogue(table: list[list[str]]) -> None:
    """Every metric with its unit, direction and meaning, in the catalogue's order."""
    assert [row[:4] for row in table] == [
        [f"`{m.name}`", str(m.unit), m.better.value, m.meaning]
        for m in METRICS.values()
    ]


def test_the_page_says_what_measures_a_metric(table: list[list[str]]) -> None:
    """A collector that exists, or that there is none yet."""
    for name, *_, measured_by in table:
        collectors = measured_by.split(", ")
        assert measured_by == "not yet" or set(collectors) <= set(COLLECTORS), name
