"""What CUPTI handed over on an NVIDIA H200, to our readers and beside our double."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fakes.cupti import RUNTIME_LAUNCH, FakeCupti
from pytest_gpuperf.collect.cupti.activity import ActivityCollector
from pytest_gpuperf.collect.cupti.range_profiler import Counted
from pytest_gpuperf.collect.traces import read_trace as read_kept
from pytest_gpuperf.collect.translate.activity import Bounds, read_samples, read_trace
from pytest_gpuperf.compute.activity import summarise
from pytest_gpuperf.model.activity import Launches, Trace, TracePlace

GOLD = Path(__file__).parents[3] / "gold" / "gpu"
WINDOWS, SAMPLES = 3, 4  # kinds of labels
COPY, FILL, DRIVER, RUNTIME, KERNEL, OVERHEAD, WAIT, LABEL = 1, 2, 4, 5, 10, 17, 38, 39
MIB = 1 << 20
NS = 1e-9  # s
STEP_BYTES = 512 * 1024 * 4  # a batch
# fields that the probe did not write down; none of these tests asks for one
UNWRITTEN = dict.fromkeys(
    (
        *("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"),
        *("registers_per_thread", "static_shared_memory", "dynamic_shared_memory"),
        *("local_memory_per_thread", "graph_id", "type"),
        *("copy_kind", "src_kind", "dst_kind", "overhead_kind"),
    ),
    0,
)

Row = dict[str, Any]
Relation = list[tuple[object, ...]]


def asked(question: str) -> list[list[Row]]:
    """Return the records of each recording of a question, as they came."""
    recordings: list[list[Row]] = []
    for line in (GOLD / "records.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        if row.pop("question") != question:
            continue
        if "unrecorded" in row and row not in [r[0] for r in recordings]:
            recordings.append([row])  # CUPTI's clock around it
        elif "kind" in row:
            recordings[-1].append(row)
    return recordings


def records(rows: list[Row]) -> list[Any]:
    """Return records as CUPTI's binding has them."""
    return [SimpleNamespace(**(UNWRITTEN | row)) for row in rows if "kind" in row]


def of_kind(rows: list[Row], *kinds: int) -> list[Row]:
    return [row for row in rows if row.get("kind") in kinds]


def traced(rows: list[Row], *, label_kind: int = WINDOWS, first: int = 1) -> Trace:
    """Return the trace of a window around all of a recording."""
    begun_ns, returned_ns, ended_ns = rows[0]["begun_returned_ended_ns"]
    bounds = Bounds(
        label_kind=label_kind,
        first=first,
        begun_ns=begun_ns,
        returned_ns=returned_ns,
        ended_ns=ended_ns,
    )
    return read_trace([records(rows)], bounds)


def launched(trace: Trace) -> Launches:
    """Return the launches, which are few enough for memory."""
    assert isinstance(trace.launches, Launches)
    return trace.launches


def spans_s(rows: list[Row], first: int, begins_ns: list[int]) -> list[float | None]:
    """Return the spans of samples."""
    found = read_samples(
        [records(rows)],
        label_kind=SAMPLES,
        first=first,
        begins_ns=begins_ns,
        places={},
    )
    return [sample.span_s for sample in found]


class TestRawRecords:
    """Records of known calls become what these calls were."""

    def test_a_label_places_a_launch_in_its_sample(self) -> None:
        """Of the labels 0 to 7 three were pushed, 0 among them; when counts for nothing."""
        (rows,) = asked("labels")
        lengths_s = [(r["end"] - r["start"]) * NS for r in of_kind(rows, KERNEL)]
        zero, one, seven = lengths_s

        # by time all three would be in the last sample
        found = spans_s(
            rows, first=0, begins_ns=8 * [rows[0]["begun_returned_ended_ns"][0]]
        )

        assert found == pytest.approx([zero, one, None, None, None, None, None, seven])

    def test_a_flush_of_the_cache_is_in_no_sample(self) -> None:
        """Its memset has the label 1, which stands before the first sample's."""
        (rows,) = asked("cold_sample")
        (fill,), (kernel,) = of_kind(rows, FILL), of_kind(rows, KERNEL)
        begun_ns, *_ = rows[0]["begun_returned_ended_ns"]

        (span_s,) = spans_s(rows, first=2, begins_ns=[begun_ns])

        assert fill["bytes"] == 120 * MIB
        assert begun_ns < fill["start"]  # by time it would be in the sample
        assert span_s == pytest.approx((kernel["end"] - kernel["start"]) * NS)

    def test_a_window_has_the_flush_and_the_launch(self) -> None:
        """Without a label of its own the time decides; a memset is no launch."""
        (rows,) = asked("cold_sample")
        (kernel,), (call,) = of_kind(rows, KERNEL), of_kind(rows, RUNTIME)
        trace = traced(rows)

        assert len(trace.launches) == trace.host_launches_count == 1
        assert [size for size, _, _ in trace.fills] == [120 * MIB]
        assert list(trace.latencies_ns) == [kernel["start"] - call["start"]]
        assert trace.unlabelled_count == 2
        assert sum(trace.synchronizations.values()) == 1  # not the one that ends it

    def test_a_window_leaves_out_what_an_earlier_label_has(self) -> None:
        """Of three launches in its time those of labels 1 and 7 are a window's from 1 on."""
        (rows,) = asked("labels")
        _, *lengths_ns = [r["end"] - r["start"] for r in of_kind(rows, KERNEL)]
        trace = traced(rows, label_kind=SAMPLES, first=1)
        columns = launched(trace)

        assert [
            end - start
            for start, end in zip(columns.start_ns, columns.end_ns, strict=True)
        ] == lengths_ns
        assert trace.host_launches_count == 2
        assert trace.unlabelled_count == 0
        (rows,) = asked("cold_sample")
        assert traced(rows, label_kind=SAMPLES, first=2).fills == ()

    def test_host_launches_and_their_latencies(self) -> None:
        """Each of the calls launched one kernel, as long after it as the probe counted."""
        (rows,) = asked("launch_gaps")
        told = (GOLD / "records.jsonl").read_text("utf-8").splitlines()
        (gaps_ns,) = (json.loads(line)["gaps_ns"] for line in told if "gaps_ns" in line)
        count = len(of_kind(rows, KERNEL))
        trace = traced(rows)

        assert count > 20
        assert (len(trace.launches), trace.host_launches_count) == (count, count)
        assert list(trace.latencies_ns) == gaps_ns[:count]
        assert min(trace.latencies_ns) > 0  # the clocks agree so far

    @pytest.mark.parametrize(
        "question", ["labels", "cold_sample", "launch_gaps", "counters"]
    )
    def test_a_launch_by_torch_is_one_call_of_the_runtime(self, question: str) -> None:
        """The driver's call inside cudaLaunchKernel has no record, though its kind is on."""
        for rows in asked(question):
            for kernel in of_kind(rows, KERNEL):
                calls = [
                    (r["kind"], r["cbid"])
                    for r in of_kind(rows, DRIVER, RUNTIME)
                    if r["correlation_id"] == kernel["correlation_id"]
                ]
                assert calls == [(RUNTIME, RUNTIME_LAUNCH)]

    def test_counting_leaves_recording_as_it_was(self) -> None:
        """After the range profiler the same calls have the same records."""
        before, after = asked("counters")

        assert relation(after) == relation(before)
        assert len(of_kind(after, KERNEL)) == 2

    def test_what_is_counted_comes_in_the_order_of_running(self) -> None:
        """The first range is as long as the first kernel was, the second as the second."""
        before, _ = asked("counters")
        text = (GOLD / "records.jsonl").read_text("utf-8")
        counted_ns = re.findall(
            r"gpu__time_duration.sum': CounterValue\(value=([\d.]+)", text
        )
        lengths_ns = [r["end"] - r["start"] for r in of_kind(before, KERNEL)]

        assert [float(ns) for ns in counted_ns] == pytest.approx(lengths_ns, rel=0.02)
        assert (
            lengths_ns[0] > 1.5 * lengths_ns[1]
        )  # in the other order they are far off


def relation(rows: list[Row]) -> Relation:
    """Return kinds in order, with numbered ids and labels; waits and costs have no call."""
    places: dict[int, int] = {}
    return [
        (row["kind"],)
        if row["kind"] == WAIT
        else (
            row["kind"],
            places.setdefault(row["correlation_id"], len(places)),
            row.get("external_kind"),
            row.get("external_id"),
            row.get("cbid"),
        )
        for row in rows
        if row.get("kind") not in {None, OVERHEAD}
    ]


@pytest.fixture
def double() -> FakeCupti:
    """Ours, on the classes of the real binding."""
    real = pytest.importorskip("cupti.cupti", reason="cupti-python is not installed")
    return FakeCupti(real)


def handed_over(double: FakeCupti, body: Callable[[], object]) -> Relation:
    """Return what the double hands over of some calls, and of the wait after them."""
    batches: list[Any] = []
    collector = ActivityCollector(double.synchronize, cupti=double, environment={})
    collector.open()
    try:
        collector.flush()
        sink = collector.listen()
        body()
        double.synchronize()
        collector.flush()
        batches += sink.taken()
    finally:
        collector.close()
    names = ("kind", "correlation_id", "external_kind", "external_id", "cbid")
    return relation(
        [
            {name: getattr(r, name) for name in names if hasattr(r, name)}
            for batch in batches
            for r in batch
        ]
    )


class TestDouble:
    """The same calls, the same records: kinds, order, ids and labels."""

    def test_labels(self, double: FakeCupti) -> None:
        """One label stands before the kernel and the call of its id."""

        def body() -> None:
            for label in (0, 1, 7):
                double.activity_push_external_correlation_id(SAMPLES, label)
                double.launch(cbid=RUNTIME_LAUNCH, runtime=True)
                double.activity_pop_external_correlation_id(SAMPLES)

        found = handed_over(double, body)

        assert [r for r in found if r[0] == LABEL] == [
            (LABEL, place, SAMPLES, label, None)
            for place, label in enumerate((0, 1, 7))
        ]
        assert found == relation(asked("labels")[0])

    def test_a_cold_sample(self, double: FakeCupti) -> None:
        """A fill by the driver, a wait, and a launch under the upper label of two."""

        def body() -> None:
            double.activity_push_external_correlation_id(SAMPLES, 1)
            double.fill(120 * MIB, cbid=249)  # cuMemsetD32Async
            double.synchronize()
            double.activity_push_external_correlation_id(SAMPLES, 2)
            double.launch(cbid=RUNTIME_LAUNCH, runtime=True)
            double.activity_pop_external_correlation_id(SAMPLES)
            double.activity_pop_external_correlation_id(SAMPLES)

        assert handed_over(double, body) == relation(asked("cold_sample")[0])

    def test_launches_alone(self, double: FakeCupti) -> None:
        """Without a label there is a kernel and its call, each with the other's id."""
        real = relation(asked("launch_gaps")[0])

        def body() -> None:
            for _ in range(len(real) // 2):
                double.launch(cbid=RUNTIME_LAUNCH, runtime=True)

        # the recording was cut before its end, and with it before the last wait
        assert handed_over(double, body)[:-1] == real[: len(real) // 2 * 2]

    def test_a_copy_a_sum_and_a_fill(self, double: FakeCupti) -> None:
        """The work of a call stands before it, whatever work it is."""

        def body() -> None:
            double.copy(8, 1 << 30, source=3, target=3, runtime=True)
            double.launch(cbid=RUNTIME_LAUNCH, runtime=True)
            double.fill(4, runtime=True)
            double.launch(cbid=RUNTIME_LAUNCH, runtime=True)

        assert handed_over(double, body) == relation(asked("counters")[0])


class TestKept:
    """A training step that was traced, eager and as a graph."""

    def test_an_eager_step(self) -> None:
        """Each kernel is a call; the batch comes from pinned memory, the loss goes back."""
        trace = kept("eager")
        found = summarise(trace)
        moved = [(c.direction, c.source, c.size_bytes) for c in trace.copies]

        assert found.launches_count == found.host_launches_count == 40
        assert len(trace.latencies_ns) == 40
        assert ("host_to_device", "pinned", STEP_BYTES) in moved
        assert ("device_to_host", "device", 4) in moved
        # autograd launches the backward pass from a thread of its own, without a label
        assert 0 < found.unlabelled_count < 40
        assert found.synchronizations_count == 1  # float(loss) waits
        assert set(launched(trace).graph) == {0}

    def test_a_step_as_a_graph(self) -> None:
        """One call launches what an eager step launches one by one, and waits for nothing."""
        trace = kept("graph")
        found = summarise(trace)

        assert (found.launches_count, found.host_launches_count) == (49, 1)
        assert len(trace.latencies_ns) == 1
        assert trace.copies == ()
        assert found.synchronizations_count == 0
        assert len(set(launched(trace).graph)) == 1
        assert set(launched(trace).graph) != {0}

    def test_a_graph_leaves_the_device_less_idle(self) -> None:
        """The same products take as long; the time between them is gone."""
        eager, graph = summarise(kept("eager")), summarise(kept("graph"))
        products = [
            {k.shape.name: k.total_s for k in each.kernels if "gemm" in k.shape.name}
            for each in (eager, graph)
        ]

        assert products[0].keys() == products[1].keys()
        assert sum(products[0].values()) == pytest.approx(
            sum(products[1].values()), rel=0.05
        )
        assert eager.idle_fraction is not None
        assert graph.idle_fraction is not None
        assert eager.idle_fraction > 0.5
        assert graph.idle_fraction < 0.1


def kept(name: str) -> Trace:
    """Return a trace that was kept."""
    place = TracePlace(file=f"traces-{name}.jsonl", line=1, offset_bytes=0)
    return read_kept(str(GOLD / "activity"), place)


def test_what_was_counted_is_what_was_done() -> None:
    """Two kernels read 256 MiB each and write it; as one range they do so together."""
    counted = msgspec.json.decode(
        (GOLD / "counters.json").read_bytes(), type=dict[str, Counted]
    )
    kernels, ranges = counted["kernels"], counted["ranges"]
    read, written = "dram__bytes_read.sum", "dram__bytes_write.sum"
    size = 256 * MIB

    assert [each.name for each in kernels.ranges] == ["0", "1"]
    for each in kernels.ranges:
        assert each.metrics[read].value == pytest.approx(size, rel=0.01)
        # an L2 of 60 MB keeps some of it back
        assert each.metrics[written].value == pytest.approx(size, rel=0.05)
    (both,) = ranges.ranges
    assert both.name == "both"
    assert both.metrics[read].value == pytest.approx(2 * size, rel=0.01)
    assert both.metrics[written].value == pytest.approx(2 * size, rel=0.01)
    assert {m.unit for m in both.metrics.values()} == {"nsecond", "byte", "%"}
    assert (kernels.void, ranges.void) == (None, None)
    assert (kernels.mode.replay, ranges.mode.replay) == ("kernel", "user")
