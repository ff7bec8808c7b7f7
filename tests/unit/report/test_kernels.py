"""report.kernels: all launches of a kernel in one row."""

from __future__ import annotations

import pytest

from pytest_gpuperf.collect.ncu.launches import Capture, CapturedLaunch, CapturedRange
from pytest_gpuperf.model.counters import (
    Analysis,
    CounterGap,
    Limiter,
    LimiterName,
)
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
