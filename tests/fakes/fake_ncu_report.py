"""NVIDIA's flat functions over a report that is JSON after the magic.

Copied as `_ncu_report.py` beside an empty `libnvperf_host.so`, so that the child side
reads it in a process of its own as it reads the real one.
`{"ranges": [[action, ...], ...]}`; an action may say `"abort": true`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

IAction_NameBase_DEMANGLED = 1
IAction_WorkloadType_KERNEL = 0
IMetric_ValueKind_STRING = 2
IMetric_ValueKind_FLOAT = 3
IMetric_ValueKind_DOUBLE = 4
IMetric_ValueKind_UINT32 = 5
IMetric_ValueKind_UINT64 = 6


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
    return action.get("demangled" if base else "kernel")


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


def IMetric_kind(metric: Any) -> int:
    return int(metric[0])


def IMetric_as_double(metric: Any) -> float:
    return float(metric[1])


def IMetric_as_uint64(metric: Any) -> int:
    return int(metric[1])


def IMetric_as_string(metric: Any) -> Any:
    return metric[1]


def IMetric_unit(metric: Any) -> Any:
    return metric[2]
