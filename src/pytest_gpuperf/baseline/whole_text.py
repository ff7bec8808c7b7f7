"""The text format of a store, decoded as a whole: what is wrong with a damaged file."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Container, Iterator

import msgspec

from pytest_gpuperf.baseline.layout import (
    READABLE,
    SCHEMA_VERSION,
    SCHEMAS,
    SECTION_NAME,
)
from pytest_gpuperf.baseline.rows import CONTENT, KeyedBy, StoredContent, StoredSection
from pytest_gpuperf.baseline.text import BaselineFile, RowReader, content_of, text_in
from pytest_gpuperf.errors import BaselineCorruptError, SchemaVersionError
from pytest_gpuperf.model.frozen import UNREADABLE, Frozen, collector_paused

_RESTORE = "restore it from version control, or remove it and measure again"
_BYTE = re.compile(r"^(?P<what>.*) \(byte (?P<byte>\d+)\)$")

# No line of a file starts like this: lines start with a brace, a quote or null.
_CONFLICT = re.compile(rb"^(?:<{7}|={7}|>{7}|\|{7})(?:\s|$)", re.MULTILINE)
# A file is still whole without any other line, which is a record or an entry of a
# table.
_STRUCTURE = re.compile(rb'^(?:\{"schema":|\{"name":|"":null\}|null\]|$)')


class _SchemaOnly(Frozen, frozen=True):
    """The one field that every version of the format has."""

    schema: str = ""


def decode(
    text: bytes,
    *,
    path: str,
    keyed_by: KeyedBy,
    section: str | None = None,
    test_ids: Collection[str] | None = None,
    metrics: Container[str] | None = None,
    quantiles: bool = True,
    edited: bool = False,
) -> BaselineFile:
    """
    Decode the content of a file. Damaged lines are left out and listed in `damage`.

    Args:
        text: The bytes of the file.

        path: The name of the file, for messages.

        keyed_by: The kind of sections that the file must have.

        section: The section to read, or None for all.

        test_ids: The tests to read, or None for all.

        metrics: The metrics to read, or None for all. Sessions without them are left
            out.

        quantiles: Whether to keep the quantiles of samples, which only reports show.

        edited: Whether to accept lines that differ from their checksum.

    Raises:
        BaselineCorruptError: The file is damaged as a whole. The message names the
            place.

        SchemaVersionError: The file is a baseline of a later schema version.
    """
    reader = _WholeReader(
        text, path=path, edited=edited, metrics=metrics, quantiles=quantiles
    )
    with _refusing(text, path=path), collector_paused():
        parts = [
            (part, map(bytes, part.records))
            for part in reader.sections(keyed_by)
            if section in {None, part.name}
        ]
        return content_of(reader, parts, keyed_by, test_ids)


@contextlib.contextmanager
def _refusing(text: bytes, *, path: str) -> Iterator[None]:
    """Turn the errors of a file that is damaged as a whole into one with its place."""
    try:
        yield
    except UNREADABLE as error:
        _refuse_other_text(text, path=path)
        raise BaselineCorruptError(
            _fault(error, text), remedy=_RESTORE, path=path
        ) from error


class _WholeReader(RowReader):
    """Reads a file whose text is known, and notes the lines that are not JSON."""

    def sections(self, keyed_by: KeyedBy) -> list[StoredSection]:
        """
        Return the sections of a file of a known version.

        Raises:
            BaselineCorruptError: It has other sections, or is no baseline.

            SchemaVersionError: It is a baseline of a later version.
        """
        content = self._content()
        _check_schema(content.schema, path=self.path)
        if content.keyed_by != keyed_by:
            raise BaselineCorruptError(
                f"the file is keyed by {content.keyed_by}, not by {keyed_by}",
                remedy="name the whole store: its folder, or a single-file store",
                path=self.path,
            )
        self.version = READABLE[content.schema]
        return [part for part in content.sections if part is not None]

    def _content(self) -> StoredContent:
        """Decode the content, without the lines that break the JSON."""
        try:
            return CONTENT.decode(self.file_text)
        except UNREADABLE as error:
            if _CONFLICT.search(self.file_text):
                raise
            whole = self._without_broken_lines()
            try:
                return CONTENT.decode(whole)
            except UNREADABLE:
                # This error names the place in the whole text.
                raise error from None

    def _without_broken_lines(self) -> bytes:
        """Blank the lines that are not valid JSON, and note the damage."""
        lines = self.file_text.split(b"\n")
        for index, line in enumerate(lines):
            self.section = text_in(SECTION_NAME, line) or self.section
            if not (_STRUCTURE.match(line) or _is_entry(line)):
                self.leave_out("it is not JSON", line, number=index + 1)
                lines[index] = b""
        return b"\n".join(lines)


def _is_entry(line: bytes) -> bool:
    """Return True for a line of valid JSON, a record or an entry of a table."""
    body = line.rstrip()
    if not body.endswith(b","):
        return False
    body = body[:-1]
    try:
        msgspec.json.decode(body if body.startswith(b"{") else b"{%b}" % body)
    except UNREADABLE:
        return False
    return True


def _check_schema(schema: str, *, path: str) -> None:
    if not schema.startswith(SCHEMAS):
        raise BaselineCorruptError(
            f"it is not a baseline (schema {schema!r})",
            remedy="name a store that --gpuperf-update has written",
            path=path,
        )
    if schema not in READABLE:
        raise SchemaVersionError(schema=schema, supported=SCHEMA_VERSION, path=path)


def _refuse_other_text(text: bytes, *, path: str) -> None:
    """Raise for a merge conflict, an unknown schema, or JSON that is not a baseline."""
    conflict = _CONFLICT.search(text)
    if conflict is not None:
        line = text.count(b"\n", 0, conflict.start()) + 1
        raise BaselineCorruptError(
            f"line {line}: unresolved merge conflict",
            remedy="remove the marker lines and keep the lines of both sides",
            path=path,
        )
    try:
        schema = msgspec.json.decode(text, type=_SchemaOnly).schema
    except msgspec.ValidationError:
        schema = ""
    except UNREADABLE:
        # The text is not JSON. The caller reports the place of the error.
        return
    _check_schema(schema, path=path)


def _fault(error: Exception, text: bytes) -> str:
    if isinstance(error, msgspec.ValidationError):
        what, _, field = str(error).partition(" - at `$")
        return f"{field.rstrip('`').lstrip('.') or 'the whole'}: {what}"
    if not isinstance(error, msgspec.DecodeError):
        return f"it is not JSON ({error})"
    match = _BYTE.match(str(error))
    if match is None:
        return f"truncated after line {len(text.splitlines())} ({error})"
    before = text[: int(match["byte"])]
    line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
    return f"line {line}, column {column}: {match['what']}"
