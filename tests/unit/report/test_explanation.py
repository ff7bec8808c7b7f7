"""report.explanation, commands, assertion: why, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import runs
from pytest_gpuperf.model import environment
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.verdict import (
    Outcome,
    Reason,
    Verdict,
)
from pytest_gpuperf.report import words
from pytest_gpuperf.report.asserted import assert_lines
from pytest_gpuperf.report.explanation import (
    command_text,
    commands,
    completed,
    evidence,
    explanation,
    first_line,
    longrepr_lines,
)
from pytest_gpuperf.report.rows import rows


def shown(verdict: Verdict, *, width: int = 100) -> str:
    """Return what a failed test shows as one text."""
    return "\n".join(line.text for line in longrepr_lines(verdict, width=width))


def typed(verdict: Verdict, options: Mapping[str, str]) -> list[str]:
    """Return what is offered to be typed."""
    return [command_text(command) for command in commands(verdict, options)]


def test_a_command_is_typed_where_pytest_was_started() -> None:
    """In a folder below the root, test and store are named from there."""
    below = {"rootdir": "../.."}
    command, accept = typed(runs.REGRESSED, below)

    assert '"../../tests/test_gemm.py::test_gemm[4096]"' in command
    assert "--gpuperf-baseline=../../.gpuperf" in command
    assert "=../../.gpuperf" in accept


def test_what_is_accepted_already_is_not_offered_again() -> None:
    """The run that stores all has accepted what regressed."""
    told = {"gpuperf_update": "all"}
    texts = [line.text for line in longrepr_lines(runs.REGRESSED, options=told)]

    assert any("accept:" in line.text for line in longrepr_lines(runs.REGRESSED))
    assert not any("accept:" in text for text in texts)


def test_the_first_line_of_a_failure_is_the_whole_message() -> None:
    """JUnit takes one line: metric, outcome, value, baseline, change, limit."""
    first, *rest = longrepr_lines(runs.REGRESSED)

    assert first.text == (
        "time regressed: 183 us, was 170 us: +7.9 % (+7.1 … +8.7 %), limit 5 %, "
        "smallest detectable change 1.6 %"
    )
    assert [line.text.split()[0] for line in rest] == [
        "registers",
        "confirmed",
        "baseline:",
        "2.11.0",
        "reproduce:",
        "accept:",
    ]


def test_an_unmeasured_verdict_is_one_line() -> None:
    """A skip has a reason of one line: what, why, what to do."""
    assert shown(runs.UNMEASURED) == (
        "dram.bytes: counters: no permission; allow counters in the driver"
    )


def missed(text: str, value: float, threshold: float, unit: str) -> Verdict:
    """Return a missed limit."""
    limit = replace(runs.REGISTERS, text=text, threshold=threshold, kernel=None)
    estimate = runs.value_of("m", value, unit)
    return replace(runs.FAILED, limit=limit, estimate=estimate)


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (
            missed("m <= 60 us", 61.3e-6, 60e-6, "s"),
            "61.3 us, limit m <= 60 us, missed by 2.2 %",
        ),
        (
            missed("m <= 60 us", 60.001e-6, 60e-6, "s"),
            "60.001 us, limit m <= 60 us, missed by 0.002 %",
        ),
        (missed("m >= 80 %", 0.7996, 0.8, "fraction"), "79.96 %, limit m >= 80 %"),
        (missed("m == 0", 3, 0, "count"), "3, limit m == 0"),
        (
            replace(missed("m <= 60 us", 1.0, 60e-6, "s"), estimate=None),
            "limit m <= 60 us",
        ),
    ],
)
def test_a_missed_limit_shows_value_limit_and_distance(
    verdict: Verdict, text: str
) -> None:
    """The limit is shown as it was written, the value with the digits that it takes."""
    assert evidence(verdict) == text


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (
            replace(
                runs.REGRESSED,
                outcome=Outcome.UNCHANGED,
                reason=Reason.EQUAL,
                estimate=runs.value_of("registers", 40, "count"),
                change=replace(
                    runs.change(0.0, 40),
                    effect=0.0,
                    current=40,
                    reference=40,
                    exact=True,
                ),
            ),
            "40, as before, limit 5 %",
        ),
        (
            replace(
                runs.REGRESSED,
                threshold=None,
                change=replace(
                    runs.change(0.2, 12e-6), low=None, detectable_effect=None
                ),
            ),
            "12.0 us, was 10.0 us: +20.0 %, no limit",
        ),
        (
            replace(
                runs.REGRESSED,
                outcome=Outcome.NEW,
                reason=Reason.NOTHING_STORED,
                change=None,
            ),
            "183 us: the baseline holds no session of this measurement",
        ),
        (
            replace(
                runs.REGRESSED,
                outcome=Outcome.INCOMPARABLE,
                reason=Reason.FINGERPRINT_DIFFERS,
                change=None,
                estimate=None,
            ),
            "the baseline was measured on other hardware, or in another way",
        ),
    ],
)
def test_a_change_shows_what_it_has(verdict: Verdict, text: str) -> None:
    """Nothing is made up: no interval, no percentage of 0, no limit that there is not."""
    assert evidence(verdict) == text


def test_one_commit_on_one_day_is_named_once() -> None:
    """A baseline of one session has no range; many moved facts are counted."""
    span = replace(
        runs.SPAN,
        session_count=1,
        first_unix_s=runs.SPAN.last_unix_s,
        first_commit=runs.SPAN.last_commit,
        moved={f"fact{n}": ("1", "2") for n in range(8)},
    )
    verdict = replace(runs.REGRESSED, baseline=span, confirmations=(0.06,))
    text = shown(verdict, width=400)

    assert "baseline: 1 session, 2026-11-20, commit 9be01d4; since then fact0" in text
    assert "fact5 1 -> 2, 2 more" in text
    assert "confirmed in 1 fresh process (+6.0 %)" in text


def test_what_was_not_decided_was_measured_again_and_not_confirmed() -> None:
    """`confirmed` is only written where something was."""
    verdict = replace(
        runs.REGRESSED, outcome=Outcome.INCONCLUSIVE, reason=Reason.NOT_CONFIRMED
    )

    assert "measured again in 3 fresh processes" in shown(verdict)


@pytest.mark.parametrize(
    ("effects", "text"),
    [
        ((0.08, 0.09, 0.2), "confirmed in 3 fresh processes"),
        ((0.08, 0.01, 0.2, 0.3, 0.1), "confirmed in 4 of 5 fresh processes"),
        ((0.04,), "confirmed in 0 of 1 fresh process"),
    ],
)
def test_only_processes_that_confirm_are_counted(
    effects: tuple[float, ...], text: str
) -> None:
    """One within the limit measured it again, and says nothing for the verdict."""
    slower = replace(runs.REGRESSED, confirmations=effects)

    assert text in shown(slower)


IDS = st.text(
    st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=30
)


@given(name=IDS)
def test_a_command_names_exactly_this_test(name: str) -> None:
    """A shell hands pytest the exact id, whatever characters it has."""
    verdict = replace(runs.REGRESSED, key=runs.key(f"test[{name}]"))
    program, test_id, *_ = shlex.split(typed(verdict, {})[1])

    assert program == "pytest"
    assert test_id == verdict.key.test_id


def test_commands_repeat_the_options_that_matter() -> None:
    """What decides is repeated; reports and updates are not; the store is always named."""
    options = {
        "gpuperf_baseline": "my store",
        "gpuperf_confirm": "7",
        "gpuperf_strict": "true",
        "gpuperf_json": "run.json",
        "gpuperf_update": "new",
    }

    assert typed(runs.REGRESSED, options)[0] == (
        'pytest "tests/test_gemm.py::test_gemm[4096]" "--gpuperf-baseline=my store" '
        "--gpuperf-confirm=7 --gpuperf-strict"
    )
    assert typed(runs.REGRESSED, {})[1] == (
        'pytest "tests/test_gemm.py::test_gemm[4096]" --gpuperf-baseline=.gpuperf '
        "--gpuperf-update=all"
    )
    assert typed(runs.FAILED, {}) == ["pytest tests/test_gemm.py::test_registers"]


def test_an_improvement_is_accepted_without_regressions() -> None:
    """Only a test that changed itself needs an update of all."""
    improved = replace(
        runs.REGRESSED, outcome=Outcome.IMPROVED, reason=Reason.FASTER_THAN_LIMIT
    )
    span = replace(runs.SPAN, moved={environment.TEST: ("1", "2")})
    changed = replace(improved, baseline=span)

    assert typed(improved, {})[1].endswith("--gpuperf-update=improved")
    assert typed(changed, {})[1].endswith("--gpuperf-update=all")
    assert len(typed(improved, {"gpuperf_update": "improved"})) == 1


def of_suite(verdict: Verdict, **changed: Any) -> Verdict:
    """Return a verdict against sessions that ran many more tests than one."""
    assert verdict.baseline is not None
    return replace(
        verdict, baseline=replace(verdict.baseline, of_suite=True, **changed)
    )


ARGUMENTS = {"arguments": "-n2 'tests/my folder' -k 'not slow'"}
RUN = 'pytest -n2 "tests/my folder" -k "not slow" --gpuperf-baseline=.gpuperf'
TEST = 'pytest "tests/test_gemm.py::test_gemm[4096]" --gpuperf-baseline=.gpuperf'


def below(verdict: Verdict) -> str:
    """Return the block of a verdict as one text."""
    lines = explanation(verdict, name="test_gemm[4096]", options=ARGUMENTS)
    return " ".join(" ".join(line.text for line in lines).split())


def test_a_command_repeats_the_run_where_the_test_alone_says_nothing() -> None:
    """No stored session has measured it alone, and a run of one test is no suite."""
    verdict = of_suite(runs.REGRESSED)

    assert typed(verdict, ARGUMENTS) == [RUN, f"{RUN} --gpuperf-update=all"]
    assert typed(verdict, {})[0] == "pytest --gpuperf-baseline=.gpuperf"
    assert "no stored session has measured this test alone" in below(verdict)


def test_a_test_with_a_value_alone_is_named() -> None:
    """What accepts it stores a session of the suite all the same."""
    verdict = of_suite(runs.REGRESSED, alone_count=1)

    assert typed(verdict, ARGUMENTS) == [TEST, f"{RUN} --gpuperf-update=all"]
    assert "accepting repeats this run, and accepts all that changed" in below(verdict)
    assert "repeats this run" not in below(runs.REGRESSED)


def test_what_only_the_suite_shows_is_reproduced_by_the_suite() -> None:
    """Alone the test is as it was, whatever was stored of it alone."""
    verdict = of_suite(
        replace(
            runs.REGRESSED,
            outcome=Outcome.INCONCLUSIVE,
            reason=Reason.SLOWER_IN_SUITE,
            in_suite=runs.change(1.0, 2.0),
        ),
        alone_count=1,
    )

    assert typed(verdict, ARGUMENTS) == [RUN]
    assert "alone this test is not slower" in below(verdict)


def test_a_comparison_with_a_revision_names_its_test() -> None:
    """Both sides run alone there, and a limit needs no stored session at all."""
    assert typed(runs.FAILED, ARGUMENTS) == [
        "pytest tests/test_gemm.py::test_registers"
    ]


def test_a_reported_run_says_why_and_what_to_type() -> None:
    """Nobody builds a sentence or a command again; what passes has none."""
    regressed, passed = completed(
        runs.run(
            (),
            (runs.REGRESSED, replace(runs.FAILED, outcome=Outcome.PASSED)),
            options={"gpuperf_baseline": "my store"},
        )
    ).verdicts

    assert regressed.sentence.startswith("It is worse than the baseline")
    assert [command.kind for command in regressed.commands] == ["reproduce", "accept"]
    assert "--gpuperf-baseline=my store" in regressed.commands[0].argv
    assert (passed.sentence, passed.commands) == ("", ())


def test_a_failed_assert_is_explained() -> None:
    """Both sides in their unit, then where the value came from and how far it is off."""
    assert assert_lines("<=", 61.3e-6, 60e-6, left_estimate=runs.time_of(61.3e-6)) == [
        "time 61.3 us <= 60 us",
        "    time: 61.3 us ±0.3 % (61.1 … 61.5 us), 50 samples, measured by events",
        "    off by +2.2 %",
    ]


def test_two_measured_sides_are_both_explained() -> None:
    """A comparison of two measurements shows both."""
    lines = assert_lines(
        "<",
        2e-3,
        1e-3,
        left_estimate=runs.time_of(2e-3),
        right_estimate=runs.value_of("time", 1e-3, "s", kernel="k"),
    )

    assert lines == [
        'time 2.00 ms < time["k"] 1.00 ms',
        "    time: 2.00 ms ±0.3 % (1.99 … 2.01 ms), 50 samples, measured by events",
        '    time["k"]: 1.00 ms, 1 sample, detected by binary',
        "    off by +100 %",
    ]


class Broken:
    """Something whose repr raises."""

    def __repr__(self) -> str:
        """Raise."""
        raise RuntimeError


@given(
    op=st.text(max_size=3),
    right=st.one_of(
        st.floats(),
        st.integers(),
        st.text(),
        st.none(),
        st.booleans(),
        st.builds(Broken),
    ),
    measured=st.booleans(),
    left=st.floats(),
)
def test_explaining_an_assert_never_raises(
    op: str, right: object, measured: bool, left: float
) -> None:
    """Whatever is compared, the failure is shown; nothing in it is a control code."""
    estimate = runs.time_of(1e-3) if measured else None
    lines = assert_lines(op, left, right, left_estimate=estimate)
    lines += assert_lines(op, right, left, right_estimate=estimate)

    assert all(len(line.splitlines()) == 1 for line in lines)


def test_a_huge_integer_is_no_number_of_ours() -> None:
    """An integer beyond every float is shown as it is, cut short."""
    first, *_ = assert_lines("<=", 1.0, 10**400, left_estimate=runs.time_of(1.0))

    assert first.startswith("time 1.00 s <= 1000000")
    assert first.endswith("…")


def test_a_baseline_that_sees_next_to_nothing_says_so() -> None:
    """Bounds far beyond the value are not figures: nobody can decide by them."""
    assert runs.REGRESSED.change is not None
    blind = replace(
        runs.REGRESSED.change,
        effect=0.2,
        low=-0.99999,
        high=6359.31,
        detectable_effect=191979.64,
    )
    undecided = replace(runs.REGRESSED, change=blind, outcome=Outcome.INCONCLUSIVE)

    assert (
        "+20.0 % (interval unknown), limit 5 %, smallest detectable change 1000 x: "
        in evidence(undecided)
    )


def test_what_a_baseline_mostly_sees_is_not_said_of_a_smaller_change_it_found() -> None:
    """Half of the changes below it are found: a verdict does not argue with itself."""
    assert runs.REGRESSED.change is not None
    lucky = replace(runs.REGRESSED.change, detectable_effect=0.08)

    assert "detectable" in evidence(runs.REGRESSED)
    assert "detectable" not in evidence(replace(runs.REGRESSED, change=lucky))


@pytest.mark.parametrize(("drift", "marked"), [(0.057, "*"), (0.003, ""), (0.0, "")])
def test_a_change_is_marked_where_the_machine_moved_it(
    drift: float, marked: str
) -> None:
    """By a percent or more: a mark on each row of a quiet run would say nothing."""
    assert runs.REGRESSED.change is not None
    change = replace(runs.REGRESSED.change, machine_shift=drift)

    assert words.change(replace(runs.REGRESSED, change=change)) == f"+7.9 %{marked}"


@pytest.mark.parametrize(("drift", "said"), [(0.057, True), (0.0002, False)])
def test_machine_drift_is_told_where_it_was_subtracted(
    drift: float, *, said: bool
) -> None:
    """Then the values now and before are farther apart, or nearer, than the change."""
    assert runs.REGRESSED.change is not None
    change = replace(runs.REGRESSED.change, machine_shift=drift)
    text = evidence(replace(runs.REGRESSED, change=change))

    assert (" corrected for machine drift (+5.7 %), limit" in text) == said


@pytest.mark.parametrize(
    ("core", "drift", "said"),
    [
        (0.38, None, "+8.7 %), 183 us corrected for a slower CPU (+38.0 %), limit 5 %"),
        (
            -0.25,
            None,
            "+8.7 %), 183 us corrected for a faster CPU (-25.0 %), limit 5 %",
        ),
        (
            *(0.38, 0.057),
            "+8.7 %), 183 us corrected for a slower CPU (+38.0 %) and machine drift (+5.7 %), limit",
        ),
        (0.0002, None, "+8.7 %), limit 5 %"),
    ],
)
def test_speed_of_the_core_is_told_where_it_was_taken_out(
    core: float, drift: float | None, said: str
) -> None:
    """The measured value and the one that is judged differ by it."""
    assert runs.REGRESSED.change is not None
    change = replace(runs.REGRESSED.change, core_shift=core, machine_shift=drift)

    assert said in evidence(replace(runs.REGRESSED, change=change))


@pytest.mark.parametrize(
    ("processes", "shown"), [(1, "183 us, was"), (3, "200 us, was")]
)
def test_the_value_of_a_change_is_that_of_its_row(processes: int, shown: str) -> None:
    """It is what was measured, of one process and of several: with the core's part."""
    verdict = runs.REGRESSED
    assert verdict.change is not None
    change = replace(
        verdict.change, current=160e-6, core_shift=0.25, run_count=processes
    )
    moved = replace(verdict, change=change)
    record = replace(runs.record("x", runs.time_of(183e-6)), key=verdict.key)
    (row,) = rows(runs.run((record,), (moved,)))

    assert shown in evidence(moved)
    assert shown.startswith(row.time)


@pytest.mark.parametrize("fresh", [False, True])
def test_the_numbers_of_a_change_multiply(*, fresh: bool) -> None:
    """Was, times what each part moved it by, is now; a first line has no room for parts."""
    machine, core, effect, was = 0.052, 0.149, 0.436, 3.06e-3
    current = was * (1 + machine) * (1 + effect)
    assert runs.REGRESSED.change is not None
    change = replace(
        runs.REGRESSED.change,
        effect=effect,
        current=current,
        reference=was,
        machine_shift=machine,
        core_shift=core,
        fresh=fresh,
    )
    suite = runs.time_of(current * (1 + core))
    verdict = replace(runs.REGRESSED, change=change, estimate=suite)
    numbers = (
        "5.31 ms, was 3.06 ms: +43.6 %",
        ", 4.39 ms corrected for a slower CPU (+14.9 %) and machine drift (+5.2 %), limit 5 %",
    )

    assert all(text in evidence(verdict) for text in numbers)
    assert first_line(verdict) == (
        "time regressed: 5.31 ms, was 3.06 ms: +43.6 % adjusted, limit 5 %"
    )
    first, second, *_ = longrepr_lines(verdict, width=999)
    assert second.text.strip().startswith("+43.6 % (")
    assert numbers[1].removesuffix(", limit 5 %") in second.text
    assert first.text == first_line(verdict)


def test_a_large_change_keeps_a_narrow_interval() -> None:
    """Twenty times as slow, give or take a little, is known well."""
    assert runs.REGRESSED.change is not None
    large = replace(runs.REGRESSED.change, effect=19.0, low=18.0, high=20.0)

    assert "(+1800 … +2000 %)" in evidence(replace(runs.REGRESSED, change=large))


def test_what_is_many_times_its_limit_is_told_as_a_ratio() -> None:
    """A limit that was written in another unit by mistake reads as what it is."""
    assert runs.FAILED.limit is not None
    assert runs.FAILED.estimate is not None
    estimate = replace(runs.FAILED.estimate, value=64e6)
    far = next(iter(longrepr_lines(replace(runs.FAILED, estimate=estimate))))
    lines = assert_lines("<=", 5.0, 1e-3, left_estimate=runs.time_of(5.0))

    assert far.text.endswith("1000000 times the limit")
    assert lines[-1] == "    5000 times as much"


@pytest.mark.parametrize("name", ["time", "dram__bytes.sum." + "x" * 200])
@pytest.mark.parametrize("drift", [None, 0.123])
def test_the_first_line_of_a_failure_fits_a_list_of_failures(
    name: str, drift: float | None
) -> None:
    """Value, before, change and limit in 120 characters; the rest is in the next line."""
    moved = replace(runs.change(0.0791234, 183.456e-6), machine_shift=drift)
    changed = replace(runs.REGRESSED, metric=name, change=moved)
    long = replace(runs.REGISTERS, text=f"{name} <= 64")
    wide = {"low": 71.123456789, "high": 72.987654321}
    failed = replace(runs.FAILED, metric=name, limit=long, **wide)

    for verdict in (changed, failed):
        first, second, *_ = (line.text for line in longrepr_lines(verdict, width=999))
        assert len(first) <= 120
        assert verdict.outcome.value in first
        if name == "time" and not first.endswith(evidence(verdict)):
            assert "limit" not in second
            assert "was" not in second
            assert second.split()[0] in evidence(verdict)
    if name == "time":
        assert "was 170 us: +7.9 %" in next(longrepr_lines(changed)).text
        assert "limit 5 %" in next(longrepr_lines(changed)).text
