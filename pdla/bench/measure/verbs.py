"""Time verbs in groups of ranks, and predict their times on a machine by dry runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pdla.bench.measure.calibration import predict_second_call, time_median
from pdla.comm.communicator import Communicator
from pdla.comm.dry import dry_run
from pdla.model.machine import Machine

SIZES = (8, 1 << 16, 1 << 20)  # bytes of a rank's part; verbs predicted to take longer than PATIENCE are left out
PATIENCE = 0.25  # seconds


class Row(NamedTuple):
    """A verb in groups of `ranks` ranks, `stride` apart; size: bytes of a rank's part; seconds measured and predicted."""

    verb: str
    ranks: int
    stride: int
    size: int
    measured: float
    predicted: float


def compare_verbs(comm: Communicator, machine: Machine) -> Iterator[Row]:
    """Collective: time verbs in all groups of a size and stride at once, except predicted long ones."""
    for ranks, stride in _groups(comm.size):
        group = comm.split(_members(comm.rank, ranks, stride), "group")
        assert group is not None
        for size in SIZES:
            for verb, make in VERBS.items():
                predicted = _predict(make, comm.size, ranks, stride, size, machine)
                if predicted < PATIENCE:
                    yield Row(verb, ranks, stride, size, time_median(comm, make(group, size), 5), predicted)
        yield Row("barrier", ranks, stride, 0, time_median(comm, group.barrier, 20), 0.0)


def _groups(ranks: int) -> Iterator[tuple[int, int]]:
    """Sizes of groups (the powers of two that divide `ranks`, and `ranks`), each with strides 1 and ranks / size."""
    for size in sorted({*(1 << i for i in range(1, ranks.bit_length()) if ranks % (1 << i) == 0), ranks} - {1}):
        yield from ((size, stride) for stride in sorted({1, ranks // size}))


def _members(rank: int, ranks: int, stride: int) -> list[int]:
    """The group of a rank: the ranks of its block of ranks * stride that differ from it by multiples of the stride."""
    first = rank // (ranks * stride) * ranks * stride + rank % stride
    return [first + stride * i for i in range(ranks)]


def _predict(make: Any, world: int, ranks: int, stride: int, size: int, machine: Machine) -> float:
    def one(comm: Communicator) -> float:
        group = comm.split(_members(comm.rank, ranks, stride), "group")
        assert group is not None
        return predict_second_call(comm, make(group, size))

    return dry_run(world, one, machine=machine)[0]


def _bcast(comm: Communicator, size: int) -> Callable[[], object]:
    x = comm.xp.empty((size,), "uint8")
    return lambda: comm.bcast(x, 0).wait()


def _allgather(comm: Communicator, size: int) -> Callable[[], object]:
    x, outs = comm.xp.empty((size,), "uint8"), [comm.xp.empty((size,), "uint8") for _ in range(comm.size)]
    outs[comm.rank] = None
    return lambda: comm.allgather(x, outs).wait()


def _reduce_scatter(comm: Communicator, size: int) -> Callable[[], object]:
    parts, out = [comm.xp.empty((size // 8,), "float64") for _ in range(comm.size)], comm.xp.empty((size // 8,), "float64")
    return lambda: comm.reduce_scatter(parts, out).wait()


def _alltoall(comm: Communicator, size: int) -> Callable[[], object]:
    others = [r for r in range(comm.size) if r != comm.rank]
    sends, recvs = ({r: comm.xp.empty((size,), "uint8") for r in others} for _ in range(2))
    return lambda: comm.alltoall(sends, recvs).wait()


VERBS = {"bcast": _bcast, "allgather": _allgather, "reduce_scatter": _reduce_scatter, "alltoall": _alltoall}
