"""The command `report` of captures: one page of reports of Nsight Compute."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fakes import fake_ncu_report
from pytest_gpuperf import cli

pytest.importorskip("jinja2", reason="draws the page")

DOUBLE = 4  # the kind of a value
TIME = "gpu__time_duration.sum"
METRICS = {
    "device__attribute_display_name": (2, "NVIDIA A40", ""),
    "launch__registers_per_thread": (DOUBLE, 32.0, "register/thread"),
    "launch__grid_size": (DOUBLE, 64.0, ""),
}
FMA = "sass_thread_inst_executed_op_ffma_pred_on.sum"
# what a roofline of a launch needs besides
ROOFS = {
    "sm__cycles_elapsed.avg.per_second": (DOUBLE, 1e9, "cycle/second"),
    "dram__cycles_elapsed.avg.per_second": (DOUBLE, 1e9, "cycle/second"),
    "dram__bytes.sum": (DOUBLE, 1e6, "byte"),
    "dram__bytes.sum.peak_sustained": (DOUBLE, 512.0, "byte/cycle"),
    f"sm__{FMA}.peak_sustained": (DOUBLE, 1e4, "inst/cycle"),
    **{
        f"smsp__{FMA}.per_cycle_elapsed".replace("ffma", op): (DOUBLE, 9.0, "inst")
        for op in ("fadd", "fmul", "ffma")
    },
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": (
        DOUBLE,
        0.0,
        "%",
    ),
}


@pytest.fixture(autouse=True)
def _reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ncu_report.install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


def capture(path: Path, *times_ns: float) -> str:
    """Write a report with a launch of each time."""
    launches = [launch(f"kernel_{n}", time_ns) for n, time_ns in enumerate(times_ns)]
    return written(path, [launches])


def launch(kernel: str, time_ns: float, *nvtx: str) -> dict[str, object]:
    """Return a launch in some NVTX ranges."""
    return {
        "kernel": kernel,
        "demangled": f"{kernel}<a & b>()",
        "nvtx": [["<default domain>", nvtx, []]] if nvtx else None,
        "metrics": {**METRICS, TIME: (DOUBLE, time_ns, "ns")},
    }


def failed_launch(kernel: str) -> dict[str, object]:
    """Return a launch that ncu could not measure."""
    device = "device__attribute_display_name"
    metrics = {device: METRICS[device]}
    return {"kernel": kernel, "demangled": kernel, "metrics": metrics}


def written(path: Path, ranges: list[list[dict[str, object]]]) -> str:
    """Write a report of some ranges."""
    path.write_bytes(b"NVR\0" + json.dumps({"ranges": ranges}).encode())
    return str(path)


def test_the_limiter_of_many_kernels_is_that_of_the_longest(tmp_path: Path) -> None:
    """A report is not limited by what limits one of its kernels."""
    limiting = {
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": (DOUBLE, 20.0, "%"),
        "launch__waves_per_multiprocessor": (DOUBLE, 0.1, ""),
    }
    launches = [
        launch(name, time_ns)
        | {"metrics": {**METRICS, **limiting, TIME: (DOUBLE, time_ns, "ns")}}
        for name, time_ns in (("short", 1e3), ("long", 2e3))
    ]
    for count, words in ((1, "limited by grid"), (2, "longest kernel limited by grid")):
        page = tmp_path / f"{count}.html"
        path = written(tmp_path / f"{count}.ncu-rep", [launches[:count]])

        assert cli.main(["report", path, "-o", str(page)]) == 0
        assert f", {words} too small" in page.read_text(encoding="utf-8")


def test_a_capture_is_a_page(tmp_path: Path) -> None:
    """It has its kernels and launches, the longest first, and no word of verdicts."""
    file, page = capture(tmp_path / "a.ncu-rep", 1e3, 3e3), tmp_path / "page.html"

    assert cli.main(["report", file, "-o", str(page)]) == 0

    text = page.read_text(encoding="utf-8")
    assert "<h1>a.ncu-rep: 2 captured launches.</h1>" in text
    assert "NVIDIA A40" in text
    assert text.index("launch 1</span></h4>") < text.index("launch 0</span></h4>")
    assert "a &amp; b" in text
    assert "a & b" not in text
    assert _is_folded(text) == [False]
    assert "judged" not in text.partition("<header")[2].partition("<main")[0]


def test_several_captures_are_one_page(tmp_path: Path) -> None:
    """A file that is named twice is one of them."""
    files = [capture(tmp_path / f"{name}.ncu-rep", 1e3) for name in "ab"]
    page = tmp_path / "page.html"

    assert cli.main(["report", *files, files[0], "-o", str(page)]) == 0

    text = page.read_text(encoding="utf-8")
    assert "<h1>2 captures: 2 captured launches.</h1>" in text
    assert all(Path(file).name in text for file in files)
    assert _is_folded(text) == [True, True]


def test_a_page_begins_with_the_table_of_kernels(tmp_path: Path) -> None:
    """Open for each capture, above the roofline, the launches and the values."""
    counted = launch("gemm", 1e6)
    counted["metrics"] = {**METRICS, TIME: (DOUBLE, 1e6, "ns"), **ROOFS}
    files = [written(tmp_path / f"{name}.ncu-rep", [[counted]]) for name in "ab"]
    page = tmp_path / "page.html"

    assert cli.main(["report", *files, "-o", str(page)]) == 0

    text = page.read_text(encoding="utf-8")
    _, *panels = re.split(r'<details class="t [^>]*>', text)
    assert text.count('<details class="t ') == len(re.findall(_OPEN, text)) == 2
    for panel in panels:
        parts = ("1 kernel<", ">Roofline ", "Launches, ", "Measured")
        places = [panel.index(part) for part in parts]
        assert places == sorted(places)
    assert "Close all</button>" in text


_OPEN = r'<details class="t [^>]* open>'


def _is_folded(text: str) -> list[bool]:
    """Return for each capture whether its launches are folded."""
    heads = re.findall(r"<details class=\"more\"( open)?><summary>Launches, ", text)
    return [not is_open for is_open in heads]


@pytest.mark.parametrize(
    ("names", "headline"),
    [
        (["a"], "a.ncu-rep: 3 captured launches, 2 of them measured and 1 not."),
        (["a", "b"], "2 captures: 6 captured launches, 4 of them measured and 2 not."),
    ],
)
def test_launches_without_a_measurement_are_not_counted_as_measured(
    names: list[str], headline: str, tmp_path: Path
) -> None:
    """The headline has both numbers."""
    launches = [launch("copy", 1e3), launch("copy", 2e3), failed_launch("flash")]
    files = [written(tmp_path / f"{name}.ncu-rep", [launches]) for name in names]
    page = tmp_path / "page.html"

    assert cli.main(["report", *files, "-o", str(page)]) == 0

    text = page.read_text(encoding="utf-8")
    assert f"<h1>{headline}</h1>" in text
    assert text.count("1 launch was not measured</span>") == len(names)


def test_launches_of_one_kernel_are_told_apart(tmp_path: Path) -> None:
    """By number, range, NVTX ranges and file, as far as each tells something."""
    first, second = tmp_path / "a.ncu-rep", tmp_path / "b.ncu-rep"
    alike = launch("copy", 1e3, "epoch", "step 7")
    files = [written(first, [[alike]]), written(second, [[alike], [alike]])]
    page = tmp_path / "page.html"

    assert cli.main(["report", *files, "-o", str(page)]) == 0

    text = page.read_text(encoding="utf-8")
    assert re.findall("<span>(launch .*?)</span></h4>", text) == [
        "launch 0, in NVTX epoch, step 7, a.ncu-rep",
        "launch 0 of range 0, in NVTX epoch, step 7, b.ncu-rep",
        "launch 0 of range 1, in NVTX epoch, step 7, b.ncu-rep",
    ]


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    """Each job of a matrix calls its capture the same."""
    for name in "ab":
        (tmp_path / name).mkdir()
    files = [capture(tmp_path / name / "x.ncu-rep", 1e3) for name in "ab"]
    page = tmp_path / "page.html"

    assert cli.main(["report", *files, "-o", str(page)]) == 0

    text = page.read_text(encoding="utf-8")
    assert all(f"<span>launch 0, {file}</span></h4>" in text for file in files)


def test_a_failure_names_the_range_of_its_launch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Numbers of launches begin again in each range."""
    ranges = [[launch("copy", 1e3)], [failed_launch("flash")]]
    file = written(tmp_path / "a.ncu-rep", ranges)

    assert cli.main(["show", file, "--details"]) == 0

    out = capfd.readouterr().out
    assert "(launch 0 of range 0)" in out
    told = "launch 0 of range 1 (flash) was not measured: ncu failed"
    assert told in out
    assert cli.main(["compare", file, file]) == 0
    assert capfd.readouterr().out.count(f"a.ncu-rep: {told}") == 2


def test_the_launches_that_are_left_out_are_counted(tmp_path: Path) -> None:
    """A report of thousands would be a page of megabytes."""
    file = capture(tmp_path / "a.ncu-rep", *range(1, 46))
    page = tmp_path / "page.html"

    assert cli.main(["report", file, "-o", str(page)]) == 0

    assert "5 shorter launches" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("more", "name", "told"),
    [
        ([], "r.md", "markdown takes a run"),
        (["run.json"], "r.html", "run.json is not a capture, and the others are"),
    ],
)
def test_what_a_page_of_captures_is_not(
    more: list[str],
    name: str,
    told: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A capture has no verdicts for Markdown, and a run has another page."""
    file = capture(tmp_path / "a.ncu-rep", 1e3)

    assert cli.main(["report", file, *more, "-o", str(tmp_path / name)]) == 2
    assert told in capfd.readouterr().err


@pytest.mark.parametrize("command", [("compare",), ("report", "-o", "page.html")])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "it cannot be read (No such file"),
        (b"", "remedy: profile again: ncu did not finish it"),
    ],
)
def test_a_capture_is_known_by_its_name(
    command: tuple[str, ...],
    content: bytes | None,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A missing or an empty one is not told to be something else."""
    monkeypatch.chdir(tmp_path)
    capture(tmp_path / "a.ncu-rep", 1e3)
    if content is not None:
        Path("b.ncu-rep").write_bytes(content)

    assert cli.main([*command, "b.ncu-rep", "a.ncu-rep"]) == 4
    assert told in capfd.readouterr().err


def test_a_page_without_verdicts_offers_none(tmp_path: Path) -> None:
    """Nothing sorts or groups by them or finds the next; on paper no heading stands alone."""
    file, page = capture(tmp_path / "a.ncu-rep", 1e3, 3e3), tmp_path / "page.html"
    cli.main(["report", file, "-o", str(page)])
    text = page.read_text(encoding="utf-8")
    printed = text.partition("@media print")[2].partition("display: none")[0]

    assert not re.search("by (verdict|change|value)", text)
    assert "<label hidden>Group" in text
    assert "next that fails" not in text
    assert '<section class="cond legend of-keys"><h2>How to read it' in text
    assert ".of-keys" in printed
