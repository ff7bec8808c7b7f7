"""cli.explanations: `gpuperf explain` answers from the pages of the documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pytest_gpuperf import cli, errors, options
from pytest_gpuperf.cli import explanations
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import VoidCode
from pytest_gpuperf.model.verdict import Outcome, Reason

ROOT = Path(__file__).parents[3]
SLUGS = [
    kind.slug
    for kind in (getattr(errors, name) for name in errors.__all__)
    if isinstance(kind, type) and issubclass(kind, errors.GpuPerfError)
]
OPTIONS = [f"--{name}" for name, _, _ in options._OPTIONS]
NOTES = sorted(
    {
        code
        for path in (ROOT / "src").rglob("*.py")
        for code in re.findall(r"\bNote\(\s*code=\"([^\"]+)\"", path.read_text("utf-8"))
    }
)
CODES = [code.value for kind in (Reason, VoidCode, GapCode) for code in kind]
NAMES = list(dict.fromkeys([*CODES, *NOTES, *SLUGS, *METRICS, *OPTIONS, *Outcome]))


def printed(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str) -> str:
    """Return the output of a command that succeeds."""
    assert cli.main(["explain", *arguments]) == 0
    return capfdbinary.readouterr().out.decode()


def test_every_name_that_is_printed_is_explained(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Each reason, void, gap, note, error, metric, option and verdict has an entry on a page."""
    answer = json.loads(printed(capfdbinary, *NAMES, "--format=json"))

    assert answer["schema"] == "pytest-gpuperf/explain/1"
    assert {entry["name"] for entry in answer["entries"]} == {
        name.removeprefix("--") for name in NAMES
    }
    assert all(entry["markdown"] for entry in answer["entries"])


def test_a_section_is_printed_without_markup(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """With the example as the program prints it, and the remedy behind it."""
    text = printed(capfdbinary, "too-few-sessions")

    assert text.startswith("too-few-sessions (messages)\n")
    assert "`" not in text
    assert "](" not in text


def test_a_metric_is_explained_with_the_counters_that_it_is_made_of(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """The remedy of a metric that was not counted sends people here."""
    text = printed(capfdbinary, "dram.bytes")

    assert "metric: dram.bytes\n" in text
    assert "dram__bytes.sum" in text


def test_a_verdict_is_explained_with_what_to_do(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """The word of a row of the report is all that its reader knows."""
    text = " ".join(printed(capfdbinary, "blind").split())

    assert "compare with a revision" in text


def test_an_error_is_found_by_the_class_of_its_traceback(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """pytest prints the class with its module, and a colon."""
    text = printed(capfdbinary, "pytest_gpuperf.errors.CounterPermissionError:")

    assert text.startswith("counter-permission (messages)\n")


@pytest.mark.parametrize(
    "spelling", ["--gpuperf-strict", "gpuperf-strict", "gpuperf_strict", "strict"]
)
def test_an_option_has_several_spellings(
    capfdbinary: pytest.CaptureFixture[bytes], spelling: str
) -> None:
    """As typed, as in an ini file, or its last word."""
    assert "option: --gpuperf-strict\n" in printed(capfdbinary, spelling)


def test_a_value_behind_an_option_does_not_matter(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """A message can be copied as it is."""
    assert "option: --gpuperf-update" in printed(capfdbinary, "--gpuperf-update=all")


def test_markdown_is_that_of_the_page(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """So that it can be pasted into a comment."""
    assert "**metric**: `time.p95`" in printed(
        capfdbinary, "time.p95", "--format=markdown"
    )


def test_all_unknown_names_are_reported_at_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Each with what it may have been."""
    assert cli.main(["explain", "not-significnt", "time", "qqqqqq"]) == 2
    error = capfd.readouterr().err

    assert "no page explains not-significnt" in error
    assert "did you mean not-significant" in error
    assert "no page explains qqqqqq" in error


def test_the_wheel_has_the_pages() -> None:
    """What is installed has no folder docs."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    lines = [
        f'"docs/{name}.md" = "pytest_gpuperf/pages/{name}.md"'
        for name in sorted(explanations._PAGES)
    ]

    assert "\n".join(lines) in project
