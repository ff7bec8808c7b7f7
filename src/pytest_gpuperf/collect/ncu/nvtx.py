"""NVTX ranges that mark measurements for ncu, and filters of launches by NVTX ranges.

NVTX is a C header: tools receive the calls compiled from it. The package nvtx has the
calls for Python, with domains, which the bindings inside torch and cupy lack.

    expression ::= "regex:"? (domain "@")? (pushpop | started)
    pushpop    ::= "["? part ("/" part)* "/"? "]"?      at least one of [ / ]
    part       ::= name | "*" any number of ranges | "+" exactly one
    started    ::= name ("," name)*                     all of them are open

`[` is the bottom of the stack, `]` its top. Without them the parts may lie anywhere in
the stack. A character of the grammar within a name is escaped with a backslash. With
`regex:` each name is a pattern that is searched for, and keeps its backslashes.

NVIDIA's reader is not used for this, because it aborts the process on `/`, and an
invalid pattern matches nothing without an error.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Container, Iterable, Sequence
from fnmatch import fnmatchcase
from types import ModuleType
from typing import Protocol, TypeVar, final

from pytest_gpuperf.errors import CollectorUnavailableError, ConfigError
from pytest_gpuperf.model.launch import DEFAULT_DOMAIN, NvtxDomain, ProfiledLaunch

DOMAIN = "pytest-gpuperf"
# Start/end ranges belong to the process, so that they include launches of worker
# threads (autograd's). A name without "/" means a range of that kind.
INCLUDE = f"regex:{DOMAIN}@.+"
# 64 bits: two of a million ranges share a name once in 40 million runs.
_NAME_LENGTH = 16


class Ranges(Protocol):
    """Opens and closes ranges for a profiler. Tests replace it with a scripted one."""

    def open(self, name: str) -> object:
        """Open a range of `DOMAIN` and return a handle."""

    def close(self, opened: object) -> None:
        """Close a range."""


@final
class NvtxRanges:
    """
    Ranges of the package nvtx.

    Args:
        nvtx: The package.
    """

    def __init__(self, nvtx: ModuleType) -> None:
        self._nvtx = nvtx

    def open(self, name: str) -> object:
        """Open a start/end range of `DOMAIN` and return a handle."""
        opened: object = self._nvtx.start_range(message=name, domain=DOMAIN)
        return opened

    def close(self, opened: object) -> None:
        """Close a range, from any thread."""
        self._nvtx.end_range(opened)


def find_ranges() -> Ranges:
    """
    Return the ranges of the process.

    Raises:
        CollectorUnavailableError: The package nvtx is not installed.
    """
    try:
        return NvtxRanges(importlib.import_module("nvtx"))
    except ImportError as error:
        raise CollectorUnavailableError(
            "the package nvtx is not installed",
            remedy='pip install "pytest-gpuperf[ncu]"',
        ) from error


def range_name(test_id: str, name: str) -> str:
    """
    Return the name of a measurement's range.

    It is a hash, because a test's id may contain the special characters of ncu's filters.

    Args:
        test_id: The test.

        name: The measurement inside it.
    """
    from blake3 import blake3

    framed = f"{test_id}\0{name}"
    digest = blake3(framed.encode("utf-8", "surrogatepass")).hexdigest()
    return digest[:_NAME_LENGTH]


_REGEX = "regex:"
# Any other backslash is literal.
_ESCAPED = re.compile(r"\\([@,\[\]/*+\\])")
# A character with its backslash is a single token.
_TOKEN = re.compile(r"\\.|.", re.DOTALL)
_Test = Callable[[str], bool]
# A string is one of the two quantifiers.
_Part = _Test | str
_ANY, _ONE = "*", "+"


class NvtxFilter:
    """
    Chooses launches by their open NVTX ranges.

    Args:
        includes: Expressions of which one must match. Without expressions each launch
            is included.

        excludes: Expressions of which none may match.

    Raises:
        ConfigError: Expressions cannot match. The message names all of them.
    """

    def __init__(
        self,
        includes: Iterable[str] | None = None,
        excludes: Iterable[str] | None = None,
    ) -> None:
        mistakes: list[str] = []
        self._includes = _parsed(includes, "includes", mistakes)
        self._excludes = _parsed(excludes, "excludes", mistakes)
        if mistakes:
            message = f"NVTX expressions that name no range: {'; '.join(mistakes)}"
            remedy = "write name/ for a push/pop range, name for a start/end range"
            raise ConfigError(message, remedy=remedy)

    def __bool__(self) -> bool:
        """Return True if there is any expression."""
        return bool(self._includes or self._excludes)

    def chooses(self, domains: Sequence[NvtxDomain]) -> bool:
        """
        Return True if a launch is chosen.

        Args:
            domains: The ranges that were open at the launch.
        """
        included = not self._includes or any(e.holds(domains) for e in self._includes)
        return included and not any(e.holds(domains) for e in self._excludes)


_L = TypeVar("_L", bound=ProfiledLaunch)
# Maximum number of kernels or ranges in a message.
_MANY = 10


class LaunchFilter:
    """
    Chooses launches by kernel, NVTX ranges and index.

    Args:
        kernels: Patterns of base or demangled names, with `*`, `?` and `[]`, of which
            one must match, or None for no condition.

        includes: See `NvtxFilter`.

        excludes: See `NvtxFilter`.

        indices: Indices of launches in their range, from 0, or a slice of all of them,
            or None for no condition.

    Raises:
        ConfigError: NVTX expressions cannot match.
    """

    def __init__(
        self,
        *,
        kernels: str | Iterable[str] | None = None,
        includes: Iterable[str] | None = None,
        excludes: Iterable[str] | None = None,
        indices: Iterable[int] | slice | None = None,
    ) -> None:
        self._nvtx = NvtxFilter(includes, excludes)
        several = (kernels,) if isinstance(kernels, str) else kernels
        self._kernels = None if several is None else tuple(several)
        self._indices = (
            indices
            if indices is None or isinstance(indices, slice)
            else frozenset(indices)
        )

    def chosen(self, launches: Sequence[_L]) -> list[_L]:
        """Return the chosen launches, given all launches of one range."""
        indices = self._indices
        places: Container[int] | None = (
            range(*indices.indices(len(launches)))
            if isinstance(indices, slice)
            else indices
        )
        if self._kernels is not None:
            launches = [
                launch
                for launch in launches
                if any(
                    # A demangled name may contain brackets and stars.
                    pattern in {launch.kernel, launch.demangled}
                    or fnmatchcase(launch.kernel, pattern)
                    or fnmatchcase(launch.demangled, pattern)
                    for pattern in self._kernels
                )
            ]
        return [
            launch
            for launch in launches
            if (places is None or launch.index in places)
            and self._nvtx.chooses(launch.domains)
        ]

    def remedy(self, launches: Sequence[ProfiledLaunch]) -> str:
        """Return the available choices for a filter that chooses no launch."""
        domains = [domain for launch in launches for domain in launch.domains]
        names = {
            name for domain in domains for name in (*domain.stack, *domain.started)
        }
        remedy = f"choose from {few(launch.kernel for launch in launches)}"
        if self._nvtx and not domains:
            remedy = "profile with ncu --nvtx: the report holds no NVTX range"
        elif self._nvtx and names:
            remedy += f" and from the NVTX ranges {few(sorted(names))}"
        if self._indices is not None:
            last = max(launch.index for launch in launches)
            remedy += f"; indices are from 0 to {last}"
        return remedy


def few(names: Iterable[str]) -> str:
    """Return names for a message, without duplicates."""
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - _MANY} more" if len(distinct) > _MANY else ""
    return ", ".join(distinct[:_MANY]) + more


class _Expression:
    """One parsed expression."""

    def __init__(self, text: str) -> None:
        """
        Parse an expression.

        Raises:
            ValueError: The expression can match nothing. The message is a fragment.
        """
        is_regex = text.startswith(_REGEX)
        test = _searched if is_regex else _equal
        body = text.removeprefix(_REGEX)
        self._domain = _equal(DEFAULT_DOMAIN)
        domain, *rest = _split(body, "@", 1)
        if rest:
            self._domain, body = test(domain), rest[0]
        self._bottom = body.startswith("[")
        self._top = _TOKEN.findall(body)[-1:] == ["]"]
        inner = body.removeprefix("[") if self._bottom else body
        inner = inner.removesuffix("]") if self._top else inner
        names = _split(inner, "/")
        self._is_stack = self._bottom or self._top or len(names) > 1
        if not self._is_stack:
            self._started = [test(name) for name in _split(inner, ",")]
            return
        # Like ncu, ignore an empty part between two slashes.
        self._parts: list[_Part] = [
            name if name in {_ANY, _ONE} else test(name) for name in names if name
        ]
        if not self._parts and not rest and not self._bottom and not self._top:
            message = "it has no name between its slashes"
            raise ValueError(message)

    def holds(self, domains: Sequence[NvtxDomain]) -> bool:
        """Return True if the expression matches the open ranges."""
        return any(
            self._fits(domain.stack)
            if self._is_stack
            else all(any(map(test, domain.started)) for test in self._started)
            for domain in domains
            if self._domain(domain.name)
        )

    def _fits(self, stack: Sequence[str]) -> bool:
        # As in ncu, a quantifier is between two ranges and cannot be the first part.
        if not self._parts or isinstance(self._parts[0], str):
            return False
        depth = len(stack)
        # The depths at which the parts so far may end.
        ends = {0} if self._bottom else set(range(depth))
        for part in self._parts:
            if not ends:
                return False
            if part == _ANY:
                ends = set(range(min(ends), depth + 1))
            else:
                # The other quantifier takes any range.
                ends = {
                    end + 1
                    for end in ends
                    if end < depth and (isinstance(part, str) or part(stack[end]))
                }
        return depth in ends if self._top else bool(ends)


def _parsed(
    expressions: Iterable[str] | None, title: str, mistakes: list[str]
) -> tuple[_Expression, ...]:
    # A text would be iterated letter by letter.
    if isinstance(expressions, str):
        mistakes.append(f"{title}={expressions!r} is one text: give a list of them")
        return ()
    parsed = []
    for text in expressions or ():
        try:
            parsed.append(_Expression(text))
        except (ValueError, re.error) as error:
            mistakes.append(f"{text!r}: {error}")
    return tuple(parsed)


def _split(text: str, mark: str, most: int = 0) -> list[str]:
    """Return the parts between unescaped marks, at most `most + 1` parts if `most` is above 0."""
    parts = [""]
    for token in _TOKEN.findall(text):
        if token == mark and not 0 < most < len(parts):
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _equal(name: str) -> _Test:
    plain = _ESCAPED.sub(r"\1", name)
    return lambda range_name: bool(range_name) and range_name == plain


def _searched(pattern: str) -> _Test:
    """Return the test for names with a pattern. An empty pattern matches nothing."""
    compiled = re.compile(pattern)
    return lambda range_name: bool(
        pattern and range_name and compiled.search(range_name)
    )
