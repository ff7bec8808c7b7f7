"""What the tests of the command share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line has 100 characters: pytest-xdist gives its workers a terminal of 80."""
    monkeypatch.setenv("COLUMNS", "100")
