"""collect.translate.smi: nvidia-smi's words and units into ours."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pytest_gpuperf.collect.translate.dcgm import dmon_records, exporter_records
from pytest_gpuperf.collect.translate.smi import (
    is_monitor,
    is_smi_table,
    monitor_records,
    smi_records,
)
from pytest_gpuperf.collect.translate.telemetry import Moment, Telemetry
from pytest_gpuperf.errors import CaptureFormatError
from pytest_gpuperf.model import CanonicalRecord

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
    assert telemetry.model_names == {("", 1, ""): "NVIDIA H200"}
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
        ("2025/03/01 12:60:00.000, 0, a, 1 %, 1 MiB, 1 W, 1 %", "is not a time"),
        ("2025/02/30 12:00:00.000, 0, a, 1 %, 1 MiB, 1 W, 1 %", "day is out of range"),
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


@pytest.mark.parametrize(
    ("column", "first", "second"),
    [
        ("uuid", "GPU-a", "GPU-b"),
        ("gpu_uuid", "GPU-a", "GPU-b"),
        ("pci.bus_id", "00000000:07:00.0", "00000000:0F:00.0"),
        ("gpu_bus_id", "00000000:07:00.0", "00000000:0F:00.0"),
        ("serial", "1650522003820", "1650522003821"),
        ("gpu_serial", "1650522003820", "1650522003821"),
    ],
)
def test_a_gpu_is_known_by_what_does_not_change(
    column: str, first: str, second: str
) -> None:
    """Each has its model and rows; without an index, a note tells the numbers."""
    telemetry = read(
        f"timestamp, name, {column}, temperature.gpu\n"
        f"2025/03/01 12:00:00.000, NVIDIA H100, {second}, 94\n"
        f"2025/03/01 12:00:00.000, NVIDIA A100, {first}, 41\n"
        f"2025/03/01 12:00:01.000, NVIDIA H100, {second}, 94\n"
    )

    assert [r.gpu for r in telemetry.records] == [
        ("", 0, second),
        ("", 1, first),
        ("", 0, second),
    ]
    assert telemetry.model_names == {
        ("", 0, second): "NVIDIA H100",
        ("", 1, first): "NVIDIA A100",
    }
    (note,) = telemetry.notes
    assert note.endswith(f"(add index to --query-gpu): 0 is {second}, 1 is {first}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "timestamp, power.draw\n" + "2025/03/01 12:00:00.120, 1 W\n" * 2,
            "line 3 repeats the time 2025/03/01 12:00:00.120",
        ),
        (
            "name, power.draw\nNVIDIA A100, 1 W\nNVIDIA H100, 2 W\n",
            "line 3 has NVIDIA H100, others have NVIDIA A100",
        ),
        (
            "name, serial, power.draw\nNVIDIA A100, [N/A], 1 W\nRTX, [N/A], 2 W\n",
            "line 3 has RTX, others have NVIDIA A100",
        ),
        (
            "timestamp, serial, power.draw\n"
            + "2025/03/01 12:00:00.120, 16, 1 W\n" * 2,
            "line 3 repeats the time 2025/03/01 12:00:00.120",
        ),
        (
            "index, name, power.draw\n0, NVIDIA A100, 1 W\n0, NVIDIA H100, 2 W\n",
            "line 3 has NVIDIA H100, others have NVIDIA A100",
        ),
        (
            "timestamp, power.draw\n"
            + "".join(
                f"2025/03/01 12:00:0{second}.{gpu * 7:03}, 1 W\n"
                for second in range(4)
                for gpu in range(3)
            ),
            "rows come in bursts",
        ),
    ],
)
def test_rows_of_several_gpus_are_not_one_gpu(text: str, words: str) -> None:
    """Where no column says which, the query that has one is told."""
    with pytest.raises(CaptureFormatError, match=words) as caught:
        read(text)
    assert "add index and uuid to --query-gpu" in caught.value.remedy


@pytest.mark.parametrize(
    "gaps_ms", [[20] * 50, [20] * 9 + [4000] + [20] * 30, [99, 101] * 9]
)
def test_one_gpu_that_is_read_often_is_no_burst(gaps_ms: list[int]) -> None:
    """Neither short gaps nor a pause make several GPUs; a note tells what is assumed."""
    times_ms = [sum(gaps_ms[:count]) for count in range(len(gaps_ms) + 1)]
    rows = "".join(
        f"2025/03/01 12:00:{ms // 1000:02}.{ms % 1000:03}, 1 W\n" for ms in times_ms
    )
    telemetry = read(f"timestamp, power.draw\n{rows}")

    assert len(telemetry.records) == len(times_ms)
    assert {record.gpu for record in telemetry.records} == {("", 0, "")}
    assert telemetry.notes == (
        (
            "no column names the GPU of a row, so all rows are read as rows of one "
            "GPU (add index to --query-gpu): GPU 0"
        ),
    )


def test_a_table_of_processes_is_named() -> None:
    """It has a GPU in each row, and no reading of it."""
    text = (
        "timestamp, gpu_name, gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n"
        "2025/03/01 12:00:00.000, NVIDIA A100, GPU-a, 12, python, 8192 MiB\n"
    )
    with pytest.raises(CaptureFormatError, match="a table of processes") as caught:
        read(text)
    assert "nvidia-smi --query-gpu=timestamp,index," in caught.value.remedy
    words = "none of its columns is a reading: 'index, driver_version'"
    with pytest.raises(CaptureFormatError, match=words):
        read("index, driver_version\n0, 580.1\n")


def test_rows_of_processes_between_rows_of_gpus_are_passed_over() -> None:
    """Two queries in turns into one file: only one of them has readings."""
    telemetry = read(
        "index, power.draw\n0, 300 W\npid, used_gpu_memory [MiB]\n12, 8192 MiB\n"
        "index, power.draw\n0, 301 W\n"
    )

    assert [record.power_watts for record in telemetry.records] == [300, 301]
    assert telemetry.notes == (
        "columns without a reading of ours: pid, used_gpu_memory",
    )


def test_times_that_go_back_are_told() -> None:
    """Where a GPU has no name but its index, logs of two machines may be in one file."""
    head = "timestamp, index, power.draw\n"
    rows = "2025/03/01 12:00:00.000, 0, 1 W\n2025/03/01 12:00:01.000, 0, 2 W\n"

    assert read(head + rows).notes == ()
    (note,) = read(head + rows + rows).notes
    assert note.endswith("several machines (add uuid to --query-gpu): line 4")


def test_a_cut_head_is_no_table() -> None:
    """Whatever is left of it, there is no row below."""
    found = smi_records("timestamp, index, temper", start=START, interval_s=0.5)

    assert found.records == ()
    assert found.notes[0].endswith("left out: 'timestamp, index, temper' (line 1)")


def test_messages_around_a_table_are_left_out() -> None:
    """Even one with as many cells as a row."""
    telemetry = read(
        "Warning: persistence mode is off.\nindex, power.draw\n0, 300 W\n"
        "Unable to determine the device handle, GPU is lost\n"
    )

    assert [record.gpu for record in telemetry.records] == [("", 0, "")]
    assert telemetry.notes == (
        (
            "lines above the rows, left out: 'Warning: persistence mode is off.' (line 1)"
        ),
        (
            "lines below the rows, left out: "
            "'Unable to determine the device handle, GPU is lost' (line 4)"
        ),
    )


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("x, 0, 300 W, 41", "'x' is not a time"),
        ("2025/03/01 12:00:01.000, one, 300 W, 41", "is not the index of a GPU"),
        ("2025/03/01 12:00:01.000, 0, 300 W", "3 values under 4 names"),
        ("2025/03/01 12:00:01.000, 0", "2 values under 4 names"),
        ("2025/03/01 12:00:01.000", "1 values under 4 names"),
        # A locale's comma, and a column more than the head has.
        ("2025/03/01 12:00:01.000, 0, 300,5 W, 41", "5 values under 4 names"),
        ("2025/03/01 12:00:01.000, 0, 300 W, 41, 7 %", "5 values under 4 names"),
        ("0, [N/A], 41", "3 values under 4 names"),
    ],
)
def test_a_row_that_cannot_be_read_is_no_message_of_the_tool(
    row: str, words: str
) -> None:
    """Above, between and below the rows: it is never left out."""
    head = "timestamp, index, power.draw, temperature.gpu\n"
    good = "2025/03/01 12:00:00.000, 0, 300 W, 40\n"

    for text in (f"{head}{good}{row}\n", f"{head}{row}\n{good}"):
        with pytest.raises(CaptureFormatError, match=words):
            read(text)
    with pytest.raises(CaptureFormatError, match="line 1: values without a header"):
        read(f"{good}{head}{good}")


@pytest.mark.parametrize(
    "message",
    [
        "Terminated",
        "[1]+  Terminated              nvidia-smi --query-gpu=index -l 1",
        "Unable to determine the device handle for GPU0000:0F:00.0: GPU is lost",
        "Error: a, b, c",
        "Sat Nov 28 20:23:05 UTC 2026",
        "slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-11-28T20:23:05 ***",
    ],
)
def test_a_message_below_the_rows_is_left_out(message: str) -> None:
    """Of the tool, of the shell and of the scheduler that ended it."""
    table = "timestamp, index, power.draw\n2025/03/01 12:00:00.000, 0, 300 W\n"

    for text, read_tool in ((table, read), (DMON, monitor)):
        notes = read_tool(f"{text}{message}\n").notes
        told = f"lines below the rows, left out: '{message[:9]}"
        assert any(note.startswith(told) for note in notes)


@pytest.mark.parametrize(
    "table",
    [
        "index, utilization.gpu [%], memory.used [MiB]\n0, 93 %, 400 MiB\n",
        "# gpu    pwr  gtemp     sm\n# Idx      W      C      %\n    0  86  33  30\n",
    ],
)
def test_a_loop_may_print_a_date_above_each_table_of_nvidia_smi(table: str) -> None:
    """Rows of each round are read, one interval apart."""
    dated = f"Sun Nov 29 10:00:00 UTC 2026\n{table}"
    read_table = monitor_records if table.startswith("#") else smi_records
    found = read_table(dated * 3, start=START, interval_s=0.1)

    assert len(found.records) == 3
    assert "lines between two outputs of the tool, left out" in found.notes[1]


def test_a_later_head_may_have_other_columns() -> None:
    """Two runs in one file are read with the head of each."""
    telemetry = read(
        "index, power.draw\n0, 300 W\nindex, memory.total, fan.speed\n0, 2 MiB, 3 %\n"
    )
    first, second = telemetry.records

    assert (first.power_watts, first.memory_total_bytes) == (300, None)
    assert (second.power_watts, second.memory_total_bytes) == (None, 2 * 1024**2)
    assert telemetry.notes == ("columns without a reading of ours: fan.speed",)


def test_rows_may_begin_with_a_time() -> None:
    """As `ts` writes it, if the head does, too; a first cell is not a time."""
    telemetry = read(
        "Nov 27 16:33:07 index, power.draw\nNov 27 16:33:07 0, 300 W\n"
        "Nov 27 16:33:09 0, 301 W\n"
    )
    (single,) = read("utilization.gpu [%]\n98 %\n").records

    assert [r.monotonic_s for r in telemetry.records] == [100.0, 102.0]
    assert (single.gpu_busy_fraction, single.monotonic_s) == (0.98, 100.0)


def test_a_cell_that_is_not_a_number_is_left_out_with_a_sentence() -> None:
    """An absent one is nothing to tell; a second column of a reading fills its gaps."""
    telemetry = read(
        "index, utilization.gpu, memory.used, power.draw.instant, power.draw\n"
        "0, abc, 1e303 MiB, [N/A], 300 W\n"
        "0, 5 %, NaN, 200 W, 300 W\n"
    )

    assert telemetry.notes == (
        "memory.used is infinite and left out: line 2",
        (
            "not numbers in the unit of nvidia-smi, and left out: utilization.gpu 'abc' "
            "(line 2), memory.used 'NaN' (line 3)"
        ),
    )
    assert [record.power_watts for record in telemetry.records] == [300, 200]
    assert [record.gpu_busy_fraction for record in telemetry.records] == [None, 0.05]


def test_a_value_in_a_unit_that_nvidia_smi_does_not_write_is_left_out() -> None:
    """Another program wrote the column; a number alone would be wrong by a factor."""
    telemetry = read(
        "index, memory.used [GiB], memory.free [MB], power.draw, clocks.sm [MHz]\n"
        "0, 40, 2 MB, 123 kW, 1980 MHz\n"
    )
    (record,) = telemetry.records

    assert (record.memory_used_bytes, record.power_watts) == (None, None)
    assert (record.memory_free_bytes, record.sm_clock_hz) == (2 * 1024**2, 1.98e9)
    assert telemetry.notes == (
        "columns without a reading of ours: memory.used[gib]",
        "not numbers in the unit of nvidia-smi, and left out: power.draw '123 kW' (line 2)",
    )


def test_a_value_that_cannot_be_is_no_reading() -> None:
    """As in the other formats: a share above the whole, and a sensor below 0."""
    telemetry = read("index, utilization.gpu, power.draw\n0, 150 %, -5 W\n")
    (record,) = telemetry.records

    assert (record.gpu_busy_fraction, record.power_watts) == (1.0, None)
    assert telemetry.notes == (
        "utilization.gpu is above 100 and read as 100: line 2",
        "power.draw is below 0 and left out: line 2",
    )


@pytest.mark.parametrize(
    ("tool", "head", "row"),
    [
        (monitor_records, "#Date Time gpu sm mem\n", "20250301 12:00:0{} 0 9 2\n"),
        (monitor_records, "12:00:01 # gpu sm mem\n", "12:00:0{} 0 9 2\n"),
        (dmon_records, "12:00:01 #Entity SMACT\n", "12:00:0{} GPU 0 0.9\n"),
    ],
)
def test_times_that_go_back_have_a_sentence(
    tool: Callable[..., Telemetry], head: str, row: str
) -> None:
    """Logs of two machines, one after the other, have the same GPUs without ids."""
    log = head + row.format(3) + row.format(4)
    both = log + head + row.format(1) + row.format(5)
    how = {"start": START, "interval_s": 0.5}

    assert tool(log + row.format(4), **how).notes == ()
    assert tool(both, **how).notes == (
        "times go back, so rows may be of several machines: line 5",
    )


def test_only_its_own_head_is_taken_for_a_table() -> None:
    """What DCGM prints is another format."""
    assert is_smi_table(HEAD)
    assert is_smi_table("utilization.gpu [%], power.draw [W]")
    assert not is_smi_table("#Entity   SMACT   TENSO")
    assert not is_smi_table("")
    assert not is_smi_table("[" * 200_000)


def test_brackets_of_a_name_are_told_from_its_unit() -> None:
    """A head of nothing but brackets is read in one pass: 100 kB took half a minute."""
    assert is_smi_table("utilization.gpu[%], [a] [%]")
    assert not is_smi_table("index" + " [" * 60_000)


@pytest.mark.parametrize(
    ("percent", "share"), [("41", 0.41), ("7", 0.07), ("58", 0.58)]
)
def test_a_share_is_the_float_that_people_write(percent: str, share: float) -> None:
    """41 % is 0.41: a factor of 0.01 gives floats beside it."""
    text = f"index, utilization.gpu [%]\n0, {percent} %\n"
    (record,) = read(text).records

    assert record.gpu_busy_fraction == share


DMON = """\
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem    enc   mclk   pclk     fb
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %      %    MHz    MHz     MB
 20250301   12:00:00      0    456     60     58     99     38      0   1593   1980   1024
 20250301   12:00:00      1      -     30      -      0      0      0    210    210      4
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem    enc   mclk   pclk     fb
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %      %    MHz    MHz     MB
 20250301   12:00:02      0    457     60     58     99     38      0   1593   1980   1024
"""


def monitor(text: str) -> Telemetry:
    return monitor_records(text, start=START, interval_s=0.5)


def test_a_row_of_dmon_is_a_reading_in_our_units() -> None:
    """Its own times count, heads repeat, and a dash is an absent value."""
    telemetry = monitor(DMON)
    first, other, last = telemetry.records

    assert (first.gpu_busy_fraction, first.memory_busy_fraction) == (0.99, 0.38)
    assert (first.temperature_celsius, first.memory_temperature_celsius) == (60, 58)
    assert (first.memory_clock_hz, first.sm_clock_hz) == (1.593e9, 1.98e9)
    assert (first.power_watts, first.memory_used_bytes) == (456, 2**30)
    assert (other.gpu_index, other.power_watts, other.sm_clock_hz) == (1, None, 2.1e8)
    assert (first.monotonic_s, last.monotonic_s) == (100.0, 102.0)
    assert telemetry.notes == ("columns without a reading of ours: enc",)


@pytest.mark.parametrize("begin", ["", "Nov 27 16:33:07 "])
@pytest.mark.parametrize("comma", ["", ","])
def test_metrics_of_gpm_are_the_shares_of_a_class(comma: str, begin: str) -> None:
    """Percents and MiB/s, in dmon's own format and as CSV, with the time of `ts` or not."""
    names = "gpu gract smutil smocc intact mmaact dfmaact hmmaact immaact dram"
    names += " fp64 fp32 fp16 pcitx pcirx nvlrx nvltx"
    cells = "0 99 93 40 10 61 1 60 2 38 3 10 4 5 6 7 8"
    rows = (f"# {names}", f"# Idx {'GPM:% ' * 16}", cells, cells.replace("99", "98"))
    text = "".join(f"{begin}{row.replace(' ', f'{comma} ')}\n" for row in rows)
    text = text.replace("#, ", "# ").replace(begin.replace(" ", f"{comma} "), begin)
    first, second = monitor(text).records

    shares = {
        name: getattr(first, f"{name}_active_fraction")
        for name in ("graphics", "sm", "tensor", "dram", "fp64", "fp32", "fp16")
    }
    assert shares == {
        "graphics": 0.99,
        "sm": 0.93,
        "tensor": 0.61,
        "dram": 0.38,
        "fp64": 0.03,
        "fp32": 0.1,
        "fp16": 0.04,
    }
    kinds = [first.tensor_dfma_active_fraction, first.tensor_hmma_active_fraction]
    assert [*kinds, first.tensor_imma_active_fraction] == [0.01, 0.6, 0.02]
    assert (first.sm_occupancy_fraction, first.nvlink_bytes_per_s) == (0.4, 15 * 2**20)
    assert first.pcie_tx_bytes_per_s == 5 * 2**20
    assert second.graphics_active_fraction == 0.98
    assert second.gpu == first.gpu == ("", 0, "")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("0 1 2 3", "4 values under 3 names"),
        ("x 1 2", "'x' is not the index of a GPU"),
        ("0 one 2", "'one' is not a number"),
    ],
)
def test_a_line_that_is_not_a_row_of_dmon_is_named(row: str, words: str) -> None:
    """With its number."""
    with pytest.raises(CaptureFormatError, match=f"line 3: {words}") as caught:
        monitor(f"# gpu sm mem\n0 1 2\n{row}\n0 3 4\n")
    assert "output of nvidia-smi dmon" in caught.value.remedy


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("0 1", "2 values under 3 names"),
        ("0 1 2 3", "4 values under 3 names"),
        ("x 1 2", "is not the index of a GPU"),
        ("0 one -", "'one' is not a number"),
    ],
)
def test_a_row_of_dmon_that_cannot_be_read_is_no_message(row: str, words: str) -> None:
    """Above, between and below the rows: it is never left out."""
    for text in (f"# gpu sm mem\n0 1 2\n{row}\n", f"# gpu sm mem\n{row}\n0 1 2\n"):
        with pytest.raises(CaptureFormatError, match=words):
            monitor(text)


@pytest.mark.parametrize(
    ("head", "part"),
    [
        ("# gpu gi smutil\n# Idx # GPM:%\n", "GI"),
        ("# gpu mig smutil\n", "MIG"),
        ("# gpu level smutil\n# Idx Idx GPM:%\n", "LEVEL"),
        ("# gpu, gpuinst, smutil\n", "GPUINST"),
    ],
)
def test_instances_of_dmon_are_no_readings_of_their_gpu(head: str, part: str) -> None:
    """`--gpm-options=dm` has a row of the GPU and one of each instance at a time."""
    rows = "0 - 40\n0 1 90\n0 2 10\n0 - 41\n0 1 91\n0 2 11\n"
    if "," in head:
        rows = rows.replace(" ", ", ")
    found = monitor(head + rows)

    assert [(r.gpu_uuid, r.sm_active_fraction) for r in found.records] == [
        ("", 0.4),
        (f"/{part}1", 0.9),
        (f"/{part}2", 0.1),
        ("", 0.41),
        (f"/{part}1", 0.91),
        (f"/{part}2", 0.11),
    ]
    assert [r.monotonic_s for r in found.records] == [100.0] * 3 + [100.5] * 3
    assert found.notes == ()


def test_a_time_of_dmon_may_be_without_its_day() -> None:
    """`-o T` begins again at midnight, and `-o D` says no time of the day."""
    found = monitor("#Time gpu sm\n23:59:59 0 1\n00:00:01 0 2\n").records
    assert [record.monotonic_s for record in found] == [100.0, 102.0]
    found = monitor("#Date gpu sm\n20250301 0 1\n20250301 0 2\n").records
    assert [record.monotonic_s for record in found] == [100.0, 100.5]


SECONDS, GPUS = 30, 3


def value(second: int, gpu: int, name: int) -> int:
    """Return a percentage of one to three digits, so that a part of it is another one."""
    return (second * 7 + gpu * 31 + name * 13) % 101


def values_of(second: int, gpu: int) -> list[int]:
    return [value(second, gpu, name) for name in range(3)]


def rows_of(row: str, head: str = "") -> str:
    return head + "".join(
        row.format(*values_of(second, gpu), gpu=gpu, m=second // 60, s=second % 60)
        for second in range(SECONDS)
        for gpu in range(GPUS)
    )


CUT_TABLE = rows_of(
    "2025/03/01 12:{m:02}:{s:02}.120, {gpu}, GPU-{gpu}, {} %, {} %, {}\n",
    "timestamp, index, uuid, utilization.gpu [%], utilization.memory [%], "
    "temperature.gpu\n",
)
CUT_MONITOR = rows_of(
    " 20250301   12:{m:02}:{s:02}    {gpu}    {}    {}    {}\n",
    "#Date       Time        gpu     sm    mem   gtemp\n"
    "#YYYYMMDD   HH:MM:SS    Idx      %      %       C\n",
)
CUT_DCGM = rows_of(
    "Nov 27 16:{m:02}:{s:02} GPU {gpu}     {}     {}     {}\n",
    "Nov 27 16:00:00 #Entity   GPUTL    MCUTL    TMPTR\nNov 27 16:00:00 ID\n",
)
CUT_PAGES = "".join(
    f"# HELP DCGM_FI_{name} text\n"
    + "".join(
        f'DCGM_FI_{name}{{gpu="{gpu}",UUID="GPU-{gpu}"}} {value(second, gpu, place)}\n'
        for gpu in range(GPUS)
    )
    for second in range(SECONDS)
    for place, name in enumerate(("DEV_GPU_UTIL", "DEV_MEM_COPY_UTIL", "DEV_GPU_TEMP"))
)
READINGS_CUT = ("gpu_busy_fraction", "memory_busy_fraction", "temperature_celsius")


@pytest.mark.parametrize(
    ("read_tool", "text"),
    [
        (smi_records, CUT_TABLE),
        (monitor_records, CUT_MONITOR),
        (dmon_records, CUT_DCGM),
        (exporter_records, CUT_PAGES),
    ],
)
def test_a_cut_file_has_no_wrong_number(
    read_tool: Callable[..., Telemetry], text: str
) -> None:
    """Wherever it is cut: each record is that of the whole file, or a part of it."""

    def records_of(part: str) -> list[CanonicalRecord]:
        return [*read_tool(part, start=START, interval_s=1.0).records]

    whole = records_of(text)
    assert len(whole) == SECONDS * GPUS
    assert [whole[7].gpu_busy_fraction, whole[7].temperature_celsius] == [
        value(2, 1, 0) / 100,
        value(2, 1, 2),
    ]
    places = random.Random(1).sample(range(len(text) // 10, len(text)), 200)
    for place in places:
        cut = records_of(text[:place])
        assert len(cut) > 0
        for record, full in zip(cut, whole, strict=False):
            assert (record.gpu, record.monotonic_s) == (full.gpu, full.monotonic_s)
            for name in READINGS_CUT:
                assert getattr(record, name) in {getattr(full, name), None}


def test_only_its_own_head_is_taken_for_dmon() -> None:
    """What DCGM, pmon and an exporter print is another format."""
    assert is_monitor("# gpu    pwr  gtemp")
    assert is_monitor("#Date       Time        gpu    pwr")
    assert is_monitor("#gpu, pwr, gtemp")
    assert not is_monitor("# gpu        pid  type    sm")
    assert not is_monitor("#Entity   SMACT")
    assert not is_monitor("# HELP x gpu")
    assert not is_monitor("gpu pwr")
