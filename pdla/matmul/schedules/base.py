"""A schedule is the order in which parts of A, B and C are sent and multiplied.

To add one, write a file with a subclass of `Schedule`, and a line in the registry
(schedules/__init__.py). The chooser and the plan ask a schedule; a schedule knows neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from pdla.comm.communicator import Communicator
from pdla.grid import ProcessGrid
from pdla.matmul.roles import Roles
from pdla.matmul.schedules import walk
from pdla.matmul.schedules.streams import PlanCache, Sink
from pdla.matmul.schedules.walk import Walk
from pdla.matrix.core import DistMatrix
from pdla.model.machine import Machine

AHEAD = 3  # panels on their way while another is multiplied: a message may take as long as three products of panels


def count_at_once(panels: int) -> int:
    """Count the panels that have buffers, of so many: the one that is multiplied, and those on their way."""
    return min(1 + AHEAD, panels)


class Traffic(NamedTuple):
    """The traffic of a product, in bytes a rank.

    in_panels  parts of A and B that all-gathers bring, and addends of C: they may come panel by panel
    own        the rank's blocks of A and B that others gather and cannot see in place
    comes      whether anything of A or B comes from other ranks
    shares     whether ranks can share memory for A and B
    """

    in_panels: float
    own: float
    comes: bool
    shares: bool


class Planned(Protocol):
    """The product, as a schedule sees it: a plan has all of this."""

    @property
    def grid(self) -> ProcessGrid: ...
    @property
    def roles(self) -> Roles: ...
    @property
    def walk(self) -> Walk: ...
    @property
    def panel(self) -> int: ...
    @property
    def machine(self) -> Machine: ...
    @property
    def memo(self) -> PlanCache: ...
    @property
    def mnk(self) -> tuple[int, int, int]: ...


class Schedule(ABC):
    """One schedule; the registry has one object of each class.

    name              the caller's schedule=, and algorithm= if it `is_algorithm`, on the matrices' own grid
    walks             panels move along one dimension; otherwise A and B come at once
    takes_any_layout  A and B may have any layouts
    reads_in_place    A and B are read in memory that ranks share, and not sent
    needs_box         works on a box's grid alone, not on the matrices' own
    keeps_copies      copies of C come out equal: all ranks add products in the same order
    splits_sums       C may be summed along two axes of a grid
    turns_faces       any face may be cut along either dimension, as none comes in panels
    to_faces          the schedule by which A and B come to a box's faces in one step, from any layout; empty: there is none
    in_panels         the schedule that needs less memory, panel by panel
    in_panels_from_any_layout  such a schedule that takes A and B in any layouts
    """

    name: str
    is_algorithm = False
    walks = False
    takes_any_layout = False
    reads_in_place = False
    needs_box = False
    keeps_copies = True
    splits_sums = True
    turns_faces = False
    to_faces = ""
    in_panels = ""
    in_panels_from_any_layout = ""

    @abstractmethod
    def run(self, plan: Planned, a: DistMatrix, b: DistMatrix, c: DistMatrix, alpha: complex, beta: complex) -> None:
        """Collective: `c = alpha a b + beta c`.

        c has the roles' layout or, if panels of C move, the walk's. Ranks that are idle on the
        plan's grid take part.
        """

    def suits(self, traffic: Traffic) -> bool:
        """Whether this schedule is better for this traffic than the schedules after it in the registry."""
        return False

    def words(self, m: int, n: int, k: int, pr: int, pc: int) -> float:
        """Count the most words that a rank receives, on a pr x pc grid with A, B and C in 2-D blocks."""
        return (m * k * (pc - 1) + k * n * (pr - 1)) / (pr * pc)

    def find_obstacle(self, comm: Communicator) -> str:
        """Find the reason why ranks of a communicator cannot multiply by this schedule; empty: they can."""
        return ""

    def trim(self, comm: Communicator, most: int) -> None:  # noqa: B027 - a default
        """Collective, after a product: free memory beyond `most` bytes a rank that is not workspace."""

    # ------------------------------------------------------------------ memory, without a dry run

    def gathers_in_common(self, nodes: int, ranks: int) -> bool:
        """Whether ranks gather A and B in memory that they share, which no rank owns."""
        return False

    def count_panels(self, plan: Planned, width: int) -> int:
        """Bound the number of panels of at most this width from below."""
        return -(-plan.walk.length(plan.mnk) // width)

    def count_under_way(self, plan: Planned) -> int:
        """Count the elements of the panels that the grid's first rank holds at once, of each matrix that moves."""
        if not self.walks:
            return 0
        common = walk.count_first_common(plan.walk, plan.mnk, plan.grid.sizes)
        return self.count_width_under_way(plan, common) * count_across(plan, self.takes_any_layout)

    def count_width_under_way(self, plan: Planned, common: int) -> int:
        """Count the indices of the panels of one matrix that are held at once; common: indices that the rank has of both."""
        return count_at_once(self.count_panels(plan, plan.panel)) * find_even_width(common, plan.panel)


def count_across(plan: Planned, all_move: bool) -> int:
    """Count the indices across the panels on the grid's first rank, summed over the matrices that move."""
    m, n, k = plan.mnk
    first: Mapping[str, int] = dict.fromkeys(plan.grid.sizes, 0)
    sides = zip(((m, k), (k, n), (m, n)), plan.walk.layouts, plan.walk.axes, walk.WALKED[plan.walk.dimension], strict=True)
    return sum(
        X.local_shape(shape, plan.grid.sizes, first)[1 - dimension]
        for shape, X, axes, dimension in sides
        if dimension is not None and (axes or all_move)
    )


def find_even_width(n: int, panel: int) -> int:
    """Find the width of panels that cut n indices evenly, none wider than `panel`."""
    return -(-n // max(1, -(-n // panel)))


def make_sink(plan: Planned, c: DistMatrix, alpha: complex, beta: complex) -> Sink | None:
    """Make the sink for this rank's products; None on a rank that is idle on the plan's grid."""
    return Sink(c.xp, c.stored, alpha, beta, plan.roles.copies) if plan.grid.active else None


def run_walk(
    walk_k: Callable[..., None], walk_mn: Callable[..., None], plan: Planned, streams: Any, into: Sink | None
) -> None:
    """Walk along k by the one function, along m or n by the other."""
    if streams is None or into is None:
        return
    a, b, c = streams
    if plan.walk.dimension == "k":
        walk_k(a, b, into, plan.panel, plan.memo)
    else:
        moving, fixed = (a, b) if plan.walk.dimension == "m" else (b, a)
        walk_mn(moving, fixed.X.stored, c, into, plan.panel, plan.memo)
