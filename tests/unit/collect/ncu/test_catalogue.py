"""collect.ncu.catalogue: names of metrics, their chips and their passes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.chips import need_library
from pytest_gpuperf.collect.cupti.chips import (
    CAPABILITIES,
    MetricType,
    chip_entries,
    chip_here,
    chip_named,
    chip_of_capability,
)
from pytest_gpuperf.collect.ncu.catalogue import Catalogue
from pytest_gpuperf.collect.ncu.launches import read_capture
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.launch import CapturedLaunch

PREFIXES = ("group:", "breakdown:", "pmsampling:")
DRAM = "dram__bytes.sum"
HIT_RATE = "lts__t_sector_hit_rate.pct"
THROUGHPUT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"


def of(chip: str) -> Catalogue:
    """Return a chip's catalogue."""
    return Catalogue(chip, need_library())


@pytest.mark.parametrize("text", ["GH100", "gh100", " Gh100 ", "sm_90", "sm_90a"])
def test_a_chip_is_named_in_any_case_or_by_capability(text: str) -> None:
    """A chip's name has no case, and one capability with one chip names it too."""
    assert of(text).chip == "GH100"


def test_chips_with_the_same_metrics_share_a_capability() -> None:
    """A capability names a chip where all of its chips have the same metrics."""
    source = need_library()
    assert chip_named("sm_89", source) == "AD102"
    assert chip_of_capability((8, 6), source) == "GA102"
    with pytest.raises(ConfigError, match="TU116") as caught:
        chip_named("sm_75", source)
    assert "do not have the same metrics" in caught.value.message


@pytest.mark.parametrize("text", ["GH10", "h100", "sm_99", "", "9.0"])
def test_an_unknown_chip_is_refused(text: str) -> None:
    """What is not a chip is refused with where to find one."""
    with pytest.raises(ConfigError, match="that gpuperf metrics chips prints"):
        of(text)


def test_a_near_miss_of_a_chip_is_suggested() -> None:
    """A chip that was almost named is named in the remedy."""
    with pytest.raises(ConfigError) as caught:
        of("GH10")
    assert "GH100" in caught.value.remedy


def test_the_chip_of_this_machine_is_that_of_its_first_gpu() -> None:
    """A GPU's compute capability names its chip; without a GPU there is none."""
    need_library()
    hopper = Device(
        index=0, uuid="GPU-1", name="NVIDIA H200", compute_capability=(9, 0)
    )
    turing = replace(hopper, compute_capability=(7, 5))
    assert chip_here([hopper, turing]) == "GH100"
    assert chip_here([]) is None
    assert chip_here([replace(hopper, compute_capability=None)]) is None
    with pytest.raises(ConfigError, match="sm_75"):
        chip_here([turing])


def test_every_chip_has_metrics_of_each_kind() -> None:
    """Each chip is listed once, with its capability where a source says it."""
    entries = {each.name: each for each in chip_entries(need_library())}
    assert entries["GH100"].capability == (9, 0)
    for entry in entries.values():
        assert (
            entry.counter_count > 1000 > entry.ratio_count > entry.throughput_count > 0
        )
    capabilities = {each.capability for each in entries.values()} - {None}
    assert capabilities <= CAPABILITIES.keys()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (DRAM, "counter"),
        (HIT_RATE, "ratio"),
        (THROUGHPUT, "throughput"),
        ("dram__bytes", "base"),
        ("launch__registers_per_thread", "ncu"),
        ("device__attribute_multiprocessor_count", "ncu"),
        ("profiler__replayer_passes", "ncu"),
        ("smsp__pcsamp_warps_issue_stalled_barrier", "ncu"),
        ("sass__inst_executed_per_opcode", "ncu"),
        ("inst_executed", "ncu"),
        ("thread_inst_executed_true", "ncu"),
        ("memory_l1_wavefronts_shared_ideal", "ncu"),
        ("derived__avg_thread_executed", "ncu"),
        ("sm__maximum_warps_per_active_cycle_pct", "ncu"),
        ("group:memory__chart", "ncu"),
        (f"breakdown:{THROUGHPUT}", "ncu"),
        ("pmsampling:sm__cycles_active.avg", "ncu"),
    ],
)
def test_names_of_the_hardware_and_of_the_tool_are_known(name: str, kind: str) -> None:
    """A name is known by the library, or by the family that Nsight Compute makes."""
    checked = of("GH100").check(name)
    assert (checked.known, checked.kind, checked.suggestions) == (True, kind, ())


@pytest.mark.parametrize(
    ("chip", "name", "suggested"),
    [
        ("GB202", "dram__bytes_read.sum", "dram__bytes_op_read.sum"),
        ("GB202", "dram__bytes_write.sum", "dram__bytes_op_write.sum"),
        ("GH100", "dram__bytes_op_read.sum", "dram__bytes_read.sum"),
        ("GH100", "dram__byts.sum", "dram__bytes.sum"),
        ("GH100", "dram__bytes.summ", "dram__bytes.sum"),
        ("GH100", "lts__t_sector_hit_rate.sum", "lts__t_sector_hit_rate.pct"),
        ("GH100", "sm__throughput.avg", THROUGHPUT),
        ("GH100", "sm__throughputs.avg.pct_of_peak_sustained_elapsed", THROUGHPUT),
        ("GH100", "breakdown:sm__thruoghput", "breakdown:sm__throughput"),
    ],
)
def test_what_was_meant_is_suggested_first(
    chip: str, name: str, suggested: str
) -> None:
    """An unknown name comes with its successor, or what it was mistyped from."""
    checked = of(chip).check(name)
    assert not checked.known
    assert suggested in checked.suggestions
    assert suggested in checked.explanation


@pytest.mark.parametrize("name", ["time", "dram.bytes", "registers"])
def test_a_metric_of_ours_is_told_as_what_it_is(name: str) -> None:
    """It is not a counter of any chip, and no counter was meant by it."""
    checked = of("GH100").check(name)
    assert (checked.known, checked.kind) == (False, "gpuperf")
    assert checked.explanation.startswith("a metric of gpuperf; limits")


@pytest.mark.parametrize("name", ["tim", "bytes", "cycles.sum"])
def test_a_word_alone_is_no_name_that_was_meant(name: str) -> None:
    """Dozens of counters hold it: only what is spelled alike is suggested."""
    assert of("GH100").check(name).suggestions == ()


def test_a_suggestion_is_a_metric_of_the_chip() -> None:
    """Nothing is suggested that would be refused in its turn."""
    catalogue = of("GB202")
    for name in (
        "dram__bytes_read.sum",
        "sm__inst_exected.avg",
        "foo__bar",
        "l1tex.pct",
    ):
        for suggestion in catalogue.check(name).suggestions:
            assert catalogue.check(suggestion).known, suggestion


def test_a_chip_without_a_unit_says_so() -> None:
    """Where the memory is the host's, no name of DRAM is mistyped: there are none."""
    checked = of("GB20B").check(DRAM)
    assert checked.note.startswith(
        "GB20B has no dram__ metrics (its memory is the host's)"
    )
    assert "GH100" in checked.note


def test_where_else_a_name_is_known_is_said() -> None:
    """A name that other chips have is told from one that none has."""
    catalogue = of("GB202")
    assert "unlike TU102, GA100" in catalogue.check("dram__bytes_read.sum").note
    assert catalogue.check("dram__bites.sum").note == "GB202 has no such metric"


@settings(max_examples=40, deadline=None)
@given(
    name=st.one_of(
        st.text(max_size=40),
        st.from_regex(r"[a-z]{1,5}__[a-z_.:]{0,40}", fullmatch=True),
        st.from_regex(
            r"(breakdown:|group:|sm__throughput\.)[a-z_.]{0,20}", fullmatch=True
        ),
    )
)
def test_any_text_is_either_known_or_explained(name: str) -> None:
    """No text breaks the check, and what is unknown has a sentence."""
    checked = of("GH100").check(name)
    assert checked.known or checked.note


def test_metrics_are_listed_searched_and_described() -> None:
    """A list has each base once, a search has all words, a description everything."""
    catalogue = of("GH100")
    ratios = list(catalogue.entries(MetricType.RATIO))
    assert {each.kind for each in ratios} == {"ratio"}
    every = [each.base for each in catalogue.entries()]
    assert len(set(every)) == len(every) > len(ratios)
    found = catalogue.search(["DRAM", "read"])
    assert "dram__bytes_read" in {each.base for each in found}
    assert len(found) < len(catalogue.search(["dram"]))
    assert catalogue.search(["no", "such", "words"]) == []
    described = catalogue.describe(DRAM)
    assert (described.base, described.unit, described.passes) == (
        "dram__bytes",
        "byte",
        1,
    )
    assert ".sum" in described.endings
    with pytest.raises(ConfigError, match="no foo__ metrics"):
        catalogue.describe("foo__bar.sum")
    with pytest.raises(ConfigError, match="made by Nsight Compute"):
        catalogue.describe("launch__grid_size")


def test_the_cost_of_counters_is_one_run_more_than_their_passes() -> None:
    """Nsight Compute runs a launch once more than the counters need."""
    cost = of("GH100").cost([DRAM, THROUGHPUT, THROUGHPUT])
    assert (cost.passes, cost.replays) == (8, 9)
    assert cost.names == (DRAM, THROUGHPUT)
    assert dict(cost.alone) == {DRAM: 1, THROUGHPUT: 8}


def test_names_that_are_not_counted_cost_one_run() -> None:
    """What is known without counting needs no pass, and the launch still runs."""
    cost = of("GH100").cost(["launch__grid_size", "device__attribute_l2s_per_fbp"])
    assert (cost.passes, cost.replays, dict(cost.alone)) == (0, 1, {})


@pytest.mark.parametrize(
    "name",
    ["inst_executed", "sm__sass_thread_inst_executed_op_ffma_pred_on.sum"],
)
def test_source_counters_cost_three_more(name: str) -> None:
    """A counter of source lines is collected in passes of its own."""
    cost = of("GH100").cost([DRAM, name])
    assert cost.replays == cost.passes + 3


@pytest.mark.parametrize(
    "name", ["group:memory__chart", "pmsampling:sm__cycles_active"]
)
def test_what_the_tool_expands_has_no_number(name: str) -> None:
    """Where nobody knows the passes none are said, and the sentence names the cause."""
    cost = of("GH100").cost([DRAM, name])
    assert (cost.passes, cost.replays) == (1, None)
    assert name in cost.note


def test_a_breakdown_costs_what_its_throughput_does() -> None:
    """The parts of a throughput are counted with it."""
    catalogue = of("GH100")
    broken_down = catalogue.cost([f"breakdown:{THROUGHPUT}"])
    assert broken_down.passes == catalogue.cost([THROUGHPUT]).passes
    assert broken_down.replays == broken_down.passes + 1


def test_a_metric_that_no_kernel_gives_is_set_apart() -> None:
    """What cannot be scheduled is named, and the others are counted without it."""
    catalogue = of("GB202")
    name = "lts__t_requests_srcnode_gpc_realtime.sum"
    if not catalogue.check(name).known:
        pytest.skip(f"this version has no {name}")
    cost = catalogue.cost([DRAM, name])
    assert cost.passes == 1
    assert list(cost.refused) == [name]
    assert catalogue.grouped({"a": [name], "b": [DRAM]})


def test_all_unknown_names_are_told_at_once() -> None:
    """The error for a list names each of its mistakes."""
    with pytest.raises(ConfigError) as caught:
        of("GH100").cost(["foo__bar.sum", DRAM, "dram__bytes.summ"])
    assert "foo__bar.sum" in caught.value.message
    assert "dram__bytes.summ" in caught.value.message
    assert f"{DRAM}:" not in caught.value.message


def test_tests_share_a_start_where_it_costs_no_pass() -> None:
    """A list joins a longer one whose passes have room for it."""
    groups = of("GH100").grouped(
        {"a": [DRAM], "b": [THROUGHPUT], "c": [DRAM, HIT_RATE], "d": [DRAM]}
    )
    assert sorted(test for group in groups for test in group.tests) == list("abcd")
    assert groups[0].cost.passes == 8
    assert set(groups[0].tests) >= {"a", "b", "d"}


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_no_test_pays_more_than_the_longest_list_of_its_group(
    data: st.DataObject,
) -> None:
    """Grouping adds no pass: a group costs what one list in it cost alone."""
    catalogue = of("GA100")
    names = [f"{each.base}.sum" for each in catalogue.entries(MetricType.COUNTER)][::40]
    lists = st.lists(st.sampled_from(names), min_size=1, max_size=4)
    wanted = data.draw(st.dictionaries(st.text("abc", min_size=1), lists, max_size=5))
    groups = catalogue.grouped(wanted)
    assert sorted(test for group in groups for test in group.tests) == sorted(wanted)
    for group in groups:
        alone = {catalogue.cost(wanted[test]).passes for test in group.tests}
        assert group.cost.passes in alone
        assert {name for test in group.tests for name in wanted[test]} == set(
            group.cost.names
        )


@pytest.mark.parametrize(
    ("file", "chip", "gone"),
    [
        ("mojo_gtx1660ti", "TU116", set()),
        ("mistic_154actions_a100", "GA100", set()),
        ("cutlass_fused_gemm_nvtx_a100", "GA100", set()),
        ("indexspaces_julia_a40", "GA102", set()),
        ("sglang_incomplete_last_h800", "GH100", {"lts__gcomp_input_sectors.sum"}),
        ("nukexc_kokkos_gh200", "GH100", set()),
    ],
)
def test_names_of_real_reports_are_known(file: str, chip: str, gone: set[str]) -> None:
    """What Nsight Compute put into a report is known, but for what was abolished."""
    catalogue = of(chip)
    names = {name for launch in launches_of(file) for name in launch.metrics}
    assert {name for name in names if not catalogue.check(name).known} <= gone


@pytest.mark.parametrize(
    ("file", "chip"),
    [
        ("mojo_gtx1660ti", "TU116"),
        ("mistic_154actions_a100", "GA100"),
        ("nukexc_kokkos_gh200", "GH100"),
    ],
)
def test_real_replays_are_foretold(file: str, chip: str) -> None:
    """The runs of a launch that Nsight Compute reports are those of its metrics."""
    launch = launches_of(file)[0]
    catalogue = of(chip)
    names = [name for name in launch.metrics if not name.startswith(PREFIXES)]
    known = [name for name in names if catalogue.check(name).known]
    reported = launch.metrics["profiler__replayer_passes"]
    assert catalogue.cost(known).replays == reported.value


def launches_of(file: str) -> Sequence[CapturedLaunch]:
    """Return the launches of a report of others; without it the test is skipped."""
    folder = os.environ.get("GPUPERF_CAPTURES", "")
    path = Path(folder) / f"{file}.ncu-rep"
    if not folder or not path.exists():
        pytest.skip("GPUPERF_CAPTURES names no folder with reports of others")
    if find_spec("ncu_report") is None:  # to import it would leave it here for others
        pytest.skip("needs the package ncu-report")
    capture = read_capture(str(path), runner=ProcessRunner(), metrics=None)
    return capture.ranges[0].launches
