"""Layers: what the 2.5-D factorizations share.

The ranks are c layers of pr x pc; a layer works on each c-th panel. A layer updates all columns after
its panel in memory of its own, which starts at zero: these are its addends. Before a panel is
factored, the other layers send their addends to it, each rank to the same place in the panel's
layer. Panels thus travel within one layer alone, where a rank owns c times as much of a row
or a column as without copies. Solomonik, Demmel: Euro-Par 2011; Kwasniewski et al.: SC 2021.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from pdla.comm.cache import find_or_make
from pdla.comm.communicator import Communicator
from pdla.comm.ledger import buffer
from pdla.comm.pending import Pending
from pdla.linalg.panels.blocks import Dimension, find_depth_axis
from pdla.linalg.verify import is_checking
from pdla.matrix.core import DistMatrix


def make_communicators(X: DistMatrix) -> tuple[str | None, Communicator | None, Communicator | None]:
    """Collective, idle ranks included: the axis of X's layers, and the communicators across layers and of all their ranks."""
    axis = find_or_make(X.grid, (find_depth_axis, X.layout), lambda: find_depth_axis(X) or "")
    if not axis:
        return None, None, None
    return axis, X.grid[axis], X.grid[(axis, X.layout.rows[0].axis, X.layout.cols[0].axis)]


def merge(header: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Local: merge two headers. If a panel has failed, its header is the result; else it has the least and the largest pivot."""
    if header[0] or other[0]:
        return header if header[0] else other
    return np.array([*header[:-2], min(header[-2], other[-2]), max(header[-1], other[-1])])


class Layers:
    """One rank's place in a layer.

    a         the layer's block: elements of the matrix in its own panels, addends elsewhere
    steps     this layer's panels
    everyone  the communicator of all layers' ranks
    """

    xp: Any
    rows: Dimension
    cols: Dimension
    stored: Any
    comm: Communicator

    def __init__(
        self, X: DistMatrix, axis: str, comm: Communicator, everyone: Communicator, rows: Dimension, cols: Dimension
    ) -> None:
        self.xp, self.rows, self.cols, self.stored, self.comm = X.xp, rows, cols, X.stored, comm
        self.everyone = everyone
        self.steps: range = range(X.grid.coords[axis], cols.count, comm.size)  # type: ignore[index]
        self.a: Any = buffer(X.xp, (len(X.stored), cols.tail[0].stop), X.dtype)
        self.sends: list[Pending] = []
        self.xp.scale(self.a, 0)
        for _, in_matrix, in_layer in self.list_panels():
            self.xp.copy(in_layer, in_matrix)

    @staticmethod
    def of(X: DistMatrix, rows: Dimension, cols: Dimension) -> Layers | None:
        """Local, after `make_communicators`: the layers of X; None if there is one."""
        axis, comm, everyone = make_communicators(X)
        return None if axis is None or comm is None or everyone is None else Layers(X, axis, comm, everyone, rows, cols)

    @property
    def count(self) -> int:
        """The number of layers."""
        return self.comm.size

    @property
    def number(self) -> int:
        """The number of this layer."""
        return self.comm.rank

    def list_panels(self) -> Iterator[tuple[int, Any, Any]]:
        """Yield each panel of this rank: its number, its columns of the matrix, and those of the layer's block."""
        first = 0
        for k in self.steps:
            if self.cols.owner[k] == self.cols.rank:
                w = self.cols.width[k]
                yield k, self.stored[:, first : first + w], self.a[:, self.cols.at[k]]
                first += w

    def find_root(self, k: int) -> int:
        """The rank in `everyone` that owns diagonal block k."""
        return (k % self.count * self.rows.parts + self.rows.owner[k]) * self.cols.parts + self.cols.owner[k]

    def list_earlier(self, k: int) -> list[int]:
        """The layers that have addends for panel k."""
        return [step % self.count for step in range(max(0, k - self.count + 1), k)]

    def list_others(self, k: int) -> list[int]:
        """All but the layer that works on panel k."""
        return [step % self.count for step in range(k - self.count + 1, k)]

    def send_addend(self, x: Any, k: int, header: Any = ()) -> None:
        """Start sending x of this layer's addends, and a few numbers, to the layer that works on panel k."""
        message = buffer(self.xp, (x.size + len(header),), x.dtype)
        self.xp.copy(message[: x.size].reshape(*x.shape), x)
        if len(header):
            self.xp.copy(message[x.size :], self.xp.asarray(np.asarray(header, x.dtype)))
        self.send(message, k % self.count)

    def send(self, x: Any, layer: int) -> None:
        """Start sending x to the rank at the same place in another layer."""
        self.sends.append(self.comm.send(x, layer))

    def receive_addends(self, x: Any, layers: Iterable[int], numbers: int = 0) -> Iterator[tuple[Any, Any]]:
        """Receive the addends to x of these layers, with so many numbers each, in order of arrival."""
        messages = [self.comm.recv(buffer(self.xp, (x.size + numbers,), x.dtype), layer) for layer in layers]
        for pending in messages:
            message = pending.wait()
            yield message[: x.size].reshape(*x.shape), message[x.size :]

    def add_all(self, x: Any, k: int, header: np.ndarray) -> np.ndarray:
        """Collective over depth: add the other layers' addends to x, panel k. Returns the merged header of earlier panels."""
        for addend, numbers in self.receive_addends(x, self.list_earlier(k), len(header)):
            header = merge(header, self.xp.host_or(numbers, header).real.astype(float))
            if not header[0]:
                self.xp.add(x, addend)
        return header

    def count_steps(self, count: int, header: np.ndarray) -> int:
        """How many panels are factored: after a failed one, each layer's next, to report it; all if results are checked."""
        return min(count, (int(header[0]) - 1) // self.cols.block + self.count) if header[0] and not is_checking() else count

    def wait(self) -> None:
        """Wait until the addends are sent."""
        while self.sends:
            self.sends.pop().wait()

    def write_back(self, header: np.ndarray) -> np.ndarray:
        """Collective over depth: write panels to the matrix. Returns the header of the last panel's layer."""
        for _, in_matrix, in_layer in self.list_panels():
            self.xp.copy(in_matrix, in_layer)
        x = self.xp.asarray(header.copy())  # a layer without panels has no header of its own
        return self.xp.host_or(self.comm.bcast(x, (self.cols.count - 1) % self.count).wait(), header)
