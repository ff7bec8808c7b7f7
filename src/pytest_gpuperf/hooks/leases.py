"""Tests that measure have the GPU to themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.hooks.markers import TEST_ID

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpuperf.pipeline.bench import Bench

__all__ = ["Leases"]


class Leases:
    """
    Takes a turn on the GPU around each test that measures.

    Args:
        bench: The measuring equipment of this process.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    # before pytest-timeout, which must not count how long others take
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item
    ) -> Generator[None, object, object]:
        """Wait for the GPU, and let others have it after the test."""
        turns = self._bench.turns
        if turns is None:
            return (yield)
        measures = TEST_ID in item.stash
        with turns.measuring(item.stash[TEST_ID]) if measures else turns.working():
            return (yield)
