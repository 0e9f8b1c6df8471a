"""ScaLAPACK's factorizations: its least milliseconds by name, over square blocks of 32, 64 and 128 and all grids, as JSON.

mpirun.openmpi -n 2 python -m bench.sides.pdfactor n       best of 3 turns; in place, in Fortran order
"""

import json
import sys
import time
from ctypes import byref, c_char_p, c_double, c_int, c_void_p

import numpy as np
from mpi4py import MPI

from bench.sides.pdgemm import context, cyclic, library

TURNS = 3
BLOCKS = (32, 64, 128)
LOWER = c_char_p(b"L")


class Matrix:
    """n x n in square blocks: symmetric and positive definite, with `shift` on the diagonal."""

    def __init__(self, n, block, pr, pc, shift):
        i, j = divmod(MPI.COMM_WORLD.rank, pc)
        rows, cols = cyclic(n, pr, i, block)[:, None], cyclic(n, pc, j, block)
        least, most = np.minimum(rows, cols), np.maximum(rows, cols)
        drawn = np.sin(1.0 + 12.9898 * least + 78.233 * most) * 43758.5453 % 1 - 0.5
        self.given = np.asfortranarray(drawn + shift * (rows == cols))
        self.x, self.rows = self.given.copy("F"), len(rows)
        self.lying = (c_int * 9)(1, context(pr, pc), n, n, block, block, 0, 0, max(1, len(rows)))

    def fill(self):
        self.x[...] = self.given

    @property
    def told(self):
        return self.x.ctypes.data_as(c_void_p), byref(c_int(1)), byref(c_int(1)), self.lying


def called(name, *arguments):
    info = c_int()
    getattr(library(), name)(*arguments, byref(info))
    if info.value:
        raise SystemExit(f"{name}: info {info.value}")


def routines(n, block, pr, pc):
    """By name: what is done before, and what is timed."""
    P, G, B = (Matrix(n, block, pr, pc, shift) for shift in (2 * n**0.5, 0, 0))
    size, one, flags = byref(c_int(n)), byref(c_double(1)), map(c_char_p, (b"L", b"L", b"N", b"N"))
    flags, pivots = [*flags], np.empty(G.rows + block, np.int32)
    work, numbers = np.empty((n + block) * block * 2), np.empty(4 * (n + block) * 2, np.int32)
    at, room = pivots.ctypes.data_as(c_void_p), (work, numbers)
    rooms = [x for array in room for x in (array.ctypes.data_as(c_void_p), byref(c_int(array.size)))]
    potrf = lambda: called("pdpotrf_", LOWER, size, *P.told)  # noqa: E731
    getrf = lambda: called("pdgetrf_", size, size, *G.told, at)  # noqa: E731
    return {
        "Cholesky": (P.fill, potrf),
        "LU": (G.fill, getrf),
        "triangular": (lambda: (P.fill(), B.fill()), lambda: library().pdtrsm_(*flags, size, size, one, *P.told, *B.told)),
        "inverse": (G.fill, lambda: (getrf(), called("pdgetri_", size, *G.told, at, *rooms))),
        "inverse, pos": (P.fill, lambda: (potrf(), called("pdpotri_", LOWER, size, *P.told))),
    }


def main(n):
    comm, best = MPI.COMM_WORLD, {}
    for pr in (p for p in range(1, comm.size + 1) if comm.size % p == 0):
        for block in BLOCKS:
            for name, (before, call) in routines(n, block, pr, comm.size // pr).items():
                for _ in range(TURNS):
                    before()
                    comm.Barrier()
                    start = time.perf_counter()
                    call()
                    comm.Barrier()
                    best[name] = min(best.get(name, 1e9), 1e3 * (time.perf_counter() - start))
    if comm.rank == 0:
        print(json.dumps(best))


if __name__ == "__main__":
    main(int(sys.argv[1]))
