"""What this process computes with now: the GPU in use, its facts and its roofs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pytest_gpuperf.collect import environment as surroundings
from pytest_gpuperf.collect.devices import DeviceQuery, same_device, with_driver_facts
from pytest_gpuperf.collect.runtime import DeviceRuntime, NoDevice
from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.measure.assemble import Maker
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Record, RecordKey, Void, VoidCode
from pytest_gpuperf.model.roofline import DeclaredPeaks, Peaks

if TYPE_CHECKING:
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.model.environment import Device, Environment
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.steps import Loop
    from pytest_gpuperf.model.work import Work

__all__ = ["Machine", "peaks_in_use"]

_CPU = "cpu"


class Machine:
    """
    What the tests of one process compute with.

    Args:
        site: What the process has.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._made: tuple[Environment, Maker] | None = None
        self._peaks: dict[str | None, Peaks] = {}  # by the device's UUID; None: the CPU

    def device(self) -> Device | None:
        """Return the GPU that tests work with now, or else are to run on."""
        query = self._site.devices
        devices = (*query.devices, *query.slices)
        if len(devices) < 2:  # noqa: PLR2004 - there is no other
            return self._site.device()
        used = None
        with contextlib.suppress(CollectError):  # one that has failed says so itself
            used = self._site.runtime.device_uuid()
        matching = (
            device for device in devices if used and same_device(device.uuid, used)
        )
        return next(matching, self._site.device())

    def misplaced(self) -> Void | None:
        """Return that a test worked with another GPU than was asked for; None: no."""
        name, requested, used = (
            self._site.config.device,
            self._site.device(),
            self.device(),
        )
        if name is None or requested is None or used is None:
            return None
        if same_device(requested.uuid, used.uuid):
            return None
        reason = (
            f"it ran on GPU {used.index} ({used.uuid}), and --gpuperf-device="
            f"{name} asked for GPU {requested.index} ({requested.uuid})"
        )
        return Void(
            code=VoidCode.OTHER_DEVICE,
            reason=reason,
            remedy="put its tensors on gpuperf.device",
        )

    def peaks(self) -> Peaks:
        """Return the roofs of what this process computes with now."""
        return self._peaks_of(self._site.runtime)

    def host_peaks(self) -> Peaks:
        """Return the roofs of the CPU."""
        return self._peaks_of(NoDevice())

    def _peaks_of(self, runtime: DeviceRuntime) -> Peaks:
        """Return the roofs of what a runtime computes with now."""
        uuid = runtime.device_uuid()
        if uuid not in self._peaks:
            declared = self._site.config.peaks
            self._peaks[uuid] = peaks_in_use(runtime, self._site.devices, declared)
        return self._peaks[uuid]

    def loop_roofs(
        self, loop: Loop, work: Work | None, hardware: Hardware | None
    ) -> tuple[Peaks | None, Hardware | None]:
        """
        Return the roofs of a loop, and what a scorecard must know of its hardware.

        Args:
            loop: What was recorded.

            work: What one step has to do; None: no roof is looked up.

            hardware: What the test says of the hardware; it goes before all else.
        """
        from pytest_gpuperf.compute.scorecard import hardware_of

        # a device that has just failed is not asked: what it says would hide why
        unasked = work is None or loop.failure is not None
        peaks = None if unasked else self.peaks()
        return peaks, hardware_of(work, loop.units, peaks, hardware)

    def loop_record(
        self,
        key: RecordKey,
        loop: Loop,
        *,
        work: Work | None,
        hardware: Hardware | None,
    ) -> tuple[Record, Hardware | None]:
        """Return the record of a loop, and what is known of its hardware."""
        from pytest_gpuperf.measure.loops import loop_record

        peaks, ran_on = self.loop_roofs(loop, work, hardware)
        record = loop_record(
            self.maker(), key, loop, work=work, peaks=peaks, hardware=hardware
        )
        return record, ran_on

    def maker(self) -> Maker:
        """Return what makes records of this process now."""
        environment, device = self._site.environment, self.device()
        made = self._made
        if made is not None and made[0] is environment and made[1].device is device:
            return made[1]  # nothing was imported since
        maker = Maker(
            facts=surroundings.known_facts(environment, device),
            soft_facts=surroundings.soft_facts(
                environment, device, workers_count=surroundings.workers_count()
            ),
            device=device,
            role=self._site.identity.role,
            process_index=self._site.identity.process_index,
            peaks=self.peaks,
            host_peaks=self.host_peaks,
            grades=self._site.config.grades,
        )
        self._made = environment, maker
        return maker


def peaks_in_use(
    runtime: DeviceRuntime, query: DeviceQuery, declared: DeclaredPeaks
) -> Peaks:
    """
    Return the peaks of what this process computes with now.

    That is the GPU of its current context, and the CPU where it has none: a machine's
    GPU says nothing of a function that does not use it.

    Args:
        runtime: Knows the GPU in use.

        query: The GPUs of this machine.

        declared: What a person declared, by the names of devices.
    """
    from pytest_gpuperf.collect.hardware.measured import StoredPeaks, stored_peaks
    from pytest_gpuperf.collect.hardware.peaks import cpu_peaks, find_peaks

    uuid = runtime.device_uuid()
    if uuid is None:
        return _named(cpu_peaks(declared.get(_CPU)), _CPU, declared)
    device = _device(uuid, query)
    if device is None:
        why = f"NVML does not list the GPU in use ({query.reason or uuid})"
        return Peaks(device=uuid, flop_per_s={}, bytes_per_s={}, unlisted=why)
    facts = with_driver_facts(device, runtime.facts_of(uuid))
    whole = device.uuid == uuid  # what was measured of a GPU is not its slice's
    measured = stored_peaks(device) if whole else StoredPeaks()
    peaks = find_peaks(
        facts, declared=declared.get(facts.name), measured=measured.values
    )
    if measured.reason:
        peaks = replace(peaks, notes=(*peaks.notes, f"{measured.reason}."))
    return _named(peaks, facts.name, declared)


def _device(uuid: str, query: DeviceQuery) -> Device | None:
    """Return the GPU in use; of a slice the GPU it belongs to, if only one is split."""
    for device in query.devices:
        if device.uuid == uuid:
            return device
    split = [device for device in query.devices if device.mig]
    return split[0] if len(split) == 1 else None


def _named(peaks: Peaks, name: str, declared: DeclaredPeaks) -> Peaks:
    """Return peaks with a note where a declaration is for other devices alone."""
    if not declared or name in declared:
        return peaks
    names = ", ".join(declared)
    note = f"gpuperf_peaks declares those of {names}, and this is {name}"
    return replace(peaks, notes=(*peaks.notes, note))
