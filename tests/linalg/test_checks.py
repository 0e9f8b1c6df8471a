"""What level 3 refuses, with the same words on every rank."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers.level3 import BLOCKS, TURNS
from helpers.matmuls import exact

import pdla
from pdla import Layout, ProcessGrid, errors

REFUSED = {
    "syrk": [
        (errors.ShapeError, r"A is an ndarray", lambda s: pdla.syrk(np.ones((2, 2)))),
        (errors.ShapeError, r"out is \(4, 4\) float64, the result \(4, 4\) complex", lambda s: pdla.herk(s.Z, out=s.S)),
        (errors.ShapeError, "must be real", lambda s: pdla.herk(s.Z, alpha=1j)),
        (errors.ShapeError, "must be real", lambda s: pdla.herk(s.Z, alpha=np.complex64(1j))),
        (errors.ShapeError, "alpha=1j is complex", lambda s: pdla.syrk(s.A, alpha=1j)),
        (errors.ShapeError, "beta=2 without out", lambda s: pdla.syrk(s.A, beta=2)),
        (errors.ShapeError, "shares memory", lambda s: pdla.syrk(s.S, out=s.S)),
        (errors.LayoutError, "'native'", lambda s: pdla.syrk(s.A, layout="native")),
        (errors.LayoutError, "'depth'", lambda s: pdla.syrk(s.A, layout=Layout("depth"))),
        (errors.LayoutError, "cannot be left as partial sums", lambda s: pdla.herk(s.A, layout=Layout("row", partial="col"))),
        (errors.GridError, "redistribute out to A's grid", lambda s: pdla.syrk(s.A, out=exact((4, 4), s.other, BLOCKS))),
        (errors.AgreementError, "rank 2: syrk", lambda s: pdla.syrk(s.A, alpha=2 if s.comm.rank == 2 else 1)),
        (errors.ArgumentError, "lower='upper': True or False", lambda s: pdla.syrk(s.A, lower="upper")),
        (errors.ArgumentError, "mirror=1: True or False", lambda s: pdla.herk(s.A, mirror=1)),
        (errors.ShapeError, "rank 1: A is an int", lambda s: pdla.syrk(1 if s.comm.rank == 1 else s.A, out=s.S)),
    ],
    "symm": [
        (errors.ShapeError, "out shares memory with A", lambda s: pdla.symm(s.S, s.S.copy(), out=s.S)),
        (errors.ShapeError, "A is 4 x 6, it must be square", lambda s: pdla.symm(s.A, s.A)),
        (errors.PlanError, "side='up'", lambda s: pdla.hemm(s.S, s.A, side="up")),
        (errors.PlanError, r"side=array\(", lambda s: pdla.symm(s.S, s.A, side=np.arange(3))),
        (errors.GridError, "redistribute B to A's grid", lambda s: pdla.symm(s.S, s.W)),
        (errors.ShapeError, "inner sizes differ", lambda s: pdla.symm(s.S, s.A, side="right")),
        (errors.ArgumentError, "lower='upper': True or False", lambda s: pdla.symm(s.S, s.A, lower="upper")),
        (errors.ShapeError, "rank 1: A is an int", lambda s: pdla.hemm(1 if s.comm.rank == 1 else s.S, s.A)),
    ],
    "matvec": [
        (
            errors.LayoutError, "cannot be left as partial sums",
            lambda s: pdla.matvec(s.A, s.v, layout=Layout("row", partial="col")),
        ),
        (errors.ShapeError, r"x has shape \(4,\): it must be \(6,\)", lambda s: pdla.matvec(s.A, np.ones(4))),
        (errors.ShapeError, r"must be \(6, 1\)", lambda s: pdla.matvec(s.A, s.A)),
        (errors.AgreementError, "rank 3: matvec", lambda s: pdla.matvec(s.A, s.odd)),
        (errors.LayoutError, "y is whole on every rank", lambda s: pdla.matvec(s.A, np.ones(6), layout=BLOCKS)),
        (errors.ShapeError, "rank 1: A is an int", lambda s: pdla.matvec(1 if s.comm.rank == 1 else s.A, s.v)),
        (ValueError, "rank 1: .*inhomogeneous", lambda s: pdla.matvec(s.A, [[1], [1, 2]] if s.comm.rank == 1 else s.odd)),
        (errors.ShapeError, "elements of dtype object", lambda s: pdla.matvec(s.A, s.odd.astype(object))),
        (errors.ShapeError, "masked elements", lambda s: pdla.matvec(s.A, np.ma.masked_greater(np.arange(6), 3))),
        (errors.ShapeError, "matrices of float16 and bfloat16: .* by astype", lambda s: pdla.matvec(s.half, s.brain.gather()[0])),
    ],
    "stack": [
        (errors.ShapeError, "three dimensions", lambda s: pdla.stack(np.ones((2, 2)), s.grid, BLOCKS)),
        (errors.LayoutError, "which cuts the batch", lambda s: pdla.stack(np.ones((2, 2, 2)), s.grid, BLOCKS, "col")),
        (errors.GridError, "no such axis", lambda s: pdla.stack(np.ones((2, 2, 2)), s.grid, BLOCKS, "depth")),
        (errors.AgreementError, "digest", lambda s: pdla.stack(np.full((2, 2, 2), s.comm.rank), s.grid, BLOCKS)),
        (errors.ShapeError, "stack: elements of dtype object", lambda s: pdla.stack(np.ones((2, 2, 2), object), s.grid, BLOCKS)),
        (errors.AgreementError, "rank 1: gather 3 x 4", lambda s: (s.batch if s.comm.rank == 1 else s.other_batch).gather()),
        (errors.ShapeError, "masked elements", lambda s: pdla.stack(np.ma.masked_all((2, 4, 4)), s.grid, BLOCKS)),
        (errors.GridError, "stack: grid=3", lambda s: pdla.stack(np.ones((2, 2, 2)), 3, BLOCKS)),
    ],
    "batched_matmul": [
        (errors.ShapeError, "B is a DistMatrix", lambda s: pdla.batched_matmul(s.batch, s.A)),
        (errors.LayoutError, "layout='': a Layout", lambda s: pdla.batched_matmul(s.batch, s.batch, layout="")),
        (errors.PlanError, "algorithm='x'", lambda s: pdla.batched_matmul(s.batch, s.batch, algorithm="x")),
        (errors.GridError, "must be the same", lambda s: s.batch @ pdla.stack(np.ones((3, 4, 4)), s.grid, Layout("row"))),
        (errors.ShapeError, "batches must be equal", lambda s: s.batch @ pdla.stack(np.ones((3, 5, 4)), s.grid, Layout(), "col")),
        (errors.ShapeError, "rank 1: A is an int", lambda s: pdla.batched_matmul(1 if s.comm.rank == 1 else s.batch, s.batch)),
        (errors.ShapeError, "rank 1: B is an int", lambda s: pdla.batched_matmul(s.batch, 1 if s.comm.rank == 1 else s.batch)),
    ],
    "multi_dot": [
        (errors.ShapeError, r"multi_dot\(\[A, B, C\]\)", lambda s: pdla.multi_dot(s.A)),
        (errors.ShapeError, r"rank 1: multi_dot of one", lambda s: pdla.multi_dot(s.S if s.comm.rank == 1 else [s.S, s.A])),
        (errors.LayoutError, "layout='rows': a Layout", lambda s: pdla.multi_dot([s.A], layout="rows")),
        (errors.PlanError, "algorithm='x': one of 'gather'", lambda s: pdla.multi_dot([s.A], algorithm="x")),
        (errors.ShapeError, "rank 1: matrix 1 is a NoneType", lambda s: pdla.multi_dot([s.A, None if s.comm.rank == 1 else s.S])),
        (errors.ShapeError, "no matrices", lambda s: pdla.multi_dot([])),
        (errors.ShapeError, "matrix 0 is 4 x 6, matrix 1 4 x 6", lambda s: pdla.multi_dot([s.A, s.A])),
        (errors.GridError, "redistribute matrix 1", lambda s: pdla.multi_dot([s.A, s.W.T])),
        (errors.ShapeError, "matrices of float16 and bfloat16: .* by astype", lambda s: pdla.multi_dot([s.half, s.brain])),
    ],
    "einsum": [
        (errors.PlanError, "algorithm='x': one of 'gather'", lambda s: pdla.einsum("ij->ji", s.A, algorithm="x")),
        (errors.ShapeError, "the letters come first", lambda s: pdla.einsum(None, s.A, s.A)),
        (errors.ShapeError, "rank 1: matrix 0 is an int", lambda s: pdla.einsum("ij,kj->ik", 1 if s.comm.rank == 1 else s.A, s.A)),
        (errors.ShapeError, "matrices of float16 and bfloat16: .* by astype", lambda s: pdla.einsum("ij,jk->ik", s.half, s.brain)),
    ],
    "matmul": [
        (errors.ShapeError, "rank 1: A is an int", lambda s: pdla.matmul(1 if s.comm.rank == 1 else s.S, s.A)),
        (errors.ShapeError, "matrices of float16 and bfloat16: .* by astype", lambda s: pdla.matmul(s.half, s.brain)),
    ],
}


def operands(comm):
    """What the calls are made of."""
    grid, other = ProcessGrid((2, 2)), ProcessGrid((4, 1))
    S = exact((4, 4), grid, BLOCKS)
    return SimpleNamespace(
        comm=comm, grid=grid, other=other, S=S, A=exact((4, 6), grid, BLOCKS), W=exact((4, 6), other, BLOCKS),
        Z=exact((4, 6), grid, BLOCKS, complex), odd=np.ones(6) * (1 + (comm.rank == 3)), v=exact((6, 1), grid, BLOCKS),
        batch=pdla.stack(np.ones((3, 4, 4)), grid, Layout("row"), "col"),
        other_batch=pdla.stack(np.ones((3, 4, 2), np.float32), grid, Layout("row"), "col"),
        half=S.astype("float16"), brain=S.astype("bfloat16"),
    )


@pytest.mark.parametrize("function", REFUSED)
def test_errors_are_the_same_on_every_rank(function):
    """Call after call: one that is refused leaves nothing in the way of the next."""

    def program(comm):
        given = operands(comm)
        for kind, text, call in REFUSED[function]:
            with pytest.raises(kind, match=text):
                call(given)

    pdla.run(4, program)


@pytest.mark.parametrize("call", [
    lambda A, one: pdla.symm(A, A, lower=one),
    lambda A, one: pdla.hemm(A, A, side="left" if one else "right"),
    lambda A, one: pdla.syrk(A, lower=one),
    lambda A, one: pdla.herk(A, mirror=one),
    lambda A, one: pdla.syrk(A, layout=BLOCKS if one else TURNS),
    lambda A, one: pdla.matvec(A, pdla.ones((4, 1), A.grid, BLOCKS), layout=Layout("row" if one else "col")),
])
def test_calls_that_differ_between_ranks_are_refused(call):
    def program(comm):
        A = pdla.ones((4, 4), ProcessGrid((2, 2)), BLOCKS)
        with pytest.raises(errors.AgreementError):
            call(A, comm.rank == 1)

    pdla.run(4, program)


@pytest.mark.parametrize("call", [
    lambda: pdla.linalg.cholesky_words(-1, (2, 2), 8), lambda: pdla.linalg.cholesky_words(8, (0, 2), 8),
    lambda: pdla.linalg.cholesky_words(8, (2,), 8), lambda: pdla.linalg.cholesky_words(8, (2, 2, 2), 0),
    lambda: pdla.linalg.lu_words(8, -1, (2, 2), 8), lambda: pdla.linalg.lu_words(8, 8, (2,), 8),
    lambda: pdla.linalg.lu_words(8, 8, (2, 2), 0), lambda: pdla.matvec_words(8, 8, (2, 0)),
    lambda: pdla.matvec_words(8, -8, (2, 2)), lambda: pdla.syrk_words(8, 8, 0),
])
def test_formulas_refuse_what_is_no_size(call):
    with pytest.raises(errors.ShapeError, match="sizes are 0 or more"):
        call()
