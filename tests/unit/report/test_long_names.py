"""report.rows.short_names: a long test id leaves its middle out, in every report."""

from __future__ import annotations

import re
import time
from importlib.util import find_spec

import pytest

from fakes import runs
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import RecordKey
from pytest_gpuperf.model.run import Run, TestPlace
from pytest_gpuperf.report.captures import kernel_name
from pytest_gpuperf.report.exports import annotation_lines
from pytest_gpuperf.report.html.page import RunPage, html_bytes
from pytest_gpuperf.report.rows import names, rows, short_id
from pytest_gpuperf.report.runs import run_markdown
from pytest_gpuperf.report.summary import table_lines

READABLE = 120
LONG = [f"test_long[{'a' * 1500}{number:04}{'b' * 1500}]" for number in range(1000)]


def failed_run(called: list[str]) -> Run:
    """Return a run of tests that failed."""
    keys = [runs.key(name).test_id for name in called]
    return replace(runs.run(expected=len(keys)), broken=tuple(keys))


def test_names_that_differ_in_their_middle_show_where() -> None:
    """Two equal rows of a table would be of no use."""
    short = list(
        names(RecordKey(test_id=f"test_x.py::{name}") for name in LONG).values()
    )

    assert len(set(short)) == len(LONG)
    assert max(map(len, short)) <= READABLE
    assert re.fullmatch(r"test_long\[a+…a+0042b+…b+\]", short[42])


@pytest.mark.parametrize("name", ["test_short", f"test_x[{'c' * 100}]"])
def test_a_name_that_can_be_read_is_whole(name: str) -> None:
    """Only what nobody reads is left out."""
    key = RecordKey(test_id=f"test_x.py::{name}")

    assert names([key]) == {key: name}
    assert short_id(key.test_id) == key.test_id


def test_a_wide_name_fits_too() -> None:
    """A letter of two columns counts twice."""
    key = RecordKey(test_id=f"test_x.py::test_x[{'語' * 500}]")

    assert len(names([key])[key]) <= READABLE // 2 + 10


def test_the_heading_of_a_group_is_as_short() -> None:
    """A marker's text has no bound, and two that look alike stay apart."""
    keys = [runs.key(f"test_{number}") for number in range(2)]
    places = tuple(
        TestPlace(test_id=key.test_id, group=f"{'a' * 1500}{place}{'b' * 1500}")
        for place, key in enumerate(keys)
    )
    records = tuple(
        replace(runs.record("x", runs.time_of(1e-3)), key=key) for key in keys
    )
    run = replace(runs.run(records), tests=places)
    heads = [line for line in run_markdown(run).splitlines() if "aaa" in line]
    titles = [
        line.text for line in table_lines(rows(run), width=80) if "aaa" in line.text
    ]

    assert len(heads) == len(titles) == 2
    assert max(map(len, [*heads, *titles])) <= READABLE + len("#### ")


def test_markdown_has_a_long_id_in_its_command_alone() -> None:
    """A table with a column of 3,000 letters is scrolled for minutes."""
    text = run_markdown(failed_run(LONG[:3]))

    rows = [line for line in text.splitlines() if "test_long[" in line]
    assert rows
    assert all(len(line) < 2 * READABLE for line in rows if "pytest " not in line)


def test_an_annotation_has_a_title_that_fits() -> None:
    """It stands in the margin of a diff."""
    lines = annotation_lines(failed_run(LONG[:3]))

    assert len(set(lines)) == len(lines) == 3
    assert all(len(line) < 3 * READABLE for line in lines)


@pytest.mark.skipif(find_spec("jinja2") is None, reason="Jinja2 writes pages")
def test_a_page_has_the_whole_id_in_the_panel_and_the_title() -> None:
    """Each row is found by its whole id, and has an address of its own."""
    run = failed_run(LONG)
    page = RunPage(run)
    text = html_bytes(failed_run(LONG[:1])).decode()
    shown = re.sub("<wbr>", "", text)
    whole = re.escape(runs.key(LONG[0]).test_id)

    assert len({test.id for test in page.tests}) == len(LONG)
    assert len({test.name for test in page.tests}) == len(LONG)
    assert max(len(test.name) for test in page.tests) <= READABLE
    assert re.search(rf'<b title="{whole}">test_long\[a+…b+\]</b>', shown)
    assert len(re.findall(rf"<code>{whole}</code>", shown)) == 1
    assert re.search(rf'data-name="{whole}"', shown)


@pytest.mark.parametrize(
    "name", ["x" * 400_000, "a::" * 100_000, "a::" * 100_000 + "b"]
)
def test_a_name_of_any_length_is_read_once(name: str) -> None:
    """A file may hold any name. Read anew from each letter, this one would take minutes."""
    begun_s = time.process_time()
    short = kernel_name(name, 60)

    assert len(short) <= 60
    assert time.process_time() - begun_s < 10
