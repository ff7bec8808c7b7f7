"""Shared by the commands: exit codes, output, reading runs."""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pytest_gpuperf.disk import read_regular, regular_size_bytes
from pytest_gpuperf.errors import (
    ConfigError,
    GpuPerfError,
    RecordError,
    ReportError,
)

if TYPE_CHECKING:
    from pytest_gpuperf.model.run import Run
    from pytest_gpuperf.report.lines import Column

GOOD, WORSE, WRONG_USAGE, UNDECIDED, UNREADABLE = range(5)
INTERRUPTED = 130  # 128 + SIGINT
PIPE_CLOSED = 141  # 128 + SIGPIPE: expected by a shell from a command before `| head`.
DEGRADED, BLOCKED = 1, 2  # Of doctor, explained in docs/doctor.md.

# The first bytes of a capture as JSON. `SCHEMAS` has them too, but takes 0.1 s to
# import.
CAPTURE_START = b'{"schema":"pytest-gpuperf/capture/1",'

# ELF, fatbin, archive, a program or library of Windows, bundles of clang.
BINARIES = (
    *(b"\x7fELF", b"\x50\xed\x55\xba", b"!<arch>\n", b"MZ"),
    *(b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB"),
)

# Given in place of a file: standard input, or standard output.
STANDARD_STREAM = "-"

# Indentation of the lines below a title.
_INDENT = "  "
_ERASE = "\r\x1b[K"
_RED, _USUAL = "\x1b[31m", "\x1b[0m"
# Some 100 times the run of 1,000 tests with samples.
_LARGEST_BYTES = 1_000_000_000
# The first bytes of a run, by which the patterns of other tools' files are not needed.
_RUN = b'{\n"against": '


_T = TypeVar("_T")


def exit_code(*, passes: bool | None, strict: bool = False) -> int:
    """
    Return the exit code of a decision, with None for undecided.

    An undecided decision fails only with `strict`.
    """
    if passes is None:
        return UNDECIDED if strict else GOOD
    return GOOD if passes else WORSE


def print_bytes(content: bytes) -> int:
    """Write bytes to standard output, independent of the encoding."""
    if sys.stdout is None:  # Closed by the caller: `>&-`.
        message = "standard output is closed"
        raise ReportError(message, remedy="leave it open, or redirect it to a file")
    rest = memoryview(content)
    try:
        # With PYTHONUNBUFFERED a pipe takes 64 KiB at a time.
        while rest:
            rest = rest[sys.stdout.buffer.write(rest) :]
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # The reader has closed the pipe.
        raise
    except OSError as error:
        message = f"standard output cannot be written ({error.strerror})"
        raise ReportError(message, remedy="free space, or write elsewhere") from error
    return GOOD


def say(lines: Iterable[str]) -> None:
    """Write lines to standard error, safe to print and without passwords of URLs."""
    from pytest_gpuperf.model.url import masked
    from pytest_gpuperf.report.escape import escape

    # A URL may stand where a file belongs, and a shortened path has one slash of it.
    text = masked("".join(f"{escape(line)}\n" for line in lines))
    # If standard error is closed, only the exit code reports the error.
    if sys.stderr is not None:
        sys.stderr.write(text)


@contextlib.contextmanager
def told_on_terminals(work: str, *, after_s: float = 2.0) -> Iterator[None]:
    """
    Show a line on a terminal during slow work, and remove the line at the end.

    Nothing is written if standard error is not a terminal, as in logs.

    Args:
        work: Description of the work, as "reading run.json".

        after_s: Time before the line is shown [s].
    """
    is_dumb = os.environ.get("TERM") == "dumb"
    if sys.stderr is None or not sys.stderr.isatty() or is_dumb:
        yield
        return
    import threading

    from pytest_gpuperf.report.escape import escape

    stream, written = sys.stderr, []

    def tell() -> None:
        written.append(stream.write(f"{_ERASE}gpuperf: {escape(work)} ..."))
        stream.flush()

    timer = threading.Timer(after_s, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        # The timer may be writing just now.
        timer.join()
        if written:
            stream.write(_ERASE)
            stream.flush()


def print_table(
    form: str,
    command: str = "",
    content: Mapping[str, object] | None = None,
    *,
    title: str,
    table: Sequence[Column] = (),
    remarks: Sequence[str] = (),
    red: Sequence[str] = (),
) -> int:
    """
    Print a table as text, JSON or Markdown.

    Args:
        form: text, json or markdown.

        command: The command, which names the schema of the JSON.

        content: The content of the JSON, or None if the form is not json.

        title: The line above the table.

        table: Its columns. Without columns only the remarks are printed.

        remarks: The sentences below the table.

        red: Cells that are red on a terminal.
    """
    import json
    import re

    from pytest_gpuperf.report.escape import escape
    from pytest_gpuperf.report.explanation import fitted
    from pytest_gpuperf.report.lines import (
        document,
        line_width,
        markdown_table,
        text_table,
    )

    if form == "json":
        whole = document(command, content or {})
        return print_bytes(f"{json.dumps(whole, indent=1)}\n".encode())
    title, remarks = escape(title), [escape(remark) for remark in remarks]
    if form == "markdown":
        rows = [*markdown_table(table), ""] if table else []
        lines = [f"### {title}", "", *rows, *remarks]
    else:
        width = line_width() - len(_INDENT)
        rows = [*text_table(table, width=width)]
        # NO_COLOR is a convention of many programs: no-color.org.
        is_plain = os.environ.get("TERM") == "dumb" or os.environ.get("NO_COLOR")
        if red and sys.stdout is not None and sys.stdout.isatty() and not is_plain:
            texts = "|".join(map(re.escape, red))
            # Two blanks are between columns.
            cell = re.compile(f"(?<=  )({texts})(?=  |$)")
            rows = [cell.sub(rf"{_RED}\1{_USUAL}", row) for row in rows]
        below = (line.text for r in remarks for line in fitted(r, width=width))
        lines = [title, *(f"{_INDENT}{text}" for text in (*rows, *below))]
    return print_bytes("".join(f"{line}\n" for line in lines).encode())


def each(names: Iterable[str], read: Callable[[str], _T]) -> list[_T]:
    """
    Return the results of reading some names.

    Raises:
        GpuPerfError: Some cannot be read. The error names each of them.
    """
    attempts = [Attempt(partial(read, name)) for name in names]
    refuse_together(attempts)
    return [attempt.value for attempt in attempts]


class Attempt(Generic[_T]):
    """
    The value that was read, or the error of reading it.

    Attributes:
        error: Why there is no value, or None if there is one.
    """

    def __init__(self, read: Callable[[], _T]) -> None:
        self.error: GpuPerfError | None = None
        try:
            self._value = read()
        except GpuPerfError as error:
            self.error = error

    @property
    def value(self) -> _T:
        """The value that was read. Only available without an error."""
        return self._value


def refuse_together(attempts: Iterable[Attempt[Any]]) -> None:
    """
    Refuse unreadable inputs with a common error.

    Raises:
        GpuPerfError: The error of the only unreadable input, or an error that names all
            of them.
    """
    errors = [attempt.error for attempt in attempts if attempt.error is not None]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        message = "; ".join(dict.fromkeys(error.message for error in errors))
        remedy = "; ".join(dict.fromkeys(error.remedy for error in errors))
        if all(isinstance(error, ConfigError) for error in errors):
            raise ConfigError(message, remedy=remedy)
        raise RecordError(message, path="", remedy=remedy)


def name_of(path: str) -> str:
    """Return the name of a file for a message. `-` is standard input."""
    return "standard input" if path == STANDARD_STREAM else path


def read_input(
    path: str, *, remedy: str, takes_runs: bool = True, takes_readings: bool = False
) -> bytes:
    """
    Return the bytes of a file, or of standard input for `-`.

    Text is returned as UTF-8 without a byte order mark.

    Args:
        path: A regular file. A pipe might never answer, and a device never end.

        remedy: The remedy if the path is not a regular file, or the file is too large.

        takes_runs: False if the command takes no run, so that `remedy` replaces the
            advice to measure one.

        takes_readings: True if the command takes readings of GPUs.

    Raises:
        RecordError: The path is not a regular file, another tool wrote it, or the file
            is too large or cannot be read. Standard input is closed, or empty.
    """
    refuse = partial(
        refuse_foreign,
        path,
        instead="" if takes_runs else remedy,
        takes_readings=takes_readings,
    )
    if path == STANDARD_STREAM:
        if sys.stdin is None:  # Closed by the caller: `<&-`.
            message, remedy = (
                "standard input is closed",
                "name a file, or pipe one into it",
            )
            raise RecordError(message, path="", remedy=remedy)
        content = sys.stdin.buffer.read()
        if not content:
            message = "standard input is empty"
            remedy = "pipe a file into it; only one argument can be -"
            raise RecordError(message, path="", remedy=remedy)
        refuse(content)
        return _utf8(content)
    refuse()  # Before a trace of gigabytes is read.
    return read_file(path, remedy=f"{remedy}, or - for standard input")


def read_file(path: str, *, remedy: str) -> bytes:
    """
    Return the bytes of a file, text as UTF-8 without a byte order mark.

    Args:
        path: A regular file.

        remedy: The remedy if the path is not a regular file, or the file is too large.

    Raises:
        RecordError: The path is not a regular file, or the file is too large or cannot
            be read.
    """
    try:
        return _utf8(read_regular(path, most_bytes=_LARGEST_BYTES))
    except OSError as error:
        message = error.strerror or str(error)
        if error.errno not in {errno.EINVAL, errno.EFBIG}:
            message = f"it cannot be read ({message})"
            is_missing = error.errno == errno.ENOENT
            remedy = (
                f"check the path, or {remedy}"
                if is_missing
                else "check the path and its permissions"
            )
        raise RecordError(message, path=path, remedy=remedy) from error


def _utf8(content: bytes) -> bytes:
    """Return text as UTF-8 if the first bytes name an encoding, as PowerShell writes it."""
    from pytest_gpuperf.collect.translate import MARKS

    for mark, encoding in MARKS:
        if content.startswith(mark):
            decoder = codecs.getincrementaldecoder(encoding)()
            # Content that cannot be decoded is not text. A cut last character is left out.
            with contextlib.suppress(UnicodeDecodeError):
                return decoder.decode(content[len(mark) :]).encode()
    return content


def refuse_foreign(
    path: str,
    content: bytes | None = None,
    *,
    instead: str = "",
    takes_readings: bool = False,
) -> None:
    """
    Refuse a file of another tool.

    Args:
        path: The file, or `-` for standard input.

        content: The content, or None to read the first bytes of the file.

        instead: The remedy in place of the advice to measure a run, or "" to keep the
            advice.

        takes_readings: True if a file that may have readings of GPUs is not refused.

    Raises:
        RecordError: Another tool wrote the file. The message names the kind of file.
    """
    start = start_of(path) if content is None else content
    if start.startswith(_RUN):
        return
    from pytest_gpuperf.collect.translate import FOREIGN_BYTES, foreign

    known = foreign(start_of(path, FOREIGN_BYTES) if content is None else content)
    if known is None or (takes_readings and known.may_have_readings):
        return
    remedy = instead if instead and known.makes_runs else known.remedy
    raise RecordError(known.message, path=name_of(path), remedy=remedy)


def start_of(path: str, size_bytes: int = 64) -> bytes:
    """Return the first bytes of a file, or b"" if unreadable or not a regular file."""
    # The caller opens the file again and reports the error.
    with contextlib.suppress(OSError, ValueError):
        if regular_size_bytes(path):
            with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not imported on this path
                return file.read(size_bytes)
    return b""


def refuse_replacing(output: str, inputs: Iterable[str]) -> None:
    """Refuse to replace an input file, because the file is often the only copy of a run."""
    if output == STANDARD_STREAM:
        return
    for path in inputs:
        # If a file does not exist, the two files differ.
        with contextlib.suppress(OSError):
            if os.path.samefile(path, output):  # noqa: PTH121 - pathlib is not imported on this path
                message = f"--output names {output}, which is read"
                raise ConfigError(message, remedy="name another file")


def is_folder(path: str) -> bool:
    """Return True if a path is a folder, and False if not or if the lookup fails."""
    return os.path.isdir(path)  # noqa: PTH112 - the reader reports the error


def exists(path: str) -> bool:
    """Return True if a path exists, and False if not or if the lookup fails."""
    return os.path.exists(path)  # noqa: PTH110 - the reader reports the error


def is_capture(path: str) -> bool:
    """Return True if a file is a report of Nsight Compute, by the first bytes or the name."""
    if start_of(path).startswith(_RUN):
        return False
    from pytest_gpuperf.collect.ncu.reading import is_report

    return is_report(start_of(path), path) or path.endswith(".ncu-rep")


def read_run(path: str) -> Run:
    """Return the run of a JSON file, or of standard input for `-`."""
    remedy = "give a file written by --gpuperf-json"
    return run_of(read_input(path, remedy=remedy), name_of(path), remedy=remedy)


def run_of(text: bytes, name: str, *, remedy: str) -> Run:
    """
    Return the run of a JSON text.

    Args:
        text: The content of a file.

        name: The file, for messages.

        remedy: The remedy for a text that is not a run.

    Raises:
        RecordError: The text is not a run.
    """
    from pytest_gpuperf.model.codec import decode_run

    with told_on_terminals(f"reading {name}"):
        return decode_run(text, path=name, remedy=remedy)
