"""Factors, solutions and triangles that are checked after they were computed, as products are.

Each has a claim: that two ways to the image of a vector x lead to the same. For factors A x and
L (U x), for solutions B x and A (X x), by A's factors. How far rounding may take a right result
from it is, for each row, at most the number of terms times |L| (|U| |x|): Higham, Accuracy and
Stability of Numerical Algorithms (2002), theorems 8.5, 9.3, 9.4 and 10.3. What the claim takes of
A is computed before A is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdla import config
from pdla.comm.agreement import collective_section, name
from pdla.comm.communicator import Communicator
from pdla.errors import LinAlgError
from pdla.matmul.images import Images, Pair, Part, not_finite
from pdla.matmul.verify import NotFinite, only, twice, warn
from pdla.matrix.core import DistMatrix

ALL = slice(None)
_asked: ContextVar[bool | str | None] = ContextVar("pdla_linalg_verify", default=None)


class asked:
    """Check what is computed in a with-block, or not; None: as PDLA_VERIFY says."""

    __slots__ = ("token",)

    def __init__(self, verify: bool | str | None) -> None:
        self.token = _asked.set(_asked.get() if verify is None else verify)

    def __enter__(self) -> None: ...

    def __exit__(self, *failure: object) -> None:
        _asked.reset(self.token)


def wanted() -> bool:
    """Whether results are to be checked."""
    return bool(config.settings.verify if _asked.get() is None else _asked.get())


@dataclass(frozen=True)
class Claim:
    """What holds of a right result: the images of n vectors by `given` are those by the steps that `steps` makes of the result.

    terms     how many roundings lead to each row
    given     the image by what is there before; a row of it is that of `order` of the result
    steps     of the result: its parts' images, the first applied first
    matrix    of the result: whose blocks are named
    operands  that must be finite, in these parts, besides those of `given`
    mirrored  the matrix is a lower triangle, which says what is above
    lost      why it cannot be computed again; "": it can
    """

    n: int
    terms: int
    given: Callable[[Pair], Pair]
    steps: Callable[[Any], tuple[Callable[[Pair], Pair], ...]]
    matrix: Callable[[Any], DistMatrix] = lambda made: made
    order: Callable[[Any], Any] = lambda made: ALL
    operands: tuple[tuple[DistMatrix, Part], ...] = ()
    mirrored: bool = False
    lost: str = ""


def checked(comm: Communicator, dtype: np.dtype, compute: Callable[[], Any], claim: Callable[[Images], Claim]) -> Any:
    """Collective: what is computed; where that is wanted, checked, and computed again as `twice` says.

    Not in dry runs, and of LAPACK's dtypes alone. An error of the matrix is believed where it comes
    twice.
    """
    if comm.xp.name == "meta" or not wanted() or dtype.char not in "fdFD":
        return compute()
    images = Images.of(comm, dtype)
    with collective_section(comm, "the check of a result"), np.errstate(all="ignore"):
        check = Check(comm, images, claim(images))
    wrong = ""
    try:
        made = compute()
    except LinAlgError as error:
        if check.claim.lost:
            raise
        wrong, made = str(error), compute()
    made = twice(comm, made, check.faults, lambda made: compute(), check.claim.lost)
    if wrong:
        warn(comm, wrong)
    return made


def lost(matrix: str, overwrite: bool) -> str:
    """Why a result cannot be computed again: a matrix may have been overwritten; "": it can."""
    return f"{matrix} was to be overwritten: verify='keep' works on a copy, and computes again" if overwrite else ""


class Check:
    """The check of one claim."""

    def __init__(self, comm: Communicator, images: Images, claim: Claim) -> None:
        """Collective: before the result is computed."""
        self.comm, self.images, self.claim = comm, images, claim
        self.x = images.vectors(claim.n)
        self.expected = self._hosted(claim.given(self.x))

    def faults(self, made: Any) -> str:
        """Collective: what is wrong, in words that are the same on every rank; "": nothing."""
        with collective_section(self.comm, "the check of a result"), np.errstate(all="ignore"):
            rows, finite = self._wrong(made, self.x, self.expected)
            text = f"{rows}" if len(rows) or not finite else ""
            if self.comm.same(text) and not text:
                return ""
            return self._named(made, rows, finite)

    def _hosted(self, pair: Pair) -> Pair:
        return self.comm.xp.host(pair[0]), self.comm.xp.host(pair[1])

    def _wrong(self, made: Any, x: Pair, expected: Pair) -> tuple[np.ndarray, bool]:
        """Collective: the rows in which the images are too far apart, and whether the sizes are finite."""
        kind, least = np.finfo(self.images.real), float(self.claim.n + 1)
        underflow = float(kind.tiny) / self.images.eps  # in a size so much may be lost, which the next step multiplies
        for step in self.claim.steps(made):
            x = step(x)
            x = x[0], np.maximum(x[1], underflow)
            found, size = self._hosted(x)
            least += float(size[np.isfinite(size)].sum(dtype=float))  # as much as what underflows may be multiplied by
        order = self.claim.order(made)
        apart, sizes = np.abs(found - expected[0][order]), size + expected[1][order]
        each = (self.claim.terms + 2 * self.comm.size + 16) * self.images.eps / 2
        known = sizes < float(kind.max) / 4
        wrong = known & ~(apart <= sizes * each + least * float(kind.tiny))
        return np.flatnonzero(wrong.any(axis=1)), bool(np.isfinite(size).all())

    def _named(self, made: Any, rows: np.ndarray, finite: bool) -> str:
        """Collective: what is wrong, in words; nothing, if an operand is infinite or NaN."""
        comm, X = self.comm, self.claim.matrix(made)
        odd = any(not_finite(T.stored, T.indices, part) for T, part in self.claim.operands)
        given = bool(np.isfinite(self.expected[1]).all()) and not odd
        operands, results = zip(*comm.share((given, finite or bool(X.xp.finite(X.stored)))), strict=True)
        if not all(operands):
            return ""
        if not all(results):
            return NotFinite(f"{_have(results, False)} elements that are not finite")
        found = np.unique(np.concatenate(comm.share(rows)))
        if not len(found):
            return ""
        place = None if self.claim.lost else self._place(made)
        i, j = (each.indices() for each in X.indices)
        held = np.isin(found, i).any() and len(j) if place is None else place[0] in i and place[1] in j
        who = f"{_have(comm.share(bool(held)), True)} wrong elements"
        return f"{who} in rows {found[0]} to {found[-1]}" if place is None else f"{who}, one in row {place[0]}, column {place[1]}"

    def _place(self, made: Any) -> tuple[int, int] | None:
        """Collective: row and column of a wrong element, by halving the columns; None where errors of several cancel."""
        lo, hi = 0, self.claim.n
        while hi > lo + 1:
            half = (lo + hi) // 2
            lo, hi = (lo, half) if len(self._rows(made, lo, half)) else (half, hi)
        if not len(rows := self._rows(made, lo, hi)):
            return None
        i, j = int(rows[0]), lo
        return (max(i, j), min(i, j)) if self.claim.mirrored else (i, j)

    def _rows(self, made: Any, lo: int, hi: int) -> np.ndarray:
        """Collective: the rows that any rank finds wrong for vectors that are 0 but from lo to hi."""
        kept = np.zeros((self.claim.n, 1), bool)
        kept[lo:hi] = True
        x = only(kept, self.x)
        return np.unique(np.concatenate(self.comm.share(self._wrong(made, x, self._hosted(self.claim.given(x)))[0])))


def _have(said: Sequence[bool], value: bool) -> str:
    """The ranks that said so, and that they have something: "rank 1 has", "ranks 0, 2 have"."""
    ranks = [rank for rank, one in enumerate(said) if one == value]
    return f"{name(ranks)} {'has' if len(ranks) == 1 else 'have'}"
