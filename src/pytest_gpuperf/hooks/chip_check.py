"""The counters that tests ask for: whether a chip has them, and which are collected first."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf import options
from pytest_gpuperf.collect.devices import query_devices
from pytest_gpuperf.config import Plan
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.hooks import command_line
from pytest_gpuperf.measure.counters import (
    CuptiCounters,
    cache_control_of,
    counter_metrics,
    made_of,
    may_count_here,
)
from pytest_gpuperf.model.metric import is_counter
from pytest_gpuperf.pipeline.isolation import CounterRequest
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.settings import config_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuperf.collect.ncu.catalogue import Catalogue
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.measure.timing import TimingMeasurer

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


def count(
    config: pytest.Config,
    site: Site,
    measurer: TimingMeasurer,
    tests: Sequence[tuple[pytest.Item, str, Plan]],
) -> None:
    """
    Set the counters of a measurer, which are collected before the tests run or with them.

    Args:
        config: The pytest config.

        site: Knows the device, and the collectors that the run names.

        measurer: The measurer of this process.

        tests: The tests that measure, with their ids and plans.
    """
    requests = _requests(tests, site)
    if not requests:
        return
    from pytest_gpuperf.pipeline.profile import counted, refused

    refusal = refused(site)
    if refusal is not None and may_count_here(site.config.collectors, site.device()):
        measurer.counters = CuptiCounters(site, measurer.observers, instead_of=refusal)
        return
    measurer.counters = counted(
        site,
        command_line(config),
        requests,
        announce=functools.partial(_announce, config),
        in_block=measurer.in_block,
    )


def _requests(
    tests: Sequence[tuple[pytest.Item, str, Plan]], site: Site
) -> list[CounterRequest]:
    """
    Return the counters to collect before the tests run, by test.

    Args:
        tests: The tests that measure, with their ids and plans.

        site: Knows the device, and the collectors that the run names.
    """
    device = site.device()
    capability = None if device is None else device.compute_capability
    return [
        CounterRequest(
            test_id=test_id,
            path=str(item.path),
            metrics=metrics,
            counters=made_of(metrics, capability),
            cache_control=cache_control_of(plan),
        )
        for item, test_id, plan in tests
        if not never_runs(item)
        and (metrics := counter_metrics(plan, site.config.collectors))
    ]


def never_runs(item: pytest.Item) -> bool:
    """Return True if a marker keeps a test from running."""
    skipped = any(
        mark.name == "skip" or True in mark.args
        for mark in (*item.iter_markers("skip"), *item.iter_markers("skipif"))
    )
    return skipped or any(
        mark.kwargs.get("run") is False for mark in item.iter_markers("xfail")
    )


def _announce(config: pytest.Config, count: int) -> None:
    """Print how many tests are counted in a separate process."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    tests = f"{count} test{'s' * (count != 1)}"
    reporter.ensure_newline()
    reporter.write_line(f"gpuperf: counting {tests} under ncu, in a separate process")
