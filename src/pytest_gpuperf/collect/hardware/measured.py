"""Peaks that were measured on this user's GPUs, kept between runs.

One JSON file a user. A peak belongs to one GPU under one driver: another driver's are not
read, and measuring again replaces them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_gpuperf.errors import CaptureFormatError, CollectError
from pytest_gpuperf.model.device import Device
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.roofline import LEVELS
from pytest_gpuperf.model.work import DTYPE_BYTES

__all__ = ["FILE_VARIABLE", "KeptPeaks", "keep_peaks", "kept_peaks", "peaks_file"]

FILE_VARIABLE = "GPUPERF_PEAKS"
_SCHEMA = "pytest-gpuperf/peaks/1"
_FIELDS = frozenset({*LEVELS, *DTYPE_BYTES})


class KeptPeaks(Frozen, frozen=True, kw_only=True):
    """
    What was measured of one GPU before.

    Attributes:
        values: B/s by level of memory, FLOP/s by data type; empty: nothing.

        reason: Why there is nothing, where something was expected; "" else.
    """

    values: Mapping[str, float] = {}
    reason: str = ""


def peaks_file() -> Path:
    """Return where measured peaks are kept: $GPUPERF_PEAKS, or the user's cache folder."""
    named = os.environ.get(FILE_VARIABLE)
    if named:
        return Path(named)
    from platformdirs import user_cache_path

    return user_cache_path("pytest-gpuperf", appauthor=False) / "peaks.json"


def kept_peaks(device: Device, file: Path | None = None) -> KeptPeaks:
    """
    Return what was measured of a GPU under the driver that it has now.

    Args:
        device: The GPU.

        file: Where to look; None: the user's file.

    Returns:
        The values; none, with the reason, where the file is no such file or another
        driver was measured.
    """
    file = file or peaks_file()
    try:
        entry = _read(file).get(device.uuid)
    except CollectError as error:
        return KeptPeaks(reason=error.message)
    if entry is None:
        return KeptPeaks()
    if entry["driver"] != device.driver_version:
        reason = (
            f"{file}: peaks of this GPU were measured with driver {entry['driver']}, "
            f"it has {device.driver_version} now"
        )
        return KeptPeaks(reason=reason)
    return KeptPeaks(values=entry["values"])


def keep_peaks(
    device: Device, values: Mapping[str, float], file: Path | None = None
) -> Path:
    """
    Keep what was measured of a GPU in place of what was known of it; return the file.

    Args:
        device: The GPU.

        values: B/s by level of memory, FLOP/s by data type.

        file: Where to keep it; None: the user's file.

    Raises:
        CollectError: The file cannot be written, or holds something else.
    """
    file = file or peaks_file()
    entries = _read(file)
    entries[device.uuid] = {
        "driver": device.driver_version,
        "name": device.name,
        "values": dict(values),
    }
    text = json.dumps({"schema": _SCHEMA, "gpus": entries}, indent=1, sort_keys=True)
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(file)  # whole, or not at all
    except OSError as error:
        with contextlib.suppress(OSError):  # what could not be made may not be removed
            temporary.unlink()
        message = f"{file}: it cannot be written ({error.strerror})"
        raise CollectError(
            message, remedy=f"name another by {FILE_VARIABLE}"
        ) from error
    return file


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """
    Return the entries of a file by UUID; nothing where there is no file.

    Raises:
        CollectError: It cannot be read, or is no such file.
    """
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        message = f"{file}: it cannot be read ({error.strerror})"
        raise CollectError(message, remedy="check its permissions") from error
    remedy = f"remove it, or name another by {FILE_VARIABLE}"
    try:
        loaded = json.loads(text)
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are
        raise CaptureFormatError("not JSON", remedy=remedy, path=str(file)) from error
    if not _is_ours(loaded):
        raise CaptureFormatError(
            "no file of measured peaks", remedy=remedy, path=str(file)
        )
    entries: dict[str, dict[str, Any]] = loaded["gpus"]
    return entries


def _is_ours(loaded: object) -> bool:
    """Return whether a file is what `keep_peaks` writes, down to each value."""
    if not isinstance(loaded, dict) or loaded.get("schema") != _SCHEMA:
        return False
    gpus = loaded.get("gpus")
    return isinstance(gpus, dict) and all(map(_is_entry, gpus.values()))


def _is_entry(entry: object) -> bool:
    """Return whether the entry of a GPU is whole."""
    if not isinstance(entry, dict) or "driver" not in entry:
        return False
    values = entry.get("values")
    return isinstance(values, dict) and all(
        name in _FIELDS and isinstance(value, (int, float)) and 0 < value < math.inf
        for name, value in values.items()
    )
