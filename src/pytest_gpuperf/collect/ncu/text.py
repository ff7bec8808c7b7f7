"""A `.ncu-rep` as text, read in a process of its own.

Apart from `capture`, so that a command that only prints loads no record and no parser.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder

from pytest_gpuperf.collect.runner import Finished, Runner
from pytest_gpuperf.errors import (
    CaptureFormatError,
    CollectorFailedError,
    CollectorUnavailableError,
)

__all__ = ["advice_text", "capture_text", "check_file", "detail_text"]

_MAGIC = b"NVR\0"  # how all 257 public reports start that were looked at
_FOLDER = os.path.dirname(__file__)  # noqa: PTH120 - pathlib is not imported yet, and costs the command 4 ms
# not by path, which would compile it at each start, nor as `-m`, which would import us
_START = "import sys; sys.path.append(sys.argv[1]); import extract; extract.start()"
_DETAIL = _START.replace("extract", "detail")
_ADVISE = _DETAIL.replace("start()", "advise()")
# -S: the packages of this environment need not be looked through twice
_OPTIONS = ("-I", "-S", "-X", "utf8", "-c", _START, _FOLDER)
_LAUNCHES = (b'{"ranges":[{', b"}]}]}\n")  # how a whole answer begins and ends
_ADVICE = (b'{"rules":', b"}\n")
_NOT_A_REPORT = 65  # the exit statuses of extract.py, which is not imported here:
_NO_INTERFACE = 69  # a test compares them
_LONGEST_REASON = 500
# what the dynamic loader and a temporary file need; nothing else of the caller's
# environment may change what a report says
_ENVIRONMENT = ("DYLD_LIBRARY_PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TEMP", "TMPDIR")
# glibc: memory in pages of 2 MB, where the kernel has some; the interface takes 54 MB for
# 150 launches, and a fault for each 4 kB of them was a tenth of the time
_ALLOCATOR = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def capture_text(
    path: str | os.PathLike[str],
    *,
    runner: Runner,
    metrics: Sequence[str] | None = None,
    python: str = sys.executable,
    timeout_s: float = 120.0,
) -> bytes:
    """
    Return a report as the JSON text that `gpuperf show --format=json` prints.

    A report that was cut off is refused when the cut went through a launch. One that
    ends exactly between two launches is a valid report of fewer launches: whoever
    knows how many there should be has to compare.

    Args:
        path: The `.ncu-rep` file.

        runner: What starts the reading process.

        metrics: Names in the order of the answer; None: all that each launch has.

        python:
            The interpreter to read with; its version must fit the installed ncu-report.

        timeout_s: How long reading may take [s], > 0.

    Raises:
        CaptureFormatError: The file is not a whole report.

        CollectorUnavailableError: The package ncu-report cannot be used.

        CollectorFailedError: The reading process crashed.

        CollectorTimeoutError: It took longer than it may.
    """
    selection = ("all",) if metrics is None else ("some", *dict.fromkeys(metrics))
    return _answer(
        path, _OPTIONS, ("0", *selection), _LAUNCHES, runner, python, timeout_s
    )


def detail_text(
    path: str | os.PathLike[str],
    *,
    runner: Runner,
    names: Sequence[str],
    python: str = sys.executable,
    timeout_s: float = 120.0,
) -> bytes:
    """
    Return all that launches say of themselves and of some metrics, as JSON text.

    Args:
        path: The `.ncu-rep` file.

        runner: What starts the reading process.

        names:
            Metrics; `group:` and `breakdown:` stand for their members, `*` for all
            that each launch has, `correlated:` before a name for its values by opcode
            or address.

        python: As in `capture_text`, whose errors are raised, too.

        timeout_s: How long reading may take [s], > 0.
    """
    options = (*_OPTIONS[:-2], _DETAIL, _FOLDER)
    selection = ("0", "some", *dict.fromkeys(names))
    return _answer(path, options, selection, _LAUNCHES, runner, python, timeout_s)


def advice_text(
    path: str | os.PathLike[str],
    *,
    runner: Runner,
    place: tuple[int, int],
    python: str = sys.executable,
    timeout_s: float = 120.0,
) -> bytes:
    """
    Return what ncu's rules and samples say of one launch, as JSON text.

    Args:
        path: The `.ncu-rep` file.

        runner: What starts the reading process.

        place: The launch's range and its index there.

        python: As in `capture_text`, whose errors are raised, too.

        timeout_s: How long reading may take [s], > 0.
    """
    options = (*_OPTIONS[:-2], _ADVISE, _FOLDER)
    selection = (str(place[0]), str(place[1]))
    return _answer(path, options, selection, _ADVICE, runner, python, timeout_s)


def _answer(
    path: str | os.PathLike[str],
    options: tuple[str, ...],
    question: tuple[str, ...],
    frame: tuple[bytes, bytes],
    runner: Runner,
    python: str,
    timeout_s: float,
) -> bytes:
    """Return what a process of its own wrote of a report, between `frame`."""
    file = os.path.abspath(path)  # noqa: PTH100 - as above; and links stay as they are
    check_file(file)
    finished = runner.run(
        (python, *options, _interface(), file, *question),
        timeout_s=timeout_s,
        env=_ALLOCATOR
        | {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
    )
    _check_end(file, finished, frame)
    return finished.stdout


def check_file(file: str) -> None:
    """Refuse what cannot be a report, before a process is started for it."""
    try:
        # a folder has no bytes, and a pipe would be waited for
        if not stat.S_ISREG(os.stat(file).st_mode):  # noqa: PTH116 - as above
            message = "it is a folder or a device, not a file"
            raise _refusal(file, message, "name the .ncu-rep file itself")
        with open(file, "rb") as stream:  # noqa: PTH123 - as above
            start = stream.read(len(_MAGIC))
    except OSError as error:
        message = f"it cannot be read ({error.strerror})"
        raise _refusal(file, message, "check the path and its permissions") from error
    if file.encode("utf-8", "replace") != os.fsencode(file):
        message = "its name is not UTF-8, and NVIDIA's reader opens no other"
        raise _refusal(file, message, "rename it, or read it through a link")
    if not start:
        raise _refusal(file, "it is empty", "profile again: ncu did not finish it")
    if start != _MAGIC:
        raise _refusal(
            file,
            "it is not a report of Nsight Compute: it does not start with 'NVR\\0'",
            "name a .ncu-rep file; save a compressed one (.ncu-repz) uncompressed",
        )


def _interface() -> str:
    """Return where the module `ncu_report` lies, without importing it."""
    spec = PathFinder.find_spec("ncu_report")
    if spec is None or spec.origin is None:
        message = "the package ncu-report is not installed"
        raise _unavailable(message)
    return spec.origin


def _check_end(file: str, finished: Finished, frame: tuple[bytes, bytes]) -> None:
    """Turn every end of the reading process but a good one into an error."""
    text = finished.stdout
    reason = text[:_LONGEST_REASON].decode("ascii", "replace")
    if finished.exit_code == _NOT_A_REPORT:
        raise _refusal(file, reason, "profile again, or copy the file again")
    if finished.exit_code == _NO_INTERFACE:
        message = f"the package ncu-report cannot be loaded ({reason})"
        raise _unavailable(message)
    whole = text.startswith(frame[0]) and text.endswith(frame[1])
    if finished.exit_code == 0 and whole:
        return
    if finished.exit_code < 0:
        how = f"was ended by signal {-finished.exit_code}"
    else:
        how = f"ended with status {finished.exit_code}"
    if finished.exit_code == 0:
        how += " and half an answer"
    message = f"the process that read {file} {how}"
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
