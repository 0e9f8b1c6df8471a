"""ScaLAPACK's pdgemm and psgemm (Debian's library), block-cyclic on the near-square grid; variant: the block size."""

import re
from ctypes import CDLL, RTLD_GLOBAL, byref, c_char_p, c_double, c_float, c_int, c_void_p
from ctypes.util import find_library
from functools import cache
from pathlib import Path

import numpy as np
from mpi4py import MPI

from bench.common.launch import SCALAPACK
from bench.common.product import Block, Product, Side, choose_grid, make_block


def list_indices(n: int, parts: int, i: int, width: int) -> np.ndarray:
    """Part i's indices of n, block-cyclic over `parts` in blocks of `width`."""
    indices = np.arange(n)
    return indices[indices // width % parts == i]


@cache
def load_library() -> CDLL:
    return CDLL(find_library(SCALAPACK), mode=RTLD_GLOBAL)


@cache
def make_context(pr: int, pc: int) -> int:
    """Collective: make a BLACS context over all ranks, in row order."""
    context = c_int()
    load_library().Cblacs_get(-1, 0, byref(context))
    load_library().Cblacs_gridinit(byref(context), c_char_p(b"R"), pr, pc)
    return context.value


def make_descriptor(rows: int, cols: int, width: int, grid: int, part: Block):
    lead = max(1, part.array.shape[0])
    return (c_int * 9)(1, grid, rows, cols, width, width, 0, 0, lead)


def make(comm: MPI.Comm, product: Product, variant: str) -> Side:
    m, n, k, width = product.m, product.n, product.k, int(variant)
    pr, pc = choose_grid(comm.size)
    i, j = divmod(comm.rank, pc)
    grid = make_context(pr, pc)
    parts, arguments = [], []
    for rows, cols in ((m, k), (k, n), (m, n)):
        part = make_block(list_indices(rows, pr, i, width), list_indices(cols, pc, j, width), product.dtype, order="F")
        arguments += [part.array.ctypes.data_as(c_void_p), *[byref(c_int(1))] * 2, make_descriptor(rows, cols, width, grid, part)]
        parts.append(part)
    real, call = (c_double, load_library().pdgemm_) if product.dtype == "float64" else (c_float, load_library().psgemm_)
    sizes, one, zero = [byref(c_int(size)) for size in (m, n, k)], byref(real(1)), byref(real(0))
    a, b, c = parts

    def multiply() -> np.ndarray:
        call(c_char_p(b"N"), c_char_p(b"N"), *sizes, one, *arguments[:8], zero, *arguments[8:])
        return c.array

    return Side(a, b, (c.rows, c.cols), multiply, about=name_versions())


def name_versions() -> str:
    """Name the MPI, ScaLAPACK and BLAS of this process."""
    mapped = set(re.findall(r"/\S*(?:scalapack|/libblas|/libopenblas\.|openblasp-r\d)\S*", Path("/proc/self/maps").read_text()))
    return ", ".join([MPI.Get_library_version().split(",")[0], *sorted(mapped)])
