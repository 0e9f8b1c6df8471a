"""Check a product: by NumPy's if it is small enough to gather, else by random vectors.

Exact data (small integers) must give the exact product, bit for bit. Other data must obey the componentwise bound
|C - AB| <= c (k + P) u |A| |B| (Higham 2002, section 3.5), u the unit roundoff. For larger products the check compares
C X with A (B X) for columns X of +1 and -1. A wrong C passes one column with probability at most 1/2 (Freivalds 1977).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import pdla
from pdla.errors import plural

SMALL = 1 << 33  # multiplications of a check by rank 0 alone, a fraction of a second
WRONG = "WRONG"
COLUMNS = 16  # of +1 and -1: one wrong product in 65536 passes


class Checker:
    """Check products on one communicator; rank 0 keeps NumPy's product for the next algorithms."""

    comm: pdla.Communicator
    small: int

    def __init__(self, comm: pdla.Communicator, small: int = SMALL) -> None:
        self.comm, self.small = comm, small
        self.kept: dict[Any, Any] = {}

    def check(self, problem: tuple[Any, ...], A: pdla.DistMatrix, B: pdla.DistMatrix, C: pdla.DistMatrix, exact: bool) -> str:
        """Collective: check C = A B; return the method, after "WRONG" and the fault for a wrong C.

        problem  a key; calls with equal A and B have equal keys
        exact    whether the product has no rounding errors
        """
        by_numpy = A.shape[0] * A.shape[1] * B.shape[1] <= self.small or C.dtype.kind == "b"  # true + true - true is no linear sum
        fault = self._numpy(problem, A, B, C, exact) if by_numpy else freivalds(A, B, C, exact)
        how = ("exact" if exact else "bound") + (" (NumPy)" if by_numpy else " (Freivalds)")
        return f"{WRONG}, {how}: {fault}" if fault else how

    def _numpy(self, problem: tuple[Any, ...], A: Any, B: Any, C: Any, exact: bool) -> str:
        key = (problem, exact)
        if key not in self.kept:
            if len(self.kept) > 1:  # of another problem: one of its data, one of integers
                self.kept.clear()
            a, b = A.gather(root=0), B.gather(root=0)
            self.kept[key] = None if a is None else _reference(A.xp.host(a), B.xp.host(b), exact, self.comm.size)
        c = C.gather(root=0)
        return self.comm.share("" if c is None else differences(C.xp.host(c), *self.kept[key]))[0]


def _reference(a: np.ndarray, b: np.ndarray, exact: bool, ranks: int) -> tuple[np.ndarray, np.ndarray | float]:
    """NumPy's product, and the error bound of each element."""
    product = a @ b
    if exact:
        return product, 0.0
    kind = product.dtype  # the dtype of A or B alone may be integer, or shorter
    return product, tolerance(a.shape[1] + ranks, kind) * (np.abs(a.astype(kind)) @ np.abs(b.astype(kind)))


def tolerance(terms: int, dtype: Any) -> float:
    """The factor of |A| |B| in the bound of the difference of two sums of `terms` terms in different orders."""
    kind = np.dtype(dtype)
    return terms * (4.0 if kind.kind == "c" else 2.0) * float(np.finfo(kind).eps) / 2 if kind.kind in "fc" else 0.0


def differences(c: np.ndarray, reference: np.ndarray, bound: np.ndarray | float) -> str:
    """Describe elements of c further than `bound` from the reference; "": none. NaN is near NaN alone."""
    if c.shape != reference.shape:
        return f"shape {c.shape}, not {reference.shape}"
    wrong = ~_near(c, reference, bound) if c.dtype.kind in "fc" else c != reference  # differences of integers wrap
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    count = int(wrong.sum())
    some = f"{count} of {c.size} {plural(c.size, 'element')} {plural(count, 'differs', 'differ')}"
    return f"{some}, the first at {at}: {c[at]}, not {reference[at]}"


def _near(c: np.ndarray, reference: np.ndarray, bound: np.ndarray | float) -> np.ndarray:
    """Mark elements within the bound; infinities and NaN, which files may contain, must be equal."""
    with np.errstate(invalid="ignore"):
        near = np.abs(c - reference) <= bound
    return np.where(np.isfinite(reference), near, (c == reference) | (np.isnan(c) & np.isnan(reference)))


def freivalds(A: pdla.DistMatrix, B: pdla.DistMatrix, C: pdla.DistMatrix, exact: bool) -> str:
    """Collective: describe where C X differs from A (B X).

    The check computes in double precision, or for integers in C's type, which wraps as C does. Exact
    data thus give exact results.
    """
    k, n, comm = A.shape[1], B.shape[1], A.grid.comm
    signs = np.random.default_rng(k + n).choice([-1, 1], (n, COLUMNS)).astype(C.dtype if C.dtype.kind in "iu" else float)
    found, expected = times(C, signs), times(A, times(B, signs))
    bound: np.ndarray | float = 0.0
    if not exact:
        terms = 2 * (k + n) + comm.size  # of the sums in C, and of the check's own
        bound = tolerance(terms, C.dtype) * times(A, times(B, np.ones((n, 1)), magnitude=True), magnitude=True)
    if C.dtype.kind in "fc":  # infinities may cancel to NaN in C X and not in A (B X), or the reverse
        found, expected = (np.where(np.isfinite(x), x, np.nan) for x in (found, expected))
    return differences(found, expected, bound)


def times(M: pdla.DistMatrix, x: np.ndarray, magnitude: bool = False) -> np.ndarray:
    """Collective: M x, or |M| x, on every rank; M without copies, and x equal on every rank."""
    rows, cols = M.indices
    y = M.xp.asarray(np.zeros((M.shape[0], x.shape[1]), np.result_type(M.dtype, x.dtype)))
    block = M.local.astype(y.dtype)
    y[rows.indices()] = (np.abs(block).astype(y.dtype) if magnitude else block) @ M.xp.asarray(x[cols.indices()])
    return M.xp.host(M.grid.comm.allreduce(y).wait())
