"""Door 2: the `gpuperf` command; PYTEST_DONT_REWRITE.

Nothing but argparse is imported before a command is known: `gpuperf show` of a capture
hands the reader's bytes on and needs neither msgspec nor the records.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.errors import (
    ConfigError,
    GpuPerfError,
    RecordError,
    ReportError,
    UnitError,
)

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.capture import Capture
    from pytest_gpuperf.model.run import Run

__all__ = ["main"]

GOOD, WORSE, WRONG_USAGE, UNDECIDED, UNREADABLE = range(5)
DEGRADED, BLOCKED = 1, 2  # of doctor: some, or none, of what was asked for
_INTERRUPTED = 130  # 128 + SIGINT
_PIPE_CLOSED = 141  # 128 + SIGPIPE: what a shell expects of a command behind `| head`

_EXIT_CODES = """\
exit codes: 0 good; 1 a limit failed or a change regressed; 2 wrong usage;
3 nothing could be decided (only with --strict); 4 an input file is unreadable;
of doctor: 0 ready; 1 degraded: no GPU; 2 blocked: what was asked for was not done"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command with these arguments, or this process's; return the exit code."""
    try:
        code = _reported(_parser().parse_args(argv))
        sys.stdout.flush()
    except BrokenPipeError:
        # what is still buffered would raise once more when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except KeyboardInterrupt:
        return _INTERRUPTED
    return code


def _reported(arguments: argparse.Namespace) -> int:
    """Run a command and say on standard error what kept it from its work."""
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except GpuPerfError as error:
        lines = [f"gpuperf: error: {error.message}"]
        lines += [f"    remedy: {error.remedy}"] if error.remedy else []
        _say(lines)
        return WRONG_USAGE if isinstance(error, ConfigError) else UNREADABLE


def _say(lines: Iterable[str]) -> None:
    """Write lines to standard error, safe to print."""
    from pytest_gpuperf.report.escape import escape

    sys.stderr.write("".join(f"{escape(line)}\n" for line in lines))


def _show(arguments: argparse.Namespace) -> int:
    """Print a capture or a run."""
    file, form, metrics = arguments.file, arguments.format, arguments.metrics
    if _is_json(file):
        return _show_run(_read(file), form, metrics)
    from pytest_gpuperf.collect.ncu.text import capture_text
    from pytest_gpuperf.collect.runner import ProcessRunner

    runner = ProcessRunner()
    if form == "json":  # the records that the other forms need cost as much as the rest
        # a name with two underscores is a counter's: the catalogue need not be asked
        if doubtful := [name for name in metrics or () if "__" not in name]:
            from pytest_gpuperf.pipeline.shown import refuse_catalogue

            refuse_catalogue(doubtful)
        return _print(capture_text(file, runner=runner, metrics=metrics))
    from pytest_gpuperf.collect.ncu.capture import read_capture
    from pytest_gpuperf.pipeline.captured import analyses
    from pytest_gpuperf.pipeline.shown import selected
    from pytest_gpuperf.report.forms import capture_bytes

    def read(names: Sequence[str] | None) -> Capture:
        return read_capture(file, runner=runner, metrics=names)

    if metrics is None:
        capture = read(None)
        limits = analyses(capture)
        return _print(capture_bytes(capture, form, metrics=None, analyses=limits))
    capture, remarks = selected(read, metrics)
    return _print(capture_bytes(capture, form, metrics=metrics, remarks=remarks))


def _show_run(run: Run, form: str, metrics: tuple[str, ...] | None) -> int:
    """Print a run; what it was asked for and lacks is said on standard error."""
    from pytest_gpuperf.report.forms import only_metrics, run_bytes

    if metrics is None:
        return _print(run_bytes(run, form))
    from pytest_gpuperf.pipeline.shown import absent_from_run

    _print(run_bytes(only_metrics(run, metrics), form))
    _say(f"gpuperf: {sentence}" for sentence in absent_from_run(run, metrics))
    return GOOD


def _compare(arguments: argparse.Namespace) -> int:
    """Judge the last run against the sessions of those before it."""
    if len(arguments.files) < 2:  # noqa: PLR2004 - one run has nothing beside it
        message = "one file has nothing to be compared with"
        raise ConfigError(message, remedy="give the older runs first, the newest last")
    runs = _read_all(arguments.files)
    from pytest_gpuperf.model.verdict import JUDGED, Outcome
    from pytest_gpuperf.pipeline.compare import compare_runs
    from pytest_gpuperf.report.forms import run_bytes

    judged = compare_runs(runs, max_regression=arguments.max_regression)
    _print(run_bytes(judged, arguments.format))
    verdicts = judged.verdicts
    worse = {Outcome.FAILED, Outcome.REGRESSED}  # without a threshold: only shown
    if any(
        v.outcome in worse and (v.limit or v.threshold is not None) for v in verdicts
    ):
        return WORSE
    decided = any(verdict.outcome in JUDGED for verdict in verdicts)
    return UNDECIDED if arguments.strict and not decided else GOOD


def _doctor(arguments: argparse.Namespace) -> int:
    """Print the GPUs of this machine with their peaks, measured anew if asked for."""
    from pytest_gpuperf.collect.clock import SystemClock
    from pytest_gpuperf.collect.hardware.measuring import find_framework
    from pytest_gpuperf.collect.runtime import CudaRuntime, load_driver
    from pytest_gpuperf.pipeline.doctor import examine, measure
    from pytest_gpuperf.report.forms import peaks_bytes

    runtime = CudaRuntime(load_driver)
    remarks, done = [], True
    if arguments.measure_peaks:
        said, done = measure(find_framework, runtime, SystemClock())
        remarks.append(said)
    found = examine(runtime)
    _print(peaks_bytes(found.peaks, (*found.remarks, *remarks), arguments.format))
    if not done:
        return BLOCKED
    return GOOD if found.ready else DEGRADED


def _scorecard(arguments: argparse.Namespace) -> int:
    """Print the scorecard of a step profile."""
    from pytest_gpuperf.pipeline.scorecard import is_worse, score_file
    from pytest_gpuperf.report.scorecard import scorecard_bytes

    scorecard = score_file(
        arguments.profile,
        throughput=arguments.throughput,
        hardware=arguments.hardware,
        baseline=arguments.baseline,
        measured=arguments.policy == "measured",
    )
    _print(scorecard_bytes(scorecard, arguments.format))
    return WORSE if is_worse(scorecard) else GOOD


def _nothing(_: argparse.Namespace) -> int:
    """Refuse a line without a command."""
    message = "no command was named"
    raise ConfigError(message, remedy="name one: gpuperf show FILE; see gpuperf --help")


def _read(path: str) -> Run:
    """Return the run of a JSON file."""
    from pytest_gpuperf.model.codec import decode_run

    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not imported on this path
            text = file.read()
    except OSError as error:
        message = f"it cannot be read ({error.strerror})"
        raise RecordError(
            message, path=path, remedy="check the path and its permissions"
        ) from error
    return decode_run(text, path=path)


def _read_all(paths: Sequence[str]) -> list[Run]:
    """Return the runs of JSON files; all that cannot be read are named at once."""
    runs: list[Run] = []
    errors: list[RecordError] = []
    for path in paths:
        try:
            runs.append(_read(path))
        except RecordError as error:
            errors.append(error)
    if len(errors) > 1:
        remedies = "; ".join(dict.fromkeys(error.remedy for error in errors))
        messages = "; ".join(dict.fromkeys(error.message for error in errors))
        raise RecordError(messages, path="", remedy=remedies) from errors[0]
    if errors:
        raise errors[0]
    return runs


def _is_json(path: str) -> bool:
    """Return whether a file begins like a JSON object; a capture never does."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not imported on this path
            return file.read(64).lstrip().startswith(b"{")
    except OSError:
        return path.endswith(".json")  # whoever reads it says what is wrong


def _print(content: bytes) -> int:
    """Write to standard output, whatever its encoding is."""
    rest = memoryview(content)
    try:
        while rest:  # with PYTHONUNBUFFERED a pipe takes 64 KiB at a time
            rest = rest[sys.stdout.buffer.write(rest) :]
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # whoever reads has seen enough
        raise
    except OSError as error:
        message = f"standard output cannot be written ({error.strerror})"
        raise ReportError(message, remedy="make room, or write elsewhere") from error
    return GOOD


def _metric_names(text: str) -> tuple[str, ...]:
    """Return the names of --metrics."""
    names = tuple(filter(None, map(str.strip, text.split(","))))
    if not names:
        message = "no metric is named; write --metrics=a,b"
        raise argparse.ArgumentTypeError(message)
    return names


def _finite(text: str) -> float:
    """Return a number that is neither NaN nor infinite."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if number - number != 0:  # of NaN and infinity; math is not imported here
        message = f"{text!r} is not a finite number"
        raise argparse.ArgumentTypeError(message)
    return number


def _rate(text: str) -> float:
    """Return a finite number of things per second."""
    number = _finite(text)
    if number < 0:
        message = f"{text!r} is below 0: nothing is done so often"
        raise argparse.ArgumentTypeError(message)
    return number


def _share(text: str) -> float | None:
    """Return the largest change that passes, from `5%` or `off`."""
    from pytest_gpuperf.model.quantity import parse_quantity

    if text == "off":
        return None
    try:
        quantity = parse_quantity(text)
    except UnitError:
        quantity = None
    if quantity is None or quantity.si != "fraction" or quantity.value < 0:
        message = f"{text!r} is no share: write 5% or off"
        raise argparse.ArgumentTypeError(message)
    return quantity.value


def _version(_: argparse.Namespace) -> int:
    """Print the version; importlib.metadata is imported only then."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return _print(f"gpuperf {version('pytest-gpuperf')}\n".encode())
    except PackageNotFoundError as error:
        message = "the package is not installed, so it has no version"
        raise ConfigError(message, remedy="pip install pytest-gpuperf") from error


def _parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="gpuperf",
        description="Show and compare what pytest-gpuperf and Nsight Compute measured.",
        epilog=_EXIT_CODES,
    )
    parser.set_defaults(command=_nothing)
    parser.add_argument(
        "--version",
        action="store_const",
        const=_version,
        dest="command",
        help="print it",
    )
    commands = parser.add_subparsers(metavar="COMMAND")
    form = argparse.ArgumentParser(add_help=False)
    form.add_argument(
        "--format", choices=("text", "json", "markdown"), default="text", help="(text)"
    )
    show = commands.add_parser(
        "show", parents=[form], help="print a .ncu-rep capture or a run's JSON file"
    )
    show.add_argument("file", metavar="FILE")
    show.add_argument("--metrics", type=_metric_names, metavar="A,B", help="only these")
    show.set_defaults(command=_show)
    compare = commands.add_parser(
        "compare", parents=[form], help="judge the last run against those before it"
    )
    compare.add_argument("files", metavar="RUN.json", nargs="+")
    compare.add_argument(
        "--max-regression",
        type=_share,
        default="5%",
        metavar="SHARE",
        help="largest change for the worse that passes, as 5%%, or off (5%%)",
    )
    compare.add_argument(
        "--strict", action="store_true", help="exit 3 where nothing was decided"
    )
    compare.set_defaults(command=_compare)
    doctor = commands.add_parser(
        "doctor", parents=[form], help="print the GPUs of this machine and their peaks"
    )
    doctor.add_argument(
        "--measure-peaks",
        action="store_true",
        help="measure what DRAM and matrix products reach, and keep it for this user",
    )
    doctor.set_defaults(command=_doctor)
    _add_scorecard(
        commands.add_parser(
            "scorecard", parents=[form], help="print the scorecard of a step profile"
        )
    )
    return parser


def _add_scorecard(scorecard: argparse.ArgumentParser) -> None:
    """Add the arguments of `scorecard`."""
    scorecard.add_argument("profile", metavar="PROFILE.json")
    scorecard.add_argument(
        "--throughput", type=_rate, required=True, metavar="N", help="tokens/s"
    )
    scorecard.add_argument(
        "--hardware",
        required=True,
        metavar="NAME|FILE.json|GB/S,BYTES",
        help="peak bandwidth, and bytes that a token moves",
    )
    scorecard.add_argument("--baseline", metavar="SCORECARD.json", help="an older one")
    scorecard.add_argument(
        "--policy",
        choices=("reference", "measured"),
        default="reference",
        help="whose rules; measured says what it does not know (reference)",
    )
    scorecard.set_defaults(command=_scorecard)
