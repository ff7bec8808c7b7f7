"""The examples are what they say they are, and README shows one of them."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
RECORDINGS = EXAMPLES / "recordings"
DIGEST, GPU = RECORDINGS / "digest", RECORDINGS / "gpu"
REPLAYED = EXAMPLES / "test_08_record_and_replay.py"
ON_A_GPU = EXAMPLES / "test_13_on_a_gpu.py"
NO_UUID = "00000000-0000-0000-0000-000000000000"
# what recordings do not have that were made before these were known
EARLIER = {"core": None, "sm_clock_hz": None}
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


@pytest.mark.parametrize("recording", [DIGEST, GPU], ids=lambda path: path.name)
def test_the_recording_tells_nothing_of_who_made_it(recording: Path) -> None:
    """No path, commit, clear host name or GPU's own number is in what we give away."""
    texts = {path.name: path.read_text("utf-8") for path in recording.iterdir()}
    session = json.loads(texts["recording.json"])["session"]
    uuids = {u for text in texts.values() for u in re.findall(r"GPU-([-\w]+)", text)}

    assert {"recording.json", "readings-main.jsonl"} <= set(texts)
    assert not [
        found for text in texts.values() for found in re.findall(r'"[~/\\][^"]*"', text)
    ]
    assert session["commit"] is None
    assert re.fullmatch(r"[0-9a-f]{12}", session["host"])
    assert uuids <= {NO_UUID}


def test_the_recording_is_judged_and_nothing_is_measured(tmp_path: Path) -> None:
    """A replay of it decides both tests by the values that stand in it."""
    ended, run = replayed(REPLAYED, DIGEST, tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [r["estimates"] for r in run["records"]] == [
        [EARLIER | each for each in reading["estimates"]]
        for reading in readings(DIGEST)
    ]
    assert {v["outcome"] for v in run["verdicts"]} == {"passed"}
    assert "judged 2 of 2: 2 passed" in ended.stdout


def test_what_a_gpu_measured_is_judged_without_one(tmp_path: Path) -> None:
    """NumPy stands in, and each of the four tests is decided by what the H200 did."""
    ended, run = replayed(ON_A_GPU, GPU, tmp_path)
    recorded = {
        reading["key"]["test_id"]: [EARLIER | each for each in reading["estimates"]]
        for reading in readings(GPU)
    }
    found = {r["key"]["test_id"]: r["estimates"] for r in run["records"]}
    names = re.findall(r"^def (test_\w+)", ON_A_GPU.read_text("utf-8"), re.MULTILINE)
    ids = [f"examples/test_13_on_a_gpu.py::{name}" for name in names]

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "judged 4 of 4: 4 passed" in ended.stdout
    assert "NVIDIA H200, driver 580.159.04, replay" in ended.stdout
    assert [found[each] for each in ids] == [recorded[each] for each in ids]
    assert {e["source"] for e in found[ids[0]]} >= {"cupti", "events", "ncu"}
    assert {v["key"]["test_id"] for v in run["verdicts"]} == set(ids)
    assert {v["outcome"] for v in run["verdicts"]} == {"passed"}
    readme = (ROOT / "README.md").read_text("utf-8")
    block = re.search(
        r"^```text\n(=+ gpuperf: NVIDIA.*?)^```$", readme, re.DOTALL | re.MULTILINE
    )
    assert block is not None
    assert block[1] in ended.stdout


def test_a_tighter_limit_is_broken_by_what_the_gpu_measured(tmp_path: Path) -> None:
    """A product that may use a millijoule fails, and is told how many joules it took."""
    text = ON_A_GPU.read_text("utf-8")
    tighter = tmp_path / "examples" / ON_A_GPU.name
    tighter.parent.mkdir()
    tighter.write_text(text.replace('"energy <= 1 J"', '"energy <= 1 mJ"'), "utf-8")
    ended, run = replayed(tighter, GPU, tmp_path)
    (product,) = (r for r in readings(GPU) if "product" in r["key"]["test_id"])
    (energy,) = (e for e in product["estimates"] if e["metric"] == "energy")
    failed = [v for v in run["verdicts"] if v["outcome"] != "passed"]

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert [(v["key"]["test_id"], v["metric"], v["outcome"]) for v in failed] == [
        (product["key"]["test_id"], "energy", "failed")
    ]
    assert energy["unit"] == "J"
    assert f"energy failed: {energy['value'] * 1e3:.3g} mJ" in ended.stdout


def replayed(
    example: Path, recording: Path, folder: Path
) -> tuple[subprocess.CompletedProcess[str], Any]:
    """Judge a recording by the tests of an example; return how it ended, and its JSON."""
    report = folder / "run.json"
    root = example.parent.parent
    alone = {**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    argv = [sys.executable, "-m", "pytest", *PLUGINS, f"--rootdir={root}"]
    ended = subprocess.run(
        [
            *(*argv, str(example.relative_to(root))),
            *(f"--gpuperf-replay={recording}", f"--gpuperf-json={report}"),
        ],
        cwd=root,
        env=alone,
        capture_output=True,
        text=True,
        check=False,
    )
    return ended, json.loads(report.read_text("utf-8"))


def readings(recording: Path) -> list[Any]:
    """Return what a recording holds of each test."""
    lines = (recording / "readings-main.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]
