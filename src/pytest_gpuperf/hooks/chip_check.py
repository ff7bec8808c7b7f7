"""The counters that tests ask for, checked against the catalogue of a chip."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf import options
from pytest_gpuperf.collect.devices import query_devices
from pytest_gpuperf.config import Plan
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.model.metric import is_counter
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.settings import config_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuperf.collect.ncu.catalogue import Catalogue

_CHECK = pytest.StashKey["ChipCheck"]()


_OFF = "off"


def mistakes_of(item: pytest.Item, plan: Plan) -> list[str]:
    """
    Return a message per counter of a test that the chip does not have.

    Args:
        item: The test.

        plan: The plan of the test's markers.
    """
    config = item.config
    if options.is_child(config):  # The parent process has checked the counters.
        return []
    check = config.stash.get(_CHECK, None)
    if check is None:
        settings = config_of(config)
        # A replayed run can be judged on any machine and needs no GPU.
        device = settings.device if settings.replay is None else None
        load = functools.partial(_catalogue, device=device)
        check = config.stash[_CHECK] = ChipCheck(settings.chip, load)
        config.pluginmanager.register(check, "gpuperf-chip")
    return check.mistakes(item.nodeid, plan)


def _catalogue(chip: str | None, device: str | None = None) -> Catalogue | None:
    """Return the catalogue of a chip, or None if no chip is named and there is no GPU."""
    if chip is None:
        from pytest_gpuperf.collect.cupti.chips import chip_measured

        chip = chip_measured(query_devices(), device, os.environ)
    if chip is None:
        return None
    from pytest_gpuperf.collect.ncu.catalogue import Catalogue

    return Catalogue(chip)


class ChipCheck:
    """
    Check the counters of collected tests against a chip.

    Args:
        chip: The value of --gpuperf-chip, or None for the chip of the measured GPU.

        load: Returns the catalogue of a chip, or of the measured GPU's chip.
    """

    def __init__(
        self,
        chip: str | None,
        load: Callable[[str | None], Catalogue | None] = _catalogue,
    ) -> None:
        # By test id.
        self._counters: dict[str, tuple[str, ...]] = {}
        # A mistake in the option, reported for every file.
        self._mistake: str | None = None
        # The reason why nothing is checked, reported once.
        self._unchecked: str | None = None
        self._catalogue: Catalogue | None = None
        try:
            self._catalogue = None if chip == _OFF else load(chip)
        except GpuPerfError as error:
            if chip is None:
                self._unchecked = f"gpuperf: counters are not checked: {error}"
            else:
                self._mistake = f"--gpuperf-chip={chip}: {error}"

    def mistakes(self, test_id: str, plan: Plan) -> list[str]:
        """Return messages for unknown counters, or remember the counters if all are known."""
        if self._catalogue is None:
            return [] if self._mistake is None else [escape(self._mistake)]
        limited = [limit.metric for limit in plan.limits if is_counter(limit.metric)]
        wrong: list[str] = []
        for name in dict.fromkeys((*plan.counters, *limited)):
            checked = self._catalogue.check(name)
            if not checked.known or (checked.kind == "base" and name in limited):
                wrong.append(
                    f"{test_id}: counter {name!r}: {escape(checked.explanation)}"
                )
        if not wrong:
            self._counters[test_id] = (*plan.counters, *limited)
        return wrong

    @pytest.hookimpl
    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> list[str]:
        """Report the number of passes needed to count the selected tests."""
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
