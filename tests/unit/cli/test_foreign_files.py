"""Files of other tools that people give to our commands."""

from __future__ import annotations

import gzip
import os
import re
import sqlite3
from functools import partial
from pathlib import Path

import pytest

from fakes import runs
from fakes.runner import FakeRunner
from pytest_gpuperf import cli
from pytest_gpuperf.collect.binary.read import read_cubins
from pytest_gpuperf.collect.ncu.text import check_file
from pytest_gpuperf.collect.translate import FOREIGN_BYTES, Foreign, foreign
from pytest_gpuperf.errors import CaptureFormatError
from pytest_gpuperf.model.codec import encode_run

TIMES = "it has the times of kernels, and none of their counters"
NSYS = f"of Nsight Systems: {TIMES}"
TORCH = f"a trace of PyTorch's profiler: {TIMES}"
CHROME = f"a Chrome trace: {TIMES}"
EVENT = '{"name": "k", "ph": "X", "ts": 1, "dur": 2, "pid": 1, "tid": 1}'
NCU_CSV = '"ID","Process ID","Process Name","Host Name","Kernel Name"\n"0","66","a",'
NCU_TEXT = """[66] python3@127.0.0.1
  gemm(int) (32, 1, 1)x(32, 1, 1), Context 1, Stream 7, Device 0, CC 8.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
"""
PROTON = '[{"children": [{"children": [], "frame": {"name": "k"}, "metrics": {}}]}, {}]'
NVBENCH = '{"meta": {"argv": [], "version": {"json": {}, "nvbench": {}}}, "devices": []'
NVBENCH_AXES = "Benchmark,Device,Device Name,N (pow2),N,Skipped,Samples,CPU Time (sec)"
NVBENCH_TEXT = """# Devices

## [0] `NVIDIA A30`
* SM Version: 800 (PTX Version: 800)
* Number of SMs: 56
"""
NVBENCH_LOG = (
    "Run:  [1/2] copy [Device=0 N=2^20]\nPass: Cold: 0.7004ms GPU, 0.7090ms CPU"
)
GOOGLE_TEXT = """2026-11-29T10:00:00+00:00
Running ./bench
Run on (16 X 3000 MHz CPU s)
------------------------------------------------------
Benchmark            Time             CPU   Iterations
------------------------------------------------------
"""
SERVED = '{"backend": "vllm", "total_input_tokens": 1, "request_throughput": 1.0}'
# how files begin that real tools wrote
STARTS = [
    ("a.nsys-rep", b"NVIDIA Tegra Profiler Report 2023@4@4@54-234433681190v0.\n", NSYS),
    ("a.qdstrm", b"U3w[END]NVIDIA Nsight Systems Stream 2023.4.4.54\n\xdc\x14", NSYS),
    ("a.json", b'{\n  "schemaVersion": 1,\n  "deviceProperties": [\n', TORCH),
    ("b.json", b'{"displayTimeUnit":"ms","traceEvents":[{"ph":"M"}]}', CHROME),
    ("list.json", f"[{EVENT}, {EVENT}".encode(), CHROME),
    ("a.json.gz", b"\x1f\x8b\x08\x08\0\0\0\0", "compressed with gzip"),
    ("b.json.gz", gzip.compress(b'{"traceEvents":[]}'), f"gzip; it is {CHROME}"),
    (
        "a.zebin",
        b"\x7fELF\x02\x01\x01\x00" + bytes(8) + b"\x01\xff\xcd\0",
        "a binary for Intel's GPUs: only code of NVIDIA's and AMD's GPUs is read",
    ),
    ("old.cubin", b"architecture {sm_10}\nabiversion {0}\n", "a cubin of CUDA 2"),
    ("a.spv", b"\x03\x02\x23\x07\0\x04\1\0", "it is SPIR-V"),
    ("apps.csv", b"timestamp, gpu_uuid, pid, process_name\n", "a table of processes"),
    ("c.a", b"!<thin>\n", "a thin archive, which has names of files and no code"),
    ("c.out", b"\x10\xff\x10\xad\1\0\0\0", "device code that is not linked yet"),
    ("c.zip", b"PK\x03\x04\x14\0", "a zip archive"),
    ("c.zst", b"\x28\xb5\x2f\xfd\0", "compressed with zstd"),
    (
        "pointer",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "a pointer of Git LFS: the file that it stands for is not here",
    ),
    ("page.html", b'<!doctype html>\n<html lang="en">', "an HTML page"),
    ("raw.csv", NCU_CSV.encode(), "a table that ncu --csv printed"),
    ("bom.csv", b"\xef\xbb\xbf" + NCU_CSV.encode(), "a table that ncu --csv"),
    ("powershell.csv", NCU_CSV.encode("utf-16"), "a table that ncu --csv printed"),
    ("dos.csv", NCU_CSV.replace("\n", "\r\n").encode(), "a table that ncu --csv"),
    ("log.csv", b"==PROF== Connected\n" + NCU_CSV.encode(), "a table that ncu --csv"),
    ("ncu.txt", NCU_TEXT.encode(), "text that ncu printed"),
    ("ncu.log", b"hello\n==PROF== Connected to process 66\n", "text that ncu printed"),
    ("nvprof.txt", b"==66== NVPROF is profiling process 66\n", "text that nvprof"),
    (
        "nvprof.csv",
        b'======== Profiling result:\n"Type","Time(%)","Time","Calls","Avg","Min"\n',
        f"a table that nvprof printed: {TIMES}",
    ),
    (
        "old_nvprof.csv",
        b'==9630== Profiling result:\n"Time(%)","Time","Calls","Avg","Name"\n',
        "a table that nvprof printed",
    ),
    (
        "bare_nvprof.csv",
        b"Time(%),Time,Calls,Avg,Min,Max,Name\n",
        "that nvprof printed",
    ),
    (
        "gpu_trace.csv",
        b'"Start","Duration","Grid X","Grid Y","Grid Z","Block X"\nus,us,,,,\n',
        "a table that nvprof printed",
    ),
    (
        "api_trace.csv",
        b'"Start","Duration","Name","Correlation_ID"\nus,us,,\n',
        "a table that nvprof printed",
    ),
    (
        "metrics.csv",
        b'==7== Metric result:\n"Device","Kernel","Invocations","Metric Name"\n',
        "a table of counters that nvprof printed: their names are not those of Nsight",
    ),
    ("imported.txt", b"======== Profiling result:\n", "text that nvprof printed"),
    ("old_sum.csv", b'"Time(%)","Total Time (ns)","Instances"\n', "nsys stats"),
    ("trace.csv", b"Start (ns),Duration (ns),CorrId,GrdX\n", "nsys stats"),
    ("mem_size.csv", b"Total (MB),Count,Avg (MB),Operation\n", "nsys stats"),
    ("kern_sum.csv", b"Time (%),Total Time (ns),Instances,Name\n", "nsys stats"),
    ("kern_sum.txt", b"\n ** CUDA GPU Summary (cuda_gpu_sum):\n", "nsys stats"),
    ("in.ptx", b"// by NVVM\n\n.version 8.2\n\n.target sm_90a\n", "it is PTX"),
    ("nvcc.log", b"1>ptxas info    : 0 bytes gmem\n", "the output of ptxas"),
    (
        "c.json",
        b'{"machine_info": {"node": "x"}, "commit_info": {}}',
        "a run of pytest-benchmark",
    ),
    ("nvbench.json", NVBENCH.encode(), "a result of nvbench"),
    (
        "nvbench.csv",
        NVBENCH_AXES.encode(),
        "a table that nvbench printed: it has times",
    ),
    ("nvbench.md", NVBENCH_TEXT.encode(), "text that nvbench printed"),
    ("nvbench.log", NVBENCH_LOG.encode(), "text that nvbench printed"),
    (
        "nvbench_table.md",
        b"| N | Samples |  CPU Time  |  Noise  |  GPU Time  | Noise  |\n|---|---|\n",
        "a table that nvbench printed",
    ),
    (
        "google.json",
        b'{"context": {"date": "", "num_cpus": 4}, "benchmarks": [',
        "a result of Google Benchmark",
    ),
    (
        "google.csv",
        b"name,iterations,real_time,cpu_time,time_unit,bytes_per_second\n",
        "a table that Google Benchmark printed",
    ),
    (
        "rocrand.csv",
        b"engine,mode,name,iterations,real_time,cpu_time,time_unit,label\n",
        "a table that Google Benchmark printed",
    ),
    ("google.txt", GOOGLE_TEXT.encode(), "a table that Google Benchmark printed"),
    (
        "google_compare.txt",
        b"Benchmark       Time       CPU      Time Old      Time New   CPU Old\n",
        "a table that Google Benchmark printed",
    ),
    (
        "eval.json",
        b'{"1": [{"sample_id": 0, "compiled": true, "correctness": true}]}',
        "a result of KernelBench",
    ),
    ("one.json", b'{"compiled": true, "correctness": false}', "result of KernelBench"),
    (
        "times.json",
        b'{"level1": {"1_a.py": {"mean": 2, "num_trials": 9, "hardware": "L40S"}}}',
        "a result of KernelBench",
    ),
    ("serve.json", SERVED.encode(), "a benchmark of vLLM"),
    (
        "latency.json",
        b'{"avg_latency": 1.0, "latencies": [1.0], "percentiles": {}}',
        "a benchmark of vLLM",
    ),
    (
        "throughput.json",
        b'{"elapsed_time": 1, "num_requests": 1, "tokens_per_second": 1}',
        "a benchmark of vLLM",
    ),
    ("a.hatchet", PROTON.encode(), f"a profile of Triton's proton: {TIMES}"),
    (
        "gpustat.json",
        b'{"hostname": "x", "query_time": "2026", "gpus": [{"index": 0}]}',
        "the output of gpustat: it has one reading of each GPU",
    ),
    (
        "pmon.txt",
        b"# gpu        pid  type    sm\n",
        "nvidia-smi pmon: it has processes",
    ),
    ("pmon_dt.txt", b"#Date Time gpu  pid type\n", "nvidia-smi pmon"),
    ("q.txt", b"\n==============NVSMI LOG==============\n", "output of nvidia-smi -q"),
    (
        "x.xml",
        b'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log>\n',
        "nvidia-smi -q -x",
    ),
    ("cut.xml", b"<nvidia_smi_log>\n", "the output of nvidia-smi -q -x"),
    (
        "table.txt",
        b"Sun Nov 29 2026\n+----+\n| NVIDIA-SMI 580.95   Driver Version: 580.95 |\n",
        "the table of nvidia-smi without options",
    ),
    ("list.txt", b"GPU 0: NVIDIA H200 (UUID: GPU-a)\n", "the list of nvidia-smi -L"),
    (
        "gpustat.txt",
        (
            b"node1  Sun Nov 29 10:00:00 2026  580.95\n"
            b"[0] NVIDIA H200 | 41'C,  63 % |   400 / 143771 MB | me(120M)\n"
        ),
        "the output of gpustat: it has one reading of each GPU",
    ),
    (
        "tegrastats.txt",
        b"11-29-2026 10:00:00 RAM 2448/30536MB (lfb 1x4MB) CPU [1%@1190] GR3D_FREQ 0%\n",
        "the output of tegrastats",
    ),
    (
        "few_columns.csv",
        b"Kernel Name,Metric Name,Metric Unit,Metric Value\nk,dram__bytes.sum,byte,1\n",
        "a table that ncu --csv printed",
    ),
    (
        "other_order.csv",
        b'"Metric Name","Metric Value","Kernel Name"\n"dram__bytes.sum","1","k"\n',
        "a table that ncu --csv printed",
    ),
    (
        "wide.csv",
        b"Kernel Name,dram__bytes_read.sum [byte],gpu__time_duration.sum\nk,1,2\n",
        "a table that ncu --csv printed",
    ),
    (
        "below_output.csv",
        b'device: RTX 5070\nmeasuring ...\n"Process ID","Kernel Name","Context","CC"\n',
        "a table that ncu --csv printed",
    ),
    (
        "node.txt",
        (
            b"# HELP go_goroutines Number of goroutines.\n# TYPE go_goroutines gauge\n"
            b"go_goroutines 8\n# TYPE node_load1 gauge\nnode_load1 0.21\n"
        ),
        "a page of node_exporter: it has no readings of DCGM",
    ),
    ("node_lines.txt", b'node_hwmon_temp_celsius{chip="a"} 55\n', "node_exporter"),
    (
        "nvidia_gpu_exporter.txt",
        b"# TYPE nvidia_smi_temperature_gpu gauge\n",
        "a page of nvidia_gpu_exporter",
    ),
    ("vllm.txt", b'vllm:num_requests_running{engine="0"} 2.0\n', "a page of vLLM"),
    ("sglang.txt", b"# HELP sglang:token_usage Usage.\n", "a page of SGLang"),
    ("triton.txt", b"# HELP nv_gpu_utilization Rate.\n", "Triton Inference Server"),
    ("old_dcgm.txt", b'dcgm_gpu_utilization{gpu="0"} 97\n', "an older dcgm-exporter"),
    ("app.txt", b"# HELP x_total Requests.\n", "a page of metrics for Prometheus"),
    ("series.txt", b'up{job="a b",c="\\"d"} 1\n', "a page of metrics for Prometheus"),
    (
        "amd-smi.csv",
        b"timestamp,gpu,gfx_activity,umc_activity\n1786553852,0,0,0\n",
        "a table of amd-smi: readings of AMD's GPUs are not read",
    ),
    (
        "rocm-smi.csv",
        b"device,Temperature (Sensor edge) (C),GPU use (%)\ncard0,41,3\n",
        "a table of rocm-smi",
    ),
    (
        "prometheus.json",
        b'{"status":"success","data":{"resultType":"vector","result":[]}}',
        "an answer of Prometheus",
    ),
]
NAMES = [name for name, *_ in STARTS]
# what gpuperf utilization reads
READINGS = [
    (
        "smi.csv",
        "timestamp, index, utilization.gpu [%]\n2026/01/01 00:00:00.000, 0, 9 %\n",
    ),
    ("dmon.txt", "#Entity   GRACT\nID\nGPU 0     0.100\n"),
    ("ts.txt", "Nov 27 16:33:07 #Entity   GRACT\nNov 27 16:33:07 GPU 0     0.1\n"),
    ("smi.txt", "# gpu    pwr     sm\n# Idx      W      %\n    0     86     30\n"),
    (
        "dates.txt",
        (
            "#Date       Time        gpu     sm\n#YYYYMMDD   HH:MM:SS    Idx      %\n"
            " 20260101   10:00:00      0     30\n"
        ),
    ),
    (
        "page.txt",
        '# HELP DCGM_FI_DEV_GPU_UTIL Busy.\nDCGM_FI_DEV_GPU_UTIL{gpu="0"} 9\n',
    ),
]
# the system refuses to look at it, as in a folder without permission
NOWHERE = "x" * 300
COMMANDS = [
    ("show",),
    ("show", "--format=json"),
    ("compare", "old.json"),
    ("report", "--output=out.html"),
    ("export", "--to=csv"),
    ("verify",),
    ("baseline", "list"),
    ("verify", "run.json", "--expect-from"),
    ("utilization",),
    ("scorecard", "--throughput=1", "--hardware=gb10"),
    ("scorecard", "profile.json", "--throughput=1", "--hardware"),
    ("parity", "old.json"),
]


@pytest.mark.parametrize(
    ("command", "name", "start", "told"),
    [
        pytest.param(command, *start, id=" ".join((*command, start[0])))
        for command in COMMANDS
        for start in (STARTS if command == ("show",) else STARTS[::6])
    ],
)
def test_a_file_of_another_tool_is_named_as_such(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    name: str,
    start: bytes,
    told: str,
) -> None:
    """By what it begins with, with what to do instead, and without its bytes."""
    monkeypatch.chdir(tmp_path)
    Path("run.json").write_bytes(encode_run(runs.gpu_run()))
    for path in (Path(name), Path("old.json")):
        path.write_bytes(start)

    assert cli.main([*command, name]) == 4
    said = capsys.readouterr().err
    assert told in said
    assert "\n    remedy: " in said
    assert len(said) < 700


@pytest.mark.parametrize(("name", "start", "told"), STARTS, ids=NAMES)
def test_a_fixture_names_a_file_of_another_tool(
    tmp_path: Path, name: str, start: bytes, told: str
) -> None:
    """`gpuperf.capture` and `gpuperf.binary` know what the commands know."""
    path = tmp_path / name
    path.write_bytes(start)
    readers = (check_file, partial(read_cubins, runner=FakeRunner()))

    for read in readers:
        with pytest.raises(CaptureFormatError, match=re.escape(told)):
            read(str(path))


@pytest.mark.parametrize(
    ("name", "start"),
    [*((name, start) for name, start, _ in STARTS), ("other.json", b'{"a": 1}')],
    ids=[*NAMES, "other.json"],
)
def test_no_run_is_advised_where_readings_are_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, start: bytes
) -> None:
    """A run that was measured again has no readings of the GPU's past."""
    path = tmp_path / name
    path.write_bytes(start)

    assert cli.main(["utilization", str(path)]) == 4
    remedy = capsys.readouterr().err.partition("remedy: ")[2]
    assert remedy
    assert "gpuperf-json" not in remedy
    assert "gpuperf.measure" not in remedy


@pytest.mark.parametrize("command", [("show",), ("scorecard", "--throughput=1")])
@pytest.mark.parametrize(("name", "text"), READINGS)
def test_readings_are_sent_to_the_command_that_reads_them(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    name: str,
    text: str,
) -> None:
    """And it does read them."""
    path = tmp_path / name
    path.write_text(text)
    options = ["--hardware=gb10"] if command[0] == "scorecard" else []

    assert cli.main([*command, str(path), *options]) == 4
    assert "remedy: print it with gpuperf utilization FILE" in capsys.readouterr().err
    assert cli.main(["utilization", str(path)]) == 0


@pytest.mark.parametrize(("name", "text"), READINGS)
def test_lines_of_readings_may_end_with_a_carriage_return_alone(
    tmp_path: Path, name: str, text: str
) -> None:
    """What finds the reader of a file splits lines as the readers do."""
    path = tmp_path / name
    path.write_bytes(text.replace("\n", "\r").encode())

    assert cli.main(["utilization", str(path)]) == 0


@pytest.mark.parametrize(
    ("name", "message", "remedy"),
    [
        (".", "it is a folder, a pipe or a device", "name a file of --benchmark-json"),
        ("no.json", "it cannot be read (No such file", "check the path"),
    ],
)
def test_what_is_imported_must_be_a_file(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    message: str,
    remedy: str,
) -> None:
    """The remedy is about the file, not about the store."""
    store, path = str(tmp_path / "store"), str(tmp_path / name)

    assert cli.main(["baseline", "import", store, path]) == 4
    said = capsys.readouterr().err
    assert message in said
    assert f"remedy: {remedy}" in said


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_results_are_imported_as_powershell_writes_them(
    tmp_path: Path, encoding: str
) -> None:
    """Its redirection writes the encoding before the text."""
    path = tmp_path / "times.json"
    summary = (
        '{"tag": "nv/cold/time/gpu/mean", "data": [{"name": "value", "value": 1}]}'
    )
    state = f'{{"device": 0, "summaries": [{summary}]}}'
    text = f'{NVBENCH}, "benchmarks": [{{"name": "copy", "states": [{state}]}}]}}'
    path.write_text(text, encoding=encoding)

    assert cli.main(["baseline", "import", str(tmp_path / "store"), str(path)]) == 0


@pytest.mark.parametrize(
    "text",
    [
        b'{"records": [{"parameters": {"traceEvents": 1, "machine_info": 2}}]}',
        b'{"records": [{"test": "a[{\\"traceEvents\\": 1}]"}]}',
        b'{"a": "traceEvents"}',
        b'{"phases": [], "machine_info": {"node": "x"}, "elapsed_time": 1}',
        b'{"a":' * 20_000,
        b"[" * FOREIGN_BYTES,
        b'{"' + rb"\"" * FOREIGN_BYTES,
        b'{"a":"' + b"\\" * FOREIGN_BYTES,
        b" " * FOREIGN_BYTES + b"{",
        b"\t\n" * FOREIGN_BYTES,
        b".version 1\n" + b"\n" * FOREIGN_BYTES,
        b"," * FOREIGN_BYTES,
        b"Kernel Name," + b"a__b !" * FOREIGN_BYTES,
        b'a{b="' + b'="}' * FOREIGN_BYTES,
        b"node_" + b" 1," * FOREIGN_BYTES,
        b"a, " * 40 + b"\n",
        b"#" * FOREIGN_BYTES,
        b"| GPU Time " * 9000,
        b"|" * FOREIGN_BYTES,
        b"Benchmark" + b" " * FOREIGN_BYTES,
        b"Benchmarks take time on a CPU\n| CPU | Time |\n",
        b"node_modules and node_exporter\nKernel Name, Author\n",
        b"# GPU\n\n## GPU\n\n# gpu power in use\n\n### Entity  \n# Entity Relation\n",
        bytes(range(256)) * 256,
        "\ud800".encode("utf-16-le", "surrogatepass"),
        b"\xff\xfe\x00",
        b"",
    ],
    ids=range(27),
)
def test_what_no_tool_of_the_table_wrote_is_unknown(text: bytes) -> None:
    """A key further inside is not the file's own, and no text takes long."""
    assert foreign(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "# GPU\n\n## GPU\n\nThe GPU has 80 GB.\n",
        "# gpu power in use\n0 1 2\n",
        "# Entity  \n\n# Entity Relation\n",
    ],
)
def test_a_heading_is_no_head_of_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """A page of Markdown about GPUs is not told line by line what it lacks."""
    path = tmp_path / "README.md"
    path.write_text(text)

    assert cli.main(["utilization", str(path)]) == 4
    assert "not the output of a supported tool" in capsys.readouterr().err


@pytest.mark.parametrize(
    "above",
    [
        "# HELP up Up.\nup 1\n" + "go_goroutines 8\n" * 5000,
        "Sun Nov 29 2026\n| NVIDIA-SMI 580.95   Driver Version: 580.95 |\n",
    ],
)
def test_readings_may_stand_below_other_outputs(tmp_path: Path, above: str) -> None:
    """A page of all exporters, or a log that begins with the table of nvidia-smi."""
    path = tmp_path / "log.txt"
    path.write_text(f'{above}DCGM_FI_DEV_GPU_TEMP{{gpu="0"}} 60\n')

    assert cli.main(["utilization", str(path)]) == 0


@pytest.mark.parametrize("start", [b"\x7fELF", b"\x50\xed\x55\xba", b"!<arch>\n"])
def test_a_binary_is_sent_to_the_command_that_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], start: bytes
) -> None:
    """Which looks into it, and only then says that it has no kernel."""
    path = tmp_path / "lib"
    path.write_bytes(start + bytes(100))

    assert cli.main(["report", str(path), "-o", str(tmp_path / "a.html")]) == 4
    assert "print its kernels with gpuperf show FILE" in capsys.readouterr().err
    cli.main(["show", str(path)])
    assert "it is a compiled binary" not in capsys.readouterr().err


def test_a_large_file_is_known_by_its_first_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not read, and its kind says more than its size."""
    for name, start in (("a.json", b'{"traceEvents":['), ("a.nsys-rep", STARTS[0][1])):
        path = tmp_path / name
        path.write_bytes(start)
        os.truncate(path, 3_000_000_000)

        assert cli.main(["show", str(path)]) == 4
        assert TIMES in capsys.readouterr().err
        path.unlink()


def test_a_compressed_file_is_uncompressed_no_further_than_its_start() -> None:
    """Megabytes of blanks take a few bytes."""
    blanks = b" " * 10_000_000
    near, far = (
        foreign(gzip.compress(text))
        for text in (b'{"traceEvents":[' + blanks, blanks + b'{"traceEvents":[]}')
    )

    assert near is not None
    assert CHROME in near.message
    assert far is not None
    assert far.message == "it is compressed with gzip"


@pytest.mark.parametrize(
    "content",
    [b'{"schema": "pytest-gpuperf/run/3"}', READINGS[0][1].encode(), b"NVR\0"],
)
def test_a_compressed_file_that_is_read_is_uncompressed(content: bytes) -> None:
    """Neither its kind nor the advice to measure would help."""
    assert foreign(gzip.compress(content)) == Foreign(
        "it is compressed with gzip",
        "uncompress it: gunzip < FILE > NEW",
        makes_runs=False,
        may_have_readings=False,
    )


def test_a_profile_may_say_more_than_is_read(tmp_path: Path) -> None:
    """Keys of its own do not make another tool's file of it."""
    path = tmp_path / "step.json"
    path.write_text('{"avg_step_ms": 10, "machine_info": {}, "context": {"a": 1}}')

    assert cli.main(["scorecard", str(path), "--throughput=1", "--hardware=gb10"]) == 0


@pytest.mark.parametrize(
    ("command", "says_it"),
    [(("show",), True), (("show", "--metrics=a__b.sum"), True), (("compare",), False)],
)
def test_what_show_takes_besides_is_said_by_show_alone(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    says_it: bool,
) -> None:
    """Whoever compares or reports captures has no use for it."""
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"hello")
    files = [str(path)] * (1 if command[0] == "show" else 2)

    assert cli.main([*command, *files]) == 4
    said = capsys.readouterr().err
    assert "name a .ncu-rep file, or a compressed one (.ncu-repz)" in said
    assert ("gpuperf show also takes" in said) is says_it


def test_an_export_of_nsys_is_no_other_database(tmp_path: Path) -> None:
    """SQLite writes every table's text at the start of its file."""
    for name, table in (("nsys", "META_DATA_EXPORT"), ("other", "users")):
        connection = sqlite3.connect(tmp_path / name)
        connection.execute(f"CREATE TABLE {table} (name TEXT, value TEXT)")
        connection.commit()
        connection.close()

    with pytest.raises(CaptureFormatError, match="an export of Nsight Systems"):
        check_file(str(tmp_path / "nsys"))
    with pytest.raises(CaptureFormatError, match="it is not a report of Nsight Comp"):
        check_file(str(tmp_path / "other"))


@pytest.mark.parametrize("command", [("export", "--to=csv"), ("utilization",)])
def test_a_report_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    """Nobody needs to know which byte is not JSON."""
    path = tmp_path / "a.ncu-rep"
    path.write_bytes(b"NVR\0\1\2")

    assert cli.main([*command, str(path)]) == 4
    assert "it is a report of Nsight Compute" in capsys.readouterr().err


def test_bytes_are_not_quoted_line_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is not text has no readings of a GPU."""
    path = tmp_path / "a.bin"
    path.write_bytes(b"\0\1\n" * 5000)

    assert cli.main(["utilization", str(path)]) == 4
    said = capsys.readouterr().err
    assert "it is not text" in said
    assert len(said) < 300


@pytest.mark.parametrize(
    "command",
    [
        ("compare", "a.json", "b.json"),
        ("report", "a.json", "b.json", "--output=c.html"),
        ("parity", "a.json", "b.json"),
    ],
    ids=" ".join,
)
def test_every_unreadable_file_is_named_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
) -> None:
    """Whoever mends one must not meet the next one afterwards."""
    monkeypatch.chdir(tmp_path)
    Path("a.json").touch()

    assert cli.main([*command]) == 4
    said = capsys.readouterr().err
    assert "a.json: it is empty; b.json: it cannot be read" in said
    assert "remedy: give a" in said
    assert "; check the path" in said


def test_what_cannot_be_shown_is_told_what_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A test's file is none of them, and captures are not all that is shown."""
    path = tmp_path / "test_four.py"
    path.write_text("def test_four(gpuperf): ...\n")

    cli.main(["show", str(path)])
    told = " ".join(capsys.readouterr().err.split())

    assert "name a .ncu-rep file" in told
    assert "a run's JSON file, a recording (--launches) and a compiled binary" in told


@pytest.mark.parametrize(
    "command",
    [
        ("compare", NOWHERE, "run.json"),
        ("export", NOWHERE, "--to=chrome-trace"),
        ("show", NOWHERE, "--launches"),
        ("utilization", NOWHERE),
        ("cache", "info", f"--folder={NOWHERE}"),
        ("scorecard", "run.json", "--throughput=1", f"--hardware={NOWHERE}.json"),
    ],
    ids=lambda command: command[0],
)
def test_a_path_where_nobody_may_look_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
) -> None:
    """Asking the system whether it is a folder must not end in a traceback."""
    monkeypatch.chdir(tmp_path)

    assert cli.main([*command]) in {2, 4}
    said = capsys.readouterr().err
    assert NOWHERE in said
    assert "\n    remedy: " in said


def test_launches_of_a_missing_file_are_a_missing_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The option is right: the file is not there."""
    monkeypatch.chdir(tmp_path)

    assert cli.main(["show", "nowhere", "--launches"]) == 4
    assert "nowhere: it cannot be read (No such file" in capsys.readouterr().err
