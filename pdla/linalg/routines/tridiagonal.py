"""Reduction of a Hermitian matrix to a real tridiagonal one, A = Q T Q^H, by Householder's reflections, one stage.

Step j of a panel from column j0 on; V and W have the vectors v and w of the panel's previous columns:

    x = A[j:, j] - V W[j]^H - W V[j]^H         the column, with what the panel has left to do
    (I - tau v v^H)^H x[1:] = (e_j, 0, ...)    a reflection;  d_j = x_0
    y = A v - V (W^H v) - W (V^H v)            of the rows and columns after j
    w = tau y - tau/2 (tau y)^H v v

and after the panel A -= V W^H + W V^H. All ranks have block-cyclic columns, whose lower triangle is stored by columns. Each rank
multiplies its own by v, and reads an element once for A v and A^H v. The ranks sum y: one short all-reduce a column. A panel's
columns are broadcast at once, so that each rank computes x, v and w itself.

The last columns are few, and fit one rank's caches: LAPACK reduces them there, while the other ranks wait. Dongarra and van de
Geijn, Parallel Comput. 18 (1992).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from pdla.array.dtypes import near_one
from pdla.comm.clock import begin_step
from pdla.comm.communicator import Communicator
from pdla.comm.ledger import buffer, timed
from pdla.comm.pending import Pending
from pdla.comm.slots import Slots
from pdla.errors import LinAlgError
from pdla.grid import ProcessGrid
from pdla.layout import Layout
from pdla.linalg.panels import kernels
from pdla.linalg.panels.blocks import Dimension, find_dimensions
from pdla.linalg.plan import routine
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.plan.routine import GridShape
from pdla.linalg.routines.factorization import Factorization
from pdla.linalg.routines.qr import Product, reflect
from pdla.linalg.verify import Claim
from pdla.matmul.images import Images, Pair, Part
from pdla.matmul.schedules.streams import multiply, operations
from pdla.matrix.core import DistMatrix

ALL = slice(None)
BLOCK = 64  # columns that a rank has at a time
PANEL = 32  # columns of a panel
SMALL = 768  # columns that one rank reduces as fast as several ranks, with a sum for each column
CALLS = 16  # of NumPy for a column, besides its products with A
SAMPLED = 64  # panels of a dry run: with fewer than twice as many, all are run
CACHED = 2**16  # elements of A that are multiplied by v, and then by v from the left


class Tridiagonalization(Factorization):
    """A = Q T Q^H, with Q as reflections below the first subdiagonal."""

    name, what = "tridiagonal", "a reduction to tridiagonal form"
    about = "reduce a random symmetric matrix to tridiagonal form by Householder's reflections"
    algorithm, short_steps = "Householder, one stage", True

    def multiplications(self, m: int, n: int) -> float:
        return 2 * n**3 / 3

    def words(self, m: int, n: int, shape: GridShape, block: int) -> float:
        return tridiagonal_words(n, prod(shape), block)

    def price(self, step: routine.StepCost) -> float:
        w, n, ranks = step.width, step.cols, prod(step.shape)
        cube = (n + w) ** 3 - n**3
        if ranks == 1 or n < SMALL:
            return step.lapack(n + w, w, 2 * cube / 3) + step.touch(cube / 12)
        # A v reads a triangle twice, and the corrections read the panel's columns
        column = step.touch(cube / (6 * w * ranks)) + step.touch(n * PANEL * (1 / 2 + 1 / ranks)) + step.calls(CALLS)
        panel = step.gemm(n + w, -(-n // (2 * ranks)), 2 * PANEL) + step.message(0, n * PANEL)
        return w * (column + step.sum(0, n) + panel / PANEL)

    def keeps_layout(self, A: Any) -> bool:
        """Never: the algorithm works on a copy of one triangle."""
        return False

    def list_blockings(self, m: int, ranks: int) -> Sequence[tuple[GridShape, int]]:
        """List one blocking: the transpose's rows over all ranks, cyclic."""
        return (((ranks, 1), max(1, min(BLOCK, -(-m // ranks)))),)

    def numbers(self, m: int, n: int) -> int:
        return 1 + 4 * n

    def factor(self, X: DistMatrix) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return Tridiagonal(X).run()

    def result(self, X: DistMatrix, numbers: np.ndarray) -> Reduced:
        """Return T and the reflections; LinAlgError, on every rank, if a number is not finite."""
        n, real = X.shape[0], np.finfo(X.dtype).dtype
        check_sums(numbers)
        d, e, tau = numbers[1 : 1 + n], numbers[1 + n : 1 + 2 * n], numbers[1 + 2 * n :].view(complex)
        tau, most = tau if X.dtype.kind == "c" else tau.real, max(0, n - 1)
        scale = float(numbers[0]) or 1.0  # an idle rank of a dry run has zeros
        return Reduced(X.T, d.astype(real), e[:most].astype(real), tau[:most].astype(X.dtype), scale)

    def run(self, plan: FactorPlan, A: DistMatrix) -> Any:
        """Collective, unchecked: T of A^T, whose lower triangle is read, and the reflections, in block-cyclic columns."""
        return self(A, plan.place, plan.dtype, plan.overwrites("a"))

    def claim(self, A: DistMatrix, part: Part | None, images: Images, lost: str) -> Claim:
        """Claim: A^T x = Q (T (Q^H x))."""
        n = A.shape[0]

        def multiply_by_t(made: Reduced, x: Pair) -> Pair:
            d, e = made.d[:, None] / made.scale, made.e[:, None] / made.scale
            image, size = d * x[0], np.abs(d) * x[1]
            for total, z, below in ((image, x[0], e), (size, x[1], np.abs(e))):
                total[1:] += below * z[:-1]
                total[:-1] += below * z[1:]
            return image, size

        def steps(made: Reduced) -> tuple[Callable[[Pair], Pair], ...]:
            by_q = partial(reflect, made.reflections, made.tau, lower=1)
            return partial(by_q, adjoint=True), partial(multiply_by_t, made), by_q

        return Claim(
            n, 16 * n, lambda x: images.multiply_reflected(A.T, x, True), steps, matrices=lambda made: made[:1],
            control=lambda made: [each.tolist() for each in made[1:4]], lost=lost,
        )

    def draw(self, n: int, grid: ProcessGrid, layout: Layout, dtype: np.dtype) -> DistMatrix:
        A = super().draw(n, grid, layout, dtype)
        return A + A.H


TRIDIAGONAL = Tridiagonalization()


def check_sums(numbers: np.ndarray) -> None:
    """LinAlgError if a number computed from A is not finite."""
    if not np.isfinite(numbers).all():
        raise LinAlgError("A has elements that are infinite or NaN, or so large that sums of them are infinite")


class Reduced(NamedTuple):
    """scale A = Q T Q^H.

    reflections  reflections below the first subdiagonal, whose product is Q, in block-cyclic columns
    d, e         the diagonal of T, and the subdiagonal, on every rank
    tau          the reflections' factors
    """

    reflections: DistMatrix
    d: np.ndarray
    e: np.ndarray
    tau: np.ndarray
    scale: float


class Tridiagonal:
    """One rank's work: reflections in place of its columns of A.

    a       its columns, each contiguous in memory; the lower triangle is read
    d       the diagonal of T
    e, tau  one number for each reduced column
    v, y    all rows, at fixed addresses, so that all columns share the calls of products with A
    """

    xp: Any
    a: Any
    d: Any
    v: Any
    y: Any
    n: int
    cols: Dimension
    comm: Communicator | None
    slots: Slots

    def __init__(self, X: DistMatrix) -> None:
        R = X.T
        self.xp, self.n, self.cols, self.stored = R.xp, R.shape[0], find_dimensions(R)[1], R.stored
        self.comm = self.cols.comm
        if self.comm is None:  # one rank has all of A: one block
            self.cols = Dimension(self.n, BLOCK)
        self.a = self.stored
        if self.a.size and self.a.strides[0] != self.a.itemsize:
            self.a = buffer(self.xp, self.stored.shape[::-1], R.dtype).T
            self.xp.copy(self.a, self.stored)
        self.d, self.v, self.y = (buffer(self.xp, (self.n, 1), R.dtype) for _ in range(3))
        for x in (self.v, self.y):
            self.xp.scale(x, 0)
        self.e: list[float] = []
        self.tau: list[complex] = []

    def run(self) -> np.ndarray:
        """Collective: reduce A; return the scale, both diagonals of T, and tau."""
        n, scale = self.n, self.prepare()
        end = count_columns_together(n, self.cols.parts, self.cols.block)
        if end:
            self.reduce(end)
        d, e, tau = self.finish(end)
        if self.a is not self.stored:
            self.xp.copy(self.stored, self.a)
        before = self.xp.host_or(self.d[:end], np.zeros((end, 1))).real[:, 0]
        numbers = np.zeros(1 + 4 * n)
        numbers[0] = scale
        taus = np.array([*self.tau, *tau], complex).view(float)
        for at, part in ((1, np.concatenate([before, d])), (1 + n, np.array([*self.e, *e])), (1 + 2 * n, taus)):
            numbers[at : at + len(part)] = part
        if self.comm is None:
            return numbers
        shared = self.xp.asarray(numbers)  # the first rank's, as processors may round differently
        self.comm.bcast(shared, 0).wait()
        return self.xp.host_or(shared, numbers)

    def list_blocks(self, begin: int) -> list[tuple[int, slice]]:
        """Local: list this rank's blocks of columns from `begin` on, each as its first column and its slice."""
        cols, found = self.cols, []
        for k in cols.list_after(begin // cols.block - 1):
            first = max(begin, k * cols.block)
            found.append((first, slice(cols.at[k].start + first - k * cols.block, cols.at[k].stop)))
        return found

    def prepare(self) -> float:
        """Collective: mirror the lower triangles of diagonal blocks, and scale A if squares might leave its range.

        Return the power of 2 that scaled A.
        """
        xp, sizes = self.xp, [0.0]
        for first, at in self.list_blocks(0):
            block, on = self.a[first:, at], np.arange(at.stop - at.start)
            i, j = np.tril_indices(len(on), -1)
            xp.place(block, j, i, xp.reinterpret(xp.pick(block, i, j), True))
            xp.place(block, on, on, xp.pick(block, on, on).real)
            sizes.append(float(abs(block).max()))
        size = xp.asarray(np.array([np.max(sizes)]))
        for half in () if self.comm is None else self.comm.halves(size.copy(), size, "maximum"):
            half.wait()
        largest, kind = float(xp.host_or(size, np.ones(1))[0]), np.finfo(self.a.dtype)
        least = float(np.sqrt(kind.tiny) / kind.eps)
        if not np.isfinite(largest) or largest == 0 or least < largest < 1 / least:
            return 1.0
        scale = float(near_one(largest, self.a.dtype))
        xp.scale(self.a, scale)
        return scale

    def bind_products(self) -> tuple[list[Callable[[], None]], list[int]]:
        """Local: calls that add A v to y, each for a part of this rank's A; and each block column's first call.

        A part fits a cache, as it is read twice, the second time for its mirror image. Diagonal blocks have both triangles.
        """
        multiplying, begins = self.xp.bind_matvec, []
        calls: list[Callable[[], None]] = []
        for first, at in self.list_blocks(0):
            begins.append(len(calls))
            height, below = max(1, CACHED // (at.stop - at.start)), first + at.stop - at.start
            for lo in range(first, self.n, height):
                hi = min(self.n, lo + height)
                if hi > below:
                    under = slice(max(lo, below), hi)
                    calls.append(multiplying(self.a[under, at], self.v[under], self.y[first:below], True))
                calls.append(multiplying(self.a[lo:hi, at], self.v[first:below], self.y[lo:hi], False))
        return calls, begins

    def reduce(self, end: int) -> None:
        """Collective: reduce the columns before `end`, panel by panel."""
        xp, cols, (calls, begins) = self.xp, self.cols, self.bind_products()
        panels = [
            (lo, min(PANEL, hi - lo)) for hi in range(cols.block, end + 1, cols.block) for lo in range(hi - cols.block, hi, PANEL)
        ]
        self.slots = Slots(self.comm, xp, self.n * PANEL, self.a.dtype, addends=self.n)
        with self.slots:
            coming = self.send(*panels[0])
            for i in chain.from_iterable(map(self.comm.sample, group_panels(len(panels), cols.parts * -(-cols.block // PANEL)))):  # type: ignore[union-attr]
                begin_step()
                (j, w), after = panels[i], panels[i + 1] if i + 1 < len(panels) else None
                k, height = j // cols.block, self.n - j
                panel = coming.wait()[: w * height].reshape(w, height).T  # a dry run skips panels, and may receive a longer one
                # V and W side by side: VW = (v0 w0 v1 w1 ...)
                VW, WV = (buffer(xp, (2 * w, height), self.a.dtype).T for _ in range(2))
                xp.scale(VW, 0)
                later = cols.list_after(k - 1)
                rest = calls[begins[-len(later)] :] if later else []
                for c in self.comm.sample(range(w)):  # type: ignore[union-attr]
                    self.reduce_column(j, c, panel, VW, rest)
                self.slots.release()
                if cols.owner[k] == cols.rank:
                    at = cols.at[k].start + j - k * cols.block
                    xp.copy(self.a[j + 1 :, at : at + w], VW[1:, ::2])
                # A -= V W^H + W V^H, the next panel first; WV is the conjugate of (w0 v0 w1 v1 ...)
                for into, out in ((0, 1), (1, 0)):
                    xp.copy(WV[:, into::2], VW[:, out::2], True)
                blocks, ahead = self.list_blocks(j + w), slice(0, 0)
                if after is not None:
                    if cols.owner[after[0] // cols.block] == cols.rank:
                        ahead = slice(0, after[1])
                        self.update(j, VW, WV, *blocks[0], ahead)
                    coming = self.send(*after)
                if blocks:
                    self.update(j, VW, WV, *blocks[0], slice(ahead.stop, None))
                for first, at in self.comm.sample(blocks[1:]):  # type: ignore[union-attr]
                    self.update(j, VW, WV, first, at, ALL)

    def send(self, j: int, w: int) -> Pending:
        """Collective: start sending w columns from j on, from the diagonal down, column by column."""
        k, height = j // self.cols.block, self.n - j
        mine = self.cols.owner[k] == self.cols.rank
        message = self.slots.take(w * height, mine)
        if mine:
            at = self.cols.at[k].start + j - k * self.cols.block
            self.xp.copy(message.reshape(w, height), self.a[j:, at : at + w].T)
        return self.slots.bcast(message, {self.cols.owner[k]: (ALL,)})

    def reduce_column(self, j0: int, c: int, panel: Any, VW: Any, products: Sequence[Callable[[], None]]) -> None:
        """Collective: reduce column c of the panel from column j0 on: a reflection, v and w."""
        xp, j, cols = self.xp, j0 + c, self.cols
        # x = A[j:, j] - V W[j]^H - W V[j]^H
        x = panel[c:, c : c + 1]
        x = x - VW[c:, : 2 * c] @ xp.reinterpret(exchange_pairs(VW[c : c + 1, : 2 * c]), True) if c else x.copy()
        self.d[j : j + 1] = x[:1]
        v, y, rows = x[1:], self.y[j + 1 :], slice(c + 1, None)
        beta, tau = xp.larfg(v)
        self.e.append(beta)
        self.tau.append(tau)
        # y = - V (W^H v) - W (V^H v), of this rank's share of V and W, which its cache has
        lo, hi = c * cols.rank // cols.parts, c * (cols.rank + 1) // cols.parts
        if lo < hi:
            part = VW[rows, 2 * lo : 2 * hi]
            y[...] = part @ -exchange_pairs(xp.reinterpret(part.T @ xp.reinterpret(v, True), True))
        else:
            y[...] = 0
        # y += A v
        self.v[j : j + 1], self.v[j + 1 :] = 0, v
        with timed("symv", flops=operations(len(v), len(v), 1, x.dtype) // cols.parts):
            for multiply_part in self.comm.sample(products):  # type: ignore[union-attr]
                multiply_part()
        self.slots.sum(y)
        # w = tau y - tau/2 (tau y)^H v v
        y *= tau
        y += v * ((-0.5 * tau) * (xp.reinterpret(y, True).T @ v))
        VW[rows, 2 * c : 2 * c + 1], VW[rows, 2 * c + 1 : 2 * c + 2] = v, y

    def update(self, j: int, VW: Any, WV: Any, first: int, at: slice, some: slice) -> None:
        """Local: A -= V W^H + W V^H, in `some` of this rank's columns `at`, and in rows from `first` on."""
        a, part = self.a[first:, at][:, some], WV[first - j : first - j + at.stop - at.start][some]
        if len(part):
            multiply(self.xp, VW[first - j :], part.T, a, -1, 1)

    def finish(self, j: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Collective: reduce the columns from j on by LAPACK on the first rank; only that rank returns both diagonals and tau."""
        xp, comm, cols, size = self.xp, self.comm, self.cols, self.n - j
        if comm is None:
            return kernels.sytrd(xp, self.a)
        owners = cols.find_owners(np.arange(j, self.n))
        numbers = [np.flatnonzero(owners == rank) for rank in range(cols.parts)]
        mine = numbers[cols.rank]
        part = self.a[j:, self.a.shape[1] - len(mine) :].T
        boxes = {rank: buffer(xp, (len(which), size), self.a.dtype) for rank, which in enumerate(numbers) if rank and len(which)}
        first = cols.rank == 0
        there, here = ({}, boxes) if first else ({0: part} if len(mine) else {}, {})
        comm.alltoall(there, here).wait()
        made = np.zeros(size), np.zeros(max(0, size - 1)), np.zeros(max(0, size - 1), complex)
        if first:
            rest = buffer(xp, (size, size), self.a.dtype)
            parts = [(mine, part), *((numbers[rank], box) for rank, box in boxes.items())]
            for which, box in parts:
                xp.put(rest, which, ALL, box)
            made = kernels.sytrd(xp, rest.T)
            for which, box in parts:
                xp.copy(box, xp.take(rest, which, ALL))
        comm.alltoall(here, there).wait()
        return made


def exchange_pairs(x: Any) -> Any:
    """Local: copy one row or column into a column, with elements 2i and 2i + 1 exchanged."""
    return x.reshape(-1, 2)[:, ::-1].reshape(-1, 1)


def group_panels(count: int, turn: int) -> list[range]:
    """Group panels of similar cost, for dry runs; the groups' middle panels have each rank as owner in turn."""
    size = max(1, count // SAMPLED)
    while gcd(size, 2 * turn) > 1:
        size += 1
    return [range(lo, min(count, lo + size)) for lo in range(0, count, size)]


def count_columns_together(n: int, ranks: int, block: int) -> int:
    """Count the columns, of n, that the ranks reduce together; one rank reduces the others."""
    return max(0, min(-(-(n - SMALL) // block), -(-n // block) - 1)) * block if ranks > 1 else 0


def multiply_by_q(reduced: Reduced, C: DistMatrix) -> None:
    """Collective: Q C in place of C. C's columns are cut over the ranks that have reflections; its rows are not cut."""
    if len(reduced.d) > 1:
        product = Product(reduced.reflections, reduced.tau, lower=1)
        if C.grid.active:
            product.run(C.stored[1:], False)


def tridiagonal_words(n: int, ranks: int, block: int) -> float:
    """Words of 8 bytes that a rank receives, in the mean, for T of an n x n matrix in blocks of `block` columns."""
    end = count_columns_together(n, ranks, block)
    columns, rest = np.arange(end), n - end
    panels = sum((n - lo) * min(PANEL, block - lo % block) for lo in range(0, end) if lo % block % PANEL == 0)
    owners = np.arange(end, n) // block % ranks
    there_and_back = 2 * rest * int((owners != 0).sum())
    return ((ranks - 1) * (2.0 * float((n - 1 - columns).sum()) + panels + 4 * n + 3) + there_and_back) / ranks
