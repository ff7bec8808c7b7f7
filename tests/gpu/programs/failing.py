"""A good kernel, then one that fails while it runs: an index is out of bounds."""

import torch

x = torch.ones(1 << 20, device="cuda")
x.add_(1)
torch.cuda.synchronize()
x[torch.tensor([1 << 30], device="cuda")].sum()
torch.cuda.synchronize()
