"""The node that a rank runs on: its cores, and the room in its memory."""

from math import inf

import pytest

from pdla.comm.mpi import node

pytestmark = pytest.mark.mpi


def test_a_node_has_the_cores_of_any_of_its_ranks_and_the_least_free_bytes_counts(comm, monkeypatch):
    monkeypatch.setattr(node.os, "sched_getaffinity", lambda _: {99, comm.rank})
    for quota, cores in ((inf, comm.size + 1), (1.5, 1)):
        monkeypatch.setattr(node.cores, "quota", lambda quota=quota: quota)
        assert node.find_node(comm.mpi) == (node.Node(comm.size, cores), [0] * comm.size)
    monkeypatch.setattr(node, "count_free_bytes", lambda: 100 - comm.rank)
    assert node.find_least_free_bytes(comm.mpi) == 101 - comm.size


@pytest.mark.parametrize(("said", "ranks"), [("1", 1), ("64", inf), ("", 0), ("several", 0)])
@pytest.mark.parametrize("name", node._STARTED)
def test_of_a_launcher_that_says_more_ranks_than_there_are_no_more_are_believed(comm, name, said, ranks, monkeypatch):
    """Its variables are of another job where a rank starts a program."""
    for other in node._STARTED:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, said)
    assert node.count_started() == min(ranks, comm.size)
