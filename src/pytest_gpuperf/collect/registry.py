"""Which collectors a run uses, and a sentence for each that it does not; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping

from pytest_gpuperf.collect.binary.cuobjdump import find_cuobjdump
from pytest_gpuperf.config import COLLECTORS
from pytest_gpuperf.errors import CollectorUnavailableError, ConfigError
from pytest_gpuperf.model.frozen import Frozen

__all__ = ["Absence", "Choice", "absent_collectors", "choose"]

_ALONE = "replay"  # a kept run holds every reading: nothing is measured beside it


class Absence(Frozen, frozen=True, kw_only=True):
    """
    Why a collector cannot be used.

    Attributes:
        reason: A fragment, as "no recorded run was named".

        remedy: One imperative sentence without its full stop.
    """

    reason: str
    remedy: str


class Choice(Frozen, frozen=True, kw_only=True):
    """
    What a run measures with.

    Attributes:
        collectors: Names of config.COLLECTORS, best first.

        sentences: One for each collector that is not taken, in the same order, then one
            for the device.
    """

    collectors: tuple[str, ...]
    sentences: tuple[str, ...]


def absent_collectors(*, replaying: bool) -> dict[str, Absence]:
    """
    Return why collectors cannot be used in this process, by name; nothing is imported.

    Args:
        replaying: Whether a kept run was named.
    """
    absent: dict[str, Absence] = {}
    if not replaying:
        absent["replay"] = Absence(
            reason="no kept run was named", remedy="name one with --gpuperf-replay"
        )
    if importlib.util.find_spec("ncu_report") is None:
        absent["ncu-report"] = Absence(
            reason="the package ncu-report is not installed",
            remedy='pip install "pytest-gpuperf[ncu]"',
        )
    try:
        find_cuobjdump()
    except CollectorUnavailableError as error:
        absent["binary"] = Absence(reason=error.message, remedy=error.remedy)
    return absent


def choose(
    asked: tuple[str, ...],
    *,
    absent: Mapping[str, Absence],
    device_name: str | None = None,
    device_reason: str = "",
) -> Choice:
    """
    Return the collectors of a run.

    Args:
        asked: Names as `--gpuperf-collectors` gave them; empty or `("auto",)`: take what
            is there.

        absent: Why a collector cannot be used, by its name; what is not in it can.

        device_name: The GPU's; None: there is none.

        device_reason: Why there is no GPU, as a fragment.

    Raises:
        ConfigError: A name is unknown (all of them are named), or names exclude each
            other.

        CollectorUnavailableError: A collector that was asked for cannot be used.
    """
    wanted = _wanted(asked)
    usable = tuple(name for name in COLLECTORS if name not in absent)
    if wanted:
        _refuse_absent(wanted, absent)
        taken = tuple(name for name in COLLECTORS if name in wanted)
    else:
        taken = (_ALONE,) if _ALONE in usable else usable
    sentences = [
        _sentence(name, taken, absent, by_name=bool(wanted))
        for name in COLLECTORS
        if name not in taken
    ]
    sentences.append(_device_sentence(taken, device_name, device_reason))
    return Choice(collectors=taken, sentences=tuple(sentences))


def _wanted(asked: tuple[str, ...]) -> frozenset[str]:
    """Return the names that were asked for, checked; empty: whatever is there."""
    names = frozenset(asked) - {"auto"}
    unknown = sorted(names.difference(COLLECTORS))
    if unknown:
        raise _unknown_error(unknown)
    if "auto" in asked and names:
        message = f"auto and {', '.join(sorted(names))} were both asked for"
        raise ConfigError(
            message, remedy="give auto alone, or the collectors by their names"
        )
    if _ALONE in names and len(names) > 1:
        message = f"{_ALONE} cannot be used beside other collectors"
        raise ConfigError(
            message, remedy=f"ask for {_ALONE} alone, or leave --gpuperf-replay out"
        )
    return names


def _unknown_error(unknown: list[str]) -> ConfigError:
    """Return an error that names every unknown collector and what comes close."""
    close = {
        match
        for name in unknown
        for match in difflib.get_close_matches(name, COLLECTORS, n=1, cutoff=0.5)
    }
    guess = f"did you mean {', '.join(sorted(close))}; " if close else ""
    return ConfigError(
        f"unknown collector {', '.join(repr(name) for name in unknown)}",
        remedy=f"{guess}choose from auto, {', '.join(COLLECTORS)}",
    )


def _refuse_absent(wanted: frozenset[str], absent: Mapping[str, Absence]) -> None:
    """Raise for the collectors that were asked for and cannot be used."""
    missing = [name for name in COLLECTORS if name in wanted and name in absent]
    if not missing:
        return
    message = "; ".join(
        f"collector {name} cannot be used: {absent[name].reason}" for name in missing
    )
    remedies = dict.fromkeys(absent[name].remedy for name in missing)
    raise CollectorUnavailableError(message, remedy="; ".join(remedies))


def _sentence(
    name: str,
    taken: tuple[str, ...],
    absent: Mapping[str, Absence],
    *,
    by_name: bool,
) -> str:
    """Return why a collector is not used."""
    if by_name:
        return f"{name}: not asked for"
    if name in absent:
        return f"{name}: {absent[name].reason}; {absent[name].remedy}"
    return f"{name}: not needed beside {', '.join(taken)}"


def _device_sentence(
    taken: tuple[str, ...], device_name: str | None, device_reason: str
) -> str:
    """Return what the run has to do with a GPU, and with its caches."""
    if _ALONE in taken:
        return "GPU: not used, a recorded run is replayed"
    if device_name is None:
        return (
            f"no GPU: {device_reason or 'none was found'}; times are the host's, caches"
            " as they come"
        )
    return (
        f"{device_name}: there, but this version times on the host, from the call to the"
        " device's synchronisation"
    )
