"""report.limiters, captures: what limits each launch, as a table."""

from __future__ import annotations

from textwrap import dedent

import pytest

from pytest_gpuperf.model.counters import (
    Analysis,
    Bound,
    BoundSide,
    CounterGap,
    Evidence,
    Limiter,
    LimiterName,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.launch import (
    Capture,
    CapturedLaunch,
    CapturedRange,
    CapturedValue,
)
from pytest_gpuperf.report.captures import (
    capture_bytes,
    capture_lines,
    capture_markdown,
    limiter_text,
)

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
SILENT = Analysis(
    limiter=CounterGap(
        code=GapCode.NOT_COLLECTED, reason="nobody looked", missing=("a__b", "c__d")
    )
)


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
        (CounterGap(code=GapCode.NOT_COLLECTED, reason="nobody looked"), ""),
    ],
)
def test_a_limiter_has_a_name(limiter: Limiter | CounterGap, expected: str) -> None:
    """Units are not pipes, and a stall that was not collected is told."""
    assert limiter_text(limiter) == expected


def test_a_launch_is_a_row_with_its_evidence() -> None:
    """Time, bound, the share of that roof, the limiter and the numbers behind it."""
    found = capture(launch(0), launch(1), launch(2, measured=False))

    assert (
        text(found, AT_DRAM, SMALL, None, width=120)
        == dedent("""\
    launch  kernel     time  bound        fraction  limiter         evidence
         0  kernel  70.5 us  memory    90.6 % DRAM  DRAM            DRAM 90.6 %, issue 17.9 %
         1  kernel  1.60 us  compute  1.20 % issue  grid too small  waves 0.25
         2  kernel      n/a                         not measured
    3 launches, 1 not measured, 0 metrics: choose them with --metrics=a,b
    """).splitlines()
    )


def test_what_has_no_room_stands_below_its_launch() -> None:
    """First the evidence, then the bound with its share: nothing is left out."""
    found = capture(launch(0), launch(1, measured=False))

    assert text(found, AT_DRAM, None, width=75)[1:4] == [
        "     0  kernel  70.5 us  memory  90.6 % DRAM  DRAM",
        "        evidence DRAM 90.6 %, issue 17.9 %",
        "     1  kernel      n/a                       not measured",
    ]
    assert text(found, AT_DRAM, None, width=50)[1:4] == [
        "     0  kernel  70.5 us  DRAM",
        "        bound memory; fraction 90.6 % DRAM;",
        "            evidence DRAM 90.6 %, issue 17.9 %",
    ]


def test_a_kernel_keeps_its_name_before_a_bound_its_place() -> None:
    """What stands below is read all the same; half a name is another kernel's."""
    name = "compute_tendencies_x_at_level_two_of_279"
    named = replace(launch(0), kernel=name, demangled=name)

    assert name in text(capture(named), AT_DRAM, width=80)[1]
    assert "bound" not in text(capture(named), AT_DRAM, width=80)[0]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_capture_keeps_to_the_width(width: int) -> None:
    """Whatever the kernels are called and however many metrics were asked for."""
    asked = [f"{letter * 20}__b.sum" for letter in "abcde"]
    values = {name: CapturedValue(value=1.0, unit="byte") for name in asked}
    name = "k" * 90
    named = replace(launch(0), kernel=name, demangled=name, metrics=values)
    shown = (
        text(capture(named), AT_DRAM, width=width),
        [e.text for e in capture_lines(capture(named), metrics=asked, width=width)],
    )

    assert all(len(line) <= width for lines in shown for line in lines)
    assert all(name in "".join(shown[1]) for name in asked)


def test_the_heading_is_the_gpu() -> None:
    """Numbers of a launch mean nothing without it; each range has its own."""
    name = {
        "device__attribute_display_name": CapturedValue(value="NVIDIA H200", unit="")
    }
    on_gpu = CapturedRange(launches=(replace(launch(0), metrics=name),))
    one, two = Capture(ranges=(on_gpu,)), Capture(ranges=(on_gpu, on_gpu))

    assert text(one, None)[0] == "NVIDIA H200"
    assert capture_markdown(two).count("### range") == 2
    assert "### range 1: NVIDIA H200\n" in capture_markdown(two)


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

    1 launch, 0 metrics: choose them with --metrics=a,b
    """)


def test_metrics_that_were_asked_for_replace_the_analysis() -> None:
    """Who names metrics wants these."""
    found = capture_bytes(
        capture(launch(0)), "text", metrics=["a__b"], analyses=[[AT_DRAM]], width=100
    )

    assert b"limiter" not in found
    assert b"a__b" not in found


def test_a_metric_of_the_catalogue_is_in_our_form() -> None:
    """A counter keeps the report's number and unit; remarks stand below the table."""
    values = {
        "l2.hit_fraction": CapturedValue(value=0.501, unit="fraction"),
        "lts__t_sector_hit_rate.pct": CapturedValue(value=50.123456, unit="%"),
    }
    found = capture(replace(launch(0), metrics=values))
    remarks = ["not in this capture: a_b"]
    markdown = capture_bytes(found, "markdown", metrics=[*values], remarks=remarks)
    shown = [
        line.text for line in capture_lines(found, metrics=[*values], remarks=remarks)
    ]

    assert shown[1].split() == ["0", "kernel", "50.1", "%", "50.1235", "%"]
    assert shown[2] == "not in this capture: a_b"
    assert b"not in this capture: a\\_b\n" in markdown
