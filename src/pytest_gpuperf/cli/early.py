"""A capture is read from the start of `gpuperf show`, while the command is imported.

To import argparse and the rest takes as long as a fifth of the reading.
"""

from __future__ import annotations

import os

from pytest_gpuperf.collect.begun import begin
from pytest_gpuperf.collect.ncu.forms import ALL_VALUES, VALUES
from pytest_gpuperf.collect.ncu.reading import (
    MAGIC,
    is_report,
    reader_argv,
    reader_environment,
)

TYPE_CHECKING = False  # The module typing takes 4 ms.
if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuperf.collect.begun import BegunProcess


def begin_reading(words: Sequence[str]) -> BegunProcess | None:
    """
    Start the process that `gpuperf show` will ask for, or return None if it may ask for
    another or for none.

    The arguments are only guessed here. If argparse understands them otherwise, the
    command asks for another process, and this one has to be ended.

    Args:
        words: The arguments of the command line.
    """
    guessed = _guess(words)
    if guessed is None:
        return None
    file, form, names = guessed
    try:
        # A pipe would block.
        if not os.path.isfile(file):
            return None
        with open(file, "rb") as stream:
            if not is_report(stream.read(len(MAGIC)), file):
                return None
    # The command says what is wrong with the file.
    except (OSError, ValueError):
        return None
    argv = reader_argv(os.path.abspath(file), form, names)
    return None if argv is None else begin(argv, reader_environment())


def _guess(words: Sequence[str]) -> tuple[str, str, tuple[str, ...]] | None:
    """Return file, form and names of counters that are shown as JSON, or None."""
    files, options = [], {"--format": "", "--metrics": ""}
    rest = iter(words)
    if next(rest, "") != "show":
        return None
    for word in rest:
        name, equals, value = word.partition("=")
        if name in options:
            options[name] = value if equals else next(rest, "")
        else:
            files.append(word)
    names = tuple(filter(None, map(str.strip, options["--metrics"].split(","))))
    # Other names are metrics of ours, made of several counters.
    are_counters = all("__" in name for name in names)
    is_known = len(files) == 1 and not files[0].startswith("-")
    if not is_known or not are_counters or options["--format"] != "json":
        return None
    return files[0], VALUES if names else ALL_VALUES, names
