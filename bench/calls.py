"""How many Python calls a product takes: the first of two matrices on a grid, one of a new shape, and those after it; and how
many the second forward and backward pass of a linear layer do.

    python -m bench.calls 1024                    run dry, as rank 0 of so many
    mpirun -n 4 python -m bench.calls             on ranks of MPI; PDLA_SHARED=0 sends messages on one node, too

Counted are the frames of functions and generators of pdla/, on rank 0. What runs inside a wait is left out: how often it looks
depends on the other ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pdla
from bench.common.given import say, started
from pdla import nn
from pdla.bench.arguments import positive

FOLDER = str(Path(pdla.__file__).parent)
WAITS = {("communicator.py", "MPIComm._until"), ("barrier.py", "SharedBarrier.wait"), ("threads.py", "World.wait_until")}
LAYOUTS = {
    "2-D blocks": pdla.Layout("row", "col"),
    "block-cyclic": pdla.Layout(pdla.Cyclic("row", 64), pdla.Cyclic("col", 64)),
}


def counted(work: Callable[[], Any]) -> int:
    """The calls within pdla that `work` makes."""
    calls = inside = 0

    def watch(frame: Any, event: str, _: Any) -> None:
        nonlocal calls, inside
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(FOLDER):
            return
        waits = (Path(frame.f_code.co_filename).name, frame.f_code.co_qualname) in WAITS
        if event == "call":
            calls += not inside
            inside += waits
        else:
            inside -= waits

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def products(comm: Any, layout: pdla.Layout, n: int = 400) -> list[int]:
    """Calls of the first product of two n x n matrices, of the one after the next, and of the first in a new shape."""
    grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm)
    A, B = (pdla.ones((n, n), grid, layout) for _ in range(2))
    first = counted(lambda: A @ B)
    A @ B
    later = counted(lambda: A @ B)
    D, E = pdla.ones((n + 17, n + 3), grid, layout), pdla.ones((n + 3, n + 5), grid, layout)
    return [first, later, counted(lambda: D @ E)]


SCHEMES = (nn.Summa2D, nn.Tensor3D)


def passes(comm: Any, scheme: type[nn.Scheme]) -> list[int]:
    """Calls of the second forward and of the second backward pass of a Linear of 64 by 64 features."""
    layer = nn.Linear(scheme(pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm)), 64, 64)
    x = layer.scheme.shard(np.ones((32, 64)))
    y = layer.forward(x)
    layer.backward(y)
    return [counted(lambda: layer.forward(x)), counted(lambda: layer.backward(y))]


def main(ranks: int = 0) -> None:
    comm = None if ranks else pdla.world()
    tell = print if comm is None else say(comm)

    def told(program: Callable[..., list[int]], *what: Any) -> list[int]:
        return program(comm, *what) if comm else pdla.dry_run(ranks, program, *what)[0]

    tell(f"{f'Python calls on {ranks or comm.size} ranks':32}{'first':>8}{'later':>8}{'new shape':>12}")
    for name, layout in LAYOUTS.items():
        first, later, new = told(products, layout)
        tell(f"{name:32}{first:8}{later:8}{new:12}")
    tell(f"{'A linear, its second pass':32}{'forward':>8}{'backward':>9}")
    for scheme in SCHEMES:
        forward, backward = told(passes, scheme)
        tell(f"{scheme.__name__:32}{forward:8}{backward:9}")


if __name__ == "__main__":
    started(main, positive, __doc__)
