"""Claims of right eigenvalues and eigenvectors, for the checks of results (linalg/verify.py)."""

from __future__ import annotations

from math import frexp, prod
from typing import Any

import numpy as np

from pdla.layout import axes_of, effective
from pdla.linalg.verify import Claim
from pdla.matmul.images import Images, Pair, Part
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import sum_partials


def claim_vectors(A: DistMatrix, part: Part, images: Images) -> Claim:
    """Claim: (A (V x) - V (w x)) / |w| + V^H (V x) = x, for vectors x of n elements; V takes the first k."""
    n = A.shape[0]

    def steps(made: Any) -> Any:
        w, V = made
        k, size = len(w), float(np.abs(w).max(initial=0)) or 1.0
        root = 2.0 ** (frexp(size)[1] // 2)  # A y / root / (size / root): as A y might leave the range
        rounding = _find_rounding(w, size)

        def image(x: Pair) -> Pair:
            rest, x = x[0][k:], (x[0][:k], x[1][:k])
            y = images.multiply(V, x)
            left = images.multiply_reflected(A if part.lower else A.H, (y[0] / root, y[1] / root), True)
            right = images.multiply(V, (w[:, None] / size * x[0], np.abs(w)[:, None] / size * x[1]))
            back = images.multiply(V.H, y)
            found = left[0] / (size / root) - right[0] + np.concatenate([back[0], rest])
            sizes = np.sqrt((y[1] ** 2).sum()) * (left[1].max(initial=0) / (size / root) + 2 * rounding)
            return found, np.full((n, 1), sizes, images.real)

        return (image,)

    def given(x: Pair) -> Pair:
        return x

    return Claim(n, 16 * n, given, steps, matrices=lambda made: made[1:], control=lambda made: made[0].tolist())


def claim_values(A: DistMatrix, part: Part, images: Images, lost: str) -> Claim:
    """Claim: the eigenvalues' sum is A's trace, and their squares' sum is |A|^2; both divided, by |A| and |A|^2."""
    n, size = A.shape[0], [1.0]

    def given(x: Pair) -> Pair:
        trace, size[0] = _compute_trace_and_norm(A, part)
        return _make_images(x, trace / size[0], 1.0 if trace or size[0] != 1 else 0.0, images)

    def steps(w: np.ndarray) -> Any:
        rounding, w = _find_rounding(w, size[0]), w.astype(float) / size[0]
        return (lambda x: _make_images(x, w.sum(), (w**2).sum(), images, rounding),)

    return Claim(n, 16 * n, given, steps, matrices=lambda w: (), control=lambda w: w.tolist(), lost=lost)


def _find_rounding(w: np.ndarray, size: float) -> float:
    """Bound the rounding of eigenvalues in eps, relative to `size`: subnormal ones have few digits."""
    return max(1.0, float(np.finfo(w.dtype).tiny) / size)


def _make_images(x: Pair, trace: float, squares: float, images: Images, rounding: float = 1.0) -> Pair:
    """Local: both numbers as images of any x; their sizes bound a right result's rounding."""
    numbers = np.array([[trace], [squares]]).astype(images.wide)
    return numbers * np.ones((1, x[0].shape[1])), np.full((2, 1), rounding * len(x[1]) ** 0.5, images.real)


def _compute_trace_and_norm(A: DistMatrix, part: Part) -> tuple[float, float]:
    """Collective: A's trace and Frobenius norm, of which `part` is read; norm 1 for 0."""
    A = sum_partials(A, A.layout.summed) if A.layout.partial else A
    rows, cols = A.indices
    a = part.read(A.xp.host(A.local), rows.indices()[:, None], cols.indices()[None])
    scale = max(float(np.finfo(float).tiny), *A.grid.comm.share(float(np.abs(a).max(initial=0))))
    a, (i, j) = a.astype(complex) / scale, rows.find_common(cols)
    trace, squares = a[i, j].real.sum(), 2 * (np.abs(a) ** 2).sum() - (np.abs(a[i, j]) ** 2).sum()
    copies = A.grid.size / prod(A.grid.sizes[axis] for axis in axes_of(effective((*A.layout.rows, *A.layout.cols), A.grid.sizes)))
    trace, squares = (sum(each) / copies for each in zip(*A.grid.comm.share((float(trace), float(squares))), strict=True))
    return scale * trace, scale * squares**0.5 or 1.0
