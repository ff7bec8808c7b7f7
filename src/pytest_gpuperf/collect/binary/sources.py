"""The forms in which a compiled kernel may be handed over."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_gpuperf.errors import CaptureFormatError, MeasureError
from pytest_gpuperf.model.frozen import Frozen, replace

__all__ = ["Image", "LaunchFacts", "images_of"]

_WARP_SIZE = 32  # every NVIDIA chip
_REMEDY = "give the path or the bytes of a cubin or fatbin, or what Triton compiled"


class LaunchFacts(Frozen, frozen=True, kw_only=True):
    """
    What a binary does not hold and a launch decides.

    Attributes:
        threads_per_block: Threads of a block; None: nobody said.

        dynamic_shared_bytes: Shared memory asked for at launch [B]; None: nobody said.
    """

    threads_per_block: int | None = None
    dynamic_shared_bytes: int | None = None


class Image(Frozen, frozen=True, kw_only=True):
    """
    One binary to read.

    Attributes:
        label: How messages name it.

        content: Its bytes; None: `path` is read.

        path: Its file; None: `content` is read.

        launch: What is known of its kernels' launches.
    """

    label: str
    content: bytes | None = None
    path: Path | None = None
    launch: LaunchFacts


def images_of(source: object, launch: LaunchFacts) -> tuple[Image, ...]:
    """
    Return the binaries that a source stands for, in its order.

    Args:
        source: A path, bytes, what Triton's compiler returns, or a sequence of them.

        launch: What the caller says of the launches; it wins over what Triton says.

    Raises:
        MeasureError: The source is something else, or an empty sequence.

        CaptureFormatError: What Triton's compiler returned holds no cubin.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        return (Image(label=str(path), path=path, launch=launch),)
    if isinstance(source, bytes | bytearray | memoryview):
        content = bytes(source)
        label = f"{len(content)} bytes"
        return (Image(label=label, content=content, launch=launch),)
    if hasattr(source, "asm"):
        return (_triton_image(source, launch),)
    if isinstance(source, Sequence) and source:
        return tuple(image for each in source for image in images_of(each, launch))
    message = f"{type(source).__name__} is no compiled kernel"
    if isinstance(source, Sequence):
        message = "no compiled kernel was given"
    raise MeasureError(message, remedy=_REMEDY)


def _triton_image(compiled: object, launch: LaunchFacts) -> Image:
    """Return the cubin that Triton's compiler left, with what its metadata says."""
    metadata = getattr(compiled, "metadata", None)
    label = f"Triton kernel {_fact(metadata, 'name') or '(unnamed)'}"
    forms = compiled.asm  # type: ignore[attr-defined] # asked for by images_of
    content = forms.get("cubin")
    if not isinstance(content, bytes):
        held = ", ".join(str(form) for form in forms) or "nothing"
        message = f"holds no cubin, only {held}"
        remedy = 'compile it for an NVIDIA target: GPUTarget("cuda", 90, 32)'
        raise CaptureFormatError(message, remedy=remedy, path=label)
    warps = _number(_fact(metadata, "num_warps"))
    if launch.threads_per_block is None and warps is not None:
        launch = replace(launch, threads_per_block=warps * _WARP_SIZE)
    if launch.dynamic_shared_bytes is None:
        shared_bytes = _number(_fact(metadata, "shared"))
        launch = replace(launch, dynamic_shared_bytes=shared_bytes)
    return Image(label=label, content=content, launch=launch)


def _fact(metadata: object, name: str) -> object:
    """Return a field of Triton's metadata, a mapping in some versions."""
    if isinstance(metadata, Mapping):
        return metadata.get(name)
    return getattr(metadata, name, None)


def _number(value: object) -> int | None:
    """Return a whole number, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
