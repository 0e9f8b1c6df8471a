"""NumPy arrays: allocation, copying, and the local GEMM, which BLAS accumulates in place."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import cache, partial
from math import gcd, prod
from typing import Any

import numpy as np

from pdla import config
from pdla.array import blas, composed, strips
from pdla.array.blas import bind_matvec, can_square, square
from pdla.array.composed import (
    column_sums,
    exponentials,
    moments,
    norm_gradient,
    normalise,
    product_sums,
    recentre,
    row_sums,
    softmax,
    softmax_backward,
    softmax_gradient,
    sum_columns,
)
from pdla.array.draw import Draw
from pdla.array.lapack import geqrt, getrf, laed4, larfg, larft, orhr_col, potrf, stedc, sterf, syevd, sytrd, trsm, trtri
from pdla.indices import IndexSet, Selection

name = "numpy"

AT_ONCE = 1 << 18  # elements: results of a piece are still in a cache when they are used
TURNED, ROWS = 2**12, 32  # elements of a matrix that is transposed in strips, and the rows of a strip
STRIP = 2**16  # elements that are converted at a time for sums in another dtype


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.empty(shape, dtype)


def memory(size: int) -> np.ndarray:
    """Allocate `size` bytes, for `view_memory` and `view_at`."""
    return np.empty(size, np.uint8)


def give_back() -> None:
    """Return freed memory to the system, which the allocator keeps: glibc's keeps arrays below 32 MB."""
    if (trim := getattr(_libc(), "malloc_trim", None)) is not None:
        trim(0)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)


def view_memory(memory: np.ndarray, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """View the start of memory as an array. All views of it have the same `base`, which lives as long as any of them."""
    dtype = np.dtype(dtype)
    return np.frombuffer(memory.data, np.uint8, prod(shape) * dtype.itemsize).view(dtype).reshape(shape)


def view_at(memory: np.ndarray, begin: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """View memory from byte `begin` on as an array."""
    return np.ndarray(shape, dtype, memory, begin)


def view_address(address: int, shape: tuple[int, int], dtype: np.dtype, strides: tuple[int, int]) -> np.ndarray:
    """View memory at an address as an array, which does not own it; strides in bytes, none below 0."""
    if not prod(shape):
        return np.empty(shape, dtype)
    size = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + dtype.itemsize
    memory: Any = (ctypes.c_char * size).from_address(address)
    return np.ndarray(shape, dtype, memory, 0, strides)


def has_no_overlap(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether no two elements of a non-empty matrix share an address."""
    (rows, cols), (down, across) = shape, map(abs, strides)
    common = gcd(down, across) or 1
    return rows <= across // common or cols <= down // common


def asarray(x: Any) -> np.ndarray:
    return np.asarray(x)


def host(x: np.ndarray) -> np.ndarray:
    """`x` as NumPy's array."""
    return x


def host_or(x: np.ndarray, unknown: np.ndarray) -> np.ndarray:
    """`x` as NumPy's array, for decisions by its elements; for arrays without data `unknown` instead."""
    return x


def is_finite(x: np.ndarray) -> bool:
    """Whether no element is infinite or NaN."""
    rows = max(1, AT_ONCE // max(1, x[:1].size))
    return all(bool(np.isfinite(x[lo : lo + rows]).all()) for lo in range(0, len(x), rows))


def create(shape: tuple[int, ...], dtype: Any, fill: Callable[[np.ndarray], None]) -> np.ndarray:
    """Create an array, and let `fill` write its elements."""
    x = np.empty(shape, dtype)
    fill(x)
    return x


def is_contiguous(x: np.ndarray) -> bool:
    """Whether x is in C order without gaps, as messages are."""
    return x.flags.c_contiguous


def copy(target: np.ndarray, source: np.ndarray, conjugate: bool = False) -> None:
    if conjugate:
        np.conjugate(source, out=target, casting="same_kind")
    elif target.ndim == 2 and target.size > TURNED and _by_columns(target) != _by_columns(source):
        for lo in range(0, len(target), ROWS):  # else each line of the target leaves the cache before its next element
            np.copyto(target[lo : lo + ROWS], source[lo : lo + ROWS], casting="same_kind")
    else:
        np.copyto(target, source, casting="same_kind")


def _by_columns(x: np.ndarray) -> bool:
    return x.strides[0] < x.strides[1]


def copy_all(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
    """Copy each pair's source into its target, which has its shape and dtype."""
    for target, source in pairs:
        np.copyto(target, source)


def land(target: np.ndarray, box: np.ndarray) -> None:
    """Copy a message from the box in which it has arrived."""
    copy(target, box)


def add(target: np.ndarray, source: np.ndarray) -> None:
    np.add(target, source, out=target)


def maximum(target: np.ndarray, source: np.ndarray) -> None:
    np.maximum(target, source, out=target)


def combine(target: np.ndarray, beta: complex, source: np.ndarray) -> None:
    """`target = beta * target + source`, in source's dtype. With beta = 0 target is not read: its NaN vanish."""
    if beta == 0:
        copy(target, source)
    elif target.dtype != source.dtype:
        rows = max(1, STRIP // max(1, target[:1].size))
        for strip in (slice(lo, lo + rows) for lo in range(0, len(target), rows)):
            copy(target[strip], target[strip].astype(source.dtype) * source.dtype.type(beta) + source[strip])
    else:
        scale(target, beta)
        add(target, source)


def scale(target: np.ndarray, beta: complex) -> None:
    if beta == 0:
        target.fill(0)
    elif beta != 1:
        np.multiply(target, target.dtype.type(beta), out=target)


def take(x: np.ndarray, rows: Selection, cols: Selection) -> np.ndarray:
    if isinstance(rows, slice) and isinstance(cols, slice):
        return x[rows, cols]
    found = strips.find(x, rows, cols)
    if found is not None:
        part = np.empty(found.shape, x.dtype)
        found.extract(part)
        return part
    if x.strides[0] < x.strides[1]:  # a transpose: ndarray.take would copy its whole rows first
        return np.ascontiguousarray(_take_listed(x.T, cols, rows).T)
    return _take_listed(x, rows, cols)


def _take_listed(x: np.ndarray, rows: Selection, cols: Selection) -> np.ndarray:
    """Take a part by lists, in C order, as messages need it: NumPy's x[:, cols] is in Fortran order."""
    return x[:, cols][rows] if isinstance(cols, slice) else x[rows].take(cols, axis=1)


def extract(x: np.ndarray, rows: Selection, cols: Selection, target: np.ndarray) -> None:
    """`target = x[rows][:, cols]`."""
    sliced = isinstance(rows, slice) and isinstance(cols, slice)
    if not sliced and (found := strips.find(x, rows, cols)) is not None:
        found.extract(target)
    else:
        copy(target, take(x, rows, cols))


def take_all(x: np.ndarray, places: Iterable[tuple[Selection, Selection]]) -> list[np.ndarray]:
    return [take(x, rows, cols) for rows, cols in places]


def put(x: np.ndarray, rows: Selection, cols: Selection, source: np.ndarray) -> None:
    if isinstance(rows, slice) and isinstance(cols, slice):
        x[rows, cols] = source
    elif (found := strips.find(x, rows, cols)) is not None:
        copy_all(found.pairs_with(source))
    elif isinstance(rows, slice) or isinstance(cols, slice):
        x[rows, cols] = source
    else:
        x[np.ix_(rows, cols)] = source


def bind_put(x: np.ndarray, rows: Selection, cols: Selection, source: np.ndarray) -> Callable[[], None]:
    """Bind `put` with these arrays, as a function to call many times."""
    if isinstance(rows, slice) and isinstance(cols, slice):
        return partial(copy, x[rows, cols], source)
    if (found := strips.find(x, rows, cols)) is not None:
        return partial(copy_all, [*found.pairs_with(source)])
    return partial(put, x, rows, cols, source)


def pick(x: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    """Copy single elements, by row and column, one after another."""
    return x[rows, cols]


def place(x: np.ndarray, rows: np.ndarray, cols: np.ndarray, source: Any) -> None:
    """Write single elements, by row and column: from an array, or one number to all."""
    x[rows, cols] = source


def add_at(target: np.ndarray, rows: np.ndarray, source: np.ndarray) -> None:
    """target[rows[i]] += source[i] for each i, where rows may repeat."""
    np.add.at(target, rows, source)


def reinterpret(x: np.ndarray, conjugate: bool) -> np.ndarray:
    """x, or a conjugated copy of it."""
    return np.conjugate(x) if conjugate and np.iscomplexobj(x) else x


def gemm(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, alpha: complex = 1, beta: complex = 0, allocate: Callable[..., np.ndarray] = empty,
    alike: bool = False,
) -> None:
    """`c = alpha a b + beta c` for a (m, k), b (k, n), c (m, n), any strides; beta = 0 never reads c.

    a and b have one dtype. c has theirs or, for 16-bit floats, float32.

    allocate  allocates an array (shape, dtype) for the copy of a factor, or a product that cannot be added in place
    alike     c has the same bits for any addresses of factors: NumPy rounds a a^T differently from a b^T with a copy b of a
    """
    # NumPy has the same BLAS as SciPy, at a fifth of a call's cost.
    numpys = alpha == 1 and beta == 0 and not (alike or config.settings.blas)
    if numpys and blas.are_plain(a, b, c):  # most products; small ones are spared the checks below
        np.matmul(a, b, out=c)
        return
    if c.size == 0:
        return
    if a.shape[1] == 0 or alpha == 0:
        scale(c, beta)
        return
    a, b = (x if blas.can_take(x, c.dtype) else _copy_factor(x, c.dtype, allocate) for x in (a, b))
    if numpys and blas.can_add(a, b, c):
        np.matmul(a, b, out=c)
        return
    if blas.gemm(a, b, c, alpha, beta, alike):
        return
    product = allocate(c.shape, c.dtype) if blas.needs_extra(c, beta) else c
    np.matmul(a, b, out=product)
    scale(product, alpha)
    if product is not c:
        combine(c, beta, product)


def prepare_stacks(x: np.ndarray) -> np.ndarray:
    """Prepare stacks of matrices as factors for `gemm_stacks`: in a dtype that BLAS multiplies."""
    return composed.widen(x)


def gemm_stacks(a: np.ndarray, b: np.ndarray, c: np.ndarray, alpha: float = 1, beta: int = 0) -> None:
    """`c = alpha a b + beta c` for each matrix of stacks (p, q, m, k), (p, q, k, n), (p, q, m, n); beta is 0 or 1."""
    a = a if alpha == 1 else a * a.dtype.type(alpha)
    product = np.matmul(a, b, out=None if beta or c.dtype != a.dtype else c)
    if product is not c:
        np.copyto(c, product + c if beta else product, casting="same_kind")


def _copy_factor(x: np.ndarray, dtype: np.dtype, allocate: Callable[..., np.ndarray]) -> np.ndarray:
    """Copy x in its own order, as a message does: BLAS adds in an order that depends on it."""
    made = allocate(x.shape, dtype)
    if abs(x.strides[0]) < abs(x.strides[1]):
        made = made.reshape(x.shape[::-1]).T
    copy(made, x)
    return made


def erf(x: np.ndarray) -> np.ndarray:
    """The error function of each element."""
    from scipy.special import erf

    return erf(x)


def gelu(x: np.ndarray, slope: bool, bias: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None]:
    """GeLU of each element of x + bias, and its derivative if `slope`, else None. With a bias x is spent."""
    return composed.gelu(x, slope, bias, erf)


def uniform(rows: np.ndarray, cols: np.ndarray, key: int) -> np.ndarray:
    """Draw a number from [0, 1) for each row and column, which depends on these and the key alone: splitmix64's mixing."""
    keyed = _mix(rows.astype(np.uint64) + mix_key(key))
    return (_mix(keyed[:, None] + cols.astype(np.uint64) * _GOLDEN) >> np.uint64(11)) * 2.0**-53


def mix_key(key: int) -> np.uint64:
    """Mix the key to the number that `uniform` adds to rows."""
    return _mix(np.array([key % 2**64], np.uint64))[0]


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        x = x * _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def draw_part(rows: IndexSet, cols: IndexSet, draw: Draw) -> np.ndarray:
    """Draw these rows and columns of a random matrix."""
    return create((len(rows), len(cols)), draw.dtype, lambda x: draw.fill(x, rows, cols))


def to_bytes(x: np.ndarray) -> bytes:
    """The bytes of x's elements, without the unused ones of x86's long doubles."""
    x = np.ascontiguousarray(x)
    if x.dtype.char not in "gG" or np.finfo(np.longdouble).nmant != 63:
        return x.tobytes()
    x = x.astype(x.dtype.newbyteorder("="), copy=False)  # in the other byte order the unused bytes are the first
    return x.view(np.longdouble).view(np.uint8).reshape(-1, np.dtype(np.longdouble).itemsize)[:, :10].tobytes()


def make_leading_positive(x: np.ndarray) -> None:
    """Scale each column by a factor of absolute value 1, so that the first of its large elements is positive.

    Large elements have at least LEADING of the largest size: rounding cannot choose between two of
    equal size.
    """
    cols = max(1, AT_ONCE // max(1, len(x)))
    for part in (x[:, lo : lo + cols] for lo in range(0, x.shape[1] if x.size else 0, cols)):
        part *= composed.conjugate_phases(np, part)


def finish() -> None:
    """Return when all work is done, which is always so here."""


def lane() -> int:
    """The number of the current stream; here 0."""
    return 0


def bind_device() -> Callable[[], None]:
    """Bind this thread's device: a function for another thread to call, which then uses it. Here it does nothing."""
    return finish


def overlap(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether two arrays share any element in memory; True, too, if the search would take too long."""
    return np.may_share_memory(x, y, max_work=10_000)  # type: ignore[arg-type]
