"""The other half of a symmetric matrix."""

from helpers.level3 import BLOCKS

import pdla
from pdla import ProcessGrid


def test_mirroring_moves_the_other_half():
    def program(comm):
        grid = ProcessGrid((3, 3))
        A, C = pdla.zeros((90, 9), grid, BLOCKS), pdla.zeros((90, 90), grid, BLOCKS)
        figures = []
        for mirror in (False, True):
            with pdla.record() as ledger:
                pdla.syrk(A, out=C, mirror=mirror)
            figures.append(ledger.bytes_received)
        return (figures[1] - figures[0]) // 8

    assert pdla.run(9, program) == [0, 900, 900, 0, 0, 900, 0, 0, 0]  # ranks above the diagonal get their blocks
