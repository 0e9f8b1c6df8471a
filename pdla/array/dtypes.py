"""The dtypes that users give, by name too."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np


def dtype_of(given: Any) -> np.dtype:
    """NumPy's dtype of what is given. "bfloat16" is one once ml_dtypes is imported: here, where NumPy does not know a name."""
    try:
        return np.dtype(given)
    except TypeError:
        if isinstance(given, str):
            with suppress(ImportError):
                import ml_dtypes  # noqa: F401
        return np.dtype(given)
