"""The mean squared error: its gradient against differences, short floats, what it sends, and what is refused."""

import numpy as np
import pytest
from helpers.nets import SERIAL, SUMMA, run

import pdla
from pdla import nn
from pdla.errors import AgreementError, GridError, LayoutError, PdlaError, ShapeError


def test_the_gradient_is_that_of_differences():
    """Through a linear, for some elements of its weight."""
    x, targets, step = *np.random.default_rng(0).standard_normal((2, 6, 6)), 1e-5

    def program(scheme):
        layer, loss = nn.Linear(scheme, 6, 6, seed=1), nn.MeanSquaredError()
        weights = layer.state_dict()

        def value(changed):
            layer.load_state_dict(weights | {"weight": changed})
            return loss.forward(layer.forward(scheme.shard(x)), targets)

        value(weights["weight"])
        layer.backward(loss.backward())
        slope, found = layer.gradients()["weight"].gather(), []
        for place in ((0, 0), (2, 5), (5, 1)):
            moved = np.zeros((6, 6))
            moved[place] = step
            rise = value(weights["weight"] + moved) - value(weights["weight"] - moved)
            found.append((slope[place], rise / (2 * step)))
        return np.array(found)

    found = run(SUMMA, program)
    np.testing.assert_allclose(found[:, 0], found[:, 1], rtol=1e-7)


def test_squares_of_short_floats_do_not_overflow():
    def program(scheme):
        y = scheme.shard(np.full((4, 6), 300, "float16"))
        loss = nn.MeanSquaredError()
        return loss.forward(y, np.zeros((4, 6))), loss.backward()

    loss, slope = run(SERIAL, program)
    assert loss == 90000 and slope.dtype == "float16" and (slope.local == 25).all()


def test_a_word_is_sent():
    """To rank 0 by each of the others, and back; of targets in another layout their elements, too."""

    def program(comm):
        grid, received = pdla.ProcessGrid((2, 2), comm=comm), []
        y, across = pdla.ones((4, 4), grid, pdla.Layout("row", "col")), pdla.Layout("col", "row")
        for targets in (y.T.copy().T, np.zeros((4, 4)), pdla.zeros((4, 4), grid, across)):
            with pdla.record() as ledger:
                nn.MeanSquaredError().forward(y, targets)
            received.append(ledger.bytes_received)
        return received

    found = pdla.run(4, program)
    assert found[0] == [24, 24, 24] and found[1] == [8, 8, 8 + 32] and found[0] == pdla.dry_run(4, program)[0]


def test_a_loss_is_gone_back_from_once():
    def program(scheme):
        loss, y = nn.MeanSquaredError(), scheme.shard(np.ones((4, 4)))
        loss.forward(y, np.zeros((4, 4)))
        assert loss.backward().gather().sum() == 2
        with pytest.raises(PdlaError, match="backward of MeanSquaredError without a forward"):
            loss.backward()

    run(SERIAL, program)


@pytest.mark.parametrize(("y", "targets", "error", "told"), [
    (lambda g: np.ones((4, 4)), lambda g: np.ones((4, 4)), ShapeError, "takes y as a DistMatrix .* not an ndarray"),
    (lambda g: matrix(g), lambda g: [[1.0] * 4] * 4, ShapeError, "targets are a list: a DistMatrix, or an ndarray on every rank"),
    (lambda g: matrix(g), lambda g: np.ones((4, 3)), ShapeError, r"targets of shape \(4, 3\) for y of \(4, 4\)"),
    (lambda g: matrix(g), lambda g: np.ones((4, 4), complex), ShapeError, "not of complex128"),
    (lambda g: matrix(g).astype(int), lambda g: np.ones((4, 4)), ShapeError, "not of int64"),
    (lambda g: pdla.ones((0, 4), g, pdla.Layout()), lambda g: np.ones((0, 4)), ShapeError, "of no elements"),
    (lambda g: pdla.ones((4, 4), g, pdla.Layout(partial="row")), lambda g: np.ones((4, 4)), LayoutError, "of partial sums"),
    (lambda g: matrix(pdla.ProcessGrid((1, 1), comm=g.comm)), lambda g: np.ones((4, 4)), GridError, "leaves ranks idle"),
    (lambda g: matrix(g), lambda g: np.full((4, 4), g.comm.rank), AgreementError, "digest"),
    (lambda g: matrix(g), lambda g: matrix(pdla.ProcessGrid(1, comm=g.comm.split([g.comm.rank], "one"))),
     GridError, "different communicators"),
])  # fmt: skip
def test_what_is_refused(y, targets, error, told):
    def program(comm):
        grid = pdla.ProcessGrid((2, 1), comm=comm)
        given = y(grid), targets(grid)
        with pytest.raises(error, match=told):
            nn.MeanSquaredError().forward(*given)

    pdla.run(2, program)


def matrix(grid):
    return pdla.ones((4, 4), grid, pdla.Layout("row"))
