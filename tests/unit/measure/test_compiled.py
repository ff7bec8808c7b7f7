"""Rules of what is read of compiled kernels."""

from __future__ import annotations

import pytest

from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.measure.reading import (
    Code,
    code_of,
    compiled_values,
    failed_kernels,
    is_in_code,
)
from pytest_gpuperf.model.activity import InstructionMix, KernelResources
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.metric import INSTRUCTION_CLASSES, METRICS, Family
from pytest_gpuperf.model.sample import Estimate, Unmeasured
from pytest_gpuperf.model.verdict import FailedComparison
from pytest_gpuperf.report.launches import advice_texts

ONE = KernelResources(
    name="one",
    demangled=None,
    target="sm_90",
    registers_count=32,
    stack_bytes=0,
    shared_bytes=0,
    constant_bytes=528,
    threads_per_block=128,
)
TWO = replace(ONE, name="two")
LOADS, LOOPED = "instructions.global_load", "instructions.loop.global_load"


def mix(
    name: str, *, loads: int, looped: int = 0, spills: int | None = 0
) -> InstructionMix:
    """Return what a kernel with some loads consists of."""
    counts = {"global_load": loads, "loop.global_load": looped}
    return InstructionMix(kernel=name, counts=counts, spills_bytes=spills)


def doubted(name: str) -> InstructionMix:
    """Return what is known of a kernel whose code is not all known."""
    return InstructionMix(kernel=name, counts=None, doubt="jumps somewhere")


def values(estimates: tuple[Estimate, ...], metric: str) -> dict[str | None, float]:
    """Return a metric's values by kernel; None: of the whole."""
    return {e.kernel: e.value for e in estimates if e.metric == metric}


def gap(gaps: tuple[Unmeasured, ...], metric: str) -> Unmeasured:
    """Return why a metric is not known."""
    (found,) = (each for each in gaps if each.metric == metric)
    return found


def test_counts_are_of_each_kernel_and_the_most_of_all() -> None:
    """As every resource, exact and from the binary; only what was asked for."""
    code = Code(
        metrics=(LOADS, LOOPED), mixes=(mix("one", loads=3), mix("two", loads=5))
    )
    estimates, gaps = compiled_values([ONE, TWO], code)

    assert values(estimates, LOADS) == {None: 5.0, "one": 3.0, "two": 5.0}
    assert values(estimates, LOOPED) == {None: 0.0, "one": 0.0, "two": 0.0}
    assert {e.source for e in estimates} == {"binary"}
    assert {g.metric for g in gaps} == {"spills_bytes"}
    assert not values(estimates, "instructions.hmma")


def test_one_kernel_in_doubt_is_the_wholes_doubt() -> None:
    """The other kernel's value stays, by its name."""
    code = Code(metrics=(LOADS,), mixes=(mix("one", loads=3), doubted("two")))
    estimates, gaps = compiled_values([ONE, TWO], code)

    assert values(estimates, LOADS) == {"one": 3.0}
    assert gap(gaps, LOADS).reason == "not all code of two is known: jumps somewhere"


@pytest.mark.parametrize(
    ("comparison", "told"),
    [
        (FailedComparison("registers", "<="), "two<float> (sm_80): registers 64"),
        (FailedComparison("registers", ">="), "one (sm_90): registers 32"),
        (FailedComparison("registers", "<=", "one"), "one (sm_90): registers 32"),
        (
            FailedComparison("shared_bytes", "<", "two<*"),
            "two<float> (sm_80): shared_bytes 32768 B (32 KiB)",
        ),
        (FailedComparison("stack_bytes", "<"), "one (sm_90): stack_bytes 0 B"),
        (
            FailedComparison("instructions.tma", ">="),
            "one (sm_90): instructions.tma 0; it has global_load 3, branch 1",
        ),
        (
            FailedComparison("instructions.loop.tma", ">=", "two"),
            "two<float> (sm_80): instructions.loop.tma 0; it has loop.global_load 2",
        ),
    ],
)
def test_what_failed_is_a_kernels_of_a_chip(
    comparison: FailedComparison, told: str
) -> None:
    """Also where kernels of several chips share a row; a missed class says which exist."""
    two = replace(
        TWO,
        demangled="two<float>",
        target="sm_80",
        registers_count=64,
        shared_bytes=32768,
    )
    empty = {"tma": 0, "loop.tma": 0, "compiled": 90, "loop.compiled": 9}
    counts = {**empty, "branch": 1, "global_load": 3}, {**empty, "loop.global_load": 2}
    metrics = ("instructions.tma", "instructions.loop.tma")
    mixes = (
        InstructionMix(kernel="one", counts=counts[0]),
        InstructionMix(kernel="two", counts=counts[1]),
    )

    code = Code(metrics=metrics, mixes=mixes)

    (culprit,) = failed_kernels([ONE, two], code, [comparison])

    assert list(advice_texts(culprit)) == [told]


def test_without_the_tool_the_resources_are_there() -> None:
    """What needs nvdisasm is unmeasured with its remedy, and nothing else."""
    error = CollectorUnavailableError("nvdisasm is not here", remedy="install it")

    def read() -> tuple[InstructionMix, ...]:
        raise error

    estimates, gaps = compiled_values([ONE], code_of([LOADS, "spills_bytes"], read))

    assert values(estimates, "registers") == {None: 32.0, "one": 32.0}
    assert gap(gaps, LOADS).reason == "nvdisasm is not here"
    assert gap(gaps, LOADS).remedy == "install it"
    assert gap(gaps, "spills_bytes").remedy.startswith("install it; or pass ptxas_log=")


def test_code_is_read_when_it_is_asked_for() -> None:
    """A test of registers alone starts no tool."""
    assert code_of([], lambda: pytest.fail("it was read")) == Code()


def test_spills_are_read_from_the_code_without_a_log() -> None:
    """Of each kernel, and the most of all."""
    code = Code(
        metrics=("spills_bytes",),
        mixes=(mix("one", loads=0, spills=4), mix("two", loads=0, spills=16)),
    )
    estimates, gaps = compiled_values([ONE, TWO], code)

    assert values(estimates, "spills_bytes") == {None: 16.0, "one": 4.0, "two": 16.0}
    assert gaps == ()


@pytest.mark.parametrize("metrics", [(), ("spills_bytes",)])
def test_spills_that_a_log_does_not_tell_are_unknown(metrics: tuple[str, ...]) -> None:
    """With the reason of the log, whether or not the code was read, too."""
    untold = Gap(code=GapCode.NOT_STATED, reason="of another build", remedy="pass it")
    code = Code(
        metrics=metrics,
        mixes=(mix("one", loads=0, spills=8), mix("two", loads=0, spills=16)),
        log_gaps=(None, untold),
    )
    estimates, gaps = compiled_values([replace(ONE, spills_bytes=8), TWO], code)

    assert values(estimates, "spills_bytes") == {"one": 8.0}
    assert gap(gaps, "spills_bytes").text == untold.text


@pytest.mark.parametrize("other", [mix("one", loads=0, spills=None), doubted("one")])
def test_spills_that_the_code_does_not_tell_ask_for_the_log(
    other: InstructionMix,
) -> None:
    """Never 0 where arrays lie beside them."""
    code = Code(metrics=("spills_bytes",), mixes=(other,))
    estimates, gaps = compiled_values([ONE], code)

    assert values(estimates, "spills_bytes") == {}
    assert "ptxas_log=" in gap(gaps, "spills_bytes").remedy


def test_what_is_compiled_is_not_what_is_executed() -> None:
    """The counter of executed instructions is another metric, of another family."""
    assert not is_in_code("instructions.count")
    assert METRICS["instructions.count"].family is Family.COUNTER
    compiled = [
        METRICS[f"instructions.{scope}{name}"]
        for scope in ("", "loop.")
        for name in INSTRUCTION_CLASSES
    ]
    assert all(is_in_code(each.name) and each.exact for each in compiled)
    assert {each.family for each in compiled} == {Family.RESOURCE}
