"""Matrices in memory that the ranks of a node share: one array, of which each rank's block is a part."""

from __future__ import annotations

from math import prod

from pdla.comm.agreement import agreed, collective_section
from pdla.errors import LayoutError
from pdla.matrix.core import DistMatrix


def copy_to_shared(X: DistMatrix) -> DistMatrix:
    """Collective: see DistMatrix.shared."""
    comm, xp = X.grid.comm, X.xp
    with agreed(comm, f"shared() of {X.description}"):
        _check(X)
    with collective_section(comm, "shared()"):
        shape = X.shape[::-1] if X.transposed else X.shape
        memory = comm.common(prod(shape) * X.dtype.itemsize)
        if memory is None:
            return X.copy()
        common = xp.view_at(memory, 0, shape, X.dtype)
        rows, cols = (held.selection for held in X.indices)
        base = common[cols, rows] if X.transposed else common[rows, cols]
        gaps = max(comm.share(int(base.size > 0 and base.shape[1] < shape[1])))
        shared = X._like(base, conjugated=False, gaps=gaps, common=common)
        xp.copy(shared.stored, X.local)
    return shared


def _check(X: DistMatrix) -> None:
    """Raise LayoutError unless one rank alone holds each element, and each block is one contiguous part of the matrix."""
    layout, grid = X.layout, X.grid
    copied = [axis for axis, p in grid.sizes.items() if p > 1 and axis not in layout.axes]
    if layout.partial or copied or not layout.contiguous:
        why = "has partial sums" if layout.partial else f"has copies along {', '.join(copied)}" if copied else "is cyclic"
        raise LayoutError(f"shared() of {X.description}: its layout {why}; redistribute to blocks first, as Layout('row', 'col')")
