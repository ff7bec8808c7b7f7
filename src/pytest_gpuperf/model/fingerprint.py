"""The facts that two records must share to be compared."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping

from pytest_gpuperf.model.metric import METRICS, Family, is_counter
from pytest_gpuperf.model.sample import CacheMode, Source

__all__ = [
    "DEVICE_METHOD",
    "HARD_FACTS",
    "differences",
    "facts_of",
    "family_facts",
    "family_of",
    "slug",
]

DEVICE_METHOD = "device/1"  # of timing on a device and of counting there
_PEAK = "peak"  # what a share is a share of; it says nothing of the time itself
_CACHE = "cache_mode"
_FLUSHED = frozenset(
    {CacheMode.COLD, CacheMode.WARM}
)  # of a device; a host alone has no such mode
_HOST = (
    "cpu_model",
    "core_count",
    "python_minor",
    "method",
    _CACHE,
    "parameters",
    _PEAK,
)
_DEVICE = (
    "gpu_name",
    "gpu_memory_bytes",
    "sm_count",
    "mig",
    "mps_share",
    "ecc",
    "max_sm_clock_hz",
    "max_memory_clock_hz",
    "power_limit_watts",
    "driver_branch",
    "device_method",
    _CACHE,
    "parameters",
    "work",
    _PEAK,
)
_COUNTER = (*_DEVICE, "tool_version", "replay_mode", "cache_control", "clock_control")

# by family: the names of the facts that count; the record says what each of them is
HARD_FACTS: Mapping[Family, tuple[str, ...]] = {
    Family.DEVICE_TIME: _DEVICE,
    Family.RESOURCE: ("compute_capability", "parameters"),
    Family.COUNTER: _COUNTER,
    Family.HOST_TIME: _HOST,
    Family.RECORDED: _HOST,
}


@functools.lru_cache(maxsize=4096)  # asked for each value of a run
def family_of(metric: str, source: str) -> Family:
    """
    Return which facts two values of a metric must share.

    A device time that the host's clock took is a host time; a name that no catalogue has
    is one of the user's own.
    """
    if metric not in METRICS:
        return Family.COUNTER if is_counter(metric) else Family.RECORDED
    family = METRICS[metric].family
    if source == Source.HOST and family is Family.DEVICE_TIME:
        return Family.HOST_TIME
    return family


def family_facts(family: Family, facts: Mapping[str, str]) -> dict[str, str]:
    """
    Return the facts of one family that are known; what nobody said is left out.

    The host's time of a call that a device's flush precedes is another than without: its
    cache mode counts. Where nothing could be flushed there is none.
    """
    hard_facts = {name: facts[name] for name in HARD_FACTS[family] if name in facts}
    if HARD_FACTS[family] is _HOST and hard_facts.get(_CACHE) not in _FLUSHED:
        hard_facts.pop(_CACHE, None)
    return hard_facts


def facts_of(
    facts: Mapping[str, Mapping[str, str]], metric: str, source: str
) -> Mapping[str, str]:
    """
    Return the facts that two values of a metric must share.

    A peak counts for the metrics that are a share of it: the time that a call took is
    the same whatever it is held against.

    Args:
        facts: Those of a whole record, by family.

        metric: The metric's name.

        source: The collector that gave its value.
    """
    family = family_of(metric, source)
    hard_facts = facts.get(family.value, {})
    if "method" in hard_facts and "device_method" in HARD_FACTS[family]:
        # stored before devices had a method of their own, which has not changed since
        shared = {name: fact for name, fact in hard_facts.items() if name != "method"}
        hard_facts = {**shared, "device_method": DEVICE_METHOD}
    of_peak = metric in METRICS and METRICS[metric].bound == _PEAK
    if of_peak or _PEAK not in hard_facts:
        return hard_facts
    return {name: fact for name, fact in hard_facts.items() if name != _PEAK}


def differences(
    now: Mapping[str, str], then: Mapping[str, str], *, across: Iterable[str] = ()
) -> dict[str, tuple[str, str]]:
    """
    Return the facts on which two records disagree.

    Args:
        now: Facts of the one.

        then: Facts of the other.

        across: Names of facts that are allowed to differ.

    Returns:
        By name, what it was and what it is; "unknown" where a side does not say.
    """
    if now == then:  # as a rule, and this is asked for every stored session
        return {}
    allowed = set(across)
    return {
        name: (then.get(name, "unknown"), now.get(name, "unknown"))
        for name in sorted(now.keys() | then.keys())
        if now.get(name) != then.get(name) and name not in allowed
    }


@functools.lru_cache(maxsize=256)  # a run has few, and asks for each test
def slug(text: str) -> str:
    """
    Return a text as the name of a folder: lower case, letters, digits and dashes.

    Example:
        >>> slug("NVIDIA H200 (141 GB)")
        'nvidia-h200-141-gb'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"
