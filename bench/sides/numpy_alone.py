"""NumPy in one process, on the job's number of BLAS threads: the machine without ranks."""

import numpy as np
from mpi4py import MPI

from bench.common.product import Product, Side, make_block


def make(comm: MPI.Comm, product: Product, variant: str) -> Side:
    m, n, k = map(np.arange, (product.m, product.n, product.k))
    a, b = make_block(m, k, product.dtype), make_block(k, n, product.dtype)
    c = np.empty((product.m, product.n), product.dtype)
    return Side(a, b, (m, n), lambda: np.matmul(a.array, b.array, out=c), about=f"NumPy {np.__version__}")
