"""Prices by closed forms: near those of dry runs of all ranks with clocks, quick for a million ranks, and bounds."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.systems import cyclic

import pdla
from pdla import Cyclic, Layout
from pdla.errors import ArgumentError, PlanError, ShapeError
from pdla.linalg import (
    cho_factor,
    cholesky_words,
    lu_factor,
    plan_cholesky,
    plan_lu,
    predict_cholesky,
    predict_lu,
    predict_solve_triangular,
    qr,
    solve_triangular,
)
from pdla.linalg.panels.blocks import cut_in_blocks
from pdla.linalg.plan import price
from pdla.linalg.plan.call import Call
from pdla.linalg.plan.price import Blocking
from pdla.linalg.plan.routine import StepCost, Task
from pdla.linalg.routines import CHOLESKY, LU, QR, TRIANGULAR, TRIDIAGONAL
from pdla.linalg.routines.qr import FORMING
from pdla.linalg.routines.tall_qr import TALL_QR

MACHINE = pdla.Machine(overlap=0.0)


def work(comm, routine, shape, n, block):
    grid = pdla.ProcessGrid(shape, comm=comm)
    A = pdla.zeros((n, n), grid, cyclic(block))
    if routine is CHOLESKY:
        cho_factor(A, overwrite_a=True, check_finite=False)
    elif routine is LU:
        lu_factor(A, overwrite_a=True, check_finite=False)
    else:
        B = pdla.zeros((n, n), grid, Layout(Cyclic("row", block), "col"))
        solve_triangular(A, B, lower=True, overwrite_b=True, check_finite=False)


CASES = [
    (CHOLESKY, (2, 1), 2048, 64), (CHOLESKY, (1, 2), 2048, 128), (CHOLESKY, (2, 2), 2048, 64), (CHOLESKY, (3, 3), 2048, 64),
    (LU, (1, 2), 2048, 64), (LU, (1, 4), 4096, 64),
    (TRIANGULAR, (2, 1), 2048, 64), (TRIANGULAR, (2, 2), 2048, 64), (TRIANGULAR, (3, 3), 4096, 64),
]


@pytest.mark.parametrize(("routine", "shape", "n", "block"), CASES)
def test_near_a_dry_run_of_all_ranks(routine, shape, n, block):
    told = price.predict_seconds(Task(routine, n, n, np.dtype(float), MACHINE), shape, block)
    ran = pdla.dry_run_all(shape[0] * shape[1], work, routine, shape, n, block, machine=MACHINE).seconds
    assert 0.7 < told / ran < 1.15


@pytest.mark.parametrize("mode", ["raw", "reduced"])
@pytest.mark.parametrize("shape", [(1, 4), (2, 2), (4, 1)])
@pytest.mark.parametrize(("machine", "least"), [(MACHINE, 0.87), (pdla.Machine.load("a100x4"), 0.7)], ids=["slow", "fast"])
def test_qr_and_q_are_priced_near_a_dry_run(shape, mode, machine, least):
    """On a fast machine with 16 steps some of what a tree's ranks wait for is missing."""
    m, n, block = 2048, 1024, 64

    def program(comm):
        qr(pdla.zeros((m, n), pdla.ProcessGrid(shape, comm=comm), cyclic(block)), mode=mode, overwrite_a=True, check_finite=False)

    tasks = [Task(each, m, n, np.dtype(float), machine) for each in ((QR, FORMING) if mode == "reduced" else (QR,))]
    ran = pdla.dry_run_all(4, program, machine=machine).seconds
    assert least < sum(price.predict_seconds(task, shape, block) for task in tasks) / ran < 1.15


@pytest.mark.parametrize("shape", [(4, 1), (2, 2)])
def test_sums_of_qr_are_priced_near_a_dry_run(shape):
    """Of a wide matrix on a slow network, where sums along the grid columns take most of the time."""
    m, n, block, machine = 512, 4096, 64, replace(MACHINE, bandwidth=MACHINE.bandwidth / 100)

    def program(comm):
        qr(pdla.zeros((m, n), pdla.ProcessGrid(shape, comm=comm), cyclic(block)), mode="raw", overwrite_a=True, check_finite=False)

    ran = pdla.dry_run_all(4, program, machine=machine).seconds
    assert 0.87 < price.predict_seconds(Task(QR, m, n, np.dtype(float), machine), shape, block) / ran < 1.15


@pytest.mark.parametrize(("ranks", "m", "n"), [(2, 65536, 256), (4, 65536, 256), (8, 4096, 64), (16, 65536, 512)])
def test_tall_qr_is_priced_near_a_dry_run(ranks, m, n):
    def program(comm):
        qr(pdla.zeros((m, n), pdla.ProcessGrid((ranks,), comm=comm), Layout("row")), check_finite=False)

    told = price.predict_seconds(Task(TALL_QR, m, n, np.dtype(float), MACHINE), (ranks, 1), m // ranks)
    assert 0.9 < told / pdla.dry_run_all(ranks, program, machine=MACHINE).seconds < 1.1


@pytest.mark.parametrize("ranks", [1, 2, 4, 40])
@pytest.mark.parametrize("machine", [MACHINE, pdla.Machine(node=1, network=1e8, far_latency=1e-4, gap=1e-5)], ids=["near", "far"])
def test_tridiagonal_form_is_priced_near_a_dry_run(ranks, machine):
    n, block = 2048, 64 if ranks > 1 else 2048
    task = Task(TRIDIAGONAL, n, n, np.dtype(float), machine)
    blocking, call = Blocking((ranks, 1), block), Call("reduce", (TRIDIAGONAL,), TRIDIAGONAL.run)
    plan = replace(call.imagine((n, n), 1, task.dtype, blocking, ranks, machine), shape=blocking.shape, block=block)
    assert 0.85 < price.predict_seconds(task, *blocking) / plan._cost.seconds < 1.15


@pytest.mark.parametrize(("shape", "n", "block"), [((2, 2, 2), 2048, 32), ((2, 2, 2), 4096, 64), ((2, 2, 4), 4096, 64)])
def test_layers_are_priced_near_a_dry_run(shape, n, block):
    """Where messages move while their sender computes: layers are made for that."""

    def program(comm):
        A = pdla.zeros((n, n), pdla.ProcessGrid(shape, comm=comm), cut_in_blocks(shape, block))
        cho_factor(A, overwrite_a=True, check_finite=False)

    told = price.predict_seconds(Task(CHOLESKY, n, n, np.dtype(float), pdla.Machine()), shape, block)
    ran = pdla.dry_run_all(np.prod(shape), program, machine=pdla.Machine()).seconds
    assert 0.7 < told / ran < 1.15


@pytest.mark.parametrize("ranks", [1, 4, 97, 1024, 10**6])
def test_any_number_of_ranks_in_no_time(ranks):
    for found in (
        predict_cholesky(10**6, ranks, machine="a100x4"), predict_lu(10**6, 10**5, ranks, machine="a100x4"),
        *(predict_solve_triangular(10**6, columns, ranks, machine="a100x4") for columns in (1, 10**6)),
    ):
        assert found.seconds > 0 and found.ranks_used <= ranks and (ranks == 1) == (found.bytes_received == 0)


def test_figures_are_the_formulas():
    cost = predict_cholesky(65536, 1024)
    assert cost.seconds is None and cost.bytes_received == round(8 * cholesky_words(65536, cost.grid, cost.block))
    assert cost.lower_bound == pytest.approx(8 * 65536**2 / (3 * 32))
    assert predict_lu(65536, 65536, 1024, dtype="float32").lower_bound == pytest.approx(2 * 4 * 65536**2 / (3 * 32))
    assert predict_cholesky(0, 4).bytes_received == 0


@pytest.mark.parametrize("plan", [plan_cholesky, plan_lu])
def test_over_layers_the_bound_counts_the_memory_of_addends(plan):
    def bound(comm, sizes, cols):
        A = pdla.zeros((64, 64), pdla.ProcessGrid(tuple(sizes.values()), tuple(sizes), comm=comm), Layout(Cyclic("row", 8), cols))
        return plan(A).bound

    flat = pdla.dry_run(16, bound, {"row": 4, "col": 4}, Cyclic("col", 8))[0]
    deep = pdla.dry_run(16, bound, {"row": 2, "col": 4, "depth": 2}, (Cyclic("col", 8), Cyclic("depth", 4)))[0]
    assert deep == pytest.approx(flat / 3**0.5)  # a rank holds its share of A, and addends of two shares


def test_faults():
    for wrong in ((-1, 4), (8, 0), (8, 2.5), ("8", 2)):
        with pytest.raises((PlanError, ArgumentError), match="sizes are whole numbers"):
            predict_cholesky(*wrong)
    with pytest.raises(ShapeError, match="LAPACK has"):
        predict_lu(8, 8, 2, dtype="float16")


def test_of_blockings_as_good_lu_takes_that_of_lapack_s_pivots_then_that_of_fewest_words():
    """On one node 1 x 4; on hosts of a rank each 4 x 4, though 2 x 8 costs as much."""
    near, far = (Task(LU, n, n, np.dtype(float), machine) for n, machine in (
        (2048, pdla.Machine()), (2048, pdla.Machine(node=1, network=1e8)),
    ))
    assert price.sort_by_price(near, 4)[0].shape == (1, 4) and price.sort_by_price(far, 16)[0].shape == (4, 4)
    assert price.predict_seconds(far, (2, 8), 64) < price.predict_seconds(far, *price.sort_by_price(far, 16)[0])


@pytest.mark.parametrize(("n", "ranks", "shape"), [(4096, 64, (8, 8)), (4096, 256, (16, 16)), (65536, 16384, (128, 128))])
def test_cholesky_takes_square_grids_of_nodes(n, ranks, shape):
    """On tall ones what faces a grid column comes from several grid rows: 16 x 4 has been measured to take 1.3 times as long."""
    task = Task(CHOLESKY, n, n, np.dtype(float), replace(pdla.Machine.load("laptop"), node=4))
    assert price.sort_by_price(task, ranks)[0].shape == shape


@pytest.mark.parametrize(("shape", "block"), [((2, 4, 4), 64), ((2, 2, 4), 64)])
def test_lu_over_layers_costs_what_a_slow_network_makes_of_it(shape, block):
    machine, n = pdla.Machine(node=4, network=1e8), 1024

    def program(comm):
        A = pdla.zeros((n, n), pdla.ProcessGrid(shape, comm=comm), cut_in_blocks(shape, block))
        lu_factor(A, overwrite_a=True, check_finite=False)

    told = price.predict_seconds(Task(LU, n, n, np.dtype(float), machine), shape, block)
    assert 0.7 < told / pdla.dry_run_all(int(np.prod(shape)), program, machine=machine).seconds < 1.4


def test_look_ahead_hides_most_of_what_lu_sends():
    """The work alone takes 2/3 n^3 / 4 flops; without look-ahead a run takes 2.3 times as long."""
    machine, n = pdla.Machine(bandwidth=1e9), 4096
    ran = pdla.dry_run_all(4, work, LU, (1, 4), n, 64, machine=machine).seconds
    assert 1 < ran / (2 / 3 * n**3 / 4 / machine.flops) < 1.5


@pytest.mark.parametrize("routine", [CHOLESKY, LU], ids=str)
def test_of_all_grids_on_two_nodes_one_of_the_fastest_is_taken(routine):
    """By dry runs of all ranks, on nodes between which messages take long."""
    machine, n, block = pdla.Machine(node=4, network=2e8), 1024, 64
    task = Task(routine, n, n, np.dtype(float), machine)
    seconds = {
        shape: pdla.dry_run_all(8, work, routine, shape, n, block, machine=machine).seconds for shape in price.list_shapes(8)
    }
    taken = min(price.list_shapes(8), key=lambda shape: price.predict_seconds(task, shape, block))
    assert seconds[taken] <= 1.1 * min(seconds.values()) < 0.7 * max(seconds.values())


@pytest.mark.parametrize(("shape", "columns", "rows"), [((4, 16), 4, 1), ((16, 4), 4, 0), ((32, 2), 2, 0), ((64, 1), 1, 0)])
def test_a_panel_goes_into_a_node_once_along_a_grid_row(shape, columns, rows):
    """Nodes of 4 ranks: of a grid row on a node one rank receives from another; 0: the row is on one node."""
    step = StepCost(Task(LU, 4096, 4096, np.dtype(float), replace(MACHINE, node=4)), shape, 64, 64, 64, False)
    assert [step.count_sharers(axis) for axis in (0, 1)] == [columns, rows]
