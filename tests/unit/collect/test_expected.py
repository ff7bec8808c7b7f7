"""collect.expected: what every process expects is read as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.collect.expected import read_expected, write_expected
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.run import Expected


def test_all_workers_tell_what_they_expect(tmp_path: Path) -> None:
    """Each test is expected once, whoever is going to run it; nobody told: nothing."""
    place = str(tmp_path)
    assert read_expected(place) == Expected()

    for writer, *test_ids in (("gw1", "b", "c"), ("gw0", "old"), ("gw0", "a", "b")):
        expected = Expected(test_ids=tuple(test_ids), whole_modules=("m", writer))
        write_expected(place, writer, expected)
    (tmp_path / ".expected-gw2.json.17.tmp").write_text('["half')

    assert read_expected(place) == Expected(
        test_ids=("a", "b", "c"), whole_modules=("m", "gw0", "gw1")
    )


def test_an_expectation_of_another_form_is_refused(tmp_path: Path) -> None:
    """The file is named."""
    (tmp_path / "expected-gw0.json").write_text("[]")

    with pytest.raises(RecordError, match=r"expected-gw0\.json"):
        read_expected(str(tmp_path))
