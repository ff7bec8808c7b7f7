"""Three kernels in one start/end range, which range replay profiles as one."""

import nvtx
import torch

x = torch.ones(1 << 22, device="cuda")
x.add_(1).mul_(2).neg_()  # what is loaded lazily is loaded here
torch.cuda.synchronize()

opened = nvtx.start_range("step", domain="outer")
x.add_(1)
x.mul_(2)
x.neg_()
torch.cuda.synchronize()
nvtx.end_range(opened)
