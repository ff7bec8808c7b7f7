"""The tests of a store, by the ids of pytest and by the keys that are stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from os.path import normpath
from pathlib import Path

from pytest_gpuperf.collect.checkout import checkout_of

__all__ = ["StoredTests", "is_of"]


class StoredTests:
    """
    The tests of a store as they are typed and shown in the current folder.

    Args:
        keys: What stands in the store: keys, and ids of pytest in one of an earlier version.

        place: The store; its folder is usually pytest's root folder.
    """

    def __init__(self, keys: Collection[str], place: str) -> None:
        self._keys = keys
        here = Path.cwd()
        self._checkout = checkout_of((here / place).parent, here)
        root = Path(self._checkout.root)
        folders = [here, *here.parents, *(here / place).resolve().parents]
        self._folders = dict.fromkeys(
            folder.relative_to(root).as_posix()
            for folder in folders
            if folder.is_relative_to(root)
        )

    def named(self, name: str) -> frozenset[str]:
        """
        Return the keys of the tests that a name selects, as a name selects them for pytest.

        Args:
            name: An id of pytest, its beginning, or a key. Its file may be relative to the
                current folder, to one above it, or to a folder above the store.
        """
        for candidate in self._candidates(name):
            keys = frozenset(key for key in self._keys if is_of(key, candidate))
            if keys:
                return keys
        return frozenset()

    def shown(self, key: str) -> str:
        """Return a test as pytest shows it below the folder of the store."""
        return self._checkout.id_of(key)

    def _candidates(self, name: str) -> Iterator[str]:
        """Yield the keys that a name may mean, the nearest file first."""
        module, colons, rest = name.partition("::")
        rest = colons + self._checkout.portable(rest)
        below = self._checkout.relative(module)
        if below is not None:
            yield below + rest
            return
        for folder in self._folders:
            yield normpath(f"{folder}/{module}") + rest
        yield name
        # of a store that was brought here, as from the machine of a CI job
        ends = {
            m for key in self._keys if f"/{(m := _module(key))}".endswith(f"/{module}")
        }
        if len(ends) == 1:
            yield ends.pop() + rest


def _module(key: str) -> str:
    return key.partition("::")[0]


def is_of(test_id: str, name: str) -> bool:
    """Return whether a name as pytest takes it selects a test, or a repeat of it."""
    return test_id == name or test_id.startswith((f"{name}::", f"{name}[", f"{name}#"))
