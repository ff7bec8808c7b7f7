"""Counters checked for a chip while tests are collected."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf import options
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.model.metric import is_counter
from pytest_gpuperf.report.escape import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuperf.collect.ncu.catalogue import Catalogue
    from pytest_gpuperf.config import Plan

__all__ = ["ChipCheck", "mistakes_of"]

_CHECK = pytest.StashKey["ChipCheck"]()
_OFF = "off"


def mistakes_of(item: pytest.Item, plan: Plan) -> list[str]:
    """
    Return what a test asks to be counted that the chip cannot count, a text each.

    Args:
        item: The test.

        plan: What its markers ask for.
    """
    config = item.config
    if options.CHILD_VARIABLE in os.environ:  # checked where this process came from
        return []
    check = config.stash.get(_CHECK, None)
    if check is None:
        asked = options.config_of(config)
        # a replayed run is judged wherever it is: it asks for no GPU
        device = asked.device if asked.replay is None else None
        load = functools.partial(_catalogue, device=device)
        check = config.stash[_CHECK] = ChipCheck(asked.chip, load)
        config.pluginmanager.register(check, "gpuperf-chip")
    return check.mistakes(item.nodeid, plan)


def _catalogue(chip: str | None, device: str | None = None) -> Catalogue | None:
    """Return the catalogue of a chip; None: none was named, and no GPU is here."""
    if chip is None:
        from pytest_gpuperf.collect.cupti.chips import chip_measured
        from pytest_gpuperf.collect.devices import query_devices

        chip = chip_measured(query_devices(), device, os.environ)
    if chip is None:
        return None
    from pytest_gpuperf.collect.ncu.catalogue import Catalogue

    return Catalogue(chip)


class ChipCheck:
    """
    Knows the counters of the chip that tests are collected for.

    Args:
        chip: What --gpuperf-chip says; None: the chip of the GPU that is measured.

        load: Returns the catalogue of a chip, or of that GPU's.
    """

    def __init__(
        self,
        chip: str | None,
        load: Callable[[str | None], Catalogue | None] = _catalogue,
    ) -> None:
        self._wanted: dict[str, tuple[str, ...]] = {}
        self._mistake: str | None = None  # in the option, told by every file
        self._unchecked: str | None = None  # why nothing is checked, told once
        self._catalogue: Catalogue | None = None
        try:
            self._catalogue = None if chip == _OFF else load(chip)
        except GpuPerfError as error:
            if chip is None:
                self._unchecked = f"gpuperf: counters are not checked: {error}"
            else:
                self._mistake = f"--gpuperf-chip={chip}: {error}"

    def mistakes(self, test_id: str, plan: Plan) -> list[str]:
        """Return what the chip does not have; remember what it does."""
        if self._catalogue is None:
            return [] if self._mistake is None else [escape(self._mistake)]
        limited = [limit.metric for limit in plan.limits if is_counter(limit.metric)]
        wrong: list[str] = []
        for name in dict.fromkeys((*plan.counters, *limited)):
            checked = self._catalogue.check(name)
            if not checked.known or (checked.kind == "base" and name in limited):
                wrong.append(f"{test_id}: counter {name!r}: {escape(checked.told)}")
        if not wrong:
            self._wanted[test_id] = (*plan.counters, *limited)
        return wrong

    @pytest.hookimpl
    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> list[str]:
        """Say what counting costs the tests that were selected."""
        if self._unchecked is not None:
            return [escape(self._unchecked)]
        selected = {item.nodeid for item in items}
        wanted = {
            test: names for test, names in self._wanted.items() if test in selected
        }
        if self._catalogue is None or not wanted:
            return []
        from pytest_gpuperf.report.metrics import replay_sentence

        groups = self._catalogue.grouped(wanted)
        return [escape(replay_sentence(self._catalogue.chip, groups))]
