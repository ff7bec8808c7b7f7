"""The rules of judge/selection: which estimate a limit is about, or why there is none."""

from __future__ import annotations

import math

import pytest

from pytest_gpuperf.judge.grammar import parse_limit
from pytest_gpuperf.judge.selection import not_given, select
from pytest_gpuperf.model.activity import KernelResources
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import Kind
from pytest_gpuperf.model.sample import Estimate, Unmeasured
from unit.judge.building import estimate, record


def chosen(text: str, *estimates: Estimate, **fields: object) -> Estimate | Gap:
    """Return what a limit selects."""
    known = {e.metric for e in estimates} | {"dram__bytes.sum"}
    return select(parse_limit(text, names=known), record(*estimates, **fields))


def value_of(text: str, *estimates: Estimate, **fields: object) -> float:
    """Return the value that a limit selects."""
    found = chosen(text, *estimates, **fields)
    assert isinstance(found, Estimate)
    return found.value


def gap_of(text: str, *estimates: Estimate, **fields: object) -> Gap:
    """Return why a limit selects nothing."""
    found = chosen(text, *estimates, **fields)
    assert isinstance(found, Gap)
    return found


def resources(name: str, demangled: str) -> KernelResources:
    """Return a kernel of a record."""
    return KernelResources(
        name=name,
        demangled=demangled,
        target="sm_90",
        registers_count=5,
        stack_bytes=0,
        shared_bytes=0,
        constant_bytes=0,
    )


@pytest.mark.parametrize(
    ("operator", "value"),
    [
        ("<= 8", 9.0),
        ("< 8", 9.0),
        (">= 2", 1.0),
        ("> 2", 1.0),
        ("== 4", 9.0),
        ("== 8", 1.0),
    ],
)
def test_of_several_kernels_the_worst_is_meant(operator: str, value: float) -> None:
    """The largest for an upper limit, the smallest for a lower, else the farthest."""
    several = [
        estimate(v, "registers", kernel=name, source="binary")
        for v, name in ((4.0, "k1"), (9.0, "k2"), (1.0, "k3"))
    ]

    assert value_of(f'registers["k*"] {operator}', *several) == value


def test_the_whole_goes_before_its_kernels() -> None:
    """Of one kernel alone the whole is its own; a second value of the whole is none."""
    part = estimate(5.0, "registers", kernel="k", source="binary")
    whole = [estimate(v, "registers", source="binary") for v in (3.0, 4.0)]

    assert value_of("registers <= 9", part, *whole) == 3.0
    assert value_of("registers <= 9", part) == 5.0


def test_values_by_kernel_alone_need_a_name() -> None:
    """The remedy shows how the first is named."""
    parts = [
        estimate(5.0, "registers", kernel=name, source="binary") for name in ("k", "j")
    ]

    assert gap_of("registers <= 9", *parts) == Gap(
        code=GapCode.NO_KERNEL,
        reason="registers is known by kernel only",
        remedy='name the kernel: registers["k"]',
    )


def test_a_kernel_that_is_not_there_is_told_with_those_that_are() -> None:
    """Three of them at most; a value that knows no kernel wants no pattern."""
    part = estimate(5.0, "registers", kernel="gemm", source="binary")
    whole = estimate(5.0, "registers", source="binary")

    assert gap_of('registers["relu"] <= 9', part) == Gap(
        code=GapCode.NO_SUCH_KERNEL,
        reason='no kernel fits "relu"',
        remedy="write a pattern that fits one of gemm",
    )
    assert gap_of('registers["relu"] <= 9', whole) == Gap(
        code=GapCode.NO_KERNEL,
        reason="registers is not known by kernel here",
        remedy="write the limit without a kernel: registers",
    )


def test_a_kernel_without_a_value_is_never_passed_over() -> None:
    """Nor is it a kernel that does not exist: it may break the limit."""
    kernels = tuple(resources(name, name) for name in ("flat", "recursive"))
    why = Gap(code=GapCode.NOT_STATED, reason="it calls itself", remedy="limit others")
    fields = {
        "kernels": kernels,
        "unmeasured": (Unmeasured.of_metric("stack_bytes", why),),
    }
    flat = estimate(0.0, "stack_bytes", kernel="flat", source="binary")

    for pattern in ("recursive", "*", "rec*"):
        gap = gap_of(f'stack_bytes["{pattern}"] == 0', flat, **fields)
        assert gap.code is GapCode.NOT_STATED
        assert gap.reason == "stack_bytes of recursive is not known; it calls itself"
    assert value_of('stack_bytes["flat"] == 0', flat, **fields) == 0
    other = gap_of('stack_bytes["other"] == 0', flat, **fields)
    assert other.code is GapCode.NO_SUCH_KERNEL


def test_a_kernel_is_found_by_its_own_readable_name_alone() -> None:
    """Another kernel's readable name, or an empty one, is not its."""
    part = estimate(5.0, "registers", kernel="_Z4gemm", source="binary")
    kernels = (resources("_Z4gemm", "gemm(int)"), resources("_Z4relu", "relu(int)"))

    for pattern in ("gemm(*", "gemm", "g*", "_Z4gemm"):
        text = f'registers["{pattern}"] <= 9'
        assert value_of(text, part, kernels=kernels) == 5.0
    assert gap_of('registers["relu(*"] <= 9', part, kernels=kernels).reason == (
        'no kernel fits "relu(*"'
    )


def test_a_kernel_of_a_template_is_found_as_it_is_spoken_of() -> None:
    """The type of its result, which no kernel has, is left out, and its parameters may be."""
    part = estimate(5.0, "registers", kernel="_Z5saxpyILi4EEvPf", source="binary")
    kernels = (resources("_Z5saxpyILi4EEvPf", "void saxpy<4>(float*)"),)

    for pattern in ("saxpy<4>", "saxpy<4>*", "saxpy*", "void saxpy<4>(float[*])"):
        text = f"registers['{pattern}'] <= 9"
        assert value_of(text, part, kernels=kernels) == 5.0
    assert gap_of("registers['saxpy<8>*'] <= 9", part, kernels=kernels).remedy == (
        "write a pattern that fits one of saxpy<4>(float*)"
    )


def test_a_counter_comes_in_its_limits_unit() -> None:
    """With both ends of its interval; one without an interval gets none."""
    text = "dram__bytes.sum <= 3 MB"
    wide = estimate(2.0, "dram__bytes.sum", unit="Mbyte", low=1.0, high=4.0)
    bare = estimate(2.0, "dram__bytes.sum", unit="Mbyte")
    found = chosen(text, wide)
    alone = chosen(text, bare)

    assert isinstance(found, Estimate)
    assert isinstance(alone, Estimate)
    assert (found.value, found.low, found.high) == (2e6, 1e6, 4e6)
    assert found.unit == parse_limit(text).unit
    assert (alone.value, alone.low, alone.high) == (2e6, None, None)


def test_a_unit_that_cannot_be_converted_is_told() -> None:
    """It is not a failure of the code: a tool changes units between versions."""
    odd = estimate(2.0, "dram__bytes.sum", unit="second")

    assert gap_of("dram__bytes.sum <= 3 MB", odd).remedy == (
        "write the limit in second, or as a bare number"
    )
    assert math.isclose(value_of("dram__bytes.sum <= 3", odd), 2.0)


def test_what_was_not_measured_says_how_it_would_be() -> None:
    """A counter is declared, a number recorded, a phase named."""
    phase = estimate(1.0, "phase.forward", unit="s", source="host")

    assert gap_of("dram__bytes.sum <= 3 MB") == Gap(
        code=GapCode.NOT_DECLARED,
        reason="it was not measured",
        remedy='declare it: counters=["dram__bytes.sum"]',
    )
    assert gap_of("dram__bytes.sum <= 3 MB", phase).remedy.startswith("declare it")


@pytest.mark.parametrize(
    ("metric", "kind", "reason", "remedy"),
    [
        (
            "energy",
            Kind.MEASURE,
            "only nvml measures it in a call, and only on a GPU",
            "use a GPU, and look at nvml in `gpuperf doctor`",
        ),
        (
            "compile.count",
            Kind.MEASURE,
            "only cupti measures it in a call, and only on a GPU",
            ("use a GPU, and look at cupti in `gpuperf doctor`; or use gpuperf.steps"),
        ),
        (
            "allocations.count",
            Kind.RANGE,
            "only cupti and host measure it in a block, and only on a GPU",
            "use a GPU, and look at cupti in `gpuperf doctor`",
        ),
        (
            "memory.leaked_bytes",
            Kind.MEASURE,
            "only host measures it in a call, and only on a GPU",
            "use a GPU",
        ),
        (
            "time.p95",
            Kind.MEASURE,
            "this measurement gave no value of it",
            "gpuperf explain time.p95 names what measures it",
        ),
        (
            "time.with_gc",
            Kind.MEASURE,
            (
                "the calls left no garbage, or are a side of a comparison, or the garbage"
                " collector is off"
            ),
            (
                "measure the function alone, and name time.with_gc in the marker's limits or"
                " max_regression"
            ),
        ),
        (
            "time",
            Kind.COMPARE,
            "a comparison gives the speedup alone",
            "ask one of its sides, as pair.a.time",
        ),
        (
            "time",
            Kind.BINARY,
            "a compiled kernel does not have this metric: nothing runs",
            "use gpuperf.measure, gpuperf.range or gpuperf.steps",
        ),
        (
            "mfu",
            Kind.BINARY,
            "a compiled kernel does not have this metric: nothing runs",
            "use gpuperf.steps",
        ),
        (
            "speedup",
            Kind.COMPARE,
            "this measurement gave no value of it",
            "gpuperf explain speedup names what measures it",
        ),
        (
            "mfu",
            Kind.COMPARE,
            "a comparison gives the speedup alone",
            "use gpuperf.steps",
        ),
        (
            "dram.bytes",
            Kind.RANGE,
            "the time of a block does not give it",
            (
                "use gpuperf.capture, or declare its counters: counters=[…] "
                "(gpuperf explain dram.bytes names them)"
            ),
        ),
        (
            "dram.bytes",
            Kind.BINARY,
            "a compiled kernel does not have this metric: nothing runs",
            "use gpuperf.capture",
        ),
        (
            "registers",
            Kind.MEASURE,
            "gpuperf.measure does not measure it",
            "use gpuperf.binary or gpuperf.capture",
        ),
    ],
)
def test_a_way_that_does_not_give_a_metric_names_one_that_does(
    metric: str, kind: Kind, reason: str, remedy: str
) -> None:
    """Or why the right way gave none this time."""
    gap = not_given(metric, kind)

    assert (gap.reason, gap.remedy) == (reason, remedy)


def test_a_program_can_tell_why_a_way_gives_no_metric() -> None:
    """The wrong way, a missing collector, the right way in vain, or no sensor."""
    asked = (
        ("registers", Kind.MEASURE),
        ("energy", Kind.MEASURE),
        ("mfu", Kind.STEPS),
        ("utilization.idle_fraction", Kind.RANGE),
    )

    assert [not_given(*each).code for each in asked] == [
        GapCode.OTHER_WAY,
        GapCode.COLLECTOR_UNAVAILABLE,
        GapCode.METRIC_UNAVAILABLE,
        GapCode.NOT_SAMPLED,
    ]
