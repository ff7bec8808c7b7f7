"""Whether this process is one of several that must call equally often."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["has_several_ranks"]

# how launchers tell the number of ranks, by their own documentation: torchrun, Open MPI,
# MPICH and Intel MPI, MVAPICH, srun
_SIZES = (
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "SLURM_STEP_NUM_TASKS",
)


def has_several_ranks(
    variables: Mapping[str, str] = os.environ, modules: Mapping[str, Any] = sys.modules
) -> bool:
    """
    Return whether a launcher or torch says that this process has other ranks beside it.

    Args:
        variables: The environment.

        modules: The loaded modules by name.
    """
    if any(_number(variables.get(name, "")) > 1 for name in _SIZES):
        return True
    group = modules.get("torch.distributed")
    if group is None:
        return False
    try:
        return bool(group.is_initialized()) and group.get_world_size() > 1
    except (AttributeError, RuntimeError, ValueError):  # torch was built without it
        return False


def _number(text: str) -> int:
    """Return a number of ranks; 0 where a variable holds none."""
    return int(text) if text.isdecimal() else 0
