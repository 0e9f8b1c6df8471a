"""What a transformer layer holds on a rank in every scheme, and the peak of a pass: python -m bench.layer_memory

Ranks are threads; float64; MiB. Rank 0's parameters, gradients and AdamW's state; what it keeps from forward to backward; and the
peak of one pass forward and backward beyond parameters and x, as Python counts it (tracemalloc) for all ranks, over their number.
"""

import tracemalloc

import numpy as np

import pdla
from bench.common.given import started
from bench.common.schemes import SHOWN
from pdla import nn

SEQUENCES, SEQUENCE, HIDDEN, HEADS = 16, 64, 128, 8
MIB = 2**20


def held(comm, make, recompute):
    """Collective: this rank's bytes of parameters, gradients, AdamW's state and what is kept; and the peak of all ranks over their
    number."""
    scheme = make(comm)
    layer = nn.TransformerLayer(scheme, HIDDEN, HEADS, sequence=SEQUENCE, recompute=recompute)
    x = scheme.shard(np.ones((SEQUENCES * SEQUENCE, HIDDEN)), sequence=SEQUENCE)
    layer.backward(layer.forward(x))  # a first pass, which makes communicators and caches
    for parameter in layer.all_parameters():
        parameter.gradient = None
    comm.barrier()
    if comm.rank == 0:
        tracemalloc.start()
    comm.barrier()
    y = layer.forward(x)
    kept = layer.kept_bytes()
    layer.backward(y)
    comm.barrier()
    peak = tracemalloc.get_traced_memory()[1]
    comm.barrier()
    if comm.rank == 0:
        tracemalloc.stop()
    optimizer = nn.AdamW(layer)
    optimizer.step()
    state = sum(block.nbytes for blocks in optimizer.state.values() for block in blocks)
    matrices = [sum(X.stored.nbytes for X in of().values()) for of in (layer.parameters, layer.gradients)]
    return [*matrices, state, kept, peak / comm.size]


def main():
    print(f"{SEQUENCES} sequences of {SEQUENCE}, {HIDDEN} features, {HEADS} heads; MiB a rank")
    print(f"{'':30}{'parameters':>12}{'gradients':>11}{'state':>8}{'kept':>8}{'peak':>8}{'kept':>14}{'peak, recomputed':>18}")
    for name, (ranks, make) in SHOWN.items():
        whole, again = (np.array(pdla.run(ranks, held, make, recompute)[0]) / MIB for recompute in (False, True))
        print(f"{name:30}{whole[0]:12.3f}{whole[1]:11.3f}{whole[2]:8.3f}{whole[3]:8.3f}{whole[4]:8.3f}{again[3]:14.3f}{again[4]:18.3f}")


if __name__ == "__main__":
    started(main, str, __doc__)
