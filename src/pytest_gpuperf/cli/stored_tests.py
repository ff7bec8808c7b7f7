"""A named store, and its tests by the ids of pytest and by the stored keys."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.baseline.protocol import Store
from pytest_gpuperf.baseline.store import names_database, open_store
from pytest_gpuperf.cli.output import refuse_foreign
from pytest_gpuperf.collect.checkout import checkout_of
from pytest_gpuperf.errors import ConfigError, GpuPerfError
from pytest_gpuperf.model.checkout import is_of
from pytest_gpuperf.model.url import masked

if TYPE_CHECKING:
    import argparse

# The variable of pytest's option. The module of the options would load pytest.
_VARIABLE = "GPUPERF_BASELINE"
_DEFAULT_PLACE = ".gpuperf"


def opened(place: str) -> Store:
    """
    Open a store.

    Args:
        place: The name of the store. A relative path starts from the current folder.

    Raises:
        BaselineError: There is no store of that name.

        RecordError: Another tool wrote the file.
    """
    refuse_foreign(place, instead="name a store that --gpuperf-update has written")
    return open_store(place, Path.cwd())


def opened_or_named(arguments: argparse.Namespace) -> Store:
    """
    Open the store that --baseline or the environment names, or the default store.

    The password is masked in the arguments.

    Raises:
        ConfigError: The variable is empty, or names no store.

        BaselineError: As for `opened`.

        RecordError: As for `opened`.
    """
    named = os.environ.get(_VARIABLE) if arguments.baseline is None else None
    if named is not None and not named.strip():
        raise ConfigError(f"{_VARIABLE} is empty", remedy="unset it, or name a store")
    place = arguments.baseline or named or _DEFAULT_PLACE
    arguments.baseline = masked(place)
    try:
        return opened(place)
    except GpuPerfError as error:
        if named is not None:
            error.remedy += f"; {_VARIABLE} names the store"
        raise


def opened_by(arguments: argparse.Namespace) -> Store:
    """
    Open the store of a command, and mask the password in the arguments.

    Raises:
        BaselineError: As for `opened`.

        RecordError: As for `opened`.
    """
    store = opened(arguments.store)
    arguments.store = masked(arguments.store)
    return store


class StoredTests:
    """
    The tests of a store as they are typed and shown in the current folder.

    Args:
        keys: The stored keys, or ids of pytest in a store of an earlier version.

        place: The store. Its folder is usually pytest's root folder.
    """

    def __init__(self, keys: Collection[str], place: str) -> None:
        self._keys = keys
        here = Path.cwd()
        # The URL of a database names no folder.
        path = here / ("database" if names_database(place) else place)
        self._checkout = checkout_of(path.parent, here)
        root = Path(self._checkout.root)
        folders = [here, *here.parents, *path.resolve().parents]
        self._folders = dict.fromkeys(
            folder.relative_to(root).as_posix()
            for folder in folders
            if folder.is_relative_to(root)
        )

    def named(self, name: str) -> frozenset[str]:
        """
        Return the keys of the tests that a name selects, by the rules of pytest.

        Args:
            name: An id of pytest, its beginning, or a key. Its file may be relative to
                the current folder, to one above it, or to a folder above the store.
        """
        for candidate, _ in self._readings(name, name):
            keys = frozenset(key for key in self._keys if is_of(key, candidate))
            if keys:
                return keys
        return frozenset()

    def renamed(self, old: str, new: str) -> dict[str, str]:
        """
        Return the keys of the selected tests, with the keys under a new name.

        Args:
            old: An id of pytest or its beginning, a module or a folder, as for `named`.

            new: The present name. Its file is read like that of `old`.

        Raises:
            ConfigError: `old` and `new` name different kinds, as a test and a module.
        """
        pairs: dict[str, str] = {}
        for candidate, renamed in self._readings(old, new):
            keys = [key for key in self._keys if is_of(key, candidate)]
            pairs = {key: renamed + key.removeprefix(candidate) for key in keys}
            if pairs:
                break
        rest = old.partition("::")[2], new.partition("::")[2]
        # A module has a suffix, a folder has none.
        alike = any(rest) or bool(Path(old).suffix) == bool(Path(new).suffix)
        for key, renamed in pairs.items():
            module, _, test = renamed.partition("::")
            behind = renamed.removeprefix(new)
            is_id = module and test and "/" not in test.partition("[")[0]
            if not (alike and is_id) or (new.endswith("]") and behind.startswith("[")):
                raise ConfigError(
                    f"{new!r} cannot be the new name of {old!r}: {key} would be {renamed}",
                    remedy="rename a test to a test, a module to a module, a folder to a folder",
                )
        return pairs

    def shown(self, key: str) -> str:
        """Return a test as pytest shows it below the folder of the store."""
        return self._checkout.id_of(key)

    def _readings(self, name: str, other: str) -> Iterator[tuple[str, str]]:
        """
        Yield the keys that a name may mean, the nearest file first, with a second name
        read alike.
        """
        module, rest = self._split(name)
        module_2, rest_2 = self._split(other)
        below, below_2 = map(self._checkout.relative, (module, module_2))
        if below_2 is not None:
            module_2 = below_2
        if below is not None:
            yield below + rest, module_2 + rest_2
            return
        for folder in self._folders:
            # An absolute path belongs to no folder.
            at = "." if below_2 is not None else folder
            yield (
                normpath(f"{folder}/{module}") + rest,
                normpath(f"{at}/{module_2}") + rest_2,
            )
        yield name, other
        # For a store that was brought here, as from the machine of a CI job.
        modules = {key.partition("::")[0] for key in self._keys}
        ends = {m for m in modules if f"/{m}".endswith(f"/{module}")}
        if len(ends) == 1:
            end = ends.pop()
            yield end + rest, end.removesuffix(module) + module_2 + rest_2

    def _split(self, name: str) -> tuple[str, str]:
        """Return the file of a name, and the rest of the name in the spelling of keys."""
        module, colons, rest = name.partition("::")
        return module, colons + self._checkout.portable(rest)
