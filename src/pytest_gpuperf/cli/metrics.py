"""The commands `metrics …`: names, chips and passes, without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import GOOD, WORSE, each, print_bytes, say
from pytest_gpuperf.collect.cupti.chips import MetricType, chip_entries, chip_here
from pytest_gpuperf.collect.ncu.catalogue import Catalogue
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.report.metrics import (
    check_bytes,
    chip_bytes,
    cost_bytes,
    described_bytes,
    entry_bytes,
)

if TYPE_CHECKING:
    import argparse

__all__ = ["check", "chips", "describe", "listed", "passes", "search"]


def chips(arguments: argparse.Namespace) -> int:
    """Print every supported chip."""
    return print_bytes(chip_bytes(chip_entries(), arguments.format))


def listed(arguments: argparse.Namespace) -> int:
    """Print a chip's metrics, or those of one kind."""
    catalogue = _catalogue(arguments)
    kind = MetricType[arguments.kind.upper()] if arguments.kind else None
    entries = tuple(catalogue.entries(kind))
    return print_bytes(entry_bytes(catalogue.chip, entries, arguments.format))


def search(arguments: argparse.Namespace) -> int:
    """Print the metrics whose name or description has every word."""
    catalogue = _catalogue(arguments)
    entries = catalogue.search(arguments.words)
    print_bytes(entry_bytes(catalogue.chip, entries, arguments.format))
    if not entries:
        words = ", ".join(map(repr, arguments.words))
        missing = "no metric with all of these in its name or description"
        say([f"gpuperf: {catalogue.chip} has {missing}: {words}"])
    return GOOD if entries else WORSE


def describe(arguments: argparse.Namespace) -> int:
    """Print the descriptions of metrics."""
    catalogue = _catalogue(arguments)
    entries = each(arguments.names, catalogue.describe)
    return print_bytes(described_bytes(catalogue.chip, entries, arguments.format))


def check(arguments: argparse.Namespace) -> int:
    """Print whether names are metrics of a chip; return 1 if one is not."""
    catalogue = _catalogue(arguments)
    checks = [catalogue.check(name) for name in arguments.names]
    print_bytes(check_bytes(catalogue.chip, checks, arguments.format))
    return GOOD if all(result.known for result in checks) else WORSE


def passes(arguments: argparse.Namespace) -> int:
    """Print the passes that a kernel needs for some metrics together."""
    catalogue = _catalogue(arguments)
    return print_bytes(cost_bytes(catalogue.cost(arguments.names), arguments.format))


def _catalogue(arguments: argparse.Namespace) -> Catalogue:
    """Return the catalogue of the named chip, or of this machine's GPU."""
    chip = arguments.chip
    if chip is None:
        chip = chip_here()
    if chip is None:
        message = "no chip is named, and this machine has no GPU"
        raise ConfigError(message, remedy="name one: --chip=GH100, or --chip=sm_90")
    return Catalogue(chip)
