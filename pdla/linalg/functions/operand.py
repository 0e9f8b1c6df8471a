"""Operands of matrix functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.checks import communicator, describe_call
from pdla.comm.agreement import agreed
from pdla.linalg import checks
from pdla.linalg.panels.blocks import to_layout
from pdla.matmul.images import Part
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import cast


def prepare_square(name: str, A: DistMatrix, check: Any = None, part: Part | None = None, **options: Any) -> DistMatrix:
    """Collective: A, square and finite in `part`, in a LAPACK dtype without partial sums. check(): checks options."""
    with agreed(communicator((A,)), describe_call(name, A, **options)):
        dtype = checks.find_working_dtype(name, A.dtype)
        checks.check_square(name, A)
        if check is not None:
            check()
        checks.check_finite(A, part=part)
    return prepare(A, dtype)


def prepare(A: DistMatrix, dtype: np.dtype) -> DistMatrix:
    """Collective: A in this dtype, without partial sums; A itself if it has both."""
    return to_layout(cast(A, dtype), A.layout.summed, A.grid)
