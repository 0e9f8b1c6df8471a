"""One rank of P, without data: the same verbs, the same events, nothing sent. P = 1,000,000 costs what P = 4 costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pdla.array import meta
from pdla.comm import current_world
from pdla.comm.base import Array, Communicator, Onward, Pending, Pieces
from pdla.comm.board import Board
from pdla.comm.ledger import Ledger, record
from pdla.errors import PdlaError


class DryBoard(Board):
    """Memory without bytes."""

    def open(self, size: int) -> meta.Meta:
        return meta.Meta((size,), "uint8")

    def seal(self) -> None:
        pass


class DryComm(Communicator):
    """A rank that is told what it would receive."""

    xp = meta

    @property
    def identity(self) -> Any:
        return ("dry", self.size)

    def _exchange(self, call: str, sends: Pieces, recvs: Pieces, onward: Onward) -> Iterator[int]:
        return iter([source for source, _ in recvs])

    def _message(self, call: str, sends: Mapping[int, Array], recvs: Mapping[int, Array], result: Array) -> Pending:
        return self._round(call.partition("(")[0], sends, recvs, lambda: result)

    def split(self, ranks: Sequence[int] | None, axis: str) -> DryComm | None:
        if ranks is None:
            return None
        return DryComm(next(i for i, r in enumerate(ranks) if r == self.rank), len(ranks), axis)

    def board(self) -> Board:
        return DryBoard()

    def share(self, value: Any) -> list[Any]:
        """Every rank is taken to say what this one says."""
        return [value] * self.size

    def same(self, text: str) -> bool:
        return True


def dry_run(size: int, program: Callable[..., Any], *args: Any, rank: int = 0) -> tuple[Any, Ledger]:
    """Run program(comm, *args) as one rank of `size`, without data; gives its result and its ledger.

    Matrices hold `Meta` blocks (shape and dtype). Figures are this rank's; where sizes do not divide, ranks differ.
    """
    if not 0 <= rank < size:
        raise PdlaError(f"rank {rank} is not one of {size}")
    comm = DryComm(rank, size)
    token = current_world.set(comm)
    try:
        with record() as ledger:
            return program(comm, *args), ledger
    finally:
        current_world.reset(token)
