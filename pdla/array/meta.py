"""Arrays without data, with a shape and a dtype only. Dry runs compute with them, at no cost whatever the size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial
from math import prod
from typing import Any, Protocol

import numpy as np

from pdla import config
from pdla.array import blas, composed, numpy
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
from pdla.indices import IndexSet, Selection

name = "meta"

ITERATED = 16  # numbers read or written in the time of a root for each pole, or of an eigenvalue for each other one


class Meter(Protocol):
    """A meter of the work that arrays with data would take, such as a `Clock`."""

    @property
    def at_once(self) -> int: ...

    def gemm(self, m: int, n: int, k: int, dtype: Any, count: int = 1, out: Any = None) -> None: ...

    def lapack(self, m: int, n: int, operations: float, dtype: Any) -> None: ...

    def touch(self, size: int, steps: int = 1) -> None: ...

    def erf(self, count: int, itemsize: int) -> None: ...


metered: ContextVar[Meter | None] = ContextVar("pdla_meter", default=None)


def __getattr__(name: str) -> Any:
    """Find AT_ONCE, which is the described machine's; without one, NumPy's."""
    if name != "AT_ONCE":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    meter = metered.get()
    return numpy.AT_ONCE if meter is None else meter.at_once


def _touch(*arrays: Any) -> None:
    """Report elementwise work that reads and writes these arrays to the meter."""
    meter = metered.get()
    if meter is not None:
        meter.touch(sum(x.nbytes for x in arrays))


@lru_cache(maxsize=1024)
def _ghost(shape: tuple[int, ...]) -> np.ndarray:
    """Make an array of this shape over one element of memory, so that NumPy finds the shape of x[key]."""
    return _seen_as(shape, (0,) * len(shape))


@lru_cache(maxsize=1024)
def _in_order(shape: tuple[int, ...]) -> np.ndarray:
    """Make the same with the strides of C order, so that NumPy finds the strides of views. Never read its elements."""
    return _seen_as(shape, [prod(shape[i + 1 :]) for i in range(len(shape))])


def _seen_as(shape: tuple[int, ...], strides: Sequence[int]) -> np.ndarray:
    try:
        return np.lib.stride_tricks.as_strided(np.empty(1, np.bool_), shape, strides, writeable=False)
    except (ValueError, OverflowError) as error:  # more bytes than there are addresses; for fewer NumPy raises MemoryError
        raise MemoryError(f"no array of {' x '.join(map(str, shape))} fits any memory") from error


@lru_cache(maxsize=4096)
def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        for shape in shapes:
            _ghost(shape)  # MemoryError, if NumPy refuses this shape for its size
        raise


class Meta(np.lib.mixins.NDArrayOperatorsMixin):
    """An array with a shape and a dtype, but no elements; NumPy's elementwise functions and operators on it give Metas.

    lying  an array (`_in_order`) with the strides that a view would have; None: C order, without gaps
    base   of a view: the array whose memory it would share, and which it keeps alive; else None
    """

    __slots__ = ("__weakref__", "base", "dtype", "lying", "shape")

    def __init__(
        self, shape: tuple[int, ...], dtype: Any = np.float64, lying: np.ndarray | None = None, base: Meta | None = None
    ) -> None:
        self.shape: tuple[int, ...] = tuple(map(int, shape))
        self.dtype: np.dtype = np.dtype(dtype)
        self.lying: np.ndarray | None = None if lying is None or lying.flags.c_contiguous else lying
        self.base: Meta | None = base if base is None or base.base is None else base.base

    @property
    def _view(self) -> np.ndarray:
        return _in_order(self.shape) if self.lying is None else self.lying

    @property
    def _half(self) -> Meta:
        """The real or the imaginary parts, a view; of a real array itself."""
        if self.dtype.kind != "c":
            return self
        view = _seen_as(self.shape, [2 * step for step in self._view.strides])
        return Meta(self.shape, np.empty(0, self.dtype).real.dtype, view, self)

    def __repr__(self) -> str:
        return f"Meta({self.shape}, {self.dtype})"

    ndim: property = property(lambda self: len(self.shape))
    size: property = property(lambda self: prod(self.shape))
    itemsize: property = property(lambda self: self.dtype.itemsize)
    nbytes: property = property(lambda self: prod(self.shape) * self.dtype.itemsize)
    strides: property = property(lambda self: tuple([self.dtype.itemsize * step for step in self._view.strides]))
    real: property = property(lambda self: self._half)
    imag: property = property(lambda self: self._half)
    T: property = property(lambda self: Meta(self.shape[::-1], self.dtype, self._view.T, self))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Meta:
        keys = key if isinstance(key, tuple) else (key,)
        if {*map(type, keys)} <= {slice}:
            view = self._view[key]
            return Meta(view.shape, self.dtype, view, self)
        return Meta(_ghost(self.shape)[key].shape, self.dtype)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, (Meta, np.ndarray)):
            _broadcast(self[key].shape, value.shape)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "at":
            return None
        if ufunc is np.matmul:
            a, b = inputs
            batch = _broadcast(a.shape[:-2], b.shape[:-2])
            if a.shape[-1] != b.shape[-2]:
                raise ValueError(f"cannot multiply {a} by {b}")
            made = Meta((*batch, a.shape[-2], b.shape[-1]), np.result_type(a.dtype, b.dtype))
            _gemm(a, b, made, prod(batch))
            return made
        if method != "__call__" or ufunc.nout != 1 or ufunc.signature:
            return NotImplemented
        shapes = [x.shape for x in inputs if isinstance(x, (Meta, np.ndarray))]
        # NumPy finds the dtype of the result from numbers and empty arrays.
        alike = (x if isinstance(x, (int, float, complex)) else np.empty(0, _dtype(x)) for x in inputs)
        made = Meta(_broadcast(*shapes), ufunc(*alike).dtype)
        (made,) = kwargs.get("out", (made,))  # x += y gives x itself
        _touch(made, *(x for x in inputs if isinstance(x, Meta)))
        return made

    def astype(self, dtype: Any, copy: bool = True) -> Meta:
        return Meta(self.shape, dtype)

    def reshape(self, *shape: int) -> Meta:
        known = prod([n for n in shape if n != -1])
        lengths = tuple([self.size // max(1, known) if n == -1 else n for n in shape])
        return Meta(lengths, self.dtype, base=self if self.lying is None else None)

    def transpose(self, *axes: int) -> Meta:
        return Meta(tuple(self.shape[axis] for axis in axes), self.dtype, self._view.transpose(axes), self)

    def sum(self, axis: int | None = None, keepdims: bool = False) -> Meta:
        _touch(self)
        if axis is None:
            return Meta((), self.dtype)
        axis, kept = range(self.ndim)[axis], (1,) if keepdims else ()
        return Meta((*self.shape[:axis], *kept, *self.shape[axis + 1 :]), self.dtype)

    max = prod = sum

    def __float__(self) -> float:
        return 0.0

    def copy(self) -> Meta:
        return Meta(self.shape, self.dtype)


def _dtype(x: Any) -> np.dtype:
    return x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype


def empty(shape: tuple[int, ...], dtype: Any) -> Meta:
    return Meta(shape, dtype)


def memory(size: int) -> None:
    """Do nothing: arrays without data need no memory."""


def view_memory(memory: None, shape: tuple[int, ...], dtype: Any) -> Meta:
    return Meta(shape, dtype)


def view_at(memory: Any, begin: int, shape: tuple[int, ...], dtype: Any) -> Meta:
    return Meta(shape, dtype)


def asarray(x: Any) -> Meta:
    return x if isinstance(x, Meta) else Meta(np.shape(x), _dtype(x))


def host(x: Meta) -> Meta:
    return x


def host_or(x: Meta, unknown: np.ndarray) -> np.ndarray:
    return unknown


def is_finite(x: Meta) -> bool:
    return True


def create(shape: tuple[int, ...], dtype: Any, fill: Callable[[Any], None]) -> Meta:
    return Meta(shape, dtype)


def is_contiguous(x: Meta) -> bool:
    """Whether the array with data would be in C order without gaps."""
    return x.lying is None


def copy(target: Meta, source: Meta, conjugate: bool = False) -> None:
    if target.shape != source.shape:
        raise ValueError(f"cannot copy {source} into {target}")
    if target.dtype != source.dtype and not np.can_cast(source.dtype, target.dtype, "same_kind"):
        raise TypeError(f"cannot copy {source} into {target} by the rule same_kind")
    _touch(target, source)


def copy_all(pairs: Iterable[tuple[Meta, Meta]]) -> None:
    for target, source in pairs:
        copy(target, source)


def land(target: Meta, box: Meta) -> None:
    """Copy a message from the box in which it has arrived."""
    copy(target, box)


def add(target: Meta, source: Meta) -> None:
    copy(target, source)


def maximum(target: Meta, source: Meta) -> None:
    copy(target, source)


def combine(target: Meta, beta: complex, source: Meta) -> None:
    copy(target, source)


def scale(target: Meta, beta: complex) -> None:
    pass


def take(x: Meta, rows: Selection, cols: Selection) -> Meta:
    if isinstance(rows, slice) and isinstance(cols, slice):
        return x[rows, cols]
    m, n = (
        len(range(length)[chosen]) if isinstance(chosen, slice) else len(chosen)
        for length, chosen in zip(x.shape, (rows, cols), strict=True)
    )
    return Meta((m, n), x.dtype)


def extract(x: Meta, rows: Selection, cols: Selection, target: Meta) -> None:
    copy(target, take(x, rows, cols))


def take_all(x: Meta, places: Iterable[tuple[Selection, Selection]]) -> list[Meta]:
    return [take(x, rows, cols) for rows, cols in places]


def put(x: Meta, rows: Selection, cols: Selection, source: Meta) -> None:
    copy(take(x, rows, cols), source)


def bind_put(x: Meta, rows: Selection, cols: Selection, source: Meta) -> Callable[[], None]:
    """Bind `put` with these arrays, as a function to call many times."""
    return partial(put, x, rows, cols, source)


def pick(x: Meta, rows: np.ndarray, cols: np.ndarray) -> Meta:
    return Meta(rows.shape, x.dtype)


def place(x: Meta, rows: np.ndarray, cols: np.ndarray, source: Any) -> None:
    pass


def add_at(target: Meta, rows: np.ndarray, source: Meta) -> None:
    pass


def reinterpret(x: Meta, conjugate: bool) -> Meta:
    return x


def gemm(
    a: Meta, b: Meta, c: Meta, alpha: complex = 1, beta: complex = 0, allocate: Callable[..., Meta] = empty, alike: bool = False
) -> None:
    if (a.shape[0], b.shape[1]) != c.shape or a.shape[1] != b.shape[0]:
        raise ValueError(f"cannot multiply {a} by {b} into {c}")
    if c.size and a.shape[1]:  # as pdla/array/numpy.py's gemm allocates extra memory
        besides = [allocate(x.shape, c.dtype) for x in (a, b) if not blas.can_take(x, c.dtype)]
        if not blas.can_add(a, b, c) and blas.needs_extra(c, beta):
            besides.append(allocate(c.shape, c.dtype))
    _gemm(a, b, c)


def prepare_stacks(x: Meta) -> Meta:
    """Return x itself, also 16-bit floats: a machine multiplies these at its own rate, as in `gemm`."""
    return x


def gemm_stacks(a: Meta, b: Meta, c: Meta, alpha: float = 1, beta: int = 0) -> None:
    _gemm(a, b, c, prod(c.shape[:-2]))


def _gemm(a: Meta, b: Meta, c: Meta, count: int = 1) -> None:
    meter = metered.get()
    if meter is not None:
        meter.gemm(c.shape[-2], c.shape[-1], a.shape[-1], a.dtype if a.dtype == b.dtype else c.dtype, count, c.dtype)


def can_square(a: Meta, c: Meta) -> bool:
    """Whether the arrays with data that PDLA_ARRAY names could be squared."""
    return config.settings.array == "numpy" and blas.can_square(a, c)


def square(a: Meta, c: Meta, alpha: complex) -> None:
    meter = metered.get()
    if meter is not None:
        meter.gemm(c.shape[0], (c.shape[1] + 1) // 2, a.shape[1], a.dtype, 1, c.dtype)


def _lapack(m: int, n: int, operations: float, dtype: Any) -> None:
    """Report operations on an m x n block that use each element m or n times, as in a product."""
    meter = metered.get()
    if meter is not None and m and n:
        meter.lapack(m, n, operations, dtype)


def potrf(a: Meta) -> tuple[int, float]:
    _lapack(len(a), len(a), len(a) ** 3 / 3, a.dtype)
    return 0, 0.0


def trtri(a: Meta) -> float:
    _lapack(len(a), len(a), len(a) ** 3 / 3, a.dtype)
    return 1.2  # as of random triangles: a tall matrix then takes two Gram matrices


def getrf(a: Meta, before: Meta) -> tuple[np.ndarray, int]:
    """Return pivots as of random elements: most are in rows below the top square."""
    (m, n), k = a.shape, min(a.shape)
    _lapack(m, n, 2 * m * n * k - (m + n) * k**2 + 2 * k**3 / 3, a.dtype)
    return np.minimum(np.arange(k) + n, max(0, m - 1)), 0


def geqrt(a: Meta) -> Meta:
    m, n = a.shape
    assert n <= m, f"geqrt of {m} x {n}: at most as many columns as rows"
    _lapack(m, n, 3 * m * n * n - n**3, a.dtype)
    return Meta((n, n), a.dtype)


def larft(gram: Meta, tau: Any) -> Meta:
    _lapack(len(tau), len(tau), len(tau) ** 3 / 3, gram.dtype)
    return Meta(gram.shape, gram.dtype)


def orhr_col(q: Meta) -> tuple[Meta, Meta, Meta, Meta]:
    _lapack(len(q), len(q), 5 * len(q) ** 3 / 3, q.dtype)
    return q.copy(), q.copy(), q.copy(), Meta(q.shape[:1], q.dtype)


def stedc(d: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, Meta]:
    n = len(d)
    _lapack(n, n, 4 * n**3 / 3, d.dtype)
    return d, Meta((n, n), d.dtype)


def sterf(d: np.ndarray, e: np.ndarray) -> np.ndarray:
    _scalar(ITERATED * len(d) ** 2, d.dtype)
    return d


def laed4(d: np.ndarray, z: np.ndarray, rho: float, begin: int, end: int) -> np.ndarray:
    _scalar(ITERATED * len(d) * (end - begin), d.dtype)
    return np.zeros(end - begin, d.dtype)


def _scalar(count: int, dtype: np.dtype) -> None:
    """Report iterations in cache, as the time of reading `count` numbers of a large array."""
    meter = metered.get()
    if meter is not None:
        meter.touch(count * dtype.itemsize)


def trsm(t: Meta, b: Meta, lower: bool, unit: bool = False, conjugate: bool = False) -> None:
    _lapack(len(t), b.shape[1], len(t) ** 2 * b.shape[1], b.dtype)


def bind_matvec(a: Meta, x: Meta, y: Meta, adjoint: bool) -> Callable[[], None]:
    """See `blas.bind_matvec`, which has no overhead; another array module's product has."""
    meter = metered.get()
    if meter is not None and config.settings.array == "numpy":
        return partial(meter.touch, a.nbytes, 0)
    return partial(_gemm, a.T if adjoint else a, x, y)


def larfg(x: Meta) -> tuple[float, complex]:
    _touch(x, x)
    return 0.0, 0.0


def sytrd(a: Meta) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Report the work: half of it is products with vectors, each of which reads a triangle."""
    n, real, meter = len(a), a.real.dtype, metered.get()
    _lapack(n, n, 2 * n**3 / 3, a.dtype)
    if meter is not None:
        meter.touch(n**3 // 6 * a.itemsize)
    return np.zeros(n, real), np.zeros(max(0, n - 1), real), np.zeros(max(0, n - 1), a.dtype)


def syevd(a: Meta) -> np.ndarray:
    d, e, _ = sytrd(a)
    w, _ = stedc(d, e)
    _lapack(len(a), len(a), 2 * len(a) ** 3, a.dtype)
    return w


def erf(x: Meta) -> Meta:
    meter = metered.get()
    if meter is not None:
        meter.erf(x.size, x.itemsize)
    return Meta(x.shape, x.dtype)


def gelu(x: Meta, slope: bool, bias: Meta | None = None) -> tuple[Meta, Meta | None]:
    return composed.gelu(x, slope, bias, erf)


def uniform(rows: np.ndarray, cols: np.ndarray, key: int) -> Meta:
    made = Meta((len(rows), len(cols)), np.float64)
    _touch(made)
    return made


def draw_part(rows: IndexSet, cols: IndexSet, draw: Draw) -> Meta:
    return Meta((len(rows), len(cols)), draw.dtype)


def make_leading_positive(x: Meta) -> None:
    _touch(x, x)


def finish() -> None:
    """Return: there is nothing to wait for."""


def lane() -> int:
    """Return 0: there are no streams."""
    return 0


def overlap(x: Meta, y: Meta) -> bool:
    return x is y
