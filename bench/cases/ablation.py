"""The gain of ways of sending, shared memory and parts of a plan's choice: with each, and without it.

Without a part the alternative runs: ranks send to each other directly, or the next best plan runs.
"""

from contextlib import ExitStack
from functools import partial
from unittest.mock import patch

import pdla
from bench.cases.choice import forget
from bench.common.case import case
from bench.common.meeting import Meeting
from bench.common.product import Product
from bench.common.turns import time_medians
from bench.sides.ours import BLOCKS, make_grid, make_operands
from pdla.bench.arguments import positive
from pdla.comm import group
from pdla.comm.collectives import circulant, ring
from pdla.layout import usual_order
from pdla.linalg.panels.blocks import cut_in_blocks, find_near_square
from pdla.matmul import boxes
from pdla.matmul.algorithms import table
from pdla.matmul.choose import candidates
from pdla.matmul.choose.problem import Problem, Sizes
from pdla.matrix import redistribute

# ---------------------------------------------------------------------------------------------- by the ledger

NODE = 4  # ranks
LONG, SHORT = 64 << 10, 16  # bytes of a rank's piece


def gather(comm, nbytes):
    pieces = [comm.xp.empty((nbytes,), "int8") for _ in range(comm.size)]
    comm.allgather(pieces[comm.rank], pieces).wait()


def add_up(comm, nbytes):
    parts = [comm.xp.empty((nbytes // 8,), "float64") for _ in range(comm.size)]
    comm.reduce_scatter(parts, parts[comm.rank]).wait()


def leave_out_steps():
    return [patch.object(circulant, "MANY", float("inf"))]


EXCHANGES = (  # the part left out, the exchange, the bytes of a piece, and the patches
    ("all-gather around the nodes", gather, LONG, lambda: [patch.object(ring, "LONG", float("inf"))]),
    ("sum from node to node", add_up, LONG, lambda: [patch.object(group, "pays", lambda *_: False)]),
    ("all-gather in steps", gather, SHORT, leave_out_steps),
    ("sum in steps", add_up, SHORT, leave_out_steps),
)

PLAN = {  # the patches that leave out each part of a plan's choice
    "ranks placed by what they hold": lambda: [patch.object(candidates, "_relabel", lambda *_: [])],
    "nodes as tiles of the grid": lambda: [patch.object(candidates, "list_orders", lambda shape, _: [usual_order(shape).ravel()])],
    "C summed along two axes": lambda: [patch.object(each, "two_sums", property(lambda _: False)) for each in (Sizes, Problem)],
    "the same with some ranks idle": lambda: [patch.object(boxes.Search, "find_even_box", lambda *_: None)],
    "a face's third cut along the other side": lambda: [patch.object(table, "LESS", 0)],
    "the same, by what is held already": lambda: [patch.object(candidates, "_turn_faces", lambda q, kept, table, order: table)],
    "faces straight from any layout": lambda: [patch.object(candidates, "_use_whole_faces", lambda _: [])],
    "boxes of half the ranks along k": lambda: [patch.object(boxes, "_list_thinner", lambda *of: [sides[:0] for sides in of[:3]])],
}
PRODUCTS = (  # the part left out, m x n x k, 2-D blocks or native layouts, ranks, ranks a node
    ("ranks placed by what they hold", (2000, 2000, 2000), "blocks", 64, 4),
    ("nodes as tiles of the grid", (2000, 2000, 2000), "native", 64, 4),
    ("nodes as tiles of the grid", (100000, 100000, 5000), "native", 1024, 4),
    ("C summed along two axes", (1000, 1000, 10**7), "native", 64, 1),
    ("C summed along two axes", (1000, 1000, 10**7), "native", 1024, 1),
    ("the same with some ranks idle", (512, 512, 2**20), "native", 67, 1),
    ("the same with some ranks idle", (1000, 1000, 10**7), "native", 1019, 1),
    ("a face's third cut along the other side", (3, 1000, 10**6), "native", 64, 4),
    ("a face's third cut along the other side", (3, 1000, 10**6), "native", 1024, 4),
    ("the same, by what is held already", (10007, 20011, 4999), "blocks", 64, 4),
    ("the same, by what is held already", (10007, 20011, 4999), "blocks", 1024, 4),
    ("faces straight from any layout", (1024, 1024, 1024), "blocks", 64, 1),
    ("faces straight from any layout", (10007, 20011, 4999), "blocks", 1024, 1),
    ("boxes of half the ranks along k", (300, 300, 300), "native", 1024, 1),
)


def multiply(comm, mnk, layout_name):
    grid, *layouts = pdla.native_layouts(*mnk, comm=comm) if layout_name == "native" else (make_grid(comm), *BLOCKS)
    A, B, C = make_operands(Product(*mnk, "float64"), grid, layouts)
    pdla.matmul(A, B, out=C)


@case(
    "left out:<42 | of:26 | from:8 | ranks:6 | a node:8 | link, with:14, | without:14, | messages, with:16 | without:10"
)
def ablation():
    """The gain of each way of sending, and of each part of a plan's choice, by ledgers of dry runs.

    The table has bytes over a node's link, and messages of a rank. Products are m x n x k, from and
    to 2-D blocks or in native layouts.
    """
    for part, work, nbytes, left_out in EXCHANGES:
        for ranks in (64, 1024):
            yield part, f"pieces of {nbytes}", None, ranks, NODE, *count_both(left_out, ranks, work, (nbytes,))
    for part, mnk, layout_name, ranks, node in PRODUCTS:
        counts = count_both(PLAN[part], ranks, multiply, (mnk, layout_name), node)
        yield part, " x ".join(map(str, mnk)), layout_name, ranks, node, *counts


def count(ranks, work, what, node=NODE):
    """Bytes over the busiest link, and most messages of a rank, of the first, second and last node."""

    def program(comm):
        comm.homes = [rank // node for rank in range(comm.size)]
        with pdla.record() as ledger:
            work(comm, *what)
        return ledger.bytes_from_far, ledger.messages

    links, most = [], 0
    for first in (0, node, ranks - node):
        found = [pdla.dry_run(ranks, program, rank=first + place)[0] for place in range(node)]
        links.append(sum(far for far, _ in found))
        most = max(most, *(messages for _, messages in found))
    return max(links), most


def count_both(left_out, *arguments):
    """Count with a part, and without it."""
    counts = []
    for patches in ([], left_out()):
        forget()
        with ExitStack() as stack:
            for patched in patches:
                stack.enter_context(patched)
            counts.append(count(*arguments))
    return [figure for both in zip(*counts, strict=True) for figure in both]


# ---------------------------------------------------------------------------------------------- by time, on one node

def make_product(n, comm):
    A, B, C = (pdla.random((n, n), make_grid(comm), BLOCKS[0], seed=seed) for seed in range(3))
    return partial(pdla.matmul, A, B, out=C)


def make_conversion(n, comm):
    A = pdla.random((n, n), make_grid(comm), BLOCKS[0])
    return partial(A.redistribute, cut_in_blocks(find_near_square(comm.size), 128))


def make_factorization(function, n, comm):
    shape = find_near_square(comm.size)
    A = pdla.random((n, n), pdla.ProcessGrid(shape, comm=comm), cut_in_blocks(shape, 128))
    pdla.fill_diagonal(A, n)
    return partial(function, A)


def leave_out_sharing(comm):
    return patch.object(comm, "shared_limit", 0)


def leave_out_conversion(_):
    return patch.object(redistribute, "SHOWN", float("inf"))


def leave_out_slots(comm):
    return patch.object(type(comm), "publishes", False)  # the communicators of a row and a column, too


SHARING = (  # the part left out, the work, consecutive calls, and the patch of a communicator
    ("products in shared memory, n = 256", partial(make_product, 256), 20, leave_out_sharing),
    ("products in shared memory, n = 1024", partial(make_product, 1024), 2, leave_out_sharing),
    ("products in shared memory, n = 4096", partial(make_product, 4096), 1, leave_out_sharing),
    ("conversions in shared memory, n = 2048", partial(make_conversion, 2048), 2, leave_out_conversion),
    ("Cholesky's panels in shared slots, n = 2048", partial(make_factorization, pdla.linalg.cholesky, 2048), 1, leave_out_slots),
    ("LU's panels in shared slots, n = 2048", partial(make_factorization, pdla.linalg.lu_factor, 2048), 1, leave_out_slots),
)


def leave_out(comm, make, left_out):
    """The work on a communicator of its own, without a part."""
    own = comm.split(range(comm.size), "without")
    work = make(own)

    def run():
        with left_out(own):
            work()

    return run


@case("left out:<46 | with, ms:10.3f | without:10.3f | ratio:8.2f")
def ablation_node(comm, turns: positive = 7):
    """The gain in time of a node's shared memory: each call with it and without it, in turns.

    Without it ranks send messages. Prints median milliseconds, and the ratio without over with.
    """
    meeting = Meeting(comm.mpi)
    yield f"{comm.size} ranks, {turns} turns"
    for part, make, count, left_out in SHARING:
        works = {"with": make(comm), "without": leave_out(comm, make, left_out)}
        shared, sent = time_medians(meeting, turns, works, count)
        yield part, shared, sent, sent / shared
