"""The commands `gpuperf metrics …`: what a shell sees of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.chips import need_library
from fakes.project import HUNG_S, command
from pytest_gpuperf.report.lines import SCHEMAS

DRAM = "dram__bytes.sum"


def metrics(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return command("metrics", *arguments)


def parsed(*arguments: str) -> Any:
    """Return what the command prints as JSON."""
    need_library()
    done = metrics(*arguments, "--format=json")
    assert done.stderr == ""
    content = json.loads(done.stdout)
    assert content["schema"] == SCHEMAS[f"metrics {arguments[0]}"]
    return content


def test_chips_are_listed_with_their_capability() -> None:
    """Each chip has its counts, and its capability in a compiler's spelling."""
    chips = {each["name"]: each for each in parsed("chips")["chips"]}
    assert chips["GH100"]["capability"] == "sm_90"
    assert chips["GH100"]["counters"] > 3000


def test_metrics_are_listed_by_kind_and_searched() -> None:
    """A list is that of a kind, a search has all words in name or description."""
    listed = parsed("list", "--chip=GH100", "--kind=throughput")
    assert listed["chip"] == "GH100"
    assert {each["kind"] for each in listed["metrics"]} == {"throughput"}
    found = parsed("search", "--chip=gh100", "dram", "read")["metrics"]
    assert "dram__bytes_read" in {each["base"] for each in found}

    nothing = metrics("search", "--chip=GH100", "dram", "nosuchword")
    assert nothing.returncode == 1
    assert "GH100 has no metric with all of these" in nothing.stderr
    assert "'dram', 'nosuchword'" in nothing.stderr


def test_a_metric_is_described() -> None:
    """A description has unit, part, endings and the passes of the metric alone."""
    (found,) = parsed("describe", "--chip=GH100", DRAM)["metrics"]
    assert (found["unit"], found["hardware_unit"], found["passes"]) == (
        "byte",
        "dram",
        1,
    )
    assert ".sum.per_second" in found["endings"]
    said = metrics("describe", "--chip=GH100", DRAM).stdout.replace("\n    ", " ")
    assert "endings: .avg .max .min .sum, alone or with one of .peak_sustained" in said


def test_known_names_are_good() -> None:
    """Names that are all known exit with 0."""
    need_library()
    done = metrics("check", "--chip=GH100", DRAM, "launch__grid_size")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{DRAM}: counter",
        "launch__grid_size: computed by Nsight Compute: known without counting",
    ]


def test_names_may_stand_together_as_ncu_takes_them() -> None:
    """A list with commas is several names, in each argument; nothing is not a name."""
    names = [
        each["name"]
        for each in parsed("check", f"{DRAM},a__b , c__d", "e__f", "--chip=GH100")[
            "names"
        ]
    ]
    assert names == [DRAM, "a__b", "c__d", "e__f"]

    empty = metrics("check", "--chip=GH100", "")
    assert (empty.returncode, empty.stdout) == (2, "")
    assert "NAME: no metric is named" in empty.stderr


@pytest.mark.parametrize("form", ["text", "json", "markdown"])
def test_an_unknown_name_exits_with_1_and_is_explained(form: str) -> None:
    """One unknown name among known ones exits with 1; what was meant is printed."""
    need_library()
    done = metrics(
        "check", "--chip=GB202", DRAM, "dram__bytes_read.sum", f"--format={form}"
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "dram__bytes_op_read.sum" in done.stdout


def test_passes_are_printed() -> None:
    """The passes of a list are those of its metrics together."""
    name = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
    found = parsed("passes", "--chip=GH100", DRAM, name)
    assert (found["passes"], found["replays"]) == (8, 9)
    assert found["alone"] == {DRAM: 1, name: 8}
    said = metrics("passes", "--chip=GH100", DRAM, name).stdout
    assert said.startswith("GH100: 8 passes (about 9 runs of each launch")


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_every_command_has_every_form(form: str) -> None:
    """Text and Markdown hold what JSON does."""
    need_library()
    for arguments, word in (
        (("chips",), "GB202"),
        (("list", "--chip=GH100"), "dram__bytes_read"),
        (("search", "--chip=GH100", "dram"), "dram__bytes_read"),
        (("describe", "--chip=GH100", "sm__throughput"), "sm__memory_throughput"),
        (("check", "--chip=GH100", DRAM), DRAM),
        (("passes", "--chip=GH100", DRAM), DRAM),
    ):
        done = metrics(*arguments, f"--format={form}")
        assert (done.returncode, done.stderr) == (0, ""), arguments
        assert word in done.stdout, arguments


def test_wrong_usage_exits_with_2() -> None:
    """An unknown chip, or an unknown name where a number was asked for, is usage."""
    need_library()
    for arguments, said in (
        (("check", "--chip=GH10", DRAM), "GH100"),
        (("passes", "--chip=GH100", "foo__bar.sum", DRAM), "foo__bar.sum"),
        (("describe", "--chip=GH100", "foo__bar.sum"), "foo__bar.sum"),
        (("describe", "--chip=GH100", "x__y.sum", "foo__bar.sum"), "foo__bar.sum: GH"),
    ):
        done = metrics(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert "remedy:" in done.stderr


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/no/such/libnvperf_host.so", "No such file"),
        (str(Path(__file__).parent), "Is a directory"),
        (__file__, "invalid ELF header"),
        ("libc.so.6", "NVPW_InitializeHost of libc.so.6 failed: 5"),
    ],
    ids=["nothing", "folder", "text", "another"],
)
@pytest.mark.skipif(sys.platform != "linux", reason="as a loader words it")
def test_a_named_library_that_is_none_is_said_to_be(path: str, found: str) -> None:
    """The variable, its value, what is there, and what to set instead."""
    done = subprocess.run(  # a library that was loaded stays so
        [sys.executable, "-m", "pytest_gpuperf", "metrics", "chips"],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env={**os.environ, "GPUPERF_NVPERF_HOST": path},
        timeout=HUNG_S,
    )
    error, remedy = done.stderr.splitlines()
    assert done.returncode == 4
    assert f"GPUPERF_NVPERF_HOST is {path}: " in error
    assert found in error
    assert "set it to the path of a libnvperf_host.so, or unset it and " in remedy
