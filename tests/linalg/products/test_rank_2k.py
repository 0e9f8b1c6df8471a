"""syr2k and her2k: their triangle NumPy's, bitwise, the other one as it was or mirrored; faults by name."""

import numpy as np
import pytest
from helpers.level3 import both, random_array, real_diagonal
from helpers.systems import BLOCKS, cyclic, on, raised

import pdla
from pdla import Layout
from pdla.errors import ShapeError
from pdla.linalg import her2k, syr2k

LAYOUTS = (BLOCKS, Layout("col"), Layout(), cyclic(3), Layout(cols=("row", "col")))


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float16", "int64"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
@pytest.mark.parametrize("function", [syr2k, her2k])
def test_one_triangle(dtype, layout, function):
    a, b, c = (random_array(shape, dtype, i) for i, shape in enumerate([(9, 5), (9, 5), (9, 9)]))
    hermitian, turned = function is her2k, np.conj if function is her2k else np.array
    alpha = 2 + 1j if dtype == "complex128" else 2
    product = alpha * (a @ turned(b).T)
    product = product + turned(product).T

    def program(comm):
        A, B = on((2, 2), a, layout, comm), on((2, 2), b, BLOCKS, comm)
        for lower in (True, False):
            for beta in (0, 3):
                for mirror in (False, True):
                    begun = c if beta or dtype == "int64" else np.full_like(c, np.nan)
                    C = on((2, 2), begun, layout, comm)
                    function(A, B, alpha=alpha, beta=beta, out=C, lower=lower, mirror=mirror)
                    read = real_diagonal(begun) if hermitian else begun
                    triangle = both(product + (beta * read if beta else 0), lower)
                    rest = turned(both(triangle, lower, 1)).T if mirror else both(begun, not lower, 1)
                    assert np.array_equal(C.gather(), triangle + rest, equal_nan=dtype != "int64") and C.check_copies()
        new = function(A, B, layout=Layout("row"))
        assert new.layout == Layout("row") and np.array_equal(new.gather(), np.tril(a @ turned(b).T + b @ turned(a).T))

    pdla.run(5, program)


def test_dry_runs_foretell_words():
    def program(comm):
        A = pdla.ones((24, 8), pdla.ProcessGrid((2, 2), comm=comm), BLOCKS)
        with pdla.record() as ledger:
            syr2k(A, A, mirror=True)
        return ledger.bytes_received

    assert pdla.run(4, program) == [pdla.dry_run(4, program, rank=rank)[0] for rank in range(4)]


def test_faults_on_every_rank():
    def of(function, *shapes, dtype="float64", **named):
        def program(comm):
            A, B, C = (pdla.ones(shape, pdla.ProcessGrid((2, 1), comm=comm), BLOCKS, dtype=dtype) for shape in shapes)
            function(A, B, out=C, **named)

        return program

    assert raised(of(syr2k, (4, 5), (4, 6), (4, 4))) == (ShapeError, "syr2k: A is 4 x 5, B 4 x 6: the shapes must be equal")
    assert "out is (5, 5) float64, the result (4, 4)" in raised(of(syr2k, (4, 5), (4, 5), (5, 5)))[1]
    assert "beta=1j must be real" in raised(of(her2k, (4, 5), (4, 5), (4, 4), dtype="complex128", beta=1j))[1]

    def shared(comm):
        A, B = (pdla.ones((4, 4), pdla.ProcessGrid((2, 1), comm=comm), BLOCKS) for _ in range(2))
        syr2k(A, B, out=B)

    assert "out shares memory with B" in raised(shared)[1]
