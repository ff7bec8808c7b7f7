"""NVIDIA's flat functions over a report that is JSON after the magic.

Copied as `_ncu_report.py` beside an empty `libnvperf_host.so`, so that the child side
reads it in a process of its own as it reads the real one: `install` does that.
`{"ranges": [[action, ...], ...]}`; an action may say `"abort": true`. `fake_ncu.py` writes
such reports.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

IAction_NameBase_DEMANGLED = 1
IAction_NameBase_MANGLED = 2
IAction_WorkloadType_KERNEL = 0
IAction_WorkloadType_RANGE = 1
IMetric_ValueKind_STRING = 2
IMetric_ValueKind_FLOAT = 3
IMetric_ValueKind_DOUBLE = 4
IMetric_ValueKind_UINT32 = 5
IMetric_ValueKind_UINT64 = 6
IMetric_MetricType_OTHER = 0
IMetric_MetricType_COUNTER = 1
IMetric_MetricSubtype_NONE = 0
IMetric_MetricSubtype_PER_SECOND = 14
IMetric_RollupOperation_NONE = 0
IMetric_RollupOperation_AVG = 1
IMetric_RollupOperation_SUM = 4


def install(folder: Path) -> Path:
    """Make a package ncu_report of this module; put the folder on PYTHONPATH."""
    package = folder / "ncu_report"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "libnvperf_host.so").touch()
    shutil.copy(__file__, package / "_ncu_report.py")
    return package / "__init__.py"


def load_report(path: str, folder: str) -> Any:
    assert Path(folder, "libnvperf_host.so").exists()
    os.write(1, b"a library may print what it likes\n")
    return json.loads(Path(path).read_bytes()[4:])["ranges"]


def IContext_num_ranges(report: Any) -> int:
    return len(report)


def IContext_range_by_idx(report: Any, index: int) -> Any:
    return report[index]


def IRange_num_actions(actions: Any) -> int:
    return len(actions)


def IRange_action_by_idx(actions: Any, index: int) -> Any:
    if actions[index].get("abort"):
        os.abort()
    return actions[index]


def IAction_name(action: Any, base: int = 0) -> Any:
    return action.get(("kernel", "demangled", "mangled")[base])


def IAction_workload_type(action: Any) -> int:
    return int(action.get("workload", IAction_WorkloadType_KERNEL))


def IAction_metric_names(action: Any) -> tuple[str, ...]:
    return tuple(sorted(action.get("metrics", ())))


def IAction_metric_by_name(action: Any, name: str) -> Any:
    return action.get("metrics", {}).get(name)


def IAction_nvtx_state(action: Any) -> Any:
    return action.get("nvtx")


def INvtxState_domains(state: Any) -> range:
    return range(len(state))


def INvtxState_domain_by_id(state: Any, number: int) -> Any:
    return state[number]


def INvtxDomainInfo_name(domain: Any) -> Any:
    return domain[0]


def INvtxDomainInfo_push_pop_ranges(domain: Any) -> tuple[str, ...]:
    return tuple(domain[1])


def INvtxDomainInfo_start_end_ranges(domain: Any) -> tuple[str, ...]:
    return tuple(domain[2])


def IMetric_kind(metric: Any, *_place: int) -> int:
    return int(metric[0])


def IMetric_as_double(metric: Any, *place: int) -> float:
    return float(_at(metric, place) or 0)


def IMetric_as_uint64(metric: Any, *place: int) -> int:
    return int(_at(metric, place) or 0)


def IMetric_as_string(metric: Any, *place: int) -> Any:
    return _at(metric, place)


def IMetric_unit(metric: Any) -> Any:
    return metric[2]


# what follows a metric's kind, value and unit: type, subtype, roll-up, and its values by
# opcode or address as [kind of the places, [place, ...], [value, ...]]


def IMetric_metric_type(metric: Any) -> int:
    return int(metric[3]) if len(metric) > 3 else IMetric_MetricType_OTHER


def IMetric_metric_subtype(metric: Any) -> int:
    return int(metric[4]) if len(metric) > 4 else IMetric_MetricSubtype_NONE


def IMetric_rollup_operation(metric: Any) -> int:
    return int(metric[5]) if len(metric) > 5 else IMetric_RollupOperation_NONE


def IMetric_has_value(metric: Any) -> bool:
    return metric[1] is not None


def IMetric_has_correlation_ids(metric: Any) -> bool:
    return len(metric) > 6


def IMetric_correlation_ids(metric: Any) -> Any:
    kind, places, _ = metric[6]
    return [kind, None, "", 0, 0, 0, [kind, [], places]]


def IMetric_num_instances(metric: Any) -> int:
    return len(metric[6][2]) if len(metric) > 6 else 0


def _at(metric: Any, place: tuple[int, ...]) -> Any:
    return metric[6][2][place[0]] if place else metric[1]
