"""The two sides of a comparison with a revision."""

from __future__ import annotations

from enum import Enum

__all__ = ["Side"]


class Side(str, Enum):
    """Which of two states of the source tree a process runs."""

    OLD = "old"  # the revision that was named
    NEW = "new"  # the working tree as it is
