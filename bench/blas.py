"""One local product by NumPy's BLAS and by the system's, which Debian's ScaLAPACK calls: how much of a lead is the BLAS's.

mpirun -n 2 python bench/blas.py 2048x4096x128 [...]        all ranks at once, one thread each, the two by turns

Prints the median milliseconds over 21 turns of two products, and the versions. C lies by rows, and is only written.
"""

import os
from ctypes import CDLL, c_double, c_float, c_int, c_void_p
from ctypes.util import find_library
from itertools import product as cross
from statistics import median

import numpy as np
from mpi4py import MPI
from sides.given import started
from sides.launch import core_type
from sides.meeting import Meeting
from threadpoolctl import threadpool_info, threadpool_limits

TURNS, CALLS = 21, 2
ROW_MAJOR, AS_IT_LIES = 101, 111


def system_gemm(library, a, b, c):
    """Multiply by the library's C interface."""
    call, real = (library.cblas_dgemm, c_double) if c.dtype == np.float64 else (library.cblas_sgemm, c_float)
    (m, n), k = c.shape, a.shape[1]
    at_a, at_b, at_c = (c_void_p(x.ctypes.data) for x in (a, b, c))
    how = c_int(ROW_MAJOR), c_int(AS_IT_LIES), c_int(AS_IT_LIES)
    return lambda: call(*how, *map(c_int, (m, n, k)), real(1), at_a, c_int(k), at_b, c_int(n), real(0), at_c, c_int(n))


def sizes(text):
    """m, n and k of a product."""
    m, n, k = map(int, text.split("x"))
    return m, n, k


def main(*shapes):
    shapes = shapes or ((2048, 4096, 128),)
    meeting = Meeting(MPI.COMM_WORLD)
    os.environ.update(core_type())
    library = CDLL(find_library("openblas"))
    threadpool_limits(1)
    for (m, n, k), dtype in cross(shapes, ("float64", "float32")):
        draw = np.random.default_rng(meeting.comm.rank)
        a, b, c = draw.random((m, k)).astype(dtype), draw.random((k, n)).astype(dtype), np.zeros((m, n), dtype)
        sides = {"NumPy's": lambda a=a, b=b, c=c: np.matmul(a, b, out=c), "system's": system_gemm(library, a, b, c)}
        times = {name: [meeting.seconds(multiply, CALLS)] for name, multiply in sides.items()}
        if not np.allclose(c, a @ b):
            raise SystemExit(f"{m}x{n}x{k} {dtype}: the system's product is wrong")
        for name, multiply in list(sides.items()) * TURNS:
            times[name].append(meeting.seconds(multiply, CALLS))
        if meeting.comm.rank == 0:
            print(f"{m}x{n}x{k}", dtype, *(f"{name} {1e3 * median(taken[1:]):.4g} ms" for name, taken in times.items()))
    if meeting.comm.rank == 0:
        print(*(f"{one['version']} {one['architecture']}" for one in threadpool_info() if one["user_api"] == "blas"))


if __name__ == "__main__":
    started(main, sizes, __doc__)
