"""Each routine with its roles cast in every way: who is idle, which view is given, what is overwritten, which pivots are 0,
and who errs.

Of each kind of matrix every two values of every two of these meet.
"""

import warnings
from dataclasses import dataclass
from itertools import count, product
from math import prod

import numpy as np
import pytest
from helpers.covers import cover
from helpers.systems import BLOCKS, cyclic, drawn, positive

import pdla
from pdla import linalg
from pdla.errors import LinAlgError
from pdla.linalg.panels import kernels
from pdla.linalg.panels.blocks import cut_in_blocks
from pdla.linalg.routines import lu, lu_layers, right_looking, triangular

N, M, BLOCK = 29, 7, 4
GRIDS = [(1, 1), (2, 1), (1, 3), (6, 1), (3, 2), (6, 2), (2, 2, 2), (3, 2, 2), (6, 1, 2)]
LAYOUTS = {
    "cyclic": cyclic(BLOCK), "rows": cyclic(BLOCK, "row", None), "columns": cyclic(BLOCK, None), "blocks": BLOCKS, "part": BLOCKS,
}
IDLE = {
    "none": lambda P: range(P), "first": lambda P: range(1, P + 1), "last": lambda P: range(P),
    "middle": lambda P: [rank for rank in range(P + 1) if rank != (P + 1) // 2],
}
VIEWS = {"plain": lambda x: x, "T": lambda x: x.T, "conj": lambda x: x.conj(), "H": lambda x: x.conj().T}
BOTH = [True, False]
# View, dtype, and whether it may be overwritten.
GIVEN = [*product(VIEWS, ["complex128"], BOTH), *product(["plain", "T"], ["float64"], BOTH)]
ZEROS = [(), (0,), (2, 3), (9, 22), (N - 1,)]  # in one panel, and in two
SCALES = {"one": np.ones(N), "many": np.geomspace(1, 1e8, N)[np.random.default_rng(0).permutation(N)]}


@dataclass(frozen=True)
class Routine:
    """How it is called, of which kind of matrix, and what it gives."""

    call: object
    kind: str = "general"
    gives: str = "solution"


def in_two(factor, solve):
    return lambda A, B, over: solve(factor(A, overwrite_a=over), B, overwrite_b=over)


def by_right(A, B, over):
    return linalg.trsm(A.T, B.T, lower=False, side="right", overwrite_b=over).T


ROUTINES = {
    "solve": Routine(lambda A, B, over: linalg.solve(A, B, overwrite_a=over, overwrite_b=over)),
    "refined": Routine(lambda A, B, over: linalg.solve(A, B, overwrite_a=over, overwrite_b=over, refine="float32")),
    "lu_solve": Routine(in_two(linalg.lu_factor, linalg.lu_solve)),
    "inv": Routine(lambda A, B, over: linalg.inv(A, overwrite_a=over), gives="inverse"),
    "lu": Routine(lambda A, B, over: linalg.lu(A, overwrite_a=over), gives="lu"),
    "slogdet": Routine(lambda A, B, over: linalg.slogdet(A, overwrite_a=over), gives="slogdet"),
    "cond": Routine(lambda A, B, over: linalg.cond(A), gives="cond"),
    "pos": Routine(lambda A, B, over: linalg.solve(A, B, assume_a="pos", overwrite_a=over, overwrite_b=over), "positive"),
    "refined, pos": Routine(
        lambda A, B, over: linalg.solve(A, B, assume_a="pos", overwrite_b=over, refine="float32"), "positive",
    ),
    "cho_solve": Routine(in_two(linalg.cho_factor, linalg.cho_solve), "positive"),
    "inv, pos": Routine(lambda A, B, over: linalg.inv(A, assume_a="pos", overwrite_a=over), "positive", "inverse"),
    "cholesky": Routine(lambda A, B, over: linalg.cholesky(A, overwrite_a=over), "positive", "cholesky"),
    "triangle": Routine(lambda A, B, over: linalg.solve_triangular(A, B, lower=True, overwrite_b=over), "triangular"),
    "right": Routine(by_right, "triangular"),
    "inv, triangle": Routine(lambda A, B, over: linalg.inv(A, assume_a="lower triangular"), "triangular", "inverse"),
    "diagonal": Routine(lambda A, B, over: linalg.solve(A, B, assume_a="diagonal", overwrite_b=over), "diagonal"),
}


def matrix(kind, dtype, zeros, scales):
    """Of this kind, with zeros for pivots there, and rows of these scales."""
    a = drawn((N, N), dtype) + 4 * np.eye(N)
    if kind == "general":
        a[:, zeros] = 0
        return scales[:, None] * a
    if kind == "positive":
        a = np.sqrt(scales)[:, None] * positive(N, dtype) * np.sqrt(scales)
        a[zeros, zeros] = -1
        return a
    a = scales[:, None] * (np.tril(a) if kind == "triangular" else np.diag(a.diagonal()))
    a[zeros, zeros] = 0
    return a


def message(kind, zeros):
    """What the error says of the first of the zeros."""
    if kind == "positive":
        return f"the leading minor of order {zeros[0] + 1} is not positive definite"
    return f"singular: element ({zeros[0]}, {zeros[0]}) "


def size(x):
    return np.abs(x).sum(1).max()


def fine(gives, a, b, x):
    """Whether a result errs by rounding alone."""
    bound = 30 * N * np.finfo(a.dtype).eps
    if gives == "solution":
        return np.abs(a @ x - b).max() <= bound * (size(a) * np.abs(x).max() + np.abs(b).max())
    if gives == "inverse":
        return min(size(a @ x - np.eye(N)), size(x @ a - np.eye(N))) <= bound * size(a) * size(x)
    if gives == "cholesky":
        return not np.triu(x, 1).any() and np.abs(x @ x.conj().T - a).max() <= bound * np.abs(a).max()
    if gives == "lu":
        p, l, u = x
        return np.abs(l[p] @ u - a).max() <= bound * size(l) * size(u)
    if gives == "slogdet":
        return np.allclose(x, np.linalg.slogdet(a), rtol=1e-10)
    return 0.1 * np.linalg.cond(a, 1) < x < 1.01 * np.linalg.cond(a, 1)


def given(x, view, layout, grid):
    """A view of what is stored otherwise, with the elements of x; of a grid of layers in these; or a part, amid NaN."""
    stored = VIEWS[view](x)
    if len(grid.shape) == 3:
        X = pdla.from_global(stored, grid, cut_in_blocks(grid.shape, BLOCK))
    elif layout == "part":
        around = np.full((stored.shape[0] + 2, stored.shape[1] + 3), np.nan, stored.dtype)
        around[1:-1, 2:-1] = stored
        X = pdla.from_global(around, grid, BLOCKS)[1:-1, 2:-1]
    else:
        X = pdla.from_global(stored, grid, LAYOUTS[layout])
    return {"plain": X, "T": X.T, "conj": X.conj(), "H": X.H}[view]


def gathered(x):
    return tuple(map(gathered, x)) if isinstance(x, tuple) else x.gather() if isinstance(x, pdla.DistMatrix) else np.asarray(x)


def cast(*axes):
    """Covers of the routines of each kind of matrix."""
    kinds = {routine.kind: [] for routine in ROUTINES.values()}
    for name, routine in ROUTINES.items():
        kinds[routine.kind].append(name)
    rows = [row for names in kinds.values() for row in cover([names, *map(list, axes)], 0)]
    return pytest.mark.parametrize("case", rows, ids=str)


@cast(GRIDS, LAYOUTS, IDLE, GIVEN, ZEROS, SCALES, BOTH)
def test_every_casting(case):
    name, shape, layout, idle, (view, dtype, over), zeros, scale, verify = case
    routine = ROUTINES[name]
    a, b = matrix(routine.kind, dtype, list(zeros), SCALES[scale]).astype(dtype), drawn((N, M), dtype, 1)
    P = prod(shape)

    def program(comm):
        grid = pdla.ProcessGrid(shape, comm=comm, order=list(IDLE[idle](P)))
        A, B = given(a, view, layout, grid), given(b, view, "columns" if over else "blocks", grid)
        try:
            x = gathered(routine.call(A, B, over))
        except LinAlgError as error:
            x = str(error)
        if not over:
            assert np.array_equal(A.gather(), a) and np.array_equal(B.gather(), b)
        return x if isinstance(x, str) else (bool(fine(routine.gives, a, b, x)), repr(x))

    with pdla.config.override(verify=verify and not over), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(is 0 or NaN|factored again|ll-conditioned)")
        found = pdla.run(P + (idle != "none"), program)
    assert found == found[:1] * len(found)
    if not zeros or routine.gives == "lu":
        assert found[0][0] is True
    elif routine.gives in ("slogdet", "cond"):
        assert np.inf in [abs(float(part)) for part in found[0][1].replace("array(", "").strip("()").split(",") if "inf" in part]
    else:
        assert message(routine.kind, zeros) in found[0]


WORK = {
    **{name: (kernels, name) for name in ("potrf", "trtri", "getrf", "trsm")},
    **{f"{module.__name__}.multiply": (module, "multiply") for module in (kernels, right_looking, lu, lu_layers, triangular)},
    **{f"{module.__name__}.multiply_below": (module, "multiply_below") for module in (right_looking, triangular)},
}


@pytest.mark.parametrize("case", list(cover([*map(list, (ROUTINES, WORK, [1, 2, 9], GRIDS, LAYOUTS, IDLE))], 0)), ids=str)
def test_an_error_in_the_work_of_one_rank_ends_all(case, monkeypatch):
    """In its kernels, and in its products: of a rank that others wait for, and of one that waits for them."""
    name, where, number, shape, layout, idle = case
    module, work = WORK[where]
    routine, calls, does = ROUTINES[name], count(1), getattr(module, work)

    def fails(*args, **named):
        if next(calls) == number:
            raise ZeroDivisionError(work)
        return does(*args, **named)

    monkeypatch.setattr(module, work, fails)
    a, b = matrix(routine.kind, "float64", [], SCALES["one"]), drawn((N, M), "float64", 1)

    def program(comm):
        grid = pdla.ProcessGrid(shape, comm=comm, order=list(IDLE[idle](prod(shape))))
        routine.call(given(a, "plain", layout, grid), pdla.from_global(b, grid, BLOCKS), False)

    try:
        pdla.run(prod(shape) + (idle != "none"), program)
        assert next(calls) <= number
    except ZeroDivisionError as error:
        assert work in str(error)
