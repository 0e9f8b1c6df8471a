"""Imported first by the Python inside a C or Fortran program, which has loaded MPI already, and initialises and finalises it."""

from __future__ import annotations

import ctypes
import re
import signal
import sys
from pathlib import Path

import mpi4py

mpi4py.rc.initialize = mpi4py.rc.finalize = False
mpi4py.rc.errors = "default"  # else errors on the program's own communicators would be returned, where they would have ended it

MPICH, ALIAS = "libmpi.so.12", "pdla_mpich.so"


def _open_to_all(files: str) -> None:
    """Where MPI was loaded for one module alone, as Python loads what an extension needs: let mpi4py find its functions, too."""
    if not hasattr(ctypes.CDLL(None), "MPI_Init"):
        for path in set(re.findall(r"/.*/libmpi\w*\.so.*$", files, re.MULTILINE)):
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)


def _lend_a_name(files: str) -> None:
    """Load the empty library, beside pdla's, that has the soname by which mpi4py loads MPICH.

    Debian's MPICH has another. MPI itself is in the process already, and its functions are found
    there.
    """
    process, ours = ctypes.CDLL(None), re.search(r"(/.*)/libpdla(_pblas)?\.so$", files, re.MULTILINE)
    if ours and hasattr(process, "MPI_Init") and not hasattr(process, "ompi_mpi_comm_self") and MPICH not in files:
        ctypes.CDLL(f"{ours[1]}/{ALIAS}", ctypes.RTLD_GLOBAL)


def _leave_interrupts() -> None:
    """Take back Python's handler of Ctrl-C, unless the program has one.

    It acts only in Python, so a program that did not call pdla again could not be ended.
    """
    if not sys.orig_argv and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the program is Python itself
        signal.signal(signal.SIGINT, signal.SIG_DFL)


_mapped = Path("/proc/self/maps").read_text()
_open_to_all(_mapped)
_lend_a_name(_mapped)
_leave_interrupts()
