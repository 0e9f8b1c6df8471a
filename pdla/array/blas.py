"""BLAS by pointer: SciPy's BLAS routines (and LAPACK's, for lapack.py), called on NumPy arrays without a copy.

`numpy.matmul` can neither accumulate nor scale; `scipy.linalg.blas` copies arrays that are not in
Fortran order. SciPy exports its routines as C pointers, which take leading dimensions and beta and
release the interpreter's lock. The first product loads them without the rest of scipy.linalg,
whose import is slow. If PDLA_BLAS names another library, NumPy multiplies only what BLAS cannot.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from pdla import config
from pdla.array import cores
from pdla.errors import DeviceError

ROUTINES = {"f": "sgemm", "d": "dgemm", "F": "cgemm", "D": "zgemm"}
VECTORS = {"f": "sgemv", "d": "dgemv", "F": "cgemv", "D": "zgemv"}
SQUARES = {"f": "ssyrk", "d": "dsyrk", "F": "csyrk", "D": "zsyrk"}
ARGUMENTS = {"gemm": 13, "gemv": 11, "syrk": 10, "trsm": 11}
LAPACK = {  # of SciPy's other module
    "potrf": 5, "trtri": 6, "getrf": 6, "geqrt3": 7, "sytrd": 10, "hetrd": 10, "syevd": 11, "heevd": 13,
    "stedc": 11, "sterf": 4, "laed4": 8,
}
LIMIT = 2**31 - 1  # BLAS takes 32-bit sizes and leading dimensions
_threads: int | None = None  # the limit of a library's threads when it is loaded; None: unlimited


@cache
def _routine(name: str, library: str = "") -> Any:
    """Find a routine as a C function, in the library of this name, which may lack LAPACK's, or in SciPy."""
    made = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (ARGUMENTS | LAPACK)[name[1:]])
    given = library and (name[1:] not in LAPACK or hasattr(load_library(library), f"{name}_"))
    function = made(_find_symbol(load_library(library), name) if given else _find_in_scipy(name))
    if _threads is not None:
        _limit_loaded(_threads)
    return function


def _find_in_scipy(name: str) -> int:
    """Find the address of SciPy's routine of this name."""
    capsule = _module("cython_lapack" if name[1:] in LAPACK else "cython_blas").__pyx_capi__[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get_pointer(capsule, get_name(capsule))


_loading = Lock()  # ranks that are threads may start their first product at the same time


def _module(name: str) -> Any:
    """Load a module of scipy.linalg without the rest of that package, which takes ten times as long."""
    with _loading:
        return _without_package(name)


@cache
def _without_package(name: str) -> Any:
    import scipy

    full, folders = f"scipy.linalg.{name}", [str(Path(path, "linalg")) for path in scipy.__path__]
    if full in sys.modules:
        return sys.modules[full]
    spec = PathFinder.find_spec(full, folders)
    if spec is None or spec.loader is None:
        raise ImportError(f"SciPy {scipy.__version__} has no {full}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules.pop(full, None)  # so that a later import of scipy.linalg loads its own
    return module


@cache
def load_library(library: str) -> Any:
    """Load a library by its name, and test it.

    DeviceError if it cannot be loaded, takes 64-bit sizes, or lacks a routine. Later, in a product,
    only ranks with non-empty blocks would notice.
    """
    try:
        loaded = _open_library(library)
    except OSError as error:
        raise DeviceError(f"PDLA_BLAS={library!r}: {error}: give a BLAS library, by its path, or a name that is found") from None
    # n = 1 in 32 bits; read as 64 bits n is negative, and dscal does nothing.
    x, factor, sizes = np.ones(1), np.full(1, 2.0), (ctypes.c_int * 2)(1, -1)
    scale = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(_find_symbol(loaded, "dscal"))
    scale(ctypes.addressof(sizes), _address(factor), _address(x), ctypes.addressof(sizes))
    if x[0] != 2:
        raise DeviceError(f"PDLA_BLAS={library!r}: it takes 64-bit sizes: give its build for 32-bit integers (LP64)")
    for name in (*ROUTINES.values(), *SQUARES.values(), *VECTORS.values()):
        _find_symbol(loaded, name)
    return loaded


def _open_library(library: str) -> Any:
    """Open a library as the dynamic linker finds it, or where packages of PyPI and conda put theirs, such as mkl."""
    try:
        return ctypes.CDLL(library)
    except OSError:
        beside = Path(sys.prefix, "lib", library)
        if not beside.is_file():
            raise
        return ctypes.CDLL(str(beside))


def _find_symbol(loaded: Any, name: str) -> int:
    try:
        return ctypes.cast(getattr(loaded, f"{name}_"), ctypes.c_void_p).value  # type: ignore[return-value]
    except AttributeError:
        raise DeviceError(f"PDLA_BLAS={loaded._name!r} has no {name}_: give a BLAS library with Fortran's names") from None


def orientation(x: Any) -> tuple[bytes, int] | None:
    """BLAS's flag for x^T in Fortran order, and the leading dimension.

    b"N" if x has unit stride within rows, b"T" within columns. None if x has neither, or if its
    leading dimension is too long.
    """
    size = x.itemsize
    row, col = x.strides
    m, n = x.shape
    if (col == size or n == 1) and (m == 1 or (n * size <= row <= LIMIT * size and row % size == 0)):
        return b"N", (row // size if m > 1 else max(n, 1))
    if (row == size or m == 1) and (n == 1 or (m * size <= col <= LIMIT * size and col % size == 0)):
        return b"T", (col // size if n > 1 else max(m, 1))
    return None


def can_take(x: Any, dtype: np.dtype) -> bool:
    """Whether x can be a factor in a product of this dtype without a copy.

    BLAS needs a unit stride. NumPy multiplies the dtypes that BLAS lacks, with any strides.
    """
    return x.dtype == dtype and (dtype.char not in ROUTINES or orientation(x) is not None)


def are_plain(a: Any, b: Any, c: Any) -> bool:
    """Whether three arrays have no gaps, the same dtype, one of BLAS's, and sizes that BLAS takes."""
    kind = c.dtype
    gapless = a.flags.forc and b.flags.forc and c.flags.forc
    return gapless and kind.char in ROUTINES and a.dtype is kind is b.dtype and 0 < a.size <= LIMIT and 0 < b.size <= LIMIT


def can_add(a: Any, b: Any, c: Any) -> bool:
    """Whether BLAS can add the product of a and b to c in place."""
    return _fits(a, b, c) and orientation(c) is not None


def _fits(a: Any, b: Any, c: Any) -> bool:
    return c.dtype.char in ROUTINES and c.dtype.isnative and max(*a.shape, *b.shape) <= LIMIT


def needs_extra(c: Any, beta: complex) -> bool:
    """Whether a product that BLAS cannot add to c needs extra memory.

    NumPy's matmul cannot add, and for BLAS's dtypes it is a slow loop if c has no unit stride.
    """
    return beta != 0 or c.dtype.char in ROUTINES


def gemm(a: np.ndarray, b: np.ndarray, c: np.ndarray, alpha: complex, beta: complex, alike: bool = False) -> bool:
    """`c = alpha a b + beta c` in place, for factors that it `can_take`. False, and nothing done, if BLAS cannot write to c.

    alike: the same bits for any strides of the factors
    """
    into = orientation(c) if _fits(a, b, c) else None
    if into is None:
        return False
    if 1 in c.shape and not alike:
        _times_vector(*((a, b, c) if c.shape[1] == 1 else (b.T, a.T, c.T)), alpha, beta)
        return True
    if into[0] == b"T":  # c is Fortran-ordered: c^T = b^T a^T is a C-ordered product
        a, b, c = b.T, a.T, c.T
    _call(c.dtype.char, a, orientation(a), b, orientation(b), c, into[1], alpha, beta)
    return True


def _times_vector(a: np.ndarray, x: np.ndarray, y: np.ndarray, alpha: complex, beta: complex) -> None:
    """`y = alpha a x + beta y`, x and y with one column: gemm would take several times as long."""
    if beta == 0:
        y.fill(0)  # some BLAS read y even with beta = 0
    (how, lda), (m, k) = orientation(a), a.shape  # type: ignore[misc]
    steps = (each.strides[0] // each.itemsize if len(each) > 1 else 1 for each in (x, y))
    sizes = (ctypes.c_int * 5)(*((k, m) if how == b"N" else (m, k)), lda, *steps)
    size, (both, scalar) = ctypes.addressof(sizes), box_scalars(alpha, beta or 1, y.dtype.char)
    _routine(VECTORS[y.dtype.char], config.settings.blas)(
        b"T" if how == b"N" else b"N", size, size + 4, scalar, _address(a), size + 8, _address(x), size + 12,
        scalar + both.itemsize, _address(y), size + 16,
    )


def bind_matvec(a: np.ndarray, x: np.ndarray, y: np.ndarray, adjoint: bool) -> Callable[[], None]:
    """Bind `y += a x`, or a^H x, as a function to call many times: a by columns, x and y of one column, without gaps.

    Arguments are boxed once: that takes most of the time of a short call.
    """
    (m, k), (both, scalar) = a.shape, box_scalars(1, 1, y.dtype.char)
    sizes = (ctypes.c_int * 4)(m, k, max(m, a.strides[1] // a.itemsize), 1)
    size = ctypes.addressof(sizes)
    call = partial(
        _routine(VECTORS[y.dtype.char], config.settings.blas), b"C" if adjoint else b"N", size, size + 4, scalar, _address(a),
        size + 8, _address(x), size + 12, scalar, _address(y), size + 12,
    )
    call.__dict__["kept"] = sizes, both, a, x, y  # keep alive: `call` has their addresses
    return call


def _call(char: str, a: Any, how_a: Any, b: Any, how_b: Any, c: Any, ldc: int, alpha: complex, beta: complex) -> None:
    """`c = alpha a b + beta c` as c^T = alpha b^T a^T + beta c^T: in Fortran order, which BLAS reads, each array is transposed."""
    m, n = c.shape
    sizes = (ctypes.c_int * 6)(n, m, a.shape[1], how_b[1], how_a[1], ldc)
    size, (both, scalar) = ctypes.addressof(sizes), box_scalars(alpha, beta, char)
    _routine(ROUTINES[char], config.settings.blas)(
        how_b[0], how_a[0], size, size + 4, size + 8, scalar,
        _address(b), size + 12, _address(a), size + 16, scalar + both.itemsize, _address(c), size + 20,
    )


def can_square(a: Any, c: Any) -> bool:
    """Whether BLAS can compute the triangle of a a^T in c, without copies: c must have unit stride within rows."""
    into = orientation(c) if c.dtype.char in SQUARES and c.dtype.isnative else None
    by_rows = into is not None and into[0] == b"N"
    return by_rows and a.dtype == c.dtype and a.size > 0 and max(a.shape) <= LIMIT and orientation(a) is not None


def square(a: np.ndarray, c: np.ndarray, alpha: complex) -> None:
    """The lower triangle of `c = alpha a a^T`, for a and c that BLAS `can_square`.

    In Fortran order, where c is transposed, it is the upper one.
    """
    (how, lda), (_, ldc), (n, k) = orientation(a), orientation(c), a.shape  # type: ignore[misc]
    sizes = (ctypes.c_int * 4)(n, k, lda, ldc)
    size, (both, scalar) = ctypes.addressof(sizes), box_scalars(alpha, 0, c.dtype.char)
    _routine(SQUARES[c.dtype.char], config.settings.blas)(
        b"U", b"T" if how == b"N" else b"N", size, size + 4, scalar,
        _address(a), size + 8, scalar + both.itemsize, _address(c), size + 12,
    )


def _address(x: np.ndarray) -> int:
    return x.__array_interface__["data"][0]


@lru_cache(maxsize=256)
def box_scalars(alpha: complex, beta: complex, char: str) -> tuple[np.ndarray, int]:
    """Put both scalars into memory for a BLAS; return them, and the address of the first."""
    both = np.array([alpha, beta], char)
    return both, _address(both)


# ---------------------------------------------------------------------------------------------- threads


def _limit(loaded: Any, to: Any) -> None:
    """Set the number of threads of the BLAS libraries that are loaded.

    threadpoolctl lets only the first thread that set OpenBLAS's number set it again, until its
    claim is cleared. Other threads, such as ranks that load SciPy's BLAS, must set it, too.
    """
    from threadpoolctl import OpenBLASController

    OpenBLASController.clear_controlling_thread(force=True)
    loaded.limit(limits=to)
    OpenBLASController.clear_controlling_thread(force=True)


def _find_loaded() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def _limit_loaded(threads: int) -> None:
    _limit(_find_loaded(), threads)


def set_threads(threads: int) -> None:
    """Limit every BLAS of this process to so many threads: those loaded now, and SciPy's when it is loaded."""
    global _threads
    _threads = threads
    _limit_loaded(threads)


@contextmanager
def with_threads(threads: int) -> Iterator[None]:
    """Limit every BLAS to so many threads for a with-block.

    Loaded libraries are searched for once: the search takes most of a short run of the threads
    world.
    """
    global _threads
    before, loaded = _threads, _find_loaded()
    had = loaded.info()
    routines, _threads = _routine.cache_info().currsize, threads
    _limit(loaded, threads)
    try:
        yield
    finally:
        _threads = before
        _limit(loaded, had)
        if _routine.cache_info().currsize > routines:  # the block may have loaded SciPy's BLAS
            _limit_loaded(max((library["num_threads"] for library in had), default=cores.share(1)))
