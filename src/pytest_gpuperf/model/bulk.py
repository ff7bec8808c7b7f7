"""Records that a run holds by the ten thousand; PYTEST_DONT_REWRITE.

Twenty sessions of a thousand tests are 20,000 lines with 120,000 values. As dataclasses
they cost a second: to make, and because the garbage collector walks over each of them
again and again. A row is made in a tenth of that time, and nothing walks over it.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["BulkRecord", "collector_paused"]


class BulkRecord(msgspec.Struct, frozen=True, gc=False):
    """
    A frozen record of which there are very many.

    It must never be part of a cycle: nothing would find it.
    """

    def replaced(self, **changes: object) -> Self:
        """Return it with other values in some fields; `dataclasses.replace` of these."""
        return msgspec.structs.replace(self, **changes)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Collect no garbage meanwhile; for what makes many records and no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
