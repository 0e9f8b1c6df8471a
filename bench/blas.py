"""One local product by NumPy's BLAS and by another: how much of a lead over ScaLAPACK, say, is due to the BLAS.

PDLA_BLAS=libmkl_rt.so.3 mpirun -n 2 python -m bench.blas 2048x4096x128 [...]

All ranks multiply at once, one thread each, by either library in turn. Without PDLA_BLAS the other is the system's OpenBLAS, which
Debian's ScaLAPACK calls. Prints the median milliseconds over 21 turns of two products, and version and file of each BLAS. C is
in row order, and is only written.
"""

import os
from ctypes.util import find_library
from functools import partial
from itertools import product as cross
from statistics import median

import numpy as np
from mpi4py import MPI
from threadpoolctl import threadpool_info

from bench.common.given import say, started
from bench.common.launch import core_type
from bench.common.meeting import Meeting
from bench.common.turns import seconds
from pdla import config
from pdla.array import blas
from pdla.array.numpy import gemm
from pdla.bench.arguments import sizes

TURNS, CALLS = 21, 2


def main(*shapes):
    shapes = shapes or ((2048, 4096, 128),)
    meeting = Meeting(MPI.COMM_WORLD)
    os.environ.update(core_type())
    library = config.settings.blas or find_library("openblas")
    if not library:
        raise SystemExit("blas.py: there is no OpenBLAS of the system's here: PDLA_BLAS= names another library")
    blas.named(library)
    blas.hold(1)
    for (m, n, k), dtype in cross(shapes, ("float64", "float32")):
        draw = np.random.default_rng(meeting.comm.rank)
        a, b, c = draw.random((m, k)).astype(dtype), draw.random((k, n)).astype(dtype), np.zeros((m, n), dtype)
        sides = {"NumPy's": partial(np.matmul, a, b, out=c), library: partial(gemm, a, b, c)}
        with config.override(blas=library):
            seconds(meeting, 1, sides, CALLS)
            if not np.allclose(c, a @ b):
                raise SystemExit(f"{m}x{n}x{k} {dtype}: the product by {library} is wrong")
            times = seconds(meeting, TURNS, sides, CALLS)
        say(meeting.comm)(f"{m}x{n}x{k}", dtype, *(f"{name} {1e3 * median(taken):.4g} ms" for name, taken in times.items()))
    if meeting.comm.rank == 0:
        for one in threadpool_info():
            if one["user_api"] == "blas":
                print(f"{one['internal_api']} {one['version']}: {one['filepath']}")


if __name__ == "__main__":
    started(main, sizes, __doc__)
