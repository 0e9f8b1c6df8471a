"""Data of the verbs, rank by rank, however it lies; and ranks placed on nodes."""


import numpy as np
import pytest

from pdla import config
from pdla.comm.collectives import broadcast
from pdla.comm.ledger import record

PIECE = 512 << 10  # bytes
every_layout = pytest.mark.parametrize("how", ["C", "transposed", "gaps"])
every_way = pytest.mark.parametrize("way", [*broadcast.WAYS])
DTYPES = ["float64", "complex64", "float16", "int8", "bool", *["longdouble"] * (config.settings.array == "numpy")]
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def laid(xp, how, shape, dtype="float64"):
    """An array of this shape that lies in memory so or so."""
    m, n = shape
    if how == "C":
        return xp.empty(shape, dtype)
    return xp.empty((n, m), dtype).T if how == "transposed" else xp.empty((2 * m, n + 3), dtype)[::2, 2 : n + 2]


def numbers(rank, shape, dtype="float64"):
    """Small integers that tell ranks and places apart."""
    return ((np.arange(np.prod(shape)).reshape(shape) * 7 + rank * 3) % 11).astype(dtype)


def of_rank(comm, how, rank, shape, dtype="float64"):
    """numbers(rank, ...), or no data in the dry world."""
    x = laid(comm.xp, how, shape, dtype)
    if comm.xp.name != "meta":
        comm.xp.copy(x, comm.xp.asarray(numbers(rank, shape, dtype)))
    return x


def broadcast_by(way, comm, monkeypatch):
    """Let all worlds broadcast this way, a chain in chunks of some hundred bytes."""
    monkeypatch.setattr(comm, "tree", True)
    monkeypatch.setattr(broadcast, "choose", lambda *_: way)
    monkeypatch.setattr(broadcast, "CHUNK", 500)


def every_verb(comm, how):
    """All verbs on uneven, empty and strided arrays, on the world and on a group; gives copies of what came."""
    me, size, came = comm.rank, comm.size, []
    group = comm.split([r for r in range(size) if r % 2 == me % 2], "row")
    for c in (comm, group):
        shapes = [(r % 3, 4) for r in range(c.size)]
        outs = [laid(c.xp, how, shape) for shape in shapes]
        came += c.allgather(of_rank(c, how, me, shapes[c.rank]), outs).wait()
        parts = [of_rank(c, how, me + r, (r % 3, 4)) for r in range(c.size)]
        came.append(c.reduce_scatter(parts, laid(c.xp, how, (c.rank % 3, 4))).wait())
        came.append(c.allreduce(of_rank(c, "C", me, (7, 3))).wait())
        came.append(c.shift(of_rank(c, how, me, (2, 5), "complex64"), laid(c.xp, how, (2, 5), "complex64")).wait())
        for root in range(c.size):
            came.append(c.bcast(of_rank(c, how, me, (root, 9), "float32"), root).wait())
            total = c.reduce(of_rank(c, how, me, (3, 2)), root).wait()
            came += [] if total is None else [total]
        sent = c.send(of_rank(c, how, me, (2, 2)), (c.rank + 1) % c.size, 7)
        came.append(c.recv(laid(c.xp, how, (2, 2)), (c.rank - 1) % c.size, 7).wait())
        sent.wait()
    return [x.copy() for x in came]


def recorded(comm, how):
    with record() as ledger:
        came = every_verb(comm, how)
    return came, ledger


every_place = pytest.mark.parametrize(
    "place", [lambda r: r, lambda r: r // 2, lambda r: r % 2, lambda r: min(r, 1), lambda r: max(r, 2)],
    ids=["one a node", "pairs", "interleaved", "one alone", "three and the others alone"],
)


def around(comm):
    """The way of an all-gather of any length there."""
    return "" if comm.nodes == 1 or comm.size == 2 else "ring"
