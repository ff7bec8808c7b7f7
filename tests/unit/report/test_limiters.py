"""report.limiters, captures: what limits each launch, as a table."""

from __future__ import annotations

from textwrap import dedent

import pytest

from pytest_gpuperf.collect.ncu.capture import Capture, CapturedLaunch, CapturedRange
from pytest_gpuperf.model.limiter import (
    Analysis,
    Bound,
    BoundSide,
    Evidence,
    Limiter,
    LimiterName,
    Unknown,
)
from pytest_gpuperf.report.captures import capture_lines, capture_markdown
from pytest_gpuperf.report.forms import capture_bytes
from pytest_gpuperf.report.limiters import limiter_text

AT_DRAM = Analysis(
    duration_s=70.464e-6,
    bound=Bound(side=BoundSide.MEMORY, roof="dram", fraction=0.9063),
    limiter=Limiter(
        name=LimiterName.DRAM,
        evidence=(
            Evidence(name="dram", value=0.9063),
            Evidence(name="issue", value=0.179),
        ),
    ),
)
SMALL = Analysis(
    duration_s=1.6e-6,
    bound=Bound(side=BoundSide.COMPUTE, roof="issue", fraction=0.012),
    limiter=Limiter(
        name=LimiterName.GRID,
        evidence=(Evidence(name="waves", value=0.25, unit="count"),),
    ),
)
SILENT = Analysis(limiter=Unknown(reason="nobody looked", missing=("a__b", "c__d")))


def launch(index: int, *, measured: bool = True) -> CapturedLaunch:
    return CapturedLaunch(
        index=index,
        kernel="kernel",
        demangled="kernel()",
        nvtx={},
        measured=measured,
        metrics={},
    )


def capture(*launches: CapturedLaunch) -> Capture:
    return Capture(ranges=(CapturedRange(launches=launches),))


def text(found: Capture, *analyses: Analysis | None, width: int = 100) -> list[str]:
    return [
        line.text for line in capture_lines(found, analyses=[analyses], width=width)
    ]


@pytest.mark.parametrize(
    ("limiter", "expected"),
    [
        (Limiter(name=LimiterName.DRAM), "DRAM"),
        (Limiter(name=LimiterName.L1), "L1"),
        (Limiter(name=LimiterName.MEMORY), "memory"),
        (Limiter(name=LimiterName.TENSOR), "tensor"),
        (Limiter(name=LimiterName.PIPE, detail="fp64"), "fp64 pipe"),
        (Limiter(name=LimiterName.PIPE, detail="issue"), "issue slots"),
        (Limiter(name=LimiterName.PIPE, detail="sm"), "SM"),
        (Limiter(name=LimiterName.GRID), "grid too small"),
        (Limiter(name=LimiterName.LATENCY, detail="wait"), "latency: wait"),
        (Limiter(name=LimiterName.LATENCY), "latency: stalls not collected"),
        (Limiter(name=LimiterName.LAUNCH), "launch"),
        (Unknown(reason="nobody looked"), ""),
    ],
)
def test_a_limiter_has_a_name(limiter: Limiter | Unknown, expected: str) -> None:
    """Units are not pipes, and a stall that was not collected is told."""
    assert limiter_text(limiter) == expected


def test_a_launch_is_a_row_with_its_evidence() -> None:
    """Time, bound, the share of that roof, the limiter and the numbers behind it."""
    found = capture(launch(0), launch(1), launch(2, measured=False))

    assert (
        text(found, AT_DRAM, SMALL, None, width=120)
        == dedent("""\
    launch  kernel                   time  bound        fraction  limiter         evidence
         0  kernel                70.5 us  memory    90.6 % DRAM  DRAM            DRAM 90.6 %, issue 17.9 %
         1  kernel                1.60 us  compute  1.20 % issue  grid too small  waves 0.25
         2  kernel  not measured      n/a  n/a               n/a  n/a
    3 launches, 1 not measured, 0 metrics: name them with --metrics=a,b
    """).splitlines()
    )


def test_evidence_gives_way_to_the_width() -> None:
    """Whole numbers of it go, never half of one."""
    found = capture(launch(0))

    assert "DRAM 90.6 %, issue 17.9 %" in text(found, AT_DRAM, width=80)[1]
    assert text(found, AT_DRAM, width=70)[1].endswith("DRAM     DRAM 90.6 %")
    assert text(found, AT_DRAM, width=40)[1].endswith("90.6 % DRAM  DRAM")


def test_what_would_tell_the_limiter_stands_below_the_table() -> None:
    """Once, however many launches lack it."""
    lines = text(capture(launch(0), launch(1)), SILENT, SILENT)

    assert lines[1].split() == ["0", "kernel"]
    assert lines[3:-1] == [
        "limiter n/a: nobody looked; collect it: ncu --metrics a__b,c__d"
    ]


def test_markdown_has_all_of_the_evidence() -> None:
    """A reader scrolls."""
    assert capture_markdown(capture(launch(0)), analyses=[[AT_DRAM]]) == dedent("""\
    | launch | kernel | time | bound | fraction | limiter | evidence |
    | ---: | --- | ---: | --- | ---: | --- | --- |
    | 0 | `kernel` | 70.5 us | memory | 90.6 % DRAM | DRAM | DRAM 90.6 %, issue 17.9 % |

    1 launch, 0 metrics: name them with --metrics=a,b
    """)


def test_metrics_that_were_asked_for_replace_the_analysis() -> None:
    """Who names metrics wants these."""
    found = capture_bytes(
        capture(launch(0)), "text", metrics=["a__b"], analyses=[[AT_DRAM]], width=100
    )

    assert b"limiter" not in found
    assert b"not in this capture: a__b" in found
