"""collect.peaks: where peaks come from, and all that must not be taken for one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import pytest_gpuperf
from pytest_gpuperf.collect.peaks import cpu_peaks, find_peaks, load_table
from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.roofline import LEVELS, Peaks
from pytest_gpuperf.model.sample import SourceLabel
from pytest_gpuperf.model.work import DTYPE_BYTES

FILE = Path(pytest_gpuperf.__file__).parent / "collect" / "gpu_table.json"
TABLE = json.loads(FILE.read_text("utf-8"))
ROWS: list[dict[str, Any]] = TABLE["gpus"]
PLAIN = {"fp64", "fp64_tensor", "fp32", "fp16_vector"}  # not of the tensor clock


def device(name: str, **facts: Any) -> Device:
    return Device(index=0, uuid="GPU-0", name=name, **facts)


def h200(**facts: Any) -> Device:
    """Return an H200 as NVML and the CUDA driver describe it."""
    known: dict[str, Any] = {
        "name": "NVIDIA H200",
        "memory_bytes": 150_754_820_096,
        "sm_count": 132,
        "compute_capability": (9, 0),
        "max_sm_clock_hz": 1_980_000_000,
        "max_memory_clock_hz": 3_201_000_000,
        "power_limit_watts": 700.0,
        "rated_clock_hz": 1_980_000_000,
        "memory_bus_bits": 6016,
        "l2_bytes": 62_914_560,
        "integrated": False,
    }
    return device(**known | facts)


def tflop_s(peaks: Peaks, dtype: str) -> float:
    value = peaks.of_dtype(dtype).value
    assert value is not None
    return value / 1e12


def gb_s(peaks: Peaks) -> float:
    value = peaks.of_memory("dram").value
    assert value is not None
    return value / 1e9


def label(peaks: Peaks, field: str) -> str:
    peak = peaks.of_memory(field) if field in LEVELS else peaks.of_dtype(field)
    return peak.label.value


# the table


def test_the_table_is_whole() -> None:
    """49 GPUs with 392 peaks, each of a data type that is known."""
    assert len(ROWS) == len({row["id"] for row in ROWS}) == 49
    assert sum(len(row["tflop_s"]) for row in ROWS) == 392
    assert {dtype for row in ROWS for dtype in row["tflop_s"]} <= set(DTYPE_BYTES)


def test_every_figure_has_a_source() -> None:
    """A number stands beside a source that the file explains, and no source is unused."""
    cells = [cell for row in ROWS for cell in figures(row)]

    assert len(cells) > 49 * 8
    assert {source for _, source in cells} | {"wp-hopper"} == set(TABLE["sources"])
    assert all(value > 0 for value, _ in cells)
    labels = {said["label"] for said in TABLE["sources"].values()}
    assert labels == {"datasheet", "estimated"}


def figures(row: dict[str, Any]) -> list[tuple[float, str]]:
    """Return every number of a row with its source."""
    cells = [*row.values(), *row["tflop_s"].values()]
    return [
        (cell[0], cell[1])
        for cell in cells
        if isinstance(cell, list) and not isinstance(cell[0], str)
    ]


def test_the_table_explains_its_keys() -> None:
    """What a reader of the file meets in a row stands in its header."""
    met = {key for row in ROWS for key in row} - {"id"}

    assert met <= set(TABLE["keys"])


def test_the_table_refers_to_vendors_alone() -> None:
    """Facts are cited from whoever published them, never from a copy of a copy."""
    text = FILE.read_text("utf-8").lower()

    assert not re.findall(r"techpowerup|forum|mirror|github|https?:", text)


def test_no_two_cards_share_a_name_unless_something_tells_them_apart() -> None:
    """A name that other boards have too is taken together with memory or bandwidth."""
    names = [name for row in ROWS for name in row["names"]]
    settled = {row["id"]: row["settled_by"] for row in ROWS if "settled_by" in row}

    assert len(set(names)) == len(names)
    assert settled == {
        "rtx-3060-12gb": "memory",
        "rtx-3080-10gb": "memory",
        "rtx-4070": "bandwidth",
        "jetson-agx-orin-64gb": "memory",
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["id"]))
def test_figures_are_rates_times_clocks(row: dict[str, Any]) -> None:
    """
    A printed peak is 2 x multiprocessors x rate x clock, within 2 % or its last digit.

    The exceptions are the vendor's own: figures copied from a sibling, and two sheets
    that mix clocks.
    """
    if "boost_mhz" not in row:
        return
    wrong = {
        dtype
        for dtype, (printed, _) in row["tflop_s"].items()
        if not fits(row, dtype, printed)
    }

    assert wrong == {
        "l40s": {"int4"},  # printed equal to INT8
        # B200's; more than an eighth of the whole board; at the boost clock
        "b300-sxm": {"fp32", "fp4", "int8"},
        "gb300": {"int8"},  # at the boost clock, and 2.5 % over
    }.get(row["id"], set())


def fits(row: dict[str, Any], dtype: str, printed: float) -> bool:
    """Return whether a peak is what rate and clock give."""
    clock_mhz = row["boost_mhz"][0]
    if dtype not in PLAIN:
        clock_mhz = row.get("tensor_mhz", row["boost_mhz"])[0]
    rate = TABLE["rates"][row["rates"]][dtype]
    found = 2 * row["sm_count"][0] * rate * clock_mhz * 1e6 / 1e12
    digits = len(f"{printed}".partition(".")[2])
    half_a_unit = 0.5 * 10.0**-digits
    return bool(abs(found - printed) <= max(0.02 * printed, half_a_unit))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["id"]))
def test_a_card_is_found_by_each_of_its_names(row: dict[str, Any]) -> None:
    """With what tells it apart, and whether or not the driver writes NVIDIA before it."""
    memory_bytes = int(row["memory_gb"][0] * 1e9)
    bus_bits, _ = row.get("bus_bits", (8192, ""))
    known = {
        "memory_bytes": memory_bytes,
        "memory_bus_bits": bus_bits,
        "max_memory_clock_hz": round(row["dram_gb_s"][0] * 1e9 * 4 / bus_bits),
    }
    for name in row["names"]:
        for spelled in (name, f"NVIDIA {name.removeprefix('NVIDIA ')}"):
            card, why = load_table().card_of(device(spelled, **known))

            assert why == ""
            assert card is not None
            assert name in card.names


PAGE = Path(__file__).parents[3] / "docs" / "hardware.md"


@pytest.mark.skipif(not PAGE.exists(), reason="an installed copy has no docs folder")
def test_the_page_lists_every_gpu() -> None:
    """By the names of the table, and no other."""
    _, _, listed = PAGE.read_text("utf-8").partition("## GPUs with a datasheet")
    rows = [line for line in listed.splitlines() if line.startswith("|")][2:]
    names = [name for row in rows for name in re.findall(r"`([^`]*)`", row)]

    assert sorted(names) == sorted(name for row in ROWS for name in row["names"])


# the order


def test_the_strongest_source_of_each_field_wins() -> None:
    """Detected, measured, declared, datasheet, estimated: each where none before it is."""
    given = {"dram": 4e12, "bf16": 7e14, "fp8": 1.5e15}
    measured = {"dram": 4.2e12, "bf16": 7.5e14}
    peaks = find_peaks(h200(), declared=given, measured=measured)

    assert label(peaks, "dram") == "detected"
    assert gb_s(peaks) == pytest.approx(2 * 3201e6 * 6016 / 8 / 1e9)
    assert (label(peaks, "bf16"), tflop_s(peaks, "bf16")) == ("measured", 750)
    assert (label(peaks, "fp8"), tflop_s(peaks, "fp8")) == ("declared", 1500)
    assert (label(peaks, "fp16"), tflop_s(peaks, "fp16")) == ("datasheet", 989.5)
    assert label(peaks, "fp16_vector") == "estimated"
    assert label(peaks, "fp4") == "unavailable"


def test_a_declaration_that_is_not_used_is_told() -> None:
    """Nobody has to wonder why the number of the ini file does not appear."""
    peaks = find_peaks(h200(), declared={"dram": 4e12, "fp8": 1e15})

    assert peaks.notes == ("dram is declared, but the detected value is used",)


def test_every_peak_has_a_label_and_a_source() -> None:
    """Of all data types and levels of memory, those that nobody knows included."""
    for peaks in (find_peaks(h200()), find_peaks(device("a GPU")), cpu_peaks()):
        every = {**peaks.flop_per_s, **peaks.bytes_per_s}

        assert set(every) == {*DTYPE_BYTES, *LEVELS}
        assert all(peak.source for peak in every.values())


def test_an_unknown_gpu_is_nobody_else() -> None:
    """No figure of another card stands in, however alike its name is."""
    for name in ("NVIDIA H2000", "NVIDIA H200 X", "NVIDIA GeForce RTX 4090 D", "H20"):
        peaks = find_peaks(device(name, compute_capability=(9, 0)))
        every = [*peaks.flop_per_s.values(), *peaks.bytes_per_s.values()]

        assert {peak.label for peak in every} == {SourceLabel.UNAVAILABLE}
        assert repr(name) in peaks.of_dtype("bf16").source


def test_what_cannot_be_read_is_named() -> None:
    """The reason says which facts an estimate would have needed."""
    why = find_peaks(device("a GPU")).of_dtype("bf16").source

    assert "multiprocessors" in why
    assert "rated clock" in why
    assert "compute capability" in why


def test_a_cpu_has_what_was_declared() -> None:
    """Everything else of it says that only a declaration gives it."""
    peaks = cpu_peaks({"dram": 2e10})

    assert peaks.device == "cpu"
    assert (gb_s(peaks), label(peaks, "dram")) == (20, "declared")
    assert label(peaks, "fp32") == "unavailable"
    assert "must be declared" in peaks.of_dtype("fp32").source


def test_a_type_without_peaks_is_told_which_there_are() -> None:
    """A misspelt data type is not a missing figure."""
    assert "bf16" in find_peaks(h200()).of_dtype("bfloat16").source


# the traps


def test_tensor_rates_follow_a_clock_of_their_own() -> None:
    """Hopper: boost times tensor rate overshoots the sheet by 8 %; 0.924 of it fits."""
    unknown = find_peaks(h200(memory_bytes=None, memory_bus_bits=5120))

    assert tflop_s(unknown, "bf16") == pytest.approx(989.4, rel=1e-3)
    assert tflop_s(unknown, "fp32") == pytest.approx(66.9, rel=1e-3)
    assert unknown.of_dtype("bf16").clock_hz == pytest.approx(1830e6, rel=1e-3)
    assert unknown.of_dtype("fp32").clock_hz == 1980e6
    sheet = find_peaks(h200())
    assert sheet.of_dtype("bf16").clock_hz == 1830e6
    assert sheet.of_dtype("fp32").clock_hz == 1980e6


def test_the_top_of_the_clocks_range_is_no_rated_clock() -> None:
    """A GeForce's is 23 % above: without the rated clock there is no estimate."""
    top_only = h200(name="NVIDIA GeForce RTX 4099", rated_clock_hz=None)

    assert label(find_peaks(top_only), "fp32") == "unavailable"


@pytest.mark.parametrize(
    ("name", "bf16"),
    [
        ("NVIDIA GeForce RTX 4099", 165.2),  # half the professional rate
        ("NVIDIA RTX 5000 Ada Generation", 330.3),
        ("NVIDIA L41", None),  # the L40 has half the rate, the L40S all of it
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce GTX 1660", None),  # no tensor cores at all
    ],
)
def test_the_capability_alone_gives_no_rate(name: str, bf16: float | None) -> None:
    """The name decides; where it does not, nothing is computed from the clock."""
    ada = h200(
        name=name,
        compute_capability=(8, 9),
        sm_count=128,
        rated_clock_hz=2_520_000_000,
    )
    peaks = find_peaks(ada)

    if bf16 is None:
        assert {peak.label for peak in peaks.flop_per_s.values()} == {
            SourceLabel.UNAVAILABLE
        }
        assert "its rate for" in peaks.of_dtype("bf16").source
    else:
        assert tflop_s(peaks, "fp32") == pytest.approx(82.6, rel=1e-3)
        assert label(peaks, "fp32") == "estimated"
        assert tflop_s(peaks, "bf16") == pytest.approx(bf16, rel=1e-3)


@pytest.mark.parametrize(
    "name", ["NVIDIA H20", "NVIDIA H800", "NVIDIA H100", "NVIDIA H200 Z"]
)
def test_a_cut_down_board_has_no_rate_of_its_chip(name: str) -> None:
    """It says compute capability 9.0 as the H100 does, and computes less."""
    peaks = find_peaks(h200(name=name))

    assert {peak.label for peak in peaks.flop_per_s.values()} == {
        SourceLabel.UNAVAILABLE
    }
    assert "does not follow from its name" in peaks.of_dtype("bf16").source
    assert label(peaks, "dram") == "detected"  # its own clock and bus


def test_a_type_that_the_chip_does_not_compute_is_not_blamed_on_the_name() -> None:
    """Hopper's tensor cores have no FP4; an H200 is known well enough to say so."""
    peaks = find_peaks(h200())

    assert peaks.of_dtype("fp4").source == (
        "its datasheet does not list it, and no rate of this data type is known for "
        "compute capability 9.0"
    )
    assert peaks.of_dtype("fp16_vector").source == (
        "2 x 132 multiprocessors x 256 FMA per clock x 1980 MHz"
    )


def test_fp4_is_not_halved_on_geforce() -> None:
    """Every card of 12.0 has one rate of it, and the sheet says so."""
    peaks = find_peaks(device("NVIDIA GeForce RTX 5090", memory_bytes=34_190_917_632))

    assert tflop_s(peaks, "fp4") == 8 * tflop_s(peaks, "bf16")
    assert tflop_s(peaks, "fp8") == 2 * tflop_s(peaks, "bf16")


@pytest.mark.parametrize(
    ("half", "whole"), [("NVIDIA L40", "NVIDIA L40S"), ("NVIDIA A10G", "NVIDIA A10")]
)
def test_a_halved_card_is_not_its_namesake(half: str, whole: str) -> None:
    """Names are matched whole: the one's tensor cores run at half the other's rate."""
    slow, fast = (find_peaks(device(name)) for name in (half, whole))

    assert tflop_s(slow, "bf16") < 0.6 * tflop_s(fast, "bf16")


@pytest.mark.parametrize(
    ("name", "capability", "clock_mhz", "bus_bits", "sheet_gb_s"),
    [
        ("NVIDIA GB10", (12, 1), 8533, 256, 273),
        ("Orin", (8, 7), 612, 256, 204.8),
        ("NVIDIA Thor", (11, 0), 4266, 256, 273),
    ],
)
def test_a_soc_has_the_bandwidth_of_its_sheet(
    name: str,
    capability: tuple[int, int],
    clock_mhz: int,
    bus_bits: int,
    sheet_gb_s: float,
) -> None:
    """Its clock times its bus gives twice the truth, or anything at all."""
    row = next(row for row in ROWS if name in row["names"])
    soc = device(
        name,
        memory_bytes=int(row["memory_gb"][0] * 1e9),
        compute_capability=capability,
        max_memory_clock_hz=clock_mhz * 1_000_000,
        memory_bus_bits=bus_bits,
        integrated=True,
    )

    assert gb_s(find_peaks(soc)) == sheet_gb_s


@pytest.mark.parametrize(
    "facts", [{"integrated": True}, {"compute_capability": (12, 1)}]
)
def test_an_unknown_soc_has_no_bandwidth(facts: dict[str, Any]) -> None:
    """Whether the driver says that it is integrated or its capability does."""
    peaks = find_peaks(h200(name="a SoC", **facts))

    assert label(peaks, "dram") == "unavailable"


def test_a_soc_in_a_smaller_power_mode_is_computed_anew() -> None:
    """8 of 16 multiprocessors: the sheet's bandwidth holds, its FLOP/s do not."""
    orin = device(
        "Orin",
        memory_bytes=64_000_000_000,
        sm_count=8,
        compute_capability=(8, 7),
        rated_clock_hz=1_300_000_000,
    )
    peaks = find_peaks(orin)

    assert (gb_s(peaks), label(peaks, "dram")) == (204.8, "datasheet")
    assert label(peaks, "fp32") == "estimated"
    assert tflop_s(peaks, "fp32") == pytest.approx(5.3 / 2, rel=0.01)


def test_another_module_of_the_same_name_is_not_this_one() -> None:
    """Every Orin is called Orin: its memory says which it is."""
    nano = device("Orin", memory_bytes=8_000_000_000, compute_capability=(8, 7))
    unknown = device("Orin", compute_capability=(8, 7))

    assert "memory" in find_peaks(nano).of_memory("dram").source
    assert label(find_peaks(nano), "dram") == "unavailable"
    assert (
        "memory that distinguishes them" in find_peaks(unknown).of_dtype("fp32").source
    )


@pytest.mark.parametrize(
    ("profile", "sm_count", "memory_part"),
    [
        ("1g.10gb", 14, 1 / 8),
        ("1g.20gb", 14, 2 / 8),
        ("2g.20gb", 28, 2 / 8),
        ("3g.40gb", 42, 4 / 8),
        ("4g.40gb", 56, 4 / 8),
        ("7g.80gb", 98, 8 / 8),
        ("1g.10gb+me", 14, 1 / 8),
    ],
)
def test_a_slice_has_its_part_of_the_peaks(
    profile: str, sm_count: int, memory_part: float
) -> None:
    """FLOP/s by multiprocessors, bandwidth by slices of memory, labelled estimated."""
    a100 = {
        "memory_bytes": 85_899_345_920,
        "compute_capability": (8, 0),
        "max_memory_clock_hz": 1_593_000_000,
        "memory_bus_bits": 5120,
    }
    name = "NVIDIA A100-SXM4-80GB"
    whole = find_peaks(device(name, sm_count=108, **a100))
    part = find_peaks(
        device(f"{name} MIG {profile}", sm_count=sm_count, mig_profile=profile, **a100)
    )

    assert tflop_s(part, "bf16") == pytest.approx(312 * sm_count / 108)
    assert gb_s(part) == pytest.approx(gb_s(whole) * memory_part)
    assert label(whole, "dram") == "detected"
    assert {label(part, "bf16"), label(part, "dram")} == {"estimated"}
    assert profile in part.of_memory("dram").source
    assert part.l2_bytes == 40 * 2**20 * memory_part


def test_a_slices_part_is_weaker_than_a_declaration() -> None:
    """What was detected of the whole GPU is an estimate for a part of it."""
    part = h200(name="NVIDIA H200 MIG 1g.18gb", mig_profile="1g.18gb", sm_count=16)
    peaks = find_peaks(part, declared={"dram": 5e11})

    assert (label(peaks, "dram"), gb_s(peaks)) == ("declared", 500)
    assert peaks.notes == ()


def test_a_split_gpu_has_no_peaks_of_its_own() -> None:
    """Which slice the process uses is not known: the whole GPU's would be wrong."""
    peaks = find_peaks(h200(mig=True), declared={"bf16": 1e14})

    assert label(peaks, "dram") == "unavailable"
    assert "slices" in peaks.of_memory("dram").source
    assert label(peaks, "bf16") == "declared"


def test_a_slice_of_an_unknown_gpu_has_no_bandwidth() -> None:
    """Which part of its memory it has cannot be told."""
    part = h200(name="NVIDIA H299 MIG 1g.18gb", mig_profile="1g.18gb", sm_count=16)
    peaks = find_peaks(part)

    assert label(peaks, "dram") == "unavailable"
    assert label(peaks, "fp32") == "unavailable"


@pytest.mark.parametrize(
    ("name", "memory_gib", "known"),
    [
        ("NVIDIA GeForce RTX 3060", 12, True),
        ("NVIDIA GeForce RTX 3060", 8, False),
        ("NVIDIA GeForce RTX 3080", 10, True),
        ("NVIDIA GeForce RTX 3080", 12, False),
        ("NVIDIA GeForce RTX 3080", None, False),
    ],
)
def test_a_name_that_two_boards_have_is_settled_by_memory(
    name: str, memory_gib: int | None, known: bool
) -> None:
    """The 8 GB board is not the 12 GB one, and a board of unknown memory is neither."""
    memory_bytes = None if memory_gib is None else memory_gib * 2**30
    peaks = find_peaks(device(name, memory_bytes=memory_bytes))

    assert (label(peaks, "fp32") != "unavailable") is known


@pytest.mark.parametrize(
    ("clock_mhz", "known"), [(10_501, True), (10_001, False), (None, False)]
)
def test_a_name_that_two_boards_have_is_settled_by_their_clock(
    clock_mhz: int | None, known: bool
) -> None:
    """An RTX 4070 has GDDR6X (504 GB/s) or GDDR6 (480 GB/s), and one name."""
    board = device(
        "NVIDIA GeForce RTX 4070",
        memory_bytes=12 * 2**30,
        memory_bus_bits=192,
        max_memory_clock_hz=clock_mhz and clock_mhz * 1_000_000,
    )

    assert (label(find_peaks(board), "bf16") != "unavailable") is known


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"sm_count": 114}, "114 multiprocessors"),
        ({"memory_bus_bits": 5120}, "5120 bits of memory bus"),
        ({"memory_bytes": 96_000_000_000}, "96.0 GB of memory"),
    ],
)
def test_what_contradicts_the_sheet_is_another_board(
    facts: dict[str, Any], said: str
) -> None:
    """The name alone does not make a board: the reason says what does not fit."""
    peaks = find_peaks(h200(rated_clock_hz=None, **facts))

    assert label(peaks, "bf16") == "unavailable"
    assert said in peaks.of_dtype("bf16").source


def test_a_board_by_another_maker_is_told() -> None:
    """RTX 4090s are rated 2520 or 2535 MHz and more; the sheet's peaks assume 2520."""
    board = device(
        "NVIDIA GeForce RTX 4090",
        memory_bytes=25_757_220_864,
        rated_clock_hz=2_610_000_000,
    )
    (note,) = find_peaks(board).notes

    assert "2610 MHz" in note
    assert "2520 MHz" in note


@pytest.mark.parametrize(("watts", "told"), [(700.0, False), (500.0, True)])
def test_a_lower_power_limit_is_told(watts: float, told: bool) -> None:
    """Peaks assume clocks that a throttled board does not sustain."""
    notes = find_peaks(h200(power_limit_watts=watts)).notes

    assert any("500 W" in note and "700 W" in note for note in notes) is told


@pytest.mark.parametrize(
    ("name", "mib"),
    [("NVIDIA H200", 60), ("NVIDIA A100 80GB PCIe", 40), ("NVIDIA B200", 126)],
)
def test_the_l2_is_the_drivers(name: str, mib: float) -> None:
    """Databases say 50, 80 and 50; the live driver's word goes before the table's."""
    assert find_peaks(device(name)).l2_bytes == mib * 2**20
    assert find_peaks(device(name, l2_bytes=12345)).l2_bytes == 12345


@pytest.mark.parametrize(
    ("name", "clock_khz", "bus_bits", "expected"),
    [
        ("Tesla V100-SXM2-16GB", 877_000, 4096, 898.0),
        ("NVIDIA A100-SXM4-40GB", 1_215_000, 5120, 1555.2),
        ("NVIDIA H100 80GB HBM3", 2_619_000, 5120, 3352.3),
        ("NVIDIA B200", 3_996_000, 7680, 7672.3),
        ("NVIDIA RTX A6000", 8_001_000, 384, 768.1),
        ("NVIDIA GeForce RTX 3090", 9_751_000, 384, 936.1),
        ("NVIDIA GeForce RTX 5090", 14_001_000, 512, 1792.1),
    ],
)
def test_the_bandwidth_is_twice_the_drivers_clock(
    name: str, clock_khz: int, bus_bits: int, expected: float
) -> None:
    """For HBM and GDDR alike, and within 1 % of what each sheet prints."""
    board = device(name, max_memory_clock_hz=clock_khz * 1000, memory_bus_bits=bus_bits)
    detected, printed = find_peaks(board), find_peaks(device(name))

    assert label(detected, "dram") == "detected"
    assert gb_s(detected) == pytest.approx(expected, abs=0.06)
    assert gb_s(detected) == pytest.approx(gb_s(printed), rel=0.01)


def test_sparse_rates_are_not_in_the_table() -> None:
    """H100: 1979 TFLOP/s in BF16 is the sheet's figure with sparsity; dense is half."""
    assert tflop_s(find_peaks(device("NVIDIA H100 80GB HBM3")), "bf16") < 1000
    assert tflop_s(find_peaks(device("NVIDIA L4")), "bf16") == 121
    assert tflop_s(find_peaks(device("NVIDIA B300")), "int8") == 153.5
