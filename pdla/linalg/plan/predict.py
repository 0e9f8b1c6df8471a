"""Predict what factorizations and triangular systems cost, from sizes alone, on up to millions of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt, prod
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from pdla import checks
from pdla.errors import PlanError, misfit
from pdla.linalg.checks import find_working_dtype
from pdla.linalg.plan import price
from pdla.linalg.plan.call import Call
from pdla.linalg.plan.plan import COSTED
from pdla.linalg.plan.price import Blocking
from pdla.linalg.plan.routine import Routine, Task
from pdla.model.bounds import exact
from pdla.model.machine import Machine


@dataclass(frozen=True)
class FactorPrediction:
    """The predicted cost of a factorization or a triangular system, with A in the best square blocks.

    Parameters
    ----------
    grid : tuple of int
        pr and pc.
    block : int
        Rows of a square block.
    ranks_used : int
        Ranks of that grid.
    bytes_received : int
        Mean bytes that a rank receives.
    lower_bound : float
        Least bytes that a rank must receive with memory for its share of the matrix alone; 0 for a
        triangular system.
    seconds : float or None
        None without a machine.
    """

    grid: tuple[int, ...]
    block: int
    ranks_used: int
    bytes_received: int
    lower_bound: float
    seconds: float | None


def predict(
    call: Call, routine: Routine, m: Any, n: Any, P: Any, dtype: Any, machine: Machine | str | None,
    following: Sequence[Routine] = (),
) -> FactorPrediction:
    """Local: predict the best grid and blocks for a call of a routine on up to P ranks, and the cost there.

    following  routines that follow in the call, on as many columns as the first

    PlanError for sizes that no matrix has, ShapeError for a dtype that LAPACK lacks.
    """
    m, n, P = exact(m, n, P)
    if not checks.sizes(m, n) or not isinstance(P, int) or P < 1:
        error = misfit(PlanError, m, n, P)
        raise error(f"{routine.name} of {m} x {n}, P={P}: sizes are whole numbers from 0 to 2^63 - 1, ranks 1 or more")
    work_dtype = find_working_dtype(routine.name, np.dtype(dtype))
    task = Task(routine, m, n, work_dtype, Machine.choose() if machine is None else Machine.of(machine))
    fastest = _find_fastest(call, task, P) if machine else Timed(0.0, price.sort_by_price(task, P)[0])
    shape, block = fastest.blocking
    tasks = [task, *(Task(routine, m, min(m, n), work_dtype, task.machine) for routine in following)]
    words, bound = sum(task.words(shape, block) for task in tasks), sum(task.bound(shape) for task in tasks)
    return FactorPrediction(
        shape, block, prod(shape), round(work_dtype.itemsize * words), work_dtype.itemsize * bound,
        fastest.seconds if machine else None,
    )


class Timed(NamedTuple):
    """A blocking, and its seconds."""

    seconds: float
    blocking: Blocking


def _find_fastest(call: Call, task: Task, P: int) -> Timed:
    """The fastest blocking on P or fewer ranks; of equally fast blockings the one on the fewest ranks.

    Fewer ranks are those of the machine's ladder, and the square and some multiples just below P, whose grids are nearly square.
    Two lower bounds exclude a number of ranks: the operations at the machine's full rate, then the chain, by a closed form.
    """
    best = find_fastest_on(call, task, P)
    if task.routine.short_steps:
        return best  # the plan has tried fewer ranks
    counts = {isqrt(P) ** 2, *(P - P % side for side in (2, 3, 4, 6, 8) if side <= P), *task.machine.ladder(P)}
    for ranks in sorted(counts - {P}, reverse=True):
        if task.at_full_rate(ranks) > best.seconds:
            continue
        if min(price.predict_seconds(task, *blocking) for blocking in price.sort_by_price(task, ranks)) <= best.seconds:
            best = min(find_fastest_on(call, task, ranks), best, key=attrgetter("seconds"))
    return best


@lru_cache(maxsize=1024)
def find_fastest_on(call: Call, task: Task, ranks: int) -> Timed:
    """The fastest blocking on so many ranks: dry runs time the best few by closed forms."""
    shape, columns = ((task.m, task.m), task.n) if call.square and call.solves else ((task.m, task.n), 1)
    blockings = price.sort_by_price(task, ranks)[:COSTED]
    plans = (call.imagine(shape, columns, task.dtype, blocking, ranks, task.machine) for blocking in blockings)
    return min((Timed(plan.seconds, plan.blocking) for plan in plans), key=attrgetter("seconds"))
