"""The command `history`, on a store of a few tests."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
import sqlite3
from pathlib import Path

import pytest

from pytest_gpuperf import cli
from pytest_gpuperf.baseline.changes import Append
from pytest_gpuperf.baseline.store import open_store
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.record import RecordKey, SessionValue, StoredRecord

DAYS = 20
# The level of each test on a day, on a log scale.
LEVELS = {
    "steady": [0.0] * DAYS,
    "slower": [0.1 * (n >= 12) for n in range(DAYS)],
    "away": [0.2 * (6 <= n < 11) for n in range(DAYS)],
    "drift": [0.015 * n for n in range(DAYS)],
}


@pytest.fixture(name="place", params=[".gpuperf", "base.json"])
def place_(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> str:
    """A store, a folder or a file, in the current folder."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(1)
    changes = []
    for day in range(DAYS):
        session = Session(
            id=f"s{day:02}",
            started_unix_s=1.78e9 + 86400.0 * day,
            host="h",
            commit=f"{day:02x}" * 20,
            machine="m<1>",
        )
        for name, levels in LEVELS.items():
            time_s = 1e-3 * math.exp(levels[day] + draw.gauss(0, 0.006))
            value = SessionValue(
                metric="time", unit="s", source="host", run_values=(time_s,)
            )
            record = StoredRecord(
                key=RecordKey(test_id=f"test_a.py::test_{name}"),
                session=session,
                values=(value,),
            )
            changes.append(Append(record=record))
    place: str = request.param
    open_store(place, tmp_path, create=True).write("xeon", changes)
    return place


def test_what_changed_is_printed(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the commit, the size, what became of it, and the command to go on with."""
    assert cli.main(["history", f"--baseline={place}"]) == 0
    text = " ".join(capsys.readouterr().out.split())

    assert "test_a.py::test_slower time [host] (xeon): 20 sessions on 1 machine" in text
    assert "slower 2026-06-09 0c0c0c0 +10." in text
    assert "went away at 0b0b0b0 (5 sessions later)" in text
    assert "drift 0000000 … 1313131, 20 commits" in text
    assert "gpuperf bisect test_a.py::test_slower --good 0b0b0b0 --bad 0c0c0c0" in text
    assert "test_steady" not in text
    assert "4 series, 3 with a lasting change" in text


def test_a_named_test_is_shown_whatever_happened(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As bars, with its range and its noise."""
    assert cli.main(["history", "test_a.py::test_steady", "--baseline", place]) == 0
    text = capsys.readouterr().out

    assert "test_steady time [host]" in text
    assert "sessions differ by 0." in text
    assert "1 series, 0 with a lasting change" in text


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 0),
        (["--fail-on=slower"], 1),
        (["--fail-on=never"], 0),
        (["--fail-on=slower", "test_a.py::test_steady"], 0),
        (["--fail-on=slower", "test_a.py::test_away"], 0),
        (["--fail-on=slower", "test_a.py::test_drift"], 1),
        (["--fail-on=slower", "test_a.py::test_slower"], 1),
        (["--fail-on=slower", "test_a.py::test_slower", "--since=2026-06-12"], 0),
    ],
)
def test_a_test_that_is_slower_may_fail_a_job(
    place: str, arguments: list[str], code: int
) -> None:
    """What went away, got faster or happened earlier does not."""
    assert cli.main(["history", f"--baseline={place}", *arguments]) == code


def test_json(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Points, levels and changes, with the commits of each."""
    test = "test_a.py::test_slower"
    cli.main(["history", test, f"--baseline={place}", "--format=json"])
    content = json.loads(capsys.readouterr().out)
    (series,) = content["series"]
    (change,) = series["changes"]

    assert content["schema"] == "pytest-gpuperf/history/1"
    assert series["test"] == test
    assert len(series["points"]) == DAYS
    assert [(s["first"], s["last"]) for s in series["segments"]] == [(0, 11), (12, 19)]
    assert (change["kind"], change["place"], change["stands"]) == ("slower", 12, True)
    assert "0c" * 20 in change["commits"]


def test_a_page(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It needs no network and no script, and escapes what it shows."""
    pytest.importorskip("jinja2")
    assert cli.main(["history", f"--baseline={place}", "-o", "history.html"]) == 0
    page = Path("history.html").read_text(encoding="utf-8")

    assert capsys.readouterr().out == ""
    assert page.count("<svg") == 3
    assert page.count("<circle") == 3 * DAYS
    assert "m&lt;1&gt;" in page
    assert "<script" not in page
    assert "default-src &#39;none&#39;" in page
    assert page.index("test_drift") < page.index("test_slower")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["test_b.py"], "no test 'test_b.py' is stored in"),
        (["--since=yesterday"], "--since=yesterday is not a day"),
        (["test_a.py", "--metrics=energy"], "no metric energy is stored"),
    ],
)
def test_mistakes_are_named(
    place: str,
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each with a remedy, and the code of wrong usage."""
    assert cli.main(["history", f"--baseline={place}", *arguments]) == 2
    errors = capsys.readouterr().err

    assert words in errors
    assert "remedy:" in errors


def test_a_store_is_no_test(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever names the store as other commands take it is told where it goes."""
    assert cli.main(["history", f"--baseline={place}", place]) == 2
    errors = capsys.readouterr().err

    assert f"{place} is the store, and tests are named here" in errors
    assert "remedy: name a test, or leave it out for all tests" in errors


def test_a_pull_request_does_not_stand_in_mains_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it stored with its own slow code is left out, unless it is asked for."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(2)
    changes = []
    for number in range(20):
        is_main = not 8 <= number < 13
        value = SessionValue(
            metric="time",
            unit="s",
            source="host",
            run_values=(1e-3 * math.exp(draw.gauss(0.0 if is_main else 0.3, 0.006)),),
        )
        session = Session(
            id=f"s{number:02}",
            started_unix_s=1.78e9 + 86400.0 * number,
            host="h",
            commit=f"{number:02x}" * 20,
            branch="main" if is_main else "fix",
        )
        key = RecordKey(test_id="test_a.py::test_a")
        record = StoredRecord(key=key, session=session, values=(value,))
        changes.append(Append(record=record))
    store = open_store("sqlite:///perf.db", tmp_path, create=True)
    store.write("xeon", changes)

    assert cli.main(["history", "--baseline=sqlite:///perf.db"]) == 0
    main = capsys.readouterr().out
    assert "1 series, 0 with a lasting change" in main
    assert "left out: the sessions of fix (--all-branches)" in main
    assert cli.main(["history", "--baseline=sqlite:///perf.db", "--all-branches"]) == 0
    everything = capsys.readouterr().out
    assert "went away" in everything
    assert "left out" not in everything


def fleet(place: str, folder: Path) -> None:
    """Store ten sessions of each of six machines, of which the last becomes 8 % slower."""
    draw = random.Random(2)
    store = open_store(place, folder, create=True)
    for day, number in itertools.product(range(10), range(6)):
        session = Session(
            id=f"s{day}{number}",
            started_unix_s=1.78e9 + 86400.0 * day + number,
            host="h",
            branch="main",
            machine=f"m{number}",
        )
        moved = 0.08 * (number == 5 and day >= 5)
        records = [
            StoredRecord(
                key=RecordKey(test_id=f"test_a.py::test_{n:03}"),
                session=session,
                values=(
                    SessionValue(
                        metric="time",
                        unit="s",
                        source="host",
                        run_values=(math.exp(moved + draw.gauss(0, 0.005)),),
                    ),
                ),
            )
            for n in range(250)
        ]
        store.write("xeon", [Append(record=record) for record in records])


def test_one_test_is_read_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With some others, which tell of a machine the same as all do."""
    monkeypatch.chdir(tmp_path)
    fleet("sqlite:///perf.db", tmp_path)
    moved = "m5 has been +8"
    test = "test_a.py::test_004"

    assert cli.main(["history", "--baseline=sqlite:///perf.db"]) == 0
    whole = capsys.readouterr().out
    # No one reads the values of this test any more, which is not among the others.
    with contextlib.closing(sqlite3.connect("perf.db")) as connection, connection:
        connection.execute(
            "UPDATE value SET value = 'x' WHERE test IN "
            "(SELECT id FROM test WHERE node = 'test_a.py::test_005')"
        )
    assert cli.main(["history", test, "--baseline=sqlite:///perf.db"]) == 0
    named = capsys.readouterr().out

    (of_whole,) = (line for line in whole.splitlines() if moved in line)
    assert of_whole in named
    assert f"{test} time [host] (xeon): 60 sessions on 6 machines" in named
    assert cli.main(["history", "--baseline=sqlite:///perf.db"]) == 4
