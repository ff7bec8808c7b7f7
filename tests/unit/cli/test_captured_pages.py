"""The command `report` of captures: one page of reports of Nsight Compute."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes import fake_ncu_report
from pytest_gpuperf import cli

DOUBLE = 4  # the kind of a value
METRICS = {
    "device__attribute_display_name": (2, "NVIDIA A40", ""),
    "launch__registers_per_thread": (DOUBLE, 32.0, "register/thread"),
    "launch__grid_size": (DOUBLE, 64.0, ""),
}


@pytest.fixture(autouse=True)
def _reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ncu_report.install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


def capture(path: Path, *times_ns: float) -> str:
    """Write a report with a launch of each time."""
    launches = [
        {
            "kernel": f"kernel_{number}",
            "demangled": f"kernel_{number}<a & b>()",
            "metrics": {**METRICS, "gpu__time_duration.sum": (DOUBLE, time_ns, "ns")},
        }
        for number, time_ns in enumerate(times_ns)
    ]
    path.write_bytes(b"NVR\0" + json.dumps({"ranges": [launches]}).encode())
    return str(path)


def test_a_capture_is_a_page(tmp_path: Path) -> None:
    """It has its kernels and launches, the longest first, and no word of verdicts."""
    file, page = capture(tmp_path / "a.ncu-rep", 1e3, 3e3), tmp_path / "page.html"

    assert cli.main(["report", file, "-o", str(page)]) == 0

    text = page.read_text(encoding="utf-8")
    assert "<h1>a.ncu-rep: 2 captured launches.</h1>" in text
    assert "NVIDIA A40" in text
    assert text.index("launch 1</h4>") < text.index("launch 0</h4>")
    assert "a &amp; b" in text
    assert "a & b" not in text
    assert "judged" not in text.partition("<header")[2].partition("<main")[0]


def test_several_captures_are_one_page(tmp_path: Path) -> None:
    """A file that is named twice is one of them."""
    files = [capture(tmp_path / f"{name}.ncu-rep", 1e3) for name in "ab"]
    page = tmp_path / "page.html"

    assert cli.main(["report", *files, files[0], "-o", str(page)]) == 0

    text = page.read_text(encoding="utf-8")
    assert "<h1>2 captures: 2 captured launches.</h1>" in text
    assert all(Path(file).name in text for file in files)


def test_the_launches_that_are_left_out_are_counted(tmp_path: Path) -> None:
    """A report of thousands would be a page of megabytes."""
    file = capture(tmp_path / "a.ncu-rep", *range(1, 46))
    page = tmp_path / "page.html"

    assert cli.main(["report", file, "-o", str(page)]) == 0

    assert "5 shorter launches" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("more", "name", "told"),
    [
        ([], "r.md", "markdown is of a run"),
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
    """Nothing sorts by them or finds the next; on paper no heading stands alone."""
    file, page = capture(tmp_path / "a.ncu-rep", 1e3, 3e3), tmp_path / "page.html"
    cli.main(["report", file, "-o", str(page)])
    text = page.read_text(encoding="utf-8")
    printed = text.partition("@media print")[2].partition("display: none")[0]

    assert "by verdict" not in text
    assert "next that fails" not in text
    assert '<section class="cond legend of-keys"><h2>How to read it' in text
    assert ".of-keys" in printed
