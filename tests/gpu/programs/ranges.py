"""Kernels inside push/pop and start/end ranges of two NVTX domains.

Domain "outer" is on the stack of this thread; domain "inner" has start/end ranges, which
belong to the process: the last kernel is launched by another thread.
"""

import threading

import nvtx
import torch

x = torch.ones(1 << 20, device="cuda")
torch.cuda.synchronize()

with nvtx.annotate("step", domain="outer"):
    opened = nvtx.start_range("forward", domain="inner")
    x.add_(1)
    with nvtx.annotate("layer", domain="outer"):
        x.mul_(2)
    nvtx.end_range(opened)
    opened = nvtx.start_range("backward", domain="inner")
    thread = threading.Thread(target=x.neg_)
    thread.start()
    thread.join()
    nvtx.end_range(opened)
x.sqrt_()  # in no range
torch.cuda.synchronize()
