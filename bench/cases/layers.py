"""The memory of transformer layers, and the time of a dry run of many layers on many ranks."""

import time
import tracemalloc

import numpy as np

import pdla
from bench.common.case import case
from bench.common.schemes import SHOWN
from pdla import nn
from pdla.bench.arguments import positive
from pdla.model.machine import Machine

SEQUENCES, SEQUENCE, HIDDEN, HEADS = 16, 64, 128, 8  # of layer_memory
MIB = 2**20


@case(
    "scheme:<30 | parameters:12.3f | gradients:11.3f | state:8.3f | kept:8.3f | peak:8.3f | kept, recomputed:18.3f | peak:8.3f"
)
def layer_memory():
    """The memory of a transformer layer on a rank in every scheme, and the peak of a pass.

    Ranks are threads; float64; MiB. Columns have rank 0's parameters, gradients and AdamW state, and
    what forward keeps for backward. The peak is that of a pass forward and backward, beyond
    parameters and x, as tracemalloc counts it for all ranks, over their number.
    """
    yield f"{SEQUENCES} sequences of {SEQUENCE}, {HIDDEN} features, {HEADS} heads; MiB a rank"
    for name, (ranks, make) in SHOWN.items():
        whole, recomputed = (np.array(pdla.run(ranks, measure_memory, make, recompute)[0]) / MIB for recompute in (False, True))
        yield name, *whole, *recomputed[3:]


def measure_memory(comm, make, recompute):
    """Collective: bytes of parameters, gradients, AdamW's state, and kept activations; a rank's peak."""
    scheme = make(comm)
    layer = nn.TransformerLayer(scheme, HIDDEN, HEADS, sequence=SEQUENCE, recompute=recompute)
    x = scheme.shard(np.ones((SEQUENCES * SEQUENCE, HIDDEN)), sequence=SEQUENCE)
    layer.backward(layer.forward(x))  # the first pass makes communicators and caches
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


@case()
def million(layers: positive = 96):
    """Times the dry run of a large transformer on a million ranks, forward and backward."""
    start = time.perf_counter()
    _, ledger = pdla.dry_run(10**6, run_large, layers, machine=Machine.load("a100x4"))
    yield f"{layers} layers of 12288 on 1,000,000 ranks, dry: {time.perf_counter() - start:.1f} s"
    received = f"{ledger.bytes_received:,} bytes in {ledger.messages:,} messages"
    yield f"a rank would receive {received} and take {ledger.seconds:.2f} s"


def run_large(comm, layers, hidden=12288, sequence=2048, batch=25000):
    scheme = nn.Tensor3D(pdla.ProcessGrid((1000, 8, 5, 25), ("data", "row", "col", "depth"), comm))
    options = {"sequence": sequence, "dtype": "float32"}
    net = nn.Sequential(scheme, [nn.TransformerLayer(scheme, hidden, 96, name=f"layer{i}", **options) for i in range(layers)])
    x = pdla.zeros((batch * sequence, hidden), scheme.grid, scheme.residual(sequence), dtype="float32")
    net.backward(net.forward(x))
