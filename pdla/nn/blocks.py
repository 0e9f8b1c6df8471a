"""Make activations from blocks (`like`), and divide and join them by micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from pdla.cuts import Balanced
from pdla.layout import Layout
from pdla.matrix.core import DistMatrix
from pdla.nn.context import MicroBatch


def like(x: DistMatrix, block: Any, features: int | None = None, unit: int = 1) -> DistMatrix:
    """Make an activation of x's tokens, on x's grid, with another block. Local.

    Parameters
    ----------
    x : DistMatrix
        Its rows are cut as those of the result.
    block : array
        The local block, not copied, with the rows of x's block, and this rank's share of the
        features as columns.
    features : int, optional
        Features on all ranks together; by default x's, cut as x's.
    unit : int, optional
        With `features`: how many features the cuts keep together, such as a head's.

    Returns
    -------
    DistMatrix
        (tokens, features), on x's grid.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,), comm=comm)
    ...     x = pdla.ones((4, 6), grid, pdla.Layout(cols="row"))
    ...     pairs = x.local.repeat(2, axis=1)  # each feature twice
    ...     return pdla.nn.like(x, pairs, features=12, unit=2).shape
    >>> pdla.run(2, program)
    [(4, 12), (4, 12)]
    """
    if features is None:
        return DistMatrix(block, x.shape, x.grid, x.layout)
    cols = tuple(cut for old in x.layout.cols for cut in Balanced(old.axis, unit).expand())
    return DistMatrix(block, (x.shape[0], features), x.grid, Layout(x.layout.rows, cols))


def to_row_major(x: Any) -> Any:
    """Copy x to row-major blocks if some rank's block is stored by columns.

    Ranks that hold copies of one block must add its elements in the same order, to round equally.
    """
    return x.copy() if isinstance(x, DistMatrix) and x.gaps > 1 else x


def take_part(x: Any, batch: MicroBatch) -> Any:
    """View a micro-batch's rows of an activation x. An array of token numbers is returned whole."""
    if not batch.several or not isinstance(x, DistMatrix):
        return x
    start, stop = batch.find_bounds(x.stored.shape[0], batch.find_unit(x.layout))
    return DistMatrix(x.stored[start:stop], (batch.tokens, x.shape[1]), x.grid, x.layout)


def join_parts(parts: list[Any]) -> Any:
    """Join the micro-batches' rows in one matrix, one part below the other."""
    if len(parts) == 1 or parts[0] is None:
        return parts[0]
    first = parts[0]
    block = first.xp.empty((sum(p.stored.shape[0] for p in parts), first.stored.shape[1]), first.dtype)
    at = 0
    for part in parts:
        first.xp.copy(block[at : at + part.stored.shape[0]], part.stored)
        at += part.stored.shape[0]
    return DistMatrix(block, (sum(p.shape[0] for p in parts), first.shape[1]), first.grid, first.layout)


def split_parts(x: DistMatrix, sizes: Sequence[tuple[int, int]]) -> list[DistMatrix]:
    """Split what `join_parts` joined, given the rows of each part on this rank and on all ranks."""
    if len(sizes) == 1:
        return [x]
    ends = accumulate([rows for rows, _ in sizes], initial=0)
    spans = zip(pairwise(ends), sizes, strict=True)
    return [DistMatrix(x.stored[lo:hi], (tokens, x.shape[1]), x.grid, x.layout) for (lo, hi), (_, tokens) in spans]
