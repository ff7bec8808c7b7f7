"""Give every test that measures its key, and refuse tests that cannot be told apart."""

from __future__ import annotations

import copy
import os
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_gpuperf import options
from pytest_gpuperf.hooks.markers import PLAN, TEST_ID
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.report.terminal import twins_line

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpuperf.model.checkout import Checkout

__all__ = ["KEY", "TYPED", "Identity", "KeyMaker"]

KEY = pytest.StashKey[str]()  # where it is not the test id
TYPED = pytest.StashKey[str]()  # the test as an argument, where its id is none
# of what is installed, wherever the environment lies
_INSTALLED = ("/site-packages/", "/dist-packages/")


class _Place(NamedTuple):
    """
    What names of the tests of one parent begin with.

    Attributes:
        module: The module, as in keys.

        key: The beginning of keys.

        typed: The beginning of arguments, where pytest was started.

        shown: The beginning of ids, if arguments begin so, too.
    """

    module: str
    key: str
    typed: str
    shown: str


class KeyMaker:
    """
    Makes the keys of tests.

    Args:
        config: The pytest config.
    """

    def __init__(self, config: pytest.Config) -> None:
        read = options.config_of(config)
        self._checkout: Checkout = read.checkout
        self._start = str(config.invocation_params.dir)
        self._rootdir = read.option_texts.get("rootdir", ".")
        self._places: dict[object, _Place] = {}  # by the parent of tests

    def key_of(self, item: pytest.Item) -> str:
        """Return the key of a test: its module, and its name without the checkout's folder."""
        place = self._places.get(item.parent) or self._place(item)
        name = item.name
        return place.key + (self._checkout.portable(name) if "/" in name else name)

    def module_of(self, item: pytest.Item) -> str:
        """Return the module of a test, as its key begins."""
        return (self._places.get(item.parent) or self._place(item)).module

    def module_around(self, collector: pytest.Collector) -> str:
        """Return the module of a file or of what is in one, as keys begin."""
        return self._module(collector)

    def typed(self, item: pytest.Item) -> str:
        """Return a test as it is typed where pytest was started."""
        return (self._places.get(item.parent) or self._place(item)).typed + item.name

    def is_typed(self, item: pytest.Item, test_id: str) -> bool:
        """Return whether a test is typed by its id, from pytest's root folder."""
        return test_id == self._places[item.parent].shown + item.name

    def _place(self, item: pytest.Item) -> _Place:
        """Find out what the names of the tests of one parent begin with."""
        classes, module = _classes(item), self._module(item)
        path = Path(os.path.relpath(item.path, self._start)).as_posix()
        typed = "".join(f"{part}::" for part in (path, *classes))
        shown = "" if item.parent is None else f"{item.parent.nodeid}::"
        place = _Place(
            module=module,
            key="".join(
                f"{part}::" for part in (module, *map(self._checkout.portable, classes))
            ),
            typed=typed,
            # none begins so where the file is not below the root folder
            shown=shown if normpath(f"{self._rootdir}/{shown}") == typed else "\0",
        )
        self._places[item.parent] = place
        return place

    def _module(self, item: pytest.Item | pytest.Collector) -> str:
        """Return the path of a test's file in the checkout, else how the file is imported."""
        file = _file_of(item)
        if file is None:  # of a plugin that has tests in no file
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


def _classes(item: pytest.Item) -> list[str]:
    """Return the names of what a test is in, below its file."""
    chain, file = item.listchain()[:-1], _file_of(item)
    return [] if file is None else [n.name for n in chain[chain.index(file) + 1 :]]


class Identity:
    """
    Gives every test that measures its key, once all are collected.

    Args:
        config: The pytest config.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.keys = KeyMaker(config)

    # innermost: all plugins have had the items when it goes on, and a child process
    # selects its tests by their keys after it
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        """Give every test that measures a key of its own, or refuse to run any."""
        result = yield
        twins = self._name_all(items)
        for first, second in twins:
            self._refuse(first, second)
        if twins:
            refused = {id(item) for pair in twins for item in pair}
            goes_on = self._config.option.continue_on_collection_errors
            # workers of xdist run whatever could be collected
            items[:] = [i for i in items if goes_on and id(i) not in refused]
        return result

    def _name_all(
        self, items: list[pytest.Item]
    ) -> list[tuple[pytest.Item, pytest.Item]]:
        """Return pairs of tests with one id or one key that are not one test repeated."""
        by_key: dict[str, pytest.Item] = {}
        by_id: dict[str, pytest.Item] = {}
        counts: dict[str, int] = {}
        named: set[int] = set()
        twins = []
        for place, item in enumerate(items):
            if PLAN not in item.stash:
                continue
            key, node_id = self.keys.key_of(item), item.nodeid
            first = by_key.get(key) or by_id.get(node_id)
            if first is None:
                by_key[key] = by_id[node_id] = item
                self._name(item, item.stash[TEST_ID], key)
            elif _is_repeat(first, item) and by_key.get(key) is first:
                counts[key] = counts.get(key, 1) + 1
                # a plugin may repeat the very object
                items[place] = item = _copy_of(item) if id(item) in named else item  # noqa: PLW2901 - in its place
                self._number(first, item, key, counts[key])
            else:
                twins.append((first, item))
            named.add(id(item))
        return twins

    def _name(self, item: pytest.Item, test_id: str, key: str) -> None:
        """Keep the key of a test if it is not its id, and how the test is typed likewise."""
        if key == test_id:
            return
        item.stash[KEY] = key
        if not self.keys.is_typed(item, test_id):
            item.stash[TYPED] = self.keys.typed(item)

    def _number(
        self, first: pytest.Item, item: pytest.Item, key: str, number: int
    ) -> None:
        """Give a repeat of a test names of its own, in pytest's reports, too."""
        test_id = first.stash[TEST_ID]
        # what xdist appends for a group stays behind the number
        group = first.nodeid.removeprefix(test_id)
        item.stash[TEST_ID] = f"{test_id}#{number}"
        _rename(item, f"{test_id}#{number}{group}")
        item.stash[KEY] = f"{key}#{number}"
        item.stash[TYPED] = self.keys.typed(item)

    def _refuse(self, first: pytest.Item, second: pytest.Item) -> None:
        """Report an error of the collection; in an xdist worker a UsageError is internal."""
        text = twins_line(
            escape(second.nodeid), self.keys.typed(first), self.keys.typed(second)
        )
        module = second.nodeid.partition("::")[0]
        report = pytest.CollectReport(module, "failed", text, [])
        self._config.hook.pytest_collectreport(report=report)


def _is_repeat(first: pytest.Item, item: pytest.Item) -> bool:
    """Return whether two tests are one definition, collected twice."""
    if first is item:
        return True
    place = item.location
    return place[1] is not None and place == first.location and item.path == first.path


def _rename(item: Any, node_id: str) -> None:  # noqa: ANN401 - an item, of which no type has these
    """Give a test another node id, as xdist does: pytest has no public way."""
    parsed = getattr(item, "_id", None)  # since pytest 9.2 the id is no text
    if parsed is None:
        item._nodeid = node_id  # noqa: SLF001 - see above
    else:
        item._id = parsed.parse(node_id)  # noqa: SLF001 - see above


def _copy_of(item: pytest.Item) -> pytest.Item:
    """Return another item of the same test, with what pytest keeps of one for itself."""
    copied: Any = copy.copy(item)
    copied.stash = pytest.Stash()
    copied.stash[PLAN], copied.stash[TEST_ID] = item.stash[PLAN], item.stash[TEST_ID]
    copied.user_properties = [*item.user_properties]
    copied._report_sections = []  # noqa: SLF001 - the list of the first is not its own
    begin = getattr(copied, "_initrequest", None)  # of functions and doctests
    if begin is not None:
        begin()
    return copied  # type: ignore[no-any-return] # an item, as it was
