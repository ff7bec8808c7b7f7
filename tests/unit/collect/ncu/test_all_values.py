"""Every value of real reports comes out of the tree as NVIDIA's own reader gives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from pytest_gpuperf.collect.ncu.extract import own_unit
from pytest_gpuperf.collect.ncu.metrics import MetricCorrelation, MetricCorrelationData
from pytest_gpuperf.collect.ncu.report import Report

FOLDER = os.environ.get("GPUPERF_CAPTURES")
REPORTS = sorted(Path(FOLDER).glob("*.ncu-rep")) if FOLDER else []

pytestmark = [
    pytest.mark.skipif(not REPORTS, reason="needs real reports: GPUPERF_CAPTURES"),
    pytest.mark.skipif(not find_spec("ncu_report"), reason="needs ncu-report"),
]

Pair: TypeAlias = tuple[Report, list[list[dict[str, Any]]]]  # and what is true of it
# NVIDIA's documented interface, value by value
TRUTH = """
import json, math, sys
import ncu_report

def words(prefix):
    return {
        getattr(ncu_report.IMetric, name): name.removeprefix(prefix).lower()
        for name in dir(ncu_report.IMetric) if name.startswith(prefix)
    }

TYPES, SUBTYPES, ROLLUPS, KINDS = map(
    words, ("MetricType_", "MetricSubtype_", "RollupOperation_", "ValueKind_")
)

def number(value):
    return None if isinstance(value, float) and not math.isfinite(value) else value

def metric(found):
    answer = {
        "value": number(found.value()) if found.has_value() else None,
        "facts": [
            found.unit(),
            KINDS[found.kind()],
            TYPES[found.metric_type()],
            SUBTYPES.get(found.metric_subtype()),
            ROLLUPS.get(found.rollup_operation()),
        ],
    }
    if found.has_correlation_ids():
        ids = found.correlation_ids()
        answer["pairs"] = [
            [ids.value(i), number(found.value(i))] for i in range(found.num_instances())
        ]
    return answer

def launch(index, action):
    state = action.nvtx_state()
    domains = [] if state is None else [state[number] for number in state]
    return {
        "index": index,
        "names": [action.name(action.NameBase_FUNCTION),
                  action.name(action.NameBase_DEMANGLED),
                  action.name(action.NameBase_MANGLED)],
        "nvtx": [[each.name(), list(each.push_pop_ranges()),
                  list(each.start_end_ranges())] for each in domains],
        "metrics": {name: metric(action[name]) for name in action},
    }

report = ncu_report.load_report(sys.argv[1])
print(json.dumps([[launch(*each) for each in enumerate(some)] for some in report]))
"""


@pytest.fixture(scope="module", params=REPORTS, ids=lambda path: path.stem)
def pair(
    request: pytest.FixtureRequest,
) -> Pair:
    """A report and all that NVIDIA's reader says of it, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", TRUTH, request.param], capture_output=True, check=True
    )
    return Report(request.param), json.loads(done.stdout)


def test_each_value_and_what_it_is(
    pair: Pair,
) -> None:
    """The 8 reports that are public hold 58,845 of them in 181 launches."""
    report, truth = pair
    assert report.range_count == len(truth)
    for number, launches in enumerate(truth):
        results = report.extract_results_in_range(None, number)
        leaves = {leaf.name: leaf for _, leaf in results.iter_launches()}
        assert len(leaves) == len(launches)
        for launch in launches:
            kernel, demangled, mangled = launch["names"]
            leaf = leaves[f"{kernel}-{launch['index']}"]
            expected = {name: each["value"] for name, each in launch["metrics"].items()}

            assert leaf.data == expected | {"mangled": mangled, "demangled": demangled}
            assert {
                name: [facts.unit, facts.kind, facts.type, facts.subtype, facts.rollup]
                for name, facts in leaf.facts.items()
                if facts is not None
            } == {
                name: [own_unit(name) or each["facts"][0], *each["facts"][1:]]
                for name, each in launch["metrics"].items()
            }


def test_each_value_by_opcode_or_address(
    pair: Pair,
) -> None:
    """They hold 2,286 metrics of that kind."""
    report, truth = pair
    for number, launches in enumerate(truth):
        for launch in launches:
            pairs = {
                name: each
                for name, each in launch["metrics"].items()
                if "pairs" in each
            }
            metrics = [MetricCorrelation(name) for name in pairs]
            results = report.extract_results_in_range(
                metrics, number, indices=[launch["index"]]
            )
            ((_, leaf),) = results.iter_launches()
            for name, each in pairs.items():
                found = leaf.data[name]
                assert isinstance(found, MetricCorrelationData)
                assert found.value == each["value"]
                assert found.correlated == {
                    k: v for k, v in each["pairs"] if v is not None
                }


def test_each_nvtx_range(pair: Pair) -> None:
    """Stacks and start/end ranges of each domain."""
    report, truth = pair
    for number, launches in enumerate(truth):
        for launch, found in zip(launches, report.launches(number), strict=True):
            assert [
                [each.name, list(each.stack), list(each.started)] for each in found.nvtx
            ] == launch["nvtx"]
