"""An algorithm as a table: a grid, what each axis carries, the layouts of A, B and C, and how panels move.

The rule determines the rest: A and B are gathered along axes that cut them but carry no dimension
of theirs. C's addends are summed to C's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil, prod
from operator import itemgetter
from typing import NamedTuple

from pdla.comm.collectives import circulant
from pdla.cuts import Block, Cut
from pdla.errors import LayoutError
from pdla.layout import Layout, axes_of
from pdla.matmul import boxes
from pdla.matmul.boxes import Box
from pdla.matmul.roles import Roles
from pdla.matmul.schedules import SCHEDULES
from pdla.matrix.redistribute import count_addends
from pdla.model.machine import Machine

Carries = tuple[tuple[str, str], ...]
BOXED = (("m", "m"), ("n", "n"), ("k", "k"))  # what the axes of a box carry
LESS = 0.98  # a face is turned for less than this share of the words: column cuts copy A's and B's shares, and store C by columns
DIMENSIONS = {"A": "mk", "B": "kn", "C": "mn"}


class FaceCut(NamedTuple):
    """Axes that cut one dimension of a matrix's faces, their sizes, and how many parts they make."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    parts: int


@dataclass(frozen=True)
class Table:
    """One way to multiply: `shape` ranks along the axes that carry m, n and k; native layouts of A, B, C; a schedule.

    schedule  "gather" (all at once), "summa" (panels) or "cannon" (shifts)
    walked    the dimension that panels cut
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

    @cached_property
    def axes(self) -> tuple[str, ...]:
        return tuple(map(itemgetter(0), self.carries))

    @cached_property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.axes, self.shape, strict=True))

    @cached_property
    def layouts(self) -> tuple[Layout, Layout, Layout]:
        return self.A, self.B, self.C

    @cached_property
    def box(self) -> Box:
        return boxes.find_box(self.carries, self.sizes)

    @property
    def box_option(self) -> tuple[int, int, int]:
        """The grid's shape as matmul's `box` gives it: one number for ranks along k, even if two axes share them."""
        first, second, *rest = self.shape
        return first, second, prod(rest)

    def words(self, m: int, n: int, k: int) -> float:
        """Count the words a rank receives from native layouts: each face but the rank's own share; exact where sizes divide."""
        return float(sum(self.faces(m, n, k)))

    def faces(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """Count these words for each of A, B and C.

        If sizes do not divide, the words are those of the rank with the largest faces. Its shares of A
        and B are the smallest, its share of C the largest.
        """
        box = self.box
        bm, bn, bk = ceil(m / box.m), ceil(n / box.n), ceil(k / box.k)
        return self._count_gathered("A", bm, bk), self._count_gathered("B", bk, bn), self._count_addends(bm, bn)

    def bound_faces(self, m: int, n: int, k: int) -> list[float]:
        """Bound `faces` from below, whichever dimension each is cut along: without rounding."""
        bm, bn, bk = m / self.box.m, n / self.box.n, k / self.box.k
        words = []
        for face, (rows, cols) in zip((bm * bk, bk * bn, bm * bn), self._face_cuts.values(), strict=True):
            words.append(face * (1 - 1 / (rows.parts * cols.parts)))
        return words

    def _count_gathered(self, name: str, rows: int, cols: int) -> int:
        by_rows, by_cols = self._face_cuts[name]
        return rows * cols - (rows // by_rows.parts) * (cols // by_cols.parts)

    def _count_addends(self, rows: int, cols: int) -> int:
        """Count the words of C's addends, summed along one axis after another in the better of two orders (count_addends)."""
        by_rows, by_cols = self._face_cuts["C"]
        first, second = [(True, p) for p in by_rows.sizes], [(False, p) for p in by_cols.sizes]
        words = count_addends((rows, cols), (*first, *second))
        return min(words, count_addends((rows, cols), (*second, *first))) if first and second else words

    @cached_property
    def _face_cuts(self) -> dict[str, tuple[FaceCut, FaceCut]]:
        """The axes that cut the rows and the columns of each matrix's faces: those that carry another dimension."""
        face_cuts = []
        for axes in _find_crossing_axes(self.carries, *self.layouts):
            sizes = tuple(map(self.sizes.__getitem__, axes))
            face_cuts.append(FaceCut(axes, sizes, prod(sizes)))
        return dict(zip("ABC", zip(face_cuts[::2], face_cuts[1::2], strict=True), strict=True))

    @cached_property
    def roles(self) -> Roles:
        """The roles of the axes: A, B and C are multiplied in the native layouts.

        A cut remains if its axis carries the dimension that it cuts. LayoutError if an axis carries
        k but does not cut k of A and B: each rank along it would add the whole product.
        """
        roles = _find_roles(tuple([(axis, role) for axis, role in self.carries if self.sizes[axis] > 1]), *self.layouts)
        for what, X in (("A's columns", roles.A), ("B's rows", roles.B)):
            if uncut := set(roles.C.partial).difference(X.axes):
                raise LayoutError(f"algorithm {self.algorithm!r}: axes {sorted(uncut)} carry k, and must cut {what}: {self}")
        return roles

    def even_faces(self, m: int, n: int, k: int, two_sums: bool = True) -> Table:
        """Cut a box's faces evenly: put the third cut along the dimension by which a rank receives less.

        Ten ranks, for instance, cut 3 x 1000 evenly only along its columns. If many ranks sum C's
        faces, both dimensions are cut if that is as even: two sums take fewer messages.
        """
        if self.carries != BOXED:
            return self
        how = SCHEDULES[self.schedule]
        free = [X for X, dimensions in DIMENSIONS.items() if how.turns_faces or self.walked not in dimensions]
        enough = [LESS * words for words in self.faces(m, n, k)]
        best = self
        if any(least < words for least, words in zip(self.bound_faces(m, n, k), enough, strict=True)):
            turned = zip(DIMENSIONS, self.turn_faces(*free).faces(m, n, k), enough, strict=True)
            best = self.turn_faces(*[X for X, words, most in turned if words < most])
        if not (two_sums and how.splits_sums) or "C" not in free or self.box.k < circulant.MANY:
            return best
        parts = boxes.split(ceil(m / self.box.m), ceil(n / self.box.n), self.box.k)
        split = best if 1 in parts else best._split(*parts)
        pays = boxes.Boxes.of(m, n, k, *self.box).prefers_two_sums(best.words(m, n, k), split.words(m, n, k))
        return split if pays else best

    def _split(self, rows: int, cols: int) -> Table:
        """Make the table of a box whose ranks along k are a grid of rows x cols, which cuts C's faces along both dimensions."""
        (pm, pn, _), k = self.shape, (Block("k"), Block("l"))
        A, B = (Layout(*(_replace_cut(nest, "k", k) for nest in (X.rows, X.cols))) for X in (self.A, self.B))
        C = Layout(("m", "k"), ("n", "l"))
        return replace(self, shape=(pm, pn, rows, cols), carries=(*BOXED, ("l", "k")), A=A, B=B, C=C)

    def turn_faces(self, *names: str) -> Table:
        """Move the third cut of these matrices' faces to the other dimension, if there is one such cut."""
        turned = {name: self._turn(name) for name in names}
        return replace(self, **turned) if turned else self  # type: ignore[arg-type]

    def _turn(self, name: str) -> Layout:
        layout, further = getattr(self, name), self._face_cuts[name]
        if len(further[0].axes) + len(further[1].axes) != 1:
            return layout
        nests, side = ([*layout.rows], [*layout.cols]), 0 if further[0].axes else 1
        moved = nests[side].pop(axes_of(tuple(nests[side])).index(further[side].axes[0]))
        nests[1 - side].append(moved)
        return Layout.trust(*map(tuple, nests))

    @property
    def with_whole_faces(self) -> Table:
        """The table whose layouts of A and B are those of whole faces: nothing is gathered after the conversion."""
        roles = self.roles
        return replace(self, A=roles.A, B=roles.B)


@lru_cache(maxsize=1024)
def _find_crossing_axes(carries: Carries, A: Layout, B: Layout, C: Layout) -> list[tuple[str, ...]]:
    """Find the axes that cut A's rows but carry another dimension; likewise for A's columns, B's rows, and so on."""
    role, dimensions = dict(carries), "".join(DIMENSIONS.values())
    nests = (A.rows, A.cols, B.rows, B.cols, C.rows, C.cols)
    return [tuple([cut.axis for cut in nest if role[cut.axis] != own]) for nest, own in zip(nests, dimensions, strict=True)]


@lru_cache(maxsize=1024)
def _find_roles(carries: Carries, A: Layout, B: Layout, C: Layout) -> Roles:
    """Find the roles of these axes, and A, B and C with only those cuts whose axis carries the dimension that it cuts."""
    role, dimensions = dict(carries), "".join(DIMENSIONS.values())
    nests = (A.rows, A.cols, B.rows, B.cols, C.rows, C.cols)
    m, k, again_k, n, again_m, again_n = [
        tuple([cut for cut in nest if role.get(cut.axis) == own]) for nest, own in zip(nests, dimensions, strict=True)
    ]
    summed = tuple([axis for axis, carried in carries if carried == "k"])
    return Roles(carries, Layout.trust(m, k), Layout.trust(again_k, n), Layout.trust(again_m, again_n, summed))


@dataclass(frozen=True)
class Algorithm:
    """A named algorithm: functions that list the shapes of grids to try for m, n, k, ranks and machine, and a shape's tables."""

    name: str
    list_shapes: Callable[[int, int, int, int, Machine], Iterable[tuple[int, int, int]]]
    list_tables: Callable[[tuple[int, int, int]], Iterable[Table]]


# The layouts of a box, by the dimension that its panels walk. Each matrix is cut by the axes of its
# own two dimensions. The third axis cuts it along the walked dimension; or along its rows, if it does
# not have the walked dimension.
BOXES = {
    "k": (Layout("m", ("k", "n")), Layout(("k", "m"), "n"), Layout(("m", "k"), "n")),
    "n": (Layout(("m", "n"), "k"), Layout("k", ("n", "m")), Layout("m", ("n", "k"))),
    "m": (Layout(("m", "n"), "k"), Layout(("k", "m"), "n"), Layout(("m", "k"), "n")),
}


def tabulate_box(algorithm: str, box: tuple[int, int, int], schedule: str, walked: str = "k") -> Table:
    """Make the table of a box."""
    return Table(algorithm, tuple(box), BOXED, *BOXES[walked], schedule, walked)


def _replace_cut(nest: tuple[Cut, ...], axis: str, cuts: tuple[Cut, ...]) -> tuple[Cut, ...]:
    """Put these cuts in a nest in place of the one along an axis."""
    return tuple(new for cut in nest for new in (cuts if cut.axis == axis else (cut,)))
