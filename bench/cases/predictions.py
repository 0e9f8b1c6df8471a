"""Predictions beside dry runs of all ranks: seconds, the choice, more ranks, one rank, and the time of a prediction."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, prod
from random import Random
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

import pdla
from bench.common.case import case
from pdla import linalg
from pdla.bench.arguments import natural, positive, rank_count
from pdla.linalg.cholesky import _CHOLESKY
from pdla.linalg.lu import _LU_FACTOR
from pdla.linalg.orthogonal.qr import _QR
from pdla.linalg.panels.blocks import cut_in_blocks
from pdla.linalg.plan import price
from pdla.linalg.plan.call import Call
from pdla.linalg.plan.price import Blocking
from pdla.linalg.plan.routine import Routine, Task
from pdla.linalg.routines import CHOLESKY, LU, QR, TRIANGULAR
from pdla.linalg.solve import SOLVE
from pdla.linalg.triangular import SOLVE_TRIANGULAR
from pdla.matmul import dry, planner
from pdla.matmul.builder import PlanBuilder
from pdla.matmul.choose.problem import Operand
from pdla.matmul.options import Options
from pdla.matmul.plan import Plan, costs
from pdla.model.machine import Machine

MACHINES = ("a100x4", "h200x8", "laptop", "v100x4")
SIZES = 500, 8000
FEW = 1  # ranks up to which all are run: so few that all problems are predicted as those of thousands of ranks are
LAYOUT = pdla.Layout("row", "col")
CANDIDATES = 12  # the blockings that a choice is compared with


@dataclass(frozen=True)
class Kind:
    """A function of linalg: how it is called, and how its seconds are predicted from sizes."""

    call: Call
    routine: Routine
    run: Callable[[Any, Any], Any]
    predict: Callable[[int, int, str], Any] | None = None


FACTORIZATIONS = {
    "cholesky": Kind(
        _CHOLESKY, CHOLESKY, lambda A, B: linalg.cholesky(A, overwrite_a=True, check_finite=False),
        lambda n, ranks, machine: linalg.predict_cholesky(n, ranks, machine=machine),
    ),
    "lu": Kind(
        _LU_FACTOR, LU, lambda A, B: linalg.lu_factor(A, overwrite_a=True, check_finite=False),
        lambda n, ranks, machine: linalg.predict_lu(n, n, ranks, machine=machine),
    ),
    "qr": Kind(
        _QR, QR, lambda A, B: linalg.qr(A, overwrite_a=True, check_finite=False),
        lambda n, ranks, machine: linalg.predict_qr(n, n, ranks, machine=machine),
    ),
    "triangular": Kind(
        SOLVE_TRIANGULAR, TRIANGULAR,
        lambda A, B: linalg.solve_triangular(A, B, lower=True, overwrite_b=True, check_finite=False),
        lambda n, ranks, machine: linalg.predict_solve_triangular(n, n, ranks, machine=machine),
    ),
    "solve": Kind(SOLVE, LU, lambda A, B: linalg.solve(A, B, overwrite_a=True, overwrite_b=True, check_finite=False)),
}


def draw_size(random: Random) -> int:
    """Draw a size, with its logarithm uniform."""
    return round(exp(random.uniform(*map(log, SIZES))))


def make_product(random: Random, ranks: int, machine: Machine) -> PlanBuilder:
    """Draw a product of matrices in 2-D blocks."""
    grid = pdla.ProcessGrid(pdla.balanced_shape(ranks), comm=dry.make_communicator(ranks, machine))
    m, n, k = (draw_size(random) for _ in "mnk")
    A, B, C = (Operand(shape, LAYOUT, grid) for shape in ((m, k), (k, n), (m, n)))
    return PlanBuilder(A, B, C, np.dtype(float), Options(), machine)


def time_all(plan: Plan) -> float:
    """Seconds of a product's plan, by a dry run of all ranks."""
    comm = plan.grid.comm
    return pdla.dry_run_all(comm.size, costs._make_program(plan), machine=plan.machine).seconds


def time_all_in(kind: Kind, n: int, blocking: Blocking, machine: Machine) -> float:
    """Seconds of a function of matrices in these blocks, by a dry run of all ranks."""

    def program(comm: Any) -> None:
        grid = pdla.ProcessGrid(blocking.shape, comm=comm)
        A = pdla.zeros((n, n), grid, cut_in_blocks(*blocking))
        kind.run(A, pdla.zeros((n, n), grid, pdla.Layout(pdla.Cyclic("row", blocking.block), "col")))

    return pdla.dry_run_all(prod(blocking.shape), program, machine=machine).seconds


def predict_pair(kind_name: str, random: Random, ranks: int, name: str) -> tuple[str, float, float]:
    """Draw a problem; return it in words, its predicted seconds, and those of a dry run of all ranks."""
    machine = Machine.load(name)
    if kind_name == "product":
        plan = planner.make(make_product(random, ranks, machine))
        return f"{'x'.join(map(str, plan.mnk))} on {ranks}, {name}", plan.machine_cost.seconds, time_all(plan)
    kind, n = FACTORIZATIONS[kind_name], draw_size(random)
    task = Task(kind.routine, n, n, np.dtype(float), machine)
    blocking = random.choice(price.sort_by_price(task, ranks)[:3])
    plan = kind.call.imagine((n, n), n, task.dtype, blocking, ranks, machine)
    return f"{n} {blocking} of {ranks}, {name}", plan.seconds, time_all_in(kind, n, blocking, machine)


@case("kind:<12 | problems:9 | median:8.3f | within 15%:12.0% | within 40%:12.0% | least:8.2f | most:8.2f | the worst:<60")
def believed(count: positive = 100, seed: natural = 1, *, ranks: rank_count = 64, exactly: bool = False, kinds: str = ""):
    """Predicted seconds over those of dry runs of all ranks, on random problems of each kind.

    Problems take the machines in turn, and a random number of ranks up to `ranks`, or exactly `ranks`.
    A prediction runs dry the sample of ranks that it would choose among thousands.
    """
    with patch.object(dry.sample_ranks, "__defaults__", (FEW, False)), patch.object(costs, "EVERY_RANK", FEW):
        for kind in kinds.split(",") if kinds else ("product", *FACTORIZATIONS):
            random, ratios = Random(seed), {}
            for i in range(count):
                size = ranks if exactly else random.randint(2, ranks)
                name, forecast, found = predict_pair(kind, random, size, MACHINES[i % len(MACHINES)])
                ratios[name] = forecast / found
            found = [*ratios.values()]
            within = [sum(1 / (1 + share) <= ratio <= 1 + share for ratio in found) / len(found) for share in (0.15, 0.4)]
            worst = max(ratios, key=lambda name: abs(log(ratios[name])))
            yield kind, len(found), median(found), *within, min(found), max(found), worst


@case("kind:<12 | problems:9 | within 10%:12.0% | median:8.3f | most:8.2f | the worst:<60")
def chosen(count: positive = 100, seed: natural = 1, *, ranks: rank_count = 64):
    """Seconds of the choice for a machine over those of the best candidate, both by dry runs of all ranks."""
    for kind_name in ("product", *FACTORIZATIONS):
        random, ratios = Random(seed), {}
        for i in range(count):
            size, name = random.randint(2, ranks), MACHINES[i % len(MACHINES)]
            machine = Machine.load(name)
            if kind_name == "product":
                builder = make_product(random, size, machine)
                plan, others = planner.make(builder), [builder.plan(way) for way in builder.list_contenders(CANDIDATES)]
                chosen_seconds, best_seconds = time_all(plan), min(map(time_all, others))
                words = f"{'x'.join(map(str, plan.mnk))} on {size}, {name}: {plan.full_name}"
            else:
                kind, n = FACTORIZATIONS[kind_name], draw_size(random)
                candidates = price.sort_by_price(Task(kind.routine, n, n, np.dtype(float), machine), size)
                grid = pdla.ProcessGrid(pdla.balanced_shape(size), comm=dry.make_communicator(size, machine))
                A = pdla.zeros((n, n), grid, LAYOUT)
                plan = kind.call._make((A, A) if kind.call.solves else (A,), None, {}, machine)
                seconds = {each: time_all_in(kind, n, each, machine) for each in {*candidates[:CANDIDATES], plan.blocking}}
                chosen_seconds, best_seconds = seconds[plan.blocking], min(seconds.values())
                words = f"{n} on {size}, {name}: {plan.blocking}"
            ratios[words] = chosen_seconds / best_seconds
        within = sum(ratio <= 1.1 for ratio in ratios.values()) / len(ratios)
        worst = max(ratios, key=lambda name: ratios[name])
        yield kind_name, len(ratios), within, median(ratios.values()), ratios[worst], worst


def predict(kind: str, n: int, ranks: int, machine: str) -> Any:
    """Predict a square product, or a factorization, from its sizes."""
    if kind == "product":
        return pdla.predict_matmul(n, n, n, ranks, machine=machine)
    return FACTORIZATIONS[kind].predict(n, ranks, machine)


PREDICTED = ("product", "cholesky", "lu", "qr", "triangular")


@case("kind:<12 | machine:<10 | n:8 | rises on the ladder:21 | most on others:16.3f")
def more(most: rank_count = 64, sizes: str = "1024,4096"):
    """Whether more ranks are ever predicted to take longer: on the ladder never, on other numbers by at most this factor."""
    for kind in PREDICTED:
        for name in MACHINES:
            for n in map(int, sizes.split(",")):
                seconds = {ranks: predict(kind, n, ranks, name).seconds for ranks in range(1, most + 1)}
                ladder = Machine.load(name).ladder(most)
                rises = sum(seconds[after] > seconds[before] for before, after in pairwise(ladder))
                others = max(seconds[p] / seconds[max(q for q in ladder if q <= p)] for p in seconds)
                yield kind, name, n, rises, others


@case("kind:<12 | machine:<10 | n:8 | predicted s:12.4g | operations / rate:18.4g | ratio:8.3f")
def alone(sizes: str = "1024,4096,8192,32768"):
    """Predicted seconds on one rank beside operations over the machine's rate."""
    operations = defaultdict(lambda: 2 / 3, product=2.0, cholesky=1 / 3, triangular=1.0, qr=8 / 3)
    for kind in PREDICTED:
        for name in MACHINES:
            for n in map(int, sizes.split(",")):
                forecast, described = predict(kind, n, 1, name).seconds, Machine.load(name)
                expected = operations[kind] * n**3 / (described.flops * described._find_share(n**3))
                yield kind, name, n, forecast, expected, forecast / expected


@case("kind:<12 | machine:<10 | ranks:9 | predicted s:12.4g | took, s:9.2f")
def takes(n: positive = 65536):
    """The time of one prediction, without earlier ones for these ranks."""
    for ranks in (1024, 10**6):
        for kind in PREDICTED:
            for name in MACHINES[:2]:
                for cache in (price.predict_seconds, price.sort_by_price):
                    cache.cache_clear()
                start = time.perf_counter()
                forecast = predict(kind, n, ranks, name)
                yield kind, name, ranks, forecast.seconds, time.perf_counter() - start
