"""What changes how fast all code of a process runs, found in real processes."""

from __future__ import annotations

import ctypes.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fakes.project import HUNG_S

PRINT = """
import json
from pytest_gpuperf.collect.instrumentation import conditions
print(json.dumps(dict(conditions())))
"""
_OF_OTHERS = ("COV_CORE", "COVERAGE_PROCESS", "MALLOC_", "PYTHONMALLOC", "GLIBC_")


def conditions_of(
    *options: str, before: Sequence[str] = (), text: str = PRINT, **variables: str
) -> Mapping[str, str]:
    """Return what a Python that is started with options and variables says of itself."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(_OF_OTHERS)}
    ended = subprocess.run(
        [*before, sys.executable, *options, "-c", text],
        env={**env, **variables},
        capture_output=True,
        check=True,
        encoding="utf-8",
        timeout=HUNG_S,
    )
    found: dict[str, str] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_a_plain_process_has_no_conditions() -> None:
    """So a store that did not know them stays comparable."""
    assert conditions_of() == {}
    assert conditions_of("-B", "-X", "faulthandler", "-W", "error") == {}
    assert conditions_of(PYTHONMALLOC="default") == {}


@pytest.mark.parametrize(
    ("option", "facts"),
    [
        ("-O", {"python_mode": "-O"}),
        ("-OO", {"python_mode": "-OO"}),
        ("-Xdev", {"python_mode": "dev mode"}),
        ("-Xtracemalloc", {"tracer": "tracemalloc"}),
    ],
)
def test_modes_of_python_are_conditions(option: str, facts: Mapping[str, str]) -> None:
    """Each changes what all code does; the options of no consequence are none."""
    assert conditions_of(option) == facts


@pytest.mark.parametrize(
    ("variables", "allocator"),
    [
        ({"PYTHONMALLOC": "debug"}, "PYTHONMALLOC=debug"),
        ({"MALLOC_ARENA_MAX": "1"}, "MALLOC_ARENA_MAX=1"),
        (
            {"GLIBC_TUNABLES": "glibc.cpu.x86_ibt=off:glibc.malloc.tcache_count=0"},
            "glibc.malloc.tcache_count=0",
        ),
        (
            {"MALLOC_ARENA_MAX": "1", "PYTHONMALLOC": "malloc"},
            "MALLOC_ARENA_MAX=1+PYTHONMALLOC=malloc",
        ),
    ],
)
def test_settings_of_allocators_are_conditions(
    variables: Mapping[str, str], allocator: str
) -> None:
    """As they were when the process began, for that is when they are read."""
    assert conditions_of(**variables) == {"allocator": allocator}


def test_ignored_and_late_settings_are_no_conditions() -> None:
    """`-E` ignores PYTHONMALLOC, and what a process sets later it does not read."""
    text = f"import os; os.environ['MALLOC_ARENA_MAX'] = '1'{PRINT}"

    assert conditions_of("-E", PYTHONMALLOC="debug") == {}
    if sys.platform == "linux":
        assert conditions_of(text=text) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="loads a library by LD_PRELOAD")
def test_another_malloc_is_named_by_its_library(tmp_path: Path) -> None:
    """Whoever has the function that all code calls is the allocator."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, library = tmp_path / "own.c", tmp_path / "libownmalloc.so.2"
    source.write_text(
        "#include <stddef.h>\n"
        "extern void *__libc_malloc(size_t);\n"
        "void *malloc(size_t size) { return __libc_malloc(size); }\n"
    )
    made = subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(source)],
        capture_output=True,
        check=False,
        timeout=HUNG_S,
    )
    if made.returncode:
        pytest.skip("the compiler makes no library here")

    assert conditions_of(LD_PRELOAD=str(library)) == {"allocator": "ownmalloc"}


@pytest.mark.parametrize(("name", "library"), [("asan", "asan"), ("tsan", "tsan")])
def test_a_sanitizer_is_a_tracer(name: str, library: str) -> None:
    """It follows each access to memory."""
    found = ctypes.util.find_library(library)
    if found is None:
        pytest.skip(f"lib{library} is not installed")

    assert conditions_of(
        LD_PRELOAD=found, ASAN_OPTIONS="detect_leaks=0", TSAN_OPTIONS="report_bugs=0"
    ) == {"tracer": name}


@pytest.mark.parametrize(
    ("before", "name"),
    [
        (("valgrind", "-q", "--tool=none"), "valgrind"),
        (("strace", "-f", "-o", os.devnull), "strace"),
    ],
)
def test_what_watches_from_outside_is_a_tracer(
    before: tuple[str, ...], name: str
) -> None:
    """A debugger or an emulator stops or translates each step."""
    if shutil.which(before[0]) is None:
        pytest.skip(f"{before[0]} is not installed")
    try:
        found = conditions_of(before=before)
    except subprocess.CalledProcessError:
        pytest.skip(f"{before[0]} does not run here")

    assert found == {"tracer": name}
