"""Which collector's value is taken where several gave one; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["best_source"]

# nearest to the device first; one that is not listed comes after all that are
_BEST_FIRST = ("cupti", "events", "ncu", "nvml", "ncu-report", "binary", "user", "host")


def best_source(sources: Iterable[str]) -> str | None:
    """
    Return the source that is nearest to the device; None: there is none.

    Example:
        >>> best_source(["host", "cupti"])
        'cupti'
    """
    return min(sources, key=_rank, default=None)


def _rank(source: str) -> tuple[int, str]:
    """Return the place of a source among all; by name where they are equal."""
    known = source in _BEST_FIRST
    return (_BEST_FIRST.index(source) if known else len(_BEST_FIRST), source)
