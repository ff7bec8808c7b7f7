"""A `.ncu-rep` as text, read in a separate process."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.ncu.forms import (
    ALL_VALUES,
    NO_INTERFACE,
    NOT_A_REPORT,
    VALUES,
)
from pytest_gpuperf.collect.ncu.reading import (
    MAGIC,
    is_report,
    reader_argv,
    reader_environment,
)
from pytest_gpuperf.collect.runner import Finished, Runner
from pytest_gpuperf.errors import (
    CaptureFormatError,
    CollectorFailedError,
    CollectorUnavailableError,
)

if TYPE_CHECKING:
    from typing import BinaryIO

    from pytest_gpuperf.collect.translate import Foreign

_NO_REPORT = (
    "it is not a report of Nsight Compute: it does not start with 'NVR\\0'",
    "name a .ncu-rep file, or a compressed one (.ncu-repz)",
)
_LONGEST_REASON = 500
# Our choice for one reading. 154 launches take 0.3 s.
_TIMEOUT_S = 120.0
# 50,000 launches of 20 kB. The report is read whole.
_LARGEST_BYTES = 1_000_000_000


def capture_text(
    path: str | os.PathLike[str],
    *,
    runner: Runner,
    metrics: Sequence[str] | None = None,
) -> bytes:
    """
    Return a report as the JSON text that `gpuperf show --format=json` prints.

    Args:
        path: The `.ncu-rep` file.

        runner: As in `report_text`, like the errors.

        metrics: Names in the order of the answer, or None for all metrics of each
            launch.
    """
    form, names = (ALL_VALUES, ()) if metrics is None else (VALUES, metrics)
    return report_text(path, form, names, runner=runner)


def report_text(
    path: str | os.PathLike[str], form: str, names: Sequence[str], *, runner: Runner
) -> bytes:
    """
    Return a report as JSON text.

    A report that was cut off inside a launch is refused. A report that ends between two
    launches is a valid report of fewer launches, so the caller has to compare the
    number.

    Args:
        path: The `.ncu-rep` file.

        form: One of the forms of `extract`.

        names: The arguments of the form.

        runner: Starts the reading process.

    Raises:
        CaptureFormatError: The file is not a whole report.

        CollectorUnavailableError: The package ncu-report cannot be used.

        CollectorFailedError: The reading process crashed.

        CollectorTimeoutError: The reading process took too long.
    """
    file = os.path.abspath(path)
    check_file(file)
    argv = reader_argv(file, form, names)
    if argv is None:
        message = "the package ncu-report is not installed"
        raise _unavailable(message)
    finished = runner.run(argv, timeout_s=_TIMEOUT_S, env=reader_environment())
    _check_end(file, finished)
    return finished.stdout


# Endings of the names of reports.
_NAMES = (".ncu-rep", ".nsight-cuprof-report")


def check_file(file: str, *, otherwise: str = "") -> None:
    """
    Raise if a file cannot be a report, before a process is started to read the file.

    Args:
        file: The file.

        otherwise: The other kinds of files that the caller accepts, appended to the
            remedy for a file of unknown kind.

    Raises:
        CaptureFormatError: The file is missing, or is not a report.
    """
    try:
        # A folder has no bytes, and a pipe would block.
        state = os.stat(file)
        if not stat.S_ISREG(state.st_mode):
            message = "it is a folder, a pipe or a device, not a file"
            remedy = "name the .ncu-rep file itself; a run may be piped into -"
            raise _refusal(file, message, remedy)
        with open(file, "rb") as stream:
            start = stream.read(len(MAGIC))
            known = None if is_report(start, file) else _foreign(start, stream)
    except OSError as error:
        message = f"it cannot be read ({error.strerror})"
        raise _refusal(file, message, "check the path and its permissions") from error
    # The path contains NUL, which no system accepts.
    except ValueError as error:
        message = f"{file!r} is not a path ({error})"
        raise _refusal(file, message, "name the .ncu-rep file") from error
    if file.encode("utf-8", "replace") != os.fsencode(file):
        message = "its name is not UTF-8: NVIDIA's reader cannot open it"
        raise _refusal(file, message, "rename it, or read it through a link")
    if not start:
        of_ncu = "profile again: ncu did not finish it"
        remedy = of_ncu if file.endswith(_NAMES) else "write, compile or copy it again"
        raise _refusal(file, "it is empty", remedy)
    if not is_report(start, file):
        if known is not None:
            raise _refusal(file, known.message, known.remedy)
        message, remedy = _NO_REPORT
        raise _refusal(file, message, "; ".join(filter(None, (remedy, otherwise))))
    if state.st_size > _LARGEST_BYTES:
        raise _refusal(
            file,
            f"it has {state.st_size / 1e6:.0f} MB, more than {_LARGEST_BYTES / 1e6:.0f}",
            "profile fewer launches into one report, as with --launch-count",
        )


def _foreign(start: bytes, rest: BinaryIO) -> Foreign | None:
    # A report needs none of its patterns.
    from pytest_gpuperf.collect.translate import FOREIGN_BYTES, foreign

    return foreign(start + rest.read(FOREIGN_BYTES - len(start)))


def _check_end(file: str, finished: Finished) -> None:
    text = finished.stdout
    reason = text[:_LONGEST_REASON].decode("ascii", "replace")
    if finished.exit_code == NOT_A_REPORT:
        raise _refusal(file, reason, "profile again, or copy the file again")
    if finished.exit_code == NO_INTERFACE:
        message = f"the package ncu-report cannot be loaded ({reason})"
        raise _unavailable(message)
    is_whole = text.startswith(b"{") and text.endswith(b"}\n")
    if finished.exit_code == 0 and is_whole:
        return
    if finished.exit_code < 0:
        end = f"was ended by signal {-finished.exit_code}"
    else:
        end = f"ended with status {finished.exit_code}"
    if finished.exit_code == 0:
        end += " and half an answer"
    message = f"the process that read {file} {end}"
    raise CollectorFailedError(
        message,
        remedy="copy or profile it again: NVIDIA's reader can crash on a damaged file",
        argv=finished.argv,
        exit_code=finished.exit_code,
        log_tail=finished.log_tail,
    )


def _refusal(file: str, message: str, remedy: str) -> CaptureFormatError:
    return CaptureFormatError(message, remedy=remedy, path=file)


def _unavailable(message: str) -> CollectorUnavailableError:
    remedy = 'pip install "pytest-gpuperf[ncu]"'
    return CollectorUnavailableError(message, remedy=remedy)
