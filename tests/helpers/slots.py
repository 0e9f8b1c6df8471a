"""What ranks write to slots, and what each of them should read there; and ranks that are as late as the others allow."""

import time

import numpy as np

from pdla.comm.slots import COUNT, Slots

ALL = slice(None)


def written(comm, turns=3 * COUNT, haste=lambda rank, k: 0):
    """What this rank reads: in turn arrays of one rank, and arrays of which each rank has written every P-th row."""
    read = []
    with Slots(comm, comm.xp, 12 * comm.size, np.dtype(float)) as slots:
        for k in range(turns):
            root = k % comm.size
            x = slots.take(5, comm.rank == root)
            if comm.rank == root:
                comm.xp.copy(x, comm.xp.asarray(np.arange(5.0) + k))
            read.append(slots.bcast(x, {root: (ALL,)}).wait().copy())
            time.sleep(haste(comm.rank, k))
            y = slots.take(12 * comm.size, True).reshape(4 * comm.size, 3)
            rows = {r: [slice(i, i + 1) for i in range(r, 4 * comm.size, comm.size)] for r in range(comm.size)}
            for row in rows[comm.rank]:
                comm.xp.copy(y[row], comm.xp.asarray(np.full((1, 3), 100.0 * k + row.start)))
            read.append(slots.bcast(y, rows).wait().copy())
            slots.release()
            slots.release()
    return read


def wanted(size, turns=3 * COUNT):
    for k in range(turns):
        yield np.arange(5.0) + k
        yield np.full((4 * size, 3), 100.0 * k) + np.arange(4.0 * size)[:, None]


def when_others_wait(comm, patience=10):
    """Go on once all other ranks of the world of threads wait, or have ended."""
    awaits(lambda: all_wait(comm), patience)


def all_wait(comm):
    with comm.world.lock:
        return comm.world.alive <= {*comm.world.waiting, comm.me}


def awaits(ready, patience=10):
    """Poll until `ready` is true, as what it depends on wakes nobody; fails where that takes long."""
    end = time.monotonic() + patience
    while not ready():
        assert time.monotonic() < end, "what is waited for does not come: a rank sleeps on"
        time.sleep(1e-4)
