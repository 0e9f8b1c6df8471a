"""A plan in HTML, for one rank: the parts of A, B and C that it holds and receives, by the layouts alone."""

from __future__ import annotations

from pdla import show
from pdla.errors import LayoutError
from pdla.grid import ProcessGrid
from pdla.layout import Layout, Shape, check_drawable
from pdla.matmul.plan.description import Description


def draw(plan: Description) -> str:
    """Local: draw the plan, without dry runs, as it was chosen by the same words.

    An idle rank shows the first one's parts.
    """
    grid, size = plan.grid, plan.dtype.itemsize
    rank = grid.comm.rank if grid.active else int(grid.ranks.flat[0])
    received, moved, bound = (show.with_unit(size * words, "B") for words in (plan.words, plan.moved, plan.bound))
    rows = [
        ("algorithm", plan.full_name), ("grid", repr(grid)), ("roles", str(plan.roles) or "one rank"),
        ("a rank receives", f"{received} for the product, {moved} for conversions; some rank must receive {bound}"),
    ]  # fmt: skip
    try:
        faces = [_draw_face(plan, i, rank) for i in range(3)]
    except LayoutError:
        faces = []
    legend = show.swatch(show.OWN, f"rank {rank} holds") + show.swatch(show.COMING, "receives; of C computes, for others too")
    return show.heading(repr(plan)) + show.table((), rows) + (show.set_in_row(*faces) + legend if faces else "")


def _draw_face(plan: Description, i: int, rank: int) -> str:
    """Draw one of A, B and C, to scale."""
    X, needed = (plan.A, plan.B, plan.C)[i], plan.roles.layouts[i]
    name = f"{'ABC'[i]}, {X.shape[0]} x {X.shape[1]}"
    return show.faces(name, X.shape, [
        (show.COMING, _find_spans(needed, X.shape, plan.grid, rank)), (show.OWN, _find_spans(X.layout, X.shape, X.grid, rank)),
    ])  # fmt: skip


def _find_spans(layout: Layout, shape: Shape, grid: ProcessGrid, rank: int) -> show.Spans:
    """Find the rows and the columns that a rank has in this layout."""
    for n, cuts in zip(shape, (layout.rows, layout.cols), strict=True):
        check_drawable(n, cuts, grid.sizes)
    rows, cols = layout.indices(shape, grid.sizes, grid.coords_of(rank))
    return show.densities(rows.starts, rows.stops, shape[0]), show.densities(cols.starts, cols.stops, shape[1])
