"""What the tests of the communicator share."""

import pytest

from pdla.comm.collectives import ring


@pytest.fixture
def placed(comm, monkeypatch):
    """A communicator of all ranks as if rank r ran on node place(r), where all-gathers go around the nodes."""
    monkeypatch.setattr(ring, "LONG", 0)
    made = []

    def placing(place):
        made.append(comm.split(range(comm.size), "all"))
        made[-1].homes = [place(r) for r in range(comm.size)]
        del made[-1].nodes
        return made[-1]

    yield placing
    for each in made:
        each.close()


@pytest.fixture
def far_apart(comm, monkeypatch):
    """Each rank as if on a node of its own: long messages travel in pieces."""
    monkeypatch.setattr(comm, "homes", list(range(comm.size)))
    monkeypatch.setitem(comm.__dict__, "nodes", comm.size)
    return comm


@pytest.fixture
def progress(comm, monkeypatch):
    """The thread that otherwise runs only where ranks are on several nodes."""
    from pdla.comm.mpi import messages

    thread = messages.Progress(comm.node)
    monkeypatch.setattr(comm, "_progress", thread)
    yield thread
    thread.end()
