"""Files of factors from lu_factor and cho_factor, for solutions on another day and on other ranks.

A file is a NumPy archive of "LU" and its "pivots", or of a Cholesky factor named "L" or "U".
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from pdla.checks import communicator, describe, digest
from pdla.comm.agreement import agreed
from pdla.errors import FileError, LayoutError, ShapeError, kind_of
from pdla.grid import ProcessGrid, check_layout, place
from pdla.io import find_format, load, npz
from pdla.io.files import check_dtype, share_errors
from pdla.io.replace import replace_file, version
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.matrix.core import DistMatrix

NAMES = ("LU", "L", "U")


def save_factors(path: str | os.PathLike[str], factors: tuple[DistMatrix, np.ndarray | bool]) -> None:
    """Write LU or Cholesky factors into a file. Collective, idle ranks included.

    The file appears, or replaces an old one, only when all of it has been written. A dry run writes
    nothing.

    Parameters
    ----------
    path : str or os.PathLike
        A name that ends with ``.npz``.
    factors : tuple
        As `lu_factor` or `cho_factor` returns them, in any layout.

    Raises
    ------
    FileError
        If the file cannot be written.
    ShapeError, LayoutError, AgreementError
        If these are no factors. All of these are raised on every rank.

    See Also
    --------
    load_factors : Read them, on any number of ranks.

    Notes
    -----
    Rank 0 writes, a few rows at a time. To NumPy and SciPy the file is an archive: of "LU" and
    "pivots", as ``scipy.linalg.lu_solve((f["LU"], f["pivots"]), b)`` takes them, or of "L" or "U".

    Examples
    --------
    >>> import os, tempfile
    >>> def program(comm, path):
    ...     a, grid = np.array([[1, 2], [4, 4]]), pdla.ProcessGrid(2)
    ...     A = pdla.from_global(a)
    ...     pdla.linalg.save_factors(path, pdla.linalg.lu_factor(A))
    >>> def resumed(comm, path):
    ...     factors = pdla.linalg.load_factors(path)
    ...     return pdla.linalg.lu_solve(factors, np.array([5.0, 12]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "lu.npz")
    ...     _ = pdla.run(2, program, path)
    ...     print(pdla.run(3, resumed, path)[0])
    [1. 2.]
    """
    X, pivots_or_lower = factors if isinstance(factors, (tuple, list)) and len(factors) == 2 else (factors, None)
    comm = communicator([X], "factors")
    second = digest(pivots_or_lower) if isinstance(pivots_or_lower, np.ndarray) else pivots_or_lower
    with agreed(comm, f"save_factors({path!r}, {describe(X)}, {second})"):
        target = _check_path(path)
        name = _check_factors(X, pivots_or_lower)
    if X.xp.name == "meta":
        return
    with replace_file(comm, target) as part:
        npz.save(part, target, name, X)
        with share_errors(comm, target):
            if comm.rank == 0 and isinstance(pivots_or_lower, np.ndarray):
                npz.append(part, "pivots", pivots_or_lower)


def load_factors(
    path: str | os.PathLike[str], grid: ProcessGrid | None = None, layout: Layout | None = None
) -> tuple[DistMatrix, Any]:
    """Read factors that `save_factors` wrote. Collective over the grid's communicator.

    Every rank must see the file, and reads its own block.

    Parameters
    ----------
    path : str or os.PathLike
        The file.
    grid : ProcessGrid, optional
        A grid of any number of ranks; by default as for `load`.
    layout : Layout, optional
        How they are cut. In square blocks, as ``Layout(Cyclic("row", 64), Cyclic("col", 64))``,
        solutions use them in place; each solution redistributes factors in other layouts.

    Returns
    -------
    factors : tuple
        As `lu_factor` or `cho_factor` returned it: for `lu_solve` or `cho_solve`, `det` and `cond`.

    Raises
    ------
    FileError
        For a file that is missing, damaged or written to meanwhile, or has no factors, on every
        rank.
    LayoutError, AgreementError
        As by `load`.

    See Also
    --------
    save_factors : Write them; with an example.

    Examples
    --------
    >>> import os, tempfile, scipy.linalg
    >>> def program(comm, path):
    ...     square = pdla.Layout(pdla.Cyclic("row", 1), pdla.Cyclic("col", 1))
    ...     C, lower = pdla.linalg.load_factors(path, pdla.ProcessGrid((2, 2)), square)
    ...     return pdla.linalg.det((C, lower)), lower
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "cholesky.npz")
    ...     np.savez(path, L=scipy.linalg.cholesky(4 * np.eye(3), lower=True))
    ...     pdla.run(4, program, path)[0]
    (np.float64(64.0), True)
    """
    grid, layout = place("load_factors", grid, layout)
    comm = grid.comm
    with agreed(comm, f"load_factors({path!r}, {grid!r}, {layout!r})"):
        target = _check_path(path)
        check_layout("load_factors", layout, grid)
    with share_errors(comm, target):
        first_version = version(target)
        name = _find_name(npz.names(target))
    X = load(target, grid, layout, dataset=name)
    with share_errors(comm, target):
        pivots_or_lower = npz.vector(target, "pivots") if name == "LU" else name == "L"
        try:
            _check_factors(X, pivots_or_lower)
        except ShapeError as error:
            raise FileError(f"{target}: {error}") from None
        if version(target) != first_version:
            raise FileError(f"{target}: written to, or replaced, while it was loaded")
    return X, pivots_or_lower


def _check_path(path: Any) -> Path:
    target, file_format = find_format(path)
    if file_format is not npz:
        raise FileError(f"{target}: factors are saved to .npz")
    return target


def _find_name(names: list[str]) -> str:
    """Find the name of the array of factors. ValueError for no such array or several, and for LU without pivots."""
    arrays = [name for name in names if name in NAMES]
    if len(arrays) != 1 or (arrays == ["LU"] and "pivots" not in names):
        raise ValueError(f"no factors: the file has {', '.join(names) or 'nothing'}, save_factors writes LU and pivots, L, or U")
    return arrays[0]


def _check_factors(X: Any, pivots_or_lower: Any) -> str:
    """Check factors, and return the name under which they are saved; ShapeError if they are none."""
    checks.matrix(X, "factors[0]")
    check_dtype(X.dtype)
    if X.layout.partial:
        raise LayoutError(f"factors in {X.layout!r}: redistribute partial sums first")
    if isinstance(pivots_or_lower, (bool, np.bool_)):
        checks.check_square("factors", X)
        return "L" if pivots_or_lower else "U"
    m, k = X.shape[0], min(X.shape)
    if not (isinstance(pivots_or_lower, np.ndarray) and pivots_or_lower.dtype.kind in "iu" and pivots_or_lower.shape == (k,)):
        raise ShapeError(f"factors[1] is {kind_of(pivots_or_lower)}: the {k} pivots of lu_factor, or cho_factor's True or False")
    if k and not 0 <= pivots_or_lower.min() <= pivots_or_lower.max() < m:
        raise ShapeError(f"pivots from {pivots_or_lower.min()} to {pivots_or_lower.max()}: rows have the numbers from 0 to {m - 1}")
    return "LU"
