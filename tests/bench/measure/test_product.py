"""Measured products: what is recorded, predicted and bounded, and that no wrong one is timed."""

from dataclasses import fields

import pytest
from helpers.commands import quick_peaks

import pdla
from pdla.bench.measure.case import Case, random_operands
from pdla.bench.measure.check import Checker
from pdla.bench.measure.peak import Peaks
from pdla.bench.measure.product import Bench, predict
from pdla.bench.screen import Screen
from pdla.matmul.schedules import ON_GRID


def measured(P, case):
    def program(comm):
        bench = Bench(comm, Checker(comm), Peaks(comm), Screen(first=False), repeats=2)
        with pdla.ProcessGrid(case.grid, comm=comm) as grid:
            return bench.measure(case, *random_operands(case, grid))

    with quick_peaks():
        return pdla.run(P, program)[0]


@pytest.mark.parametrize("algorithm", pdla.algorithms)
@pytest.mark.parametrize("grid", [(2, 2), (1, 4), (2, 3)])
def test_recorded_bytes_are_the_formula_and_the_prediction(algorithm, grid):
    P = grid[0] * grid[1]
    case = Case(48, 48, 48, algorithm=algorithm, grid=grid)
    row, foreseen = measured(P, case), predict(case, P)
    assert row.bytes_received == foreseen.bytes_received
    assert row.bytes_by_formula == (row.bytes_received if algorithm in ON_GRID else None)
    assert (row.messages, row.peak_workspace) == (foreseen.messages, foreseen.peak_workspace)
    assert row.bytes_received >= row.bytes_lower_bound > 0
    assert len(row.seconds) == 2


@pytest.mark.parametrize("algorithm", ["auto", "summa"])
def test_the_bound_is_the_plans_where_the_matrices_lie_on_few_ranks(algorithm):
    """auto multiplies on all 64 ranks, and received 0.75 of what six ranks would have had to."""
    row = predict(Case(2048, 2048, 2048, algorithm=algorithm, grid=(2, 3)), 64)
    assert row.multiple_of_bound >= 1
    assert f"bound       {row.bytes_lower_bound:.0f} bytes" in row.explained


@pytest.mark.parametrize("sizes", [(64, 64, 4096), (10, 2048, 2048), (0, 64, 64)])
def test_the_formula_says_nothing_of_what_the_rule_does_otherwise(sizes):
    """It is that of a C that stays in place, and here A or B does."""
    row = predict(Case(*sizes, grid=(2, 4)), 8)
    assert row.algorithm == "gather" and row.bytes_by_formula is None


def test_a_wrong_product_is_not_timed(monkeypatch):
    class Off(pdla.Plan):
        def __call__(self, *operands, **options):
            C = super().__call__(*operands, **options)
            C.local[...] += 1
            return C

    def off(A, B, **keywords):
        plan = pdla.matmul.__globals__["plan_matmul"](A, B, **keywords)
        return Off(**{one.name: getattr(plan, one.name) for one in fields(plan) if one.init})

    monkeypatch.setattr("pdla.bench.measure.product.pdla.plan_matmul", off)
    row = measured(2, Case(8, 8, 8, grid=(1, 2)))
    assert not row.right
    assert (row.seconds, len(row.faults)) == ((), 2)
