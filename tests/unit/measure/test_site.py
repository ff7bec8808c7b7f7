"""The rules of a process: what a test requires, and why a machine does not have it."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.nvml import FakeGpu, FakeNvml
from fakes.runner import FakeRunner
from fakes.runtime import FakeRuntime
from pytest_gpuperf.collect.devices import DeviceQuery, query_devices
from pytest_gpuperf.collect.traces import read_trace
from pytest_gpuperf.config import Config
from pytest_gpuperf.measure.site import Machine, ProcessIdentity, Site
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.activity import (
    COLUMNS,
    ActivitySummary,
    Launches,
    Trace,
    TracePlace,
)
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.run import Expected
from pytest_gpuperf.model.shard import Shard

NO_GPU = DeviceQuery(devices=(), reason="NVML does not start")


MAIN = ProcessIdentity(session=Session(id="s", started_unix_s=0.0, host="h"))


def site(
    query: DeviceQuery,
    device: str | None = None,
    identity: ProcessIdentity = MAIN,
) -> Site:
    """Return a process on a machine with these devices, one of them asked for."""
    clock = FakeClock()
    return Site(
        Config(root="/", device=device),
        identity,
        clock=clock,
        runner=FakeRunner(),
        runtime=FakeRuntime(clock),
        query=lambda: query,
    )


def test_without_a_gpu_every_requirement_of_it_says_so_first() -> None:
    """Why NVML does not start is a detail of that; the remedy speaks of the GPU."""
    here = site(NO_GPU)
    for requires in ("gpu", "sm_90", "cupti", "events", "nvml"):
        lacking = here.lacking((requires,))

        assert lacking is not None
        assert lacking.reason == "there is no GPU: NVML does not start", requires
        assert lacking.remedy == "run it on a machine with a GPU"


def test_a_trace_is_kept_where_a_recording_is_made(tmp_path: Path) -> None:
    """Beside the readings of a report alone it would only take room."""
    launches = Launches(shapes=(), **{n: array(c) for n, c in COLUMNS.items()})
    seen = Trace(begun_ns=1, ended_ns=2, launches=launches)
    key = RecordKey(test_id="t.py::a")
    record = Record(key=key, kind=Kind.RANGE, estimates=(), activity=ActivitySummary())
    places = []
    for folder, keeps in ((None, True), (str(tmp_path), False), (str(tmp_path), True)):
        identity = replace(MAIN, writer="gw1", spool=folder, keeps_traces=keeps)
        here = site(NO_GPU, identity=identity)
        found = here.keep_trace(record, seen)
        assert found.activity is not None
        assert here.keep_trace(record, None) is record
        assert (here.launch_sink is None) == (found.activity.kept is None)
        places.append(found.activity.kept)

    kept = TracePlace(file="traces-gw1.jsonl", line=1, offset_bytes=0)
    assert places == [None, None, kept]
    assert read_trace(str(tmp_path), kept) == seen


def worker_of(main: Site) -> Site:
    """Return a worker of a controller, in this process."""
    told = codec.from_text(main.for_worker("gw1"), ProcessIdentity)
    return Site.in_worker(main.config, told)


def test_a_worker_keeps_what_its_controller_keeps(tmp_path: Path) -> None:
    """It is told so with its identity."""
    kept = str(tmp_path)
    config = Config(root="/", record=kept)
    worker = worker_of(Site.in_main(config, spool=kept, expected=kept))
    reporting = Site.in_main(Config(root="/"), spool="scratch", expected="scratch")

    assert (worker.identity.spool, worker.identity.keeps_traces) == (kept, True)
    assert not reporting.identity.keeps_traces


def test_a_worker_elsewhere_does_without_the_folders_of_a_run(tmp_path: Path) -> None:
    """Another host may not have them: it measures all the same, and keeps no samples."""
    gone = str(tmp_path / "gone")
    worker = worker_of(Site.in_main(Config(root="/"), spool=gone, expected=gone))
    worker.expect(Expected(test_ids=("a",)))
    worker.remark("gpu", "it is warm")

    assert (worker.identity.spool, worker.identity.expected) == (None, None)
    assert not (tmp_path / "gone").exists()


def test_a_record_names_a_host_that_is_not_its_controllers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A label is enough to tell them apart; of one host no record says anything."""
    main = Site.in_main(Config(root="/"), spool=None, expected="")
    here = Machine(worker_of(main)).maker().host
    told = codec.from_text(main.for_worker("gw1"), ProcessIdentity)
    monkeypatch.setenv("GPUPERF_MACHINE", "h100-3")
    there = Machine(Site.in_worker(main.config, told)).maker().host

    assert here is None
    assert there is not None
    assert there.machine == "h100-3"
    # without an option the controller has loaded nothing, and tells nothing of itself
    untold = Site.in_worker(main.config, replace(told, host=None))
    assert Machine(untold).maker().host == there


def test_a_session_says_of_what_it_is_a_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of which tests, of which run and branch; an option goes before a scheduler."""
    for name, value in {
        "GITHUB_RUN_ID": "77",
        "GITHUB_RUN_ATTEMPT": "2",
        "GITHUB_REF_NAME": "main",
        "GITHUB_REF_TYPE": "branch",
        "CI_NODE_INDEX": "2",
        "CI_NODE_TOTAL": "4",
    }.items():
        monkeypatch.setenv(name, value)
    found = []
    one = Shard(number=1, count=1)
    for part, run_id in ((None, None), (Shard(number=3, count=8), "mine"), (one, None)):
        config = Config(root=str(tmp_path), shard=part, run_id=run_id)
        main = Site.in_main(config, spool=None, expected=str(tmp_path))
        main.expect(Expected(test_ids=("a",), collected="c0ffee", collected_count=9))
        found.append(main.session)

    assert [session.shard for session in found] == ["2/4", "3/8", None]
    assert [session.run for session in found] == ["77.2", "mine", "77.2"]
    assert {(s.collected, s.collected_count) for s in found} == {("c0ffee", 9)}
    assert {session.branch for session in found} == {"main"}


def test_another_gpu_is_named_with_the_one_that_is_required() -> None:
    """`sm_90a` is met by what runs its code."""
    here = site(query_devices(FakeNvml(FakeGpu(compute_capability=(9, 0)))))
    lacking = here.lacking(("gpu", "sm_90", "sm_90a", "sm_100"))

    assert lacking is not None
    assert (lacking.metric, lacking.reason) == ("sm_100", "this GPU is sm_90")
    assert lacking.remedy == "run it on an sm_100"


def test_the_gpu_that_is_asked_for_is_the_one_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What tests put tensors on is CUDA's number of it, and what they require is its."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    old, new = FakeGpu(compute_capability=(8, 0)), FakeGpu(compute_capability=(9, 0))
    query = query_devices(FakeNvml(old, new, old))
    here = site(query, "1")

    assert (here.device(), here.device_name()) == (query.devices[1], "cuda:1")
    assert here.lacking(("sm_90",)) is None
    assert here.lacking(("sm_80",)) is not None
    assert (site(query).device(), site(query).device_name()) == (
        query.devices[2],
        "cuda:0",
    )


def test_hidden_gpus_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is the variable that hides them, and not the driver's."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    here = site(query_devices(FakeNvml(FakeGpu())))
    lacking = here.lacking(("gpu",))

    assert (here.device(), here.device_name()) == (None, None)
    assert lacking is not None
    assert lacking.reason == "there is no GPU: CUDA_VISIBLE_DEVICES=-1 hides every GPU"
