"""ScaLAPACK's factorizations, and ELPA's eigenvectors, in Fortran order, in the best of square blocks of 32, 64 and 128 and grids.

mpirun.openmpi -n 2 python -m bench.sides.pdfactor m n "NAME;..." [FILE]

The best blocks and grid have the least of 3 turns. Then the job reads names, a line each, and answers with the milliseconds of one
more turn; meanwhile the ranks sleep. With FILE it searches only the two most nearly square grids, and writes the least
milliseconds, and the mean bytes that a host's link received.
"""

import json
import sys
import time
from ctypes import CDLL, byref, c_char_p, c_double, c_int, c_void_p
from ctypes.util import find_library
from pathlib import Path

import numpy as np
from mpi4py import MPI

from bench.common.meeting import count_received
from bench.sides.pdgemm import list_indices, load_library, make_context

TURNS = 3
NAP = 0.02  # seconds between polls for a name, as other jobs are timed meanwhile
BLOCKS = (32, 64, 128)
ELPA_API = 20221109  # the newest interface of the ELPA of Debian 12
LOWER = c_char_p(b"L")


class Matrix:
    """m x n in square blocks; n x n ones are symmetric, and with `shift` on the diagonal positive definite."""

    def __init__(self, m, n, block, pr, pc, shift=0.0):
        i, j = divmod(MPI.COMM_WORLD.rank, pc)
        rows, cols = list_indices(m, pr, i, block)[:, None], list_indices(n, pc, j, block)
        least, most = np.minimum(rows, cols), np.maximum(rows, cols)
        drawn = np.sin(1.0 + 12.9898 * least + 78.233 * most) * 43758.5453 % 1 - 0.5
        self.given = np.asfortranarray(drawn + shift * (rows == cols))
        self.x, self.rows = self.given.copy("F"), len(rows)
        self.descriptor = (c_int * 9)(1, make_context(pr, pc), m, n, block, block, 0, 0, max(1, len(rows)))

    def fill(self):
        self.x[...] = self.given

    @property
    def arguments(self):
        return self.x.ctypes.data_as(c_void_p), byref(c_int(1)), byref(c_int(1)), self.descriptor


def call(name, *arguments):
    info = c_int()
    getattr(load_library(), name)(*arguments, byref(info))
    if info.value:
        raise SystemExit(f"{name}: info {info.value}")


def list_routines(m, n, *placing):
    """List, by name, the preparation and the timed call. placing: the block, and rows and columns of the grid."""
    return list_square(n, *placing) if m == n else list_tall(m, n, *placing)


def list_square(n, *placing):
    P, G, B = (Matrix(n, n, *placing, shift) for shift in (2 * n**0.5, 0, 0))
    size, one, flags = byref(c_int(n)), byref(c_double(1)), map(c_char_p, (b"L", b"L", b"N", b"N"))
    flags, pivots = [*flags], np.empty(G.rows + placing[0], np.int32)
    (workspaces, tau), pdtrsm = make_workspaces(n, n, placing[0]), load_library().pdtrsm_
    pivots_pointer = pivots.ctypes.data_as(c_void_p)
    potrf = lambda: call("pdpotrf_", LOWER, size, *P.arguments)  # noqa: E731
    getrf = lambda: call("pdgetrf_", size, size, *G.arguments, pivots_pointer)  # noqa: E731
    dense = min(placing[0], max(1, n // max(placing[1:]))), *placing[1:]  # ELPA stops where a rank has no element
    S, V, w = Matrix(n, n, *dense), Matrix(n, n, *dense), np.empty(n)
    work_arrays = np.empty(30 * n + 3 * S.x.size + 3 * placing[0] * (n + 1)), np.empty(14 * n + 8 * placing[2] + 2, np.int32)
    spectrum = with_lengths(work_arrays)
    found = w.ctypes.data_as(c_void_p), *V.arguments
    counted = *[byref(c_double())] * 2, *[byref(c_int())] * 2, byref(c_int()), byref(c_int()), *found
    vectors, every = c_char_p(b"V"), c_char_p(b"A")
    elpa = {"eigh, ELPA": (S.fill, bind_elpa(n, S, w, V, *dense))} if find_library("elpa") else {}
    return elpa | {
        "eigh": (S.fill, lambda: call("pdsyevd_", vectors, LOWER, size, *S.arguments, *found, *spectrum)),
        "eigh, pdsyevr": (S.fill, lambda: call("pdsyevr_", vectors, every, LOWER, size, *S.arguments, *counted, *spectrum)),
        "eigvalsh": (S.fill, lambda: call("pdsyev_", c_char_p(b"N"), LOWER, size, *S.arguments, *found, *spectrum[:2])),
        "Cholesky": (P.fill, potrf),
        "LU": (G.fill, getrf),
        "QR": (G.fill, lambda: call("pdgeqrf_", size, size, *G.arguments, tau, *workspaces[:2])),
        "triangular": (lambda: (P.fill(), B.fill()), lambda: pdtrsm(*flags, size, size, one, *P.arguments, *B.arguments)),
        "inverse": (G.fill, lambda: (getrf(), call("pdgetri_", size, *G.arguments, pivots_pointer, *workspaces))),
        "inverse, pos": (P.fill, lambda: (potrf(), call("pdpotri_", LOWER, size, *P.arguments))),
    }


def list_tall(m, n, *placing):
    A, B = Matrix(m, n, *placing), Matrix(m, 1, *placing)
    (rows, cols, one), (workspaces, tau) = (byref(c_int(size)) for size in (m, n, 1)), make_workspaces(m, n, placing[0])
    geqrf = lambda: call("pdgeqrf_", rows, cols, *A.arguments, tau, *workspaces[:2])  # noqa: E731
    gels = lambda: call("pdgels_", c_char_p(b"N"), rows, cols, one, *A.arguments, *B.arguments, *workspaces[:2])  # noqa: E731
    return {
        "QR with Q": (A.fill, lambda: (geqrf(), call("pdorgqr_", rows, cols, cols, *A.arguments, tau, *workspaces[:2]))),
        "lstsq": (lambda: (A.fill(), B.fill()), gels),
    }


def bind_elpa(n, S, w, V, block, pr, pc):
    """Collective: set up ELPA's one stage for n x n matrices that lie as S; return the call that finds w and V."""
    library, status = CDLL(find_library("elpa")), c_int()
    library.elpa_allocate.restype = c_void_p
    if library.elpa_init(ELPA_API):
        raise SystemExit(f"ELPA has no interface of {ELPA_API}")
    handle, (i, j) = c_void_p(library.elpa_allocate(byref(status))), divmod(MPI.COMM_WORLD.rank, pc)
    figures = {
        "na": n, "nev": n, "local_nrows": S.x.shape[0], "local_ncols": S.x.shape[1], "nblk": block,
        "mpi_comm_parent": MPI.COMM_WORLD.py2f(), "process_row": i, "process_col": j,
    }
    for key, value in figures.items():
        library.elpa_set_integer(handle, c_char_p(key.encode()), value, byref(status))
    if fault := library.elpa_setup(handle):
        raise SystemExit(f"elpa_setup: {fault}")
    library.elpa_set_integer(handle, c_char_p(b"solver"), 1, byref(status))

    def find_eigenvectors():
        library.elpa_eigenvectors_a_h_a_d(handle, *(x.ctypes.data_as(c_void_p) for x in (S.x, w, V.x)), byref(status))
        if status.value:
            raise SystemExit(f"elpa_eigenvectors: {status.value}")

    return find_eigenvectors


def make_workspaces(m, n, block):
    """Make arguments of workspaces of numbers and integers with their lengths, and one for tau."""
    arrays = np.empty((m + n + block) * block * 2), np.empty(4 * (n + block) * 2, np.int32)
    return with_lengths(arrays), np.empty(m + n).ctypes.data_as(c_void_p)


def with_lengths(arrays):
    """Convert arrays to arguments, each followed by its length."""
    return [x for array in arrays for x in (array.ctypes.data_as(c_void_p), byref(c_int(array.size)))]


def list_grids(ranks, few):
    """Rows of grids: all divisors of the ranks, or those of the two most nearly square grids with no more rows than columns."""
    every = [pr for pr in range(1, ranks + 1) if ranks % pr == 0]
    return [pr for pr in every if pr * pr <= ranks][-2:] if few else every


def time_turn(before, call):
    """Collective: milliseconds, and the mean bytes that a host's link received."""
    comm = MPI.COMM_WORLD
    before()
    received = count_received()
    comm.Barrier()
    start = time.perf_counter()
    call()
    comm.Barrier()
    return 1e3 * (time.perf_counter() - start), comm.allreduce(count_received() - received) / comm.size


def search(m, n, names, few):
    """Collective: find, by name, the least milliseconds, the bytes, and their block and grid."""
    ranks, best = MPI.COMM_WORLD.size, {}
    for pr in list_grids(ranks, few):
        for block in BLOCKS:
            routines = list_routines(m, n, block, pr, ranks // pr)
            for name in names:
                for _ in range(TURNS):
                    turn = MPI.COMM_WORLD.bcast(time_turn(*routines[name]))
                    best[name] = min(best.get(name, ((1e9, 0),)), (turn, block, pr))
    return best


def read_name():
    """Collective: read the next line of the input; the ranks sleep until it comes."""
    comm = MPI.COMM_WORLD
    line = sys.stdin.readline() if comm.rank == 0 else None
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(NAP)
    return comm.bcast(line).strip()


def serve(m, n, best):
    """Collective: answer names until the input ends."""
    ranks, places = MPI.COMM_WORLD.size, {place[1:] for place in best.values()}
    routines = {(block, pr): list_routines(m, n, block, pr, ranks // pr) for block, pr in sorted(places)}
    while name := read_name():
        milliseconds, _ = time_turn(*routines[best[name][1:]][name])
        if MPI.COMM_WORLD.rank == 0:
            print(milliseconds, flush=True)


def main(m, n, names, file=None):
    best = search(m, n, names.split(";"), file)
    if not file:
        serve(m, n, best)
    elif MPI.COMM_WORLD.rank == 0:
        Path(file).write_text(json.dumps({name: turn for name, (turn, *_) in best.items()}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
