"""Products, and checks and layouts around them, timed in turns on the ranks of a job."""

import os
from ctypes.util import find_library
from functools import partial
from itertools import product as cross
from statistics import median

import numpy as np
from threadpoolctl import threadpool_info

import pdla
from bench.common.case import case
from bench.common.given import read_shapes
from bench.common.launch import find_core_type
from bench.common.meeting import Meeting
from bench.common.product import Product, Side, choose_grid, cut_evenly, make_block
from bench.common.turns import check_sides, time_medians, time_turns
from bench.sides.ours import BLOCKS, make_grid, make_operands, make_side
from pdla import config
from pdla.array import blas as libraries
from pdla.array.numpy import gemm
from pdla.bench.arguments import positive

CALLS = 20  # of a turn of call_cost: without a barrier between them, as in a program's loop
SHAPES = ((512, 512), (1024, 1024), (2048, 2048), (2048, 256), (512, 8192))  # n x k of level3


@case(
    "n:6 | k:6 | A A^T:10.3g | syrk:10.3g | all see A:10.3g | S B:10.3g | symm:10.3g | syrk over A A^T:18.2f | all see:9.2f"
    " | symm over S B:15.2f"
)
def level3(comm, repeats: positive = 9):
    """The times of syrk and symm beside the full products, in turns: the gain of half the work.

    C = A A^T in 2-D blocks on the near-square grid, float64, by matmul, by syrk, and by syrk of an A
    in shared memory. Then S B of a symmetric S, by matmul, and by symm, which mirrors a triangle
    first. Prints median milliseconds. Then come the ratios of the second and third to the first, and
    of the last to the fourth.
    """
    meeting, grid = Meeting(comm.mpi), make_grid(comm)
    yield f"float64, {comm.size} ranks, {repeats} repeats; all exact on integers; ms"
    for n, k in SHAPES:
        whole, half, seen, product, symmetric = taken = time_medians(meeting, repeats, list_calls(n, k, grid))
        yield n, k, *taken, half / whole, seen / whole, symmetric / product


def list_calls(n, k, grid):
    """The calls of level3 by name, after a check on integers."""
    layout = BLOCKS[0]
    A, B = (pdla.random((n, k), grid, layout, distribution="integers", low=-4, high=5, seed=seed) for seed in (0, 1))
    S, C, D = A.shared(), pdla.zeros((n, n), grid, layout), pdla.zeros((n, k), grid, layout)
    symmetric = pdla.syrk(A, layout=layout, mirror=True)
    if not np.array_equal(np.tril((A @ A.T).gather()), np.tril(symmetric.gather())):
        raise SystemExit(f"n = {n}, k = {k}: syrk of integers is wrong")
    if not np.array_equal(pdla.symm(symmetric, B).gather(), (symmetric @ B).gather()):
        raise SystemExit(f"n = {n}, k = {k}: symm of integers is wrong")
    return {
        "A A^T": lambda: pdla.matmul(A, A.T, out=C),
        "syrk": lambda: pdla.syrk(A, out=C),
        "all see A": lambda: pdla.syrk(S, out=C),
        "S B": lambda: pdla.matmul(symmetric, B, out=D),
        "symm": lambda: pdla.symm(symmetric, B, out=D),
    }


@case("layouts:<18 | median s:10.4f | least s:10.4f | of native:11.2f | workspace MiB:15.1f | plan:<50")
def conversion(comm, n: positive = 4096, repeats: positive = 9, width: positive = 128):
    """Products from and to ScaLAPACK's block-cyclic layouts beside pdla's native layouts.

    Plans include conversions, and the layouts alternate. Blocks have `width` rows on the near-square
    grid; 2-D blocks are for comparison. Prints the median and the least seconds, the median over
    that of native layouts, and the workspace a rank.
    """
    meeting, product = Meeting(comm.mpi), Product(n, n, n, "float64")
    cyclic = (pdla.Layout(pdla.Cyclic("row", width), pdla.Cyclic("col", width)),) * 3
    own, *layouts_of_plan = pdla.native_layouts(n, n, n, comm=comm)
    placements = {
        "native": (own, layouts_of_plan),
        f"block-cyclic {width}": (make_grid(comm), cyclic),
        "2-D blocks": (make_grid(comm), BLOCKS),
    }
    sides = {name: make_side(*make_operands(product, grid, layouts)) for name, (grid, layouts) in placements.items()}
    check_sides(meeting, product, sides)
    times = time_turns(meeting, repeats, {name: side.multiply for name, side in sides.items()})
    yield f"n = {n}, float64, {comm.size} ranks, {repeats} repeats; all exact on integers"
    for name, seconds in times.items():
        ratio, space = median(seconds) / median(times["native"]), sides[name].workspace / 2**20
        yield name, median(seconds), min(seconds), ratio, space, sides[name].about


@case()
def call_cost(comm, n: positive = 64, turns: positive = 200):
    """The cost of a planned product of small blocks beside the same product written by hand.

    The 2-D blocks are so small that calls take all the time. The sides alternate in turns of 20
    calls. By hand, A's blocks are gathered along grid rows and B's along grid columns, into existing
    buffers. Then numpy.matmul writes C. Prints the slowest rank's median and least microseconds a
    call, and the ratio of the medians. Then `A @ B` follows in turns of its own. This call also finds
    its plan, checks the agreement of ranks, and allocates a matrix.
    """
    meeting, product = Meeting(comm.mpi), Product(n, n, n, "float64")
    A, B, C = make_operands(product, make_grid(comm), BLOCKS)
    hand, planned = make_by_hand(comm.mpi, product), make_side(A, B, C)
    check_sides(meeting, product, {"by hand": hand, "pdla": planned})
    yield f"{n} x {n} float64 on {comm.size} ranks, {turns} turns of {CALLS} calls, both exact on integers"
    yield planned.about
    for name, multiply in (("pdla", planned.multiply), ("A @ B", lambda: A @ B)):
        times = time_turns(meeting, turns, {"by hand": hand.multiply, name: multiply}, CALLS)
        for label, seconds in times.items():
            yield f"{label:8} median {1e6 * median(seconds):8.1f} us a call, least {1e6 * min(seconds):8.1f}"
        yield f"{name} over by hand: {median(times[name]) / median(times['by hand']):.2f}"


def make_by_hand(comm, product):
    pr, pc = choose_grid(comm.size)
    i, j = divmod(comm.rank, pc)
    in_row, in_column = comm.Split(i, j), comm.Split(j, i)
    rows, cols = cut_evenly(product.m, pr, i), cut_evenly(product.n, pc, j)
    a = make_block(rows, cut_evenly(product.k, pc, j), product.dtype)
    b = make_block(cut_evenly(product.k, pr, i), cols, product.dtype)
    parts, right_panel = np.empty((pc, *a.array.shape)), np.empty((product.k, len(cols)))
    left_panel, c = np.empty((len(rows), product.k)), np.empty((len(rows), len(cols)))
    in_order, as_they_come = left_panel.reshape(len(rows), pc, -1), parts.transpose(1, 0, 2)

    def multiply():
        in_row.Allgather(a.array, parts)
        in_column.Allgather(b.array, right_panel)
        np.copyto(in_order, as_they_come)
        return np.matmul(left_panel, right_panel, out=c)

    return Side(a, b, (rows, cols), multiply)


@case("m x n x k:<20 | dtype:<8 | NumPy's, ms:12.4g | the other, ms:15.4g")
def blas(comm, products: read_shapes = "2048x4096x128"):
    """A local product by NumPy's BLAS and by another BLAS.

    All ranks multiply at once, one thread each, by either library in turn. PDLA_BLAS names the
    other, such as libmkl_rt.so.3; the default is the system's OpenBLAS, which Debian's ScaLAPACK
    calls. Prints the median milliseconds over 21 turns of two products, and the version and the file
    of each BLAS. C has row order, and is only written. Commas separate several products.
    """
    meeting, draw = Meeting(comm.mpi), np.random.default_rng(comm.rank)
    os.environ.update(find_core_type())
    library = config.settings.blas or find_library("openblas")
    if not library:
        raise SystemExit("blas: there is no OpenBLAS of the system's here: PDLA_BLAS= names another library")
    libraries.load_library(library)
    libraries.set_threads(1)
    for (m, n, k), dtype in cross(products, ("float64", "float32")):
        a, b, c = draw.random((m, k)).astype(dtype), draw.random((k, n)).astype(dtype), np.zeros((m, n), dtype)
        with config.override(blas=library):
            gemm(a, b, c)
            if not np.allclose(c, a @ b):
                raise SystemExit(f"{m}x{n}x{k} {dtype}: the product by {library} is wrong")
            sides = {"NumPy's": partial(np.matmul, a, b, out=c), library: partial(gemm, a, b, c)}
            yield f"{m}x{n}x{k}", dtype, *time_medians(meeting, 21, sides, 2)
    for library_info in threadpool_info():
        if library_info["user_api"] == "blas":
            yield f"{library_info['internal_api']} {library_info['version']}: {library_info['filepath']}"


@case("routine:<10 | s:9.3f | checked, s:11.3f | ratio:7.3f | words / n:11.1f | messages:10.0f")
def verify(comm, n: positive = 2048, turns: positive = 7):
    """The cost of a check of products and factors: with verify=True beside without, in turns.

    Prints the slowest rank's median seconds of each, and their ratio. The last columns are the words
    that rank 0 receives for the check, over n, and its messages.
    """
    meeting, grid, layout = Meeting(comm.mpi), make_grid(comm), BLOCKS[0]
    A, B = (pdla.random((n, n), grid, layout, seed=seed) for seed in (1, 2))
    definite = A.copy()
    pdla.fill_diagonal(definite, n)  # cholesky reads one triangle
    routines = {
        "product": partial(pdla.matmul, A, B, out=pdla.zeros((n, n), grid, layout)),
        "lu_factor": partial(pdla.linalg.lu_factor, A),
        "cholesky": partial(pdla.linalg.cholesky, definite),
    }
    for name, routine in routines.items():
        sides, received = [partial(routine, verify=check) for check in (False, True)], []
        for side in sides:
            with pdla.record() as ledger:
                side()
            received.append(np.array([ledger.bytes_received / 8 / n, ledger.messages]))
        plain, twice = (1e-3 * milliseconds for milliseconds in time_medians(meeting, turns, dict(enumerate(sides))))
        yield name, plain, twice, twice / plain, *(received[1] - received[0])
