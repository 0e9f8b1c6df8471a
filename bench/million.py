"""Times the dry run of a large transformer on a million ranks, forward and backward: python -m bench.million [layers = 96]"""

import time

import pdla
from bench.common.given import started
from pdla import nn
from pdla.bench.arguments import positive
from pdla.model.machine import Machine

GRID, AXES = (1000, 8, 5, 25), ("data", "row", "col", "depth")
HIDDEN, HEADS, SEQUENCE, BATCH = 12288, 96, 2048, 25000


def program(comm, layers):
    scheme = nn.Tensor3D(pdla.ProcessGrid(GRID, AXES, comm))
    one = {"sequence": SEQUENCE, "dtype": "float32"}
    net = nn.Sequential(scheme, [nn.TransformerLayer(scheme, HIDDEN, HEADS, name=f"layer{i}", **one) for i in range(layers)])
    shape = BATCH * SEQUENCE, HIDDEN
    net.backward(net.forward(pdla.zeros(shape, scheme.grid, scheme.residual(SEQUENCE), dtype="float32")))


def main(layers=96):
    start = time.perf_counter()
    _, ledger = pdla.dry_run(10**6, program, layers, machine=Machine.load("a100x4"))
    taken = time.perf_counter() - start
    print(f"{layers} layers of {HIDDEN} on 1,000,000 ranks, dry: {taken:.1f} s")
    print(f"a rank would receive {ledger.bytes_received:,} bytes in {ledger.messages:,} messages and take {ledger.seconds:.2f} s")


if __name__ == "__main__":
    started(main, positive, __doc__)
