"""Ranks in different calls learn of it."""

import re

import pytest

from pdla.comm.agreement import agree
from pdla.errors import AgreementError

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
