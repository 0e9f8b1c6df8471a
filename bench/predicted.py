"""Predicted beside measured, in one run: products by messages and transformer layers, forward and backward.

mpirun -n 2 python bench/predicted.py [rounds]        5 rounds

Each round calibrates the machine, predicts every case by a dry run of rank 0 on it, and measures it. The figures are medians over
rounds; the error is that of the median prediction.
"""

import sys
import time
from statistics import median

import numpy as np

import pdla
from pdla import nn
from pdla.bench import calibrate

LAYOUT = pdla.Layout("row", "col")


def product(comm, n, algorithm, dtype):
    """What is timed: a planned product."""
    grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm)
    A, C = pdla.zeros((n, n), grid, LAYOUT, dtype=dtype), pdla.zeros((n, n), grid, LAYOUT, dtype=dtype)
    plan = pdla.plan_matmul(A, A, algorithm=algorithm, out=C)
    return lambda: plan(A, A, out=C)


def layer(comm, kind, hidden, dtype):
    """What is timed: a transformer layer forward and backward."""
    axes = ("row",) if kind is nn.Megatron1D else ("row", "col")
    scheme = kind(pdla.ProcessGrid(pdla.balanced_shape(comm.size, len(axes)), axes, comm))
    net = nn.TransformerLayer(scheme, hidden, 8, sequence=128, dtype=dtype)
    shape = 8 * 128, hidden
    x = pdla.random(shape, scheme.grid, scheme.residual(128), dtype=dtype)
    return lambda: net.backward(net.forward(x))


CASES = {
    **{f"{algorithm} {n} {dtype}": (product, n, algorithm, dtype)
       for algorithm in ("summa", "gather") for n in (512, 1024, 2048) for dtype in ("float64", "float32")},
    **{f"{kind.__name__} layer of {hidden} {dtype}": (layer, kind, hidden, dtype)
       for kind in (nn.Megatron1D, nn.Summa2D, nn.Tensor3D) for hidden in (256, 512) for dtype in ("float64", "float32")},
}  # fmt: skip


def predicted(case, ranks, machine):
    """Seconds of the second time; the first plans."""
    make, *arguments = case

    def program(comm):
        run = make(comm, *arguments)
        run()
        start = comm.clock.time
        run()
        return comm.clock.time - start

    return pdla.dry_run(ranks, program, machine=machine)[0]


def measured(comm, run):
    comm.barrier()
    start = time.perf_counter()
    run()
    return max(comm.share(time.perf_counter() - start))


def main(rounds=5):
    comm = pdla.world()
    runs = {name: make(comm, *arguments) for name, (make, *arguments) in CASES.items()}
    seconds = {name: ([], []) for name in CASES}
    for _ in range(rounds):
        machine = comm.share(calibrate.measured(comm))[0]
        for name, case in CASES.items():
            seconds[name][0].append(predicted(case, comm.size, machine))
            seconds[name][1].append(min(measured(comm, runs[name]) for _ in range(3)))
    if comm.rank:
        return
    print(f"{comm.size} ranks\n{'':36}{'predicted, ms':>15}{'measured, ms':>14}{'ratio':>8}")
    errors = []
    for name, (told, found) in seconds.items():
        ratio = median(told) / median(found)
        errors.append(abs(ratio - 1))
        print(f"{name:36}{1e3 * median(told):15.2f}{1e3 * median(found):14.2f}{ratio:8.2f}")
    print(f"median error {median(errors):.0%}, largest {np.max(errors):.0%}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
