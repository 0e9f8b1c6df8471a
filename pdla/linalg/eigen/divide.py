"""Eigenvalues and eigenvectors of a symmetric tridiagonal matrix, by divide and conquer. Each rank has rows of eigenvectors.

      T = diag(T1, T2) + rho v v^T,  T1 = Q1 D1 Q1^T,  T2 = Q2 D2 Q2^T

      T = diag(Q1, Q2) (D + rho z z^T) diag(Q1, Q2)^T,  D + rho z z^T = S W S^T,  Q = diag(Q1, Q2) S

Each rank solves its rows of T, by LAPACK. Then groups of ranks are merged, two by two. A rank keeps its rows of Q, and multiplies
them by columns of S. It computes these columns from poles and roots. Only vectors are sent: D, z, roots, and vectors made of these,
of which each rank computes a share. At the end ranks exchange rows of Q for columns.

Cuppen, Numer. Math. 36 (1981); z is recomputed from the roots, so that columns of S are orthogonal
even for close roots: Gu and Eisenstat, SIAM J. Matrix Anal. Appl. 16 (1995).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.comm.agreement import collective_section
from pdla.comm.communicator import Communicator
from pdla.comm.ledger import buffer, count
from pdla.comm.workspace import Workspace, find_workspace, within
from pdla.cuts import Cyclic
from pdla.errors import LinAlgError
from pdla.grid import ProcessGrid
from pdla.layout import Layout
from pdla.linalg.eigen.merge import Merged, Team, Vectors, find_shares
from pdla.linalg.panels import kernels
from pdla.linalg.panels.blocks import share_numbers
from pdla.matrix.core import DistMatrix

LEAST = 96  # least rows of T on a rank; some ranks have none of a small T


def eigvalsh_tridiagonal(d: np.ndarray, e: np.ndarray, comm: Communicator) -> np.ndarray:
    """Collective: the eigenvalues, ascending, the same on every rank. d, e: diagonal and subdiagonal, on every rank.

    The first rank computes them: O(n^2) work, O(n) memory. LinAlgError if they are not finite.
    """
    xp, scale = comm.xp, _find_exponent(d, e)
    with collective_section(comm, "eigenvalues of a tridiagonal matrix"):
        w = kernels.sterf(xp, np.ldexp(d, -scale), np.ldexp(e, -scale)) if comm.rank == 0 else np.empty_like(d)
        w = xp.host_or(comm.bcast(xp.asarray(w), 0).wait(), w)
    return _unscale(w, scale)


def eigh_tridiagonal(
    d: np.ndarray, e: np.ndarray, grid: ProcessGrid, block: int, selected: range | None = None
) -> tuple[np.ndarray, DistMatrix]:
    """Collective: all eigenvalues, ascending, the same on every rank; and eigenvectors of the selected ones.

    d, e      diagonal and subdiagonal, the same on every rank, of one real dtype
    grid      one row of ranks, whose columns have cyclic blocks of `block` eigenvectors
    selected  indices of eigenvalues; None: all

    LinAlgError if eigenvalues are not finite.
    """
    n, comm, xp, scale = len(d), grid["col"], grid.comm.xp, _find_exponent(d, e)
    selected = range(n) if selected is None else selected
    d, e = np.ldexp(d, -scale), np.ldexp(e, -scale)
    d, e = xp.host_or(xp.asarray(d), np.arange(n, dtype=d.dtype)), xp.host_or(xp.asarray(e), np.ones(len(e), d.dtype))
    with collective_section(grid.comm, "eigenvectors of a tridiagonal matrix"), within(find_workspace() or Workspace()):
        w, Z = d, xp.empty((0, 0), d.dtype)
        if comm is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                tree = Tree(d, e, comm, xp)
                made = tree.solve()
                w, Z = tree.share_values(made), tree.redistribute(made, block, selected)
        w = share_numbers(grid, w)
    return _unscale(w, scale), DistMatrix(Z, (n, len(selected)), grid, Layout(cols=Cyclic("col", block)))


def _find_exponent(d: np.ndarray, e: np.ndarray) -> int:
    """Find the exponent of 2 that scales the largest element to about 1."""
    return int(np.frexp(max(np.abs(d).max(initial=0), np.abs(e).max(initial=0)))[1])


def _unscale(w: np.ndarray, scale: int) -> np.ndarray:
    if not np.isfinite(w).all():
        raise LinAlgError("the eigenvalues of a tridiagonal matrix were not found: they are not finite")
    return np.ldexp(w, scale)


class Tree:
    """One rank's work: its rows of the eigenvectors of ever larger parts of T.

    rows  each rank's rows of T, of ranks that have some
    d     the diagonal, less the ends of all rho v v^T
    """

    def __init__(self, d: np.ndarray, e: np.ndarray, comm: Communicator, xp: Any) -> None:
        self.comm, self.xp, self.e = comm, xp, e
        self.rows = find_shares(len(d), max(1, min(comm.size, len(d) // LEAST)))
        self.d, cuts = d.copy(), [rows.start for rows in self.rows[1:]]
        for cut in cuts:
            self.d[cut - 1 : cut + 1] -= abs(e[cut - 1])

    def solve(self) -> Vectors | None:
        """Collective: solve for all eigenvalues, and this rank's rows of eigenvectors, if it has any."""
        if self.comm.rank >= len(self.rows):
            return None
        rows = self.rows[self.comm.rank]
        made = Vectors(self.xp, *kernels.stedc(self.xp, self.d[rows], self.e[rows.start : max(rows.start, rows.stop - 1)]))
        for group in list_groups(self.comm.rank, len(self.rows)):
            made = self.merge(made, *group)
        return made

    def merge(self, half: Vectors, begin: int, mid: int, end: int) -> Vectors:
        """Collective over ranks begin to end - 1; ranks from mid on have T2's rows."""
        xp, dtype, team, rank = self.xp, self.d.dtype, Team(self.comm, range(begin, end)), self.comm.rank
        low, cut, high = self.rows[begin].start, self.rows[mid].start, self.rows[end - 1].stop
        ends, last = ((mid - 1, slice(0, cut - low)), (mid, slice(cut - low, high - low))), -1
        columns, Q, beta = ends[rank >= mid][1], half.form_all(), float(self.e[cut - 1])
        # D, and z, which is the last row of Q1 and the first of Q2
        both = buffer(xp, (high - low, 2), dtype)
        if rank in (mid - 1, mid):
            xp.copy(both[columns, 0], xp.asarray(half.w))
            xp.copy(both[columns, 1], Q[last if rank < mid else 0])
        team.broadcast((owner, both[part]) for owner, part in ends)
        d, z = xp.host_or(both, np.stack([np.arange(high - low), np.ones(high - low)], 1).astype(dtype)).T
        # T = diag(T1, T2) + |beta| v v^T
        z = z * np.sqrt(dtype.type(0.5))
        z[cut - low :] *= np.copysign(dtype.type(1), beta)
        return Merged(xp, team, np.ascontiguousarray(d), z, 2 * abs(beta), Q, columns)

    def share_values(self, made: Vectors | None) -> np.ndarray:
        """Collective: send the eigenvalues to ranks without rows."""
        idle = range(len(self.rows), self.comm.size)
        if idle and self.comm.rank in (0, *idle):
            x = self.xp.empty(self.d.shape, self.d.dtype) if made is None else self.xp.asarray(made.w)
            Team(self.comm, (0, *idle)).broadcast([(0, x)])
            return self.xp.host_or(x, self.d)
        assert made is not None
        return made.w

    def redistribute(self, made: Vectors | None, block: int, selected: range) -> Any:
        """Collective: exchange rows of the selected eigenvectors for this rank's columns."""
        comm, xp, dtype = self.comm, self.xp, self.d.dtype
        owner = np.arange(len(selected)) // block % comm.size
        numbers = [selected.start + np.flatnonzero(owner == r) for r in range(comm.size)]
        Z = xp.empty((len(self.d), len(numbers[comm.rank])), dtype)
        count(Z)
        coming, leaving = {r: Z[rows] for r, rows in enumerate(self.rows)}, {}
        mine = coming.pop(comm.rank, None)
        if made is not None:
            for r in range(comm.size):
                if r != comm.rank and len(numbers[r]):
                    leaving[r] = buffer(xp, (len(made.Q), len(numbers[r])), dtype)
                    made.form(numbers[r], leaving[r])
        dealing = comm.alltoall(leaving, coming if Z.size else {})
        if made is not None:
            made.form(numbers[comm.rank], mine)
        dealing.wait()
        return Z


def list_groups(rank: int, ranks: int) -> list[tuple[int, int, int]]:
    """Local: list this rank's groups in the binary tree of ranks, the smallest first.

    A group is its first rank, the first of its second half, and its end.
    """
    found, begin, end = [], 0, ranks
    while end - begin > 1:
        mid = (begin + end) // 2
        found.append((begin, mid, end))
        begin, end = (begin, mid) if rank < mid else (mid, end)
    return found[::-1]


def divide_words(n: int, k: int, ranks: int, block: int) -> float:
    """Words that a rank receives, in the mean, for k of n eigenvectors, without deflation."""
    rows = [part.stop - part.start for part in find_shares(n, max(1, min(ranks, n // LEAST)))]
    total = (ranks - len(rows)) * n
    for group in {group for rank in range(len(rows)) for group in list_groups(rank, len(rows))}:
        begin, mid, end = group
        low, high = sum(rows[begin:mid]), sum(rows[mid:end])
        # D and z of both halves;  roots, z and lengths by shares
        total += (end - begin - 1) * (2 + 3) * (low + high)
    owner = np.arange(k) // block % ranks
    dealt = n * k - sum(size * int((owner == r).sum()) for r, size in enumerate(rows))
    return (total + dealt) / ranks
