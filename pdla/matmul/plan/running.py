"""Run a plan: A and B are converted, the schedule multiplies, and C is converted."""

from __future__ import annotations

import numpy as np

from pdla import checks
from pdla.array.composed import sum_dtype
from pdla.array.dtypes import promote
from pdla.comm.agreement import collective_section, mark_failed
from pdla.comm.ledger import buffer
from pdla.comm.workspace import Workspace, within
from pdla.errors import PlanError
from pdla.grid import check_same_communicator
from pdla.layout import Layout
from pdla.matmul.plan.description import Description
from pdla.matmul.schedules import shared
from pdla.matmul.schedules.streams import find_route
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import local_shape, order_sums, start, sum_partials


def check(plan: Description, A: DistMatrix, B: DistMatrix, out: DistMatrix | None) -> None:
    """Local: check the matrices of a call, and note them: the next call with the same ones need not check."""
    if plan.state.last.matches(A, B) and plan.state.last.out() is out:
        return
    for name, X in (("A", A), ("B", B), *([("out", out)] if out is not None else [])):
        checks.matrix(X, name)
        check_same_communicator(plan.grid, X.grid, name, "the plan")
    matches = plan.A.matches(A) and plan.B.matches(B) and promote(A.dtype, B.dtype) == plan.dtype
    if not matches or (out is not None and not plan.C.is_cut_like(out)):
        made_for = f"{plan.A}; {plan.B}; out={plan.C}, in {plan.dtype}"
        given = f"{A.description}; {B.description}; out={None if out is None else out.description}"
        raise PlanError(f"this plan is for {made_for}, not for {given}")
    if out is not None:
        checks.takes(out, (A.shape[0], B.shape[1]), plan.dtype, None, "product")
        checks.written_to(out, A, B)
    _note(plan, A, B, out)


def _note(plan: Description, A: DistMatrix, B: DistMatrix, out: DistMatrix | None) -> None:
    """Note the matrices of this call, and the turn that multiplies them, if a call does nothing else."""
    product = A, B, plan.roles, plan.grid, plan.memo
    as_they_are = A.dtype == B.dtype == plan.dtype and not (A.conjugated or B.conjugated)
    one_turn = as_they_are and plan.memo.find_or_make("at once", lambda: _is_one_turn(plan))
    is_reusable = one_turn and shared.Script.find_or_make(*product).is_reusable
    plan.state.last.note(A, B, out, shared.Turn(*product) if is_reusable else None)


def _is_one_turn(plan: Description) -> bool:
    """Whether a call with factors of the plan's dtype, not conjugated, is one shared product, straight into C's block."""
    # Blocks of A or B on the right ranks of another grid would be taken for other ranks' blocks, and copied.
    one_grid = plan.A.grid == plan.B.grid == plan.C.grid == plan.grid
    in_place = plan.how.reads_in_place and one_grid and all(plan.stays) and plan.needs_no_conversion
    return in_place and _can_add_to(plan, plan.dtype, plan.C.layout, plan.roles.C)


def run(
    plan: Description, A: DistMatrix, B: DistMatrix, out: DistMatrix | None, alpha: complex, beta: complex, workspace: Workspace
) -> DistMatrix:
    """Collective: compute the product without checks, with buffers from a workspace."""
    comm, last = plan.grid.comm, plan.state.last
    if not last.matches(A, B):
        with collective_section(comm, "a product"):
            _note(plan, A, B, out)
    if (turn := last.turn) is None:
        with collective_section(comm, "a product"):
            return _run(plan, A, B, out, alpha, beta, workspace)
    comm.check_in_step("a product")
    before = comm.enter("a product")
    try:
        C = _allocate(plan, A) if out is None else out
        workspace.most = plan.limit
        with within(workspace):
            turn.run(C.stored if plan.grid.active else None, alpha, beta)
    except BaseException as error:  # without `collective_section`, whose cost would show in the smallest products
        mark_failed(comm, "a product", error)
        raise
    finally:
        comm.user = before
    return C


def _allocate(plan: Description, A: DistMatrix) -> DistMatrix:
    """Allocate a matrix for the product, with undefined contents, of A's kind of array."""
    C = plan.C
    return DistMatrix(A.xp.empty(plan.block, plan.dtype), C.shape, C.grid, C.layout)


def _run(
    plan: Description, A: DistMatrix, B: DistMatrix, out: DistMatrix | None, alpha: complex, beta: complex, workspace: Workspace
) -> DistMatrix:
    workspace.most = plan.limit
    with within(workspace):
        if out is None:
            out, beta = _allocate(plan, A), 0
        a, b = convert(plan, A, B)
        if plan.stays[2]:
            multiply(plan, a, b, _view_on_grid(plan, out, plan.native[2]), alpha, beta)
        else:
            _multiply_and_return(plan, a, b, out, alpha, beta)
    return out


# ---------------------------------------------------------------------------------------------- there and back


def convert(plan: Description, A: DistMatrix, B: DistMatrix) -> tuple[DistMatrix, DistMatrix]:
    """Collective: convert A and B to their native layouts; both are sent before either is waited for.

    Some schedules take them in any layouts.
    """
    same = A.grid is B.grid is plan.grid and A.dtype is B.dtype is plan.dtype
    if same and plan.needs_no_conversion and not (A.conjugated or B.conjugated):
        return A, B
    ready = [_prepare(plan, X) for X in (A, B)]
    converted, ends = [], []
    for X, layout, stays in zip(ready, plan.native, plan.stays, strict=False):
        if stays or plan.how.takes_any_layout:
            converted.append(_view_on_grid(plan, X, layout) if stays else X)
            continue
        out = buffer(X.xp, local_shape(X.shape, layout, plan.grid), X.dtype)
        ends.append(start(X, find_route(X, layout, plan.grid, plan.memo), plan.grid.comm, out))
        converted.append(DistMatrix(out, X.shape, plan.grid, layout))
    for end in ends:
        end()
    return converted[0], converted[1]


def _view_on_grid(plan: Description, X: DistMatrix, layout: Layout) -> DistMatrix:
    """View X, whose blocks are on the right ranks, as a matrix on the plan's grid."""
    if X.grid is plan.grid or X.grid == plan.grid:
        return X
    shape = local_shape(X.shape, layout, plan.grid)
    # A block without elements may have another shape in the new layout.
    base = X.base if X.base.size else X.xp.empty(shape[::-1] if X.transposed else shape, X.dtype)
    return DistMatrix(base, X.shape, plan.grid, layout, X.transposed, common=X.common)


def _prepare(plan: Description, X: DistMatrix) -> DistMatrix:
    """Prepare an operand: the product's dtype, no partial sums, and no conjugate view."""
    if X.layout.partial:
        X = sum_partials(X, X.layout.summed)
    if X.dtype == plan.dtype and not X.conjugated:
        return X
    base = buffer(X.xp, X.base.shape, plan.dtype)
    X.xp.copy(base, X.base, X.conjugated)
    return DistMatrix(base, X.shape, X.grid, X.layout, X.transposed)


def _multiply_and_return(
    plan: Description, a: DistMatrix, b: DistMatrix, out: DistMatrix, alpha: complex, beta: complex
) -> None:
    """Collective: compute the product in C's native layout, redistribute it to `out`'s, and add beta times the old `out`.

    16-bit floats are rounded only at the end.
    """
    xp, dtype = out.xp, plan.dtype if beta == 0 else sum_dtype(plan.dtype)
    block = buffer(xp, local_shape(out.shape, plan.native[2], plan.grid), dtype)
    c = DistMatrix(block, out.shape, plan.grid, plan.native[2])
    multiply(plan, a, b, c, alpha, 0)
    target = out.stored if beta == 0 else buffer(xp, out.stored.shape, dtype)
    start(c, find_route(c, out.layout, out.grid, plan.memo), plan.grid.comm, target)()
    if beta != 0:
        xp.combine(out.stored, beta, target)


# ---------------------------------------------------------------------------------------------- multiplying


def multiply(plan: Description, a: DistMatrix, b: DistMatrix, c: DistMatrix, alpha: complex, beta: complex) -> None:
    """Collective: `c = alpha a b + beta c` on the plan's grid.

    If c has the products' layout and dtype, they are added to its own block; else to a buffer,
    which is then summed and redistributed to c.
    """
    xp, memo = c.xp, plan.memo
    layout, moving = (plan.walk.C, bool(plan.walk.axes_c)) if plan.how.walks else (plan.roles.C, False)
    if memo.find_or_make(("same", c.dtype), lambda: _can_add_to(plan, c.dtype, c.layout, layout)) and (beta == 0 or not moving):
        target = DistMatrix(c.stored, c.shape, plan.grid, layout)
        plan.how.run(plan, a, b, target, alpha, beta)
        return
    shape = local_shape(c.shape, layout, plan.grid)
    # By columns if a sum cuts columns: parts of rows would have gaps, and would be copied before
    # they are sent.
    by_columns = bool(layout.partial) and not order_sums(c.shape, layout, c.layout, tuple(plan.grid.sizes.items()))[0][1]
    base = buffer(xp, shape[::-1] if by_columns else shape, sum_dtype(plan.dtype))
    addends = DistMatrix(base, c.shape, plan.grid, layout, by_columns)
    target = DistMatrix(addends.stored, c.shape, plan.grid, layout)  # no transpose, as panels of C are sent by rows
    plan.how.run(plan, a, b, target, alpha, 0)
    if addends.layout.partial:
        addends = sum_partials(addends, c.layout)
    if not _can_add_to(plan, addends.dtype, addends.layout, c.layout):
        moved = buffer(xp, c.stored.shape, sum_dtype(plan.dtype))
        start(addends, find_route(addends, c.layout, plan.grid, memo), plan.grid.comm, moved)()
        addends = DistMatrix(moved, c.shape, plan.grid, c.layout)
    xp.combine(c.stored, beta, addends.stored)


def _can_add_to(plan: Description, dtype: np.dtype, current: Layout, layout: Layout) -> bool:
    """Whether products in `layout` can be added directly to blocks of C of this dtype in the layout `current`."""
    return dtype == sum_dtype(plan.dtype) and not layout.partial and current.same_cuts(layout, plan.C.shape, plan.grid.sizes)
