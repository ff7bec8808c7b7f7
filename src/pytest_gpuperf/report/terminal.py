"""A run as terminal text: title, table, explanations."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from pytest_gpuperf.judge.tally import (
    PRECEDENCE,
    Tally,
    expected_failures,
    has_drifted,
    tally,
)
from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.record import RecordKey
from pytest_gpuperf.model.run import Header, HeaderNote, Run
from pytest_gpuperf.model.sample import Source
from pytest_gpuperf.model.shard import Shard
from pytest_gpuperf.model.verdict import FAILING, JUDGED, Outcome, Reason, Verdict
from pytest_gpuperf.report import display, words
from pytest_gpuperf.report.display import listed
from pytest_gpuperf.report.escape import escape
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
NEEDS_LINE = "pytest -rs prints what each unmeasured test needs"
_WIDTH = 100
# Verdicts with the same reason share a block if there are more than this.
_MANY_ALIKE = 3
# Undecided changes with a line. The rest is counted.
_MOST_BRIEF = 8
_TESTS_MINE = "--gpuperf-against-tests=mine runs them on both sides"
# Characters of the rules that pytest writes around the title.
_RULES = 4
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
    if below and not (verbose or of_files or "gpuperf_strict" in run.header.options):
        # Most runs have nothing to explain.
        from pytest_gpuperf.report.explanation import brief_explanation

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
    from pytest_gpuperf.report.explanation import (
        RUN_FILE,
        selecting,
        store_name,
        typed_command,
    )

    options = run.header.options
    file = options.get("gpuperf_json", RUN_FILE)
    names = selecting(drifted, kept=run.test_ids - drifted.keys())[:_MOST_TYPED]
    typed = ("gpuperf", "baseline", "accept", store_name(options), file)
    command = typed_command(*typed, *(f"--test={name}" for name in names))
    if "gpuperf_json" not in options:
        text = (
            f"to accept a drift, write a report of the run first: --gpuperf-json={file}"
        )
        yield from wrapped(text, width=width)
    yield Line(f"if intended: {command}")


def _absent_lines(run: Run, width: int) -> Iterator[Line]:
    absent = run.header.completeness.absent
    if absent:
        tests = listed(map(short_id, absent))
        text = f"in the baseline, but not in this run: {tests}"
        yield from wrapped(text, width=width, style=Style.DOUBT)
    removed = run.header.completeness.removed
    if removed:
        from pytest_gpuperf.report.explanation import removal_lines, store_name

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
    # The last line counts them. A strict run fails for them.
    by_revision: set[RecordKey] = set()
    if run.against is not None and "gpuperf_strict" not in run.header.options:
        by_revision = {
            v.key for v in run.verdicts if v.of_revision and v.outcome in JUDGED
        }
    return [
        verdict
        for verdict in run.verdicts
        if verdict.outcome in _EXPLAINED
        and verdict.key.test_id not in expected
        and not words.building(verdict)
        and not (
            verdict.reason is Reason.TOO_FEW_SESSIONS and verdict.key in by_revision
        )
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
    if not ordered:
        return blocks
    from pytest_gpuperf.report.explanation import explanation, joint_explanation

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
