"""The examples are what they say they are, and README shows one of them."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
RECORDING = EXAMPLES / "recordings" / "digest"
REPLAYED = "examples/test_08_record_and_replay.py"
PLUGINS = ("-p", "pytest_gpuperf.plugin", "-p", "no:cacheprovider")
PAGES = [
    pytest.param(path, id=path.stem) for path in sorted(EXAMPLES.glob("test_*.py"))
]


def test_readme_shows_the_first_example() -> None:
    """README's first Python block is the beginning of the first example's code."""
    readme = (ROOT / "README.md").read_text("utf-8")
    block = re.search(r"^```python\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    example = (EXAMPLES / "test_01_first_limit.py").read_text("utf-8")
    code = example.split('"""\n', maxsplit=2)[2].lstrip("\n")

    assert block is not None
    assert code.startswith(f"{block[1]}\n\n")


@pytest.mark.parametrize("page", PAGES)
def test_an_example_begins_with_its_prose(page: Path) -> None:
    """A page has a numbered title that is its file's number, and a text under it."""
    prose = ast.get_docstring(ast.parse(page.read_text("utf-8"))) or ""
    title, _, text = prose.partition("\n\n")
    number = int(page.stem.split("_")[1])

    assert title.startswith(f"# {number}. ")
    assert text


def test_the_recording_tells_nothing_of_who_made_it() -> None:
    """No path, commit or clear host name is in the recording that we give away."""
    texts = [path.read_text("utf-8") for path in sorted(RECORDING.iterdir())]
    session = json.loads((RECORDING / "recording.json").read_text("utf-8"))["session"]

    assert len(texts) == len(("head", "readings"))
    assert not [found for text in texts for found in re.findall(r'"[~/\\][^"]*"', text)]
    assert session["commit"] is None
    assert re.fullmatch(r"[0-9a-f]{12}", session["host"])


def test_the_recording_is_judged_and_nothing_is_measured(tmp_path: Path) -> None:
    """A replay of it decides both tests by the values that stand in it."""
    report = tmp_path / "run.json"
    alone = {**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    argv = [sys.executable, "-m", "pytest", *PLUGINS, REPLAYED]
    ended = subprocess.run(
        [*argv, f"--gpuperf-replay={RECORDING}", f"--gpuperf-json={report}"],
        cwd=ROOT,
        env=alone,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    run = json.loads(report.read_text("utf-8"))
    lines = (RECORDING / "readings-main.jsonl").read_text("utf-8").splitlines()
    recorded = [json.loads(line) for line in lines]

    assert [r["estimates"] for r in run["records"]] == [
        # recorded before the speed of the core was known
        [{"core": None} | e for e in r["estimates"]]
        for r in recorded
    ]
    assert {v["outcome"] for v in run["verdicts"]} == {"passed"}
    assert "judged 2 of 2: 2 passed" in ended.stdout
