"""cli.compare: two reports of Nsight Compute beside one another."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fakes import fake_ncu_report
from pytest_gpuperf import cli

DOUBLE = 4  # the kind of a value
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
METRICS: dict[str, tuple[int, Any, str]] = {
    "device__attribute_display_name": (2, "NVIDIA A40", ""),
    "gpu__time_duration.sum": (DOUBLE, 1e6, "ns"),
    "sm__cycles_elapsed.avg.per_second": (DOUBLE, 1.3e9, "hz"),
    "dram__cycles_elapsed.avg.per_second": (DOUBLE, 7.2e9, "hz"),
    "launch__grid_size": (DOUBLE, 64.0, ""),
    "launch__registers_per_thread": (DOUBLE, 32.0, "register/thread"),
    DRAM: (DOUBLE, 50.0, "%"),
    "dram__bytes.sum": (DOUBLE, 1e6, "byte"),
}


@pytest.fixture(autouse=True)
def _reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ncu_report.install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


def capture(folder: Path, name: str, *kernels: str, **changed: float) -> str:
    """Write a report; `changed` has numbers by the last word of a counter's name."""
    metrics = {
        metric: (
            kind,
            next((n for word, n in changed.items() if word in metric), value),
            unit,
        )
        for metric, (kind, value, unit) in METRICS.items()
    }
    launches = [
        {"kernel": kernel, "demangled": f"{kernel}()", "metrics": metrics}
        for kernel in kernels or ("copy",)
    ]
    path = folder / name
    path.write_bytes(b"NVR\0" + json.dumps({"ranges": [launches]}).encode())
    return str(path)


def compared(
    capfdbinary: pytest.CaptureFixture[bytes], *arguments: str
) -> tuple[int, dict[str, Any]]:
    """Compare two captures; return the exit code, and the verdicts by metric."""
    code = cli.main(["compare", *arguments, "--format=json"])
    content = json.loads(capfdbinary.readouterr().out)
    assert content["schema"] == "pytest-gpuperf/capture-comparison/1"
    return code, {d["metric"]: d["verdict"] for d in content["differences"]}


def test_counts_are_exact_and_shares_have_slack(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """One register more is a change; 2 % of two passes is none; time is not judged."""
    was = capture(tmp_path, "was.ncu-rep")
    near = {"dram_throughput": 51.9, "dram__bytes": 1.019e6, "duration": 3e6}
    code, verdicts = compared(capfdbinary, was, capture(tmp_path, "a.ncu-rep", **near))

    assert code == 0
    assert verdicts["time"] is None
    assert {v for metric, v in verdicts.items() if metric != "time"} == {"same"}
    far = {"dram_throughput": 52.1, "dram__bytes": 1.1e6, "registers": 33.0}
    code, verdicts = compared(capfdbinary, was, capture(tmp_path, "b.ncu-rep", **far))
    assert code == 1
    assert (verdicts["registers"], verdicts["dram.bytes"]) == ("changed", "worse")
    assert verdicts["dram.fraction"] == "changed"


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_comparison_keeps_to_the_terminal(
    tmp_path: Path,
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """The kernel stands above its metrics where it has no room; its verdict is whole."""
    monkeypatch.setenv("COLUMNS", str(width))
    name = "cutlass::Kernel<kernel::B2bGemm<threadblock::B2bMma<Shape<64, 32>>>>"
    was = capture(tmp_path, "was.ncu-rep", name)
    now = capture(tmp_path, "now.ncu-rep", name, registers=33.0, dram_throughput=90.0)
    cli.main(["compare", was, now])
    lines = capfdbinary.readouterr().out.decode().splitlines()

    assert max(map(len, lines)) <= width
    assert any(line.endswith("40.0 points  changed") for line in lines)
    assert any("cutlass::Kernel<kernel::B2bGemm" in line for line in lines)


def test_kernels_are_paired_by_name_or_being_alone(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A variant with another name is what people compare; of several, one is gone."""
    was = capture(tmp_path, "was.ncu-rep", "copy")
    renamed = capture(tmp_path, "renamed.ncu-rep", "copy2")
    two = capture(tmp_path, "two.ncu-rep", "copy3", "copy4")

    assert compared(capfdbinary, was, renamed)[1]["registers"] == "same"
    assert cli.main(["compare", was, two]) == 0
    text = capfdbinary.readouterr().out.decode()
    assert text.count("new") == 2
    assert text.count("gone") == 1
    assert cli.main(["compare", was, two, "--strict"]) == 3


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"display_name": "NVIDIA A10G"}, "different GPUs: NVIDIA A40 and NVIDIA A10G"),
        ({"sm__cycles_elapsed": 1.7e9}, "SM clocks differ: 1.30 GHz and 1.70 GHz"),
    ],
)
def test_other_gpus_and_clocks_are_refused(
    tmp_path: Path,
    now: dict[str, Any],
    words: str,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Their numbers are of two experiments: the files are at fault, not the options."""
    was, other = (
        capture(tmp_path, "was.ncu-rep"),
        capture(tmp_path, "now.ncu-rep", **now),
    )

    assert cli.main(["compare", was, other]) == 4
    assert words.encode() in capfdbinary.readouterr().err


def test_short_launches_of_one_clock_are_compared(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Their clocks read low by one factor, and no setting of ncu would bring them nearer."""
    was = capture(tmp_path, "was.ncu-rep")
    short = {"sm__cycles_elapsed": 0.9e9, "dram__cycles_elapsed": 5.0e9}
    held = {"sm__cycles_elapsed": 0.9e9}

    assert cli.main(["compare", was, capture(tmp_path, "a.ncu-rep", **short)]) == 0
    assert cli.main(["compare", was, capture(tmp_path, "b.ncu-rep", **held)]) == 4
    capfdbinary.readouterr()


def test_a_time_without_a_clock_is_not_judged_either(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Who sees an empty verdict reads why."""
    was, now = (
        capture(tmp_path, name, per_second=0.0, duration=time_ns)
        for name, time_ns in (("was.ncu-rep", 1e6), ("now.ncu-rep", 2e6))
    )
    cli.main(["compare", was, now])
    text = capfdbinary.readouterr().out.decode()

    assert "+100 %" in text
    assert "time is not judged: each launch ran alone under ncu\n" in text


def test_a_launch_that_was_not_measured_is_told(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """ncu failed at it: that it is not compared is a fact of the file that has it."""
    was, now = (capture(tmp_path, name) for name in ("was.ncu-rep", "now.ncu-rep"))
    failed = {
        "kernel": "flash",
        "metrics": {"device__attribute_clock_rate": (DOUBLE, 1e6, "")},
    }
    with Path(now).open("rb") as file:
        content = json.loads(file.read().removeprefix(b"NVR\0"))
    content["ranges"][0].append(failed)
    Path(now).write_bytes(b"NVR\0" + json.dumps(content).encode())
    told = "now.ncu-rep: launch 1 (flash) was not measured: ncu failed"

    assert cli.main(["compare", was, now]) == 0
    assert told in capfdbinary.readouterr().out.decode()
    assert cli.main(["compare", was, now, "--format=json"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["remarks"] == [told]


def test_captures_stand_alone(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Neither three of them nor a run beside one is compared."""
    was = capture(tmp_path, "was.ncu-rep")

    assert cli.main(["compare", was, was, was]) == 2
    assert b"3 captures were named" in capfdbinary.readouterr().err
    assert cli.main(["compare", was, os.devnull]) == 2
    assert b"is not a capture" in capfdbinary.readouterr().err
