"""Functions of a matrix, or of its factors, as `lu_factor` and `cho_factor` return them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pdla.linalg import checks
from pdla.linalg.panels.factors import Factors
from pdla.linalg.plan.call import Call
from pdla.linalg.plan.options import Options
from pdla.linalg.plan.plan import FactorPlan
from pdla.matmul.images import Part
from pdla.matrix.core import DistMatrix

Work = Callable[[FactorPlan, Factors], Any]  # collective, unchecked
NOT_OF_FACTORS = ("assume_a", "lower", "overwrite_a", "memory_limit")  # options that only a matrix has


class FactorsCall:
    """One function: `of_matrix` takes a matrix, `work` takes its factors."""

    def __init__(self, of_matrix: Call, work: Work) -> None:
        name, check = of_matrix.name, of_matrix.check

        def check_elements(X: DistMatrix, pivots: Any) -> None:
            checks.check_pivots(name, X, pivots)

        def check_lu(options: Options, dtype: np.dtype, X: DistMatrix, pivots: Any) -> None:
            check_elements(X, pivots)
            check(options, dtype, X)

        self.of_matrix = of_matrix
        self.of_lu: Call = Call(
            name, (), lambda plan, X, pivots: work(plan, Factors.of_lu(X, pivots)), reads=lambda options: None, check=check_lu,
            check_elements=check_elements,
        )
        self.of_cholesky: Call = Call(
            name, (), lambda plan, C: work(plan, Factors.of_cholesky(C if plan.options.lower else C.H)),
            reads=lambda options: Part(options.lower), check=check,
        )

    def __call__(self, A: Any, **options: Any) -> Any:
        """Collective: A is a matrix, or a pair of LU and pivots, or of a Cholesky factor and whether it is lower."""
        if not isinstance(A, (tuple, list)) or len(A) != 2:
            return self.of_matrix(A, **options)
        X, pivots_or_lower = A
        of_factors = {key: value for key, value in options.items() if key not in NOT_OF_FACTORS}
        if isinstance(pivots_or_lower, (bool, np.bool_)):
            return self.of_cholesky(X, lower=pivots_or_lower, **of_factors)
        return self.of_lu(X, pivots_or_lower, **of_factors)
