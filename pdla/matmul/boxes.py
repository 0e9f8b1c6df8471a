"""Boxes: the m x n x k products cut into pm x pn x pk boxes, one a rank; any P, since a few ranks may stay idle.

A rank needs its box's faces, (m/pm)(k/pk) of A, (k/pk)(n/pn) of B and (m/pm)(n/pn) of C, and holds its share of each; the
pn ranks that need one face of A hold a pn-th of it each, and so on. So it receives

    (m/pm)(k/pk)(1 - 1/pn) + (k/pk)(n/pn)(1 - 1/pm) + (m/pm)(n/pn)(1 - 1/pk)  words.

Agarwal et al. 1995 (cubes), Demmel et al. 2013 and Kwasniewski et al. 2019 (boxes). Searching all boxes with at most P ranks,
not only those whose sides divide P, is what keeps primes near the lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np

from pdla.model.bounds import received_lower_bound
from pdla.model.machine import Machine

WORK, FEW = 1.5, 48  # the weight of a box over 1/P of the products, and the ranks below which it grows, as FEW / P
SUMS = 1e-3
BUSY = 0.5  # messages weigh against so much of the time that a rank multiplies, where the bound's words take less
EVERY = 4096  # ranks up to which all boxes are looked at
NEAR, FAR = 2048, 256  # beyond, sides looked at: within a factor of two of the ideal box's, and of all sizes, a factor apart


class Box(NamedTuple):
    """Ranks along m, n and k."""

    m: int
    n: int
    k: int

    @property
    def ranks(self) -> int:
        return self.m * self.n * self.k


def of(carries: Iterable[tuple[str, str]], sizes: Mapping[str, int]) -> Box:
    """The box of a grid whose axes carry m, n or k; one that carries a copy has no part in it."""
    along = dict.fromkeys("mnk", 1)
    for axis, role in carries:
        if role != "-":
            along[role] *= sizes[axis]
    return Box(**along)


def words(m: int, n: int, k: int, box: Box) -> float:
    """Words that the rank with the largest box receives; exact where sizes divide."""
    bm, bn, bk = ceil(m / box.m), ceil(n / box.n), ceil(k / box.k)
    return bm * bk * (1 - 1 / box.n) + bk * bn * (1 - 1 / box.m) + bm * bn * (1 - 1 / box.k)


def excess(m: int, n: int, k: int, box: Box, ranks: int) -> float:
    """The largest box over 1/ranks of all products: 1 where all ranks work alike."""
    return ceil(m / box.m) * ceil(n / box.n) * ceil(k / box.k) * ranks / max(m * n * k, 1)


def messages(box: Box) -> int:
    return box.m + box.n + box.k - 3


def price(
    ranks: int, over: Any, received: Any, begun: Any, sums: Any, bound: float, work: float, machine: Machine
) -> Any:
    """What a box costs, in multiples of the lower bound; elementwise for arrays of `over` (excess), words and messages.

    `work`: the multiplications of 1/ranks of the product. Where they take much longer than the bound's words, messages weigh
    against them: of a long product by a small matrix hardly a word need be received, but idle ranks cost much.
    `sums`: whether C is summed over ranks, which decides between boxes that are alike otherwise: it needs memory, and adding.
    Not a time: words above the bound weigh against idle ranks as 1 : WORK. Few ranks send little for the work they do, so
    that below FEW ranks idle ones count for more.
    """
    least = max(bound, 1.0)
    messages = machine.message * begun / max(least, BUSY * machine.meanwhile(work))
    return max(WORK, FEW / ranks) * over + received / least + messages + SUMS * sums


def cheapest(
    m: int, n: int, k: int, ranks: int, machine: Machine, count: int = 1, most: Box | None = None, rows_first: bool = False
) -> list[Box]:
    """The boxes of lowest price for at most so many ranks, best first: any pm and pn, along k as many as are left.

    most: no box has more ranks along m, n and k. Of those of one price the one that cuts most along n comes first, or most along m.
    """
    parts = (m, n, k) if most is None else (min(m, most.m), min(n, most.n), min(k, most.k))
    pm, pn = (sides[::-1] if rows_first else sides for sides in _sides(*parts, ranks))
    fits = (pm <= max(parts[0], 1)) & (pn <= max(parts[1], 1))
    pm, pn = pm[fits], pn[fits]
    pk = np.minimum(ranks // (pm * pn), max(parts[2], 1))
    bm, bn, bk = (-(-size // parts).astype(float) for size, parts in ((m, pm), (n, pn), (k, pk)))
    received = bm * bk * (1 - 1 / pn) + bk * bn * (1 - 1 / pm) + bm * bn * (1 - 1 / pk)
    over = bm * bn * bk * (ranks / max(m * n * k, 1))
    bound, work = received_lower_bound(m, n, k, ranks), m * n * k / ranks
    prices = price(ranks, over, received, pm + pn + pk - 3, pk > 1, bound, work, machine)
    best = np.argsort(prices, kind="stable")[:count] if count > 1 else [int(np.argmin(prices))]
    return [Box(int(pm[i]), int(pn[i]), int(pk[i])) for i in best]


def _sides(m: int, n: int, k: int, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """All pairs (pm, pn) worth a look: where messages weigh most, they may be far from the ideal box's."""
    if ranks <= EVERY:
        return _pairs(ranks)
    pm, pn = (_near(ideal, min(size, ranks)) for ideal, size in zip(_ideal(m, n, k, ranks), (m, n), strict=True))
    all_m, all_n = np.repeat(pm, len(pn)), np.tile(pn, len(pm))
    fits = all_m * all_n <= ranks
    return all_m[fits], all_n[fits]


def _near(ideal: float, size: int) -> np.ndarray:
    """Sides of 1 to `size` ranks: near the ideal one, and few of the others."""
    most = max(size, 1)
    ends = (min(max(1, int(ideal / 2)), most), min(ceil(2 * ideal), most), NEAR), (1, most, FAR)
    return np.unique(np.concatenate([np.rint(np.geomspace(*between)).astype(np.int64) for between in ends]))


@lru_cache(maxsize=16)
def _pairs(ranks: int) -> tuple[np.ndarray, np.ndarray]:
    counts = ranks // np.arange(1, ranks + 1)
    ends = np.cumsum(counts)
    return np.repeat(np.arange(1, ranks + 1), counts), np.arange(ends[-1]) - np.repeat(ends - counts, counts) + 1


def _ideal(m: int, n: int, k: int, ranks: int) -> tuple[float, float]:
    """pm and pn of the box whose sides are as equal as one rank a side at least allows."""
    parts = {"m": 1.0, "n": 1.0, "k": 1.0}
    sizes = {"m": max(m, 1), "n": max(n, 1), "k": max(k, 1)}
    free = sorted(sizes, key=lambda d: sizes[d])
    while free:
        side = (prod(float(sizes[d]) for d in free) / ranks) ** (1 / len(free))
        if sizes[free[0]] >= side:
            parts.update({d: sizes[d] / side for d in free})
            break
        free = free[1:]
    return parts["m"], parts["n"]
