"""A metric is one row of the catalogue and one formula; every room then knows it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_gpuperf

TESTS = Path(__file__).parents[1]
PACKAGE = Path(pytest_gpuperf.__file__).parent
ROW = '("l2.missed_count", "count", _LOWER, "sectors that L2 lacked", _AMOUNT),'
FORMULA = '"l2.missed_count": _only("l2_miss_sectors_count"),'

BUILD = """\
from fakes import runs
from pytest_gpuperf.model.launch import CapturedLaunch, CapturedValue
from pytest_gpuperf.measure.captured import capture_values
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind

NAME, COUNTER = "l2.missed_count", "lts__t_sectors_lookup_miss.sum"

def record(*misses):
    launches = [
        CapturedLaunch(
            index=index,
            kernel="gemm",
            demangled="gemm()",
            nvtx={},
            measured=True,
            metrics={COUNTER: CapturedValue(value=count, unit="sector")},
        )
        for index, count in enumerate(misses)
    ]
    estimates, gaps = capture_values(launches, [NAME], None)
    assert not gaps
    return replace(runs.record("test_a", *estimates), kind=Kind.CAPTURE)
"""
LIMITS = """
from pytest_gpuperf.judge.grammar import parse_limit
from pytest_gpuperf.judge.limit import judge_limit
from pytest_gpuperf.judge.selection import Gap, select

for text in (f"{NAME} <= 5", f'{NAME}["gemm"] <= 5'):
    verdict = judge_limit(parse_limit(text), record(2.0, 4.0))
    assert (verdict.outcome.value, verdict.estimate.value) == ("failed", 6.0)
gap = select(parse_limit(f"{NAME} <= 5"), runs.record("test_a"))
assert "gpuperf.capture" in gap.remedy
"""
BASELINES = """
from pathlib import Path

from pytest_gpuperf.baseline.store import DirectoryStore
from pytest_gpuperf.baseline.changes import Append
from pytest_gpuperf.baseline.stored_record import stored_record
from pytest_gpuperf.judge.case import case_of
from pytest_gpuperf.model.environment import Session

then, now = record(2.0), record(3.0)
session = Session(id="s0", started_unix_s=1.0, host="h")
store = DirectoryStore(Path("stored"))
store.write("h200", [Append(record=stored_record([then], session))])
stored = store.load("h200")[then.key]
case = case_of([now], stored, metric=NAME, limit=0.05, session_id="s1")
assert case.metric.better.value == "lower"
assert [s.value.run_values for s in case.stored] == [(2.0,)]
"""
REPORTS = """
from pytest_gpuperf.judge.grammar import parse_limit
from pytest_gpuperf.judge.limit import judge_limit
from pytest_gpuperf.model.codec import encode_run
from pytest_gpuperf.report.runs import run_markdown

measured = record(2.0, 4.0)
verdict = judge_limit(parse_limit(f"{NAME} <= 5"), measured)
run = runs.run((measured,), (verdict,))
assert NAME in run_markdown(run)
assert NAME.encode() in encode_run(run)
"""
DOCS = """
import runpy

tables = runpy.run_path(TABLES)
assert (
    "| `l2.missed_count` | count | lower | sectors that L2 lacked"
    " | cupti, ncu, ncu-report |"
) in tables["page"]((tables["_FOLDER"] / "metrics.md").read_text())
"""


@pytest.fixture(name="package", scope="module")
def package_(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a copy of the package that has one more metric."""
    folder = tmp_path_factory.mktemp("more")
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for module, table, row in (
        ("model/metric.py", "\n_ROWS: ", ROW),
        ("compute/derive.py", "\nFORMULAS: ", FORMULA),
    ):
        before, head, rest = (copy / module).read_text("utf-8").partition(table)
        first, _, others = rest.partition("\n")
        text = f"{before}{head}{first}\n    {row}\n{others}"
        (copy / module).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "script",
    [LIMITS, BASELINES, REPORTS, DOCS],
    ids=["limits", "baselines", "reports", "docs"],
)
def test_a_new_metric_is_known_everywhere(
    script: str, package: Path, tmp_path: Path
) -> None:
    """Limits judge it, baselines store it, reports show it and the page lists it."""
    tables = TESTS.parent / "docs" / "tables.py"
    if script is DOCS and not tables.is_file():
        pytest.skip("the documents are not beside the tests")
    done = subprocess.run(
        [sys.executable, "-c", f"TABLES = {str(tables)!r}\n{BUILD}{script}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(package), str(TESTS)))},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
