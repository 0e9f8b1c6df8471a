"""Matrices from files and to files: .npy, .npz, Matrix Market, HDF5, and those of MATLAB and netCDF that are HDF5.

Each format has a module with three functions:

    header(path, dataset)                            local: read the shape and dtype of the matrix
    load(path, dataset, shape, dtype, grid, layout)  collective: read the matrix
    save(part, path, dataset, A)                     collective: write A to the new file `part`, which then replaces `path`
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

        * ``.npy``: C or Fortran order, any byte order. Each rank reads its own block through a
          memory map. (SIGBUS ends the rank if the file is shortened at that moment.)
        * ``.npz``: one of its arrays. Each rank reads its own block; rank 0 reads a compressed
          array and sends the blocks.
        * ``.mtx``, also ``.mtx.gz``, ``.mtx.bz2``, ``.mtx.xz``: Matrix Market, sparse or dense.
          Rank 0 reads the file and sends dense blocks.
        * ``.h5``, ``.hdf5``: HDF5. Each rank reads its own block.
        * ``.mat``: MATLAB's since 7.3, which are HDF5 files of transposes; ``.nc``: netCDF-4, which
          are HDF5 files, too.

        A vector is a column. Pairs named real and imag are complex numbers.
    grid : ProcessGrid, optional
        The grid of the matrix; by default `ProcessGrid.default`.
    layout : Layout, optional
        How it is cut, without partial sums; by default the grid's `default_layout`.
    dataset : str, optional
        The name of the dataset, for HDF5 and ``.npz``; by default the only one in the file.

    Returns
    -------
    DistMatrix
        Bool, integers, real or complex, as in the file; from Matrix Market int64, uint64, float64
        or complex128. Raw elements of two bytes, as np.save and h5py write bfloat16, are bfloat16,
        which needs ml_dtypes.

    Raises
    ------
    FileError
        On every rank, for a file that is missing, damaged, truncated, written to while it is read,
        or not a matrix of numbers. Also if an HDF5 dataset refers to files that are missing or too
        short.
    LayoutError
        For a layout that does not fit the matrix or has partial sums, on every rank.

    Notes
    -----
    A Matrix Market file must have exactly the entries that it announces. None may break its
    symmetry, and no sum of entries may overflow an integer. A file cut within its last number
    cannot be noticed. Exponents follow E or, as in Fortran, D.

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
        if version(path) != before:  # with another header, the elements would be at other places than those read
            raise FileError(f"{path}: written to, or replaced, while it was loaded")
    return A


def save(path: str | os.PathLike[str], A: DistMatrix, *, dataset: str = "matrix") -> None:
    """Write a matrix into a file.

    Collective over the communicator of A's grid. The file appears, or replaces an old one and takes
    over its permissions, when all of it has been written. A save that fails keeps the old file. A
    dry run writes nothing.

    Parameters
    ----------
    path : str or os.PathLike
        Its ending tells the format:

        * ``.npy``: C order. One rank that holds a block writes it, through a memory map. Across
          nodes the file system must keep their maps coherent, as Lustre does and NFS does not.
        * ``.mtx``, also ``.mtx.gz``, ``.mtx.bz2``, ``.mtx.xz``: rank 0 gathers and writes the
          matrix, dense. Bool and short dtypes are loaded again as 64-bit integers and double
          precision. Long doubles are refused.
        * ``.h5``, ``.hdf5``: rank 0 writes, a few rows at a time; all ranks if h5py has MPI. The
          file keeps other datasets, and the attributes of this one.
        * ``.npz``: rank 0 writes, a few rows at a time. The file has this matrix alone.
    A : DistMatrix
        The matrix; partial sums are added up first.
    dataset : str, optional
        The name of the matrix in the file, for HDF5 and ``.npz``.

    Raises
    ------
    FileError
        If the file cannot be written, on every rank.

    Notes
    -----
    Programs that have the old file open keep the old file, and lose what they write to it. A save
    is therefore refused for a file that any program has locked for writing, as HDF5 does; that has
    changed meanwhile; or that has other names (hard links). Some writers are not noticed:

    * without a lock: a memory map, HDF5 over MPI or with HDF5_USE_FILE_LOCKING=FALSE;
    * on another node, if the file system does not pass on locks;
    * at the moment of the replacement.

    bfloat16 is written to ``.npy`` as np.save writes it: jax.numpy.load reads it, as does
    ``np.load(path).view(ml_dtypes.bfloat16)``. In HDF5 bfloat16 is a float of 16 bits, which h5py
    and others read as float32.

    An HDF5 dataset is stored contiguously and uncompressed, even if the old one was not. A link
    into another file is refused.

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
    """Collective: write A to a new file, which then replaces `path`."""
    comm = A.grid.comm
    whole = convert(A, A.layout.summed, A.grid) if A.layout.partial else A
    if not whole.dtype.isnative:  # scipy would write integers, and h5py wrong complex long doubles
        whole = whole.astype(whole.dtype.newbyteorder("="))
    with replace_file(comm, path) as part:
        form.save(part, path, dataset, whole)


def find_format(path: str | os.PathLike[str]) -> tuple[Path, ModuleType]:
    """Return the path, and the module of its format, by the ending."""
    try:
        found = Path(path)
    except TypeError:
        raise FileError(f"path={path!r}: give a text or a pathlib.Path, as 'matrix.npy'") from None
    for ending, form in FORMATS.items():
        if found.name.lower().endswith(ending):
            return found, form
    like = suggest(found.suffix, FORMATS)
    raise FileError(f"{os.fspath(path)!r}: the ending tells the format, and those known are {', '.join(FORMATS)}{like}")
