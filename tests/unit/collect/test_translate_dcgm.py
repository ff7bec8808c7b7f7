"""collect.translate: DCGM's and GPM's words and units into ours."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.collect.nvml.library import GPM_METRICS, gpm_readings
from pytest_gpuperf.collect.translate.dcgm import (
    Field,
    dmon_records,
    exporter_records,
    field_named,
    number,
)
from pytest_gpuperf.collect.translate.telemetry import Moment, Telemetry
from pytest_gpuperf.errors import CaptureFormatError
from pytest_gpuperf.model import CanonicalRecord
from pytest_gpuperf.model.telemetry import READINGS

START = Moment(monotonic_s=100.0, unix_s=1.75e9)


def dmon(text: str, **how: Any) -> Telemetry:
    return dmon_records(f"{text}\n", start=START, interval_s=0.1, **how)


def exporter(text: str) -> Telemetry:
    return exporter_records(f"{text}\n", start=START, interval_s=0.1)


def one(text: str, **how: Any) -> CanonicalRecord:
    """Return the record of a text of dmon that has one row."""
    (found,) = dmon(text, **how).records
    return found


def said(record: CanonicalRecord) -> dict[str, Any]:
    """Return the readings that a record has."""
    values = {name: getattr(record, name) for name in READINGS}
    return {name: value for name, value in values.items() if value is not None}


# Each field's number, its names old and new, its column's head, a value in DCGM's unit,
# and what that is in ours.
FIELDS: list[tuple[int | None, tuple[str, ...], str, str, str, Any]] = [
    (100, ("DEV_SM_CLOCK",), "SMCLK", "1980", "sm_clock_hz", 1.98e9),
    (101, ("DEV_MEM_CLOCK",), "MMCLK", "2619", "memory_clock_hz", 2.619e9),
    (
        140,
        ("DEV_MEMORY_TEMP", "DEV_MEMORY_TEMP_CELSIUS"),
        "MMTMP",
        "61",
        "memory_temperature_celsius",
        61.0,
    ),
    (
        150,
        ("DEV_GPU_TEMP", "DEV_GPU_TEMP_CELSIUS"),
        "TMPTR",
        "-5",
        "temperature_celsius",
        -5.0,
    ),
    (
        155,
        ("DEV_POWER_USAGE", "DEV_BOARD_POWER_WATTS"),
        "POWER",
        "397.637",
        "power_watts",
        397.637,
    ),
    (
        156,
        ("DEV_TOTAL_ENERGY_CONSUMPTION",),
        "TOTEC",
        "1234567",
        "energy_joules",
        1234.567,
    ),
    (
        163,
        ("DEV_POWER_MGMT_LIMIT_DEF", "DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS"),
        "PMDEF",
        "700",
        "power_limit_default_watts",
        700.0,
    ),
    (
        164,
        ("DEV_ENFORCED_POWER_LIMIT", "DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS"),
        "EPLMT",
        "650",
        "power_limit_watts",
        650.0,
    ),
    (
        202,
        ("DEV_PCIE_REPLAY_COUNTER", "DEV_PCIE_REPLAY_TOTAL"),
        "RPCTR",
        "3",
        "pcie_replay_count",
        3,
    ),
    (
        203,
        ("DEV_GPU_UTIL", "DEV_GPU_UTIL_RATIO"),
        "GPUTL",
        "57",
        "gpu_busy_fraction",
        0.57,
    ),
    (204, ("DEV_MEM_COPY_UTIL",), "MCUTL", "40", "memory_busy_fraction", 0.4),
    (230, ("DEV_XID_ERRORS", "DEV_XID_ERROR"), "XIDER", "79", "last_xid", 79),
    (250, ("DEV_FB_TOTAL",), "FBTTL", "81559", "memory_total_bytes", 81559 * 2.0**20),
    (251, ("DEV_FB_FREE",), "FBFRE", "2651", "memory_free_bytes", 2651 * 2.0**20),
    (252, ("DEV_FB_USED",), "FBUSD", "141120", "memory_used_bytes", 141120 * 2.0**20),
    (253, ("DEV_FB_RESERVED",), "FBRSV", "609", "memory_reserved_bytes", 609 * 2.0**20),
    (
        254,
        ("DEV_FB_USED_PERCENT", "DEV_FB_USED_RATIO"),
        "FBUSP",
        "0.92",
        "memory_used_fraction",
        0.92,
    ),
    (
        393,
        ("DEV_UNCORRECTABLE_REMAPPED_ROWS", "DEV_ROW_REMAP_UNCORRECTABLE_TOTAL"),
        "URMPS",
        "1",
        "uncorrectable_remapped_row_count",
        1,
    ),
    (
        394,
        ("DEV_CORRECTABLE_REMAPPED_ROWS", "DEV_ROW_REMAP_CORRECTABLE_TOTAL"),
        "CRMPS",
        "2",
        "correctable_remapped_row_count",
        2,
    ),
    (
        395,
        ("DEV_ROW_REMAP_FAILURE", "DEV_ROW_REMAP_FAILED"),
        "RRF",
        "1",
        "row_remap_failed",
        True,
    ),
    (
        449,
        ("DEV_NVLINK_BANDWIDTH_TOTAL", "DEV_NVLINK_THROUGHPUT_TOTAL"),
        "NBWLT",
        "1000",
        "nvlink_bytes_per_s",
        1.024e9,
    ),
    (
        1001,
        ("PROF_GR_ENGINE_ACTIVE", "PROF_GR_ENGINE_UTIL_RATIO"),
        "GRACT",
        "0.984",
        "graphics_active_fraction",
        0.984,
    ),
    (
        1002,
        ("PROF_SM_ACTIVE", "PROF_SM_UTIL_RATIO"),
        "SMACT",
        "0.93",
        "sm_active_fraction",
        0.93,
    ),
    (
        1003,
        ("PROF_SM_OCCUPANCY", "PROF_SM_OCCUPANCY_RATIO"),
        "SMOCC",
        "0.4",
        "sm_occupancy_fraction",
        0.4,
    ),
    (
        1004,
        ("PROF_PIPE_TENSOR_ACTIVE", "PROF_TENSOR_UTIL_RATIO"),
        "TENSO",
        "0.6",
        "tensor_active_fraction",
        0.6,
    ),
    (
        1005,
        ("PROF_DRAM_ACTIVE", "PROF_DRAM_UTIL_RATIO"),
        "DRAMA",
        "0.252",
        "dram_active_fraction",
        0.252,
    ),
    (
        1006,
        ("PROF_PIPE_FP64_ACTIVE", "PROF_FP64_UTIL_RATIO"),
        "FP64A",
        "0.1",
        "fp64_active_fraction",
        0.1,
    ),
    (
        1007,
        ("PROF_PIPE_FP32_ACTIVE", "PROF_FP32_UTIL_RATIO"),
        "FP32A",
        "0.2",
        "fp32_active_fraction",
        0.2,
    ),
    (
        1008,
        ("PROF_PIPE_FP16_ACTIVE", "PROF_FP16_UTIL_RATIO"),
        "FP16A",
        "0.3",
        "fp16_active_fraction",
        0.3,
    ),
    (1009, ("PROF_PCIE_TX_BYTES",), "PCITX", "1e9", "pcie_tx_bytes_per_s", 1e9),
    (1010, ("PROF_PCIE_RX_BYTES",), "PCIRX", "25", "pcie_rx_bytes_per_s", 25.0),
    (
        1013,
        ("PROF_PIPE_TENSOR_IMMA_ACTIVE", "PROF_IMMA_UTIL_RATIO"),
        "TIMMA",
        "0.1",
        "tensor_imma_active_fraction",
        0.1,
    ),
    (
        1014,
        ("PROF_PIPE_TENSOR_HMMA_ACTIVE", "PROF_HMMA_UTIL_RATIO"),
        "THMMA",
        "0.2",
        "tensor_hmma_active_fraction",
        0.2,
    ),
    (
        1015,
        ("PROF_PIPE_TENSOR_DFMA_ACTIVE", "PROF_DFMA_UTIL_RATIO"),
        "TDFMA",
        "0.3",
        "tensor_dfma_active_fraction",
        0.3,
    ),
    (
        None,
        ("PROF_PIPE_TENSOR_DMMA_ACTIVE",),
        "",
        "0.4",
        "tensor_dmma_active_fraction",
        0.4,
    ),
    (
        None,
        ("PROF_PIPE_TENSOR_QMMA_ACTIVE",),
        "",
        "0.5",
        "tensor_qmma_active_fraction",
        0.5,
    ),
]


def test_every_reading_has_a_field() -> None:
    """The table above leaves out no reading of a record."""
    assert sorted(row[4] for row in FIELDS) == sorted(READINGS)


@pytest.mark.parametrize(
    ("field_id", "names", "tag", "value", "reading", "ours"),
    FIELDS,
    ids=[row[4] for row in FIELDS],
)
def test_a_field_is_known_by_each_of_its_names(
    field_id: int | None,
    names: tuple[str, ...],
    tag: str,
    value: str,
    reading: str,
    ours: Any,
) -> None:
    """Its number, its names with and without prefix, its column: all give our unit."""
    number_text = [] if field_id is None else [str(field_id)]
    heads = [*number_text, *names, *(f"DCGM_FI_{name}" for name in names)]

    for head in [*heads, *([tag] if tag else [])]:
        found = said(one(f"#Entity   {head}\nID\nGPU 0     {value}"))
        assert found == {reading: ours}
        assert type(found[reading]) is type(ours)
    for name in names:
        line = f'DCGM_FI_{name}{{gpu="0",UUID="GPU-a"}} {value}'
        assert said(exporter(line).records[0]) == {reading: ours}


DMON = """\
#Entity   GRACT        SMACT        XYZZY        FBUSD
ID                                               MB
GPU 0     N/A          N/A          1            N/A
GPU 1     0.500        0.250        2            1024

GPU 0     0.984        0.930        3            2048
GPU 1     0.600        0.350        N/A          N/A
# a remark
dmon was stopped do to receiving a signal
"""


def test_a_text_of_dmon_is_records_in_time() -> None:
    """Rows of a tick have its time; the unknown column and the missing ones are absent."""
    found = dmon(DMON, uuids={1: "GPU-b"})

    assert [(r.gpu_index, r.gpu_uuid) for r in found.records] == [
        (0, ""),
        (1, "GPU-b"),
    ] * 2
    assert [r.monotonic_s for r in found.records] == [100.0, 100.0, 100.1, 100.1]
    assert [r.unix_s - 1.75e9 for r in found.records] == pytest.approx([0, 0, 0.1, 0.1])
    assert [said(r) for r in found.records] == [
        {},
        {
            "graphics_active_fraction": 0.5,
            "sm_active_fraction": 0.25,
            "memory_used_bytes": 2.0**30,
        },
        {
            "graphics_active_fraction": 0.984,
            "sm_active_fraction": 0.93,
            "memory_used_bytes": 2.0**31,
        },
        {"graphics_active_fraction": 0.6, "sm_active_fraction": 0.35},
    ]
    assert found.notes == ()


def test_columns_may_be_given_where_the_text_has_no_head() -> None:
    """They are numbers or names, in the order that was asked for."""
    found = one("GPU 2  0.5  0.25", fields=["1002", "DCGM_FI_PROF_DRAM_ACTIVE"])

    assert said(found) == {"sm_active_fraction": 0.5, "dram_active_fraction": 0.25}
    assert found.gpu_index == 2


def test_a_row_may_say_its_time() -> None:
    """Seconds since 1970 before the entity; the other clock goes on from the start."""
    found = dmon("#Entity SMACT\n1760000000.5 GPU 0 0.1\n1760000002 GPU 0 0.2")

    times = [(r.unix_s, r.monotonic_s) for r in found.records]
    assert times == [(1760000000.5, 100.0), (1760000002.0, 101.5)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Nov 27 23:59:59", "Nov 28 00:00:01"),
        ("Dec 31 23:59:59", "Jan  1 00:00:01"),
        ("Feb 29 23:59:59", "Mar  1 00:00:01"),
        ("Feb 28 23:59:59", "Mar  1 00:00:01"),
        ("23:59:59", "00:00:01"),
        ("2025-09-08T23:59:59", "2025-09-09T00:00:01"),
        ("2025-09-08 23:59:59", "2025-09-09 00:00:01"),
        ("[2025-09-08 23:59:59]", "[2025-09-09 00:00:01]"),
        ("2025-09-08T23:59:59.25+0200", "2025-09-08T22:00:01.25Z"),
        ("Mon Sep  8 23:59:59 UTC 2025", "Tue Sep  9 00:00:01 UTC 2025"),
        ("Mon Sep  8 23:59:59 2025:", "Tue Sep  9 00:00:01 2025:"),
        ("1757376001:", "1757376003:"),
        ("[1757376001]", "[1757376003]"),
        ("[1757376000.5]", "[1757376002.5]"),
        ("1", "3"),
        ("0.5:", "2.5:"),
    ],
)
def test_each_line_may_begin_with_its_time(first: str, second: str) -> None:
    """As `ts` and `date` write it, over midnight and the end of a year."""
    found = dmon(
        f"{first} #Entity SMACT\n{first} ID\n{first}\n"
        f"{first} GPU 0 0.1\n{second} GPU 0 0.2"
    )

    assert [r.monotonic_s for r in found.records] == [100.0, 102.0]
    assert found.notes == ()


def test_readings_of_one_second_are_spread_over_it() -> None:
    """`ts` writes whole seconds: five readings are not one reading and four of no time."""
    rows = "".join(
        f"00:00:0{second} GPU {gpu} 0.1\n"
        for second in (0, 0, 0, 0, 1, 2, 2)
        for gpu in (0, 1)
    )
    found = dmon(f"#Entity SMACT\n{rows}")

    times = [100.0, 100.25, 100.5, 100.75, 101.0, 102.0, 102.5]
    for gpu in (0, 1):
        mine = [r.monotonic_s for r in found.records if r.gpu_index == gpu]
        assert mine == times


def test_times_with_a_fraction_are_kept() -> None:
    """Two readings of one moment are not moved where the clock is finer than a second."""
    found = dmon("#Entity SMACT\n1.5 GPU 0 0.1\n1.5 GPU 0 0.2\n2 GPU 0 0.3")

    assert [r.monotonic_s for r in found.records] == [100.0, 100.0, 100.5]


WARNING = "WARNING: CUDA_VISIBLE_DEVICES is set.\n\nStatus: Error\n"


def test_what_a_tool_prints_around_its_rows_is_left_out() -> None:
    """The first line of it is quoted: it may say that a GPU is lost."""
    rows = "#Entity SMACT\nGPU 0 0.1\nGPU 0 0.2\n"
    found = dmon(f"{WARNING}{rows}Error: GPU is lost\n{WARNING}")

    assert [r.sm_active_fraction for r in found.records] == [0.1, 0.2]
    assert found.notes == (
        (
            "lines above the rows, left out: "
            "'WARNING: CUDA_VISIBLE_DEVICES is set.' (line 1), and 1 more"
        ),
        "lines below the rows, left out: 'Error: GPU is lost' (line 7), and 2 more",
    )
    with pytest.raises(CaptureFormatError, match=r"line 4: 'Status: Error' is not"):
        dmon("#Entity SMACT\nGPU 0 0.1\n\nStatus: Error\nGPU 0 0.2\n")


@pytest.mark.parametrize(
    "above", ["=== round ===", "Sun Nov 29 10:00:00 UTC 2026", "2026-11-29 10:00:00"]
)
def test_a_loop_may_print_a_line_above_each_output(above: str) -> None:
    """As of `while date; do curl ...; done`: the header shows that nothing is lost."""
    name = "DCGM_FI_DEV_GPU_TEMP"
    page = f'{above}\n# TYPE {name} gauge\n{name}{{gpu="0"}} '
    found = exporter(f"{page}60\n{page}61\n\n{page}62")

    assert [r.temperature_celsius for r in found.records] == [60.0, 61.0, 62.0]
    assert found.notes == (
        f"lines above the rows, left out: '{above}' (line 1)",
        (
            f"lines between two outputs of the tool, left out: '{above}' (line 4), "
            "and 1 more"
        ),
    )


@pytest.mark.parametrize("between", ["GPU 0", "GPU 0 0.7 0.8 0.9", "GPU 0 0.7\nERROR"])
def test_a_row_above_another_output_is_no_message(between: str) -> None:
    """A row with values is a mistake, wherever the next header is."""
    rows = "#Entity SMACT TENSO\nGPU 0 0.1 0.2\n"
    with pytest.raises(CaptureFormatError, match="under 2 names"):
        dmon(f"{rows}{between}\n{rows}")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("GPU 0 0.1 0.2 0.3", "3 values under 2 names"),
        # A value is missing, and nothing says of which name.
        ("GPU 0 0.7", "1 values under 2 names"),
        ("GPU 0", "0 values under 2 names"),
        ("GPU-I 0 N/A", "1 values under 2 names"),
        ("0 0.1 0.2", "is not an entity and its values"),
        ("GPU x 0.1 0.2", "is not an entity and its values"),
    ],
)
def test_a_row_that_cannot_be_read_is_no_message_of_the_tool(
    row: str, words: str
) -> None:
    """Above, between and below the rows: it is never left out."""
    head, good = "#Entity SMACT TENSO\n", "GPU 0 0.1 0.2\n"
    for text in (f"{head}{good}{row}\n", f"{head}{row}\n{good}"):
        with pytest.raises(CaptureFormatError, match=words):
            dmon(text)
    with pytest.raises(CaptureFormatError, match="line 1: values without a header"):
        dmon(f"{good}{head}{good}")
    series = 'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 60\n'
    for line in ('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 6x', 'x{gpu="0"', "DCGM_FI_DEV_GPU"):
        for text in (f"{series}{line}\n", f"{line}\n{series}"):
            with pytest.raises(CaptureFormatError, match="is not a n"):
                exporter(text)


def test_a_message_may_name_an_entity() -> None:
    """Whatever the number of its words."""
    found = dmon(
        "#Entity SMACT TENSO\nGPU 0 0.1 0.2\nGPU 0 is lost\nGPU 0 is gone now\n"
    )

    assert len(found.records) == 1
    assert "lines below the rows, left out: 'GPU 0 is lost' (line 3)" in found.notes[0]


def test_a_last_line_without_an_end_is_left_out() -> None:
    """Its last number may be the beginning of a number."""
    text = "#Entity SMACT\nGPU 0 0.1\nGPU 0 0."
    found = dmon_records(text, start=START, interval_s=0.1)

    assert [r.sm_active_fraction for r in found.records] == [0.1]
    assert found.notes == (
        (
            "the last line has no line end, so it may be cut and is left out: "
            "'GPU 0 0.' (line 3)"
        ),
    )
    page = 'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 60\nDCGM_FI_DEV_POWER_USAGE{gpu="0"} 3'
    (record,) = exporter_records(page, start=START, interval_s=0.1).records
    assert said(record) == {"temperature_celsius": 60.0}


def test_a_row_that_was_cut_may_go_on_with_a_head() -> None:
    """A monitor that is killed and started again adds to its log where the cut is."""
    text = "#Entity SMACT TENSO\nID\nGPU 0 0.1 0.2\n"
    found = dmon(f"{text}GPU 0 0.1 0.{text}")

    assert [r.tensor_active_fraction for r in found.records] == [0.2, 0.2]
    assert found.notes == (
        (
            "rows that were cut before a tool was started again, left out: "
            "'GPU 0 0.1 0.' (line 4)"
        ),
    )
    page = '# HELP DCGM_FI_DEV_GPU_TEMP t\nDCGM_FI_DEV_GPU_TEMP{gpu="0"} 60\n'
    cut = 'DCGM_FI_DEV_POWER_USAGE{gpu="0"} 3'
    records = exporter(f"{page}{cut}{page}").records
    assert [(r.monotonic_s, said(r)) for r in records] == [
        (100.0, {"temperature_celsius": 60.0}),
        (100.1, {"temperature_celsius": 60.0}),
    ]


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_a_line_ends_as_on_any_system(end: str) -> None:
    """And no character inside of a label ends it."""
    page = f'DCGM_FI_DEV_GPU_TEMP{{gpu="0",pod="a\u2028b"}} 60{end}'
    (record,) = exporter_records(page, start=START, interval_s=0.1).records

    assert said(record) == {"temperature_celsius": 60.0}


def test_instances_are_told_apart_in_dmon() -> None:
    """Eight numbers are of each GPU, and none takes another's place."""
    found = dmon(
        "# Entity  SMACT\n      Id\n"
        "    GPU 0  0.9\n    GPU 1  0.8\n  GPU-I 0  0.5\n  GPU-I 7  0.4\n"
        "  GPU-I 8  0.3\n GPU-CI 9  0.2\n    GPU 0  0.7\n  GPU-I 0  0.6\n"
        " GPU-I 8  0.1",
        uuids={0: "GPU-a", 1: "GPU-b"},
    )

    assert [(r.gpu_uuid, r.sm_active_fraction) for r in found.records] == [
        ("GPU-a", 0.9),
        ("GPU-b", 0.8),
        ("GPU-a/GI0", 0.5),
        ("GPU-a/GI7", 0.4),
        ("GPU-b/GI8", 0.3),
        ("GPU-b/CI9", 0.2),
        ("GPU-a", 0.7),
        ("GPU-a/GI0", 0.6),
        ("GI8", 0.1),
    ]
    assert [r.monotonic_s for r in found.records] == [100.0] * 6 + [100.1] * 3


def test_an_instance_without_its_gpu_is_a_gpu_of_its_own() -> None:
    """Its GPU is not guessed; a row of anything else is left out with a sentence."""
    found = dmon("#Entity SMACT\nGPU-I 3 0.5\nSwitch 1 0.5\nGPU-I 4 0.6\nGPU-I 3 0.7")

    assert [(r.gpu_index, r.gpu_uuid, r.sm_active_fraction) for r in found.records] == [
        (3, "GI3", 0.5),
        (4, "GI4", 0.6),
        (3, "GI3", 0.7),
    ]
    assert found.notes == (
        (
            "instances without a row of their GPU are shown as GPUs of their own "
            "(dcgmi dmon -i 0,i:0,i:1 has the rows of GPU 0, too): GI3, GI4"
        ),
        "rows that belong to no GPU of the text: Switch 1 (line 3)",
    )


BLANKS = [
    base + i for base in (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 2**47) for i in range(4)
]


@pytest.mark.parametrize(
    "text",
    [
        *map(str, BLANKS),
        *(f"{blank:.3f}" for blank in BLANKS),
        *(f"{float(blank)!r}" for blank in BLANKS),
        "N/A",
        "NaN",
        "nan",
        "+Inf",
        "-inf",
        "12345...",
        "",
    ],
)
def test_a_blank_is_absent(text: str) -> None:
    """DCGM's numbers for nothing are not readings, in whatever form they are written."""
    assert number(text) is None


@given(value=st.integers(0, 2**40).filter(lambda v: v not in BLANKS))
def test_a_number_that_is_no_blank_is_kept(value: int) -> None:
    """Even beside the blanks."""
    assert number(str(value)) == value


def test_a_word_that_is_no_number_is_left_out_with_a_sentence() -> None:
    """As a number with a comma; N/A is absent, and needs no sentence."""
    telemetry = dmon("#Entity GRACT SMACT TENSO\nID\nGPU 0 0.5 0,93 N/A")

    assert said(telemetry.records[0]) == {"graphics_active_fraction": 0.5}
    assert telemetry.notes == (
        "not numbers, and left out: PROF_SM_ACTIVE '0,93', GPU 0 (line 3)",
    )


def test_a_share_stays_within_its_bounds() -> None:
    """A counter that overshoots reads as all, one that undershoots as nothing."""
    found = one("#Entity SMACT GPUTL NBWLT\nGPU 0 1.002 -3 -1")

    assert said(found) == {
        "sm_active_fraction": 1.0,
        "gpu_busy_fraction": 0.0,
        "nvlink_bytes_per_s": 0.0,
    }


def test_a_share_of_another_unit_is_said() -> None:
    """70 may be a percentage where DCGM writes ratios, so that it is not silently 1."""
    found = dmon("#Entity DRAMA GPUTL TMPTR\nGPU 0 70.000 104 -5\nGPU 0 1.04 900 50")

    assert [said(reading) for reading in found.records] == [
        {
            "dram_active_fraction": 1.0,
            "gpu_busy_fraction": 1.0,
            "temperature_celsius": celsius,
        }
        for celsius in (-5.0, 50.0)
    ]
    assert found.notes == (
        "PROF_DRAM_ACTIVE is above 1 and read as 1: GPU 0 (line 2)",
        "DEV_GPU_UTIL is above 100 and read as 100: GPU 0 (line 3)",
    )


def test_what_cannot_be_is_left_out_with_a_sentence() -> None:
    """A magnitude below 0, or beyond all numbers, is nobody's reading."""
    found = dmon("#Entity POWER SMCLK TMPTR\nGPU 0 -1 1e308 50\nGPU 0 -2 1000 50")

    assert [said(r) for r in found.records] == [
        {"temperature_celsius": 50.0},
        {"temperature_celsius": 50.0, "sm_clock_hz": 1e9},
    ]
    assert found.notes == (
        "DEV_POWER_USAGE is below 0 and left out: GPU 0 (line 2), GPU 0 (line 3)",
        "DEV_SM_CLOCK is infinite and left out: GPU 0 (line 2)",
    )


def test_counts_are_cut_to_whole_numbers() -> None:
    """An exporter writes 3.0, and 2.9 replays are two."""
    found = one("#Entity RPCTR XIDER RRF\nGPU 0 2.9 79.0 0")

    assert said(found) == {
        "pcie_replay_count": 2,
        "last_xid": 79,
        "row_remap_failed": False,
    }


@pytest.mark.parametrize(
    ("total", "sent", "received", "rate"),
    [
        ("N/A", "1e9", "2e9", 3e9),
        ("0", "1e9", "2e9", 0.0),
        ("1", "1e9", "2e9", 1.024e6),
        ("N/A", "N/A", "2e9", None),
        ("N/A", "1e9", "N/A", None),
        ("N/A", "0", "0", 0.0),
    ],
)
def test_nvlink_has_a_second_source(
    total: str, sent: str, received: str, rate: float | None
) -> None:
    """The sum of both directions, where the total is absent and both are there."""
    found = one(f"#Entity NBWLT NVLTX NVLRX\nGPU 0 {total} {sent} {received}")

    assert found.nvlink_bytes_per_s == rate


def test_all_mistakes_of_a_text_of_dmon_are_told() -> None:
    """Each with the number of its line, in one error."""
    text = (
        "\n#Entity SMACT\nGPU 0 0.1\nGPU 0 0.1 0.2\n"
        "Error setting watches. Result: -6\nGPU 0 0.1"
    )

    with pytest.raises(CaptureFormatError) as caught:
        dmon(text, path="a.txt")

    message = str(caught.value)
    assert caught.value.path == "a.txt"
    assert "line 4: 2 values under 1 names" in message
    assert "line 5: 'Error setting watches. Result: -6' is not an entity" in message
    assert "line 3" not in message


def test_rows_without_a_head_are_a_mistake() -> None:
    """Nobody can tell what the values are."""
    with pytest.raises(CaptureFormatError, match="line 1: values without a header"):
        dmon("GPU 0 1")


def test_very_many_mistakes_are_counted() -> None:
    """The first twenty are told, the rest as a number."""
    with pytest.raises(CaptureFormatError, match=r"line 20: .*; and 5 more"):
        dmon("?\n" * 25)
    with pytest.raises(CaptureFormatError) as caught:
        dmon("?\n" * 20)
    assert "more" not in str(caught.value)


EXPORTER = r"""
# HELP DCGM_FI_PROF_SM_ACTIVE SM active
# TYPE DCGM_FI_PROF_SM_ACTIVE gauge
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H200",Hostname="n\"1\\}"} 0.930000
DCGM_FI_PROF_SM_UTIL_RATIO{gpu="1",UUID="GPU-b",modelName="NVIDIA H200"} NaN
DCGM_FI_DEV_GPU_TEMP{ gpu = "0", UUID = "GPU-a", hostname = "n\"1\\}" } 61
DCGM_FI_DEV_GPU_TEMP{device="nvidia3",uuid="GPU-d"} 50
DCGM_FI_DEV_VGPU_LICENSE_STATUS{gpu="0",UUID="GPU-a"} 0
go_goroutines 12
SMACT{gpu="0",UUID="GPU-a"} 0.1
"""


def test_a_text_of_the_exporter_is_one_record_for_each_gpu() -> None:
    """Lines are gathered by GPU; other programs' lines are passed over."""
    found = exporter(EXPORTER)

    assert [(r.gpu_index, r.gpu_uuid, said(r)) for r in found.records] == [
        (0, "GPU-a", {"sm_active_fraction": 0.93, "temperature_celsius": 61.0}),
        (1, "GPU-b", {}),
        (3, "GPU-d", {"temperature_celsius": 50.0}),
    ]
    assert {(r.monotonic_s, r.unix_s) for r in found.records} == {(100.0, 1.75e9)}
    assert found.model_names == {
        ('n"1\\}', 0, "GPU-a"): "NVIDIA H200",
        ("", 1, "GPU-b"): "NVIDIA H200",
    }
    assert found.notes == ()


def test_instances_are_told_apart_in_the_exporter() -> None:
    """Two instances of one GPU are two records beside the GPU's own."""
    line = 'DCGM_FI_PROF_SM_ACTIVE{{gpu="0",UUID="GPU-a"{}}} {}\n'
    text = (
        line.format("", 0.1)
        + line.format(',GPU_I_ID="1",GPU_I_PROFILE="1g.18gb"', 0.2)
        + line.format(',GPU_I_ID="2",GPU_I_PROFILE="1g.18gb"', 0.3)
    )

    found = exporter(text).records

    assert [(r.gpu_uuid, r.sm_active_fraction) for r in found] == [
        ("GPU-a", 0.1),
        ("GPU-a/GI1", 0.2),
        ("GPU-a/GI2", 0.3),
    ]


def test_a_line_may_say_its_time() -> None:
    """Milliseconds as Prometheus writes them, seconds as OpenMetrics does."""
    found = exporter(
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 60 1760000000500\n'
        'DCGM_FI_DEV_POWER_USAGE{gpu="0"} 300 1760000000500\n'
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 61 1760000001.0\n'
    ).records

    assert [(r.unix_s, r.monotonic_s, r.temperature_celsius) for r in found] == [
        (1760000000.5, 100.0, 60.0),
        (1760000001.0, 100.5, 61.0),
    ]
    assert found[0].power_watts == 300.0


def test_a_whole_number_may_be_a_time_in_seconds() -> None:
    """Prometheus writes milliseconds, OpenMetrics seconds with or without a point."""
    line = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a"} 60'
    for first, second in (
        ("1700000000", "1700000030"),
        ("1700000000.0", "1700000030.0"),
        ("1700000000000", "1700000030000"),
    ):
        records = exporter(f"{line} {first}\n{line} {second}").records

        assert [r.unix_s for r in records] == [1.7e9, 1.7e9 + 30]
        assert [r.monotonic_s for r in records] == [100.0, 130.0]


def test_a_line_of_no_gpu_is_left_out_with_a_sentence() -> None:
    """Without a label that says which GPU, nobody can tell."""
    found = exporter(
        'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-a"} 60\n'
        "DCGM_FI_DEV_POWER_USAGE 300\n"
        'DCGM_FI_DEV_GPU_UTIL{gpu="all"} 5\n'
    )

    assert found.records == ()
    (note,) = found.notes
    assert note == (
        "lines without a label of a GPU: DEV_GPU_TEMP (line 1), "
        "DEV_POWER_USAGE (line 2), DEV_GPU_UTIL (line 3)"
    )


def test_lines_that_contradict_each_other_are_no_reading() -> None:
    """The same twice, as for two pods on one GPU, is one; a blank contradicts nothing."""
    found = exporter(
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",pod="a"} 60\n'
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",pod="b"} 60\n'
        'DCGM_FI_DEV_POWER_USAGE{gpu="0",pod="a"} 300\n'
        'DCGM_FI_DEV_POWER_USAGE{gpu="0",pod="b"} 310\n'
        'DCGM_FI_DEV_POWER_USAGE{gpu="0",pod="c"} 300\n'
        'DCGM_FI_DEV_FB_USED{gpu="0",pod="a"} NaN\n'
        'DCGM_FI_DEV_FB_USED{gpu="0",pod="b"} 1\n'
        'DCGM_FI_DEV_FB_USED{gpu="0",pod="c"} NaN\n'
    )

    assert [said(r) for r in found.records] == [
        {"temperature_celsius": 60.0, "memory_used_bytes": 2.0**20}
    ]
    assert found.notes == (
        (
            "lines that differ in pod alone and have different values, left out: "
            "DEV_POWER_USAGE (GPU 0)"
        ),
    )


def test_hosts_are_told_apart_in_the_exporter() -> None:
    """By whichever label names them; a model is of a host's own GPU and its instances."""
    line = 'DCGM_FI_DEV_GPU_TEMP{{gpu="0",UUID="GPU-{}",{}}} 60\n'
    found = exporter(
        line.format("a", 'Hostname="x",instance="1:9400",modelName="NVIDIA A100"')
        + line.format("b", 'hostname="y",modelName="NVIDIA H100"')
        + line.format("b", 'hostname="y",GPU_I_ID="1"')
        + line.format("c", 'instance="2:9400"')
    )

    assert [record.gpu for record in found.records] == [
        ("x", 0, "GPU-a"),
        ("y", 0, "GPU-b"),
        ("y", 0, "GPU-b/GI1"),
        ("2:9400", 0, "GPU-c"),
    ]
    assert found.model_names == {
        ("x", 0, "GPU-a"): "NVIDIA A100",
        ("y", 0, "GPU-b"): "NVIDIA H100",
        ("y", 0, "GPU-b/GI1"): "NVIDIA H100",
    }


def test_a_uuid_on_one_host_is_one_gpu() -> None:
    """Lines without the host are of the host's GPU, unless two hosts have that UUID."""
    line = 'DCGM_FI_{}{{gpu="0",UUID="GPU-{}"{}}} {}\n'
    found = exporter(
        line.format("DEV_GPU_TEMP", "a", ',modelName="NVIDIA H100"', 60)
        + line.format("PROF_SM_ACTIVE", "a", ',Hostname="x"', 0.5)
        + line.format("DEV_POWER_USAGE", "a", ',Hostname="x"', 300)
        + line.format("DEV_POWER_USAGE", "a", "", 301)
        + line.format("PROF_SM_ACTIVE", "a", ',GPU_I_ID="1"', 0.25)
        + line.format("DEV_GPU_TEMP", "b", "", 70)
        + line.format("DEV_POWER_USAGE", "b", ',Hostname="x"', 1)
        + line.format("DEV_POWER_USAGE", "b", ',Hostname="y"', 2)
    )

    assert [
        (r.gpu, r.temperature_celsius, r.sm_active_fraction, r.power_watts)
        for r in found.records
    ] == [
        (("x", 0, "GPU-a"), 60.0, 0.5, None),
        (("x", 0, "GPU-a/GI1"), None, 0.25, None),
        (("", 0, "GPU-b"), 70.0, None, None),
        (("x", 0, "GPU-b"), None, None, 1.0),
        (("y", 0, "GPU-b"), None, None, 2.0),
    ]
    assert found.model_names[("x", 0, "GPU-a")] == "NVIDIA H100"
    assert found.notes == (
        (
            "lines that differ in Hostname alone and have different values, left out: "
            "DEV_POWER_USAGE (GPU 0)"
        ),
    )


PAGE = """\
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{{gpu="0",Hostname="{host}"}} {}
DCGM_FI_DEV_GPU_TEMP{{gpu="1",Hostname="{host}"}} {}
# HELP DCGM_FI_DEV_POWER_USAGE Power draw
DCGM_FI_DEV_POWER_USAGE{{gpu="0",Hostname="{host}"}} {}
"""


@pytest.mark.parametrize("comments", [True, False])
def test_pages_are_read_one_after_the_other(comments: bool) -> None:
    """With and without comments, and each host has its own times."""
    pages = (
        PAGE.format(60, 50, 300, host="a"),
        PAGE.format(61, 51, 310, host="a"),
        PAGE.format(70, 71, 400, host="b"),
        PAGE.format(62, 52, 320, host="a"),
    )
    lines = [line for page in pages for line in page.splitlines()]
    found = exporter("\n".join(line for line in lines if comments or line[0] != "#"))

    assert found.notes == ()
    assert [
        (r.hostname, r.gpu_index, r.monotonic_s, r.temperature_celsius, r.power_watts)
        for r in found.records
    ] == [
        ("a", 0, 100.0, 60.0, 300.0),
        ("a", 1, 100.0, 50.0, None),
        ("a", 0, 100.1, 61.0, 310.0),
        ("a", 1, 100.1, 51.0, None),
        ("b", 0, 100.0, 70.0, 400.0),
        ("b", 1, 100.0, 71.0, None),
        ("a", 0, 100.2, 62.0, 320.0),
        ("a", 1, 100.2, 52.0, None),
    ]


def test_a_gpu_that_comes_later_begins_its_page() -> None:
    """The comments tell where a page begins, though its first line is new."""
    line = '# HELP DCGM_FI_DEV_GPU_TEMP x\n{}DCGM_FI_DEV_GPU_TEMP{{gpu="1"}} {}\n'
    found = exporter(
        line.format("", 50) + line.format('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 60\n', 51)
    )

    assert [(r.gpu_index, r.monotonic_s) for r in found.records] == [
        (1, 100.0),
        (0, 100.1),
        (1, 100.1),
    ]


def test_what_cannot_be_is_left_out_of_the_exporter_too() -> None:
    """A sentence names the field and the GPU."""
    found = exporter('DCGM_FI_DEV_POWER_USAGE{gpu="2"} -1')

    assert found.notes == ("DEV_POWER_USAGE is below 0 and left out: GPU 2",)


def test_all_mistakes_of_a_text_of_the_exporter_are_told() -> None:
    """Each with the number of its line, in one error."""
    with pytest.raises(CaptureFormatError) as caught:
        exporter(
            'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 60\n'
            'DCGM_FI_DEV_GPU_TEMP{gpu="0"} sixty\n'
            "DCGM_FI_DEV_GPU_TEMP{gpu=0} 60\n"
            "<html>\n"
            'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 61\n'
        )

    message = str(caught.value)
    assert "line 2: 'sixty' is not a number" in message
    assert "line 3: 'gpu=0' is not a label" in message
    assert "line 4: '<html>' is not a name, labels and value" in message
    assert "line 1" not in message


def test_a_name_that_is_not_ours_is_no_field() -> None:
    """An empty head or a word like None finds nothing."""
    assert [field_named(text) for text in ("", "None", "1016", "DCGM_FI_")] == [
        None
    ] * 4
    assert isinstance(field_named("smact"), Field)


def test_gpm_has_the_same_readings() -> None:
    """Percents become fractions, MiB/s bytes a second."""
    readings = gpm_readings(dict.fromkeys(GPM_METRICS, 50.0))

    rates = {name: rate for name, rate in readings.items() if name.endswith("_per_s")}
    assert rates == {
        "pcie_tx_bytes_per_s": 50 * 2.0**20,
        "pcie_rx_bytes_per_s": 50 * 2.0**20,
        "nvlink_bytes_per_s": 100 * 2.0**20,
    }
    shares = readings.keys() - rates.keys()
    assert {readings[name] for name in shares} == {0.5}
    assert readings.keys() <= set(READINGS)
    assert len(shares) == 12


def test_a_gpm_share_is_at_most_the_whole() -> None:
    """The hardware's rounding may exceed 100 %."""
    assert gpm_readings({2: 125.0, 3: -0.1}) == {
        "sm_active_fraction": 1.0,
        "sm_occupancy_fraction": 0.0,
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_what_gpm_did_not_say_is_absent(value: float | None) -> None:
    """NaN is its blank, None a metric that it refused; no rate is below 0."""
    assert gpm_readings({10: value, 60: value, 61: 1.0, 20: -1.0, 21: 0.0}) == {
        "dram_active_fraction": None,
        "pcie_tx_bytes_per_s": None,
        "pcie_rx_bytes_per_s": 0.0,
        "nvlink_bytes_per_s": None,
    }


def test_gpm_metrics_that_are_not_ours_are_passed_over() -> None:
    """The number of another metric gives nothing."""
    assert gpm_readings({4: 1.0}) == {}
