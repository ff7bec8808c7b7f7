"""Arrays on a device that exists in name only, as torch, cupy and numba make them.

Their memory is numpy's. Each copies and writes by the methods of its library alone, and
counts what it was asked.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["CupyArray", "NumbaArray", "Tensor", "fake_torch"]


class Tensor:
    """
    A tensor of torch.

    Attributes:
        calls: The methods that were called on it or its copies, in order.

        failing: The method that raises; "": none.
    """

    def __init__(self, memory: Any, *, device: str = "cuda", calls: list[str] | None = None) -> None:  # fmt: skip
        self.memory = np.asarray(memory)
        self.device = SimpleNamespace(type=device)
        self.calls: list[str] = [] if calls is None else calls
        self.failing = ""

    def numel(self) -> int:
        return int(self.memory.size)

    def element_size(self) -> int:
        return int(self.memory.itemsize)

    def detach(self) -> Tensor:
        return self._of(self.memory, "detach")

    def clone(self) -> Tensor:
        return self._of(self.memory.copy(), "clone")

    def copy_(self, other: Tensor) -> Tensor:
        bare = self._of(self.memory, "copy_")
        self.memory[...] = other.memory
        return bare

    def reshape(self, size: int) -> Tensor:
        return self._of(self.memory.reshape(size), "")

    def __getitem__(self, item: Any) -> Tensor:
        return self._of(self.memory[item], "")

    def contiguous(self) -> Tensor:
        return self

    def view(self, dtype: Any) -> Tensor:
        return self._of(self.memory.view(dtype), "")

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> Any:
        return self.memory

    def _of(self, memory: Any, call: str) -> Tensor:
        if call and call == self.failing:
            message = "Inplace update to inference tensor outside InferenceMode"
            raise RuntimeError(message)
        if call:
            self.calls.append(call)
        made = Tensor(memory, device=self.device.type, calls=self.calls)
        made.failing = self.failing
        return made


def fake_torch() -> ModuleType:
    """Return what is asked of the module torch to read a tensor."""
    torch: Any = ModuleType("torch")
    torch.Tensor = Tensor
    torch.uint8 = np.uint8
    made: ModuleType = torch
    return made


class _DeviceArray:
    """An array with the protocol of CUDA's arrays."""

    def __init__(self, memory: Any) -> None:
        self.memory = np.asarray(memory)
        self.calls: list[str] = []

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {}

    @property
    def size(self) -> int:
        return int(self.memory.size)

    @property
    def dtype(self) -> Any:
        return self.memory.dtype

    @property
    def itemsize(self) -> int:
        return int(self.memory.itemsize)


class CupyArray(_DeviceArray):
    """An array of cupy."""

    def get(self) -> Any:
        return self.memory.copy()

    def copy(self) -> CupyArray:
        self.calls.append("copy")
        return CupyArray(self.memory.copy())

    def __setitem__(self, item: Any, other: CupyArray) -> None:
        self.calls.append("setitem")
        self.memory[item] = other.memory


class NumbaArray(_DeviceArray):
    """A device array of numba."""

    def copy_to_host(self) -> Any:
        self.calls.append("copy_to_host")
        return self.memory.copy()

    def copy_to_device(self, other: Any) -> None:
        self.calls.append("copy_to_device")
        self.memory[...] = other
