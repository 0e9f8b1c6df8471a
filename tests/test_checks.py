"""What no product can take or fill is refused with the same words on every rank."""

import numpy as np
import pytest
from helpers.matmuls import LAYOUT, exact

import pdla
from pdla import Layout, ProcessGrid


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("algorithm", pdla.algorithms)
def test_a_product_on_a_closed_grid_is_an_error_before_any_message(algorithm, made):
    """The idle rank found the grid closed one message later than the others: the next call was an error, too, or a deadlock."""

    def program(comm):
        with ProcessGrid(2) as grid:
            A = exact((4, 4), grid, Layout(cols="row"))
            plan = pdla.plan_matmul(A, A, layout=Layout("row"), algorithm=algorithm)
        with pytest.raises(pdla.errors.GridError, match="is closed: redistribute"):
            plan(A, A) if made else pdla.matmul(A, A, layout=Layout("row"), algorithm=algorithm)
        again = ProcessGrid(2)
        B = A.redistribute(Layout("row"), again)
        assert np.array_equal((B @ B).gather(), A.gather() @ A.gather())
        with pytest.raises(pdla.errors.GridError, match="is closed: redistribute"):
            plan(B.redistribute(A.layout), A)

    pdla.run(3, program)


LARGE = [
    ("float32", 1e60), ("float32", 10**60), ("float32", np.float64(1e39)), ("float32", -3.5e38), ("float16", 1e39),
    ("float64", 10**309), ("complex64", 1e60), ("complex64", 1e60j), ("complex64", np.complex128(1 - 1e60j)), ("bfloat16", -1e39),
    ("int32", 2**40),
]


@pytest.mark.parametrize(("dtype", "factor"), LARGE, ids=lambda x: str(x)[:9])
def test_a_factor_that_the_dtype_does_not_have_is_refused_on_every_rank(dtype, factor):
    """As infinity it would make NaN of each zero. 16-bit floats are multiplied in float32."""

    def program(comm):
        A, C = (exact((4, 4), ProcessGrid((1, 2)), LAYOUT, dtype) for _ in "AC")
        plan, told = pdla.plan_matmul(A, A, out=C), f"=.*: matrices of {dtype} cannot be multiplied by it: cast"
        for name in ("alpha", "beta"):
            for call in (
                lambda given: pdla.matmul(A, A, out=C, **given), lambda given: plan(A, A, out=C, **given),
                lambda given: pdla.plan_matmul(A, A, out=C, **given), lambda given: pdla.symm(A, A, out=C, **given),
                lambda given: pdla.syrk(A, out=C, **given), lambda given: pdla.herk(A, out=C, **given),
            ):
                with pytest.raises(pdla.errors.ShapeError, match=name + told):
                    call({name: factor})
        with pytest.raises(pdla.errors.ShapeError, match="rank 1: alpha" + told):
            pdla.matmul(A, A, alpha=factor if comm.rank else 1)

    pdla.run(2, program)


@pytest.mark.parametrize(
    ("dtype", "factor"),
    [
        ("float32", np.inf), ("float32", -np.inf), ("float32", 3.4028235e38), ("float16", 1e6), ("float16", -70000),
        ("complex64", np.inf), ("bfloat16", np.inf), ("float32", 1e-60), ("float32", 3.40282356e38),
    ],
    ids=str,
)
def test_infinity_and_what_the_dtype_rounds_to_a_number_are_factors(dtype, factor):
    def program(comm):
        A = pdla.ones((4, 4), ProcessGrid((1, 2)), LAYOUT, dtype=dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = (4 * np.ones(1, "c16" if dtype == "complex64" else float) * factor).astype(A.dtype)
            C = pdla.matmul(A, A, alpha=factor)
        assert np.array_equal(C.gather().real, np.broadcast_to(wanted.real, (4, 4)))
        assert np.isnan(pdla.matmul(A, A, alpha=np.nan).gather()).all()

    pdla.run(2, program)


VIEWS = {
    "itself": lambda X: X, "T": lambda X: X.T, "T of T": lambda X: X.T.T, "all": lambda X: X[:, :], "part": lambda X: X[1:5, 2:6],
    "part of T": lambda X: X.T[2:6, :4], "block": lambda X: pdla.from_local(X.local, X.shape, X.grid, X.layout),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("which", ["A", "B"])
def test_a_result_that_shares_memory_with_a_factor_is_refused(which, view):
    """Whichever of the two it is, and in whatever view: the product would overwrite what other ranks, or itself, still read."""

    def program(comm):
        whole = {name: exact((6, 6), ProcessGrid((2, 2)), LAYOUT, seed=seed) for seed, name in enumerate("AB")}
        parts = view.startswith("part")
        A, B = (X[:4, :4] if parts else X for X in whole.values())
        out = VIEWS[view](whole[which])
        fine = exact(out.shape, out.grid, out.layout)
        plan = pdla.plan_matmul(A, B, out=fine)
        for call in (
            lambda: pdla.matmul(A, B, out=out), lambda: pdla.gemm(2, A, B, 3, out), lambda: plan(A, B, out=out),
            lambda: pdla.plan_matmul(A, B, out=out), lambda: pdla.symm(A, B, out=out),
            lambda: pdla.hemm(A, B, out=out, side="right"),
            *([lambda: pdla.syrk(A, out=out), lambda: pdla.herk(A, out=out)] if which == "A" else []),
        ):
            with pytest.raises(pdla.errors.ShapeError, match=r"out shares memory with [AB], which is never written to"):
                call()
        a, b = A.gather(), B.gather()
        assert np.array_equal(pdla.matmul(A, B, out=fine).gather(), a @ b)

    pdla.run(4, program)


@pytest.mark.parametrize(("lying", "asked"), [
    (lambda C: C.conj(), None), (lambda C: C, Layout("col", "row")),
    (lambda C: pdla.zeros(C.shape, C.grid, Layout("row", partial="col"), dtype=C.dtype), None),
], ids=["conj", "another layout", "partial sums"])
def test_a_result_that_lies_as_no_product_can_is_refused(lying, asked):
    def program(comm):
        A, C = (pdla.ones((4, 4), ProcessGrid((2, 2)), LAYOUT, dtype=complex) for _ in range(2))
        out = lying(C)
        calls = [
            lambda: pdla.matmul(A, A, out=out, layout=asked), lambda: pdla.plan_matmul(A, A, out=out, layout=asked),
            lambda: pdla.syrk(A, out=out, layout=asked), lambda: pdla.herk(A, out=out, layout=asked),
            lambda: pdla.symm(A, A, out=out, layout=asked),
        ]
        plan = pdla.plan_matmul(A, A)
        calls += [lambda: plan(A, A, out=out)] if out.conjugated else []
        for call in calls:
            with pytest.raises(pdla.errors.LayoutError, match=r"out=.* must be no conjugate view, .* and in the layout"):
                call()
        assert (C.gather() == 1).all()

    pdla.run(4, program)


@pytest.mark.parametrize(("strides", "fine"), [
    ((0, 1), False), ((1, 0), False), ((0, 0), False), ((1, 1), False), ((2, 1), False), ((1, 2), True), ((3, 2), True),
    ((9, 2), True),
])
def test_a_result_whose_elements_lie_on_one_another_is_refused(strides, fine):
    """On every rank where they do on one."""

    def program(comm):
        grid, rows = pdla.ProcessGrid(2, comm=comm), pdla.Layout("row")
        here = np.lib.stride_tricks.as_strided(np.zeros(40), (2, 4), [8 * n for n in (strides if comm.rank else (4, 1))])
        A, C = exact((4, 4), grid, rows), pdla.from_local(here, (4, 4), grid, rows)
        for product in (lambda: pdla.matmul(A, A, out=C), lambda: pdla.syrk(A, out=C, mirror=True)):
            if fine:
                product()
            else:
                with pytest.raises(pdla.errors.ShapeError, match="rank 1: out has two elements in one place"):
                    product()
        whole = A.gather()
        assert not fine or np.array_equal(C.gather(), whole @ whole.T)

    pdla.run(2, program)
