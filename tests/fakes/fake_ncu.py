"""Stands in for NVIDIA's `ncu`, as a command: `tests/fakes/ncu` runs it.

    PATH=tests/fakes:$PATH FAKE_NCU_VALUES='{"gpu__time_duration.sum": [1e3, "ns"]}' \\
        ncu --metrics=gpu__time_duration.sum -f -o out --log-file out.log python program.py

It runs the program with its arguments for real, in the environment that it was given and
with `NV_COMPUTE_PROFILER_PERFWORKS_DIR`, as ncu does; writes ncu's lines into the log; and
puts a report where it was asked to. Its exit status is the program's, or 0 with
`--check-exit-code=no`.

The report holds what the program *says* it launched, for there is no GPU: the program
appends lines to the file that its environment names in FAKE_NCU_RANGES (set here where
nobody has), one JSON object for each range that it has opened and ended:

    {"domain": "pytest-gpuperf", "name": "1f2e3d4c", "kernels": ["k", {"name": "k2",
     "demangled": "k2(int)", "metrics": {"dram__bytes.sum": [64, "byte"]}}]}

`name` may be a list, of ranges that were open together; without it the kernels ran outside
of all ranges. `kernels` may be a number, of kernels called fake_kernel. A program that
writes no line launched one kernel outside of all ranges. `--nvtx`, `--nvtx-include` and
`--nvtx-exclude` do what they do (names of start/end ranges, `regex:`), `--replay-mode`
too (application: the program runs twice; range: one result for each range, its values the
sums), `--metrics` too:
only what is asked for is in the report, with the values of the kernel or else of
FAKE_NCU_VALUES; what has none is absent. `fake_ncu_report.py` reads it, through
`read_capture` as well: `fake_ncu_report.install(folder)`, and that folder on PYTHONPATH.

| variable         | says                                                                 |
|------------------|----------------------------------------------------------------------|
| FAKE_NCU_MODE    | what goes wrong: a key of `_FAILURES`, or hang, no-kernels,          |
|                  | crash-half; busy:N: the first N starts (counted in FAKE_NCU_STARTS), |
|                  | busy:N+: all from the Nth on                                         |
| FAKE_NCU_STARTS  | a file that gets one line a start that profiles: JSON, argv and pid  |
| FAKE_NCU_REPORT  | a report to hand back as it is                                       |
| FAKE_NCU_VALUES  | JSON: {metric: value or [value, unit]}                               |
| FAKE_NCU_RANGES  | the file for the program's ranges; emptied first                     |
| FAKE_NCU_VERSION | the version, as 2025.3.1.0                                           |
| FAKE_NCU_LACKS   | options that this version does not have, as --a,--b              |
| FAKE_NCU_SLEEP   | how long profiling takes besides [s]                                 |
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

# each option with a value; the value stands behind "=", or is the next argument
_WITH_VALUE = frozenset(
    (  # noqa: SIM905 - a list of them would be five times as long
        "-c -k -o -s --app-replay-buffer --app-replay-match --app-replay-mode "
        "--cache-control --call-stack-type --check-exit-code --chips --clock-control "
        "--communicator --config-file --devices --export --filter-mode "
        "--forward-signals --graph-profiling --import-source --kernel-id --kernel-name "
        "--kernel-name-base --kill --launch-count --launch-skip "
        "--launch-skip-before-match --log-file --metrics --null-stdin --nvtx-exclude "
        "--nvtx-include --nvtx-push-pop-scope --page --pipeline-boost-state "
        "--pm-sampling-interval --print-details --print-nvtx-rename --print-summary "
        "--print-units --profile-from-start --python-include --range-filter "
        "--range-replay-options --rename-kernels --replay-mode --section --set "
        "--source-folders --target-processes --target-processes-filter "
        "--warp-sampling-buffer-size --warp-sampling-interval "
        "--warp-sampling-max-passes --warp-sampling-max-size"
    ).split()
)
_FLAGS = frozenset({"--nvtx", "--force-overwrite", "-f", "--version", "--call-stack"})
_FLAGS |= {"--csv", "--disable-extra-suffixes", "--verbose", "--lockstep-kernel-launch"}
_LONG = {"-c": "--launch-count", "-k": "--kernel-name", "-o": "--export"}
_LONG |= {"-s": "--launch-skip", "-f": "--force-overwrite"}

_TEXT, _DOUBLE, _INTEGER = 2, 4, 6  # kinds of a metric, as ncu_report numbers them

# the lines between "Connected" and the end; {pid}, {kernel} and {metric} are filled in
_FAILURES = {
    "busy": (
        "==ERROR== An error was reported by the driver",
        "",
        (
            "==ERROR== Profiling failed because a driver resource was unavailable. Ensure "
            "that no other tool (like DCGM) is concurrently collecting profiling data. See "
            "https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#faq for more "
            "details."
        ),
        '==ERROR== Failed to profile "{kernel}" in process {pid}',
        "==PROF== Trying to shutdown target application",
        "==ERROR== An error occurred while trying to profile.",
    ),
    "permission": (
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA "
            "GPU Performance Counters on the target device 0. For instructions on enabling "
            "permissions and to get more information see "
            "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
        ),
    ),
    "unknown-metric": ("==ERROR== Failed to find metric regex:^{metric}$",),
    "early-end": (
        "==ERROR== Target process {pid} terminated before first instrumented API call.",
    ),
    "lock": (
        (
            "==ERROR== Failed to open/create lock file /tmp/nsight-compute-lock. Please "
            "check that the process has write permissions on it."
        ),
        "==ERROR== InterprocessLockFailed",
    ),
    "library": (
        "==ERROR== An error was reported by the counter measurement library:",
        (
            "==ERROR== Failed to initialize the profiler: LibraryNotLoaded. Check that a "
            "compatible driver library is loaded."
        ),
        "==PROF== Trying to shutdown target application",
    ),
    "launch-failed": (
        "==ERROR== LaunchFailed",
        '==ERROR== Failed to profile "{kernel}" in process {pid}',
        "==PROF== Trying to shutdown target application",
        "==ERROR== An error occurred while trying to profile.",
    ),
    "range-unsupported": (
        "==ERROR== Option import-source is not supported during range replay.",
    ),
}
_EXIT_CODE = 9  # of ncu, where profiling failed


def main(argv: Sequence[str]) -> int:
    """Do what the command line asks; return the exit status."""
    try:
        options, program = _parsed(argv)
    except ValueError as error:
        print(f"==ERROR== {error}. Use --help for further details.")
        return 1
    if "--version" in options:
        print(_version())
        return 0
    if not program:
        print("==ERROR== No target application was given.")
        return 1
    start = _counted(argv)
    with _log(options) as log:
        return _profiled(options, program, _mode(start), log)


def _parsed(argv: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the options by their long names, and the program with its arguments."""
    options: dict[str, list[str]] = {}
    left = [*argv]
    while left and left[0].startswith("-"):
        if left[0] == "--":
            return options, left[1:]
        name, equals, value = left.pop(0).partition("=")
        lacking = os.environ.get("FAKE_NCU_LACKS", "").split(",")
        if name in lacking or name not in _WITH_VALUE | _FLAGS:
            raise ValueError(f"unrecognised option '{name}{equals}{value}'")
        if name in _WITH_VALUE and not equals:
            if not left:
                raise ValueError(
                    f"the required argument for option '{name}' is missing"
                )
            value = left.pop(0)
        options.setdefault(_LONG.get(name, name), []).append(value)
    return options, left


def _version() -> str:
    number = os.environ.get("FAKE_NCU_VERSION", "2025.3.1.0")
    return (
        "NVIDIA (R) Nsight Compute Command Line Profiler\n"
        f"Copyright (c) 2018-{number[:4]} NVIDIA Corporation\n"
        f"Version {number} (build 36398880) (public-release)"
    )


def _counted(argv: Sequence[str]) -> int:
    """Write this start down; return how many there have been, this one included."""
    file = os.environ.get("FAKE_NCU_STARTS")
    if not file:
        return 1
    with Path(file).open("a+", encoding="utf-8") as stream:
        stream.write(json.dumps({"argv": [*argv], "pid": os.getpid()}) + "\n")
        stream.flush()
        stream.seek(0)
        return len(stream.readlines())


def _mode(start: int) -> str:
    mode, _, times = os.environ.get("FAKE_NCU_MODE", "ok").partition(":")
    if times.endswith("+"):
        return mode if start >= int(times[:-1]) else "ok"
    return "ok" if times and start > int(times) else mode


@contextlib.contextmanager
def _log(options: Mapping[str, list[str]]) -> Iterator[TextIO]:
    """Open the log, or take standard output for it."""
    if "--log-file" not in options:
        yield sys.stdout
        return
    with Path(options["--log-file"][-1]).open("w", encoding="utf-8") as stream:
        yield stream


def _profiled(
    options: Mapping[str, list[str]], program: Sequence[str], mode: str, log: TextIO
) -> int:
    """Run the program and write its report; return the exit status."""

    def say(*lines: str) -> None:
        print(*lines, sep="\n", file=log, flush=True)

    report = _report(options)
    if report.is_file() and "--force-overwrite" not in options:
        say(f"==ERROR== The file '{report}' already exists. Use -f to overwrite it.")
        return 1
    launches, pid, status = _run(options, program, mode, say)
    if mode in _FAILURES:
        kernel = launches[0]["kernel"] if launches else "fake_kernel"
        metric = [*_metrics(options), "no__such"][0]
        filled = {"pid": pid, "kernel": kernel, "metric": metric}
        say(*(line.format(**filled) for line in _FAILURES[mode]))
        launches, status = [], _EXIT_CODE
    if mode == "no-kernels":
        launches = []
    for number, launch in enumerate(launches):
        count = f"{number} ({number + 1}/{len(launches)})"
        name = launch["kernel"]
        say(f'==PROF== Profiling "{name}" - {count}: 0%....50%....100% - 3 passes')
    if mode == "crash-half":
        content = _content(launches)
        report.write_bytes(content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGSEGV)
    if options.get("--check-exit-code", ["yes"])[-1] == "no":
        status = 0
    say(*_last_words(report, launches, pid, status))
    return status


def _last_words(
    report: Path, launches: Sequence[Mapping[str, Any]], pid: int, status: int
) -> Iterator[str]:
    """Write the report, if there is something in it; yield the last lines of the log."""
    yield f"==PROF== Disconnected from process {pid}"
    if status:
        yield f"==ERROR== The application returned an error code ({status})."
    if launches:
        report.write_bytes(_content(launches))
        yield f"==PROF== Report: {report}"
    else:
        yield "==WARNING== No kernels were profiled."


def _report(options: Mapping[str, list[str]]) -> Path:
    """Return where the report goes; without -o there is none, and nothing reads it."""
    name = options.get("--export", [os.devnull])[-1]
    return Path(name if name.endswith((".ncu-rep", os.devnull)) else name + ".ncu-rep")


def _run(
    options: Mapping[str, list[str]], program: Sequence[str], mode: str, say: Any
) -> tuple[list[dict[str, Any]], int, int]:
    """Run the program; return what it launched, its process id and its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        named = os.environ.get("FAKE_NCU_RANGES", f"{folder}/ranges")
        ranges = Path(named)
        environment = os.environ | {
            "NV_COMPUTE_PROFILER_PERFWORKS_DIR": folder,
            "FAKE_NCU_RANGES": str(ranges),
        }
        replay = options.get("--replay-mode", ["kernel"])[-1]
        if replay == "application":
            subprocess.run(program, env=environment, check=False)
        ranges.write_text("")
        process = subprocess.Popen(program, env=environment)
        say(f"==PROF== Connected to process {process.pid} ({program[0]})")
        if mode == "hang":
            time.sleep(3600)
        status = process.wait()
        time.sleep(float(os.environ.get("FAKE_NCU_SLEEP", "0")))
        lines = ranges.read_text(encoding="utf-8").splitlines()
    opened = [json.loads(line) for line in lines] or [{"kernels": 1}]
    launches = [
        _launch(kernel, each, options)
        for each in opened
        if _selected(each, options)
        for kernel in (_whole if replay == "range" else _kernels)(each)
    ]
    return launches, process.pid, status


def _whole(opened: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a range as the one thing that range replay profiles."""
    sums: dict[str, Any] = {}
    for kernel in _kernels(opened):
        for name, value in kernel.get("metrics", {}).items():
            number, unit = value if isinstance(value, list) else (value, "")
            sums[name] = [sums.get(name, [0])[0] + number, unit]
    return [{"name": "range", "metrics": sums}]


def _kernels(opened: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the kernels of a range, each with what is known of it."""
    kernels = opened.get("kernels", [])
    if isinstance(kernels, int):
        kernels = ["fake_kernel"] * kernels
    return [each if isinstance(each, dict) else {"name": each} for each in kernels]


def _names(opened: Mapping[str, Any]) -> list[str]:
    name = opened.get("name", [])
    return [name] if isinstance(name, str) else [*name]


def _selected(opened: Mapping[str, Any], options: Mapping[str, list[str]]) -> bool:
    """Whether the filters let a range through."""
    includes = options.get("--nvtx-include", [])
    excludes = options.get("--nvtx-exclude", [])
    if includes and not any(_matches(each, opened) for each in includes):
        return False
    return not any(_matches(each, opened) for each in excludes)


def _matches(expression: str, opened: Mapping[str, Any]) -> bool:
    """Whether an expression for start/end ranges names one that is open."""
    is_regex = expression.startswith("regex:")
    text = expression.removeprefix("regex:")
    domain, at, names = text.rpartition("@")
    domain = domain if at else "<default domain>"

    def same(pattern: str, name: str) -> bool:
        return bool(re.search(pattern, name)) if is_regex else pattern == name

    found = _names(opened)
    return same(domain, opened.get("domain", "<default domain>")) and all(
        any(same(pattern, name) for name in found) for pattern in names.split(",")
    )


def _metrics(options: Mapping[str, list[str]]) -> list[str]:
    asked = ",".join(options.get("--metrics", []))
    return [name for name in asked.split(",") if name]


def _launch(
    kernel: Mapping[str, Any],
    opened: Mapping[str, Any],
    options: Mapping[str, list[str]],
) -> dict[str, Any]:
    """Return a launch as `fake_ncu_report` reads it."""
    values = json.loads(os.environ.get("FAKE_NCU_VALUES", "{}"))
    values |= kernel.get("metrics", {})
    asked = {name: values[name] for name in _metrics(options) if name in values}
    always = {"launch__grid_size": 8, "launch__block_size": 256}
    launch: dict[str, Any] = {
        "kernel": kernel["name"],
        "demangled": kernel.get("demangled", f"{kernel['name']}()"),
        "metrics": {name: _metric(value) for name, value in (always | asked).items()},
    }
    if "--nvtx" in options:
        domain = opened.get("domain", "<default domain>")
        launch["nvtx"] = [[domain, [], _names(opened)]] if _names(opened) else []
    return launch


def _metric(value: Any) -> tuple[int, Any, str]:
    """Return a value as kind, number and unit."""
    number, unit = value if isinstance(value, list) else (value, "")
    kinds = {int: _INTEGER, float: _DOUBLE, str: _TEXT}
    return kinds[type(number)], number, unit


def _content(launches: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the report: the one that is to be handed back, or one of the launches."""
    given = os.environ.get("FAKE_NCU_REPORT")
    if given:
        return Path(given).read_bytes()
    return b"NVR\0" + json.dumps({"ranges": [[*launches]]}).encode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
