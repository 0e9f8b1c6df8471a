"""The functions of pdla.h: read C's arguments, look up handles, and return errors as numbers and texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np

from pdla.array.numpy import has_no_overlap, view_address
from pdla.comm import from_fortran
from pdla.comm.agreement import agree, agreed, raise_everywhere
from pdla.cuts import Balanced, Cuts, Cyclic
from pdla.errors import AgreementError, GridError, HandleError, LayoutError, PdlaError, PlanError, ShapeError, shorten
from pdla.grid import NAMES, ProcessGrid, check_same_communicator, find_communicator
from pdla.indices import MOST
from pdla.layout import Layout
from pdla.matmul import matmul
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import check_room, check_shape, from_local
from pdla.matrix.redistribute import convert, local_shape
from pdla.native.number import read_number
from pdla.scalapack.pblas import DTYPES, TURNS

NUMBERS = (ShapeError, LayoutError, GridError, PlanError, AgreementError, HandleError)  # by pdla.h's number, from 1
OTHER = 7  # PDLA_OTHER
LONGEST = 4095  # the most bytes of an error's text: pdla.c allocates one more, for a zero
THINGS: dict[type[Any], str] = {ProcessGrid: "a grid", DistMatrix: "a matrix"}
QUOTED = 200  # characters of a layout's text that an error quotes


class Handles:
    """The grids and matrices that C holds, by handle, a number."""

    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}
        self.numbers: count[int] = count(1)

    def new(self, thing: Any) -> int:
        number = next(self.numbers)
        self.kept[number] = thing
        return number

    def get(self, name: str, handle: int, kind: type) -> Any:
        """Find a thing of this kind by its handle. name: the argument in pdla.h."""
        thing = self.kept.get(handle)
        if not isinstance(thing, kind):
            raise HandleError(f"{name}={handle} is the handle of {THINGS.get(type(thing), 'nothing')}, not of {THINGS[kind]}")
        return thing

    def free(self, handle: int) -> None:
        if self.kept.pop(handle, None) is None:
            raise HandleError(f"handle {handle} is nothing: freed already?")


def read_layout(text: str) -> Layout:
    """Read a layout from a text: the arguments of Layout as in Python, without `Layout(` and `)`."""
    names = {"__builtins__": {}, "Layout": Layout, "Cyclic": Cyclic, "Cuts": Cuts, "Balanced": Balanced}
    try:
        made = eval(f"Layout({text})", names)
        if not isinstance(made, Layout):
            raise TypeError("not the arguments of one layout")
        return made
    except LayoutError:
        raise
    except Exception as error:
        given, why = shorten(text, QUOTED), shorten(str(error) or repr(error), QUOTED)  # Python's own errors quote it, too
        raise LayoutError(f"layout {given!r}: {why}; write \"rows='row', cols=Cyclic('col', 64)\"") from error


def check_pointers(**pointers: Any) -> None:
    """Raise PdlaError if one of these pointers is NULL: cffi would fail only after the work, or read an array there."""
    for name, pointer in pointers.items():
        if not pointer:
            raise PdlaError(f"{name} is NULL: it is read or written on every process")


def check_one_communicator(**matrices: DistMatrix) -> None:
    """Raise GridError if these matrices are on different communicators."""
    first, A = next(iter(matrices.items()))
    for name, X in matrices.items():
        check_same_communicator(A.grid, X.grid, name, first)


def make_block(address: int, shape: tuple[int, int], dtype: np.dtype, down: int, across: int) -> np.ndarray:
    """Make this process's block an array over the caller's memory, or raise ShapeError. down, across: in elements."""
    rows, cols = shape
    if min(shape) and not address:
        raise ShapeError(f"local is NULL: this process has a block of {rows} x {cols}")
    if min(shape) and min(down, across) < 1:
        raise ShapeError(f"down={down}, across={across}: elements from row to row, and from column to column, are at least 1")
    if min(shape) and not has_no_overlap(shape, (down, across)):
        raise ShapeError(
            f"down={down}, across={across}: two elements of a {rows} x {cols} block would be in one place; "
            f"down=1 needs across >= {rows}, across=1 needs down >= {cols}"
        )
    if min(shape) and address + ((rows - 1) * down + (cols - 1) * across + 1) * dtype.itemsize > MOST:
        raise ShapeError(f"down={down}, across={across}: a {rows} x {cols} block of {dtype} ends beyond all memory")
    return view_address(address, shape, dtype, (down * dtype.itemsize, across * dtype.itemsize))


class Interface:
    """The functions, each with C's arguments except the last two, for an error's number and text, which all have."""

    def __init__(self, ffi: Any) -> None:
        self.ffi = ffi
        self.handles: Handles = Handles()

    def return_errors(self, function: Callable[..., None]) -> Callable[..., None]:
        """Wrap the function: write its errors to two more arguments at the end."""

        def call(*arguments: Any) -> None:
            *given, status, said = arguments
            try:
                function(*given)
                status[0] = 0
            except Exception as error:
                status[0] = next((number for number, kind in enumerate(NUMBERS, 1) if isinstance(error, kind)), OTHER)
                words = str(error) if isinstance(error, PdlaError) else f"{type(error).__name__}: {error}"
                # In UTF-8 a character has up to four bytes. A text mostly starts with the arguments, and
                # ends with the reason; `shorten` keeps both.
                text = shorten(words, LONGEST if words.isascii() else LONGEST // 4).encode()
                self.ffi.memmove(said, text + b"\0", len(text) + 1)

        return call

    def _read_text(self, pointer: Any) -> str:
        return self.ffi.string(pointer).decode(errors="backslashreplace")

    def _find_matrix(self, name: str, handle: int, opname: str = "", op: bytes = b"N") -> DistMatrix:
        """Find a matrix by its handle and apply `op`. name, opname: the arguments in pdla.h."""
        word = op.decode("latin-1")
        if word.upper() not in TURNS:
            raise ShapeError(f"{opname}={word!r}: N, T or C")
        return TURNS[word.upper()](self.handles.get(name, handle, DistMatrix))

    @contextmanager
    def _raise_on_all(self, *handles: int) -> Iterator[None]:
        """Raise an error of this with-block, of checks, on the other processes, too, which are about to agree on the call.

        The handles that are matrices name these processes; if none is a matrix, `raise_everywhere` finds them.
        """
        try:
            yield
        except Exception as error:
            if (comm := find_communicator(map(self.handles.kept.get, handles))) is not None:
                agree(comm, "", error)
            raise_everywhere(error)

    def grid(self, comm: int, axes: int, shape: Any, made: Any) -> None:
        everyone = from_fortran(comm)
        with agreed(everyone, "pdla_grid"):  # ProcessGrid compares the shapes
            check_pointers(shape=shape, grid=made)
            if not 1 <= axes <= len(NAMES):
                raise GridError(f"axes={axes}: a grid has one to three of pdla.h's axes, {', '.join(NAMES)}")
        made[0] = self.handles.new(ProcessGrid(list(shape[0:axes]), comm=everyone))

    def local_shape(self, grid: int, m: int, n: int, layout: Any, rows: Any, cols: Any) -> None:
        check_pointers(layout=layout, rows=rows, cols=cols)
        there, how = self.handles.get("grid", grid, ProcessGrid), read_layout(self._read_text(layout))
        check_shape("pdla_local_shape", (m, n))
        how.check((m, n), there.sizes)
        rows[0], cols[0] = local_shape((m, n), how, there)

    def matrix(self, grid: int, type: bytes, m: int, n: int, layout: Any, local: Any, down: int, across: int, made: Any) -> None:
        there, given = self.handles.get("grid", grid, ProcessGrid), type.decode("latin-1")
        kind = given.lower()
        with agreed(there.comm, f"pdla_matrix({kind}, {m}, {n}, {there!r})"):  # from_local compares the layouts
            check_pointers(layout=layout, matrix=made)
            if kind not in DTYPES:
                raise ShapeError(f"type={given!r}: s, d, c or z")
            check_shape("pdla_matrix", (m, n))
            how, dtype = read_layout(self._read_text(layout)), np.dtype(DTYPES[kind])
            how.check((m, n), there.sizes)
            address, shape = int(self.ffi.cast("uintptr_t", local)), local_shape((m, n), how, there)
            check_room("pdla_matrix", shape, dtype)
            block = make_block(address, shape, dtype, down, across)
        made[0] = self.handles.new(from_local(block, (m, n), there, how))

    def part(self, matrix: int, i0: int, i1: int, j0: int, j1: int, made: Any) -> None:
        check_pointers(part=made)
        whole = self._find_matrix("matrix", matrix)
        if not (0 <= i0 <= i1 <= whole.shape[0] and 0 <= j0 <= j1 <= whole.shape[1]):
            raise ShapeError(f"rows {i0} to {i1}, columns {j0} to {j1} of a matrix of shape {whole.shape}")
        made[0] = self.handles.new(whole[i0:i1, j0:j1])

    def gemm(self, opa: bytes, opb: bytes, alpha: Any, a: int, b: int, beta: Any, c: int) -> None:
        with self._raise_on_all(c, a, b):
            check_pointers(alpha=alpha, beta=beta)
            A, B, C = self._find_matrix("A", a, "opa", opa), self._find_matrix("B", b, "opb", opb), self._find_matrix("C", c)
            check_one_communicator(A=A, B=B, C=C)
            first, second = (read_number(self.ffi, pointer, C.dtype) for pointer in (alpha, beta))
        matmul(A, B, alpha=first, beta=second, out=C)

    def copy(self, op: bytes, a: int, c: int) -> None:
        with self._raise_on_all(c, a):
            A, C = self._find_matrix("A", a, "op", op), self._find_matrix("C", c)
            check_one_communicator(A=A, C=C)
        with agreed(C.grid.comm, f"pdla_copy({A.description}; {C.description})"):
            if A.shape != C.shape or A.dtype != C.dtype:
                raise ShapeError(f"pdla_copy: op(A) is {A.shape} {A.dtype}, C {C.shape} {C.dtype}")
            if C.layout.partial and (C.layout != A.layout or C.grid != A.grid):
                raise LayoutError(f"pdla_copy: cannot make partial sums {C.layout!r} from {A.layout!r}; give C a layout without")
        C.xp.copy(C.stored, convert(A, C.layout, C.grid).local)

    def free(self, handle: int) -> None:
        self.handles.free(handle)


def check_mpi(function: Callable[..., None]) -> Callable[..., None]:
    """Wrap the function: raise NoMPIError before MPI_Init and after MPI_Finalize, when MPI itself would end the process."""

    def call(*arguments: Any) -> None:
        from pdla.comm.mpi import libmpi

        libmpi.check_running()
        function(*arguments)

    return call


def serve(ffi: Any) -> None:
    """Define the functions that libpdla.so calls."""
    interface = Interface(ffi)
    for name in ("grid", "local_shape", "matrix", "part", "gemm", "copy"):
        ffi.def_extern(name=f"py_{name}")(interface.return_errors(check_mpi(getattr(interface, name))))
    ffi.def_extern(name="py_free")(interface.return_errors(interface.free))
