"""Predictions beside measurements, and the best measure of a product's size."""

import time
from resource import RUSAGE_SELF, getrusage
from statistics import median

import numpy as np

import pdla
from bench.common.case import case
from pdla import linalg, nn
from pdla.array import blas
from pdla.bench.arguments import natural, positive
from pdla.bench.measure import calibration
from pdla.bench.screen import Screen
from pdla.linalg.panels.blocks import cut_in_blocks
from pdla.linalg.plan import price
from pdla.linalg.plan.routine import Task
from pdla.linalg.routines import CHOLESKY, LU, QR, TRIANGULAR, TRIDIAGONAL

# ---------------------------------------------------------------------------------------------- predictions

LAYOUT = pdla.Layout("row", "col")


def make_product(comm, n, algorithm, dtype):
    """A function to time: a planned product."""
    grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm)
    A, C = pdla.zeros((n, n), grid, LAYOUT, dtype=dtype), pdla.zeros((n, n), grid, LAYOUT, dtype=dtype)
    plan = pdla.plan_matmul(A, A, algorithm=algorithm, out=C)
    return lambda: plan(A, A, out=C)


ROUTINES = {
    CHOLESKY: lambda A, B: linalg.cho_factor(A, check_finite=False),
    LU: lambda A, B: linalg.lu_factor(A, check_finite=False),
    QR: lambda A, B: linalg.qr(A, mode="raw", check_finite=False),
    TRIDIAGONAL: lambda A, B: linalg.eigh(A, check_finite=False),
    TRIANGULAR: lambda A, B: linalg.solve_triangular(A, B, lower=True, check_finite=False),
}


def make_factorization(comm, routine, n, dtype):
    """A function to time: a factorization, or a system of n columns, in pdla's choice of blocks."""
    shape, block = price.sort_by_price(Task(routine, n, n, np.dtype(dtype), pdla.Machine()), comm.size)[0]
    grid, blocks = pdla.ProcessGrid(shape, comm=comm), cut_in_blocks(shape, block)
    A = pdla.random((n, n), grid, blocks, dtype=dtype) + n * pdla.eye(n, grid, blocks, dtype=dtype)
    B = pdla.ones((n, n), grid, pdla.Layout(pdla.Cyclic("row", block), "col"), dtype=dtype)
    return lambda: ROUTINES[routine](A, B)


def make_layer(comm, kind, hidden, dtype):
    """A function to time: a transformer layer forward and backward."""
    axes = ("row",) if kind is nn.Megatron1D else ("row", "col")
    scheme = kind(pdla.ProcessGrid(pdla.balanced_shape(comm.size, len(axes)), axes, comm))
    net = nn.TransformerLayer(scheme, hidden, 8, sequence=128, dtype=dtype)
    shape = 8 * 128, hidden
    x = pdla.random(shape, scheme.grid, scheme.residual(128), dtype=dtype)
    return lambda: net.backward(net.forward(x))


CASES = {
    **{f"{algorithm} {n} {dtype}": (make_product, n, algorithm, dtype)
       for algorithm in ("summa", "gather") for n in (512, 1024, 2048) for dtype in ("float64", "float32")},
    **{f"{routine.name} {n} {dtype}": (make_factorization, routine, n, dtype)
       for routine in ROUTINES for n in (1024, 2048) for dtype in ("float64", "float32")},
    **{f"{kind.__name__} layer of {hidden} {dtype}": (make_layer, kind, hidden, dtype)
       for kind in (nn.Megatron1D, nn.Summa2D, nn.Tensor3D) for hidden in (256, 512) for dtype in ("float64", "float32")},
}


@case("case:<36 | predicted, ms:15.2f | measured, ms:14.2f | ratio:8.2f | fresh pages:13.0f")
def predicted(comm, rounds: positive = 5):
    """Predicted beside measured: products by messages, factorizations, and transformer layers.

    Each round calibrates the machine, predicts every case by a dry run of rank 0, and measures it.
    Figures are medians over the rounds; an error compares the medians. Fresh pages are memory that
    rank 0 had released and the system mapped anew during a run. Each costs microseconds, which no
    dry run predicts. With these settings glibc keeps such memory:

    MALLOC_TRIM_THRESHOLD_=1000000000 MALLOC_MMAP_THRESHOLD_=1000000000 mpirun -n 2 python -m bench
    predicted
    """
    runs = {name: make(comm, *arguments) for name, (make, *arguments) in CASES.items()}
    figures = {name: [] for name in CASES}
    for _ in range(rounds):
        machine = comm.share(calibration.measure_machine(comm, Screen(first=False)))[0]
        for name, measured_case in CASES.items():
            figures[name].append((predict(measured_case, comm.size, machine), *min(measure(comm, runs[name]) for _ in range(3))))
    errors = []
    yield f"{comm.size} ranks"
    for name, of_round in figures.items():
        forecast, measured, pages = map(median, zip(*of_round, strict=True))
        errors.append(abs(forecast / measured - 1))
        yield name, 1e3 * forecast, 1e3 * measured, forecast / measured, pages
    yield f"median error {median(errors):.0%}, largest {np.max(errors):.0%}"


def predict(case, ranks, machine):
    """Seconds of a case's second dry run; the first plans."""
    make, *arguments = case

    def program(comm):
        run = make(comm, *arguments)
        run()
        start = comm.clock.time
        run()
        return comm.clock.time - start

    return pdla.dry_run(ranks, program, machine=machine)[0]


def measure(comm, run):
    """Collective: seconds of run() on the slowest rank, and fresh pages of the first rank."""
    comm.barrier()
    start, before = time.perf_counter(), getrusage(RUSAGE_SELF).ru_minflt
    run()
    by_rank = comm.share((time.perf_counter() - start, getrusage(RUSAGE_SELF).ru_minflt - before))
    return max(seconds for seconds, _ in by_rank), by_rank[0][1]


# ---------------------------------------------------------------------------------------------- rates

SQUARES = [8 << step for step in range(8)]
THIN = [shape for t in (8, 16, 32, 64, 128) for n in (128, 256, 512, 1024)
        for shape in ((n, n, t), (t, n, n), (n, t, n), (n, t, t), (t, t, n))]
STACK, TURNS = 1 << 21, 7
SIZES = {
    "cube root of mnk": lambda m, n, k: np.cbrt(m * n * k),
    "least side": lambda m, n, k: np.minimum(np.minimum(m, n), k),
    "middle side": lambda m, n, k: np.median([m, n, k], axis=0),
    "harmonic mean": lambda m, n, k: 3 / (1 / m + 1 / n + 1 / k),
    "flops a word": lambda m, n, k: 3 * m * n * k / (m * k + k * n + 2 * m * n),
    "m": lambda m, n, k: m,
    "n": lambda m, n, k: n,
    "k": lambda m, n, k: k,
}


@case("size:<18 | median error:14.0% | nine in ten within:20.0%")
def rates(seed: natural = 0):
    """Candidates for the size of an m x n x k product, by which square products predict its rate.

    Shapes are thin, tall and random. Rates are those of stacks of products that no cache holds, as
    `pdla.bench calibrate` measures them. For each candidate, such as the least side, the time of a
    shape is predicted as a Machine does: the work at the rate of the square product of that size. If
    reading and writing the matrices takes longer, that time counts instead. Prints the median error
    of the prediction, and its 90% quantile over shapes. Run it with OMP_NUM_THREADS=1.
    """
    blas.set_threads(1)
    draws = 2 ** np.random.default_rng(seed).uniform(3, 10, (25, 3))
    m, n, k = shapes = np.array(THIN + draws.astype(int).tolist(), float).T
    x, y = np.ones(2 * STACK), np.ones(2 * STACK)
    moved = (m * k + k * n + 2 * m * n) / (3 * x.size) * time_best(lambda: np.add(x, y, out=x))
    square_rates = [2 * size**3 / time_product(size, size, size) for size in SQUARES]
    seconds = np.array([time_product(*map(int, shape)) for shape in shapes.T])
    for name, size in SIZES.items():
        rate = np.exp(np.interp(np.log(size(*shapes)), np.log(SQUARES), np.log(square_rates)))
        errors = np.abs(np.maximum(2 * m * n * k / rate, moved) / seconds - 1)
        yield name, np.median(errors), np.quantile(errors, 0.9)


def time_best(work):
    """Seconds of the fastest turn."""
    seconds = []
    for _ in range(TURNS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def time_product(m, n, k):
    """Seconds of one m x n x k product."""
    count = max(1, STACK // max(m * k, k * n, m * n))
    a, b, c = (np.ones((count, *shape)) for shape in ((m, k), (k, n), (m, n)))
    return time_best(lambda: np.matmul(a, b, out=c)) / count
