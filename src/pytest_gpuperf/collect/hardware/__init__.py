"""Peaks of a GPU: detected, measured, declared, or from its datasheet.

In: a Device, declared peaks, peaks that this user measured, a table of datasheets.
Out: Peaks, each with its label and its source; where there is none, the reason.
Never: another GPU's figures for an unknown one, a peak without a source.
"""

from __future__ import annotations

from pytest_gpuperf.collect.hardware.peaks import cpu_peaks, find_peaks, load_table

__all__ = ["cpu_peaks", "find_peaks", "load_table"]
