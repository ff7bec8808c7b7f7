"""Rules of collect.registry."""

from __future__ import annotations

import pytest

from pytest_gpuperf.collect.registry import Absence, absent_collectors, choose
from pytest_gpuperf.config import COLLECTORS
from pytest_gpuperf.errors import CollectorUnavailableError, ConfigError

NO_REPLAY = Absence(reason="no recorded run was named", remedy="give --gpuperf-replay")
NO_BINARY = Absence(reason="no disassembler", remedy="install one")


def test_auto_takes_what_is_there() -> None:
    """Unasked, all usable collectors are taken, best first."""
    choice = choose((), absent={"replay": NO_REPLAY})

    assert choice.collectors == ("host", "binary", "ncu-report")
    assert choice.sentences == (
        "replay: no recorded run was named; give --gpuperf-replay",
        "no GPU: none was found; times are the host's, caches as they come",
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
    asked: tuple[str, ...], absent: dict[str, Absence]
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
        "host: not needed beside replay",
        "binary: no disassembler; install one",
        "ncu-report: not needed beside replay",
        "GPU: not used, a recorded run is replayed",
    )


def test_what_was_asked_for_is_taken_in_order_of_quality() -> None:
    """The order of the option means nothing, and a name may be there twice."""
    choice = choose(("ncu-report", "host", "host"), absent={"replay": NO_REPLAY})

    assert choice.collectors == ("host", "ncu-report")
    assert choice.sentences[:2] == ("replay: not asked for", "binary: not asked for")


def test_the_device_is_named() -> None:
    """A GPU that is there, and is not what measures, is said."""
    choice = choose((), absent={"replay": NO_REPLAY}, device_name="NVIDIA H200")

    assert choice.sentences[-1].startswith("NVIDIA H200: there, but this version times")


def test_why_there_is_no_device_is_said() -> None:
    """The reason of the device query is in the sentence."""
    choice = choose((), absent={}, device_reason="x")
    with_host = choose(("host",), absent={}, device_reason="no driver")

    assert "replayed" in choice.sentences[-1]
    assert with_host.sentences[-1].startswith("no GPU: no driver; ")


def test_unknown_names_are_all_reported_at_once() -> None:
    """A wrong name is an error that knows what may have been meant."""
    with pytest.raises(ConfigError) as caught:
        choose(("hst", "cuptii", "ncu_report"), absent={})

    assert caught.value.message == "unknown collector 'cuptii', 'hst', 'ncu_report'"
    assert "did you mean host, ncu-report" in caught.value.remedy


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
    assert caught.value.remedy == "install one"


def test_the_host_is_always_there() -> None:
    """A replay needs a kept run; nothing can take the host's clock away."""
    assert "replay" in absent_collectors(replaying=False)
    assert "replay" not in absent_collectors(replaying=True)
    assert "host" not in absent_collectors(replaying=False)
