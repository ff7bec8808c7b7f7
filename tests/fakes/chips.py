"""What the tests of chips share: the installed library, or a skip that names it."""

from __future__ import annotations

import pytest

from pytest_gpuperf.collect.cupti import nvperf
from pytest_gpuperf.errors import CollectorUnavailableError


def need_library() -> nvperf.Library:
    """Return the installed libnvperf_host; without one the test is skipped."""
    try:
        return nvperf.load()
    except CollectorUnavailableError:
        pytest.skip("libnvperf_host is not installed (pip install nvidia-cuda-cupti)")
