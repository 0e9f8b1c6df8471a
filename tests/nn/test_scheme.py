"""Schemes and what they lie on."""

from copy import deepcopy

from helpers.nets import (
    SUMMA,
)

import pdla


def test_grids_schemes_and_communicators_are_their_own_copies():
    def program(comm):
        scheme = SUMMA.make(comm)
        return all(deepcopy(x) is x for x in (comm, scheme.grid, scheme)) and deepcopy({"on": scheme})["on"] is scheme

    assert all(pdla.run(4, program))
