"""PyTorch's DTensor on gloo. The variant is the cut of A and B, which decides what is gathered or reduced:

rows    A and B by rows: B is gathered.     depth  A by columns, B by rows: addends of C, reduced to its rows.
blocks  A, B and C in 2-D blocks.
"""

import os
import socket
from functools import cache

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from bench.common.product import Product, Side, choose_grid, cut_evenly, make_block


@cache
def start_gloo() -> None:
    """Collective: the process group, over the loopback interface."""
    torch.set_num_threads(1)
    comm = MPI.COMM_WORLD
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = comm.bcast(probe.getsockname()[1])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", rank=comm.rank, world_size=comm.size)


@cache
def make_mesh(*shape: int) -> DeviceMesh:
    return init_device_mesh("cpu", shape)


def make(comm: MPI.Comm, product: Product, variant: str) -> Side:
    start_gloo()
    pr, pc = choose_grid(comm.size) if variant == "blocks" else (comm.size, 1)
    i, j = divmod(comm.rank, pc)
    m, n, k = product.m, product.n, product.k
    whole = np.arange
    by_rows, in_blocks = [Shard(0)], [Shard(0), Shard(1)]
    if variant == "blocks":
        index_sets = [(cut_evenly(r, pr, i), cut_evenly(c, pc, j)) for r, c in ((m, k), (k, n), (m, n))]
        cuts, mesh = (in_blocks, in_blocks, in_blocks), make_mesh(pr, pc)
    elif variant == "depth":
        index_sets = [(whole(m), cut_evenly(k, pr, i)), (cut_evenly(k, pr, i), whole(n)), (cut_evenly(m, pr, i), whole(n))]
        cuts, mesh = ([Shard(1)], by_rows, by_rows), make_mesh(pr)
    else:
        index_sets = [(cut_evenly(rows, pr, i), whole(cols)) for rows, cols in ((m, k), (k, n), (m, n))]
        cuts, mesh = (by_rows, by_rows, by_rows), make_mesh(pr)
    a, b = (make_block(*indices, product.dtype) for indices in index_sets[:2])
    left, right = (
        DTensor.from_local(torch.from_numpy(x.array), mesh, how, run_check=False)
        for x, how in zip((a, b), cuts, strict=False)
    )

    def multiply() -> np.ndarray:
        C = torch.matmul(left, right).redistribute(mesh, cuts[2])
        return C.to_local().numpy()

    return Side(a, b, index_sets[2], multiply, about=f"PyTorch {torch.__version__}")
