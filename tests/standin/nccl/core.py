"""What pdla/comm/mpi/nccl.py asks of nccl4py, between processes of one machine: messages are files.

As NCCL's, calls are work on a stream; those of a group go on together, the next group's begin when all of them have ended, and
a send ends when its message has been taken. Messages from one rank to another come in order, and have no tags. A thread sees to it
that they go on while their rank waits for something else, as devices do by themselves.
"""

import itertools
import os
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import cupy

_calls = []  # of the group that is open
_at_work = set()  # streams that have had some


def _go_on():
    while True:
        time.sleep(0.01)
        for stream in [*_at_work]:
            cupy._streams[stream].step()


def get_version():
    return SimpleNamespace(libnccl="stand-in")


class UniqueId:
    def __init__(self, name):
        self.name = name

    def __bytes__(self):
        return self.name.encode()

    @staticmethod
    def from_bytes(name):
        return UniqueId(name.decode())


def get_unique_id():
    if os.environ.get("STANDIN_NCCL_FAULT") == "name":
        raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR")
    return UniqueId(tempfile.mkdtemp(prefix="standin-nccl-"))


@contextmanager
def group():
    """The calls inside, as one piece of work on their stream."""
    assert not _calls
    yield
    calls, under_way = [call for call, _ in _calls], {stream for _, stream in _calls}
    _calls.clear()
    if calls:
        (stream,) = under_way

        def work():
            calls[:] = [call for call in calls if not call()]
            return not calls

        cupy._streams[stream].ask(work)
        _at_work.add(stream)


class Communicator:
    def __init__(self, folder, nranks, rank):
        self.folder, self.nranks, self.rank = Path(folder), nranks, rank
        self.sent, self.received, self.splits = {}, {}, itertools.count()

    @classmethod
    def init(cls, nranks, rank, unique_id):
        if os.environ.get("STANDIN_NCCL_FAULT") == str(rank):
            raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR")
        threading.Thread(target=_go_on, daemon=True).start()
        return cls(unique_id.name, nranks, rank)

    def split(self, color=None, key=0):
        folder = self.folder / f"split{next(self.splits)}"
        group = folder / str(color)
        group.mkdir(parents=True, exist_ok=True)
        (group / f"rank{self.rank}").touch()
        while len([*folder.glob("*/rank*")]) < self.nranks:
            time.sleep(0.001)
        return Communicator(group, len([*group.glob("rank*")]), key)

    def destroy(self):
        """It waits for the others, as NCCL's does for those on its node."""
        (self.folder / f"destroyed{self.rank}").touch()
        while len([*self.folder.glob("destroyed*")]) < self.nranks:
            time.sleep(0.001)

    def _number(self, counts, peer):
        counts[peer] = counts.get(peer, -1) + 1
        return counts[peer]

    def send(self, raw, peer, *, stream):
        if os.environ.get("STANDIN_NCCL_FAULT") == "send":
            raise RuntimeError("NCCL_ERROR_UNHANDLED")
        assert raw.dtype == "uint8" and raw.size and raw.flags.c_contiguous
        at, put = self.folder / f"{self.rank}-{peer}-{self._number(self.sent, peer)}", []

        def call():
            if not put:
                at.with_suffix(".part").write_bytes(raw._raw.tobytes())
                put.append(at.with_suffix(".part").rename(at))
            return not at.exists()

        _calls.append((call, stream))

    def recv(self, raw, peer, *, stream):
        assert raw.dtype == "uint8" and raw.size and raw.flags.c_contiguous
        at = self.folder / f"{peer}-{self.rank}-{self._number(self.received, peer)}"

        def call():
            if not at.exists():
                return False
            came = at.read_bytes()
            assert len(came) == raw.size, f"{len(came)} bytes for {raw.size}"
            raw._raw[...] = cupy.np.frombuffer(came, "uint8")
            at.unlink()
            return True

        _calls.append((call, stream))

    def broadcast(self, sent, raw, root, *, stream):
        for peer in range(self.nranks) if self.rank == root else [root]:
            if peer != self.rank:
                self.send(sent, peer, stream=stream) if self.rank == root else self.recv(raw, root, stream=stream)
