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
MONITOR = """\
# gpu    pwr  gtemp     sm   gract  smutil  mmaact    dram
# Idx      W      C      %   GPM:%   GPM:%   GPM:%   GPM:%
    0    456     60     99      99      93      61      38
"""
SMI = "timestamp, index, utilization.gpu [%], temperature.gpu\n2025/03/01 12:00:00.000, 0, 98 %, 99\n"


def shown(
    capfdbinary: pytest.CaptureFixture[bytes], *arguments: str
) -> tuple[int, str]:
    code = cli.main(["utilization", *arguments])
    return code, capfdbinary.readouterr().out.decode()


@pytest.mark.parametrize(
    "text",
    [
        DMON,
        EXPORTER,
        MONITOR,
        "".join(f"Nov 27 16:33:07 {line}\n" for line in DMON.splitlines()),
        "".join(f"[2025-11-27 16:33:07] {line}\n" for line in MONITOR.splitlines()),
        f"WARNING: name, index and uuid are set\n\n{DMON}",
        f"# HELP DCGM_FI_PROF_SM_ACTIVE GPU activity\n{EXPORTER}",
    ],
)
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


HOSTS = """\
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",Hostname="x",modelName="NVIDIA A100"} 94
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-b",Hostname="y",modelName="NVIDIA H100"} 94
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-b",Hostname="y",GPU_I_ID="3"} 94
"""


def test_hosts_and_instances_are_told_apart(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """In every format: 94 degrees are hot for an A100, and not for an H100."""
    path = tmp_path / "page.txt"
    path.write_text(HOSTS)

    _, text = shown(capfdbinary, str(path))
    rows = [line.split() for line in text.splitlines()[2:5]]
    assert [(r[0], r[1], r[-2]) for r in rows] == [
        ("x", "0", "HOT"),
        ("y", "0", "OK"),
        ("y", "0/GI3", "OK"),
    ]
    _, content = shown(capfdbinary, str(path), "--format=json")
    gpus = json.loads(content)["gpus"]
    assert [(g["hostname"], g["gpu_uuid"], g["model_name"]) for g in gpus] == [
        ("x", "GPU-a", "NVIDIA A100"),
        ("y", "GPU-b", "NVIDIA H100"),
        ("y", "GPU-b/GI3", "NVIDIA H100"),
    ]
    _, markdown = shown(capfdbinary, str(path), "--format=markdown")
    assert "| y | 0/GI3 NVIDIA H100 |" in markdown
    _, content = shown(capfdbinary, str(path), "--format=csv")
    read = [*csv.DictReader(io.StringIO(content))]
    assert [(r["hostname"], r["gpu_uuid"], r["health"]) for r in read] == [
        ("x", "GPU-a", "HOT"),
        ("y", "GPU-b", "OK"),
        ("y", "GPU-b/GI3", "OK"),
    ]
    path.write_text(HOSTS.splitlines(keepends=True)[0])
    assert "host" not in shown(capfdbinary, str(path))[1]


def test_gpus_that_are_alike_have_their_ids(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Tables of two hosts in one file, each with a GPU 0; the memory has a fraction."""
    path = tmp_path / "smi.csv"
    row = "0, GPU-{}, NVIDIA H200, {} MiB, 100 MiB\n"
    path.write_text(
        f"index, uuid, name, memory.used, memory.total\n"
        f"{row.format('a', 25)}{row.format('b', 50)}"
    )
    _, text = shown(capfdbinary, str(path))
    _, content = shown(capfdbinary, str(path), "--format=json")

    assert "0 NVIDIA H200 GPU-a " in text
    assert "0 NVIDIA H200 GPU-b " in text
    fractions = [gpu["memory_used_fraction"] for gpu in json.loads(content)["gpus"]]
    assert fractions == [0.25, 0.5]


def test_names_of_a_file_are_text_in_markdown(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A bar of a host's or product's name ends no cell."""
    path = tmp_path / "page.txt"
    path.write_text(HOSTS.replace('"x"', '"x|<b>"').replace("A100", "A|100"))
    _, markdown = shown(capfdbinary, str(path), "--format=markdown")

    assert r"| x\|\<b\> | 0 NVIDIA A\|100 |" in markdown


def test_an_instance_alone_has_no_index(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Its number is its own: nothing says which GPU it is of."""
    path = tmp_path / "dmon.txt"
    path.write_text(DMON.replace("GPU ", "GPU-I "))
    _, text = shown(capfdbinary, str(path))

    assert [line.split()[0] for line in text.splitlines()[2:4]] == ["GI0", "GI1"]


def test_a_compute_instance_is_named_by_its_instance(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Two of them have the same number, in two instances of a GPU."""
    path = tmp_path / "dmon.txt"
    path.write_text("# gpu gi ci sm mem\n# Idx id id % %\n0 1 0 50 20\n0 2 0 70 20\n")
    _, text = shown(capfdbinary, str(path))

    gpus = [line.split()[0] for line in text.splitlines()[2:4]]
    assert gpus == ["0/GI1/CI0", "0/GI2/CI0"]


@pytest.mark.parametrize(
    "text",
    [
        "index, temperature.gpu\n0, 41",
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 60',
        "#Entity TMPTR\nGPU 0 60",
        "# gpu gtemp\n0 60",
    ],
)
def test_a_single_row_needs_a_line_end(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], text: str
) -> None:
    """It may be cut; the remedy ends it, and works."""
    path = tmp_path / "smi.csv"
    path.write_text(text)

    assert cli.main(["utilization", str(path)]) == 4
    told = capfdbinary.readouterr().err.decode()
    assert "its only row has no line end, so it may be cut: " in told
    assert "remedy: if the row is whole, add the line end: echo >> FILE" in told
    path.write_text(text + "\n")
    assert cli.main(["utilization", str(path)]) == 0


def test_a_file_without_a_row_tells_what_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A head alone has no reading."""
    path = tmp_path / "smi.csv"
    path.write_text("index, temperature.gpu")

    assert cli.main(["utilization", str(path)]) == 4
    told = capsys.readouterr().err
    assert "it has no reading of a GPU; the last line has no line end" in told


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
        (b"a b\n1 2\n", "it is not the output of a supported tool"),
        (b"<html>\n</html>\n", "it is an HTML page"),
        (b"0, NVIDIA H200, 98 %\n", "name the output of dcgmi dmon, dcgm-exporter"),
        (b"# gpu     pid  type    sm\n", "it is the output of nvidia-smi pmon"),
        (b"==============NVSMI LOG==============\n", "nvidia-smi -q"),
        (b"| NVIDIA-SMI 580.95 |\n", "remedy: record with nvidia-smi --query-gpu="),
        (b"[12:00:00] x\n", "it is not the output of a supported tool"),
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


def test_text_of_two_bytes_may_be_cut_between_them(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The row is left out, as in a text of single bytes, and not the whole file."""
    path = tmp_path / "smi.csv"
    path.write_bytes((SMI + SMI.splitlines()[1]).encode("utf-16")[:-1])
    code = cli.main(["utilization", str(path)])
    out, err = capfdbinary.readouterr()

    assert code == 0
    assert b"HOT" in out
    assert b"the last line has no line end" in err


@pytest.mark.parametrize("label", ["{}: ", "[{}] ", "node{}: ", "[1,{}]<stdout>:"])
@pytest.mark.parametrize("text", [SMI, DMON, "# gpu sm mem\n# Idx % %\n0 90 20\n"])
def test_machines_that_a_launcher_names_are_not_one_gpu(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], text: str, label: str
) -> None:
    """The number of a process is no time; the remedy works."""
    path = tmp_path / "log.txt"
    lines = text.splitlines(keepends=True)
    log = "".join(label.format(process) + line for line in lines for process in (0, 1))
    path.write_text(log)

    assert cli.main(["utilization", str(path)]) == 4
    err = capfdbinary.readouterr().err
    assert b"no line begins as that tool prints it" in err
    assert b"sed -n 's/^0: //p' FILE | gpuperf utilization -" in err
    own = [line for line in log.splitlines() if line.startswith(label.format(0))]
    path.write_text("".join(line.removeprefix(label.format(0)) + "\n" for line in own))
    assert cli.main(["utilization", str(path)]) == 0


def test_a_run_may_come_from_a_pipe(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read as one, not as the output of another tool."""
    run = encode_run(runs.run((runs.record("test_a", runs.time_of(1e-3)),)))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(run)))

    assert cli.main(["utilization", "-"]) == 4
    told = capfdbinary.readouterr().err
    assert b"standard input: it has no reading of a GPU" in told


@pytest.mark.parametrize(
    "line", ["[root@h ~]# nvidia-smi dmon", "{'loss': 1.2}", "[INFO] x"]
)
def test_a_line_in_brackets_is_no_json(
    line: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A prompt, or what a program printed, stands above the rows."""
    path = tmp_path / "log.txt"
    path.write_text(f"{line}\n# gpu   pwr  temp\n    0    43    48\n", "utf-8")
    code, text = shown(capfdbinary, str(path), "--format=csv")
    (row,) = csv.DictReader(io.StringIO(text))

    assert code == 0
    assert float(row["temperature_celsius"]) == 48
