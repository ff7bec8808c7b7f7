"""report.kernels: all launches of a kernel in one row, and what changed of kernels."""

from __future__ import annotations

import pytest

from fakes import runs
from pytest_gpuperf.model.change import KernelAccount, KernelMove
from pytest_gpuperf.model.counters import (
    Analysis,
    CounterGap,
    Limiter,
    LimiterName,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.kernel import KernelLaunch, KernelTotal
from pytest_gpuperf.model.launch import Capture, CapturedLaunch, CapturedRange
from pytest_gpuperf.model.verdict import Outcome, Reason, VerdictEvidence
from pytest_gpuperf.report import sentences
from pytest_gpuperf.report.kernels import SORTS, kernel_rows, kernels_bytes

LATENCY = Limiter(name=LimiterName.LATENCY, detail="wait")
DRAM = Limiter(name=LimiterName.DRAM)
UNKNOWN = CounterGap(reason="nobody looked")


def launch(index: int, kernel: str, demangled: str = "") -> CapturedLaunch:
    return CapturedLaunch(
        index=index,
        kernel=kernel,
        demangled=demangled or f"void {kernel}(int)",
        nvtx={},
        measured=True,
        metrics={},
    )


LAUNCHES = (
    launch(0, "copy"),
    launch(1, "sort", "void lib::detail::sort<lib::Up>(int)"),
    launch(2, "copy"),
    launch(3, "sort", "void lib::detail::sort<lib::Down>(int)"),
    launch(4, "copy"),
    launch(5, "lost"),
)
ANALYSES = (
    Analysis(limiter=DRAM, duration_s=30e-6),
    Analysis(limiter=LATENCY, duration_s=50e-6),
    Analysis(limiter=DRAM, duration_s=30e-6),
    Analysis(limiter=UNKNOWN),
    Analysis(limiter=LATENCY, duration_s=10e-6),
    None,
)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_instances_of_one_template_differ_in_a_narrow_table(width: int) -> None:
    """Elementwise kernels of torch differ in the functor, far inside their names."""
    outer = "void at::native::vectorized_elementwise_kernel<(int){}, at::native::{}{}"
    rest = "<float>, std::array<char *, (unsigned long)2>>(int, T2, T3)"
    functors = ("FillFunctor", "CUDAFunctorOnSelf_add", "AUnaryFunctor")
    called = [outer.format(4, functor, rest) for functor in functors]
    called.append(outer.format(2, "FillFunctor", rest))
    launches = tuple(launch(n, "elementwise", name) for n, name in enumerate(called))
    capture = Capture(ranges=(CapturedRange(launches=launches),))
    analyses = [[Analysis(limiter=DRAM, duration_s=1e-6) for _ in launches]]
    _, *lines = kernels_bytes(
        capture, "text", analyses=analyses, width=width
    ).splitlines()
    names = [
        line.decode()[:40]
        for line in lines
        if "\N{HORIZONTAL ELLIPSIS}" in line.decode()
    ]

    assert len(set(names)) == len(names) == len(called)
    for name, functor in zip(sorted(names), sorted((*functors, "(int)2")), strict=True):
        assert functor[:11] in name


def test_a_kernel_is_one_row_with_its_share() -> None:
    """By time; template instances are told apart, and the limiter is of most time."""
    copy, up, down, lost = kernel_rows(LAUNCHES, ANALYSES)

    assert (copy.name, copy.launches_count, copy.longest) == ("copy", 3, 2)
    assert copy.total_s == pytest.approx(70e-6)
    assert copy.share_fraction == pytest.approx(70 / 120)
    assert copy.limiter == "DRAM (2 of 3)"
    assert "Up" in up.name
    assert up.limiter == "latency: wait"
    assert "Down" in down.name
    assert (down.times_s, down.share_fraction, down.limiter) == ((), None, "")
    assert (lost.name, lost.times_s) == ("lost", ())


def test_a_row_can_stand_elsewhere() -> None:
    """The order is a choice, and each has an answer where nothing was timed."""
    orders = {
        key: [row.name for row in kernel_rows(LAUNCHES, ANALYSES, sort=key)]
        for key in SORTS
    }

    assert orders["count"][0] == orders["total"][0] == "copy"
    assert "Up" in orders["median"][0]
    assert "Up" in orders["longest"][0]
    assert orders["name"] == sorted(orders["name"])


@pytest.mark.parametrize(("width", "name"), [(100, 40), (70, 21), (200, 51)])
def test_names_have_what_other_columns_leave(width: int, name: int) -> None:
    """Least, greatest and longest go before a name loses what tells it apart."""
    long = launch(0, f"gemm_{'x' * 40}_tail64")
    capture = Capture(ranges=(CapturedRange(launches=(long,)),))
    text = kernels_bytes(capture, "text", analyses=[ANALYSES[:1]], width=width)
    head, row, *_ = text.decode().splitlines()

    assert len(head) <= width
    assert len(row.partition("  ")[0]) >= name
    assert ("max" in head) == (width == 200)


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_what_is_left_out_is_said(form: str) -> None:
    """With the share of the time that it has, and how much there is in all."""
    capture = Capture(ranges=(CapturedRange(launches=LAUNCHES),))
    text = kernels_bytes(capture, form, analyses=[ANALYSES], top=1, width=120).decode()

    assert "58.3 %" in text
    assert "Up" not in text
    assert "3 more kernels, 41.7 % of the time" in text
    assert "6 launches of 4 kernels, 120 us together" in text
    assert ("`copy`" in text) == (form == "markdown")


# kernels behind a change


def total(
    name: str, total_us: float, *, grid: int = 8, registers: int = 32
) -> KernelTotal:
    """A kernel that ran once."""
    launch = KernelLaunch(
        count=1,
        grid=(grid, 1, 1),
        block=(128, 1, 1),
        registers_count=registers,
        shared_bytes=0,
        stack_bytes=0,
    )
    return KernelTotal(name=name, total_s=total_us * 1e-6, launch=launch)


def slower(
    *moves: tuple[KernelTotal | None, KernelTotal | None],
    now: float = 183e-6,
    was: float = 170e-6,
) -> tuple[str, ...]:
    """What is said of the kernels of a test that takes longer."""
    account = KernelAccount(
        then_s=sum(then.total_s for then, _ in moves if then),
        now_s=sum(now.total_s for _, now in moves if now),
        moves=tuple(KernelMove(then=then, now=now) for then, now in moves),
    )
    regressed = runs.changed(
        "test_a",
        Outcome.REGRESSED,
        Reason.SLOWER_THAN_LIMIT,
        replace(runs.change(now / was - 1, now), reference=was),
        evidence=VerdictEvidence(account=account),
    )
    return sentences.for_pytest(regressed).detail


def test_a_replaced_kernel_explains_a_change() -> None:
    """One line for both names, with the time and how it is launched now."""
    norm = total("norm", 5)

    assert slower(
        (
            total("gemm_128", 158.2),
            total("gemm_64", 171, grid=16, registers=232),
        ),
        (norm, replace(norm, total_s=5.1e-6)),
    ) == (
        "kernels together: 176 us, was 163 us (+12.9 us)",
        (
            "kernel replaced: gemm_128 -> gemm_64, 171 us, was 158 us (+12.8 us); "
            "registers 32 -> 232, grid 8 -> 16"
        ),
    )


def test_kernels_that_are_new_gone_or_slower_are_told() -> None:
    """Those that moved most come first, and a few are enough."""
    many = [(None, total(f"k{number}", 1)) for number in range(5)]

    assert slower(
        (total("gemm", 150), total("gemm", 160)),
        (total("norm", 9), None),
        *many,
    ) == (
        "kernels together: 165 us, was 159 us (+6.00 us); between kernels +7.00 us",
        "kernel slower: gemm, 160 us, was 150 us (+10.0 us)",
        "kernel gone: norm, -9.00 us",
        "kernel new: k0, +1.00 us",
        "kernel new: k1, +1.00 us",
        "3 more kernels differ",
    )


def test_a_change_between_kernels_is_told() -> None:
    """The kernels take as long as before: look at launches, copies and waits."""
    gemm = total("gemm", 150)

    assert slower((gemm, gemm)) == (
        "kernels together: 150 us, as before; between kernels +13.0 us",
    )


def test_kernels_that_explain_nothing_are_left_out() -> None:
    """A loop's kernels are of all its steps, and nothing moved."""
    gemm = total("gemm", 999)

    assert slower((gemm, gemm)) == ()


def test_a_launch_that_changed_is_told_at_any_time() -> None:
    """Registers explain a change that the clock does not show."""
    assert slower(
        (total("gemm", 999), total("gemm", 999, registers=40)),
        (total("copy", 1), total("copy", 1)),
    ) == (
        "kernels together: 1.00 ms, as before",
        "kernel changed: gemm, 999 us, as before; registers 32 -> 40",
    )
