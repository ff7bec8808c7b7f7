"""Refuse a run of the suite on fewer than two Pythons.

Counts the JUnit files that the `py3xx` environments have just written: tox passes over an
interpreter that it does not find, and a suite that ran on one Python proves little.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

LEAST = 2
FRESH_S = 3 * 3600  # a whole run takes less; older files are those of an earlier run


def main() -> int:
    """Return 0 when enough interpreters ran the suite, else 1."""
    folder = Path(sys.argv[1])
    oldest = time.time() - FRESH_S
    ran = sorted(f.stem for f in folder.glob("py3*.xml") if f.stat().st_mtime > oldest)
    print(f"the suite ran on {len(ran)} Pythons: {', '.join(ran) or 'none'}")
    if len(ran) < LEAST:
        print("error: put more interpreters on PATH, as README.md says")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
