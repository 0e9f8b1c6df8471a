"""Check a product after it was computed: C x against A (B x), for vectors x of 1 and -1, new ones for each product.

Freivalds, Probabilistic machines can use less running time, IFIP 1977. |A| (|B| |x|), where |B| |x|
are row sums of |B|, bounds the rounding of C x and of alpha A (B x) + beta C0 x in each row, for
terms added in any order. One wrong element shows in its row with either sign of x: an error of more
than twice the bound is always found. Several wrong elements of a row may cancel, but for at most
half of all vectors.

A rank receives a few vectors of the lengths of A's, B's and C's dimensions. Only if something is
wrong, the columns of each of C's blocks are checked alone, which tells the block's owner.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pdla import config
from pdla.array.composed import sum_dtype
from pdla.array.dtypes import promote
from pdla.comm.agreement import collective_section
from pdla.comm.communicator import Communicator
from pdla.errors import PlanError, VerificationError, suggest
from pdla.layout import axes_of, points, share
from pdla.matmul.images import Images, Pair, sum_over
from pdla.matrix.core import DistMatrix


def check_option(verify: Any) -> None:
    """Raise PlanError unless this is one of the values of matmul's argument."""
    if not any(verify is way for way in (True, False, None)) and not (isinstance(verify, str) and verify == "keep"):
        raise PlanError(f"verify={verify!r}: True, False, 'keep' or None{suggest(verify, ('keep',))}")


def run(
    plan: Any, A: DistMatrix, B: DistMatrix, out: DistMatrix | None, alpha: complex, beta: complex, *rest: Any, keep: bool = False
) -> DistMatrix:
    """Collective: run a plan and check its product. A wrong product is computed once more, or is a VerificationError on every rank.

    keep: C is kept before it is written to, so that it can be computed again.
    """
    wide = sum_dtype(promote(A.dtype, B.dtype))
    if wide.kind not in "fciu":  # booleans have no sums, and NumPy does not sum ml_dtypes' integers
        return plan.run(A, B, out, alpha, beta, *rest)
    before = out.copy() if keep and out is not None and beta != 0 else None
    check = Check(A, B, alpha, beta, Images.of(A.grid.comm, wide), out)
    with collective_section(A.grid.comm, "the check of a product"):
        check.begin()

    def recompute(C: DistMatrix) -> DistMatrix:
        if before is not None:
            C.xp.copy(C.stored, before.stored)
        return plan.run(A, B, C, alpha, beta, *rest)

    lost = "" if out is None or keep else "out was overwritten: verify='keep' saves it, and computes the product again"
    return recompute_if_wrong(A.grid.comm, plan.run(A, B, out, alpha, beta, *rest), check.find_faults, recompute, lost)


class NotFinite(str):
    """The text of a fault that a right result may have, too, as an infinite element: the same fault twice is accepted."""


def recompute_if_wrong(
    comm: Communicator, result: Any, find_faults: Callable[[Any], str], recompute: Callable[[Any], Any], lost: str
) -> Any:
    """Collective: return a result without faults, if necessary computed again, with a warning. Else raise VerificationError.

    The check is repeated first, since its own message may have been wrong. lost: the reason why the
    result cannot be computed again; "": it can.
    """
    if not (fault := find_faults(result)):
        return result
    if not find_faults(result):
        warn(comm, fault, "looked at again")
        return result
    if lost:
        raise VerificationError(f"{fault}; {lost}")
    result = recompute(result)
    if (remaining := find_faults(result)) and not (isinstance(fault, NotFinite) and isinstance(remaining, NotFinite)):
        raise VerificationError(f"{fault}; computed again: {remaining}")
    if not remaining:
        warn(comm, fault)
    return result


def warn(comm: Communicator, wrong: str, mended: str = "computed again") -> None:
    """Warn, on rank 0, of a fault that was mended."""
    if comm.rank == 0:
        warnings.warn(f"{wrong}; {mended}, it was right", RuntimeWarning, stacklevel=4)


@dataclass
class Check:
    """The check of one product C = alpha A B + beta C, in the dtype in which it is added up."""

    A: DistMatrix
    B: DistMatrix
    alpha: complex
    beta: complex
    images: Images
    out: DistMatrix | None
    before: Any = None  # the image of C's block before the product, not summed over ranks

    def begin(self) -> None:
        """Local: keep the image of the matrix to which the product is added."""
        if self.beta != 0 and self.out is not None:
            self.before = self.images.addends(self.out, self._vectors)

    @cached_property
    def _vectors(self) -> Pair:
        return self.images.vectors(self.B.shape[1])

    def find_faults(self, C: DistMatrix) -> str:
        """Collective: describe the faults, in the same words on every rank; "": there is none."""
        comm = C.grid.comm
        with collective_section(comm, "the check of a product"), np.errstate(all="ignore"):
            expected, own = self._multiply(self._vectors), self._image_of_sum(C)
            along = C.grid[axes_of(C.layout.cols)] if C.layout.cols else None
            rows = self._find_wrong(C, own if along is None else sum_over(own, along), expected)
            text = "" if rows is None else f"rank {comm.rank}"
            if comm.same(text) and not text:
                return ""
            blocks = [block for block in comm.share("; ".join(self._describe_blocks(C))) if block]
            return "; ".join(blocks) or _describe_rows(comm.share(rows))

    def _describe_blocks(self, C: DistMatrix) -> Iterator[str]:
        """Collective: describe the wrong rows of this rank's block, if any; each block's columns are checked alone."""
        own_cols, image = C.indices[1], self._image_of_sum(C)
        for coords in points(C.grid.sizes, axes_of(C.layout.cols), {}):
            cols = share(C.shape[1], C.layout.cols, C.grid.sizes, coords)
            kept = np.zeros((C.shape[1], 1), bool)
            kept[cols.indices()] = True
            expected = self._multiply(mask(kept, self._vectors))
            if C.grid.coords is not None and all(C.grid.coords[axis] == coord for axis, coord in coords.items()):
                rows = self._find_wrong(C, image, expected)
                if rows is not None and len(own_cols):
                    coord = f"rows {rows[0]} to {rows[1]}, columns {own_cols.starts[0]} to {own_cols.stops[-1] - 1}"
                    yield f"rank {C.grid.comm.rank} has wrong elements in {coord}"

    def _image_of_sum(self, C: DistMatrix) -> Pair:
        """Local: compute this rank's addends of the image by alpha A B: C's minus those of the old C; and the old C's sizes."""
        image, none = self.images.addends(C, (self._vectors[0], None))
        if self.before is None:
            return image, none
        return image - self.images.wide.type(self.beta) * self.before[0], np.abs(self.beta) * self.before[1]

    def _find_wrong(self, C: DistMatrix, image: Pair, expected: Pair) -> tuple[int, int] | None:
        """Find the first and last of this rank's rows in which C x is too far from its expected value; None: there is none."""
        xp, wide = C.xp, self.images.wide
        if xp.name == "meta" or not C.stored.size:
            return None
        own_rows = C.indices[0].indices()
        expected_image, size = (xp.host(x)[own_rows] for x in expected)
        expected_image, most = expected_image * wide.type(self.alpha), np.abs(self.alpha) * size + xp.host(image[1])
        n, k = self.B.shape[1], self.A.shape[1]
        factor = 1 + abs(self.alpha) + abs(self.beta)
        wrong = find_wrong_rows(xp.host(image[0]), expected_image, most, C.dtype, n, k, C.grid.comm.size, factor, C.xp.name)
        rows = own_rows[wrong]
        return (int(rows[0]), int(rows[-1])) if len(rows) else None

    def _multiply(self, x: Pair) -> Pair:
        """Collective: compute A (B x) and |A| (|B| |x|), whole on every rank."""
        return self.images.multiply(self.A, self.images.multiply(self.B, x))


def find_wrong_rows(
    found: Any, expected: Any, most: Any, dtype: np.dtype, n: int, k: int, ranks: int = 1, factor: float = 2, xp: str = "numpy"
) -> np.ndarray:
    """Find the rows in which images of a product in this dtype are too far from the expected ones, for their sizes `most`.

    All terms of a sum may err: also the ranks' addends, and elements rounded to 16 bits. factor:
    of the underflow that is allowed.
    """
    if found.dtype.kind in "iu":
        return (found.astype(dtype) != expected.astype(dtype)).any(axis=-1)
    info = np.finfo(found.dtype)
    rounding = 2.0**-9 / float(info.eps) if config.settings.tf32 and xp == "cupy" else 1
    tolerance = (n + k + ranks + 8) * float(info.eps) * (2 if found.dtype.kind == "c" else 1) * rounding
    tolerance += 0 if dtype == found.dtype else 4 * float(_finfo(dtype).eps)
    error = np.where(np.isfinite(found), np.abs(found - expected), np.inf)
    is_bounded = most < float(_find_largest(dtype)) / 4  # otherwise it may be infinite, or NaN if an operand has one
    return (is_bounded & ~(error <= most * tolerance + float(info.tiny) * (n + 1) * (k + 2) * factor)).any(axis=-1)


def mask(kept: np.ndarray, x: Pair) -> Pair:
    """Set the vectors to zero where nothing is kept."""
    return np.where(kept, x[0], x[0].dtype.type(0)), np.where(kept, x[1], x[1].dtype.type(0))


def _finfo(dtype: np.dtype) -> Any:
    if dtype.kind != "V":
        return np.finfo(dtype)
    import ml_dtypes

    return ml_dtypes.finfo(dtype)


def _find_largest(dtype: np.dtype) -> Any:
    return _finfo(dtype).max


def _describe_rows(found: list[tuple[int, int] | None]) -> str:
    """Describe the rows that ranks found wrong, if all blocks are right when checked alone."""
    rows = [rows for rows in found if rows is not None]
    return f"the product is wrong in rows {min(lo for lo, _ in rows)} to {max(hi for _, hi in rows)}"
