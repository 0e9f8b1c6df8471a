"""Single elements, rows and columns of a matrix, gathered on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.comm.agreement import agreed, collective_section
from pdla.grid import ProcessGrid
from pdla.indices import IndexSet, Selection
from pdla.layout import Layout, find_shares
from pdla.matrix.core import DistMatrix
from pdla.matrix.keys import Index, in_words, to_slice
from pdla.matrix.redistribute import convert
from pdla.matrix.reductions import check_no_partial_sums


def gather_elements(A: DistMatrix, index: tuple[Index, Index]) -> Any:
    """Collective: gather an element, or a row or column as a vector; zeros without data. `index` has at least one number."""
    comm = A.grid.comm
    with agreed(comm, f"A[{in_words(index)}] of A={A.description}"):
        check_no_partial_sums(A, "an element")
    with collective_section(comm, "A[...]"):
        line = _select(A, index)
        whole = convert(line, Layout(), ProcessGrid.everyone(comm)).local
        array = comm.xp.host(comm.xp.host_or(whole, np.zeros(whole.shape, A.dtype)))
    span = next((part for part in index if isinstance(part, range)), None)
    return array[0, 0] if span is None else array.reshape(-1)[to_slice(span)].copy()


def _select(A: DistMatrix, index: tuple[Index, Index]) -> DistMatrix:
    """Local: the row, column or element of this index, as a matrix on the first ranks that hold it."""
    grid, coords, selections = A.grid, dict.fromkeys(A.grid.axes, 0), []
    shape, cuts = [*A.shape], [A.layout.rows, A.layout.cols]
    for axis, (part, held) in enumerate(zip(index, A.indices, strict=True)):
        selection: Selection = slice(None)
        if isinstance(part, int):
            single = IndexSet.interval(part, part + 1)
            [(owner_coords, _)] = find_shares(shape[axis], cuts[axis], grid.sizes, single)
            coords |= owner_coords
            shape[axis], cuts[axis], selection = 1, (), held.overlay(single)[0]
        selections.append(selection)
    layout = Layout.trust(cuts[0], cuts[1])
    ranks = grid.ranks[tuple(slice(None) if axis in layout.axes else slice(coord, coord + 1) for axis, coord in coords.items())]
    holders = ProcessGrid.trust(ranks.shape, grid.comm, ranks.ravel(), grid.axes)
    base = A.xp.take(A.stored, *selections) if holders.active else A.xp.empty((0, 0), A.dtype)
    return DistMatrix(base, (shape[0], shape[1]), holders, layout, conjugated=A.conjugated)
