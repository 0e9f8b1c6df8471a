"""Words that pdla's boxes receive, over the lower bound and beside other boxes, dry."""

from functools import lru_cache
from math import inf

import numpy as np

import pdla
from bench.common.case import case
from bench.common.given import read_shapes
from pdla.bench.arguments import natural, positive, to_draw
from pdla.comm.dry import DryComm
from pdla.matmul import boxes, planner
from pdla.matmul.algorithms import BOX
from pdla.matmul.boxes import Box
from pdla.matmul.builder import PlanBuilder
from pdla.matmul.choose.candidates import list_ways
from pdla.matmul.choose.mapping import Holding, Place, Side
from pdla.matmul.choose.problem import Operand, PlacedOperand, Problem, Sizes
from pdla.matmul.options import Options
from pdla.model.bounds import received_lower_bound
from pdla.model.machine import Machine

SHAPES = ((32768, 32768, 32768), (100000, 100000, 5000), (6000, 6000, 1200000), (10007, 20011, 4999))
LARGE = (
    (1048576, 2048, 2048), (2048, 1048576, 2048), (2048, 2048, 1048576), (16384, 16384, 16384), (131072, 131072, 131072),
    (16384, 16384, 64), (512, 512, 1048576), (512, 512, 64), *SHAPES, (10**6, 1000, 1000), (1000, 10**6, 1000), (1000, 1000, 10**6),
)
MANY = 4096, 8191, 65536, 65537, 262144, 999983, 10**6
MACHINES = "laptop", "a100x4"
WAYS = OURS, DIVIDE, CONVERTED, LEAST, OVER = (
    "pdla", "sides that divide P", "2-D blocks to 2-D blocks", "the least of any box", "2-D blocks over that"
)


@case("ranks:<8 | m x n x k:<22 | words over the lower bound:<25 | median:8.3f | p95:8.3f | max:8.3f | least share of ranks:22.3f")
def volume(
    products: read_shapes = SHAPES, *, to: positive = 1024, every: positive = 1, convert: natural = 0, least: natural = 0,
    plot: to_draw = None,
):
    """Words that a rank receives, over the lower bound, for every number P of ranks.

    Figures are for pdla's boxes, and for the best box of exactly P ranks. The figures follow the
    plans' formulas, which tests compare with counted bytes.

    | option | adds |
    |---|---|
    | --to, --every N | the largest P, and every N-th P only |
    | --convert N | for every N-th P plans from and to 2-D blocks, with their conversions |
    | --least N | for every N-th P the fewest words of any box and any order of ranks, for these blocks |
    | --plot FILE | the picture of docs/choosing.md |
    """
    studies = [(mnk, *study(mnk, to, every, convert, least)) for mnk in products]
    for span, counts in (("P < 32", range(32)), ("P >= 32", range(32, to + 1))):
        for mnk, by_way, shares in studies:
            for name, words in by_way.items():
                if ratios := [value for ranks, value in words.items() if ranks in counts]:
                    share = min(value for ranks, value in shares.items() if ranks in counts) if name == OURS else None
                    figures = np.median(ratios), np.percentile(ratios, 95), max(ratios)
                    yield span, "x".join(map(str, mnk)), name, *figures, share
    if plot:
        draw(studies, plot)


def study(mnk, to, every, convert, least):
    """Compute the words over the bound, by WAYS and ranks, and the shares of ranks that pdla's boxes use."""
    chosen = {ranks: count_ours(mnk, ranks) for ranks in range(2, to + 1, every)}
    converted = {ranks: count_converted(mnk, ranks)[0] for ranks in range(2, to + 1, convert)} if convert else {}
    floor = {ranks: find_least(mnk, ranks) for ranks in range(2, to + 1, least)} if least else {}
    ratios = {ranks: converted[ranks] / floor[ranks] for ranks in floor if ranks in converted}
    words, shares = ({ranks: each[i] for ranks, each in chosen.items()} for i in range(2))
    divide = {ranks: count_by_divisors(mnk, ranks) for ranks in chosen}
    return dict(zip(WAYS, (words, divide, converted, floor, ratios), strict=True)), shares


def count_ours(mnk, ranks):
    """Count the words over the bound in the box's own layouts, and the share of ranks with work."""
    box = boxes.find_cheapest(*mnk, ranks, Machine())[0]
    return boxes.count_words(*mnk, box) / received_lower_bound(*mnk, ranks), box.ranks / ranks


def count_by_divisors(mnk, ranks):
    """Count the words over the bound of the best box whose sides multiply to P, as in COSMA."""
    sides = [d for d in range(1, ranks + 1) if ranks % d == 0]
    found = (Box(pm, pn, ranks // pm // pn) for pm in sides for pn in sides if ranks // pm % pn == 0)
    return min(boxes.count_words(*mnk, box) for box in found) / received_lower_bound(*mnk, ranks)


def count_converted(mnk, ranks):
    """Count the words over the bound from and to near-square 2-D blocks, and the conversions' part."""
    m, n, k = mnk
    blocks, shape = pdla.Layout("row", "col"), pdla.balanced_shape(ranks)
    place = Place(("row", "col"), shape, np.arange(ranks), ranks, b"")
    A, B, C = (PlacedOperand(size, blocks, place) for size in ((m, k), (k, n), (m, n)))
    problem = Problem(mnk, ranks, itemsize=8, machine=Machine(), shared=0, nodes=(), A=A, B=B, C=C)
    way = list_ways(problem, "auto", None, None)[0]
    bound = received_lower_bound(*mnk, ranks)
    return (way.words + way.moved) / bound, way.moved / bound


def find_least(mnk, ranks):
    """Bound from below the words over the bound that some rank must receive from and to 2-D blocks, by any box.

    The box leaves at most 11% of ranks idle. At a place of its grid a rank needs:

    * the elements of its faces of A and B that it does not hold;
    * for its own block of C an addend from each of pk places, except its own addends.

    For a lower bound, each rank takes its best place, even if several take the same. The ranks that
    need most are idle. Some rank then receives at least the mean of the others.
    """
    m, n, k = mnk
    shape, blocks, order = pdla.balanced_shape(ranks), pdla.Layout("row", "col"), np.arange(ranks)
    faces = pdla.Layout("m", "k"), pdla.Layout("k", "n"), pdla.Layout("m", "n")
    bound, best = received_lower_bound(*mnk, ranks), inf
    for box in sorted(_list_boxes(mnk, ranks), key=lambda box: boxes.count_words(*mnk, box)):
        if 0.85 * boxes.count_words(*mnk, box) - (m * k + k * n) / ranks >= best * bound:
            break
        needed = np.zeros((ranks, box.ranks))
        for size, face in zip(((m, k), (k, n), (m, n)), faces, strict=True):
            needed_side, held_side = Side(size, face, ("m", "n", "k"), box), Side(size, blocks, ("row", "col"), shape)
            own_need = box.k * held_side.elements[:, None] if face is faces[2] else needed_side.elements
            needed += own_need - Holding(held_side, needed_side, order, ranks).elements
        best = min(best, np.sort(needed.min(axis=1))[: box.ranks].mean() / bound)
    return best


def _list_boxes(mnk, ranks):
    sides = ((pm, pn, ranks // (pm * pn)) for pm in range(1, ranks + 1) for pn in range(1, ranks // pm + 1))
    found = (Box(*(min(side, size) for side, size in zip(box, mnk, strict=True))) for box in sides)
    return {box for box in found if box.ranks >= 0.89 * ranks}


@case("m x n x k:<26 | ranks:8 | box:<20 | words/bound:12.3f | messages:10 | s/fewest words: laptop, a100x4:34")
def far_out():
    """The boxes chosen on 4096 to a million ranks: words over the bound, messages and seconds, dry.

    Seconds are on two machines, over those of the box of fewest words that leaves at most 11% of
    ranks idle.
    """
    for mnk in LARGE:
        for ranks in MANY:
            box, over, messages, ratios = compare_fewest(mnk, ranks)
            product, sides = (" x ".join(map(str, each)) for each in (mnk, box))
            yield product, ranks, sides, over, messages, ", ".join(f"{ratio:.2f}" for ratio in ratios)


def compare_fewest(mnk, ranks):
    """Return the chosen box, its words over the bound, its messages, and its seconds over those of the box of fewest words.

    The seconds are on each of MACHINES.
    """
    chosen, fewest = boxes.find_cheapest(*mnk, ranks, Machine(), rows_first=True)[0], find_fewest(mnk, ranks)
    ratios = [predict(mnk, ranks, chosen, machine).seconds / predict(mnk, ranks, fewest, machine).seconds for machine in MACHINES]
    cost = predict(mnk, ranks, chosen, MACHINES[0])
    return chosen, cost.bytes_received / 8 / received_lower_bound(*mnk, ranks), cost.messages, ratios


def find_fewest(mnk, ranks):
    pm, pn = boxes._list_sides(*mnk, ranks)
    pm, pn = np.minimum(pm, mnk[0]), np.minimum(pn, mnk[1])
    pk = np.minimum(ranks // (pm * pn), mnk[2])
    words = np.where(pm * pn * pk >= 0.89 * ranks, boxes.Boxes.of(*mnk, pm, pn, pk).words, np.inf)
    best = int(np.argmin(words))
    return Box(int(pm[best]), int(pn[best]), int(pk[best]))


@lru_cache(maxsize=64)
def predict(mnk, ranks, box, machine):
    """Predict the cost of a product by a box, by its best schedule, in its own layouts."""
    (m, n, k), machine = mnk, Machine.load(machine)
    problem, tables = Sizes(mnk, ranks, 8, machine, 0, ()), [*BOX.list_tables(tuple(box))]
    schedule = problem.choose_schedule(tables[0].layouts, tables[0].roles, tables[0].sizes)
    table = next(table for table in tables if table.schedule == schedule).even_faces(m, n, k)
    grid = pdla.ProcessGrid.trust(table.shape, DryComm(0, ranks), None, table.axes)
    A, B, C = (Operand(*each, grid) for each in (((m, k), table.A), ((k, n), table.B), ((m, n), table.C)))
    options = Options(table.algorithm, table.box_option, table.schedule)
    return planner.make(PlanBuilder(A, B, C, np.dtype(float), options, machine)).predicted


def draw(studies, path):
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "pdla", "font.size": 9})
    rows = -(-len(studies) // 2)
    figure, plots = plt.subplots(rows, 2, figsize=(9, 3 * rows), sharex=True, squeeze=False, constrained_layout=True)
    dots = {"marker": ".", "linestyle": "", "markersize": 3, "rasterized": True}
    drawn = (  # later ones cover the others
        (DIVIDE, "sides that divide P", dots | {"color": "#cccccc"}),
        (CONVERTED, "pdla, from and to 2-D blocks", dots | {"color": "#f6a04d"}),
        (LEAST, "these blocks, least of any box", {"color": "k", "marker": "_", "linestyle": "", "markersize": 5}),
        (OURS, "pdla, own layouts", dots | {"color": "#2f6fed"}),
    )
    for axes, (mnk, by_way, _) in zip(plots.flat, studies, strict=False):
        for name, label, style in drawn:
            if by_way[name]:
                axes.plot(list(by_way[name]), list(by_way[name].values()), label=label, **style)
        axes.set(title="m n k = " + " ".join(map(str, mnk)), xscale="log", yscale="log", ylim=(0.9, 40))
        axes.set_yticks([1, 2, 5, 10, 30], ["1", "2", "5", "10", "30"])
    plots[0, 0].legend(markerscale=3)
    figure.supxlabel("ranks")
    figure.supylabel("words received over the lower bound")
    figure.savefig(path, dpi=200, metadata={"Date": None})
