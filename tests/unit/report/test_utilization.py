"""report.display: what GPUs were busy with, as lines below their row."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import runs
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.run import HeaderNote
from pytest_gpuperf.model.telemetry import UtilizationWindow
from pytest_gpuperf.report import terminal
from pytest_gpuperf.report.display import utilization_lines
from pytest_gpuperf.report.lines import Line, Style
from pytest_gpuperf.report.rows import rows
from pytest_gpuperf.report.summary import table_lines


def window(**fields: Any) -> UtilizationWindow:
    """Return a window of ten seconds."""
    given_: dict[str, Any] = {
        "gpu_index": 0,
        "gpu_uuid": "GPU-a",
        "duration_s": 10.0,
        "reading_count": 100,
        "class_s": {},
        "incomplete_s": 0.0,
        "unobserved_s": 0.0,
    }
    return UtilizationWindow(**given_ | fields)


def test_the_longest_classes_are_named() -> None:
    """Longest first, then by label; the others are one part."""
    classes = {"b": 2.0, "a": 2.0, "c": 4.0, "d": 1.0, "e": 0.96}
    (line,) = utilization_lines([window(class_s=classes, unobserved_s=0.04)])

    assert line == (
        "utilization n/a: 40 % c, 20 % a, 20 % b, 20 % 2 other classes, "
        "under 1 % not observed"
    )


def test_a_score_is_shown_with_its_spread() -> None:
    """As far as it is known."""
    (line,) = utilization_lines(
        [
            window(
                class_s={"idle": 5.0},
                incomplete_s=5.0,
                real_util=12.4,
                real_util_p50=10.0,
                real_util_p95=99.6,
            )
        ]
    )

    assert line == (
        "utilization 12 of 100 (p50 10, p95 100): 50 % idle, "
        "50 % without SM, tensor or DRAM activity"
    )
    assert "of 100: " in utilization_lines([window(real_util=1.0, unobserved_s=9.0)])[0]


def test_several_gpus_are_told_apart() -> None:
    """By their index; one alone needs none."""
    lines = utilization_lines(
        [window(unobserved_s=10.0), window(gpu_index=3, reading_count=0)]
    )

    assert lines == [
        "GPU 0 utilization n/a: 100 % not observed",
        "GPU 3 utilization n/a: no reading during the test",
    ]
    assert utilization_lines([]) == []


def test_a_test_that_took_no_time_has_no_shares() -> None:
    """Nothing is divided by zero."""
    (line,) = utilization_lines([window(duration_s=0.0)])

    assert line.endswith("no reading during the test")


@given(
    parts=st.dictionaries(st.text(max_size=9), st.floats(0.0, 1e6), max_size=12),
    left_s=st.floats(0.0, 1e6),
)
def test_a_line_is_one_line(parts: dict[str, float], left_s: float) -> None:
    """Whatever a class is called."""
    total_s = sum(parts.values()) + left_s
    (line,) = utilization_lines(
        [window(class_s=parts, unobserved_s=left_s, duration_s=total_s)]
    )

    assert len(line.splitlines()) == 1
    assert "\x1b" not in line


@pytest.mark.parametrize("name", ["duration_s", "incomplete_s", "real_util_p95"])
def test_a_window_holds_finite_numbers(name: str) -> None:
    """As every record does."""
    with pytest.raises(ValueError, match="not a finite number"):
        window(**{name: float("nan")})


def test_it_stands_below_its_row() -> None:
    """Who asked for a time line sees it without -v, fainter than values and verdicts."""
    measured = replace(
        runs.record("test_a", runs.time_of(1e-3)),
        utilization=(window(class_s={"idle": 10.0}, real_util=0.5),),
    )
    _, _, below = table_lines(rows(runs.run((measured,))), width=100)

    assert below == Line("    utilization 0 of 100: 100 % idle", Style.FAINT)


@pytest.mark.parametrize("width", [40, 100])
def test_it_is_no_wider_than_the_terminal(width: int) -> None:
    """Classes that do not fit go on in the next line."""
    busy = {"compute-heavy": 4.0, "I/O or data-loading": 3.0, "low utilization": 3.0}
    measured = replace(
        runs.record("test_a", runs.time_of(1e-3)),
        utilization=(window(class_s=busy, real_util=40.0),),
    )
    lines = table_lines(rows(runs.run((measured,))), width=width)

    assert all(len(line.text) <= width for line in lines)


def test_a_time_line_that_is_missing_is_told() -> None:
    """It was asked for by name: the header says without -v why there is none."""
    sentence = "telemetry: there is no place for it; name one"
    run = runs.gpu_run()
    note = HeaderNote(about="telemetry", text=sentence, code=GapCode.UNSUPPORTED)
    header = replace(run.header, notes=(*run.header.notes, note))
    lines = [*terminal.header_lines(header, device=runs.H200)]

    assert Line(f"    {sentence}", Style.FAINT) in lines
