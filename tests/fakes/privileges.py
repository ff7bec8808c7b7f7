"""A user without privileges."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["no_privileges"]


@contextlib.contextmanager
def no_privileges() -> Iterator[None]:
    """Be nobody for a while, where we are root, whom no permission stops."""
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if was_root:
            os.seteuid(0)
