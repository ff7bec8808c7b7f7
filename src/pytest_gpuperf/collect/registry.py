"""Which collectors a run uses, and a sentence for each that it does not."""

from __future__ import annotations

import difflib
import importlib.util
import os
import shutil
from collections.abc import Collection, Mapping
from types import MappingProxyType

from pytest_gpuperf.collect.binary.tools import CUOBJDUMP, find_tool
from pytest_gpuperf.collect.devices import query_devices
from pytest_gpuperf.config import COLLECTORS
from pytest_gpuperf.errors import CollectorUnavailableError, ConfigError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.run import HeaderNote

__all__ = [
    "DEVICE_COLLECTORS",
    "DEVICE_TIMERS",
    "Choice",
    "absent_collectors",
    "choose",
    "refusals",
    "still_absent",
]

_ALONE = "replay"  # a kept run holds every reading: nothing is measured beside it
DEVICE_TIMERS = ("cupti", "events")  # what times the device's side, the best first
DEVICE_COLLECTORS = (*DEVICE_TIMERS, "nvml")  # what has nothing to see without a GPU


class Choice(Frozen, frozen=True, kw_only=True):
    """
    What a run measures with.

    Attributes:
        collectors: Names of config.COLLECTORS, best first.

        notes: One for each collector that is not taken, in the same order, for what
            else was lost, then one for the device.
    """

    collectors: tuple[str, ...]
    notes: tuple[HeaderNote, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """The texts of the notes."""
        return tuple(note.text for note in self.notes)


def absent_collectors(
    *, replaying: bool, no_device_reason: str | None = None
) -> dict[str, Gap]:
    """
    Return why collectors cannot be used in this process, by name.

    Nothing is imported or tried: what holds CUPTI shows when it is asked for.

    Args:
        replaying: Whether a kept run was named.

        no_device_reason: Why there is no GPU; None: there is one.
    """
    absent = _absent_device_collectors(no_device_reason)
    if not replaying:
        absent["replay"] = Gap(
            code=GapCode.NOT_ASKED,
            reason="no kept run was named",
            remedy="name one with --gpuperf-replay",
        )
    lacking = [
        package
        for package, module in (("ncu-report", "ncu_report"), ("nvtx", "nvtx"))
        if importlib.util.find_spec(module) is None
    ]
    if "ncu-report" in lacking:
        absent["ncu-report"] = _not_installed("ncu-report")
    if shutil.which("ncu") is None:
        absent["ncu"] = Gap(
            code=GapCode.NOT_INSTALLED,
            reason="there is no ncu on PATH",
            remedy="install Nsight Compute and put the folder of ncu on PATH",
        )
    elif lacking:
        absent["ncu"] = _not_installed(*lacking)
    try:
        find_tool(CUOBJDUMP)
    except CollectorUnavailableError as error:
        absent["binary"] = Gap.of(error)
    return absent


def _absent_device_collectors(no_device_reason: str | None) -> dict[str, Gap]:
    """Return why collectors of the device cannot be used, by name."""
    if no_device_reason is not None:
        nothing = Gap(
            code=GapCode.NO_DEVICE,
            reason=f"there is no GPU: {no_device_reason}",
            remedy="run it where there is one",
        )
        return dict.fromkeys(DEVICE_COLLECTORS, nothing)
    from pytest_gpuperf.collect.cupti.presence import attached_tool, missing

    absence = attached_tool(os.environ) or missing()
    return {} if absence is None else {"cupti": absence}


def still_absent(absent: Mapping[str, Gap], used: Collection[str]) -> dict[str, Gap]:
    """
    Return why collectors are not used, without those that have given values.

    A device that is not NVIDIA's shows only when it is in use.

    Args:
        absent: Why a collector was not expected to be of use, by its name.

        used: Sources of what was measured.
    """
    return {name: why for name, why in absent.items() if name not in used}


def _not_installed(*packages: str) -> Gap:
    """Return the absence of a collector whose packages are not there."""
    several = len(packages) > 1
    listed = " and ".join(packages)
    return Gap(
        code=GapCode.NOT_INSTALLED,
        reason=f"the package{'s' * several} {listed} {'are' if several else 'is'} not "
        "installed",
        remedy='pip install "pytest-gpuperf[ncu]"',
    )


def choose(
    asked: tuple[str, ...],
    *,
    absent: Mapping[str, Gap],
    lost: Mapping[str, Gap] = MappingProxyType({}),
    device_name: str | None = None,
    device_reason: str = "",
) -> Choice:
    """
    Return the collectors of a run.

    Args:
        asked: Names as `--gpuperf-collectors` gave them; empty or `("auto",)`: take what
            is there.

        absent: Why a collector cannot be used, by its name; what is not in it can.

        lost: Why one that was there could not be used after all, by its name: as when
            another tool holds CUPTI; what is no collector has a sentence too.

        device_name: The GPU's; None: there is none.

        device_reason: Why there is no GPU, as a fragment.

    Raises:
        ConfigError: A name is unknown (all of them are named), or names exclude each
            other.

        CollectorUnavailableError: A collector that was asked for cannot be used.
    """
    wanted = _wanted(asked)
    usable = tuple(name for name in COLLECTORS if name not in {*absent, *lost})
    if wanted:
        _refuse_absent(wanted, absent)
        taken = tuple(name for name in COLLECTORS if name in wanted.difference(lost))
    else:
        taken = (_ALONE,) if _ALONE in usable else usable
    known = {**(dict.fromkeys(COLLECTORS) if wanted else absent), **lost}
    beside = [name for name in lost if name not in COLLECTORS]
    notes = [
        _note(name, taken, known)
        for name in (*COLLECTORS, *beside)
        if name not in taken
    ]
    notes.append(_device_note(taken, device_name, device_reason))
    return Choice(collectors=taken, notes=tuple(notes))


def refusals(asked: tuple[str, ...]) -> list[str]:
    """
    Return why collectors that a person asked for cannot be used; empty: they can.

    The GPU is looked for only where one of them needs it.
    """
    no_device_reason = None
    if not frozenset(DEVICE_COLLECTORS).isdisjoint(asked):
        query = query_devices()
        no_device_reason = None if query.devices else query.reason
    absent = absent_collectors(replaying=False, no_device_reason=no_device_reason)
    if "events" in absent and importlib.util.find_spec("torch") is not None:
        del absent["events"]  # it may come to use a device that NVML does not know
    try:
        choose(asked, absent=absent)
    except (CollectorUnavailableError, ConfigError) as error:
        return [f"--gpuperf-collectors: {error}"]
    return []


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


def _refuse_absent(wanted: frozenset[str], absent: Mapping[str, Gap]) -> None:
    """Raise for the collectors that were asked for and cannot be used."""
    missing = [name for name in COLLECTORS if name in wanted and name in absent]
    if not missing:
        return
    message = "; ".join(
        f"collector {name} cannot be used: {absent[name].reason}" for name in missing
    )
    remedies = dict.fromkeys(absent[name].remedy for name in missing)
    raise CollectorUnavailableError(message, remedy="; ".join(remedies))


def _note(
    name: str, taken: tuple[str, ...], known: Mapping[str, Gap | None]
) -> HeaderNote:
    """Return why a collector is not used; None in `known`: nobody asked for it."""
    if name not in known:
        text = f"{name}: not needed beside {', '.join(taken)}"
        return HeaderNote(about=name, text=text)
    gap = known[name]
    if gap is None:
        text = f"{name}: not asked for"
        return HeaderNote(about=name, text=text, code=GapCode.NOT_ASKED)
    text = f"{name}: {gap.reason}; {gap.remedy}"
    return HeaderNote(about=name, text=text, code=gap.code)


def _device_note(
    taken: tuple[str, ...], device_name: str | None, device_reason: str
) -> HeaderNote:
    """Return what the run has to do with a GPU."""
    text = _device_sentence(taken, device_name, device_reason)
    code = GapCode.NO_DEVICE if _is_without(taken, device_name) else None
    return HeaderNote(about="gpu", text=text, code=code)


def _is_without(taken: tuple[str, ...], device_name: str | None) -> bool:
    """Return whether a run used no GPU and replayed none."""
    timed = not frozenset(DEVICE_TIMERS).isdisjoint(taken)
    return device_name is None and not timed and _ALONE not in taken


def _device_sentence(
    taken: tuple[str, ...], device_name: str | None, device_reason: str
) -> str:
    """Return what the run has to do with a GPU, and with its caches."""
    if _ALONE in taken:
        return "GPU: not used, a recorded run is replayed"
    if _is_without(taken, device_name):
        return (
            f"no GPU: {device_reason or 'none was found'}; times are the host's, caches"
            " as they come"
        )
    if device_name is None:
        return "GPU: one that NVML does not know; times are the device's own"
    timers = [name for name in DEVICE_TIMERS if name in taken]
    if timers:
        return (
            f"{device_name}: times are the device's own, by {timers[0]}, and the host's"
            " beside them"
        )
    return (
        f"{device_name}: times are the host's, from the call to the device's"
        " synchronisation"
    )
