"""`python -m pytest_gpuperf`: the same as `gpuperf`."""

from __future__ import annotations

import sys

from pytest_gpuperf.cli import main

if __name__ == "__main__":
    sys.exit(main())
