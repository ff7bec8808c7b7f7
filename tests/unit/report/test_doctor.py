"""report.doctor: every finding is told, the worst first."""

from __future__ import annotations

import json

import pytest

from pytest_gpuperf.model.gap import Condition, Finding, Obstacle, Readiness, Topic
from pytest_gpuperf.report.doctor import doctor_bytes

GPU = Topic(id="gpu", concerns=("timing", "counters"))
FINDINGS = (
    Topic(id="mps", concerns=("timing",)).ok("MPS is off", "/proc/*/comm: none"),
    Topic(id="mig", concerns=("counters",)).unknown("NVML is silent", "NVML: no word"),
    Topic(id="smt", concerns=("host",)).distorts(
        "cores are shared", "smt/active: 1", remedy="echo off"
    ),
    Topic(id="vgpu", concerns=("timing",)).unknown(
        "NVML is silent", remedy="ask the host"
    ),
    GPU.stops(
        "there is no GPU", "/dev: a | b_c_d", "/proc: \x1b[31m", remedy="buy one"
    ),
)


def said(form: str, width: int = 100, findings: tuple[Finding, ...] = FINDINGS) -> str:
    return doctor_bytes(
        *(findings, (), ("A remark.",), form),
        condition=Condition(state=Readiness.DEGRADED, obstacle=Obstacle.NO_GPU),
        width=width,
    ).decode()


def test_json_has_every_finding_as_it_is() -> None:
    """In the order of the findings, beside what the command has always told."""
    told = json.loads(said("json"))

    assert (told["ready"], told["state"]) == (False, "degraded")
    assert told["verdict"] == "there is no GPU to measure with"
    assert (told["devices"], told["remarks"]) == ([], ["A remark."])
    assert [each["id"] for each in told["findings"]] == [each.id for each in FINDINGS]
    assert told["findings"][-1] == {
        "id": "gpu",
        "status": "stops",
        "concerns": ["timing", "counters"],
        "cause": "there is no GPU",
        "evidence": ["/dev: a | b_c_d", "/proc: \x1b[31m"],
        "remedy": "buy one",
    }
    assert told["findings"][0]["remedy"] is None


def test_ready_is_true_of_a_ready_machine_alone() -> None:
    """A degraded one is not ready."""
    for state in Readiness:
        text = doctor_bytes((), (), (), "json", condition=Condition(state=state))
        assert json.loads(text)["ready"] is (state is Readiness.READY)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (Condition(state=Readiness.READY), "everything on the GPU can be measured"),
        (
            Condition(state=Readiness.BLOCKED, obstacle=Obstacle.NO_TIMING),
            "there is a GPU, but its time cannot be measured",
        ),
        (
            Condition(state=Readiness.BLOCKED, obstacle=Obstacle.PEAKS_FAILED),
            "--measure-peaks failed",
        ),
        (
            Condition(
                state=Readiness.DEGRADED,
                obstacle=Obstacle.LOST,
                lost=("counters", "energy"),
            ),
            "cannot be measured here: counters, energy",
        ),
    ],
)
def test_the_verdict_says_why_a_machine_is_not_ready(
    condition: Condition, words: str
) -> None:
    """In JSON as in text."""
    text = doctor_bytes((), (), (), "json", condition=condition)

    assert json.loads(text)["verdict"] == words


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_people_read_the_worst_first(form: str) -> None:
    """What stops, what bends, what is not known, what is well: each is named."""
    text = said(form)
    places = [text.index(word) for word in ("degraded", "gpu", "smt", "mig", "mps")]

    assert places == sorted(places)
    for word in ("there is no GPU", "buy one", "cores are shared", "echo off"):
        assert word in text
    for word in ("smt/active: 1", "ask the host", "vgpu", "NVML is silent"):
        assert word in text
    assert "A remark." in text
    assert "\x1b" not in text


def test_text_tells_a_reason_once() -> None:
    """A library that is not there hides ten things for one reason."""
    text = said("text")

    assert text.count("NVML is silent") == 1
    assert "unknown  mig, vgpu" in text


def test_markdown_keeps_a_cell_in_its_row() -> None:
    """A bar in what was read does not begin another cell, nor is it markup."""
    (row,) = (line for line in said("markdown").splitlines() if "`gpu`" in line)

    assert row.count(" | ") == 5
    assert "`/dev: a \\| b_c_d`" in row


@pytest.mark.parametrize("width", [60, 80, 120])
def test_text_keeps_to_the_width(width: int) -> None:
    """Sentences are wrapped."""
    long = GPU.stops("why " * 60, "read " * 60, remedy="do " * 60)

    assert max(map(len, said("text", width, (long,)).splitlines())) <= width


def test_nothing_found_is_no_table() -> None:
    """A machine of which nothing was looked at has a verdict all the same."""
    assert said("text", findings=()).startswith("degraded: there is no GPU")
    assert "|" not in said("markdown", findings=())
