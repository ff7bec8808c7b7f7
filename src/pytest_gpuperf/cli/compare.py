"""The command `compare`: the last of some runs, stores or captures beside the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuperf.baseline.history import stored_record
from pytest_gpuperf.baseline.store import open_store
from pytest_gpuperf.cli.output import (
    each,
    exit_code,
    is_capture,
    print_bytes,
    print_table,
    read_run,
    start_of,
    told_on_terminals,
)
from pytest_gpuperf.collect.replay import HEAD_FILE, read_recording
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.config import Config
from pytest_gpuperf.errors import (
    CaptureFormatError,
    ConfigError,
)
from pytest_gpuperf.judge.case import Case, Policy, case_of
from pytest_gpuperf.judge.files import (
    CaptureSide,
    ValuePair,
    captures_pass,
    differences,
    is_compared,
    mismatch,
    run_passes,
    value_pairs,
    with_known_spread,
)
from pytest_gpuperf.judge.regression import settle, shown, with_kernels
from pytest_gpuperf.model.codec import SCHEMA_VERSION
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import (
    REFERENCES,
    Record,
    RecordKey,
    Role,
    StoredRecord,
)
from pytest_gpuperf.model.run import Completeness, Header, Run
from pytest_gpuperf.model.sample import Source
from pytest_gpuperf.pipeline.verdicts import grouped
from pytest_gpuperf.report import display, words
from pytest_gpuperf.report.escape import prose
from pytest_gpuperf.report.lines import (
    Column,
    Line,
    Style,
    document,
    line_width,
    markdown_table,
    text_bytes,
    text_table,
    wrapped,
)
from pytest_gpuperf.report.rows import names
from pytest_gpuperf.report.runs import run_bytes

if TYPE_CHECKING:
    import argparse

__all__ = ["compare"]

# whole runs stand in the files: nothing was selected, so nothing needs confirming
_POLICY = Policy(selected=False)
_MAX_REGRESSION = Config(root="").max_regression  # of a run that is told nothing else
_LEAST_SHIFT = 0.0005  # of a ratio, relative: less moves no printed digit
_INDENT = "  "
_CURRENT = "current"  # no session's id: a file may be compared with itself
_STORE = b'{"schema":"pytest-gpuperf/baseline/'  # how a store in one file begins

_Sessions = dict[RecordKey, list["StoredRecord"]]


def compare(arguments: argparse.Namespace) -> int:
    """Show the last run beside the older ones, and judge it where they are enough."""
    if arguments.against is not None:
        from pytest_gpuperf.cli.against import compare_with_revision

        return compare_with_revision(arguments)
    files = [*arguments.files, *arguments.options]
    if len(files) < 2:  # noqa: PLR2004 - a comparison needs two sides
        message = "a comparison needs at least two files"
        raise ConfigError(message, remedy="name the older runs first, the newest last")
    if any(map(is_capture, files)):
        return _compare_captures(files, arguments)
    sides = _read_sides(files)
    max_regression = getattr(arguments, "max_regression", _MAX_REGRESSION)
    judged = _judged(sides.stored, sides.current, max_regression=max_regression)
    pairs = _pairs(sides.stored, judged)
    remarks = [*_about_files(files, sides, pairs)]
    _print(pairs, judged, arguments.format, title=_title(files), remarks=remarks)
    return exit_code(passes=run_passes(judged.verdicts), strict=arguments.strict)


def _compare_captures(files: Sequence[str], arguments: argparse.Namespace) -> int:
    """Show what changed between two captures, kernel by kernel."""
    runs = [path for path in files if not is_capture(path)]
    if runs:
        message = f"{', '.join(runs)} is not a capture, and the others are"
        raise ConfigError(message, remedy="name two .ncu-rep files, or none at all")
    if len(files) != 2:  # noqa: PLR2004 - then and now
        message = f"{len(files)} captures were named, and two are compared"
        raise ConfigError(
            message, remedy="name the older one first, then the newer one"
        )
    # of captures alone
    from pytest_gpuperf.report.captures import (
        difference_columns,
        difference_remarks,
        mismatch_gap,
    )

    was, now = map(_capture, files)
    obstacle = mismatch(was, now)
    if obstacle is not None:
        gap = mismatch_gap(obstacle, files, was, now)
        raise ConfigError(gap.reason, remedy=gap.remedy)
    compared = list(differences(was, now))
    clocks = [was.clock_hz, now.clock_hz]
    print_table(
        arguments.format,
        title=_title(files),
        table=difference_columns(compared),
        remarks=difference_remarks(compared, clocks),
        content=document(
            "compare A.ncu-rep B.ncu-rep",
            {
                "sm_clocks_hz": clocks,
                "differences": [
                    {
                        "kernel": difference.kernel,
                        "metric": difference.metric,
                        "unit": difference.unit,
                        "was": difference.was,
                        "now": difference.now,
                        "verdict": difference.direction,
                    }
                    for difference in compared
                ],
            },
        ),
    )
    return exit_code(passes=captures_pass(compared), strict=arguments.strict)


def _title(files: Sequence[str]) -> str:
    """Return what is compared with what."""
    return " -> ".join(PurePath(path).name or path for path in files)


def _capture(path: str) -> CaptureSide:
    """Return the launches of a capture that were measured, by kernel."""
    # of captures alone
    from pytest_gpuperf.collect.ncu.launches import read_capture
    from pytest_gpuperf.measure.captured import capture_side, first_counters

    with told_on_terminals(f"reading {path}"):
        capture = read_capture(path, runner=ProcessRunner(), metrics=first_counters())
    side = capture_side(capture)
    if side is None:
        message = "none of its launches was measured"
        raise CaptureFormatError(message, remedy="profile again", path=path)
    return side


class _Sides(NamedTuple):
    """The sessions of all files but the last, and the run of that one."""

    stored: _Sessions
    current: Run
    empty: tuple[str, ...]  # older files without a session
    had_itself: bool  # the older files hold the run's own session, too
    only_itself: bool  # and nothing else of some measurement


def _read_sides(paths: Sequence[str]) -> _Sides:
    """
    Return what the files hold.

    Raises:
        RecordError: Files are unreadable; the error names each of them.

        ConfigError: The last one is a store, which has no run.
    """
    *older, current = each(paths, _side)
    if not isinstance(current, Run):
        message = f"{paths[-1]} is a store, which has no current run"
        raise ConfigError(message, remedy="name the store first, and a run last")
    stored: _Sessions = {}
    runs: dict[str, Run] = {}  # a file that is named twice is one session
    for side in older:
        if isinstance(side, Run):
            runs[side.header.session.id] = side
        else:
            _add(stored, side)
    for run in runs.values():
        _add(stored, _of_run(run))
    own_id, measured = current.header.session.id, _measured(current)
    others = {
        key: [record for record in records if record.session.id != own_id]
        for key, records in stored.items()
    }
    itself = [key for key, left in others.items() if len(left) < len(stored[key])]
    return _Sides(
        stored={key: left or stored[key] for key, left in others.items()},
        current=current,
        empty=tuple(
            p for p, side in zip(paths, older, strict=False) if not _holds(side)
        ),
        had_itself=bool(itself),
        only_itself=any(not others[key] for key in itself if key in measured),
    )


def _holds(side: Run | Sequence[StoredRecord]) -> bool:
    """Return whether there is anything to compare with."""
    return bool(side.records if isinstance(side, Run) else side)


def _side(path: str) -> Run | Sequence[StoredRecord]:
    """Return the sessions of a store, or a run."""
    return _of_store(path) if _is_store(path) else _read(path)


def _is_store(path: str) -> bool:
    """Return whether a path is a store of sessions, not a run or a recording."""
    place = Path(path)
    if place.is_dir():
        return not (place / HEAD_FILE).exists()
    return start_of(path).startswith(_STORE)


def _read(path: str) -> Run:
    """Return the run of a JSON file or of a recording."""
    if not Path(path).is_dir():
        return read_run(path)
    recording = read_recording(path)
    header = Header(
        session=recording.session,
        environment=recording.environment,
        completeness=Completeness(expected_count=0, reported_count=0),
    )
    records = tuple(recording.records.values())
    return Run(schema=SCHEMA_VERSION, header=header, records=records)


def _of_store(path: str) -> list[StoredRecord]:
    """Return the sessions of a store, of all machines."""
    store = open_store(path, Path.cwd())
    return [
        record
        for slug in store.slugs()
        for records in store.load(slug).values()
        for record in records
    ]


def _of_run(run: Run) -> list[StoredRecord]:
    """Return the session of a run."""
    return [
        stored_record(records, run.header.session)
        for records in _measured(run).values()
    ]


def _add(stored: _Sessions, records: Iterable[StoredRecord]) -> None:
    """Add sessions by what they measured."""
    for record in records:
        if record.key.test_id != REFERENCES:
            stored.setdefault(record.key, []).append(record)


def _judged(stored: _Sessions, current: Run, *, max_regression: float | None) -> Run:
    """
    Return a run, judged against sessions.

    Time is judged, and what needs no statistics: counts and resources. A number of the
    user's own is shown: what a marker allows it, the files do not say.
    """
    cases: list[Case] = []
    measured = _measured(current)
    for key, records in measured.items():
        metrics = {
            (e.metric, e.source == Source.USER)
            for r in records
            for e in r.estimates
            if e.kernel is None and is_compared(e.metric, e.source)
        }
        cases += [
            case_of(
                records,
                stored.get(key, ()),
                metric=metric,
                limit=None if own else max_regression,
                session_id=_CURRENT,
            )
            for metric, own in sorted(metrics)
        ]
    limits = tuple(v for v in current.verdicts if v.limit is not None)
    changes = (
        with_kernels(verdict, measured[verdict.key], stored.get(verdict.key, ()))
        for verdict in (*settle(cases, policy=_POLICY), *shown(cases, _POLICY))
    )
    values = {record.key: record.values for record in _of_run(current)}
    verdicts = (
        *limits,
        *(
            words.for_files(
                with_known_spread(
                    verdict,
                    values.get(verdict.key, ()),
                    [
                        v
                        for record in stored.get(verdict.key, ())
                        for v in record.values
                    ],
                )
            )
            for verdict in changes
        ),
    )
    # what the machine did to fresh processes of the run is no part of these changes
    return replace(current, verdicts=verdicts, shifts=())


def _measured(run: Run) -> dict[RecordKey, list[Record]]:
    """Return what a run measured of everything, by key; not what it confirmed."""
    return grouped(
        record
        for record in run.records
        if record.role is not Role.CONFIRM
        and record.void is None
        and record.key.test_id != REFERENCES
    )


def _pairs(stored: _Sessions, run: Run) -> list[ValuePair]:
    """Return each compared metric of each measurement, the worst first."""
    return value_pairs(
        {record.key: record.values for record in _of_run(run)},
        {
            key: [value for record in records for value in record.values]
            for key, records in stored.items()
        },
        {(v.key, v.metric): v for v in run.verdicts if v.limit is None},
    )


def _print(
    pairs: Sequence[ValuePair],
    run: Run,
    form: str,
    *,
    title: str,
    remarks: Sequence[str],
) -> None:
    """Print what moved, and below it what was decided."""
    if form == "json":
        content = json.loads(run_bytes(run, form))
        content["comparisons"] = [_facts(pair) for pair in pairs]
        print_bytes(f"{json.dumps(content, indent=1, sort_keys=True)}\n".encode())
        return
    table = _table_bytes(pairs, form, title=title, remarks=remarks)
    print_bytes(table + run_bytes(run, form, of_files=True))


def _about_files(
    files: Sequence[str], sides: _Sides, pairs: Sequence[ValuePair]
) -> Iterator[str]:
    """Yield what is odd about the files that were named."""
    *_, current = files
    for path in sides.empty:
        yield (
            f"{path} holds no session: name a store (.gpuperf), a recording or a run's "
            "JSON file"
        )
    if sides.only_itself:
        yield (
            f"{current} is compared with its own session, which is all that the older "
            "files hold of it: name a run of another session"
        )
    elif sides.had_itself:
        yield f"the older files hold the session of {current}, too: it was left out"
    if (
        pairs
        and not sides.empty
        and not any(p.was is not None and p.now is not None for p in pairs)
    ):
        yield (
            f"nothing that {current} measured is in the older files: name runs of the "
            "same tests, started in the same folder"
        )


def _table_bytes(
    pairs: Sequence[ValuePair],
    form: str,
    *,
    title: str,
    remarks: Sequence[str] = (),
    width: int | None = None,
) -> bytes:
    """
    Return a comparison as it is printed [UTF-8].

    Args:
        pairs: Its rows.

        form: text or markdown.

        title: What is compared.

        remarks: What else is to be said of it, a sentence each.

        width: Characters of a line of text; None: the terminal's, 100 where there is
            none.
    """
    remarks = [*map(display.escape, remarks), *_remarks(pairs)]
    if form == "markdown":
        table = [*markdown_table(_columns(pairs, display.code)), ""]
        points = [f"- {prose(remark)}" for remark in remarks]
        ending = [*points, ""] if points else []
        return text_bytes([f"### {prose(title)}", "", *table, *ending])
    width = line_width(width) - len(_INDENT)
    rows = text_table(_columns(pairs, str), width=width)
    below = (line.text for remark in remarks for line in wrapped(remark, width=width))
    lines = (Line(f"{_INDENT}{text}") for text in (*rows, *below))
    return text_bytes([Line(display.escape(title), Style.TITLE), *lines, ""])


def _facts(pair: ValuePair) -> dict[str, object]:
    """Return a comparison for JSON; the interval is that of `adjusted_ratio`."""
    ends = pair.interval
    kind = "samples" if pair.is_of_samples else "sessions"
    return {
        "test": pair.key.test_id,
        "name": pair.key.name,
        "metric": pair.metric,
        "unit": pair.unit,
        "was": pair.was,
        "now": pair.now,
        "ratio": pair.ratio,
        "adjusted_ratio": pair.adjusted_ratio,
        "interval": None if ends is None else list(ends),
        "interval_of": None if ends is None else kind,
        "outcome": None if pair.outcome is None else pair.outcome.value,
    }


def _columns(
    pairs: Sequence[ValuePair], spelled: Callable[[str], str]
) -> tuple[Column, ...]:
    """Return a line for each comparison; its second ratio where another one was judged."""
    short = names(pair.key for pair in pairs)
    tests = tuple(spelled(_name(pair, short[pair.key])) for pair in pairs)
    was = tuple(_value(p.was, p.unit) for p in pairs)
    now = tuple(_value(p.now, p.unit) for p in pairs)
    measured = tuple(_ratio(pair.ratio) for pair in pairs)
    adjusted = tuple(_ratio(pair.adjusted_ratio) for pair in pairs)
    ratios = [Column(head="now/was", cells=measured, right=True)]
    if any(map(_is_adjusted, pairs)):  # who has was and now can do without the first
        ratios = [
            Column(head="now/was", cells=measured, right=True, rank=2),
            Column(head="adjusted", cells=adjusted, right=True),
        ]
    return (
        Column(head="test", cells=tests, shrinks=True),
        Column(head="was", cells=was, right=True),
        Column(head="now", cells=now, right=True),
        *ratios,
        Column(head="98 % interval", cells=tuple(map(_interval, pairs))),
        Column(head="verdict", cells=tuple(map(_label, pairs)), rank=1),
    )


def _name(pair: ValuePair, short: str) -> str:
    """Return what a row is of: a metric is named unless it is the time, or has a name."""
    if pair.metric in {"time", pair.key.name}:
        return short
    return f"{short} {display.escape(words.noun(pair.metric))}"


def _remarks(pairs: Sequence[ValuePair]) -> Iterator[str]:
    """Yield what a reader must know of some ratios and intervals."""
    if any(map(_is_adjusted, pairs)):
        yield (
            "adjusted: now/was without what a faster or slower core and the machine's "
            "drift did; the interval and the verdict are of that"
        )
    if any(pair.is_of_samples and pair.interval is not None for pair in pairs):
        yield (
            "~ of the samples of these runs alone: sessions of unchanged code differ by more"
        )
    if any(map(_is_unknown, pairs)):
        yield (
            "? one older session and no samples do not tell how much such a number varies"
        )


def _is_adjusted(pair: ValuePair) -> bool:
    """Return whether what was judged is another ratio than what was measured."""
    measured, judged = pair.ratio, pair.adjusted_ratio
    if measured is None or judged is None:
        return False
    return abs(judged - measured) >= _LEAST_SHIFT * abs(measured)


def _is_unknown(pair: ValuePair) -> bool:
    """Return whether nothing says how much a number varies that may vary."""
    change = None if pair.verdict is None else pair.verdict.change
    if change is None or change.exact or pair.ratio is None:
        return False
    return change.session_count == 1 and pair.interval is None


def _value(value: float | None, unit: str) -> str:
    """Return a value as text; "-" where there is none."""
    return "-" if value is None else display.value(value, unit)


def _ratio(ratio: float | None) -> str:
    """Return a ratio with three decimals; "-" where there is none."""
    return "-" if ratio is None else f"{ratio:.3f}"


def _interval(pair: ValuePair) -> str:
    """Return the ends of a ratio, marked where they are of samples alone or unknown."""
    ends = pair.interval
    if ends is None:
        return "?" if _is_unknown(pair) else "-"
    mark = "~ " if pair.is_of_samples else ""
    return f"{mark}{ends[0]:.3f} … {ends[1]:.3f}"


def _label(pair: ValuePair) -> str:
    """Return what was decided, or which side alone has the metric."""
    if pair.outcome is not None:
        return words.label(pair.outcome)
    if pair.now is None:
        return "gone"
    return "new" if pair.was is None else "-"
