"""A run in every form, alone or compared with older runs, and as a file written atomically."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf import disk
from pytest_gpuperf.errors import ReportError
from pytest_gpuperf.judge.tally import PRECEDENCE, Tally, tally
from pytest_gpuperf.model.codec import encode_run
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import RecordKey
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.report import display, words
from pytest_gpuperf.report.escape import code, escape, prose
from pytest_gpuperf.report.lines import (
    Column,
    Line,
    Style,
    column,
    line_width,
    markdown_table,
    text_bytes,
    text_table,
    wrapped,
)
from pytest_gpuperf.report.rows import Row, names, rows
from pytest_gpuperf.report.steps import run_steps_markdown
from pytest_gpuperf.report.summary import (
    by_group,
    columns,
    judged_line,
    left_unmeasured,
)
from pytest_gpuperf.report.terminal import explanation_blocks, run_lines, title

if TYPE_CHECKING:
    from pytest_gpuperf.judge.files import ValuePair

_STANDARD_OUTPUT = "-"
_DESCRIPTOR = re.compile(
    r"/(?:dev/fd|proc/(?P<process>self|thread-self|\d+)/fd)/(?P<number>\d{1,9})"
)
_OWN: frozenset[str | None] = frozenset({None, "self", "thread-self"})
# The limit of the operating system.
_MOST_LINKS = 40
# 2 s, enough for a reader that was started together with the run.
_READER_TRIES = 100
_TRY_AGAIN_S = 0.02
_REMEDY = "name a file in a folder that exists and can be written to"
_FREE = "free space, or name a file on another disk"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def run_bytes(
    run: Run,
    form: str,
    *,
    width: int | None = None,
    of_files: bool = False,
    metrics: Sequence[str] | None = None,
) -> bytes:
    """
    Return a run as printed text [UTF-8], without commands.

    Commands are left out because they work only on the machine of the run.

    Args:
        run: The run.

        form: text, json or markdown.

        width: Characters of a line of text, or None for the width of the terminal, 100 without a
            terminal.

        of_files: Whether the run was compared with files. The text then has no table, because the
            table is printed elsewhere.

        metrics: Metrics with values to show, or None for all metrics. Verdicts are always shown.
    """
    cut = run
    if metrics is not None:
        records = tuple(
            replace(
                record,
                estimates=tuple(e for e in record.estimates if e.metric in metrics),
                series=tuple(s for s in record.series if s.metric in metrics),
                unmeasured=tuple(g for g in record.unmeasured if g.metric in metrics),
            )
            for record in run.records
        )
        cut = replace(run, records=records)
    if form == "json":
        return encode_run(cut)
    # Counted from all values, not only from the shown metrics.
    counted = tally(run)
    if form == "markdown":
        text = run_markdown(cut, commands=False, of_files=of_files, counted=counted)
        return text.encode()
    # Notes that are not on the GPU give advice on a run that is over.
    notes = tuple(n for n in run.header.notes if n.about == "gpu" and n.code)
    sentences = tuple(note.text for note in notes)
    lines = run_lines(
        replace(cut, header=replace(run.header, sentences=sentences, notes=notes)),
        commands=False,
        width=line_width(width),
        verbose=True,
        of_files=of_files,
        counted=counted,
    )
    return text_bytes(lines)


def comparison_bytes(
    run: Run,
    pairs: Sequence[ValuePair],
    form: str,
    *,
    title: str,
    remarks: Sequence[str] = (),
    width: int | None = None,
) -> bytes:
    """
    Return a run and its comparison with older runs as printed text [UTF-8].

    The table of changes comes first, then the run.

    Args:
        run: The run, judged against the older runs.

        pairs: The old and new values.

        form: text, json or markdown.

        title: The title of the comparison.

        remarks: Sentences printed below the table.

        width: Characters of a line of text, or None for the width of the terminal, 100 without a
            terminal.
    """
    if form == "json":
        content = json.loads(run_bytes(run, form))
        content["comparisons"] = [pair_facts(pair) for pair in pairs]
        return f"{json.dumps(content, indent=1, sort_keys=True)}\n".encode()
    table = comparison_table(pairs, form, title=title, remarks=remarks, width=width)
    return table + run_bytes(run, form, width=width, of_files=True)


def write_report(run: Run, form: str, path: str) -> None:
    """
    Write a run to a file or to standard output.

    Args:
        run: The run.

        form: json, html, markdown or csv.

        path: The file, or "-" for standard output. An existing file is replaced after the report is
            complete.

    Raises:
        ReportError: The file cannot be written, or Jinja2 is not installed. An existing file is
            left unchanged.
    """
    write_output(path, report_bytes(run, form))


def report_bytes(run: Run, form: str, *, older: Sequence[Run] = ()) -> bytes:
    """
    Return the content of a report file [UTF-8].

    Args:
        run: The run.

        form: json, html, markdown or csv.

        older: Earlier runs with samples to show next to the run in HTML, oldest first.

    Raises:
        ReportError: Jinja2 is not installed.
    """
    if form == "json":
        return encode_run(run)
    # Exporters are imported only if their format is requested.
    if form == "html":
        from pytest_gpuperf.report.html.page import html_bytes

        return html_bytes(run, older)
    if form == "csv":
        from pytest_gpuperf.report.exports import csv_bytes

        return csv_bytes(run)
    return run_markdown(run).encode()


def write_output(path: str, content: bytes) -> None:
    """
    Write a report's file atomically.

    Args:
        path: The file, or "-" for standard output. A link is followed. A pipe or a terminal is
            written to directly, and a file in a read-only folder in place.

        content: The whole content.

    Raises:
        ReportError: The file cannot be written. No half-written file is left behind.
    """
    with _refused(path):
        if _is_step_summary(path):
            _append(path, content)
        elif is_stream(path):
            _write_stream(path, content)
        else:
            target = Path(os.path.realpath(path))
            if target.is_dir():
                raise _refusal(path, "it is a folder")
            if not target.parent.is_dir():
                raise _refusal(path, f"the folder {target.parent} does not exist")
            is_closed = not os.access(target.parent, os.W_OK | os.X_OK)
            if is_closed and not os.access(target, os.W_OK):
                raise _refusal(path, f"the folder {target.parent} cannot be written to")
            if is_closed and target.exists():
                target.write_bytes(content)
            else:
                disk.write_whole(target, content)


@contextlib.contextmanager
def _refused(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = _FREE if error.errno in _FULL else _REMEDY
        if error.errno == errno.EFBIG:
            remedy = "allow larger files: ulimit -f"
        if error.errno == errno.EBADF:
            number = _descriptor(path)
            remedy = f"open it for writing where the command is typed: {number}> FILE"
        raise _refusal(path, error.strerror or str(error), remedy) from error


def is_stream(path: str) -> bool:
    """
    Return True if a path is written to directly, because there is no file to replace.

    This holds for pipes, terminals, devices, descriptors of this process, "-", and the summary of a
    step on GitHub, to which every command of the step appends.
    """
    target = Path(path)
    if path == _STANDARD_OUTPUT or _is_step_summary(path):
        return True
    # A descriptor may lead to an ordinary file.
    if _descriptor(path) is not None:
        return True
    return target.exists() and not target.is_file() and not target.is_dir()


def check_stream(path: str) -> None:
    """
    Check before the run that a stream can be written to at the end.

    Raises:
        ReportError: A descriptor is not open, or a summary cannot be appended to.
    """
    descriptor = _descriptor(path)
    with _refused(path):
        if descriptor is not None:
            os.fstat(descriptor)
        elif _is_step_summary(path):
            _append(path, b"")


def _descriptor(path: str) -> int | None:
    """Return the descriptor of this process named by a path or a link, or None."""
    for _ in range(_MOST_LINKS):
        match = _DESCRIPTOR.fullmatch(path)
        if match is not None and match["process"] in _OWN | {str(os.getpid())}:
            return int(match["number"])
        try:
            path = str(Path(path).parent / os.readlink(path))  # noqa: PTH115 - the text, which may be no path
        except OSError:
            return None
    return None


def _is_step_summary(path: str) -> bool:
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    return bool(summary) and os.path.realpath(path) == os.path.realpath(str(summary))


def _append(path: str, content: bytes) -> None:
    with Path(path).open("ab") as file:
        if content:
            file.write(b"\n" + content if file.tell() else content)


def _write_stream(path: str, content: bytes) -> None:
    """
    Write to a pipe, a device or an open descriptor.

    Raises:
        OSError: A pipe still has no reader after 2 s.
    """
    number = _descriptor(path)
    printed = {1: sys.stdout, 2: sys.stderr}.get(number or 0)
    if path == _STANDARD_OUTPUT or printed is not None:
        stream = printed or sys.stdout
        if stream is sys.stdout:
            # pytest may be in the middle of a line.
            stream.write("\n")
        stream.flush()
        stream.buffer.write(content)
        stream.flush()
        return
    # Opening the path again would start at the first byte of a file.
    if number is not None:
        with os.fdopen(os.dup(number), "wb") as file:
            file.write(content)
        return
    if os.name == "nt" or not stat.S_ISFIFO(Path(path).stat().st_mode):
        Path(path).write_bytes(content)
        return
    descriptor = _opened_pipe(path)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _opened_pipe(path: str) -> int:
    pause = threading.Event()
    for _ in range(_READER_TRIES):
        # ENXIO means that the pipe has no reader yet.
        with contextlib.suppress(OSError):
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        pause.wait(_TRY_AGAIN_S)
    return os.open(path, os.O_WRONLY | os.O_NONBLOCK)


def _refusal(path: str, reason: str, remedy: str = _REMEDY) -> ReportError:
    message = f"{path}: the report cannot be written: {reason}"
    return ReportError(message, remedy=remedy)


# Markdown, for a comment or a job summary. Failures come first.

# Limit of a comment on GitHub. A job summary may have a megabyte.
_MOST_BYTES = 65_536
# Room for the lines about omitted parts.
_MORE_BYTES = 200
# Smallest size of a table row. A longer table is cut before it is built.
_LEAST_ROW_BYTES = 40
# Share of the remaining room that a part may use, to leave room for the parts below.
_SHARE = 0.5
# More rows than this that need no attention are folded.
_FEW_ROWS = 10
_HEAD = ("heads", "rule")  # Lines above the rows of a table.
_UNWRAPPED = 10_000  # Characters: a block of code is not wrapped.


def run_markdown(
    run: Run,
    *,
    commands: bool = True,
    most_bytes: int = _MOST_BYTES,
    of_files: bool = False,
    counted: Tally | None = None,
) -> str:
    """
    Return a run as Markdown: the number of judged tests, then rows to look at, then the rest.

    Args:
        run: The run, judged.

        commands: Whether to add the commands to reproduce and accept a verdict.

        most_bytes: Largest size [B, UTF-8]. A shortened part shows the number of omitted items.

        of_files: Whether the run was compared with files. There is then no table, because the table
            is printed elsewhere.

        counted: The tally of the run, or None to count it here.
    """
    table = rows(run)
    called = names(row.key for row in table)
    codes = {key: code(name) for key, name in called.items()}
    loud = [row for row in table if row.needs_attention]
    quiet = [row for row in table if not row.needs_attention]
    if len(quiet) <= _FEW_ROWS or of_files:
        loud, quiet = [*loud, *quiet], []
    loud.sort(key=_rank)
    paper = _Paper(most_bytes, is_grouped=any(row.group for row in table))
    paper.add(f"### {prose(title(run, width=_UNWRAPPED))}", "")
    paper.add(prose(judged_line(run, counted, of_files=of_files).text), "")
    if text := left_unmeasured(run.header.completeness):
        paper.add(prose(text), "")
    for part in () if of_files else _failures_first(loud):
        paper.add_tables(part, codes)
    if not of_files and any(row.is_adjusted for row in table):
        paper.add(prose(words.ADJUSTED), "")
    paper.add_blocks(
        explanation_blocks(run, called, commands=commands, width=_UNWRAPPED)
    )
    paper.add_notes(
        [
            f"- {codes[row.key]}: {prose(text)}"
            for row in loud
            for text in (
                row.missed,
                *row.doubts(),
                *display.utilization_lines(row.utilization),
            )
            if text
        ]
    )
    for text in () if of_files else run_steps_markdown(run):
        paper.add_whole(text)
    if quiet:
        count = display.plural(len(quiet), "measurement")
        paper.add(f"<details><summary>{count} passed, unchanged or blind</summary>", "")
        paper.add_tables(quiet, codes, share=1.0)
        paper.add("</details>", "")
    return paper.text


class _Paper:
    """
    Lines with a limited total size.

    Args:
        most_bytes: The limit [B, UTF-8].

        is_grouped: Whether rows have groups.
    """

    def __init__(self, most_bytes: int, *, is_grouped: bool) -> None:
        self._is_grouped = is_grouped
        self._lines: list[str] = []
        self._left_bytes = most_bytes - _MORE_BYTES

    @property
    def text(self) -> str:
        """The text written so far."""
        return "\n".join(self._lines)

    def add(self, *lines: str) -> None:
        """Add lines regardless of size."""
        self._lines += lines
        self._left_bytes -= sum(map(_size, lines))

    def add_whole(self, text: str) -> None:
        """Add a text if all of it fits."""
        if _size(text) <= self._left_bytes:
            self.add(text)

    def add_tables(
        self,
        table: Sequence[Row],
        codes: Mapping[RecordKey, str],
        *,
        share: float = _SHARE,
    ) -> None:
        """Add rows below the headings of their groups, within a share of the room."""
        least = max(0.0, self._left_bytes * (1 - share))
        shown_count = 0
        for group, members in by_group(table, is_grouped=self._is_grouped):
            room = self._left_bytes - least
            lines = _table(members[: int(max(0.0, room) / _LEAST_ROW_BYTES)], codes)
            heading = [f"#### {prose(group)}", ""] if group else []
            count = _fitting([*heading, *lines], room)
            if count < len(heading) + len(_HEAD) + 1:
                break
            self.add(*[*heading, *lines][:count], "")
            shown_count += count - len(heading) - len(_HEAD)
        self._add_more(len(table) - shown_count, "measurement")

    def add_notes(self, notes: Sequence[str]) -> None:
        """Add notes, within a share of the room."""
        count = _fitting(notes, self._left_bytes * _SHARE)
        if count:
            self.add(*notes[:count], "")
        self._add_more(len(notes) - count, "note")

    def add_blocks(self, blocks: Sequence[Iterable[Line]]) -> None:
        """Add blocks of lines as code, within a share of the room."""
        room = self._left_bytes * _SHARE
        texts: list[str] = []
        for block in blocks:
            text = "\n".join(line.text for line in block)
            room -= _size(text)
            if room < 0:
                break
            texts.append(text)
        fence = "```"
        while any(fence in text for text in texts):
            fence += "`"
        if texts:
            self.add(f"{fence}text", *texts, fence, "")
        self._add_more(len(blocks) - len(texts), "explanation")

    def _add_more(self, count: int, noun: str) -> None:
        if count:
            self.add(f"*{display.plural(count, f'more {noun}')}*", "")


def _size(text: str) -> int:
    return len(text.encode(errors="replace")) + 1


def _fitting(lines: Iterable[str], room_bytes: float) -> int:
    sizes = itertools.accumulate(map(_size, lines))
    return sum(1 for _ in itertools.takewhile(lambda size: size <= room_bytes, sizes))


def _rank(row: Row) -> int:
    if row.outcome is None:
        return 0 if row.is_loud else len(PRECEDENCE)
    return PRECEDENCE.index(row.outcome) + (not row.is_loud)


def _failures_first(table: Sequence[Row]) -> list[list[Row]]:
    by_heading = [row.is_loud for _, members in by_group(table) for row in members]
    if by_heading == sorted(by_heading, reverse=True):
        return [[*table]]
    parts = ([row for row in table if row.is_loud is loud] for loud in (True, False))
    return [part for part in parts if part]


def _table(table: Sequence[Row], codes: Mapping[RecordKey, str]) -> list[str]:
    shown = []
    for one in columns(table, codes):
        if one.head == "test":
            shown.append(replace(one, shrinks=False))
        elif one.head == "verdict":
            bold = (
                f"**{cell}**" if row.is_loud else cell
                for row, cell in zip(table, one.cells, strict=True)
            )
            shown.append(replace(one, cells=tuple(bold)))
        else:
            shown.append(replace(one, cells=tuple(map(prose, one.cells))))
    measured = ("" if row.time else prose(", ".join(row.measured())) for row in table)
    return [*markdown_table([*shown, column("measured", measured)])]


# Relative difference of two ratios. A smaller difference changes no printed digit.
_LEAST_SHIFT = 0.0005
_COMPARISON_INDENT = "  "


def comparison_table(
    pairs: Sequence[ValuePair],
    form: str,
    *,
    title: str,
    remarks: Sequence[str],
    width: int | None,
) -> bytes:
    """Return the table of a comparison, the worst change first."""
    remarks = [*map(escape, remarks)]
    if any(map(_is_adjusted, pairs)):
        remarks.append(
            "adjusted: now/was corrected for CPU speed and machine drift; interval and "
            "verdict use it"
        )
    if any(pair.is_of_samples and pair.interval is not None for pair in pairs):
        remarks.append(
            "~ of the samples of these runs alone: sessions of unchanged code differ by more"
        )
    if any(map(_is_unknown, pairs)):
        remarks.append(
            "? unknown: one older session without samples does not show how much it varies"
        )
    if form == "markdown":
        table = [*markdown_table(_comparison_columns(pairs, code, prose)), ""]
        points = [f"- {prose(remark)}" for remark in remarks]
        ending = [*points, ""] if points else []
        return text_bytes([f"### {prose(title)}", "", *table, *ending])
    width = line_width(width) - len(_COMPARISON_INDENT)
    rows = text_table(_comparison_columns(pairs, str), width=width)
    below = (line.text for remark in remarks for line in wrapped(remark, width=width))
    lines = (Line(f"{_COMPARISON_INDENT}{text}") for text in (*rows, *below))
    return text_bytes([Line(escape(title), Style.TITLE), *lines, ""])


def pair_facts(pair: ValuePair) -> dict[str, object]:
    """Return a comparison as JSON facts. The interval belongs to `adjusted_ratio`."""
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


def _comparison_columns(
    pairs: Sequence[ValuePair],
    spelled: Callable[[str], str],
    inert: Callable[[str], str] = str,
) -> tuple[Column, ...]:
    """
    Return the columns of a comparison.

    A second ratio is shown if some verdict is based on an adjusted ratio.

    Args:
        pairs: The comparisons.

        spelled: Formats the name of a test.

        inert: Escapes a value, because a unit may be any text of a user.
    """
    short = names(pair.key for pair in pairs)
    tests = []
    for pair in pairs:
        test = short[pair.key]
        if pair.metric not in {"time", pair.key.name}:
            test += f" {escape(words.noun(pair.metric))}"
        tests.append(spelled(test))
    was = tuple(inert(_amount(p.was, p.unit)) for p in pairs)
    now = tuple(inert(_amount(p.now, p.unit)) for p in pairs)
    measured = tuple(_ratio(pair.ratio) for pair in pairs)
    adjusted = tuple(_ratio(pair.adjusted_ratio) for pair in pairs)
    ratios = [column("now/was", measured, right=True)]
    # The first ratio can be dropped, because `was` and `now` show the same.
    if any(map(_is_adjusted, pairs)):
        ratios = [
            column("now/was", measured, right=True, rank=2),
            column("adjusted", adjusted, right=True),
        ]
    return (
        Column(head="test", cells=tuple(tests), shrinks=True),
        column("was", was, right=True),
        column("now", now, right=True),
        *ratios,
        column("98 % interval", map(_interval, pairs)),
        column("verdict", map(_label, pairs), rank=1),
    )


def _is_adjusted(pair: ValuePair) -> bool:
    measured, judged = pair.ratio, pair.adjusted_ratio
    if measured is None or judged is None:
        return False
    return abs(judged - measured) >= _LEAST_SHIFT * abs(measured)


def _is_unknown(pair: ValuePair) -> bool:
    change = None if pair.verdict is None else pair.verdict.change
    if change is None or change.exact or pair.ratio is None:
        return False
    return change.session_count == 1 and pair.interval is None


def _amount(value: float | None, unit: str) -> str:
    return "-" if value is None else display.value(value, unit)


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def _interval(pair: ValuePair) -> str:
    """Return the interval of a ratio, marked `~` if from samples only and `?` if unknown."""
    ends = pair.interval
    if ends is None:
        return "?" if _is_unknown(pair) else "-"
    mark = "~ " if pair.is_of_samples else ""
    return f"{mark}{ends[0]:.3f} … {ends[1]:.3f}"


def _label(pair: ValuePair) -> str:
    if pair.outcome is not None:
        reason = None if pair.verdict is None else pair.verdict.reason
        return words.label(pair.outcome, reason)
    if pair.now is None:
        return "gone"
    return "new" if pair.was is None else "-"
