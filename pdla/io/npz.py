"""NumPy's .npz: a zip archive of .npy files, of which `dataset` names one.

Every rank maps an array of np.savez into memory, as an .npy file; rank 0 unpacks one of
np.savez_compressed. Rank 0 writes, a few rows at a time, as a zip archive has checksums.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np

from pdla.errors import suggest
from pdla.grid import ProcessGrid
from pdla.indices import Selection
from pdla.io.files import check_matrix, gather_panels, read_blocks, share_errors
from pdla.io.npy import fields, read_part
from pdla.layout import Layout, Shape
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import convert

LOCAL = struct.Struct("<26x2H")  # of a member's header: the lengths of its name and of its extra field


def header(path: Path, dataset: str | None) -> tuple[Shape, np.dtype]:
    with _open(path) as archive, archive.open(_member(archive, dataset)) as file:
        found = fields(file)
    return check_matrix(found["shape"], found["dtype"])


def names(path: Path) -> list[str]:
    """List the arrays in an archive."""
    with _open(path) as archive:
        return [*_members(archive)]


def _open(path: Path) -> ZipFile:
    try:
        return ZipFile(path)
    except BadZipFile as error:
        raise ValueError(f"no .npz archive: {error}") from None


def _members(archive: ZipFile) -> dict[str, ZipInfo]:
    return {info.filename.removesuffix(".npy"): info for info in archive.infolist() if info.filename.endswith(".npy")}


def _member(archive: ZipFile, name: str | None) -> ZipInfo:
    """Find the array of this name, or for None the only one in the archive; else ValueError, which lists all."""
    members = _members(archive)
    if name is None and len(members) == 1:
        return next(iter(members.values()))
    if name in members:
        return members[name]
    asked = "which array? Give dataset=name" if name is None else f"no array {name!r}"
    raise ValueError(f"{asked}; the file has {', '.join(members) or 'none'}{suggest(name, members)}")


def load(path: Path, dataset: str | None, shape: Shape, dtype: np.dtype, grid: ProcessGrid, layout: Layout) -> DistMatrix:
    def read(block: np.ndarray, rows: Selection, cols: Selection) -> None:
        read_part(_array(path, dataset), block, rows, cols)

    with ZipFile(path) as archive:
        if _member(archive, dataset).compress_type == ZIP_STORED:
            return read_blocks(path, shape, dtype, grid, layout, read)
    alone = ProcessGrid.trust((1,), grid.comm, [0])
    return convert(read_blocks(path, shape, dtype, alone, Layout(), read), layout, grid)


def vector(path: Path, dataset: str) -> np.ndarray:
    """Local: read a short array as a vector."""
    with _open(path) as archive, archive.open(_member(archive, dataset)) as file:
        found = _read(file)
    return found.ravel().astype(found.dtype.newbyteorder("="))


def _read(file: IO[bytes]) -> np.ndarray:
    found = fields(file)
    found.pop("offset")
    return np.ndarray(buffer=file.read(), **found)


def _array(path: Path, dataset: str | None) -> np.ndarray:
    """Map the array into memory, or read it if it is packed."""
    with ZipFile(path) as archive:
        info = _member(archive, dataset)
        with archive.open(info) as file:
            if info.compress_type != ZIP_STORED:
                return _read(file)
            found = fields(file)
    with path.open("rb") as whole:
        whole.seek(info.header_offset)
        begin = info.header_offset + LOCAL.size + sum(LOCAL.unpack(whole.read(LOCAL.size)))
    return np.memmap(path, mode="r", **(found | {"offset": begin + found["offset"]}))


# ---------------------------------------------------------------------------------------------- writing


def save(part: Path, path: Path, dataset: str, A: DistMatrix) -> None:
    """Collective: append A to the arrays that are in `part` already, if there are any."""
    comm, opened, file = A.grid.comm, ExitStack(), None
    try:
        with share_errors(comm, path):
            if comm.rank == 0:
                file = opened.enter_context(_append_to(part, dataset, A.shape, A.dtype))
        for _, panel in gather_panels(A):
            with share_errors(comm, path):
                if file is not None:
                    file.write(A.xp.host(panel).reshape(-1).view(np.uint8))
        with share_errors(comm, path):
            opened.close()
    finally:
        with suppress(Exception):  # after an error, of which all ranks know
            opened.close()


def append(part: Path, dataset: str, x: np.ndarray) -> None:
    """Local: append an array of one rank to an archive."""
    with _append_to(part, dataset, x.shape, x.dtype) as file:
        file.write(np.ascontiguousarray(x).reshape(-1).view(np.uint8))


@contextmanager
def _append_to(part: Path, dataset: str, shape: tuple[int, ...], dtype: np.dtype) -> Iterator[Any]:
    """Open a new array in an archive, to write its elements in C order."""
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with ZipFile(part, "a") as archive, archive.open(f"{dataset}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array_header_1_0(file, described)
        yield file
