"""Check of declared counters against a chip, at collection."""

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
    Return a message for each counter of a test that the chip does not have.

    Args:
        item: The test.

        plan: The requests of its markers.
    """
    config = item.config
    if options.CHILD_VARIABLE in os.environ:  # checked by the parent process
        return []
    check = config.stash.get(_CHECK, None)
    if check is None:
        settings = options.config_of(config)
        # a replayed run can be judged on any machine: it needs no GPU
        device = settings.device if settings.replay is None else None
        load = functools.partial(_catalogue, device=device)
        check = config.stash[_CHECK] = ChipCheck(settings.chip, load)
        config.pluginmanager.register(check, "gpuperf-chip")
    return check.mistakes(item.nodeid, plan)


def _catalogue(chip: str | None, device: str | None = None) -> Catalogue | None:
    """Return the catalogue of a chip; None: no chip is named, and there is no GPU."""
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
    Checks the counters of collected tests against one chip.

    Args:
        chip: The value of --gpuperf-chip; None: the chip of the measured GPU.

        load: Returns the catalogue of a chip, or of the measured GPU's chip.
    """

    def __init__(
        self,
        chip: str | None,
        load: Callable[[str | None], Catalogue | None] = _catalogue,
    ) -> None:
        self._counters: dict[str, tuple[str, ...]] = {}  # by test id
        self._mistake: str | None = None  # in the option, reported for every file
        self._unchecked: str | None = None  # why nothing is checked, reported once
        self._catalogue: Catalogue | None = None
        try:
            self._catalogue = None if chip == _OFF else load(chip)
        except GpuPerfError as error:
            if chip is None:
                self._unchecked = f"gpuperf: counters are not checked: {error}"
            else:
                self._mistake = f"--gpuperf-chip={chip}: {error}"

    def mistakes(self, test_id: str, plan: Plan) -> list[str]:
        """Return messages for unknown counters; otherwise remember the counters."""
        if self._catalogue is None:
            return [] if self._mistake is None else [escape(self._mistake)]
        limited = [limit.metric for limit in plan.limits if is_counter(limit.metric)]
        wrong: list[str] = []
        for name in dict.fromkeys((*plan.counters, *limited)):
            checked = self._catalogue.check(name)
            if not checked.known or (checked.kind == "base" and name in limited):
                wrong.append(f"{test_id}: counter {name!r}: {escape(checked.told)}")
        if not wrong:
            self._counters[test_id] = (*plan.counters, *limited)
        return wrong

    @pytest.hookimpl
    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> list[str]:
        """Report what counting costs the selected tests."""
        if self._unchecked is not None:
            return [escape(self._unchecked)]
        selected = {item.nodeid for item in items}
        counters = {
            test: names for test, names in self._counters.items() if test in selected
        }
        if self._catalogue is None or not counters:
            return []
        from pytest_gpuperf.report.metrics import replay_sentence

        groups = self._catalogue.grouped(counters)
        return [escape(replay_sentence(self._catalogue.chip, groups))]
