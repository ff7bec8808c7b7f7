"""The child side: one report in, the text of `gpuperf show` out.

Started alone in an interpreter of its own (see `text`), because NVIDIA's interface keeps
every launch that it has read until its process ends, and aborts the process at will.
It imports nothing of this package and next to nothing of the standard library:
each import would be paid once per report.
"""

from __future__ import annotations

import gc
import os
import sys
from _json import encode_basestring_ascii  # json itself would cost 6 ms a report
from itertools import pairwise

TYPE_CHECKING = False  # importing typing for this name would cost 2 ms a report
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

__all__ = ["NOT_A_REPORT", "NO_INTERFACE", "Reader", "main", "quote", "start"]

# the exit statuses of sysexits.h: EX_DATAERR and EX_UNAVAILABLE
NOT_A_REPORT = 65
NO_INTERFACE = 69
_FAILED = 70  # EX_SOFTWARE

_MAX_PROCESSES = 8  # each costs a fork of about 110 MB of page tables
_LAUNCHES_PER_PROCESS = 16  # fewer are read sooner (5 ms) than a process is forked
_DESCRIPTORS = 64  # more than are ever open here
_LIBRARIES = ("libnvperf_host.so", "libnvperf_host.dylib", "nvperf_host.dll")
_ABSENT = 'null,"unit":null}'
KEPT: list[object] = []  # a pointer without a class is complained of when it is freed


class _RefusedError(Exception):
    """A file that NVIDIA's interface opens and that is no whole report."""


class Quoted(dict[str, str]):
    """The JSON text around each string that repeats, made when first asked for."""

    def __init__(self, before: str, after: str) -> None:
        self._before = before
        self._after = after

    def __missing__(self, key: str) -> str:
        text = self._before + quote(key) + self._after
        self[key] = text
        return text


def start() -> None:
    """Do what the command line asks and end, without freeing things one by one."""
    os._exit(main(sys.argv[2:]))


def main(argv: Sequence[str], reader: type[Reader] | None = None) -> int:
    """
    Write one report as JSON to standard output.

    Args:
        argv:
            Where the module `ncu_report` lies; the report; how many processes may
            share the work (0: by its size); then `all`, or `some` and the names of
            the metrics.

        reader: What writes a launch; None: `Reader`.

    Returns:
        The exit status: 0; `NOT_A_REPORT` with the reason on standard output;
        `NO_INTERFACE` with the reason there.
    """
    gc.disable()  # nothing here is cyclic, and the process ends before it matters
    stdout = os.dup(1)
    os.dup2(2, 1)  # what the interface itself may print is no part of the text
    if not _can_fork():
        return _print(argv, stdout, reader)
    # read in a copy of this process: the kernel takes 10 ms to free what the interface
    # holds, and whoever waits for this process need not wait for that
    status, _ = _answer(_fork(lambda: (_print(argv, stdout, reader), "")))
    return status


def _print(argv: Sequence[str], stdout: int, reader: type[Reader] | None) -> int:
    """Write the text; return the exit status."""
    status, text = _read(argv, reader)
    with open(stdout, "w", encoding="ascii", newline="") as stream:
        stream.write(text)
    return status


def _read(argv: Sequence[str], reader: type[Reader] | None = None) -> tuple[int, str]:
    """Return the exit status and the text."""
    origin, path, processes, selection, *names = argv
    try:
        api, load = _interface(origin)
    except (ImportError, OSError) as error:
        return NO_INTERFACE, ascii(str(error))[1:-1]
    try:
        asked = names if selection == "some" else None
        found = (reader or Reader)(api, load(path), asked)
        return 0, _share(found, _process_count(int(processes), found))
    except _RefusedError as error:
        return NOT_A_REPORT, str(error)


def _interface(origin: str) -> tuple[ModuleType, Callable[[str], object]]:
    """Return NVIDIA's flat functions and the one that loads a report."""
    folder = os.path.dirname(origin)  # noqa: PTH120 - pathlib would cost 4 ms a report
    if any(name in _LIBRARIES for name in os.listdir(folder)):  # noqa: PTH208 - as above
        # without the classes around them the functions give and take plain pointers,
        # which saves 25 % of the time: no class body to run, no proxy for each metric
        sys.path.append(folder)
        api = __import__("_ncu_report")
        return api, lambda path: api.load_report(path, folder)
    # the layout of an installed Nsight Compute: only the module knows the library
    is_package = os.path.basename(origin) == "__init__.py"  # noqa: PTH119 - as above
    sys.path.append(os.path.dirname(folder) if is_package else folder)  # noqa: PTH120
    module = __import__("ncu_report")
    return module._ncu_report, module.load_report  # noqa: SLF001 - the flat functions


class Reader:
    """
    Reads launches of one loaded report into JSON text.

    Attributes:
        api: NVIDIA's flat functions.

        names: The metrics of the answer; None: all that each launch has.

        places: Range and index of every launch, in the order of the report.

        strings: Texts as JSON.
    """

    def __init__(
        self, api: ModuleType, report: object, names: Sequence[str] | None
    ) -> None:
        self.api = api
        self.names = names
        self._ranges = [
            api.IContext_range_by_idx(report, number)
            for number in range(api.IContext_num_ranges(report))
        ]
        KEPT.extend((report, *self._ranges))
        counts = [api.IRange_num_actions(each) for each in self._ranges]
        if not all(counts) or not counts:
            message = "it holds no launch: nothing was profiled, or it is cut off"
            raise _RefusedError(message)
        self.places = [
            (number, index)
            for number, count in enumerate(counts)
            for index in range(count)
        ]
        self._heads = Quoted("", ':{"value":')
        self._tails = Quoted(',"unit":', "}")
        self.strings = Quoted("", "")
        # the first launch that is read loads a library of 110 MB: do it before a fork
        self._first = api.IRange_action_by_idx(self._ranges[0], 0)

    def launch(self, place: tuple[int, int]) -> str:
        """Return one launch, with what divides it from the launch before."""
        number, index = place
        api = self.api
        action = (
            api.IRange_action_by_idx(self._ranges[number], index)
            if place != (0, 0)
            else self._first
        )
        KEPT.append(action)
        measured = "true" if self._measured(action, place) else "false"
        before = "," if index else ("]}," if number else "") + '{"launches":['
        kernel = quote(api.IAction_name(action) or "")
        demangled = api.IAction_name(action, api.IAction_NameBase_DEMANGLED) or ""
        return (
            f'{before}{{"index":{index},"kernel":{kernel},'
            f'"demangled":{quote(demangled)},"nvtx":{self.nvtx(action)},'
            f'"measured":{measured},{self.values(action)}}}'
        )

    def _measured(self, action: object, place: tuple[int, int]) -> bool:
        """Whether the profile of this launch did not fail."""
        api = self.api
        usual = api.IAction_metric_by_name(action, "launch__grid_size")
        if usual is not None:  # without the price of all names
            KEPT.append(usual)
            return True
        names = api.IAction_metric_names(action)
        if not names:  # even a failed one has the device's attributes
            message = f"it is cut off: launch {place[1]} has no metric at all"
            raise _RefusedError(message)
        if api.IAction_workload_type(action) != api.IAction_WorkloadType_KERNEL:
            return True  # a range or a graph has no launch of its own
        return any(name.startswith("launch__") for name in names)

    def values(self, action: object) -> str:
        """Return the members of a launch that hold what was measured."""
        names = self.names
        if names is None:
            names = self.api.IAction_metric_names(action)
        return f'"metrics":{{{",".join(self._metrics(action, names))}}}'

    def _metrics(self, action: object, names: Iterable[str]) -> list[str]:
        """Return the members of the JSON object `metrics`."""
        api, heads, tails = self.api, self._heads, self._tails
        by_name, kind_of = api.IAction_metric_by_name, api.IMetric_kind
        as_double, as_uint64 = api.IMetric_as_double, api.IMetric_as_uint64
        unit_of, as_string = api.IMetric_unit, api.IMetric_as_string
        string = api.IMetric_ValueKind_STRING
        floats = (api.IMetric_ValueKind_DOUBLE, api.IMetric_ValueKind_FLOAT)
        integers = (api.IMetric_ValueKind_UINT64, api.IMetric_ValueKind_UINT32)
        members = []
        for name in names:
            metric = by_name(action, name)
            if metric is None:
                members.append(heads[name] + _ABSENT)
                continue
            KEPT.append(metric)
            kind = kind_of(metric)
            text = "null"
            if kind in floats:
                value = as_double(metric)
                if value - value == 0.0:  # neither NaN nor infinite
                    text = repr(value)
            elif kind in integers:
                text = repr(as_uint64(metric))
            elif kind == string and (found := as_string(metric)) is not None:
                text = self.strings[found]
            members.append(heads[name] + text + tails[unit_of(metric)])
        return members

    def nvtx(self, action: object) -> str:
        """Return the JSON object of NVTX domains: stacks, outermost first."""
        api = self.api
        state = api.IAction_nvtx_state(action)
        if state is None:
            return "{}"
        KEPT.append(state)
        domains: dict[str, list[str]] = {}
        for number in api.INvtxState_domains(state):
            domain = api.INvtxState_domain_by_id(state, number)
            KEPT.append(domain)
            domains.setdefault(api.INvtxDomainInfo_name(domain), []).extend(
                (
                    *api.INvtxDomainInfo_push_pop_ranges(domain),
                    *api.INvtxDomainInfo_start_end_ranges(domain),
                )
            )
        members = (
            f"{quote(name)}:[{','.join(map(quote, ranges))}]"
            for name, ranges in domains.items()
        )
        return f"{{{','.join(members)}}}"


def _share(reader: Reader, processes: int) -> str:
    """Return the whole text, its first part read here, each other one in a fork."""
    places, count = reader.places, len(reader.places)
    bounds = [count * part // processes for part in range(processes + 1)]
    mine, *others = (places[low:high] for low, high in pairwise(bounds))
    workers = [_fork(lambda part=part: _part(reader, part)) for part in others]  # type: ignore[misc] # mypy gives a lambda's default no type
    pieces = ['{"ranges":[', *map(reader.launch, mine)]
    for worker in workers:
        status, text = _answer(worker)
        if status:
            raise _RefusedError(text)
        pieces.append(text)
    pieces.append("]}]}\n")
    return "".join(pieces)


def _part(reader: Reader, places: Iterable[tuple[int, int]]) -> tuple[int, str]:
    """Return some launches, or the reason why the report is refused."""
    try:
        return 0, "".join(map(reader.launch, places))
    except _RefusedError as error:
        return NOT_A_REPORT, str(error)


def _process_count(asked: int, reader: Reader) -> int:
    """Return how many processes read the report."""
    if not _can_fork():
        return 1
    by_size = len(reader.places) // _LAUNCHES_PER_PROCESS
    chosen = asked or min(by_size, len(os.sched_getaffinity(0)), _MAX_PROCESSES)
    return max(1, min(chosen, len(reader.places)))


def _can_fork() -> bool:
    """Whether a copy of this process would be whole: a fork copies one thread."""
    return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208 - as above


def _fork(work: Callable[[], tuple[int, str]]) -> tuple[int, int]:
    """Start a copy of this process on some work; return its id and its pipe."""
    source, sink = os.pipe()
    worker = os.fork()
    if worker:
        os.close(sink)
        return worker, source
    try:
        os.close(source)
        status, text = work()
        with open(sink, "w", encoding="ascii", newline="") as stream:  # noqa: PTH123 - a descriptor
            stream.write(f"{text}{status:3}")
    except BaseException:  # noqa: BLE001 - a copy must not go on with its parent's work
        sys.excepthook(*sys.exc_info())
    os.closerange(0, _DESCRIPTORS)  # a reader of any of them need not wait for the end
    os._exit(_FAILED)  # asked for only where the pipe holds no answer


def _answer(worker: tuple[int, int]) -> tuple[int, str]:
    """Return what a copy of this process came to; end like it where it crashed."""
    process, source = worker
    with open(source, encoding="ascii", newline="") as stream:  # noqa: PTH123 - a descriptor
        text = stream.read()
    if text:
        return int(text[-3:]), text[:-3]
    _, ended = os.waitpid(process, 0)
    if os.WIFSIGNALED(ended):
        os.kill(os.getpid(), os.WTERMSIG(ended))
    os._exit(_FAILED)


def quote(text: str | None) -> str:
    """Return a string as JSON, in ASCII; bytes that are no text become U+FFFD."""
    if text is None:
        return "null"
    if not text.isascii():
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return encode_basestring_ascii(text)
