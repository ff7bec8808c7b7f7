"""report.runs beside older ones: was, now and what was judged of it, each under its name."""

from __future__ import annotations

import pytest

from fakes import runs
from pytest_gpuperf.judge.files import ValuePair, value_pairs, with_known_spread
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import SessionValue
from pytest_gpuperf.model.sample import Source
from pytest_gpuperf.model.verdict import Outcome, Reason, Verdict
from pytest_gpuperf.report.runs import comparison_table, pair_facts

KEY = runs.key("test_a")
CHANGE = Change(
    effect=0.1,
    low=0.05,
    high=0.15,
    current=110e-6,
    reference=100e-6,
    session_count=3,
    run_count=1,
)


def decided(change: Change, metric: str = "time") -> Verdict:
    """Return a verdict of a change."""
    return replace(runs.REGRESSED, key=KEY, metric=metric, change=change)


def number(value: float, *half_widths: float, metric: str = "time") -> SessionValue:
    """Return a session's value."""
    return SessionValue(
        metric=metric,
        unit="s" if metric == "time" else "count",
        source=Source.HOST if metric == "time" else Source.USER,
        run_values=(value,),
        half_widths=half_widths,
    )


def printed(*pairs: ValuePair, form: str = "text", width: int = 120) -> str:
    """Return a comparison as text."""
    return comparison_table(
        pairs, form, title="a -> b", remarks=(), width=width
    ).decode()


def pair_of(change: Change, now: float) -> ValuePair:
    """Return a time with what was decided of it."""
    (pair,) = value_pairs(
        {KEY: (number(now),)},
        {KEY: (number(100e-6),)},
        {(KEY, "time"): decided(change)},
    )
    return pair


@pytest.mark.parametrize(
    ("shifts", "now"),
    [
        ({"core_shift": 0.5}, 165e-6),
        ({"machine_shift": 0.5, "current": 165e-6}, 165e-6),
    ],
)
def test_two_ratios_are_named_for_what_they_are(
    shifts: dict[str, float], now: float
) -> None:
    """The values are those that were measured; the interval is of what was judged."""
    pair = pair_of(replace(CHANGE, **shifts), now)
    heads, row, *remarks = printed(pair).splitlines()[1:]

    assert pair.now == pytest.approx(now)
    assert pair.was == 100e-6
    assert heads.split()[:5] == ["test", "was", "now", "now/was", "adjusted"]
    assert row.split()[1:] == [
        *("100", "us", "165", "us", "1.650", "1.100"),
        *("1.050", "…", "1.150", "REGRESSED"),
    ]
    assert "corrected for CPU speed and machine drift" in remarks[0]
    facts = pair_facts(pair)
    assert facts["ratio"] == pytest.approx(1.65)
    assert facts["adjusted_ratio"] == pytest.approx(1.1)
    assert facts["interval"] == [pytest.approx(1.05), pytest.approx(1.15)]


def test_where_there_is_no_room_the_judged_ratio_stays() -> None:
    """Who sees was and now can divide them; Markdown has them all."""
    pair = pair_of(replace(CHANGE, core_shift=0.5), 165e-6)
    narrow = printed(pair, width=66)

    assert all(len(line) <= 66 for line in narrow.splitlines())
    assert "adjusted" in narrow.splitlines()[1]
    assert "now/was" not in narrow.splitlines()[1]
    assert "| now/was | adjusted | 98 % interval |" in printed(pair, form="markdown")


@pytest.mark.parametrize("shift", [None, 0.0, 0.0002])
def test_there_is_one_ratio_where_both_are_the_same(shift: float | None) -> None:
    """What moves no printed digit is no second number."""
    text = printed(pair_of(replace(CHANGE, core_shift=shift), 110e-6))

    assert "now/was" in text
    assert "adjusted" not in text


def test_a_number_without_samples_has_no_interval_by_one_session() -> None:
    """Nothing was seen of how it varies; with a second session something was."""
    change = replace(CHANGE, session_count=1, current=11.0, reference=10.0)
    verdict = decided(change, "tokens")
    value, sampled = number(11.0, metric="tokens"), number(11.0, 0.1, metric="tokens")
    bare = with_known_spread(verdict, [value], [value])
    (pair,) = value_pairs({KEY: [value]}, {KEY: [value]}, {(KEY, "tokens"): bare})

    assert pair.interval is None
    assert pair_facts(pair)["interval_of"] is None
    assert "1.100  ?" in printed(pair)
    assert (
        printed(pair, pair).count("? unknown: one older session without samples") == 1
    )
    assert with_known_spread(verdict, [sampled], [value]) is verdict
    for known in (
        {"session_count": 2},
        {"run_count": 2},
        {"exact": True},
    ):
        of_more = decided(replace(change, **known), "tokens")
        assert with_known_spread(of_more, [value], [value]) is of_more


def test_what_one_side_alone_has_is_new_or_gone() -> None:
    """Nothing is decided of it, and nothing is unknown."""
    new = ValuePair(key=KEY, metric="tokens", unit="count", now=1.0)
    gone = replace(new, now=None, was=1.0)

    assert printed(new).splitlines()[2].split()[-1] == "new"
    assert printed(gone).splitlines()[2].split()[-1] == "gone"
    assert "?" not in printed(new, gone)
    assert "`test_a tokens`" in printed(new, form="markdown")


def test_files_say_of_an_improvement_that_it_is_not_confirmed() -> None:
    """No fresh process measures it again where files are compared."""
    faster = replace(
        pair_of(runs.change(-0.2, 80e-6), 80e-6),
        verdict=runs.changed(
            "test_x", Outcome.IMPROVED, Reason.NOT_CONFIRMED, runs.change(-0.2, 80e-6)
        ),
    )

    assert printed(faster).splitlines()[2].endswith(" improved (not confirmed)")
