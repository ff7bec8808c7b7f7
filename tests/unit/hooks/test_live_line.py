"""hooks.progress.LiveLine: how far a long measurement is, where a person looks on."""

from __future__ import annotations

from fakes.clock import FakeClock
from pytest_gpuperf.hooks.progress import LiveLine

SECOND_NS = 10**9


def written(*pauses_s: float, room: int = 80) -> list[str]:
    """Return what is written of a test that takes samples after some pauses."""
    texts: list[str] = []
    clock = FakeClock()
    line = LiveLine(clock, texts.append, lambda: room)
    line.begin()
    for pause_s in pauses_s:
        clock.advance(int(pause_s * SECOND_NS))
        line.sampled()
    line.end()
    return texts


def test_a_short_measurement_writes_nothing() -> None:
    """However many samples it has."""
    assert written(*[0.1] * 19) == []


def test_a_long_one_says_how_far_it_is_once_a_second() -> None:
    """The cursor goes back, and the line is taken back at the end."""
    assert written(1.5, 0.5, 0.5, 0.5, 9) == [
        "\x1b7 measuring, sample 2, 2 s\x1b[K\x1b8",
        "\x1b7 measuring, sample 4, 3 s\x1b[K\x1b8",
        "\x1b7 measuring, sample 5, 12 s\x1b[K\x1b8",
        "\x1b[K",
    ]


def test_the_line_never_breaks() -> None:
    """What has no room is cut, and hardly any room is none."""
    assert written(3, room=20)[0] == "\x1b7 measuring, sample 1,\x1b[K\x1b8"[:2] + (
        " measuring, sample 1"[:20] + "\x1b[K\x1b8"
    )
    assert written(3, room=19) == ["\x1b[K"]
