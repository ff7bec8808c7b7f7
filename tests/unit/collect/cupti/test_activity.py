"""collect.cupti: recorded activity; the real record and error classes on a scripted device."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.cupti import GRAPH_LAUNCH, RUNTIME_LAUNCH, FakeCupti
from pytest_gpuperf.collect.base import DeviceTimer, Holding, Sequenced
from pytest_gpuperf.collect.binary.demangling import native_demangler
from pytest_gpuperf.collect.cupti.activity import ActivityCollector, ActivityTimer
from pytest_gpuperf.collect.cupti.statuses import NO_FUNCTION, STATUSES, meaning
from pytest_gpuperf.collect.cupti.subscription import ATTACHED_TOOLS, missing
from pytest_gpuperf.collect.timing.readings import Reading, Timers
from pytest_gpuperf.collect.translate.cupti import DRIVER_LAUNCHES, RUNTIME_LAUNCHES
from pytest_gpuperf.compute.activity import summarise
from pytest_gpuperf.compute.limiter import idle_share
from pytest_gpuperf.errors import CollectorUnavailableError, MeasureError
from pytest_gpuperf.model.activity import Launches
from pytest_gpuperf.model.counters import LimiterName

real = pytest.importorskip(
    "cupti.cupti", reason="cupti-python is not installed: pip install cupti-python"
)

US = 1_000  # ns
DRIVER, RUNTIME = 4, 5
MEM_ALLOC, MEM_FREE = 243, 245  # cuMemAlloc_v2, cuMemFree_v2
MALLOC = 20  # cudaMalloc
KERNEL, GRAPH_TRACE, MARKER, SERIAL_KERNEL = 10, 51, 12, 3
PUSH = "activity_push_external_correlation_id"
POP = "activity_pop_external_correlation_id"
FLUSH = "activity_flush_all"
CODES = sorted({*STATUSES, 6} - {NO_FUNCTION})  # 6 is not in the table
# cupti-python 12.8 subscribes without a name
NAMED = hasattr(real, "subscribe_v2")
TAKING = (
    "subscribe_v2" if NAMED else "subscribe",
    *("activity_register_callbacks", "activity_enable"),
)
needs_names = pytest.mark.skipif(not NAMED, reason="cupti-python 12.8 has no names")


@pytest.fixture
def cupti() -> FakeCupti:
    """A CUPTI that nobody uses."""
    return FakeCupti(real)


@pytest.fixture
def older() -> FakeCupti:
    """One of CUDA 12, that nobody uses."""
    return FakeCupti(real, older=True)


@pytest.fixture
def collector(cupti: FakeCupti) -> Iterator[ActivityCollector]:
    """One that records."""
    opened = made(cupti)
    opened.open()
    yield opened
    opened.close()


def made(cupti: FakeCupti, **settings: Any) -> ActivityCollector:
    """Return a collector that sees no variables of this machine."""
    settings.setdefault("environment", {})
    return ActivityCollector(cupti.synchronize, cupti=cupti, **settings)


def opened(cupti: FakeCupti, **settings: Any) -> ActivityCollector:
    """Return one that records."""
    collector = made(cupti, **settings)
    collector.open()
    return collector


def watched(cupti: FakeCupti) -> Callable[[], int]:
    """Return what counts the records that somebody holds of those handed over now."""
    batches: list[weakref.ref[Batch]] = []

    def alive() -> int:
        held = (batch() for batch in batches)
        return sum(len(batch) for batch in held if batch is not None)

    take = cupti.completed

    def completed(records: list[Any]) -> None:
        batch = Batch(records)
        batches.append(weakref.ref(batch))
        take(batch)

    cupti.completed = completed
    return alive


class Batch(list[Any]):
    """A batch whose end is seen."""


class TestTaking:
    """A subscription is taken first, and everything is given back."""

    def test_the_subscription_comes_before_the_buffers(self, cupti: FakeCupti) -> None:
        """Two users of the activity API would take each other's buffers silently."""
        made(cupti).open()
        order = [name for name in cupti.log if name != "activity_enable_driver_api"]
        assert order[:3] == [*TAKING]
        assert cupti.holder == ("CUPTI for gpuperf" if NAMED else "unnamed")

    def test_the_binding_of_cuda_12_subscribes_without_a_name(
        self, older: FakeCupti
    ) -> None:
        """It records as that of CUDA 13 does."""
        collector = made(older)
        collector.open()
        with collector.window() as window:
            older.launch(ns=5 * US)
        assert older.log[0] == "subscribe"
        assert window.void is None
        assert len(window.trace().launches) == 1
        collector.close()
        assert older.holder is None

    def test_the_binding_of_cuda_12_does_not_know_who_holds_it(
        self, older: FakeCupti, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """CUPTI 39: unmeasured; a profiler that is imported is the likely one."""
        older.holder = "CUPTI for Kineto"
        monkeypatch.setitem(sys.modules, "torch.profiler", pytest)
        with pytest.raises(CollectorUnavailableError, match=r"perhaps torch\.profiler"):
            made(older).open()

    def test_kernels_are_never_put_one_after_the_other(self, cupti: FakeCupti) -> None:
        """The kind KERNEL serialises, and a whole graph hides its kernels."""
        made(cupti).open()
        assert KERNEL in cupti.enabled
        assert cupti.enabled.isdisjoint({SERIAL_KERNEL, GRAPH_TRACE})

    def test_only_calls_that_submit_work_are_recorded(self, cupti: FakeCupti) -> None:
        """cuBLAS launches through the driver; everything else would only cost time."""
        made(cupti).open()
        assert {DRIVER, RUNTIME} <= cupti.enabled
        left_out = {cbid for kind, cbid in cupti.calls_disabled if kind == DRIVER}
        of_runtime = {cbid for kind, cbid in cupti.calls_disabled if kind == RUNTIME}
        assert not left_out & DRIVER_LAUNCHES
        assert not of_runtime & RUNTIME_LAUNCHES
        assert len(of_runtime) > 400
        names = {
            int(cbid): name
            for name, cbid in real.driver_api_trace_cbid.__members__.items()
            if name not in {"INVALID", "SIZE", "FORCE_INT"}
        }
        others = {names[cbid] for cbid in names.keys() - left_out - DRIVER_LAUNCHES}
        assert all(name.startswith(("cuMemcpy", "cuMemset")) for name in others)
        assert {"cuMemcpyHtoDAsync_v2", "cuMemsetD8Async_ptsz"} <= others

    @pytest.mark.parametrize(
        ("numbers", "ours", "prefixes"),
        [
            ("driver_api_trace_cbid", DRIVER_LAUNCHES, ("cuLaunch", "cuGraphLaunch")),
            (
                "runtime_api_trace_cbid",
                RUNTIME_LAUNCHES,
                ("cudaLaunch", "cudaGraphLaunch"),
            ),
        ],
    )
    def test_every_launch_of_the_binding_is_known(
        self, numbers: str, ours: frozenset[int], prefixes: tuple[str, ...]
    ) -> None:
        """The table has all launches that the installed enumeration names."""
        theirs = {
            int(cbid)
            for name, cbid in getattr(real, numbers).__members__.items()
            if name.startswith(prefixes) and "HostFunc" not in name
        }
        assert theirs <= ours
        assert ours - theirs <= {505, 506}  # __cudaLaunchKernel: no member of an Enum

    def test_closing_gives_everything_back(self, cupti: FakeCupti) -> None:
        """Others can use CUPTI afterwards, and nothing slows the next test."""
        collector = made(cupti)
        collector.open()
        collector.open()  # is open already
        assert cupti.log.count(TAKING[0]) == 1
        collector.close()
        collector.close()
        assert (cupti.holder, cupti.enabled) == (None, set())
        assert cupti.log[-1] == "unsubscribe"
        collector.open()
        assert collector.is_open

    def test_a_step_that_is_refused_takes_all_others_back(
        self, cupti: FakeCupti
    ) -> None:
        """Half of a collector would slow every launch for nothing."""
        cupti.refused["activity_enable", 2] = 27
        with pytest.raises(CollectorUnavailableError, match="CUPTI 27"):
            made(cupti).open()
        assert (cupti.holder, cupti.enabled) == (None, set())

    def test_a_failure_while_closing_does_not_stop_it(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """The subscription is what others wait for."""
        cupti.refused["activity_disable", KERNEL] = 999
        cupti.refused[FLUSH] = 999
        collector.close()
        assert cupti.holder is None
        assert cupti.enabled == {KERNEL}

    def test_a_call_that_this_libcupti_lacks_is_passed_over(
        self, cupti: FakeCupti
    ) -> None:
        """The binding may be newer than the library: there is nothing to switch off."""
        cupti.refused["activity_enable_driver_api", MEM_ALLOC] = 1
        made(cupti).open()
        assert (DRIVER, MEM_ALLOC) not in cupti.calls_disabled
        assert (DRIVER, MEM_FREE) in cupti.calls_disabled

    def test_opened_again_it_records_calls_again(self, cupti: FakeCupti) -> None:
        """Enabling a kind forgets which of its calls were switched off."""
        collector = made(cupti)
        for _ in range(2):
            collector.open()
            with collector.window() as window:
                cupti.launch(cbid=RUNTIME_LAUNCH, runtime=True)
            found = summarise(window.trace())
            assert found.host_launches_count == 1
            assert (RUNTIME, MALLOC) in cupti.calls_disabled
            collector.close()

    def test_a_call_refused_for_another_reason_is_an_error(
        self, cupti: FakeCupti
    ) -> None:
        """Only an unknown number is nothing to worry about."""
        cupti.refused["activity_enable_runtime_api", MALLOC] = 15
        with pytest.raises(CollectorUnavailableError, match="CUPTI 15"):
            made(cupti).open()

    def test_what_can_be_missed_is_missed_by_name(self, cupti: FakeCupti) -> None:
        """A count that is not recorded is None, and not nought."""
        for kind in (38, 49, 52, 17):
            cupti.refused["activity_enable", kind] = 21
        collector = made(cupti)
        collector.open()
        assert set(collector.unrecorded) == {
            *("SYNCHRONIZATION", "MEMORY2", "JIT", "OVERHEAD", "MARKER")
        }
        with collector.window() as window:
            cupti.launch()
        found = summarise(window.trace())
        assert found.launches_count == 1
        assert found.synchronizations_count is None
        assert found.allocations_count is None
        assert found.compilations_count is None
        assert found.overhead_s is None

    def test_ranges_are_recorded_where_nvtx_is_led_to_cupti(
        self, cupti: FakeCupti
    ) -> None:
        """NVTX speaks to the library that its variable names, and to no other."""
        variables = {"NVTX_INJECTION64_PATH": "/opt/cupti/lib/libcupti.so.13"}
        made(cupti, environment=variables).open()
        assert MARKER in cupti.enabled
        other = FakeCupti(real)
        made(other, environment={"NVTX_INJECTION64_PATH": "/x/libother.so"}).open()
        assert MARKER not in other.enabled


class TestAbsent:
    """Who holds CUPTI, and what its refusals mean."""

    @pytest.mark.parametrize("variable", list(ATTACHED_TOOLS))
    def test_an_attached_tool_is_named(self, cupti: FakeCupti, variable: str) -> None:
        """A tool that started the process has CUPTI, and nothing is tried."""
        collector = made(cupti, environment={variable: "1"})
        absence = collector.absent()
        assert absence is not None
        assert ATTACHED_TOOLS[variable] in absence.reason
        assert f"unset {variable}" in absence.remedy
        with pytest.raises(CollectorUnavailableError, match="is attached"):
            collector.open()
        assert cupti.log == []

    @needs_names
    @pytest.mark.parametrize("holder", ["CUPTI for Kineto", "CUPTI for Proton", "ncu"])
    def test_39_names_who_holds_it(self, cupti: FakeCupti, holder: str) -> None:
        """CUPTI 39: unmeasured; the name is the one that the holder gave."""
        cupti.holder = holder
        with pytest.raises(CollectorUnavailableError) as caught:
            made(cupti).open()
        assert caught.value.message == (
            f"{holder} is another user of CUPTI in this process (CUPTI 39)"
        )
        assert "start pytest without it" in caught.value.remedy
        assert cupti.holder == holder

    @pytest.mark.parametrize("holder", ["", "CUPTI for <not provided>"])
    def test_39_without_a_name_guesses_by_what_is_loaded(
        self, cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch, holder: str
    ) -> None:
        """CUPTI 39: unmeasured; a profiler that is imported is the likely one."""
        cupti.holder = holder
        monkeypatch.setitem(sys.modules, "triton.profiler", pytest)
        with pytest.raises(CollectorUnavailableError, match="perhaps Proton"):
            made(cupti).open()

    @pytest.mark.parametrize("function", TAKING)
    def test_14_guesses_by_what_is_loaded(
        self, cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch, function: str
    ) -> None:
        """CUPTI 14: unmeasured; a profiler that subscribes as one of several excludes us."""
        cupti.refused[function] = 14
        monkeypatch.setitem(sys.modules, "torch.profiler", pytest)
        with pytest.raises(CollectorUnavailableError) as caught:
            made(cupti).open()
        assert caught.value.message == (
            "an unnamed tool, perhaps torch.profiler, shares CUPTI in this process with"
            " subscribers of its own kind (CUPTI 14)"
        )
        assert cupti.holder is None

    def test_39_with_a_name_that_is_no_text_is_still_39(self, cupti: FakeCupti) -> None:
        """CUPTI 39: unmeasured; the name is memory that nobody may have written."""
        cupti.holder = b"\x8c\xff"
        with pytest.raises(CollectorUnavailableError, match="CUPTI 39") as caught:
            made(cupti).open()
        assert caught.value.message.startswith("an unnamed tool")

    def test_a_function_that_libcupti_lacks_is_named(
        self, cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A binding newer than its library raises an error of its own."""

        def lacking(*_: object) -> None:
            message = "function cuptiSubscribe_v2 is not found"
            raise RuntimeError(message)

        monkeypatch.setattr(cupti, TAKING[0], lacking)
        with pytest.raises(CollectorUnavailableError, match="cuptiSubscribe_v2"):
            made(cupti).open()

    def test_a_binding_that_no_package_brought_is_tried(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody knows its version, and that is not a reason against it."""

        def unknown(name: str) -> str:
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr("importlib.metadata.version", unknown)
        assert missing() is None

    @needs_names
    def test_the_subscription_of_one_collector_shuts_out_another(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """It is a lock."""
        assert collector.is_open
        with pytest.raises(CollectorUnavailableError, match="CUPTI for gpuperf"):
            made(cupti).open()

    @pytest.mark.parametrize(
        ("function", "status"),
        [
            (function, status)
            for function in TAKING
            for status in CODES
            if (function, status) != (TAKING[0], 39)  # above
        ],
    )
    def test_a_refusal_is_unmeasured(
        self, cupti: FakeCupti, function: str, status: int
    ) -> None:
        """Each code gives a reason with its number, and a remedy; 6 is none of them."""
        cupti.refused[function] = status
        with pytest.raises(CollectorUnavailableError) as caught:
            made(cupti).open()
        assert f"(CUPTI {status})" in caught.value.message
        assert caught.value.remedy == meaning(status).remedy
        assert cupti.holder is None

    @pytest.mark.parametrize(
        ("status", "reason", "remedy"),
        [
            (15, "driver is older", "nvidia-cuda-cupti of the driver's CUDA"),
            (26, "another program holds", "dcgmi profile --pause"),
            (33, "virtual", "whole GPU"),
            (35, "only administrators", "NVreg_RestrictProfilingToAdminUsers=0"),
            (40, "hypervisor", "enable_profiling=1"),
            (41, "confidential", "devtools"),
            (43, "MIG", "compute instance"),
            (45, "WSL", "525"),
            (46, "newer than libcupti", "--upgrade"),
            (47, "Multi-Process", "nvidia-cuda-mps-control"),
        ],
    )
    def test_a_code_is_explained(self, status: int, reason: str, remedy: str) -> None:
        """What is written for a code is about that code."""
        said = STATUSES[status]
        assert reason in said.reason
        assert remedy in said.remedy

    @pytest.mark.parametrize("version", ["12.6.0", "13.0.0"])
    def test_a_binding_that_is_too_old_is_unmeasured(
        self, monkeypatch: pytest.MonkeyPatch, version: str
    ) -> None:
        """The first has fewer kinds of records, the second pins one libcupti."""
        monkeypatch.setattr("importlib.metadata.version", lambda _: version)
        with pytest.raises(
            CollectorUnavailableError, match=f"{version} is neither 12.8 nor"
        ) as caught:
            ActivityCollector(lambda: None, environment={}).open()
        assert "pytest-gpuperf[cupti]" in caught.value.remedy
        assert "pytest-gpuperf[cupti-cu12]" in caught.value.remedy

    @pytest.mark.parametrize("version", ["12.8.0", "13.0.1", "13.4.0", "13.5.0"])
    def test_a_binding_of_either_cuda_is_tried(
        self, monkeypatch: pytest.MonkeyPatch, version: str
    ) -> None:
        """The last one is documented, and was not on the index yet."""
        monkeypatch.setattr("importlib.metadata.version", lambda _: version)
        assert missing() is None

    def test_a_driver_that_is_too_old_for_the_binding_has_its_own(
        self, cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """cupti-python 13 says so at the first call: that of CUDA 12 serves the driver."""

        def refusing(*_: object) -> None:
            message = "only CUDA 13.0 or later driver is supported"
            raise RuntimeError(message)

        monkeypatch.setattr(cupti, TAKING[0], refusing)
        with pytest.raises(CollectorUnavailableError, match=r"13\.0 or") as caught:
            made(cupti).open()
        assert "pytest-gpuperf[cupti-cu12]" in caught.value.remedy

    def test_a_binding_that_does_not_load_is_unmeasured(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is compiled for some versions of Python."""
        monkeypatch.setitem(sys.modules, "cupti.cupti", None)
        with pytest.raises(CollectorUnavailableError, match="does not load"):
            ActivityCollector(lambda: None, environment={}).open()

    def test_the_binding_without_a_driver_is_unmeasured(self) -> None:
        """cupti-python raises an error of its own where it finds no driver."""
        collector = ActivityCollector(lambda: None, environment={})
        if not Path("/proc/driver/nvidia").exists():
            with pytest.raises(CollectorUnavailableError, match="driver"):
                collector.open()


class TestWindow:
    """What a block did is told from what others did."""

    def test_work_before_and_after_is_not_in_it(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """The device is waited for on both sides."""
        cupti.launch("_Z6beforev", 500 * US)
        with collector.window() as window:
            cupti.launch("_Z2inv", 20 * US)
        cupti.launch("_Z5afterv")
        trace = window.trace()
        assert [shape.name for shape in trace.launches.shapes] == ["_Z2inv"]
        assert window.void is None
        assert trace is window.trace()

    def test_a_kernel_has_all_that_a_choice_is_made_of(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """Name, grid, block, registers, shared memory; stream and device."""
        with collector.window() as window:
            cupti.launch(block=256, registers=40, stream=13, device=1)
        launches = window.trace().launches
        assert isinstance(launches, Launches)
        (shape,) = launches.shapes
        assert (shape.name, shape.grid, shape.block) == (
            *("_Z4axpyPf", (8, 2, 1)),
            (256, 1, 1),
        )
        assert (shape.registers_count, shape.shared_bytes) == (40, 512)
        assert (shape.dynamic_shared_bytes, shape.stack_bytes) == (1024, 16)
        assert (launches.stream[0], launches.device[0]) == (13, 1)
        assert launches.end_ns[0] - launches.start_ns[0] == 10 * US
        assert launches.start_ns[0] - launches.call_ns[0] == 4 * US

    def test_a_graph_is_one_launch_of_many_kernels(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """launches.count is what ran, launches.host_count what the host did."""
        with collector.window() as window:
            cupti.launch(cbid=GRAPH_LAUNCH, nodes=5)
            cupti.launch(cbid=RUNTIME_LAUNCH, runtime=True)
        found = summarise(window.trace())
        assert (found.launches_count, found.host_launches_count) == (6, 2)
        launches = window.trace().launches
        assert isinstance(launches, Launches)
        assert list(launches.graph) == [3] * 5 + [0]

    @pytest.mark.parametrize("inner_calls", [False, True])
    def test_the_latency_runs_from_the_outermost_call(
        self, cupti: FakeCupti, collector: ActivityCollector, *, inner_calls: bool
    ) -> None:
        """Were the driver's call recorded that is inside the runtime's: that began first."""
        cupti.inner_calls = inner_calls
        with collector.window() as window:
            cupti.launch(cbid=RUNTIME_LAUNCH, runtime=True)
        assert list(window.trace().latencies_ns) == [4 * US]
        assert window.trace().host_launches_count == 1

    def test_a_latency_is_never_negative(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """The device's clock is put onto the host's by interpolation."""
        cupti.lead_ns = -5 * US
        with collector.window() as window:
            cupti.launch()
        assert list(window.trace().latencies_ns) == [0]

    def test_a_graph_as_a_whole_has_no_kernels(self, cupti: FakeCupti) -> None:
        """Then nobody knows what was chosen, and its time is there all the same."""
        collector = made(cupti, whole_graphs=True)
        collector.open()
        with collector.window() as window:
            cupti.launch(cbid=GRAPH_LAUNCH, nodes=5)
        found = summarise(window.trace())
        assert (found.launches_count, found.host_launches_count) == (0, 1)
        assert found.busy_s == pytest.approx(50e-6)
        assert found.choice is None

    def test_copies_have_direction_kind_and_size(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """Pageable memory is told from pinned; peers have records of their own."""
        with collector.window() as window:
            cupti.copy(1, 1000, source=1)
            cupti.copy(1, 500)
            cupti.copy(2, 300, source=3, target=2)
            cupti.copy(10, 700, source=3)
            cupti.copy(99, 1, source=99, target=99)
            cupti.fill(64)
        found = summarise(window.trace())
        assert {
            (t.direction, t.source, t.target): (t.count, t.size_bytes)
            for t in found.transfers
        } == {
            ("host_to_device", "pageable", "device"): (1, 1000),
            ("host_to_device", "pinned", "device"): (1, 500),
            ("device_to_host", "device", "pinned"): (1, 300),
            ("peer_to_peer", "device", "device"): (1, 700),
            ("unknown", "unknown", "unknown"): (1, 1),
        }
        assert (found.fills_count, found.fills_bytes) == (1, 64)
        assert (found.host_launches_count, found.launch_latency_s) == (0, None)

    @pytest.mark.parametrize(
        ("api_version", "count"),
        [(23, 1), (24, 1), (None, 1), (26, 3), (130000, 3)],
    )
    def test_a_copy_is_counted_where_the_loaded_library_counts_it(
        self, cupti: FakeCupti, api_version: int | None, count: int
    ) -> None:
        """A record of libcupti before 12.8 ends before the count, and what follows is no count."""
        with opened(cupti, api_version=lambda: api_version).window() as window:
            cupti.copy(1, 1000, count=3)
        assert [copy.count for copy in window.trace().copies] == [count]

    def test_the_wait_that_ends_it_is_not_one_of_its_waits(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """A stream that waits for an event does not hold the host."""
        with collector.window() as window:
            for kind in (1, 3, 4, 2):
                cupti.advance(US)
                cupti.wait(kind)
            cupti.advance(US)
        found = summarise(window.trace())
        assert (found.synchronizations_count, found.stream_waits_count) == (3, 1)
        assert len(window.trace().wait_ends_ns) == 3

    def test_what_fills_the_time_between_kernels_is_known(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """The host that waits cannot launch ahead; one that does not is late itself."""
        with collector.window() as window:
            cupti.launch()
            cupti.synchronize()
            cupti.advance(50 * US)
            cupti.launch()
            cupti.advance(400 * US)
            cupti.launch()
        share = idle_share(summarise(window.trace()))
        assert share is not None
        assert share.filled_by is LimiterName.LAUNCH
        assert [part.name for part in share.parts] == ["launch", "synchronization"]
        assert share.fraction == pytest.approx(sum(p.value for p in share.parts))

    def test_allocations_compilations_and_cost_are_counted(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """Frees, memory of a module and loads of a cache are none."""
        with collector.window() as window:
            cupti.allocate(4096)
            cupti.allocate(4096, operation=2)
            cupti.allocate(100, kind=6)
            cupti.compile(3_000 * US)
            cupti.compile(10 * US, operation=1)
            cupti.cost(7 * US)
        found = summarise(window.trace())
        assert (found.allocations_count, found.allocations_bytes) == (1, 4096)
        assert (found.compilations_count, found.compile_s) == (1, 3e-3)
        assert found.overhead_s == pytest.approx(7e-6)
        assert window.trace().overheads_ns == {"buffer_flush": 7 * US}

    def test_ranges_have_a_beginning_and_an_end(self, cupti: FakeCupti) -> None:
        """One that is still open at the end is not there."""
        variables = {"NVTX_INJECTION64_PATH": "/x/libcupti.so"}
        collector = made(cupti, environment=variables)
        collector.open()
        with collector.window() as window:
            cupti.mark(1, 2, "step", "train")
            cupti.mark(2, 2, "open")
            cupti.advance(5 * US)
            cupti.mark(1, 4)
        (found,) = window.trace().ranges
        assert (found.name, found.domain) == ("step", "train")
        assert found.end_ns - found.start_ns == 5 * US

    def test_windows_lie_in_each_other(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """The outer one has all that the inner one has."""
        with collector.window() as outer:
            cupti.launch("_Z1av")
            with collector.window() as inner:
                cupti.launch("_Z1bv")
            cupti.launch("_Z1cv")
        names = [shape.name for shape in outer.trace().launches.shapes]
        assert names == ["_Z1av", "_Z1bv", "_Z1cv"]
        assert [s.name for s in inner.trace().launches.shapes] == ["_Z1bv"]
        assert outer.trace().unlabelled_count == 0

    def test_a_thread_without_a_label_is_told_by_time(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """Autograd launches from a thread of its own; it counts, and it is said."""
        with collector.window() as window, cupti.thread("autograd"):
            cupti.launch()
        with cupti.thread("autograd"):
            cupti.launch()
        assert len(window.trace().launches) == 1
        assert window.trace().unlabelled_count == 1

    def test_work_whose_call_was_not_seen_is_told_by_its_start(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """Such is work that the driver itself submits."""
        with collector.window() as window:
            cupti.launch(call_seen=False)
        found = summarise(window.trace())
        assert (found.launches_count, found.unlabelled_count) == (1, 1)
        assert (found.host_launches_count, found.launch_latency_s) == (0, None)

    def test_lost_records_void_it(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """CUPTI lost some: void; what is left is not less work."""
        with collector.window() as window:
            cupti.launch()
            cupti.launch()
            cupti.lost_count = 2
        assert window.void is not None
        assert window.void.code == "dropped-records"
        assert "2 records" in window.void.text
        found = summarise(window.trace())
        assert (found.dropped_count, found.choice) == (2, None)

    def test_records_lost_in_an_inner_window_are_lost_to_the_outer(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """CUPTI forgets the number when it is asked; both must know it."""
        with collector.window() as outer, collector.window() as inner:
            cupti.launch()
            cupti.lost_count = 1
        with collector.window() as later:
            cupti.launch()
        assert [w.void is None for w in (outer, inner, later)] == [False, False, True]

    @pytest.mark.parametrize(("most_count", "good"), [(8, True), (7, False)])
    def test_more_records_than_are_held_void_it(
        self, cupti: FakeCupti, most_count: int, good: bool
    ) -> None:
        """Two launches and two waits: void, with the number, and nothing of it is kept."""
        collector = made(cupti, most_count=most_count)
        collector.open()
        alive = watched(cupti)
        with collector.window() as window:
            cupti.launch()
            cupti.launch()
        assert (window.void is None) is good
        if window.void is not None:
            assert window.void.code == "too-many-records"
            assert "more than 7 records" in window.void.text
            assert alive() == 0
            with pytest.raises(MeasureError, match="more than 7 records"):
                window.trace()
        with collector.window() as later:
            cupti.launch()
        assert (later.void, len(later.trace().launches)) == (None, 1)

    @pytest.mark.parametrize("status", CODES)
    @pytest.mark.parametrize("function", [PUSH, POP, FLUSH, "get_timestamp"])
    def test_a_failure_in_it_voids_it(
        self, cupti: FakeCupti, collector: ActivityCollector, function: str, status: int
    ) -> None:
        """CUPTI fails: void, with reason and remedy; the test itself goes on."""
        cupti.refused[function] = status
        with collector.window() as window:
            cupti.launch()
        assert window.void is not None
        assert window.void.code == "cupti-failed"
        assert f"CUPTI {status}" in window.void.text
        with pytest.raises(MeasureError):
            window.trace()

    def test_what_the_block_raises_passes_through(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """The label is taken away all the same."""
        with pytest.raises(ZeroDivisionError), collector.window():
            raise ZeroDivisionError
        assert cupti.threads["main"][3] == []

    def test_an_open_window_has_no_trace(self, collector: ActivityCollector) -> None:
        """It would be a part of the truth."""
        with collector.window() as window, pytest.raises(MeasureError, match="open"):
            window.trace()

    def test_a_closed_collector_voids_it(self, cupti: FakeCupti) -> None:
        """Nothing was recorded: void."""
        with made(cupti).window() as window:
            pass
        assert window.void is not None
        assert window.void.code == "cupti-closed"

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
    def test_a_forked_process_does_not_use_the_parents_subscription(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """CUPTI does not outlive a fork: void there, and nothing is called."""
        before = len(cupti.log)
        pid = os.fork()
        if not pid:  # pragma: no cover - another process
            with collector.window() as window:
                pass
            collector.close()
            good = window.void is not None and len(cupti.log) == before
            os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.skipif(
    not Path("/proc/self").is_dir(), reason="children are read of /proc"
)
class TestChildren:
    """CUPTI sees its own process: a child's work is unmeasured, and never nought."""

    @pytest.fixture
    def child(self) -> Iterator[int]:
        """A process that waits."""
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as process:
            yield process.pid
            process.send_signal(signal.SIGKILL)

    def test_a_child_that_uses_a_gpu_is_named(
        self, cupti: FakeCupti, child: int
    ) -> None:
        """NVML knows who uses a GPU: unmeasured, whatever was seen here."""
        collector = made(cupti, device_pids=lambda: {child, 1})
        collector.open()
        with collector.window() as window:
            cupti.launch()
        found = summarise(window.trace())
        assert found.unseen == (str(child),)
        assert found.choice is None

    def test_a_child_beside_nothing_is_suspected(
        self, collector: ActivityCollector, child: int
    ) -> None:
        """Nothing ran here: its work may have been the test's."""
        with collector.window() as window:
            pass
        assert str(child) in summarise(window.trace()).unseen

    def test_a_child_beside_work_is_mentioned(
        self, cupti: FakeCupti, collector: ActivityCollector, child: int
    ) -> None:
        """A loader of data uses no GPU: a note is enough."""
        with collector.window() as window:
            cupti.launch()
        found = summarise(window.trace())
        assert found.unseen == ()
        assert str(child) in found.children

    def test_a_child_of_another_thread_is_one(
        self, collector: ActivityCollector
    ) -> None:
        """The system lists children by the thread that has started them."""
        started: list[subprocess.Popen[bytes]] = []
        ends = threading.Event()

        def start() -> None:
            started.append(
                subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
            )
            ends.wait()

        thread = threading.Thread(target=start)
        thread.start()
        while not started:
            time.sleep(0.001)
        with collector.window() as window:
            pass
        ends.set()
        thread.join()
        (child,) = started
        child.kill()
        child.communicate()

        assert str(child.pid) in summarise(window.trace()).unseen

    def test_a_child_that_has_ended_is_known_of(
        self, collector: ActivityCollector
    ) -> None:
        """Its number is gone; that there was one is not."""
        with collector.window() as window:
            subprocess.run([sys.executable, "-c", ""], check=True)
        assert "one that has ended" in summarise(window.trace()).unseen


class TestTimer:
    """A sample runs from the first start to the last end on the device."""

    def sample(self, cupti: FakeCupti, timer: ActivityTimer, *ns: int) -> None:
        """Take one with kernels of so long, each in a stream of its own."""
        timer.begin()
        for stream, length_ns in enumerate(ns):
            cupti.launch(ns=length_ns, stream=stream)
        timer.end()
        cupti.synchronize()

    def test_it_is_a_device_timer(self, collector: ActivityCollector) -> None:
        """The lanes of the host collector know it by these shapes."""
        timer: DeviceTimer = ActivityTimer(collector)
        assert isinstance(timer, Sequenced)
        assert timer.name == "cupti"

    def test_it_knows_that_nothing_ran(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """Fills between samples are none of them; the next set begins anew."""
        timer = ActivityTimer(collector)
        seen = [timer.saw_nothing()]  # before anything was asked for
        for lengths_ns in ((), (5 * US,), ()):
            cupti.fill(1 << 28)
            cupti.synchronize()
            self.sample(cupti, timer, *lengths_ns)
            timer.taken()
            seen.append(timer.saw_nothing())
            if lengths_ns:
                timer.refusal()
        assert seen == [False, True, False, True]

    def test_nobody_knows_that_nothing_ran_where_no_record_came(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """Our own waits are recorded too: without them CUPTI holds something back."""
        timer = ActivityTimer(collector)
        timer.begin()
        timer.end()
        timer.taken()
        assert not timer.saw_nothing()

    def test_nobody_knows_that_nothing_ran_beside_a_child(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """CUPTI sees its own process alone."""
        timer = ActivityTimer(collector)
        self.sample(cupti, timer)
        subprocess.run([sys.executable, "-c", ""], check=True)
        timer.taken()
        assert not timer.saw_nothing()

    def test_the_span_is_over_all_streams(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """Work beside work does not add up; a gap is part of it."""
        timer = ActivityTimer(collector)
        self.sample(cupti, timer, 100 * US, 10 * US)
        self.sample(cupti, timer, 10 * US, 10 * US)
        assert timer.taken() == [100e-6, pytest.approx(12.5e-6)]
        assert timer.taken() == []
        assert timer.refusal() is None

    def test_a_flush_between_samples_is_in_none(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """L2 is flushed by a fill that nobody measures."""
        timer = ActivityTimer(collector)
        for _ in range(3):
            cupti.fill(1 << 28, ns=900 * US)
            cupti.synchronize()
            self.sample(cupti, timer, 5 * US)
        assert timer.taken() == [5e-6] * 3

    def test_a_thread_without_a_label_counts_in_the_sample_it_launched_in(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """jax launches from threads of its own, after the call has returned."""
        timer = ActivityTimer(collector)
        for length_ns in (10 * US, 30 * US):
            timer.begin()
            timer.end()
            with cupti.thread("jax"):
                cupti.launch(ns=length_ns)
            cupti.synchronize()
        assert timer.taken() == [10e-6, 30e-6]

    def test_what_ran_no_kernel_or_has_no_time_has_no_span(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """None is not nought: nothing ran, or CUPTI gave no time."""
        timer = ActivityTimer(collector)
        self.sample(cupti, timer)
        timer.begin()
        cupti.launch(timed=False)
        timer.end()
        cupti.synchronize()
        assert timer.taken() == [None, None]

    def test_a_sample_that_raised_is_none(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """It has no end, its work is nobody's, and its label is taken away."""
        timer = ActivityTimer(collector)
        self.sample(cupti, timer, 10 * US)
        timer.begin()
        cupti.launch(ns=77 * US)
        cupti.synchronize()
        self.sample(cupti, timer, 20 * US)
        timer.begin()
        assert timer.taken() == [10e-6, 20e-6]
        timer.refusal()
        assert cupti.threads["main"][4] == []

    def test_the_sequence_is_equal_for_equal_calls(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """Warm-up ends when three calls launch the same; asking costs no sample."""
        timer = ActivityTimer(collector)
        assert timer.sequence() is None
        seen = []
        for block in (64, 128, 128):
            timer.begin()
            cupti.launch(block=block)
            cupti.copy(1, 8)
            timer.end()
            cupti.synchronize()
            seen.append(timer.sequence())
        assert seen[0] != seen[1] == seen[2]
        assert len(timer.taken()) == 3

    def test_lost_records_refuse_the_whole_set(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """CUPTI lost some: the next best source stands in; the next set is clean."""
        timer = ActivityTimer(collector)
        self.sample(cupti, timer, 10 * US)
        cupti.lost_count = 1
        timer.taken()
        refused = timer.refusal()
        assert refused is not None
        assert refused.code == "dropped-records"
        self.sample(cupti, timer, 10 * US)
        assert timer.taken() == [10e-6]
        assert timer.refusal() is None

    def test_a_sample_of_more_records_than_are_held_refuses_the_set(
        self, cupti: FakeCupti
    ) -> None:
        """Its time would be of a part: the next best source stands in for the set."""
        collector = made(cupti, most_count=6)
        collector.open()
        timer, alive = ActivityTimer(collector), watched(cupti)
        self.sample(cupti, timer, 10 * US)
        assert timer.taken() == [10e-6]
        self.sample(cupti, timer, 10 * US, 10 * US)
        assert timer.taken() == [None]
        self.sample(cupti, timer, 10 * US)
        assert timer.taken() == [None]
        assert alive() == 0
        refused = timer.refusal()
        assert refused is not None
        assert refused.code == "too-many-records"
        assert cupti.threads["main"][4] == []
        self.sample(cupti, timer, 10 * US)
        assert timer.taken() == [10e-6]
        assert timer.refusal() is None
        collector.close()

    def test_what_is_held_does_not_grow_with_the_samples(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """It is read between samples as soon as it is much, and each keeps its time."""
        timer, alive = ActivityTimer(collector, many_count=30), watched(cupti)
        assert isinstance(timer, Holding)
        timers = Timers([timer])
        readings = [Reading(wall_s=1.0) for _ in range(40)]
        most_held = 0
        for number, reading in enumerate(readings):
            timers.begins[0]()
            cupti.launch(ns=(number + 1) * US)
            timers.ends[0]()
            cupti.synchronize()
            collector.flush()  # a buffer that became full comes by itself
            most_held = max(most_held, alive())
            timers.took(reading)
        timers.collect()
        spans_s = [reading.device_s["cupti"] for reading in readings]
        assert spans_s == pytest.approx([(n + 1) * 1e-6 for n in range(40)])
        assert most_held < 30 + 4  # of one sample
        assert timers.refusals() == {}

    @given(
        st.lists(st.lists(st.integers(1, 9), max_size=3), min_size=1, max_size=8),
        st.data(),
    )
    @settings(max_examples=60)
    def test_when_samples_are_read_changes_nothing(
        self, lengths: list[list[int]], data: st.DataObject
    ) -> None:
        """Neither their times nor which of them launched the same."""
        cupti = FakeCupti(real)
        collector = made(cupti)
        collector.open()
        timer = ActivityTimer(collector)
        spans_s: list[float | None] = []
        launched: list[object] = []
        for sample in lengths:
            self.sample(cupti, timer, *(each * US for each in sample))
            if data.draw(st.booleans()):
                launched.append(timer.sequence())
            else:
                launched.append(None)
            if data.draw(st.booleans()):
                spans_s += timer.taken()
        spans_s += timer.taken()
        collector.close()
        alone = ActivityTimer(collector)
        collector.open()
        for sample in lengths:
            self.sample(cupti, alone, *(each * US for each in sample))
        assert spans_s == alone.taken()
        known = [
            (what, len(sample))
            for what, sample in zip(launched, lengths, strict=True)
            if what is not None
        ]
        for (one, count), (other, other_count) in pairwise(known):
            assert (one == other) is (count == other_count)
        collector.close()

    def test_samples_that_a_window_holds_do_not_refuse_the_timer(
        self, cupti: FakeCupti
    ) -> None:
        """What is around them has all their records, and is void by itself."""
        collector = made(cupti, most_count=20)
        collector.open()
        timer = ActivityTimer(collector)
        with collector.window() as window:
            for _ in range(9):
                self.sample(cupti, timer, 10 * US)
                assert timer.taken() == [10e-6]
        assert timer.refusal() is None
        assert window.void is not None
        assert window.void.code == "too-many-records"
        collector.close()

    @pytest.mark.parametrize("status", CODES)
    @pytest.mark.parametrize("function", [PUSH, POP, FLUSH, "get_timestamp"])
    def test_a_failure_refuses_the_set(
        self, cupti: FakeCupti, collector: ActivityCollector, function: str, status: int
    ) -> None:
        """CUPTI fails: no time, a void with the reason; one value a sample even so."""
        timer = ActivityTimer(collector)
        self.sample(cupti, timer, 10 * US)
        cupti.refused[function] = status
        self.sample(cupti, timer, 10 * US)
        self.sample(cupti, timer, 10 * US)
        assert timer.taken() == [None] * 3
        refused = timer.refusal()
        assert refused is not None
        assert f"CUPTI {status}" in refused.text
        cupti.refused.clear()
        self.sample(cupti, timer, 10 * US)
        assert timer.taken() == [10e-6]

    def test_a_failure_before_the_first_sample_refuses_the_set(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """There is nothing yet to give back, and the next set is tried anew."""
        timer = ActivityTimer(collector)
        cupti.refused[FLUSH] = 999
        self.sample(cupti, timer, 10 * US)
        assert timer.taken() == [None]
        assert timer.refusal() is not None
        cupti.refused.clear()
        self.sample(cupti, timer, 10 * US)
        assert timer.taken() == [10e-6]

    def test_a_closed_collector_refuses(self, cupti: FakeCupti) -> None:
        """Nothing is recorded: no time, and a void."""
        timer = ActivityTimer(made(cupti))
        self.sample(cupti, timer, 10 * US)
        assert timer.taken() == [None]
        refused = timer.refusal()
        assert refused is not None
        assert refused.code == "cupti-closed"

    def test_windows_and_samples_lie_in_each_other(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """Neither takes the other's records or labels."""
        timer = ActivityTimer(collector)
        with collector.window() as window:
            self.sample(cupti, timer, 10 * US)
            assert timer.taken() == [10e-6]
            self.sample(cupti, timer, 20 * US)
        assert timer.taken() == [20e-6]
        assert len(window.trace().launches) == 2

    def test_a_sample_calls_cupti_three_times(
        self, cupti: FakeCupti, collector: ActivityCollector
    ) -> None:
        """Push and a time before the call, pop after it; no callback of ours."""
        timer = ActivityTimer(collector)
        self.sample(cupti, timer, 10 * US)
        before = len(cupti.log)
        self.sample(cupti, timer, 10 * US)
        assert cupti.log[before:] == [PUSH, "get_timestamp", POP]


def test_names_are_made_readable_in_this_process() -> None:
    """Plain names are readable as they are; a damaged one is nobody's."""
    readable = native_demangler()
    assert readable("triton_poi_fused_add_0") == "triton_poi_fused_add_0"
    if readable("_Z1av") is None:
        pytest.skip("there is no libstdc++ here")
    assert readable("_ZN3foo3barEPKfi") == "foo::bar(float const*, int)"
    assert readable("_Znonsense!") is None


def test_without_a_cpp_library_a_mangled_name_is_not_known() -> None:
    """A name is not a reason to lose a measurement."""
    readable = native_demangler("libnone.so.77")
    assert (readable("_Z1av"), readable("plain")) == (None, "plain")


def test_between_samples_the_label_is_not_zero(
    cupti: FakeCupti, collector: ActivityCollector
) -> None:
    """No header says that an external id of 0 is recorded like others."""
    ActivityTimer(collector).begin()
    labels = [stack for kinds in cupti.threads.values() for stack in kinds.values()]

    assert [stack for stack in labels if stack] == [[1, 2]]
