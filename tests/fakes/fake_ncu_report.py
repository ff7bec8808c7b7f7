"""NVIDIA's classes over a report that is JSON after the magic.

Copied as a package `ncu_report`, so that the child process reads it as it reads the real
one: `install` does that. `{"ranges": [[action, ...], ...]}`; an action may say
`"abort": true`, `"rules"`, as the documented `rule_results_as_dicts` gives them, and
`"lines"`, {address: [file, line, instruction]}. `fake_ncu.py` writes such reports. A file
`NAME.ncu-rep.reads` beside a report gets a letter each time that it is read.
"""

from __future__ import annotations

import enum
import json
import os
import shutil
from pathlib import Path
from typing import Any


class MsgType(enum.IntEnum):
    OK = 1
    OPTIMIZATION = 2


class SpeedupType(enum.IntEnum):
    LOCAL = 1
    GLOBAL = 2


def install(folder: Path) -> Path:
    """Make a package ncu_report of this module; put the folder on PYTHONPATH."""
    package = folder / "ncu_report"
    package.mkdir(parents=True)
    return Path(shutil.copy(__file__, package / "__init__.py"))


def load_report(path: str) -> IContext:
    os.write(1, b"a library may print what it likes\n")
    reads = Path(f"{path}.reads")
    if reads.exists():  # a test counts how often
        reads.write_text(f"{reads.read_text()}x")
    return IContext(json.loads(Path(path).read_bytes()[4:])["ranges"])


class IContext:
    def __init__(self, ranges: Any) -> None:
        self._ranges = ranges

    def num_ranges(self) -> int:
        return len(self._ranges)

    def range_by_idx(self, index: int) -> IRange | None:
        return IRange(self._ranges[index]) if index < len(self._ranges) else None


class IRange:
    def __init__(self, actions: Any) -> None:
        self._actions = actions

    def num_actions(self) -> int:
        return len(self._actions)

    def action_by_idx(self, index: int) -> IAction | None:
        if index >= len(self._actions):
            return None
        if self._actions[index].get("abort"):
            os.abort()
        return IAction(self._actions[index])


class IAction:
    NameBase_FUNCTION = 0
    NameBase_DEMANGLED = 1
    NameBase_MANGLED = 2
    WorkloadType_KERNEL = 0
    WorkloadType_RANGE = 1

    def __init__(self, action: Any) -> None:
        self._action = action
        self._metrics = action.get("metrics", {})

    def name(self, base: int = NameBase_FUNCTION) -> Any:
        return self._action.get(("kernel", "demangled", "mangled")[base])

    def workload_type(self) -> int:
        return int(self._action.get("workload", self.WorkloadType_KERNEL))

    def metric_names(self) -> tuple[str, ...]:
        return tuple(sorted(self._metrics))

    def metric_by_name(self, name: str) -> IMetric | None:
        return IMetric(name, self._metrics[name]) if name in self._metrics else None

    def nvtx_state(self) -> INvtxState | None:
        state = self._action.get("nvtx")
        return None if state is None else INvtxState(state)

    def rule_results_as_dicts(self) -> Any:
        return self._action.get("rules", [])

    def source_info(self, address: int) -> ISourceInfo | None:
        found = self._action["lines"].get(str(address))
        return ISourceInfo(*found[:2]) if found and found[0] else None

    def sass_by_pc(self, address: int) -> Any:
        found = self._action["lines"].get(str(address))
        return found and found[2]


class IMetric:
    """
    A metric: kind, value and unit; then maybe type, subtype, roll-up; then maybe its
    values by opcode or address, [kind of the places, [place, ...], [value, ...]].
    """

    ValueKind_UNKNOWN = 0
    ValueKind_STRING = 2
    ValueKind_FLOAT = 3
    ValueKind_DOUBLE = 4
    ValueKind_UINT32 = 5
    ValueKind_UINT64 = 6
    MetricType_OTHER = 0
    MetricType_COUNTER = 1
    MetricSubtype_NONE = 0
    MetricSubtype_PER_SECOND = 14
    RollupOperation_NONE = 0
    RollupOperation_AVG = 1
    RollupOperation_SUM = 4

    def __init__(self, name: str, metric: Any) -> None:
        self._name = name
        self._metric = [*metric, 0, 0, 0][:6]
        self._instances: Any = metric[6] if len(metric) > 6 else None

    def name(self) -> str:
        return self._name

    def kind(self, *_place: int) -> int:
        return int(self._metric[0])

    def unit(self) -> Any:
        return self._metric[2]

    def metric_type(self) -> int:
        return int(self._metric[3])

    def metric_subtype(self) -> int | None:
        return int(self._metric[4]) or None

    def rollup_operation(self) -> int | None:
        return int(self._metric[5]) or None

    def has_value(self) -> bool:
        return self._metric[1] is not None

    def as_double(self, *place: int) -> float:
        return float(self._at(place) or 0)

    def as_uint64(self, *place: int) -> int:
        return int(self._at(place) or 0)

    def as_string(self, *place: int) -> Any:
        return self._at(place)

    def has_correlation_ids(self) -> bool:
        return self._instances is not None

    def correlation_ids(self) -> IMetric:
        kind, places, _ = self._instances
        return IMetric("", [kind, None, "", 0, 0, 0, [kind, [], places]])

    def num_instances(self) -> int:
        return len(self._instances[2]) if self._instances else 0

    def _at(self, place: tuple[int, ...]) -> Any:
        return self._instances[2][place[0]] if place else self._metric[1]


class INvtxState:
    def __init__(self, state: Any) -> None:
        self._state = state

    def domains(self) -> range:
        return range(len(self._state))

    def domain_by_id(self, number: int) -> INvtxDomainInfo:
        return INvtxDomainInfo(*self._state[number])


class INvtxDomainInfo:
    def __init__(self, name: Any, stack: Any, started: Any) -> None:
        self._name, self._stack, self._started = name, stack, started

    def name(self) -> Any:
        return self._name

    def push_pop_ranges(self) -> tuple[Any, ...]:
        return tuple(self._stack)

    def start_end_ranges(self) -> tuple[Any, ...]:
        return tuple(self._started)


class ISourceInfo:
    def __init__(self, file: str, line: int) -> None:
        self._file, self._line = file, line

    def file_name(self) -> str:
        return self._file

    def line(self) -> int:
        return self._line
