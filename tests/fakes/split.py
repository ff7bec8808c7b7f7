"""pytest-split as far as a shard sees it: its options, and equal groups in order.

Loaded by `-p fakes.split`.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options under pytest-split's names."""
    group = parser.getgroup("split")
    group.addoption("--splits", dest="splits", type=int)
    group.addoption("--group", dest="group", type=int)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Keep the tests of the group, and deselect the others."""
    splits, group = config.option.splits, config.option.group
    if not splits or not group:
        return
    places = [place * splits // len(items) + 1 for place in range(len(items))]
    kept = [i for i, place in zip(items, places, strict=True) if place == group]
    left = [i for i, place in zip(items, places, strict=True) if place != group]
    items[:] = kept
    config.hook.pytest_deselected(items=left)
