"""Arrays of a device, or of the stand-in for one, beside NumPy's: a module that imports this is skipped where there is neither."""

import ctypes
import mmap

import numpy as np

from helpers.arrays import DTYPES
from helpers.devices import cupy_namespace

xp = cupy_namespace()
KNOWN = [dtype for dtype in DTYPES if dtype not in ("longdouble", ">f8")]
LIE = ["C", "F", "gaps", "steps", "backwards", "odd"]
FLOATS = ["float32", "float64", "complex64", "complex128"]


def there(x, how="C"):
    """A device's copy of x that lies so or so; "odd" begins at no multiple of 16 bytes."""
    m, n = x.shape
    if how == "odd":
        view = xp.empty((m, n + 1), x.dtype)[:, 1:]
    elif how == "C":
        view = xp.empty((m, n), x.dtype)
    elif how == "F":
        view = xp.empty((n, m), x.dtype).T
    else:
        step, turn = 3 if how == "steps" else 1, -1 if how == "backwards" else 1
        view = xp.empty((step * m + 1, step * n + 3), x.dtype)[1::step, 3::step][::turn, ::turn]
    view[...] = xp.asarray(x)
    return view


def end_memory(x):
    """The stand-in's copy of x, whose last element is the last before a page that nothing may read."""
    size = -(-x.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, size + mmap.PAGESIZE), np.uint8)
    assert not ctypes.CDLL(None).mprotect(ctypes.c_void_p(memory.ctypes.data + size), mmap.PAGESIZE, 0)
    view = xp.cupy.ndarray._of(memory[size - x.nbytes : size].view(x.dtype).reshape(x.shape))
    view[...] = x
    return view


def same(found, wanted, where=""):
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.get(), wanted, err_msg=str(where))


def epsilon(dtype):
    """The distance from 1 to the next number; NumPy does not know bfloat16's."""
    return 2**-7 if dtype == "bfloat16" else np.finfo(dtype).eps


def close(found, wanted, scale, terms=1):
    """Equal but for the rounding of so many sums of what is as large as `scale`."""
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    bound = 8 * terms * epsilon(wanted.dtype) * (1 + np.abs(scale).astype(float).max(initial=0))
    np.testing.assert_allclose(found.get(), wanted, rtol=0, atol=bound)


def random(shape, dtype, seed=0):
    draw = np.random.default_rng([seed, *shape])
    x = draw.standard_normal(shape)
    return (x + 1j * draw.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def bits_same(found, wanted):
    """Not a bit differs, not even a zero's sign."""
    same(found, wanted)
    assert found.get().tobytes() == wanted.tobytes()
