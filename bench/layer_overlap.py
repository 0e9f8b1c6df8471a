"""How much of a transformer's communication is hidden behind its products, by shards: Tensor3D, ranks as threads.

python -m bench.layer_overlap [ratio]        time of a linear's product over that of its messages (default 2)

A product is a sleep, as if each rank had its own machine; an array travels as long as its bytes take at a given bandwidth. For
1, 2 and 4 shards, forward and backward: seconds of the products alone (verbs return at once), of the communication alone
(products take no time), of both; and the share hidden, (products + communication - both) / communication.
"""

import time
from contextlib import nullcontext
from unittest.mock import patch

import numpy as np

import pdla
from bench.common.given import started
from pdla import nn
from pdla.array import numpy as local
from pdla.bench.arguments import above_zero
from pdla.bench.measure.peak import elapsed
from pdla.comm.pending import done
from pdla.comm.threads import ThreadComm

GRID, AXES = (2, 2, 2), ("row", "col", "depth")
SEQUENCE, SEQUENCES, HIDDEN, HEADS, LAYERS = 16, 16, 64, 4, 1
PASSES = 2
MESSAGE = 0.1  # seconds that half of an all-reduce of tokens x HIDDEN takes
BANDWIDTH = SEQUENCE * SEQUENCES // 2 * HIDDEN * 8 / 2 / MESSAGE  # bytes a second


def passes(comm, shards):
    """Collective: seconds of the fastest forward and of the fastest backward pass."""
    scheme = nn.Tensor3D(pdla.ProcessGrid(GRID, AXES, comm), shards=shards)
    layers = [nn.TransformerLayer(scheme, HIDDEN, HEADS, sequence=SEQUENCE, name=f"layer{i}") for i in range(LAYERS)]
    net = nn.Sequential(scheme, layers)
    x = scheme.shard(np.zeros((SEQUENCES * SEQUENCE, HIDDEN)), sequence=SEQUENCE)
    seconds = []
    for _ in range(PASSES):
        y = []
        seconds.append((elapsed(comm, lambda: y.append(net.forward(x))), elapsed(comm, lambda: net.backward(y[0]))))  # noqa: B023
    return [min(each) for each in zip(*seconds, strict=True)]


def silent():
    """Replace the verbs that layers use by ones that send nothing and return at once."""
    return patch.multiple(
        ThreadComm, allgather=lambda comm, x, outs, verb="", gather_buffer=None: done(outs),
        reduce_scatter=lambda comm, parts, out, verb="", op="": done(out),
    )


def slept(seconds):
    """Replace GEMMs by sleeps: `seconds` for a linear of HIDDEN x HIDDEN and all tokens of a rank, others by their work."""
    whole = SEQUENCE * SEQUENCES // 2 * HIDDEN * HIDDEN // 4

    def gemm(a, b, c, alpha=1, beta=0, room=None, alike=False):
        c[...] = 0
        time.sleep(seconds * a.shape[0] * a.shape[1] * b.shape[1] / whole)

    return patch.object(local, "gemm", gemm)


def main(ratio=2.0):
    print(f"{dict(zip(AXES, GRID, strict=True))}, {LAYERS} layers, {BANDWIDTH / 1e6:.1f} MB a second")
    print(f"{'shards':>6}{'pass':>10}{'products s':>12}{'comm. s':>10}{'both s':>10}{'hidden':>8}")
    for shards in (1, 2, 4):
        work = ratio * 2 * MESSAGE
        settings = ((silent(), slept(work)), (nullcontext(), slept(0)), (nullcontext(), slept(work)))
        seconds = []
        for verbs, products in settings:
            with verbs, products, np.errstate(all="ignore"):
                seconds.append(pdla.run(int(np.prod(GRID)), passes, shards, bandwidth=BANDWIDTH)[0])
        for name, (alone, communication, both) in zip(("forward", "backward"), zip(*seconds, strict=True), strict=True):
            hidden = (alone + communication - both) / communication
            print(f"{shards:6}{name:>10}{alone:12.3f}{communication:10.3f}{both:10.3f}{hidden:8.0%}", flush=True)


if __name__ == "__main__":
    started(main, above_zero, __doc__)
