"""The vectors of tests/gold, in our names and units."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_gpuperf.model import CanonicalRecord

FILE = Path(__file__).parents[2] / "gold" / "vectors" / "utilization.jsonl"
MIB = 1024 * 1024

# Their name without `gpu_`: our name, and what to multiply with.
NAMES: dict[str, tuple[str, int]] = {
    "streaming_multiprocessor_active_cycle_fraction": ("sm_active_fraction", 1),
    "streaming_multiprocessor_warp_occupancy_fraction": ("sm_occupancy_fraction", 1),
    "tensor_core_pipe_active_cycle_fraction": ("tensor_active_fraction", 1),
    "tensor_core_half_precision_mma_active_cycle_fraction": (
        "tensor_hmma_active_fraction",
        1,
    ),
    "cuda_core_floating_point_64bit_pipe_active_cycle_fraction": (
        "fp64_active_fraction",
        1,
    ),
    "cuda_core_floating_point_32bit_pipe_active_cycle_fraction": (
        "fp32_active_fraction",
        1,
    ),
    "cuda_core_floating_point_16bit_pipe_active_cycle_fraction": (
        "fp16_active_fraction",
        1,
    ),
    "graphics_compute_engine_active_cycle_fraction": ("graphics_active_fraction", 1),
    "dram_controller_active_cycle_fraction": ("dram_active_fraction", 1),
    "memory_copy_engine_busy_time_fraction": ("memory_busy_fraction", 1),
    "nvml_busy_time_fraction": ("gpu_busy_fraction", 1),
    "pcie_transmit_throughput_bytes_per_second": ("pcie_tx_bytes_per_s", 1),
    "pcie_receive_throughput_bytes_per_second": ("pcie_rx_bytes_per_s", 1),
    "nvlink_aggregate_throughput_bytes_per_second": ("nvlink_bytes_per_s", 1),
    "pcie_replay_count": ("pcie_replay_count", 1),
    "uncorrectable_remapped_row_count": ("uncorrectable_remapped_row_count", 1),
    "row_remap_failure_flag": ("row_remap_failed", 1),
    "board_power_draw_watts": ("power_watts", 1),
    "board_total_energy_joules": ("energy_joules", 1),
    "die_temperature_celsius": ("temperature_celsius", 1),
    "memory_die_temperature_celsius": ("memory_temperature_celsius", 1),
    "streaming_multiprocessor_clock_frequency_megahertz": ("sm_clock_hz", 1_000_000),
    "memory_clock_frequency_megahertz": ("memory_clock_hz", 1_000_000),
    "framebuffer_used_mebibytes": ("memory_used_bytes", MIB),
    "framebuffer_free_mebibytes": ("memory_free_bytes", MIB),
    "framebuffer_reserved_mebibytes": ("memory_reserved_bytes", MIB),
}


def vectors() -> list[dict[str, Any]]:
    """Return all vectors."""
    return [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def value_of(given: Any, factor: int) -> Any:
    """Return a reading; a text stands for what JSON has no number for."""
    if isinstance(given, str):
        return float(given)
    return given if factor == 1 else given * factor


def record_of(vector: dict[str, Any]) -> CanonicalRecord:
    """Return the reading of a vector."""
    given = dict(vector["input"])
    return CanonicalRecord(
        monotonic_s=given.pop("record_timestamp_monotonic_seconds"),
        unix_s=given.pop("record_timestamp_wallclock_unix_seconds"),
        gpu_index=given.pop("entity_gpu_index", 0),
        gpu_uuid=given.pop("entity_gpu_uuid", ""),
        **{
            NAMES[name.removeprefix("gpu_")][0]: value_of(
                value, NAMES[name.removeprefix("gpu_")][1]
            )
            for name, value in given.items()
        },
    )


def previous_of(vector: dict[str, Any]) -> CanonicalRecord | None:
    """Return the reading before, if there is one."""
    before = vector["prev"]
    if before is None:
        return None
    return CanonicalRecord(
        gpu_index=vector["input"].get("entity_gpu_index", 0),
        gpu_uuid="",
        monotonic_s=before["record_timestamp_monotonic_seconds"],
        unix_s=0.0,
        pcie_replay_count=before["gpu_pcie_replay_count"],
    )
