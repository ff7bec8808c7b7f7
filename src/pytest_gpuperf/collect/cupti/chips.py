"""Which chips there are, by name and by compute capability."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.cupti import nvperf
from pytest_gpuperf.collect.cupti.nvperf import MetricType
from pytest_gpuperf.collect.devices import (
    ORDER_REMEDY,
    UNORDERED,
    choose_device,
    order_is_known,
    query_devices,
    target_capability,
)
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.model.counters import ChipEntry

if TYPE_CHECKING:
    from pytest_gpuperf.collect.devices import DeviceQuery
    from pytest_gpuperf.model.environment import Device

__all__ = [
    "CAPABILITIES",
    "chip_entries",
    "chip_here",
    "chip_measured",
    "chip_named",
    "chip_of_capability",
]

# "CUDA GPU Compute Capability" (developer.nvidia.com) with the chips of the boards there;
# of GB10C, GB20C and GR100 we read no source.
CAPABILITIES = {
    (7, 5): ("TU102", "TU104", "TU106", "TU116", "TU117"),
    (8, 0): ("GA100",),
    (8, 6): ("GA102", "GA103", "GA104", "GA106", "GA107"),
    (8, 7): ("GA10B",),
    (8, 9): ("AD102", "AD103", "AD104", "AD106", "AD107"),
    (9, 0): ("GH100",),
    (10, 0): ("GB100", "GB102"),
    (10, 3): ("GB110", "GB112"),
    (11, 0): ("GB10B",),
    (12, 0): ("GB202", "GB203", "GB205", "GB206", "GB207"),
    (12, 1): ("GB20B",),
}
_SUGGESTED = 3  # as many as difflib suggests by itself


def chip_entries(source: nvperf.Library | None = None) -> tuple[ChipEntry, ...]:
    """
    Return every chip whose metrics are known, oldest first.

    Args:
        source: The library to ask; None: the installed one.
    """
    asked = source or nvperf.load()
    of_chip = {chip: pair for pair, chips in CAPABILITIES.items() for chip in chips}
    return tuple(
        ChipEntry(
            name=chip,
            capability=of_chip.get(chip),
            counter_count=len(evaluator.names(MetricType.COUNTER)),
            ratio_count=len(evaluator.names(MetricType.RATIO)),
            throughput_count=len(evaluator.names(MetricType.THROUGHPUT)),
        )
        for chip in asked.chips()
        for evaluator in (nvperf.evaluator(chip, asked),)
    )


def chip_measured(
    query: DeviceQuery, asked: str | None, environment: Mapping[str, str]
) -> str | None:
    """
    Return the chip of the GPU that tests are to run on; None: there is none.

    Args:
        query: The GPUs of this machine.

        asked: What --gpuperf-device says.

        environment: This process's variables.

    Raises:
        ConfigError: There is no such GPU, or it is not known which one or which chip
            it is.
    """
    device = choose_device(query, asked, environment).device
    if device is None:
        return None
    if asked is None and not order_is_known(query, environment):
        remedy = f"{ORDER_REMEDY}, or name the chip: --gpuperf-chip=GH100"
        raise ConfigError(UNORDERED, remedy=remedy)
    # a part of a GPU that is split has the chip of the whole
    whole = (each for each in query.devices if each.index == device.index)
    known = [each for each in (device, *whole) if each.compute_capability is not None]
    if not known:
        message = f"NVML does not say the compute capability of GPU {device.index}"
        raise ConfigError(message, remedy="name its chip: --gpuperf-chip=GH100")
    return chip_here(known)


def chip_named(text: str, source: nvperf.Library | None = None) -> str:
    """
    Return a chip by its name in any case, or by a compute capability.

    Args:
        text: `GH100`, `gh100`, or `sm_90`, where the chips of that capability have the
            same metrics.

        source: The library to ask; None: the installed one.

    Raises:
        ConfigError: There is no such chip, or several that differ.
    """
    asked = source or nvperf.load()
    known = asked.chips()
    named = {chip.casefold(): chip for chip in known}.get(text.strip().casefold())
    if named is not None:
        return named
    capability = target_capability(text.strip().casefold())
    if capability is None:
        close = difflib.get_close_matches(text.upper(), known, n=_SUGGESTED)
        meant = f"did you mean {', '.join(close)}; " if close else ""
        message = f"{text!r} is not a chip that the installed libnvperf_host knows"
        remedy = f"{meant}write one of gpuperf metrics chips, or sm_90"
        raise ConfigError(message, remedy=remedy)
    return chip_of_capability(capability, asked)


def chip_here(devices: Sequence[Device] | None = None) -> str | None:
    """
    Return the chip of this machine's first GPU; None: there is none.

    Args:
        devices: The GPUs; None: those that NVML knows.

    Raises:
        ConfigError: Its compute capability stands for no chip, or for several.
    """
    known = query_devices().devices if devices is None else devices
    found = next((each.compute_capability for each in known), None)
    return None if found is None else chip_of_capability(found)


def chip_of_capability(
    capability: tuple[int, int], source: nvperf.Library | None = None
) -> str:
    """
    Return the chip that stands for a compute capability.

    Args:
        capability: Major and minor number.

        source: The library to ask; None: the installed one.

    Raises:
        ConfigError: No chip has it, or several that do not have the same metrics.
    """
    asked = source or nvperf.load()
    chips = [c for c in CAPABILITIES.get(capability, ()) if c in asked.chips()]
    spelled = f"sm_{capability[0]}{capability[1]}"
    if not chips:
        message = f"no chip of {spelled} is known to the installed libnvperf_host"
        raise ConfigError(message, remedy="see gpuperf metrics chips")
    evaluators = [nvperf.evaluator(chip, asked) for chip in chips]
    if any(len({each.names(kind) for each in evaluators}) > 1 for kind in MetricType):
        message = f"the chips of {spelled} do not have the same metrics"
        raise ConfigError(message, remedy=f"name one: {', '.join(chips)}")
    return chips[0]
