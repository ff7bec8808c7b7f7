"""The command `compare`: a run with older runs, two captures, or the code with a revision."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuperf.baseline.stored_record import stored_record
from pytest_gpuperf.cli.merge import with_merged_shards
from pytest_gpuperf.cli.output import (
    BINARIES,
    GOOD,
    INTERRUPTED,
    UNDECIDED,
    UNREADABLE,
    WORSE,
    WRONG_USAGE,
    each,
    exists,
    exit_code,
    is_capture,
    is_folder,
    print_bytes,
    print_table,
    read_run,
    start_of,
    told_on_terminals,
)
from pytest_gpuperf.collect.replay import HEAD_FILE, read_recording
from pytest_gpuperf.config import Config
from pytest_gpuperf.errors import (
    CaptureFormatError,
    ConfigError,
    RecordError,
)
from pytest_gpuperf.judge.case import Case, Policy, case_of
from pytest_gpuperf.judge.files import (
    CaptureSide,
    Difference,
    FailOn,
    ValuePair,
    captures_pass,
    differences,
    is_compared,
    is_decided,
    mismatch,
    run_passes,
    value_pairs,
    with_known_spread,
)
from pytest_gpuperf.judge.look import first_look
from pytest_gpuperf.judge.origin import with_kernels
from pytest_gpuperf.judge.regression import settle, shown
from pytest_gpuperf.judge.tally import revision_verdicts
from pytest_gpuperf.model.codec import SCHEMA_VERSION
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import (
    REFERENCES,
    Record,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.run import Completeness, Header, Run
from pytest_gpuperf.model.sample import Source
from pytest_gpuperf.model.url import masked
from pytest_gpuperf.pipeline.verdicts import grouped
from pytest_gpuperf.report import display, sentences
from pytest_gpuperf.report.runs import comparison_bytes, run_bytes

if TYPE_CHECKING:
    import argparse

# The files hold whole runs. Nothing was selected, so nothing needs confirming.
_POLICY = Policy(selected=False)
# The limit of a run without options.
_MAX_REGRESSION = Config(root="").max_regression
# Not the id of any session, because a file may be compared with itself.
_CURRENT = "current"
# The first bytes of a store in one file.
_STORE = b'{"schema":"pytest-gpuperf/baseline/'

# By the numbers of pytest.ExitCode, which a command does not import.
EXIT_CODES = {
    0: GOOD,  # OK
    1: WORSE,  # TESTS_FAILED
    2: UNREADABLE,  # INTERRUPTED: tests could not be collected
    3: UNREADABLE,  # INTERNAL_ERROR
    4: WRONG_USAGE,  # USAGE_ERROR
    5: WRONG_USAGE,  # NO_TESTS_COLLECTED
    6: WORSE,  # MAX_WARNINGS_ERROR, which the oldest pytest does not have
}

_Sessions = dict[RecordKey, list["StoredRecord"]]


def compare(arguments: argparse.Namespace) -> int:
    """Show the last run with the older runs, and judge the run if the older runs are enough."""
    files = [*arguments.files, *arguments.options]
    captures = arguments.against is None and any(map(is_capture, files))
    binaries = arguments.against is None and not captures and any(map(_has_code, files))
    _refuse_unfit(arguments, captures=captures, binaries=binaries)
    if arguments.against is not None:
        return _compare_with_revision(arguments)
    if arguments.budget is not None:
        message = "--budget needs a comparison with a revision"
        raise ConfigError(message, remedy="name one with --against, or drop it")
    if len(files) < 2:  # noqa: PLR2004 - a comparison needs two sides
        message = "a comparison needs at least two files"
        remedy = "name the older runs first: gpuperf compare .gpuperf run.json"
        raise ConfigError(message, remedy=remedy)
    if binaries:
        from pytest_gpuperf.cli.builds import compare_code

        return compare_code(files, arguments)
    if captures:
        return _compare_captures(files, arguments)
    sides = _read_sides(files)
    values = {record.key: record.values for record in _of_run(sides.current)}
    judged = _judged(sides, values, vars(arguments))
    unmeasured = frozenset(sides.current.header.completeness.unchanged)
    pairs = value_pairs(
        values,
        {
            key: [value for record in records for value in record.values]
            for key, records in sides.stored.items()
            if key.test_id not in unmeasured
        },
        {(v.key, v.metric): v for v in judged.verdicts if v.limit is None},
    )
    remarks = [*_about_files(files, sides, pairs)]
    content = comparison_bytes(
        judged, pairs, arguments.format, title=_title(files), remarks=remarks
    )
    print_bytes(content)
    passes = run_passes(judged.verdicts)
    has_compared = any(pair.is_comparable for pair in pairs)
    if passes is not False and not has_compared and (pairs or not unmeasured):
        # An exit code of 0 would mean that nothing changed.
        return UNREADABLE
    return exit_code(passes=passes, strict=arguments.strict)


def _has_code(path: str) -> bool:
    if not is_folder(path):
        return start_of(path).startswith(BINARIES)
    is_recording = exists(str(Path(path, HEAD_FILE)))
    return not is_recording and any(
        start_of(str(file)).startswith(BINARIES) for file in Path(path).rglob("*")
    )


def _refuse_unfit(
    arguments: argparse.Namespace, *, captures: bool, binaries: bool
) -> None:
    """
    Refuse options that the files have no use for.

    Raises:
        ConfigError: An option belongs to another kind of files.
    """
    options = {
        "two captures or two binaries": (captures or binaries, ["--fail-on"]),
        "two captures": (captures, ["--total"]),
        "two binaries": (binaries, ["--block", "--target"]),
    }
    refused = []
    for kind, (fits, names) in options.items():
        given = [
            name for name in names if getattr(arguments, name[2:].replace("-", "_"))
        ]
        if given and not fits:
            refused.append(f"only a comparison of {kind} has {' and '.join(given)}")
    if refused:
        raise ConfigError(
            "; ".join(refused), remedy="name two such files, or drop the option"
        )


def _compare_with_revision(arguments: argparse.Namespace) -> int:
    # Two files are compared without git and without pytest.
    from pytest_gpuperf.collect.runner import ProcessRunner
    from pytest_gpuperf.collect.scratch import ScratchFolder
    from pytest_gpuperf.collect.signals import run_here
    from pytest_gpuperf.collect.worktree import Repository

    # An unknown revision is refused here, and not in pytest's words.
    revision = arguments.against
    Repository.at(str(Path.cwd()), ProcessRunner(), revision=revision).commit_of(
        revision
    )
    with ScratchFolder("compare") as scratch:
        report = Path(scratch, "run.json")
        argv = [sys.executable, "-m", "pytest", f"--gpuperf-against={revision}"]
        if "max_regression" in arguments:
            limit = arguments.max_regression
            text = "off" if limit is None else display.exactly(limit, "fraction")
            argv.append(f"--gpuperf-max-regression={text}")
        if arguments.budget is not None:
            argv.append(f"--gpuperf-budget={arguments.budget!r}s")
        argv += [f"--gpuperf-json={report}", *arguments.options, *arguments.files]
        form = arguments.format
        status, interrupted = run_here(argv, quiet=form != "text")
        run: Run | None = None
        # pytest may have ended before it wrote a run.
        with contextlib.suppress(RecordError):
            run = read_run(str(report))
    # pytest ends with the same status for Ctrl-C and for tests that cannot be
    # collected.
    code = INTERRUPTED if interrupted else EXIT_CODES.get(status, UNREADABLE)
    if run is None:
        return code
    if form != "text":
        print_bytes(run_bytes(run, form))
    if code == GOOD:
        passes = is_decided(run.verdicts) or None
        return exit_code(passes=passes, strict=arguments.strict)
    by_revision = revision_verdicts(run)
    if code != WORSE or is_decided(by_revision):
        return code
    if not by_revision:
        has_gap = run.against is not None and run.against.gap is not None
        return UNREADABLE if has_gap else code
    failed = run.broken or run.missed or run_passes(run.verdicts) is False
    return code if failed else UNDECIDED


def _compare_captures(files: Sequence[str], arguments: argparse.Namespace) -> int:
    (was, now), failures = _captures(files)
    # Needed only for captures.
    from pytest_gpuperf.report.captures import (
        difference_columns,
        difference_remarks,
        mismatch_gap,
    )

    obstacle = mismatch(was, now)
    if obstacle is not None:
        gap = mismatch_gap(obstacle, files, was, now)
        raise RecordError(gap.reason, path="", remedy=gap.remedy)
    compared = list(differences(was, now, total=arguments.total))
    clocks = [was.clock_hz, now.clock_hz]
    print_table(
        arguments.format,
        "compare A.ncu-rep B.ncu-rep",
        {
            "sm_clocks_hz": clocks,
            "remarks": failures,
            "differences": [*map(_difference, compared)],
        },
        title=_title(files),
        table=difference_columns(compared, arguments.format),
        remarks=[
            *difference_remarks(
                compared, clocks, arguments.format, total=arguments.total
            ),
            *failures,
        ],
    )
    passes = captures_pass(compared, FailOn(arguments.fail_on or FailOn.WORSE))
    return exit_code(passes=passes, strict=arguments.strict)


def _difference(difference: Difference) -> Mapping[str, object]:
    sides = difference.sides
    return {
        "kernel": difference.kernel,
        "was_kernel": difference.was_kernel,
        "metric": difference.metric,
        "unit": difference.unit,
        "was": difference.was,
        "now": difference.now,
        "verdict": difference.direction,
        "per_launch": difference.per_launch,
        "launches": [None if side is None else side.launches_count for side in sides],
        "grids": [None if side is None else side.grids for side in sides],
        "sm_clocks_hz": [None if side is None else side.clock_hz for side in sides],
    }


def _title(files: Sequence[str]) -> str:
    return " -> ".join(PurePath(masked(path)).name or path for path in files)


def _captures(files: Sequence[str]) -> tuple[list[CaptureSide], list[str]]:
    """
    Return the launches of two captures, and a sentence per unmeasured launch.

    Raises:
        ConfigError: The files are not two captures.
    """
    runs = [path for path in files if not is_capture(path)]
    if runs:
        message = f"{', '.join(runs)} is not a capture, and the others are"
        raise ConfigError(message, remedy="name two .ncu-rep files, or none at all")
    if len(files) != 2:  # noqa: PLR2004 - then and now
        message = f"{len(files)} captures were named, and two are compared"
        raise ConfigError(
            message, remedy="name the older one first, then the newer one"
        )
    # Needed only for captures.
    from pytest_gpuperf.collect.ncu.launches import read_capture
    from pytest_gpuperf.collect.runner import ProcessRunner
    from pytest_gpuperf.measure.captured import capture_side, first_counters
    from pytest_gpuperf.report.captures import launch_failures

    sides: list[CaptureSide] = []
    failures: list[str] = []
    for path in files:
        with told_on_terminals(f"reading {path}"):
            capture = read_capture(
                path, runner=ProcessRunner(), metrics=first_counters()
            )
        side = capture_side(capture)
        if side is None:
            message = "none of its launches was measured"
            raise CaptureFormatError(message, remedy="profile again", path=path)
        sides.append(side)
        failures += [f"{PurePath(path).name}: {f}" for f in launch_failures(capture)]
    return sides, failures


class _Sides(NamedTuple):
    """The sessions of all files but the last, and the run of the last file."""

    stored: _Sessions
    current: Run
    empty: tuple[str, ...]  # Older files without a session.
    had_itself: bool  # The older files hold the run's own session, too.
    only_itself: bool  # For some measurement they hold no other session.


def _read_sides(paths: Sequence[str]) -> _Sides:
    """
    Read the sessions of the older files and the run of the last file.

    Raises:
        RecordError: Files are unreadable. The error names each of them.

        ConfigError: The last file is a store, which has no run. Or all files are shards
            of one run.
    """
    sides = each(paths, _side)
    merged = with_merged_shards(zip(paths, sides, strict=True))
    *older, current = [side for _, side in merged]
    if not older:
        message = (
            f"{', '.join(paths)} are shards of one run, and older runs are missing"
        )
        raise ConfigError(message, remedy="name the shards of an older run first")
    if not isinstance(current, Run):
        message = f"{paths[-1]} is a store, which has no current run"
        raise ConfigError(message, remedy="name the store first, and a run last")
    stored: _Sessions = {}
    # By session id, so that a file that is named twice is one session.
    runs: dict[str, Run] = {}
    for path, side in merged[:-1]:
        if isinstance(side, Run):
            runs[side.header.session.id] = side
        else:
            _add(stored, _as_in_run(side, current, path))
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
            path
            for path, side in merged[:-1]
            if not (side.records if isinstance(side, Run) else side)
        ),
        had_itself=bool(itself),
        only_itself=any(not others[key] for key in itself if key in measured),
    )


def _side(path: str) -> Run | Sequence[StoredRecord]:
    in_folder = is_folder(path)
    is_recording = in_folder and exists(str(Path(path, HEAD_FILE)))
    is_store = in_folder or _is_store(path)
    if is_store and not is_recording:
        # Two runs are compared without a store.
        from pytest_gpuperf.baseline.store import open_store

        store = open_store(path, Path.cwd())
        return [
            record
            for slug in store.slugs()
            for records in store.load(slug).values()
            for record in records
        ]
    if not is_recording:
        return read_run(path)
    recording = read_recording(path)
    header = Header(
        session=recording.session,
        environment=recording.environment,
        completeness=Completeness(expected_count=0, reported_count=0),
    )
    records = tuple(recording.records.values())
    return Run(schema=SCHEMA_VERSION, header=header, records=records)


def _is_store(path: str) -> bool:
    if ":" not in path:  # No URL of a database.
        return start_of(path).startswith(_STORE)
    from pytest_gpuperf.baseline.store import names_database

    return names_database(path)


def _of_run(run: Run) -> list[StoredRecord]:
    """Return the records of a run as a session, with only the metrics that are compared."""
    return [
        stored_record([*map(_compared, records)], run.header.session, run.version)
        for records in _measured(run).values()
    ]


def _as_in_run(
    records: Iterable[StoredRecord], run: Run, place: str
) -> Iterator[StoredRecord]:
    # Two runs are compared without a store.
    from pytest_gpuperf.cli.stored_tests import StoredTests

    known = (*run.test_ids, *run.header.completeness.unchanged)
    ids = {REFERENCES: REFERENCES, **dict(zip(known, known, strict=True))}
    ids |= {test.key: test.test_id for test in run.tests if test.key}
    # A run from the root of its checkout has keys for ids.
    is_below = not run.tests or any(test.key for test in run.tests)
    shown = StoredTests((), place).shown
    for record in records:
        name = record.key.test_id
        test_id = ids.get(name) or (shown(name) if is_below else name)
        yield replace(record, key=replace(record.key, test_id=test_id))


def _compared(record: Record) -> Record:
    estimates = [
        estimate
        for estimate in record.estimates
        # Numbers recorded by a test are not in the catalogue.
        if estimate.metric not in METRICS
        or is_compared(estimate.metric, estimate.source)
    ]
    return replace(record, estimates=tuple(estimates))


def _add(stored: _Sessions, records: Iterable[StoredRecord]) -> None:
    for record in records:
        if record.key.test_id != REFERENCES:
            stored.setdefault(record.key, []).append(record)


def _judged(
    sides: _Sides,
    values: Mapping[RecordKey, Sequence[SessionValue]],
    options: Mapping[str, Any],
) -> Run:
    """
    Return the last run, judged against the sessions of the older files.

    Time is judged, and metrics that need no statistics: counts and resources. A number
    recorded by a test is judged if the run judged it, because only then the files hold
    the limit of its marker.

    Args:
        sides: The older sessions and the last run.

        values: Values of the last run.

        options: The options of the command. `max_regression` overrides the limits that
            the run used for other metrics than recorded numbers.
    """
    cases: list[Case] = []
    stored, current = sides.stored, sides.current
    measured = _measured(current)
    limit_of = _limits(current, options)
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
                limit=limit,
                session_id=_CURRENT,
                default_limit=is_default,
            )
            for metric, own in sorted(metrics)
            for limit, is_default in [limit_of(key, metric, own)]
        ]
    looks = first_look(cases, _POLICY)
    limits = (v for v in current.verdicts if v.limit is not None)
    changes = (
        with_known_spread(
            with_kernels(verdict, measured[verdict.key], stored.get(verdict.key, ())),
            values.get(verdict.key, ()),
            [v for record in stored.get(verdict.key, ()) for v in record.values],
        )
        for verdict in (
            *settle(cases, policy=_POLICY, looks=looks),
            *shown(cases, _POLICY, looks=looks),
        )
    )
    verdicts = (*limits, *map(sentences.for_files, changes))
    # The machine's effect on fresh processes of the run is not part of these changes.
    return replace(current, verdicts=verdicts, shifts=())


def _limits(
    run: Run, options: Mapping[str, Any]
) -> Callable[[RecordKey, str, bool], tuple[float | None, bool]]:
    """
    Return a function that gives the limit of a metric, and whether it is the default.

    Args:
        run: The run, whose verdicts hold the limits of markers.

        options: The options of the command.
    """
    of_run = {
        (v.key, v.metric): (v.threshold, v.default_limit)
        for v in run.verdicts
        if v.threshold is not None and not v.of_revision
    }
    is_set = "max_regression" in options
    usual = options.get("max_regression", _MAX_REGRESSION)

    def limit_of(
        key: RecordKey,
        metric: str,
        own: bool,  # noqa: FBT001 - part of the sorted items
    ) -> tuple[float | None, bool]:
        limit = of_run.get((key, metric))
        if limit is not None and (own or not is_set):
            return limit
        return (None if own else usual), not is_set

    return limit_of


def _measured(run: Run) -> dict[RecordKey, list[Record]]:
    """
    Return the suite's records of a run that are not void, by key.

    Confirming runs and reference workloads are left out.
    """
    return grouped(
        record
        for record in run.records
        if record.role.of_suite
        and record.void is None
        and record.key.test_id != REFERENCES
    )


def _about_files(
    files: Sequence[str], sides: _Sides, pairs: Sequence[ValuePair]
) -> Iterator[str]:
    *_, current = files
    for path in sides.empty:
        yield (
            f"{path} holds no session: name a store (.gpuperf), a recording or a run's "
            "JSON file"
        )
    if sides.only_itself:
        yield (
            f"the older files hold only the session of {current} itself: name a run of "
            "another session"
        )
    elif sides.had_itself:
        yield f"the older files hold the session of {current}, too: it was left out"
    if not sides.empty and pairs and not any(pair.has_both for pair in pairs):
        yield (
            f"nothing that {current} measured is in the older files: name runs of the "
            "same tests, started in the same folder"
        )
