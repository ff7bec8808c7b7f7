"""What a test is besides its id: the digests of its parameters and of its function."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf import options
from pytest_gpuperf.collect.parameters import parameters_digest
from pytest_gpuperf.collect.syntax import function_digest
from pytest_gpuperf.model.frozen import Frozen, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuperf.model.record import Record

__all__ = ["Digests", "digests_of", "parameters_of", "read_functions"]

# pytest makes the ids of these from the value itself.
_IN_IDS = frozenset({int, float, bool, complex, bytes, type(None)})
_NUMBERED_LAMBDA = re.compile(r"<lambda>\d+")


class Digests(Frozen, frozen=True, kw_only=True):
    """
    What tells a test from another one of its id.

    Attributes:
        parameters: Digest of the values of its parameters, or None if it has none.

        function: Digest of its function's syntax tree, or None if that is unknown.

        positional_id: The part of its id that counts a position, or "".
    """

    parameters: str | None = None
    function: str | None = None
    positional_id: str = ""

    def of(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records of the test with its digests."""
        if self.parameters is None and self.function is None:
            return records
        return [
            replace(
                record, parameters_digest=self.parameters, test_digest=self.function
            )
            for record in records
        ]


def digests_of(item: pytest.Item) -> Digests:
    """
    Return the digests of a test.

    Its fixtures and its body may change the values of its parameters: ask before.
    """
    function = function_digest(getattr(item, "function", None))
    if getattr(item, "callspec", None) is None:
        return Digests(function=function)
    return Digests(
        parameters=parameters_of(item),
        function=function,
        positional_id=_positional_id(item),
    )


def read_functions(items: Iterable[pytest.Item]) -> None:
    """Read the files of test functions, whose digests are kept, before any test runs."""
    for item in items:
        function_digest(getattr(item, "function", None))


def parameters_of(item: pytest.Item) -> str | None:
    """Return the digest of a test's parameters, or None if it has none."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return None
    return parameters_digest(callspec.params, _checkout(item.config))


@functools.lru_cache(maxsize=2)  # Asked for each test. A pytest may run inside another.
def _checkout(config: pytest.Config) -> tuple[str, ...]:
    checkout = options.config_of(config).checkout
    spellings = (checkout.root, *checkout.spellings)
    return tuple(text for text in spellings if len(text) > 1)  # "/" is no checkout


def _positional_id(item: pytest.Item) -> str:
    """
    Return the part of a test's id that counts a position, "" if there is none.

    pytest makes it from the argument's name and a number if a value has no text of its
    own, as `shape0`.
    """
    callspec = item.callspec  # type: ignore[attr-defined] # Of a parametrized function.
    text = callspec.id
    parts = text.split("-")
    for name, value in callspec.params.items():
        if type(value) in _IN_IDS:
            continue
        for part in parts:
            counts = part.startswith(name) and part[len(name) :].isdecimal()
            # A parameter may be the text "shape0" itself.
            if counts and not (isinstance(value, str) and value == part):
                return str(part)
    numbered = _NUMBERED_LAMBDA.search(text)
    return "" if numbered is None else numbered[0]
