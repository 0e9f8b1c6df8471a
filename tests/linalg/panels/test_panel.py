"""Panels: blocks come as they were packed, with their numbers, whole or in parts; and the order in which steps overlap."""

import numpy as np
import pytest
from helpers.systems import cyclic, on

import pdla
from pdla.linalg.panels.blocks import find_dimensions
from pdla.linalg.panels.panel import Panels, Step, look_ahead


@pytest.mark.parametrize("limit", [0, 2**30], ids=["messages", "memory"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_blocks_and_numbers_come_as_they_were_packed(ranks, limit):
    def program(comm):
        comm.shared_limit = limit
        A = on((1, ranks), np.zeros((9, 20)), cyclic(2, None), comm)
        _, cols = find_dimensions(A)
        with Panels(cols, A.xp, 40, A.dtype) as panels:
            for k in range(cols.count):
                panel = panels.take(k, (slice(3, 9), 2), (slice(0, 2), 2), header=3)
                assert panel.mine == (cols.owner[k] == cols.rank)
                if panel.mine:
                    A.xp.copy(panel.message, np.arange(19.0) + 100 * k)
                panel.bcast(k % 2 == 0)
                panel.wait()
                whole = np.arange(19.0) + 100 * k
                if k % 2 == 0 or panel.mine:
                    assert np.array_equal(panel.blocks[0], whole[:12].reshape(6, 2))
                    assert np.array_equal(panel.rows(slice(4, 6)), whole[2:6].reshape(2, 2))
                assert np.array_equal(panel.rows(slice(1, 2), 1), whole[14:16].reshape(1, 2))
                assert panel.read_header(lambda: pytest.fail("asked")).tolist() == whole[16:].tolist()
                panel.release()

    pdla.run(ranks, program)


def test_parts_of_a_block_come_from_those_who_have_them():
    def program(comm):
        A = on((3, 1), np.zeros((12, 4)), cyclic(2, "row", None), comm)
        rows, _ = find_dimensions(A)
        with Panels(rows, A.xp, 6, A.dtype) as panels:
            panel = panels.take(0, (slice(0, 3), 2), writes=True)
            A.xp.copy(panel.blocks[0][comm.rank : comm.rank + 1], np.full((1, 2), float(comm.rank)))
            panel.bcast_parts({rank: (slice(rank, rank + 1),) for rank in range(3)})
            assert panel.wait().blocks[0].tolist() == [[0, 0], [1, 1], [2, 2]]
            panel.release()

    pdla.run(3, program)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("stops", [None, 0, 1, 4])
def test_the_next_step_is_on_its_way_before_a_step_is_used(count, stops):
    said = []

    class Told(Step):
        def __init__(self, k):
            super().__init__(k)
            self.stop = k == stops

        def wait(self):
            said.append(f"wait {self.k}")

        def release(self):
            said.append(f"release {self.k}")

    def factor(k, last):
        said.append(f"factor {k}" + ("" if last is None else f" by {last.k}"))
        return Told(k)

    for step in look_ahead(range(count), factor):
        said.append(f"use {step.k}")
    done = range(count if stops is None else min(count, stops + 1))
    expected = ["factor 0"] if count else []
    for k in done:
        expected += [f"wait {k}", *([f"factor {k + 1} by {k}"] if k + 1 < count and k != stops else []), f"use {k}", f"release {k}"]
    assert said == expected
