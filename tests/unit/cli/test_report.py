"""The commands `report` and `export`: files by their names, and what they refuse."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fakes import runs
from pytest_gpuperf import cli
from pytest_gpuperf.cli.arguments import EXPORTS
from pytest_gpuperf.model.codec import decode_run, encode_run
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Void, VoidCode
from pytest_gpuperf.report import exports
from pytest_gpuperf.report.runs import run_markdown

RUN = decode_run(encode_run(runs.gpu_run()))  # whole numbers come back as floats


@pytest.fixture(name="run")
def run_(tmp_path: Path) -> str:
    """Return the path of a run."""
    path = tmp_path / "run.json"
    path.write_bytes(encode_run(RUN))
    return str(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.md", run_markdown(RUN).encode()),
        ("r.markdown", run_markdown(RUN).encode()),
        ("r.csv", exports.csv_bytes(RUN)),
    ],
)
def test_the_name_of_a_report_says_its_form(
    run: str, name: str, content: bytes, tmp_path: Path
) -> None:
    """Lines to reproduce and accept are in the Markdown: it is for who can type them."""
    assert cli.main(["report", run, "-o", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_bytes() == content


@pytest.mark.parametrize("name", ["r.pdf", "r.json", "r.html.gz"])
def test_a_name_of_another_form_is_refused(
    run: str, name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A page under it would be opened by a program that cannot read it."""
    assert cli.main(["report", run, "-o", str(tmp_path / name)]) == 2
    assert "end its name with .html, .md or .csv" in capfd.readouterr().err
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    "options", [["report", "--format=html"], ["export", "--to=bencher"]]
)
def test_a_run_is_not_replaced_by_what_is_made_of_it(
    run: str, options: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By another name neither: a run is not measured a second time."""
    alias = tmp_path / "alias.json"
    alias.symlink_to(run)

    for name in (run, str(alias)):
        assert cli.main([*options, run, "-o", name]) == 2
        assert f"--output names {name}, which is read" in capfd.readouterr().err
    assert Path(run).read_bytes() == encode_run(RUN)


@pytest.mark.skipif(sys.platform != "linux", reason="the device is one of Linux")
def test_a_full_disk_is_told_apart(run: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Another folder of the same disk would not help."""
    assert cli.main(["report", run, "-o", "/dev/full", "--format=csv"]) == 4
    assert "remedy: free space" in capfd.readouterr().err


def test_a_form_can_be_named(
    run: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Standard output has no name to tell it."""
    assert cli.main(["report", run, "-o", "-", "--format=csv"]) == 0
    assert capfdbinary.readouterr().out == exports.csv_bytes(RUN)


def test_only_a_page_shows_several_runs(
    run: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The others would be passed over."""
    assert cli.main(["report", run, run, "-o", str(tmp_path / "r.md")]) == 2
    assert "markdown takes one run, and 2 were named" in capfd.readouterr().err


@pytest.mark.parametrize("form", [name for name in EXPORTS if name != "chrome-trace"])
def test_every_format_is_written(
    form: str, run: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """To standard output where no file is named."""
    assert cli.main(["export", run, "--to", form]) == 0
    assert capfdbinary.readouterr().out == exports.EXPORTS[form](RUN)


def test_what_an_export_leaves_out_is_counted(
    run: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """No measurement of this run has samples."""
    path = tmp_path / "b.json"

    assert cli.main(["export", run, "--to=pytest-benchmark", "-o", str(path)]) == 0
    assert json.loads(path.read_bytes())["benchmarks"] == []
    assert capfd.readouterr().err.splitlines() == [
        f"gpuperf: {run} is not complete: 1 test without a result; it holds 6 of 7 tests",
        "gpuperf: 5 measurements have no samples of a time and are left out",
    ]


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("bencher", ["gpuperf: 1 measurement is void and left out; gpuperf show FILE"]),
        ("csv", []),
    ],
)
def test_what_is_void_is_counted_where_it_is_left_out(
    form: str,
    said: list[str],
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """CSV leaves nothing out."""
    changed = Void(code=VoidCode.MUTATES_ITS_INPUTS, reason="its list changed")
    first, *others = RUN.records
    void = replace(RUN, records=(replace(first, void=changed), *others))
    path = tmp_path / "void.json"
    path.write_bytes(encode_run(void))

    assert cli.main(["export", str(path), f"--to={form}"]) == 0
    _, *lines = capfd.readouterr().err.splitlines()  # the run is not complete
    assert [line.removesuffix(" says why") for line in lines] == said


def test_allure_reads_files_of_a_name_alone(
    run: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Another name would be written and never read."""
    good, bad = (str(tmp_path / name) for name in ("a-perf.json", "a.json"))

    assert cli.main(["export", run, "--to=allure", "-o", good]) == 0
    assert cli.main(["export", run, "--to=allure", "-o", bad]) == 2
    assert "allure-results/gpuperf-perf.json" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--to=chrome-trace",), 4),  # the run has no recording
        (("--to=openmetrics", "--digits=2"), 0),
        (("--to=csv", "--digits=2"), 2),
    ],
)
def test_options_of_single_formats(
    run: str, arguments: tuple[str, ...], code: int
) -> None:
    """A trace needs a recording, and digits are those of OpenMetrics."""
    assert cli.main(["export", run, *arguments]) == code


@pytest.mark.parametrize("digits", ["0", "18", "x"])
def test_digits_are_a_count(run: str, digits: str) -> None:
    """A float has 17 at most."""
    with pytest.raises(SystemExit) as raised:
        cli.main(["export", run, "--to=openmetrics", f"--digits={digits}"])
    assert raised.value.code == 2
