"""A stand-in for CuPy on a machine without a GPU: the part of it that pdla/array/cupy uses, over NumPy.

Like CuPy's, its arrays refuse to become NumPy's implicitly, or to be mixed with them in an operation. Kernels are those of
cuda/, compiled for the CPU; cuBLAS is NumPy's product of the memory that a call describes. A kernel runs as late as its stream
allows, when something waits for it, or an event after it has been polled often; so code that reads a result too early, or frees
memory too early, finds poison. Put this folder first on PYTHONPATH. It cannot tell whether anything is fast.
"""

import ctypes
import os
import sys
import threading
import weakref
from collections import Counter, deque
from functools import partial
from types import ModuleType, SimpleNamespace

import numpy as np
from helpers.cuda_host import launch

__version__ = "stand-in"
DEVICES = int(os.environ.get("STANDIN_DEVICES", "1"))
QUICK = bool(os.environ.get("STANDIN_QUICK"))
MPI = os.environ.get("STANDIN_MPI", "aware")
POISON = 0x5A  # of fresh memory
CALLS = Counter()  # what the device has been asked for, by name: kernels, products, functions of CuPy's, copies


def _down(x):
    """NumPy's array of one of ours, in whatever is around it; TypeError for an array of NumPy's own."""
    if isinstance(x, ndarray):
        return x._x
    if isinstance(x, np.ndarray) and x.ndim:
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(x, (list, tuple)):
        return type(x)(map(_down, x))
    return x


def _up(x):
    if isinstance(x, (np.ndarray, np.generic)):
        return ndarray._of(np.asarray(x))
    return type(x)(map(_up, x)) if isinstance(x, (list, tuple)) else x


def _known(dtype):
    """The dtype; ValueError if CuPy does not have it."""
    foreign = dtype.kind == "V" and dtype.type is not np.void and dtype.name != "bfloat16"
    if not dtype.isnative or dtype.char in "gG" or foreign:
        raise ValueError(f"Unsupported dtype {dtype}")
    return dtype


class Pointer:
    """Where memory begins."""

    def __init__(self, held, ptr):
        self.held, self.ptr = held, ptr

    def __add__(self, more):
        return Pointer(self.held, self.ptr + more)


class ndarray(np.lib.mixins.NDArrayOperatorsMixin):
    def __init__(self, shape, dtype=float, memptr=None):
        dtype = _known(np.dtype(dtype))
        if memptr is None:
            self._raw = np.empty(shape, dtype)
            self._raw.reshape(-1).view(np.uint8)[...] = POISON
        else:
            size = int(np.prod(shape)) * dtype.itemsize
            raw = (ctypes.c_char * size).from_address(memptr.ptr)
            raw.held = memptr.held
            self._raw = np.frombuffer(raw, np.uint8).view(dtype).reshape(shape)
        self.base = None

    @classmethod
    def _of(cls, x, base=None):
        made = cls.__new__(cls)
        made._raw, made.base = x, base
        return made

    @property
    def _x(self):
        """What is in it once all that was asked for on the current stream is done."""
        current().synchronize()
        return self._raw

    def __del__(self):
        if not sys.is_finalizing():
            keep(self.__dict__.get("_raw"))

    def _view(self, x):
        return ndarray._of(x, self if self.base is None else self.base)

    shape = property(lambda self: self._raw.shape)
    strides = property(lambda self: self._raw.strides)
    dtype = property(lambda self: self._raw.dtype)
    ndim = property(lambda self: self._raw.ndim)
    size = property(lambda self: self._raw.size)
    nbytes = property(lambda self: self._raw.nbytes)
    itemsize = property(lambda self: self._raw.itemsize)
    flags = property(lambda self: self._raw.flags)
    T = property(lambda self: self._view(self._raw.T))
    real = property(lambda self: self._view(self._raw.real))
    imag = property(lambda self: self._view(self._raw.imag))
    data = property(lambda self: Pointer(self, self._raw.ctypes.data))

    @property
    def __cuda_array_interface__(self):
        """What an MPI is told; one that is not device-aware is played as STANDIN_MPI says: it dies of it, or sends zeros."""
        if MPI == "crash":
            os.abort()
        seen = np.zeros_like(self._raw) if MPI == "zeros" else self._raw
        self.seen = seen
        return {**seen.__array_interface__, "version": 3, "strides": seen.strides}  # as in DLPack: an empty view's are no array's

    def __array__(self, *args, **kwargs):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __dlpack__(self, **options):
        return self._x.__dlpack__(**options)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        if out is not None:
            kwargs["out"] = tuple(map(_down, out))
        if ufunc is np.matmul and any(np.ndim(_down(x)) > 2 and x.dtype == "bfloat16" for x in inputs):
            raise TypeError("data type 'E' not understood")  # its products of stacks of matrices know NumPy's dtypes alone
        CALLS[ufunc.__name__] += 1
        made = getattr(ufunc, method)(*map(_down, inputs), **kwargs)
        return out[0] if out is not None else _up(made)

    def __array_function__(self, function, types, args, kwargs):
        CALLS[function.__name__] += 1
        return _up(function(*map(_down, args), **{name: _down(value) for name, value in kwargs.items()}))

    def __getitem__(self, key):
        found = self._raw[_down_key(key)]
        if np.may_share_memory(found, self._raw):
            return self._view(np.asarray(found))
        CALLS["take"] += 1
        return _up(self._x[_down_key(key)])

    def __setitem__(self, key, value):
        target = self._raw[_down_key(key)]
        mine = isinstance(value, ndarray) and isinstance(target, np.ndarray)
        if mine and target.ctypes.data == value._raw.ctypes.data and target.strides == value.strides:
            return  # x[...] += y: it is there
        CALLS["set"] += 1
        self._x[_down_key(key)] = _down(value)

    def __len__(self):
        return len(self._x)

    def __float__(self):
        return float(self._x)

    def __int__(self):
        return int(self._x)

    def __bool__(self):
        return bool(self._x)

    def __repr__(self):
        return f"standin.{self._x!r}"

    def reshape(self, *shape):
        return self._view(self._raw.reshape(*shape))

    def view(self, dtype):
        return self._view(self._raw.view(_known(np.dtype(dtype))))

    def transpose(self, *axes):
        return self._view(self._raw.transpose(*axes))

    def diagonal(self):
        return self._view(self._raw.diagonal())

    def astype(self, dtype, order="K", copy=True):
        kept = not copy and np.dtype(dtype) == self.dtype and (order == "K" or self.flags.c_contiguous)
        CALLS["astype"] += not kept
        return self if kept else _up(self._x.astype(_known(np.dtype(dtype)), order=order))

    def fill(self, value):
        CALLS["fill"] += 1
        self._x.fill(value)

    def get(self):
        CALLS["get"] += 1
        return self._x.copy()

    def item(self):
        CALLS["item"] += 1
        return self._x.item()

    def tobytes(self):
        return self._x.tobytes()

    def copy(self):
        CALLS["copy"] += 1
        return _up(self._x.copy())

    def sum(self, axis=None, keepdims=False):
        CALLS["sum"] += 1
        return _up(self._x.sum(axis=axis, keepdims=keepdims))

    def prod(self, axis=None, keepdims=False):
        CALLS["prod"] += 1
        return _up(self._x.prod(axis=axis, keepdims=keepdims))

    def max(self, axis=None, keepdims=False):
        CALLS["max"] += 1
        return _up(self._x.max(axis=axis, keepdims=keepdims))

    def min(self, axis=None, keepdims=False):
        CALLS["min"] += 1
        return _up(self._x.min(axis=axis, keepdims=keepdims))

    def all(self):
        CALLS["all"] += 1
        return _up(self._x.all())

    def any(self):
        CALLS["any"] += 1
        return _up(self._x.any())

    def conj(self):
        CALLS["conj"] += 1
        return _up(self._x.conj())


def _down_key(key):
    """Indices may be NumPy's arrays: CuPy brings them to the device."""
    if isinstance(key, tuple):
        return tuple(map(_down_key, key))
    return key._x if isinstance(key, ndarray) else key


# ---------------------------------------------------------------------------------------------- functions


def empty(shape, dtype=float):
    return ndarray(shape, dtype)


def from_dlpack(x):
    return ndarray._of(np.from_dlpack(x))


def asarray(x):
    if isinstance(x, ndarray):
        return x
    x = np.array(x)
    CALLS["upload"] += 1
    return _up(x.astype(_known(x.dtype.newbyteorder("=")), copy=False))


def array(x, order="K"):
    return _up(np.array(x._x, order=order))


def eye(n, dtype=float):
    return _up(np.eye(n, dtype=_known(np.dtype(dtype))))


def tril(x, k=0):
    return _up(np.tril(x._x, k))


def vdot(x, y):
    return _up(np.asarray(np.vdot(x._x, y._x)))


def isfinite(x):
    return _up(np.isfinite(x._x))


def asnumpy(x):
    return x.get() if isinstance(x, ndarray) else np.asarray(x)


def ascontiguousarray(x):
    CALLS["ascontiguousarray"] += not x.flags.c_contiguous
    return x if x.flags.c_contiguous else _up(np.ascontiguousarray(x._x))


def copyto(target, source, casting="same_kind"):
    CALLS["copyto"] += 1
    np.copyto(_down(target), _down(source), casting=casting)


random = SimpleNamespace(
    random=lambda size, dtype: _up(np.random.default_rng().random(size, dtype)),
    standard_normal=lambda size, dtype: _up(np.random.default_rng().standard_normal(size, dtype)),
)
add, maximum, multiply, conjugate, matmul = np.add, np.maximum, np.multiply, np.conjugate, np.matmul


def may_share_memory(x, y):
    return np.may_share_memory(x._raw, y._raw)


def _argument(x):
    if x is None:
        raise TypeError("None is no argument of a kernel")
    return x.data.ptr if isinstance(x, ndarray) else x


class RawModule:
    def __init__(self, code, options):
        self.code = code

    def get_function(self, name):
        def run(grid, block, args):
            CALLS[name] += 1
            few = block[:1] if QUICK else block  # kernels take any height of a block, and threads are dear here
            current().ask(lambda: launch(self.code, name, grid, few, [_argument(x) for x in args]))

        return run


# ---------------------------------------------------------------------------------------------- the device


class CUDARuntimeError(RuntimeError):
    pass


def _device_count():
    if not DEVICES:
        raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
    return DEVICES


class Device:
    """The calling thread's, or the one of a number."""

    def __init__(self, number=None):
        self.number = getattr(_thread, "device", 0) if number is None else number

    def use(self):
        assert 0 <= self.number < DEVICES
        _thread.device = self.number

    @property
    def pci_bus_id(self):
        return f"0000:{self.number:02x}:00.0"


_thread, _lock = threading.local(), threading.RLock()
_streams, _kept, _spare = {}, [], {}  # by their numbers; memory to be given back; pinned memory to be used again, by size


class Stream:
    """Work in the order in which it was asked for, as late as can be: when something waits for it or looks at an event often."""

    def __init__(self, non_blocking=False):
        self.queue, self.ptr = deque(), id(self)
        _streams[self.ptr] = self

    def use(self):
        _thread.stream = self
        return self

    def __enter__(self):
        _entered().append(self)
        return self.use()

    def __exit__(self, *failure):
        """As CuPy's: what is current then is the stream entered before, not one that was only used."""
        _entered().pop()
        (_entered() or [_default])[-1].use()

    def ask(self, work):
        """work() is False as long as it is not done."""
        assert threading.current_thread().name != "pdla progress", "a thread that has no device asks for work on one"
        self.queue.append(work)

    def step(self):
        """Do one more thing, if it can be done now."""
        with _lock:
            if self.queue and self.queue[0]() is not False:
                self.queue.popleft()
            if not _busy():
                _kept.clear()

    def synchronize(self):
        while self.queue:
            self.step()

    def wait_event(self, event):
        self.ask(lambda: event.done)


_events = weakref.WeakValueDictionary()  # by pointer


class Event:
    def __init__(self, disable_timing=False):
        self.passed, self.stream, self.ptr = True, None, id(self)
        _events[self.ptr] = self

    def record(self):
        self.passed, self.stream = False, current()
        self.stream.ask(self._pass)

    def _pass(self):
        self.passed = True

    @property
    def done(self):
        if not self.passed:
            self.stream.step()
        return self.passed


_default = Stream()


def current():
    return getattr(_thread, "stream", _default)


def _entered():
    """The streams that the calling thread has entered, one within the other."""
    if not hasattr(_thread, "entered"):
        _thread.entered = []
    return _thread.entered


def _busy():
    return any(stream.queue for stream in [*_streams.values()])


def keep(x):
    """Memory that is given back may be in use by what was asked for before: it is freed after that."""
    if x is not None and _busy():
        _kept.append(x)


def _pinned(size):
    """The host's memory is not kept for what was asked for: given back too early it is poisoned, and others write to it."""
    storage = spare.pop() if (spare := _spare.setdefault(size, [])) else np.empty(size, np.uint8)
    storage.fill(POISON)
    made = (ctypes.c_char * size).from_buffer(storage)
    weakref.finalize(made, lambda: (storage.fill(POISON), spare.append(storage)))
    return made


# ---------------------------------------------------------------------------------------------- cuBLAS

KINDS = {"CUDA_R_16F": "e", "CUDA_R_16BF": "bfloat16", "CUDA_R_32F": "f", "CUDA_R_64F": "d", "CUDA_C_32F": "F", "CUDA_C_64F": "D"}


PRODUCTS = {  # the types of factors and of a product that cuBLAS adds up so; its scalars are of the latter, of 16 bits float32
    "CUBLAS_COMPUTE_32F": {("e", "e"), ("e", "f"), ("bfloat16", "bfloat16"), ("bfloat16", "f"), ("f", "f"), ("F", "F")},
    "CUBLAS_COMPUTE_32F_FAST_TF32": {("f", "f"), ("F", "F")},
    "CUBLAS_COMPUTE_64F": {("d", "d"), ("D", "D")},
}


def _fortran(ptr, kind, rows, cols, leading):
    """Memory as a matrix in Fortran's order, to be written, too."""
    dtype = np.dtype(kind)
    count = leading * (cols - 1) + rows
    flat = np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(ptr), dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, cols), (dtype.itemsize, leading * dtype.itemsize))


def _gemm_ex(handle, transa, transb, m, n, k, alpha, A, atype, lda, B, btype, ldb, beta, C, ctype, ldc, compute, algo):
    assert lda >= (m, k)[transa] and ldb >= (k, n)[transb] and ldc >= m and max(m, n, k, lda, ldb, ldc) < 2**31
    assert atype == btype and (atype, ctype) in PRODUCTS[compute]
    a = _fortran(A, atype, *((m, k), (k, m))[transa], lda)
    b = _fortran(B, btype, *((k, n), (n, k))[transb], ldb)
    c = _fortran(C, ctype, m, n, ldc)
    scalar = {"e": "f", "bfloat16": "f"}.get(ctype, ctype)
    alpha, beta = (_fortran(at, scalar, 1, 1, 1)[0, 0] for at in (alpha, beta))  # the host's: read at once

    CALLS["gemm"] += 1

    def work():
        product = alpha * ((a.T if transa else a).astype(scalar) @ (b.T if transb else b).astype(scalar))
        c[...] = product if beta == 0 else product + beta * c

    current().ask(work)


def _gemm_strided_batched_ex(
    handle, transa, transb, m, n, k, alpha, A, atype, lda, step_a, B, btype, ldb, step_b, beta, C, ctype, ldc, step_c, count, *how
):
    sides = (A, step_a, atype), (B, step_b, btype), (C, step_c, ctype)
    written = [at + step_c * i for i in range(count) for at in np.add.outer(ldc * np.arange(n), np.arange(m)).ravel()]
    assert len(set(written)) == m * n * count, "cuBLAS writes the matrices of a stack in any order: they must not overlap"
    for i in range(count):
        a, b, c = (x + i * step * np.dtype(kind).itemsize for x, step, kind in sides)
        _gemm_ex(handle, transa, transb, m, n, k, alpha, a, atype, lda, b, btype, ldb, beta, c, ctype, ldc, *how)
    CALLS["gemm"] += 1 - count


def _trsm(handle, side, uplo, trans, diag, m, n, alpha, A, lda, B, ldb, kind):
    from scipy.linalg import solve_triangular

    k = n if side else m
    a, b, factor = _fortran(A, kind, k, k, lda), _fortran(B, kind, m, n, ldb), _fortran(alpha, kind, 1, 1, 1)[0, 0]

    def work():
        t = np.triu(a) if uplo else np.tril(a)
        t = {0: t, 1: t.T, 2: t.conj().T}[trans]
        lower, named = (uplo == 0) == (trans == 0), {"unit_diagonal": bool(diag), "check_finite": False}
        if side:
            b[...] = solve_triangular(t.T, factor * b.T, lower=not lower, **named).T
        else:
            b[...] = solve_triangular(t, factor * b, lower=lower, **named)

    current().ask(work)


def _potrf(handle, uplo, n, A, lda, work, size, info, kind):
    from scipy.linalg import lapack

    a, said = _fortran(A, kind, n, n, lda), _fortran(info, "i", 1, 1, 1)
    (routine,) = lapack.get_lapack_funcs(["potrf"], dtype=kind)

    def run():
        a[...], said[...] = routine(a, lower=not uplo, clean=0)

    current().ask(run)


def _getrf(handle, m, n, A, lda, work, pivots, info, kind):
    from scipy.linalg import lapack

    a, said, rows = _fortran(A, kind, m, n, lda), _fortran(info, "i", 1, 1, 1), _fortran(pivots, "i", min(m, n), 1, min(m, n))
    (routine,) = lapack.get_lapack_funcs(["getrf"], dtype=kind)

    def run():
        a[...], found, said[...] = routine(a)
        rows[:, 0] = found + 1

    current().ask(run)


def _geqrf(handle, m, n, A, lda, tau, work, size, info, kind):
    from scipy.linalg import lapack

    a, said, t = _fortran(A, kind, m, n, lda), _fortran(info, "i", 1, 1, 1), _fortran(tau, kind, min(m, n), 1, min(m, n))
    (routine,) = lapack.get_lapack_funcs(["geqrf"], dtype=kind)

    def run():
        a[...], t[:, 0], _, said[...] = routine(a)

    current().ask(run)


def _check_status(status):
    if status:
        raise CUDARuntimeError(f"status {status}")


_modes = {}  # of cuBLAS's handles


runtime = SimpleNamespace(
    getDeviceCount=_device_count, getDevice=lambda: Device().number, CUDARuntimeError=CUDARuntimeError, **KINDS,
    eventQuery=lambda ptr: 0 if _events[ptr].done else 600, check_status=_check_status,
)
cuda = SimpleNamespace(
    runtime=runtime, Device=Device, Stream=Stream, Event=Event, get_current_stream=current,
    alloc_pinned_memory=_pinned, PinnedMemoryPointer=ctypes.Array,
    device=SimpleNamespace(get_cublas_handle=int, get_cusolver_handle=int),
)
_cublas = SimpleNamespace(
    CUBLAS_SIDE_LEFT=0, CUBLAS_SIDE_RIGHT=1, CUBLAS_FILL_MODE_LOWER=0, CUBLAS_FILL_MODE_UPPER=1, CUBLAS_DIAG_NON_UNIT=0,
    CUBLAS_DIAG_UNIT=1, **{f"{name}trsm": partial(_trsm, kind=kind) for name, kind in zip("sdcz", "fdFD", strict=True)},
    CUBLAS_OP_N=0, CUBLAS_OP_T=1, CUBLAS_OP_C=2, CUBLAS_GEMM_DEFAULT=-1,
    gemmEx=_gemm_ex, gemmStridedBatchedEx=_gemm_strided_batched_ex,
    getMathMode=lambda handle: _modes.get(handle, 0),
    setMathMode=_modes.__setitem__, **{name: name for name in PRODUCTS},
)

_cusolver = SimpleNamespace(
    **{f"{name}{which}_bufferSize": lambda *given: 1 for name in "sdcz" for which in ("potrf", "getrf", "geqrf")},
    **{f"{name}potrf": partial(_potrf, kind=kind) for name, kind in zip("sdcz", "fdFD", strict=True)},
    **{f"{name}getrf": partial(_getrf, kind=kind) for name, kind in zip("sdcz", "fdFD", strict=True)},
    **{f"{name}geqrf": partial(_geqrf, kind=kind) for name, kind in zip("sdcz", "fdFD", strict=True)},
)


def _put_in(name, **contents):
    module = sys.modules.setdefault(name, ModuleType(name))
    for key, value in contents.items():
        setattr(module, key, value)


def _erf(x):
    from scipy.special import erf

    return _up(erf(_down(x)))


def _of_scipy(name):
    """A function of SciPy's linear algebra, on arrays of ours."""

    def function(*args, **kwargs):
        from scipy import linalg

        return _up(getattr(linalg, name)(*map(_down, args), **kwargs))

    return function


linalg = SimpleNamespace(
    cholesky=_of_scipy("cholesky"), eigh=lambda a, UPLO: tuple(map(_up, np.linalg.eigh(_down(a), UPLO))),
)
_put_in("cupy_backends.cuda.libs", cublas=_cublas, cusolver=_cusolver)
_put_in("cupyx.scipy.linalg", lu_factor=_of_scipy("lu_factor"), solve_triangular=_of_scipy("solve_triangular"))
_put_in("cupyx.scipy.special", erf=_erf)
for _name in ("cupy_backends", "cupy_backends.cuda", "cupyx", "cupyx.scipy"):
    _put_in(_name)
