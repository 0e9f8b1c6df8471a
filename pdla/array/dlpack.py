"""Arrays of other libraries with DLPack's `__dlpack__`, such as PyTorch and JAX, viewed over the same memory."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from pdla.array import namespace, numpy
from pdla.errors import DeviceError, ShapeError, kind_of

HOST = (1, 3)  # DLPack's device types that NumPy can read: host memory, and host memory pinned for a GPU


def view_foreign(call: str, x: Any, xp: ModuleType) -> Any:
    """Local: view another library's array as one of NumPy's or CuPy's; return anything else unchanged.

    DeviceError for an array on another device than matrices, which are xp's arrays; ShapeError for
    one that its library does not share. call: the start of error texts.
    """
    if namespace(x) is not numpy or isinstance(x, np.ndarray) or not hasattr(x, "__dlpack__"):
        return x
    try:
        device = int(x.__dlpack_device__()[0])
        if device in HOST:
            return _view(x, np.from_dlpack)
        if xp.name == "cupy":
            return _view(x, xp.from_dlpack)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:  # as by PyTorch's tensors that require gradients
        raise ShapeError(f"{call}: {kind_of(x)}, whose memory cannot be shared: {error}") from None
    raise DeviceError(
        f"{call}: {kind_of(x)} on a device (DLPack's kind {device}), matrices are made of {xp.name}'s arrays "
        f"(PDLA_ARRAY={xp.name}): copy it to the host before, or set PDLA_ARRAY=cupy"
    )


def _view(x: Any, read: Callable[[Any], Any]) -> Any:
    """View x by DLPack, which has no negated views, as PyTorch has; NumPy's DLPack has no bfloat16."""
    name = str(getattr(x, "dtype", ""))
    if getattr(x, "is_neg", bool)():
        raise BufferError("its numbers are negated in a view: give x.resolve_neg()")
    if name == "torch.bfloat16":
        import torch

        return read(x.view(torch.int16)).view("bfloat16")
    return np.asarray(x) if name == "bfloat16" else read(x)  # JAX makes NumPy's array over its own memory
