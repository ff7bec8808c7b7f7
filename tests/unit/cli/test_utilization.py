"""cli.utilization: what GPUs were busy with, from files of other tools and of ours."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from fakes import runs
from pytest_gpuperf import cli
from pytest_gpuperf.model.codec import encode_run
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.telemetry import TimeLine

DMON = """\
#Entity   SMACT   TENSO   DRAMA  GRACT
ID
GPU 0     0.930   0.610   0.380  0.99
GPU 1     0.010   0.000   0.010  0.02
GPU 0     0.930   0.610   0.380  0.99
"""
EXPORTER = """\
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-a",modelName="NVIDIA H200"} 0.93
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-a",modelName="NVIDIA H200"} 0.61
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-a",modelName="NVIDIA H200"} 0.38
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-a",modelName="NVIDIA H200"} 0.99
"""
SMI = "timestamp, index, utilization.gpu [%], temperature.gpu\n2025/03/01 12:00:00.000, 0, 98 %, 99\n"


def shown(
    capfdbinary: pytest.CaptureFixture[bytes], *arguments: str
) -> tuple[int, str]:
    code = cli.main(["utilization", *arguments])
    return code, capfdbinary.readouterr().out.decode()


@pytest.mark.parametrize("text", [DMON, EXPORTER])
def test_each_tool_is_known_by_its_first_lines(
    tmp_path: Path, text: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Score, class, bottleneck and health of the average reading, as docs say."""
    path = tmp_path / "readings"
    path.write_text(text)
    code, content = shown(capfdbinary, str(path), "--format=json")
    first = json.loads(content)["gpus"][0]

    assert code == 0
    assert first["real_util"] == pytest.approx(71.4)
    assert first["workload_class"] == "tensor-heavy compute"
    assert (first["bottleneck"], first["health"]) == ("compute", "OK")
    for form in ("text", "markdown"):
        _, content = shown(capfdbinary, str(path), f"--format={form}")
        assert "71.4" in content
        assert "100 % tensor-heavy compute" in content


def test_a_reading_without_counters_has_no_class(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """nvidia-smi does not say what the SMs did, but how hot the die was."""
    path = tmp_path / "smi.csv"
    path.write_text(SMI)
    _, content = shown(capfdbinary, str(path), "--format=json")
    (gpu,) = json.loads(content)["gpus"]

    assert (gpu["real_util"], gpu["workload_class"]) == (None, None)
    assert gpu["health"] == "HOT"
    _, text = shown(capfdbinary, str(path))
    assert "n/a: no reading of sm_active_fraction" in text


def test_csv_has_a_row_for_each_reading(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From standard input; the weights change the score."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(DMON.encode())))
    _, content = shown(capfdbinary, "-", "--format=csv", "--weights=1,0,0,0")
    rows = list(csv.DictReader(io.StringIO(content)))

    assert [row["gpu_index"] for row in rows] == ["0", "1", "0"]
    assert [float(row["real_util"]) for row in rows] == [93, 1, 93]
    assert rows[0]["tensor_active_fraction"] == "0.61"


def test_a_run_says_it_of_each_test(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """From its time lines; a run without telemetry has none."""
    line = TimeLine(
        gpu_index=0,
        gpu_uuid="",
        since_s=(0.1, 0.2),
        readings={
            f"{name}_active_fraction": (0.9, 0.9)
            for name in ("sm", "tensor", "dram", "graphics")
        },
    )
    plain = runs.record("test_a", runs.time_of(1e-3))
    path = tmp_path / "run.json"
    path.write_bytes(encode_run(runs.run((replace(plain, time_lines=(line,)),))))
    code, text = shown(capfdbinary, str(path))

    assert code == 0
    assert "test_a" in text
    assert "90.0" in text
    path.write_bytes(encode_run(runs.run((plain,))))
    assert cli.main(["utilization", str(path)]) == 4
    assert b"--gpuperf-telemetry" in capfdbinary.readouterr().err
