"""Sensors of GPUs by NVML.

In: NVML as pynvml has it, and which GPUs to ask.
Out: Deltas around a test, and CanonicalRecords sampled by a process of its own.
Never: a CUDA context, a setting that is changed, 0 for what NVML did not say.
"""
