"""Reports of Nsight Compute as one HTML file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from pytest_gpuperf.model.codec import SCHEMA_VERSION
from pytest_gpuperf.model.environment import Environment, Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.run import Completeness, Header, Run
from pytest_gpuperf.model.verdict import Verdict
from pytest_gpuperf.report import display
from pytest_gpuperf.report.captures import kernel_name, plain_name
from pytest_gpuperf.report.html import rendered
from pytest_gpuperf.report.html.page import Page, PageStatus, Test
from pytest_gpuperf.report.html.panel import LaunchCard, Panel
from pytest_gpuperf.report.html.sessions import SessionSamples
from pytest_gpuperf.report.launches import CapturedReport, launch_facts, launch_place
from pytest_gpuperf.report.rows import Row

# Characters of a kernel name. The name of a lambda of torch has a thousand.
_LONGEST_NAME = 200


def captures_html(reports: Sequence[CapturedReport]) -> bytes:
    """
    Return reports of Nsight Compute as one HTML file [UTF-8] that needs no network.

    Args:
        reports: The reports, from different files.

    Raises:
        ReportError: Jinja2 is not installed.
    """
    return rendered(lambda: CapturesPage(reports))


class CapturesPage(Page):
    """
    The page of reports of Nsight Compute. Nothing ran, and nothing is judged.

    Args:
        reports: The reports, from different files.
    """

    noun = "capture"
    opens = True

    def __init__(self, reports: Sequence[CapturedReport]) -> None:
        self._reports = {report.record.key: report for report in reports}
        names = {key.test_id: PurePath(key.test_id).name for key in self._reports}
        counts = Counter(names.values())
        self._files = {
            path: name if counts[name] == 1 else path for path, name in names.items()
        }
        header = Header(  # Nothing ran here.
            session=Session(id="", started_unix_s=0, host=""),
            environment=Environment(
                cpu_model=None, core_count=None, python_minor="", platform=""
            ),
            completeness=Completeness(expected_count=0, reported_count=0),
        )
        records = tuple(report.record for report in reports)
        super().__init__(Run(schema=SCHEMA_VERSION, header=header, records=records))

    @property
    def headline(self) -> str:
        """The number of captured launches."""
        count = sum(report.launches_count for report in self._reports.values())
        launches = display.plural(count, "captured launch", "captured launches")
        failed = sum(len(report.failures) for report in self._reports.values())
        if failed:
            launches += f", {count - failed} of them measured and {failed} not"
        if len(self._reports) == 1:
            return f"{PurePath(self.tests[0].test_id).name}: {launches}"
        return f"{len(self._reports)} captures: {launches}"

    @property
    def judged(self) -> str:
        """The conditions of the measurement."""
        return "Profiled by ncu, whose clocks and caches need not be those of a run"

    @property
    def measured_on(self) -> tuple[str, ...]:
        """The GPUs of the reports."""
        devices = (
            detailed.launch.device
            for report in self._reports.values()
            for detailed in report.launches
        )
        return tuple(filter(None, dict.fromkeys(devices)))

    @property
    def absent(self) -> tuple[str, ...]:
        """CSS classes for empty columns. The verdict column is always empty."""
        return (*super().absent, "no-v")

    @property
    def facts(self) -> Iterable[tuple[str, str]]:
        """Facts that the captures share. Facts of the current machine do not apply."""
        return sorted(self.common_facts.items())

    def _test(self, row: Row, *, place: int) -> Test:
        failed_count = len(self._reports[row.key].failures)
        failed = display.plural(failed_count, "launch was", "launches were")
        line = f"{failed} not measured" if failed_count else ""
        return replace(super()._test(row, place=place), line=line)

    def _panel(
        self,
        row: Row,
        status: PageStatus,
        verdict: Verdict | None,
        sessions: Sequence[SessionSamples],
        *,
        place: int,
    ) -> Panel:
        report = self._reports[row.key]
        of_file = "" if len(self._reports) == 1 else f", {self._files[row.key.test_id]}"
        measured_count = report.launches_count - len(report.failures)
        return replace(
            super()._panel(row, status, verdict, sessions, place=place),
            state="",
            doubts=report.failures,
            launches=tuple(
                LaunchCard(
                    name=kernel_name(plain_name(detailed.launch.name), _LONGEST_NAME),
                    place=f"{launch_place(detailed)}{of_file}",
                    facts=tuple(launch_facts(detailed.details)),
                )
                for detailed in report.launches
            ),
            more_launches_count=measured_count - len(report.launches),
        )
