"""The dtypes and sizes on which namespaces of arrays are tested."""
import numpy as np

DTYPES = ["float64", "float32", "complex64", "complex128", "float16", "int8", "int64", "longdouble", ">f8"]
SIZES = [(4, 5, 3), (1, 1, 1), (1, 6, 4), (6, 1, 4), (5, 3, 1), (7, 8, 9)]


def laid(x, how):
    """x's elements, lying in memory so or so."""
    m, n = x.shape
    if how == "C":
        return x.copy()
    if how == "F":
        return np.asfortranarray(x)
    if how == "same rows":
        return np.broadcast_to(x[:1], x.shape)
    if how == "between bytes":  # rows as far apart as they are in a table with a field of 4 bytes besides
        gap = n * x.itemsize + 4
        view = np.ndarray((m, n), x.dtype, np.zeros(m * gap, np.uint8), 0, (gap, x.itemsize))
        view[...] = x
        return view
    step, turn = 3 if how == "steps" else 1, -1 if how == "backwards" else 1
    view = np.zeros((step * m + 1, step * n + 3), x.dtype)[1::step, 3::step][::turn, ::turn]
    view[...] = x
    return view


def likeness(x):
    """Bytes that lie as x's elements do."""
    return np.lib.stride_tricks.as_strided(np.empty(1, np.bool_), x.shape, [step // x.itemsize for step in x.strides])
