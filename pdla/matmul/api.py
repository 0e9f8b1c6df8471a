"""Distributed multiplication: the functions a user calls, and their checks."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from pdla import checks, config
from pdla.array.dtypes import promote
from pdla.comm import cache, workspace
from pdla.comm.agreement import agreed, to_text
from pdla.comm.communicator import Communicator
from pdla.comm.workspace import Workspace
from pdla.errors import GridError, LayoutError, PlanError, ShapeError, list_choices, misfit, suggest
from pdla.grid import check_same_communicator
from pdla.layout import Layout, axes_of
from pdla.matmul import planner
from pdla.matmul import verify as verified
from pdla.matmul.algorithms import NAMED
from pdla.matmul.builder import PlanBuilder
from pdla.matmul.choose.problem import Operand
from pdla.matmul.options import Options
from pdla.matmul.plan import Plan
from pdla.matmul.schedules import ON_GRID, SCHEDULES
from pdla.matrix.core import DistMatrix
from pdla.model.machine import Machine


@lru_cache(1024)
def default_layout(a: Layout, b: Layout) -> Layout:
    """C's layout where the caller gives none: A's row cuts and B's column cuts.

    An axis in both cuts the rows. The columns are then cut along an axis that otherwise cuts the
    inner dimension alone. C of A^T B is then cut as far as A and B are.
    """
    by_rows = axes_of(a.rows)
    used = {*by_rows, *axes_of(b.cols)}
    inner = iter([axis for axis in dict.fromkeys(axes_of(a.cols + b.rows)) if axis not in used])
    cols = [cut if cut.axis not in by_rows else cut.with_axis(axis) if (axis := next(inner, None)) else None for cut in b.cols]
    return Layout(a.rows, tuple(cut for cut in cols if cut is not None))


def _check(A: DistMatrix, B: Any, out: Any, layout: Any) -> None:
    checks.matrix(A)
    checks.matrix(B, "B")
    if out is not None:
        checks.matrix(out, "out")
    if A.shape[1] != B.shape[0]:
        raise ShapeError(f"A is {A.shape[0]} x {A.shape[1]}, B is {B.shape[0]} x {B.shape[1]}: the inner sizes differ")
    for name, X in (("B", B), ("out", out)):
        if X is not None:
            check_same_communicator(A.grid, X.grid, name)
    checks.open_grids((A.grid, B.grid) if out is None else (A.grid, B.grid, out.grid))
    if isinstance(layout, Layout):
        layout.check((A.shape[0], B.shape[1]), A.grid.sizes)
        if layout.partial:
            raise LayoutError(f"layout={layout!r}: the product cannot be left as partial sums")
    elif layout is not None and not checks.one_of(layout, ("native",)):
        raise LayoutError(f"layout={layout!r}: a Layout, 'native' or None{suggest(layout, ('native',))}")


def check_algorithm(algorithm: Any) -> None:
    """Raise PlanError unless there is an algorithm of this name."""
    names = (*ON_GRID, *NAMED)
    if not checks.one_of(algorithm, (*names, "auto")):
        hint = f"; {algorithm} is a schedule: give matmul schedule={algorithm!r}" if checks.one_of(algorithm, SCHEDULES) else ""
        raise PlanError(f"algorithm={algorithm!r}: {list_choices(algorithm, (*names, 'auto'))}{hint}")


def _check_options(options: Options, A: DistMatrix, B: DistMatrix, out: DistMatrix | None) -> None:
    check_algorithm(options.algorithm)
    for name, X in (("B", B), ("out", out)):
        if options.algorithm in ON_GRID and X is not None and X.grid != A.grid:
            raise GridError(
                f"A is on {A.grid!r}, {name} on {X.grid!r}: {options.algorithm} works on one grid; redistribute {name} to A's "
                "grid first, or leave the choice to algorithm='auto'"
            )
    if options.schedule is not None and not checks.one_of(options.schedule, SCHEDULES):
        raise PlanError(f"schedule={options.schedule!r}: {list_choices(options.schedule, SCHEDULES)}")
    if options.schedule is not None and (why := SCHEDULES[options.schedule].find_obstacle(A.grid.comm)):
        raise PlanError(f"schedule={options.schedule!r}: {why}")
    if options.schedule and options.algorithm in ON_GRID and options.schedule != options.algorithm:
        raise PlanError(f"schedule={options.schedule!r} with algorithm={options.algorithm!r}, which is a schedule itself")
    if options.panel is not None and not _is_count(options.panel):
        raise misfit(PlanError, options.panel)(f"panel={options.panel!r}: a whole number of at least 1")
    checks.limit(options.memory_limit)
    if options.box is not None:
        _check_box(options, A.grid.comm.size)


def _check_box(options: Options, ranks: int) -> None:
    box = options.box
    if options.algorithm in ON_GRID:
        raise PlanError(f"box={box} with algorithm={options.algorithm!r}, which works on the grid of A and B")
    if not isinstance(box, tuple) or len(box) != 3 or not all(map(_is_count, box)) or prod(box) > ranks:
        raise PlanError(f"box={box!r}: three sides of at least 1 in a tuple, of at most {ranks} ranks in all")


def _is_count(n: Any) -> bool:
    """Whether `n` is an integer of at least 1. 2.0 is not: it equals 2, and would find the plans kept for 2."""
    return isinstance(n, (int, np.integer)) and bool(n >= 1)


def plan_matmul(
    A: DistMatrix,
    B: DistMatrix,
    *,
    algorithm: str = "auto",
    layout: Layout | str | None = None,
    out: DistMatrix | None = None,
    alpha: complex = 1,
    beta: complex = 0,
    box: tuple[int, int, int] | None = None,
    schedule: str | None = None,
    panel: int | None = None,
    memory_limit: int | None = None,
) -> Plan:
    """Plan how C = alpha A B + beta C will be computed. Collective, idle ranks included.

    Parameters
    ----------
    A, B : DistMatrix
        As for `matmul`, as all arguments are.
    algorithm : str, optional
        How to multiply.
    layout : Layout or "native", optional
        Of C.
    out : DistMatrix, optional
        A matrix like those that are to be filled.
    alpha : number, optional
        Factor of the product.
    beta : number, optional
        Factor of what `out` holds.
    box : tuple of three int, optional
        Sides of the algorithm's own grid.
    schedule : str, optional
        How panels move.
    panel : int, optional
        Width of panels, in indices, at most.
    memory_limit : int, optional
        Bytes of workspace a rank, at most.

    Returns
    -------
    Plan
        It says what it will cost, and multiplies matrices like these.

    Raises
    ------
    ShapeError, LayoutError, GridError, PlanError, AgreementError
        As by `matmul`, on every rank.

    Notes
    -----
    A plan that is run otherwise than it was made may need more memory than it predicts, and than
    `memory_limit`. Examples are a beta other than 0 where the plan was made with 0; 0 where it was
    made with another (16-bit floats); and matrices that must be copied, such as conjugates, parts,
    another dtype, or blocks with gaps.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.ones((8, 8), pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col"))
    ...     plan = pdla.plan_matmul(A, A, algorithm="summa")
    ...     return plan.predicted.bytes_received, plan(A, A).sum()
    >>> pdla.run(4, program)[0]
    (256, np.float64(512.0))
    """
    options = Options(algorithm, box, schedule, panel, memory_limit)
    return _find_plan(A, B, layout, out, alpha, beta, options)[0]


def matmul(
    A: DistMatrix,
    B: DistMatrix,
    *,
    algorithm: str = "auto",
    layout: Layout | str | None = None,
    out: DistMatrix | None = None,
    alpha: complex = 1,
    beta: complex = 0,
    box: tuple[int, int, int] | None = None,
    schedule: str | None = None,
    panel: int | None = None,
    memory_limit: int | None = None,
    verify: bool | str | None = None,
) -> DistMatrix:
    """Multiply: C = alpha A B + beta C. Collective, idle ranks included.

    A and B are never written to. ``A @ B`` is this function without options.

    Parameters
    ----------
    A, B : DistMatrix
        m x k and k x n, in any layouts on any grids over one communicator; transposes and
        conjugates are views. Dtypes promote as NumPy's do.
    algorithm : str, optional
        "auto": the cheapest of the rule on A's own grid and all boxes of "3d". Their price includes
        the words that convert A, B and C. Others are

        * on the grid of A and B, by the rule: "gather", "summa", "cannon";
        * on the best grid of their kind: "3d", "2.5d", "tesseract", "a-stationary", "b-stationary",
          "c-stationary".
    layout : Layout or "native", optional
        C's layout, on A's grid. "native": the cheapest, on the plan's grid. By default A's row cuts
        and B's column cuts. An axis in both cuts the rows, and another axis of A or B, if there is
        one, the columns. The default is native if A and B are on different grids.
    out : DistMatrix, optional
        The matrix C to fill, of the product's shape and dtype, sharing no memory with A and B.
    alpha : number, optional
        Factor of the product.
    beta : number, optional
        Factor of what `out` holds, which is never read where this is 0.
    box : tuple of three int, optional
        (pm, pn, pk) for an algorithm with a grid of its own; (pr, pc, depth) for tesseract.
    schedule : str, optional
        If the algorithm leaves the choice: "gather" (all at once), "shared" (in memory that a
        node's ranks share), "summa" (panels), "cannon" (shifts) or "fetch" (panels from any
        layout).
    panel : int, optional
        Width of panels (summa, cannon, fetch), in indices, at most.
    memory_limit : int, optional
        Bytes of workspace a rank, at most.
    verify : bool or "keep", optional
        Compare C x with A (B x) for two vectors of 1 and -1. A wrong product is computed once more,
        with a warning. A wrong `out` is an error, unless "keep" saves its contents to compute it
        again. By default as PDLA_VERIFY says.

    Returns
    -------
    DistMatrix
        C, m x n; `out` itself, where it is given.

    Raises
    ------
    ShapeError
        For sizes that do not match; an `out` of another shape or dtype; an alpha or beta that the
        dtype does not have, as a float that overflows in it.
    LayoutError
        For a layout that does not fit, or has partial sums.
    GridError
        For grids over different communicators, or closed ones.
    PlanError
        For an algorithm or option that is unknown or cannot run here, and a memory_limit that no
        plan keeps.
    VerificationError
        For a product that `verify` found wrong, and could not compute again.
    AgreementError
        If ranks give different arguments. All of these are raised on every rank.

    See Also
    --------
    plan_matmul : The plan alone, to be run again and again.
    predict_matmul : What a product costs, from its sizes alone.

    Notes
    -----
    Plans are kept: the same call finds its plan again. 16-bit floats are multiplied in float32.
    Infinity and NaN in alpha and beta multiply each addend, as in BLAS: a zero in A or B may then
    give NaN.

    SUMMA: van de Geijn and Watts 1997. Cannon 1969. 3d: Agarwal, Balle, Gustavson, Joshi and Palkar
    1995. 2.5d: Solomonik and Demmel 2011. The stationary forms: Schatz, van de Geijn and Poulson
    2016. Tesseract: Wang, Xu, Bian and You 2021.

    Examples
    --------
    >>> def program(comm):
    ...     grid, layout = pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col")
    ...     A = pdla.from_function(lambda i, j: i + j, (3, 4), grid, layout)
    ...     return pdla.matmul(A, A.T, alpha=2).gather()
    >>> pdla.run(4, program)[0]
    array([[ 28.,  40.,  52.],
           [ 40.,  60.,  80.],
           [ 52.,  80., 108.]])
    """
    options = Options(algorithm, box, schedule, panel, memory_limit)
    plan, plans = _find_plan(A, B, layout, out, alpha, beta, options, verify)
    if config.settings.verify if verify is None else verify:
        C = verified.run(plan, A, B, out, alpha, beta, plans.workspace, keep=verify == "keep")
    else:
        C = plan.run(A, B, out, alpha, beta, plans.workspace)
    plans.workspace.trim(workspace.KEPT)
    plan.how.trim(A.grid.comm, workspace.KEPT)
    return C


def gemm(alpha: complex, A: DistMatrix, B: DistMatrix, beta: complex, C: DistMatrix, *, algorithm: str = "auto") -> None:
    """Multiply in place, with BLAS's order of arguments: C = alpha A B + beta C.

    Collective, idle ranks included.

    Parameters
    ----------
    alpha : number
        Factor of the product.
    A, B : DistMatrix
        m x k and k x n; see `matmul`.
    beta : number
        Factor of what C holds, which is never read where this is 0.
    C : DistMatrix
        m x n, of the product's dtype, sharing no memory with A and B.
    algorithm : str, optional
        How to multiply; see `matmul`.

    Raises
    ------
    ShapeError, LayoutError, GridError, PlanError, AgreementError
        As by `matmul`, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.ones((4, 4), pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col"))
    ...     C = A.copy()
    ...     pdla.gemm(1, A, A, -1, C)
    ...     return C.sum()
    >>> pdla.run(4, program)[0]
    np.float64(48.0)
    """
    matmul(A, B, algorithm=algorithm, out=C, alpha=alpha, beta=beta)


# ---------------------------------------------------------------------------------------------- plans made before


class Plans:
    """The plans of one communicator, the latest last, and the workspace that its calls share."""

    def __init__(self) -> None:
        self.plans: dict[tuple[Any, ...], Any] = {}
        self.workspace: Workspace = Workspace()

    def plan(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Find the plan kept under this key, or make one."""
        plan = self.plans.get(key)
        return make() if plan is None or plan.closed else plan

    def keep(self, key: tuple[Any, ...], plan: Any) -> None:
        """Keep a plan as the latest, and drop the oldest.

        Call it only for calls that agree, so that every rank drops the same plans. Some plans send
        messages at their first run only, and all ranks must take part in that.
        """
        if self.plans and next(reversed(self.plans.values())) is plan:
            return
        self.plans.pop(key, None)
        self.plans[key] = plan
        while len(self.plans) > cache.MOST:
            del self.plans[next(iter(self.plans))]


def plans_of(comm: Communicator) -> Plans:
    """Find the plans of a communicator, which live as long as it does."""
    if not hasattr(comm, "_plans"):
        comm._plans = Plans()  # type: ignore[attr-defined]
    return comm._plans  # type: ignore[attr-defined]


def _find_plan(
    A: DistMatrix, B: DistMatrix, layout: Layout | str | None, out: DistMatrix | None, alpha: complex, beta: complex,
    options: Options, verify: Any = None,
) -> tuple[Plan, Plans]:
    """Collective: check a call, and find its plan among those kept, or make it. Return the plan, and the plans that keep it."""
    with agreed(checks.communicator((A, B, out)), _describe_call(A, B, layout, out, alpha, beta, options, verify)):
        _check(A, B, out, layout)
        _check_options(options, A, B, out)
        if verify is not None:
            verified.check_option(verify)
        dtype = promote(A.base.dtype, B.base.dtype)
        checks.scalars(dtype, alpha, beta, out)
        if out is not None:
            checks.takes(out, (A.shape[0], B.shape[1]), dtype, layout, "product")
            checks.written_to(out, A, B)
        plans = plans_of(A.grid.comm)
        a, b, c = Operand.of(A), Operand.of(B), _describe_c(A, B, layout, out)
        adds = bool(beta != 0)
        key = (a, b, c, dtype, options, adds, config.settings.machine)
        plan = plans.plan(key, lambda: planner.make(PlanBuilder(a, b, c, dtype, options, Machine.choose(), adds)))
    plans.keep(key, plan)
    return plan, plans


def _describe_c(A: DistMatrix, B: DistMatrix, layout: Layout | str | None, out: DistMatrix | None) -> Operand | None:
    """Describe C in the layout that the caller gives; None: in the cheapest."""
    shape = (A.shape[0], B.shape[1])
    if out is not None:
        return Operand.of(out)
    if isinstance(layout, Layout):
        return Operand(shape, layout, A.grid)
    return Operand(shape, default_layout(A.layout, B.layout), A.grid) if layout is None and A.grid == B.grid else None


def _describe_call(A: Any, B: Any, layout: Any, out: Any, alpha: Any, beta: Any, options: Options, verify: Any) -> str:
    """Describe the call, in words that are the same on every rank."""
    a, b, of_layout, c = [X.description if isinstance(X, DistMatrix) else repr(X) for X in (A, B, layout, out)]
    of_verify = "" if verify is None else f"; verify={verify!r}"
    return f"matmul({a}; {b}; layout={of_layout}; out={c}; alpha={to_text(alpha)}; beta={to_text(beta)}; {options!r}{of_verify})"


DistMatrix.multiply = matmul  # A @ B
