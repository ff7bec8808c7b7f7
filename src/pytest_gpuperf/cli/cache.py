"""The command `cache`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import GOOD, WORSE, print_bytes
from pytest_gpuperf.collect.ncu.store import KINDS, Store, StoreEntry
from pytest_gpuperf.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from pytest_gpuperf.report.lines import Column

__all__ = ["clear", "info", "verify"]

_WIDTH = 100


def info(arguments: argparse.Namespace) -> int:
    """Print what the cache of ncu's values holds."""
    store = _store(arguments)
    entries = store.entries()
    return _print(store, entries, {}, "", arguments.format)


def verify(arguments: argparse.Namespace) -> int:
    """Read every entry, remove what is damaged, and print how many were."""
    store = _store(arguments)
    damaged = store.verify()
    said = f"{_count(damaged)} damaged and removed" if damaged else "nothing is damaged"
    more = {"damaged": [f"{each.kind}/{each.key}" for each in damaged]}
    _print(store, store.entries(), more, said, arguments.format)
    return WORSE if damaged else GOOD


def clear(arguments: argparse.Namespace) -> int:
    """Remove every entry, and print how many there were."""
    store = _store(arguments)
    removed = store.clear()
    said = f"{_count(removed)} removed"
    more = {"removed": len(removed), "removed_bytes": _size_bytes(removed)}
    return _print(store, store.entries(), more, said, arguments.format)


def _store(arguments: argparse.Namespace) -> Store:
    """Return the cache that is meant."""
    named = arguments.folder
    if named is not None and not Path(named).is_dir():
        message = f"{named!r} is not a folder"
        raise ConfigError(message, remedy="name the folder of a cache with --folder")
    return Store(None if named is None else Path(named))


def _print(
    store: Store,
    entries: Sequence[StoreEntry],
    more: Mapping[str, object],
    said: str,
    form: str,
) -> int:
    """Print what is there, and what was done."""
    from pytest_gpuperf.report import display
    from pytest_gpuperf.report.escape import escape
    from pytest_gpuperf.report.lines import markdown_table, text_table

    if form == "json":
        content = {
            "folder": str(store.folder),
            "limit_bytes": store.limit_bytes,
            "size_bytes": _size_bytes(entries),
            **{kind: _facts(entries, kind) for kind in KINDS},
            **more,
        }
        return print_bytes(f"{json.dumps(content, indent=1)}\n".encode())
    table, folder = _table(entries), escape(str(store.folder))
    size = display.value(_size_bytes(entries), "bytes")
    total = f"{size} of {display.value(store.limit_bytes, 'bytes')}"
    if form == "markdown":
        rows = [*markdown_table(table)]
        lines = [f"### {folder}", "", *rows, "", *([said] if said else []), total]
    else:
        rows = [f"  {row}" for row in text_table(table, width=_WIDTH)]
        lines = [folder, *rows, *([f"  {said}"] if said else []), f"  {total}"]
    return print_bytes("".join(f"{line}\n" for line in lines).encode())


def _table(entries: Sequence[StoreEntry]) -> tuple[Column, ...]:
    """Return how much there is of each kind, and when it was used last."""
    from pytest_gpuperf.report import display
    from pytest_gpuperf.report.lines import Column

    own = [[each for each in entries if each.kind == kind] for kind in KINDS]
    used = [max((e.used_unix_s for e in each), default=None) for each in own]
    sizes = tuple(display.value(_size_bytes(each), "bytes") for each in own)
    dates = tuple("" if each is None else display.date(each) for each in used)
    return (
        Column(head="kind", cells=KINDS),
        Column(head="entries", cells=tuple(str(len(e)) for e in own), right=True),
        Column(head="size", cells=sizes, right=True),
        Column(head="used last", cells=dates, blank="never"),
    )


def _facts(entries: Sequence[StoreEntry], kind: str) -> dict[str, object]:
    """Return the numbers of one kind."""
    own = [each for each in entries if each.kind == kind]
    return {
        "entries": len(own),
        "size_bytes": _size_bytes(own),
        "used_unix_s": max((each.used_unix_s for each in own), default=None),
    }


def _size_bytes(entries: Sequence[StoreEntry]) -> int:
    """Return how much some entries take [B]."""
    return sum(each.size_bytes for each in entries)


def _count(entries: Sequence[StoreEntry]) -> str:
    """Return how many entries these are, in words."""
    from pytest_gpuperf.report.display import plural

    return plural(len(entries), "entry", "entries")
