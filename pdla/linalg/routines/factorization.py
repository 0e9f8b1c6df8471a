"""The interface of a factorization. To add one, write a subclass in a file, and a line in routines/__init__.py."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any

import numpy as np

from pdla.comm.agreement import collective_section
from pdla.comm.workspace import Workspace, find_workspace, within
from pdla.layout import Layout
from pdla.linalg.panels.blocks import find_dimensions, make_working_copy, share_numbers, to_layout
from pdla.linalg.panels.layers import make_communicators
from pdla.linalg.plan.blocking import Place
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.plan.routine import Routine
from pdla.linalg.products.symmetrize import reflect
from pdla.linalg.verify import Claim, explain_loss, run_and_check, settle
from pdla.matmul.images import Images, Part
from pdla.matrix.core import DistMatrix


class Factorization(Routine):
    """A routine that replaces A by its factors.

    what  a noun phrase for error messages, as "a Cholesky factorization"
    """

    what: str

    @abstractmethod
    def factor(self, X: DistMatrix) -> np.ndarray:
        """Collective over X's grid: replace X by its factors. Return numbers that are the same on every rank, such as pivots."""

    @abstractmethod
    def claim(self, A: DistMatrix, part: Part | None, images: Images, lost: str) -> Claim:
        """Collective: the claim that right factors of A satisfy; `part` of A is read."""

    def numbers(self, m: int, n: int) -> int:
        """Count the numbers that `factor` returns."""
        return 1

    def result(self, X: DistMatrix, numbers: np.ndarray) -> Any:
        """Local: the result, made of the factored matrix and the numbers. LinAlgError if the factorization failed."""
        return X

    def __call__(
        self, A: DistMatrix, place: Place, dtype: np.dtype, overwrite: bool = False, part: Part | None = None,
        layout: Layout | None = None,
    ) -> Any:
        """Collective: factor A in the layout of `place`; check the factors if results are checked.

        part    the triangle of A that is read and mirrored; None: all of A is read
        layout  the factors' layout, by default that of `place`
        """
        claim = partial(self._claim, A, part, overwrite)
        return run_and_check(A.grid.comm, dtype, lambda: self.compute(A, place, dtype, overwrite, part, layout), claim)

    def _claim(self, A: DistMatrix, part: Part | None, overwrite: bool, images: Images) -> Claim:
        return self.claim(A, part, images, explain_loss("A", overwrite))

    def compute(
        self, A: DistMatrix, place: Place, dtype: np.dtype, overwrite: bool, part: Part | None = None, layout: Layout | None = None
    ) -> Any:
        """Collective, unchecked: factor A."""
        with collective_section(A.grid.comm, self.what), within(find_workspace() or Workspace()):
            X = make_working_copy(A, *place, dtype, overwrite)
            if part is not None:
                reflect(X, part.lower, part.hermitian)
            if X.grid.active:
                numbers = self.factor(X)
            else:
                find_dimensions(X), make_communicators(X)  # idle ranks take part in these calls
                numbers = np.zeros(self.numbers(*A.shape))
            numbers = settle(A.grid.comm, share_numbers(X.grid, numbers))
        result = self.result(X, numbers)
        if layout is None:
            return result
        X, *more = result if isinstance(result, tuple) else (result,)
        return (to_layout(X, layout, A.grid), *more) if more else to_layout(X, layout, A.grid)

    def run(self, plan: FactorPlan, A: DistMatrix) -> Any:
        """Collective, unchecked: run a plan of the factorization."""
        return self(A, plan.place, plan.dtype, plan.overwrites("a"), layout=plan.options.layout or A.layout.summed)
