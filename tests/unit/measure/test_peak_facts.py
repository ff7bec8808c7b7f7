"""pipeline.roofs: what a share is a share of."""

from __future__ import annotations

import pytest

from pytest_gpuperf.measure.roofs import peak_fact
from pytest_gpuperf.model.roofline import Peak, Peaks
from pytest_gpuperf.model.sample import SourceLabel

PEAKS = Peaks(
    device="NVIDIA H200",
    flop_per_s={
        "bf16": Peak(value=989e12, label=SourceLabel.DATASHEET, source="its page")
    },
    bytes_per_s={
        "dram": Peak(value=4.8e12, label=SourceLabel.DECLARED, source="the ini file")
    },
    unlisted="it is not listed",
)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dram", "dram 4800 GB/s (declared)"),
        ("bf16", "bf16 989000 GFLOP/s (datasheet)"),
    ],
)
def test_a_peak_is_told_with_its_value_and_its_label(name: str, said: str) -> None:
    """A share of another peak is no comparable share, and neither is one of a guess."""
    assert peak_fact(PEAKS, name) == {"peak": said}


def test_without_a_peak_there_is_no_fact() -> None:
    """A time that is held against nothing shares no peak with anything."""
    assert peak_fact(None, "dram") == {}
    assert peak_fact(PEAKS, None) == {}
    assert peak_fact(PEAKS, "fp8") == {}
