"""How long a process under Nsight Compute may take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.config import NcuReplay
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.report.display import plural

if TYPE_CHECKING:
    from pytest_gpuperf.config import Config
    from pytest_gpuperf.model.catalogue import PassCost
    from pytest_gpuperf.model.device import Device

__all__ = ["Patience", "patience"]

_LEAST_S = 600.0  # the imports of a framework, compilation, all passes of its kernels
_TEST_S = 60.0  # and for each test
_LONGEST_S = 21_600.0  # 36 starts of the least: whoever waits for a whole night is told
_NO_CHIP = "off"  # of the option: nothing is checked for a chip


class Patience(Frozen, frozen=True, kw_only=True):
    """
    How long all of a command of ncu may take.

    Attributes:
        timeout_s: So long [s], > 0.

        why: How that came to be, as a fragment; "" where the number says it all.
    """

    timeout_s: float
    why: str = ""


def _predicted(chip: str, names: Sequence[str]) -> PassCost:
    """Return what counters cost on a chip."""
    from pytest_gpuperf.collect.ncu.catalogue import Catalogue

    return Catalogue(chip).cost(names)


def patience(
    config: Config,
    names: Sequence[str],
    test_count: int,
    *,
    device: Device | None = None,
    predicted: Callable[[str, Sequence[str]], PassCost] = _predicted,
) -> Patience:
    """
    Return how long counting may take: under application replay, so many starts more.

    Args:
        config: What was asked for; a time in it is all there is.

        names: The counters.

        test_count: The tests of the process, >= 1.

        device: The GPU; None: not known.

        predicted: Returns what counters cost on a chip.
    """
    if config.ncu_timeout_s:
        return Patience(timeout_s=config.ncu_timeout_s)
    once_s = max(_LEAST_S, _TEST_S * test_count)
    if config.ncu_replay is not NcuReplay.APPLICATION:
        return Patience(timeout_s=once_s)
    starts, unsure = _starts(_chip(config, device), names, predicted)
    why = f"{once_s:g} s for each of {plural(starts, 'start')}"
    if once_s * starts > _LONGEST_S:
        why += ", and no more than that in all"
    return Patience(timeout_s=min(once_s * starts, _LONGEST_S), why=why + unsure)


def _chip(config: Config, device: Device | None) -> str | None:
    """Return the chip that counts; None: not known."""
    if device is not None and device.compute_capability is not None:
        return "sm_{}{}".format(*device.compute_capability)
    return None if config.chip == _NO_CHIP else config.chip


def _starts(
    chip: str | None,
    names: Sequence[str],
    predicted: Callable[[str, Sequence[str]], PassCost],
) -> tuple[int, str]:
    """Return how often the program is started, one a pass; and how unsure that is."""
    why = "the chip is not known"
    if chip is not None:
        try:
            cost = predicted(chip, names)
        except GpuPerfError as error:
            why = error.message
        else:
            if cost.replays is not None:
                return cost.replays, ""
            why = cost.note
    # one for each counter: most need less, and ncu's own one more
    return len(names) + 1, f"; a guess, for the passes are not known ({why})"
