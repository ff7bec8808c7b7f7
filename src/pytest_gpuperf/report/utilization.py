"""What GPUs were busy with during a test, as lines below its row."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.model.sensors import UtilizationWindow
from pytest_gpuperf.report import display

__all__ = ["utilization_lines"]

_SHOWN = 3  # classes of a line; the rest is one part of it


def utilization_lines(windows: Sequence[UtilizationWindow]) -> list[str]:
    """
    Return a line for each GPU: its score, and where its time went, longest first.

    Args:
        windows: What each GPU did; the GPU is named where there are several.

    Example:
        >>> utilization_lines(
        ...     [
        ...         UtilizationWindow(
        ...             gpu_index=0,
        ...             gpu_uuid="",
        ...             duration_s=2.0,
        ...             reading_count=20,
        ...             class_s={"compute-heavy": 1.5, "idle": 0.5},
        ...             incomplete_s=0.0,
        ...             unobserved_s=0.0,
        ...             real_util=48.2,
        ...             real_util_p50=61.0,
        ...             real_util_p95=64.0,
        ...         )
        ...     ]
        ... )
        ['utilization 48 of 100 (p50 61, p95 64): 75 % compute-heavy, 25 % idle']
    """
    several = len(windows) > 1
    return [_line(window, several=several) for window in windows]


def _line(window: UtilizationWindow, *, several: bool) -> str:
    """Return what one GPU did."""
    head = f"GPU {window.gpu_index} utilization" if several else "utilization"
    if window.reading_count == 0 or window.duration_s <= 0:
        return f"{head} n/a: no reading describes the test"
    parts = ", ".join(_parts(window))
    return f"{head} {_score(window)}: {parts}"


def _score(window: UtilizationWindow) -> str:
    """Return the score with its spread."""
    if window.real_util is None:
        return "n/a"
    ends = {"p50": window.real_util_p50, "p95": window.real_util_p95}
    told = [f"{name} {end:.0f}" for name, end in ends.items() if end is not None]
    spread = f" ({', '.join(told)})" if told else ""
    return f"{window.real_util:.0f} of 100{spread}"


def _parts(window: UtilizationWindow) -> list[str]:
    """Return where the time went: the longest classes, the others, what is not known."""
    ordered = sorted(window.class_s.items(), key=lambda each: (-each[1], each[0]))
    shown, rest = ordered[:_SHOWN], ordered[_SHOWN:]
    seconds = [(display.escape(label), part_s) for label, part_s in shown]
    seconds.append((f"{len(rest)} other classes", sum(part_s for _, part_s in rest)))
    seconds.append(("without SM, tensor or DRAM activity", window.incomplete_s))
    seconds.append(("not observed", window.unobserved_s))
    return [
        f"{_percent(part_s / window.duration_s)} {what}"
        for what, part_s in seconds
        if part_s > 0
    ]


def _percent(share: float) -> str:
    """Return a share in whole percent; what is above none is never shown as none."""
    return "under 1 %" if share < 0.01 else f"{share * 100:.0f} %"  # noqa: PLR2004 - 1 %
