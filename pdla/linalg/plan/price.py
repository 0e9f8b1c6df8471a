"""Predict what routines cost on a grid of pr x pc ranks, by closed forms, and find the cheapest grid and block.

A routine prices a step by the work of one rank. If there are many steps, SAMPLE of them are priced, evenly spread.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

from pdla.linalg.panels.blocks import find_near_square
from pdla.linalg.plan.routine import GridShape, StepCost, Task, count_share

SAMPLE = 48  # how many steps are priced
BLOCKS = (32, 48, 64, 96, 128, 192)
WIDE = (256, 384)  # further candidates on a described machine, whose steps may take long
LONG = 8  # the most ranks for which a grid of one column is a candidate
GOOD = 1.05  # blockings up to so many times the least price are about as cheap, and the preferred one is taken


class Blocking(NamedTuple):
    """A grid's shape, with the number of layers if there are several, and the columns of a panel.

    Square blocks have as many rows and columns; with c layers c times as many.
    """

    shape: GridShape
    block: int

    def __str__(self) -> str:
        ranks = " x ".join(map(str, self.shape))
        return f"in {'square blocks' if len(self.shape) == 2 else 'layers, panels'} of {self.block} on {ranks} ranks"


def count_shares(task: Task, shape: GridShape, block: int) -> tuple[int, int]:
    """The most rows and columns that a rank of a layer has, in square blocks of so many rows."""
    block_rows = block * prod(shape[2:])
    return count_share(task.m, block_rows, shape[0]), count_share(task.n, block_rows, shape[1])


@lru_cache(maxsize=4096)
def predict_seconds(task: Task, shape: GridShape, block: int) -> float:
    """Predict the seconds of the task on a grid of this shape, in square blocks of so many rows."""
    count, shape = -(-task.size // block) if task.size else 0, task.routine.choose_grid(shape)
    sample = range(count) if count <= SAMPLE else [(2 * i + 1) * count // (2 * SAMPLE) for i in range(SAMPLE)]
    return sum(task.routine.price(_make_step(task, shape, block, k)) for k in sample) * count / max(1, len(sample))


def _make_step(task: Task, shape: GridShape, block: int, k: int) -> StepCost:
    end, block_rows = min((k + 1) * block, task.size), block * prod(shape[2:])
    rows, cols = count_share(task.m - end, block_rows, shape[0]), task.routine.columns(task.n, end, block_rows, shape[1])
    return StepCost(task, shape, end - k * block, rows, cols, end == task.size)


def list_shapes(ranks: int) -> list[GridShape]:
    """The shapes of grids to try: the near-square one, and longer ones of as many ranks."""
    pr, pc = find_near_square(ranks)
    shapes = [(pr, pc), (pc, pr)]
    while pr % 2 == 0:
        pr, pc = pr // 2, 2 * pc
        shapes += [(pr, pc), (pc, pr)]
    return list(dict.fromkeys([*shapes, *([(ranks, 1), (1, ranks)] if ranks <= LONG else [(1, ranks)])]))


@lru_cache(maxsize=1024)
def sort_by_price(task: Task, ranks: int) -> tuple[Blocking, ...]:
    """The blockings, the cheapest first. On one rank the whole matrix is one block.

    The routine's preferred blocking comes first, among those within GOOD of the least price.
    """
    if ranks == 1:
        return (Blocking((1, 1), max(1, task.m, task.n)),)
    if fixed := task.routine.list_blockings(task.m, ranks):
        return tuple(Blocking(*blocking) for blocking in fixed)
    candidates = BLOCKS + WIDE if task.machine.is_custom else BLOCKS
    blocks = [block for block in candidates if block <= max(BLOCKS[0], -(-task.size // 2))]
    blockings = [Blocking(shape, block) for shape in list_shapes(ranks) for block in blocks]
    blockings.sort(key=lambda blocking: predict_seconds(task, *blocking))
    close = [blocking for blocking in blockings if predict_seconds(task, *blocking) <= GOOD * predict_seconds(task, *blockings[0])]
    preferred = max(close, key=lambda blocking: task.routine.preference(*blocking))
    return (preferred, *(blocking for blocking in blockings if blocking != preferred))
