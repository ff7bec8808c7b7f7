"""NVIDIA's classes, as far as a launch's advice needs them, over the double's reports.

Copied as `ncu_report/__init__.py`. An action may say `"rules"`, as the documented
`rule_results_as_dicts` gives them; `"lines"`, {address: [file, line, instruction]}; and
its metrics may have values by address, as in `fake_ncu_report`.
"""

from __future__ import annotations

import enum
import json
import os
from pathlib import Path
from typing import Any


class MsgType(enum.IntEnum):
    OK = 1
    OPTIMIZATION = 2


class SpeedupType(enum.IntEnum):
    LOCAL = 1
    GLOBAL = 2


def load_report(path: str) -> Any:
    os.write(1, b"a library may print what it likes\n")
    return _Context(json.loads(Path(path).read_bytes()[4:])["ranges"])


class _Context:
    def __init__(self, ranges: Any) -> None:
        self._ranges = ranges

    def range_by_idx(self, index: int) -> Any:
        return _Range(self._ranges[index]) if index < len(self._ranges) else None


class _Range:
    def __init__(self, actions: Any) -> None:
        self._actions = actions

    def action_by_idx(self, index: int) -> Any:
        return _Action(self._actions[index]) if index < len(self._actions) else None


class _Action:
    def __init__(self, action: Any) -> None:
        self._action = action

    def rule_results_as_dicts(self) -> Any:
        return self._action.get("rules", [])

    def metric_names(self) -> Any:
        return tuple(self._action["metrics"])

    def metric_by_name(self, name: str) -> Any:
        return _Metric(self._action["metrics"][name])

    def source_info(self, address: int) -> Any:
        found = self._action["lines"].get(str(address))
        return _Source(*found[:2]) if found and found[0] else None

    def sass_by_pc(self, address: int) -> Any:
        found = self._action["lines"].get(str(address))
        return found and found[2]


class _Metric:
    def __init__(self, metric: Any) -> None:
        self._metric = metric

    def has_correlation_ids(self) -> bool:
        return len(self._metric) > 6

    def correlation_ids(self) -> Any:
        kind, places, _ = self._metric[6]
        return _Metric([kind, None, "", 0, 0, 0, [kind, [], places]])

    def num_instances(self) -> int:
        return len(self._metric[6][2])

    def as_uint64(self, place: int) -> int:
        return int(self._metric[6][2][place])


class _Source:
    def __init__(self, file: str, line: int) -> None:
        self._file, self._line = file, line

    def file_name(self) -> str:
        return self._file

    def line(self) -> int:
        return self._line
