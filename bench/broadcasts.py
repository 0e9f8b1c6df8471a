"""Milliseconds of a broadcast in each of pdla's ways, by message size: which way is best where.

mpirun -n 4 python -m bench.broadcasts [repeats]
python -m bench.cluster --hosts 4 -- python -m bench.broadcasts

Broadcasts one after another, from several roots in turn; figures are medians, over roots and repeats, of the slowest rank's time.
"""

from contextlib import contextmanager
from statistics import median
from unittest.mock import patch

import numpy as np

import pdla
from bench.common.given import say, started
from pdla.bench.arguments import positive
from pdla.bench.measure.peak import elapsed
from pdla.comm.collectives import broadcast

WAYS = [(way, 0) for way in ("auto", "mpi", "flat", "chain")] + [("chain", chunk << 10) for chunk in (256, 1024)]  # and chunks
SIZES = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]


@contextmanager
def sent(way, chunk):
    """Broadcasts go this way; auto: as pdla chooses."""
    best = broadcast.best if way == "auto" else lambda *_: way
    with patch.object(broadcast, "best", best), patch.object(broadcast, "CHUNK", chunk or broadcast.CHUNK):
        yield


def main(repeats=5):
    comm = pdla.world()
    tell = say(comm)
    tell(f"{comm.size} ranks on {len(set(comm.homes))} nodes of {comm.node.cores} cores")
    tell(f"{'KiB':>8}" + "".join(f"{way + (f' {chunk >> 10}' if chunk else ''):>12}" for way, chunk in WAYS))
    for size in SIZES:
        x = np.zeros((size >> 12, 512))
        times = {way: [] for way in WAYS}
        for _ in range(repeats):
            for root in range(0, comm.size, max(1, comm.size // 4)):
                for way, chunk in WAYS:
                    with sent(way, chunk):
                        times[way, chunk].append(1e3 * elapsed(comm, lambda: comm.bcast(x, root).wait()))  # noqa: B023
        tell(f"{size >> 10:8}" + "".join(f"{median(times[way]):12.2f}" for way in WAYS), flush=True)


if __name__ == "__main__":
    started(main, positive, __doc__)
