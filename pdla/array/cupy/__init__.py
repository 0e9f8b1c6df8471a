"""CuPy arrays: the functions of pdla/array/numpy.py on a GPU.

The local GEMM is cuBLAS's; copies are made by pack.py, the work of neural networks' layers is in
fused.py, random matrices are in philox.py.

All functions return as soon as their work is on CuPy's current stream. A thread uses one device,
which `use` chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from math import prod
from types import SimpleNamespace
from typing import Any

import cupy
import numpy as np

from pdla import config
from pdla.array import blas, composed, numpy
from pdla.array.cupy.cusolver import geqrt, getrf, laed4, larfg, larft, orhr_col, potrf, stedc, sterf, syevd, sytrd, trsm, trtri
from pdla.array.cupy.fused import (
    add_at,
    column_sums,
    erf,
    exponentials,
    gelu,
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
    uniform,
)
from pdla.array.cupy.launch import cublas
from pdla.array.cupy.pack import WORDS, Move, kernel_for, pack, rectangle
from pdla.array.cupy.philox import draw_part
from pdla.errors import DeviceError
from pdla.indices import Selection

name = "cupy"

AT_ONCE = 1 << 26  # elements: for smaller pieces launches would take longer than the work

_NOT_READY = 600  # cudaErrorNotReady
_WIDE = 16  # CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION


def use(number: int) -> None:
    """Let the calling thread use this machine's device `number`, modulo their count; DeviceError if there is none."""
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"PDLA_ARRAY=cupy, but CuPy finds no GPU here ({error}): does nvidia-smi list one?") from error
    cupy.cuda.Device(number % count).use()


def bind_device() -> Callable[[], Any]:
    """Bind this thread's device: a function for another thread to call, which then uses it."""
    return cupy.cuda.Device().use


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    return cupy.empty(shape, dtype)


def memory(size: int) -> Any:
    return cupy.empty(size, np.uint8)


def view_memory(memory: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """View the start of memory as an array. All views of it have it as their `base`, and keep it alive."""
    return cupy.ndarray(shape, dtype, memory.data)


def view_at(memory: Any, begin: int, shape: tuple[int, ...], dtype: Any) -> Any:
    return cupy.ndarray(shape, dtype, memory.data + begin)


def empty_pinned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Allocate an array in pinned host memory, which the device can read and write, too."""
    memory = cupy.cuda.alloc_pinned_memory(max(1, prod(shape) * np.dtype(dtype).itemsize))
    return np.ndarray(shape, dtype, memory)


def asarray(x: Any) -> Any:
    return cupy.asarray(x)


def from_dlpack(x: Any) -> Any:
    """View another library's array on a GPU as one of CuPy's."""
    return cupy.from_dlpack(x)


def host(x: Any) -> np.ndarray:
    return cupy.asnumpy(x)


def host_or(x: Any, unknown: np.ndarray) -> np.ndarray:
    return cupy.asnumpy(x)


def is_finite(x: Any) -> bool:
    return bool(cupy.isfinite(x).all())


def create(shape: tuple[int, ...], dtype: Any, fill: Callable[[np.ndarray], None]) -> Any:
    return cupy.asarray(numpy.create(shape, dtype, fill))


def is_contiguous(x: Any) -> bool:
    return x.flags.c_contiguous


# ---------------------------------------------------------------------------------------------- copies


def copy(target: Any, source: Any, conjugate: bool = False) -> None:
    move = rectangle(target, source)
    kernel = kernel_for(target.dtype, source.dtype, conjugate and source.dtype.kind == "c")
    if move is not None and kernel:
        pack(kernel, [move], conjugate)
    else:
        cupy.copyto(target, cupy.conjugate(source) if conjugate else source, casting="same_kind")


def copy_all(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Make copies, also from and to pinned arrays, as many in a launch as fit."""
    by_kernel: dict[str, list[Move]] = {}
    for target, source in pairs:
        move = rectangle(target, source)
        if move is None:  # more than two dimensions, and gaps
            source = cupy.ascontiguousarray(cupy.asarray(source))
            move = rectangle(target, source)
        if move is None:
            target[...] = source
        else:
            by_kernel.setdefault(WORDS[target.dtype.itemsize], []).append(move)
    for kernel, moves in by_kernel.items():
        pack(kernel, moves)


def land(target: Any, box: Any, after: Any = None, last: bool = True) -> None:
    """Copy a message from the box in which it has arrived.

    A copy from a pinned box waits for the event `after`, not for later work on the current stream.
    last: return when all copies from the box are done.
    """
    if not isinstance(box, np.ndarray):
        copy(target, box)
        return
    with use_stream("landing", after or mark()) as stream:
        copy_all([(target, box)])
        if last:
            stream.synchronize()


class Mark:
    """An event on the current stream, recorded as it is made."""

    def __init__(self) -> None:
        self.event: Any = cupy.cuda.Event(disable_timing=True)
        self.event.record()

    @property
    def done(self) -> bool:
        """Whether all work before the event is done. Raises the error if the device has failed, which CuPy's `done` does not."""
        status = cupy.cuda.runtime.eventQuery(self.event.ptr)
        if status not in (0, _NOT_READY):
            cupy.cuda.runtime.check_status(status)
        return status == 0


def mark() -> Mark:
    """Record an event, which is `done` when all work on the current stream so far is. Any thread may ask."""
    return Mark()


@contextmanager
def use_stream(use: str, after: Any) -> Iterator[Any]:
    """A with-block with the stream of this `use` as the current one, whose work waits for the event `after`."""
    before, stream = cupy.cuda.get_current_stream(), _stream(use, cupy.cuda.runtime.getDevice())
    stream.use()  # not CuPy's with-block, which would not restore a stream that the program has made current by `use`
    try:
        stream.wait_event(after.event)
        yield stream
    finally:
        before.use()


@cache
def _stream(use: str, device: int) -> Any:
    return cupy.cuda.Stream(non_blocking=True)


def bus() -> str:
    """The PCI bus id of the calling thread's device, unique on its machine."""
    return cupy.cuda.Device().pci_bus_id


def add(target: Any, source: Any) -> None:
    cupy.add(target, source.astype(target.dtype, copy=False), out=target)


def maximum(target: Any, source: Any) -> None:
    cupy.maximum(target, source, out=target)


def combine(target: Any, beta: complex, source: Any) -> None:
    """`target = beta * target + source`, in source's dtype. With beta = 0 target is not read: its NaN vanish."""
    move, kernel = rectangle(target, source), kernel_for(target.dtype, source.dtype, True)
    if beta == 0:
        copy(target, source)
    elif move is not None and kernel:
        pack(kernel, [move], beta=beta)
    else:
        copy(target, target.astype(source.dtype) * source.dtype.type(beta) + source)


def scale(target: Any, beta: complex) -> None:
    if beta == 0:
        target.fill(0)
    elif beta != 1:
        cupy.multiply(target, target.dtype.type(beta), out=target)


def take(x: Any, rows: Selection, cols: Selection) -> Any:
    return take_all(x, [(rows, cols)])[0]


def extract(x: Any, rows: Selection, cols: Selection, target: Any) -> None:
    copy(target, take(x, rows, cols))


def take_all(x: Any, places: Iterable[tuple[Selection, Selection]]) -> list[Any]:
    taken, moves = [], []
    for rows, cols in places:
        part, at = _part(x, rows, cols)
        if at is not None:
            m, n = part.shape
            shape = m if at[0] is None else len(at[0]), n if at[1] is None else len(at[1])
            moves.append(Move(cupy.empty(shape, x.dtype), part, at=at))
            part = moves[-1].target
        taken.append(part)
    pack(WORDS[x.dtype.itemsize], moves)
    return taken


def put(x: Any, rows: Selection, cols: Selection, source: Any) -> None:
    part, at = _part(x, rows, cols)
    if at is None:
        copy(part, source)
    else:
        pack(WORDS[x.dtype.itemsize], [Move(part, source.astype(x.dtype, copy=False), to=at)])


def _part(x: Any, rows: Selection, cols: Selection) -> tuple[Any, tuple[Any, Any] | None]:
    """Cut `x` by the slices among rows and cols; also return the lists (rows, cols) of positions, None if there are none."""
    if isinstance(rows, slice) and isinstance(cols, slice):
        return x[rows, cols], None
    if isinstance(rows, slice):
        return x[rows], (None, cols)
    return (x[:, cols], (rows, None)) if isinstance(cols, slice) else (x, (rows, cols))


def bind_put(x: Any, rows: Selection, cols: Selection, source: Any) -> Callable[[], None]:
    """Bind `put` with these arrays, as a function to call many times."""
    return partial(put, x, rows, cols, source)


def pick(x: Any, rows: np.ndarray, cols: np.ndarray) -> Any:
    return x[cupy.asarray(rows), cupy.asarray(cols)]


def place(x: Any, rows: np.ndarray, cols: np.ndarray, source: Any) -> None:
    x[cupy.asarray(rows), cupy.asarray(cols)] = source


def reinterpret(x: Any, conjugate: bool) -> Any:
    """x, or a conjugated copy of it."""
    return cupy.conjugate(x) if conjugate and x.dtype.kind == "c" else x


# ---------------------------------------------------------------------------------------------- products


def gemm(
    a: Any, b: Any, c: Any, alpha: complex = 1, beta: complex = 0, allocate: Callable[..., Any] = empty, alike: bool = False
) -> None:
    """`c = alpha a b + beta c` for a (m, k), b (k, n), c (m, n), any strides; beta = 0 never reads c.

    a and b have one dtype. c has theirs or, for 16-bit floats, float32, in which those are summed.

    allocate  allocates an array (shape, dtype) for a product that cuBLAS cannot make
    alike     ignored: cuBLAS does not notice that two factors are the same
    """
    if c.size == 0:
        return
    if a.shape[1] == 0 or alpha == 0:
        scale(c, beta)
    elif not _multiply(a, b, c, alpha, beta):
        product = allocate(c.shape, c.dtype)
        cupy.matmul(a.astype(c.dtype, copy=False), b.astype(c.dtype, copy=False), out=product)
        scale(product, alpha)
        combine(c, beta, product)


def bind_matvec(a: Any, x: Any, y: Any, adjoint: bool) -> Callable[[], None]:
    """Bind `y += a x`, or a^H x, for x and y of one column, as a function to call many times."""
    if not adjoint or a.dtype.kind != "c":
        return partial(gemm, a.T if adjoint else a, x, y, 1, 1)

    def multiply() -> None:
        product = empty(y.shape, y.dtype)
        gemm(a.T, cupy.conjugate(x), product)
        add(y, cupy.conjugate(product))

    return multiply


def can_square(a: Any, c: Any) -> bool:
    """False: gemm, on a triangle that is halved recursively, is as fast."""
    return False


@cache
def _types(factor: np.dtype, sum_: np.dtype, tf32: bool) -> tuple[int, int, str, int] | None:
    """CuBLAS's types of the factors and of the result, the scalars' dtype, and the compute type.

    None if cuBLAS has no such product.
    """
    runtime, factors, sums = cupy.cuda.runtime, str(factor), str(sum_)
    fast = tf32 and factors in ("float32", "complex64")
    single = cublas().CUBLAS_COMPUTE_32F_FAST_TF32 if fast else cublas().CUBLAS_COMPUTE_32F
    singles = {"float16": runtime.CUDA_R_16F, "bfloat16": runtime.CUDA_R_16BF, "float32": runtime.CUDA_R_32F}
    if factors in singles and sums in (factors, "float32"):
        return singles[factors], singles[sums], "f", single
    wider = {
        "float64": (runtime.CUDA_R_64F, "d", cublas().CUBLAS_COMPUTE_64F),
        "complex64": (runtime.CUDA_C_32F, "F", single),
        "complex128": (runtime.CUDA_C_64F, "D", cublas().CUBLAS_COMPUTE_64F),
    }
    if factors != sums or factors not in wider:
        return None
    kind, scalar, computed = wider[factors]
    return kind, kind, scalar, computed


def _multiply(a: Any, b: Any, c: Any, alpha: complex, beta: complex) -> bool:
    """`c = alpha a b + beta c` by cuBLAS, as c^T = b^T a^T in Fortran order. False, and nothing done, if it cannot."""
    kind, into = a.dtype, blas.orientation(c)
    types = _types(kind, c.dtype, config.settings.tf32)
    if types is None or into is None or kind != b.dtype:
        return False
    if into[0] == b"T":
        a, b, c = b.T, a.T, c.T
    (a, how_a), (b, how_b), (m, n), k = _orient(a), _orient(b), c.shape, a.shape[1]
    if max(m, n, k, how_a[1], how_b[1], into[1]) > blas.LIMIT:
        return False
    factors, sums, scalar, computed = types
    both, at = blas.box_scalars(alpha, beta, scalar)
    library, handle = cublas(), cupy.cuda.device.get_cublas_handle()
    turn = {b"N": library.CUBLAS_OP_N, b"T": library.CUBLAS_OP_T}
    with _wide_sums(library, handle) if c.itemsize == 2 else nullcontext():
        library.gemmEx(
            handle, turn[how_b[0]], turn[how_a[0]], n, m, k,
            at, b.data.ptr, factors, how_b[1], a.data.ptr, factors, how_a[1],
            at + both.itemsize, c.data.ptr, sums, into[1], computed, library.CUBLAS_GEMM_DEFAULT,
        )
    return True


def prepare_stacks(x: Any) -> Any:
    """Prepare stacks of matrices as factors for `gemm_stacks`: x itself, or a copy if cuBLAS cannot find its matrices."""
    return cupy.ascontiguousarray(x) if _orient_stacks(x) is None else x


def gemm_stacks(a: Any, b: Any, c: Any, alpha: float = 1, beta: int = 0) -> None:
    """`c = alpha a b + beta c` for each matrix of stacks (p, q, m, k), (p, q, k, n), (p, q, m, n); beta is 0 or 1.

    a and b have one dtype; c has theirs or that of its sums, for floats.
    """
    if c.size == 0 or a.shape[-1] == 0:
        scale(c, beta)
        return
    (p, q, m, n), k = c.shape, a.shape[-1]
    lying_a, lying_b, lying_c = (_orient_stacks(x) for x in (a, b, c))
    if lying_a is None or lying_b is None:
        gemm_stacks(prepare_stacks(a), prepare_stacks(b), c, alpha, beta)
        return
    if lying_c is None or lying_c[0][0] == b"T":
        product = empty(c.shape, c.dtype)
        gemm_stacks(a, b, product, alpha)
        add(c, product) if beta else cupy.copyto(c, product)
        return
    (how_a, step_a), (how_b, step_b), (how_c, step_c) = lying_a, lying_b, lying_c
    types = _types(a.dtype, c.dtype, config.settings.tf32)
    assert types is not None, f"cuBLAS has no product of {a.dtype} in {c.dtype}"
    factors, sums, scalar, computed = types
    both, at = blas.box_scalars(alpha, beta, scalar)
    library, handle = cublas(), cupy.cuda.device.get_cublas_handle()
    turn = {b"N": library.CUBLAS_OP_N, b"T": library.CUBLAS_OP_T}
    with _wide_sums(library, handle) if c.itemsize == 2 else nullcontext():
        library.gemmStridedBatchedEx(
            handle, turn[how_b[0]], turn[how_a[0]], n, m, k,
            at, b.data.ptr, factors, how_b[1], step_b, a.data.ptr, factors, how_a[1], step_a,
            at + both.itemsize, c.data.ptr, sums, how_c[1], step_c, p * q, computed, library.CUBLAS_GEMM_DEFAULT,
        )


def _orient_stacks(x: Any) -> tuple[tuple[bytes, int], int] | None:
    """Find the `orientation` of a stack's matrices, and the elements from each to the next; None if no one number leads to all.

    Of several stacks in one array it is that of each.
    """
    (p, q), (outer, inner) = x.shape[-4:-2], x.strides[-4:-2]
    how = blas.orientation(x[(0,) * (x.ndim - 2)])
    if how is None or (p > 1 and q > 1 and outer != q * inner):
        return None
    return how, (inner if q > 1 else outer) // x.itemsize


@contextmanager
def _wide_sums(library: Any, handle: int) -> Iterator[None]:
    """A with-block in which cuBLAS must add parts of sums in float32 before it rounds them to 16-bit floats."""
    mode = library.getMathMode(handle)
    library.setMathMode(handle, mode | _WIDE)
    try:
        yield
    finally:
        library.setMathMode(handle, mode)


def _orient(x: Any) -> tuple[Any, tuple[bytes, int]]:
    """Return x, or a copy if it has no unit stride, and its `orientation`."""
    how = blas.orientation(x)
    if how is None:
        x = cupy.ascontiguousarray(x)
        how = b"N", x.shape[1]
    return x, how


# ---------------------------------------------------------------------------------------------- the rest


def make_leading_positive(x: Any) -> None:
    """As for NumPy's arrays."""
    if x.size:
        x *= composed.conjugate_phases(cupy, x)


def finish() -> None:
    """Return when all work on the current stream is done."""
    cupy.cuda.get_current_stream().synchronize()


def lane() -> int:
    """The number of the current stream, unique while the stream lives."""
    return cupy.cuda.get_current_stream().ptr


def overlap(x: Any, y: Any) -> bool:
    """Whether two arrays share any element in memory; True, too, if the search would take too long."""
    return bool(x.size and y.size) and numpy.overlap(_outline(x), _outline(y))


def _outline(x: Any) -> np.ndarray:
    """Make a NumPy array with x's addresses and strides, so that NumPy can compare memory. Never read its elements."""
    where = {"data": (x.data.ptr, False), "shape": x.shape, "strides": x.strides, "typestr": f"|V{x.itemsize}", "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=where))
