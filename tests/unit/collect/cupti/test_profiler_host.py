"""collect.cupti.profiler_host: CUPTI's answers with a driver and without."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fakes.chips import need_library
from fakes.libcupti import FakeCupti
from pytest_gpuperf.collect import cupti
from pytest_gpuperf.collect.cupti import (
    MetricCollectionScope,
    MetricProperties,
    MetricType,
    ProfilerHost,
    ProfilerType,
    profiler_host,
)
from pytest_gpuperf.collect.cupti.chips import evaluator
from pytest_gpuperf.collect.cupti.libcupti import Libcupti, find_libraries
from pytest_gpuperf.collect.cupti.metric_host import LibraryHost, metrics_per_pass
from pytest_gpuperf.collect.cupti.profiler_host import OfflineHost
from pytest_gpuperf.errors import CollectError, CollectorUnavailableError

if TYPE_CHECKING:
    from numpy.typing import NDArray

C_LIBRARY = ctypes.util.find_library("c") or "libc.so.6"
DOUBLE = """
    class Said:
        description, hw_unit, dim_unit = "bytes", "dram", "byte"
        metric_type, metric_collection_scope = 0, 1

    class ProfilerHost:
        def __init__(self, chip, kind, set_name=None):
            self.said = chip, int(kind), set_name
        def initialize(self):
            print("initialize", *self.said)
        def deinitialize(self):
            print("deinitialize")
        def get_metric_properties(self, name):
            return Said()
        def get_base_metrics(self, kind):
            return ["dram__bytes"]

    def get_supported_chips():
        return ["GX999"]

    def get_single_pass_sets(chip):
        return ["one", "two"]
"""
ASKED = """
    from pytest_gpuperf.collect.cupti import *
    from pytest_gpuperf.collect.cupti.profiler_host import choose

    print(choose()[0].__name__, get_supported_chips(), get_single_pass_sets("GX999"))
    host = ProfilerHost("GX999", ProfilerType.PM_SAMPLING, "one")
    host.initialize()
    host.initialize()
    print(host.get_base_metrics(MetricType.COUNTER))
    print(host.get_metric_properties("dram__bytes").metric_collection_scope.name)
    host.deinitialize()
    host.deinitialize()
"""


@pytest.fixture
def host() -> ProfilerHost:
    """Return an initialized host of GH100 that asks no driver."""
    need_library()
    if profiler_host.choose()[0] is not None:
        pytest.skip("a driver is here: CUPTI answers itself")
    made = ProfilerHost("GH100", ProfilerType.RANGE_PROFILER)
    made.initialize()
    return made


def test_an_image_without_numpy_says_what_to_install(
    host: ProfilerHost, tmp_path: Path
) -> None:
    """Numpy comes with the extra; names and passes need none."""
    assert host.get_base_metrics(MetricType.COUNTER)
    script = (
        "import sys; sys.modules['numpy'] = None\n"
        "from pytest_gpuperf.collect.cupti import ProfilerHost, ProfilerType\n"
        "host = ProfilerHost('GH100', ProfilerType.RANGE_PROFILER)\n"
        "host.initialize()\n"
        "host.create_config_image(['dram__bytes.sum'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert 'pip install "pytest-gpuperf[cupti]"' in done.stderr


def test_public_names_are_there_and_lazy() -> None:
    """Each public name resolves, and no other does."""
    for name in cupti.__all__:
        assert getattr(cupti, name).__name__ == name
    with pytest.raises(AttributeError):
        cupti.get_everything  # noqa: B018 - that it raises is what is tested


@pytest.mark.parametrize(
    "name", ["ProfilerType", "MetricType", "MetricCollectionScope"]
)
def test_enumerations_are_those_of_cupti(name: str) -> None:
    """Every member has the number that cupti-python gives it."""
    theirs = pytest.importorskip("cupti.profiler_host")
    ours = getattr(cupti, name)
    members = getattr(theirs, name).__members__
    public = {k: int(v) for k, v in members.items() if not k.startswith("_")}
    assert {k: int(v) for k, v in ours.__members__.items()} == public


def test_signatures_are_those_of_cupti() -> None:
    """Whoever calls NVIDIA's functions by keyword can call ours."""
    theirs = pytest.importorskip("cupti.profiler_host")
    for name in cupti.__all__:
        if name == "MetricProperties" or hasattr(getattr(cupti, name), "__members__"):
            continue
        ours = inspect.signature(getattr(cupti, name)).parameters
        assert list(ours) == list(inspect.signature(getattr(theirs, name)).parameters)
    for name, method in vars(theirs.ProfilerHost).items():
        if callable(method) and not name.startswith("_"):
            ours = inspect.signature(getattr(ProfilerHost, name)).parameters
            assert list(ours) == list(inspect.signature(method).parameters), name


def test_nothing_is_answered_before_initialize() -> None:
    """Each method that asks raises RuntimeError on a host that is not initialized."""
    host = ProfilerHost("GH100", ProfilerType.RANGE_PROFILER)
    nothing = np.zeros(0, dtype=np.uint8)
    asks: list[Callable[[], object]] = [
        lambda: host.get_base_metrics(MetricType.COUNTER),
        lambda: host.get_sub_metrics("dram__bytes", MetricType.COUNTER),
        lambda: host.get_metric_properties("dram__bytes"),
        lambda: host.create_config_image(["dram__bytes.sum"]),
        lambda: host.evaluate_metric_values(nothing, [], 0),
    ]
    for ask in asks:
        with pytest.raises(RuntimeError, match="initialize"):
            ask()
    host.deinitialize()  # of what was never initialized


def test_metrics_have_endings_and_properties(host: ProfilerHost) -> None:
    """Offline, endings and properties are CUPTI's; the scope is said by nobody."""
    assert "dram__bytes" in host.get_base_metrics(MetricType.COUNTER)
    assert ".sum.per_second" in host.get_sub_metrics("dram__bytes", MetricType.COUNTER)
    ratio = host.get_sub_metrics("lts__t_sector_hit_rate", MetricType.RATIO)
    assert ratio == [".max_rate", ".pct", ".ratio"]
    found = host.get_metric_properties("dram__bytes.sum.per_second")
    assert (found.hw_unit, found.dim_unit) == ("dram", "byte/second")
    assert found.metric_type is MetricType.COUNTER
    assert found.metric_collection_scope is MetricCollectionScope.INVALID


def test_an_image_says_its_passes(host: ProfilerHost) -> None:
    """The passes of an image are counted; what is not an image is a ValueError."""
    image = host.create_config_image(
        ["sm__throughput.avg.pct_of_peak_sustained_elapsed"]
    )
    assert image.dtype == np.uint8
    assert cupti.get_num_of_passes(image) == 8
    for wrong in (image[:0], image[:6], np.zeros(64, dtype=np.uint8)):
        with pytest.raises(ValueError, match="not a configuration image"):
            cupti.get_num_of_passes(wrong)


def test_mistakes_are_value_errors(host: ProfilerHost) -> None:
    """An unknown chip, metric, kind or type is the ValueError that CUPTI raises."""
    wrong: list[Callable[[], object]] = [
        lambda: host.create_config_image(["nonsense"]),
        lambda: host.get_metric_properties("dram__bytes.summ"),
        lambda: host.get_sub_metrics("dram__bytes", MetricType.RATIO),
        lambda: host.get_base_metrics(9),  # type: ignore[arg-type] # that is the mistake
        lambda: ProfilerHost("GH100", 9),  # type: ignore[arg-type] # the same
        lambda: ProfilerHost("GX999", ProfilerType.RANGE_PROFILER).initialize(),
        lambda: cupti.get_single_pass_sets("GX999"),
        lambda: cupti.get_single_pass_sets(""),
        lambda: cupti.get_metrics_in_single_pass_set("GH100", ""),
    ]
    for ask in wrong:
        with pytest.raises(ValueError, match=r"\w"):
            ask()


def test_what_only_cupti_knows_is_an_error_with_a_remedy(host: ProfilerHost) -> None:
    """Nothing is made up offline: the error says why, and where it would be answered."""
    assert host.get_base_metrics(MetricType.COUNTER)
    offline = OfflineHost("GH100", evaluator("GH100"), reason="there is no driver")
    asks: list[Callable[[], object]] = [
        lambda: cupti.get_single_pass_sets("GH100"),
        lambda: cupti.get_metrics_in_single_pass_set("GH100", "a"),
        lambda: ProfilerHost("GH100", ProfilerType.PM_SAMPLING, "a").initialize(),
        offline.place,
    ]
    for ask in asks:
        with pytest.raises(CollectorUnavailableError, match="need CUPTI") as caught:
            ask()
        assert "machine with a GPU" in caught.value.remedy


@pytest.fixture
def library() -> Libcupti:
    """Return a real libcupti that needs no driver: one of 13.0 or 13.1."""
    for path in find_libraries():
        with contextlib.suppress(OSError, CollectError):
            # A test before this one may have loaded a double of the driver. With a driver,
            # libcupti reads counter data of nothing, and crashes.
            found = Libcupti(
                ctypes.CDLL(str(path)), path=str(path), driver=lambda: None
            )
            if 130000 <= found.version < 130200:
                return found
    pytest.skip("needs a libcupti of CUDA 13.0 or 13.1, which answers without a driver")


def test_libcupti_itself_knows_what_fits_a_pass(library: Libcupti) -> None:
    """Of both profilers, as CUPTI's own interface says it with a driver."""
    assert metrics_per_pass(library, "GH100", ProfilerType.RANGE_PROFILER) == 88
    assert metrics_per_pass(library, "GH100", ProfilerType.PM_SAMPLING) == 248


@pytest.mark.parametrize(
    "kind", [ProfilerType.RANGE_PROFILER, ProfilerType.PM_SAMPLING]
)
def test_libcupti_itself_answers_as_its_module_does(
    library: Libcupti, kind: ProfilerType
) -> None:
    """Names, properties and images of both profilers; mistakes are ValueErrors."""
    asked = LibraryHost(library, "GH100", kind)
    properties = asked.get_metric_properties("dram__bytes.sum")
    assert len(asked.create_config_image(["dram__bytes.sum"]))
    assert "dram__bytes" in asked.get_base_metrics(MetricType.COUNTER)
    assert ".sum" in asked.get_sub_metrics("dram__bytes", MetricType.COUNTER)
    assert (properties.hw_unit, properties.dim_unit) == ("dram", "byte")
    wrong: list[Callable[[], object]] = [
        lambda: asked.create_config_image(["nonsense"]),
        lambda: asked.get_metric_properties("nonsense"),
        lambda: asked.get_sub_metrics("nonsense", MetricType.COUNTER),
    ]
    for ask in wrong:
        with pytest.raises(ValueError, match="metric"):
            ask()
    with pytest.raises(CollectorUnavailableError, match="need CUPTI and a CUDA driver"):
        asked.place()
    asked.deinitialize()
    asked.deinitialize()


def test_an_image_of_libcupti_is_one_for_everybody(library: Libcupti) -> None:
    """Passes are counted by libnvperf, whoever has made the image."""
    need_library()
    asked = LibraryHost(library, "GH100", ProfilerType.RANGE_PROFILER)
    image = asked.create_config_image(["dram__bytes.sum"])

    assert cupti.get_num_of_passes(image) == 1


def test_a_newer_libcupti_without_a_driver_is_not_asked() -> None:
    """From 13.2 on it refuses, or crashes."""
    newer = Libcupti(FakeCupti(version=130500), path="the double", driver=lambda: None)

    with pytest.raises(CollectorUnavailableError, match="without a CUDA driver"):
        metrics_per_pass(newer, "GH100", ProfilerType.PM_SAMPLING)
    with pytest.raises(CollectorUnavailableError, match="without a CUDA driver"):
        LibraryHost(newer, "GH100", ProfilerType.RANGE_PROFILER)


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> FakeCupti:
    """Return the libcupti that answers with a driver, because NVIDIA's module refuses."""
    need_library()
    made = FakeCupti({"dram__bytes.sum": "byte"}, version=130500)
    made.sets = {"Triage": ["dram__bytes.sum", "gpc__cycles"], "Other": []}
    library = Libcupti(made, path="the double", driver=object)
    monkeypatch.setattr(profiler_host, "_chosen", lambda: (None, "it refuses"))
    monkeypatch.setattr(profiler_host, "_library", lambda: (library, ""))
    # Another process cannot load this double.
    monkeypatch.setattr(Libcupti, "file", lambda library: library.path)
    monkeypatch.setattr(profiler_host, "require_counter_data", lambda *_: None)
    return made


def test_libcupti_itself_knows_single_pass_sets(double: FakeCupti) -> None:
    """With a driver that is too old for NVIDIA's module, say; a host is made for one."""
    assert cupti.get_single_pass_sets("GH100") == ["Triage", "Other"]
    assert cupti.get_metrics_in_single_pass_set("GH100", "Other") == []
    assert cupti.get_metrics_in_single_pass_set("GH100", "Triage") == [
        "dram__bytes.sum",
        "gpc__cycles",
    ]
    made = ProfilerHost("GH100", ProfilerType.PM_SAMPLING, "Triage")
    made.initialize()
    assert double.host_set == "Triage"
    assert len(made.create_config_image(["dram__bytes.sum"]))
    assert double.host_set == "Triage"
    made.deinitialize()
    assert double.open_count == 0


def test_data_of_nothing_are_not_blamed_on_a_metric(double: FakeCupti) -> None:
    """Libcupti has one status for both; a metric that there is not is named all the same."""
    double.status_of["cuptiProfilerHostEvaluateToGpuValues"] = 1
    made = ProfilerHost("GH100", ProfilerType.RANGE_PROFILER)
    made.initialize()
    nothing = np.zeros(8, dtype=np.uint8)

    with pytest.raises(ValueError, match=r"image \(8 bytes\) has no range 0"):
        made.evaluate_metric_values(nothing, ["dram__bytes.sum"], 0)
    with pytest.raises(ValueError, match="no metric 'nonsense'"):
        made.evaluate_metric_values(nothing, ["nonsense"], 0)


FOREIGN = {
    "of nothing": np.zeros(8, dtype=np.uint8),
    "of ones": np.full(4096, 255, dtype=np.uint8),
    "a text": np.frombuffer(b"counter data of somebody else " * 40, dtype=np.uint8),
}


@pytest.mark.parametrize("image", FOREIGN.values(), ids=FOREIGN)
def test_data_that_crash_libcupti_are_a_mistake(
    library: Libcupti, monkeypatch: pytest.MonkeyPatch, image: NDArray[np.uint8]
) -> None:
    """The real libcupti reads where nothing is, in another process, and this one goes on."""
    seen = Libcupti(ctypes.CDLL(library.path), path=library.path, driver=object)
    monkeypatch.setattr(profiler_host, "_chosen", lambda: (None, "it refuses"))
    monkeypatch.setattr(profiler_host, "_library", lambda: (seen, ""))
    made = ProfilerHost("GH100", ProfilerType.RANGE_PROFILER)
    try:
        made.initialize()
    except CollectorUnavailableError as error:  # libnvperf_host may be missing.
        pytest.skip(str(error))

    with pytest.raises(
        ValueError, match=rf"\({len(image)} bytes\) is not counter data"
    ):
        made.evaluate_metric_values(image, ["dram__bytes.sum"], 0)


def test_each_image_is_tried_once(
    double: FakeCupti, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop over the samples of one image does not start a process for each."""
    tried: list[tuple[bytes, tuple[str, ...]]] = []
    monkeypatch.setattr(
        profiler_host, "require_counter_data", lambda *given: tried.append(given)
    )
    double.status_of["cuptiProfilerHostEvaluateToGpuValues"] = 1
    made = ProfilerHost("GH100", ProfilerType.PM_SAMPLING, "Triage")
    made.initialize()
    for byte in b"aab":
        image = np.full(8, byte, dtype=np.uint8)
        for index in (0, 1):
            with pytest.raises(ValueError, match=f"no range {index}"):
                made.evaluate_metric_values(image, ["dram__bytes.sum"], index)

    about = ("the double", "GH100", "1", "Triage", "0", "dram__bytes.sum")
    assert tried == [(b"a" * 8, about), (b"b" * 8, about)]


def test_a_trial_that_did_not_take_place_is_said() -> None:
    """The data may be right: the library does not load in the other process."""
    arguments = ("/nowhere/libcupti.so.13", "GH100", "0", "", "0", "dram__bytes.sum")
    with pytest.raises(CollectError, match="nowhere") as caught:
        profiler_host.require_counter_data(b"data", arguments)
    assert "(4 bytes) cannot be tried in another process" in caught.value.message


MODULE = """
    import os, signal
    from pytest_gpuperf.collect.cupti.profiler_host import ProfilerType

    class ProfilerHost:
        def __init__(self, *given):
            assert given == ("GH100", ProfilerType.PM_SAMPLING, "Triage")
        def initialize(self):
            pass
        def evaluate_metric_values(self, image, metrics, index):
            if bytes(image) != b"counted":
                os.kill(os.getpid(), signal.SIGSEGV)
            assert (metrics, index) == (("dram__bytes.sum",), 3)
"""


def test_the_module_of_nvidia_is_tried_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It calls the same function."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "cupti").mkdir()
    for name, text in (("__init__", ""), ("profiler_host", MODULE)):
        (tmp_path / "cupti" / f"{name}.py").write_text(textwrap.dedent(text), "utf-8")
    about = ("cupti.profiler_host", "GH100", "1", "Triage", "3", "dram__bytes.sum")

    profiler_host.require_counter_data(b"counted", about)
    with pytest.raises(ValueError, match="SIGSEGV"):
        profiler_host.require_counter_data(b"something else", about)


def test_a_library_that_another_one_loaded_has_a_file(library: Libcupti) -> None:
    """The name alone may find another copy in another process."""
    named = Libcupti(ctypes.CDLL(library.path), path="libcupti.so.13")

    assert Path(named.file()).samefile(library.path)


def test_a_set_that_there_is_not_is_a_mistake(double: FakeCupti) -> None:
    """It is named, and those that there are."""
    asks: list[Callable[[], object]] = [
        lambda: cupti.get_metrics_in_single_pass_set("GH100", "nosuch"),
        lambda: ProfilerHost("GH100", ProfilerType.PM_SAMPLING, "nosuch").initialize(),
    ]
    for ask in asks:
        with pytest.raises(ValueError, match="'nosuch'; it has Triage, Other"):
            ask()
    assert double.open_count == 0


def test_an_old_libcupti_has_no_sets(
    double: FakeCupti, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 13.2; the error says so, and what would have them."""
    older = FakeCupti(version=130000)
    library = Libcupti(older, path="the double", driver=lambda: None)
    monkeypatch.setattr(profiler_host, "_library", lambda: (library, ""))

    with pytest.raises(CollectorUnavailableError, match=r"cupti 13\.0 has none"):
        cupti.get_single_pass_sets("GH100")
    assert double.calls == older.calls == []


def test_a_set_of_the_other_profiler_is_a_mistake(host: ProfilerHost) -> None:
    """Sets are of PM sampling; offline, too, nothing else is accepted silently."""
    assert host.get_base_metrics(MetricType.COUNTER)
    with pytest.raises(ValueError, match="nosuch"):
        ProfilerHost("GH100", ProfilerType.RANGE_PROFILER, "nosuch").initialize()


def test_properties_take_positions() -> None:
    """As those of NVIDIA's module."""
    made = MetricProperties(
        "bytes", "dram", "byte", MetricType.COUNTER, MetricCollectionScope.DEVICE
    )

    assert (made.description, made.hw_unit) == ("bytes", "dram")


def test_a_host_can_be_let_go_of_and_taken_up_again(host: ProfilerHost) -> None:
    """After deinitialize nothing is answered, and after initialize it is."""
    host.deinitialize()
    host.deinitialize()
    with pytest.raises(RuntimeError):
        host.get_base_metrics(MetricType.RATIO)
    host.initialize()
    assert host.get_base_metrics(MetricType.RATIO)


def test_why_cupti_does_not_answer_is_said() -> None:
    """Each way of being without CUPTI leaves its own sentence."""
    assert "driver" in profiler_host.choose("libnothing.so.1")[1]
    found, reason = profiler_host.choose(C_LIBRARY, "no_such_module")
    assert found is None
    assert "no_such_module" in reason
    found, reason = profiler_host.choose(C_LIBRARY, "json")
    assert found is None
    assert "get_supported_chips" in reason


@pytest.mark.skipif(sys.platform != "linux", reason="the loader's path is Linux's")
def test_where_a_driver_is_cupti_answers(tmp_path: Path) -> None:
    """With a driver and NVIDIA's module every question goes to that module."""
    (tmp_path / "libcuda.so.1").symlink_to(c_library_path())
    package = tmp_path / "cupti"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "profiler_host.py").write_text(dedented(DOUBLE))
    paths = [str(tmp_path), str(Path(cupti.__file__).parents[3])]
    done = subprocess.run(
        [sys.executable, "-c", dedented(ASKED)],
        capture_output=True,
        check=False,
        text=True,
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(tmp_path),
            "PYTHONPATH": os.pathsep.join(paths),
        },
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "cupti.profiler_host ['GX999'] ['one', 'two']",
        "initialize GX999 1 one",
        "['dram__bytes']",
        "DEVICE",
        "deinitialize",
    ]


def c_library_path() -> str:
    """Return the file of a library that is loaded in every process."""
    maps = Path("/proc/self/maps").read_text()
    lines = (line.split()[-1] for line in maps.splitlines())
    return next(path for path in lines if Path(path).name.startswith("libc."))


def dedented(text: str) -> str:
    """Return a program without the indentation it has here."""
    return textwrap.dedent(text)
