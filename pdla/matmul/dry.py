"""Dry runs that predict costs: the sampled ranks, and the run of one, like this communicator's ranks or on a described machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product

from pdla.comm.communicator import Communicator
from pdla.comm.dry import DryComm, dry_run
from pdla.comm.ledger import Ledger
from pdla.grid import ProcessGrid
from pdla.model.machine import Machine

EVERY_RANK = 16  # ranks up to which all of them are run
Program = Callable[[DryComm], object]


def sample_ranks(comm: Communicator, grids: Iterable[ProcessGrid], every: int = EVERY_RANK, second: bool = False) -> list[int]:
    """Local: choose the ranks to run: up to `every` all of them, of more ranks those that may have the highest costs.

    The sample has the first and last rank along each axis of the grids, the middle rank, and the
    second node's first. If cuts do not match, a rank outside the sample may have higher costs.

    second  whether the sample also has the second rank along each axis
    """
    if comm.size <= every:
        return list(range(comm.size))
    places = (0, 1, -1) if second else (0, -1)
    sample = {comm.size // 2, *(comm.homes.index(home) for home in list(dict.fromkeys(comm.homes))[1:2])}
    for grid in dict.fromkeys(grids):
        sample |= {int(grid.ranks[corner]) for corner in product(*({place % p for place in places} for p in grid.shape))}
    return sorted(sample)


def find_nodes(comm: Communicator, machine: Machine) -> Sequence[int]:
    """Local: find the node of each rank on a machine: as this communicator's ranks, or else as the machine says; (): one node."""
    return comm.homes if comm.nodes > 1 else machine.homes(comm.size)


def make_communicator(ranks: int, machine: Machine) -> DryComm:
    """Local: make a dry communicator of so many ranks of a machine."""
    comm = DryComm(0, ranks)
    comm.homes = machine.homes(ranks)
    return comm


def run_here(comm: Communicator, program: Program, rank: int) -> Ledger:
    """Local: run one rank of this communicator dry, on its nodes and with its shared memory; return the ledger."""

    def run(dry: DryComm) -> None:
        dry.homes, dry.shared_limit, dry.publishes, dry.adds = comm.homes, comm.shared_limit, comm.publishes, comm.adds
        program(dry)

    return dry_run(comm.size, run, rank=rank)[1]


def run_on_machine(comm: Communicator, program: Program, rank: int, machine: Machine) -> Ledger:
    """Local: run one rank dry, with a clock, on a machine whose ranks send messages; return the ledger."""

    def run(dry: DryComm) -> None:
        dry.homes, dry.shared_limit = find_nodes(comm, machine), comm.shared_limit
        program(dry)

    return dry_run(comm.size, run, rank=rank, machine=machine)[1]
