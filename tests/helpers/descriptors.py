"""Blocks as a code that calls ScaLAPACK has them."""

import numpy as np


def numroc(n, first, block, me, source, parts):
    """Which of n indices a process holds, index by index."""
    return [i for i in range(n) if ((i + block - first) // block + source) % parts == me]


def dealt(whole, desc, coords, shape):
    """This process's block in Fortran order, with lld rows, and which rows and columns it has."""
    rows = numroc(desc.m, desc.imb, desc.mb, coords[0], desc.rsrc, shape[0])
    cols = numroc(desc.n, desc.inb, desc.nb, coords[1], desc.csrc, shape[1])
    block = np.full((desc.lld, len(cols)), 77, whole.dtype, order="F")
    block[: len(rows)] = whole[np.ix_(rows, cols)]
    return block, rows, cols
