"""pdla's choice of boxes, its time, and its dependence on constants."""

import argparse
import sys
import time
from functools import partial
from statistics import median
from unittest.mock import patch

import pdla
from bench.cases.volume import LARGE, MACHINES, predict
from bench.common.case import case
from bench.common.meeting import Meeting
from bench.common.product import Product
from bench.common.turns import check_sides, take_turns
from bench.sides.ours import BLOCKS, make, make_grid, make_operands, make_side
from pdla.bench.arguments import rank_count, sizes
from pdla.comm.dry import DryComm
from pdla.errors import PdlaError, PlanError
from pdla.matmul import boxes as of_boxes
from pdla.matmul.algorithms import BOX, box, table
from pdla.matmul.choose import candidates
from pdla.model.machine import Machine

TURNS, TURN = 7, 0.1  # of boxes; TURN in seconds
CUBE = 10**6, 10**6, 10**6
ASKED = (  # of planning: m x n x k, and a memory limit in bytes
    (CUBE, None), (CUBE, 10**8), (CUBE, 10**7),
    ((1000, 1000, 1000), None), ((10**7, 10**7, 10), None), ((10**5, 10**6, 10**4), 10**7),
    ((100, 100, 10**9), None), ((3, 1000, 10**9), None), ((10**9, 100, 100), None),
)


# ---------------------------------------------------------------------------------------------- the choice beside other boxes


@case("ranks:5 | side:<70 | workspace:11 | median ms:11.4g | least:9.4g")
def boxes(comm, product: sizes, others: str = "", *, dtype: str = "float64", blocks: bool = False):
    """Products on different boxes, timed side by side: whether the chosen box is the fastest.

    mpirun -n 16 python -m bench boxes 4096x4096x4096 5x3x1:summa,4x4x1:summa,4x4x1:shared
    mpirun -n 16 python -m bench boxes 65536x256x256 16x1x1:shared,gather --blocks

    pdla's choice comes first. Each box has matrices in its own layouts. With --blocks all have A, B
    and C in 2-D blocks on the near-square grid. A schedule without a box then runs on the cheapest
    grid. Each product is checked on integers; then they take turns of a tenth of a second. Prints
    workspace a rank in bytes, and figures of 7 turns.
    """
    meeting, problem = Meeting(comm.mpi), Product(*product, dtype)
    try:
        sides = [make(comm.mpi, problem, "blocks" if blocks else "native")]
        sides += [make_box_side(comm, problem, spec, blocks) for spec in others.split(",") if spec]
    except (argparse.ArgumentTypeError, PdlaError, TypeError, ValueError) as error:  # every rank's alike
        sys.exit(f"boxes {others}: {error}" if comm.rank == 0 else 1)
    check_sides(meeting, problem, {side.about: side for side in sides})
    calls = [max(1, round(TURN / meeting.seconds(side.multiply))) for side in sides]
    times = take_turns(TURNS, {i: partial(meeting.seconds, sides[i].multiply, count) for i, count in enumerate(calls)})
    for i, seconds in times.items():
        yield comm.size, sides[i].about, sides[i].workspace, 1e3 * median(seconds), 1e3 * min(seconds)


def make_box_side(comm, product, spec, blocks):
    """Collective: make the side of a box and a schedule, such as 4x4x1:shared; from 2-D blocks either may be left out."""
    sides, _, schedule = spec.rpartition(":")
    shape = tuple(map(int, sides.split("x"))) if sides else None
    way = {"algorithm": "3d", "box": shape, "schedule": schedule} if shape else {"schedule": schedule}
    if blocks:
        return make_side(*make_operands(product, make_grid(comm), BLOCKS), **way)
    tables = {table.schedule: table for table in box.list_tables(shape or (1, 1, 1))}
    if shape is None or schedule not in tables:
        raise ValueError(f"{spec!r}: a box and a schedule, such as 2x2x1:summa, of {', '.join(tables)}")
    grid = pdla.ProcessGrid(shape, axes=tables[schedule].axes, comm=comm)
    return make_side(*make_operands(product, grid, tables[schedule].layouts), **way)


# ---------------------------------------------------------------------------------------------- the time of planning


@case("s:6.2f | m x n x k:<30 | bytes:10 | plan:<60")
def planning(ranks: rank_count = 10**6):
    """The time to plan a product on a million ranks, without and with a memory limit.

    Prints for each shape the seconds of a first call of predict_matmul: the search, and the dry runs
    of the plan's figures. Then follow the plan, and its bytes as a multiple of the lower bound. For
    a limit that no plan keeps, it prints the time to the error, and how many bytes are missing.
    """
    pdla.predict_matmul(8, 8, 8, 8)  # imports and first searches
    yield f"{ranks} ranks, float64, one core"
    for mnk, limit in ASKED:
        start = time.perf_counter()
        try:
            plan = pdla.predict_matmul(*mnk, ranks, memory_limit=limit)
            over = plan.bytes_received / max(plan.lower_bound, 1)
            description = f"{plan.algorithm} by {plan.schedule} on {' x '.join(map(str, plan.grid))}, {over:.2f} of the bound"
        except PlanError as error:
            description = str(error).partition(";")[0]
        yield time.perf_counter() - start, " x ".join(map(str, mnk)), limit, description


# ---------------------------------------------------------------------------------------------- other constants

NATIVE = (
    (1024, 1024, 1024), (16384, 16384, 16384), (32768, 512, 512), (512, 32768, 512), (512, 512, 32768), (4096, 4096, 64),
    (64, 4096, 4096), (4096, 64, 4096), (100000, 100000, 5000), (10007, 20011, 4999), (3, 1000, 10**6), (300, 300, 300),
    (1, 10**6, 1000),
)
FROM_BLOCKS = (1024, 1024, 1024), (10007, 20011, 4999), (512, 512, 32768), (32768, 512, 512), (4096, 4096, 64), (300, 300, 300)
FEW = 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 23, 31
RANKS = (*FEW, 32, 37, 48, 61, 64, 96, 127, 128, 131, 192, 251, 256, 384, 509, 512, 521, 640, 701, 768, 900, 997, 1019, 1024)
PROBLEMS = {  # by layouts: the products, and the numbers of ranks
    "native": (NATIVE, RANKS),
    "blocks": (FROM_BLOCKS, (12, 16, 37, 64, 127, 256, 509, 700)),
    "far": (LARGE, (4096, 8191, 65536, 262144)),
}
CONSTANTS = {  # its module, other values, and the layouts that it decides
    "WORK": (of_boxes, (1, 2), "native"),
    "FEW": (of_boxes, (0, 96), "native"),
    "SUMS": (of_boxes, (0,), "native"),
    "NEAR": (of_boxes, (float("inf"), 1.05), "native"),
    "LOPSIDED": (of_boxes, (2, 100), "native"),
    "BUSY": (of_boxes, (0.25, 1), "native"),
    "ABOUT": (of_boxes, (1,), "native"),
    "LESS": (table, (0, 1), "native"),
    "EVERY": (of_boxes, (1024,), "far"),
    "LOOKS": (of_boxes, ((129, 64),), "far"),
    "LONGEST": (of_boxes, (1024,), "far"),
    "BOXES": (candidates, (4, 16), "blocks"),
    "WORTH": (candidates, (0,), "blocks"),
}


@case("constant:<10 | instead:12 | layouts:9 | products:10 | changed:9 | s:18 | words:18")
def constants(names: str = ",".join(CONSTANTS)):
    """The effect of other values of the constants in the choice of boxes and layouts.

    Runs dry on 12 to 1024 ranks, for about ten minutes in all. Constants of pdla/matmul/boxes.py and
    LESS decide native layouts; the others decide products from and to 2-D blocks. "s" and "words"
    are predicted over those of the default value: the least and the most of the products that
    change, on every machine.
    """
    for name in names.split(","):
        module, values, layouts = CONSTANTS[name]
        for value in values:
            yield name, str(value), layouts, *compare(module, name, value, layouts)


def compare(module, name, value, layouts):
    """Count the products, and those whose choice changes; also return their seconds and words over the default's."""
    products, counts = PROBLEMS[layouts]
    problems, others = [(mnk, ranks) for mnk in products for ranks in counts], {}
    forget()
    default = [choose(*each, layouts) for each in problems]
    forget()
    with patch.object(module, name, value):
        for i, each in enumerate(problems):
            choice, costs = choose(*each, layouts)
            if choice != default[i][0]:
                others[i] = costs()
    forget()
    pairs = [pair for i, costs in others.items() for pair in zip(default[i][1](), costs, strict=True)]
    seconds = [now.seconds / then.seconds for then, now in pairs]
    words = [now.bytes_received / max(then.bytes_received, 1) for then, now in pairs]
    return len(problems), len(others), *(f"{min(each):.3f} to {max(each):.3f}" if each else "" for each in (seconds, words))


def choose(mnk, ranks, layouts):
    """Choose; return the choice, and a function that predicts its costs on MACHINES, or from blocks on PDLA_MACHINE's."""
    if layouts == "blocks":
        A, B, C = make_operands(Product(*mnk, "float64"), make_grid(DryComm(0, ranks)), BLOCKS)
        plan = pdla.plan_matmul(A, B, out=C)
        return str(plan), lambda: [plan.predicted]
    chosen_box = of_boxes.find_cheapest(*mnk, ranks, Machine())[0]
    cuts = [candidate.even_faces(*mnk) for candidate in BOX.list_tables(tuple(chosen_box))]
    return (chosen_box, cuts), lambda: [predict(mnk, ranks, chosen_box, machine) for machine in MACHINES]


def forget():
    """Forget choices that another value has made."""
    for cached in (candidates._list_ways, candidates._find_cheapest, of_boxes.split, of_boxes.count_messages, predict):
        cached.cache_clear()
