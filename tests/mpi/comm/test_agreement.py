"""Ranks in different calls learn of it."""

import re
from contextlib import suppress
from contextvars import Context
from itertools import product

import numpy as np
import pytest

import pdla
from pdla import Layout, linalg
from pdla.comm.agreement import agree, collective_section
from pdla.errors import AgreementError, PdlaError

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        (lambda comm: comm.share("x" * 99), "share"), (lambda comm: comm.barrier(), "barrier"),
        (lambda comm: comm.split([0], ""), "split('')"),
    ],
)
def test_ranks_in_different_calls_learn_of_it_and_go_on_together(comm, verb, name):
    """A rank that compares words would else read parts of what others share, and the other way round."""
    if comm.size == 1:
        pytest.skip("one rank is in one call")
    last = comm.size - 1
    with pytest.raises(AgreementError, match=f"^ranks disagree: .*words; rank {last}: {re.escape(name)}$"):
        verb(comm) if comm.rank == last else agree(comm, "words")
    assert comm.share(comm.rank) == [*range(comm.size)]


@pytest.mark.parametrize("alike", [True, False])
def test_an_error_behind_a_meeting_of_all_ranks_is_one_that_all_have(comm, alike):
    """Idle ranks have begun fewer verbs by then. One behind another meeting than the others' is an error at the next call."""
    kept = comm.split(range(comm.size), "kept")
    grid = pdla.ProcessGrid(max(1, comm.size - 1), comm=kept)
    assert (grid["row"] is None) == (not grid.active)
    with suppress(ArithmeticError), collective_section(kept, "a call"):
        for _ in range(1 if kept.rank == 0 and not alike else 2):
            for _ in range(2 if grid.active else 0):
                grid["row"].alltoall({}, {}).wait()
            kept.alltoall({}, {}).wait()
        raise ArithmeticError("singular")
    if alike or comm.size == 1:
        assert kept.allreduce(np.ones(1)).wait() == comm.size
    else:
        with pytest.raises(PdlaError, match=f"^ranks {', '.join(map(str, range(comm.size)))}: went on after an error in a call"):
            agree(kept, "the next")


CALLS = {
    "solve": lambda A, B: linalg.solve(A, np.ones(4)), "matmul": pdla.matmul, "cholesky": lambda A, B: linalg.cholesky(A),
    "norm": lambda A, B: linalg.norm(A), "matvec": lambda A, B: pdla.matvec(A, np.ones(4)), "hstack": lambda *two: pdla.hstack(two),
    "einsum": lambda A, B: pdla.einsum("ij,jk->ik", A, B), "save": lambda A, B: pdla.save("never.npy", A),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_matrix_on_one_rank_is_an_error_on_every_rank(comm, call):
    """No operand of that rank is a matrix, so none says who the others are. In a context of its own, of one communicator."""

    def program():
        A = pdla.ones((4, 4), pdla.ProcessGrid(comm.size, comm=comm), Layout("row"))
        for odd, wrong in product({0, comm.size // 2, comm.size - 1}, (None, np.ones((4, 4)), 3)):
            with pytest.raises(PdlaError, match=r"not a DistMatrix|of no matrices") as error:
                CALLS[call](*((wrong, wrong) if comm.rank == odd else (A, A)))
            said = comm.share(str(error.value))
            assert said == said[:1] * comm.size and (said[0].startswith(f"rank {odd}: ") or comm.size == 1)
        assert A.sum() == 16

    Context().run(program)
