"""Operands of matrix functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pdla.checks import communicator, describe_call, matrix
from pdla.comm.agreement import agreed
from pdla.linalg import checks
from pdla.linalg.panels.blocks import to_layout
from pdla.matmul.images import Part
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import cast


def prepare_operand(
    name: str, A: DistMatrix, check: Callable[[np.dtype], None] | None = None, part: Part | None = None, **options: Any
) -> DistMatrix:
    """Collective: A, finite in `part`, in a LAPACK dtype without partial sums. check(dtype): checks A's shape and the options."""
    with agreed(communicator((A,)), describe_call(name, A, **options)):
        dtype = checks.find_working_dtype(name, matrix(A).dtype)
        if check is not None:
            check(dtype)
        checks.check_finite(A, part=part)
    return prepare(A, dtype)


def prepare_square(
    name: str, A: DistMatrix, check: Callable[[], None] | None = None, part: Part | None = None, **options: Any
) -> DistMatrix:
    """Collective: the same of a square A. check(): checks the options."""

    def check_square(dtype: np.dtype) -> None:
        checks.check_square(name, A)
        if check is not None:
            check()

    return prepare_operand(name, A, check_square, part, **options)


def prepare(A: DistMatrix, dtype: np.dtype) -> DistMatrix:
    """Collective: A in this dtype, without partial sums; A itself if it has both."""
    return to_layout(cast(A, dtype), A.layout.summed, A.grid)


def scale_columns(V: DistMatrix, factors: np.ndarray) -> DistMatrix:
    """Local: V diag(factors), of numbers that every rank has."""
    own = V.xp.asarray(factors[V.indices[1].indices()])
    return DistMatrix(V.stored * own, V.shape, V.grid, V.layout)
