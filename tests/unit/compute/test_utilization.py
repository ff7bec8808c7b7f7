"""compute.utilization: scores, classes and health, digit for digit."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute import utilization
from pytest_gpuperf.compute.utilization import (
    INPUTS,
    NEEDED,
    PRESETS,
    asserted_class,
    compute,
    graphics_percent,
    parse_weights,
    warning_celsius,
)
from pytest_gpuperf.errors import ConfigError, MetricUnavailableError, RecordError
from pytest_gpuperf.model import Health, WorkloadClass
from pytest_gpuperf.model.frozen import replace
from unit.compute import vectors
from unit.compute.telemetry import THRESHOLDS, full, near, record, records

VECTORS = vectors.vectors()
FINITE = [v for v in VECTORS if "NaN" not in v["input"].values()]
REFUSED = [v for v in VECTORS if "NaN" in v["input"].values()]
HIGHEST = 1.0


def named(vector: dict[str, Any]) -> str:
    return str(vector["id"])


def class_of(**readings: float) -> WorkloadClass:
    return compute(full(**readings)).workload_class


def test_all_vectors_are_there() -> None:
    """The file is whole, and only one of its vectors is refused."""
    assert len(VECTORS) == 101
    assert [v["id"] for v in REFUSED] == ["kp-0670"]


@pytest.mark.parametrize("vector", FINITE, ids=named)
def test_a_vector_is_reproduced(vector: dict[str, Any]) -> None:
    """Every number is the same double, in contract and out of it."""
    record = vectors.record_of(vector)
    expected = vector["expected"]
    total = expected["memory_total_mebibytes"]

    found = compute(
        record,
        previous=vectors.previous_of(vector),
        weights=tuple(vector["weights"]),
        preset_name=vector["preset_name_override"],
        model_name=vector["model_name"],
    )

    assert found.real_util == expected["real_util"]
    assert graphics_percent(record) == expected["graphics_engine_percent"]
    assert found.preset_name == expected["preset_name"]
    assert found.weights == tuple(expected["weights"])
    assert found.workload_class.name == expected["workload_class"]
    assert found.workload_class.label == expected["workload_label"]
    assert found.bottleneck.value == expected["bottleneck"]
    assert found.health.value == expected["health"]
    assert (
        warning_celsius(vector["model_name"]) == expected["warning_temperature_celsius"]
    )
    assert found.memory_total_bytes == (None if total is None else total * vectors.MIB)
    assert found.memory_used_fraction == expected["memory_used_fraction"]
    assert found.pcie_replay_rate_per_s == expected["pcie_replay_rate_per_second"]
    assert str(found.gpu_index) == expected["gpu_id"]


@pytest.mark.parametrize("vector", REFUSED, ids=named)
def test_a_reading_that_is_not_finite_is_refused(vector: dict[str, Any]) -> None:
    """Deviation: what would end as 100 % elsewhere never becomes a record here."""
    with pytest.raises(RecordError) as caught:
        vectors.record_of(vector)
    assert caught.value.path == "telemetry.pcie_rx_bytes_per_s"


BUSY = {"graphics_active_fraction": 1.0}  # never idle, never low
BOUNDARIES = [
    ("IDLE", "dram_active_fraction", 5, {}, False),
    ("IDLE", "graphics_active_fraction", 5, {}, False),
    (
        "TENSOR_HEAVY_COMPUTE",
        "tensor_active_fraction",
        50,
        {"sm_active_fraction": 0.6},
        True,
    ),
    (
        "TENSOR_HEAVY_COMPUTE",
        "sm_active_fraction",
        60,
        {"tensor_active_fraction": 0.5},
        True,
    ),
    ("TENSOR_COMPUTE", "tensor_active_fraction", 15, {"sm_active_fraction": 0.4}, True),
    (
        "TENSOR_COMPUTE",
        "sm_active_fraction",
        40,
        {"tensor_active_fraction": 0.15},
        True,
    ),
    ("FP64_HPC_COMPUTE", "fp64_active_fraction", 20, {"sm_active_fraction": 0.5}, True),
    ("FP64_HPC_COMPUTE", "sm_active_fraction", 50, {"fp64_active_fraction": 0.2}, True),
    ("IO_OR_DATA_LOADING", "memory_busy_fraction", 40, BUSY, True),
    (
        "IO_OR_DATA_LOADING",
        "sm_active_fraction",
        30,
        {"memory_busy_fraction": 0.4},
        False,
    ),
    ("MEMORY_BOUND", "dram_active_fraction", 50, {"sm_active_fraction": 0.3}, True),
    ("MEMORY_BOUND", "sm_active_fraction", 50, {"dram_active_fraction": 0.5}, False),
    ("COMPUTE_HEAVY", "sm_active_fraction", 80, BUSY, True),
    ("COMPUTE_ACTIVE", "sm_active_fraction", 50, BUSY, True),
    ("MEMORY_ACTIVE", "dram_active_fraction", 40, {"sm_active_fraction": 0.3}, True),
    (
        "BUSY_LOW_SM_USE",
        "graphics_active_fraction",
        40,
        {"dram_active_fraction": 0.2},
        True,
    ),
    ("BUSY_LOW_SM_USE", "sm_active_fraction", 25, BUSY, False),
    ("LOW_UTILIZATION", "graphics_active_fraction", 15, {}, False),
    (
        "LOW_UTILIZATION",
        "sm_active_fraction",
        15,
        {"graphics_active_fraction": 0.1},
        False,
    ),
    (
        "LOW_UTILIZATION",
        "dram_active_fraction",
        15,
        {"graphics_active_fraction": 0.1},
        False,
    ),
]


@pytest.mark.parametrize(
    ("name", "reading", "percent", "others", "from_it"), BOUNDARIES
)
def test_a_threshold_is_where_it_is(
    name: str, reading: str, percent: int, others: dict[str, float], from_it: bool
) -> None:
    """A class holds from its threshold, or below it, and on one side only."""
    below, exact, above = (class_of(**{**others, reading: f}) for f in near(percent))

    # for these the last double below times 100 is the threshold itself
    reached_below = percent in {5, 20, 40, 80}
    assert (exact.name == name) is from_it
    assert above is exact
    assert (below is exact) is reached_below


@pytest.mark.parametrize("percent", THRESHOLDS)
def test_a_threshold_in_percent_is_a_double(percent: int) -> None:
    """The fraction of a threshold times 100 is the threshold, so that >= means it."""
    assert percent / 100 * 100.0 == percent


@pytest.mark.parametrize("reading", ["pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"])
def test_one_direction_of_pcie_makes_io(reading: str) -> None:
    """A gigabyte a second is io; the sum of two directions below it is not."""
    assert class_of(**{reading: 1e9}) is WorkloadClass.IO_OR_DATA_LOADING
    assert class_of(**{reading: math.nextafter(1e9, 0)}) is WorkloadClass.IDLE
    assert (
        class_of(pcie_tx_bytes_per_s=6e8, pcie_rx_bytes_per_s=6e8) is WorkloadClass.IDLE
    )


def test_a_score_of_five_is_not_idle() -> None:
    """The score decides with the two activities, by the same threshold."""
    alone = (1.0, 0.0, 0.0, 0.0)

    def scored(sm: float) -> WorkloadClass:
        return compute(full(sm_active_fraction=sm), weights=alone).workload_class

    assert scored(0.049) is WorkloadClass.IDLE
    assert scored(0.05) is WorkloadClass.LOW_UTILIZATION


def test_every_class_can_be_had() -> None:
    """Each rule is reached by some reading."""
    found = {compute(vectors.record_of(v)).workload_class for v in FINITE}

    assert found == set(WorkloadClass)


@given(one=records(), before=st.none() | records())
def test_every_record_has_exactly_one_class(
    one: utilization.CanonicalRecord, before: utilization.CanonicalRecord | None
) -> None:
    """compute is total, its score is bounded, and its bottleneck is that of its class."""
    found = compute(one, previous=before)

    assert found.workload_class in WorkloadClass
    assert found.bottleneck is found.workload_class.bottleneck
    assert (found.gpu_index, found.gpu_uuid) == (one.gpu_index, one.gpu_uuid)
    assert 0 <= found.real_util <= 100


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(
    readings=st.dictionaries(
        st.sampled_from(sorted(set(INPUTS) - {"row_remap_failed"})), finite
    )
)
def test_no_finite_reading_is_too_much(readings: dict[str, float]) -> None:
    """A fraction far outside its range gives an answer all the same."""
    assert 0 <= compute(record(**readings)).real_util <= 100


weights = st.tuples(*[st.floats(0, 1)] * 4)


@given(one=records(), weighed=weights)
def test_weights_decide_idle_alone(
    one: utilization.CanonicalRecord, weighed: tuple[float, float, float, float]
) -> None:
    """Two weights disagree on a class only where one of them calls it idle."""
    mine, theirs = compute(one, weights=weighed), compute(one)

    assert mine.workload_class is theirs.workload_class or WorkloadClass.IDLE in {
        mine.workload_class,
        theirs.workload_class,
    }


@given(one=records(), name=st.sampled_from([*NEEDED, "graphics_active_fraction"]))
def test_more_of_anything_never_lowers_the_score(
    one: utilization.CanonicalRecord, name: str
) -> None:
    """The score grows with each reading that it weighs, or stays."""
    more = replace(one, **{name: HIGHEST})

    assert compute(more).real_util >= compute(one).real_util


@given(one=records())
def test_the_directions_of_pcie_count_the_same(
    one: utilization.CanonicalRecord,
) -> None:
    """Sent and received may change places."""
    swapped = replace(
        one,
        pcie_rx_bytes_per_s=one.pcie_tx_bytes_per_s,
        pcie_tx_bytes_per_s=one.pcie_rx_bytes_per_s,
    )

    assert compute(swapped).workload_class is compute(one).workload_class


@given(one=records(), power=st.integers(0, 10))
def test_the_unit_of_memory_is_of_no_account(
    one: utilization.CanonicalRecord, power: int
) -> None:
    """The used fraction is the same in bytes as in any power of two of them."""
    kinds = ("used", "free", "reserved", "total")
    parts = [f"memory_{kind}_bytes" for kind in kinds]
    scaled: dict[str, Any] = {
        name: None if getattr(one, name) is None else getattr(one, name) * 2**power
        for name in parts
    }

    assert (
        compute(replace(one, **scaled)).memory_used_fraction
        == compute(one).memory_used_fraction
    )


def test_zero_memory_has_a_total_and_no_fraction() -> None:
    """Nothing of nothing is not a fraction; a missing part leaves no total either."""
    unstated = {"memory_total_bytes": None, "memory_used_fraction": None}
    found = compute(full())
    partly = compute(full(memory_reserved_bytes=None, **unstated))
    least = compute(full(memory_used_bytes=1.0))

    assert least.memory_used_fraction == 1.0
    assert (found.memory_total_bytes, found.memory_used_fraction) == (0.0, None)
    assert (partly.memory_total_bytes, partly.memory_used_fraction) == (None, None)


@pytest.mark.parametrize(
    ("readings", "total", "fraction"),
    [
        # The parts are exact, so what the source states besides them is not needed.
        (
            {"used": 30.0, "free": 60.0, "reserved": 10.0, "total": 99.0},
            100.0,
            0.3,
        ),
        ({"used": 30.0, "free": 60.0, "total": 120.0}, 120.0, 0.25),
        ({"used": 30.0, "total": 0.0}, 0.0, None),
        ({"used": 30.0}, None, 0.9),
        ({"total": 120.0}, 120.0, 0.9),
    ],
)
def test_a_stated_total_or_fraction_stands_in(
    readings: dict[str, float], total: float | None, fraction: float | None
) -> None:
    """Where a part of the memory is absent, first the total, then the fraction."""
    given = {f"memory_{kind}_bytes": value for kind, value in readings.items()}
    found = compute(record(memory_used_fraction=0.9, **given))

    assert (found.memory_total_bytes, found.memory_used_fraction) == (total, fraction)


def test_replays_of_another_host_are_not_the_previous_ones() -> None:
    """GPU 0 of one host is not GPU 0 of another one."""
    before = record(pcie_replay_count=1, hostname="a", monotonic_s=0.0)
    later = record(pcie_replay_count=5, hostname="b")

    assert compute(later, previous=before).health is Health.OK
    assert compute(replace(later, hostname="a"), previous=before).health is Health.WARN


@pytest.mark.parametrize(
    ("before", "after", "elapsed_s", "rate"),
    [
        (3, 3, 1.0, 0.0),
        (3, 5, 0.5, 4.0),
        (5, 3, 1.0, None),
        (3, 5, 0.0, None),
        (3, 5, -1.0, None),
        (None, 5, 1.0, None),
        (3, None, 1.0, None),
    ],
)
def test_a_replay_rate_needs_two_counts_in_order(
    before: int | None, after: int | None, elapsed_s: float, rate: float | None
) -> None:
    """What two readings do not say is None, never 0; no change is 0."""
    found = compute(
        full(pcie_replay_count=after, monotonic_s=10.0 + elapsed_s),
        previous=full(pcie_replay_count=before, monotonic_s=10.0),
    )

    assert found.pcie_replay_rate_per_s == rate
    assert found.health is (Health.WARN if rate else Health.OK)


@pytest.mark.parametrize("other", [{"gpu_index": 1}, {"gpu_uuid": "GPU-1"}])
def test_another_gpus_reading_gives_no_rate(other: dict[str, Any]) -> None:
    """The counts of two GPUs, or of two instances of one, have no difference."""
    now = full(pcie_replay_count=9, monotonic_s=11.0)
    before = full(pcie_replay_count=3, monotonic_s=10.0)

    assert compute(now, previous=before).pcie_replay_rate_per_s == 6.0
    found = compute(now, previous=replace(before, **other))
    assert (found.pcie_replay_rate_per_s, found.health) == (None, Health.OK)


@pytest.mark.parametrize("wrong", ["1", None, math.nan, 10**400])
def test_weights_that_are_no_numbers_are_refused(wrong: Any) -> None:
    """By their name, before anything is scored."""
    with pytest.raises(RecordError) as raised:
        compute(full(), weights=(wrong, 0.0, 0.0, 0.0))

    assert raised.value.path == "weights"


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        (None, 93.0),
        ("", 93.0),
        ("NVIDIA A100-SXM4-80GB", 93.0),
        ("nvidia h100 pcie", 95.0),
        ("NVIDIA GH200 480GB", 95.0),
        ("Quadro RTX 6000", 92.0),
        ("NVIDIA RTX A6000", 93.0),
        ("NVIDIA RTX PRO 6000", 93.0),
        ("NVIDIA H800", 93.0),
    ],
)
def test_a_product_is_hot_from_its_own_temperature(
    name: str | None, limit: float
) -> None:
    """Die and memory are held to the same limit, from it on."""
    for part in ("temperature_celsius", "memory_temperature_celsius"):
        at_it = compute(full(**{part: limit}), model_name=name)
        below = compute(full(**{part: math.nextafter(limit, 0)}), model_name=name)

        assert (at_it.health, below.health) == (Health.HOT, Health.OK)


def test_the_worst_of_health_counts() -> None:
    """A lost row is worse than replays, and replays than heat."""
    before = full(monotonic_s=0.0)
    hot = full(temperature_celsius=200.0)
    worse = replace(hot, pcie_replay_count=1)

    assert compute(hot, previous=before).health is Health.HOT
    assert compute(worse, previous=before).health is Health.WARN
    for lost in (
        {"row_remap_failed": True},
        {"uncorrectable_remapped_row_count": 1},
    ):
        broken = replace(worse, **lost)
        assert compute(broken, previous=before).health is Health.CRIT
    assert compute(full(correctable_remapped_row_count=9)).health is Health.OK


def test_a_measured_zero_is_not_absent() -> None:
    """Graphics at 0 keeps the driver's busy share out; absent, it stands in."""
    zero = record(graphics_active_fraction=0.0, gpu_busy_fraction=1.0)
    absent = record(gpu_busy_fraction=1.0)

    assert (graphics_percent(zero), graphics_percent(absent)) == (0.0, 100.0)
    assert compute(absent).real_util == 10.0
    assert compute(absent).workload_class is WorkloadClass.BUSY_LOW_SM_USE


def test_what_is_absent_is_named() -> None:
    """All of it, in one order; the stand-in only where it was asked for."""
    assert compute(full()).missing == ()
    assert compute(record()).missing == INPUTS
    assert compute(full(gpu_busy_fraction=None)).missing == ()
    assert compute(
        full(gpu_busy_fraction=None, graphics_active_fraction=None)
    ).missing == ("graphics_active_fraction", "gpu_busy_fraction")
    assert compute(full(fp32_active_fraction=None, power_watts=None)).missing == ()


@pytest.mark.parametrize("name", NEEDED)
def test_no_class_is_asserted_of_what_was_not_measured(name: str) -> None:
    """Each of the three readings is needed, and the error names the absent one."""
    found = compute(full(**{name: None}, gpu_index=3))

    with pytest.raises(MetricUnavailableError) as caught:
        asserted_class(found)

    assert caught.value.metric == "workload_class"
    assert caught.value.reason == f"{name} not measured on GPU 3"
    assert caught.value.remedy == "read the GPU by DCGM, or by GPM (Hopper and later)"


def test_all_that_was_not_measured_is_named() -> None:
    """One error names every reading that a class needs and that is absent."""
    with pytest.raises(MetricUnavailableError) as caught:
        asserted_class(compute(record()))

    assert caught.value.reason.startswith(f"{', '.join(NEEDED)} not measured")


def test_a_class_of_a_whole_record_is_asserted() -> None:
    """What else is missing does not matter."""
    readings = {**dict.fromkeys(NEEDED, 0.9), "temperature_celsius": None}

    assert (
        asserted_class(compute(record(**readings)))
        is WorkloadClass.TENSOR_HEAVY_COMPUTE
    )


@pytest.mark.parametrize("name", PRESETS)
def test_weights_are_called_after_their_preset(name: str) -> None:
    """Up to 1e-9 in each; an explicit name wins over it."""
    sm, *rest = PRESETS[name]

    def called(more: float, own: str | None = None) -> str:
        weighed: Any = (sm + more, *rest)
        return compute(record(), weights=weighed, preset_name=own).preset_name

    assert called(0.0) == called(9.9e-10) == called(-9.9e-10) == name
    assert called(1.01e-9) == called(-1.01e-9) == "custom"
    assert called(0.0, "mine") == "mine"


def test_weights_may_come_as_a_list() -> None:
    """What JSON gives is taken, and kept as a tuple."""
    weighed: Any = [0.25, 0.25, 0.25, 0.25]

    assert compute(record(), weights=weighed).weights == (0.25, 0.25, 0.25, 0.25)


@pytest.mark.parametrize(
    "weighed", [(1.0, 0.0, 0.0), (math.nan, 0.0, 0.0, 1.0), (math.inf, 0.0, 0.0, 1.0)]
)
def test_weights_are_four_finite_numbers(weighed: Any) -> None:
    """Deviation: others are refused, instead of giving a score of 100."""
    with pytest.raises(RecordError) as caught:
        compute(record(), weights=weighed)
    assert caught.value.path == "weights"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,1,1,1", (0.25, 0.25, 0.25, 0.25)),
        (" 3 ,0,, 0,1 ", (0.75, 0.0, 0.0, 0.25)),
        ("0.35,0.35,0.2,0.1", (0.35, 0.35, 0.2, 0.1)),
        ("0.35,0.35,0.2,0.1000005", (0.35, 0.35, 0.2, 0.1000005)),
        ("1.00000099,0,0,0", (1.00000099, 0.0, 0.0, 0.0)),
        ("1.00000101,0,0,0", (1.0, 0.0, 0.0, 0.0)),
        ("2,-1,0,0", (2.0, -1.0, 0.0, 0.0)),
        ("4,-2,0,0", (2.0, -1.0, 0.0, 0.0)),
    ],
)
def test_weights_of_ones_own(text: str, expected: tuple[float, ...]) -> None:
    """Blanks are dropped, and a sum that is not 1 is made 1."""
    assert parse_weights(text) == expected


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("1,1,1", ["there are 3 of them, not 4"]),
        ("a,1,nan,1,1", ["'a' is not a finite number", "'nan' is", "there are 5"]),
        ("inf,1,1,1", ["'inf' is not a finite number"]),
        ("0,0,0,0", ["their sum 0 is not a finite number above 0"]),
        ("1,-1,-1,0", ["their sum -1"]),
        ("1e308,1e308,1,1", ["their sum inf"]),
        ("", ["there are 0"]),
    ],
)
def test_all_mistakes_in_weights_are_told(text: str, mistakes: list[str]) -> None:
    """One error says everything that is wrong, and what to write."""
    with pytest.raises(ConfigError, match="give four numbers") as caught:
        parse_weights(text)
    assert caught.value.message.startswith(f"weights {text!r}: {mistakes[0]}")
    assert all(f"; {mistake}" in caught.value.message for mistake in mistakes[1:])


def test_an_unknown_preset_is_a_key_error() -> None:
    """Names are case-sensitive, and the presets cannot be changed."""
    with pytest.raises(KeyError):
        PRESETS["AI"]
    with pytest.raises(TypeError):
        PRESETS["ai"] = (1.0, 0.0, 0.0, 0.0)  # type: ignore[index]
