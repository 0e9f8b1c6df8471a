"""Products of a rank's own blocks that check themselves: layers use them with PDLA_VERIFY=1.

Each rank compares C x with A (B x), as for distributed matrices, and computes a wrong product
again. Products that were wrong twice are reported to all ranks at the end of the pass. Until then
the other ranks wait for messages of the pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from pdla.array import namespace
from pdla.array.composed import sum_dtype
from pdla.comm.communicator import Communicator
from pdla.errors import VerificationError
from pdla.matmul.images import VECTORS, Pair, multiply_pieces, strips
from pdla.matmul.schedules.streams import multiply
from pdla.matmul.verify import find_wrong_rows

_pass: ContextVar[tuple[int, list[str]]] = ContextVar("pdla_nn_pass")  # the rank, and its products that were wrong twice
_random = np.random.default_rng(0x5EED)


@contextmanager
def check_products(comm: Communicator) -> Iterator[None]:
    """Collective: collect the wrong products of a with-block, and compare them over ranks at its end.

    VerificationError, on every rank, if a product was wrong twice on any rank.
    """
    faults: list[str] = []
    token = _pass.set((comm.rank, faults))
    try:
        yield
    finally:
        _pass.reset(token)
    message = "; ".join(faults)
    if not (comm.same(message) and not message):
        raise VerificationError("; ".join(filter(None, comm.share(message))))


def multiply_and_check(
    xp: Any, a: Any, b: Any, c: Any, alpha: float, beta: int, multiply: Callable[..., None] = multiply
) -> None:
    """Compute c = alpha a b + beta c of blocks or of stacks, as `multiply` does, and check it.

    alpha is real, beta 0 or 1. A wrong result is computed once more, with a warning.
    """
    addend = c.copy() if beta else None
    multiply(xp, a, b, c, alpha, beta)
    if xp.name == "meta" or not _is_wrong(a, b, alpha, addend, c):
        return
    rank, faults = _pass.get()
    message = f"rank {rank} has wrong elements in a layer's product of {a.shape[-2:]} and {b.shape[-2:]}; computed again"
    if addend is not None:
        xp.copy(c, addend)
    multiply(xp, a, b, c, alpha, beta)
    if _is_wrong(a, b, alpha, addend, c):
        faults.append(f"{message}: it has, too")
    else:
        warnings.warn(f"{message}, it was right", RuntimeWarning, stacklevel=2)


def _is_wrong(a: Any, b: Any, alpha: float, addend: Any, product: Any) -> bool:
    """Whether product x differs from addend x + alpha a (b x) by more than rounding, for random x."""
    xp, (k, n) = namespace(a), b.shape[-2:]
    if not product.size:
        return False
    with np.errstate(all="ignore"):
        dtype = sum_dtype(product.dtype)
        signs = (2 * _random.integers(0, 2, (n, VECTORS)) - 1).astype(dtype)
        x = xp.asarray(signs), xp.asarray(np.ones((n, 1), dtype))
        expected, magnitude = _apply(xp, a, _apply(xp, b, x))
        expected, magnitude = alpha * expected, abs(alpha) * magnitude
        if addend is not None:
            image = _apply(xp, addend, x)
            expected, magnitude = expected + image[0], magnitude + image[1]
        actual, expected, magnitude = map(xp.host, (_apply(xp, product, x)[0], expected, magnitude))
        return bool(find_wrong_rows(actual, expected, magnitude, product.dtype, n, k, xp=xp.name).any())


def _apply(xp: Any, y: Any, pair: Pair) -> Pair:
    """Apply a block, or each block of a stack, to vectors."""
    if y.ndim > 2:
        return multiply_pieces(xp, y.shape[:-1], [(..., ..., y.astype(pair[0].dtype, copy=False))], *pair)
    by_columns = abs(y.strides[0]) < abs(y.strides[1])
    return multiply_pieces(xp, y.shape[:1], strips(xp, y.T if by_columns else y, by_columns, pair[0].dtype), *pair)
