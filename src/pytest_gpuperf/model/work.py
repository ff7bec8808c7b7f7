"""The work that a test declares for one call; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.border import positive

__all__ = ["Work"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """
    What one call has to do, by the author's own count.

    Attributes:
        flop: Floating-point operations of a call [FLOP], > 0.

        bytes: Bytes that a call must move to or from DRAM [B], > 0.

        dtype: The data type whose peak counts, as "bf16"; required with `flop` alone.
    """

    flop: float | None = None
    bytes: float | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        """Refuse work that says nothing, or that no roof can be found for."""
        positive("work.flop", self.flop)
        positive("work.bytes", self.bytes)
        if self.flop is None and self.bytes is None:
            message = "work declares neither flop nor bytes"
            raise RecordError(message, path="work", remedy="give one of them")
        if self.flop is not None and self.bytes is None and self.dtype is None:
            message = "work in FLOP alone needs the data type whose peak counts"
            raise RecordError(message, path="work.dtype", remedy='add dtype="bf16"')
