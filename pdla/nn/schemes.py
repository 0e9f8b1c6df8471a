"""Six schemes: the tables of layouts in the papers, and options that change a table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pdla.grid import ProcessGrid
from pdla.nn.scheme import Scheme, Table


def is_true(flag: object) -> bool:
    """Whether a flag is True, Python's or NumPy's. Scheme.__init__ refuses what is no flag."""
    return isinstance(flag, (bool, np.bool_)) and bool(flag)


class Serial(Scheme):
    """Nothing is cut: every rank computes everything. Collective to make.

    The reference for the other schemes.

    Parameters
    ----------
    grid : ProcessGrid
        Any axes, without idle ranks.
    keep, shards, panel : bool, int, int, optional
        As `Scheme`'s.
    _flags : mapping, optional
        For subclasses.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Serial(pdla.ProcessGrid((2,), comm=comm))
    ...     return scheme.shard(np.ones((8, 6))).local.shape
    >>> pdla.run(2, program)
    [(8, 6), (8, 6)]
    """

    first = second = Table("", "|", "|", "|")


class Megatron1D(Scheme):
    """Weights in columns, then in rows; activations whole between the pairs. Collective to make.

    Parameters
    ----------
    grid : ProcessGrid
        Axes: row; data.
    sequence_parallel : bool, optional
        True cuts tokens between the pairs, over the same ranks. An all-gather before the first
        layer and a reduce-scatter after the second replace the all-reduce.
    keep : bool, optional
        As `Scheme`'s; by default True without `sequence_parallel`.
    shards : int, optional
        As `Scheme`'s.

    Notes
    -----
    Shoeybi et al., arXiv 1909.08053. With `sequence_parallel`: Korthikanti et al., arXiv
    2205.05198.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,), comm=comm)
    ...     scheme = pdla.nn.Megatron1D(grid, sequence_parallel=True)
    ...     return scheme.shard(np.ones((8, 6))).local.shape
    >>> pdla.run(2, program)
    [(4, 6), (4, 6)]
    """

    first = Table("row:o", "|", "| row", "| row")
    second = Table("row:i", "| row", "row |", "|")

    def __init__(self, grid: ProcessGrid, *, sequence_parallel: bool = False, keep: bool | None = None, shards: int = 1) -> None:
        if is_true(sequence_parallel):
            self.first, self.second = replace(self.first, X="row |"), replace(self.second, Y="row |")
        kept = not is_true(sequence_parallel) if keep is None else keep
        super().__init__(grid, keep=kept, shards=shards, _flags={"sequence_parallel": sequence_parallel})


class Summa2D(Scheme):
    """All matrices in 2-D blocks: SUMMA for each product. Collective to make.

    Parameters
    ----------
    grid : ProcessGrid
        Axes: row, col; data.
    keep, shards : bool, int, optional
        As `Scheme`'s.
    panel : int, optional
        Indices in a panel: a rank then holds little more than its blocks. By default a product's
        panels are gathered all at once.

    Notes
    -----
    Optimus, arXiv 2104.05343: SUMMA is closed under differentiation.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Summa2D(pdla.ProcessGrid((1, 2), comm=comm))
    ...     return scheme.shard(np.ones((8, 6))).local.shape
    >>> pdla.run(2, program)
    [(8, 3), (8, 3)]
    """

    first = second = Table("row:t col:o", "row | col", "row | col", "row | col")

    def __init__(self, grid: ProcessGrid, *, keep: bool = False, shards: int = 1, panel: int | None = None) -> None:
        super().__init__(grid, keep=keep, shards=shards, panel=panel)


class Tesseract(Summa2D):
    """Summa2D on each layer of a grid with depth. Collective to make.

    Depth cuts tokens. Each layer of the grid has all weights.

    Parameters
    ----------
    grid : ProcessGrid
        Axes: row, col, depth; data.
    cut_weights : bool, optional
        True cuts weights over depth as well. They are gathered before use, their gradients
        scattered.
    keep, shards, panel : bool, int, int, optional
        As `Summa2D`'s.

    Notes
    -----
    arXiv 2105.14500.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((1, 1, 2), ("row", "col", "depth"), comm=comm)
    ...     return pdla.nn.Tesseract(grid).shard(np.ones((8, 6))).local.shape
    >>> pdla.run(2, program)
    [(4, 6), (4, 6)]
    """

    first = second = Table("depth:t row:t col:o", "depth row | col", "row | col", "depth row | col")

    def __init__(
        self, grid: ProcessGrid, *, cut_weights: bool = False, keep: bool = False, shards: int = 1, panel: int | None = None
    ) -> None:
        if is_true(cut_weights):
            self.first = self.second = replace(self.first, W="row depth | col")
        Scheme.__init__(self, grid, keep=keep, shards=shards, panel=panel, _flags={"cut_weights": cut_weights})


class Cube3D(Scheme):
    """No matrix is copied: each is gathered, or its sums scattered, along one axis of a cube.

    Collective to make.

    Parameters
    ----------
    grid : ProcessGrid
        Axes: row, col, depth; data.
    keep, shards, panel : bool, int, int, optional
        As `Scheme`'s.
    _flags : mapping, optional
        For subclasses.

    Notes
    -----
    arXiv 2105.14450. The paper's weight group is the ranks that differ in col, its input group in
    row, its output group in depth. Row and depth swap from layer to layer.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((1, 2, 1), ("row", "col", "depth"), comm=comm)
    ...     return pdla.nn.Cube3D(grid).shard(np.ones((8, 6))).local.shape
    >>> pdla.run(2, program)
    [(4, 6), (4, 6)]
    """

    first = Table("col:t row:o depth:i", "col row | depth", "depth col | row", "col depth | row")
    second = first.swap_axes("row", "depth")


class Tensor3D(Scheme):
    """Inputs are cut over col and outputs over row; row and col swap from layer to layer.

    Collective to make. Depth cuts tokens and, at rest, weights. Weights are gathered before use,
    their gradients scattered.

    Parameters
    ----------
    grid : ProcessGrid
        Axes: row (the paper's Gr), col (Gc); depth, data.
    keep, shards : bool, int, optional
        As `Scheme`'s.

    Notes
    -----
    arXiv 2305.13525 (version 1).

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Tensor3D(pdla.ProcessGrid((1, 2), comm=comm))
    ...     return scheme.shard(np.ones((8, 6))).local.shape
    >>> pdla.run(2, program)
    [(8, 3), (8, 3)]
    """

    first = Table("depth:t row:o col:i", "depth | col", "col depth | row", "depth | row")
    second = first.swap_axes("row", "col")
    optional = ("depth",)

    def __init__(self, grid: ProcessGrid, *, keep: bool = False, shards: int = 1) -> None:
        super().__init__(grid, keep=keep, shards=shards)
