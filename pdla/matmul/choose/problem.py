"""The data of the choice of a plan: the product's sizes, the ranks and their machine, the layouts of A, B and C."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from pdla.grid import ProcessGrid
from pdla.layout import Layout, Shape, extra_axes
from pdla.matmul import boxes, roles
from pdla.matmul.choose.mapping import Place
from pdla.matmul.dry import find_nodes
from pdla.matmul.schedules import SCHEDULES, choose_schedule
from pdla.matmul.schedules.base import Traffic
from pdla.matrix.core import DistMatrix
from pdla.model.bounds import received_lower_bound
from pdla.model.machine import Machine

LARGE = 4096  # for more ranks conversions are priced by sizes alone: their overlaps take seconds to count


@dataclass(frozen=True)
class Operand:
    """A matrix without its elements, as a plan knows it: the same on every rank."""

    shape: Shape
    layout: Layout
    grid: ProcessGrid
    transposed: bool = False
    conjugated: bool = False
    dtype: np.dtype | None = None  # None: the product's
    gaps: int = 0
    shared: bool = False

    @staticmethod
    def of(X: DistMatrix) -> Operand:
        return Operand(X.shape, X.layout, X.grid, X.transposed, X.conjugated, X.base.dtype, X.gaps, X.common is not None)

    @property
    def H(self) -> Operand:
        """The adjoint, in the same memory."""
        conjugated = not self.conjugated and self.dtype is not None and self.dtype.kind == "c"
        shape, layout = self.shape[::-1], self.layout.T
        return replace(self, shape=shape, layout=layout, transposed=not self.transposed, conjugated=conjugated)

    def __str__(self) -> str:
        """Describe as DistMatrix.description does, without the dtype, which may be the product's."""
        stored = ", by columns" * self.transposed + ", shared" * self.shared
        return f"{self.shape[0]} x {self.shape[1]}, {self.layout!r} on {self.grid!r}{stored}"

    def matches(self, X: DistMatrix) -> bool:
        """Whether X is of this shape, and is cut and stored in this way."""
        stored_alike = X.transposed == self.transposed and (X.common is not None) == self.shared
        return X.shape == self.shape and stored_alike and self.is_cut_like(X)

    def is_cut_like(self, X: DistMatrix) -> bool:
        """Whether X has this layout on this grid. `is` comes first, as they are mostly the very same objects."""
        return (X.layout is self.layout or X.layout == self.layout) and (X.grid is self.grid or X.grid == self.grid)

    def to_placed(self) -> PlacedOperand:
        return PlacedOperand(self.shape, self.layout, Place.of(self.grid), self.shared and not self.conjugated)


@dataclass(frozen=True)
class PlacedOperand:
    """An operand as the choice sees it: the same value on every rank."""

    shape: Shape
    layout: Layout
    place: Place
    shared: bool = False


def simplify_all(given: tuple[Any, ...], sizes: Mapping[str, int]) -> tuple[Layout | None, ...]:
    """Leave out cuts along axes of one rank of the layouts of A, B and C; None where there is none."""
    return tuple([None if X is None else roles.simplify(X, sizes) for X in given])


@dataclass(frozen=True)
class Sizes:
    """A product's m, n, k; the number of ranks; bytes of an element; the machine.

    shared  the bytes that the ranks of a node may share
    nodes   the node of each rank; empty: all run on one
    """

    mnk: tuple[int, int, int]
    ranks: int
    itemsize: int
    machine: Machine
    shared: int
    nodes: tuple[int, ...]

    @cached_property
    def readable(self) -> int:
        """Bytes of memory that all ranks may share; 0 where they run on several nodes."""
        return self.shared if self.homes is None else 0

    @cached_property
    def seen(self) -> tuple[bool, bool]:
        """For A and for B: whether all ranks see it in shared memory (DistMatrix.shared), and read it without a copy."""
        return False, False

    @cached_property
    def fits(self) -> bool:
        """Whether A and B can be read in memory that all ranks share: the matrices that are not there already fit in."""
        (m, n, k), (a, b) = self.mnk, self.seen
        return (a and b) or 0 < self.readable >= (m * k * (not a) + k * n * (not b)) * self.itemsize

    @cached_property
    def is_large(self) -> bool:
        """Whether conversions are priced by sizes alone."""
        return self.ranks > LARGE

    @cached_property
    def bound(self) -> float:
        return received_lower_bound(*self.mnk, self.ranks)

    def choose_schedule(self, given: tuple[Any, ...], chosen: roles.Roles, sizes: Mapping[str, int]) -> str:
        """Choose the schedule that suits operands in the layouts `given`.

        Words of a redistribution before the product do not count: panels do not help them.
        """
        current, layouts = simplify_all(given, sizes), chosen.layouts
        moves = roles.list_moves(current, layouts, self.mnk, sizes)
        in_panels, own = sum([move.words for move in moves if move.addends]), 0.0
        for i, held in enumerate(roles.count_held(current, self.mnk, sizes)):
            if moves[i].words and extra_axes(current[i], layouts[i], sizes):  # type: ignore[arg-type]
                in_panels, own = in_panels + moves[i].words, own + (0 if self.seen[i] else held)
        comes = moves[0].words > 0 or moves[1].words > 0
        return choose_schedule(Traffic(in_panels * self.itemsize, own * self.itemsize, comes, self.fits))

    @cached_property
    def homes(self) -> np.ndarray | None:
        """The node of each rank, numbered from 0 in order of ranks; None where there is one node only."""
        return np.unique(self.nodes, return_inverse=True)[1] if len(set(self.nodes)) > 1 else None

    @property
    def two_sums(self) -> bool:
        """Whether C may be summed along two axes: not if nodes have several ranks, as one sum goes from node to node."""
        return not 1 < len(set(self.nodes)) < self.ranks

    def messages(self, schedule: str, used: boxes.Box) -> tuple[float, float, float]:
        """Count the messages of A, B and C that a rank receives, as `price` counts them; operands read in place need none."""
        in_place = SCHEDULES[schedule].reads_in_place
        return (0, 0, used.k - 1) if in_place else boxes.count_messages(*self.mnk, used)

    def price(self, schedule: str, used: boxes.Box, words: float, more: float = 0) -> float:
        """Price a box that receives `words`, in the messages of the product and `more` messages."""
        messages = more + sum(self.messages(schedule, used))
        excess, work = boxes.compute_excess(*self.mnk, used, self.ranks), prod(self.mnk) / self.ranks
        return float(boxes.price(self.ranks, excess, words, messages, used.k > 1, self.bound, work, self.machine))

    def weigh_anywhere(self, moved: float) -> float:
        """Weigh words that may come from any rank: the share from other nodes counts more."""
        if self.homes is None:
            return moved
        return moved * (1 + (self.machine.distance - 1) * (1 - np.bincount(self.homes).max() / self.ranks))


@dataclass(frozen=True)
class Problem(Sizes):
    """A product to be planned, of A and B, into C where its layout is given."""

    A: PlacedOperand
    B: PlacedOperand
    C: PlacedOperand | None

    @staticmethod
    def of(A: Operand, B: Operand, C: Operand | None, itemsize: int, machine: Machine) -> Problem:
        mnk, comm = (A.shape[0], B.shape[1], A.shape[1]), A.grid.comm
        nodes = tuple(find_nodes(comm, machine))
        c = None if C is None else C.to_placed()
        return Problem(mnk, comm.size, itemsize, machine, comm.shared_limit, nodes, A.to_placed(), B.to_placed(), c)

    @cached_property
    def seen(self) -> tuple[bool, bool]:
        return self.A.shared, self.B.shared

    @property
    def two_sums(self) -> bool:
        """Whether C may be summed along two axes: also not if C goes to another layout, as all ranks would send to all."""
        return super().two_sums and (self.C is None or len(self.C.place.axes) == 4)

    @cached_property
    def operands(self) -> tuple[PlacedOperand, ...]:
        """A, B and, where its layout is given, C."""
        return (self.A, self.B) if self.C is None else (self.A, self.B, self.C)

    @property
    def has_one_grid(self) -> bool:
        return all(X.place == self.A.place for X in self.operands)
