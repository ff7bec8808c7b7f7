"""The commands `scorecard` and `parity`: step profiles in files, scored and compared."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from pytest_gpuperf.cli.output import (
    Attempt,
    each,
    exists,
    exit_code,
    name_of,
    print_bytes,
    read_input,
    refuse_together,
    say,
)
from pytest_gpuperf.collect.peaks import load_table
from pytest_gpuperf.compute.measured_scorecard import (
    measured_scorecard,
    parse_invariant,
)
from pytest_gpuperf.compute.parity import compare_parity, measured_parity
from pytest_gpuperf.compute.scorecard import training_scorecard
from pytest_gpuperf.errors import SITE, ConfigError, RecordError
from pytest_gpuperf.judge.files import scorecard_passes
from pytest_gpuperf.model.codec import from_builtins
from pytest_gpuperf.model.parity import ParityProfile
from pytest_gpuperf.model.reference_json import (
    decode_hardware,
    decode_parity_profile,
    decode_scorecard,
    decode_step_profile,
    load_json,
)
from pytest_gpuperf.model.scorecard import (
    HARDWARE,
    Hardware,
    Invariant,
    MeasuredScorecard,
    TrainingScorecard,
)
from pytest_gpuperf.model.steps import StepProfile
from pytest_gpuperf.report.scorecard import parity_bytes, scorecard_bytes

if TYPE_CHECKING:
    import argparse

_MEASURED = "add --policy=measured"
_FILES = f"name a JSON file, as {SITE}/scorecard.html shows"

# Fields that a scorecard has too (bottleneck, wall_coverage) do not identify a profile.
_PROFILE_FIELDS = frozenset(
    {"avg_step_ms", "gemm_pct", "per_layer", "phases", "steps", "total_ms"}
)
# A parity profile has at least one of these fields.
_PARITY_FIELDS = ("runtime", "kernel_launches_per_step", "ops")

_T = TypeVar("_T")


def scorecard(arguments: argparse.Namespace) -> int:
    """
    Print the scorecard of a step profile.

    Raises:
        ConfigError: The hardware or an invariant is unknown, the baseline belongs to
            another policy, or the reference policy does not support an argument.

        RecordError: A file cannot be read. All mistakes of all inputs are named.
    """
    measured, baseline = arguments.policy == "measured", arguments.baseline
    conditions = Attempt(lambda: each(arguments.invariant, _invariant))
    limits = Attempt(lambda: _hardware(arguments.hardware, measured=measured))
    steps = Attempt(
        lambda: _of(arguments.profile, lambda obj: _step_profile(obj, ours=measured))
    )
    if measured:
        cards = Attempt(lambda: each(baseline, lambda path: _of(path, _any_scorecard)))
        refuse_together((conditions, limits, steps, cards))
        scored = measured_scorecard(
            steps.value,
            throughput=arguments.throughput,
            hardware=limits.value,
            baseline=cards.value,
            invariants=conditions.value,
        )
        print_bytes(scorecard_bytes(scored, arguments.format))
        return exit_code(passes=scorecard_passes(scored))
    fitting = Attempt(lambda: _refuse_measured(baseline, arguments.invariant))
    older = Attempt(lambda: each(baseline, _reference_scorecard))
    refuse_together((conditions, fitting, limits, steps, older))
    card = training_scorecard(
        steps.value,
        throughput=arguments.throughput,
        hardware=limits.value,
        baseline=older.value[0] if older.value else None,
    )
    print_bytes(scorecard_bytes(card, arguments.format))
    if card.impossible is not None:
        say([f"gpuperf: {card.impossible}"])
    return exit_code(passes=scorecard_passes(card))


def _refuse_measured(baseline: Sequence[str], invariants: Sequence[str]) -> None:
    if invariants or len(baseline) > 1:
        message = "the reference policy takes one baseline and no invariants"
        raise ConfigError(message, remedy=_MEASURED)


def _reference_scorecard(path: str) -> TrainingScorecard:
    card = _of(path, _any_scorecard)
    if isinstance(card, MeasuredScorecard):
        message = f"{name_of(path)} was made by the measured policy"
        raise ConfigError(message, remedy=_MEASURED)
    return card


def _of(path: str, decode: Callable[[object], _T]) -> _T:
    """Return the decoded content of a JSON file. Errors name the file."""
    content = read_input(path, remedy=_FILES, takes_runs=False)
    try:
        return decode(load_json(content))
    except RecordError as error:
        raise RecordError(
            error.message, path=name_of(path), remedy=error.remedy
        ) from error


def _parity_profile(obj: object) -> ParityProfile:
    """
    Return a side of a parity comparison.

    Raises:
        RecordError: The profile has another kind, or a field is wrong.
    """
    if isinstance(obj, Mapping) and _PROFILE_FIELDS & obj.keys() and "ops" not in obj:
        message = "it is a step profile, which gpuperf scorecard reads"
        remedy = f"write what {SITE}/scorecard.html#4-parity shows"
        raise RecordError(message, path="", remedy=remedy)
    if isinstance(obj, Mapping) and obj.keys().isdisjoint(_PARITY_FIELDS):
        message = f"it has none of {', '.join(_PARITY_FIELDS)}"
        remedy = f"name a profile as {SITE}/scorecard.html#4-parity shows"
        raise RecordError(message, path="", remedy=remedy)
    return decode_parity_profile(obj)


def _invariant(text: str) -> Invariant:
    """Return a condition on the step. Invalid text is an error of the command line."""
    try:
        return parse_invariant(text)
    except RecordError as error:
        raise ConfigError(error.message, remedy=error.remedy) from error


def _step_profile(obj: object, *, ours: bool) -> StepProfile:
    """
    Return a step profile with at least one field that only step profiles have.

    The other decoders accept a profile without any field, and so any object.

    Raises:
        RecordError: The object has no field of a profile, or a field is wrong.
    """
    profile = decode_step_profile(obj, ours=ours)
    if profile.absent >= _PROFILE_FIELDS and not profile.step_ms:
        message = f"it has none of {', '.join(sorted(_PROFILE_FIELDS))}"
        raise RecordError(
            message,
            path="",
            remedy="name a step profile; pass a scorecard as --baseline",
        )
    return profile


def _any_scorecard(obj: object) -> TrainingScorecard | MeasuredScorecard:
    """Return a scorecard of either policy. Only a measured scorecard names its policy."""
    if isinstance(obj, Mapping) and obj.get("policy") == "measured":
        return from_builtins(obj, MeasuredScorecard)
    return decode_scorecard(obj)


def _hardware(text: str, *, measured: bool) -> Hardware:
    hardware = HARDWARE.get(text.lower().replace("_", "-").replace(" ", "-"))
    if hardware is not None:
        return hardware
    if "," in text and not exists(text):
        return _declared(text)
    if not exists(text) and not text.endswith(".json"):
        if load_table().named(text):
            message = f"{text}: bytes per token belong to the model, not to the GPU"
            raise ConfigError(message, remedy=f'write them behind it: "{text},158e6"')
        message = f"unknown hardware {text!r}"
        raise ConfigError(
            message,
            remedy=f"name one of {', '.join(HARDWARE)}, a JSON file, GB/s,bytes, or a "
            f"GPU of {SITE}/hardware.html with bytes",
        )
    return _of(text, lambda obj: decode_hardware(obj, ours=measured))


def _declared(text: str) -> Hardware:
    remedy = "write GB/s,bytes as 273,158e6, or a GPU's name and bytes"
    named, _, size_text = text.rpartition(",")
    try:
        size = float(size_text)
        bandwidth, source = _bandwidth(named)
        hardware = Hardware(
            peak_bw_gb_s=bandwidth,
            bytes_per_token=size,
            source=source,
            sources={"bytes_per_token": "declared"},
        )
    except ValueError as error:  # Includes RecordError.
        message = f"{text!r} is not two finite numbers, or a known GPU and a number"
        known = {name for card in load_table().cards for name in card.names}
        close = ", ".join(difflib.get_close_matches(named.strip(), sorted(known)))
        meant = f"; did you mean {close}?" if close else ""
        raise ConfigError(message, remedy=f"{remedy}{meant}") from error
    if min(bandwidth, size) <= 0:
        message = f"{text!r}: bandwidth and bytes per token must be above 0"
        raise ConfigError(message, remedy=remedy)
    return hardware


def _bandwidth(text: str) -> tuple[float, str]:
    """
    Return a bandwidth [GB/s], written or from a GPU's datasheet, with a label.

    Raises:
        ValueError: The text is neither a number nor a GPU's name.

        ConfigError: Several boards have the name, and their bandwidths differ.
    """
    cards = load_table().named(text.strip())
    figures = [
        card.figures["dram_gb_s"] for card in cards if "dram_gb_s" in card.figures
    ]
    if not figures:
        return float(text), "declared"
    if len({figure.value for figure in figures}) > 1:
        speeds = " or ".join(f"{figure.value:g}" for figure in figures)
        message = f"boards named {text.strip()} have {speeds} GB/s"
        raise ConfigError(message, remedy="write the bandwidth of yours: GB/s,bytes")
    return figures[0].value, figures[0].label.value


def parity(arguments: argparse.Namespace) -> int:
    """Compare the steps of two runtimes."""
    ours, reference = each(
        (arguments.ours, arguments.reference), lambda path: _of(path, _parity_profile)
    )
    if arguments.policy == "measured":
        weighed = measured_parity(ours, reference)
        print_bytes(parity_bytes(weighed, arguments.format))
        return exit_code(passes=weighed.achieved, strict=arguments.strict)
    comparison = compare_parity(ours, reference)
    print_bytes(parity_bytes(comparison, arguments.format))
    return exit_code(passes=comparison.parity_achieved)
