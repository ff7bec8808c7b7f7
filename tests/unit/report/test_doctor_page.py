"""docs/doctor.md: the page and the doctor agree."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fakes.runner import FakeRunner
from pytest_gpuperf.collect.doctor import look
from pytest_gpuperf.collect.doctor.machine import MachineFacts
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.gap import Finding, Readiness, Status

PAGE = Path(__file__).parents[3] / "docs" / "doctor.md"


@pytest.fixture(name="page")
def page_() -> str:
    if not PAGE.is_file():
        pytest.skip("the documents are not beside the tests")
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(name="findings")
def findings_(tmp_path: Path) -> tuple[Finding, ...]:
    """The findings of a machine that has nothing: every topic makes one."""

    def missing(tool: object) -> str:
        message = "it is not there"
        raise CollectorUnavailableError(message, remedy="install it")

    return look(
        MachineFacts(
            root=tmp_path,
            environment={},
            search=(),
            pid=1,
            load=lambda name: f"{name} is not there",
            runner=FakeRunner(),
            find=missing,
        )
    )


def rows(page: str) -> dict[str, list[str]]:
    """Return the cells of the table of findings, by the finding."""
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_the_page_lists_every_finding(page: str, findings: tuple[Finding, ...]) -> None:
    """With what it concerns, and no finding that there is not."""
    told = {name: cells[0].split(", ") for name, cells in rows(page).items()}

    assert {each.id: list(each.concerns) for each in findings} == told


def test_the_page_says_when_a_finding_is_bad(page: str) -> None:
    """Every row names a status, and where it is read from."""
    for name, (_, place, when) in rows(page).items():
        assert place, name
        assert re.match("(stops|bends): ", when), name


def test_the_page_explains_every_status_and_state(page: str) -> None:
    """Each in a row of its own."""
    for word in (*Status, *Readiness):
        assert f"| {word.value} | " in page


def test_the_finding_that_the_page_shows_is_one(page: str) -> None:
    """Its JSON has the keys of a finding."""
    block = re.search("```json\n(.*?)```", page, re.DOTALL)
    assert block is not None

    assert set(json.loads(block[1])) == set(Finding.__struct_fields__)
