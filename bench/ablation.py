"""What each way of sending earns, by the ledger: bytes over a node's link, and messages of a rank, with it and without.

python -m bench.ablation        dry, on 64 and 1,024 ranks, four to a node

Each is left out in turn, so that what would be done instead is done: ranks send to each other directly.
"""

from contextlib import nullcontext
from unittest.mock import patch

import pdla
from pdla.comm import group
from pdla.comm.collectives import circulant, ring

NODE = 4  # ranks
LONG, SHORT = 64 << 10, 16  # bytes of a rank's piece


def gathered(comm, nbytes):
    pieces = [comm.xp.empty((nbytes,), "int8") for _ in range(comm.size)]
    comm.allgather(pieces[comm.rank], pieces).wait()


def summed(comm, nbytes):
    parts = [comm.xp.empty((nbytes // 8,), "float64") for _ in range(comm.size)]
    comm.reduce_scatter(parts, parts[comm.rank]).wait()


def without_steps():
    return patch.object(circulant, "MANY", float("inf"))


ROWS = (
    ("all-gather around the nodes", gathered, LONG, lambda: patch.object(ring, "LONG", float("inf"))),
    ("sum from node to node", summed, LONG, lambda: patch.object(group, "pays", lambda *_: False)),
    ("all-gather in steps", gathered, SHORT, without_steps),
    ("sum in steps", summed, SHORT, without_steps),
)


def figures(ranks, work, nbytes):
    """Bytes that come over the busiest link, and the most messages that a rank receives; of the first, second and last node."""

    def program(comm):
        comm.homes = [rank // NODE for rank in range(comm.size)]
        with pdla.record() as ledger:
            work(comm, nbytes)
        return ledger.bytes_from_far, ledger.messages

    links, most = [], 0
    for node in (0, 1, ranks // NODE - 1):
        found = [pdla.dry_run(ranks, program, rank=NODE * node + place)[0] for place in range(NODE)]
        links.append(sum(far for far, _ in found))
        most = max(most, *(messages for _, messages in found))
    return max(links), most


def main():
    print(f"{'':30}{'ranks':>6}{'bytes of a piece':>18}{'link, with':>12}{'without':>12}{'messages, with':>16}{'without':>10}")
    for what, work, nbytes, left_out in ROWS:
        for ranks in (64, 1024):
            found = []
            for how in (nullcontext, left_out):
                with how():
                    found.append(figures(ranks, work, nbytes))
            (link, messages), (link_without, messages_without) = found
            print(f"{what:30}{ranks:6}{nbytes:18}{link:12,}{link_without:12,}{messages:16}{messages_without:10}")


if __name__ == "__main__":
    main()
