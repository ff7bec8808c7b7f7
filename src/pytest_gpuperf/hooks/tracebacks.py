"""Tracebacks of tests without the frames of the plugin."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.base import is_call_of_the_test
from pytest_gpuperf.errors import GpuPerfError

if TYPE_CHECKING:
    from types import TracebackType

_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_STANDARD = f"{Path(os.__file__).parent}{os.sep}"


def hide_own_frames(error: BaseException) -> None:
    """
    Remove the plugin's frames from a traceback, so that it ends in the user's code.

    An unexpected exception of the plugin keeps all frames, because it is a bug. A
    failed call of the test's function is the test's error even if the traceback ends in
    the plugin, as with wrong arguments or a builtin.

    Args:
        error: The exception that ended a phase of a test. Its traceback is changed.
    """
    frames = frames_of(error)
    hidden: list[bool] = []
    # Frames of the standard library that call the plugin are hidden, too.
    for frame in reversed(frames):
        for_ours = bool(hidden) and hidden[-1] and _is_stdlib(frame)
        hidden.append(for_ours or _is_ours(frame))
    hidden.reverse()
    if isinstance(error, GpuPerfError):
        cause = error.__cause__
        if cause is not None and not any(map(_is_users, frames_of(cause))):
            error.__cause__ = None
            error.__suppress_context__ = True
    else:
        last = max((i for i, frame in enumerate(frames) if _is_ours(frame)), default=-1)
        calls_test = last >= 0 and is_call_of_the_test(frames[last].tb_frame.f_code)
        # The plugin itself may have raised, and not code that it called.
        if not (calls_test or any(map(_is_users, frames[last + 1 :]))):
            return
    shown = [frame for frame, hide in zip(frames, hidden, strict=True) if not hide]
    for frame, following in zip(shown, [*shown[1:], None], strict=True):
        frame.tb_next = following


def frames_of(error: BaseException) -> list[TracebackType]:
    """Return the traceback of an exception as a list, the outermost frame first."""
    frames, traceback = [], error.__traceback__
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    return frames


def _is_users(frame: TracebackType) -> bool:
    return not (_is_ours(frame) or _is_stdlib(frame))


def _is_ours(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_OURS)


def _is_stdlib(frame: TracebackType) -> bool:
    name = frame.tb_frame.f_code.co_filename
    return name.startswith(_STANDARD) and "-packages" not in name
