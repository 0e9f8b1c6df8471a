"""Kernels of cuda/, compiled at first use for the device of the thread that calls them; and cuBLAS, loaded at first use."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

import cupy
import numpy as np

GRID = 1 << 16  # the most blocks of a launch
THREADS = 256  # threads of a block

_NULL = np.uint64(0)  # a null pointer, which CuPy does not make of None


@cache
def cublas() -> Any:
    """CuPy's binding of cuBLAS, which loads the library."""
    from cupy_backends.cuda.libs import cublas

    return cublas


def launch(source: str, kernel: str, grid: tuple[int, ...], block: tuple[int, ...], *args: Any) -> None:
    """Launch a kernel on the current stream. args: arrays, scalars of NumPy's, None: a null pointer."""
    function = _function(source, kernel, cupy.cuda.runtime.getDevice())
    function(grid, block, tuple(_NULL if x is None else x for x in args))


@cache
def _function(source: str, kernel: str, device: int) -> Any:
    return _module(source, device).get_function(kernel)


@cache
def _module(source: str, device: int) -> Any:
    return cupy.RawModule(code=_read(source), options=("--std=c++17", "--fmad=false"))


def _read(source: str) -> str:
    """Read a source with what it includes: CuPy's cache would not notice that an included file has changed."""
    text = files("pdla.cuda").joinpath(source).read_text()
    return re.sub(r'^#include "(.*)"$', lambda include: _read(include[1]), text, flags=re.MULTILINE)


def blocks(count: int) -> tuple[int]:
    """The grid of a kernel for `count` pieces of work, which its blocks take in turn."""
    return (min(GRID, count),)
