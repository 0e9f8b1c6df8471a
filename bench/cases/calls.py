"""The numbers of Python calls of products, layers, solutions and factorizations."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pdla
from bench.common.case import case
from pdla import nn
from pdla.bench.arguments import positive

FOLDER = str(Path(pdla.__file__).parent)
WAITS = {
    ("communicator.py", "MPIComm._wait_until"),
    ("barrier.py", "SharedBarrier.wait"),
    ("threads.py", "World.wait_until"),
    ("threads.py", "World.notify"),
}
LAYOUTS = {
    "2-D blocks": pdla.Layout("row", "col"),
    "block-cyclic": pdla.Layout(pdla.Cyclic("row", 64), pdla.Cyclic("col", 64)),
}


def count_calls(work: Callable[[], Any]) -> int:
    """Count the calls within pdla of `work`, without waits."""
    return count_by_file(work)[0]


def count_by_file(work: Callable[[], Any]) -> tuple[int, int]:
    """Count the calls within pdla of `work`, without waits, and the files of all calls."""
    calls = inside = 0
    files = set()

    def watch(frame: Any, event: str, _: Any) -> None:
        nonlocal calls, inside
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(FOLDER):
            return
        wait = (Path(frame.f_code.co_filename).name, frame.f_code.co_qualname) in WAITS
        if event == "call":
            inside += wait
            calls += not inside
            files.add(frame.f_code.co_filename)
        else:
            inside -= wait

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls, len(files)


def count_products(comm: Any, layout: pdla.Layout, n: int = 400) -> list[int]:
    """Calls of the first product of two n x n matrices, of the third, and of the first in a new shape."""
    grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm)
    A, B = (pdla.ones((n, n), grid, layout) for _ in range(2))
    first = count_calls(lambda: A @ B)
    A @ B
    later = count_calls(lambda: A @ B)
    D, E = pdla.ones((n + 17, n + 3), grid, layout), pdla.ones((n + 3, n + 5), grid, layout)
    return [first, later, count_calls(lambda: D @ E)]


def count_oblong(comm: Any) -> list[int]:
    """Calls of the first and of the third product of 700 x 500 by 500 x 900, in 2-D blocks."""
    grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm)
    A, B = (pdla.ones(shape, grid, LAYOUTS["2-D blocks"]) for shape in ((700, 500), (500, 900)))
    first = count_calls(lambda: A @ B)
    A @ B
    return [first, count_calls(lambda: A @ B)]


def make_system(comm: Any) -> dict[str, Any]:
    """The calls on a positive definite matrix of 256 rows in 2-D blocks, by name."""
    n, grid = 256, pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm)
    A, b = pdla.random((n, n), grid, LAYOUTS["2-D blocks"], seed=1) + pdla.eye(n, grid, LAYOUTS["2-D blocks"]) * n, np.ones(n)
    return {"solve(A, b)": lambda: pdla.linalg.solve(A, b), "cholesky(A)": lambda: pdla.linalg.cholesky(A)}


SYSTEMS = ("solve(A, b)", "cholesky(A)")


def count_systems(comm: Any, name: str) -> list[int]:
    """Calls of the first and of the third solution or factorization, and the files of the third."""
    work = make_system(comm)[name]
    first = count_calls(work)
    work()
    return [first, *count_by_file(work)]


SCHEMES = (nn.Summa2D, nn.Tensor3D)


def count_passes(comm: Any, scheme: type[nn.Scheme]) -> list[int]:
    """Calls of the second forward and of the second backward pass of a Linear of 64 by 64 features."""
    layer = nn.Linear(scheme(pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm)), 64, 64)
    x = layer.scheme.shard(np.ones((32, 64)))
    y = layer.forward(x)
    layer.backward(y)
    return [count_calls(lambda: layer.forward(x)), count_calls(lambda: layer.backward(y))]


def read_world(word: str) -> int:
    """The number of dry ranks; 0: threads."""
    return 0 if word == "threads" else positive(word)


@case("what:<32 | first:8.0f | later:8.0f | new shape:12.0f | files:8.0f")
def calls(dry: read_world = None):
    """Python calls of a first and of a later product, solution and factorization, and of passes.

    Products also have the first call of a new shape, on a grid that has multiplied. A linear's second
    pass has the calls forward and backward. Calls are frames of functions and generators of pdla/, on
    rank 0. Solutions and factorizations also count their files. Waits, and the calls inside them, are
    left out: their number depends on the other ranks.

    python -m bench calls 1024        run dry, as rank 0 of so many
    python -m bench calls threads     on 4 ranks that are threads
    mpirun -n 4 python -m bench calls on ranks of MPI; PDLA_SHARED=0 sends messages on one node, too
    """
    comm = pdla.world() if dry is None else None

    def run(program: Callable[..., list[int]], *arguments: Any) -> list[int]:
        if comm is not None:
            return program(comm, *arguments)
        return pdla.dry_run(dry, program, *arguments)[0] if dry else pdla.run(4, program, *arguments)[0]

    rows = [["700 x 500 by 500 x 900", *run(count_oblong), None, None]]  # first in this process
    rows += [[f"400 x 400, {name}", *run(count_products, layout), None] for name, layout in LAYOUTS.items()]
    for name in SYSTEMS:
        first, later, files = run(count_systems, name)
        rows.append([f"256 x 256, {name}", first, later, None, files])
    rows += [[f"a pass of a linear, {scheme.__name__}", *run(count_passes, scheme), None, None] for scheme in SCHEMES]
    if comm is None or comm.rank == 0:
        yield from rows
