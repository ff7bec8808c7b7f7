"""The command `show` for runs, captures, recordings and binaries, as records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_gpuperf.cli.merge import one_run
from pytest_gpuperf.cli.output import (
    CAPTURE_START,
    GOOD,
    exists,
    is_folder,
    print_bytes,
    print_table,
    read_run,
    say,
    told_on_terminals,
)
from pytest_gpuperf.collect.binary.demangling import native_demangler
from pytest_gpuperf.collect.chip_limits import target_limits
from pytest_gpuperf.collect.ncu.launches import (
    decode_capture,
    read_capture,
    read_report,
)
from pytest_gpuperf.collect.ncu.nvtx import LaunchFilter, few
from pytest_gpuperf.collect.ncu.report import Report
from pytest_gpuperf.collect.replay import read_recording
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.collect.traces import read_trace
from pytest_gpuperf.compute.derive import kernel_occupancy
from pytest_gpuperf.errors import CaptureFormatError, CollectError, ConfigError
from pytest_gpuperf.measure.captured import (
    analyses,
    capture_values,
    close_names,
    details,
    report_counters,
    whole_record,
)
from pytest_gpuperf.model.activity import InstructionMix
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.kernel import fits_kernel
from pytest_gpuperf.model.launch import (
    KERNEL,
    Capture,
    CapturedLaunch,
    CapturedValue,
)
from pytest_gpuperf.model.metric import METRICS, is_counter
from pytest_gpuperf.report import display
from pytest_gpuperf.report.captures import (
    capture_bytes,
    kernel_name,
    launch_failures,
    plain_name,
)
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.report.kernels import (
    NAME_WIDTH,
    CompiledKernel,
    compiled_columns,
    compiled_facts,
    doubt_lines,
    kernels_bytes,
    unknown_occupancy,
)
from pytest_gpuperf.report.launches import (
    CapturedReport,
    DetailedLaunch,
    details_bytes,
    launch_blocks,
)
from pytest_gpuperf.report.runs import run_bytes

if TYPE_CHECKING:
    import argparse

    from pytest_gpuperf.collect.binary.read import Cubin
    from pytest_gpuperf.collect.runner import Runner
    from pytest_gpuperf.model.activity import Trace
    from pytest_gpuperf.model.record import Record
    from pytest_gpuperf.model.run import Run
    from pytest_gpuperf.model.sample import Unmeasured

# A screen holds this many launches. More launches are summed by kernel.
_LISTED = 10
# Number of launches with advice. Each takes a process of some 0.3 s.
_ADVISED = 5
# Launches of a page, the longest first. One takes some 2 kB.
_MOST_SHOWN = 40

_Read = Callable[[Sequence[str] | None], Capture]


def show_run(files: Sequence[str], form: str, metrics: tuple[str, ...] | None) -> int:
    """
    Print a run, or the shards of one, and on standard error the requested metrics that
    are missing.
    """
    run = one_run(files)
    if metrics is None:
        return print_bytes(run_bytes(run, form))
    _refuse_unknown(metrics, _names_in(run), where="run")
    print_bytes(run_bytes(run, form, metrics=metrics))
    _remark(absent_from_run(run, metrics))
    return GOOD


def show_capture(arguments: argparse.Namespace, text: bytes) -> int:
    """
    Print a whole capture as text or Markdown.

    Args:
        arguments: The arguments of `show`.

        text: The capture, as its reader wrote it.
    """
    return _show_launches_of(arguments, decode_capture(text), listed=arguments.list)


def show_metrics(file: str, form: str, metrics: tuple[str, ...]) -> int:
    """Print some metrics of all launches of a capture."""
    return _print_selected(_reader(file), form, metrics)


def chosen_places(file: str, filters: Mapping[str, Any]) -> set[tuple[int, int]]:
    """
    Return the range and index of all chosen launches of a capture.

    Args:
        file: The capture.

        filters: The arguments of a `LaunchFilter`.

    Raises:
        ConfigError: No launch is chosen.
    """
    report = read_report(file, (), runner=ProcessRunner())
    try:
        chosen = report.chosen(LaunchFilter(**filters), file)
    # The options are wrong, not the file.
    except CaptureFormatError as error:
        raise ConfigError(error.message, remedy=error.remedy) from error
    return {(placed.range_index, placed.index) for placed in chosen}


def show_chosen(arguments: argparse.Namespace, places: set[tuple[int, int]]) -> int:
    """
    Print some launches of a capture: their metrics, or all as text or Markdown.

    Args:
        arguments: The arguments of `show`.

        places: The range and index of each launch.
    """
    file, form, metrics = arguments.file, arguments.format, arguments.metrics
    reader = _reader(file)

    def read(names: Sequence[str] | None) -> Capture:
        return reader(names).mapped(
            lambda number, launch: launch if (number, launch.index) in places else None
        )

    if metrics is not None:
        return _print_selected(read, form, metrics)
    # Numbers name single launches, so their sum has no meaning.
    listed = arguments.list or arguments.launches is not None
    return _show_launches_of(arguments, read(None), listed=listed)


def _show_launches_of(
    arguments: argparse.Namespace, capture: Capture, *, listed: bool
) -> int:
    """
    Print launches in detail or listed, or summed by kernel if there are more than ten.

    Up to five launches in detail have ncu's advice.
    """
    form = arguments.format
    placed = capture.placed
    if arguments.details or (len(placed) == 1 and not arguments.list):
        remarks = launch_failures(capture)
        is_advised = len(placed) <= _ADVISED
        if not is_advised:
            remarks.append(
                f"what ncu advises is shown of up to {_ADVISED} launches: choose them with "
                "--launches or --kernel"
            )
        shown = _detailed(
            arguments.file,
            [(number, launch) for number, launch in placed if launch.measured],
            has_ranges=len(capture.ranges) > 1,
            advised_count=_ADVISED if is_advised else 0,
        )
        return print_bytes(details_bytes(shown, form, remarks=remarks))
    limits = analyses(capture)
    by_kernel = arguments.sort or arguments.top
    if by_kernel or (len(placed) > _LISTED and not listed):
        return print_bytes(
            kernels_bytes(
                capture,
                form,
                analyses=limits,
                sort=arguments.sort or "total",
                top=arguments.top,
            )
        )
    return print_bytes(capture_bytes(capture, form, metrics=None, analyses=limits))


def _detailed(
    file: str,
    placed: Sequence[tuple[int, CapturedLaunch]],
    *,
    has_ranges: bool,
    advised_count: int,
) -> list[DetailedLaunch]:
    """
    Return launches in detail, by range and launch, with ncu's advice for
    `advised_count` launches.
    """
    report = Report(file)
    return [
        DetailedLaunch(
            launch=launch,
            range_index=number if has_ranges else None,
            details=details(
                launch,
                report.advice(launch.index, number) if place < advised_count else None,
            ),
        )
        for place, (number, launch) in enumerate(placed)
    ]


def report_of(file: str) -> CapturedReport:
    """
    Return a whole capture as shown on a page.

    Raises:
        CollectError: The capture cannot be read, or none of its launches was measured.
    """
    capture = _reader(file)(None)
    limits = chain.from_iterable(analyses(capture))
    timed = [
        (analysis.duration_s or 0.0, number, launch)
        for (number, launch), analysis in zip(capture.placed, limits, strict=True)
        if analysis is not None
    ]
    if not timed:
        message = "none of its launches was measured"
        raise CaptureFormatError(message, remedy="profile again", path=file)
    longest = sorted(timed, key=lambda one: -one[0])[:_MOST_SHOWN]
    with told_on_terminals(f"reading what ncu advises in {file}"):
        shown = _detailed(
            file,
            [(number, launch) for _, number, launch in longest],
            has_ranges=len(capture.ranges) > 1,
            advised_count=_ADVISED,
        )
    return CapturedReport(
        record=whole_record(file, [launch for _, _, launch in timed]),
        launches=tuple(shown),
        launches_count=len(capture.launches),
        failures=tuple(launch_failures(capture)),
    )


def _print_selected(read: _Read, form: str, metrics: tuple[str, ...]) -> int:
    capture, remarks = selected(read, metrics)
    if form != "json":
        content = capture_bytes(capture, form, metrics=metrics, remarks=remarks)
        return print_bytes(content)
    lacking = CapturedValue(value=None, unit=None)
    ranges: list[dict[str, Any]] = []
    for part in capture.ranges:
        ranges.append({"launches": []})
        for launch in part.launches:
            # Counters have the spelling of the report, and our metrics ours.
            values = {name: launch.metrics.get(name, lacking) for name in metrics}
            workload = launch.workload
            ranges[-1]["launches"].append(
                ({} if workload == KERNEL else {"workload": workload})
                | {
                    "index": launch.index,
                    "kernel": launch.kernel,
                    "demangled": launch.demangled,
                    "nvtx": launch.nvtx,
                    "measured": launch.measured,
                    "metrics": {n: v for n, v in values.items() if n not in METRICS},
                    "derived": {n: v for n, v in values.items() if n in METRICS},
                }
            )
    print_bytes(CAPTURE_START + msgspec.json.encode({"ranges": ranges})[1:] + b"\n")
    _remark(remarks)
    return GOOD


def say_what_lacks(file: str, metrics: Sequence[str]) -> None:
    """Read a capture again and print missing counters on standard error."""
    _remark(selected(_reader(file), metrics)[1])


def _remark(sentences: Iterable[str]) -> None:
    say(f"gpuperf: {sentence}" for sentence in sentences)


def _reader(file: str) -> _Read:
    def read(names: Sequence[str] | None) -> Capture:
        with told_on_terminals(f"reading {file}"):
            return read_capture(file, runner=ProcessRunner(), metrics=names)

    return read


def selected(read: _Read, metrics: Sequence[str]) -> tuple[Capture, tuple[str, ...]]:
    """
    Return a report with the requested metrics, and remarks on missing metrics.

    Args:
        read: Reads the report with the given counters, by their own names, or with all
            counters for None.

        metrics: Names of the catalogue and counters by their own names.

    Returns:
        The report, in which a metric of the catalogue is a value of each launch, in its
        unit. A sentence for each metric that some launch lacks, and for each counter
        that none has, or has without a value.

    Raises:
        ConfigError: None of the names is that of a metric.
    """
    capture = read(report_counters(metrics))
    catalogue = [name for name in metrics if name in METRICS]
    gaps: dict[str, Unmeasured] = {}
    measured = [launch for launch in capture.launches if launch.measured]
    empty = {
        name
        for launch in measured
        for name, counter in launch.metrics.items()
        if counter.unit is not None
    } - capture.counters
    requested = [name for name in metrics if name in METRICS or name in empty]
    if measured and requested:
        gaps = {gap.metric: gap for gap in capture_values(measured, requested, None)[1]}
    completed = capture.mapped(lambda _, launch: _with(launch, catalogue, gaps))
    remarks = [f"{gap.metric} n/a: {gap.text}" for gap in gaps.values()]
    present = METRICS.keys() | capture.counters | empty
    absent = [name for name in metrics if name not in present]
    # The whole report is read only after a mistake.
    if absent:
        counters = read(None).counters
        _refuse_unknown(metrics, counters, where="capture")
        for name in absent:
            is_ours = not is_counter(name)
            alike = close_names(
                name, counters | METRICS.keys() if is_ours else counters
            )
            remark = _unknown(name, "capture", alike)
            if not is_ours:
                joint = " if not," if alike else ";"
                remark += f"{joint} collect it: ncu --metrics {name}"
            remarks.append(remark)
    return completed, tuple(remarks)


def absent_from_run(run: Run, metrics: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence per metric that a run lacks."""
    present = _names_in(run)
    return tuple(
        _unknown(name, "run", close_names(name, present))
        for name in metrics
        if name not in present
    )


def _names_in(run: Run) -> set[str]:
    measured = {
        estimate.metric for record in run.records for estimate in record.estimates
    }
    return measured | {verdict.metric for verdict in run.verdicts}


def _refuse_unknown(metrics: Sequence[str], present: set[str], *, where: str) -> None:
    """Raise a ConfigError if no name is a metric, because nothing could be shown."""
    known = present | METRICS.keys()
    if any(name in known or is_counter(name) for name in metrics):
        return
    alike = [near for name in metrics for near in close_names(name, known)]
    message = f"not in this {where}: {', '.join(metrics)}"
    remedy = "show it without --metrics to see what it has"
    raise ConfigError(
        message, remedy=f"did you mean {few(alike)}?" if alike else remedy
    )


def _with(
    launch: CapturedLaunch, metrics: Sequence[str], gaps: dict[str, Unmeasured]
) -> CapturedLaunch:
    if not (launch.measured and metrics):
        return launch
    estimates, absent = capture_values([launch], metrics, None)
    for gap in absent:
        gaps.setdefault(gap.metric, gap)
    values = {
        estimate.metric: CapturedValue(value=estimate.value, unit=estimate.unit)
        for estimate in estimates
        if estimate.kernel is None
    }
    return replace(launch, metrics={**launch.metrics, **values})


def _unknown(name: str, where: str, alike: Sequence[str]) -> str:
    meant = f"; did you mean {', '.join(alike)}?" if alike else ""
    return f"not in this {where}: {name}{meant}"


def show_launches(file: str, form: str, *, is_run: bool) -> int:
    """
    Print every launch of a recording, or of the recording that a run names.

    Raises:
        ConfigError: The file is neither a recording nor a run.

        CaptureFormatError: The recording is damaged, empty or missing.
    """
    in_folder = is_folder(file)
    # A missing file is treated as a run, so that reading it reports the error.
    is_run = is_run or not exists(file)
    if not in_folder and not is_run:
        message = f"--launches: {file} is neither a recording nor a run"
        remedy = "name a folder of --gpuperf-record; of a capture, leave --launches out"
        raise ConfigError(message, remedy=remedy)
    command = "gpuperf show DIR --launches"
    folder = file if in_folder else recording_of(read_run(file), file, command=command)
    for block in launch_blocks(traces_of(folder), form, demangle=native_demangler()):
        print_bytes(block)
    return GOOD


def traces_of(folder: str) -> Iterator[tuple[Record, Trace]]:
    """
    Yield the measurements of a recording with traces, skipping measurements without a
    trace.

    Raises:
        CaptureFormatError: The folder is not a recording, is damaged, or has no trace.
    """
    is_empty = True
    for record in read_recording(folder).records.values():
        place = None if record.activity is None else record.activity.kept
        if place is not None:
            is_empty = False
            yield record, read_trace(folder, place)
    if is_empty:
        message = "the recording has no launches: CUPTI did not record them"
        remedy = "record on a machine where CUPTI works; see gpuperf doctor"
        raise CaptureFormatError(message, remedy=remedy, path=folder)


def recording_of(run: Run, path: str, *, command: str) -> str:
    """
    Return the recording that a run wrote, or was judged from.

    Args:
        run: The run.

        path: Its file. The recording's path starts from its folder, or from the current
            folder.

        command: The command that reads the recording itself, with DIR in place of its
            path.

    Raises:
        CaptureFormatError: The run has no recording, or the recording is missing.
    """
    options = run.header.options
    named = options.get("gpuperf_record", options.get("gpuperf_replay"))
    if named is None:
        message = "the run has no recording, so its launches were not stored"
        remedy = "measure with --gpuperf-record=DIR, which stores every launch"
        raise CaptureFormatError(message, remedy=remedy, path=path)
    for folder in (Path(named), Path(path).parent / named):
        if is_folder(str(folder)):
            session = read_recording(str(folder)).session
            if session.id == run.header.session.id:
                return str(folder)
    message = f"the recording {named}, which has its launches, does not exist here"
    raise CaptureFormatError(message, remedy=f"name its folder: {command}", path=path)


# Kernels of a library to show, those with the most registers. --top shows more.
_MOST_ROWS = 40
# Limit of all cubins whose code is read [B]. nvdisasm reads them whole, 1 MB (130
# kernels) in some 5 s.
_MOST_BYTES = 2_000_000


def show_binary(
    file: str,
    form: str,
    *,
    pattern: str | None,
    block: int | None,
    target: str | None = None,
    top: int | None = None,
) -> int:
    """
    Print the kernels of a cubin, fatbin or library.

    Args:
        file: The file.

        form: text, json or markdown.

        pattern: Names of kernels, with `*`, `?` and `[]`, or None for all.

        block: Threads of a block, for the occupancy, or None if unknown.

        target: Print the kernels of this chip only, as sm_90a, or None for all chips.

        top: The maximum number of kernels in a table, or None for 40 kernels, or for
            all that match a pattern.

    Raises:
        CollectError: The file cannot be read.

        ConfigError: No kernel matches the pattern.
    """
    from pytest_gpuperf.collect.binary.read import read_cubins

    runner = ProcessRunner()
    contents = read_cubins(file, runner=runner, block=block, target=target)
    chosen = _matching(contents.cubins, pattern, file)
    kernels = [kernel for cubin in chosen for kernel in cubin.kernels]
    mixes, lacking = _mixes(chosen, runner)
    rows = []
    for kernel, mix in zip(kernels, mixes, strict=True):
        limits = target_limits(kernel.target, kernel.warp_size_count)
        occupancy = None if limits is None else kernel_occupancy(kernel, limits)
        rows.append(CompiledKernel(kernel=kernel, mix=mix, occupancy=occupancy))
    remarks = [
        *contents.unread,
        *lacking,
        *doubt_lines(rows),
        *_occupancy_remarks(rows, block),
    ]
    most = top or (_MOST_ROWS if pattern is None else len(rows))
    listed = rows
    if len(rows) > most and form != "json":
        listed = sorted(rows, key=lambda row: -row.kernel.registers_count)[:most]
        remarks.insert(
            0,
            f"{len(rows) - most} more kernels with fewer registers or as many: --top=N "
            "shows more, --kernel chooses, --format=json has all",
        )
    return print_table(
        form,
        "show BINARY",
        {"kernels": [compiled_facts(row) for row in rows], "remarks": remarks},
        title=f"{file}: {display.plural(len(rows), 'kernel')}",
        table=compiled_columns(listed, form),
        remarks=remarks,
    )


def _occupancy_remarks(
    rows: Sequence[CompiledKernel], block: int | None
) -> Iterator[str]:
    if block is None:
        yield "occupancy n/a: give the threads of a block with --block"
        return
    unknown = unknown_occupancy(
        (row.kernel.target, None if row.occupancy is None else row.occupancy.fraction)
        for row in rows
    )
    if unknown is not None:
        yield unknown
    if any(row.occupancy is not None for row in rows):
        yield "shared and occupancy leave out memory that a launch requests, as Triton's launches do"


def _mixes(
    cubins: Sequence[Cubin], runner: Runner
) -> tuple[Sequence[InstructionMix], list[str]]:
    from pytest_gpuperf.collect.binary.read import read_mixes

    size_bytes = sum(len(cubin.content) for cubin in cubins)
    if size_bytes > _MOST_BYTES:
        limit, size = (display.value(n, "bytes") for n in (_MOST_BYTES, size_bytes))
        chips = {kernel.target for cubin in cubins for kernel in cubin.kernels}
        if len(chips) > 1:
            remedy = f"choose one chip, as --target={max(chips)}"
        elif len(cubins) > 1:
            remedy = "choose kernels with --kernel"
        else:
            remedy = "gpuperf.binary in a test reads all"
        reason = f"the kernels' cubins have {size}, and only {limit} are read; {remedy}"
    else:
        try:
            return read_mixes(cubins, runner=runner), []
        except CollectError as error:
            reason = str(error)
    # The notes of AMD's code state the spills.
    unknown = [
        InstructionMix(kernel=k.name, counts=None, spills_bytes=k.spills_bytes)
        for cubin in cubins
        for k in cubin.kernels
    ]
    has_spills = all(mix.spills_bytes is not None for mix in unknown)
    what = "instructions" if has_spills else "instructions and spills"
    return unknown, [f"{what} n/a: {reason}"]


def _matching(
    cubins: Sequence[Cubin], pattern: str | None, file: str
) -> tuple[Cubin, ...]:
    """
    Return cubins with the kernels that match a pattern.

    Raises:
        ConfigError: No kernel matches the pattern. The remedy has names that contain
            the pattern's word first.
    """
    if pattern is None:
        return tuple(cubins)
    chosen = tuple(
        replace(cubin, kernels=kernels)
        for cubin in cubins
        if (
            kernels := tuple(
                k for k in cubin.kernels if fits_kernel(pattern, k.name, k.demangled)
            )
        )
    )
    if not chosen:
        full = (escape(k.demangled or k.name) for c in cubins for k in c.kernels)
        names = dict.fromkeys(kernel_name(plain_name(n), NAME_WIDTH) for n in full)
        word = pattern.strip("*?").casefold()
        alike = sorted(names, key=lambda name: word not in name.casefold())
        message = f"{file}: no kernel fits {pattern!r}"
        raise ConfigError(message, remedy=f"there are {few(alike)}")
    return chosen
