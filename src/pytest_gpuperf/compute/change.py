"""Interim: being written; PYTEST_DONT_REWRITE."""
from pytest_gpuperf.compute.paired import PairedRatio, paired_ratio
__all__ = ["PairedRatio", "paired_ratio"]
