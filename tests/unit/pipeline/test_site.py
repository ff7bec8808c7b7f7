"""The rules of pipeline/seat: what a test requires, and why a machine does not have it."""

from __future__ import annotations

from fakes.clock import FakeClock
from fakes.nvml import FakeGpu, FakeNvml
from fakes.runner import FakeRunner
from pytest_gpuperf.collect.devices import DeviceQuery, query_devices
from pytest_gpuperf.config import Config
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.pipeline.seat import Seat, Site

NO_GPU = DeviceQuery(devices=(), reason="NVML does not start")


def site(query: DeviceQuery) -> Site:
    """Return a process on a machine with these devices."""
    seat = Seat(session=Session(id="s", started_unix_s=0.0, host="h"))
    found = Site(Config(root="/"), seat, clock=FakeClock(), runner=FakeRunner())
    vars(found)["devices"] = query  # the query is a seam
    return found


def test_without_a_gpu_every_requirement_of_it_says_so_first() -> None:
    """Why NVML does not start is a detail of that; the remedy speaks of the GPU."""
    here = site(NO_GPU)
    for requires in ("gpu", "sm_90", "cupti", "events", "nvml"):
        lacking = here.lacking((requires,))

        assert lacking is not None
        assert lacking.reason == "there is no GPU: NVML does not start", requires
        assert lacking.remedy == "run it where there is one"


def test_another_gpu_is_named_with_the_one_that_is_required() -> None:
    """`sm_90a` is met by what runs its code."""
    here = site(query_devices(FakeNvml(FakeGpu(compute_capability=(9, 0)))))
    lacking = here.lacking(("gpu", "sm_90", "sm_90a", "sm_100"))

    assert lacking is not None
    assert (lacking.metric, lacking.reason) == ("sm_100", "this GPU is sm_90")
    assert lacking.remedy == "run it on an sm_100"
