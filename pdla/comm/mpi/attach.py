"""The entry to MPI: pdla's own duplicate of an mpi4py communicator.

First the ranks agree on settings and arrays, and divide their nodes' cores.
"""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType
from typing import Any

from pdla import config
from pdla.array import blas, choose, cores, numpy
from pdla.comm.agreement import group_ranks, name_ranks
from pdla.comm.mpi import failures, libmpi
from pdla.comm.mpi.abort import end_when_interrupted, watch
from pdla.comm.mpi.communicator import MPIComm
from pdla.comm.mpi.libmpi import MPI
from pdla.comm.mpi.node import count_started, find_least_free_bytes, find_node
from pdla.comm.mpi.transport import connect
from pdla.errors import AgreementError, DeviceError, GridError
from pdla.model.machine import Machine


def attach(comm: MPI.Comm) -> MPIComm:
    """Duplicate an mpi4py communicator as pdla's, once; collective the first time, and after the duplicate was closed.

    The first call in a process also limits BLAS to PDLA_THREADS threads. If that is 0, the limit is
    this rank's share of the node's cores among all ranks that the launcher has started there. Freeing
    comm frees the duplicate, and waits for the other ranks if they have shared memory.

    Raise GridError for an intercommunicator and for the null communicator. Raise AgreementError, on
    every rank, if PDLA_* variables differ that must not. Raise DeviceError, on every rank, if matrices
    belong on devices and a rank has none. Raise NoMPIError before MPI is initialised, after it is
    finalised, and in a process forked from a rank.
    """
    libmpi.check_running()
    if comm == MPI.COMM_NULL:
        raise GridError("the null communicator: this rank is in none of the groups of a split, and should leave the call out")
    if comm.Is_inter():
        raise GridError("an intercommunicator: pdla needs one group of ranks; MPI_Intercomm_merge, comm.Merge(), makes one of both")
    made: Any = comm.Get_attr(_make_key())
    if made is None or made.mpi == MPI.COMM_NULL:
        with watch(f"wrapping a communicator of {comm.Get_size()} ranks"):
            _agree_on_settings(comm)
            node, homes = find_node(comm)
            duplicate = comm.Dup()
            duplicate.Set_errhandler(MPI.ERRORS_RETURN)  # errors are exceptions, whatever handler a C program has set on comm
            if comm == MPI.COMM_WORLD:
                failures.use(duplicate)
            made = MPIComm(duplicate, node, homes, xp=_choose_arrays(comm, homes))
            made = connect(made)
            made.shared_limit = find_least_free_bytes(comm) // 2 if config.settings.shared and made.xp is numpy else 0
        comm.Set_attr(_make_key(), made)
        _divide_cores(made)
        end_when_interrupted()
    return made


def _agree_on_settings(comm: MPI.Comm) -> None:
    """Collective: raise AgreementError if settings differ that must not.

    Ranks would otherwise make different plans, and wait for messages that no rank sends.
    """
    settings = vars(config.settings) | {"machine": Machine.describe_choice()}
    as_given = {setting: str(int(value) if isinstance(value, bool) else value) for setting, value in settings.items()}
    everyone = comm.allgather({setting: text for setting, text in as_given.items() if setting not in config.OWN})
    for setting in everyone[0]:
        ranks_by_text = group_ranks([others[setting] for others in everyone])
        if len(ranks_by_text) > 1:
            values = "; ".join(f"{value} on {name_ranks(ranks)}" for value, ranks in ranks_by_text.items())
            raise AgreementError(f"PDLA_{setting.upper()} differs between ranks: {values}")


_number: list[int] = []  # this process's number on its node, in the first communicator: it chooses the device of all its arrays


def _choose_arrays(comm: MPI.Comm, homes: list[int]) -> ModuleType:
    """Collective: choose the array module that PDLA_ARRAY names; raise DeviceError, on every rank, if a rank cannot use it."""
    rank, xp, fault = comm.Get_rank(), numpy, ""
    if not _number:
        _number.append(homes[:rank].count(homes[rank]))
    try:
        xp = choose(_number[0])
    except DeviceError as error:
        fault = str(error)
    everyone = comm.allgather(fault)
    failed = [r for r, fault in enumerate(everyone) if fault]
    if failed:
        raise DeviceError(f"{everyone[failed[0]]} (rank {failed[0]}, {len(failed)} of {comm.Get_size()} ranks)")
    return xp


@cache
def _make_key() -> int:
    """Make the MPI attribute under which a communicator keeps its duplicate; duplicates of comm do not inherit it."""
    return MPI.Comm.Create_keyval(delete_fn=lambda comm, key, ours: ours.close())


_ranks_counted = 0  # the number of ranks among which this node's cores are divided


def _divide_cores(comm: MPIComm) -> None:
    """Limit BLAS to this rank's share of the node's cores.

    The limit is set at the first communicator, and at each with more ranks on this node than known
    so far. The first rank of a node warns if the node has fewer cores than BLAS threads.
    """
    global _ranks_counted
    node, ranks = comm.node, max(comm.node.ranks, count_started())
    if ranks <= _ranks_counted:
        return
    _ranks_counted = ranks
    threads = config.settings.threads or cores.share(ranks)
    blas.set_threads(threads)
    if threads > 1 and threads * node.ranks > node.cores and comm.homes[comm.rank] == comm.rank:
        warnings.warn(
            f"{node.ranks} ranks x {threads} BLAS threads on a node of {node.cores} cores: set PDLA_THREADS="
            f"{max(1, node.cores // node.ranks)}, or have the launcher bind each rank to cores of its own",
            stacklevel=2,
        )
