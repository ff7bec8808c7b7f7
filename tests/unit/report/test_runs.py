"""report.runs, captures: the same run and captures for other readers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import dedent

import pytest

from fakes import runs
from pytest_gpuperf.model.codec import decode_run
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Note, Void, VoidCode
from pytest_gpuperf.model.telemetry import UtilizationWindow
from pytest_gpuperf.model.verdict import Outcome
from pytest_gpuperf.report.captures import (
    capture_bytes,
    capture_lines,
    capture_markdown,
)
from pytest_gpuperf.report.runs import only_metrics, run_bytes, run_markdown


@dataclass(frozen=True)
class Found:
    """A value of a capture."""

    value: float | str | None
    unit: str | None


@dataclass(frozen=True)
class Launch:
    """A launch of a capture."""

    index: int
    kernel: str
    metrics: Mapping[str, Found] = field(default_factory=dict)
    demangled: str = ""
    measured: bool = True


@dataclass(frozen=True)
class Range:
    """A range of a capture."""

    launches: tuple[Launch, ...]


@dataclass(frozen=True)
class Capture:
    """A capture, as collect gives it."""

    ranges: tuple[Range, ...]


SAXPY = Launch(
    index=0,
    kernel="saxpy",
    metrics={
        "gpu__time_duration.sum": Found(1600.0, "nsecond"),
        "launch__registers_per_thread": Found(16.0, "register/thread"),
        "dram__bytes.sum": Found(134217728.0, "byte"),
        "launch__func_cache_config": Found("CachePreferNone", ""),
        "sm__ratio": Found(0.0406901041, "%"),
        "nan": Found(None, "%"),
    },
)
FAILED = Launch(index=1, kernel="gemm", measured=False)


def test_a_run_is_a_table_and_a_block() -> None:
    """How much was judged stands first: it is what a reviewer reads."""
    run = runs.run(
        (runs.gpu_run().records[1], runs.gpu_run().records[4]),
        (runs.REGRESSED, runs.FAILED),
        collectors=("events",),
    )
    expected = dedent("""\
    ### gpuperf: NVIDIA H200, driver 580.159, events

    judged 2 of 2: 1 failed, 1 regressed

    | test | time | ± | vs baseline | verdict | roofline | bound | measured |
    | --- | --- | --- | --- | --- | --- | --- | --- |
    | `test_gemm[4096]` | 183 us | ±0.4 % | +7.9 % | **REGRESSED** | 61 % bf16 | compute |  |
    | `test_registers` | - |  | limit only | **FAILED** | n/a | - | registers 72, stack 0 B, occupancy 62.5 % |

    ```text
    REGRESSED test_gemm[4096]: 183 us, was 170 us: +7.9 % (+7.1 … +8.7 %), limit 5 %, this baseline sees >= 1.6 %
        registers 168 -> 232
        confirmed in 3 fresh processes (+7.7 … +8.1 %)
        baseline: 6 sessions, 2026-11-02 … 2026-11-20, commits 3f2a1c9 … 9be01d4; since then torch 2.11.0 -> 2.11.1
    FAILED test_registers: registers["rmsnorm"] 72, limit registers["rms*"] <= 64, missed by 12.5 %
    ```
    """)

    assert run_markdown(run, commands=False) == expected


def test_what_gpus_were_busy_with_stands_below_the_table() -> None:
    """And what makes a value doubtful, each with the name of its test."""
    window = UtilizationWindow(
        gpu_index=0,
        gpu_uuid="GPU-1",
        duration_s=2.0,
        reading_count=20,
        class_s={"compute-heavy": 1.5, "I/O|data": 0.5},
        incomplete_s=0.0,
        unobserved_s=0.0,
        real_util=48.2,
    )
    busy = replace(
        runs.record("test_a", runs.time_of(1e-3)),
        utilization=(window, replace(window, gpu_index=1, reading_count=0)),
    )
    doubtful = replace(
        runs.record("test_b", runs.time_of(1e-3)),
        void=Void(code=VoidCode.CLOCK_DRIFT, reason="the clock drifted by 4 %"),
        notes=(Note(code="used-up", doubt=True, text="<it> was used up"),),
    )
    lines = run_markdown(runs.run((busy, doubtful))).splitlines()
    *_, below = (place for place, line in enumerate(lines) if line.startswith("|"))

    assert lines[below + 1 :] == [
        "",
        "- `test_a`: GPU 0 utilization 48 of 100: 75 % compute-heavy, 25 % I/O\\|data",
        "- `test_a`: GPU 1 utilization n/a: no reading during the test",
        "- `test_b`: void: the clock drifted by 4 %",
        "- `test_b`: \\<it\\> was used up",
    ]


def test_no_name_is_markup() -> None:
    """HTML, pipes, fences, mentions and issue numbers in names stay text."""
    evil = "<img>|```@me #1"
    verdict = replace(runs.UNMEASURED, key=runs.key(evil), detail=(evil,))
    failed = replace(runs.REGRESSED, key=runs.key("b"), detail=(evil,))
    text = run_markdown(runs.run(verdicts=(verdict, failed), collectors=(evil,)))
    title, _, judged, *_ = text.splitlines()
    row = next(line for line in text.splitlines() if line.startswith("| ````"))

    assert row == "| ````<img>\\|```@me #1```` | - | unmeasured |"
    for line in (title, judged):
        assert "\\<img\\>\\|\\`\\`\\`@\u200bme #\u200b1" in line
    assert text.count("````text\n") == 1
    assert text.endswith("````\n")


def test_a_capture_is_one_row_a_launch() -> None:
    """Numbers and units are the tool's own; a launch that failed is marked."""
    capture = Capture((Range((SAXPY, FAILED)),))
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
    capture = Capture((Range((SAXPY,)), Range((FAILED,))))
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


def test_templates_of_one_name_are_told_apart() -> None:
    """Where a name is shared the whole name is shown, its middle left out."""
    capture = Capture(
        (
            Range(
                (
                    dataclasses.replace(
                        SAXPY, kernel="Kernel", demangled="void Kernel<float, 1>"
                    ),
                    dataclasses.replace(
                        SAXPY, kernel="Kernel", demangled="void Kernel<half, 2>"
                    ),
                )
            ),
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
    capture = Capture((Range((SAXPY,)),))

    assert b"saxpy  " in capture_bytes(capture, "text", metrics=None, width=100)
    assert b"| `saxpy` |" in capture_bytes(capture, "markdown", metrics=None)


def test_a_run_can_be_cut_to_some_metrics() -> None:
    """`show --metrics` leaves out the others, and their verdicts."""
    cut = only_metrics(runs.gpu_run(), ("registers",))

    assert {each.metric for record in cut.records for each in record.estimates} == {
        "registers"
    }
    assert cut.verdicts == (runs.FAILED,)


def test_a_failure_that_is_expected_is_not_bold() -> None:
    """It is called by pytest's word; what its test kept beside it has passed."""
    other = replace(runs.FAILED.key, name="b")
    kept = replace(runs.FAILED, outcome=Outcome.PASSED, key=other)
    run = replace(
        runs.run(verdicts=(runs.FAILED, kept)), xfailed=(runs.FAILED.key.test_id,)
    )
    text = run_markdown(run)

    assert "FAILED" not in text
    assert "| xfailed |" in text
    assert "| passed |" in text
