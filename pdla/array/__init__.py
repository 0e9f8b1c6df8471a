"""Local arrays: one module for each kind of array, all with the same functions.

`namespace(x)` is the module of x, `choose()` the one that PDLA_ARRAY names. An algorithm calls it
`xp` and never asks which one it is:

empty(shape, dtype)        a new C-ordered array, contents undefined
host(x)                    x as NumPy's array: itself or a copy
copy(target, source)       target[...] = source, any strides; conjugate=True conjugates on the way
copy_all(pairs)            many copies at once, each of one (target, source)
land(target, box)          copy a message from the box in which it has arrived
add, maximum(target, source)   target += source, which may be of a narrower dtype; the larger of both, into target
combine(target, beta, source)   target = beta * target + source; beta = 0 never reads target
scale(target, beta)        target *= beta; beta = 0 never reads target
gemm(a, b, c, alpha, beta) c = alpha a b + beta c, in place
gemm_stacks(a, b, c, alpha, beta)   the same for each matrix of stacks; prepare_stacks(x): x as a factor
can_square(a, c)           whether square(a, c, alpha) can compute the lower triangle of c = alpha a a^T; it writes nothing above it
potrf(a), trtri(a), getrf(a, before), trsm(t, b, lower, unit, conjugate)   LAPACK's, in place (lapack.py)
geqrt(a), larft(gram, tau), orhr_col(q)    LAPACK's block reflectors
sytrd(a), syevd(a)         LAPACK's tridiagonal form, and eigenvectors, of a Hermitian a, in its place
stedc(d, e), sterf(d, e), laed4(d, z, rho, begin, end)     LAPACK's for tridiagonal matrices, given as the host's arrays
host_or(x, unknown)        x as NumPy's array, for decisions; `unknown` if arrays have no data
is_finite(x)               whether no element is infinite or NaN
take(x, rows, cols)        x[rows][:, cols]: a view where both are slices, else a copy
extract(x, rows, cols, target)   the same, copied to target
take_all(x, places)        many of these at once, for pairs (rows, cols)
put(x, rows, cols, source) the reverse of take
pick(x, rows, cols)        a copy of single elements, by row and column; place(x, rows, cols, source): the reverse
add_at(x, rows, source)    x[rows] += source; rows may repeat
uniform(rows, cols, key)   random numbers that depend on row, column and key alone
draw_part(rows, cols, draw) a new array of these rows and columns (index sets) of a random matrix, which draw.py describes
finish()                   wait until all work is done
lane()                     the number of the current stream
AT_ONCE                    elements of a piece, for work in pieces: few for a cache, many for few launches
bind_device()              a function for another thread to call, so that it uses this thread's device

and the work of neural networks' layers, each function one pass over memory where there is a kernel
for it (composed.py has the formulas):

gelu(x, slope, bias)       GeLU of each element of x + bias, and its derivative if `slope`
product_sums(x, y)         x y, element by element, and its sums over the rows
column_sums(x, y)          the sums over the rows of x y, and of x
sum_columns(x)             the sums over the rows of x
moments(x)                 each row's sum, and the sum of squares about its mean
recentre(squares, ...)     turns sums of squares about the mean of a rank's features into those about the mean of all
normalise(x, ...)          x less its rows' means, over their standard deviations, with gain and offset
row_sums(x, y, gain, out)  the sums of each row of x gain y, and of x gain
norm_gradient(dy, ...)     the gradient of normalise's input, from that of its result
exponentials(x, top, places, sums)   exp(x - top), its rows' sums, and one element of each row of x - top
softmax_gradient(powers, ...)        the gradient of cross-entropy, in place
softmax(scores, ...)       attention's weights, of the keys that each query sees
softmax_backward(scores, slopes, ...)   the weights again, and the gradient of the scores
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


def choose(number: int = 0) -> ModuleType:
    """Choose the module that PDLA_ARRAY names, and this thread's device.

    DeviceError, on this rank, if CuPy, a device, or the library that PDLA_BLAS names is missing.
    number: of this rank on its node. A node's ranks get its devices in turn.
    """
    if config.settings.blas:
        blas.load_library(config.settings.blas)
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
