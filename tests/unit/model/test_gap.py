"""Gaps: one code for programs, one sentence for people."""

from __future__ import annotations

import pytest

from pytest_gpuperf import errors
from pytest_gpuperf.errors import (
    BaselineError,
    CollectorUnavailableError,
    CounterPermissionError,
)
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import Void, VoidCode


def test_an_error_gives_its_slug_its_message_and_its_remedy() -> None:
    """A gap says what the error says, with its remedy apart from its message."""
    error = CounterPermissionError("only root; nobody else", remedy="ask root")

    assert Gap.of(error) == Gap(
        code=GapCode.COUNTER_PERMISSION,
        reason="only root; nobody else",
        remedy="ask root",
    )


def test_an_error_without_a_code_gives_that_of_its_base() -> None:
    """Another package's error has a base of ours, and the base's code."""

    class OddError(CollectorUnavailableError):
        pass

    gap = Gap.of(OddError("odd", remedy="even"))

    assert gap.code is GapCode.COLLECTOR_UNAVAILABLE


def test_an_error_of_no_code_at_all_has_failed() -> None:
    """Every error can be a gap."""
    gap = Gap.of(BaselineError("broken", remedy="mend it"))

    assert gap.code is GapCode.FAILED


def test_the_codes_of_errors_are_their_slugs() -> None:
    """An error that is renamed takes its code along: the first group, and no other."""
    slugs = {getattr(getattr(errors, name), "slug", None) for name in errors.__all__}
    codes = tuple(GapCode)
    of_errors = codes[: codes.index(GapCode.DEVICE_LOST)]

    assert tuple(code for code in codes if code.value in slugs) == of_errors


@pytest.mark.parametrize(
    ("remedy", "text"), [("wait", "it is busy; wait"), ("", "it is busy")]
)
def test_a_gap_is_told_in_one_sentence(remedy: str, text: str) -> None:
    """Nothing follows the reason where nobody can say what to do; a void is told alike."""
    gap = Gap(code=GapCode.VOID, reason="it is busy", remedy=remedy)
    void = Void(code=VoidCode.DISABLED, reason=gap.reason, remedy=remedy)

    assert gap.text == text
    assert (void.gap, void.text) == (gap, text)
