"""GPU sensors, read with NVML.

In: NVML as bound by pynvml, and the GPUs to read.
Out: Deltas around a test, and CanonicalRecords sampled by a separate process.
Never: a CUDA context, a changed setting, 0 for a value that NVML did not report.
"""
