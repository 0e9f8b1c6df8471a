"""Check, count and time a product, or count it by a dry run; predict its time on a described machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

import pdla
from pdla.bench.measure.case import LAYOUT, Case, Operands, integer_operands, random_operands
from pdla.bench.measure.check import WRONG, Checker
from pdla.bench.measure.peak import Peaks, time_once
from pdla.bench.screen import Screen
from pdla.errors import PlanError
from pdla.matmul import planner
from pdla.matmul.builder import PlanBuilder
from pdla.matmul.choose.problem import Operand
from pdla.matmul.dry import make_communicator
from pdla.matmul.options import Options
from pdla.matmul.plan import costs
from pdla.matmul.schedules import SCHEDULES
from pdla.model.cost import Cost
from pdla.model.machine import Machine
from pdla.simulate.split import Split, measure_split, split_ledgers

BUDGET = 0.5  # seconds for the repeats of one product without a given number
FEWEST, MOST = 3, 20
OUTER = {("row", "m"), ("col", "n")}  # the roles of the closed formulas: no rank sends a part of C


@dataclass(frozen=True)
class Row:
    """The figures of one case: a line of the table, an entry of the JSON. Bytes and messages are the maximum over ranks."""

    case: Case
    algorithm: str  # the plan's, which `auto` has chosen
    layouts: dict[str, str]  # of A, B and C
    messages: int
    bytes_received: int
    bytes_by_formula: float | None  # None without a formula for these layouts or roles
    bytes_lower_bound: float
    peak_workspace: int
    bytes_from_far: int | None = None  # part of bytes_received, from ranks on other hosts; None in a dry run
    checks: tuple[str, ...] = ()
    seconds: tuple[float, ...] = ()  # of each repeat, until the last rank ends
    share_of_peak: float | None = None
    split: Split | None = None  # of the counted run, before the repeats
    predicted: Split | None = None  # on the described machine, if any
    explained: str = ""  # the plan in words, for `explain`

    @property
    def faults(self) -> list[str]:
        return [check for check in self.checks if check.startswith(WRONG)]

    @property
    def right(self) -> bool:
        return not self.faults

    @property
    def flops_per_second(self) -> float | None:
        return self.case.flops / median(self.seconds) if self.seconds else None

    @property
    def multiple_of_bound(self) -> float | None:
        return self.bytes_received / self.bytes_lower_bound if self.bytes_lower_bound else None


@dataclass
class Results:
    """Rows in the order of their runs, and the reasons for cases left out."""

    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return all(row.right for row in self.rows)


@dataclass(frozen=True)
class Bench:
    """The settings that all products of a benchmark run share."""

    comm: pdla.Communicator
    checker: Checker
    peaks: Peaks
    screen: Screen
    repeats: int | None = None
    explain: bool = False
    machine: Machine | None = None  # of predicted times

    def measure(self, case: Case, A: pdla.DistMatrix, B: pdla.DistMatrix) -> Row:
        """Collective: check and count C = A B; time it if it is right. Raises PlanError if the algorithm does not fit."""
        self.screen.show_progress(f"{case.algorithm}: checking")
        plan = plan_case(case, A, B)
        checks = self._check(case, plan, A, B)
        C = pdla.zeros((case.m, case.n), A.grid, LAYOUT, dtype=case.dtype)
        ledger, split = measure_split(self.comm, lambda: plan(A, B, out=C))
        total = ledger.total(self.comm)
        row = make_row(case, plan, (A, B), max_over_ranks(total))
        row = replace(row, checks=checks, bytes_from_far=total["max_bytes_from_far"], split=split)
        explained = explain_plan(case, plan) if self.explain and self.comm.rank == 0 else ""
        row = replace(row, explained=explained, predicted=None if self.machine is None else self._predict(case, plan.algorithm))
        return self._time(row, lambda: plan(A, B, out=C), split.seconds) if row.right else row

    def _predict(self, case: Case, algorithm: str) -> Split | None:
        """Collective: at rank 0, the split of time on the machine. Raises PlanError on every rank or on none."""
        split, fault = None, ""
        if self.comm.rank == 0 and self.machine is not None:
            try:
                split = predict_case(case, algorithm, self.comm.size, self.machine)
            except PlanError as error:
                fault = str(error)
        if fault := self.comm.share(fault)[0]:
            raise PlanError(fault)
        return split

    def _check(self, case: Case, plan: pdla.Plan, A: pdla.DistMatrix, B: pdla.DistMatrix) -> tuple[str, ...]:
        """Collective: check products of the data, and first of small integers of the same shapes unless the data are integers."""
        integers = np.dtype(case.dtype).kind not in "fc" or case.source == "digits"
        data = self.checker.check(case.problem, A, B, plan(A, B), exact=integers)
        if integers:
            return (data,)
        small = integer_operands(case, A.grid)
        return self.checker.check(case.problem, *small, plan(*small), exact=True), data

    def _time(self, row: Row, run: Callable[[], Any], first: float) -> Row:
        """Collective: time the repeats. `first`: seconds of a run, which decide the number of repeats if none is given."""
        count = self.repeats or round(min(MOST, max(FEWEST, BUDGET / first)))
        self.screen.show_progress(f"{row.case.algorithm}: timing")
        seconds = tuple(time_once(self.comm, run) for _ in range(count))
        done, peak = replace(row, seconds=seconds), self.peaks[row.case.dtype]
        return replace(done, share_of_peak=(done.flops_per_second or 0) / peak if peak else None)


def plan_case(case: Case, A: pdla.DistMatrix, B: pdla.DistMatrix) -> pdla.Plan:
    """Collective: plan a case."""
    return pdla.plan_matmul(A, B, algorithm=case.algorithm, layout=LAYOUT, panel=case.panel)


def explain_plan(case: Case, plan: pdla.Plan) -> str:
    """The plan in words, with a note on a panel width that it does not use."""
    unused = case.panel is not None and not plan.how.walks
    return plan.explain() + (f"\n  panel       {case.panel} is not used: {plan.full_name} has no panels" if unused else "")


def max_over_ranks(total: dict[str, int]) -> Cost:
    """The maxima over ranks in a ledger's total."""
    return Cost(total["max_bytes_received"], total["max_messages"], total["max_peak_workspace"])


def make_row(case: Case, plan: pdla.Plan, operands: Operands, counted: Cost) -> Row:
    """The row of a counted case."""
    A, B = operands
    size, (m, n, k) = np.dtype(case.dtype).itemsize, (case.m, case.n, case.k)
    natural = case.transa == case.transb == "N" and plan.algorithm in SCHEDULES and set(plan.roles.carries) <= OUTER
    return Row(
        case=case,
        algorithm=plan.algorithm,
        layouts={"A": repr(A.layout), "B": repr(B.layout), "C": repr(plan.layout)},
        messages=counted.messages,
        bytes_received=counted.bytes_received,
        bytes_by_formula=float(size * pdla.matmul_words(plan.algorithm, m, n, k, case.grid)) if natural else None,
        bytes_lower_bound=size * plan.bound,  # for all ranks: the plan may use ranks outside the matrices' grid
        peak_workspace=counted.peak_workspace,
    )


def predict_case(case: Case, algorithm: str, ranks: int, machine: Machine) -> Split:
    """Predict the split of a case's time on the machine, by `algorithm`."""
    messages = "gather" if algorithm == "shared" else algorithm  # a read of shared memory costs as much as a message
    return predict_split(_plan_dry(replace(case, algorithm=messages), ranks, machine)[0])


def predict_split(plan: pdla.Plan) -> Split:
    """Predict the split of a plan's time on its machine, by the dry runs behind its cost."""
    return split_ledgers(costs.clock_ranks(plan), plan.grid.comm.size)


def predict(case: Case, ranks: int, machine: Machine | None = None) -> Row:
    """The row of a case on any number of ranks, by dry runs; times only for a machine."""
    plan, operands = _plan_dry(case, ranks, Machine.choose() if machine is None else machine)
    row = make_row(case, plan, operands, plan.predicted)
    return replace(row, explained=explain_plan(case, plan), predicted=None if machine is None else predict_split(plan))


def _plan_dry(case: Case, ranks: int, machine: Machine) -> tuple[pdla.Plan, Operands]:
    """Plan a case on dry ranks of a machine; return plan and operands. Raises PlanError if the algorithm does not fit."""
    grid = pdla.ProcessGrid(case.grid, comm=make_communicator(ranks, machine))
    operands = random_operands(case, grid)
    A, B = map(Operand.of, operands)
    C = Operand((case.m, case.n), LAYOUT, grid)
    options = Options(case.algorithm, panel=case.panel)
    return planner.make(PlanBuilder(A, B, C, np.dtype(case.dtype), options, machine)), operands
