"""Check factors, solutions and triangles after they were computed, as products are checked.

Each result has a claim: two ways to compute the image of a vector x agree. For factors these are A
x and L (U x), for solutions B x and A (X x), by A's factors. Rounding may change row i by eps times
the number of terms times row i of |L| (|U| |x|). See Higham, Accuracy and Stability of Numerical
Algorithms (2002), theorems 8.5, 9.3, 9.4, 10.3. The claim's image by A is computed before A is
overwritten.

Ranks act together on received numbers: pivots, or the info of a minor. If results are checked,
ranks compare these numbers first (`settle`), and results and errors before the check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from pdla import config
from pdla.comm.agreement import collective_section, group_ranks, name_ranks
from pdla.comm.communicator import Communicator
from pdla.errors import LinAlgError, PdlaError, VerificationError
from pdla.layout import axes_of, effective
from pdla.matmul.images import Images, Pair, Part, find_not_finite
from pdla.matmul.verify import NotFinite, mask, recompute_if_wrong, warn
from pdla.matrix.core import DistMatrix

ALL = slice(None)
_asked: ContextVar[bool | str | None] = ContextVar("pdla_linalg_verify", default=None)


class verifying:
    """Check results within a with-block, or not; None: as PDLA_VERIFY says."""

    __slots__ = ("token",)

    def __init__(self, verify: bool | str | None) -> None:
        self.token: Token[bool | str | None] = _asked.set(_asked.get() if verify is None else verify)

    def __enter__(self) -> None: ...

    def __exit__(self, *failure: object) -> None:
        _asked.reset(self.token)


def is_checking() -> bool:
    """Whether results are to be checked."""
    return bool(config.settings.verify if _asked.get() is None else _asked.get())


def settle(comm: Communicator | None, numbers: np.ndarray, root: int = 0) -> np.ndarray:
    """Collective, if results are checked: the numbers on which these ranks act together; the root's, if they differ."""
    if comm is None or comm.xp.name == "meta" or not is_checking() or comm.same(f"{numbers.tolist()}"):
        return numbers
    return comm.share(numbers)[root]


@dataclass(frozen=True)
class Claim:
    """A right result satisfies: for random x of n elements, given(x) equals steps(result) applied in turn.

    terms     the number of roundings in each row
    given     the image by the operands, whose row rows(result)[i] is compared with row i of the result's
    steps     of the result: the images by its factors, the first applied first
    matrices  of the result: matrices whose wrong blocks an error names
    zeros     of the result: parts of matrices that must be 0
    control   of the result: values that must be the same on all ranks
    operands  matrices that must be finite, in these parts, besides those of `given`
    lost      why the result cannot be computed again; "": it can
    again     computes the lost result for images of vectors; None: a right result is about as large as these
    """

    n: int
    terms: int
    given: Callable[[Pair], Pair]
    steps: Callable[[Any], tuple[Callable[[Pair], Pair], ...]]
    matrices: Callable[[Any], tuple[DistMatrix, ...]] = lambda made: (made,)
    zeros: Callable[[Any], tuple[tuple[DistMatrix, Part], ...]] = lambda made: ()
    rows: Callable[[Any], Any] = lambda made: ALL
    control: Callable[[Any], Any] = lambda made: None
    operands: tuple[tuple[DistMatrix, Part], ...] = ()
    lost: str = ""
    again: Callable[[np.ndarray], Any] | None = None


def run_and_check(comm: Communicator, dtype: np.dtype, compute: Callable[[], Any], claim: Callable[[Images], Claim]) -> Any:
    """Collective: compute a result and, if results are checked, check it, and compute a wrong one again.

    Dry runs check nothing; nor are dtypes checked that LAPACK lacks. A LinAlgError is believed if
    it is raised twice.
    """
    if comm.xp.name == "meta" or not is_checking() or dtype.char not in "fdFD":
        return compute()
    images = Images.of(comm, dtype)
    with collective_section(comm, "the check of a result"), np.errstate(all="ignore"):
        check = Check(comm, images, claim(images))
    made, wrong = _compute_together(comm, compute, check.claim)
    if wrong is not None:
        if check.claim.lost:
            raise wrong
        made = _recompute(comm, compute, check.claim)
    made = recompute_if_wrong(comm, made, check.find_faults, lambda made: _recompute(comm, compute, check.claim), check.claim.lost)
    if wrong is not None:
        warn(comm, f"{wrong}")
    return made


def _compute_together(comm: Communicator, compute: Callable[[], Any], claim: Claim) -> tuple[Any, PdlaError | None]:
    """Collective: the result, and the error of all ranks: VerificationError if theirs differ."""
    made, error = None, None
    try:
        with np.errstate(invalid="ignore"):  # a wrong row number may be NaN
            made = compute()
    except LinAlgError as raised:
        error = raised
    text = f"{claim.control(made)}" if error is None else f"{error}"
    if comm.same(text):
        return made, error
    found = group_ranks(comm.share(text)).values()
    return None, VerificationError(f"{' and '.join(map(name_ranks, found))} have found different pivots or errors")


def _recompute(comm: Communicator, compute: Callable[[], Any], claim: Claim) -> Any:
    """Collective: the result, or the error of all ranks."""
    made, error = _compute_together(comm, compute, claim)
    if error is not None:
        raise error
    return made


def explain_loss(matrix: str, overwrite: bool) -> str:
    """Explain why a result cannot be computed again: a matrix was overwritten; "": it can."""
    return f"{matrix} may have been overwritten: verify='keep' works on a copy, and recomputes" if overwrite else ""


def _has_copies(X: DistMatrix) -> bool:
    """Whether several ranks have copies of the same part of X. Each multiplies its own copy by its part of the next matrix only."""
    return prod(X.grid.sizes[axis] for axis in axes_of(effective((*X.layout.rows, *X.layout.cols), X.grid.sizes))) < X.grid.size


class Check:
    """The check of one claim."""

    comm: Communicator
    images: Images
    claim: Claim

    def __init__(self, comm: Communicator, images: Images, claim: Claim) -> None:
        """Collective, before the result is computed."""
        self.comm, self.images, self.claim = comm, images, claim
        self.x: Pair = images.vectors(claim.n)
        self.expected: Pair = self._compute_expected(self.x)

    def find_faults(self, made: Any) -> str:
        """Collective: describe what is wrong, in the same words on every rank; "": nothing.

        Afterwards recompute the expected image, if possible: a message may have spoilt it.
        """
        with collective_section(self.comm, "the check of a result"), np.errstate(all="ignore"):
            rows, known = self._find_wrong_rows(made, self.x, self.expected)
            text = f"{rows}" if len(rows) or not known else ""
            if self.comm.same(text) and not text:
                return ""
            said = self._describe_faults(made, rows, known)
            if said and not self.claim.lost:
                self.expected = self._compute_expected(self.x)
            return said

    def _compute_expected(self, x: Pair) -> Pair:
        return self._to_host(self.claim.given(x))

    def _to_host(self, pair: Pair) -> Pair:
        return self.comm.xp.host(pair[0]), self.comm.xp.host(pair[1])

    def _find_wrong_rows(self, made: Any, x: Pair, expected: Pair) -> tuple[np.ndarray, bool]:
        """Collective: the rows whose images differ by more than rounding, and whether no size is near overflow."""
        kind, least = np.finfo(self.images.real), float(self.claim.n + 1)
        underflow = float(kind.tiny) / self.images.eps  # a size may lose so much, which the next step multiplies
        steps, others = self.claim.steps(made), [self._find_nonzeros(made, x)]
        copies = any(map(_has_copies, self.claim.matrices(made)))
        for number, step in enumerate(steps, 1):
            x = step(x)
            x = x[0], np.maximum(x[1], underflow)
            found, size = self._to_host(x)
            least += float(size[np.isfinite(size)].sum(dtype=float))  # the factor by which underflow may grow
            if copies and number < len(steps):
                others.append(self._compare_copies(found, size))
        rows = self.claim.rows(made)
        apart, sizes = np.abs(found - expected[0][rows]), size + expected[1][rows]
        each = (self.claim.terms + 2 * self.comm.size + 16) * self.images.eps / 2
        known = sizes < float(kind.max) / 4
        wrong = known & ~(apart <= sizes * each + least * float(kind.tiny))
        return np.unique(np.concatenate([np.flatnonzero(wrong.any(axis=1)), *others])), bool(known.all())

    def _compare_copies(self, found: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Collective: the rows in which this rank's image differs from the first rank's, computed from another copy."""
        xp, first = self.comm.xp, found.copy()
        first = xp.host(self.comm.bcast(xp.asarray(first), 0).wait())
        near = (np.abs(found - first) <= size * (self.claim.terms + 16) * self.images.eps) | ~np.isfinite(found)
        return np.flatnonzero(~(near & (np.isfinite(found) == np.isfinite(first))).all(axis=1))

    def _find_nonzeros(self, made: Any, x: Pair) -> np.ndarray:
        """Local: this rank's rows that have nonzeros in place of zeros, in columns where x is not 0."""
        found = [np.zeros(0, np.int64)]
        for X, part in self.claim.zeros(made):
            size = self.comm.xp.host(self.images.addends(X, x, part)[1])
            found.append(X.indices[0].indices()[np.flatnonzero(size != 0)])
        return np.concatenate(found)

    def _describe_faults(self, made: Any, rows: np.ndarray, known: bool) -> str:
        """Collective: describe what is wrong; nothing, if an operand is infinite or NaN."""
        comm, matrices = self.comm, self.claim.matrices(made)
        odd = any(find_not_finite(T.stored, T.indices, part) for T, part in self.claim.operands)
        given = bool(np.isfinite(self.expected[1]).all()) and not odd
        operands, results = zip(*comm.share((given, known or all(X.xp.is_finite(X.stored) for X in matrices))), strict=True)
        found = np.unique(np.concatenate(comm.share(rows)))
        if not all(operands):
            return ""
        if not all(results) or not len(found):
            if self.claim.lost and self._is_near_overflow():
                return ""
            if all(results):
                return NotFinite("elements are too large to be checked")
            return NotFinite(f"{_name_holders(results, False)} elements that are not finite")
        place = None if self.claim.lost else self._find_place(made)
        who = f"{_name_holders(comm.share(any(self._has_rows_of(X, found, place) for X in matrices)), True)} wrong elements"
        return f"{who} in rows {found[0]} to {found[-1]}" if place is None else f"{who}, one in row {place[0]}, column {place[1]}"

    def _has_rows_of(self, X: DistMatrix, found: np.ndarray, place: tuple[int, int] | None) -> bool:
        """Local: whether this rank has the element at this place; without a place, some of these rows."""
        i, j = (each.indices() for each in X.indices)
        return bool(np.isin(found, i).any() and len(j)) if place is None else place[0] in i and place[1] in j

    def _is_near_overflow(self) -> bool:
        """Collective: whether a right result may be infinite, judged by the expected image."""
        sizes = self.expected[1]
        if self.claim.again is not None:
            made = self.claim.again(np.hstack(self.expected))
            x = np.ones((sizes.shape[1] + self.expected[0].shape[1], 1), self.images.wide)
            pair: Pair = x, x.real
            for step in self.claim.steps(made):
                pair = step(pair)
                sizes = np.append(sizes, self.comm.xp.host(pair[1]))
        near = not (sizes < np.finfo(self.images.real).max * self.images.eps).all()
        return any(self.comm.share(near))

    def _find_place(self, made: Any) -> tuple[int, int] | None:
        """Collective: find row and column of a wrong element, by bisection over columns; None if several errors cancel."""
        lo, hi = 0, self.claim.n
        while hi > lo + 1:
            half = (lo + hi) // 2
            lo, hi = (lo, half) if len(self._find_rows(made, lo, half)) else (half, hi)
        rows = self._find_rows(made, lo, hi)
        return (int(rows[0]), lo) if len(rows) else None

    def _find_rows(self, made: Any, lo: int, hi: int) -> np.ndarray:
        """Collective: the rows that any rank finds wrong for vectors that are 0 outside lo to hi."""
        kept = np.zeros((self.claim.n, 1), bool)
        kept[lo:hi] = True
        x = mask(kept, self.x)
        return np.unique(np.concatenate(self.comm.share(self._find_wrong_rows(made, x, self._compute_expected(x))[0])))


def _name_holders(said: Sequence[bool], value: bool) -> str:
    """Name the ranks that said `value`, with a verb: "rank 1 has", "ranks 0, 2 have"."""
    ranks = [rank for rank, one in enumerate(said) if one == value]
    return f"{name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'}"
