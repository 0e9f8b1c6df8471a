"""Matrices from files and to files: .npy, .npz, Matrix Market, HDF5, and those of MATLAB and netCDF that are HDF5.

Each format has a module with three functions:

header(path, dataset)                               shape and dtype of the matrix; every rank reads them; not collective
load(path, dataset, shape, dtype, grid, layout)     the matrix; collective
save(part, path, dataset, A)                        A into the new file `part`, which then replaces `path`; collective
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

from pdla.array.dtypes import check_numbers
from pdla.comm.agreement import agree, agreed, raise_everywhere
from pdla.errors import FileError, LayoutError, kind_of, suggest
from pdla.grid import ProcessGrid, check_layout, place
from pdla.io import foreign, hdf5, mtx, npy, npz
from pdla.io.files import check_dtype, share_errors
from pdla.io.replace import replace_file, version
from pdla.layout import Layout
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import convert

FORMATS = {
    ".npy": npy, ".mtx": mtx, ".mtx.gz": mtx, ".mtx.bz2": mtx, ".mtx.xz": mtx, ".h5": hdf5, ".hdf5": hdf5,
    ".npz": npz, ".mat": foreign, ".nc": foreign,
}
NAMED = (hdf5, npz, foreign)  # files of several matrices, which have names
READ_ONLY = (foreign,)


def load(
    path: str | os.PathLike[str], grid: ProcessGrid | None = None, layout: Layout | None = None, *, dataset: str | None = None
) -> DistMatrix:
    """Read a matrix from a file, in the byte order of this machine.

    Collective over the grid's communicator, idle ranks included. Every rank must see the file. In a
    dry run only its header is read.

    Parameters
    ----------
    path : str or os.PathLike
        Its ending tells the format:

        * ``.npy``: C or Fortran order, any byte order; each rank reads its own block through a
          memory map (a file that is shortened just then ends the rank: SIGBUS).
        * ``.npz``: one of its arrays; each rank reads its own block, or where it is compressed
          rank 0 reads it and deals it out.
        * ``.mtx``, also ``.mtx.gz``, ``.mtx.bz2``, ``.mtx.xz``: Matrix Market, sparse or dense; the
          matrix is dense; rank 0 reads it and deals it out.
        * ``.h5``, ``.hdf5``: HDF5; each rank reads its own block.
        * ``.mat``: MATLAB's since 7.3, which are HDF5 files of transposes; ``.nc``: netCDF-4, which
          are HDF5 files, too.

        A vector is a column. Pairs named real and imag are complex numbers.
    grid : ProcessGrid, optional
        The grid of the matrix; by default `ProcessGrid.default`.
    layout : Layout, optional
        How it is cut, without partial sums; by default the grid's `default_layout`.
    dataset : str, optional
        Of HDF5 and ``.npz``: the name of the dataset; by default the only one in the file.

    Returns
    -------
    DistMatrix
        Bool, integers, real or complex, as in the file; from Matrix Market int64, uint64, float64
        or complex128. Two bytes without a name, as np.save and h5py make of bfloat16, are bfloat16,
        which needs ml_dtypes.

    Raises
    ------
    FileError
        For a file that is missing, damaged, truncated, written to while it is read, or not a matrix
        of numbers, and for an HDF5 dataset that lies in other files which are missing or too short;
        on every rank.
    LayoutError
        For a layout that does not fit the matrix or has partial sums, on every rank.

    Notes
    -----
    A Matrix Market file has exactly the entries that it announces, none that its symmetry forbids,
    and no sum of entries that overflows an integer; if it ends within its last number, nobody can
    tell. Exponents stand after E or, as Fortran writes them, D.

    Examples
    --------
    >>> import os, tempfile
    >>> def program(comm, path):
    ...     grid = pdla.ProcessGrid((2, 2))
    ...     pdla.save(path, pdla.eye(4, grid, pdla.Layout("row", "col")))
    ...     return pdla.load(path, grid, pdla.Layout("col")).trace()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(pdla.run(4, program, os.path.join(folder, "eye.npy"))[0])
    4.0
    """
    grid, layout = place("load", grid, layout)
    comm = grid.comm
    with agreed(comm, f"load({path!r}, {grid!r}, {layout!r}, dataset={dataset!r})"):
        check_layout("load", layout, grid)
        path, form = find_format(path)
        if dataset is not None and form not in NAMED:
            raise FileError(f"{path}: dataset={dataset!r} is for HDF5 files and .npz; this one holds one matrix")
        if dataset is not None and not (isinstance(dataset, str) and "\0" not in dataset):
            raise FileError(f"{path}: dataset={dataset!r}: give the name of one in the file, as 'matrix'")
        if layout.partial:
            raise LayoutError(f"load: {layout!r} has partial sums; give a layout without")
    with share_errors(comm, path):
        before = version(path)
        shape, dtype = form.header(path, dataset)
        layout.check(shape, grid.sizes)
        check_numbers(f"load {path}", dtype, comm.xp)
    agree(comm, f"load {path}: {shape[0]} x {shape[1]}, {dtype}")
    A = form.load(path, dataset, shape, dtype, grid, layout)
    with share_errors(comm, path):
        if version(path) != before:  # in a file with another header the elements are at other places than those that were read
            raise FileError(f"{path}: written to, or replaced, while it was loaded")
    return A


def save(path: str | os.PathLike[str], A: DistMatrix, *, dataset: str = "matrix") -> None:
    """Write a matrix into a file.

    Collective over the communicator of A's grid. The file appears, or replaces an old one and takes
    over its permissions, only when all of it has been written: a save that fails leaves the old
    one. A dry run writes nothing.

    Parameters
    ----------
    path : str or os.PathLike
        Its ending tells the format:

        * ``.npy``: C order; each block is written once, by a rank that holds it, through a memory
          map. Across nodes this needs a file system that keeps the nodes' maps coherent, as Lustre
          does and NFS does not.
        * ``.mtx``, also ``.mtx.gz``, ``.mtx.bz2``, ``.mtx.xz``: gathered on rank 0 and written
          there, dense; bool and short dtypes are loaded again as 64-bit integers and double
          precision; long doubles are refused.
        * ``.h5``, ``.hdf5``: written by rank 0, a few rows at a time, or by all ranks where h5py is
          built with MPI. The file's other datasets stay, and the attributes of this one.
        * ``.npz``: written by rank 0, a few rows at a time; the file has this matrix alone.
    A : DistMatrix
        The matrix; partial sums are added up first.
    dataset : str, optional
        Of HDF5 and ``.npz``: the name of the matrix in the file.

    Raises
    ------
    FileError
        Where the file cannot be written, on every rank.

    Notes
    -----
    Who has the old file open keeps it, and what is written there is lost. So a save is refused
    where anybody, in this program or another, has locked the file to write to it, as HDF5 does;
    where it has been changed meanwhile; and where it has other names (hard links). Nobody can tell
    who writes without a lock (a memory map, HDF5 over MPI or with HDF5_USE_FILE_LOCKING=FALSE), or
    on another node, where the file system does not pass locks on, or at the very moment at which
    the file is replaced.

    bfloat16 is written to ``.npy`` as by np.save: jax.numpy.load knows it,
    ``np.load(path).view(ml_dtypes.bfloat16)`` gives it. To HDF5 it is a float of 16 bits, which
    h5py and others read as float32. A dataset is stored in one piece, not compressed, whatever was
    there, and a link into another file is refused.

    Examples
    --------
    >>> import os, tempfile
    >>> def program(comm, path):
    ...     pdla.save(path, pdla.eye(2, pdla.ProcessGrid(comm.size), pdla.Layout("row")))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "eye.npy")
    ...     _ = pdla.run(2, program, path)
    ...     print(np.load(path))
    [[1. 0.]
     [0. 1.]]
    """
    if not isinstance(A, DistMatrix):
        raise_everywhere(FileError(f"save(path, A): A is {kind_of(A)}, not a DistMatrix"))
    comm = A.grid.comm
    with agreed(comm, f"save({path!r}, {A.description}, dataset={dataset!r})"):
        path, form = find_format(path)
        if form in READ_ONLY:
            others = [ending for ending, other in FORMATS.items() if other not in READ_ONLY]
            raise FileError(f"{path}: {path.suffix} is read only; save to {', '.join(others)}")
        if form in NAMED and not (isinstance(dataset, str) and dataset.strip("/") and "\0" not in dataset):
            raise FileError(f"{path}: dataset={dataset!r}: give the name that it is to have in the file, as 'matrix'")
    with share_errors(comm, path):
        check_dtype(A.dtype)
    if A.xp.name == "meta":
        return
    _write(form, path, A, dataset)


def _write(form: ModuleType, path: Path, A: DistMatrix, dataset: str) -> None:
    """Collective: A into a new file, which then takes the place of `path`."""
    comm = A.grid.comm
    whole = convert(A, A.layout.summed, A.grid) if A.layout.partial else A
    if not whole.dtype.isnative:  # scipy would write them as integers, and h5py rubbish for complex long doubles
        whole = whole.astype(whole.dtype.newbyteorder("="))
    with replace_file(comm, path) as part:
        form.save(part, path, dataset, whole)


def find_format(path: str | os.PathLike[str]) -> tuple[Path, ModuleType]:
    """The path and the module of its format, which the ending tells."""
    try:
        found = Path(path)
    except TypeError:
        raise FileError(f"path={path!r}: give a text or a pathlib.Path, as 'matrix.npy'") from None
    for ending, form in FORMATS.items():
        if found.name.lower().endswith(ending):
            return found, form
    like = suggest(found.suffix, FORMATS)
    raise FileError(f"{os.fspath(path)!r}: the ending tells the format, and those known are {', '.join(FORMATS)}{like}")
