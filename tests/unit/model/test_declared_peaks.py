"""model.roofline: peaks as a person writes them."""

from __future__ import annotations

import pytest

from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.model.roofline import LEVELS, parse_peaks
from pytest_gpuperf.model.work import DTYPE_BYTES


def test_a_device_a_line() -> None:
    """Memory in bytes a second, types in FLOP a second; comments and blanks say nothing."""
    text = """
        # our nodes
        NVIDIA H200: dram 4.5 TB/s, bf16 800 TFLOP/s

        cpu: dram 20 GB/s,l2 1e12 B/s,   fp32 1.5 TFLOP/s
    """

    assert parse_peaks(text) == {
        "NVIDIA H200": {"dram": 4.5e12, "bf16": 8e14},
        "cpu": {"dram": 2e10, "l2": 1e12, "fp32": 1.5e12},
    }


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("cpu dram 20 GB/s", "line 1, column 1", "no device is named"),
        (": dram 20 GB/s", "line 1, column 1", "no device is named"),
        ("cpu:", "line 1, column 5", "cpu has no peak"),
        ("cpu: ram 20 GB/s", "line 1, column 6", "'ram' is neither memory nor"),
        ("cpu: dram 20", "line 1, column 6", "dram is given in bytes/s"),
        ("cpu: dram 20 GB", "line 1, column 6", "dram is given in bytes/s"),
        ("cpu: dram 20 TFLOP/s", "line 1, column 6", "dram is given in bytes/s"),
        ("cpu: fp32 20 GB/s", "line 1, column 6", "fp32 is given in FLOP/s"),
        ("cpu: dram fast", "line 1, column 6", "does not begin with a number"),
        ("cpu: dram", "line 1, column 6", "does not begin with a number"),
        ("cpu: dram 0 GB/s", "line 1, column 6", "above zero"),
        ("cpu: dram -1 GB/s", "line 1, column 6", "above zero"),
        ("cpu: dram 1e999 GB/s", "line 1, column 6", "not a finite number"),
        ("cpu: dram 1 GB/s, dram 2 GB/s", "line 1, column 19", "twice"),
        ("cpu: dram 1 GB/s\ncpu: l2 2 GB/s", "line 2, column 1", "a line already"),
        ("cpu: dram 1 GB/s,", "line 1", ""),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, place: str, said: str) -> None:
    """Line and column from 1, what is wrong there, and how it is written."""
    if not said:
        assert parse_peaks(text) == {"cpu": {"dram": 1e9}}
        return
    with pytest.raises(ConfigError) as caught:
        parse_peaks(text)

    assert f"{place}: " in caught.value.message
    assert said in caught.value.message
    assert "NVIDIA H200: fp8 1500 TFLOP/s" in caught.value.remedy


def test_all_mistakes_are_told_at_once() -> None:
    """Of every line and of every part of it."""
    with pytest.raises(ConfigError) as caught:
        parse_peaks("cpu: ram 1 GB/s, dram 0 B/s\nnothing\nGPU: bf16 1 TB/s")

    places = ["line 1, column 6", "line 1, column 18", "line 2, column 1", "line 3"]
    assert all(place in caught.value.message for place in places)


def test_what_stands_there_twice_hides_no_other_mistake() -> None:
    """A second line or field is read like the first, and so is one without a name."""
    text = "cpu: dram 1 GB/s, dram fast, l2 x\ncpu: ram 1 B/s, l1 0 B/s\n: l2 1 FLOP/s"
    with pytest.raises(ConfigError) as caught:
        parse_peaks(text)

    assert [said.partition(": ")[2] for said in caught.value.message.split("; ")] == [
        "dram stands there twice",
        "dram: 'fast' does not begin with a number",
        "l2: 'x' does not begin with a number",
        "cpu has a line already",
        f"'ram' is neither memory nor a data type: {', '.join((*LEVELS, *DTYPE_BYTES))}",
        "l1: a peak is above zero",
        "no device is named before a colon",
        "l2 is given in bytes/s, as 4.5 TB/s",
    ]
