"""Random programs of many steps: with data every matrix equals NumPy's after every step; in a dry run the ledger is the same.

Each kind of step is two functions: one draws it, given the shapes of the matrices so far; the other does it, on every rank.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
from helpers.layouts import grids, layouts, spread
from helpers.level3 import VIEWS, both, random_array
from hypothesis import given, settings

import pdla
from pdla import ProcessGrid
from pdla.array.dtypes import can_cast_addends
from pdla.comm.collectives import ring
from pdla.errors import LayoutError

DTYPES = (complex, float, np.complex64, np.float32, np.int64)
# Which pieces go around the nodes: the long ones, or all of them, either way.
AROUND = ({"LONG": ring.LONG}, {"LONG": 0})
MOST = 2**20  # elements stay below: every sum is exact, in float32, too


@dataclass(frozen=True)
class Step:
    """What is done, to which matrices, by their numbers, and how; shape and grid of the matrix it makes, None: it writes to one."""

    what: str
    of: tuple[int, ...]
    how: tuple = ()
    makes: tuple | None = None


@dataclass
class Sketch:
    """A program while it is drawn: shapes and grids of the matrices that there are by now.

    chance  draws evenly, what hypothesis does not: it takes to few kinds of steps, and long programs are rare
    """

    draw: st.DrawFn
    chance: Random
    places: list
    known: list = field(default_factory=list)

    def pick(self, shape=None, rows=None):
        """The number of a matrix, of this shape or of so many rows, often the latest; None where there is none."""
        fit = [i for i, (has, _) in enumerate(self.known) if shape in (None, has) and rows in (None, has[0])]
        return self.chance.choice([fit[-1], *fit]) if fit else None

    def layout(self, shape, home, partial=False):
        return self.draw(layouts(shape, self.places[home], partial))


# ---------------------------------------------------------------------------------------------- drawing a step


def draw_view(sketch, first, shape, home):
    how = sketch.chance.choice(sorted(VIEWS))
    return Step("view", (first,), (how,), (shape[::-1] if how in "TH" else shape, home))


def draw_part(sketch, first, shape, home, writes):
    rows, cols = (sorted(sketch.draw(st.tuples(*[st.integers(0, size)] * 2))) for size in shape)
    ends, value = (slice(*rows), slice(*cols)), sketch.draw(st.integers(-3, 3))
    made = (rows[1] - rows[0], cols[1] - cols[0]), home
    return Step("write", (first,), (ends, value)) if writes else Step("part", (first,), (ends,), made)


def draw_redistribute(sketch, first, shape, home):
    there = sketch.chance.randrange(len(sketch.places))
    return Step("redistribute", (first,), (sketch.layout(shape, there), there), (shape, there))


def draw_product(sketch, first, shape, home):
    second = sketch.pick(rows=shape[1])
    if second is None:
        return None
    made = shape[0], sketch.known[second][0][1]
    layout = sketch.chance.choice([None, "native", "drawn"])
    layout = sketch.layout(made, home) if layout == "drawn" else layout
    algorithm, panel = st.sampled_from(["auto", *pdla.algorithms]), st.one_of(st.none(), st.integers(1, 5))
    how = sketch.draw(st.tuples(algorithm, st.just(layout), panel, st.sampled_from([1, 2, -1]), st.booleans()))
    return Step("product", (first, second), how, (made, home))


def draw_triangle(sketch, first, shape, home):
    return Step("triangle", (first,), sketch.draw(st.tuples(*[st.booleans()] * 3)), ((shape[0], shape[0]), home))


def draw_add(sketch, first, shape, home):
    return Step("add", (first, sketch.pick(shape)), (), (shape, home))


def draw_simple(sketch, first, shape, home, what, makes):
    return Step(what, (first,), (), (shape, home) if makes else None)


DRAWN = (
    draw_view, draw_redistribute, draw_redistribute, draw_product, draw_product, draw_triangle, draw_add,
    partial(draw_part, writes=False), partial(draw_part, writes=True), partial(draw_simple, what="copy", makes=True),
    partial(draw_simple, what="double", makes=False), partial(draw_simple, what="vector", makes=False),
    partial(draw_simple, what="share", makes=True),
)


@st.composite
def programs(draw):
    """Ranks, grids, the matrices that there are at the beginning, steps, and by rank the first rank on its node."""
    ranks = draw(st.integers(1, 7))
    chance = draw(st.randoms(use_true_random=True))
    sketch = Sketch(draw, chance, draw(st.lists(grids(ranks), min_size=1, max_size=2)))
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 5, 9, 0]), min_size=1, max_size=3))
    made, steps = [], []
    for _ in range(draw(st.integers(1, 3))):
        shape, home = (chance.choice(sizes), chance.choice(sizes)), chance.randrange(len(sketch.places))
        made.append((shape, chance.choice(DTYPES), home, sketch.layout(shape, home, partial=True)))
        sketch.known.append((shape, home))
    for _ in range(chance.randint(2, 12)):
        first = sketch.pick()
        step = chance.choice(DRAWN)(sketch, first, *sketch.known[first])
        steps += [step] if step else []
        sketch.known += [step.makes] if step and step.makes else []
    nodes = chance.choice([[chance.randrange(3) for _ in range(ranks)], [r // 2 for r in range(ranks)]])
    return ranks, sketch.places, made, steps, [nodes.index(node) for node in nodes]


# ---------------------------------------------------------------------------------------------- doing it


class Twin:
    """A matrix and NumPy's: a view of an array, conjugated or not, so that what is written to one is in all its views."""

    def __init__(self, A, view, conjugated=False):
        self.A, self.view, self.conjugated = A, view, conjugated

    @property
    def whole(self):
        return self.view.conj() if self.conjugated else self.view

    @property
    def same(self):
        A = self.A.redistribute(self.A.layout.summed) if self.A.layout.partial else self.A
        rows, cols = (held.indices() for held in A.indices)
        return np.array_equal(A.local, self.whole[np.ix_(rows, cols)]) and A.dtype == self.view.dtype


def small(*factors):
    """Whether NumPy's product, or double of one matrix, is far below what every dtype counts to."""
    product = np.abs(factors[0]).astype(float)
    for x in factors[1:]:
        product = product @ np.abs(x).astype(float)
    return bool((product < MOST / 4).all())


def view(grids, X, how):
    return Twin(VIEWS[how](X.A), X.view.T if how in "TH" else X.view, X.conjugated != (how in ("H", "conj")))


def part(grids, X, ends):
    try:
        return Twin(X.A[ends], X.view[ends], X.conjugated)
    except LayoutError:  # cut along several axes
        return Twin(X.A.redistribute(pdla.Layout())[ends], X.whole[ends].copy())


def write(grids, X, ends, value):
    with suppress(LayoutError):
        X.A[ends] = value
        X.view[ends] = value


def redistribute(grids, X, layout, there):
    return Twin(X.A.redistribute(layout, grids[there]), X.whole.copy())


def copy(grids, X):
    return Twin(X.A.copy(), X.whole.copy())


def share(grids, X):
    try:
        return Twin(X.A.shared(), X.whole.copy())
    except LayoutError:  # copies, partial sums, or dealt out in turn
        return copy(grids, X)


def double(grids, X):
    if small(X.view):
        X.A *= 2
        X.view[...] *= X.view.dtype.type(2)


def vector(grids, X):
    x = random_array((X.view.shape[1],), X.view.dtype, 5)
    y = pdla.matvec(X.A, x)
    assert X.A.xp.name == "meta" or not small(X.view, x) or np.array_equal(y, X.whole @ x)


def add(grids, X, Y):
    A, B = (Z.A if small(Z.view) else Z.A * 0 for Z in (X, Y))
    x, y = (Z.whole if small(Z.view) else Z.whole * 0 for Z in (X, Y))
    kind, partial_ = np.result_type(A.dtype, B.dtype), A.layout.partial or B.layout.partial
    cast = partial_ and not all(can_cast_addends(Z.dtype, kind) for Z in (A, B))  # integers are summed first
    if cast or A.grid != B.grid or not A.matches_layout(B.layout):
        A = A.redistribute(A.layout.summed)
        B = B.redistribute(A.layout, A.grid)
    return Twin(A + B, x + y)


def triangle(grids, X, hermitian, lower, mirror):
    A, x = (X.A, X.whole) if small(X.view, X.view.T) else (X.A * 0, X.whole * 0)
    C = (pdla.herk if hermitian else pdla.syrk)(A, lower=lower, mirror=mirror)
    product = x @ (x.conj().T if hermitian else x.T)
    return Twin(C, product if mirror else both(product, lower))


def product(grids, X, Y, algorithm, layout, panel, alpha, again):
    """And, with a plan, C = A B - C, twice: C again."""
    A, x = (X.A, X.whole) if small(X.view, Y.view) else (X.A * 0, X.whole * 0)
    algorithm = "auto" if A.grid != Y.A.grid else algorithm
    C = pdla.matmul(A, Y.A, algorithm=algorithm, layout=layout, panel=panel, alpha=alpha)
    if again:
        plan = pdla.plan_matmul(A, Y.A, out=C, beta=-1, algorithm=algorithm, panel=panel)
        for _ in range(2):
            plan(A, Y.A, out=C, beta=-1)
    there = C if C.grid == A.grid else C.redistribute(pdla.Layout(), A.grid)  # the layouts drawn are of grids that all know
    return Twin(there, (alpha * (x @ Y.whole)).astype(C.dtype))


DONE = {done.__name__: done for done in (view, part, write, redistribute, copy, share, double, vector, add, triangle, product)}


def begun(whole, grid, layout):
    """A matrix of blocks in any order, addends where the layout is partial. (An idle rank that runs dry sees no block's dtype.)"""
    if grid.active or grid.comm.xp.name != "meta":
        return spread(whole, grid, layout)
    return pdla.zeros(whole.shape, grid, layout, dtype=whole.dtype)


def run(comm, case):
    """What this rank received, from other nodes too, and computed in each step."""
    _, places, made, steps, comm.homes = case
    grids = [ProcessGrid(shape, axes, comm, order) for shape, axes, order in places]
    whole = [random_array(shape, dtype, seed) for seed, (shape, dtype, _, _) in enumerate(made)]
    twins = [Twin(begun(x, grids[home], layout), x) for x, (_, _, home, layout) in zip(whole, made, strict=True)]
    figures = []
    for step in steps:
        with pdla.record() as ledger:
            twin = DONE[step.what](grids, *(twins[i] for i in step.of), *step.how)
        twins += [twin] if twin else []
        wrong = [i for i, each in enumerate(twins) if comm.xp.name != "meta" and not each.same]
        assert not wrong, f"after {step} the matrices {wrong} of {len(twins)} are not NumPy's on rank {comm.rank}"
        figures.append((step.what, ledger.bytes_received, ledger.bytes_from_far, ledger.messages, ledger.flops))
    return figures


@settings(max_examples=150)
@given(programs(), st.sampled_from(AROUND))
def test_programs_are_numpys_and_counted_dry_alike(case, around):
    ranks = case[0]
    with patch.multiple(ring, **around):
        figures = pdla.run(ranks, run, case)
        for rank in range(ranks):
            assert pdla.dry_run(ranks, run, case, rank=rank)[0] == figures[rank]
