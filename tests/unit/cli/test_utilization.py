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


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (bytes(range(256)) * 600, "it is not text"),
        (b"\x1f\x8b\x08", "it is compressed with gzip"),
        (b"[" * 200_000, "not JSON"),
        (b'[{"a": 1}]', "it is not a run"),
        (b'{"a": 1}', "it is not a run"),
        (b"a b\n1 2\n", "it is the output of none of the tools that are read"),
        (b"<html>\n</html>\n", "it is an HTML page"),
        (b"0, NVIDIA H200, 98 %\n", "name the output of dcgmi dmon, dcgm-exporter"),
        (b"", "empty"),
    ],
)
def test_what_has_no_readings_is_refused_from_everywhere(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    words: str,
) -> None:
    """With one sentence and a remedy, whether a file holds it or a pipe."""
    path = tmp_path / "readings"
    path.write_bytes(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    told = []
    for name in (str(path), "-"):
        assert cli.main(["utilization", name]) == 4
        told.append(capsys.readouterr().err)

    assert words in told[1]
    assert "remedy: " in told[1]
    if content:
        assert told[0].replace(str(path), "standard input") == told[1]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_text_may_name_its_encoding(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], encoding: str
) -> None:
    """As PowerShell writes it; the first column's name is not lost."""
    path = tmp_path / "smi.csv"
    path.write_text(SMI, encoding=encoding)
    code = cli.main(["utilization", str(path)])
    out, err = capfdbinary.readouterr()

    assert (code, err) == (0, b"")
    assert b"HOT" in out


def test_a_run_may_come_from_a_pipe(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read as one, not as the output of another tool."""
    run = encode_run(runs.run((runs.record("test_a", runs.time_of(1e-3)),)))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(run)))

    assert cli.main(["utilization", "-"]) == 4
    told = capfdbinary.readouterr().err
    assert b"standard input: it has no reading of a GPU" in told
