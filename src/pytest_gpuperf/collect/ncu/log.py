"""What ncu's log says: its launches, and what went wrong."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["TROUBLES", "Trouble", "errors_in", "find_trouble", "profiled_launches"]

_LAUNCH = re.compile(r'^==PROF== Profiling ".*" - \d+\b(?P<rest>.*)$', re.MULTILINE)
# with application replay each launch stands there once a pass
_LATER_PASS = re.compile(r"replay pass (?!1\b)\d")
_LINE = re.compile(r"^==(?:ERROR|WARNING)== (?P<text>.+?)\s*$", re.MULTILINE)


class Trouble(NamedTuple):
    """
    A thing that goes wrong with ncu, and how its log shows it.

    Attributes:
        name: Its name: the slug of its error where it has one of its own.

        pattern: What stands in a line of the log.

        cause: One sentence without its full stop, for the reader; `{0}` is what the
            group of the pattern holds, else the line.

        remedy: One imperative sentence.

        unavailable: Whether it is about the machine, and not about this command.
    """

    name: str
    pattern: str
    cause: str
    remedy: str
    unavailable: bool = False


# What was seen of ncu 2020 to 2026, in the order in which they explain one another: the
# first that is in a log is why the others are. "Failed to profile" and "An error occurred"
# follow many of them and say nothing by themselves.
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
        "this ncu does not know the GPU",
        "install a newer Nsight Compute; ncu --list-chips prints what it knows",
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
        "range replay does not support what it was asked for, or an API that the "
        "program calls in the range ({0})",
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
        "ncu could not profile {0}, and gave no reason that is known",
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
    Return why profiling failed, as far as the log tells.

    Args:
        log: All of it.

    Returns:
        The first trouble of the table that a line of ncu shows, with its cause as a
        sentence and what its pattern names; None: there is none that is known.

    Example:
        >>> trouble, cause, name = find_trouble(
        ...     "==ERROR== Failed to find metric dram__byte"
        ... )
        >>> cause
        'ncu has no metric dram__byte for this GPU'
    """
    said = [match["text"] for match in _LINE.finditer(log)]
    # warnings explain an error; by themselves most of them say that all went well
    relevant = TROUBLES if errors_in(log) else TROUBLES[-1:]
    for trouble in relevant:
        for text in said:
            found = re.search(trouble.pattern, text)
            if found:
                what = found.groupdict().get("text") or text.rstrip(".")
                # ncu shows a name as the regular expression that it made of it
                what = what.replace("\\.", ".")
                return trouble, trouble.cause.format(what), what
    return None


def errors_in(log: str) -> tuple[str, ...]:
    """Return what ncu called an error, line by line, in its own words."""
    return tuple(
        match["text"]
        for match in _LINE.finditer(log)
        if match[0].startswith("==ERROR==")
    )


def profiled_launches(log: str) -> int:
    """
    Return how many launches ncu says that it has profiled.

    One that failed halfway is counted: the report has it too.

    Args:
        log: All of it.
    """
    return sum(not _LATER_PASS.search(match["rest"]) for match in _LAUNCH.finditer(log))
