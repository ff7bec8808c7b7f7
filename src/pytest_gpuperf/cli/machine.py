"""The commands `doctor`, `metrics …` and `cache …` on what a machine can measure and count.

The doctor shows what prevents a measurement, `metrics` names what Nsight Compute can
count, and `cache` shows its stored counters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import (
    BLOCKED,
    DEGRADED,
    GOOD,
    UNREADABLE,
    WORSE,
    each,
    is_folder,
    print_bytes,
    print_table,
    say,
)
from pytest_gpuperf.collect.clock import Clock, SystemClock
from pytest_gpuperf.collect.cuda_device import CudaRuntime, load_driver
from pytest_gpuperf.collect.cupti.chips import MetricType, chip_entries, chip_here
from pytest_gpuperf.collect.devices import DeviceQuery, query_devices
from pytest_gpuperf.collect.doctor import look
from pytest_gpuperf.collect.listed_devices import with_driver_facts
from pytest_gpuperf.collect.measured_peaks import (
    ArrayFramework,
    find_framework,
    measure_peaks,
    store_peaks,
    stored_peaks,
)
from pytest_gpuperf.collect.ncu.catalogue import Catalogue
from pytest_gpuperf.collect.ncu.store import KINDS, EntryStore, StoreEntry
from pytest_gpuperf.collect.peaks import find_peaks
from pytest_gpuperf.collect.runtime import DeviceRuntime
from pytest_gpuperf.errors import (
    CollectError,
    CollectorUnavailableError,
    ConfigError,
    RecordError,
)
from pytest_gpuperf.judge.grade import condition_of, host_condition
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.gap import Condition, Finding, Status
from pytest_gpuperf.report import display
from pytest_gpuperf.report.doctor import doctor_bytes
from pytest_gpuperf.report.lines import column
from pytest_gpuperf.report.metrics import (
    check_bytes,
    chip_bytes,
    cost_bytes,
    described_bytes,
    entry_bytes,
)

if TYPE_CHECKING:
    import argparse

    from pytest_gpuperf.model.roofline import Peaks


class Examined(Frozen, frozen=True, kw_only=True):
    """
    The doctor's examination of a machine.

    Attributes:
        peaks: The peaks of each GPU.

        findings: One finding for each topic.

        remarks: Further remarks, a sentence each.

        condition: Whether everything about a GPU can be measured, and why not.
    """

    peaks: tuple[Peaks, ...]
    findings: tuple[Finding, ...]
    remarks: tuple[str, ...]
    condition: Condition


def examine(
    runtime: DeviceRuntime,
    query: DeviceQuery | None = None,
    findings: Sequence[Finding] = (),
    *,
    has_peaks: bool = True,
) -> Examined:
    """
    Return the GPUs of the machine with peaks and findings, and the condition of the
    machine.

    Args:
        runtime: Provides the driver's facts of a GPU.

        query: The GPUs, or None for those of this machine.

        findings: The findings on this machine.

        has_peaks: False if peaks should have been measured and were not.
    """
    query = query or query_devices()
    gpu_peaks: list[Peaks] = []
    remarks = [] if query.reason is None else [f"No peaks of a GPU: {query.reason}."]
    for device in query.devices:
        measured = stored_peaks(device)
        detailed = with_driver_facts(device, runtime.facts_of(device.uuid))
        gpu_peaks.append(find_peaks(detailed, measured=measured.values))
        remarks += [f"{measured.reason}."] if measured.reason else []
    remarks.append(
        "Peaks declared in an ini file (gpuperf_peaks) are not read here: they belong to "
        "that project."
    )
    has_gpu = bool(gpu_peaks) or any(
        finding.id == "gpu" and finding.status is Status.OK for finding in findings
    )
    return Examined(
        peaks=tuple(gpu_peaks),
        findings=tuple(findings),
        remarks=tuple(remarks),
        condition=condition_of(findings, has_gpu=has_gpu, has_peaks=has_peaks),
    )


def measure(
    find: Callable[[], ArrayFramework],
    runtime: DeviceRuntime,
    clock: Clock,
    query: DeviceQuery | None = None,
) -> tuple[str, bool]:
    """
    Measure the GPU that a framework uses and store the peaks for the current user.

    Args:
        find: Returns the framework to measure with.

        runtime: Knows the GPU that the framework uses.

        clock: The clock.

        query: The GPUs, or None for those of this machine.

    Returns:
        One sentence, and whether the peaks were measured.
    """
    query = query or query_devices()
    try:
        framework = find()
        # Creates a context on its GPU.
        framework.synchronize()
        uuid = runtime.device_uuid()
        device = next((d for d in query.devices if d.uuid == uuid), None)
        if device is None:
            message = f"NVML does not list the GPU in use ({uuid or 'none is'})"
            remedy = query.reason or "measure on a whole GPU, not on a slice of one"
            raise CollectorUnavailableError(message, remedy=remedy)
        detailed = with_driver_facts(device, runtime.facts_of(device.uuid))
        values = measure_peaks(framework, clock, l2_bytes=detailed.l2_bytes)
        file = store_peaks(device, values)
    except CollectError as error:
        return f"Nothing was measured: {error}.", False
    names = ", ".join(values)
    return f"{names} of {device.name} were measured and stored in {file}.", True


_CODES = {"ready": GOOD, "degraded": DEGRADED, "blocked": BLOCKED}


def doctor(arguments: argparse.Namespace) -> int:
    """
    Print the findings on the machine, and the peaks of all GPUs.

    With `--for=host`, print what prevents measuring host times.
    """
    # Before this process has a context on a GPU.
    findings = look()
    if arguments.whose == "host":
        if arguments.measure_peaks:
            raise ConfigError(
                "--measure-peaks measures a GPU, and --for=host leaves it out",
                remedy="give one of both",
            )
        own = [finding for finding in findings if "host" in finding.concerns]
        condition = host_condition(own)
        print_bytes(doctor_bytes(own, (), (), arguments.format, condition=condition))
        return _CODES[condition.state.value]
    runtime = CudaRuntime(load_driver)
    sentence, measured = "", True
    if arguments.measure_peaks:
        sentence, measured = measure(find_framework, runtime, SystemClock())
    examined = examine(runtime, findings=findings, has_peaks=measured)
    print_bytes(
        doctor_bytes(
            examined.findings,
            examined.peaks,
            (*examined.remarks, *filter(None, (sentence,))),
            arguments.format,
            condition=examined.condition,
        )
    )
    return _CODES[examined.condition.state.value]


# The commands `metrics` and `cache`.


def chips(arguments: argparse.Namespace) -> int:
    """Print every supported chip."""
    return print_bytes(chip_bytes(chip_entries(), arguments.format))


def listed(arguments: argparse.Namespace) -> int:
    """Print all metrics of a chip, or all of one kind."""
    catalogue = _catalogue(arguments)
    kind = MetricType[arguments.kind.upper()] if arguments.kind else None
    entries = tuple(catalogue.entries(kind))
    return print_bytes(entry_bytes(catalogue.chip, entries, arguments.format))


def search(arguments: argparse.Namespace) -> int:
    """Print the metrics with every word in the name or description."""
    catalogue = _catalogue(arguments)
    entries = catalogue.search(arguments.words)
    print_bytes(entry_bytes(catalogue.chip, entries, arguments.format))
    if not entries:
        words = ", ".join(map(repr, arguments.words))
        missing = "no metric with all of these in its name or description"
        say([f"gpuperf: {catalogue.chip} has {missing}: {words}"])
    return GOOD if entries else WORSE


def describe(arguments: argparse.Namespace) -> int:
    """Print the descriptions of metrics."""
    catalogue = _catalogue(arguments)
    entries = each(chain(*arguments.names), catalogue.describe)
    return print_bytes(described_bytes(catalogue.chip, entries, arguments.format))


def check(arguments: argparse.Namespace) -> int:
    """Print if names are metrics of a chip, and return 1 if any name is not."""
    catalogue = _catalogue(arguments)
    checks = [catalogue.check(name) for name in chain(*arguments.names)]
    print_bytes(check_bytes(catalogue.chip, checks, arguments.format))
    return GOOD if all(result.known for result in checks) else WORSE


def passes(arguments: argparse.Namespace) -> int:
    """Print the passes that a kernel needs for some metrics together."""
    catalogue = _catalogue(arguments)
    cost = catalogue.cost([*chain(*arguments.names)])
    return print_bytes(cost_bytes(cost, arguments.format))


def _catalogue(arguments: argparse.Namespace) -> Catalogue:
    """
    Return the catalogue of the named chip, or of the GPU of the machine.

    Raises:
        ConfigError: No chip is named, and this machine has no GPU.
    """
    chip = arguments.chip
    if chip is None:
        chip = chip_here()
    if chip is None:
        message = "no chip is named, and this machine has no GPU"
        raise ConfigError(message, remedy="name one: --chip=GH100, or --chip=sm_90")
    return Catalogue(chip)


def info(arguments: argparse.Namespace) -> int:
    """Print the contents of the cache of ncu's values."""
    store = _entry_store(arguments)
    entries = store.entries()
    return _print_cache("info", store, entries, {}, "", arguments.format)


def verify(arguments: argparse.Namespace) -> int:
    """Read all entries, remove damaged entries, and print the number of damaged entries."""
    store = _entry_store(arguments)
    damaged = store.verify()
    remark = (
        f"{_count(damaged)} damaged and removed" if damaged else "nothing is damaged"
    )
    more = {"damaged": [f"{entry.kind}/{entry.key}" for entry in damaged]}
    code = _print_cache(
        "verify", store, store.entries(), more, remark, arguments.format
    )
    return code or (WORSE if damaged else GOOD)


def clear(arguments: argparse.Namespace) -> int:
    """Remove all entries, and print the number of removed entries."""
    store = _entry_store(arguments)
    removed = store.clear()
    remark = f"{_count(removed)} removed"
    more = {"removed": len(removed), "removed_bytes": _size_bytes(removed)}
    return _print_cache("clear", store, store.entries(), more, remark, arguments.format)


def _entry_store(arguments: argparse.Namespace) -> EntryStore:
    named = arguments.folder
    if named is not None and not is_folder(named):
        remedy = "name the folder of a cache with --folder"
        raise RecordError("it is not a folder", path=named, remedy=remedy)
    return EntryStore(None if named is None else Path(named))


def _print_cache(
    action: str,
    store: EntryStore,
    entries: Sequence[StoreEntry],
    more: Mapping[str, object],
    remark: str,
    form: str,
) -> int:
    size = display.value(_size_bytes(entries), "bytes")
    total = f"{size} of {display.value(store.limit_bytes, 'bytes')}"
    parts = [[entry for entry in entries if entry.kind == kind] for kind in KINDS]
    used = [max((entry.used_unix_s for entry in part), default=None) for part in parts]
    counts, sizes = [*map(len, parts)], [*map(_size_bytes, parts)]
    facts = [
        {"entries": count, "size_bytes": size_bytes, "used_unix_s": unix_s}
        for count, size_bytes, unix_s in zip(counts, sizes, used, strict=True)
    ]
    content = {
        "folder": str(store.folder),
        "limit_bytes": store.limit_bytes,
        "size_bytes": _size_bytes(entries),
        **dict(zip(KINDS, facts, strict=True)),
        **more,
        "remarks": store.remarks,
    }
    code = print_table(
        form,
        f"cache {action}",
        content,
        title=str(store.folder),
        table=(
            column("kind", KINDS),
            column("entries", map(str, counts), right=True),
            column(
                "size",
                (display.value(size_bytes, "bytes") for size_bytes in sizes),
                right=True,
            ),
            column(
                "used last",
                ("" if unix_s is None else display.date(unix_s) for unix_s in used),
                blank="never",
            ),
        ),
        remarks=[*filter(None, (remark,)), total, *store.remarks],
    )
    return code or (UNREADABLE if store.remarks else GOOD)


def _size_bytes(entries: Sequence[StoreEntry]) -> int:
    return sum(entry.size_bytes for entry in entries)


def _count(entries: Sequence[StoreEntry]) -> str:
    return display.plural(len(entries), "entry", "entries")
