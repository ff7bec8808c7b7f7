"""model.shard: which part of a run, as users and files write it."""

from __future__ import annotations

import pytest

from pytest_gpuperf.config import parse_run_id, parse_shard
from pytest_gpuperf.model.shard import Shard


@pytest.mark.parametrize(
    ("text", "shard"),
    [
        ("3/8", (3, 8)),
        (" 1 / 1 ", (1, 1)),
        ("99999/99999", (99999, 99999)),
        ("0/0", None),
        ("0/4", None),
        ("5/4", None),
        ("-1/4", None),
        ("3", None),
        ("3/8/9", None),
        ("a/b", None),
        ("1/100000", None),  # more than any scheduler starts
        ("٣/٨", None),  # digits, but not those of a scheduler
        ("", None),
        (None, None),
    ],
)
def test_a_shard_is_a_number_among_as_many(
    text: str | None, shard: tuple[int, int] | None
) -> None:
    """From 1 to the number of shards, as text and back."""
    found = Shard.read(text)

    assert (None if found is None else (found.number, found.count)) == shard
    if found is not None:
        assert Shard.read(str(found)) == found
        assert found.is_whole is (text == " 1 / 1 ")


@pytest.mark.parametrize("text", ["0/0", "5/4", "three of eight"])
def test_a_shard_that_is_none_is_refused_with_an_example(text: str) -> None:
    """The option says how it is written."""
    with pytest.raises(ValueError, match="from 1, and how many there are, as 3/8"):
        parse_shard(text)


@pytest.mark.parametrize("text", ["4711", "main/a b #7", "x" * 200, "läuft"])
def test_a_run_id_is_any_text_of_one_line(text: str) -> None:
    """Slashes and spaces are part of it; those around it are not."""
    assert parse_run_id(f" {text} ") == text


@pytest.mark.parametrize("text", ["a\nb", "a\0b", "\udcff", "x" * 201, "x" * 10_000])
def test_a_run_id_that_no_store_holds_is_refused(text: str) -> None:
    """Two long ids that are cut to one length could be taken for one run."""
    with pytest.raises(ValueError, match="at most 200 printable characters"):
        parse_run_id(text)
