"""The page of a run in a browser: what a person does there works, and nothing foreign runs."""

from __future__ import annotations

import importlib.util
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes import runs
from pytest_gpuperf.model.counters import (
    Analysis,
    Bound,
    BoundSide,
    CounterGap,
    Evidence,
    KernelAnalysis,
    Limiter,
    LimiterName,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Note
from pytest_gpuperf.model.run import Run, TestPlace
from pytest_gpuperf.model.verdict import Outcome, Reason
from pytest_gpuperf.report.html.page import html_bytes

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NEEDED = ("playwright", "jinja2")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
MISSING += [] if CHROMIUM else ["chromium"]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"
)

HOSTILE = "test_x[</script><script>document.title='owned'</script><img src=x onerror=document.title='owned'>]"
GEMM = "tests/test_gemm.py::test_gemm[4096]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # a container has no user namespaces for Chromium's sandbox
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        yield started
        started.close()


class Opened:
    """
    A page in the browser.

    Attributes:
        page: Playwright's.

        address: Of the file.

        told: What the page wrote to the console, and errors.

        fetched: What it asked the network for.
    """

    def __init__(self, browser: Browser, path: Path, **context: object) -> None:
        self.page: Page = browser.new_context(**context).new_page()
        self.address = path.as_uri()
        self.told: list[str] = []
        self.fetched: list[str] = []
        self.page.on("console", lambda message: self.told.append(message.text))
        self.page.on("pageerror", lambda error: self.told.append(str(error)))
        self.page.on("request", lambda request: self.fetched.append(request.url))
        self.page.goto(self.address)

    def names(self) -> list[str]:
        """Return the tests that are seen, from top to bottom."""
        return [
            row.get_attribute("data-name") or ""
            for row in self.page.locator(".t:visible").all()
        ]

    def waits_for(self, text: str) -> None:
        """Wait until the page counts its rows so: it searches when typing pauses."""
        self.page.locator("#shown", has_text=text).wait_for()

    def hash(self) -> str:
        """Return what the address says of the view."""
        return str(self.page.evaluate("location.hash"))

    def focused(self) -> str:
        """Return the test whose row has the focus."""
        script = "(document.activeElement.closest('.t') || {dataset: {}}).dataset.name"
        return str(self.page.evaluate(script))


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Opened:
    """The page of a run with one of everything, in two groups."""
    run = runs.gpu_run()
    places = tuple(
        TestPlace(
            test_id=r.key.test_id, group="gemm" if "gemm[" in str(r.key) else None
        )
        for r in run.records
    )
    return written(browser, tmp_path, replace(run, tests=places))


def written(browser: Browser, folder: Path, run: Run, **context: object) -> Opened:
    """Write the page of a run and open it."""
    path = folder / "report.html"
    path.write_bytes(html_bytes(run))
    return Opened(browser, path, **context)


def test_it_opens_without_a_network(opened: Opened) -> None:
    """Nothing but the file is read, and the policy is broken by nothing."""
    assert opened.fetched == [opened.address]
    assert opened.told == []
    assert opened.page.title() == (
        "✗ 2 of 7 tests fail: 1 missed a limit, 1 regressed – gpuperf"
    )
    assert len(opened.names()) == 6


def test_headings_leave_out_no_level(opened: Opened) -> None:
    """Who moves from heading to heading finds the tests, and their parts below them."""
    opened.page.locator("#group").select_option("group")
    levels = opened.page.evaluate(
        "[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(h => +h.tagName[1])"
    )

    assert levels[0] == 1
    assert 3 in levels
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_a_head_is_large_enough_to_be_hit(opened: Opened) -> None:
    """24 px, as WCAG 2.2 asks of what is clicked."""
    heads = opened.page.locator(".thead button:visible").all()
    boxes = [head.bounding_box() for head in heads]

    assert boxes
    assert all(box is not None and box["height"] >= 24 for box in boxes)


def test_names_of_options_are_whole_on_a_narrow_screen(
    browser: Browser, tmp_path: Path
) -> None:
    """An option that is broken in its middle cannot be looked for."""
    run = runs.gpu_run()
    options = {"gpuperf_junit_properties": "true", "gpuperf_json": "run.json"}
    run = replace(run, header=replace(run.header, options=options))
    opened = written(browser, tmp_path, run, viewport={"width": 390, "height": 900})
    counts = opened.page.evaluate(
        "[...document.querySelectorAll('.cond dt code')].map(c => c.getClientRects().length)"
    )

    assert counts == [1, 1]


def test_on_paper_the_list_stands_before_the_panels(opened: Opened) -> None:
    """Each panel under the name of its test; on a screen it stays below its row."""
    script = """() => {
        const tops = query => [...document.querySelectorAll(query)]
            .map(element => element.getBoundingClientRect())
            .filter(box => box.height > 0).map(box => box.top);
        const panel = document.querySelector('.t.loud .panel');
        return {
            rows: tops('.t > .row'), panels: tops('.t.loud .panel'),
            title: getComputedStyle(panel, '::before').content,
        };
    }"""
    opened.page.emulate_media(media="print")
    printed = opened.page.evaluate(script)
    opened.page.emulate_media(media="screen")
    shown = opened.page.evaluate(script)

    assert len(printed["rows"]) == 6
    assert len(printed["panels"]) == 2
    assert max(printed["rows"]) < min(printed["panels"])
    assert "tests/test_gemm.py::test_" in printed["title"]
    assert shown["title"] == "none"


def test_rows_are_sorted(opened: Opened) -> None:
    """By the list or by a head; a second click turns the order round."""
    opened.page.select_option("#sort", "effect")
    by_change = opened.names()
    opened.page.click('.thead [data-sort="name"]')
    by_name = opened.names()
    opened.page.click('.thead [data-sort="name"]')

    assert by_change[:2] == [GEMM, "tests/test_gemm.py::test_gather[64k]"]
    assert by_name == sorted(by_name)
    assert opened.names() == by_name[::-1]
    assert opened.hash() == "#sort=name&down=1"


def test_a_link_that_sorts_by_what_a_page_lacks_opens(
    browser: Browser, tmp_path: Path
) -> None:
    """It was sent for the page of a run with a baseline; the first run has none."""
    records = tuple(runs.record(f"test_{n}", runs.time_of(1e-3)) for n in "ab")
    opened = written(browser, tmp_path, runs.run(records))
    opened.page.goto(f"{opened.address}#sort=effect")
    opened.page.reload()

    assert opened.told == []
    assert opened.page.input_value("#sort") == "order"
    assert len(opened.names()) == 2


def test_a_long_id_is_found_and_linked(browser: Browser, tmp_path: Path) -> None:
    """Its row shows both ends; the search and the address know all of it."""
    ids = [f"test_x[{'a' * 1500}{number:03}{'b' * 1500}]" for number in range(20)]
    records = tuple(runs.record(name, runs.time_of(1e-3)) for name in ids)
    opened = written(browser, tmp_path, runs.run(records))
    whole = str(records[7].key)
    opened.page.fill("#q", f"{'a' * 1500}007{'b' * 1500}")
    opened.waits_for("1 of 20 shown")
    found = opened.page.locator(".t:visible")
    address = found.get_attribute("id")

    assert found.count() == 1
    assert found.get_attribute("data-name") == whole
    opened.page.goto(f"{opened.address}#{address}")
    opened.page.reload()
    assert opened.page.locator(".t[open]").get_attribute("data-name") == whole
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_rows_are_filtered_by_verdict(opened: Opened) -> None:
    """The address remembers it; all can be shown again."""
    for name in ("failed", "inconclusive", "unmeasured"):
        opened.page.click(f'label[for="f-{name}"]')
    left = opened.names()
    opened.page.goto(f"{opened.address}{opened.hash()}")
    opened.page.reload()

    assert left == [GEMM, "tests/test_gemm.py::test_rmsnorm[8192]"]
    assert opened.names() == left
    assert opened.page.text_content("#shown") == "2 of 6 shown"


def test_rows_are_found_by_words(opened: Opened) -> None:
    """All words must be there, in the row or its panel; Escape clears them."""
    opened.page.fill("#q", "gemm.py TORCH")
    opened.waits_for("1 of 6 shown")
    assert opened.names() == [GEMM]

    opened.page.fill("#q", "nothing has this")
    opened.page.wait_for_selector("#none", state="visible")
    opened.page.click("#reset")
    assert len(opened.names()) == 6

    opened.page.fill("#q", "rmsnorm")
    opened.waits_for("1 of 6 shown")
    opened.page.press("#q", "Escape")
    assert len(opened.names()) == 6


def test_rows_are_grouped(opened: Opened) -> None:
    """By file, verdict, or the group of the marker; empty groups hide."""
    opened.page.select_option("#group", "group")
    heads = opened.page.locator(".head-row").all_text_contents()
    opened.page.fill("#q", "4096")
    opened.waits_for("1 of 6 shown")

    assert heads == ["no group 5", "gemm 1"]
    assert opened.page.locator(".head-row:visible").all_text_contents() == ["gemm 1"]


def test_a_link_opens_its_test(opened: Opened) -> None:
    """The panel is open, on the screen, and has the focus."""
    address = opened.page.get_attribute(f'.t[data-name="{GEMM}"]', "id")
    opened.page.goto(f"{opened.address}#{address}")
    opened.page.wait_for_selector(f"#{address}[open]")
    panel = opened.page.locator(f"#{address} .panel")

    assert panel.is_visible()
    assert opened.focused() == GEMM
    assert opened.hash() == f"#{address}"


def test_keys_move_and_open(opened: Opened) -> None:
    """Next, previous, next that fails, open; / goes to the search."""
    opened.page.keyboard.press("j")
    opened.page.keyboard.press("j")
    second = opened.focused()
    opened.page.keyboard.press("k")
    opened.page.keyboard.press("n")
    failing = opened.focused()
    opened.page.keyboard.press("Enter")
    is_open = opened.page.locator(".t.loud[open]").count()
    opened.page.keyboard.press("/")

    assert (second, failing, is_open) == (GEMM, GEMM, 1)
    assert opened.page.evaluate("document.activeElement.id") == "q"


def test_commands_are_copied(opened: Opened) -> None:
    """The button says so; it is made when its panel is opened."""
    assert opened.page.locator(".cmd button").count() == 0
    opened.page.click(f'.t[data-name="{GEMM}"] summary')
    button = opened.page.locator(f'.t[data-name="{GEMM}"] .cmd button').first
    opened.page.evaluate("window.setTimeout = () => 0")  # else for 1.5 s only
    button.click()

    button.filter(has_text="Copied").wait_for()  # the clipboard answers later


def test_without_a_script_it_is_read_and_filtered(
    browser: Browser, tmp_path: Path
) -> None:
    """Rows, panels and verdicts; what a script would do is not offered."""
    run = runs.gpu_run()
    opened = written(browser, tmp_path, run, java_script_enabled=False)
    opened.page.click('label[for="f-unchanged"]')
    opened.page.click(".t.v-regressed summary")

    assert opened.page.locator(".t:visible").count() == 5
    assert opened.page.locator(".t.v-regressed .panel").is_visible()
    assert not opened.page.locator("#tools").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 820, 1280])
def test_it_fits_its_window(
    browser: Browser, tmp_path: Path, width: int, scheme: str
) -> None:
    """Nothing is wider than the screen, opened or not."""
    opened = written(
        browser,
        tmp_path,
        runs.gpu_run(),
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
    )
    opened.page.click("#all")

    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [360, 900, 1280])
def test_a_table_of_kernels_is_not_cut(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    """All of its columns are seen without scrolling: below each other where it is narrow."""
    opened = written(
        browser, tmp_path, captured_run(), viewport={"width": width, "height": 800}
    )
    opened.page.click(".t summary")
    widths = opened.page.evaluate(
        "[...document.querySelectorAll('.scroll')].map(b => b.scrollWidth - b.clientWidth)"
    )

    assert widths == [0]
    assert opened.page.locator(".kt td").last.is_visible()


def test_a_printed_table_of_kernels_has_the_paper_s_width(
    browser: Browser, tmp_path: Path
) -> None:
    """A page that is wider than its paper is printed smaller, and what is beyond is lost."""
    paper = {"width": 703, "height": 1000}  # px: A4 without the margins
    opened = written(browser, tmp_path, captured_run(), viewport=paper)
    opened.page.click(".t summary")
    opened.page.emulate_media(media="print")

    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 703


def captured_run() -> Run:
    """Return a run of a captured report: a kernel with a long name and all columns."""
    limiter = Limiter(
        name=LimiterName.LATENCY,
        detail="long_scoreboard",
        evidence=tuple(
            Evidence(name=name, value=0.5) for name in ("dram", "l2", "occupancy")
        ),
    )
    arguments = ", ".join(f"cutlass::Shape<(int){size}>" for size in range(200))
    analysis = KernelAnalysis(
        kernel="gemm",
        demangled=f"void cutlass::gemm<{arguments}>(float const*, float*)",
        launches_count=2,
        total_s=3e-3,
        analysis=Analysis(
            bound=Bound(side=BoundSide.MEMORY, roof="dram", fraction=0.67),
            limiter=limiter,
            roofline_gap=CounterGap(
                reason="tensor cores computed: their FLOP and data type are not counted"
            ),
        ),
    )
    metrics = ("registers", "waves", "occupancy.theoretical", "occupancy.achieved")
    values = [runs.value_of(name, 0.5, "fraction", kernel="gemm") for name in metrics]
    record = replace(
        runs.record("test_captured", *values), kind=Kind.CAPTURE, analyses=(analysis,)
    )
    return runs.run((record,))


def test_nothing_foreign_runs(browser: Browser, tmp_path: Path) -> None:
    """A test's id, a metric and a sentence are text, wherever the script puts them."""
    verdict = replace(
        runs.UNMEASURED, key=runs.key(HOSTILE), metric=HOSTILE, remedy=HOSTILE
    )
    run = runs.run((runs.record(HOSTILE, runs.time_of(1e-3)),), (verdict,))
    place = TestPlace(test_id=verdict.key.test_id, group=HOSTILE)
    opened = written(browser, tmp_path, replace(run, tests=(place,)))
    opened.page.select_option("#group", "group")
    opened.page.click("#all")
    opened.page.fill("#q", "owned")

    assert opened.page.title().endswith("gpuperf")
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator("script").count() == 1
    assert HOSTILE in (opened.page.text_content(".head-row") or "")
    assert (opened.told, opened.fetched) == ([], [opened.address])


def test_a_thousand_tests_are_sorted_at_once(browser: Browser, tmp_path: Path) -> None:
    """Sorting does not grow with the square: that would take minutes."""
    names = [f"test_{number}" for number in range(1000)]
    run = runs.run(
        tuple(runs.record(name, runs.time_of(1e-3)) for name in names),
        tuple(
            runs.changed(
                name, Outcome.UNCHANGED, Reason.WITHIN_NOISE, runs.change(n / 1e5, 1e-3)
            )
            for n, name in enumerate(names)
        ),
    )
    opened = written(browser, tmp_path, run)
    took_ms = opened.page.evaluate("""() => {
        const began = performance.now();
        const sort = document.querySelector('#sort');
        sort.value = 'name';
        sort.dispatchEvent(new Event('change'));
        document.body.getBoundingClientRect();
        return performance.now() - began;
    }""")

    first = opened.page.get_attribute(".t >> nth=0", "data-name")
    assert first == "tests/test_gemm.py::test_0"
    assert took_ms < 20_000
    assert opened.page.locator(".panel").count() == 0  # moved rows are light


def test_panels_that_were_put_aside_come_back(browser: Browser, tmp_path: Path) -> None:
    """When their row is opened, linked to, or printed; and words in them are found."""
    names = [f"test_{number}" for number in range(201)]
    note = Note(code="n", text="sunflower")
    noted = [runs.record(name, runs.time_of(1e-3)) for name in names]
    noted[7] = replace(noted[7], notes=(note,))
    opened = written(browser, tmp_path, runs.run(tuple(noted)))
    opened.page.select_option("#sort", "name")
    opened.page.fill("#q", "sunflower")
    opened.waits_for("1 of 201 shown")
    opened.page.click(".t:visible summary")

    assert opened.names() == ["tests/test_gemm.py::test_7"]
    opened.page.locator(".t[open] .panel", has_text="sunflower").wait_for()
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.page.locator(".panel").count() == 201
