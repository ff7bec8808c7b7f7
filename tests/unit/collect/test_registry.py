"""Rules of collect.registry."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from pytest_gpuperf.collect.cupti import subscription
from pytest_gpuperf.collect.registry import (
    absent_collectors,
    choose,
    still_absent,
)
from pytest_gpuperf.errors import CollectorUnavailableError, ConfigError
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.sample import COLLECTORS

NO_REPLAY = Gap(
    code=GapCode.NOT_ASKED,
    reason="no recorded run was named",
    remedy="give --gpuperf-replay",
)
NO_GPU = Gap(
    code=GapCode.NO_DEVICE,
    reason="there is no GPU: none",
    remedy="run it on a machine with a GPU",
)
HELD = Gap(
    code=GapCode.COUNTERS_BUSY,
    reason="nsys holds CUPTI",
    remedy="start pytest without it",
)
NO_DEVICE = dict.fromkeys(("cupti", "events", "nvml"), NO_GPU)
NO_BINARY = Gap(
    code=GapCode.COLLECTOR_UNAVAILABLE, reason="no disassembler", remedy="install one"
)


def test_auto_takes_what_is_there() -> None:
    """Unasked, all usable collectors are taken, best first."""
    choice = choose((), absent={"replay": NO_REPLAY, **NO_DEVICE})

    assert choice.collectors == ("host", "ncu", "binary", "ncu-report")
    assert choice.sentences == (
        "replay: no recorded run was named; give --gpuperf-replay",
        "cupti: there is no GPU: none; run it on a machine with a GPU",
        "events: there is no GPU: none; run it on a machine with a GPU",
        "nvml: there is no GPU: none; run it on a machine with a GPU",
        "CPU only: no GPU was found; times are the host's, and no cache is emptied",
    )


def test_auto_may_be_written_out() -> None:
    """`auto` is the same as nothing."""
    absent = {"replay": NO_REPLAY}

    assert choose(("auto",), absent=absent) == choose((), absent=absent)


@pytest.mark.parametrize(
    ("asked", "absent"),
    [
        ((), {}),
        ((), {"replay": NO_REPLAY}),
        ((), {"replay": NO_REPLAY, "binary": NO_BINARY}),
        (("host",), {}),
        (("ncu-report", "host"), {"binary": NO_BINARY}),
        (("replay",), {"binary": NO_BINARY}),
    ],
)
def test_every_path_not_taken_leaves_a_sentence(
    asked: tuple[str, ...], absent: dict[str, Gap]
) -> None:
    """Each known collector is either taken or has one sentence; the device has one."""
    choice = choose(asked, absent=absent)
    named = [sentence.partition(":")[0] for sentence in choice.sentences[:-1]]

    assert sorted((*named, *choice.collectors)) == sorted(COLLECTORS)
    assert "GPU" in choice.sentences[-1]


def test_a_recorded_run_is_replayed_alone() -> None:
    """With a recorded run nothing is measured beside it."""
    choice = choose((), absent={"binary": NO_BINARY})

    assert choice.collectors == ("replay",)
    assert choice.sentences == (
        "cupti: not needed with replay",
        "events: not needed with replay",
        "host: not needed with replay",
        "ncu: not needed with replay",
        "nvml: not needed with replay",
        "binary: no disassembler; install one",
        "ncu-report: not needed with replay",
        "GPU: not used, a recorded run is replayed",
    )
    # nobody misses them, so that only -v tells
    codes = {note.about: note.code for note in choice.notes}
    assert codes["cupti"] is codes["events"] is GapCode.NOT_ASKED


def test_what_was_asked_for_is_taken_in_order_of_quality() -> None:
    """The order of the option means nothing, and a name may be there twice."""
    choice = choose(("ncu-report", "host", "host"), absent={"replay": NO_REPLAY})

    assert choice.collectors == ("host", "ncu-report")
    assert choice.sentences[:-1] == (
        "replay: not requested",
        "cupti: not requested",
        "events: not requested",
        "ncu: not requested",
        "nvml: not requested",
        "binary: not requested",
    )


@pytest.mark.parametrize(
    ("absent", "says"),
    [
        ({}, "NVIDIA H200: times are the device's own, by cupti, and the host's"),
        ({"cupti": HELD}, "NVIDIA H200: times are the device's own, by events, and"),
        ({"cupti": HELD, "events": HELD}, "NVIDIA H200: times are the host's, from"),
    ],
)
def test_the_device_is_named_with_what_times_it(
    absent: dict[str, Gap], says: str
) -> None:
    """The best source that is there: cupti, then events, then the host's clock."""
    choice = choose(
        (), absent={"replay": NO_REPLAY, **absent}, device_name="NVIDIA H200"
    )

    assert choice.sentences[-1].startswith(says)


@pytest.mark.parametrize("asked", [(), ("cupti", "events", "host")])
def test_what_was_lost_says_who_holds_it(asked: tuple[str, ...]) -> None:
    """A collector that is held by another shows only in use, and is not an error then."""
    choice = choose(
        asked,
        absent={"replay": NO_REPLAY},
        lost={"cupti": HELD},
        device_name="NVIDIA H200",
    )

    assert "cupti" not in choice.collectors
    assert "cupti: nsys holds CUPTI; start pytest without it" in choice.sentences
    assert "by events" in choice.sentences[-1]


def test_a_device_that_nvml_does_not_know_shows_in_use() -> None:
    """What has given values is not absent, whatever was expected of it."""
    found = still_absent({"replay": NO_REPLAY, **NO_DEVICE}, {"events", "host"})
    choice = choose((), absent=found, device_reason="none")

    assert choice.collectors[:2] == ("events", "host")
    assert choice.sentences[-1].startswith("GPU: one that NVML does not know; times")


def test_what_sees_a_device_needs_one() -> None:
    """Without a GPU the reason is why there is none, and nothing is imported."""
    absent = absent_collectors(replaying=True, no_device_reason="no driver")

    for name in ("cupti", "events", "nvml"):
        assert absent[name].reason == "there is no GPU: no driver"


def test_cupti_needs_its_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU it is the package that may be missing; its extra is the remedy."""
    for name in subscription.ATTACHED_TOOLS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "cupti", raising=False)
    importlib.invalidate_caches()
    absent = absent_collectors(replaying=True)

    assert absent["cupti"].reason == "the package cupti-python is not installed"
    assert absent["cupti"].remedy == 'pip install "pytest-gpuperf[cupti]"'
    assert "events" not in absent
    assert "nvml" not in absent


@pytest.mark.parametrize("name", sorted(subscription.ATTACHED_TOOLS))
def test_an_attached_tool_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It holds CUPTI from the start; the other collectors stay what they are."""
    monkeypatch.setenv(name, "1")
    absent = absent_collectors(replaying=True)

    assert subscription.ATTACHED_TOOLS[name] in absent["cupti"].reason
    assert name in absent["cupti"].remedy
    assert "events" not in absent


def test_why_there_is_no_device_is_said() -> None:
    """The reason of the device query is in the sentence."""
    choice = choose((), absent={}, device_reason="x")
    with_host = choose(("host",), absent=NO_DEVICE, device_reason="no driver")

    assert "replayed" in choice.sentences[-1]
    assert with_host.sentences[-1].startswith("CPU only: no driver; ")


def test_unknown_names_are_all_reported_at_once() -> None:
    """A wrong name is an error that knows what may have been meant."""
    with pytest.raises(ConfigError) as caught:
        choose(("hst", "cuptii", "ncu_report"), absent={})

    assert caught.value.message == "unknown collector 'cuptii', 'hst', 'ncu_report'"
    assert "did you mean cupti, host, ncu-report" in caught.value.remedy


def test_a_name_like_no_other_gets_the_list() -> None:
    """Without a close match, the names there are."""
    with pytest.raises(ConfigError) as caught:
        choose(("zzz",), absent={})

    assert caught.value.remedy == f"choose from auto, {', '.join(COLLECTORS)}"


@pytest.mark.parametrize("asked", [("auto", "host"), ("replay", "host")])
def test_names_that_exclude_each_other_are_refused(asked: tuple[str, ...]) -> None:
    """Neither auto nor a replay goes with other names."""
    with pytest.raises(ConfigError):
        choose(asked, absent={})


def test_what_was_asked_for_and_is_not_there_is_an_error() -> None:
    """There is no silent fallback from a collector that was named."""
    absent = {"replay": NO_REPLAY, "binary": NO_BINARY}
    with pytest.raises(CollectorUnavailableError) as caught:
        choose(("host", "binary"), absent=absent)

    assert caught.value.message == "collector binary cannot be used: no disassembler"
    assert caught.value.remedy == (
        "install one, or leave binary out of --gpuperf-collectors"
    )


def test_the_host_is_always_there() -> None:
    """A replay needs a kept run; nothing can take the host's clock away."""
    assert "replay" in absent_collectors(replaying=False)
    assert "replay" not in absent_collectors(replaying=True)
    assert "host" not in absent_collectors(replaying=False)


def test_ncu_needs_the_tool_and_the_packages_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first thing that lacks is told: the tool, then what marks and reads for it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert absent_collectors(replaying=False)["ncu"].reason == "there is no ncu on PATH"

    tool = tmp_path / "ncu"
    tool.touch(0o755)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in ("ncu_report", "nvtx"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    absent = absent_collectors(replaying=False)["ncu"]
    assert absent.reason == "the packages ncu-report and nvtx are not installed"

    for name in ("ncu_report.py", "nvtx.py"):
        (tmp_path / name).touch()
    importlib.invalidate_caches()
    assert "ncu" not in absent_collectors(replaying=False)
