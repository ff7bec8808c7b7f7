"""Rules of collect.translate.results: what other tools have measured, in SI units."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from pytest_gpuperf.collect.translate.results import foreign_results
from pytest_gpuperf.errors import RecordError


def of_pytest_benchmark(**changed: Any) -> dict[str, Any]:
    """Return a file of pytest-benchmark 4 or 5, as far as it is read."""
    stats = {"min": 0.9e-3, "median": 1.0e-3, "rounds": 9, "ops": 1000.0}
    given = {
        "machine_info": {
            "node": "n",
            "python_version": "3.11.2",
            "cpu": {"brand_raw": "Xeon", "count": 2, "hz_advertised": [1, 0]},
        },
        "commit_info": {"id": "2f23", "dirty": False, "branch": "main", "project": "p"},
        "benchmarks": [
            {"name": "test_a", "fullname": "t/test_a.py::test_a", "stats": stats}
        ],
        "datetime": "2023-03-07T13:40:20.403009",
        "version": "4.0.0",
    }
    return given | changed


def state(tag: str, value: Any, **changed: Any) -> dict[str, Any]:
    """Return a state of nvbench with one summary."""
    data = [{"name": "value", "type": "float64", "value": value}]
    given = {
        "name": "Device=0",
        "device": 0,
        "axis_values": [{"name": "N", "type": "int64", "value": "65536"}],
        "summaries": [{"tag": tag, "name": "x", "data": data}],
        "is_skipped": False,
    }
    return given | changed


def of_nvbench(*states: dict[str, Any]) -> dict[str, Any]:
    """Return a file of nvbench with one benchmark."""
    return {
        "meta": {
            "argv": [],
            "version": {"json": {"major": 1}, "nvbench": {"major": 0}},
        },
        "devices": [
            {"id": 0, "name": "NVIDIA A100", "number_of_sms": 108, "ecc_state": True}
        ],
        "benchmarks": [{"name": "copy", "index": 0, "states": [*states]}],
    }


def read(content: object) -> Any:
    """Return the results of a file."""
    return foreign_results(json.dumps(content).encode(), path="x.json")


def test_a_run_of_pytest_benchmark_is_read() -> None:
    """The median, and where and when it was measured."""
    results = read(of_pytest_benchmark())

    (time,) = results.times
    assert (time.test_id, time.value_s, time.source) == (
        "t/test_a.py::test_a",
        1.0e-3,
        "host",
    )
    assert time.facts == {
        "cpu_model": "Xeon",
        "core_count": "2",
        "python_minor": "3.11",
        "method": "pytest-benchmark/4",
    }
    assert time.quantiles_s == ()
    # The time has no zone, and is UTC.
    assert results.started_unix_s == pytest.approx(1678196420.403009)
    assert (results.commit, results.dirty, results.branch) == ("2f23", False, "main")


def test_what_a_run_does_not_say_is_unknown() -> None:
    """Older versions, and a project without a repository."""
    content = of_pytest_benchmark(
        machine_info={"node": "n"},
        commit_info={"id": "unversioned", "branch": "(unknown)"},
    )
    del content["datetime"], content["version"]

    results = read(content)

    assert results.times[0].facts == {"method": "pytest-benchmark/?"}
    assert (results.started_unix_s, results.commit, results.branch) == (
        None,
        None,
        None,
    )


def test_samples_have_quantiles() -> None:
    """As of --benchmark-save-data."""
    content = of_pytest_benchmark()
    content["benchmarks"][0]["stats"]["data"] = [number / 100 for number in range(101)]

    (time,) = read(content).times

    assert time.quantiles_s == pytest.approx((0.05, 0.25, 0.5, 0.75, 0.95))


def test_times_of_nvbench_are_read() -> None:
    """By their tag; a number may be a text, as in files of version 1."""
    states = [
        state("nv/cold/time/gpu/mean", "1.25e-05"),
        state("nv/batch/time/gpu/mean", 1.0e-05),
        state("nv/cold/time/cpu/mean", 2.0e-05, axis_values=None),
    ]
    results = read(of_nvbench(*states))

    assert [(t.test_id, t.name, t.value_s, t.source) for t in results.times] == [
        ("copy::N=65536", "", 1.25e-5, "events"),
        ("copy::N=65536", "batch", 1.0e-5, "events"),
        ("copy", "", 2.0e-5, "host"),
    ]
    assert [t.facts["cache_mode"] for t in results.times] == ["cold", "warm", "cold"]
    assert results.times[0].facts["gpu_name"] == "NVIDIA A100"
    assert results.started_unix_s is None


def test_two_devices_are_two_tests() -> None:
    """Boards of one model have the same slug."""
    states = [state("nv/cold/time/gpu/mean", 1e-5, device=n) for n in (0, 1)]

    assert [time.test_id for time in read(of_nvbench(*states)).times] == [
        "copy::Device=0,N=65536",
        "copy::Device=1,N=65536",
    ]


def test_a_state_without_a_time_is_named() -> None:
    """With the reason that nvbench gives, if it gives one."""
    states = [
        state("nv/cold/time/gpu/mean", 1e-5, is_skipped=True, skip_reason="too large"),
        state("nv/cold/bw/global/utilization", 0.5, axis_values=[]),
    ]
    results = read(of_nvbench(*states))

    assert results.times == ()
    assert results.left_out == ("copy::N=65536: too large", "copy: it has no time")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"meta": {"version": 1}}, "not a result of pytest-benchmark or nvbench"),
        ([], "not a result of pytest-benchmark or nvbench"),
        ({"context": {"num_cpus": 4}}, "a result of Google Benchmark"),
        (of_pytest_benchmark(benchmarks=[{"fullname": "x"}]), "stats"),
        (of_pytest_benchmark(datetime="yesterday"), "datetime"),
        (of_nvbench(state("nv/cold/time/gpu/mean", "fast")), "fast"),
    ],
)
def test_another_file_is_refused(content: object, said: str) -> None:
    """With its name, and what is wrong."""
    with pytest.raises(RecordError, match=said) as caught:
        read(content)

    assert caught.value.path == "x.json"
    assert caught.value.remedy


def test_a_file_that_is_nested_too_deeply_is_refused() -> None:
    """With its name, and no traceback."""
    text = b'{"machine_info": ' + b"[" * 10_000

    with pytest.raises(RecordError, match="recursion") as caught:
        foreign_results(text, path="x.json")

    assert caught.value.path == "x.json"
    assert caught.value.remedy


def test_a_table_of_nvbench_has_a_remedy_for_json() -> None:
    """The remedy names the option that writes JSON."""
    with pytest.raises(RecordError, match="a table that nvbench printed") as caught:
        foreign_results(b"Benchmark,Device,Device Name,Skipped\n", path="x.csv")

    assert "nvbench's --json" in caught.value.remedy


def test_a_compressed_result_must_be_uncompressed() -> None:
    """The remedy is not that of the content."""
    text = gzip.compress(json.dumps(of_pytest_benchmark()).encode())
    with pytest.raises(RecordError, match="with gzip; uncompress it: gunzip"):
        foreign_results(text, path="")


@pytest.mark.parametrize(
    "content",
    [
        of_pytest_benchmark(),
        of_nvbench(state("nv/cold/time/gpu/mean", "0.00125")),
    ],
    ids=["pytest-benchmark", "nvbench"],
)
def test_a_result_that_is_cut_anywhere_is_refused(content: dict[str, Any]) -> None:
    """Its last number would be another one."""
    text = json.dumps(content).encode()
    for place in range(len(text)):
        with pytest.raises(RecordError):
            foreign_results(text[:place], path="x.json")
