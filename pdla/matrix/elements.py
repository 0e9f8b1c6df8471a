"""Single elements, rows and columns of a matrix, gathered on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.comm.agreement import agreed, collective_section
from pdla.grid import ProcessGrid
from pdla.indices import IndexSet, Selection
from pdla.layout import Layout, find_shares
from pdla.matrix.core import DistMatrix
from pdla.matrix.keys import Index, as_slice, in_words
from pdla.matrix.redistribute import convert
from pdla.matrix.reductions import check_no_partial_sums


def gather_elements(A: DistMatrix, index: tuple[Index, Index]) -> Any:
    """Collective: gather an element, or a row or column as a vector; without data 0. At least one of `index` is a number."""
    comm = A.grid.comm
    with agreed(comm, f"A[{in_words(index)}] of A={A.description}"):
        check_no_partial_sums(A, "an element")
    with collective_section(comm, "A[...]"):
        line = _select(A, index)
        whole = convert(line, Layout(), ProcessGrid.everyone(comm)).local
        found = comm.xp.host(comm.xp.host_or(whole, np.zeros(whole.shape, A.dtype)))
    rest = next((part for part in index if isinstance(part, range)), None)
    return found[0, 0] if rest is None else found.reshape(-1)[as_slice(rest)].copy()


def _select(A: DistMatrix, index: tuple[Index, Index]) -> DistMatrix:
    """Local: the row, column or element of this index, as a matrix on the first ranks that hold it."""
    grid, where, here = A.grid, dict.fromkeys(A.grid.axes, 0), []
    shape, cuts = [*A.shape], [A.layout.rows, A.layout.cols]
    for axis, (part, held) in enumerate(zip(index, A.indices, strict=True)):
        chosen: Selection = slice(None)
        if isinstance(part, int):
            alone = IndexSet.interval(part, part + 1)
            [(owner, _)] = find_shares(shape[axis], cuts[axis], grid.sizes, alone)
            where |= owner
            shape[axis], cuts[axis], chosen = 1, (), held.overlay(alone)[0]
        here.append(chosen)
    layout = Layout.trust(cuts[0], cuts[1])
    ranks = grid.ranks[tuple(slice(None) if axis in layout.axes else slice(at, at + 1) for axis, at in where.items())]
    holders = ProcessGrid.trust(ranks.shape, grid.comm, ranks.ravel(), grid.axes)
    base = A.xp.take(A.stored, *here) if holders.active else A.xp.empty((0, 0), A.dtype)
    return DistMatrix(base, (shape[0], shape[1]), holders, layout, conjugated=A.conjugated)
