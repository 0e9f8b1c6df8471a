"""Block by block in shifts: what they bring, and whether ranks keep step."""

import itertools

import numpy as np
import pytest
from helpers.matmuls import exact

import pdla
from pdla import Cuts, Cyclic, Layout, ProcessGrid


def test_cannon_brings_a_block_more_where_a_rank_begins_inside_one():
    """As docs/cannon.md has it: of A where pc is no multiple of pr, of B where pr is none of pc."""
    for pr, pc in itertools.product(range(2, 7), range(2, 7)):
        extra = [60 * 60 / pr / pc * bool(long % short) for long, short in ((pc, pr), (pr, pc))]
        assert pdla.matmul_words("cannon", 60, 60, 60, (pr, pc)) == pytest.approx(60 * 60 / pr / pc * (pc + pr) + sum(extra))


def test_cannons_parts_line_up_on_all_ranks_or_on_none():
    """Those of the first layer do, which a dry run of one of its ranks has to know of the others."""

    def program(comm):
        grid, layers = ProcessGrid((2, 2, 2)), Cuts("depth", (0, 100, 130))
        A = exact((40, 130), grid, Layout("row", (layers, Cyclic("col", 50))), seed=1)
        B = exact((130, 40), grid, Layout((layers, "row"), "col"), seed=2)
        plan = pdla.plan_matmul(A, B, algorithm="cannon", layout=Layout(("row", "depth"), "col"))
        with pdla.record() as ledger:
            C = plan(A, B)
        cost, total = plan.predicted, ledger.total(comm)
        assert (cost.bytes_received, cost.messages) == (total["max_bytes_received"], total["max_messages"])
        assert np.array_equal(C.gather(), A.gather() @ B.gather())

    pdla.run(8, program)
