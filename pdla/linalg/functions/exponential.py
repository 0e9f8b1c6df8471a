"""The exponential of a matrix, by scaling and squaring."""

from __future__ import annotations

from math import ceil, isfinite, log2
from typing import Any

import numpy as np

from pdla.errors import LinAlgError
from pdla.linalg.functions.operand import prepare_square
from pdla.linalg.norms import norm
from pdla.linalg.solve import solve
from pdla.matmul import matmul
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import eye

# The Pade approximant of each degree: the largest 1-norm for which it is exact to rounding, and its coefficients.
# Higham, SIAM J. Matrix Anal. Appl. 26 (2005), table 2.3 and (2.3).
DEGREES: dict[int, tuple[float, tuple[float, ...]]] = {
    3: (1.495585217958292e-2, (120, 60, 12, 1)),
    5: (2.539398330063230e-1, (30240, 15120, 3360, 420, 30, 1)),
    7: (9.504178996162932e-1, (17297280, 8648640, 1995840, 277200, 25200, 1512, 56, 1)),
    9: (2.097847961257068, (17643225600, 8821612800, 2075673600, 302702400, 30270240, 2162160, 110880, 3960, 90, 1)),
    13: (5.371920351148152, (
        64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000, 10559470521600, 670442572800,
        33522128640, 1323241920, 40840800, 960960, 16380, 182, 1,
    )),
}


def expm(A: DistMatrix) -> DistMatrix:
    """Give the exponential of a square matrix. Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, in any layout.

    Returns
    -------
    DistMatrix
        In A's layout.

    Raises
    ------
    LinAlgError
        For NaN and infinity, and if the exponential leaves the dtype's range.
    ShapeError, AgreementError
        If A is no square matrix, on every rank.

    Notes
    -----
    Scaling and squaring with Pade approximants of degree 3 to 13: Higham, SIAM J. Matrix Anal.
    Appl. 26 (2005), algorithm 2.3. Up to 6 products, a system of n right-hand sides, and a product
    for each squaring.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.from_global(np.array([[0., np.pi], [-np.pi, 0]]))
    ...     return pdla.linalg.expm(A).gather().round(12) + 0.0
    >>> pdla.run(2, program)[0]
    array([[-1.,  0.],
           [ 0., -1.]])
    """
    A = prepare_square("expm", A)
    size = float(norm(A, 1)) if A.shape[0] else 0.0
    limit, coefficients = next((approximant for approximant in DEGREES.values() if size <= approximant[0]), DEGREES[13])
    halvings = max(0, ceil(log2(size / limit))) if isfinite(size) and size > limit else 0
    A = A * 0.5**halvings if halvings else A
    U, V = _compute_approximant(A, coefficients)
    # (V - U) X = V + U
    X = solve(V - U, V + U, overwrite_a=True, overwrite_b=True, layout=A.layout)
    with np.errstate(over="ignore", invalid="ignore"):  # the norm below shows overflow
        for _ in range(halvings):
            X = matmul(X, X, layout=A.layout)
    if not isfinite(float(norm(X, 1)) if A.shape[0] else 0.0):
        raise LinAlgError(f"expm: the exponential of a matrix of 1-norm {size:.3g} leaves the range of {A.dtype}")
    return X


def _compute_approximant(A: DistMatrix, b: tuple[Any, ...]) -> tuple[DistMatrix, DistMatrix]:
    """Collective: the odd and the even terms of the numerator, U and V."""
    layout, degree = A.layout, len(b) - 1
    powers: list[Any] = [None, matmul(A, A, layout=layout)]  # of A^2
    while len(powers) < (4 if degree == 13 else len(b) // 2):
        powers.append(matmul(powers[-1], powers[1], layout=layout))
    if degree == 13:
        U = matmul(powers[3], _evaluate_polynomial(A, powers, [0, b[9], b[11], b[13]]), layout=layout)
        U = U + _evaluate_polynomial(A, powers, [b[1], b[3], b[5], b[7]])
        V = matmul(powers[3], _evaluate_polynomial(A, powers, [0, b[8], b[10], b[12]]), layout=layout)
        V = V + _evaluate_polynomial(A, powers, [b[0], b[2], b[4], b[6]])
    else:
        U, V = _evaluate_polynomial(A, powers, b[1::2]), _evaluate_polynomial(A, powers, b[0::2])
    return matmul(A, U, layout=layout), V


def _evaluate_polynomial(A: DistMatrix, powers: list[Any], numbers: Any) -> DistMatrix:
    """Local: numbers[0] I + numbers[1] A^2 + numbers[2] A^4 + ..."""
    total = powers[1] * float(numbers[1])
    for number, power in zip(numbers[2:], powers[2:], strict=False):
        total += power * float(number)
    if numbers[0]:
        total += eye(A.shape[0], A.grid, A.layout, dtype=A.dtype) * float(numbers[0])
    return total
