"""What the tests that run pytest in this process share."""

from __future__ import annotations

# loaded once here, or each run in this process would load them anew and drop them again
from pytest_gpuperf.hooks import child, gate, measuring  # noqa: F401 - see above
