"""Matrices dealt out for their product: nothing has to be converted, and the words are those of the box."""

import numpy as np
import pytest

import pdla
from pdla.errors import AgreementError, ArgumentError, PlanError, ShapeError


@pytest.mark.parametrize("algorithm", ["auto", "3d", "2.5d", "tesseract", "c-stationary"])
@pytest.mark.parametrize("ranks", [1, 4, 7, 12])
@pytest.mark.parametrize("mnk", [(24, 36, 48), (1, 5, 100), (60, 3, 4), (0, 3, 2)], ids=str)
def test_nothing_is_converted(mnk, ranks, algorithm):
    def program(comm):
        m, n, k = mnk
        grid, a, b, c = pdla.native_layouts(m, n, k, dtype=np.float32, algorithm=algorithm)
        A, B = (
            pdla.random(shape, grid, layout, dtype=np.float32, distribution="integers", low=-3, high=4)
            for shape, layout in (((m, k), a), ((k, n), b))
        )
        C = pdla.zeros((m, n), grid, c, dtype=np.float32)
        plan = pdla.plan_matmul(A, B, out=C, algorithm=algorithm)
        plan(A, B, out=C)
        assert np.array_equal(C.gather(), A.gather() @ B.gather())
        return plan.moved, plan.words

    assert {moved for moved, _ in pdla.run(ranks, program)} == {0.0}


def test_words_are_those_of_the_best_box():
    """8 ranks, a cube: two along each side, each rank receiving half of each of its three faces."""

    def program(comm):
        grid, a, b, c = pdla.native_layouts(64, 64, 64)
        A, B, C = (pdla.zeros((64, 64), grid, layout) for layout in (a, b, c))
        with pdla.record() as ledger:
            pdla.matmul(A, B, out=C)
        return grid.shape, ledger.bytes_received

    assert set(pdla.run(8, program)) == {((2, 2, 2), 8 * 3 * 32 * 32 // 2)}


def test_what_cannot_be_asked_for():
    with pytest.raises(ShapeError, match="m=-1"):
        pdla.run(2, lambda comm: pdla.native_layouts(-1, 2, 3))
    with pytest.raises(ShapeError, match=f"m={2**63}"):
        pdla.run(2, lambda comm: pdla.native_layouts(2**63, 2, 3))
    with pytest.raises(PlanError, match=f"m={2**63}"):
        pdla.predict_matmul(2**63, 2, 3, 4)
    with pytest.raises(ArgumentError, match=r"m=2\.5"):
        pdla.run(2, lambda comm: pdla.native_layouts(2.5, 2, 3))
    for mnkp in ((2.5, 2, 3, 4), ("2", 2, 3, 4), (2, 2, 3, 4.0)):
        with pytest.raises(ArgumentError, match="whole numbers"):
            pdla.predict_matmul(*mnkp)
    with pytest.raises(PlanError, match="ranks 1 or more"):
        pdla.predict_matmul(2, 2, 3, 0)
    for memory in (float("nan"), "many"):
        with pytest.raises(PlanError, match="a number of bytes"):
            pdla.predict_matmul(2, 2, 3, 4, memory_limit=memory)
    with pytest.raises(PlanError, match="algorithm='summa': one of"):
        pdla.predict_matmul(1, 2, 3, 4, algorithm="summa")
    with pytest.raises(PlanError, match="algorithm='summa': one of"):
        pdla.run(2, lambda comm: pdla.native_layouts(1, 2, 3, algorithm="summa"))
    for wrong in (["float64", "float32"], ["float64", "no such"]):
        with pytest.raises((AgreementError, TypeError)):
            pdla.run(2, lambda comm, wrong=wrong: pdla.native_layouts(1, 2, 3, dtype=wrong[comm.rank]))
