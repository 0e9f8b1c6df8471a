"""Boxes: the m x n x k multiplications cut into pm x pn x pk boxes, one a rank. A few of P ranks may be idle.

A rank needs its box's faces: (m/pm)(k/pk) of A, (k/pk)(n/pn) of B and (m/pm)(n/pn) of C. It holds
its share of each: the pn ranks that need one face of A hold a pn-th each, and so on. A rank
receives

    (m/pm)(k/pk)(1 - 1/pn) + (k/pk)(n/pn)(1 - 1/pm) + (m/pm)(n/pn)(1 - 1/pk)  words.

Agarwal et al. 1995 (cubes), Demmel et al. 2013 and Kwasniewski et al. 2019 (boxes). The search
takes all boxes of at most P ranks, not only those whose sides divide P: so primes come near the
lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, isqrt, prod
from typing import Any, NamedTuple

import numpy as np

from pdla.comm.collectives import circulant
from pdla.model.bounds import received_lower_bound
from pdla.model.machine import Machine

# docs/choices.md measures the effect of each constant. Constants of `price`:
WORK, FEW = 1.5, 48  # the weight of `excess`; below FEW / WORK ranks it is FEW / P instead
SUMS = 1e-3  # added if C is summed over ranks: decides between boxes that are otherwise equal, as those of a cube on two ranks
NEAR, LOPSIDED = 1.1, 10  # for MANY ranks, faces above NEAR times the smallest cost so much more: 2 and 100 choose the same
BUSY = 0.5  # messages are divided by this share of a rank's multiplications, if the bound's words take less time
# Of the search:
LONGEST = 4096  # ranks along k up to which steps are counted: planning the sums of a longer row takes a second or more
EVERY = 4096  # ranks up to which all boxes are priced
ABOUT = 1.02  # up to so many times the fewest words count as equal, if they come in fewer messages
LOOKS = 257, 128  # for more ranks: how many sides are tried near the ideal one, which is among them, and how many of all


class Box(NamedTuple):
    """Ranks along m, n and k."""

    m: int
    n: int
    k: int

    @property
    def ranks(self) -> int:
        return self.m * self.n * self.k


def find_box(carries: Iterable[tuple[str, str]], sizes: Mapping[str, int]) -> Box:
    """Find the box of a grid whose axes carry m, n or k; an axis that carries a copy does not count."""
    along = dict.fromkeys("mnk", 1)
    for axis, role in carries:
        if role != "-":
            along[role] *= sizes[axis]
    return Box(**along)


def count_words(m: int, n: int, k: int, box: Box) -> float:
    """Count the words that the rank with the largest box receives; exact where sizes divide."""
    return float(_evaluate(m, n, k, box).words)


@lru_cache(maxsize=4096)
def count_messages(m: int, n: int, k: int, box: Box) -> tuple[float, float, float]:
    """Count the messages of A, B and C that a rank receives, as `price` counts them."""
    A, B, C = map(float, _evaluate(m, n, k, box).messages)
    return A, B, C


def _evaluate(m: int, n: int, k: int, box: Box) -> Boxes:
    return Boxes.of(m, n, k, *box, first=split(ceil(m / box.m), ceil(n / box.n), box.k)[0])


@lru_cache(maxsize=4096)
def split(bm: int, bn: int, pk: int) -> tuple[int, int]:
    """Split pk ranks that sum a face of C, bm x bn, into ranks along its rows and along its columns.

    The split is that of fewest messages among those of about the fewest words.
    """
    small = np.arange(1, isqrt(pk) + 1)
    small = small[pk % small == 0]
    fits = pk // small <= LONGEST
    small = small[fits] if fits.any() else small
    rows = np.concatenate([small, pk // small])
    # Floats, as NumPy's integers end at 2^63.
    words = Boxes(float(bm), float(bn), 0, 1, 1, pk, rows).count_two_sums(rows, pk // rows)
    messages = circulant.count_messages(8.0 * bm * bn, np.array([rows, pk // rows])).sum(axis=0)
    best = int(rows[np.lexsort((words, np.where(words <= ABOUT * words.min(), messages, np.inf)))[0]])
    return best, pk // best


def compute_excess(m: int, n: int, k: int, box: Box, ranks: int) -> float:
    """Compute the multiplications of the largest box over 1/ranks of all: 1 where all ranks have the same work."""
    return ceil(m / box.m) * ceil(n / box.n) * ceil(k / box.k) * ranks / max(m * n * k, 1)


@dataclass(frozen=True)
class Boxes:
    """Arrays of boxes, bm x bn x bk each, on pm x pn x pk ranks; or one box. All results are elementwise.

    first  for a sum of C along both dimensions: how many of the pk ranks cut a face's rows; the others cut its columns
    """

    bm: Any
    bn: Any
    bk: Any
    pm: Any
    pn: Any
    pk: Any
    first: Any

    @staticmethod
    def of(m: int, n: int, k: int, pm: Any, pn: Any, pk: Any, first: Any = None) -> Boxes:
        """Make the boxes of a product. first=None: the ranks are split as evenly as possible between rows and columns."""
        first = _find_roots(int(np.max(pk, initial=1)).bit_length())[pk] if first is None else first
        return Boxes(np.ceil(m / pm), np.ceil(n / pn), np.ceil(k / pk), pm, pn, pk, first)

    @property
    def words(self) -> Any:
        return self.bm * self.bk * (1 - 1 / self.pn) + self.bk * self.bn * (1 - 1 / self.pm) + self._sums[0]

    @property
    def messages(self) -> tuple[Any, Any, Any]:
        """Messages of A, B and C. Short pieces of many ranks come in steps, from the ranks that have some. C may take two sums."""
        if np.max(np.maximum(np.maximum(self.pm, self.pn), self.pk), initial=1) < circulant.MANY:
            return self.pn - 1, self.pm - 1, self.pk - 1
        faces = (self.bm * self.bk, self.pn), (self.bk * self.bn, self.pm)
        A, B = (circulant.count_messages(8 * size, np.where(size, np.minimum(ranks, size), ranks)) for size, ranks in faces)
        return A, B, self._sums[1]

    @property
    def addend_words(self) -> Any:
        """Words of C's addends."""
        return self._sums[0]

    @cached_property
    def _sums(self) -> tuple[Any, Any]:
        """Words and messages of C's addends.

        Small faces of C are cut unevenly, by rows or by columns. Many ranks may cut them along
        both, with two sums (Table.even_faces).
        """
        bm, bn, pk, size = self.bm, self.bn, self.pk, 8 * self.bm * self.bn
        once = np.minimum(self._count_sum(bm, bn, pk), self._count_sum(bn, bm, pk))
        many = (pk >= circulant.MANY) & (size > 0)
        if not np.any(many):
            return once, pk - 1
        second = pk // self.first
        twice = np.minimum(self.count_two_sums(self.first, second), self.count_two_sums(second, self.first))
        two_sums = many & self.prefers_two_sums(once, twice)
        steps = circulant.count_messages(size, self.first) + circulant.count_messages(size, second)
        return np.where(two_sums, twice, once), np.where(two_sums, steps, circulant.count_messages(size, pk))

    def prefers_two_sums(self, once: Any, twice: Any) -> Any:
        """Whether two sums of so many words are better than one: if the shares are as even, two sums take fewer messages.

        To avoid a row of more than LONGEST ranks, two sums may receive a few words more.
        """
        return twice <= once * np.where(self.pk > LONGEST, ABOUT, 1)

    def count_two_sums(self, rows: Any, cols: Any) -> Any:
        """Count the words of two sums, along rows and along columns, in the better order."""
        bm, bn = self.bm, self.bn
        rows_first = self._count_sum(bm, bn, rows) + self._count_sum(bn, np.ceil(bm / rows), cols)
        return np.minimum(rows_first, self._count_sum(bn, bm, cols) + self._count_sum(bm, np.ceil(bn / cols), rows))

    def _count_sum(self, size: Any, across: Any, ranks: Any) -> Any:
        """Count the words of a sum over ranks that cut a dimension of this size; `across`: the length of the other."""
        ranks, size = np.broadcast_arrays(ranks, size)
        addends = np.array(ranks - 1.0)
        crowded = (size < ranks) & circulant.pays(8 * size * across, ranks)
        addends[crowded] = circulant.count_most_addends(ranks[crowded], size[crowded])
        return np.ceil(size / ranks) * across * addends


@lru_cache(maxsize=16)
def _find_roots(bits: int) -> np.ndarray:
    """Find the largest divisor, up to its square root, of each number of so many bits."""
    roots = np.ones(1 << bits, np.int64)
    for divisor in range(2, isqrt(1 << bits) + 1):
        roots[divisor * divisor :: divisor] = divisor
    return roots


def price(
    ranks: int, excess: Any, received: Any, messages: Any, sums: Any, bound: float, work: float, machine: Machine
) -> Any:
    """Price a box, in multiples of the lower bound; elementwise for arrays of `excess`, words (`received`) and messages.

    work  multiplications of 1/ranks of the product: if they take much longer than the bound's words, messages are divided by them
    sums  whether C is summed over ranks, which takes memory and additions: decides between boxes that are otherwise equal

    A long matrix times a small one needs hardly a word, but idle ranks cost much. A price is no time: words, in
    multiples of the bound, weigh against `excess` as 1 : WORK. Idle ranks raise `excess`. Few ranks send little for
    their work, so `excess` weighs more for them.
    """
    fewest = max(bound, 1.0)
    message_price = machine.message * messages / max(fewest, BUSY * machine.meanwhile(work))
    return find_weight(ranks) * excess + received / fewest + message_price + SUMS * sums


def find_weight(ranks: int) -> float:
    """Find the weight of `excess` in a price."""
    return max(WORK, FEW / ranks)


def find_cheapest(
    m: int, n: int, k: int, ranks: int, machine: Machine, count: int = 1, most: Box | None = None, rows_first: bool = False,
    two_sums: bool = True,
) -> list[Box]:
    """Find the `count` boxes of lowest price for at most `ranks` ranks, best first.

    most        no box has more ranks along m, n or k than this one
    rows_first  of boxes of one price the one with most ranks along m is first, else along n
    two_sums    C's faces may be cut, and summed, along both dimensions
    """
    parts = (m, n, k) if most is None else (min(m, most.m), min(n, most.n), min(k, most.k))
    pm, pn = (sides[::-1] if rows_first else sides for sides in _list_sides(*parts, ranks))
    fits = (pm <= max(parts[0], 1)) & (pn <= max(parts[1], 1))
    pm, pn = pm[fits], pn[fits]
    sides = pm, pn, np.minimum(ranks // (pm * pn), max(parts[2], 1))
    search = Search(m, n, k, ranks, machine, most is None or parts[2] == 1, parts[2] == 1)
    prices = search.price_boxes(*sides, None if two_sums else sides[2])
    fewer = _list_thinner(*sides, search.bound_ranks(np.sort(prices)[:count][-1]))
    sides = tuple(np.concatenate(both) for both in zip(sides, fewer, strict=True))  # type: ignore[assignment]
    prices = np.append(prices, search.price_boxes(*fewer, None if two_sums else fewer[2]))
    if two_sums and (even := search.find_even_box(sides, prices)):
        sides = tuple(np.append(side, new) for side, new in zip(sides, even[0], strict=True))  # type: ignore[assignment]
        prices = np.append(prices, even[1])
    order = np.argsort(prices, kind="stable")[:count] if count > 1 else [int(np.argmin(prices))]
    return [Box(*(int(side[i]) for side in sides)) for i in order]


@dataclass(frozen=True)
class Search:
    """A search for the cheapest boxes of m x n x k on so many ranks.

    near  whether faces of many ranks must be near the smallest: else, if messages weigh most, a lopsided box
          with a few messages less would win, though its ranks receive many times as much
    flat  whether k is not cut
    """

    m: int
    n: int
    k: int
    ranks: int
    machine: Machine
    near: bool
    flat: bool

    def bound_ranks(self, price_: float) -> float:
        """Bound from below the ranks of a box of at most this price: fewer ranks have more work each, if there is any."""
        return find_weight(self.ranks) * self.ranks / price_ if self.m * self.n * self.k else 1.0

    def price_boxes(self, pm: Any, pn: Any, pk: Any, first: Any) -> np.ndarray:
        """Price boxes; see Boxes.of."""
        boxes = Boxes.of(self.m, self.n, self.k, pm, pn, pk, first)
        return self._price(boxes, boxes.words, sum(boxes.messages))

    def _price(self, boxes: Boxes, received: Any, messages: Any) -> np.ndarray:
        work, bound = self.m * self.n * self.k / self.ranks, received_lower_bound(self.m, self.n, self.k, self.ranks)
        excess = boxes.bm * boxes.bn * boxes.bk / max(work, 1 / self.ranks)
        prices = price(self.ranks, excess, received, messages, boxes.pk > 1, bound, work, self.machine)
        return prices * np.where(self._is_lopsided(boxes), LOPSIDED, 1) if self.near and self.ranks >= circulant.MANY else prices

    def _is_lopsided(self, boxes: Boxes) -> np.ndarray:
        """Whether faces, not rounded, exceed NEAR times the smallest for as many ranks (bounds.accessed_lower_bound)."""
        m, n, k, ranks = float(self.m), float(self.n), float(self.k), boxes.pm * boxes.pn * boxes.pk
        d3, d2, d1 = (k, *sorted((m, n))) if self.flat else sorted((m, n, k))
        cut_two = 2 * np.sqrt(d1 * d2 * d3**2 / ranks) + d1 * d2 / ranks
        cut_all = 3 * (d1 * d2 * d3 / ranks) ** (2 / 3)
        least = np.where((ranks * d3**2 <= d1 * d2) | self.flat, cut_two, cut_all)
        least = np.where(ranks * d2 <= d1, d1 * (d2 + d3) / ranks + d2 * d3, least)
        return (m * k * boxes.pn + k * n * boxes.pm + m * n * boxes.pk) / ranks > NEAR * least

    def find_even_box(self, sides: Sequence[np.ndarray], prices: np.ndarray) -> tuple[Box, float] | None:
        """Find the box that would be cheapest if C's faces were cut evenly, with fewer ranks along k; and its price.

        A prime number of ranks, for instance, cuts faces along one dimension alone. None: there is
        no such box.
        """
        many = np.flatnonzero(sides[2] >= circulant.MANY)
        if not len(many):
            return None
        boxes = Boxes.of(self.m, self.n, self.k, *(side[many] for side in sides))
        least = self._price(boxes, boxes.words - boxes.addend_words + boxes.bm * boxes.bn, 0)  # without a message
        i = int(np.argmin(least))
        if least[i] >= prices.min():
            return None
        pm, pn, most = (int(side[many[i]]) for side in sides)
        rows = np.arange(1, min(most, LONGEST) + 1)
        pk = rows * (most // rows)
        even_prices = self.price_boxes(pm, pn, pk, rows)
        best = int(np.argmin(even_prices))
        return Box(pm, pn, int(pk[best])), float(even_prices[best])


def find_by_layers(m: int, n: int, k: int, ranks: int, machine: Machine, rows_first: bool, two_sums: bool) -> list[Box]:
    """Find the cheapest boxes with at most 1, 2, 4, 8 ... ranks along k.

    Fewer ranks that sum C need less memory.
    """
    layers = (2**i for i in range(min(ranks, k).bit_length()))
    return [
        box
        for c in layers
        for box in find_cheapest(m, n, k, ranks, machine, 1, Box(ranks, ranks, c), rows_first, two_sums)
    ]


def _list_thinner(pm: np.ndarray, pn: np.ndarray, pk: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List the boxes with a half, a quarter, ... of the ranks along k that have at least `least` ranks in all."""
    halves = [(pm, pn, pk >> i) for i in range(1, int(pk.max()).bit_length())]
    pm, pn, pk = (np.concatenate(sides) for sides in zip((pm[:0], pn[:0], pk[:0]), *halves, strict=True))
    fits = pm * pn * pk >= least
    return pm[fits], pn[fits], pk[fits]


def _list_sides(m: int, n: int, k: int, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """List the pairs (pm, pn) to price. Some are far from the ideal: if messages weigh most, such a box may be best."""
    if ranks <= EVERY:
        return _list_pairs(ranks)
    ideal = zip(_find_ideal(m, n, k, ranks), (m, n), strict=True)
    pm, pn = (_sample_sides(side, min(size, ranks), *LOOKS) for side, size in ideal)
    all_m, all_n = np.repeat(pm, len(pn)), np.tile(pn, len(pm))
    fits = all_m * all_n <= ranks
    return all_m[fits], all_n[fits]


def _sample_sides(ideal: float, size: int, near: int, far: int) -> np.ndarray:
    """Sample the numbers 1 to `size`: `near` of them within a factor of two of the ideal, and `far` of all."""
    most = max(size, 1)
    ends = (min(max(1, int(ideal / 2)), most), min(ceil(2 * ideal), most), near), (1, most, far)
    return np.unique(np.concatenate([np.rint(np.geomspace(*between)).astype(np.int64) for between in ends]))


@lru_cache(maxsize=16)
def _list_pairs(ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """List all (pm, pn) with pm pn <= ranks."""
    counts = ranks // np.arange(1, ranks + 1)
    ends = np.cumsum(counts)
    return np.repeat(np.arange(1, ranks + 1), counts), np.arange(ends[-1]) - np.repeat(ends - counts, counts) + 1


def _find_ideal(m: int, n: int, k: int, ranks: int) -> tuple[float, float]:
    """Find `pm` and `pn`, not rounded, of the box nearest to a cube that has at least one rank along each dimension."""
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
