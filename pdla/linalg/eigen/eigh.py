"""Eigenvalues and eigenvectors of Hermitian matrices: what users call.

A = Q T Q^H (routines/tridiagonal.py), T = Z diag(w) Z^H, V = Q Z. A v = w B v with B = L L^H has the eigenvalues of L^-1 A L^-H,
and V = L^-H Z.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from pdla.checks import communicator, describe_call, flags, matrix
from pdla.comm.agreement import agreed, collective_section
from pdla.comm.communicator import Communicator
from pdla.comm.workspace import Workspace, find_workspace, within
from pdla.errors import PlanError, ShapeError
from pdla.grid import ProcessGrid, check_same_communicator
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.cholesky import cho_factor
from pdla.linalg.eigen.claims import claim_values, claim_vectors
from pdla.linalg.eigen.divide import eigh_tridiagonal, eigvalsh_tridiagonal
from pdla.linalg.panels import kernels
from pdla.linalg.panels.blocks import count_workspace, cut_layout, make_working_copy, share_numbers, to_layout
from pdla.linalg.plan.call import Call, accept_stacks
from pdla.linalg.plan.options import Options
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.plan.predict import FactorPrediction, predict
from pdla.linalg.products.symmetrize import reflect
from pdla.linalg.routines.qr import HEADER
from pdla.linalg.routines.tridiagonal import BLOCK, TRIDIAGONAL, Reduced, check_sums, multiply_by_q
from pdla.linalg.triangular import solve_triangular
from pdla.linalg.verify import explain_loss, is_checking, run_and_check
from pdla.matmul.images import Part
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import cast
from pdla.model.machine import Machine

LARGE = 2**15 - 2  # columns up to which LAPACK's 32-bit integers count its workspace, about 2 n^2
Factor = DistMatrix | tuple[DistMatrix, bool]


@accept_stacks(TRIDIAGONAL)
def eigh(
    A: DistMatrix, b: Factor | None = None, *, lower: bool = True, subset_by_index: Sequence[int] | None = None,
    subset_by_value: Sequence[float] | None = None, overwrite_a: bool = False, check_finite: bool = True,
    layout: Layout | None = None, memory_limit: int | None = None, verify: bool | str | None = None,
) -> tuple[np.ndarray, DistMatrix]:
    """Compute eigenvalues and eigenvectors of a Hermitian matrix: A V = V diag(w). Collective.

    Idle ranks of A's grid take part.

    Parameters
    ----------
    A : DistMatrix
        n x n, Hermitian or real symmetric, in any layout. Only one triangle is read; the other may
        hold anything, NaN too, and so may the imaginary parts of the diagonal.
    b : DistMatrix or tuple, optional
        B of A v = w B v: n x n, Hermitian and positive definite. The same triangle is read. Or B's
        factor, as `cho_factor` returns it. By default the identity.
    lower : bool, optional
        Whether the lower triangle is read; else the upper one.
    subset_by_index : pair of int, optional
        Indices of the first and the last selected eigenvalue, from 0 on, ascending.
    subset_by_value : pair of float, optional
        lo and hi, which may be infinite: eigenvalues w, lo < w <= hi, are selected.
    overwrite_a : bool, optional
        Whether A may be written to. No copy is made then, if A is stored as the algorithm needs it.
    check_finite : bool, optional
        Whether to look for NaN and infinity first, in the triangle that is read.
    layout : Layout, optional
        V's layout; by default A's, with boundaries (`Cuts`) clipped to V's columns.
    memory_limit : int, optional
        Bytes of workspace a rank, at most, the copy of A that is worked on included.
        With `b` it limits each step alone: L and L^-1 A L^-H do not count.
    verify : bool or "keep", optional
        Compare A (V x) with V (w x), and V^H (V x) with x, for two vectors of 1 and -1. The default
        is PDLA_VERIFY's.

    Returns
    -------
    w : array
        The k eigenvalues, real, ascending, on every rank.
    V : DistMatrix
        n x k, column j an eigenvector of w[j]: V^H V, or V^H B V, is the identity.

    Raises
    ------
    LinAlgError
        For NaN and infinity; for a B that is not positive definite; if the iteration for an
        eigenvalue does not converge.
    VerificationError
        For a result that `verify` found wrong, and could not compute again.
    ShapeError, PlanError, LayoutError, GridError, AgreementError
        For arguments that do not go together, and for a memory_limit that cannot be kept, on every
        rank, as all of these.

    See Also
    --------
    eigvalsh : Eigenvalues alone.
    eigh_words : The words that a rank receives.

    Notes
    -----
    The steps are a one-stage reduction to tridiagonal form by Householder's reflections (LAPACK
    Working Note 30), divide and conquer (Cuppen 1981), and a product of the reflections and the
    selected vectors, in blocks. A is redistributed to block-cyclic columns (a grid of one row),
    over all ranks or as many as a node has cores; fewer, if PDLA_MACHINE describes a machine on
    which these are faster. Near the ends of its dtype's range, a power of 2
    scales A. A single rank computes all vectors by LAPACK's syevd.

    Signs do not depend on the number of ranks: in each vector the first component of at least 0.6
    times the largest absolute value is real and positive. Rounding may move a component across that
    limit.

    The eigenvalues of A v = w B v are those of L^-1 A L^-H, B = L L^H. Their errors are larger by
    about the condition of B.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.from_global(np.array([[2., 1], [1, 2]]))
    ...     w, V = pdla.linalg.eigh(A)
    ...     return w.round(8), V.gather().round(2)
    >>> pdla.run(2, program)[0]
    (array([1., 3.]), array([[ 0.71,  0.71],
           [-0.71,  0.71]]))
    """
    options = {
        "lower": lower, "subset_by_index": subset_by_index, "subset_by_value": subset_by_value, "overwrite_a": overwrite_a,
        "check_finite": check_finite, "layout": layout, "memory_limit": memory_limit, "verify": verify,
    }
    if b is None:
        return _EIGH(A, **options)
    L, C = _reduce_to_standard("eigh", A, b, options)
    w, Z = _EIGH(C, **options | OF_STANDARD | {"layout": Layout(cols=A.grid.axes)})
    # V = L^-H Z
    V = solve_triangular(L.H, Z, lower=False, overwrite_b=True, check_finite=False, memory_limit=memory_limit, verify=verify)
    V.xp.make_leading_positive(V.stored)
    return w, to_layout(V, layout or cut_layout(A, V.shape), A.grid)


@accept_stacks(TRIDIAGONAL)
def eigvalsh(
    A: DistMatrix, b: Factor | None = None, *, lower: bool = True, subset_by_index: Sequence[int] | None = None,
    subset_by_value: Sequence[float] | None = None, overwrite_a: bool = False, check_finite: bool = True,
    memory_limit: int | None = None, verify: bool | str | None = None,
) -> np.ndarray:
    """Compute the eigenvalues of a Hermitian matrix. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, Hermitian or real symmetric, as for `eigh`.
    b : DistMatrix or tuple, optional
        B of A v = w B v, as for `eigh`.
    lower : bool, optional
        Whether the lower triangle is read; else the upper one.
    subset_by_index : pair of int, optional
        Indices of the first and the last selected eigenvalue, from 0 on, ascending.
    subset_by_value : pair of float, optional
        lo and hi, which may be infinite: eigenvalues w, lo < w <= hi, are selected.
    overwrite_a : bool, optional
        Whether A may be written to. No copy is made then, if A is stored as the algorithm needs it.
    check_finite : bool, optional
        Whether to look for NaN and infinity first, in the triangle that is read.
    memory_limit : int, optional
        Bytes of workspace a rank, at most, the copy of A that is worked on included.
        With `b` it limits each step alone: L and L^-1 A L^-H do not count.
    verify : bool or "keep", optional
        Compare the sums of all eigenvalues, and of their squares, with A's trace and the squares of
        its elements. By default as PDLA_VERIFY says.

    Returns
    -------
    array
        Real, ascending, on every rank.

    Raises
    ------
    LinAlgError, VerificationError, ShapeError, PlanError, GridError, AgreementError
        As by `eigh`, on every rank.

    See Also
    --------
    eigh : Eigenvectors, too.

    Notes
    -----
    One-stage reduction to tridiagonal form, as by `eigh`, and the QL iteration without square roots
    (Pal, Walker, Kahan; LAPACK's sterf), which every rank does.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.from_global(np.array([[2., 1], [1, 2]]))
    ...     return pdla.linalg.eigvalsh(A).round(8)
    >>> pdla.run(2, program)[0]
    array([1., 3.])
    """
    options = {
        "lower": lower, "subset_by_index": subset_by_index, "subset_by_value": subset_by_value, "overwrite_a": overwrite_a,
        "check_finite": check_finite, "memory_limit": memory_limit, "verify": verify,
    }
    if b is None:
        return _EIGVALSH(A, **options)
    _, C = _reduce_to_standard("eigvalsh", A, b, options)
    return _EIGVALSH(C, **options | OF_STANDARD)


def plan_eigh(
    A: DistMatrix, *, lower: bool = True, subset_by_index: Sequence[int] | None = None,
    subset_by_value: Sequence[float] | None = None, overwrite_a: bool = False, check_finite: bool = True,
    layout: Layout | None = None, memory_limit: int | None = None,
) -> FactorPlan:
    """Plan how `eigh` will decompose matrices like A. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        As for `eigh`, as all arguments are. Its elements do not matter.
    lower : bool, optional
        Whether the lower triangle is read; else the upper one.
    subset_by_index : pair of int, optional
        The first and the last eigenvalue.
    subset_by_value : pair of float, optional
        Limits of the eigenvalues.
    overwrite_a : bool, optional
        Whether A may be written to.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    layout : Layout, optional
        Of V.
    memory_limit : int, optional
        Bytes of workspace a rank, at most.

    Returns
    -------
    FactorPlan
        The plan predicts its cost, and decomposes matrices like A.

    Raises
    ------
    ShapeError, PlanError, LayoutError, GridError, AgreementError
        As by `eigh`, on every rank.

    See Also
    --------
    predict_eigh : What it costs, from its size alone.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.eye(64)
    ...     w, V = pdla.linalg.plan_eigh(A)(A)
    ...     return w.sum(), V.shape
    >>> pdla.run(4, program)[0]
    (np.float64(64.0), (64, 64))
    """
    return _EIGH.plan(
        A, lower=lower, subset_by_index=subset_by_index, subset_by_value=subset_by_value, overwrite_a=overwrite_a,
        check_finite=check_finite, layout=layout, memory_limit=memory_limit,
    )


def predict_eigh(
    n: int, P: int, *, dtype: Any = "float64", machine: Machine | str | None = None
) -> FactorPrediction:
    """Find the best number of ranks for all eigenvalues and eigenvectors, and what they cost.

    No communicator is needed.

    Parameters
    ----------
    n : int
        Rows and columns.
    P : int
        Ranks, at most.
    dtype : dtype, optional
        Of the matrix.
    machine : Machine or str, optional
        As for `predict_cholesky`.

    Returns
    -------
    FactorPrediction
        The grid, the block, and what they cost; bytes and the bound are those of the reduction to
        tridiagonal form.

    Raises
    ------
    PlanError, ShapeError
        As by `predict_cholesky`.

    Examples
    --------
    >>> pdla.linalg.predict_eigh(4096, 4).ranks_used
    4
    """
    return predict(_EIGH, TRIDIAGONAL, n, n, P, dtype, machine)


def eigh_words(n: int, P: int, block: int = BLOCK, vectors: int | None = None) -> float:
    """Words of 8 bytes that a rank receives, in the mean, for `eigh` of an n x n matrix on P ranks.

    Parameters
    ----------
    n : int
        Rows and columns.
    P : int
        Ranks.
    block : int, optional
        Columns that a rank has at a time.
    vectors : int, optional
        The number of eigenvectors; 0: eigenvalues alone. By default all.

    Returns
    -------
    float
        The sum for the reduction, the eigenvalues, the exchange of rows of T's eigenvectors for
        columns, and the reflections. Vectors of n numbers for each level of divide and conquer are
        not counted, nor is redistribution of A and V.

    Raises
    ------
    ShapeError
        For a negative size, and no ranks or columns of a block.

    Notes
    -----
    Sums of A v take about n^2 (1 - 1/P) words, panels of A half as many, and reflections half as
    many.

    Examples
    --------
    >>> pdla.linalg.eigh_words(1024, 4)
    1406667.75
    """
    vectors = n if vectors is None else vectors
    checks.check_formula((P, 1), (2,), block, n=n, vectors=vectors)
    if P == 1:
        return 0.0
    begins = np.arange(0, n - 1, block) if vectors else np.zeros(0)
    widths = np.minimum(block, n - 1 - begins)
    reflections = float(((n - 1 - begins) * widths + widths**2 + HEADER).sum())
    return TRIDIAGONAL.words(n, n, (P, 1), block) + (reflections + n + n * vectors / P) * (P - 1) / P


# ---------------------------------------------------------------------------------------------- the work


OF_STANDARD = {"lower": True, "overwrite_a": True, "check_finite": True}  # options of the standard problem


def _reduce_to_standard(name: str, A: DistMatrix, b: Any, options: dict[str, Any]) -> tuple[DistMatrix, DistMatrix]:
    """Collective: reduce A v = w B v to a standard problem; return L of B = L L^H, and C = L^-1 A L^-H."""
    kept = isinstance(b, (tuple, list)) and len(b) == 2
    B, low = b if kept else (b, options["lower"])
    with agreed(communicator((A, B)), describe_call(name, A, B, factored=kept, low=low, **options)):
        flags(lower=low)
        checks.check_square(name, matrix(A))
        check_same_communicator(A.grid, matrix(B, "b").grid, "b")
        dtype = checks.find_working_dtype(name, A.dtype, B.dtype)
        if B.shape != A.shape:
            raise ShapeError(f"{name}: A is {A.shape}, b {B.shape}: both must have the same shape")
        check_subset(name, Options(**options), A.shape[0])
        checks.check_result(A, A.shape, dtype, None, None)
        if options["check_finite"]:
            checks.check_finite(A, part=Part(options["lower"], "real"))
    more = {"memory_limit": options["memory_limit"], "verify": options["verify"]}
    C, _ = b if kept else cho_factor(B, lower=low, check_finite=options["check_finite"], **more)
    L = C if low else C.H
    with collective_section(A.grid.comm, "a generalized problem"):
        H = make_working_copy(A, A.layout.summed, A.grid, dtype)
        reflect(H, options["lower"], True)
    # L^-1 (L^-1 A)^H
    half = solve_triangular(L, H, lower=True, overwrite_b=True, check_finite=False, **more)
    return L, solve_triangular(L, half.H, lower=True, check_finite=False, **more)


def check_subset(name: str, options: Options, n: int) -> None:
    """PlanError unless the subset is by index, by value, or None, and fits an n x n matrix."""
    index, value = options.subset_by_index, options.subset_by_value
    if index is not None and value is not None:
        raise PlanError(f"{name}: subset_by_index={index!r}, subset_by_value={value!r}: give one of them")
    if index is not None:
        fine = _is_pair(index, (int, np.integer)) and 0 <= index[0] <= index[1] < n
        if not fine:
            raise PlanError(f"{name}: subset_by_index={index!r}: two numbers, 0 <= first <= last < {n}, both included")
    if value is not None and not (_is_pair(value, (int, float, np.integer, np.floating)) and value[0] < value[1]):
        raise PlanError(f"{name}: subset_by_value={value!r}: two numbers, lo < hi, of lo < w <= hi")


def _is_pair(given: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(given, (tuple, list)) and len(given) == 2 and all(isinstance(x, kinds) for x in given)


def find_selected(options: Options, w: np.ndarray) -> range:
    """Local: find the indices of the selected eigenvalues, among all, ascending."""
    if options.subset_by_index is not None:
        first, last = options.subset_by_index
        return range(int(first), int(last) + 1)
    if options.subset_by_value is not None:
        return range(*np.searchsorted(w, options.subset_by_value, "right").tolist())
    return range(len(w))


def _reads(options: Options) -> Part:
    return Part(options.lower, "real")


def _check_values(options: Options, dtype: np.dtype, A: DistMatrix) -> None:
    check_subset("eigvalsh", options, A.shape[0])


def _check_vectors(options: Options, dtype: np.dtype, A: DistMatrix) -> None:
    check_subset("eigh", options, A.shape[0])
    if options.subset_by_value is None:
        checks.check_result(A, (A.shape[0], len(find_selected(options, np.zeros(A.shape[0])))), dtype, None, options.layout)


def _view_columns(plan: FactorPlan, A: DistMatrix) -> DistMatrix:
    """Local: view A's columns as rows, of its transpose or its conjugate."""
    return A.T if plan.options.lower else A.conj()


def _may_overwrite(plan: FactorPlan) -> bool:
    """Local: whether A may be written to: a check of V reads A once more."""
    return plan.overwrites("a") and not is_checking()


def _eigh(plan: FactorPlan, A: DistMatrix) -> tuple[np.ndarray, DistMatrix]:
    """Collective, unchecked: w and V, which `verify` checks."""
    claim = partial(claim_vectors, A, _reads(plan.options))
    w, V = run_and_check(A.grid.comm, plan.dtype, lambda: _compute_vectors(plan, A), claim)
    if A.xp.name != "meta":  # without data nobody knows how many are wanted by value
        checks.check_result(A, V.shape, plan.dtype, None, plan.options.layout)
    return w, to_layout(V, plan.options.layout or cut_layout(A, V.shape), A.grid)


def _compute_vectors(plan: FactorPlan, A: DistMatrix) -> tuple[np.ndarray, DistMatrix]:
    if plan.place[1].size == 1 and plan.options.subset_by_index is plan.options.subset_by_value is None and A.shape[0] <= LARGE:
        return _decompose_locally(plan, A)
    reduced = TRIDIAGONAL.compute(_view_columns(plan, A), plan.place, plan.dtype, _may_overwrite(plan))
    with collective_section(A.grid.comm, "eigenvectors"), within(find_workspace() or Workspace()):
        w, Z = solve_tridiagonal(plan.options, reduced, A.grid.comm)
        # V = Q Z
        multiply_by_q(reduced, Z)
        Z.xp.make_leading_positive(Z.stored)
    return w, Z


def _decompose_locally(plan: FactorPlan, A: DistMatrix) -> tuple[np.ndarray, DistMatrix]:
    """Collective: all eigenvalues and eigenvectors, by LAPACK on one rank."""
    with collective_section(A.grid.comm, "eigenvectors"), within(find_workspace() or Workspace()):
        V = make_working_copy(_view_columns(plan, A), *plan.place, plan.dtype, _may_overwrite(plan)).T
        w = kernels.syevd(V.xp, V.stored) if V.grid.active else np.zeros(A.shape[0], np.finfo(plan.dtype).dtype)
        w = share_numbers(V.grid, w)
    check_sums(w)
    V.xp.make_leading_positive(V.stored)
    return w, V


def _eigvalsh(plan: FactorPlan, A: DistMatrix) -> np.ndarray:
    """Collective, unchecked: w, which `verify` checks."""
    claim = partial(claim_values, A, _reads(plan.options), lost=explain_loss("A", plan.overwrites("a")))
    w = run_and_check(A.grid.comm, plan.dtype, lambda: _compute_values(plan, A), claim)
    some = find_selected(plan.options, w)
    return w[some.start : some.stop]


def _compute_values(plan: FactorPlan, A: DistMatrix) -> np.ndarray:
    reduced = TRIDIAGONAL.compute(_view_columns(plan, A), plan.place, plan.dtype, plan.overwrites("a"))
    return eigvalsh_tridiagonal(reduced.d, reduced.e, A.grid.comm) / reduced.d.dtype.type(reduced.scale)


def solve_tridiagonal(options: Options, reduced: Reduced, comm: Communicator) -> tuple[np.ndarray, DistMatrix]:
    """Collective: the selected eigenvalues of A, and eigenvectors of T, columns cyclic over the ranks that have reflections."""
    d, e, scale, ranks = reduced.d, reduced.e, reduced.d.dtype.type(reduced.scale), reduced.reflections.grid.size
    w = d if options.subset_by_value is None else eigvalsh_tridiagonal(d, e, comm) / scale
    some = find_selected(options, w)
    grid = ProcessGrid.trust((1, ranks), comm, None)
    w, Z = eigh_tridiagonal(d, e, grid, max(1, min(BLOCK, -(-len(some) // ranks))), some)
    if Z.dtype != reduced.reflections.dtype:
        Z = count_workspace(cast(Z, reduced.reflections.dtype))
    return w[some.start : some.stop] / scale, Z


_EIGH = Call("eigh", (TRIDIAGONAL,), _eigh, reads=_reads, results=lambda A: (), check=_check_vectors)
_EIGVALSH = Call("eigvalsh", (TRIDIAGONAL,), _eigvalsh, reads=_reads, results=lambda A: (), check=_check_values)
