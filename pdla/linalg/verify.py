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
from functools import partial
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
    """Collective, if results are checked: agree on numbers by which ranks act. If they differ, the root's are taken."""
    if comm is None or comm.xp.name == "meta" or not is_checking() or comm.same(f"{numbers.tolist()}"):
        return numbers
    return comm.share(numbers)[root]


@dataclass(frozen=True)
class Claim:
    """A claim of a result: for random x of n elements, expected(x) is the image of x by steps(result), if the result is right.

    terms      the number of roundings in each row
    expected   the image of x by the operands. Its row rows(result)[i] is compared with row i of the result's image.
    steps      of the result: functions of its factors; each maps the image by the function before it
    matrices   of the result: matrices whose wrong blocks an error names
    zeros      of the result: parts of matrices that must be 0
    control    of the result: values that must be the same on all ranks
    operands   matrices that must be finite, in these parts, besides the operands of `expected`
    lost       why the result cannot be computed again; "" if it can
    solve      solves for images of vectors, to judge the size of a lost result; None: its size is about the images' size
    """

    n: int
    terms: int
    expected: Callable[[Pair], Pair]
    steps: Callable[[Any], tuple[Callable[[Pair], Pair], ...]]
    matrices: Callable[[Any], tuple[DistMatrix, ...]] = lambda result: (result,)
    zeros: Callable[[Any], tuple[tuple[DistMatrix, Part], ...]] = lambda result: ()
    rows: Callable[[Any], Any] = lambda result: ALL
    control: Callable[[Any], Any] = lambda result: None
    operands: tuple[tuple[DistMatrix, Part], ...] = ()
    lost: str = ""
    solve: Callable[[np.ndarray], Any] | None = None


def run_and_check(comm: Communicator, dtype: np.dtype, compute: Callable[[], Any], claim: Callable[[Images], Claim]) -> Any:
    """Collective: compute a result. If results are checked, check it, and compute a wrong result again.

    Dry runs check nothing, and dtypes that LAPACK lacks are not checked. A LinAlgError is raised if
    two computations raise it.
    """
    if comm.xp.name == "meta" or not is_checking() or dtype.char not in "fdFD":
        return compute()
    images = Images.of(comm, dtype)
    with collective_section(comm, "the check of a result"), np.errstate(all="ignore"):
        check = Check(comm, images, claim(images))
    result, error = _compute_together(comm, compute, check.claim)
    recompute = partial(_recompute, comm, compute, check.claim)
    if error is not None:
        if check.claim.lost:
            raise error
        result = recompute()
    result = recompute_if_wrong(comm, result, check.find_faults, lambda wrong: recompute(), check.claim.lost)
    if error is not None:
        warn(comm, f"{error}")
    return result


def _compute_together(comm: Communicator, compute: Callable[[], Any], claim: Claim) -> tuple[Any, PdlaError | None]:
    """Collective: compute the result. Returns it and the error of all ranks, VerificationError if ranks differ."""
    result, error = None, None
    try:
        with np.errstate(invalid="ignore"):  # a wrong row number may be NaN
            result = compute()
    except LinAlgError as raised:
        error = raised
    text = f"{claim.control(result)}" if error is None else f"{error}"
    if comm.same(text):
        return result, error
    groups = group_ranks(comm.share(text)).values()
    return None, VerificationError(f"{' and '.join(map(name_ranks, groups))} have found different pivots or errors")


def _recompute(comm: Communicator, compute: Callable[[], Any], claim: Claim) -> Any:
    """Collective: compute the result again, and raise the error of all ranks."""
    result, error = _compute_together(comm, compute, claim)
    if error is not None:
        raise error
    return result


def explain_loss(matrix: str, overwrite: bool) -> str:
    """Explain why a result cannot be computed again: a matrix was overwritten; "": it can."""
    return f"{matrix} may have been overwritten: verify='keep' works on a copy, and recomputes" if overwrite else ""


def _has_copies(X: DistMatrix) -> bool:
    """Whether several ranks have copies of the same part of X. Each multiplies its copy by its part of the next matrix alone."""
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

    def find_faults(self, result: Any) -> str:
        """Collective: describe what is wrong, with the same text on every rank; "" if nothing is.

        If there is a fault, compute `expected` again, if possible: a wrong message may have spoilt it.
        """
        with collective_section(self.comm, "the check of a result"), np.errstate(all="ignore"):
            rows, in_range = self._find_wrong_rows(result, self.x, self.expected)
            text = f"{rows}" if len(rows) or not in_range else ""
            if self.comm.same(text) and not text:
                return ""
            description = self._describe_faults(result, rows, in_range)
            if description and not self.claim.lost:
                self.expected = self._compute_expected(self.x)
            return description

    def _compute_expected(self, x: Pair) -> Pair:
        return self._to_host(self.claim.expected(x))

    def _to_host(self, pair: Pair) -> Pair:
        return self.comm.xp.host(pair[0]), self.comm.xp.host(pair[1])

    def _find_wrong_rows(self, result: Any, x: Pair, expected: Pair) -> tuple[np.ndarray, bool]:
        """Collective: find the rows whose images differ by more than rounding; and whether no size is near overflow."""
        info, growth = np.finfo(self.images.real), float(self.claim.n + 1)
        underflow = float(info.tiny) / self.images.eps  # a size may lose so much, and the next step multiplies the loss
        steps, more_rows = self.claim.steps(result), [self._find_nonzeros(result, x)]
        copies = any(map(_has_copies, self.claim.matrices(result)))
        for number, step in enumerate(steps, 1):
            x = step(x)
            x = x[0], np.maximum(x[1], underflow)
            image, size = self._to_host(x)
            growth += float(size[np.isfinite(size)].sum(dtype=float))  # the factor by which underflow may grow
            if copies and number < len(steps):
                more_rows.append(self._compare_copies(image, size))
        rows = self.claim.rows(result)
        difference, sizes = np.abs(image - expected[0][rows]), size + expected[1][rows]
        rounding = (self.claim.terms + 2 * self.comm.size + 16) * self.images.eps / 2
        in_range = sizes < float(info.max) / 4
        wrong = in_range & ~(difference <= sizes * rounding + growth * float(info.tiny))
        return np.unique(np.concatenate([np.flatnonzero(wrong.any(axis=1)), *more_rows])), bool(in_range.all())

    def _compare_copies(self, image: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Collective: find the rows in which this rank's image differs from the first rank's, which used another copy."""
        xp, reference = self.comm.xp, image.copy()
        reference = xp.host(self.comm.bcast(xp.asarray(reference), 0).wait())
        agrees = (np.abs(image - reference) <= size * (self.claim.terms + 16) * self.images.eps) | ~np.isfinite(image)
        return np.flatnonzero(~(agrees & (np.isfinite(image) == np.isfinite(reference))).all(axis=1))

    def _find_nonzeros(self, result: Any, x: Pair) -> np.ndarray:
        """Local: find this rank's rows with nonzeros in place of zeros, in columns where x is not 0."""
        rows = [np.zeros(0, np.int64)]
        for X, part in self.claim.zeros(result):
            size = self.comm.xp.host(self.images.addends(X, x, part)[1])
            rows.append(X.indices[0].indices()[np.flatnonzero(size != 0)])
        return np.concatenate(rows)

    def _describe_faults(self, result: Any, rows: np.ndarray, in_range: bool) -> str:
        """Collective: describe what is wrong; nothing, if an operand is infinite or NaN."""
        comm, matrices = self.comm, self.claim.matrices(result)
        infinite_operand = any(find_not_finite(T.stored, T.indices, part) for T, part in self.claim.operands)
        finite_operands = bool(np.isfinite(self.expected[1]).all()) and not infinite_operand
        finite_result = in_range or all(X.xp.is_finite(X.stored) for X in matrices)
        operands, results = zip(*comm.share((finite_operands, finite_result)), strict=True)
        wrong_rows = np.unique(np.concatenate(comm.share(rows)))
        if not all(operands):
            return ""
        if not all(results) or not len(wrong_rows):
            if self.claim.lost and self._is_near_overflow():
                return ""
            if all(results):
                return NotFinite("elements are too large to be checked")
            return NotFinite(f"{_name_holders(results, False)} elements that are not finite")
        place = None if self.claim.lost else self._find_place(result)
        holders = comm.share(any(self._has_rows_of(X, wrong_rows, place) for X in matrices))
        where = f" in rows {wrong_rows[0]} to {wrong_rows[-1]}" if place is None else f", one in row {place[0]}, column {place[1]}"
        return f"{_name_holders(holders, True)} wrong elements{where}"

    def _has_rows_of(self, X: DistMatrix, rows: np.ndarray, place: tuple[int, int] | None) -> bool:
        """Local: whether this rank has the element at this place; without a place, some of these rows."""
        i, j = (index_set.indices() for index_set in X.indices)
        return bool(np.isin(rows, i).any() and len(j)) if place is None else place[0] in i and place[1] in j

    def _is_near_overflow(self) -> bool:
        """Collective: whether a right result may be infinite, judged by the expected image."""
        sizes = self.expected[1]
        if self.claim.solve is not None:
            result = self.claim.solve(np.hstack(self.expected))
            x = np.ones((sizes.shape[1] + self.expected[0].shape[1], 1), self.images.wide)
            pair: Pair = x, x.real
            for step in self.claim.steps(result):
                pair = step(pair)
                sizes = np.append(sizes, self.comm.xp.host(pair[1]))
        near = not (sizes < np.finfo(self.images.real).max * self.images.eps).all()
        return any(self.comm.share(near))

    def _find_place(self, result: Any) -> tuple[int, int] | None:
        """Collective: find row and column of a wrong element, by bisection over columns; None if several errors cancel."""
        lo, hi = 0, self.claim.n
        while hi > lo + 1:
            half = (lo + hi) // 2
            lo, hi = (lo, half) if len(self._find_rows(result, lo, half)) else (half, hi)
        rows = self._find_rows(result, lo, hi)
        return (int(rows[0]), lo) if len(rows) else None

    def _find_rows(self, result: Any, lo: int, hi: int) -> np.ndarray:
        """Collective: find the rows that are wrong on any rank for vectors that are 0 outside lo to hi."""
        selected = np.zeros((self.claim.n, 1), bool)
        selected[lo:hi] = True
        x = mask(selected, self.x)
        return np.unique(np.concatenate(self.comm.share(self._find_wrong_rows(result, x, self._compute_expected(x))[0])))


def _name_holders(answers: Sequence[bool], value: bool) -> str:
    """Name the ranks that answered `value`, with a verb: "rank 1 has", "ranks 0, 2 have"."""
    ranks = [rank for rank, answer in enumerate(answers) if answer == value]
    return f"{name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'}"
