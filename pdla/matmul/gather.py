"""All at once: every rank gathers the blocks of A and B that it needs, and multiplies each where it arrives.

On a pr x pc grid with A, B and C in 2-D blocks a rank receives (mk/P)(pc - 1) + (kn/P)(pr - 1) words in (pc - 1) + (pr - 1)
messages, and needs as much workspace. Agarwal, Balle, Gustavson, Joshi, Palkar, IBM J. Res. Dev. 39 (1995).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from pdla.comm.base import Communicator
from pdla.comm.ledger import buffer
from pdla.layout import IndexSet, Selection
from pdla.matmul.operands import ALL, Memo, Sink, assemble, blocks, extra_axes
from pdla.matmul.roles import Roles
from pdla.matrix import DistMatrix


class Product(NamedTuple):
    """A tile of A and a tile of B that meet: where in each, and where in C."""

    in_a: Selection
    in_b: Selection
    rows: Selection
    cols: Selection
    part: tuple[int, int]


@dataclass(frozen=True)
class Script:
    """What a rank will do: the index sets of A's and B's tiles by rank, and the products of those that meet."""

    A: list[tuple[IndexSet, IndexSet]]
    B: list[tuple[IndexSet, IndexSet]]
    products: dict[tuple[int, int], Product]

    @staticmethod
    def of(a: DistMatrix, b: DistMatrix, roles: Roles, axes_a: tuple[str, ...], axes_b: tuple[str, ...]) -> Script:
        tiles_a, tiles_b = (blocks(X, axes) if axes else [X.indices] for X, axes in ((a, axes_a), (b, axes_b)))
        held = roles.C.indices((a.shape[0], b.shape[1]), a.grid.sizes, a.grid.coords or {})
        pairs = ((i, j) for i in range(len(tiles_a)) for j in range(len(tiles_b)))
        products = {(i, j): _product(tiles_a[i], tiles_b[j], held) for i, j in pairs if not _apart(tiles_a[i][1], tiles_b[j][0])}
        return Script(tiles_a, tiles_b, {pair: product for pair, product in products.items() if product is not None})


def _apart(cols: IndexSet, rows: IndexSet) -> bool:
    """Whether all of one lie before or behind the other; most do where many tiles meet."""
    if not (len(cols.starts) and len(rows.starts)):
        return True
    return bool(cols.stops[-1] <= rows.starts[0] or rows.stops[-1] <= cols.starts[0])


def _product(a: tuple[IndexSet, IndexSet], b: tuple[IndexSet, IndexSet], held: tuple[IndexSet, IndexSet]) -> Product | None:
    in_a, in_b, width = a[1].overlay(b[0])
    if not (width and len(a[0]) and len(b[1])):
        return None
    rows, cols = held[0].overlay(a[0])[0], held[1].overlay(b[1])[0]
    return Product(in_a, in_b, rows, cols, (int(a[0].starts[0]), int(b[1].starts[0])))


def run(a: DistMatrix, b: DistMatrix, roles: Roles, sink: Sink | None, memo: Memo) -> None:
    """Collective: sink += a b in the roles' layouts."""
    axes_a, axes_b = memo.once("axes", lambda: [extra_axes(X.layout, to, X.grid.sizes) for X, to in ((a, roles.A), (b, roles.B))])
    a, b = (X if axes else assemble(X, to, memo) for X, axes, to in ((a, axes_a, roles.A), (b, axes_b, roles.B)))
    comms = [X.grid[axes] if axes else None for X, axes in ((a, axes_a), (b, axes_b))]
    if sink is None:
        return
    script = memo.once("script", lambda: Script.of(a, b, roles, axes_a or (), axes_b or ()))
    here_a, coming_a = _tiles(a, comms[0], script.A)
    here_b, coming_b = _tiles(b, comms[1], script.B)
    _multiply(script, here_a, here_b, sink)
    for i in coming_a:
        _multiply(script, {i: here_a[i]}, here_b, sink)
    for j in coming_b:
        _multiply(script, here_a, {j: here_b[j]}, sink)
    sink.end()


def _tiles(X: DistMatrix, comm: Communicator | None, held: list[tuple[IndexSet, IndexSet]]) -> tuple[dict[int, Any], Iterator[int]]:
    """The tiles of an operand that are here, and those that come, put there in order of arrival; all have been asked for."""
    if comm is None:
        return {0: X.stored}, iter(())
    here = {comm.rank: X.stored}
    shapes = [(len(cols), len(rows)) if X.transposed else (len(rows), len(cols)) for rows, cols in held]
    outs = [None if r == comm.rank else buffer(X.xp, shape, X.dtype) for r, shape in enumerate(shapes)]
    arrivals = comm.allgather(X.base, outs)

    def coming() -> Iterator[int]:
        for r in arrivals:
            arrived: Any = outs[r]
            here[r] = arrived.T if X.transposed else arrived
            yield r

    return here, coming()


def _multiply(script: Script, tiles_a: dict[int, Any], tiles_b: dict[int, Any], sink: Sink) -> None:
    for i, a in tiles_a.items():
        for j, b in tiles_b.items():
            if (p := script.products.get((i, j))) is not None:
                sink.add(sink.xp.take(a, ALL, p.in_a), sink.xp.take(b, p.in_b, ALL), p.rows, p.cols, p.part)
