"""report.words: every outcome and every reason has its sentence."""

from __future__ import annotations

import pytest

from fakes import runs
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.verdict import Outcome, Reason
from pytest_gpuperf.report import words


def test_every_reason_and_outcome_has_a_sentence() -> None:
    """The lists of model and of report agree."""
    assert set(words.REASONS) == set(Reason)
    assert set(words.OUTCOMES) == set(Outcome)


@pytest.mark.parametrize(
    "sentence", [*words.REASONS.values(), *words.OUTCOMES.values()]
)
def test_a_sentence_is_one_sentence(sentence: str) -> None:
    """It begins with a capital, ends with its only full stop, and is short."""
    assert sentence[0].isupper()
    assert sentence.index(".") == len(sentence) - 1
    assert len(sentence) <= 110


def test_no_two_reasons_say_the_same() -> None:
    """A reader can tell reasons apart."""
    assert len(set(words.REASONS.values())) == len(Reason)


def test_what_fails_is_loud() -> None:
    """The eye finds failures in a long table."""
    loud = {outcome for outcome in Outcome if words.label(outcome).isupper()}

    assert loud == {Outcome.FAILED, Outcome.REGRESSED}
    assert words.short(Reason.TOO_FEW_SESSIONS) == "too few sessions"


@pytest.mark.parametrize(
    ("metric", "noun"),
    [
        ("stack_bytes", "stack"),
        ("launches.count", "launches"),
        ("dram.bytes", "dram traffic"),
        ("dram.fraction", "dram use"),
        ("l2.hit_fraction", "l2.hit"),
        ("occupancy.theoretical", "occupancy"),
        ("occupancy.achieved", "occupancy.achieved"),
        ("dram__bytes.sum", "dram__bytes.sum"),
        ("ttft", "ttft"),
    ],
)
def test_a_noun_leaves_out_what_the_unit_says(metric: str, noun: str) -> None:
    """`stack 0 B`, not `stack_bytes 0 B`; a counter keeps its name."""
    assert words.noun(metric) == noun


def test_no_two_nouns_are_the_same() -> None:
    """What stands in a row says which metric it is, whatever its unit."""
    called = [words.noun(name) for name in METRICS]

    assert len(set(called)) == len(called)


def test_what_the_suite_saw_is_said_where_it_was_worse_alone() -> None:
    """Both values beside each other, behind the metric where it is not the time."""
    moved, alone = runs.change(0.99, 20.1e-3), runs.change(0.0, 10.1e-3)
    plain = runs.changed("t", Outcome.UNCHANGED, Reason.WITHIN_NOISE, alone)
    told = replace(plain, in_suite=moved)

    assert words.in_suite(plain) == ""
    assert words.in_suite(told).startswith("20.1 ms in the suite, +99.0 %; 10.1 ms ")
    assert words.in_suite(replace(told, metric="ttft")).startswith("ttft 20.1 ms in ")
