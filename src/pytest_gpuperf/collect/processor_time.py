"""Child processes and other threads, and their processor time, on Linux."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from threading import get_native_id

from pytest_gpuperf.collect.held_file import Files

_TASKS = "/proc/self/task"
_PAGE_BYTES = 4096  # The most that the system returns at once.


def of_threads_ns(native_ids: Iterable[int]) -> int:
    """Return the processor time of some threads of the process [ns]. Ended threads have none."""
    return sum(_ran_ns(f"{_TASKS}/{number}/schedstat") for number in native_ids)


def of_children_ns() -> int | None:
    """Return the processor time of running child processes [ns], or None if all have ended."""
    children = child_pids()
    if not children:
        return None
    folders = [f"/proc/{child}/task" for child in children]
    return sum(_ran_ns(f"{f}/{n}/schedstat") for f in folders for n in _names(f))


def child_pids() -> list[int]:
    """Return the ids of running child processes, or [] if there are none or unknown."""
    texts = [_content(f"{_TASKS}/{thread}/children") for thread in _names(_TASKS)]
    return [int(pid) for pid in b" ".join(texts).split()]


def delay_ns() -> int:
    """Return how long the calling thread could run and had no processor [ns], or 0 if unknown."""
    return _number(f"{_TASKS}/{get_native_id()}/schedstat", 1)


def _ran_ns(path: str) -> int:
    return _number(path, 0)


def _number(path: str, place: int) -> int:
    """Return a number of a file of scheduler statistics, or 0 if there is none."""
    numbers = _content(path).split()
    return int(numbers[place]) if len(numbers) > place else 0


def _names(folder: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)  # noqa: PTH208 - a path of the system, and pathlib is slower
    return []


def _content(path: str) -> bytes:
    """Return a file's content, or b"" if the thread or the process has ended."""
    try:
        descriptor = Files.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        text = part = Files.pread(descriptor, _PAGE_BYTES, 0)
        while part:
            part = Files.pread(descriptor, _PAGE_BYTES, len(text))
            text += part
    except OSError:
        return b""
    else:
        return text
    finally:
        Files.close(descriptor)
