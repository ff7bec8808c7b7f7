"""docs/gpu-timing-internals.md: every fault on the page has the test that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "gpu-timing-internals.md"
NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def test_every_fault_names_a_test_that_is_there() -> None:
    """A file of that name has a function of that name."""
    if not PAGE.is_file():
        pytest.skip("the documents are not beside the tests")
    named = NAMED.findall(PAGE.read_text(encoding="utf-8"))
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not any(
            f"def {name}(" in path.read_text(encoding="utf-8")
            for path in TESTS.rglob(file)
        )
    ]

    assert named
    assert missing == []
