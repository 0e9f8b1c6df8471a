"""Factors of a square matrix, for solutions, inverses, determinants and conditions: triangles, and an order of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, nan

import numpy as np

from pdla.errors import LinAlgError
from pdla.linalg.panels.rows import Permutation
from pdla.matmul.images import Part
from pdla.matrix.core import DistMatrix

View = tuple[bool, Part]  # whether a triangle is one of the adjoint, and which one
Triangle = tuple[DistMatrix, Part]


@dataclass(frozen=True)
class Factors:
    """Triangles in X, whose product from left to right is P (scale A). The pivots define P.

    views   one view of X for each triangle
    pivots  LAPACK's; None: P is the identity
    scale   a power of 2, mostly 1; or the caller's factor of B
    ratio   the least over the largest pivot: 1 without data, NaN if a pivot is infinite; None: not computed yet
    fault   the first faulty pivot (see lapack.find_fault), which `error` describes
    """

    X: DistMatrix
    views: Sequence[View]
    pivots: np.ndarray | None = None
    scale: complex = 1
    ratio: float | None = None
    fault: int = 0
    error: str = field(default="", compare=False)

    @staticmethod
    def of_lu(
        X: DistMatrix, pivots: np.ndarray, scale: float = 1, ratio: float | None = None, fault: int = 0, error: str = ""
    ) -> Factors:
        """The factors of P A = L U, both in X."""
        return Factors(X, ((False, Part(True, "one")), (False, Part(False))), pivots, scale, ratio, fault, error)

    @staticmethod
    def of_cholesky(L: DistMatrix, ratio: float | None = None) -> Factors:
        """The factors of A = L L^H."""
        return Factors(L, ((False, Part(True)), (True, Part(False))), ratio=ratio)

    @cached_property
    def triangles(self) -> tuple[Triangle, ...]:
        """The factors: matrices and the parts that are read."""
        return tuple((self.X.H if adjoint else self.X, part) for adjoint, part in self.views)

    @cached_property
    def rows(self) -> np.ndarray:
        """For each row of the product, the number of that row in A."""
        n = self.X.shape[0]
        return np.arange(n) if self.pivots is None else Permutation.of_pivots(self.pivots).rows(n)

    @property
    def adjoint(self) -> Factors:
        """The factors of A^H, without the order of its columns."""
        views = [(not adjoint, Part(not part.lower, part.diagonal)) for adjoint, part in reversed(self.views)]
        return replace(self, views=views, pivots=None)

    def require_regular(self) -> Factors:
        """Local: return self; LinAlgError if a pivot is 0 or not finite."""
        if self.fault > 0:
            raise LinAlgError(f"the matrix is singular: {self.error}")
        if self.fault:
            raise LinAlgError(self.error)
        return self


def find_pivot_ratio(least: float, largest: float) -> float:
    """Divide the least by the largest pivot; 1 without pivots, NaN if a pivot is infinite or NaN."""
    return least / largest if 0 < largest < inf else 1.0 if largest == 0 and least == inf else nan
