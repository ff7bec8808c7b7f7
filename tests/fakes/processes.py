"""Whether processes of the system have ended."""

from __future__ import annotations

import os
import time
from pathlib import Path


def alive(pid: int) -> bool:
    """Return whether a process runs; one that only waits to be reaped does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1]
    except ProcessLookupError:
        return False
    except OSError:  # gone between the two, or a system without /proc
        return not Path("/proc/self").exists()
    return state.split()[0] not in {"Z", "X"}


def ended(pid: int) -> bool:
    """Return whether a process is gone, at the latest in half a minute."""
    deadline = time.monotonic() + 30
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pid)
