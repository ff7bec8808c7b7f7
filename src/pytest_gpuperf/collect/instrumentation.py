"""Conditions that change the speed of all code in this process.

Conditions are tracers, time and memory profilers, other allocators, sanitizers, and
modes of the interpreter. A value measured under such a condition does not describe the
code alone.
"""

from __future__ import annotations

import _tracemalloc
import functools
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from pytest_gpuperf.model.environment import ALLOCATOR, PYTHON_MODE, TRACER

# The tool numbers of sys.monitoring (PEP 669).
_TOOLS = range(6)
# Timers that a sampling profiler may use, with their signals. Windows has none.
_TIMERS = tuple(
    (getattr(signal, timer), getattr(signal, name))
    for timer, name in (
        ("ITIMER_REAL", "SIGALRM"),
        ("ITIMER_VIRTUAL", "SIGVTALRM"),
        ("ITIMER_PROF", "SIGPROF"),
    )
    if hasattr(signal, "getitimer")
)
_IS_FREE = "free-threading" in sys.version
# Slower alarms are timeouts, such as those of pytest-timeout.
_SAMPLING_S = 0.1
# Symbols of the runtimes that a sanitizer links into the program or its libraries.
_SANITIZERS = {
    "asan": "__asan_init",
    "msan": "__msan_init",
    "tsan": "__tsan_init",
    "ubsan": "__ubsan_handle_type_mismatch_v1",
}
# Files that usually contain malloc: the system's C library, or Python, where the
# address of malloc may be a jump to that library.
_USUAL_ALLOCATOR = re.compile(r"(libc|libc-.*|ld-musl-.*|libsystem_malloc|libpython.*)")
# Values of PYTHONMALLOC that name the default of a release build.
_USUAL_PYTHONMALLOC = frozenset({"", "default", "pymalloc"})
_TUNABLES, _GLIBC_MALLOC = "GLIBC_TUNABLES", "glibc.malloc."


def conditions() -> Mapping[str, str]:
    """
    Return the conditions that change the speed of all code now, as hard facts.

    Empty in a plain process. Conditions that cannot change are read once per process.
    """
    # In other builds than a free-threaded Python, the GIL is no finding.
    has_gil = _IS_FREE and bool(getattr(sys, "_is_gil_enabled", bool)())
    return _facts(tracers(), has_gil)


def named(facts: Mapping[str, str]) -> str:
    """Return facts of `conditions` as text, such as `coverage, -O`, or ""."""
    return ", ".join(facts[name] for name in sorted(facts, reverse=True))


def tracers() -> tuple[str, ...]:
    """
    Return the packages that trace or profile the process now, such as `coverage`.

    Their work is part of the time that Python needs for each line, call or allocation,
    so a loop in Python does not show the speed of the core.
    """
    # Memory profilers and some C profilers appear only in the functions for new
    # threads.
    several = (
        sys.gettrace(),
        sys.getprofile(),
        threading.gettrace(),
        threading.getprofile(),
    )
    found = [_package_of(traces) for traces in several if traces is not None]
    # `-X tracemalloc` starts tracing without importing the module.
    if _tracemalloc.is_tracing():
        found.append("tracemalloc")
    # Since Python 3.12. getattr would take 3 us to find nothing in a module.
    monitoring = vars(sys).get("monitoring")
    if monitoring is not None:
        for number in _TOOLS:
            tool = monitoring.get_tool(number)
            if tool and monitoring.get_events(number):
                found.append(tool)
    for timer, number in _TIMERS:
        left_s, every_s = signal.getitimer(timer)
        if 0 < (every_s or left_s) <= _SAMPLING_S:
            handler = signal.getsignal(number)
            found.append(_package_of(handler) if callable(handler) else "a profiler")
    return tuple(found)


def _package_of(traces: object) -> str:
    """Return the package of a trace function, or NAME for `python -m NAME`."""
    module = getattr(traces, "__module__", None) or type(traces).__module__
    if module == "__main__":
        scope = getattr(traces, "__globals__", None) or vars(sys.modules["__main__"])
        # None if the function belongs to a script.
        spec = scope.get("__spec__")
        module = module if spec is None else spec.name
    # The argument of a function in C, such as a number.
    if module == "builtins":
        return "a profiler"
    return str(module).partition(".")[0]


# Called once a millisecond while samples are taken.
@functools.lru_cache(maxsize=16)
def _facts(traced_by: tuple[str, ...], has_gil: bool) -> Mapping[str, str]:  # noqa: FBT001 - a fact, not a switch
    symbols, allocator = _of_libraries()
    variables = _first_variables()
    facts = {
        TRACER: (*traced_by, *symbols, *_observers(variables)),
        ALLOCATOR: (*allocator, *_allocator_settings(variables)),
        PYTHON_MODE: (*_modes(variables), *(["GIL"] if has_gil else [])),
    }
    return MappingProxyType(
        {name: "+".join(dict.fromkeys(parts)) for name, parts in facts.items() if parts}
    )


@functools.cache
def _of_libraries() -> tuple[tuple[str, ...], tuple[str, ...]]:
    # Imported here, because only runs that measure need it.
    import ctypes

    class Info(ctypes.Structure):
        _fields_ = (
            ("file", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("symbol", ctypes.c_char_p),
            ("symbol_address", ctypes.c_void_p),
        )

    info = Info()
    try:
        program = ctypes.CDLL(None)
        address = ctypes.cast(program.malloc, ctypes.c_void_p)
        found = program.dladdr(address, ctypes.byref(info))
    except (AttributeError, OSError, TypeError):
        # Windows, or a static program.
        return (), ()
    sanitizers = tuple(
        name for name, symbol in _SANITIZERS.items() if hasattr(program, symbol)
    )
    # The file that contains malloc.
    place = os.fsdecode(info.file) if found and info.file else ""
    name = Path(place).name.partition(".")[0]
    # A sanitizer has its own allocator.
    if sanitizers or not name or _USUAL_ALLOCATOR.fullmatch(name):
        return sanitizers, ()
    if os.path.realpath(place) == os.path.realpath(sys.executable):
        return sanitizers, ()
    return sanitizers, (name.removeprefix("lib"),)


@functools.cache
def _first_variables() -> Mapping[str, str]:
    """
    Return the environment that the process was started with.

    A variable that is set later, for example by a conftest.py, does not affect an
    allocator in this process, but affects processes started by it.
    """
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        # Not Linux.
        return dict(os.environ)
    texts = (os.fsdecode(entry).partition("=") for entry in entries)
    variables = {name: value for name, _, value in texts if name}
    # glibc modifies the text of its own variable, but Python has a copy.
    whole = {
        name: os.environ.get(name, "") for name in (_TUNABLES,) if name in variables
    }
    return {**variables, **whole}


def _observers(variables: Mapping[str, str]) -> Iterator[str]:
    # Valgrind shows its libraries only to the program itself.
    loaded = f"{variables.get('LD_PRELOAD')} {os.environ.get('LD_PRELOAD')}"
    if "vgpreload_" in loaded:
        yield "valgrind"
    try:
        status = Path("/proc/self/status").read_text("utf-8", "replace")
    except OSError:
        # Not Linux.
        return
    number = status.partition("\nTracerPid:")[2].partition("\n")[0].strip()
    if number not in {"", "0"}:
        try:
            yield Path(f"/proc/{number}/comm").read_text("utf-8", "replace").strip()
        except OSError:
            yield "a debugger"


def _allocator_settings(variables: Mapping[str, str]) -> Iterable[str]:
    settings: dict[str, str] = {}
    value = variables.get("PYTHONMALLOC", "")
    if value not in _USUAL_PYTHONMALLOC and not sys.flags.ignore_environment:
        settings["PYTHONMALLOC"] = value
    for tunable in variables.get(_TUNABLES, "").split(":"):
        if tunable.startswith(_GLIBC_MALLOC):
            name, _, value = tunable.partition("=")
            settings[name] = value
    settings |= {
        name: value
        for name, value in variables.items()
        # MALLOC_CONF is read only by jemalloc.
        if name.startswith("MALLOC_") and name != "MALLOC_CONF"
    }
    return [f"{name}={value}" for name, value in sorted(settings.items())]


def _modes(variables: Mapping[str, str]) -> Iterator[str]:
    if sys.flags.optimize:
        yield "-" + "O" * min(sys.flags.optimize, 2)
    if sys.flags.dev_mode:
        yield "dev mode"
    if hasattr(sys, "gettotalrefcount"):
        yield "debug build"
    if getattr(sys, "is_stack_trampoline_active", bool)():
        yield "perf trampoline"
    # Since Python 3.14.
    jit = getattr(sys, "_jit", None)
    if jit is not None:
        if jit.is_enabled():
            yield "JIT"
    elif variables.get("PYTHON_JIT", "0") != "0" and not sys.flags.ignore_environment:
        # Python 3.13 reports it nowhere else.
        import sysconfig

        if "experimental-jit" in (sysconfig.get_config_var("CONFIG_ARGS") or ""):
            yield "JIT"
