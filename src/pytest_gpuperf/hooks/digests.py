"""Digests that identify a test beyond its id: of its parameters and of its function."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING
from weakref import ref

import pytest

from pytest_gpuperf.collect.syntax import function_digest
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.settings import config_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpuperf.model.record import Record


class Digests(Frozen, frozen=True, kw_only=True):
    """
    The properties that distinguish a test from another test with the same id.

    Attributes:
        parameters: Digest of the parameter values, or None without parameters.

        function: Digest of the function's syntax tree, or None if unknown.

        positional_id: The part of the id that counts a position, or "".
    """

    parameters: str | None = None
    function: str | None = None
    positional_id: str = ""

    def of(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records of the test with the digests filled in."""
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

    Call this before the test runs, because its fixtures and its body may change
    parameter values.
    """
    function = function_digest(getattr(item, "function", None))
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return Digests(function=function)
    from pytest_gpuperf.collect.parameters import positional_id

    return Digests(
        parameters=parameters_of(item),
        function=function,
        positional_id=positional_id(callspec.id, callspec.params),
    )


def read_functions(items: Iterable[pytest.Item]) -> None:
    """
    Read the source files of test functions before any test runs, and cache the digests.

    What parametrized tests need is loaded.
    """
    for item in items:
        function_digest(getattr(item, "function", None))
        if getattr(item, "callspec", None) is not None:
            _loaded_parameters_digest()


def parameters_of(item: pytest.Item) -> str | None:
    """Return the digest of a test's parameters, or None without parameters."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return None
    digest = _loaded_parameters_digest()
    return digest(callspec.params, _checkout(ref(item.config)))


# Cached, because each parametrized test asks, and most runs have none.
@functools.cache
def _loaded_parameters_digest() -> Callable[
    [Mapping[str, object], Iterable[str]], str | None
]:
    from pytest_gpuperf.collect.parameters import parameters_digest

    return parameters_digest


# Cached, because it is needed for every test. Two entries, because a pytest may run
# inside another pytest, and none holds a pytest that has ended.
@functools.lru_cache(maxsize=2)
def _checkout(config: ref[pytest.Config]) -> tuple[str, ...]:
    checkout = config_of(config()).checkout  # type: ignore[arg-type] # The item holds it.
    spellings = (checkout.root, *checkout.spellings)
    return tuple(text for text in spellings if len(text) > 1)  # "/" is no checkout.
