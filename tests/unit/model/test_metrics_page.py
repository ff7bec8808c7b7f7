"""docs/metrics.md: the page and the catalogue agree."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from pytest_gpuperf.model.metric import INSTRUCTION_CLASSES, METRICS
from pytest_gpuperf.model.sample import COLLECTORS

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.fixture(name="text")
def text_() -> str:
    """Return the page."""
    if not PAGE.is_file():
        pytest.skip("the documents are not beside the tests")
    return PAGE.read_text(encoding="utf-8")


def test_the_table_of_metrics_is_the_catalogues(text: str) -> None:
    """The page is what docs/tables.py writes: run that where a metric has changed."""
    assert text == runpy.run_path(str(PAGE.with_name("tables.py")))["page"](text)


def test_the_page_lists_the_classes_of_instructions(text: str) -> None:
    """Every class with its meaning and what counts in it, in the catalogue's order."""
    rows = [line for line in text.splitlines() if line.startswith("| `instructions.")]
    split = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    classes = [row for row in split if len(row) == 3]

    assert [row[:2] for row in classes] == [
        [f"`instructions.{name}`", meaning]
        for name, meaning in INSTRUCTION_CLASSES.items()
    ]
    assert all(row[2] for row in classes)


@pytest.mark.parametrize("name", METRICS)
def test_what_measures_a_metric_is_a_collector(name: str) -> None:
    """Users can ask for each by name."""
    metric = METRICS[name]
    sources = {source for names in metric.sources.values() for source in names}

    assert sources
    assert {*sources, *metric.counted_by} <= {*COLLECTORS}
