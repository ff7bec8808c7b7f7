"""collect.cupti.nvperf and chips: the library as its headers have it, and its answers."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.chips import need_library
from pytest_gpuperf.collect.cupti import nvperf
from pytest_gpuperf.collect.cupti.chips import Evaluator, MetricType, evaluator
from pytest_gpuperf.errors import (
    CollectError,
    CollectorUnavailableError,
    ConfigError,
    UnknownMetricError,
)

HEADERS = ("nvperf_host.h", "nvperf_cuda_host.h", "nvperf_target.h")
SIZES_BYTES = {  # of the headers' types; a pointer has 8, an enumeration 4
    "size_t": 8,
    "uint64_t": 8,
    "uint32_t": 4,
    "uint16_t": 2,
    "uint8_t": 1,
    "int8_t": 1,
    "NVPA_Bool": 1,
    "NVPA_ActivityKind": 4,
}
THROUGHPUT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"


@pytest.fixture
def loaded() -> nvperf.Library:
    """Return the installed library."""
    return need_library()


@pytest.fixture
def hopper(loaded: nvperf.Library) -> Evaluator:
    """Return what answers for GH100."""
    return evaluator("GH100", loaded)


def header_structures(folder: Path) -> dict[str, list[tuple[int, int]]]:
    """Return offset and size of every field of every structure of the headers."""
    text = "".join((folder / name).read_text() for name in HEADERS)
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    found = {}
    for name, body in re.findall(r"typedef struct (\w+)\s*\{([^}]*)\}\s*\1;", text):
        fields = [field.strip() for field in body.split(";") if field.strip()]
        found[name] = list(laid_out(fields))
    return found


def laid_out(fields: list[str]) -> Iterator[tuple[int, int]]:
    """Yield offset and size of C fields, as a compiler lays them out."""
    offset = 0
    for field in fields:
        kind = "pointer" if "*" in field else field.split()[-2]
        size = 8 if kind == "pointer" else SIZES_BYTES.get(kind, 4)
        offset = -(-offset // size) * size
        yield offset, size
        offset += size


def headers_beside(loaded: nvperf.Library) -> Path:
    """Return the folder of the headers that came with the library."""
    folder = Path(loaded.path).parents[1] / "include"
    if not (folder / HEADERS[0]).exists():
        pytest.skip("the headers of libnvperf_host are not installed beside it")
    return folder


def test_sizes_end_where_the_last_field_ends() -> None:
    """A structure's size does not count the padding behind its last field."""
    assert nvperf.struct_size(nvperf.EvalRequest) == 12
    assert nvperf.struct_size(nvperf.DimUnitFactor) == 5
    assert nvperf.struct_size(nvperf.RawMetricRequest) == 26
    assert nvperf.SIZES["NVPW_InitializeHost"] == 16
    assert nvperf.SIZES["NVPW_GetSupportedChipNames"] == 32


def test_structures_are_those_of_the_headers(loaded: nvperf.Library) -> None:
    """Every field of every call lies where the installed headers put it."""
    folder = headers_beside(loaded)
    theirs = header_structures(folder)
    ours: dict[str, type[ctypes.Structure]] = {
        "NVPW_MetricEvalRequest": nvperf.EvalRequest,
        "NVPW_DimUnitFactor": nvperf.DimUnitFactor,
        "NVPA_RawMetricRequest": nvperf.RawMetricRequest,
        **{f"{name}_Params": call for name, call in nvperf.CALLS.items()},
    }
    for name, structure in ours.items():
        names = [
            field
            for each in reversed(structure.__mro__)
            for field, *_ in vars(each).get("_fields_", ())
        ]
        places = [getattr(structure, field) for field in names]
        assert [(p.offset, p.size) for p in places] == theirs[name], name


def test_endings_are_numbered_as_in_the_headers(loaded: nvperf.Library) -> None:
    """The place of an ending in our table is its number in NVPW_Submetric."""
    text = (headers_beside(loaded) / HEADERS[0]).read_text()
    numbers = dict(re.findall(r"NVPW_SUBMETRIC_(\w+) = (\d+)", text))
    del numbers["NONE"]
    ours = {
        name.upper().replace(".", "_"): str(place)
        for place, name in enumerate(nvperf.SUBMETRICS)
        if name
    }
    assert ours == numbers


def test_a_library_that_does_not_load_says_what_to_install(tmp_path: Path) -> None:
    """A file that is not a library is an error with a remedy, not a crash."""
    path = tmp_path / "libnvperf_host.so"
    path.write_text("no library")
    with pytest.raises(CollectorUnavailableError, match="pip install") as caught:
        nvperf.Library(str(path))
    assert str(path) in caught.value.message


def test_the_variable_names_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a person names is taken, and nothing else where that fails."""
    monkeypatch.setenv(nvperf.LIBRARY_VARIABLE, "/no/such/library.so")
    with pytest.raises(CollectorUnavailableError, match="/no/such/library"):
        nvperf.load.__wrapped__()


def test_chips_are_listed(loaded: nvperf.Library) -> None:
    """Every data-centre chip from Ampere on is known."""
    assert {"GA100", "AD102", "GH100", "GB100", "GB202"} <= set(loaded.chips())


def test_an_unknown_chip_is_refused_with_those_that_are_known(
    loaded: nvperf.Library,
) -> None:
    """The error of an unknown chip lists the chips."""
    with pytest.raises(ConfigError, match="GH100"):
        evaluator("GX999", loaded)


def test_an_evaluator_is_made_once(loaded: nvperf.Library) -> None:
    """Asking for a chip again gives the same evaluator."""
    assert evaluator("GA100", loaded) is evaluator("GA100", loaded)


def test_a_name_needs_its_ending(hopper: Evaluator) -> None:
    """A base has a kind, and only with an ending is it a metric."""
    assert hopper.kind("dram__bytes") is MetricType.COUNTER
    assert hopper.kind("lts__t_sector_hit_rate") is MetricType.RATIO
    assert hopper.kind("sm__throughput") is MetricType.THROUGHPUT
    assert hopper.kind("nonsense") is None
    assert hopper.accepts("dram__bytes.sum")
    assert not hopper.accepts("dram__bytes")
    assert not hopper.accepts("dram__bytes.pct")


@pytest.mark.parametrize("chip", ["TU102", "GA100", "AD102", "GH100", "GB202"])
@pytest.mark.parametrize("kind", list(MetricType))
def test_every_listed_spelling_is_accepted(chip: str, kind: MetricType) -> None:
    """Each base of a chip with each ending of its kind is a metric."""
    asked = evaluator(chip, need_library())
    endings = asked.endings(kind)
    assert len(set(endings)) == len(endings) == {0: 44, 1: 3, 2: 8}[kind]
    for place, base in enumerate(asked.names(kind)):
        assert asked.accepts(base + endings[place % len(endings)])
        assert asked.kind(base) is kind


@pytest.mark.parametrize(
    ("name", "unit", "part"),
    [
        ("dram__bytes", "byte", "dram"),
        ("dram__bytes.sum.per_second", "byte/second", "dram"),
        ("dram__bytes.sum.pct_of_peak_sustained_elapsed", "percent", "dram"),
        ("sm__inst_executed.avg.per_cycle_active", "instruction/gpc_cycle", "sm"),
        ("gpu__time_duration.sum", "nanosecond", "gpu"),
        ("lts__t_sector_hit_rate.pct", "percent", "lts"),
        ("lts__t_sector_hit_rate.ratio", "", "lts"),
    ],
)
def test_units_are_those_of_cupti(
    hopper: Evaluator, name: str, unit: str, part: str
) -> None:
    """A unit reads as CUPTI's profiler host of 13.0.85 says it."""
    found = hopper.properties(name)
    assert (found.unit, found.hardware_unit) == (unit, part)
    assert found.description


def test_a_throughput_is_made_of_others(hopper: Evaluator) -> None:
    """The constituents of a throughput are metrics of the chip themselves."""
    made_of = hopper.properties("sm__throughput").made_of
    assert made_of
    assert all(hopper.kind(name) is not None for name in made_of)
    assert hopper.properties("dram__bytes").made_of == ()


@pytest.mark.parametrize("name", ["nonsense", "dram__bytes.summ", ""])
def test_an_unknown_name_has_no_properties_and_no_passes(
    hopper: Evaluator, name: str
) -> None:
    """An unknown name is an error that carries it."""
    for ask in (hopper.properties, lambda each: hopper.passes([each])):
        with pytest.raises(UnknownMetricError) as caught:
            ask(name)
        assert caught.value.name == name


def test_passes_are_those_of_cupti(hopper: Evaluator) -> None:
    """Lists whose passes CUPTI's profiler host of 13.0.85 says have the same here."""
    assert hopper.passes([]) == 0
    assert hopper.passes(["dram__bytes.sum"]) == 1
    assert hopper.passes(["sm__cycles_active.avg", "sm__inst_executed.sum"]) == 1
    assert hopper.passes([THROUGHPUT]) == 8


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_together_is_never_dearer_than_one_by_one(data: st.DataObject) -> None:
    """Metrics together need no more passes than the sum of each, and at least one."""
    asked = evaluator("GH100", need_library())
    bases = st.sampled_from(asked.names(MetricType.COUNTER))
    names = [
        f"{base}.sum" for base in data.draw(st.lists(bases, min_size=1, max_size=6))
    ]
    assert 1 <= asked.passes(names) <= sum(asked.passes([name]) for name in names)


def test_an_image_asks_for_the_passes_of_its_metrics(
    loaded: nvperf.Library, hopper: Evaluator
) -> None:
    """What tells a device to count metrics needs the passes that were foretold."""
    for names in (["dram__bytes.sum"], [THROUGHPUT], [THROUGHPUT, "dram__bytes.sum"]):
        assert loaded.passes_of(hopper.config_image(names)) == hopper.passes(names)


def test_what_a_kernel_does_not_give_is_an_error(loaded: nvperf.Library) -> None:
    """A metric that cannot be scheduled says so; the next question is answered."""
    asked = evaluator("GB202", loaded)
    name = "lts__t_requests_srcnode_gpc_realtime.sum"
    if not asked.accepts(name):
        pytest.skip(f"this version has no {name}")
    with pytest.raises(CollectError, match="AddMetrics"):
        asked.passes([name])
    assert asked.passes(["dram__bytes.sum"]) == 1
