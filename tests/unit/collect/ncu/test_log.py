"""collect.ncu.session: what ncu wrote into its log, and what it means."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.fake_ncu import _FAILURES
from pytest_gpuperf.collect.ncu.session import (
    TROUBLES,
    errors_in,
    find_trouble,
)

AFTERMATH = """\
==ERROR== Failed to profile "gemm" in process 7
==PROF== Trying to shutdown target application
==ERROR== The application returned an error code (9).
==ERROR== An error occurred while trying to profile.
==WARNING== No kernels were profiled.
"""

# lines out of logs that people have published, the first of each with its trouble
PUBLISHED = [
    (
        (
            "ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
            "Performance Counters on the target device 0."
        ),
        "counter-permission",
        "administrators",
    ),
    (
        (
            "Profiling failed because a driver resource was unavailable. Ensure that no "
            "other tool (like DCGM) is concurrently collecting profiling data."
        ),
        "counters-busy",
        "DCGM",
    ),
    (
        r"Failed to find metric regex:^flop_count_sp\.(sum|min|max|avg|pct|ratio)$",
        "unknown-counter",
        "no metric flop_count_sp for",
    ),
    (
        r"Failed to find metric regex:^dram__bytes_read\.sum$",
        "unknown-counter",
        "no metric dram__bytes_read.sum for",
    ),
    (
        "Failed to open/create lock file /tmp/nsight-compute-lock.",
        "interprocess-lock",
        "lock file",
    ),
    ("InterprocessLockFailed", "interprocess-lock", "another user"),
    (
        (
            "Failed to initialize the profiler: LibraryNotLoaded. Check that a compatible "
            "driver library is loaded."
        ),
        "library-not-loaded",
        "gVisor",
    ),
    (
        (
            "Nsight Compute failed to connect to the CUDA driver (stub libcuda.so[.1] on "
            "path?)."
        ),
        "stub-driver",
        "stub",
    ),
    (
        (
            "Profiling is not supported on device 0. To find out supported GPUs refer "
            "--list-chips option."
        ),
        "unsupported-device",
        "does not support",
    ),
    (
        "Option import-source is not supported during range replay.",
        "range-replay",
        "Option import-source",
    ),
    ("LaunchFailed", "launch-failed", "waits for another"),
    (
        "unrecognised option '--attach'. Use --help for further details.",
        "unknown-option",
        "no option --attach",
    ),
    ("Unknown Error on device 0.", "unknown-error", "no reason"),
]


@pytest.mark.parametrize(("line", "name", "words"), PUBLISHED)
def test_a_line_has_a_cause_and_a_remedy(line: str, name: str, words: str) -> None:
    """What ncu prints in passing is explained in a sentence, whatever follows it."""
    found = find_trouble(f"==PROF== Connected to process 7\n==ERROR== {line}\n")
    among_others = find_trouble(f"==ERROR== {line}\r\n{AFTERMATH}")

    assert found is not None
    assert found == among_others
    trouble, cause, _ = found
    assert trouble.name == name
    assert words in cause
    assert trouble.remedy[0].islower() or trouble.remedy.startswith("TMPDIR")


def test_an_unknown_counter_is_named() -> None:
    """As it was asked for, not as the regular expression that ncu makes of it."""
    found = find_trouble(
        r"==ERROR== Failed to find metric regex:^dram__bytes_read\.sum$"
    )

    assert found is not None
    assert found[2] == "dram__bytes_read.sum"


def test_what_only_follows_explains_least() -> None:
    """A failed kernel is named where nothing says why it failed."""
    found = find_trouble(AFTERMATH)

    assert found is not None
    assert found[0].name == "failed-launch"
    assert "could not profile gemm" in found[1]


def test_a_child_without_cuda_explains_only_its_own_end() -> None:
    """Where a kernel failed as well, that one is told."""
    line = (
        "==ERROR== Target process 12 terminated before first instrumented API call.\n"
    )

    alone, among_others = find_trouble(line), find_trouble(line + AFTERMATH)

    assert alone is not None
    assert alone[1] == "the program ended before it called CUDA"
    assert among_others is not None
    assert among_others[0].name == "failed-launch"


def test_a_program_that_fails_is_no_failure_of_ncu() -> None:
    """Its status is told."""
    found = find_trouble("==ERROR== The application returned an error code (3).\n")

    assert found is not None
    assert found[0].name == "program-failed"
    assert found[1] == "the program ended with status 3"


def test_a_warning_alone_is_no_error() -> None:
    """Only that nothing was profiled is one by itself."""
    warned = "==WARNING== Failed to lock frequencies on MIG\n"
    nothing = "==WARNING== No kernels were profiled.\n"
    with_cause = find_trouble(warned + AFTERMATH)
    empty = find_trouble(warned + nothing)

    assert find_trouble(warned) is None
    assert with_cause is not None
    assert with_cause[0].name == "clock-control"
    assert empty is not None
    assert empty[0].name == "nothing-profiled"


def test_what_a_program_prints_is_no_line_of_ncu() -> None:
    """Only lines that bear ncu's mark count."""
    assert find_trouble("we test ERR_NVGPUCTRPERM and ==ERROR== LaunchFailed\n") is None


def test_all_is_well() -> None:
    """A log without an error has no trouble."""
    log = '==PROF== Profiling "LaunchFailed" - 0 (1/1): 0%....100% - 8 passes\n'

    assert find_trouble(log) is None
    assert errors_in(log) == ()


def test_errors_are_quoted_in_their_order() -> None:
    """Without ncu's mark, and without the warnings."""
    assert errors_in(AFTERMATH) == (
        'Failed to profile "gemm" in process 7',
        "The application returned an error code (9).",
        "An error occurred while trying to profile.",
    )


LOGS = Path(__file__).parents[3] / "gold" / "ncu_logs"
# of a real ncu: its log, the trouble, and how what is said of it begins
REAL = [
    ("kernel_without_kernels", "nothing-profiled", "ncu saw no kernel"),
    ("application_without_kernels", "nothing-profiled", "ncu saw no kernel"),
    ("range_without_ranges", "nothing-profiled", "ncu saw no kernel"),
    ("range_without_work", "nothing-profiled", "ncu saw no kernel"),
    ("app_range_without_ranges", "nothing-profiled", "ncu saw no kernel"),
    ("app_range_without_work", "nothing-profiled", "ncu saw no kernel"),
    ("graph_without_graphs", "nothing-profiled", "ncu saw no kernel"),
    ("without_cuda", "nothing-profiled", "ncu saw no kernel"),
    ("unknown_metric", "nothing-profiled", "ncu saw no kernel"),
    (
        "ended_by_sigsegv",
        "program-failed",
        "the program ended with status 11, or by signal 11 (SIGSEGV)",
    ),
    ("rename_kernels", "unknown-option", "this ncu has no option --rename-kernels"),
    ("clock_control_boost", "clock-words", "this ncu cannot lock the clocks"),
    (
        "cache_control_some",
        "unknown-argument",
        "this ncu does not take that value of --cache-control",
    ),
    ("stub_driver", "stub-driver", "ncu finds no CUDA driver"),
]


@pytest.mark.parametrize(("log", "name", "cause"), REAL, ids=lambda word: word)
def test_a_real_log_is_understood(log: str, name: str, cause: str) -> None:
    """Whatever the replay mode calls that which it could not profile."""
    found = find_trouble((LOGS / f"{log}.log").read_text())

    assert found is not None
    assert (found[0].name, found[1][: len(cause)]) == (name, cause)
    assert "opts" not in found[0].remedy


def test_every_real_log_is_read() -> None:
    """None lies there for nothing."""
    assert sorted(path.stem for path in LOGS.glob("*.log")) == sorted(
        log for log, *_ in REAL
    )


@pytest.mark.parametrize("mode", _FAILURES)
def test_every_failure_of_the_double_is_known(mode: str) -> None:
    """What other tests meet is told apart from an unknown end."""
    log = "\n".join(_FAILURES[mode]).format(pid=1, kernel="k", metric="m__x.sum")

    found = find_trouble(log)

    assert found is not None
    assert found[0].name not in {"failed-launch", "unknown-error", "program-failed"}


def test_the_table_is_whole() -> None:
    """A trouble has a name of its own, a pattern that compiles, a cause and a remedy."""
    assert len({each.name for each in TROUBLES}) == len(TROUBLES)
    for each in TROUBLES:
        assert re.search(each.pattern, "") is None
        assert not each.cause.endswith(".")
        assert each.remedy
        assert not each.remedy.endswith(".")


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    """A log that is cut or holds bytes of the program is not an error of ours."""
    found = find_trouble("==ERROR== " + text)

    assert found is None or found[1]
