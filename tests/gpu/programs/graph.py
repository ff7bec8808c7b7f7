"""A CUDA graph of three kernels, launched twice."""

import torch

x = torch.ones(1 << 22, device="cuda")
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):  # what is loaded lazily is loaded before the capture
    x.add_(1).mul_(2).neg_()
torch.cuda.synchronize()

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x.add_(1)
    x.mul_(2)
    x.neg_()
for _ in range(2):
    graph.replay()
torch.cuda.synchronize()
