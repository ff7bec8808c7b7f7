"""Give every measured test its key, and refuse tests that cannot be distinguished."""

from __future__ import annotations

import copy
import os
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_gpuperf.hooks.marked import MARKED, MarkedTest, marked_of
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.settings import config_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpuperf.model.checkout import Checkout

# Parts of the path of an installed file, in any environment.
_INSTALLED = ("/site-packages/", "/dist-packages/")


class _Place(NamedTuple):
    """
    The beginning of the names of all tests with the same parent.

    Attributes:
        module: The module, as in keys.

        key: The beginning of keys.

        typed: The beginning of command-line arguments, relative to the start folder.

        shown: The beginning of ids, if arguments begin in the same way.
    """

    module: str
    key: str
    typed: str
    shown: str


class KeyMaker:
    """
    Create the keys of tests.

    Args:
        config: The pytest config.
    """

    def __init__(self, config: pytest.Config) -> None:
        read = config_of(config)
        self._checkout: Checkout = read.checkout
        self._start = str(config.invocation_params.dir)
        self._rootdir = read.option_texts.get("rootdir", ".")
        # By the parent of the tests.
        self._places: dict[object, _Place] = {}

    def key_of(self, item: pytest.Item) -> str:
        """
        Return the key of a test, made of the module and the name without the checkout's folder.
        """
        place = self._places.get(item.parent) or self._place(item)
        name = item.name
        return place.key + (self._checkout.portable(name) if "/" in name else name)

    def module_of(self, item: pytest.Item) -> str:
        """Return the module of a test, as at the beginning of the key."""
        return (self._places.get(item.parent) or self._place(item)).module

    def module_around(self, collector: pytest.Collector) -> str:
        """Return the module of a collector, as at the beginning of keys."""
        return self._module(collector)

    def typed(self, item: pytest.Item) -> str:
        """Return a test as a command-line argument, relative to the start folder."""
        return (self._places.get(item.parent) or self._place(item)).typed + item.name

    def is_typed(self, item: pytest.Item, test_id: str) -> bool:
        """
        Return True if the id of a test is also the argument, seen from pytest's root folder.
        """
        return test_id == self._places[item.parent].shown + item.name

    def _place(self, item: pytest.Item) -> _Place:
        module, file = self._module(item), _file_of(item)
        # The names of the nodes between the file and the test, outermost first.
        chain = item.listchain()[:-1]
        inside = [] if file is None else chain[chain.index(file) + 1 :]
        classes = [node.name for node in inside]
        path = Path(os.path.relpath(item.path, self._start)).as_posix()
        typed = "".join(f"{part}::" for part in (path, *classes))
        shown = "" if item.parent is None else f"{item.parent.nodeid}::"
        place = _Place(
            module=module,
            key="".join(
                f"{part}::" for part in (module, *map(self._checkout.portable, classes))
            ),
            typed=typed,
            # For a file outside the root folder, use a prefix that no id has.
            shown=shown if normpath(f"{self._rootdir}/{shown}") == typed else "\0",
        )
        self._places[item.parent] = place
        return place

    def _module(self, item: pytest.Item | pytest.Collector) -> str:
        """Return the path of a test's file in the checkout, or the import name of the file."""
        file = _file_of(item)
        if file is None:  # A plugin may have tests without a file.
            return item.nodeid.partition("::")[0]
        for path in (file.path.as_posix(), os.path.realpath(file.path)):
            below = self._checkout.relative(path)
            if below is not None and not any(name in path for name in _INSTALLED):
                return below
        imported = file.obj.__name__ if isinstance(file, pytest.Module) else ""
        return imported or file.nodeid


def _file_of(item: pytest.Item | pytest.Collector) -> pytest.File | None:
    files = [node for node in item.listchain() if isinstance(node, pytest.File)]
    return files[-1] if files else None


class Identity:
    """
    Give every measured test its key at the end of the collection.

    Args:
        config: The pytest config.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.keys = KeyMaker(config)

    # Innermost, so that all plugins have changed the items before. A child process
    # selects its tests by key afterwards.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        """Give every measured test a key, or refuse tests that share a key."""
        result = yield
        twins = self._name_all(items)
        for first, second in twins:
            from pytest_gpuperf.report import notices

            text = notices.twins_line(
                escape(second.nodeid), self.keys.typed(first), self.keys.typed(second)
            )
            # A UsageError would be an internal error in a worker of xdist.
            module = second.nodeid.partition("::")[0]
            report = pytest.CollectReport(module, "failed", text, [])
            self._config.hook.pytest_collectreport(report=report)
        if twins:
            refused = {id(item) for pair in twins for item in pair}
            goes_on = self._config.option.continue_on_collection_errors
            # xdist workers run all tests that could be collected.
            items[:] = [i for i in items if goes_on and id(i) not in refused]
        return result

    def _name_all(
        self, items: list[pytest.Item]
    ) -> list[tuple[pytest.Item, pytest.Item]]:
        """
        Return pairs of tests that share an id or a key without being repeats of the same test.
        """
        by_key: dict[str, pytest.Item] = {}
        by_id: dict[str, pytest.Item] = {}
        counts: dict[str, int] = {}
        named: set[int] = set()
        twins = []
        for place, item in enumerate(items):
            marked = marked_of(item)
            if marked is None:
                continue
            key, node_id = self.keys.key_of(item), item.nodeid
            first = by_key.get(key) or by_id.get(node_id)
            if first is None:
                by_key[key] = by_id[node_id] = item
                if key != marked.test_id:
                    marked.key = key
                    if not self.keys.is_typed(item, marked.test_id):
                        marked.typed = self.keys.typed(item)
            elif _is_repeat(first, item) and by_key.get(key) is first:
                counts[key] = counts.get(key, 1) + 1
                # A plugin may repeat the same object.
                if id(item) in named:
                    copied: Any = copy.copy(item)
                    copied.stash = pytest.Stash()
                    copied.stash[MARKED] = marked.copy()
                    copied.user_properties = [*item.user_properties]
                    copied._report_sections = []  # noqa: SLF001 - the list of the first is not its own
                    # Only functions and doctests have this method.
                    begin = getattr(copied, "_initrequest", None)
                    if begin is not None:
                        begin()
                    items[place] = item = copied  # noqa: PLW2901 - in its place
                self._number(first, item, key, counts[key])
            else:
                twins.append((first, item))
            named.add(id(item))
        return twins

    def _number(self, first: pytest.Item, item: Any, key: str, number: int) -> None:  # noqa: ANN401 - an item, of which no type has an _id
        """Give a repeat of a test a numbered id. pytest has no public way to change an id."""
        test_id = first.stash[MARKED].test_id
        # The group that xdist appends to an id stays behind the number.
        group = first.nodeid.removeprefix(test_id)
        node_id = f"{test_id}#{number}{group}"
        # Since pytest 9.2, the id is not a string.
        parsed = getattr(item, "_id", None)
        if parsed is None:
            item._nodeid = node_id  # noqa: SLF001 - as xdist does
        else:
            item._id = parsed.parse(node_id)  # noqa: SLF001 - as xdist does
        marked: MarkedTest = item.stash[MARKED]
        marked.test_id = f"{test_id}#{number}"
        marked.key = f"{key}#{number}"
        marked.typed = self.keys.typed(item)


def _is_repeat(first: pytest.Item, item: pytest.Item) -> bool:
    if first is item:
        return True
    place = item.location
    return place[1] is not None and place == first.location and item.path == first.path
