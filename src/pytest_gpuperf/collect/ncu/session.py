"""Run Nsight Compute, and find the reason of a failure in its log."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypedDict

import msgspec

from pytest_gpuperf.collect.clock import Clock, SystemClock
from pytest_gpuperf.collect.leases import exclusive
from pytest_gpuperf.collect.ncu.command import Command
from pytest_gpuperf.collect.runner import Finished, ProcessRunner, Runner
from pytest_gpuperf.errors import (
    CollectError,
    CollectorFailedError,
    CollectorTimeoutError,
    CollectorUnavailableError,
    CounterPermissionError,
    CountersBusyError,
    MeasureError,
    NothingProfiledError,
    UnknownCounterError,
)
from pytest_gpuperf.model.frozen import Frozen, Mistake, refuse, replace, shown

# Signals that end a process by themselves. The statuses of pytest are below 6.
_FATAL = frozenset({"SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGSEGV", "SIGTERM"})
_LINE = re.compile(r"^==(?:ERROR|WARNING)== (?P<text>.+?)\s*$", re.MULTILINE)
_MARK = re.compile(r"^==[A-Z]+==", re.MULTILINE)  # Of any line of ncu.


class Trouble(NamedTuple):
    """
    A known failure of ncu and its pattern in the log.

    Attributes:
        name: Its name, and the slug of its error if it has one.

        pattern: A regular expression for a line of the log.

        cause: One sentence without its full stop, for the reader. `{0}` is the text of
            the pattern's group, or else the line.

        remedy: One imperative sentence.

        unavailable: Whether the machine is the cause, and not this command.
    """

    name: str
    pattern: str
    cause: str
    remedy: str
    unavailable: bool = False


# Failures of ncu 2020 to 2026, causes before their consequences, so that the first
# match in a log is the cause. "Failed to profile" and "An error occurred" follow many
# of them and name no cause.
TROUBLES = (
    Trouble(
        "counter-permission",
        r"ERR_NVGPUCTRPERM",
        "the driver lets only administrators read the GPU's counters (ERR_NVGPUCTRPERM)",
        "run as root, give the container CAP_SYS_ADMIN (docker run "
        "--cap-add=SYS_ADMIN), or load the driver's module with "
        "NVreg_RestrictProfilingToAdminUsers=0 and reboot; under WSL2 allow it in "
        "Windows: NVIDIA Control Panel, Developer, Manage GPU Performance Counters",
        unavailable=True,
    ),
    Trouble(
        "counters-busy",
        r"Profiling failed because a driver resource was unavailable",
        "another program holds the GPU's counters: DCGM for as long as it runs, another "
        "profiler for a while",
        "pause DCGM (dcgmi profile --pause, and --resume afterwards), end other "
        "profilers, or allow more attempts (retries of Session.run)",
        unavailable=True,
    ),
    Trouble(
        "unknown-counter",
        r"Failed to find metric (?:regex:\^)?(?P<text>[\w:.\\]*\w)",
        "ncu has no metric {0} for this GPU",
        "look it up (gpuperf metrics check): names differ between generations of GPUs",
    ),
    Trouble(
        "interprocess-lock",
        r"InterprocessLockFailed|Failed to open/create lock file",
        "ncu cannot open its lock file, which belongs to another user of the temporary "
        "folder",
        "set TMPDIR to a folder of your own, or have nsight-compute-lock removed",
        unavailable=True,
    ),
    Trouble(
        "library-not-loaded",
        r"LibraryNotLoaded",
        "the driver's profiling library cannot be loaded: a sandbox such as gVisor "
        "hides it, or ncu does not fit the driver",
        "profile outside the sandbox, or install the ncu of the driver's CUDA version",
        unavailable=True,
    ),
    Trouble(
        "stub-driver",
        r"failed to connect to the CUDA driver",
        "ncu finds no CUDA driver, or a stub of libcuda.so in its place",
        "see that nvidia-smi finds the GPU; then remove any folder of stubs from "
        "LD_LIBRARY_PATH",
        unavailable=True,
    ),
    Trouble(
        "unsupported-device",
        r"[Pp]rofiling is not supported on (?:this )?device",
        "this ncu does not support the GPU",
        "install a newer Nsight Compute; ncu --list-chips prints the supported chips",
        unavailable=True,
    ),
    Trouble(
        "clock-control",
        r"Failed to lock frequencies",
        "ncu may not lock the clocks of this GPU, as on a MIG instance",
        'give clock_control="none"',
    ),
    Trouble(
        "range-replay",
        r"(?P<text>Option \S+) is not supported during range replay"
        r"|(?:[Uu]nsupported|not supported).*range replay",
        "range replay does not support a requested option, or an API that the program "
        "calls in the range ({0})",
        'leave it out, or give replay_mode="application"',
    ),
    Trouble(
        "launch-failed",
        r"LaunchFailed",
        "a kernel failed when it was launched again: it fails without ncu too (by an "
        "index out of bounds, say), it waits for another one (as collectives do), or "
        "its memory could not be saved",
        "run the program without ncu; if it works, leave the kernel or its test out, or "
        'replay the whole program (Command with replay_mode="application")',
    ),
    Trouble(
        "unknown-option",
        r"unrecogni[sz]ed option '?(?P<text>[^\s'=]+)",
        "this ncu has no option {0}",
        "install a newer Nsight Compute",
    ),
    Trouble(
        "clock-words",
        r"the argument for option '--(?P<text>clock-control)' is invalid",
        "this ncu cannot lock the clocks in that way",
        "lock them to their base (in pytest --gpuperf-ncu-clocks=base), which every ncu "
        "can; boost needs a newer Nsight Compute",
    ),
    Trouble(
        "unknown-argument",
        r"the argument for option '?(?P<text>[^\s'=]+)'? is invalid",
        "this ncu does not take that value of {0}",
        "give another one, or install a newer Nsight Compute",
    ),
    Trouble(
        "unknown-error",
        r"Unknown [Ee]rror on device",
        "the driver gave no reason; often ncu, the driver and the program's CUDA do not "
        "fit together",
        "install the ncu of the driver's CUDA version",
    ),
    Trouble(
        "failed-launch",
        r'Failed to profile "(?P<text>.*)" in process|An error occurred while trying',
        "ncu could not profile {0}, for an unknown reason",
        "read its log, and profile without that kernel or with fewer metrics",
    ),
    Trouble(
        "early-end",
        r"terminated before first instrumented API call",
        "the program ended before it called CUDA",
        "run it without ncu first, and see that it launches a kernel",
    ),
    Trouble(
        "program-failed",
        r"The application returned an error code \((?P<text>-?\d+)\)",
        "the program ended with status {0}{1}",
        "run it without ncu first, and see why it fails",
    ),
    Trouble(
        "nothing-profiled",
        r"No (?:kernels|ranges|graphs)\b.* were profiled|Skipping invalid capture range",
        "ncu saw no kernel",
        "check that the program launches a kernel, and that the filters (NVTX ranges, "
        "kernel names, launch counts) include it; if a child process launches it, give "
        'target_processes="all"',
    ),
)


def find_trouble(log: str) -> tuple[Trouble, str, str] | None:
    """
    Return the known failure in a log.

    Args:
        log: The whole log.

    Returns:
        The first entry of the table that matches a line of ncu, with its cause as a
        sentence and the text of its pattern's group, or None if no entry matches.

    Example:
        >>> trouble, cause, name = find_trouble(
        ...     "==ERROR== Failed to find metric dram__byte"
        ... )
        >>> cause
        'ncu has no metric dram__byte for this GPU'
    """
    lines = [match["text"] for match in _LINE.finditer(log)]
    # Warnings explain an error. Without an error most of them are harmless.
    relevant = TROUBLES if errors_in(log) else TROUBLES[-1:]
    for trouble in relevant:
        matches = (re.search(trouble.pattern, text) for text in lines)
        match = next(filter(None, matches), None)
        if match is None:
            continue
        detail = match.groupdict().get("text") or match.string.rstrip(".")
        # ncu shows a name as the regular expression that it made of it.
        detail = detail.replace("\\.", ".")
        ending = ""
        # ncu writes signals like statuses. Most details are no number of a signal.
        with contextlib.suppress(ValueError):
            name = signal.Signals(int(detail)).name
            ending = f", or by signal {detail} ({name})" if name in _FATAL else ""
        return trouble, trouble.cause.format(detail, ending), detail
    return None


def errors_in(log: str) -> tuple[str, ...]:
    """Return ncu's error lines."""
    return tuple(
        match["text"]
        for match in _LINE.finditer(log)
        if match[0].startswith("==ERROR==")
    )


# The pause before the last attempt. Earlier pauses are shorter.
_LONGEST_PAUSE_S = 3.0
# A pause is up to half as long again, so that two sessions that met do not meet again.
_JITTER = 0.5
# As many lines as a runner returns.
_TAIL_LINES = 40
_INSTALL = (
    "install Nsight Compute (it comes with the CUDA toolkit, and by itself as "
    "nsight-compute) and put the folder of ncu on PATH"
)
# Troubles of the table.
_PROGRAM_FAILED, _EARLY_END = "program-failed", "early-end"
_UNKNOWN_OPTION = "unknown-option"


class _End(TypedDict):
    argv: tuple[str, ...]
    exit_code: int
    log_tail: str


def _pause_s(retry: int, retries: int) -> float:
    return _LONGEST_PAUSE_S * (1 - retry / retries)


class Session(Frozen, frozen=True, kw_only=True):
    """
    Runs one command of ncu, alone on its GPU.

    Attributes:
        command: The command.

        runner: Starts processes.

        lock_folder: The folder of the GPUs' locks, or None for `leases.lease_folder()`.

        device: The GPU to lock, by index or UUID. Both are one lock if NVML knows them.

        lock_timeout_s: Timeout of the lock [s], >= 0.

        timeout_why: The origin of the command's `timeout_s`, for the message of a
            timeout, or "".

        collectives: Whether the program's kernels wait for one another, as those of
            NCCL do, so that kernel replay would hang. None means True if the program's
            WORLD_SIZE is above 1.

        program_may_fail: Whether a non-zero status of the program is accepted if there
            is a report, as for a pytest whose tests may fail.

        clock: Waits between two attempts.

        jitter: Returns a random number from 0 to 1, for the length of each pause.
    """

    command: Command
    runner: Runner = msgspec.field(default_factory=ProcessRunner)
    lock_folder: Path | None = None
    device: str = "0"
    lock_timeout_s: float = 600.0
    timeout_why: str = ""
    collectives: bool | None = None
    program_may_fail: bool = False
    clock: Clock = msgspec.field(default_factory=SystemClock)
    jitter: Callable[[], float] = random.random

    def run(
        self,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        retries: int = 1,
        sleep: Callable[[int, int], float] = _pause_s,
    ) -> Finished:
        """
        Profile the program, replacing an existing log or report.

        Only one error is temporary: another program holds the counters. Only after this
        error ncu is started again.

        Args:
            cwd: The working folder, or None for the folder of this process.

            env: The environment, to which the command's own is added, or None for the
                environment of this process.

            retries: Number of attempts in all, >= 1.

            sleep: Returns the pause [s] by the number of attempts left and of all.

        Returns:
            The finished process of ncu. Its report exists and is not empty.

        Raises:
            CounterPermissionError: The driver lets only administrators count.

            CountersBusyError: Another program held the counters at each attempt.

            DeviceHeldError: Another run held the GPU.

            CollectorUnavailableError: ncu is not installed, or does not work here.

            NothingProfiledError: ncu saw no kernel.

            CollectorTimeoutError: ncu took too long. All its processes were ended.

            CollectorFailedError: ncu failed in another way.

            MeasureError: Kernel replay was requested for kernels that wait for one
                another.

            RecordError: `retries` is not a number of attempts.
        """
        if type(retries) is not int or retries < 1:
            text = f"{shown(retries)} is not a number of attempts"
            refuse([Mistake(path="retries", text=text)], remedy="give 1 or more")
        environment = None if env is None else dict(env)
        if self.command.env is not None:
            inherited = os.environ if env is None else env
            environment = {**inherited, **self.command.env}
        self._refuse_collectives(os.environ if environment is None else environment)
        folder = None if cwd is None else os.fspath(cwd)
        with exclusive(
            self.device, folder=self.lock_folder, timeout_s=self.lock_timeout_s
        ):
            for left in range(retries - 1, 0, -1):
                with contextlib.suppress(CountersBusyError):
                    return self._attempt(folder, environment)
                self.clock.sleep(sleep(left, retries) * (1 + _JITTER * self.jitter()))
            return self._attempt(folder, environment)

    def _refuse_collectives(self, environment: Mapping[str, str]) -> None:
        """Refuse kernel replay of collectives, because a rank's kernel would wait forever."""
        size = environment.get("WORLD_SIZE", "")
        has_collectives, why = self.collectives, "collectives=True"
        if has_collectives is None:
            has_collectives = size.isdecimal() and int(size) > 1
            why = f"WORLD_SIZE is {size}"
        if not has_collectives or self.command.replay_mode != "kernel":
            return
        message = f"kernel replay would hang in kernels that wait for others ({why})"
        remedy = 'give replay_mode="application" or "app-range", or profile one process'
        raise MeasureError(message, remedy=remedy)

    def _attempt(self, cwd: str | None, environment: dict[str, str] | None) -> Finished:
        """
        Run ncu, repeat the run without unknown options that can be spared, and check
        the result.
        """
        base = Path(cwd or "")
        log, report = base / self.command.log, base / self.command.report
        _clear(log, report, report.with_name(f"{report.name}z"))
        try:
            finished = self.runner.run(
                self.command.cmd,
                timeout_s=self.command.timeout_s,
                cwd=cwd,
                env=environment,
            )
        except CollectorTimeoutError as error:
            remedy = (
                "give it more time (timeout_s of Command, in pytest the ini option "
                "gpuperf_ncu_timeout); kernels that wait for one another hang when they "
                "are replayed one by one: leave them out"
            )
            why = f" ({self.timeout_why})" if self.timeout_why else ""
            raise CollectorTimeoutError(
                error.message + why, remedy=remedy
            ) from error.__cause__
        except CollectorUnavailableError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cwd is not None and cause.filename == cwd:
                raise
            raise CollectorUnavailableError(error.message, remedy=_INSTALL) from cause
        report = self.command.written(base)
        has_report = report.is_file() and report.stat().st_size > 0
        text = _log_text(log, finished, has_report=has_report)
        trouble, _, option = find_trouble(text) or (None, "", "")
        is_unknown = trouble is not None and trouble.name == _UNKNOWN_OPTION
        if is_unknown and option in self.command.spare_options:
            left_out = (*self.command.left_out, option)
            command = replace(self.command, left_out=left_out)
            return replace(self, command=command)._attempt(cwd, environment)  # noqa: SLF001 - of this class
        self._check(finished, text, report, has_report=has_report)
        return finished

    def _check(
        self, finished: Finished, text: str, report: Path, *, has_report: bool
    ) -> None:
        match = find_trouble(text)
        if match is not None:
            trouble, cause, detail = match
            harmless = {
                _PROGRAM_FAILED: self.program_may_fail,
                # Other processes of the program may have counters.
                NothingProfiledError.slug: True,
                # A child of the program, such as a compiler, need not call CUDA.
                _EARLY_END: self.program_may_fail or finished.exit_code == 0,
            }
            if not (has_report and harmless.get(trouble.name)):
                raise _error(trouble, cause, detail, finished, text)
            return
        errors = errors_in(text)
        if finished.exit_code < 0:
            cause = f"ncu was ended by signal {-finished.exit_code}"
            remedy = "run the program without ncu first; then profile less of it"
        elif errors or (
            finished.exit_code and not (self.program_may_fail and has_report)
        ):
            words = "; ".join(errors) or "it gave no reason"
            cause = f"ncu ended with status {finished.exit_code}: {words}"
            remedy = f"read its log ({self.command.log}), or run it by hand"
        elif not has_report:
            cause = f"ncu succeeded but wrote no report at {report}"
            remedy = "check that opts do not send the report elsewhere"
        else:
            return
        raise CollectorFailedError(cause, remedy=remedy, **_end(finished, text))


def _error(
    trouble: Trouble, cause: str, detail: str, finished: Finished, text: str
) -> CollectError:
    remedy = trouble.remedy
    if trouble.name == CounterPermissionError.slug:
        return CounterPermissionError(cause, remedy=remedy)
    if trouble.name == CountersBusyError.slug:
        return CountersBusyError(cause, remedy=remedy)
    if trouble.unavailable:
        return CollectorUnavailableError(cause, remedy=remedy)
    if trouble.name == NothingProfiledError.slug:
        return NothingProfiledError(cause, remedy=remedy, **_end(finished, text))
    if trouble.name == UnknownCounterError.slug:
        return UnknownCounterError(
            cause, counter=detail, remedy=remedy, **_end(finished, text)
        )
    return CollectorFailedError(cause, remedy=remedy, **_end(finished, text))


def _clear(log: Path, *reports: Path) -> None:
    """
    Empty the log and remove reports, so that both belong to the new run afterwards.

    Raises:
        CollectError: They cannot be written.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        for path in (log, *reports):
            path.unlink(missing_ok=True)
        # Never writes through a link made by another user.
        log.touch(exist_ok=False)
    except OSError as error:
        message = f"{reports[0]}: no report can be written there ({error.strerror})"
        raise CollectError(message, remedy="give another output") from error


def _log_text(log: Path, finished: Finished, *, has_report: bool) -> str:
    """Return the log. Without a report, the output before ncu opened the log comes first."""
    text = (log.read_bytes() if log.exists() else b"").decode("utf-8", "replace")
    if has_report:
        return text
    printed = b"\n".join((finished.stdout, finished.stderr)).decode("utf-8", "replace")
    if finished.exit_code and not text and not _MARK.search(printed):
        # ncu 2022.3 refuses its options in this way, before it opens its log.
        printed = f"==ERROR== {printed.lstrip()}"
    return f"{printed}\n{text}"


def _end(finished: Finished, text: str) -> _End:
    lines = [line for line in text.splitlines() if line.strip()]
    tail = "\n".join(lines[-_TAIL_LINES:])
    return {
        "argv": finished.argv,
        "exit_code": finished.exit_code,
        "log_tail": "\n".join(dict.fromkeys((tail, finished.log_tail))).strip(),
    }
