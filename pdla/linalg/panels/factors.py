"""Factors of a square matrix, as solutions, inverses, determinants and conditions take them: triangles, and an order of rows."""

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

View = tuple[bool, Part]  # of a matrix: whether its adjoint, and which triangle
Triangle = tuple[DistMatrix, Part]


@dataclass(frozen=True)
class Factors:
    """Triangles in X. Their product, from left to right, is P (scale A); the pivots tell P.

    views   of X, one for each triangle
    pivots  LAPACK's; None: rows stay
    scale   a power of 2, mostly 1; or the factor of B that a caller asks for
    ratio   the least over the largest pivot: 1 without data, NaN where one is infinite; None: not known yet
    fault   of the pivots, the first (see lapack.find_fault), which `error` describes
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
        """Of P A = L U, L and U in one matrix."""
        return Factors(X, ((False, Part(True, "one")), (False, Part(False))), pivots, scale, ratio, fault, error)

    @staticmethod
    def of_cholesky(L: DistMatrix, ratio: float | None = None) -> Factors:
        """Of A = L L^H."""
        return Factors(L, ((False, Part(True)), (True, Part(False))), ratio=ratio)

    @cached_property
    def triangles(self) -> tuple[Triangle, ...]:
        """The matrices, and the parts of them."""
        return tuple((self.X.H if adjoint else self.X, part) for adjoint, part in self.views)

    @cached_property
    def rows(self) -> np.ndarray:
        """Which row of A is row i of the product."""
        n = self.X.shape[0]
        return np.arange(n) if self.pivots is None else Permutation.of_pivots(self.pivots).rows(n)

    @property
    def adjoint(self) -> Factors:
        """Those of A^H, but for its columns' order."""
        views = [(not adjoint, Part(not part.lower, part.diagonal)) for adjoint, part in reversed(self.views)]
        return replace(self, views=views, pivots=None)

    def require_regular(self) -> Factors:
        """Local: itself; LinAlgError where a pivot is 0, or not finite."""
        if self.fault > 0:
            raise LinAlgError(f"the matrix is singular: {self.error}")
        if self.fault:
            raise LinAlgError(self.error)
        return self


def find_pivot_ratio(least: float, largest: float) -> float:
    """The least over the largest pivot; 1 of none, NaN where one is infinite or NaN."""
    return least / largest if 0 < largest < inf else 1.0 if largest == 0 and least == inf else nan
