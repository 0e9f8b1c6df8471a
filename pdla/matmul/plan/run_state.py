"""The state that a plan keeps from run to run: buffers, results that depend on layouts alone, and its last call's matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from pdla.comm.workspace import Workspace
from pdla.matmul.schedules.streams import PlanCache
from pdla.matrix.core import DistMatrix


class RunState:
    """The buffers of a plan, what depends on its layouts alone, and its last call."""

    workspace: Workspace
    memo: PlanCache
    last: LastCall

    def __init__(self) -> None:
        self.workspace, self.memo, self.last = Workspace(), PlanCache(), LastCall()


class LastCall:
    """The matrices of a plan's last call, which have been checked. References are weak.

    turn  the turn that multiplies them, if a call does nothing else; else None

    Only the garbage collection of a factor clears this. A call holds its factors: so nothing
    changes during a call, even if an `out` is gone.
    """

    A: Callable[[], Any]
    B: Callable[[], Any]
    out: Callable[[], Any]
    turn: Any

    def __init__(self) -> None:
        self.clear()

    def clear(self, gone: ref[Any] | None = None) -> None:
        """Local: forget the call, as one of its factors is gone."""
        self.A = self.B = self.out = _no_matrix
        self.turn = None

    def note(self, A: DistMatrix, B: DistMatrix, out: DistMatrix | None, turn: Any) -> None:
        """Local: note the matrices of a call."""
        self.A, self.B, self.out, self.turn = ref(A, self.clear), ref(B, self.clear), _no_matrix if out is None else ref(out), turn

    def matches(self, A: DistMatrix, B: DistMatrix) -> bool:
        """Whether the last call was with these very factors."""
        return self.A() is A and self.B() is B


def _no_matrix() -> Any:
    """Stands for a weak reference where there is no matrix."""
