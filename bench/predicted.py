"""Predicted beside measured, in one run: products by messages, factorizations, and transformer layers, forward and backward.

mpirun -n 2 python -m bench.predicted [rounds]        5 rounds

Each round calibrates the machine, predicts every case by a dry run of rank 0 on it, and measures it. Figures are medians over the
rounds; an error compares the medians. Fresh pages are memory that rank 0 had given back and the system had to provide anew during a
run: each costs microseconds, which no dry run predicts. With these settings glibc keeps such memory:

MALLOC_TRIM_THRESHOLD_=1000000000 MALLOC_MMAP_THRESHOLD_=1000000000 mpirun -n 2 python -m bench.predicted
"""

import time
from resource import RUSAGE_SELF, getrusage
from statistics import median

import numpy as np

import pdla
from bench.common.given import started
from pdla import linalg, nn
from pdla.bench.arguments import positive
from pdla.bench.measure import calibration
from pdla.linalg.panels.blocks import in_blocks
from pdla.linalg.plan import price
from pdla.linalg.plan.routine import Task
from pdla.linalg.routines import CHOLESKY, LU, TRIANGULAR

LAYOUT = pdla.Layout("row", "col")
BY_NAME = {"cholesky": CHOLESKY, "lu": LU, "triangular": TRIANGULAR}


def product(comm, n, algorithm, dtype):
    """A function to time: a planned product."""
    grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm)
    A, C = pdla.zeros((n, n), grid, LAYOUT, dtype=dtype), pdla.zeros((n, n), grid, LAYOUT, dtype=dtype)
    plan = pdla.plan_matmul(A, A, algorithm=algorithm, out=C)
    return lambda: plan(A, A, out=C)


def factored(comm, name, n, dtype):
    """A function to time: a factorization, or a system with as many right-hand sides, in square blocks as pdla chooses."""
    kind = np.dtype(dtype)
    shape, block = price.cheapest(Task(BY_NAME[name], n, n, kind, pdla.Machine()), comm.size)[0]
    grid, blocks = pdla.ProcessGrid(shape, comm=comm), in_blocks(shape, block)
    A = pdla.random((n, n), grid, blocks, dtype=dtype) + n * pdla.eye(n, grid, blocks, dtype=dtype)
    B = pdla.ones((n, n), grid, pdla.Layout(pdla.Cyclic("row", block), "col"), dtype=dtype)
    return {
        "cholesky": lambda: linalg.cho_factor(A, check_finite=False),
        "lu": lambda: linalg.lu_factor(A, check_finite=False),
        "triangular": lambda: linalg.solve_triangular(A, B, lower=True, check_finite=False),
    }[name]


def layer(comm, kind, hidden, dtype):
    """A function to time: a transformer layer forward and backward."""
    axes = ("row",) if kind is nn.Megatron1D else ("row", "col")
    scheme = kind(pdla.ProcessGrid(pdla.balanced_shape(comm.size, len(axes)), axes, comm))
    net = nn.TransformerLayer(scheme, hidden, 8, sequence=128, dtype=dtype)
    shape = 8 * 128, hidden
    x = pdla.random(shape, scheme.grid, scheme.residual(128), dtype=dtype)
    return lambda: net.backward(net.forward(x))


CASES = {
    **{f"{algorithm} {n} {dtype}": (product, n, algorithm, dtype)
       for algorithm in ("summa", "gather") for n in (512, 1024, 2048) for dtype in ("float64", "float32")},
    **{f"{name} {n} {dtype}": (factored, name, n, dtype)
       for name in ("cholesky", "lu", "triangular") for n in (1024, 2048) for dtype in ("float64", "float32")},
    **{f"{kind.__name__} layer of {hidden} {dtype}": (layer, kind, hidden, dtype)
       for kind in (nn.Megatron1D, nn.Summa2D, nn.Tensor3D) for hidden in (256, 512) for dtype in ("float64", "float32")},
}


def predicted(case, ranks, machine):
    """Seconds that the case takes in a dry run the second time; the first time plans."""
    make, *arguments = case

    def program(comm):
        run = make(comm, *arguments)
        run()
        start = comm.clock.time
        run()
        return comm.clock.time - start

    return pdla.dry_run(ranks, program, machine=machine)[0]


def measured(comm, run):
    """Collective: seconds that run() takes the slowest rank, and fresh pages of the first rank."""
    comm.barrier()
    start, before = time.perf_counter(), getrusage(RUSAGE_SELF).ru_minflt
    run()
    told = comm.share((time.perf_counter() - start, getrusage(RUSAGE_SELF).ru_minflt - before))
    return max(seconds for seconds, _ in told), told[0][1]


def main(rounds=5):
    comm = pdla.world()
    runs = {name: make(comm, *arguments) for name, (make, *arguments) in CASES.items()}
    figures = {name: ([], [], []) for name in CASES}
    for _ in range(rounds):
        machine = comm.share(calibration.measured(comm))[0]
        for name, case in CASES.items():
            figures[name][0].append(predicted(case, comm.size, machine))
            for found, kept in zip(min(measured(comm, runs[name]) for _ in range(3)), figures[name][1:], strict=True):
                kept.append(found)
    if comm.rank:
        return
    print(f"{comm.size} ranks\n{'':36}{'predicted, ms':>15}{'measured, ms':>14}{'ratio':>8}{'fresh pages':>13}")
    errors = []
    for name, of_rounds in figures.items():
        told, found, pages = map(median, of_rounds)
        errors.append(abs(told / found - 1))
        print(f"{name:36}{1e3 * told:15.2f}{1e3 * found:14.2f}{told / found:8.2f}{pages:13.0f}")
    print(f"median error {median(errors):.0%}, largest {np.max(errors):.0%}")


if __name__ == "__main__":
    started(main, positive, __doc__)
