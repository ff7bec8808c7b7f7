"""collect.translate.ncu: a tool's names and units into those of the catalogue."""

from __future__ import annotations

import pytest

from pytest_gpuperf.collect.translate.counters import (
    captured_facts,
    captured_values,
    kernel_values,
    needed_counters,
)
from pytest_gpuperf.model.activity import KernelResources
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.launch import CapturedLaunch, CapturedValue
from pytest_gpuperf.model.metric import METRICS

DURATION = "gpu__time_duration.sum"
KERNEL = KernelResources(
    name="k",
    demangled=None,
    target="sm_90",
    registers_count=32,
    stack_bytes=8,
    shared_bytes=1024,
    constant_bytes=0,
)


Written = tuple[float | str | None, str | None]


def launch(**metrics: Written) -> CapturedLaunch:
    """Return a launch with some metrics, each a value and its unit."""
    return CapturedLaunch(
        index=0,
        kernel="k",
        demangled="k()",
        nvtx={},
        measured=True,
        metrics={
            name: CapturedValue(value=value, unit=unit)
            for name, (value, unit) in metrics.items()
        },
    )


@pytest.mark.parametrize(
    ("unit", "shown"), [("Gbyte", "Gbyte"), ("%", "%"), ("", "count"), (None, "count")]
)
def test_a_counter_keeps_its_own_unit(unit: str | None, shown: str) -> None:
    """Nothing is converted; what the tool counts without a unit is a count."""
    found = captured_values("a__b.sum", [launch(**{"a__b.sum": (7.5, unit)})])

    assert (found.values, found.unit) == ((7.5,), shown)


def test_every_launch_gives_a_value_in_order() -> None:
    """Values and durations keep the order of the report."""
    launches = []
    for number in (3, 1, 2):
        metrics: dict[str, Written] = {
            "a__b.sum": (number, "inst"),
            DURATION: (10.0 * number, "nsecond"),
        }
        launches.append(launch(**metrics))

    found = captured_values("a__b.sum", launches)

    assert found.values == (3.0, 1.0, 2.0)
    assert found.weights == (30.0, 10.0, 20.0)
    assert (found.unit, found.absent_count) == ("inst", 0)


def test_launches_without_a_value_are_counted() -> None:
    """A counter may be missing, without a value, or a text: it is absent, never 0."""
    launches = [
        launch(),
        launch(**{"a__b.sum": (None, None)}),
        launch(**{"a__b.sum": ("yes", "")}),
        launch(**{"a__b.sum": (0, "inst")}),
    ]

    found = captured_values("a__b.sum", launches)

    assert (found.values, found.unit, found.absent_count) == ((0,), "inst", 3)
    assert captured_values("a__b.sum", launches[:3]).values == ()


@pytest.mark.parametrize("last", [(None, None), ("1 us", "")])
def test_weights_are_all_or_none(last: tuple[str | None, str | None]) -> None:
    """With one duration unknown, nothing is weighed."""
    launches = [
        launch(**{"a__b.avg": (1, "%"), DURATION: (5.0, "nsecond")}),
        launch(**{"a__b.avg": (2, "%"), DURATION: last}),
    ]

    found = captured_values("a__b.avg", launches)

    assert found.values == (1.0, 2.0)
    assert found.weights == ()
    assert captured_values("a__b.avg", launches[:1]).weights == (5.0,)


MAJOR, MINOR = (
    f"device__attribute_compute_capability_{part}" for part in ("major", "minor")
)
NAME = "device__attribute_display_name"


def test_a_launch_says_what_it_ran_on() -> None:
    """The GPU's name and its compute capability, by the fingerprint's names."""
    given: dict[str, Written] = {
        NAME: ("NVIDIA H200", ""),
        MAJOR: (9, ""),
        MINOR: (0.0, ""),
    }

    assert captured_facts(launch(**given)) == {
        "gpu_name": "NVIDIA H200",
        "compute_capability": "9.0",
    }


@pytest.mark.parametrize(
    "given",
    [
        {},
        {MAJOR: (9, "")},
        {NAME: (None, None), MAJOR: (None, None), MINOR: (0, "")},
        {NAME: (7.0, ""), MAJOR: ("9", ""), MINOR: ("0", "")},
    ],
)
def test_a_fact_that_a_report_does_not_say_is_left_out(
    given: dict[str, Written],
) -> None:
    """Half a compute capability, or a value of another type, is none."""
    assert captured_facts(launch(**given)) == {}


def test_a_report_is_asked_for_each_counter_once() -> None:
    """Counters by both names, and what weighs and places their values."""
    names = needed_counters(["a__b.sum", "a__b.sum"], ["registers_count"])

    assert names == (
        "a__b.sum",
        "launch__registers_per_thread",
        DURATION,
        "gpu__time_duration.avg",
        "gpu__time_duration",  # of reports of 2019
        MAJOR,
        MINOR,
        NAME,
    )


@pytest.mark.parametrize(("dynamic", "shared"), [(None, 1024), (0, 1024), (4096, 5120)])
def test_shared_memory_is_what_a_block_gets(dynamic: int | None, shared: int) -> None:
    """What is compiled in, and what is asked for at launch."""
    kernel = replace(KERNEL, dynamic_shared_bytes=dynamic)

    assert kernel_values(kernel)["shared_bytes"] == (shared, "bytes")


def test_the_values_of_a_kernel_are_of_the_catalogue() -> None:
    """Each with its unit; what the compiler did not say is None, never 0."""
    values = kernel_values(replace(KERNEL, stack_bytes=None))

    assert {name: unit for name, (_, unit) in values.items()} == {
        name: METRICS[name].unit for name in values
    }
    assert values["registers"][0] == 32
    assert values["stack_bytes"][0] is None
    assert values["spills_bytes"][0] is None
