"""The command `cache`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import GOOD, WORSE, print_table
from pytest_gpuperf.collect.ncu.store import KINDS, EntryStore, StoreEntry
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.report import display
from pytest_gpuperf.report.display import plural
from pytest_gpuperf.report.lines import Column

if TYPE_CHECKING:
    import argparse

__all__ = ["clear", "info", "verify"]


def info(arguments: argparse.Namespace) -> int:
    """Print what the cache of ncu's values holds."""
    store = _store(arguments)
    entries = store.entries()
    return _print(store, entries, {}, "", arguments.format)


def verify(arguments: argparse.Namespace) -> int:
    """Read every entry, remove what is damaged, and print how many were."""
    store = _store(arguments)
    damaged = store.verify()
    remark = (
        f"{_count(damaged)} damaged and removed" if damaged else "nothing is damaged"
    )
    more = {"damaged": [f"{entry.kind}/{entry.key}" for entry in damaged]}
    _print(store, store.entries(), more, remark, arguments.format)
    return WORSE if damaged else GOOD


def clear(arguments: argparse.Namespace) -> int:
    """Remove every entry, and print how many there were."""
    store = _store(arguments)
    removed = store.clear()
    remark = f"{_count(removed)} removed"
    more = {"removed": len(removed), "removed_bytes": _size_bytes(removed)}
    return _print(store, store.entries(), more, remark, arguments.format)


def _store(arguments: argparse.Namespace) -> EntryStore:
    """Return the cache that is meant."""
    named = arguments.folder
    if named is not None and not Path(named).is_dir():
        message = f"{named!r} is not a folder"
        raise ConfigError(message, remedy="name the folder of a cache with --folder")
    return EntryStore(None if named is None else Path(named))


def _print(
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
        table=_table(entries),
        remarks=[*filter(None, (remark,)), total],
        content=content,
    )


def _table(entries: Sequence[StoreEntry]) -> tuple[Column, ...]:
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
