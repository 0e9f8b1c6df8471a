"""The first import of the Python inside a C or Fortran program; the program loads, initialises and finalises MPI."""

from __future__ import annotations

import ctypes
import re
import signal
import sys
from pathlib import Path

import mpi4py

mpi4py.rc.initialize = mpi4py.rc.finalize = False
mpi4py.rc.errors = "default"  # else errors on the program's own communicators would no longer end it

MPICH, ALIAS = "libmpi.so.12", "pdla_mpich.so"


def _open_to_all(files: str) -> None:
    """Let mpi4py find MPI's functions if MPI was loaded for one module alone, as Python loads libraries of an extension."""
    if not hasattr(ctypes.CDLL(None), "MPI_Init"):
        for path in set(re.findall(r"/.*/libmpi\w*\.so.*$", files, re.MULTILINE)):
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)


def _lend_a_name(files: str) -> None:
    """Load the empty library, beside pdla's, with the soname by which mpi4py loads MPICH.

    Debian's MPICH has another soname. mpi4py finds MPI's functions in the process, which has loaded
    MPI already.
    """
    process, ours = ctypes.CDLL(None), re.search(r"(/.*)/libpdla(_pblas)?\.so$", files, re.MULTILINE)
    if ours and hasattr(process, "MPI_Init") and not hasattr(process, "ompi_mpi_comm_self") and MPICH not in files:
        ctypes.CDLL(f"{ours[1]}/{ALIAS}", ctypes.RTLD_GLOBAL)


def _leave_interrupts() -> None:
    """Remove Python's handler of Ctrl-C, unless the program has a handler.

    Python's handler acts only in Python, so no Ctrl-C could end a program that does not call pdla again.
    """
    if not sys.orig_argv and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the program is Python itself
        signal.signal(signal.SIGINT, signal.SIG_DFL)


_mapped = Path("/proc/self/maps").read_text()
_open_to_all(_mapped)
_lend_a_name(_mapped)
_leave_interrupts()
