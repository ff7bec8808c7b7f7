"""cli.machine: the cache of ncu's values, and what of it cannot be read."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.privileges import no_privileges
from pytest_gpuperf.cli import main
from pytest_gpuperf.collect.ncu.store import EntryStore

KEY = "a" * 64


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return the folder of a cache with one entry, which everybody may look into."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        EntryStore(place).put("values", KEY, {"values": b"1"})
        yield place
        for path in (place, place / "values"):
            path.chmod(0o700)


@pytest.mark.skipif(os.name == "nt", reason="needs permissions of Unix")
@pytest.mark.parametrize("action", ["info", "verify", "clear"])
@pytest.mark.parametrize("shut", ["", "values"])
def test_a_cache_that_nobody_may_list_is_not_an_empty_one(
    folder: Path, shut: str, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its folder is named with the remedy, and the command fails."""
    (folder / shut).chmod(0)

    with no_privileges():
        code = main(["cache", action, "--folder", str(folder), "--format=json"])

    assert code == 4
    (remark,) = json.loads(capsys.readouterr().out)["remarks"]
    assert remark.startswith(f"{folder}: its entries cannot be read (Permission")
    assert "make them readable, or set GPUPERF_CACHE_DIR" in remark


def test_what_is_not_there_yet_is_an_empty_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder without entries is read, and nothing is remarked."""
    assert main(["cache", "info", f"--folder={tmp_path}", "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["remarks"] == []
