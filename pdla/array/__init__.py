"""Local arrays: one small namespace a kind of array, all with the same functions.

`namespace(x)` gives the module that handles x, `chosen()` the one that PDLA_ARRAY names. An algorithm calls it `xp` and
never asks which one it is:

empty(shape, dtype)        a new C-ordered array, contents undefined
host(x)                    x as NumPy's array: itself or a copy
copy(target, source)       target[...] = source, any strides; conjugate=True conjugates on the way
copies(pairs)              many of them at once
land(target, box)          the same for what a message has brought
add, maximum(target, source)   target += source, which may be narrower; the larger of both, into target
combine(target, beta, source)   target = beta * target + source; beta = 0 never reads target
gemm(a, b, c, alpha, beta) c = alpha a b + beta c, in place
squares(a, c)              whether square(a, c, alpha) computes c's lower triangle = alpha a a^T, and writes to nothing above it
take(x, rows, cols)        x[rows][:, cols]: a view where both are slices
takes(x, places)           many of them at once
put(x, rows, cols, source) the reverse
picked(x, rows, cols)      single elements, by row and column; place(x, rows, cols, source) the reverse
add_at(x, rows, source)    x[rows] += source, where a row may come many times
uniform(rows, cols, key)   random numbers told by row, column and key
drawn(rows, cols, draw)    a new array of these rows and columns (index sets) of a random matrix, which draw.py tells
finish()                   wait until all that was asked for is done
joining()                  a function: the thread that calls it uses the device of the one that asked for it

and the layers' work, each function one pass over memory where there are kernels for it (composed.py has the formulas):

gelu(x, slope, bias)       GeLU of each element of x + bias, and its slope where it is wanted
product_sums(x, y)         x y, element by element, and its sums over the rows
column_sums(x, y)          the sums over the rows of x y, and of x
moments(x)                 each row's sum, and the sum of squares about its mean
recentre(squares, ...)     turns squares about a rank's mean into those about all ranks'
normalise(x, ...)          x without its rows' means, over their deviations, with gain and offset
row_sums(x, y, gain, out)  the sums of each row of x gain y, and of x gain
norm_gradient(dy, ...)     what normalise passes back
exponentials(x, top, places, sums)   exp(x - top), its rows' sums, and what is at their places
softmax_gradient(powers, ...)        the gradient of cross-entropy, in place
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from pdla import config
from pdla.array import blas, meta, numpy
from pdla.errors import DeviceError


def namespace(x: Any) -> ModuleType:
    """The array module of x."""
    if isinstance(x, np.ndarray):
        return numpy
    if isinstance(x, meta.Meta):
        return meta
    return _cupy() if type(x).__module__.partition(".")[0] == "cupy" else numpy


def chosen(number: int = 0) -> ModuleType:
    """The module that PDLA_ARRAY names. number  of this rank among those of its node, which share the node's devices in turn.

    The device becomes the calling thread's. DeviceError, on this rank, without CuPy or without a device; or without the library
    that PDLA_BLAS names.
    """
    if config.settings.blas:
        blas.named(config.settings.blas)
    if config.settings.array == "numpy":
        return numpy
    try:
        xp = _cupy()
    except ImportError as error:
        raise DeviceError(f"PDLA_ARRAY=cupy, but there is no CuPy here ({error}): `pip install cupy-cuda13x`") from error
    xp.use(number)
    return xp


def _cupy() -> ModuleType:
    from pdla.array import cupy

    return cupy
