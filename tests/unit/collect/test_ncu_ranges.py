"""Rules of the ranges of collect.ncu.nvtx, which mark measurements."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

from fakes import fake_nvtx
from pytest_gpuperf.collect.ncu.nvtx import DOMAIN, NvtxRanges, find_ranges
from pytest_gpuperf.errors import CollectorUnavailableError


def test_launches_are_told_by_the_ranges_around_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges may overlap and end in any order; each knows its domain."""
    file = tmp_path / "ranges"
    monkeypatch.setenv("FAKE_NCU_RANGES", str(file))
    ranges = NvtxRanges(fake_nvtx)
    first, second = ranges.open("a"), ranges.open("b")
    fake_nvtx.launch()
    ranges.close(first)
    fake_nvtx.launch()
    ranges.close(second)
    fake_nvtx.launch()

    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["name"] for each in told] == [["a", "b"], ["b"], []]
    assert [each["domain"] for each in told[:2]] == [DOMAIN] * 2


def test_without_the_package_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remedy is the command that installs it."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "nvtx", raising=False)
    with pytest.raises(CollectorUnavailableError, match=r"pytest-gpuperf\[ncu\]"):
        find_ranges()


# libcupti listens to NVTX where this variable names it, as ncu's own library does
LISTENING = """
import sys
from pytest_gpuperf.collect.ncu.nvtx import find_ranges
ranges = find_ranges()
opened = ranges.open("a")
print(opened is not None)
ranges.close(opened)
"""


@pytest.mark.parametrize("listening", [False, True])
def test_the_real_package_opens_and_closes(
    listening: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a tool listens or not; where one does, there is something to close."""
    if find_spec("nvtx") is None:
        pytest.skip("needs the package nvtx")
    if listening:
        libraries = [
            *Path(sysconfig.get_path("platlib")).glob("nvidia/*/lib/libcupti.so.*")
        ]
        if not libraries:
            pytest.skip("needs the library of CUPTI")
        monkeypatch.setenv("NVTX_INJECTION64_PATH", str(libraries[0]))
    ended = subprocess.run(
        [sys.executable, "-c", LISTENING], capture_output=True, check=True, text=True
    )

    assert ended.stdout.split() == [str(listening)]
