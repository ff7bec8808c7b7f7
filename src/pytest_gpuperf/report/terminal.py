"""A run as terminal text: title, table, explanations."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from pytest_gpuperf.config import ConfirmBy
from pytest_gpuperf.judge.tally import (
    PRECEDENCE,
    Tally,
    expected_failures,
    has_drifted,
    tally,
)
from pytest_gpuperf.model.change import Progress
from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.record import RecordKey
from pytest_gpuperf.model.run import Header, HeaderNote, Run
from pytest_gpuperf.model.sample import Source, Unmeasured
from pytest_gpuperf.model.shard import Shard
from pytest_gpuperf.model.verdict import FAILING, Outcome, Reason, Verdict
from pytest_gpuperf.report import display, words
from pytest_gpuperf.report.display import listed
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.report.explanation import (
    RUN_FILE,
    brief_explanation,
    explanation,
    joint_explanation,
    removal_lines,
    selecting,
    store_name,
    typed_command,
)
from pytest_gpuperf.report.lines import STYLES, Line, Style, shorten, wrapped
from pytest_gpuperf.report.rows import names, rows, short_id
from pytest_gpuperf.report.summary import (
    View,
    judged_line,
    left_unmeasured,
    table_lines,
)

# Outcomes that are explained in a separate block.
_EXPLAINED = frozenset(
    {Outcome.FAILED, Outcome.REGRESSED, Outcome.INCONCLUSIVE, Outcome.INCOMPARABLE}
)

# Subjects of the header notes that are shown without `-v`: the GPU timer, the GPU lock
# and the telemetry.
_NVIDIA = "nvidia"
_BETTER = frozenset({Source.CUPTI, Source.EVENTS, "lock", "telemetry"})
# Notes about costs in every run are shown even without a GPU.
_COSTLY = frozenset({"ncu-cache"})
ALONE_INTERRUPTED = (
    "gpuperf: Ctrl-C ended the process that measures tests alone; what the suite measured "
    "is stored without it"
)
NEEDS_LINE = "pytest -rs prints what each unmeasured test needs"
_WIDTH = 100
# Verdicts with the same reason share a block if there are more than this.
_MANY_ALIKE = 3
# Undecided changes with a line. The rest is counted.
_MOST_BRIEF = 8
_TESTS_MINE = "--gpuperf-against-tests=mine runs them on both sides"
# Characters of the rules that pytest writes around the title.
_RULES = 4
# A shorter rest is not shown, because "0 s left" looks stuck.
_LEAST_LEFT_S = 1.0
# A shorter wait needs no warning.
_LONG_S = 10.0
_OF_FILES = frozenset({Source.BINARY.value, Source.NCU_REPORT.value})
# A command names at most 8 tests.
_MOST_TYPED = 8
# Characters. A fact of the title that is shortened further means nothing.
_LEAST_FACT = 12


def run_lines(
    run: Run,
    *,
    commands: bool = True,
    width: int = _WIDTH,
    verbose: bool = False,
    in_failures: Collection[Verdict] = (),
    view: View | None = None,
    of_files: bool = False,
    counted: Tally | None = None,
) -> Iterator[Line]:
    """
    Yield the title, the table, the explanations and the number of judged tests.

    Args:
        run: The run, judged.

        commands: Whether a block ends with the commands to reproduce and accept its verdict.

        width: Characters of a line.

        verbose: Whether to show all rows, notes and collectors.

        in_failures: The verdicts that pytest's FAILURES section above explains. Their blocks are
            not printed twice.

        view: The columns and the order of the table, or None for the defaults.

        of_files: Whether the run was compared with files. The table is then printed elsewhere, so
            only the doubts about its rows are printed here.

        counted: The tally of the run, or None to count it here.
    """
    device = _device(run)
    yield from header_lines(run.header, device=device, width=width, verbose=verbose)
    table = rows(run)
    called = names(row.key for row in table)
    if of_files:
        for row in table:
            for text in row.doubts():
                doubt = f"{called[row.key]}: {text}"
                yield from wrapped(doubt, width=width, style=Style.DOUBT)
    else:
        yield from table_lines(
            table, called=called, width=width, verbose=verbose, view=view
        )
    if not of_files and any(record.steps is not None for record in run.records):
        from pytest_gpuperf.report.steps import run_steps_lines

        yield from run_steps_lines(run, width=width, verbose=verbose)
    yield from _shift_lines(run, width)
    if commands:
        yield from _drift_lines(run, width)
    # A strict run also fails for verdicts that have no block of their own.
    above = dict.fromkeys(called[v.key] for v in run.verdicts if v in in_failures)
    if above:
        text = f"explained in FAILURES above: {listed(above)}"
        yield from wrapped(text, width=width, style=Style.BAD)
    below = [v for v in _needing_words(run) if v not in in_failures]
    options = run.header.options if commands else None
    # An undecided change fails a strict run, which therefore explains it.
    if not (verbose or of_files or "gpuperf_strict" in run.header.options):
        briefly = [brief_explanation(v, name=called[v.key], width=width) for v in below]
        texts = list(filter(None, briefly))
        if len(texts) > _MOST_BRIEF:
            texts[_MOST_BRIEF:] = [f"{len(texts) - _MOST_BRIEF} more like these"]
        for text in texts:
            yield from wrapped(text, width=width, style=STYLES[Outcome.INCONCLUSIVE])
        below = [v for v, text in zip(below, briefly, strict=True) if not text]
    blocks = _blocks(below, called, options=options, width=width, gravest_first=False)
    yield from itertools.chain.from_iterable(blocks)
    yield from _against_lines(run, width)
    yield from _absent_lines(run, width)
    counted = counted or tally(run)
    yield from _noise_lines(counted, width)
    judged = judged_line(run, counted, of_files=of_files)
    yield from wrapped(judged.text, width=width, style=judged.style)


def title(run: Run, *, width: int = _WIDTH) -> str:
    """Return the title of a run, with machine and collectors."""
    return next(header_lines(run.header, device=_device(run), width=width)).text


def remarks(run: Run, *, width: int = _WIDTH) -> Iterator[Line]:
    """Yield the remarks on a run: revision, machine drift, missing stored tests and noise."""
    yield from _against_lines(run, width)
    yield from _shift_lines(run, width)
    yield from _absent_lines(run, width)
    yield from _noise_lines(tally(run), width)


def _against_lines(run: Run, width: int) -> Iterator[Line]:
    against = run.against
    if against is None:
        return
    name = escape(against.revision)
    commit = display.commit(against.commit)
    head = f"against {name}" + (f" ({commit})" if commit not in {"", name} else "")
    if against.block_count:
        spent = f"{display.plural(against.block_count, 'block')} in "
        parts = [spent + display.value(against.elapsed_s, "s")]
        if against.null_fraction is not None:
            parts.append(words.same_code(against.null_fraction))
        modules = listed(map(escape, against.modules))
        verb = "differs" if len(against.modules) == 1 else "differ"
        none = "no module of the project differs"
        parts.append(f"{modules} {verb}" if modules else none)
        yield from wrapped(f"{head}: {'; '.join(parts)}", width=width)
    same_count = len(
        {v.key.test_id for v in run.verdicts if v.reason is Reason.SAME_FILES}
    )
    if same_count:
        tests = display.plural(same_count, "test")
        text = f"{head}: {tests} used no file that differs"
        yield from wrapped(text, width=width)
    if against.gap is not None:
        reason = escape(against.gap.text)
        yield from wrapped(f"{head}: {reason}", width=width, style=Style.DOUBT)
    # With today's tests on both sides, the option cannot add more tests.
    is_mine = run.header.options.get("gpuperf_against_tests") == "mine"
    for effect, test_ids, remedy in (
        ("in the revision alone", against.only_old, ""),
        (
            "in the working tree alone",
            against.only_new,
            "" if is_mine else f"; {_TESTS_MINE}",
        ),
    ):
        if test_ids:
            text = f"{effect}: {listed(map(short_id, test_ids))}{remedy}"
            yield from wrapped(text, width=width, style=Style.DOUBT)


def _drift_lines(run: Run, width: int) -> Iterator[Line]:
    drifted = dict.fromkeys(v.key.test_id for v in run.verdicts if has_drifted(v))
    if not drifted:
        return
    options = run.header.options
    file = options.get("gpuperf_json", RUN_FILE)
    names = selecting(drifted, kept=run.test_ids - drifted.keys())[:_MOST_TYPED]
    typed = ("gpuperf", "baseline", "accept", store_name(options), file)
    command = typed_command(*typed, *(f"--test={name}" for name in names))
    if "gpuperf_json" not in options:
        text = f"a drift is accepted from a report of this run: --gpuperf-json={file}"
        yield from wrapped(text, width=width)
    yield Line(f"if meant: {command}")


def _absent_lines(run: Run, width: int) -> Iterator[Line]:
    absent = run.header.completeness.absent
    if absent:
        tests = listed(map(short_id, absent))
        text = f"in the baseline and not in this run: {tests}"
        yield from wrapped(text, width=width, style=Style.DOUBT)
    removed = run.header.completeness.removed
    if removed:
        new = dict.fromkeys(
            verdict.key.test_id
            for verdict in run.verdicts
            if verdict.reason is Reason.NOTHING_STORED
        )
        for text in removal_lines(
            store_name(run.header.options),
            removed,
            kept=run.test_ids - new.keys(),
            new=[*new],
        ):
            yield Line(text, Style.DOUBT)
    completeness = run.header.completeness
    if text := left_unmeasured(completeness):
        yield from wrapped(text, width=width, style=Style.FAINT)
    for test_ids, what in (
        (completeness.skipped, "skipped, and measured in the baseline"),
        (completeness.left_out, "left out by a plugin, and measured in the baseline"),
    ):
        if test_ids:
            tests = listed(map(short_id, test_ids))
            yield from wrapped(f"{what}: {tests}", width=width, style=Style.DOUBT)


def _noise_lines(counted: Tally, width: int) -> Iterator[Line]:
    if counted.noise_fraction is not None:
        spread = display.change(counted.noise_fraction, signed=False)
        text = (
            f"sessions of this machine differ by {spread}, too much for a stored "
            "baseline; measure where nothing else runs"
        )
        yield from wrapped(text, width=width, style=Style.DOUBT)


def header_lines(
    header: Header,
    *,
    device: Device | None = None,
    width: int = _WIDTH,
    verbose: bool = False,
) -> Iterator[Line]:
    """
    Yield the title of a section, then the notes on machine and collectors.

    Args:
        header: The run's header.

        device: The GPU of the run, or None if no GPU was used.

        width: Characters of a line.

        verbose: Whether to show a sentence for every unused collector. Otherwise only collectors
            that would have measured the GPU better are mentioned.
    """
    facts = _with_gpu(header.collectors, device) if device else _without_gpu(header)
    if "gpuperf_disable" in header.options:
        facts = ("disabled", *facts)
    shown = [escape(fact) for fact in facts if fact]
    head, room = "gpuperf: ", width - _RULES
    # If the title is too long, the reason for the missing GPU goes first (`-v` shows
    # it), then the collectors that read files. After that, the longest facts lose their
    # middle.
    if len(head + ", ".join(shown)) > room:
        shown = [fact.partition(" (")[0] for fact in shown]
    if len(head + ", ".join(shown)) > room:
        shown = [fact for fact in shown if fact not in _OF_FILES]
    while len(text := head + ", ".join(shown)) > room and shown:
        longest = max(shown, key=len)
        left = max(_LEAST_FACT, len(longest) - (len(text) - room))
        if left >= len(longest):
            text = shorten(text, room)
            break
        shown = [shorten(f, left) if f == longest else f for f in shown]
    yield Line(text, Style.TITLE)
    sentences = header.sentences if verbose else _better_sources(header.notes, device)
    for sentence in sentences:
        text = escape(sentence)
        yield from wrapped(text, width=width, depth=1, style=Style.FAINT)


def start_lines(
    device: Device, collectors: Sequence[str], notes: Sequence[HeaderNote]
) -> Iterator[Line]:
    """
    Yield the GPU and the collectors of a run that starts, and the reasons for worse timing.

    Args:
        device: The GPU that tests run on.

        collectors: Names of the collectors in use.

        notes: Reasons why the other collectors are not used.
    """
    facts = map(escape, filter(None, _with_gpu(collectors, device)))
    yield Line(f"gpuperf: {', '.join(facts)}", Style.TITLE)
    for sentence in _better_sources(notes, device):
        yield Line(f"gpuperf: {escape(sentence)}", Style.DOUBT)


def machine_line(machine: str | None, run: str | None, shard: Shard | None) -> Line:
    """Return the line with the machine, the run and the shard."""
    parts = [f"machine {machine or 'unknown'}"]
    parts += [f"run {run}"] if run else []
    parts += [f"shard {shard}"] if shard else []
    return Line(f"gpuperf: {escape(', '.join(parts))}", Style.TITLE)


def _better_sources(
    notes: Sequence[HeaderNote], device: Device | None
) -> tuple[str, ...]:
    """Return the notes shown without `-v`: reasons for worse GPU timing, and costs of every run."""
    # Other vendors have no better sources here.
    is_nvidia = device is not None and device.vendor == _NVIDIA
    subjects = _BETTER | _COSTLY if is_nvidia else _COSTLY
    return tuple(
        note.text
        for note in notes
        if note.about in subjects and note.code is not GapCode.NOT_ASKED
    )


def explanation_blocks(
    run: Run,
    called: Mapping[RecordKey, str],
    *,
    commands: bool = True,
    width: int = _WIDTH,
) -> list[Iterator[Line]]:
    """
    Return the blocks of the verdicts that need explaining, the most severe first.

    Args:
        run: The run, judged.

        called: The display name of each measurement.

        commands: Whether a block ends with the commands to reproduce and accept its verdict.

        width: Characters of a line. Commands are never broken.

    Returns:
        The blocks. The lines of a block are built when they are read.
    """
    options = run.header.options if commands else None
    verdicts = _needing_words(run)
    return _blocks(verdicts, called, options=options, width=width, gravest_first=True)


def _needing_words(run: Run) -> list[Verdict]:
    expected = expected_failures(run)
    return [
        verdict
        for verdict in run.verdicts
        if verdict.outcome in _EXPLAINED
        and verdict.key.test_id not in expected
        and not words.building(verdict)
    ]


def _blocks(
    verdicts: Sequence[Verdict],
    called: Mapping[RecordKey, str],
    *,
    options: Mapping[str, str] | None,
    width: int,
    gravest_first: bool,
) -> list[Iterator[Line]]:
    groups: dict[tuple[Outcome, Reason, str], list[Verdict]] = {}
    for verdict in verdicts:
        shared = (verdict.outcome, verdict.reason, verdict.remedy)
        groups.setdefault(shared, []).append(verdict)
    ordered = sorted(
        groups,
        key=lambda group: PRECEDENCE.index(group[0]),
        reverse=not gravest_first,
    )
    blocks: list[Iterator[Line]] = []
    for shared in ordered:
        alike = groups[shared]
        names = [called[verdict.key] for verdict in alike]
        if shared[0] not in FAILING and len(alike) > _MANY_ALIKE:
            blocks.append(joint_explanation(alike, called=names, width=width))
            continue
        blocks += [
            explanation(verdict, name=name, options=options, width=width)
            for verdict, name in zip(alike, names, strict=True)
        ]
    return blocks


def held_line(
    count: int,
    confirm: int | None,
    revision: str | None = None,
    confirm_by: ConfirmBy = ConfirmBy.FRESH,
    *,
    expected_s: float = 0.0,
) -> str:
    """
    Return the line that announces the decision on postponed tests.

    Args:
        count: Number of postponed tests.

        confirm: Number of fresh processes that measure suspects again, or None if noise explains no
            suspect.

        revision: The revision that the tests are compared with, or None.

        confirm_by: How suspects are decided.

        expected_s: Expected time of these processes [s], estimated from the times of the tests.
    """
    text = f"gpuperf: deciding {display.plural(count, 'test')} at the end of the run"
    if revision is not None:
        revision = escape(revision)
        text += f"; they are compared with {revision}, interleaved in fresh processes"
    if confirm is None:
        return text
    processes = display.plural(confirm, "fresh process", "fresh processes")
    takes = ""
    if expected_s >= _LONG_S:
        takes = f", which takes about {display.about(expected_s)}"
    if confirm_by is ConfirmBy.FRESH:
        again = f"; {processes} will measure suspected times and counts again{takes}"
        return text + again if confirm else text
    text += "; suspects are compared with the commit of their newest session"
    if confirm_by is ConfirmBy.AGAINST:
        return text
    text += " where that is possible"
    return f"{text}, else measured again by {processes}{takes}" if confirm else text


def slow_line(key: RecordKey, count: int, round_s: float) -> str:
    """
    Return the line that announces the repetition of a slow call.

    Args:
        key: The measurement.

        count: Number of rounds to come.

        round_s: Time of the first round [s]: one call, or one call of each side.
    """
    name = names([key])[key]
    more = f"{count} more take" if count > 1 else "one more takes"
    took = f"the first call took {display.value(round_s, 's')}"
    return f"gpuperf: {name}: {took}; {more} about {display.about(count * round_s)}"


def comparison_line(progress: Progress) -> str:
    """Return the progress of a comparison with a revision, as a line."""
    head = f"gpuperf: against {escape(progress.revision)}"
    if progress.text:
        return f"{head}: {escape(progress.text)}"
    left, left_s = "", progress.left_s
    if progress.open_count and left_s is not None and left_s >= _LEAST_LEFT_S:
        left = f", about {display.about(left_s)} left"
    if not progress.looked:
        tests = display.plural(progress.open_count, "test")
        number = f"block {progress.block_count + 1} of at most {progress.most_blocks}"
        return f"{head}: {number}, {tests} open{left}"
    decided = progress.test_count - progress.open_count
    blocks = display.plural(progress.block_count, "block")
    return (
        f"{head}: {blocks} in {display.about(progress.elapsed_s)}, "
        f"{decided} of {display.plural(progress.test_count, 'test')} decided{left}"
    )


def side_by_side(workers_count: int) -> str:
    """Return the line about host times that xdist workers measured side by side."""
    return (
        f"host times were measured side by side, by {workers_count} xdist workers; -n0"
        " measures them alone"
    )


def measured_elsewhere(test_count: int) -> str:
    """Return the line about tests that no process started here can measure again."""
    tests = display.plural(test_count, "test")
    return (
        f"{tests} not measured again for --gpuperf-runs: other machines, or other facts, "
        "than those of this process; start pytest on each machine by itself"
    )


def positional_ids(parts: Mapping[str, str]) -> str:
    """
    Return the line about test ids that count positions.

    Args:
        parts: The part of the id that counts positions, by test id.
    """
    shown = escape(next(iter(parts.values())))
    more = ", …" if len(parts) > 1 else ""
    verb = "counts positions" if len(parts) == 1 else "count positions"
    return f"{display.plural(len(parts), 'id')} {verb} ({shown}{more}): name them with ids="


def changed_tests(names: Sequence[str]) -> str:
    """Return the line about improved tests with a source that differs from the stored sessions."""
    return (
        "the test itself changed since the stored sessions, so it is stored only by "
        f"--gpuperf-update=all: {escape(display.some_of(names))}"
    )


def unstored_gains(names: Sequence[str], command: str) -> str:
    """
    Return the line about improvements that the baseline does not have.

    Args:
        names: The improved measurements.

        command: The command that stores them.
    """
    shown = escape(display.some_of(names))
    return (
        f"improved and not stored, so that a slowdown back to the old level passes: {shown}; "
        f"store: {escape(command)}"
    )


def unsteady_parameters(test_ids: Sequence[str]) -> str:
    """Return the line about tests with parameters that differ between processes."""
    tests = "this test" if len(test_ids) == 1 else f"these {len(test_ids)} tests"
    return (
        f"parameters differ in each process, so those of {tests} are not compared: "
        f"{escape(display.some_of(test_ids))}"
    )


def all_changed(why: str) -> str:
    """Return the line of --gpuperf-changed about a run that measured every test."""
    return f"every test was measured: {escape(why)}"


def installed_packages(paths: Sequence[str]) -> str:
    """Return the line about differing files that declare installed packages."""
    verb = "differs" if len(paths) == 1 else "differ"
    names = escape(display.some_of(paths))
    return f"{names} {verb}; both sides ran with the installed packages"


def nothing_stored(reason: str) -> str:
    """Return the line of a run that stored nothing, with the reason."""
    return f"nothing was stored: {reason}"


def stored_line(
    changes: Mapping[str, Sequence[object]],
    place: str,
    barred_count: int,
    slower_count: int = 0,
    *,
    otherwise: str,
) -> str:
    """
    Return the line about the stored measurements and the store.

    Args:
        changes: Stored sessions by GPU, chip or host.

        place: The store.

        barred_count: Number of measurements that must not be stored.

        slower_count: Number of measurements with a metric that is left out, because it was slower
            in the suite than alone.

        otherwise: The reason for storing nothing, if no measurement is left out.
    """
    count = sum(map(len, changes.values()))
    barred = display.plural(barred_count, "measurement")
    parts = [f"{barred} failed or xfailed, regressed or void"] if barred_count else []
    if slower_count:
        slower = display.plural(slower_count, "measurement")
        parts.append(
            f"{slower} slower in the suite than alone (--gpuperf-update=all stores it)"
        )
    left_out = ", ".join(parts)
    if not count:
        return nothing_stored(left_out or otherwise)
    stored = display.plural(count, "measurement")
    folders = ", ".join(sorted(changes))
    text = escape(f"stored {stored} in {place} ({folders})")
    return f"{text}; not stored: {left_out}" if left_out else text


def dropped_lines(
    removed: Sequence[str],
    session_count: int,
    place: str,
    *,
    kept: Collection[str],
) -> Iterator[str]:
    """
    Yield the tests that a run dropped from the store, and the restore command.

    Args:
        removed: Ids of the dropped tests, which are no longer in the code.

        session_count: Number of sessions that had measured them.

        place: The store.

        kept: Ids of the tests of the run.
    """
    tests = display.plural(len(removed), "test")
    sessions = display.plural(session_count, "session")
    names = ", ".join(map(escape, removed))
    yield f"dropped {tests} with {sessions}, no longer in the code: {names}"
    chosen = [f"--test={name}" for name in selecting(removed, kept=kept)]
    if len(chosen) > _MOST_TYPED:
        # Without names, the command restores everything that was dropped last.
        chosen = []
    command = typed_command("gpuperf", "baseline", "restore", place, *chosen)
    yield f"take back: {command}"


def not_dropped_lines(
    doubted: Sequence[str], place: str, *, kept: Collection[str]
) -> Iterator[str]:
    """
    Yield the tests that a run did not drop, and the drop command.

    Args:
        doubted: Ids of the tests, which are not in this code and may belong to another project.

        place: The store.

        kept: Ids of the tests of the run.
    """
    tests = display.plural(len(doubted), "test")
    yield (
        f"not dropped: {tests} of the baseline that this project may never have had, "
        f"since no session measured them together with a test of this run: {listed(doubted)}"
    )
    chosen = [f"--test={name}" for name in selecting(doubted, kept=kept)]
    typed = ("gpuperf", "baseline", "drop", place, "all", *chosen[:_MOST_TYPED])
    yield f"if removed: {typed_command(*typed)}"


def alone_line(
    count: int, process_count: int, *, failed_count: int, elapsed_s: float
) -> str:
    """
    Return the line about the time spent on measuring tests alone.

    Args:
        count: Number of tests.

        process_count: Number of fresh processes. Each of them ran all the tests.

        failed_count: Number of tests that failed or were skipped there.

        elapsed_s: Total time [s].
    """
    tests = display.plural(count, "test")
    processes = display.plural(process_count, "fresh process", "fresh processes")
    failed = f", {failed_count} gave no value" if failed_count else ""
    took = display.value(elapsed_s, "s")
    return f"gpuperf: measured {tests} alone, in {processes}{failed}: {took}"


def not_alone_line(reason: str) -> str:
    """Return the line of a session that is stored without values of tests alone."""
    text = escape(reason)
    return f"gpuperf: no test was measured alone for this session: {text}"


def company_line(count: int, others: Sequence[int]) -> str:
    """
    Return the line of a run with far fewer, or far more, tests than stored sessions.

    Args:
        count: Number of tests in this run.

        others: Numbers of tests in these stored sessions.
    """
    least, most = min(others), max(others)
    ran = display.plural(most, "test")
    if least != most:
        ran = f"{least} to {ran}"
    sessions = display.plural(len(others), "stored session")
    return (
        f"gpuperf: this run ran {display.plural(count, 'test')}, {sessions} ran {ran}: a "
        "session is compared with those that ran about as many (at least half)"
    )


def twins_line(name: str, first: str, second: str) -> str:
    """
    Return the line about two tests with the same name, and the remedy.

    Args:
        name: The name that pytest gives to both tests.

        first: The first test, as typed on a command line.

        second: The second test, as typed on a command line.
    """
    files = [text.partition("::")[0] for text in (first, second)]
    both = f"{escape(first)} and {escape(second)}"
    if files[0] == files[1]:
        remedy = "give each of them an id of its own"
    else:
        upwards = max(file.split("/").count("..") for file in files)
        folder = "/".join([".."] * upwards) or "."
        remedy = f"start pytest with --rootdir={folder}, so that their ids name folders"
    return f"gpuperf: two tests are called {name}: {both}; {remedy}"


def overruled_line(verdict: Verdict) -> str:
    """Return the failure of a run in which a plugin turned a failing test into a passed test."""
    decided = decided_line(verdict)
    return f"{decided}, and another plugin reported the test as passed; the run fails"


def undecided_line(test_ids: Sequence[str]) -> str:
    """Return the failure of a run that `pytest.exit` ended with 0 before a decision."""
    tests = listed(map(short_id, test_ids))
    return (
        f"the run was ended with exit status 0 before fresh processes had decided {tests}, "
        "which looked worse; the run fails: end it with another status, or run all tests"
    )


def status_line(reason: str) -> str:
    """Return the failure of a run for which a plugin had set the exit status to 0."""
    return f"gpuperf: a plugin set the exit status to 0, and it is 1: {reason}"


def ended_line(test_id: str) -> str:
    """
    Return the failure of a process that ended by `os._exit(0)`.

    Args:
        test_id: The test that ended the process, or "" if something other than a test did.
    """
    ended = f"{escape(test_id) or 'something'} ended pytest by os._exit(0)"
    return f"gpuperf: {ended}; nothing was judged, so the exit status is 1"


def decided_line(verdict: Verdict) -> str:
    """Return the outcome of a test as a line."""
    outcome = f"{escape(verdict.metric)} {verdict.outcome.value}"
    return f"{short_id(verdict.key.test_id)}: {outcome}"


def lost_lines(tests: Sequence[str], remedy: str) -> str:
    """Return the failure of a run that cannot read the baseline of some tests."""
    named = listed(map(short_id, tests))
    return (
        f"damaged lines of the baseline belong to tests of this run: {named}; {remedy}"
    )


def none_began(count: int, gap: Unmeasured) -> str:
    """Return the failure of a run with fresh processes that began no test."""
    fresh = "the fresh process" if count == 1 else f"each of {count} fresh processes"
    return (
        f"{fresh} began no test, so what had to be measured again was not decided: "
        f"{gap.text}"
    )


def _shift_lines(run: Run, width: int) -> Iterator[Line]:
    parts = []
    for shift in run.shifts:
        if shift.moved:
            metric = "" if shift.metric == "time" else f" {escape(shift.metric)}"
            moved = display.change(shift.effect, limits=())
            controls = display.plural(shift.control_count, "control")
            bound = f"{shift.bound_class.value}-bound"
            parts.append(f"{bound}{metric} {moved} (from {controls})")
    if parts:
        drift = f"machine drift: {', '.join(parts)}"
        text = f"{drift}; confirmed changes are corrected for it"
        yield from wrapped(text, width=width, style=Style.DOUBT)
    # The block of an undecided verdict says it.
    quiet = [
        v
        for v in run.verdicts
        if v.origin is not None and v.outcome in {Outcome.BLIND, Outcome.UNCHANGED}
    ]
    if quiet:
        from pytest_gpuperf.report.origins import other_board

        yield from wrapped(other_board(*quiet), width=width, style=Style.DOUBT)


def _device(run: Run) -> Device | None:
    return next((r.device for r in run.records if r.device), None)


def _with_gpu(collectors: Sequence[str], device: Device) -> tuple[str, ...]:
    driver = f"driver {device.driver_version}" if device.driver_version else ""
    return (device.name, driver, *collectors)


def _without_gpu(header: Header) -> tuple[str, ...]:
    environment = header.environment
    model = environment.cpu_model or ""
    cpu = re.sub(r"\((?:R|TM|tm|r)\)|\bCPU\b|@.*|\d+-Core Processor", "", model)
    reasons = (
        n.text for n in header.notes if n.code is GapCode.NO_DEVICE and n.about == "gpu"
    )
    # A machine that has no GPU and no driver needs no reason. An error of the driver is
    # one, as in `CPU only (NVML does not start)`.
    head, *causes = next(reasons, "").partition(";")[0].split(": ")
    return (
        *header.collectors,
        " ".join(cpu.split()),
        f"python {environment.python_minor}",
        f"{head} ({causes[0]})" if len(causes) > 1 else head,
    )
