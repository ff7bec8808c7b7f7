"""model.environment: which facts two values must share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.model.environment import (
    DEVICE_METHOD,
    HARD_FACTS,
    differences,
    facts_of,
    family_facts,
    family_of,
    slug,
)
from pytest_gpuperf.model.metric import METRICS, Family

FACTS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xyz"))


@pytest.mark.parametrize(
    ("metric", "source", "family"),
    [
        ("time", "events", Family.DEVICE_TIME),
        ("time", "host", Family.HOST_TIME),
        ("time.p95", "host", Family.HOST_TIME),
        ("time.wall", "events", Family.HOST_TIME),
        ("registers", "binary", Family.RESOURCE),
        ("registers", "host", Family.RESOURCE),
        ("dram__bytes.sum", "ncu-report", Family.COUNTER),
        ("dram.bytes", "cupti", Family.COUNTER),
        ("ttft", "user", Family.RECORDED),
    ],
)
def test_a_value_belongs_to_the_family_of_its_source(
    metric: str, source: str, family: Family
) -> None:
    """A device time taken by the host's clock is a host time; an own name is recorded."""
    assert family_of(metric, source) is family


def test_every_family_has_facts() -> None:
    """Nothing is compared without asking where it was measured."""
    assert set(HARD_FACTS) == set(Family)
    assert all(names for names in HARD_FACTS.values())
    assert {family_of(name, "host") for name in METRICS} <= set(HARD_FACTS)


def test_only_facts_that_are_known_are_kept() -> None:
    """What nobody said is left out, and what does not count for the family too."""
    known = {"compute_capability": "9.0", "gpu_name": "H200", "cpu_model": "x"}

    assert family_facts(Family.RESOURCE, known) == {"compute_capability": "9.0"}
    assert family_facts(Family.HOST_TIME, {}) == {}


@pytest.mark.parametrize(
    ("mode", "kept"), [("cold", True), ("warm", True), ("none", False)]
)
def test_a_host_time_knows_whether_a_device_was_flushed_before_it(
    mode: str, *, kept: bool
) -> None:
    """A cold call is never held against a warm one; a host alone has no such mode."""
    known = {"cache_mode": mode, "cpu_model": "x"}
    found = family_facts(Family.HOST_TIME, known)

    assert ("cache_mode" in found) == kept
    assert family_facts(Family.DEVICE_TIME, known) == {"cache_mode": mode}


@given(FACTS)
def test_a_record_agrees_with_itself(facts: dict[str, str]) -> None:
    """The same facts differ in nothing."""
    assert differences(facts, dict(facts)) == {}


@given(FACTS, FACTS)
def test_differences_are_told_from_both_sides(
    now: dict[str, str], then: dict[str, str]
) -> None:
    """Exactly the facts that differ, as (then, now); a silent side is "unknown"."""
    found = differences(now, then)

    assert set(found) == {
        name for name in now.keys() | then.keys() if now.get(name) != then.get(name)
    }
    assert all(
        pair == (then.get(name, "unknown"), now.get(name, "unknown"))
        for name, pair in found.items()
    )
    assert {n: (b, a) for n, (a, b) in differences(then, now).items()} == found


@given(FACTS, FACTS, st.sets(st.sampled_from("abcd")))
def test_a_fact_that_may_differ_is_not_told(
    now: dict[str, str], then: dict[str, str], across: set[str]
) -> None:
    """Those allowed are left out, and no other."""
    found = differences(now, then, across=across)

    assert found == {
        name: pair
        for name, pair in differences(now, then).items()
        if name not in across
    }


@given(st.text())
def test_a_slug_is_safe_as_the_name_of_a_folder(text: str) -> None:
    """Letters, digits and single dashes: never empty, hidden, nested or a parent."""
    folder = slug(text)

    assert folder.replace("-", "").isalnum()
    assert folder.isascii()
    assert folder == folder.lower() == folder.strip("-")
    assert slug(folder) == folder


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
        ("Intel(R) Xeon(R) CPU @ 2.00GHz", "intel-r-xeon-r-cpu-2-00ghz"),
        ("../../etc", "etc"),
        ("", "unnamed"),
        ("\N{SNOWMAN}", "unnamed"),
    ],
)
def test_slugs_are_readable(text: str, folder: str) -> None:
    """A reader recognises the GPU; what has no letters is "unnamed"."""
    assert slug(text) == folder


def test_names_that_differ_in_signs_alone_share_a_folder() -> None:
    """A slug only sorts: whether two records compare is for their facts to say."""
    assert slug("A-100 (x)") == slug("a 100 x")
    assert differences({"gpu_name": "A-100 (x)"}, {"gpu_name": "a 100 x"})


@pytest.mark.parametrize(
    "metric", ["roofline.fraction", "roofline.at_clock_fraction", "mfu"]
)
def test_a_share_of_a_peak_shares_its_peak(metric: str) -> None:
    """Half of one peak is not a third of another: the same time gives both."""
    facts = {"host-time": {"cpu_model": "x", "peak": "dram 20 GB/s (declared)"}}

    assert facts_of(facts, metric, "host") == facts["host-time"]
    assert facts_of(facts, "time", "host") == {"cpu_model": "x"}
    assert facts_of({}, metric, "host") == {}


@pytest.mark.parametrize("method", ["host/1", "host/2"])
def test_a_device_has_a_method_of_its_own(method: str) -> None:
    """Facts that were stored with the host's are those of today; a host's time differs."""
    names = {"method": method, "gpu_name": "H200"}
    then = {"device-time": names, "counter": names, "host-time": {"method": method}}
    facts = {"method": "host/3", "device_method": DEVICE_METHOD, "gpu_name": "H200"}
    now = {family.value: family_facts(family, facts) for family in HARD_FACTS}

    for metric, source, alike in (
        ("time", "cupti", True),
        ("sm__cycles_active.avg", "ncu", True),
        ("time", "host", False),
    ):
        apart = differences(
            facts_of(now, metric, source), facts_of(then, metric, source)
        )
        assert (not apart) is alike
