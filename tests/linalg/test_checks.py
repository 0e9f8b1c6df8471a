"""What level 3 refuses, with the same words on every rank."""

import numpy as np
import pytest
from helpers.level3 import BLOCKS, TURNS
from helpers.matmuls import exact

import pdla
from pdla import Layout, ProcessGrid, errors


def test_errors_are_the_same_on_every_rank():
    def program(comm):
        grid, other = ProcessGrid((2, 2)), ProcessGrid((4, 1))
        A, W = exact((4, 6), grid, BLOCKS), exact((4, 6), other, BLOCKS)
        Z, S = exact((4, 6), grid, BLOCKS, complex), exact((4, 4), grid, BLOCKS)
        batch = pdla.stack(np.ones((3, 4, 4)), grid, Layout("row"), "col")
        other_batch = pdla.stack(np.ones((3, 4, 2), np.float32), grid, Layout("row"), "col")
        odd, v = np.ones(6) * (1 + (comm.rank == 3)), exact((6, 1), grid, BLOCKS)
        half, brain = S.astype("float16"), S.astype("bfloat16")
        cases = [
            (errors.ShapeError, r"A is an ndarray", lambda: pdla.syrk(np.ones((2, 2)))),
            (errors.ShapeError, r"out is \(4, 4\) float64, the result \(4, 4\) complex", lambda: pdla.herk(Z, out=S)),
            (errors.ShapeError, "must be real", lambda: pdla.herk(Z, alpha=1j)),
            (errors.ShapeError, "must be real", lambda: pdla.herk(Z, alpha=np.complex64(1j))),
            (errors.ShapeError, "alpha=1j is complex", lambda: pdla.syrk(A, alpha=1j)),
            (errors.ShapeError, "beta=2 without out", lambda: pdla.syrk(A, beta=2)),
            (errors.ShapeError, "shares memory", lambda: pdla.syrk(S, out=S)),
            (errors.ShapeError, "out shares memory with A", lambda: pdla.symm(S, S.copy(), out=S)),
            (errors.LayoutError, "'native'", lambda: pdla.syrk(A, layout="native")),
            (errors.LayoutError, "'depth'", lambda: pdla.syrk(A, layout=Layout("depth"))),
            (errors.LayoutError, "cannot be left as partial sums", lambda: pdla.herk(A, layout=Layout("row", partial="col"))),
            (errors.LayoutError, "cannot be left as partial sums", lambda: pdla.matvec(A, v, layout=Layout("row", partial="col"))),
            (errors.GridError, "redistribute out to A's grid", lambda: pdla.syrk(A, out=exact((4, 4), other, BLOCKS))),
            (errors.AgreementError, "rank 2: syrk", lambda: pdla.syrk(A, alpha=2 if comm.rank == 2 else 1)),
            (errors.ShapeError, "A is 4 x 6, it must be square", lambda: pdla.symm(A, A)),
            (errors.ShapeError, "side='up'", lambda: pdla.hemm(S, A, side="up")),
            (errors.ShapeError, r"side=array\(", lambda: pdla.symm(S, A, side=np.arange(3))),
            (errors.GridError, "redistribute B to A's grid", lambda: pdla.symm(S, W)),
            (errors.ShapeError, "inner sizes differ", lambda: pdla.symm(S, A, side="right")),
            (errors.ShapeError, r"x has shape \(4,\): it must be \(6,\)", lambda: pdla.matvec(A, np.ones(4))),
            (errors.ShapeError, r"must be \(6, 1\)", lambda: pdla.matvec(A, A)),
            (errors.AgreementError, "rank 3: matvec", lambda: pdla.matvec(A, odd)),
            (errors.LayoutError, "y is whole on every rank", lambda: pdla.matvec(A, np.ones(6), layout=BLOCKS)),
            (errors.ShapeError, "three dimensions", lambda: pdla.stack(np.ones((2, 2)), grid, BLOCKS)),
            (errors.LayoutError, "which cuts the batch", lambda: pdla.stack(np.ones((2, 2, 2)), grid, BLOCKS, "col")),
            (errors.GridError, "no such axis", lambda: pdla.stack(np.ones((2, 2, 2)), grid, BLOCKS, "depth")),
            (errors.ShapeError, "B is a DistMatrix", lambda: pdla.batched_matmul(batch, A)),
            (errors.LayoutError, "layout='': a Layout", lambda: pdla.batched_matmul(batch, batch, layout="")),
            (errors.PlanError, "algorithm='x'", lambda: pdla.batched_matmul(batch, batch, algorithm="x")),
            (errors.GridError, "must be the same", lambda: batch @ pdla.stack(np.ones((3, 4, 4)), grid, Layout("row"))),
            (errors.ShapeError, "batches must be equal", lambda: batch @ pdla.stack(np.ones((3, 5, 4)), grid, Layout(), "col")),
            (errors.AgreementError, "digest", lambda: pdla.stack(np.full((2, 2, 2), comm.rank), grid, BLOCKS)),
            (errors.ShapeError, "stack: elements of dtype object", lambda: pdla.stack(np.ones((2, 2, 2), object), grid, BLOCKS)),
            (errors.ShapeError, "lower='upper': True or False", lambda: pdla.syrk(A, lower="upper")),
            (errors.ShapeError, "lower='upper': True or False", lambda: pdla.symm(S, A, lower="upper")),
            (errors.ShapeError, "mirror=1: True or False", lambda: pdla.herk(A, mirror=1)),
            (errors.ShapeError, r"multi_dot\(\[A, B, C\]\)", lambda: pdla.multi_dot(A)),
            (errors.ShapeError, r"rank 1: multi_dot of one", lambda: pdla.multi_dot(S if comm.rank == 1 else [S, A])),
            (errors.AgreementError, "rank 1: gather 3 x 4", lambda: (batch if comm.rank == 1 else other_batch).gather()),
            (errors.LayoutError, "layout='rows': a Layout", lambda: pdla.multi_dot([A], layout="rows")),
            (errors.PlanError, "algorithm='x': one of gather", lambda: pdla.multi_dot([A], algorithm="x")),
            (errors.PlanError, "algorithm='x': one of gather", lambda: pdla.einsum("ij->ji", A, algorithm="x")),
            (errors.ShapeError, "rank 1: A is an int", lambda: pdla.matmul(1 if comm.rank == 1 else S, A)),
            (errors.ShapeError, "rank 1: A is an int", lambda: pdla.matvec(1 if comm.rank == 1 else A, v)),
            (errors.ShapeError, "rank 1: A is an int", lambda: pdla.syrk(1 if comm.rank == 1 else A, out=S)),
            (errors.ShapeError, "rank 1: A is an int", lambda: pdla.hemm(1 if comm.rank == 1 else S, A)),
            (errors.ShapeError, "rank 1: A is an int", lambda: pdla.batched_matmul(1 if comm.rank == 1 else batch, batch)),
            (errors.ShapeError, "rank 1: B is an int", lambda: pdla.batched_matmul(batch, 1 if comm.rank == 1 else batch)),
            (ValueError, "rank 1: .*inhomogeneous", lambda: pdla.matvec(A, [[1], [1, 2]] if comm.rank == 1 else odd)),
            (errors.ShapeError, "elements of dtype object", lambda: pdla.matvec(A, odd.astype(object))),
            (errors.ShapeError, "masked elements", lambda: pdla.matvec(A, np.ma.masked_greater(np.arange(6), 3))),
            (errors.ShapeError, "masked elements", lambda: pdla.stack(np.ma.masked_all((2, 4, 4)), grid, BLOCKS)),
            (errors.GridError, "stack: grid=None", lambda: pdla.stack(np.ones((2, 2, 2)), None, BLOCKS)),
            (errors.ShapeError, "the letters come first", lambda: pdla.einsum(None, A, A)),
            (errors.ShapeError, "rank 1: matrix 1 is a NoneType", lambda: pdla.multi_dot([A, None if comm.rank == 1 else S])),
            (errors.ShapeError, "rank 1: matrix 0 is an int", lambda: pdla.einsum("ij,kj->ik", 1 if comm.rank == 1 else A, A)),
            (errors.ShapeError, "no matrices", lambda: pdla.multi_dot([])),
            (errors.ShapeError, "matrix 0 is 4 x 6, matrix 1 4 x 6", lambda: pdla.multi_dot([A, A])),
            (errors.GridError, "redistribute matrix 1", lambda: pdla.multi_dot([A, W.T])),
            (errors.ShapeError, "matrices of float16 and bfloat16: .* by astype", lambda: pdla.matmul(half, brain)),
            (errors.ShapeError, "matrices of float16 and bfloat16: .* by astype", lambda: pdla.multi_dot([half, brain])),
            (errors.ShapeError, "matrices of float16 and bfloat16: .* by astype", lambda: pdla.einsum("ij,jk->ik", half, brain)),
            (errors.ShapeError, "matrices of float16 and bfloat16: .* by astype", lambda: pdla.matvec(half, brain.gather()[0])),
        ]
        for kind, text, call in cases:
            with pytest.raises(kind, match=text):
                call()

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
