"""3-D: the m x n x k multiplications are cut into boxes, one a rank. A and B are gathered along n and m, C is summed along k.

Agarwal et al. 1995 for cubes, Kwasniewski et al. 2019 for any sides; `boxes.count_words` has the formula,
with any P.
"""

from __future__ import annotations

from pdla.matmul.algorithms.table import Algorithm, Table, tabulate_box
from pdla.matmul.boxes import Box, find_cheapest
from pdla.matmul.schedules import SCHEDULES
from pdla.model.machine import Machine


def list_shapes(m: int, n: int, k: int, ranks: int, machine: Machine) -> list[Box]:
    return find_cheapest(m, n, k, ranks, machine, 4)


def list_tables(shape: tuple[int, int, int]) -> list[Table]:
    each = [(tabulate_box("3d", shape, name), schedule) for name, schedule in SCHEDULES.items()]
    return [table.with_whole_faces if schedule.needs_box else table for table, schedule in each]


ALGORITHM = Algorithm("3d", list_shapes, list_tables)
