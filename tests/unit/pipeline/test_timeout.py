"""How long counting under ncu may take."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fakes import runs
from fakes.chips import need_library
from pytest_gpuperf.config import Config, NcuReplay
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.counters import PassCost
from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.pipeline.profile import Timeout, timeout_of

NAMES = ("dram__bytes.sum", "gpu__time_duration.sum")


def told(
    *,
    tests: int = 1,
    replay: NcuReplay = NcuReplay.APPLICATION,
    chip: str | None = "GH100",
    replays: int | None = 4,
    device: Device | None = None,
    timeout_s: float | None = None,
) -> Timeout:
    """Return how long counting may take where a prediction is known."""
    config = Config(root="/", ncu_replay=replay, chip=chip, ncu_timeout_s=timeout_s)

    def predicted(asked: str, names: Sequence[str]) -> PassCost:
        assert asked == ("sm_90" if device else chip)
        return PassCost(
            chip=asked, names=tuple(names), passes=3, replays=replays, note="who knows"
        )

    return timeout_of(config, NAMES, tests, device=device, predicted=predicted)


@pytest.mark.parametrize("replay", [NcuReplay.KERNEL, NcuReplay.RANGE])
def test_one_start_has_the_time_of_its_tests(replay: NcuReplay) -> None:
    """Passes of kernels and of ranges are repeated inside it."""
    assert told(replay=replay) == Timeout(timeout_s=600.0)
    assert told(replay=replay, tests=11) == Timeout(timeout_s=660.0)


@pytest.mark.parametrize("replay", NcuReplay)
def test_a_time_that_was_asked_for_is_for_all_of_it(replay: NcuReplay) -> None:
    """Nobody multiplies what the ini file says."""
    assert told(replay=replay, timeout_s=7.0) == Timeout(timeout_s=7.0)


def test_application_replay_has_the_time_of_one_start_for_each_pass() -> None:
    """The message says what the limit is made of."""
    assert told() == Timeout(timeout_s=2400.0, why="600 s for each of 4 starts")
    assert told(tests=20, replays=1) == Timeout(
        timeout_s=1200.0, why="1200 s for each of 1 start"
    )


def test_the_chip_is_the_devices() -> None:
    """What --gpuperf-chip names is what tests are checked for, not what counts."""
    device = replace(runs.H200, compute_capability=(9, 0))

    assert told(device=device, chip="off").timeout_s == 2400.0


def test_it_ends_at_last() -> None:
    """A program that hangs is not waited for during a day."""
    assert told(replays=36).why == "600 s for each of 36 starts"
    assert told(replays=37) == Timeout(
        timeout_s=21_600.0,
        why="600 s for each of 37 starts, limited to 21600 s in all",
    )


@pytest.mark.parametrize(
    ("chip", "replays", "why"),
    [
        (None, 4, "the chip is not known"),
        ("off", 4, "the chip is not known"),
        ("GH100", None, "who knows"),
    ],
)
def test_passes_that_are_not_known_are_guessed_and_said(
    chip: str | None, replays: int | None, why: str
) -> None:
    """One for each counter, and one more."""
    assert told(chip=chip, replays=replays) == Timeout(
        timeout_s=1800.0,
        why="600 s for each of 3 starts; estimated, because the number of passes is unknown"
        f" ({why})",
    )


def test_without_a_library_that_predicts_the_guess_says_so() -> None:
    """Its own words."""

    def predicted(chip: str, names: Sequence[str]) -> PassCost:
        raise CollectorUnavailableError("libnvperf_host is not installed", remedy="")

    config = Config(root="/", ncu_replay=NcuReplay.APPLICATION, chip="GH100")
    found = timeout_of(config, NAMES, 1, predicted=predicted)

    assert found.why.endswith("unknown (libnvperf_host is not installed)")


def test_passes_are_those_that_the_library_predicts() -> None:
    """The counters of a roofline take several passes on an H200's chip."""
    need_library()
    config = Config(root="/", ncu_replay=NcuReplay.APPLICATION, chip="GH100")
    several = timeout_of(config, ("sm__inst_executed_pipe_tensor.sum", *NAMES), 1)

    assert several.timeout_s > 600.0
    assert "a guess" not in several.why
