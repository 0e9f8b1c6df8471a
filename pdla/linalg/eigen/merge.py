"""Merge two halves of a tridiagonal eigenproblem: a rank's rows of Q = diag(Q1, Q2) S.

      D + rho z z^T = S diag(w) S^T,  S_ij = z_i / (D_i - w_j) / |z / (D - w_j)|

A rank has rows of Q1 or of Q2; the other half's columns are 0 there. Each rank computes columns of S as it multiplies by them.
Vectors that take O(n^2) work are computed by shares.

z is recomputed so that the computed w are its exact roots. Columns of S are then orthogonal even
for close roots (Gu and Eisenstat, SIAM J. Matrix Anal. Appl. 16 (1995)). Differences to w have all
their digits, as w is stored as its difference to the nearer D.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pdla.comm.communicator import Communicator
from pdla.comm.ledger import buffer, take
from pdla.linalg.eigen.secular import Wave, deflate, find_roots
from pdla.matmul.schedules.streams import multiply

WIDTH = 256  # least columns that are computed at a time


class Team:
    """Ranks of a communicator whose rows are merged, and who share work."""

    def __init__(self, comm: Communicator, ranks: Sequence[int]) -> None:
        self.comm, self.ranks = comm, ranks

    def broadcast(self, parts: Iterable[tuple[int, Any]]) -> None:
        """Collective: broadcast arrays to the team. parts: pairs of an owner and its array."""
        rank, parts = self.comm.rank, [(owner, x) for owner, x in parts if x.size]
        coming = [self.comm.recv(x, owner) for owner, x in parts if owner != rank]
        leaving = [self.comm.send(x, to) for owner, x in parts if owner == rank for to in self.ranks if to != rank]
        for pending in (*coming, *leaving):
            pending.wait()

    def find_share(self, n: int) -> slice:
        """Local: find this rank's share of n numbers."""
        return find_shares(n, len(self.ranks))[self.ranks.index(self.comm.rank)]

    def gather_shares(self, x: Any) -> Any:
        """Collective: gather x, of which each rank has computed its share."""
        self.broadcast((rank, x[part]) for rank, part in zip(self.ranks, find_shares(len(x), len(self.ranks)), strict=True))
        return x


def find_shares(n: int, ranks: int) -> list[slice]:
    """Divide n things into one share for each rank, in order."""
    return [slice(*ends) for ends in pairwise(n * r // ranks for r in range(ranks + 1))]


def cut_strips(numbers: np.ndarray, width: int) -> Iterator[np.ndarray]:
    """Cut numbers into strips of this width."""
    return (numbers[begin : begin + width] for begin in range(0, len(numbers), width))


class Factor:
    """S, stored as vectors: the poles D, w = near + tau, z, and the lengths of columns."""

    def __init__(self, xp: Any, team: Team, D: np.ndarray, z: np.ndarray, rho: float) -> None:
        """Collective over the team. D is ascending, and z of length 1."""
        self.xp, self.D, k = xp, D, len(D)
        mine, x = team.find_share(k), [buffer(xp, (k,), D.dtype) for _ in range(3)]
        rows = max(1, xp.AT_ONCE // max(1, k))
        # 1 + rho sum z_i^2 / (D_i - w) = 0
        xp.copy(x[0][mine], xp.asarray(find_roots(xp, D, z, rho, mine.start, mine.stop)))
        self.tau = xp.host_or(team.gather_shares(x[0]), np.zeros_like(D))
        self.near = D[np.arange(k) + (self.tau < 0)]
        # z_i^2 = (w_i - D_i) prod_j (w_j - D_i) / (D_j - D_i), j != i
        poles = xp.asarray(D)
        for i in cut_strips(np.arange(mine.start, mine.stop), rows):
            ratios, apart = self.compute_gaps(i, slice(None)), buffer(xp, (len(i), k), D.dtype)
            np.subtract(xp.asarray(D[i])[:, None], poles, out=apart)
            xp.place(apart, np.arange(len(i)), i, -1)
            ratios /= apart
            xp.copy(x[1][i[0] : i[-1] + 1], np.sqrt(ratios.prod(axis=1)))
        self.z = np.copysign(xp.host_or(team.gather_shares(x[1]), np.ones_like(D)), z)
        # |z / (D - w_j)|
        for j in cut_strips(np.arange(mine.start, mine.stop), rows):
            columns = self.compute_gaps(slice(None), j)
            np.divide(xp.asarray(self.z)[:, None], columns, out=columns)
            columns *= columns
            xp.copy(x[2][j[0] : j[-1] + 1], np.sqrt(columns.sum(axis=0)))
        self.lengths = xp.host_or(team.gather_shares(x[2]), np.ones_like(D))

    @property
    def w(self) -> np.ndarray:
        return self.near + self.tau

    def compute_gaps(self, i: Any, j: Any) -> Any:
        """Local: compute D_i - w_j, a row for each of some i, and a column for each of some j."""
        xp, near = self.xp, self.near[j]
        x = buffer(xp, (len(self.D[i]), len(near)), near.dtype)
        np.subtract(xp.asarray(self.D[i])[:, None], xp.asarray(near), out=x)
        x -= xp.asarray(self.tau[j])
        return x


class Vectors:
    """The rows Q that this rank has of eigenvectors, and the eigenvalues w, ascending."""

    def __init__(self, xp: Any, w: np.ndarray, Q: Any) -> None:
        self.xp, self.w, self.Q = xp, w, Q

    def form_all(self) -> Any:
        """Local: form these rows of all eigenvectors; only as the last call."""
        return self.Q

    def form(self, numbers: np.ndarray, out: Any) -> None:
        """Local: write these rows of some eigenvectors to the columns of `out`."""
        for at in cut_strips(np.arange(len(numbers)), WIDTH):
            self.xp.put(out, slice(None), at, take(self.xp, self.Q, slice(None), numbers[at]))


class Merged(Vectors):
    """Rows of the merged problem's eigenvectors, diag(Q1, Q2) S; columns are computed on request.

    Q        this rank's rows of Q1 or of Q2
    columns  Q's columns in diag(Q1, Q2)
    """

    def __init__(self, xp: Any, team: Team, d: np.ndarray, z: np.ndarray, rho: float, Q: Any, columns: slice) -> None:
        """Collective over the team. z is of length 1."""
        scale = int(np.frexp(max(np.abs(d).max(), rho))[1])
        d, rho = np.ldexp(d, -scale), float(np.ldexp(rho, -scale))
        left = deflate(d, z, rho)
        self.S = S = Factor(xp, team, left.d[left.kept], left.z[left.kept], rho)
        w = np.concatenate([S.w, left.d[left.dropped]])
        self.order = np.argsort(w, kind="stable")
        Q, place = _rotate(xp, Q, columns, len(d), left.waves)
        super().__init__(xp, np.ldexp(w[self.order], scale), Q)
        # X = diag(Q1, Q2) diag(z), without columns that are 0 on this rank
        self.dropped, self.here = place[left.dropped], np.flatnonzero(place[left.kept] >= 0)
        self.X = take(xp, Q, slice(None), place[left.kept[self.here]])
        self.X *= xp.asarray(S.z[self.here])

    def form_all(self) -> Any:
        made = buffer(self.xp, (len(self.Q), len(self.w)), self.w.dtype)
        self.form(np.arange(len(self.w)), made)
        self.Q = self.X = None  # their memory is needed for the next merge
        return made

    def form(self, numbers: np.ndarray, out: Any) -> None:
        source, k = self.order[numbers], len(self.S.D)
        for at in cut_strips(np.flatnonzero(source < k), max(WIDTH, self.xp.AT_ONCE // max(1, k))):
            self._multiply(source[at], at, out)
        at = np.flatnonzero(source >= k)
        place = self.dropped[source[at] - k]
        for zeros in cut_strips(at[place < 0], WIDTH):
            self.xp.put(out, slice(None), zeros, self.xp.asarray(np.zeros((len(out), len(zeros)), self.w.dtype)))
        at, place = at[place >= 0], place[place >= 0]
        for part in cut_strips(np.arange(len(at)), WIDTH):
            self.xp.put(out, slice(None), at[part], take(self.xp, self.Q, slice(None), place[part]))

    def _multiply(self, j: np.ndarray, at: np.ndarray, out: Any) -> None:
        """Local: write columns j of X S to columns `at` of `out`."""
        S = self.S.compute_gaps(self.here, j)
        np.divide(1, S, out=S)
        together = at[-1] - at[0] + 1 == len(at)
        C = out[:, at[0] : at[-1] + 1] if together else buffer(self.xp, (len(out), len(at)), S.dtype)
        multiply(self.xp, self.X, S, C, 1, 0)
        C /= self.xp.asarray(self.S.lengths[j])
        if not together:
            self.xp.put(out, slice(None), at, C)


def _rotate(xp: Any, Q: Any, columns: slice, n: int, waves: Sequence[Wave]) -> tuple[Any, np.ndarray]:
    """Local: rotate Q, in place unless zero columns fill; return Q, and each of n columns' index in Q, < 0 for a zero column."""
    own = np.arange(n)[columns]
    filled = np.zeros(n, bool)
    filled[own] = True
    for wave in waves:
        filled[wave.x] = filled[wave.y] = filled[wave.x] | filled[wave.y]
    place = np.full(n, -1)
    place[own] = np.arange(len(own))
    filled[own] = False
    place[filled] = len(own) + np.arange(filled.sum())
    if filled.any():
        before, Q = Q, buffer(xp, (len(Q), int(place.max()) + 1), Q.dtype)
        xp.copy(Q[:, : len(own)], before)
        xp.scale(Q[:, len(own) :], 0)
    for wave in waves:
        both = np.flatnonzero((place[wave.x] >= 0) & (place[wave.y] >= 0))
        for i in cut_strips(both, WIDTH):
            at, c, s = (place[wave.x[i]], place[wave.y[i]]), xp.asarray(wave.c[i]), xp.asarray(wave.s[i])
            x, y = (xp.take(Q, slice(None), each) for each in at)
            xp.put(Q, slice(None), at[0], x * c + y * s)
            xp.put(Q, slice(None), at[1], y * c - x * s)
    return Q, place
