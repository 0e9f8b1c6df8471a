"""Local arrays: one small namespace a kind of array, all with the same functions.

`namespace(x)` gives the module that handles x. An algorithm calls it `xp` and never asks which one it is:

empty(shape, dtype)        a new C-ordered array, contents undefined
copy(target, source)       target[...] = source, any strides; conjugate=True conjugates on the way
add, maximum(target, source)   target += source; the larger of both, into target
combine(target, beta, source)   target = beta * target + source; beta = 0 never reads target
gemm(a, b, c, alpha, beta) c = alpha a b + beta c, in place
take(x, rows, cols)        x[rows][:, cols]: a view where both are slices
put(x, rows, cols, source) the reverse
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from pdla.array import meta, numpy


def namespace(x: Any) -> ModuleType:
    """The array module of x."""
    return meta if isinstance(x, meta.Meta) else numpy
