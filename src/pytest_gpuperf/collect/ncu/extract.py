"""The child process that reads a `.ncu-rep` with NVIDIA's classes and writes JSON.

`text` starts it in a separate interpreter, because NVIDIA's reader keeps every launch
in memory until its process ends, and a damaged file can abort that process.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import islice, pairwise

from pytest_gpuperf.collect.ncu.forms import (
    ADVICE,
    ALL,
    ALL_VALUES,
    COLUMNS,
    CORRELATED,
    LAUNCHES,
    NO_INTERFACE,
    NOT_A_REPORT,
    VALUES,
)

# The module typing takes 4 ms, and this process needs it for nothing else.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, NoReturn, TypeAlias

    from ncu_report import IAction, IContext, IMetric

    _Value: TypeAlias = int | float | str | None
    _Object: TypeAlias = dict[str, Any]  # Of JSON.
    _Place: TypeAlias = tuple[int, int]  # Of a launch: its range, and its index there.
    _Read: TypeAlias = Callable[[Iterable[_Place]], Iterable[_Object]]

_LISTS = ("group:", "breakdown:")  # ncu's prefixes of texts that list metrics.

_FAILED = 70  # EX_SOFTWARE of sysexits.h.

# Each process costs a fork of about 110 MB of page tables.
_MAX_PROCESSES = 8
# Fewer launches are read sooner (5 ms) than a process is forked.
_LAUNCHES_PER_PROCESS = 16
# Up to here a double represents every integer exactly.
_EXACT = 2.0**53
# Samples of a warp that was issuing, or could have issued. It did not wait.
_NO_STALLS = ("selected", "not_selected")
_STALLED = "smsp__pcsamp_warps_issue_stalled_"
# The hottest lines of a source. A longer list hides where to begin.
_MOST_LINES = 3
# Suffix of samples at which the scheduler issued nothing.
_NOT_ISSUED = "_not_issued"

# For these metrics the unit given by NVIDIA's reader (2026.3) depends on earlier
# queries of the process: "byte" or "sector", "inst" or "thread". Checked against 8
# reports in shuffled orders.
_UNSURE_UNITS = tuple(
    (re.compile(pattern), unit)
    for pattern, unit in (
        (r"breakdown:.+\.pct_of_peak_sustained_\w+", "%"),
        (r"(derived__)?memory_l2_theoretical_sectors_\w+", "sector"),
        (r"derived__\w+_pred_on_x\d", "inst"),
        (r"smsp__pcsamp_warps_issue_stalled_\w+", "warp"),
        (r"sass__\w*spilling\w*", "inst"),
        (r"smsp__sass_inst_executed_op_memory_\d+b\.sum", "inst"),
        (r"smsp?__sass_thread_inst_executed_op_\w+\.sum\.per_cycle_\w+", "inst/cycle"),
    )
)


class _RefusedError(Exception):
    """NVIDIA's reader opens the file, but it is not a complete report."""


def main(argv: Sequence[str]) -> NoReturn:
    """
    Write an answer to standard output and end the process.

    Args:
        argv: The form, the report, the number of processes, and the names.
    """
    stdout = os.dup(1)
    # The library's own output is not part of the answer.
    os.dup2(2, 1)
    form, report, processes, *names = argv
    status, text = answer(form, report, names, processes=int(processes))
    with os.fdopen(stdout, "w", encoding="ascii", newline="") as stream:
        stream.write(text)
    # Ends without NVIDIA's destructors, which may crash.
    os._exit(status)


def answer(
    form: str, report: str, names: Sequence[str], *, processes: int = 0
) -> tuple[int, str]:
    """
    Return an exit status and a text.

    Args:
        form: `VALUES`, `ALL_VALUES`, `COLUMNS`, `LAUNCHES` or `ADVICE`.

        report: The file.

        names: The arguments of the form.

        processes: The number of processes, or 0 to choose it by the size of the report.

    Returns:
        0 and JSON, or `NOT_A_REPORT` or `NO_INTERFACE` and the reason.
    """
    try:
        api = import_module("ncu_report")
        context = api.load_report(report)
    except (ImportError, OSError) as error:
        return NO_INTERFACE, ascii(str(error))[1:-1]
    try:
        if form == ADVICE:
            number, index = map(int, names)
            return 0, _json(_advice(api, context, number, index)) + "\n"
        reader = LaunchReader(api, context)
        read = {
            VALUES: functools.partial(reader.values, names),
            ALL_VALUES: functools.partial(reader.values, None),
            COLUMNS: functools.partial(reader.columns, names),
            LAUNCHES: functools.partial(reader.launches, names),
        }[form]
        return 0, _launches_text(reader.counts(), read, processes)
    except _RefusedError as error:
        return NOT_A_REPORT, str(error)


def _launches_text(counts: Sequence[int], read: _Read, processes: int) -> str:
    """
    Return the launches of all ranges as JSON. `counts` holds the number of launches per
    range.

    The first part is read here, and the rest in forks: with two cores all metrics of 154
    launches are shown in 0.43 s instead of 0.65 s.
    """
    places = [(n, index) for n, count in enumerate(counts) for index in range(count)]
    # A fork copies no second thread.
    if sys.platform != "linux" or len(os.listdir("/proc/self/task")) != 1:  # noqa: PTH208 - names are enough
        processes = 1
    elif not processes:
        cores = len(os.sched_getaffinity(0))
        processes = min(len(places) // _LAUNCHES_PER_PROCESS, cores, _MAX_PROCESSES)
    processes = max(1, min(processes, len(places)))
    bounds = [len(places) * part // processes for part in range(processes + 1)]
    first, *rest = (places[low:high] for low, high in pairwise(bounds))
    workers = [_fork(read, part) for part in rest]
    lines = [_json(launch) for launch in read(first)]
    for process, source in workers:
        with os.fdopen(source, encoding="ascii", newline="\n") as stream:
            lines += stream.read().splitlines()
        _, wait_status = os.waitpid(process, 0)
        # If a worker failed, this process ends in the same way.
        if os.WIFSIGNALED(wait_status):
            os.kill(os.getpid(), os.WTERMSIG(wait_status))
        status = os.waitstatus_to_exitcode(wait_status)
        if status == NOT_A_REPORT:
            raise _RefusedError(lines[-1])
        if status:
            os._exit(status)
    texts = iter(lines)
    ranges = (f'{{"launches":[{",".join(islice(texts, n))}]}}' for n in counts)
    return f'{{"ranges":[{",".join(ranges)}]}}\n'


def _fork(read: _Read, places: Iterable[_Place]) -> tuple[int, int]:
    """Read some launches in a copy of the process, and return the process id and the pipe."""
    source, sink = os.pipe()
    worker = os.fork()
    if worker:
        os.close(sink)
        return worker, source
    try:
        os.close(source)
        # All launches are read first, because the pipe may block until the parent reads
        # it.
        try:
            status, text = 0, "\n".join(map(_json, read(places)))
        except _RefusedError as error:
            status, text = NOT_A_REPORT, str(error)
        with os.fdopen(sink, "w", encoding="ascii", newline="") as stream:
            stream.write(text)
    except BaseException:  # noqa: BLE001 - a fork must not continue its parent's work
        sys.excepthook(*sys.exc_info())
        status = _FAILED
    os._exit(status)


# ------------------------------------------------------------ launches and metrics


class LaunchReader:
    """
    Launches of a loaded report as objects of JSON.

    Args:
        api: The module `ncu_report`.

        context: The report.
    """

    def __init__(self, api: ModuleType, context: IContext) -> None:
        action, metric = api.IAction, api.IMetric
        self._context = context
        self._kernel = action.WorkloadType_KERNEL
        self._demangled = action.NameBase_DEMANGLED
        self._mangled = action.NameBase_MANGLED
        self._getters = {  # By the kind of a value.
            metric.ValueKind_DOUBLE: metric.as_double,
            metric.ValueKind_FLOAT: metric.as_double,
            metric.ValueKind_UINT32: metric.as_uint64,
            metric.ValueKind_UINT64: metric.as_uint64,
            metric.ValueKind_STRING: metric.as_string,
        }
        self._kinds = _words(metric, "ValueKind_")
        self._types = _words(metric, "MetricType_")
        self._subtypes = _words(metric, "MetricSubtype_")
        self._rollups = _words(metric, "RollupOperation_")
        self._workloads = _words(action, "WorkloadType_")
        self._facts: dict[tuple[str, int, str | None], list[str | None]] = {}
        # Reading a unit takes as long as reading a value. None of 5,010 names in 8
        # reports had two units.
        self._units: dict[str, str | None] = {}

    def counts(self) -> list[int]:
        """Return the number of launches per range."""
        context = self._context
        ranges = [context.range_by_idx(n) for n in range(context.num_ranges())]
        counts = [section.num_actions() for section in ranges]
        if not counts or not all(counts):
            message = "it holds no launch: nothing was profiled, or it is cut off"
            raise _RefusedError(message)
        # Loads a library of 110 MB once, before a fork.
        ranges[0].action_by_idx(0)
        return counts

    def values(
        self, names: Sequence[str] | None, places: Iterable[_Place]
    ) -> Iterator[_Object]:
        """
        Yield launches with the values and units of the named metrics, or of all metrics
        for None.
        """
        for place in places:
            action = self._action(place)
            nvtx: dict[str, list[str]] = {}
            for domain, stack, started in _nvtx(action):
                nvtx.setdefault(domain, []).extend((*stack, *started))
            metrics = {}
            for name in action.metric_names() if names is None else names:
                metric = action.metric_by_name(name)
                value = None if metric is None else self._value(metric, metric.kind())
                unit = None if metric is None else self._unit(name, metric)
                metrics[name] = {"value": value, "unit": unit}
            yield self._head(action, place, nvtx) | {"metrics": metrics}

    def columns(
        self, names: Sequence[str], places: Iterable[_Place]
    ) -> Iterator[_Object]:
        """Yield launches with metrics. Names are written only if they change."""
        before: _Object = {}
        for place in places:
            action = self._action(place)
            launch = self._head(action, place, _nvtx(action))
            present = list(action.metric_names())
            listed = present if ALL in names else names
            metrics = [(name, action.metric_by_name(name)) for name in listed]
            metrics = [(name, metric) for name, metric in metrics if metric is not None]
            launch["values"] = [self._value(m, m.kind()) for _, m in metrics]
            columns = {
                "names": [name for name, _ in metrics],
                "units": [self._unit(name, metric) or "" for name, metric in metrics],
                "present": present,
            }
            changed = {n: columns[n] for n in columns if before.get(n) != columns[n]}
            before = columns
            yield launch | changed

    def launches(
        self, names: Sequence[str], places: Iterable[_Place]
    ) -> Iterator[_Object]:
        """Yield launches with the facts of metrics. Facts are written only if they change."""
        plain = [name for name in names if not name.startswith(CORRELATED)]
        by_place = [name[len(CORRELATED) :] for name in names if name not in plain]
        before: _Object = {}
        for place in places:
            action = self._action(place)
            launch = self._head(action, place, _nvtx(action))
            launch["mangled"] = action.name(self._mangled) or ""
            launch["correlated"] = {n: self._correlated(action, n) for n in by_place}
            listed = list(dict.fromkeys(self._listed(action, plain)))
            pairs = [self._value_and_facts(action, name) for name in listed]
            launch["values"] = [value for value, _ in pairs]
            columns = {"names": listed, "facts": [facts for _, facts in pairs]}
            changed = {n: columns[n] for n in columns if before.get(n) != columns[n]}
            before = columns
            yield launch | changed

    def _action(self, place: _Place) -> IAction:
        number, index = place
        return self._context.range_by_idx(number).action_by_idx(index)

    def _head(self, action: IAction, place: _Place, nvtx: object) -> _Object:
        workload = action.workload_type()
        # The usual case, without listing all names.
        measured = action.metric_by_name("launch__grid_size") is not None
        if not measured:
            names = action.metric_names()
            # Even a failed launch has the device's attributes.
            if not names:
                message = f"it is cut off: launch {place[1]} has no metric at all"
                raise _RefusedError(message)
            # A range or a graph has no launch of its own.
            measured = workload != self._kernel or any(
                name.startswith("launch__") for name in names
            )
        head = {
            "index": place[1],
            "kernel": action.name() or "",
            "demangled": action.name(self._demangled) or "",
            "nvtx": nvtx,
            "measured": measured,
        }
        if workload != self._kernel:
            head["workload"] = _word(self._workloads, workload)
        return head

    def _unit(self, name: str, metric: IMetric) -> str | None:
        if name not in self._units:
            self._units[name] = own_unit(name) or metric.unit()
        return self._units[name]

    def _value(self, metric: IMetric, kind: int, *place: int) -> _Value:
        """Return a value, or None if absent, NaN, infinite or of an unknown kind."""
        getter = self._getters.get(kind)
        value: _Value = getter(metric, *place) if getter else None
        # A metric with values by time or address and without a total also reads as 0.
        if value == 0 and not place and not metric.has_value():
            return None
        return None if isinstance(value, float) and not math.isfinite(value) else value

    def _whole(self, metric: IMetric, kind: int, *place: int) -> _Value:
        value = self._value(metric, kind, *place)
        if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
            value = int(value)
        return value

    def _value_and_facts(
        self, action: IAction, name: str
    ) -> tuple[_Value, list[str | None] | None]:
        metric = action.metric_by_name(name)
        if metric is None:
            return None, None
        kind, unit = metric.kind(), own_unit(name) or metric.unit()
        key = (name, kind, unit)
        if key not in self._facts:
            self._facts[key] = [
                unit or "",
                _word(self._kinds, kind),
                _word(self._types, metric.metric_type()),
                _word(self._subtypes, metric.metric_subtype()),
                _word(self._rollups, metric.rollup_operation()),
            ]
        return self._whole(metric, kind), self._facts[key]

    def _listed(
        self, action: IAction, names: Iterable[str], depth: int = 4
    ) -> Iterator[str]:
        """Yield names, with lists replaced by the members, down to `depth`."""
        for name in names:
            if name == ALL:
                yield from action.metric_names()
            elif name.startswith(_LISTS) and depth:
                metric = action.metric_by_name(name)
                text = metric and metric.as_string()
                members = text.split(",") if text else [name]
                # The depth ends a list that names itself.
                yield from self._listed(action, members, depth - 1)
            else:
                yield name

    def _correlated(self, action: IAction, name: str) -> _Object | None:
        metric = action.metric_by_name(name)
        if metric is None:
            return None
        answer: _Object = {"value": self._whole(metric, metric.kind())}
        if metric.has_correlation_ids():
            ids = metric.correlation_ids()
            answer["pairs"] = [
                [
                    self._whole(ids, ids.kind(place), place),
                    self._whole(metric, metric.kind(place), place),
                ]
                for place in range(metric.num_instances())
            ]
        return answer


@functools.cache
def own_unit(name: str) -> str | None:
    """Return the unit of a metric if NVIDIA's reader only guesses the unit, else None."""
    units = (unit for pattern, unit in _UNSURE_UNITS if pattern.fullmatch(name))
    return next(units, None)


def _nvtx(action: IAction) -> list[tuple[str, list[str], list[str]]]:
    """Return the NVTX domains: name, stack outermost first, start/end ranges."""
    state = action.nvtx_state()
    if state is None:
        return []
    domains = [state.domain_by_id(number) for number in state.domains()]
    return [
        (
            domain.name() or "",
            [name or "" for name in domain.push_pop_ranges()],
            [name or "" for name in domain.start_end_ranges()],
        )
        for domain in domains
    ]


def _words(owner: object, prefix: str) -> dict[int, str]:
    return {
        getattr(owner, name): name.removeprefix(prefix).lower()
        for name in dir(owner)
        if name.startswith(prefix)
    }


def _word(words: dict[int, str], number: int | None) -> str | None:
    """Return a name of an enumeration, or an unknown number as text."""
    word = words.get(number or 0, str(number))
    return None if word == "none" else word


def _json(content: _Object) -> str:
    """Return JSON in ASCII, with U+FFFD for bytes that are not UTF-8."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    if text.isascii():
        return text
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return json.dumps(json.loads(text), separators=(",", ":"))


# ------------------------------------------------------------ rules and samples


def _advice(api: ModuleType, context: IContext, number: int, index: int) -> _Object:
    place = context.range_by_idx(number)
    action = None if place is None else place.action_by_idx(index)
    if action is None:
        message = f"it holds no launch {index} in range {number}"
        raise _RefusedError(message)
    rules = []
    for rule in action.rule_results_as_dicts():
        said, estimate = rule["rule_message"], rule.get("speedup_estimation")
        scope = _member(api.SpeedupType, estimate["type"]) if estimate else None
        rules.append(
            {
                "rule": rule["rule_identifier"],
                "name": rule["name"],
                "section": rule["section_identifier"],
                "level": _member(api.MsgType, said["type"]),
                "title": said["title"],
                "message": said["message"],
                "speedup_fraction": estimate["speedup"] / 100 if estimate else None,
                "speedup_scope": scope,
            }
        )
    return {"rules": rules, "stalls": _hottest_lines(action)}


def _member(enumeration: Callable[[int], Any], number: int) -> str:
    try:
        return str(enumeration(number).name).lower()
    except ValueError:
        return str(int(number))


def _hottest_lines(action: IAction) -> list[_Object]:
    by_address = _stall_samples(action)
    counts = {address: sum(samples.values()) for address, samples in by_address.items()}
    lines: dict[int | tuple[str, int], list[int]] = {}
    for address in by_address:
        source = action.source_info(address)
        has_line = source is not None and source.file_name()
        line = (source.file_name(), source.line()) if has_line else address
        lines.setdefault(line, []).append(address)
    ranked = sorted(lines, key=lambda line: -sum(counts[at] for at in lines[line]))
    rows = []
    for line in ranked[:_MOST_LINES]:
        reasons: Counter[str] = Counter()
        for address in lines[line]:
            reasons.update(by_address[address])
        hottest = max(lines[line], key=counts.__getitem__)
        sass = (action.sass_by_pc(hottest) or "").strip()
        file, number = line if isinstance(line, tuple) else (None, None)
        samples_count = sum(reasons.values())
        rows.append(
            {
                "file": file,
                "line": number,
                "sass": None if set(sass) <= {"?"} else sass,
                "reason": max(reasons, key=reasons.__getitem__),
                "samples_count": samples_count,
                "samples_fraction": samples_count / sum(counts.values()),
            }
        )
    return rows


def _stall_samples(action: IAction) -> dict[int, dict[str, int]]:
    by_address: dict[int, dict[str, int]] = {}
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
                reasons = by_address.setdefault(addresses.as_uint64(place), {})
                reasons[reason] = reasons.get(reason, 0) + samples
    return by_address
