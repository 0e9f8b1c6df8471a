"""The ranks' own GEMMs without communication: each rank holds the parts of A and B for its 2-D block of C.

Variant "barriers": a barrier follows each GEMM, since a product ends with the last rank. Waiting ranks leave their cores.
"""

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import pdla
from bench.common.product import Product, Side, choose_grid, cut_evenly, make_block


def make(comm: MPI.Comm, product: Product, variant: str) -> Side:
    pr, pc = choose_grid(comm.size)
    i, j = divmod(comm.rank, pc)
    rows, cols, inner = cut_evenly(product.m, pr, i), cut_evenly(product.n, pc, j), np.arange(product.k)
    a, b = make_block(rows, inner, product.dtype), make_block(inner, cols, product.dtype)
    c = np.empty((len(rows), len(cols)), product.dtype)
    wait = make_barrier(comm) if variant == "barriers" else do_nothing

    def multiply():
        np.matmul(a.array, b.array, out=c)
        wait()
        return c

    return Side(a, b, (rows, cols), multiply, about=f"NumPy {np.__version__}")


def do_nothing() -> None: ...


def make_barrier(comm: MPI.Comm) -> Callable[[], None]:
    """Make the fastest barrier: pdla's shared buffer, where the ranks of a node meet without messages."""
    shared_buffer = pdla.as_communicator(comm.Dup()).shared_buffer()
    assert shared_buffer is not None
    shared_buffer.open(0)
    return shared_buffer.finish
