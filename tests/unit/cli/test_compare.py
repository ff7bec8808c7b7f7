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
    assert content["schema"] == "pytest-gpuperf/capture-comparison/2"
    return code, {d["metric"]: d["verdict"] for d in content["differences"]}


def test_counts_are_exact_and_shares_have_slack(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """One register more is a change; 2 % of two passes is none; a time fails nothing by itself."""
    was = capture(tmp_path, "was.ncu-rep")
    near = {"dram_throughput": 51.9, "dram__bytes": 1.019e6, "duration": 3e6}
    code, verdicts = compared(capfdbinary, was, capture(tmp_path, "a.ncu-rep", **near))

    assert code == 0
    assert verdicts["time"] == "slower"
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
    assert cli.main(["compare", was, renamed]) == 0
    text = capfdbinary.readouterr().out.decode()
    assert "other names: copy() -> copy2(), each the only kernel of its report" in text
    assert cli.main(["compare", was, two]) == 0
    text = capfdbinary.readouterr().out.decode()
    verdicts = [line.split()[-1] for line in text.splitlines() if "launches" in line]
    assert verdicts == ["new", "new", "gone"]
    assert "other names" not in text
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
    assert (
        "time is not judged: SM clocks differ by more than 1 %, or are unknown\n"
        in text
    )
    assert "each launch ran alone under ncu\n" in text


def test_other_numbers_of_launches_are_compared_per_launch(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Three launches of 1 ms and four of 0.8 ms are faster, not slower, in every format."""
    was = capture(tmp_path, "was.ncu-rep", *["copy"] * 3)
    faster = {"duration": 0.8e6, "dram__bytes": 1.5e6}
    now = capture(tmp_path, "now.ncu-rep", *["copy"] * 4, **faster)

    assert cli.main(["compare", was, now]) == 1
    text = capfdbinary.readouterr().out.decode()
    rows = [line.split() for line in text.splitlines()]
    time = "copy() time per launch 1.00 ms 800 us -20.0 % faster"
    count = "copy() launches.count 3 4 +33.3 % captured"
    dram = "copy() dram.bytes per launch 1 MB 1.5 MB +50.0 % worse"
    for row in (time, count, dram):
        assert row.split() in rows
    assert "per launch: 3 and 4 launches of copy()\n" in text
    assert "time: 1 kernel faster at the same clock, by more than 3 %\n" in text
    assert "ncu, at 1.30 GHz and 1.30 GHz\n" in text
    assert cli.main(["compare", was, now, "--format=markdown"]) == 1
    page = capfdbinary.readouterr().out.decode()
    assert (
        "| `copy()` | time per launch | 1.00 ms | 800 us | -20.0 % | faster |" in page
    )
    assert "per launch: 3 and 4 launches of `copy()`\n" in page
    assert cli.main(["compare", was, now, "--format=json"]) == 1
    content = json.loads(capfdbinary.readouterr().out)
    rows_of = {d["metric"]: d for d in content["differences"]}
    assert rows_of["time"] == {
        "kernel": "copy()",
        "was_kernel": None,
        "metric": "time",
        "unit": "s",
        "was": pytest.approx(1e-3),
        "now": pytest.approx(0.8e-3),
        "verdict": "faster",
        "per_launch": True,
        "launches": [3, 4],
        "grids": [[64], [64]],
        "sm_clocks_hz": [1.3e9, 1.3e9],
    }
    assert rows_of["launches.count"]["verdict"] == "captured"
    assert not rows_of["dram.fraction"]["per_launch"]


def test_the_name_of_a_kernel_is_no_markup(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Neither in a table nor in a sentence of Markdown."""
    name = "at::<unnamed>::copy|@team*x*"
    was = capture(tmp_path, "was.ncu-rep", name)
    now = capture(tmp_path, "now.ncu-rep", name, name)
    cli.main(["compare", was, now, "--format=markdown"])
    page = capfdbinary.readouterr().out.decode()

    assert "| `at::<unnamed>::copy\\|@team*x*()` | time per launch |" in page
    assert "per launch: 1 and 2 launches of `at::<unnamed>::copy" in page


def test_totals_are_compared_on_request(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """For captures of whole programs, in which the number of launches is a result."""
    was = capture(tmp_path, "was.ncu-rep", *["copy"] * 3)
    now = capture(tmp_path, "now.ncu-rep", *["copy"] * 4, duration=0.8e6)

    assert compared(capfdbinary, was, now)[0] == 0
    code, verdicts = compared(capfdbinary, was, now, "--total")
    assert code == 1
    assert (verdicts["dram.bytes"], verdicts["time"]) == ("worse", "slower")
    assert verdicts["launches.count"] == "captured"
    cli.main(["compare", was, now, "--total"])
    text = capfdbinary.readouterr().out.decode()
    assert "in total: 3 and 4 launches of copy()\n" in text
    assert "time in total: 1 kernel slower at the same clock" in text
    assert "per launch" not in text


@pytest.mark.parametrize(
    ("changed", "codes"),
    [
        ({}, {"slower": 0, "worse": 0, "any": 0, "never": 0}),
        ({"duration": 1.1e6}, {"slower": 1, "worse": 0, "any": 1, "never": 0}),
        ({"duration": 0.9e6}, {"slower": 0, "worse": 0, "any": 1, "never": 0}),
        ({"dram__bytes": 2e6}, {"slower": 0, "worse": 1, "any": 1, "never": 0}),
        ({"dram__bytes": 5e5}, {"slower": 0, "worse": 0, "any": 1, "never": 0}),
        ({"registers": 33.0}, {"slower": 0, "worse": 0, "any": 1, "never": 0}),
        # The times are at clocks that differ.
        (
            {"duration": 1.1e6, "sm__cycles": 1.2e9},
            {"slower": 3, "worse": 0, "any": 0, "never": 0},
        ),
    ],
)
def test_what_gives_the_exit_code_is_chosen(
    tmp_path: Path,
    changed: dict[str, float],
    codes: dict[str, int],
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """A gate of times is not one of counters; the default is that of the counters."""
    was = capture(tmp_path, "was.ncu-rep")
    now = capture(tmp_path, "now.ncu-rep", **changed)
    command = ["compare", was, now, "--strict"]

    ended = {kind: cli.main([*command, f"--fail-on={kind}"]) for kind in codes}
    assert ended == codes
    assert cli.main(command) == codes["worse"]
    capfdbinary.readouterr()


def test_only_captures_are_compared_per_launch(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Options without a meaning for runs are refused together."""
    run = str(tmp_path / "run.json")

    for command in ([run, run], ["--against=HEAD"]):
        assert cli.main(["compare", *command, "--fail-on=slower", "--total"]) == 2
        message = capfdbinary.readouterr().err.decode()
        assert "comparison of two captures or two binaries has --fail-on;" in message
        assert "only a comparison of two captures has --total" in message


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e308])
def test_a_launch_without_a_number_has_no_part_in_a_total(
    tmp_path: Path, number: float, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The time of two launches out of three is the time of nothing."""
    was = capture(tmp_path, "was.ncu-rep", "copy", "copy")
    now = capture(tmp_path, "now.ncu-rep", "copy", "copy", "copy")
    content = json.loads(Path(now).read_bytes().removeprefix(b"NVR\0"))
    metrics = content["ranges"][0][1]["metrics"]
    metrics["gpu__time_duration.sum"] = (DOUBLE, number, "ns")
    metrics["dram__bytes.sum"] = (DOUBLE, number, "byte")
    Path(now).write_bytes(b"NVR\0" + json.dumps(content).encode())

    _, verdicts = compared(capfdbinary, was, now)
    assert (verdicts["time"], verdicts["dram.bytes"]) == ("gone", "gone")


def test_other_grids_are_told(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The launches of a kernel may have done other work, even if there are as many."""
    was = capture(tmp_path, "was.ncu-rep", "copy", "fill")
    now = capture(tmp_path, "now.ncu-rep", "copy", "fill")
    content = json.loads(Path(now).read_bytes().removeprefix(b"NVR\0"))
    metrics = content["ranges"][0][0]["metrics"]
    content["ranges"][0].append(json.loads(json.dumps(content["ranges"][0][0])))
    metrics["launch__grid_size"] = (DOUBLE, 4096.0, "")
    Path(now).write_bytes(b"NVR\0" + json.dumps(content).encode())
    cli.main(["compare", was, now])
    text = capfdbinary.readouterr().out.decode()

    told = "other grids, so that launches may do other work: copy() 64 -> 64 … 4096\n"
    assert told in text


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
