"""The child side of a results tree: all that a launch says of itself.

Runs beside `extract`, in the same interpreter of its own. Launches of one report have
mostly the same metrics with the same units: what a launch repeats of the one before
is left out of its text.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing for this name would cost 2 ms a report
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import ModuleType
    from typing import Any

    from pytest_gpuperf.collect.ncu import extract
elif __package__:
    from pytest_gpuperf.collect.ncu import extract
else:  # started alone: this file's folder is on the path of the process
    import extract

__all__ = ["ALL", "CORRELATED", "DetailReader", "advise", "start"]

ALL = "*"  # instead of a name: all that the launch has
CORRELATED = "correlated:"  # before a name: with its value for each opcode or address
_LISTS = ("group:", "breakdown:")  # ncu's own: texts that list names of metrics

_EXACT = 2.0**53  # up to here a double that is integral is that integer and no other
_ABSENT = "null"
# samples of a warp that was issuing, or could have been: it did not wait
_NO_STALLS = ("selected", "not_selected")
_STALLED = "smsp__pcsamp_warps_issue_stalled_"
_NOT_ISSUED = "_not_issued"  # samples at which the scheduler issued nothing at all


def start() -> None:
    """Do what the command line asks and end, without freeing things one by one."""
    os._exit(extract.main(sys.argv[2:], DetailReader))


def advise() -> None:
    """Write what one launch is advised to do, and end; see `_advice`."""
    stdout = os.dup(1)
    os.dup2(2, 1)  # what the interface itself may print is no part of the text
    status, text = _advice(*sys.argv[2:])
    with open(stdout, "w", encoding="ascii", newline="") as stream:  # noqa: PTH123 - a descriptor
        stream.write(text)
    os._exit(status)


class DetailReader(extract.Reader):
    """Reads launches with the facts of their metrics, names once for all launches."""

    def __init__(
        self, api: ModuleType, report: object, names: Sequence[str] | None
    ) -> None:
        super().__init__(api, report, names)
        asked = names or ()
        self._correlated = [
            name.removeprefix(CORRELATED)
            for name in asked
            if name.startswith(CORRELATED)
        ]
        self._plain = [name for name in asked if not name.startswith(CORRELATED)]
        self._fixed = (
            None
            if any(name == ALL or name.startswith(_LISTS) for name in self._plain)
            else tuple(self._plain)
        )
        self._facts: dict[tuple[str, int, str], str] = {}
        self._last_names: tuple[str, ...] | None = None
        self._last_facts: list[str] | None = None
        self._floats = (api.IMetric_ValueKind_DOUBLE, api.IMetric_ValueKind_FLOAT)
        self._integers = (api.IMetric_ValueKind_UINT64, api.IMetric_ValueKind_UINT32)
        self._types = _words(api, "IMetric_MetricType_")
        self._kinds = _words(api, "IMetric_ValueKind_")
        self._subtypes = _words(api, "IMetric_MetricSubtype_")
        self._rollups = _words(api, "IMetric_RollupOperation_")
        self._workloads = _words(api, "IAction_WorkloadType_")

    def values(self, action: object) -> str:
        """Return the members of a launch that hold what was measured."""
        api = self.api
        names = self._fixed
        if names is None:
            names = tuple(dict.fromkeys(self._listed(action, self._plain)))
        values, facts = self._columns(action, names)
        mangled = api.IAction_name(action, api.IAction_NameBase_MANGLED) or ""
        members = [
            f'"mangled":{self.strings[mangled]}',
            f'"workload":{_word(self._workloads, api.IAction_workload_type(action))}',
            f'"values":[{",".join(values)}]',
        ]
        if names != self._last_names:
            members.append(f'"names":[{",".join(self.strings[n] for n in names)}]')
            self._last_names = names
        if facts != self._last_facts:
            members.append(f'"facts":[{",".join(facts)}]')
            self._last_facts = facts
        if self._correlated:
            parts = ",".join(
                f"{extract.quote(name)}:{self._instances(action, name)}"
                for name in self._correlated
            )
            members.append(f'"correlated":{{{parts}}}')
        return ",".join(members)

    def _listed(
        self, action: object, names: Iterable[str], depth: int = 4
    ) -> Iterator[str]:
        """Yield names, those of a list instead of the list, as deep as lists go."""
        api = self.api
        for name in names:
            if name == ALL:
                yield from api.IAction_metric_names(action)
            elif name.startswith(_LISTS) and depth:
                metric = api.IAction_metric_by_name(action, name)
                extract.KEPT.append(metric)
                text = None if metric is None else api.IMetric_as_string(metric)
                members = text.split(",") if text else [name]
                # a list that names itself would never end
                yield from self._listed(action, members, depth - 1)
            else:
                yield name

    def _columns(
        self, action: object, names: Iterable[str]
    ) -> tuple[list[str], list[str]]:
        """Return the values of some metrics and what each metric is, as JSON."""
        api, known = self.api, self._facts
        by_name, kind_of, unit_of = (
            api.IAction_metric_by_name,
            api.IMetric_kind,
            api.IMetric_unit,
        )
        values, facts = [], []
        for name in names:
            metric = by_name(action, name)
            if metric is None:
                values.append(_ABSENT)
                facts.append(_ABSENT)
                continue
            extract.KEPT.append(metric)
            kind = kind_of(metric)
            unit = unit_of(metric)
            key = (name, kind, unit)
            if key not in known:
                known[key] = self._fact(metric, kind, unit)
            facts.append(known[key])
            values.append(self._value(metric, kind))
        return values, facts

    def _value(self, metric: object, kind: int, *place: int) -> str:
        """Return a value as JSON: what is no number as null, a whole number as one."""
        api = self.api
        value: float
        if kind == api.IMetric_ValueKind_STRING:
            text = api.IMetric_as_string(metric, *place)
            return _ABSENT if text is None else self.strings[text]
        if kind in self._floats:
            value = api.IMetric_as_double(metric, *place)
            if value - value != 0.0:  # NaN or infinite
                return _ABSENT
            if value.is_integer() and -_EXACT < value < _EXACT:
                value = int(value)
        elif kind in self._integers:
            value = api.IMetric_as_uint64(metric, *place)
        else:
            return _ABSENT
        # a metric that has values by address and no total of them reads as 0, too
        if value == 0 and not place and not api.IMetric_has_value(metric):
            return _ABSENT
        return repr(value)

    def _fact(self, metric: object, kind: int, unit: str) -> str:
        """Return what a metric is: unit, kind, type, subtype, roll-up."""
        api = self.api
        return (
            f"[{extract.quote(unit or '')},{_word(self._kinds, kind)},"
            f"{_word(self._types, api.IMetric_metric_type(metric))},"
            f"{_word(self._subtypes, api.IMetric_metric_subtype(metric))},"
            f"{_word(self._rollups, api.IMetric_rollup_operation(metric))}]"
        )

    def _instances(self, action: object, name: str) -> str:
        """Return a metric with its value for each opcode or address."""
        api = self.api
        metric = api.IAction_metric_by_name(action, name)
        if metric is None:
            return _ABSENT
        extract.KEPT.append(metric)
        value = self._value(metric, api.IMetric_kind(metric))
        if not api.IMetric_has_correlation_ids(metric):
            return f'{{"value":{value}}}'
        ids = api.IMetric_correlation_ids(metric)
        extract.KEPT.append(ids)
        pairs = ",".join(
            f"[{self._value(ids, api.IMetric_kind(ids, place), place)},"
            f"{self._value(metric, api.IMetric_kind(metric, place), place)}]"
            for place in range(api.IMetric_num_instances(metric))
        )
        return f'{{"value":{value},"pairs":[{pairs}]}}'

    def nvtx(self, action: object) -> str:
        """Return the NVTX domains: name, stack outermost first, start/end ranges."""
        api = self.api
        state = api.IAction_nvtx_state(action)
        if state is None:
            return "[]"
        extract.KEPT.append(state)
        domains = []
        for number in api.INvtxState_domains(state):
            domain = api.INvtxState_domain_by_id(state, number)
            extract.KEPT.append(domain)
            name = extract.quote(api.INvtxDomainInfo_name(domain) or "")
            stack, started = (
                ",".join(extract.quote(each or "") for each in ranges)
                for ranges in (
                    api.INvtxDomainInfo_push_pop_ranges(domain),
                    api.INvtxDomainInfo_start_end_ranges(domain),
                )
            )
            domains.append(f"[{name},[{stack}],[{started}]]")
        return f"[{','.join(domains)}]"


def _words(api: ModuleType, prefix: str) -> dict[int, str]:
    """Return what the numbers of one of NVIDIA's enumerations mean."""
    return {
        getattr(api, name): name.removeprefix(prefix).lower()
        for name in dir(api)
        if name.startswith(prefix)
    }


def _word(words: dict[int, str], number: int | None) -> str:
    """Return a member of an enumeration as JSON; a number that is new stays one."""
    word = words.get(number or 0, str(number))
    return _ABSENT if word == "none" else f'"{word}"'


def _advice(origin: str, path: str, number: str, index: str) -> tuple[int, str]:
    """
    Return the exit status and, as JSON, the rules' results and the worst line.

    Args:
        origin: Where the module `ncu_report` lies.

        path: The report.

        number: The launch's range.

        index: The launch's place in it.
    """
    import json  # what a rule says has any shape; one launch may cost 6 ms more

    folder = os.path.dirname(origin)  # noqa: PTH120 - pathlib would cost 4 ms
    is_package = os.path.basename(origin) == "__init__.py"  # noqa: PTH119 - as above
    sys.path.append(os.path.dirname(folder) if is_package else folder)  # noqa: PTH120
    try:
        module = __import__("ncu_report")
    except (ImportError, OSError) as error:
        return extract.NO_INTERFACE, ascii(str(error))[1:-1]
    place = module.load_report(path).range_by_idx(int(number))
    action = place and place.action_by_idx(int(index))
    if not action:
        return extract.NOT_A_REPORT, f"it holds no launch {index} in range {number}"
    answer = {
        "rules": [_rule(module, each) for each in action.rule_results_as_dicts()],
        "stall": _worst_line(action),
    }
    return 0, json.dumps(answer) + "\n"


def _rule(module: ModuleType, rule: dict[str, Any]) -> dict[str, object]:
    """Return what one rule found."""
    message = rule["rule_message"]
    estimate = rule.get("speedup_estimation") or {}
    return {
        "rule": rule["rule_identifier"],
        "name": rule["name"],
        "section": rule["section_identifier"],
        "level": _member(module, "MsgType", message["type"]),
        "title": message["title"],
        "message": message["message"],
        "speedup_fraction": estimate["speedup"] / 100 if estimate else None,
        "speedup_scope": (
            _member(module, "SpeedupType", estimate["type"]) if estimate else None
        ),
        "focus": [
            [focus["name"], _finite(focus["value"]), focus["info"]]
            for focus in rule.get("focus_metrics", ())
        ],
    }


def _finite(value: float) -> float | None:
    """Return a number, None where it is none."""
    return value if value - value == 0.0 else None


def _member(module: ModuleType, enumeration: str, number: int) -> str:
    """Return a member's name; a number that is new stays one."""
    try:
        return str(getattr(module, enumeration)(number).name).lower()
    except (AttributeError, ValueError):
        return str(int(number))


def _worst_line(action: Any) -> dict[str, object] | None:  # noqa: ANN401 - NVIDIA's class, not imported here
    """Return where warps waited most: samples of waiting, summed by source line."""
    by_address = _stall_samples(action)
    total = sum(sum(reasons.values()) for reasons in by_address.values())
    if not total:
        return None
    lines: dict[int | tuple[str, int], list[int]] = {}
    for address in by_address:
        source = action.source_info(address)
        known = source is not None and source.file_name()
        line = (source.file_name(), source.line()) if known else address
        lines.setdefault(line, []).append(address)

    def count(address: int) -> int:
        return sum(by_address[address].values())

    line, addresses = max(lines.items(), key=lambda item: sum(map(count, item[1])))
    reasons: dict[str, int] = {}
    for address in addresses:
        for reason, samples in by_address[address].items():
            reasons[reason] = reasons.get(reason, 0) + samples
    sass = (action.sass_by_pc(max(addresses, key=count)) or "").strip()
    file, number = line if isinstance(line, tuple) else (None, None)
    return {
        "file": file,
        "line": number,
        "sass": None if set(sass) <= {"?"} else sass,
        "reason": max(reasons, key=lambda reason: reasons[reason]),
        "samples_count": sum(reasons.values()),
        "samples_fraction": sum(reasons.values()) / total,
    }


def _stall_samples(action: Any) -> dict[int, dict[str, int]]:  # noqa: ANN401 - as above
    """Return the samples of waiting warps by address and reason."""
    found: dict[int, dict[str, int]] = {}
    for name in action.metric_names():
        reason = name.removeprefix(_STALLED)
        if name == reason or reason.endswith(_NOT_ISSUED) or reason in _NO_STALLS:
            continue
        metric = action.metric_by_name(name)
        if not metric.has_correlation_ids():
            continue
        addresses = metric.correlation_ids()
        for place in range(metric.num_instances()):
            samples = metric.as_uint64(place)
            if samples:
                at = found.setdefault(addresses.as_uint64(place), {})
                at[reason] = at.get(reason, 0) + samples
    return found
