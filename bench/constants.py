"""The tuned constants of the choice of boxes and layouts, each with another value: what is chosen otherwise, and what that costs.

python -m bench.constants [NAME,...]        dry, on 12 to 1024 ranks; about ten minutes for all

Of native layouts (the constants of pdla/matmul/boxes.py and LESS), and from and to 2-D blocks (the others). "s" and "words" are
predicted, on a machine each, as multiples of those with the default value, least and most over the products that change.
"""

import sys
from unittest.mock import patch

import pdla
from bench.volume import LARGE, MACHINES, planned
from pdla.comm.dry import DryComm
from pdla.matmul import boxes
from pdla.matmul.algorithms import BOX, table
from pdla.matmul.choose import candidates
from pdla.model.machine import Machine

NATIVE = (
    (1024, 1024, 1024), (16384, 16384, 16384), (32768, 512, 512), (512, 32768, 512), (512, 512, 32768), (4096, 4096, 64),
    (64, 4096, 4096), (4096, 64, 4096), (100000, 100000, 5000), (10007, 20011, 4999), (3, 1000, 10**6), (300, 300, 300),
    (1, 10**6, 1000),
)
BLOCKS = (1024, 1024, 1024), (10007, 20011, 4999), (512, 512, 32768), (32768, 512, 512), (4096, 4096, 64), (300, 300, 300)
FEW = 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 23, 31
RANKS = (*FEW, 32, 37, 48, 61, 64, 96, 127, 128, 131, 192, 251, 256, 384, 509, 512, 521, 640, 701, 768, 900, 997, 1019, 1024)
CONSTANTS = {  # the module that has it, other values, and in which layouts it decides
    "WORK": (boxes, (1, 2), "native"),
    "FEW": (boxes, (0, 96), "native"),
    "SUMS": (boxes, (0,), "native"),
    "NEAR": (boxes, (float("inf"), 1.05), "native"),
    "LOPSIDED": (boxes, (2, 100), "native"),
    "BUSY": (boxes, (0.25, 1), "native"),
    "ABOUT": (boxes, (1,), "native"),
    "LESS": (table, (0, 1), "native"),
    "EVERY": (boxes, (1024,), "far"),
    "LOOKS": (boxes, ((129, 64),), "far"),
    "LONGEST": (boxes, (1024,), "far"),
    "BOXES": (candidates, (4, 16), "blocks"),
    "WORTH": (candidates, (0,), "blocks"),
}


def problems(layouts):
    """The products, each with a number of ranks."""
    if layouts == "far":
        return [(mnk, ranks) for mnk in LARGE for ranks in (4096, 8191, 65536, 262144)]
    if layouts == "native":
        return [(mnk, ranks) for mnk in NATIVE for ranks in RANKS]
    return [(mnk, ranks) for mnk in BLOCKS for ranks in (12, 16, 37, 64, 127, 256, 509, 700)]


def chosen(mnk, ranks, layouts):
    """What is chosen, and a function: its costs on each of MACHINES, or from blocks on the machine that PDLA_MACHINE names."""
    if layouts == "blocks":
        grid, cut = pdla.ProcessGrid(pdla.balanced_shape(ranks), comm=DryComm(0, ranks)), pdla.Layout("row", "col")
        m, n, k = mnk
        A, B, C = (pdla.zeros(size, grid, cut) for size in ((m, k), (k, n), (m, n)))
        plan = pdla.plan_matmul(A, B, out=C)
        return str(plan), lambda: [plan.predicted]
    box = boxes.cheapest(*mnk, ranks, Machine())[0]
    cuts = [each.evened(*mnk) for each in BOX.tables(tuple(box))]
    return (box, cuts), lambda: [planned(mnk, ranks, box, machine) for machine in MACHINES]


def forget():
    """What was chosen before, with another value, is looked for anew."""
    for known in (candidates._ways, candidates._cheapest, boxes.split, boxes.messages, planned):
        known.cache_clear()


def row(name, value):
    """How many products there are, how many another value changes, and of these the seconds and words over the default's."""
    module, _, layouts = CONSTANTS[name]
    asked, others = problems(layouts), {}
    forget()
    default = [chosen(*each, layouts) for each in asked]
    forget()
    with patch.object(module, name, value):
        for i, each in enumerate(asked):
            what, costs = chosen(*each, layouts)
            if what != default[i][0]:
                others[i] = costs()
    forget()
    pairs = [pair for i, costs in others.items() for pair in zip(default[i][1](), costs, strict=True)]
    seconds = [now.seconds / then.seconds for then, now in pairs]
    words = [now.bytes_received / max(then.bytes_received, 1) for then, now in pairs]
    return len(asked), len(others), span(seconds), span(words)


def span(values):
    return f"{min(values):.3f} to {max(values):.3f}" if values else ""


def main():
    names = sys.argv[1].split(",") if len(sys.argv) > 1 else CONSTANTS
    print(f"{'constant':10}{'instead':>12}{'layouts':>9}{'products':>10}{'changed':>9}{'s':>18}{'words':>18}")
    for name in names:
        _, values, layouts = CONSTANTS[name]
        for value in values:
            products, changed, seconds, words = row(name, value)
            print(f"{name:10}{value!s:>12}{layouts:>9}{products:10}{changed:9}{seconds:>18}{words:>18}", flush=True)


if __name__ == "__main__":
    main()
