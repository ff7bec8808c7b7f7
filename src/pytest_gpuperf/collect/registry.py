"""The collectors of a run, and the reasons for unused collectors."""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Collection, Mapping
from types import MappingProxyType

from pytest_gpuperf.collect.binary.tools import CUOBJDUMP, find_tool
from pytest_gpuperf.collect.devices import query_devices
from pytest_gpuperf.collect.environment import installed
from pytest_gpuperf.errors import CollectorUnavailableError, ConfigError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.run import HeaderNote
from pytest_gpuperf.model.sample import COLLECTORS, Source

# Timers of the device, best first.
DEVICE_TIMERS = (Source.CUPTI, Source.EVENTS)
# Collectors that need a GPU.
DEVICE_COLLECTORS = (*DEVICE_TIMERS, Source.NVML)


class Choice(Frozen, frozen=True, kw_only=True):
    """
    The collectors of a run.

    Attributes:
        collectors: Names of model.sample.COLLECTORS, best first.

        notes: A note for each collector that is not used, in the same order, a note for
            everything else that was lost, and a note for the device.
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
    Return the reasons that collectors cannot be used in the process, by name.

    Nothing is imported or tried. Another holder of CUPTI is detected only at the first
    use.

    Args:
        replaying: Whether a recorded run was requested.

        no_device_reason: The reason that there is no GPU, or None if there is a GPU.
    """
    absent: dict[str, Gap] = {}
    if no_device_reason is not None:
        no_device = Gap(
            code=GapCode.NO_DEVICE,
            reason=f"there is no GPU: {no_device_reason}",
            remedy="run it on a machine with a GPU",
        )
        absent.update(dict.fromkeys(DEVICE_COLLECTORS, no_device))
    else:
        from pytest_gpuperf.collect.cupti.subscription import attached_tool, missing

        absence = attached_tool(os.environ) or missing()
        if absence is not None:
            absent[Source.CUPTI] = absence
    if not replaying:
        absent[Source.REPLAY] = Gap(
            code=GapCode.NOT_ASKED,
            reason="no recorded run was named",
            remedy="name one with --gpuperf-replay",
        )
    lacking = [
        package
        for package, module in (("ncu-report", "ncu_report"), ("nvtx", "nvtx"))
        if installed(module) is None
    ]
    if "ncu-report" in lacking:
        absent[Source.NCU_REPORT] = _not_installed("ncu-report")
    if shutil.which("ncu") is None:
        absent[Source.NCU] = Gap(
            code=GapCode.NOT_INSTALLED,
            reason="there is no ncu on PATH",
            remedy="install Nsight Compute and put the folder of ncu on PATH",
        )
    elif lacking:
        absent[Source.NCU] = _not_installed(*lacking)
    try:
        find_tool(CUOBJDUMP)
    except CollectorUnavailableError as error:
        absent[Source.BINARY] = Gap.of(error)
    return absent


def still_absent(absent: Mapping[str, Gap], used: Collection[str]) -> dict[str, Gap]:
    """
    Return the reasons for unused collectors, without collectors that gave values.

    A device that is not NVIDIA's is detected only when it is used.

    Args:
        absent: The reason that a collector was not expected to work, by name.

        used: The sources of the measured values.
    """
    return {name: why for name, why in absent.items() if name not in used}


def _not_installed(*packages: str) -> Gap:
    several = len(packages) > 1
    listed = " and ".join(packages)
    return Gap(
        code=GapCode.NOT_INSTALLED,
        reason=f"the package{'s' * several} {listed} {'are' if several else 'is'} not "
        "installed",
        remedy='pip install "pytest-gpuperf[ncu]"',
    )


def choose(
    names: tuple[str, ...],
    *,
    absent: Mapping[str, Gap],
    lost: Mapping[str, Gap] = MappingProxyType({}),
    device_name: str | None = None,
    device_reason: str = "",
) -> Choice:
    """
    Choose the collectors of a run.

    Args:
        names: The names of `--gpuperf-collectors`. Empty or `("auto",)` selects every
            collector that can be used.

        absent: The reason that a collector cannot be used, by name. All others can be
            used.

        lost: The reason that a collector failed at its first use, by name, for example
            because another tool holds CUPTI. A name that is not a collector gets a
            sentence, too.

        device_name: The name of the GPU, or None if there is none.

        device_reason: The reason that there is no GPU, as a fragment.

    Raises:
        ConfigError: Names are unknown (the message lists all of them), or names exclude
            each other.

        CollectorUnavailableError: A requested collector cannot be used.
    """
    requested = _checked(names, absent)
    usable = tuple(name for name in COLLECTORS if name not in {*absent, *lost})
    if requested:
        used = tuple(name for name in COLLECTORS if name in requested.difference(lost))
    else:
        used = (Source.REPLAY,) if Source.REPLAY in usable else usable
    reasons: dict[str, Gap | None] = {
        **(dict.fromkeys(COLLECTORS) if requested else absent),
        **lost,
    }
    other_losses = [name for name in lost if name not in COLLECTORS]
    notes = []
    for name in (*COLLECTORS, *other_losses):
        if name in used:
            continue
        gap, code = reasons.get(name), GapCode.NOT_ASKED
        if gap is not None:
            why, code = gap.text, gap.code
        elif name in reasons:
            why = "not requested"
        else:
            why = f"not needed with {', '.join(used)}"
        notes.append(HeaderNote(about=name, text=f"{name}: {why}", code=code))
    notes.append(_device_note(used, device_name, device_reason))
    return Choice(collectors=used, notes=tuple(notes))


def refusals(names: tuple[str, ...]) -> list[str]:
    """
    Return the reasons that requested collectors cannot be used, or [].

    The GPU is queried only if a requested collector needs a GPU.
    """
    no_device_reason = None
    if not frozenset(DEVICE_COLLECTORS).isdisjoint(names):
        query = query_devices()
        no_device_reason = None if query.devices else query.reason
    absent = absent_collectors(replaying=False, no_device_reason=no_device_reason)
    if Source.EVENTS in absent and installed("torch") is not None:
        # torch may use a device that NVML does not list.
        del absent[Source.EVENTS]
    try:
        choose(names, absent=absent)
    except (CollectorUnavailableError, ConfigError) as error:
        return [f"--gpuperf-collectors: {error}"]
    return []


def _checked(requested: tuple[str, ...], absent: Mapping[str, Gap]) -> frozenset[str]:
    """Return the requested names, or an empty set for all usable collectors."""
    names = frozenset(requested) - {"auto"}
    unknown = sorted(names.difference(COLLECTORS))
    if unknown:
        close = {
            match
            for name in unknown
            for match in difflib.get_close_matches(name, COLLECTORS, n=1, cutoff=0.5)
        }
        guess = f"did you mean {', '.join(sorted(close))}; " if close else ""
        raise ConfigError(
            f"unknown collector {', '.join(repr(name) for name in unknown)}",
            remedy=f"{guess}choose from auto, {', '.join(COLLECTORS)}",
        )
    if "auto" in requested and names:
        message = f"auto cannot be combined with {', '.join(sorted(names))}"
        raise ConfigError(message, remedy="give either auto or the collectors' names")
    if Source.REPLAY in names and len(names) > 1:
        message = f"{Source.REPLAY} cannot be combined with other collectors"
        remedy = f"give {Source.REPLAY} alone, or leave --gpuperf-replay out"
        raise ConfigError(message, remedy=remedy)
    missing = [name for name in COLLECTORS if name in names and name in absent]
    if missing:
        message = "; ".join(
            f"collector {name} cannot be used: {absent[name].reason}"
            for name in missing
        )
        remedies = [*dict.fromkeys(absent[name].remedy for name in missing)]
        remedies[-1] += (
            f", or leave {' and '.join(missing)} out of --gpuperf-collectors"
        )
        raise CollectorUnavailableError(message, remedy="; ".join(remedies))
    return names


def _device_note(
    used: tuple[str, ...], device_name: str | None, device_reason: str
) -> HeaderNote:
    timers = [name for name in DEVICE_TIMERS if name in used]
    code = None
    if Source.REPLAY in used:
        text = "GPU: not used, a recorded run is replayed"
    elif device_name is None and not timers:
        code = GapCode.NO_DEVICE
        text = (
            f"CPU only: {device_reason or 'no GPU was found'}; times are the host's, and no"
            " cache is emptied"
        )
    elif device_name is None:
        text = "GPU: one that NVML does not know; times are the device's own"
    elif timers:
        text = (
            f"{device_name}: times are the device's own, by {timers[0]}, and the host's"
            " too"
        )
    else:
        text = (
            f"{device_name}: times are the host's, from the call to the device's"
            " synchronisation"
        )
    return HeaderNote(about="gpu", text=text, code=code)
