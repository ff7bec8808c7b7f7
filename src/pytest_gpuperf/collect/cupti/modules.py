"""The machine code of modules, as CUPTI shows it when the driver loads them.

The driver compiles PTX when it loads a module, and frameworks compile kernels while a test
runs. CUPTI shows the finished code of both, but only of modules that are loaded while it is
subscribed. The callback waits for the interpreter while the driver loads, which was never
tried on a GPU (docs/gpu-session.md): the user has to ask for the code.
"""

from __future__ import annotations

import ctypes
from typing import Any

# Environment variable that asks for the code, with any value.
ASKED = "GPUPERF_LOADED_CODE"
_RESOURCES = 3  # CUPTI_CB_DOMAIN_RESOURCE
_LOADED, _UNLOADING = 6, 7  # CUPTI_CBID_RESOURCE_MODULE_*
# A kernel that is compiled in the process has some KiB. The modules of libraries have up to
# hundreds of MiB, and to copy and to read them would take longer than the tests.
_LARGEST_BYTES = 1 << 18
_MOST_BYTES = 1 << 20


class _ModuleData(ctypes.Structure):
    """CUpti_ModuleResourceData. The binding reads its code as text, up to a zero."""

    _fields_ = (
        ("module_id", ctypes.c_uint32),
        ("cubin_bytes", ctypes.c_size_t),
        ("cubin", ctypes.c_void_p),
    )


class LoadedModules:
    """
    The code of the modules that were loaded since the subscription began.

    CUPTI calls an instance in the thread that loads a module. The code is valid in that call
    only, and is copied.
    """

    def __init__(self) -> None:
        self._contents: dict[int, bytes] = {}
        self._held_bytes = 0

    def __call__(self, *arguments: Any) -> None:  # noqa: ANN401 - of an optional library
        """
        Copy the code of a module, or forget that of one that is unloaded.

        Args:
            arguments: The user's data, the domain, the number of the event, and its data.
        """
        try:
            _, domain, event, data = arguments
            if domain == _RESOURCES and event in {_LOADED, _UNLOADING}:
                address = int(data.resource_descriptor)
                module = _ModuleData.from_address(address)
                dropped = self._contents.pop(module.module_id, b"")
                self._held_bytes -= len(dropped)
                size = module.cubin_bytes
                is_held = (
                    size <= _LARGEST_BYTES and self._held_bytes + size <= _MOST_BYTES
                )
                if event == _LOADED and module.cubin and is_held:
                    self._contents[module.module_id] = ctypes.string_at(
                        module.cubin, size
                    )
                    self._held_bytes += size
        except Exception:  # noqa: BLE001 - it would end the call that loads the module
            self.clear()

    @property
    def contents(self) -> tuple[bytes, ...]:
        """The code of each module that is still loaded."""
        return tuple(self._contents.copy().values())

    def clear(self) -> None:
        """Forget all modules, because events were missed or will be."""
        self._contents.clear()
        self._held_bytes = 0

    def watch(self, cupti: Any, subscriber: int) -> None:  # noqa: ANN401 - an optional library
        """
        Enable the events, until the subscription ends.

        Args:
            cupti: The module `cupti.cupti`.

            subscriber: The handle of a subscription whose callback is this instance.

        Raises:
            Exception: CUPTI refuses, or does not have such events.
        """
        for event in (_LOADED, _UNLOADING):
            cupti.enable_callback(1, subscriber, _RESOURCES, event)
