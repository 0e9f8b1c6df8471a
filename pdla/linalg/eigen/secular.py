"""The eigenproblem of D + rho z z^T, D diagonal: deflation and eigenvalues.

A column is deflated if its element of z is small (LAPACK's laed2; Cuppen, Numer. Math. 36 (1981)). For two close elements of D, a
rotation makes one element of z 0. The remaining columns have distinct eigenvalues, the roots of the secular equation.

Deflation runs on the host, on numbers that all ranks have. All ranks decide the same, as IEEE arithmetic rounds each operation;
there are no sums, whose order might differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from pdla.linalg.panels import kernels

DEFLATED = 8  # times eps and the problem's norm: the change that a deflation may make


@dataclass(frozen=True)
class Wave:
    """Rotations of disjoint pairs of columns: x, y = c x + s y, c y - s x."""

    x: np.ndarray
    y: np.ndarray
    c: np.ndarray
    s: np.ndarray


@dataclass(frozen=True)
class Deflated:
    """D + rho z z^T after the rotations.

    d, z     of all columns, rotated
    kept     the columns that are left, by ascending d;  dropped: those whose d is an eigenvalue
    waves    of rotations, one after another
    """

    d: np.ndarray
    z: np.ndarray
    kept: np.ndarray
    dropped: np.ndarray
    waves: Sequence[Wave]


def deflate(d: np.ndarray, z: np.ndarray, rho: float) -> Deflated:
    """Local: deflate; z is of length 1, and rho at least 0. With NaN, no column remains."""
    limit = DEFLATED * float(np.finfo(d.dtype).eps) * max(float(np.abs(d).max(initial=0)), rho)
    order = np.argsort(d, kind="stable")
    large = order[(rho * np.abs(z) > limit)[order]]
    close = np.flatnonzero(_is_negligible(d[large[:-1]], d[large[1:]], z[large[:-1]], z[large[1:]], limit))
    columns, D, Z = large.tolist(), d[large].tolist(), z[large].tolist()
    left, waves = [True] * len(columns), defaultdict(list)
    for i in close.tolist():
        wave = 0
        # x = c x + s y, y = c y - s x: then y has both elements of z, and is compared with the next column
        while left[i] and i + 1 < len(columns) and _is_negligible(D[i], D[i + 1], Z[i], Z[i + 1], limit):
            size = sqrt(Z[i] ** 2 + Z[i + 1] ** 2)
            c, s = Z[i + 1] / size, -Z[i] / size
            D[i], D[i + 1] = c * c * D[i] + s * s * D[i + 1], s * s * D[i] + c * c * D[i + 1]
            Z[i], Z[i + 1], left[i] = 0, size, False
            waves[wave].append((columns[i], columns[i + 1], c, s))
            i, wave = i + 1, wave + 1
    d, z = d.copy(), z.copy()
    d[large], z[large], kept = D, Z, large[left]
    dropped = np.delete(np.arange(len(d)), kept)
    return Deflated(d, z, kept, dropped, [Wave(*map(np.array, zip(*wave, strict=True))) for wave in waves.values()])


def _is_negligible(d: Any, e: Any, y: Any, z: Any, limit: float) -> Any:
    """Whether a rotation of (y, z) to (0, |(y, z)|) leaves at most the limit off the diagonal (d, e)."""
    return abs((e - d) * y * z) <= limit * (y * y + z * z)


def find_roots(xp: Any, d: np.ndarray, z: np.ndarray, rho: float, begin: int, end: int) -> np.ndarray:
    """Local: find roots number begin to end - 1, each less its nearest d: see lapack.laed4."""
    length = np.sqrt((z * z).sum())
    if len(d) > 2:
        return kernels.laed4(xp, d, z / length, rho * length * length, begin, end)
    return np.array(_solve_few(d.tolist(), (rho * z * z).tolist()), d.dtype)[begin:end]


def _solve_few(d: list[float], w: list[float]) -> list[float]:
    """Find all roots for one or two poles, w = rho z^2 (LAPACK's laed5)."""
    if len(d) < 2:
        return w
    gap, total = d[1] - d[0], w[0] + w[1]
    # x^2 - b x + w_0 gap = 0 for differences to d_0
    b = total + gap
    first = 2 * w[0] * gap / (b + sqrt(abs(b * b - 4 * w[0] * gap)))
    # x^2 - b x - w_1 gap = 0 for differences to d_1
    b = total - gap
    root = sqrt(b * b + 4 * w[1] * gap)
    below, above = ((b - root) / 2, 2 * w[1] * gap / (root - b)) if b <= 0 else (-2 * w[1] * gap / (b + root), (b + root) / 2)
    return [first if 2 * first <= gap else below, above]
