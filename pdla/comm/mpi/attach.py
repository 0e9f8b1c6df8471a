"""Where pdla begins over MPI: its own duplicate of a communicator of mpi4py's.

Before, the ranks agree on their settings and arrays, and share out their nodes' cores.
"""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType
from typing import Any

from pdla import config
from pdla.array import blas, chosen, cores, numpy
from pdla.comm.agreement import group_ranks, name_ranks
from pdla.comm.mpi import failures, libmpi
from pdla.comm.mpi.abort import end_when_interrupted, watch
from pdla.comm.mpi.communicator import MPIComm
from pdla.comm.mpi.libmpi import MPI
from pdla.comm.mpi.node import count_started, find_node, least_free_bytes
from pdla.comm.mpi.transport import connect
from pdla.errors import AgreementError, DeviceError, GridError
from pdla.model.machine import Machine


def attach(comm: MPI.Comm) -> MPIComm:
    """The communicator of pdla over the ranks of an mpi4py one: a duplicate of it, made once.

    The first call is collective, and so is the first one after the duplicate was closed.

    The first call in a process also limits BLAS to PDLA_THREADS threads or, if that is 0, to this
    rank's share of the node's cores, which all ranks that the launcher has started on this node
    share, in comm or not. Freeing comm frees the duplicate, and waits for the other ranks if they
    have shared memory. Raises GridError for an intercommunicator and for the null communicator;
    AgreementError, on every rank, where PDLA_* variables differ that must not; DeviceError, on
    every rank, where matrices are to lie on devices and a rank has none; NoMPIError before MPI is
    initialised, after it is finalised, and in a process that was forked from a rank.
    """
    libmpi.check_running()
    if comm == MPI.COMM_NULL:
        raise GridError("the null communicator: this rank is in none of the groups of a split, and should leave the call out")
    if comm.Is_inter():
        raise GridError("an intercommunicator: pdla needs one group of ranks; MPI_Intercomm_merge, comm.Merge(), makes one of both")
    ours: Any = comm.Get_attr(_key())
    if ours is None or ours.mpi == MPI.COMM_NULL:
        with watch(f"wrapping a communicator of {comm.Get_size()} ranks"):
            _agree_on_settings(comm)
            here, homes = find_node(comm)
            own = comm.Dup()
            own.Set_errhandler(MPI.ERRORS_RETURN)  # so that errors are exceptions, whatever handler a program in C has set on comm
            if comm == MPI.COMM_WORLD:
                failures.use(own)
            ours = MPIComm(own, here, homes, xp=_choose_arrays(comm, homes))
            ours = connect(ours)
            ours.shared_limit = least_free_bytes(comm) // 2 if config.settings.shared and ours.xp is numpy else 0
        comm.Set_attr(_key(), ours)
        _divide_cores(ours)
        end_when_interrupted()
    return ours


def _agree_on_settings(comm: MPI.Comm) -> None:
    """Collective: AgreementError where settings differ that must not.

    Ranks would make different plans, and wait for messages that no rank sends.
    """
    mine = vars(config.settings) | {"machine": Machine.chosen_in_words()}
    as_given = {setting: str(int(value) if isinstance(value, bool) else value) for setting, value in mine.items()}
    everyone = comm.allgather({setting: text for setting, text in as_given.items() if setting not in config.OWN})
    for setting in everyone[0]:
        said = group_ranks([settings[setting] for settings in everyone])
        if len(said) > 1:
            values = "; ".join(f"{value} on {name_ranks(ranks)}" for value, ranks in said.items())
            raise AgreementError(f"PDLA_{setting.upper()} differs between ranks: {values}")


_number: list[int] = []  # this process's, on its node, in the first communicator: in others, too, its arrays are on that device


def _choose_arrays(comm: MPI.Comm, homes: list[int]) -> ModuleType:
    """Collective: the array module that PDLA_ARRAY names; DeviceError, on every rank, where a rank cannot use it."""
    rank, xp, fault = comm.Get_rank(), numpy, ""
    if not _number:
        _number.append(homes[:rank].count(homes[rank]))
    try:
        xp = chosen(_number[0])
    except DeviceError as error:
        fault = str(error)
    everyone = comm.allgather(fault)
    wrong = [r for r, fault in enumerate(everyone) if fault]
    if wrong:
        raise DeviceError(f"{everyone[wrong[0]]} (rank {wrong[0]}, {len(wrong)} of {comm.Get_size()} ranks)")
    return xp


@cache
def _key() -> int:
    """The MPI attribute under which a communicator keeps its duplicate; duplicates of comm do not inherit it."""
    return MPI.Comm.Create_keyval(delete_fn=lambda comm, key, ours: ours.close())


_ranks_counted = 0  # the number of ranks among which this node's cores have been shared out


def _divide_cores(ours: MPIComm) -> None:
    """Limit BLAS to this rank's share of the node's cores.

    That is done at the first communicator, and at each that has more ranks on this node than the
    launcher and those before told of. The first rank of a node warns if the node has fewer cores
    than BLAS threads.
    """
    global _ranks_counted
    here, ranks = ours.node, max(ours.node.ranks, count_started())
    if ranks <= _ranks_counted:
        return
    _ranks_counted = ranks
    threads = config.settings.threads or cores.share(ranks)
    blas.hold(threads)
    if threads > 1 and threads * here.ranks > here.cores and ours.homes[ours.rank] == ours.rank:
        warnings.warn(
            f"{here.ranks} ranks x {threads} BLAS threads on a node of {here.cores} cores: set PDLA_THREADS="
            f"{max(1, here.cores // here.ranks)}, or have the launcher bind each rank to cores of its own",
            stacklevel=2,
        )
