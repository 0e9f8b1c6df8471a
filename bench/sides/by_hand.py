"""A product without a library: an allgather of B's rows, then numpy.matmul with the local rows of A."""

import numpy as np
from mpi4py import MPI

from bench.common.product import Product, Side, cut_evenly, make_block


def make(comm: MPI.Comm, product: Product, variant: str) -> Side:
    rows, inner = (cut_evenly(size, comm.size, comm.rank) for size in (product.m, product.k))
    a = make_block(rows, np.arange(product.k), product.dtype)
    b = make_block(inner, np.arange(product.n), product.dtype)
    whole = np.empty((product.k, product.n), product.dtype)
    c = np.empty((len(rows), product.n), product.dtype)
    counts = [product.n * len(cut_evenly(product.k, comm.size, rank)) for rank in range(comm.size)]

    def multiply() -> np.ndarray:
        comm.Allgatherv(b.array, [whole, counts])
        return np.matmul(a.array, whole, out=c)

    return Side(a, b, (rows, b.cols), multiply, whole.nbytes, " ".join(MPI.Get_library_version().split()[:3]))
