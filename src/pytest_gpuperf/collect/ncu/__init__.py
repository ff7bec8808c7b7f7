"""NVIDIA Nsight Compute: its reports read, its runs started; PYTEST_DONT_REWRITE."""
