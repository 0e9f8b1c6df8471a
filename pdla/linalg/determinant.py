"""Determinants, from the diagonals of factors and their exchanges of rows."""

from __future__ import annotations

from math import frexp, log, log2
from typing import Any, NamedTuple

import numpy as np

from pdla.linalg.diagonal import replicate_diagonal
from pdla.linalg.given_factors import FactorsCall
from pdla.linalg.panels.factors import Factors
from pdla.linalg.plan.call import Call
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.routines import BY_STRUCTURE
from pdla.linalg.solutions import factor
from pdla.matrix.core import DistMatrix


class SlogdetResult(NamedTuple):
    """As of numpy.linalg.slogdet: the determinant is sign * exp(logabsdet)."""

    sign: Any
    logabsdet: Any


def det(
    A: DistMatrix | tuple[DistMatrix, np.ndarray | bool], *, assume_a: str = "gen", lower: bool = True, overwrite_a: bool = False,
    check_finite: bool = True, memory_limit: int | None = None, verify: bool | str | None = None,
) -> Any:
    """Compute the determinant. Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix or tuple
        n x n, in any layout; or its factors, as `lu_factor` or `cho_factor` returns them. With
        factors, the options of a matrix are ignored.
    assume_a : str, optional
        A's structure, as for `solve`.
    lower : bool, optional
        For "sym", "her" and "pos": whether the lower triangle is read; else the upper one.
    overwrite_a : bool, optional
        Whether A may be written to. No copy is made then, if A is stored as the algorithm needs it.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    memory_limit : int, optional
        The most bytes of workspace a rank, with the working copy of A.
    verify : bool or "keep", optional
        Whether to check the factors, as `cholesky` and `lu_factor` do.

    Returns
    -------
    number
        NumPy's, of A's dtype (float64 for integers), on every rank: 1 for 0 x 0, 0 for a singular
        matrix. Infinite or 0 if it leaves the dtype's range. NaN if U overflows and A was
        overwritten, and for unchecked NaN or infinity in A.

    Raises
    ------
    LinAlgError
        For NaN and infinity; for a matrix that is not positive definite, if that is assumed.
    VerificationError
        For factors that `verify` found wrong, and could not compute again.
    ShapeError, PlanError, AgreementError
        For a matrix that is not square, or a memory_limit that cannot be kept. All of these
        are raised on every rank.

    See Also
    --------
    slogdet : Its logarithm, which is not too large.

    Notes
    -----
    By the factors that `solve` takes; of the diagonal of each a rank receives n words.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[0, 2], [3, 4]]), grid, pdla.Layout("row"))
    ...     return pdla.linalg.det(A)
    >>> pdla.run(2, program)[0]
    np.float64(-6.0)
    """
    dtype, value, exponent = _DET(
        A, assume_a=assume_a, lower=lower, overwrite_a=overwrite_a, check_finite=check_finite, memory_limit=memory_limit,
        verify=verify,
    )
    with np.errstate(over="ignore", under="ignore"):
        return dtype.type(_scale(value, exponent))


def slogdet(
    A: DistMatrix | tuple[DistMatrix, np.ndarray | bool], *, assume_a: str = "gen", lower: bool = True, overwrite_a: bool = False,
    check_finite: bool = True, memory_limit: int | None = None, verify: bool | str | None = None,
) -> SlogdetResult:
    """Compute the sign of the determinant, and the logarithm of its absolute value.

    Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix or tuple
        n x n, in any layout; or its factors, as `lu_factor` or `cho_factor` returns them. With
        factors, the options of a matrix are ignored.
    assume_a : str, optional
        A's structure, as for `solve`.
    lower : bool, optional
        For "sym", "her" and "pos": whether the lower triangle is read; else the upper one.
    overwrite_a : bool, optional
        Whether A may be written to. No copy is made then, if A is stored as the algorithm needs it.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    memory_limit : int, optional
        The most bytes of workspace a rank, with the working copy of A.
    verify : bool or "keep", optional
        Whether to check the factors, as `cholesky` and `lu_factor` do.

    Returns
    -------
    sign : number
        1 or -1, a complex number of absolute value 1, or 0 for a singular matrix.
    logabsdet : float
        The natural logarithm; -infinity for a singular matrix; NaN as by `det`.

    Raises
    ------
    LinAlgError, VerificationError, ShapeError, PlanError, AgreementError
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
    dtype, value, exponent = _SLOGDET(
        A, assume_a=assume_a, lower=lower, overwrite_a=overwrite_a, check_finite=check_finite, memory_limit=memory_limit,
        verify=verify,
    )
    size = abs(value)
    if not size > 0:
        return SlogdetResult(dtype.type(value), np.empty(0, dtype).real.dtype.type(-np.inf if size == 0 else np.nan))
    return SlogdetResult(dtype.type(value / size), np.empty(0, dtype).real.dtype.type(log(size) + exponent * log(2)))


def _multiply_pivots(plan: FactorPlan, factors: Factors) -> tuple[np.dtype, complex, int]:
    """Collective: the determinant's dtype, and the determinant as a number of about 1 times 2^exponent."""
    dtype, exponent, pivots = plan.dtype, 0, factors.pivots
    value: complex = 1.0 if factors.fault >= 0 else np.nan
    for T, part in factors.triangles:
        if part.diagonal in ("own", "alone"):
            value, exponent = _multiply([value, *replicate_diagonal(T, dtype).tolist()], exponent)
    if pivots is not None and np.count_nonzero(pivots != np.arange(len(pivots))) % 2:
        value = -value
    return dtype, value, exponent - factors.X.shape[0] * int(log2(factors.scale.real))


def _factor_and_multiply(plan: FactorPlan, A: DistMatrix) -> tuple[np.dtype, complex, int]:
    """Collective, unchecked: factor A; then as `_multiply_pivots`."""
    return _multiply_pivots(plan, factor(plan, A))


_DET, _SLOGDET = (FactorsCall(Call(name, BY_STRUCTURE, _factor_and_multiply), _multiply_pivots) for name in ("det", "slogdet"))


def _multiply(numbers: list[complex], exponent: int) -> tuple[complex, int]:
    """Multiply these numbers and 2^exponent; the product is a number of about 1 and an exponent of 2."""
    value: complex = 1.0
    for number in numbers:
        mantissa, power = _split_exponent(number)
        value, more = _split_exponent(value * mantissa)
        exponent += power + more
    return value, exponent


def _split_exponent(number: complex) -> tuple[complex, int]:
    power = frexp(max(abs(number.real), abs(number.imag)))[1]
    return _scale(number, -power), power


def _scale(number: complex, power: int) -> complex:
    """Multiply a number by 2^power."""
    if isinstance(number, complex):
        return complex(*np.ldexp([number.real, number.imag], power).tolist())
    return float(np.ldexp(number, power))
