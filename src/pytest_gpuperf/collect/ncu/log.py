"""ncu's log: profiled launches and errors."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["TROUBLES", "Trouble", "errors_in", "find_trouble", "profiled_launches"]

_LAUNCH = re.compile(r'^==PROF== Profiling ".*" - \d+\b(?P<rest>.*)$', re.MULTILINE)
# with application replay each launch is logged once per pass
_LATER_PASS = re.compile(r"replay pass (?!1\b)\d")
_LINE = re.compile(r"^==(?:ERROR|WARNING)== (?P<text>.+?)\s*$", re.MULTILINE)


class Trouble(NamedTuple):
    """
    A known failure of ncu and its pattern in the log.

    Attributes:
        name: Its name, and the slug of its error where it has one.

        pattern: A regular expression for a line of the log.

        cause: One sentence without its full stop, for the reader; `{0}` is the text of
            the pattern's group, else the line.

        remedy: One imperative sentence.

        unavailable: Whether the machine is the cause, and not this command.
    """

    name: str
    pattern: str
    cause: str
    remedy: str
    unavailable: bool = False


# Failures of ncu 2020 to 2026, causes before their consequences: the first match in a log
# is the cause. "Failed to profile" and "An error occurred" follow many of them and name no
# cause.
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
        "ncu cannot open its lock file, which another user has left in the temporary "
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
        "the program loaded a libcuda.so that is only a stub",
        "take the folder of stubs off LD_LIBRARY_PATH",
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
        "a kernel failed when it was launched again: it waits for another one (as "
        "collectives do), or its memory could not be saved",
        "leave the kernel or its test out, or replay the whole program (Command with "
        'replay_mode="application")',
    ),
    Trouble(
        "unknown-option",
        r"unrecogni[sz]ed option '?(?P<text>[^\s']+)",
        "this ncu has no option {0}",
        "leave it out of opts, or install a newer Nsight Compute",
    ),
    Trouble(
        "unknown-error",
        r"Unknown [Ee]rror on device",
        "the driver gave no reason, as it does where ncu, the driver and the program's "
        "CUDA do not fit together",
        "install the ncu of the driver's CUDA version",
    ),
    Trouble(
        "failed-launch",
        r'Failed to profile "(?P<text>.*)" in process|An error occurred while trying',
        "ncu could not profile {0}, for a reason that is not known",
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
        "the program ended with status {0}",
        "run it without ncu first, and see why it fails",
    ),
    Trouble(
        "nothing-profiled",
        r"No kernels were profiled",
        "ncu saw no kernel",
        'see that the program launches one; with children give target_processes="all"; '
        "with filters (NVTX ranges, kernel names, launch counts) see that one lets it "
        "through",
    ),
)


def find_trouble(log: str) -> tuple[Trouble, str, str] | None:
    """
    Return the known failure in a log.

    Args:
        log: The whole log.

    Returns:
        The first entry of the table that matches a line of ncu, with its cause as a
        sentence and what its pattern names; None: no entry matches.

    Example:
        >>> trouble, cause, name = find_trouble(
        ...     "==ERROR== Failed to find metric dram__byte"
        ... )
        >>> cause
        'ncu has no metric dram__byte for this GPU'
    """
    lines = [match["text"] for match in _LINE.finditer(log)]
    # warnings explain an error; without one most of them are harmless
    relevant = TROUBLES if errors_in(log) else TROUBLES[-1:]
    for trouble in relevant:
        for text in lines:
            match = re.search(trouble.pattern, text)
            if match:
                detail = match.groupdict().get("text") or text.rstrip(".")
                # ncu shows a name as the regular expression that it made of it
                detail = detail.replace("\\.", ".")
                return trouble, trouble.cause.format(detail), detail
    return None


def errors_in(log: str) -> tuple[str, ...]:
    """Return ncu's error lines."""
    return tuple(
        match["text"]
        for match in _LINE.finditer(log)
        if match[0].startswith("==ERROR==")
    )


def profiled_launches(log: str) -> int:
    """
    Return the number of launches that ncu logged as profiled.

    A launch that failed halfway counts: the report has it too.

    Args:
        log: The whole log.
    """
    return sum(not _LATER_PASS.search(match["rest"]) for match in _LAUNCH.finditer(log))
