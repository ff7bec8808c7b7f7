"""Command lines that a reader can paste; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuperf.model.verdict import Verdict
from pytest_gpuperf.report import display

__all__ = ["accept_command", "reproduce_command"]

# the options that decide what a run measures and how it judges
_JUDGING = (
    "baseline",
    "against",
    "max-regression",
    "compare-across",
    "confirm",
    "runs",
    "collectors",
    "replay",
    "strict",
)
# an update changes the store that is compared with, and nothing else
_ACCEPTING = ("baseline", "compare-across", "runs", "collectors", "replay")


def reproduce_command(verdict: Verdict, options: Mapping[str, str]) -> str:
    """Return the command that measures and judges this one test again."""
    given = _flags(options, _JUDGING)
    return _command(verdict, _with_store(verdict, given))


def accept_command(verdict: Verdict, options: Mapping[str, str]) -> str:
    """Return the command that makes what was measured the baseline."""
    given = _flags(options, _ACCEPTING)
    return f"{_command(verdict, _with_store(verdict, given))} --gpuperf-update=all"


def _command(verdict: Verdict, flags: tuple[str, ...]) -> str:
    """Return a pytest command line for one test."""
    words_of = ("pytest", verdict.key.test_id, *flags)
    return display.escape(" ".join(display.quoted(word) for word in words_of))


def _with_store(verdict: Verdict, flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return flags that name the store: one that was only found would only show."""
    named = any(
        flag.startswith(("--gpuperf-baseline", "--gpuperf-against")) for flag in flags
    )
    if named or verdict.change is None:
        return flags
    return ("--gpuperf-baseline=.gpuperf", *flags)


def _flags(options: Mapping[str, str], wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Return the options that matter, as a command line has them."""
    given = {_option_name(name): text for name, text in options.items()}
    return tuple(
        f"--gpuperf-{name}"
        if given[name] in {"", "True", "true"}
        else f"--gpuperf-{name}={given[name]}"
        for name in wanted
        if name in given and given[name] not in {"False", "false"}
    )


def _option_name(name: str) -> str:
    """Return an option's name without what all of them begin with."""
    plain = name.lstrip("-").replace("_", "-")
    return plain.removeprefix("gpuperf-")
