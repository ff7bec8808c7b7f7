"""
Make the pictures of html.md anew, from a made-up run, in Chromium.

    python docs/pictures.py

It needs the dependency group `browser` and an installed Chromium; Pillow, where it is
installed, makes the files a third as large.
"""

from __future__ import annotations

import importlib.util
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

_FOLDER = Path(__file__).parent
sys.path.insert(0, str(_FOLDER.parent / "tests"))

from fakes import runs  # noqa: E402 - found by the line above
from pytest_gpuperf.model.activity import (  # noqa: E402
    ActivitySummary,
    KernelShape,
    KernelUse,
    Track,
)
from pytest_gpuperf.model.counters import (  # noqa: E402
    Analysis,
    Bound,
    BoundSide,
    Evidence,
    KernelAnalysis,
    Limiter,
    LimiterName,
)
from pytest_gpuperf.model.environment import Session  # noqa: E402
from pytest_gpuperf.model.frozen import replace  # noqa: E402
from pytest_gpuperf.model.kernel import KernelTotal  # noqa: E402
from pytest_gpuperf.model.record import (  # noqa: E402
    Kind,
    Record,
    Role,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.roofline import Attainment  # noqa: E402
from pytest_gpuperf.model.run import Run, TestPlace  # noqa: E402
from pytest_gpuperf.model.sample import Series, SourceLabel  # noqa: E402
from pytest_gpuperf.model.telemetry import (  # noqa: E402
    ClockReason,
    TimeLine,
    UtilizationWindow,
)
from pytest_gpuperf.model.verdict import (  # noqa: E402
    AgainstEvidence,
    KernelChoice,
    Verdict,
    VerdictEvidence,
)
from pytest_gpuperf.report.html.page import html_bytes  # noqa: E402

_GEMM, _GATHER, _NORM = "test_gemm[4096]", "test_gather[64k]", "test_rmsnorm[8192]"
_LONGEST = "sm90_gemm_{}<bf16, {}>"
_COMMITS = (
    *("3f2a1c9d", "77d0e12a", "a41bb08c", "c0ffee15", "5b02d4ea"),
    *("e6d1f20b", "0dd5e11c", "f10a7c23", "9be01d4c"),
)
_SHARES = (0.97, 0.993, 1.0, 1.007, 1.03)  # quantiles of a session over its median
_COLOURS = 192  # of a picture: text and figures need no more
_WIDE, _NARROW = 1180, 400  # px


def _wave(place: int, size: float = 0.004) -> float:
    """Return a factor that looks like noise and is the same each time."""
    return 1 + size * math.sin(12.9898 * place + 4.1 * place * place)


def _sessions(name: str, value_s: float, *, level: float = 1.0) -> list[StoredRecord]:
    """Return nine stored sessions; `level` is by how much the first four were faster."""
    return [
        StoredRecord(
            key=runs.key(name),
            session=Session(
                id=f"s{place}",
                started_unix_s=1793599980.0 + place * 199_620,
                host="h",
                commit=commit,
            ),
            values=(
                SessionValue(
                    metric="time",
                    unit="s",
                    source="events",
                    run_values=(middle,),
                    quantiles=tuple(middle * share for share in _SHARES),
                ),
            ),
        )
        for place, commit in enumerate(_COMMITS)
        for middle in (value_s * _wave(place) * (level if place < 4 else 1),)  # noqa: PLR2004
    ]


def _kernel(name: str, total_s: float, registers: int, grid: int) -> KernelUse:
    """Return what CUPTI saw of a kernel."""
    shape = KernelShape(
        name=name,
        grid=(grid, 4, 1),
        block=(256, 1, 1),
        registers_count=registers,
        shared_bytes=0,
        dynamic_shared_bytes=49_152,
        stack_bytes=0,
    )
    return KernelUse(shape=shape, demangled=None, count=1, total_s=total_s)


def _time_line() -> TimeLine:
    """Return a second of sensors in which a limit held the clock down twice."""
    since_s = tuple(place / 24 for place in range(61))
    held = ((0.9, 1.35), (1.6, 2.1))
    is_held = [any(begin <= s <= end for begin, end in held) for s in since_s]
    is_idle = [s < 0.3 for s in since_s]  # noqa: PLR2004
    cap, hot = ClockReason.SOFTWARE_POWER_CAP, ClockReason.SOFTWARE_THERMAL
    return TimeLine(
        gpu_index=0,
        gpu_uuid="GPU-0",
        since_s=since_s,
        readings={
            "sm_clock_hz": tuple(
                (1.62e9 if low else 1.98e9) * _wave(n, 0.01)
                for n, low in enumerate(is_held)
            ),
            "power_watts": tuple(
                (120.0 if idle else 690.0) * _wave(n, 0.02)
                for n, idle in enumerate(is_idle)
            ),
            "temperature_celsius": tuple(52 + 8.5 * s + _wave(int(s)) for s in since_s),
            "tensor_active_fraction": tuple(
                0.0 if idle else 0.71 * _wave(n, 0.05) for n, idle in enumerate(is_idle)
            ),
        },
        classes=tuple("idle" if idle else "tensor-heavy compute" for idle in is_idle),
        throttled_s={cap: 0.95, hot: 0.5},
        throttled_spans_s={cap: held, hot: (held[1],)},
    )


def _regressed(record: Record) -> Record:
    """Return a record with all that a panel can show of a regression."""
    kernels = (
        _kernel(_LONGEST.format("64x128", 3), 158e-6, 232, 1024),
        _kernel("layernorm_kernel<float4>", 18.1e-6, 40, 512),
        _kernel("splitk_reduce", 7.3e-6, 32, 128),
    )
    return replace(
        record,
        series=(_series(183e-6),),
        roofline=Attainment(
            fraction=0.61,
            bound="compute",
            roof="bf16",
            label=SourceLabel.DATASHEET,
            peak_label=SourceLabel.DATASHEET,
            source="NVIDIA H200, data sheet",
            intensity_flop_per_byte=410.0,
            peak_flop_per_s=9.9e14,
            peak_bytes_per_s=4.8e12,
            grade="B",
        ),
        activity=ActivitySummary(
            kernels=kernels,
            kernels_count=3,
            launches_count=3,
            tracks=_tracks(),
            pieces_count=5,
        ),
        utilization=(
            UtilizationWindow(
                gpu_index=0,
                gpu_uuid="GPU-0",
                duration_s=2.5,
                reading_count=60,
                class_s={"tensor-heavy compute": 2.2, "idle": 0.3},
                incomplete_s=0.0,
                unobserved_s=0.0,
                real_util=61.0,
                real_util_p50=70.0,
                real_util_p95=74.0,
                average_class="tensor-heavy compute",
            ),
        ),
        time_lines=(_time_line(),),
    )


def _tracks() -> tuple[Track, ...]:
    """Return a call whose copy and layer norm run beside its first kernel."""
    return (
        Track(
            kind="kernel",
            device=0,
            stream=7,
            starts_ns=(0, 161_400),
            ends_ns=(158_000, 168_700),
            kernels=(0, 2),
        ),
        Track(
            kind="kernel",
            device=0,
            stream=14,
            starts_ns=(143_300,),
            ends_ns=(161_400,),
            kernels=(1,),
        ),
        Track(
            kind="copy",
            device=None,
            stream=None,
            starts_ns=(2_100, 169_900),
            ends_ns=(96_000, 181_300),
        ),
    )


def _series(middle_s: float) -> Series:
    """Return fifty samples of a time."""
    values = tuple(middle_s * _wave(place, 0.006) for place in range(50))
    return Series(metric="time", unit="s", source="events", values=values)


def _captured() -> Record:
    """Return a captured report whose kernels have counters."""
    kernels = (
        ("sgemm_128x128<float, 2>(float const*, float*, int)", 412e-6, "fma", 0.81, 61),
        ("softmax_forward<float, 4>(float*, float const*)", 96e-6, "dram", 0.88, 1.3),
        ("layernorm<float4>(float4*, float4 const*, float)", 71e-6, "dram", 0.74, 0.9),
        ("reduce_rows<float>(float*, float const*)", 9.2e-6, "dram", 0.21, 0.25),
    )
    return replace(
        runs.record("test_block[captured]"),
        kind=Kind.CAPTURE,
        analyses=tuple(_analysis(*kernel) for kernel in kernels),
    )


def _analysis(
    name: str, total_s: float, roof: str, share: float, intensity: float
) -> KernelAnalysis:
    """Return what counters say of a kernel that uses so much of a roof."""
    limited = LimiterName.DRAM if roof == "dram" else LimiterName.PIPE
    if share < 0.6:  # noqa: PLR2004 - the rule of limiters
        limited = LimiterName.LATENCY
    detail = {LimiterName.PIPE: roof, LimiterName.LATENCY: "long_scoreboard"}
    side = BoundSide.MEMORY if roof == "dram" else BoundSide.COMPUTE
    return KernelAnalysis(
        kernel=name.partition("<")[0],
        demangled=f"void {name}",
        launches_count=2,
        total_s=total_s,
        analysis=Analysis(
            duration_s=total_s / 2,
            bound=Bound(side=side, roof=roof, fraction=share),
            limiter=Limiter(
                name=limited,
                detail=detail.get(limited),
                evidence=(Evidence(name=roof, value=share),),
            ),
            roofline=Attainment(
                fraction=share,
                bound=side.value,
                roof="dram" if roof == "dram" else "fp32",
                label=SourceLabel.MEASURED,
                peak_label=SourceLabel.MEASURED,
                source="what the chip sustains at the clocks of the profile",
                intensity_flop_per_byte=intensity,
                peak_flop_per_s=33.5e12,
                peak_bytes_per_s=4.02e12,
            ),
        ),
    )


def _run() -> Run:
    """Return the run of the pictures."""
    run = runs.gpu_run()
    records = {record.key.test_id.partition("::")[2]: record for record in run.records}
    records[_GEMM] = _regressed(records[_GEMM])
    fresh = [
        replace(
            runs.record(_GEMM, runs.time_of(183e-6 * _wave(number))),
            role=Role.CONFIRM,
            process_index=number,
            series=(_series(183e-6 * _wave(number)),),
        )
        for number in (1, 2, 3)
    ]
    then = (
        KernelTotal(name=_LONGEST.format("128x128", 4), total_s=147e-6),
        KernelTotal(name="layernorm_kernel<float4>", total_s=18.0e-6),
    )
    now = tuple(use.shape.name for use in records[_GEMM].activity.kernels)
    stored = [
        *_sessions(_NORM, 41.7e-6),
        *_sessions(_GATHER, 8.84e-6),
        *_sessions(_GEMM, 170e-6, level=0.976),
    ]
    stored[-1] = replace(stored[-1], kernels=then)
    choices = (
        KernelChoice(
            choice="a", count=6, total_count=6, names=tuple(k.name for k in then)
        ),
        KernelChoice(choice="b", count=3, total_count=3, names=now),
    )
    return replace(
        run,
        records=(*records.values(), *fresh, _captured()),
        verdicts=tuple(_explained(verdict, choices) for verdict in run.verdicts),
        stored=tuple(stored),
        tests=(TestPlace(test_id=f"tests/test_gemm.py::{_GEMM}", line=19),),
        header=replace(
            run.header,
            completeness=replace(
                run.header.completeness, expected_count=8, reported_count=7
            ),
        ),
    )


def _explained(verdict: Verdict, choices: tuple[KernelChoice, KernelChoice]) -> Verdict:
    """Return a verdict with the evidence that the pictures show."""
    if verdict is not runs.REGRESSED:
        return verdict
    from pytest_gpuperf.report.sentences import for_pytest

    return for_pytest(
        replace(verdict, evidence=VerdictEvidence(kernels=choices), detail=())
    )


def _against() -> Run:
    """Return a run that was compared with a revision."""
    effects = tuple(0.079 * _wave(place, 0.25) for place in range(12))
    verdict = replace(
        runs.REGRESSED,
        baseline=None,
        confirmations=(),
        detail=(),
        against=AgainstEvidence(
            block_count=12,
            effects=effects,
            null_fraction=0.021,
            old_values=tuple(170e-6 * _wave(place, 0.01) for place in range(24)),
            new_values=tuple(183e-6 * _wave(place, 0.01) for place in range(24)),
        ),
    )
    return runs.run((runs.record(_GEMM, runs.time_of(183e-6)),), (verdict,))


def _opened(browser: Browser, path: Path, **context: object) -> Page:
    """Return a page in a window of its own."""
    page = browser.new_context(**context).new_page()
    page.goto(path.as_uri())
    return page


def _shoot(browser: Browser, folder: Path) -> Iterator[str]:
    """Write the pictures; yield their names."""
    run, against = folder / "run.html", folder / "against.html"
    run.write_bytes(html_bytes(_run()))
    against.write_bytes(html_bytes(_against()))
    view = {"width": _WIDE, "height": 800}
    for scheme in ("light", "dark"):
        page = _opened(browser, run, viewport=view, color_scheme=scheme)
        page.screenshot(path=_FOLDER / f"html-{scheme}.png")
        yield scheme
    page = _opened(browser, run, viewport={"width": _NARROW, "height": 900})
    page.screenshot(path=_FOLDER / "html-narrow.png")
    yield "narrow"
    page = _opened(browser, run, viewport=view)
    page.click(".t.v-regressed summary")
    page.locator(".t.v-regressed").screenshot(path=_FOLDER / "html-panel.png")
    yield "panel"
    page.locator(".t.v-regressed .lanes").screenshot(path=_FOLDER / "html-streams.png")
    yield "streams"
    page.locator(".t.v-regressed .tl").screenshot(path=_FOLDER / "html-time-line.png")
    yield "time-line"
    page = _opened(browser, run, viewport=view, color_scheme="dark")
    page.click(".t.v-unjudged summary")
    page.locator(".t.v-unjudged").screenshot(path=_FOLDER / "html-kernels.png")
    yield "kernels"
    page = _opened(browser, against, viewport=view)
    page.click(".t.v-regressed summary")
    page.locator(".t.v-regressed").screenshot(path=_FOLDER / "html-against.png")
    yield "against"


def _shrink(path: Path) -> None:
    """Write a picture with 96 colours, if Pillow is there."""
    if importlib.util.find_spec("PIL") is None:
        return
    from PIL import Image

    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def main() -> None:
    """Write every picture beside this file."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )
        for name in _shoot(browser, Path(folder)):
            _shrink(_FOLDER / f"html-{name}.png")
            sys.stdout.write(f"html-{name}.png\n")
        browser.close()


if __name__ == "__main__":
    main()
