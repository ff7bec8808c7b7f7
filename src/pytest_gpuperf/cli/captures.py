"""A capture as JSON, with what its counters say."""

from __future__ import annotations

import msgspec

from pytest_gpuperf.cli.output import CAPTURE_START
from pytest_gpuperf.collect.ncu.launches import CapturedLaunch
from pytest_gpuperf.measure.captured import details
from pytest_gpuperf.model.metric import METRICS

__all__ = ["capture_json"]


class _RawRange(msgspec.Struct):
    launches: list[msgspec.Raw]


class _Document(msgspec.Struct):
    """A capture as its reader wrote it, the launches not decoded."""

    ranges: list[_RawRange]


def capture_json(text: bytes, places: set[tuple[int, int]] | None = None) -> bytes:
    """
    Return a capture with what its counters say.

    Args:
        text: The capture, as its reader wrote it.

        places: The range and index of the launches that are wanted; None: all.
    """
    decoder = msgspec.json.Decoder(CapturedLaunch)
    ranges = []
    for number, section in enumerate(msgspec.json.decode(text, type=_Document).ranges):
        launches = []
        for raw in section.launches:
            launch = decoder.decode(raw)
            if places is None or (number, launch.index) in places:
                launches.append(_explained(bytes(raw), launch))
        ranges.append(b'{"launches":[%b]}' % b",".join(launches))
    return CAPTURE_START + b'"ranges":[%b]}\n' % b",".join(ranges)


def _explained(raw: bytes, launch: CapturedLaunch) -> bytes:
    """Return a launch's object with what its counters say behind them."""
    if not launch.measured:
        return raw[:-1] + b',"analysis":null,"derived":{}}'
    explained = details(launch)
    added = {
        "analysis": explained.analysis,
        "derived": {
            name: {"value": value, "unit": METRICS[name].unit}
            for name, value in explained.derived.items()
        },
        "clocks": {
            "sm_hz": explained.values.get("sm_clock_hz"),
            "dram_hz": explained.values.get("dram_clock_hz"),
            "rated_hz": explained.rated_clock_hz,
        },
        "rooflines": explained.rooflines,
    }
    return raw[:-1] + b"," + msgspec.json.encode(added)[1:]
