"""report.runs, captures: the same run and captures for other readers."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fakes import runs
from pytest_gpuperf.model.codec import decode_run
from pytest_gpuperf.model.frozen import replace
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
    told_apart,
)
from pytest_gpuperf.report.runs import run_bytes
from pytest_gpuperf.report.summary import judged_line


def found(value: float | str | None, unit: str) -> CapturedValue:
    """Return a value of a capture."""
    return CapturedValue(value=value, unit=unit)


def launch(index: int, kernel: str, **values: CapturedValue) -> CapturedLaunch:
    """Return a launch of a capture; it was measured if it has a value."""
    return CapturedLaunch(
        index=index,
        kernel=kernel,
        demangled="",
        measured=bool(values),
        nvtx={},
        metrics=values,
    )


def captured(*ranges: tuple[CapturedLaunch, ...]) -> Capture:
    """Return a capture, as collect gives it."""
    return Capture(ranges=tuple(CapturedRange(launches=each) for each in ranges))


SAXPY = launch(
    0,
    "saxpy",
    **{
        "gpu__time_duration.sum": found(1600.0, "nsecond"),
        "launch__registers_per_thread": found(16.0, "register/thread"),
        "dram__bytes.sum": found(134217728.0, "byte"),
        "launch__func_cache_config": found("CachePreferNone", ""),
        "sm__ratio": found(0.0406901041, "%"),
        "nan": found(None, "%"),
    },
)
FAILED = launch(1, "gemm")


def test_a_capture_is_one_row_a_launch() -> None:
    """Numbers and units are the tool's own; a launch that failed is marked."""
    capture = captured((SAXPY, FAILED))
    expected = dedent("""\
    launch  kernel  note             time  registers            DRAM
         0  saxpy               1600 nsecond         16  134217728 byte
    """).splitlines()[0]
    lines = [line.text for line in capture_lines(capture)]

    assert lines[0].split() == expected.split()
    assert lines[1].split() == [
        "0",
        "saxpy",
        "1600",
        "nsecond",
        "16",
        "134217728",
        "byte",
    ]
    assert lines[2].split() == ["1", "gemm", "not", "measured", "n/a", "n/a", "n/a"]
    assert lines[3] == (
        "2 launches, 1 not measured, 5 metrics: choose them with --metrics=a,b"
    )


def test_metrics_that_were_asked_for_are_columns_or_told_below() -> None:
    """A misspelt metric is not passed over in silence."""
    capture = captured((SAXPY,), (FAILED,))
    wanted = ("launch__func_cache_config", "sm__ratio", "nan", "mistyped")
    remarks = ["not in this capture: nan", "not in this capture: mistyped"]

    assert capture_markdown(capture, metrics=wanted, remarks=remarks) == dedent("""\
    ### range 0

    | launch | kernel | launch__func_cache_config | sm__ratio |
    | ---: | --- | ---: | ---: |
    | 0 | `saxpy` | CachePreferNone | 0.0406901 % |

    ### range 1

    | launch | kernel | note |
    | ---: | --- | --- |
    | 1 | `gemm` | not measured |

    not in this capture: nan

    not in this capture: mistyped

    2 launches, 1 not measured
    """)


def test_instances_that_differ_at_both_ends_are_told_apart() -> None:
    """The nearest instance differs at the end, another one in the type before it."""
    names = [
        f"void gemm_4bit_sm80_kernel<{kind}, 32, {size}, 128>(int)"
        for kind in ("__half", "__nv_bfloat16")
        for size in (64, 256)
    ]

    short = told_apart(names)

    assert short[names[1]] == "gemm_4bit_sm80_…__half, 32, 256, 128>"
    assert len({*short.values()}) == len(names)


def test_templates_of_one_name_are_told_apart() -> None:
    """Where a name is shared the whole name is shown, its middle left out."""
    capture = captured(
        (
            replace(SAXPY, kernel="Kernel", demangled="void Kernel<float, 1>"),
            replace(SAXPY, kernel="Kernel", demangled="void Kernel<half, 2>"),
        )
    )
    text = "\n".join(line.text for line in capture_lines(capture, width=200))

    assert "void Kernel<float, 1>" in text
    assert "void Kernel<half, 2>" in text


@pytest.mark.parametrize("form", ["text", "json", "markdown"])
def test_a_run_is_printed_in_every_form(form: str) -> None:
    """The three forms are of the same run; JSON reads back."""
    content = run_bytes(runs.gpu_run(), form, width=100)

    assert content.endswith(b"\n")
    assert b"test_gemm[4096]" in content
    assert b"reproduce:" not in content
    if form == "json":
        assert decode_run(content) == runs.gpu_run()


def test_a_capture_is_printed_in_both_forms() -> None:
    """Text for a terminal, Markdown for a comment."""
    capture = captured((SAXPY,))

    assert b"saxpy  " in capture_bytes(capture, "text", metrics=None, width=100)
    assert b"| `saxpy` |" in capture_bytes(capture, "markdown", metrics=None)


def test_a_run_can_be_cut_to_some_metrics() -> None:
    """`show --metrics` leaves out the other values; what was judged stays."""
    run = runs.gpu_run()
    cut = decode_run(run_bytes(run, "json", metrics=("registers",)))

    assert {each.metric for record in cut.records for each in record.estimates} == {
        "registers"
    }
    assert cut.verdicts == run.verdicts


@pytest.mark.parametrize("form", ["text", "markdown"])
@pytest.mark.parametrize("metric", ["registers", "time.min", "nope"])
def test_a_run_that_is_cut_ends_as_it_did(form: str, metric: str) -> None:
    """The last line is of the whole run, whichever of its values are shown."""
    run = runs.gpu_run()
    judged = judged_line(run).text

    text = run_bytes(run, form, width=1000, metrics=(metric,)).decode()

    assert "failed" in judged or "regressed" in judged
    assert judged in text
