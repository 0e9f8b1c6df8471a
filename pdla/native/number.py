"""Numbers that C points to."""

from __future__ import annotations

from typing import Any

import numpy as np


def read_number(ffi: Any, pointer: Any, dtype: np.dtype) -> complex:
    """Read the number as Python's; dtype: one of BLAS's four."""
    parts = ffi.cast("double *" if dtype.char in "dD" else "float *", pointer)
    return complex(parts[0], parts[1]) if dtype.kind == "c" else parts[0]
