"""What each way of sending, and each part of a plan's choice, earns by the ledger, with it and without: bytes over a node's link,
and messages of a rank.

python -m bench.ablation        dry, on 64 and 1,024 ranks, most of them four to a node

Each is left out in turn, so that what would be done instead is done: ranks send to each other directly, or the next best plan runs.
"""

from contextlib import ExitStack
from unittest.mock import patch

import pdla
from pdla.comm import group
from pdla.comm.collectives import circulant, ring
from pdla.grid import usual_order
from pdla.matmul import boxes
from pdla.matmul.algorithms import table
from pdla.matmul.choose import candidates
from pdla.matmul.choose.problem import Problem, Sizes

NODE = 4  # ranks
LONG, SHORT = 64 << 10, 16  # bytes of a rank's piece


def gathered(comm, nbytes):
    pieces = [comm.xp.empty((nbytes,), "int8") for _ in range(comm.size)]
    comm.allgather(pieces[comm.rank], pieces).wait()


def summed(comm, nbytes):
    parts = [comm.xp.empty((nbytes // 8,), "float64") for _ in range(comm.size)]
    comm.reduce_scatter(parts, parts[comm.rank]).wait()


def without_steps():
    return [patch.object(circulant, "MANY", float("inf"))]


ROWS = (
    ("all-gather around the nodes", gathered, LONG, lambda: [patch.object(ring, "LONG", float("inf"))]),
    ("sum from node to node", summed, LONG, lambda: [patch.object(group, "pays", lambda *_: False)]),
    ("all-gather in steps", gathered, SHORT, without_steps),
    ("sum in steps", summed, SHORT, without_steps),
)


PLAN = {  # how each part of a plan's choice is left out
    "ranks placed by what they hold": lambda: [patch.object(candidates, "_relabelled", lambda *_: [])],
    "nodes as tiles of the grid": lambda: [patch.object(candidates, "fillings", lambda shape, _: [usual_order(shape).ravel()])],
    "C summed along two axes": lambda: [patch.object(each, "in_two", property(lambda _: False)) for each in (Sizes, Problem)],
    "the same with some ranks idle": lambda: [patch.object(boxes.Search, "evened", lambda *_: None)],
    "a face's third cut along the other side": lambda: [patch.object(table, "LESS", 0)],
    "the same, by what is held already": lambda: [patch.object(candidates, "_turned", lambda q, kept, table, order: table)],
    "faces straight from any layout": lambda: [patch.object(candidates, "_straight", lambda _: [])],
    "boxes of half the ranks along k": lambda: [patch.object(boxes, "_fewer", lambda pm, pn, pk, _: (pm[:0], pn[:0], pk[:0]))],
}
PRODUCTS = (  # what is left out, m x n x k, from and to 2-D blocks or in native layouts, ranks, and how many of them to a node
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


def product(comm, mnk, lying):
    m, n, k = mnk
    if lying == "native":
        grid, *layouts = pdla.native_layouts(m, n, k, comm=comm)
    else:
        grid, layouts = pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm), [pdla.Layout("row", "col")] * 3
    A, B, C = (pdla.zeros(size, grid, layout) for size, layout in zip(((m, k), (k, n), (m, n)), layouts, strict=True))
    pdla.matmul(A, B, out=C)


def figures(ranks, work, what, node=NODE):
    """Bytes that come over the busiest link, and the most messages that a rank receives; of the first, second and last node."""

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


def with_and_without(left_out, *asked):
    """`figures` with something, and without it."""
    found = []
    for patches in ([], left_out()):
        for known in (candidates._ways, candidates._cheapest, boxes.split, boxes.messages):
            known.cache_clear()
        with ExitStack() as stack:
            for each in patches:
                stack.enter_context(each)
            found.append(figures(*asked))
    (link, messages), (link_without, messages_without) = found
    return f"{link:14,}{link_without:14,}{messages:16}{messages_without:10}"


def main():
    heads = f"{'link, with':>14}{'without':>14}{'messages, with':>16}{'without':>10}"
    print(f"{'':30}{'ranks':>6}{'bytes of a piece':>18}{heads}")
    for what, work, nbytes, left_out in ROWS:
        for ranks in (64, 1024):
            print(f"{what:30}{ranks:6}{nbytes:18}{with_and_without(left_out, ranks, work, (nbytes,))}")
    print(f"\n{'':42}{'m x n x k':>24}{'':>8}{'ranks':>6}{'a node':>8}{heads}")
    for what, mnk, lying, ranks, node in PRODUCTS:
        found = with_and_without(PLAN[what], ranks, product, (mnk, lying), node)
        print(f"{what:42}{' x '.join(map(str, mnk)):>24}{lying:>8}{ranks:6}{node:8}{found}", flush=True)


if __name__ == "__main__":
    main()
