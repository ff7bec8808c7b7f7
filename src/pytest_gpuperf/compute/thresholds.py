"""The numbers that decide a workload's class and a GPU's health.

Each stands here once, with where it comes from. "kempnerpulse" is the program of that
name, version 0.5.0, whose answers these rules give; its authors chose the numbers by
experience, where nothing else is said.
"""

from __future__ import annotations

__all__ = [
    "ACTIVE_DRAM_PERCENT",
    "ACTIVE_SM_PERCENT",
    "BOUND_DRAM_PERCENT",
    "BOUND_SM_PERCENT",
    "BUSY_GRAPHICS_PERCENT",
    "BUSY_SM_PERCENT",
    "FP64_PERCENT",
    "FP64_SM_PERCENT",
    "HEAVY_SM_PERCENT",
    "IDLE_PERCENT",
    "IO_BYTES_PER_S",
    "IO_MEMORY_BUSY_PERCENT",
    "IO_SM_PERCENT",
    "LOW_PERCENT",
    "MOST_UTIL",
    "OTHER_WARNING_CELSIUS",
    "PRESET_TOLERANCE",
    "SUM_TOLERANCE",
    "TENSOR_HEAVY_PERCENT",
    "TENSOR_HEAVY_SM_PERCENT",
    "TENSOR_PERCENT",
    "TENSOR_SM_PERCENT",
    "WARNING_CELSIUS",
]

MOST_UTIL = 100.0  # of the score; kempnerpulse

# Of the classes, in the order of the rules. Each is compared with fraction * 100, never
# with a fraction: for 5, 20, 40 and 80 the last double below reaches the threshold too.
IDLE_PERCENT = 5.0  # rule 1: score, graphics and DRAM below it; kempnerpulse
TENSOR_HEAVY_PERCENT = 50.0  # rule 2: tensor at least; kempnerpulse
TENSOR_HEAVY_SM_PERCENT = 60.0  # rule 2: with SM at least; kempnerpulse
TENSOR_PERCENT = 15.0  # rule 3: tensor at least; kempnerpulse
TENSOR_SM_PERCENT = 40.0  # rule 3: with SM at least; kempnerpulse
FP64_PERCENT = 20.0  # rule 4: FP64 at least; kempnerpulse
FP64_SM_PERCENT = 50.0  # rule 4: with SM at least; kempnerpulse
IO_MEMORY_BUSY_PERCENT = 40.0  # rules 1 and 5: memory busy at least; kempnerpulse
IO_BYTES_PER_S = 1e9  # rules 1 and 5: one direction of PCIe at least; kempnerpulse
IO_SM_PERCENT = 30.0  # rule 5: with SM below it; kempnerpulse
BOUND_DRAM_PERCENT = 50.0  # rule 6: DRAM at least; kempnerpulse
BOUND_SM_PERCENT = 50.0  # rule 6: with SM below it; kempnerpulse
HEAVY_SM_PERCENT = 80.0  # rule 7: SM at least; NVIDIA's DCGM guide asks for 0.8
ACTIVE_SM_PERCENT = 50.0  # rule 8: SM at least; NVIDIA's DCGM guide: below is poor use
ACTIVE_DRAM_PERCENT = 40.0  # rule 9: DRAM at least; kempnerpulse
BUSY_GRAPHICS_PERCENT = 40.0  # rule 10: graphics at least; kempnerpulse
BUSY_SM_PERCENT = 25.0  # rule 10: with SM below it; kempnerpulse
LOW_PERCENT = 15.0  # rule 11: graphics, SM and DRAM below it; kempnerpulse

# Of the weights.
PRESET_TOLERANCE = 1e-9  # each weight, to be called by a preset's name; kempnerpulse
SUM_TOLERANCE = 1e-6  # of a sum of weights that is taken for 1; kempnerpulse

# Of health: the first that stands in a product's name, in capital letters, counts; so a
# GH200 is taken for an H200.
WARNING_CELSIUS = (
    ("A100", 93.0),  # kempnerpulse
    ("H100", 95.0),  # kempnerpulse
    ("H200", 95.0),  # kempnerpulse
    ("RTX 6000", 92.0),  # kempnerpulse
)
OTHER_WARNING_CELSIUS = 93.0  # every other product; kempnerpulse
