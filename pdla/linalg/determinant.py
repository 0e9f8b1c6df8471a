"""Determinants, from the diagonal of U and the exchanges of rows of an LU factorization."""

from __future__ import annotations

from math import frexp, log, log2
from typing import Any, NamedTuple

import numpy as np

from pdla.comm.agreement import agreed
from pdla.linalg import checks
from pdla.linalg.diagonal import whole_diagonal
from pdla.linalg.factorizations.blocking import limited, to
from pdla.linalg.factorizations.lu import scaled_factors
from pdla.matmul.checks import communicator
from pdla.matrix.core import DistMatrix


class SlogdetResult(NamedTuple):
    """As of numpy.linalg.slogdet: the determinant is sign * exp(logabsdet)."""

    sign: Any
    logabsdet: Any


def det(A: DistMatrix, *, overwrite_a: bool = False, check_finite: bool = True, memory_limit: int | None = None) -> Any:
    """Compute the determinant. Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, in any layout.
    overwrite_a : bool, optional
        Whether A may be written to, which spares a copy where it lies as it is worked on.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    memory_limit : int, optional
        Bytes of workspace a rank, at most, the copy of A that is worked on included.

    Returns
    -------
    number
        NumPy's, of A's dtype (float64 for integers), on every rank: 1 for 0 x 0, 0 for a singular
        matrix; infinite, or 0, where it is too large, or too small, for the dtype; NaN where NaN
        and infinity are not looked for, and where U overflows and A was overwritten.

    Raises
    ------
    LinAlgError
        For NaN and infinity.
    ShapeError, PlanError, AgreementError
        For a matrix that is not square, or a memory_limit that cannot be kept, on every rank, as
        all of these.

    See Also
    --------
    slogdet : Its logarithm, which is not too large.

    Notes
    -----
    By LU: a rank receives `lu_words`, and n words at the end.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[0, 2], [3, 4]]), grid, pdla.Layout("row"))
    ...     return pdla.linalg.det(A)
    >>> pdla.run(2, program)[0]
    np.float64(-6.0)
    """
    dtype, value, exponent = _determinant("det", A, overwrite_a, check_finite, memory_limit)
    with np.errstate(over="ignore", under="ignore"):
        return dtype.type(_scaled(value, exponent))


def slogdet(
    A: DistMatrix, *, overwrite_a: bool = False, check_finite: bool = True, memory_limit: int | None = None
) -> SlogdetResult:
    """Compute the sign of the determinant, and the logarithm of its absolute value.

    Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, in any layout.
    overwrite_a : bool, optional
        Whether A may be written to, which spares a copy where it lies as it is worked on.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    memory_limit : int, optional
        Bytes of workspace a rank, at most, the copy of A that is worked on included.

    Returns
    -------
    sign : number
        Of complex matrices of absolute value 1; 0 for a singular matrix.
    logabsdet : float
        The natural logarithm; -infinity for a singular matrix; NaN as by `det`.

    Raises
    ------
    LinAlgError, ShapeError, PlanError, AgreementError
        As by `det`, on every rank.

    Notes
    -----
    The determinant is sign exp(logabsdet), as by numpy.linalg.slogdet.

    Examples
    --------
    >>> def program(comm):
    ...     A = -1000 * pdla.eye(1001, pdla.ProcessGrid((2,)), pdla.Layout("row"))
    ...     sign, logabsdet = pdla.linalg.slogdet(A)
    ...     return sign, round(float(logabsdet), 3)
    >>> pdla.run(2, program)[0]
    (np.float64(-1.0), 6914.663)
    """
    dtype, value, exponent = _determinant("slogdet", A, overwrite_a, check_finite, memory_limit)
    size = abs(value)
    if not size > 0:
        return SlogdetResult(dtype.type(value), np.empty(0, dtype).real.dtype.type(-np.inf if size == 0 else np.nan))
    return SlogdetResult(dtype.type(value / size), np.empty(0, dtype).real.dtype.type(log(size) + exponent * log(2)))


def _determinant(
    name: str, A: DistMatrix, overwrite_a: bool, check_finite: bool, limit: float | None
) -> tuple[np.dtype, complex, int]:
    """Collective: the dtype of the determinant, and itself, as a number of about 1 and the exponent of a power of 2."""
    said = checks.words(name, A, over=overwrite_a, finite=check_finite, limit=limit)
    with agreed(communicator((A,)), said):
        dtype = checks.to_factor(name, A, overwrite_a, check_finite)

        def run(A: DistMatrix) -> tuple[np.ndarray, np.ndarray, float]:
            X, pivots, fault, power = scaled_factors(A, dtype, overwrite_a)
            diagonal = whole_diagonal(X, dtype)
            return (diagonal if fault >= 0 else np.full_like(diagonal, np.nan)), pivots, power

        blocking = limited("lu", A, dtype, limit, run, said=said)
    with to(blocking, limit):
        diagonal, pivots, power = run(A)
    value, exponent = _product(diagonal.tolist())
    odd = np.count_nonzero(pivots != np.arange(len(pivots))) % 2
    return dtype, -value if odd else value, exponent - len(pivots) * int(log2(power))


def _product(numbers: list[complex]) -> tuple[complex, int]:
    """As a number of about 1, and the exponent of a power of 2."""
    value: complex = 1.0
    exponent = 0
    for number in numbers:
        mantissa, power = _split(number)
        value, more = _split(value * mantissa)
        exponent += power + more
    return value, exponent


def _split(number: complex) -> tuple[complex, int]:
    power = frexp(max(abs(number.real), abs(number.imag)))[1]
    return _scaled(number, -power), power


def _scaled(number: complex, power: int) -> complex:
    """Multiply a number by 2^power."""
    if isinstance(number, complex):
        return complex(*np.ldexp([number.real, number.imag], power).tolist())
    return float(np.ldexp(number, power))
