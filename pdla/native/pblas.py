"""Calls from libpdla_pblas.so: read C's arguments, and run the call."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from pdla.comm.mpi import abort
from pdla.errors import PdlaError
from pdla.native.number import read_number
from pdla.scalapack import pblas
from pdla.scalapack.descriptor import Descriptor


def serve(ffi: Any) -> None:
    """Define the function that libpdla_pblas.so calls. An exception in it ends the job, as the other ranks could not go on."""
    alike = ffi.offsetof("pdla_call", "lld")

    def place(pointer: Any, lld: int) -> pblas.Place:
        return int(ffi.cast("uintptr_t", pointer)), lld

    def dtype(letter: int) -> np.dtype:
        return np.dtype(pblas.DTYPES[chr(letter)])

    def read(call: Any) -> pblas.Call:
        a, b, c = 0, 1 if call.has_b else 2, 2
        shapes, corners = (tuple((pair[i][0], pair[i][1]) for i in (a, b, c)) for pair in (call.shape, call.at))
        words = (chr(word) for word in call.words)
        descriptors = tuple(Descriptor(*call.desc[i][1:11]) for i in (a, b, c))
        return pblas.Call(chr(call.routine), dtype(call.type), "".join(words), shapes, corners, descriptors)

    @ffi.def_extern(error=0)
    def pdla_take(call: Any, alpha: Any, a: Any, b: Any, beta: Any, c: Any) -> int:
        try:
            context = pblas.context(call.comm, (call.nprow, call.npcol), (call.myrow, call.mycol))
            run = context.find(bytes(ffi.buffer(call, alike)), call.flops, lambda: read(call))
            if run is None:
                return 0
            first, second = (read_number(ffi, pointer, dtype(call.scalar)) for pointer in (alpha, beta))
            at = [place(pointer, lld) for pointer, lld in zip((a, b, c), call.lld, strict=True)]
            context.run(run, first, at[0], at[1], second, at[2])
            return 1
        except PdlaError as error:  # a fault of the arguments: the text alone is enough
            abort.end_job(type(error), error, None)
        except BaseException:
            abort.end_job(*sys.exc_info())
        return 0  # MPI does not run for mpi4py, so no message was sent: ScaLAPACK does the work
