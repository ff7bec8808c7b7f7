"""Translation of other tools' names and units.

In: the output of a tool, in its own words and units.
Out: names of the catalogue, SI units, None for missing values, the tool that wrote a file.
Never: a decision, a number that no tool gave.
"""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

# The first bytes of a file, from which the tool that wrote it is identified.
FOREIGN_BYTES = 65_536
# The first bytes by which a compressed file or a binary is no text. What is inside of it
# stays unknown.
MAGIC_BYTES = 4
# The first bytes of JSON whose keys are collected. A run takes a millisecond.
_JSON_BYTES = 16_384
# The first bytes of a text that name its encoding.
MARKS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
_GZIP = b"\x1f\x8b"
_GZIP_HEADER = 16 + zlib.MAX_WBITS  # As zlib calls a stream with gzip's header.


class Foreign(NamedTuple):
    """
    A file that another tool wrote.

    Attributes:
        message: The kind of the file and its contents.

        remedy: What to do instead.

        makes_runs: True if the remedy ends with a run or a capture, which some commands
            do not take.

        may_have_readings: True if `gpuperf utilization` reads the file, or looks in it
            for the output of a tool that it reads.

        is_read: True if `gpuperf utilization` reads the kind of file.
    """

    message: str
    remedy: str
    makes_runs: bool
    may_have_readings: bool
    is_read: bool = False


class _Kind(NamedTuple):
    """
    A kind of file.

    Attributes:
        sign: A pattern in the first bytes, or keys of JSON that are all there. A key
            has the number of objects around it. A pattern is compiled when a file is
            read, because most runs read none.

        name: The kind, in words.

        holds: The contents, or "" if the name says it.

        remedy: As in `Foreign`, like the other attributes.
    """

    sign: bytes | frozenset[tuple[int, bytes]]
    name: str
    holds: str
    remedy: str
    makes_runs: bool = True
    may_have_readings: bool = False
    is_read: bool = False


def _begins(pattern: bytes) -> bytes:
    return rb"(?s)\A" + pattern


def _line(pattern: bytes) -> bytes:
    return rb"(?m)^" + pattern


def _keys(*places: tuple[int, bytes]) -> frozenset[tuple[int, bytes]]:
    return frozenset(places)


_TIMES = "it has the times of kernels, and none of their counters"
_RESULTS = "it has times without the facts that a comparison needs"
_VALUES = "it has the values of a report, rounded for people"
_REPORT = "name a .ncu-rep file, which ncu -o report PROGRAM writes"
_COUNTERS = (
    "profile with ncu for counters, or time the call in a test (gpuperf.measure)"
)
_MEASURE = "measure in a test (gpuperf.measure), and keep that run with --gpuperf-json"
_IMPORT = "store its times with gpuperf baseline import STORE FILE, or " + _MEASURE
_NVBENCH_JSON = (
    "run the benchmark with --json FILE, and store the times of that file with gpuperf "
    "baseline import STORE FILE"
)
_NSYS = f"{_COUNTERS}; nsys stats prints what this file has"
_BROWSER = f"{_COUNTERS}; a browser shows this file at ui.perfetto.dev"
_SMI = (
    "nvidia-smi --query-gpu=timestamp,index,name,utilization.gpu,memory.used,power.draw,"
    "temperature.gpu --format=csv -l 1"
)
_RECORD = (
    f"record with {_SMI}, or with nvidia-smi dmon --gpm-metrics=1,2,5,10 (Hopper and "
    "later), which gpuperf utilization reads"
)
_PAGE = (
    "save the page of dcgm-exporter (curl HOST:9400/metrics > page.txt), which gpuperf "
    "utilization reads"
)
_SMI_HEAD = rb"(?:[^\n,]*,)* *(?:utilization|memory|power|temperature|clocks)\.[a-z]"
# Dates and times may stand before the columns.
_DMON_HEAD = (
    rb"[^\n#]{0,40}#(?:[ ,]*Date[ ,]+Time)?[ ,]*gpu[ ,]+"
    rb"(?:pwr|g?temp|sm|mem|fb|rxpci|sbecc|mclk|pviol)\b"
)
_ENTITY_HEAD = rb"[^\n#]{0,40}# ?Entity(?:[ \t]+[A-Z0-9_]+)+\s*$"
# Columns of ncu --csv. Scripts drop some of them, and put the others in another order.
_NCU_CELL = (
    rb'"?(?:ID|Process ID|Process Name|Host Name|Context|Stream|Block Size|Grid Size|Device|CC'
    rb"|Section Name|Metric Name|Metric Unit|Metric Value|[a-z0-9]+__[a-z0-9_.]+[^\n,]{0,40})"
    rb'"?\s*(?:,|$)'
)
_NCU_HEAD = (
    rb'(?=(?:[^\n]*,)?"?Kernel Name"?\s*(?:,|$))(?=(?:[^\n]*,)?' + _NCU_CELL + rb")"
)
# Columns of axes and counters may stand around these.
_NVBENCH_HEAD = (
    rb"(?:Benchmark,Device,Device Name,|\|[^\n]*\| *(?:CPU|GPU) Time *\| *Noise *\|)"
)
_GOOGLE_HEAD = (
    rb"(?:(?:[^\n]{0,200},)?name,iterations,real_time,cpu_time,time_unit\b"
    rb"|Benchmark +Time +CPU +(?:Time Old|Iterations\b))"
)
_VALUED = rb"[^\n]{0,4000}[ \t][-+]?[\dNI][^\s,;]*\s*$"
# The first kind with a matching sign counts. Files seen: of Nsight Systems 2023.4 to
# 2025.5, ncu 2025, PyTorch's profiler 2.0, proton, pytest-benchmark, nvbench, Google
# Benchmark, KernelBench. The signs of the others follow the tools' documentation.
_KINDS = (
    _Kind(
        _begins(rb"NVR\0"),
        "a report of Nsight Compute",
        "",
        "print it with gpuperf show FILE, or read it in a test (gpuperf.capture)",
        makes_runs=False,
    ),
    _Kind(
        _begins(rb"NVIDIA Tegra Profiler Report"),
        "a report of Nsight Systems",
        _TIMES,
        _NSYS,
    ),
    _Kind(
        _begins(rb".{0,32}NVIDIA Nsight Systems Stream"),
        "a stream of Nsight Systems",
        _TIMES,
        _COUNTERS,
    ),
    _Kind(
        _begins(rb"SQLite format 3\0.*(?:TARGET_INFO_|META_DATA_EXPORT)"),
        "an export of Nsight Systems",
        _TIMES,
        _NSYS,
    ),
    _Kind(
        _begins(rb"\x7fELF.{14}\xcd\0"),
        "a binary for Intel's GPUs",
        "only code of NVIDIA's and AMD's GPUs is read",
        "disassemble it with ocloc disasm -file FILE",
        makes_runs=False,
    ),
    _Kind(
        _begins(rb"architecture +\{sm_"),
        "a cubin of CUDA 2, which is text",
        "only cubins in the format ELF are read",
        "compile it again for a chip of today",
        makes_runs=False,
    ),
    _Kind(
        _begins(rb"(?:\x03\x02\x23\x07|\x07\x23\x02\x03)"),
        "SPIR-V",
        "its registers and instructions are chosen when a driver compiles it",
        "print it with spirv-dis FILE",
        makes_runs=False,
    ),
    _Kind(
        _begins(
            rb"(?:\x7fELF|\x50\xed\x55\xba|!<arch>\n|MZ.\0"
            rb"|__CLANG_OFFLOAD_BUNDLE__|CCOB[\1-\x0f]\0)"
        ),
        "a compiled binary",
        "",
        "print its kernels with gpuperf show FILE",
        makes_runs=False,
    ),
    _Kind(
        _begins(rb"!<thin>\n"),
        "a thin archive, which has names of files and no code",
        "",
        "name a file of it, or build it without thin archives (ar rcs)",
        makes_runs=False,
    ),
    _Kind(
        _begins(rb"\x10\xff\x10\xad"),
        "device code that is not linked yet, as clang keeps it",
        "",
        "link it, and give the library or the program",
        makes_runs=False,
    ),
    _Kind(
        _begins(rb"PK\x03\x04"),
        "a zip archive",
        "",
        "unpack it, and name a file of it",
        makes_runs=False,
    ),
    _Kind(
        _begins(rb"\x28\xb5\x2f\xfd"),
        "compressed with zstd",
        "",
        "uncompress it: zstd -d < FILE > NEW",
        makes_runs=False,
    ),
    _Kind(
        _begins(rb"version https://git-lfs\.github\.com/spec/"),
        "a pointer of Git LFS",
        "the file that it stands for is not here",
        "fetch that file: git lfs pull",
        makes_runs=False,
    ),
    _Kind(
        _begins(rb"\s*<(?i:!doctype html|html)\b"),
        "an HTML page",
        "",
        "name the file that the page was made of",
    ),
    *(
        _Kind(_line(sign), "a table that ncu --csv printed", _VALUES, _REPORT)
        for sign in (rb',?"?ID"?,"?Process ID"?,"?Process Name"?,', _NCU_HEAD)
    ),
    _Kind(
        _line(rb"(?:==(?:PROF|WARNING|ERROR)== | {4}Section: [^\n]+\n {4}-{4})"),
        "text that ncu printed",
        "",
        _REPORT,
    ),
    _Kind(
        _line(rb'"?Device"?,"?Kernel"?,"?Invocations"?,'),
        "a table of counters that nvprof printed",
        "their names are not those of Nsight Compute",
        _REPORT,
    ),
    _Kind(
        _line(
            rb'"?(?:(?:Type"?,"?)?Time ?\(%\)"?,"?Time"?,"?Calls|'
            rb'Start"?,"?Duration"?,"?(?:Grid X|Name))"?,'
        ),
        "a table that nvprof printed",
        _TIMES,
        _REPORT,
    ),
    _Kind(
        _line(rb"==(?:\d+|====)== (?:NVPROF|Profiling (?:application|result))"),
        "text that nvprof printed",
        _TIMES,
        _REPORT,
    ),
    _Kind(
        _line(
            rb"(?: \*\* [^\n]{1,80} \(\w+\):"
            rb'|"?(?:Time ?\(%\)|Start \(ns\)|Total \(MB\)"?,"?Count)"?,)'
        ),
        "a table that nsys stats printed",
        _TIMES,
        _COUNTERS,
    ),
    _Kind(
        _line(rb"[ \t]*\.version[ \t]+\d[^\n]*\n(?:[ \t\r]*(?://[^\n]*)?\n)*\.target"),
        "PTX",
        "its registers and instructions are chosen when it is compiled for a chip",
        "compile it: ptxas -arch=CHIP in.ptx -o out.cubin, where CHIP is its .target "
        "(sm_90a), or a later chip (sm_90 for sm_52)",
    ),
    _Kind(
        rb"ptxas info +:",
        "the output of ptxas",
        "",
        "name the binary (gpuperf show FILE), or give both to "
        "gpuperf.binary(FILE, ptxas_log=LOG) in a test",
    ),
    *(
        _Kind(
            sign,
            name,
            "",
            "print it with gpuperf utilization FILE",
            makes_runs=False,
            may_have_readings=True,
            is_read=True,
        )
        for sign, name in (
            (_begins(_SMI_HEAD), "a table of nvidia-smi"),
            (_line(_DMON_HEAD), "a table of nvidia-smi dmon"),
            (_line(_ENTITY_HEAD), "a table of dcgmi dmon"),
            (_line(rb"(?:# (?:HELP|TYPE) )?DCGM_FI_"), "a page of dcgm-exporter"),
        )
    ),
    *(
        _Kind(
            _line(rb"[^\n#=|<]{0,40}" + sign),
            name,
            holds,
            _RECORD,
            makes_runs=False,
            may_have_readings=True,
        )
        for sign, name, holds in (
            (
                rb"#(?:[ ,]*Date[ ,]+Time)?[ ,]*gpu[ ,]+pid\b",
                "the output of nvidia-smi pmon",
                "it has processes, and no readings of GPUs",
            ),
            (rb"<(?:!DOCTYPE )?nvidia_smi_log", "the output of nvidia-smi -q -x", ""),
            (rb"=+NVSMI LOG=+", "the output of nvidia-smi -q", ""),
            (rb"\|\s{1,9}NVIDIA-SMI\s", "the table of nvidia-smi without options", ""),
            (
                rb"GPU \d+: [^\n]*\(UUID: ",
                "the list of nvidia-smi -L",
                "it has no readings",
            ),
            (
                rb"\[\d+\] [^\n|]{1,80}\| *\d+.{1,4}C, *(?:\d+|\?\?) %",
                "the output of gpustat",
                "it has one reading of each GPU",
            ),
            (
                rb"(?:[^\n]* )?GR3D_FREQ \d",
                "the output of tegrastats",
                "only readings of nvidia-smi and DCGM are read",
            ),
        )
    ),
    *(
        _Kind(
            _line(rb"(?:# (?:HELP|TYPE) " + sign + rb"|" + sign + _VALUED + rb")"),
            f"a page of {name}",
            "it has no readings of DCGM",
            _PAGE,
            makes_runs=False,
            may_have_readings=True,
        )
        for sign, name in (
            (rb"dcgm_[a-z]", "an older dcgm-exporter"),
            (rb"nvidia_smi_", "nvidia_gpu_exporter"),
            (rb"nv_(?:gpu|inference|energy|cpu)_", "Triton Inference Server"),
            (rb"vllm:", "vLLM"),
            (rb"sglang:", "SGLang"),
            (rb"node_[a-z]", "node_exporter"),
        )
    ),
    *(
        _Kind(
            sign,
            "a page of metrics for Prometheus",
            "it has no readings of DCGM",
            _PAGE,
            makes_runs=False,
            may_have_readings=True,
        )
        for sign in (
            _line(rb"# (?:HELP|TYPE) [A-Za-z_:]"),
            rb'(?m)\A[A-Za-z_:][\w:]*\{\w+="' + _VALUED,
        )
    ),
    *(
        _Kind(
            _line(sign),
            f"a table of {name}",
            "readings of AMD's GPUs are not read",
            "time the call in a test (gpuperf.measure)",
        )
        for sign, name in (
            (rb"(?:timestamp,)?gpu,[^\n]*(?:gfx_activity|socket_power)", "amd-smi"),
            (rb"(?:timestamp,)?device,[^\n]*(?:\(C\)|\(W\)|\(%\))", "rocm-smi"),
        )
    ),
    _Kind(
        _begins(rb"(?:[^\n,]*,)* *(?:pid|process_name|used_gpu_memory)\b"),
        "a table of processes",
        "it has no readings of GPUs",
        f"record readings with {_SMI}, which gpuperf utilization reads",
        makes_runs=False,
    ),
    _Kind(
        _keys((1, b"deviceProperties")),
        "a trace of PyTorch's profiler",
        _TIMES,
        _BROWSER,
    ),
    _Kind(_keys((1, b"traceEvents")), "a Chrome trace", _TIMES, _BROWSER),
    _Kind(_keys((1, b"ph"), (1, b"pid")), "a Chrome trace", _TIMES, _BROWSER),
    _Kind(
        _keys((1, b"machine_info"), (1, b"commit_info")),
        "a run of pytest-benchmark",
        _RESULTS,
        f"{_IMPORT}; pytest-benchmark compare reads this file",
    ),
    _Kind(
        _keys((1, b"meta"), (2, b"version"), (3, b"nvbench")),
        "a result of nvbench",
        _RESULTS,
        f"{_IMPORT}; nvbench's own scripts compare such files",
    ),
    *(
        _Kind(_line(sign), f"{form} that nvbench printed", _RESULTS, _NVBENCH_JSON)
        for sign, form in (
            (_NVBENCH_HEAD, "a table"),
            (
                rb"(?:\* SM Version: \d+ \(PTX Version: \d+\)|Pass: Cold: \d[\d.]*ms GPU,)",
                "text",
            ),
        )
    ),
    _Kind(
        _line(_GOOGLE_HEAD),
        "a table that Google Benchmark printed",
        _RESULTS,
        f"{_REPORT}; compare.py of Google Benchmark compares files of --benchmark_out",
    ),
    _Kind(
        _keys((1, b"context"), (2, b"num_cpus")),
        "a result of Google Benchmark",
        _RESULTS,
        f"{_REPORT}; compare.py of Google Benchmark compares such files",
    ),
    *(
        _Kind(sign, "a result of KernelBench", _RESULTS, _MEASURE)
        for sign in (
            _keys((1, b"compiled"), (1, b"correctness")),
            _keys((2, b"compiled"), (2, b"correctness")),
            _keys((3, b"mean"), (3, b"num_trials"), (3, b"hardware")),
        )
    ),
    *(
        _Kind(sign, "a result of a benchmark of vLLM", _RESULTS, _MEASURE)
        for sign in (
            _keys((1, b"request_throughput"), (1, b"total_input_tokens")),
            _keys((1, b"avg_latency"), (1, b"latencies"), (1, b"percentiles")),
            _keys(
                (1, b"elapsed_time"), (1, b"num_requests"), (1, b"tokens_per_second")
            ),
        )
    ),
    _Kind(
        _begins(rb'\s*\[\s*\{\s*"children":.*"frame":\s*\{\s*"name":'),
        "a profile of Triton's proton",
        _TIMES,
        f"{_COUNTERS}; proton-viewer prints what this file has",
    ),
    _Kind(
        _keys((1, b"query_time"), (1, b"gpus")),
        "the output of gpustat",
        "it has one reading of each GPU",
        f"record readings with {_SMI}, which gpuperf utilization reads",
        makes_runs=False,
    ),
    _Kind(
        _keys((1, b"status"), (1, b"data"), (2, b"resultType")),
        "an answer of Prometheus",
        "",
        _PAGE,
        makes_runs=False,
    ),
)
# A string, with the colon if it is a key. A string without an end is a string, too, so
# that the time is linear in any text.
_TOKEN = rb'(?s)"([^"\\]*(?:\\.[^"\\]*)*)"?(\s*:)?|[{}]'


def foreign(content: bytes) -> Foreign | None:
    """
    Return the kind of another tool's file and a remedy, or None if unknown.

    The time does not depend on the content: only the first bytes are read, and of a
    compressed file as many of its content.

    Args:
        content: The file, or at least its first `FOREIGN_BYTES` bytes.
    """
    start = content[:FOREIGN_BYTES]
    if not start.startswith(_GZIP):
        return _known(start)
    try:
        inside = _known(
            zlib.decompressobj(_GZIP_HEADER).decompress(start, FOREIGN_BYTES)
        )
    except zlib.error:
        inside = None
    message, remedy = "it is compressed with gzip", "uncompress it: gunzip < FILE > NEW"
    if inside is None or not inside.makes_runs:
        return Foreign(message, remedy, makes_runs=False, may_have_readings=False)
    return inside._replace(message=f"{message}; {inside.message}")


def _known(start: bytes) -> Foreign | None:
    for mark, encoding in MARKS:
        if start.startswith(mark):
            # The last character may be cut.
            start = start[len(mark) :].decode(encoding, "replace").encode()
    present = _json_keys(start)
    for kind in _KINDS:
        sign = kind.sign
        if re.search(sign, start) if isinstance(sign, bytes) else sign <= present:
            message = ": ".join(filter(None, (f"it is {kind.name}", kind.holds)))
            return Foreign(
                message,
                kind.remedy,
                makes_runs=kind.makes_runs,
                may_have_readings=kind.may_have_readings,
                is_read=kind.is_read,
            )
    return None


def _json_keys(start: bytes) -> frozenset[tuple[int, bytes]]:
    """Return the keys of a JSON text, whole or cut, each with the number of objects around."""
    if not start.lstrip().startswith((b"{", b"[")):
        return frozenset()
    depth = 0
    keys = set()
    for token in re.finditer(_TOKEN, start[:_JSON_BYTES]):
        if token[0] == b"{":
            depth += 1
        elif token[0] == b"}":
            depth -= 1
        elif token[2] is not None:
            keys.add((depth, token[1]))
    return frozenset(keys)
