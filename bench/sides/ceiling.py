"""The ranks' own GEMMs and no communication: each has what it needs of A and B for its 2-D block of C."""

from math import isqrt

import numpy as np
from mpi4py import MPI
from sides.product import Product, Side, block, interval


def near_square(ranks: int) -> tuple[int, int]:
    rows = next(p for p in range(isqrt(ranks), 0, -1) if ranks % p == 0)
    return rows, ranks // rows


def make(comm: MPI.Comm, product: Product, variant: str) -> Side:
    pr, pc = near_square(comm.size)
    i, j = divmod(comm.rank, pc)
    rows, cols, inner = interval(product.m, pr, i), interval(product.n, pc, j), np.arange(product.k)
    a, b = block(rows, inner, product.dtype), block(inner, cols, product.dtype)
    c = np.empty((len(rows), len(cols)), product.dtype)
    return Side(a, b, (rows, cols), lambda: np.matmul(a.array, b.array, out=c), about=f"NumPy {np.__version__}")
