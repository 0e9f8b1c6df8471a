"""QR factors: what users call."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from pdla.array import namespace
from pdla.checks import SIDES, communicator, describe_call, flags, matrix, one_of, sizes
from pdla.comm.agreement import agreed
from pdla.errors import PlanError, ShapeError, list_choices, suggest
from pdla.grid import check_same_communicator
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.orthogonal.factors import Factored, Reflections, factor_qr, replicate, run_on_first_rank
from pdla.linalg.panels.blocks import cut_layout, to_layout
from pdla.linalg.plan.call import Call
from pdla.linalg.plan.options import Options
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.plan.predict import FactorPrediction, predict
from pdla.linalg.plan.routine import Routine
from pdla.linalg.routines.qr import FORMING, QR
from pdla.linalg.routines.tall_qr import TALL_QR, is_tall
from pdla.linalg.verify import Claim, explain_loss, run_and_check
from pdla.matmul.images import Images, Pair, Part
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import cast
from pdla.model.bounds import exact
from pdla.model.machine import Machine

MODES = ("reduced", "r", "raw")


def qr(
    A: DistMatrix, *, mode: str = "reduced", pivoting: bool = False, overwrite_a: bool = False, check_finite: bool = True,
    layout: Layout | None = None, memory_limit: int | None = None, verify: bool | str | None = None,
) -> Any:
    """Factor a matrix into orthonormal columns and a triangle: A = Q R. Collective.

    Idle ranks of A's grid take part.

    Parameters
    ----------
    A : DistMatrix
        m x n, in any layout.
    mode : "reduced", "r" or "raw", optional
        "reduced": Q and R; "r": R alone; "raw": the reflections and R in one matrix, as LAPACK's
        geqrf leaves them.
    pivoting : bool, optional
        Whether to permute columns, the largest first, so that R's diagonal shows the rank: A[:, P]
        = Q R. Not in mode "raw". R must fit on each rank.
    overwrite_a : bool, optional
        Whether A may be written to. No copy is made then, if A is stored as the algorithm needs it.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    layout : Layout, optional
        The layout of Q and R; by default A's, with boundaries (`Cuts`) clipped to Q's columns and
        R's rows.
    memory_limit : int, optional
        Bytes of workspace a rank, at most, the copy of A that is worked on included. A tall,
        ill-conditioned A, which a tree of factorizations takes, may need up to three times as many.
    verify : bool or "keep", optional
        Compare Q (R x) with A x, and Q^H (Q x) with x, for vectors x of 1 and -1. For R alone,
        compare R^H (R x) with A^H (A x). The default is PDLA_VERIFY's.

    Returns
    -------
    Q : DistMatrix
        m x k, k the smaller of m and n; not in mode "r".
    R : DistMatrix
        k x n, zeros below the diagonal.
    P : array
        n numbers of columns, on every rank; with `pivoting` alone.
    QR, tau : DistMatrix and array
        In mode "raw", in place of Q and R: R on and above the diagonal, the reflections' vectors v
        below. Q = H_0 H_1 ..., H_j = I - tau_j v v^H with v of column j, v_j = 1, v_i = 0 for i <
        j.

    Raises
    ------
    LinAlgError
        For NaN and infinity.
    VerificationError
        For factors that `verify` found wrong, and could not compute again.
    ShapeError, PlanError, LayoutError, GridError, AgreementError
        For arguments that do not go together, and for a memory_limit that cannot be kept, on every
        rank, as all of these.

    See Also
    --------
    qr_words : The words that a rank receives.
    lstsq : Least squares.

    Notes
    -----
    Householder's reflections, right-looking with lookahead, in A's square blocks, or in those that
    `plan_qr` finds cheapest. If several ranks own a panel, a tree factors it, and its reflections
    are reconstructed: Ballard et al., IPDPS 2014.

    A tall matrix has at least 8 rows for each column, and at most 2048 columns. Cholesky factors of
    A^H A give R, twice if A is not well-conditioned (CholeskyQR2: Yamamoto et al., ETNA 44 (2015)).
    If R shows that A^H A has lost digits, a tree of Householder factorizations factors A (Demmel et
    al., SIAM J. Sci. Comput. 34 (2012)). The result is backward stable for every A.

    The diagonal of R may have any signs.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.from_global(np.array([[3., 1], [4, 2]]))
    ...     Q, R = pdla.linalg.qr(A)
    ...     return np.allclose((Q @ R).gather(), A.gather()), abs(R.gather()).round(2)
    >>> pdla.run(2, program)[0]
    (True, array([[5. , 2.2],
           [0. , 0.4]]))
    """
    return _QR(
        A, mode=mode, pivoting=pivoting, overwrite_a=overwrite_a, check_finite=check_finite, layout=layout,
        memory_limit=memory_limit, verify=verify,
    )


def plan_qr(
    A: DistMatrix, *, mode: str = "reduced", pivoting: bool = False, overwrite_a: bool = False, check_finite: bool = True,
    layout: Layout | None = None, memory_limit: int | None = None,
) -> FactorPlan:
    """Plan how `qr` will factor matrices like A. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        As for `qr`, as all arguments are. Its elements do not matter.
    mode : str, optional
        The results: "reduced", "r" or "raw".
    pivoting : bool, optional
        Whether to permute columns.
    overwrite_a : bool, optional
        Whether A may be written to.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    layout : Layout, optional
        The layout of Q and R.
    memory_limit : int, optional
        Bytes of workspace a rank, at most.

    Returns
    -------
    FactorPlan
        It says what it will cost, and factors matrices like A.

    Raises
    ------
    ShapeError, PlanError, LayoutError, GridError, AgreementError
        As by `qr`, on every rank.

    See Also
    --------
    predict_qr : What it costs, from its sizes alone.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.random((64, 64))
    ...     Q, R = pdla.linalg.plan_qr(A)(A)
    ...     return R.shape
    >>> pdla.run(4, program)[0]
    (64, 64)
    """
    return _QR.plan(
        A, mode=mode, pivoting=pivoting, overwrite_a=overwrite_a, check_finite=check_finite, layout=layout,
        memory_limit=memory_limit,
    )


def predict_qr(
    m: int, n: int, P: int, *, mode: str = "reduced", dtype: Any = "float64", machine: Machine | str | None = None
) -> FactorPrediction:
    """Find the best grid and blocks for a QR factorization, and what it costs.

    No communicator is needed.

    Parameters
    ----------
    m, n : int
        Rows and columns.
    P : int
        Ranks, at most.
    mode : "reduced", "r" or "raw", optional
        As for `qr`: of "reduced" Q is formed, too. For a tall matrix this is so in each mode but
        "raw".
    dtype : dtype, optional
        Of the matrix.
    machine : Machine or str, optional
        As for `predict_cholesky`.

    Returns
    -------
    FactorPrediction
        The grid, the block, and what they cost.

    Raises
    ------
    PlanError, ShapeError
        As by `predict_cholesky`, and for another mode.

    Examples
    --------
    >>> pdla.linalg.predict_qr(4096, 4096, 4).ranks_used
    4
    """
    _check_mode(mode)
    m, n = exact(m, n)
    first, *then = routines_of(mode, sizes(m, n) and is_tall(m, n))
    return predict(_QR if then else FACTOR, first, m, n, P, dtype, machine, then)


def qr_multiply(
    A: DistMatrix, C: DistMatrix, *, mode: str = "right", conjugate: bool = False, layout: Layout | None = None
) -> tuple[DistMatrix, DistMatrix]:
    """Multiply a matrix by Q of A = Q R, which is not formed. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        m x n, in any layout.
    C : DistMatrix
        On A's communicator: of m columns (right), or of k rows (left), k the smaller of m and n.
    mode : "right" or "left", optional
        "right": C Q; "left": Q C.
    conjugate : bool, optional
        Whether to multiply by Q's conjugate.
    layout : Layout, optional
        The product's layout; by default C's.

    Returns
    -------
    product : DistMatrix
        C Q, of k columns; or Q C, of m rows.
    R : DistMatrix
        k x n, as `qr` gives it.

    Raises
    ------
    LinAlgError
        For NaN and infinity.
    ShapeError, LayoutError, GridError, AgreementError
        For arguments that do not go together, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.random((20, 3))
    ...     product, R = pdla.linalg.qr_multiply(A, A.T)
    ...     return np.allclose(product.gather(), R.gather().T)
    >>> pdla.run(2, program)[0]
    True
    """
    comm = communicator((A, C))
    with agreed(comm, describe_call("qr_multiply", A, C, mode=mode, conjugate=conjugate, layout=layout)):
        check_same_communicator(A.grid, C.grid, "C")
        flags(conjugate=conjugate)
        if not one_of(mode, SIDES):
            raise PlanError(f"qr_multiply: mode={mode!r}: 'right' for C Q, 'left' for Q C{suggest(mode, SIDES)}")
        right, (m, n), k = mode == "right", A.shape, min(A.shape)
        inner, needed = (C.shape[1], f"{m} columns") if right else (C.shape[0], f"{k} rows")
        if inner != (m if right else k):
            raise ShapeError(f"qr_multiply: A is {m} x {n}, C {C.shape[0]} x {C.shape[1]}: C must have {needed}")
        dtype, shape = checks.find_working_dtype("qr_multiply", A.dtype, C.dtype), (C.shape[0], k) if right else (m, C.shape[1])
        checks.check_result(C, shape, dtype, None, layout)
    made = FACTOR(cast(A, dtype), check_finite=True)
    # C Q = (Q^H C^H)^H, C conj(Q) = (Q^T C^T)^T, conj(Q) C = conj(Q conj(C))
    if right:
        given = (C.conj() if conjugate else C).H
        product = made.multiply(given, True).H
    else:
        product = made.multiply(C.conj() if conjugate else C, False)
    product = product.conj() if conjugate else product
    return to_layout(product, layout or cut_layout(C, shape), C.grid), to_layout(made.R, cut_layout(A, (k, n)), A.grid)


def orth(A: DistMatrix, *, rcond: float | None = None, layout: Layout | None = None) -> DistMatrix:
    """Give an orthonormal basis of a matrix's columns. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        m x n, in any layout.
    rcond : float, optional
        The rank counts diagonal elements of R, with pivoting, above rcond times the largest; by
        default max(m, n) eps.
    layout : Layout, optional
        The basis's layout; by default A's, if it fits the basis.

    Returns
    -------
    DistMatrix
        m x rank.

    Raises
    ------
    LinAlgError
        For NaN and infinity.
    ShapeError, LayoutError, GridError, AgreementError
        For arguments that do not go together, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     return pdla.linalg.orth(pdla.ones((4, 3))).gather()
    >>> abs(pdla.run(2, program)[0])
    array([[0.5],
           [0.5],
           [0.5],
           [0.5]])
    """
    with agreed(communicator((A,)), describe_call("orth", A, rcond=rcond, layout=layout)):
        check_rcond("orth", rcond)
        checks.check_result(matrix(A), A.shape, checks.find_working_dtype("orth", A.dtype), None, layout)
    Q, R, _ = qr(A, pivoting=True)
    sizes = np.abs(R[: min(R.shape), : min(R.shape)].diagonal())
    rank = int((sizes > find_rank_limit(A, rcond, R.dtype) * sizes.max(initial=0)).sum())
    basis = Q[:, :rank]
    return basis.redistribute(layout or cut_layout(A, basis.shape), A.grid)


# ---------------------------------------------------------------------------------------------- the work


def check_rcond(name: str, rcond: Any) -> None:
    """PlanError unless this is a limit of singular values, over the largest, or None."""
    if rcond is not None and not (isinstance(rcond, (int, float)) and 0 <= rcond < 1):
        raise PlanError(f"{name}: rcond={rcond!r}: a number from 0 to 1, or None")


def find_rank_limit(A: DistMatrix, rcond: float | None, dtype: np.dtype) -> float:
    """Find the limit, over the largest singular value, up to which one counts as 0."""
    return max(A.shape) * float(np.finfo(dtype).eps) if rcond is None else rcond


def read_all(options: Options) -> None:
    """Read all of A."""


def _choose_routines(options: Options, A: DistMatrix) -> tuple[Routine, ...]:
    return routines_of(options.mode, is_tall(*A.shape))


def _choose_factorization(options: Options, A: DistMatrix) -> tuple[Routine, ...]:
    return routines_of("r", is_tall(*A.shape))


def routines_of(mode: str, tall: bool) -> tuple[Routine, ...]:
    """List the routines of a mode, in order."""
    if tall and mode != "raw":
        return (TALL_QR,)
    return (QR, FORMING) if mode == "reduced" else (QR,)


def _check_mode(mode: Any) -> None:
    if not one_of(mode, MODES):
        raise PlanError(f"qr: mode={mode!r}: {list_choices(mode, MODES)}")


def _check(options: Options, dtype: np.dtype, A: DistMatrix) -> None:
    _check_mode(options.mode)
    flags(pivoting=options.pivoting)
    if options.pivoting and options.mode == "raw":
        raise PlanError("qr: mode='raw' has no pivoting: leave out one of them")
    for shape in _find_shapes(A):
        checks.check_result(A, shape, dtype, None, options.layout)


def _find_shapes(A: DistMatrix) -> tuple[tuple[int, int], tuple[int, int]]:
    """Find the shapes of Q and of R."""
    (m, n), k = A.shape, min(A.shape)
    return (m, k), (k, n)


def _qr(plan: FactorPlan, A: DistMatrix) -> Any:
    """Collective, unchecked: the results of the mode, which `verify` checks."""
    lost = explain_loss("A", plan.overwrites("a"))
    return run_and_check(A.grid.comm, plan.dtype, lambda: _compute_results(plan, A), lambda images: _claim(plan, A, images, lost))


def _compute_results(plan: FactorPlan, A: DistMatrix) -> Any:
    made, options = factor_qr(plan, A), plan.options
    if options.mode == "raw":
        assert isinstance(made, Reflections)
        return made.to_raw()
    layouts = [options.layout or cut_layout(A, shape) for shape in _find_shapes(A)]
    if options.pivoting:
        Q2, R, order = _pivot(made)
        R = to_layout(R, layouts[1], A.grid)
        return (R, order) if options.mode == "r" else (to_layout(made.multiply(Q2, False), layouts[0], A.grid), R, order)
    R = to_layout(made.R, layouts[1], A.grid)
    return R if options.mode == "r" else (to_layout(made.form_q(), layouts[0], A.grid), R)


def _pivot(made: Factored) -> tuple[DistMatrix, DistMatrix, np.ndarray]:
    """Collective: Q2, R2 and P of R[:, P] = Q2 R2, computed on the first rank: A[:, P] = Q Q2 R2."""
    R, xp = made.R, made.R.xp
    small, (k, n) = R.gather(root=0), R.shape

    def find() -> Any:
        if xp.name == "meta" or not k:
            return np.zeros((k, k), R.dtype), np.zeros((k, n), R.dtype), np.arange(n)
        from scipy.linalg import qr as pivoted  # this import takes longer than pdla's

        return pivoted(xp.host(small), mode="economic", pivoting=True, check_finite=False)

    *found, order = run_on_first_rank(R.grid.comm, find)
    Q2, R2 = (replicate(part, R) for part in found)
    return Q2, R2, order


def _claim(plan: FactorPlan, A: DistMatrix, images: Images, lost: str) -> Claim:
    """Claim: Q (R x) + Q^H (Q x) = A x + x, R^H (R x) = A^H (A x), or that of reflections."""
    (m, n), k, mode = A.shape, min(A.shape), plan.options.mode
    terms = 8 * (m + n)
    if mode == "raw":
        return QR.claim(A, None, images, lost)

    def columns(made: Any) -> np.ndarray:
        return made[-1] if plan.options.pivoting else np.arange(n)

    if mode == "r":
        def multiply_by_gram(x: Pair) -> Pair:
            return images.multiply(A.H, images.multiply(A, x))

        def make_steps(made: Any) -> Any:
            R, order = (made[0], made[1]) if plan.options.pivoting else (made, np.arange(n))
            back = np.argsort(order)
            return (
                lambda x: _bound_by_norm(images.multiply(R, (x[0][order], x[1][order]))), partial(images.multiply, R.H),
                lambda x: (x[0][back], x[1][back]),
            )

        return Claim(
            n, 4 * terms, multiply_by_gram, make_steps, lost=lost,
            matrices=lambda made: (made[0] if plan.options.pivoting else made,),
            control=lambda made: made[1].tolist() if plan.options.pivoting else None,
        )

    def given(x: Pair) -> Pair:
        return _add(images.multiply(A, x), (x[0][:k], x[1][:k]))

    def steps(made: Any) -> Any:
        Q, R, order = made[0], made[1], columns(made)

        def product(x: Pair) -> Pair:
            found = images.multiply(Q, _bound_by_norm(images.multiply(R, (x[0][order], x[1][order]))))
            return _add(_bound_by_norm(found), _bound_by_norm(images.multiply(Q.H, images.multiply(Q, (x[0][:k], x[1][:k])))))

        return (product,)

    return Claim(
        n, terms, given, steps, matrices=lambda made: made[:2], zeros=lambda made: ((made[1], Part(True, "none")),), lost=lost,
        control=lambda made: made[2].tolist() if plan.options.pivoting else None,
    )


def _bound_by_norm(x: Pair) -> Pair:
    """Local: replace all sizes by their norm: the errors of Q R depend on columns' norms, in small rows too."""
    xp = namespace(x[1])
    size = xp.host(x[1])
    return x[0], xp.asarray(np.full_like(size, np.sqrt((size.astype(float) ** 2).sum())))


def _add(x: Pair, y: Pair) -> Pair:
    """Local: add x and y; y may have fewer rows."""
    made = x[0].copy(), x[1].copy()
    for total, addend in zip(made, y, strict=True):
        total[: len(addend)] += addend
    return made


_QR = Call("qr", _choose_routines, _qr, square=False, reads=read_all, results=lambda A: (), check=_check)
FACTOR = Call("qr", _choose_factorization, factor_qr, square=False, reads=read_all)  # gives the factors as Factored
