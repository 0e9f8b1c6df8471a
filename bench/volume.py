"""Words that a rank receives, over the lower bound, for every number P of ranks: pdla's boxes, and boxes of exactly P ranks.

python -m bench.volume [--shapes MxNxK,...] [--to 1024] [--every 1] [--convert 0] [--least 0] [--plot FILE] [--json FILE]
python -m bench.volume --large

--convert N also plans products from and to 2-D blocks on the near-square grid, conversions counted, for every N-th number of ranks.
--least N computes for every N-th the fewest words with which any box can do, from and to these blocks, whichever rank is put where:
see `least`. There are no messages and no data: figures are by the plans' formulas, which tests compare with counted bytes.
--large is about 4096 to a million ranks: of the box that is taken its words over the bound, its messages, and its seconds on two
machines as multiples of those of the box of fewest words, of boxes that leave at most 11% of ranks idle. These are of dry runs.
"""

from functools import lru_cache
from math import inf

import numpy as np

import pdla
from bench.common.given import parser, shapes
from pdla.bench.arguments import natural, positive, to_draw, to_write
from pdla.bench.leave import write_json
from pdla.comm.dry import DryComm
from pdla.matmul import boxes, planner
from pdla.matmul.algorithms import BOX
from pdla.matmul.boxes import Box
from pdla.matmul.builder import PlanBuilder
from pdla.matmul.choose.candidates import ways
from pdla.matmul.choose.mapping import Kept, Place, Side
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


def ours(mnk, ranks):
    """Words over the bound in the box's own layouts, and the share of the ranks that work."""
    box = boxes.cheapest(*mnk, ranks, Machine())[0]
    return boxes.words(*mnk, box) / received_lower_bound(*mnk, ranks), box.ranks / ranks


def by_divisors(mnk, ranks):
    """Words over the bound of the best box whose sides multiply to P, as in COSMA."""
    sides = [d for d in range(1, ranks + 1) if ranks % d == 0]
    found = (Box(pm, pn, ranks // pm // pn) for pm in sides for pn in sides if ranks // pm % pn == 0)
    return min(boxes.words(*mnk, box) for box in found) / received_lower_bound(*mnk, ranks)


def converted(mnk, ranks):
    """Words over the bound from and to 2-D blocks on the near-square grid, and the conversions' part of them."""
    m, n, k = mnk
    blocks, shape = pdla.Layout("row", "col"), pdla.balanced_shape(ranks)
    place = Place(("row", "col"), shape, np.arange(ranks), ranks, b"")
    A, B, C = (PlacedOperand(size, blocks, place) for size in ((m, k), (k, n), (m, n)))
    asked = Problem(mnk, ranks, itemsize=8, machine=Machine(), shared=0, nodes=(), A=A, B=B, C=C)
    way = ways(asked, "auto", None, None)[0]
    bound = received_lower_bound(*mnk, ranks)
    return (way.words + way.moved) / bound, way.moved / bound


def least(mnk, ranks):
    """Words over the bound that some rank must receive from and to 2-D blocks, by any box that leaves at most 11% of ranks idle.

    At a place of the box's grid a rank needs those elements of its faces of A and B that it does not hold, and for its own block of
    C an addend from each of pk places, less those it computes itself. As a lower bound, each rank gets the place that is best for
    it, even if several get the same one, and the ranks that need most are idle: some rank receives at least the mean of the rest.
    """
    m, n, k = mnk
    shape, blocks, order = pdla.balanced_shape(ranks), pdla.Layout("row", "col"), np.arange(ranks)
    faces = pdla.Layout("m", "k"), pdla.Layout("k", "n"), pdla.Layout("m", "n")
    bound, best = received_lower_bound(*mnk, ranks), inf
    for box in sorted(_boxes(mnk, ranks), key=lambda box: boxes.words(*mnk, box)):
        if 0.85 * boxes.words(*mnk, box) - (m * k + k * n) / ranks >= best * bound:
            break
        needed = np.zeros((ranks, box.ranks))
        for size, face in zip(((m, k), (k, n), (m, n)), faces, strict=True):
            there, here = Side(size, face, ("m", "n", "k"), box), Side(size, blocks, ("row", "col"), shape)
            wanted = box.k * here.elements[:, None] if face is faces[2] else there.elements
            needed += wanted - Kept(here, there, order, ranks).elements
        best = min(best, np.sort(needed.min(axis=1))[: box.ranks].mean() / bound)
    return best


def _boxes(mnk, ranks):
    sides = ((pm, pn, ranks // (pm * pn)) for pm in range(1, ranks + 1) for pn in range(1, ranks // pm + 1))
    found = (Box(*(min(side, size) for side, size in zip(box, mnk, strict=True))) for box in sides)
    return {box for box in found if box.ranks >= 0.89 * ranks}


def far_out(mnk, ranks):
    """The box that is taken, its words over the bound, its messages, and its seconds over those of the box of fewest words, on each
    of MACHINES."""
    taken, fewest = boxes.cheapest(*mnk, ranks, Machine(), rows_first=True)[0], fewest_words(mnk, ranks)
    ratios = [planned(mnk, ranks, taken, one).seconds / planned(mnk, ranks, fewest, one).seconds for one in MACHINES]
    cost = planned(mnk, ranks, taken, MACHINES[0])
    return taken, cost.bytes_received / 8 / received_lower_bound(*mnk, ranks), cost.messages, ratios


def fewest_words(mnk, ranks):
    pm, pn = boxes._sides(*mnk, ranks)
    pm, pn = np.minimum(pm, mnk[0]), np.minimum(pn, mnk[1])
    pk = np.minimum(ranks // (pm * pn), mnk[2])
    words = np.where(pm * pn * pk >= 0.89 * ranks, boxes.Boxes.of(*mnk, pm, pn, pk).words, np.inf)
    best = int(np.argmin(words))
    return Box(int(pm[best]), int(pn[best]), int(pk[best]))


@lru_cache(maxsize=64)
def planned(mnk, ranks, box, machine):
    """The predicted cost of a product by a box, by the schedule that suits it, in the box's own layouts."""
    (m, n, k), machine = mnk, Machine.load(machine)
    asked, tables = Sizes(mnk, ranks, 8, machine, 0, ()), [*BOX.tables(tuple(box))]
    suits = asked.schedule(tables[0].layouts, tables[0].roles, tables[0].sizes)
    table = next(table for table in tables if table.schedule == suits).evened(m, n, k)
    grid = pdla.ProcessGrid.trusted(table.shape, DryComm(0, ranks), None, table.axes)
    A, B, C = (Operand(*each, grid) for each in (((m, k), table.A), ((k, n), table.B), ((m, n), table.C)))
    options = Options(table.algorithm, table.asked, table.schedule)
    return planner.make(PlanBuilder(A, B, C, np.dtype(float), options, machine)).predicted


def large_table():
    seconds = f"s/fewest words: {', '.join(MACHINES)}"
    print(f"{'m x n x k':26}{'ranks':>8}  {'box':20}{'words/bound':>12}{'messages':>10}{seconds:>34}")
    for mnk in LARGE:
        for ranks in MANY:
            box, over, messages, ratios = far_out(mnk, ranks)
            shapes = (" x ".join(map(str, sides)) for sides in (mnk, box))
            times = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"{next(shapes):26}{ranks:8}  {next(shapes):20}{over:12.3f}{messages:10}{times:>34}", flush=True)


def quantiles(values):
    return {"median": float(np.median(values)), "p95": float(np.percentile(values, 95)), "max": float(max(values))}


def study(shapes, to, every, convert, beneath):
    results = []
    for mnk in shapes:
        found = {ranks: (*ours(mnk, ranks), by_divisors(mnk, ranks)) for ranks in range(2, to + 1, every)}
        moving = {ranks: converted(mnk, ranks) for ranks in range(2, to + 1, convert)} if convert else {}
        floor = {ranks: least(mnk, ranks) for ranks in range(2, to + 1, beneath)} if beneath else {}
        results.append({"mnk": mnk, "ranks": found, "converted": moving, "least": floor})
    return results


def table(results):
    for span, belongs in (("P < 32", lambda ranks: ranks < 32), ("P >= 32", lambda ranks: ranks >= 32)):
        if not any(map(belongs, results[0]["ranks"])):
            continue
        print(f"{span}: words over the lower bound{'median':>20}{'p95':>8}{'max':>8}{'least share of ranks':>23}")
        for one in results:
            chosen = {ranks: values for ranks, values in one["ranks"].items() if belongs(ranks)}
            sides = {"pdla": [v[0] for v in chosen.values()], "sides that divide P": [v[2] for v in chosen.values()]}
            sides["2-D blocks to 2-D blocks"] = [v[0] for ranks, v in one["converted"].items() if belongs(ranks)]
            least = {ranks: value for ranks, value in one["least"].items() if belongs(ranks)}
            sides["the least of any box"] = list(least.values())
            both = [ranks for ranks in least if ranks in one["converted"]]
            sides["2-D blocks over that"] = [one["converted"][ranks][0] / least[ranks] for ranks in both]
            for name, values in sides.items():
                if values:
                    q = quantiles(values)
                    used = f"{min(v[1] for v in chosen.values()):23.3f}" if name == "pdla" else ""
                    shape = "x".join(map(str, one["mnk"]))
                    print(f"  {shape:20} {name:25}{q['median']:8.3f}{q['p95']:8.3f}{q['max']:8.3f}{used}")


def plot(results, path):
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "pdla", "font.size": 9})
    rows = -(-len(results) // 2)
    figure, every = plt.subplots(rows, 2, figsize=(9, 3 * rows), sharex=True, squeeze=False, constrained_layout=True)
    for axes, one in zip(every.flat, results, strict=False):
        ranks = list(one["ranks"])
        dots = {"marker": ".", "linestyle": "", "markersize": 3, "rasterized": True}
        axes.plot(ranks, [v[2] for v in one["ranks"].values()], color="#cccccc", label="sides that divide P", **dots)
        if one["converted"]:
            moved = [v[0] for v in one["converted"].values()]
            axes.plot(list(one["converted"]), moved, color="#f6a04d", label="pdla, from and to 2-D blocks", **dots)
        if one["least"]:
            axes.plot(list(one["least"]), list(one["least"].values()), "k_", markersize=5, label="these blocks, least of any box")
        axes.plot(ranks, [v[0] for v in one["ranks"].values()], color="#2f6fed", label="pdla, own layouts", **dots)
        axes.set(title="m n k = " + " ".join(map(str, one["mnk"])), xscale="log", yscale="log", ylim=(0.9, 40))
        axes.set_yticks([1, 2, 5, 10, 30], ["1", "2", "5", "10", "30"])
    every[0, 0].legend(markerscale=3)
    figure.supxlabel("ranks")
    figure.supylabel("words received over the lower bound")
    figure.savefig(path, dpi=200, metadata={"Date": None})


def main():
    told = parser(__doc__)
    told.add_argument("--shapes", type=shapes, default=SHAPES, metavar="MxNxK,...", help="(default: those of docs/choosing.md)")
    told.add_argument("--to", type=positive, default=1024, metavar="RANKS", help="the most ranks (default 1024)")
    told.add_argument("--every", type=positive, default=1, metavar="N", help="every N-th number of ranks only (default 1)")
    told.add_argument("--convert", type=natural, default=0, metavar="N", help="also from and to 2-D blocks, every N-th number")
    told.add_argument("--least", type=natural, default=0, metavar="N", help="the fewest words of any box, every N-th number")
    told.add_argument("--plot", type=to_draw, metavar="FILE", help="draw the picture of docs/choosing.md into FILE")
    told.add_argument("--json", type=to_write, metavar="FILE", help="write all figures to FILE")
    told.add_argument("--large", action="store_true", help="the table of many ranks of docs/choosing.md, and nothing else")
    wanted = told.parse_args()
    if wanted.large:
        large_table()
        return
    results = study(wanted.shapes, wanted.to, wanted.every, wanted.convert, wanted.least)
    table(results)
    if wanted.plot:
        plot(results, wanted.plot)
    if wanted.json:
        write_json(wanted.json, results)


if __name__ == "__main__":
    main()
