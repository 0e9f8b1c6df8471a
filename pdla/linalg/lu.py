"""LU with partial pivoting, P A = L U, and systems that it solves.

A is worked on in block columns over a row of ranks, so that a panel lies on one rank, and its pivots are LAPACK's, on any number of
ranks. Step k: the rank that has block column k factors it, and sends it with its pivots to the others; each exchanges rows of its
columns, solves for its part of U, and updates what lies below, block column k + 1 first, so that panel k + 1 is on its way while
the others are updated.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from pdla.comm.agreement import agreed, collective_section
from pdla.comm.pending import Pending
from pdla.comm.slots import Slots
from pdla.comm.workspace import Workspace, within
from pdla.cuts import Block
from pdla.errors import LinAlgError, ShapeError
from pdla.layout import Layout, axes_of, effective
from pdla.linalg import checks, kernels
from pdla.linalg.block_cyclic import block_size, brought, dimensions, square_blocks, told, working
from pdla.linalg.right_side import RightSide
from pdla.linalg.triangular import in_square_blocks, regular, substituted
from pdla.matmul.checks import communicator
from pdla.matmul.schedules.streams import multiply
from pdla.matrix.core import DistMatrix

ALL = slice(None)


def lu_factor(A: DistMatrix, *, overwrite_a: bool = False, check_finite: bool = True) -> tuple[DistMatrix, np.ndarray]:
    """Factor a matrix with partial pivoting: P A = L U. Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        m x n, in any layout.
    overwrite_a : bool, optional
        Whether A may be written to, which spares a copy where it lies as it is worked on.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.

    Returns
    -------
    LU : DistMatrix
        L below the diagonal, whose ones are not stored, and U above it, in block columns over a row
        of ranks.
    pivots : array
        For i below min(m, n) the row pivots[i] with which row i was exchanged: NumPy's, on every
        rank.

    Raises
    ------
    LinAlgError
        For NaN and infinity.
    ShapeError, AgreementError
        For what is no matrix, or of a dtype that LAPACK has not, on every rank, as all of these.

    See Also
    --------
    lu_words : The words that a rank receives.

    Notes
    -----
    Columns that lie `Cyclic` along one axis of the grid, rows whole, are worked on where they are;
    else A is brought there. A singular U is warned of, as by SciPy.

    Right-looking with lookahead, as HPL (Petitet et al., netlib.org/benchmark/hpl).

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[1, 2], [4, 4]]), grid, pdla.Layout("row"))
    ...     LU, pivots = pdla.linalg.lu_factor(A)
    ...     return LU.gather(), pivots
    >>> pdla.run(2, program)[0]
    (array([[4.  , 4.  ],
           [0.25, 1.  ]]), array([1, 1]))
    """
    with agreed(communicator((A,)), checks.words("lu_factor", A, over=overwrite_a, finite=check_finite)):
        dtype = checks.to_factor("lu_factor", A, overwrite_a, check_finite, rectangular=True)
    X, pivots, singular = factored(A, dtype, overwrite_a)
    if singular:
        warnings.warn(f"lu_factor: {_zero(singular)}", RuntimeWarning, stacklevel=2)
    return X, pivots


def lu_solve(lu_and_piv: tuple[DistMatrix, np.ndarray], B: Any, *, check_finite: bool = True, layout: Layout | None = None) -> Any:
    """Solve A X = B by A's LU factors. Collective over their grid, idle ranks included.

    Parameters
    ----------
    lu_and_piv : tuple of DistMatrix and array
        As `lu_factor` gives it.
    B : DistMatrix or array
        n x m, or a vector of n numbers; see `solve_triangular`.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    layout : Layout, optional
        Of X; by default B's.

    Returns
    -------
    DistMatrix or array
        X, as B is.

    Raises
    ------
    LinAlgError
        Where U is singular; for NaN and infinity.
    ShapeError, LayoutError, GridError, AgreementError
        As by `solve_triangular`, on every rank, as all of these.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[1, 2], [4, 4]]), grid, pdla.Layout("row"))
    ...     return pdla.linalg.lu_solve(pdla.linalg.lu_factor(A), np.array([5., 12]))
    >>> pdla.run(2, program)[0]
    array([1., 2.])
    """
    X, pivots = lu_and_piv if isinstance(lu_and_piv, tuple) and len(lu_and_piv) == 2 else (lu_and_piv, None)
    said = checks.words("lu_solve", X, pivots, B, finite=check_finite, layout=layout)
    with agreed(communicator((X, B), "lu_and_piv"), said):
        checks.flags(check_finite=check_finite)
        checks.square("lu_solve", X)
        _pivots(X, pivots)
        side = RightSide.of("lu_solve", X, B, layout)
        if check_finite:
            checks.finite(X, B)
    return solved_by_lu(X, np.asarray(pivots), side)


def _pivots(X: DistMatrix, pivots: Any) -> None:
    n = X.shape[0]
    kept = isinstance(pivots, np.ndarray) and pivots.dtype.kind in "iu" and pivots.shape == (n,)
    if not kept or not (0 <= pivots.min(initial=0) <= pivots.max(initial=0) < max(1, n)):
        raise ShapeError(f"lu_solve: pivots={pivots!r}: {n} numbers of rows, as lu_factor gives them")


def _zero(singular: int) -> str:
    return f"element ({singular - 1}, {singular - 1}) of U is 0 or NaN"


def solved_by_lu(X: DistMatrix, pivots: np.ndarray, side: RightSide) -> Any:
    """Collective: X of L U X = P B, as its right-hand side wants it."""
    with collective_section(X.grid.comm, "a solution by LU"), within(Workspace()):
        X = in_square_blocks(X, side.dtype)
        regular(X)
        Y = RightSide(_exchanged(X, pivots, side), None, side.dtype)
        Y = RightSide(substituted(X, Y, True, True), None, side.dtype)
        return side.back(substituted(X, Y, False, False))


def solved_by_adjoint(X: DistMatrix, pivots: np.ndarray, side: RightSide) -> Any:
    """Collective: x of A^H x = b from the factors of A, b a vector."""
    with collective_section(X.grid.comm, "a solution by LU"), within(Workspace()):
        T = in_square_blocks(X, side.dtype).H
        Y = RightSide(substituted(T, side, True, False), None, side.dtype)
        x = side.back(substituted(T, Y, False, True))
    return x[np.argsort(order(pivots))]


def _exchanged(X: DistMatrix, pivots: np.ndarray, side: RightSide) -> DistMatrix:
    """Collective: B with its rows exchanged, whole columns over the ranks that have X's columns."""
    columns = tuple(map(Block, axes_of(effective(X.layout.cols, X.grid.sizes))))
    Y = side.brought(Layout.trusted((), columns), X.grid)
    if Y.stored.size:
        _exchange(Y.xp, Y.stored, *moves(pivots, 0))
    return Y


def solved_by_factoring(A: DistMatrix, side: RightSide, overwrite: bool) -> Any:
    """Collective: X of A X = B; LinAlgError, on every rank, for a singular A."""
    return solved_by_lu(*regular_factors(A, side.dtype, overwrite), side)


def regular_factors(A: DistMatrix, dtype: np.dtype, overwrite: bool) -> tuple[DistMatrix, np.ndarray]:
    """Collective: L and U in one matrix, and the pivots; LinAlgError, on every rank, for a singular A."""
    X, pivots, singular = factored(A, dtype, overwrite)
    if singular:
        raise LinAlgError(f"the matrix is singular: {_zero(singular)}")
    return X, pivots


def factored(A: DistMatrix, dtype: np.dtype, overwrite: bool) -> tuple[DistMatrix, np.ndarray, int]:
    """Collective: L and U in one matrix, the pivots, and the number of the first that is 0 or NaN, from 1 on; 0: none is."""
    with collective_section(A.grid.comm, "an LU factorization"), within(Workspace()):
        X = _in_block_columns(A, dtype, overwrite)
        steps = LU(X)
        numbers = told(X.grid, steps.run() if X.grid.active else np.zeros(1 + min(A.shape)))
    return X, numbers[1:].astype(np.int64), int(numbers[0])


def _in_block_columns(A: DistMatrix, dtype: np.dtype, overwrite: bool) -> DistMatrix:
    if square_blocks(A) and not effective(A.layout.rows, A.grid.sizes):
        return brought(A, A.layout, A.grid, dtype, overwrite)
    ranks = A.grid.comm.size
    return brought(A, *working(A, (1, ranks), block_size(min(A.shape), ranks)), dtype)


class LU:
    """One rank's work: L and U in place of its block columns of A."""

    def __init__(self, X: DistMatrix) -> None:
        self.xp, self.a = X.xp, X.stored
        self.rows, self.cols = dimensions(X)
        (self.m, _), self.order = X.shape, min(X.shape)
        block = self.cols.block
        self.count = -(-self.order // block)
        self.along = Slots(self.cols.comm, self.xp, self.m * block + 1 + block, self.a.dtype)

    def run(self) -> np.ndarray:
        """The number of the first pivot that is 0 or NaN, 0 for none; and the pivots."""
        with self.along:
            return self._steps()

    def _steps(self) -> np.ndarray:
        numbers = np.zeros(1 + self.order)
        coming = self._panel(0) if self.count else None
        for k in range(self.count):
            head, panel = self._split(coming.wait(), k)  # type: ignore[union-attr]
            i, w = k * self.cols.block, self._width(k)
            numbers[0], numbers[1 + i : 1 + i + w] = numbers[0] or head[0], head[1:]
            exchanges, after = moves(head[1:].astype(np.int64), i), self._after(k)
            ahead = after + self.cols.width(k + 1) if self.cols.here == self.cols.owner(k + 1) and k + 1 < self.count else after
            self._advance(panel, exchanges, i, slice(after, ahead))
            coming = self._panel(k + 1) if k + 1 < self.count else None
            self._advance(panel, exchanges, i, slice(ahead, None))
            self.along.release()
            _exchange(self.xp, self.a[:, : self.cols.begins(k)], *exchanges)
        return numbers

    def _width(self, k: int) -> int:
        """The columns of panel k: of a matrix with fewer rows than columns the last may be narrower than its block."""
        return min(self.cols.block, self.order - k * self.cols.block)

    def _after(self, k: int) -> int:
        """Where this rank's columns after panel k begin."""
        return self.cols.begins(k) + (self._width(k) if self.cols.here == self.cols.owner(k) else 0)

    def _panel(self, k: int) -> Pending:
        """Factor block column k, and start sending it to the others: the panel by columns, then the head."""
        i, j, w, owner = k * self.cols.block, self.cols.begins(k), self._width(k), self.cols.owner(k)
        panel = self.along.take((self.m - i) * w + 1 + w, self.cols.here == owner)
        if self.cols.here != owner:
            return self.along.spread(panel, {owner: (ALL,)})
        block, mine = panel[: -1 - w].reshape(w, self.m - i).T, self.a[i:, j : j + w]
        self.xp.copy(block, mine)
        pivots, singular = kernels.getrf(self.xp, block)
        head = np.array([i + singular if singular else 0, *(i + pivots)], self.a.dtype)
        self.xp.copy(panel[-1 - w :], self.xp.asarray(head))
        coming = self.along.spread(panel, {owner: (ALL,)})
        self.xp.copy(mine, block)
        return coming

    def _split(self, panel: Any, k: int) -> tuple[np.ndarray, Any]:
        """The head, and the panel; of arrays without data pivots as of random elements, all in rows further down."""
        i, w = k * self.cols.block, self._width(k)
        unknown = np.array([0, *np.minimum(np.arange(i, i + w) + w, self.m - 1)])
        head = self.xp.known(panel[-1 - w :], unknown).real.astype(float)
        return head, panel[: -1 - w].reshape(w, self.m - i).T

    def _advance(self, panel: Any, exchanges: tuple[np.ndarray, np.ndarray], i: int, cols: slice) -> None:
        """Exchange rows of some columns after the panel, solve for U's, and update those below."""
        x, w = self.a[:, cols], panel.shape[1]
        if x.size:
            _exchange(self.xp, x, *exchanges)
            kernels.trsm(self.xp, panel[:w], x[i : i + w], True, True)
            multiply(self.xp, panel[w:], x[i : i + w], x[i + w :], -1, 1)


def moves(pivots: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Exchanges of rows first, first + 1, ... with rows `pivots`, one after another, as one move of rows.

    They are told as the rows that are written, and those whose contents they get.
    """
    lying: dict[int, int] = {}
    for i, j in enumerate(pivots.tolist(), first):
        if i != j:
            lying[i], lying[j] = lying.get(j, j), lying.get(i, i)
    return np.array([*lying], np.int64), np.array([*lying.values()], np.int64)


def order(pivots: np.ndarray) -> np.ndarray:
    """Which row of A is row i of P A."""
    rows, (to, was) = np.arange(len(pivots)), moves(pivots, 0)
    rows[to] = was
    return rows


def _exchange(xp: Any, x: Any, to: np.ndarray, was: np.ndarray) -> None:
    if len(to) and x.size:
        xp.put(x, to, ALL, xp.take(x, was, ALL))


def lu_words(m: int, n: int, ranks: int, block: int) -> float:
    """Words that a rank receives, in the mean, for LU of an m x n matrix, m >= n.

    Parameters
    ----------
    m, n : int
        Rows and columns.
    ranks : int
        Number of ranks, P.
    block : int
        Columns of a block.

    Returns
    -------
    float
        Exact where blocks divide n.

    Notes
    -----
    With K = n / block, (1 - 1/P) (m n - (n^2 - n block) / 2 + n + K): all panels but its own, with
    the pivots.

    Examples
    --------
    >>> pdla.linalg.lu_words(1024, 1024, 4, 64)
    418572.0
    """
    return (1 - 1 / ranks) * (m * n - (n * n - n * block) / 2 + n + n / block)
