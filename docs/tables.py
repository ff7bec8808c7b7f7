"""
Write the tables of docs/metrics.md that the catalogue of metrics determines.

    python docs/tables.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_gpuperf.model.metric import METRICS, Metric, is_compiled
from pytest_gpuperf.model.sample import COLLECTORS

_PAGE = Path(__file__).with_name("metrics.md")
_HEAD = "| metric | unit | better | meaning | measured by |"


def page(text: str, metrics: Iterable[Metric] = tuple(METRICS.values())) -> str:
    """
    Return the page with its table of metrics made anew.

    Args:
        text: The page.

        metrics: The rows, in their order; instructions of compiled code are left out.
    """
    before, _, rest = text.partition(_HEAD)
    after = rest[rest.index("\n\n") :]
    return before + "\n".join(_table(metrics)) + after


def _table(metrics: Iterable[Metric]) -> Iterator[str]:
    """Yield the lines of the table of metrics."""
    yield _HEAD
    yield "|---|---|---|---|---|"
    for metric in metrics:
        if not is_compiled(metric.name):
            cells = (metric.unit, metric.better.value, metric.meaning, _sources(metric))
            yield f"| `{metric.name}` | {' | '.join(map(str, cells))} |"


def _sources(metric: Metric) -> str:
    """Return the collectors that measure a metric."""
    every = {
        *metric.counted_by,
        *(s for names in metric.sources.values() for s in names),
    }
    return ", ".join(name for name in COLLECTORS if name in every)


if __name__ == "__main__":
    _PAGE.write_text(page(_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
