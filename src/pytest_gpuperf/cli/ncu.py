"""The commands `metrics …`, what Nsight Compute can count, and `cache …`, what it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import (
    GOOD,
    WORSE,
    each,
    print_bytes,
    print_table,
    say,
)
from pytest_gpuperf.collect.cupti.chips import MetricType, chip_entries, chip_here
from pytest_gpuperf.collect.ncu.catalogue import Catalogue
from pytest_gpuperf.collect.ncu.store import KINDS, EntryStore, StoreEntry
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.report import display
from pytest_gpuperf.report.display import plural
from pytest_gpuperf.report.lines import Column, document
from pytest_gpuperf.report.metrics import (
    check_bytes,
    chip_bytes,
    cost_bytes,
    described_bytes,
    entry_bytes,
)

if TYPE_CHECKING:
    import argparse

__all__ = [
    "check",
    "chips",
    "clear",
    "describe",
    "info",
    "listed",
    "passes",
    "search",
    "verify",
]


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


def info(arguments: argparse.Namespace) -> int:
    """Print what the cache of ncu's values holds."""
    store = _entry_store(arguments)
    entries = store.entries()
    return _print_cache("info", store, entries, {}, "", arguments.format)


def verify(arguments: argparse.Namespace) -> int:
    """Read every entry, remove what is damaged, and print how many were."""
    store = _entry_store(arguments)
    damaged = store.verify()
    remark = (
        f"{_count(damaged)} damaged and removed" if damaged else "nothing is damaged"
    )
    more = {"damaged": [f"{entry.kind}/{entry.key}" for entry in damaged]}
    _print_cache("verify", store, store.entries(), more, remark, arguments.format)
    return WORSE if damaged else GOOD


def clear(arguments: argparse.Namespace) -> int:
    """Remove every entry, and print how many there were."""
    store = _entry_store(arguments)
    removed = store.clear()
    remark = f"{_count(removed)} removed"
    more = {"removed": len(removed), "removed_bytes": _size_bytes(removed)}
    return _print_cache("clear", store, store.entries(), more, remark, arguments.format)


def _entry_store(arguments: argparse.Namespace) -> EntryStore:
    """Return the cache that is meant."""
    named = arguments.folder
    if named is not None and not Path(named).is_dir():
        message = f"{named!r} is not a folder"
        raise ConfigError(message, remedy="name the folder of a cache with --folder")
    return EntryStore(None if named is None else Path(named))


def _print_cache(
    action: str,
    store: EntryStore,
    entries: Sequence[StoreEntry],
    more: Mapping[str, object],
    remark: str,
    form: str,
) -> int:
    """Print the contents of the cache, and what was done."""
    size = display.value(_size_bytes(entries), "bytes")
    total = f"{size} of {display.value(store.limit_bytes, 'bytes')}"
    content = {
        "folder": str(store.folder),
        "limit_bytes": store.limit_bytes,
        "size_bytes": _size_bytes(entries),
        **{kind: _facts(entries, kind) for kind in KINDS},
        **more,
    }
    return print_table(
        form,
        title=str(store.folder),
        table=_cache_table(entries),
        remarks=[*filter(None, (remark,)), total],
        content=document(f"cache {action}", content),
    )


def _cache_table(entries: Sequence[StoreEntry]) -> tuple[Column, ...]:
    """Return how much there is of each kind, and when it was used last."""
    by_kind = [[entry for entry in entries if entry.kind == kind] for kind in KINDS]
    used = [
        max((entry.used_unix_s for entry in part), default=None) for part in by_kind
    ]
    sizes = tuple(display.value(_size_bytes(part), "bytes") for part in by_kind)
    dates = tuple("" if unix_s is None else display.date(unix_s) for unix_s in used)
    return (
        Column(head="kind", cells=KINDS),
        Column(
            head="entries", cells=tuple(str(len(part)) for part in by_kind), right=True
        ),
        Column(head="size", cells=sizes, right=True),
        Column(head="used last", cells=dates, blank="never"),
    )


def _facts(entries: Sequence[StoreEntry], kind: str) -> dict[str, object]:
    """Return the numbers of one kind."""
    of_kind = [entry for entry in entries if entry.kind == kind]
    return {
        "entries": len(of_kind),
        "size_bytes": _size_bytes(of_kind),
        "used_unix_s": max((entry.used_unix_s for entry in of_kind), default=None),
    }


def _size_bytes(entries: Sequence[StoreEntry]) -> int:
    """Return how much some entries take [B]."""
    return sum(entry.size_bytes for entry in entries)


def _count(entries: Sequence[StoreEntry]) -> str:
    """Return how many entries these are, in words."""
    return plural(len(entries), "entry", "entries")
