"""An algorithm as a table: a grid, what each axis carries, the layouts of A, B and C, and how panels move.

Everything else follows by the rule: A and B are gathered along axes that cut them but carry no dimension of theirs, and C's
addends are summed to C's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import ceil, prod

from pdla.comm import circulant
from pdla.cuts import Cut
from pdla.layout import Layout
from pdla.matmul import boxes
from pdla.matmul.boxes import Box
from pdla.matmul.roles import Roles
from pdla.model.machine import Machine

Carries = tuple[tuple[str, str], ...]
BOXED = (("m", "m"), ("n", "n"), ("k", "k"))  # what the axes of a box carry
MUCH = 0.9  # as shares along rows are views, and those along columns copies, a few words less are not worth it
DIMENSIONS = {"A": "mk", "B": "kn", "C": "mn"}


@dataclass(frozen=True)
class Table:
    """One way to multiply: `shape` ranks along the axes that carry m, n and k; native layouts of A, B, C; a schedule.

    schedule  "gather" (all at once), "summa" (panels) or "cannon" (shifts);  walked: the dimension that panels cut
    box       the ranks along m, n and k in all
    """

    algorithm: str
    shape: tuple[int, ...]
    carries: Carries
    A: Layout
    B: Layout
    C: Layout
    schedule: str
    walked: str = "k"

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(axis for axis, _ in self.carries)

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.axes, self.shape, strict=True))

    @property
    def box(self) -> Box:
        return boxes.of(self.carries, self.sizes)

    def words(self, m: int, n: int, k: int) -> float:
        """Words a rank receives, starting from native layouts: of each face all but its own share; exact where sizes divide."""
        return float(sum(self.faces(m, n, k)))

    def faces(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """The same for each of A, B and C. Where sizes do not divide: the rank with the largest faces, whose shares of A and B are
        the smallest, and whose share of C is the largest."""
        box = self.box
        bm, bn, bk = ceil(m / box.m), ceil(n / box.n), ceil(k / box.k)
        role = dict(self.carries)

        def shares(rows: int, cols: int, layout: Layout, carried: str) -> list[tuple[int, int]]:
            """Into how many parts rows and columns of a face are cut further."""
            return [
                (size, prod(self.sizes[cut.axis] for cut in nest if role[cut.axis] != own))
                for size, nest, own in zip((rows, cols), (layout.rows, layout.cols), carried, strict=True)
            ]

        def gathered(rows: int, cols: int, layout: Layout, carried: str) -> int:
            return rows * cols - prod(size // parts for size, parts in shares(rows, cols, layout, carried))

        cuts = shares(bm, bn, self.C, DIMENSIONS["C"])
        share, holders = prod(ceil(size / parts) for size, parts in cuts), prod(min(size, parts) for size, parts in cuts)
        addends = circulant.most_addends(box.k, holders) if circulant.pays(8 * bm * bn, box.k) else box.k - 1
        return gathered(bm, bk, self.A, DIMENSIONS["A"]), gathered(bk, bn, self.B, DIMENSIONS["B"]), share * addends

    @property
    def roles(self) -> Roles:
        """The roles of the axes: A, B and C are multiplied in the native layouts, without the cuts along axes that carry another
        dimension than the one that they cut."""
        role = {axis: carried for axis, carried in self.carries if self.sizes[axis] > 1}

        def along(dimension: str, nest: tuple[Cut, ...]) -> tuple[Cut, ...]:
            return tuple(cut for cut in nest if role.get(cut.axis) == dimension)

        partial = tuple(axis for axis, carried in role.items() if carried == "k")
        c = Layout(along("m", self.C.rows), along("n", self.C.cols), partial)
        a, b = Layout(along("m", self.A.rows), along("k", self.A.cols)), Layout(along("k", self.B.rows), along("n", self.B.cols))
        return Roles(tuple(role.items()), a, b, c)

    def evened(self, m: int, n: int, k: int) -> Table:
        """A box's table, with the third cut of a face along its other dimension where a rank then receives much less: 3 x 1000
        can be cut into ten even shares along its columns only. Faces of which panels are walked stay as they are; so do other
        grids' tables.
        """
        if self.carries != BOXED:
            return self
        other = replace(self, A=turned(self.A), B=turned(self.B), C=turned(self.C))
        words = zip(DIMENSIONS, self.faces(m, n, k), other.faces(m, n, k), strict=True)
        free = [X for X, dimensions in DIMENSIONS.items() if self.schedule == "gather" or self.walked not in dimensions]
        return replace(self, **{X: getattr(other, X) for X, here, there in words if there < MUCH * here and X in free})

    @property
    def straight(self) -> Table:
        """The same table, where A and B are brought to the layouts in which they are multiplied, so that none is gathered there."""
        met = self.roles
        return replace(self, A=met.A, B=met.B)


@dataclass(frozen=True)
class Algorithm:
    """A named algorithm: the grid shapes worth a look for a product's m, n, k, ranks and machine; and the tables for one shape."""

    name: str
    shapes: Callable[[int, int, int, int, Machine], Iterable[tuple[int, int, int]]]
    tables: Callable[[tuple[int, int, int]], Iterable[Table]]


def boxed(algorithm: str, box: tuple[int, int, int], schedule: str, walked: str = "k") -> Table:
    """The table of a box: each of A, B and C is cut by the axes of its own two dimensions, and by the third axis, too: along the
    walked dimension if it has that, else along its rows."""
    A = Layout("m", ("k", "n")) if walked == "k" else Layout(("m", "n"), "k")
    B = Layout("k", ("n", "m")) if walked == "n" else Layout(("k", "m"), "n")
    C = Layout("m", ("n", "k")) if walked == "n" else Layout(("m", "k"), "n")
    return Table(algorithm, tuple(box), BOXED, A, B, C, schedule, walked)


def turned(face: Layout) -> Layout:
    """The layout of A, B or C in a box with its third cut, if it has one, moved to the other dimension."""
    rows, cols = face.rows, face.cols
    if len(rows) + len(cols) < 3:
        return face
    return Layout(rows[:1], (*cols, rows[1])) if len(rows) == 2 else Layout((*rows, cols[1]), cols[:1])
