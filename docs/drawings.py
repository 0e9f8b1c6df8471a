"""The drawings in docs/_static: `python docs/drawings.py`. Who owns what is asked of pdla itself, times of measured.md."""

import re
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

import pdla
from pdla.layout import Layout
from pdla.matmul.algorithms import tesseract
from pdla.matmul.algorithms.table import tabulate_box
from pdla.matmul.schedules import fetch
from pdla.matmul.schedules.cannon import list_part_pairs
from pdla.show import COLOURS, COMING, OWN

STATIC = Path(__file__).parent / "_static"
PALE, LINE = "#f2f2f2", "#666666"
PEERS = {"by hand": "o", "ScaLAPACK": "s", "DTensor": "^"}
OURS = ("pdla, own layouts", "shared", "pdla on 2")

LAYOUTS = {
    "blocks": (Layout(rows="row", cols="col"), (2, 2), (6, 6)),
    "rows": (Layout(rows="row"), (2, 2), (6, 6)),
    "ragged": (Layout(rows="row", cols="col"), (2, 3), (5, 7)),
    "nested": (Layout(rows=("row", "col")), (2, 2), (6, 6)),
    "cyclic": (Layout(rows=pdla.Cyclic("row", 1), cols=pdla.Cyclic("col", 2)), (2, 2), (6, 8)),
    "part": (Layout(rows=pdla.Cyclic("row", 1, source=1), cols=pdla.Cyclic("col", 2, source=1, first=1)), (2, 2), (5, 5)),
    "cuts": (Layout(rows=pdla.Cuts("row", (0, 1, 6)), cols="col"), (2, 2), (6, 6)),
    "units": (Layout(cols=pdla.Balanced("col", unit=4)), (1, 2), (2, 12)),
    "depth": (Layout(rows=("depth", "row"), cols="col"), (2, 2, 2), (8, 6)),
    "copies": (Layout(rows="row", cols="col"), (2, 2, 2), (8, 6)),
}


def draw_pieces(name, algorithm, here, step=None, q=3, n=6):
    """What one rank of a q x q grid holds of A, B and C, and what comes to it; `step`: the panel on its way."""
    places, needed = pdla.run(q * q, shares, algorithm, q, n)[here[0] * q + here[1]]
    figure, every = plt.subplots(1, 3, figsize=(6.6, 2.4))
    for axes, title, held, wanted in zip(every, "ABC", places, needed, strict=True):
        for i, j in product(range(n), range(n)):
            panel = {"A": j, "B": i}.get(title, 0)
            wants = i in wanted[0] and j in wanted[1] and (step is None or panel // 2 == step or title == "C")
            colour = OWN if i in held[0] and j in held[1] else COMING if wants else PALE
            cell(axes, i, j, colour, "")
        frame(axes, (n, n), n // q)
        axes.set_title(title, fontsize=11)
    save(figure, name)


def shares(comm, algorithm, q, n):
    grid = pdla.ProcessGrid((q, q), comm=comm)
    A = pdla.zeros((n, n), grid, Layout(rows="row", cols="col"))
    plan = pdla.plan_matmul(A, A, algorithm=algorithm)
    indices = [layout.indices((n, n), grid.sizes, grid.coords) for layout in (plan.roles.A, plan.roles.B, plan.roles.C)]
    as_lists = [[held.indices().tolist() for held in pair] for pair in (A.indices, *indices)]
    return [as_lists[0]] * 3, as_lists[1:]


def draw_table(name, table, mnk, here):
    """What the rank at `here` holds of A, B and C in a table's own layouts, and what it needs of them."""
    m, n, k = mnk
    sizes = dict(zip(table.axes, table.shape, strict=True))
    figure, every = plt.subplots(1, 3, figsize=(6.6, 2.4))
    faces = (("A", (m, k), table.A, table.roles.A), ("B", (k, n), table.B, table.roles.B), ("C", (m, n), table.C, table.roles.C))
    for axes, (title, shape, native, needed) in zip(every, faces, strict=True):
        held, wanted = (
            [part.indices().tolist() for part in layout.indices(shape, sizes, here)] for layout in (native, needed.summed)
        )
        for i, j in product(range(shape[0]), range(shape[1])):
            inside = i in wanted[0] and j in wanted[1]
            cell(axes, i, j, OWN if i in held[0] and j in held[1] else COMING if inside else PALE, "")
        frame(axes, shape)
        axes.set_title(title, fontsize=11)
    save(figure, name)


def draw_cannon(q=3):
    """Which blocks each rank multiplies, step by step."""
    figure, every = plt.subplots(1, q, figsize=(7.2, 2.6))
    for step, axes in enumerate(every):
        for i, j in product(range(q), range(q)):
            along_row = SimpleNamespace(parts=range(q), here=j, axes=("col",))
            along_col = SimpleNamespace(parts=range(q), here=i, axes=("row",))
            part = list_part_pairs(along_row, along_col)[step][0]
            cell(axes, i, j, COLOURS[part], f"A{i}{part} B{part}{j}")
        frame(axes, (q, q), 1)
        axes.set_title(f"step {step}", fontsize=11)
    save(figure, "cannon")


def draw_fetch(here=11, n=12):
    """The faces of one rank of a 2 x 2 x 4 box within 2-D blocks, and the step in which each part of them comes."""

    def program(comm):
        grid = pdla.ProcessGrid((4, 4), comm=comm)
        A, B = (pdla.zeros((n, n), grid, Layout("row", "col")) for _ in "AB")
        plan = pdla.plan_matmul(A, B, box=(2, 2, 4), schedule="fetch", panel=1)
        return A, plan.grid, plan.roles, len(list(fetch.list_steps(A, B, plan.roles, plan.grid, 1)))

    X, grid, roles, steps = pdla.run(16, program)[here]
    held = [part.indices() for part in X.indices]
    first = fetch.find_first_panels(roles, grid, steps)[here]
    figure, every = plt.subplots(1, 3, figsize=(6.6, 2.4))
    for axes, title, face in zip(every, "ABC", roles.layouts, strict=True):
        rows, cols = (part.indices().tolist() for part in face.indices((n, n), grid.sizes, grid.coords))
        for i, j in product(range(n), range(n)):
            inside = i in rows and j in cols
            panel = {"A": j - cols[0], "B": i - rows[0]}.get(title)
            step = "" if panel is None or not inside else str((panel - first) % steps)
            cell(axes, i, j, OWN if i in held[0] and j in held[1] else COMING if inside else PALE, step)
        frame(axes, (n, n), n // 4)
        axes.set_title(title, fontsize=11)
    save(figure, "fetch")


def draw_scheme(name, kind, shape, axes, here, **options):
    """What the rank `here` holds of X, W and Y of a first layer and of a second one, and what comes to it forward."""
    n = 12

    def program(comm):
        return kind(pdla.ProcessGrid(shape, axes, comm), **options)

    scheme = pdla.run(int(np.prod(shape)), program)[here]
    coords, sizes = scheme.grid.coords, scheme.grid.sizes
    figure, every = plt.subplots(1, 6, figsize=(10.5, 2.0), gridspec_kw={"wspace": 0.25})
    for pair, table in enumerate((scheme.first, scheme.second)):
        layouts = scheme.linear(table, 1, (1, 1))
        faces = (("X", layouts.X, layouts.x), ("W", layouts.W, layouts.w), ("Y", layouts.Y, layouts.dy))
        for axes_, (title, held, met) in zip(every[3 * pair :], faces, strict=False):
            own, needed = ([part.indices() for part in at.indices((n, n), sizes, coords)] for at in (held, met))
            for i, j in product(range(n), range(n)):
                here_, there = (i in at[0] and j in at[1] for at in (own, needed))
                cell(axes_, i, j, OWN if here_ else COMING if there else PALE, "")
            frame(axes_, (n, n))
            axes_.set_title(f"{title} {('first', 'second')[pair]}", fontsize=10)
    save(figure, f"scheme-{name}")


def draw_measured():
    """Each peer's time over the best of pdla's, row by row of the first tables of measured.md."""
    text = (STATIC.parent / "measured.md").read_text().split("## ")[1]
    tables = [table.splitlines() for table in re.findall(r"(?:\|.*\n)+", text)]
    every = [[[x.strip() for x in line.split("|")[1:-1]] for line in lines] for lines in tables]
    figure, panels = plt.subplots(1, 3, figsize=(10.5, 5.2), sharex=True, sharey=True, gridspec_kw={"wspace": 0.08})
    for axes, (head, _, *rows) in zip(panels, every, strict=False):
        for at, cells in enumerate(rows):
            times = {side: float(x.split(",")[0]) for side, x in zip(head[1:], cells[1:], strict=True) if x[0].isdigit()}
            best = min(times[side] for side in OURS if side in times)
            for colour, (side, mark) in enumerate(PEERS.items()):
                axes.plot(times.get(side, np.nan) / best, at, mark, color=f"C{colour}", label=side if at == 0 else None)
        axes.axvline(1, color=LINE, linewidth=1)
        axes.set_xscale("log")
        axes.set_xticks([1, 2, 5, 10, 50], ["1", "2", "5", "10", "50"])
        axes.minorticks_off()
        axes.set_title(head[0].split(",")[0], fontsize=11)
        axes.grid(axis="y", color=PALE)
    panels[0].set_yticks(range(len(rows)), [cells[0].replace(" x ", "×") for cells in rows], fontsize=9)
    panels[0].invert_yaxis()
    panels[0].legend(fontsize=9, loc="lower right")
    panels[1].set_xlabel("time over pdla's")
    save(figure, "measured")


def cell(axes, i, j, colour, text):
    axes.add_patch(plt.Rectangle((j, i), 1, 1, facecolor=colour, edgecolor="white", linewidth=0.8))
    axes.text(j + 0.5, i + 0.5, text, ha="center", va="center", fontsize=8, color="#222222")


def frame(axes, shape, every=None):
    axes.set_xlim(-0.05, shape[1] + 0.05)
    axes.set_ylim(shape[0] + 0.05, -0.05)
    axes.set_aspect("equal")
    axes.axis("off")
    for at in range(0, shape[0] + 1, every) if every else ():
        axes.plot((0, shape[1]), (at, at), color=LINE, linewidth=0.8)
        axes.plot((at, at), (0, shape[0]), color=LINE, linewidth=0.8)


def save(figure, name):
    figure.savefig(STATIC / f"{name}.svg", bbox_inches="tight", facecolor="white", metadata={"Date": None})
    plt.close(figure)


def main():
    plt.rcParams.update({"svg.hashsalt": "pdla", "svg.fonttype": "none", "font.family": "sans-serif"})
    STATIC.mkdir(exist_ok=True)
    for name, (layout, grid, shape) in LAYOUTS.items():
        layout.draw(shape, dict(zip(("row", "col", "depth"), grid, strict=False))).save(STATIC / f"layout-{name}.svg")
    draw_pieces("gather", "gather", here=(1, 1))
    draw_pieces("summa", "summa", here=(1, 1), step=2)
    draw_cannon()
    draw_fetch()
    draw_measured()
    middle = {"m": 1, "n": 0, "k": 1}
    draw_table("box", tabulate_box("3d", (3, 2, 3), "gather"), (12, 12, 12), middle)
    draw_table("layers", tabulate_box("2.5d", (3, 3, 2), "summa"), (12, 12, 12), {"m": 1, "n": 1, "k": 0})
    draw_table("stationary", tabulate_box("a-stationary", (3, 1, 3), "summa", "n"), (12, 12, 12), {"m": 1, "n": 0, "k": 1})
    cut = list(tesseract.list_tables((2, 2, 2)))[1]
    row, square, cube = ("row",), ("row", "col"), ("row", "col", "depth")
    draw_scheme("megatron1d", pdla.nn.Megatron1D, (4,), row, 1)
    draw_scheme("sequence", pdla.nn.Megatron1D, (4,), row, 1, sequence_parallel=True)
    draw_scheme("summa2d", pdla.nn.Summa2D, (3, 3), square, 4)
    draw_scheme("tesseract", pdla.nn.Tesseract, (2, 2, 2), cube, 5)
    draw_scheme("cube3d", pdla.nn.Cube3D, (2, 2, 2), cube, 5)
    draw_scheme("tensor3d", pdla.nn.Tensor3D, (3, 2, 2), cube, 5)
    draw_table("tesseract", cut, (12, 12, 12), {"row": 1, "col": 0, "depth": 0})


if __name__ == "__main__":
    main()
