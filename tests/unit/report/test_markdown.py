"""report.runs as Markdown: what fails stands first, and all of it fits a comment."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fakes import runs
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Note, Void, VoidCode
from pytest_gpuperf.model.run import TestPlace
from pytest_gpuperf.model.telemetry import UtilizationWindow
from pytest_gpuperf.model.verdict import Outcome, Reason
from pytest_gpuperf.report.runs import run_markdown

_STARTS = ("####", "| `")  # of a group's heading, and of a row


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
    | `test_registers` | - |  | limit only | **FAILED** | n/a | - | registers 72, stack 0 B, theoretical occupancy 62.5 % |
    | `test_gemm[4096]` | 183 us | ±0.4 % | +7.9 % | **REGRESSED** | 61 % bf16 | compute |  |

    ```text
    FAILED test_registers: registers["rmsnorm"] 72, limit registers["rms*"] <= 64, missed by 12.5 %
    REGRESSED test_gemm[4096]: 183 us, was 170 us: +7.9 % (+7.1 … +8.7 %), limit 5 %, smallest detectable change 1.6 %
        registers 168 -> 232
        confirmed in 3 fresh processes (+7.7 … +8.1 %)
        baseline: 6 sessions, 2026-11-02 … 2026-11-20, commits 3f2a1c9 … 9be01d4; since then torch 2.11.0 -> 2.11.1
    ```
    """)

    assert run_markdown(run, commands=False) == expected


def test_what_broke_is_not_folded_away_as_passed() -> None:
    """It stands above all that passed, measured or not; a skip is not loud."""
    records = [runs.record(f"test_{n}", runs.time_of(1e-3)) for n in range(12)]
    broken, skipped = (records[place].key.test_id for place in (3, 5))
    run = replace(
        runs.run(tuple(records)),
        broken=(broken, runs.key("test_early").test_id),
        skipped=(skipped,),
    )
    head, _, folded = run_markdown(run).partition("<details>")

    assert "| `test_3` | 1.00 ms | ±0.3 % | **ERROR** |" in head
    assert "| `test_early` | - |  | **ERROR** |" in head
    assert "ERROR" not in folded
    assert "| `test_5` | 1.00 ms | ±0.3 % | skipped |" in folded


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
        "- `test_b`: void: the clock drifted by 4 %",
        "- `test_b`: \\<it\\> was used up (used-up)",
        "- `test_a`: GPU 0 utilization 48 of 100: 75 % compute-heavy, 25 % I/O\\|data",
        "- `test_a`: GPU 1 utilization n/a: no reading during the test",
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


def test_what_passed_is_folded_below_what_needs_attention() -> None:
    """Twelve unchanged tests hide no regression; groups are headings in both parts."""
    unchanged = [
        runs.changed(
            f"test_{number}",
            Outcome.UNCHANGED,
            Reason.WITHIN_NOISE,
            runs.change(0.001, 1e-3),
        )
        for number in range(12)
    ]
    verdicts = (*unchanged, runs.REGRESSED)
    records = tuple(
        replace(runs.record("x", runs.time_of(1e-3)), key=v.key) for v in verdicts
    )
    places = tuple(
        TestPlace(test_id=v.key.test_id, group="a_b" if place % 2 else None)
        for place, v in enumerate(verdicts)
    )
    run = replace(runs.run(records, verdicts), tests=places)
    lines = run_markdown(run).splitlines()

    fold = lines.index(
        "<details><summary>12 measurements passed, unchanged or blind</summary>"
    )
    (regressed,) = (
        place for place, line in enumerate(lines) if line.startswith("| `test_gemm")
    )
    assert regressed < fold
    assert "#### a\\_b" not in lines[:fold]
    assert [line for line in lines[fold:] if line.startswith("#")] == [
        "#### no group",
        "#### a\\_b",
    ]
    assert lines[fold + 1] == ""  # or a forge takes the table for HTML
    assert lines[-2:] == ["", "</details>"]


@pytest.mark.parametrize(
    ("group", "heading"), [("b", "#### b"), (None, "#### no group")]
)
def test_failures_of_every_group_come_first(group: str | None, heading: str) -> None:
    """A doubt of the first group does not stand above the regression of a second one."""
    verdicts = tuple(
        replace(runs.REGRESSED, key=runs.key(f"test_{name}"), outcome=outcome)
        for name, outcome in (
            *(("a", Outcome.REGRESSED), ("a_open", Outcome.INCONCLUSIVE)),
            *(("b_open", Outcome.INCONCLUSIVE), ("b", Outcome.REGRESSED)),
        )
    )
    records = tuple(
        replace(runs.record("x", runs.time_of(1e-3)), key=v.key) for v in verdicts
    )
    places = tuple(
        TestPlace(test_id=v.key.test_id, group=group if "test_b" in str(v.key) else "a")
        for v in verdicts
    )
    run = replace(runs.run(records, verdicts), tests=places)
    lines = [
        line for line in run_markdown(run).splitlines() if line.startswith(_STARTS)
    ]

    assert [line.split("`")[1] if "`" in line else line for line in lines] == [
        *("#### a", "test_a", heading, "test_b"),
        *("#### a", "test_a_open", heading, "test_b_open"),
    ]


def test_a_group_with_its_failures_first_is_one_table() -> None:
    """Nothing stands above a failure: its group is not cut in two."""
    verdicts = (
        replace(runs.REGRESSED, key=runs.key("test_a")),
        replace(
            runs.REGRESSED, key=runs.key("test_open"), outcome=Outcome.INCONCLUSIVE
        ),
    )
    records = tuple(
        replace(runs.record("x", runs.time_of(1e-3)), key=v.key) for v in verdicts
    )
    places = tuple(TestPlace(test_id=v.key.test_id, group="a") for v in verdicts)
    run = replace(runs.run(records, verdicts), tests=places)

    assert run_markdown(run).count("#### a") == 1


def test_a_comment_holds_all_that_it_can() -> None:
    """65,536 bytes are never exceeded; each part says how many more there are."""
    regressed = [
        replace(runs.REGRESSED, key=runs.key(f"test_{number}[é{'x' * 50}]"))
        for number in range(1000)
    ]
    records = tuple(
        replace(runs.record("x", runs.time_of(1e-3)), key=v.key) for v in regressed
    )
    text = run_markdown(runs.run(records, tuple(regressed)))
    rows = text.count("\n| `test_")
    blocks = text.count("\nREGRESSED test_")

    assert 40_000 < len(text.encode()) <= 65_536
    assert rows > 100
    assert f"*{1000 - rows} more measurements*" in text
    assert blocks > 20
    assert f"*{1000 - blocks} more explanations*" in text
    assert text.count("```") == 2


def test_a_run_too_large_for_a_comment_still_has_its_head() -> None:
    """A size that holds nothing holds the counts."""
    text = run_markdown(runs.gpu_run(), most_bytes=0)

    assert text.splitlines()[2].startswith("judged ")
    assert "*6 more measurements*" in text


def test_a_change_without_the_machines_part_is_marked() -> None:
    """Its mark is explained below the table, and is no markup."""
    assert runs.REGRESSED.change is not None
    moved = replace(runs.REGRESSED.change, core_shift=0.1)
    adjusted = replace(runs.REGRESSED, change=moved)
    text = run_markdown(runs.run((), (adjusted,)))

    assert "| +7.9 %\\* |" in text
    assert "\n\n\\* corrected for CPU speed and machine drift" in text
    assert "\\*" not in run_markdown(runs.run((), (runs.REGRESSED,)))
