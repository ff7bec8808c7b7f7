"""collect.cupti.structs: layouts of libcupti's calls, against NVIDIA's headers."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.runtime import FakeDriver
from pytest_gpuperf.collect.cupti.libcupti import (
    CALLS,
    GREW,
    Libcupti,
    find_libraries,
    size_bytes,
)
from pytest_gpuperf.collect.cupti.range_profiler import RangeProfiler
from pytest_gpuperf.collect.translate.cupti import COPY_COUNT_SINCE

HEADERS = (
    "cupti_profiler_target.h",
    "cupti_target.h",
    "cupti_profiler_host.h",
    "cupti_range_profiler.h",
)
SIZES_BYTES = {  # of the headers' types; a pointer has 8, an enumeration 4
    "size_t": 8,
    "uint64_t": 8,
    "uint32_t": 4,
    "uint16_t": 2,
    "uint8_t": 1,
    "CUcontext": 8,
    "CUdevice": 4,
}
CUDA_H = """
typedef struct CUctx_st *CUcontext;
typedef int CUdevice;
"""


def include_folders() -> list[Path]:
    """Return the folders of headers that came with a libcupti."""
    found = [path.resolve().parents[1] / "include" for path in find_libraries()]
    return [each for each in dict.fromkeys(found) if (each / HEADERS[0]).exists()]


def version_of(folder: Path) -> int:
    """Return the API version of the headers in a folder."""
    text = (folder / "cupti_version.h").read_text()
    match = re.search(r"#define CUPTI_API_VERSION (\d+)", text)
    assert match is not None
    return int(match[1])


def declared(folder: Path) -> dict[str, list[tuple[str, int, int]]]:
    """Return name, offset and size of every field of what each function is given."""
    text = "".join((folder / name).read_text() for name in HEADERS)
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    bodies = {
        name: body
        for body, name in re.findall(
            r"typedef struct\s*\w*\s*\{([^}]*)\}\s*(\w+);", text
        )
    }
    calls = re.findall(r"CUPTIAPI\s+(\w+)\((?:struct )?(\w+_Params)\s*\*", text)
    return {
        function: list(laid_out(bodies[name]))
        for function, name in calls
        if name in bodies
    }


def laid_out(body: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, offset and size of C fields, as a compiler lays them out."""
    offset = 0
    for field in filter(str.strip, body.split(";")):
        *kind, name = field.replace("*", " * ").split()
        size = 8 if "*" in kind else SIZES_BYTES.get(kind[-1], 4)
        offset = -(-offset // size) * size
        yield name, offset, size
        offset += size


def ours(function: str, size: int) -> list[tuple[str, int, int]]:
    """Return name, offset and size of every field of ours within a size."""
    structure = CALLS[function]
    names = ["structSize", "pPriv", *(name for name, *_ in vars(structure)["_fields_"])]
    fields = [(name, getattr(structure, name)) for name in names]
    return [(n, f.offset, f.size) for n, f in fields if f.offset < size]


def calls_of(version: int) -> list[str]:
    """Return the functions that a version has: those of single-pass sets came with 13.2."""
    return [name for name in CALLS if "SinglePass" not in name or version >= 130200]


@pytest.fixture(params=range(2))
def headers(request: pytest.FixtureRequest) -> Path:
    """Return a folder of headers: the wheel's, and a toolkit's."""
    folders = include_folders()
    number = int(request.param)
    if number >= len(folders):
        pytest.skip(f"there are {len(folders)} copies of libcupti's headers here")
    return folders[number]


def test_layouts_are_those_of_the_headers(headers: Path) -> None:
    """Each field lies where NVIDIA's headers of that version put it, and none lacks."""
    said, version = declared(headers), version_of(headers)

    for function in calls_of(version):
        assert ours(function, size_bytes(function, version)) == said[function], function


def test_a_size_ends_where_the_last_field_ends(headers: Path) -> None:
    """The size that is passed is the one of the version in use, without padding."""
    said, version = declared(headers), version_of(headers)

    for function in calls_of(version):
        _, offset, size = said[function][-1]
        assert size_bytes(function, version) == offset + size, function


def test_a_copy_has_a_count_since_the_version_that_is_told(headers: Path) -> None:
    """The newest record of a copy in NVIDIA's headers has the field, or the version is older."""
    text = (headers / "cupti_activity.h").read_text()
    ends = re.finditer(r"\} CUpti_ActivityMemcpy(\d*);", text)
    newest = max(ends, key=lambda end: int(end[1] or 0)).start()
    record = text[text.rindex("typedef struct", 0, newest) : newest]

    assert "correlationId;" in record
    assert ("copyCount;" in record) == (version_of(headers) >= COPY_COUNT_SINCE)


@pytest.mark.skipif(sys.platform == "win32", reason="a library is named as on Linux")
def test_the_oldest_library_that_is_loaded_is_asked_for_its_version(
    tmp_path: Path,
) -> None:
    """None is loaded to ask, and with two of them it is not known whose a record is."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc)")
    for name, version in (("libcupti.so.13", 130500), ("libcupti.so.12", 24)):
        source = tmp_path / "version.c"
        source.write_text(
            f"int cuptiGetVersion(unsigned *v) {{ *v = {version}; return 0; }}"
        )
        made = ["-shared", "-fPIC", f"-Wl,-soname,{name}", str(source)]
        subprocess.run([compiler, *made, "-o", str(tmp_path / name)], check=True)
    program = (
        "import ctypes, sys; from pytest_gpuperf.collect.cupti import libcupti\n"
        "print(libcupti.loaded_version())\n"
        "for path in sys.argv[1:]:\n"
        "    ctypes.CDLL(path); print(libcupti.loaded_version())\n"
    )
    paths = [str(tmp_path / name) for name in ("libcupti.so.13", "libcupti.so.12")]
    ran = subprocess.run(
        [sys.executable, "-c", program, *paths],
        check=True,
        capture_output=True,
        text=True,
    )

    assert ran.stdout.split() == ["None", "130500", "24"]


@pytest.mark.parametrize(
    ("function", "before", "since"),
    [
        ("cuptiProfilerHostGetMetricProperties", 60, 64),
        ("cuptiProfilerDeviceSupported", 52, 56),
        ("cuptiProfilerHostInitialize", 48, 56),
        ("cuptiRangeProfilerEnable", 32, 36),
    ],
)
def test_a_call_that_grew_has_the_size_of_the_library(
    function: str, before: int, since: int
) -> None:
    """A library is never told of a field that it does not know."""
    assert size_bytes(function, GREW[function] - 1) == before
    assert size_bytes(function, GREW[function]) == since
    assert size_bytes(function, 26) == before


@pytest.fixture
def compiled(headers: Path, tmp_path: Path) -> ctypes.CDLL:
    """Return a double that a C compiler has made against the headers."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc)")
    (tmp_path / "cuda.h").write_text(CUDA_H)
    (tmp_path / "string").touch()  # the C header of 13.0 includes this one of C++
    source = Path(__file__).parents[3] / "fakes" / "cupti_double.c"
    made = tmp_path / "libcupti.so"
    subprocess.run(
        [
            compiler, "-shared", "-fPIC", "-w", "-o", str(made),
            f"-I{tmp_path}", f"-I{headers}", str(source),
        ],
        check=True,
    )  # fmt: skip
    return ctypes.CDLL(str(made))


@pytest.fixture
def library(compiled: ctypes.CDLL) -> Libcupti:
    """Return the compiled double, with a context on device 3."""
    driver = FakeDriver(context=0x1000)
    return Libcupti(compiled, path="the double", driver=lambda: driver)


def profiler(library: Libcupti) -> RangeProfiler:
    """Return a profiler of two metrics."""
    names = ("first.sum", "second.pct")
    return RangeProfiler(names, synchronize=lambda: None, max_ranges=5, library=library)


def test_kernels_are_counted_across_the_binary_interface(
    library: Libcupti, compiled: ctypes.CDLL
) -> None:
    """A library that a compiler laid out gives a range for each kernel."""

    def body() -> None:
        compiled.double_launch()
        compiled.double_launch()

    counted = profiler(library).count_kernels(body)

    numbers = [
        (each.name, [(v.value, v.unit) for v in each.metrics.values()])
        for each in counted.ranges
    ]
    assert numbers == [
        ("0", [(0.5, "byte"), (1.5, "%")]),
        ("1", [(100.5, "byte"), (101.5, "%")]),
    ]


def test_ranges_are_counted_across_the_binary_interface(library: Libcupti) -> None:
    """A library that a compiler laid out has the body run for each of its passes."""
    names: list[str] = []

    def body(ranged: object) -> None:
        names.append("ran")
        with ranged("forward"):  # type: ignore[operator] # what the profiler hands over
            pass

    counted = profiler(library).count_ranges(body)

    assert names == ["ran", "ran"]
    assert [each.name for each in counted.ranges] == ["forward"]
    assert counted.passes_count == 2
