"""Which single number tells the rate of an m x n x k product best, given the rates of square ones: on thin, tall and random shapes.

OMP_NUM_THREADS=1 python -m bench.rates [seed]

Rates are those of stacks of products that no cache holds, as `pdla.bench calibrate` measures them. For each candidate (the least
side, say) a shape's time is predicted as a Machine does: its work at the rate of the square product of that size, or the time to
read and write the matrices if that is longer. Prints the median error of the prediction, and that which nine in ten shapes stay
within.
"""

import time

import numpy as np

from bench.common.given import started
from pdla.array import blas
from pdla.bench.arguments import natural

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


def best(work):
    """Seconds of the fastest turn."""
    seconds = []
    for _ in range(TURNS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def product(m, n, k):
    """Seconds of one m x n x k product."""
    count = max(1, STACK // max(m * k, k * n, m * n))
    a, b, c = (np.ones((count, *shape)) for shape in ((m, k), (k, n), (m, n)))
    return best(lambda: np.matmul(a, b, out=c)) / count


def main(seed=0):
    blas.hold(1)
    draws = 2 ** np.random.default_rng(seed).uniform(3, 10, (25, 3))
    m, n, k = shapes = np.array(THIN + draws.astype(int).tolist(), float).T
    x, y = np.ones(2 * STACK), np.ones(2 * STACK)
    moved = (m * k + k * n + 2 * m * n) / (3 * x.size) * best(lambda: np.add(x, y, out=x))
    rates = [2 * size**3 / product(size, size, size) for size in SQUARES]
    found = np.array([product(*map(int, shape)) for shape in shapes.T])
    for name, size in SIZES.items():
        told = np.exp(np.interp(np.log(size(*shapes)), np.log(SQUARES), np.log(rates)))
        errors = np.abs(np.maximum(2 * m * n * k / told, moved) / found - 1)
        print(f"{name:18} median {np.median(errors):4.0%}, nine in ten within {np.quantile(errors, 0.9):4.0%}")


if __name__ == "__main__":
    started(main, natural, __doc__)
