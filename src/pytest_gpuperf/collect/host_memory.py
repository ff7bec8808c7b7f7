"""How many processes like those of this run the machine's memory holds."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["fits", "free_bytes", "largest_process_bytes"]

_KIB = 1024
_ROOT = Path("/")


def fits(count: int) -> bool:
    """
    Return whether memory holds some processes, each as large as the largest of this run.

    True where the system does not say how much there is.
    """
    free, largest = free_bytes(), largest_process_bytes()
    return free is None or largest is None or count * largest <= free


def free_bytes(root: Path = _ROOT) -> int | None:
    """
    Return how much memory new processes can have [B]; None: the system does not say.

    Args:
        root: The folder of Linux's own file systems; a container's limit is looked up
            there, too.
    """
    limits = [_available_bytes(root), _left_in_group_bytes(root)]
    known = [limit for limit in limits if limit is not None]
    return min(known, default=None)


def largest_process_bytes() -> int | None:
    """
    Return the most memory that this process has had, or one that it has waited for [B].

    Returns:
        The memory; None: not on Windows.
    """
    if sys.platform == "win32":
        return None
    import resource  # most runs never ask

    users = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    largest = max(resource.getrusage(user).ru_maxrss for user in users)
    return largest if sys.platform == "darwin" else largest * _KIB


def _available_bytes(root: Path) -> int | None:
    """Return what the kernel can give without swapping."""
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * _KIB
    return None


def _left_in_group_bytes(root: Path) -> int | None:
    """Return what the control group of this process may still take; None: no limit."""
    path = _text(root / "proc/self/cgroup").partition("0::/")[2].strip()
    group = root / "sys/fs/cgroup" / path
    limit, used = _text(group / "memory.max"), _text(group / "memory.current")
    if not limit.strip().isdecimal() or not used.strip().isdecimal():
        return None
    # pages of files count as used, and are given up when somebody needs memory
    stat = dict(line.split() for line in _text(group / "memory.stat").splitlines())
    return int(limit) - int(used) + int(stat.get("inactive_file", 0))


def _text(path: Path) -> str:
    """Return a file's text; "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
