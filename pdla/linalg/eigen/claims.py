"""What holds of right eigenvalues and eigenvectors, for the checks of results (linalg/verify.py)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from pdla.linalg.verify import Claim
from pdla.matmul.images import Images, Pair, Part
from pdla.matrix.core import DistMatrix


def claim_of_vectors(A: DistMatrix, part: Part, images: Images, lost: str) -> Claim:
    """(A (V x) - V (w x)) / |w| + V^H (V x) = x: for vectors x of as many elements as A has rows, of which V takes the first."""
    n = A.shape[0]

    def steps(made: Any) -> Any:
        w, V = made
        k, size = len(w), float(np.abs(w).max(initial=0)) or 1.0

        def image(x: Pair) -> Pair:
            x = x[0][:k], x[1][:k]
            y = images.whole(V, x)
            left = images.reflected(A if part.lower else A.H, y, True)
            right = images.whole(V, (w[:, None] * x[0], np.abs(w)[:, None] * x[1]))
            back = images.whole(V.H, y)
            rest = np.zeros((n - k, x[0].shape[1]), x[0].dtype)
            found = (left[0] - right[0]) / size + np.concatenate([back[0], rest])
            sizes = (np.sqrt((y[1] ** 2).sum()) * (left[1].max(initial=0) + 2 * size)) / size
            return found, np.full((n, 1), sizes, images.real)

        return (image,)

    def given(x: Pair) -> Pair:
        return x

    return Claim(n, 16 * n, given, steps, matrices=lambda made: made[1:], control=lambda made: made[0].tolist(), lost=lost)


def claim_of_values(A: DistMatrix, part: Part, images: Images, lost: str) -> Claim:
    raise NotImplementedError
