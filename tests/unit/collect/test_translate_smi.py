"""collect.translate.smi: nvidia-smi's words and units into ours."""

from __future__ import annotations

import pytest

from pytest_gpuperf.collect.translate.dcgm import Moment, Telemetry
from pytest_gpuperf.collect.translate.smi import is_smi_table, smi_records
from pytest_gpuperf.errors import CaptureFormatError

START = Moment(monotonic_s=100.0, unix_s=1.75e9)
HEAD = "timestamp, index, name, utilization.gpu [%], memory.used [MiB], power.draw [W], fan.speed [%]"


def read(text: str) -> Telemetry:
    return smi_records(text, start=START, interval_s=0.5)


def test_a_row_is_a_reading_in_our_units() -> None:
    """Absent values are None, a second head is passed over, a foreign column is told."""
    telemetry = read(
        f"{HEAD}\n"
        "2025/03/01 12:00:00.000, 1, NVIDIA H200, 98 %, 2 MiB, 650.5 W, [N/A]\n"
        f"{HEAD}\n"
        "2025/03/01 12:00:01.500, 1, NVIDIA H200, 7 %, 2 MiB, [Not Supported], 30 %\n"
    )
    first, second = telemetry.records

    assert (first.gpu_index, first.gpu_busy_fraction) == (1, 0.98)
    assert (first.memory_used_bytes, first.power_watts) == (2 * 1024**2, 650.5)
    assert second.power_watts is None
    assert second.sm_active_fraction is None
    assert second.monotonic_s - first.monotonic_s == 1.5
    assert telemetry.model_names == {1: "NVIDIA H200"}
    assert telemetry.notes == ("columns without a reading of ours: fan.speed",)


def test_without_units_and_times_rows_are_an_interval_apart() -> None:
    """GPUs are told apart by their UUIDs where no index says."""
    text = "uuid, clocks.current.sm\nGPU-a, 1980\nGPU-b, 210\nGPU-a, 1980\n"
    records = read(text).records

    assert [(r.gpu_index, r.monotonic_s) for r in records] == [
        (0, 100.0),
        (1, 100.0),
        (0, 100.5),
    ]
    assert records[0].sm_clock_hz == 1.98e9


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("x, 0, a, 1 %, 1 MiB, 1 W, 1 %", "line 2"),
        ("x, 0, a, 1 %, 1 MiB, 1 W, 1 %", "'x' is not a time as 2025/03/01"),
        (
            "2025/03/01 12:00:00.000, one, a, 1 %, 1 MiB, 1 W, 1 %",
            "'one' is not the index of a GPU",
        ),
        (f'"{"x" * 200_000}"', "line 2: field larger"),
        ("2025/03/01 12:00:00.000, 0", "2 values under 7 names"),
    ],
)
def test_a_line_that_is_not_a_row_is_named(row: str, words: str) -> None:
    """With its number: a cut file must not pass for a short one."""
    with pytest.raises(CaptureFormatError, match=words) as caught:
        read(f"{HEAD}\n{row}\n")
    assert "output of nvidia-smi" in caught.value.remedy


def test_a_cell_that_is_not_a_number_is_left_out_with_a_sentence() -> None:
    """An absent one is nothing to tell; a second column of a reading fills its gaps."""
    telemetry = read(
        "index, utilization.gpu, memory.used, power.draw.instant, power.draw\n"
        "0, abc, 1e303 MiB, [N/A], 300 W\n"
        "0, 5 %, NaN, 200 W, 300 W\n"
    )

    assert telemetry.notes[0] == (
        "not numbers, and left out: utilization.gpu 'abc' (line 2), "
        "memory.used '1e303 MiB' (line 2), memory.used 'NaN' (line 3)"
    )
    assert [record.power_watts for record in telemetry.records] == [300, 200]
    assert [record.gpu_busy_fraction for record in telemetry.records] == [None, 0.05]


def test_only_its_own_head_is_taken_for_a_table() -> None:
    """What DCGM prints is another format."""
    assert is_smi_table(HEAD)
    assert is_smi_table("utilization.gpu [%], power.draw [W]\n1 %, 2 W")
    assert not is_smi_table("#Entity   SMACT   TENSO")
    assert not is_smi_table("")
    assert not is_smi_table("[" * 200_000)


def test_brackets_of_a_name_are_told_from_its_unit() -> None:
    """A head of nothing but brackets is read in one pass: 100 kB took half a minute."""
    assert is_smi_table("utilization.gpu[%], [a] [%]\n1 %, 2 %")
    assert not is_smi_table("index" + " [" * 60_000)


@pytest.mark.parametrize(
    ("percent", "share"), [("41", 0.41), ("7", 0.07), ("58", 0.58)]
)
def test_a_share_is_the_float_that_people_write(percent: str, share: float) -> None:
    """41 % is 0.41: a factor of 0.01 gives floats beside it."""
    text = f"index, utilization.gpu [%]\n0, {percent} %\n"
    (record,) = read(text).records

    assert record.gpu_busy_fraction == share
